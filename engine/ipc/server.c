/*
 * server.c - the engine's end of the channel.
 *
 * One thread owns the server and its connections.  A connection is FREE, then
 * HELLO (accepted, hello awaited for two seconds), then READY, then GONE
 * (closed, its DI_MSG_CLOSED not yet taken); all its resources are given back
 * on the way to GONE, so what a worker holds ends with the worker.
 *
 * Hostile workers.  A slot or payload is copied once and the copy is checked;
 * of the shared memory only the next slot, the worker's position in the other
 * ring, its sleep count and the arena are ever read.  A position that moves
 * back or too far, a payload outside the arena or an unknown message closes
 * that connection.  A request
 * whose values are out of range is no breach: it gets DI_EV_REJECT.  No call
 * on a descriptor that a worker shares can block (ipc_shm.h, "Doorbells"),
 * and one di_ipc_server_recv() looks at each connection once at most, so
 * that a flood of rejects can't hold the engine inside the call.
 *
 * Room.  DI_IPC_RESERVE completion slots are never reported by
 * di_ipc_server_room(): they are for what answers a message at once (a
 * REJECT, FINISH for each choice of a cancelled request), and no message is
 * taken from a connection that has not that many free.  Hence the answer to
 * any message can be sent.
 *
 * What was tried and dropped: reading the eventfd after each wake (a syscall
 * that edge-triggered epoll makes needless); one sleep flag for all
 * connections in memory of its own (a second mapping for every worker to
 * check and for a hostile one to share with the others).
 */

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "ipc_shm.h"

#define HELLO_US        2000000      /* from accept to hello                */
#define ACCEPT_PAUSE_US 100000       /* after accept ran out of descriptors */
#define RELEASE_EVERY   32           /* messages read before slots go back  */
#define EPOLL_BATCH     64
#define SPIN_CHECK      32           /* looks between two clock readings    */

typedef enum { CONN_FREE, CONN_HELLO, CONN_READY, CONN_GONE } conn_state_t;

typedef struct {
    conn_state_t  state;
    bool          dirty;         /* in server->dirty: events to publish     */
    bool          held;          /* a message waits for completion room     */
    int           sock;          /* EOF: the worker is gone                 */
    int           engine_bell;   /* eventfd that the worker writes          */
    int           worker_bell[2];/* pipe: [0] kept open only, [1] written   */
    uint64_t      since_us;      /* CONN_HELLO: accepted at                 */
    uint64_t      sleep;         /* our sleep count in this connection      */
    uint64_t      rung;          /* worker's sleep count we last rang for   */
    di_ring_rx_t  rx;            /* submissions                             */
    di_ring_tx_t  tx;            /* completions                             */
    di_shm_t      shm;
    di_ipc_peer_t peer;
} conn_t;

/* What an epoll event is about: kind in the upper half, index below. */
enum { ABOUT_LISTEN, ABOUT_WAKE, ABOUT_BELL, ABOUT_SOCKET };

struct di_ipc_server_s {
    int                  listen; /* -1: no more                             */
    int                  lock;   /* PATH.lock, held while we listen         */
    int                  epoll;
    dev_t                dev;    /* of the socket file that we made         */
    ino_t                ino;
    char                 path[108];
    uint32_t             n_ready;
    uint32_t             n_hello;
    uint32_t             n_gone;
    uint32_t             n_used; /* connections below it may be in use      */
    uint32_t             turn;   /* connection that recv looks at first     */
    uint32_t             n_dirty;
    uint64_t             accept_us; /* accept again then; 0 = armed         */
    di_ipc_server_conf_t conf;
    di_ipc_status_t      status; /* as last published                       */
    unsigned char       *payload; /* [DI_IPC_ARENA_BYTES] checked copies    */
    uint32_t             dirty[DI_IPC_CONNS_MAX];
    conn_t               conn[DI_IPC_CONNS_MAX];
};

static uint64_t
now_us(void)
{
    struct timespec t;

    (void) clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t) t.tv_sec * 1000000u + (uint64_t) t.tv_nsec / 1000u;
}

static void
close_fd(int *fd)
{
    if (*fd >= 0)
        (void) close(*fd);
    *fd = -1;
}

static int
watch(di_ipc_server_t *server, int fd, uint32_t events, uint32_t about,
      uint32_t index)
{
    struct epoll_event ev = {
        .events = events,
        .data.u64 = (uint64_t) about << 32 | index,
    };

    return epoll_ctl(server->epoll, EPOLL_CTL_ADD, fd, &ev);
}

/* ------------------------------------------------------------- listening -- */

/* Take PATH.lock.  Who holds it owns the socket file; the kernel lets go of
 * it when the holder dies.  A holder that ends cleanly removes the file, so
 * the lock counts only when the file is still the one at that name. */
static int
take_lock(di_ipc_server_t *server, di_err_t *err)
{
    int         fd, tries;
    char        name[sizeof(server->path) + 8];
    struct stat ours, there;

    (void) snprintf(name, sizeof(name), "%s.lock", server->path);

    for (tries = 0; tries < 100; tries++) {
        fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0)
            return di_err_set(err, DI_EIO, 0, "open %s: %s", name,
                              strerror(errno));

        if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
            (void) close(fd);
            return di_err_set(err, errno == EWOULDBLOCK ? DI_EINVAL : DI_EIO,
                              0, "%s is in use by another engine",
                              server->path);
        }

        if (fstat(fd, &ours) == 0 && stat(name, &there) == 0
            && ours.st_dev == there.st_dev && ours.st_ino == there.st_ino)
        {
            server->lock = fd;
            return DI_OK;
        }

        (void) close(fd);
    }

    return di_err_set(err, DI_EIO, 0, "%s keeps changing", name);
}

/* Remove a socket file that a killed engine left.  With the lock held only a
 * stranger can be listening there: that is found by connecting. */
static int
remove_stale(const char *path, const struct sockaddr_un *addr, di_err_t *err)
{
    int         fd, rc;
    struct stat st;

    if (lstat(path, &st) < 0)
        return errno == ENOENT ? DI_OK
               : di_err_set(err, DI_EIO, 0, "%s: %s", path, strerror(errno));

    if (!S_ISSOCK(st.st_mode))
        return di_err_set(err, DI_EINVAL, 0,
                          "%s exists and is not a socket", path);

    fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return di_err_set(err, DI_EIO, 0, "socket: %s", strerror(errno));

    rc = connect(fd, (const struct sockaddr *) addr, sizeof(*addr));
    if (rc < 0 && errno == ECONNREFUSED)
        rc = unlink(path) == 0 || errno == ENOENT ? DI_OK
             : di_err_set(err, DI_EIO, 0, "unlink %s: %s", path,
                          strerror(errno));
    else
        rc = di_err_set(err, DI_EINVAL, 0, "%s is in use", path);

    (void) close(fd);
    return rc;
}

/* Mode and group are set between bind and listen: before listen() a connect
 * is refused whatever the file allows. */
static int
listen_on(di_ipc_server_t *server, di_err_t *err)
{
    int                rc;
    mode_t             mode = server->conf.mode ? server->conf.mode : 0660;
    struct stat        st;
    struct sockaddr_un addr = { .sun_family = AF_UNIX };

    memcpy(addr.sun_path, server->path, strlen(server->path) + 1);

    rc = remove_stale(server->path, &addr, err);
    if (rc != DI_OK)
        return rc;

    server->listen = socket(AF_UNIX,
                            SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (server->listen < 0)
        return di_err_set(err, DI_EIO, 0, "socket: %s", strerror(errno));

    if (bind(server->listen, (struct sockaddr *) &addr, sizeof(addr)) < 0)
        return di_err_set(err, DI_EIO, 0, "bind %s: %s", server->path,
                          strerror(errno));

    if (lstat(server->path, &st) < 0)
        return di_err_set(err, DI_EIO, 0, "%s: %s", server->path,
                          strerror(errno));
    server->dev = st.st_dev;
    server->ino = st.st_ino;

    if ((server->conf.set_group
         && lchown(server->path, (uid_t) -1, server->conf.group) < 0)
        || chmod(server->path, mode) < 0)
    {
        return di_err_set(err, DI_EIO, 0, "mode and group of %s: %s",
                          server->path, strerror(errno));
    }

    if (listen(server->listen, 511) < 0
        || watch(server, server->listen, EPOLLIN, ABOUT_LISTEN, 0) < 0)
    {
        return di_err_set(err, DI_EIO, 0, "listen on %s: %s", server->path,
                          strerror(errno));
    }

    return DI_OK;
}

int
di_ipc_server_open(const char *path, const di_ipc_server_conf_t *conf,
                   di_ipc_server_t **server, di_err_t *err)
{
    int              rc;
    void            *payload;
    di_ipc_server_t *s;

    *server = NULL;

    if (path[0] == '\0' || strlen(path) >= sizeof(s->path))
        return di_err_set(err, DI_EINVAL, 0,
                          "a socket path has 1 to 107 bytes: \"%s\"", path);

    if (conf->welcome.vocab == 0 || conf->welcome.max_model_len == 0)
        return di_err_set(err, DI_EINVAL, 0,
                          "the model's vocabulary and length must be told");

    s = calloc(1, sizeof(*s));
    if (s == NULL)
        return di_err_set(err, DI_ENOMEM, 0, "no memory for the channel");

    s->listen = s->lock = s->epoll = -1;
    s->conf = *conf;
    memcpy(s->path, path, strlen(path) + 1);

    /* Address space; pages are taken as long prompts touch them. */
    payload = mmap(NULL, DI_IPC_ARENA_BYTES, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (payload == MAP_FAILED) {
        rc = di_err_set(err, DI_ENOMEM, 0, "no memory for the channel");
        goto failed;
    }
    s->payload = payload;

    s->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (s->epoll < 0) {
        rc = di_err_set(err, DI_EIO, 0, "epoll_create1: %s", strerror(errno));
        goto failed;
    }

    rc = take_lock(s, err);
    if (rc != DI_OK)
        goto failed;

    rc = listen_on(s, err);
    if (rc != DI_OK)
        goto failed;

    *server = s;
    return DI_OK;

failed:
    di_ipc_server_close(s);
    return rc;
}

void
di_ipc_server_stop_listening(di_ipc_server_t *server)
{
    char        name[sizeof(server->path) + 8];
    struct stat st;

    close_fd(&server->listen);

    if (server->lock < 0)
        return;

    /* Only the file that we made: ino is 0 before bind(). */
    if (lstat(server->path, &st) == 0 && st.st_dev == server->dev
        && st.st_ino == server->ino)
    {
        (void) unlink(server->path);
    }

    (void) snprintf(name, sizeof(name), "%s.lock", server->path);
    (void) unlink(name);
    close_fd(&server->lock);
}

int
di_ipc_server_wake_fd(di_ipc_server_t *server, int fd)
{
    return watch(server, fd, EPOLLIN, ABOUT_WAKE, 0) == 0 ? DI_OK : DI_EIO;
}

/* ----------------------------------------------------------- connections -- */

/* Give back all that a connection holds.  A worker that lives on keeps the
 * eventfd's file open, and with it its place in our epoll set: hence DEL. */
static void
release_conn(di_ipc_server_t *server, conn_t *conn)
{
    if (conn->engine_bell >= 0)
        (void) epoll_ctl(server->epoll, EPOLL_CTL_DEL, conn->engine_bell,
                         NULL);
    if (conn->sock >= 0)
        (void) epoll_ctl(server->epoll, EPOLL_CTL_DEL, conn->sock, NULL);

    close_fd(&conn->sock);
    close_fd(&conn->engine_bell);
    close_fd(&conn->worker_bell[0]);
    close_fd(&conn->worker_bell[1]);
    di_shm_unmap(&conn->shm);
}

static void
drop(di_ipc_server_t *server, conn_t *conn)
{
    release_conn(server, conn);

    if (conn->state == CONN_HELLO) {
        server->n_hello--;
        conn->state = CONN_FREE;

    } else if (conn->state == CONN_READY) {
        server->n_ready--;
        server->n_gone++;
        conn->state = CONN_GONE;
    }
}

/* Send WELCOME or a refusal; fds is NULL with the latter. */
static int
send_welcome(const di_ipc_server_t *server, int sock, uint32_t refuse,
             const int *fds)
{
    struct iovec         iov;
    struct msghdr        msg = { 0 };
    struct cmsghdr      *cmsg;
    di_ipc_welcome_msg_t m = {
        .magic = DI_SHM_MAGIC,
        .version = DI_IPC_VERSION,
        .refuse = refuse,
        .shm_bytes = DI_SHM_BYTES,
        .welcome = server->conf.welcome,
    };
    union {
        struct cmsghdr align;    /* the buffer's alignment                  */
        char           room[CMSG_SPACE(DI_FDS * sizeof(int))];
    } control = { 0 };

    iov = (struct iovec) { &m, sizeof(m) };
    msg.msg_iov = &iov;
    msg.msg_iovlen = 1;

    if (fds != NULL) {
        msg.msg_control = control.room;
        msg.msg_controllen = sizeof(control.room);
        cmsg = CMSG_FIRSTHDR(&msg);
        cmsg->cmsg_level = SOL_SOCKET;
        cmsg->cmsg_type = SCM_RIGHTS;
        cmsg->cmsg_len = CMSG_LEN(DI_FDS * sizeof(int));
        memcpy(CMSG_DATA(cmsg), fds, DI_FDS * sizeof(int));
    }

    return sendmsg(sock, &msg, MSG_NOSIGNAL | MSG_DONTWAIT)
           == (ssize_t) sizeof(m) ? DI_OK : DI_EIO;
}

static void
write_status(conn_t *conn, const di_ipc_status_t *status)
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

/* Make memory and doorbells and send WELCOME. */
static int
welcome(di_ipc_server_t *server, conn_t *conn)
{
    int            fds[DI_FDS] = { -1, -1, -1 };
    int            rc;
    uint32_t       index = (uint32_t) (conn - server->conn);
    di_shm_head_t *head;

    rc = di_shm_create(&conn->shm, &fds[DI_FD_MEMORY], NULL);
    if (rc != DI_OK)
        return rc;

    conn->engine_bell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (conn->engine_bell < 0
        || pipe2(conn->worker_bell, O_NONBLOCK | O_CLOEXEC) < 0
        || watch(server, conn->engine_bell, EPOLLIN | EPOLLET, ABOUT_BELL,
                 index) < 0)
    {
        rc = DI_EIO;
        goto done;
    }

    head = conn->shm.head;
    conn->rx = (di_ring_rx_t) {
        .slots = (unsigned char *) conn->shm.sub, .head = &head->sub_head,
        .n_slots = DI_IPC_SUB_SLOTS,
    };
    conn->tx = (di_ring_tx_t) {
        .slots = (unsigned char *) conn->shm.comp, .head = &head->comp_head,
        .n_slots = DI_IPC_COMP_SLOTS,
    };
    write_status(conn, &server->status);

    fds[DI_FD_ENGINE_BELL] = conn->engine_bell;
    fds[DI_FD_WORKER_BELL] = conn->worker_bell[0];
    rc = send_welcome(server, conn->sock, DI_REFUSE_NOTHING, fds);

done:
    close_fd(&fds[DI_FD_MEMORY]);
    return rc;
}

/* Judge a hello: DI_REFUSE_..., or UINT32_MAX for what is none. */
static uint32_t
judge_hello(const di_ipc_server_t *server, const di_ipc_hello_msg_t *m,
            ssize_t bytes)
{
    if (bytes < (ssize_t) offsetof(di_ipc_hello_msg_t, has_fingerprint)
        || m->magic != DI_SHM_MAGIC)
        return UINT32_MAX;

    if (m->version != DI_IPC_VERSION)
        return DI_REFUSE_VERSION;

    if (bytes != (ssize_t) sizeof(*m) || m->has_fingerprint > 1
        || m->reserved != 0)
        return UINT32_MAX;

    if (m->has_fingerprint
        && memcmp(m->fingerprint, server->conf.welcome.fingerprint,
                  DI_IPC_FINGERPRINT) != 0)
        return DI_REFUSE_MODEL;

    return DI_REFUSE_NOTHING;
}

static void
read_hello(di_ipc_server_t *server, conn_t *conn)
{
    ssize_t            n;
    uint32_t           refuse;
    di_ipc_hello_msg_t m = { 0 };

    /* Without a control buffer the kernel drops descriptors that a worker
     * sends along.  MSG_TRUNC: n is the message's whole length. */
    n = recv(conn->sock, &m, sizeof(m), MSG_DONTWAIT | MSG_TRUNC);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;

    refuse = n <= 0 ? UINT32_MAX : judge_hello(server, &m, n);

    if (refuse == DI_REFUSE_NOTHING) {
        if (welcome(server, conn) == DI_OK) {
            conn->state = CONN_READY;
            server->n_hello--;
            server->n_ready++;
            return;
        }
        refuse = DI_REFUSE_FAULT;
    }

    if (refuse != UINT32_MAX)
        (void) send_welcome(server, conn->sock, refuse, NULL);
    drop(server, conn);
}

static void
socket_event(di_ipc_server_t *server, conn_t *conn)
{
    char    byte;
    ssize_t n;

    if (conn->state == CONN_HELLO) {
        read_hello(server, conn);

    } else if (conn->state == CONN_READY) {
        n = recv(conn->sock, &byte, 1, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        drop(server, conn);      /* EOF, or talk after the handshake        */
    }
}

static conn_t *
free_conn(di_ipc_server_t *server)
{
    uint32_t i;

    for (i = 0; i < DI_IPC_CONNS_MAX; i++) {
        if (server->conn[i].state == CONN_FREE) {
            if (i >= server->n_used)
                server->n_used = i + 1;
            return &server->conn[i];
        }
    }

    return NULL;
}

static void
add_conn(di_ipc_server_t *server, int sock)
{
    conn_t            *conn;
    socklen_t          bytes;
    struct ucred       cred;
    di_ipc_hello_msg_t m;

    conn = free_conn(server);
    if (conn == NULL) {
        /* Unread input would turn our answer into a reset. */
        (void) recv(sock, &m, sizeof(m), MSG_DONTWAIT);
        (void) send_welcome(server, sock, DI_REFUSE_FULL, NULL);
        (void) close(sock);
        return;
    }

    *conn = (conn_t) {
        .state = CONN_HELLO, .sock = sock, .engine_bell = -1,
        .worker_bell = { -1, -1 }, .since_us = now_us(),
    };
    server->n_hello++;

    bytes = sizeof(cred);
    if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &cred, &bytes) < 0
        || watch(server, sock, EPOLLIN | EPOLLRDHUP, ABOUT_SOCKET,
                 (uint32_t) (conn - server->conn)) < 0)
    {
        drop(server, conn);
        return;
    }

    conn->peer = (di_ipc_peer_t) {
        .pid = (uint32_t) cred.pid, .uid = cred.uid, .gid = cred.gid,
    };
}

static void
arm_listen(di_ipc_server_t *server, bool on)
{
    struct epoll_event ev = {
        .events = on ? EPOLLIN : 0,
        .data.u64 = (uint64_t) ABOUT_LISTEN << 32,
    };

    server->accept_us = on ? 0 : now_us() + ACCEPT_PAUSE_US;
    (void) epoll_ctl(server->epoll, EPOLL_CTL_MOD, server->listen, &ev);
}

static void
accept_all(di_ipc_server_t *server)
{
    int i, sock;

    for (i = 0; i < EPOLL_BATCH; i++) {
        sock = accept4(server->listen, NULL, NULL,
                       SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (sock >= 0) {
            add_conn(server, sock);
            continue;
        }

        /* Out of descriptors or memory: the backlog stays readable, so look
         * away for a while instead of spinning on it. */
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS
            || errno == ENOMEM)
        {
            arm_listen(server, false);
        }
        return;
    }
}

uint32_t
di_ipc_server_conns(const di_ipc_server_t *server)
{
    return server->n_ready;
}

int
di_ipc_server_peer(const di_ipc_server_t *server, uint32_t conn,
                   di_ipc_peer_t *peer)
{
    if (conn >= DI_IPC_CONNS_MAX || server->conn[conn].state == CONN_FREE)
        return DI_EINVAL;

    *peer = server->conn[conn].peer;
    return DI_OK;
}

void
di_ipc_server_close(di_ipc_server_t *server)
{
    uint32_t i;

    if (server == NULL)
        return;

    di_ipc_server_stop_listening(server);
    di_ipc_server_flush(server);

    for (i = 0; i < server->n_used; i++) {
        if (server->conn[i].state == CONN_HELLO
            || server->conn[i].state == CONN_READY)
        {
            release_conn(server, &server->conn[i]);
        }
    }

    close_fd(&server->epoll);
    if (server->payload != NULL)
        (void) munmap(server->payload, DI_IPC_ARENA_BYTES);
    free(server);
}

/* -------------------------------------------------------------- messages -- */

/* Free completion slots, at least `want` if there are so many.  The worker's
 * head is read again only when the cached one is not enough. */
static uint32_t
room_for(di_ipc_server_t *server, conn_t *conn, uint32_t want)
{
    if (conn->state != CONN_READY)
        return 0;

    if (di_ring_room(&conn->tx) < want
        && di_ring_tx_refresh(&conn->tx) != DI_OK)
    {
        drop(server, conn);
        return 0;
    }

    return di_ring_room(&conn->tx);
}

/* Copy a submission's payload and point msg->req into it.  DI_OK, or DI_EPROTO
 * when it does not lie in the arena. */
static int
copy_payload(di_ipc_server_t *server, conn_t *conn, const di_shm_sub_t *slot,
             di_gen_request_t *req)
{
    uint64_t       bytes;
    unsigned char *from = server->payload;

    if (slot->n_bias > DI_GEN_BIAS_MAX
        || slot->n_stop_ids > DI_GEN_STOP_IDS_MAX
        || slot->payload_off % DI_SHM_ALIGN != 0)
    {
        return DI_EPROTO;
    }

    bytes = di_shm_payload_bytes(slot->n_prompt, slot->n_bias,
                                 slot->n_stop_ids);
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
    };
    memcpy(req->salt, slot->salt, sizeof(req->salt));

    memcpy(&req->params, from, sizeof(req->params));
    from += sizeof(req->params);
    req->prompt = (const int32_t *) from;
    from += (size_t) slot->n_prompt * sizeof(int32_t);
    req->bias = (const di_logit_bias_t *) from;
    from += (size_t) slot->n_bias * sizeof(di_logit_bias_t);
    req->stop_ids = (const int32_t *) from;
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
read_slot(di_ipc_server_t *server, conn_t *conn, uint32_t mark,
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
recv_from(di_ipc_server_t *server, conn_t *conn, di_ipc_msg_t *msg)
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
        drop(server, conn);
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
    conn_t       *c;
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
ring_worker(conn_t *conn)
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
    conn_t  *conn;

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
di_ipc_server_status(di_ipc_server_t *server, const di_ipc_status_t *status)
{
    uint32_t i;

    server->status = *status;

    for (i = 0; i < server->n_used; i++) {
        if (server->conn[i].state == CONN_READY)
            write_status(&server->conn[i], status);
    }
}

/* --------------------------------------------------------------- waiting -- */

/* Has this connection something for us?  A message that waits for room does
 * not count until there is some. */
static bool
has_work(di_ipc_server_t *server, conn_t *conn, bool sleeping)
{
    uint32_t freed, mark;

    if (conn->state == CONN_GONE)
        return true;
    if (conn->state != CONN_READY)
        return false;

    if (!conn->held && di_ring_ready(&conn->rx, 0, &mark))
        return true;

    /* Somebody may be waiting for room here: has the worker made some? */
    if (sleeping || conn->held) {
        freed = conn->tx.freed;
        if (di_ring_room(&conn->tx) < DI_IPC_COMP_SLOTS / 2
            && di_ring_tx_refresh(&conn->tx) != DI_OK)
        {
            drop(server, conn);
            return true;
        }
        return conn->tx.freed != freed;
    }

    return false;
}

static bool
any_work(di_ipc_server_t *server, bool sleeping)
{
    uint32_t i;

    for (i = 0; i < server->n_used; i++) {
        if (has_work(server, &server->conn[i], sleeping))
            return true;
    }

    return false;
}

/* Look at the rings for a while: waking from a real sleep costs more than
 * most gaps between two messages last. */
static bool
spin(di_ipc_server_t *server, uint64_t us)
{
    int      i;
    uint64_t end = now_us() + us;

    do {
        for (i = 0; i < SPIN_CHECK; i++) {
            if (any_work(server, true))
                return true;
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
        }
    } while (now_us() < end);

    return false;
}

/* Make every connection's sleep count odd or even. */
static void
set_asleep(di_ipc_server_t *server, bool asleep)
{
    uint32_t i, wanted;
    conn_t  *conn;

    for (i = 0; i < server->n_used; i++) {
        conn = &server->conn[i];
        if (conn->state != CONN_READY)
            continue;

        if (asleep) {
            wanted = di_ring_room(&conn->tx) < DI_IPC_COMP_SLOTS / 2;
            atomic_store_explicit(&conn->shm.head->room_wanted, wanted,
                                  memory_order_relaxed);
        }

        /* A connection that became ready while we slept is even already. */
        if (((conn->sleep & 1) != 0) == asleep)
            continue;

        atomic_store_explicit(&conn->shm.head->engine_sleep, ++conn->sleep,
                              memory_order_relaxed);
    }

    /* Pairs with those in the worker's flush and release: either it sees the
     * odd count, or our look after this sees its slot or its room. */
    di_shm_fence();
}

/* Hellos that never came, and an accept that was put off. */
static void
overdue(di_ipc_server_t *server)
{
    uint32_t i;
    uint64_t now;

    if (server->n_hello == 0 && server->accept_us == 0)
        return;

    now = now_us();

    if (server->accept_us != 0 && now >= server->accept_us
        && server->listen >= 0)
    {
        arm_listen(server, true);
    }

    for (i = 0; i < server->n_used; i++) {
        if (server->conn[i].state == CONN_HELLO
            && now - server->conn[i].since_us >= HELLO_US)
        {
            drop(server, &server->conn[i]);
        }
    }
}

/* Wait up to timeout_ms for descriptors and handle them. */
static int
poll_fds(di_ipc_server_t *server, int timeout_ms)
{
    int                i, n;
    uint32_t           about, index;
    struct epoll_event ev[EPOLL_BATCH];

    if ((server->n_hello > 0 || server->accept_us != 0)
        && (timeout_ms < 0 || timeout_ms > 50))
    {
        timeout_ms = 50;
    }

    n = epoll_wait(server->epoll, ev, EPOLL_BATCH, timeout_ms);
    if (n < 0)
        return errno == EINTR ? DI_OK : DI_EIO;

    for (i = 0; i < n; i++) {
        about = (uint32_t) (ev[i].data.u64 >> 32);
        index = (uint32_t) ev[i].data.u64;

        if (about == ABOUT_LISTEN && server->listen >= 0)
            accept_all(server);
        else if (about == ABOUT_SOCKET)
            socket_event(server, &server->conn[index]);
    }

    overdue(server);
    return DI_OK;
}

int
di_ipc_server_wait(di_ipc_server_t *server, int64_t timeout_us)
{
    int      rc;
    int64_t  ms;
    uint64_t us;

    di_ipc_server_flush(server);

    if (timeout_us == 0 || server->n_gone > 0 || any_work(server, false))
        return poll_fds(server, 0);

    us = server->conf.spin_us;
    if (timeout_us > 0 && (uint64_t) timeout_us < us)
        us = (uint64_t) timeout_us;
    if (us > 0 && spin(server, us))
        return poll_fds(server, 0);

    ms = -1;
    if (timeout_us > 0) {
        us = (uint64_t) timeout_us > us ? (uint64_t) timeout_us - us : 0;
        ms = (int64_t) ((us + 999) / 1000);
        if (ms > INT32_MAX)
            ms = INT32_MAX;
    }

    set_asleep(server, true);
    rc = poll_fds(server, any_work(server, true) ? 0 : (int) ms);
    set_asleep(server, false);
    return rc;
}
