/*
 * schema_expand.h - what the keywords of a schema work on: lists of things to
 * do, the form of a value, and the keyword at hand.
 */

#ifndef DI_SCHEMA_EXPAND_H
#define DI_SCHEMA_EXPAND_H

#include <string.h>

#include "schema.h"

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


static inline di_gram_conj_t
conj_of(expand_t *e, const json_t *v, bool negated)
{
    const di_gram_conj_t none = { NULL, 0 };

    return di_gram_conj_add(e->c, none, (di_gram_lit_t) {
        .v = v, .negated = negated,
    });
}

static inline di_gram_conj_t
conj_const(expand_t *e, const json_t *v, bool negated)
{
    const di_gram_conj_t none = { NULL, 0 };

    return di_gram_conj_add(e->c, none, (di_gram_lit_t) {
        .v = v, .negated = negated, .constant = true,
    });
}

static inline di_gram_conj_t
conj_never(expand_t *e)
{
    return conj_of(e, json_false(), false);
}

/* --------------------------------------------------------------- lists -- */

static inline const todo_t *
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

static inline const todo_t *
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

static inline const todo_t *
push_choice(expand_t *e, const todo_t *todo, const choice_t *choice)
{
    todo_t *t = di_gram_alloc(e->c, 1, sizeof(*t));

    *t = (todo_t) { .next = todo, .kind = DO_CHOICE, .choice = choice };
    return t;
}

static inline const todo_t *
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

static inline const choice_t *
choose(expand_t *e, const choice_t *rest, const todo_t *list)
{
    choice_t *k = di_gram_alloc(e->c, 1, sizeof(*k));

    di_gram_work(e->c, 2);
    *k = (choice_t) { .next = (choice_t *) rest, .list = list };
    return k;
}

/* The lists of a choice are short; put one on top of what remains. */
static inline const todo_t *
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

static inline bool
narrow(expand_t *e, di_gram_form_t *f, const di_gram_dfa_t *lang)
{
    f->lang = f->lang == NULL ? lang
              : di_gram_dfa_op(e->c, DI_GRAM_AND, f->lang, lang);
    return f->lang->n > 0;
}

/* Without the texts of a set; numbers are then without exponents. */
static inline bool
narrow_not(expand_t *e, di_gram_form_t *f, const di_gram_dfa_t *lang)
{
    const di_gram_dfa_t *from = f->lang;

    if (from == NULL)
        from = f->type == DI_GRAM_T_NUMBER ? di_gram_lang_decimal(e->c)
                                           : di_gram_dfa_any(e->c);
    f->lang = di_gram_dfa_op(e->c, DI_GRAM_ANDNOT, from, lang);
    return f->lang->n > 0;
}

static inline const di_gram_keys_t *
keys_name(expand_t *e, const char *name)
{
    di_gram_keys_t *k = di_gram_alloc(e->c, 1, sizeof(*k));

    k->kind = DI_GRAM_K_NAME;
    k->name = name;
    k->len = strlen(name);
    return k;
}

static inline const di_gram_keys_t *
keys_lang(expand_t *e, const di_gram_dfa_t *lang)
{
    di_gram_keys_t *k = di_gram_alloc(e->c, 1, sizeof(*k));

    k->kind = DI_GRAM_K_LANG;
    k->lang = lang;
    return k;
}

static inline const di_gram_keys_t *
keys_none_of(expand_t *e, const di_gram_keys_t *list)
{
    di_gram_keys_t *k = di_gram_alloc(e->c, 1, sizeof(*k));

    k->kind = DI_GRAM_K_NONE_OF;
    k->list = list;
    return k;
}

/* A copy of keys in front of a list. */
static inline const di_gram_keys_t *
keys_cons(expand_t *e, const di_gram_keys_t *keys, const di_gram_keys_t *list)
{
    di_gram_keys_t *k = di_gram_alloc(e->c, 1, sizeof(*k));

    *k = *keys;
    k->next = list;
    return k;
}

static inline void
add_prop(expand_t *e, di_gram_form_t *f, const di_gram_keys_t *keys,
         di_gram_conj_t conj, const di_gram_scope_t *scope)
{
    di_gram_prop_t *p = di_gram_alloc(e->c, 1, sizeof(*p));

    di_gram_work(e->c, 2);
    *p = (di_gram_prop_t) { f->props, keys, conj, scope };
    f->props = p;
}

static inline void
add_some(expand_t *e, di_gram_form_t *f, const di_gram_keys_t *keys,
         di_gram_conj_t conj)
{
    di_gram_some_t *s = di_gram_alloc(e->c, 1, sizeof(*s));

    di_gram_work(e->c, 2);
    *s = (di_gram_some_t) { f->some, keys, conj };
    f->some = s;
}

static inline void
add_items(expand_t *e, di_gram_form_t *f, uint32_t from, uint32_t to,
          di_gram_conj_t conj, const di_gram_scope_t *scope)
{
    di_gram_items_t *p = di_gram_alloc(e->c, 1, sizeof(*p));

    di_gram_work(e->c, 2);
    *p = (di_gram_items_t) { f->items, from, to, conj, scope };
    f->items = p;
}

static inline void
add_contains(expand_t *e, di_gram_form_t *f, di_gram_contains_t what)
{
    di_gram_contains_t *p = di_gram_alloc(e->c, 1, sizeof(*p));

    *p = what;
    p->next = f->contains;
    f->contains = p;
}

static inline bool
at_least(di_gram_form_t *f, uint32_t n)
{
    if (n > f->min)
        f->min = n;
    return f->min <= f->max;
}

static inline bool
at_most(di_gram_form_t *f, uint32_t n)
{
    if (n < f->max)
        f->max = n;
    return f->min <= f->max;
}

static inline void
require(expand_t *e, di_gram_form_t *f, const char *name)
{
    add_some(e, f, keys_name(e, name), (di_gram_conj_t) { NULL, 0 });
}

static inline void
forbid(expand_t *e, di_gram_form_t *f, const char *name)
{
    add_prop(e, f, keys_name(e, name), conj_never(e), NULL);
}

_Noreturn static inline void
malformed(expand_t *e, const json_t *schema, const char *key,
          const char *text)
{
    di_gram_fail(e->c, DI_EFORMAT, key, di_gram_path(e->x, schema, key),
                 "%s", text);
}

static inline uint32_t
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

/* schema_expand.c: go on with a form and the list that is left. */
void di_gram_run(expand_t *e, di_gram_form_t f, const todo_t *todo);
/* The texts that a pattern of the keyword allows. */
const di_gram_dfa_t *di_gram_pattern(expand_t *e, const json_t *schema,
                                     const char *key, const char *s,
                                     size_t len);

/* schema_apply.c: keywords that hold schemas. */
void di_gram_kw_all_of(apply_t *a);
void di_gram_kw_any_of(apply_t *a);
void di_gram_kw_one_of(apply_t *a);
void di_gram_kw_not(apply_t *a);
void di_gram_kw_if(apply_t *a);
void di_gram_kw_ref(apply_t *a);
void di_gram_kw_unsupported(apply_t *a);
void di_gram_kw_prefix(apply_t *a);
void di_gram_kw_items(apply_t *a);
void di_gram_kw_additional_items(apply_t *a);
void di_gram_kw_contains(apply_t *a);
void di_gram_kw_unique(apply_t *a);
void di_gram_kw_properties(apply_t *a);
void di_gram_kw_patterns(apply_t *a);
void di_gram_kw_additional(apply_t *a);
void di_gram_kw_names(apply_t *a);
void di_gram_kw_required(apply_t *a);
void di_gram_kw_dependent(apply_t *a);
void di_gram_kw_unevaluated(apply_t *a);
void di_gram_unevaluated_properties(expand_t *e, di_gram_form_t *f,
                                    const todo_t *t);
void di_gram_unevaluated_items(expand_t *e, di_gram_form_t *f,
                               const todo_t *t);

#endif
