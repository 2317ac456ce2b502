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

#include "cache.h"

#define BPE_ENDS        128         /* pre-tokens cut at once                */
#define BPE_PIECES      32          /* pieces encoded at once                */
#define BPE_PERIOD      4           /* tokens of a cycle                     */
#define BPE_SHORT_MAX   128         /* bytes encoded on the stack            */
#define BPE_KEEP_MAX    65536       /* bytes of scratch kept between calls   */
#define BPE_TEXT_MAX    INT32_MAX   /* bytes of a text                       */

/* A part of the text that is encoded by itself. */
typedef struct {
    di_vocab_key_t    key;          /* high 0: it is too long for a key      */
    di_cache_entry_t *set;          /* its place in the cache, if it has one */
    uint32_t          at;           /* in the text                           */
    uint32_t          len;          /* bytes                                 */
} bpe_piece_t;

struct di_tok_s {
    const di_vocab_t *vocab;
    bpe_piece_t       pieces[BPE_PIECES];   /* gathered, not yet encoded     */
    size_t            n_pieces;
    di_cache_t        cache;
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

/* Encode a piece of Chinese characters and kana, starting from the tokens of
 * these instead of bytes.  No rule joins a part of one with another here, so
 * all that a character's bytes make of themselves first is its token; and as
 * rules come behind those that make their sides, it makes no difference that
 * it is there before its time.  Returns the number of ids; 0: this way isn't
 * open to the piece. */
static size_t
bpe_chars(const di_vocab_t *v, const uint8_t *s, size_t len,
          int32_t ids[BPE_SHORT_MAX])
{
    uint32_t left = 0, code;

    if (v->chars == NULL || len % 3 != 0 || len > 3 * DI_MERGES_SHORT)
        return 0;
    for (size_t i = 0; i < len; i += 3) {
        code = di_seams_code(s + i);
        if (!di_seams_takes(code)
            || (left != 0 && di_seams_is_partial(&v->seams, left, code)))
            return 0;
        ids[i / 3] = v->chars[code - DI_SEAMS_FIRST];
        if (ids[i / 3] < 0)
            return 0;
        left = code;
    }
    return di_merges_encode_from(&v->merges, ids, len / 3);
}

/* The same for up to BPE_SHORT_MAX bytes, on the stack; returns the number
 * of ids. */
static size_t
bpe_short(const di_vocab_t *v, const uint8_t *s, size_t len,
          int32_t ids[BPE_SHORT_MAX])
{
    uint64_t left[BPE_SHORT_MAX / 64 + 1] = { 0 };
    uint8_t  copy[BPE_SHORT_MAX];
    size_t   n = bpe_chars(v, s, len, ids);

    if (n > 0)
        return n;
    if (v->bytes_missing) {
        len = bpe_filter(v, s, len, copy);
        s = copy;
    }
    if (len == 0)
        return 0;
    if (len <= DI_MERGES_SHORT)
        return di_merges_encode(&v->merges, v->byte_ids, s, len, ids);
    return bpe_encode(v, s, len, ids, left);
}

static inline void
bpe_put_all(bpe_out_t *out, const int32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++)
        bpe_put(out, ids[i]);
}

/* Put the ids of an entry.  Where there is room, all that it may have are
 * copied, and what comes next overwrites those that it hasn't. */
static inline void
bpe_put_entry(bpe_out_t *out, const di_cache_entry_t *entry)
{
    size_t n = di_cache_count(entry);

    if (out->cap < DI_CACHE_IDS || out->n > out->cap - DI_CACHE_IDS) {
        bpe_put_all(out, entry->ids, n);
        return;
    }
    memcpy(out->ids + out->n, entry->ids, sizeof(entry->ids));
    out->n += n;
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

/* What a piece became, to be entered in the cache. */
typedef struct {
    const bpe_piece_t *piece;
    int32_t            ids[DI_CACHE_IDS];
    size_t             n;
} bpe_new_t;

/* Encode a piece that has no entry for its key.  *made: what to enter. */
static int
bpe_miss(di_tok_t *t, const char *text, const bpe_piece_t *piece,
         bpe_new_t *made, bpe_out_t *out)
{
    const uint8_t *s = (const uint8_t *) text + piece->at;
    int32_t        ids[BPE_SHORT_MAX];
    size_t         n = 1;

    made->n = SIZE_MAX;
    if (piece->len > BPE_SHORT_MAX)
        return bpe_long(t, s, piece->len, out);
    if (piece->key.high == 0) {
        bpe_wide(t, s, piece->len, out);
        return DI_OK;
    }

    ids[0] = di_vocab_whole(t->vocab, piece->key);
    if (ids[0] < 0)
        n = bpe_short(t->vocab, s, piece->len, ids);
    bpe_put_all(out, ids, n);
    made->piece = piece;
    made->n = n;
    memcpy(made->ids, ids, sizeof(made->ids));
    return DI_OK;
}

/* Encode the pieces that were gathered.  A first look finds those that the
 * cache knows, and brings what the others need into the core's cache.  What
 * is new is entered last, as it moves other entries. */
static int
bpe_flush(di_tok_t *t, const char *text, bpe_out_t *out)
{
    const di_cache_entry_t *found[BPE_PIECES];
    bpe_new_t               made[BPE_PIECES];
    size_t                  n_made = 0;
    int                     rc;

    for (size_t i = 0; i < t->n_pieces; i++) {
        const bpe_piece_t *piece = &t->pieces[i];

        found[i] = NULL;
        if (piece->key.high == 0)
            continue;
        found[i] = di_cache_find(piece->set, piece->key);
        if (found[i] == NULL)
            __builtin_prefetch(di_vocab_whole_home(t->vocab, piece->key));
    }
    for (size_t i = 0; i < t->n_pieces; i++) {
        if (found[i] != NULL) {
            bpe_put_entry(out, found[i]);
            continue;
        }
        rc = bpe_miss(t, text, &t->pieces[i], &made[n_made], out);
        if (rc != DI_OK)
            return rc;
        n_made += made[n_made].n <= DI_CACHE_IDS;
    }
    for (size_t i = 0; i < n_made; i++)
        di_cache_enter(made[i].piece->set, made[i].piece->key, made[i].ids,
                       made[i].n);
    t->n_pieces = 0;
    return DI_OK;
}

/* Gather the piece text[pos..end). */
static inline int
bpe_gather(di_tok_t *t, const char *text, size_t len, size_t pos, size_t end,
           bpe_out_t *out)
{
    bpe_piece_t *piece;
    int          rc;

    if (t->n_pieces == BPE_PIECES) {
        rc = bpe_flush(t, text, out);
        if (rc != DI_OK)
            return rc;
    }
    piece = &t->pieces[t->n_pieces++];
    piece->at = (uint32_t) pos;
    piece->len = (uint32_t) (end - pos);
    piece->key.high = 0;
    if (end - pos <= DI_VOCAB_KEY_MAX) {
        piece->key = di_vocab_key(text + pos, end - pos, len - pos);
        piece->set = di_cache_set(&t->cache, piece->key);
        __builtin_prefetch(piece->set);
    }
    return DI_OK;
}

/* Gather a pre-token that may have Chinese characters, in pieces. */
static int
bpe_gather_cut(di_tok_t *t, const char *text, size_t len, size_t pos,
               size_t end, bpe_out_t *out)
{
    uint32_t ends[BPE_PIECES];
    size_t   n;
    int      rc = DI_OK;

    while (pos < end) {
        n = di_seams_cut(&t->vocab->seams, (const uint8_t *) text, pos, end,
                         ends, BPE_PIECES);
        for (size_t i = 0; rc == DI_OK && i < n; i++) {
            rc = bpe_gather(t, text, len, pos, ends[i], out);
            pos = ends[i];
        }
        if (rc != DI_OK)
            return rc;
    }
    return rc;
}

/* Gather a pre-token of a vocabulary that takes some as they are. */
static int
bpe_gather_word(di_tok_t *t, const char *text, size_t len, size_t pos,
                size_t end, bpe_out_t *out)
{
    int32_t id = di_vocab_word(t->vocab, text + pos, end - pos);
    int     rc;

    if (id < 0)
        return bpe_gather_cut(t, text, len, pos, end, out);
    rc = bpe_flush(t, text, out);
    bpe_put(out, id);
    return rc;
}

/* Gather the pre-tokens of which ends[n] are given, the first at pos. */
static int
bpe_gather_all(di_tok_t *t, const char *text, size_t len, size_t pos,
               const uint32_t *ends, size_t n, bpe_out_t *out)
{
    int rc = DI_OK;

    for (size_t i = 0; rc == DI_OK && i < n; i++) {
        size_t end = ends[i];

        if (t->vocab->words.slots != NULL)
            rc = bpe_gather_word(t, text, len, pos, end, out);
        else if (end - pos > DI_VOCAB_KEY_MAX)
            rc = bpe_gather_cut(t, text, len, pos, end, out);
        else
            rc = bpe_gather(t, text, len, pos, end, out);
        pos = end;
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
    rc = bpe_gather_all(t, text, len, 0, ends, n, out);
    free(ends);
    return rc == DI_OK ? bpe_flush(t, text, out) : rc;
}

/* Encode text that is as it should be. */
static int
bpe_normal(di_tok_t *t, const char *text, size_t len, bpe_out_t *out)
{
    uint32_t ends[BPE_ENDS];
    size_t   pos = 0, n;
    int      rc;

    t->n_pieces = 0;
    if (t->vocab->pretok.kind == DI_PRETOK_RE)
        return bpe_text_re(t, text, len, out);
    while (pos < len) {
        n = di_pretok_cut(&t->vocab->pretok, text, len, pos, ends, BPE_ENDS);
        rc = bpe_gather_all(t, text, len, pos, ends, n, out);
        if (rc != DI_OK)
            return rc;
        pos = ends[n - 1];
    }
    return bpe_flush(t, text, out);
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
