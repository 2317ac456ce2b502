/*
 * dfa.c - deterministic automata over code points, as sets of texts.
 *
 * Arcs that lead nowhere are left out, so an automaton may stop early; in
 * the products below the state "stopped" is DI_GRAM_NONE.  A complement is
 * any text but it.
 */

#include <stdlib.h>
#include <string.h>

#include "blob.h"
#include "build.h"

#define STATES_MAX  250000u

uint32_t
di_gram_dfa_state(di_gram_ctx_t *c, di_gram_dfa_t *d)
{
    di_gram_work(c, 4);
    if (d->n == STATES_MAX)
        di_gram_fail(c, DI_ELIMIT, "grammar", "",
                     "an expression needs over %u states", STATES_MAX);
    d->s = di_gram_grow(c, d->s, d->n, &d->cap, sizeof(*d->s));
    memset(&d->s[d->n], 0, sizeof(*d->s));
    return d->n++;
}

di_gram_dfa_t *
di_gram_dfa_any(di_gram_ctx_t *c)
{
    return di_gram_node_dfa(c, di_gram_node_rep(c,
               di_gram_node_set(c, di_gram_set_any()), 0, DI_GRAM_NONE));
}

/* ------------------------------------------------------------ products -- */

typedef struct {
    di_gram_ctx_t       *c;
    const di_gram_dfa_t *a, *b;
    di_gram_dfa_t       *d;
    uint32_t           (*pairs)[2];     /* [d->n] states of a and b          */
    uint32_t             pairs_cap;
    uint32_t            *table;         /* [mask + 1] state + 1; 0: free     */
    uint32_t             mask;
} product_t;

static uint32_t *
slot(product_t *p, uint32_t x, uint32_t y)
{
    uint32_t pair[2] = { x, y };
    uint32_t at = (uint32_t) di_gram_hash(DI_GRAM_HASH_SEED, pair, 2)
                  & p->mask;

    while (p->table[at] != 0
           && (p->pairs[p->table[at] - 1][0] != x
               || p->pairs[p->table[at] - 1][1] != y))
        at = (at + 1) & p->mask;
    return &p->table[at];
}

static uint32_t
pair_state(product_t *p, uint32_t x, uint32_t y, di_gram_op_t op)
{
    uint32_t *at, id;
    bool      fx, fy;

    if (p->d->n * 2 >= p->mask) {
        p->mask = p->mask == 0 ? 255 : p->mask * 2 + 1;
        p->table = di_gram_alloc(p->c, p->mask + 1, sizeof(uint32_t));
        for (id = 0; id < p->d->n; id++)
            *slot(p, p->pairs[id][0], p->pairs[id][1]) = id + 1;
    }
    at = slot(p, x, y);
    if (*at != 0)
        return *at - 1;

    p->pairs = di_gram_grow(p->c, p->pairs, p->d->n, &p->pairs_cap,
                            sizeof(*p->pairs));
    id = di_gram_dfa_state(p->c, p->d);
    p->pairs[id][0] = x;
    p->pairs[id][1] = y;
    *at = id + 1;
    fx = x != DI_GRAM_NONE && p->a->s[x].final;
    fy = y != DI_GRAM_NONE && p->b->s[y].final;
    p->d->s[id].final = op == DI_GRAM_AND ? fx && fy
                        : op == DI_GRAM_OR ? fx || fy : fx && !fy;
    return id;
}

static bool
matters(di_gram_op_t op, uint32_t x, uint32_t y)
{
    switch (op) {
    case DI_GRAM_AND:
        return x != DI_GRAM_NONE && y != DI_GRAM_NONE;
    case DI_GRAM_ANDNOT:
        return x != DI_GRAM_NONE;
    default:
        return x != DI_GRAM_NONE || y != DI_GRAM_NONE;
    }
}

/* The arcs of a pair: both lists are walked from cut to cut. */
static void
pair_arcs(product_t *p, uint32_t id, di_gram_op_t op)
{
    const di_gram_state_t none = { 0 };
    uint32_t     px = p->pairs[id][0], py = p->pairs[id][1];
    const di_gram_state_t *x = px == DI_GRAM_NONE ? &none : &p->a->s[px];
    const di_gram_state_t *y = py == DI_GRAM_NONE ? &none : &p->b->s[py];
    uint32_t     i = 0, j = 0, at = 0, end, tx, ty, to, cap = 0;
    di_gram_state_t *s;

    while (i < x->n_arcs || j < y->n_arcs) {
        di_gram_work(p->c, 1);
        end = DI_GRAM_CP_MAX;
        tx = ty = DI_GRAM_NONE;
        if (i < x->n_arcs) {
            if (x->arcs[i].lo <= at) {
                tx = x->arcs[i].to;
                end = x->arcs[i].hi;
            } else {
                end = x->arcs[i].lo - 1;
            }
        }
        if (j < y->n_arcs) {
            uint32_t stop = y->arcs[j].lo <= at ? y->arcs[j].hi
                                                : y->arcs[j].lo - 1;

            if (y->arcs[j].lo <= at)
                ty = y->arcs[j].to;
            if (stop < end)
                end = stop;
        }
        if (matters(op, tx, ty)) {
            to = pair_state(p, tx, ty, op);
            s = &p->d->s[id];
            if (s->n_arcs > 0 && s->arcs[s->n_arcs - 1].to == to
                && s->arcs[s->n_arcs - 1].hi + 1 == at) {
                s->arcs[s->n_arcs - 1].hi = end;
            } else {
                s->arcs = di_gram_grow(p->c, s->arcs, s->n_arcs, &cap,
                                       sizeof(*s->arcs));
                s->arcs[s->n_arcs++] = (di_gram_arc_t) { at, end, to };
            }
        }
        at = end + 1;
        if (i < x->n_arcs && x->arcs[i].hi < at)
            i++;
        if (j < y->n_arcs && y->arcs[j].hi < at)
            j++;
    }
}

di_gram_dfa_t *
di_gram_dfa_op(di_gram_ctx_t *c, di_gram_op_t op, const di_gram_dfa_t *a,
               const di_gram_dfa_t *b)
{
    product_t p = { .c = c, .a = a, .b = b };

    p.d = di_gram_alloc(c, 1, sizeof(*p.d));
    (void) pair_state(&p, a->n > 0 ? 0 : DI_GRAM_NONE,
                      b->n > 0 ? 0 : DI_GRAM_NONE, op);
    for (uint32_t id = 0; id < p.d->n; id++)
        pair_arcs(&p, id, op);
    return di_gram_dfa_trim(c, p.d);
}

/* ---------------------------------------------------------------- trim -- */

/* Where an arc or a call that can be passed leads to; DI_GRAM_NONE: not. */
static uint32_t
step_to(const di_gram_ctx_t *c, const di_gram_state_t *s, uint32_t i)
{
    if (i < s->n_arcs)
        return s->arcs[i].to;
    i -= s->n_arcs;
    return c->rules[s->calls[i].rule].productive ? s->calls[i].to
                                                 : DI_GRAM_NONE;
}

/* A walk against the arcs and calls, which are first sorted by target. */
bool *
di_gram_dfa_useful(di_gram_ctx_t *c, const di_gram_dfa_t *d)
{
    bool     *live = di_gram_alloc(c, d->n + 1, sizeof(*live));
    uint32_t *heads = di_gram_alloc(c, d->n + 1, sizeof(*heads));
    uint32_t *todo = di_gram_alloc(c, d->n + 1, sizeof(*todo));
    uint32_t *from, n_steps = 0, top = 0, s, i, to;

    for (s = 0; s < d->n; s++) {
        for (i = 0; i < d->s[s].n_arcs + d->s[s].n_calls; i++) {
            to = step_to(c, &d->s[s], i);
            if (to != DI_GRAM_NONE) {
                heads[to + 1]++;
                n_steps++;
            }
        }
    }
    di_gram_work(c, n_steps + d->n);
    for (s = 0; s < d->n; s++)
        heads[s + 1] += heads[s];
    from = di_gram_alloc(c, n_steps + 1, sizeof(*from));
    for (s = 0; s < d->n; s++) {
        for (i = 0; i < d->s[s].n_arcs + d->s[s].n_calls; i++) {
            to = step_to(c, &d->s[s], i);
            if (to != DI_GRAM_NONE)
                from[heads[to]++] = s;
        }
    }
    /* heads[s] is now where the steps into s end. */

    for (s = 0; s < d->n; s++) {
        if (d->s[s].final) {
            live[s] = true;
            todo[top++] = s;
        }
    }
    while (top > 0) {
        s = todo[--top];
        for (i = s == 0 ? 0 : heads[s - 1]; i < heads[s]; i++) {
            if (!live[from[i]]) {
                live[from[i]] = true;
                todo[top++] = from[i];
            }
        }
    }
    return live;
}

di_gram_dfa_t *
di_gram_dfa_trim(di_gram_ctx_t *c, const di_gram_dfa_t *d)
{
    bool          *live = di_gram_dfa_useful(c, d);
    uint32_t      *map = di_gram_alloc(c, d->n + 1, sizeof(*map));
    di_gram_dfa_t *t = di_gram_alloc(c, 1, sizeof(*t));
    uint32_t       n, s;

    if (d->n == 0 || !live[0])
        return t;
    for (s = 0; s < d->n; s++)
        map[s] = live[s] ? di_gram_dfa_state(c, t) : DI_GRAM_NONE;
    for (s = 0; s < d->n; s++) {
        if (!live[s])
            continue;
        t->s[map[s]] = d->s[s];
        for (uint32_t i = n = 0; i < d->s[s].n_arcs; i++) {
            const di_gram_arc_t *a = &d->s[s].arcs[i];

            if (map[a->to] != DI_GRAM_NONE)
                t->s[map[s]].arcs[n++] = (di_gram_arc_t) {
                    a->lo, a->hi, map[a->to],
                };
        }
        t->s[map[s]].n_arcs = n;
    }
    return t;
}

/* --------------------------------------------------------------- merge -- */

#define MERGE_STATES  512u
#define MERGE_ROUNDS  16u

/* A hash of what a state does, in terms of the classes of states so far.
 * Neighbouring arcs to one class count as one. */
static uint64_t
behaviour(const di_gram_state_t *s, const uint64_t *classes, uint64_t own)
{
    uint64_t h = own;

    for (uint32_t i = 0; i < s->n_arcs; ) {
        uint64_t to = classes[s->arcs[i].to];
        uint32_t ends[2] = { s->arcs[i].lo, s->arcs[i].hi };

        for (i++; i < s->n_arcs && s->arcs[i].lo == ends[1] + 1
                  && classes[s->arcs[i].to] == to; i++)
            ends[1] = s->arcs[i].hi;
        h = di_gram_hash(h, ends, 2);
        h = di_gram_hash(h, &to, 2);
    }
    for (uint32_t i = 0; i < s->n_calls; i++) {
        h = di_gram_hash(h, &s->calls[i].rule, 1);
        h = di_gram_hash(h, &classes[s->calls[i].to], 2);
    }
    return h;
}

static int
by_hash(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *) a, y = *(const uint64_t *) b;

    return (x > y) - (x < y);
}

static uint32_t
count_classes(uint64_t *sorted, const uint64_t *classes, uint32_t n)
{
    uint32_t k = 0;

    memcpy(sorted, classes, n * sizeof(*sorted));
    qsort(sorted, n, sizeof(*sorted), by_hash);
    for (uint32_t i = 0; i < n; i++)
        k += i == 0 || sorted[i] != sorted[i - 1];
    return k;
}

/* The states of d by their classes, the first of a class standing for it. */
static di_gram_dfa_t *
merged(di_gram_ctx_t *c, const di_gram_dfa_t *d, const uint64_t *classes)
{
    di_gram_dfa_t *m = di_gram_alloc(c, 1, sizeof(*m));
    uint32_t      *map = di_gram_alloc(c, d->n, sizeof(*map)), i, k;

    for (i = 0; i < d->n; i++) {
        for (k = 0; k < i && classes[k] != classes[i]; k++)
            ;
        map[i] = k < i ? map[k] : di_gram_dfa_state(c, m);
        if (k == i)
            m->s[map[i]] = d->s[i];
    }
    for (i = 0; i < m->n; i++) {
        di_gram_state_t *s = &m->s[i];
        di_gram_arc_t   *arcs = di_gram_alloc(c, s->n_arcs, sizeof(*arcs));
        di_gram_call_t  *calls = di_gram_alloc(c, s->n_calls,
                                               sizeof(*calls));
        uint32_t         n = 0;

        for (k = 0; k < s->n_arcs; k++) {
            di_gram_arc_t a = s->arcs[k];

            a.to = map[a.to];
            if (n > 0 && arcs[n - 1].to == a.to && arcs[n - 1].hi + 1 == a.lo)
                arcs[n - 1].hi = a.hi;
            else
                arcs[n++] = a;
        }
        for (k = 0; k < s->n_calls; k++)
            calls[k] = (di_gram_call_t) { s->calls[k].rule,
                                          map[s->calls[k].to] };
        s->arcs = arcs;
        s->n_arcs = n;
        s->calls = calls;
    }
    return m;
}

const di_gram_dfa_t *
di_gram_dfa_merge(di_gram_ctx_t *c, const di_gram_dfa_t *d)
{
    uint64_t *now = di_gram_alloc(c, d->n, sizeof(*now));
    uint64_t *next = di_gram_alloc(c, d->n, sizeof(*next)), *swap;
    uint64_t *sorted = di_gram_alloc(c, d->n, sizeof(*sorted));
    uint32_t  n = 1, k;

    if (d->n < 2 || d->n > MERGE_STATES)
        return d;
    for (uint32_t i = 0; i < d->n; i++)
        now[i] = d->s[i].final;
    for (uint32_t round = 0; round < MERGE_ROUNDS; round++) {
        for (uint32_t i = 0; i < d->n; i++) {
            next[i] = behaviour(&d->s[i], now, now[i]);
            di_gram_work(c, d->s[i].n_arcs + 1);
        }
        k = count_classes(sorted, next, d->n);
        if (k == d->n)
            return d;
        if (round > 0 && k == n)
            return merged(c, d, next);
        n = k;
        swap = now;
        now = next;
        next = swap;
    }
    return d;
}

bool
di_gram_dfa_accepts(di_gram_ctx_t *c, const di_gram_dfa_t *d, const char *s,
                    size_t len)
{
    uint32_t at = 0, cp, i;
    size_t   n;

    if (d->n == 0)
        return false;
    di_gram_work(c, len);
    for (; len > 0; s += n, len -= n) {
        n = di_gram_utf8(s, len, &cp);
        if (n == 0)
            return false;
        for (i = 0; i < d->s[at].n_arcs; i++) {
            if (d->s[at].arcs[i].lo <= cp && cp <= d->s[at].arcs[i].hi)
                break;
        }
        if (i == d->s[at].n_arcs)
            return false;
        at = d->s[at].arcs[i].to;
    }
    return d->s[at].final;
}
