/*
 * grammar_make.h - grammars for the tests, from JSON or from C strings.
 */

#ifndef GRAMMAR_MAKE_H
#define GRAMMAR_MAKE_H

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer/grammar/di_grammar.h"

/* NULL and err where it is refused. */
static inline di_gram_t *
grammar_make(di_gram_kind_t kind, const char *s, size_t len,
             const di_gram_opts_t *opts, di_gram_err_t *err)
{
    di_gram_t *g = NULL;
    void      *blob;
    size_t     bytes;

    if (di_gram_compile(kind, s, len, opts, &blob, &bytes, err) != DI_OK)
        return NULL;
    if (di_gram_open(blob, bytes, &g, NULL) != DI_OK)
        g = NULL;
    free(blob);
    return g;
}

/* {"regex"|"ebnf"|"choice"|"schema": ...} with "any_order", "whitespace",
 * "best_effort". */
static inline di_gram_t *
grammar_of(const json_t *c, di_gram_dropped_t *dropped, di_gram_err_t *err)
{
    static const char *const names[] = { "schema", "regex", "ebnf",
                                         "choice" };
    const di_gram_opts_t opts = {
        .any_order = json_is_true(json_object_get(c, "any_order")),
        .flexible = json_is_true(json_object_get(c, "whitespace")),
        .best_effort = json_is_true(json_object_get(c, "best_effort")),
        .dropped = dropped,
    };
    const json_t *v = NULL;
    di_gram_t    *g;
    char         *s;
    int           kind = 0;

    while (kind < 4 && (v = json_object_get(c, names[kind])) == NULL)
        kind++;
    if (json_is_string(v))
        return grammar_make((di_gram_kind_t) kind, json_string_value(v),
                            json_string_length(v), &opts, err);
    s = json_dumps(v, JSON_ENCODE_ANY);
    g = grammar_make((di_gram_kind_t) kind, s, strlen(s), &opts, err);
    free(s);
    return g;
}

#endif
