/*
 * grammar_make.h - compile foreign bytes as a grammar of one kind: it is
 * refused by name, or the blob opens, and every text that a walk through it
 * finds can be finished.
 */

#ifndef FUZZ_GRAMMAR_MAKE_H
#define FUZZ_GRAMMAR_MAKE_H

#include <stdlib.h>

#include "tokenizer/grammar/di_grammar.h"

/* What is said to complete the text does. */
static inline void
fuzz_shortest(di_gram_match_t *m)
{
    uint8_t bytes[4096];
    size_t  n = di_gram_shortest(m, bytes, sizeof(bytes));

    if (n != SIZE_MAX
        && (di_gram_accept(m, bytes, n) != DI_OK || !di_gram_is_complete(m)))
        abort();
}

/* Take allowed bytes, drawn by `data`; a place where none is must be one
 * where the text may end. */
static inline void
fuzz_walk(di_gram_t *g, const uint8_t *data, size_t size)
{
    di_gram_match_t *m, *probe;

    if (di_gram_match_open(g, 0, &m) != DI_OK)
        abort();
    for (size_t i = 0; i < 24; i++) {
        unsigned first = size > 0 ? data[i % size] * 7u + (unsigned) i : 0;
        unsigned k;
        int      rc = DI_EINVAL;

        for (k = 0; k < 256 && rc == DI_EINVAL; k++) {
            uint8_t byte = (uint8_t) (first + k);

            if (di_gram_fork(m, &probe) != DI_OK)
                abort();
            rc = di_gram_accept(probe, &byte, 1);
            if (rc == DI_OK) {
                di_gram_match_close(m);
                m = probe;
            } else {
                di_gram_match_close(probe);
            }
        }
        if (rc == DI_EINVAL && !di_gram_is_complete(m))
            abort();
        if (rc != DI_OK)
            break;
    }
    fuzz_shortest(m);
    di_gram_match_close(m);
}

static inline int
fuzz_grammar(di_gram_kind_t kind, const uint8_t *data, size_t size)
{
    di_gram_opts_t opts = {
        .any_order = size % 2 == 0, .flexible = size % 3 == 0,
        .best_effort = size % 5 == 0,
        .limits = { .memory_bytes = 16 << 20, .work = 300000 },
    };
    di_gram_err_t  err = { 0 };
    di_gram_t     *g;
    void          *blob;
    size_t         bytes;
    int            rc = di_gram_compile(kind, (const char *) data, size,
                                        &opts, &blob, &bytes, &err);

    if (rc != DI_OK) {
        if (err.code != rc || err.keyword[0] == '\0' || err.text[0] == '\0')
            abort();
        return 0;
    }
    if (di_gram_open(blob, bytes, &g, NULL) != DI_OK)
        abort();
    free(blob);
    fuzz_walk(g, data, size);
    di_gram_unref(g);
    return 0;
}

#endif
