/*
 * messages_shape.c - Messages: what a body may hold, for both codecs; see
 * shape.h.
 */

#include "shape.h"

#define REQUIRED  DI_MEMBER_REQUIRED
#define STRICT    DI_MEMBER_STRICT
#define OFFICIAL  DI_MEMBER_OFFICIAL

static const di_member_t media_types[] = {
    { .name = "image/jpeg" }, { .name = "image/jpg" }, { .name = "image/png" },
    { .name = "image/gif" }, { .name = "image/webp" }, { .name = NULL },
};
static const di_shape_t media_type = { .kind = DI_SHAPE_ENUM,
                                       .members = media_types };
static const di_member_t base64_members[] = {
    { "media_type", &media_type, REQUIRED, NULL },
    { "data", &di_shape_text, REQUIRED, NULL },
    { .name = NULL },
};
static const di_member_t link_members[] = {
    { "url", &di_shape_text, REQUIRED, NULL }, { .name = NULL },
};
static const di_member_t id_members[] = {
    { "file_id", &di_shape_text, REQUIRED, NULL }, { .name = NULL },
};
static const di_shape_t base64_source = { .kind = DI_SHAPE_STRUCT,
                                          .members = base64_members };
static const di_shape_t link_source = { .kind = DI_SHAPE_STRUCT,
                                        .members = link_members };
static const di_shape_t id_source = { .kind = DI_SHAPE_STRUCT,
                                      .members = id_members };
static const di_member_t sources[] = {
    { "base64", &base64_source, 0, NULL },
    { "url", &link_source, 0, NULL },
    { "file", &id_source, 0, NULL },
    { .name = NULL },
};
static const di_shape_t source = { .kind = DI_SHAPE_TAGGED,
                                   .name = "MessagesImageSource", .tag = "type",
                                   .members = sources };

/* Marks of the prefix cache, which needs none here: prompts that begin alike
 * share what they have. */
#define CACHE  { "cache_control", NULL, STRICT, NULL }

static const di_member_t text_members[] = {
    { "text", &di_shape_text, REQUIRED, NULL },
    CACHE,
    { "citations", NULL, STRICT, NULL },
    { .name = NULL },
};
static const di_member_t image_members[] = {
    { "source", &source, REQUIRED, NULL }, CACHE, { .name = NULL },
};
static const di_shape_t any_value = { .kind = DI_SHAPE_ANY };
static const di_member_t document_source_members[] = {
    { "media_type", &di_shape_text, 0, NULL }, { .name = NULL },
};
static const di_shape_t document_source = {
    .kind = DI_SHAPE_STRUCT, .name = "MessagesDocumentSource",
    .members = document_source_members,
};
static const di_member_t document_members[] = {
    { "source", &document_source, REQUIRED, NULL }, { .name = NULL },
};
static const di_member_t server_use_members[] = {
    { "id", &di_shape_text, REQUIRED, NULL },
    { "name", &di_shape_text, REQUIRED, NULL },
    { "input", &any_value, REQUIRED, NULL },
    { .name = NULL },
};
static const di_member_t server_result_members[] = {
    { "tool_use_id", &di_shape_text, REQUIRED, NULL },
    { "content", &any_value, REQUIRED, NULL },
    { .name = NULL },
};
static const di_member_t thinking_block_members[] = {
    { "thinking", &di_shape_text, REQUIRED, NULL },
    { "signature", &di_shape_text, 0, NULL },
    { .name = NULL },
};
static const char no_server_tools[] = "this server has no tools of its own";
static const di_member_t use_members[] = {
    { "id", &di_shape_text, REQUIRED, NULL },
    { "name", &di_shape_text, REQUIRED, NULL },
    { "input", NULL, REQUIRED, NULL },
    CACHE,
    { "caller", NULL, STRICT, NULL },
    { "toolset_name", NULL, STRICT, no_server_tools },
    { .name = NULL },
};
static const di_member_t reference_members[] = {
    { "tool_name", &di_shape_text, REQUIRED, NULL }, { .name = NULL },
};
static const di_member_t added_members[] = {
    { "name", &di_shape_text, REQUIRED, NULL }, { .name = NULL },
};
static const di_shape_t added = { .kind = DI_SHAPE_STRUCT,
                                  .members = added_members };
static const di_member_t added_kinds[] = {
    { "tool_reference", &added, 0, NULL }, { .name = NULL },
};
static const di_shape_t added_tool = {
    .kind = DI_SHAPE_TAGGED, .name = "MessagesToolReference", .tag = "type",
    .members = added_kinds,
};
static const di_member_t addition_members[] = {
    { "tool", &added_tool, REQUIRED, NULL }, CACHE, { .name = NULL },
};

#define BLOCK(var, list)                                                    \
    static const di_shape_t var = { .kind = DI_SHAPE_STRUCT, .members = list }

BLOCK(text_block, text_members);
BLOCK(image_block, image_members);
BLOCK(document_block, document_members);
BLOCK(server_use_block, server_use_members);
BLOCK(server_result_block, server_result_members);
BLOCK(thinking_block, thinking_block_members);
BLOCK(use_block, use_members);
BLOCK(reference_block, reference_members);
BLOCK(addition_block, addition_members);

static const char no_documents[] = "the model reads no documents";

static const di_member_t result_blocks[] = {
    { "text", &text_block, 0, NULL },
    { "image", &image_block, 0, NULL },
    { "document", &document_block, OFFICIAL, NULL },
    { "document", NULL, STRICT, no_documents },
    { "tool_reference", &reference_block, 0, NULL },
    { "search_result", NULL, STRICT, no_documents },
    { .name = NULL },
};
static const di_shape_t result_part = { .kind = DI_SHAPE_TAGGED,
                                        .name = "MessagesToolResultBlock",
                                        .tag = "type",
                                        .members = result_blocks };

#define CONTENT_COMPLAINT  "expected a string or a list"
#define CONTENT_EXPECTS    "a string or an array of content blocks"

static const di_shape_t result_content = {
    .kind = DI_SHAPE_TEXT_OR_LIST, .name = CONTENT_COMPLAINT,
    .of = &result_part, .expects = CONTENT_EXPECTS,
};
static const di_member_t result_members[] = {
    { "tool_use_id", &di_shape_text, REQUIRED, NULL },
    { "content", &result_content, 0, NULL },
    { "is_error", &di_shape_bool, 0, NULL },
    CACHE,
    { "toolset_name", NULL, STRICT, no_server_tools },
    { .name = NULL },
};
BLOCK(result_block, result_members);

static const di_member_t blocks[] = {
    { "text", &text_block, 0, NULL },
    { "image", &image_block, 0, NULL },
    { "document", &document_block, OFFICIAL, NULL },
    { "document", NULL, STRICT, no_documents },
    { "thinking", &thinking_block, 0, NULL },
    { "server_tool_use", &server_use_block, OFFICIAL, NULL },
    { "server_tool_use", NULL, STRICT, no_server_tools },
    { "tool_use", &use_block, 0, NULL },
    { "tool_result", &result_block, 0, NULL },
    { "web_search_tool_result", &server_result_block, OFFICIAL, NULL },
    { "web_search_tool_result", NULL, STRICT, no_server_tools },
    { "tool_addition", &addition_block, 0, NULL },
    { "redacted_thinking", NULL, STRICT, "it can't be read here" },
    { "search_result", NULL, STRICT, no_documents },
    { .name = NULL },
};
static const di_shape_t block = { .kind = DI_SHAPE_TAGGED,
                                  .name = "MessagesContentBlock", .tag = "type",
                                  .members = blocks };
static const di_shape_t content = {
    .kind = DI_SHAPE_TEXT_OR_LIST, .name = CONTENT_COMPLAINT, .of = &block,
    .expects = CONTENT_EXPECTS,
};

static const di_member_t roles[] = {
    { .name = "user" }, { .name = "assistant" }, { .name = "system" },
    { .name = NULL },
};
static const di_shape_t role = { .kind = DI_SHAPE_ENUM, .members = roles };
static const di_member_t message_members[] = {
    { "role", &role, REQUIRED, NULL },
    { "content", &content, REQUIRED, NULL },
    { .name = NULL },
};
static const di_shape_t message = { .kind = DI_SHAPE_PAIR,
                                    .name = "MessagesMessage", .tag = "role",
                                    .of = &role, .members = message_members };
static const di_shape_t message_list = { .kind = DI_SHAPE_LIST,
                                         .of = &message };

static const di_member_t system_blocks[] = {
    { "text", &text_block, 0, NULL }, { .name = NULL },
};
static const di_shape_t system_block = {
    .kind = DI_SHAPE_TAGGED, .name = "MessagesSystemBlock", .tag = "type",
    .members = system_blocks,
};
static const di_shape_t system_content = {
    .kind = DI_SHAPE_TEXT_OR_LIST, .name = CONTENT_COMPLAINT,
    .of = &system_block, .expects = "a string or an array of text blocks",
};

static const di_member_t tool_members[] = {
    { "name", &di_shape_text, REQUIRED, NULL },
    { "type", &di_shape_text, 0, NULL },
    { "description", &di_shape_text, 0, NULL },
    { "input_schema", NULL, 0, NULL },
    { "defer_loading", &di_shape_bool, 0, NULL },
    { "strict", &di_shape_bool, STRICT, NULL },
    CACHE,
    { "input_examples", NULL, STRICT, NULL },
    { "eager_input_streaming", NULL, STRICT, NULL },
    { "allowed_callers", &di_shape_callers, STRICT, NULL },
    { .name = NULL },
};
static const di_shape_t own_tool = { .kind = DI_SHAPE_LOOSE, .name = "Tool",
                                     .members = tool_members };
static const di_member_t server_tool_members[] = {
    { "type", &di_shape_text, REQUIRED, NULL },
    { "name", &di_shape_text, 0, NULL },
    { .name = NULL },
};
static const di_shape_t server_tool = { .kind = DI_SHAPE_STRUCT,
                                        .members = server_tool_members };

/* The official codec looks at nothing of a tool that has a type. */
static int
check_tool(di_rq_t *rq, const di_json_t *v)
{
    bool typed = v->type == DI_JSON_OBJECT && di_json_get(v, "type") != NULL;

    return di_shape_check(rq, rq->official && typed ? &server_tool : &own_tool,
                          v);
}

static const di_shape_t tool = { .kind = DI_SHAPE_CUSTOM,
                                 .check = check_tool };
static const di_shape_t tool_list = { .kind = DI_SHAPE_LIST, .of = &tool };

static const di_member_t any_choice_members[] = {
    { "disable_parallel_tool_use", &di_shape_bool, 0, NULL },
    { .name = NULL },
};
static const di_member_t named_choice_members[] = {
    { "name", &di_shape_text, REQUIRED, NULL },
    { "disable_parallel_tool_use", &di_shape_bool, 0, NULL },
    { .name = NULL },
};
BLOCK(any_choice, any_choice_members);
BLOCK(named_choice, named_choice_members);
static const di_member_t choices[] = {
    { "auto", &any_choice, 0, NULL }, { "any", &any_choice, 0, NULL },
    { "tool", &named_choice, 0, NULL }, { "none", &any_choice, 0, NULL },
    { .name = NULL },
};
static const di_shape_t choice = { .kind = DI_SHAPE_TAGGED,
                                   .name = "MessagesToolChoice",
                                   .tag = "type", .members = choices };

static const di_member_t displays[] = {
    { .name = "summarized" }, { .name = "omitted" },
    { "updates", NULL, 0, "reasoning is shown as it is, or omitted" },
    { .name = NULL },
};
static const di_shape_t display = { .kind = DI_SHAPE_ENUM,
                                    .members = displays };
static const di_member_t thinking_members[] = {
    { "type", &di_shape_thinking, REQUIRED, NULL },
    { "budget_tokens", &di_shape_u64, 0, NULL },
    { "display", &display, STRICT, NULL },
    { "block_binding", NULL, STRICT, NULL },
    { .name = NULL },
};
static const di_shape_t thinking = { .kind = DI_SHAPE_STRUCT,
                                     .name = "MessagesThinking",
                                     .members = thinking_members };
static const di_member_t format_members[] = {
    { "schema", NULL, REQUIRED, NULL }, { .name = NULL },
};
BLOCK(schema_format, format_members);
static const di_member_t formats[] = {
    { "json_schema", &schema_format, 0, NULL }, { .name = NULL },
};
static const di_shape_t format = { .kind = DI_SHAPE_TAGGED, .tag = "type",
                                   .members = formats };
static const di_member_t output_members[] = {
    { "effort", &di_shape_effort, 0, NULL },
    { "format", &format, STRICT, NULL },
    { "task_budget", NULL, STRICT, "the model has no such mode" },
    { .name = NULL },
};
static const di_shape_t output_config = { .kind = DI_SHAPE_STRUCT,
                                          .name = "MessagesOutputConfig",
                                          .members = output_members };
static const di_member_t metadata_members[] = {
    { "user_id", &di_shape_text, 0, NULL }, { .name = NULL },
};
static const di_shape_t metadata = { .kind = DI_SHAPE_STRUCT,
                                     .name = "MessagesMetadata",
                                     .members = metadata_members };

/* Fields of sampling are the strict codec's own (params.c). */
static const di_member_t members[] = {
    { "model", &di_shape_text, REQUIRED, NULL },
    { "messages", &message_list, REQUIRED, NULL },
    { "system", &system_content, 0, NULL },
    { "max_tokens", &di_shape_u32, OFFICIAL, NULL },
    { "tools", &tool_list, 0, NULL },
    { "tool_choice", &choice, 0, NULL },
    { "thinking", &thinking, 0, NULL },
    { "output_config", &output_config, 0, NULL },
    { "output_format", &format, STRICT, NULL },
    { "temperature", &di_shape_f32, OFFICIAL, NULL },
    { "top_p", &di_shape_f32, OFFICIAL, NULL },
    { "stop_sequences", &di_shape_texts, OFFICIAL, NULL },
    { "stream", &di_shape_bool, OFFICIAL, NULL },
    { "metadata", &metadata, OFFICIAL, NULL },
    { .name = NULL },
};
const di_shape_t di_shape_messages = {
    .kind = DI_SHAPE_STRUCT, .name = "MessagesRequest", .members = members,
};
