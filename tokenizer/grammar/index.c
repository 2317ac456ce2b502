/*
 * index.c - a vocabulary's trie, and the memory of what masks were made of.
 *
 * A plain token is whole characters that may stand in a JSON string as they
 * are.  Most tokens are, so the masks of plain tokens by their number of
 * characters are made beforehand: a state that reads any plain character
 * and goes on alike takes them at once (part.c).
 *
 * An added token lies in the trie under four bytes of its own (see
 * di_grammar.h).  A user-defined one is never text here, though its spelling
 * is: whoever reads the answer takes it for the mark that it was made as, and
 * ordinary tokens spell the same.
 */

#include <stdlib.h>
#include <string.h>

#include "part.h"

#define CACHE_DEFAULT  ((size_t) 64 << 20)
#define HEAP_BYTES     ((size_t) 256 << 10)

struct di_gram_heap_s {
    di_gram_heap_t *next;
    size_t          used, size;         /* bytes                             */
    _Alignas(16) uint8_t data[];
};

typedef struct {
    const uint8_t *s;
    uint32_t       len;
    int32_t        id;
    uint8_t        chars;       /* of a plain token; else 0                  */
} token_t;

/* ---------------------------------------------------------------- trie -- */

static int
by_bytes(const void *a, const void *b)
{
    const token_t *x = a, *y = b;
    uint32_t       len = x->len < y->len ? x->len : y->len;
    int            order = memcmp(x->s, y->s, len);

    if (order != 0)
        return order;
    if (x->len != y->len)
        return x->len < y->len ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

/* Bytes of the character at s that is well-formed UTF-8; 0: it is not. */
static uint32_t
utf8_len(const uint8_t *s, uint32_t left)
{
    uint32_t n = s[0] < 0x80 ? 1 : s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2
                 : s[0] < 0xf0 ? 3 : s[0] < 0xf5 ? 4 : 0;

    if (n == 0 || n > left)
        return 0;
    for (uint32_t i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    }
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f)
        || (s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f))
        return 0;
    return n;
}

/* The bytes are whole characters. */
static bool
whole(const token_t *t)
{
    uint32_t len;

    for (uint32_t i = 0; i < t->len; i += len) {
        len = utf8_len(t->s + i, t->len - i);
        if (len == 0)
            return false;
    }
    return true;
}

/* Characters of a plain token; 0: it is not plain. */
static uint32_t
plain_chars(const token_t *t)
{
    uint32_t n = 0, len;

    for (uint32_t i = 0; i < t->len; i += len, n++) {
        len = utf8_len(t->s + i, t->len - i);
        if (len == 0 || t->s[i] < 0x20 || t->s[i] == '"' || t->s[i] == '\\')
            return 0;
    }
    return n;
}

static uint32_t
shared(const token_t *a, const token_t *b)
{
    uint32_t n = 0;

    while (n < a->len && n < b->len && a->s[n] == b->s[n])
        n++;
    return n;
}

static void
make_kinds(uint8_t *kinds)
{
    uint8_t next = 3;

    for (unsigned b = 0; b < 256; b++) {
        if (b >= 'a' && b <= 'z')
            kinds[b] = 0;
        else if (b >= 'A' && b <= 'Z')
            kinds[b] = 1;
        else if (b >= '0' && b <= '9')
            kinds[b] = 2;
        else if ((b >= 0x20 && b < 0x7f) || b == '\n' || b == '\t')
            kinds[b] = next++;
        else if (b < 0x80)
            kinds[b] = 39;
        else
            kinds[b] = b < 0xc0 ? DI_GRAM_CONTINUATION
                       : b == DI_GRAM_SPECIAL_BYTE ? DI_GRAM_SPECIAL_KIND
                       : b < 0xc2 || b > 0xf4 ? 41
                       : b < 0xe0 ? 42 : b < 0xf0 ? 43 : 44;
    }
}

static void
make_spans(di_gram_index_t *x)
{
    for (unsigned b = 0; b < 256; b++)
        x->spans[0][b] = UINT64_C(1) << x->kinds[b];
    for (unsigned i = 1; i < 9; i++) {
        for (unsigned b = 0; b + (1u << i) <= 256; b++)
            x->spans[i][b] = x->spans[i - 1][b]
                             | x->spans[i - 1][b + (1u << (i - 1))];
    }
}

/* Tokens in order become nodes behind those there are; path[d] is the open
 * node of depth d.  The root's number. */
static uint32_t
make_nodes(di_gram_index_t *x, const token_t *tokens, uint32_t n)
{
    uint32_t path[DI_GRAM_TOKEN_MAX + 1], depth = 0, root = x->n_nodes;

    path[0] = x->n_nodes++;
    x->trie[root] = (di_gram_tnode_t) { .rank = x->n_ids };
    for (uint32_t i = 0; i < n; i++) {
        const token_t *t = &tokens[i];
        uint32_t       keep = i == 0 ? 0 : shared(&tokens[i - 1], t);

        for (; depth > keep; depth--)
            x->trie[path[depth]].skip = x->n_nodes;
        while (depth < t->len) {
            di_gram_tnode_t *node = &x->trie[x->n_nodes];

            *node = (di_gram_tnode_t) {
                .byte = t->s[depth], .rank = x->n_ids,
            };
            x->trie[path[depth]].heads |= UINT64_C(1)
                                          << x->kinds[node->byte];
            path[++depth] = x->n_nodes++;
            node->depth = (uint8_t) depth;
        }
        x->ids[x->n_ids++] = t->id;
    }
    for (; depth > 0; depth--)
        x->trie[path[depth]].skip = x->n_nodes;
    x->trie[root].skip = x->n_nodes;
    x->trie[x->n_nodes].rank = x->n_ids;
    return root;
}

/* What is below, from the last node to the first; chars: of the tokens as
 * they are in ids. */
static void
sum_up(di_gram_index_t *x, const uint8_t *chars)
{
    for (uint32_t i = x->n_nodes; i-- > 0; ) {
        di_gram_tnode_t *node = &x->trie[i];

        node->plain = true;
        for (uint32_t r = node->rank; r < x->trie[i + 1].rank; r++) {
            node->plain = node->plain && chars[r] > 0;
            node->chars = chars[r];
        }
        node->kinds = node->heads;
        for (uint32_t r = node->rank; r < x->trie[i + 1].rank; r++)
            node->kinds |= x->token_kinds[x->ids[r]]
                           & UINT64_C(1) << DI_GRAM_PARTIAL;
        node->deepest = node->depth;
        for (uint32_t k = i + 1; k < node->skip; k = x->trie[k].skip) {
            node->plain = node->plain && x->trie[k].plain;
            node->kinds |= x->trie[k].kinds;
            if (x->trie[k].chars > node->chars)
                node->chars = x->trie[k].chars;
            if (x->trie[k].deepest > node->deepest)
                node->deepest = x->trie[k].deepest;
        }
    }
}

static void
add_plain(di_gram_index_t *x, const token_t *t)
{
    uint32_t id = (uint32_t) t->id;

    for (uint32_t k = t->chars < DI_GRAM_PLAIN_MAX ? t->chars
                      : DI_GRAM_PLAIN_MAX; k <= DI_GRAM_PLAIN_MAX; k++) {
        if (k == DI_GRAM_PLAIN_MAX || t->chars <= k)
            x->plain[(size_t) k * x->words + id / 64]
                |= UINT64_C(1) << id % 64;
    }
}

/* What a token can be here, and its bytes, if it is text. */
static unsigned
role_of(const di_vocab_t *vocab, int32_t id, const char **s, size_t *len)
{
    unsigned role = 0;

    *s = di_vocab_bytes(vocab, id, len);
    if (di_vocab_is_end(vocab, id))
        return DI_GRAM_AS_END;
    if (di_vocab_is_added(vocab, id) && id < (int32_t) DI_GRAM_ID_MAX)
        role = DI_GRAM_AS_SPECIAL;
    if (*s != NULL && *len > 0 && *len <= DI_GRAM_TOKEN_MAX
        && !di_vocab_is_added(vocab, id)
        && memchr(*s, DI_GRAM_SPECIAL_BYTE, *len) == NULL)
        role |= DI_GRAM_AS_TEXT;
    return role;
}

/* Room for all bytes of tokens; false: no memory, or too many. */
static bool
make_room(di_gram_index_t *x, const di_vocab_t *vocab, size_t *special)
{
    size_t      len, bytes = 0;
    const char *s;

    *special = 0;
    for (uint32_t id = 0; id < x->size; id++) {
        x->roles[id] = (uint8_t) role_of(vocab, (int32_t) id, &s, &len);
        *special += (x->roles[id] & DI_GRAM_AS_SPECIAL) != 0;
        bytes += (x->roles[id] & DI_GRAM_AS_TEXT) != 0 ? len : 0;
    }
    if (bytes > UINT32_MAX / 8)
        return false;
    x->bytes = malloc(bytes + 1);
    x->trie = malloc((2 * (bytes + 4 * *special) + 3) * sizeof(*x->trie));
    return x->bytes != NULL && x->trie != NULL;
}

/* The tokens as they lie in the trie, sorted; marks: [specials] room. */
static uint32_t
take_tokens(di_gram_index_t *x, const di_vocab_t *vocab, token_t *tokens,
            uint8_t (*marks)[4])
{
    uint32_t    n = 0, at = 0, mark = 0;
    const char *s;
    size_t      len;

    for (uint32_t id = 0; id < x->size; id++) {
        token_t *t = &tokens[n];

        x->starts[id] = at;
        if ((x->roles[id] & DI_GRAM_AS_TEXT) != 0) {
            s = di_vocab_bytes(vocab, (int32_t) id, &len);
            *t = (token_t) {
                memcpy(x->bytes + at, s, len), (uint32_t) len, (int32_t) id,
                0,
            };
            t->chars = (uint8_t) plain_chars(t);
            for (size_t i = 0; i < len; i++)
                x->token_kinds[id] |= UINT64_C(1) << x->kinds[t->s[i]];
            if (!whole(t))
                x->token_kinds[id] |= UINT64_C(1) << DI_GRAM_PARTIAL;
            if (t->chars > 0)
                add_plain(x, t);
            x->lengths[id] = (uint8_t) len;
            at += (uint32_t) len;
            n++;
        }
        if ((x->roles[id] & DI_GRAM_AS_SPECIAL) != 0) {
            di_gram_special_bytes(id, marks[mark]);
            tokens[n++] = (token_t) { marks[mark++], 4, (int32_t) id, 0 };
        }
    }
    x->starts[x->size] = at;
    qsort(tokens, n, sizeof(*tokens), by_bytes);
    return n;
}

static void
build_tries(di_gram_index_t *x, token_t *tokens, uint32_t n, uint8_t *chars)
{
    uint32_t n_rest = 0;
    void    *p;

    for (uint32_t i = 0; i < n; i++)
        chars[i] = tokens[i].chars;
    (void) make_nodes(x, tokens, n);
    for (uint32_t i = 0; i < n; i++) {
        if (tokens[i].chars == 0 || tokens[i].chars >= DI_GRAM_PLAIN_MAX) {
            chars[n + n_rest] = tokens[i].chars;
            tokens[n_rest++] = tokens[i];
        }
    }
    x->rest = make_nodes(x, tokens, n_rest);
    p = realloc(x->trie, (x->n_nodes + 1) * sizeof(*x->trie));
    x->trie = p != NULL ? p : x->trie;
    sum_up(x, chars);
}

static int
build_index(di_gram_index_t *x, const di_vocab_t *vocab)
{
    size_t    size = (size_t) x->size + 1, n_special;
    token_t  *tokens = NULL;
    uint8_t  *chars = NULL, (*marks)[4] = NULL;
    uint32_t  n;
    int       rc = DI_ENOMEM;

    x->roles = calloc(size, sizeof(*x->roles));
    x->starts = calloc(size, sizeof(*x->starts));
    x->found_max = 2 * x->size + 1;
    x->found = malloc(x->found_max * sizeof(*x->found));
    x->spilt = malloc(x->words * sizeof(*x->spilt) + 1);
    x->token_kinds = calloc((size_t) x->words * 64 + 1,
                            sizeof(*x->token_kinds));
    x->lengths = calloc((size_t) x->words * 64 + 1, sizeof(*x->lengths));
    x->plain = calloc((size_t) (DI_GRAM_PLAIN_MAX + 1) * x->words,
                      sizeof(*x->plain));
    if (x->roles == NULL || x->starts == NULL || x->found == NULL
        || x->spilt == NULL || x->lengths == NULL || x->token_kinds == NULL
        || x->plain == NULL || !make_room(x, vocab, &n_special))
        return DI_ENOMEM;
    tokens = calloc(size + n_special, sizeof(*tokens));
    chars = calloc(2 * (size + n_special), 1);
    marks = calloc(n_special + 1, sizeof(*marks));
    x->ids = malloc(2 * (size + n_special) * sizeof(*x->ids));
    if (tokens == NULL || chars == NULL || marks == NULL || x->ids == NULL)
        goto done;
    n = take_tokens(x, vocab, tokens, marks);
    build_tries(x, tokens, n, chars);
    rc = DI_OK;
done:
    free(tokens);
    free(chars);
    free(marks);
    return rc;
}

/* --------------------------------------------------------------- cache -- */

void *
di_gram_index_alloc(di_gram_index_t *x, size_t n, size_t size)
{
    size_t          bytes = (n * size + 15) & ~(size_t) 15;
    di_gram_heap_t *h = x->heap;
    void           *p;

    if (h == NULL || h->size - h->used < bytes) {
        size_t room = bytes > HEAP_BYTES ? bytes : HEAP_BYTES;

        h = room == HEAP_BYTES ? x->spare : NULL;
        if (h != NULL)
            x->spare = h->next;
        else
            h = malloc(sizeof(*h) + room);
        if (h == NULL) {
            x->no_memory = true;
            return NULL;
        }
        *h = (di_gram_heap_t) { .next = x->heap, .size = room };
        x->heap = h;
        x->cache_bytes += sizeof(*h) + room;
    }
    p = h->data + h->used;
    h->used += bytes;
    return p;
}

static void
free_heap(di_gram_heap_t *h)
{
    di_gram_heap_t *next;

    for (; h != NULL; h = next) {
        next = h->next;
        free(h);
    }
}

/* Blocks of the usual size are kept: the kernel's pages cost more than what
 * is computed into them. */
void
di_gram_index_forget(di_gram_index_t *x)
{
    static _Atomic uint64_t epochs;     /* of all indexes: none is like
                                           another's                         */
    di_gram_heap_t *h, *next;

    for (h = x->heap; h != NULL; h = next) {
        next = h->next;
        if (h->size != HEAP_BYTES) {
            free(h);
            continue;
        }
        h->next = x->spare;
        x->spare = h;
    }
    x->heap = NULL;
    x->cache_bytes = 0;
    x->n_parts = x->warm_parts;
    x->n_known = x->warm_known;
    x->n_sets = x->warm_sets;
    x->next_loop = 0;
    memset(x->loops, 0, sizeof(x->loops));
    x->no_memory = false;
    x->epoch = 1 + atomic_fetch_add_explicit(&epochs, 1,
                                             memory_order_relaxed);
    memset(x->part_table, 0,
           ((size_t) x->part_mask + 1) * sizeof(*x->part_table));
    memset(x->set_table, 0xff, DI_GRAM_SET_BUCKETS * sizeof(*x->set_table));
    di_gram_enter_warm(x);
}

/* What has been computed so far is part of the index from now on. */
static void
keep_warm(di_gram_index_t *x)
{
    x->warm = x->heap;
    x->heap = NULL;
    x->warm_bytes = x->cache_bytes;
    x->cache_bytes = 0;
    x->warm_parts = x->n_parts;
    x->warm_sets = x->n_sets;
    x->warm_known = x->n_known;
    x->stats = (di_gram_index_stats_t) { 0 };
}

int
di_gram_index_open(const di_vocab_t *vocab, size_t cache_bytes,
                   di_gram_index_t **index)
{
    static const uint32_t root = 0;
    di_gram_index_t      *x = calloc(1, sizeof(*x));
    const int32_t        *ends;

    if (x == NULL)
        return DI_ENOMEM;
    x->size = di_vocab_size(vocab);
    x->words = (x->size + 63) / 64;
    make_kinds(x->kinds);
    make_spans(x);
    x->letters = di_gram_letters(0);
    x->n_ends = di_vocab_end_ids(vocab, &ends);
    if (x->n_ends > sizeof(x->ends) / sizeof(x->ends[0]))
        x->n_ends = sizeof(x->ends) / sizeof(x->ends[0]);
    memcpy(x->ends, ends, x->n_ends * sizeof(*ends));
    x->cache_max = cache_bytes != 0 ? cache_bytes : CACHE_DEFAULT;
    x->part_mask = 1023;
    x->part_table = malloc(((size_t) x->part_mask + 1)
                           * sizeof(*x->part_table));
    x->set_table = malloc(DI_GRAM_SET_BUCKETS * sizeof(*x->set_table));
    x->sets_cap = 64;
    x->sets = malloc(x->sets_cap * sizeof(*x->sets));
    x->rows = di_gram_rows_new();
    if (x->part_table == NULL || x->set_table == NULL || x->sets == NULL
        || x->rows == NULL || build_index(x, vocab) != DI_OK) {
        di_gram_index_close(x);
        return DI_ENOMEM;
    }
    x->sets[0] = (di_gram_nodes_t) { &root, 1, DI_GRAM_DEAD };
    x->warm_sets = 1;                   /* the root                          */
    di_gram_index_forget(x);
    if (!di_gram_warm(x)) {
        di_gram_index_close(x);
        return DI_ENOMEM;
    }
    keep_warm(x);
    *index = x;
    return DI_OK;
}

void
di_gram_index_close(di_gram_index_t *x)
{
    if (x == NULL)
        return;
    free_heap(x->heap);
    free_heap(x->spare);
    free_heap(x->warm);
    free(x->part_table);
    free(x->set_table);
    free(x->parts);
    free(x->sets);
    free(x->known);
    free(x->left);
    free(x->rows);
    free(x->trie);
    free(x->ids);
    free(x->found);
    free(x->spilt);
    free(x->token_kinds);
    free(x->lengths);
    free(x->roles);
    free(x->starts);
    free(x->bytes);
    free(x->plain);
    free(x);
}

size_t
di_gram_mask_words(const di_gram_index_t *index)
{
    return index->words;
}

void
di_gram_index_stats(const di_gram_index_t *x, di_gram_index_stats_t *stats)
{
    const di_gram_heap_t *h;

    *stats = x->stats;
    stats->index_bytes = sizeof(*x) + x->n_nodes * sizeof(*x->trie)
        + (size_t) (DI_GRAM_PLAIN_MAX + 1) * x->words * sizeof(*x->plain)
        + (x->n_ids + 2 * (size_t) x->size) * sizeof(int32_t)
        + x->size * (sizeof(*x->token_kinds) + sizeof(*x->lengths)
                     + sizeof(*x->starts) + sizeof(*x->roles))
        + x->starts[x->size];
    stats->index_bytes += x->warm_bytes;
    stats->cache_bytes = x->cache_bytes;
    for (h = x->spare; h != NULL; h = h->next)
        stats->cache_bytes += sizeof(*h) + h->size;
    stats->cache_bytes += x->parts_cap * sizeof(*x->parts)
        + x->sets_cap * sizeof(*x->sets) + x->known_cap * sizeof(*x->known)
        + ((size_t) x->part_mask + 1 + DI_GRAM_SET_BUCKETS)
          * sizeof(uint32_t);
}
