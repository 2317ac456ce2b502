/*
 * client.c - the worker's end of the channel.
 *
 * Nothing here blocks: the socket, the engine's pipe and the eventfd are all
 * non-blocking, and every loop is bounded by a ring's size.  A request is
 * staged (payload to the arena, slot to the ring) and becomes visible with
 * di_ipc_client_flush(), so that a turn of the event loop costs one release
 * store, one fence and at most one doorbell.
 *
 * The arena is a byte ring.  Positions run free in 64 bits; the slot of each
 * submission remembers where its payload ended, and once the engine's head
 * has passed the slot everything before that position is free.  A payload
 * never wraps: what is left at the end is skipped.  An empty arena starts
 * over at offset 0, so that a payload of the arena's whole size fits.  Past
 * its first ARENA_HOT bytes every payload looks first whether it is empty:
 * else each channel would come to hold all of the arena in memory, and out of
 * the caches, for the few KiB that are in flight.
 *
 * The engine is trusted with less than it could be: indices, events and the
 * welcome are checked, so that a broken engine costs a worker the connection
 * and not its other streams.
 */

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "ipc_shm.h"

#define RELEASE_EVERY 64         /* events read before slots are given back */
#define ARENA_HOT     65536u     /* bytes that may be used lap after lap    */

struct di_ipc_client_s {
    int              sock;       /* EOF: the engine is gone                 */
    int              fd[DI_FDS]; /* WELCOME's descriptors, -1 before it     */
    bool             ready;      /* handshake done                          */
    bool             closed;     /* EOF was seen                            */
    bool             asleep;     /* our sleep count is odd                  */
    uint64_t         sleep;      /* our sleep count                         */
    uint64_t         rung;       /* engine's sleep count we last rang for   */
    uint64_t         arena_next; /* position of the next payload            */
    uint64_t         arena_freed; /* positions before it are free           */
    di_ring_tx_t     tx;         /* submissions                             */
    di_ring_rx_t     rx;         /* completions                             */
    di_shm_t         shm;
    bool             any_model;  /* no fingerprint was asked for            */
    uint8_t          fingerprint[DI_IPC_FINGERPRINT];
    di_ipc_welcome_t welcome;
    di_top_logprob_t top[3 * DI_SHM_TOP_PER_SLOT];
    uint64_t         arena_end[DI_IPC_SUB_SLOTS]; /* by slot: arena position
                                                   * behind its payload     */
};

_Static_assert(DI_GEN_TOP_LOGPROBS_MAX <= 3 * DI_SHM_TOP_PER_SLOT,
               "scratch of top entries");

/* ------------------------------------------------------------- handshake -- */

static int
say_hello(di_ipc_client_t *client, const char *path, di_err_t *err)
{
    ssize_t            n;
    socklen_t          addr_bytes;
    struct sockaddr_un addr = { .sun_family = AF_UNIX };
    di_ipc_hello_msg_t hello = {
        .magic = DI_SHM_MAGIC,
        .version = DI_IPC_VERSION,
        .has_fingerprint = !client->any_model,
    };

    memcpy(addr.sun_path, path, strlen(path) + 1);
    addr_bytes = (socklen_t) (offsetof(struct sockaddr_un, sun_path)
                              + strlen(path) + 1);

    if (connect(client->sock, (struct sockaddr *) &addr, addr_bytes) < 0) {
        if (errno == ECONNREFUSED || errno == ENOENT)
            return di_err_set(err, DI_ECLOSED, 0, "no engine listens on %s",
                              path);
        if (errno == EAGAIN)
            return di_err_set(err, DI_EAGAIN, 0,
                              "the engine on %s is slow to accept", path);
        return di_err_set(err, DI_EIO, 0, "connect to %s: %s", path,
                          strerror(errno));
    }

    memcpy(hello.fingerprint, client->fingerprint, sizeof(hello.fingerprint));

    n = send(client->sock, &hello, sizeof(hello), MSG_NOSIGNAL);
    if (n != (ssize_t) sizeof(hello))
        return di_err_set(err, DI_ECLOSED, 0, "hello to %s: %s", path,
                          n < 0 ? strerror(errno) : "cut short");
    return DI_OK;
}

int
di_ipc_client_open(const char *path, const uint8_t *fingerprint,
                   di_ipc_client_t **client, di_err_t *err)
{
    int              i, rc;
    di_ipc_client_t *c;

    *client = NULL;

    if (path[0] == '\0'
        || strlen(path) >= sizeof(((struct sockaddr_un *) 0)->sun_path))
    {
        return di_err_set(err, DI_EINVAL, 0,
                          "a socket path has 1 to 107 bytes: \"%s\"", path);
    }

    c = calloc(1, sizeof(*c));
    if (c == NULL)
        return di_err_set(err, DI_ENOMEM, 0, "no memory for a channel");

    for (i = 0; i < DI_FDS; i++)
        c->fd[i] = -1;

    c->any_model = fingerprint == NULL;
    if (fingerprint != NULL)
        memcpy(c->fingerprint, fingerprint, sizeof(c->fingerprint));

    c->sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC,
                     0);
    if (c->sock < 0) {
        rc = di_err_set(err, DI_EIO, 0, "socket: %s", strerror(errno));
        goto failed;
    }

    rc = say_hello(c, path, err);
    if (rc != DI_OK)
        goto failed;

    *client = c;
    return DI_OK;

failed:
    di_ipc_client_close(c);
    return rc;
}

/* Take the descriptors out of a received message.  All of them are ours now,
 * however many the peer sent; those that don't fit are closed. */
static int
take_descriptors(di_ipc_client_t *client, struct msghdr *msg)
{
    int             fd, n;
    size_t          i, count;
    struct cmsghdr *cmsg;

    n = 0;

    for (cmsg = CMSG_FIRSTHDR(msg); cmsg != NULL; cmsg = CMSG_NXTHDR(msg, cmsg))
    {
        if (cmsg->cmsg_level != SOL_SOCKET || cmsg->cmsg_type != SCM_RIGHTS)
            continue;

        count = (cmsg->cmsg_len - CMSG_LEN(0)) / sizeof(int);

        for (i = 0; i < count; i++) {
            memcpy(&fd, CMSG_DATA(cmsg) + i * sizeof(int), sizeof(int));
            if (n < DI_FDS && client->fd[n] < 0)
                client->fd[n] = fd;
            else
                (void) close(fd);
            n++;
        }
    }

    return n;
}

/* Receive one message from the engine.  DI_OK with its length in *bytes and
 * its descriptors taken; DI_EAGAIN; DI_ECLOSED; DI_EPROTO. */
static int
receive(di_ipc_client_t *client, di_ipc_welcome_msg_t *message, size_t *bytes,
        int *n_fds, di_err_t *err)
{
    ssize_t       n;
    struct iovec  iov = { message, sizeof(*message) };
    union {
        struct cmsghdr align;    /* the buffer's alignment                  */
        char           room[CMSG_SPACE((DI_FDS + 1) * sizeof(int))];
    } control;
    struct msghdr msg = {
        .msg_iov = &iov, .msg_iovlen = 1,
        .msg_control = control.room, .msg_controllen = sizeof(control.room),
    };

    n = recvmsg(client->sock, &msg, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return DI_EAGAIN;

    if (n <= 0) {
        client->closed = true;
        return di_err_set(err, DI_ECLOSED, 0, "the engine closed the channel");
    }

    *n_fds = take_descriptors(client, &msg);

    if (msg.msg_flags & MSG_CTRUNC)
        return di_err_set(err, DI_EPROTO, 0,
                          "descriptors of the channel were lost: raise the "
                          "limit of open files (worker_rlimit_nofile)");

    if (msg.msg_flags & MSG_TRUNC)
        return di_err_set(err, DI_EPROTO, 0, "the welcome is too long");

    *bytes = (size_t) n;
    return DI_OK;
}

static int
refused(const di_ipc_welcome_msg_t *m, size_t bytes, di_err_t *err)
{
    if (bytes < offsetof(di_ipc_welcome_msg_t, refuse)
        || m->magic != DI_SHM_MAGIC)
        return di_err_set(err, DI_EPROTO, 0,
                          "what listens there is not a deepinfer engine");

    if (m->version != DI_IPC_VERSION)
        return di_err_set(err, DI_EPROTO, 0,
                          "the engine speaks version %u of the channel, this "
                          "module version %d", m->version, DI_IPC_VERSION);

    if (bytes != sizeof(*m))
        return di_err_set(err, DI_EPROTO, 0, "the welcome has a wrong length");

    switch (m->refuse) {
    case DI_REFUSE_NOTHING:
        return DI_OK;
    case DI_REFUSE_MODEL:
        return di_err_set(err, DI_EPROTO, 0,
                          "the engine serves another model (%.*s)",
                          DI_IPC_NAME_MAX - 1, m->welcome.model);
    case DI_REFUSE_FULL:
        return di_err_set(err, DI_ECLOSED, 0,
                          "the engine has no free connection (%d are taken)",
                          DI_IPC_CONNS_MAX);
    case DI_REFUSE_FAULT:
        return di_err_set(err, DI_ECLOSED, 0,
                          "the engine lacks memory or descriptors for another "
                          "worker");
    default:
        return di_err_set(err, DI_EPROTO, 0, "the engine refused (%u)",
                          m->refuse);
    }
}

static void
attach_rings(di_ipc_client_t *client)
{
    di_shm_head_t *head = client->shm.head;

    client->tx = (di_ring_tx_t) {
        .slots = (unsigned char *) client->shm.sub, .head = &head->sub_head,
        .n_slots = DI_IPC_SUB_SLOTS,
    };
    client->rx = (di_ring_rx_t) {
        .slots = (unsigned char *) client->shm.comp, .head = &head->comp_head,
        .n_slots = DI_IPC_COMP_SLOTS,
    };
}

/* The pid in WELCOME is the engine's own word; the kernel knows better, when
 * both live in one pid namespace. */
static void
ask_kernel_for_pid(di_ipc_client_t *client)
{
    socklen_t    bytes;
    struct ucred cred;

    bytes = sizeof(cred);
    if (getsockopt(client->sock, SOL_SOCKET, SO_PEERCRED, &cred, &bytes) == 0
        && cred.pid > 0)
    {
        client->welcome.pid = (uint32_t) cred.pid;
    }
}

int
di_ipc_client_handshake(di_ipc_client_t *client, di_err_t *err)
{
    int                  rc, n_fds = 0;
    size_t               bytes = 0;
    di_ipc_welcome_msg_t m = { 0 };

    rc = receive(client, &m, &bytes, &n_fds, err);

    if (client->ready) {
        if (rc == DI_EAGAIN)
            return DI_OK;
        return rc != DI_OK ? rc
                           : di_err_set(err, DI_EPROTO, 0,
                                        "the engine spoke after its welcome");
    }

    if (rc != DI_OK)
        return rc;

    rc = refused(&m, bytes, err);
    if (rc != DI_OK)
        return rc;

    m.welcome.model[DI_IPC_NAME_MAX - 1] = '\0';
    m.welcome.arith[sizeof(m.welcome.arith) - 1] = '\0';

    if (!client->any_model
        && memcmp(m.welcome.fingerprint, client->fingerprint,
                  DI_IPC_FINGERPRINT) != 0)
    {
        return di_err_set(err, DI_EPROTO, 0,
                          "the engine serves another model (%s)",
                          m.welcome.model);
    }

    if (n_fds != DI_FDS || m.shm_bytes != DI_SHM_BYTES)
        return di_err_set(err, DI_EPROTO, 0, "the welcome is incomplete");

    rc = di_shm_map(&client->shm, client->fd[DI_FD_MEMORY], err);
    if (rc != DI_OK)
        return rc;

    attach_rings(client);
    client->welcome = m.welcome;
    ask_kernel_for_pid(client);
    client->ready = true;
    return DI_OK;
}

const di_ipc_welcome_t *
di_ipc_client_welcome(const di_ipc_client_t *client)
{
    return &client->welcome;
}

int
di_ipc_client_socket(const di_ipc_client_t *client)
{
    return client->sock;
}

int
di_ipc_client_eventfd(const di_ipc_client_t *client)
{
    return client->fd[DI_FD_WORKER_BELL];
}

void
di_ipc_client_close(di_ipc_client_t *client)
{
    int i;

    if (client == NULL)
        return;

    di_shm_unmap(&client->shm);

    for (i = 0; i < DI_FDS; i++) {
        if (client->fd[i] >= 0)
            (void) close(client->fd[i]);
    }

    if (client->sock >= 0)
        (void) close(client->sock);
    free(client);
}

/* ----------------------------------------------------------- submissions -- */

/* See how far the engine has come; free the arena behind it. */
static int
refresh_submissions(di_ipc_client_t *client)
{
    uint64_t end;
    uint32_t before = client->tx.freed;

    if (di_ring_tx_refresh(&client->tx) != DI_OK)
        return DI_EPROTO;

    if (client->tx.freed != before) {
        end = client->arena_end[(client->tx.freed - 1)
                                & (DI_IPC_SUB_SLOTS - 1)];
        if (end > client->arena_freed)
            client->arena_freed = end;
    }

    return DI_OK;
}

static bool
arena_place(di_ipc_client_t *client, uint64_t bytes, uint64_t *start)
{
    uint64_t at, left;

    if (client->arena_next == client->arena_freed) {
        client->arena_next = (client->arena_next + DI_IPC_ARENA_BYTES - 1)
                             & ~(uint64_t) (DI_IPC_ARENA_BYTES - 1);
        client->arena_freed = client->arena_next;
    }

    at = client->arena_next;
    left = DI_IPC_ARENA_BYTES - (at & (DI_IPC_ARENA_BYTES - 1));
    if (bytes > left)
        at += left;

    if (at + bytes - client->arena_freed > DI_IPC_ARENA_BYTES)
        return false;

    *start = at;
    return true;
}

/* Room for one slot, and for `bytes` of payload at *start.  The cached head
 * is tried first, but for a payload far from the arena's start.  DI_OK,
 * DI_EAGAIN or DI_EPROTO. */
static int
reserve(di_ipc_client_t *client, uint64_t bytes, uint64_t *start)
{
    bool look = bytes > 0 && (client->arena_next & (DI_IPC_ARENA_BYTES - 1))
                             >= ARENA_HOT;

    if (!client->ready)
        return DI_EAGAIN;

    if (!look && di_ring_room(&client->tx) > 0
        && arena_place(client, bytes, start))
    {
        return DI_OK;
    }

    if (refresh_submissions(client) != DI_OK)
        return DI_EPROTO;

    return di_ring_room(&client->tx) > 0 && arena_place(client, bytes, start)
           ? DI_OK : DI_EAGAIN;
}

/* Stage a slot whose payload ends at arena_end. */
static void
put_slot(di_ipc_client_t *client, const di_shm_sub_t *slot,
         uint64_t arena_end)
{
    client->arena_next = arena_end;
    client->arena_end[client->tx.next & (DI_IPC_SUB_SLOTS - 1)] = arena_end;
    di_ring_put(&client->tx, slot);
}

static void
fill_payload(unsigned char *to, const di_gen_request_t *req)
{
    size_t bytes = req->n_prompt * sizeof(int32_t);

    memcpy(to, &req->params, sizeof(req->params));
    to += sizeof(req->params);
    memcpy(to, req->prompt, bytes);
    to += bytes;

    if (req->n_bias > 0) {
        bytes = req->n_bias * sizeof(di_logit_bias_t);
        memcpy(to, req->bias, bytes);
        to += bytes;
    }

    if (req->n_stop_ids > 0) {
        bytes = req->n_stop_ids * sizeof(int32_t);
        memcpy(to, req->stop_ids, bytes);
        to += bytes;
    }

    if (req->n_grammar > 0)
        memcpy(to, req->grammar, req->n_grammar);
}

int
di_ipc_client_submit(di_ipc_client_t *client, uint64_t id,
                     const di_gen_request_t *req, di_err_t *err)
{
    int          rc;
    uint64_t     bytes, start;
    di_shm_sub_t slot;

    rc = di_gen_request_check(req, err);
    if (rc != DI_OK)
        return rc;

    bytes = di_shm_payload_bytes(req->n_prompt, req->n_bias, req->n_stop_ids,
                                 req->n_grammar);
    if (bytes > DI_IPC_ARENA_BYTES)
        return di_err_set(err, DI_ELIMIT, 0,
                          "a request of %llu bytes exceeds the channel's %u",
                          (unsigned long long) bytes, DI_IPC_ARENA_BYTES);

    bytes = (bytes + DI_SHM_ALIGN - 1) & ~(uint64_t) (DI_SHM_ALIGN - 1);

    rc = reserve(client, bytes, &start);
    if (rc != DI_OK)
        return rc;

    fill_payload(client->shm.arena + (start & (DI_IPC_ARENA_BYTES - 1)), req);

    slot = (di_shm_sub_t) {
        .type = DI_SUB_SUBMIT,
        .id = id,
        .payload_off = (uint32_t) (start & (DI_IPC_ARENA_BYTES - 1)),
        .n_prompt = req->n_prompt,
        .n_bias = req->n_bias,
        .n_stop_ids = req->n_stop_ids,
        .n_grammar = req->n_grammar,
    };
    memcpy(slot.salt, req->salt, sizeof(slot.salt));
    put_slot(client, &slot, start + bytes);
    return DI_OK;
}

static int
control(di_ipc_client_t *client, uint32_t type, uint64_t id, uint32_t choice)
{
    int          rc;
    uint64_t     start;
    di_shm_sub_t slot = { .id = id, .type = type, .choice = choice };

    rc = reserve(client, 0, &start);
    if (rc != DI_OK)
        return rc;

    put_slot(client, &slot, client->arena_next);
    return DI_OK;
}

int
di_ipc_client_cancel(di_ipc_client_t *client, uint64_t id)
{
    return control(client, DI_SUB_CANCEL, id, UINT32_MAX);
}

int
di_ipc_client_cancel_choice(di_ipc_client_t *client, uint64_t id,
                            uint32_t choice)
{
    return control(client, DI_SUB_CANCEL, id, choice);
}

int
di_ipc_client_pause(di_ipc_client_t *client, uint64_t id, bool pause)
{
    return control(client, pause ? DI_SUB_PAUSE : DI_SUB_RESUME, id,
                   UINT32_MAX);
}

static void
ring_engine(di_ipc_client_t *client)
{
    ssize_t  n;
    uint64_t one = 1;

    /* EAGAIN would mean 2^64 doorbells that nobody has to read; a dead
     * engine is told by the socket. */
    n = write(client->fd[DI_FD_ENGINE_BELL], &one, sizeof(one));
    (void) n;
}

int
di_ipc_client_flush(di_ipc_client_t *client)
{
    if (client->closed)
        return DI_ECLOSED;

    if (!client->ready || client->tx.published == client->tx.next)
        return DI_OK;

    di_ring_publish(&client->tx);

    if (di_bell_due(&client->shm.head->engine_sleep, &client->rung))
        ring_engine(client);

    return DI_OK;
}

/* ----------------------------------------------------------- completions -- */

/* Give read slots back, and tell an engine that sleeps for want of room. */
static void
release_completions(di_ipc_client_t *client)
{
    di_shm_head_t *head = client->shm.head;

    di_ring_release(&client->rx);
    di_shm_fence();              /* pairs with that in the engine's sleep   */

    if (atomic_load_explicit(&head->room_wanted, memory_order_relaxed) != 0
        && di_bell_due(&head->engine_sleep, &client->rung))
    {
        ring_engine(client);
    }
}

static bool
event_is_sound(const di_event_t *ev)
{
    if (ev->choice >= DI_GEN_N_MAX || ev->n_top > DI_GEN_TOP_LOGPROBS_MAX)
        return false;

    switch (ev->type) {
    case DI_EV_TOKENS:
        return ev->n_tokens >= 1 && ev->n_tokens <= DI_EV_TOKENS_MAX
               && ev->n_top == 0;
    case DI_EV_LOGPROB:
    case DI_EV_PROMPT_LOGPROB:
        return true;
    case DI_EV_STARTED:
        return ev->n_top == 0;
    case DI_EV_FINISH:
        return ev->n_top == 0 && ev->u.finish.reason >= DI_FINISH_STOP
               && ev->u.finish.reason <= DI_FINISH_ERROR;
    case DI_EV_REJECT:
        return ev->n_top == 0 && ev->u.reject.reason >= DI_REJECT_INVALID
               && ev->u.reject.reason <= DI_REJECT_INTERNAL;
    default:
        return false;
    }
}

int
di_ipc_client_recv(di_ipc_client_t *client, di_event_t *event,
                   const di_top_logprob_t **top)
{
    uint32_t      i, mark, n_slots;
    di_ring_rx_t *rx = &client->rx;

    if (!client->ready)
        return DI_EAGAIN;

    if (client->asleep) {
        client->asleep = false;
        atomic_store_explicit(&client->shm.head->worker_sleep,
                              ++client->sleep, memory_order_relaxed);
    }

    if (!di_ring_ready(rx, 0, &mark)) {
        if (rx->released != rx->next)
            release_completions(client);
        return DI_EAGAIN;
    }

    di_ring_get(rx, 0, mark, event);
    if (!event_is_sound(event))
        return DI_EPROTO;

    /* An event is published whole. */
    n_slots = (event->n_top + DI_SHM_TOP_PER_SLOT - 1) / DI_SHM_TOP_PER_SLOT;
    for (i = 0; i < n_slots; i++) {
        if (!di_ring_ready(rx, 1 + i, &mark))
            return DI_EPROTO;
        di_ring_get(rx, 1 + i, mark, &client->top[i * DI_SHM_TOP_PER_SLOT]);
    }

    if (event->type == DI_EV_REJECT)
        event->u.reject.text[sizeof(event->u.reject.text) - 1] = '\0';

    rx->next += 1 + n_slots;
    if (rx->next - rx->released >= RELEASE_EVERY)
        release_completions(client);

    *top = client->top;
    return DI_OK;
}

int
di_ipc_client_sleep(di_ipc_client_t *client)
{
    char          bells[64];
    ssize_t       n;
    uint32_t      mark;
    di_ring_rx_t *rx = &client->rx;

    if (!client->ready)
        return DI_OK;

    /* One doorbell is rung for one sleep, so a short read empties the pipe;
     * EAGAIN (we woke for another reason) is as good.  End of file: the
     * engine is gone, as the socket says too. */
    n = read(client->fd[DI_FD_WORKER_BELL], bells, sizeof(bells));
    if (n == 0)
        client->closed = true;

    if (rx->released != rx->next)
        release_completions(client);

    /* Odd again, and a new sleep: the doorbell of the last one is used up. */
    client->asleep = true;
    client->sleep = (client->sleep + 1) | 1;

    atomic_store_explicit(&client->shm.head->worker_sleep, client->sleep,
                          memory_order_relaxed);

    /* Pairs with that in di_ring_publish(): either the engine sees the odd
     * count, or we see its slot. */
    di_shm_fence();

    return di_ring_ready(rx, 0, &mark) ? DI_EAGAIN : DI_OK;
}

int
di_ipc_client_status(di_ipc_client_t *client, di_ipc_status_t *status)
{
    int              tries;
    size_t           i;
    uint32_t         seq;
    uint64_t         word[DI_SHM_STATUS_WORDS];
    di_shm_status_t *page = client->shm.status;

    if (!client->ready)
        return DI_EAGAIN;

    for (tries = 0; tries < 64; tries++) {

        /* Acquire: pairs with the writer's last release store of seq. */
        seq = atomic_load_explicit(&page->seq, memory_order_acquire);
        if (seq & 1)
            continue;

        /* Acquire: a word of a newer page makes its odd seq visible. */
        for (i = 0; i < DI_SHM_STATUS_WORDS; i++)
            word[i] = atomic_load_explicit(&page->word[i],
                                           memory_order_acquire);

        if (atomic_load_explicit(&page->seq, memory_order_relaxed) == seq) {
            memcpy(status, word, sizeof(*status));
            return DI_OK;
        }
    }

    return DI_EAGAIN;
}
