
/*
 * ngx_http_deepinfer_request.c - the life of a request that an engine answers.
 *
 * The content handler makes the context, reads the body, has it prepared and
 * dispatched; then the request waits for events of its engine.  They change
 * the context (ngx_http_deepinfer_event.c); what follows from that is done
 * once for all events of a wake-up, by ngx_http_deepinfer_run(), which
 * alone may end the request.
 *
 * Two cleanup handlers end a context.  That of the request runs before the
 * access log, for whatever reason the request ends: it takes the request from
 * its engine and counts it.  That of the pool frees the memory, which nginx
 * may have been sending until then.
 */


#include "ngx_http_deepinfer.h"


#define NGX_HTTP_DEEPINFER_GUARD  15000         /* ms, if there are no pings */


#if (NGX_THREADS)

/* What a thread gets. */

typedef struct {
    ngx_http_deepinfer_ctx_t      *ctx;
    di_tok_t                      *tok;         /* its own meanwhile */
    ngx_uint_t                     parts;       /* it encodes parts of work */
} ngx_http_deepinfer_task_t;

#endif


static ngx_http_deepinfer_ctx_t *ngx_http_deepinfer_create_ctx(
    ngx_http_request_t *r);
static void ngx_http_deepinfer_refused(ngx_http_deepinfer_ctx_t *ctx,
    ngx_uint_t status);
static ngx_uint_t ngx_http_deepinfer_encoded_body(ngx_http_request_t *r);
static void ngx_http_deepinfer_body_handler(ngx_http_request_t *r);
static void ngx_http_deepinfer_watch_client(ngx_http_deepinfer_ctx_t *ctx);
static void ngx_http_deepinfer_begin_prepare(ngx_http_deepinfer_ctx_t *ctx);
#if (NGX_THREADS)
static ngx_int_t ngx_http_deepinfer_post_thread(ngx_http_deepinfer_ctx_t *ctx);
static ngx_int_t ngx_http_deepinfer_post_task(ngx_http_deepinfer_ctx_t *ctx,
    ngx_uint_t parts);
static void ngx_http_deepinfer_thread_handler(void *data, ngx_log_t *log);
static void ngx_http_deepinfer_thread_done(ngx_event_t *ev);
static ngx_int_t ngx_http_deepinfer_task_over(ngx_http_deepinfer_task_t *t);
static void ngx_http_deepinfer_post_parts(ngx_http_deepinfer_ctx_t *ctx);
#endif
static void ngx_http_deepinfer_prepared(ngx_http_deepinfer_ctx_t *ctx);
static void ngx_http_deepinfer_fetch(ngx_http_deepinfer_ctx_t *ctx);
static void ngx_http_deepinfer_fetch_handler(
    ngx_http_deepinfer_fetch_t *fetch);
static void ngx_http_deepinfer_fetched(ngx_http_deepinfer_ctx_t *ctx,
    ngx_int_t rc);
static void ngx_http_deepinfer_submit(ngx_http_deepinfer_ctx_t *ctx);
static void ngx_http_deepinfer_timer_handler(ngx_event_t *ev);
static void ngx_http_deepinfer_ping(ngx_http_deepinfer_ctx_t *ctx);
static void ngx_http_deepinfer_cleanup(void *data);
static void ngx_http_deepinfer_pool_cleanup(void *data);


ngx_int_t
ngx_http_deepinfer_gen_handler(ngx_http_request_t *r)
{
    ngx_int_t                  rc, known;
    di_api_err_t              *err;
    ngx_http_deepinfer_ctx_t  *ctx;

    ctx = ngx_http_deepinfer_create_ctx(r);
    if (ctx == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    err = &ctx->prepare.err;

    /* the pool counts whatever the answer is */

    known = ngx_http_deepinfer_select_pool(r, ctx->conf, &ctx->pool);

    if (r->method != NGX_HTTP_POST) {
        ngx_http_deepinfer_refused(ctx, NGX_HTTP_NOT_ALLOWED);
        return ngx_http_deepinfer_send_not_allowed(r, "POST");
    }

    if (known != NGX_OK) {
        di_api_err_set(err, 404, "invalid_request_error", "model_not_found",
                       "", "There is no model at this address.");

    } else if (ngx_http_deepinfer_encoded_body(r)) {
        di_api_err_set(err, 415, "invalid_request_error", "", "",
                       "A body with a Content-Encoding is not supported.");
    }

    if (err->status) {
        ngx_http_deepinfer_refused(ctx, err->status);

        rc = ngx_http_discard_request_body(r);

        return (rc == NGX_OK) ? ngx_http_deepinfer_send_error(r, err, 0) : rc;
    }

    /* a short body then lies in one piece */

    r->request_body_in_single_buf = 1;

    rc = ngx_http_read_client_request_body(r, ngx_http_deepinfer_body_handler);

    if (rc >= NGX_HTTP_SPECIAL_RESPONSE) {
        ngx_http_deepinfer_refused(ctx, rc);
        return rc;
    }

    return NGX_DONE;
}


/* It ends before its body was read. */

static void
ngx_http_deepinfer_refused(ngx_http_deepinfer_ctx_t *ctx, ngx_uint_t status)
{
    ctx->status = status;
    ctx->finish = ngx_http_deepinfer_finish_error;
    ctx->finalized = 1;
}


static ngx_http_deepinfer_ctx_t *
ngx_http_deepinfer_create_ctx(ngx_http_request_t *r)
{
    u_char                     random[16];
    ngx_http_cleanup_t        *hcln;
    ngx_pool_cleanup_t        *pcln;
    ngx_http_deepinfer_ctx_t  *ctx;

    ctx = ngx_palloc(r->pool, sizeof(ngx_http_deepinfer_ctx_t));
    if (ctx == NULL) {
        return NULL;
    }

    ngx_memzero(ctx, offsetof(ngx_http_deepinfer_ctx_t, prepare.err.message));

    ctx->request = r;
    ctx->conf = ngx_http_get_module_loc_conf(r, ngx_http_deepinfer_module);
    ctx->prepare.api = ctx->conf->api->gen;
    ctx->prepare.conf = ctx->conf;
    ctx->start = ngx_http_deepinfer_now();

    ctx->timer.handler = ngx_http_deepinfer_timer_handler;
    ctx->timer.data = ctx;
    ctx->timer.log = r->connection->log;

    if (ngx_http_deepinfer_request_id(r, &ctx->request_id) != NGX_OK
        || ngx_http_deepinfer_random(random, sizeof(random)) != NGX_OK)
    {
        return NULL;
    }

    (void) ngx_hex_dump((u_char *) ctx->prepare.id, random, sizeof(random));

    pcln = ngx_pool_cleanup_add(r->pool, 0);
    if (pcln == NULL) {
        return NULL;
    }

    hcln = ngx_http_cleanup_add(r, 0);
    if (hcln == NULL) {
        return NULL;
    }

    pcln->handler = ngx_http_deepinfer_pool_cleanup;
    pcln->data = ctx;

    hcln->handler = ngx_http_deepinfer_cleanup;
    hcln->data = ctx;

    ngx_http_set_ctx(r, ctx, ngx_http_deepinfer_module);

    return ctx;
}


/*
 * A context survives an internal redirect (to the location of an error_page),
 * which clears those of all modules: it is found by its cleanup handler.
 */

ngx_http_deepinfer_ctx_t *
ngx_http_deepinfer_get_ctx(ngx_http_request_t *r)
{
    ngx_pool_cleanup_t        *cln;
    ngx_http_deepinfer_ctx_t  *ctx;

    r = r->main;

    ctx = ngx_http_get_module_ctx(r, ngx_http_deepinfer_module);

    if (ctx || !(r->internal || r->filter_finalize)) {
        return ctx;
    }

    for (cln = r->pool->cleanup; cln; cln = cln->next) {
        if (cln->handler == ngx_http_deepinfer_pool_cleanup) {
            return cln->data;
        }
    }

    return NULL;
}


static ngx_uint_t
ngx_http_deepinfer_encoded_body(ngx_http_request_t *r)
{
    ngx_table_elt_t  *h;

    h = ngx_http_deepinfer_find_header(&r->headers_in.headers,
                                       "content-encoding");

    return h && !(h->value.len == sizeof("identity") - 1
                  && ngx_strncasecmp(h->value.data, (u_char *) "identity",
                                     sizeof("identity") - 1)
                     == 0);
}


static void
ngx_http_deepinfer_body_handler(ngx_http_request_t *r)
{
    ngx_chain_t               *cl;
    ngx_http_deepinfer_ctx_t  *ctx;

    ctx = ngx_http_get_module_ctx(r, ngx_http_deepinfer_module);

    if (ctx == NULL || ctx->closed) {
        ngx_log_error(NGX_LOG_ALERT, r->connection->log, 0,
                      "deepinfer: a request without its context");
        ngx_http_finalize_request(r, NGX_HTTP_INTERNAL_SERVER_ERROR);
        return;
    }

    ngx_add_timer(&ctx->timer, ctx->conf->ping ? ctx->conf->ping
                                               : NGX_HTTP_DEEPINFER_GUARD);

    ngx_http_deepinfer_watch_client(ctx);

    if (ctx->closed) {
        return;
    }

    ctx->prepare.pool = ctx->pool;
    ctx->prepare.spelling = ngx_http_deepinfer_find_spelling(ctx->pool,
                                                        &ctx->conf->dialect);
    ctx->prepare.max_model_len = ngx_http_deepinfer_max_model_len(ctx->pool);

    if (r->request_body) {
        ctx->prepare.bufs = r->request_body->bufs;
    }

    for (cl = ctx->prepare.bufs; cl; cl = cl->next) {
        if (ngx_buf_in_memory(cl->buf) || cl->buf->in_file) {
            ctx->prepare.len += ngx_buf_size(cl->buf);
        }
    }

    ngx_http_deepinfer_begin_prepare(ctx);
}


/* In place or in a thread; again when an earlier response was fetched. */

static void
ngx_http_deepinfer_begin_prepare(ngx_http_deepinfer_ctx_t *ctx)
{
#if (NGX_THREADS)

    if (ctx->conf->threads
        && ctx->prepare.len + ctx->prepare.record.len
           >= ctx->conf->thread_size)
    {

        if (ngx_http_deepinfer_post_thread(ctx) != NGX_OK) {
            ctx->retry_after = 1;
            ngx_http_deepinfer_fail(ctx, 503, "overloaded",
                                    "Too many long prompts are being read.");
            ngx_http_deepinfer_run(ctx);
        }

        return;
    }

#endif

    ctx->prepare.tok = ctx->pool->tok;
    ngx_http_deepinfer_prepare(&ctx->prepare);
    ngx_http_deepinfer_prepared(ctx);
}


/*
 * After the body nginx no longer looks at the socket.  A client that has
 * already closed its side gives no other event, as the one that brought the
 * body told it, too.
 */

static void
ngx_http_deepinfer_watch_client(ngx_http_deepinfer_ctx_t *ctx)
{
    ngx_http_request_t  *r;

    r = ctx->request;

    r->write_event_handler = ngx_http_deepinfer_test_writing;

    if (ctx->conf->ignore_client_abort) {
        r->read_event_handler = ngx_http_block_reading;
        return;
    }

    r->read_event_handler = ngx_http_test_reading;

#if (NGX_HTTP_V2)
    if (r->stream) {
        return;
    }
#endif

#if (NGX_HAVE_EPOLLRDHUP)
    if (r->connection->read->pending_eof) {
        ngx_http_test_reading(r);
    }
#endif
}


/*
 * While nothing waits to be written.  With HTTP/3 a client that goes asks its
 * stream's writer to stop, which its reader isn't told.
 */

void
ngx_http_deepinfer_test_writing(ngx_http_request_t *r)
{
#if (NGX_HTTP_V3)
    ngx_connection_t  *c;

    c = r->connection;

    if (c->quic && c->write->error
        && r->read_event_handler == ngx_http_test_reading)
    {
        c->read->error = 1;
        ngx_http_test_reading(r);
    }
#endif
}


#if (NGX_THREADS)

static ngx_int_t
ngx_http_deepinfer_post_thread(ngx_http_deepinfer_ctx_t *ctx)
{
    ctx->prepare.parallel = (ctx->prepare.api->open != NULL);

    return ngx_http_deepinfer_post_task(ctx, 0);
}


/*
 * A task holds an encoder of its own, which the thread makes if none is idle,
 * and the request's memory.
 */

static ngx_int_t
ngx_http_deepinfer_post_task(ngx_http_deepinfer_ctx_t *ctx, ngx_uint_t parts)
{
    ngx_thread_task_t          *task;
    ngx_http_request_t         *r;
    ngx_http_deepinfer_task_t  *t;

    r = ctx->request;

    task = ngx_thread_task_alloc(r->pool, sizeof(ngx_http_deepinfer_task_t));
    if (task == NULL) {
        return NGX_ERROR;
    }

    t = task->ctx;
    t->ctx = ctx;
    t->parts = parts;
    t->tok = ngx_http_deepinfer_take_tok(ctx->pool);

    task->handler = ngx_http_deepinfer_thread_handler;
    task->event.handler = ngx_http_deepinfer_thread_done;
    task->event.data = t;

    if (ngx_thread_task_post(ctx->conf->threads, task) != NGX_OK) {
        if (t->tok) {
            ngx_http_deepinfer_give_tok(ctx->pool, t->tok);
        }

        return NGX_ERROR;
    }

    /* "blocked" keeps the request's memory until the thread is done */

    r->main->blocked++;
    r->aio = 1;

    ctx->prepare.tasks++;

    return NGX_OK;
}


static void
ngx_http_deepinfer_thread_handler(void *data, ngx_log_t *log)
{
    ngx_http_deepinfer_task_t  *t = data;

    ngx_http_deepinfer_prepare_t  *p;

    p = &t->ctx->prepare;

    if (t->tok == NULL && di_tok_open(p->pool->vocab, &t->tok) != DI_OK) {
        t->tok = NULL;

        if (!t->parts) {
            (void) ngx_http_deepinfer_prepare_no_memory(p);
        }

        return;
    }

    if (t->parts) {
        ngx_http_deepinfer_prepare_part_of(p, t->tok);
        return;
    }

    p->tok = t->tok;
    ngx_http_deepinfer_prepare(p);
}


static void
ngx_http_deepinfer_thread_done(ngx_event_t *ev)
{
    ngx_connection_t           *c;
    ngx_http_deepinfer_ctx_t   *ctx;
    ngx_http_deepinfer_task_t  *t;

    t = ev->data;
    ctx = t->ctx;
    c = ctx->request->connection;

    if (ngx_http_deepinfer_task_over(t) != NGX_OK) {
        return;
    }

    if (t->parts) {
        (void) ngx_http_deepinfer_prepare_join(&ctx->prepare);
    }

    if (ctx->prepare.work) {
        ngx_http_deepinfer_post_parts(ctx);

    } else {
        ngx_http_deepinfer_prepared(ctx);
    }

    ngx_http_run_posted_requests(c);
}


/* NGX_OK: it was the last task of a request that still lives. */

static ngx_int_t
ngx_http_deepinfer_task_over(ngx_http_deepinfer_task_t *t)
{
    ngx_connection_t          *c;
    ngx_http_request_t        *r;
    ngx_http_deepinfer_ctx_t  *ctx;

    ctx = t->ctx;
    r = ctx->request;
    c = r->connection;

    ngx_http_set_log_request(c->log, r);

    if (t->tok) {
        ngx_http_deepinfer_give_tok(ctx->pool, t->tok);
    }

    r->main->blocked--;
    ctx->prepare.tasks--;

    if (ctx->prepare.tasks) {
        return NGX_AGAIN;
    }

    r->aio = 0;

    if (!ctx->closed) {
        return NGX_OK;
    }

    /* it was terminated meanwhile, and could not be freed */

    ngx_http_finalize_request(r, NGX_ERROR);
    ngx_http_run_posted_requests(c);

    return NGX_DONE;
}


/* As many threads as there are parts, or CPUs. */

static void
ngx_http_deepinfer_post_parts(ngx_http_deepinfer_ctx_t *ctx)
{
    ngx_uint_t  i, n;

    n = ngx_min(di_work_parts(ctx->prepare.work), (size_t) ngx_ncpu);

    for (i = 0; i < n; i++) {
        if (ngx_http_deepinfer_post_task(ctx, 1) != NGX_OK) {
            break;
        }
    }

    /* one is enough */

    if (i == 0) {
        ctx->retry_after = 1;
        ngx_http_deepinfer_fail(ctx, 503, "overloaded",
                                "Too many long prompts are being read.");
        ngx_http_deepinfer_run(ctx);
    }
}

#endif


static void
ngx_http_deepinfer_prepared(ngx_http_deepinfer_ctx_t *ctx)
{
    di_str_t             ignored;
    ngx_http_request_t  *r;

    r = ctx->request;

    if (ctx->prepare.err.status) {
        ngx_http_deepinfer_run(ctx);
        return;
    }

    if (ctx->prepare.previous.len && ctx->prepare.req == NULL) {
        ngx_http_deepinfer_fetch(ctx);
        return;
    }

    if (ctx->prepare.api->open == NULL) {
        ctx->pending = ctx->prepare.answer;
        ngx_memzero(&ctx->prepare.answer, sizeof(di_sbuf_t));

        ctx->done = 1;
        ngx_http_deepinfer_run(ctx);
        return;
    }

    ignored = ctx->prepare.ignored;

    if (ignored.len) {
        ngx_log_error(NGX_LOG_INFO, r->connection->log, 0,
                      "deepinfer: unknown fields are ignored: %*s",
                      ngx_min(ignored.len, 512), ignored.data);
    }

    if (ngx_http_deepinfer_prepare_gen(ctx) != NGX_OK) {
        ngx_http_deepinfer_fail_memory(ctx);
        ngx_http_deepinfer_run(ctx);
        return;
    }

    ctx->stream = ctx->prepare.params->stream;

    ngx_http_deepinfer_constrain(ctx);
}


/* The response that this one goes on from. */

static void
ngx_http_deepinfer_fetch(ngx_http_deepinfer_ctx_t *ctx)
{
    ngx_int_t  rc;
    ngx_str_t  id;

    id.data = (u_char *) ctx->prepare.previous.data;
    id.len = ctx->prepare.previous.len;

    ctx->fetch.handler = ngx_http_deepinfer_fetch_handler;
    ctx->fetch.data = ctx;

    rc = ngx_http_deepinfer_store_get(ctx->pool->main, &id, &ctx->fetch);

    if (rc != NGX_AGAIN) {
        ngx_http_deepinfer_fetched(ctx, rc);
    }
}


static void
ngx_http_deepinfer_fetch_handler(ngx_http_deepinfer_fetch_t *fetch)
{
    ngx_connection_t          *c;
    ngx_http_deepinfer_ctx_t  *ctx;

    ctx = fetch->data;
    c = ctx->request->connection;

    ngx_http_set_log_request(c->log, ctx->request);

    ngx_http_deepinfer_fetched(ctx, fetch->rc);

    ngx_http_run_posted_requests(c);
}


static void
ngx_http_deepinfer_fetched(ngx_http_deepinfer_ctx_t *ctx, ngx_int_t rc)
{
    di_sbuf_t  *previous;

    switch (rc) {

    case NGX_OK:
        ctx->prepare.record = ctx->fetch.record;
        ngx_memzero(&ctx->fetch.record, sizeof(di_sbuf_t));

        ngx_http_deepinfer_begin_prepare(ctx);
        return;

    case NGX_DECLINED:
        previous = &ctx->prepare.previous;
        di_api_err_set(&ctx->prepare.err, 400, "invalid_request_error",
                       "previous_response_not_found", "previous_response_id",
                       "Previous response with id '%.*s' not found.",
                       (int) ngx_min(previous->len, 128), previous->data);
        break;

    default:
        ctx->retry_after = 1;
        ngx_http_deepinfer_fail(ctx, 503, "store_unavailable",
                                "The store of responses does not answer.");
        break;
    }

    ngx_http_deepinfer_run(ctx);
}


/* The engine that has a submission died, or is as good as dead. */

void
ngx_http_deepinfer_engine_gone(ngx_http_deepinfer_sub_t *sub)
{
    ngx_http_deepinfer_ctx_t     *ctx;
    ngx_http_deepinfer_engine_t  *engine;

    ctx = sub->ctx;
    engine = sub->engine;

    if (ctx->done || sub->over) {
        ngx_http_deepinfer_engine_release(sub);
        return;
    }

    ngx_http_deepinfer_release(ctx);

    ctx->retry_after = 1;
    ngx_http_deepinfer_fail(ctx, 503, "engine_unavailable",
                            "The engine that ran this request is gone.");

    ngx_http_deepinfer_move(ctx, engine);
    ngx_http_deepinfer_run(ctx);
}


/* Take a request from all engines, and from where it waits. */

void
ngx_http_deepinfer_release(ngx_http_deepinfer_ctx_t *ctx)
{
    ngx_uint_t  i;

    if (ctx->queued) {
        ctx->queued = 0;
        ngx_queue_remove(&ctx->queue);
    }

    if (ctx->is_dirty) {
        ctx->is_dirty = 0;
        ngx_queue_remove(&ctx->dirty);
    }

    for (i = 0; i < ctx->n_subs; i++) {
        ngx_http_deepinfer_engine_release(&ctx->subs[i]);
    }
}


/* Whether an engine has other submissions of the request, or will have. */

ngx_uint_t
ngx_http_deepinfer_others(ngx_http_deepinfer_sub_t *sub)
{
    ngx_uint_t                 i;
    ngx_http_deepinfer_ctx_t  *ctx;

    ctx = sub->ctx;

    for (i = 0; i < ctx->n_subs; i++) {
        if (&ctx->subs[i] != sub && ctx->subs[i].queued
            && !ctx->subs[i].over)
        {
            return 1;
        }
    }

    return 0;
}


/* Act on what has changed. */

void
ngx_http_deepinfer_run(ngx_http_deepinfer_ctx_t *ctx)
{
    if (ctx->closed || ctx->finalized) {
        return;
    }

    if (ctx->moved) {
        ctx->moved = 0;
        ctx->first = 0;
        ctx->finish = ngx_http_deepinfer_finish_none;
        ctx->retry_after = 0;
        ctx->prepare.err.status = 0;
        ctx->pending.len = 0;

        if (ctx->out) {
            ctx->prepare.api->close(ctx->out);
            ctx->out = NULL;
        }

        (void) ngx_atomic_fetch_add(&ctx->pool->stats->resubmits, 1);

        ngx_http_deepinfer_start(ctx);
        return;
    }

    if (ctx->next) {
        ctx->next = 0;
        ngx_http_deepinfer_submit(ctx);
    }

    if (ctx->pending.failed) {
        ngx_http_deepinfer_fail_memory(ctx);
    }

    if (ctx->prepare.err.status) {
        ngx_http_deepinfer_output_error(ctx);
        return;
    }

    if (ctx->stream) {

        if (ctx->pending.len) {
            ctx->content = 1;
            ngx_http_deepinfer_output_stream(ctx);
        }

    } else if (ctx->done) {
        ngx_http_deepinfer_output_body(ctx);
    }
}


/* Give all prompts to engines, for the first time or once more.  The request
 * may be finalized on return, with the error that it got. */

void
ngx_http_deepinfer_start(ngx_http_deepinfer_ctx_t *ctx)
{
    ngx_uint_t  i;

    ngx_http_deepinfer_release(ctx);

    ctx->next = 0;
    ctx->cached_tokens = 0;
    ctx->n_open = ctx->n_subs;
    ctx->tries++;

    for (i = 0; i < ctx->n_subs; i++) {
        ngx_http_deepinfer_prepare_sub(ctx, i);
    }

    ngx_http_deepinfer_submit(ctx);

    if (ctx->prepare.err.status) {
        ngx_http_deepinfer_run(ctx);
    }
}


/* Part from what is over, and give what is held to an engine, or the request
 * an error. */

static void
ngx_http_deepinfer_submit(ngx_http_deepinfer_ctx_t *ctx)
{
    ngx_uint_t                 i;
    ngx_http_deepinfer_sub_t  *sub;

    for (i = 0; i < ctx->n_subs; i++) {
        sub = &ctx->subs[i];

        if (sub->over) {
            ngx_http_deepinfer_engine_release(sub);
        }
    }

    for (i = 0; i < ctx->n_subs; i++) {
        sub = &ctx->subs[i];

        if (sub->held) {
            sub->held = 0;
            ngx_http_deepinfer_dispatch(sub);
        }

        if (ctx->prepare.err.status) {
            return;
        }
    }
}


/*
 * It keeps a graceful worker alive, sends comments to a client that waits for
 * a long prefill, and finds events whose bell was lost.
 */

static void
ngx_http_deepinfer_timer_handler(ngx_event_t *ev)
{
    ngx_uint_t                 i;
    ngx_msec_t                 ping, idle;
    ngx_connection_t          *c;
    ngx_http_deepinfer_ctx_t  *ctx;

    ctx = ev->data;
    c = ctx->request->connection;
    ping = ctx->conf->ping;

    ngx_http_set_log_request(c->log, ctx->request);

    for (i = 0; i < ctx->n_subs; i++) {
        if (ctx->subs[i].engine) {
            ngx_http_deepinfer_engine_poll(ctx->subs[i].engine);
        }
    }

    if (ping == 0) {
        ngx_add_timer(ev, NGX_HTTP_DEEPINFER_GUARD);
        return;
    }

    idle = ctx->sent ? ngx_current_msec - ctx->sent : ping;

    if (idle < ping) {
        ngx_add_timer(ev, ping - idle);
        return;
    }

    ngx_add_timer(ev, ping);

    if (ctx->stream && !ctx->blocked && !ctx->done) {
        ngx_http_deepinfer_ping(ctx);
        ngx_http_deepinfer_output_stream(ctx);
        ngx_http_run_posted_requests(c);
    }
}


/* Messages has an event for it, which may not be the first. */

static void
ngx_http_deepinfer_ping(ngx_http_deepinfer_ctx_t *ctx)
{
    static const char  comment[] = ": ping\n\n";
    static const char  event[] = "event: ping\ndata: {\"type\":\"ping\"}\n\n";

    if (ctx->out && ctx->prepare.api->api == DI_API_MESSAGES) {
        di_sbuf_add(&ctx->pending, event, sizeof(event) - 1);

    } else {
        di_sbuf_add(&ctx->pending, comment, sizeof(comment) - 1);
    }
}


static void
ngx_http_deepinfer_cleanup(void *data)
{
    ngx_http_deepinfer_ctx_t  *ctx;

    ctx = data;

    if (ctx->closed) {
        return;
    }

    ctx->closed = 1;

    if (ctx->timer.timer_set) {
        ngx_del_timer(&ctx->timer);
    }

    ngx_http_deepinfer_release(ctx);
    ngx_http_deepinfer_store_forget(&ctx->fetch);

    if (!ctx->finalized) {
        ctx->status = ctx->request->err_status;

        if (ctx->status == 0) {
            ctx->status = NGX_HTTP_CLIENT_CLOSED_REQUEST;
        }

        ctx->finish = ngx_http_deepinfer_finish_abort;
    }

    ngx_http_deepinfer_metrics_request(ctx);
}


static void
ngx_http_deepinfer_pool_cleanup(void *data)
{
    ngx_http_deepinfer_ctx_t  *ctx;

    ctx = data;

    ngx_http_deepinfer_cleanup(ctx);

    if (ctx->out) {
        ctx->prepare.api->close(ctx->out);
    }

    ngx_http_deepinfer_prepare_free(&ctx->prepare);
    ngx_http_deepinfer_compiled_unref(ctx->compiled);

    di_sbuf_free(&ctx->pending);
    di_sbuf_free(&ctx->sending);
}
