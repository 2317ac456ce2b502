/*
 * output_dsml.c - calls in DeepSeek's markup, as a grammar.
 *
 *     <DSML calls>
 *     <DSML invoke name="NAME">
 *     <DSML parameter name="KEY" string="true">VALUE</DSML parameter>
 *     </DSML invoke>
 *     </DSML calls>
 *
 * The arguments' object is no JSON here, so its own keywords are held by the
 * rules of this file: `properties`, `required` and `additionalProperties`,
 * which are what schemas of arguments are made of.  Other keywords of that
 * object that would forbid something are refused by name.  Each property's
 * own schema is held by the grammar engine, whatever it says: a string as raw
 * text (%text), everything else as JSON.  A reference inside of it leads into
 * the whole schema, so that then goes along.
 *
 * Parameters come in the schema's order, others behind them.  In any order
 * there is a rule for each set of those that came, for up to ANY_ORDER_MAX.
 */

#include "output.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ANY_ORDER_MAX  6
#define NESTING_MAX    32        /* of references that a type is behind     */

enum {
    K_STRING = 1, K_OTHER = 2, K_ANY = K_STRING | K_OTHER,
};

/* A parameter that has a name. */
typedef struct {
    di_str_t         name;
    const di_json_t *schema;
    bool             additional; /* the schema is that of all others        */
    bool             required;
} parameter_t;

typedef struct {
    di_ebnf_t       *w;
    const di_dsml_t *d;
    size_t           tool;       /* its number                              */
    di_ebnf_from_t   from;
    const di_json_t *schema;     /* of the arguments                        */
    const di_json_t *more;       /* of other parameters                     */
    bool             closed;     /* there are no others                     */
    parameter_t     *list;       /* [n]                                     */
    size_t           n;
    bool             required;   /* some parameter is                       */
} arguments_t;

static const di_json_t anything = { .type = DI_JSON_TRUE };

/* --------------------------------------------------------------- kinds -- */

static unsigned kinds_of(const arguments_t *a, const di_json_t *v,
                         unsigned depth);

static unsigned
kind_of_type(const di_json_t *v)
{
    return v->type == DI_JSON_STRING && di_json_is(&v->v.str, "string")
           ? K_STRING : K_OTHER;
}

static unsigned
kind_of_value(const di_json_t *v)
{
    return v->type == DI_JSON_STRING ? K_STRING : K_OTHER;
}

/* What one of a list allows. */
static unsigned
any_of(const di_json_t *list, unsigned (*kind)(const di_json_t *))
{
    const di_json_t *m;
    unsigned         kinds = 0;

    for (m = list->v.list.first; m != NULL; m = m->next)
        kinds |= kind(m);

    return kinds;
}

static unsigned
of_schemas(const arguments_t *a, const di_json_t *list, bool all,
           unsigned depth)
{
    const di_json_t *m;
    unsigned         kinds = all ? K_ANY : 0, k;

    for (m = list->v.list.first; m != NULL; m = m->next) {
        k = kinds_of(a, m, depth);
        kinds = all ? kinds & k : kinds | k;
    }

    return kinds;
}

/* What "#/a/b" refers to in the whole schema, NULL: something else. */
static const di_json_t *
referred(const arguments_t *a, di_str_t ref)
{
    const di_json_t *v = a->schema, *m;
    size_t           at = 1, end;

    if (ref.len == 0 || ref.data[0] != '#'
        || memchr(ref.data, '~', ref.len) != NULL
        || memchr(ref.data, '%', ref.len) != NULL)
        return NULL;

    for (; at < ref.len && v != NULL; at = end) {
        if (ref.data[at++] != '/' || v->type != DI_JSON_OBJECT)
            return NULL;
        for (end = at; end < ref.len && ref.data[end] != '/'; end++) {
            /* void */
        }
        for (m = v->v.list.first; m != NULL; m = m->next) {
            if (m->key.len == end - at
                && memcmp(m->key.data, ref.data + at, end - at) == 0)
                break;
        }
        v = m;
    }

    return v;
}

/* Can a value be a string, can it be something else?  Too many rather than
 * too few, but for a kind that a schema shuts out in a usual way it is exact:
 * a branch of the grammar that nothing satisfies would be an error. */
static unsigned
kinds_of(const arguments_t *a, const di_json_t *v, unsigned depth)
{
    const di_json_t *m, *to;
    unsigned         kinds = v->type == DI_JSON_FALSE ? 0 : K_ANY;

    if (v->type != DI_JSON_OBJECT || depth == 0)
        return kinds;

    for (m = v->v.list.first; m != NULL; m = m->next) {
        bool list = m->type == DI_JSON_ARRAY;

        if (di_json_is(&m->key, "type"))
            kinds &= list ? any_of(m, kind_of_type) : kind_of_type(m);
        else if (di_json_is(&m->key, "enum") && list)
            kinds &= any_of(m, kind_of_value);
        else if (di_json_is(&m->key, "const"))
            kinds &= kind_of_value(m);
        else if (di_json_is(&m->key, "allOf") && list)
            kinds &= of_schemas(a, m, true, depth - 1);
        else if ((di_json_is(&m->key, "anyOf")
                  || di_json_is(&m->key, "oneOf")) && list)
            kinds &= of_schemas(a, m, false, depth - 1);
        else if (di_json_is(&m->key, "$ref") && m->type == DI_JSON_STRING) {
            to = referred(a, m->v.str);
            kinds &= to == NULL ? K_ANY : kinds_of(a, to, depth - 1);
        }
    }

    return kinds;
}

/* ---------------------------------------------------------------- schemas */

static bool
has_reference(const di_json_t *v)
{
    const di_json_t *m;

    if (v->type != DI_JSON_OBJECT && v->type != DI_JSON_ARRAY)
        return false;

    for (m = v->v.list.first; m != NULL; m = m->next) {
        if ((v->type == DI_JSON_OBJECT && (di_json_is(&m->key, "$ref")
             || di_json_is(&m->key, "$dynamicRef"))) || has_reference(m))
            return true;
    }

    return false;
}

/* A pointer's step: "~" and "/" escaped, and what a reference can't hold. */
static void
add_step(di_sbuf_t *b, di_str_t name)
{
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
        "-._$@!&'()*+,;=:";
    char   code[8];
    size_t i;

    for (i = 0; i < name.len; i++) {
        if (name.data[i] == '~') {
            di_sbuf_lit(b, "~0");
        } else if (name.data[i] == '/') {
            di_sbuf_lit(b, "~1");
        } else if (name.data[i] != '\0'
                   && strchr(plain, name.data[i]) != NULL) {
            di_sbuf_add(b, name.data + i, 1);
        } else {
            (void) snprintf(code, sizeof(code), "%%%02X",
                            (unsigned) (unsigned char) name.data[i]);
            di_sbuf_add(b, code, 3);
        }
    }
}

#define NAMED(n)  .key = { n, sizeof(n) - 1 }

/* The whole schema, with an id of its own that references can name. */
static void
put_whole(arguments_t *a, di_sbuf_t *b, di_str_t *id)
{
    const di_json_t *own = di_json_get(a->schema, "$id");
    di_json_t        whole = *a->schema;
    di_json_t        named = { NAMED("$id"), .type = DI_JSON_STRING,
                               .v.str = { "urn:arguments", 13 } };

    if (own == NULL) {
        named.next = whole.v.list.first;
        whole.v.list.first = &named;
        whole.v.list.n++;
    }

    *id = own == NULL ? named.v.str : own->v.str;
    di_json_add_tree(b, &whole, DI_JSON_COMPACT);
}

/* What else than a string. */
static const char no_strings[] =
    "\"type\":[\"null\",\"boolean\",\"number\",\"array\",\"object\"],";

/* The part of a value at `path` of the whole schema: by itself, or, where it
 * refers to others, as a reference into the whole. */
static void
put_value(arguments_t *a, const char *terminal, const di_json_t *v,
          const char *path, bool no_string)
{
    const di_json_t *draft = di_json_get(a->schema, "$schema");
    bool             refers = has_reference(v);
    di_ebnf_from_t   from = a->from;
    di_sbuf_t        ref = { 0 }, *b;
    di_str_t         id;

    from.path = refers ? "" : path;
    from.root = refers ? "#/definitions/_" : "#/allOf/0";
    b = di_ebnf_begin(a->w, terminal, &from);
    if (b == NULL)
        return;

    di_sbuf_lit(b, "{");
    if (no_string)
        di_sbuf_add(b, no_strings, sizeof(no_strings) - 1);

    if (!refers) {
        di_sbuf_lit(b, "\"allOf\":[");
        di_json_add_tree(b, v, DI_JSON_COMPACT);
        di_sbuf_lit(b, "]}");
        di_ebnf_end(a->w);
        return;
    }

    if (draft != NULL) {
        di_sbuf_lit(b, "\"$schema\":");
        di_json_add_tree(b, draft, DI_JSON_COMPACT);
        di_sbuf_lit(b, ",");
    }
    di_sbuf_lit(b, "\"definitions\":{\"_\":");
    put_whole(a, b, &id);
    di_sbuf_lit(b, "},\"allOf\":[{\"$ref\":");

    di_sbuf_add(&ref, id.data, id.len);
    di_sbuf_lit(&ref, "#");
    di_sbuf_add(&ref, path, strlen(path));
    if (ref.failed)
        di_ebnf_no_memory(a->w);
    else
        di_json_add_plain(b, (di_str_t) { ref.data, ref.len });
    di_sbuf_free(&ref);

    di_sbuf_lit(b, "}]}");
    di_ebnf_end(a->w);
}

/* ----------------------------------------------------------------- values */

/* BEFORE, the marker, NAME and BEHIND: a tag, or the beginning of one. */
static void
put_tag(di_ebnf_t *w, const di_dsml_t *d, const char *before,
        const char *name, const char *behind)
{
    char text[64];

    di_ebnf_text(w, before, strlen(before));
    di_ebnf_put(w, " ");
    di_ebnf_mark(w, d->id, d->mark);
    di_ebnf_put(w, " ");
    (void) snprintf(text, sizeof(text), "%s%s", name, behind);
    di_ebnf_text(w, text, strlen(text));
    di_ebnf_put(w, " ");
}

/* Rule NAME: all behind a parameter's name. */
static void
put_value_rule(arguments_t *a, const char *name, const di_json_t *v,
               const char *path)
{
    di_ebnf_t *w = a->w;
    unsigned   kinds = kinds_of(a, v, NESTING_MAX);

    di_ebnf_print(w, "%s ::= \"\\\" string=\\\"\" (", name);
    if (kinds & K_STRING) {
        di_ebnf_put(w, "\"true\\\">\" ");
        put_value(a, "%text", v, path, false);
    }
    if (kinds == K_ANY)
        di_ebnf_put(w, " | ");
    if (kinds & K_OTHER) {
        di_ebnf_put(w, "\"false\\\">\" ");
        put_value(a, "%json", v, path, kinds == K_ANY);
    }
    di_ebnf_put(w, ") ");
    put_tag(w, a->d, "</", a->d->parameter, ">");
    di_ebnf_put(w, "\n");
}

static void
put_values(arguments_t *a)
{
    const parameter_t *p;
    di_sbuf_t          path = { 0 };
    char               name[48];

    for (p = a->list; p < a->list + a->n; p++) {
        path.len = 0;
        if (p->additional) {
            di_sbuf_lit(&path, "/additionalProperties");
        } else {
            di_sbuf_lit(&path, "/properties/");
            add_step(&path, p->name);
        }
        di_sbuf_add(&path, "", 1);
        if (path.failed) {
            di_ebnf_no_memory(a->w);
            break;
        }

        (void) snprintf(name, sizeof(name), "v%zu-%zu", a->tool,
                        (size_t) (p - a->list));
        put_value_rule(a, name, p->schema, path.data);
    }

    di_sbuf_free(&path);
    if (a->closed)
        return;

    (void) snprintf(name, sizeof(name), "more%zu", a->tool);
    put_value_rule(a, name, a->more, "/additionalProperties");
}

/* ------------------------------------------------------------- parameters */

static void
put_parameter(arguments_t *a, size_t i)
{
    put_tag(a->w, a->d, "\n<", a->d->parameter, " name=\"");
    di_ebnf_text(a->w, a->list[i].name.data, a->list[i].name.len);
    di_ebnf_print(a->w, " v%zu-%zu", a->tool, i);
}

/* Any number of other parameters, whose names are none of those. */
static void
put_others(arguments_t *a)
{
    di_sbuf_t *b;
    size_t     i;

    if (a->closed)
        return;

    di_ebnf_put(a->w, "(");
    put_tag(a->w, a->d, "\n<", a->d->parameter, " name=\"");

    b = di_ebnf_begin(a->w, "%text", &a->from);
    if (b == NULL)
        return;

    di_sbuf_lit(b, "{\"type\":\"string\",\"pattern\":\"^[^\\\"]+$\"");
    for (i = 0; i < a->n; i++) {
        if (i == 0)
            di_sbuf_lit(b, ",\"not\":{\"enum\":[");
        else
            di_sbuf_lit(b, ",");
        di_json_add_plain(b, a->list[i].name);
    }
    if (a->n > 0)
        di_sbuf_lit(b, "]}");
    di_sbuf_lit(b, "}");
    di_ebnf_end(a->w);
    di_ebnf_print(a->w, " more%zu)* ", a->tool);
}

static void
put_in_order(arguments_t *a)
{
    size_t i;

    di_ebnf_print(a->w, "args%zu ::= ", a->tool);
    if (!a->required && strcmp(a->d->no_parameter, "\n") != 0) {
        di_ebnf_text(a->w, a->d->no_parameter, strlen(a->d->no_parameter));
        di_ebnf_put(a->w, " | ");
    }

    for (i = 0; i < a->n; i++) {
        di_ebnf_put(a->w, "(");
        put_parameter(a, i);
        di_ebnf_put(a->w, a->list[i].required ? ") " : ")? ");
    }

    put_others(a);
    di_ebnf_put(a->w, "\"\\n\"\n");
}

/* The same with a rule for each set of the parameters that came. */
static void
put_any_order(arguments_t *a)
{
    size_t all = ((size_t) 1 << a->n) - 1, set, i, n;
    bool   complete;

    di_ebnf_print(a->w, "args%zu ::= s%zu-0", a->tool, a->tool);
    if (!a->required && strcmp(a->d->no_parameter, "\n") != 0) {
        di_ebnf_put(a->w, " | ");
        di_ebnf_text(a->w, a->d->no_parameter, strlen(a->d->no_parameter));
    }
    di_ebnf_print(a->w, "\nothers%zu ::= ", a->tool);
    put_others(a);
    di_ebnf_put(a->w, a->closed ? "\"\"\n" : "\n");

    for (set = 0; set <= all; set++) {
        di_ebnf_print(a->w, "s%zu-%zu ::= others%zu (", a->tool, set,
                      a->tool);
        complete = true;

        for (i = 0, n = 0; i < a->n; i++) {
            if (set >> i & 1)
                continue;
            complete &= !a->list[i].required;
            di_ebnf_put(a->w, n++ > 0 ? " | " : "");
            put_parameter(a, i);
            di_ebnf_print(a->w, " s%zu-%zu", a->tool,
                          set | (size_t) 1 << i);
        }

        if (complete)
            di_ebnf_put(a->w, n > 0 ? " | \"\\n\"" : "\"\\n\"");
        di_ebnf_put(a->w, ")\n");
    }
}

/* -------------------------------------------------------------- arguments */

/* A keyword of the arguments' object that forbids something and has no rule
 * here? */
static bool
is_hard(const di_json_t *m)
{
    static const char *const words[] = {
        "$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf",
        "not", "if", "then", "else", "enum", "const", "patternProperties",
        "propertyNames", "minProperties", "maxProperties",
        "dependentRequired", "dependentSchemas", "dependencies",
        "unevaluatedProperties", NULL,
    };
    const char *const *p;

    for (p = words; *p != NULL; p++) {
        if (di_json_is(&m->key, *p))
            return true;
    }

    return false;
}

static bool
can_be(const arguments_t *a, const di_json_t *schema)
{
    return kinds_of(a, schema, NESTING_MAX) != 0;
}

static parameter_t *
find_parameter(arguments_t *a, di_str_t name)
{
    size_t i;

    for (i = 0; i < a->n; i++) {
        if (a->list[i].name.len == name.len
            && memcmp(a->list[i].name.data, name.data, name.len) == 0)
            return &a->list[i];
    }

    return NULL;
}

/* What can have no value is left out; a name that `required` alone has is a
 * parameter like all others. */
static void
list_parameters(arguments_t *a, const di_json_t *properties,
                const di_json_t *required)
{
    const di_json_t *m;
    parameter_t     *p;
    size_t           n = 1;

    n += properties == NULL ? 0 : properties->v.list.n;
    n += required == NULL ? 0 : required->v.list.n;
    a->list = calloc(n, sizeof(*a->list));
    if (a->list == NULL) {
        di_ebnf_no_memory(a->w);
        return;
    }

    for (m = properties == NULL ? NULL : properties->v.list.first; m != NULL;
         m = m->next)
    {
        if (memchr(m->key.data, '"', m->key.len) != NULL)
            di_ebnf_refuse(a->w, a->from.param, "Invalid '%s': this model's"
                           " spelling of calls has no place for a name with a"
                           " quotation mark.", a->from.param);
        a->list[a->n++] = (parameter_t) { .name = m->key, .schema = m };
    }

    for (m = required == NULL ? NULL : required->v.list.first; m != NULL;
         m = m->next)
    {
        p = find_parameter(a, m->v.str);
        if (p == NULL) {
            p = &a->list[a->n++];
            *p = (parameter_t) { m->v.str, a->more, true, true };
        }
        p->required = a->required = true;
    }
}

/* Of what can have no value nothing comes; `required` must not ask for it. */
static void
drop_impossible(arguments_t *a)
{
    size_t i, n = 0;

    for (i = 0; i < a->n; i++) {
        if (can_be(a, a->list[i].schema)) {
            a->list[n++] = a->list[i];
        } else if (a->list[i].required && !a->from.best_effort) {
            di_ebnf_refuse(a->w, a->from.param, "Invalid '%s': required"
                           " (#/required) names '%.*s', which can have no"
                           " value.", a->from.param,
                           (int) a->list[i].name.len, a->list[i].name.data);
        }
    }

    a->n = n;
}

static void
read_schema(arguments_t *a)
{
    const di_json_t *m, *properties = NULL, *required = NULL;

    a->more = &anything;

    for (m = a->schema->v.list.first; m != NULL; m = m->next) {
        if (di_json_is(&m->key, "properties"))
            properties = m;
        else if (di_json_is(&m->key, "required"))
            required = m;
        else if (di_json_is(&m->key, "additionalProperties"))
            a->more = m;
        else if (is_hard(m) && !a->from.best_effort)
            di_ebnf_refuse(a->w, a->from.param, "Invalid '%s': %.*s (#/%.*s)"
                           " of the arguments themselves can't be held in this"
                           " model's spelling of calls.", a->from.param,
                           (int) m->key.len, m->key.data, (int) m->key.len,
                           m->key.data);
    }

    a->closed = !can_be(a, a->more);
    list_parameters(a, properties, required);
    drop_impossible(a);
}

/* Rules of a tool's arguments: argsN and what it needs. */
static void
put_arguments(di_ebnf_t *w, const di_dsml_t *d, size_t tool)
{
    static const di_json_t empty = { .type = DI_JSON_OBJECT };
    arguments_t            a = { .w = w, .d = d, .tool = tool };
    bool                   any_order = w->constraint->any_order;

    a.schema = di_ebnf_held(w, w->conv->tools[tool], &a.from);
    if (a.schema == NULL)
        a.schema = &empty;

    read_schema(&a);
    if (any_order && a.n > ANY_ORDER_MAX)
        di_ebnf_refuse(w, "grammar_options.any_order", "Invalid"
                       " 'grammar_options.any_order': calls of a tool with"
                       " more than %d parameters ('%s') can't be held in any"
                       " order.", ANY_ORDER_MAX, a.from.param);

    if (w->rc == DI_OK) {
        if (any_order)
            put_any_order(&a);
        else
            put_in_order(&a);
        put_values(&a);
    }

    free(a.list);
}

/* ------------------------------------------------------------------ calls */

void
di_ebnf_dsml(di_ebnf_t *w, const di_dsml_t *d)
{
    size_t i, n = 0;

    /* Where the prompt opened the block, the first call comes next. */
    di_ebnf_put(w, "calls ::= ");
    if (!w->parsing->forced) {
        put_tag(w, d, "\n\n<", d->block, ">\n");
    }
    di_ebnf_put(w, "block\n");

    if (w->conv->choice != DI_CHOICE_REQUIRED
        && w->constraint->kind == DI_CONSTRAINT_NONE) {
        di_ebnf_put(w, "text ::= ");
        di_ebnf_free(w, d->id, d->mark);
        di_ebnf_put(w, " (");
        put_tag(w, d, "<", d->block, ">\n");
        di_ebnf_put(w, "block)?\n");
    }

    di_ebnf_put(w, "block ::= call ");
    if (!w->constraint->one_call)
        di_ebnf_put(w, "(\"\\n\" call)* ");
    put_tag(w, d, "\n</", d->block, ">");

    di_ebnf_put(w, "\ncall ::= ");
    put_tag(w, d, "<", d->invoke, " name=\"");
    di_ebnf_put(w, "(");
    for (i = 0; i < w->conv->n_tools; i++) {
        if (!di_ebnf_callable(w, i))
            continue;
        di_ebnf_put(w, n++ > 0 ? " | " : "");
        di_ebnf_text(w, w->conv->tools[i]->name.data,
                     w->conv->tools[i]->name.len);
        di_ebnf_print(w, " \"\\\">\" args%zu", i);
    }
    di_ebnf_put(w, ") ");
    put_tag(w, d, "</", d->invoke, ">");
    di_ebnf_put(w, "\n");

    for (i = 0; i < w->conv->n_tools && w->rc == DI_OK; i++) {
        if (di_ebnf_callable(w, i))
            put_arguments(w, d, i);
    }
}
