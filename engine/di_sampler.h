/*
 * di_sampler.h - from a row of logits to a token and its log-probabilities.
 *
 * Order of operations on a row of float32 logits:
 *
 *     logit bias; repetition, frequency, presence penalty; end and stop ids
 *     masked before min_tokens, or the caller's mask; then greedy takes the
 *     plain argmax (ties: the smaller id), otherwise softmax at the
 *     temperature, top-p, top-k and min-p all measured on that distribution,
 *     and a draw from what is left.
 *
 * Reported log-probabilities are the model's own: the log-softmax of the row
 * before any of that.
 *
 * Random numbers come from Philox4x32-10 with the request's seed as key and
 * the token's position as counter.  A token depends on its row, seed and
 * position alone, so a request gives the same tokens on a busy and an idle
 * engine, after a preemption and after a restart.  Vector variants give the
 * same bits as plain C: no sum depends on the width of a register.
 *
 * Drafts are drawn from a drafter's logits as tokens are from the model's.
 * There are two ways, the caller's choice:
 *
 *   coupled   With the same numbers as the token will be.  It is then drawn
 *             as if there were no draft, and often is the draft.
 *   rejected  With numbers of its own, from a distribution that is kept.  The
 *             draft stays or is replaced so that tokens are distributed as
 *             without drafts; more of them stay, but the token depends on
 *             whether there was a draft.
 *
 * A di_sampler_t is the scratch of one thread.
 */

#ifndef DI_SAMPLER_H
#define DI_SAMPLER_H

#include <stddef.h>
#include <stdint.h>

#include "../tokenizer/di_err.h"
#include "ipc/di_ipc.h"

/* Below this a temperature means greedy: the division would overflow. */
#define DI_SAMPLER_TEMPERATURE_MIN 1e-5f

typedef struct di_sampler_s di_sampler_t;

/* What a draft was drawn from. */
#define DI_SAMPLER_FROM_MAX 1024

typedef struct {
    uint32_t n;
    int32_t  ids[DI_SAMPLER_FROM_MAX];   /* [n] ascending                   */
    float    p[DI_SAMPLER_FROM_MAX];     /* [n] their probabilities         */
} di_sampler_from_t;

/* What a row is sampled for; all is borrowed. */
typedef struct {
    const di_gen_params_t *params;
    const di_logit_bias_t *bias;      /* [n_bias] ids below vocab           */
    const int32_t         *tokens;    /* [n_tokens] prompt, then generated  */
    const int32_t         *end_ids;   /* [n_end_ids] below vocab            */
    const int32_t         *stop_ids;  /* [n_stop_ids] below vocab           */
    uint32_t               n_bias;
    uint32_t               n_prompt;  /* of the tokens                      */
    uint32_t               n_tokens;  /* also the position sampled for      */
    uint32_t               n_end_ids;
    uint32_t               n_stop_ids;
    uint64_t               seed;      /* of this choice                     */
    const uint64_t        *mask;      /* ids that may be drawn: bit id % 64 of
                                       * word id / 64, ids past its end may
                                       * not; it then knows about min_tokens;
                                       * NULL: no mask                      */
    size_t                 n_mask_words;
    int32_t                draft;     /* to stay or be replaced             */
    const di_sampler_from_t *from;    /* what it was drawn from; NULL: there
                                       * is no such draft                   */
} di_sample_in_t;

typedef struct {
    int32_t          token;
    float            logprob;         /* of the token, if it was asked for  */
    uint32_t         n_top;
    di_top_logprob_t top[DI_GEN_TOP_LOGPROBS_MAX];  /* best first           */
} di_sample_out_t;

/* Scratch for rows of `vocab` logits (28 bytes each).  DI_EINVAL,
 * DI_ENOMEM. */
int di_sampler_open(uint32_t vocab, di_sampler_t **sampler, di_err_t *err);
void di_sampler_close(di_sampler_t *sampler);

/* Sample one row.
 *   logits [vocab] borrowed, not changed
 * Log-probabilities are filled in if params->flags has DI_GEN_LOGPROBS,
 * params->top_logprobs of them.  DI_OK, or DI_EFORMAT: the row has a NaN, no
 * finite maximum, or nothing that may be chosen. */
int di_sampler_row(di_sampler_t *sampler, const float *logits,
                   const di_sample_in_t *in, di_sample_out_t *out);

/* Draw a draft from a drafter's logits, as di_sampler_row() would.
 *   from   out: what it was drawn from: the likeliest ids, at most
 *          DI_SAMPLER_FROM_MAX; NULL: draw it coupled.  Not used if greedy
 * Same returns. */
int di_sampler_draft(di_sampler_t *sampler, const float *logits,
                     const di_sample_in_t *in, di_sampler_from_t *from,
                     int32_t *token);

/* Log-probability of `token` (-1: none wanted, 0 is reported) and the n_top
 * best of a row.  DI_OK or DI_EFORMAT as above. */
int di_sampler_logprobs(di_sampler_t *sampler, const float *logits,
                        int32_t token, uint32_t n_top, di_sample_out_t *out);

/* Philox4x32-10 as cuRAND numbers it: 32-bit words i = 0, 1, ... of the
 * stream `subsequence` of `seed`.  Source: Salmon et al., SC 2011. */
uint32_t di_sampler_random(uint64_t seed, uint64_t subsequence, uint32_t i);

/* Draw an index by probabilities p [n] that sum to about 1, in integers; -1
 * if all are 0.  The stream is position * 3; n at most the sampler's
 * vocabulary. */
int32_t di_sampler_draw(di_sampler_t *sampler, const float *p, uint32_t n,
                        uint64_t seed, uint32_t position);

#endif
