/*
 * field.c - typed access to request fields; see field.h.
 *
 * Wording and codes follow what OpenAI's API answers ("Invalid type for
 * 'n': expected an integer, but got a string instead."), so that clients that
 * look at code and param find what they know.
 */

#include "field.h"

#include <float.h>
#include <math.h>
#include <stdarg.h>

#define TWO_63  9223372036854775808.0

int
di_field_invalid(di_api_err_t *e, const char *path, const char *code,
                 const char *fmt, ...)
{
    char    text[sizeof(e->message)];
    va_list ap;

    va_start(ap, fmt);
    (void) vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);

    di_api_err_set(e, 400, "invalid_request_error", code, path, "%s", text);
    return DI_EINVAL;
}

int
di_field_type(const di_json_t *v, const char *path, const char *expected,
              di_api_err_t *e)
{
    static const char *const names[] = {
        [DI_JSON_NULL] = "null", [DI_JSON_FALSE] = "a boolean",
        [DI_JSON_TRUE] = "a boolean", [DI_JSON_INT] = "an integer",
        [DI_JSON_UINT] = "an integer", [DI_JSON_REAL] = "a decimal number",
        [DI_JSON_STRING] = "a string", [DI_JSON_ARRAY] = "an array",
        [DI_JSON_OBJECT] = "an object",
    };

    return di_field_invalid(e, path, "invalid_type",
                            "Invalid type for '%s': expected %s, but got %s"
                            " instead.", path, expected, names[v->type]);
}

int
di_field_missing(const char *path, di_api_err_t *e)
{
    return di_field_invalid(e, path, "missing_required_parameter",
                            "Missing required parameter: '%s'.", path);
}

int
di_field_refuse(const char *path, const char *why, di_api_err_t *e)
{
    return di_field_invalid(e, path, "unsupported_parameter",
                            "'%s' is not supported: %s.", path, why);
}

int
di_field_bool(const di_json_t *v, const char *path, bool *out, di_api_err_t *e)
{
    if (v->type != DI_JSON_TRUE && v->type != DI_JSON_FALSE)
        return di_field_type(v, path, "a boolean", e);

    *out = v->type == DI_JSON_TRUE;
    return DI_OK;
}

int
di_field_str(const di_json_t *v, const char *path, di_str_t *out,
             di_api_err_t *e)
{
    if (v->type != DI_JSON_STRING)
        return di_field_type(v, path, "a string", e);

    *out = v->v.str;
    return DI_OK;
}

/* The number as an integer: DI_OK, DI_EINVAL (no integer) or DI_ELIMIT with
 * *out at the end of int64_t's range that it lies beyond. */
static int
to_integer(const di_json_t *v, int64_t *out)
{
    switch (v->type) {

    case DI_JSON_INT:
        *out = v->v.i;
        return DI_OK;

    case DI_JSON_UINT:
        *out = INT64_MAX;
        return DI_ELIMIT;

    case DI_JSON_REAL:
        if (v->v.d != floor(v->v.d))
            return DI_EINVAL;

        if (v->v.d >= TWO_63 || v->v.d < -TWO_63) {
            *out = v->v.d > 0 ? INT64_MAX : INT64_MIN;
            return DI_ELIMIT;
        }

        *out = (int64_t) v->v.d;
        return DI_OK;
    }

    return DI_EINVAL;
}

int
di_field_int(const di_json_t *v, const char *path, int64_t min, int64_t max,
             int64_t *out, di_api_err_t *e)
{
    int64_t i;
    int     rc;

    rc = to_integer(v, &i);
    if (rc == DI_EINVAL)
        return di_field_type(v, path, "an integer", e);

    if (i < min)
        return di_field_invalid(e, path, "integer_below_min_value",
                                "Invalid '%s': integer below minimum value."
                                " Expected a value >= %lld, but got %lld"
                                " instead.", path, (long long) min,
                                (long long) i);

    if (i > max || rc == DI_ELIMIT)
        return di_field_invalid(e, path, "integer_above_max_value",
                                "Invalid '%s': integer above maximum value."
                                " Expected a value <= %lld, but got %lld"
                                "%s instead.", path, (long long) max,
                                (long long) i, rc == DI_OK ? "" : " or more");

    *out = i;
    return DI_OK;
}

int
di_field_u32(const di_json_t *v, const char *path, uint32_t min, uint32_t max,
             uint32_t *out, di_api_err_t *e)
{
    int64_t i;
    int     rc;

    rc = di_field_int(v, path, min, max, &i, e);
    if (rc == DI_OK)
        *out = (uint32_t) i;

    return rc;
}

int
di_field_seed(const di_json_t *v, const char *path, uint64_t *out,
              di_api_err_t *e)
{
    int64_t i;
    int     rc;

    if (v->type == DI_JSON_UINT) {
        *out = v->v.u;
        return DI_OK;
    }

    rc = di_field_int(v, path, INT64_MIN, INT64_MAX, &i, e);
    if (rc == DI_OK)
        *out = (uint64_t) i;

    return rc;
}

int
di_field_real(const di_json_t *v, const char *path, double min, bool above_min,
              double max, double *out, di_api_err_t *e)
{
    double d;

    switch (v->type) {
    case DI_JSON_INT:  d = (double) v->v.i; break;
    case DI_JSON_UINT: d = (double) v->v.u; break;
    case DI_JSON_REAL: d = v->v.d;          break;
    default:
        return di_field_type(v, path, "a decimal number", e);
    }

    if (d < min || (above_min && d == min))
        return di_field_invalid(e, path, "decimal_below_min_value",
                                "Invalid '%s': decimal below minimum value."
                                " Expected a value %s %g, but got %g instead.",
                                path, above_min ? ">" : ">=", min, d);

    if (d > max)
        return di_field_invalid(e, path, "decimal_above_max_value",
                                "Invalid '%s': decimal above maximum value."
                                " Expected a value <= %g, but got %g instead.",
                                path, max, d);

    /* The engine computes with floats: what is above min is above it there. */
    *out = above_min && d - min < FLT_MIN ? min + FLT_MIN : d;
    return DI_OK;
}

int
di_field_array(const di_json_t *v, const char *path, size_t max,
               di_api_err_t *e)
{
    if (v->type != DI_JSON_ARRAY)
        return di_field_type(v, path, "an array", e);

    if (v->v.list.n > max)
        return di_field_invalid(e, path, "array_above_max_length",
                                "Invalid '%s': array too long. Expected an"
                                " array with maximum length %zu, but got an"
                                " array with length %zu instead.", path, max,
                                v->v.list.n);

    return DI_OK;
}

int
di_field_object(const di_json_t *v, const char *path, di_api_err_t *e)
{
    if (v->type != DI_JSON_OBJECT)
        return di_field_type(v, path, "an object", e);

    return DI_OK;
}
