
/*
 * ngx_http_deepinfer_engine.c - a worker's connection to one engine.
 *
 * States: absent (client is NULL, the timer waits for the next connect),
 * connecting (client, but not ready; the timer limits the handshake), ready.
 * Connecting never blocks.  Two descriptors of the client are watched: the
 * socket, whose end is the engine's death notice, and the eventfd, the bell
 * that announces events.  Both are nginx connections with "channel" set, so
 * that neither worker_shutdown_timeout nor the check for left open sockets
 * takes them for clients.  The bell also has "idle" set: nginx calls the read
 * handlers of idle connections when a graceful exit begins, and a worker has
 * no other way to learn of it.
 *
 * Submissions and control messages of one turn of the event loop are staged
 * and published by one posted event, with one doorbell.  Events are taken
 * until there are none; each only changes its request and marks it, then every
 * marked request is written once.  So a request gets one write a wake-up
 * whatever number of tokens came for it, and nothing is freed under a loop
 * that still uses it.
 *
 * The timers are cancelable, they must not hold a graceful worker.
 */


#include "ngx_http_deepinfer.h"


#define NGX_HTTP_DEEPINFER_HANDSHAKE  5000      /* ms */
#define NGX_HTTP_DEEPINFER_BACKOFF    20        /* ms, doubled up to */
#define NGX_HTTP_DEEPINFER_BACKOFF_MAX  1000
#define NGX_HTTP_DEEPINFER_RETRY      1         /* ms, after a full ring */
#define NGX_HTTP_DEEPINFER_BATCH      2048      /* events between writes */


static void ngx_http_deepinfer_engine_connect(
    ngx_http_deepinfer_engine_t *engine);
static void ngx_http_deepinfer_engine_handshake(
    ngx_http_deepinfer_engine_t *engine);
static void ngx_http_deepinfer_engine_lost(ngx_http_deepinfer_engine_t *engine,
    const char *reason);
static void ngx_http_deepinfer_engine_close(
    ngx_http_deepinfer_engine_t *engine);
static ngx_connection_t *ngx_http_deepinfer_watch(
    ngx_http_deepinfer_engine_t *engine, int fd,
    ngx_event_handler_pt handler);
static void ngx_http_deepinfer_unwatch(ngx_connection_t **cp);
static void ngx_http_deepinfer_engine_timer_handler(ngx_event_t *ev);
static void ngx_http_deepinfer_engine_socket_handler(ngx_event_t *ev);
static void ngx_http_deepinfer_engine_bell_handler(ngx_event_t *ev);
static void ngx_http_deepinfer_engine_flush_handler(ngx_event_t *ev);
static void ngx_http_deepinfer_engine_retry_handler(ngx_event_t *ev);
static void ngx_http_deepinfer_empty_handler(ngx_event_t *ev);
static void ngx_http_deepinfer_engine_receive(
    ngx_http_deepinfer_engine_t *engine);
static int ngx_http_deepinfer_engine_take(ngx_http_deepinfer_engine_t *engine);
static void ngx_http_deepinfer_engine_write(
    ngx_http_deepinfer_engine_t *engine);
static int ngx_http_deepinfer_engine_stage(ngx_http_deepinfer_engine_t *engine,
    ngx_http_deepinfer_control_t *control);
static void ngx_http_deepinfer_engine_stage_all(
    ngx_http_deepinfer_engine_t *engine);
static ngx_http_deepinfer_slot_t *ngx_http_deepinfer_slot_alloc(
    ngx_http_deepinfer_engine_t *engine);
static void ngx_http_deepinfer_slot_free(ngx_http_deepinfer_engine_t *engine,
    uint64_t id);
static ngx_http_deepinfer_ctx_t *ngx_http_deepinfer_slot_find(
    ngx_http_deepinfer_engine_t *engine, uint64_t id);


void
ngx_http_deepinfer_engine_init(ngx_http_deepinfer_engine_t *engine,
    ngx_cycle_t *cycle)
{
    engine->log = cycle->log;

    ngx_queue_init(&engine->requests);
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

    rc = di_ipc_client_open(engine->path, engine->pool->fingerprint,
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

    engine->bell = ngx_http_deepinfer_watch(engine,
                                       di_ipc_client_eventfd(engine->client),
                                       ngx_http_deepinfer_engine_bell_handler);

    if (engine->bell == NULL) {
        ngx_http_deepinfer_engine_lost(engine, "no free worker connection");
        return;
    }

    engine->bell->idle = 1;

    ngx_del_timer(&engine->timer);

    engine->ready = 1;
    engine->complained = 0;
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
 * The engine can't be used: end what it ran, come back later.  Its absence is
 * logged once, not at each attempt.
 */

static void
ngx_http_deepinfer_engine_lost(ngx_http_deepinfer_engine_t *engine,
    const char *reason)
{
    ngx_queue_t               *q;
    ngx_connection_t          *c;
    ngx_http_deepinfer_ctx_t  *ctx;

    if (!engine->complained) {
        engine->complained = 1;

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

    while (!ngx_queue_empty(&engine->requests)) {
        q = ngx_queue_head(&engine->requests);
        ctx = ngx_queue_data(q, ngx_http_deepinfer_ctx_t, queue);
        c = ctx->request->connection;

        ngx_http_set_log_request(c->log, ctx->request);

        ngx_http_deepinfer_engine_release(ctx);
        ngx_http_deepinfer_chat_engine_lost(ctx);

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
    ngx_http_deepinfer_engine_t  *engine;

    engine = ev->data;

    if (engine->client) {
        ngx_http_deepinfer_engine_lost(engine, "handshake timed out");
        return;
    }

    ngx_http_deepinfer_engine_connect(engine);
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


/*
 * Take a batch of events.  DI_EAGAIN: there are no more; DI_OK: there may be;
 * DI_EPROTO: the ring is broken.
 */

static int
ngx_http_deepinfer_engine_take(ngx_http_deepinfer_engine_t *engine)
{
    int                        rc;
    ngx_uint_t                 n;
    di_event_t                 event;
    const di_top_logprob_t    *top;
    ngx_http_deepinfer_ctx_t  *ctx;

    for (n = 0; n < NGX_HTTP_DEEPINFER_BATCH; n++) {

        rc = di_ipc_client_recv(engine->client, &event, &top);

        if (rc != DI_OK) {
            return rc;
        }

        ctx = ngx_http_deepinfer_slot_find(engine, event.id);

        if (ctx == NULL) {

            /* the request was cancelled meanwhile */

            continue;
        }

        ngx_http_deepinfer_chat_event(ctx, &event, top);
        ngx_http_deepinfer_engine_mark(ctx);
    }

    return DI_OK;
}


void
ngx_http_deepinfer_engine_mark(ngx_http_deepinfer_ctx_t *ctx)
{
    if (!ctx->is_dirty) {
        ctx->is_dirty = 1;
        ngx_queue_insert_tail(&ctx->engine->dirty, &ctx->dirty);
    }
}


static void
ngx_http_deepinfer_engine_write(ngx_http_deepinfer_engine_t *engine)
{
    ngx_queue_t               *q;
    ngx_connection_t          *c;
    ngx_http_deepinfer_ctx_t  *ctx;

    while (!ngx_queue_empty(&engine->dirty)) {
        q = ngx_queue_head(&engine->dirty);
        ctx = ngx_queue_data(q, ngx_http_deepinfer_ctx_t, dirty);

        ngx_queue_remove(q);
        ctx->is_dirty = 0;

        c = ctx->request->connection;

        ngx_http_set_log_request(c->log, ctx->request);

        ngx_http_deepinfer_chat_run(ctx);

        ngx_http_run_posted_requests(c);
    }
}


/*
 * Stage a request.  DI_OK: it is the engine's now; DI_EAGAIN: the ring is
 * full; DI_EINVAL, DI_ELIMIT: never, err says why; DI_ENOMEM.
 */

ngx_int_t
ngx_http_deepinfer_engine_submit(ngx_http_deepinfer_engine_t *engine,
    ngx_http_deepinfer_ctx_t *ctx, di_err_t *err)
{
    int                         rc;
    uint64_t                    id;
    ngx_http_deepinfer_slot_t  *slot;

    slot = ngx_http_deepinfer_slot_alloc(engine);
    if (slot == NULL) {
        return DI_ENOMEM;
    }

    slot->ctx = ctx;

    id = (uint64_t) slot->generation << 32
         | (uint64_t) (slot - engine->slots);

    rc = di_ipc_client_submit(engine->client, id, &ctx->gen, err);

    /* even a full ring has to be published, to become empty */

    ngx_post_event(&engine->flush, &ngx_posted_events);

    if (rc != DI_OK) {
        ngx_http_deepinfer_slot_free(engine, id);

        if (rc == DI_EAGAIN && !engine->retry.timer_set) {
            ngx_add_timer(&engine->retry, NGX_HTTP_DEEPINFER_RETRY);
        }

        return rc;
    }

    ctx->id = id;
    ctx->engine = engine;
    ctx->last_engine = engine;
    ctx->started = 0;
    ctx->over = 0;
    ctx->paused = 0;
    ctx->queued = 1;

    ngx_queue_insert_tail(&engine->requests, &ctx->queue);
    engine->unstarted++;

    return DI_OK;
}


/* Part a request from its engine, which drops what it still has of it. */

void
ngx_http_deepinfer_engine_release(ngx_http_deepinfer_ctx_t *ctx)
{
    ngx_http_deepinfer_engine_t  *engine;

    if (ctx->is_dirty) {
        ctx->is_dirty = 0;
        ngx_queue_remove(&ctx->dirty);
    }

    if (ctx->queued) {
        ctx->queued = 0;
        ngx_queue_remove(&ctx->queue);
    }

    engine = ctx->engine;

    if (engine == NULL) {
        return;
    }

    ctx->engine = NULL;

    if (!ctx->started) {
        engine->unstarted--;
    }

    ngx_http_deepinfer_slot_free(engine, ctx->id);

    if (!ctx->over) {
        ngx_http_deepinfer_engine_control(engine, ctx->id,
                                          ngx_http_deepinfer_op_cancel, 0);
    }
}


/*
 * Tell the engine something about a request.  It reaches the engine in order,
 * and if the ring is full, later.
 */

void
ngx_http_deepinfer_engine_control(ngx_http_deepinfer_engine_t *engine,
    uint64_t id, ngx_http_deepinfer_op_e op, uint32_t choice)
{
    ngx_uint_t                     max;
    ngx_http_deepinfer_control_t   control, *controls;

    if (!engine->ready) {
        return;
    }

    control.id = id;
    control.op = op;
    control.choice = choice;

    ngx_post_event(&engine->flush, &ngx_posted_events);

    if (engine->n_controls == 0
        && ngx_http_deepinfer_engine_stage(engine, &control) == DI_OK)
    {
        return;
    }

    if (engine->n_controls == engine->controls_max) {
        max = engine->controls_max ? engine->controls_max * 2 : 64;

        controls = ngx_alloc(max * sizeof(ngx_http_deepinfer_control_t),
                             engine->log);
        if (controls == NULL) {

            /*
             * A message that is lost would leave a sequence running or held
             * for ever; a new connection starts from nothing.
             */

            shutdown(di_ipc_client_socket(engine->client), SHUT_RDWR);
            return;
        }

        if (engine->controls) {
            ngx_memcpy(controls, engine->controls,
                       engine->n_controls
                       * sizeof(ngx_http_deepinfer_control_t));
            ngx_free(engine->controls);
        }

        engine->controls = controls;
        engine->controls_max = max;
    }

    engine->controls[engine->n_controls++] = control;
}


static int
ngx_http_deepinfer_engine_stage(ngx_http_deepinfer_engine_t *engine,
    ngx_http_deepinfer_control_t *control)
{
    switch (control->op) {

    case ngx_http_deepinfer_op_cancel:
        return di_ipc_client_cancel(engine->client, control->id);

    case ngx_http_deepinfer_op_cancel_choice:
        return di_ipc_client_cancel_choice(engine->client, control->id,
                                           control->choice);

    case ngx_http_deepinfer_op_pause:
        return di_ipc_client_pause(engine->client, control->id, true);

    default: /* ngx_http_deepinfer_op_resume */
        return di_ipc_client_pause(engine->client, control->id, false);
    }
}


static void
ngx_http_deepinfer_engine_stage_all(ngx_http_deepinfer_engine_t *engine)
{
    ngx_uint_t  n;

    for (n = 0; n < engine->n_controls; n++) {
        if (ngx_http_deepinfer_engine_stage(engine, &engine->controls[n])
            != DI_OK)
        {
            break;
        }
    }

    engine->n_controls -= n;

    if (n && engine->n_controls) {
        ngx_memmove(engine->controls, &engine->controls[n],
                    engine->n_controls * sizeof(ngx_http_deepinfer_control_t));
    }
}


static void
ngx_http_deepinfer_engine_flush_handler(ngx_event_t *ev)
{
    ngx_http_deepinfer_engine_t  *engine;

    engine = ev->data;

    ngx_http_deepinfer_engine_stage_all(engine);

    if (di_ipc_client_flush(engine->client) != DI_OK) {
        ngx_http_deepinfer_engine_lost(engine, "it closed the connection");
        return;
    }

    if (engine->n_controls && !engine->retry.timer_set) {
        ngx_add_timer(&engine->retry, NGX_HTTP_DEEPINFER_RETRY);
    }
}


static void
ngx_http_deepinfer_engine_retry_handler(ngx_event_t *ev)
{
    ngx_http_deepinfer_engine_t  *engine;

    engine = ev->data;

    ngx_post_event(&engine->flush, &ngx_posted_events);

    ngx_http_deepinfer_dispatch_waiting(engine->pool);
}


/* The engine's own figures; 0 if there are none now. */

ngx_uint_t
ngx_http_deepinfer_engine_status(ngx_http_deepinfer_engine_t *engine,
    di_ipc_status_t *status)
{
    return engine->ready
           && di_ipc_client_status(engine->client, status) == DI_OK;
}


static ngx_http_deepinfer_slot_t *
ngx_http_deepinfer_slot_alloc(ngx_http_deepinfer_engine_t *engine)
{
    uint32_t                    i, n;
    ngx_http_deepinfer_slot_t  *slots, *slot;

    if (engine->free_slot == engine->n_slots) {
        n = engine->n_slots ? engine->n_slots * 2 : 64;

        slots = ngx_alloc(n * sizeof(ngx_http_deepinfer_slot_t), engine->log);
        if (slots == NULL) {
            return NULL;
        }

        if (engine->slots) {
            ngx_memcpy(slots, engine->slots,
                       engine->n_slots * sizeof(ngx_http_deepinfer_slot_t));
            ngx_free(engine->slots);
        }

        for (i = engine->n_slots; i < n; i++) {
            slots[i].ctx = NULL;
            slots[i].generation = 0;
            slots[i].next = i + 1;
        }

        engine->slots = slots;
        engine->free_slot = engine->n_slots;
        engine->n_slots = n;
    }

    slot = &engine->slots[engine->free_slot];
    engine->free_slot = slot->next;
    slot->generation++;

    return slot;
}


static void
ngx_http_deepinfer_slot_free(ngx_http_deepinfer_engine_t *engine, uint64_t id)
{
    uint32_t                    i;
    ngx_http_deepinfer_slot_t  *slot;

    i = (uint32_t) id;
    slot = &engine->slots[i];

    slot->ctx = NULL;
    slot->next = engine->free_slot;
    engine->free_slot = i;
}


static ngx_http_deepinfer_ctx_t *
ngx_http_deepinfer_slot_find(ngx_http_deepinfer_engine_t *engine, uint64_t id)
{
    uint32_t                    i;
    ngx_http_deepinfer_slot_t  *slot;

    i = (uint32_t) id;

    if (i >= engine->n_slots) {
        return NULL;
    }

    slot = &engine->slots[i];

    if (slot->generation != (uint32_t) (id >> 32)) {
        return NULL;
    }

    return slot->ctx;
}
