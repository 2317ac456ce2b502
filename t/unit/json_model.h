/*
 * json_model.h - the body reader held against jansson.
 *
 * json_agree() reads the same bytes with both and says whether they agree on
 * validity and, if valid, on every value.  Four differences are meant:
 * jansson refuses integers outside int64_t, which the reader keeps; -0 is an
 * integer for jansson and a real for the reader; the reader wants an object
 * at the top; and jansson overlooks a NUL byte right behind a number.
 */

#ifndef JSON_MODEL_H
#define JSON_MODEL_H

#include <jansson.h>
#include <math.h>
#include <string.h>

#include "tokenizer/api/json.h"

static inline bool
json_same(const di_json_t *a, const json_t *b)
{
    const di_json_t *m;
    const json_t    *v;
    size_t           i = 0;

    switch (a->type) {
    case DI_JSON_NULL:
        return json_is_null(b);
    case DI_JSON_FALSE:
        return json_is_false(b);
    case DI_JSON_TRUE:
        return json_is_true(b);
    case DI_JSON_INT:
        return json_is_integer(b) && json_integer_value(b) == a->v.i;
    case DI_JSON_REAL:
        if (json_is_integer(b))
            return a->v.d == 0 && signbit(a->v.d) && json_integer_value(b) == 0;
        return json_is_real(b) && json_real_value(b) == a->v.d;
    case DI_JSON_STRING:
        return json_is_string(b) && json_string_length(b) == a->v.str.len
               && memcmp(json_string_value(b), a->v.str.data, a->v.str.len)
                  == 0;
    case DI_JSON_ARRAY:
        if (!json_is_array(b) || json_array_size(b) != a->v.list.n)
            return false;
        for (m = a->v.list.first; m != NULL; m = m->next) {
            if (!json_same(m, json_array_get(b, i++)))
                return false;
        }
        return true;
    case DI_JSON_OBJECT:
        if (!json_is_object(b) || json_object_size(b) != a->v.list.n)
            return false;
        for (m = a->v.list.first; m != NULL; m = m->next) {
            v = json_object_getn(b, m->key.data, m->key.len);
            if (v == NULL || !json_same(m, v))
                return false;
        }
        return true;
    }

    return false;               /* UINT: jansson has refused the body       */
}

static inline bool
json_agree(const char *body, size_t len)
{
    di_arena_t   arena = { 0 };
    di_json_t   *ours = NULL;
    json_error_t error;
    json_t      *theirs;
    int          rc;
    bool         same;

    rc = di_json_read(&arena, body, len, DI_JSON_DEPTH_MAX, &ours, NULL);
    theirs = json_loadb(body, len, JSON_REJECT_DUPLICATES, &error);

    if (theirs == NULL)
        same = rc != DI_OK
               || json_error_code(&error) == json_error_numeric_overflow;
    else if (rc != DI_OK)
        same = json_is_array(theirs) || rc == DI_ELIMIT
               || memchr(body, '\0', len) != NULL;
    else
        same = json_same(ours, theirs);

    json_decref(theirs);
    di_arena_free(&arena);
    return same;
}

#endif
