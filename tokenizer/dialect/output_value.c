/*
 * output_value.c - the schema of one value inside of another schema, as a part
 * of a grammar.
 *
 * By itself, where it refers to nothing; else as a reference into the whole
 * schema, which goes along under an id, so that its own references lead where
 * they did.
 */

#include "output.h"

#include <stdio.h>
#include <string.h>

#define NESTING_MAX  32          /* of references that a type is behind     */

/* --------------------------------------------------------------- kinds -- */

static unsigned kinds_of(const di_json_t *whole, const di_json_t *v,
                         unsigned depth);

static unsigned
kind_of_type(const di_json_t *v)
{
    return v->type == DI_JSON_STRING && di_json_is(&v->v.str, "string")
           ? DI_EBNF_STRING : DI_EBNF_OTHER;
}

static unsigned
kind_of_value(const di_json_t *v)
{
    return v->type == DI_JSON_STRING ? DI_EBNF_STRING : DI_EBNF_OTHER;
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
of_schemas(const di_json_t *whole, const di_json_t *list, bool all,
           unsigned depth)
{
    const di_json_t *m;
    unsigned         kinds = all ? DI_EBNF_ANY : 0, k;

    for (m = list->v.list.first; m != NULL; m = m->next) {
        k = kinds_of(whole, m, depth);
        kinds = all ? kinds & k : kinds | k;
    }

    return kinds;
}

/* What "#/a/b" refers to in the whole schema, NULL: something else. */
static const di_json_t *
referred(const di_json_t *whole, di_str_t ref)
{
    const di_json_t *v = whole, *m;
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
kinds_of(const di_json_t *whole, const di_json_t *v, unsigned depth)
{
    const di_json_t *m, *to;
    unsigned         kinds = v->type == DI_JSON_FALSE ? 0 : DI_EBNF_ANY;

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
            kinds &= of_schemas(whole, m, true, depth - 1);
        else if ((di_json_is(&m->key, "anyOf")
                  || di_json_is(&m->key, "oneOf")) && list)
            kinds &= of_schemas(whole, m, false, depth - 1);
        else if (di_json_is(&m->key, "$ref") && m->type == DI_JSON_STRING) {
            to = referred(whole, m->v.str);
            kinds &= to == NULL ? DI_EBNF_ANY : kinds_of(whole, to, depth - 1);
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
add_whole(di_sbuf_t *b, const di_json_t *schema, di_str_t *id)
{
    const di_json_t *own = di_json_get(schema, "$id");
    di_json_t        whole = *schema;
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

unsigned
di_ebnf_kinds(const di_json_t *whole, const di_json_t *v)
{
    return kinds_of(whole, v, NESTING_MAX);
}

void
di_ebnf_step(di_sbuf_t *b, di_str_t name)
{
    di_sbuf_lit(b, "/");
    add_step(b, name);
}

/* Says it anything about a value? */
static bool
is_comment(const di_json_t *m)
{
    static const char *const words[] = {
        "title", "description", "default", "examples", "deprecated",
        "readOnly", "writeOnly", "$comment", NULL,
    };
    const char *const *p;

    for (p = words; *p != NULL; p++) {
        if (di_json_is(&m->key, *p))
            return true;
    }

    return false;
}

bool
di_ebnf_value_text(const di_json_t *v, di_sbuf_t *b)
{
    const di_json_t *m;
    size_t           n = 0;

    if (has_reference(v))
        return false;

    if (v->type != DI_JSON_OBJECT) {
        di_json_add_tree(b, v, DI_JSON_COMPACT);
        return true;
    }

    for (m = v->v.list.first; m != NULL; m = m->next) {
        if (is_comment(m))
            continue;
        di_sbuf_add(b, n++ == 0 ? "{" : ",", 1);
        di_json_add_plain(b, m->key);
        di_sbuf_lit(b, ":");
        di_json_add_tree(b, m, DI_JSON_COMPACT);
    }

    di_sbuf_add(b, "{}", n == 0 ? 2 : 0);
    di_sbuf_add(b, "}", n == 0 ? 0 : 1);
    return true;
}

/* {"definitions":{"_":WHOLE},"allOf":[{"$ref":"ID#PATH"}]}, in the draft of
 * the whole; the first brace is there. */
static void
add_reference(di_ebnf_t *w, di_sbuf_t *b, const di_json_t *whole,
              const char *path)
{
    const di_json_t *draft = di_json_get(whole, "$schema");
    di_sbuf_t        ref = { 0 };
    di_str_t         id;

    if (draft != NULL) {
        di_sbuf_lit(b, "\"$schema\":");
        di_json_add_tree(b, draft, DI_JSON_COMPACT);
        di_sbuf_lit(b, ",");
    }
    di_sbuf_lit(b, "\"definitions\":{\"_\":");
    add_whole(b, whole, &id);
    di_sbuf_lit(b, "},\"allOf\":[{\"$ref\":");

    di_sbuf_add(&ref, id.data, id.len);
    di_sbuf_lit(&ref, "#");
    di_sbuf_add(&ref, path, strlen(path));
    if (ref.failed)
        di_ebnf_no_memory(w);
    else
        di_json_add_plain(b, (di_str_t) { ref.data, ref.len });
    di_sbuf_free(&ref);
    di_sbuf_lit(b, "}]}");
}

void
di_ebnf_value(di_ebnf_t *w, const char *terminal, const di_ebnf_value_t *v,
              bool no_string)
{
    di_ebnf_from_t from = v->from;
    di_sbuf_t     *b;

    from.path = v->text == NULL ? "" : v->path;
    from.root = v->text == NULL ? "#/definitions/_" : "#/allOf/0";
    b = di_ebnf_begin(w, terminal, &from);
    if (b == NULL)
        return;

    di_sbuf_lit(b, "{");
    if (no_string)
        di_sbuf_lit(b, "\"type\":[\"null\",\"boolean\",\"number\",\"array\","
                    "\"object\"],");

    if (v->text == NULL) {
        add_reference(w, b, v->whole, v->path);
    } else {
        di_sbuf_lit(b, "\"allOf\":[");
        di_sbuf_add(b, v->text->data, v->text->len);
        di_sbuf_lit(b, "]}");
    }
}
