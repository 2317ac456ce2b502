/*
 * output_part.c - what a compiler says of an embedded part of an output's
 * grammar, as an error of the request's field.
 */

#include "output.h"

#include <string.h>

/* A path in the part as one in the field. */
static void
field_path(const di_output_part_t *p, const char *path, char *out, size_t size)
{
    size_t n = strlen(p->root);

    if (strncmp(path, p->root, n) == 0)
        (void) snprintf(out, size, "#%s%s", p->path, path + n);
    else
        (void) snprintf(out, size, "%s", path);
}

void
di_output_error(const di_output_t *out, const di_gram_err_t *err,
                di_api_err_t *e)
{
    const di_output_part_t *p = err->part >= 0 && (size_t) err->part < out->n
                                ? &out->parts[err->part] : NULL;
    char                    path[2 * sizeof(err->path)];

    if (err->code == DI_ENOMEM || (p == NULL && err->code != DI_ELIMIT)) {
        di_api_err_set(e, 500, "server_error", "internal_error", NULL,
                       "The request's grammar could not be made: %s %s.",
                       err->keyword, err->text);
        return;
    }

    if (p == NULL) {
        di_api_err_set(e, 400, "invalid_request_error", "invalid_value", NULL,
                       "The schemas and tools of this request are too much:"
                       " %s %s.", err->keyword, err->text);
        return;
    }

    field_path(p, err->path, path, sizeof(path));
    di_api_err_set(e, 400, "invalid_request_error",
                   err->code == DI_EUNSUPPORTED ? "unsupported_value"
                   : "invalid_value", p->param, "Invalid '%s': %s%s%s%s %s.",
                   p->param, err->keyword, path[0] == '\0' ? "" : " (", path,
                   path[0] == '\0' ? "" : ")", err->text);
}
