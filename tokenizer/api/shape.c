/*
 * shape.c - values against their descriptions; see shape.h.
 *
 * The path of a value is built as the walk goes down and cut back as it
 * returns; only the strict codec shows it.
 */

#include "shape.h"

#include <stdarg.h>
#include <string.h>

const di_shape_t di_shape_text = { .kind = DI_SHAPE_TEXT };
const di_shape_t di_shape_bool = { .kind = DI_SHAPE_BOOL };
const di_shape_t di_shape_u8 = { .kind = DI_SHAPE_U8 };
const di_shape_t di_shape_u32 = { .kind = DI_SHAPE_U32 };
const di_shape_t di_shape_u64 = { .kind = DI_SHAPE_U64 };
const di_shape_t di_shape_f32 = { .kind = DI_SHAPE_F32 };
const di_shape_t di_shape_map = { .kind = DI_SHAPE_MAP };
const di_shape_t di_shape_texts = { .kind = DI_SHAPE_LIST,
                                    .of = &di_shape_text };

static int check_callers(di_rq_t *rq, const di_json_t *v);

const di_shape_t di_shape_callers = { .kind = DI_SHAPE_CUSTOM,
                                      .check = check_callers };

static const di_member_t efforts[] = {
    { .name = "none" }, { .name = "minimal" }, { .name = "low" },
    { .name = "medium" }, { .name = "high" }, { .name = "xhigh" },
    { .name = "ultra" }, { .name = "max" }, { .name = NULL },
};
const di_shape_t di_shape_effort = { .kind = DI_SHAPE_ENUM,
                                     .members = efforts };

static const di_member_t details[] = {
    { .name = "low" }, { .name = "high" }, { .name = "original" },
    { .name = "auto" }, { .name = NULL },
};
const di_shape_t di_shape_detail = { .kind = DI_SHAPE_ENUM,
                                     .members = details };

static const di_member_t modes[] = {
    { .name = "auto" }, { .name = "required" }, { .name = NULL },
};
static const di_shape_t mode = { .kind = DI_SHAPE_ENUM, .members = modes };
static const di_shape_t map_list = { .kind = DI_SHAPE_LIST,
                                     .of = &di_shape_map };
static const di_member_t allowed_members[] = {
    { "type", NULL, 0, NULL },
    { "mode", &mode, DI_MEMBER_REQUIRED, NULL },
    { "tools", &map_list, DI_MEMBER_REQUIRED, NULL },
    { .name = NULL },
};
const di_shape_t di_shape_allowed = { .kind = DI_SHAPE_STRUCT,
                                      .members = allowed_members };

static const di_member_t thinking_types[] = {
    { .name = "adaptive" }, { .name = "enabled" }, { .name = "disabled" },
    { .name = NULL },
};
const di_shape_t di_shape_thinking = { .kind = DI_SHAPE_ENUM,
                                       .members = thinking_types };
const di_member_t di_thinking_members[] = {
    { "type", &di_shape_thinking, DI_MEMBER_REQUIRED, NULL },
    { "budget_tokens", &di_shape_u64, 0, NULL },
    { .name = NULL },
};

/* ----------------------------------------------------------------- errors */

int
di_shape_fail(di_rq_t *rq, const char *fmt, ...)
{
    char    text[sizeof(rq->e->message)];
    va_list ap;

    va_start(ap, fmt);
    (void) vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);

    di_api_err_set(rq->e, 400, "invalid_request_error",
                   "invalid_request_error", NULL, "invalid request body: %s",
                   text);
    return DI_EINVAL;
}

/* What serde calls a value, quoted as Rust's debug form has it. */
static void
describe(const di_json_t *v, di_sbuf_t *b)
{
    const char *p, *end;
    char        s[8];

    switch (v->type) {
    case DI_JSON_NULL:   di_sbuf_lit(b, "null");     return;
    case DI_JSON_ARRAY:  di_sbuf_lit(b, "sequence"); return;
    case DI_JSON_OBJECT: di_sbuf_lit(b, "map");      return;

    case DI_JSON_STRING:
        di_sbuf_lit(b, "string \"");
        end = v->v.str.data + v->v.str.len;
        for (p = v->v.str.data; p < end; p++) {
            switch (*p) {
            case '"':  di_sbuf_lit(b, "\\\""); continue;
            case '\\': di_sbuf_lit(b, "\\\\"); continue;
            case '\n': di_sbuf_lit(b, "\\n");  continue;
            case '\r': di_sbuf_lit(b, "\\r");  continue;
            case '\t': di_sbuf_lit(b, "\\t");  continue;
            case '\0': di_sbuf_lit(b, "\\0");  continue;
            }
            if ((unsigned char) *p < 0x20 || *p == 0x7f) {
                snprintf(s, sizeof(s), "\\u{%x}", *p);
                di_sbuf_add(b, s, strlen(s));
            } else {
                di_sbuf_add(b, p, 1);
            }
        }
        di_sbuf_lit(b, "\"");
        return;

    case DI_JSON_FALSE:
    case DI_JSON_TRUE:
        di_sbuf_lit(b, "boolean `");
        break;

    case DI_JSON_REAL:
        di_sbuf_lit(b, "floating point `");
        break;

    default:
        di_sbuf_lit(b, "integer `");
    }

    di_json_add_tree(b, v, DI_JSON_COMPACT);
    di_sbuf_lit(b, "`");
}

static int
serde_invalid(di_rq_t *rq, const char *what, const di_json_t *v,
              const char *expected)
{
    di_sbuf_t b = { 0 };
    int       rc;

    describe(v, &b);
    rc = b.failed ? di_rq_no_memory(rq)
                  : di_shape_fail(rq, "invalid %s: %.*s, expected %s", what,
                                  (int) b.len, b.data, expected);
    di_sbuf_free(&b);
    return rc;
}

int
di_shape_wrong(di_rq_t *rq, const di_json_t *v, const char *expected,
               const char *strict)
{
    if (!rq->official)
        return di_field_type(v, rq->path, strict, rq->e);

    return serde_invalid(rq, "type", v, expected);
}

static bool
belongs(const di_rq_t *rq, const di_member_t *m)
{
    return (m->flags & (rq->official ? DI_MEMBER_STRICT : DI_MEMBER_OFFICIAL))
           == 0 && !(rq->official && m->refuse != NULL);
}

/* The names of a codec's variants: `a`, `b` or 'a', 'b' and 'c'.  Returns
 * their number. */
static size_t
list_variants(const di_rq_t *rq, const di_member_t *m, di_sbuf_t *b)
{
    const char *quote = rq->official ? "`" : "'", *join;
    size_t      n = 0, i = 0, k;

    for (k = 0; m[k].name != NULL; k++)
        n += belongs(rq, &m[k]) && m[k].refuse == NULL;

    for (k = 0; m[k].name != NULL; k++) {
        if (!belongs(rq, &m[k]) || m[k].refuse != NULL)
            continue;

        join = i == 0 ? ""
               : i < n - 1 ? ", "
               : !rq->official ? " and "
               : n == 2 ? " or " : ", ";
        di_sbuf_add(b, join, strlen(join));
        di_sbuf_add(b, quote, 1);
        di_sbuf_add(b, m[k].name, strlen(m[k].name));
        di_sbuf_add(b, quote, 1);
        i++;
    }

    return n;
}

static int
unknown_variant(di_rq_t *rq, const di_shape_t *shape, di_str_t value)
{
    di_sbuf_t b = { 0 };
    char      quoted[DI_JSON_QUOTE];
    size_t    n = list_variants(rq, shape->members, &b);
    int       rc;

    if (b.failed) {
        rc = di_rq_no_memory(rq);

    } else if (rq->official) {
        rc = di_shape_fail(rq, "unknown variant `%.*s`, expected %s%.*s",
                           (int) value.len, value.data,
                           n > 2 ? "one of " : "", (int) b.len, b.data);

    } else {
        di_json_quote(value, quoted);
        rc = di_field_invalid(rq->e, rq->path, "invalid_value",
                              "Invalid value: '%s'. Supported values are:"
                              " %.*s.", quoted, (int) b.len, b.data);
    }

    di_sbuf_free(&b);
    return rc;
}

/* ------------------------------------------------------------------ paths */

/* Go to a member; returns where leave() cuts. */
static size_t
enter(di_rq_t *rq, const char *name)
{
    if (rq->official)
        return strlen(rq->path);

    return di_rq_enter(rq, rq->path[0] == '\0' ? "%s" : ".%s", name);
}

static size_t
enter_element(di_rq_t *rq, size_t i)
{
    return rq->official ? strlen(rq->path) : di_rq_enter(rq, "[%zu]", i);
}

static void
leave(di_rq_t *rq, size_t n)
{
    rq->path[n] = '\0';
}

/* The path without indexes: where unknown fields stood. */
static void
note_unknown(di_rq_t *rq, const di_json_t *m)
{
    char        prefix[sizeof(rq->path) + 2], *to = prefix;
    const char *p;

    if (rq->official)
        return;

    for (p = rq->path; *p != '\0'; p++) {
        if (!(*p >= '0' && *p <= '9' && to > prefix && to[-1] == '['))
            *to++ = *p;
    }
    if (to > prefix)
        *to++ = '.';
    *to = '\0';
    di_rq_note_ignored(rq, prefix, m);
}

/* ---------------------------------------------------------------- scalars */

static int
check_integer(di_rq_t *rq, const di_json_t *v, uint64_t max, const char *name)
{
    if (v->type != DI_JSON_INT && v->type != DI_JSON_UINT)
        return di_shape_wrong(rq, v, name, "an integer");

    if (v->type == DI_JSON_INT ? v->v.i < 0 || (uint64_t) v->v.i > max
                               : v->v.u > max)
        return rq->official ? serde_invalid(rq, "value", v, name)
                            : di_field_type(v, rq->path, name, rq->e);

    return DI_OK;
}

/* serde reads {"name": null} as the variant's name. */
static int
enum_from_map(di_rq_t *rq, const di_shape_t *shape, const di_json_t *v)
{
    const di_json_t *only = v->v.list.first;
    di_json_t        name = { .type = DI_JSON_STRING };
    int              rc;

    if (v->v.list.n != 1)
        return di_shape_fail(rq, "invalid value: map, expected map with a"
                             " single key");

    name.v.str = only->key;
    rc = di_shape_check(rq, shape, &name);
    return rc == DI_OK && only->type != DI_JSON_NULL
           ? di_shape_wrong(rq, only, "unit", "null") : rc;
}

static int
check_enum(di_rq_t *rq, const di_shape_t *shape, const di_json_t *v)
{
    const di_member_t *m;

    if (v->type == DI_JSON_OBJECT && rq->official)
        return enum_from_map(rq, shape, v);

    if (v->type != DI_JSON_STRING)
        return di_shape_wrong(rq, v, "string or map", "a string");

    for (m = shape->members; m->name != NULL; m++) {
        if (!belongs(rq, m) || !di_json_is(&v->v.str, m->name))
            continue;
        return m->refuse == NULL ? DI_OK
               : di_field_invalid(rq->e, rq->path, "unsupported_value",
                                  "Unsupported value: '%s' is '%s': %s.",
                                  rq->path, m->name, m->refuse);
    }

    return unknown_variant(rq, shape, v->v.str);
}

/* ------------------------------------------------------------- containers */

static int
check_list(di_rq_t *rq, const di_shape_t *of, const di_json_t *v)
{
    const di_json_t *m;
    size_t           i = 0, n;
    int              rc = DI_OK;

    for (m = v->v.list.first; m != NULL && rc == DI_OK; m = m->next, i++) {
        n = enter_element(rq, i);
        rc = di_shape_check(rq, of, m);
        if (rc == DI_OK)
            leave(rq, n);
    }

    return rc;
}

static int
check_member(di_rq_t *rq, const di_member_t *member, const di_json_t *v)
{
    size_t n;
    int    rc;

    if (v->type == DI_JSON_NULL
        && !(rq->official && (member->flags & (DI_MEMBER_REQUIRED
                                               | DI_MEMBER_NOT_NULL))))
        return DI_OK;

    n = enter(rq, member->name);

    if (member->refuse != NULL)
        return di_field_refuse(rq->path, member->refuse, rq->e);

    if (member->shape == NULL) {
        leave(rq, n);
        return DI_OK;
    }

    rc = di_shape_check(rq, member->shape, v);
    if (rc == DI_OK)
        leave(rq, n);
    return rc;
}

static const di_member_t *
find_member(const di_rq_t *rq, const di_member_t *m, const di_str_t *name)
{
    for (; m->name != NULL; m++) {
        if (belongs(rq, m) && di_json_is(name, m->name))
            return m;
    }

    return NULL;
}

static int
check_missing(di_rq_t *rq, const di_member_t *m, const di_json_t *v)
{
    const di_json_t *found;

    for (; m->name != NULL; m++) {
        if (!(m->flags & DI_MEMBER_REQUIRED) || !belongs(rq, m))
            continue;

        found = di_json_get(v, m->name);
        if (found != NULL && (rq->official || found->type != DI_JSON_NULL))
            continue;

        if (rq->official)
            return di_shape_fail(rq, "missing field `%s`", m->name);

        (void) enter(rq, m->name);
        return di_field_missing(rq->path, rq->e);
    }

    return DI_OK;
}

/* Members of an object; `skip` (may be NULL) was looked at. */
static int
check_members(di_rq_t *rq, const di_member_t *members, const di_json_t *v,
              const char *skip)
{
    const di_json_t   *m;
    const di_member_t *member;
    int                rc;

    for (m = v->v.list.first; m != NULL; m = m->next) {
        if (skip != NULL && di_json_is(&m->key, skip))
            continue;

        member = members == NULL ? NULL : find_member(rq, members, &m->key);
        if (member == NULL) {
            if (members != NULL)
                note_unknown(rq, m);
            continue;
        }

        rc = check_member(rq, member, m);
        if (rc != DI_OK)
            return rc;
    }

    return members == NULL ? DI_OK : check_missing(rq, members, v);
}

/* A list whose elements up to `rest` were named is the object from here on. */
static int
end_sequence(di_rq_t *rq, di_json_t *list, const di_json_t *rest)
{
    if (rest != NULL)
        return di_shape_fail(rq, "invalid length %zu, expected fewer elements"
                             " in array", list->v.list.n);

    list->type = DI_JSON_OBJECT;
    return DI_OK;
}

/* serde takes a list for an object: its elements are the members, in the
 * description's order.  From here on it is that object. */
static int
check_sequence(di_rq_t *rq, const di_shape_t *shape, const di_json_t *v)
{
    di_json_t         *own = (di_json_t *) v, *e = own->v.list.first;
    const di_member_t *m;
    size_t             n = 0;
    int                rc;

    for (m = shape->members; m->name != NULL; m++)
        n += belongs(rq, m);

    for (m = shape->members; m->name != NULL; m++) {
        if (!belongs(rq, m))
            continue;
        if (e == NULL)
            return di_shape_fail(rq, "invalid length %zu, expected struct %s"
                                 " with %zu element%s", v->v.list.n,
                                 shape->name, n, n == 1 ? "" : "s");

        rc = check_member(rq, m, e);
        if (rc != DI_OK)
            return rc;
        e->key = (di_str_t) { m->name, strlen(m->name) };
        e = e->next;
    }

    return end_sequence(rq, own, e);
}

/* v should have been an object: a struct, or another `kind` of serde's. */
static int
no_object(di_rq_t *rq, const di_shape_t *shape, const di_json_t *v,
          const char *kind)
{
    char expected[80];

    (void) snprintf(expected, sizeof(expected), "%s %s", kind, shape->name);
    return di_shape_wrong(rq, v, expected, "an object");
}

static int
check_struct(di_rq_t *rq, const di_shape_t *shape, const di_json_t *v)
{
    if (v->type == DI_JSON_OBJECT)
        return check_members(rq, shape->members, v, NULL);

    if (v->type == DI_JSON_ARRAY && rq->official)
        return check_sequence(rq, shape, v);

    return no_object(rq, shape, v, "struct");
}

static int
check_tagged(di_rq_t *rq, const di_shape_t *shape, const di_json_t *v)
{
    const di_json_t   *tag;
    const di_member_t *variant;
    size_t             n;

    if (v->type != DI_JSON_OBJECT
        && !(v->type == DI_JSON_ARRAY && rq->official))
        return no_object(rq, shape, v, "internally tagged enum");

    /* serde takes a list for an object: the tag comes first in it. */
    tag = v->type == DI_JSON_ARRAY ? v->v.list.first
                                   : di_json_get(v, shape->tag);
    if (tag == NULL && rq->official)
        return di_shape_fail(rq, "missing field `%s`", shape->tag);

    n = enter(rq, shape->tag);

    if (tag == NULL || (tag->type == DI_JSON_NULL && !rq->official))
        return di_field_missing(rq->path, rq->e);

    if (tag->type != DI_JSON_STRING)
        return di_shape_wrong(rq, tag, "variant identifier", "a string");

    variant = find_member(rq, shape->members, &tag->v.str);
    if (variant == NULL)
        return unknown_variant(rq, shape, tag->v.str);

    leave(rq, n);

    if (v->type == DI_JSON_ARRAY)
        return di_shape_fail(rq, "invalid length %zu, expected struct variant"
                             " %s::%s", v->v.list.n, shape->name,
                             variant->name);

    if (variant->refuse != NULL)
        return di_field_invalid(rq->e, rq->path, "unsupported_content",
                                "'%s' of type '%s' is not supported: %s.",
                                rq->path, variant->name, variant->refuse);

    if (variant->shape == NULL)
        return DI_OK;

    return variant->shape->kind == DI_SHAPE_STRUCT
           ? check_members(rq, variant->shape->members, v, shape->tag)
           : di_shape_check(rq, variant->shape, v);
}

/* The errors of fields name them. */
static int
check_loose(di_rq_t *rq, const di_shape_t *shape, const di_json_t *v)
{
    static const char prefix[] = "invalid request body: ";
    const di_member_t *member;
    const di_json_t   *m;
    char               text[sizeof(rq->e->message)];
    int                rc;

    for (m = v->v.list.first; m != NULL; m = m->next) {
        member = find_member(rq, shape->members, &m->key);
        rc = member == NULL ? DI_OK : check_member(rq, member, m);
        if (rc != DI_EINVAL)
            continue;

        (void) snprintf(text, sizeof(text), "%s",
                        rq->e->message + sizeof(prefix) - 1);
        return di_shape_fail(rq, "field `%s`: %s", member->name, text);
    }

    return check_missing(rq, shape->members, v);
}

/* The same of a list: the tag, then the other one. */
static int
check_pair_sequence(di_rq_t *rq, const di_shape_t *shape, const di_json_t *v)
{
    di_json_t         *own = (di_json_t *) v, *e = own->v.list.first;
    const di_member_t *m;
    int                rc;

    for (m = shape->members; m->name != NULL; m++) {
        if (e == NULL)
            return di_shape_fail(rq, "invalid length %zu, expected adjacently"
                                 " tagged enum %s", v->v.list.n, shape->name);

        rc = m->shape == shape->of && e->type != DI_JSON_STRING
             ? di_shape_wrong(rq, e, "variant identifier", "a string")
             : check_member(rq, m, e);
        if (rc != DI_OK)
            return rc;
        e->key = (di_str_t) { m->name, strlen(m->name) };
        e = e->next;
    }

    return end_sequence(rq, own, e);
}

/* The tag comes first wherever it stands. */
static int
check_pair(di_rq_t *rq, const di_shape_t *shape, const di_json_t *v)
{
    const di_json_t *tag;
    size_t           n;
    int              rc;

    if (v->type == DI_JSON_ARRAY && rq->official)
        return check_pair_sequence(rq, shape, v);

    if (v->type != DI_JSON_OBJECT)
        return no_object(rq, shape, v, "adjacently tagged enum");

    tag = di_json_get(v, shape->tag);
    if (tag != NULL && rq->official) {
        n = strlen(rq->path);
        rc = di_shape_check(rq, shape->of, tag);
        if (rc != DI_OK)
            return rc;
        leave(rq, n);
    }

    if (tag == NULL && rq->official)
        return di_shape_fail(rq, "missing field `%s`", shape->tag);

    return check_members(rq, shape->members, v, NULL);
}

int
di_shape_check(di_rq_t *rq, const di_shape_t *shape, const di_json_t *v)
{
    static const di_json_t nothing = { .type = DI_JSON_OBJECT };

    switch (shape->kind) {

    case DI_SHAPE_ANY:
        return DI_OK;

    case DI_SHAPE_TEXT:
        return v->type == DI_JSON_STRING ? DI_OK
               : di_shape_wrong(rq, v, shape->name != NULL ? shape->name
                                : "a string", "a string");

    case DI_SHAPE_BOOL:
        return v->type == DI_JSON_TRUE || v->type == DI_JSON_FALSE ? DI_OK
               : di_shape_wrong(rq, v, "a boolean", "a boolean");

    case DI_SHAPE_U8:
        return check_integer(rq, v, UINT8_MAX, "u8");

    case DI_SHAPE_U32:
        return check_integer(rq, v, UINT32_MAX, "u32");

    case DI_SHAPE_U64:
        return check_integer(rq, v, UINT64_MAX, "u64");

    case DI_SHAPE_F32:
        return v->type == DI_JSON_INT || v->type == DI_JSON_UINT
               || v->type == DI_JSON_REAL ? DI_OK
               : di_shape_wrong(rq, v, shape->name != NULL ? shape->name
                                : "f32", "a number");

    case DI_SHAPE_I64:
        return v->type == DI_JSON_INT ? DI_OK
               : di_shape_wrong(rq, v, "i64", "an integer");

    case DI_SHAPE_LIST:
        return v->type == DI_JSON_ARRAY ? check_list(rq, shape->of, v)
               : di_shape_wrong(rq, v, "a sequence", "an array");

    case DI_SHAPE_MAP:
        return v->type == DI_JSON_OBJECT ? DI_OK
               : di_shape_wrong(rq, v, "a map", "an object");

    case DI_SHAPE_STRUCT:
        return check_struct(rq, shape, v);

    case DI_SHAPE_PAIR:
        return check_pair(rq, shape, v);

    case DI_SHAPE_LOOSE:
        return rq->official
               ? check_loose(rq, shape, v->type == DI_JSON_OBJECT ? v
                                                                  : &nothing)
               : check_struct(rq, shape, v);

    case DI_SHAPE_ENUM:
        return check_enum(rq, shape, v);

    case DI_SHAPE_TAGGED:
        return check_tagged(rq, shape, v);

    case DI_SHAPE_TEXT_OR_LIST:
        if (v->type == DI_JSON_STRING)
            return DI_OK;
        if (v->type == DI_JSON_ARRAY)
            return check_list(rq, shape->of, v);
        return rq->official ? di_shape_fail(rq, "%s", shape->name)
               : di_field_type(v, rq->path, shape->expects, rq->e);

    case DI_SHAPE_CUSTOM:
        break;
    }

    return shape->check(rq, v);
}

static int
check_callers(di_rq_t *rq, const di_json_t *v)
{
    const di_json_t *m;
    int              rc = di_shape_check(rq, &di_shape_texts, v);

    if (rc != DI_OK)
        return rc;

    for (m = v->v.list.first; m != NULL; m = m->next) {
        if (di_rq_is(m, "direct"))
            return DI_OK;
    }

    return di_field_refuse(rq->path, "the model alone calls tools, which is"
                           " 'direct'", rq->e);
}
