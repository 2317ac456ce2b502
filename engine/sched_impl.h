/*
 * sched_impl.h - the scheduler's own structures (sched.c, sched_step.c and
 * those beside them).
 *
 * A request (req_t) is one allocation: itself, its lists, and for each of its
 * choices a sequence (seq_t) with room for all tokens, blocks and keys that
 * it can ever have.  It is freed when its last choice is over.
 *
 * A sequence is in one state at a time:
 *
 *     PARKED   choices 1 .. n-1 of a prompt that is not computed yet: their
 *              first token comes from the logits of choice 0 (the leader),
 *              and then they share its blocks
 *     WAITING  in its owner's queue (never run) or in the queue of those to
 *              be resumed (preempted, or parked ones without a slot)
 *     RUNNING  in the running list, in order of admission; holds blocks for
 *              all of its tokens but the last
 *     OVER     finished; memory stays until the request goes
 *
 * n_tokens counts what is known, n_computed what has KV.  A sequence that
 * waits has none computed; once admitted it computes n_tokens - n_computed
 * rows, and the last of them gives the next token.  Prefill, decode and the
 * replay after a preemption are all that.
 *
 * Drafts lie behind the known tokens, and belong to the n_tokens for which
 * they were made.
 *
 * Where the model has states, a running sequence owns a slot: 1 .. max_seqs.
 * The slots behind those hold copies of states at the ends of published
 * blocks; a block's mark is the slot of its copy (sched_state.c).
 */

#ifndef DI_SCHED_IMPL_H
#define DI_SCHED_IMPL_H

#include "di_kv.h"
#include "di_sampler.h"
#include "di_sched.h"
#include "../tokenizer/grammar/di_grammar.h"

#define DI_SCHED_PARTS 16        /* parts of the sampling call              */
#define DI_SCHED_JUMP_MAX 32     /* tokens that a grammar forces at once    */

typedef enum { SEQ_PARKED, SEQ_WAITING, SEQ_RUNNING, SEQ_OVER } seq_state_t;

typedef struct seq_s  seq_t;
typedef struct req_s  req_t;
typedef struct gram_s gram_t;

typedef struct {
    seq_t   *head;
    seq_t   *tail;
    uint32_t n;
} seq_list_t;

/* What a sequence's drafts have given (sched_odds.c). */
typedef struct {
    bool     begun;
    bool     probes;             /* this round is on the engine's account   */
    double   rounds;             /* since the last one that was, up to 8    */
    double   net;                /* tokens that a round of drafts gave beyond
                                  * its cost, moving average                */
    double   stayed;             /* moving sums: drafts that stayed,        */
    double   hoped;              /* that should have, as the drafter says   */
    uint32_t rest;               /* rounds to go without                    */
    uint32_t last_rest;          /* what that was last                      */
} di_trial_t;

struct seq_s {
    req_t       *req;
    seq_t       *prev;           /* in the list of its state                */
    seq_t       *next;
    seq_list_t  *list;           /* that list, NULL = in none               */
    int32_t     *tokens;         /* [req->total_max] prompt, generated      */
    uint32_t    *blocks;         /* [n_blocks] block table                  */
    di_kv_key_t *keys;           /* [n_keys] of whole blocks                */
    seq_state_t  state;
    uint32_t     choice;
    uint32_t     n_tokens;
    uint32_t     n_computed;
    uint32_t     n_blocks;
    uint32_t     n_published;    /* blocks that the cache knows             */
    uint32_t     n_keys;
    uint32_t     n_drafts;       /* tokens[n_tokens ...], if made for that  */
    uint32_t     drafted_at;     /* n_tokens for which they were made       */
    uint32_t     place;          /* of what they were drawn from; 0 = none  */
    di_trial_t   trial;
    uint32_t     slot;           /* of its state; 0 = none                  */
    di_gram_match_t *match;      /* behind tokens; NULL: no grammar         */
    int32_t     *close;          /* [n_close] tokens that complete the text,
                                  * once max_tokens runs out; owned         */
    uint32_t     n_close;
    uint32_t     n_closed;       /* of these, drawn                         */
    uint32_t     n_untold;       /* last tokens, told with their rows       */
    bool         steers;         /* will be completed before max_tokens     */
    uint32_t     keep_from;      /* position from which it goes through the
                                  * whole model                             */
    uint32_t     floor;          /* 0, or where it went on without a state:
                                  * its blocks from there are no others'    */
};

struct req_s {
    req_t           *hash_next;
    uint64_t         id;
    uint64_t         submitted_us;
    di_gen_params_t  params;
    di_kv_key_t      root;       /* key before the first block              */
    uint8_t          salt[DI_KV_SALT_BYTES];
    di_logit_bias_t *bias;       /* [n_bias]                                */
    int32_t         *stop_ids;   /* [n_stop_ids]                            */
    gram_t          *grammar;    /* NULL: none                              */
    uint32_t         n_bias;
    uint32_t         n_stop_ids;
    uint32_t         owner;
    uint32_t         n_prompt;
    uint32_t         total_max;  /* tokens of a sequence at most            */
    uint32_t         n_open;     /* choices not over                        */
    uint32_t         leader;     /* choice that computes the prompt         */
    uint32_t         lp_next;    /* next prompt position to report; n_prompt
                                  * when there is none                      */
    bool             caches;     /* uses and fills the prefix cache         */
    bool             started;    /* DI_EV_STARTED was sent                  */
    bool             forked;     /* first tokens are drawn                  */
    bool             paused;
    seq_t            seqs[];     /* [params.n]                              */
};

/* One row's work behind the model. */
typedef struct {
    seq_t           *seq;
    uint32_t         row;        /* of the step's logits                    */
    uint32_t         position;   /* prompt position to report, or 0: sample */
    uint32_t         ahead;      /* drafts that count as drawn before it    */
    const di_sampler_from_t *from;   /* of the draft behind those, which may
                                  * be replaced, or NULL                    */
    const uint64_t  *mask;       /* of a grammar, or NULL                   */
    int              rc;
    di_sample_out_t  out;
} job_t;

/* A sequence's part of the step. */
typedef struct {
    seq_t   *seq;
    uint32_t n_rows;
    uint32_t n_jobs;             /* that belong to it, in order             */
    uint32_t n_drafts;           /* its last rows                           */
} part_t;

typedef struct {
    seq_list_t queue;            /* never run                               */
    uint64_t   room_turn;        /* turn in which room was asked for        */
    uint32_t   room;             /* completion slots left in that turn      */
} owner_t;

/* What steps and drafts have cost and given of late (sched_odds.c): moving
 * sums over about 32 steps that only decode. */
typedef struct {
    double n, rows, us;          /* steps, their rows and times             */
    double rows_rows, rows_us;   /* squares, products                       */
    double tokens;               /* that they gave                          */
    double all_us;               /* their times and the drafting's          */
    double row_us;               /* what a row adds to a step               */
    double slopes;               /* steps that showed it, up to 8           */
    double drafted, draft_us;    /* sequences drafted for, and how long     */
    double net;                  /* of all rounds, see di_trial_t           */
    double debt;                 /* tokens that drafting cost and that are
                                  * still to be made up for                 */
} di_odds_t;

/* Of sched_draft.c. */
typedef struct {
    di_model_draft_t  *asked;    /* [max_seqs] what the model is to draft   */
    seq_t            **seqs;     /* [max_seqs] for whom                     */
    int32_t           *tokens;   /* [max_seqs][n_drafts]                    */
    float             *confidence;   /* [max_seqs][n_drafts]                */
    di_sampler_from_t *from;     /* [max_seqs][n_drafts] by places          */
    float             *chances;  /* [max_seqs][n_drafts] confidence by
                                  * places                                  */
    uint32_t          *places;   /* [n_places] free ones, 1 .. max_seqs     */
    uint32_t           n_places;
} di_drafts_t;

/* Of sched_grammar.c. */
typedef struct {
    di_gram_index_t *index;      /* NULL: no vocabulary was given           */
    gram_t          *list;       /* opened ones                             */
    uint64_t        *masks;      /* [jobs_max][words]                       */
    size_t           words;
    size_t           bytes_max;  /* of opened ones                          */
    uint64_t         n_uses;     /* requests that came with one             */
} di_grammars_t;

/* Of sched_forced.c. */
typedef struct {
    di_tok_t *tok;               /* NULL: no vocabulary was given           */
    uint8_t  *text;              /* scratch                                 */
    int32_t  *ids;
} di_forced_t;

/* A copy of a state, in slot max_seqs + 1 + its number. */
typedef struct {
    uint32_t block;              /* at whose end; 0: free                   */
    uint64_t used;               /* kept_turn of its last use               */
} state_t;

/* What steps have cost of late (sched_pace.c). */
typedef struct {
    double decode_us;            /* one that only decodes                   */
    double prefill_us;           /* moving sums over about 8 steps: what    */
    double prefill_rows;         /* prompt rows added to them; those rows   */
} di_pace_t;

struct di_sched_s {
    di_sched_model_t model;
    di_sched_conf_t  conf;
    int32_t         *end_ids;
    di_kv_t         *kv;
    uint32_t        *slots;      /* [n_slots] free ones                     */
    uint32_t         n_slots;
    state_t         *states;     /* [n_kept] copies at ends of blocks       */
    uint32_t         n_kept;
    uint64_t         kept_turn;  /* counts uses of copies                   */
    req_t          **buckets;    /* [bucket_mask + 1] requests by name      */
    uint32_t         bucket_mask;
    uint32_t         n_reqs;
    uint32_t         n_queued;   /* in the owners' queues                   */
    uint32_t         next_owner; /* whose turn it is to be admitted         */
    bool             draining;
    bool             full;       /* no sequence or block for the next one   */
    seq_list_t       running;
    seq_list_t       resume;     /* goes before the owners' queues          */
    owner_t          owners[DI_SCHED_OWNERS_MAX];

    /* The step being made. */
    uint64_t         turn;       /* counts calls, steps or not              */
    di_model_seq_t  *model_seqs; /* [max_seqs]                              */
    part_t          *parts;      /* [max_seqs]                              */
    job_t           *jobs;       /* [jobs_max]                              */
    uint32_t         jobs_max;
    uint32_t         n_parts;
    uint32_t         n_jobs;
    uint32_t         n_rows;
    uint32_t         n_logits;
    uint32_t         prefill_rows;
    di_drafts_t      drafts;
    di_odds_t        odds;
    di_grammars_t    grammars;
    di_forced_t      forced;
    di_sampler_t    *samplers[DI_SCHED_PARTS];
    _Atomic uint32_t samplers_busy;  /* bit i: samplers[i] is in use        */

    /* Totals, and moving sums over about 32 steps for the rates. */
    uint64_t         steps;
    uint64_t         prefill_tokens;
    uint64_t         decode_tokens;
    uint64_t         cached_tokens;
    uint64_t         requests;
    uint64_t         preemptions;
    uint64_t         verified;
    uint64_t         accepted;
    uint64_t         jumped_tokens;
    double           recent_us;
    double           recent_prefill;
    double           recent_decode;
    di_pace_t        pace;
};

void di_seq_append(seq_list_t *list, seq_t *seq);
void di_seq_prepend(seq_list_t *list, seq_t *seq);

/* Take a sequence out of the list that it is in. */
void di_seq_unlink(di_sched_t *sched, seq_t *seq);

/* Give its blocks back, to the cache first; nothing is computed any more. */
void di_seq_release(di_sched_t *sched, seq_t *seq);

/* End a sequence with an event; the request goes with its last one. */
void di_seq_finish(di_sched_t *sched, seq_t *seq, di_finish_t reason,
                   int32_t stop_id);

/* Compute keys up to n_blocks whole blocks of known tokens. */
void di_seq_keys(const di_sched_t *sched, seq_t *seq, uint32_t n_blocks);

/* sched_deliver.c: a part of the sampling call, of so many; then what a
 * sequence's rows gave is taken, or, after a fault, the sequence ended. */
size_t di_sample_parts(const di_sched_t *sched);
void di_sample_part(void *sched, size_t part);

/* What a sequence's next token is sampled for, if that many drafts count as
 * drawn before it. */
di_sample_in_t di_sample_in(const di_sched_t *sched, const seq_t *seq,
                            uint32_t ahead);

/* Any thread: a sampler that no other one uses, until it is given back. */
di_sampler_t *di_sampler_take(di_sched_t *sched, uint32_t *number);
void di_sampler_give(di_sched_t *sched, uint32_t number);
void di_deliver(di_sched_t *sched, const part_t *part, job_t *jobs);
void di_deliver_fault(di_sched_t *sched, seq_t *seq);

/* sched_state.c: where the model has no states these do nothing. */
int di_state_open(di_sched_t *sched);
void di_state_close(di_sched_t *sched);
void di_state_take(di_sched_t *sched, seq_t *seq);       /* a slot          */
void di_state_give(di_sched_t *sched, seq_t *seq);

/* Of n_blocks found in the cache (held, in seq->blocks), how many can be gone
 * on with when limit tokens must not be exceeded; the state at their end is
 * in seq's slot, or seq->floor is set. */
uint32_t di_state_restore(di_sched_t *sched, seq_t *seq, uint32_t n_blocks,
                          uint32_t limit);

/* Keep a copy of seq's state, which is at the end of its last published
 * block. */
void di_state_keep(di_sched_t *sched, seq_t *seq);
void di_state_check(const di_sched_t *sched);

/* sched_draft.c: where nothing drafts these do nothing. */
int di_draft_open(di_sched_t *sched);
void di_draft_close(di_sched_t *sched);
int di_draft_make(di_sched_t *sched);    /* for all that decode next        */

void di_draft_forget(di_sched_t *sched, seq_t *seq);

/* Drafts of a sequence to verify in the next step. */
uint32_t di_draft_verify(di_sched_t *sched, seq_t *seq);

/* So many of a sequence's drafts were verified, and of those so many stayed. */
void di_draft_note(di_sched_t *sched, seq_t *seq, uint32_t verified,
                   uint32_t stayed);

/* What draft number i was drawn from; NULL: it is not to be replaced, but
 * compared with what is drawn. */
const di_sampler_from_t *di_draft_from(const di_sched_t *sched,
                                       const seq_t *seq, uint32_t i);

/* sched_odds.c: a step that only decodes, its rows, tokens and time; the time
 * of drafting for some sequences. */
void di_odds_step(di_odds_t *odds, uint32_t rows, uint64_t tokens, double us);
void di_odds_draft(di_odds_t *odds, uint32_t seqs, double us);

/* Is a sequence to be drafted for now? */
bool di_odds_wants(di_odds_t *odds, di_trial_t *trial);

/* Of n drafts, each with its chance to stay if those before it do, how many
 * are worth their rows.  A draft's answer depends on the chances up to its own
 * alone. */
uint32_t di_odds_verify(const di_odds_t *odds, const di_trial_t *trial,
                        const float *confidence, uint32_t n);

/* A round of drafts was verified, and of those so many stayed. */
void di_odds_round(di_odds_t *odds, di_trial_t *trial, const float *confidence,
                   uint32_t verified, uint32_t stayed);

/* sched_pace.c: a step that decoded or not, and had so many prompt rows, took
 * so long. */
void di_pace_note(di_pace_t *pace, bool decodes, uint32_t prefill_rows,
                  double us);

/* Prompt rows for a step of about target_us where so many streams decode or
 * wait to, at most rows_max; waited_us: a request has waited so long for
 * rows. */
uint32_t di_pace_rows(const di_pace_t *pace, uint32_t streams,
                      double target_us, double waited_us, uint32_t rows_max);

/* sched_grammar.c: without a vocabulary, or a grammar, these do nothing. */
int di_grammar_open(di_sched_t *sched, di_err_t *err);
void di_grammar_close(di_sched_t *sched);

/* Open a request's grammar and a matcher for each choice.  DI_EUNSUPPORTED:
 * without a vocabulary; DI_EFORMAT: it is no grammar; DI_ELIMIT: those in use
 * leave no room; DI_ENOMEM. */
int di_grammar_attach(di_sched_t *sched, req_t *req,
                      const di_gen_request_t *r);
void di_grammar_detach(req_t *req);

/* Of n drafts behind a sequence's tokens, those up to the first that its
 * grammar does not allow. */
uint32_t di_grammar_drafts(di_sched_t *sched, const seq_t *seq, uint32_t n);

/* Masks for the step's jobs; one whose mask can't be had gets its rc. */
void di_grammar_masks(di_sched_t *sched);

/* The mask of one job again, where its sequence stands now. */
int di_grammar_mask(di_sched_t *sched, job_t *job);

/* Move a sequence's matcher over a token. */
int di_grammar_accept(di_sched_t *sched, seq_t *seq, int32_t token);

/* Bytes held for grammars, but for the matchers of sequences. */
size_t di_grammar_bytes(const di_sched_t *sched);

/* sched_forced.c: without a grammar these do nothing. */
int di_forced_open(di_sched_t *sched);
void di_forced_close(di_sched_t *sched);

/* Append the tokens that can't be others to a sequence; how many. */
uint32_t di_forced_jump(di_sched_t *sched, seq_t *seq);

/* Can the text be completed if the sequence has so many tokens where its
 * matcher stands? */
bool di_forced_fits(di_sched_t *sched, const seq_t *seq, uint32_t n_tokens);

/* A job's token was drawn, and the matcher has moved over it.  If the text
 * could not be completed behind it, the matcher is moved back and the job's
 * mask allows only the token to take instead: true. */
bool di_forced_steer(di_sched_t *sched, job_t *job);

uint64_t di_sched_now_us(void);

static inline uint32_t
di_least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static inline bool
di_has_id(const int32_t *ids, size_t n, int32_t id)
{
    size_t i;

    for (i = 0; i < n; i++) {
        if (ids[i] == id)
            return true;
    }
    return false;
}

#endif
