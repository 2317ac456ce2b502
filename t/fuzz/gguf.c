/*
 * gguf.c - fuzz the GGUF reader: open any bytes, then read all that opened,
 * and encode with its vocabulary if it has one.
 */

#include <stdlib.h>
#include <string.h>

#include "tokenizer/vocab/di_vocab.h"

static const char *const keys[] = {
    "general.alignment", "u8", "str", "ints", "strs", "tokenizer.ggml.tokens",
};

static void
read_key(const di_gguf_t *g, const char *key)
{
    uint64_t u, n;
    int64_t  i[8];
    double   d[8];
    bool     b;
    di_str_t s[8];

    (void) di_gguf_u64(g, key, &u);
    (void) di_gguf_f64(g, key, d);
    (void) di_gguf_bool(g, key, &b);
    (void) di_gguf_str(g, key, s);
    (void) di_gguf_array(g, key, &n);
    (void) di_gguf_array_i64(g, key, i, 8);
    (void) di_gguf_array_f64(g, key, d, 8);
    (void) di_gguf_array_str(g, key, s, 8);
}

static void
read_vocab(const di_gguf_t *g)
{
    static const char text[] = "ab abab  b<bos>\n12 'sab\xff\xc3\xa9";
    di_vocab_t       *v;
    di_tok_t         *tok;
    int32_t           ids[sizeof(text)];
    size_t            n;

    if (di_vocab_open_gguf(g, &v, NULL) != DI_OK)
        return;
    if (di_tok_open(v, &tok) != DI_OK)
        abort();
    if (di_tok_encode(tok, text, sizeof(text), ids, sizeof(text), &n)
        != DI_OK)
        abort();
    for (size_t i = 0; i < n; i++) {
        if (di_vocab_is_special(v, ids[i]))
            abort();
    }
    if (di_tok_encode_raw(tok, text, sizeof(text), ids, sizeof(text), &n)
        != DI_OK)
        abort();
    di_tok_close(tok);
    di_vocab_close(v);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    di_gguf_t       *g;
    volatile uint8_t sink;
    uint8_t          print[16];

    if (di_gguf_open_memory(data, size, &g, NULL) != DI_OK)
        return 0;

    for (size_t k = 0; k < sizeof(keys) / sizeof(keys[0]); k++)
        read_key(g, keys[k]);
    for (uint64_t i = 0; i < di_gguf_n_tensors(g); i++) {
        const di_gguf_tensor_t *t = di_gguf_tensor(g, i);
        char                    name[65] = { 0 };

        memcpy(name, t->name.data, t->name.len);
        if (strlen(name) == t->name.len && di_gguf_find(g, name) != t)
            abort();
        sink = *(const uint8_t *) t->data;
        sink = ((const uint8_t *) t->data)[t->bytes - 1];
    }
    (void) sink;
    (void) di_gguf_fingerprint(g, print);
    read_vocab(g);
    di_gguf_close(g);
    return 0;
}
