/*
 * params.c - strict: fields of sampling and all others that need no
 * conversion.
 *
 * One table names every field that the APIs document beside the conversation,
 * and those that vLLM added and clients use (top_k, min_p,
 * repetition_penalty, min_tokens, ignore_eos, stop_token_ids), each with the
 * APIs that have it.  Its handler does one of three things: honour the field,
 * accept a value that changes nothing in the answer (user, metadata), or
 * refuse by name what would change the answer and can't be honoured.
 *
 * Where the APIs leave a choice:
 * - up to 16 stop strings (OpenAI documents 4);
 * - both max_tokens and max_completion_tokens may be given if they agree.
 */

#include "req.h"

#include <float.h>
#include <string.h>

typedef int (*field_pt)(di_rq_t *rq, const di_json_t *v);

int
di_rq_unsupported_value(di_rq_t *rq, const char *at, const di_str_t *value,
                  const char *supported)
{
    char quoted[DI_JSON_QUOTE];

    di_json_quote(*value, quoted);
    return di_field_invalid(rq->e, at, "unsupported_value",
                            "Unsupported value: '%s' is '%s', supported: %s.",
                            at, quoted, supported);
}

/* -------------------------------------------------------- honoured fields */

/* A name or an id, which has at least one byte. */
static int
some_string(di_rq_t *rq, const di_json_t *v, di_str_t *out)
{
    int rc = di_field_str(v, rq->path, out, rq->e);

    if (rc == DI_OK && out->len == 0)
        return di_field_invalid(rq->e, rq->path, "invalid_value",
                                "Invalid '%s': empty string.", rq->path);
    return rc;
}

static int
model(di_rq_t *rq, const di_json_t *v)
{
    return some_string(rq, v, &rq->req->model);
}

static int
temperature(di_rq_t *rq, const di_json_t *v)
{
    return di_field_real(v, "temperature", 0, false, 2,
                         &rq->req->params.temperature, rq->e);
}

/* The smallest set of at least this probability has always one token: that
 * is what 0 asks for, and the engine's range begins above it. */
static int
top_p(di_rq_t *rq, const di_json_t *v)
{
    double *p = &rq->req->params.top_p;
    int     rc = di_field_real(v, "top_p", 0, false, 1, p, rq->e);

    if (rc == DI_OK && *p < FLT_MIN)
        *p = FLT_MIN;
    return rc;
}

static int
min_p(di_rq_t *rq, const di_json_t *v)
{
    return di_field_real(v, "min_p", 0, false, 1, &rq->req->params.min_p,
                         rq->e);
}

/* -1 is vLLM's way to say "off". */
static int
top_k(di_rq_t *rq, const di_json_t *v)
{
    int64_t k;
    int     rc = di_field_int(v, "top_k", -1, INT32_MAX, &k, rq->e);

    if (rc == DI_OK)
        rq->req->params.top_k = k < 0 ? 0 : k;
    return rc;
}

static int
presence_penalty(di_rq_t *rq, const di_json_t *v)
{
    return di_field_real(v, "presence_penalty", -2, false, 2,
                         &rq->req->params.presence_penalty, rq->e);
}

static int
frequency_penalty(di_rq_t *rq, const di_json_t *v)
{
    return di_field_real(v, "frequency_penalty", -2, false, 2,
                         &rq->req->params.frequency_penalty, rq->e);
}

static int
repetition_penalty(di_rq_t *rq, const di_json_t *v)
{
    return di_field_real(v, "repetition_penalty", 0, true, 10,
                         &rq->req->params.repetition_penalty, rq->e);
}

static int
seed(di_rq_t *rq, const di_json_t *v)
{
    rq->req->params.has_seed = true;
    return di_field_seed(v, "seed", &rq->req->params.seed, rq->e);
}

static int
n_choices(di_rq_t *rq, const di_json_t *v)
{
    return di_field_u32(v, "n", 1, DI_REQ_N_MAX, &rq->req->params.n, rq->e);
}

static int
max_tokens(di_rq_t *rq, const di_json_t *v)
{
    return di_field_u32(v, rq->path, 1, UINT32_MAX,
                        &rq->req->params.max_tokens, rq->e);
}

static int
max_completion_tokens(di_rq_t *rq, const di_json_t *v)
{
    return di_field_u32(v, "max_completion_tokens", 1, UINT32_MAX,
                        &rq->max_completion_tokens, rq->e);
}

static int
min_tokens(di_rq_t *rq, const di_json_t *v)
{
    return di_field_u32(v, "min_tokens", 0, UINT32_MAX,
                        &rq->req->params.min_tokens, rq->e);
}

static int
ignore_eos(di_rq_t *rq, const di_json_t *v)
{
    return di_field_bool(v, "ignore_eos", &rq->req->params.ignore_eos, rq->e);
}

static int
logprobs(di_rq_t *rq, const di_json_t *v)
{
    return di_field_bool(v, "logprobs", &rq->req->params.logprobs, rq->e);
}

static int
top_logprobs(di_rq_t *rq, const di_json_t *v)
{
    rq->req->params.has_top_logprobs = true;
    rq->req->params.logprobs |= rq->req->api == DI_API_RESPONSES;
    return di_field_u32(v, "top_logprobs", 0, DI_REQ_TOP_LOGPROBS_MAX,
                        &rq->req->params.top_logprobs, rq->e);
}

static int
stream(di_rq_t *rq, const di_json_t *v)
{
    return di_field_bool(v, "stream", &rq->req->params.stream, rq->e);
}

/* include_obfuscation pads events against traffic analysis; events are never
 * padded here, and the answer is the same either way. */
static int
stream_options(di_rq_t *rq, const di_json_t *v)
{
    const di_json_t *m;
    bool             ignored;
    int              rc;

    rc = di_field_object(v, "stream_options", rq->e);
    if (rc != DI_OK)
        return rc;

    rq->has_stream_options = true;

    for (m = v->v.list.first; m != NULL && rc == DI_OK; m = m->next) {
        if (m->type == DI_JSON_NULL)
            continue;

        if (di_json_is(&m->key, "include_usage"))
            rc = di_field_bool(m, "stream_options.include_usage",
                               &rq->req->params.include_usage, rq->e);

        else if (di_json_is(&m->key, "include_obfuscation"))
            rc = di_field_bool(m, "stream_options.include_obfuscation",
                               &ignored, rq->e);

        else
            di_rq_note_ignored(rq, "stream_options.", m);
    }

    return rc;
}

static int
stop_string(di_rq_t *rq, const di_json_t *v, di_str_t *out)
{
    int rc = di_field_str(v, rq->path, out, rq->e);

    if (rc == DI_OK && out->len == 0)
        return di_field_invalid(rq->e, rq->path, "empty_string",
                                "Invalid '%s': empty string. Expected a string"
                                " with minimum length 1.", rq->path);

    if (rc == DI_OK && out->len > DI_REQ_STOP_BYTES_MAX)
        return di_field_invalid(rq->e, rq->path, "string_above_max_length",
                                "Invalid '%s': string too long. Expected at"
                                " most %d bytes, but got %zu.", rq->path,
                                DI_REQ_STOP_BYTES_MAX, out->len);

    return rc;
}

static int
stop(di_rq_t *rq, const di_json_t *v)
{
    const di_json_t *m;
    di_str_t        *list;
    size_t           n = 1, i = 0;
    bool             messages = rq->req->api == DI_API_MESSAGES;
    int              rc;

    if (v->type == DI_JSON_ARRAY) {
        rc = di_field_array(v, rq->path, DI_REQ_STOPS_MAX, rq->e);
        if (rc != DI_OK)
            return rc;
        n = v->v.list.n;

    } else if (v->type != DI_JSON_STRING || messages) {
        return di_field_type(v, rq->path, messages ? "an array of strings"
                             : "a string or an array of strings", rq->e);
    }

    list = di_arena_calloc(&rq->req->arena, n, sizeof(*list));
    if (list == NULL)
        return di_rq_no_memory(rq);

    rq->req->params.stop = list;
    rq->req->params.n_stop = n;

    if (v->type == DI_JSON_STRING)
        return stop_string(rq, v, list);

    for (m = v->v.list.first; m != NULL; m = m->next, i++) {
        di_rq_path(rq, messages ? "stop_sequences[%zu]" : "stop[%zu]", i);
        rc = stop_string(rq, m, &list[i]);
        if (rc != DI_OK)
            return rc;
    }

    return DI_OK;
}

static int
stop_token_ids(di_rq_t *rq, const di_json_t *v)
{
    const di_json_t *m;
    int32_t         *ids;
    int64_t          id;
    size_t           i = 0;
    int              rc;

    rc = di_field_array(v, "stop_token_ids", DI_REQ_STOP_IDS_MAX, rq->e);
    if (rc != DI_OK)
        return rc;

    ids = di_arena_calloc(&rq->req->arena, v->v.list.n, sizeof(*ids));
    if (ids == NULL)
        return di_rq_no_memory(rq);

    rq->req->params.stop_ids = ids;
    rq->req->params.n_stop_ids = v->v.list.n;

    for (m = v->v.list.first; m != NULL; m = m->next, i++) {
        di_rq_path(rq, "stop_token_ids[%zu]", i);
        rc = di_field_int(m, rq->path, 0, (int64_t) rq->opt.vocab - 1, &id,
                          rq->e);
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
logit_bias(di_rq_t *rq, const di_json_t *v)
{
    struct di_req_bias_s *bias;
    const di_json_t       *m;
    char                   quoted[DI_JSON_QUOTE];
    int64_t                id;
    double                 d;
    size_t                 i = 0;
    int                    rc;

    rc = di_field_object(v, "logit_bias", rq->e);
    if (rc != DI_OK)
        return rc;

    if (v->v.list.n > DI_REQ_BIAS_MAX)
        return di_field_invalid(rq->e, "logit_bias", "invalid_value",
                                "Invalid 'logit_bias': at most %d entries are"
                                " supported, but got %zu.", DI_REQ_BIAS_MAX,
                                v->v.list.n);

    bias = di_arena_calloc(&rq->req->arena, v->v.list.n, sizeof(*bias));
    if (bias == NULL)
        return di_rq_no_memory(rq);

    for (m = v->v.list.first; m != NULL; m = m->next, i++) {
        id = bias_id(&m->key);
        di_json_quote(m->key, quoted);

        if (id < 0 || id >= (int64_t) rq->opt.vocab)
            return di_field_invalid(rq->e, "logit_bias", "invalid_value",
                                    "Invalid key in 'logit_bias': '%s' is not"
                                    " a token id below %u.", quoted,
                                    (unsigned) rq->opt.vocab);

        di_rq_path(rq, "logit_bias.%s", quoted);
        rc = di_field_real(m, rq->path, -100, false, 100, &d, rq->e);
        if (rc != DI_OK)
            return rc;

        bias[i].id = (int32_t) id;
        bias[i].bias = (float) d;
    }

    rq->req->params.bias = bias;
    rq->req->params.n_bias = v->v.list.n;
    return DI_OK;
}

/* ------------------------------------- accepted, or refused for its value */

static int
any_string(di_rq_t *rq, const di_json_t *v)
{
    di_str_t s;

    return di_field_str(v, rq->path, &s, rq->e);
}

static int
any_object(di_rq_t *rq, const di_json_t *v)
{
    return di_field_object(v, rq->path, rq->e);
}

/* Of any type. */
static int
any_value(di_rq_t *rq, const di_json_t *v)
{
    (void) rq;
    (void) v;
    return DI_OK;
}

/* Responses are stored by the caller; chats are not. */
static int
store(di_rq_t *rq, const di_json_t *v)
{
    bool b;
    int  rc = di_field_bool(v, "store", &b, rq->e);

    if (rc == DI_OK && rq->req->api == DI_API_RESPONSES)
        rq->req->store = b;

    else if (rc == DI_OK && b)
        return di_field_refuse("store", "nothing is stored here", rq->e);
    return rc;
}

/* A string that must be one of two. */
static int
one_of(di_rq_t *rq, const di_json_t *v, const char *a, const char *b,
       const char *supported)
{
    di_str_t s;
    int      rc = di_field_str(v, rq->path, &s, rq->e);

    if (rc == DI_OK && !di_json_is(&s, a) && !di_json_is(&s, b))
        return di_rq_unsupported_value(rq, rq->path, &s, supported);
    return rc;
}

static int
service_tier(di_rq_t *rq, const di_json_t *v)
{
    if (rq->req->api == DI_API_MESSAGES)
        return one_of(rq, v, "auto", "standard_only",
                      "'auto' and 'standard_only'");

    return one_of(rq, v, "auto", "default", "'auto' and 'default'");
}

static int
verbosity(di_rq_t *rq, const di_json_t *v)
{
    return one_of(rq, v, "medium", "medium", "'medium'");
}

/* Messages: there is one speed, and it is as fast as it can be. */
static int
speed(di_rq_t *rq, const di_json_t *v)
{
    return one_of(rq, v, "standard", "standard", "'standard'");
}

/* Messages: where to compute. */
static int
inference_geo(di_rq_t *rq, const di_json_t *v)
{
    return one_of(rq, v, "global", "global", "'global', as this server knows"
                  " no regions");
}

/* What came before tools; OpenAI refuses an empty list, too. */
static int
functions(di_rq_t *rq, const di_json_t *v)
{
    if (v->type != DI_JSON_ARRAY)
        return di_field_type(v, rq->path, "an array", rq->e);

    return di_field_refuse(rq->path, "use tools", rq->e);
}

static int
function_call(di_rq_t *rq, const di_json_t *v)
{
    if (v->type == DI_JSON_OBJECT)
        return di_field_refuse(rq->path, "use tool_choice", rq->e);

    return one_of(rq, v, "none", "auto", "'none' and 'auto'; use"
                  " tool_choice");
}

static int
modalities(di_rq_t *rq, const di_json_t *v)
{
    const di_json_t *m;
    size_t           i = 0;
    int              rc;

    rc = di_field_array(v, "modalities", 2, rq->e);

    for (m = v->v.list.first; rc == DI_OK && m != NULL; m = m->next, i++) {
        di_rq_path(rq, "modalities[%zu]", i);
        rc = one_of(rq, m, "text", "text", "'text'");
    }

    return rc;
}

static int
parallel_tool_calls(di_rq_t *rq, const di_json_t *v)
{
    return di_field_bool(v, rq->path, &rq->req->params.parallel_tool_calls,
                         rq->e);
}

static int
previous_response_id(di_rq_t *rq, const di_json_t *v)
{
    return some_string(rq, v, &rq->req->previous);
}

static int
background(di_rq_t *rq, const di_json_t *v)
{
    bool b;
    int  rc = di_field_bool(v, rq->path, &b, rq->e);

    if (rc == DI_OK && b)
        return di_field_refuse(rq->path, "answers are made while the client"
                               " waits", rq->e);
    return rc;
}

static int
truncation(di_rq_t *rq, const di_json_t *v)
{
    return one_of(rq, v, "disabled", "disabled",
                  "'disabled', as nothing is left out silently");
}

/* What the first two add is in every answer; the others are of tools that this
 * server doesn't have. */
static int
include(di_rq_t *rq, const di_json_t *v)
{
    static const char *const names[] = {
        "reasoning.encrypted_content", "message.output_text.logprobs",
        "message.input_image.image_url", "file_search_call.results",
        "web_search_call.results", "web_search_call.action.sources",
        "computer_call_output.output.image_url",
        "code_interpreter_call.outputs",
    };
    const size_t     n = sizeof(names) / sizeof(names[0]);
    const di_json_t *m;
    size_t           i = 0, k;
    di_str_t         s;
    int              rc = di_field_array(v, "include", 32, rq->e);

    for (m = v->v.list.first; rc == DI_OK && m != NULL; m = m->next, i++) {
        di_rq_path(rq, "include[%zu]", i);
        rc = di_field_str(m, rq->path, &s, rq->e);

        for (k = 0; rc == DI_OK && k < n && !di_json_is(&s, names[k]); k++)
            continue;

        if (rc == DI_OK && k == n)
            rc = di_rq_unsupported_value(rq, rq->path, &s, "what OpenAI's API"
                                         " documents");
    }

    return rc;
}

static int
max_tool_calls(di_rq_t *rq, const di_json_t *v)
{
    int64_t n;

    return di_field_int(v, rq->path, 1, INT64_MAX, &n, rq->e);
}

/* An empty list asks for nothing. */
static int
only_empty(di_rq_t *rq, const di_json_t *v, const char *why)
{
    if (v->type == DI_JSON_ARRAY && v->v.list.n == 0)
        return DI_OK;

    return di_field_refuse(rq->path, why, rq->e);
}

static int
empty_list(di_rq_t *rq, const di_json_t *v)
{
    return only_empty(rq, v, "this server has none");
}

static int
echo(di_rq_t *rq, const di_json_t *v)
{
    return di_field_bool(v, rq->path, &rq->req->params.echo, rq->e);
}

/* Completions: the number of alternatives turns them on. */
static int
logprobs_count(di_rq_t *rq, const di_json_t *v)
{
    rq->req->params.logprobs = true;
    return di_field_u32(v, rq->path, 0, DI_REQ_TOP_LOGPROBS_MAX,
                        &rq->req->params.top_logprobs, rq->e);
}

static int
best_of(di_rq_t *rq, const di_json_t *v)
{
    return di_field_u32(v, rq->path, 1, DI_REQ_N_MAX, &rq->best_of, rq->e);
}

/* vLLM's: what changes the answer is refused like the APIs' own fields. */
static int
bad_words(di_rq_t *rq, const di_json_t *v)
{
    return only_empty(rq, v, "use logit_bias");
}

static int
must_be(di_rq_t *rq, const di_json_t *v, bool wanted)
{
    bool b;
    int  rc = di_field_bool(v, rq->path, &b, rq->e);

    if (rc == DI_OK && b != wanted)
        return di_field_refuse(rq->path, wanted ? "it can only be true"
                               : "it can only be false", rq->e);
    return rc;
}

static int
must_be_true(di_rq_t *rq, const di_json_t *v)
{
    return must_be(rq, v, true);
}

static int
must_be_false(di_rq_t *rq, const di_json_t *v)
{
    return must_be(rq, v, false);
}

static int
refused(di_rq_t *rq, const di_json_t *v)
{
    (void) v;
    return di_field_refuse(rq->path, "the model and this server can't do that",
                           rq->e);
}

/* ------------------------------------------------------------- the fields */

enum {
    C = 1 << DI_API_CHAT, R = 1 << DI_API_RESPONSES, M = 1 << DI_API_MESSAGES,
    P = 1 << DI_API_COMPLETIONS, ALL = C | R | M | P,
};

/* A field of another length is passed over without a look at its name. */
static const struct {
    const char *name;
    uint16_t    len;
    uint16_t    apis;
    field_pt    read;
} fields[] = {
#define F(name, apis, read)  { name, sizeof(name) - 1, apis, read }
    F("model", ALL, model),
    F("temperature", ALL, temperature),
    F("top_p", ALL, top_p),
    F("top_k", ALL, top_k),
    F("min_p", ALL, min_p),
    F("presence_penalty", C | R | P, presence_penalty),
    F("frequency_penalty", C | R | P, frequency_penalty),
    F("repetition_penalty", ALL, repetition_penalty),
    F("seed", ALL, seed),
    F("n", C | P, n_choices),
    F("max_tokens", C | M | P, max_tokens),
    F("max_output_tokens", R, max_tokens),
    F("max_completion_tokens", C, max_completion_tokens),
    F("min_tokens", ALL, min_tokens),
    F("ignore_eos", ALL, ignore_eos),
    F("stop", C | P, stop),
    F("stop_sequences", M, stop),
    F("stop_token_ids", ALL, stop_token_ids),
    F("logit_bias", C | P, logit_bias),
    F("logprobs", C, logprobs),
    F("logprobs", P, logprobs_count),
    F("top_logprobs", C | R, top_logprobs),
    F("stream", ALL, stream),
    F("stream_options", C | R | P, stream_options),
    F("parallel_tool_calls", C | R, parallel_tool_calls),
    F("previous_response_id", R, previous_response_id),
    F("echo", P, echo),

    F("user", C | R | P, any_string),
    F("safety_identifier", C | R, any_string),
    F("prompt_cache_key", C | R, any_string),
    F("prompt_cache_retention", C | R, any_string),
    F("prompt_cache_options", C | R, any_object),
    F("cache_control", M, any_object),
    F("metadata", C | R | M, any_object),
    F("user_profile_id", M, any_string),
    F("workspace_id", M, any_string),
    F("billing_policy", M, any_object),
    F("fallback_credit_token", M, any_value),
    F("access_programs", R, any_object),
    F("background_options", R, any_object),
    F("image", R, any_object),
    F("store", C | R, store),
    F("service_tier", C | R | M, service_tier),
    F("speed", M, speed),
    F("inference_geo", M, inference_geo),
    F("verbosity", C, verbosity),
    F("functions", C, functions),
    F("function_call", C, function_call),
    F("modalities", C, modalities),
    F("include", R, include),
    F("max_tool_calls", R, max_tool_calls),
    F("truncation", R, truncation),
    F("background", R, background),
    F("mcp_servers", M, empty_list),
    F("best_of", P, best_of),

    F("bad_words", ALL, bad_words),
    F("use_beam_search", ALL, must_be_false),
    F("include_stop_str_in_output", ALL, must_be_false),
    F("continue_final_message", C, must_be_false),
    F("skip_special_tokens", ALL, must_be_true),
    F("allowed_token_ids", ALL, refused),
    F("prompt_logprobs", ALL, refused),
    F("truncate_prompt_tokens", ALL, refused),
    F("logits_processors", ALL, refused),
    F("cache_salt", ALL, refused),
    F("chat_template", C, refused),
    F("documents", C, refused),

    F("moderation", C | R, refused),
    F("conversation", R, refused),
    F("prompt", R, refused),
    F("container", M, refused),
    F("context_management", R | M, refused),
    F("compaction", M, refused),
    F("diagnostics", M, refused),
    F("fallbacks", M, refused),
    F("thread", M, refused),
    F("suffix", P, refused),
#undef F
};

int
di_rq_param(di_rq_t *rq, const di_json_t *v, bool *known)
{
    const size_t n = sizeof(fields) / sizeof(fields[0]);
    unsigned     api = 1u << rq->req->api;
    size_t       i;

    for (i = 0; i < n; i++) {
        if (fields[i].len != v->key.len || !(fields[i].apis & api)
            || memcmp(fields[i].name, v->key.data, v->key.len) != 0)
            continue;

        *known = true;
        di_rq_path(rq, "%s", fields[i].name);
        return fields[i].read(rq, v);
    }

    *known = false;
    return DI_OK;
}

/* What only the whole request can tell. */
int
di_rq_check_params(di_rq_t *rq)
{
    di_req_params_t *p = &rq->req->params;
    uint32_t         other = rq->max_completion_tokens;

    if (other != 0 && p->max_tokens != 0 && other != p->max_tokens)
        return di_field_invalid(rq->e, "max_completion_tokens",
                                "invalid_value", "'max_tokens' (%u) and"
                                " 'max_completion_tokens' (%u) differ; give"
                                " one of them.", (unsigned) p->max_tokens,
                                (unsigned) other);

    if (other != 0)
        p->max_tokens = other;

    if (p->max_tokens != 0 && p->min_tokens > p->max_tokens)
        return di_field_invalid(rq->e, "min_tokens", "invalid_value",
                                "'min_tokens' (%u) is above the maximum asked"
                                " for (%u).", (unsigned) p->min_tokens,
                                (unsigned) p->max_tokens);

    if (rq->best_of != 0 && rq->best_of != p->n)
        return di_field_refuse("best_of", "no answers are thrown away; use n",
                               rq->e);

    if (p->has_top_logprobs && !p->logprobs)
        return di_field_invalid(rq->e, "top_logprobs", "invalid_value",
                                "'top_logprobs' needs 'logprobs' set to"
                                " true.");

    if (rq->has_stream_options && !p->stream)
        return di_field_invalid(rq->e, "stream_options", "invalid_value",
                                "'stream_options' is only allowed when"
                                " 'stream' is true.");

    return DI_OK;
}
