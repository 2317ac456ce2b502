/*
 * base.c - tokens that a state takes without a walk.
 *
 * A walk over all tokens would cost a millisecond, so most are not walked.
 * A root's part begins with a base, a mask made of words and not of tokens:
 *
 * - plain tokens of as many characters as the state takes whatever they are
 *   (a JSON string, a bounded text);
 * - or the tokens made of the bytes of a class that is repeated, again up to
 *   a number of bytes.  From the state on, wherever such bytes lead, all of
 *   them lead on.  The class may have all characters beyond ASCII; then only
 *   tokens of whole characters are meant.
 *
 * The other tokens leave these paths somewhere, over a byte by which one of
 * the states on them can be left: `outs`.  A subtree without such bytes has
 * nothing that the base hasn't.  First bytes that lead elsewhere are
 * exceptions: what begins with them is taken out of the base, and walked.
 */

#include <stdlib.h>
#include <string.h>

#include "part.h"

#define BIT(kind)  (UINT64_C(1) << (kind))
#define LETTERS    UINT64_C(3)  /* kinds that many tokens are made of        */

di_gram_row_t *
di_gram_rows_new(void)
{
    return malloc(DI_GRAM_ROWS * sizeof(di_gram_row_t));
}

/* --------------------------------------------------------- plain states -- */

/* From `state`, all bytes lo to hi are taken and lead to one state, which is
 * returned; DI_GRAM_DEAD: not so. */
static uint32_t
only_state(const di_gram_t *g, uint32_t state, unsigned lo, unsigned hi)
{
    const di_gram_bstate_t *s = &g->states[state];
    uint32_t                to = DI_GRAM_DEAD;

    for (uint32_t k = s[0].edges; k < s[1].edges && lo <= hi; k++) {
        const di_gram_bedge_t *e = &g->edges[k];

        if (e->hi < lo)
            continue;
        if (e->lo > lo || (to != DI_GRAM_DEAD && to != e->to))
            return DI_GRAM_DEAD;
        to = e->to;
        lo = e->hi + 1u;
    }
    return lo > hi ? to : DI_GRAM_DEAD;
}

/* The leads lo to hi, whose next byte is in [second_lo, second_hi] and is
 * followed by `tail` more, all lead to `to` in the end. */
static bool
tails_lead_to(const di_gram_t *g, uint32_t state, unsigned lo, unsigned hi,
              unsigned second_lo, unsigned second_hi, unsigned tail,
              uint32_t to)
{
    for (unsigned lead = lo; lead <= hi; lead++) {
        uint32_t s = di_gram_step(g, state, (uint8_t) lead);

        if (s == DI_GRAM_DEAD)
            return false;
        s = only_state(g, s, second_lo, second_hi);
        for (unsigned i = 0; i < tail && s != DI_GRAM_DEAD; i++)
            s = only_state(g, s, 0x80, 0xbf);
        if (s != to)
            return false;
    }
    return true;
}

/* All characters beyond ASCII lead to `to`. */
static bool
characters_lead_to(const di_gram_t *g, uint32_t state, uint32_t to)
{
    return tails_lead_to(g, state, 0xc2, 0xdf, 0x80, 0xbf, 0, to)
           && tails_lead_to(g, state, 0xe0, 0xe0, 0xa0, 0xbf, 1, to)
           && tails_lead_to(g, state, 0xe1, 0xec, 0x80, 0xbf, 1, to)
           && tails_lead_to(g, state, 0xed, 0xed, 0x80, 0x9f, 1, to)
           && tails_lead_to(g, state, 0xee, 0xef, 0x80, 0xbf, 1, to)
           && tails_lead_to(g, state, 0xf0, 0xf0, 0x90, 0xbf, 2, to)
           && tails_lead_to(g, state, 0xf1, 0xf3, 0x80, 0xbf, 2, to)
           && tails_lead_to(g, state, 0xf4, 0xf4, 0x80, 0x8f, 2, to);
}

/* The state after any character beyond ASCII; DI_GRAM_DEAD: there is no
 * such. */
static uint32_t
after_character(const di_gram_t *g, uint32_t state)
{
    uint32_t to = di_gram_step(g, state, 0xc2);

    if (to != DI_GRAM_DEAD)
        to = di_gram_step(g, to, 0x80);
    return to != DI_GRAM_DEAD && characters_lead_to(g, state, to)
           ? to : DI_GRAM_DEAD;
}

/* The state after any plain character; DI_GRAM_DEAD: there is no such. */
static uint32_t
after_plain(const di_gram_t *g, uint32_t state)
{
    uint32_t to = only_state(g, state, 0x5d, 0x7f);

    if (to == DI_GRAM_DEAD || only_state(g, state, 0x20, 0x21) != to
        || only_state(g, state, 0x23, 0x5b) != to
        || !characters_lead_to(g, state, to))
        return DI_GRAM_DEAD;
    return to;
}

/* A way out of the rule that a plain character could take. */
static bool
plain_leaves(const di_gram_t *g, uint32_t state, bool returns)
{
    if (g->states[state].final && returns)
        return true;
    for (uint32_t k = g->states[state].calls; k < g->states[state + 1].calls;
         k++) {
        if (!di_gram_call_not_plain(g, &g->calls[k]))
            return true;
    }
    return false;
}

#define UNKNOWN  (DI_GRAM_DEAD - 1)

/* Kinds of all bytes that a state or its calls can begin with. */
static uint64_t
heads_of(const di_gram_walk_t *w, uint32_t state)
{
    const di_gram_t        *g = w->g;
    const di_gram_bstate_t *s = &g->states[state];
    uint64_t                heads = s->final && w->returns ? UINT64_MAX : 0;

    for (uint32_t k = s[0].edges; k < s[1].edges; k++)
        heads |= di_gram_span(w->x, g->edges[k].lo, g->edges[k].hi);
    for (uint32_t k = s[0].calls; k < s[1].calls; k++)
        heads |= di_gram_call_heads(w->x, g, &g->calls[k]);
    return heads;
}

/* Found out once for each state of a grammar. */
static const di_gram_plain_t *
plain_at(di_gram_walk_t *w, uint32_t state)
{
    di_gram_plain_t *p = &w->g->plain[state];

    if (p->next == UNKNOWN) {
        p->next = after_plain(w->g, state);
        if (p->next != DI_GRAM_DEAD
            && plain_leaves(w->g, p->next, w->returns))
            p->next = DI_GRAM_DEAD;
        p->outs = p->next == DI_GRAM_DEAD ? 0 : heads_of(w, state);
    }
    return p;
}

/* How many plain characters can come from here whatever they are, without a
 * way out of the rule in between: up to DI_GRAM_PLAIN_MAX, or any number,
 * DI_GRAM_TOKEN_MAX.  *end is the state behind them; *outs: kinds of all bytes
 * that can come on the way. */
static uint32_t
plain_run(di_gram_walk_t *w, uint32_t state, uint32_t *end, uint64_t *outs)
{
    const di_gram_plain_t *p;
    uint32_t               n;

    *outs = 0;
    for (n = 0; n < DI_GRAM_PLAIN_MAX; n++) {
        p = plain_at(w, state);
        if (p->next == DI_GRAM_DEAD)
            break;
        *outs |= p->outs;
        if (p->next == state) {
            n = DI_GRAM_TOKEN_MAX;
            break;
        }
        state = p->next;
    }
    *end = state;
    return n;
}

/* No plain character at all can come, not even by way of another rule. */
static bool
plain_stops(const di_gram_t *g, uint32_t state, bool returns)
{
    for (uint32_t k = g->states[state].edges; k < g->states[state + 1].edges;
         k++) {
        const di_gram_bedge_t *e = &g->edges[k];

        if (e->hi >= 0x20 && !(e->lo == e->hi && (e->lo == '"'
                                                  || e->lo == '\\')))
            return false;
    }
    return !plain_leaves(g, state, returns);
}

/* Room to remember that; false: no memory. */
bool
di_gram_prepare_plain(di_gram_t *g)
{
    size_t n = g->head.n_states;

    if (g->plain != NULL)
        return true;
    g->plain = malloc(n * sizeof(*g->plain));
    for (size_t i = 0; g->plain != NULL && i < n; i++)
        g->plain[i] = (di_gram_plain_t) {
            .next = UNKNOWN, .run = DI_GRAM_DEAD,
        };
    return g->plain != NULL;
}

/* ----------------------------------------------------------------- rows -- */

/* The run from a state; what is known of the next ones counts. */
static uint32_t
run_of(di_gram_walk_t *w, uint32_t state)
{
    di_gram_plain_t *p = &w->g->plain[state];
    uint32_t         next = plain_at(w, state)->next, end;
    uint64_t         outs;

    if (p->run != DI_GRAM_DEAD)
        return p->run;
    if (next != DI_GRAM_DEAD && w->g->plain[next].run != DI_GRAM_DEAD) {
        p->run = w->g->plain[next].run;
        p->run += p->run < DI_GRAM_PLAIN_MAX;
    } else {
        p->run = plain_run(w, state, &end, &outs);
    }
    return p->run;
}

const di_gram_row_t *
di_gram_row_fill(di_gram_walk_t *w, di_gram_row_t *r, uint32_t state)
{
    const di_gram_t        *g = w->g;
    const di_gram_bstate_t *s = &g->states[state];
    uint64_t                others = 0, dead = 0, kinds;
    unsigned                at = 0;

    r->state = state;
    r->some = r->calls = 0;
    memset(r->to, 0xff, sizeof(r->to));
    for (uint32_t k = s[0].edges; k < s[1].edges; k++) {
        const di_gram_bedge_t *e = &g->edges[k];

        for (uint32_t b = e->lo; b <= e->hi; b++)
            r->to[b] = e->to;
        kinds = di_gram_span(w->x, e->lo, e->hi);
        r->some |= kinds;
        if (e->to != state)
            others |= kinds;
        if (e->lo > at)
            dead |= di_gram_span(w->x, at, e->lo - 1u);
        at = e->hi + 1u;
    }
    if (at < 256)
        dead |= di_gram_span(w->x, at, 255);
    for (uint32_t k = s[0].calls; k < s[1].calls; k++)
        r->calls |= di_gram_call_heads(w->x, g, &g->calls[k]);
    if (s->final && w->returns)
        r->calls = UINT64_MAX;
    r->all = r->some & ~dead & ~r->calls & ~BIT(DI_GRAM_SPECIAL_KIND);
    r->loops = r->all & ~others;
    r->run = plain_leaves(g, state, w->returns) ? 0 : run_of(w, state);
    return r;
}

/* ------------------------------------------------------------ the bases -- */

/* The mask of the tokens of these kinds of bytes and up to this length; NULL:
 * no memory. */
static const uint64_t *
letters_mask(di_gram_index_t *x, uint64_t kinds, uint32_t longest)
{
    const uint32_t n = sizeof(x->loops) / sizeof(x->loops[0]);
    uint64_t      *mask;

    for (uint32_t i = 0; i < n; i++) {
        if (x->loops[i].kinds == kinds && x->loops[i].longest == longest)
            return x->loops[i].mask;
    }
    mask = di_gram_index_alloc(x, x->words, sizeof(*mask));
    if (mask == NULL)
        return NULL;
    x->letters(x->token_kinds, x->lengths, 64 * x->words, kinds, longest,
               mask);
    x->loops[x->next_loop].kinds = kinds;
    x->loops[x->next_loop].longest = longest;
    x->loops[x->next_loop].mask = mask;
    x->next_loop = (x->next_loop + 1) % n;
    return mask;
}

static void
except(di_gram_walk_t *w, unsigned byte)
{
    w->except[byte / 64] |= BIT(byte % 64);
    w->excepts = true;
}

/* Plain ASCII is in the base up to so many bytes. */
static void
plain_paths(di_gram_walk_t *w, uint32_t depth, uint64_t outs)
{
    for (unsigned b = 0x20; b < 0x7f; b++)
        w->loops |= b == '"' || b == '\\' ? 0 : BIT(w->x->kinds[b]);
    w->depth = depth;
    w->outs = (outs | BIT(DI_GRAM_PARTIAL)) & ~w->loops;
}

/* Most first characters lead to one state that takes any plain text; those
 * that don't are ASCII. */
static bool
mostly_plain(di_gram_walk_t *w, uint32_t state)
{
    const di_gram_row_t *r = di_gram_row(w, state);
    uint32_t             to = r->to['~'], end;
    uint64_t             outs;

    if (to == DI_GRAM_DEAD || to == state
        || plain_run(w, to, &end, &outs) != DI_GRAM_TOKEN_MAX
        || plain_leaves(w->g, to, w->returns)
        || !characters_lead_to(w->g, state, to))
        return false;
    r = di_gram_row(w, state);
    for (unsigned b = 0x20; b < 0x80; b++) {
        if (b != '"' && b != '\\' && r->to[b] != to)
            except(w, b);
    }
    plain_paths(w, DI_GRAM_TOKEN_MAX, outs);
    return true;
}

#define LEVEL_STATES  64u       /* looked at from a first byte               */

typedef struct {
    uint32_t seen[LEVEL_STATES];    /* [n] in the order that they are met    */
    uint32_t n;
} level_t;

/* Add the states that bytes of kinds `loops` lead to; false: not all of them
 * lead on, or there are too many states. */
static bool
next_level(di_gram_walk_t *w, level_t *l, uint32_t state, uint64_t loops)
{
    const di_gram_row_t *r = di_gram_row(w, state);
    uint32_t             beyond = state, to, k;

    if ((loops & ~DI_GRAM_CHARACTERS & ~r->all) != 0)
        return false;
    if ((loops & DI_GRAM_CHARACTERS) != 0) {
        beyond = after_character(w->g, state);
        if (beyond == DI_GRAM_DEAD || (r->calls & DI_GRAM_CHARACTERS) != 0)
            return false;
    }
    for (unsigned b = 0; b <= 128; b++) {
        if (b < 128 && (loops >> w->x->kinds[b] & 1) == 0)
            continue;
        to = b < 128 ? r->to[b] : beyond;
        for (k = 0; k < l->n && l->seen[k] != to; k++)
            ;
        if (k < l->n)
            continue;
        if (l->n == LEVEL_STATES)
            return false;
        l->seen[l->n++] = to;
    }
    return true;
}

/* How many bytes of kinds `loops` can come whatever they are behind a first
 * character that led to `state`; at most `most`.  Adds to *outs what else
 * can. */
static uint32_t
letters_run(di_gram_walk_t *w, uint32_t state, uint64_t loops, uint32_t most,
            uint64_t *outs)
{
    level_t  l = { .seen = { state }, .n = 1 };
    uint32_t from = 0, level, end;
    uint64_t others = 0;

    for (level = 0; level < most && from < l.n; level++) {
        for (end = l.n; from < end; from++) {
            const di_gram_row_t *r = di_gram_row(w, l.seen[from]);

            others |= (r->some | r->calls) & ~loops;
            if (!next_level(w, &l, l.seen[from], loops))
                return level;
        }
        *outs |= others;
    }
    return most;
}

/* A class that is repeated from here on, or soon; 0: none with letters. */
static uint64_t
find_class(di_gram_walk_t *w, uint32_t state)
{
    static const uint8_t probes[] = { 'a', 'A' };
    uint64_t             both;
    uint32_t             at, to;

    for (size_t i = 0; i < sizeof(probes); i++) {
        at = state;
        both = UINT64_MAX;
        for (unsigned n = 0; n < 8; n++, at = to) {
            to = di_gram_row(w, at)->to[probes[i]];
            if (to == DI_GRAM_DEAD)
                break;
            both &= di_gram_row(w, to)->all & ~DI_GRAM_CHARACTERS;
            if (to == at) {
                both = di_gram_row(w, at)->loops;
                break;
            }
        }
        /* Up to eight times is no loop, but may be enough. */
        if (to != DI_GRAM_DEAD && (both & LETTERS) != 0)
            return after_character(w->g, to) != DI_GRAM_DEAD
                   ? both | DI_GRAM_CHARACTERS : both;
    }
    return 0;
}

#define RUN_MIN    4u   /* bytes for which a base is worth it                */
#define TRIED_MAX  8u   /* states behind a first character                   */

typedef struct {
    uint32_t states[TRIED_MAX];     /* [n]                                   */
    uint32_t runs[TRIED_MAX];
    uint32_t n;
    uint32_t depth;         /* the least of the runs that are worth it       */
    uint64_t outs;
} tried_t;

/* The base may hold what begins with a character that leads to `state`. */
static bool
worth(di_gram_walk_t *w, tried_t *t, uint32_t state, uint64_t loops)
{
    uint64_t others = 0;
    uint32_t k, run;

    for (k = 0; k < t->n && t->states[k] != state; k++)
        ;
    if (k < t->n)
        return t->runs[k] >= RUN_MIN;
    if (k == TRIED_MAX || state == DI_GRAM_DEAD)
        return false;
    run = 1 + letters_run(w, state, loops, DI_GRAM_TOKEN_MAX - 1, &others);
    t->states[k] = state;
    t->runs[k] = run;
    t->n++;
    if (run < RUN_MIN)
        return false;
    t->outs |= others;
    t->depth = run < t->depth ? run : t->depth;
    return true;
}

static void
letters_base(di_gram_walk_t *w, uint32_t state)
{
    const uint8_t *kinds = w->x->kinds;
    uint64_t       loops = find_class(w, state);
    tried_t        t = { .depth = DI_GRAM_TOKEN_MAX };
    uint32_t       first[128];
    bool           beyond;

    if ((loops & LETTERS) == 0)
        return;
    memcpy(first, di_gram_row(w, state)->to, sizeof(first));
    beyond = (loops & DI_GRAM_CHARACTERS) != 0
             && worth(w, &t, after_character(w->g, state), loops);
    if ((loops & DI_GRAM_CHARACTERS) != 0 && !beyond) {
        loops &= ~DI_GRAM_CHARACTERS;
        t = (tried_t) { .depth = DI_GRAM_TOKEN_MAX };
    }
    for (unsigned b = 0; b < 128; b++) {
        if ((loops >> kinds[b] & 1) != 0 && !worth(w, &t, first[b], loops))
            except(w, b);
    }
    w->base = letters_mask(w->x, loops, t.depth);
    w->loops = loops;
    w->depth = t.depth;
    w->outs = t.outs | BIT(DI_GRAM_PARTIAL);
}

uint32_t
di_gram_find_base(di_gram_walk_t *w, uint32_t state)
{
    di_gram_index_t *x = w->x;
    uint64_t         outs;
    uint32_t         end, run = plain_run(w, state, &end, &outs);

    if (run == DI_GRAM_TOKEN_MAX || (run == 0 && mostly_plain(w, state))) {
        w->base = x->plain + (size_t) DI_GRAM_PLAIN_MAX * x->words;
        w->run = run;
        if (run > 0)
            plain_paths(w, run, outs);
        return x->rest;
    }
    if (run > 0) {
        /* Longer tokens than the longest told apart are in the rest, too. */
        w->run = run < DI_GRAM_PLAIN_MAX ? run : DI_GRAM_PLAIN_MAX - 1;
        w->stops = run < DI_GRAM_PLAIN_MAX
                   && plain_stops(w->g, end, w->returns);
        w->base = x->plain + (size_t) w->run * x->words;
        plain_paths(w, w->run, outs);
        return w->stops || run == DI_GRAM_PLAIN_MAX ? x->rest : 0;
    }
    letters_base(w, state);
    return 0;
}
