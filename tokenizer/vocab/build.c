/*
 * build.c - making a vocabulary of what a file says.
 *
 * Files spell the tokens of a byte-level vocabulary in GPT-2's alphabet, in
 * which each byte is one printable code point, and its merge rules as pairs
 * of such spellings.  Building turns spellings into bytes and ids once:
 * afterwards nothing knows of the alphabet.
 *
 * Kinds.  Control tokens carry meaning for the model and no text; text never
 * becomes one.  The same holds for tokens that the model's maker added by
 * hand (user-defined, such as a marker of a tool call): in text they would
 * be as strong as a control token, so only di_vocab_special() gives them.
 * A merge rule that touches such a token would break that seal and is
 * refused.
 *
 * Two tokens or two rules that are spelled the same: the later one counts,
 * as in the reference implementations.
 */

#include <stdlib.h>
#include <string.h>

#include "build.h"
#include "table.h"

#define BUILD_WORD_MAX  1024    /* bytes of a rule's joined spelling         */
#define BUILD_ABREAST   32      /* look-ups at once                          */
#define BUILD_AHEAD     16      /* tokens for which memory is asked early    */

/* Code point of a byte in GPT-2's alphabet: itself where it is printable in
 * Latin-1, otherwise the next free one from U+0100 on.
 * Source: GPT-2's published encoder. */
static void
build_alphabet(int16_t bytes[0x180])
{
    int next = 0x100;

    for (int i = 0; i < 0x180; i++)
        bytes[i] = -1;
    for (int b = 0; b < 256; b++) {
        bool printable = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b != 0xad);

        bytes[printable ? b : next++] = (int16_t) b;
    }
}

/* Decode a spelling to at most s.len bytes.  false: it has a character that
 * is not of the alphabet. */
static bool
build_decode(const int16_t bytes[0x180], di_str_t s, char *out, size_t *len)
{
    const uint8_t *p = (const uint8_t *) s.data;
    size_t         n = 0;

    for (size_t i = 0; i < s.len; i++) {
        uint32_t code = p[i];

        if (code >= 0x80) {
            if (code < 0xc2 || code > 0xc5 || i + 1 == s.len
                || (p[i + 1] & 0xc0) != 0x80)
                return false;
            code = (code & 0x1f) << 6 | (p[++i] & 0x3f);
        }
        if (bytes[code] < 0)
            return false;
        out[n++] = (char) bytes[code];
    }
    *len = n;
    return true;
}

static bool
build_index_alloc(di_vocab_index_t *x, uint32_t n)
{
    uint32_t size = 16;

    while (size < n * 2)
        size *= 2;
    x->slots = di_table_alloc(size, sizeof(*x->slots), 0);
    x->mask = size - 1;
    return x->slots != NULL;
}

/* memcmp() without a call for up to 16 bytes, as nearly all spellings are. */
static inline bool
build_is_same(const char *a, const char *b, size_t len)
{
    if (len > 16)
        return memcmp(a, b, len) == 0;
    if (len > 8)
        return di_vocab_few(a, 8) == di_vocab_few(b, 8)
               && di_vocab_few(a + len - 8, 8) == di_vocab_few(b + len - 8, 8);
    return len == 0 || di_vocab_few(a, len) == di_vocab_few(b, len);
}

static bool
build_is_spelled(const di_build_t *b, uint32_t id, di_str_t s)
{
    return b->tokens[id].len == s.len
           && build_is_same(b->tokens[id].data, s.data, s.len);
}

static inline uint64_t *
build_home(const di_build_t *b, uint32_t hash)
{
    return &b->spelled.slots[hash & b->spelled.mask];
}

/* Id of the token spelled so, -1: none.  In the latter case a token may be
 * entered at *slot. */
static int32_t
build_find_slot(const di_build_t *b, di_str_t s, uint32_t hash,
                uint64_t **slot)
{
    uint32_t i = hash & b->spelled.mask;

    for (;; i = (i + 1) & b->spelled.mask) {
        uint32_t id;

        *slot = &b->spelled.slots[i];
        if (**slot == 0)
            return -1;
        id = (uint32_t) **slot - 1;
        if (**slot >> 32 == hash && build_is_spelled(b, id, s))
            return (int32_t) id;
    }
}

int32_t
di_build_find(const di_build_t *b, di_str_t s)
{
    uint64_t *slot;

    return build_find_slot(b, s, di_vocab_hash(s.data, s.len), &slot);
}

/* Find n spellings, at most BUILD_ABREAST: what all of them need is on its
 * way before it is looked at. */
static void
build_find_all(const di_build_t *b, const di_str_t *s, size_t n,
               int32_t ids[BUILD_ABREAST])
{
    uint32_t  hashes[BUILD_ABREAST];
    uint64_t *slot;

    for (size_t i = 0; i < n; i++) {
        hashes[i] = di_vocab_hash(s[i].data, s[i].len);
        __builtin_prefetch(build_home(b, hashes[i]));
    }
    for (size_t i = 0; i < n; i++) {
        slot = build_home(b, hashes[i]);
        if (*slot != 0)
            __builtin_prefetch(&b->tokens[(uint32_t) *slot - 1]);
    }
    for (size_t i = 0; i < n; i++) {
        slot = build_home(b, hashes[i]);
        if (*slot != 0)
            __builtin_prefetch(b->tokens[(uint32_t) *slot - 1].data);
    }
    for (size_t i = 0; i < n; i++)
        ids[i] = build_find_slot(b, s[i], hashes[i], &slot);
}

/* Enter tokens `from` to `end` - 1, at most BUILD_ABREAST. */
static void
build_enter(di_build_t *b, uint32_t from, uint32_t end)
{
    uint32_t  hashes[BUILD_ABREAST];
    uint64_t *slot;

    for (uint32_t id = from; id < end; id++) {
        hashes[id - from] = di_vocab_hash(b->tokens[id].data,
                                          b->tokens[id].len);
        __builtin_prefetch(build_home(b, hashes[id - from]), 1);
    }
    for (uint32_t id = from; id < end; id++) {
        if (b->tokens[id].len == 0)
            continue;
        b->twice |= build_find_slot(b, b->tokens[id], hashes[id - from],
                                    &slot) >= 0;
        *slot = (uint64_t) hashes[id - from] << 32 | (id + 1);
    }
}

static void
build_enter_word(di_vocab_t *v, uint32_t id)
{
    size_t      len;
    const char *s = di_vocab_at(v, (int32_t) id, &len);
    uint64_t   *slot;

    (void) di_vocab_word_slot(v, s, len, &slot);
    *slot = (uint64_t) di_vocab_hash(s, len) << 32 | (id + 1);
}

void
di_build_known_ends(di_build_t *b)
{
    static const char *const spellings[] = {
        "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>",
        "<|end_of_text|>", "<|end|>", "<｜end▁of▁sentence｜>",
    };

    for (size_t i = 0; i < sizeof(spellings) / sizeof(spellings[0]); i++) {
        int32_t id = di_build_find(b, (di_str_t) { spellings[i],
                                                   strlen(spellings[i]) });

        if (id >= 0 && b->v->kinds[id] == DI_VOCAB_CONTROL)
            di_vocab_add_end(b->v, id);
    }
}

int
di_build_copy(di_build_t *b, di_str_t s, char **out)
{
    *out = malloc(s.len + 1);
    if (*out == NULL)
        return di_build_nomem(b);
    memcpy(*out, s.data, s.len);
    (*out)[s.len] = '\0';
    return DI_OK;
}

/* Lay the tokens' bytes one behind the other. */
static int
build_bytes(di_build_t *b, di_vocab_t *v)
{
    int16_t alphabet[0x180];
    size_t  total = 0, len;

    build_alphabet(alphabet);
    for (uint32_t i = 0; i < v->size; i++)
        total += b->tokens[i].len;
    if (total >= UINT32_MAX)
        return di_err_set(b->err, DI_EUNSUPPORTED, 0, "over 4 GB of text in "
                          "the tokens");

    v->text = malloc(total + 1);
    v->starts = calloc((size_t) v->size + 1, sizeof(*v->starts));
    if (v->text == NULL || v->starts == NULL)
        return di_build_nomem(b);

    for (int i = 0; i < 256; i++)
        v->byte_ids[i] = -1;
    for (uint32_t i = 0; i < v->size; i++) {
        di_str_t s = b->tokens[i];
        char    *at = v->text + v->starts[i];

        if (v->kinds[i] == DI_VOCAB_UNUSED) {
            len = 0;
        } else if (v->kinds[i] != DI_VOCAB_NORMAL
                   || !build_decode(alphabet, s, at, &len))
        {
            memcpy(at, s.data, s.len);
            len = s.len;
        } else if (len == 1) {
            v->byte_ids[(uint8_t) *at] = (int32_t) i;
        }
        v->starts[i + 1] = v->starts[i] + (uint32_t) len;
    }
    for (int i = 0; i < 256; i++)
        v->bytes_missing |= v->byte_ids[i] < 0;
    return DI_OK;
}

/* Id of what a rule makes; -1: none.  Training gives tokens their ids in the
 * order of the rules, so the id after that of the rule before, `hint`, is
 * mostly right. */
static int32_t
build_joined(const di_build_t *b, const di_build_rule_t *rule, uint32_t hint)
{
    size_t   left = rule->left.len, right = rule->right.len;
    char     joined[BUILD_WORD_MAX];
    di_str_t s;

    if (!b->twice && hint < b->v->size) {
        s = b->tokens[hint];
        if (s.len > 0 && s.len == left + right
            && build_is_same(s.data, rule->left.data, left)
            && build_is_same(s.data + left, rule->right.data, right))
            return (int32_t) hint;
    }
    if (left + right > sizeof(joined))
        return -1;
    memcpy(joined, rule->left.data, left);
    memcpy(joined + left, rule->right.data, right);
    return di_build_find(b, (di_str_t) { joined, left + right });
}

/* The ids of rules `rank` to `end` - 1, at most BUILD_ABREAST / 2: their two
 * sides, and what they make. */
static int
build_rule_ids(di_build_t *b, uint64_t rank, uint64_t end, int32_t (*ids)[3])
{
    di_str_t sides[BUILD_ABREAST];
    int32_t  found[BUILD_ABREAST];
    size_t   n = 0;

    for (uint64_t i = rank; i < end; i++) {
        sides[n++] = b->rules[i].left;
        sides[n++] = b->rules[i].right;
    }
    build_find_all(b, sides, n, found);
    for (n = 0; rank < end; rank++, n += 2) {
        ids[rank][0] = found[n];
        ids[rank][1] = found[n + 1];
        ids[rank][2] = build_joined(b, &b->rules[rank], rank == 0 ? 0
                                    : (uint32_t) ids[rank - 1][2] + 1);
        for (int i = 0; i < 3; i++) {
            if (ids[rank][i] < 0
                || b->v->kinds[ids[rank][i]] != DI_VOCAB_NORMAL)
                return di_err_set(b->err, DI_EFORMAT, 0, "%s%llu%s does not "
                                  "join two tokens of the vocabulary to a "
                                  "third", b->rules_at,
                                  (unsigned long long) rank, b->rules_end);
        }
    }
    return DI_OK;
}

static int
build_merges(di_build_t *b, di_vocab_t *v)
{
    int32_t (*ids)[3] = di_table_room(b->n_rules + 1, sizeof(*ids));
    uint64_t  rank, end;
    int       rc = DI_OK;

    if (ids == NULL || !di_merges_init(&v->merges, v->size, b->n_rules)) {
        rc = di_build_nomem(b);
        goto done;
    }
    for (rank = 0; rank < b->n_rules; rank = end) {
        end = b->n_rules - rank < BUILD_ABREAST / 2 ? b->n_rules
              : rank + BUILD_ABREAST / 2;
        rc = build_rule_ids(b, rank, end, ids);
        if (rc != DI_OK)
            goto done;
    }

    rank = di_merges_build(&v->merges, (const int32_t (*)[3]) ids, b->n_rules,
                           v->byte_ids);
    if (rank < b->n_rules)
        rc = di_err_set(b->err, DI_EUNSUPPORTED, 0, "%s%llu%s comes before "
                        "the rules that make its sides", b->rules_at,
                        (unsigned long long) rank, b->rules_end);

done:
    free(ids);
    return rc;
}

static int
build_compare(const void *a, const void *b, void *arg)
{
    const di_vocab_t *v = arg;
    size_t            x_len, y_len;
    const char       *x = di_vocab_at(v, *(const int32_t *) a, &x_len);
    const char       *y = di_vocab_at(v, *(const int32_t *) b, &y_len);
    int               c = memcmp(x, y, x_len < y_len ? x_len : y_len);

    if (c == 0)
        c = (x_len > y_len) - (x_len < y_len);
    return c != 0 ? c : *(const int32_t *) b - *(const int32_t *) a;
}

/* Sort the tokens that only their name gives. */
static int
build_index_names(di_build_t *b, di_vocab_t *v)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < v->size; i++)
        n += v->kinds[i] >= DI_VOCAB_USER;
    for (int late = 0; late < 2; late++) {
        di_vocab_names_t *names = &v->names[late];

        names->ids = calloc((size_t) n + 1, sizeof(*names->ids));
        if (names->ids == NULL)
            return di_build_nomem(b);
        for (uint32_t i = 0; i < v->size; i++) {
            size_t      len;
            const char *s = di_vocab_at(v, (int32_t) i, &len);

            if (v->kinds[i] < DI_VOCAB_USER || len == 0
                || (b->late != NULL && b->late[i]) != late)
                continue;
            names->ids[names->n++] = (int32_t) i;
            names->first[(uint8_t) *s] = true;
        }
        qsort_r(names->ids, names->n, sizeof(*names->ids), build_compare, v);
    }
    return DI_OK;
}

/* Ids of the whole tokens, the shortest first: a counting sort. */
static uint32_t
build_sort_whole(const di_vocab_t *v, uint32_t *counts, size_t len_max,
                 int32_t *sorted)
{
    uint32_t n = 0;
    size_t   len;

    for (uint32_t i = 0; i < v->size; i++) {
        (void) di_vocab_at(v, (int32_t) i, &len);
        if (v->merges.tokens[i].order != 0)
            counts[len]++;
    }
    for (len = 0; len <= len_max; len++) {
        uint32_t count = counts[len];

        counts[len] = n;
        n += count;
    }
    for (uint32_t i = 0; i < v->size; i++) {
        (void) di_vocab_at(v, (int32_t) i, &len);
        if (v->merges.tokens[i].order != 0)
            sorted[counts[len]++] = (int32_t) i;
    }
    return n;
}

/* Add the whole tokens, sorted[n], to the trie: groups of one length. */
static bool
build_fill_trie(di_vocab_t *v, const int32_t *sorted, uint32_t n)
{
    di_trie_word_t words[DI_TRIE_ABREAST];
    size_t         n_words = 0, len;

    for (uint32_t i = 0; i < n; i++) {
        di_merges_token_t *t = &v->merges.tokens[sorted[i]];
        const char        *s = di_vocab_at(v, sorted[i], &len);

        if (i + BUILD_AHEAD < n) {
            int32_t ahead = sorted[i + BUILD_AHEAD];

            __builtin_prefetch(&v->merges.tokens[ahead], 1);
            __builtin_prefetch(v->text + v->starts[ahead]);
        }
        if (n_words == DI_TRIE_ABREAST
            || (n_words > 0 && words[0].len != len))
        {
            if (!di_trie_add(&v->trie, words, n_words))
                return false;
            n_words = 0;
        }
        words[n_words++] = (di_trie_word_t) {
            .s = (const uint8_t *) s, .len = (uint32_t) len, .id = sorted[i],
            .start = t->left,
            .known = t->order > 1 ? v->merges.tokens[t->left].len : 0,
            .shorter = &t->shorter,
        };
    }
    return di_trie_add(&v->trie, words, n_words);
}

static int
build_trie(di_build_t *b, di_vocab_t *v)
{
    int32_t  *sorted = calloc(v->size, sizeof(*sorted));
    uint32_t *counts, n;
    size_t    len_max = 0, len;
    int       rc = DI_OK;

    for (uint32_t i = 0; i < v->size; i++) {
        (void) di_vocab_at(v, (int32_t) i, &len);
        len_max = len > len_max ? len : len_max;
    }
    v->longest = len_max;
    counts = calloc(len_max + 1, sizeof(*counts));
    if (sorted == NULL || counts == NULL
        || !di_trie_init(&v->trie, v->size))
    {
        rc = di_build_nomem(b);
        goto done;
    }

    n = build_sort_whole(v, counts, len_max, sorted);
    if (!build_fill_trie(v, sorted, n))
        rc = di_err_set(b->err, DI_ENOMEM, 0, "no memory for the vocabulary, "
                        "or over %u prefixes of tokens", DI_TRIE_NODES_MAX);

done:
    free(sorted);
    free(counts);
    return rc;
}

static int
build_seams(di_build_t *b, di_vocab_t *v)
{
    if (!di_seams_init(&v->seams))
        return di_build_nomem(b);
    for (uint32_t i = 0; i < v->size; i++) {
        size_t      len;
        const char *s = di_vocab_at(v, (int32_t) i, &len);

        if (v->merges.tokens[i].order > 1)
            di_seams_add(&v->seams, (const uint8_t *) s, len);
    }
    if (!b->words)
        v->pretok.seams = &v->seams;
    /* A character that loses a byte in encoding isn't what was entered. */
    for (int i = 0x80; i < 256; i++) {
        if (v->byte_ids[i] < 0)
            di_seams_hide(&v->seams);
    }
    return DI_OK;
}

/* The tokens of single characters, where encoding may start from these. */
static int
build_chars(di_build_t *b, di_vocab_t *v)
{
    size_t n = DI_SEAMS_END - DI_SEAMS_FIRST;

    if (!v->merges.ordered)
        return DI_OK;
    v->chars = malloc(n * sizeof(*v->chars));
    if (v->chars == NULL)
        return di_build_nomem(b);
    memset(v->chars, 0xff, n * sizeof(*v->chars));
    for (uint32_t i = 0; i < v->size; i++) {
        size_t         len;
        const uint8_t *s = (const uint8_t *) di_vocab_at(v, (int32_t) i, &len);

        if (v->merges.tokens[i].order > 1 && len == 3
            && di_seams_takes(di_seams_code(s)))
            v->chars[di_seams_code(s) - DI_SEAMS_FIRST] = (int32_t) i;
    }
    return DI_OK;
}

/* Enter tokens `from` to `end` - 1, at most BUILD_ABREAST, if they are whole
 * and short. */
static void
build_enter_wholes(di_vocab_t *v, uint32_t from, uint32_t end)
{
    di_vocab_key_t keys[BUILD_ABREAST];
    uint32_t       ids[BUILD_ABREAST];
    size_t         n = 0, len;

    for (uint32_t id = from; id < end; id++) {
        const char *s = di_vocab_at(v, (int32_t) id, &len);

        if (v->merges.tokens[id].order == 0 || len > DI_VOCAB_WHOLE_MAX)
            continue;
        keys[n] = di_vocab_key(s, len, len);
        __builtin_prefetch(di_vocab_whole_home(v, keys[n]), 1);
        ids[n++] = id;
    }
    for (size_t i = 0; i < n; i++)
        *di_vocab_whole_slot(v, keys[i]) = (di_vocab_whole_t) {
            keys[i].low, (uint32_t) keys[i].high,
            ids[i] | (uint32_t) (keys[i].high >> 56) << 24,
        };
}

static int
build_index_wholes(di_build_t *b, di_vocab_t *v)
{
    uint64_t size = 16;

    while (size < v->size + v->size / 2)
        size *= 2;
    v->wholes = di_table_alloc(size, sizeof(*v->wholes), 0);
    if (v->wholes == NULL)
        return di_build_nomem(b);
    v->wholes_mask = size - 1;

    for (uint32_t i = 0, end; i < v->size; i = end) {
        end = v->size - i < BUILD_ABREAST ? v->size : i + BUILD_ABREAST;
        build_enter_wholes(v, i, end);
    }
    return DI_OK;
}

/* Taking a pre-token that is a token as it is, as Llama 3 does, makes a
 * difference only for tokens that merging doesn't make. */
static int
build_index_words(di_build_t *b, di_vocab_t *v)
{
    uint32_t n = 0;

    if (!b->words)
        return DI_OK;
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t i = 0; i < v->size; i++) {
            size_t      len;

            (void) di_vocab_at(v, (int32_t) i, &len);
            if (v->kinds[i] != DI_VOCAB_NORMAL || len == 0
                || v->merges.tokens[i].order != 0)
                continue;
            if (pass == 0)
                n++;
            else
                build_enter_word(v, i);
        }
        if (n == 0)
            return DI_OK;
        if (pass == 0 && !build_index_alloc(&v->words, n))
            return di_build_nomem(b);
    }
    return DI_OK;
}

int
di_build_init(di_build_t *b, di_err_t *err)
{
    *b = (di_build_t) { .err = err };
    b->v = calloc(1, sizeof(*b->v));
    return b->v == NULL ? di_build_nomem(b) : DI_OK;
}

void
di_build_deinit(di_build_t *b)
{
    di_vocab_close(b->v);
    free(b->tokens);
    free(b->rules);
    free(b->late);
    free(b->spelled.slots);
}

int
di_build_index(di_build_t *b)
{
    if (!build_index_alloc(&b->spelled, b->v->size))
        return di_build_nomem(b);
    for (uint32_t i = 0, end; i < b->v->size; i = end) {
        end = b->v->size - i < BUILD_ABREAST ? b->v->size
                                             : i + BUILD_ABREAST;
        build_enter(b, i, end);
    }
    return DI_OK;
}

di_build_rule_t
di_build_rule(di_str_t s)
{
    const char *space = memchr(s.data, ' ', s.len);
    size_t      left;

    if (space == NULL)
        return (di_build_rule_t) { { "", 0 }, { "", 0 } };
    left = (size_t) (space - s.data);
    return (di_build_rule_t) { { s.data, left },
                               { space + 1, s.len - left - 1 } };
}

int
di_build_finish(di_build_t *b)
{
    static int (*const steps[])(di_build_t *b, di_vocab_t *v) = {
        build_bytes, build_merges, build_index_names, build_trie,
        build_seams, build_chars, build_index_wholes, build_index_words,
    };
    int rc = DI_OK;

    for (size_t i = 0; rc == DI_OK && i < sizeof(steps) / sizeof(*steps); i++)
        rc = steps[i](b, b->v);
    return rc;
}

di_build_shown_t
di_build_show(di_str_t s)
{
    di_build_shown_t shown = { "" };

    for (size_t i = 0; i < s.len && i < sizeof(shown.text) - 1; i++)
        shown.text[i] = s.data[i] >= 0x20 && s.data[i] < 0x7f ? s.data[i]
                                                              : '?';
    return shown;
}
