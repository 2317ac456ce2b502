
/*
 * ngx_http_deepinfer_chat.c - Chat Completions: the codec's functions as the
 * life of a request calls them.
 */


#include "ngx_http_deepinfer.h"


static int ngx_http_deepinfer_chat_parse(ngx_http_deepinfer_prepare_t *p,
    const char *body);
static int ngx_http_deepinfer_chat_encode(ngx_http_deepinfer_prepare_t *p);
static void ngx_http_deepinfer_chat_close_req(void *req);
static int ngx_http_deepinfer_chat_open(ngx_http_deepinfer_ctx_t *ctx,
    const char *id);
static int ngx_http_deepinfer_chat_logprob(ngx_http_deepinfer_ctx_t *ctx,
    const di_event_t *ev, const di_top_logprob_t *top);
static int ngx_http_deepinfer_chat_tokens(ngx_http_deepinfer_ctx_t *ctx,
    const di_event_t *ev, bool *stopped);
static int ngx_http_deepinfer_chat_finish(ngx_http_deepinfer_ctx_t *ctx,
    uint32_t choice, di_chat_finish_t reason, bool *done);
static int ngx_http_deepinfer_chat_end(ngx_http_deepinfer_ctx_t *ctx);
static uint32_t ngx_http_deepinfer_chat_completion_tokens(const void *out);
static void ngx_http_deepinfer_chat_close_out(void *out);


const ngx_http_deepinfer_gen_t  ngx_http_deepinfer_chat = {
    .id = "chatcmpl-",
    .prompt = "messages",
    .parse = ngx_http_deepinfer_chat_parse,
    .encode = ngx_http_deepinfer_chat_encode,
    .close_req = ngx_http_deepinfer_chat_close_req,
    .open = ngx_http_deepinfer_chat_open,
    .logprob = ngx_http_deepinfer_chat_logprob,
    .tokens = ngx_http_deepinfer_chat_tokens,
    .finish = ngx_http_deepinfer_chat_finish,
    .end = ngx_http_deepinfer_chat_end,
    .completion_tokens = ngx_http_deepinfer_chat_completion_tokens,
    .close_out = ngx_http_deepinfer_chat_close_out,
    .error_event = di_chat_write_error_event,
};


static int
ngx_http_deepinfer_chat_parse(ngx_http_deepinfer_prepare_t *p,
    const char *body)
{
    int             rc;
    di_chat_req_t  *req;

    rc = ngx_http_deepinfer_chat_read(p, body, &req);

    if (rc == DI_OK) {
        p->req = req;
        p->params = di_chat_req_params(req);
        p->model = di_chat_req_model(req);
        p->ignored = di_chat_req_ignored(req);
    }

    return rc;
}


int
ngx_http_deepinfer_chat_read(ngx_http_deepinfer_prepare_t *p,
    const char *body, di_chat_req_t **req)
{
    di_chat_limits_t  limits;

    ngx_memzero(&limits, sizeof(di_chat_limits_t));
    limits.depth = 64;
    limits.messages = 4096;
    limits.vocab = di_vocab_size(p->pool->vocab);

    return di_chat_parse(body, p->len, &limits, req, &p->err);
}


static int
ngx_http_deepinfer_chat_encode(ngx_http_deepinfer_prepare_t *p)
{
    return ngx_http_deepinfer_prepare_conv(p, di_chat_req_conv(p->req));
}


static void
ngx_http_deepinfer_chat_close_req(void *req)
{
    di_chat_req_close(req);
}


static int
ngx_http_deepinfer_chat_open(ngx_http_deepinfer_ctx_t *ctx, const char *id)
{
    int             rc;
    di_str_t        model;
    di_chat_out_t  *out;

    model.data = (char *) ctx->pool->name.data;
    model.len = ctx->pool->name.len;

    rc = di_chat_out_open(ctx->prepare.req, ctx->pool->vocab, id, model,
                          ngx_time(), &out);

    if (rc == DI_OK) {
        di_chat_out_start(out, (uint32_t) ctx->prepare.n_ids,
                          ctx->cached_tokens);
        ctx->out = out;
    }

    return rc;
}


static int
ngx_http_deepinfer_chat_logprob(ngx_http_deepinfer_ctx_t *ctx,
    const di_event_t *ev, const di_top_logprob_t *top)
{
    ngx_uint_t     i, n;
    di_chat_top_t  list[DI_GEN_TOP_LOGPROBS_MAX];

    n = ngx_min(ev->n_top, DI_GEN_TOP_LOGPROBS_MAX);

    for (i = 0; i < n; i++) {
        list[i].id = top[i].id;
        list[i].logprob = top[i].logprob;
    }

    return di_chat_out_logprob(ctx->out, ev->choice, ev->u.logprob.token,
                               ev->u.logprob.logprob, list, n);
}


static int
ngx_http_deepinfer_chat_tokens(ngx_http_deepinfer_ctx_t *ctx,
    const di_event_t *ev, bool *stopped)
{
    return di_chat_out_tokens(ctx->out, ev->choice, ev->u.tokens,
                              ngx_min(ev->n_tokens, DI_EV_TOKENS_MAX),
                              &ctx->pending, stopped);
}


static int
ngx_http_deepinfer_chat_finish(ngx_http_deepinfer_ctx_t *ctx, uint32_t choice,
    di_chat_finish_t reason, bool *done)
{
    return di_chat_out_finish(ctx->out, choice, reason, &ctx->pending, done);
}


static int
ngx_http_deepinfer_chat_end(ngx_http_deepinfer_ctx_t *ctx)
{
    return ctx->stream ? di_chat_out_end(ctx->out, &ctx->pending)
                       : di_chat_out_body(ctx->out, &ctx->pending);
}


static uint32_t
ngx_http_deepinfer_chat_completion_tokens(const void *out)
{
    return di_chat_out_completion_tokens(out);
}


static void
ngx_http_deepinfer_chat_close_out(void *out)
{
    di_chat_out_close(out);
}
