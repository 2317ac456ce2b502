/*
 * merges.c - the merge rules of byte-pair encoding.
 *
 * The rules lie in one open-addressed table of 8-byte slots, half full at
 * most: left id, right id and rank share a slot, so a look-up is nearly
 * always one cache line.  Encoding asks mostly for pairs that have no rule:
 * a table of bits, eight or more for each rule, spares nine of ten of these
 * the way to the big table.
 *
 * A vocabulary that was trained makes a token before it uses it, so ranks
 * grow from a token's sides to the token, and BPE applies its rules in the
 * order of their ranks.  All below rests on that.  Vocabularies converted
 * from lists of tokens have further rules for the same tokens, some of them
 * ahead of their sides; such a rule never fires if its token is whole by
 * another split: where its sides lay side by side, BPE would be at a state
 * that the way to the token by its own split never passes.  Where the token
 * isn't whole otherwise the rule matters, and the vocabulary is refused.
 */

#include <stdlib.h>
#include <string.h>

#include "merges.h"

bool
di_merges_init(di_merges_t *m, uint32_t n_tokens, uint64_t n_rules)
{
    uint64_t size = 16;

    while (size < n_rules * 2)
        size *= 2;
    m->mask = size - 1;
    m->slots = malloc(size * sizeof(*m->slots));
    m->tokens = calloc(n_tokens, sizeof(*m->tokens));
    m->bytes = malloc(256 * 256 * sizeof(*m->bytes));
    m->maybe = calloc(size / 16, sizeof(*m->maybe));
    if (m->slots == NULL || m->tokens == NULL || m->bytes == NULL
        || m->maybe == NULL)
        return false;
    memset(m->slots, 0xff, size * sizeof(*m->slots));
    memset(m->bytes, 0xff, 256 * 256 * sizeof(*m->bytes));
    return true;
}

void
di_merges_deinit(di_merges_t *m)
{
    free(m->slots);
    free(m->tokens);
    free(m->bytes);
    free(m->maybe);
}

static inline uint64_t
merges_hash(int32_t left, int32_t right)
{
    return ((uint64_t) left << DI_MERGES_ID_BITS | (uint64_t) right)
           * 0x9e3779b97f4a7c15u;
}

/* The bit of a pair in maybe[]. */
static inline uint64_t
merges_bit(const di_merges_t *m, uint64_t hash)
{
    return hash >> 20 & (m->mask << 2 | 3);
}

/* Slot of a pair, or the free one where it would go.  A free slot's pair is
 * all ones, which no pair of ids is. */
static inline uint64_t
merges_find(const di_merges_t *m, int32_t left, int32_t right)
{
    uint64_t pair = (uint64_t) left << DI_MERGES_ID_BITS | (uint64_t) right;
    uint64_t i = merges_hash(left, right) >> 32 & m->mask;

    while (m->slots[i] >> DI_MERGES_RANK_BITS != pair
           && m->slots[i] != DI_MERGES_FREE)
        i = (i + 1) & m->mask;
    return i;
}

/* Order of the rule for a pair; DI_MERGES_NONE: there is none.  Nearly all
 * pairs that are asked for have none, and the bits are small enough to stay
 * in a core's cache. */
static inline uint32_t
merges_order(const di_merges_t *m, int32_t left, int32_t right)
{
    uint64_t bit = merges_bit(m, merges_hash(left, right)), slot;

    if ((m->maybe[bit / 64] >> bit % 64 & 1) == 0)
        return DI_MERGES_NONE;
    slot = m->slots[merges_find(m, left, right)];
    if (slot == DI_MERGES_FREE)
        return DI_MERGES_NONE;
    return ((uint32_t) slot & DI_MERGES_MAX) + 2;
}

/* Does no rule join across the border of two tokens before they are whole?
 * Goes back in time: undoes the later of their last joins, and looks whether
 * the tokens that were at the border until then would have been joined
 * first. */
static bool
merges_apart_before(const di_merges_t *m, int32_t left, int32_t right)
{
    const di_merges_token_t *l = &m->tokens[left], *r = &m->tokens[right];
    uint32_t                 limit;

    while (l->order > 1 || r->order > 1) {
        if (l->order > r->order) {
            /* This join lay left of the border, so it came first among
             * those of the same order. */
            limit = l->order;
            left = l->right;
            l = &m->tokens[left];
            if (merges_order(m, left, right) < limit)
                return false;
        } else {
            limit = r->order;
            right = r->left;
            r = &m->tokens[right];
            if (merges_order(m, left, right) <= limit)
                return false;
        }
    }
    return true;
}

bool
di_merges_apart_deep(const di_merges_t *m, int32_t left, int32_t right)
{
    return merges_order(m, left, right) == DI_MERGES_NONE
           && merges_apart_before(m, left, right);
}

/* Enter the rules in the tables. */
static void
merges_enter(di_merges_t *m, const int32_t (*ids)[3], uint64_t n_rules)
{
    for (uint64_t rank = 0; rank < n_rules; rank++) {
        int32_t                  left = ids[rank][0], right = ids[rank][1];
        uint64_t                 pair = (uint64_t) left << DI_MERGES_ID_BITS
                                        | (uint64_t) right;
        const di_merges_token_t *l = &m->tokens[left];
        const di_merges_token_t *r = &m->tokens[right];
        uint64_t                 bit = merges_bit(m, merges_hash(left, right));

        m->maybe[bit / 64] |= 1ull << bit % 64;
        m->slots[merges_find(m, left, right)] =
            pair << DI_MERGES_RANK_BITS | rank;
        if (l->order == 1 && r->order == 1)
            m->bytes[l->tail << 8 | r->head] = (uint32_t) rank + 2;
    }
}

/* Make a token whole by a rule that joins two whole ones. */
static void
merges_join(di_merges_t *m, const int32_t id[3], uint64_t rank)
{
    const di_merges_token_t *l = &m->tokens[id[0]], *r = &m->tokens[id[1]];
    uint32_t                 order = (uint32_t) rank + 2;

    m->tokens[id[2]] = (di_merges_token_t) {
        .order = order,
        .left = id[0],
        .right = id[1],
        .shorter = -1,
        .head_order = l->order == 1 ? order : l->head_order,
        .tail_order = r->order == 1 ? order : r->tail_order,
        .len = l->len + r->len,
        .head = l->head,
        .tail = r->tail,
    };
}

uint64_t
di_merges_build(di_merges_t *m, const int32_t (*ids)[3], uint64_t n_rules,
                const int32_t bytes[256])
{
    for (unsigned i = 0; i < 256; i++) {
        if (bytes[i] >= 0)
            m->tokens[bytes[i]] = (di_merges_token_t) {
                .order = 1,
                .shorter = -1,
                .head_order = DI_MERGES_NEVER,
                .tail_order = DI_MERGES_NEVER,
                .len = 1,
                .head = (uint8_t) i,
                .tail = (uint8_t) i,
            };
    }
    merges_enter(m, ids, n_rules);

    /* The sides of a rule that fires are whole by now, so one pass finds
     * the splits of all. */
    for (uint64_t rank = 0; rank < n_rules; rank++) {
        const int32_t *id = ids[rank];

        if (m->tokens[id[2]].order == 0 && m->tokens[id[0]].order != 0
            && m->tokens[id[1]].order != 0
            && merges_order(m, id[0], id[1]) == rank + 2
            && merges_apart_before(m, id[0], id[1]))
            merges_join(m, id, rank);
    }

    for (uint64_t rank = 0; rank < n_rules; rank++) {
        const int32_t *id = ids[rank];
        uint32_t       l = m->tokens[id[0]].order;
        uint32_t       r = m->tokens[id[1]].order;

        if (l != 0 && r != 0 && (l >= rank + 2 || r >= rank + 2)
            && m->tokens[id[2]].order == 0
            && merges_apart_before(m, id[0], id[1]))
            return rank;
    }
    return n_rules;
}
