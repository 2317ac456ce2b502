/*
 * di_sched.h - continuous batching over one model: requests in, events out.
 *
 * The scheduler owns sequences, KV blocks and the prefix cache.  It knows no
 * transport: `serve` feeds it from the shared-memory channel, the offline
 * commands and the tests feed it directly.  One thread calls everything.
 *
 *     submit ─► waiting ─► running (prefill chunks, then decode) ─► finished
 *                  ▲            │ preempted when blocks run out: blocks go
 *                  └────────────┘ back to the prefix cache, tokens replayed
 *
 * A step takes decode rows first, then prefill chunks up to the token budget,
 * so that a long prompt never holds running streams by more than a chunk.
 */

#ifndef DI_SCHED_H
#define DI_SCHED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../tokenizer/di_err.h"
#include "ipc/di_ipc.h"
#include "model/di_model.h"

typedef struct di_sched_s di_sched_t;

/* Takes one event; top has event->n_top entries.  Must accept it. */
typedef void (*di_sched_sink_t)(void *arg, uint32_t owner,
                                const di_event_t *event,
                                const di_top_logprob_t *top);

/* Completion slots that the owner can take now; sequences of an owner with
 * less than they may need in a step are left out of it. */
typedef uint32_t (*di_sched_room_t)(void *arg, uint32_t owner);

typedef struct {
    uint32_t        max_seqs;        /* running sequences                   */
    uint32_t        max_rows;        /* token budget of one step            */
    uint32_t        chunk;           /* prefill rows of one step while
                                      * streams are decoding                */
    uint32_t        queue_max;       /* waiting requests, then QUEUE_FULL   */
    bool            prefix_cache;
    const int32_t  *end_ids;         /* end-of-generation ids; kept         */
    size_t          n_end_ids;
    di_sched_sink_t sink;
    di_sched_room_t room;            /* NULL: always enough                 */
    void           *arg;
} di_sched_conf_t;

int di_sched_open(di_model_t *model, const di_sched_conf_t *conf,
                  di_sched_t **sched, di_err_t *err);
void di_sched_close(di_sched_t *sched);

/* Queue a request (copied).  Refusals come as DI_EV_REJECT through the sink.
 * (owner, id) names it.  DI_OK or DI_ENOMEM. */
int di_sched_submit(di_sched_t *sched, uint32_t owner, uint64_t id,
                    const di_gen_request_t *req);

/* Cancel one choice or all (UINT32_MAX).  Blocks are free on return. */
void di_sched_cancel(di_sched_t *sched, uint32_t owner, uint64_t id,
                     uint32_t choice);
void di_sched_pause(di_sched_t *sched, uint32_t owner, uint64_t id,
                    bool pause);

/* The owner is gone: free all of its sequences, send nothing. */
void di_sched_drop_owner(di_sched_t *sched, uint32_t owner);

/* Refuse new requests from now on. */
void di_sched_drain(di_sched_t *sched);

/* Run one step.  DI_OK: work was done; DI_EAGAIN: nothing to do (idle, or
 * all paused or without room). */
int di_sched_step(di_sched_t *sched);

bool di_sched_idle(const di_sched_t *sched);     /* no request left         */
void di_sched_status(const di_sched_t *sched, di_ipc_status_t *status);

/* Walk every invariant of sequences, blocks and cache: tests. */
void di_sched_check(const di_sched_t *sched);

#endif
