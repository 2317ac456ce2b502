/*
 * json_read.c - request bodies to trees; see json.h for why it exists.
 *
 * One pass without recursion: a stack of open containers, as deep as the
 * caller allows, and for each the place where its next child is linked.  The
 * copy of the body ends with a NUL, so the byte at `p` may be looked at
 * anywhere; a NUL before `end` is malformed like any other stray byte.
 *
 * Strings are read in runs of bytes that need no work; a run is found eight
 * bytes at a time.  An escape is never shorter than what it stands for, so
 * unescaping writes behind the reading position, into the same bytes.
 *
 * The lax reading differs in what it takes and in its words; where a member
 * is met again, the first one takes over the new value.  A body's first byte
 * is no member's value, so offset 0 marks a member whose value was taken.
 *
 * Duplicate keys: members of small objects are compared pairwise, of large
 * ones sorted, so that no body costs quadratic time.
 */

#include "json.h"
#include "di_utf8.h"

#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PAIRWISE_MAX  16         /* members; above, sort                    */

typedef struct {
    di_arena_t *arena;
    const char *body;            /* as given, for line and column           */
    char       *copy;            /* NUL-terminated, unescaped in place      */
    char       *p;               /* next byte of the copy                   */
    char       *end;             /* its NUL                                 */
    size_t      nodes;           /* values so far                           */
    size_t      depth;           /* open containers                         */
    size_t      depth_max;
    di_json_t  *stack[DI_JSON_DEPTH_MAX];   /* them, outermost first        */
    di_json_t **tail[DI_JSON_DEPTH_MAX];    /* where their next child goes  */
    bool        lax;             /* di_json_read_lax()                      */
    di_err_t   *err;
} reader_t;

/* What can be wrong, and how each reading says it. */
typedef enum {
    WANT_VALUE, WANT_IDENT, WANT_KEY, WANT_COLON, WANT_MEMBER_END,
    WANT_ELEMENT_END, WANT_DIGIT, WANT_END, WANT_OBJECT,
} want_t;

static const struct {
    const char *strict;          /* what was expected                       */
    const char *lax;             /* serde_json's sentence                   */
    const char *lax_end;         /* the same where the body ends            */
} wants[] = {
    [WANT_VALUE] = { "a value", "expected value",
                     "EOF while parsing a value" },
    [WANT_IDENT] = { "a value", "expected ident",
                     "EOF while parsing a value" },
    [WANT_KEY] = { "a key", "key must be a string",
                   "EOF while parsing an object" },
    [WANT_COLON] = { "':'", "expected `:`", "EOF while parsing an object" },
    [WANT_MEMBER_END] = { "',' or '}'", "expected `,` or `}`",
                          "EOF while parsing an object" },
    [WANT_ELEMENT_END] = { "',' or ']'", "expected `,` or `]`",
                           "EOF while parsing a list" },
    [WANT_DIGIT] = { "a digit", "invalid number",
                     "EOF while parsing a value" },
    [WANT_END] = { "the end of the body", "trailing characters",
                   "trailing characters" },
    [WANT_OBJECT] = { "a JSON object", NULL, NULL },     /* strict only     */
};

/* ----------------------------------------------------------------- errors */

/* Record `what` at p with its line and column; serde_json counts the byte at
 * p as read. */
static int
fail(reader_t *r, int code, const char *p, const char *what)
{
    size_t offset = (size_t) (p - r->copy), line = 1, start = 0, i;
    size_t read = offset + (r->lax && p < r->end);

    for (i = 0; i < read; i++) {
        if (r->body[i] == '\n') {
            line++;
            start = i + 1;
        }
    }

    return di_err_set(r->err, code, offset, "%s at line %zu column %zu", what,
                      line, read - start + !r->lax);
}

/* Where the two readings have words of their own for one fault. */
static int
fail_as(reader_t *r, const char *p, const char *strict, const char *lax)
{
    return fail(r, DI_EFORMAT, p, r->lax ? lax : strict);
}

static int
unexpected(reader_t *r, want_t want)
{
    unsigned char c = (unsigned char) *r->p;
    const char   *expected = wants[want].strict;
    char          what[80];

    if (r->lax)
        return fail(r, DI_EFORMAT, r->p, r->p == r->end
                    ? wants[want].lax_end : wants[want].lax);

    if (r->p == r->end)
        snprintf(what, sizeof(what), "the body ends, expected %s", expected);
    else if (c == 'N' || c == 'I')
        snprintf(what, sizeof(what), "NaN and Infinity are not JSON,"
                 " expected %s", expected);
    else if (c > 0x20 && c < 0x7f)
        snprintf(what, sizeof(what), "unexpected '%c', expected %s", c,
                 expected);
    else
        snprintf(what, sizeof(what), "unexpected byte 0x%02x, expected %s", c,
                 expected);

    return fail(r, DI_EFORMAT, r->p, what);
}

void
di_json_quote(di_str_t s, char out[DI_JSON_QUOTE])
{
    size_t    i, n = 0;
    di_utf8_t kind;

    for (i = 0; i < s.len; i += n) {
        kind = di_utf8_step(s.data + i, s.len - i, &n);

        if (i + n > DI_JSON_QUOTE - 4) {
            memcpy(out + i, "...", 4);
            return;
        }

        if (kind == DI_UTF8_OK && (unsigned char) s.data[i] >= 0x20)
            memcpy(out + i, s.data + i, n);
        else
            memset(out + i, '?', n);
    }

    out[i] = '\0';
}

/* ---------------------------------------------------------------- strings */

/* The bytes at p that a run of plain ones stops at, by their high bits: of a
 * control, a quote, a backslash or a multi-byte character.  Every subtraction
 * is from a byte with its high bit set and takes less than that, so none
 * borrows from its neighbour. */
static uint64_t
eight_bytes(const char *p)
{
    const uint64_t ones = 0x0101010101010101u, high = 0x8080808080808080u;
    uint64_t       w;

    memcpy(&w, p, 8);

    return (w | ~((w | high) - ones * 0x20)
              | ~(((w ^ ones * '"') | high) - ones)
              | ~(((w ^ ones * '\\') | high) - ones)) & high;
}

/* Index of the first byte in memory that a mask of high bits has. */
static size_t
first_byte(uint64_t mask)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    return (size_t) __builtin_ctzll(mask) / 8;
#else
    return (size_t) __builtin_clzll(mask) / 8;
#endif
}

/* Skip well-formed multi-byte characters.  Those of three bytes whose second
 * one may be any continuation are most of what is written in Han, kana and
 * Hangul, and are looked at first. */
static char *
skip_high(const reader_t *r, char *p, bool *bad)
{
    unsigned char *u = (unsigned char *) p;
    size_t         n;

    while (*u >= 0x80) {
        if ((*u & 0xf0) == 0xe0 && *u != 0xe0 && *u != 0xed
            && (u[1] & 0xc0) == 0x80 && (u[2] & 0xc0) == 0x80)
        {
            u += 3;
            continue;
        }

        if (di_utf8_step((char *) u, (size_t) (r->end - (char *) u), &n)
            != DI_UTF8_OK)
        {
            *bad = true;
            break;
        }
        u += n;
    }

    return (char *) u;
}

/* First byte at or after p that ends a run.  *bad: it is ill-formed UTF-8. */
static char *
run_end(const reader_t *r, char *p, bool *bad)
{
    uint64_t      mask;
    unsigned char c;

    for ( ;; ) {
        while (r->end - p >= 8) {
            mask = eight_bytes(p);
            if (mask != 0) {
                p += first_byte(mask);
                break;
            }
            p += 8;
        }

        c = (unsigned char) *p;
        if (c < 0x20 || c == '"' || c == '\\')
            return p;

        if (c < 0x80) {
            p++;
            continue;
        }

        p = skip_high(r, p, bad);
        if (*bad)
            return p;
    }
}

/* Four hex digits at p, or -1. */
static int32_t
hex4(const char *p)
{
    int32_t v = 0;
    int     i, c;

    for (i = 0; i < 4; i++) {
        c = p[i];
        if (c >= '0' && c <= '9')
            c -= '0';
        else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f')
            c = (c | 0x20) - 'a' + 10;
        else
            return -1;
        v = v << 4 | c;
    }

    return v;
}

static char *
put_utf8(char *dst, uint32_t c)
{
    if (c < 0x80) {
        *dst++ = (char) c;

    } else if (c < 0x800) {
        *dst++ = (char) (0xc0 | c >> 6);
        *dst++ = (char) (0x80 | (c & 0x3f));

    } else if (c < 0x10000) {
        *dst++ = (char) (0xe0 | c >> 12);
        *dst++ = (char) (0x80 | (c >> 6 & 0x3f));
        *dst++ = (char) (0x80 | (c & 0x3f));

    } else {
        *dst++ = (char) (0xf0 | c >> 18);
        *dst++ = (char) (0x80 | (c >> 12 & 0x3f));
        *dst++ = (char) (0x80 | (c >> 6 & 0x3f));
        *dst++ = (char) (0x80 | (c & 0x3f));
    }

    return dst;
}

/* What is wrong with the escape at p (and the one behind it), in serde_json's
 * words and at its places. */
static int
lax_escape_fault(reader_t *r, const char *p)
{
    const char *whole = "lone leading surrogate in hex escape";
    int32_t     c;

    if (r->end - p < 6)
        return fail(r, DI_EFORMAT, r->end, "EOF while parsing a string");

    c = hex4(p + 2);
    if (c < 0)
        return fail(r, DI_EFORMAT, p + 5, "invalid escape");

    if (c >= 0xdc00)
        return fail(r, DI_EFORMAT, p + 5, whole);

    p += 6;
    if (p == r->end || (*p == '\\' && p + 1 == r->end))
        return fail(r, DI_EFORMAT, r->end, "EOF while parsing a string");

    if (*p != '\\' || p[1] != 'u')
        return fail(r, DI_EFORMAT, p + (*p == '\\'),
                    "unexpected end of hex escape");

    if (r->end - p < 6)
        return fail(r, DI_EFORMAT, r->end, "EOF while parsing a string");

    return fail(r, DI_EFORMAT, p + 5, hex4(p + 2) < 0 ? "invalid escape"
                                                      : whole);
}

/* \uXXXX or a pair of them at *src (the backslash); writes to *dst. */
static int
unicode_escape(reader_t *r, char **src, char **dst)
{
    char   *p = *src;
    int32_t c, low;

    c = hex4(p + 2);
    if (c < 0)
        return r->lax ? lax_escape_fault(r, p)
               : fail(r, DI_EFORMAT, p, "\\u needs four hex digits");

    if (c == 0 && !r->lax)
        return fail(r, DI_EFORMAT, p, "\\u0000 is not allowed");

    *src += 6;

    if (c >= 0xd800 && c <= 0xdfff) {
        low = c < 0xdc00 && p[6] == '\\' && p[7] == 'u' ? hex4(p + 8) : -1;
        if (low < 0xdc00 || low > 0xdfff)
            return r->lax ? lax_escape_fault(r, p)
                   : fail(r, DI_EFORMAT, p, "lone surrogate escape");

        c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
        *src += 6;
    }

    *dst = put_utf8(*dst, (uint32_t) c);
    return DI_OK;
}

static int
escape(reader_t *r, char **src, char **dst)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char       *at;
    char              c = (*src)[1];

    if (c == 'u')
        return unicode_escape(r, src, dst);

    at = c == '\0' ? NULL : strchr(from, c);
    if (at == NULL && r->lax && *src + 1 == r->end)
        return fail(r, DI_EFORMAT, r->end, "EOF while parsing a string");

    if (at == NULL)
        return fail_as(r, r->lax && *src + 1 < r->end ? *src + 1 : *src,
                       "unknown escape in a string",
                       "invalid escape");

    *(*dst)++ = to[at - from];
    *src += 2;
    return DI_OK;
}

/* The quote that ends the string that p lies in, or the end. */
static const char *
closing_quote(const reader_t *r, const char *p)
{
    while (p < r->end && *p != '"')
        p += 1 + (*p == '\\' && p + 1 < r->end);

    return p;
}

/* The string at p (its opening quote). */
static int
read_string(reader_t *r, di_str_t *out)
{
    char *open = r->p, *src = open + 1, *dst = src, *q;
    bool  bad = false;
    int   rc;

    out->data = dst;

    for ( ;; ) {
        q = run_end(r, src, &bad);
        if (bad)
            return fail_as(r, r->lax ? closing_quote(r, q) : q,
                           "invalid UTF-8", "invalid unicode code point");

        if (dst != src)
            memmove(dst, src, (size_t) (q - src));
        dst += q - src;
        src = q;

        if (*q == '"')
            break;

        if (q == r->end)
            return fail_as(r, r->lax ? q : open, "unterminated string",
                           "EOF while parsing a string");

        if (*q != '\\')
            return fail_as(r, q, "raw control character in a string",
                           "control character (\\u0000-\\u001F) found while"
                           " parsing a string");

        rc = escape(r, &src, &dst);
        if (rc != DI_OK)
            return rc;
    }

    out->len = (size_t) (dst - out->data);
    r->p = src + 1;
    return DI_OK;
}

/* ---------------------------------------------------------------- scalars */

/* strtod() of the n bytes at p whatever the locale's decimal point is; the
 * copy is ours, so point and end are set in place. */
static double
to_double(char *p, size_t n)
{
    char  *dot = memchr(p, '.', n), after = p[n];
    double d;

    if (dot != NULL)
        *dot = localeconv()->decimal_point[0];

    p[n] = '\0';
    d = strtod(p, NULL);
    p[n] = after;
    return d;
}

static char *
digits(char *p)
{
    while (*p >= '0' && *p <= '9')
        p++;
    return p;
}

static int
read_number(reader_t *r, di_json_t *node)
{
    char    *start = r->p, *p = start, *q, *c;
    bool     minus = *p == '-', integer = true, big = false;
    uint64_t u = 0;

    p += minus;
    q = *p == '0' ? p + 1 : digits(p);
    if (q == p || (r->lax && *p == '0' && digits(q) > q)) {
        r->p = q;
        return unexpected(r, WANT_DIGIT);
    }

    for (c = p; c < q; c++)
        big |= __builtin_mul_overflow(u, 10, &u)
               || __builtin_add_overflow(u, (uint64_t) (*c - '0'), &u);

    if (*q == '.') {
        integer = false;
        p = q + 1;
        q = digits(p);
        if (q == p) {
            r->p = p;
            return unexpected(r, WANT_DIGIT);
        }
    }

    if (*q == 'e' || *q == 'E') {
        integer = false;
        p = q + 1 + (q[1] == '+' || q[1] == '-');
        q = digits(p);
        if (q == p) {
            r->p = p;
            return unexpected(r, WANT_DIGIT);
        }
    }

    r->p = q;

    if (integer && !big && u <= (uint64_t) INT64_MAX + minus
        && !(minus && u == 0))
    {
        node->type = DI_JSON_INT;
        node->v.i = minus ? (int64_t) (0 - u) : (int64_t) u;
        return DI_OK;
    }

    if (integer && !big && !minus) {
        node->type = DI_JSON_UINT;
        node->v.u = u;
        return DI_OK;
    }

    node->type = DI_JSON_REAL;
    node->v.d = to_double(start, (size_t) (q - start));
    if (!isfinite(node->v.d))
        return fail(r, DI_EFORMAT, start, "number out of range");

    return DI_OK;
}

static int
read_literal(reader_t *r, const char *word, size_t len, di_json_type_t type,
             di_json_t *node)
{
    size_t n = 0;

    while (n < len && r->p[n] == word[n])
        n++;

    if (n < len) {
        r->p += r->lax ? n : 0;
        return unexpected(r, WANT_IDENT);
    }

    r->p += len;
    node->type = (uint8_t) type;
    return DI_OK;
}

/* ------------------------------------------------------------- containers */

static int
by_key(const void *a, const void *b)
{
    const di_json_t *x = *(di_json_t *const *) a;
    const di_json_t *y = *(di_json_t *const *) b;
    int              d;

    if (x->key.len != y->key.len)
        return x->key.len < y->key.len ? -1 : 1;

    d = x->key.len == 0 ? 0 : memcmp(x->key.data, y->key.data, x->key.len);
    if (d != 0)
        return d;

    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static bool
same_key(const di_json_t *x, const di_json_t *y)
{
    return x->key.len == y->key.len
           && memcmp(x->key.data, y->key.data, x->key.len) == 0;
}

static int
duplicate(reader_t *r, const di_json_t *node)
{
    char key[DI_JSON_QUOTE], what[DI_JSON_QUOTE + 32];

    di_json_quote(node->key, key);
    snprintf(what, sizeof(what), "duplicate key \"%s\"", key);
    return fail(r, DI_EFORMAT, node->key.data, what);
}

/* The first member of y's name takes y's value; y is marked by its empty
 * place in the body, for unlinking. */
static void
take_value(di_json_t *first, di_json_t *y)
{
    di_json_t *next = first->next;
    di_str_t   key = first->key;

    *first = *y;
    first->next = next;
    first->key = key;
    y->offset = 0;
}

static void
unlink_taken(di_json_t *object)
{
    di_json_t **link = &object->v.list.first;

    while (*link != NULL) {
        if ((*link)->offset == 0) {
            *link = (*link)->next;
            object->v.list.n--;

        } else {
            link = &(*link)->next;
        }
    }
}

/* Of two members of one name: an error, or lax, the last one's value. */
static int
check_keys(reader_t *r, di_json_t *object)
{
    di_json_t *x, *y, **sorted, *twice = NULL, *first;
    size_t     n = object->v.list.n, i = 0;

    if (n <= PAIRWISE_MAX) {
        for (x = object->v.list.first; x != NULL; x = x->next) {
            for (y = object->v.list.first; y != x; y = y->next) {
                if (y->offset == 0 || !same_key(x, y))
                    continue;
                if (!r->lax)
                    return duplicate(r, x);
                take_value(y, x);
                twice = x;
                break;
            }
        }
        if (twice != NULL)
            unlink_taken(object);
        return DI_OK;
    }

    sorted = malloc(n * sizeof(*sorted));
    if (sorted == NULL)
        return di_err_set(r->err, DI_ENOMEM, 0, "out of memory");

    for (x = object->v.list.first; x != NULL; x = x->next)
        sorted[i++] = x;

    qsort(sorted, n, sizeof(*sorted), by_key);

    first = sorted[0];

    for (i = 1; i < n && (twice == NULL || r->lax); i++) {
        if (!same_key(first, sorted[i])) {
            first = sorted[i];
            continue;
        }
        twice = sorted[i];
        if (r->lax)
            take_value(first, twice);
    }

    free(sorted);
    if (twice == NULL)
        return DI_OK;

    if (!r->lax)
        return duplicate(r, twice);

    unlink_taken(object);
    return DI_OK;
}

static void
skip_space(reader_t *r)
{
    while (*r->p == ' ' || *r->p == '\n' || *r->p == '\r' || *r->p == '\t')
        r->p++;
}

static int
push(reader_t *r, di_json_t *node, di_json_type_t type)
{
    char what[64];

    if (r->depth == r->depth_max && r->lax)
        return fail(r, DI_ELIMIT, r->p, "recursion limit exceeded");

    if (r->depth == r->depth_max) {
        snprintf(what, sizeof(what), "nested deeper than %zu levels",
                 r->depth_max);
        return fail(r, DI_ELIMIT, r->p, what);
    }

    node->type = (uint8_t) type;
    node->v.list.first = NULL;
    node->v.list.n = 0;
    r->stack[r->depth] = node;
    r->tail[r->depth] = &node->v.list.first;
    r->depth++;
    r->p++;
    return DI_OK;
}

/* The value at p; a container is opened only. */
static int
read_value(reader_t *r, di_json_t *node)
{
    node->offset = (uint32_t) (r->p - r->copy);

    switch (*r->p) {
    case '{':
        return push(r, node, DI_JSON_OBJECT);
    case '[':
        return push(r, node, DI_JSON_ARRAY);
    case '"':
        node->type = DI_JSON_STRING;
        return read_string(r, &node->v.str);
    case 't':
        return read_literal(r, "true", 4, DI_JSON_TRUE, node);
    case 'f':
        return read_literal(r, "false", 5, DI_JSON_FALSE, node);
    case 'n':
        return read_literal(r, "null", 4, DI_JSON_NULL, node);
    case '-': case '0': case '1': case '2': case '3': case '4': case '5':
    case '6': case '7': case '8': case '9':
        return read_number(r, node);
    }

    return unexpected(r, WANT_VALUE);
}

/* A new child of the innermost container, with its key if that has keys. */
static int
read_child(reader_t *r)
{
    di_json_t *parent = r->stack[r->depth - 1], *node;
    int        rc;

    if (r->nodes++ >= DI_JSON_NODES_MAX)
        return fail(r, DI_ELIMIT, r->p, "too many values in one body");

    node = di_arena_calloc(r->arena, 1, sizeof(*node));
    if (node == NULL)
        return di_err_set(r->err, DI_ENOMEM, 0, "out of memory");

    if (parent->type == DI_JSON_OBJECT) {
        if (*r->p != '"')
            return unexpected(r, WANT_KEY);

        rc = read_string(r, &node->key);
        if (rc != DI_OK)
            return rc;

        skip_space(r);
        if (*r->p != ':')
            return unexpected(r, WANT_COLON);

        r->p++;
        skip_space(r);
    }

    *r->tail[r->depth - 1] = node;
    r->tail[r->depth - 1] = &node->next;
    parent->v.list.n++;
    return read_value(r, node);
}

/* One step inside the innermost container: its end, or a child. */
static int
read_step(reader_t *r)
{
    di_json_t *cur = r->stack[r->depth - 1];
    bool       object = cur->type == DI_JSON_OBJECT;

    skip_space(r);

    if (*r->p == (object ? '}' : ']')) {
        r->p++;
        r->depth--;
        return object ? check_keys(r, cur) : DI_OK;
    }

    if (cur->v.list.n > 0) {
        if (*r->p != ',')
            return unexpected(r, object ? WANT_MEMBER_END : WANT_ELEMENT_END);
        r->p++;
        skip_space(r);
        if (r->lax && *r->p == (object ? '}' : ']'))
            return fail(r, DI_EFORMAT, r->p, "trailing comma");
        if (r->lax && r->p == r->end)
            return unexpected(r, WANT_VALUE);

    } else if (r->lax && r->p == r->end) {
        return unexpected(r, object ? WANT_MEMBER_END : WANT_ELEMENT_END);
    }

    return read_child(r);
}

static int
read_body(di_arena_t *arena, const char *body, size_t len, size_t depth,
          bool lax, di_json_t **root, di_err_t *err)
{
    reader_t   r;
    di_json_t *top;
    int        rc;

    if (len >= UINT32_MAX)
        return di_err_set(err, DI_ELIMIT, 0, "the body is larger than 4 GB");

    r.arena = arena;
    r.body = body;
    r.err = err;
    r.lax = lax;
    r.nodes = 0;
    r.depth = 0;
    r.depth_max = depth < DI_JSON_DEPTH_MAX ? depth : DI_JSON_DEPTH_MAX;
    r.copy = di_arena_alloc(arena, len + 1);
    top = di_arena_calloc(arena, 1, sizeof(*top));
    if (r.copy == NULL || top == NULL)
        return di_err_set(err, DI_ENOMEM, 0, "out of memory");

    if (len != 0)
        memcpy(r.copy, body, len);
    r.copy[len] = '\0';
    r.p = r.copy;
    r.end = r.copy + len;

    if (!lax && len >= 3 && memcmp(body, "\xef\xbb\xbf", 3) == 0)
        return fail(&r, DI_EFORMAT, r.p, "unexpected byte order mark");

    skip_space(&r);
    if (*r.p != '{' && !lax)
        return unexpected(&r, WANT_OBJECT);

    rc = read_value(&r, top);
    while (rc == DI_OK && r.depth > 0)
        rc = read_step(&r);

    if (rc != DI_OK)
        return rc;

    skip_space(&r);
    if (r.p != r.end)
        return unexpected(&r, WANT_END);

    *root = top;
    return DI_OK;
}

int
di_json_read(di_arena_t *arena, const char *body, size_t len, size_t depth,
             di_json_t **root, di_err_t *err)
{
    return read_body(arena, body, len, depth, false, root, err);
}

int
di_json_read_lax(di_arena_t *arena, const char *body, size_t len, size_t depth,
                 di_json_t **root, di_err_t *err)
{
    return read_body(arena, body, len, depth, true, root, err);
}

const di_json_t *
di_json_get(const di_json_t *object, const char *name)
{
    const di_json_t *m;

    for (m = object->v.list.first; m != NULL; m = m->next) {
        if (di_json_is(&m->key, name))
            return m;
    }

    return NULL;
}
