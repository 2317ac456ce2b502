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
 * Rules are known by their whole content, not by a hash, for the blobs come
 * from anybody.
 *
 * A walk over all tokens would cost a millisecond, so most are not walked.
 * A root's part begins with a base: the plain tokens of as many characters
 * as the state takes whatever they are (a JSON string, a bounded text), or
 * the tokens made of the bytes over which a state stays where it is (a class
 * repeated).  Below that, a subtree that a state takes whole is added as a
 * stretch of ids.
 */

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "index.h"

/* A place where the rule is left, on the way. */
typedef struct di_gram_left_s {
    uint32_t state, node;
} left_t;

#define ROWS  256u

/* A state spelled out, while its grammar is at hand. */
struct di_gram_row_s {
    uint32_t state;         /* DI_GRAM_DEAD: free                            */
    uint32_t run;           /* plain characters that can come whatever they
                               are                                           */
    uint64_t loops;         /* kinds of bytes that stay here, if nothing in
                               them leaves the rule; else 0                  */
    bool     leaves;        /* it is final or calls                          */
    uint64_t calls;         /* kinds that a call may begin with              */
    uint32_t to[256];
};

struct di_gram_row_s *
di_gram_rows_new(void)
{
    return malloc(ROWS * sizeof(struct di_gram_row_s));
}

/* -------------------------------------------------------- rules by content */

/* Kinds of the bytes that a call may begin with; all where it may read
 * nothing or calls further. */
static uint64_t
call_heads(const di_gram_index_t *x, const di_gram_t *g,
           const di_gram_bcall_t *call)
{
    uint32_t                s = g->rules[call->rule].first;
    const di_gram_bstate_t *st = &g->states[s];
    uint64_t                heads = 0;

    if (st->final || di_gram_has_calls(g, s))
        return UINT64_MAX;
    for (uint32_t k = st[0].edges; k < st[1].edges; k++) {
        for (uint32_t b = g->edges[k].lo; b <= g->edges[k].hi; b++)
            heads |= UINT64_C(1) << x->kinds[b];
    }
    return heads;
}

/* A call that begins with no plain character. */
static bool
call_not_plain(const di_gram_t *g, const di_gram_bcall_t *call)
{
    uint32_t                s = g->rules[call->rule].first;
    const di_gram_bstate_t *st = &g->states[s];

    if (st->final || di_gram_has_calls(g, s))
        return false;
    for (uint32_t k = st[0].edges; k < st[1].edges; k++) {
        const di_gram_bedge_t *e = &g->edges[k];

        if (e->hi >= 0x20 && !(e->lo == e->hi && (e->lo == '"'
                                                  || e->lo == '\\')))
            return false;
    }
    return true;
}

static uint32_t
put_word(uint32_t *words, uint32_t n, uint32_t w)
{
    if (words != NULL)
        words[n] = w;
    return n + 1;
}

/* All of a rule that a part depends on; NULL words: the count alone. */
static uint32_t
rule_words(const di_gram_index_t *x, const di_gram_t *g, uint32_t rule,
           uint32_t *words)
{
    uint32_t first = g->rules[rule].first, n = 0;
    uint64_t heads;

    for (uint32_t i = 0; i < g->rules[rule].n_states; i++) {
        const di_gram_bstate_t *s = &g->states[first + i];

        n = put_word(words, n, s->final);
        n = put_word(words, n, s[1].edges - s[0].edges);
        n = put_word(words, n, s[1].calls - s[0].calls);
        for (uint32_t k = s[0].edges; k < s[1].edges; k++) {
            n = put_word(words, n, g->edges[k].to - first);
            n = put_word(words, n, g->edges[k].lo
                                   | (uint32_t) g->edges[k].hi << 8);
        }
        for (uint32_t k = s[0].calls; k < s[1].calls; k++) {
            heads = words != NULL ? call_heads(x, g, &g->calls[k]) : 0;
            n = put_word(words, n, (uint32_t) heads);
            n = put_word(words, n, (uint32_t) (heads >> 32));
            n = put_word(words, n, words != NULL
                                   && call_not_plain(g, &g->calls[k]));
        }
    }
    return n;
}

/* The index's number of a rule; DI_GRAM_DEAD: no memory. */
static uint32_t
find_rule(di_gram_index_t *x, const di_gram_t *g, uint32_t rule)
{
    bool      returns = rule != g->head.root || g->root_called;
    uint32_t  n = rule_words(x, g, rule, NULL), i;
    uint32_t *words = malloc(n * sizeof(*words));
    uint64_t  hash;

    if (words == NULL)
        return DI_GRAM_DEAD;
    (void) rule_words(x, g, rule, words);
    hash = di_gram_hash(DI_GRAM_HASH_SEED, words, n);
    for (i = 0; i < x->n_known; i++) {
        const di_gram_known_t *k = &x->known[i];

        if (k->hash == hash && k->returns == returns && k->n_words == n
            && memcmp(k->words, words, n * sizeof(*words)) == 0) {
            free(words);
            return i;
        }
    }

    if (x->n_known == x->known_cap) {
        uint32_t cap = x->known_cap == 0 ? 64 : x->known_cap * 2;
        void    *p = realloc(x->known, cap * sizeof(*x->known));

        if (p == NULL) {
            free(words);
            return DI_GRAM_DEAD;
        }
        x->known = p;
        x->known_cap = cap;
    }
    x->known[i] = (di_gram_known_t) { .hash = hash, .returns = returns,
                                      .n_words = n };
    x->known[i].words = di_gram_index_alloc(x, n, sizeof(*words));
    if (x->known[i].words == NULL) {
        free(words);
        return DI_GRAM_DEAD;
    }
    memcpy(x->known[i].words, words, n * sizeof(*words));
    free(words);
    return x->n_known++;
}

/* A grammar asks again for its rules' numbers where they were forgotten. */
static uint32_t
rule_number(di_gram_index_t *x, di_gram_t *g, uint32_t rule)
{
    size_t bytes = g->head.n_rules * sizeof(*g->bound_rules);

    if (g->bound != x->epoch) {
        if (g->bound_rules == NULL)
            g->bound_rules = malloc(bytes);
        if (g->bound_rules == NULL)
            return DI_GRAM_DEAD;
        memset(g->bound_rules, 0xff, bytes);
        g->bound = x->epoch;
    }
    if (g->bound_rules[rule] == DI_GRAM_DEAD)
        g->bound_rules[rule] = find_rule(x, g, rule);
    return g->bound_rules[rule];
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
        if (!call_not_plain(g, &g->calls[k]))
            return true;
    }
    return false;
}

#define UNKNOWN  (DI_GRAM_DEAD - 1)

/* How many plain characters can come from here whatever they are, without a
 * way out of the rule in between; at most `most`.  *end is the state behind
 * them.  What follows a state is found out once for a grammar. */
static uint32_t
plain_run(di_gram_t *g, uint32_t state, bool returns, uint32_t most,
          uint32_t *end)
{
    uint32_t n, next;

    for (n = 0; n < most; n++, state = next) {
        next = g->after_plain[state];
        if (next == UNKNOWN) {
            next = after_plain(g, state);
            if (next != DI_GRAM_DEAD && plain_leaves(g, next, returns))
                next = DI_GRAM_DEAD;
            g->after_plain[state] = next;
        }
        if (next == DI_GRAM_DEAD)
            break;
        if (next == state)
            n = most - 1;
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
static bool
prepare_plain(di_gram_t *g)
{
    size_t n = g->head.n_states;

    if (g->after_plain != NULL)
        return true;
    g->after_plain = malloc(n * sizeof(*g->after_plain));
    for (size_t i = 0; g->after_plain != NULL && i < n; i++)
        g->after_plain[i] = UNKNOWN;
    return g->after_plain != NULL;
}

/* ---------------------------------------------------------------- parts -- */

typedef struct {
    di_gram_index_t *x;
    di_gram_t       *g;
    bool             returns;
    uint32_t         run;       /* plain tokens of at most so many characters
                                   are in `base`                             */
    bool             stops;     /* and no longer ones can come               */
    uint64_t         loops;     /* tokens of these kinds of bytes are, which
                                   stay in the state `hub`                   */
    uint32_t         hub;       /* DI_GRAM_DEAD: none                        */
    const uint64_t  *base;      /* mask that the part begins with; or NULL   */
    uint64_t         except;    /* kinds of first bytes for which `base`
                                   doesn't hold                              */
    uint32_t         n_found;
    bool             spilt;     /* some are in the index's scratch `spilt`   */
    bool             no_memory;
} walk_t;

static void
fill_row(walk_t *w, struct di_gram_row_s *r, uint32_t state)
{
    const di_gram_t        *g = w->g;
    const di_gram_bstate_t *s = &g->states[state];
    const uint8_t          *kinds = w->x->kinds;
    uint64_t                others = 0;
    uint32_t                end;

    *r = (struct di_gram_row_s) { .state = state };
    memset(r->to, 0xff, sizeof(r->to));
    for (uint32_t k = s[0].edges; k < s[1].edges; k++) {
        for (uint32_t b = g->edges[k].lo; b <= g->edges[k].hi; b++)
            r->to[b] = g->edges[k].to;
    }
    for (uint32_t k = s[0].calls; k < s[1].calls; k++)
        r->calls |= call_heads(w->x, g, &g->calls[k]);
    if (s->final && w->returns)
        r->calls = UINT64_MAX;
    r->leaves = r->calls != 0;
    for (uint32_t b = 0; b < 256; b++) {
        if (r->to[b] == state)
            r->loops |= UINT64_C(1) << kinds[b];
        else
            others |= UINT64_C(1) << kinds[b];
    }
    r->loops &= ~others & ~r->calls
                & ~(UINT64_C(1) << DI_GRAM_SPECIAL_KIND);
    r->run = plain_leaves(g, state, w->returns)
             ? 0 : plain_run(w->g, state, w->returns, w->x->plain_chars,
                             &end);
}

static struct di_gram_row_s *
row(walk_t *w, uint32_t state)
{
    struct di_gram_row_s *r = &w->x->rows[state % ROWS];

    if (r->state != state)
        fill_row(w, r, state);
    return r;
}

static void
set_bits(uint64_t *mask, const int32_t *tokens, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        mask[tokens[i] / 64] |= UINT64_C(1) << tokens[i] % 64;
}

/* Note where the rule can be left with bytes of tokens still to come. */
static void
leave(walk_t *w, uint32_t state, uint32_t node)
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
take(walk_t *w, uint32_t from, uint32_t to)
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
takes_all(const di_gram_tnode_t *t, const struct di_gram_row_s *r)
{
    return (t->kinds & ~r->loops) == 0
           || (t->plain && t->chars <= r->run
               && (t->heads >> DI_GRAM_CONTINUATION & 1) == 0);
}

/* The base has what is below a node, or knows that it can't come. */
static inline bool
in_base(const walk_t *w, const di_gram_tnode_t *t)
{
    return t->plain && (t->chars <= w->run || w->stops);
}

/* Follow the trie below a node from a state.  Where the state is the hub, all
 * bytes so far are in the base's, and as long as that is so and stays so, the
 * base has what is found. */
static void
walk(walk_t *w, uint32_t node, uint32_t state)
{
    const di_gram_tnode_t *trie = w->x->trie, *t;
    const uint8_t         *kinds = w->x->kinds;
    struct di_gram_row_s  *r;
    uint32_t               states[DI_GRAM_TOKEN_MAX + 1], to, last;
    uint32_t               end = trie[node].skip;
    unsigned               left = UINT_MAX;     /* the base, at this depth   */

    states[trie[node].depth] = state;
    for (uint32_t i = node + 1; i < end; ) {
        t = &trie[i];
        if (in_base(w, t)) {
            i = t->skip;
            continue;
        }
        to = row(w, states[t->depth - 1])->to[t->byte];
        if (to == DI_GRAM_DEAD) {
            i = t->skip;
            continue;
        }
        if (t->depth <= left)
            left = state == w->hub && to == state
                   && (w->loops >> kinds[t->byte] & 1) != 0
                   ? UINT_MAX : t->depth;
        last = i + 1;
        if (t->skip > last) {
            r = row(w, to);
            if (left == UINT_MAX && (t->kinds & ~w->loops) == 0) {
                i = t->skip;
                continue;
            }
            if (takes_all(t, r))
                last = t->skip;
            else if (r->leaves && (r->calls & t->heads) != 0)
                leave(w, to, i);
        }
        take(w, t->rank, trie[last].rank);
        states[t->depth] = to;
        i = last;
    }
}

static int
by_state(const void *a, const void *b)
{
    const left_t *p = a, *q = b;

    if (p->state != q->state)
        return p->state < q->state ? -1 : 1;
    return (p->node > q->node) - (p->node < q->node);
}

/* The number of a set of nodes, those of left[n]. */
static uint32_t
node_set(di_gram_index_t *x, const left_t *left, uint32_t n)
{
    uint64_t  h = DI_GRAM_HASH_SEED;
    uint32_t *nodes = di_gram_index_alloc(x, n, sizeof(*nodes)), id, *at;

    if (nodes == NULL)
        return DI_GRAM_DEAD;
    for (uint32_t i = 0; i < n; i++)
        nodes[i] = left[i].node;
    h = di_gram_hash(h, nodes, n);
    at = &x->set_table[h % DI_GRAM_SET_BUCKETS];
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
make_exits(walk_t *w, di_gram_part_t *part, uint32_t first)
{
    di_gram_index_t *x = w->x;
    di_gram_exit_t  *exits;
    uint32_t         n = 0, i, end;

    if (x->n_left == 0)
        return true;
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
make_tokens(walk_t *w, di_gram_part_t *part)
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
    if (w->base != NULL)
        memcpy(dense, w->base, x->words * sizeof(*dense));
    else
        memset(dense, 0, x->words * sizeof(*dense));
    for (uint32_t i = 1; w->except != 0 && i < x->trie[0].skip;
         i = x->trie[i].skip) {
        if ((w->except >> x->kinds[x->trie[i].byte] & 1) == 0)
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

/* The mask of all tokens whose bytes are of these kinds alone; NULL: no
 * memory. */
static const uint64_t *
loop_mask(di_gram_index_t *x, uint64_t kinds)
{
    const uint32_t n = sizeof(x->loops) / sizeof(x->loops[0]);
    uint64_t      *mask, word;
    uint32_t       id = 0;

    for (uint32_t i = 0; i < n; i++) {
        if (x->loops[i].kinds == kinds)
            return x->loops[i].mask;
    }
    mask = di_gram_index_alloc(x, x->words, sizeof(*mask));
    if (mask == NULL)
        return NULL;
    for (uint32_t i = 0; i < x->words; i++, mask[i - 1] = word) {
        word = 0;
        for (unsigned b = 0; b < 64 && id < x->size; b++, id++) {
            uint64_t k = x->token_kinds[id];

            word |= (uint64_t) (k != 0 && (k & ~kinds) == 0) << b;
        }
    }
    x->loops[x->next_loop].kinds = kinds;
    x->loops[x->next_loop].mask = mask;
    x->next_loop = (x->next_loop + 1) % n;
    return mask;
}

#define LETTERS  UINT64_C(3)    /* kinds that many tokens are made of        */

/* Most first characters lead to one state that takes any plain text; kinds
 * that don't are ASCII and few.  Nothing is left of other states. */
static bool
mostly_plain(walk_t *w, uint32_t state)
{
    struct di_gram_row_s *r = row(w, state);
    uint32_t              to = r->to['~'], end;
    uint64_t              except = 0;

    if (to == DI_GRAM_DEAD || to == state
        || plain_run(w->g, to, w->returns, w->x->plain_chars, &end)
           < w->x->plain_chars || plain_leaves(w->g, to, w->returns)
        || !characters_lead_to(w->g, state, to))
        return false;
    for (uint32_t b = 0x20; b < 0x80; b++) {
        if (b != '"' && b != '\\' && r->to[b] != to)
            except |= UINT64_C(1) << w->x->kinds[b];
    }
    w->except = except;
    return (except >> w->x->kinds['~'] & 1) == 0;
}

/* A state that stays where it is over letters: this one, or the one that a
 * letter leads to.  First bytes that don't are exceptions. */
static void
find_hub(walk_t *w, uint32_t state)
{
    struct di_gram_row_s *r = row(w, state);
    uint32_t              hub = state;
    uint64_t              loops = r->loops;

    if ((loops & LETTERS) == 0 && r->to['a'] != state
        && r->to['a'] != DI_GRAM_DEAD) {
        hub = r->to['a'];
        loops = row(w, hub)->loops;
        r = row(w, state);      /* which the hub's may have displaced        */
    }
    if ((loops & LETTERS) == 0)
        return;
    w->base = loop_mask(w->x, loops);
    if (w->base == NULL)
        return;
    w->loops = loops;
    w->hub = hub;
    for (uint32_t b = 0; b < 256; b++) {
        if (r->to[b] != hub)
            w->except |= UINT64_C(1) << w->x->kinds[b] & loops;
    }
}

/* What is known of the root's tokens without a walk.  Returns the root of
 * those that are left, but for the exceptions. */
static uint32_t
find_base(walk_t *w, uint32_t state)
{
    di_gram_index_t *x = w->x;
    uint32_t         end;

    w->run = plain_run(w->g, state, w->returns, x->plain_chars, &end);
    if (w->run == x->plain_chars || mostly_plain(w, state)) {
        w->base = x->plain + (size_t) DI_GRAM_PLAIN_MAX * x->words;
        return x->rest;
    }
    if (w->run > 0) {
        w->stops = plain_stops(w->g, end, w->returns)
                   && w->run < DI_GRAM_PLAIN_MAX;
        /* Told apart up to there; all above that is one mask. */
        if (w->run >= DI_GRAM_PLAIN_MAX)
            w->run = DI_GRAM_PLAIN_MAX - 1;
        w->base = x->plain + (size_t) w->run * x->words;
        return w->stops ? x->rest : 0;
    }
    find_hub(w, state);
    return 0;
}

/* The root's tokens: first those that begin with an exception, all of them,
 * then of the others those that the base doesn't know. */
static void
walk_root(walk_t *w, uint32_t state)
{
    const di_gram_tnode_t *trie = w->x->trie;
    uint32_t               rest = find_base(w, state), hub = w->hub, root, to;
    uint64_t               kind, loops = w->loops;

    for (int pass = w->except == 0; pass < 2; pass++) {
        root = pass == 0 ? 0 : rest;
        w->loops = pass == 0 ? 0 : loops;
        for (uint32_t i = root + 1; i < trie[root].skip; i = trie[i].skip) {
            kind = UINT64_C(1) << w->x->kinds[trie[i].byte];
            to = row(w, state)->to[trie[i].byte];
            if (((w->except & kind) != 0) != (pass == 0)
                || to == DI_GRAM_DEAD || in_base(w, &trie[i])
                || ((kind | trie[i].kinds) & ~w->loops) == 0)
                continue;
            w->hub = (w->loops & kind) != 0 ? hub : DI_GRAM_DEAD;
            take(w, trie[i].rank, trie[i + 1].rank);
            if ((row(w, to)->calls & trie[i].heads) != 0)
                leave(w, to, i);
            walk(w, i, to);
        }
    }
}

static bool
make_part(di_gram_index_t *x, di_gram_t *g, di_gram_part_t *part,
          uint32_t state)
{
    uint32_t              rule = g->states[state].rule;
    const di_gram_nodes_t set = x->sets[part->nodes];
    walk_t                w = {
        .x = x, .g = g, .returns = rule != g->head.root || g->root_called,
    };

    x->n_left = 0;
    if (!prepare_plain(g))
        return false;
    if (x->rows_of != g->serial) {
        for (uint32_t i = 0; i < ROWS; i++)
            x->rows[i].state = DI_GRAM_DEAD;
        x->rows_of = g->serial;
    }
    w.hub = DI_GRAM_DEAD;
    if (part->nodes == 0)       /* the ways have all that comes unread       */
        walk_root(&w, state);
    for (uint32_t i = 0; part->nodes != 0 && i < set.n; i++) {
        if ((row(&w, state)->calls & x->trie[set.nodes[i]].heads) != 0)
            leave(&w, state, set.nodes[i]);
        walk(&w, set.nodes[i], state);
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

    number = rule_number(x, g, rule);
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
