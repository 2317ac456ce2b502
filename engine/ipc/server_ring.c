/*
 * server_ring.c - messages in, events out, the status page.
 *
 * Hostile workers.  A slot or payload is copied once and the copy is checked;
 * of the shared memory only the next slot, the worker's position in the other
 * ring, its sleep count and the arena are ever read.  A position that moves
 * back or too far, a payload outside the arena or an unknown message closes
 * that connection.  A request whose values are out of range is no breach: it
 * gets DI_EV_REJECT.  One di_ipc_server_recv() looks at each connection once
 * at most, so that a flood of rejects can't hold the engine inside the call.
 *
 * Room.  DI_IPC_RESERVE completion slots are never reported by
 * di_ipc_server_room(): they are for what answers a message at once (a
 * REJECT, FINISH for each choice of a cancelled request), and no message is
 * taken from a connection that has not that many free.  Hence the answer to
 * any message can be sent.
 */

#include <stdio.h>
#include <unistd.h>

#include "server_impl.h"

#define RELEASE_EVERY 32             /* messages read before slots go back  */

/* Free completion slots, at least `want` if there are so many.  The worker's
 * head is read again only when the cached one is not enough. */
static uint32_t
room_for(di_ipc_server_t *server, di_conn_t *conn, uint32_t want)
{
    if (conn->state != CONN_READY)
        return 0;

    if (di_ring_room(&conn->tx) < want
        && di_ring_tx_refresh(&conn->tx) != DI_OK)
    {
        di_server_drop(server, conn);
        return 0;
    }

    return di_ring_room(&conn->tx);
}

/* Copy a submission's payload and point msg->req into it.  DI_OK, or DI_EPROTO
 * when it does not lie in the arena. */
static int
copy_payload(di_ipc_server_t *server, di_conn_t *conn, const di_shm_sub_t *slot,
             di_gen_request_t *req)
{
    uint64_t       bytes;
    unsigned char *from = server->payload;

    if (slot->n_bias > DI_GEN_BIAS_MAX
        || slot->n_stop_ids > DI_GEN_STOP_IDS_MAX
        || slot->n_grammar > DI_IPC_GRAMMAR_MAX
        || slot->payload_off % DI_SHM_ALIGN != 0)
    {
        return DI_EPROTO;
    }

    bytes = di_shm_payload_bytes(slot->n_prompt, slot->n_bias,
                                 slot->n_stop_ids, slot->n_grammar);
    if (slot->payload_off > DI_IPC_ARENA_BYTES
        || bytes > DI_IPC_ARENA_BYTES - slot->payload_off)
    {
        return DI_EPROTO;
    }

    di_shm_copy(from, conn->shm.arena + slot->payload_off, bytes);

    *req = (di_gen_request_t) {
        .n_prompt = slot->n_prompt,
        .n_bias = slot->n_bias,
        .n_stop_ids = slot->n_stop_ids,
        .n_grammar = slot->n_grammar,
    };
    memcpy(req->salt, slot->salt, sizeof(req->salt));

    memcpy(&req->params, from, sizeof(req->params));
    from += sizeof(req->params);
    req->prompt = (const int32_t *) from;
    from += (size_t) slot->n_prompt * sizeof(int32_t);
    req->bias = (const di_logit_bias_t *) from;
    from += (size_t) slot->n_bias * sizeof(di_logit_bias_t);
    req->stop_ids = (const int32_t *) from;
    from += (size_t) slot->n_stop_ids * sizeof(int32_t);
    req->grammar = from;
    return DI_OK;
}

/* Answer a submission here; recv_from() has seen to the room. */
static void
reject(di_ipc_server_t *server, const di_ipc_msg_t *msg, di_reject_t reason,
       uint32_t a, uint32_t b, const char *text)
{
    di_event_t ev = { .id = msg->id, .type = DI_EV_REJECT };

    ev.u.reject.reason = reason;
    ev.u.reject.a = a;
    ev.u.reject.b = b;
    (void) snprintf(ev.u.reject.text, sizeof(ev.u.reject.text), "%.27s", text);
    (void) di_ipc_server_send(server, msg->conn, &ev, NULL);
}

/* Read the next slot, its word being `mark`, into *msg.  DI_OK; DI_EAGAIN:
 * answered here; DI_EPROTO. */
static int
read_slot(di_ipc_server_t *server, di_conn_t *conn, uint32_t mark,
          di_ipc_msg_t *msg)
{
    uint32_t     longest = server->conf.welcome.max_model_len;
    di_err_t     err = { 0 };
    di_shm_sub_t slot;

    di_ring_get(&conn->rx, 0, mark, &slot);

    msg->conn = (uint32_t) (conn - server->conn);
    msg->id = slot.id;
    msg->choice = slot.choice;

    switch (slot.type) {
    case DI_SUB_CANCEL:
        msg->type = DI_MSG_CANCEL;
        return DI_OK;
    case DI_SUB_PAUSE:
        msg->type = DI_MSG_PAUSE;
        return DI_OK;
    case DI_SUB_RESUME:
        msg->type = DI_MSG_RESUME;
        return DI_OK;
    case DI_SUB_SUBMIT:
        break;
    default:
        return DI_EPROTO;
    }

    msg->type = DI_MSG_SUBMIT;

    /* Megabytes that can't be served are not worth a copy. */
    if (slot.n_prompt > longest) {
        reject(server, msg, DI_REJECT_TOO_LONG, slot.n_prompt, longest,
               "prompt");
        return DI_EAGAIN;
    }

    if (copy_payload(server, conn, &slot, &msg->req) != DI_OK)
        return DI_EPROTO;

    if (di_gen_request_check(&msg->req, &err) != DI_OK) {
        reject(server, msg, DI_REJECT_INVALID, 0, 0, err.text);
        return DI_EAGAIN;
    }

    return DI_OK;
}

/* One look at one connection.  DI_OK with *msg, or DI_EAGAIN. */
static int
recv_from(di_ipc_server_t *server, di_conn_t *conn, di_ipc_msg_t *msg)
{
    int           rc;
    uint32_t      mark;
    di_ring_rx_t *rx = &conn->rx;

    if (conn->state == CONN_GONE) {
        conn->state = CONN_FREE;
        server->n_gone--;
        *msg = (di_ipc_msg_t) {
            .type = DI_MSG_CLOSED,
            .conn = (uint32_t) (conn - server->conn),
        };
        return DI_OK;
    }

    if (conn->state != CONN_READY)
        return DI_EAGAIN;

    if (!di_ring_ready(rx, 0, &mark)) {
        if (rx->released != rx->next)
            di_ring_release(rx);
        return DI_EAGAIN;
    }

    conn->held = room_for(server, conn, DI_IPC_RESERVE) < DI_IPC_RESERVE;
    if (conn->held)
        return DI_EAGAIN;

    rc = read_slot(server, conn, mark, msg);
    if (rc == DI_EPROTO) {
        di_server_drop(server, conn);
        return DI_EAGAIN;
    }

    rx->next++;
    if (rx->next - rx->released >= RELEASE_EVERY)
        di_ring_release(rx);
    return rc;
}

int
di_ipc_server_recv(di_ipc_server_t *server, di_ipc_msg_t *msg)
{
    uint32_t looked;

    for (looked = 0; looked < server->n_used; looked++) {
        if (server->turn >= server->n_used)
            server->turn = 0;

        if (recv_from(server, &server->conn[server->turn++], msg) == DI_OK)
            return DI_OK;
    }

    return DI_EAGAIN;
}

uint32_t
di_ipc_server_room(di_ipc_server_t *server, uint32_t conn)
{
    uint32_t room;

    if (conn >= DI_IPC_CONNS_MAX)
        return 0;

    room = room_for(server, &server->conn[conn], DI_IPC_COMP_SLOTS / 2);
    return room > DI_IPC_RESERVE ? room - DI_IPC_RESERVE : 0;
}

int
di_ipc_server_send(di_ipc_server_t *server, uint32_t conn,
                   const di_event_t *event, const di_top_logprob_t *top)
{
    di_conn_t       *c;
    uint32_t      n, n_slots, left;
    di_shm_comp_t slot = { .top = { { 0, 0 } } };

    if (conn >= DI_IPC_CONNS_MAX || event->choice >= DI_GEN_N_MAX
        || event->n_top > DI_GEN_TOP_LOGPROBS_MAX)
        return DI_EINVAL;

    c = &server->conn[conn];
    n_slots = 1 + (event->n_top + DI_SHM_TOP_PER_SLOT - 1u)
                  / DI_SHM_TOP_PER_SLOT;

    if (c->state != CONN_READY)
        return DI_ECLOSED;
    if (room_for(server, c, n_slots) < n_slots)
        return c->state == CONN_READY ? DI_EAGAIN : DI_ECLOSED;

    di_ring_put(&c->tx, event);

    for (left = event->n_top; left > 0; left -= n, top += n) {
        n = left < DI_SHM_TOP_PER_SLOT ? left : DI_SHM_TOP_PER_SLOT;
        memcpy(slot.top, top, n * sizeof(*top));
        di_ring_put(&c->tx, &slot);
    }

    if (!c->dirty) {
        c->dirty = true;
        server->dirty[server->n_dirty++] = conn;
    }

    return DI_OK;
}

static void
ring_worker(di_conn_t *conn)
{
    ssize_t n;
    char    bell = 0;

    /* EAGAIN: the pipe is full of bells already. */
    n = write(conn->worker_bell[1], &bell, 1);
    (void) n;
}

void
di_ipc_server_flush(di_ipc_server_t *server)
{
    uint32_t i;
    di_conn_t  *conn;

    for (i = 0; i < server->n_dirty; i++) {
        conn = &server->conn[server->dirty[i]];
        conn->dirty = false;

        if (conn->state != CONN_READY)
            continue;

        di_ring_publish(&conn->tx);
        if (di_bell_due(&conn->shm.head->worker_sleep, &conn->rung))
            ring_worker(conn);
    }

    server->n_dirty = 0;         /* before a connection can be used anew    */
}

void
di_server_write_status(di_conn_t *conn, const di_ipc_status_t *status)
{
    size_t           i;
    uint32_t         seq;
    uint64_t         word[DI_SHM_STATUS_WORDS];
    di_shm_status_t *page = conn->shm.status;

    memcpy(word, status, sizeof(word));

    /* Our own copy of seq would do as well; a worker that changes it only
     * confuses itself. */
    seq = atomic_load_explicit(&page->seq, memory_order_relaxed) | 1;
    atomic_store_explicit(&page->seq, seq, memory_order_relaxed);

    /* Release: a reader that sees a new word sees the odd seq too. */
    for (i = 0; i < DI_SHM_STATUS_WORDS; i++)
        atomic_store_explicit(&page->word[i], word[i], memory_order_release);

    /* Release: pairs with the reader's first acquire load. */
    atomic_store_explicit(&page->seq, seq + 1, memory_order_release);
}

void
di_ipc_server_status(di_ipc_server_t *server, const di_ipc_status_t *status)
{
    uint32_t i;

    server->status = *status;

    for (i = 0; i < server->n_used; i++) {
        if (server->conn[i].state == CONN_READY)
            di_server_write_status(&server->conn[i], status);
    }
}
