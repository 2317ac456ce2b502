/*
 * schema_object.c - the automaton of an object.
 *
 * Its names fall into classes: each name that the schema spells is one, and
 * the others are regions by the patterns that they match, so that the members
 * of a class have values of one conjunction.
 */

#include <string.h>

#include "schema_build.h"

#define REGIONS_MAX  6u         /* patterns of property names                */
#define TRACKED_MAX  8u         /* names that come in any order              */

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
    di_gram_build_t b;          /* of the rule                               */
    class_t   *names;           /* [n_names]                                 */
    uint32_t   n_names, names_cap;
    class_t   *regions;         /* [n_regions]                               */
    uint32_t   n_regions;
    const di_gram_dfa_t  *langs[REGIONS_MAX];
    uint32_t   n_langs;
    const di_gram_some_t *some[DI_GRAM_SOME_MAX];
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
    k->allowed = !di_gram_never(k->conj);
}

/* The names of a region; none of those that are classes of their own. */
static void
region_names(object_t *o, class_t *k, const di_gram_dfa_t *named)
{
    di_gram_ctx_t       *c = o->b.c;
    const di_gram_dfa_t *d = di_gram_dfa_any(c);

    if (o->n_names == 0 && o->n_langs == 0) {
        k->rule = di_gram_any_string(o->b.c);
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
        if (o->n_some == DI_GRAM_SOME_MAX)
            di_gram_fail(o->b.c, DI_EUNSUPPORTED, "not", "",
                         "is held for %u properties that must exist only",
                         DI_GRAM_SOME_MAX);
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
    di_gram_build_t *b = &o->b;
    bool             plain = true;

    if (k->name == NULL) {
        uint32_t to = di_gram_nfa_state(b->c, b->nfa);

        di_gram_nfa_call(b->c, b->nfa, from, k->rule, to);
        return di_gram_put_white(b, di_gram_put_text(b, to, ":"));
    }
    for (size_t i = 0; i < k->len; i++)
        plain = plain && k->name[i] >= 0x20 && k->name[i] < 0x7f
                && strchr("\"\\/", k->name[i]) == NULL;
    if (plain) {
        from = di_gram_put_text(b, from, "\"");
        from = di_gram_put_text(b, from, k->name);
        from = di_gram_put_text(b, from, "\"");
    } else {
        from = di_gram_put_dfa(b, from, di_gram_dfa_string(b->c,
                   di_gram_node_dfa(b->c, di_gram_node_text(b->c, k->name,
                                                            k->len))));
    }
    return di_gram_put_white(b, di_gram_put_text(b, from, ":"));
}

static void
member(object_t *o, uint32_t from, const class_t *k, uint32_t place,
       uint32_t met, uint32_t count)
{
    di_gram_build_t *b = &o->b;
    uint32_t         value, to, can = 0;
    di_gram_conj_t   conj;

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
        if (!di_gram_never(conj)) {
            to = di_gram_reach(b, b->between,
                               object_position(o, place, met | with,
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
    const class_t   *k = o->names;
    di_gram_build_t *b = &o->b;

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
            di_gram_nfa_eps(b->c, b->nfa, from, di_gram_reach(b, b->next,
                object_position(o, place + 1, met, count)));
        return;
    }
    for (uint32_t i = 0; i < o->n_regions; i++)
        member(o, from, &o->regions[i], place, met, count);
}

static void
object_at(object_t *o, uint32_t place, uint32_t met, uint32_t count)
{
    di_gram_build_t *b = &o->b;
    uint32_t         p = object_position(o, place, met, count);

    if (b->between[p] != 0) {
        if (may_end(o, place, met, count))
            di_gram_nfa_eps(b->c, b->nfa,
                            di_gram_put_text(b, di_gram_put_white(b,
                                b->between[p]), "}"), b->end);
        di_gram_member_follows(b, p, count);
    }
    if (b->next[p] != 0)
        members(o, b->next[p], place, met, count);
}

void
di_gram_build_object(di_gram_build_t *b)
{
    object_t o = { .b = *b, .any_order = b->c->opts.any_order };
    uint32_t places;

    find_classes(&o);
    places = o.any_order ? track_names(&o) : o.n_names + 1;
    o.b.cap = di_gram_count_cap(b->f, 1);
    di_gram_positions(&o.b, ((uint64_t) places << o.n_some)
                         * (o.b.cap + 1), "minProperties");
    di_gram_nfa_eps(b->c, b->nfa,
                    di_gram_put_white(b, di_gram_put_text(b, 0, "{")),
                    di_gram_reach(&o.b, o.b.between, 0));

    /* Every step leads to a later position, or to the same one. */
    for (uint32_t place = 0; place < places; place++) {
        for (uint32_t met = 0; met < 1u << o.n_some; met++) {
            for (uint32_t count = 0; count <= o.b.cap; count++)
                object_at(&o, place, met, count);
        }
    }
}
