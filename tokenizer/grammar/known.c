/*
 * known.c - rules by their content.
 *
 * Parts of masks are kept for all grammars that have the rule, so a rule is
 * known by all of its states and edges and by what its calls begin with: not
 * by a hash, for the blobs come from anybody.
 */

#include <stdlib.h>
#include <string.h>

#include "part.h"

/* Kinds of the bytes that a call may begin with; all where it may read
 * nothing or calls further. */
uint64_t
di_gram_call_heads(const di_gram_index_t *x, const di_gram_t *g,
                   const di_gram_bcall_t *call)
{
    uint32_t                s = g->rules[call->rule].first;
    const di_gram_bstate_t *st = &g->states[s];
    uint64_t                heads = 0;

    if (st->final || di_gram_has_calls(g, s))
        return UINT64_MAX;
    for (uint32_t k = st[0].edges; k < st[1].edges; k++)
        heads |= di_gram_span(x, g->edges[k].lo, g->edges[k].hi);
    return heads;
}

bool
di_gram_call_not_plain(const di_gram_t *g, const di_gram_bcall_t *call)
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
            heads = words != NULL
                    ? di_gram_call_heads(x, g, &g->calls[k]) : 0;
            n = put_word(words, n, (uint32_t) heads);
            n = put_word(words, n, (uint32_t) (heads >> 32));
            n = put_word(words, n, words != NULL
                                   && di_gram_call_not_plain(g,
                                                             &g->calls[k]));
        }
    }
    return n;
}

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
uint32_t
di_gram_rule_number(di_gram_index_t *x, di_gram_t *g, uint32_t rule)
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
