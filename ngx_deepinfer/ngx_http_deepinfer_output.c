
/*
 * ngx_http_deepinfer_output.c - what goes to the client.
 *
 * A stream has two byte buffers.  Events are written to `pending`; when nginx
 * holds nothing of ours, the two are swapped and one nginx buffer over
 * `sending` is passed down the filters with a flush.  So one write carries all
 * that came meanwhile, and a stream of any length uses the same memory.  If
 * all was sent they are swapped back: a client that keeps up never needs the
 * second one, and its next events find the first in the CPU's cache.  While
 * the client is slow, `pending` grows up to deepinfer_buffer_size; then the
 * engines are asked to hold the sequences until all was sent.
 */


#include "ngx_http_deepinfer.h"


static ngx_int_t ngx_http_deepinfer_output_pending(
    ngx_http_deepinfer_ctx_t *ctx);
static void ngx_http_deepinfer_swap(ngx_http_deepinfer_ctx_t *ctx);
static ngx_int_t ngx_http_deepinfer_stream_header(
    ngx_http_deepinfer_ctx_t *ctx);
static ngx_int_t ngx_http_deepinfer_send_at_once(ngx_http_request_t *r);
static void ngx_http_deepinfer_stream_handler(ngx_http_request_t *r);
static void ngx_http_deepinfer_output_pause(ngx_http_deepinfer_ctx_t *ctx,
    ngx_uint_t pause);
static ngx_int_t ngx_http_deepinfer_wait_writable(ngx_http_request_t *r);
static ngx_uint_t ngx_http_deepinfer_buffered(ngx_http_request_t *r);
static void ngx_http_deepinfer_finalize(ngx_http_deepinfer_ctx_t *ctx,
    ngx_int_t rc);
static ngx_int_t ngx_http_deepinfer_json_header(ngx_http_request_t *r,
    ngx_uint_t status, di_sbuf_t *body);
static const char *ngx_http_deepinfer_c_string(ngx_http_request_t *r,
    ngx_str_t *s);


void
ngx_http_deepinfer_output_stream(ngx_http_deepinfer_ctx_t *ctx)
{
    ngx_int_t            rc;
    ngx_http_request_t  *r;

    r = ctx->request;

    if (ctx->pending.failed) {
        ngx_log_error(NGX_LOG_CRIT, r->connection->log, 0,
                      "deepinfer: no memory for a stream");
        ngx_http_deepinfer_finalize(ctx, NGX_ERROR);
        return;
    }

    if (ctx->blocked) {

        if (ctx->pending.len >= ctx->conf->buffer_size) {
            ngx_http_deepinfer_output_pause(ctx, 1);
        }

        return;
    }

    if (!r->header_sent) {
        rc = ngx_http_deepinfer_stream_header(ctx);

        if (rc != NGX_OK) {
            ngx_http_deepinfer_finalize(ctx, rc);
            return;
        }
    }

    if (ctx->pending.len == 0 && !ctx->done) {
        return;
    }

    rc = ngx_http_deepinfer_direct(ctx);

    if (rc == NGX_OK) {
        return;
    }

    if (rc == NGX_DECLINED) {
        rc = ngx_http_deepinfer_output_pending(ctx);
    }

    if (rc == NGX_ERROR || ctx->done) {
        ngx_http_deepinfer_finalize(ctx, rc);
        return;
    }

    if (rc == NGX_AGAIN || ngx_http_deepinfer_buffered(r)) {
        ctx->blocked = 1;
        r->write_event_handler = ngx_http_deepinfer_stream_handler;

        if (ngx_http_deepinfer_wait_writable(r) != NGX_OK) {
            ngx_http_deepinfer_finalize(ctx, NGX_ERROR);
        }

        return;
    }

    ngx_http_deepinfer_swap(ctx);
}


/* Pass all that is pending down the filters. */

static ngx_int_t
ngx_http_deepinfer_output_pending(ngx_http_deepinfer_ctx_t *ctx)
{
    ngx_buf_t           *b;
    ngx_http_request_t  *r;

    r = ctx->request;

    ngx_http_deepinfer_swap(ctx);

    b = &ctx->buf;
    ngx_memzero(b, sizeof(ngx_buf_t));

    if (ctx->sending.len) {
        b->start = (u_char *) ctx->sending.data;
        b->pos = b->start;
        b->last = b->start + ctx->sending.len;
        b->end = b->last;
        b->temporary = 1;
    }

    b->tag = (ngx_buf_tag_t) &ngx_http_deepinfer_module;
    b->flush = ctx->stream;

    if (ctx->done) {
        b->last_buf = (r == r->main);
        b->last_in_chain = 1;
    }

    ctx->link.buf = b;
    ctx->link.next = NULL;
    ctx->sent = ngx_current_msec;

    return ngx_http_output_filter(r, &ctx->link);
}


static void
ngx_http_deepinfer_swap(ngx_http_deepinfer_ctx_t *ctx)
{
    di_sbuf_t  swap;

    swap = ctx->sending;
    ctx->sending = ctx->pending;
    ctx->pending = swap;
    ctx->pending.len = 0;
}


/* NGX_OK, or what to finalize the request with. */

static ngx_int_t
ngx_http_deepinfer_stream_header(ngx_http_deepinfer_ctx_t *ctx)
{
    ngx_int_t            rc;
    ngx_http_request_t  *r;

    static u_char  no_cache[] = "no-cache";
    static u_char  no[] = "no";

    r = ctx->request;

    if (ngx_http_deepinfer_send_at_once(r) != NGX_OK) {
        return NGX_ERROR;
    }

    ctx->status = NGX_HTTP_OK;
    r->headers_out.status = NGX_HTTP_OK;

    /*
     * The length is that of the bare type, which gzip_types and the like are
     * compared with; the charset is sent all the same.
     */

    ngx_str_set(&r->headers_out.content_type,
                "text/event-stream; charset=utf-8");
    r->headers_out.content_type_len = sizeof("text/event-stream") - 1;
    r->headers_out.content_type_lowcase = NULL;

    ngx_http_clear_content_length(r);
    ngx_http_clear_accept_ranges(r);

    if (ngx_http_deepinfer_add_header(r, "Cache-Control", no_cache,
                                      sizeof(no_cache) - 1)
        != NGX_OK
        || ngx_http_deepinfer_add_header(r, "X-Accel-Buffering", no,
                                         sizeof(no) - 1)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    rc = ngx_http_send_header(r);

    if (rc == NGX_ERROR || rc > NGX_OK) {
        return rc;
    }

    if (r->header_only) {
        return NGX_DONE;
    }

    ctx->direct = ngx_http_deepinfer_direct_allowed(ctx);

    return NGX_OK;
}


/*
 * Events leave when they are written: without TCP_NODELAY each would wait for
 * the client's ACK of the one before.  A file that was sent before, with
 * tcp_nopush on, leaves the socket corked if the next request was there by
 * then, and nginx forgets it where tcp_nopush is off here: events would leave
 * in bunches, five times a second.
 */

static ngx_int_t
ngx_http_deepinfer_send_at_once(ngx_http_request_t *r)
{
    ngx_connection_t          *c;
    ngx_http_core_loc_conf_t  *clcf;

    c = r->connection;
    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);

    /* tcp_nodelay is also disabled where there is no TCP */

    if (r->pipeline && c->tcp_nodelay != NGX_TCP_NODELAY_DISABLED) {

        if (ngx_tcp_push(c->fd) == -1) {
            ngx_connection_error(c, ngx_socket_errno, ngx_tcp_push_n " failed");
            return NGX_ERROR;
        }

        if (c->tcp_nopush == NGX_TCP_NOPUSH_SET) {
            c->tcp_nopush = NGX_TCP_NOPUSH_UNSET;
        }
    }

    return clcf->tcp_nodelay ? ngx_tcp_nodelay(c) : NGX_OK;
}


/* The client can take more of a stream that was blocked. */

static void
ngx_http_deepinfer_stream_handler(ngx_http_request_t *r)
{
    ngx_int_t                  rc;
    ngx_event_t               *wev;
    ngx_connection_t          *c;
    ngx_http_deepinfer_ctx_t  *ctx;

    c = r->connection;
    wev = c->write;
    ctx = ngx_http_get_module_ctx(r, ngx_http_deepinfer_module);

    if (ctx == NULL) {
        ngx_log_error(NGX_LOG_ALERT, c->log, 0,
                      "deepinfer: a stream without its context");
        ngx_http_finalize_request(r, NGX_ERROR);
        return;
    }

    if (wev->timedout) {
        ngx_log_error(NGX_LOG_INFO, c->log, NGX_ETIMEDOUT,
                      "client timed out");
        c->timedout = 1;
        ctx->status = NGX_HTTP_REQUEST_TIME_OUT;
        ctx->finish = ngx_http_deepinfer_finish_abort;
        ngx_http_deepinfer_finalize(ctx, NGX_HTTP_REQUEST_TIME_OUT);
        return;
    }

    rc = wev->delayed ? NGX_AGAIN : ngx_http_output_filter(r, NULL);

    if (rc == NGX_ERROR) {
        ngx_http_deepinfer_finalize(ctx, NGX_ERROR);
        return;
    }

    if (rc == NGX_AGAIN || ngx_http_deepinfer_buffered(r)) {

        if (ngx_http_deepinfer_wait_writable(r) != NGX_OK) {
            ngx_http_deepinfer_finalize(ctx, NGX_ERROR);
        }

        return;
    }

    /* with limit_rate the timer is not that of send_timeout */

    if (wev->timer_set && !wev->delayed) {
        ngx_del_timer(wev);
    }

    r->write_event_handler = ngx_http_deepinfer_test_writing;
    ctx->blocked = 0;

    ngx_http_deepinfer_output_pause(ctx, 0);
    ngx_http_deepinfer_output_stream(ctx);
}


/* Hold all that the engines run for a request, or let it go on. */

static void
ngx_http_deepinfer_output_pause(ngx_http_deepinfer_ctx_t *ctx,
    ngx_uint_t pause)
{
    ngx_uint_t                 i;
    ngx_http_deepinfer_sub_t  *sub;

    for (i = 0; i < ctx->n_subs; i++) {
        sub = &ctx->subs[i];

        if (sub->engine && !sub->over && sub->paused != pause) {
            sub->paused = pause;
            ngx_http_deepinfer_engine_control(sub->engine, sub->id,
                                        pause ? ngx_http_deepinfer_op_pause
                                              : ngx_http_deepinfer_op_resume,
                                        0);
        }
    }
}


static ngx_int_t
ngx_http_deepinfer_wait_writable(ngx_http_request_t *r)
{
    ngx_event_t               *wev;
    ngx_http_core_loc_conf_t  *clcf;

    wev = r->connection->write;
    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);

    if (!wev->delayed) {
        ngx_add_timer(wev, clcf->send_timeout);
    }

    return ngx_handle_write_event(wev, clcf->send_lowat);
}


static ngx_uint_t
ngx_http_deepinfer_buffered(ngx_http_request_t *r)
{
    return r->buffered || r->postponed
           || (r == r->main && r->connection->buffered);
}


void
ngx_http_deepinfer_output_body(ngx_http_deepinfer_ctx_t *ctx)
{
    ngx_int_t            rc;
    ngx_http_request_t  *r;

    r = ctx->request;

    ctx->status = NGX_HTTP_OK;

    rc = ngx_http_deepinfer_json_header(r, NGX_HTTP_OK, &ctx->pending);

    if (rc != NGX_ERROR && rc <= NGX_OK && !r->header_only) {
        rc = ngx_http_deepinfer_output_pending(ctx);
    }

    ngx_http_deepinfer_finalize(ctx, rc);
}


/*
 * End a request with its error: as the answer if nothing of an answer was
 * sent, else as an event after which the stream ends without [DONE].
 */

void
ngx_http_deepinfer_output_error(ngx_http_deepinfer_ctx_t *ctx)
{
    uint64_t             sequence;
    ngx_int_t            rc;
    const char          *request_id;
    di_api_err_t        *err;
    ngx_http_request_t  *r;

    r = ctx->request;
    err = &ctx->prepare.err;

    ctx->finish = ngx_http_deepinfer_finish_error;

    if (err->status >= NGX_HTTP_INTERNAL_SERVER_ERROR) {
        ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                      "deepinfer: request \"%V\" failed: %s",
                      &ctx->request_id, err->message);
    }

    if (!r->header_sent) {
        ctx->status = err->status;
        rc = ngx_http_deepinfer_send_error(r, err, ctx->retry_after);
        ngx_http_deepinfer_finalize(ctx, rc);
        return;
    }

    sequence = (ctx->out && ctx->prepare.api->sequence)
               ? ctx->prepare.api->sequence(ctx->out) : 0;

    request_id = ngx_http_deepinfer_c_string(r, &ctx->request_id);

    di_api_write_error_event(&ctx->pending, ctx->prepare.api->api,
                             ctx->conf->codec, err, request_id, sequence);

    err->status = 0;
    ctx->done = 1;

    ngx_http_deepinfer_release(ctx);
    ngx_http_deepinfer_output_stream(ctx);
}


/*
 * Give the request back to nginx, which sends what is left.  The engine and
 * the timer are let go at once.
 */

static void
ngx_http_deepinfer_finalize(ngx_http_deepinfer_ctx_t *ctx, ngx_int_t rc)
{
    ctx->finalized = 1;

    if (rc == NGX_ERROR) {
        ctx->status = NGX_HTTP_CLIENT_CLOSED_REQUEST;
        ctx->finish = ngx_http_deepinfer_finish_abort;
    }

    if (ctx->timer.timer_set) {
        ngx_del_timer(&ctx->timer);
    }

    ngx_http_deepinfer_release(ctx);

    ngx_http_finalize_request(ctx->request, rc);
}


/* What the handler, or its finalize, returns; the body is copied. */

ngx_int_t
ngx_http_deepinfer_send_json(ngx_http_request_t *r, ngx_uint_t status,
    di_sbuf_t *body)
{
    ngx_int_t     rc;
    ngx_buf_t    *b;
    ngx_chain_t   out;

    rc = ngx_http_deepinfer_json_header(r, status, body);

    if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
        return rc;
    }

    b = ngx_create_temp_buf(r->pool, body->len);
    if (b == NULL) {
        return NGX_ERROR;
    }

    b->last = ngx_cpymem(b->last, body->data, body->len);
    b->last_buf = (r == r->main);
    b->last_in_chain = 1;

    out.buf = b;
    out.next = NULL;

    return ngx_http_output_filter(r, &out);
}


static ngx_int_t
ngx_http_deepinfer_json_header(ngx_http_request_t *r, ngx_uint_t status,
    di_sbuf_t *body)
{
    if (body->failed) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    r->headers_out.status = status;
    r->headers_out.content_length_n = body->len;

    ngx_str_set(&r->headers_out.content_type, "application/json");
    r->headers_out.content_type_len = r->headers_out.content_type.len;
    r->headers_out.content_type_lowcase = NULL;

    return ngx_http_send_header(r);
}


ngx_int_t
ngx_http_deepinfer_send_error(ngx_http_request_t *r, const di_api_err_t *err,
    ngx_uint_t retry_after)
{
    u_char                         *p;
    ngx_int_t                       rc;
    di_sbuf_t                       body;
    ngx_table_elt_t                *h;
    ngx_http_deepinfer_loc_conf_t  *dlcf;

    if (retry_after) {
        p = ngx_pnalloc(r->pool, NGX_INT_T_LEN);
        if (p == NULL) {
            return NGX_ERROR;
        }

        if (ngx_http_deepinfer_add_header(r, "Retry-After", p,
                                   ngx_sprintf(p, "%ui", retry_after) - p)
            != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    ngx_memzero(&body, sizeof(di_sbuf_t));

    dlcf = ngx_http_get_module_loc_conf(r, ngx_http_deepinfer_module);

    h = ngx_http_deepinfer_find_header(&r->headers_out.headers,
                                       "x-request-id");

    di_api_write_error(&body, ngx_http_deepinfer_shape(r), dlcf->codec,
                       err, h ? ngx_http_deepinfer_c_string(r, &h->value)
                              : NULL);

    rc = ngx_http_deepinfer_send_json(r, err->status, &body);

    di_sbuf_free(&body);

    return rc;
}


/*
 * Whose errors the client understands: those of the location's API, and where
 * it has none, Anthropic's if the client is one of theirs.
 */

di_api_t
ngx_http_deepinfer_shape(ngx_http_request_t *r)
{
    ngx_http_deepinfer_loc_conf_t  *dlcf;

    dlcf = ngx_http_get_module_loc_conf(r, ngx_http_deepinfer_module);

    if (dlcf->api != NGX_CONF_UNSET_PTR && dlcf->api->gen) {
        return dlcf->api->gen->api;
    }

    return ngx_http_deepinfer_is_anthropic(r) ? DI_API_MESSAGES : DI_API_CHAT;
}


ngx_uint_t
ngx_http_deepinfer_is_anthropic(ngx_http_request_t *r)
{
    return ngx_http_deepinfer_find_header(&r->headers_in.headers,
                                          "anthropic-version")
           != NULL;
}


/* NULL if there is no memory. */

static const char *
ngx_http_deepinfer_c_string(ngx_http_request_t *r, ngx_str_t *s)
{
    u_char  *p;

    p = ngx_pnalloc(r->pool, s->len + 1);

    if (p) {
        *ngx_cpymem(p, s->data, s->len) = '\0';
    }

    return (char *) p;
}


ngx_int_t
ngx_http_deepinfer_send_not_allowed(ngx_http_request_t *r, const char *allow)
{
    ngx_int_t     rc;
    di_api_err_t  err;

    rc = ngx_http_discard_request_body(r);

    if (rc != NGX_OK) {
        return rc;
    }

    if (ngx_http_deepinfer_add_header(r, "Allow", (u_char *) allow,
                                      ngx_strlen(allow))
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    ngx_memzero(&err, sizeof(di_api_err_t));

    di_api_err_set(&err, NGX_HTTP_NOT_ALLOWED, "invalid_request_error",
                   "method_not_allowed", "",
                   "The method is not allowed here, use %s.", allow);

    return ngx_http_deepinfer_send_error(r, &err, 0);
}
