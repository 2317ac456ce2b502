/*
 * ipc_threads.c - the channel between threads: wake-ups that must not get
 * lost, then load from three workers at once; for ThreadSanitizer as much as
 * for its own checks.
 *
 * Worker and engine sleep whenever they can and are woken by doorbells alone
 * (no timeout short enough to hide a lost one): the test hangs, and alarm()
 * ends it, if a wake-up gets lost.  The engine answers a submission of n
 * tokens with these tokens as n events and a FINISH, as room allows; workers
 * check order and content and drain slowly now and then, so that rings fill.
 */

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include "ipc_test.h"

#define WORKERS     3
#define REQUESTS    20000        /* of each worker                          */
#define IN_FLIGHT   1200         /* more than the submission ring holds     */
#define TOKENS_MAX  40

typedef struct {
    int              wake;       /* eventfd: the engine shall end           */
    di_ipc_server_t *server;
    uint64_t         n_submits;
    uint64_t         n_closed;
} engine_t;

typedef struct {
    pthread_t thread;
    uint32_t  seed;
    uint64_t  n_events;
    uint64_t  n_sleeps;
    int       wrong;             /* checks failed in the thread             */
} worker_t;

/* An answer that is not out yet. */
typedef struct answer_s {
    struct answer_s *next;
    uint32_t         conn, n, sent;
    uint64_t         id;
    int32_t          tokens[TOKENS_MAX];
} answer_t;

static uint32_t
rnd(uint32_t *seed, uint32_t n)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (*seed >> 8) % n;
}

/* -------------------------------------------------------------- engine -- */

static answer_t *
take_messages(engine_t *engine, answer_t *list)
{
    answer_t     *a, **p;
    di_ipc_msg_t  msg;

    while (di_ipc_server_recv(engine->server, &msg) == DI_OK) {
        if (msg.type == DI_MSG_CLOSED) {
            engine->n_closed++;
            for (p = &list; (a = *p) != NULL; ) {
                if (a->conn == msg.conn) {
                    *p = a->next;
                    free(a);
                } else {
                    p = &a->next;
                }
            }
            continue;
        }

        if (msg.type != DI_MSG_SUBMIT)
            continue;

        a = malloc(sizeof(*a));
        *a = (answer_t) {
            .next = list, .conn = msg.conn, .n = msg.req.n_prompt,
            .id = msg.id,
        };
        memcpy(a->tokens, msg.req.prompt, a->n * sizeof(int32_t));
        list = a;
        engine->n_submits++;
    }

    return list;
}

/* One event of one answer.  false: no room. */
static bool
send_one(engine_t *engine, answer_t *a)
{
    di_event_t ev = token_event(a->id, a->tokens[a->sent % TOKENS_MAX]);

    if (di_ipc_server_room(engine->server, a->conn) < 1)
        return false;

    if (a->sent == a->n) {
        ev = (di_event_t) { .id = a->id, .type = DI_EV_FINISH };
        ev.u.finish.reason = DI_FINISH_STOP;
        ev.u.finish.completion_tokens = a->n;
    }

    if (di_ipc_server_send(engine->server, a->conn, &ev, NULL) == DI_OK)
        a->sent++;
    return true;
}

static void *
run_engine(void *arg)
{
    bool             moved;
    answer_t        *list = NULL, *a, **p;
    engine_t        *engine = arg;
    di_ipc_status_t  st = { 0 };
    struct pollfd    wake = { engine->wake, POLLIN, 0 };

    for ( ;; ) {
        list = take_messages(engine, list);
        moved = false;

        for (p = &list; (a = *p) != NULL; ) {
            moved |= send_one(engine, a);
            if (a->sent <= a->n) {
                p = &a->next;
                continue;
            }
            *p = a->next;
            free(a);
        }

        st.steps++;
        st.decode_tokens = st.steps * 3;
        di_ipc_server_status(engine->server, &st);
        di_ipc_server_flush(engine->server);

        if (poll(&wake, 1, 0) == 1 && engine->n_closed == WORKERS)
            break;
        if (di_ipc_server_wait(engine->server, moved ? 0 : -1) != DI_OK)
            break;
    }

    return NULL;
}

/* -------------------------------------------------------------- worker -- */

static void
sleep_in_epoll(worker_t *w, di_ipc_client_t *client, int epoll)
{
    struct epoll_event ev;

    if (di_ipc_client_sleep(client) != DI_OK)
        return;
    w->n_sleeps++;
    while (epoll_wait(epoll, &ev, 1, -1) < 0 && errno == EINTR) { }
}

static di_ipc_client_t *
worker_join(worker_t *w)
{
    int              rc;
    struct pollfd    fd;
    di_ipc_client_t *client;

    while ((rc = di_ipc_client_open(path, print, &client, NULL)) == DI_EAGAIN)
        (void) poll(NULL, 0, 1);
    if (rc != DI_OK) {
        w->wrong++;
        return NULL;
    }

    fd = (struct pollfd) { di_ipc_client_socket(client), POLLIN, 0 };
    while ((rc = di_ipc_client_handshake(client, NULL)) == DI_EAGAIN)
        (void) poll(&fd, 1, -1);
    w->wrong += rc != DI_OK;
    return client;
}

/* The tokens of request id are id, id + 1, ...; how many: by the id too. */
static uint32_t
tokens_of(uint64_t id)
{
    return 1 + (uint32_t) (id * 7 % TOKENS_MAX);
}

static bool
submit(di_ipc_client_t *client, uint64_t id)
{
    uint32_t         i, n = tokens_of(id);
    int32_t          prompt[TOKENS_MAX];
    di_gen_request_t req = request(prompt, n);

    for (i = 0; i < n; i++)
        prompt[i] = (int32_t) (id + i);
    return di_ipc_client_submit(client, id, &req, NULL) == DI_OK;
}

static void
take_event(worker_t *w, const di_event_t *ev, uint32_t *seen, uint32_t *over)
{
    uint32_t *n = &seen[ev->id % REQUESTS];

    w->n_events++;
    if (ev->type == DI_EV_TOKENS) {
        w->wrong += ev->u.tokens[0] != (int32_t) (ev->id + *n);
        (*n)++;
    } else {
        w->wrong += ev->type != DI_EV_FINISH || *n != tokens_of(ev->id);
        (*over)++;
    }
}

static void *
run_worker(void *arg)
{
    int                     epoll, rc;
    bool                    full;
    uint32_t                sent = 0, over = 0, i;
    uint32_t               *seen = calloc(REQUESTS, sizeof(*seen));
    worker_t               *w = arg;
    di_event_t              event;
    di_ipc_status_t         st;
    di_ipc_client_t        *client = worker_join(w);
    struct epoll_event      ev = { .events = EPOLLIN | EPOLLET };
    const di_top_logprob_t *top;

    if (client == NULL || seen == NULL)
        return NULL;

    epoll = epoll_create1(EPOLL_CLOEXEC);
    (void) epoll_ctl(epoll, EPOLL_CTL_ADD, di_ipc_client_eventfd(client), &ev);

    while (over < REQUESTS) {
        full = false;
        for (i = rnd(&w->seed, 100); i > 0 && sent < REQUESTS
                                     && sent - over < IN_FLIGHT; i--)
        {
            full = !submit(client, sent);
            if (full)
                break;
            sent++;
        }
        w->wrong += di_ipc_client_flush(client) != DI_OK;

        while ((rc = di_ipc_client_recv(client, &event, &top)) == DI_OK)
            take_event(w, &event, seen, &over);
        w->wrong += rc != DI_EAGAIN;

        if (di_ipc_client_status(client, &st) == DI_OK)
            w->wrong += st.decode_tokens != st.steps * 3;
        if (rnd(&w->seed, 200) == 0)
            (void) poll(NULL, 0, 3);         /* let the rings fill          */

        /* Requests in flight are what will wake us. */
        if (sent > over && (full || rnd(&w->seed, 2)))
            sleep_in_epoll(w, client, epoll);
    }

    di_ipc_client_close(client);
    (void) close(epoll);
    free(seen);
    return NULL;
}

/* ------------------------------------------------------- lost wake-ups -- */

/* One message at a time, both sides going to sleep at every one, with random
 * delays that move the publishing of one over the falling asleep of the
 * other. */
#define ROUNDS 30000

static void
delay(uint32_t *seed)
{
    uint32_t i, n = rnd(seed, rnd(seed, 2) ? 50000 : 100);

    for (i = 0; i < n; i++)
        __asm__ volatile("" ::: "memory");
}

static void *
answer_rounds(void *arg)
{
    uint32_t         seed = 1;
    di_event_t       ev = token_event(1, 1);
    di_ipc_msg_t     msg;
    di_ipc_server_t *server = arg;

    for ( ;; ) {
        if (di_ipc_server_recv(server, &msg) == DI_OK) {
            if (msg.type == DI_MSG_CLOSED)
                return NULL;
            delay(&seed);
            (void) di_ipc_server_send(server, msg.conn, &ev, NULL);
            di_ipc_server_flush(server);
            continue;
        }
        delay(&seed);
        (void) di_ipc_server_wait(server, -1);
    }
}

static void
test_lost_wake_ups(void)
{
    int                     i;
    uint32_t                seed = 2;
    pthread_t               thread;
    di_event_t              ev;
    struct pollfd           fd;
    di_ipc_server_t        *server = serve(LONG);
    di_ipc_client_t        *client = join(server);
    const di_top_logprob_t *top;

    CHECK_EQ_INT(pthread_create(&thread, NULL, answer_rounds, server), 0);
    fd = (struct pollfd) { di_ipc_client_eventfd(client), POLLIN, 0 };

    for (i = 0; i < ROUNDS; i++) {
        delay(&seed);
        CHECK_EQ_INT(di_ipc_client_cancel(client, 1), DI_OK);
        CHECK_EQ_INT(di_ipc_client_flush(client), DI_OK);
        while (di_ipc_client_recv(client, &ev, &top) != DI_OK) {
            delay(&seed);
            if (di_ipc_client_sleep(client) == DI_OK)
                (void) poll(&fd, 1, -1);
        }
    }

    di_ipc_client_close(client);
    CHECK_EQ_INT(pthread_join(thread, NULL), 0);
    di_ipc_server_close(server);
}

/* One way: a message at random moments while the engine falls asleep after
 * each; now and then the worker waits until all have been taken, which never
 * happens when a wake-up got lost. */
typedef struct {
    di_ipc_server_t *server;
    _Atomic uint32_t taken;
} sink_t;

static void *
take_all(void *arg)
{
    sink_t      *sink = arg;
    di_ipc_msg_t msg;

    for ( ;; ) {
        while (di_ipc_server_recv(sink->server, &msg) == DI_OK) {
            if (msg.type == DI_MSG_CLOSED)
                return NULL;
            atomic_fetch_add(&sink->taken, 1);
        }
        (void) di_ipc_server_wait(sink->server, -1);
    }
}

static void
test_lost_one_way(void)
{
    uint32_t         i, k, n, seed = 3;
    sink_t           sink = { .server = serve(LONG) };
    pthread_t        thread;
    di_ipc_client_t *client = join(sink.server);

    CHECK_EQ_INT(pthread_create(&thread, NULL, take_all, &sink), 0);

    for (i = 1; i <= ROUNDS; i++) {
        CHECK_EQ_INT(di_ipc_client_cancel(client, 1), DI_OK);
        CHECK_EQ_INT(di_ipc_client_flush(client), DI_OK);
        while (atomic_load(&sink.taken) != i) { }
        for (k = 0, n = rnd(&seed, 400); k < n; k++)
            __asm__ volatile("" ::: "memory");
    }

    di_ipc_client_close(client);
    CHECK_EQ_INT(pthread_join(thread, NULL), 0);
    di_ipc_server_close(sink.server);
}

static void *
wait_once(void *arg)
{
    return di_ipc_server_wait(arg, -1) == DI_OK ? arg : NULL;
}

/* An engine that sleeps for want of room is woken when there is some. */
static void
test_room_wakes(void)
{
    void                   *woken;
    uint32_t                conn;
    pthread_t               thread;
    di_event_t              ev = token_event(1, 1);
    di_ipc_msg_t            msg;
    di_ipc_server_t        *server = serve(LONG);
    di_ipc_client_t        *client = join(server);
    const di_top_logprob_t *top;

    CHECK_EQ_INT(di_ipc_client_cancel(client, 1), DI_OK);
    CHECK_EQ_INT(di_ipc_client_flush(client), DI_OK);
    CHECK_EQ_INT(di_ipc_server_recv(server, &msg), DI_OK);
    conn = msg.conn;

    while (di_ipc_server_room(server, conn) > 0)
        CHECK_EQ_INT(di_ipc_server_send(server, conn, &ev, NULL), DI_OK);

    CHECK_EQ_INT(pthread_create(&thread, NULL, wait_once, server), 0);
    (void) poll(NULL, 0, 50);
    CHECK_EQ_INT(di_ipc_client_recv(client, &ev, &top), DI_OK);
    CHECK_EQ_INT(di_ipc_client_sleep(client), DI_EAGAIN);
    CHECK_EQ_INT(pthread_join(thread, &woken), 0);
    CHECK(woken == server);
    CHECK_EQ_INT(di_ipc_server_room(server, conn), 1);

    di_ipc_client_close(client);
    di_ipc_server_close(server);
}

static void
test_load(void)
{
    int       i;
    worker_t  w[WORKERS] = { 0 };
    uint64_t  one = 1;
    engine_t  engine = { 0 };
    pthread_t thread;

    engine.server = serve(LONG);
    engine.wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    CHECK_EQ_INT(di_ipc_server_wake_fd(engine.server, engine.wake), DI_OK);
    CHECK_EQ_INT(pthread_create(&thread, NULL, run_engine, &engine), 0);

    for (i = 0; i < WORKERS; i++) {
        w[i].seed = (uint32_t) time(NULL) + (uint32_t) i;
        CHECK_EQ_INT(pthread_create(&w[i].thread, NULL, run_worker, &w[i]),
                     0);
    }

    for (i = 0; i < WORKERS; i++) {
        CHECK_EQ_INT(pthread_join(w[i].thread, NULL), 0);
        CHECK_EQ_INT(w[i].wrong, 0);
        CHECK(w[i].n_sleeps > 0);
        CHECK(w[i].n_events > REQUESTS);
    }

    CHECK_EQ_INT(write(engine.wake, &one, sizeof(one)), sizeof(one));
    CHECK_EQ_INT(pthread_join(thread, NULL), 0);
    CHECK_EQ_INT(engine.n_submits, WORKERS * REQUESTS);
    CHECK_EQ_INT(engine.n_closed, WORKERS);

    di_ipc_server_close(engine.server);
    (void) close(engine.wake);
}

int
main(void)
{
    begin();
    (void) alarm(600);
    test_lost_wake_ups();
    test_lost_one_way();
    test_room_wakes();
    test_load();
    return end("ipc_threads");
}
