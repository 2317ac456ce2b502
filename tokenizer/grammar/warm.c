/*
 * warm.c - what most grammars have, computed when the index is opened.
 *
 * Any string, any number, an integer and any JSON value are the same rules in
 * every schema, so the parts of their states' masks are found before the
 * first request asks, and are never forgotten.
 */

#include <stdlib.h>
#include <string.h>

#include "index.h"

static const char common[] =
    "root ::= %json{} | %json{\"type\":\"string\"} | %json{\"type\":\"number\"}"
    " | %json{\"type\":\"integer\"}";

static bool
find_parts(di_gram_index_t *x, di_gram_t *g)
{
    for (uint32_t r = 0; r < g->head.n_rules; r++) {
        for (uint32_t k = 0; r != g->head.root && k < g->rules[r].n_states;
             k++) {
            if (di_gram_part(x, g, 0, g->rules[r].first + k) == NULL)
                return false;
        }
    }
    return true;
}

bool
di_gram_warm(di_gram_index_t *x)
{
    bool fine = true;

    for (int flexible = 0; flexible < 2 && fine; flexible++) {
        const di_gram_opts_t opts = { .flexible = flexible != 0 };
        di_gram_t           *g = NULL;
        void                *blob = NULL;
        size_t               bytes;

        fine = di_gram_compile(DI_GRAM_OUTPUT, common, strlen(common), &opts,
                               &blob, &bytes, NULL) == DI_OK
               && di_gram_open(blob, bytes, &g, NULL) == DI_OK
               && find_parts(x, g);
        free(blob);
        di_gram_unref(g);
    }
    return fine;
}
