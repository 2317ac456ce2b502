/*
 * grammar_blob.c - fuzz what an engine is handed as a compiled grammar: it
 * is refused, or can be matched with, masked, forked and rolled back.
 *
 * The first byte says how many of the last ones are the text; the rest is
 * the blob.
 */

#include <stdlib.h>

#include "t/unit/tiny_vocab.h"
#include "tokenizer/grammar/di_grammar.h"

static di_gram_index_t *idx;
static di_vocab_t      *vocab;

static void
open_index(void)
{
    static const di_str_t words[] = {
        { "\":\"", 3 }, { "[[", 2 }, { "]}", 2 }, { "true", 4 }, { "12", 2 },
    };

    vocab = tiny_vocab(words, 5);
    if (di_gram_index_open(vocab, 1 << 20, &idx) != DI_OK)
        abort();
}

static void
follow(di_gram_t *g, const uint8_t *text, size_t n)
{
    uint64_t         mask[8];
    uint8_t          forced[64];
    di_gram_match_t *m, *fork;
    int              rc;

    if (di_gram_match_open(g, 3, &m) != DI_OK)
        return;
    for (size_t i = 0; i < n; i++) {
        rc = di_gram_fill_mask(idx, m, mask);
        if (rc == DI_ELIMIT)    /* as the engine, which ends the sequence    */
            break;
        if (rc != DI_OK)
            abort();
        if (di_gram_accept_id(idx, m, text[i]) == DI_OK
            && (mask[text[i] / 64] >> text[i] % 64 & 1) == 0)
            abort();
        (void) di_gram_forced(m, forced, sizeof(forced));
        (void) di_gram_shortest(m, forced, sizeof(forced));
        if (text[i] % 7 == 0)
            (void) di_gram_rollback(m, text[i] % 4);
        if (text[i] % 11 == 0 && di_gram_fork(m, &fork) == DI_OK) {
            di_gram_match_close(m);
            m = fork;
        }
    }
    di_gram_match_close(m);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    di_gram_t *g;
    size_t     n;

    if (idx == NULL)
        open_index();
    if (size == 0)
        return 0;
    n = data[0] % 64;
    n = n < size ? n : size - 1;
    if (di_gram_open(data + 1, size - 1 - n, &g, NULL) != DI_OK)
        return 0;
    follow(g, data + size - n, n);
    di_gram_unref(g);
    return 0;
}
