/*
 * merges.c - the merge rules of byte-pair encoding.
 *
 * The rules lie in tables in which a look-up is nearly always one cache line.
 * Encoding asks mostly for pairs that have no rule: nine bits or more for each
 * rule of the big table spare nine of ten of these the way there.
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
#include "table.h"

#define MERGES_AHEAD   16           /* rules for which memory is asked early */
#define MERGES_BUCKET  5            /* rules for each bucket, up to twice as
                                       many                                  */
#define MERGES_MAYBE   12           /* bits for each rule, the same          */

/* A power of two, n at least. */
static uint64_t
merges_size(uint64_t n)
{
    uint64_t size = 16;

    while (size < n)
        size *= 2;
    return size;
}

bool
di_merges_init(di_merges_t *m, uint32_t n_tokens, uint64_t n_rules)
{
    uint64_t buckets = merges_size(n_rules / MERGES_BUCKET + 1) / 2;
    uint64_t bits = merges_size(n_rules * MERGES_MAYBE + 32);

    m->first_mask = buckets - 1;
    m->rest_mask = merges_size(n_rules * 2) - 1;
    m->first = di_table_alloc(buckets, sizeof(*m->first), 0);
    m->rest = di_table_alloc(m->rest_mask + 1, sizeof(*m->rest), 0);
    m->makes = di_table_alloc(n_rules + 2, sizeof(*m->makes), 0);
    m->tokens = di_table_alloc(n_tokens, sizeof(*m->tokens), 0);
    m->bytes = di_table_alloc(256 * 256, sizeof(*m->bytes), 0xff);
    m->maybe_shift = 32 - (unsigned) __builtin_ctzll(bits);
    m->maybe = di_table_alloc(bits / 32, sizeof(*m->maybe), 0);
    return m->first != NULL && m->rest != NULL && m->makes != NULL
           && m->tokens != NULL && m->bytes != NULL && m->maybe != NULL;
}

void
di_merges_deinit(di_merges_t *m)
{
    free(m->first);
    free(m->rest);
    free(m->makes);
    free(m->tokens);
    free(m->bytes);
    free(m->maybe);
}

/* Goes back in time: undoes the later of their last joins, and looks whether
 * the tokens that were at the border until then would have been joined
 * first. */
bool
di_merges_apart_before(const di_merges_t *m, int32_t left, int32_t right)
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
            if (di_merges_order(m, left, right) < limit)
                return false;
        } else {
            limit = r->order;
            right = r->left;
            r = &m->tokens[right];
            if (di_merges_order(m, left, right) <= limit)
                return false;
        }
    }
    return true;
}

bool
di_merges_apart_deep(const di_merges_t *m, int32_t left, int32_t right)
{
    return di_merges_order(m, left, right) == DI_MERGES_NONE
           && di_merges_apart_before(m, left, right);
}

/* The slot among the first rules that a pair has, or may have; NULL: its
 * bucket is full. */
static uint64_t *
merges_slot_near(const di_merges_t *m, uint64_t pair)
{
    uint64_t *slots = di_merges_bucket(m, di_merges_hash(pair))->slots;

    for (int i = 0; i < DI_MERGES_SLOTS; i++) {
        if (slots[i] == 0 || slots[i] >> DI_MERGES_RANK_BITS == pair)
            return &slots[i];
    }
    return NULL;
}

/* Enter a rule in the tables.  Of two for one pair the later takes the place
 * of the other. */
static void
merges_enter(di_merges_t *m, const int32_t id[3], uint64_t rank)
{
    uint64_t  order = rank + 2, pair = di_merges_pair(id[0], id[1]);
    uint64_t  hash = di_merges_hash(pair);
    uint64_t *slot = merges_slot_near(m, pair);
    uint32_t  bit = di_merges_sign(id[0], id[1]) >> m->maybe_shift;

    m->maybe[bit / 32] |= 1u << bit % 32;
    m->makes[order] = id[2];
    if (rank == 0)
        m->straight_from = id[2] - 2;
    m->straight &= id[2] - (int32_t) order == m->straight_from;

    if (slot == NULL) {
        slot = di_merges_slot_far(m, pair);
        di_merges_bucket(m, hash)->maybe |= di_merges_bits(hash);
    }
    m->twice |= *slot != 0;
    *slot = pair << DI_MERGES_RANK_BITS | order;
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

/* Ask for the tokens of a rule, and for what di_merges_apart_before() will see
 * first of those of a nearer one. */
static inline void
merges_prefetch(const di_merges_t *m, const int32_t id[3],
                const int32_t near[3])
{
    for (int i = 0; i < 3; i++)
        __builtin_prefetch(&m->tokens[id[i]], 1);
    __builtin_prefetch(&m->tokens[m->tokens[near[0]].right]);
    __builtin_prefetch(&m->tokens[m->tokens[near[1]].left]);
}

/* Find the splits of all tokens.  The sides of a rule that fires are whole
 * by its time, so one pass does.  n_rules, or the rank of a rule that comes
 * before those that make its sides, and is needed. */
static uint64_t
merges_split(di_merges_t *m, const int32_t (*ids)[3], uint64_t n_rules)
{
    m->ordered = true;
    for (uint64_t rank = 0; rank < n_rules; rank++) {
        const int32_t *id = ids[rank];
        bool           whole = m->tokens[id[0]].order != 0
                               && m->tokens[id[1]].order != 0;

        if (rank + MERGES_AHEAD < n_rules)
            merges_prefetch(m, ids[rank + MERGES_AHEAD],
                            ids[rank + MERGES_AHEAD / 2]);
        m->ordered &= whole;
        if (whole && m->tokens[id[2]].order == 0
            && (!m->twice || di_merges_order(m, id[0], id[1]) == rank + 2)
            && di_merges_apart_before(m, id[0], id[1]))
            merges_join(m, id, rank);
    }

    for (uint64_t rank = 0; !m->ordered && rank < n_rules; rank++) {
        const int32_t *id = ids[rank];
        uint32_t       l = m->tokens[id[0]].order;
        uint32_t       r = m->tokens[id[1]].order;

        if (l != 0 && r != 0 && (l >= rank + 2 || r >= rank + 2)
            && m->tokens[id[2]].order == 0
            && di_merges_apart_before(m, id[0], id[1]))
            return rank;
    }
    return n_rules;
}

uint64_t
di_merges_build(di_merges_t *m, const int32_t (*ids)[3], uint64_t n_rules,
                const int32_t bytes[256])
{
    uint64_t hash;

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
    m->print = true;
    for (int i = '!'; i <= '~'; i++)
        m->print &= bytes[i] == bytes['!'] + i - '!';
    m->straight = true;
    m->n_rules = (uint32_t) n_rules;
    for (uint64_t rank = 0; rank < n_rules; rank++) {
        if (rank + MERGES_AHEAD < n_rules) {
            const int32_t *id = ids[rank + MERGES_AHEAD];

            hash = di_merges_hash(di_merges_pair(id[0], id[1]));
            __builtin_prefetch(di_merges_bucket(m, hash), 1);
            __builtin_prefetch(di_merges_home(m, hash), 1);
        }
        merges_enter(m, ids[rank], rank);
    }
    for (unsigned i = 0; i < 256 * 256; i++) {
        if (bytes[i >> 8] >= 0 && bytes[i & 0xff] >= 0)
            m->bytes[i] = di_merges_order(m, bytes[i >> 8], bytes[i & 0xff]);
    }
    return merges_split(m, ids, n_rules);
}
