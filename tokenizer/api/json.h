/*
 * json.h - JSON of request bodies, read to a tree, and of responses, written
 * to a buffer.
 *
 * Reading.  jansson is this project's JSON library; request bodies alone have
 * a reader of their own, for two reasons that were measured or follow from
 * its interface: a 330 KB string takes jansson 3 to 10 ms, an event loop's
 * whole share several times over (here 0.1 to 0.2), and jansson cannot keep
 * every fact a request may hold (integers from 2^63 to 2^64-1, which are valid
 * seeds; the place of a value for the error text).  The unit test and the
 * fuzz target hold this reader against jansson.
 *
 * The tree lies in an arena.  Strings are unescaped in place in the reader's
 * own copy of the body, so every di_str_t of the tree lives as long as that
 * arena, and nothing is copied twice.
 *
 * Rules: RFC 8259, one object at the top, UTF-8 without a byte order mark;
 * \u0000, lone surrogates and duplicate keys are errors.
 */

#ifndef DI_JSON_H
#define DI_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "arena.h"
#include "di_api.h"

#define DI_JSON_NODES_MAX  (1u << 20)   /* values in one body               */
#define DI_JSON_DEPTH_MAX  256          /* highest depth that may be set    */
#define DI_JSON_DEPTH_OFFICIAL  127     /* of the official codec            */

typedef enum {
    DI_JSON_NULL = 0, DI_JSON_FALSE, DI_JSON_TRUE, DI_JSON_INT, DI_JSON_UINT,
    DI_JSON_REAL, DI_JSON_STRING, DI_JSON_ARRAY, DI_JSON_OBJECT,
} di_json_type_t;

struct di_json_s {
    di_str_t   key;              /* in an object: its name                  */
    di_json_t *next;             /* next element or member                  */
    union {
        di_str_t str;            /* STRING                                  */
        int64_t  i;              /* INT: any value of that type             */
        uint64_t u;              /* UINT: above INT64_MAX                   */
        double   d;              /* REAL, finite; -0 is one                 */
        struct {                 /* ARRAY, OBJECT                           */
            di_json_t *first;
            size_t     n;
        } list;
    } v;
    uint32_t   offset;           /* of the value's first byte in the body   */
    uint8_t    type;             /* di_json_type_t                          */
};

/* Read one object.  body is borrowed, the tree is the arena's.  depth: levels
 * of nesting allowed (the object itself is one), at most DI_JSON_DEPTH_MAX.
 * DI_OK; DI_EFORMAT: malformed; DI_ELIMIT: depth, number of values or 4 GB;
 * DI_ENOMEM.  err tells line, column (in bytes) and what is wrong.
 * O(len), and O(k log k) for an object of k members. */
int di_json_read(di_arena_t *arena, const char *body, size_t len, size_t depth,
                 di_json_t **root, di_err_t *err);

/* The same by the rules of the official codec, with serde_json's sentences:
 * any value at the top, \u0000 kept, and of members with one name the last
 * one's value in the first one's place. */
int di_json_read_lax(di_arena_t *arena, const char *body, size_t len,
                     size_t depth, di_json_t **root, di_err_t *err);

/* The member called name, or NULL. */
const di_json_t *di_json_get(const di_json_t *object, const char *name);

/* Text from a body as an error message may quote it: controls become '?', a
 * long one is cut with "...". */
#define DI_JSON_QUOTE  64        /* bytes of `out`, NUL included            */
void di_json_quote(di_str_t s, char out[DI_JSON_QUOTE]);

/* Is this one JSON value, no deeper than DI_JSON_DEPTH_MAX?  Strings must be
 * well-formed UTF-8 already.  O(len). */
bool di_json_valid(const char *data, size_t len);

static inline bool
di_json_is(const di_str_t *s, const char *text)
{
    size_t i;

    for (i = 0; i < s->len; i++) {
        if (s->data[i] != text[i] || text[i] == '\0')
            return false;
    }

    return text[i] == '\0';
}

/* A di_str_t of a literal. */
#define DI_STR(literal)  { literal, sizeof(literal) - 1 }

/* ------------------------------------------------------------- writing --- */

bool di_sbuf_grow(di_sbuf_t *b, size_t more);

/* Make room for `more` bytes; false: out of memory (b->failed is set). */
static inline bool
di_sbuf_room(di_sbuf_t *b, size_t more)
{
    return (!b->failed && more <= b->cap - b->len) || di_sbuf_grow(b, more);
}

/* memcpy() without a call for up to 16 bytes, as pieces of output mostly are;
 * a length that is known is copied in a few moves anyway. */
static inline void
di_copy(char *to, const char *from, size_t len)
{
    uint64_t a, b;
    uint32_t c, d;

    if (__builtin_constant_p(len) || len > 16) {
        memcpy(to, from, len);

    } else if (len >= 8) {
        memcpy(&a, from, 8);
        memcpy(&b, from + len - 8, 8);
        memcpy(to, &a, 8);
        memcpy(to + len - 8, &b, 8);

    } else if (len >= 4) {
        memcpy(&c, from, 4);
        memcpy(&d, from + len - 4, 4);
        memcpy(to, &c, 4);
        memcpy(to + len - 4, &d, 4);

    } else if (len > 0) {
        to[0] = from[0];
        to[len / 2] = from[len / 2];
        to[len - 1] = from[len - 1];
    }
}

/* di_sbuf_add() without a call where there is room, as there mostly is. */
static inline void
di_sbuf_piece(di_sbuf_t *b, const char *data, size_t len)
{
    if (b->failed || len >= b->cap - b->len) {
        di_sbuf_add(b, data, len);
        return;
    }

    di_copy(b->data + b->len, data, len);
    b->len += len;
}

/* The same of a literal: mostly a few moves. */
#define di_sbuf_lit(b, literal)                                              \
    di_sbuf_piece(b, "" literal, sizeof(literal) - 1)

/* Text as the inside of a JSON string.  Controls, quote, backslash and the
 * line separators U+0085, U+2028 and U+2029 are escaped, so that an SSE event
 * stays one line for every client; an ill-formed maximal subpart becomes one
 * U+FFFD. */
void di_json_add_text(di_sbuf_t *b, const char *text, size_t len);
/* The same with its quotes. */
void di_json_add_string(di_sbuf_t *b, const char *text, size_t len);
/* The same for text that is well-formed UTF-8 for certain, which costs less. */
void di_json_add_known(di_sbuf_t *b, const char *text, size_t len);
/* The same for the bytes of one token: if they are no UTF-8 by themselves, the
 * prefix, and all of them as \xHH. */
void di_json_add_token(di_sbuf_t *b, const char *bytes, size_t n,
                       const char *prefix);
/* Well-formed text as the inside of a JSON string that is itself put into
 * another: the line separators stay as they are. */
void di_json_add_inner(di_sbuf_t *b, const char *text, size_t len);
void di_json_add_u64(di_sbuf_t *b, uint64_t v);
void di_json_add_i64(di_sbuf_t *b, int64_t v);
/* How a tree is written.  Both keep the order of members and all characters
 * above U+001F.  A double has the shortest digits that give it back. */
typedef enum {
    DI_JSON_COMPACT = 0,         /* no blanks; 0.00001, 1e-6, 1e+16         */
    DI_JSON_SPACED,              /* ", " and ": "; numbers likewise         */
    DI_JSON_PYTHON,              /* the same, numbers as Python's repr():
                                  * 0.0001, 1e-05, 1e+16                    */
    DI_JSON_INDENTED,            /* the same, a line for each member, four
                                  * blanks deeper than its container        */
} di_json_style_t;

/* A whole value; recursion is as deep as the tree, which the reader bounds. */
void di_json_add_tree(di_sbuf_t *b, const di_json_t *v, di_json_style_t style);
/* A string, quoted, as a tree of these styles has it. */
void di_json_add_plain(di_sbuf_t *b, di_str_t s);

/* A log-probability: at most 8 decimals, at least one; NaN and what is below
 * -9999 become -9999.0, as JSON has no infinities. */
void di_json_add_logprob(di_sbuf_t *b, float v);

/* Writing where room was made for the most there can be (di_sbuf_room()): each
 * writes at p and returns the place behind. */
#define DI_JSON_U64_MAX      20      /* digits of a number                  */
#define DI_JSON_GROWTH_MAX   6       /* bytes that one of text may become   */

static inline char *
di_put(char *p, const char *data, size_t len)
{
    di_copy(p, data, len);
    return p + len;
}

#define di_put_lit(p, literal)  di_put(p, "" literal, sizeof(literal) - 1)

/* As di_json_add_known() and di_json_add_u64(). */
char *di_json_put_known(char *p, const char *text, size_t len);
char *di_json_put_u64(char *p, uint64_t v);

#endif
