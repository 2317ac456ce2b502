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
#include <stddef.h>
#include <stdint.h>

#define DI_MERGES_ID_BITS    20                     /* of a token id         */
#define DI_MERGES_RANK_BITS  24
#define DI_MERGES_IDS_MAX    (1u << DI_MERGES_ID_BITS)
#define DI_MERGES_MAX        ((1u << DI_MERGES_RANK_BITS) - 3)
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

/* Beyond a core's own cache a look at memory costs as much as all else that is
 * done for a join.  So the first rules, those of most look-ups, have a table of
 * their own, small enough to stay near, and beside them lie bits that tell for
 * most other pairs that there is no rule: nearly every look-up ends in the half
 * cache line where it began.
 *
 * A slot is the left side, the right side and the order of a rule, from the
 * top; 0 is a free one. */
#define DI_MERGES_SLOTS   3

typedef struct {
    uint64_t slots[DI_MERGES_SLOTS];
    uint64_t maybe;         /* a pair of this bucket that lacks one of its two
                               bits here is not among the other rules        */
} di_merges_bucket_t;

_Static_assert(sizeof(di_merges_bucket_t) == 32, "two in a cache line");

typedef struct {
    di_merges_bucket_t *first;  /* [first_mask + 1] of the rules of a bucket
                               the first                                     */
    uint64_t  first_mask;   /* a power of two - 1                            */
    uint64_t *rest;         /* [rest_mask + 1] the others, open-addressed    */
    uint64_t  rest_mask;    /* a power of two - 1                            */
    int32_t  *makes;        /* [n_rules + 2] by order: the token it makes    */
    bool      straight;     /* all of them are the order, plus               */
    int32_t   straight_from;    /* this                                      */
    bool      ordered;      /* all rules come behind those that make their
                               sides                                         */
    bool      twice;        /* there are two rules for one pair              */
    di_merges_token_t *tokens;  /* [number of tokens]                        */
    uint32_t *bytes;        /* [256 * 256] orders of those for two bytes,
                               DI_MERGES_NONE: none                          */
    uint32_t *maybe;        /* a bit for each hash of a pair by
                               di_merges_sign(), 0 if no such pair has a rule */
    unsigned  maybe_shift;  /* of that hash, to the number of its bit        */
    uint32_t  n_rules;
    bool      print;        /* the tokens of ! to ~ have consecutive ids     */
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
di_merges_pair(int32_t left, int32_t right)
{
    return (uint64_t) left << DI_MERGES_ID_BITS | (uint64_t) right;
}

static inline uint64_t
di_merges_hash(uint64_t pair)
{
    return pair * 0x9e3779b97f4a7c15u;
}

/* The two bits of a pair. */
static inline uint64_t
di_merges_bits(uint64_t hash)
{
    return 1ull << (hash >> 26 & 63) | 1ull << (hash >> 20 & 63);
}

/* The bucket of a pair among the first rules. */
static inline di_merges_bucket_t *
di_merges_bucket(const di_merges_t *m, uint64_t hash)
{
    return &m->first[hash >> 40 & m->first_mask];
}

/* Where a search among the others starts. */
static inline uint64_t *
di_merges_home(const di_merges_t *m, uint64_t hash)
{
    return &m->rest[hash >> 32 & m->rest_mask];
}

/* Ask for what di_merges_order_near() looks at. */
static inline void
di_merges_prefetch(const di_merges_t *m, int32_t left, int32_t right)
{
    __builtin_prefetch(di_merges_bucket(m, di_merges_hash(
                                            di_merges_pair(left, right))));
}

/* A hash of 32 bits, of which vectors are computed with ease; the upper ones
 * are the better. */
#define DI_MERGES_SIGN_LEFT  0x9e3779b1u
#define DI_MERGES_SIGN_BOTH  0x85ebca6bu

static inline uint32_t
di_merges_sign(int32_t left, int32_t right)
{
    return ((uint32_t) left * DI_MERGES_SIGN_LEFT + (uint32_t) right)
           * DI_MERGES_SIGN_BOTH;
}

/* May a pair have a rule?  For most that have none the answer is no, which
 * costs less than looking for the rule. */
static inline bool
di_merges_maybe(const di_merges_t *m, uint32_t sign)
{
    uint32_t bit = sign >> m->maybe_shift;

    return m->maybe[bit / 32] >> bit % 32 & 1;
}

/* The order in a slot. */
static inline uint32_t
di_merges_order_in(uint64_t slot)
{
    return slot == 0 ? DI_MERGES_NONE
                     : (uint32_t) slot & ((1u << DI_MERGES_RANK_BITS) - 1);
}

/* The order of the rule for a pair with this hash, of which `slot` is the slot
 * in its bucket, or 0; and are the other rules to be asked? */
static inline uint32_t
di_merges_near(const di_merges_t *m, uint64_t hash,
               const di_merges_bucket_t *bucket, uint64_t slot, bool *far)
{
    uint64_t bits = di_merges_bits(hash);

    *far = (slot == 0) & ((bucket->maybe & bits) == bits);
    if (*far)
        __builtin_prefetch(di_merges_home(m, hash));
    return di_merges_order_in(slot);
}

/* The order of the rule for a pair, DI_MERGES_NONE if there is none, as far
 * as near memory tells; or else *far is set, and di_merges_order_far() will
 * tell, for which memory has been asked.  What is found can't be foreseen,
 * so nothing branches on it. */
static inline uint32_t
di_merges_order_near(const di_merges_t *m, int32_t left, int32_t right,
                     bool *far)
{
    uint64_t pair = di_merges_pair(left, right), slot = 0;
    uint64_t hash = di_merges_hash(pair);
    const di_merges_bucket_t *bucket = di_merges_bucket(m, hash);

    for (int i = 0; i < DI_MERGES_SLOTS; i++)
        slot |= bucket->slots[i] >> DI_MERGES_RANK_BITS == pair
                ? bucket->slots[i] : 0;
    return di_merges_near(m, hash, bucket, slot, far);
}

/* The slot of a pair among the rules that aren't near, or the free one where
 * it would go. */
static inline uint64_t *
di_merges_slot_far(const di_merges_t *m, uint64_t pair)
{
    uint64_t i = di_merges_hash(pair) >> 32 & m->rest_mask;

    while (m->rest[i] >> DI_MERGES_RANK_BITS != pair && m->rest[i] != 0)
        i = (i + 1) & m->rest_mask;
    return &m->rest[i];
}

static inline uint32_t
di_merges_order_far(const di_merges_t *m, int32_t left, int32_t right)
{
    return di_merges_order_in(*di_merges_slot_far(m, di_merges_pair(left,
                                                                    right)));
}

/* The order of the rule for a pair, DI_MERGES_NONE if there is none. */
static inline uint32_t
di_merges_order(const di_merges_t *m, int32_t left, int32_t right)
{
    bool     far;
    uint32_t order = di_merges_order_near(m, left, right, &far);

    return far ? di_merges_order_far(m, left, right) : order;
}

/* The token that a rule makes. */
static inline int32_t
di_merges_makes(const di_merges_t *m, uint32_t order)
{
    return m->straight ? (int32_t) order + m->straight_from
                       : m->makes[order];
}

/* The order of a token's last join; less than 2 for a byte's. */
static inline uint32_t
di_merges_born(const di_merges_t *m, int32_t id)
{
    uint32_t order = (uint32_t) (id - m->straight_from);

    if (!m->straight)
        return m->tokens[id].order;
    return order - 2 < m->n_rules ? order : 1;
}

/* Does no rule join across the border of two tokens before they are whole?
 * O(depth of their splits). */
bool di_merges_apart_before(const di_merges_t *m, int32_t left, int32_t right);

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
    uint32_t                 order = m->bytes[l->tail << 8 | r->head];
    uint32_t                 limit;

    limit = l->tail_order <= r->head_order ? l->tail_order
                                           : r->head_order + 1;
    if (order < limit)
        return false;
    return (l->order == 1 && r->order == 1)
           || di_merges_apart_deep(m, left, right);
}

#endif
