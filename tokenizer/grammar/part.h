/*
 * part.h - what the files that compute parts of masks share.
 *
 *   known.c   rules by their content
 *   base.c    tokens that a state takes without a walk
 *   letters.c tokens by the kinds of their bytes
 *   part.c    the walk, and the parts
 */

#ifndef DI_GRAM_PART_H
#define DI_GRAM_PART_H

#include "index.h"

#define DI_GRAM_ROWS  256u

/* A state spelled out, while its grammar is at hand. */
struct di_gram_row_s {
    uint32_t state;         /* DI_GRAM_DEAD: free                            */
    uint32_t run;           /* plain characters that can come whatever they
                               are; DI_GRAM_TOKEN_MAX: any number            */
    uint64_t some;          /* kinds of which some byte leads on             */
    uint64_t all;           /* kinds whose bytes all do, and by which nothing
                               leaves the rule                               */
    uint64_t loops;         /* those whose bytes all stay here               */
    uint64_t calls;         /* kinds that a call may begin with; all where
                               the rule may end                              */
    uint32_t to[256];
};

typedef struct di_gram_row_s  di_gram_row_t;

/* One computation of a part. */
typedef struct {
    di_gram_index_t *x;
    di_gram_t       *g;
    bool             returns;   /* something calls the rule                  */

    /* What is known of the root's tokens without a walk (base.c). */
    const uint64_t  *base;      /* mask that the part begins with; or NULL   */
    uint32_t         run;       /* it has the plain tokens of at most so many
                                   characters                                */
    bool             stops;     /* and no longer ones can come               */
    uint64_t         loops;     /* it has all that tokens of these kinds of
                                   bytes can be,                             */
    uint32_t         depth;     /* if they have at most so many bytes        */
    uint64_t         outs;      /* other kinds of bytes that can follow them */
    uint64_t         except[4]; /* set of first bytes for which all this
                                   doesn't hold                              */
    bool             excepts;   /* there are such                            */

    uint32_t         n_found;
    bool             spilt;     /* some are in the index's scratch `spilt`   */
    bool             no_memory;
} di_gram_walk_t;

static inline bool
di_gram_excepted(const di_gram_walk_t *w, uint8_t byte)
{
    return (w->except[byte / 64] >> byte % 64 & 1) != 0;
}

/* known.c */
uint64_t di_gram_call_heads(const di_gram_index_t *x, const di_gram_t *g,
                            const di_gram_bcall_t *call);
/* A call that begins with no plain character. */
bool di_gram_call_not_plain(const di_gram_t *g, const di_gram_bcall_t *call);
/* The index's number of a rule; DI_GRAM_DEAD: no memory. */
uint32_t di_gram_rule_number(di_gram_index_t *x, di_gram_t *g, uint32_t rule);

/* base.c: room for what is found out once for a grammar; false: no memory. */
bool di_gram_prepare_plain(di_gram_t *g);
/* The row of a state, good until the next one. */
const di_gram_row_t *di_gram_row_fill(di_gram_walk_t *w, di_gram_row_t *r,
                                      uint32_t state);
/* Find the base.  Returns the root of the tokens that are left, but for the
 * exceptions. */
uint32_t di_gram_find_base(di_gram_walk_t *w, uint32_t state);

static inline const di_gram_row_t *
di_gram_row(di_gram_walk_t *w, uint32_t state)
{
    di_gram_row_t *r = &w->x->rows[state % DI_GRAM_ROWS];

    return r->state == state ? r : di_gram_row_fill(w, r, state);
}

/* letters.c: a bit for each of n tokens, n a multiple of 64: it has bytes,
 * all of them of the kinds, and at most `longest`. */
typedef void (*di_gram_letters_t)(const uint64_t *token_kinds,
                                  const uint8_t *lengths, uint32_t n,
                                  uint64_t kinds, unsigned longest,
                                  uint64_t *mask);

void di_gram_letters_scalar(const uint64_t *token_kinds,
                            const uint8_t *lengths, uint32_t n,
                            uint64_t kinds, unsigned longest, uint64_t *mask);
/* The fastest for this CPU, the next one, ...; NULL: none is left. */
di_gram_letters_t di_gram_letters(unsigned i);

#endif
