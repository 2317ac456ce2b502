/*
 * schema_build.c - from forms to rules.
 *
 * A conjunction is one rule: the alternatives that its forms allow, in one
 * automaton, so that objects which begin alike are read as one until they
 * differ.  Items and property values are calls of rules.  What every schema
 * has, any string and any number, is one rule for all.  Arrays and objects
 * are in files of their own (schema_array.c, schema_object.c).
 */

#include "schema_build.h"

#define POSITIONS_MAX  200000u
#define EMBED_MAX      100u     /* states of an automaton that is copied in  */
#define SCALAR_MAX     16u      /* the same of texts, beside other types     */

/* -------------------------------------------------------------- shared -- */

uint32_t
di_gram_put_dfa(di_gram_build_t *b, uint32_t from, const di_gram_dfa_t *d)
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

uint32_t
di_gram_any_string(di_gram_ctx_t *c)
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

uint32_t
di_gram_put_white(di_gram_build_t *b, uint32_t from)
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

uint32_t
di_gram_put_text(di_gram_build_t *b, uint32_t from, const char *s)
{
    return di_gram_nfa_text(b->c, b->nfa, from, s);
}

uint32_t
di_gram_reach(di_gram_build_t *b, uint32_t *table, uint32_t position)
{
    if (table[position] == 0)
        table[position] = di_gram_nfa_state(b->c, b->nfa);
    return table[position];
}

void
di_gram_positions(di_gram_build_t *b, uint64_t n, const char *keyword)
{
    if (n > POSITIONS_MAX)
        di_gram_fail(b->c, DI_ELIMIT, keyword, "",
                     "needs over %u states", POSITIONS_MAX);
    b->between = di_gram_alloc(b->c, n, sizeof(uint32_t));
    b->next = di_gram_alloc(b->c, n, sizeof(uint32_t));
}

bool
di_gram_never(di_gram_conj_t conj)
{
    for (uint32_t i = 0; i < conj.n; i++) {
        if (!conj.v[i].constant
            && (conj.v[i].negated ? json_is_true(conj.v[i].v)
                                  : json_is_false(conj.v[i].v)))
            return true;
    }
    return false;
}

uint32_t
di_gram_count_cap(const di_gram_form_t *f, uint32_t at_least)
{
    uint32_t cap = f->max != DI_GRAM_NONE ? f->max : f->min;

    return cap > at_least ? cap : at_least;
}

void
di_gram_member_follows(di_gram_build_t *b, uint32_t position, uint32_t count)
{
    uint32_t from = b->between[position];

    if (b->f->max != DI_GRAM_NONE && count >= b->f->max)
        return;
    if (count > 0)
        from = di_gram_put_white(b, di_gram_put_text(b, from, ","));
    di_gram_nfa_eps(b->c, b->nfa, from, di_gram_reach(b, b->next, position));
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
add_scalars(di_gram_build_t *b, const di_gram_forms_t *f, di_gram_type_t type)
{
    bool                 string = type == DI_GRAM_T_STRING, any;
    const di_gram_dfa_t *all = scalar_texts(b->c, f, type, &any);

    if (any)
        di_gram_nfa_call(b->c, b->nfa, 0, string ? di_gram_any_string(b->c)
                                                 : any_number(b->c), b->end);
    else if (all != NULL && all->n > SCALAR_MAX)
        di_gram_nfa_call(b->c, b->nfa, 0, scalar_rule(b->x, all, type),
                         b->end);
    else if (all != NULL)
        di_gram_nfa_eps(b->c, b->nfa, di_gram_put_dfa(b, 0,
            string ? di_gram_dfa_string(b->c, all) : all), b->end);
}

static void
add_word(di_gram_build_t *b, const di_gram_forms_t *f, di_gram_type_t type,
         const char *word)
{
    for (; f != NULL; f = f->next) {
        if (f->f.type == type) {
            di_gram_nfa_eps(b->c, b->nfa, di_gram_put_text(b, 0, word), b->end);
            return;
        }
    }
}

static const di_gram_dfa_t *
build_rule(di_gram_schema_t *x, const di_gram_forms_t *f)
{
    di_gram_build_t b = { .x = x, .c = x->c, .end = 1 };

    b.nfa = di_gram_nfa_new(x->c);
    add_word(&b, f, DI_GRAM_T_NULL, "null");
    add_word(&b, f, DI_GRAM_T_FALSE, "false");
    add_word(&b, f, DI_GRAM_T_TRUE, "true");
    add_scalars(&b, f, DI_GRAM_T_NUMBER);
    add_scalars(&b, f, DI_GRAM_T_STRING);
    for (; f != NULL; f = f->next) {
        b.f = &f->f;
        if (f->f.type == DI_GRAM_T_ARRAY)
            di_gram_build_array(&b);
        else if (f->f.type == DI_GRAM_T_OBJECT)
            di_gram_build_object(&b);
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
    return type == DI_GRAM_T_STRING ? di_gram_any_string(x->c)
                                    : any_number(x->c);
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
