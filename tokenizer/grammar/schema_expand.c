/*
 * schema_expand.c - what a value of one type must hold.
 *
 * A conjunction is taken apart by a list of things to do, newest first.  A
 * literal puts its keywords on it, or, if it is negated, a choice between
 * their negations; a keyword narrows the form, or puts literals and choices
 * on the list.  At a choice the work goes on with each alternative on a form
 * of its own; where the list is empty a form is done.  Keywords that say
 * nothing about the type at hand are passed over.
 *
 * unevaluatedProperties and -Items see what the schemas around them, applied
 * to the same value, have evaluated.  They wait in the list below everything
 * that their schema applies, and look at the scopes in the form.  An anyOf
 * also tries its alternatives together there, as each adds what it evaluates.
 */

#include <stdio.h>
#include <string.h>

#include "schema.h"

#define FORMS_MAX  600u

typedef enum {
    DO_LIT,                 /* a literal                                     */
    DO_CHOICE,              /* one of the lists                              */
    DO_KEYWORD,             /* the negation of a keyword                     */
    DO_UNEVALUATED,         /* unevaluatedProperties or -Items               */
} todo_kind_t;

typedef struct todo_s  todo_t;

typedef struct choice_s {
    struct choice_s *next;
    const todo_t    *list;
} choice_t;

struct todo_s {
    const todo_t          *next;
    todo_kind_t            kind;
    di_gram_lit_t          lit;
    const di_gram_scope_t *scope;       /* around the literal                */
    const choice_t        *choice;
    const json_t          *schema;      /* DO_KEYWORD, DO_UNEVALUATED        */
    const char            *key;
};

typedef struct {
    di_gram_schema_t *x;
    di_gram_ctx_t    *c;
    di_gram_type_t    type;
    di_gram_forms_t  *out;
    uint32_t          n_out;
    const json_t     *last;     /* schema at hand, for errors                */
    unsigned          depth;
} expand_t;

static void run(expand_t *e, di_gram_form_t f, const todo_t *todo);

/* -------------------------------------------------------- conjunctions -- */

static int
lit_order(const di_gram_lit_t *a, const di_gram_lit_t *b)
{
    if (a->v != b->v)
        return (uintptr_t) a->v < (uintptr_t) b->v ? -1 : 1;
    return (a->constant * 2 + a->negated) - (b->constant * 2 + b->negated);
}

di_gram_conj_t
di_gram_conj_add(di_gram_ctx_t *c, di_gram_conj_t conj, di_gram_lit_t lit)
{
    return di_gram_conj_join(c, conj, (di_gram_conj_t) { &lit, 1 });
}

static bool
says_nothing(const di_gram_lit_t *l)
{
    if (l->constant)
        return false;
    return l->negated ? json_is_false(l->v)
           : json_is_true(l->v)
             || (json_is_object(l->v) && json_object_size(l->v) == 0);
}

di_gram_conj_t
di_gram_conj_join(di_gram_ctx_t *c, di_gram_conj_t a, di_gram_conj_t b)
{
    di_gram_lit_t *v = di_gram_alloc(c, a.n + b.n, sizeof(*v));
    uint32_t       i = 0, j = 0, n = 0;
    int            order;

    while (i < a.n || j < b.n) {
        order = i == a.n ? 1 : j == b.n ? -1 : lit_order(&a.v[i], &b.v[j]);
        v[n] = order <= 0 ? a.v[i] : b.v[j];
        i += order <= 0;
        j += order >= 0;
        n += !says_nothing(&v[n]);
    }
    return (di_gram_conj_t) { v, n };
}

static di_gram_conj_t
conj_of(expand_t *e, const json_t *v, bool negated)
{
    const di_gram_conj_t none = { NULL, 0 };

    return di_gram_conj_add(e->c, none, (di_gram_lit_t) {
        .v = v, .negated = negated,
    });
}

static di_gram_conj_t
conj_const(expand_t *e, const json_t *v, bool negated)
{
    const di_gram_conj_t none = { NULL, 0 };

    return di_gram_conj_add(e->c, none, (di_gram_lit_t) {
        .v = v, .negated = negated, .constant = true,
    });
}

static di_gram_conj_t
conj_never(expand_t *e)
{
    return conj_of(e, json_false(), false);
}

/* --------------------------------------------------------------- lists -- */

static const todo_t *
push_lit(expand_t *e, const todo_t *todo, const json_t *v, bool negated,
         const di_gram_scope_t *scope)
{
    todo_t *t = di_gram_alloc(e->c, 1, sizeof(*t));

    di_gram_work(e->c, 2);
    *t = (todo_t) {
        .next = todo, .kind = DO_LIT, .scope = scope,
        .lit = { .v = v, .negated = negated },
    };
    return t;
}

static const todo_t *
push_const(expand_t *e, const todo_t *todo, const json_t *v, bool negated)
{
    todo_t *t = di_gram_alloc(e->c, 1, sizeof(*t));

    di_gram_work(e->c, 2);
    *t = (todo_t) {
        .next = todo, .kind = DO_LIT,
        .lit = { .v = v, .negated = negated, .constant = true },
    };
    return t;
}

static const todo_t *
push_choice(expand_t *e, const todo_t *todo, const choice_t *choice)
{
    todo_t *t = di_gram_alloc(e->c, 1, sizeof(*t));

    *t = (todo_t) { .next = todo, .kind = DO_CHOICE, .choice = choice };
    return t;
}

static const todo_t *
push_keyword(expand_t *e, const todo_t *todo, todo_kind_t kind,
             const json_t *schema, const char *key,
             const di_gram_scope_t *scope)
{
    todo_t *t = di_gram_alloc(e->c, 1, sizeof(*t));

    *t = (todo_t) {
        .next = todo, .kind = kind, .schema = schema, .key = key,
        .scope = scope,
    };
    return t;
}

static const choice_t *
choose(expand_t *e, const choice_t *rest, const todo_t *list)
{
    choice_t *k = di_gram_alloc(e->c, 1, sizeof(*k));

    di_gram_work(e->c, 2);
    *k = (choice_t) { .next = (choice_t *) rest, .list = list };
    return k;
}

/* The lists of a choice are short; put one on top of what remains. */
static const todo_t *
stack_list(expand_t *e, const todo_t *list, const todo_t *rest)
{
    todo_t *t;

    if (list == NULL)
        return rest;
    t = di_gram_alloc(e->c, 1, sizeof(*t));
    *t = *list;
    t->next = stack_list(e, list->next, rest);
    return t;
}

/* ------------------------------------------------------- parts of forms -- */

static bool
narrow(expand_t *e, di_gram_form_t *f, const di_gram_dfa_t *lang)
{
    f->lang = f->lang == NULL ? lang
              : di_gram_dfa_op(e->c, DI_GRAM_AND, f->lang, lang);
    return f->lang->n > 0;
}

/* Without the texts of a set; numbers are then without exponents. */
static bool
narrow_not(expand_t *e, di_gram_form_t *f, const di_gram_dfa_t *lang)
{
    const di_gram_dfa_t *from = f->lang;

    if (from == NULL)
        from = f->type == DI_GRAM_T_NUMBER ? di_gram_lang_decimal(e->c)
                                           : di_gram_dfa_any(e->c);
    f->lang = di_gram_dfa_op(e->c, DI_GRAM_ANDNOT, from, lang);
    return f->lang->n > 0;
}

static const di_gram_keys_t *
keys_name(expand_t *e, const char *name)
{
    di_gram_keys_t *k = di_gram_alloc(e->c, 1, sizeof(*k));

    k->kind = DI_GRAM_K_NAME;
    k->name = name;
    k->len = strlen(name);
    return k;
}

static const di_gram_keys_t *
keys_lang(expand_t *e, const di_gram_dfa_t *lang)
{
    di_gram_keys_t *k = di_gram_alloc(e->c, 1, sizeof(*k));

    k->kind = DI_GRAM_K_LANG;
    k->lang = lang;
    return k;
}

static const di_gram_keys_t *
keys_none_of(expand_t *e, const di_gram_keys_t *list)
{
    di_gram_keys_t *k = di_gram_alloc(e->c, 1, sizeof(*k));

    k->kind = DI_GRAM_K_NONE_OF;
    k->list = list;
    return k;
}

/* A copy of keys in front of a list. */
static const di_gram_keys_t *
keys_cons(expand_t *e, const di_gram_keys_t *keys, const di_gram_keys_t *list)
{
    di_gram_keys_t *k = di_gram_alloc(e->c, 1, sizeof(*k));

    *k = *keys;
    k->next = list;
    return k;
}

bool
di_gram_keys_have(di_gram_ctx_t *c, const di_gram_keys_t *keys,
                  const char *name, size_t len)
{
    const di_gram_keys_t *k;

    di_gram_work(c, 1);
    switch (keys->kind) {
    case DI_GRAM_K_ALL:
        return true;
    case DI_GRAM_K_NAME:
        return keys->len == len && memcmp(keys->name, name, len) == 0;
    case DI_GRAM_K_LANG:
        return di_gram_dfa_accepts(c, keys->lang, name, len);
    default:
        for (k = keys->list; k != NULL; k = k->next) {
            if (di_gram_keys_have(c, k, name, len))
                return false;
        }
        return true;
    }
}

static void
add_prop(expand_t *e, di_gram_form_t *f, const di_gram_keys_t *keys,
         di_gram_conj_t conj, const di_gram_scope_t *scope)
{
    di_gram_prop_t *p = di_gram_alloc(e->c, 1, sizeof(*p));

    di_gram_work(e->c, 2);
    *p = (di_gram_prop_t) { f->props, keys, conj, scope };
    f->props = p;
}

static void
add_some(expand_t *e, di_gram_form_t *f, const di_gram_keys_t *keys,
         di_gram_conj_t conj)
{
    di_gram_some_t *s = di_gram_alloc(e->c, 1, sizeof(*s));

    di_gram_work(e->c, 2);
    *s = (di_gram_some_t) { f->some, keys, conj };
    f->some = s;
}

static void
add_items(expand_t *e, di_gram_form_t *f, uint32_t from, uint32_t to,
          di_gram_conj_t conj, const di_gram_scope_t *scope)
{
    di_gram_items_t *p = di_gram_alloc(e->c, 1, sizeof(*p));

    di_gram_work(e->c, 2);
    *p = (di_gram_items_t) { f->items, from, to, conj, scope };
    f->items = p;
}

static void
add_contains(expand_t *e, di_gram_form_t *f, di_gram_contains_t what)
{
    di_gram_contains_t *p = di_gram_alloc(e->c, 1, sizeof(*p));

    *p = what;
    p->next = f->contains;
    f->contains = p;
}

static bool
at_least(di_gram_form_t *f, uint32_t n)
{
    if (n > f->min)
        f->min = n;
    return f->min <= f->max;
}

static bool
at_most(di_gram_form_t *f, uint32_t n)
{
    if (n < f->max)
        f->max = n;
    return f->min <= f->max;
}

static void
require(expand_t *e, di_gram_form_t *f, const char *name)
{
    add_some(e, f, keys_name(e, name), (di_gram_conj_t) { NULL, 0 });
}

static void
forbid(expand_t *e, di_gram_form_t *f, const char *name)
{
    add_prop(e, f, keys_name(e, name), conj_never(e), NULL);
}

/* -------------------------------------------------------------- values -- */

static const char *const type_names[DI_GRAM_TYPES] = {
    "null", "boolean", "boolean", "number", "string", "array", "object",
};

static di_gram_type_t
type_of(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_NULL:
        return DI_GRAM_T_NULL;
    case JSON_FALSE:
        return DI_GRAM_T_FALSE;
    case JSON_TRUE:
        return DI_GRAM_T_TRUE;
    case JSON_INTEGER:
    case JSON_REAL:
        return DI_GRAM_T_NUMBER;
    case JSON_STRING:
        return DI_GRAM_T_STRING;
    case JSON_ARRAY:
        return DI_GRAM_T_ARRAY;
    default:
        return DI_GRAM_T_OBJECT;
    }
}

_Noreturn static void
malformed(expand_t *e, const json_t *schema, const char *key,
          const char *text)
{
    di_gram_fail(e->c, DI_EFORMAT, key, di_gram_path(e->x, schema, key),
                 "%s", text);
}

static uint32_t
size_value(expand_t *e, const json_t *schema, const char *key,
           const json_t *v)
{
    double d = json_number_value(v);

    if (!json_is_number(v) || d < 0 || d != (double) (json_int_t) d)
        malformed(e, schema, key, "must be a whole number, not negative");
    if (d > 1e6)
        di_gram_fail(e->c, DI_ELIMIT, key,
                     di_gram_path(e->x, schema, key), "is over 1000000");
    return (uint32_t) d;
}

/* The memo of the texts that a keyword, given by a letter, says with a value;
 * new with lang NULL.  Equal texts are to be the same automaton. */
static di_gram_memo_t *
texts_memo(expand_t *e, char keyword, const char *s, size_t len)
{
    char            *key = di_gram_alloc(e->c, len + 2, 1);
    di_gram_memo_t **at, *m;
    uint32_t         h = 0;

    key[0] = keyword;
    memcpy(key + 1, s, len);
    di_gram_work(e->c, len / 8 + 1);
    for (size_t i = 0; i <= len; i++)
        h = h * 31 + (uint8_t) key[i];
    at = di_gram_bucket(e->x->texts, &h, 1);
    for (m = *at; m != NULL; m = m->next) {
        if (strcmp(m->key, key) == 0 && strlen(key) == len + 1)
            return m;
    }
    m = di_gram_alloc(e->c, 1, sizeof(*m));
    m->key = key;
    m->next = *at;
    *at = m;
    return m;
}

static const di_gram_dfa_t *
pattern(expand_t *e, const json_t *schema, const char *key, const char *s,
        size_t len)
{
    di_gram_memo_t *m = texts_memo(e, 'p', s, len);

    if (m->lang == NULL)
        m->lang = di_gram_dfa_merge(e->c, di_gram_dfa_trim(e->c,
            di_gram_node_dfa(e->c, di_gram_regex(e->c, s, len, true,
                di_gram_path(e->x, schema, key)))));
    return m->lang;
}

static const di_gram_dfa_t *
length(expand_t *e, uint32_t min, uint32_t max)
{
    char            s[32];
    int             len = snprintf(s, sizeof(s), "%u %u", min, max);
    di_gram_memo_t *m = texts_memo(e, 'l', s, (size_t) len);

    if (m->lang == NULL)
        m->lang = di_gram_lang_length(e->c, min, max);
    return m->lang;
}

static const di_gram_dfa_t *
integers(expand_t *e, bool negated)
{
    di_gram_memo_t *m = texts_memo(e, negated ? 'n' : 'i', "", 0);

    if (m->lang == NULL)
        m->lang = di_gram_lang_integer(e->c, negated);
    return m->lang;
}

static const di_gram_dfa_t *
format(expand_t *e, const char *name)
{
    di_gram_memo_t *m = texts_memo(e, 'f', name, strlen(name));

    if (m->lang == NULL)
        m->lang = di_gram_lang_format(e->c, name);
    return m->lang;
}

/* The texts of an enum's (or one const's) strings or numbers. */
static const di_gram_dfa_t *
scalars(expand_t *e, const json_t *schema, const char *key,
        const json_t *const *v, size_t n)
{
    di_gram_node_t      *alt = di_gram_node(e->c, DI_GRAM_N_ALT);
    const di_gram_dfa_t *all = NULL, *d;

    for (size_t i = 0; i < n; i++) {
        if (e->type == DI_GRAM_T_STRING && json_is_string(v[i])) {
            di_gram_node_add(alt, di_gram_node_text(e->c,
                json_string_value(v[i]), json_string_length(v[i])));
        } else if (e->type == DI_GRAM_T_NUMBER && json_is_number(v[i])) {
            d = di_gram_lang_number(e->c, v[i], DI_GRAM_EQ, false, key,
                                    di_gram_path(e->x, schema, key));
            all = all == NULL ? d
                  : di_gram_dfa_op(e->c, DI_GRAM_OR, all, d);
        }
    }
    return all != NULL ? all : di_gram_node_dfa(e->c, alt);
}

/* A list for each item that differs, and two for other lengths. */
static void
not_const_array(expand_t *e, di_gram_form_t *f, const json_t *v,
                const todo_t *todo)
{
    size_t n = json_array_size(v), i;
    di_gram_form_t g;

    for (i = 0; i < n; i++) {
        g = *f;
        add_items(e, &g, (uint32_t) i, (uint32_t) i + 1,
                  conj_const(e, json_array_get(v, i), true), NULL);
        if (at_least(&g, (uint32_t) i + 1))
            run(e, g, todo);
    }
    g = *f;
    if (n > 0 && at_most(&g, (uint32_t) n - 1))
        run(e, g, todo);
    g = *f;
    if (at_least(&g, (uint32_t) n + 1))
        run(e, g, todo);
}

static void
not_const_object(expand_t *e, const di_gram_form_t *f, const json_t *v,
                 const todo_t *todo)
{
    const di_gram_keys_t *names = NULL;
    const char           *key;
    json_t               *value;
    di_gram_form_t        g;

    json_object_foreach((json_t *) v, key, value) {
        g = *f;
        forbid(e, &g, key);
        run(e, g, todo);
        g = *f;
        require(e, &g, key);
        add_prop(e, &g, keys_name(e, key), conj_const(e, value, true), NULL);
        run(e, g, todo);
        names = keys_cons(e, keys_name(e, key), names);
    }
    g = *f;
    add_some(e, &g, keys_none_of(e, names), (di_gram_conj_t) { NULL, 0 });
    run(e, g, todo);
}

static void
const_array(expand_t *e, di_gram_form_t *f, const json_t *v,
            const todo_t *todo)
{
    uint32_t n = (uint32_t) json_array_size(v);

    for (uint32_t i = 0; i < n; i++)
        add_items(e, f, i, i + 1, conj_const(e, json_array_get(v, i), false),
                  NULL);
    if (at_least(f, n) && at_most(f, n))
        run(e, *f, todo);
}

static void
const_object(expand_t *e, di_gram_form_t *f, const json_t *v,
             const todo_t *todo)
{
    const di_gram_keys_t *names = NULL;
    const char           *key;
    json_t               *value;

    json_object_foreach((json_t *) v, key, value) {
        require(e, f, key);
        add_prop(e, f, keys_name(e, key), conj_const(e, value, false), NULL);
        names = keys_cons(e, keys_name(e, key), names);
    }
    add_prop(e, f, keys_none_of(e, names), conj_never(e), NULL);
    run(e, *f, todo);
}

/* Go on with a value that is, or is not, equal to v. */
static void
constant(expand_t *e, di_gram_form_t f, const json_t *v, bool negated,
         const todo_t *todo)
{
    const di_gram_dfa_t *lang;

    if (type_of(v) != e->type) {
        if (negated)
            run(e, f, todo);
        return;
    }
    switch (e->type) {
    case DI_GRAM_T_NUMBER:
    case DI_GRAM_T_STRING:
        lang = scalars(e, e->last, "const", &v, 1);
        if (negated ? narrow_not(e, &f, lang) : narrow(e, &f, lang))
            run(e, f, todo);
        break;
    case DI_GRAM_T_ARRAY:
        if (negated)
            not_const_array(e, &f, v, todo);
        else
            const_array(e, &f, v, todo);
        break;
    case DI_GRAM_T_OBJECT:
        if (negated)
            not_const_object(e, &f, v, todo);
        else
            const_object(e, &f, v, todo);
        break;
    default:
        if (!negated)
            run(e, f, todo);
    }
}

/* ------------------------------------------------------------ keywords -- */

/* What the keyword at hand does to a form and a list; `never` says that no
 * value is left. */
typedef struct {
    expand_t              *e;
    di_gram_form_t        *f;
    const todo_t          *todo;
    const json_t          *schema;
    const char            *key;
    const json_t          *v;
    const di_gram_scope_t *scope;       /* of the schema; NULL: negated      */
    bool                   negated;
    bool                   never;
} apply_t;

static bool
is_type(const apply_t *a, const json_t *name, bool *integer)
{
    const char *s = json_string_value(name);

    if (s == NULL)
        malformed(a->e, a->schema, "type", "must be a name or a list of them");
    if (strcmp(s, "integer") == 0) {
        *integer = a->e->type == DI_GRAM_T_NUMBER;
        return false;
    }
    for (int i = 0; i < DI_GRAM_TYPES; i++) {
        if (strcmp(s, type_names[i]) == 0)
            return strcmp(s, type_names[a->e->type]) == 0;
    }
    malformed(a->e, a->schema, "type", "is not a type's name");
}

static void
kw_type(apply_t *a)
{
    bool          is = false, integer = false;
    const json_t *v;
    size_t        i;

    if (json_is_array(a->v)) {
        json_array_foreach(a->v, i, v)
            is = is_type(a, v, &integer) || is;
    } else {
        is = is_type(a, a->v, &integer);
    }
    if (integer && !is)
        a->never = !narrow(a->e, a->f, integers(a->e, a->negated));
    else
        a->never = is == a->negated;
}

static void
kw_const(apply_t *a)
{
    a->todo = push_const(a->e, a->todo, a->v, a->negated);
}

static void
kw_enum(apply_t *a)
{
    expand_t            *e = a->e;
    const choice_t      *choice = NULL;
    const json_t       **list;
    const json_t        *v;
    const di_gram_dfa_t *lang;
    size_t               i, n = 0;

    if (!json_is_array(a->v))
        malformed(e, a->schema, "enum", "must be a list");
    list = di_gram_alloc(e->c, json_array_size(a->v), sizeof(*list));
    json_array_foreach(a->v, i, v) {
        if (type_of(v) == e->type)
            list[n++] = v;
    }
    if (n == 0) {
        a->never = !a->negated;
        return;
    }
    switch (e->type) {
    case DI_GRAM_T_NUMBER:
    case DI_GRAM_T_STRING:
        lang = scalars(e, a->schema, "enum", list, n);
        a->never = !(a->negated ? narrow_not(e, a->f, lang)
                                : narrow(e, a->f, lang));
        break;
    case DI_GRAM_T_ARRAY:
    case DI_GRAM_T_OBJECT:
        for (i = 0; i < n; i++) {
            if (a->negated)
                a->todo = push_const(e, a->todo, list[i], true);
            else
                choice = choose(e, choice, push_const(e, NULL, list[i],
                                                      false));
        }
        if (!a->negated)
            a->todo = push_choice(e, a->todo, choice);
        break;
    default:
        a->never = a->negated;
    }
}

static void
kw_bound(apply_t *a)
{
    bool          upper = strstr(a->key, "ax") != NULL;
    bool          equal = a->key[0] == 'm';
    di_gram_cmp_t cmp = upper ? DI_GRAM_LT : DI_GRAM_GT;

    if (a->negated) {
        cmp = upper ? DI_GRAM_GT : DI_GRAM_LT;
        equal = !equal;
    }
    a->never = !narrow(a->e, a->f, di_gram_lang_number(a->e->c, a->v, cmp,
        equal, a->key, di_gram_path(a->e->x, a->schema, a->key)));
}

static void
kw_multiple(apply_t *a)
{
    const di_gram_dfa_t *lang = di_gram_lang_multiple(a->e->c, a->v,
        di_gram_path(a->e->x, a->schema, a->key));

    a->never = !(a->negated ? narrow_not(a->e, a->f, lang)
                            : narrow(a->e, a->f, lang));
}

/* The bounds that a keyword minX or maxX sets, or its negation. */
static void
bounds(apply_t *a, uint32_t *min, uint32_t *max)
{
    uint32_t n = size_value(a->e, a->schema, a->key, a->v);
    bool     upper = a->key[1] == 'a';

    *min = 0;
    *max = DI_GRAM_NONE;
    if (upper != a->negated)
        *max = a->negated ? n - 1 : n;
    else
        *min = a->negated ? n + 1 : n;
    if (a->negated && !upper && n == 0)
        a->never = true;
}

static void
kw_length(apply_t *a)
{
    uint32_t min, max;

    bounds(a, &min, &max);
    if (!a->never && (min > 0 || max != DI_GRAM_NONE))
        a->never = !narrow(a->e, a->f, length(a->e, min, max));
}

static void
kw_count(apply_t *a)
{
    uint32_t min, max;

    bounds(a, &min, &max);
    a->never = a->never || !at_least(a->f, min) || !at_most(a->f, max);
}

static void
kw_pattern(apply_t *a)
{
    const di_gram_dfa_t *lang;

    if (!json_is_string(a->v))
        malformed(a->e, a->schema, a->key, "must be a regular expression");
    lang = pattern(a->e, a->schema, a->key, json_string_value(a->v),
                   json_string_length(a->v));
    a->never = !(a->negated ? narrow_not(a->e, a->f, lang)
                            : narrow(a->e, a->f, lang));
}

/* Formats that say how a value is used, not how it is written. */
static const char *const plain_formats[] = {
    "int32", "int64", "float", "double", "password", "binary", "byte",
};

static void
kw_format(apply_t *a)
{
    const char          *name = json_string_value(a->v);
    const di_gram_dfa_t *lang;

    if (name == NULL)
        malformed(a->e, a->schema, a->key, "must be a name");
    for (size_t i = 0; i < sizeof(plain_formats) / sizeof(plain_formats[0]);
         i++) {
        if (strcmp(plain_formats[i], name) == 0) {
            a->never = a->negated;
            return;
        }
    }
    lang = format(a->e, name);
    if (lang == NULL)
        di_gram_refuse(a->e->x, a->schema, a->key,
                       "is not a format that is held");
    a->never = !(a->negated ? narrow_not(a->e, a->f, lang)
                            : narrow(a->e, a->f, lang));
}

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

static void
kw_all_of(apply_t *a)
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

static void
kw_any_of(apply_t *a)
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

static void
kw_one_of(apply_t *a)
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

static void
kw_not(apply_t *a)
{
    a->todo = push_lit(a->e, a->todo, a->v, !a->negated, NULL);
}

static void
kw_if(apply_t *a)
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

static void
kw_ref(apply_t *a)
{
    const char *ref = json_string_value(a->v);

    if (ref == NULL)
        malformed(a->e, a->schema, a->key, "must be a URI");
    a->todo = push_lit(a->e, a->todo,
                       di_gram_ref_target(a->e->x, a->schema, a->key, ref),
                       a->negated, a->scope);
}

static void
kw_unsupported(apply_t *a)
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

static void
kw_prefix(apply_t *a)
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
            run(e, g, a->todo);
    }
    a->never = true;            /* each way has been gone                    */
}

static uint32_t
prefix_size(const json_t *schema, const char *key)
{
    return (uint32_t) json_array_size(json_object_get(schema, key));
}

static void
kw_items(apply_t *a)
{
    if (json_is_array(a->v))
        kw_prefix(a);           /* as it was before 2020-12                  */
    else
        items_in(a, prefix_size(a->schema, "prefixItems"), DI_GRAM_NONE,
                 a->v);
}

static void
kw_additional_items(apply_t *a)
{
    const json_t *items = json_object_get(a->schema, "items");

    if (json_is_array(items))
        items_in(a, (uint32_t) json_array_size(items), DI_GRAM_NONE, a->v);
    else
        a->never = a->negated;
}

static void
kw_contains(apply_t *a)
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
        run(e, g, a->todo);
    }
    if (what.min == 0) {
        a->never = true;
        return;
    }
    what.max = what.min - 1;                    /* or fewer                  */
    what.min = 0;
    add_contains(e, a->f, what);
}

static void
kw_unique(apply_t *a)
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

static void
kw_properties(apply_t *a)
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
        run(e, g, a->todo);
    }
    a->never = a->negated;
}

static const di_gram_keys_t *
pattern_keys(expand_t *e, const json_t *schema, const char *s)
{
    return keys_lang(e, pattern(e, schema, "patternProperties", s,
                                strlen(s)));
}

static void
kw_patterns(apply_t *a)
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
        run(e, g, a->todo);
    }
    a->never = a->negated;
}

static void
kw_additional(apply_t *a)
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

static void
kw_names(apply_t *a)
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

static void
kw_required(apply_t *a)
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
        run(a->e, g, a->todo);
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
static void
kw_dependent(apply_t *a)
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

static void
kw_unevaluated(apply_t *a)
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

static void
unevaluated_properties(expand_t *e, di_gram_form_t *f, const todo_t *t)
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
static void
unevaluated_items(expand_t *e, di_gram_form_t *f, const todo_t *t)
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

/* ------------------------------------------------------------- keywords -- */

#define NUMBERS   (1u << DI_GRAM_T_NUMBER)
#define STRINGS   (1u << DI_GRAM_T_STRING)
#define ARRAYS    (1u << DI_GRAM_T_ARRAY)
#define OBJECTS   (1u << DI_GRAM_T_OBJECT)
#define ALL       ((1u << DI_GRAM_TYPES) - 1)

/* Applied in this order; what is not here says nothing.  then, else and the
 * bounds of contains are read with their keyword. */
static const struct {
    const char *key;
    unsigned    types;
    void      (*apply)(apply_t *a);
} keywords[] = {
    { "type", ALL, kw_type },
    { "unevaluatedProperties", OBJECTS, kw_unevaluated },
    { "unevaluatedItems", ARRAYS, kw_unevaluated },
    { "enum", ALL, kw_enum },
    { "const", ALL, kw_const },
    { "minimum", NUMBERS, kw_bound },
    { "maximum", NUMBERS, kw_bound },
    { "exclusiveMinimum", NUMBERS, kw_bound },
    { "exclusiveMaximum", NUMBERS, kw_bound },
    { "multipleOf", NUMBERS, kw_multiple },
    { "minLength", STRINGS, kw_length },
    { "maxLength", STRINGS, kw_length },
    { "pattern", STRINGS, kw_pattern },
    { "format", STRINGS, kw_format },
    { "minItems", ARRAYS, kw_count },
    { "maxItems", ARRAYS, kw_count },
    { "prefixItems", ARRAYS, kw_prefix },
    { "items", ARRAYS, kw_items },
    { "additionalItems", ARRAYS, kw_additional_items },
    { "contains", ARRAYS, kw_contains },
    { "uniqueItems", ARRAYS, kw_unique },
    { "minProperties", OBJECTS, kw_count },
    { "maxProperties", OBJECTS, kw_count },
    { "properties", OBJECTS, kw_properties },
    { "patternProperties", OBJECTS, kw_patterns },
    { "additionalProperties", OBJECTS, kw_additional },
    { "propertyNames", OBJECTS, kw_names },
    { "required", OBJECTS, kw_required },
    { "dependentRequired", OBJECTS, kw_dependent },
    { "dependentSchemas", OBJECTS, kw_dependent },
    { "dependencies", OBJECTS, kw_dependent },
    { "if", ALL, kw_if },
    { "not", ALL, kw_not },
    { "oneOf", ALL, kw_one_of },
    { "anyOf", ALL, kw_any_of },
    { "allOf", ALL, kw_all_of },
    { "$ref", ALL, kw_ref },
    { "$dynamicRef", ALL, kw_ref },
    { "$recursiveRef", ALL, kw_unsupported },
};

#define N_KEYWORDS  (sizeof(keywords) / sizeof(keywords[0]))

static bool
applies(const expand_t *e, const json_t *schema, size_t i, const json_t **v)
{
    if ((keywords[i].types & 1u << e->type) == 0)
        return false;
    *v = json_object_get(schema, keywords[i].key);
    if (*v == NULL)
        return false;
    return !e->x->draft7 || json_object_get(schema, "$ref") == NULL
           || strcmp(keywords[i].key, "$ref") == 0;
}

static void
schema_holds(expand_t *e, di_gram_form_t f, const todo_t *t)
{
    di_gram_scope_t *scope = di_gram_alloc(e->c, 1, sizeof(*scope));
    apply_t          a = {
        .e = e, .f = &f, .todo = t->next, .schema = t->lit.v, .scope = scope,
    };

    *scope = (di_gram_scope_t) { t->scope, t->lit.v };
    for (const di_gram_scope_t *s = t->scope; s != NULL; s = s->up) {
        if (s->schema == t->lit.v) {    /* it refers to itself               */
            run(e, f, t->next);
            return;
        }
    }
    for (size_t i = 0; i < N_KEYWORDS && !a.never; i++) {
        if (!applies(e, t->lit.v, i, &a.v))
            continue;
        di_gram_work(e->c, 4);
        a.key = keywords[i].key;
        e->last = t->lit.v;
        keywords[i].apply(&a);
    }
    if (!a.never)
        run(e, f, a.todo);
}

static void
schema_fails(expand_t *e, di_gram_form_t f, const todo_t *t)
{
    const choice_t *choice = NULL;
    const json_t   *v;

    for (size_t i = N_KEYWORDS; i-- > 0; ) {
        if (applies(e, t->lit.v, i, &v))
            choice = choose(e, choice, push_keyword(e, NULL, DO_KEYWORD,
                                                    t->lit.v,
                                                    keywords[i].key, NULL));
    }
    run(e, f, push_choice(e, t->next, choice));
}

static void
keyword_fails(expand_t *e, di_gram_form_t f, const todo_t *t)
{
    apply_t a = {
        .e = e, .f = &f, .todo = t->next, .schema = t->schema, .key = t->key,
        .v = json_object_get(t->schema, t->key), .negated = true,
    };

    e->last = t->schema;
    for (size_t i = 0; i < N_KEYWORDS; i++) {
        if (strcmp(keywords[i].key, t->key) == 0)
            keywords[i].apply(&a);
    }
    if (!a.never)
        run(e, f, a.todo);
}

static void
literal(expand_t *e, di_gram_form_t f, const todo_t *t)
{
    const json_t *v = t->lit.v;

    if (t->lit.constant) {
        constant(e, f, v, t->lit.negated, t->next);
    } else if (json_is_boolean(v)) {
        if (json_is_true(v) != t->lit.negated)
            run(e, f, t->next);
    } else if (!json_is_object(v)) {
        di_gram_fail(e->c, DI_EFORMAT, "schema",
                     e->last != NULL ? di_gram_path(e->x, e->last, "") : "#",
                     "a schema must be an object, true or false");
    } else if (t->lit.negated) {
        schema_fails(e, f, t);
    } else {
        schema_holds(e, f, t);
    }
}

static void
done(expand_t *e, const di_gram_form_t *f)
{
    di_gram_forms_t *out = di_gram_alloc(e->c, 1, sizeof(*out));

    if (e->n_out++ == FORMS_MAX)
        di_gram_fail(e->c, DI_ELIMIT, "schema",
                     e->last != NULL ? di_gram_path(e->x, e->last, "") : "#",
                     "combines into over %u cases", FORMS_MAX);
    out->f = *f;
    out->next = e->out;
    e->out = out;
}

static void
run(expand_t *e, di_gram_form_t f, const todo_t *todo)
{
    di_gram_work(e->c, 8);
    if (todo == NULL) {
        done(e, &f);
        return;
    }
    if (++e->depth > 10 * DI_GRAM_NEST_MAX)
        di_gram_fail(e->c, DI_ELIMIT, "schema",
                     e->last != NULL ? di_gram_path(e->x, e->last, "") : "#",
                     "combines too many schemas");
    switch (todo->kind) {
    case DO_LIT:
        literal(e, f, todo);
        break;
    case DO_KEYWORD:
        keyword_fails(e, f, todo);
        break;
    case DO_CHOICE:
        for (const choice_t *k = todo->choice; k != NULL; k = k->next)
            run(e, f, stack_list(e, k->list, todo->next));
        break;
    case DO_UNEVALUATED:
        if (e->type == DI_GRAM_T_OBJECT)
            unevaluated_properties(e, &f, todo);
        else
            unevaluated_items(e, &f, todo);
        run(e, f, todo->next);
        break;
    }
    e->depth--;
}

di_gram_forms_t *
di_gram_expand(di_gram_schema_t *x, di_gram_conj_t conj, di_gram_type_t type)
{
    expand_t       e = { .x = x, .c = x->c, .type = type };
    di_gram_form_t f = { .type = type, .max = DI_GRAM_NONE };
    const todo_t  *todo = NULL;

    for (uint32_t i = conj.n; i-- > 0; )
        todo = conj.v[i].constant
               ? push_const(&e, todo, conj.v[i].v, conj.v[i].negated)
               : push_lit(&e, todo, conj.v[i].v, conj.v[i].negated, NULL);
    run(&e, f, todo);
    return e.out;
}

/* ----------------------------------------------------------- emptiness -- */

#define EMPTY_DEPTH  3u

/* What must be there for a property of this name can't be. */
static bool
name_impossible(di_gram_schema_t *x, const di_gram_form_t *f,
                const di_gram_some_t *some)
{
    di_gram_conj_t all = some->conj;

    if (some->keys->kind != DI_GRAM_K_NAME)
        return false;
    for (const di_gram_prop_t *p = f->props; p != NULL; p = p->next) {
        if (di_gram_keys_have(x->c, p->keys, some->keys->name,
                              some->keys->len))
            all = di_gram_conj_join(x->c, all, p->conj);
    }
    return di_gram_is_empty(x, all);
}

bool
di_gram_is_empty(di_gram_schema_t *x, di_gram_conj_t conj)
{
    di_gram_forms_t *f;
    bool             empty = true, this;

    if (x->depth == EMPTY_DEPTH)
        return false;
    x->depth++;
    for (int t = 0; t < DI_GRAM_TYPES && empty; t++) {
        for (f = di_gram_expand(x, conj, (di_gram_type_t) t);
             f != NULL && empty; f = f->next) {
            this = false;
            for (const di_gram_some_t *s = f->f.some; s != NULL && !this;
                 s = s->next)
                this = name_impossible(x, &f->f, s);
            empty = this;
        }
    }
    x->depth--;
    return empty;
}
