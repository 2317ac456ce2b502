/*
 * schema_array.c - the automaton of an array: its items by their index, how
 * many of them satisfied each `contains`, and, if all must differ, which
 * values there were.
 */

#include "schema_build.h"

#define UNIQUE_MAX  10u         /* values of items that must differ          */

typedef struct {
    di_gram_build_t b;          /* of the rule                               */
    const di_gram_contains_t *contains[DI_GRAM_SOME_MAX];
    uint32_t  caps[DI_GRAM_SOME_MAX];   /* each is counted up to here        */
    uint32_t  n_contains;
    json_t   *values;           /* that items can have, if they must differ  */
    uint32_t  used;             /* set of those that there were              */
} array_t;

/* Position of index i with these counts. */
static uint32_t
array_position(const array_t *a, uint32_t i, const uint32_t *counts)
{
    uint32_t p = i;

    for (uint32_t k = 0; k < a->n_contains; k++)
        p = p * (a->caps[k] + 1) + counts[k];
    return p << json_array_size(a->values) | a->used;
}

static di_gram_conj_t
item_conj(const array_t *a, uint32_t i)
{
    di_gram_conj_t conj = { NULL, 0 };

    for (const di_gram_items_t *p = a->b.f->items; p != NULL; p = p->next) {
        if (p->from <= i && i < p->to)
            conj = di_gram_conj_join(a->b.c, conj, p->conj);
    }
    return conj;
}

/* Also not in conj, which is one literal or none. */
static di_gram_conj_t
and_not(di_gram_build_t *b, di_gram_conj_t with, di_gram_conj_t conj)
{
    di_gram_lit_t lit = { .v = json_false() };

    if (conj.n > 0) {
        lit = conj.v[0];
        lit.negated = !lit.negated;
    }
    return di_gram_conj_add(b->c, with, lit);
}

static void
item_call(array_t *a, uint32_t from, uint32_t next, di_gram_conj_t conj,
          const uint32_t *counts)
{
    di_gram_build_t *b = &a->b;
    uint32_t         to = di_gram_reach(b, b->between,
                                        array_position(a, next, counts));

    di_gram_nfa_call(b->c, b->nfa, from, di_gram_conj_rule(b->x, conj), to);
}

/* An item that is none of those before: for each value its own call. */
static void
new_item(array_t *a, uint32_t from, uint32_t next, di_gram_conj_t conj,
         const uint32_t *counts)
{
    di_gram_lit_t  lit = { .constant = true };
    di_gram_conj_t with;
    uint32_t       used = a->used;
    json_t        *v;
    size_t         i;

    json_array_foreach(a->values, i, v) {
        if ((used >> i & 1) != 0)
            continue;
        lit.v = v;
        with = di_gram_conj_add(a->b.c, conj, lit);
        if (di_gram_is_empty(a->b.x, with))
            continue;
        a->used = used | 1u << i;
        item_call(a, from, next, with, counts);
    }
    a->used = used;
}

/* An item at index i; `k` and on: contains yet to be decided. */
static void
array_item(array_t *a, uint32_t from, uint32_t i, di_gram_conj_t conj,
           uint32_t *counts, uint32_t k)
{
    di_gram_build_t          *b = &a->b;
    const di_gram_contains_t *what;
    di_gram_conj_t            with;
    uint32_t                  next = i < b->cap ? i + 1 : i;

    if (di_gram_never(conj))
        return;
    if (k == a->n_contains) {
        if (a->values != NULL)
            new_item(a, from, next, conj, counts);
        else
            item_call(a, from, next, conj, counts);
        return;
    }

    what = a->contains[k];
    if (i < what->from) {
        array_item(a, from, i, conj, counts, k + 1);
        return;
    }
    if (counts[k] < a->caps[k]) {
        with = di_gram_conj_join(b->c, conj, what->conj);
        counts[k]++;
        array_item(a, from, i, with, counts, k + 1);
        counts[k]--;
    }
    if (what->max != DI_GRAM_NONE)
        conj = and_not(b, conj, what->conj);
    array_item(a, from, i, conj, counts, k + 1);
}

static void
array_at(array_t *a, uint32_t i, uint32_t *counts)
{
    di_gram_build_t *b = &a->b;
    uint32_t         p = array_position(a, i, counts);
    bool             ends = i >= b->f->min;

    if (b->between[p] != 0) {
        for (uint32_t k = 0; k < a->n_contains; k++)
            ends = ends && counts[k] >= a->contains[k]->min;
        if (ends)
            di_gram_nfa_eps(b->c, b->nfa,
                            di_gram_put_text(b, di_gram_put_white(b,
                                b->between[p]), "]"), b->end);
        di_gram_member_follows(b, p, i);
    }
    if (b->next[p] != 0)
        array_item(a, b->next[p], i, item_conj(a, i), counts, 0);
}

/* The values of items that must differ, which says how many there can be. */
static void
find_values(array_t *a, di_gram_form_t *f)
{
    di_gram_build_t *b = &a->b;

    a->values = di_gram_keep(b->c, json_array());
    for (uint32_t i = 0; i <= b->cap && i < f->max; i++) {
        di_gram_conj_t conj = item_conj(a, i);

        if (di_gram_never(conj))
            break;
        if (!di_gram_finite(b->x, conj, a->values, UNIQUE_MAX))
            di_gram_fail(b->c, DI_EUNSUPPORTED, "uniqueItems", f->unique_path,
                         "is held for items of %u known values only",
                         UNIQUE_MAX);
    }
    if (f->max > json_array_size(a->values))
        f->max = (uint32_t) json_array_size(a->values);
}

void
di_gram_build_array(di_gram_build_t *b)
{
    di_gram_form_t f = *b->f;
    array_t        a = { .b = *b };
    uint32_t       counts[DI_GRAM_SOME_MAX] = { 0 }, cap = 1, k;
    uint64_t       each = 1;

    a.b.f = &f;
    for (const di_gram_items_t *p = b->f->items; p != NULL; p = p->next) {
        cap = p->from > cap ? p->from : cap;
        cap = p->to != DI_GRAM_NONE && p->to > cap ? p->to : cap;
    }
    for (const di_gram_contains_t *p = b->f->contains; p != NULL;
         p = p->next) {
        if (p->min == 0 && p->max == DI_GRAM_NONE)
            continue;
        if (a.n_contains == DI_GRAM_SOME_MAX)
            di_gram_fail(b->c, DI_EUNSUPPORTED, "contains", "",
                         "is held for %u schemas at once only",
                         DI_GRAM_SOME_MAX);
        cap = p->from > cap ? p->from : cap;
        a.caps[a.n_contains] = p->max != DI_GRAM_NONE ? p->max : p->min;
        each *= a.caps[a.n_contains] + 1;
        a.contains[a.n_contains++] = p;
    }
    a.b.cap = cap;
    if (f.unique && f.max > 1)
        find_values(&a, &f);
    a.b.cap = di_gram_count_cap(&f, cap);
    di_gram_positions(&a.b, (a.b.cap + 1) * each << json_array_size(a.values),
                   "minItems");
    di_gram_nfa_eps(b->c, b->nfa,
                    di_gram_put_white(b, di_gram_put_text(b, 0, "[")),
                    di_gram_reach(&a.b, a.b.between, 0));

    /* Every step leads to a later position, or to the same one. */
    for (uint32_t i = 0; i <= a.b.cap; i++) {
        do {
            for (a.used = 0; a.used >> json_array_size(a.values) == 0;
                 a.used++)
                array_at(&a, i, counts);
            a.used = 0;
            for (k = a.n_contains; k > 0; k--) {
                if (++counts[k - 1] <= a.caps[k - 1])
                    break;
                counts[k - 1] = 0;
            }
        } while (k > 0);
    }
}
