
/*
 * ngx_http_deepinfer_dispatch.c - which engine takes a submission.
 *
 * The least loaded connected engine does: what its status page says of all
 * workers, and this worker's requests that the page can't show yet.  One that
 * seems to hang is taken only if there is no other: its page would show the
 * same low load for ever.  A
 * submission waits in pool->waiting, in order, only while an engine's
 * handshake is under way (a worker that has just started) or its ring is full.
 * If the pool's queue is full it is held until another one of its request
 * ends; in all other cases it is the engine's at once, or an error.
 */


#include "ngx_http_deepinfer.h"


#define NGX_HTTP_DEEPINFER_RETRY_AFTER      1   /* seconds */
#define NGX_HTTP_DEEPINFER_RETRY_AFTER_MAX  60

#define NGX_HTTP_DEEPINFER_SILENCE          2000 /* ms, then it seems to hang */


/* What a look at all engines of a pool found. */

typedef struct {
    ngx_http_deepinfer_engine_t   *engine;      /* the best, or NULL */
    uint64_t                       waiting;     /* requests queued */
    uint64_t                       tokens;      /* of prompts, not computed */
    uint64_t                       rate;        /* tokens per second */
    ngx_uint_t                     connecting;  /* engines in handshake */
} ngx_http_deepinfer_choice_t;


static ngx_int_t ngx_http_deepinfer_dispatch_one(
    ngx_http_deepinfer_sub_t *sub);
static ngx_int_t ngx_http_deepinfer_pick(ngx_http_deepinfer_sub_t *sub,
    ngx_http_deepinfer_engine_t **engine);
static ngx_int_t ngx_http_deepinfer_submit(ngx_http_deepinfer_sub_t *sub,
    ngx_http_deepinfer_engine_t *engine);
static void ngx_http_deepinfer_choose(ngx_http_deepinfer_ctx_t *ctx,
    ngx_http_deepinfer_choice_t *choice);
static ngx_uint_t ngx_http_deepinfer_queue_delay(
    ngx_http_deepinfer_choice_t *choice);
static ngx_int_t ngx_http_deepinfer_fit(ngx_http_deepinfer_sub_t *sub,
    uint32_t max_model_len);
static void ngx_http_deepinfer_drain_handler(ngx_event_t *ev);
static void ngx_http_deepinfer_drain_queue(ngx_queue_t *queue);


/* Give a submission to an engine, or its request an error. */

void
ngx_http_deepinfer_dispatch(ngx_http_deepinfer_sub_t *sub)
{
    ngx_http_deepinfer_pool_t  *pool;

    pool = sub->ctx->pool;

    if (ngx_queue_empty(&pool->waiting)
        && ngx_http_deepinfer_dispatch_one(sub) != NGX_AGAIN)
    {
        return;
    }

    sub->queued = 1;
    ngx_queue_insert_tail(&pool->waiting, &sub->queue);
}


void
ngx_http_deepinfer_dispatch_waiting(ngx_http_deepinfer_pool_t *pool)
{
    ngx_int_t                  rc;
    ngx_queue_t               *q;
    ngx_connection_t          *c;
    ngx_http_deepinfer_sub_t  *sub;

    while (!ngx_queue_empty(&pool->waiting)) {
        q = ngx_queue_head(&pool->waiting);
        sub = ngx_queue_data(q, ngx_http_deepinfer_sub_t, queue);
        c = sub->ctx->request->connection;

        ngx_queue_remove(q);
        sub->queued = 0;

        ngx_http_set_log_request(c->log, sub->ctx->request);

        rc = ngx_http_deepinfer_dispatch_one(sub);

        if (rc == NGX_AGAIN) {
            sub->queued = 1;
            ngx_queue_insert_head(&pool->waiting, q);
            return;
        }

        if (rc == NGX_ERROR) {
            ngx_http_deepinfer_run(sub->ctx);
        }

        ngx_http_run_posted_requests(c);
    }
}


/* NGX_OK: submitted or held; NGX_AGAIN: not now; NGX_ERROR: the request has an
 * error. */

static ngx_int_t
ngx_http_deepinfer_dispatch_one(ngx_http_deepinfer_sub_t *sub)
{
    ngx_int_t                     rc;
    ngx_http_deepinfer_ctx_t     *ctx;
    ngx_http_deepinfer_engine_t  *engine;

    ctx = sub->ctx;

    rc = ngx_http_deepinfer_pick(sub, &engine);

    if (rc == NGX_OK) {
        rc = ngx_http_deepinfer_submit(sub, engine);

    } else if (rc == NGX_DONE) {
        sub->held = 1;
        return NGX_OK;
    }

    if (rc == NGX_ERROR && ctx->prepare.err.status == 503
        && ctx->retry_after == 0)
    {
        ctx->retry_after = NGX_HTTP_DEEPINFER_RETRY_AFTER;
    }

    return rc;
}


/* NGX_OK: an engine; NGX_DONE: the submission is held until another one of
 * its request ends; NGX_AGAIN and NGX_ERROR as above. */

static ngx_int_t
ngx_http_deepinfer_pick(ngx_http_deepinfer_sub_t *sub,
    ngx_http_deepinfer_engine_t **engine)
{
    di_api_err_t                 *e;
    ngx_http_deepinfer_ctx_t     *ctx;
    ngx_http_deepinfer_choice_t   choice;

    ctx = sub->ctx;
    e = &ctx->prepare.err;

    if (ctx->pool->main->drained) {
        di_api_err_set(e, 503, "server_error", "shutting_down", "",
                       "The server is shutting down.");
        return NGX_ERROR;
    }

    ngx_http_deepinfer_choose(ctx, &choice);

    if (choice.engine == NULL) {

        if (choice.connecting) {
            return NGX_AGAIN;
        }

        di_api_err_set(e, 503, "server_error", "engine_unavailable", "",
                       "No engine of this model is available.");
        return NGX_ERROR;
    }

    if (choice.waiting >= (uint64_t) ctx->pool->queue) {

        if (ngx_http_deepinfer_others(sub)) {
            return NGX_DONE;
        }

        ctx->retry_after = ngx_http_deepinfer_queue_delay(&choice);
        di_api_err_set(e, 429, "rate_limit_error", "queue_full", "",
                       "The model's queue is full: %llu requests wait.",
                       (unsigned long long) choice.waiting);
        return NGX_ERROR;
    }

    *engine = choice.engine;

    return NGX_OK;
}


static ngx_int_t
ngx_http_deepinfer_submit(ngx_http_deepinfer_sub_t *sub,
    ngx_http_deepinfer_engine_t *engine)
{
    di_err_t       err;
    di_api_err_t  *e;

    if (ngx_http_deepinfer_fit(sub,
                       di_ipc_client_welcome(engine->client)->max_model_len)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    e = &sub->ctx->prepare.err;
    ngx_memzero(&err, sizeof(di_err_t));

    switch (ngx_http_deepinfer_engine_submit(engine, sub, &err)) {

    case DI_OK:
        return NGX_OK;

    case DI_EAGAIN:
        return NGX_AGAIN;

    case DI_EINVAL:
        di_api_err_set(e, 400, "invalid_request_error", "", "", "%s",
                       err.text);
        return NGX_ERROR;

    case DI_ELIMIT:
        di_api_err_set(e, 400, "invalid_request_error",
                       "context_length_exceeded",
                       sub->ctx->prepare.api->prompt,
                       "A prompt of %u tokens is too long.",
                       sub->gen.n_prompt);
        return NGX_ERROR;

    default:
        di_api_err_set(e, 500, "server_error", "", "",
                       "The request could not be given to an engine.");
        return NGX_ERROR;
    }
}


static void
ngx_http_deepinfer_choose(ngx_http_deepinfer_ctx_t *ctx,
    ngx_http_deepinfer_choice_t *choice)
{
    uint64_t                      load, best;
    ngx_uint_t                    i, n;
    di_ipc_status_t               status;
    ngx_http_deepinfer_pool_t    *pool;
    ngx_http_deepinfer_engine_t  *engine, *engines;

    pool = ctx->pool;
    engines = pool->engines.elts;
    n = pool->engines.nelts;
    best = 0;

    ngx_memzero(choice, sizeof(ngx_http_deepinfer_choice_t));

    pool->turn++;

    for (i = 0; i < n; i++) {
        engine = &engines[(pool->turn + i) % n];

        if (!engine->ready) {
            choice->connecting += (engine->client != NULL);
            continue;
        }

        if (!ngx_http_deepinfer_engine_status(engine, &status)) {
            ngx_memzero(&status, sizeof(di_ipc_status_t));
        }

        if (status.draining || (engine == ctx->avoid && n > 1)) {
            continue;
        }

        choice->waiting += ngx_max(status.waiting, engine->unstarted);
        choice->tokens += status.waiting_tokens;
        choice->rate += status.prefill_rate;

        load = (uint64_t) status.running + status.waiting + engine->unstarted;

        if (ngx_http_deepinfer_engine_silence(engine)
            > NGX_HTTP_DEEPINFER_SILENCE)
        {
            load |= 1ULL << 63;
        }

        if (choice->engine == NULL || load < best) {
            choice->engine = engine;
            best = load;
        }
    }
}


/* How long the prompts that wait will keep the engines busy, in seconds. */

static ngx_uint_t
ngx_http_deepinfer_queue_delay(ngx_http_deepinfer_choice_t *choice)
{
    uint64_t  delay;

    if (choice->rate == 0) {
        return NGX_HTTP_DEEPINFER_RETRY_AFTER;
    }

    delay = choice->tokens / choice->rate;

    delay = ngx_max(delay, NGX_HTTP_DEEPINFER_RETRY_AFTER);
    return ngx_min(delay, NGX_HTTP_DEEPINFER_RETRY_AFTER_MAX);
}


/* How many tokens the answer may have, by the rules of the API. */

static ngx_int_t
ngx_http_deepinfer_fit(ngx_http_deepinfer_sub_t *sub, uint32_t max_model_len)
{
    di_gen_params_t           *params;
    ngx_http_deepinfer_ctx_t  *ctx;

    ctx = sub->ctx;
    params = &sub->gen.params;

    if (di_req_max_tokens(ctx->prepare.req, sub->gen.n_prompt, max_model_len,
                          &params->max_tokens, &ctx->prepare.err)
        != DI_OK)
    {
        return NGX_ERROR;
    }

    params->min_tokens = ngx_min(ctx->prepare.params->min_tokens,
                                 params->max_tokens);
    return NGX_OK;
}


/*
 * A graceful exit has begun.  If worker_shutdown_timeout limits it, the
 * streams that are left then are ended with an error a little before nginx
 * cuts them off.
 */

void
ngx_http_deepinfer_exiting(ngx_http_deepinfer_main_conf_t *mcf)
{
    ngx_msec_t        timeout;
    ngx_core_conf_t  *ccf;

    if (mcf->exiting) {
        return;
    }

    mcf->exiting = 1;

    ccf = (ngx_core_conf_t *) ngx_get_conf(ngx_cycle->conf_ctx,
                                           ngx_core_module);

    timeout = ccf->shutdown_timeout;

    if (timeout == 0) {
        return;
    }

    timeout -= ngx_min(timeout / 4, 500);

    mcf->drain.handler = ngx_http_deepinfer_drain_handler;
    mcf->drain.data = mcf;
    mcf->drain.log = ngx_cycle->log;
    mcf->drain.cancelable = 1;

    ngx_add_timer(&mcf->drain, timeout);
}


static void
ngx_http_deepinfer_drain_handler(ngx_event_t *ev)
{
    ngx_uint_t                        i, j;
    ngx_http_deepinfer_pool_t       **pools;
    ngx_http_deepinfer_engine_t      *engines;
    ngx_http_deepinfer_main_conf_t   *mcf;

    mcf = ev->data;
    mcf->drained = 1;

    pools = mcf->pools.elts;

    for (i = 0; i < mcf->pools.nelts; i++) {

        ngx_http_deepinfer_dispatch_waiting(pools[i]);

        engines = pools[i]->engines.elts;

        for (j = 0; j < pools[i]->engines.nelts; j++) {
            ngx_http_deepinfer_drain_queue(&engines[j].subs);
        }
    }
}


static void
ngx_http_deepinfer_drain_queue(ngx_queue_t *queue)
{
    ngx_connection_t          *c;
    ngx_http_deepinfer_ctx_t  *ctx;
    ngx_http_deepinfer_sub_t  *sub;

    while (!ngx_queue_empty(queue)) {
        sub = ngx_queue_data(ngx_queue_head(queue), ngx_http_deepinfer_sub_t,
                             queue);
        ctx = sub->ctx;
        c = ctx->request->connection;

        ngx_http_set_log_request(c->log, ctx->request);

        ngx_http_deepinfer_release(ctx);

        if (!ctx->done) {
            ctx->retry_after = NGX_HTTP_DEEPINFER_RETRY_AFTER;
            di_api_err_set(&ctx->prepare.err, 503, "server_error",
                           "shutting_down", "",
                           "The server is shutting down.");
            ngx_http_deepinfer_run(ctx);
        }

        ngx_http_run_posted_requests(c);
    }
}
