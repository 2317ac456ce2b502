/*
 * bpe.c - fuzz encoding: any bytes, in each of the small vocabularies of
 * t/data/tokenizer (run from the repository's root).
 *
 * The first byte chooses the vocabulary, whether special tokens count, and
 * whether the second encoding is done by a new di_tok_t, which is slow.
 * These vocabularies have all bytes, so the ids' bytes must be the text
 * again; ordinary text has no special id; a thread's cache changes nothing;
 * with less room the first ids are the same.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer/vocab/di_vocab.h"

#define N_VOCABS 3

static di_vocab_t *vocabs[N_VOCABS];
static di_tok_t   *toks[N_VOCABS];      /* used for all inputs               */

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int
LLVMFuzzerInitialize(int *argc, char ***argv)
{
    static const char *const paths[N_VOCABS] = {
        "t/data/tokenizer/gpt2.gguf", "t/data/tokenizer/qwen2.gguf",
        "t/data/tokenizer/llama3.gguf",
    };
    di_gguf_t *gguf;
    di_err_t   err = { 0 };

    (void) argc;
    (void) argv;
    for (int i = 0; i < N_VOCABS; i++) {
        if (di_gguf_open(paths[i], &gguf, &err) != DI_OK
            || di_vocab_open_gguf(gguf, &vocabs[i], &err) != DI_OK
            || di_tok_open(vocabs[i], &toks[i]) != DI_OK)
        {
            fprintf(stderr, "%s: %s\n", paths[i], err.text);
            exit(1);
        }
        di_gguf_close(gguf);
    }
    return 0;
}

static void
must(bool cond)
{
    if (!cond)
        abort();
}

static void
check_ids(const di_vocab_t *v, bool raw, const char *text, size_t len,
          const int32_t *ids, size_t n)
{
    size_t pos = 0, token_len;

    for (size_t i = 0; i < n; i++) {
        const char *s = di_vocab_bytes(v, ids[i], &token_len);

        must(s != NULL && token_len > 0 && token_len <= len - pos);
        must(memcmp(text + pos, s, token_len) == 0);
        must(raw || (!di_vocab_is_special(v, ids[i])
                     && di_vocab_special(v, s, token_len) != ids[i]));
        pos += token_len;
    }
    must(pos == len);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int (*encode)(di_tok_t *, const char *, size_t, int32_t *, size_t,
                  size_t *);
    const di_vocab_t *v;
    di_tok_t         *tok;
    int32_t          *ids, *again;
    size_t            which, len, n, n_again;
    char             *text;
    bool              raw;

    if (size == 0)
        return 0;
    which = data[0] % N_VOCABS;
    raw = data[0] >= 128;
    encode = raw ? di_tok_encode_raw : di_tok_encode;
    v = vocabs[which];

    /* Blocks of the exact size show a read or write past the end. */
    len = size - 1;
    text = malloc(len);
    ids = malloc(len * sizeof(*ids));
    again = malloc(len / 2 * sizeof(*again));
    must(text != NULL && ids != NULL && again != NULL);
    memcpy(text, data + 1, len);

    must(encode(toks[which], text, len, ids, len, &n) == DI_OK);
    must(n <= len);
    check_ids(v, raw, text, len, ids, n);

    tok = toks[which];
    if ((data[0] & 0x60) == 0)
        must(di_tok_open(v, &tok) == DI_OK);
    must(encode(tok, text, len, again, len / 2, &n_again)
         == (n > len / 2 ? DI_ELIMIT : DI_OK));
    must(n_again == n);
    must(memcmp(ids, again, (n < len / 2 ? n : len / 2) * sizeof(*ids)) == 0);
    if (tok != toks[which])
        di_tok_close(tok);

    free(text);
    free(ids);
    free(again);
    return 0;
}
