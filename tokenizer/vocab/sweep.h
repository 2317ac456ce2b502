/*
 * sweep.h - text that no cache knows and few rules fit, as base64.
 *
 * Inside tokenizer/vocab only.  A batch of pieces is encoded as one row of
 * tokens, in a few sweeps over all of it, with next to nothing done for each
 * piece.
 */

#ifndef DI_SWEEP_H
#define DI_SWEEP_H

#include "merges.h"

#define DI_SWEEP_PIECES  256
#define DI_SWEEP_BYTES   2048           /* of all pieces together            */
#define DI_SWEEP_BEYOND  16             /* ids that di_sweep_ids() may write
                                           behind the last                   */
#define DI_SWEEP_WRONG   16             /* wrong borders, of all pieces      */
#define DI_SWEEP_ROOM    (DI_SWEEP_BYTES + 64)  /* vectors reach beyond      */

/* Bits beside a token's id. */
#define DI_SWEEP_START   (1u << 31)     /* a piece starts with it            */
#define DI_SWEEP_GONE    (1u << 30)     /* it joined the one before it; there
                                           is no id                          */

/* Tokens are numbered from 1 on, pairs of neighbours by the left one. */
typedef struct {
    uint8_t  text[DI_SWEEP_ROOM];
    uint8_t  starts[DI_SWEEP_ROOM];     /* 1: a piece starts with the byte   */
    uint32_t ids[DI_SWEEP_ROOM];
    uint32_t orders[DI_SWEEP_ROOM];     /* of the rules for pairs;
                                           DI_MERGES_NONE between pieces     */
    uint32_t n;                         /* tokens, those that are gone too   */
    uint16_t pairs[DI_SWEEP_ROOM];      /* that the first sweep made and that
                                           may have a rule                   */
    uint32_t n_pairs;
    uint32_t signs[DI_SWEEP_ROOM];      /* of pairs, di_merges_sign()        */
    uint16_t doubts[DI_SWEEP_ROOM];     /* bytes with which the right one of
                                           two tokens starts that the first
                                           sweep made side by side           */
    uint32_t n_doubts;
    uint16_t live[2][2 * DI_SWEEP_ROOM];    /* pairs that had a rule before
                                           and after the last sweep          */
    uint64_t wrong[DI_SWEEP_PIECES / 64];   /* a bit for each piece that has
                                           to be encoded another way         */
    uint32_t n_wrong;                   /* borders that are wrong; beyond
                                           DI_SWEEP_WRONG, their pieces are
                                           not in wrong[]                    */
} di_sweep_t;

/* What is done for every byte or token of a row. */
typedef struct {
    /* The first sweep over len bytes of s->text: everything above but live[]
     * and wrong[]. */
    void (*first)(const di_merges_t *m, const int32_t bytes[256],
                  di_sweep_t *s, uint32_t len);
    /* List the pairs that have a rule; their number. */
    uint32_t (*live)(const di_sweep_t *s, uint16_t *pairs);
    /* Write the ids of the tokens that are there; their number. */
    uint32_t (*ids)(const di_sweep_t *s, int32_t *ids);
} di_sweep_way_t;

/* The i-th way that this machine has, the fastest first; NULL: there is
 * none. */
const di_sweep_way_t *di_sweep_way(unsigned i);

/* Do sweeps find what these rules make of a text? */
bool di_sweep_can(const di_merges_t *m);

/* Open a row of n pieces, 1 to DI_SWEEP_PIECES, and sweep over it once.  The
 * first piece starts at text[0]; ends[n]: their ends, plus pos.  bytes[256]:
 * the tokens of bytes, all of which have one.  Returns s->n_pairs, by which
 * the cost of the rest goes. */
uint32_t di_sweep_first(di_sweep_t *s, const di_sweep_way_t *way,
                        const di_merges_t *m, const int32_t bytes[256],
                        const char *text, const uint32_t *ends, size_t n,
                        uint32_t pos);

/* Do what is left.  Returns s->n_wrong; if that is more than DI_SWEEP_WRONG
 * the row is none for sweeps. */
uint32_t di_sweep_rest(di_sweep_t *s, const di_sweep_way_t *way,
                       const di_merges_t *m, const int32_t bytes[256]);

/* A row's ids, if no border is wrong.  ids[s->n + DI_SWEEP_BEYOND]; their
 * number. */
static inline size_t
di_sweep_ids(const di_sweep_t *s, const di_sweep_way_t *way, int32_t *ids)
{
    return way->ids(s, ids);
}

#endif
