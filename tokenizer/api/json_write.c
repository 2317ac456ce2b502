/*
 * json_write.c - the growing buffer, and JSON text written to it.
 *
 * Escaping works in runs: a table says for each byte whether it can be copied
 * as it is; runs of such bytes are copied whole.  Numbers are printed here
 * and not by printf(), whose decimal point follows the process's locale.
 */

#include "json.h"
#include "di_utf8.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Why a byte can't be copied at once. */
enum { PLAIN = 0, ESCAPE, HIGH };

static const unsigned char class_of[256] = {
    [0x00 ... 0x1f] = ESCAPE,
    ['"'] = ESCAPE,
    ['\\'] = ESCAPE,
    [0x80 ... 0xff] = HIGH,
};

bool
di_sbuf_grow(di_sbuf_t *b, size_t more)
{
    size_t cap;
    char  *data;

    if (b->failed)
        return false;

    cap = b->cap == 0 ? 256 : b->cap;
    while (cap - b->len < more) {
        if (cap > SIZE_MAX / 2) {
            b->failed = true;
            return false;
        }
        cap *= 2;
    }

    data = realloc(b->data, cap);
    if (data == NULL) {
        b->failed = true;
        return false;
    }

    b->data = data;
    b->cap = cap;
    return true;
}

void
di_sbuf_add(di_sbuf_t *b, const char *data, size_t len)
{
    if (len == 0 || !di_sbuf_room(b, len))
        return;

    memcpy(b->data + b->len, data, len);
    b->len += len;
}

void
di_sbuf_free(di_sbuf_t *b)
{
    free(b->data);
    memset(b, 0, sizeof(*b));
}

/* What stands behind the backslash; 0: there is no short form. */
static const char short_form[256] = {
    ['"'] = '"', ['\\'] = '\\', ['\n'] = 'n', ['\r'] = 'r', ['\t'] = 't',
    ['\b'] = 'b', ['\f'] = 'f',
};

static char *
put_long_escape(char *p, unsigned c)
{
    static const char hex[] = "0123456789abcdef";

    *p++ = '\\';
    *p++ = 'u';
    *p++ = hex[c >> 12 & 15];
    *p++ = hex[c >> 8 & 15];
    *p++ = hex[c >> 4 & 15];
    *p++ = hex[c & 15];
    return p;
}

static inline char *
put_escape(char *p, unsigned c)
{
    if (c > 0xff || short_form[c] == 0)
        return put_long_escape(p, c);

    p[0] = '\\';
    p[1] = short_form[c];
    return p + 2;
}

static void
add_escape(di_sbuf_t *b, unsigned c)
{
    char s[DI_JSON_GROWTH_MAX];

    di_sbuf_add(b, s, (size_t) (put_escape(s, c) - s));
}

/* The line separator that a well-formed character is, or 0. */
static unsigned
separator(const char *p, size_t len)
{
    if (len == 2 && memcmp(p, "\xc2\x85", 2) == 0)
        return 0x85;

    if (len == 3 && memcmp(p, "\xe2\x80\xa8", 3) == 0)
        return 0x2028;

    if (len == 3 && memcmp(p, "\xe2\x80\xa9", 3) == 0)
        return 0x2029;

    return 0;
}

void
di_json_add_text(di_sbuf_t *b, const char *text, size_t len)
{
    const char *p = text, *run = text, *end;
    unsigned    c;
    size_t      n;
    di_utf8_t   kind;

    if (len == 0)
        return;

    end = text + len;

    while (p < end) {
        switch (class_of[(unsigned char) *p]) {

        case PLAIN:
            p++;
            continue;

        case ESCAPE:
            di_sbuf_add(b, run, (size_t) (p - run));
            add_escape(b, (unsigned char) *p);
            run = ++p;
            continue;
        }

        kind = di_utf8_step(p, (size_t) (end - p), &n);
        c = kind == DI_UTF8_OK ? separator(p, n) : 0;

        if (kind != DI_UTF8_OK || c != 0) {
            di_sbuf_add(b, run, (size_t) (p - run));
            if (c != 0)
                add_escape(b, c);
            else
                di_sbuf_lit(b, "\xef\xbf\xbd");
            run = p + n;
        }

        p += n;
    }

    di_sbuf_add(b, run, (size_t) (p - run));
}

/* Bytes that need a look even in well-formed text. */
static const bool known_special[256] = {
    [0x00 ... 0x1f] = true,
    ['"'] = true,
    ['\\'] = true,
    [0xc2] = true,
    [0xe2] = true,
};

#define EACH(byte)  (UINT64_C(0x0101010101010101) * (byte))

/* The high bit of the first zero byte, and perhaps of some behind it. */
static inline uint64_t
zeros(uint64_t w)
{
    return (w - EACH(1)) & ~w & EACH(0x80);
}

/* How many of these eight bytes come before one that must be escaped. */
static inline size_t
count_inner(uint64_t w)
{
    uint64_t found = ((w - EACH(0x20)) & ~w & EACH(0x80))
                     | zeros(w ^ EACH('"')) | zeros(w ^ EACH('\\'));

    return found == 0 ? 8 : (size_t) __builtin_ctzll(found) / 8;
}

/* ... before one of known_special. */
static inline size_t
count_known(uint64_t w)
{
    uint64_t found = ((w - EACH(0x20)) & ~w & EACH(0x80))
                     | zeros(w ^ EACH('"')) | zeros(w ^ EACH('\\'))
                     | zeros(w ^ EACH(0xc2)) | zeros(w ^ EACH(0xe2));

    return found == 0 ? 8 : (size_t) __builtin_ctzll(found) / 8;
}

/* One byte that is special, or the character that it begins.  What is behind
 * its last byte in the text. */
static inline const char *
put_special(char **p, const char *text, const char *end)
{
    unsigned c = (unsigned char) *text;
    size_t   n;

    if (c < 0x80) {
        *p = put_escape(*p, c);
        return text + 1;
    }

    n = c == 0xc2 ? 2 : 3;
    n = n > (size_t) (end - text) ? (size_t) (end - text) : n;
    c = separator(text, n);
    *p = c != 0 ? put_escape(*p, c) : di_put(*p, text, n);
    return text + n;
}

char *
di_json_put_known(char *p, const char *text, size_t len)
{
    const char *end = text + len;
    uint64_t    w;
    size_t      n;

    while (end - text >= 8) {
        memcpy(&w, text, 8);
        memcpy(p, &w, 8);
        n = count_known(w);
        p += n;
        text += n;
        if (n < 8)
            text = put_special(&p, text, end);
    }

    while (text < end) {
        if (known_special[(unsigned char) *text])
            text = put_special(&p, text, end);
        else
            *p++ = *text++;
    }

    return p;
}

void
di_json_add_known(di_sbuf_t *b, const char *text, size_t len)
{
    size_t n;

    /* A little at a time, so that the room that is asked for stays small. */
    for (; len > 0; text += n, len -= n) {
        for (n = len < 4096 ? len : 4096; n < len && n > 4090
             && ((unsigned char) text[n] & 0xc0) == 0x80; n--) {
            /* void */
        }

        if (!di_sbuf_room(b, n * DI_JSON_GROWTH_MAX))
            return;

        b->len = (size_t) (di_json_put_known(b->data + b->len, text, n)
                           - b->data);
    }
}

void
di_json_add_token(di_sbuf_t *b, const char *bytes, size_t n,
                  const char *prefix)
{
    static const char hex[] = "0123456789abcdef";
    size_t            i;

    if (di_utf8_valid(bytes, n)) {
        di_json_add_known(b, bytes, n);
        return;
    }

    di_sbuf_add(b, prefix, strlen(prefix));
    for (i = 0; i < n; i++) {
        di_sbuf_lit(b, "\\\\x");
        di_sbuf_add(b, &hex[(unsigned char) bytes[i] >> 4], 1);
        di_sbuf_add(b, &hex[(unsigned char) bytes[i] & 15], 1);
    }
}

/* As di_json_put_known(), of what di_json_add_inner() escapes. */
static char *
put_inner(char *p, const char *text, size_t len)
{
    const char *end = text + len;
    uint64_t    w;
    size_t      n;

    while (end - text >= 8) {
        memcpy(&w, text, 8);
        memcpy(p, &w, 8);
        n = count_inner(w);
        p += n;
        text += n;
        if (n < 8)
            p = put_escape(p, (unsigned char) *text++);
    }

    while (text < end) {
        if (class_of[(unsigned char) *text] == ESCAPE)
            p = put_escape(p, (unsigned char) *text++);
        else
            *p++ = *text++;
    }

    return p;
}

void
di_json_add_inner(di_sbuf_t *b, const char *text, size_t len)
{
    size_t n;

    for (; len > 0; text += n, len -= n) {
        n = len < 4096 ? len : 4096;
        if (!di_sbuf_room(b, n * DI_JSON_GROWTH_MAX))
            return;
        b->len = (size_t) (put_inner(b->data + b->len, text, n) - b->data);
    }
}

void
di_json_add_string(di_sbuf_t *b, const char *text, size_t len)
{
    di_sbuf_lit(b, "\"");
    di_json_add_text(b, text, len);
    di_sbuf_lit(b, "\"");
}

/* Two digits of v < 100. */
static inline char *
put_two(char *p, uint32_t v)
{
    p[0] = (char) ('0' + v / 10);
    p[1] = (char) ('0' + v % 10);
    return p + 2;
}

char *
di_json_put_u64(char *p, uint64_t v)
{
    uint32_t low;

    if (v >= 10000) {
        low = (uint32_t) (v % 10000);
        p = di_json_put_u64(p, v / 10000);
        return put_two(put_two(p, low / 100), low % 100);
    }

    low = (uint32_t) v;
    if (low >= 100) {
        if (low >= 1000)
            p = put_two(p, low / 100);
        else
            *p++ = (char) ('0' + low / 100);
        return put_two(p, low % 100);
    }

    if (low >= 10)
        return put_two(p, low);
    *p = (char) ('0' + low);
    return p + 1;
}

void
di_json_add_u64(di_sbuf_t *b, uint64_t v)
{
    if (di_sbuf_room(b, DI_JSON_U64_MAX))
        b->len = (size_t) (di_json_put_u64(b->data + b->len, v) - b->data);
}

void
di_json_add_i64(di_sbuf_t *b, int64_t v)
{
    if (v < 0) {
        di_sbuf_lit(b, "-");
        di_json_add_u64(b, 0 - (uint64_t) v);
        return;
    }

    di_json_add_u64(b, (uint64_t) v);
}

void
di_json_add_logprob(di_sbuf_t *b, float v)
{
    const uint64_t unit = 100000000;
    uint64_t       u;
    char           s[9];
    size_t         n;

    if (!(v >= -9999.0f))
        v = -9999.0f;

    if (v > 9999.0f)
        v = 9999.0f;

    u = (uint64_t) llround(fabs((double) v) * (double) unit);
    if (v < 0 && u != 0)
        di_sbuf_lit(b, "-");

    di_json_add_u64(b, u / unit);
    u %= unit;

    s[0] = '.';
    for (n = 8; n > 0; n--) {
        s[n] = (char) ('0' + u % 10);
        u /= 10;
    }

    for (n = 9; n > 2 && s[n - 1] == '0'; n--) { /* void */ }
    di_sbuf_add(b, s, n);
}
