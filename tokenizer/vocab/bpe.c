/*
 * bpe.c - byte-pair encoding.
 *
 * Text is cut into pre-tokens (pretok.c), and each is encoded by itself: its
 * bytes become tokens, then the pair of neighbours whose merge rule has the
 * lowest rank is joined, the leftmost of equals, until no rule fits.
 *
 * Three ways, by the length of the pre-token:
 *   up to 15 bytes   a direct-mapped cache from its bytes to its ids, as
 *                    most words of a text have been seen before;
 *   up to 48 bytes   an array of ranks, scanned for the lowest: quadratic,
 *                    but such a length is quicker scanned than queued;
 *   longer           a linked list with a heap of ranks, O(n log n) whatever
 *                    the text is.
 *
 * A byte that the vocabulary has no token for is left out before merging.
 */

#include <stdlib.h>
#include <string.h>

#include "vocab.h"

#define BPE_KEY_MAX     15          /* bytes of a cached pre-token           */
#define BPE_CACHE_IDS   4           /* ids of a cached pre-token             */
#define BPE_CACHE_BITS  14          /* 512 KB of entries                     */
#define BPE_SMALL_MAX   48          /* bytes that are scanned, not queued    */
#define BPE_KEEP_MAX    65536       /* nodes kept between calls              */
#define BPE_TEXT_MAX    INT32_MAX   /* bytes of a text                       */

typedef struct {
    uint64_t low;                   /* bytes 0 to 7                          */
    uint64_t high;                  /* bytes 8 to 14; the length on top, so
                                       that 0 is a free entry                */
} bpe_key_t;

typedef struct {
    bpe_key_t key;
    int32_t   ids[BPE_CACHE_IDS];   /* ended by -1 where there are fewer     */
} bpe_entry_t;

/* A token of a long pre-token while it is merged. */
typedef struct {
    int32_t  id;                    /* -1: joined to the node before         */
    uint32_t rank;                  /* of the rule with the next node        */
    uint32_t prev;                  /* index; UINT32_MAX: first              */
    uint32_t next;                  /* index; n: last                        */
} bpe_node_t;

struct di_tok_s {
    const di_vocab_t *vocab;
    bpe_entry_t      *cache;        /* [1 << BPE_CACHE_BITS]                 */
    bpe_node_t       *nodes;        /* [room]                                */
    uint64_t         *heap;         /* [room * 2] rank << 32 | index         */
    size_t            room;         /* nodes that fit                        */
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
    free(t->nodes);
    free(t->heap);
    free(t);
}

/* Merge at most BPE_SMALL_MAX bytes; returns the number of ids. */
static size_t
bpe_small(const di_vocab_t *v, const uint8_t *s, size_t len, int32_t *ids)
{
    const di_merges_t *m = &v->merges;
    uint32_t           ranks[BPE_SMALL_MAX];
    size_t             n = 0;

    for (size_t i = 0; i < len; i++) {
        if (v->byte_ids[s[i]] >= 0)
            ids[n++] = v->byte_ids[s[i]];
    }
    for (size_t i = 0; i + 1 < n; i++)
        ranks[i] = di_merges_rank(m, ids[i], ids[i + 1]);

    while (n > 1) {
        size_t best = 0;

        for (size_t i = 1; i + 1 < n; i++) {
            if (ranks[i] < ranks[best])
                best = i;
        }
        if (ranks[best] == DI_MERGES_NONE)
            break;

        ids[best] = m->merged[ranks[best]];
        n--;
        for (size_t i = best + 1; i < n; i++)
            ids[i] = ids[i + 1];
        for (size_t i = best; i + 1 < n; i++)
            ranks[i] = ranks[i + 1];
        if (best > 0)
            ranks[best - 1] = di_merges_rank(m, ids[best - 1], ids[best]);
        if (best + 1 < n)
            ranks[best] = di_merges_rank(m, ids[best], ids[best + 1]);
    }
    return n;
}

static void
bpe_sink(uint64_t *heap, size_t n, size_t i)
{
    uint64_t key = heap[i];

    for (;;) {
        size_t child = i * 2 + 1;

        if (child >= n)
            break;
        if (child + 1 < n && heap[child + 1] < heap[child])
            child++;
        if (heap[child] >= key)
            break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = key;
}

static void
bpe_push(uint64_t *heap, size_t *n, uint32_t rank, uint32_t at)
{
    uint64_t key = (uint64_t) rank << 32 | at;
    size_t   i = (*n)++;

    while (i > 0 && heap[(i - 1) / 2] > key) {
        heap[i] = heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    heap[i] = key;
}

static int
bpe_reserve(di_tok_t *t, size_t n)
{
    if (n <= t->room)
        return DI_OK;

    free(t->nodes);
    free(t->heap);
    t->nodes = malloc(n * sizeof(*t->nodes));
    t->heap = malloc(n * 2 * sizeof(*t->heap));
    t->room = n;
    if (t->nodes == NULL || t->heap == NULL) {
        free(t->nodes);
        free(t->heap);
        t->nodes = NULL;
        t->heap = NULL;
        t->room = 0;
        return DI_ENOMEM;
    }
    return DI_OK;
}

/* Rank the pair that starts at a node anew, and queue it. */
static void
bpe_rank(di_tok_t *t, uint32_t n, uint32_t i, size_t *queued)
{
    bpe_node_t *node = &t->nodes[i];

    node->rank = DI_MERGES_NONE;
    if (node->next < n)
        node->rank = di_merges_rank(&t->vocab->merges, node->id,
                                    t->nodes[node->next].id);
    if (node->rank != DI_MERGES_NONE)
        bpe_push(t->heap, queued, node->rank, i);
}

/* Merge any number of bytes.  A queued pair is stale when its node has been
 * joined or has another rank by now: it is skipped when it comes up.  The
 * heap never holds more than 2 * n pairs, as each of fewer than n merges
 * takes one off and puts at most two on, after fewer than n at the start. */
static int
bpe_long(di_tok_t *t, const uint8_t *s, size_t len, bpe_out_t *out)
{
    const di_merges_t *m = &t->vocab->merges;
    bpe_node_t        *nodes;
    uint64_t          *heap;
    size_t             queued = 0;
    uint32_t           n = 0;

    if (bpe_reserve(t, len) != DI_OK)
        return DI_ENOMEM;
    nodes = t->nodes;
    heap = t->heap;

    for (size_t i = 0; i < len; i++) {
        if (t->vocab->byte_ids[s[i]] >= 0) {
            nodes[n] = (bpe_node_t) { t->vocab->byte_ids[s[i]],
                                      DI_MERGES_NONE, n - 1, n + 1 };
            n++;
        }
    }
    for (uint32_t i = 0; i + 1 < n; i++) {
        nodes[i].rank = di_merges_rank(m, nodes[i].id, nodes[i + 1].id);
        if (nodes[i].rank != DI_MERGES_NONE)
            heap[queued++] = (uint64_t) nodes[i].rank << 32 | i;
    }
    for (size_t i = queued / 2; i-- > 0; )
        bpe_sink(heap, queued, i);

    while (queued > 0) {
        uint32_t    at = (uint32_t) heap[0], rank = heap[0] >> 32;
        bpe_node_t *left = &nodes[at], *right;

        heap[0] = heap[--queued];
        bpe_sink(heap, queued, 0);
        if (left->rank != rank)
            continue;

        right = &nodes[left->next];
        left->id = m->merged[rank];
        left->next = right->next;
        right->id = -1;
        right->rank = DI_MERGES_NONE;
        if (left->next < n)
            nodes[left->next].prev = at;
        bpe_rank(t, n, at, &queued);
        if (left->prev != UINT32_MAX)
            bpe_rank(t, n, left->prev, &queued);
    }

    for (uint32_t i = 0; i < n; i = nodes[i].next)
        bpe_put(out, nodes[i].id);
    return DI_OK;
}

static inline bpe_key_t
bpe_key(const char *s, size_t len)
{
    bpe_key_t key = { 0, 0 };

    if (len > 8) {
        memcpy(&key.low, s, 8);
        memcpy(&key.high, s + 8, len - 8);
    } else {
        memcpy(&key.low, s, len);
    }
    key.high |= (uint64_t) len << 56;
    return key;
}

static inline bpe_entry_t *
bpe_entry(const di_tok_t *t, bpe_key_t key)
{
    uint64_t h = (key.low ^ key.high * 0x9e3779b97f4a7c15u)
                 * 0xd6e8feb86659fd93u;

    return &t->cache[h >> (64 - BPE_CACHE_BITS)];
}

/* Encode one pre-token. */
static int
bpe_word(di_tok_t *t, const char *s, size_t len, bpe_out_t *out)
{
    const di_vocab_t *v = t->vocab;
    bpe_entry_t      *entry = NULL;
    bpe_key_t         key = { 0, 0 };
    int32_t           ids[BPE_SMALL_MAX], id;
    size_t            n;

    if (len <= BPE_KEY_MAX) {
        key = bpe_key(s, len);
        entry = bpe_entry(t, key);
        if (entry->key.low == key.low && entry->key.high == key.high) {
            for (n = 0; n < BPE_CACHE_IDS && entry->ids[n] >= 0; n++)
                bpe_put(out, entry->ids[n]);
            return DI_OK;
        }
    }

    if (v->whole_words) {
        id = di_vocab_word(v, s, len);
        if (id >= 0) {
            bpe_put(out, id);
            return DI_OK;
        }
    }
    if (len > BPE_SMALL_MAX)
        return bpe_long(t, (const uint8_t *) s, len, out);

    n = bpe_small(v, (const uint8_t *) s, len, ids);
    for (size_t i = 0; i < n; i++)
        bpe_put(out, ids[i]);
    if (entry != NULL && n <= BPE_CACHE_IDS) {
        entry->key = key;
        for (size_t i = 0; i < BPE_CACHE_IDS; i++)
            entry->ids[i] = i < n ? ids[i] : -1;
    }
    return DI_OK;
}

static int
bpe_text(di_tok_t *t, const char *text, size_t len, bpe_out_t *out)
{
    size_t pos = 0;

    while (pos < len) {
        size_t end = di_pretok_next(&t->vocab->pretok, text, len, pos);
        int    rc = bpe_word(t, text + pos, end - pos, out);

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
        free(t->nodes);
        free(t->heap);
        t->nodes = NULL;
        t->heap = NULL;
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

int
di_tok_encode_raw(di_tok_t *t, const char *text, size_t len, int32_t *ids,
                  size_t cap, size_t *n)
{
    const di_vocab_t *v = t->vocab;
    bpe_out_t         out = { ids, cap, 0 };
    size_t            start = 0, pos = 0;
    int               rc = DI_OK;

    *n = 0;
    if (len > BPE_TEXT_MAX)
        return DI_ELIMIT;

    while (pos < len && rc == DI_OK) {
        int32_t id = -1;
        size_t  id_len;

        if (v->special_first[(uint8_t) text[pos]])
            id = di_vocab_match_special(v, text + pos, len - pos);
        if (id < 0) {
            pos++;
            continue;
        }
        rc = bpe_text(t, text + start, pos - start, &out);
        bpe_put(&out, id);
        (void) di_vocab_at(v, id, &id_len);
        pos += id_len;
        start = pos;
    }
    if (rc == DI_OK)
        rc = bpe_text(t, text + start, len - start, &out);
    return bpe_finish(t, &out, rc, n);
}
