/*
 * schema_apply.c - keywords that apply schemas: to the value itself, to its
 * items, and to its properties.
 */

#include "schema_expand.h"

/* ----------------------------------------------------- schemas combined -- */

static void
each_list(apply_t *a)
{
    if (!json_is_array(a->v) || json_array_size(a->v) == 0)
        malformed(a->e, a->schema, a->key, "must be a list, not empty");
}

/* All of the list (negated: none of it). */
static void
push_all(apply_t *a, bool negated)
{
    for (size_t i = json_array_size(a->v); i-- > 0; )
        a->todo = push_lit(a->e, a->todo, json_array_get(a->v, i), negated,
                           negated ? NULL : a->scope);
}

/* One of the list, or its negation. */
static void
push_any(apply_t *a, bool negated)
{
    const choice_t *choice = NULL;

    for (size_t i = json_array_size(a->v); i-- > 0; )
        choice = choose(a->e, choice, push_lit(a->e, NULL,
            json_array_get(a->v, i), negated, negated ? NULL : a->scope));
    a->todo = push_choice(a->e, a->todo, choice);
}

void
di_gram_kw_all_of(apply_t *a)
{
    each_list(a);
    if (a->negated)
        push_any(a, true);
    else
        push_all(a, false);
}

/* Somebody around will ask what was evaluated. */
static bool
watched(const apply_t *a)
{
    const char *key = a->e->type == DI_GRAM_T_OBJECT
                      ? "unevaluatedProperties" : "unevaluatedItems";

    for (const di_gram_scope_t *s = a->scope; s != NULL; s = s->up) {
        if (json_object_get(s->schema, key) != NULL)
            return true;
    }
    return false;
}

void
di_gram_kw_any_of(apply_t *a)
{
    expand_t       *e = a->e;
    const choice_t *choice = NULL;
    const todo_t   *list;
    size_t          n;

    each_list(a);
    n = json_array_size(a->v);
    if (a->negated) {
        push_all(a, true);
        return;
    }
    if (!watched(a)) {
        push_any(a, false);
        return;
    }
    if (n > 6)
        di_gram_refuse(e->x, a->schema, a->key,
                       "has too many alternatives for what is unevaluated");
    for (unsigned set = 1; set < 1u << n; set++) {
        list = NULL;
        for (size_t i = 0; i < n; i++) {
            if ((set & 1u << i) != 0)
                list = push_lit(e, list, json_array_get(a->v, i), false,
                                a->scope);
        }
        choice = choose(e, choice, list);
    }
    a->todo = push_choice(e, a->todo, choice);
}

/* Both of the schemas can hold for one value, as far as is seen. */
static bool
overlap(apply_t *a, size_t i, size_t k)
{
    di_gram_conj_t both = di_gram_conj_join(a->e->c,
        conj_of(a->e, json_array_get(a->v, i), false),
        conj_of(a->e, json_array_get(a->v, k), false));

    return !di_gram_is_empty(a->e->x, both);
}

void
di_gram_kw_one_of(apply_t *a)
{
    expand_t       *e = a->e;
    const choice_t *choice = NULL;
    const todo_t   *list;
    size_t          n, i, k;

    each_list(a);
    n = json_array_size(a->v);
    if (a->negated) {
        list = NULL;
        for (i = 0; i < n; i++)
            list = push_lit(e, list, json_array_get(a->v, i), true, NULL);
        choice = choose(e, NULL, list);
        for (i = 0; i < n; i++) {
            for (k = i + 1; k < n; k++) {
                if (!overlap(a, i, k))
                    continue;
                list = push_lit(e, NULL, json_array_get(a->v, i), false,
                                NULL);
                list = push_lit(e, list, json_array_get(a->v, k), false,
                                NULL);
                choice = choose(e, choice, list);
            }
        }
        a->todo = push_choice(e, a->todo, choice);
        return;
    }
    for (i = 0; i < n; i++) {
        list = NULL;
        for (k = 0; k < n; k++) {
            if (k != i && overlap(a, i, k))
                list = push_lit(e, list, json_array_get(a->v, k), true,
                                NULL);
        }
        choice = choose(e, choice, push_lit(e, list,
            json_array_get(a->v, i), false, a->scope));
    }
    a->todo = push_choice(e, a->todo, choice);
}

void
di_gram_kw_not(apply_t *a)
{
    a->todo = push_lit(a->e, a->todo, a->v, !a->negated, NULL);
}

void
di_gram_kw_if(apply_t *a)
{
    expand_t       *e = a->e;
    const json_t   *yes = json_object_get(a->schema, "then");
    const json_t   *no = json_object_get(a->schema, "else");
    const choice_t *choice;
    const todo_t   *list = NULL;

    if (yes == NULL && no == NULL && (a->negated || !watched(a))) {
        a->never = a->negated;
        return;
    }
    yes = yes != NULL ? yes : json_true();
    no = no != NULL ? no : json_true();
    list = push_lit(e, NULL, yes, a->negated, a->scope);
    choice = choose(e, NULL, push_lit(e, list, a->v, false, a->scope));
    list = push_lit(e, NULL, no, a->negated, a->scope);
    choice = choose(e, choice, push_lit(e, list, a->v, true, NULL));
    a->todo = push_choice(e, a->todo, choice);
}

/* A schema that comes back to itself on the same value says nothing. */
void
di_gram_kw_ref(apply_t *a)
{
    const char   *ref = json_string_value(a->v);
    const json_t *target;

    if (ref == NULL)
        malformed(a->e, a->schema, a->key, "must be a URI");
    target = di_gram_ref_target(a->e->x, a->schema, a->key, ref);
    for (const di_gram_scope_t *s = a->scope; s != NULL; s = s->up) {
        if (s->schema == target)
            di_gram_refuse(a->e->x, a->schema, a->key,
                           "leads back to itself on the same value");
    }
    a->todo = push_lit(a->e, a->todo, target, a->negated, a->scope);
}

void
di_gram_kw_unsupported(apply_t *a)
{
    di_gram_refuse(a->e->x, a->schema, a->key, "is not supported");
}

/* -------------------------------------------------------------- arrays -- */

/* Items in [from, to), or one of them negated. */
static void
items_in(apply_t *a, uint32_t from, uint32_t to, const json_t *v)
{
    if (!a->negated)
        add_items(a->e, a->f, from, to, conj_of(a->e, v, false), a->scope);
    else
        add_contains(a->e, a->f, (di_gram_contains_t) {
            .from = from, .min = 1, .max = DI_GRAM_NONE,
            .conj = conj_of(a->e, v, true),
        });
}

void
di_gram_kw_prefix(apply_t *a)
{
    expand_t     *e = a->e;
    const json_t *v;
    size_t        i;
    di_gram_form_t g;

    if (!json_is_array(a->v))
        malformed(e, a->schema, a->key, "must be a list");
    if (!a->negated) {
        json_array_foreach(a->v, i, v)
            items_in(a, (uint32_t) i, (uint32_t) i + 1, v);
        return;
    }
    json_array_foreach(a->v, i, v) {
        g = *a->f;
        add_items(e, &g, (uint32_t) i, (uint32_t) i + 1, conj_of(e, v, true),
                  NULL);
        if (at_least(&g, (uint32_t) i + 1))
            di_gram_run(e, g, a->todo);
    }
    a->never = true;            /* each way has been gone                    */
}

static uint32_t
prefix_size(const json_t *schema, const char *key)
{
    return (uint32_t) json_array_size(json_object_get(schema, key));
}

void
di_gram_kw_items(apply_t *a)
{
    if (json_is_array(a->v))
        di_gram_kw_prefix(a);   /* as it was before 2020-12          */
    else
        items_in(a, prefix_size(a->schema, "prefixItems"), DI_GRAM_NONE,
                 a->v);
}

void
di_gram_kw_additional_items(apply_t *a)
{
    const json_t *items = json_object_get(a->schema, "items");

    if (json_is_array(items))
        items_in(a, (uint32_t) json_array_size(items), DI_GRAM_NONE, a->v);
    else
        a->never = a->negated;
}

void
di_gram_kw_contains(apply_t *a)
{
    expand_t          *e = a->e;
    const json_t      *min = json_object_get(a->schema, "minContains");
    const json_t      *max = json_object_get(a->schema, "maxContains");
    di_gram_contains_t what = {
        .min = 1, .max = DI_GRAM_NONE, .conj = conj_of(e, a->v, false),
        .schema = a->v, .scope = a->scope,
    };
    di_gram_form_t     g;

    if (min != NULL)
        what.min = size_value(e, a->schema, "minContains", min);
    if (max != NULL)
        what.max = size_value(e, a->schema, "maxContains", max);
    if (!a->negated) {
        if (what.min > what.max)
            a->never = true;
        else if (what.min > 0 || what.max != DI_GRAM_NONE || watched(a))
            add_contains(e, a->f, what);
        return;
    }
    what.scope = NULL;
    if (what.max != DI_GRAM_NONE) {             /* more of them              */
        di_gram_contains_t more = what;

        g = *a->f;
        more.min = what.max + 1;
        more.max = DI_GRAM_NONE;
        add_contains(e, &g, more);
        di_gram_run(e, g, a->todo);
    }
    if (what.min == 0) {
        a->never = true;
        return;
    }
    what.max = what.min - 1;                    /* or fewer                  */
    what.min = 0;
    add_contains(e, a->f, what);
}

void
di_gram_kw_unique(apply_t *a)
{
    if (!json_is_true(a->v)) {
        a->never = a->negated;
        return;
    }
    if (a->negated)
        di_gram_refuse(a->e->x, a->schema, a->key, "is not held negated");
    a->f->unique = true;
    a->f->unique_path = di_gram_path(a->e->x, a->schema, a->key);
}

/* ------------------------------------------------------------- objects -- */

static void
each_object(apply_t *a)
{
    if (!json_is_object(a->v))
        malformed(a->e, a->schema, a->key, "must be an object");
}

void
di_gram_kw_properties(apply_t *a)
{
    expand_t      *e = a->e;
    const char    *name;
    json_t        *v;
    di_gram_form_t g;

    each_object(a);
    json_object_foreach((json_t *) a->v, name, v) {
        if (!a->negated) {
            add_prop(e, a->f, keys_name(e, name), conj_of(e, v, false),
                     a->scope);
            continue;
        }
        g = *a->f;
        require(e, &g, name);
        add_prop(e, &g, keys_name(e, name), conj_of(e, v, true), NULL);
        di_gram_run(e, g, a->todo);
    }
    a->never = a->negated;
}

static const di_gram_keys_t *
pattern_keys(expand_t *e, const json_t *schema, const char *s)
{
    return keys_lang(e, di_gram_pattern(e, schema, "patternProperties", s,
                                        strlen(s)));
}

void
di_gram_kw_patterns(apply_t *a)
{
    expand_t      *e = a->e;
    const char    *s;
    json_t        *v;
    di_gram_form_t g;

    each_object(a);
    json_object_foreach((json_t *) a->v, s, v) {
        if (!a->negated) {
            add_prop(e, a->f, pattern_keys(e, a->schema, s),
                     conj_of(e, v, false), a->scope);
            continue;
        }
        g = *a->f;
        add_some(e, &g, pattern_keys(e, a->schema, s), conj_of(e, v, true));
        di_gram_run(e, g, a->todo);
    }
    a->never = a->negated;
}

void
di_gram_kw_additional(apply_t *a)
{
    expand_t             *e = a->e;
    const di_gram_keys_t *list = NULL, *keys;
    const char           *name;
    json_t               *v;

    json_object_foreach(json_object_get(a->schema, "properties"), name, v)
        list = keys_cons(e, keys_name(e, name), list);
    json_object_foreach(json_object_get(a->schema, "patternProperties"),
                        name, v)
        list = keys_cons(e, pattern_keys(e, a->schema, name), list);
    keys = keys_none_of(e, list);
    if (a->negated)
        add_some(e, a->f, keys, conj_of(e, a->v, true));
    else
        add_prop(e, a->f, keys, conj_of(e, a->v, false), a->scope);
}

static const di_gram_dfa_t *
string_texts(expand_t *e, di_gram_conj_t conj)
{
    const di_gram_dfa_t *all = di_gram_alloc(e->c, 1, sizeof(*all));
    di_gram_forms_t     *f;

    for (f = di_gram_expand(e->x, conj, DI_GRAM_T_STRING); f != NULL;
         f = f->next) {
        if (f->f.lang == NULL)
            return di_gram_dfa_any(e->c);
        all = all->n == 0 ? f->f.lang
              : di_gram_dfa_op(e->c, DI_GRAM_OR, all, f->f.lang);
    }
    return all;
}

void
di_gram_kw_names(apply_t *a)
{
    expand_t             *e = a->e;
    const di_gram_keys_t *good, *bad;

    good = keys_lang(e, string_texts(e, conj_of(e, a->v, false)));
    bad = keys_none_of(e, good);
    if (a->negated)
        add_some(e, a->f, bad, (di_gram_conj_t) { NULL, 0 });
    else
        add_prop(e, a->f, bad, conj_never(e), NULL);
}

static const char *
name_value(apply_t *a, const json_t *v)
{
    if (!json_is_string(v))
        malformed(a->e, a->schema, a->key, "must hold names");
    return json_string_value(v);
}

void
di_gram_kw_required(apply_t *a)
{
    const json_t  *v;
    size_t         i;
    di_gram_form_t g;

    json_array_foreach(a->v, i, v) {
        if (!a->negated) {
            require(a->e, a->f, name_value(a, v));
            continue;
        }
        g = *a->f;
        forbid(a->e, &g, name_value(a, v));
        di_gram_run(a->e, g, a->todo);
    }
    a->never = a->negated;
}

/* A list for DO_KEYWORD is too much for one name: a schema is made. */
static const json_t *
requiring(apply_t *a, const json_t *names)
{
    json_t       *s = json_pack("{s:O}", "required", names);
    const json_t *any;

    if (s == NULL)
        di_gram_fail(a->e->c, DI_ENOMEM, "schema", "", "no memory");
    any = di_gram_any_of(a->e->x, (const json_t *[]) { s }, 1);
    json_decref(s);
    return any;
}

static const json_t *
requiring_name(apply_t *a, const char *name)
{
    json_t       *names = json_pack("[s]", name);
    const json_t *s;

    if (names == NULL)
        di_gram_fail(a->e->c, DI_ENOMEM, "schema", "", "no memory");
    s = requiring(a, names);
    json_decref(names);
    return s;
}

/* If a property is there, a schema holds, or other properties are there. */
void
di_gram_kw_dependent(apply_t *a)
{
    expand_t       *e = a->e;
    const choice_t *choice = NULL;
    const json_t   *there, *then;
    const char     *name;
    json_t         *v;

    each_object(a);
    json_object_foreach((json_t *) a->v, name, v) {
        there = requiring_name(a, name);
        then = json_is_array(v) ? requiring(a, v) : v;
        if (a->negated) {
            choice = choose(e, choice, push_lit(e,
                push_lit(e, NULL, then, true, NULL), there, false, NULL));
            continue;
        }
        choice = choose(e, NULL, push_lit(e, NULL, there, true, NULL));
        choice = choose(e, choice, push_lit(e,
            push_lit(e, NULL, then, false, a->scope), there, false, NULL));
        a->todo = push_choice(e, a->todo, choice);
    }
    if (a->negated)
        a->todo = push_choice(e, a->todo, choice);
}

void
di_gram_kw_unevaluated(apply_t *a)
{
    if (a->negated) {
        if (json_is_true(a->v))
            a->never = true;
        else
            di_gram_refuse(a->e->x, a->schema, a->key,
                           "is not held negated");
        return;
    }
    a->todo = push_keyword(a->e, a->todo, DO_UNEVALUATED, a->schema,
                           a->key, a->scope);
}

static bool
inside(const di_gram_scope_t *s, const di_gram_scope_t *of)
{
    for (; s != NULL; s = s->up) {
        if (s == of)
            return true;
    }
    return false;
}

void
di_gram_unevaluated_properties(expand_t *e, di_gram_form_t *f, const todo_t *t)
{
    const di_gram_keys_t *seen = NULL;

    for (const di_gram_prop_t *p = f->props; p != NULL; p = p->next) {
        if (inside(p->scope, t->scope))
            seen = keys_cons(e, p->keys, seen);
    }
    add_prop(e, f, keys_none_of(e, seen),
             conj_of(e, json_object_get(t->schema, t->key), false),
             t->scope);
}

/* From where items are not evaluated by index; those that a contains takes
 * are evaluated as well. */
void
di_gram_unevaluated_items(expand_t *e, di_gram_form_t *f, const todo_t *t)
{
    const json_t *v = json_object_get(t->schema, t->key);
    const json_t **any;
    uint32_t      from = 0, n = 0;

    for (const di_gram_items_t *i = f->items; i != NULL; i = i->next) {
        if (inside(i->scope, t->scope) && i->to > from)
            from = i->to;
    }
    if (from == DI_GRAM_NONE)
        return;
    for (const di_gram_contains_t *k = f->contains; k != NULL; k = k->next)
        n++;
    any = di_gram_alloc(e->c, n + 1, sizeof(*any));
    n = 0;
    any[n++] = v;
    for (const di_gram_contains_t *k = f->contains; k != NULL; k = k->next) {
        if (k->schema != NULL && inside(k->scope, t->scope))
            any[n++] = k->schema;
    }
    if (n > 1)
        v = di_gram_any_of(e->x, any, n);
    add_items(e, f, from, DI_GRAM_NONE, conj_of(e, v, false), t->scope);
}
