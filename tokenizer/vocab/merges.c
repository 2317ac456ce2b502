/*
 * merges.c - the merge rules of byte-pair encoding.
 *
 * The rules lie in one open-addressed table, half full at most, in which a
 * look-up is nearly always one cache line.  Encoding asks mostly for pairs
 * that have no rule: a table of bits, eight or more for each rule, spares
 * nine of ten of these the way to the big table.
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

bool
di_merges_init(di_merges_t *m, uint32_t n_tokens, uint64_t n_rules)
{
    uint64_t size = 16;

    while (size < n_rules * 2)
        size *= 2;
    m->mask = size - 1;
    m->slots = di_table_alloc(size, sizeof(*m->slots), 0xff);
    m->tokens = di_table_alloc(n_tokens, sizeof(*m->tokens), 0);
    m->bytes = di_table_alloc(256 * 256, sizeof(*m->bytes), 0xff);
    m->maybe = di_table_alloc(size / 16, sizeof(*m->maybe), 0);
    return m->slots != NULL && m->tokens != NULL && m->bytes != NULL
           && m->maybe != NULL;
}

void
di_merges_deinit(di_merges_t *m)
{
    free(m->slots);
    free(m->tokens);
    free(m->bytes);
    free(m->maybe);
}

static inline uint32_t
merges_order(const di_merges_t *m, int32_t left, int32_t right)
{
    const di_merges_rule_t *rule = di_merges_rule(m, left, right);

    return rule == NULL ? DI_MERGES_NONE : rule->order;
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
        uint32_t                 order = (uint32_t) rank + 2;
        const di_merges_token_t *l = &m->tokens[left];
        const di_merges_token_t *r = &m->tokens[right];
        uint64_t bit = di_merges_bit(m, di_merges_hash(left, right));

        m->maybe[bit / 64] |= 1ull << bit % 64;
        *di_merges_slot(m, left, right) = (di_merges_rule_t) {
            left, right, order, ids[rank][2],
        };
        if (l->order == 1 && r->order == 1)
            m->bytes[l->tail << 8 | r->head] = (di_merges_pair_t) {
                order, ids[rank][2],
            };
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

    m->ordered = true;
    for (uint64_t rank = 0; rank < n_rules; rank++) {
        const int32_t *id = ids[rank];
        uint32_t       l = m->tokens[id[0]].order;
        uint32_t       r = m->tokens[id[1]].order;
        bool           early = l >= rank + 2 || r >= rank + 2;

        m->ordered &= l != 0 && r != 0 && !early;
        if (l != 0 && r != 0 && early && m->tokens[id[2]].order == 0
            && merges_apart_before(m, id[0], id[1]))
            return rank;
    }
    return n_rules;
}

static inline di_merges_pair_t
merges_pair(const di_merges_t *m, int32_t left, int32_t right)
{
    const di_merges_rule_t *rule = di_merges_rule(m, left, right);

    if (rule == NULL)
        return (di_merges_pair_t) { DI_MERGES_NONE, 0 };
    return (di_merges_pair_t) { rule->order, rule->id };
}

/* Apply the rules to n tokens, whose pairs are known. */
static size_t
merges_apply(const di_merges_t *m, int32_t ids[DI_MERGES_SHORT],
             di_merges_pair_t pairs[DI_MERGES_SHORT], size_t n)
{
    size_t at, from;

    while (n > 1) {
        at = 0;
        for (size_t i = 1; i + 1 < n; i++)
            at = pairs[i].order < pairs[at].order ? i : at;
        if (pairs[at].order == DI_MERGES_NONE)
            break;

        ids[at] = pairs[at].id;
        n--;
        for (size_t i = at + 1; i < n; i++)
            ids[i] = ids[i + 1];
        for (size_t i = at; i + 1 < n; i++)
            pairs[i] = pairs[i + 1];
        from = at == 0 ? 0 : at - 1;
        for (size_t i = from; i <= at && i + 1 < n; i++)
            di_merges_prefetch(m, ids[i], ids[i + 1]);
        for (size_t i = from; i <= at && i + 1 < n; i++)
            pairs[i] = merges_pair(m, ids[i], ids[i + 1]);
    }
    return n;
}

size_t
di_merges_encode(const di_merges_t *m, const int32_t first[256],
                 const uint8_t *s, size_t len, int32_t ids[DI_MERGES_SHORT])
{
    di_merges_pair_t pairs[DI_MERGES_SHORT];    /* of ids i and i + 1        */

    for (size_t i = 0; i < len; i++)
        ids[i] = first[s[i]];
    for (size_t i = 0; i + 1 < len; i++)
        pairs[i] = m->bytes[s[i] << 8 | s[i + 1]];
    return merges_apply(m, ids, pairs, len);
}

size_t
di_merges_encode_from(const di_merges_t *m, int32_t ids[DI_MERGES_SHORT],
                      size_t n)
{
    di_merges_pair_t pairs[DI_MERGES_SHORT];

    for (size_t i = 0; i + 1 < n; i++)
        di_merges_prefetch(m, ids[i], ids[i + 1]);
    for (size_t i = 0; i + 1 < n; i++)
        pairs[i] = merges_pair(m, ids[i], ids[i + 1]);
    return merges_apply(m, ids, pairs, n);
}
