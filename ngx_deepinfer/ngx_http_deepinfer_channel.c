
/*
 * ngx_http_deepinfer_channel.c - what goes through a connection to an engine.
 *
 * Submissions and control messages of one turn of the event loop are staged
 * and published by one posted event, with one doorbell.  A submission that
 * finds no room waits in its pool, a control message in engine->controls.
 *
 * Events are taken until there are none; each only changes its request and
 * marks it, then every marked request is written once.  So a request gets one
 * write a wake-up whatever number of tokens came for it, and nothing is freed
 * under a loop that still uses it.
 */


#include "ngx_http_deepinfer.h"


#define NGX_HTTP_DEEPINFER_RETRY  1             /* ms, after a full ring */
#define NGX_HTTP_DEEPINFER_BATCH  2048          /* events between writes */


static int ngx_http_deepinfer_engine_stage(ngx_http_deepinfer_engine_t *engine,
    ngx_http_deepinfer_control_t *control);
static void ngx_http_deepinfer_engine_stage_all(
    ngx_http_deepinfer_engine_t *engine);
static ngx_http_deepinfer_slot_t *ngx_http_deepinfer_slot_alloc(
    ngx_http_deepinfer_engine_t *engine);
static void ngx_http_deepinfer_slot_free(ngx_http_deepinfer_engine_t *engine,
    uint64_t id);
static ngx_http_deepinfer_sub_t *ngx_http_deepinfer_slot_find(
    ngx_http_deepinfer_engine_t *engine, uint64_t id);
static void ngx_http_deepinfer_engine_mark(ngx_http_deepinfer_engine_t *engine,
    ngx_http_deepinfer_ctx_t *ctx);


/*
 * Stage a submission.  DI_OK: it is the engine's now; DI_EAGAIN: the ring is
 * full; DI_EINVAL, DI_ELIMIT: never, err says why; DI_ENOMEM.
 */

ngx_int_t
ngx_http_deepinfer_engine_submit(ngx_http_deepinfer_engine_t *engine,
    ngx_http_deepinfer_sub_t *sub, di_err_t *err)
{
    int                         rc;
    uint64_t                    id;
    ngx_http_deepinfer_slot_t  *slot;

    slot = ngx_http_deepinfer_slot_alloc(engine);
    if (slot == NULL) {
        return DI_ENOMEM;
    }

    slot->sub = sub;

    id = (uint64_t) slot->generation << 32
         | (uint64_t) (slot - engine->slots);

    rc = di_ipc_client_submit(engine->client, id, &sub->gen, err);

    /* even a full ring has to be published, to become empty */

    ngx_post_event(&engine->flush, &ngx_posted_events);

    if (rc != DI_OK) {
        ngx_http_deepinfer_slot_free(engine, id);

        if (rc == DI_EAGAIN && !engine->retry.timer_set) {
            ngx_add_timer(&engine->retry, NGX_HTTP_DEEPINFER_RETRY);
        }

        return rc;
    }

    sub->id = id;
    sub->engine = engine;
    sub->ctx->last_engine = engine;
    sub->started = 0;
    sub->over = 0;
    sub->paused = 0;
    sub->queued = 1;

    ngx_queue_insert_tail(&engine->subs, &sub->queue);
    engine->unstarted++;

    return DI_OK;
}


/* Part a submission from its engine, which drops what it still has of it. */

void
ngx_http_deepinfer_engine_release(ngx_http_deepinfer_sub_t *sub)
{
    ngx_http_deepinfer_engine_t  *engine;

    if (sub->queued) {
        sub->queued = 0;
        ngx_queue_remove(&sub->queue);
    }

    engine = sub->engine;

    if (engine == NULL) {
        return;
    }

    sub->engine = NULL;

    if (!sub->started) {
        engine->unstarted--;
    }

    ngx_http_deepinfer_slot_free(engine, sub->id);

    if (!sub->over) {
        ngx_http_deepinfer_engine_control(engine, sub->id,
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


void
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


void
ngx_http_deepinfer_engine_retry_handler(ngx_event_t *ev)
{
    ngx_http_deepinfer_engine_t  *engine;

    engine = ev->data;

    ngx_post_event(&engine->flush, &ngx_posted_events);

    ngx_http_deepinfer_dispatch_waiting(engine->pool);
}


/*
 * Take a batch of events.  DI_EAGAIN: there are no more; DI_OK: there may be;
 * DI_EPROTO: the ring is broken.
 */

int
ngx_http_deepinfer_engine_take(ngx_http_deepinfer_engine_t *engine)
{
    int                        rc;
    ngx_uint_t                 n;
    di_event_t                 event;
    const di_top_logprob_t    *top;
    ngx_http_deepinfer_sub_t  *sub;

    engine->now = ngx_http_deepinfer_now();

    for (n = 0; n < NGX_HTTP_DEEPINFER_BATCH; n++) {

        rc = di_ipc_client_recv(engine->client, &event, &top);

        if (rc != DI_OK) {
            return rc;
        }

        sub = ngx_http_deepinfer_slot_find(engine, event.id);

        if (sub == NULL) {

            /* the request was cancelled meanwhile */

            continue;
        }

        ngx_http_deepinfer_event(sub, &event, top);
        ngx_http_deepinfer_engine_mark(engine, sub->ctx);
    }

    return DI_OK;
}


static void
ngx_http_deepinfer_engine_mark(ngx_http_deepinfer_engine_t *engine,
    ngx_http_deepinfer_ctx_t *ctx)
{
    if (!ctx->is_dirty) {
        ctx->is_dirty = 1;
        ngx_queue_insert_tail(&engine->dirty, &ctx->dirty);
    }
}


void
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

        ngx_http_deepinfer_run(ctx);

        ngx_http_run_posted_requests(c);
    }
}


/* The longest context of the pool's engines that are connected; 0: none. */

uint32_t
ngx_http_deepinfer_max_model_len(ngx_http_deepinfer_pool_t *pool)
{
    uint32_t                      len;
    ngx_uint_t                    i;
    ngx_http_deepinfer_engine_t  *engine;

    len = 0;
    engine = pool->engines.elts;

    for (i = 0; i < pool->engines.nelts; i++) {
        if (engine[i].ready) {
            len = ngx_max(len, di_ipc_client_welcome(engine[i].client)
                               ->max_model_len);
        }
    }

    return len;
}


/* The engine's own figures; 0 if there are none now. */

ngx_uint_t
ngx_http_deepinfer_engine_status(ngx_http_deepinfer_engine_t *engine,
    di_ipc_status_t *status)
{
    if (!engine->ready
        || di_ipc_client_status(engine->client, status) != DI_OK)
    {
        return 0;
    }

    engine->seen = ngx_max(engine->seen, status->updated_us);

    return 1;
}


/*
 * For how long an engine gave no sign of life, in milliseconds, when its
 * status was last asked for: it writes that once a step or every 100 ms.
 */

ngx_msec_t
ngx_http_deepinfer_engine_silence(ngx_http_deepinfer_engine_t *engine)
{
    uint64_t  now;

    now = ngx_http_deepinfer_now();

    return (now > engine->seen) ? (ngx_msec_t) ((now - engine->seen) / 1000)
                                : 0;
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
            slots[i].sub = NULL;
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

    slot->sub = NULL;
    slot->next = engine->free_slot;
    engine->free_slot = i;
}


static ngx_http_deepinfer_sub_t *
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

    return slot->sub;
}
