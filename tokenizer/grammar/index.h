/*
 * index.h - a vocabulary as a trie, for tokenizer/grammar only.
 *
 * Nodes lie in the order of a walk that goes down first, so that a walk is a
 * run over an array, and leaving out a subtree is one jump.
 */

#ifndef DI_GRAM_INDEX_H
#define DI_GRAM_INDEX_H

#include "match.h"

#define DI_GRAM_TOKEN_MAX  255u     /* bytes                                 */
#define DI_GRAM_PLAIN_MAX  32u      /* characters that are told apart        */

/* Bytes in 64 kinds, so that a set of them is a word: letters of one case
 * and digits are one kind each, other ASCII characters are themselves. */
#define DI_GRAM_CONTINUATION  40u       /* kind of UTF-8's inner bytes       */
#define DI_GRAM_SPECIAL_KIND  45u       /* kind of the byte before an id     */
#define DI_GRAM_PARTIAL       46u       /* no byte's: of a token that doesn't
                                           end where a character does, or
                                           doesn't begin so                  */

/* Kinds of the bytes of characters beyond ASCII. */
#define DI_GRAM_CHARACTERS  (UINT64_C(1) << DI_GRAM_CONTINUATION \
                             | UINT64_C(7) << 42)

/* What a token may be read as. */
#define DI_GRAM_AS_TEXT     1u          /* its bytes                         */
#define DI_GRAM_AS_SPECIAL  2u          /* itself                            */
#define DI_GRAM_AS_END      4u          /* the end of the text               */

typedef struct {
    uint32_t skip;          /* first node that is not below this one         */
    uint32_t rank;          /* of the first token here or below, in ids      */
    uint64_t heads;         /* kinds of the children's bytes                 */
    uint64_t kinds;         /* of all bytes below; DI_GRAM_PARTIAL of tokens
                               here or below                                 */
    uint8_t  byte;
    uint8_t  depth;         /* bytes from the root                           */
    bool     plain;         /* all tokens here and below are plain text      */
    uint8_t  chars;         /* the most characters that one of them has      */
    uint8_t  deepest;       /* the most bytes of a token here or below       */
} di_gram_tnode_t;

/* Where tokens are to be followed from: nodes, in order. */
typedef struct {
    const uint32_t *nodes;  /* [n]                                           */
    uint32_t        n;
    uint32_t        next;   /* set of equal hash; DI_GRAM_DEAD: last         */
} di_gram_nodes_t;

/* From where a state leaves its rule: it is final, or calls. */
typedef struct {
    uint32_t state;         /* of the rule, from 0                           */
    uint32_t nodes;         /* set: what has been read there                 */
} di_gram_exit_t;

/* Tokens that can be followed from a set of nodes and a state inside the
 * state's rule, to their end or to exits. */
typedef struct {
    uint32_t        nodes;  /* set; 0: the root alone                        */
    uint32_t        rule;   /* the index's number                            */
    uint32_t        state;  /* of the rule, from 0                           */
    uint32_t        n_tokens;       /* in tokens                             */
    const int32_t  *tokens;
    const uint64_t *dense;          /* or as a mask; NULL: in tokens         */
    const di_gram_exit_t *exits;    /* [n_exits]                             */
    uint32_t        n_exits;
} di_gram_part_t;

/* A rule's own states and edges, to know it in another grammar. */
typedef struct {
    uint64_t  hash;
    bool      returns;      /* something calls it                            */
    uint32_t  n_words;
    uint32_t *words;        /* its content, relative to its first state      */
} di_gram_known_t;

typedef struct di_gram_heap_s  di_gram_heap_t;

struct di_gram_index_s {
    uint32_t  size;         /* of the vocabulary                             */
    uint32_t  words;        /* of a mask                                     */
    uint8_t   kinds[256];   /* of bytes                                      */
    uint64_t  spans[9][256];        /* kinds of 2^i bytes from a byte on     */
    di_gram_tnode_t *trie;  /* [n_nodes + 1] of all tokens, from node 0, then
                               of those that are not plain or too long to be
                               told apart; the last is the end               */
    uint32_t  n_nodes;
    uint32_t  rest;         /* root of the second                            */
    int32_t  *ids;          /* [n_ids] tokens in the tries' order            */
    uint32_t  n_ids;
    uint64_t *plain;        /* [DI_GRAM_PLAIN_MAX + 1][words] plain tokens of
                               at most so many characters; the last: all     */
    uint64_t *token_kinds;  /* [64 * words] kinds of a token's bytes, and
                               DI_GRAM_PARTIAL; 0: it isn't text             */
    uint8_t  *lengths;      /* [64 * words] its bytes                        */
    void    (*letters)(const uint64_t *, const uint8_t *, uint32_t, uint64_t,
                       unsigned, uint64_t *);   /* the fastest (part.h)      */
    uint8_t  *roles;        /* [size] DI_GRAM_AS_...; 0: it is in no mask    */
    uint32_t *starts;       /* [size + 1] of a token's bytes in `bytes`      */
    uint8_t  *bytes;        /* of the tokens that are text                   */
    int32_t   ends[16];
    size_t    n_ends;

    /* What has been computed. */
    uint64_t  epoch;        /* changes when it is forgotten; not 0           */
    size_t    cache_max;    /* bytes                                         */
    size_t    cache_bytes;
    di_gram_heap_t  *heap;  /* blocks that hold it                           */
    di_gram_heap_t  *warm;  /* and what is never forgotten (warm.c):         */
    size_t           warm_bytes;    /* not in cache_bytes                    */
    uint32_t         warm_parts;    /* the first ones of each                */
    uint32_t         warm_sets;
    uint32_t         warm_known;
    di_gram_heap_t  *spare; /* blocks to hold more, of what was forgotten    */
    di_gram_part_t  *parts;         /* [n_parts]                             */
    uint32_t         n_parts, parts_cap;
    uint32_t        *part_table;    /* [part_mask + 1] part + 1; 0: free     */
    uint32_t         part_mask;
    di_gram_nodes_t *sets;          /* [n_sets]; set 0: the root             */
    uint32_t         n_sets, sets_cap;
    uint32_t        *set_table;     /* [DI_GRAM_SET_BUCKETS] newest of a hash */
    di_gram_known_t *known;         /* [n_known] rules                       */
    uint32_t         n_known, known_cap;
    struct {
        uint64_t  kinds;    /* 0: free                                       */
        uint32_t  longest;  /* bytes                                         */
        uint64_t *mask;     /* tokens of bytes of these kinds alone          */
    } loops[8];             /* used last: at [next_loop - 1]                 */
    uint32_t         next_loop;
    bool             no_memory;

    /* Scratch of one computation. */
    int32_t  *found;        /* [found_max] tokens                            */
    uint32_t  found_max;    /* at least all tokens of a trie                 */
    uint64_t *spilt;        /* [words] tokens found before these             */
    struct di_gram_left_s *left;    /* [left_cap] exits met                  */
    uint32_t  n_left, left_cap;
    struct di_gram_row_s  *rows;    /* steps of states, spelled out          */
    uint64_t  rows_of;      /* serial of the grammar whose they are          */

    uint64_t  work;         /* steps of making parts, about 10 ns each       */
    di_gram_index_stats_t stats;
};

#define DI_GRAM_SET_BUCKETS  4096u

/* Kinds of the bytes lo to hi. */
static inline uint64_t
di_gram_span(const di_gram_index_t *x, unsigned lo, unsigned hi)
{
    unsigned i = 31 - (unsigned) __builtin_clz(hi - lo + 1);

    return x->spans[i][lo] | x->spans[i][hi + 1 - (1u << i)];
}

static inline void
di_gram_special_bytes(uint32_t id, uint8_t bytes[4])
{
    bytes[0] = DI_GRAM_SPECIAL_BYTE;
    bytes[1] = (uint8_t) (id >> 16);
    bytes[2] = (uint8_t) (id >> 8);
    bytes[3] = (uint8_t) id;
}

/* index.c */
void *di_gram_index_alloc(di_gram_index_t *x, size_t n, size_t size);

/* warm.c: compute parts of common rules; false: no memory. */
bool di_gram_warm(di_gram_index_t *x);
/* base.c: the scratch `rows`, for free(). */
struct di_gram_row_s *di_gram_rows_new(void);
/* part.c: put the first parts and sets, which are kept, into empty tables. */
void di_gram_enter_warm(di_gram_index_t *x);
/* The part for these; NULL: no memory. */
const di_gram_part_t *di_gram_part(di_gram_index_t *x, di_gram_t *g,
                                   uint32_t nodes, uint32_t state);

#endif
