/*
 * grammar_pcre.h - a regular expression of ours against PCRE2.
 */

#ifndef GRAMMAR_PCRE_H
#define GRAMMAR_PCRE_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>

#include "tokenizer/grammar/di_grammar.h"

/* What PCRE2 says of a whole text: 1, 0, or -1: it can't tell, as the
 * expression is malformed for it or takes too long. */
static inline int
pcre_whole(const char *re, size_t re_len, const char *s, size_t len)
{
    int                  err, rc = -1;
    size_t               at;
    pcre2_code          *code;
    pcre2_match_data    *data;
    pcre2_match_context *context = pcre2_match_context_create(NULL);

    pcre2_set_match_limit(context, 200000);
    code = pcre2_compile((PCRE2_SPTR) re, re_len, PCRE2_UTF
                         | PCRE2_DOLLAR_ENDONLY | PCRE2_NEVER_BACKSLASH_C,
                         &err, &at, NULL);
    if (code != NULL) {
        data = pcre2_match_data_create(1, NULL);
        rc = pcre2_match(code, (PCRE2_SPTR) s, len, 0,
                         PCRE2_ANCHORED | PCRE2_ENDANCHORED, data, context);
        rc = rc >= 0 ? 1 : rc == PCRE2_ERROR_NOMATCH ? 0 : -1;
        pcre2_match_data_free(data);
        pcre2_code_free(code);
    }
    pcre2_match_context_free(context);
    return rc;
}

/* The grammar of an expression; NULL: refused, or no text satisfies it,
 * which *none tells. */
static inline di_gram_t *
gram_regex(const char *re, size_t re_len, bool *none)
{
    const di_gram_opts_t opts = {
        .limits = { .memory_bytes = 16 << 20, .work = 300000 },
    };
    di_gram_t *g;
    void      *blob;
    size_t     bytes;
    int        rc = di_gram_compile(DI_GRAM_REGEX, re, re_len, &opts, &blob,
                                    &bytes, NULL);

    *none = rc == DI_EINVAL;
    if (rc != DI_OK)
        return NULL;
    if (di_gram_open(blob, bytes, &g, NULL) != DI_OK)
        abort();
    free(blob);
    return g;
}

static inline bool
gram_whole(di_gram_t *g, const char *s, size_t len)
{
    di_gram_match_t *m;
    bool             whole;

    if (di_gram_match_open(g, 0, &m) != DI_OK)
        abort();
    whole = di_gram_accept(m, s, len) == DI_OK && di_gram_is_complete(m);
    di_gram_match_close(m);
    return whole;
}

#endif
