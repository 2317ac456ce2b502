/*
 * schema_strict.c - the schema of a strict tool or response, rewritten.
 *
 * The official codec reads such a schema into a small model of its own and
 * writes that back: known keywords in a fixed order, every property required,
 * nothing beyond the properties.  What the model doesn't know is dropped, as
 * it is there, since that text is what prompt and constraint are made of.
 */

#include "shape.h"

#include <string.h>

typedef struct {
    di_rq_t    *rq;
    const char *prefix;          /* of errors in reading                    */
    const char *top;             /* the sentence about the top level        */
    bool        response;        /* a response's schema, not a tool's       */
    bool        lossy;           /* a keyword was dropped that says what a
                                  * value may be                            */
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

static bool
has_key(const di_json_t *object, di_str_t key)
{
    const di_json_t *m = object->v.list.first;

    while (m != NULL && (m->key.len != key.len
                         || memcmp(m->key.data, key.data, key.len) != 0))
        m = m->next;

    return m != NULL;
}

/* Was a keyword dropped that says what a value may be? */
static bool
is_lossy(const di_json_t *from, const di_json_t *to)
{
    static const char *const words[] = { "title", "$schema", "$comment",
                                         "examples", "default", "description",
                                         NULL };
    const di_json_t         *m;
    const char *const       *w;

    for (m = from->v.list.first; m != NULL; m = m->next) {
        for (w = words; *w != NULL && !di_json_is(&m->key, *w); w++) {
            /* void */
        }
        if (*w == NULL && m->type != DI_JSON_NULL && !has_key(to, m->key))
            return true;
    }

    return false;
}

/* ---------------------------------------------------------------- reading */

static int read_schema(strict_t *s, const di_json_t *v);

static int
unreadable(strict_t *s, const char *why)
{
    return di_rq_fail(s->rq, s->rq->path, "%s%s", s->prefix, why);
}

/* The shape of a keyword's value, with the reader's prefix before what is
 * wrong with it. */
static int
read_with(strict_t *s, const di_json_t *v, const char *name,
          const di_shape_t *shape, bool named)
{
    static const char  prefix[] = "invalid request body: ";
    const di_json_t   *k = strcmp(name, "type") == 0 ? di_json_get(v, name)
                                                     : di_rq_get(v, name);
    bool               official = s->rq->official;
    char               why[sizeof(s->rq->e->message)];
    int                rc;

    if (k == NULL)
        return DI_OK;

    s->rq->official = true;          /* its words are the reader's          */
    rc = di_shape_check(s->rq, shape, k);
    s->rq->official = official;

    if (rc != DI_EINVAL)
        return rc;

    (void) snprintf(why, sizeof(why), "%s%s%s%s", named ? "field `" : "",
                    named ? name : "", named ? "`: " : "",
                    s->rq->e->message + sizeof(prefix) - 1);
    return unreadable(s, why);
}

static int
read_shape(strict_t *s, const di_json_t *v, const char *name,
           const di_shape_t *shape)
{
    return read_with(s, v, name, shape, false);
}

/* The same where the reader names the field. */
static int
read_named(strict_t *s, const di_json_t *v, const char *name,
           const di_shape_t *shape)
{
    return read_with(s, v, name, shape, true);
}

/* Every schema of a list or map. */
static int
read_all(strict_t *s, const di_json_t *v)
{
    const di_json_t *m;
    int              rc = DI_OK;

    for (m = v == NULL ? NULL : v->v.list.first; m != NULL && rc == DI_OK;
         m = m->next)
        rc = read_schema(s, m);

    return rc;
}

static const di_member_t formats[] = {
    { .name = "email" }, { .name = "hostname" }, { .name = "ipv4" },
    { .name = "ipv6" }, { .name = "uuid" }, { .name = NULL },
};
static const di_shape_t format = { .kind = DI_SHAPE_ENUM, .members = formats };
static const di_shape_t i64 = { .kind = DI_SHAPE_I64 };
static const di_shape_t f64 = { .kind = DI_SHAPE_F32, .name = "a JSON number" };

/* What the schema of a type may have. */
static const struct {
    const char       *type;      /* NULL: every one                         */
    const char       *name;
    const di_shape_t *shape;     /* NULL: a schema                          */
    bool              schemas;   /* of a map: each is one                   */
} readers[] = {
    { NULL, "description", &di_shape_text, false },
    { "object", "properties", &di_shape_map, true },
    { "object", "additionalProperties", &di_shape_bool, false },
    { "object", "required", &di_shape_texts, false },
    { "array", "items", NULL, false },
    { "string", "pattern", &di_shape_text, false },
    { "string", "format", &format, false },
    { "string", "enum", &di_shape_texts, false },
#define NUMBER(type, shape)                                                  \
    { type, "const", shape, false }, { type, "default", shape, false },      \
    { type, "minimum", shape, false }, { type, "maximum", shape, false },    \
    { type, "exclusiveMinimum", shape, false },                              \
    { type, "exclusiveMaximum", shape, false },                              \
    { type, "multipleOf", shape, false }
    NUMBER("number", &f64),
    NUMBER("integer", &i64),
#undef NUMBER
};

#define N_READERS  (sizeof(readers) / sizeof(readers[0]))

static int
read_member(strict_t *s, const di_json_t *v, size_t reader)
{
    const char      *name = readers[reader].name;
    const di_json_t *k = di_rq_get(v, name);
    int              rc;

    if (k == NULL)
        return DI_OK;

    if (readers[reader].shape == NULL)
        return read_schema(s, k);

    rc = read_shape(s, v, name, readers[reader].shape);
    return rc == DI_OK && readers[reader].schemas ? read_all(s, k) : rc;
}

/* Members in the order that they have. */
static int
read_members(strict_t *s, const di_json_t *v, const di_json_t *type)
{
    const di_json_t *m;
    size_t           i;
    int              rc = DI_OK;

    for (m = v->v.list.first; m != NULL; m = m->next) {
        for (i = 0; i < N_READERS && rc == DI_OK; i++) {
            if (di_json_is(&m->key, readers[i].name)
                && (readers[i].type == NULL
                    || di_rq_is(type, readers[i].type)))
                rc = read_member(s, v, i);
        }
    }

    return rc;
}

/* A list of types: plain ones. */
static int
read_types(strict_t *s, const di_json_t *v)
{
    static const di_member_t types[] = {
        { .name = "string" }, { .name = "number" }, { .name = "integer" },
        { .name = "boolean" }, { .name = "null" }, { .name = NULL },
    };
    static const di_shape_t shape = { .kind = DI_SHAPE_ENUM,
                                      .members = types };
    static const di_shape_t list = { .kind = DI_SHAPE_LIST, .of = &shape };

    int                     rc = read_named(s, v, "type", &list);

    return rc == DI_OK ? read_named(s, v, "description", &di_shape_text) : rc;
}

static int
read_typed(strict_t *s, const di_json_t *v, const di_json_t *type)
{
    static const di_member_t types[] = {
        { .name = "object" }, { .name = "string" }, { .name = "number" },
        { .name = "integer" }, { .name = "boolean" }, { .name = "array" },
        { .name = "null" }, { .name = NULL },
    };
    static const di_shape_t shape = { .kind = DI_SHAPE_ENUM,
                                      .members = types };
    static const di_shape_t identifier = { .kind = DI_SHAPE_TEXT,
                                           .name = "variant identifier" };
    int                     rc;

    if (type->type == DI_JSON_ARRAY)
        return read_types(s, v);

    if (type->type != DI_JSON_STRING)
        return read_shape(s, v, "type", &identifier);

    rc = read_shape(s, v, "type", &shape);
    if (rc == DI_OK)
        rc = read_members(s, v, type);

    return rc == DI_OK && di_rq_is(type, "array")
           && di_rq_get(v, "items") == NULL
           ? unreadable(s, "missing field `items`") : rc;
}

/* All of it must be readable before anything of it is judged. */
static int
read_schema(strict_t *s, const di_json_t *v)
{
    const di_json_t *type = v->type == DI_JSON_OBJECT ? di_json_get(v, "type")
                                                      : NULL;
    const di_json_t *any_of = di_rq_get(v, "anyOf");

    if (type != NULL)
        return read_typed(s, v, type);

    if (any_of != NULL && any_of->type != DI_JSON_ARRAY)
        return read_named(s, v, "anyOf", &di_shape_texts);

    if (any_of != NULL)
        return read_all(s, any_of);

    return di_rq_get(v, "$ref") != NULL
           ? read_named(s, v, "$ref", &di_shape_text)
           : unreadable(s, "one of `type`, `anyOf`, `$ref` field is"
                        " required");
}

/* ---------------------------------------------------------------- objects */

/* A list that is given must name every property, and nothing else. */
static int
check_required(strict_t *s, const di_json_t *v, const di_json_t *properties)
{
    const di_json_t *required = di_rq_get(v, "required"), *m;
    size_t           n = properties == NULL ? 0 : properties->v.list.n, at;
    di_names_t       names = { 0 };
    bool             known;

    if (required == NULL)
        return DI_OK;

    for (m = required->v.list.first; m != NULL; m = m->next) {
        if (n == 0 || !has_key(properties, m->v.str))
            return di_rq_fail(s->rq, s->rq->path, "Required property '%.*s'"
                              " not found in object", (int) m->v.str.len,
                              m->v.str.data);

        if (di_names_put(s->rq, &names, m->v.str, 0, &at, &known) != DI_OK)
            return DI_ENOMEM;
        if (known)
            return di_rq_fail(s->rq, s->rq->path, "Duplicate required property"
                              " '%.*s'", (int) m->v.str.len, m->v.str.data);
    }

    return names.n == n ? DI_OK
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

    if ((properties == NULL || properties->v.list.n == 0)
        && (!top || s->response))
        return di_rq_fail(s->rq, s->rq->path, "An object with no properties is"
                          " not allowed.");

    rc = rewrite_properties(s, properties, written, required);
    if (rc == DI_OK)
        rc = check_required(s, v, properties);
    if (rc == DI_OK && more != NULL && more->type == DI_JSON_TRUE)
        rc = di_rq_fail(s->rq, s->rq->path, "additionalProperties should not"
                        " be true");
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
rewrite_items(strict_t *s, const di_json_t *v, di_json_t *to)
{
    di_json_t *written;
    int        rc = rewrite(s, di_rq_get(v, "items"), false, &written);

    if (rc == DI_OK)
        rc = append_named(s, to, "items", written);

    return rc == DI_OK ? keep(s, v, "description", to) : rc;
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
    static const char *const strings[] = { "description", "pattern", "format",
                                           "enum", NULL };
    int rc = keep(s, v, "type", to);

    if (rc != DI_OK)
        return rc;

    if (di_rq_is(type, "object"))
        return rewrite_object(s, v, top, to);

    if (di_rq_is(type, "array"))
        return rewrite_items(s, v, to);

    if (di_rq_is(type, "string"))
        return keep_all(s, v, strings, to);

    if (di_rq_is(type, "number") || di_rq_is(type, "integer"))
        return keep_all(s, v, numbers, to);

    return keep(s, v, "description", to);
}

static int
rewrite_any(strict_t *s, const di_json_t *v, bool top, di_json_t *to)
{
    const di_json_t *type = di_rq_get(v, "type");
    const di_json_t *any_of = di_rq_get(v, "anyOf");
    int              rc;

    if (type != NULL)
        return rewrite_typed(s, v, type, top, to);

    if (any_of == NULL)
        return keep(s, v, "$ref", to);

    rc = rewrite_any_of(s, any_of, to);
    return rc == DI_OK ? keep(s, v, "description", to) : rc;
}

static int
rewrite(strict_t *s, const di_json_t *v, bool top, di_json_t **out)
{
    di_json_t *to = new_value(s, DI_JSON_OBJECT);
    int        rc;

    if (to == NULL)
        return di_rq_no_memory(s->rq);

    *out = to;

    rc = rewrite_any(s, v, top, to);
    if (rc == DI_OK && top && !di_rq_is(di_rq_get(v, "type"), "object"))
        rc = di_rq_fail(s->rq, s->rq->path, "%s", s->top);

    s->lossy |= rc == DI_OK && is_lossy(v, to);
    return rc;
}

int
di_schema_strict(di_rq_t *rq, const di_json_t *schema, bool response,
                 di_json_t **out, bool *lossy)
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
        response, false,
    };

    const di_json_t *v = schema == NULL ? &none : schema;
    int              rc = read_schema(&s, v);

    if (rc == DI_OK)
        rc = rewrite(&s, v, true, out);
    if (lossy != NULL)
        *lossy = s.lossy;

    return rc;
}
