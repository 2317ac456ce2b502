/*
 * api_err.c - errors as the OpenAI-shaped APIs show them.
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

void
di_chat_write_error(di_sbuf_t *b, const di_api_err_t *e)
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

void
di_chat_write_error_event(di_sbuf_t *b, const di_api_err_t *e)
{
    di_sbuf_lit(b, "data: ");
    di_chat_write_error(b, e);
    di_sbuf_lit(b, "\n\n");
}
