/*
 * build.h - making a vocabulary of what a file says.
 *
 * Inside tokenizer/vocab only.  A reader of one file format fills a
 * di_build_t and the fields of the vocabulary that only the file knows;
 * di_build_finish() makes everything else.
 *
 *   di_build_init()      b->v is a new vocabulary
 *   (reader)             b->tokens, v->size, v->kinds, v->pretok; b->rules
 *   di_build_index()     from now on di_build_find() works
 *   (reader)             v->bos, v->add_bos, v->ends; kinds that roles give
 *   di_build_finish()    bytes, merges, indexes
 *   di_build_deinit()    closes b->v unless it was taken
 */

#ifndef DI_BUILD_H
#define DI_BUILD_H

#include "vocab.h"

/* A merge rule, in spellings. */
typedef struct {
    di_str_t left, right;
} di_build_rule_t;

typedef struct {
    di_vocab_t      *v;         /* what is built                             */
    di_str_t        *tokens;    /* [v->size] spellings; those of kind NORMAL
                                   in GPT-2's alphabet of bytes; owned, what
                                   they point at borrowed                    */
    di_build_rule_t *rules;     /* [n_rules] by rank; owned, what they point
                                   at borrowed                               */
    uint64_t         n_rules;
    bool            *late;      /* [v->size] added tokens that a raw text is
                                   searched for only when it has been for
                                   the others; owned; NULL: there are none   */
    bool             words;     /* a pre-token that is a token is taken as it
                                   is, whether or not merging makes it       */
    const char      *rules_at;  /* the two parts of a rule's name in error   */
    const char      *rules_end; /* texts, before and after its rank          */
    di_err_t        *err;

    di_vocab_index_t spelled;   /* ids by spelling                           */
    bool             twice;     /* some spelling is that of two tokens       */
} di_build_t;

int di_build_init(di_build_t *b, di_err_t *err);
void di_build_deinit(di_build_t *b);

/* Index the spellings.  Of two that are equal the later counts. */
int di_build_index(di_build_t *b);

/* Id of the token spelled so; -1: none. */
int32_t di_build_find(const di_build_t *b, di_str_t s);

/* Control tokens that end a turn by their well-known spelling. */
void di_build_known_ends(di_build_t *b);

/* A rule spelled with a space between its sides.  Without one both are
 * empty, which no token is. */
di_build_rule_t di_build_rule(di_str_t s);

/* *out = NUL-terminated copy of s, owned. */
int di_build_copy(di_build_t *b, di_str_t s, char **out);

int di_build_finish(di_build_t *b);

/* A name from a file, fit for an error text. */
typedef struct {
    char text[33];
} di_build_shown_t;

di_build_shown_t di_build_show(di_str_t s);

static inline int
di_build_nomem(di_build_t *b)
{
    return di_err_set(b->err, DI_ENOMEM, 0, "no memory for the vocabulary");
}

#endif
