/*
 * schema_build.c - from forms to rules.
 *
 * A conjunction is one rule: the alternatives that its forms allow, in one
 * automaton, so that objects which begin alike are read as one until they
 * differ.  Items and property values are calls of rules.  What every schema
 * has, any string and any number, is one rule for all.
 *
 * An array or an object is an automaton over its members, with two states
 * for each position: "between" (an end or a comma may come) and "next" (a
 * member must come).  A position is where it is in the schema's order (or
 * the set of names seen, in any order), how many members there were, as far
 * as that matters, which of the members that must exist were met, and which
 * values there were if all must differ.
 */

#include <stdlib.h>
#include <string.h>

#include "schema.h"

#define POSITIONS_MAX  200000u
#define EMBED_MAX      100u     /* states of an automaton that is copied in  */
#define SCALAR_MAX     16u      /* the same of texts, beside other types     */
#define SOME_MAX       3u
#define REGIONS_MAX    6u       /* patterns of property names                */
#define UNIQUE_MAX     10u      /* values of items that must differ          */
#define TRACKED_MAX    8u       /* names that come in any order              */

typedef struct {
    di_gram_schema_t *x;
    di_gram_ctx_t    *c;
    di_gram_nfa_t    *nfa;
    const di_gram_form_t *f;
    uint32_t          end;      /* state behind the value                    */
    uint32_t         *between;  /* [n_positions] NFA states; 0: not reached  */
    uint32_t         *next;     /* likewise                                  */
    uint32_t          cap;      /* members are counted up to here            */
} build_t;

/* -------------------------------------------------------------- shared -- */

static uint32_t
embed(build_t *b, uint32_t from, const di_gram_dfa_t *d)
{
    uint32_t       to = di_gram_nfa_state(b->c, b->nfa);
    uint32_t      *map = di_gram_alloc(b->c, d->n, sizeof(*map)), rule;
    di_gram_set_t  set;

    if (d->n > EMBED_MAX) {
        rule = di_gram_rule_new(b->c, NULL);
        b->c->rules[rule].dfa = d;
        di_gram_nfa_call(b->c, b->nfa, from, rule, to);
        return to;
    }
    for (uint32_t s = 0; s < d->n; s++)
        map[s] = di_gram_nfa_state(b->c, b->nfa);
    if (d->n > 0)
        di_gram_nfa_eps(b->c, b->nfa, from, map[0]);
    for (uint32_t s = 0; s < d->n; s++) {
        for (uint32_t i = 0; i < d->s[s].n_arcs; i++) {
            const di_gram_arc_t *a = &d->s[s].arcs[i];

            set = di_gram_set(b->c, a->lo, a->hi);
            di_gram_nfa_set(b->c, b->nfa, map[s], set, map[a->to]);
        }
        for (uint32_t i = 0; i < d->s[s].n_calls; i++)
            di_gram_nfa_call(b->c, b->nfa, map[s], d->s[s].calls[i].rule,
                             map[d->s[s].calls[i].to]);
        if (d->s[s].final)
            di_gram_nfa_eps(b->c, b->nfa, map[s], to);
    }
    return to;
}

static uint32_t
any_string(di_gram_ctx_t *c)
{
    const di_gram_dfa_t *d;

    if (c->any_string == DI_GRAM_NONE) {
        d = di_gram_dfa_string(c, di_gram_dfa_any(c));
        c->any_string = di_gram_rule_new(c, NULL);
        c->rules[c->any_string].dfa = d;
    }
    return c->any_string;
}

static uint32_t
any_number(di_gram_ctx_t *c)
{
    if (c->any_number == DI_GRAM_NONE) {
        c->any_number = di_gram_rule_new(c, NULL);
        c->rules[c->any_number].dfa = di_gram_lang_any_number(c);
    }
    return c->any_number;
}

#define INDENT_MAX  32u

/* White space that may come here: nothing, a blank, or a new line. */
static uint32_t
white(build_t *b, uint32_t from)
{
    di_gram_ctx_t *c = b->c;
    di_gram_nfa_t *nfa;
    di_gram_set_t  blank;
    uint32_t       to;

    if (!c->opts.flexible)
        return from;
    if (c->ws_rule == DI_GRAM_NONE) {
        nfa = di_gram_nfa_new(c);
        blank = di_gram_set(c, ' ', ' ');
        di_gram_nfa_set(c, nfa, 0, blank, 1);
        di_gram_nfa_eps(c, nfa, di_gram_nfa_node(c, nfa,
            di_gram_nfa_text(c, nfa, 0, "\n"),
            di_gram_node_rep(c, di_gram_node_set(c, blank), 0, INDENT_MAX)),
            1);
        c->ws_rule = di_gram_rule_new(c, NULL);
        c->rules[c->ws_rule].dfa = di_gram_nfa_dfa(c, nfa);
    }
    to = di_gram_nfa_state(c, b->nfa);
    di_gram_nfa_eps(c, b->nfa, from, to);
    di_gram_nfa_call(c, b->nfa, from, c->ws_rule, to);
    return to;
}

static uint32_t
text(build_t *b, uint32_t from, const char *s)
{
    return di_gram_nfa_text(b->c, b->nfa, from, s);
}

static uint32_t
reach(build_t *b, uint32_t *table, uint32_t position)
{
    if (table[position] == 0)
        table[position] = di_gram_nfa_state(b->c, b->nfa);
    return table[position];
}

static void
make_positions(build_t *b, uint64_t n, const char *keyword)
{
    if (n > POSITIONS_MAX)
        di_gram_fail(b->c, DI_ELIMIT, keyword, "",
                     "needs over %u states", POSITIONS_MAX);
    b->between = di_gram_alloc(b->c, n, sizeof(uint32_t));
    b->next = di_gram_alloc(b->c, n, sizeof(uint32_t));
}

static bool
never(di_gram_conj_t conj)
{
    for (uint32_t i = 0; i < conj.n; i++) {
        if (!conj.v[i].constant
            && (conj.v[i].negated ? json_is_true(conj.v[i].v)
                                  : json_is_false(conj.v[i].v)))
            return true;
    }
    return false;
}

/* How far members have to be counted. */
static uint32_t
count_cap(const di_gram_form_t *f, uint32_t at_least)
{
    uint32_t cap = f->max != DI_GRAM_NONE ? f->max : f->min;

    return cap > at_least ? cap : at_least;
}

static void
member_follows(build_t *b, uint32_t position, uint32_t count)
{
    uint32_t from = b->between[position];

    if (b->f->max != DI_GRAM_NONE && count >= b->f->max)
        return;
    if (count > 0)
        from = white(b, text(b, from, ","));
    di_gram_nfa_eps(b->c, b->nfa, from, reach(b, b->next, position));
}

/* -------------------------------------------------------------- arrays -- */

typedef struct {
    build_t   b;
    const di_gram_contains_t *contains[SOME_MAX];
    uint32_t  caps[SOME_MAX];   /* each is counted up to here                */
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
and_not(build_t *b, di_gram_conj_t with, di_gram_conj_t conj)
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
    build_t *b = &a->b;
    uint32_t to = reach(b, b->between, array_position(a, next, counts));

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
    build_t                  *b = &a->b;
    const di_gram_contains_t *what;
    di_gram_conj_t            with;
    uint32_t                  next = i < b->cap ? i + 1 : i;

    if (never(conj))
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
    build_t *b = &a->b;
    uint32_t p = array_position(a, i, counts);
    bool     ends = i >= b->f->min;

    if (b->between[p] != 0) {
        for (uint32_t k = 0; k < a->n_contains; k++)
            ends = ends && counts[k] >= a->contains[k]->min;
        if (ends)
            di_gram_nfa_eps(b->c, b->nfa,
                text(b, white(b, b->between[p]), "]"), b->end);
        member_follows(b, p, i);
    }
    if (b->next[p] != 0)
        array_item(a, b->next[p], i, item_conj(a, i), counts, 0);
}

/* The values of items that must differ, which says how many there can be. */
static void
find_values(array_t *a, di_gram_form_t *f)
{
    build_t *b = &a->b;

    a->values = di_gram_keep(b->c, json_array());
    for (uint32_t i = 0; i <= b->cap && i < f->max; i++) {
        di_gram_conj_t conj = item_conj(a, i);

        if (never(conj))
            break;
        if (!di_gram_finite(b->x, conj, a->values, UNIQUE_MAX))
            di_gram_fail(b->c, DI_EUNSUPPORTED, "uniqueItems", f->unique_path,
                         "is held for items of %u known values only",
                         UNIQUE_MAX);
    }
    if (f->max > json_array_size(a->values))
        f->max = (uint32_t) json_array_size(a->values);
}

static void
array(build_t *b)
{
    di_gram_form_t f = *b->f;
    array_t  a = { .b = *b };
    uint32_t counts[SOME_MAX] = { 0 }, cap = 1, k;
    uint64_t each = 1;

    a.b.f = &f;
    for (const di_gram_items_t *p = b->f->items; p != NULL; p = p->next) {
        cap = p->from > cap ? p->from : cap;
        cap = p->to != DI_GRAM_NONE && p->to > cap ? p->to : cap;
    }
    for (const di_gram_contains_t *p = b->f->contains; p != NULL;
         p = p->next) {
        if (p->min == 0 && p->max == DI_GRAM_NONE)
            continue;
        if (a.n_contains == SOME_MAX)
            di_gram_fail(b->c, DI_EUNSUPPORTED, "contains", "",
                         "is held for %u schemas at once only", SOME_MAX);
        cap = p->from > cap ? p->from : cap;
        a.caps[a.n_contains] = p->max != DI_GRAM_NONE ? p->max : p->min;
        each *= a.caps[a.n_contains] + 1;
        a.contains[a.n_contains++] = p;
    }
    a.b.cap = cap;
    if (f.unique && f.max > 1)
        find_values(&a, &f);
    a.b.cap = count_cap(&f, cap);
    make_positions(&a.b, (a.b.cap + 1) * each << json_array_size(a.values),
                   "minItems");
    di_gram_nfa_eps(b->c, b->nfa, white(b, text(b, 0, "[")),
                    reach(&a.b, a.b.between, 0));

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

/* ------------------------------------------------------------- objects -- */

/* A property name, or the other names that the same patterns match. */
typedef struct {
    const char    *name;        /* NULL: a region                            */
    size_t         len;
    unsigned       bits;        /* region: the patterns that match           */
    uint32_t       rule;        /* region: its names as JSON strings         */
    di_gram_conj_t conj;        /* of the value                              */
    bool           allowed;
    bool           required;
    int            tracked;     /* bit in the set of names seen; -1: none    */
} class_t;

typedef struct {
    build_t    b;
    class_t   *names;           /* [n_names]                                 */
    uint32_t   n_names, names_cap;
    class_t   *regions;         /* [n_regions]                               */
    uint32_t   n_regions;
    const di_gram_dfa_t  *langs[REGIONS_MAX];
    uint32_t   n_langs;
    const di_gram_some_t *some[SOME_MAX];
    uint32_t   n_some;
    uint32_t   required;        /* tracked bits                              */
    bool       any_order;
} object_t;

static class_t *
class_named(object_t *o, const char *name, size_t len)
{
    for (uint32_t i = 0; i < o->n_names; i++) {
        if (o->names[i].len == len
            && memcmp(o->names[i].name, name, len) == 0)
            return &o->names[i];
    }
    di_gram_work(o->b.c, 1 + o->n_names / 8);
    o->names = di_gram_grow(o->b.c, o->names, o->n_names, &o->names_cap,
                            sizeof(*o->names));
    o->names[o->n_names] = (class_t) {
        .name = name, .len = len, .tracked = -1,
    };
    return &o->names[o->n_names++];
}

static uint32_t
lang_bit(object_t *o, const di_gram_dfa_t *lang)
{
    uint32_t i;

    for (i = 0; i < o->n_langs && o->langs[i] != lang; i++)
        ;
    if (i == REGIONS_MAX)
        di_gram_fail(o->b.c, DI_EUNSUPPORTED, "patternProperties", "",
                     "is held for %u patterns at once only", REGIONS_MAX);
    if (i == o->n_langs)
        o->langs[o->n_langs++] = lang;
    return i;
}

static void
note_keys(object_t *o, const di_gram_keys_t *keys)
{
    switch (keys->kind) {
    case DI_GRAM_K_NAME:
        (void) class_named(o, keys->name, keys->len);
        break;
    case DI_GRAM_K_LANG:
        (void) lang_bit(o, keys->lang);
        break;
    case DI_GRAM_K_NONE_OF:
        for (keys = keys->list; keys != NULL; keys = keys->next)
            note_keys(o, keys);
        break;
    default:
        break;
    }
}

/* The lists have the newest first, the schema's order is the other way. */
static void
note_all(object_t *o)
{
    const di_gram_keys_t **list;
    const di_gram_prop_t  *p;
    const di_gram_some_t  *s;
    uint32_t               n_props = 0, n = 0, i;

    for (p = o->b.f->props; p != NULL; p = p->next)
        n_props++;
    for (s = o->b.f->some; s != NULL; s = s->next)
        n++;
    n += n_props;
    list = di_gram_alloc(o->b.c, n, sizeof(*list));
    for (i = n_props, p = o->b.f->props; p != NULL; p = p->next)
        list[--i] = p->keys;
    for (i = n, s = o->b.f->some; s != NULL; s = s->next)
        list[--i] = s->keys;
    for (i = 0; i < n; i++)
        note_keys(o, list[i]);
}

static bool
class_in(object_t *o, const class_t *k, const di_gram_keys_t *keys)
{
    if (k->name != NULL)
        return di_gram_keys_have(o->b.c, keys, k->name, k->len);
    switch (keys->kind) {
    case DI_GRAM_K_ALL:
        return true;
    case DI_GRAM_K_NAME:
        return false;
    case DI_GRAM_K_LANG:
        return (k->bits & 1u << lang_bit(o, keys->lang)) != 0;
    default:
        for (keys = keys->list; keys != NULL; keys = keys->next) {
            if (class_in(o, k, keys))
                return false;
        }
        return true;
    }
}

static void
class_conj(object_t *o, class_t *k)
{
    const di_gram_prop_t *p;
    const di_gram_some_t *s;

    for (p = o->b.f->props; p != NULL; p = p->next) {
        if (class_in(o, k, p->keys))
            k->conj = di_gram_conj_join(o->b.c, k->conj, p->conj);
    }
    for (s = o->b.f->some; k->name != NULL && s != NULL; s = s->next) {
        if (s->keys->kind == DI_GRAM_K_NAME && class_in(o, k, s->keys)) {
            k->conj = di_gram_conj_join(o->b.c, k->conj, s->conj);
            k->required = true;
        }
    }
    k->allowed = !never(k->conj);
}

/* The names of a region; none of those that are classes of their own. */
static void
region_names(object_t *o, class_t *k, const di_gram_dfa_t *named)
{
    di_gram_ctx_t       *c = o->b.c;
    const di_gram_dfa_t *d = di_gram_dfa_any(c);

    if (o->n_names == 0 && o->n_langs == 0) {
        k->rule = any_string(o->b.c);
        return;
    }
    for (uint32_t i = 0; i < o->n_langs; i++)
        d = di_gram_dfa_op(c, (k->bits & 1u << i) != 0 ? DI_GRAM_AND
                                                       : DI_GRAM_ANDNOT,
                           d, o->langs[i]);
    if (named != NULL)
        d = di_gram_dfa_op(c, DI_GRAM_ANDNOT, d, named);
    k->allowed = d->n > 0;
    d = di_gram_dfa_string(c, d);
    k->rule = di_gram_rule_new(c, NULL);
    c->rules[k->rule].dfa = d;
}

static const di_gram_dfa_t *
names_dfa(object_t *o)
{
    di_gram_node_t *alt = di_gram_node(o->b.c, DI_GRAM_N_ALT);

    for (uint32_t i = 0; i < o->n_names; i++)
        di_gram_node_add(alt, di_gram_node_text(o->b.c, o->names[i].name,
                                                o->names[i].len));
    return o->n_names > 0 ? di_gram_node_dfa(o->b.c, alt) : NULL;
}

static void
find_classes(object_t *o)
{
    const di_gram_dfa_t *named = NULL;
    class_t             *k;

    note_all(o);
    for (uint32_t i = 0; i < o->n_names; i++)
        class_conj(o, &o->names[i]);

    o->regions = di_gram_alloc(o->b.c, 1u << o->n_langs,
                               sizeof(*o->regions));
    for (unsigned bits = 0; bits < 1u << o->n_langs; bits++) {
        k = &o->regions[o->n_regions];
        *k = (class_t) { .bits = bits, .tracked = -1 };
        class_conj(o, k);
        if (!k->allowed)
            continue;
        if (named == NULL)
            named = names_dfa(o);
        region_names(o, k, named);
        o->n_regions += k->allowed;
    }
    for (const di_gram_some_t *s = o->b.f->some; s != NULL; s = s->next) {
        if (s->keys->kind == DI_GRAM_K_NAME)
            continue;
        if (o->n_some == SOME_MAX)
            di_gram_fail(o->b.c, DI_EUNSUPPORTED, "not", "",
                         "is held for %u properties that must exist only",
                         SOME_MAX);
        o->some[o->n_some++] = s;
    }
}

/* In any order, names are ticked off: all of them while they are few, else
 * those that are required (another one may then come twice). */
static uint32_t
track_names(object_t *o)
{
    uint32_t n = 0, allowed = 0;

    for (uint32_t i = 0; i < o->n_names; i++)
        allowed += o->names[i].allowed || o->names[i].required;
    for (uint32_t i = 0; i < o->n_names; i++) {
        class_t *k = &o->names[i];

        if (!k->required && (!k->allowed || allowed > TRACKED_MAX))
            continue;
        if (n == TRACKED_MAX)
            di_gram_fail(o->b.c, DI_ELIMIT, "required", "",
                         "is held in any order for %u properties only",
                         TRACKED_MAX);
        k->tracked = (int) n;
        o->required |= (uint32_t) k->required << n;
        n++;
    }
    return 1u << n;
}

/* Place: an index in the schema's order, or the set of names seen. */
static uint32_t
object_position(const object_t *o, uint32_t place, uint32_t met,
                uint32_t count)
{
    return (place << o->n_some | met) * (o->b.cap + 1) + count;
}

/* The quoted name and its colon. */
static uint32_t
key_text(object_t *o, uint32_t from, const class_t *k)
{
    build_t *b = &o->b;
    bool     plain = true;

    if (k->name == NULL) {
        uint32_t to = di_gram_nfa_state(b->c, b->nfa);

        di_gram_nfa_call(b->c, b->nfa, from, k->rule, to);
        return white(b, text(b, to, ":"));
    }
    for (size_t i = 0; i < k->len; i++)
        plain = plain && k->name[i] >= 0x20 && k->name[i] < 0x7f
                && strchr("\"\\/", k->name[i]) == NULL;
    if (plain) {
        from = text(b, text(b, text(b, from, "\""), k->name), "\"");
    } else {
        from = embed(b, from, di_gram_dfa_string(b->c, di_gram_node_dfa(b->c,
                   di_gram_node_text(b->c, k->name, k->len))));
    }
    return white(b, text(b, from, ":"));
}

static void
member(object_t *o, uint32_t from, const class_t *k, uint32_t place,
       uint32_t met, uint32_t count)
{
    build_t       *b = &o->b;
    uint32_t       value, to, can = 0;
    di_gram_conj_t conj;

    for (uint32_t i = 0; i < o->n_some; i++) {
        if ((met & 1u << i) == 0 && class_in(o, k, o->some[i]->keys))
            can |= 1u << i;
    }
    value = key_text(o, from, k);
    for (uint32_t with = can;; with = (with - 1) & can) {
        conj = k->conj;
        for (uint32_t i = 0; i < o->n_some; i++) {
            if ((with & 1u << i) != 0)
                conj = di_gram_conj_join(b->c, conj, o->some[i]->conj);
        }
        if (!never(conj)) {
            to = reach(b, b->between, object_position(o, place, met | with,
                                          count < b->cap ? count + 1
                                                         : count));
            di_gram_nfa_call(b->c, b->nfa, value,
                             di_gram_conj_rule(b->x, conj), to);
        }
        if (with == 0)
            break;
    }
}

static bool
may_end(const object_t *o, uint32_t place, uint32_t met, uint32_t count)
{
    if (count < o->b.f->min || met + 1 != 1u << o->n_some)
        return false;
    if (o->any_order)
        return (place & o->required) == o->required;
    for (uint32_t i = place; i < o->n_names; i++) {
        if (o->names[i].required)
            return false;
    }
    return true;
}

static void
members(object_t *o, uint32_t from, uint32_t place, uint32_t met,
        uint32_t count)
{
    const class_t *k = o->names;
    build_t       *b = &o->b;

    for (uint32_t i = 0; o->any_order && i < o->n_names; i++, k++) {
        uint32_t bit = k->tracked < 0 ? 0 : 1u << k->tracked;

        if (k->allowed && (place & bit) == 0)
            member(o, from, k, place | bit, met, count);
    }
    if (!o->any_order && place < o->n_names) {
        k = &o->names[place];
        if (k->allowed)
            member(o, from, k, place + 1, met, count);
        if (!k->required)
            di_gram_nfa_eps(b->c, b->nfa, from, reach(b, b->next,
                object_position(o, place + 1, met, count)));
        return;
    }
    for (uint32_t i = 0; i < o->n_regions; i++)
        member(o, from, &o->regions[i], place, met, count);
}

static void
object_at(object_t *o, uint32_t place, uint32_t met, uint32_t count)
{
    build_t *b = &o->b;
    uint32_t p = object_position(o, place, met, count);

    if (b->between[p] != 0) {
        if (may_end(o, place, met, count))
            di_gram_nfa_eps(b->c, b->nfa,
                text(b, white(b, b->between[p]), "}"), b->end);
        member_follows(b, p, count);
    }
    if (b->next[p] != 0)
        members(o, b->next[p], place, met, count);
}

static void
object(build_t *b)
{
    object_t o = { .b = *b, .any_order = b->c->opts.any_order };
    uint32_t places;

    find_classes(&o);
    places = o.any_order ? track_names(&o) : o.n_names + 1;
    o.b.cap = count_cap(b->f, 1);
    make_positions(&o.b, ((uint64_t) places << o.n_some)
                         * (o.b.cap + 1), "minProperties");
    di_gram_nfa_eps(b->c, b->nfa, white(b, text(b, 0, "{")),
                    reach(&o.b, o.b.between, 0));

    /* Every step leads to a later position, or to the same one. */
    for (uint32_t place = 0; place < places; place++) {
        for (uint32_t met = 0; met < 1u << o.n_some; met++) {
            for (uint32_t count = 0; count <= o.b.cap; count++)
                object_at(&o, place, met, count);
        }
    }
}

/* --------------------------------------------------------------- rules -- */

/* All texts of the forms of one scalar type; *any: every one of it. */
static const di_gram_dfa_t *
scalar_texts(di_gram_ctx_t *c, const di_gram_forms_t *f, di_gram_type_t type,
             bool *any)
{
    const di_gram_dfa_t *all = NULL;

    *any = false;
    for (; f != NULL; f = f->next) {
        if (f->f.type != type)
            continue;
        if (f->f.lang == NULL)
            *any = true;
        else
            all = all == NULL ? f->f.lang
                  : di_gram_dfa_op(c, DI_GRAM_OR, all, f->f.lang);
    }
    return all;
}

static uint32_t scalar_rule(di_gram_schema_t *x, const di_gram_dfa_t *texts,
                            di_gram_type_t type);

/* A large automaton is a rule of its own, which others like it share. */
static void
add_scalars(build_t *b, const di_gram_forms_t *f, di_gram_type_t type)
{
    bool                 string = type == DI_GRAM_T_STRING, any;
    const di_gram_dfa_t *all = scalar_texts(b->c, f, type, &any);

    if (any)
        di_gram_nfa_call(b->c, b->nfa, 0, string ? any_string(b->c)
                                                 : any_number(b->c), b->end);
    else if (all != NULL && all->n > SCALAR_MAX)
        di_gram_nfa_call(b->c, b->nfa, 0, scalar_rule(b->x, all, type),
                         b->end);
    else if (all != NULL)
        di_gram_nfa_eps(b->c, b->nfa, embed(b, 0,
            string ? di_gram_dfa_string(b->c, all) : all), b->end);
}

static void
add_word(build_t *b, const di_gram_forms_t *f, di_gram_type_t type,
         const char *word)
{
    for (; f != NULL; f = f->next) {
        if (f->f.type == type) {
            di_gram_nfa_eps(b->c, b->nfa, text(b, 0, word), b->end);
            return;
        }
    }
}

static const di_gram_dfa_t *
build_rule(di_gram_schema_t *x, const di_gram_forms_t *f)
{
    build_t b = { .x = x, .c = x->c, .end = 1 };

    b.nfa = di_gram_nfa_new(x->c);
    add_word(&b, f, DI_GRAM_T_NULL, "null");
    add_word(&b, f, DI_GRAM_T_FALSE, "false");
    add_word(&b, f, DI_GRAM_T_TRUE, "true");
    add_scalars(&b, f, DI_GRAM_T_NUMBER);
    add_scalars(&b, f, DI_GRAM_T_STRING);
    for (; f != NULL; f = f->next) {
        b.f = &f->f;
        if (f->f.type == DI_GRAM_T_ARRAY)
            array(&b);
        else if (f->f.type == DI_GRAM_T_OBJECT)
            object(&b);
    }
    return di_gram_nfa_dfa(x->c, b.nfa);
}

/* Only strings, or only numbers: their automaton is the rule's. */
static bool
only(const di_gram_forms_t *f, di_gram_type_t type)
{
    if (f == NULL)
        return false;
    for (; f != NULL; f = f->next) {
        if (f->f.type != type)
            return false;
    }
    return true;
}

static uint32_t
scalar_rule(di_gram_schema_t *x, const di_gram_dfa_t *texts,
            di_gram_type_t type)
{
    di_gram_memo_t **at = di_gram_bucket(x->c->scalars, &texts,
                                         sizeof(texts) / 4);
    di_gram_memo_t  *m;
    uint32_t         rule;

    for (m = *at; m != NULL; m = m->next) {
        if (m->lang == texts && m->type == type)
            return m->rule;
    }
    m = di_gram_alloc(x->c, 1, sizeof(*m));
    m->lang = texts;
    m->type = type;
    m->next = *at;
    *at = m;
    if (type == DI_GRAM_T_STRING)
        texts = di_gram_dfa_string(x->c, texts);
    rule = m->rule = di_gram_rule_new(x->c, NULL);
    x->c->rules[rule].dfa = texts;
    return rule;
}

/* The rule of forms that are all of one scalar type. */
static uint32_t
scalars_rule(di_gram_schema_t *x, const di_gram_forms_t *f,
             di_gram_type_t type)
{
    bool                 any;
    const di_gram_dfa_t *all = scalar_texts(x->c, f, type, &any);

    if (!any)
        return scalar_rule(x, all, type);
    return type == DI_GRAM_T_STRING ? any_string(x->c) : any_number(x->c);
}

static di_gram_memo_t *
find_conj(di_gram_schema_t *x, di_gram_conj_t conj, di_gram_memo_t ***at)
{
    uint64_t        h = DI_GRAM_HASH_SEED;
    di_gram_memo_t *m;

    for (uint32_t i = 0; i < conj.n; i++) {
        uintptr_t key = (uintptr_t) conj.v[i].v
                        + (conj.v[i].negated * 2u + conj.v[i].constant);

        h = di_gram_hash(h, &key, sizeof(key) / 4);
    }
    *at = di_gram_bucket(x->memo, &h, 2);
    for (m = **at; m != NULL; m = m->next) {
        uint32_t i;

        for (i = 0; i < conj.n && i < m->conj.n; i++) {
            if (m->conj.v[i].v != conj.v[i].v
                || m->conj.v[i].negated != conj.v[i].negated
                || m->conj.v[i].constant != conj.v[i].constant)
                break;
        }
        if (i == conj.n && i == m->conj.n)
            return m;
    }
    return NULL;
}

uint32_t
di_gram_conj_rule(di_gram_schema_t *x, di_gram_conj_t conj)
{
    di_gram_memo_t **at, *m = find_conj(x, conj, &at);
    di_gram_forms_t *f, *last;

    if (m != NULL)
        return m->rule;
    m = di_gram_alloc(x->c, 1, sizeof(*m));
    m->conj = conj;
    m->next = *at;
    *at = m;
    for (int t = 0; t < DI_GRAM_TYPES; t++) {
        f = di_gram_expand(x, conj, (di_gram_type_t) t);
        for (last = f; last != NULL && last->next != NULL; last = last->next)
            ;
        if (last != NULL) {
            last->next = m->forms;
            m->forms = f;
        }
    }
    if (only(m->forms, DI_GRAM_T_STRING)) {
        m->rule = scalars_rule(x, m->forms, DI_GRAM_T_STRING);
    } else if (only(m->forms, DI_GRAM_T_NUMBER)) {
        m->rule = scalars_rule(x, m->forms, DI_GRAM_T_NUMBER);
    } else {
        m->rule = di_gram_rule_new(x->c, NULL);
        m->todo = x->todo;
        x->todo = m;
    }
    return m->rule;
}

const di_gram_dfa_t *
di_gram_conj_texts(di_gram_schema_t *x, di_gram_conj_t conj)
{
    const di_gram_dfa_t *all;
    bool                 any;

    all = scalar_texts(x->c, di_gram_expand(x, conj, DI_GRAM_T_STRING),
                       DI_GRAM_T_STRING, &any);
    return any ? di_gram_dfa_any(x->c) : all;
}

void
di_gram_build_all(di_gram_schema_t *x)
{
    const di_gram_dfa_t *dfa;
    di_gram_memo_t      *m;

    while ((m = x->todo) != NULL) {
        x->todo = m->todo;
        dfa = build_rule(x, m->forms);      /* may move the rules            */
        x->c->rules[m->rule].dfa = dfa;
    }
}
