/*
 * grammar_output.c - fuzz grammars of whole answers, with special tokens,
 * parts and free text (t/fuzz/grammar_make.h), and hold the masks against the
 * matcher.
 */

#include "t/fuzz/grammar_make.h"
#include "t/unit/tiny_vocab.h"

static di_gram_index_t *idx;
static di_vocab_t      *vocab;

static void
open_index(void)
{
    static const di_str_t words[] = {
        { "\":\"", 3 }, { "[[", 2 }, { "]}", 2 }, { "true", 4 }, { "12", 2 },
        { "<t", 2 }, { "ool>a", 5 }, { "abc", 3 }, { "-abcd", 5 },
        { "-ab", 3 }, { "-ab1", 4 }, { "\xc3", 1 }, { "\xa9 ", 2 },
        { "{\"a\":1}", 7 }, { "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", 40 },
    };

    vocab = tiny_vocab(words, sizeof(words) / sizeof(words[0]));
    if (di_gram_index_open(vocab, 1 << 20, &idx) != DI_OK)
        abort();
}

/* Tokens drawn by `data`; at each place the mask says what the matcher does,
 * and somewhere on some way there must be one. */
static void
walk_ids(di_gram_t *g, const uint8_t *data, size_t size)
{
    const int32_t    n = (int32_t) di_vocab_size(vocab);
    di_gram_match_t *m, *probe;
    uint64_t         mask[8];

    if (di_gram_match_open(g, 0, &m) != DI_OK)
        abort();
    for (size_t i = 0; i < 12 && i < size; i++) {
        int32_t chosen = -1, first = data[size - 1 - i] * 3;

        if (di_gram_fill_mask(idx, m, mask) != DI_OK)
            abort();
        for (int32_t k = 0; k < n; k++) {
            int32_t id = (first + k) % n;
            int     rc;

            if (di_gram_fork(m, &probe) != DI_OK)
                abort();
            rc = di_gram_accept_id(idx, probe, id);
            if (rc != DI_ELIMIT
                && (mask[id / 64] >> id % 64 & 1) != (rc == DI_OK))
                abort();
            if (rc == DI_OK && chosen < 0 && !di_vocab_is_end(vocab, id))
                chosen = id;
            di_gram_match_close(probe);
        }
        if (chosen < 0)
            break;
        if (di_gram_accept_id(idx, m, chosen) != DI_OK)
            abort();
    }
    di_gram_match_close(m);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const di_gram_opts_t opts = {
        .limits = { .memory_bytes = 16 << 20, .work = 100000 },
    };
    di_gram_t           *g;
    void                *blob;
    size_t               bytes;

    if (idx == NULL)
        open_index();
    (void) fuzz_grammar(DI_GRAM_OUTPUT, data, size);
    if (di_gram_compile(DI_GRAM_OUTPUT, (const char *) data, size, &opts,
                        &blob, &bytes, NULL) != DI_OK)
        return 0;
    if (di_gram_open(blob, bytes, &g, NULL) != DI_OK)
        abort();
    free(blob);
    walk_ids(g, data, size);
    di_gram_unref(g);
    return 0;
}
