/*
 * merges.h - the merge rules of byte-pair encoding.
 *
 * Inside tokenizer/vocab only; immutable once built.
 *
 * BPE starts from single bytes and joins, again and again, the neighbours
 * whose rule has the lowest rank, the leftmost of equals.  A token that BPE
 * makes of its own bytes is *whole*; no other ever appears in an encoding,
 * and each whole token has one split, the two tokens joined last to make it.
 *
 * Two neighbours *stay apart* if BPE of their bytes together gives these two
 * tokens again.  A sequence of whole tokens is the encoding of its bytes if
 * and only if all neighbours in it stay apart: the first join across a
 * border in the whole text would be the first one, too, in a text of the two
 * tokens beside it.  So an encoding can be checked pair by pair, and built
 * from the left without ever looking far (bpe.c).
 * Source: H. van Antwerpen and A. Neubeck, "So many tokens, so little time",
 * GitHub engineering blog, 2024, carried over to ranked rules.
 */

#ifndef DI_MERGES_H
#define DI_MERGES_H

#include <stdbool.h>
#include <stdint.h>

#define DI_MERGES_ID_BITS    20                     /* of a token id         */
#define DI_MERGES_RANK_BITS  24
#define DI_MERGES_IDS_MAX    (1u << DI_MERGES_ID_BITS)
#define DI_MERGES_MAX        ((1u << DI_MERGES_RANK_BITS) - 1)
#define DI_MERGES_NONE       UINT32_MAX             /* no such rule          */

#define DI_MERGES_NEVER      (UINT32_MAX - 1)       /* after all orders      */

/* A whole token, in half a cache line.  An order is the rank of a rule,
 * plus 2: BPE applies rules in this order. */
typedef struct {
    uint32_t order;         /* of its last join; 1: a byte; 0: not whole     */
    int32_t  left, right;   /* what that joined, if order > 1                */
    int32_t  shorter;       /* the longest whole token that starts this one;
                               -1: none (set with the trie)                  */
    uint32_t head_order;    /* of the join that took its first byte in;
                               DI_MERGES_NEVER for a byte                    */
    uint32_t tail_order;    /* the same for its last byte                    */
    uint32_t len;           /* bytes                                         */
    uint8_t  head;          /* its first byte                                */
    uint8_t  tail;          /* its last byte                                 */
} di_merges_token_t;

_Static_assert(sizeof(di_merges_token_t) == 32, "two in a cache line");

/* A rule. */
typedef struct {
    int32_t  left, right;   /* what it joins; left -1: the slot is free      */
    uint32_t order;
    int32_t  id;            /* what it makes                                 */
} di_merges_rule_t;

/* A rule for two bytes. */
typedef struct {
    uint32_t order;         /* DI_MERGES_NONE: there is none                 */
    int32_t  id;            /* what it makes                                 */
} di_merges_pair_t;

typedef struct {
    di_merges_rule_t *slots;    /* [mask + 1] the rules, open-addressed by
                               their sides                                   */
    uint64_t  mask;         /* number of slots - 1, a power of two - 1       */
    uint64_t *maybe;        /* [(mask + 1) / 16] four bits for each slot; a
                               pair whose bit is 0 has no rule               */
    di_merges_token_t *tokens;  /* [number of tokens]                        */
    bool      ordered;      /* all rules come behind those that make their
                               sides                                         */
    di_merges_pair_t *bytes;    /* [256 * 256] those for two bytes           */
} di_merges_t;

/* Prepare for n_tokens tokens and n_rules rules.  false: no memory. */
bool di_merges_init(di_merges_t *m, uint32_t n_tokens, uint64_t n_rules);
void di_merges_deinit(di_merges_t *m);

/* Add all rules: ids[rank] are left, right and joined token.  bytes[256]:
 * the tokens of single bytes, -1 for none.  Of two rules for one pair the
 * later counts.  Returns n_rules, or the rank of a rule that comes before
 * those that make its sides, and is needed. */
uint64_t di_merges_build(di_merges_t *m, const int32_t (*ids)[3],
                         uint64_t n_rules, const int32_t bytes[256]);

static inline uint64_t
di_merges_hash(int32_t left, int32_t right)
{
    return ((uint64_t) left << DI_MERGES_ID_BITS | (uint64_t) right)
           * 0x9e3779b97f4a7c15u;
}

/* The bit of a pair in maybe[]. */
static inline uint64_t
di_merges_bit(const di_merges_t *m, uint64_t hash)
{
    return hash >> 20 & (m->mask << 2 | 3);
}

/* Slot of a pair, or the free one where it would go. */
static inline di_merges_rule_t *
di_merges_slot(const di_merges_t *m, int32_t left, int32_t right)
{
    uint64_t i = di_merges_hash(left, right) >> 32 & m->mask;

    while ((m->slots[i].left != left || m->slots[i].right != right)
           && m->slots[i].left >= 0)
        i = (i + 1) & m->mask;
    return &m->slots[i];
}

/* Bring what di_merges_rule() needs into the core's cache. */
static inline void
di_merges_prefetch(const di_merges_t *m, int32_t left, int32_t right)
{
    uint64_t hash = di_merges_hash(left, right);

    __builtin_prefetch(&m->maybe[di_merges_bit(m, hash) / 64]);
    __builtin_prefetch(&m->slots[hash >> 32 & m->mask]);
}

/* The rule for a pair; NULL: there is none.  Nearly all pairs that are asked
 * for have none, and the bits are small enough to stay in a core's cache. */
static inline const di_merges_rule_t *
di_merges_rule(const di_merges_t *m, int32_t left, int32_t right)
{
    uint64_t bit = di_merges_bit(m, di_merges_hash(left, right));
    const di_merges_rule_t *rule;

    if ((m->maybe[bit / 64] >> bit % 64 & 1) == 0)
        return NULL;
    rule = di_merges_slot(m, left, right);
    return rule->left < 0 ? NULL : rule;
}

/* Encode len bytes, 1 to DI_MERGES_SHORT, by applying the rules: for each
 * join all pairs are looked through for the first, which is the fastest way
 * for so few.  first[256]: the tokens of bytes, all of which have one.
 * Returns the number of ids. */
#define DI_MERGES_SHORT  32

size_t di_merges_encode(const di_merges_t *m, const int32_t first[256],
                        const uint8_t *s, size_t len,
                        int32_t ids[DI_MERGES_SHORT]);

/* The same from n tokens on, at most DI_MERGES_SHORT. */
size_t di_merges_encode_from(const di_merges_t *m,
                             int32_t ids[DI_MERGES_SHORT], size_t n);

/* Do two whole tokens stay apart, once the bytes at their border do?
 * O(depth of their splits).  Use di_merges_apart(). */
bool di_merges_apart_deep(const di_merges_t *m, int32_t left, int32_t right);

/* Do two whole tokens stay apart?  Most that don't are found by looking only
 * at the bytes beside the border: their rule must not come before the joins
 * that took one of them away.  Of two joins in the same order the left one
 * comes first. */
static inline bool
di_merges_apart(const di_merges_t *m, int32_t left, int32_t right)
{
    const di_merges_token_t *l = &m->tokens[left], *r = &m->tokens[right];
    uint32_t                 order = m->bytes[l->tail << 8 | r->head].order;
    uint32_t                 limit;

    limit = l->tail_order <= r->head_order ? l->tail_order
                                           : r->head_order + 1;
    if (order < limit)
        return false;
    return (l->order == 1 && r->order == 1)
           || di_merges_apart_deep(m, left, right);
}

#endif
