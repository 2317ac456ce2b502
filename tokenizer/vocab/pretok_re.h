/*
 * pretok_re.h - cutting text by a vocabulary's own patterns.
 *
 * Inside tokenizer/vocab only; for patterns that pretok.c has no scanner for.
 * Immutable once open, for any number of threads.
 */

#ifndef DI_PRETOK_RE_H
#define DI_PRETOK_RE_H

#include <stddef.h>
#include <stdint.h>

#include "../di_err.h"

#define DI_PRETOK_RE_STEPS  8

typedef struct di_pretok_re_s di_pretok_re_t;

/* patterns[n], n <= DI_PRETOK_RE_STEPS: each isolates its matches in the
 * pieces that those before it left.  They are in Oniguruma's syntax, of which
 * the part is taken that means the same to PCRE2, or can be said to it:
 * DI_EUNSUPPORTED names what isn't. */
int di_pretok_re_open(const char *const *patterns, size_t n, const char *at,
                      di_pretok_re_t **re, di_err_t *err);
void di_pretok_re_close(di_pretok_re_t *re);

/* The ends of all pre-tokens of a text of less than 4 GB: *n of them, *ends
 * owned by the caller.  Invalid bytes are matched by nothing.  DI_ENOMEM, or
 * DI_ELIMIT if a pattern gives up. */
int di_pretok_re_cut(const di_pretok_re_t *re, const char *text, size_t len,
                     uint32_t **ends, size_t *n);

#endif
