/*
 * gram.c - opening a compiled grammar.
 *
 * The blob comes from another process, so everything that the matcher will
 * rely on is checked here, once: sizes, offsets, order of edges, that a step
 * stays inside its rule.  What a hostile blob can still do is be a bad
 * grammar: one with dead ends, or with rules that call each other without
 * reading, which the matcher's limits on depth and ways bound.
 */

#include <stdlib.h>
#include <string.h>

#include "match.h"

static bool
rules_ok(const di_gram_t *g)
{
    uint64_t at = 0;

    for (uint32_t r = 0; r < g->head.n_rules; r++) {
        if (g->rules[r].first != at || g->rules[r].n_states == 0)
            return false;
        at += g->rules[r].n_states;
        if (at > g->head.n_states)
            return false;
        for (uint64_t s = g->rules[r].first; s < at; s++) {
            if (g->states[s].rule != r || g->states[s].final > 1)
                return false;
        }
    }
    return at == g->head.n_states;
}

static bool
offsets_ok(const di_gram_t *g)
{
    const di_gram_bstate_t *s = g->states;
    uint32_t                n = g->head.n_states;

    if (s[0].edges != 0 || s[0].calls != 0
        || s[n].edges != g->head.n_edges || s[n].calls != g->head.n_calls)
        return false;
    for (uint32_t i = 0; i < n; i++) {
        if (s[i].edges > s[i + 1].edges || s[i].calls > s[i + 1].calls)
            return false;
    }
    return true;
}

static bool
steps_ok(const di_gram_t *g)
{
    for (uint32_t i = 0; i < g->head.n_states; i++) {
        const di_gram_brule_t *rule = &g->rules[g->states[i].rule];
        int                    last = -1;

        for (uint32_t k = g->states[i].edges; k < g->states[i + 1].edges;
             k++) {
            const di_gram_bedge_t *e = &g->edges[k];

            if (e->lo <= last || e->hi < e->lo || e->to < rule->first
                || e->to - rule->first >= rule->n_states)
                return false;
            last = e->hi;
        }
        for (uint32_t k = g->states[i].calls; k < g->states[i + 1].calls;
             k++) {
            const di_gram_bcall_t *c = &g->calls[k];

            if (c->rule >= g->head.n_rules || c->to < rule->first
                || c->to - rule->first >= rule->n_states)
                return false;
        }
    }
    return true;
}

/* Point at the parts; false: the sizes don't add up. */
static bool
lay_out(di_gram_t *g)
{
    const di_gram_blob_t *h = &g->head;
    const uint8_t        *p = g->data + sizeof(*h);
    const size_t          parts[] = {
        h->n_rules * sizeof(di_gram_brule_t),
        ((size_t) h->n_states + 1) * sizeof(di_gram_bstate_t),
        h->n_edges * sizeof(di_gram_bedge_t),
        h->n_calls * sizeof(di_gram_bcall_t),
    };

    if (parts[0] + parts[1] + parts[2] + parts[3] + sizeof(*h) != g->bytes)
        return false;
    g->rules = (const di_gram_brule_t *) p;
    g->states = (const di_gram_bstate_t *) (p += parts[0]);
    g->edges = (const di_gram_bedge_t *) (p += parts[1]);
    g->calls = (const di_gram_bcall_t *) (p += parts[2]);
    return true;
}

int
di_gram_open(const void *blob, size_t blob_bytes, di_gram_t **gram,
             di_err_t *err)
{
    static _Atomic uint64_t serials;    /* grammars opened in this process   */
    di_gram_t              *g;

    if (blob_bytes < sizeof(g->head) || blob_bytes > UINT32_MAX)
        return di_err_set(err, DI_EFORMAT, 0, "grammar blob: bad size");
    g = malloc(sizeof(*g) + blob_bytes);
    if (g == NULL)
        return di_err_set(err, DI_ENOMEM, 0, "grammar blob: no memory");
    memcpy(g->data, blob, blob_bytes);
    memcpy(&g->head, g->data, sizeof(g->head));
    g->bytes = blob_bytes;
    g->bound = 0;
    g->bound_rules = NULL;
    g->plain = NULL;
    g->serial = 1 + atomic_fetch_add_explicit(&serials, 1,
                                              memory_order_relaxed);
    atomic_init(&g->refs, 1);
    atomic_init(&g->near, NULL);

    if (g->head.magic != DI_GRAM_MAGIC
        || g->head.version != DI_GRAM_VERSION
        || g->head.root >= g->head.n_rules || !lay_out(g)
        || !offsets_ok(g) || !rules_ok(g) || !steps_ok(g)) {
        free(g);
        return di_err_set(err, DI_EFORMAT, 0, "grammar blob: malformed");
    }
    g->root_called = false;
    for (uint32_t i = 0; i < g->head.n_calls; i++)
        g->root_called |= g->calls[i].rule == g->head.root;
    *gram = g;
    return DI_OK;
}

void
di_gram_ref(di_gram_t *gram)
{
    atomic_fetch_add_explicit(&gram->refs, 1, memory_order_relaxed);
}

/* The last one's release pairs with the others' through acq_rel. */
void
di_gram_unref(di_gram_t *gram)
{
    if (gram != NULL
        && atomic_fetch_sub_explicit(&gram->refs, 1,
                                     memory_order_acq_rel) == 1) {
        free(atomic_load_explicit(&gram->near, memory_order_relaxed));
        free(gram->bound_rules);
        free(gram->plain);
        free(gram);
    }
}

size_t
di_gram_memory(const di_gram_t *gram)
{
    return sizeof(*gram) + gram->bytes
           + (atomic_load_explicit(&gram->near, memory_order_relaxed) != NULL
              ? gram->head.n_states * 2 * sizeof(uint32_t) : 0)
           + (gram->bound_rules != NULL
              ? gram->head.n_rules * sizeof(uint32_t) : 0)
           + (gram->plain != NULL
              ? gram->head.n_states * sizeof(*gram->plain) : 0);
}
