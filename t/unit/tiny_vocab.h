/*
 * tiny_vocab.h - a vocabulary made in memory, for tests that need tokens of
 * known bytes.
 *
 * Ids 0 to 255 are the single bytes; then come the control tokens, an unused
 * and a user-defined one, and from TINY_WORDS on the caller's words, any
 * bytes.  There are no merges.
 */

#ifndef TINY_VOCAB_H
#define TINY_VOCAB_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer/vocab/di_vocab.h"

enum {
    TINY_EOS = 256,              /* <|endoftext|>                           */
    TINY_START,                  /* <|im_start|>                            */
    TINY_END,                    /* <|im_end|>                              */
    TINY_PAD,                    /* <|pad|>, control, ends nothing          */
    TINY_UNUSED,                 /* no bytes                                */
    TINY_USER,                   /* <tool>, user-defined: shown             */
    TINY_WORDS,
};

typedef struct {
    char  *data;
    size_t len;
    size_t cap;
} tiny_file_t;

static inline void
tiny_put(tiny_file_t *f, const void *p, size_t n)
{
    if (f->len + n > f->cap) {
        f->cap = (f->len + n) * 2;
        f->data = realloc(f->data, f->cap);
        if (f->data == NULL)
            abort();
    }
    memcpy(f->data + f->len, p, n);
    f->len += n;
}

static inline void
tiny_u32(tiny_file_t *f, uint32_t v)
{
    tiny_put(f, &v, 4);
}

static inline void
tiny_str(tiny_file_t *f, const char *s, size_t len)
{
    uint64_t n = len;

    tiny_put(f, &n, 8);
    tiny_put(f, s, len);
}

static inline void
tiny_key(tiny_file_t *f, const char *key, uint32_t type)
{
    tiny_str(f, key, strlen(key));
    tiny_u32(f, type);
}

static inline void
tiny_array(tiny_file_t *f, const char *key, uint32_t type, uint64_t n)
{
    tiny_key(f, key, 9);
    tiny_u32(f, type);
    tiny_put(f, &n, 8);
}

/* A token's bytes in GPT-2's alphabet: printable Latin-1 is itself, the other
 * bytes follow from U+0100 on. */
static inline void
tiny_spelled(tiny_file_t *f, const char *bytes, size_t len)
{
    char     s[512];
    size_t   i, n = 0;
    unsigned b, c, k;

    for (i = 0; i < len && n + 2 < sizeof(s); i++) {
        b = c = (unsigned char) bytes[i];

        if (b < 0x21 || (b > 0x7e && b < 0xa1) || b == 0xad) {
            for (k = 0, c = 0x100; k < b; k++)
                c += k < 0x21 || (k > 0x7e && k < 0xa1) || k == 0xad;
        }

        if (c < 0x80) {
            s[n++] = (char) c;
        } else {
            s[n++] = (char) (0xc0 | c >> 6);
            s[n++] = (char) (0x80 | (c & 0x3f));
        }
    }

    tiny_str(f, s, n);
}

static inline di_vocab_t *
tiny_vocab_make(const char *const special[TINY_WORDS - 256],
                const di_str_t *words, size_t n_words)
{
    static const uint32_t types[] = { 3, 3, 3, 3, 5, 4 };
    tiny_file_t f = { 0 };
    uint64_t    counts[2] = { 0, 6 };
    di_gguf_t  *gguf;
    di_vocab_t *vocab;
    di_err_t    err = { 0 };
    size_t      i;
    char        c;

    tiny_put(&f, "GGUF", 4);
    tiny_u32(&f, 3);
    tiny_put(&f, counts, sizeof(counts));

    tiny_key(&f, "tokenizer.ggml.model", 8);
    tiny_str(&f, "gpt2", 4);
    tiny_key(&f, "tokenizer.ggml.pre", 8);
    tiny_str(&f, "smollm", 6);

    tiny_array(&f, "tokenizer.ggml.tokens", 8, TINY_WORDS + n_words);
    for (i = 0; i < 256; i++) {
        c = (char) i;
        tiny_spelled(&f, &c, 1);
    }
    for (i = 256; i < TINY_WORDS; i++)
        tiny_str(&f, special[i - 256], strlen(special[i - 256]));
    for (i = 0; i < n_words; i++)
        tiny_spelled(&f, words[i].data, words[i].len);

    tiny_array(&f, "tokenizer.ggml.token_type", 4, TINY_WORDS + n_words);
    for (i = 0; i < TINY_WORDS + n_words; i++)
        tiny_u32(&f, i >= 256 && i < TINY_WORDS ? types[i - 256] : 1);

    tiny_array(&f, "tokenizer.ggml.merges", 8, 0);
    tiny_key(&f, "tokenizer.ggml.eos_token_id", 4);
    tiny_u32(&f, TINY_EOS);

    if (di_gguf_open_memory(f.data, f.len, &gguf, &err) != DI_OK
        || di_vocab_open_gguf(gguf, &vocab, &err) != DI_OK)
    {
        printf("tiny vocabulary: %s\n", err.text);
        abort();
    }

    di_gguf_close(gguf);
    free(f.data);
    return vocab;
}

/* words: [n_words], ids from TINY_WORDS on.  Aborts if anything fails. */
static inline di_vocab_t *
tiny_vocab(const di_str_t *words, size_t n_words)
{
    static const char *const special[] = {
        "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>", "<unused>",
        "<tool>",
    };

    return tiny_vocab_make(special, words, n_words);
}

/* The same without ChatML's tokens and without words. */
static inline di_vocab_t *
tiny_vocab_bare(void)
{
    static const char *const special[] = {
        "<a>", "<b>", "<c>", "<d>", "<e>", "<f>",
    };

    return tiny_vocab_make(special, NULL, 0);
}

#endif
