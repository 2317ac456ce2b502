/*
 * output_part.c - what a compiler says of an embedded part of an output's
 * grammar: as an error of the request's field, or left out.
 */

#include "output.h"

#include <stdlib.h>
#include <string.h>

static di_output_part_t *
part_of(const di_output_t *out, const di_gram_err_t *err)
{
    return err->part >= 0 && (size_t) err->part < out->n
           ? &out->parts[err->part] : NULL;
}

/* ------------------------------------------------------------------ error */

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
    const di_output_part_t *p = part_of(out, err);
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

/* ------------------------------------------------------------ leaving out */

/* The step of a JSON pointer at p, "~1" and "~0" undone; *end: behind it. */
static size_t
step(const char *p, char *out, const char **end)
{
    size_t n = 0;

    for (; *p != '\0' && *p != '/'; p++) {
        out[n] = *p;
        if (p[0] == '~' && (p[1] == '0' || p[1] == '1'))
            out[n] = *++p == '0' ? '~' : '/';
        n++;
    }

    *end = p;
    return n;
}

/* The place of a member or element; NULL: there is none. */
static di_json_t **
find(di_json_t *list, const char *name, size_t len)
{
    di_json_t **at;
    char        digits[24];
    size_t      i;

    if (list->type != DI_JSON_OBJECT && list->type != DI_JSON_ARRAY)
        return NULL;

    at = &list->v.list.first;
    for (i = 0; *at != NULL; at = &(*at)->next, i++) {
        if (list->type == DI_JSON_OBJECT) {
            if ((*at)->key.len == len
                && memcmp((*at)->key.data, name, len) == 0)
                return at;
        } else if ((size_t) snprintf(digits, sizeof(digits), "%zu", i) == len
                   && memcmp(digits, name, len) == 0) {
            return at;
        }
    }

    return NULL;
}

/* Take the member of an object that "#/a/b" leads to out of its tree. */
static bool
take_out(di_json_t *root, const char *path)
{
    di_json_t  *list = root, **at = NULL;
    const char *p = path + 1;
    char        name[sizeof(((di_gram_err_t *) 0)->path)];
    size_t      len;

    if (path[0] != '#')
        return false;

    while (*p == '/') {
        if (at != NULL)
            list = *at;
        len = step(p + 1, name, &p);
        at = find(list, name, len);
        if (at == NULL)
            return false;
    }

    if (at == NULL || list->type != DI_JSON_OBJECT)
        return false;

    *at = (*at)->next;
    list->v.list.n--;
    return true;
}

/* Put b in the place of a part; it is no longer than the part. */
static void
replace(di_output_t *out, di_output_part_t *p, const di_sbuf_t *b)
{
    di_sbuf_t *text = &out->text;
    size_t     less = p->len - b->len, i;

    memcpy(text->data + p->at, b->data, b->len);
    memmove(text->data + p->at + b->len, text->data + p->at + p->len,
            text->len - p->at - p->len);
    text->len -= less;
    p->len = b->len;

    for (i = (size_t) (p - out->parts) + 1; i < out->n; i++)
        out->parts[i].at -= less;
}

bool
di_output_relax(di_output_t *out, const di_gram_err_t *err)
{
    di_output_part_t *p = part_of(out, err);
    di_arena_t        arena = { 0 };
    di_sbuf_t         b = { 0 };
    di_json_t        *root;
    bool              done = false;

    if (p == NULL || !p->best_effort || err->code != DI_EUNSUPPORTED)
        return false;

    if (di_json_read_lax(&arena, out->text.data + p->at, p->len,
                         DI_JSON_DEPTH_MAX, &root, NULL) == DI_OK
        && take_out(root, err->path))
    {
        di_json_add_tree(&b, root, DI_JSON_COMPACT);
        done = !b.failed && b.len < p->len;
        if (done)
            replace(out, p, &b);
    }

    di_sbuf_free(&b);
    di_arena_free(&arena);
    return done;
}
