/*
 * bpe.c - byte-pair encoding.
 *
 * Text is cut into pre-tokens (pretok.c), and each is encoded by itself.
 * Most have been seen before: those of up to 15 bytes are looked up in a
 * direct-mapped cache from bytes to ids.  Of the rest many are a token as
 * they are, which one look-up in the vocabulary tells.
 *
 * Others are not encoded by merging, but from the left: the longest token
 * that stays apart from the one before it (merges.h) comes next.  If none
 * does, the last token was wrong: it is taken back, and the next shorter one
 * tried in its place.  As every prefix of a text has just one encoding, a
 * place that was left so can't be a border of the whole, and is never
 * entered again: the cost is linear in the length, whatever the text is.
 * Merging with a heap of ranks, which came first here, was 2 to 8 times
 * slower on runs of one character and on Chinese.
 *
 * A byte that the vocabulary has no token for is left out beforehand.
 */

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "vocab.h"

#define BPE_CACHE_IDS   4           /* ids of a cached pre-token             */
#define BPE_CACHE_BITS  14          /* 512 KB of entries                     */
#define BPE_SHORT_MAX   128         /* bytes encoded on the stack            */
#define BPE_KEEP_MAX    65536       /* bytes of scratch kept between calls   */
#define BPE_TEXT_MAX    INT32_MAX   /* bytes of a text                       */

typedef struct {
    di_vocab_key_t key;             /* high 0: a free entry                  */
    int32_t        ids[BPE_CACHE_IDS];  /* ended by -1 if there are fewer    */
} bpe_entry_t;

struct di_tok_s {
    const di_vocab_t *vocab;
    bpe_entry_t      *cache;        /* [1 << BPE_CACHE_BITS]                 */
    char             *scratch;      /* [room] for a long pre-token           */
    size_t            room;
};

/* The caller's array; n counts on past its end. */
typedef struct {
    int32_t *ids;
    size_t   cap;
    size_t   n;
} bpe_out_t;

static inline void
bpe_put(bpe_out_t *out, int32_t id)
{
    if (out->n < out->cap)
        out->ids[out->n] = id;
    out->n++;
}

int
di_tok_open(const di_vocab_t *vocab, di_tok_t **tok)
{
    di_tok_t *t = calloc(1, sizeof(*t));

    if (t == NULL)
        return DI_ENOMEM;
    t->vocab = vocab;
    t->cache = calloc((size_t) 1 << BPE_CACHE_BITS, sizeof(*t->cache));
    if (t->cache == NULL) {
        free(t);
        return DI_ENOMEM;
    }
    *tok = t;
    return DI_OK;
}

void
di_tok_close(di_tok_t *t)
{
    if (t == NULL)
        return;
    free(t->cache);
    free(t->scratch);
    free(t);
}

/* Encode len > 0 bytes that all have tokens; returns the number of ids.
 * ids[len]; left[len / 64 + 1], all 0: a bit for each place that was taken
 * back. */
static size_t
bpe_encode(const di_vocab_t *v, const uint8_t *s, size_t len, int32_t *ids,
           uint64_t *left)
{
    const di_merges_token_t *tokens = v->merges.tokens;
    int32_t next = di_trie_longest(&v->trie, s, len);
    size_t  n = 0, pos = 0, end;

    for (;;) {
        end = pos + tokens[next].len;
        if ((left[end / 64] >> end % 64 & 1) == 0
            && (n == 0 || di_merges_apart(&v->merges, ids[n - 1], next)))
        {
            ids[n++] = next;
            pos = end;
            if (pos == len)
                return n;
            next = di_trie_longest(&v->trie, s + pos, len - pos);
            continue;
        }

        next = tokens[next].shorter;
        while (next < 0) {
            /* Taking back the first token for good would mean that the text
             * has no encoding. */
            assert(n > 0);
            left[pos / 64] |= 1ull << pos % 64;
            next = ids[--n];
            pos -= tokens[next].len;
            next = tokens[next].shorter;
        }
    }
}

static int
bpe_reserve(di_tok_t *t, size_t bytes)
{
    char *scratch;

    if (bytes <= t->room)
        return DI_OK;
    scratch = malloc(bytes);
    if (scratch == NULL)
        return DI_ENOMEM;
    free(t->scratch);
    t->scratch = scratch;
    t->room = bytes;
    return DI_OK;
}

/* Copy s without the bytes that have no token; returns the length. */
static size_t
bpe_filter(const di_vocab_t *v, const uint8_t *s, size_t len, uint8_t *out)
{
    size_t n = 0;

    for (size_t i = 0; i < len; i++) {
        if (v->byte_ids[s[i]] >= 0)
            out[n++] = s[i];
    }
    return n;
}

/* Encode any number of bytes, in scratch memory. */
static int
bpe_long(di_tok_t *t, const uint8_t *s, size_t len, bpe_out_t *out)
{
    size_t    left_n = len / 64 + 1, n;
    uint64_t *left;
    int32_t  *ids;
    uint8_t  *copy;

    if (bpe_reserve(t, left_n * sizeof(*left) + len * sizeof(*ids) + len)
        != DI_OK)
        return DI_ENOMEM;
    left = (uint64_t *) t->scratch;
    ids = (int32_t *) (left + left_n);
    copy = (uint8_t *) (ids + len);

    memset(left, 0, left_n * sizeof(*left));
    if (t->vocab->bytes_missing) {
        len = bpe_filter(t->vocab, s, len, copy);
        s = copy;
    }
    n = len > 0 ? bpe_encode(t->vocab, s, len, ids, left) : 0;
    for (size_t i = 0; i < n; i++)
        bpe_put(out, ids[i]);
    return DI_OK;
}

/* The same for up to BPE_SHORT_MAX bytes, on the stack; returns the number
 * of ids. */
static size_t
bpe_short(const di_vocab_t *v, const uint8_t *s, size_t len,
          int32_t ids[BPE_SHORT_MAX])
{
    uint64_t left[BPE_SHORT_MAX / 64 + 1] = { 0 };
    uint8_t  copy[BPE_SHORT_MAX];

    if (v->bytes_missing) {
        len = bpe_filter(v, s, len, copy);
        s = copy;
    }
    return len > 0 ? bpe_encode(v, s, len, ids, left) : 0;
}

static inline bpe_entry_t *
bpe_entry(const di_tok_t *t, di_vocab_key_t key)
{
    return &t->cache[di_vocab_key_hash(key) >> (64 - BPE_CACHE_BITS)];
}

static inline void
bpe_put_entry(bpe_out_t *out, const bpe_entry_t *entry)
{
    size_t n = 0;

    for (size_t i = 0; i < BPE_CACHE_IDS; i++)
        n += entry->ids[i] >= 0;
    if (out->cap >= BPE_CACHE_IDS && out->n <= out->cap - BPE_CACHE_IDS) {
        /* What is behind the n ids is overwritten by the next ones. */
        memcpy(out->ids + out->n, entry->ids, sizeof(entry->ids));
        out->n += n;
        return;
    }
    for (size_t i = 0; i < n; i++)
        bpe_put(out, entry->ids[i]);
}

static inline void
bpe_remember(bpe_entry_t *entry, di_vocab_key_t key, const int32_t *ids,
             size_t n)
{
    entry->key = key;
    for (size_t i = 0; i < BPE_CACHE_IDS; i++)
        entry->ids[i] = i < n ? ids[i] : -1;
}

/* Encode a pre-token that the cache doesn't know, and enter it if it fits:
 * entry is its place, NULL if it has no key. */
static int
bpe_miss(di_tok_t *t, const char *s, size_t len, bpe_entry_t *entry,
         di_vocab_key_t key, bpe_out_t *out)
{
    const di_vocab_t *v = t->vocab;
    int32_t           ids[BPE_SHORT_MAX], id = -1;
    size_t            n;

    if (entry != NULL && di_vocab_whole(v, key)->key.high != 0)
        id = di_vocab_whole(v, key)->id;
    else if (v->words.slots != NULL)
        id = di_vocab_word(v, s, len);

    if (id >= 0) {
        ids[0] = id;
        n = 1;
    } else if (len <= BPE_SHORT_MAX) {
        n = bpe_short(v, (const uint8_t *) s, len, ids);
    } else {
        return bpe_long(t, (const uint8_t *) s, len, out);
    }

    for (size_t i = 0; i < n; i++)
        bpe_put(out, ids[i]);
    if (entry != NULL && n <= BPE_CACHE_IDS)
        bpe_remember(entry, key, ids, n);
    return DI_OK;
}

/* Encode the pre-token text[pos..end). */
static inline int
bpe_word(di_tok_t *t, const char *text, size_t len, size_t pos, size_t end,
         bpe_out_t *out)
{
    bpe_entry_t *entry = NULL;
    di_vocab_key_t key = { 0, 0 };

    if (end - pos <= DI_VOCAB_KEY_MAX) {
        key = di_vocab_key(text + pos, end - pos, len - pos);
        entry = bpe_entry(t, key);
        if (entry->key.low == key.low && entry->key.high == key.high) {
            bpe_put_entry(out, entry);
            return DI_OK;
        }
    }
    return bpe_miss(t, text + pos, end - pos, entry, key, out);
}

static int
bpe_text(di_tok_t *t, const char *text, size_t len, bpe_out_t *out)
{
    size_t pos = 0;

    while (pos < len) {
        size_t end = di_pretok_next(&t->vocab->pretok, text, len, pos);
        int    rc = bpe_word(t, text, len, pos, end, out);

        if (rc != DI_OK)
            return rc;
        pos = end;
    }
    return DI_OK;
}

/* Give back what an unusually long pre-token took; report. */
static int
bpe_finish(di_tok_t *t, const bpe_out_t *out, int rc, size_t *n)
{
    if (t->room > BPE_KEEP_MAX) {
        free(t->scratch);
        t->scratch = NULL;
        t->room = 0;
    }
    *n = out->n;
    if (rc == DI_OK && out->n > out->cap)
        rc = DI_ELIMIT;
    return rc;
}

int
di_tok_encode(di_tok_t *t, const char *text, size_t len, int32_t *ids,
              size_t cap, size_t *n)
{
    bpe_out_t out = { ids, cap, 0 };

    *n = 0;
    if (len > BPE_TEXT_MAX)
        return DI_ELIMIT;
    return bpe_finish(t, &out, bpe_text(t, text, len, &out), n);
}

/* Encode ordinary text that may spell added tokens: first those that are not
 * late, then in what lies between them the late ones, then the rest. */
static int
bpe_raw(di_tok_t *t, const char *text, size_t len, int late, bpe_out_t *out)
{
    const di_vocab_t       *v = t->vocab;
    const di_vocab_names_t *names = &v->names[late];
    size_t                  start = 0, pos = 0;
    int                     rc;

    while (pos < len) {
        int32_t id = -1;
        size_t  id_len;

        if (names->first[(uint8_t) text[pos]])
            id = di_vocab_match(v, names, text + pos, len - pos);
        if (id < 0) {
            pos++;
            continue;
        }
        rc = late ? bpe_text(t, text + start, pos - start, out)
                  : bpe_raw(t, text + start, pos - start, 1, out);
        if (rc != DI_OK)
            return rc;
        bpe_put(out, id);
        (void) di_vocab_at(v, id, &id_len);
        pos += id_len;
        start = pos;
    }
    return late ? bpe_text(t, text + start, len - start, out)
                : bpe_raw(t, text + start, len - start, 1, out);
}

int
di_tok_encode_raw(di_tok_t *t, const char *text, size_t len, int32_t *ids,
                  size_t cap, size_t *n)
{
    bpe_out_t out = { ids, cap, 0 };

    *n = 0;
    if (len > BPE_TEXT_MAX)
        return DI_ELIMIT;
    return bpe_finish(t, &out, bpe_raw(t, text, len, 0, &out), n);
}
