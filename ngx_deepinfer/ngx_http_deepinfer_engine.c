
/*
 * ngx_http_deepinfer_engine.c - a worker's connection to one engine.
 *
 * States: absent (client is NULL, the timer waits for the next connect),
 * connecting (client, but not ready; the timer limits the handshake), ready
 * (the timer looks whether the engine still lives).
 * Connecting never blocks.  Two descriptors of the client are watched: the
 * socket, whose end is the engine's death notice, and the eventfd, the bell
 * that announces events.  Both are nginx connections with "channel" set, so
 * that neither worker_shutdown_timeout nor the check for left open sockets
 * takes them for clients.  The bell also has "idle" set: nginx calls the read
 * handlers of idle connections when a graceful exit begins, and a worker has
 * no other way to learn of it.
 *
 * The timers are cancelable, they must not hold a graceful worker.
 */


#include "ngx_http_deepinfer.h"


#define NGX_HTTP_DEEPINFER_HANDSHAKE  5000      /* ms */
#define NGX_HTTP_DEEPINFER_BACKOFF    20        /* ms, doubled up to */
#define NGX_HTTP_DEEPINFER_BACKOFF_MAX  1000


static void ngx_http_deepinfer_engine_connect(
    ngx_http_deepinfer_engine_t *engine);
static void ngx_http_deepinfer_engine_handshake(
    ngx_http_deepinfer_engine_t *engine);
static void ngx_http_deepinfer_engine_close(
    ngx_http_deepinfer_engine_t *engine);
static ngx_connection_t *ngx_http_deepinfer_watch(
    ngx_http_deepinfer_engine_t *engine, int fd,
    ngx_event_handler_pt handler);
static void ngx_http_deepinfer_unwatch(ngx_connection_t **cp);
static void ngx_http_deepinfer_engine_timer_handler(ngx_event_t *ev);
static void ngx_http_deepinfer_engine_socket_handler(ngx_event_t *ev);
static void ngx_http_deepinfer_engine_bell_handler(ngx_event_t *ev);
static void ngx_http_deepinfer_empty_handler(ngx_event_t *ev);
static void ngx_http_deepinfer_engine_receive(
    ngx_http_deepinfer_engine_t *engine);


void
ngx_http_deepinfer_engine_init(ngx_http_deepinfer_engine_t *engine,
    ngx_cycle_t *cycle)
{
    engine->log = cycle->log;

    ngx_queue_init(&engine->subs);
    ngx_queue_init(&engine->dirty);

    engine->timer.handler = ngx_http_deepinfer_engine_timer_handler;
    engine->timer.data = engine;
    engine->timer.log = cycle->log;
    engine->timer.cancelable = 1;

    engine->retry.handler = ngx_http_deepinfer_engine_retry_handler;
    engine->retry.data = engine;
    engine->retry.log = cycle->log;
    engine->retry.cancelable = 1;

    engine->flush.handler = ngx_http_deepinfer_engine_flush_handler;
    engine->flush.data = engine;
    engine->flush.log = cycle->log;

    engine->backoff = NGX_HTTP_DEEPINFER_BACKOFF;

    ngx_http_deepinfer_engine_connect(engine);
}


void
ngx_http_deepinfer_engine_deinit(ngx_http_deepinfer_engine_t *engine)
{
    ngx_http_deepinfer_engine_close(engine);

    if (engine->timer.timer_set) {
        ngx_del_timer(&engine->timer);
    }

    if (engine->slots) {
        ngx_free(engine->slots);
        engine->slots = NULL;
    }

    if (engine->controls) {
        ngx_free(engine->controls);
        engine->controls = NULL;
    }
}


static void
ngx_http_deepinfer_engine_connect(ngx_http_deepinfer_engine_t *engine)
{
    int       rc;
    di_err_t  err;

    ngx_memzero(&err, sizeof(di_err_t));

    rc = di_ipc_client_open(engine->path,
                            engine->pool->fingerprinted
                            ? engine->pool->fingerprint : NULL,
                            &engine->client, &err);

    if (rc != DI_OK) {
        engine->client = NULL;
        ngx_http_deepinfer_engine_lost(engine, err.text);
        return;
    }

    engine->socket = ngx_http_deepinfer_watch(engine,
                                     di_ipc_client_socket(engine->client),
                                     ngx_http_deepinfer_engine_socket_handler);

    if (engine->socket == NULL) {
        ngx_http_deepinfer_engine_lost(engine, "no free worker connection");
        return;
    }

    ngx_add_timer(&engine->timer, NGX_HTTP_DEEPINFER_HANDSHAKE);

    ngx_http_deepinfer_engine_handshake(engine);
}


static void
ngx_http_deepinfer_engine_handshake(ngx_http_deepinfer_engine_t *engine)
{
    int       rc;
    di_err_t  err;

    ngx_memzero(&err, sizeof(di_err_t));

    rc = di_ipc_client_handshake(engine->client, &err);

    if (rc == DI_EAGAIN) {
        return;
    }

    if (rc != DI_OK) {
        ngx_http_deepinfer_engine_lost(engine, err.text);
        return;
    }

    if (di_ipc_client_welcome(engine->client)->vocab
        < di_vocab_size(engine->pool->vocab))
    {
        ngx_http_deepinfer_engine_lost(engine, "its vocabulary is smaller "
                                       "than the pool's");
        return;
    }

    engine->bell = ngx_http_deepinfer_watch(engine,
                                       di_ipc_client_eventfd(engine->client),
                                       ngx_http_deepinfer_engine_bell_handler);

    if (engine->bell == NULL) {
        ngx_http_deepinfer_engine_lost(engine, "no free worker connection");
        return;
    }

    engine->bell->idle = 1;

    ngx_add_timer(&engine->timer, engine->pool->engine_timeout / 4);

    engine->ready = 1;
    engine->seen = ngx_http_deepinfer_now();
    engine->reason[0] = '\0';
    engine->backoff = NGX_HTTP_DEEPINFER_BACKOFF;

    ngx_log_error(NGX_LOG_NOTICE, engine->log, 0,
                  "deepinfer: engine \"%V\" of pool \"%V\" is connected, "
                  "model \"%s\", %s, pid %uD",
                  &engine->name, &engine->pool->name,
                  di_ipc_client_welcome(engine->client)->model,
                  di_ipc_client_welcome(engine->client)->arith,
                  di_ipc_client_welcome(engine->client)->pid);

    /* the first call arms the bell */

    ngx_http_deepinfer_engine_receive(engine);
}


/*
 * The engine can't be used: end what it ran, come back later.  A reason is
 * logged once, not at each attempt to connect.
 */

void
ngx_http_deepinfer_engine_lost(ngx_http_deepinfer_engine_t *engine,
    const char *reason)
{
    ngx_queue_t               *q;
    ngx_connection_t          *c;
    ngx_http_deepinfer_sub_t  *sub;

    if (ngx_strcmp(engine->reason, reason) != 0) {
        (void) ngx_cpystrn((u_char *) engine->reason, (u_char *) reason,
                           sizeof(engine->reason));

        ngx_log_error(NGX_LOG_ERR, engine->log, 0,
                      "deepinfer: engine \"%V\" of pool \"%V\" is %s: %s",
                      &engine->name, &engine->pool->name,
                      engine->ready ? "lost" : "not available", reason);
    }

    if (engine->ready) {
        engine->ready = 0;

        /* the memory outlives the engine: what it had finished is good */

        while (ngx_http_deepinfer_engine_take(engine) == DI_OK) { /* void */ }

        ngx_http_deepinfer_engine_write(engine);
    }

    ngx_http_deepinfer_engine_close(engine);

    ngx_add_timer(&engine->timer, engine->backoff);
    engine->backoff = ngx_min(engine->backoff * 2,
                              NGX_HTTP_DEEPINFER_BACKOFF_MAX);

    while (!ngx_queue_empty(&engine->subs)) {
        q = ngx_queue_head(&engine->subs);
        sub = ngx_queue_data(q, ngx_http_deepinfer_sub_t, queue);
        c = sub->ctx->request->connection;

        ngx_http_set_log_request(c->log, sub->ctx->request);

        ngx_http_deepinfer_engine_gone(sub);

        ngx_http_run_posted_requests(c);
    }

    ngx_http_deepinfer_dispatch_waiting(engine->pool);
}


static void
ngx_http_deepinfer_engine_close(ngx_http_deepinfer_engine_t *engine)
{
    if (engine->timer.timer_set) {
        ngx_del_timer(&engine->timer);
    }

    if (engine->retry.timer_set) {
        ngx_del_timer(&engine->retry);
    }

    if (engine->flush.posted) {
        ngx_delete_posted_event(&engine->flush);
    }

    ngx_http_deepinfer_unwatch(&engine->bell);
    ngx_http_deepinfer_unwatch(&engine->socket);

    if (engine->client) {
        di_ipc_client_close(engine->client);
        engine->client = NULL;
    }

    engine->n_controls = 0;
    engine->ready = 0;
}


static ngx_connection_t *
ngx_http_deepinfer_watch(ngx_http_deepinfer_engine_t *engine, int fd,
    ngx_event_handler_pt handler)
{
    ngx_int_t          event;
    ngx_connection_t  *c;

    c = ngx_get_connection(fd, engine->log);
    if (c == NULL) {
        return NULL;
    }

    c->data = engine;

    c->read->handler = handler;
    c->read->log = engine->log;
    c->read->channel = 1;

    c->write->handler = ngx_http_deepinfer_empty_handler;
    c->write->log = engine->log;
    c->write->channel = 1;

    event = (ngx_event_flags & NGX_USE_CLEAR_EVENT) ? NGX_CLEAR_EVENT
                                                    : NGX_LEVEL_EVENT;

    if (ngx_add_event(c->read, NGX_READ_EVENT, event) != NGX_OK) {
        ngx_free_connection(c);
        c->fd = (ngx_socket_t) -1;
        return NULL;
    }

    return c;
}


/*
 * The descriptor is the client's, which closes it.  It is taken out of epoll
 * by hand, since closing does not: the engine has the same open file.
 */

static void
ngx_http_deepinfer_unwatch(ngx_connection_t **cp)
{
    ngx_connection_t  *c;

    c = *cp;

    if (c == NULL) {
        return;
    }

    *cp = NULL;

    if (c->read->active) {
        (void) ngx_del_event(c->read, NGX_READ_EVENT, 0);
    }

    if (c->read->posted) {
        ngx_delete_posted_event(c->read);
    }

    ngx_free_connection(c);
    c->fd = (ngx_socket_t) -1;
}


static void
ngx_http_deepinfer_engine_timer_handler(ngx_event_t *ev)
{
    di_ipc_status_t               status;
    ngx_http_deepinfer_engine_t  *engine;

    engine = ev->data;

    if (engine->client == NULL) {
        ngx_http_deepinfer_engine_connect(engine);
        return;
    }

    if (!engine->ready) {
        ngx_http_deepinfer_engine_lost(engine, "handshake timed out");
        return;
    }

    (void) ngx_http_deepinfer_engine_status(engine, &status);

    if (ngx_http_deepinfer_engine_silence(engine)
        > engine->pool->engine_timeout)
    {
        ngx_http_deepinfer_engine_lost(engine, "it hangs");
        return;
    }

    ngx_add_timer(&engine->timer, engine->pool->engine_timeout / 4);
}


static void
ngx_http_deepinfer_engine_socket_handler(ngx_event_t *ev)
{
    u_char                        byte;
    ssize_t                       n;
    ngx_connection_t             *c;
    ngx_http_deepinfer_engine_t  *engine;

    c = ev->data;
    engine = c->data;

    if (!engine->ready) {
        ngx_http_deepinfer_engine_handshake(engine);
        return;
    }

    n = recv(c->fd, &byte, 1, MSG_DONTWAIT);

    if (n == -1 && (ngx_socket_errno == NGX_EAGAIN
                    || ngx_socket_errno == NGX_EINTR))
    {
        return;
    }

    ngx_http_deepinfer_engine_lost(engine, n > 0 ? "it spoke out of turn"
                                                 : "it closed the connection");
}


static void
ngx_http_deepinfer_engine_bell_handler(ngx_event_t *ev)
{
    ngx_connection_t             *c;
    ngx_http_deepinfer_engine_t  *engine;

    c = ev->data;
    engine = c->data;

    if (c->close) {
        c->close = 0;
        ngx_http_deepinfer_exiting(engine->pool->main);
    }

    ngx_http_deepinfer_engine_receive(engine);
}


static void
ngx_http_deepinfer_empty_handler(ngx_event_t *ev)
{
    ngx_log_debug0(NGX_LOG_DEBUG_EVENT, ev->log, 0, "deepinfer empty handler");
}


/* Look for events although no bell rang. */

void
ngx_http_deepinfer_engine_poll(ngx_http_deepinfer_engine_t *engine)
{
    if (engine->bell) {
        ngx_post_event(engine->bell->read, &ngx_posted_events);
    }
}


static void
ngx_http_deepinfer_engine_receive(ngx_http_deepinfer_engine_t *engine)
{
    int  rc;

    do {
        rc = ngx_http_deepinfer_engine_take(engine);

        ngx_http_deepinfer_engine_write(engine);

        if (rc == DI_EPROTO) {
            ngx_http_deepinfer_engine_lost(engine, "it wrote a wrong event");
            return;
        }

        if (rc == DI_OK) {

            /* there is more: let other connections have their turn */

            ngx_post_event(engine->bell->read, &ngx_posted_next_events);
            break;
        }

    } while (di_ipc_client_sleep(engine->client) == DI_EAGAIN);

    /* the engine has read its ring since: there may be room again */

    if (engine->n_controls) {
        ngx_post_event(&engine->flush, &ngx_posted_events);
    }

    ngx_http_deepinfer_dispatch_waiting(engine->pool);
}
