/*
 * schema_unique.c - the values that can satisfy a conjunction, where they are
 * few.
 *
 * Items that must differ are held by the set of values that were there, so
 * the values must be known beforehand.  Constants, lists of them, true,
 * false, null and short ranges of integers are; the list may have values
 * that something else forbids, but none is missing.
 */

#include <math.h>

#include "schema.h"

#define REFS_MAX  8u            /* references and lists in each other        */

static bool
same_number(const json_t *a, const json_t *b)
{
    double real;

    if (json_is_integer(a) && json_is_integer(b))
        return json_integer_value(a) == json_integer_value(b);
    if (json_is_real(a) && json_is_real(b))
        return json_real_value(a) == json_real_value(b);
    real = json_real_value(json_is_real(a) ? a : b);
    return real == floor(real) && fabs(real) < 9.2e18
           && (json_int_t) real == json_integer_value(json_is_real(a) ? b
                                                                      : a);
}

/* Equal as JSON Schema has it: 1 is 1.0. */
static bool
same(const json_t *a, const json_t *b)
{
    const char *key;
    json_t     *v;

    if (json_is_number(a) && json_is_number(b))
        return same_number(a, b);
    if (json_is_array(a) && json_is_array(b)) {
        for (size_t i = 0; i < json_array_size(a); i++) {
            v = json_array_get(b, i);
            if (v == NULL || !same(json_array_get(a, i), v))
                return false;
        }
        return json_array_size(a) == json_array_size(b);
    }
    if (json_is_object(a) && json_is_object(b)) {
        json_object_foreach((json_t *) a, key, v) {
            const json_t *other = json_object_get(b, key);

            if (other == NULL || !same(v, other))
                return false;
        }
        return json_object_size(a) == json_object_size(b);
    }
    return json_equal(a, b);
}

/* Add a value unless it is there; false: there are too many. */
static bool
add(di_gram_schema_t *x, json_t *list, json_t *v, uint32_t max)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        if (same(json_array_get(list, i), v))
            return true;
    }
    di_gram_work(x->c, json_array_size(list) + 1);
    if (json_array_size(list) == max)
        return false;
    if (json_array_append(list, v) != 0)
        di_gram_fail(x->c, DI_ENOMEM, "schema", "", "no memory");
    return true;
}

static bool
add_all(di_gram_schema_t *x, json_t *list, const json_t *values,
        uint32_t max)
{
    for (size_t i = 0; i < json_array_size(values); i++) {
        if (!add(x, list, json_array_get(values, i), max))
            return false;
    }
    return json_is_array(values);
}

static json_t *
new_list(di_gram_schema_t *x)
{
    return di_gram_keep(x->c, json_array());
}

/* A bound as the least or greatest integer within; false: none. */
static bool
bound(const json_t *schema, const char *key, const char *exclusive, int step,
      json_int_t *v)
{
    const json_t *at = json_object_get(schema, key);
    const json_t *past = json_object_get(schema, exclusive);

    if (json_is_integer(at))
        *v = json_integer_value(at);
    else if (json_is_integer(past)
             && llabs(json_integer_value(past)) < INT32_MAX)
        *v = json_integer_value(past) + step;
    else
        return false;
    return true;
}

static bool
add_integers(di_gram_schema_t *x, const json_t *schema, json_t *list,
             uint32_t max)
{
    json_int_t lo, hi;

    if (!bound(schema, "minimum", "exclusiveMinimum", 1, &lo)
        || !bound(schema, "maximum", "exclusiveMaximum", -1, &hi)
        || (hi >= lo && (uint64_t) hi - (uint64_t) lo >= max))
        return false;
    for (; lo <= hi; lo++) {
        if (!add(x, list, di_gram_keep(x->c, json_integer(lo)), max))
            return false;
    }
    return true;
}

static bool
add_type(di_gram_schema_t *x, const json_t *schema, const char *type,
         json_t *list, uint32_t max)
{
    if (strcmp(type, "boolean") == 0)
        return add(x, list, json_true(), max)
               && add(x, list, json_false(), max);
    if (strcmp(type, "null") == 0)
        return add(x, list, json_null(), max);
    return strcmp(type, "integer") == 0
           && add_integers(x, schema, list, max);
}

static bool
add_types(di_gram_schema_t *x, const json_t *schema, json_t *list,
          uint32_t max)
{
    const json_t *types = json_object_get(schema, "type"), *v;
    size_t        i;

    if (json_is_string(types))
        return add_type(x, schema, json_string_value(types), list, max);
    json_array_foreach(types, i, v) {
        if (!json_is_string(v)
            || !add_type(x, schema, json_string_value(v), list, max))
            return false;
    }
    return json_array_size(types) > 0;
}

static json_t *values_of(di_gram_schema_t *x, const json_t *schema,
                         uint32_t max, unsigned refs);

/* The values of one of these schemas, or of any of them. */
static json_t *
of_list(di_gram_schema_t *x, const json_t *schemas, bool any, uint32_t max,
        unsigned refs)
{
    json_t *all = new_list(x), *values;

    for (size_t i = 0; i < json_array_size(schemas); i++) {
        values = values_of(x, json_array_get(schemas, i), max, refs + 1);
        if (values != NULL && !any)
            return values;
        if (any && (values == NULL || !add_all(x, all, values, max)))
            return NULL;
    }
    return any && json_array_size(schemas) > 0 ? all : NULL;
}

/* All values that a schema allows, and perhaps more; NULL: not known, or over
 * max. */
static json_t *
values_of(di_gram_schema_t *x, const json_t *schema, uint32_t max,
          unsigned refs)
{
    const json_t *ref = json_object_get(schema, "$ref"), *v;
    json_t       *list = new_list(x), *found = NULL;

    di_gram_work(x->c, 8);
    if (json_is_false(schema))
        return list;
    if (!json_is_object(schema) || refs > REFS_MAX)
        return NULL;
    if (json_is_string(ref))
        found = values_of(x, di_gram_ref_target(x, schema, "$ref",
                                                json_string_value(ref)),
                          max, refs + 1);
    if (found != NULL || (ref != NULL && x->draft7))
        return found;
    v = json_object_get(schema, "const");
    if (v != NULL)
        return add(x, list, (json_t *) v, max) ? list : NULL;
    if (add_all(x, list, json_object_get(schema, "enum"), max))
        return list;
    list = new_list(x);
    if (add_types(x, schema, list, max))
        return list;
    found = of_list(x, json_object_get(schema, "allOf"), false, max, refs);
    if (found == NULL)
        found = of_list(x, json_object_get(schema, "anyOf"), true, max, refs);
    if (found == NULL)
        found = of_list(x, json_object_get(schema, "oneOf"), true, max, refs);
    return found;
}

bool
di_gram_finite(di_gram_schema_t *x, di_gram_conj_t conj, json_t *list,
               uint32_t max)
{
    json_t *values = NULL;

    for (uint32_t i = 0; i < conj.n && values == NULL; i++) {
        const di_gram_lit_t *lit = &conj.v[i];

        if (lit->negated)
            continue;
        if (lit->constant)
            return add(x, list, (json_t *) lit->v, max);
        values = values_of(x, lit->v, max, 0);
    }
    return values != NULL && add_all(x, list, values, max);
}
