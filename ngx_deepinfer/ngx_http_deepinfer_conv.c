
/*
 * ngx_http_deepinfer_conv.c - the APIs whose requests are conversations: Chat
 * Completions, Responses, Messages.
 *
 * The codec has one reader and one writer for all of them; they differ here
 * in names, and in what a response leaves behind: if it is to be stored, its
 * record is made when its last event is.
 */


#include "ngx_http_deepinfer.h"

#include "tokenizer/api/di_out.h"
#include "tokenizer/api/di_stored.h"


static int ngx_http_deepinfer_conv_encode(ngx_http_deepinfer_prepare_t *p);
static int ngx_http_deepinfer_response_parse(ngx_http_deepinfer_prepare_t *p,
    const char *body);
static int ngx_http_deepinfer_conv_open(ngx_http_deepinfer_ctx_t *ctx,
    const char *id);
static int ngx_http_deepinfer_conv_logprob(ngx_http_deepinfer_sub_t *sub,
    const di_event_t *ev, const di_top_logprob_t *top);
static int ngx_http_deepinfer_conv_tokens(ngx_http_deepinfer_sub_t *sub,
    const di_event_t *ev, bool *stopped);
static int ngx_http_deepinfer_conv_finish(ngx_http_deepinfer_sub_t *sub,
    uint32_t choice, ngx_uint_t length, bool *done);
static int ngx_http_deepinfer_conv_end(ngx_http_deepinfer_ctx_t *ctx);
static int ngx_http_deepinfer_response_end(ngx_http_deepinfer_ctx_t *ctx);
static int ngx_http_deepinfer_response_store(ngx_http_deepinfer_ctx_t *ctx,
    di_str_t body);
static uint32_t ngx_http_deepinfer_conv_completion_tokens(const void *out);
static const char *ngx_http_deepinfer_conv_finish_reason(const void *out);
static uint64_t ngx_http_deepinfer_conv_sequence(const void *out);
static void ngx_http_deepinfer_conv_close(void *out);


#define NGX_HTTP_DEEPINFER_CONV_WRITER                                        \
    .open = ngx_http_deepinfer_conv_open,                                     \
    .logprob = ngx_http_deepinfer_conv_logprob,                               \
    .tokens = ngx_http_deepinfer_conv_tokens,                                 \
    .finish = ngx_http_deepinfer_conv_finish,                                 \
    .completion_tokens = ngx_http_deepinfer_conv_completion_tokens,           \
    .finish_reason = ngx_http_deepinfer_conv_finish_reason,                   \
    .sequence = ngx_http_deepinfer_conv_sequence,                             \
    .close = ngx_http_deepinfer_conv_close


const ngx_http_deepinfer_gen_t  ngx_http_deepinfer_chat = {
    .api = DI_API_CHAT,
    .id = "chatcmpl-",
    .prompt = "messages",
    .parse = ngx_http_deepinfer_prepare_parse,
    .encode = ngx_http_deepinfer_conv_encode,
    .end = ngx_http_deepinfer_conv_end,
    NGX_HTTP_DEEPINFER_CONV_WRITER
};


const ngx_http_deepinfer_gen_t  ngx_http_deepinfer_responses = {
    .api = DI_API_RESPONSES,
    .id = "resp_",
    .prompt = "input",
    .parse = ngx_http_deepinfer_response_parse,
    .encode = ngx_http_deepinfer_conv_encode,
    .end = ngx_http_deepinfer_response_end,
    NGX_HTTP_DEEPINFER_CONV_WRITER
};


const ngx_http_deepinfer_gen_t  ngx_http_deepinfer_messages = {
    .api = DI_API_MESSAGES,
    .id = "msg_",
    .prompt = "messages",
    .parse = ngx_http_deepinfer_prepare_parse,
    .encode = ngx_http_deepinfer_conv_encode,
    .end = ngx_http_deepinfer_conv_end,
    NGX_HTTP_DEEPINFER_CONV_WRITER
};


static int
ngx_http_deepinfer_conv_encode(ngx_http_deepinfer_prepare_t *p)
{
    return ngx_http_deepinfer_prepare_conv(p, di_req_conv(p->req));
}


/*
 * A response that goes on from another one cannot be read without it.  If it
 * is to be stored, its items are completed now, while the body is there.
 */

static int
ngx_http_deepinfer_response_parse(ngx_http_deepinfer_prepare_t *p,
    const char *body)
{
    int           rc;
    di_stored_t   earlier;

    if (p->record.len) {
        rc = di_stored_read(p->record.data, p->record.len, &earlier);

        if (rc != DI_OK || di_stored_history(&earlier, &p->history) != DI_OK) {
            di_api_err_set(&p->err, 500, "server_error", "", "",
                           "The stored response is damaged.");
            return DI_EFORMAT;
        }
    }

    rc = ngx_http_deepinfer_prepare_parse(p, body);

    if (rc != DI_OK || !di_req_store(p->req)) {
        return rc;
    }

    p->store = 1;

    if (di_stored_input(body, p->len, p->record.len ? &earlier : NULL,
                        p->id, &p->items)
        != DI_OK)
    {
        return ngx_http_deepinfer_prepare_no_memory(p);
    }

    return DI_OK;
}


static int
ngx_http_deepinfer_conv_open(ngx_http_deepinfer_ctx_t *ctx, const char *id)
{
    int             rc;
    di_out_t       *out;
    di_out_conf_t   conf;

    ngx_memzero(&conf, sizeof(di_out_conf_t));

    conf.req = ctx->prepare.req;
    conf.vocab = ctx->pool->vocab;
    conf.tok = ctx->pool->tok;
    conf.spell = di_spell_of(ctx->prepare.spelling->dialect);
    conf.id = id;
    conf.model.data = (char *) ctx->pool->name.data;
    conf.model.len = ctx->pool->name.len;
    conf.created = ngx_time();

    rc = di_out_open(&conf, &out);

    if (rc != DI_OK) {
        return rc;
    }

    ctx->out = out;

    return di_out_start(out, ctx->subs[0].gen.n_prompt,
                        ctx->subs[0].cached_tokens, NULL, &ctx->pending);
}


static int
ngx_http_deepinfer_conv_logprob(ngx_http_deepinfer_sub_t *sub,
    const di_event_t *ev, const di_top_logprob_t *top)
{
    ngx_uint_t    i, n;
    di_out_top_t  list[DI_GEN_TOP_LOGPROBS_MAX];

    n = ngx_min(ev->n_top, DI_GEN_TOP_LOGPROBS_MAX);

    for (i = 0; i < n; i++) {
        list[i].id = top[i].id;
        list[i].logprob = top[i].logprob;
    }

    return di_out_logprob(sub->ctx->out, ev->choice, ev->u.logprob.token,
                          ev->u.logprob.logprob, list, n);
}


static int
ngx_http_deepinfer_conv_tokens(ngx_http_deepinfer_sub_t *sub,
    const di_event_t *ev, bool *stopped)
{
    return di_out_tokens(sub->ctx->out, ev->choice, ev->u.tokens,
                         ngx_min(ev->n_tokens, DI_EV_TOKENS_MAX),
                         &sub->ctx->pending, stopped, NULL);
}


static int
ngx_http_deepinfer_conv_finish(ngx_http_deepinfer_sub_t *sub, uint32_t choice,
    ngx_uint_t length, bool *done)
{
    return di_out_finish(sub->ctx->out, choice,
                         length ? DI_END_LENGTH : DI_END_STOP,
                         &sub->ctx->pending, done);
}


static int
ngx_http_deepinfer_conv_end(ngx_http_deepinfer_ctx_t *ctx)
{
    return ctx->stream ? di_out_end(ctx->out, &ctx->pending)
                       : di_out_body(ctx->out, &ctx->pending);
}


static int
ngx_http_deepinfer_response_end(ngx_http_deepinfer_ctx_t *ctx)
{
    int         rc;
    di_str_t    text;
    di_sbuf_t   body;

    rc = ngx_http_deepinfer_conv_end(ctx);

    if (rc != DI_OK || !ctx->prepare.store) {
        return rc;
    }

    ngx_memzero(&body, sizeof(di_sbuf_t));

    if (ctx->stream) {
        rc = di_out_body(ctx->out, &body);
        text.data = body.data;
        text.len = body.len;

    } else {
        text.data = ctx->pending.data;
        text.len = ctx->pending.len;
    }

    if (rc == DI_OK) {
        rc = ngx_http_deepinfer_response_store(ctx, text);
    }

    di_sbuf_free(&body);

    return rc;
}


static int
ngx_http_deepinfer_response_store(ngx_http_deepinfer_ctx_t *ctx, di_str_t body)
{
    int         rc;
    u_char      buf[NGX_HTTP_DEEPINFER_ID_MAX];
    di_str_t    input;
    di_sbuf_t   record;
    ngx_str_t   id;

    ngx_memzero(&record, sizeof(di_sbuf_t));

    input.data = ctx->prepare.items.data;
    input.len = ctx->prepare.items.len;

    rc = di_stored_write(&record, body, input);

    if (rc == DI_OK) {
        id.data = buf;
        id.len = ngx_snprintf(buf, sizeof(buf), "%s%s", ctx->prepare.api->id,
                              ctx->prepare.id)
                 - buf;

        ngx_http_deepinfer_store_put(ctx->pool->main, &id, &record);
    }

    di_sbuf_free(&record);

    return rc;
}


static uint32_t
ngx_http_deepinfer_conv_completion_tokens(const void *out)
{
    return di_out_completion_tokens(out);
}


static const char *
ngx_http_deepinfer_conv_finish_reason(const void *out)
{
    return di_out_finish_reason(out);
}


static uint64_t
ngx_http_deepinfer_conv_sequence(const void *out)
{
    return di_out_sequence(out);
}


static void
ngx_http_deepinfer_conv_close(void *out)
{
    di_out_close(out);
}
