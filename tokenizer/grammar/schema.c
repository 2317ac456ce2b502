/*
 * schema.c - where the schemas of a document are, and what refers to them.
 *
 * Before anything else the document is walked along the keywords that hold
 * schemas, and each schema's place, base URI and anchors are noted by its
 * address.  A reference that no schema here answers to is refused: nothing
 * is fetched.  $dynamicRef is an ordinary reference where only one schema
 * bears the name, which is where both must mean the same, and is refused
 * elsewhere.
 */

#include <stdlib.h>
#include <string.h>

#include "blob.h"
#include "schema.h"

struct di_gram_where_s {
    di_gram_where_t *next;          /* in its bucket                         */
    di_gram_where_t *next_id;       /* in x->ids                             */
    di_gram_where_t *next_anchor;   /* in x->anchors                         */
    const json_t    *schema;
    const char      *path;          /* JSON pointer                          */
    const char      *base;          /* absolute URI, or ""                   */
    const json_t    *root;          /* the schema that has that $id          */
    const char      *anchor;
    bool             dynamic;       /* by $dynamicAnchor                     */
};

#define PATH_MAX_BYTES  4096u

static di_gram_where_t **
bucket(di_gram_schema_t *x, const json_t *schema)
{
    uintptr_t p = (uintptr_t) schema;

    return &x->where[di_gram_hash(DI_GRAM_HASH_SEED, &p, sizeof(p) / 4)
                     % DI_GRAM_BUCKETS];
}

static di_gram_where_t *
find(di_gram_schema_t *x, const json_t *schema)
{
    di_gram_where_t *w;

    for (w = *bucket(x, schema); w != NULL; w = w->next) {
        if (w->schema == schema)
            return w;
    }
    return NULL;
}

const char *
di_gram_path(di_gram_schema_t *x, const json_t *schema, const char *keyword)
{
    const di_gram_where_t *w = find(x, schema);
    size_t                 len = w != NULL ? strlen(w->path) : 0;
    char                  *s = di_gram_alloc(x->c, len + strlen(keyword) + 3,
                                             1);

    (void) sprintf(s, "#%s%s%s", w != NULL ? w->path : "",
                   keyword[0] != '\0' ? "/" : "", keyword);
    return s;
}

_Noreturn void
di_gram_refuse(di_gram_schema_t *x, const json_t *schema,
               const char *keyword, const char *text)
{
    di_gram_fail(x->c, DI_EUNSUPPORTED, keyword,
                 di_gram_path(x, schema, keyword), "%s", text);
}

/* ---------------------------------------------------------------- URIs -- */

static const char *
copy(di_gram_schema_t *x, const char *s, size_t len)
{
    char *d = di_gram_alloc(x->c, len + 1, 1);

    memcpy(d, s, len);
    return d;
}

static bool
has_scheme(const char *s)
{
    size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                         "0123456789+-.");

    return n > 0 && s[n] == ':' && strchr("0123456789+-.", s[0]) == NULL;
}

/* Where the path of an absolute URI begins. */
static size_t
path_start(const char *uri)
{
    const char *p = strchr(uri, ':');

    p = p == NULL ? uri : p + 1;
    if (p[0] == '/' && p[1] == '/')
        p += 2 + strcspn(p + 2, "/?");
    return (size_t) (p - uri);
}

/* RFC 3986, section 5.2, without fragments and queries; NUL-terminated. */
static const char *
resolve(di_gram_schema_t *x, const char *base, const char *ref, size_t len)
{
    size_t start = path_start(base), n, keep;
    char  *out = di_gram_alloc(x->c, strlen(base) + len + 2, 1), *p, *q;

    if (len == 0)
        return base;
    if (has_scheme(ref) || base[0] == '\0')
        return copy(x, ref, len);
    if (len > 1 && ref[0] == '/' && ref[1] == '/')
        keep = (size_t) (strchr(base, ':') - base) + 1;
    else if (ref[0] == '/')
        keep = start;
    else
        keep = strrchr(base + start, '/') != NULL
               ? (size_t) (strrchr(base + start, '/') - base) + 1 : start;
    memcpy(out, base, keep);
    memcpy(out + keep, ref, len);
    n = keep + len;
    out[n] = '\0';

    while ((p = strstr(out + start, "/./")) != NULL)
        memmove(p, p + 2, strlen(p + 2) + 1);
    while ((p = strstr(out + start, "/../")) != NULL) {
        for (q = p; q > out + start && q[-1] != '/'; q--)
            ;
        q = q > out + start ? q - 1 : out + start;
        memmove(q, p + 3, strlen(p + 3) + 1);
    }
    return out;
}

/* ---------------------------------------------------------------- walk -- */

/* Keywords whose value is a schema, a list, or an object of schemas. */
static const char *const one[] = {
    "additionalProperties", "unevaluatedProperties", "propertyNames",
    "items", "additionalItems", "unevaluatedItems", "contains", "not", "if",
    "then", "else", "contentSchema",
};
static const char *const listed[] = {
    "allOf", "anyOf", "oneOf", "prefixItems", "items",
};
static const char *const named[] = {
    "$defs", "definitions", "properties", "patternProperties",
    "dependentSchemas", "dependencies",
};

#define COUNT(a)  (sizeof(a) / sizeof((a)[0]))

static bool
among(const char *const *list, size_t n, const char *key)
{
    for (size_t i = 0; i < n; i++) {
        if (strcmp(list[i], key) == 0)
            return true;
    }
    return false;
}

/* path + "/" + key, escaped as JSON pointers are. */
static const char *
below(di_gram_schema_t *x, const char *path, const char *key)
{
    size_t len = strlen(path), n = 0;
    char  *s = di_gram_alloc(x->c, len + 2 * strlen(key) + 2, 1);

    memcpy(s, path, len);
    s[len + n++] = '/';
    for (; *key != '\0'; key++) {
        if (*key == '~' || *key == '/') {
            s[len + n++] = '~';
            s[len + n++] = *key == '~' ? '0' : '1';
        } else {
            s[len + n++] = *key;
        }
    }
    if (len + n > PATH_MAX_BYTES)
        di_gram_fail(x->c, DI_ELIMIT, "schema", path, "nests too deeply");
    return s;
}

static void walk(di_gram_schema_t *x, const json_t *s, const char *path,
                 const di_gram_where_t *in, unsigned depth);

static void
walk_list(di_gram_schema_t *x, const json_t *list, const char *path,
          const di_gram_where_t *in, unsigned depth)
{
    const json_t *v;
    size_t        i;
    char          index[24];

    json_array_foreach(list, i, v) {
        (void) snprintf(index, sizeof(index), "%zu", i);
        walk(x, v, below(x, path, index), in, depth);
    }
}

static void
walk_named(di_gram_schema_t *x, const json_t *object, const char *path,
           const di_gram_where_t *in, unsigned depth)
{
    const char *key;
    json_t     *v;

    json_object_foreach((json_t *) object, key, v)
        walk(x, v, below(x, path, key), in, depth);
}

static void
note_names(di_gram_schema_t *x, di_gram_where_t *w)
{
    const char *id = json_string_value(json_object_get(w->schema, "$id"));
    const char *anchor;

    if (id != NULL && id[0] == '#' && x->draft7) {
        w->anchor = id + 1;             /* draft-7's way to say $anchor      */
    } else if (id != NULL) {
        w->base = resolve(x, w->base, id, strcspn(id, "#"));
        w->root = w->schema;
        w->next_id = x->ids;
        x->ids = w;
    }
    anchor = json_string_value(json_object_get(w->schema, "$anchor"));
    if (anchor != NULL)
        w->anchor = anchor;
    anchor = json_string_value(json_object_get(w->schema,
                                               "$dynamicAnchor"));
    if (anchor != NULL) {
        w->anchor = anchor;
        w->dynamic = true;
    }
    if (w->anchor != NULL) {
        w->next_anchor = x->anchors;
        x->anchors = w;
    }
}

static void
walk(di_gram_schema_t *x, const json_t *s, const char *path,
     const di_gram_where_t *in, unsigned depth)
{
    di_gram_where_t **at, *w;
    const char       *key;
    json_t           *v;

    /* true and false are the same object everywhere and name nothing. */
    if (!json_is_object(s))
        return;
    if (depth > DI_GRAM_NEST_MAX)
        di_gram_fail(x->c, DI_ELIMIT, "schema", path, "nests too deeply");
    if (find(x, s) != NULL)
        return;
    di_gram_work(x->c, 4);

    w = di_gram_alloc(x->c, 1, sizeof(*w));
    w->schema = s;
    w->path = path;
    w->base = in != NULL ? in->base : "";
    w->root = in != NULL ? in->root : s;
    at = bucket(x, s);
    w->next = *at;
    *at = w;
    /* In draft-7 a reference is alone. */
    if (!(x->draft7 && json_object_get(s, "$ref") != NULL))
        note_names(x, w);

    json_object_foreach((json_t *) s, key, v) {
        const char *p = NULL;

        if (json_is_object(v) && among(named, COUNT(named), key))
            walk_named(x, v, below(x, path, key), w, depth + 1);
        else if (json_is_array(v) && among(listed, COUNT(listed), key))
            walk_list(x, v, below(x, path, key), w, depth + 1);
        else if (json_is_object(v) && among(one, COUNT(one), key))
            p = below(x, path, key);
        if (p != NULL)
            walk(x, v, p, w, depth + 1);
    }
}

/* ----------------------------------------------------------- references -- */

static const char *
percent_decoded(di_gram_schema_t *x, const char *s)
{
    char    *out = di_gram_alloc(x->c, strlen(s) + 1, 1), *p = out;
    unsigned byte;

    for (; *s != '\0'; s++) {
        if (*s == '%' && sscanf(s + 1, "%2x", &byte) == 1
            && s[1] != '\0' && s[2] != '\0' && byte != 0) {
            *p++ = (char) byte;
            s += 2;
        } else {
            *p++ = *s;
        }
    }
    return out;
}

/* Follow a JSON pointer; *in is the last schema on the way that is known. */
static const json_t *
follow(di_gram_schema_t *x, const json_t *v, const char *pointer,
       const di_gram_where_t **in)
{
    char  *key = di_gram_alloc(x->c, strlen(pointer) + 1, 1), *k;
    char  *end;
    size_t i;

    while (v != NULL && *pointer == '/') {
        pointer++;
        for (k = key; *pointer != '\0' && *pointer != '/'; pointer++) {
            if (*pointer == '~' && (pointer[1] == '0' || pointer[1] == '1'))
                *k++ = *++pointer == '0' ? '~' : '/';
            else
                *k++ = *pointer;
        }
        *k = '\0';
        if (json_is_array(v)) {
            i = strtoul(key, &end, 10);
            v = *end == '\0' && k > key ? json_array_get(v, i) : NULL;
        } else {
            v = json_object_get(v, key);
        }
        if (v != NULL && find(x, v) != NULL)
            *in = find(x, v);
    }
    return *pointer == '\0' ? v : NULL;
}

static const di_gram_where_t *
resource(di_gram_schema_t *x, const char *uri)
{
    di_gram_where_t *w;

    for (w = x->ids; w != NULL; w = w->next_id) {
        if (strcmp(w->base, uri) == 0)
            return w;
    }
    return NULL;
}

static const di_gram_where_t *
anchored(di_gram_schema_t *x, const json_t *root, const char *name)
{
    di_gram_where_t *w;

    for (w = x->anchors; w != NULL; w = w->next_anchor) {
        if (w->root == root && strcmp(w->anchor, name) == 0)
            return w;
    }
    return NULL;
}

/* The schema that a dynamic reference to `target` must mean in any scope. */
static const json_t *
dynamic_target(di_gram_schema_t *x, const json_t *schema,
               const di_gram_where_t *target, const char *keyword)
{
    di_gram_where_t *w;

    if (target == NULL || !target->dynamic)
        return target != NULL ? target->schema : NULL;
    for (w = x->anchors; w != NULL; w = w->next_anchor) {
        if (w != target && w->dynamic
            && strcmp(w->anchor, target->anchor) == 0)
            di_gram_refuse(x, schema, keyword,
                           "means different schemas in different scopes");
    }
    return target->schema;
}

const json_t *
di_gram_ref_target(di_gram_schema_t *x, const json_t *schema,
                   const char *keyword, const char *ref)
{
    const di_gram_where_t *from = find(x, schema), *in;
    const char            *hash = strchr(ref, '#'), *uri, *fragment;
    const json_t          *v = NULL;
    size_t                 len = hash != NULL ? (size_t) (hash - ref)
                                              : strlen(ref);

    if (from == NULL)
        di_gram_refuse(x, schema, keyword, "has no place in the document");
    uri = resolve(x, from->base, ref, len);
    if (len == 0 || strcmp(uri, from->base) == 0)
        in = find(x, from->root);
    else
        in = resource(x, uri);
    if (in == NULL)
        di_gram_refuse(x, schema, keyword,
                       "refers to another document; none is fetched");

    fragment = hash != NULL ? percent_decoded(x, hash + 1) : "";
    if (fragment[0] == '\0') {
        v = in->schema;
    } else if (fragment[0] == '/') {
        v = follow(x, in->schema, fragment, &in);
        if (v != NULL)
            walk(x, v, below(x, in->path, "..."), in, 0);
    } else {
        in = anchored(x, in->schema, fragment);
        v = strcmp(keyword, "$dynamicRef") == 0
            ? dynamic_target(x, schema, in, keyword)
            : in != NULL ? in->schema : NULL;
    }
    if (v == NULL)
        di_gram_fail(x->c, DI_EFORMAT, keyword,
                     di_gram_path(x, schema, keyword),
                     "refers to nothing in this document");
    return v;
}

const json_t *
di_gram_any_of(di_gram_schema_t *x, const json_t **schemas, uint32_t n)
{
    json_t *list = json_array(), *s = json_pack("{s:o}", "anyOf", list);

    /* The array keeps it until the compilation ends. */
    if (s == NULL || json_array_append_new(x->made, s) != 0)
        di_gram_fail(x->c, DI_ENOMEM, "schema", "", "no memory");
    for (uint32_t i = 0; i < n; i++) {
        if (json_array_append(list, (json_t *) schemas[i]) != 0)
            di_gram_fail(x->c, DI_ENOMEM, "schema", "", "no memory");
    }
    return s;
}

static void
read_draft(di_gram_schema_t *x, const json_t *schema)
{
    static const char *const known[] = {
        "://json-schema.org/draft/2020-12/schema",
        "://json-schema.org/draft/2019-09/schema",
        "://json-schema.org/draft-07/schema",
        "://json-schema.org/draft-06/schema",
    };
    const char *s = json_string_value(json_object_get(schema, "$schema"));
    const char *p;

    if (s == NULL)
        return;
    p = strstr(s, "://");
    for (size_t i = 0; p != NULL && i < COUNT(known); i++) {
        size_t len = strlen(known[i]);

        if (strncmp(p, known[i], len) == 0
            && (p[len] == '\0' || strcmp(p + len, "#") == 0)) {
            x->draft7 = i >= 2;
            return;
        }
    }
    di_gram_refuse(x, schema, "$schema", "is not a known draft");
}

/* A schema, or what an earlier attempt left of it. */
static json_t *
changed(const di_gram_ctx_t *c, json_t *v)
{
    json_t *now = json_array_get(c->changed, c->part < 0
                                             ? 0 : (size_t) c->part);

    return now == NULL || json_is_null(now) ? v : now;
}

/* Begin with a schema; what it says. */
static di_gram_conj_t
begin(di_gram_schema_t *x, di_gram_ctx_t *c, json_t *schema)
{
    di_gram_lit_t lit;

    schema = changed(c, schema);
    lit = (di_gram_lit_t) { .v = schema };
    c->doc = schema;
    *x = (di_gram_schema_t) { .c = c };
    x->made = di_gram_keep(c, json_array());
    x->where = di_gram_alloc(c, DI_GRAM_BUCKETS, sizeof(*x->where));
    x->memo = di_gram_alloc(c, DI_GRAM_BUCKETS, sizeof(*x->memo));
    if (c->texts == NULL) {
        c->texts = di_gram_alloc(c, DI_GRAM_BUCKETS, sizeof(*c->texts));
        c->scalars = di_gram_alloc(c, DI_GRAM_BUCKETS, sizeof(*c->scalars));
        c->any_string = c->any_number = DI_GRAM_NONE;
    }

    if (!json_is_object(schema) && !json_is_boolean(schema))
        di_gram_fail(c, DI_EFORMAT, "schema", "#",
                     "must be an object, true or false");
    read_draft(x, schema);
    walk(x, schema, "", NULL, 0);
    return di_gram_conj_add(c, (di_gram_conj_t) { NULL, 0 }, lit);
}

uint32_t
di_gram_schema(di_gram_ctx_t *c, json_t *schema)
{
    di_gram_schema_t x;
    di_gram_conj_t   conj = begin(&x, c, schema);
    uint32_t         root = di_gram_conj_rule(&x, conj);

    di_gram_build_all(&x);
    return root;
}

const di_gram_dfa_t *
di_gram_schema_texts(di_gram_ctx_t *c, json_t *schema)
{
    di_gram_schema_t     x;
    di_gram_conj_t       conj = begin(&x, c, schema);
    const di_gram_dfa_t *texts = di_gram_conj_texts(&x, conj);

    if (texts == NULL || texts->n == 0)
        di_gram_fail(c, DI_EINVAL, "schema", "#", "allows no string");
    return texts;
}
