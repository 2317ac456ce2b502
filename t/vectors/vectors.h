/*
 * vectors.h - running golden vectors of the official codec, and of models'
 * own templates.
 *
 * A vector is one line of JSON: "name", "input", "expected".  There are
 * several kinds, told apart by the keys of "input" and "expected"; a kind is
 * one file here that runs an input through the codec (in official mode where
 * Recipe made the vector) and returns what it got in the form of "expected".
 * Comparing, counting and printing differences is done once, in main.c.
 */

#ifndef VECTORS_H
#define VECTORS_H

#include <stdbool.h>

#include <jansson.h>

#include "tokenizer/api/di_api.h"

typedef struct {
    const char *name;           /* what its vectors are called               */
    /* Is this vector one of the kind? */
    bool      (*takes)(const json_t *input, const json_t *expected);
    /* Returns owned what the codec makes of an input, to be compared with
     * "expected" by value.  The vector's line is there for what jansson can't
     * keep, such as integers above INT64_MAX.  Values that differ in every run
     * are replaced by then, as in the vectors.  Prints nothing, never NULL. */
    json_t   *(*run)(const json_t *input, const char *line, size_t len);
} vectors_kind_t;

extern const vectors_kind_t vectors_tokenize, vectors_render, vectors_answer,
                            vectors_prompt;

/* A request in a vector: its API, its options, its body's bytes (appended to
 * b).  What options point at lies in input and in models. */
#define VECTORS_MODELS_MAX  16

di_api_t vectors_api(const json_t *input);
void vectors_options(const json_t *input, di_req_options_t *options,
                     di_model_name_t models[VECTORS_MODELS_MAX]);
void vectors_body(const json_t *input, const char *line, size_t len,
                  di_sbuf_t *b);

/* The vocabulary that a vector names: a folder of --tokenizers, or
 * "deepseek+system".  Opened once; failing ends the program. */
const di_vocab_t *vectors_vocab(const char *name);

/* JSON, whose integers are reals if there is one that jansson can't hold; NULL
 * as json_loadb(). */
json_t *vectors_load(const char *json, size_t len, json_error_t *fault);

/* A file's bytes and a NUL, owned by the caller; path.gz is read if there is
 * no such file.  NULL: no such file, with errno set. */
char *vectors_read(const char *path, size_t *len);

#endif
