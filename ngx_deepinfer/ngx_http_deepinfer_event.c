
/*
 * ngx_http_deepinfer_event.c - what an engine's event does to a request.
 *
 * Events are applied in the order in which they come, and none of them ends
 * the request: they add to the output, or set what
 * ngx_http_deepinfer_run() acts upon when all events were taken.  An
 * event is foreign data, so whatever it holds is checked or bounded here.
 */


#include "ngx_http_deepinfer.h"


static ngx_int_t ngx_http_deepinfer_begin(ngx_http_deepinfer_sub_t *sub);
static void ngx_http_deepinfer_logprob(ngx_http_deepinfer_sub_t *sub,
    const di_event_t *ev, const di_top_logprob_t *top);
static void ngx_http_deepinfer_tokens(ngx_http_deepinfer_sub_t *sub,
    const di_event_t *ev);
static void ngx_http_deepinfer_finish(ngx_http_deepinfer_sub_t *sub,
    const di_event_t *ev);
static void ngx_http_deepinfer_finish_choice(ngx_http_deepinfer_sub_t *sub,
    uint32_t choice, ngx_uint_t length);
static ngx_http_deepinfer_finish_e ngx_http_deepinfer_finish_of(
    const char *reason);
static void ngx_http_deepinfer_reject(ngx_http_deepinfer_sub_t *sub,
    const di_event_t *ev);


void
ngx_http_deepinfer_event(ngx_http_deepinfer_sub_t *sub,
    const di_event_t *ev, const di_top_logprob_t *top)
{
    if (sub->over || sub->ctx->done || ev->choice >= sub->gen.params.n) {
        return;
    }

    switch (ev->type) {

    case DI_EV_STARTED:
        if (!sub->started) {
            sub->started = 1;
            sub->engine->unstarted--;
            sub->cached_tokens = ev->u.started.cached_tokens;
            sub->ctx->cached_tokens += sub->cached_tokens;
        }

        break;

    case DI_EV_LOGPROB:
    case DI_EV_PROMPT_LOGPROB:
        ngx_http_deepinfer_logprob(sub, ev, top);
        break;

    case DI_EV_TOKENS:
        ngx_http_deepinfer_tokens(sub, ev);
        break;

    case DI_EV_FINISH:
        ngx_http_deepinfer_finish(sub, ev);
        break;

    case DI_EV_REJECT:
        sub->over = 1;
        ngx_http_deepinfer_reject(sub, ev);
        break;

    default:
        break;
    }
}


/*
 * Open the writer of the answer at the first event that needs it, and tell it
 * of each prompt.
 */

static ngx_int_t
ngx_http_deepinfer_begin(ngx_http_deepinfer_sub_t *sub)
{
    u_char                           id[NGX_HTTP_DEEPINFER_ID_MAX];
    ngx_http_deepinfer_ctx_t        *ctx;
    const ngx_http_deepinfer_gen_t  *api;

    if (sub->begun) {
        return NGX_OK;
    }

    sub->begun = 1;
    ctx = sub->ctx;
    api = ctx->prepare.api;

    if (ctx->out == NULL) {
        *ngx_snprintf(id, sizeof(id) - 1, "%s%s", api->id, ctx->prepare.id)
            = '\0';

        if (api->open(ctx, (char *) id) != DI_OK) {
            goto failed;
        }
    }

    if (api->start && api->start(sub) != DI_OK) {
        goto failed;
    }

    return NGX_OK;

failed:

    ngx_http_deepinfer_fail_memory(ctx);
    return NGX_ERROR;
}


static void
ngx_http_deepinfer_logprob(ngx_http_deepinfer_sub_t *sub, const di_event_t *ev,
    const di_top_logprob_t *top)
{
    int                            (*logprob)(ngx_http_deepinfer_sub_t *sub,
                                         const di_event_t *ev,
                                         const di_top_logprob_t *top);
    const ngx_http_deepinfer_gen_t  *api;

    if (ngx_http_deepinfer_begin(sub) != NGX_OK) {
        return;
    }

    api = sub->ctx->prepare.api;
    logprob = (ev->type == DI_EV_LOGPROB) ? api->logprob
                                          : api->prompt_logprob;

    if (logprob && logprob(sub, ev, top) != DI_OK) {
        ngx_http_deepinfer_fail_memory(sub->ctx);
    }
}


static void
ngx_http_deepinfer_tokens(ngx_http_deepinfer_sub_t *sub, const di_event_t *ev)
{
    bool                       stopped;
    ngx_http_deepinfer_ctx_t  *ctx;

    if (ngx_http_deepinfer_begin(sub) != NGX_OK) {
        return;
    }

    ctx = sub->ctx;
    ctx->last = sub->engine->now;

    if (ctx->first == 0) {
        ctx->first = ctx->last;
    }

    stopped = false;

    if (ctx->prepare.api->tokens(sub, ev, &stopped) != DI_OK) {
        ngx_http_deepinfer_fail_memory(ctx);
        return;
    }

    if (stopped) {

        /* a stop string ends the choice here, and in the engine soon */

        ngx_http_deepinfer_engine_control(sub->engine, sub->id,
                                          ngx_http_deepinfer_op_cancel_choice,
                                          ev->choice);

        ngx_http_deepinfer_finish_choice(sub, ev->choice, 0);
    }
}


static void
ngx_http_deepinfer_finish(ngx_http_deepinfer_sub_t *sub, const di_event_t *ev)
{
    if (sub->finished[ev->choice / 64] & (1ULL << (ev->choice % 64))) {

        /* this is the echo of our cancel */

        return;
    }

    switch (ev->u.finish.reason) {

    case DI_FINISH_STOP:
    case DI_FINISH_STOP_ID:
        ngx_http_deepinfer_finish_choice(sub, ev->choice, 0);
        break;

    case DI_FINISH_LENGTH:
        ngx_http_deepinfer_finish_choice(sub, ev->choice, 1);
        break;

    case DI_FINISH_CANCEL:
        ngx_http_deepinfer_fail(sub->ctx, 503, "engine_unavailable",
                                "The engine gave the request up.");
        break;

    default:
        ngx_http_deepinfer_fail(sub->ctx, 500, "engine_error",
                                "The engine failed on this request.");
        break;
    }
}


static void
ngx_http_deepinfer_finish_choice(ngx_http_deepinfer_sub_t *sub,
    uint32_t choice, ngx_uint_t length)
{
    int                              rc;
    bool                             done;
    ngx_http_deepinfer_ctx_t        *ctx;
    const ngx_http_deepinfer_gen_t  *api;

    if (ngx_http_deepinfer_begin(sub) != NGX_OK) {
        return;
    }

    ctx = sub->ctx;
    api = ctx->prepare.api;
    sub->finished[choice / 64] |= 1ULL << (choice % 64);

    done = false;

    rc = api->finish(sub, choice, length, &done);

    if (rc == DI_OK && choice == 0 && sub->part == 0) {
        ctx->finish = ngx_http_deepinfer_finish_of(
                                              api->finish_reason(ctx->out));
    }

    if (rc == DI_OK && done) {
        sub->over = 1;

        if (--ctx->n_open) {
            ctx->next = 1;
            return;
        }

        ctx->done = 1;
        rc = api->end(ctx);
    }

    if (rc != DI_OK) {
        ctx->done = 0;
        ngx_http_deepinfer_fail_memory(ctx);
    }
}


static ngx_http_deepinfer_finish_e
ngx_http_deepinfer_finish_of(const char *reason)
{
    if (ngx_strcmp(reason, "length") == 0) {
        return ngx_http_deepinfer_finish_length;
    }

    if (ngx_strcmp(reason, "tool_calls") == 0) {
        return ngx_http_deepinfer_finish_tool_calls;
    }

    return ngx_http_deepinfer_finish_stop;
}


static void
ngx_http_deepinfer_reject(ngx_http_deepinfer_sub_t *sub, const di_event_t *ev)
{
    char                       text[sizeof(ev->u.reject.text) + 1];
    uint32_t                   a, b;
    di_api_err_t              *err;
    ngx_http_deepinfer_ctx_t  *ctx;

    ctx = sub->ctx;
    err = &ctx->prepare.err;
    a = ev->u.reject.a;
    b = ev->u.reject.b;

    ngx_memcpy(text, ev->u.reject.text, sizeof(ev->u.reject.text));
    text[sizeof(ev->u.reject.text)] = '\0';

    switch (ev->u.reject.reason) {

    case DI_REJECT_INVALID:
        di_api_err_set(err, 400, "invalid_request_error", "", text,
                       "The engine refused this value of %s.", text);
        break;

    case DI_REJECT_TOO_LONG:
        di_api_err_set(err, 400, "invalid_request_error",
                       "context_length_exceeded",
                       ctx->prepare.api->prompt,
                       "This model's maximum context length is %u tokens. "
                       "The prompt has %u tokens.", b, a);
        break;

    case DI_REJECT_KV:
        di_api_err_set(err, 400, "invalid_request_error",
                       "context_length_exceeded",
                       ctx->prepare.api->prompt,
                       "The request needs %u blocks of KV memory, and the "
                       "engine has %u.", a, b);
        break;

    case DI_REJECT_QUEUE_FULL:
        if (ngx_http_deepinfer_others(sub)) {
            sub->held = 1;
            break;
        }

        ngx_http_deepinfer_move(ctx, sub->engine);
        ctx->retry_after = 1;
        di_api_err_set(err, 429, "rate_limit_error", "queue_full", "",
                       "The engine's queue is full: %u of %u requests are "
                       "waiting.", a, b);
        break;

    case DI_REJECT_DRAINING:
        ngx_http_deepinfer_move(ctx, sub->engine);
        ctx->retry_after = 1;
        di_api_err_set(err, 503, "server_error", "engine_unavailable", "",
                       "The engine is shutting down.");
        break;

    default:
        di_api_err_set(err, 500, "server_error", "engine_error", "",
                       "The engine refused the request: %s.", text);
        break;
    }
}


/*
 * Let another engine than this one take the request, if nothing of an answer
 * was seen by the client and there is such an engine.  Otherwise its error
 * stands.
 */

void
ngx_http_deepinfer_move(ngx_http_deepinfer_ctx_t *ctx,
    ngx_http_deepinfer_engine_t *from)
{
    ngx_uint_t                    i;
    ngx_http_deepinfer_engine_t  *engine;

    if (ctx->content || ctx->tries >= NGX_HTTP_DEEPINFER_TRIES) {
        return;
    }

    engine = ctx->pool->engines.elts;

    for (i = 0; i < ctx->pool->engines.nelts; i++) {
        if (&engine[i] != from && engine[i].client) {
            ctx->avoid = from;
            ctx->moved = 1;
            return;
        }
    }
}


void
ngx_http_deepinfer_fail(ngx_http_deepinfer_ctx_t *ctx, ngx_int_t status,
    const char *code, const char *text)
{
    di_api_err_set(&ctx->prepare.err, status, "server_error", code, "", "%s",
                   text);
}


void
ngx_http_deepinfer_fail_memory(ngx_http_deepinfer_ctx_t *ctx)
{
    ngx_http_deepinfer_fail(ctx, 500, "", "The server is out of memory.");
}
