/*
 * responses_shape.c - Responses: what a body may hold, for both codecs; see
 * shape.h.
 */

#include "shape.h"

#define REQUIRED  DI_MEMBER_REQUIRED
#define STRICT    DI_MEMBER_STRICT
#define OFFICIAL  DI_MEMBER_OFFICIAL

/* A mark of the prefix cache, which needs none here. */
#define BREAKPOINT  { "prompt_cache_breakpoint", NULL, STRICT, NULL }

static const di_member_t text_members[] = {
    { "text", &di_shape_text, REQUIRED, NULL },
    { "annotations", NULL, STRICT, NULL },
    { "logprobs", NULL, STRICT, NULL },
    BREAKPOINT,
    { .name = NULL },
};
static const di_member_t image_members[] = {
    { "image_url", &di_shape_text, 0, NULL },
    { "file_id", &di_shape_text, 0, NULL },
    { "detail", &di_shape_detail, 0, NULL },
    BREAKPOINT,
    { .name = NULL },
};
static const di_member_t refusal_members[] = {
    { "refusal", &di_shape_text, REQUIRED, NULL }, { .name = NULL },
};

#define STRUCT(var, list)                                                   \
    static const di_shape_t var = { .kind = DI_SHAPE_STRUCT, .members = list }

STRUCT(text_part, text_members);
STRUCT(image_part, image_members);
STRUCT(refusal_part, refusal_members);

static const char no_files[] = "the model reads no files";

static const di_member_t parts[] = {
    { "input_text", &text_part, 0, NULL },
    { "output_text", &text_part, 0, NULL },
    { "input_image", &image_part, 0, NULL },
    { "input_file", NULL, OFFICIAL, NULL },
    { "input_file", NULL, STRICT, no_files },
    { "refusal", &refusal_part, STRICT, NULL },
    { "input_audio", NULL, STRICT, "the model has no audio input" },
    { .name = NULL },
};
static const di_shape_t part = { .kind = DI_SHAPE_TAGGED,
                                 .name = "ResponsesContentBlock", .tag = "type",
                                 .members = parts };
static const di_member_t output_parts[] = {
    { "input_text", &text_part, 0, NULL },
    { "input_image", &image_part, 0, NULL },
    { "input_file", NULL, OFFICIAL, NULL },
    { "input_file", NULL, STRICT, no_files },
    { .name = NULL },
};
static const di_shape_t output_part = {
    .kind = DI_SHAPE_TAGGED, .name = "ResponsesToolCallOutputItem",
    .tag = "type", .members = output_parts,
};
static const di_shape_t content = {
    .kind = DI_SHAPE_TEXT_OR_LIST, .of = &part,
    .name = "content should be a string or a list of content blocks",
    .expects = "a string or an array of content parts",
};
static const di_shape_t output = {
    .kind = DI_SHAPE_TEXT_OR_LIST, .of = &output_part,
    .name = "output should be a string or a list of output content parts",
    .expects = "a string or an array of content parts",
};

static const di_member_t roles[] = {
    { .name = "user" }, { .name = "assistant" }, { .name = "system" },
    { .name = "developer" }, { .name = NULL },
};
static const di_shape_t role = { .kind = DI_SHAPE_ENUM, .members = roles };

/* What an item that was an answer's carries. */
#define ITEM                                                                \
    { "id", NULL, STRICT, NULL }, { "status", NULL, STRICT, NULL },         \
    { "type", NULL, STRICT, NULL }

/* And one of a call, or of its output: every call here is the model's. */
#define CALL_ITEM                                                           \
    ITEM, { "caller", NULL, STRICT, NULL }, { "async", NULL, STRICT, NULL }

static const di_member_t message_members[] = {
    { "role", &role, REQUIRED, NULL },
    { "content", &content, REQUIRED, NULL },
    ITEM,
    { "phase", NULL, STRICT, NULL },
    { .name = NULL },
};
static const di_member_t call_members[] = {
    { "arguments", &di_shape_text, REQUIRED, NULL },
    { "call_id", &di_shape_text, REQUIRED, NULL },
    { "name", &di_shape_text, REQUIRED, NULL },
    { "namespace", &di_shape_text, 0, NULL },
    CALL_ITEM,
    { .name = NULL },
};
static const di_member_t output_members[] = {
    { "call_id", &di_shape_text, STRICT | REQUIRED, NULL },
    { "call_id", &di_shape_text, OFFICIAL, NULL },
    { "output", &output, REQUIRED, NULL },
    { "name", NULL, STRICT, NULL },
    { "namespace", NULL, STRICT, NULL },
    CALL_ITEM,
    { .name = NULL },
};
static const di_member_t custom_output_members[] = {
    { "call_id", &di_shape_text, REQUIRED, NULL },
    { "output", &output, 0, NULL },
    CALL_ITEM,
    { .name = NULL },
};
static const di_member_t custom_call_members[] = {
    { "call_id", &di_shape_text, REQUIRED, NULL },
    { "name", &di_shape_text, REQUIRED, NULL },
    { "input", &di_shape_text, REQUIRED, NULL },
    { "namespace", NULL, STRICT, "custom tools stand in none" },
    CALL_ITEM,
    { .name = NULL },
};
static const di_member_t thought_members[] = {
    { "text", &di_shape_text, REQUIRED, NULL },
    { "type", NULL, STRICT, NULL },
    { .name = NULL },
};
static const di_shape_t thought = { .kind = DI_SHAPE_STRUCT,
                                    .name = "ResponsesReasoningContent",
                                    .members = thought_members };
static const di_shape_t thoughts = { .kind = DI_SHAPE_LIST, .of = &thought };
static const di_member_t reasoning_members[] = {
    { "content", &thoughts, 0, NULL },
    { "summary", NULL, 0, NULL },
    { "encrypted_content", &di_shape_text, 0, NULL },
    ITEM,
    { .name = NULL },
};
static const di_member_t executions[] = {
    { .name = "client" }, { .name = "server" }, { .name = NULL },
};
static const di_shape_t execution = { .kind = DI_SHAPE_ENUM,
                                      .members = executions };
static const di_member_t search_members[] = {
    { "call_id", &di_shape_text, REQUIRED, NULL },
    { "arguments", &di_shape_map, REQUIRED, NULL },
    { "execution", &execution, 0, NULL },
    ITEM,
    { .name = NULL },
};

static int check_tool(di_rq_t *rq, const di_json_t *v);
static int check_item(di_rq_t *rq, const di_json_t *v);
static int check_input(di_rq_t *rq, const di_json_t *v);
static int check_choice(di_rq_t *rq, const di_json_t *v);
static int check_async(di_rq_t *rq, const di_json_t *v);

static const di_shape_t not_async = { .kind = DI_SHAPE_CUSTOM,
                                      .check = check_async };
static const di_shape_t tool = { .kind = DI_SHAPE_CUSTOM,
                                 .check = check_tool };
static const di_shape_t tool_list = { .kind = DI_SHAPE_LIST, .of = &tool };
static const di_member_t found_members[] = {
    { "call_id", &di_shape_text, REQUIRED, NULL },
    { "tools", &tool_list, REQUIRED, NULL },
    { "execution", &execution, 0, NULL },
    ITEM,
    { .name = NULL },
};

STRUCT(message, message_members);
STRUCT(call, call_members);
STRUCT(call_output, output_members);
STRUCT(custom_call, custom_call_members);
STRUCT(custom_output, custom_output_members);
STRUCT(reasoning_item, reasoning_members);
STRUCT(search_call, search_members);
STRUCT(search_output, found_members);

static const di_member_t items[] = {
    { "function_call", &call, 0, NULL },
    { "function_call_output", &call_output, 0, NULL },
    { "custom_tool_call", &custom_call, 0, NULL },
    { "custom_tool_call_output", &custom_output, 0, NULL },
    { "reasoning", &reasoning_item, 0, NULL },
    { "tool_search_call", &search_call, 0, NULL },
    { "tool_search_output", &search_output, 0, NULL },
    { "message", &message, STRICT, NULL },
    { "item_reference", NULL, STRICT, "give the item itself" },
    { .name = NULL },
};
static const di_shape_t item_shape = { .kind = DI_SHAPE_CUSTOM,
                                       .check = check_item };
const di_shape_t di_shape_items = { .kind = DI_SHAPE_LIST,
                                    .of = &item_shape };
static const di_shape_t tagged_item = { .kind = DI_SHAPE_TAGGED,
                                        .name = "InputItem", .tag = "type",
                                        .members = items };
static const di_shape_t input_shape = { .kind = DI_SHAPE_CUSTOM,
                                        .check = check_input };

static const di_member_t function_members[] = {
    { "name", &di_shape_text, REQUIRED, NULL },
    { "description", &di_shape_text, 0, NULL },
    { "parameters", NULL, 0, NULL },
    { "strict", &di_shape_bool, 0, NULL },
    { "defer_loading", NULL, STRICT, NULL },
    { "output_schema", NULL, STRICT, NULL },
    { "allowed_callers", &di_shape_callers, STRICT, NULL },
    { "async", &not_async, STRICT, NULL },
    { "type", NULL, STRICT, NULL },
    { .name = NULL },
};
static const di_member_t custom_members[] = {
    { "name", &di_shape_text, REQUIRED, NULL },
    { "description", &di_shape_text, STRICT, NULL },
    { "format", NULL, STRICT, NULL },
    { "defer_loading", NULL, STRICT, NULL },
    { "allowed_callers", &di_shape_callers, STRICT, NULL },
    { "async", &not_async, STRICT, NULL },
    { "type", NULL, STRICT, NULL },
    { .name = NULL },
};
STRUCT(function_tool, function_members);
STRUCT(custom_tool, custom_members);
static const di_member_t inner_kinds[] = {
    { "function", &function_tool, 0, NULL },
    { "custom", &custom_tool, 0, NULL },
    { .name = NULL },
};
static const di_shape_t inner_tool = { .kind = DI_SHAPE_TAGGED,
                                       .name = "ResponsesNamespaceTool",
                                       .tag = "type", .members = inner_kinds };
static const di_shape_t inner_list = { .kind = DI_SHAPE_LIST,
                                       .of = &inner_tool };
static const di_member_t space_members[] = {
    { "name", &di_shape_text, REQUIRED, NULL },
    { "description", &di_shape_text, 0, NULL },
    { "tools", &inner_list, REQUIRED, NULL },
    { "type", NULL, STRICT, NULL },
    { .name = NULL },
};
static const di_member_t search_tool_members[] = {
    { "execution", &execution, 0, NULL },
    { "description", &di_shape_text, 0, NULL },
    { "parameters", NULL, 0, NULL },
    { "type", NULL, STRICT, NULL },
    { .name = NULL },
};
STRUCT(space_tool, space_members);
STRUCT(search_tool, search_tool_members);

static const di_member_t tool_kinds[] = {
    { "function", &function_tool, 0, NULL },
    { "custom", &custom_tool, 0, NULL },
    { "namespace", &space_tool, 0, NULL },
    { "tool_search", &search_tool, 0, NULL },
    { .name = NULL },
};
static const di_shape_t tagged_tool = { .kind = DI_SHAPE_TAGGED,
                                        .name = "ResponsesTool", .tag = "type",
                                        .members = tool_kinds };
static const di_shape_t choice = { .kind = DI_SHAPE_CUSTOM,
                                   .check = check_choice };

static const di_member_t summaries[] = {
    { .name = "auto" }, { .name = "concise" }, { .name = "detailed" },
    { .name = NULL },
};
static const di_shape_t summary = { .kind = DI_SHAPE_ENUM,
                                    .members = summaries };

static const char by_dialect[] = "the model's dialect says which reasoning it"
                                 " reads again";
static const di_member_t contexts[] = {
    { .name = "auto" },
    { "current_turn", NULL, 0, by_dialect },
    { "all_turns", NULL, 0, by_dialect },
    { .name = NULL },
};
static const di_shape_t context = { .kind = DI_SHAPE_ENUM,
                                    .members = contexts };
static const di_member_t reasoning_modes[] = {
    { .name = "standard" },
    { "pro", NULL, 0, "there is one mode" },
    { .name = NULL },
};
static const di_shape_t reasoning_mode = { .kind = DI_SHAPE_ENUM,
                                           .members = reasoning_modes };
static const di_member_t effort_members[] = {
    { "effort", &di_shape_effort, 0, NULL },
    { "summary", &summary, 0, NULL },
    { "generate_summary", &summary, 0, NULL },
    { "context", &context, STRICT, NULL },
    { "mode", &reasoning_mode, STRICT, NULL },
    { .name = NULL },
};
static const di_shape_t reasoning = { .kind = DI_SHAPE_STRUCT,
                                      .name = "ResponsesReasoningConfig",
                                      .members = effort_members };

static const di_member_t schema_members[] = {
    { "name", &di_shape_text, REQUIRED, NULL },
    { "schema", NULL, REQUIRED, NULL },
    { "strict", &di_shape_bool, 0, NULL },
    { "description", &di_shape_text, 0, NULL },
    { .name = NULL },
};
STRUCT(schema_format, schema_members);
static const di_member_t formats[] = {
    { .name = "text" },
    { "json_schema", &schema_format, 0, NULL },
    { .name = "json_object" },
    { .name = NULL },
};
static const di_shape_t format = { .kind = DI_SHAPE_TAGGED,
                                   .name = "ResponsesTextFormat", .tag = "type",
                                   .members = formats };
static const di_member_t verbosities[] = {
    { .name = "low" }, { .name = "medium" }, { .name = "high" },
    { .name = NULL },
};
static const di_shape_t verbosity = { .kind = DI_SHAPE_ENUM,
                                      .members = verbosities };
static const di_member_t text_config_members[] = {
    { "format", &format, DI_MEMBER_NOT_NULL, NULL },
    { "verbosity", &verbosity, 0, NULL },
    { .name = NULL },
};
static const di_shape_t text_config = { .kind = DI_SHAPE_STRUCT,
                                        .name = "ResponsesTextConfig",
                                        .members = text_config_members };

/* Fields of sampling are the strict codec's own (params.c). */
static const di_member_t members[] = {
    { "model", &di_shape_text, REQUIRED, NULL },
    { "input", &input_shape, 0, NULL },
    { "instructions", &di_shape_text, 0, NULL },
    { "tools", &tool_list, 0, NULL },
    { "tool_choice", &choice, 0, NULL },
    { "reasoning", &reasoning, 0, NULL },
    { "text", &text_config, 0, NULL },
    { "temperature", &di_shape_f32, OFFICIAL, NULL },
    { "top_p", &di_shape_f32, OFFICIAL, NULL },
    { "max_output_tokens", &di_shape_u32, OFFICIAL, NULL },
    { "top_logprobs", &di_shape_u8, OFFICIAL, NULL },
    { "stream", &di_shape_bool, OFFICIAL, NULL },
    { "user", &di_shape_text, OFFICIAL, NULL },
    { .name = NULL },
};
const di_shape_t di_shape_responses = {
    .kind = DI_SHAPE_STRUCT, .name = "ResponsesRequest", .members = members,
};

/* ---------------------------------------------------------- custom shapes */

static bool
is_one_of(const di_json_t *type, const di_member_t *m)
{
    for (; m->name != NULL; m++) {
        if (di_rq_is(type, m->name) && !(m->flags & STRICT))
            return true;
    }

    return false;
}

static int
check_async(di_rq_t *rq, const di_json_t *v)
{
    int rc = di_shape_check(rq, &di_shape_bool, v);

    return rc == DI_OK && v->type == DI_JSON_TRUE
           ? di_field_refuse(rq->path, "a call's output comes before the next"
                             " turn", rq->e)
           : rc;
}

/* Tools of unknown types are dropped by the official codec. */
static int
check_tool(di_rq_t *rq, const di_json_t *v)
{
    const di_json_t *type = v->type == DI_JSON_OBJECT ? di_json_get(v, "type")
                                                      : NULL;

    if (rq->official && type != NULL && type->type == DI_JSON_STRING
        && !di_shape_is_tool(type))
        return DI_OK;

    return di_shape_check(rq, &tagged_tool, v);
}

static int
check_item(di_rq_t *rq, const di_json_t *v)
{
    bool             object = v->type == DI_JSON_OBJECT;
    const di_json_t *type = object ? di_json_get(v, "type") : NULL;
    const di_json_t *r = object ? di_json_get(v, "role") : NULL;

    if (di_rq_is(type, "message") || (type == NULL && r != NULL))
        return di_shape_check(rq, &message, v);

    if (!rq->official)
        return di_shape_check(rq, &tagged_item, v);

    if (type == NULL)
        return di_shape_fail(rq, "invalid input item");

    return type->type != DI_JSON_STRING || is_one_of(type, items)
           ? di_shape_check(rq, &tagged_item, v)
                                  : DI_OK;
}

static int
check_input(di_rq_t *rq, const di_json_t *v)
{
    if (v->type == DI_JSON_STRING)
        return DI_OK;

    if (v->type == DI_JSON_ARRAY)
        return di_shape_check(rq, &di_shape_items, v);

    return rq->official
           ? di_shape_fail(rq, "input should be a string or a list of input"
                           " items")
           : di_field_type(v, rq->path, "a string or an array of items",
                           rq->e);
}

bool
di_shape_is_web_search(const di_json_t *type)
{
    return di_rq_is(type, "web_search")
           || di_rq_is(type, "web_search_2025_08_26");
}

bool
di_shape_is_tool(const di_json_t *type)
{
    return is_one_of(type, tool_kinds);
}

static const di_member_t named_members[] = {
    { "name", &di_shape_text, REQUIRED, NULL }, { .name = NULL },
};
STRUCT(named, named_members);
static const di_member_t official_choices[] = {
    { "function", &named, 0, NULL }, { .name = "web_search" },
    { .name = "web_search_2025_08_26" }, { "custom", &named, 0, NULL },
    { .name = NULL },
};
static const di_shape_t official_choice = { .kind = DI_SHAPE_TAGGED,
                                            .name = "ResponsesToolChoice",
                                            .tag = "type",
                                            .members = official_choices };

static int
check_choice(di_rq_t *rq, const di_json_t *v)
{
    const di_json_t *type = di_rq_get(v, "type");
    const di_json_t *name = di_rq_get(v, "name");

    if (di_rq_is(v, "none") || di_rq_is(v, "auto") || di_rq_is(v, "required"))
        return DI_OK;

    if ((di_rq_is(type, "function") || di_rq_is(type, "custom"))
        && name != NULL && name->type == DI_JSON_STRING)
        return DI_OK;

    if (!rq->official && di_rq_is(type, "allowed_tools"))
        return di_shape_check(rq, &di_shape_allowed, v);

    if (rq->official && v->type == DI_JSON_OBJECT
        && di_json_get(v, "type") != NULL)
        return di_shape_check(rq, &official_choice, v);

    return rq->official
           ? di_shape_fail(rq, "expected one of `none`, `auto`, `required` or"
                           " a tool choice object")
           : di_field_invalid(rq->e, rq->path, "invalid_value", "Invalid '%s':"
                              " expected 'none', 'auto', 'required', or an"
                              " object of type 'function' or 'custom' with a"
                              " name, or of type 'allowed_tools'.", rq->path);
}
