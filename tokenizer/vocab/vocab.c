/*
 * vocab.c - vocabularies from GGUF metadata.
 *
 * GGUF spells the tokens of a byte-level vocabulary in GPT-2's alphabet, in
 * which each byte is one printable code point, and its merge rules as pairs
 * of such spellings.  Opening turns spellings into bytes and ids once:
 * afterwards nothing knows of the alphabet.
 *
 * Kinds.  Control tokens carry meaning for the model and no text; text never
 * becomes one.  The same holds for tokens that the model's maker added by
 * hand (user-defined, such as a marker of a tool call): in text they would
 * be as strong as a control token, so only di_vocab_special() gives them.
 * A merge rule that touches a control token would break that seal and is
 * refused.  Files exist whose bos, eos or eot has no control type; the role
 * makes it one.
 *
 * Two tokens or two rules that are spelled the same: the later one counts,
 * as in the reference implementation.
 */

#include <stdlib.h>
#include <string.h>

#include "vocab.h"

#define VOCAB_ARRAY_MAX  DI_MERGES_MAX

/* Type numbers of tokenizer.ggml.token_type. */
enum {
    VOCAB_TYPE_NORMAL = 1,
    VOCAB_TYPE_UNKNOWN = 2,
    VOCAB_TYPE_CONTROL = 3,
    VOCAB_TYPE_USER = 4,
    VOCAB_TYPE_UNUSED = 5,
    VOCAB_TYPE_BYTE = 6,
};

/* What is needed only while opening. */
typedef struct {
    const di_gguf_t *gguf;
    di_str_t        *tokens;    /* [size] spellings                          */
    di_str_t        *rules;     /* [n_rules] spellings of merges             */
    uint64_t         n_rules;
    di_vocab_index_t spelled;   /* ids by spelling                           */
    bool             twice;     /* some spelling is that of two tokens       */
    int16_t          bytes[0x180];  /* byte of a code point; -1: none        */
    di_err_t        *err;
} vocab_build_t;

/* Code point of a byte in GPT-2's alphabet: itself where it is printable in
 * Latin-1, otherwise the next free one from U+0100 on.
 * Source: GPT-2's published encoder. */
static void
vocab_alphabet(int16_t bytes[0x180])
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
vocab_decode(const vocab_build_t *b, di_str_t s, char *out, size_t *len)
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
        if (b->bytes[code] < 0)
            return false;
        out[n++] = (char) b->bytes[code];
    }
    *len = n;
    return true;
}

static bool
vocab_index_alloc(di_vocab_index_t *x, uint32_t n)
{
    uint32_t size = 16;

    while (size < n * 2)
        size *= 2;
    x->slots = calloc(size, sizeof(*x->slots));
    x->mask = size - 1;
    return x->slots != NULL;
}

static bool
vocab_is_spelled(const vocab_build_t *b, uint32_t id, di_str_t s)
{
    return b->tokens[id].len == s.len
           && memcmp(b->tokens[id].data, s.data, s.len) == 0;
}

/* Id of the token spelled so, -1: none.  In the latter case a token may be
 * entered at *slot. */
static int32_t
vocab_find_spelled(const vocab_build_t *b, di_str_t s, uint64_t **slot)
{
    uint32_t hash = di_vocab_hash(s.data, s.len);
    uint32_t i = hash & b->spelled.mask;

    for (;; i = (i + 1) & b->spelled.mask) {
        uint32_t id;

        *slot = &b->spelled.slots[i];
        if (**slot == 0)
            return -1;
        id = (uint32_t) **slot - 1;
        if (**slot >> 32 == hash && vocab_is_spelled(b, id, s))
            return (int32_t) id;
    }
}

static int32_t
vocab_spelled(const vocab_build_t *b, di_str_t s)
{
    uint64_t *slot;

    return vocab_find_spelled(b, s, &slot);
}

static void
vocab_enter_spelled(vocab_build_t *b, uint32_t id)
{
    di_str_t  s = b->tokens[id];
    uint64_t *slot;

    b->twice |= vocab_find_spelled(b, s, &slot) >= 0;
    *slot = (uint64_t) di_vocab_hash(s.data, s.len) << 32 | (id + 1);
}

static int32_t
vocab_find_word(const di_vocab_t *v, const char *s, size_t len,
                uint64_t **slot)
{
    uint32_t hash = di_vocab_hash(s, len);
    uint32_t i = hash & v->words.mask;

    for (;; i = (i + 1) & v->words.mask) {
        const char *t;
        size_t      n;
        int32_t     id;

        *slot = &v->words.slots[i];
        if (**slot == 0)
            return -1;
        id = (int32_t) (uint32_t) **slot - 1;
        t = di_vocab_at(v, id, &n);
        if (**slot >> 32 == hash && n == len && memcmp(t, s, len) == 0)
            return id;
    }
}

int32_t
di_vocab_word(const di_vocab_t *v, const char *s, size_t len)
{
    uint64_t *slot;

    return vocab_find_word(v, s, len, &slot);
}

static void
vocab_enter_word(di_vocab_t *v, uint32_t id)
{
    size_t      len;
    const char *s = di_vocab_at(v, (int32_t) id, &len);
    uint64_t   *slot;

    (void) vocab_find_word(v, s, len, &slot);
    *slot = (uint64_t) di_vocab_hash(s, len) << 32 | (id + 1);
}

/* Check an array's presence and size; *v: its strings, owned by the caller
 * whatever is returned. */
static int
vocab_read_strings(vocab_build_t *b, const char *key, uint64_t max,
                   di_str_t **v, uint64_t *n)
{
    int rc = di_gguf_array(b->gguf, key, n);

    if (rc != DI_OK)
        return di_err_set(b->err, DI_EFORMAT, 0, "GGUF key \"%s\" is %s", key,
                          rc == DI_EINVAL ? "missing" : "no array");
    if (*n > max)
        return di_err_set(b->err, DI_EUNSUPPORTED, 0, "GGUF key \"%s\": more "
                          "than %llu elements are not supported", key,
                          (unsigned long long) max);

    *v = calloc(*n + 1, sizeof(**v));
    if (*v == NULL)
        return di_err_set(b->err, DI_ENOMEM, 0, "no memory for the "
                          "vocabulary");
    if (di_gguf_array_str(b->gguf, key, *v, *n) != DI_OK)
        return di_err_set(b->err, DI_EFORMAT, 0, "GGUF key \"%s\" is no array "
                          "of strings", key);
    return DI_OK;
}

/* Read an optional id; -1 if the key is missing. */
static int
vocab_read_id(vocab_build_t *b, const di_vocab_t *v, const char *key,
              int32_t *id)
{
    uint64_t u;
    int      rc = di_gguf_u64(b->gguf, key, &u);

    *id = -1;
    if (rc == DI_EINVAL)
        return DI_OK;
    if (rc != DI_OK || u >= v->size)
        return di_err_set(b->err, DI_EFORMAT, 0, "GGUF key \"%s\" is no token "
                          "id", key);
    *id = (int32_t) u;
    return DI_OK;
}

static int
vocab_read_kinds(vocab_build_t *b, di_vocab_t *v)
{
    static const char key[] = "tokenizer.ggml.token_type";
    int64_t *types = calloc(v->size, sizeof(*types));
    uint64_t n = 0;
    int      rc = DI_OK;

    v->kinds = calloc(v->size, sizeof(*v->kinds));
    if (types == NULL || v->kinds == NULL) {
        rc = di_err_set(b->err, DI_ENOMEM, 0, "no memory for the vocabulary");
        goto done;
    }
    if (di_gguf_array(b->gguf, key, &n) != DI_OK || n != v->size
        || di_gguf_array_i64(b->gguf, key, types, n) != DI_OK)
    {
        rc = di_err_set(b->err, DI_EFORMAT, 0, "GGUF key \"%s\" is no array "
                        "of %u integers", key, v->size);
        goto done;
    }

    for (uint32_t i = 0; i < v->size; i++) {
        switch (types[i]) {
        case VOCAB_TYPE_NORMAL:
            v->kinds[i] = DI_VOCAB_NORMAL;
            break;
        case VOCAB_TYPE_UNKNOWN:
        case VOCAB_TYPE_CONTROL:
            v->kinds[i] = DI_VOCAB_CONTROL;
            break;
        case VOCAB_TYPE_USER:
            v->kinds[i] = DI_VOCAB_USER;
            break;
        case VOCAB_TYPE_UNUSED:
            v->kinds[i] = DI_VOCAB_UNUSED;
            break;
        default:
            rc = di_err_set(b->err, types[i] == VOCAB_TYPE_BYTE
                                    ? DI_EUNSUPPORTED : DI_EFORMAT, 0,
                            "GGUF key \"%s\": token %u has type %lld", key, i,
                            (long long) types[i]);
            goto done;
        }
    }

done:
    free(types);
    return rc;
}

static bool
vocab_add_end(di_vocab_t *v, int32_t id)
{
    if (id < 0 || di_vocab_is_end(v, id))
        return true;
    if (v->n_ends == sizeof(v->ends) / sizeof(v->ends[0]))
        return false;
    v->ends[v->n_ends++] = id;
    return true;
}

/* The roles that keys and well-known spellings give to control tokens. */
static int
vocab_read_roles(vocab_build_t *b, di_vocab_t *v)
{
    static const char *const keys[] = {
        "tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
        "tokenizer.ggml.eom_token_id",
    };
    static const char *const spellings[] = {
        "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>",
        "<|end_of_text|>", "<|end|>", "<｜end▁of▁sentence｜>",
    };
    int32_t id;
    int     rc;

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        rc = vocab_read_id(b, v, keys[i], &id);
        if (rc != DI_OK)
            return rc;
        if (id >= 0)
            v->kinds[id] = DI_VOCAB_CONTROL;
        (void) vocab_add_end(v, id);
    }
    for (size_t i = 0; i < sizeof(spellings) / sizeof(spellings[0]); i++) {
        id = vocab_spelled(b, (di_str_t) { spellings[i],
                                           strlen(spellings[i]) });
        if (id >= 0 && v->kinds[id] == DI_VOCAB_CONTROL)
            (void) vocab_add_end(v, id);
    }

    rc = vocab_read_id(b, v, "tokenizer.ggml.bos_token_id", &v->bos);
    if (rc != DI_OK)
        return rc;
    if (v->bos >= 0)
        v->kinds[v->bos] = DI_VOCAB_CONTROL;

    /* Llama 3 files leave the rule out and mean yes. */
    v->add_bos = v->bos >= 0 && v->pretok.kind == DI_PRETOK_LLAMA3;
    rc = di_gguf_bool(b->gguf, "tokenizer.ggml.add_bos_token", &v->add_bos);
    if (rc == DI_EFORMAT || (v->add_bos && v->bos < 0))
        return di_err_set(b->err, DI_EFORMAT, 0, "GGUF key \"tokenizer.ggml."
                          "add_bos_token\" is no boolean, or there is no "
                          "bos_token_id to add");
    return DI_OK;
}

/* Lay the tokens' bytes one behind the other. */
static int
vocab_read_bytes(vocab_build_t *b, di_vocab_t *v)
{
    size_t total = 0, len;

    for (uint32_t i = 0; i < v->size; i++)
        total += b->tokens[i].len;
    if (total >= UINT32_MAX)
        return di_err_set(b->err, DI_EUNSUPPORTED, 0, "GGUF key \"tokenizer."
                          "ggml.tokens\": over 4 GB of text");

    v->text = malloc(total + 1);
    v->starts = calloc((size_t) v->size + 1, sizeof(*v->starts));
    if (v->text == NULL || v->starts == NULL)
        return di_err_set(b->err, DI_ENOMEM, 0, "no memory for the "
                          "vocabulary");

    for (int i = 0; i < 256; i++)
        v->byte_ids[i] = -1;
    for (uint32_t i = 0; i < v->size; i++) {
        di_str_t s = b->tokens[i];
        char    *at = v->text + v->starts[i];

        if (v->kinds[i] == DI_VOCAB_UNUSED) {
            len = 0;
        } else if (v->kinds[i] != DI_VOCAB_NORMAL
                   || !vocab_decode(b, s, at, &len))
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

/* Ids of a rule's two sides and of what it makes.  Training gives tokens
 * their ids in the order of the rules, so the id after that of the rule
 * before, `hint`, is mostly right. */
static int
vocab_read_rule(vocab_build_t *b, const di_vocab_t *v, uint64_t rank,
                uint32_t hint, int32_t ids[3])
{
    di_str_t    rule = b->rules[rank], whole;
    const char *space = memchr(rule.data, ' ', rule.len);
    char        joined[1024];
    size_t      left;

    if (space == NULL || rule.len > sizeof(joined))
        goto bad;
    left = (size_t) (space - rule.data);
    memcpy(joined, rule.data, left);
    memcpy(joined + left, space + 1, rule.len - left - 1);

    ids[0] = vocab_spelled(b, (di_str_t) { rule.data, left });
    ids[1] = vocab_spelled(b, (di_str_t) { space + 1, rule.len - left - 1 });
    whole = (di_str_t) { joined, rule.len - 1 };
    ids[2] = !b->twice && hint < v->size && vocab_is_spelled(b, hint, whole)
             ? (int32_t) hint : vocab_spelled(b, whole);
    for (int i = 0; i < 3; i++) {
        if (ids[i] < 0 || v->kinds[ids[i]] != DI_VOCAB_NORMAL)
            goto bad;
    }
    return DI_OK;

bad:
    return di_err_set(b->err, DI_EFORMAT, 0, "GGUF key \"tokenizer.ggml."
                      "merges\": rule %llu does not join two tokens of the "
                      "vocabulary to a third", (unsigned long long) rank);
}

static int
vocab_read_merges(vocab_build_t *b, di_vocab_t *v)
{
    int32_t (*ids)[3] = calloc(b->n_rules + 1, sizeof(*ids));
    uint64_t  rank;
    uint32_t  hint = 0;
    int       rc = DI_OK;

    if (ids == NULL || !di_merges_init(&v->merges, v->size, b->n_rules)) {
        rc = di_err_set(b->err, DI_ENOMEM, 0, "no memory for the vocabulary");
        goto done;
    }
    for (rank = 0; rank < b->n_rules; rank++) {
        rc = vocab_read_rule(b, v, rank, hint, ids[rank]);
        if (rc != DI_OK)
            goto done;
        hint = (uint32_t) ids[rank][2] + 1;
    }

    rank = di_merges_build(&v->merges, (const int32_t (*)[3]) ids, b->n_rules,
                           v->byte_ids);
    if (rank < b->n_rules)
        rc = di_err_set(b->err, DI_EUNSUPPORTED, 0, "GGUF key \"tokenizer."
                        "ggml.merges\": rule %llu comes before the rules "
                        "that make its sides", (unsigned long long) rank);

done:
    free(ids);
    return rc;
}

static int
vocab_compare(const void *a, const void *b, void *arg)
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
vocab_index_specials(vocab_build_t *b, di_vocab_t *v)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < v->size; i++)
        n += v->kinds[i] >= DI_VOCAB_USER;
    v->specials = calloc((size_t) n + 1, sizeof(*v->specials));
    if (v->specials == NULL)
        return di_err_set(b->err, DI_ENOMEM, 0, "no memory for the "
                          "vocabulary");

    for (uint32_t i = 0; i < v->size; i++) {
        size_t      len;
        const char *s = di_vocab_at(v, (int32_t) i, &len);

        if (v->kinds[i] < DI_VOCAB_USER || len == 0)
            continue;
        v->specials[v->n_specials++] = (int32_t) i;
        v->special_first[(uint8_t) *s] = true;
    }
    qsort_r(v->specials, v->n_specials, sizeof(*v->specials), vocab_compare,
            v);
    return DI_OK;
}

/* Ids of the whole tokens, the shortest first: a counting sort. */
static uint32_t
vocab_sort_whole(const di_vocab_t *v, uint32_t *counts, size_t len_max,
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

static int
vocab_build_trie(vocab_build_t *b, di_vocab_t *v)
{
    int32_t  *sorted = calloc(v->size, sizeof(*sorted));
    uint32_t *counts, n;
    size_t    len_max = 0, len;
    int       rc = DI_OK;

    for (uint32_t i = 0; i < v->size; i++) {
        (void) di_vocab_at(v, (int32_t) i, &len);
        len_max = len > len_max ? len : len_max;
    }
    counts = calloc(len_max + 1, sizeof(*counts));
    if (sorted == NULL || counts == NULL
        || !di_trie_init(&v->trie, v->size))
    {
        rc = di_err_set(b->err, DI_ENOMEM, 0, "no memory for the vocabulary");
        goto done;
    }

    n = vocab_sort_whole(v, counts, len_max, sorted);
    for (uint32_t i = 0; i < n; i++) {
        di_merges_token_t *t = &v->merges.tokens[sorted[i]];
        const char        *s = di_vocab_at(v, sorted[i], &len);
        size_t             known = 0;

        if (t->order > 1)
            known = v->merges.tokens[t->left].len;
        if (!di_trie_add(&v->trie, sorted[i], (const uint8_t *) s, len,
                         t->left, known, &t->shorter))
        {
            rc = di_err_set(b->err, DI_ENOMEM, 0, "no memory for the "
                            "vocabulary, or over %u prefixes of tokens",
                            DI_TRIE_NODES_MAX);
            goto done;
        }
    }

done:
    free(sorted);
    free(counts);
    return rc;
}

static int
vocab_index_wholes(vocab_build_t *b, di_vocab_t *v)
{
    uint64_t size = 16;

    while (size < v->size + v->size / 4)
        size *= 2;
    v->wholes = calloc(size, sizeof(*v->wholes));
    if (v->wholes == NULL)
        return di_err_set(b->err, DI_ENOMEM, 0, "no memory for the "
                          "vocabulary");
    v->wholes_mask = size - 1;

    for (uint32_t i = 0; i < v->size; i++) {
        size_t         len;
        const char    *s = di_vocab_at(v, (int32_t) i, &len);
        di_vocab_key_t key;

        if (v->merges.tokens[i].order == 0 || len > DI_VOCAB_KEY_MAX)
            continue;
        key = di_vocab_key(s, len, len);
        *di_vocab_whole(v, key) = (di_vocab_whole_t) { key, (int32_t) i };
    }
    return DI_OK;
}

/* Llama 3 takes a pre-token that is a token as it is.  That makes a
 * difference only for tokens that merging doesn't make. */
static int
vocab_index_words(vocab_build_t *b, di_vocab_t *v)
{
    uint32_t n = 0;

    if (v->pretok.kind != DI_PRETOK_LLAMA3)
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
                vocab_enter_word(v, i);
        }
        if (n == 0)
            return DI_OK;
        if (pass == 0 && !vocab_index_alloc(&v->words, n))
            return di_err_set(b->err, DI_ENOMEM, 0, "no memory for the "
                              "vocabulary");
    }
    return DI_OK;
}

/* A name from the file, fit for an error text. */
typedef struct {
    char text[33];
} vocab_shown_t;

static vocab_shown_t
vocab_show(di_str_t s)
{
    vocab_shown_t shown = { "" };

    for (size_t i = 0; i < s.len && i < sizeof(shown.text) - 1; i++)
        shown.text[i] = s.data[i] >= 0x20 && s.data[i] < 0x7f ? s.data[i]
                                                              : '?';
    return shown;
}

static int
vocab_read_model(vocab_build_t *b, di_pretok_kind_t *kind)
{
    di_str_t s;

    if (di_gguf_str(b->gguf, "tokenizer.ggml.model", &s) != DI_OK)
        return di_err_set(b->err, DI_EFORMAT, 0, "GGUF key \"tokenizer.ggml."
                          "model\" is missing or no string");
    if (s.len != 4 || memcmp(s.data, "gpt2", 4) != 0)
        return di_err_set(b->err, DI_EUNSUPPORTED, 0, "tokenizer model "
                          "\"%s\" is not supported, only \"gpt2\"",
                          vocab_show(s).text);

    if (di_gguf_str(b->gguf, "tokenizer.ggml.pre", &s) != DI_OK)
        return di_err_set(b->err, DI_EFORMAT, 0, "GGUF key \"tokenizer.ggml."
                          "pre\" is missing or no string");
    if (!di_pretok_kind(s, kind))
        return di_err_set(b->err, DI_EUNSUPPORTED, 0, "pre-tokenizer "
                          "\"%s\" is not supported", vocab_show(s).text);
    return DI_OK;
}

static int
vocab_build(vocab_build_t *b, di_vocab_t *v)
{
    di_pretok_kind_t kind = DI_PRETOK_GPT2;
    uint64_t         n = 0;
    int              rc = vocab_read_model(b, &kind);

    if (rc == DI_OK)
        rc = vocab_read_strings(b, "tokenizer.ggml.tokens",
                                DI_MERGES_IDS_MAX - 1, &b->tokens, &n);
    if (rc == DI_OK && n == 0)
        rc = di_err_set(b->err, DI_EFORMAT, 0, "GGUF key \"tokenizer.ggml."
                        "tokens\" is empty");
    if (rc == DI_OK)
        rc = vocab_read_strings(b, "tokenizer.ggml.merges", VOCAB_ARRAY_MAX,
                                &b->rules, &b->n_rules);
    if (rc != DI_OK)
        return rc;

    v->size = (uint32_t) n;
    di_pretok_init(&v->pretok, kind);
    vocab_alphabet(b->bytes);
    if (!vocab_index_alloc(&b->spelled, v->size))
        return di_err_set(b->err, DI_ENOMEM, 0, "no memory for the "
                          "vocabulary");
    for (uint32_t i = 0; i < v->size; i++)
        vocab_enter_spelled(b, i);

    rc = vocab_read_kinds(b, v);
    if (rc == DI_OK)
        rc = vocab_read_roles(b, v);
    if (rc == DI_OK)
        rc = vocab_read_bytes(b, v);
    if (rc == DI_OK)
        rc = vocab_read_merges(b, v);
    if (rc == DI_OK)
        rc = vocab_index_specials(b, v);
    if (rc == DI_OK)
        rc = vocab_build_trie(b, v);
    if (rc == DI_OK)
        rc = vocab_index_wholes(b, v);
    if (rc == DI_OK)
        rc = vocab_index_words(b, v);
    return rc;
}

int
di_vocab_open_gguf(const di_gguf_t *gguf, di_vocab_t **vocab, di_err_t *err)
{
    vocab_build_t b = { .gguf = gguf, .err = err };
    di_vocab_t   *v = calloc(1, sizeof(*v));
    int           rc;

    if (v == NULL)
        return di_err_set(err, DI_ENOMEM, 0, "no memory for the vocabulary");

    rc = vocab_build(&b, v);
    free(b.tokens);
    free(b.rules);
    free(b.spelled.slots);
    if (rc != DI_OK) {
        di_vocab_close(v);
        return rc;
    }

    *vocab = v;
    return DI_OK;
}

void
di_vocab_close(di_vocab_t *v)
{
    if (v == NULL)
        return;
    free(v->text);
    free(v->starts);
    free(v->kinds);
    free(v->specials);
    di_merges_deinit(&v->merges);
    di_trie_deinit(&v->trie);
    free(v->wholes);
    free(v->words.slots);
    free(v);
}

uint32_t
di_vocab_size(const di_vocab_t *v)
{
    return v->size;
}

const char *
di_vocab_bytes(const di_vocab_t *v, int32_t id, size_t *len)
{
    if (id < 0 || (uint32_t) id >= v->size)
        return NULL;
    return di_vocab_at(v, id, len);
}

bool
di_vocab_is_special(const di_vocab_t *v, int32_t id)
{
    return id >= 0 && (uint32_t) id < v->size
           && v->kinds[id] == DI_VOCAB_CONTROL;
}

bool
di_vocab_is_end(const di_vocab_t *v, int32_t id)
{
    for (size_t i = 0; i < v->n_ends; i++) {
        if (v->ends[i] == id)
            return true;
    }
    return false;
}

size_t
di_vocab_end_ids(const di_vocab_t *v, const int32_t **ids)
{
    *ids = v->ends;
    return v->n_ends;
}

/* First special token, from index lo to hi, whose byte at `at` is not below
 * `byte`.  All of them share the bytes before. */
static size_t
vocab_special_bound(const di_vocab_t *v, size_t lo, size_t hi, size_t at,
                    int byte)
{
    while (lo < hi) {
        size_t      mid = lo + (hi - lo) / 2, n;
        const char *s = di_vocab_at(v, v->specials[mid], &n);

        if (n <= at || (uint8_t) s[at] < byte)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

int32_t
di_vocab_match_special(const di_vocab_t *v, const char *s, size_t len)
{
    size_t  lo = 0, hi = v->n_specials, n;
    int32_t best = -1;

    /* Each byte narrows the sorted range; a token that ends here is first
     * in it, being shorter than all that continue. */
    for (size_t at = 0; at < len; at++) {
        uint8_t byte = (uint8_t) s[at];

        lo = vocab_special_bound(v, lo, hi, at, byte);
        hi = vocab_special_bound(v, lo, hi, at, byte + 1);
        if (lo == hi)
            break;
        (void) di_vocab_at(v, v->specials[lo], &n);
        if (n == at + 1)
            best = v->specials[lo];
    }
    return best;
}

int32_t
di_vocab_special(const di_vocab_t *v, const char *text, size_t len)
{
    int32_t id = di_vocab_match_special(v, text, len);
    size_t  n = 0;

    if (id >= 0)
        (void) di_vocab_at(v, id, &n);
    return n == len ? id : -1;
}

int32_t
di_vocab_bos(const di_vocab_t *v)
{
    return v->bos;
}

bool
di_vocab_add_bos(const di_vocab_t *v)
{
    return v->add_bos;
}
