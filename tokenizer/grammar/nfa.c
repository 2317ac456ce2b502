/*
 * nfa.c - automata with choices, and their deterministic form.
 *
 * An expression becomes states and edges by Thompson's construction; a
 * bounded repetition is its copies.  The deterministic automaton is built by
 * subsets.  Calls of rules are letters like any other, so two branches that
 * call the same rule go on as one.
 *
 * Anchors are edges too.  A start edge may be followed only where nothing
 * was read yet, an end edge only to see whether the text may end here: a
 * state reached over it has no other way on.
 */

#include <stdlib.h>
#include <string.h>

#include "blob.h"
#include "build.h"

#define STATES_MAX  1000000u

di_gram_nfa_t *
di_gram_nfa_new(di_gram_ctx_t *c)
{
    di_gram_nfa_t *nfa = di_gram_alloc(c, 1, sizeof(*nfa));

    (void) di_gram_nfa_state(c, nfa);
    (void) di_gram_nfa_state(c, nfa);
    return nfa;
}

uint32_t
di_gram_nfa_state(di_gram_ctx_t *c, di_gram_nfa_t *nfa)
{
    di_gram_work(c, 1);
    if (nfa->n_states == STATES_MAX)
        di_gram_fail(c, DI_ELIMIT, "repetition", "",
                     "needs over %u states", STATES_MAX);
    nfa->edges_of = di_gram_grow(c, nfa->edges_of, nfa->n_states,
                                 &nfa->states_cap, sizeof(uint32_t));
    nfa->edges_of[nfa->n_states] = DI_GRAM_NONE;
    return nfa->n_states++;
}

static di_gram_edge_t *
edge(di_gram_ctx_t *c, di_gram_nfa_t *nfa, uint32_t from,
     di_gram_edge_kind_t kind, uint32_t to)
{
    di_gram_edge_t *e;

    di_gram_work(c, 1);
    nfa->edges = di_gram_grow(c, nfa->edges, nfa->n_edges, &nfa->edges_cap,
                              sizeof(*nfa->edges));
    e = &nfa->edges[nfa->n_edges];
    *e = (di_gram_edge_t) {
        .kind = kind, .to = to, .next = nfa->edges_of[from],
    };
    nfa->edges_of[from] = nfa->n_edges++;
    if (kind == DI_GRAM_E_BOS || kind == DI_GRAM_E_EOS)
        nfa->anchored = true;
    return e;
}

void
di_gram_nfa_eps(di_gram_ctx_t *c, di_gram_nfa_t *nfa, uint32_t from,
                uint32_t to)
{
    (void) edge(c, nfa, from, DI_GRAM_E_EPS, to);
}

void
di_gram_nfa_set(di_gram_ctx_t *c, di_gram_nfa_t *nfa, uint32_t from,
                di_gram_set_t set, uint32_t to)
{
    if (set.n > 0)
        edge(c, nfa, from, DI_GRAM_E_SET, to)->set = set;
}

void
di_gram_nfa_call(di_gram_ctx_t *c, di_gram_nfa_t *nfa, uint32_t from,
                 uint32_t rule, uint32_t to)
{
    edge(c, nfa, from, DI_GRAM_E_CALL, to)->rule = rule;
}

uint32_t
di_gram_nfa_text(di_gram_ctx_t *c, di_gram_nfa_t *nfa, uint32_t from,
                 const char *s)
{
    uint32_t to;

    for (; *s != '\0'; s++, from = to) {
        to = di_gram_nfa_state(c, nfa);
        di_gram_nfa_set(c, nfa, from, di_gram_set(c, (uint8_t) *s,
                                                  (uint8_t) *s), to);
    }
    return from;
}

static uint32_t
repeat(di_gram_ctx_t *c, di_gram_nfa_t *nfa, uint32_t from,
       const di_gram_node_t *node)
{
    uint32_t end, loop;

    for (uint32_t i = 0; i < node->min; i++)
        from = di_gram_nfa_node(c, nfa, from, node->first);

    end = di_gram_nfa_state(c, nfa);
    if (node->max == DI_GRAM_NONE) {
        /* A state of its own on both sides: what comes in by another way
         * must not go round. */
        loop = di_gram_nfa_state(c, nfa);
        di_gram_nfa_eps(c, nfa, from, loop);
        di_gram_nfa_eps(c, nfa, di_gram_nfa_node(c, nfa, loop, node->first),
                        loop);
        di_gram_nfa_eps(c, nfa, loop, end);
        return end;
    }
    for (uint32_t i = node->min; i < node->max; i++) {
        di_gram_nfa_eps(c, nfa, from, end);
        from = di_gram_nfa_node(c, nfa, from, node->first);
    }
    di_gram_nfa_eps(c, nfa, from, end);
    return end;
}

/* A copy of an automaton; returns where its texts end. */
static uint32_t
automaton(di_gram_ctx_t *c, di_gram_nfa_t *nfa, uint32_t from,
          const di_gram_dfa_t *d)
{
    uint32_t first = nfa->n_states, to;

    for (uint32_t i = 0; i < d->n; i++)
        (void) di_gram_nfa_state(c, nfa);
    to = di_gram_nfa_state(c, nfa);
    if (d->n > 0)
        di_gram_nfa_eps(c, nfa, from, first);
    for (uint32_t i = 0; i < d->n; i++) {
        const di_gram_state_t *s = &d->s[i];

        for (uint32_t k = 0; k < s->n_arcs; k++)
            di_gram_nfa_set(c, nfa, first + i,
                            di_gram_set(c, s->arcs[k].lo, s->arcs[k].hi),
                            first + s->arcs[k].to);
        if (s->final)
            di_gram_nfa_eps(c, nfa, first + i, to);
    }
    return to;
}

uint32_t
di_gram_nfa_node(di_gram_ctx_t *c, di_gram_nfa_t *nfa, uint32_t from,
                 const di_gram_node_t *node)
{
    const di_gram_node_t *kid;
    uint32_t              to;

    switch (node->kind) {
    case DI_GRAM_N_EMPTY:
        return from;
    case DI_GRAM_N_CAT:
        for (kid = node->first; kid != NULL; kid = kid->next)
            from = di_gram_nfa_node(c, nfa, from, kid);
        return from;
    case DI_GRAM_N_REP:
        return repeat(c, nfa, from, node);
    case DI_GRAM_N_DFA:
        return automaton(c, nfa, from, node->dfa);
    case DI_GRAM_N_ALT:
        to = di_gram_nfa_state(c, nfa);
        for (kid = node->first; kid != NULL; kid = kid->next) {
            uint32_t in = di_gram_nfa_state(c, nfa);

            di_gram_nfa_eps(c, nfa, from, in);
            di_gram_nfa_eps(c, nfa, di_gram_nfa_node(c, nfa, in, kid), to);
        }
        return to;
    default:
        to = di_gram_nfa_state(c, nfa);
        if (node->kind == DI_GRAM_N_SET)
            di_gram_nfa_set(c, nfa, from, node->set, to);
        else if (node->kind == DI_GRAM_N_CALL)
            di_gram_nfa_call(c, nfa, from, node->rule, to);
        else if (node->kind == DI_GRAM_N_BOS)
            (void) edge(c, nfa, from, DI_GRAM_E_BOS, to);
        else if (node->kind == DI_GRAM_N_EOS)
            (void) edge(c, nfa, from, DI_GRAM_E_EOS, to);
        return to;
    }
}

/* ------------------------------------------------------------- subsets -- */

typedef struct {
    uint32_t  first;        /* in list: its NFA states, sorted               */
    uint32_t  n;
    uint32_t  hash;
} subset_t;

typedef struct {
    di_gram_ctx_t       *c;
    const di_gram_nfa_t *nfa;
    di_gram_dfa_t       *dfa;       /* state i is subset i                   */

    subset_t *subsets;      /* [dfa->n]                                      */
    uint32_t  subsets_cap;
    uint32_t *list;         /* [n_list] members of all subsets               */
    uint32_t  n_list, list_cap;
    uint32_t *table;        /* [mask + 1] subset + 1, 0: free                */
    uint32_t  mask;

    uint32_t *mark;         /* [n_states] round in which it was taken        */
    uint32_t  round;
    uint32_t *stack;        /* [n_states] of closure()                       */
    uint32_t *out;          /* [n_states] closure()'s result                 */
    di_gram_arc_t *moves;   /* [n_moves] of the subset at hand, by state     */
    uint32_t  n_moves, moves_cap;
    uint32_t *cuts;         /* where a move begins or ends                   */
    uint32_t  cuts_cap;
    uint32_t *targets;      /* [n_states] of one stretch                     */
    uint32_t *active;       /* moves that reach into the stretch             */
    uint32_t  active_cap;
} build_t;

static int
by_value(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *) a, y = *(const uint32_t *) b;

    return (x > y) - (x < y);
}

static int
by_lo(const void *a, const void *b)
{
    const di_gram_arc_t *x = a, *y = b;

    return (x->lo > y->lo) - (x->lo < y->lo);
}

/* Small arrays are the rule, and often sorted already. */
static void
sort_states(uint32_t *v, uint32_t n)
{
    if (n > 32) {
        qsort(v, n, sizeof(*v), by_value);
        return;
    }
    for (uint32_t i = 1; i < n; i++) {
        uint32_t x = v[i], k = i;

        for (; k > 0 && v[k - 1] > x; k--)
            v[k] = v[k - 1];
        v[k] = x;
    }
}

/* States reached from `from` without reading, over edges of the kinds in
 * `through` too; only those that have more than such edges, or are the end,
 * are kept in out.  *final: the end is among them. */
static uint32_t
closure(build_t *b, const uint32_t *from, uint32_t n, unsigned through,
        bool *final)
{
    const di_gram_edge_t *e;
    uint32_t              top = 0, k = 0, s, at;
    bool                  keep;

    *final = false;
    b->round++;
    for (uint32_t i = 0; i < n; i++) {
        if (b->mark[from[i]] != b->round) {
            b->mark[from[i]] = b->round;
            b->stack[top++] = from[i];
        }
    }
    while (top > 0) {
        s = b->stack[--top];
        di_gram_work(b->c, 1);
        keep = s == 1;
        *final = *final || s == 1;
        for (at = b->nfa->edges_of[s]; at != DI_GRAM_NONE; at = e->next) {
            e = &b->nfa->edges[at];
            if (e->kind != DI_GRAM_E_EPS)
                keep = true;
            if ((through & 1u << e->kind) != 0
                && b->mark[e->to] != b->round) {
                b->mark[e->to] = b->round;
                b->stack[top++] = e->to;
            }
        }
        if (keep)
            b->out[k++] = s;
    }
    sort_states(b->out, k);
    return k;
}

static void
rehash(build_t *b)
{
    uint32_t i, at;

    b->mask = b->mask == 0 ? 255 : b->mask * 2 + 1;
    b->table = di_gram_alloc(b->c, b->mask + 1, sizeof(*b->table));
    for (i = 0; i < b->dfa->n; i++) {
        for (at = b->subsets[i].hash & b->mask; b->table[at] != 0;
             at = (at + 1) & b->mask)
            ;
        b->table[at] = i + 1;
    }
}

/* The deterministic state of the subset that is b->out[n]. */
static uint32_t
intern(build_t *b, uint32_t n, bool final)
{
    uint32_t hash = (uint32_t) di_gram_hash(DI_GRAM_HASH_SEED, b->out, n);
    uint32_t at, id;

    if (b->dfa->n * 2 >= b->mask)
        rehash(b);
    for (at = hash & b->mask; b->table[at] != 0; at = (at + 1) & b->mask) {
        const subset_t *s = &b->subsets[b->table[at] - 1];

        if (s->hash == hash && s->n == n
            && memcmp(b->list + s->first, b->out, n * sizeof(uint32_t)) == 0)
            return b->table[at] - 1;
    }

    b->subsets = di_gram_grow(b->c, b->subsets, b->dfa->n, &b->subsets_cap,
                              sizeof(*b->subsets));
    id = di_gram_dfa_state(b->c, b->dfa);
    b->dfa->s[id].final = final;
    b->subsets[id] = (subset_t) { b->n_list, n, hash };
    b->table[at] = id + 1;
    for (uint32_t i = 0; i < n; i++) {
        b->list = di_gram_grow(b->c, b->list, b->n_list, &b->list_cap,
                               sizeof(uint32_t));
        b->list[b->n_list++] = b->out[i];
    }
    return id;
}

/* The state after reading into targets[n]: whether the text may end there is
 * seen with the end edges, what may follow without them. */
static uint32_t
go(build_t *b, uint32_t *targets, uint32_t n, unsigned start)
{
    const unsigned eps = 1u << DI_GRAM_E_EPS;
    bool           final, unused;
    uint32_t       k;

    if (!b->nfa->anchored) {
        k = closure(b, targets, n, eps, &final);
        return intern(b, k, final);
    }
    (void) closure(b, targets, n, eps | 1u << DI_GRAM_E_EOS | start, &final);
    k = closure(b, targets, n, eps | start, &unused);
    return intern(b, k, final);
}

/* The moves of subset `id` over sets, and its calls, one for each rule. */
static void
moves_of(build_t *b, uint32_t id)
{
    const subset_t        sub = b->subsets[id];
    di_gram_state_t      *s;
    const di_gram_edge_t *e, *f;
    uint32_t              n, cap = 0, at, other;

    b->n_moves = 0;
    for (uint32_t i = 0; i < sub.n; i++) {
        for (at = b->nfa->edges_of[b->list[sub.first + i]];
             at != DI_GRAM_NONE; at = e->next) {
            e = &b->nfa->edges[at];
            for (uint32_t k = 0;
                 e->kind == DI_GRAM_E_SET && k < e->set.n; k++) {
                b->moves = di_gram_grow(b->c, b->moves, b->n_moves,
                                        &b->moves_cap, sizeof(*b->moves));
                b->moves[b->n_moves++] = (di_gram_arc_t) {
                    e->set.r[k].lo, e->set.r[k].hi, e->to,
                };
            }
            if (e->kind != DI_GRAM_E_CALL)
                continue;

            for (n = 0; n < b->dfa->s[id].n_calls; n++) {
                if (b->dfa->s[id].calls[n].rule == e->rule)
                    break;
            }
            if (n < b->dfa->s[id].n_calls)
                continue;
            n = 0;
            for (uint32_t k = i; k < sub.n; k++) {
                for (other = b->nfa->edges_of[b->list[sub.first + k]];
                     other != DI_GRAM_NONE; other = f->next) {
                    f = &b->nfa->edges[other];
                    di_gram_work(b->c, 1);
                    if (f->kind == DI_GRAM_E_CALL && f->rule == e->rule
                        && n < b->nfa->n_states)
                        b->targets[n++] = f->to;
                }
            }
            n = go(b, b->targets, n, 0);
            s = &b->dfa->s[id];
            s->calls = di_gram_grow(b->c, s->calls, s->n_calls, &cap,
                                    sizeof(*s->calls));
            s->calls[s->n_calls++] = (di_gram_call_t) { e->rule, n };
        }
    }
}

static void
arc(build_t *b, uint32_t id, uint32_t *cap, uint32_t lo, uint32_t hi,
    uint32_t to)
{
    di_gram_state_t *s = &b->dfa->s[id];

    if (s->n_arcs > 0 && s->arcs[s->n_arcs - 1].to == to
        && s->arcs[s->n_arcs - 1].hi + 1 == lo) {
        s->arcs[s->n_arcs - 1].hi = hi;
        return;
    }
    s->arcs = di_gram_grow(b->c, s->arcs, s->n_arcs, cap, sizeof(*s->arcs));
    s->arcs[s->n_arcs++] = (di_gram_arc_t) { lo, hi, to };
}

/* Sweep over the stretches between the cuts; `active` are the moves that
 * cover the one at hand. */
static void
sweep(build_t *b, uint32_t id)
{
    uint32_t n_cuts = 0, n_active = 0, next = 0, cap = 0, k, n, to = 0;
    bool     same = false;

    for (uint32_t i = 0; i < b->n_moves; i++) {
        for (k = 0; k < 2; k++) {
            b->cuts = di_gram_grow(b->c, b->cuts, n_cuts, &b->cuts_cap,
                                   sizeof(uint32_t));
            b->cuts[n_cuts++] = k == 0 ? b->moves[i].lo
                                       : b->moves[i].hi + 1;
        }
    }
    qsort(b->moves, b->n_moves, sizeof(*b->moves), by_lo);
    sort_states(b->cuts, n_cuts);

    for (uint32_t i = 0; i + 1 < n_cuts; i++) {
        uint32_t lo = b->cuts[i];

        if (lo == b->cuts[i + 1])
            continue;
        for (k = 0, n = 0; k < n_active; k++) {
            if (b->moves[b->active[k]].hi >= lo)
                b->active[n++] = b->active[k];
            else
                same = false;
        }
        n_active = n;
        for (; next < b->n_moves && b->moves[next].lo == lo; next++) {
            b->active = di_gram_grow(b->c, b->active, n_active,
                                     &b->active_cap, sizeof(uint32_t));
            b->active[n_active++] = next;
            same = false;
        }
        di_gram_work(b->c, 1 + n_active);
        if (n_active == 0)
            continue;
        if (!same) {
            b->round++;
            for (k = 0, n = 0; k < n_active; k++) {
                uint32_t t = b->moves[b->active[k]].to;

                if (b->mark[t] != b->round) {
                    b->mark[t] = b->round;
                    b->targets[n++] = t;
                }
            }
            to = go(b, b->targets, n, 0);
            same = true;
        }
        arc(b, id, &cap, lo, b->cuts[i + 1] - 1, to);
    }
}

di_gram_dfa_t *
di_gram_nfa_dfa(di_gram_ctx_t *c, const di_gram_nfa_t *nfa)
{
    build_t  b = { .c = c, .nfa = nfa };
    uint32_t start = 0, cap;

    b.dfa = di_gram_alloc(c, 1, sizeof(*b.dfa));
    b.mark = di_gram_alloc(c, nfa->n_states, sizeof(uint32_t));
    b.stack = di_gram_alloc(c, nfa->n_states, sizeof(uint32_t));
    b.out = di_gram_alloc(c, nfa->n_states, sizeof(uint32_t));
    b.targets = di_gram_alloc(c, nfa->n_states, sizeof(uint32_t));

    (void) go(&b, &start, 1, 1u << DI_GRAM_E_BOS);
    for (uint32_t id = 0; id < b.dfa->n; id++) {
        moves_of(&b, id);
        if (b.n_moves == 1) {
            cap = 0;
            start = b.moves[0].to;
            arc(&b, id, &cap, b.moves[0].lo, b.moves[0].hi,
                go(&b, &start, 1, 0));
        } else if (b.n_moves > 1) {
            sweep(&b, id);
        }
    }
    return b.dfa;
}

di_gram_dfa_t *
di_gram_node_dfa(di_gram_ctx_t *c, const di_gram_node_t *node)
{
    di_gram_nfa_t *nfa = di_gram_nfa_new(c);

    di_gram_nfa_eps(c, nfa, di_gram_nfa_node(c, nfa, 0, node), 1);
    return di_gram_nfa_dfa(c, nfa);
}
