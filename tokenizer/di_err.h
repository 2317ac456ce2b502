/*
 * di_err.h - error codes and the error record shared by every library.
 *
 * This header depends on libc alone and is the one header that all folders
 * may include (docs/design.md, "Dependencies").  Functions return DI_OK or a
 * negative DI_E...; a call that has a reason to tell takes a di_err_t last.
 */

#ifndef DI_ERR_H
#define DI_ERR_H

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

enum {
    DI_OK           = 0,
    DI_EINVAL       = -1,    /* caller's argument is wrong               */
    DI_ENOMEM       = -2,    /* allocation failed                        */
    DI_EIO          = -3,    /* system call failed; text has errno       */
    DI_EAGAIN       = -4,    /* not now: wait and call again             */
    DI_ELIMIT       = -5,    /* never: over a limit, it cannot fit       */
    DI_EFORMAT      = -6,    /* foreign data is malformed                */
    DI_EUNSUPPORTED = -7,    /* well-formed, but not supported here      */
    DI_ECLOSED      = -8,    /* the peer is gone                         */
    DI_EPROTO       = -9,    /* the peer speaks another protocol         */
};

typedef struct {
    int    code;             /* DI_E..., 0 = nothing set yet             */
    size_t offset;           /* byte in the input, where that has sense  */
    char   text[160];        /* one sentence, no newline, NUL-terminated */
} di_err_t;

/* Record an error and return its code.  err may be NULL; the first error set
 * wins.  Long texts are cut. */
__attribute__((format(printf, 4, 5)))
static inline int
di_err_set(di_err_t *err, int code, size_t offset, const char *fmt, ...)
{
    va_list ap;

    if (err == NULL || err->code != DI_OK)
        return code;

    err->code = code;
    err->offset = offset;
    va_start(ap, fmt);
    (void) vsnprintf(err->text, sizeof(err->text), fmt, ap);
    va_end(ap);
    return code;
}

#endif
