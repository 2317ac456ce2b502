/*
 * schema_strict.c - the schema of a strict tool or response, rewritten.
 *
 * The official codec reads such a schema into a small model of its own and
 * writes that back: known keywords in a fixed order, every property required,
 * nothing beyond the properties.  What the model doesn't know is dropped, as
 * it is there, since that text is what prompt and constraint are made of.
 */

#include "req.h"

#include <string.h>

typedef struct {
    di_rq_t    *rq;
    const char *prefix;          /* of errors in reading                    */
    const char *top;             /* the sentence about the top level        */
    bool        response;        /* a response's schema, not a tool's       */
} strict_t;

static int rewrite(strict_t *s, const di_json_t *v, bool top,
                   di_json_t **out);

static di_json_t *
new_value(strict_t *s, di_json_type_t type)
{
    di_json_t *v = di_arena_calloc(&s->rq->req->arena, 1, sizeof(*v));

    if (v != NULL)
        v->type = (uint8_t) type;
    return v;
}

/* Append v, renamed, behind *last; v is the container's own. */
static void
append(di_json_t *list, di_json_t **last, di_json_t *v, di_str_t key)
{
    if (*last == NULL)
        list->v.list.first = v;
    else
        (*last)->next = v;

    v->key = key;
    *last = v;
    list->v.list.n++;
}

/* The same for one of the few keywords of a schema. */
static int
append_named(strict_t *s, di_json_t *list, const char *name, di_json_t *v)
{
    di_json_t *last = list->v.list.first;

    if (v == NULL)
        return di_rq_no_memory(s->rq);

    while (last != NULL && last->next != NULL)
        last = last->next;

    append(list, &last, v, (di_str_t) { name, strlen(name) });
    return DI_OK;
}

/* A copy of one keyword, if it is there. */
static int
keep(strict_t *s, const di_json_t *from, const char *name, di_json_t *to)
{
    const di_json_t *v = di_rq_get(from, name);
    di_json_t       *copy;

    if (v == NULL)
        return DI_OK;

    copy = new_value(s, v->type);
    if (copy == NULL)
        return di_rq_no_memory(s->rq);

    *copy = *v;
    copy->next = NULL;
    return append_named(s, to, name, copy);
}

static int
keep_all(strict_t *s, const di_json_t *from, const char *const *names,
         di_json_t *to)
{
    int rc = DI_OK;

    for (; *names != NULL && rc == DI_OK; names++)
        rc = keep(s, from, *names, to);

    return rc;
}

static int
unreadable(strict_t *s, const char *why)
{
    return di_rq_fail(s->rq, s->rq->path, "%s%s", s->prefix, why);
}

/* ---------------------------------------------------------------- objects */

/* A list that is given must name every property, and nothing else. */
static int
check_required(strict_t *s, const di_json_t *v, const di_json_t *properties)
{
    const di_json_t *required = di_rq_get(v, "required"), *m;
    size_t           n = properties == NULL ? 0 : properties->v.list.n, at;
    di_names_t       names = { 0 };
    bool             known, same;

    if (required == NULL)
        return DI_OK;

    if (required->type != DI_JSON_ARRAY)
        return unreadable(s, "invalid type of required");

    for (m = required->v.list.first; m != NULL; m = m->next) {
        if (m->type != DI_JSON_STRING)
            return unreadable(s, "invalid type of required");
        if (di_names_put(s->rq, &names, m->v.str, 0, &at, &known) != DI_OK)
            return DI_ENOMEM;
    }

    same = names.n == n;
    for (m = n == 0 ? NULL : properties->v.list.first; m != NULL && same;
         m = m->next)
        same = di_names_get(&names, m->key, &at);

    return same ? DI_OK
           : di_rq_fail(s->rq, s->rq->path, "Required properties must match"
                        " all properties in the object");
}

static int
rewrite_properties(strict_t *s, const di_json_t *properties, di_json_t *to,
                   di_json_t *required)
{
    const di_json_t *m;
    di_json_t       *v, *name, *last = NULL, *last_name = NULL;
    int              rc;

    for (m = properties == NULL ? NULL : properties->v.list.first; m != NULL;
         m = m->next)
    {
        rc = rewrite(s, m, false, &v);
        if (rc != DI_OK)
            return rc;
        append(to, &last, v, m->key);

        name = new_value(s, DI_JSON_STRING);
        if (name == NULL)
            return di_rq_no_memory(s->rq);
        name->v.str = m->key;
        append(required, &last_name, name, (di_str_t) { NULL, 0 });
    }

    return DI_OK;
}

static int
rewrite_object(strict_t *s, const di_json_t *v, bool top, di_json_t *to)
{
    const di_json_t *properties = di_rq_get(v, "properties");
    const di_json_t *more = di_rq_get(v, "additionalProperties");
    di_json_t       *written = new_value(s, DI_JSON_OBJECT);
    di_json_t       *required = new_value(s, DI_JSON_ARRAY);
    int              rc;

    if (written == NULL || required == NULL)
        return di_rq_no_memory(s->rq);

    if (properties != NULL && properties->type != DI_JSON_OBJECT)
        return unreadable(s, "invalid type of properties");

    if (more != NULL && more->type != DI_JSON_FALSE)
        return di_rq_fail(s->rq, s->rq->path, "additionalProperties should not"
                          " be true");

    if ((properties == NULL || properties->v.list.n == 0)
        && (!top || s->response))
        return di_rq_fail(s->rq, s->rq->path, "An object with no properties is"
                          " not allowed.");

    rc = check_required(s, v, properties);
    if (rc == DI_OK)
        rc = rewrite_properties(s, properties, written, required);
    if (rc == DI_OK)
        rc = append_named(s, to, "properties", written);
    if (rc == DI_OK)
        rc = append_named(s, to, "additionalProperties",
                          new_value(s, DI_JSON_FALSE));
    if (rc == DI_OK)
        rc = append_named(s, to, "required", required);

    return rc == DI_OK ? keep(s, v, "description", to) : rc;
}

/* ------------------------------------------------------------ other kinds */

static int
rewrite_string(strict_t *s, const di_json_t *v, di_json_t *to)
{
    static const char *const names[] = { "description", "pattern", "format",
                                         "enum", NULL };
    static const char *const formats[] = { "email", "hostname", "ipv4",
                                           "ipv6", "uuid" };
    const di_json_t *format = di_rq_get(v, "format");
    size_t           i;
    bool             known = format == NULL;

    for (i = 0; i < sizeof(formats) / sizeof(formats[0]); i++)
        known |= di_rq_is(format, formats[i]);

    if (known)
        return keep_all(s, v, names, to);

    if (format->type != DI_JSON_STRING)
        return unreadable(s, "invalid type of format");

    return di_rq_fail(s->rq, s->rq->path, "%sunknown variant `%.*s`, expected"
                      " one of `email`, `hostname`, `ipv4`, `ipv6`, `uuid`",
                      s->prefix, (int) format->v.str.len, format->v.str.data);
}

static int
rewrite_items(strict_t *s, const di_json_t *v, di_json_t *to)
{
    const di_json_t *items = di_rq_get(v, "items");
    di_json_t       *written;
    int              rc;

    if (items == NULL)
        return unreadable(s, "missing field `items`");

    rc = keep(s, v, "description", to);
    if (rc == DI_OK)
        rc = rewrite(s, items, false, &written);

    return rc == DI_OK ? append_named(s, to, "items", written) : rc;
}

static int
rewrite_any_of(strict_t *s, const di_json_t *any_of, di_json_t *to)
{
    di_json_t       *list = new_value(s, DI_JSON_ARRAY), *written;
    di_json_t       *last = NULL;
    const di_json_t *m;
    int              rc;

    if (list == NULL)
        return di_rq_no_memory(s->rq);

    if (any_of->type != DI_JSON_ARRAY)
        return unreadable(s, "invalid type of anyOf");

    for (m = any_of->v.list.first; m != NULL; m = m->next) {
        rc = rewrite(s, m, false, &written);
        if (rc != DI_OK)
            return rc;
        append(list, &last, written, (di_str_t) { NULL, 0 });
    }

    return append_named(s, to, "anyOf", list);
}

static int
rewrite_typed(strict_t *s, const di_json_t *v, const di_json_t *type, bool top,
              di_json_t *to)
{
    static const char *const numbers[] = {
        "description", "const", "default", "minimum", "maximum",
        "exclusiveMinimum", "exclusiveMaximum", "multipleOf", NULL,
    };
    int rc = keep(s, v, "type", to);

    if (rc != DI_OK)
        return rc;

    if (di_rq_is(type, "object"))
        return rewrite_object(s, v, top, to);

    if (di_rq_is(type, "array"))
        return rewrite_items(s, v, to);

    if (di_rq_is(type, "string"))
        return rewrite_string(s, v, to);

    if (di_rq_is(type, "number") || di_rq_is(type, "integer"))
        return keep_all(s, v, numbers, to);

    if (di_rq_is(type, "boolean") || di_rq_is(type, "null"))
        return keep(s, v, "description", to);

    if (type->type != DI_JSON_STRING)
        return unreadable(s, "invalid type of type");

    return di_rq_fail(s->rq, s->rq->path, "%sunknown variant `%.*s`",
                      s->prefix, (int) type->v.str.len, type->v.str.data);
}

static int
rewrite(strict_t *s, const di_json_t *v, bool top, di_json_t **out)
{
    const di_json_t *type = di_rq_get(v, "type");
    const di_json_t *any_of = di_rq_get(v, "anyOf");
    const di_json_t *ref = di_rq_get(v, "$ref");
    di_json_t       *to = new_value(s, DI_JSON_OBJECT);
    int              rc;

    if (to == NULL)
        return di_rq_no_memory(s->rq);

    *out = to;

    if (type == NULL && any_of == NULL && ref == NULL)
        return unreadable(s, "one of `type`, `anyOf`, `$ref` field is"
                          " required");

    if (top && !di_rq_is(type, "object"))
        return di_rq_fail(s->rq, s->rq->path, "%s", s->top);

    if (type != NULL)
        return rewrite_typed(s, v, type, top, to);

    if (any_of == NULL)
        return keep(s, v, "$ref", to);

    rc = rewrite_any_of(s, any_of, to);
    return rc == DI_OK ? keep(s, v, "description", to) : rc;
}

int
di_schema_strict(di_rq_t *rq, const di_json_t *schema, bool response,
                 di_json_t **out)
{
    di_json_t type = { .type = DI_JSON_STRING, .key = { "type", 4 },
                       .v.str = { "object", 6 } };
    di_json_t none = { .type = DI_JSON_OBJECT, .v.list = { &type, 1 } };
    strict_t  s = {
        rq, response ? "Invalid json schema: "
                     : "Invalid tool parameters schema : ",
        response ? "The top level of the json schema must be an object."
                 : "The top level of the function parameters schema must be an"
                   " object.",
        response,
    };

    return rewrite(&s, schema == NULL ? &none : schema, true, out);
}
