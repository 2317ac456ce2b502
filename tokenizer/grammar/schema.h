/*
 * schema.h - what the parts of the schema compiler share.
 *
 * Inside tokenizer/grammar only.  The question asked again and again is: how
 * are the values written that satisfy all of these schemas and none of those?
 * "These and those" is a conjunction (di_gram_conj_t): a sorted list of
 * literals, each a schema or a constant, plain or negated.
 *
 *   schema_expand.c  turns a conjunction, for one JSON type, into forms: each
 *                    form says what one kind of value of that type must hold,
 *                    without and/or/not, and any form will do.  Below the
 *                    value (items, properties) it names conjunctions again.
 *   schema_build.c   turns forms into rules, one rule for a conjunction, and
 *                    so meets recursion: there are finitely many conjunctions.
 *                    Arrays and objects: schema_array.c, schema_object.c.
 *   schema_lang.c    sets of texts: numbers, strings, formats.
 *   schema.c         where schemas are, and what a reference refers to.
 */

#ifndef DI_GRAM_SCHEMA_H
#define DI_GRAM_SCHEMA_H

#include "blob.h"
#include "build.h"

typedef enum {
    DI_GRAM_T_NULL,
    DI_GRAM_T_FALSE,
    DI_GRAM_T_TRUE,
    DI_GRAM_T_NUMBER,
    DI_GRAM_T_STRING,
    DI_GRAM_T_ARRAY,
    DI_GRAM_T_OBJECT,
    DI_GRAM_TYPES,
} di_gram_type_t;

typedef struct {
    const json_t *v;
    bool          constant;     /* equal to v; else: satisfies the schema v  */
    bool          negated;
} di_gram_lit_t;

typedef struct {
    const di_gram_lit_t *v;     /* [n] sorted, different; none: any value    */
    uint32_t n;
} di_gram_conj_t;

/* A set of property names. */
typedef struct di_gram_keys_s  di_gram_keys_t;

struct di_gram_keys_s {
    enum {
        DI_GRAM_K_ALL,
        DI_GRAM_K_NAME,
        DI_GRAM_K_LANG,
        DI_GRAM_K_NONE_OF,      /* in no set of a list                       */
    } kind;
    const char           *name;
    size_t                len;
    const di_gram_dfa_t  *lang;
    const di_gram_keys_t *list;         /* K_NONE_OF: its first              */
    const di_gram_keys_t *next;         /* in a list                         */
};

/* A schema being applied, seen from what it applies: what a schema evaluated
 * counts for those around it. */
typedef struct di_gram_scope_s {
    const struct di_gram_scope_s *up;
    const json_t                 *schema;
} di_gram_scope_t;

/* Each property whose name is in keys satisfies conj. */
typedef struct di_gram_prop_s {
    const struct di_gram_prop_s *next;
    const di_gram_keys_t  *keys;
    di_gram_conj_t         conj;
    const di_gram_scope_t *scope;       /* NULL: it evaluates nothing        */
} di_gram_prop_t;

/* There is a property like that. */
typedef struct di_gram_some_s {
    const struct di_gram_some_s *next;
    const di_gram_keys_t *keys;
    di_gram_conj_t        conj;
} di_gram_some_t;

/* Items from index `from` to below `to` satisfy conj. */
typedef struct di_gram_items_s {
    const struct di_gram_items_s *next;
    uint32_t               from, to;    /* DI_GRAM_NONE: no end              */
    di_gram_conj_t         conj;
    const di_gram_scope_t *scope;       /* NULL: it evaluates nothing        */
} di_gram_items_t;

/* min to max of the items from index `from` on satisfy conj. */
typedef struct di_gram_contains_s {
    const struct di_gram_contains_s *next;
    uint32_t               from, min, max;
    di_gram_conj_t         conj;
    const json_t          *schema;      /* NULL: of a negation               */
    const di_gram_scope_t *scope;
} di_gram_contains_t;

typedef struct {
    di_gram_type_t              type;
    const di_gram_dfa_t        *lang;   /* number: its text; string: its
                                           characters; NULL: any             */
    uint32_t                    min, max;       /* items or properties       */
    const di_gram_prop_t       *props;  /* newest first, as all lists        */
    const di_gram_some_t       *some;
    const di_gram_items_t      *items;
    const di_gram_contains_t   *contains;
    bool                        unique;
    const char                 *unique_path;
} di_gram_form_t;

typedef struct di_gram_forms_s {
    struct di_gram_forms_s *next;
    di_gram_form_t          f;
} di_gram_forms_t;

typedef struct di_gram_where_s  di_gram_where_t;

/* What was found out before: a rule by its conjunction, texts by what a
 * keyword says of them, or a rule by its texts. */
struct di_gram_memo_s {
    struct di_gram_memo_s *next;        /* in its bucket                     */
    struct di_gram_memo_s *todo;        /* rule that is to be built          */
    di_gram_conj_t         conj;
    uint32_t               rule;
    di_gram_forms_t       *forms;       /* that the conjunction allows       */
    const char            *key;         /* the keyword's letter and value    */
    const di_gram_dfa_t   *lang;
    di_gram_type_t         type;        /* of a rule by its texts            */
};

typedef struct {
    di_gram_ctx_t   *c;
    json_t          *made;      /* array of schemas made here; the
                                   context's                                 */
    di_gram_where_t **where;    /* [DI_GRAM_BUCKETS] schemas by address      */
    di_gram_where_t *ids;       /* schemas with $id, newest first            */
    di_gram_where_t *anchors;   /* with $anchor or $dynamicAnchor            */
    bool             draft7;
    di_gram_memo_t **memo;      /* [DI_GRAM_BUCKETS] rules by conjunction    */
    di_gram_memo_t  *todo;      /* whose rules are to be built               */
    unsigned         depth;     /* of nested questions of emptiness          */
} di_gram_schema_t;

#define DI_GRAM_BUCKETS  1024u

static inline di_gram_memo_t **
di_gram_bucket(di_gram_memo_t **buckets, const void *words, size_t n)
{
    return &buckets[di_gram_hash(DI_GRAM_HASH_SEED, words, n)
                    % DI_GRAM_BUCKETS];
}

/* schema.c */
const char *di_gram_path(di_gram_schema_t *x, const json_t *schema,
                         const char *keyword);
const json_t *di_gram_ref_target(di_gram_schema_t *x, const json_t *schema,
                                 const char *keyword, const char *ref);
_Noreturn void di_gram_refuse(di_gram_schema_t *x, const json_t *schema,
                              const char *keyword, const char *text);
/* A schema that satisfies one of the given ones; lives as long as x. */
const json_t *di_gram_any_of(di_gram_schema_t *x, const json_t **schemas,
                             uint32_t n);

/* schema_expand.c */
di_gram_conj_t di_gram_conj_add(di_gram_ctx_t *c, di_gram_conj_t conj,
                                di_gram_lit_t lit);
di_gram_conj_t di_gram_conj_join(di_gram_ctx_t *c, di_gram_conj_t a,
                                 di_gram_conj_t b);
di_gram_forms_t *di_gram_expand(di_gram_schema_t *x, di_gram_conj_t conj,
                                di_gram_type_t type);
bool di_gram_keys_have(di_gram_ctx_t *c, const di_gram_keys_t *keys,
                       const char *name, size_t len);
/* No value satisfies it; a cheap test, false means that there may be some. */
bool di_gram_is_empty(di_gram_schema_t *x, di_gram_conj_t conj);

/* schema_build.c */
uint32_t di_gram_conj_rule(di_gram_schema_t *x, di_gram_conj_t conj);
/* The characters of its strings; NULL: it has none. */
const di_gram_dfa_t *di_gram_conj_texts(di_gram_schema_t *x,
                                        di_gram_conj_t conj);
void di_gram_build_all(di_gram_schema_t *x);

/* schema_unique.c: add to a list, unless they are there, all values that can
 * satisfy it; it may be more of them.  false: they are not known, or the list
 * would have over max. */
bool di_gram_finite(di_gram_schema_t *x, di_gram_conj_t conj, json_t *list,
                    uint32_t max);

/* schema_lang.c */
typedef enum { DI_GRAM_LT, DI_GRAM_EQ, DI_GRAM_GT } di_gram_cmp_t;
/* Numbers by their relation to v; `or_equal` adds v itself. */
const di_gram_dfa_t *di_gram_lang_number(di_gram_ctx_t *c, const json_t *v,
                                         di_gram_cmp_t cmp, bool or_equal,
                                         const char *keyword,
                                         const char *path);
const di_gram_dfa_t *di_gram_lang_integer(di_gram_ctx_t *c, bool negated);
const di_gram_dfa_t *di_gram_lang_multiple(di_gram_ctx_t *c, const json_t *v,
                                           const char *path);
const di_gram_dfa_t *di_gram_lang_decimal(di_gram_ctx_t *c);    /* without
                                           an exponent                       */
const di_gram_dfa_t *di_gram_lang_any_number(di_gram_ctx_t *c);
const di_gram_dfa_t *di_gram_lang_length(di_gram_ctx_t *c, uint32_t min,
                                         uint32_t max);
/* NULL: the format is none of those that are held. */
const di_gram_dfa_t *di_gram_lang_format(di_gram_ctx_t *c, const char *name);

#endif
