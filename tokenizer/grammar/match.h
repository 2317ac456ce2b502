/*
 * match.h - an opened grammar and a place in it, for tokenizer/grammar only.
 */

#ifndef DI_GRAM_MATCH_H
#define DI_GRAM_MATCH_H

#include <stdatomic.h>

#include "blob.h"
#include "di_grammar.h"

/* What plain text does to a state. */
typedef struct di_gram_plain_s {
    uint64_t outs;          /* kinds of other bytes that can come            */
    uint32_t next;          /* state behind any plain character; DI_GRAM_DEAD:
                               there is no such, DI_GRAM_DEAD - 1: not known
                               yet, like the others                          */
    uint32_t run;           /* how many can come, up to DI_GRAM_PLAIN_MAX;
                               DI_GRAM_TOKEN_MAX: any number; DI_GRAM_DEAD:
                               not known yet                                 */
} di_gram_plain_t;

struct di_gram_s {
    _Atomic uint32_t        refs;
    struct di_gram_near_s  *_Atomic near;       /* [n_states] (shortest.c);
                                           NULL: not asked for yet; owned    */
    size_t                  bytes;      /* of the blob                       */
    uint64_t                serial;     /* no other grammar has it           */
    bool                    root_called;        /* a rule calls the root     */
    struct di_gram_plain_s *plain;      /* [n_states] (base.c); NULL: no index
                                           has seen it; owned                */
    uint64_t                bound;      /* to an index and what it knows now;
                                           0: never                          */
    uint32_t               *bound_rules;        /* [n_rules] the index's
                                           numbers of the rules; NONE: not
                                           asked for yet; owned              */
    di_gram_blob_t          head;
    const di_gram_brule_t  *rules;      /* these point into data             */
    const di_gram_bstate_t *states;
    const di_gram_bedge_t  *edges;
    const di_gram_bcall_t  *calls;
    _Alignas(8) uint8_t     data[];
};

/* A stack is its newest frame.  Stacks share their lower frames; no two live
 * frames have the same parent and state. */
typedef struct {
    uint32_t parent;        /* frame below; 0: none                          */
    uint32_t ret;           /* state to go on in                             */
    uint32_t depth;         /* frames below                                  */
    uint32_t refs;          /* ways and frames that hold it; on the free
                               list: the next free frame                     */
    uint32_t next;          /* live frame of the same bucket; 0: last        */
} di_gram_frame_t;

#define DI_GRAM_FRAME_BUCKETS  64u

/* One way to read the text so far. */
typedef struct {
    uint32_t state;
    uint32_t stack;         /* frame; 0: none                                */
} di_gram_way_t;

typedef struct {
    di_gram_way_t *v;       /* [n]                                           */
    uint32_t n, cap;
    bool     complete;      /* the text may end here                         */
} di_gram_ways_t;

struct di_gram_match_s {
    di_gram_t       *gram;
    di_gram_frame_t *frames;        /* [n_frames]; frame 0 is not used       */
    uint32_t         n_frames, frames_cap;
    uint32_t         free_frame;    /* 0: none                               */
    uint32_t         buckets[DI_GRAM_FRAME_BUCKETS];    /* of live frames    */
    bool             no_memory;     /* since the last look                   */
    bool             over_limit;    /* ways were left out, likewise          */

    di_gram_ways_t  *past;          /* [undo_max + 1] ring of what was
                                       accepted; past[now] is the present    */
    unsigned         undo_max;
    unsigned         now;
    unsigned         n_undo;        /* calls that can be taken back          */
    di_gram_ways_t   work[2];       /* of accept() and forced()              */
};

static inline bool
di_gram_has_calls(const di_gram_t *g, uint32_t state)
{
    return g->states[state].calls != g->states[state + 1].calls;
}

/* The state after a byte; DI_GRAM_DEAD: not allowed. */
#define DI_GRAM_DEAD  UINT32_MAX

static inline uint32_t
di_gram_step(const di_gram_t *g, uint32_t state, uint8_t byte)
{
    const di_gram_bedge_t *e = &g->edges[g->states[state].edges];
    const di_gram_bedge_t *end = &g->edges[g->states[state + 1].edges];

    while (end - e > 4) {
        const di_gram_bedge_t *mid = e + (end - e) / 2;

        if (mid->lo > byte)
            end = mid;
        else
            e = mid;
    }
    for (; e < end; e++) {
        if (byte <= e->hi)
            return byte >= e->lo ? e->to : DI_GRAM_DEAD;
    }
    return DI_GRAM_DEAD;
}

static inline di_gram_ways_t *
di_gram_present(di_gram_match_t *m)
{
    return &m->past[m->now];
}

/* Empty a set, giving back its stacks. */
void di_gram_ways_clear(di_gram_match_t *m, di_gram_ways_t *w);

/* Add a way with all that it can do without reading; a way that reads
 * nothing more is left out.  Call di_gram_ways_settle() after the last. */
void di_gram_ways_add(di_gram_match_t *m, di_gram_ways_t *w, uint32_t state,
                      uint32_t stack);
void di_gram_ways_settle(di_gram_match_t *m, di_gram_ways_t *w);

/* `to` = `from` after a byte; false: no way is left and the text may not end
 * here. */
bool di_gram_ways_step(di_gram_match_t *m, const di_gram_ways_t *from,
                       uint8_t byte, di_gram_ways_t *to);

#endif
