/*
 * blob.h - a compiled grammar as bytes.
 *
 * Inside tokenizer/grammar only.  A header, then four arrays, each at a
 * multiple of 8 bytes and right behind the one before: rules, states, edges,
 * calls.  Everything is an index, nothing a pointer.  A state belongs to one
 * rule, its edges and calls lie between its own offsets and the next
 * state's; there is one state more than n_states, that closes the last.
 * di_gram_open() checks all of this, so the matcher checks nothing.
 */

#ifndef DI_GRAM_BLOB_H
#define DI_GRAM_BLOB_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define DI_GRAM_MAGIC    0x4d415247u    /* "GRAM"                            */
#define DI_GRAM_VERSION  1

typedef struct {
    uint32_t magic;
    uint32_t version;
    uint32_t n_rules;
    uint32_t n_states;
    uint32_t n_edges;
    uint32_t n_calls;
    uint32_t root;          /* rule                                          */
    uint32_t reserved;      /* 0                                             */
} di_gram_blob_t;

typedef struct {
    uint64_t hash;          /* of the rule's states and edges, relative to
                               its first state: equal rules of different
                               grammars have equal masks                     */
    uint32_t first;         /* state where it starts                         */
    uint32_t n_states;      /* first, first + 1, ...                         */
} di_gram_brule_t;

typedef struct {
    uint32_t edges;         /* first edge                                    */
    uint32_t calls;         /* first call                                    */
    uint32_t rule;
    uint32_t final;         /* 1: the rule may end here                      */
} di_gram_bstate_t;

typedef struct {
    uint32_t to;            /* a state of the same rule                      */
    uint8_t  lo, hi;        /* bytes; edges are sorted and disjoint          */
    uint16_t reserved;      /* 0                                             */
} di_gram_bedge_t;

typedef struct {
    uint32_t rule;
    uint32_t to;            /* where it goes on after the rule               */
} di_gram_bcall_t;

_Static_assert(sizeof(di_gram_blob_t) == 32, "layout");
_Static_assert(sizeof(di_gram_brule_t) == 16, "layout");
_Static_assert(sizeof(di_gram_bstate_t) == 16, "layout");
_Static_assert(sizeof(di_gram_bedge_t) == 8, "layout");
_Static_assert(sizeof(di_gram_bcall_t) == 8, "layout");

/* Of n words, going on from h; for hash tables and for a rule's hash. */
static inline uint64_t
di_gram_hash(uint64_t h, const void *words, size_t n)
{
    uint32_t w;

    for (size_t i = 0; i < n; i++) {
        memcpy(&w, (const char *) words + 4 * i, 4);
        h = (h ^ w) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
    }
    return h;
}

#define DI_GRAM_HASH_SEED  0xcbf29ce484222325u

#endif
