/*
 * pretok.h - cutting text into pre-tokens, the pieces that BPE works on.
 *
 * Inside tokenizer/vocab only.  A di_pretok_t is immutable after init.
 */

#ifndef DI_PRETOK_H
#define DI_PRETOK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "di_gguf.h"

/* Code points at and above this are letters, numbers or spaces in no version
 * of Unicode: planes 4 to 13 are empty, 14 has tags and variation selectors,
 * 15 and 16 are private. */
#define DI_PRETOK_CODES  0x40000u

typedef enum {
    DI_PRETOK_GPT2,         /* GPT-2's pattern                               */
    DI_PRETOK_SMOLLM,       /* each digit apart, then GPT-2's pattern        */
    DI_PRETOK_QWEN2,        /* Qwen2's pattern                               */
    DI_PRETOK_LLAMA3,       /* the same with up to three digits together     */
} di_pretok_kind_t;

typedef struct {
    di_pretok_kind_t kind;
    uint8_t bytes[256];     /* class of an ASCII byte; 0: not ASCII          */
    uint8_t codes[DI_PRETOK_CODES / 4];  /* 2 bits each: class of a code     */
} di_pretok_t;

/* The pre-tokenizer that GGUF's tokenizer.ggml.pre names; false: none of
 * ours. */
bool di_pretok_kind(di_str_t name, di_pretok_kind_t *kind);

/* Fill the tables.  About 1 ms. */
void di_pretok_init(di_pretok_t *p, di_pretok_kind_t kind);

/* End of the pre-token that starts at text[pos], pos < len.  Looks ahead to
 * the end of the run of characters, so a whole text costs O(len). */
size_t di_pretok_next(const di_pretok_t *p, const char *text, size_t len,
                      size_t pos);

#endif
