/*
 * trie.c - building the trie of tokens.
 *
 * Tokens are added shortest first, so that a prefix that is a token has its
 * node, numbered by its id, before anything longer passes through it; a node
 * never has to be renumbered.  The walk to a new token's node also passes
 * the longest token that starts it.
 */

#include <stdlib.h>
#include <string.h>

#include "table.h"
#include "trie.h"

#define TRIE_SHIFT_MAX  20              /* at least 4,096 slots              */
#define TRIE_SHIFT_MIN  6               /* four slots for each node          */

static bool
trie_alloc(di_trie_t *t, unsigned shift)
{
    size_t          n = (size_t) 1 << (32 - shift);
    di_trie_slot_t *slots = di_table_alloc(n, sizeof(*slots), 0xff);

    if (slots == NULL)
        return false;
    t->slots = slots;
    t->mask = (uint32_t) (n - 1);
    t->shift = shift;
    return true;
}

bool
di_trie_init(di_trie_t *t, uint32_t n_tokens)
{
    unsigned shift = TRIE_SHIFT_MAX;

    /* Most vocabularies have about two nodes for each token. */
    while (shift > TRIE_SHIFT_MIN && 1u << (32 - shift) < n_tokens * 4)
        shift--;
    t->n_tokens = n_tokens;
    t->n_nodes = n_tokens;
    t->n_used = 0;
    for (int i = 0; i < 256; i++)
        t->first[i] = DI_TRIE_NONE;
    t->pairs = malloc(256 * 256 * sizeof(*t->pairs));
    if (t->pairs == NULL)
        return false;
    memset(t->pairs, 0xff, 256 * 256 * sizeof(*t->pairs));
    return trie_alloc(t, shift);
}

void
di_trie_deinit(di_trie_t *t)
{
    free(t->slots);
    free(t->pairs);
}

static void
trie_put(di_trie_t *t, uint32_t key, uint32_t node)
{
    uint32_t i = di_trie_home(t, key >> 8, key & 0xff);

    while (t->slots[i].key != DI_TRIE_NONE)
        i = (i + 1) & t->mask;
    t->slots[i] = (di_trie_slot_t) { key, node };
}

/* Keep the table at most five eighths full. */
static bool
trie_grow(di_trie_t *t)
{
    di_trie_slot_t *old = t->slots;
    uint32_t        n = t->mask + 1;

    if (t->n_used < n / 8 * 5)
        return true;
    if (!trie_alloc(t, t->shift - 1))
        return false;
    for (uint32_t i = 0; i < n; i++) {
        if (old[i].key != DI_TRIE_NONE)
            trie_put(t, old[i].key, old[i].node);
    }
    free(old);
    return true;
}

/* The node of one byte more, `number` if there is none yet. */
static uint32_t
trie_grow_node(di_trie_t *t, uint32_t node, uint8_t byte, uint32_t number)
{
    uint32_t key = node << 8 | byte, i;

    if (!trie_grow(t))
        return DI_TRIE_NONE;
    i = di_trie_home(t, node, byte);
    while (t->slots[i].key != key && t->slots[i].key != DI_TRIE_NONE)
        i = (i + 1) & t->mask;
    if (t->slots[i].key == DI_TRIE_NONE) {
        t->slots[i] = (di_trie_slot_t) { key, number };
        t->n_used++;
    }
    return t->slots[i].node;
}

/* The node of a token's first bytes, two at least, or of all if it is one.
 * How many these are goes to `known`. */
static void
trie_start(di_trie_t *t, di_trie_word_t *w)
{
    uint32_t *two;

    *w->shorter = -1;
    w->node = (uint32_t) w->start;
    if (w->len == 1) {
        t->first[*w->s] = (uint32_t) w->id;
        w->known = 1;
    } else if (w->known < 2) {
        if (t->first[*w->s] < t->n_tokens)
            *w->shorter = (int32_t) t->first[*w->s];
        two = &t->pairs[w->s[0] << 8 | w->s[1]];
        if (*two == DI_TRIE_NONE)
            *two = w->len == 2 ? (uint32_t) w->id : t->n_nodes++;
        w->node = *two;
        w->known = 2;
    }
}

static inline void
trie_prefetch(const di_trie_t *t, const di_trie_word_t *w, uint32_t at)
{
    if (at >= w->known && at < w->len)
        __builtin_prefetch(&t->slots[di_trie_home(t, w->node, w->s[at])], 1);
}

/* Walk on by the byte at `at`. */
static bool
trie_walk(di_trie_t *t, di_trie_word_t *w, uint32_t at)
{
    uint32_t number = at + 1 == w->len ? (uint32_t) w->id : t->n_nodes;

    if (w->node < t->n_tokens)
        *w->shorter = (int32_t) w->node;
    w->node = trie_grow_node(t, w->node, w->s[at], number);
    if (w->node == t->n_nodes)
        t->n_nodes++;
    return w->node != DI_TRIE_NONE && t->n_nodes <= DI_TRIE_NODES_MAX;
}

/* All walks go on together, as each step waits for memory. */
bool
di_trie_add(di_trie_t *t, di_trie_word_t *words, size_t n)
{
    uint32_t at = UINT32_MAX;

    for (size_t i = 0; i < n; i++) {
        trie_start(t, &words[i]);
        at = words[i].known < at ? words[i].known : at;
        trie_prefetch(t, &words[i], words[i].known);
    }
    for (; n > 0 && at < words[0].len; at++) {
        for (size_t i = 0; i < n; i++) {
            if (at >= words[i].known && !trie_walk(t, &words[i], at))
                return false;
            trie_prefetch(t, &words[i], at + 1);
        }
    }
    return true;
}
