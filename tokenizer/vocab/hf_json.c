/*
 * hf_json.c - reading tokenizer.json.
 */

#include <stdlib.h>
#include <string.h>

#include "hf_json.h"

/* What a byte of a string needs. */
enum {
    HF_PLAIN = 0,           /* nothing                                       */
    HF_QUOTE,
    HF_ESCAPE,
    HF_WIDE,                /* a look at the bytes behind it                 */
    HF_CONTROL,             /* it is forbidden                               */
};

static inline unsigned
hf_byte(uint8_t b)
{
    if (b >= 0x80)
        return HF_WIDE;
    if (b < 0x20)
        return HF_CONTROL;
    return b == '"' ? HF_QUOTE : b == '\\' ? HF_ESCAPE : HF_PLAIN;
}

bool
di_hf_json_init(di_hf_json_t *j, const char *json, size_t len)
{
    *j = (di_hf_json_t) { .base = json, .at = json, .end = json + len };
    j->decoded = malloc(len + 1);
    return j->decoded != NULL;
}

void
di_hf_json_deinit(di_hf_json_t *j)
{
    free(j->decoded);
}

/* Length of the UTF-8 sequence at s, which is not ASCII; 0: none is there. */
static size_t
hf_sequence(const uint8_t *s, size_t left)
{
    static const uint32_t first[5] = { 0, 0, 0x80, 0x800, 0x10000 };
    size_t   n = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    uint32_t code = s[0] & (0x7fu >> n);

    if (s[0] < 0xc2 || s[0] > 0xf4 || n > left)
        return 0;
    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80)
            return 0;
        code = code << 6 | (s[i] & 0x3fu);
    }
    return code < first[n] || code > 0x10ffff || (code >> 11) == 0x1b ? 0 : n;
}

/* Four hexadecimal digits at s; -1: none. */
static int32_t
hf_hex(const char *s, const char *end)
{
    int32_t code = 0;

    if (end - s < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        char c = s[i];

        if (c >= '0' && c <= '9')
            code = code << 4 | (c - '0');
        else if ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'))
            code = code << 4 | ((c | 0x20) - 'a' + 10);
        else
            return -1;
    }
    return code;
}

static size_t
hf_put_code(char *out, uint32_t code)
{
    size_t n = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;

    for (size_t i = n - 1; i > 0; i--) {
        out[i] = (char) (0x80 | (code & 0x3f));
        code >>= 6;
    }
    out[0] = (char) (n == 1 ? code : code | (0xff00u >> n & 0xff));
    return n;
}

/* Decode the \u at j->at, one or a pair of surrogates. */
static int
hf_unicode(di_hf_json_t *j, char *out, size_t *n)
{
    int32_t code = hf_hex(j->at + 2, j->end), low;

    if (code < 0 || (code & 0xfc00) == 0xdc00)
        return -1;
    if ((code & 0xfc00) == 0xd800) {
        if (j->end - j->at < 12 || j->at[6] != '\\' || j->at[7] != 'u')
            return -1;
        low = hf_hex(j->at + 8, j->end);
        if (low < 0 || (low & 0xfc00) != 0xdc00)
            return -1;
        code = 0x10000 + ((code & 0x3ff) << 10 | (low & 0x3ff));
        j->at += 6;
    }
    j->at += 6;
    *n += hf_put_code(out + *n, (uint32_t) code);
    return 1;
}

/* Decode the escape at j->at. */
static int
hf_escape(di_hf_json_t *j, char *out, size_t *n)
{
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    const char       *name;

    if (j->end - j->at < 2)
        return -1;
    if (j->at[1] == 'u')
        return hf_unicode(j, out, n);
    name = j->at[1] == '\0' ? NULL : strchr(names, j->at[1]);
    if (name == NULL)
        return -1;
    out[(*n)++] = values[name - names];
    j->at += 2;
    return 1;
}

/* The rest of a string of which `s` is read so far and which has an escape
 * at j->at. */
static int
hf_decode(di_hf_json_t *j, di_str_t *s)
{
    char  *out = j->decoded + j->n_decoded;
    size_t n = s->len, wide;

    memcpy(out, s->data, n);
    while (j->at < j->end) {
        switch (hf_byte((uint8_t) *j->at)) {
        case HF_QUOTE:
            j->at++;
            *s = (di_str_t) { out, n };
            j->n_decoded += n;
            return 1;
        case HF_ESCAPE:
            if (hf_escape(j, out, &n) < 0)
                return -1;
            break;
        case HF_CONTROL:
            return -1;
        case HF_WIDE:
            wide = hf_sequence((const uint8_t *) j->at,
                               (size_t) (j->end - j->at));
            if (wide == 0)
                return -1;
            memcpy(out + n, j->at, wide);
            n += wide;
            j->at += wide;
            break;
        default:
            out[n++] = *j->at++;
        }
    }
    return -1;
}

#define HF_LAST        (UINT64_C(0x80) << 56)   /* of the eighth byte        */
#define HF_EACH(byte)  (UINT64_C(0x0101010101010101) * (byte))

/* The high bit of the first byte that is below `limit`, and perhaps of some
 * behind it. */
static inline uint64_t
hf_below(uint64_t w, uint8_t limit)
{
    return (w - HF_EACH(limit)) & ~w & HF_EACH(0x80);
}

/* How many of the next eight bytes are of a string and can be skipped, being
 * ASCII or whole characters of two bytes; the one behind them is looked at by
 * itself. */
static inline size_t
hf_plain_bytes(uint64_t w)
{
    uint64_t stop = hf_below(w ^ HF_EACH('"'), 1)
                    | hf_below(w ^ HF_EACH('\\'), 1) | hf_below(w, 0x20);
    uint64_t high = w & HF_EACH(0x80), lead = high & w << 1;
    uint64_t behind = lead << 8, goes_on = high ^ lead;
    uint64_t wide = lead & w << 2;      /* leads three bytes or four         */
    uint64_t low = lead & ~((w & HF_EACH(0x3e)) + HF_EACH(0x7f));
                                        /* c0 or c1, which lead nothing      */

    stop |= wide | low | (behind & ~goes_on) >> 8 | (goes_on & ~behind)
            | (lead & HF_LAST);
    return stop == 0 ? 8 : (size_t) __builtin_ctzll(stop) / 8;
}

/* Skip what needs no more than a glance: nearly all of a vocabulary. */
static inline void
hf_skip_plain(di_hf_json_t *j)
{
    const uint8_t *at = (const uint8_t *) j->at;
    const uint8_t *end = (const uint8_t *) j->end;
    uint64_t       w;
    size_t         n;

    while (end - at >= 8) {
        memcpy(&w, at, 8);
        n = hf_plain_bytes(w);
        at += n;
        if (n < 7)
            break;
    }
    while (end - at >= 2) {
        if (hf_byte(at[0]) == HF_PLAIN)
            at++;
        else if (at[0] >= 0xc2 && at[0] < 0xe0 && (at[1] & 0xc0) == 0x80)
            at += 2;
        else
            break;
    }
    j->at = (const char *) at;
}

int
di_hf_json_string(di_hf_json_t *j, di_str_t *s)
{
    size_t wide;

    if (di_hf_json_take(j, '"') < 0)
        return -1;
    s->data = j->at;
    hf_skip_plain(j);
    while (j->at < j->end) {
        switch (hf_byte((uint8_t) *j->at)) {
        case HF_QUOTE:
            s->len = (size_t) (j->at++ - s->data);
            return 1;
        case HF_ESCAPE:
            s->len = (size_t) (j->at - s->data);
            return hf_decode(j, s);
        case HF_CONTROL:
            return -1;
        case HF_WIDE:
            wide = hf_sequence((const uint8_t *) j->at,
                               (size_t) (j->end - j->at));
            if (wide == 0)
                return -1;
            j->at += wide;
            break;
        default:
            j->at++;
        }
    }
    return -1;
}

int
di_hf_json_u32(di_hf_json_t *j, uint32_t *u)
{
    const char *start, *at, *end = j->end;
    uint64_t    value = 0;
    unsigned    digit;

    (void) di_hf_json_peek(j);
    start = j->at;
    for (at = start; at < end; at++) {
        digit = (unsigned) (unsigned char) *at - '0';
        if (digit > 9 || value > UINT32_MAX)
            break;
        value = value * 10 + digit;
    }
    j->at = at;
    if (at == start || value > UINT32_MAX
        || (*start == '0' && at - start > 1))
        return -1;
    if (at < end && (*at == '.' || *at == 'e' || *at == 'E'))
        return -1;
    *u = (uint32_t) value;
    return 1;
}

int
di_hf_json_bool(di_hf_json_t *j, bool *b)
{
    size_t left;

    (void) di_hf_json_peek(j);
    left = (size_t) (j->end - j->at);
    if (left >= 4 && memcmp(j->at, "true", 4) == 0)
        *b = true;
    else if (left >= 5 && memcmp(j->at, "false", 5) == 0)
        *b = false;
    else
        return -1;
    j->at += *b ? 4 : 5;
    return 1;
}

int
di_hf_json_key(di_hf_json_t *j, bool first, di_str_t *key)
{
    if (di_hf_json_peek(j) == '}') {
        j->at++;
        return 0;
    }
    if (!first && di_hf_json_take(j, ',') < 0)
        return -1;
    if (di_hf_json_string(j, key) < 0)
        return -1;
    return di_hf_json_take(j, ':');
}

int
di_hf_json_item(di_hf_json_t *j, bool first)
{
    if (di_hf_json_peek(j) == ']') {
        j->at++;
        return 0;
    }
    if (!first && di_hf_json_take(j, ',') < 0)
        return -1;
    (void) di_hf_json_peek(j);
    return 1;
}

json_t *
di_hf_json_value(di_hf_json_t *j)
{
    json_error_t fault;
    json_t      *value = json_loadb(j->at, (size_t) (j->end - j->at),
                                    JSON_DECODE_ANY | JSON_DISABLE_EOF_CHECK
                                    | JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES,
                                    &fault);

    if (value != NULL)
        j->at += fault.position;
    return value;
}
