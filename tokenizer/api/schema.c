/*
 * schema.c - is a value a JSON Schema?
 *
 * A schema is valid against its meta-schema: here that of draft 2020-12, as a
 * table of what each keyword's value may be, walked by one function.  Older
 * drafts differ in few keywords; their names ($schema) are taken and the same
 * table is used.  The sentences are those of the validator that the official
 * codec has, so that its clients read what they know.
 *
 * A second walk looks at what only a compiler of schemas would: that regular
 * expressions compile, and that references lead somewhere, in all that the
 * schema uses.
 */

#define PCRE2_CODE_UNIT_WIDTH 8

#include "req.h"

#include <pcre2.h>
#include <string.h>

typedef enum {
    SCHEMA, SCHEMAS, SCHEMA_MAP, TYPE, TEXT, FLAG, NUMBER, POSITIVE, COUNT,
    LIST, NAMES, NAMES_MAP, REGEX, REGEX_MAP, REF, ANCHOR, ID, OBJECT,
} keyword_kind_t;

/* The meta-schema's vocabularies, in the order in which it looks at a schema:
 * what lies within one is judged before its own limits. */
typedef enum {
    CORE = 0, APPLICATOR, UNEVALUATED, VALIDATION, METADATA, ANNOTATION,
    N_VOCABULARIES,
} vocabulary_t;

typedef struct {
    const char     *name;
    keyword_kind_t  kind;
    vocabulary_t    vocabulary;
} keyword_t;

static const keyword_t keywords[] = {
    { "$schema", TEXT, CORE },
    { "$defs", SCHEMA_MAP, CORE },
    { "definitions", SCHEMA_MAP, CORE },
    { "$comment", TEXT, CORE },
    { "$id", ID, CORE },
    { "$anchor", ANCHOR, CORE },
    { "$dynamicAnchor", ANCHOR, CORE },
    { "$vocabulary", OBJECT, CORE },
    { "$ref", REF, CORE },
    { "$dynamicRef", REF, CORE },
    { "properties", SCHEMA_MAP, APPLICATOR },
    { "patternProperties", REGEX_MAP, APPLICATOR },
    { "dependentSchemas", SCHEMA_MAP, APPLICATOR },
    { "items", SCHEMA, APPLICATOR },
    { "additionalProperties", SCHEMA, APPLICATOR },
    { "not", SCHEMA, APPLICATOR },
    { "if", SCHEMA, APPLICATOR },
    { "then", SCHEMA, APPLICATOR },
    { "else", SCHEMA, APPLICATOR },
    { "contains", SCHEMA, APPLICATOR },
    { "propertyNames", SCHEMA, APPLICATOR },
    { "allOf", SCHEMAS, APPLICATOR },
    { "anyOf", SCHEMAS, APPLICATOR },
    { "oneOf", SCHEMAS, APPLICATOR },
    { "prefixItems", SCHEMAS, APPLICATOR },
    { "unevaluatedItems", SCHEMA, UNEVALUATED },
    { "unevaluatedProperties", SCHEMA, UNEVALUATED },
    { "type", TYPE, VALIDATION },
    { "dependentRequired", NAMES_MAP, VALIDATION },
    { "required", NAMES, VALIDATION },
    { "enum", LIST, VALIDATION },
    { "uniqueItems", FLAG, VALIDATION },
    { "minimum", NUMBER, VALIDATION },
    { "maximum", NUMBER, VALIDATION },
    { "exclusiveMinimum", NUMBER, VALIDATION },
    { "exclusiveMaximum", NUMBER, VALIDATION },
    { "multipleOf", POSITIVE, VALIDATION },
    { "minLength", COUNT, VALIDATION },
    { "maxLength", COUNT, VALIDATION },
    { "minItems", COUNT, VALIDATION },
    { "maxItems", COUNT, VALIDATION },
    { "minProperties", COUNT, VALIDATION },
    { "maxProperties", COUNT, VALIDATION },
    { "minContains", COUNT, VALIDATION },
    { "maxContains", COUNT, VALIDATION },
    { "pattern", REGEX, VALIDATION },
    { "examples", LIST, METADATA },
    { "title", TEXT, METADATA },
    { "description", TEXT, METADATA },
    { "deprecated", FLAG, METADATA },
    { "readOnly", FLAG, METADATA },
    { "writeOnly", FLAG, METADATA },
    { "contentSchema", SCHEMA, ANNOTATION },
    { "format", TEXT, ANNOTATION },
    { "contentEncoding", TEXT, ANNOTATION },
    { "contentMediaType", TEXT, ANNOTATION },
};

typedef struct {
    di_rq_t         *rq;
    const di_json_t *root;       /* what local references point into        */
    di_str_t        *why;
    size_t           left;       /* schemas that the second walk may enter  */
    di_names_t       followed;   /* references that it went after           */
} check_t;

static int check_schema(check_t *c, const di_json_t *v);

/* *why: the value as compact JSON, then `what`.  DI_EINVAL. */
static int
wrong(check_t *c, const di_json_t *v, const char *what)
{
    di_sbuf_t b = { 0 };
    int       rc;

    di_json_add_tree(&b, v, DI_JSON_COMPACT);
    di_sbuf_add(&b, what, strlen(what));
    rc = di_rq_keep(c->rq, &b, c->why);
    return rc == DI_OK ? DI_EINVAL : rc;
}

static bool
is_number(const di_json_t *v)
{
    return v->type == DI_JSON_INT || v->type == DI_JSON_UINT
           || v->type == DI_JSON_REAL;
}

static bool
is_type_name(const di_json_t *v)
{
    static const char *const names[] = {
        "array", "boolean", "integer", "null", "number", "object", "string",
    };
    size_t i;

    for (i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (di_rq_is(v, names[i]))
            return true;
    }

    return false;
}

/* A name, or a list of different ones. */
static int
check_type(check_t *c, const di_json_t *v)
{
    const di_json_t *m, *n;
    bool             good = v->type == DI_JSON_ARRAY && v->v.list.n > 0;

    if (is_type_name(v))
        return DI_OK;

    for (m = good ? v->v.list.first : NULL; m != NULL && good; m = m->next) {
        good = is_type_name(m);
        for (n = v->v.list.first; n != m && good; n = n->next)
            good = n->v.str.len != m->v.str.len
                   || memcmp(n->v.str.data, m->v.str.data, m->v.str.len) != 0;
    }

    return good ? DI_OK : wrong(c, v, " is not valid under any of the schemas"
                                " listed in the 'anyOf' keyword");
}

static int
check_regex(check_t *c, const di_json_t *quoted, di_str_t pattern)
{
    pcre2_code *code;
    PCRE2_SIZE  at;
    int         error;

    code = pcre2_compile((PCRE2_SPTR) pattern.data, pattern.len,
                         PCRE2_UTF | PCRE2_UCP, &error, &at, NULL);
    if (code == NULL)
        return wrong(c, quoted, " is not a \"regex\"");

    pcre2_code_free(code);
    return DI_OK;
}

static int
check_list(check_t *c, const di_json_t *v)
{
    const di_json_t *m;
    int              rc = DI_OK;

    if (v->type != DI_JSON_ARRAY)
        return wrong(c, v, " is not of type \"array\"");

    if (v->v.list.n == 0)
        return wrong(c, v, " has less than 1 item");

    for (m = v->v.list.first; m != NULL && rc == DI_OK; m = m->next)
        rc = check_schema(c, m);

    return rc;
}

static int
check_names(check_t *c, const di_json_t *v)
{
    const di_json_t *m;
    di_names_t       names = { 0 };
    size_t           found;
    bool             known;
    int              rc;

    if (v->type != DI_JSON_ARRAY)
        return wrong(c, v, " is not of type \"array\"");

    for (m = v->v.list.first; m != NULL; m = m->next) {
        if (m->type != DI_JSON_STRING)
            return wrong(c, m, " is not of type \"string\"");
        rc = di_names_put(c->rq, &names, m->v.str, 0, &found, &known);
        if (rc != DI_OK)
            return rc;
        if (known)
            return wrong(c, v, " has non-unique elements");
    }

    return DI_OK;
}

/* An object whose keys or values are to be looked at. */
static int
check_map(check_t *c, const di_json_t *v, keyword_kind_t kind)
{
    const di_json_t *m;
    int              rc = DI_OK;

    if (v->type != DI_JSON_OBJECT)
        return wrong(c, v, " is not of type \"object\"");

    for (m = v->v.list.first; m != NULL && rc == DI_OK; m = m->next) {
        rc = kind == NAMES_MAP ? check_names(c, m) : check_schema(c, m);
    }

    return rc;
}

static int
hex(char ch)
{
    return ch >= '0' && ch <= '9' ? ch - '0'
           : (ch | 0x20) >= 'a' && (ch | 0x20) <= 'f' ? (ch | 0x20) - 'a' + 10
           : -1;
}

/* A step of a reference's JSON pointer: the name up to the next slash, "%2F",
 * "~1" and "~0" undone, compared with a key. */
static bool
step_is(const char *p, size_t n, di_str_t key)
{
    size_t i, k = 0;
    char   ch;

    for (i = 0; i < n; i++, k++) {
        ch = p[i];
        if (ch == '%' && i + 2 < n && hex(p[i + 1]) >= 0
            && hex(p[i + 2]) >= 0) {
            ch = (char) (hex(p[i + 1]) << 4 | hex(p[i + 2]));
            i += 2;
        } else if (ch == '~' && i + 1 < n) {
            i++;
            ch = p[i] == '1' ? '/' : '~';
        }
        if (k >= key.len || key.data[k] != ch)
            return false;
    }

    return k == key.len;
}

static const di_json_t *
step_into(const di_json_t *v, const char *p, size_t n)
{
    const di_json_t *m;
    size_t           i = 0, index = 0;

    if (v->type != DI_JSON_OBJECT && v->type != DI_JSON_ARRAY)
        return NULL;

    for (i = 0; i < n && index < 100000000; i++)
        index = index * 10 + (size_t) (p[i] - '0');

    for (m = v->v.list.first, i = 0; m != NULL; m = m->next, i++) {
        if (v->type == DI_JSON_OBJECT ? step_is(p, n, m->key) : i == index)
            return m;
    }

    return NULL;
}

static int
check_number(check_t *c, const di_json_t *v, keyword_kind_t kind)
{
    double d;

    if (!is_number(v))
        return wrong(c, v, kind == COUNT ? " is not of type \"integer\""
                                         : " is not of type \"number\"");

    d = di_rq_number(v);
    if (kind == COUNT && d != (double) (int64_t) d)
        return wrong(c, v, " is not of type \"integer\"");

    if (kind == COUNT && d < 0)
        return wrong(c, v, " is less than the minimum of 0");

    if (kind == POSITIVE && d <= 0)
        return wrong(c, v, " is less than or equal to the minimum of 0");

    return DI_OK;
}

static bool
is_anchor(di_str_t s)
{
    size_t i;

    for (i = 0; i < s.len; i++) {
        if (!(di_rq_is_name_char(s.data[i]) || s.data[i] == '.')
            || (i == 0 && (s.data[i] == '-' || s.data[i] == '.'
                           || (s.data[i] >= '0' && s.data[i] <= '9'))))
            return false;
    }

    return s.len > 0;
}

/* Nothing but an empty fragment. */
static bool
is_id(di_str_t s)
{
    const char *hash = s.len == 0 ? NULL : memchr(s.data, '#', s.len);

    return hash == NULL || hash == s.data + s.len - 1;
}

static int
check_keyword(check_t *c, const di_json_t *v, keyword_kind_t kind)
{
    switch (kind) {

    case SCHEMA:
        return check_schema(c, v);

    case SCHEMAS:
        return check_list(c, v);

    case TYPE:
        return check_type(c, v);

    case SCHEMA_MAP:
    case REGEX_MAP:
    case NAMES_MAP:
        return check_map(c, v, kind);

    case NAMES:
        return check_names(c, v);

    case LIST:
        return v->type == DI_JSON_ARRAY ? DI_OK
               : wrong(c, v, " is not of type \"array\"");

    case FLAG:
        return v->type == DI_JSON_TRUE || v->type == DI_JSON_FALSE ? DI_OK
               : wrong(c, v, " is not of type \"boolean\"");

    case NUMBER:
    case POSITIVE:
    case COUNT:
        return check_number(c, v, kind);

    case OBJECT:
        return v->type == DI_JSON_OBJECT ? DI_OK
               : wrong(c, v, " is not of type \"object\"");

    case REF:
    case TEXT:
    case REGEX:
    case ANCHOR:
    case ID:
        break;
    }

    if (v->type != DI_JSON_STRING)
        return wrong(c, v, " is not of type \"string\"");

    if (kind == ANCHOR && !is_anchor(v->v.str))
        return wrong(c, v, " does not match \"^[A-Za-z_][-A-Za-z0-9._]*$\"");

    if (kind == ID && !is_id(v->v.str))
        return wrong(c, v, " does not match \"^[^#]*#?$\"");

    return DI_OK;
}

static const keyword_t *
find_keyword(const di_json_t *member)
{
    for (size_t i = 0; i < sizeof(keywords) / sizeof(keywords[0]); i++) {
        if (di_json_is(&member->key, keywords[i].name))
            return &keywords[i];
    }

    return NULL;
}

/* The keywords of one vocabulary, in the schema's order. */
static int
check_vocabulary(check_t *c, const di_json_t *v, vocabulary_t which)
{
    const keyword_t *k;
    const di_json_t *m;
    int              rc = DI_OK;

    for (m = v->v.list.first; m != NULL && rc == DI_OK; m = m->next) {
        k = find_keyword(m);
        if (k != NULL && k->vocabulary == which)
            rc = check_keyword(c, m, k->kind);
    }

    return rc;
}

static int
check_schema(check_t *c, const di_json_t *v)
{
    vocabulary_t i;
    int          rc = DI_OK;

    if (v->type == DI_JSON_TRUE || v->type == DI_JSON_FALSE)
        return DI_OK;

    if (v->type != DI_JSON_OBJECT)
        return wrong(c, v, " is not of types \"boolean\", \"object\"");

    for (i = CORE; i < N_VOCABULARIES && rc == DI_OK; i++)
        rc = check_vocabulary(c, v, i);

    return rc;
}

/* ------------------------------------------------------------ second walk */

#define ENTERED_MAX  20000       /* more than that is the compiler's matter */

static int use_schema(check_t *c, const di_json_t *v, size_t depth);

static bool
has_id(const di_json_t *v)
{
    const di_json_t *m;

    if (v->type != DI_JSON_OBJECT && v->type != DI_JSON_ARRAY)
        return false;

    for (m = v->v.list.first; m != NULL; m = m->next) {
        if ((v->type == DI_JSON_OBJECT && di_json_is(&m->key, "$id"))
            || has_id(m))
            return true;
    }

    return false;
}

static const di_json_t *
find_anchor(const di_json_t *v, di_str_t name)
{
    const di_json_t *m, *found = NULL;

    if (v->type != DI_JSON_OBJECT && v->type != DI_JSON_ARRAY)
        return NULL;

    for (m = v->v.list.first; m != NULL && found == NULL; m = m->next) {
        if (v->type == DI_JSON_OBJECT && m->type == DI_JSON_STRING
            && (di_json_is(&m->key, "$anchor")
                || di_json_is(&m->key, "$dynamicAnchor"))
            && m->v.str.len == name.len
            && memcmp(m->v.str.data, name.data, name.len) == 0)
            return v;
        found = find_anchor(m, name);
    }

    return found;
}

/* What a reference into the schema itself leads to; NULL: nothing. */
static const di_json_t *
referred(const check_t *c, di_str_t ref)
{
    const di_json_t *at = c->root;
    const char      *p = ref.data + 1, *end = ref.data + ref.len, *slash;

    if (ref.len > 1 && ref.data[1] != '/')
        return find_anchor(c->root, (di_str_t) { p, ref.len - 1 });

    for (; p < end && at != NULL; p = slash) {
        p++;
        slash = memchr(p, '/', (size_t) (end - p));
        if (slash == NULL)
            slash = end;
        at = step_into(at, p, (size_t) (slash - p));
    }

    return at;
}

/* A reference to another document, unless this one has documents inside. */
static int
other_document(check_t *c, di_str_t ref)
{
    const char *hash = ref.len == 0 ? NULL : memchr(ref.data, '#', ref.len);
    int         n = (int) (hash == NULL ? ref.len
                           : (size_t) (hash - ref.data));
    int         rc;

    if (ref.len == 0 || has_id(c->root))
        return DI_OK;

    rc = memmem(ref.data, (size_t) n, "://", 3) != NULL
         ? di_rq_print(c->rq, c->why, "Resource '%.*s' is not present in a"
                       " registry and retrieving it failed: Retrieval is"
                       " disabled, cannot fetch %.*s", n, ref.data, n,
                       ref.data)
         : di_rq_print(c->rq, c->why, "Resource '%.*s' is not present in a"
                       " registry and retrieving it failed: No base URI is"
                       " available", n, ref.data);
    return rc == DI_OK ? DI_EINVAL : rc;
}

static int
use_reference(check_t *c, di_str_t ref, size_t depth)
{
    const di_json_t *to;
    size_t           at;
    bool             known;

    if (ref.len == 0 || ref.data[0] != '#')
        return other_document(c, ref);

    if (di_names_put(c->rq, &c->followed, ref, 0, &at, &known) != DI_OK)
        return DI_ENOMEM;
    if (known)
        return DI_OK;

    to = referred(c, ref);
    if (to != NULL)
        return use_schema(c, to, depth);

    return di_rq_print(c->rq, c->why, ref.data[1] == '/'
                       ? "Pointer '%.*s' does not exist"
                       : "Anchor '%.*s' does not exist",
                       (int) (ref.len - 1), ref.data + 1) == DI_OK
           ? DI_EINVAL : DI_ENOMEM;
}

static int
use_all(check_t *c, const di_json_t *list, bool patterns, size_t depth)
{
    const di_json_t *m;
    int              rc = DI_OK;

    for (m = list->v.list.first; m != NULL && rc == DI_OK; m = m->next) {
        if (patterns)
            rc = check_regex(c, m, m->key);
        if (rc == DI_OK)
            rc = use_schema(c, m, depth);
    }

    return rc;
}

/* Definitions are used where something refers to them, an `if` where it has
 * a consequence. */
static bool
is_used(const di_json_t *schema, const di_json_t *keyword)
{
    if (di_json_is(&keyword->key, "if"))
        return di_json_get(schema, "then") != NULL
               || di_json_get(schema, "else") != NULL;

    if (di_json_is(&keyword->key, "then") || di_json_is(&keyword->key, "else"))
        return di_json_get(schema, "if") != NULL;

    return !di_json_is(&keyword->key, "$defs")
           && !di_json_is(&keyword->key, "definitions")
           && !di_json_is(&keyword->key, "contentSchema");
}

static int
use_keyword(check_t *c, const di_json_t *v, keyword_kind_t kind, size_t depth)
{
    switch (kind) {

    case SCHEMA:
        return use_schema(c, v, depth);

    case SCHEMAS:
    case SCHEMA_MAP:
    case REGEX_MAP:
        return use_all(c, v, kind == REGEX_MAP, depth);

    case REGEX:
        return check_regex(c, v, v->v.str);

    case REF:
        return use_reference(c, v->v.str, depth);

    default:
        return DI_OK;
    }
}

/* A schema that the first walk found nothing wrong with. */
static int
use_schema(check_t *c, const di_json_t *v, size_t depth)
{
    const keyword_t *k;
    const di_json_t *m;
    int              rc = DI_OK;

    if (v->type != DI_JSON_OBJECT || depth == 0 || c->left == 0)
        return DI_OK;

    c->left--;
    for (m = v->v.list.first; m != NULL && rc == DI_OK; m = m->next) {
        k = find_keyword(m);
        if (k != NULL && is_used(v, m))
            rc = use_keyword(c, m, k->kind, depth - 1);
    }

    return rc;
}

/* $schema must name a draft that is known. */
static bool
is_known_draft(const di_json_t *v)
{
    static const char *const drafts[] = {
        "http://json-schema.org/draft-04/schema",
        "http://json-schema.org/draft-06/schema",
        "http://json-schema.org/draft-07/schema",
        "https://json-schema.org/draft/2019-09/schema",
        "https://json-schema.org/draft/2020-12/schema",
    };
    di_str_t s = v->v.str;
    size_t   i;

    if (s.len > 0 && s.data[s.len - 1] == '#')
        s.len--;

    for (i = 0; i < sizeof(drafts) / sizeof(drafts[0]); i++) {
        if (di_json_is(&s, drafts[i]))
            return true;
    }

    return false;
}

int
di_schema_check(di_rq_t *rq, const di_json_t *schema, di_str_t *why)
{
    check_t          c = { .rq = rq, .root = schema, .why = why,
                           .left = ENTERED_MAX };
    const di_json_t *draft = di_rq_get(schema, "$schema");
    int              rc;

    rc = check_schema(&c, schema);
    if (rc != DI_OK)
        return rc;

    if (draft != NULL && draft->type == DI_JSON_STRING
        && !is_known_draft(draft))
        return di_rq_print(rq, why, "Unknown meta-schema: '%.*s'. Custom"
                           " meta-schemas must be registered in the registry"
                           " before use", (int) draft->v.str.len,
                           draft->v.str.data) == DI_OK
               ? DI_EINVAL : DI_ENOMEM;

    return use_schema(&c, schema, DI_JSON_DEPTH_MAX);
}
