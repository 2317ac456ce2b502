/*
 * common.c - rules that the APIs share: thinking and effort, reasoning of
 * earlier turns, the word "json", images, and the official ranges of sampling
 * fields.
 */

#include "req.h"

#include <strings.h>
#include <string.h>

#define LINK_MAX  8192           /* bytes of a URL that is a link           */

/* --------------------------------------------------------------- thinking */

static di_effort_t
fold_effort(const di_json_t *v)
{
    static const struct {
        const char *name;
        di_effort_t effort;
    } efforts[] = {
        { "minimal", DI_EFFORT_LOW }, { "low", DI_EFFORT_LOW },
        { "medium", DI_EFFORT_HIGH }, { "high", DI_EFFORT_HIGH },
        { "xhigh", DI_EFFORT_XHIGH }, { "max", DI_EFFORT_MAX },
        { "ultra", DI_EFFORT_MAX },
    };
    size_t i;

    for (i = 0; i < sizeof(efforts) / sizeof(efforts[0]); i++) {
        if (di_rq_is(v, efforts[i].name))
            return efforts[i].effort;
    }

    return DI_EFFORT_NONE;
}

/* Strict: a model without thinking can only be told not to think. */
static int
cannot_think(di_rq_t *rq, const di_json_t *type, const di_json_t *effort,
             const char *effort_path)
{
    const di_json_t *v = type != NULL && !di_rq_is(type, "disabled") ? type
                         : effort != NULL && !di_rq_is(effort, "none")
                         ? effort : NULL;
    char             quoted[DI_JSON_QUOTE];

    if (v == NULL)
        return DI_OK;

    di_json_quote(v->v.str, quoted);
    return di_field_invalid(rq->e, v == type ? "thinking.type" : effort_path,
                            "unsupported_value", "Unsupported value: '%s' is"
                            " '%s', supported: '%s', as the model has no"
                            " reasoning mode.", v == type ? "thinking.type"
                            : effort_path, quoted,
                            v == type ? "disabled" : "none");
}

int
di_rq_set_thinking(di_rq_t *rq, const di_json_t *type, const di_json_t *effort,
                   const char *effort_path)
{
    di_conv_t  *conv = &rq->req->conv;
    di_effort_t folded = fold_effort(effort);

    if (!rq->official && !(rq->opt.caps & DI_CAN_THINK))
        return cannot_think(rq, type, effort, effort_path);

    if (!rq->official && (rq->opt.caps & DI_MUST_THINK)
        && (di_rq_is(type, "disabled") || di_rq_is(effort, "none")))
        return di_field_invalid(rq->e, type != NULL ? "thinking.type"
                                : effort_path, "unsupported_value",
                                "Unsupported value: this model always"
                                " thinks.");

    if (type != NULL)
        conv->thinking = !di_rq_is(type, "disabled");
    else if (effort != NULL)
        conv->thinking = folded != DI_EFFORT_NONE;
    else
        conv->thinking = !rq->opt.no_thinking
                         || (rq->opt.caps & DI_MUST_THINK) != 0;

    if (conv->thinking)
        conv->effort = folded == DI_EFFORT_NONE ? DI_EFFORT_HIGH : folded;

    rq->req->parsing.stage = conv->thinking ? DI_STAGE_REASONING_START
                                            : DI_STAGE_NONE;
    return DI_OK;
}

/* "call_", two digits, "_ET_": the mark of a call that was made without any
 * reasoning. */
static bool
had_no_reasoning(di_str_t id)
{
    return id.len >= 11 && memcmp(id.data, "call_", 5) == 0
           && id.data[5] >= '0' && id.data[5] <= '9'
           && id.data[6] >= '0' && id.data[6] <= '9'
           && memcmp(id.data + 7, "_ET_", 4) == 0;
}

static const char not_given[] = "";     /* known by its address            */

/* Is the reasoning of these calls missing? */
static bool
lacks_reasoning(const di_msg_t *m)
{
    size_t i;
    bool   marked = false;

    for (i = 0; i < m->n_calls; i++)
        marked |= had_no_reasoning(m->calls[i].id);

    return m->n_calls > 0 && m->reasoning.data == not_given && !marked;
}

int
di_rq_reasoning(di_rq_t *rq, const char *field)
{
    di_conv_t *conv = &rq->req->conv;
    di_msg_t  *m;
    size_t     i;
    bool       lacks = false;

    for (i = 0; i < conv->n_msgs; i++) {
        m = &rq->req->msgs[i];
        if (m->role == DI_ROLE_USER)
            lacks = false;

        if (m->role != DI_ROLE_ASSISTANT)
            continue;

        if (!conv->thinking && rq->req->family != DI_FAMILY_PLAIN)
            m->reasoning = (di_str_t) { NULL, 0 };
        else if (m->reasoning.data == NULL)
            m->reasoning = (di_str_t) { not_given, 0 };

        lacks |= conv->thinking && lacks_reasoning(m);
    }

    return !lacks || !rq->opt.reject_missing_reasoning ? DI_OK
           : di_rq_fail(rq, "messages", "The `%s` in the thinking mode must be"
                        " passed back to the API.", field);
}

/* ------------------------------------------------------------------- json */

static bool
has_json(di_str_t s)
{
    size_t i;

    for (i = 0; i + 4 <= s.len; i++) {
        if ((s.data[i] | 0x20) == 'j' && strncasecmp(s.data + i, "json", 4)
            == 0)
            return true;
    }

    return false;
}

bool
di_rq_has_word_json(const di_rq_t *rq)
{
    const di_conv_t *conv = &rq->req->conv;
    size_t           i;

    for (i = 0; i < conv->n_msgs; i++) {
        if (has_json(conv->msgs[i].content))
            return true;
    }

    return false;
}

/* ----------------------------------------------------------------- images */

static bool
begins(di_str_t s, const char *with)
{
    size_t n = strlen(with);

    return s.len >= n && strncasecmp(s.data, with, n) == 0;
}

static bool
is_image_type(di_str_t type)
{
    static const char *const known[] = {
        "image/webp", "image/png", "image/jpeg", "image/jpg", "image/gif",
    };
    size_t i;

    for (i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (type.len == strlen(known[i])
            && strncasecmp(type.data, known[i], type.len) == 0)
            return true;
    }

    return false;
}

static di_detail_t
image_detail(const di_json_t *v)
{
    return di_rq_is(v, "low") ? DI_DETAIL_LOW
           : di_rq_is(v, "original") ? DI_DETAIL_ORIGINAL
           : di_rq_is(v, "auto") ? DI_DETAIL_AUTO : DI_DETAIL_HIGH;
}

#define FORMATS(what)                                                       \
    "Please make sure your " what " is valid and has one of the following"  \
    " formats: webp, png, jpeg, and gif."

/* A file that holds an image, as a data URL. */
int
di_rq_file_data(di_rq_t *rq, const char *at, di_str_t url, di_image_t *image)
{
    di_data_url_t data;

    image->url = url;
    image->data = true;
    image->detail = DI_DETAIL_HIGH;

    if (!di_rq_data_url(url, &data))
        return di_rq_fail(rq, at, "%s: file_data is not a valid base64 data"
                          " url", at);

    if (!is_image_type(data.type))
        return di_rq_fail(rq, at, "%s: You have uploaded an unsupported file."
                          " " FORMATS("file"), at);

    if (!data.good)
        return di_rq_fail(rq, at, "%s: file_data is not a valid base64 data"
                          " url", at);

    return data.base64 ? DI_OK
           : di_rq_fail(rq, at, "%s: Unsupported image_url format", at);
}

int
di_rq_image_url(di_rq_t *rq, const char *at, const char *long_at, di_str_t url,
                const di_json_t *detail, di_image_t *image)
{
    di_data_url_t data;

    if (!rq->official && !(rq->opt.caps & DI_CAN_SEE))
        return di_field_invalid(rq->e, at, "unsupported_content", "'%s' is an"
                                " image: the model has no vision.", at);

    memset(image, 0, sizeof(*image));
    image->url = url;
    image->detail = image_detail(detail);
    image->data = begins(url, "data:");
    if (!rq->sees)
        return DI_OK;

    if (begins(url, "http://") || begins(url, "https://")) {
        if (url.len <= LINK_MAX)
            return DI_OK;
        return di_rq_fail(rq, at, "%s external link length %zu too long, max"
                          " link length %d. Consider passing file data"
                          " directly with base64 data url instead.", long_at,
                          url.len, LINK_MAX);
    }

    if (!di_rq_data_url(url, &data) || !data.base64)
        return di_rq_fail(rq, at, "%s: Unsupported image_url format", at);

    if (!is_image_type(data.type))
        return di_rq_fail(rq, at, "%s: You have uploaded an unsupported image."
                          " " FORMATS("image"), at);

    return data.good ? DI_OK
           : di_rq_fail(rq, at, "%s: Invalid base64 data", at);
}

/* --------------------------------------------------- official sampling --- */

static bool
in_range(const di_json_t *v, float min, float max)
{
    float f;

    if (v == NULL)
        return true;

    f = (float) di_rq_number(v);
    return f >= min && f <= max;
}

/* What was asked for is read as f32; thinking has its own. */
int
di_rq_official_temperature(di_rq_t *rq)
{
    const di_json_t *v = di_rq_get(rq->req->root, "temperature");

    if (!in_range(v, 0, 2))
        return di_rq_fail(rq, NULL, "Invalid temperature value, the valid"
                          " range of temperature is [0, 2]");

    if (v != NULL && !rq->req->conv.thinking)
        rq->req->params.temperature = (float) di_rq_number(v);

    return DI_OK;
}

int
di_rq_official_top_p(di_rq_t *rq)
{
    const di_json_t *v = di_rq_get(rq->req->root, "top_p");
    bool             thinking = rq->req->conv.thinking;
    float            f = v == NULL ? 1 : (float) di_rq_number(v);

    if (!(f > 0 && f <= 1))
        return di_rq_fail(rq, NULL, "Invalid top_p value, the valid range of"
                          " top_p is (0, 1.0]");

    /* V4 has no say while it thinks, V4.1 none while it doesn't. */
    if (thinking == (rq->req->family == DI_FAMILY_V41))
        rq->req->params.top_p = thinking && f < 0.95f ? 0.95f : f;
    else if (thinking && rq->req->conv.n_tools > 0)
        rq->req->params.top_p = 0.95f;

    return DI_OK;
}

int
di_rq_official_top_logprobs(di_rq_t *rq)
{
    const di_json_t *v = di_rq_get(rq->req->root, "top_logprobs");
    di_req_params_t *p = &rq->req->params;

    if (v == NULL)
        return DI_OK;

    if (di_rq_number(v) > DI_REQ_TOP_LOGPROBS_MAX)
        return di_rq_fail(rq, NULL, "Invalid top_logprobs value, the valid"
                          " range of top_logprobs is [0, 20].");

    p->has_top_logprobs = true;
    p->top_logprobs = (uint32_t) v->v.i;
    return DI_OK;
}

int
di_rq_official_max_tokens(di_rq_t *rq, const char *name, bool lower)
{
    const di_json_t *v = di_rq_get(rq->req->root, name);
    uint32_t         bound, asked;

    bound = rq->req->conv.thinking ? rq->opt.max_tokens_thinking
                                   : rq->opt.max_tokens;
    rq->req->bound = bound;
    if (v == NULL)
        return DI_OK;

    asked = (uint32_t) v->v.i;
    if (asked == 0 || (asked > bound && !lower))
        return di_rq_fail(rq, NULL, "Invalid max_tokens value, the valid range"
                          " of max_tokens is [1, %u]", bound);

    rq->req->params.max_tokens = asked < bound ? asked : bound;
    return DI_OK;
}

static int
empty_stop(di_rq_t *rq, const char *name)
{
    return di_rq_fail(rq, NULL, "Invalid '%s': empty string. Expected a string"
                      " with minimum length 1, but got an empty string"
                      " instead.", name);
}

int
di_rq_official_stops(di_rq_t *rq, const char *name)
{
    const di_json_t *v = di_rq_get(rq->req->root, name), *m;
    bool             one = v != NULL && v->type == DI_JSON_STRING;
    size_t           n = v == NULL ? 0 : one ? 1 : v->v.list.n, i = 0;
    di_str_t        *list;

    if (n == 0)
        return DI_OK;

    if (n > DI_REQ_STOPS_MAX)
        return di_rq_fail(rq, NULL, "Stop string array too long: %zu", n);

    list = di_arena_calloc(&rq->req->arena, n, sizeof(*list));
    if (list == NULL)
        return di_rq_no_memory(rq);

    for (m = one ? v : v->v.list.first; i < n; m = m->next, i++) {
        list[i] = m->v.str;
        if (m->v.str.len == 0)
            return empty_stop(rq, one ? "stop"
                              : di_rq_path(rq, "stop[%zu]", i));
    }

    rq->req->params.stop = list;
    rq->req->params.n_stop = n;
    return DI_OK;
}

/* ------------------------------------------------------------- max tokens */

#define DEFAULT_PLAIN     8192
#define DEFAULT_THINKING  65536
#define DEFAULT_MAX       131072

/* The official rule; nothing that can't fit is cut silently but the default. */
static int
official_limit(const di_req_t *req, uint32_t prompt, uint32_t context,
               uint32_t *max, di_api_err_t *e)
{
    uint32_t asked = req->params.max_tokens;
    uint64_t sum = (uint64_t) prompt + asked;

    if (sum > context) {
        di_api_err_set(e, 400, "invalid_request_error",
                       "invalid_request_error", NULL,
                       "This model's maximum context length is %u tokens."
                       " However, you requested %llu tokens (%u in the"
                       " messages, %u in the completion). Please reduce the"
                       " length of the messages or completion.", context,
                       (unsigned long long) sum, prompt, asked);
        return DI_EINVAL;
    }

    *max = asked != 0 ? asked
           : !req->conv.thinking ? DEFAULT_PLAIN
           : req->conv.effort == DI_EFFORT_MAX ? DEFAULT_MAX
           : DEFAULT_THINKING;

    if (asked == 0 && *max > context - prompt)
        *max = context - prompt;
    if (*max == 0)
        *max = 1;

    return DI_OK;
}

int
di_req_max_tokens(const di_req_t *req, uint32_t prompt_tokens,
                  uint32_t context, uint32_t *max, di_api_err_t *e)
{
    uint32_t asked = req->params.max_tokens;

    if (req->codec == DI_CODEC_OFFICIAL)
        return official_limit(req, prompt_tokens, context, max, e);

    if (prompt_tokens >= context) {
        di_api_err_set(e, 400, "invalid_request_error",
                       "context_length_exceeded", "messages",
                       "This model's maximum context length is %u tokens, and"
                       " the prompt has %u.", context, prompt_tokens);
        return DI_EINVAL;
    }

    *max = context - prompt_tokens;
    if (asked != 0 && asked < *max)
        *max = asked;

    return DI_OK;
}
