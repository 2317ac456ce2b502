/*
 * render.c - vectors of requests: the conversation that a body becomes, its
 * prompt, and all that is handed on beside it, or the error.
 */

#include <stdlib.h>
#include <string.h>

#include "tokenizer/api/json.h"
#include "tokenizer/dialect/dialect.h"

#include "vectors.h"

static bool
takes(const json_t *input, const json_t *expected)
{
    return json_object_get(input, "api") != NULL
           && (json_object_get(input, "body") != NULL
               || json_object_get(input, "body_text") != NULL
               || json_object_get(input, "body_base64") != NULL)
           && json_object_get(input, "chunks") == NULL && expected != NULL;
}

/* --------------------------------------------------------------- reading */

static void
decode_base64(const char *s, di_sbuf_t *b)
{
    static const char alphabet[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint32_t    bits = 0;
    int         n = 0;
    const char *at;
    char        c;

    for (; *s != '\0' && *s != '='; s++) {
        at = strchr(alphabet, *s);
        bits = bits << 6 | (uint32_t) (at - alphabet);
        n += 6;
        if (n >= 8) {
            n -= 8;
            c = (char) (bits >> n);
            di_sbuf_add(b, &c, 1);
        }
    }
}

/* A body that stands in the vector as JSON is taken from the line itself: it
 * has integers that jansson can't hold. */
void
vectors_body(const json_t *input, const char *line, size_t len, di_sbuf_t *b)
{
    const json_t *text = json_object_get(input, "body_text");
    const json_t *packed = json_object_get(input, "body_base64");
    di_arena_t    arena = { 0 };
    di_json_t    *root;

    if (text != NULL) {
        di_sbuf_add(b, json_string_value(text), json_string_length(text));

    } else if (packed != NULL) {
        decode_base64(json_string_value(packed), b);

    } else if (di_json_read_lax(&arena, line, len, DI_JSON_DEPTH_MAX, &root,
                                NULL) == DI_OK)
    {
        di_json_add_tree(b, di_json_get(di_json_get(root, "input"), "body"),
                         DI_JSON_COMPACT);
    }

    di_arena_free(&arena);
}

static bool
option_is(const json_t *options, const char *name, const char *value)
{
    const char *s = json_string_value(json_object_get(options, name));

    return s != NULL && strcmp(s, value) == 0;
}

void
vectors_options(const json_t *input, di_req_options_t *o,
                di_model_name_t models[VECTORS_MODELS_MAX])
{
    const json_t *options = json_object_get(input, "options");
    const json_t *aliases = json_object_get(options, "model_alias");
    const char   *name;
    json_t       *version;

    memset(o, 0, sizeof(*o));
    o->codec = DI_CODEC_OFFICIAL;
    o->no_thinking = json_is_false(json_object_get(options,
                                                   "default_thinking_mode"));
    o->reject_missing_reasoning = option_is(options,
                                   "reasoning_content_behavior", "reject");
    o->reject_web_search = option_is(options, "responses_web_search",
                                     "reject");
    o->drop_web_search = option_is(options, "messages_web_search", "drop");

    models[0] = (di_model_name_t) { { "DeepSeek-V4-Pro", 15 }, DI_FAMILY_V4 };
    models[1] = (di_model_name_t) { { "DeepSeek-V4.1-Flash", 19 },
                                    DI_FAMILY_V41 };
    o->models = models;
    o->n_models = 2;

    json_object_foreach((json_t *) aliases, name, version) {
        if (o->n_models == VECTORS_MODELS_MAX)
            return;
        models[o->n_models].name = (di_str_t) { name, strlen(name) };
        models[o->n_models++].family = strcmp(json_string_value(version), "v4")
                                       == 0 ? DI_FAMILY_V4 : DI_FAMILY_V41;
    }
}

/* --------------------------------------------------------------- writing */

static json_t *
text(di_str_t s)
{
    return s.data == NULL ? json_null() : json_stringn(s.data, s.len);
}

static json_t *
tree(const di_json_t *v)
{
    di_sbuf_t b = { 0 };
    json_t   *out;

    if (v == NULL)
        return json_null();

    di_json_add_tree(&b, v, DI_JSON_COMPACT);
    out = vectors_load(b.data, b.len, NULL);
    di_sbuf_free(&b);
    return out;
}

static json_t *
tool(const di_tool_t *t)
{
    json_t *out = json_object();

    json_object_set_new(out, "name", text(t->name));
    json_object_set_new(out, "description", text(t->description));
    json_object_set_new(out, "parameters", tree(t->parameters));
    json_object_set_new(out, "strict", t->strict < 0 ? json_null()
                        : json_boolean(t->strict));
    json_object_set_new(out, "defer_loading", json_boolean(t->deferred));
    return out;
}

static json_t *
tools(const di_tool_t *const *list, size_t n)
{
    json_t *out = json_array();
    size_t  i;

    for (i = 0; i < n; i++)
        json_array_append_new(out, tool(list[i]));
    return out;
}

static json_t *
image(const di_image_t *m)
{
    static const char *const details[] = { "low", "high", "original", "auto" };
    json_t                  *out = json_object();

    json_object_set_new(out, "kind", json_string(m->data ? "data_url"
                                                         : "url"));
    json_object_set_new(out, "detail", json_string(details[m->detail]));
    json_object_set_new(out, "path", text(m->path));
    json_object_set_new(out, m->data ? "data_url" : "url", text(m->url));
    return out;
}

static void
add_images(json_t *to, const di_msg_t *m)
{
    size_t i;

    for (i = 0; i < m->n_images; i++)
        json_array_append_new(to, image(&m->images[i]));
}

static json_t *
calls(const di_msg_t *m)
{
    json_t *out = json_array(), *c;
    size_t  i;

    for (i = 0; i < m->n_calls; i++) {
        c = json_object();
        json_object_set_new(c, "id", text(m->calls[i].id));
        json_object_set_new(c, "name", text(m->calls[i].name));
        json_object_set_new(c, "arguments", text(m->calls[i].arguments));
        json_array_append_new(out, c);
    }
    return out;
}

static json_t *
message(const di_msg_t *m)
{
    static const char *const roles[] = { "system", "developer", "user",
                                         "assistant", "tool",
                                         "latest_reminder" };
    json_t                  *out = json_object();

    json_object_set_new(out, "role", json_string(roles[m->role]));
    json_object_set_new(out, "content", text(m->content));
    if (m->reasoning.data != NULL)
        json_object_set_new(out, "reasoning_content", text(m->reasoning));
    if (m->n_calls > 0)
        json_object_set_new(out, "tool_calls", calls(m));
    if (m->role == DI_ROLE_TOOL && m->call_id.data != NULL)
        json_object_set_new(out, "tool_call_id", text(m->call_id));
    if (m->prefix)
        json_object_set_new(out, "prefix", json_true());
    if (m->n_tools > 0)
        json_object_set_new(out, "tools", tools(m->tools, m->n_tools));
    if (m->n_images > 0) {
        json_object_set_new(out, "images", json_array());
        add_images(json_object_get(out, "images"), m);
    }
    return out;
}

static json_t *
conversation(const di_conv_t *c)
{
    static const char *const choices[] = { "auto", "none", "required" };
    static const char *const efforts[] = { NULL, "low", "high", "xhigh",
                                           "max" };
    static const char *const formats[] = { "text", "json_object",
                                           "json_schema", "regex" };
    json_t *out = json_object(), *msgs = json_array();
    size_t  i;

    for (i = 0; i < c->n_msgs; i++)
        json_array_append_new(msgs, message(&c->msgs[i]));

    json_object_set_new(out, "messages", msgs);
    json_object_set_new(out, "thinking_mode", json_boolean(c->thinking));
    json_object_set_new(out, "tools", tools(c->tools, c->n_tools));
    json_object_set_new(out, "tool_choice", json_string(choices[c->choice]));
    json_object_set_new(out, "reasoning_effort", c->effort == DI_EFFORT_NONE
                        ? json_null() : json_string(efforts[c->effort]));
    json_object_set_new(out, "response_format",
                        json_string(formats[c->format]));
    if (c->format == DI_FORMAT_SCHEMA)
        json_object_set_new(out, "response_schema", tree(c->schema));
    if (c->format == DI_FORMAT_REGEX)
        json_object_set_new(out, "response_regex", text(c->regex));
    return out;
}

/* The tools as compact JSON, which is what Recipe hands to its backend. */
static json_t *
tool_text(const di_conv_t *conv)
{
    static const char *const stricts[] = { "null", "false", "true" };
    const di_tool_t         *t;
    di_sbuf_t                b = { 0 };
    json_t                  *out;
    size_t                   i;

    di_sbuf_lit(&b, "[");
    for (i = 0; i < conv->n_tools; i++) {
        t = conv->tools[i];
        if (i > 0)
            di_sbuf_lit(&b, ",");
        di_sbuf_lit(&b, "{\"type\":\"function\",\"function\":{\"name\":");
        di_json_add_plain(&b, t->name);
        di_sbuf_lit(&b, ",\"description\":");
        if (t->description.data == NULL)
            di_sbuf_lit(&b, "null");
        else
            di_json_add_plain(&b, t->description);
        di_sbuf_lit(&b, ",\"parameters\":");
        di_json_add_tree(&b, t->parameters, DI_JSON_COMPACT);
        di_sbuf_lit(&b, ",\"strict\":");
        di_sbuf_add(&b, stricts[t->strict + 1],
                    strlen(stricts[t->strict + 1]));
        di_sbuf_lit(&b, "}");
        if (t->deferred)
            di_sbuf_lit(&b, ",\"defer_loading\":true");
        di_sbuf_lit(&b, "}");
    }
    di_sbuf_lit(&b, "]");

    out = text((di_str_t) { b.data, b.len });
    di_sbuf_free(&b);
    return out;
}

/* In Recipe's words: tools come before formats. */
static json_t *
constraint(const di_req_t *req)
{
    const di_constraint_t *c = di_req_constraint(req);
    const di_conv_t       *conv = di_req_conv(req);
    json_t                *out = json_object();

    if (conv->n_tools > 0) {
        json_object_set_new(out, "kind",
                            json_string(conv->choice == DI_CHOICE_REQUIRED
                                        ? "tool_call_required"
                                        : "tool_call"));
        json_object_set_new(out, "schema", tool_text(conv));
        return out;
    }

    if (c->kind == DI_CONSTRAINT_NONE) {
        json_decref(out);
        return json_null();
    }

    json_object_set_new(out, "kind", json_string(c->kind == DI_CONSTRAINT_JSON
                                                 ? "json" : "regex"));
    json_object_set_new(out, "schema", text(c->text));
    return out;
}

static json_t *
inference(const di_req_t *req)
{
    const di_req_params_t *p = di_req_params(req);
    json_t                *out = json_object();

    json_object_set_new(out, "max_tokens", p->max_tokens == 0 ? json_null()
                        : json_integer(p->max_tokens));
    json_object_set_new(out, "temperature", json_real(p->temperature));
    json_object_set_new(out, "top_p", json_real(p->top_p));
    json_object_set_new(out, "logprobs", json_boolean(p->logprobs));
    json_object_set_new(out, "top_logprobs", p->has_top_logprobs
                        ? json_integer(p->top_logprobs) : json_null());
    json_object_set_new(out, "seed", p->has_seed
                        ? json_integer((json_int_t) p->seed) : json_null());
    json_object_set_new(out, "output_constraint",
                        constraint(req));
    return out;
}

static json_t *
parsing(const di_req_t *req)
{
    static const char *const stages[] = { NULL, "reasoning_start",
                                          "reasoning_continuation",
                                          "content_continuation" };
    const di_parsing_t      *p = di_req_parsing(req);
    const di_req_params_t   *params = di_req_params(req);
    json_t                  *out = json_object(), *stops = json_array();
    size_t                   i;

    for (i = 0; i < params->n_stop; i++)
        json_array_append_new(stops, text(params->stop[i]));

    json_object_set_new(out, "parse_tool_calls", json_boolean(p->tools));
    json_object_set_new(out, "starts_in_tool_calls", json_boolean(p->forced));
    json_object_set_new(out, "parse_json_output", json_boolean(p->json));
    json_object_set_new(out, "thinking_initial_stage",
                        p->stage == DI_STAGE_NONE ? json_null()
                        : json_string(stages[p->stage]));
    json_object_set_new(out, "stop_sequences", stops);
    return out;
}

/* ---------------------------------------------------------------- prompt */

static size_t
count_chars(const char *s, size_t n)
{
    size_t i, chars = 0;

    for (i = 0; i < n; i++)
        chars += ((unsigned char) s[i] & 0xc0) != 0x80;
    return chars;
}

static void
add_prompt(const di_conv_t *conv, di_family_t family, json_t *out)
{
    static const di_str_t none = { NULL, 0 };
    di_pieces_t           p = { 0 };
    di_dialect_t         *d;
    json_t               *ranges = json_array(), *images = json_array();
    size_t                i, at = 0, n;

    if (di_dialect_open(NULL, none, family == DI_FAMILY_V4 ? "deepseek-v4"
                        : "deepseek-v4.1", &d, NULL) != DI_OK
        || di_dialect_render(d, conv, &p, NULL) != DI_OK)
        abort();

    for (i = 0; i < p.n; i++) {
        n = count_chars(p.text + p.pieces[i].at, p.pieces[i].len);
        if (p.pieces[i].special)
            json_array_append_new(ranges, json_pack("[I, I]", (json_int_t) at,
                                                    (json_int_t) (at + n)));
        at += n;
    }

    for (i = 0; i < conv->n_msgs; i++)
        add_images(images, &conv->msgs[i]);

    json_object_set_new(out, "prompt", json_stringn(p.text, p.len));
    json_object_set_new(out, "special_ranges", ranges);
    json_object_set_new(out, "images", images);
    di_pieces_free(&p);
    di_dialect_close(d);
}

/* An error of shape or JSON has only a message: the server puts it in the
 * body. */
static json_t *
error(di_api_t api, const di_api_err_t *e)
{
    json_t   *out = json_object(), *body;
    di_sbuf_t b = { 0 };

    if (strncmp(e->message, "invalid request body: ", 22) == 0
        || strncmp(e->message, "invalid JSON request: ", 22) == 0)
    {
        json_object_set_new(out, "stage", json_string("parse"));
        json_object_set_new(out, "message", json_string(e->message));

    } else {
        di_api_write_error(&b, api, DI_CODEC_OFFICIAL, e, NULL);
        body = json_loadb(b.data, b.len, 0, NULL);
        json_object_set_new(out, "stage", json_string("convert"));
        json_object_set_new(out, "status", json_integer(e->status));
        json_object_set_new(out, "body", body);
        di_sbuf_free(&b);
    }

    return json_pack("{s: o}", "error", out);
}

di_api_t
vectors_api(const json_t *input)
{
    const char *s = json_string_value(json_object_get(input, "api"));

    return strcmp(s, "chat") == 0 ? DI_API_CHAT
           : strcmp(s, "responses") == 0 ? DI_API_RESPONSES : DI_API_MESSAGES;
}

static json_t *
run(const json_t *input, const char *line, size_t len)
{
    di_model_name_t  models[VECTORS_MODELS_MAX];
    di_req_options_t options;
    di_api_t         api = vectors_api(input);
    di_sbuf_t        body = { 0 };
    di_req_t        *req;
    di_api_err_t     e;
    json_t          *out;

    vectors_options(input, &options, models);
    vectors_body(input, line, len, &body);

    if (di_req_parse(api, &options, body.data, body.len, &req, &e) != DI_OK) {
        di_sbuf_free(&body);
        return error(api, &e);
    }

    out = json_object();
    json_object_set_new(out, "encoding", json_string(di_req_family(req)
                        == DI_FAMILY_V4 ? "v4" : "v4.1"));
    add_prompt(di_req_conv(req), di_req_family(req), out);
    json_object_set_new(out, "conversation", conversation(di_req_conv(req)));
    json_object_set_new(out, "inference", inference(req));
    json_object_set_new(out, "parsing", parsing(req));
    json_object_set_new(out, "stream",
                        json_boolean(di_req_params(req)->stream));
    di_req_close(req);
    di_sbuf_free(&body);
    return out;
}

const vectors_kind_t vectors_render = {
    .name = "render", .takes = takes, .run = run,
};
