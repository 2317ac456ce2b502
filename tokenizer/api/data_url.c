/*
 * data_url.c - data: URLs of images, and base64, as the official codec reads
 * both.
 *
 * In a URL base64 is forgiving: escapes of the URL and white space are taken
 * out, padding may be missing, bits behind the last byte don't matter; a '#'
 * ends it.  In a field of its own it is strict, but for the length of the
 * padding.
 */

#include "req.h"

#include <string.h>

static bool
is_alphabet(unsigned char c)
{
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z')
           || (c >= '0' && c <= '9') || c == '+' || c == '/';
}

static unsigned
value_of(char c)
{
    return c >= 'a' ? (unsigned) (c - 'a') + 26
           : c >= 'A' ? (unsigned) (c - 'A')
           : c >= '0' ? (unsigned) (c - '0') + 52 : c == '+' ? 62 : 63;
}

bool
di_rq_base64(di_str_t *s)
{
    size_t   n = 0, pads, needed;
    unsigned last;

    while (n < s->len && is_alphabet((unsigned char) s->data[n]))
        n++;

    for (pads = 0; n + pads < s->len; pads++) {
        if (s->data[n + pads] != '=')
            return false;
    }

    needed = (4 - n % 4) % 4;
    if (needed == 3 || (needed > 0 && pads == 0))
        return false;

    last = needed == 0 ? 0 : value_of(s->data[n - 1]);
    s->len = n;
    return (last & (needed == 2 ? 15 : 3)) == 0;
}

static int
hex(char c)
{
    return c >= '0' && c <= '9' ? c - '0'
           : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10
           : -1;
}

/* The byte at *at, an escape undone; *at goes behind it. */
static unsigned char
unescaped(di_str_t s, size_t *at)
{
    const char *p = s.data + *at;

    if (*p == '%' && s.len - *at > 2 && hex(p[1]) >= 0 && hex(p[2]) >= 0) {
        *at += 3;
        return (unsigned char) (hex(p[1]) << 4 | hex(p[2]));
    }

    *at += 1;
    return (unsigned char) *p;
}

static bool
is_forgiving(di_str_t s)
{
    size_t        at = 0, n = 0, pads = 0;
    unsigned char c;

    while (at < s.len && s.data[at] != '#') {
        c = unescaped(s, &at);
        if (c != '\0' && strchr(" \t\n\f\r", c) != NULL)
            continue;
        if (c == '=') {
            pads++;
            continue;
        }
        if (pads > 0 || !is_alphabet(c))
            return false;
        n++;
    }

    return pads == 0 ? n % 4 != 1 : pads <= 2 && (n + pads) % 4 == 0;
}

static di_str_t
trim(di_str_t s)
{
    while (s.len > 0 && s.data[0] == ' ') {
        s.data++;
        s.len--;
    }

    while (s.len > 0 && s.data[s.len - 1] == ' ')
        s.len--;

    return s;
}

bool
di_rq_data_url(di_str_t url, di_data_url_t *out)
{
    const char *comma, *semicolon;
    di_str_t    head, word;

    memset(out, 0, sizeof(*out));
    if (url.len < 5 || strncasecmp(url.data, "data:", 5) != 0)
        return false;

    comma = memchr(url.data, ',', url.len);
    if (comma == NULL)
        return false;

    head = (di_str_t) { url.data + 5, (size_t) (comma - url.data) - 5 };

    semicolon = memrchr(head.data, ';', head.len);
    if (semicolon != NULL) {
        word.data = semicolon + 1;
        word.len = (size_t) (comma - word.data);
        while (word.len > 0 && word.data[0] == ' ') {
            word.data++;
            word.len--;
        }
        out->base64 = di_json_is(&word, "base64");
    }

    semicolon = memchr(head.data, ';', head.len);
    if (semicolon != NULL)
        head.len = (size_t) (semicolon - head.data);

    out->type = trim(head);
    out->good = is_forgiving((di_str_t) {
        comma + 1, url.len - (size_t) (comma + 1 - url.data),
    });
    return true;
}
