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
#include "pretok_re.h"
#include "seams.h"

/* Code points at and above this are of no class in any version of Unicode,
 * but for the variation selectors of plane 14, which are marks: planes 4 to
 * 13 are empty, 14 has tags, too, 15 and 16 are private. */
#define DI_PRETOK_CODES  0x40000u

/* What tokenizer.json means by ByteLevel's use_regex. */
#define DI_PRETOK_GPT2_PATTERN                                              \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+"   \
    "|\\s+(?!\\S)|\\s+"

typedef enum {
    DI_PRETOK_GPT2,         /* GPT-2's pattern                               */
    DI_PRETOK_SMOLLM,       /* each digit apart, then GPT-2's pattern        */
    DI_PRETOK_QWEN2,        /* Qwen2's pattern                               */
    DI_PRETOK_LLAMA3,       /* the same with up to three digits together     */
    DI_PRETOK_DEEPSEEK,     /* DeepSeek V3's and V4's three steps            */
    DI_PRETOK_RE,           /* patterns of the file's own                    */
} di_pretok_kind_t;

typedef struct {
    di_pretok_kind_t kind;
    di_pretok_re_t  *re;    /* of the kind DI_PRETOK_RE, which nothing below
                               but opening and closing is for                */
    size_t (*block)(di_pretok_kind_t kind, const uint8_t *s, uint32_t pos,
                    uint32_t *ends);    /* of pretok_block.h; NULL: not on
                               this machine                                  */
    const di_seams_t *seams;    /* where di_pretok_cut() may cut further;
                               NULL: nowhere                                 */
    uint8_t selectors;      /* class of the variation selectors              */
    uint8_t bytes[256];     /* class of an ASCII byte; 0: not ASCII          */
    uint8_t codes[DI_PRETOK_CODES]; /* class of a code                       */
} di_pretok_t;

/* The pre-tokenizer that GGUF's tokenizer.ggml.pre names; false: none of
 * ours. */
bool di_pretok_kind(di_str_t name, di_pretok_kind_t *kind);

/* Fill the tables.  About 1 ms. */
void di_pretok_init(di_pretok_t *p, di_pretok_kind_t kind);

/* The same for the splits of a tokenizer.json: patterns, each of which
 * isolates its matches in the pieces that those before it left.  Error texts
 * begin with `at`. */
int di_pretok_open(di_pretok_t *p, const char *const *patterns, size_t n,
                   const char *at, di_err_t *err);
void di_pretok_deinit(di_pretok_t *p);

/* End of the pre-token that starts at text[pos], pos < len.  Looks ahead to
 * the end of the run of characters, so a whole text costs O(len). */
size_t di_pretok_next(const di_pretok_t *p, const char *text, size_t len,
                      size_t pos);

/* di_vocab_split(). */
size_t di_pretok_split(const di_pretok_t *p, const char *text, size_t len,
                       size_t at);

#define DI_PRETOK_CUT_MIN  64

/* The ends of pre-tokens, or of pieces of them between seams, from text[pos]
 * on: as many as ends[cap], cap >= DI_PRETOK_CUT_MIN, may take, which is not
 * always cap.  Their number, at least one.  len is below 2^32.  A long text
 * costs O(len) in all. */
size_t di_pretok_cut(const di_pretok_t *p, const char *text, size_t len,
                     size_t pos, uint32_t *ends, size_t cap);

#endif
