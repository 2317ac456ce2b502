/*
 * server.c - the engine's end of the channel: who may connect, and how.
 *
 * The socket file is owned by whoever holds PATH.lock; a file that a killed
 * engine left is removed under that lock.  Every accepted connection has two
 * seconds to say a hello that fits; then memory and doorbells are made for it
 * and sent along with WELCOME.  Nothing here blocks, and a shortage of
 * descriptors or memory refuses the one connection that needed them.
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
#include <unistd.h>

#include "server_impl.h"

#define HELLO_US        2000000      /* from accept to hello                */
#define ACCEPT_PAUSE_US 100000       /* after accept ran out of descriptors */
#define ACCEPT_BATCH    64           /* connections accepted at one look    */

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
release_conn(di_ipc_server_t *server, di_conn_t *conn)
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

void
di_server_drop(di_ipc_server_t *server, di_conn_t *conn)
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

/* Make memory and doorbells and send WELCOME. */
static int
welcome(di_ipc_server_t *server, di_conn_t *conn)
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
    di_server_write_status(conn, &server->status);

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
read_hello(di_ipc_server_t *server, di_conn_t *conn)
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
    di_server_drop(server, conn);
}

void
di_server_socket_event(di_ipc_server_t *server, di_conn_t *conn)
{
    char    byte;
    ssize_t n;

    if (conn->state == CONN_HELLO) {
        read_hello(server, conn);

    } else if (conn->state == CONN_READY) {
        n = recv(conn->sock, &byte, 1, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        di_server_drop(server, conn);    /* EOF, or talk out of turn        */
    }
}

static di_conn_t *
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
    di_conn_t            *conn;
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

    *conn = (di_conn_t) {
        .state = CONN_HELLO, .sock = sock, .engine_bell = -1,
        .worker_bell = { -1, -1 }, .since_us = di_server_now_us(),
    };
    server->n_hello++;

    bytes = sizeof(cred);
    if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &cred, &bytes) < 0
        || watch(server, sock, EPOLLIN | EPOLLRDHUP, ABOUT_SOCKET,
                 (uint32_t) (conn - server->conn)) < 0)
    {
        di_server_drop(server, conn);
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

    server->accept_us = on ? 0 : di_server_now_us() + ACCEPT_PAUSE_US;
    (void) epoll_ctl(server->epoll, EPOLL_CTL_MOD, server->listen, &ev);
}

void
di_server_accept_all(di_ipc_server_t *server)
{
    int i, sock;

    for (i = 0; i < ACCEPT_BATCH; i++) {
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

/* Hellos that never came, and an accept that was put off. */
void
di_server_overdue(di_ipc_server_t *server)
{
    uint32_t i;
    uint64_t now;

    if (server->n_hello == 0 && server->accept_us == 0)
        return;

    now = di_server_now_us();

    if (server->accept_us != 0 && now >= server->accept_us
        && server->listen >= 0)
    {
        arm_listen(server, true);
    }

    for (i = 0; i < server->n_used; i++) {
        if (server->conn[i].state == CONN_HELLO
            && now - server->conn[i].since_us >= HELLO_US)
        {
            di_server_drop(server, &server->conn[i]);
        }
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
