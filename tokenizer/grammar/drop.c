/*
 * drop.c - a schema without what can't be held.
 *
 * When a compilation that may do its best meets a keyword that can't be held,
 * the keyword is taken out of the document and the compilation begins anew.
 * What is left must allow all that the schema allows, so where taking a
 * keyword out would allow less, something around it goes instead:
 *
 * - under `not` and `if`, the whole `not` or `if`; under `oneOf`, its "only
 *   one", so it becomes an anyOf; under `contains` with `maxContains`, that;
 * - the same where a reference under one of these leads to it;
 * - keywords that speak of what others leave over go before those.
 *
 * So a schema that some text satisfies still has one.
 */

#include <stdlib.h>
#include <string.h>

#include "build.h"

#define HOPS_MAX  16u           /* of references that are followed           */

typedef struct {
    const json_t *doc;
    const char   *path;         /* of the fault, behind '#'                  */
    json_t       *schema;       /* that loses a keyword                      */
    char          key[48];
    char          at[200];      /* its path, behind '#'                      */
} drop_t;

/* ------------------------------------------------------------- pointers -- */

/* The next token of a JSON pointer, "" at its end; false: it is too long. */
static bool
next_token(const char **p, char *token, size_t cap)
{
    size_t n = 0;

    if (**p == '/')
        ++*p;
    for (; **p != '\0' && **p != '/'; ++*p) {
        if (n + 1 == cap)
            return false;
        token[n++] = **p;
        if (**p == '~' && ((*p)[1] == '0' || (*p)[1] == '1'))
            token[n - 1] = *++*p == '0' ? '~' : '/';
    }
    token[n] = '\0';
    return true;
}

static json_t *
child(const json_t *v, const char *token)
{
    char         *end;
    unsigned long i;

    if (!json_is_array(v))
        return json_object_get(v, token);
    i = strtoul(token, &end, 10);
    return *token == '\0' || *end != '\0' ? NULL : json_array_get(v, i);
}

static json_t *
at_pointer(const json_t *doc, const char *p)
{
    json_t *v = (json_t *) doc;
    char    token[200];

    while (v != NULL && *p != '\0') {
        if (!next_token(&p, token, sizeof(token)))
            return NULL;
        v = child(v, token);
    }
    return v;
}

/* What is below a keyword are names, not keywords. */
static bool
holds_names(const char *key)
{
    static const char *const keys[] = {
        "$defs", "definitions", "properties", "patternProperties",
        "dependentSchemas", "dependencies",
    };

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        if (strcmp(keys[i], key) == 0)
            return true;
    }
    return false;
}

/* ----------------------------------------------------------- around it -- */

/* The keyword of a schema that must go before anything below `key` does;
 * NULL: nothing. */
static const char *
guard(const json_t *schema, const char *key)
{
    if (strcmp(key, "not") == 0)
        return "not";
    if (strcmp(key, "if") == 0)
        return "if";
    if (strcmp(key, "oneOf") == 0)
        return "oneOf";
    if (strcmp(key, "contains") == 0
        && json_object_get(schema, "maxContains") != NULL)
        return "maxContains";
    return NULL;
}

static bool
inside(const char *path, const char *pointer)
{
    size_t len = strlen(pointer);

    return strncmp(path, pointer, len) == 0
           && (path[len] == '\0' || path[len] == '/');
}

/* A reference in v leads to the fault, or nobody knows where it leads. */
static bool
leads_there(const drop_t *d, const json_t *v, unsigned hops)
{
    const char   *key, *ref;
    const json_t *list = v, *target;
    json_t       *kid;
    size_t        i;

    json_array_foreach(list, i, kid) {
        if (leads_there(d, kid, hops))
            return true;
    }
    json_object_foreach((json_t *) v, key, kid) {
        ref = strcmp(key, "$ref") == 0 || strcmp(key, "$dynamicRef") == 0
              ? json_string_value(kid) : NULL;
        if (ref == NULL) {
            if (leads_there(d, kid, hops))
                return true;
            continue;
        }
        if (ref[0] != '#' || ref[1] != '/' || strchr(ref, '%') != NULL
            || hops == HOPS_MAX || inside(d->path, ref + 1))
            return true;
        target = at_pointer(d->doc, ref + 1);
        if (target == NULL || leads_there(d, target, hops + 1))
            return true;
    }
    return false;
}

static bool
choose(drop_t *d, const json_t *schema, const char *at, const char *key)
{
    if (strlen(key) >= sizeof(d->key)
        || strlen(at) + strlen(key) + 2 > sizeof(d->at))
        return false;
    d->schema = (json_t *) schema;
    (void) strcpy(d->key, key);
    (void) sprintf(d->at, "%s/%s", at, key);
    return true;
}

/* The first keyword of the document that must go first: one around a
 * reference to the fault, or, if `rest`, one about what is left over.
 * names: v's keys are names. */
static bool
find_first(drop_t *d, const json_t *v, const char *at, bool names, bool rest)
{
    char        below[200];
    const char *key, *first, *p;
    json_t     *kid;
    size_t      i, n;

    json_array_foreach((json_t *) v, i, kid) {
        (void) snprintf(below, sizeof(below), "%s/%zu", at, i);
        if (find_first(d, kid, below, false, rest))
            return true;
    }
    json_object_foreach((json_t *) v, key, kid) {
        first = names ? NULL : guard(v, key);
        if (first != NULL && leads_there(d, kid, 0))
            return choose(d, v, at, first);
        if (rest && !names && strncmp(key, "unevaluated", 11) == 0)
            return choose(d, v, at, key);
        n = (size_t) snprintf(below, sizeof(below), "%s/", at);
        for (p = key; *p != '\0' && n + 3 < sizeof(below); p++) {
            below[n++] = *p == '~' || *p == '/' ? '~' : *p;
            if (*p == '~' || *p == '/')
                below[n++] = *p == '~' ? '0' : '1';
        }
        below[n < sizeof(below) ? n : sizeof(below) - 1] = '\0';
        if (*p == '\0'
            && find_first(d, kid, below, !names && holds_names(key), rest))
            return true;
    }
    return false;
}

/* On the way from the root to the fault. */
static bool
find_guard(drop_t *d)
{
    const char   *p = d->path, *first;
    const json_t *v = d->doc;
    char          token[200], at[200];
    bool          names = false;

    while (v != NULL && *p != '\0') {
        size_t before = (size_t) (p - d->path);

        if (!next_token(&p, token, sizeof(token)))
            return false;
        first = json_is_object(v) && !names ? guard(v, token) : NULL;
        if (first != NULL && *p != '\0') {
            (void) snprintf(at, sizeof(at), "%.*s", (int) before, d->path);
            return choose(d, v, at, first);
        }
        names = !names && json_is_object(v) && holds_names(token);
        v = child(v, token);
    }
    return false;
}

/* ------------------------------------------------------------- the fault -- */

/* What a keyword evaluates, others see. */
static bool
evaluates(const char *key)
{
    static const char *const keys[] = {
        "properties", "patternProperties", "prefixItems", "items",
        "contains", "$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf",
        "oneOf", "not", "if", "dependentSchemas", "dependencies",
    };

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        if (strcmp(keys[i], key) == 0)
            return true;
    }
    return false;
}

/* What must go before a keyword because it is about what that leaves over. */
static const char *
rest_of(const json_t *schema, const char *key)
{
    static const char *const pairs[][2] = {
        { "patternProperties", "additionalProperties" },
        { "properties", "additionalProperties" },
        { "prefixItems", "items" },
        { "items", "additionalItems" },
    };

    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
        if (strcmp(pairs[i][0], key) == 0
            && json_object_get(schema, pairs[i][1]) != NULL)
            return pairs[i][1];
    }
    return NULL;
}

static bool
find_fault(drop_t *d)
{
    const char   *slash = strrchr(d->path, '/'), *p = slash, *rest;
    const json_t *schema;
    char          at[200], key[48];

    (void) snprintf(at, sizeof(at), "%.*s", (int) (slash - d->path), d->path);
    schema = at_pointer(d->doc, at);
    if (!next_token(&p, key, sizeof(key))
        || json_object_get(schema, key) == NULL)
        return false;
    rest = rest_of(schema, key);
    if (rest != NULL)
        return choose(d, schema, at, rest);
    return (evaluates(key) && find_first(d, d->doc, "", false, true))
           || choose(d, schema, at, key);
}

/* Before draft 2019-09 nothing counts beside a reference. */
static bool
reference_is_alone(const json_t *doc, const char *key)
{
    const char *s = json_string_value(json_object_get(doc, "$schema"));

    return strcmp(key, "$ref") == 0 && s != NULL
           && (strstr(s, "draft-07") != NULL || strstr(s, "draft-06") != NULL);
}

static bool
take_out(drop_t *d)
{
    static const char *const kept[] = { "definitions", "$defs", "$schema",
                                        "$id" };
    json_t *v = json_object_get(d->schema, d->key), *keep;
    bool    ok = true;

    if (strcmp(d->key, "oneOf") == 0
        && json_object_get(d->schema, "anyOf") == NULL
        && json_object_set(d->schema, "anyOf", v) != 0)
        return false;
    if (!reference_is_alone(d->doc, d->key))
        return json_object_del(d->schema, d->key) == 0;

    keep = json_object();
    for (size_t i = 0; i < sizeof(kept) / sizeof(kept[0]); i++) {
        v = json_object_get(d->schema, kept[i]);
        ok = ok && (v == NULL || json_object_set(keep, kept[i], v) == 0);
    }
    ok = ok && json_object_clear(d->schema) == 0
         && json_object_update(d->schema, keep) == 0;
    json_decref(keep);
    return ok;
}

bool
di_gram_drop(di_gram_ctx_t *c, di_gram_dropped_t *dropped)
{
    const di_gram_err_t *err = c->err;
    drop_t               d = { .doc = c->doc, .path = err->path + 1 };

    if (err->code != DI_EUNSUPPORTED || c->doc == NULL
        || strncmp(err->path, "#/", 2) != 0
        || strlen(err->path) + 1 == sizeof(err->path)
        || dropped->n == DI_GRAM_DROPPED_MAX)
        return false;
    if (!find_guard(&d) && !find_first(&d, d.doc, "", false, false)
        && !find_fault(&d))
        return false;
    if (!take_out(&d))
        return false;
    dropped->v[dropped->n].part = err->part;
    (void) strcpy(dropped->v[dropped->n].keyword, d.key);
    (void) snprintf(dropped->v[dropped->n].path,
                    sizeof(dropped->v[0].path), "#%.198s", d.at);
    dropped->n++;
    return true;
}
