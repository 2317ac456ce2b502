/*
 * tokenize.c - fuzz the bodies of /tokenize and /detokenize.
 *
 * The first byte chooses which.  A body is read, or refused with a status and
 * a message; what was read can be used: ids are below the vocabulary's size.
 */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer/api/di_tokenize.h"

#define VOCAB 1000

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
must(bool cond)
{
    if (!cond)
        abort();
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    di_tokenize_t *t = NULL;
    di_api_err_t   e = { 0 };
    size_t         i;
    char          *body;
    int            rc;

    if (size == 0)
        return 0;

    body = malloc(size - 1);
    must(body != NULL || size == 1);
    memcpy(body, data + 1, size - 1);

    rc = (data[0] & 1) == 0
         ? di_tokenize_parse(body, size - 1, &t, &e)
         : di_detokenize_parse(body, size - 1, VOCAB, &t, &e);
    free(body);

    must((rc == DI_OK) == (e.status == 0));
    must((rc == DI_OK) == (e.message[0] == '\0'));

    for (i = 0; rc == DI_OK && i < t->n_tokens; i++)
        must(t->tokens[i] >= 0 && t->tokens[i] < VOCAB);

    di_tokenize_close(t);
    return 0;
}
