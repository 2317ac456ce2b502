/*
 * output.c - what a grammar of a whole answer has besides EBNF.
 *
 * Special tokens, a user's grammars, and free text.  A part is compiled as a
 * grammar of its own kind and called; free text is an expression, so that it
 * and what follows it become one automaton.
 */

#include <string.h>

#include "build.h"

typedef struct {
    di_gram_ctx_t *c;
    const char    *s, *end;
    const char    *path;
    size_t         used;
} output_t;

_Noreturn static void
malformed(const output_t *o, const char *text)
{
    di_gram_fail(o->c, DI_EFORMAT, "output", o->path, "%s", text);
}

/* It stands here: step behind it. */
static bool
word(output_t *o, const char *w)
{
    size_t len = strlen(w);

    if ((size_t) (o->end - o->s) - o->used < len
        || memcmp(o->s + o->used, w, len) != 0)
        return false;
    o->used += len;
    return true;
}

static json_t *
value(output_t *o)
{
    size_t  n;
    json_t *v = di_gram_json(o->c, o->s + o->used,
                             (size_t) (o->end - o->s) - o->used, &n);

    o->used += n;
    return v;
}

static json_t *
string(output_t *o)
{
    json_t *v = value(o);

    if (!json_is_string(v))
        malformed(o, "a JSON string must follow");
    return v;
}

static di_gram_node_t *
special(output_t *o)
{
    const char *p = o->s + o->used;
    uint32_t    id = 0;

    if (p == o->end || *p < '0' || *p > '9')
        malformed(o, "a special token needs its id");
    for (; p < o->end && *p >= '0' && *p <= '9'; p++) {
        id = id * 10 + (uint32_t) (*p - '0');
        if (id >= DI_GRAM_ID_MAX)
            malformed(o, "a special token's id is too high");
    }
    o->used = (size_t) (p - o->s);
    if (!word(o, "]>"))
        malformed(o, "a special token doesn't end in ]>");
    id += DI_GRAM_SPECIAL;
    return di_gram_node_set(o->c, di_gram_set(o->c, id, id));
}

static di_gram_node_t *
any_text(di_gram_ctx_t *c)
{
    return di_gram_node_rep(c, di_gram_node_set(c, di_gram_set_any()), 0,
                            DI_GRAM_NONE);
}

/* Any text but those that have the string in them. */
static di_gram_node_t *
until(output_t *o)
{
    di_gram_ctx_t  *c = o->c;
    di_gram_node_t *node = di_gram_node(c, DI_GRAM_N_DFA);
    di_gram_node_t *has = di_gram_node(c, DI_GRAM_N_CAT);
    const json_t   *v = string(o);

    if (json_string_length(v) == 0)
        malformed(o, "what ends a text must not be empty");
    di_gram_node_add(has, any_text(c));
    di_gram_node_add(has, di_gram_node_text(c, json_string_value(v),
                                            json_string_length(v)));
    di_gram_node_add(has, any_text(c));
    node->dfa = di_gram_dfa_op(c, DI_GRAM_ANDNOT, di_gram_dfa_any(c),
                               di_gram_node_dfa(c, has));
    return node;
}

/* The next part is at hand; it has no root yet.  A "~" before it: it may go
 * without what can't be held. */
static void
begin_part(output_t *o)
{
    di_gram_ctx_t *c = o->c;

    c->part_roots = di_gram_grow(c, c->part_roots, c->n_parts, &c->parts_cap,
                                 sizeof(*c->part_roots));
    c->part_roots[c->n_parts] = DI_GRAM_NONE;
    c->part = (int) c->n_parts++;
    c->lenient = word(o, "~");
}

static void
end_part(di_gram_ctx_t *c)
{
    c->part = -1;
    c->lenient = false;
}

/* A user's grammar: errors are its own from here on. */
static di_gram_node_t *
part(output_t *o, di_gram_kind_t kind)
{
    di_gram_ctx_t  *c = o->c;
    di_gram_node_t *node = di_gram_node(c, DI_GRAM_N_CALL);
    json_t         *v;

    begin_part(o);
    if (kind == DI_GRAM_SCHEMA || kind == DI_GRAM_CHOICE) {
        v = value(o);
        node->rule = di_gram_compile_json(c, kind, v);
    } else {
        v = string(o);
        node->rule = di_gram_compile_text(c, kind, json_string_value(v),
                                          json_string_length(v));
    }
    c->part_roots[c->part] = node->rule;
    end_part(c);
    return node;
}

/* Raw texts that are strings of a schema.  They are in the automaton of what
 * they stand in: a text has no end of its own that a call could wait for. */
static di_gram_node_t *
raw_text(output_t *o)
{
    di_gram_ctx_t  *c = o->c;
    di_gram_node_t *node = di_gram_node(c, DI_GRAM_N_DFA);

    begin_part(o);
    node->dfa = di_gram_schema_texts(c, value(o));
    end_part(c);
    return node;
}

di_gram_node_t *
di_gram_output(di_gram_ctx_t *c, const char *s, size_t len, const char *path,
               size_t *used, bool *free)
{
    output_t        o = { .c = c, .s = s, .end = s + len, .path = path };
    di_gram_node_t *node;

    *free = false;
    if (word(&o, "<[")) {
        node = special(&o);
    } else if (word(&o, "%json")) {
        node = part(&o, DI_GRAM_SCHEMA);
    } else if (word(&o, "%text")) {
        node = raw_text(&o);
    } else if (word(&o, "%regex")) {
        node = part(&o, DI_GRAM_REGEX);
    } else if (word(&o, "%choice")) {
        node = part(&o, DI_GRAM_CHOICE);
    } else if (word(&o, "%ebnf")) {
        node = part(&o, DI_GRAM_EBNF);
    } else if (word(&o, "%free")) {
        node = any_text(c);
        *free = true;
    } else if (word(&o, "%until")) {
        node = until(&o);
        *free = true;
    } else {
        malformed(&o, "an unknown terminal");
    }
    *used = o.used;
    return node;
}
