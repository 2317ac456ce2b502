/*
 * shortest.c - the shortest way to the end of a text.
 *
 * How many bytes it takes from a state to the end of its rule is found for
 * all states at once, nearest first, from the final states backwards (Knuth's
 * generalisation of Dijkstra's algorithm, 1977): an edge costs a byte, a call
 * what its rule costs from its start.  Each state notes the step it takes.
 * The steps lead to ever nearer states, so following them ends.
 *
 * This is done when a grammar is first asked, and kept with it.
 */

#include <stdlib.h>
#include <string.h>

#include "match.h"

#define FAR  UINT32_MAX         /* no way, or one that is too long to count  */

struct di_gram_near_s {
    uint32_t bytes;             /* to the end of the rule; FAR               */
    uint32_t step;              /* edge, or n_edges + call; DI_GRAM_DEAD: the
                                   rule ends here                            */
};

typedef struct di_gram_near_s  near_t;

/* ------------------------------------------------------------ distances -- */

/* Who steps to a state, or calls a rule: lists by state and by rule. */
typedef struct {
    const di_gram_t *g;
    near_t          *near;      /* [n_states]                                */
    bool            *done;      /* [n_states]                                */
    uint32_t        *owner;     /* [n_edges + n_calls] state of a step       */
    uint32_t        *by_state;  /* [n_states] newest step to it              */
    uint32_t        *by_rule;   /* [n_rules] newest call of it               */
    uint32_t        *next;      /* [n_edges + n_calls] step to the same      */
    uint32_t        *next_call; /* [n_calls] call of the same                */
    uint32_t        *heap;      /* [n_heap] states, nearest first            */
    uint32_t        *place;     /* [n_states] in the heap + 1; 0: not there  */
    uint32_t         n_heap;
} find_t;

static void
put(find_t *f, uint32_t at, uint32_t state)
{
    f->heap[at] = state;
    f->place[state] = at + 1;
}

static void
rise(find_t *f, uint32_t at)
{
    uint32_t state = f->heap[at], up;

    for (; at > 0; at = up) {
        up = (at - 1) / 2;
        if (f->near[f->heap[up]].bytes <= f->near[state].bytes)
            break;
        put(f, at, f->heap[up]);
    }
    put(f, at, state);
}

static uint32_t
pop(find_t *f)
{
    uint32_t first = f->heap[0], last = f->heap[--f->n_heap], at = 0, k;

    for (; (k = 2 * at + 1) < f->n_heap; at = k) {
        if (k + 1 < f->n_heap && f->near[f->heap[k + 1]].bytes
                                 < f->near[f->heap[k]].bytes)
            k++;
        if (f->near[f->heap[k]].bytes >= f->near[last].bytes)
            break;
        put(f, at, f->heap[k]);
    }
    if (f->n_heap > 0)
        put(f, at, last);
    f->place[first] = 0;
    return first;
}

/* A state can end in so many bytes by a step. */
static void
offer(find_t *f, uint32_t state, uint64_t bytes, uint32_t step)
{
    if (f->done[state] || bytes >= f->near[state].bytes)
        return;
    f->near[state] = (near_t) { (uint32_t) bytes, step };
    if (f->place[state] == 0)
        put(f, f->n_heap++, state);
    rise(f, f->place[state] - 1);
}

/* A call, once both its rule and what follows are known. */
static void
offer_call(find_t *f, uint32_t call)
{
    const di_gram_t       *g = f->g;
    const di_gram_bcall_t *c = &g->calls[call];
    uint32_t               start = g->rules[c->rule].first;

    if (f->done[start] && f->done[c->to])
        offer(f, f->owner[g->head.n_edges + call],
              (uint64_t) f->near[start].bytes + f->near[c->to].bytes,
              g->head.n_edges + call);
}

static void
settle(find_t *f, uint32_t state)
{
    const di_gram_t *g = f->g;
    uint32_t         n = g->head.n_edges, k, rule = g->states[state].rule;

    f->done[state] = true;
    for (k = f->by_state[state]; k != DI_GRAM_DEAD; k = f->next[k]) {
        if (k < n)
            offer(f, f->owner[k], (uint64_t) f->near[state].bytes + 1, k);
        else
            offer_call(f, k - n);
    }
    if (state != g->rules[rule].first)
        return;
    for (k = f->by_rule[rule]; k != DI_GRAM_DEAD; k = f->next_call[k])
        offer_call(f, k);
}

static void
link_steps(find_t *f)
{
    const di_gram_t *g = f->g;
    uint32_t         n = g->head.n_edges;

    memset(f->by_state, 0xff, g->head.n_states * sizeof(*f->by_state));
    memset(f->by_rule, 0xff, g->head.n_rules * sizeof(*f->by_rule));
    for (uint32_t s = 0; s < g->head.n_states; s++) {
        const di_gram_bstate_t *st = &g->states[s];

        f->near[s] = (near_t) { FAR, DI_GRAM_DEAD };
        for (uint32_t k = st[0].edges; k < st[1].edges; k++) {
            f->owner[k] = s;
            f->next[k] = f->by_state[g->edges[k].to];
            f->by_state[g->edges[k].to] = k;
        }
        for (uint32_t k = st[0].calls; k < st[1].calls; k++) {
            f->owner[n + k] = s;
            f->next[n + k] = f->by_state[g->calls[k].to];
            f->by_state[g->calls[k].to] = n + k;
            f->next_call[k] = f->by_rule[g->calls[k].rule];
            f->by_rule[g->calls[k].rule] = k;
        }
    }
}

/* NULL: no memory. */
static near_t *
find_near(const di_gram_t *g)
{
    const di_gram_blob_t *h = &g->head;
    size_t                steps = (size_t) h->n_edges + h->n_calls + 1;
    find_t                f = { .g = g };

    f.near = malloc(h->n_states * sizeof(*f.near));
    f.done = calloc(h->n_states, sizeof(*f.done));
    f.owner = malloc(steps * sizeof(*f.owner));
    f.by_state = malloc(h->n_states * sizeof(*f.by_state));
    f.by_rule = malloc(h->n_rules * sizeof(*f.by_rule));
    f.next = malloc(steps * sizeof(*f.next));
    f.next_call = malloc(steps * sizeof(*f.next_call));
    f.heap = malloc(h->n_states * sizeof(*f.heap));
    f.place = calloc(h->n_states, sizeof(*f.place));
    if (f.near == NULL || f.done == NULL || f.owner == NULL
        || f.by_state == NULL || f.by_rule == NULL || f.next == NULL
        || f.next_call == NULL || f.heap == NULL || f.place == NULL) {
        free(f.near);
        f.near = NULL;
        goto done;
    }
    link_steps(&f);
    for (uint32_t s = 0; s < h->n_states; s++) {
        if (g->states[s].final)
            offer(&f, s, 0, DI_GRAM_DEAD);
    }
    while (f.n_heap > 0)
        settle(&f, pop(&f));
done:
    free(f.done);
    free(f.owner);
    free(f.by_state);
    free(f.by_rule);
    free(f.next);
    free(f.next_call);
    free(f.heap);
    free(f.place);
    return f.near;
}

/* A grammar's, found at the first call; whoever is first keeps it. */
static const near_t *
near_of(di_gram_t *g)
{
    near_t *known = atomic_load_explicit(&g->near, memory_order_acquire);
    near_t *found;

    if (known != NULL)
        return known;
    found = find_near(g);
    if (found == NULL)
        return NULL;
    /* The release pairs with the load above. */
    if (!atomic_compare_exchange_strong_explicit(&g->near, &known, found,
                                                 memory_order_acq_rel,
                                                 memory_order_acquire)) {
        free(found);
        return known;
    }
    return found;
}

/* ---------------------------------------------------------------- texts -- */

/* The whole way's bytes: to the end of the rule, and of all on the stack. */
static uint64_t
way_bytes(const di_gram_match_t *m, const near_t *near, di_gram_way_t way)
{
    uint64_t n = near[way.state].bytes;
    uint32_t f = way.stack;

    if (n == FAR)
        return UINT64_MAX;
    for (; f != 0; f = m->frames[f].parent) {
        if (near[m->frames[f].ret].bytes == FAR)
            return UINT64_MAX;
        n += near[m->frames[f].ret].bytes;
    }
    return n;
}

/* A byte of an edge that is good to read. */
static uint8_t
pick(const di_gram_bedge_t *e)
{
    static const uint8_t liked[] = { 'a', '0', 'A', ' ' };

    for (size_t i = 0; i < sizeof(liked); i++) {
        if (e->lo <= liked[i] && liked[i] <= e->hi)
            return liked[i];
    }
    return e->lo;
}

/* The bytes from a state to the end of its rule; false: no memory.  A rule
 * that needs none isn't entered, so each one entered writes. */
static bool
write_rule(const di_gram_t *g, const near_t *near, uint32_t state,
           uint8_t *bytes)
{
    uint32_t *stack = NULL, depth = 0, cap = 0, step;
    size_t    n = 0;

    for (;;) {
        step = near[state].step;
        if (step == DI_GRAM_DEAD) {
            if (depth == 0)
                break;
            state = stack[--depth];
        } else if (step < g->head.n_edges) {
            bytes[n++] = pick(&g->edges[step]);
            state = g->edges[step].to;
        } else {
            const di_gram_bcall_t *c = &g->calls[step - g->head.n_edges];
            uint32_t               start = g->rules[c->rule].first;

            if (near[start].bytes == 0) {
                state = c->to;
                continue;
            }
            if (depth == cap) {
                void *p = realloc(stack, (cap + 64) * sizeof(*stack));

                if (p == NULL) {
                    free(stack);
                    return false;
                }
                stack = p;
                cap += 64;
            }
            stack[depth++] = c->to;
            state = start;
        }
    }
    free(stack);
    return true;
}

size_t
di_gram_shortest(const di_gram_match_t *m, uint8_t *bytes, size_t cap)
{
    const near_t         *near = near_of(m->gram);
    const di_gram_ways_t *w = &m->past[m->now];
    uint64_t              best = UINT64_MAX, n;
    size_t                at;
    uint32_t              k = 0, f;

    if (w->complete)
        return 0;
    for (uint32_t i = 0; near != NULL && i < w->n; i++) {
        n = way_bytes(m, near, w->v[i]);
        if (n < best) {
            best = n;
            k = i;
        }
    }
    if (best > cap)
        return SIZE_MAX;
    at = near[w->v[k].state].bytes;
    if (!write_rule(m->gram, near, w->v[k].state, bytes))
        return SIZE_MAX;
    for (f = w->v[k].stack; f != 0; f = m->frames[f].parent) {
        if (!write_rule(m->gram, near, m->frames[f].ret, bytes + at))
            return SIZE_MAX;
        at += near[m->frames[f].ret].bytes;
    }
    return at;
}
