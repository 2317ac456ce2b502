/*
 * vocab.h - what a vocabulary holds, for tokenizer/vocab only.
 */

#ifndef DI_VOCAB_INT_H
#define DI_VOCAB_INT_H

#include "di_vocab.h"
#include "merges.h"
#include "pretok.h"
#include "trie.h"

typedef enum {
    DI_VOCAB_UNUSED = 0,    /* a padding id                                  */
    DI_VOCAB_NORMAL,        /* comes from text                               */
    DI_VOCAB_USER,          /* added by the model's maker: only by name      */
    DI_VOCAB_CONTROL,       /* only by name, and no text when generated      */
} di_vocab_kind_t;

/* Open-addressed index of spellings.  A slot is hash << 32 | id + 1, so that
 * only equal hashes cost a look at the spelling; 0 is a free slot. */
typedef struct {
    uint64_t *slots;        /* [mask + 1]                                    */
    uint32_t  mask;
} di_vocab_index_t;

struct di_vocab_s {
    uint32_t  size;         /* ids are 0 to size - 1                         */
    char     *text;         /* the tokens' bytes, one behind the other       */
    uint32_t *starts;       /* [size + 1] in text                            */
    uint8_t  *kinds;        /* [size] di_vocab_kind_t                        */

    int32_t  *specials;     /* [n_specials] control and user ids, sorted by
                               their bytes                                   */
    size_t    n_specials;
    bool      special_first[256];   /* a special token starts with the byte  */
    int32_t   ends[16];     /* ids that end a turn                           */
    size_t    n_ends;
    int32_t   bos;          /* -1: none                                      */
    bool      add_bos;

    int32_t     byte_ids[256];  /* token of one byte; -1: there is none      */
    bool        bytes_missing;  /* a byte has no token                       */
    di_merges_t merges;
    di_trie_t   trie;           /* of the whole tokens (merges.h)            */
    di_pretok_t pretok;
    di_vocab_index_t words; /* tokens that are not whole, and that a
                               pre-token with their bytes becomes even so;
                               slots NULL: none                              */
};

static inline const char *
di_vocab_at(const di_vocab_t *v, int32_t id, size_t *len)
{
    *len = v->starts[id + 1] - v->starts[id];
    return v->text + v->starts[id];
}

static inline uint32_t
di_vocab_hash(const char *s, size_t len)
{
    uint64_t h = len;

    for (size_t i = 0; i < len; i++)
        h = (h ^ (uint8_t) s[i]) * 0x9e3779b97f4a7c15u;
    return (uint32_t) (h >> 32);
}

/* Id of the token in `words` with these bytes, -1: none. */
int32_t di_vocab_word(const di_vocab_t *v, const char *s, size_t len);

/* Longest special token at s; -1: none.  O(log n_specials) per byte. */
int32_t di_vocab_match_special(const di_vocab_t *v, const char *s, size_t len);

#endif
