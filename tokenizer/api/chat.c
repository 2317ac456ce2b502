/*
 * chat.c - Chat Completions: a body as a conversation.
 *
 * Where this API leaves a choice:
 * - texts of one message's content are joined with two newlines;
 * - strict: an assistant message without content but with `refusal` has that
 *   as its content: it is what the assistant said;
 * - strict: `developer` is what OpenAI calls the system role for newer
 *   models; the dialects spell it so;
 * - results must stand right behind the calls that they answer, all of them.
 */

#include "shape.h"

#include <string.h>

/* ---------------------------------------------------------------- content */

/* A file that holds an image. */
static int
read_file(di_rq_t *rq, const di_json_t *v, size_t i, di_image_t *image)
{
    di_str_t    data = di_rq_text(v, "file_data");
    bool        has_id = di_rq_get(v, "file_id") != NULL;
    const char *why = NULL;
    char        at[32];

    memset(image, 0, sizeof(*image));
    if (!rq->sees)
        return DI_OK;

    if (data.data == NULL && !has_id)
        why = "file must have a file_id or file_data";
    else if (data.data != NULL && has_id)
        why = "file cannot have both file_id and file_data";
    else if (has_id && di_rq_get(v, "filename") != NULL)
        why = "file cannot have filename when file_id is present";
    else if (has_id)
        why = "file_id is not supported. Pass the image as a base64 data url"
              " instead.";

    (void) snprintf(at, sizeof(at), ".messages[%zu]", i);
    if (why != NULL)
        return di_rq_fail(rq, at, "%s: %s", at, why);

    return di_rq_file_data(rq, at, data, image);
}

static int
read_part(di_rq_t *rq, const di_json_t *v, size_t i, size_t j,
          di_content_t *out)
{
    const di_json_t *url;
    di_image_t       image;
    char             at[48], long_at[80];
    int              rc;

    if (di_json_get(v, "type") != NULL && di_rq_is(di_json_get(v, "type"),
                                                   "text"))
        return di_content_add(rq, out, di_rq_text(v, "text"));

    if (di_rq_is(di_json_get(v, "type"), "refusal"))
        return di_content_add(rq, out, di_rq_text(v, "refusal"));

    if (di_rq_is(di_json_get(v, "type"), "file")) {
        rc = read_file(rq, v, i, &image);

    } else {
        url = di_rq_get(v, "image_url");
        (void) snprintf(at, sizeof(at), rq->official ? ".messages[%zu]"
                        : "messages[%zu].content[%zu]", i, j);
        (void) snprintf(long_at, sizeof(long_at), ".messages[%zu]"
                        ".image_url.url[%zu]: image_url.url", i, j);
        rc = di_rq_image_url(rq, at, long_at, di_rq_text(url, "url"),
                             di_rq_get(url, "detail"), &image);
    }

    if (rc == DI_OK)
        rc = di_rq_print(rq, &image.path, ".messages[%zu]", i);

    return rc == DI_OK ? di_content_image(rq, out, &image) : rc;
}

static int
read_content(di_rq_t *rq, const di_json_t *v, size_t i, di_msg_t *m)
{
    di_content_t     c = { .separator = "\n\n" };
    const di_json_t *p;
    size_t           j = 0;
    int              rc;

    if (v == NULL)
        return DI_OK;

    if (v->type == DI_JSON_STRING) {
        m->content = v->v.str;
        return DI_OK;
    }

    if (v->v.list.n == 0 && !rq->official) {
        di_rq_path(rq, "messages[%zu].content", i);
        return di_field_invalid(rq->e, rq->path, "empty_array", "Invalid '%s':"
                                " empty array. Expected an array with minimum"
                                " length 1.", rq->path);
    }

    for (p = v->v.list.first; p != NULL; p = p->next, j++) {
        rc = read_part(rq, p, i, j, &c);
        if (rc != DI_OK)
            return rc;
    }

    di_content_give(&c, m);
    return DI_OK;
}

/* --------------------------------------------------------------- messages */

/* Calls and results that belong together. */
typedef struct {
    di_names_t calls;            /* ids of the open message's calls         */
    bool      *answered;         /* [n] of them                             */
    size_t     n;                /* its calls, 0: none is open              */
    size_t     left;             /* those without a result                  */
} pairing_t;

static int
duplicate_id(di_rq_t *rq, di_str_t id, size_t i)
{
    di_rq_path(rq, "messages[%zu]", i);
    return di_rq_fail(rq, rq->path, "Duplicate value for 'tool_call_id' of"
                      " %.*s in message[%zu]", (int) id.len, id.data, i);
}

/* A custom tool's call is one with its text as the only argument. */
static int
read_call(di_rq_t *rq, const di_json_t *v, di_call_t *c)
{
    const di_json_t *f = di_rq_get(v, "function");
    const di_json_t *custom = di_rq_get(v, "custom");

    c->id = di_rq_text(v, "id");

    if (di_rq_is(di_json_get(v, "type"), "custom")) {
        c->name = di_rq_text(custom, "name");
        return di_rq_input_arguments(rq, di_rq_text(custom, "input"),
                                     &c->arguments);
    }

    c->name = di_rq_text(f, "name");
    c->arguments = di_rq_text(f, "arguments");
    return DI_OK;
}

static int
read_calls(di_rq_t *rq, const di_json_t *v, size_t i, di_msg_t *m,
           pairing_t *p)
{
    const di_json_t *c;
    di_call_t       *calls;
    size_t           n = v->v.list.n, k = 0, found;
    bool             known;
    int              rc;

    di_rq_path(rq, "messages[%zu].tool_calls", i);
    if (!rq->official && !(rq->opt.caps & DI_CAN_TOOLS))
        return di_field_refuse(rq->path, "the model's dialect has no spelling"
                               " for tool calls", rq->e);

    if (n == 0)
        return di_rq_fail(rq, rq->path, "Invalid '%s': empty array. Expected"
                          " an array with minimum length 1, but got an empty"
                          " array instead.", rq->path);

    calls = di_arena_calloc(&rq->req->arena, n, sizeof(*calls));
    p->answered = di_arena_calloc(&rq->req->arena, n, sizeof(bool));
    if (calls == NULL || p->answered == NULL)
        return di_rq_no_memory(rq);

    m->calls = calls;
    m->n_calls = n;
    p->calls = (di_names_t) { 0 };
    p->n = p->left = n;

    for (c = v->v.list.first; c != NULL; c = c->next, k++) {
        rc = read_call(rq, c, &calls[k]);
        if (rc != DI_OK)
            return rc;

        if (di_names_put(rq, &p->calls, calls[k].id, k, &found, &known)
            != DI_OK)
            return DI_ENOMEM;
        if (known)
            return duplicate_id(rq, calls[k].id, i);
    }

    return DI_OK;
}

static int
read_assistant(di_rq_t *rq, const di_json_t *v, size_t i, pairing_t *p)
{
    const di_json_t *content_v = di_rq_get(v, "content");
    const di_json_t *calls = di_rq_get(v, "tool_calls");
    di_msg_t        *m = di_rq_add_msg(rq, DI_ROLE_ASSISTANT);
    int              rc;

    if (m == NULL)
        return DI_ENOMEM;

    if (content_v == NULL && !rq->official)
        content_v = di_rq_get(v, "refusal");

    if (content_v == NULL && calls == NULL) {
        di_rq_path(rq, "messages[%zu].content", i);
        return rq->official
               ? di_rq_fail(rq, NULL, "Invalid assistant message: content or"
                            " tool_calls must be set")
               : di_field_missing(rq->path, rq->e);
    }

    rc = read_content(rq, content_v, i, m);
    if (rc == DI_OK && m->n_images > 0)
        rc = di_rq_fail(rq, NULL, "Image in assistant message is not"
                        " supported");
    if (rc == DI_OK && calls != NULL)
        rc = read_calls(rq, calls, i, m, p);
    if (rc != DI_OK)
        return rc;

    m->name = di_rq_text(v, "name");
    m->reasoning = di_rq_text(v, "reasoning_content");
    m->prefix = di_rq_true(v, "prefix");
    return DI_OK;
}

/* Only the last message may be a prefix. */
static int
check_prefixes(di_rq_t *rq)
{
    const di_conv_t *conv = &rq->req->conv;
    size_t           i;

    for (i = 0; i + 1 < conv->n_msgs; i++) {
        if (conv->msgs[i].prefix)
            return di_rq_fail(rq, "messages", "Invalid completion message:"
                              " prefix set true with message which is not"
                              " final message or message role is not"
                              " assistant");
    }

    return DI_OK;
}

static int
insufficient(di_rq_t *rq)
{
    return di_rq_fail(rq, "messages", "An assistant message with 'tool_calls'"
                      " must be followed by tool messages responding to each"
                      " 'tool_call_id'. (insufficient tool messages following"
                      " tool_calls message)");
}

static int
pair_result(di_rq_t *rq, di_str_t id, size_t i, pairing_t *p)
{
    size_t k;

    if (p->left == 0)
        return di_rq_fail(rq, di_rq_path(rq, "messages[%zu]", i), "Messages"
                          " with role 'tool' must be a response to a preceding"
                          " message with 'tool_calls'");

    if (!di_names_get(&p->calls, id, &k))
        return di_rq_fail(rq, di_rq_path(rq, "messages[%zu].tool_call_id", i),
                          "An assistant message with 'tool_calls' must be"
                          " followed by tool messages responding to each"
                          " 'tool_call_id', The following tool_call_ids did"
                          " not have response messages: %.*s", (int) id.len,
                          id.data);

    if (p->answered[k])
        return duplicate_id(rq, id, i);

    p->answered[k] = true;
    p->left--;
    return DI_OK;
}

static int
read_tool(di_rq_t *rq, const di_json_t *v, size_t i, pairing_t *p)
{
    di_msg_t *m = di_rq_add_msg(rq, DI_ROLE_TOOL);
    int       rc;

    if (m == NULL)
        return DI_ENOMEM;

    if (!rq->official && !(rq->opt.caps & DI_CAN_TOOLS))
        return di_field_invalid(rq->e, di_rq_path(rq, "messages[%zu].role", i),
                                "unsupported_value", "messages[%zu].role: this"
                                " model's dialect has no spelling for the role"
                                " tool", i);

    m->call_id = di_rq_text(v, "tool_call_id");
    rc = pair_result(rq, m->call_id, i, p);
    return rc == DI_OK ? read_content(rq, di_rq_get(v, "content"), i, m) : rc;
}

static int
read_message(di_rq_t *rq, const di_json_t *v, size_t i, pairing_t *p)
{
    const di_json_t *role = di_json_get(v, "role");
    di_msg_t        *m;
    int              rc;

    if (di_rq_is(role, "tool"))
        return read_tool(rq, v, i, p);

    if (p->left > 0)
        return insufficient(rq);

    p->n = 0;
    if (di_rq_is(role, "assistant"))
        return read_assistant(rq, v, i, p);

    m = di_rq_add_msg(rq, di_rq_is(role, "system") ? DI_ROLE_SYSTEM
                      : di_rq_is(role, "developer") ? DI_ROLE_DEVELOPER
                      : di_rq_is(role, "user") ? DI_ROLE_USER
                      : DI_ROLE_REMINDER);
    if (m == NULL)
        return DI_ENOMEM;

    m->name = di_rq_text(v, "name");
    rc = read_content(rq, di_rq_get(v, "content"), i, m);

    /* DeepSeek's own API drops a system message that says nothing. */
    if (rc == DI_OK && rq->req->family != DI_FAMILY_PLAIN
        && m->role <= DI_ROLE_DEVELOPER && m->content.len == 0)
        rq->req->conv.n_msgs--;

    return rc;
}

static int
read_messages(di_rq_t *rq, const di_json_t *v)
{
    const di_json_t *m;
    pairing_t        p = { .n = 0 };
    size_t           i = 0;
    int              rc;

    if (v->v.list.n == 0)
        return rq->official
               ? di_rq_fail(rq, NULL, "Empty input messages")
               : di_field_invalid(rq->e, "messages", "empty_array", "Invalid"
                                  " 'messages': empty array. Expected an array"
                                  " with minimum length 1.");

    if (!rq->official) {
        rc = di_field_array(v, "messages", rq->opt.messages, rq->e);
        if (rc != DI_OK)
            return rc;
    }

    for (m = v->v.list.first; m != NULL; m = m->next, i++) {
        rc = read_message(rq, m, i, &p);
        if (rc != DI_OK)
            return rc;
    }

    if (p.left > 0)
        return insufficient(rq);

    rc = check_prefixes(rq);
    return rc == DI_OK ? di_rq_reasoning(rq, "reasoning_content") : rc;
}

/* ---------------------------------------------------- tools, choice, format */

static int
read_custom(di_rq_t *rq, const di_json_t *v, size_t i, di_tool_t *t)
{
    const di_json_t *format = di_rq_get(v, "format");

    t->kind = DI_TOOL_CUSTOM;
    t->strict = -1;
    t->parameters = &di_rq_text_parameters;
    t->schema = &di_rq_text_schema;
    if (!di_rq_is(di_rq_get(format, "type"), "grammar"))
        return DI_OK;

    di_rq_path(rq, "tools[%zu].custom.format.grammar", i);
    return di_rq_custom_grammar(rq, di_rq_get(format, "grammar"), t);
}

static int
read_definition(di_rq_t *rq, const di_json_t *v, size_t i)
{
    const char      *kind = di_rq_is(di_json_get(v, "type"), "custom")
                            ? "custom" : "function";
    const di_json_t *f = di_rq_get(v, kind);
    const di_json_t *strict = di_rq_get(f, "strict");
    di_tool_t        t = {
        .name = di_rq_text(f, "name"),
        .description = di_rq_text(f, "description"),
        .local = di_rq_text(f, "name"),
        .strict = strict == NULL ? -1 : strict->type == DI_JSON_TRUE,
    };
    int rc;

    if (kind[0] == 'c')
        rc = read_custom(rq, f, i, &t);
    else
        rc = di_rq_print(rq, &t.schema_at, "tools[%zu].function.parameters",
                         i);
    if (rc != DI_OK)
        return rc;

    di_rq_path(rq, "tools[%zu].%s.name", i, kind);
    rc = di_rq_check_tool_name(rq, t.name, rq->path);
    return rc == DI_OK
           ? di_rq_add_tool(rq, &t, rq->path, di_rq_get(f, "parameters")) : rc;
}

static int
read_tools(di_rq_t *rq, const di_json_t *v)
{
    const di_json_t *m;
    size_t           i = 0;
    int              rc;

    for (m = v == NULL ? NULL : v->v.list.first; m != NULL; m = m->next, i++) {
        rc = read_definition(rq, m, i);
        if (rc != DI_OK)
            return rc;
    }

    return DI_OK;
}

static int
read_allowed(di_rq_t *rq, const di_json_t *v)
{
    if (di_rq_is(di_rq_get(v, "mode"), "required"))
        rq->req->conv.choice = DI_CHOICE_REQUIRED;

    return di_rq_allow_tools(rq, di_rq_get(v, "tools"),
                             "tool_choice.allowed_tools.tools");
}

static int
read_choice(di_rq_t *rq, const di_json_t *v)
{
    di_conv_t *conv = &rq->req->conv;
    int        rc = di_rq_check_tools(rq, di_rq_is(v, "none"));

    if (di_rq_is(v, "required"))
        conv->choice = DI_CHOICE_REQUIRED;
    else if (rc == DI_OK && !rq->official
             && di_rq_is(di_rq_get(v, "type"), "allowed_tools"))
        rc = read_allowed(rq, di_rq_get(v, "allowed_tools"));
    else if (rc == DI_OK && v != NULL && v->type == DI_JSON_OBJECT)
        rc = di_rq_choose_tool(rq, di_rq_text(di_rq_get(v, di_rq_is(
                 di_json_get(v, "type"), "custom") ? "custom" : "function"),
                                              "name"));

    return rc == DI_OK ? di_rq_finish_choice(rq) : rc;
}

static const di_msg_t *
prefix_of(const di_rq_t *rq)
{
    const di_conv_t *conv = &rq->req->conv;

    return conv->n_msgs > 0 && conv->msgs[conv->n_msgs - 1].prefix
           ? &conv->msgs[conv->n_msgs - 1] : NULL;
}

/* What the answer goes on. */
static int
check_prefix(di_rq_t *rq)
{
    const di_msg_t *m = prefix_of(rq);

    if (m == NULL)
        return DI_OK;

    if (!rq->official && !(rq->opt.caps & DI_CAN_PREFIX))
        return di_field_refuse("messages", "the model's dialect can't go on"
                               " with a prefix", rq->e);

    if (rq->req->n_tools > 0)
        return di_rq_fail(rq, "tools", "Function call should not be used with"
                          " prefix");

    if (rq->req->conv.format == DI_FORMAT_JSON)
        return di_rq_fail(rq, "response_format", "response_format json_object"
                          " should not be used with prefix");

    if (rq->req->conv.thinking)
        rq->req->parsing.stage = m->content.len > 0
            ? DI_STAGE_CONTENT_CONTINUATION
            : m->reasoning.len > 0 ? DI_STAGE_REASONING_CONTINUATION
            : DI_STAGE_REASONING_START;

    return DI_OK;
}

/* The API's own fields come before the template's. */
static int
read_thinking(di_rq_t *rq, const di_json_t *root)
{
    static const di_json_t none = { .type = DI_JSON_STRING,
                                    .v.str = DI_STR("none") };
    static const di_json_t high = { .type = DI_JSON_STRING,
                                    .v.str = DI_STR("high") };
    static const char      names[][16] = { "enable_thinking", "thinking" };
    const di_json_t       *type = di_rq_get(di_rq_get(root, "thinking"),
                                            "type");
    const di_json_t       *effort = di_rq_get(root, "reasoning_effort");
    const di_json_t       *kwargs = di_rq_get(root, "chat_template_kwargs");
    const di_json_t       *on = NULL;
    const char            *path = "reasoning_effort";
    size_t                 i;

    for (i = 0; on == NULL && !rq->official && i < 2; i++)
        on = di_rq_get(kwargs, names[i]);

    if (on != NULL && type == NULL && effort == NULL) {
        path = di_rq_path(rq, "chat_template_kwargs.%s", names[i - 1]);
        if (on->type == DI_JSON_TRUE && !(rq->opt.caps & DI_CAN_THINK))
            return di_field_refuse(path, "the model has no reasoning mode",
                                   rq->e);

        effort = on->type == DI_JSON_TRUE ? &high : &none;
    }

    return di_rq_set_thinking(rq, type, effort, path);
}

static int
convert(di_rq_t *rq, const di_json_t *root)
{
    const di_json_t *rf = di_rq_get(root, "response_format");
    int              rc;

    rc = read_thinking(rq, root);
    if (rc == DI_OK)
        rc = read_tools(rq, di_rq_get(root, "tools"));
    if (rc == DI_OK)
        rc = read_messages(rq, di_rq_get(root, "messages"));
    if (rc == DI_OK)
        rc = di_rq_response_format(rq, rf);
    if (rc == DI_OK)
        rc = read_choice(rq, di_rq_get(root, "tool_choice"));
    if (rc == DI_OK)
        rc = check_prefix(rq);

    /* The official codec looks at the schema between sampling fields. */
    if (rc == DI_OK && !rq->official)
        rc = di_rq_response_schema(rq, rf);

    return rc == DI_OK && !rq->official ? di_rq_set_constraint(rq) : rc;
}

/* ------------------------------------------------------- official sampling */

static int
official_stream(di_rq_t *rq, const di_json_t *root)
{
    rq->req->params.stream = di_rq_true(root, "stream");

    if (di_rq_get(root, "stream_options") == NULL || rq->req->params.stream)
        return DI_OK;

    return di_rq_fail(rq, NULL, "stream_options should be set along with"
                      " stream = true");
}

static int
official_penalty(di_rq_t *rq, const di_json_t *root, const char *name)
{
    const di_json_t *v = di_rq_get(root, name);

    if (v == NULL || ((float) di_rq_number(v) >= -2.0f
                      && (float) di_rq_number(v) <= 2.0f))
        return DI_OK;

    return di_rq_fail(rq, NULL, "Invalid %s value, the valid range of %s is"
                      " [-2, 2]", name, name);
}

static int
official_n(di_rq_t *rq, const di_json_t *root)
{
    const di_json_t *v = di_rq_get(root, "n");

    if (v == NULL || v->v.i == 1)
        return DI_OK;

    return di_rq_fail(rq, NULL, "Invalid n value (currently only n = 1 is"
                      " supported)");
}

static int
official_logprobs(di_rq_t *rq, const di_json_t *root)
{
    rq->req->params.logprobs = di_rq_true(root, "logprobs");

    if (di_rq_get(root, "top_logprobs") != NULL && !rq->req->params.logprobs)
        return di_rq_fail(rq, NULL, "Invalid top_logprobs and logprobs value,"
                          " logprobs must be set to true if top_logprobs is"
                          " used.");

    return di_rq_official_top_logprobs(rq);
}

static int
official_seed(di_rq_t *rq, const di_json_t *root)
{
    const di_json_t *v = di_rq_get(root, "seed");

    if (v == NULL)
        return DI_OK;

    if (v->type == DI_JSON_UINT)
        return di_rq_fail(rq, NULL, "Invalid seed value, the valid range of"
                          " seed is [0, 2^63)");

    rq->req->params.has_seed = true;
    rq->req->params.seed = (uint64_t) v->v.i;
    return DI_OK;
}

static int
official(di_rq_t *rq, const di_json_t *root)
{
    int rc;

    rc = di_rq_official_stops(rq, "stop");
    if (rc == DI_OK)
        rc = official_stream(rq, root);
    if (rc == DI_OK)
        rc = di_rq_response_schema(rq, di_rq_get(root, "response_format"));
    if (rc == DI_OK)
        rc = official_n(rq, root);
    if (rc == DI_OK)
        rc = official_penalty(rq, root, "presence_penalty");
    if (rc == DI_OK)
        rc = official_penalty(rq, root, "frequency_penalty");
    if (rc == DI_OK)
        rc = di_rq_official_temperature(rq);
    if (rc == DI_OK)
        rc = di_rq_official_top_p(rq);
    if (rc == DI_OK)
        rc = official_logprobs(rq, root);
    if (rc == DI_OK)
        rc = di_rq_official_max_tokens(rq, "max_tokens", false);
    if (rc == DI_OK)
        rc = official_seed(rq, root);

    return rc == DI_OK ? di_rq_set_constraint(rq) : rc;
}

const di_api_ops_t di_api_chat = {
    .shape = &di_shape_chat,
    .convert = convert,
    .official = official,
};
