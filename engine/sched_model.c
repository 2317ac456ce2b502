/*
 * sched_model.c - a real model under the scheduler.
 *
 * The scheduler's table of functions takes an untyped first argument; these
 * give di_model.h's their type back.
 */

#include "di_sched.h"


static int
step(void *ctx, const di_model_seq_t *seqs, size_t n_seqs)
{
    return di_model_step(ctx, seqs, n_seqs);
}


static void
host_call(void *ctx, void (*fn)(void *arg, size_t part), void *arg,
          size_t n_parts)
{
    di_model_host_call(ctx, fn, arg, n_parts);
}


static int
wait_step(void *ctx, const float **logits)
{
    return di_model_wait(ctx, logits);
}


static const float *
logits_of(void *ctx)
{
    return di_model_logits(ctx);
}


static void
kv_copy(void *ctx, uint32_t dst, uint32_t src, uint32_t n_tokens)
{
    di_model_kv_copy(ctx, dst, src, n_tokens);
}


static void
state_copy(void *ctx, uint32_t dst, uint32_t src)
{
    di_model_state_copy(ctx, dst, src);
}


static int
draft(void *ctx, const di_model_draft_t *seqs, size_t n_seqs,
      di_model_pick_t pick, void *arg, int32_t *drafts, float *confidence)
{
    return di_model_draft(ctx, seqs, n_seqs, pick, arg, drafts, confidence);
}


int
di_sched_open(di_model_t *model, const di_sched_conf_t *conf,
              di_sched_t **sched, di_err_t *err)
{
    const di_model_info_t *info = di_model_info(model);
    di_sched_model_t       m = {
        .ctx = model, .vocab = info->vocab,
        .max_model_len = info->max_model_len, .kv_blocks = info->kv_blocks,
        .block_tokens = info->block_tokens, .n_states = info->n_states,
        .window = info->window, .backtrack = info->backtrack,
        .max_logits = info->max_logits, .step = step,
        .host_call = host_call, .wait = wait_step, .logits = logits_of,
        .kv_copy = kv_copy, .state_copy = state_copy,
        .n_drafts = info->n_drafts, .draft = draft,
    };

    return di_sched_open_on(&m, conf, sched, err);
}
