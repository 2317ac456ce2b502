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
 * - text parts of one message are joined with two newlines;
 * - up to 16 stop strings (OpenAI documents 4);
 * - both max_tokens and max_completion_tokens may be given if they agree;
 * - an assistant message without content but with `refusal` has that as its
 *   content: it is what the assistant said;
 * - `name` of a message is taken; dialects without a spelling for it leave it
 *   out, as the models' own templates do.
 *
 * All memory is the request's arena; only the list of ignored names is a
 * buffer of its own.
 */

#include "field.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH_DEFAULT     64
#define MESSAGES_DEFAULT  4096
#define IGNORED_MAX       512    /* bytes of names kept for the log         */

#define NO_TOOLS  "this server does not do tool calls"

struct di_chat_req_s {
    di_arena_t       arena;      /* holds everything below                  */
    di_str_t         model;
    di_msg_t        *msgs;
    di_conv_t        conv;       /* of msgs                                 */
    di_chat_params_t params;
    di_sbuf_t        ignored;    /* names, joined by ", "                   */
};

typedef struct {
    di_chat_req_t   *req;
    di_chat_limits_t limits;     /* defaults filled in                      */
    di_api_err_t    *e;
    uint32_t         max_completion_tokens;  /* 0: not given                */
    bool             has_stream_options;
    bool             has_top_logprobs;
    char             path[96];   /* of the field being read                 */
} parser_t;

typedef int (*field_pt)(parser_t *ps, const di_json_t *v);

/* ---------------------------------------------------------------- helpers */

static int
no_memory(parser_t *ps)
{
    di_api_err_set(ps->e, 500, "server_error", "internal_error", NULL,
                   "The server ran out of memory.");
    return DI_ENOMEM;
}

__attribute__((format(printf, 2, 3)))
static const char *
path(parser_t *ps, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    (void) vsnprintf(ps->path, sizeof(ps->path), fmt, ap);
    va_end(ap);
    return ps->path;
}

/* Keep the name of an unknown field, once; prefix says where it stood. */
static void
note_ignored(parser_t *ps, const char *prefix, const di_json_t *v)
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
unsupported_value(parser_t *ps, const char *at, const di_str_t *value,
                  const char *supported)
{
    char quoted[DI_JSON_QUOTE];

    di_json_quote(*value, quoted);
    return di_field_invalid(ps->e, at, "unsupported_value",
                            "Unsupported value: '%s' is '%s', supported: %s.",
                            at, quoted, supported);
}

/* --------------------------------------------------------- content parts */

/* Why a part that carries no text can't be read, or NULL. */
static const char *
part_refusal(const di_str_t *type)
{
    if (di_json_is(type, "image_url") || di_json_is(type, "image"))
        return "the model has no vision";

    if (di_json_is(type, "input_audio"))
        return "the model has no audio input";

    if (di_json_is(type, "file"))
        return "the model reads no files";

    return NULL;
}

/* Text of messages[i].content[j]; only an assistant has refusal parts. */
static int
part_text(parser_t *ps, const di_json_t *v, size_t i, size_t j, di_role_t role,
          di_str_t *text)
{
    const di_json_t *type, *member, *m;
    const char      *why, *name = "text";
    di_str_t         kind;
    char             quoted[DI_JSON_QUOTE];
    int              rc;

    rc = di_field_object(v, path(ps, "messages[%zu].content[%zu]", i, j),
                         ps->e);
    if (rc != DI_OK)
        return rc;

    path(ps, "messages[%zu].content[%zu].type", i, j);
    type = di_json_get(v, "type");
    if (type == NULL)
        return di_field_missing(ps->path, ps->e);

    rc = di_field_str(type, ps->path, &kind, ps->e);
    if (rc != DI_OK)
        return rc;

    if (role == DI_ROLE_ASSISTANT && di_json_is(&kind, "refusal")) {
        name = "refusal";

    } else if (!di_json_is(&kind, "text")) {
        why = part_refusal(&kind);
        if (why != NULL) {
            path(ps, "messages[%zu].content[%zu]", i, j);
            return di_field_invalid(ps->e, ps->path, "unsupported_content",
                                    "'%s' is a part of type '%.*s': %s.",
                                    ps->path, (int) kind.len, kind.data, why);
        }

        di_json_quote(kind, quoted);
        return di_field_invalid(ps->e, ps->path, "invalid_value",
                                "Invalid value: '%s' is '%s', supported:"
                                " 'text'.", ps->path, quoted);
    }

    path(ps, "messages[%zu].content[%zu].%s", i, j, name);
    member = di_json_get(v, name);
    if (member == NULL)
        return di_field_missing(ps->path, ps->e);

    for (m = v->v.list.first; m != NULL; m = m->next) {
        if (m != member && m != type)
            note_ignored(ps, "messages[].content[].", m);
    }

    return di_field_str(member, ps->path, text, ps->e);
}

/* A list of parts: their texts, joined with two newlines. */
static int
content_parts(parser_t *ps, const di_json_t *v, size_t i, di_role_t role,
              di_str_t *content)
{
    const di_json_t *part;
    di_str_t        *texts;
    size_t           n = v->v.list.n, j = 0, len = 0;
    char            *p;
    int              rc;

    if (n == 0)
        return di_field_invalid(ps->e, ps->path, "empty_array",
                                "Invalid '%s': empty array. Expected an array"
                                " with minimum length 1.", ps->path);

    texts = di_arena_calloc(&ps->req->arena, n, sizeof(*texts));
    if (texts == NULL)
        return no_memory(ps);

    for (part = v->v.list.first; part != NULL; part = part->next) {
        rc = part_text(ps, part, i, j, role, &texts[j]);
        if (rc != DI_OK)
            return rc;
        len += texts[j++].len + 2;
    }

    if (n == 1) {
        *content = texts[0];
        return DI_OK;
    }

    p = di_arena_alloc(&ps->req->arena, len);
    if (p == NULL)
        return no_memory(ps);

    content->data = p;
    for (j = 0; j < n; j++) {
        if (j > 0) {
            *p++ = '\n';
            *p++ = '\n';
        }
        if (texts[j].len != 0)
            memcpy(p, texts[j].data, texts[j].len);
        p += texts[j].len;
    }

    content->len = (size_t) (p - content->data);
    return DI_OK;
}

/* --------------------------------------------------------------- messages */

static int
message_role(parser_t *ps, const di_json_t *v, size_t i, di_role_t *role)
{
    static const char *const names[] = {
        [DI_ROLE_SYSTEM] = "system", [DI_ROLE_DEVELOPER] = "developer",
        [DI_ROLE_USER] = "user", [DI_ROLE_ASSISTANT] = "assistant",
        [DI_ROLE_TOOL] = "tool",
    };
    const di_json_t *member = di_json_get(v, "role");
    di_str_t         s;
    size_t           k;
    char             quoted[DI_JSON_QUOTE];
    int              rc;

    path(ps, "messages[%zu].role", i);
    if (member == NULL || member->type == DI_JSON_NULL)
        return di_field_missing(ps->path, ps->e);

    rc = di_field_str(member, ps->path, &s, ps->e);
    if (rc != DI_OK)
        return rc;

    for (k = 0; k < sizeof(names) / sizeof(names[0]); k++) {
        if (di_json_is(&s, names[k])) {
            *role = (di_role_t) k;
            return DI_OK;
        }
    }

    if (di_json_is(&s, "function"))
        return di_field_refuse(ps->path, NO_TOOLS, ps->e);

    di_json_quote(s, quoted);
    return di_field_invalid(ps->e, ps->path, "invalid_value",
                            "Invalid value: '%s'. Supported values are:"
                            " 'system', 'developer', 'user', 'assistant' and"
                            " 'tool'.", quoted);
}

static int
message_content(parser_t *ps, const di_json_t *v, size_t i, di_msg_t *m)
{
    path(ps, "messages[%zu].content", i);

    if (v->type == DI_JSON_STRING) {
        m->content = v->v.str;
        return DI_OK;
    }

    if (v->type == DI_JSON_ARRAY)
        return content_parts(ps, v, i, m->role, &m->content);

    return di_field_type(v, ps->path, "a string or an array of content parts",
                         ps->e);
}

/* Fields of a message other than role and content. */
static int
message_field(parser_t *ps, const di_json_t *v, size_t i, di_msg_t *m,
              di_str_t *refusal)
{
    const di_str_t *key = &v->key;
    bool            assistant = m->role == DI_ROLE_ASSISTANT;
    di_str_t        s;

    if (di_json_is(key, "name"))
        return di_field_str(v, path(ps, "messages[%zu].name", i), &m->name,
                            ps->e);

    if (di_json_is(key, "tool_call_id") && m->role == DI_ROLE_TOOL)
        return di_field_str(v, path(ps, "messages[%zu].tool_call_id", i), &s,
                            ps->e);

    if (assistant && di_json_is(key, "refusal"))
        return di_field_str(v, path(ps, "messages[%zu].refusal", i), refusal,
                            ps->e);

    if (assistant && di_json_is(key, "tool_calls"))
        return di_field_refuse(path(ps, "messages[%zu].tool_calls", i),
                               NO_TOOLS, ps->e);

    if (assistant && di_json_is(key, "function_call"))
        return di_field_refuse(path(ps, "messages[%zu].function_call", i),
                               NO_TOOLS, ps->e);

    if (assistant && di_json_is(key, "audio"))
        return di_field_refuse(path(ps, "messages[%zu].audio", i),
                               "the model has no audio", ps->e);

    /* Client libraries send an answer back as they got it. */
    if (!(assistant && di_json_is(key, "annotations")))
        note_ignored(ps, "messages[].", v);

    return DI_OK;
}

static int
message(parser_t *ps, const di_json_t *v, size_t i, di_msg_t *m)
{
    const di_json_t *f;
    di_str_t         refusal = { NULL, 0 };
    int              rc;

    rc = di_field_object(v, path(ps, "messages[%zu]", i), ps->e);
    if (rc != DI_OK)
        return rc;

    rc = message_role(ps, v, i, &m->role);

    for (f = v->v.list.first; f != NULL && rc == DI_OK; f = f->next) {
        if (f->type == DI_JSON_NULL || di_json_is(&f->key, "role"))
            continue;

        rc = di_json_is(&f->key, "content")
             ? message_content(ps, f, i, m)
             : message_field(ps, f, i, m, &refusal);
    }

    if (rc != DI_OK)
        return rc;

    if (m->content.data == NULL)
        m->content = refusal;

    if (m->content.data == NULL)
        return di_field_missing(path(ps, "messages[%zu].content", i), ps->e);

    if (m->role == DI_ROLE_TOOL && di_json_get(v, "tool_call_id") == NULL)
        return di_field_missing(path(ps, "messages[%zu].tool_call_id", i),
                                ps->e);

    return DI_OK;
}

static int
messages(parser_t *ps, const di_json_t *v)
{
    di_chat_req_t   *req = ps->req;
    const di_json_t *m;
    size_t           i = 0;
    int              rc;

    rc = di_field_array(v, "messages", ps->limits.messages, ps->e);
    if (rc != DI_OK)
        return rc;

    if (v->v.list.n == 0)
        return di_field_invalid(ps->e, "messages", "empty_array",
                                "Invalid 'messages': empty array. Expected an"
                                " array with minimum length 1.");

    req->msgs = di_arena_calloc(&req->arena, v->v.list.n, sizeof(*req->msgs));
    if (req->msgs == NULL)
        return no_memory(ps);

    for (m = v->v.list.first; m != NULL; m = m->next, i++) {
        rc = message(ps, m, i, &req->msgs[i]);
        if (rc != DI_OK)
            return rc;
    }

    req->conv.msgs = req->msgs;
    req->conv.n_msgs = i;
    req->conv.open_assistant = true;
    return DI_OK;
}

/* -------------------------------------------------------- honoured fields */

static int
model(parser_t *ps, const di_json_t *v)
{
    int rc = di_field_str(v, "model", &ps->req->model, ps->e);

    if (rc == DI_OK && ps->req->model.len == 0)
        return di_field_invalid(ps->e, "model", "invalid_value",
                                "Invalid 'model': empty string.");
    return rc;
}

static int
temperature(parser_t *ps, const di_json_t *v)
{
    return di_field_real(v, "temperature", 0, false, 2,
                         &ps->req->params.temperature, ps->e);
}

static int
top_p(parser_t *ps, const di_json_t *v)
{
    return di_field_real(v, "top_p", 0, true, 1, &ps->req->params.top_p,
                         ps->e);
}

static int
min_p(parser_t *ps, const di_json_t *v)
{
    return di_field_real(v, "min_p", 0, false, 1, &ps->req->params.min_p,
                         ps->e);
}

/* -1 is vLLM's way to say "off". */
static int
top_k(parser_t *ps, const di_json_t *v)
{
    int64_t k;
    int     rc = di_field_int(v, "top_k", -1, INT32_MAX, &k, ps->e);

    if (rc == DI_OK)
        ps->req->params.top_k = k < 0 ? 0 : k;
    return rc;
}

static int
presence_penalty(parser_t *ps, const di_json_t *v)
{
    return di_field_real(v, "presence_penalty", -2, false, 2,
                         &ps->req->params.presence_penalty, ps->e);
}

static int
frequency_penalty(parser_t *ps, const di_json_t *v)
{
    return di_field_real(v, "frequency_penalty", -2, false, 2,
                         &ps->req->params.frequency_penalty, ps->e);
}

static int
repetition_penalty(parser_t *ps, const di_json_t *v)
{
    return di_field_real(v, "repetition_penalty", 0, true, 10,
                         &ps->req->params.repetition_penalty, ps->e);
}

static int
seed(parser_t *ps, const di_json_t *v)
{
    ps->req->params.has_seed = true;
    return di_field_seed(v, "seed", &ps->req->params.seed, ps->e);
}

static int
n_choices(parser_t *ps, const di_json_t *v)
{
    return di_field_u32(v, "n", 1, DI_CHAT_N_MAX, &ps->req->params.n, ps->e);
}

static int
max_tokens(parser_t *ps, const di_json_t *v)
{
    return di_field_u32(v, "max_tokens", 1, UINT32_MAX,
                        &ps->req->params.max_tokens, ps->e);
}

static int
max_completion_tokens(parser_t *ps, const di_json_t *v)
{
    return di_field_u32(v, "max_completion_tokens", 1, UINT32_MAX,
                        &ps->max_completion_tokens, ps->e);
}

static int
min_tokens(parser_t *ps, const di_json_t *v)
{
    return di_field_u32(v, "min_tokens", 0, UINT32_MAX,
                        &ps->req->params.min_tokens, ps->e);
}

static int
ignore_eos(parser_t *ps, const di_json_t *v)
{
    return di_field_bool(v, "ignore_eos", &ps->req->params.ignore_eos, ps->e);
}

static int
logprobs(parser_t *ps, const di_json_t *v)
{
    return di_field_bool(v, "logprobs", &ps->req->params.logprobs, ps->e);
}

static int
top_logprobs(parser_t *ps, const di_json_t *v)
{
    ps->has_top_logprobs = true;
    return di_field_u32(v, "top_logprobs", 0, DI_CHAT_TOP_LOGPROBS_MAX,
                        &ps->req->params.top_logprobs, ps->e);
}

static int
stream(parser_t *ps, const di_json_t *v)
{
    return di_field_bool(v, "stream", &ps->req->params.stream, ps->e);
}

/* include_obfuscation pads events against traffic analysis; events are never
 * padded here, and the answer is the same either way. */
static int
stream_options(parser_t *ps, const di_json_t *v)
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
            note_ignored(ps, "stream_options.", m);
    }

    return rc;
}

static int
stop_string(parser_t *ps, const di_json_t *v, di_str_t *out)
{
    int rc = di_field_str(v, ps->path, out, ps->e);

    if (rc == DI_OK && out->len == 0)
        return di_field_invalid(ps->e, ps->path, "empty_string",
                                "Invalid '%s': empty string. Expected a string"
                                " with minimum length 1.", ps->path);

    if (rc == DI_OK && out->len > DI_CHAT_STOP_BYTES_MAX)
        return di_field_invalid(ps->e, ps->path, "string_above_max_length",
                                "Invalid '%s': string too long. Expected at"
                                " most %d bytes, but got %zu.", ps->path,
                                DI_CHAT_STOP_BYTES_MAX, out->len);

    return rc;
}

static int
stop(parser_t *ps, const di_json_t *v)
{
    const di_json_t *m;
    di_str_t        *list;
    size_t           n = 1, i = 0;
    int              rc;

    if (v->type == DI_JSON_ARRAY) {
        rc = di_field_array(v, "stop", DI_CHAT_STOPS_MAX, ps->e);
        if (rc != DI_OK)
            return rc;
        n = v->v.list.n;

    } else if (v->type != DI_JSON_STRING) {
        return di_field_type(v, "stop", "a string or an array of strings",
                             ps->e);
    }

    list = di_arena_calloc(&ps->req->arena, n, sizeof(*list));
    if (list == NULL)
        return no_memory(ps);

    ps->req->params.stop = list;
    ps->req->params.n_stop = n;

    if (v->type == DI_JSON_STRING) {
        path(ps, "stop");
        return stop_string(ps, v, list);
    }

    for (m = v->v.list.first; m != NULL; m = m->next, i++) {
        path(ps, "stop[%zu]", i);
        rc = stop_string(ps, m, &list[i]);
        if (rc != DI_OK)
            return rc;
    }

    return DI_OK;
}

static int
stop_token_ids(parser_t *ps, const di_json_t *v)
{
    const di_json_t *m;
    int32_t         *ids;
    int64_t          id;
    size_t           i = 0;
    int              rc;

    rc = di_field_array(v, "stop_token_ids", DI_CHAT_STOP_IDS_MAX, ps->e);
    if (rc != DI_OK)
        return rc;

    ids = di_arena_calloc(&ps->req->arena, v->v.list.n, sizeof(*ids));
    if (ids == NULL)
        return no_memory(ps);

    ps->req->params.stop_ids = ids;
    ps->req->params.n_stop_ids = v->v.list.n;

    for (m = v->v.list.first; m != NULL; m = m->next, i++) {
        path(ps, "stop_token_ids[%zu]", i);
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
logit_bias(parser_t *ps, const di_json_t *v)
{
    struct di_chat_bias_s *bias;
    const di_json_t       *m;
    char                   quoted[DI_JSON_QUOTE];
    int64_t                id;
    double                 d;
    size_t                 i = 0;
    int                    rc;

    rc = di_field_object(v, "logit_bias", ps->e);
    if (rc != DI_OK)
        return rc;

    if (v->v.list.n > DI_CHAT_BIAS_MAX)
        return di_field_invalid(ps->e, "logit_bias", "invalid_value",
                                "Invalid 'logit_bias': at most %d entries are"
                                " supported, but got %zu.", DI_CHAT_BIAS_MAX,
                                v->v.list.n);

    bias = di_arena_calloc(&ps->req->arena, v->v.list.n, sizeof(*bias));
    if (bias == NULL)
        return no_memory(ps);

    for (m = v->v.list.first; m != NULL; m = m->next, i++) {
        id = bias_id(&m->key);
        di_json_quote(m->key, quoted);

        if (id < 0 || id >= (int64_t) ps->limits.vocab)
            return di_field_invalid(ps->e, "logit_bias", "invalid_value",
                                    "Invalid key in 'logit_bias': '%s' is not"
                                    " a token id below %u.", quoted,
                                    (unsigned) ps->limits.vocab);

        rc = di_field_real(m, path(ps, "logit_bias.%s", quoted), -100, false,
                           100, &d, ps->e);
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
any_string(parser_t *ps, const di_json_t *v)
{
    di_str_t s;

    return di_field_str(v, ps->path, &s, ps->e);
}

static int
any_bool(parser_t *ps, const di_json_t *v)
{
    bool b;

    return di_field_bool(v, ps->path, &b, ps->e);
}

static int
any_object(parser_t *ps, const di_json_t *v)
{
    return di_field_object(v, ps->path, ps->e);
}

static int
store(parser_t *ps, const di_json_t *v)
{
    bool b;
    int  rc = di_field_bool(v, "store", &b, ps->e);

    if (rc == DI_OK && b)
        return di_field_refuse("store", "nothing is stored here", ps->e);
    return rc;
}

/* A string that must be one of two. */
static int
one_of(parser_t *ps, const di_json_t *v, const char *a, const char *b,
       const char *supported)
{
    di_str_t s;
    int      rc = di_field_str(v, ps->path, &s, ps->e);

    if (rc == DI_OK && !di_json_is(&s, a) && !di_json_is(&s, b))
        return unsupported_value(ps, ps->path, &s, supported);
    return rc;
}

static int
service_tier(parser_t *ps, const di_json_t *v)
{
    return one_of(ps, v, "auto", "default", "'auto' and 'default'");
}

static int
verbosity(parser_t *ps, const di_json_t *v)
{
    return one_of(ps, v, "medium", "medium", "'medium'");
}

static int
reasoning_effort(parser_t *ps, const di_json_t *v)
{
    return one_of(ps, v, "none", "none",
                  "'none', as the model has no reasoning mode");
}

/* tools and functions: an empty list offers nothing. */
static int
no_tools(parser_t *ps, const di_json_t *v)
{
    if (v->type != DI_JSON_ARRAY)
        return di_field_type(v, ps->path, "an array", ps->e);

    if (v->v.list.n > 0)
        return di_field_refuse(ps->path, NO_TOOLS, ps->e);

    return DI_OK;
}

/* tool_choice and function_call: without tools nothing can be forced. */
static int
no_choice(parser_t *ps, const di_json_t *v)
{
    if (v->type == DI_JSON_OBJECT)
        return di_field_refuse(ps->path, NO_TOOLS, ps->e);

    if (v->type != DI_JSON_STRING)
        return di_field_type(v, ps->path, "a string or an object", ps->e);

    return one_of(ps, v, "none", "auto", "'none' and 'auto', as " NO_TOOLS);
}

static int
response_format(parser_t *ps, const di_json_t *v)
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
modalities(parser_t *ps, const di_json_t *v)
{
    const di_json_t *m;
    size_t           i = 0;
    int              rc;

    rc = di_field_array(v, "modalities", 2, ps->e);

    for (m = v->v.list.first; rc == DI_OK && m != NULL; m = m->next, i++) {
        path(ps, "modalities[%zu]", i);
        rc = one_of(ps, m, "text", "text", "'text'");
    }

    return rc;
}

static int
refused(parser_t *ps, const di_json_t *v)
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
    { "messages", messages },
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
read_fields(parser_t *ps, const di_json_t *root)
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
            note_ignored(ps, "", m);
            continue;
        }

        if (m->type == DI_JSON_NULL)
            continue;

        path(ps, "%s", fields[i].name);
        rc = fields[i].read(ps, m);
        if (rc != DI_OK)
            return rc;
    }

    return DI_OK;
}

/* What only the whole request can tell. */
static int
check_together(parser_t *ps)
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
read_body(parser_t *ps, const char *body, size_t len)
{
    const di_json_t *root;
    di_json_t       *tree;
    di_err_t         err = { 0 };
    int              rc;

    rc = di_json_read(&ps->req->arena, body, len, ps->limits.depth, &tree,
                      &err);
    if (rc == DI_ENOMEM)
        return no_memory(ps);

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
        return no_memory(ps);

    return rc;
}

int
di_chat_parse(const char *body, size_t len, const di_chat_limits_t *limits,
              di_chat_req_t **req, di_api_err_t *e)
{
    parser_t ps = { .e = e };
    int      rc;

    if (limits != NULL)
        ps.limits = *limits;

    if (ps.limits.depth == 0)
        ps.limits.depth = DEPTH_DEFAULT;

    if (ps.limits.messages == 0)
        ps.limits.messages = MESSAGES_DEFAULT;

    ps.req = calloc(1, sizeof(*ps.req));
    if (ps.req == NULL)
        return no_memory(&ps);

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
