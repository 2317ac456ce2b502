/*
 * trie.h - the longest token at a place in a text.
 *
 * Inside tokenizer/vocab only; immutable once built.  A node is a prefix of
 * tokens.  The node of a token has the token's id as its number, inner nodes
 * have numbers behind all ids, and a table of (node, byte) leads from node to
 * node: a step down is one look-up, and says by itself whether a token ends
 * here.
 */

#ifndef DI_TRIE_H
#define DI_TRIE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DI_TRIE_NODES_MAX  ((1u << 24) - 1)     /* a node and a byte are 32
                                                   bits                      */
#define DI_TRIE_NONE       UINT32_MAX

typedef struct {
    uint32_t key;           /* node << 8 | byte; DI_TRIE_NONE: free          */
    uint32_t node;
} di_trie_slot_t;

typedef struct {
    di_trie_slot_t *slots;  /* [mask + 1]                                    */
    uint32_t  mask;         /* number of slots - 1, a power of two - 1       */
    unsigned  shift;        /* of a 32-bit hash, to an index                 */
    uint32_t  n_tokens;
    uint32_t  n_nodes;      /* the next inner node's number                  */
    uint32_t  n_used;       /* slots                                         */
    uint32_t  first[256];   /* nodes of single bytes; DI_TRIE_NONE: no token
                               starts so                                     */
    uint32_t *pairs;        /* [256 * 256] the same for two bytes, spared a
                               search as all searches pass here              */
} di_trie_t;

bool di_trie_init(di_trie_t *t, uint32_t n_tokens);
void di_trie_deinit(di_trie_t *t);

/* A token to be added, of 1 byte or more, of which the first `known` bytes are
 * the token `start`; known 0: no token of 2 bytes or more is known to start
 * it. */
typedef struct {
    const uint8_t *s;       /* [len]                                         */
    uint32_t len;
    int32_t  id;
    int32_t  start;
    uint32_t known;         /* bytes                                         */
    int32_t *shorter;       /* out: the longest token that starts it, -1 for
                               none                                          */
    uint32_t node;          /* where the walk to it has come                 */
} di_trie_word_t;

/* Add n tokens of one length, at most DI_TRIE_ABREAST.  Tokens come in the
 * order of their length, and no two are equal.  false: no memory, or too many
 * nodes. */
#define DI_TRIE_ABREAST  16

bool di_trie_add(di_trie_t *t, di_trie_word_t *words, size_t n);

/* Where a search starts.  The slots of a node lie within 256 of each other:
 * few cache lines even for a node that is tried with many bytes. */
static inline uint32_t
di_trie_home(const di_trie_t *t, uint32_t node, uint8_t byte)
{
    return ((node * 0x9e3779b1u >> t->shift) + byte) & t->mask;
}

static inline uint32_t
di_trie_step(const di_trie_t *t, uint32_t node, uint8_t byte)
{
    uint32_t key = node << 8 | byte;
    uint32_t i = di_trie_home(t, node, byte);

    while (t->slots[i].key != key) {
        if (t->slots[i].key == DI_TRIE_NONE)
            return DI_TRIE_NONE;
        i = (i + 1) & t->mask;
    }
    return t->slots[i].node;
}

/* The longest token at s, len > 0; -1: none. */
static inline int32_t
di_trie_longest(const di_trie_t *t, const uint8_t *s, size_t len)
{
    uint32_t node = t->first[*s];
    int32_t  best = node < t->n_tokens ? (int32_t) node : -1;

    if (len == 1)
        return best;
    node = t->pairs[s[0] << 8 | s[1]];
    for (size_t i = 2; node != DI_TRIE_NONE; i++) {
        if (node < t->n_tokens)
            best = (int32_t) node;
        if (i == len)
            break;
        node = di_trie_step(t, node, s[i]);
    }
    return best;
}

#endif
