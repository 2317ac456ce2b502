/*
 * vocab.h - what a vocabulary holds, for tokenizer/vocab only.
 */

#ifndef DI_VOCAB_INT_H
#define DI_VOCAB_INT_H

#include <string.h>

#include "di_vocab.h"
#include "merges.h"
#include "nfc.h"
#include "pretok.h"
#include "seams.h"
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

/* Up to DI_VOCAB_KEY_MAX bytes as two words. */
#define DI_VOCAB_KEY_MAX  15

typedef struct {
    uint64_t low;           /* bytes 0 to 7                                  */
    uint64_t high;          /* bytes 8 to 14; the length on top, below 16    */
} di_vocab_key_t;

/* A whole token of up to DI_VOCAB_WHOLE_MAX bytes, four in a cache line. */
#define DI_VOCAB_WHOLE_MAX  12

typedef struct {
    uint64_t low;           /* bytes 0 to 7                                  */
    uint32_t high;          /* bytes 8 to 11                                 */
    uint32_t id;            /* and the length on top; 0: a free slot         */
} di_vocab_whole_t;

/* Tokens that only their name gives. */
typedef struct {
    int32_t *ids;           /* [n] sorted by the tokens' bytes               */
    size_t   n;
    bool     first[256];    /* one of them starts with the byte              */
} di_vocab_names_t;

struct di_vocab_s {
    uint32_t  size;         /* ids are 0 to size - 1                         */
    char     *text;         /* the tokens' bytes, one behind the other       */
    uint32_t *starts;       /* [size + 1] in text                            */
    uint8_t  *kinds;        /* [size] di_vocab_kind_t                        */

    di_vocab_names_t names[2];  /* the added tokens; late ones: [1]         */
    int32_t   ends[16];     /* ids that end a turn                           */
    size_t    n_ends;
    int32_t   bos;          /* -1: none                                      */
    bool      add_bos;
    char     *template_text;    /* chat template, NUL-terminated; NULL: none */
    size_t    template_len;     /* bytes                                     */
    char     *model_type;   /* NULL: not known                               */

    int32_t     byte_ids[256];  /* token of one byte; -1: there is none      */
    bool        bytes_missing;  /* a byte has no token                       */
    di_merges_t merges;
    size_t      longest;        /* bytes of the longest token                */
    di_trie_t   trie;           /* of the whole tokens (merges.h)            */
    di_vocab_whole_t *wholes;   /* [wholes_mask + 1] the short ones by their
                                   bytes, open-addressed: what a trie finds
                                   in a step for each byte, found in one     */
    uint64_t    wholes_mask;
    bool        normal;         /* text is brought to this form first        */
    di_nfc_t    nfc;
    di_pretok_t pretok;
    di_seams_t  seams;
    int32_t    *chars;      /* [DI_SEAMS_END - DI_SEAMS_FIRST] whole tokens of
                               one such character, -1: none; NULL: encoding
                               can't start from characters                   */
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

/* n bytes, 1 to 8, as a word. */
static inline uint64_t
di_vocab_few(const char *s, size_t n)
{
    const uint8_t *p = (const uint8_t *) s;
    uint64_t       word;
    uint32_t       low, high;

    if (n == 8) {
        memcpy(&word, s, 8);
        return word;
    }
    if (n >= 4) {
        memcpy(&low, s, 4);
        memcpy(&high, s + n - 4, 4);
        return low | (uint64_t) high << (n * 8 - 32);
    }
    return p[0] | (uint32_t) p[n / 2] << (n / 2 * 8)
           | (uint32_t) p[n - 1] << (n * 8 - 8);
}

static inline uint32_t
di_vocab_hash(const char *s, size_t len)
{
    uint64_t h = len;

    while (len > 0) {
        size_t n = len < 8 ? len : 8;

        h = (h ^ di_vocab_few(s, n)) * 0x9e3779b97f4a7c15u;
        h ^= h >> 32;
        s += n;
        len -= n;
    }
    return (uint32_t) (h >> 24);
}

/* The key of len > 0 bytes; `left` bytes of text start at s.  More than
 * DI_VOCAB_KEY_MAX have one that is no text's.  Where there is room both words
 * are loaded whole and cut. */
static inline di_vocab_key_t
di_vocab_key(const char *s, size_t len, size_t left)
{
    static const struct {
        di_vocab_key_t bits;            /* of the words, that count          */
        di_vocab_key_t more;            /* what is added to them             */
    } cuts[DI_VOCAB_KEY_MAX + 2] = {
#define CUT_LOW(n)   { { UINT64_MAX >> (64 - 8 * (n)), 0 },                 \
                       { 0, (uint64_t) (n) << 56 } }
#define CUT_HIGH(n)  { { UINT64_MAX, UINT64_MAX >> (128 - 8 * (n)) },       \
                       { 0, (uint64_t) (n) << 56 } }
        { { 0, 0 }, { 0, 0 } }, CUT_LOW(1), CUT_LOW(2), CUT_LOW(3),
        CUT_LOW(4), CUT_LOW(5), CUT_LOW(6), CUT_LOW(7), CUT_LOW(8),
        CUT_HIGH(9), CUT_HIGH(10), CUT_HIGH(11), CUT_HIGH(12), CUT_HIGH(13),
        CUT_HIGH(14), CUT_HIGH(15), { { 0, 0 }, { 1, 0 } },
#undef CUT_LOW
#undef CUT_HIGH
    };
    size_t         i = len <= DI_VOCAB_KEY_MAX ? len : DI_VOCAB_KEY_MAX + 1;
    di_vocab_key_t key = { 0, 0 };

    if (left >= sizeof(key))
        memcpy(&key, s, sizeof(key));
    else
        memcpy(&key, s, left);
    key.low = (key.low & cuts[i].bits.low) | cuts[i].more.low;
    key.high = (key.high & cuts[i].bits.high) | cuts[i].more.high;
    return key;
}

/* 64 bits, the upper ones the better. */
static inline uint64_t
di_vocab_key_hash(di_vocab_key_t key)
{
    return (key.low ^ key.high * 0x9e3779b97f4a7c15u) * 0xd6e8feb86659fd93u;
}

/* Where a search for a whole token starts. */
static inline const di_vocab_whole_t *
di_vocab_whole_home(const di_vocab_t *v, di_vocab_key_t key)
{
    return &v->wholes[di_vocab_key_hash(key) >> 32 & v->wholes_mask];
}

/* The slot of a whole token, or the free one where it would be. */
static inline di_vocab_whole_t *
di_vocab_whole_slot(const di_vocab_t *v, di_vocab_key_t key)
{
    uint64_t i = di_vocab_key_hash(key) >> 32 & v->wholes_mask;

    while (v->wholes[i].id != 0
           && (v->wholes[i].low != key.low
               || v->wholes[i].high != (uint32_t) key.high
               || v->wholes[i].id >> 24 != key.high >> 56))
        i = (i + 1) & v->wholes_mask;
    return &v->wholes[i];
}

/* The whole token with this key; -1: none, or too long. */
static inline int32_t
di_vocab_whole(const di_vocab_t *v, di_vocab_key_t key)
{
    uint32_t id;

    if (key.high >> 56 > DI_VOCAB_WHOLE_MAX)
        return -1;
    id = di_vocab_whole_slot(v, key)->id;
    return id == 0 ? -1 : (int32_t) (id & 0xffffff);
}

/* The token ends a turn.  id < 0, and ends past the sixteenth, are ignored. */
void di_vocab_add_end(di_vocab_t *v, int32_t id);

/* Id of the token in `words` with these bytes, -1: none. */
int32_t di_vocab_word(const di_vocab_t *v, const char *s, size_t len);
/* The same; if there is none, one may be entered at *slot. */
int32_t di_vocab_word_slot(const di_vocab_t *v, const char *s, size_t len,
                           uint64_t **slot);

/* The longest of some added tokens at s; -1: none.  O(log n) per byte. */
int32_t di_vocab_match(const di_vocab_t *v, const di_vocab_names_t *names,
                       const char *s, size_t len);

#endif
