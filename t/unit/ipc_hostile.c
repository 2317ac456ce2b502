/*
 * ipc_hostile.c - the channel with a peer that breaks every rule.
 *
 * raw_join() is a worker that speaks the wire format by hand and holds the
 * shared memory, so that a test writes any bytes anywhere; whatever it does,
 * the engine must go on serving an honest worker, without blocking.  The
 * second half turns the table: an engine made by hand, and an honest client
 * that must not follow it.
 */

#include <signal.h>
#include <sys/eventfd.h>
#include <sys/mman.h>

#include "ipc_test.h"

/* A worker by hand. */
typedef struct {
    int      sock;
    int      fd[DI_FDS];
    di_shm_t shm;
} raw_t;

static di_ipc_hello_msg_t
hello(void)
{
    di_ipc_hello_msg_t m = {
        .magic = DI_SHM_MAGIC, .version = DI_IPC_VERSION,
        .has_fingerprint = 1,
    };

    memcpy(m.fingerprint, print, sizeof(print));
    return m;
}

static int
raw_connect(void)
{
    int                fd;
    struct sockaddr_un addr = { .sun_family = AF_UNIX };

    fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    (void) strcpy(addr.sun_path, path);
    CHECK_EQ_INT(connect(fd, (struct sockaddr *) &addr, sizeof(addr)), 0);
    return fd;
}

static void
raw_join(di_ipc_server_t *server, raw_t *raw)
{
    char                 room[CMSG_SPACE(DI_FDS * sizeof(int))];
    di_ipc_welcome_msg_t w;
    di_ipc_hello_msg_t   m = hello();
    struct iovec         iov = { &w, sizeof(w) };
    struct msghdr        msg = {
        .msg_iov = &iov, .msg_iovlen = 1,
        .msg_control = room, .msg_controllen = sizeof(room),
    };

    raw->sock = raw_connect();
    CHECK_EQ_INT(send(raw->sock, &m, sizeof(m), 0), sizeof(m));
    CHECK_EQ_INT(di_ipc_server_wait(server, 0), DI_OK);
    CHECK_EQ_INT(di_ipc_server_wait(server, 0), DI_OK);
    CHECK_EQ_INT(recvmsg(raw->sock, &msg, MSG_CMSG_CLOEXEC), sizeof(w));
    memcpy(raw->fd, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof(raw->fd));
    CHECK_EQ_INT(di_shm_map(&raw->shm, raw->fd[DI_FD_MEMORY], NULL), DI_OK);
}

static void
raw_leave(raw_t *raw)
{
    int i;

    di_shm_unmap(&raw->shm);
    for (i = 0; i < DI_FDS; i++)
        (void) close(raw->fd[i]);
    (void) close(raw->sock);
}

/* The peer has closed this socket. */
static bool
hung_up(int sock)
{
    char byte;

    return recv(sock, &byte, 1, MSG_DONTWAIT) == 0 || errno == ECONNRESET;
}

/* ----------------------------------------------------------- handshake -- */

/* Send these bytes as a hello; what comes back: DI_REFUSE_..., or -1 for a
 * closed connection without a word. */
static int
answer_to(di_ipc_server_t *server, const void *bytes, size_t n)
{
    int                  fd = raw_connect();
    ssize_t              got;
    di_ipc_welcome_msg_t w = { 0 };

    CHECK_EQ_INT(send(fd, bytes, n, 0), n);
    CHECK_EQ_INT(di_ipc_server_wait(server, 0), DI_OK);
    CHECK_EQ_INT(di_ipc_server_wait(server, 0), DI_OK);
    got = recv(fd, &w, sizeof(w), 0);
    CHECK(got == 0 || got == (ssize_t) sizeof(w));
    if (got > 0 && w.refuse != DI_REFUSE_NOTHING) {
        CHECK(w.magic == DI_SHM_MAGIC && w.version == DI_IPC_VERSION);
        CHECK(hung_up(fd));
    }
    (void) close(fd);
    CHECK_EQ_INT(di_ipc_server_wait(server, 0), DI_OK);
    return got > 0 ? (int) w.refuse : -1;
}

static void
test_hello(void)
{
    size_t             n;
    di_ipc_msg_t       msg;
    di_ipc_hello_msg_t m;
    di_ipc_server_t   *server = serve(LONG);
    static char        big[4096];

    m = hello();
    CHECK_EQ_INT(answer_to(server, &m, sizeof(m)), DI_REFUSE_NOTHING);
    CHECK_EQ_INT(di_ipc_server_recv(server, &msg), DI_OK);
    CHECK_EQ_INT(msg.type, DI_MSG_CLOSED);

    m.has_fingerprint = 0;
    m.fingerprint[0] ^= 1;
    CHECK_EQ_INT(answer_to(server, &m, sizeof(m)), DI_REFUSE_NOTHING);
    CHECK_EQ_INT(di_ipc_server_recv(server, &msg), DI_OK);
    m.has_fingerprint = 1;
    CHECK_EQ_INT(answer_to(server, &m, sizeof(m)), DI_REFUSE_MODEL);

    m = hello();
    m.version = DI_IPC_VERSION + 1;
    CHECK_EQ_INT(answer_to(server, &m, sizeof(m)), DI_REFUSE_VERSION);
    CHECK_EQ_INT(answer_to(server, &m, 8), DI_REFUSE_VERSION);
    memcpy(big, &m, sizeof(m));
    CHECK_EQ_INT(answer_to(server, big, sizeof(big)), DI_REFUSE_VERSION);

    m = hello();
    m.magic++;
    CHECK_EQ_INT(answer_to(server, &m, sizeof(m)), -1);
    m = hello();
    m.has_fingerprint = 2;
    CHECK_EQ_INT(answer_to(server, &m, sizeof(m)), -1);
    m = hello();
    m.reserved = 1;
    CHECK_EQ_INT(answer_to(server, &m, sizeof(m)), -1);

    m = hello();
    for (n = 0; n < sizeof(m); n++)
        CHECK_EQ_INT(answer_to(server, &m, n), -1);
    memcpy(big, &m, sizeof(m));
    CHECK_EQ_INT(answer_to(server, big, sizeof(m) + 1), -1);
    CHECK_EQ_INT(answer_to(server, big, sizeof(big)), -1);

    CHECK_EQ_INT(di_ipc_server_conns(server), 0);
    CHECK_EQ_INT(di_ipc_server_recv(server, &msg), DI_EAGAIN);
    di_ipc_client_close(join(server));
    di_ipc_server_close(server);
}

/* Who says nothing is closed; who talks after the handshake too; descriptors
 * that come with a hello are dropped. */
static void
test_silence_and_talk(void)
{
    int                fd, before;
    uint64_t           t;
    raw_t              raw;
    char               room[CMSG_SPACE(sizeof(int))];
    di_ipc_msg_t       msg;
    di_ipc_hello_msg_t m = hello();
    struct iovec       iov = { &m, sizeof(m) };
    struct msghdr      mh = {
        .msg_iov = &iov, .msg_iovlen = 1,
        .msg_control = room, .msg_controllen = sizeof(room),
    };
    di_ipc_server_t   *server = serve(LONG);

    fd = raw_connect();
    t = now_ms();
    while (!hung_up(fd) && now_ms() - t < 20000)
        CHECK_EQ_INT(di_ipc_server_wait(server, 50000), DI_OK);
    t = now_ms() - t;
    CHECK(t >= 1900 && t < 20000);           /* two seconds                 */
    (void) close(fd);

    raw_join(server, &raw);
    CHECK_EQ_INT(send(raw.sock, "again", 5, 0), 5);
    CHECK_EQ_INT(di_ipc_server_wait(server, 0), DI_OK);
    CHECK(hung_up(raw.sock));
    CHECK_EQ_INT(di_ipc_server_recv(server, &msg), DI_OK);
    CHECK_EQ_INT(msg.type, DI_MSG_CLOSED);
    raw_leave(&raw);

    fd = raw_connect();
    CHECK_EQ_INT(di_ipc_server_wait(server, 0), DI_OK);
    before = count_fds();
    CMSG_FIRSTHDR(&mh)->cmsg_level = SOL_SOCKET;
    CMSG_FIRSTHDR(&mh)->cmsg_type = SCM_RIGHTS;
    CMSG_FIRSTHDR(&mh)->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(CMSG_FIRSTHDR(&mh)), &fd, sizeof(int));
    CHECK_EQ_INT(sendmsg(fd, &mh, 0), sizeof(m));
    CHECK_EQ_INT(di_ipc_server_wait(server, 0), DI_OK);
    CHECK_EQ_INT(count_fds(), before + 3);   /* the connection's own        */
    (void) close(fd);
    CHECK_EQ_INT(di_ipc_server_wait(server, 0), DI_OK);

    di_ipc_server_close(server);
}

/* ------------------------------------------------------ hostile memory -- */

/* Fill and publish slot number `at`. */
static void
put_sub(raw_t *raw, uint32_t at, di_shm_sub_t slot)
{
    slot.type = (slot.type & ~DI_SHM_MARK) | di_ring_lap(at, DI_IPC_SUB_SLOTS);
    raw->shm.sub[at % DI_IPC_SUB_SLOTS] = slot;
}

/* The engine's event number `at`, if it is published. */
static bool
get_event(raw_t *raw, uint32_t at, di_event_t *ev)
{
    uint32_t     mark;
    di_ring_rx_t rx = {
        .slots = (unsigned char *) raw->shm.comp, .next = at,
        .n_slots = DI_IPC_COMP_SLOTS,
    };

    if (!di_ring_ready(&rx, 0, &mark))
        return false;
    di_ring_get(&rx, 0, mark, ev);
    return true;
}

static di_shm_sub_t
good_sub(void)
{
    return (di_shm_sub_t) { .type = DI_SUB_SUBMIT, .id = 5, .n_prompt = 4 };
}

/* Parameters of a payload at offset 0. */
static void
put_params(raw_t *raw, float top_p)
{
    di_gen_params_t p = { .top_p = top_p, .repetition_penalty = 1, .n = 1 };

    memcpy(raw->shm.arena, &p, sizeof(p));
}

/* The raw worker must lose its connection, the honest one must be served. */
static void
expect_broken(di_ipc_server_t *server, di_ipc_client_t *honest, raw_t *raw)
{
    int          i;
    bool         closed = false;
    di_ipc_msg_t msg;

    for (i = 0; i < 4; i++) {
        while (di_ipc_server_recv(server, &msg) == DI_OK)
            closed |= msg.type == DI_MSG_CLOSED;
        CHECK_EQ_INT(di_ipc_server_wait(server, 0), DI_OK);
    }
    CHECK(closed);
    CHECK(hung_up(raw->sock));
    raw_leave(raw);

    CHECK_EQ_INT(di_ipc_client_cancel(honest, 99), DI_OK);
    CHECK_EQ_INT(di_ipc_client_flush(honest), DI_OK);
    CHECK_EQ_INT(di_ipc_server_recv(server, &msg), DI_OK);
    CHECK(msg.type == DI_MSG_CANCEL && msg.id == 99);
}

#define BREAKS(setup)                                                       \
    do {                                                                    \
        raw_t raw;                                                          \
                                                                            \
        raw_join(server, &raw);                                             \
        setup;                                                              \
        expect_broken(server, honest, &raw);                                \
    } while (0)

#define BREAKS_BY_SLOT(field)                                               \
    BREAKS(di_shm_sub_t sub = good_sub(); field; put_sub(&raw, 0, sub))

static void
test_slots(void)
{
    di_ipc_msg_t     msg;
    di_ipc_server_t *server = serve(LONG);
    di_ipc_client_t *honest = join(server);

    BREAKS_BY_SLOT(sub.type = 0);
    BREAKS_BY_SLOT(sub.type = 5);
    BREAKS_BY_SLOT(sub.type = UINT32_MAX);
    BREAKS(put_params(&raw, 1);
           put_sub(&raw, 0, good_sub()); put_sub(&raw, 1, good_sub());
           while (di_ipc_server_recv(server, &msg) == DI_OK) { }
           put_sub(&raw, 2, (di_shm_sub_t) { 0 }));
    BREAKS_BY_SLOT(sub.payload_off = 4);
    BREAKS_BY_SLOT(sub.payload_off = DI_IPC_ARENA_BYTES);
    BREAKS_BY_SLOT(sub.payload_off = DI_IPC_ARENA_BYTES - 64;
                   sub.n_prompt = 1);
    BREAKS_BY_SLOT(sub.payload_off = UINT32_MAX - 63);
    BREAKS_BY_SLOT(sub.n_prompt = DI_IPC_ARENA_BYTES / 4 - 15);
    BREAKS_BY_SLOT(sub.n_prompt = DI_IPC_ARENA_BYTES / 4 - 16;
                   sub.n_bias = 1);
    BREAKS_BY_SLOT(sub.n_bias = DI_GEN_BIAS_MAX + 1);
    BREAKS_BY_SLOT(sub.n_bias = UINT32_MAX);
    BREAKS_BY_SLOT(sub.n_stop_ids = DI_GEN_STOP_IDS_MAX + 1);
    BREAKS_BY_SLOT(sub.n_stop_ids = UINT32_MAX);
    BREAKS_BY_SLOT(sub.n_grammar = DI_IPC_GRAMMAR_MAX + 1);
    BREAKS_BY_SLOT(sub.n_grammar = UINT32_MAX);
    BREAKS_BY_SLOT(sub.n_prompt = DI_IPC_ARENA_BYTES / 4 - 16;
                   sub.n_grammar = 1);
    BREAKS_BY_SLOT(sub.payload_off = DI_IPC_ARENA_BYTES / 2;
                   sub.n_grammar = DI_IPC_GRAMMAR_MAX);

    di_ipc_client_close(honest);
    di_ipc_server_close(server);
}

/* Values out of range are no breach: the request alone is refused. */
static void
test_rejects(void)
{
    raw_t            raw;
    di_event_t       ev;
    di_ipc_msg_t     msg;
    di_shm_sub_t     sub = good_sub();
    di_ipc_server_t *server = serve(100);

    raw_join(server, &raw);
    put_params(&raw, 2);
    put_sub(&raw, 0, sub);
    CHECK_EQ_INT(di_ipc_server_recv(server, &msg), DI_EAGAIN);
    di_ipc_server_flush(server);
    CHECK(get_event(&raw, 0, &ev) && !get_event(&raw, 1, &ev));
    CHECK(get_event(&raw, 0, &ev));
    CHECK(ev.type == DI_EV_REJECT && ev.id == 5);
    CHECK_EQ_INT(ev.u.reject.reason, DI_REJECT_INVALID);
    CHECK_EQ_STR(ev.u.reject.text, "top_p");

    sub = good_sub();
    sub.n_prompt = UINT32_MAX;
    put_sub(&raw, 1, sub);
    CHECK_EQ_INT(di_ipc_server_recv(server, &msg), DI_EAGAIN);
    di_ipc_server_flush(server);
    CHECK(get_event(&raw, 1, &ev));
    CHECK_EQ_INT(ev.u.reject.reason, DI_REJECT_TOO_LONG);
    CHECK(ev.u.reject.a == UINT32_MAX && ev.u.reject.b == 100);

    sub = good_sub();
    sub.n_prompt = 0;
    put_sub(&raw, 2, sub);
    put_params(&raw, 1);
    CHECK_EQ_INT(di_ipc_server_recv(server, &msg), DI_EAGAIN);
    sub.n_prompt = 100;
    put_sub(&raw, 3, sub);
    CHECK_EQ_INT(di_ipc_server_recv(server, &msg), DI_OK);
    CHECK_EQ_INT(msg.req.n_prompt, 100);

    raw_leave(&raw);
    di_ipc_server_close(server);
}

/* A worker that lies about the completions it has read. */
static void
test_completion_head(void)
{
    di_event_t       ev = token_event(1, 1);
    di_ipc_server_t *server = serve(LONG);
    di_ipc_client_t *honest = join(server);

    /* Connection 1 is the raw one: 0 is the honest. */
    BREAKS(atomic_store(&raw.shm.head->comp_head, 1);
           while (di_ipc_server_send(server, 1, &ev, NULL) == DI_OK) { });
    BREAKS(atomic_store(&raw.shm.head->comp_head, UINT32_MAX);
           while (di_ipc_server_send(server, 1, &ev, NULL) == DI_OK) { });
    BREAKS(while (di_ipc_server_send(server, 1, &ev, NULL) == DI_OK) { }
           di_ipc_server_flush(server);
           atomic_store(&raw.shm.head->comp_head, 9000);
           CHECK(di_ipc_server_send(server, 1, &ev, NULL) == DI_OK);
           while (di_ipc_server_send(server, 1, &ev, NULL) == DI_OK) { }
           atomic_store(&raw.shm.head->comp_head, 8999);
           CHECK_EQ_INT(di_ipc_server_send(server, 1, &ev, NULL),
                        DI_ECLOSED));

    di_ipc_client_close(honest);
    di_ipc_server_close(server);
}

/* Everything that a worker can do to the descriptors it shares: the engine
 * must not block on any of them.  alarm() ends the test if it does. */
static void
test_descriptors(void)
{
    int              i;
    raw_t            raw;
    uint32_t         n = 0;
    char             bytes[256];
    uint64_t         t;
    uint64_t         most = UINT64_MAX - 1;
    di_event_t       ev = token_event(1, 1);
    di_ipc_msg_t     msg;
    di_ipc_server_t *server = serve(LONG);

    raw_join(server, &raw);
    (void) alarm(300);

    /* The eventfd blocking and full, then read empty under the engine. */
    CHECK_EQ_INT(fcntl(raw.fd[DI_FD_ENGINE_BELL], F_SETFL, 0), 0);
    CHECK_EQ_INT(write(raw.fd[DI_FD_ENGINE_BELL], &most, 8), 8);
    CHECK_EQ_INT(di_ipc_server_wait(server, 1000), DI_OK);
    CHECK_EQ_INT(read(raw.fd[DI_FD_ENGINE_BELL], &most, 8), 8);
    CHECK_EQ_INT(di_ipc_server_wait(server, 1000), DI_OK);

    /* The pipe: its end can be made blocking and never read; the worker says
     * at each batch that it sleeps anew. */
    CHECK_EQ_INT(fcntl(raw.fd[DI_FD_WORKER_BELL], F_SETFL, 0), 0);
    CHECK(write(raw.fd[DI_FD_WORKER_BELL], "x", 1) < 0);     /* read end    */
    for (i = 0; i < 100000; i++) {
        if (di_ipc_server_send(server, 0, &ev, NULL) == DI_OK)
            n++;
        else
            atomic_store(&raw.shm.head->comp_head, n);
        atomic_store(&raw.shm.head->worker_sleep, 2u * (unsigned) i + 1);
        di_ipc_server_flush(server);
    }
    CHECK(read(raw.fd[DI_FD_WORKER_BELL], bytes, sizeof(bytes)) > 0);

    /* The memory can't be resized or sealed against the engine. */
    CHECK(ftruncate(raw.fd[DI_FD_MEMORY], 0) < 0);
    CHECK(ftruncate(raw.fd[DI_FD_MEMORY], (off_t) DI_SHM_BYTES * 2) < 0);
    CHECK(fcntl(raw.fd[DI_FD_MEMORY], F_ADD_SEALS, F_SEAL_WRITE) < 0);
    /* Holes read as zeros: no SIGBUS, and a type 0 that closes it. */
    CHECK_EQ_INT(fallocate(raw.fd[DI_FD_MEMORY],
                           FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                           (off_t) DI_SHM_BYTES), 0);
    put_sub(&raw, 0, (di_shm_sub_t) { 0 });
    CHECK_EQ_INT(di_ipc_server_recv(server, &msg), DI_EAGAIN);
    CHECK_EQ_INT(di_ipc_server_recv(server, &msg), DI_OK);
    CHECK_EQ_INT(msg.type, DI_MSG_CLOSED);

    /* Its eventfd lives on in the worker, but wakes nobody any more. */
    CHECK_EQ_INT(write(raw.fd[DI_FD_ENGINE_BELL], &(uint64_t) { 1 }, 8), 8);
    t = now_ms();
    CHECK_EQ_INT(di_ipc_server_wait(server, 50000), DI_OK);
    CHECK(now_ms() - t >= 49);

    (void) alarm(0);
    raw_leave(&raw);
    di_ipc_server_close(server);
}

/* ------------------------------------------------------ hostile engine -- */

/* An engine by hand: one listening socket, one accepted worker. */
typedef struct {
    int              listen;
    int              sock;
    int              fd[DI_FDS];
    int              keep;       /* writing end of the pipe                 */
    di_shm_t         shm;
    di_ipc_client_t *client;
} fake_t;

static di_ipc_welcome_msg_t
welcome(void)
{
    di_ipc_welcome_msg_t w = {
        .magic = DI_SHM_MAGIC, .version = DI_IPC_VERSION,
        .shm_bytes = DI_SHM_BYTES,
        .welcome = server_conf(LONG).welcome,
    };

    return w;
}

static void
fake_open(fake_t *fake)
{
    int                p[2];
    struct sockaddr_un addr = { .sun_family = AF_UNIX };

    fake->listen = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    (void) strcpy(addr.sun_path, path);
    CHECK_EQ_INT(bind(fake->listen, (struct sockaddr *) &addr, sizeof(addr)),
                 0);
    CHECK_EQ_INT(listen(fake->listen, 1), 0);
    CHECK_EQ_INT(di_ipc_client_open(path, print, &fake->client, NULL), DI_OK);
    fake->sock = accept(fake->listen, NULL, NULL);

    CHECK_EQ_INT(di_shm_create(&fake->shm, &fake->fd[DI_FD_MEMORY], NULL),
                 DI_OK);
    CHECK_EQ_INT(pipe2(p, O_CLOEXEC | O_NONBLOCK), 0);
    fake->fd[DI_FD_ENGINE_BELL] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    fake->fd[DI_FD_WORKER_BELL] = p[0];
    fake->keep = p[1];
}

static void
fake_close(fake_t *fake)
{
    int i;

    di_ipc_client_close(fake->client);
    di_shm_unmap(&fake->shm);
    for (i = 0; i < DI_FDS; i++)
        (void) close(fake->fd[i]);
    (void) close(fake->keep);
    (void) close(fake->sock);
    (void) close(fake->listen);
    (void) unlink(path);
}

static void
fake_send(fake_t *fake, const void *bytes, size_t n, const int *fds, int n_fds)
{
    char          room[CMSG_SPACE(8 * sizeof(int))] = { 0 };
    struct iovec  iov = { (void *) bytes, n };
    struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };

    if (n_fds > 0) {
        msg.msg_control = room;
        msg.msg_controllen = CMSG_SPACE((size_t) n_fds * sizeof(int));
        CMSG_FIRSTHDR(&msg)->cmsg_level = SOL_SOCKET;
        CMSG_FIRSTHDR(&msg)->cmsg_type = SCM_RIGHTS;
        CMSG_FIRSTHDR(&msg)->cmsg_len = CMSG_LEN((size_t) n_fds
                                                 * sizeof(int));
        memcpy(CMSG_DATA(CMSG_FIRSTHDR(&msg)), fds,
               (size_t) n_fds * sizeof(int));
    }
    CHECK_EQ_INT(sendmsg(fake->sock, &msg, 0), n);
}

#define SHAKES(rc_wanted, text_wanted, ...)                                 \
    do {                                                                    \
        int                  memfd = -1;                                    \
        fake_t               fake;                                          \
        di_err_t             err = { 0 };                                   \
        di_ipc_welcome_msg_t w = welcome();                                 \
                                                                            \
        fake_open(&fake);                                                   \
        __VA_ARGS__;                                                        \
        CHECK_EQ_INT(di_ipc_client_handshake(fake.client, &err),            \
                     rc_wanted);                                            \
        if (strstr(err.text, text_wanted) == NULL)                          \
            CHECK_EQ_STR(err.text, text_wanted);                            \
        fake_close(&fake);                                                  \
        if (memfd >= 0)                                                     \
            (void) close(memfd);                                            \
    } while (0)

#define WELCOME(fds, n) fake_send(&fake, &w, sizeof(w), fds, n)

static void
test_welcome(void)
{
    int seven[7];

    SHAKES(DI_OK, "", WELCOME(fake.fd, 3));
    SHAKES(DI_EAGAIN, "", (void) w);
    SHAKES(DI_ECLOSED, "closed", (void) w; (void) shutdown(fake.sock, 2));
    SHAKES(DI_EPROTO, "incomplete", WELCOME(fake.fd, 0));
    SHAKES(DI_EPROTO, "incomplete", WELCOME(fake.fd, 2));
    SHAKES(DI_EPROTO, "incomplete",
           memcpy(seven, fake.fd, sizeof(fake.fd)); seven[3] = fake.fd[0];
           WELCOME(seven, 4));
    SHAKES(DI_EPROTO, "were lost",
           for (int i = 0; i < 7; i++) seven[i] = fake.fd[i % 3];
           WELCOME(seven, 7));
    SHAKES(DI_EPROTO, "too long",
           char long_msg[sizeof(w) + 1] = { 0 }; memcpy(long_msg, &w, sizeof w);
           fake_send(&fake, long_msg, sizeof(long_msg), fake.fd, 3));
    SHAKES(DI_EPROTO, "wrong length",
           fake_send(&fake, &w, sizeof(w) - 1, fake.fd, 3));
    SHAKES(DI_EPROTO, "not a deepinfer engine",
           fake_send(&fake, &w, 7, fake.fd, 3));
    SHAKES(DI_EPROTO, "not a deepinfer engine",
           w.magic = 0; WELCOME(fake.fd, 3));
    SHAKES(DI_EPROTO, "version 1 of the channel",
           w.version = 1; WELCOME(fake.fd, 3));
    SHAKES(DI_EPROTO, "another model", w.refuse = DI_REFUSE_MODEL;
           WELCOME(fake.fd, 0));
    SHAKES(DI_EPROTO, "another model", w.welcome.fingerprint[0] ^= 1;
           WELCOME(fake.fd, 3));
    SHAKES(DI_ECLOSED, "no free connection", w.refuse = DI_REFUSE_FULL;
           WELCOME(fake.fd, 0));
    SHAKES(DI_ECLOSED, "lacks memory", w.refuse = DI_REFUSE_FAULT;
           WELCOME(fake.fd, 0));
    SHAKES(DI_EPROTO, "refused (9)", w.refuse = 9; WELCOME(fake.fd, 0));
    SHAKES(DI_EPROTO, "incomplete", w.shm_bytes++; WELCOME(fake.fd, 3));

    /* Memory that isn't what it should be: not a memfd, unsealed, short, of
     * another layout. */
    SHAKES(DI_EPROTO, "sealed memfd", memcpy(seven, fake.fd, sizeof(fake.fd));
           seven[0] = fake.sock; WELCOME(seven, 3));
    SHAKES(DI_EPROTO, "sealed memfd", memcpy(seven, fake.fd, sizeof(fake.fd));
           memfd = memfd_create("x", MFD_CLOEXEC | MFD_ALLOW_SEALING);
           CHECK_EQ_INT(ftruncate(memfd, (off_t) DI_SHM_BYTES), 0);
           seven[0] = memfd; WELCOME(seven, 3));
    SHAKES(DI_EPROTO, "sealed memfd", memcpy(seven, fake.fd, sizeof(fake.fd));
           memfd = memfd_create("x", MFD_CLOEXEC | MFD_ALLOW_SEALING);
           CHECK_EQ_INT(ftruncate(memfd, (off_t) DI_SHM_BYTES - 1), 0);
           CHECK_EQ_INT(fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW
                              | F_SEAL_SEAL), 0);
           seven[0] = memfd; WELCOME(seven, 3));
    SHAKES(DI_EPROTO, "layout", fake.shm.head->layout.comp_off++;
           WELCOME(fake.fd, 3));
}

/* Put an event and n - 1 slots in the ring; see what the worker makes of it. */
#define GETS(rc_wanted, ...)                                                \
    do {                                                                    \
        fake_t                  fake;                                       \
        di_event_t              ev = { .id = 1, .type = DI_EV_STARTED };    \
        uint32_t                i, n = 1;                                   \
        di_ipc_welcome_msg_t    w = welcome();                              \
        const di_top_logprob_t *top;                                        \
                                                                            \
        fake_open(&fake);                                                   \
        WELCOME(fake.fd, 3);                                                \
        CHECK_EQ_INT(di_ipc_client_handshake(fake.client, NULL), DI_OK);    \
        __VA_ARGS__;                                                        \
        fake.shm.comp[0].event = ev;                                        \
        for (i = 0; i < n; i++)                                             \
            *di_ring_mark((void *) &fake.shm.comp[i]) |= DI_SHM_MARK;       \
        CHECK_EQ_INT(di_ipc_client_recv(fake.client, &ev, &top), rc_wanted);\
        fake_close(&fake);                                                  \
    } while (0)

static void
test_events(void)
{
    GETS(DI_OK, (void) 0);
    GETS(DI_EAGAIN, n = 0);
    GETS(DI_EPROTO, ev.type = 0);
    GETS(DI_EPROTO, ev.type = 7);
    GETS(DI_EPROTO, ev.n_top = 1);
    GETS(DI_EPROTO, ev.choice = DI_GEN_N_MAX);
    GETS(DI_OK, ev.choice = DI_GEN_N_MAX - 1);
    GETS(DI_EPROTO, ev.type = DI_EV_TOKENS);
    GETS(DI_OK, ev.type = DI_EV_TOKENS; ev.n_tokens = 8);
    GETS(DI_EPROTO, ev.type = DI_EV_TOKENS; ev.n_tokens = 9);
    GETS(DI_EPROTO, ev.type = DI_EV_TOKENS; ev.n_tokens = 1; ev.n_top = 1);
    GETS(DI_OK, ev.type = DI_EV_LOGPROB);
    GETS(DI_EPROTO, ev.type = DI_EV_LOGPROB; ev.n_top = 1);
    GETS(DI_OK, ev.type = DI_EV_LOGPROB; ev.n_top = 8; n = 2);
    GETS(DI_EPROTO, ev.type = DI_EV_LOGPROB; ev.n_top = 9; n = 2);
    GETS(DI_OK, ev.type = DI_EV_PROMPT_LOGPROB; ev.n_top = 20; n = 4);
    GETS(DI_EPROTO, ev.type = DI_EV_LOGPROB; ev.n_top = 21; n = 9);
    GETS(DI_EPROTO, ev.type = DI_EV_LOGPROB; ev.n_top = UINT16_MAX;
         n = DI_IPC_COMP_SLOTS);
    GETS(DI_EPROTO, ev.type = DI_EV_FINISH);
    GETS(DI_OK, ev.type = DI_EV_FINISH; ev.u.finish.reason = 5);
    GETS(DI_EPROTO, ev.type = DI_EV_FINISH; ev.u.finish.reason = 6);
    GETS(DI_EPROTO, ev.type = DI_EV_REJECT);
    GETS(DI_EPROTO, ev.type = DI_EV_REJECT; ev.u.reject.reason = 7);
    GETS(DI_OK, ev.type = DI_EV_REJECT; ev.u.reject.reason = 6;
         memset(ev.u.reject.text, 'x', sizeof(ev.u.reject.text)));
}

/* The engine's other indices, its pid, its talk after the welcome. */
static void
test_engine_lies(void)
{
    int                     i;
    fake_t                  fake;
    int32_t                 prompt[] = { 1 };
    di_err_t                err = { 0 };
    di_event_t              ev;
    di_ipc_status_t         st;
    di_gen_request_t        req = request(prompt, 1);
    di_ipc_welcome_msg_t    w = welcome();
    const di_top_logprob_t *top;

    fake_open(&fake);
    memset(w.welcome.model, 'm', sizeof(w.welcome.model));
    memset(w.welcome.arith, 'a', sizeof(w.welcome.arith));
    w.welcome.pid = 12345678;
    CHECK_EQ_INT(di_ipc_client_submit(fake.client, 1, &req, NULL), DI_EAGAIN);
    CHECK_EQ_INT(di_ipc_client_recv(fake.client, &ev, &top), DI_EAGAIN);
    CHECK_EQ_INT(di_ipc_client_sleep(fake.client), DI_OK);
    CHECK_EQ_INT(di_ipc_client_status(fake.client, &st), DI_EAGAIN);
    CHECK_EQ_INT(di_ipc_client_flush(fake.client), DI_OK);
    WELCOME(fake.fd, 3);
    CHECK_EQ_INT(di_ipc_client_handshake(fake.client, NULL), DI_OK);
    CHECK_EQ_INT(strlen(di_ipc_client_welcome(fake.client)->model), 95);
    CHECK_EQ_INT(strlen(di_ipc_client_welcome(fake.client)->arith), 31);
    CHECK_EQ_INT(di_ipc_client_welcome(fake.client)->pid, getpid());

    /* A writer of the status page that died in the middle. */
    atomic_store(&fake.shm.status->seq, 1);
    CHECK_EQ_INT(di_ipc_client_status(fake.client, &st), DI_EAGAIN);

    /* A consumer that is ahead of what was published. */
    for (i = 0; i < DI_IPC_SUB_SLOTS; i++)
        CHECK_EQ_INT(di_ipc_client_submit(fake.client, 1, &req, NULL), DI_OK);
    atomic_store(&fake.shm.head->sub_head, 1);
    CHECK_EQ_INT(di_ipc_client_submit(fake.client, 1, &req, NULL), DI_EPROTO);
    CHECK_EQ_INT(di_ipc_client_cancel(fake.client, 1), DI_EPROTO);

    /* Talk after the welcome, with descriptors that must not stay open. */
    CHECK_EQ_INT(di_ipc_client_handshake(fake.client, NULL), DI_OK);
    i = count_fds();
    WELCOME(fake.fd, 3);
    CHECK_EQ_INT(di_ipc_client_handshake(fake.client, &err), DI_EPROTO);
    CHECK(strstr(err.text, "after its welcome") != NULL);
    CHECK_EQ_INT(count_fds(), i);

    (void) shutdown(fake.sock, SHUT_RDWR);
    CHECK_EQ_INT(di_ipc_client_handshake(fake.client, NULL), DI_ECLOSED);
    CHECK_EQ_INT(di_ipc_client_flush(fake.client), DI_ECLOSED);
    fake_close(&fake);
}

int
main(void)
{
    begin();
    test_hello();
    test_silence_and_talk();
    test_slots();
    test_rejects();
    test_completion_head();
    test_descriptors();
    test_welcome();
    test_events();
    test_engine_lies();
    return end("ipc_hostile");
}
