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
 * Many tools have many parameters that say the same beside their description,
 * so equal schemas of values are one rule.
 *
 * Parameters come in the schema's order, others behind them.  In any order
 * there is a rule for each set of those that came, for up to ANY_ORDER_MAX.
 */

#include "output.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ANY_ORDER_MAX  6
/* A parameter that has a name. */
typedef struct {
    di_str_t         name;
    const di_json_t *schema;
    bool             additional; /* the schema is that of all others        */
    bool             required;
    size_t           value;      /* number of its value's rule              */
} parameter_t;

/* Rules of values, by their schemas. */
typedef struct {
    struct value_s {
        char   *text;            /* own; NULL: like no other                */
        size_t  len;
        bool    best_effort;
    }      *list;                /* [n] rules v0, v1 ...                    */
    size_t  n;
    size_t  cap;
} values_t;

typedef struct {
    di_ebnf_t       *w;
    const di_dsml_t *d;
    values_t        *values;
    size_t           tool;       /* its number                              */
    di_ebnf_from_t   from;
    const di_json_t *schema;     /* of the arguments                        */
    const di_json_t *more;       /* of other parameters                     */
    size_t           more_value; /* number of their rule                    */
    bool             closed;     /* there are no others                     */
    parameter_t     *list;       /* [n]                                     */
    size_t           n;
    bool             required;   /* some parameter is                       */
} arguments_t;

static const di_json_t anything = { .type = DI_JSON_TRUE };

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

/* Rule vN: all behind a parameter's name. */
static void
put_value_rule(di_ebnf_t *w, const di_dsml_t *d, size_t n,
               const di_ebnf_value_t *v)
{
    unsigned kinds = di_ebnf_kinds(v->whole, v->schema);

    di_ebnf_print(w, "v%zu ::= \"\\\" string=\\\"\" (", n);
    if (kinds & DI_EBNF_STRING) {
        di_ebnf_put(w, "\"true\\\">\" ");
        di_ebnf_value(w, "%text", v, false);
    }
    if (kinds == DI_EBNF_ANY)
        di_ebnf_put(w, " | ");
    if (kinds & DI_EBNF_OTHER) {
        di_ebnf_put(w, "\"false\\\">\" ");
        di_ebnf_value(w, "%json", v, kinds == DI_EBNF_ANY);
    }
    di_ebnf_put(w, ") ");
    put_tag(w, d, "</", d->parameter, ">");
    di_ebnf_put(w, "\n");
}

/* The number of the rule of values with this schema and no other; SIZE_MAX:
 * there is none. */
static size_t
find_value(const values_t *values, const di_sbuf_t *text, bool best_effort)
{
    size_t i;

    for (i = 0; i < values->n; i++) {
        if (values->list[i].len == text->len
            && values->list[i].best_effort == best_effort
            && memcmp(values->list[i].text, text->data, text->len) == 0)
            return i;
    }

    return SIZE_MAX;
}

/* A new one; takes the text's bytes, NULL: it is never found. */
static size_t
add_value(di_ebnf_t *w, values_t *values, di_sbuf_t *text, bool best_effort)
{
    struct value_s *wider;
    size_t          cap;

    if (values->n == values->cap) {
        cap = values->cap == 0 ? 32 : values->cap * 2;
        wider = realloc(values->list, cap * sizeof(*wider));
        if (wider == NULL) {
            di_ebnf_no_memory(w);
            return 0;
        }
        values->list = wider;
        values->cap = cap;
    }

    values->list[values->n] = (struct value_s) { NULL, 0, best_effort };
    if (text != NULL) {
        values->list[values->n].text = text->data;
        values->list[values->n].len = text->len;
        *text = (di_sbuf_t) { 0 };
    }

    return values->n++;
}

/* The rule of values with this schema; its number. */
static size_t
value_rule(arguments_t *a, const di_json_t *schema, const char *path)
{
    di_sbuf_t       text = { 0 };
    bool            alone = di_ebnf_value_text(schema, &text);
    di_ebnf_value_t v = { a->from, a->schema, schema, path,
                          alone ? &text : NULL };
    size_t          n = SIZE_MAX;

    if (text.failed)
        di_ebnf_no_memory(a->w);
    else if (alone)
        n = find_value(a->values, &text, a->from.best_effort);

    if (n == SIZE_MAX && a->w->rc == DI_OK) {
        put_value_rule(a->w, a->d, a->values->n, &v);
        n = add_value(a->w, a->values, alone ? &text : NULL,
                      a->from.best_effort);
    }

    di_sbuf_free(&text);
    return n;
}

static void
put_values(arguments_t *a)
{
    parameter_t *p;
    di_sbuf_t    path = { 0 };

    for (p = a->list; p < a->list + a->n; p++) {
        path.len = 0;
        if (p->additional) {
            di_sbuf_lit(&path, "/additionalProperties");
        } else {
            di_sbuf_lit(&path, "/properties");
            di_ebnf_step(&path, p->name);
        }
        di_sbuf_add(&path, "", 1);
        if (path.failed) {
            di_ebnf_no_memory(a->w);
            break;
        }
        p->value = value_rule(a, p->schema, path.data);
    }

    di_sbuf_free(&path);
    if (!a->closed)
        a->more_value = value_rule(a, a->more, "/additionalProperties");
}

/* ------------------------------------------------------------- parameters */

static void
put_parameter(arguments_t *a, size_t i)
{
    put_tag(a->w, a->d, "\n<", a->d->parameter, " name=\"");
    di_ebnf_text(a->w, a->list[i].name.data, a->list[i].name.len);
    di_ebnf_print(a->w, " v%zu", a->list[i].value);
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
    di_ebnf_print(a->w, " v%zu)* ", a->more_value);
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
    return di_ebnf_kinds(a->schema, schema) != 0;
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
            *p = (parameter_t) { .name = m->v.str, .schema = a->more,
                                 .additional = true };
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
put_arguments(di_ebnf_t *w, const di_dsml_t *d, values_t *values, size_t tool)
{
    static const di_json_t empty = { .type = DI_JSON_OBJECT };
    arguments_t            a = { .w = w, .d = d, .values = values,
                                 .tool = tool };
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
        put_values(&a);
        if (any_order)
            put_any_order(&a);
        else
            put_in_order(&a);
    }

    free(a.list);
}

/* ------------------------------------------------------------------ calls */

/* The tool whose rule of arguments this one shares: the first of those that
 * are held to be an object and no more, or itself. */
static size_t
arguments_of(const di_ebnf_t *w, size_t tool)
{
    di_ebnf_from_t from;
    size_t         i;

    if (di_ebnf_held(w, w->conv->tools[tool], &from) != NULL)
        return tool;

    for (i = 0; i < tool; i++) {
        if (di_ebnf_callable(w, i)
            && di_ebnf_held(w, w->conv->tools[i], &from) == NULL)
            break;
    }

    return i;
}

static void
put_call(di_ebnf_t *w, const di_dsml_t *d)
{
    const di_tool_t *t;
    size_t           i, n = 0;

    di_ebnf_put(w, "call ::= ");
    put_tag(w, d, "<", d->invoke, " name=\"");
    di_ebnf_put(w, "(");
    for (i = 0; i < w->conv->n_tools; i++) {
        if (!di_ebnf_callable(w, i))
            continue;
        t = w->conv->tools[i];
        di_ebnf_put(w, n++ > 0 ? " | " : "");
        di_ebnf_text(w, t->name.data, t->name.len);
        di_ebnf_print(w, " \"\\\">\" args%zu", arguments_of(w, i));
    }
    di_ebnf_put(w, ") ");
    put_tag(w, d, "</", d->invoke, ">");
    di_ebnf_put(w, "\n");
}

void
di_ebnf_dsml(di_ebnf_t *w, const di_dsml_t *d)
{
    values_t values = { 0 };
    size_t   i;

    /* Where the prompt opened the block, the first call comes next. */
    di_ebnf_put(w, "calls ::= ");
    if (!w->parsing->forced)
        put_tag(w, d, "\n\n<", d->block, ">\n");
    di_ebnf_put(w, "block\n");

    if (w->conv->choice != DI_CHOICE_REQUIRED
        && w->constraint->kind == DI_CONSTRAINT_NONE)
    {
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
    di_ebnf_put(w, "\n");
    put_call(w, d);

    for (i = 0; i < w->conv->n_tools && w->rc == DI_OK; i++) {
        if (di_ebnf_callable(w, i) && arguments_of(w, i) == i)
            put_arguments(w, d, &values, i);
    }

    for (i = 0; i < values.n; i++)
        free(values.list[i].text);
    free(values.list);
}
