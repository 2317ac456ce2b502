/*
 * request.c - the checks of a request that need no model.
 *
 * The same function runs in the worker, before a request is staged, and in
 * the engine, on its own copy: a worker's word is never taken for it.  Each
 * range is written so that a NaN fails it.
 */

#include "di_ipc.h"

static int
out_of_range(di_err_t *err, const char *field)
{
    return di_err_set(err, DI_EINVAL, 0, "%s", field);
}

static int
check_params(const di_gen_params_t *p, di_err_t *err)
{
    if (!(p->temperature >= 0 && p->temperature <= 100))
        return out_of_range(err, "temperature");
    if (!(p->top_p > 0 && p->top_p <= 1))
        return out_of_range(err, "top_p");
    if (!(p->min_p >= 0 && p->min_p <= 1))
        return out_of_range(err, "min_p");
    if (!(p->presence_penalty >= -2 && p->presence_penalty <= 2))
        return out_of_range(err, "presence_penalty");
    if (!(p->frequency_penalty >= -2 && p->frequency_penalty <= 2))
        return out_of_range(err, "frequency_penalty");
    if (!(p->repetition_penalty > 0 && p->repetition_penalty <= 10))
        return out_of_range(err, "repetition_penalty");
    if (p->top_k < 0)
        return out_of_range(err, "top_k");
    if (p->n < 1 || p->n > DI_GEN_N_MAX)
        return out_of_range(err, "n");
    if (p->top_logprobs > DI_GEN_TOP_LOGPROBS_MAX)
        return out_of_range(err, "top_logprobs");
    if ((p->flags & ~(uint32_t) DI_GEN_FLAGS_ALL) != 0)
        return out_of_range(err, "flags");
    if (p->reserved != 0)
        return out_of_range(err, "reserved");
    return DI_OK;
}

int
di_gen_request_check(const di_gen_request_t *req, di_err_t *err)
{
    int      rc;
    uint32_t i;

    rc = check_params(&req->params, err);
    if (rc != DI_OK)
        return rc;

    if (req->n_prompt == 0 || req->prompt == NULL)
        return out_of_range(err, "prompt");

    if ((req->params.flags & DI_GEN_PROMPT_LOGPROBS)
        && (req->params.prompt_logprobs_from < 1
            || req->params.prompt_logprobs_from > req->n_prompt))
    {
        return out_of_range(err, "prompt_logprobs_from");
    }

    if (req->n_bias > DI_GEN_BIAS_MAX
        || (req->n_bias > 0 && req->bias == NULL))
    {
        return out_of_range(err, "logit_bias");
    }

    for (i = 0; i < req->n_bias; i++) {
        if (!(req->bias[i].bias >= -100 && req->bias[i].bias <= 100)
            || req->bias[i].id < 0)
        {
            return out_of_range(err, "logit_bias");
        }
    }

    if (req->n_stop_ids > DI_GEN_STOP_IDS_MAX
        || (req->n_stop_ids > 0 && req->stop_ids == NULL))
    {
        return out_of_range(err, "stop_ids");
    }

    for (i = 0; i < req->n_stop_ids; i++) {
        if (req->stop_ids[i] < 0)
            return out_of_range(err, "stop_ids");
    }

    if (req->n_grammar > DI_IPC_GRAMMAR_MAX
        || (req->n_grammar > 0 && req->grammar == NULL))
    {
        return out_of_range(err, "grammar");
    }

    return DI_OK;
}
