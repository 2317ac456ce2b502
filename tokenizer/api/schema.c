/*
 * schema.c - is a value a JSON Schema?
 *
 * A schema is valid against its meta-schema: here those of drafts 2020-12 and
 * 7, as one table of what each keyword's value may be, walked by one function.
 * Draft 2019-09 passes for the first of them, older ones for the second.  The
 * sentences are those of the validator that the official
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
    LIST, NAMES, NAMES_MAP, REGEX, REGEX_MAP, REF, ANCHOR, ID, OBJECT, ITEMS,
    DEPENDENCIES,
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
    enum { ANY_DRAFT = 0, NEW, OLD } drafts;     /* that know it            */
} keyword_t;

static const keyword_t keywords[] = {
    { "$schema", TEXT, CORE, ANY_DRAFT },
    { "$defs", SCHEMA_MAP, CORE, NEW },
    { "definitions", SCHEMA_MAP, CORE, ANY_DRAFT },
    { "$comment", TEXT, CORE, ANY_DRAFT },
    { "$id", ID, CORE, NEW },
    { "$id", TEXT, CORE, OLD },
    { "$anchor", ANCHOR, CORE, NEW },
    { "$dynamicAnchor", ANCHOR, CORE, NEW },
    { "$vocabulary", OBJECT, CORE, NEW },
    { "$ref", REF, CORE, ANY_DRAFT },
    { "$dynamicRef", REF, CORE, NEW },
    { "properties", SCHEMA_MAP, APPLICATOR, ANY_DRAFT },
    { "patternProperties", REGEX_MAP, APPLICATOR, ANY_DRAFT },
    { "dependentSchemas", SCHEMA_MAP, APPLICATOR, NEW },
    { "items", SCHEMA, APPLICATOR, NEW },
    { "items", ITEMS, APPLICATOR, OLD },
    { "additionalItems", SCHEMA, APPLICATOR, OLD },
    { "dependencies", DEPENDENCIES, CORE, ANY_DRAFT },
    { "additionalProperties", SCHEMA, APPLICATOR, ANY_DRAFT },
    { "not", SCHEMA, APPLICATOR, ANY_DRAFT },
    { "if", SCHEMA, APPLICATOR, ANY_DRAFT },
    { "then", SCHEMA, APPLICATOR, ANY_DRAFT },
    { "else", SCHEMA, APPLICATOR, ANY_DRAFT },
    { "contains", SCHEMA, APPLICATOR, ANY_DRAFT },
    { "propertyNames", SCHEMA, APPLICATOR, ANY_DRAFT },
    { "allOf", SCHEMAS, APPLICATOR, ANY_DRAFT },
    { "anyOf", SCHEMAS, APPLICATOR, ANY_DRAFT },
    { "oneOf", SCHEMAS, APPLICATOR, ANY_DRAFT },
    { "prefixItems", SCHEMAS, APPLICATOR, NEW },
    { "unevaluatedItems", SCHEMA, UNEVALUATED, NEW },
    { "unevaluatedProperties", SCHEMA, UNEVALUATED, NEW },
    { "type", TYPE, VALIDATION, ANY_DRAFT },
    { "dependentRequired", NAMES_MAP, VALIDATION, NEW },
    { "required", NAMES, VALIDATION, ANY_DRAFT },
    { "enum", LIST, VALIDATION, ANY_DRAFT },
    { "uniqueItems", FLAG, VALIDATION, ANY_DRAFT },
    { "minimum", NUMBER, VALIDATION, ANY_DRAFT },
    { "maximum", NUMBER, VALIDATION, ANY_DRAFT },
    { "exclusiveMinimum", NUMBER, VALIDATION, ANY_DRAFT },
    { "exclusiveMaximum", NUMBER, VALIDATION, ANY_DRAFT },
    { "multipleOf", POSITIVE, VALIDATION, ANY_DRAFT },
    { "minLength", COUNT, VALIDATION, ANY_DRAFT },
    { "maxLength", COUNT, VALIDATION, ANY_DRAFT },
    { "minItems", COUNT, VALIDATION, ANY_DRAFT },
    { "maxItems", COUNT, VALIDATION, ANY_DRAFT },
    { "minProperties", COUNT, VALIDATION, ANY_DRAFT },
    { "maxProperties", COUNT, VALIDATION, ANY_DRAFT },
    { "minContains", COUNT, VALIDATION, NEW },
    { "maxContains", COUNT, VALIDATION, NEW },
    { "pattern", REGEX, VALIDATION, ANY_DRAFT },
    { "examples", LIST, METADATA, ANY_DRAFT },
    { "title", TEXT, METADATA, ANY_DRAFT },
    { "description", TEXT, METADATA, ANY_DRAFT },
    { "deprecated", FLAG, METADATA, NEW },
    { "readOnly", FLAG, METADATA, ANY_DRAFT },
    { "writeOnly", FLAG, METADATA, ANY_DRAFT },
    { "contentSchema", SCHEMA, ANNOTATION, NEW },
    { "format", TEXT, ANNOTATION, ANY_DRAFT },
    { "contentEncoding", TEXT, ANNOTATION, ANY_DRAFT },
    { "contentMediaType", TEXT, ANNOTATION, ANY_DRAFT },
};

typedef struct {
    di_rq_t         *rq;
    const di_json_t *root;       /* what local references point into        */
    di_str_t        *why;
    bool             old;        /* draft 7 or older                        */
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

/* Draft 7: a schema, or a list of schemas or names.  What is wrong inside is
 * not told. */
static int
check_either(check_t *c, const di_json_t *v, keyword_kind_t list)
{
    int rc = v->type != DI_JSON_ARRAY ? check_schema(c, v)
             : list == NAMES ? check_names(c, v) : check_list(c, v);

    return rc != DI_EINVAL ? rc
           : wrong(c, v, " is not valid under any of the schemas listed in the"
                   " 'anyOf' keyword");
}

static int
check_dependencies(check_t *c, const di_json_t *v)
{
    const di_json_t *m;
    int              rc = DI_OK;

    if (v->type != DI_JSON_OBJECT)
        return wrong(c, v, " is not of type \"object\"");

    for (m = v->v.list.first; m != NULL && rc == DI_OK; m = m->next)
        rc = check_either(c, m, NAMES);

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

    case ITEMS:
        return check_either(c, v, SCHEMAS);

    case DEPENDENCIES:
        return check_dependencies(c, v);

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

    return kind == REGEX && c->old ? check_regex(c, v, v->v.str) : DI_OK;
}

static const keyword_t *
find_keyword(const check_t *c, const di_json_t *member)
{
    for (size_t i = 0; i < sizeof(keywords) / sizeof(keywords[0]); i++) {
        if (di_json_is(&member->key, keywords[i].name)
            && keywords[i].drafts != (c->old ? NEW : OLD))
            return &keywords[i];
    }

    return NULL;
}

/* The keywords of one vocabulary (draft 7: all), in the schema's order. */
static int
check_vocabulary(check_t *c, const di_json_t *v, vocabulary_t which)
{
    const keyword_t *k;
    const di_json_t *m;
    int              rc = DI_OK;

    for (m = v->v.list.first; m != NULL && rc == DI_OK; m = m->next) {
        k = find_keyword(c, m);
        if (k != NULL && (c->old || k->vocabulary == which))
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

    for (i = CORE; i < (c->old ? APPLICATOR : N_VOCABULARIES) && rc == DI_OK;
         i++)
        rc = check_vocabulary(c, v, i);

    return rc;
}

/* ------------------------------------------------------------ second walk */

#define ENTERED_MAX  20000       /* more than that is the compiler's matter */

static int use_schema(check_t *c, const di_json_t *v, size_t depth);

/* Does it begin with the name of a scheme? */
static bool
is_absolute(di_str_t url)
{
    size_t n = 0;
    char   c;

    for (; n < url.len && url.data[n] != ':'; n++) {
        c = (char) (url.data[n] | 0x20);
        if (!(c >= 'a' && c <= 'z')
            && (n == 0 || strchr("0123456789+-.", url.data[n]) == NULL))
            return false;
    }

    return n > 0 && n < url.len;
}

static di_str_t
without_fragment(di_str_t url)
{
    const char *hash = url.len == 0 ? NULL : memchr(url.data, '#', url.len);

    if (hash != NULL)
        url.len = (size_t) (hash - url.data);
    return url;
}

/* The same name, one of them perhaps relative to the other's folder. */
static bool
may_be(di_str_t a, di_str_t b)
{
    di_str_t longer = a.len > b.len ? a : b, rest = a.len > b.len ? b : a;
    size_t   before = longer.len - rest.len;

    return rest.len > 0 && memcmp(longer.data + before, rest.data, rest.len)
                           == 0
           && (before == 0 || longer.data[before - 1] == '/');
}

/* Is there a document inside that goes by this name? */
static bool
has_document(const di_json_t *v, di_str_t name)
{
    const di_json_t *m;

    if (v->type != DI_JSON_OBJECT && v->type != DI_JSON_ARRAY)
        return false;

    for (m = v->v.list.first; m != NULL; m = m->next) {
        if (v->type == DI_JSON_OBJECT && di_json_is(&m->key, "$id")
            && m->type == DI_JSON_STRING
            && may_be(without_fragment(m->v.str), name))
            return true;
        if (has_document(m, name))
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

/* A reference to another document, unless that is inside of this one. */
static int
other_document(check_t *c, di_str_t ref)
{
    di_str_t name = without_fragment(ref);
    di_str_t base = without_fragment(di_rq_text(c->root, "$id"));
    bool     absolute = is_absolute(name);

    if (ref.len == 0 || has_document(c->root, name))
        return DI_OK;

    /* From here on only for the sentence. */
    if (absolute || !is_absolute(base))
        base.len = 0;
    while (base.len > 0 && base.data[base.len - 1] != '/')
        base.len--;
    if (!absolute && base.len == 0)
        name = ref;

    return di_rq_print(c->rq, c->why, absolute || base.len > 0
                       ? "Resource '%.*s%.*s' is not present in a registry and"
                         " retrieving it failed: Retrieval is disabled, cannot"
                         " fetch %.*s%.*s"
                       : "Resource '%.*s%.*s' is not present in a registry and"
                         " retrieving it failed: No base URI is available",
                       (int) base.len, base.data, (int) name.len, name.data,
                       (int) base.len, base.data, (int) name.len, name.data)
           == DI_OK ? DI_EINVAL : DI_ENOMEM;
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
 * a consequence; beside a reference draft 7 uses nothing. */
static bool
is_used(const check_t *c, const di_json_t *schema, const di_json_t *keyword)
{
    if (c->old && di_json_get(schema, "$ref") != NULL)
        return di_json_is(&keyword->key, "$ref");

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

    case ITEMS:
        return v->type == DI_JSON_ARRAY ? use_all(c, v, false, depth)
               : use_schema(c, v, depth);

    case SCHEMAS:
    case SCHEMA_MAP:
    case REGEX_MAP:
    case DEPENDENCIES:
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
        k = find_keyword(c, m);
        if (k != NULL && is_used(c, v, m))
            rc = use_keyword(c, m, k->kind, depth - 1);
    }

    return rc;
}

/* Does the URL name a draft of the list?  An empty fragment may follow. */
static bool
is_draft(const di_json_t *v, const char *const *drafts)
{
    di_str_t s = v->v.str;

    if (s.len > 0 && s.data[s.len - 1] == '#')
        s.len--;

    for (; *drafts != NULL; drafts++) {
        if (di_json_is(&s, *drafts))
            return true;
    }

    return false;
}

int
di_schema_check(di_rq_t *rq, const di_json_t *schema, di_str_t *why)
{
    static const char *const old[] = {
        "http://json-schema.org/draft-04/schema",
        "http://json-schema.org/draft-06/schema",
        "http://json-schema.org/draft-07/schema", NULL,
    };
    static const char *const new[] = {
        "https://json-schema.org/draft/2019-09/schema",
        "https://json-schema.org/draft/2020-12/schema", NULL,
    };
    check_t          c = { .rq = rq, .root = schema, .why = why,
                           .left = ENTERED_MAX };
    const di_json_t *draft = di_rq_get(schema, "$schema");
    int              rc;

    if (draft != NULL && draft->type != DI_JSON_STRING)
        draft = NULL;

    c.old = draft != NULL && is_draft(draft, old);
    rc = check_schema(&c, schema);
    if (rc != DI_OK)
        return rc;

    if (draft != NULL && !c.old && !is_draft(draft, new))
        return di_rq_print(rq, why, "Unknown meta-schema: '%.*s'. Custom"
                           " meta-schemas must be registered in the registry"
                           " before use", (int) draft->v.str.len,
                           draft->v.str.data) == DI_OK
               ? DI_EINVAL : DI_ENOMEM;

    return use_schema(&c, schema, DI_JSON_DEPTH_MAX);
}
