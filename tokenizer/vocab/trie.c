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

/* Keep the table at most half full. */
static bool
trie_grow(di_trie_t *t)
{
    di_trie_slot_t *old = t->slots;
    uint32_t        n = t->mask + 1;

    if (t->n_used < n / 2)
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

/* The node of one byte more, new if there is none yet. */
static uint32_t
trie_grow_node(di_trie_t *t, uint32_t node, uint8_t byte, uint32_t number)
{
    uint32_t next = di_trie_step(t, node, byte);

    if (next != DI_TRIE_NONE)
        return next;
    if (!trie_grow(t))
        return DI_TRIE_NONE;
    trie_put(t, node << 8 | byte, number);
    t->n_used++;
    return number;
}

bool
di_trie_add(di_trie_t *t, int32_t id, const uint8_t *s, size_t len,
            int32_t start, size_t known, int32_t *shorter)
{
    uint32_t *two, node;

    *shorter = -1;
    if (len == 1) {
        t->first[*s] = (uint32_t) id;
        return true;
    }

    if (known >= 2) {
        node = (uint32_t) start;
    } else {
        if (t->first[*s] < t->n_tokens)
            *shorter = (int32_t) t->first[*s];
        two = &t->pairs[s[0] << 8 | s[1]];
        if (*two == DI_TRIE_NONE)
            *two = len == 2 ? (uint32_t) id : t->n_nodes++;
        node = *two;
        known = 2;
    }

    for (size_t i = known; i < len; i++) {
        uint32_t number = i + 1 == len ? (uint32_t) id : t->n_nodes;

        if (node < t->n_tokens)
            *shorter = (int32_t) node;
        node = trie_grow_node(t, node, s[i], number);
        if (node == t->n_nodes)
            t->n_nodes++;
        if (node == DI_TRIE_NONE || t->n_nodes > DI_TRIE_NODES_MAX)
            return false;
    }
    return true;
}
