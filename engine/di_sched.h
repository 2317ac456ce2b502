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
 * so that a long prompt never holds running streams by more than a chunk, and
 * a chunk is cut so that the step takes about as long as it should.
 * What a request answers depends on nothing but itself: not on what else
 * runs, where its prompt was cut, what the prefix cache had, or whether it
 * was preempted.  There are two exceptions.  Bounded replay of a model of
 * windows is off unless asked for: see di_replay_t and sched_state.c.  And
 * where DI_GEN_UNSEEDED says that nobody could ask for the same text again,
 * drafts may change which tokens are drawn, not how they are distributed.
 *
 * A model with a drafter has a decoding sequence verify its drafts: the row of
 * the token drawn last, and rows behind it as if the drafts had been drawn.
 * Each row is sampled as it would be alone, and drafts stay as long as they
 * equal what was drawn; or, if unseeded, as rejection sampling lets them.  So
 * a step gives several tokens (sched_draft.c).
 *
 * A request with a grammar has each of its choices' text held to it, from the
 * first token to the end token; see sched_grammar.c for what then becomes of
 * the other parameters.
 *
 * A model whose sequences have a state (windows, in slots of their own) finds
 * a prefix only where the state at its end was kept: a running sequence
 * leaves a copy at block boundaries in spare slots.
 */

#ifndef DI_SCHED_H
#define DI_SCHED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../tokenizer/di_err.h"
#include "../tokenizer/vocab/di_vocab.h"
#include "ipc/di_ipc.h"
#include "model/di_model.h"

typedef struct di_sched_s di_sched_t;

/* The longest owner number plus one. */
#define DI_SCHED_OWNERS_MAX DI_IPC_CONNS_MAX

/* Takes one event; top has event->n_top entries.  Must accept it, and must
 * not call the scheduler. */
typedef void (*di_sched_sink_t)(void *arg, uint32_t owner,
                                const di_event_t *event,
                                const di_top_logprob_t *top);

/* Completion slots that the owner can take now (an event takes 1 +
 * ceil(n_top / 8)); sequences of an owner with less than they may need in a
 * step are left out of it.  Answers to submit and cancel don't ask. */
typedef uint32_t (*di_sched_room_t)(void *arg, uint32_t owner);

/* Bounded replay of a model of windows: what old tokens of a prompt compute,
 * and whether a prefix is gone on with whose windows were not kept. */
typedef enum {
    DI_REPLAY_OFF = 0,           /* everything; exact                       */
    DI_REPLAY_MASK,              /* everything, seeing what COMPACT leaves  */
    DI_REPLAY_COMPACT,           /* the model's first half                  */
} di_replay_t;

/* Which of the model's drafts are verified. */
typedef enum {
    DI_DRAFTS_OFF = 0,           /* none are made                           */
    DI_DRAFTS_ALL,               /* all that there is room for              */
    DI_DRAFTS_AUTO,              /* those that are worth it (sched_odds.c)  */
} di_drafts_mode_t;

/* Why a choice is about to end with DI_FINISH_ERROR: one line for a log. */
typedef void (*di_sched_note_t)(void *arg, uint32_t owner, uint64_t id,
                                const char *text);

typedef struct {
    uint32_t        max_seqs;        /* running sequences                   */
    uint32_t        max_rows;        /* token budget of one step, at least
                                      * max_seqs                            */
    uint32_t        chunk;           /* prefill rows of one step while
                                      * streams are decoding, at most       */
    uint32_t        step_us;         /* how long such a step should take;
                                      * 0: as long as it takes              */
    uint32_t        queue_max;       /* requests that may wait for a free
                                      * sequence, then QUEUE_FULL           */
    bool            prefix_cache;
    di_drafts_mode_t drafts;
    di_replay_t     replay;
    uint32_t        replay_keep;     /* of a prompt, tokens that go through
                                      * the whole of a model of windows; at
                                      * least a window and what may be taken
                                      * back; unused with DI_REPLAY_OFF     */
    const di_vocab_t *vocab;         /* the model's, for grammars; borrowed
                                      * until close; NULL: requests with a
                                      * grammar are refused                 */
    size_t          grammar_bytes;   /* half of it for opened grammars, half
                                      * for masks computed before           */
    bool            jumps;           /* take tokens that a grammar forces
                                      * without drawing them                */
    const int32_t  *end_ids;         /* end-of-generation ids; kept         */
    size_t          n_end_ids;
    di_sched_sink_t sink;
    di_sched_room_t room;            /* NULL: always enough                 */
    di_sched_note_t note;            /* NULL: faults go untold              */
    void           *arg;
} di_sched_conf_t;

/* What the scheduler needs of a model: the functions of di_model.h and some
 * figures, so that tests can put something slower and more suspicious under
 * it. */
typedef struct {
    void        *ctx;                /* first argument of each function     */
    uint32_t     vocab;
    uint32_t     max_model_len;
    uint32_t     kv_blocks;
    uint32_t     block_tokens;
    uint32_t     n_states;           /* 0: sequences have no state          */
    uint32_t     window;             /* see di_model_info_t, with           */
    uint32_t     backtrack;          /* this                                */
    uint32_t     n_drafts;           /* of a sequence; 0: no drafter        */
    uint32_t     max_logits;         /* of one step, at least max_seqs      */
    int        (*step)(void *ctx, const di_model_seq_t *seqs, size_t n_seqs);
    void       (*host_call)(void *ctx, void (*fn)(void *arg, size_t part),
                            void *arg, size_t n_parts);
    int        (*wait)(void *ctx, const float **logits);
    const float *(*logits)(void *ctx);
    void       (*kv_copy)(void *ctx, uint32_t dst, uint32_t src,
                          uint32_t n_tokens);
    void       (*state_copy)(void *ctx, uint32_t dst, uint32_t src);
    int        (*draft)(void *ctx, const di_model_draft_t *seqs,
                        size_t n_seqs, di_model_pick_t pick, void *arg,
                        int32_t *drafts, float *confidence);
} di_sched_model_t;

/* Borrows the model until close.  DI_EINVAL names what does not fit;
 * DI_ENOMEM. */
int di_sched_open(di_model_t *model, const di_sched_conf_t *conf,
                  di_sched_t **sched, di_err_t *err);
int di_sched_open_on(const di_sched_model_t *model,
                     const di_sched_conf_t *conf, di_sched_t **sched,
                     di_err_t *err);

/* Frees what is left without a word to its owners. */
void di_sched_close(di_sched_t *sched);

/* Queue a request (copied).  Refusals come as DI_EV_REJECT through the sink.
 * (owner, id) names it; owner is below DI_SCHED_OWNERS_MAX.  max_tokens is
 * cut to what fits the model length and the KV memory; prompt and completion
 * together have at most max_model_len tokens.  DI_OK, or DI_ENOMEM (after a
 * DI_REJECT_INTERNAL). */
int di_sched_submit(di_sched_t *sched, uint32_t owner, uint64_t id,
                    const di_gen_request_t *req);

/* Cancel one choice or all (UINT32_MAX): each that was not over gets its
 * DI_FINISH_CANCEL.  Blocks are released on return.  Unknown names are
 * ignored; so they are by pause. */
void di_sched_cancel(di_sched_t *sched, uint32_t owner, uint64_t id,
                     uint32_t choice);
void di_sched_pause(di_sched_t *sched, uint32_t owner, uint64_t id,
                    bool pause);

/* The owner is gone: free all of its sequences, send nothing. */
void di_sched_drop_owner(di_sched_t *sched, uint32_t owner);

/* Refuse new requests from now on. */
void di_sched_drain(di_sched_t *sched);

/* Run one step.  DI_OK: work was done; DI_EAGAIN: nothing to do (idle, or
 * all paused or without room).  A device fault ends the requests of the step
 * with DI_FINISH_ERROR and is returned.  Allocates nothing, but for grammars:
 * a matcher's stacks and masks met for the first time. */
int di_sched_step(di_sched_t *sched);

bool di_sched_idle(const di_sched_t *sched);     /* no request left         */

/* Fill in all but updated_us and role. */
void di_sched_status(const di_sched_t *sched, di_ipc_status_t *status);

/* Drafts verified so far, and those of them that stayed. */
void di_sched_drafts(const di_sched_t *sched, uint64_t *verified,
                     uint64_t *accepted);

/* Walk every invariant of sequences, blocks and cache: tests. */
void di_sched_check(const di_sched_t *sched);

#endif
