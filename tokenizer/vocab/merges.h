/*
 * merges.h - the merge rules of byte-pair encoding, by pair of token ids.
 *
 * Inside tokenizer/vocab only.  One open-addressed table of 8-byte slots,
 * half full at most: left id, right id and rank share a slot, so a look-up
 * is one cache line.  Immutable once built.
 */

#ifndef DI_MERGES_H
#define DI_MERGES_H

#include <stdint.h>

#define DI_MERGES_ID_BITS    20                     /* of a token id         */
#define DI_MERGES_RANK_BITS  24
#define DI_MERGES_IDS_MAX    (1u << DI_MERGES_ID_BITS)
#define DI_MERGES_MAX        ((1u << DI_MERGES_RANK_BITS) - 1)
#define DI_MERGES_NONE       UINT32_MAX             /* no such rule          */
#define DI_MERGES_FREE       UINT64_MAX             /* slot in no use        */

typedef struct {
    uint64_t *slots;        /* [mask + 1] left, right, rank from the top     */
    uint64_t  mask;         /* number of slots - 1, a power of two - 1       */
    int32_t  *merged;       /* [n] by rank: the id that the rule makes       */
    uint32_t  n;            /* rules                                         */
} di_merges_t;

static inline uint64_t
di_merges_hash(uint64_t pair)
{
    pair *= 0x9e3779b97f4a7c15u;
    return pair ^ pair >> 32;
}

/* Rank of the rule for two ids, DI_MERGES_NONE: none. */
static inline uint32_t
di_merges_rank(const di_merges_t *m, int32_t left, int32_t right)
{
    uint64_t pair = (uint64_t) left << DI_MERGES_ID_BITS | (uint64_t) right;
    uint64_t i = di_merges_hash(pair) & m->mask;

    /* A free slot's pair is all ones, which no pair of ids is. */
    while (m->slots[i] >> DI_MERGES_RANK_BITS != pair) {
        if (m->slots[i] == DI_MERGES_FREE)
            return DI_MERGES_NONE;
        i = (i + 1) & m->mask;
    }
    return (uint32_t) m->slots[i] & DI_MERGES_MAX;
}

#endif
