/*
 * string.c - JSON's spellings of a set of texts.
 *
 * The states stay; a quote comes before the first and behind the final ones.
 * A character that may stand as it is keeps its arc.  Those that a writer of
 * JSON may want to escape have their escapes too; a plain ASCII letter is
 * never spelled by its number.
 *
 * In a small automaton the escapes are states of it.  In a large one, mostly
 * a bounded length, that would be a dozen states for each character, so a
 * state that reads the set S and goes on at t calls the rule "an escape of a
 * character in S", which equal sets share.
 */

#include <string.h>

#include "build.h"

struct di_gram_esc_s {
    di_gram_esc_t *next;
    di_gram_set_t  set;
    uint32_t       rule;
};

/* Digits lo to hi of n hexadecimal ones, either case; to `to`. */
static void
hex_range(di_gram_ctx_t *c, di_gram_nfa_t *nfa, uint32_t from, uint32_t lo,
          uint32_t hi, unsigned n, uint32_t to)
{
    uint32_t       unit, a, b, next;
    di_gram_set_t  set;
    di_gram_range_t r[3];
    uint32_t       k = 0;

    if (n == 0) {
        di_gram_nfa_eps(c, nfa, from, to);
        return;
    }
    unit = 1u << 4 * (n - 1);
    a = lo / unit;
    b = hi / unit;
    if (a != b && lo % unit != 0) {         /* the first digit alone         */
        hex_range(c, nfa, from, lo, (a + 1) * unit - 1, n, to);
        hex_range(c, nfa, from, (a + 1) * unit, hi, n, to);
        return;
    }
    if (a != b && (hi + 1) % unit != 0) {   /* the last digit alone          */
        hex_range(c, nfa, from, lo, b * unit - 1, n, to);
        hex_range(c, nfa, from, b * unit, hi, n, to);
        return;
    }
    if (a <= 9)
        r[k++] = (di_gram_range_t) { '0' + a, '0' + (b < 9 ? b : 9) };
    if (b > 9) {
        uint32_t first = a > 10 ? a - 10 : 0;

        r[k++] = (di_gram_range_t) { 'A' + first, 'A' + b - 10 };
        r[k++] = (di_gram_range_t) { 'a' + first, 'a' + b - 10 };
    }
    set.n = k;
    set.r = memcpy(di_gram_alloc(c, k, sizeof(*r)), r, k * sizeof(*r));
    next = n == 1 ? to : di_gram_nfa_state(c, nfa);
    di_gram_nfa_set(c, nfa, from, set, next);
    if (n > 1)
        hex_range(c, nfa, next, lo % unit, a == b ? hi % unit : unit - 1,
                  n - 1, to);
}

/* "\uXXXX" of the UTF-16 units lo to hi, behind a state that read "\u". */
static uint32_t
units(di_gram_ctx_t *c, di_gram_nfa_t *nfa, uint32_t from, uint32_t lo,
      uint32_t hi)
{
    uint32_t to = di_gram_nfa_state(c, nfa);

    hex_range(c, nfa, from, lo, hi, 4, to);
    return to;
}

/* Pairs of code points lo to hi, less 0x10000. */
static void
pairs(di_gram_ctx_t *c, di_gram_nfa_t *nfa, uint32_t u, uint32_t lo,
      uint32_t hi, uint32_t to)
{
    uint32_t a = lo >> 10, b = hi >> 10, at;

    if (a != b && (lo & 0x3ff) != 0) {
        pairs(c, nfa, u, lo, (a << 10) + 0x3ff, to);
        pairs(c, nfa, u, (a + 1) << 10, hi, to);
        return;
    }
    if (a != b && (hi & 0x3ff) != 0x3ff) {
        pairs(c, nfa, u, lo, (b << 10) - 1, to);
        pairs(c, nfa, u, b << 10, hi, to);
        return;
    }
    at = units(c, nfa, u, 0xd800 + a, 0xd800 + b);
    at = di_gram_nfa_text(c, nfa, at, "\\u");
    at = units(c, nfa, at, 0xdc00 + (lo & 0x3ff), 0xdc00 + (hi & 0x3ff));
    di_gram_nfa_eps(c, nfa, at, to);
}

static const struct { uint32_t cp; const char *s; } shorts[] = {
    { '"', "\"" }, { '\\', "\\" }, { '/', "/" }, { '\b', "b" },
    { '\f', "f" }, { '\n', "n" }, { '\r', "r" }, { '\t', "t" },
};

/* What may be escaped. */
static const di_gram_range_t escaped_ranges[] = {
    { 0, 0x1f }, { '"', '"' }, { '/', '/' }, { '\\', '\\' },
    { 0x7f, DI_GRAM_CP_MAX },
};

/* The escapes of a set's characters, from `from` to `to`. */
static void
escapes(di_gram_ctx_t *c, di_gram_nfa_t *nfa, uint32_t from,
        di_gram_set_t set, uint32_t to)
{
    uint32_t back = di_gram_nfa_text(c, nfa, from, "\\");
    uint32_t u = di_gram_nfa_text(c, nfa, back, "u");

    for (uint32_t i = 0; i < set.n; i++) {
        uint32_t lo = set.r[i].lo, hi = set.r[i].hi;

        for (size_t k = 0; k < sizeof(shorts) / sizeof(shorts[0]); k++) {
            if (lo <= shorts[k].cp && shorts[k].cp <= hi)
                di_gram_nfa_eps(c, nfa, di_gram_nfa_text(c, nfa, back,
                                                         shorts[k].s), to);
        }
        if (lo <= 0xffff)
            di_gram_nfa_eps(c, nfa, units(c, nfa, u, lo,
                                          hi < 0xffff ? hi : 0xffff), to);
        if (hi > 0xffff)
            pairs(c, nfa, u, lo > 0x10000 ? lo - 0x10000 : 0, hi - 0x10000,
                  to);
    }
}

static uint32_t
escape_rule(di_gram_ctx_t *c, di_gram_set_t set)
{
    di_gram_nfa_t *nfa;
    di_gram_esc_t *e;

    for (e = c->escapes; e != NULL; e = e->next) {
        if (e->set.n == set.n
            && memcmp(e->set.r, set.r, set.n * sizeof(*set.r)) == 0)
            return e->rule;
    }

    nfa = di_gram_nfa_new(c);
    escapes(c, nfa, 0, set, 1);
    e = di_gram_alloc(c, 1, sizeof(*e));
    e->set = set;
    e->rule = di_gram_rule_new(c, NULL);
    e->next = c->escapes;
    c->escapes = e;
    c->rules[e->rule].dfa = di_gram_nfa_dfa(c, nfa);
    return e->rule;
}

/* What may stand in a string as it is. */
static const di_gram_range_t plain_ranges[] = {
    { 0x20, 0x21 }, { 0x23, 0x5b }, { 0x5d, 0xd7ff },
    { 0xe000, DI_GRAM_CP_MAX },
};

#define SET(a)  ((di_gram_set_t) { a, sizeof(a) / sizeof((a)[0]) })

/* What a state reads on its way to the state that its arc i goes to; n = 0:
 * an earlier arc goes there too. */
static di_gram_set_t
read_on_way(di_gram_ctx_t *c, const di_gram_state_t *s, uint32_t i)
{
    di_gram_range_t *r;
    uint32_t         n = 0;

    for (uint32_t k = 0; k < i; k++) {
        if (s->arcs[k].to == s->arcs[i].to)
            return (di_gram_set_t) { NULL, 0 };
    }
    di_gram_work(c, s->n_arcs);
    r = di_gram_alloc(c, s->n_arcs - i, sizeof(*r));
    for (uint32_t k = i; k < s->n_arcs; k++) {
        if (s->arcs[k].to == s->arcs[i].to)
            r[n++] = (di_gram_range_t) { s->arcs[k].lo, s->arcs[k].hi };
    }
    return di_gram_set_norm(c, r, n);
}

static void
add_arc(di_gram_ctx_t *c, di_gram_state_t *s, uint32_t *cap, uint32_t lo,
        uint32_t hi, uint32_t to)
{
    s->arcs = di_gram_grow(c, s->arcs, s->n_arcs, cap, sizeof(*s->arcs));
    s->arcs[s->n_arcs++] = (di_gram_arc_t) { lo, hi, to };
}

static void
spell_state(di_gram_ctx_t *c, di_gram_state_t *o, const di_gram_state_t *s,
            uint32_t end)
{
    uint32_t      arcs_cap = 0, calls_cap = 0, n;
    di_gram_set_t set;

    for (uint32_t i = 0; i < s->n_arcs; i++) {
        const di_gram_range_t whole = { s->arcs[i].lo, s->arcs[i].hi };

        set = di_gram_set_and(c, (di_gram_set_t) { &whole, 1 },
                              SET(plain_ranges));
        for (uint32_t k = 0; k < set.n; k++)
            add_arc(c, o, &arcs_cap, set.r[k].lo, set.r[k].hi,
                    s->arcs[i].to + 1);
    }
    if (s->final) {             /* the quote, in its place among the arcs    */
        add_arc(c, o, &arcs_cap, '"', '"', end);
        for (n = o->n_arcs - 1; n > 0 && o->arcs[n - 1].lo > '"'; n--)
            o->arcs[n] = o->arcs[n - 1];
        o->arcs[n] = (di_gram_arc_t) { '"', '"', end };
    }
    for (uint32_t i = 0; i < s->n_arcs; i++) {
        set = di_gram_set_and(c, read_on_way(c, s, i), SET(escaped_ranges));
        if (set.n == 0)
            continue;
        n = escape_rule(c, set);
        o->calls = di_gram_grow(c, o->calls, o->n_calls, &calls_cap,
                                sizeof(*o->calls));
        o->calls[o->n_calls++] = (di_gram_call_t) { n, s->arcs[i].to + 1 };
    }
}

static di_gram_dfa_t *
spell_large(di_gram_ctx_t *c, const di_gram_dfa_t *d)
{
    di_gram_dfa_t *out = di_gram_alloc(c, 1, sizeof(*out));
    uint32_t       end = d->n + 1, cap = 0;

    for (uint32_t i = 0; i < d->n + 2; i++)
        (void) di_gram_dfa_state(c, out);
    out->s[end].final = true;
    add_arc(c, &out->s[0], &cap, '"', '"', 1);
    for (uint32_t i = 0; i < d->n; i++)
        spell_state(c, &out->s[i + 1], &d->s[i], end);
    return out;
}

static di_gram_dfa_t *
spell_small(di_gram_ctx_t *c, const di_gram_dfa_t *d)
{
    di_gram_nfa_t *nfa = di_gram_nfa_new(c);
    uint32_t      *map = di_gram_alloc(c, d->n, sizeof(*map));
    di_gram_set_t  set;

    for (uint32_t i = 0; i < d->n; i++)
        map[i] = di_gram_nfa_state(c, nfa);
    di_gram_nfa_eps(c, nfa, di_gram_nfa_text(c, nfa, 0, "\""), map[0]);
    for (uint32_t i = 0; i < d->n; i++) {
        for (uint32_t k = 0; k < d->s[i].n_arcs; k++) {
            uint32_t to = map[d->s[i].arcs[k].to];

            set = read_on_way(c, &d->s[i], k);
            di_gram_nfa_set(c, nfa, map[i],
                            di_gram_set_and(c, set, SET(plain_ranges)), to);
            set = di_gram_set_and(c, set, SET(escaped_ranges));
            if (set.n > 0)
                escapes(c, nfa, map[i], set, to);
        }
        if (d->s[i].final)
            di_gram_nfa_eps(c, nfa, di_gram_nfa_text(c, nfa, map[i], "\""),
                            1);
    }
    return di_gram_nfa_dfa(c, nfa);
}

#define SMALL  4u

di_gram_dfa_t *
di_gram_dfa_string(di_gram_ctx_t *c, const di_gram_dfa_t *d)
{
    if (d->n == 0)
        return di_gram_alloc(c, 1, sizeof(di_gram_dfa_t));
    return d->n <= SMALL ? spell_small(c, d) : spell_large(c, d);
}
