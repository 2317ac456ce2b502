/*
 * link.c - from rules over code points to the blob.
 *
 * First, rules that no text satisfies are found, and with them every state
 * from where a text can't end: they are left out, which is what makes the
 * grammar free of dead ends.  Left recursion, which would have the matcher
 * call rules for ever without reading, is refused.
 *
 * Then each rule that the root can reach is lowered to bytes.  An arc over
 * code points becomes edges over UTF-8; the states inside a character are
 * made once for each content, so that classes that end alike share them.  An
 * arc over special tokens becomes edges over a byte that UTF-8 hasn't got
 * and the three of an id.
 */

#include <stdlib.h>
#include <string.h>

#include "blob.h"
#include "build.h"

/* ---------------------------------------------------- rules as a whole -- */

static void
find_productive(di_gram_ctx_t *c)
{
    bool changed = true;

    while (changed) {
        changed = false;
        for (uint32_t r = c->n_rules; r-- > 0; ) {
            di_gram_rule_t *rule = &c->rules[r];

            if (rule->productive || rule->dfa == NULL || rule->dfa->n == 0)
                continue;
            rule->productive = di_gram_dfa_useful(c, rule->dfa)[0];
            changed = changed || rule->productive;
        }
    }
}

typedef struct {
    bool    *nullable;      /* [n_rules] the empty text satisfies it         */
    uint8_t *colour;        /* [n_rules] 0 new, 1 on the way, 2 done         */
} left_t;

/* The states of a rule that are reached without reading, start first; n. */
static uint32_t
unread(di_gram_ctx_t *c, const left_t *l, const di_gram_dfa_t *d,
       uint32_t **states)
{
    bool     *seen = di_gram_alloc(c, d->n, sizeof(*seen));
    uint32_t *list = di_gram_alloc(c, d->n, sizeof(*list));
    uint32_t  n = 0;

    list[n++] = 0;
    seen[0] = true;
    for (uint32_t i = 0; i < n; i++) {
        const di_gram_state_t *s = &d->s[list[i]];

        for (uint32_t k = 0; k < s->n_calls; k++) {
            if (l->nullable[s->calls[k].rule] && !seen[s->calls[k].to]) {
                seen[s->calls[k].to] = true;
                list[n++] = s->calls[k].to;
            }
        }
    }
    di_gram_work(c, n);
    *states = list;
    return n;
}

static void
find_nullable(di_gram_ctx_t *c, left_t *l)
{
    uint32_t *states, n;
    bool      changed = true;

    while (changed) {
        changed = false;
        for (uint32_t r = c->n_rules; r-- > 0; ) {
            if (!c->rules[r].productive || l->nullable[r])
                continue;
            n = unread(c, l, c->rules[r].dfa, &states);
            for (uint32_t i = 0; i < n && !l->nullable[r]; i++)
                l->nullable[r] = c->rules[r].dfa->s[states[i]].final;
            changed = changed || l->nullable[r];
        }
    }
}

static void
refuse_left_recursion(di_gram_ctx_t *c, left_t *l, uint32_t r,
                      unsigned depth)
{
    const di_gram_dfa_t *d = c->rules[r].dfa;
    uint32_t            *states, n;

    if (depth > 4 * DI_GRAM_NEST_MAX)
        di_gram_fail(c, DI_ELIMIT, "rule", "", "rules nest too deeply");
    l->colour[r] = 1;
    n = unread(c, l, d, &states);
    for (uint32_t i = 0; i < n; i++) {
        const di_gram_state_t *s = &d->s[states[i]];

        for (uint32_t k = 0; k < s->n_calls; k++) {
            uint32_t callee = s->calls[k].rule;

            c->part = c->rules[callee].part;
            if (l->colour[callee] == 1)
                di_gram_fail(c, DI_EUNSUPPORTED, "left recursion",
                             c->rules[callee].name != NULL
                             ? c->rules[callee].name : "",
                             "a rule begins with itself");
            if (l->colour[callee] == 0 && c->rules[callee].productive)
                refuse_left_recursion(c, l, callee, depth + 1);
        }
    }
    l->colour[r] = 2;
}

/* ------------------------------------------------------------ lowering -- */

/* A state over bytes while its rule is made. */
typedef struct {
    di_gram_bedge_t *edges;         /* [n_edges] to: a state of the rule     */
    uint32_t         n_edges, cap;
    uint32_t         next;          /* of equal hash; DI_GRAM_NONE: last     */
} low_t;

#define BUCKETS  1024u

typedef struct {
    di_gram_ctx_t *c;
    low_t         *s;               /* [n]                                   */
    uint32_t       n, cap;
    uint32_t      *buckets;         /* [BUCKETS] inner states by content     */
    const di_gram_arc_t *arcs;      /* [n_arcs] of the state at hand         */
    uint32_t       n_arcs;
    const uint32_t *map;            /* state over code points -> ours        */
    struct {
        uint32_t to, id;
    } full[4];                      /* full_block()'s last answer by tail    */
} lower_t;

static uint32_t
low_state(lower_t *l)
{
    l->s = di_gram_grow(l->c, l->s, l->n, &l->cap, sizeof(*l->s));
    l->s[l->n] = (low_t) { .next = DI_GRAM_NONE };
    return l->n++;
}

static void
low_edge(lower_t *l, low_t *s, uint32_t lo, uint32_t hi, uint32_t to)
{
    di_gram_bedge_t *e = s->n_edges > 0 ? &s->edges[s->n_edges - 1] : NULL;

    if (e != NULL && e->to == to && e->hi + 1u == lo) {
        e->hi = (uint8_t) hi;
        return;
    }
    s->edges = di_gram_grow(l->c, s->edges, s->n_edges, &s->cap,
                            sizeof(*s->edges));
    s->edges[s->n_edges++] = (di_gram_bedge_t) {
        .to = to, .lo = (uint8_t) lo, .hi = (uint8_t) hi,
    };
}

/* The inner state with these edges. */
static uint32_t
low_intern(lower_t *l, const low_t *s)
{
    uint64_t h = DI_GRAM_HASH_SEED;
    uint32_t at, id;

    for (uint32_t i = 0; i < s->n_edges; i++)
        h = di_gram_hash(h, &s->edges[i], 2);
    at = (uint32_t) h % BUCKETS;
    for (id = l->buckets[at]; id != DI_GRAM_NONE; id = l->s[id].next) {
        di_gram_work(l->c, 1);
        if (l->s[id].n_edges == s->n_edges
            && memcmp(l->s[id].edges, s->edges,
                      s->n_edges * sizeof(*s->edges)) == 0)
            return id;
    }
    id = low_state(l);
    l->s[id] = *s;
    l->s[id].next = l->buckets[at];
    l->buckets[at] = id;
    return id;
}

static uint32_t
full_block(lower_t *l, unsigned tail, uint32_t to)
{
    low_t s = { 0 };

    if (tail == 0)
        return to;
    if (l->full[tail].to != to) {
        low_edge(l, &s, 0x80, 0xbf, full_block(l, tail - 1, to));
        l->full[tail].to = to;
        l->full[tail].id = low_intern(l, &s);
    }
    return l->full[tail].id;
}

/* Edges of s over the bytes from `byte` on, each the first of `tail` more
 * and of 64^tail code points; base is the first one's.  Only what lies in
 * [lo, hi] counts. */
static void
spread(lower_t *l, low_t *s, uint32_t byte, uint32_t n_bytes, uint32_t base,
       unsigned tail, uint32_t lo, uint32_t hi)
{
    const uint32_t size = 1u << 6 * tail;
    uint32_t       i = 0, from, to, end;

    while (i < l->n_arcs && l->arcs[i].hi < base)
        i++;
    for (uint32_t b = 0; b < n_bytes; b++) {
        from = base + b * size;
        end = from + size - 1;
        while (i < l->n_arcs && l->arcs[i].hi < from)
            i++;
        if (i == l->n_arcs || l->arcs[i].lo > hi)
            return;
        if (l->arcs[i].lo > end || end < lo)
            continue;
        di_gram_work(l->c, 1);
        if (l->arcs[i].lo <= from && l->arcs[i].hi >= end && from >= lo
            && end <= hi) {
            to = full_block(l, tail, l->map[l->arcs[i].to]);
        } else {
            low_t inner = { 0 };

            spread(l, &inner, 0x80, 64, from, tail - 1, lo, hi);
            if (inner.n_edges == 0)
                continue;
            to = low_intern(l, &inner);
        }
        low_edge(l, s, byte + b, byte + b, to);
    }
}

/* Edges of s over the next byte of ids that have `tail` more: those from
 * base on, arc i being the first that may matter. */
static void
spread_ids(lower_t *l, low_t *s, uint32_t base, unsigned tail, uint32_t i)
{
    uint32_t from, to;

    for (uint32_t b = 0; b < 256; b++) {
        from = base + (b << 8 * tail);
        while (i < l->n_arcs && l->arcs[i].hi < from)
            i++;
        if (i == l->n_arcs)
            return;
        if (l->arcs[i].lo >= from + (1u << 8 * tail))
            continue;
        di_gram_work(l->c, 1);
        if (tail == 0) {
            to = l->map[l->arcs[i].to];
        } else {
            low_t inner = { .next = DI_GRAM_NONE };

            spread_ids(l, &inner, from, tail - 1, i);
            to = low_intern(l, &inner);
        }
        low_edge(l, s, b, b, to);
    }
}

static void
lower_state(lower_t *l, uint32_t at, const di_gram_arc_t *arcs,
            uint32_t n_arcs)
{
    low_t    s = { .next = DI_GRAM_NONE };
    uint32_t hi;

    l->arcs = arcs;
    l->n_arcs = n_arcs;
    for (uint32_t i = 0; i < n_arcs && arcs[i].lo < 0x80; i++) {
        hi = arcs[i].hi < 0x7f ? arcs[i].hi : 0x7f;
        low_edge(l, &s, arcs[i].lo, hi, l->map[arcs[i].to]);
    }
    if (n_arcs > 0 && arcs[n_arcs - 1].hi >= 0x80) {
        spread(l, &s, 0xc2, 30, 0x80, 1, 0x80, 0x7ff);
        spread(l, &s, 0xe0, 16, 0, 2, 0x800, 0xffff);
        spread(l, &s, 0xf0, 5, 0, 3, 0x10000, DI_GRAM_CP_MAX);
    }
    if (n_arcs > 0 && arcs[n_arcs - 1].hi >= DI_GRAM_SPECIAL) {
        low_t ids = { .next = DI_GRAM_NONE };

        spread_ids(l, &ids, DI_GRAM_SPECIAL, 2, 0);
        low_edge(l, &s, DI_GRAM_SPECIAL_BYTE, DI_GRAM_SPECIAL_BYTE,
                 low_intern(l, &ids));
    }
    l->s[at] = s;
}

/* ------------------------------------------------------------ the blob -- */

typedef struct {
    di_gram_ctx_t    *c;
    di_gram_brule_t  *rules;
    di_gram_bstate_t *states;
    di_gram_bedge_t  *edges;
    di_gram_bcall_t  *calls;
    uint32_t n_rules, n_states, n_edges, n_calls;
    uint32_t rules_cap, states_cap, edges_cap, calls_cap;
    uint32_t *number;       /* [c->n_rules] in the blob; DI_GRAM_NONE: new   */
    uint32_t *order;        /* [n_rules] the rules in the blob's order       */
} out_t;

static uint32_t
blob_rule(out_t *o, uint32_t r)
{
    if (o->number[r] == DI_GRAM_NONE) {
        o->number[r] = o->n_rules;
        o->order[o->n_rules++] = r;
    }
    return o->number[r];
}

/* Live states of a rule that its start reaches, in the order found; map is
 * from all states to that order. */
static uint32_t
reached(di_gram_ctx_t *c, const di_gram_dfa_t *d, uint32_t *map,
        uint32_t *list)
{
    const bool *live = di_gram_dfa_useful(c, d);
    uint32_t    n = 0, to;

    memset(map, 0xff, d->n * sizeof(*map));
    map[0] = 0;
    list[n++] = 0;
    for (uint32_t i = 0; i < n; i++) {
        const di_gram_state_t *s = &d->s[list[i]];

        for (uint32_t k = 0; k < s->n_arcs + s->n_calls; k++) {
            if (k >= s->n_arcs
                && !c->rules[s->calls[k - s->n_arcs].rule].productive)
                continue;
            to = k < s->n_arcs ? s->arcs[k].to : s->calls[k - s->n_arcs].to;
            if (live[to] && map[to] == DI_GRAM_NONE) {
                map[to] = n;
                list[n++] = to;
            }
        }
    }
    return n;
}

static void
put_state(out_t *o, const low_t *low, const di_gram_state_t *s,
          uint32_t rule, const uint32_t *map, uint32_t first)
{
    di_gram_ctx_t *c = o->c;

    o->states = di_gram_grow(c, o->states, o->n_states, &o->states_cap,
                             sizeof(*o->states));
    o->states[o->n_states++] = (di_gram_bstate_t) {
        .edges = o->n_edges, .calls = o->n_calls, .rule = rule,
        .final = s != NULL && s->final,
    };
    for (uint32_t i = 0; i < low->n_edges; i++) {
        o->edges = di_gram_grow(c, o->edges, o->n_edges, &o->edges_cap,
                                sizeof(*o->edges));
        o->edges[o->n_edges] = low->edges[i];
        o->edges[o->n_edges++].to += first;
    }
    for (uint32_t i = 0; s != NULL && i < s->n_calls; i++) {
        if (!c->rules[s->calls[i].rule].productive
            || map[s->calls[i].to] == DI_GRAM_NONE)
            continue;
        o->calls = di_gram_grow(c, o->calls, o->n_calls, &o->calls_cap,
                                sizeof(*o->calls));
        o->calls[o->n_calls++] = (di_gram_bcall_t) {
            blob_rule(o, s->calls[i].rule), map[s->calls[i].to] + first,
        };
    }
}

static uint64_t
rule_hash(const low_t *low, const di_gram_dfa_t *d, const uint32_t *list,
          uint32_t n_main, uint32_t n)
{
    uint64_t h = DI_GRAM_HASH_SEED;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t flags[2] = {
            i < n_main ? d->s[list[i]].final : 0,
            i < n_main ? d->s[list[i]].n_calls : 0,
        };

        h = di_gram_hash(h, flags, 2);
        for (uint32_t k = 0; k < low[i].n_edges; k++)
            h = di_gram_hash(h, &low[i].edges[k], 2);
    }
    return h;
}

static void
put_rule(out_t *o, uint32_t number)
{
    di_gram_ctx_t       *c = o->c;
    const di_gram_dfa_t *d = c->rules[o->order[number]].dfa;
    uint32_t            *map = di_gram_alloc(c, d->n, sizeof(*map));
    uint32_t            *list = di_gram_alloc(c, d->n, sizeof(*list));
    uint32_t             n = reached(c, d, map, list), first = o->n_states;
    lower_t              l = { .c = c, .map = map };

    memset(l.full, 0xff, sizeof(l.full));
    l.buckets = di_gram_alloc(c, BUCKETS, sizeof(uint32_t));
    memset(l.buckets, 0xff, BUCKETS * sizeof(uint32_t));
    for (uint32_t i = 0; i < n; i++)
        (void) low_state(&l);
    for (uint32_t i = 0; i < n; i++) {
        const di_gram_state_t *s = &d->s[list[i]];
        di_gram_arc_t         *arcs;
        uint32_t               k = 0;

        arcs = di_gram_alloc(c, s->n_arcs, sizeof(*arcs));
        for (uint32_t a = 0; a < s->n_arcs; a++) {
            if (map[s->arcs[a].to] != DI_GRAM_NONE)
                arcs[k++] = s->arcs[a];
        }
        di_gram_work(c, s->n_arcs + 1);
        lower_state(&l, i, arcs, k);
    }

    for (uint32_t i = 0; i < l.n; i++)
        put_state(o, &l.s[i], i < n ? &d->s[list[i]] : NULL, number, map,
                  first);
    o->rules = di_gram_grow(c, o->rules, number, &o->rules_cap,
                            sizeof(*o->rules));
    o->rules[number] = (di_gram_brule_t) {
        rule_hash(l.s, d, list, n, l.n), first, l.n,
    };
}

static void
write_blob(out_t *o)
{
    di_gram_ctx_t  *c = o->c;
    di_gram_blob_t  head = {
        .magic = DI_GRAM_MAGIC, .version = DI_GRAM_VERSION,
        .n_rules = o->n_rules, .n_states = o->n_states,
        .n_edges = o->n_edges, .n_calls = o->n_calls,
    };
    const struct { const void *p; size_t bytes; } parts[] = {
        { &head, sizeof(head) },
        { o->rules, o->n_rules * sizeof(*o->rules) },
        { o->states, (o->n_states + 1) * sizeof(*o->states) },
        { o->edges, o->n_edges * sizeof(*o->edges) },
        { o->calls, o->n_calls * sizeof(*o->calls) },
    };
    const size_t    n_parts = sizeof(parts) / sizeof(parts[0]);
    uint8_t        *at;

    for (size_t i = 0; i < n_parts; i++)
        c->blob_bytes += parts[i].bytes;
    if (c->blob_bytes > c->opts.limits.blob_bytes)
        di_gram_fail(c, DI_ELIMIT, "grammar", "",
                     "compiles to %zu bytes, over the limit of %zu",
                     c->blob_bytes, c->opts.limits.blob_bytes);
    at = c->blob = malloc(c->blob_bytes);
    if (at == NULL)
        di_gram_fail(c, DI_ENOMEM, "grammar", "", "no memory");
    for (size_t i = 0; i < n_parts; i++) {
        if (parts[i].bytes > 0)
            memcpy(at, parts[i].p, parts[i].bytes);
        at += parts[i].bytes;
    }
}

void
di_gram_link(di_gram_ctx_t *c)
{
    static const low_t nothing;
    left_t l;
    out_t  o = { .c = c };

    find_productive(c);
    for (uint32_t i = 0; i < c->n_parts; i++) {
        c->part = (int) i;
        if (c->part_roots[i] != DI_GRAM_NONE
            && !c->rules[c->part_roots[i]].productive)
            di_gram_fail(c, DI_EINVAL, "grammar", "",
                         "no text satisfies it");
    }
    c->part = -1;
    if (!c->rules[c->root].productive)
        di_gram_fail(c, DI_EINVAL, "grammar", "", "no text satisfies it");
    l.nullable = di_gram_alloc(c, c->n_rules, sizeof(bool));
    l.colour = di_gram_alloc(c, c->n_rules, sizeof(uint8_t));
    find_nullable(c, &l);
    for (uint32_t r = 0; r < c->n_rules; r++) {
        if (c->rules[r].productive && l.colour[r] == 0)
            refuse_left_recursion(c, &l, r, 0);
    }
    c->part = -1;

    o.number = di_gram_alloc(c, c->n_rules, sizeof(uint32_t));
    memset(o.number, 0xff, c->n_rules * sizeof(uint32_t));
    o.order = di_gram_alloc(c, c->n_rules, sizeof(uint32_t));
    (void) blob_rule(&o, c->root);
    for (uint32_t i = 0; i < o.n_rules; i++)
        put_rule(&o, i);
    put_state(&o, &nothing, NULL, 0, NULL, 0);
    o.n_states--;
    write_blob(&o);
}
