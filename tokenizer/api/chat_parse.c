/*
 * chat_parse.c - a Chat Completions request body to a di_chat_req_t.
 *
 * One table names every field that OpenAI documents for this API, and those
 * that vLLM added and clients use (top_k, min_p, repetition_penalty,
 * min_tokens, ignore_eos, stop_token_ids).  Each has a handler that does one
 * of three things: honour the field, accept a value that changes nothing in
 * the answer (user, metadata, store: false), or refuse by name what would
 * change the answer and can't be honoured.  A field that no table knows is
 * ignored and its name kept for the log.  null means absent everywhere.
 *
 * Where this API leaves a choice:
 * - up to 16 stop strings (OpenAI documents 4);
 * - both max_tokens and max_completion_tokens may be given if they agree.
 *
 * chat_messages.c reads the messages.
 *
 * All memory is the request's arena; only the list of ignored names is a
 * buffer of its own.
 */

#include "chat_parse.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH_DEFAULT     64
#define MESSAGES_DEFAULT  4096
#define IGNORED_MAX       512    /* bytes of names kept for the log         */

typedef int (*field_pt)(di_chat_parser_t *ps, const di_json_t *v);

/* ---------------------------------------------------------------- helpers */

int
di_chat_no_memory(di_chat_parser_t *ps)
{
    di_api_err_set(ps->e, 500, "server_error", "internal_error", NULL,
                   "The server ran out of memory.");
    return DI_ENOMEM;
}

const char *
di_chat_path(di_chat_parser_t *ps, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    (void) vsnprintf(ps->path, sizeof(ps->path), fmt, ap);
    va_end(ap);
    return ps->path;
}

void
di_chat_note_ignored(di_chat_parser_t *ps, const char *prefix,
                     const di_json_t *v)
{
    di_sbuf_t *b = &ps->req->ignored;
    char       key[DI_JSON_QUOTE], name[DI_JSON_QUOTE + 32];
    size_t     n;

    di_json_quote(v->key, key);
    n = (size_t) snprintf(name, sizeof(name), "%s%s", prefix, key);

    if (b->len + n + 2 > IGNORED_MAX
        || (b->len > 0 && memmem(b->data, b->len, name, n) != NULL))
        return;

    if (b->len > 0)
        di_sbuf_lit(b, ", ");
    di_sbuf_add(b, name, n);
}

static int
unsupported_value(di_chat_parser_t *ps, const char *at, const di_str_t *value,
                  const char *supported)
{
    char quoted[DI_JSON_QUOTE];

    di_json_quote(*value, quoted);
    return di_field_invalid(ps->e, at, "unsupported_value",
                            "Unsupported value: '%s' is '%s', supported: %s.",
                            at, quoted, supported);
}

/* -------------------------------------------------------- honoured fields */

static int
model(di_chat_parser_t *ps, const di_json_t *v)
{
    int rc = di_field_str(v, "model", &ps->req->model, ps->e);

    if (rc == DI_OK && ps->req->model.len == 0)
        return di_field_invalid(ps->e, "model", "invalid_value",
                                "Invalid 'model': empty string.");
    return rc;
}

static int
temperature(di_chat_parser_t *ps, const di_json_t *v)
{
    return di_field_real(v, "temperature", 0, false, 2,
                         &ps->req->params.temperature, ps->e);
}

static int
top_p(di_chat_parser_t *ps, const di_json_t *v)
{
    return di_field_real(v, "top_p", 0, true, 1, &ps->req->params.top_p,
                         ps->e);
}

static int
min_p(di_chat_parser_t *ps, const di_json_t *v)
{
    return di_field_real(v, "min_p", 0, false, 1, &ps->req->params.min_p,
                         ps->e);
}

/* -1 is vLLM's way to say "off". */
static int
top_k(di_chat_parser_t *ps, const di_json_t *v)
{
    int64_t k;
    int     rc = di_field_int(v, "top_k", -1, INT32_MAX, &k, ps->e);

    if (rc == DI_OK)
        ps->req->params.top_k = k < 0 ? 0 : k;
    return rc;
}

static int
presence_penalty(di_chat_parser_t *ps, const di_json_t *v)
{
    return di_field_real(v, "presence_penalty", -2, false, 2,
                         &ps->req->params.presence_penalty, ps->e);
}

static int
frequency_penalty(di_chat_parser_t *ps, const di_json_t *v)
{
    return di_field_real(v, "frequency_penalty", -2, false, 2,
                         &ps->req->params.frequency_penalty, ps->e);
}

static int
repetition_penalty(di_chat_parser_t *ps, const di_json_t *v)
{
    return di_field_real(v, "repetition_penalty", 0, true, 10,
                         &ps->req->params.repetition_penalty, ps->e);
}

static int
seed(di_chat_parser_t *ps, const di_json_t *v)
{
    ps->req->params.has_seed = true;
    return di_field_seed(v, "seed", &ps->req->params.seed, ps->e);
}

static int
n_choices(di_chat_parser_t *ps, const di_json_t *v)
{
    return di_field_u32(v, "n", 1, DI_REQ_N_MAX, &ps->req->params.n, ps->e);
}

static int
max_tokens(di_chat_parser_t *ps, const di_json_t *v)
{
    return di_field_u32(v, "max_tokens", 1, UINT32_MAX,
                        &ps->req->params.max_tokens, ps->e);
}

static int
max_completion_tokens(di_chat_parser_t *ps, const di_json_t *v)
{
    return di_field_u32(v, "max_completion_tokens", 1, UINT32_MAX,
                        &ps->max_completion_tokens, ps->e);
}

static int
min_tokens(di_chat_parser_t *ps, const di_json_t *v)
{
    return di_field_u32(v, "min_tokens", 0, UINT32_MAX,
                        &ps->req->params.min_tokens, ps->e);
}

static int
ignore_eos(di_chat_parser_t *ps, const di_json_t *v)
{
    return di_field_bool(v, "ignore_eos", &ps->req->params.ignore_eos, ps->e);
}

static int
logprobs(di_chat_parser_t *ps, const di_json_t *v)
{
    return di_field_bool(v, "logprobs", &ps->req->params.logprobs, ps->e);
}

static int
top_logprobs(di_chat_parser_t *ps, const di_json_t *v)
{
    ps->has_top_logprobs = true;
    return di_field_u32(v, "top_logprobs", 0, DI_REQ_TOP_LOGPROBS_MAX,
                        &ps->req->params.top_logprobs, ps->e);
}

static int
stream(di_chat_parser_t *ps, const di_json_t *v)
{
    return di_field_bool(v, "stream", &ps->req->params.stream, ps->e);
}

/* include_obfuscation pads events against traffic analysis; events are never
 * padded here, and the answer is the same either way. */
static int
stream_options(di_chat_parser_t *ps, const di_json_t *v)
{
    const di_json_t *m;
    bool             ignored;
    int              rc;

    rc = di_field_object(v, "stream_options", ps->e);
    if (rc != DI_OK)
        return rc;

    ps->has_stream_options = true;

    for (m = v->v.list.first; m != NULL && rc == DI_OK; m = m->next) {
        if (m->type == DI_JSON_NULL)
            continue;

        if (di_json_is(&m->key, "include_usage"))
            rc = di_field_bool(m, "stream_options.include_usage",
                               &ps->req->params.include_usage, ps->e);

        else if (di_json_is(&m->key, "include_obfuscation"))
            rc = di_field_bool(m, "stream_options.include_obfuscation",
                               &ignored, ps->e);

        else
            di_chat_note_ignored(ps, "stream_options.", m);
    }

    return rc;
}

static int
stop_string(di_chat_parser_t *ps, const di_json_t *v, di_str_t *out)
{
    int rc = di_field_str(v, ps->path, out, ps->e);

    if (rc == DI_OK && out->len == 0)
        return di_field_invalid(ps->e, ps->path, "empty_string",
                                "Invalid '%s': empty string. Expected a string"
                                " with minimum length 1.", ps->path);

    if (rc == DI_OK && out->len > DI_REQ_STOP_BYTES_MAX)
        return di_field_invalid(ps->e, ps->path, "string_above_max_length",
                                "Invalid '%s': string too long. Expected at"
                                " most %d bytes, but got %zu.", ps->path,
                                DI_REQ_STOP_BYTES_MAX, out->len);

    return rc;
}

static int
stop(di_chat_parser_t *ps, const di_json_t *v)
{
    const di_json_t *m;
    di_str_t        *list;
    size_t           n = 1, i = 0;
    int              rc;

    if (v->type == DI_JSON_ARRAY) {
        rc = di_field_array(v, "stop", DI_REQ_STOPS_MAX, ps->e);
        if (rc != DI_OK)
            return rc;
        n = v->v.list.n;

    } else if (v->type != DI_JSON_STRING) {
        return di_field_type(v, "stop", "a string or an array of strings",
                             ps->e);
    }

    list = di_arena_calloc(&ps->req->arena, n, sizeof(*list));
    if (list == NULL)
        return di_chat_no_memory(ps);

    ps->req->params.stop = list;
    ps->req->params.n_stop = n;

    if (v->type == DI_JSON_STRING) {
        di_chat_path(ps, "stop");
        return stop_string(ps, v, list);
    }

    for (m = v->v.list.first; m != NULL; m = m->next, i++) {
        di_chat_path(ps, "stop[%zu]", i);
        rc = stop_string(ps, m, &list[i]);
        if (rc != DI_OK)
            return rc;
    }

    return DI_OK;
}

static int
stop_token_ids(di_chat_parser_t *ps, const di_json_t *v)
{
    const di_json_t *m;
    int32_t         *ids;
    int64_t          id;
    size_t           i = 0;
    int              rc;

    rc = di_field_array(v, "stop_token_ids", DI_REQ_STOP_IDS_MAX, ps->e);
    if (rc != DI_OK)
        return rc;

    ids = di_arena_calloc(&ps->req->arena, v->v.list.n, sizeof(*ids));
    if (ids == NULL)
        return di_chat_no_memory(ps);

    ps->req->params.stop_ids = ids;
    ps->req->params.n_stop_ids = v->v.list.n;

    for (m = v->v.list.first; m != NULL; m = m->next, i++) {
        di_chat_path(ps, "stop_token_ids[%zu]", i);
        rc = di_field_int(m, ps->path, 0, (int64_t) ps->limits.vocab - 1, &id,
                          ps->e);
        if (rc != DI_OK)
            return rc;
        ids[i] = (int32_t) id;
    }

    return DI_OK;
}

/* A token id spelled as a key, or -1: digits only, no leading zeros. */
static int64_t
bias_id(const di_str_t *key)
{
    int64_t id = 0;
    size_t  i;

    if (key->len == 0 || key->len > 10 || (key->len > 1 && *key->data == '0'))
        return -1;

    for (i = 0; i < key->len; i++) {
        if (key->data[i] < '0' || key->data[i] > '9')
            return -1;
        id = id * 10 + (key->data[i] - '0');
    }

    return id;
}

static int
logit_bias(di_chat_parser_t *ps, const di_json_t *v)
{
    struct di_req_bias_s *bias;
    const di_json_t       *m;
    char                   quoted[DI_JSON_QUOTE];
    int64_t                id;
    double                 d;
    size_t                 i = 0;
    int                    rc;

    rc = di_field_object(v, "logit_bias", ps->e);
    if (rc != DI_OK)
        return rc;

    if (v->v.list.n > DI_REQ_BIAS_MAX)
        return di_field_invalid(ps->e, "logit_bias", "invalid_value",
                                "Invalid 'logit_bias': at most %d entries are"
                                " supported, but got %zu.", DI_REQ_BIAS_MAX,
                                v->v.list.n);

    bias = di_arena_calloc(&ps->req->arena, v->v.list.n, sizeof(*bias));
    if (bias == NULL)
        return di_chat_no_memory(ps);

    for (m = v->v.list.first; m != NULL; m = m->next, i++) {
        id = bias_id(&m->key);
        di_json_quote(m->key, quoted);

        if (id < 0 || id >= (int64_t) ps->limits.vocab)
            return di_field_invalid(ps->e, "logit_bias", "invalid_value",
                                    "Invalid key in 'logit_bias': '%s' is not"
                                    " a token id below %u.", quoted,
                                    (unsigned) ps->limits.vocab);

        di_chat_path(ps, "logit_bias.%s", quoted);
        rc = di_field_real(m, ps->path, -100, false, 100, &d, ps->e);
        if (rc != DI_OK)
            return rc;

        bias[i].id = (int32_t) id;
        bias[i].bias = (float) d;
    }

    ps->req->params.bias = bias;
    ps->req->params.n_bias = v->v.list.n;
    return DI_OK;
}

/* ------------------------------------- accepted, or refused for its value */

static int
any_string(di_chat_parser_t *ps, const di_json_t *v)
{
    di_str_t s;

    return di_field_str(v, ps->path, &s, ps->e);
}

static int
any_bool(di_chat_parser_t *ps, const di_json_t *v)
{
    bool b;

    return di_field_bool(v, ps->path, &b, ps->e);
}

static int
any_object(di_chat_parser_t *ps, const di_json_t *v)
{
    return di_field_object(v, ps->path, ps->e);
}

static int
store(di_chat_parser_t *ps, const di_json_t *v)
{
    bool b;
    int  rc = di_field_bool(v, "store", &b, ps->e);

    if (rc == DI_OK && b)
        return di_field_refuse("store", "nothing is stored here", ps->e);
    return rc;
}

/* A string that must be one of two. */
static int
one_of(di_chat_parser_t *ps, const di_json_t *v, const char *a, const char *b,
       const char *supported)
{
    di_str_t s;
    int      rc = di_field_str(v, ps->path, &s, ps->e);

    if (rc == DI_OK && !di_json_is(&s, a) && !di_json_is(&s, b))
        return unsupported_value(ps, ps->path, &s, supported);
    return rc;
}

static int
service_tier(di_chat_parser_t *ps, const di_json_t *v)
{
    return one_of(ps, v, "auto", "default", "'auto' and 'default'");
}

static int
verbosity(di_chat_parser_t *ps, const di_json_t *v)
{
    return one_of(ps, v, "medium", "medium", "'medium'");
}

static int
reasoning_effort(di_chat_parser_t *ps, const di_json_t *v)
{
    return one_of(ps, v, "none", "none",
                  "'none', as the model has no reasoning mode");
}

/* tools and functions: an empty list offers nothing. */
static int
no_tools(di_chat_parser_t *ps, const di_json_t *v)
{
    if (v->type != DI_JSON_ARRAY)
        return di_field_type(v, ps->path, "an array", ps->e);

    if (v->v.list.n > 0)
        return di_field_refuse(ps->path, DI_CHAT_NO_TOOLS, ps->e);

    return DI_OK;
}

/* tool_choice and function_call: without tools nothing can be forced. */
static int
no_choice(di_chat_parser_t *ps, const di_json_t *v)
{
    if (v->type == DI_JSON_OBJECT)
        return di_field_refuse(ps->path, DI_CHAT_NO_TOOLS, ps->e);

    if (v->type != DI_JSON_STRING)
        return di_field_type(v, ps->path, "a string or an object", ps->e);

    return one_of(ps, v, "none", "auto",
                  "'none' and 'auto', as " DI_CHAT_NO_TOOLS);
}

static int
response_format(di_chat_parser_t *ps, const di_json_t *v)
{
    const di_json_t *type;
    di_str_t         s;
    int              rc;

    rc = di_field_object(v, "response_format", ps->e);
    if (rc != DI_OK)
        return rc;

    type = di_json_get(v, "type");
    if (type == NULL)
        return di_field_missing("response_format.type", ps->e);

    rc = di_field_str(type, "response_format.type", &s, ps->e);
    if (rc == DI_OK && !di_json_is(&s, "text"))
        return unsupported_value(ps, "response_format.type", &s, "'text'");

    return rc;
}

static int
modalities(di_chat_parser_t *ps, const di_json_t *v)
{
    const di_json_t *m;
    size_t           i = 0;
    int              rc;

    rc = di_field_array(v, "modalities", 2, ps->e);

    for (m = v->v.list.first; rc == DI_OK && m != NULL; m = m->next, i++) {
        di_chat_path(ps, "modalities[%zu]", i);
        rc = one_of(ps, m, "text", "text", "'text'");
    }

    return rc;
}

static int
refused(di_chat_parser_t *ps, const di_json_t *v)
{
    (void) v;
    return di_field_refuse(ps->path, "the model and this server can't do that",
                           ps->e);
}

/* ------------------------------------------------------------- the fields */

static const struct {
    const char *name;
    field_pt    read;
} fields[] = {
    { "model", model },
    { "messages", di_chat_messages },
    { "temperature", temperature },
    { "top_p", top_p },
    { "top_k", top_k },
    { "min_p", min_p },
    { "presence_penalty", presence_penalty },
    { "frequency_penalty", frequency_penalty },
    { "repetition_penalty", repetition_penalty },
    { "seed", seed },
    { "n", n_choices },
    { "max_tokens", max_tokens },
    { "max_completion_tokens", max_completion_tokens },
    { "min_tokens", min_tokens },
    { "ignore_eos", ignore_eos },
    { "stop", stop },
    { "stop_token_ids", stop_token_ids },
    { "logit_bias", logit_bias },
    { "logprobs", logprobs },
    { "top_logprobs", top_logprobs },
    { "stream", stream },
    { "stream_options", stream_options },

    { "user", any_string },
    { "safety_identifier", any_string },
    { "prompt_cache_key", any_string },
    { "prompt_cache_retention", any_string },
    { "metadata", any_object },
    { "parallel_tool_calls", any_bool },
    { "store", store },
    { "service_tier", service_tier },
    { "verbosity", verbosity },
    { "reasoning_effort", reasoning_effort },
    { "tools", no_tools },
    { "functions", no_tools },
    { "tool_choice", no_choice },
    { "function_call", no_choice },
    { "response_format", response_format },
    { "modalities", modalities },

    { "audio", refused },
    { "prediction", refused },
    { "web_search_options", refused },
};

static int
read_fields(di_chat_parser_t *ps, const di_json_t *root)
{
    const size_t     n = sizeof(fields) / sizeof(fields[0]);
    const di_json_t *m;
    size_t           i;
    int              rc;

    for (m = root->v.list.first; m != NULL; m = m->next) {
        for (i = 0; i < n && !di_json_is(&m->key, fields[i].name); i++) {
            /* void */
        }

        if (i == n) {
            di_chat_note_ignored(ps, "", m);
            continue;
        }

        if (m->type == DI_JSON_NULL)
            continue;

        di_chat_path(ps, "%s", fields[i].name);
        rc = fields[i].read(ps, m);
        if (rc != DI_OK)
            return rc;
    }

    return DI_OK;
}

/* What only the whole request can tell. */
static int
check_together(di_chat_parser_t *ps)
{
    di_chat_params_t *p = &ps->req->params;
    uint32_t          other = ps->max_completion_tokens;

    if (ps->req->model.data == NULL)
        return di_field_missing("model", ps->e);

    if (ps->req->msgs == NULL)
        return di_field_missing("messages", ps->e);

    if (other != 0 && p->max_tokens != 0 && other != p->max_tokens)
        return di_field_invalid(ps->e, "max_completion_tokens",
                                "invalid_value", "'max_tokens' (%u) and"
                                " 'max_completion_tokens' (%u) differ; give"
                                " one of them.", (unsigned) p->max_tokens,
                                (unsigned) other);

    if (other != 0)
        p->max_tokens = other;

    if (p->max_tokens != 0 && p->min_tokens > p->max_tokens)
        return di_field_invalid(ps->e, "min_tokens", "invalid_value",
                                "'min_tokens' (%u) is above the maximum asked"
                                " for (%u).", (unsigned) p->min_tokens,
                                (unsigned) p->max_tokens);

    if (ps->has_top_logprobs && !p->logprobs)
        return di_field_invalid(ps->e, "top_logprobs", "invalid_value",
                                "'top_logprobs' needs 'logprobs' set to"
                                " true.");

    if (ps->has_stream_options && !p->stream)
        return di_field_invalid(ps->e, "stream_options", "invalid_value",
                                "'stream_options' is only allowed when"
                                " 'stream' is true.");

    return DI_OK;
}

/* -------------------------------------------------------------- interface */

static int
read_body(di_chat_parser_t *ps, const char *body, size_t len)
{
    const di_json_t *root;
    di_json_t       *tree;
    di_err_t         err = { 0 };
    int              rc;

    rc = di_json_read(&ps->req->arena, body, len, ps->limits.depth, &tree,
                      &err);
    if (rc == DI_ENOMEM)
        return di_chat_no_memory(ps);

    if (rc != DI_OK) {
        (void) di_field_invalid(ps->e, NULL, "invalid_json", len == 0
                                ? "The request body is empty."
                                : "The request body is not valid JSON: %s.",
                                err.text);
        return rc;
    }

    root = tree;
    rc = read_fields(ps, root);
    if (rc == DI_OK)
        rc = check_together(ps);

    if (rc == DI_OK && ps->req->ignored.failed)
        return di_chat_no_memory(ps);

    return rc;
}

int
di_chat_parse(const char *body, size_t len, const di_chat_limits_t *limits,
              di_chat_req_t **req, di_api_err_t *e)
{
    di_chat_parser_t ps = { .e = e };
    int      rc;

    if (limits != NULL)
        ps.limits = *limits;

    if (ps.limits.depth == 0)
        ps.limits.depth = DEPTH_DEFAULT;

    if (ps.limits.messages == 0)
        ps.limits.messages = MESSAGES_DEFAULT;

    ps.req = calloc(1, sizeof(*ps.req));
    if (ps.req == NULL)
        return di_chat_no_memory(&ps);

    ps.req->params.temperature = 1;
    ps.req->params.top_p = 1;
    ps.req->params.repetition_penalty = 1;
    ps.req->params.n = 1;

    rc = read_body(&ps, body, len);
    if (rc != DI_OK) {
        di_chat_req_close(ps.req);
        return rc;
    }

    *req = ps.req;
    return DI_OK;
}

void
di_chat_req_close(di_chat_req_t *req)
{
    if (req == NULL)
        return;

    di_sbuf_free(&req->ignored);
    di_arena_free(&req->arena);
    free(req);
}

di_str_t
di_chat_req_model(const di_chat_req_t *req)
{
    return req->model;
}

const di_conv_t *
di_chat_req_conv(const di_chat_req_t *req)
{
    return &req->conv;
}

const di_chat_params_t *
di_chat_req_params(const di_chat_req_t *req)
{
    return &req->params;
}

di_str_t
di_chat_req_ignored(const di_chat_req_t *req)
{
    return (di_str_t) { req->ignored.len == 0 ? "" : req->ignored.data,
                        req->ignored.len };
}
