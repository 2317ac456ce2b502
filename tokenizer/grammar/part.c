/*
 * part.c - which tokens a state takes, as far as its own rule says.
 *
 * The mask of a text's place depends on the whole stack, but its parts don't:
 * from a state, a token goes some way inside the state's rule; it ends there,
 * or the rule ends (or calls another) in the middle of it.  A part is the
 * tokens that end, and for each state where the rule is left the set of trie
 * nodes reached.  What comes then is a part again: of that set of nodes and
 * the state to go on in.  So nothing here knows of stacks, a part is found
 * once for all grammars that have the rule, and most parts are a handful of
 * tokens.
 *
 * The root's part begins with what base.c knows without a walk.  Below that,
 * a subtree that a state takes whole is added as a stretch of ids, and one
 * that has nothing to add is passed over.
 */

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "part.h"

/* A place where the rule is left, on the way. */
typedef struct di_gram_left_s {
    uint32_t state, node;
} left_t;

/* ---------------------------------------------------------------- walks -- */

static void
set_bits(uint64_t *mask, const int32_t *tokens, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        mask[tokens[i] / 64] |= UINT64_C(1) << tokens[i] % 64;
}

/* Note where the rule can be left with bytes of tokens still to come. */
static void
leave(di_gram_walk_t *w, uint32_t state, uint32_t node)
{
    di_gram_index_t *x = w->x;

    if (x->n_left == x->left_cap) {
        uint32_t cap = x->left_cap == 0 ? 256 : x->left_cap * 2;
        void    *p = realloc(x->left, cap * sizeof(*x->left));

        if (p == NULL) {
            w->no_memory = true;
            return;
        }
        x->left = p;
        x->left_cap = cap;
    }
    x->left[x->n_left++] = (left_t) { state, node };
}

/* Take the tokens of these places in ids.  From a set of nodes, some of which
 * are below others, a token can be found once for each. */
static void
take(di_gram_walk_t *w, uint32_t from, uint32_t to)
{
    di_gram_index_t *x = w->x;

    if (to - from > x->found_max - w->n_found) {
        if (!w->spilt)
            memset(x->spilt, 0, x->words * sizeof(*x->spilt));
        w->spilt = true;
        set_bits(x->spilt, x->found, w->n_found);
        w->n_found = 0;
    }
    memcpy(x->found + w->n_found, x->ids + from,
           (to - from) * sizeof(*x->found));
    w->n_found += to - from;
}

/* All below a node is taken, and nothing there leaves the rule: its bytes
 * stay in the state, or are plain characters that the state has room for. */
static inline bool
takes_all(const di_gram_tnode_t *t, const di_gram_row_t *r)
{
    return (t->kinds & ~r->loops) == 0
           || (t->plain && t->chars <= r->run
               && (t->heads >> DI_GRAM_CONTINUATION & 1) == 0);
}

/* The base has what is below a node, or knows that it can't come. */
static inline bool
in_base(const di_gram_walk_t *w, const di_gram_tnode_t *t)
{
    return t->plain && (t->chars <= w->run || w->stops);
}

/* From a path that is in the base, what is below a node is, too, or can't
 * come. */
static inline bool
nothing_new(const di_gram_walk_t *w, const di_gram_tnode_t *t)
{
    return (t->kinds & w->outs) == 0 && t->deepest <= w->depth;
}

/* Follow the trie below a node from a state.  based: so far all bytes are of
 * the base's kinds, and where they led, the base holds. */
static void
walk(di_gram_walk_t *w, uint32_t node, uint32_t state, bool based)
{
    const di_gram_tnode_t *trie = w->x->trie, *t;
    const uint8_t         *kinds = w->x->kinds;
    const di_gram_row_t   *r;
    uint32_t               states[DI_GRAM_TOKEN_MAX + 1], to, last;
    uint32_t               end = trie[node].skip;
    unsigned               left;        /* the base at this depth            */
    uint64_t               work = 0;

    left = based ? UINT_MAX : 0;
    states[trie[node].depth] = state;
    for (uint32_t i = node + 1; i < end; ) {
        t = &trie[i];
        work++;
        if (in_base(w, t)) {
            i = t->skip;
            continue;
        }
        if (t->depth <= left)
            left = (w->loops >> kinds[t->byte] & 1) != 0
                   && t->depth <= w->depth ? UINT_MAX : t->depth;
        if (left == UINT_MAX && nothing_new(w, t)) {
            i = t->skip;
            continue;
        }
        to = di_gram_row(w, states[t->depth - 1])->to[t->byte];
        if (to == DI_GRAM_DEAD) {
            i = t->skip;
            continue;
        }
        last = i + 1;
        if (t->skip > last) {
            r = di_gram_row(w, to);
            if (takes_all(t, r)) {
                last = t->skip;
            } else {
                if ((r->calls & t->heads) != 0)
                    leave(w, to, i);
                if ((r->some & t->heads) == 0) {
                    take(w, t->rank, trie[last].rank);
                    i = t->skip;
                    continue;
                }
            }
        }
        take(w, t->rank, trie[last].rank);
        states[t->depth] = to;
        i = last;
    }
    w->x->work += work;
}

static int
by_state(const void *a, const void *b)
{
    const left_t *p = a, *q = b;

    if (p->state != q->state)
        return p->state < q->state ? -1 : 1;
    return (p->node > q->node) - (p->node < q->node);
}

static uint32_t *
set_bucket(di_gram_index_t *x, const uint32_t *nodes, uint32_t n)
{
    return &x->set_table[di_gram_hash(DI_GRAM_HASH_SEED, nodes, n)
                         % DI_GRAM_SET_BUCKETS];
}

/* The number of a set of nodes, those of left[n]. */
static uint32_t
node_set(di_gram_index_t *x, const left_t *left, uint32_t n)
{
    uint32_t *nodes = di_gram_index_alloc(x, n, sizeof(*nodes)), id, *at;

    if (nodes == NULL)
        return DI_GRAM_DEAD;
    for (uint32_t i = 0; i < n; i++)
        nodes[i] = left[i].node;
    at = set_bucket(x, nodes, n);
    for (id = *at; id != DI_GRAM_DEAD; id = x->sets[id].next) {
        if (x->sets[id].n == n
            && memcmp(x->sets[id].nodes, nodes, n * sizeof(*nodes)) == 0)
            return id;
    }
    if (x->n_sets == x->sets_cap) {
        void *p = realloc(x->sets, 2 * x->sets_cap * sizeof(*x->sets));

        if (p == NULL)
            return DI_GRAM_DEAD;
        x->sets = p;
        x->sets_cap *= 2;
    }
    x->sets[x->n_sets] = (di_gram_nodes_t) { nodes, n, *at };
    *at = x->n_sets;
    return x->n_sets++;
}

static bool
make_exits(di_gram_walk_t *w, di_gram_part_t *part, uint32_t first)
{
    di_gram_index_t *x = w->x;
    di_gram_exit_t  *exits;
    uint32_t         n = 0, i, end;

    if (x->n_left == 0)
        return true;
    x->work += x->n_left * UINT64_C(16);
    qsort(x->left, x->n_left, sizeof(*x->left), by_state);
    for (i = 0; i < x->n_left; i++)
        n += i == 0 || x->left[i].state != x->left[i - 1].state;
    exits = di_gram_index_alloc(x, n, sizeof(*exits));
    if (exits == NULL)
        return false;
    for (i = n = 0; i < x->n_left; i = end) {
        for (end = i; end < x->n_left
                      && x->left[end].state == x->left[i].state; end++)
            ;
        exits[n].state = x->left[i].state - first;
        exits[n].nodes = node_set(x, x->left + i, end - i);
        if (exits[n++].nodes == DI_GRAM_DEAD)
            return false;
    }
    part->exits = exits;
    part->n_exits = n;
    return true;
}

static bool
make_tokens(di_gram_walk_t *w, di_gram_part_t *part)
{
    di_gram_index_t *x = w->x;
    uint64_t        *dense;
    int32_t         *tokens;

    if (w->base == NULL && !w->spilt && w->n_found <= x->words) {
        tokens = di_gram_index_alloc(x, w->n_found, sizeof(*tokens));
        if (tokens == NULL)
            return false;
        memcpy(tokens, x->found, w->n_found * sizeof(*tokens));
        part->tokens = tokens;
        part->n_tokens = w->n_found;
        return true;
    }
    dense = di_gram_index_alloc(x, x->words, sizeof(*dense));
    if (dense == NULL)
        return false;
    x->work += x->words;
    if (w->base != NULL)
        memcpy(dense, w->base, x->words * sizeof(*dense));
    else
        memset(dense, 0, x->words * sizeof(*dense));
    for (uint32_t i = 1; w->excepts && i < x->trie[0].skip;
         i = x->trie[i].skip) {
        if (!di_gram_excepted(w, x->trie[i].byte))
            continue;
        for (uint32_t k = x->trie[i].rank;
             k < x->trie[x->trie[i].skip].rank; k++)
            dense[x->ids[k] / 64] &= ~(UINT64_C(1) << x->ids[k] % 64);
    }
    set_bits(dense, x->found, w->n_found);
    for (uint32_t i = 0; w->spilt && i < x->words; i++)
        dense[i] |= x->spilt[i];
    part->dense = dense;
    return true;
}

/* The root's tokens: first those that begin with an exception, all of them,
 * then of the others those that the base doesn't know. */
static void
walk_root(di_gram_walk_t *w, uint32_t state)
{
    const di_gram_tnode_t *trie = w->x->trie;
    uint32_t               rest = di_gram_find_base(w, state), root, to;
    uint64_t               kind;
    bool                   based;

    for (int pass = !w->excepts; pass < 2; pass++) {
        root = pass == 0 ? 0 : rest;
        for (uint32_t i = root + 1; i < trie[root].skip; i = trie[i].skip) {
            const di_gram_tnode_t *t = &trie[i];

            kind = UINT64_C(1) << w->x->kinds[t->byte];
            to = di_gram_row(w, state)->to[t->byte];
            based = pass == 1 && (w->loops & kind) != 0;
            if (di_gram_excepted(w, t->byte) != (pass == 0)
                || to == DI_GRAM_DEAD || (pass == 1 && in_base(w, t))
                || (based && nothing_new(w, t)))
                continue;
            take(w, t->rank, trie[i + 1].rank);
            if ((di_gram_row(w, to)->calls & t->heads) != 0)
                leave(w, to, i);
            walk(w, i, to, based);
        }
    }
}

static bool
make_part(di_gram_index_t *x, di_gram_t *g, di_gram_part_t *part,
          uint32_t state)
{
    uint32_t              rule = g->states[state].rule;
    const di_gram_nodes_t set = x->sets[part->nodes];
    di_gram_walk_t        w = {
        .x = x, .g = g, .returns = rule != g->head.root || g->root_called,
    };

    x->n_left = 0;
    if (!di_gram_prepare_plain(g))
        return false;
    if (x->rows_of != g->serial) {
        for (uint32_t i = 0; i < DI_GRAM_ROWS; i++)
            x->rows[i].state = DI_GRAM_DEAD;
        x->rows_of = g->serial;
    }
    if (part->nodes == 0)       /* the ways have all that comes unread       */
        walk_root(&w, state);
    for (uint32_t i = 0; part->nodes != 0 && i < set.n; i++) {
        if ((di_gram_row(&w, state)->calls & x->trie[set.nodes[i]].heads) != 0)
            leave(&w, state, set.nodes[i]);
        walk(&w, set.nodes[i], state, false);
    }
    x->stats.computed++;
    return !w.no_memory && make_tokens(&w, part)
           && make_exits(&w, part, g->rules[rule].first);
}

static uint32_t *
part_slot(di_gram_index_t *x, uint32_t nodes, uint32_t rule, uint32_t state)
{
    const uint32_t key[3] = { nodes, rule, state };
    uint32_t       at = (uint32_t) di_gram_hash(DI_GRAM_HASH_SEED, key, 3)
                        & x->part_mask;

    for (; x->part_table[at] != 0; at = (at + 1) & x->part_mask) {
        const di_gram_part_t *p = &x->parts[x->part_table[at] - 1];

        if (p->nodes == nodes && p->rule == rule && p->state == state)
            break;
    }
    return &x->part_table[at];
}

void
di_gram_enter_warm(di_gram_index_t *x)
{
    uint32_t *at;

    for (uint32_t i = 0; i < x->warm_parts; i++)
        *part_slot(x, x->parts[i].nodes, x->parts[i].rule,
                   x->parts[i].state) = i + 1;
    for (uint32_t i = 1; i < x->warm_sets; i++) {
        at = set_bucket(x, x->sets[i].nodes, x->sets[i].n);
        x->sets[i].next = *at;
        *at = i;
    }
}

static bool
grow_parts(di_gram_index_t *x)
{
    uint32_t *old = x->part_table;
    uint32_t  mask = x->part_mask * 2 + 1;
    void     *p;

    if (x->n_parts == x->parts_cap) {
        uint32_t cap = x->parts_cap == 0 ? 256 : x->parts_cap * 2;

        p = realloc(x->parts, cap * sizeof(*x->parts));
        if (p == NULL)
            return false;
        x->parts = p;
        x->parts_cap = cap;
    }
    if (x->n_parts * 2 <= x->part_mask)
        return true;
    p = calloc((size_t) mask + 1, sizeof(*x->part_table));
    if (p == NULL)
        return false;
    x->part_table = p;
    x->part_mask = mask;
    for (uint32_t i = 0; i < x->n_parts; i++)
        *part_slot(x, x->parts[i].nodes, x->parts[i].rule,
                   x->parts[i].state) = i + 1;
    free(old);
    return true;
}

const di_gram_part_t *
di_gram_part(di_gram_index_t *x, di_gram_t *g, uint32_t nodes,
             uint32_t state)
{
    uint32_t       rule = g->states[state].rule, number, *slot;
    di_gram_part_t part = { .nodes = nodes };

    number = di_gram_rule_number(x, g, rule);
    if (number == DI_GRAM_DEAD)
        return NULL;
    part.rule = number;
    part.state = state - g->rules[rule].first;
    slot = part_slot(x, nodes, number, part.state);
    if (*slot != 0) {
        x->stats.found++;
        return &x->parts[*slot - 1];
    }
    if (!make_part(x, g, &part, state) || !grow_parts(x)) {
        x->no_memory = true;
        return NULL;
    }
    x->parts[x->n_parts] = part;
    *part_slot(x, nodes, number, part.state) = ++x->n_parts;
    return &x->parts[x->n_parts - 1];
}
