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

#include "schema_expand.h"

#define FORMS_MAX  600u

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
    at = di_gram_bucket(e->c->texts, &h, 1);
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

const di_gram_dfa_t *
di_gram_pattern(expand_t *e, const json_t *schema, const char *key,
                const char *s, size_t len)
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
            di_gram_run(e, g, todo);
    }
    g = *f;
    if (n > 0 && at_most(&g, (uint32_t) n - 1))
        di_gram_run(e, g, todo);
    g = *f;
    if (at_least(&g, (uint32_t) n + 1))
        di_gram_run(e, g, todo);
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
        di_gram_run(e, g, todo);
        g = *f;
        require(e, &g, key);
        add_prop(e, &g, keys_name(e, key), conj_const(e, value, true), NULL);
        di_gram_run(e, g, todo);
        names = keys_cons(e, keys_name(e, key), names);
    }
    g = *f;
    add_some(e, &g, keys_none_of(e, names), (di_gram_conj_t) { NULL, 0 });
    di_gram_run(e, g, todo);
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
        di_gram_run(e, *f, todo);
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
    di_gram_run(e, *f, todo);
}

/* Go on with a value that is, or is not, equal to v. */
static void
constant(expand_t *e, di_gram_form_t f, const json_t *v, bool negated,
         const todo_t *todo)
{
    const di_gram_dfa_t *lang;

    if (type_of(v) != e->type) {
        if (negated)
            di_gram_run(e, f, todo);
        return;
    }
    switch (e->type) {
    case DI_GRAM_T_NUMBER:
    case DI_GRAM_T_STRING:
        lang = scalars(e, e->last, "const", &v, 1);
        if (negated ? narrow_not(e, &f, lang) : narrow(e, &f, lang))
            di_gram_run(e, f, todo);
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
            di_gram_run(e, f, todo);
    }
}

/* --------------------------------------------------- keywords of values -- */

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
    lang = di_gram_pattern(a->e, a->schema, a->key,
                           json_string_value(a->v),
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

/* -------------------------------------------------------- all keywords -- */

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
    { "unevaluatedProperties", OBJECTS, di_gram_kw_unevaluated },
    { "unevaluatedItems", ARRAYS, di_gram_kw_unevaluated },
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
    { "prefixItems", ARRAYS, di_gram_kw_prefix },
    { "items", ARRAYS, di_gram_kw_items },
    { "additionalItems", ARRAYS, di_gram_kw_additional_items },
    { "contains", ARRAYS, di_gram_kw_contains },
    { "uniqueItems", ARRAYS, di_gram_kw_unique },
    { "minProperties", OBJECTS, kw_count },
    { "maxProperties", OBJECTS, kw_count },
    { "properties", OBJECTS, di_gram_kw_properties },
    { "patternProperties", OBJECTS, di_gram_kw_patterns },
    { "additionalProperties", OBJECTS, di_gram_kw_additional },
    { "propertyNames", OBJECTS, di_gram_kw_names },
    { "required", OBJECTS, di_gram_kw_required },
    { "dependentRequired", OBJECTS, di_gram_kw_dependent },
    { "dependentSchemas", OBJECTS, di_gram_kw_dependent },
    { "dependencies", OBJECTS, di_gram_kw_dependent },
    { "if", ALL, di_gram_kw_if },
    { "not", ALL, di_gram_kw_not },
    { "oneOf", ALL, di_gram_kw_one_of },
    { "anyOf", ALL, di_gram_kw_any_of },
    { "allOf", ALL, di_gram_kw_all_of },
    { "$ref", ALL, di_gram_kw_ref },
    { "$dynamicRef", ALL, di_gram_kw_ref },
    { "$recursiveRef", ALL, di_gram_kw_unsupported },
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
    for (size_t i = 0; i < N_KEYWORDS && !a.never; i++) {
        if (!applies(e, t->lit.v, i, &a.v))
            continue;
        di_gram_work(e->c, 4);
        a.key = keywords[i].key;
        e->last = t->lit.v;
        keywords[i].apply(&a);
    }
    if (!a.never)
        di_gram_run(e, f, a.todo);
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
    di_gram_run(e, f, push_choice(e, t->next, choice));
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
        di_gram_run(e, f, a.todo);
}

static void
literal(expand_t *e, di_gram_form_t f, const todo_t *t)
{
    const json_t *v = t->lit.v;

    if (t->lit.constant) {
        constant(e, f, v, t->lit.negated, t->next);
    } else if (json_is_boolean(v)) {
        if (json_is_true(v) != t->lit.negated)
            di_gram_run(e, f, t->next);
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

void
di_gram_run(expand_t *e, di_gram_form_t f, const todo_t *todo)
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
            di_gram_run(e, f, stack_list(e, k->list, todo->next));
        break;
    case DO_UNEVALUATED:
        if (e->type == DI_GRAM_T_OBJECT)
            di_gram_unevaluated_properties(e, &f, todo);
        else
            di_gram_unevaluated_items(e, &f, todo);
        di_gram_run(e, f, todo->next);
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
    di_gram_run(&e, f, todo);
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
