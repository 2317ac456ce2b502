
/*
 * ngx_http_deepinfer_completions.c - the older Completions API: prompts that
 * are texts or token ids, run side by side.
 */


#include "ngx_http_deepinfer.h"

#include "tokenizer/api/di_completions.h"


static int ngx_http_deepinfer_completions_encode(
    ngx_http_deepinfer_prepare_t *p);
static int ngx_http_deepinfer_completions_prompt(
    ngx_http_deepinfer_prepare_t *p, const di_prompt_t *prompt,
    ngx_http_deepinfer_part_t *part);
static int ngx_http_deepinfer_completions_open(ngx_http_deepinfer_ctx_t *ctx,
    const char *id);
static int ngx_http_deepinfer_completions_start(
    ngx_http_deepinfer_sub_t *sub);
static ngx_uint_t ngx_http_deepinfer_completions_top(const di_event_t *ev,
    const di_top_logprob_t *top, di_completions_top_t *list);
static int ngx_http_deepinfer_completions_prompt_logprob(
    ngx_http_deepinfer_sub_t *sub, const di_event_t *ev,
    const di_top_logprob_t *top);
static int ngx_http_deepinfer_completions_logprob(
    ngx_http_deepinfer_sub_t *sub, const di_event_t *ev,
    const di_top_logprob_t *top);
static int ngx_http_deepinfer_completions_tokens(
    ngx_http_deepinfer_sub_t *sub, const di_event_t *ev, bool *stopped);
static int ngx_http_deepinfer_completions_finish(
    ngx_http_deepinfer_sub_t *sub, uint32_t choice, ngx_uint_t length,
    bool *done);
static int ngx_http_deepinfer_completions_end(ngx_http_deepinfer_ctx_t *ctx);
static uint32_t ngx_http_deepinfer_completions_completion_tokens(
    const void *out);
static const char *ngx_http_deepinfer_completions_finish_reason(
    const void *out);
static void ngx_http_deepinfer_completions_close(void *out);


const ngx_http_deepinfer_gen_t  ngx_http_deepinfer_completions = {
    .api = DI_API_COMPLETIONS,
    .id = "cmpl-",
    .prompt = "prompt",
    .parse = ngx_http_deepinfer_prepare_parse,
    .encode = ngx_http_deepinfer_completions_encode,
    .open = ngx_http_deepinfer_completions_open,
    .start = ngx_http_deepinfer_completions_start,
    .prompt_logprob = ngx_http_deepinfer_completions_prompt_logprob,
    .logprob = ngx_http_deepinfer_completions_logprob,
    .tokens = ngx_http_deepinfer_completions_tokens,
    .finish = ngx_http_deepinfer_completions_finish,
    .end = ngx_http_deepinfer_completions_end,
    .completion_tokens = ngx_http_deepinfer_completions_completion_tokens,
    .finish_reason = ngx_http_deepinfer_completions_finish_reason,
    .close = ngx_http_deepinfer_completions_close
};


/* All prompts, end to end. */

static int
ngx_http_deepinfer_completions_encode(ngx_http_deepinfer_prepare_t *p)
{
    int                 rc;
    size_t              i, n;
    const di_prompt_t  *prompts;

    prompts = di_req_prompts(p->req, &n);

    p->parts = calloc(n, sizeof(ngx_http_deepinfer_part_t));
    if (p->parts == NULL) {
        return ngx_http_deepinfer_prepare_no_memory(p);
    }

    for (i = 0; i < n; i++) {
        rc = ngx_http_deepinfer_completions_prompt(p, &prompts[i],
                                                   &p->parts[i]);
        if (rc != DI_OK) {
            return rc;
        }

        p->n_parts++;
    }

    return DI_OK;
}


static int
ngx_http_deepinfer_completions_prompt(ngx_http_deepinfer_prepare_t *p,
    const di_prompt_t *prompt, ngx_http_deepinfer_part_t *part)
{
    int  rc;

    part->first = p->n_ids;

    if (prompt->ids) {
        rc = ngx_http_deepinfer_prepare_ids(p, prompt->ids, prompt->n_ids);

    } else {
        part->hidden = di_vocab_add_bos(p->pool->vocab);
        rc = ngx_http_deepinfer_prepare_text(p, prompt->text, 1);
    }

    part->n = p->n_ids - part->first;

    if (rc == DI_OK && part->n == 0) {
        di_api_err_set(&p->err, 400, "invalid_request_error", "empty_string",
                       "prompt", "Invalid 'prompt': it has no tokens.");
        return DI_EINVAL;
    }

    return rc;
}


static int
ngx_http_deepinfer_completions_open(ngx_http_deepinfer_ctx_t *ctx,
    const char *id)
{
    int                rc;
    di_str_t           model;
    di_completions_t  *out;

    model.data = (char *) ctx->pool->name.data;
    model.len = ctx->pool->name.len;

    rc = di_completions_open(ctx->prepare.req, ctx->pool->vocab, id, model,
                             ngx_time(), &out);

    if (rc != DI_OK) {
        return rc;
    }

    ctx->out = out;

    return DI_OK;
}


static int
ngx_http_deepinfer_completions_start(ngx_http_deepinfer_sub_t *sub)
{
    return di_completions_start(sub->ctx->out, sub->part,
                                sub->gen.prompt, sub->gen.n_prompt,
                                sub->ctx->prepare.parts[sub->part].hidden,
                                sub->cached_tokens);
}


static ngx_uint_t
ngx_http_deepinfer_completions_top(const di_event_t *ev,
    const di_top_logprob_t *top, di_completions_top_t *list)
{
    ngx_uint_t  i, n;

    n = ngx_min(ev->n_top, DI_GEN_TOP_LOGPROBS_MAX);

    for (i = 0; i < n; i++) {
        list[i].id = top[i].id;
        list[i].logprob = top[i].logprob;
    }

    return n;
}


static int
ngx_http_deepinfer_completions_prompt_logprob(ngx_http_deepinfer_sub_t *sub,
    const di_event_t *ev, const di_top_logprob_t *top)
{
    ngx_uint_t            n;
    di_completions_top_t  list[DI_GEN_TOP_LOGPROBS_MAX];

    n = ngx_http_deepinfer_completions_top(ev, top, list);

    return di_completions_prompt_logprob(sub->ctx->out, sub->part,
                                         ev->u.logprob.position,
                                         ev->u.logprob.logprob, list, n);
}


static int
ngx_http_deepinfer_completions_logprob(ngx_http_deepinfer_sub_t *sub,
    const di_event_t *ev, const di_top_logprob_t *top)
{
    ngx_uint_t            n;
    di_completions_top_t  list[DI_GEN_TOP_LOGPROBS_MAX];

    n = ngx_http_deepinfer_completions_top(ev, top, list);

    return di_completions_logprob(sub->ctx->out, sub->part, ev->choice,
                                  ev->u.logprob.token, ev->u.logprob.logprob,
                                  list, n);
}


static int
ngx_http_deepinfer_completions_tokens(ngx_http_deepinfer_sub_t *sub,
    const di_event_t *ev, bool *stopped)
{
    return di_completions_tokens(sub->ctx->out, sub->part, ev->choice,
                                 ev->u.tokens,
                                 ngx_min(ev->n_tokens, DI_EV_TOKENS_MAX),
                                 &sub->ctx->pending, stopped);
}


static int
ngx_http_deepinfer_completions_finish(ngx_http_deepinfer_sub_t *sub,
    uint32_t choice, ngx_uint_t length, bool *done)
{
    return di_completions_finish(sub->ctx->out, sub->part, choice,
                                 length ? DI_COMPLETIONS_LENGTH
                                        : DI_COMPLETIONS_STOP,
                                 &sub->ctx->pending, done);
}


static int
ngx_http_deepinfer_completions_end(ngx_http_deepinfer_ctx_t *ctx)
{
    return ctx->stream ? di_completions_end(ctx->out, &ctx->pending)
                       : di_completions_body(ctx->out, &ctx->pending);
}


static uint32_t
ngx_http_deepinfer_completions_completion_tokens(const void *out)
{
    return di_completions_tokens_out(out);
}


static const char *
ngx_http_deepinfer_completions_finish_reason(const void *out)
{
    return di_completions_finish_reason(out);
}


static void
ngx_http_deepinfer_completions_close(void *out)
{
    di_completions_close(out);
}
