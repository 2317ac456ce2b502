/*
 * api_err.c - errors as each API shows them.
 *
 * Messages quote what clients sent; whatever that was, the texts kept here
 * are valid UTF-8, so that an error never fails to be written.
 */

#include "json.h"
#include "di_utf8.h"

#include <stdarg.h>
#include <string.h>

/* Make s valid UTF-8 in place: a character that was cut at the end is
 * dropped, every other ill-formed byte becomes '?'. */
static void
clean(char *s)
{
    size_t    n = strlen(s), len;
    di_utf8_t kind;

    for (; n > 0; s += len, n -= len) {
        kind = di_utf8_step(s, n, &len);

        if (kind == DI_UTF8_CUT) {
            *s = '\0';
            return;
        }

        if (kind == DI_UTF8_BAD)
            memset(s, '?', len);
    }
}

static void
copy(char *dst, size_t size, const char *src)
{
    snprintf(dst, size, "%s", src == NULL ? "" : src);
    clean(dst);
}

void
di_api_err_set(di_api_err_t *e, int status, const char *type,
               const char *code, const char *param, const char *fmt, ...)
{
    va_list ap;

    e->status = status;
    copy(e->type, sizeof(e->type), type);
    copy(e->code, sizeof(e->code), code);
    copy(e->param, sizeof(e->param), param);

    va_start(ap, fmt);
    (void) vsnprintf(e->message, sizeof(e->message), fmt, ap);
    va_end(ap);
    clean(e->message);
}

static void
add_nullable(di_sbuf_t *b, const char *s)
{
    if (s[0] == '\0')
        di_sbuf_lit(b, "null");
    else
        di_json_add_string(b, s, strlen(s));
}

static void
openai_error(di_sbuf_t *b, const di_api_err_t *e)
{
    di_sbuf_lit(b, "{\"error\":{\"message\":");
    di_json_add_string(b, e->message, strlen(e->message));
    di_sbuf_lit(b, ",\"type\":");
    di_json_add_string(b, e->type, strlen(e->type));
    di_sbuf_lit(b, ",\"param\":");
    add_nullable(b, e->param);
    di_sbuf_lit(b, ",\"code\":");
    add_nullable(b, e->code);
    di_sbuf_lit(b, "}}");
}

/* Anthropic's name for what an HTTP status says. */
static const char *
anthropic_type(int status)
{
    switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 503: return "overloaded_error";
    case 504: return "timeout_error";
    }

    return status >= 500 ? "api_error" : "invalid_request_error";
}

static void
anthropic_error(di_sbuf_t *b, const di_api_err_t *e, const char *request_id)
{
    di_sbuf_lit(b, "{\"type\":\"error\",\"error\":{\"type\":\"");
    di_sbuf_add(b, anthropic_type(e->status),
                strlen(anthropic_type(e->status)));
    di_sbuf_lit(b, "\",\"message\":");
    di_json_add_string(b, e->message, strlen(e->message));
    di_sbuf_lit(b, "},\"request_id\":");
    add_nullable(b, request_id == NULL ? "" : request_id);
    di_sbuf_lit(b, "}");
}

void
di_api_write_error(di_sbuf_t *b, di_api_t api, di_codec_t codec,
                   const di_api_err_t *e, const char *request_id)
{
    if (api == DI_API_MESSAGES && codec == DI_CODEC_STRICT)
        anthropic_error(b, e, request_id);
    else
        openai_error(b, e);
}

/* The stream event of Responses, which is flat. */
static void
responses_event(di_sbuf_t *b, const di_api_err_t *e, uint64_t sequence)
{
    di_sbuf_lit(b, "{\"type\":\"error\",\"code\":");
    add_nullable(b, e->code[0] != '\0' ? e->code : e->type);
    di_sbuf_lit(b, ",\"message\":");
    di_json_add_string(b, e->message, strlen(e->message));
    di_sbuf_lit(b, ",\"param\":");
    add_nullable(b, e->param);
    di_sbuf_lit(b, ",\"sequence_number\":");
    di_json_add_u64(b, sequence);
    di_sbuf_lit(b, "}");
}

void
di_api_write_error_event(di_sbuf_t *b, di_api_t api, di_codec_t codec,
                         const di_api_err_t *e, const char *request_id,
                         uint64_t sequence)
{
    if (api == DI_API_RESPONSES || api == DI_API_MESSAGES)
        di_sbuf_lit(b, "event: error\n");

    di_sbuf_lit(b, "data: ");

    if (api == DI_API_RESPONSES)
        responses_event(b, e, sequence);
    else
        di_api_write_error(b, api, codec, e, request_id);

    di_sbuf_lit(b, "\n\n");
}
