/*
 * field.h - typed access to the fields of a request body, with the errors
 * that OpenAI's API gives for wrong ones.
 *
 * `path` names the field in messages and in the error's "param", for example
 * messages[2].content.  Every function returns DI_OK, or DI_EINVAL with *e
 * filled (400, invalid_request_error).
 *
 * An integer field takes any JSON number without a fractional part: JSON has
 * one number type, and 1.0 or 1e2 are integers to JSON Schema and to every
 * client library that prints them.
 */

#ifndef DI_FIELD_H
#define DI_FIELD_H

#include "json.h"

int di_field_invalid(di_api_err_t *e, const char *path, const char *code,
                     const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
int di_field_type(const di_json_t *v, const char *path, const char *expected,
                  di_api_err_t *e);
int di_field_missing(const char *path, di_api_err_t *e);

/* A documented field that can't be honoured: "'path' is not supported: why".*/
int di_field_refuse(const char *path, const char *why, di_api_err_t *e);

int di_field_bool(const di_json_t *v, const char *path, bool *out,
                  di_api_err_t *e);
int di_field_str(const di_json_t *v, const char *path, di_str_t *out,
                 di_api_err_t *e);
int di_field_int(const di_json_t *v, const char *path, int64_t min,
                 int64_t max, int64_t *out, di_api_err_t *e);
int di_field_u32(const di_json_t *v, const char *path, uint32_t min,
                 uint32_t max, uint32_t *out, di_api_err_t *e);
/* Any integer of 64 bits; a negative one as its two's complement. */
int di_field_seed(const di_json_t *v, const char *path, uint64_t *out,
                  di_api_err_t *e);
/* A number in [min, max]; above_min: min itself is out. */
int di_field_real(const di_json_t *v, const char *path, double min,
                  bool above_min, double max, double *out, di_api_err_t *e);
int di_field_array(const di_json_t *v, const char *path, size_t max,
                   di_api_err_t *e);
int di_field_object(const di_json_t *v, const char *path, di_api_err_t *e);

#endif
