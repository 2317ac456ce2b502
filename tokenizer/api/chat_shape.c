/*
 * chat_shape.c - Chat Completions: what a body may hold, for both codecs; see
 * shape.h.
 */

#include "shape.h"

#define REQUIRED  DI_MEMBER_REQUIRED
#define STRICT    DI_MEMBER_STRICT
#define OFFICIAL  DI_MEMBER_OFFICIAL

static const di_member_t url_members[] = {
    { "url", &di_shape_text, REQUIRED, NULL },
    { "detail", &di_shape_detail, 0, NULL },
    { .name = NULL },
};
static const di_shape_t url_shape = { .kind = DI_SHAPE_STRUCT,
                                      .name = "ChatCompletionImageUrl",
                                      .members = url_members };

/* A mark of the prefix cache, which needs none here. */
#define BREAKPOINT  { "prompt_cache_breakpoint", NULL, STRICT, NULL }

static const di_member_t text_members[] = {
    { "text", &di_shape_text, REQUIRED, NULL }, BREAKPOINT, { .name = NULL },
};
static const di_member_t image_members[] = {
    { "image_url", &url_shape, REQUIRED, NULL }, BREAKPOINT, { .name = NULL },
};
static const di_member_t file_members[] = {
    { "file_data", &di_shape_text, 0, NULL },
    { "filename", &di_shape_text, 0, NULL },
    { "file_id", &di_shape_text, 0, NULL },
    { .name = NULL },
};
static const di_member_t refusal_members[] = {
    { "refusal", &di_shape_text, REQUIRED, NULL }, { .name = NULL },
};
static const di_shape_t text_part = { .kind = DI_SHAPE_STRUCT,
                                      .members = text_members };
static const di_shape_t image_part = { .kind = DI_SHAPE_STRUCT,
                                       .members = image_members };
static const di_shape_t file_part = { .kind = DI_SHAPE_STRUCT,
                                      .members = file_members };
static const di_shape_t refusal_part = { .kind = DI_SHAPE_STRUCT,
                                         .members = refusal_members };

static const char no_audio[] = "the model has no audio input";
static const char no_files[] = "the model reads no files";

static const di_member_t parts[] = {
    { "text", &text_part, 0, NULL },
    { "image_url", &image_part, 0, NULL },
    { "file", &file_part, OFFICIAL, NULL },
    { "file", NULL, STRICT, no_files },
    { "input_audio", NULL, STRICT, no_audio },
    { .name = NULL },
};
static const di_member_t assistant_parts[] = {
    { "text", &text_part, 0, NULL },
    { "image_url", &image_part, OFFICIAL, NULL },
    { "file", &file_part, OFFICIAL, NULL },
    { "refusal", &refusal_part, STRICT, NULL },
    { .name = NULL },
};
static const di_shape_t part = {
    .kind = DI_SHAPE_TAGGED, .name = "ChatCompletionRequestContentBlock",
    .tag = "type", .members = parts,
};
static const di_shape_t assistant_part = {
    .kind = DI_SHAPE_TAGGED, .name = "ChatCompletionRequestContentBlock",
    .tag = "type", .members = assistant_parts,
};

#define CONTENT_COMPLAINT  "content should be a string or a list"
#define CONTENT_EXPECTS    "a string or an array of content parts"

static const di_shape_t content = {
    .kind = DI_SHAPE_TEXT_OR_LIST, .name = CONTENT_COMPLAINT, .of = &part,
    .expects = CONTENT_EXPECTS,
};
static const di_shape_t assistant_content = {
    .kind = DI_SHAPE_TEXT_OR_LIST, .name = CONTENT_COMPLAINT,
    .of = &assistant_part, .expects = CONTENT_EXPECTS,
};


static const di_member_t called_members[] = {
    { "name", &di_shape_text, REQUIRED, NULL },
    { "arguments", &di_shape_text, REQUIRED, NULL },
    { .name = NULL },
};
static const di_shape_t called = { .kind = DI_SHAPE_STRUCT,
                                   .name = "ChatCompletionRequestFunctionCall",
                                   .members = called_members };
static const di_member_t custom_called_members[] = {
    { "name", &di_shape_text, REQUIRED, NULL },
    { "input", &di_shape_text, REQUIRED, NULL },
    { .name = NULL },
};
static const di_shape_t custom_called = { .kind = DI_SHAPE_STRUCT,
                                          .members = custom_called_members };
static const di_member_t call_members[] = {
    { "id", &di_shape_text, REQUIRED, NULL },
    { "function", &called, REQUIRED, NULL },
    { "index", NULL, STRICT, NULL },
    { .name = NULL },
};
static const di_member_t custom_call_members[] = {
    { "id", &di_shape_text, REQUIRED, NULL },
    { "custom", &custom_called, REQUIRED, NULL },
    { "index", NULL, STRICT, NULL },
    { .name = NULL },
};
static const di_shape_t function_call = { .kind = DI_SHAPE_STRUCT,
                                          .members = call_members };
static const di_shape_t custom_call = { .kind = DI_SHAPE_STRUCT,
                                        .members = custom_call_members };
static const di_member_t call_types[] = {
    { "function", &function_call, 0, NULL },
    { "custom", &custom_call, 0, NULL },
    { .name = NULL },
};
static const di_shape_t tagged_call = { .kind = DI_SHAPE_TAGGED, .tag = "type",
                                        .members = call_types };
static const di_member_t function_types[] = {
    { .name = "function" }, { .name = NULL },
};
static const di_shape_t function_type = { .kind = DI_SHAPE_ENUM,
                                          .members = function_types };
static const di_member_t official_call_members[] = {
    { "id", &di_shape_text, REQUIRED, NULL },
    { "type", &function_type, REQUIRED, NULL },
    { "function", &called, REQUIRED, NULL },
    { .name = NULL },
};
static const di_shape_t official_call = {
    .kind = DI_SHAPE_STRUCT, .name = "ChatCompletionRequestToolCall",
    .members = official_call_members,
};

/* The official codec knows functions alone: there the type is an enum of
 * one, here it picks what the rest is. */
static int
check_call(di_rq_t *rq, const di_json_t *v)
{
    return di_shape_check(rq, rq->official ? &official_call : &tagged_call, v);
}

static const di_shape_t call = { .kind = DI_SHAPE_CUSTOM,
                                 .check = check_call };
static const di_shape_t call_list = { .kind = DI_SHAPE_LIST, .of = &call };

static const di_member_t plain_members[] = {
    { "content", &content, REQUIRED, NULL },
    { "name", &di_shape_text, 0, NULL },
    { .name = NULL },
};
static const di_member_t assistant_members[] = {
    { "content", &assistant_content, 0, NULL },
    { "reasoning_content", &di_shape_text, 0, NULL },
    { "tool_calls", &call_list, 0, NULL },
    { "prefix", &di_shape_bool, 0, NULL },
    { "name", &di_shape_text, 0, NULL },
    { "refusal", &di_shape_text, STRICT, NULL },
    { "annotations", NULL, STRICT, NULL },
    { "audio", NULL, STRICT, no_audio },
    { "function_call", NULL, STRICT, "use tool_calls" },
    { .name = NULL },
};
static const di_member_t tool_members[] = {
    { "content", &content, REQUIRED, NULL },
    { "tool_call_id", &di_shape_text, REQUIRED, NULL },
    { "name", &di_shape_text, STRICT, NULL },
    { .name = NULL },
};
static const di_member_t reminder_members[] = {
    { "content", &di_shape_text, REQUIRED, NULL }, { .name = NULL },
};
static const di_shape_t reminder = { .kind = DI_SHAPE_STRUCT,
                                     .members = reminder_members };
static const di_shape_t plain_message = { .kind = DI_SHAPE_STRUCT,
                                          .members = plain_members };
static const di_shape_t assistant_message = { .kind = DI_SHAPE_STRUCT,
                                              .members = assistant_members };
static const di_shape_t tool_message = { .kind = DI_SHAPE_STRUCT,
                                         .members = tool_members };

static const di_member_t roles[] = {
    { "system", &plain_message, 0, NULL },
    { "developer", &plain_message, STRICT, NULL },
    { "user", &plain_message, 0, NULL },
    { "assistant", &assistant_message, 0, NULL },
    { "tool", &tool_message, 0, NULL },
    { "latest_reminder", &reminder, 0, NULL },
    { "function", NULL, STRICT, "use the role 'tool'" },
    { .name = NULL },
};
static const di_shape_t message_shape = {
    .kind = DI_SHAPE_TAGGED, .name = "ChatCompletionRequestMessage",
    .tag = "role", .members = roles,
};
static const di_shape_t message_list = { .kind = DI_SHAPE_LIST,
                                         .of = &message_shape };

static const di_member_t defined_members[] = {
    { "name", &di_shape_text, REQUIRED, NULL },
    { "description", &di_shape_text, 0, NULL },
    { "parameters", NULL, 0, NULL },
    { "strict", &di_shape_bool, 0, NULL },
    { .name = NULL },
};
static const di_shape_t defined = { .kind = DI_SHAPE_STRUCT,
                                    .name = "ChatCompletionFunctionDefinition",
                                    .members = defined_members };
static const di_member_t custom_defined_members[] = {
    { "name", &di_shape_text, REQUIRED, NULL },
    { "description", &di_shape_text, 0, NULL },
    { "format", &di_shape_map, 0, NULL },
    { .name = NULL },
};
static const di_shape_t custom_defined = { .kind = DI_SHAPE_STRUCT,
                                           .members = custom_defined_members };
static const di_member_t function_members[] = {
    { "function", &defined, REQUIRED, NULL }, { .name = NULL },
};
static const di_member_t custom_members[] = {
    { "custom", &custom_defined, REQUIRED, NULL }, { .name = NULL },
};
static const di_shape_t function_tool = { .kind = DI_SHAPE_STRUCT,
                                          .members = function_members };
static const di_shape_t custom_tool = { .kind = DI_SHAPE_STRUCT,
                                        .members = custom_members };
static const di_member_t tool_types[] = {
    { "function", &function_tool, 0, NULL },
    { "custom", &custom_tool, 0, NULL },
    { .name = NULL },
};
static const di_shape_t tagged_tool = { .kind = DI_SHAPE_TAGGED, .tag = "type",
                                        .members = tool_types };
static const di_member_t official_tool_members[] = {
    { "type", &function_type, REQUIRED, NULL },
    { "function", &defined, REQUIRED, NULL },
    { .name = NULL },
};
static const di_shape_t official_tool = { .kind = DI_SHAPE_STRUCT,
                                          .name = "ChatCompletionTool",
                                          .members = official_tool_members };

static int
check_definition(di_rq_t *rq, const di_json_t *v)
{
    return di_shape_check(rq, rq->official ? &official_tool : &tagged_tool, v);
}

static const di_shape_t definition = { .kind = DI_SHAPE_CUSTOM,
                                       .check = check_definition };
static const di_shape_t definition_list = { .kind = DI_SHAPE_LIST,
                                            .of = &definition };

static int check_choice(di_rq_t *rq, const di_json_t *v);

static const di_shape_t choice = { .kind = DI_SHAPE_CUSTOM,
                                   .check = check_choice };

static const di_member_t schema_members[] = {
    { "name", &di_shape_text, OFFICIAL, NULL },
    { "name", &di_shape_text, STRICT | REQUIRED, NULL },
    { "schema", NULL, REQUIRED, NULL },
    { "strict", &di_shape_bool, 0, NULL },
    { "description", &di_shape_text, STRICT, NULL },
    { .name = NULL },
};
static const di_shape_t schema_shape = {
    .kind = DI_SHAPE_STRUCT, .name = "ChatCompletionResponseFormatJsonSchema",
    .members = schema_members,
};
static const di_member_t schema_format_members[] = {
    { "json_schema", &schema_shape, REQUIRED, NULL }, { .name = NULL },
};
static const di_member_t regex_members[] = {
    { "regex", &di_shape_text, REQUIRED, NULL }, { .name = NULL },
};
static const di_shape_t schema_format = { .kind = DI_SHAPE_STRUCT,
                                          .members = schema_format_members };
static const di_shape_t regex_format = { .kind = DI_SHAPE_STRUCT,
                                         .members = regex_members };
static const di_member_t formats[] = {
    { .name = "json_object" },
    { "json_schema", &schema_format, 0, NULL },
    { "regex", &regex_format, 0, NULL },
    { .name = "text" },
    { .name = NULL },
};
const di_shape_t di_shape_response_format = {
    .kind = DI_SHAPE_TAGGED, .name = "ChatCompletionResponseFormat",
    .tag = "type", .members = formats,
};

static const di_shape_t thinking = { .kind = DI_SHAPE_STRUCT,
                                     .name = "ChatCompletionThinking",
                                     .members = di_thinking_members };

/* What vLLM and SGLang hand to the template; these two are of Qwen's and of
 * DeepSeek's. */
static const di_member_t kwargs_members[] = {
    { "enable_thinking", &di_shape_bool, 0, NULL },
    { "thinking", &di_shape_bool, 0, NULL },
    { .name = NULL },
};
static const di_shape_t kwargs = { .kind = DI_SHAPE_STRUCT,
                                   .members = kwargs_members };

static const di_shape_t stop = {
    .kind = DI_SHAPE_TEXT_OR_LIST, .of = &di_shape_text,
    .name = "expected a string or a list",
};
static const di_member_t stream_members[] = {
    { "include_usage", &di_shape_bool, 0, NULL }, { .name = NULL },
};
static const di_shape_t stream_options = {
    .kind = DI_SHAPE_STRUCT, .name = "ChatCompletionStreamOptions",
    .members = stream_members,
};

/* Fields of sampling are the strict codec's own (params.c). */
static const di_member_t members[] = {
    { "messages", &message_list, REQUIRED, NULL },
    { "model", &di_shape_text, REQUIRED, NULL },
    { "tools", &definition_list, 0, NULL },
    { "tool_choice", &choice, 0, NULL },
    { "response_format", &di_shape_response_format, 0, NULL },
    { "thinking", &thinking, 0, NULL },
    { "reasoning_effort", &di_shape_effort, 0, NULL },
    { "chat_template_kwargs", &kwargs, STRICT, NULL },
    { "temperature", &di_shape_f32, OFFICIAL, NULL },
    { "top_p", &di_shape_f32, OFFICIAL, NULL },
    { "presence_penalty", &di_shape_f32, OFFICIAL, NULL },
    { "frequency_penalty", &di_shape_f32, OFFICIAL, NULL },
    { "max_tokens", &di_shape_u32, OFFICIAL, NULL },
    { "seed", &di_shape_u64, OFFICIAL, NULL },
    { "n", &di_shape_u8, OFFICIAL, NULL },
    { "stop", &stop, OFFICIAL, NULL },
    { "logprobs", &di_shape_bool, OFFICIAL, NULL },
    { "top_logprobs", &di_shape_u8, OFFICIAL, NULL },
    { "stream", &di_shape_bool, OFFICIAL, NULL },
    { "stream_options", &stream_options, OFFICIAL, NULL },
    { "parallel_tool_calls", &di_shape_bool, OFFICIAL, NULL },
    { "audio", NULL, STRICT, no_audio },
    { "prediction", NULL, STRICT, "predicted outputs are not used here" },
    { "web_search_options", NULL, STRICT, "this server can't search" },
    { .name = NULL },
};
const di_shape_t di_shape_chat = {
    .kind = DI_SHAPE_STRUCT, .name = "ChatCompletionRequest",
    .members = members,
};

/* tool_choice. */
static const di_member_t chosen_members[] = {
    { "name", &di_shape_text, REQUIRED, NULL }, { .name = NULL },
};
static const di_shape_t chosen = {
    .kind = DI_SHAPE_STRUCT, .name = "ChatCompletionToolChoiceFunction",
    .members = chosen_members,
};
static const di_member_t choice_members[] = {
    { "type", &function_type, REQUIRED, NULL },
    { "function", &chosen, REQUIRED, NULL },
    { .name = NULL },
};
static const di_member_t function_choice[] = {
    { "function", &chosen, REQUIRED, NULL }, { .name = NULL },
};
static const di_member_t custom_choice[] = {
    { "custom", &chosen, REQUIRED, NULL }, { .name = NULL },
};
static const di_shape_t by_function = {
    .kind = DI_SHAPE_STRUCT, .members = function_choice,
};
static const di_shape_t by_custom = {
    .kind = DI_SHAPE_STRUCT, .members = custom_choice,
};
static const di_member_t allowed_members[] = {
    { "allowed_tools", &di_shape_allowed, REQUIRED, NULL },
    { .name = NULL },
};
static const di_shape_t by_list = {
    .kind = DI_SHAPE_STRUCT, .members = allowed_members,
};
static const di_member_t choice_variants[] = {
    { "function", &by_function, 0, NULL },
    { "custom", &by_custom, 0, NULL },
    { "allowed_tools", &by_list, 0, NULL },
    { .name = NULL },
};
static const di_shape_t choice_object = {
    .kind = DI_SHAPE_TAGGED, .tag = "type", .members = choice_variants,
};

/* The official reader takes the members one by one, by name. */
static int
check_choice_official(di_rq_t *rq, const di_json_t *v)
{
    static const char      prefix[] = "invalid request body: ";
    static const di_json_t null = { .type = DI_JSON_NULL };
    const di_member_t     *m;
    const di_json_t       *f;
    char                   text[sizeof(rq->e->message)];
    int                    rc;

    for (m = choice_members; m->name != NULL; m++) {
        f = di_json_get(v, m->name);
        rc = di_shape_check(rq, m->shape, f == NULL ? &null : f);
        if (rc != DI_EINVAL)
            continue;

        (void) snprintf(text, sizeof(text), "%s",
                        rq->e->message + sizeof(prefix) - 1);
        return di_shape_fail(rq, "field `%s`: %s", m->name, text);
    }

    return DI_OK;
}

/* A name, or an object that names a function. */
static int
check_choice(di_rq_t *rq, const di_json_t *v)
{
    if (di_rq_is(v, "none") || di_rq_is(v, "auto") || di_rq_is(v, "required"))
        return DI_OK;

    if (v->type != DI_JSON_OBJECT
        || (rq->official && di_json_get(v, "type") == NULL))
        return rq->official
               ? di_shape_fail(rq, "expected one of `none`, `auto`, `required`"
                               " or a tool")
               : di_field_invalid(rq->e, rq->path, "invalid_value",
                                  "Invalid '%s': expected 'none', 'auto',"
                                  " 'required' or a function.", rq->path);

    return rq->official ? check_choice_official(rq, v)
                        : di_shape_check(rq, &choice_object, v);
}
