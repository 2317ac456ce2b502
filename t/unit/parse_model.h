/*
 * parse_model.h - runs a parser over symbols and writes down what came, for
 * the test and the fuzz target.
 *
 * A script is bytes; in it \1 is DeepSeek's marker, \2 the end of thinking,
 * \3 its beginning and \4 Llama's mark of a call.  Fed as tokens each byte is
 * a token and each marker its own; fed as text the markers are spelled.  The
 * record has a letter for each kind and then what came, joined:
 * "R:plan|T:answer|C:get|A:{}".
 */

#ifndef PARSE_MODEL_H
#define PARSE_MODEL_H

#include <stdlib.h>
#include <string.h>

#include "t/unit/tiny_vocab.h"
#include "tokenizer/dialect/di_parse.h"

#define PARSE_DSML   "\xef\xbd\x9c" "DSML" "\xef\xbd\x9c"
#define PARSE_THINK  "</think>"
#define PARSE_OPEN   "<think>"
#define PARSE_PYTHON "<|python_tag|>"

typedef struct {
    char   text[1 << 16];
    size_t len;
    int    last;                 /* kind of the last delta, -1: none        */
    size_t calls;
    bool   broken;               /* arguments without a call before them    */
} record_t;

static inline di_vocab_t *
parse_vocab(const di_str_t *words, size_t n_words)
{
    static const char *const special[] = {
        "<|endoftext|>", PARSE_DSML, PARSE_THINK, PARSE_PYTHON, "<unused>",
        PARSE_OPEN,
    };

    return tiny_vocab_make(special, words, n_words);
}

static inline void
record_add(record_t *r, const char *s, size_t n)
{
    if (r->len + n > sizeof(r->text))
        abort();
    if (n > 0)
        memcpy(r->text + r->len, s, n);
    r->len += n;
}

static inline void
record_delta(void *ctx, const di_delta_t *d)
{
    static const char *const heads[] = { "|R:", "|T:", "|C:", "|A:" };
    record_t                *r = ctx;

    if (d->kind == DI_DELTA_PIECE)
        return;

    if (d->kind == DI_DELTA_ARGS && r->last != DI_DELTA_CALL
        && r->last != DI_DELTA_ARGS)
        r->broken = true;

    if ((int) d->kind != r->last || d->kind == DI_DELTA_CALL) {
        if (d->len == 0 && d->kind != DI_DELTA_CALL)
            return;
        record_add(r, heads[d->kind] + (r->len == 0), 3 - (r->len == 0));
    }

    r->calls += d->kind == DI_DELTA_CALL;
    r->last = (int) d->kind;
    record_add(r, d->data, d->len);
}

/* One symbol of a script as a token. */
static inline int32_t
parse_id(unsigned char c)
{
    static const int32_t markers[] = { 0, TINY_START, TINY_END, TINY_USER,
                                       TINY_PAD };

    return c >= 1 && c <= 4 ? markers[c] : c;
}

/* A script with its markers spelled; the length. */
static inline size_t
parse_spell(const char *script, size_t n, char *out)
{
    static const char *const markers[] = { "", PARSE_DSML, PARSE_THINK,
                                           PARSE_OPEN, PARSE_PYTHON };
    const char *s;
    size_t      i, len, at = 0;

    for (i = 0; i < n; i++) {
        s = script + i;
        len = 1;
        if (*s >= 1 && *s <= 4) {
            s = markers[(int) *s];
            len = strlen(s);
        }
        memcpy(out + at, s, len);
        at += len;
    }

    return at;
}

#endif
