/*
 * bpe.c - byte-pair encoding.
 *
 * Text is cut into pre-tokens (pretok.c), and each is encoded by itself.
 * Most have been seen before: those of up to 15 bytes are looked up in a
 * cache from bytes to ids, hundreds of them together, as nearly all the time
 * goes into waiting for memory.  Of the rest many are a token as they are,
 * which one look-up in the vocabulary tells, and others are short enough to
 * apply the merge rules to them (join.c).  Where few of the last ones were a
 * token, as in base64, the look-up is left out: the rules make the same of
 * them.
 *
 * A text like that, of which the cache knows little and whose tokens are a
 * byte or two, is encoded a batch at a time without looking for its
 * pre-tokens anywhere (sweep.c).
 *
 * Long ones are encoded from the left instead: the longest token
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

#include "cache.h"
#include "join.h"
#include "sweep.h"

#define BPE_BATCH       256         /* pre-tokens encoded together           */
#define BPE_TEXTS       32          /* of these by applying rules            */
#define BPE_COUNT       64          /* missed ones that are counted together */
#define BPE_SELDOM      8           /* one whole token in so many of them is
                                       worth a look-up for each              */
#define BPE_TELLS       512         /* bytes that tell what comes next       */
#define BPE_TOKENS      60          /* sweeps suit a text with more tokens than
                                       this in 100 bytes, of which           */
#define BPE_LONG        20          /* more than these are in pre-tokens of
                                       more than                             */
#define BPE_KNOWN       3           /* bytes: the cache soon has the shorter
                                       ones                                  */
#define BPE_PAIRS       6           /* pairs that may have a rule after the
                                       first sweep, in 100 bytes, up to which
                                       it goes on                            */
#define BPE_CUTS        32          /* pieces of a long one cut at once      */
#define BPE_PERIOD      4           /* tokens of a cycle                     */
#define BPE_SHORT_MAX   128         /* bytes encoded on the stack            */
#define BPE_KEEP_MAX    65536       /* bytes of scratch kept between calls   */
#define BPE_TEXT_MAX    INT32_MAX   /* bytes of a text                       */

/* Pre-tokens that are encoded together.  Those that the cache doesn't have
 * are encoded abreast, up to BPE_TEXTS at once. */
typedef struct {
    di_vocab_key_t    keys[BPE_BATCH];
    di_cache_entry_t *sets[BPE_BATCH];      /* their places in the cache     */
    di_cache_entry_t  found[BPE_BATCH];     /* copies of entries             */
    uint64_t          missed[BPE_BATCH / 64];   /* a bit for each without    */
    uint16_t          more_at[BPE_BATCH];   /* of those that have many ids:
                                               where in more[], and          */
    uint16_t          more_n[BPE_BATCH];    /* how many; 0: none yet         */
    int32_t           more[BPE_BATCH * DI_VOCAB_KEY_MAX + DI_JOIN_MAX];
    size_t            n_more;
    di_join_t         texts[BPE_TEXTS];     /* being encoded                 */
    uint8_t           texts_of[BPE_TEXTS];  /* the pre-tokens that they are  */
    size_t            n_texts;
    uint32_t          n_missed;             /* since they were last counted  */
    uint32_t          n_whole;              /* of these, tokens as they are  */
    bool              seldom;               /* few of the last ones were     */
} bpe_batch_t;

_Static_assert(BPE_BATCH <= UINT8_MAX + 1, "texts_of");

struct di_tok_s {
    const di_vocab_t *vocab;
    di_cache_t        cache;
    bpe_batch_t       batch;
    char             *scratch;      /* [room] for a long pre-token           */
    size_t            room;
    const di_sweep_way_t *way;      /* NULL: sweeps don't do for the
                                       vocabulary                            */
    bool              sweeps;       /* the text seems to be one for sweeps   */
    di_sweep_t        sweep;
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
    if (di_sweep_can(&vocab->merges) && !vocab->bytes_missing
        && vocab->words.slots == NULL)
        t->way = di_sweep_way(0);
    if (!di_cache_init(&t->cache)) {
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
    di_cache_deinit(&t->cache);
    free(t->scratch);
    free(t);
}

/* If the last tokens, up to BPE_PERIOD of them, came twice in a row, they come
 * again as long as all bytes that a step may look at are those that it looked
 * at before; provided that nothing was taken back yet.  Writes them, returns
 * their number. */
static size_t
bpe_again(const di_vocab_t *v, const uint8_t *s, size_t len, size_t pos,
          int32_t *ids, size_t n)
{
    size_t period, same = pos, bytes = 0, added = 0;

    for (period = 1; period <= BPE_PERIOD; period++) {
        if (n < 2 * period)
            return 0;
        bytes += v->merges.tokens[ids[n - period]].len;
        if (memcmp(ids + n - period, ids + n - 2 * period,
                   period * sizeof(*ids)) == 0)
            break;
    }
    if (period > BPE_PERIOD)
        return 0;
    while (same < len && s[same] == s[same - bytes])
        same++;
    for (; same - pos >= v->longest + bytes; pos += bytes) {
        memcpy(ids + n + added, ids + n - period, period * sizeof(*ids));
        added += period;
    }
    return added;
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
    bool    straight = true;        /* nothing was taken back                */

    for (;;) {
        end = pos + tokens[next].len;
        if ((left[end / 64] >> end % 64 & 1) == 0
            && (n == 0 || di_merges_apart(&v->merges, ids[n - 1], next)))
        {
            ids[n++] = next;
            pos = end;
            if (straight) {
                for (size_t i = bpe_again(v, s, len, pos, ids, n); i > 0; i--)
                    pos += tokens[ids[n++]].len;
            }
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
            straight = false;
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

/* Start encoding a piece of Chinese characters and kana from the tokens of
 * these instead of bytes.  No rule joins a part of one with another here, so
 * all that a character's bytes make of themselves first is its token; and as
 * rules come behind those that make their sides, it makes no difference that
 * it is there before its time.  false: this way isn't open to the piece. */
static bool
bpe_start_chars(const di_vocab_t *v, const uint8_t *s, size_t len,
                di_join_t *text)
{
    int32_t  ids[DI_JOIN_MAX];
    uint32_t left = 0, code;

    if (v->chars == NULL || len % 3 != 0)
        return false;
    for (size_t i = 0; i < len; i += 3) {
        code = di_seams_code(s + i);
        if (!di_seams_takes(code)
            || (left != 0 && di_seams_is_partial(&v->seams, left, code)))
            return false;
        ids[i / 3] = v->chars[code - DI_SEAMS_FIRST];
        if (ids[i / 3] < 0)
            return false;
        left = code;
    }
    di_join_ids(&v->merges, ids, len / 3, text);
    return true;
}

/* Start encoding a piece by the rules.  false: it is too long for that, or
 * no byte of it has a token. */
static bool
bpe_start(const di_vocab_t *v, const uint8_t *s, size_t len, di_join_t *text)
{
    uint8_t copy[DI_JOIN_MAX];

    if (len <= 3 * DI_JOIN_MAX && bpe_start_chars(v, s, len, text))
        return true;
    if (len > DI_JOIN_MAX)
        return false;
    if (v->bytes_missing) {
        len = bpe_filter(v, s, len, copy);
        s = copy;
    }
    if (len > 0)
        di_join_bytes(&v->merges, v->byte_ids, s, len, text);
    return len > 0;
}

/* Encode up to BPE_SHORT_MAX bytes, on the stack; returns the number of
 * ids. */
static size_t
bpe_short(const di_vocab_t *v, const uint8_t *s, size_t len,
          int32_t ids[BPE_SHORT_MAX])
{
    uint64_t  left[BPE_SHORT_MAX / 64 + 1] = { 0 };
    uint8_t   copy[BPE_SHORT_MAX];
    di_join_t text;

    if (bpe_start(v, s, len, &text)) {
        di_join_run(&v->merges, &text, 1);
        return di_join_result(&text, ids);
    }
    if (v->bytes_missing) {
        len = bpe_filter(v, s, len, copy);
        s = copy;
    }
    return len > 0 ? bpe_encode(v, s, len, ids, left) : 0;
}

static inline void
bpe_put_all(bpe_out_t *out, const int32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++)
        bpe_put(out, ids[i]);
}

/* Encode up to BPE_SHORT_MAX bytes, and remember them if they fit. */
static void
bpe_wide(di_tok_t *t, const uint8_t *s, size_t len, bpe_out_t *out)
{
    di_cache_wide_t       *set = NULL;
    const di_cache_wide_t *entry;
    di_cache_key_t         key;
    int32_t                ids[BPE_SHORT_MAX];
    size_t                 n;

    if (len <= DI_CACHE_WIDE_MAX) {
        key = di_cache_key(s, len);
        set = di_cache_wide_set(&t->cache, &key);
        entry = di_cache_wide_find(set, &key);
        if (entry != NULL) {
            bpe_put_all(out, entry->ids, di_cache_wide_count(entry));
            return;
        }
    }
    n = bpe_short(t->vocab, s, len, ids);
    bpe_put_all(out, ids, n);
    if (set != NULL && n <= DI_CACHE_WIDE_IDS)
        di_cache_wide_enter(set, &key, ids, n);
}

/* Encode a piece of a pre-token; `left` bytes of text start at s. */
static int
bpe_piece(di_tok_t *t, const char *s, size_t len, size_t left, bpe_out_t *out)
{
    const di_vocab_t       *v = t->vocab;
    const di_cache_entry_t *entry;
    di_cache_entry_t       *set;
    di_vocab_key_t          key;
    int32_t                 ids[BPE_SHORT_MAX];
    size_t                  n = 1;
    bool                    hit;

    /* A whole pre-token with these bytes is something else then. */
    if (v->words.slots != NULL && len <= DI_VOCAB_KEY_MAX
        && di_vocab_word(v, s, len) >= 0)
    {
        n = bpe_short(v, (const uint8_t *) s, len, ids);
        bpe_put_all(out, ids, n);
        return DI_OK;
    }
    if (len > BPE_SHORT_MAX)
        return bpe_long(t, (const uint8_t *) s, len, out);
    if (len > DI_VOCAB_KEY_MAX) {
        bpe_wide(t, (const uint8_t *) s, len, out);
        return DI_OK;
    }

    key = di_vocab_key(s, len, left);
    set = di_cache_set(&t->cache, key);
    entry = di_cache_find(set, key, &hit);
    if (hit) {
        bpe_put_all(out, entry->ids, di_cache_count(entry));
        return DI_OK;
    }
    ids[0] = di_vocab_whole(v, key);
    if (ids[0] < 0)
        n = bpe_short(v, (const uint8_t *) s, len, ids);
    bpe_put_all(out, ids, n);
    if (n <= DI_CACHE_IDS)
        di_cache_enter(set, key, ids, n);
    return DI_OK;
}

/* Encode a long pre-token, in pieces if it has Chinese characters. */
static int
bpe_cut(di_tok_t *t, const char *text, size_t len, size_t pos, size_t end,
        bpe_out_t *out)
{
    uint32_t ends[BPE_CUTS];
    size_t   n;
    int      rc = DI_OK;

    while (pos < end) {
        n = di_seams_cut(&t->vocab->seams, (const uint8_t *) text, pos, end,
                         ends, BPE_CUTS);
        for (size_t i = 0; rc == DI_OK && i < n; i++) {
            rc = bpe_piece(t, text + pos, ends[i] - pos, len - pos, out);
            pos = ends[i];
        }
        if (rc != DI_OK)
            return rc;
    }
    return rc;
}

/* Look up up to 64 pre-tokens of a batch from number i on, the first at pos:
 * all sets are on their way to the core's cache before the first is looked
 * at. */
static inline void
bpe_find(const di_tok_t *t, bpe_batch_t *b, const char *text, size_t len,
         size_t pos, const uint32_t *ends, size_t i, size_t n)
{
    bool     roomy = len - pos >= sizeof(di_vocab_key_t)
                     && ends[n - 1] <= len - sizeof(di_vocab_key_t);
    uint64_t missed = 0;
    bool     hit;

    for (size_t k = i; k < n; k++) {
        b->keys[k] = di_vocab_key(text + pos, ends[k] - pos,
                                  roomy ? sizeof(di_vocab_key_t) : len - pos);
        b->sets[k] = di_cache_set(&t->cache, b->keys[k]);
        __builtin_prefetch(b->sets[k]);
        pos = ends[k];
    }
    for (size_t k = i; k < n; k++) {
        b->found[k] = *di_cache_find(b->sets[k], b->keys[k], &hit);
        missed |= (uint64_t) !hit << (k - i);
    }
    b->missed[i / 64] = missed;
    for (; missed != 0 && !b->seldom; missed &= missed - 1)
        __builtin_prefetch(di_vocab_whole_home(
            t->vocab, b->keys[i + (size_t) __builtin_ctzll(missed)]));
}

/* Pre-token i became ids[n], n <= DI_CACHE_IDS.  It may have been in the
 * batch twice. */
static void
bpe_found(bpe_batch_t *b, size_t i, const int32_t ids[DI_CACHE_IDS], size_t n)
{
    bool                    hit;
    const di_cache_entry_t *entry = di_cache_find(b->sets[i], b->keys[i],
                                                  &hit);

    if (!hit) {
        di_cache_enter(b->sets[i], b->keys[i], ids, n);
        entry = b->sets[i];
    }
    b->found[i] = *entry;
    b->missed[i / 64] &= ~(1ull << i % 64);
}

/* Encode the texts that were gathered. */
static void
bpe_join(const di_vocab_t *v, bpe_batch_t *b)
{
    di_join_run(&v->merges, b->texts, b->n_texts);
    for (size_t k = 0; k < b->n_texts; k++) {
        int32_t *ids = b->more + b->n_more;
        size_t   n = di_join_result(&b->texts[k], ids), i = b->texts_of[k];

        b->n_whole += n == 1;
        if (n <= DI_CACHE_IDS) {
            bpe_found(b, i, ids, n);
            continue;
        }
        b->more_at[i] = (uint16_t) b->n_more;
        b->more_n[i] = (uint16_t) n;
        b->n_more += n;
    }
    b->n_texts = 0;
}

/* Encode pre-token i of a batch, `len` bytes at s, which was missed; but not
 * yet if it is long. */
static void
bpe_solve(const di_vocab_t *v, bpe_batch_t *b, const char *s, size_t len,
          size_t i)
{
    int32_t ids[DI_CACHE_IDS] = { -1, -1, -1, -1 };

    b->more_n[i] = 0;
    if (v->words.slots != NULL)
        ids[0] = di_vocab_word(v, s, len);
    if (len > DI_VOCAB_KEY_MAX) {
        b->more_n[i] = ids[0] >= 0;
        b->more_at[i] = (uint16_t) b->n_more;
        b->more[b->n_more] = ids[0];
        b->n_more += ids[0] >= 0;
        return;
    }

    b->n_missed++;
    if (ids[0] < 0 && !b->seldom)
        ids[0] = di_vocab_whole(v, b->keys[i]);
    if (ids[0] >= 0) {
        b->n_whole++;
        bpe_found(b, i, ids, 1);
    } else if (!bpe_start(v, (const uint8_t *) s, len,
                          &b->texts[b->n_texts]))
    {
        bpe_found(b, i, ids, 0);
    } else {
        b->texts_of[b->n_texts++] = (uint8_t) i;
        if (b->n_texts == BPE_TEXTS)
            bpe_join(v, b);
    }
}

/* Are whole tokens seldom among those that are missed? */
static inline void
bpe_count(bpe_batch_t *b)
{
    if (b->n_missed < BPE_COUNT)
        return;
    b->seldom = b->n_whole < b->n_missed / BPE_SELDOM;
    b->n_missed = b->n_whole = 0;
}

/* Put the ids of those that were found, from i to n - 1.  Where there is
 * room, all that an entry may have are copied, and what comes next overwrites
 * those that it hasn't. */
static inline void
bpe_put_found(bpe_out_t *out, const bpe_batch_t *b, size_t i, size_t n)
{
    int32_t *at = out->ids + out->n;

    if (out->n + (n - i) * DI_CACHE_IDS > out->cap) {
        for (; i < n; i++)
            bpe_put_all(out, b->found[i].ids, di_cache_count(&b->found[i]));
        return;
    }
    for (; i < n; i++) {
        memcpy(at, b->found[i].ids, sizeof(b->found[i].ids));
        at += di_cache_count(&b->found[i]);
    }
    out->n = (size_t) (at - out->ids);
}

/* Encode n pre-tokens, at most BPE_BATCH, of which the ends are given, the
 * first at pos. */
static int
bpe_batch(di_tok_t *t, const char *text, size_t len, size_t pos,
          const uint32_t *ends, size_t n, bpe_out_t *out)
{
    bpe_batch_t *b = &t->batch;
    size_t       done = 0, i, start;
    int          rc;

    b->n_more = 0;
    for (i = 0; i < n; i += 64)
        bpe_find(t, b, text, len, i == 0 ? pos : ends[i - 1], ends, i,
                 n - i < 64 ? n : i + 64);
    for (size_t k = 0; k * 64 < n; k++) {
        for (uint64_t m = b->missed[k]; m != 0; m &= m - 1) {
            i = k * 64 + (size_t) __builtin_ctzll(m);
            start = i == 0 ? pos : ends[i - 1];
            bpe_solve(t->vocab, b, text + start, ends[i] - start, i);
        }
    }
    bpe_join(t->vocab, b);
    bpe_count(b);

    for (size_t k = 0; k * 64 < n; k++) {
        for (uint64_t m = b->missed[k]; m != 0; m &= m - 1) {
            i = k * 64 + (size_t) __builtin_ctzll(m);
            bpe_put_found(out, b, done, i);
            done = i + 1;
            if (b->more_n[i] > 0) {
                bpe_put_all(out, b->more + b->more_at[i], b->more_n[i]);
                continue;
            }
            start = i == 0 ? pos : ends[i - 1];
            rc = bpe_cut(t, text, len, start, ends[i], out);
            if (rc != DI_OK)
                return rc;
        }
    }
    bpe_put_found(out, b, done, n);
    return DI_OK;
}

/* Put the ids of pieces that were swept, one of them at least wrong. */
static int
bpe_put_swept(di_tok_t *t, const char *text, size_t len, size_t pos,
              const uint32_t *ends, size_t n, bpe_out_t *out)
{
    const di_sweep_t *s = &t->sweep;
    size_t            k = 1;
    bool              wrong;
    int               rc = DI_OK;

    for (size_t i = 0; rc == DI_OK && i < n; i++) {
        wrong = s->wrong[i / 64] >> i % 64 & 1;
        do {
            if (!wrong && s->ids[k] != DI_SWEEP_GONE)
                bpe_put(out, (int32_t) (s->ids[k] & ~DI_SWEEP_START));
        } while ((s->ids[++k] & DI_SWEEP_START) == 0);
        if (wrong)
            rc = bpe_batch(t, text, len, pos, ends + i, 1, out);
        pos = ends[i];
    }
    return rc;
}

/* Encode pre-tokens by sweeps, as many as these take at once, which is put in
 * *n.  false: they aren't for sweeps. */
static bool
bpe_sweep(di_tok_t *t, const char *text, size_t len, size_t pos,
          const uint32_t *ends, size_t *n, bpe_out_t *out, int *rc)
{
    di_sweep_t        *s = &t->sweep;
    const di_merges_t *m = &t->vocab->merges;
    const int32_t     *bytes = t->vocab->byte_ids;
    size_t             some = *n;
    uint32_t           wrong;

    while (some > 0 && ends[some - 1] - pos > DI_SWEEP_BYTES)
        some--;
    *n = some > 0 ? some : 1;
    if (some == 0
        || di_sweep_first(s, t->way, m, bytes, text + pos, ends, some,
                          (uint32_t) pos)
           > (ends[some - 1] - pos) * BPE_PAIRS / 100)
        return false;
    wrong = di_sweep_rest(s, t->way, m, bytes);
    if (wrong > DI_SWEEP_WRONG)
        return false;
    *rc = DI_OK;
    if (wrong == 0 && out->n + s->n + DI_SWEEP_BEYOND <= out->cap)
        out->n += di_sweep_ids(s, t->way, out->ids + out->n);
    else
        *rc = bpe_put_swept(t, text, len, pos, ends, some, out);
    return true;
}

/* Would sweeps have suited these pre-tokens, which became n_ids? */
static bool
bpe_suits(const uint32_t *ends, size_t n, size_t pos, size_t n_ids)
{
    size_t bytes = ends[n - 1] - pos, more = 0;

    if (n_ids * 100 <= bytes * BPE_TOKENS)
        return false;
    for (size_t i = 0; i < n; i++) {
        more += ends[i] - pos > BPE_KNOWN ? ends[i] - pos : 0;
        pos = ends[i];
    }
    return more * 100 > bytes * BPE_LONG;
}

/* Encode n pre-tokens, at most BPE_BATCH, of which the ends are given, the
 * first at pos: by sweeps, if these suited the last ones. */
static int
bpe_some(di_tok_t *t, const char *text, size_t len, size_t pos,
         const uint32_t *ends, size_t n, bpe_out_t *out)
{
    int rc = DI_OK;

    for (size_t some; rc == DI_OK && n > 0; ends += some, n -= some) {
        size_t before = out->n;

        some = n;
        if (!t->sweeps
            || !bpe_sweep(t, text, len, pos, ends, &some, out, &rc))
        {
            rc = bpe_batch(t, text, len, pos, ends, some, out);
            if (t->way != NULL && ends[some - 1] - pos >= BPE_TELLS)
                t->sweeps = bpe_suits(ends, some, pos, out->n - before);
        }
        pos = ends[some - 1];
    }
    return rc;
}

/* Encode text that is cut by patterns of the vocabulary's own. */
static int
bpe_text_re(di_tok_t *t, const char *text, size_t len, bpe_out_t *out)
{
    uint32_t *ends;
    size_t    n;
    int       rc = di_pretok_re_cut(t->vocab->pretok.re, text, len, &ends, &n);

    if (rc != DI_OK)
        return rc;
    for (size_t i = 0, some; rc == DI_OK && i < n; i += some) {
        some = n - i < BPE_BATCH ? n - i : BPE_BATCH;
        rc = bpe_some(t, text, len, i == 0 ? 0 : ends[i - 1], ends + i, some,
                      out);
    }
    free(ends);
    return rc;
}

/* Encode text that is as it should be. */
static int
bpe_normal(di_tok_t *t, const char *text, size_t len, bpe_out_t *out)
{
    uint32_t ends[BPE_BATCH];
    size_t   pos = 0, n;
    int      rc;

    if (t->vocab->pretok.kind == DI_PRETOK_RE)
        return bpe_text_re(t, text, len, out);
    while (pos < len) {
        n = di_pretok_cut(&t->vocab->pretok, text, len, pos, ends, BPE_BATCH);
        rc = bpe_some(t, text, len, pos, ends, n, out);
        if (rc != DI_OK)
            return rc;
        pos = ends[n - 1];
    }
    return DI_OK;
}

static int
bpe_raw(di_tok_t *t, const char *text, size_t len, int late, bpe_out_t *out);

/* Bring a text to its form, if the vocabulary has one and it isn't in it, and
 * encode it; raw: look for late added tokens in it. */
static int
bpe_text(di_tok_t *t, const char *text, size_t len, bool raw, bpe_out_t *out)
{
    const di_vocab_t *v = t->vocab;
    char             *made = NULL;
    int               rc;

    if (v->normal && !di_nfc_is(&v->nfc, text, len)) {
        made = di_nfc_make(text, len, &len);
        if (made == NULL)
            return DI_ENOMEM;
        text = made;
    }
    rc = raw ? bpe_raw(t, text, len, 1, out) : bpe_normal(t, text, len, out);
    free(made);
    return rc;
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
    *n = rc == DI_OK ? out->n : 0;
    return rc == DI_OK && out->n > out->cap ? DI_ELIMIT : rc;
}

int
di_tok_encode(di_tok_t *t, const char *text, size_t len, int32_t *ids,
              size_t cap, size_t *n)
{
    bpe_out_t out = { ids, cap, 0 };

    *n = 0;
    if (len > BPE_TEXT_MAX)
        return DI_ELIMIT;
    return bpe_finish(t, &out, bpe_text(t, text, len, false, &out), n);
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
        rc = late ? bpe_normal(t, text + start, pos - start, out)
                  : bpe_text(t, text + start, pos - start, true, out);
        if (rc != DI_OK)
            return rc;
        bpe_put(out, id);
        (void) di_vocab_at(v, id, &id_len);
        pos += id_len;
        start = pos;
    }
    return late ? bpe_normal(t, text + start, len - start, out)
                : bpe_text(t, text + start, len - start, true, out);
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
