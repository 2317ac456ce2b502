/*
 * ipc_death.c - either process killed at every step of the channel's life.
 *
 * A child plays one side up to step k and kills itself with SIGKILL; this
 * process is the other side, and must notice by the socket alone, get what
 * was published, free what was held, and go on with the next peer.
 */

#include <signal.h>

#include "ipc_test.h"

#define PATIENCE_MS 60000

/* Die at this step, if it is the one. */
#define STEP(n)                                                             \
    do {                                                                    \
        if (k == (n))                                                       \
            (void) kill(getpid(), SIGKILL);                                 \
    } while (0)

static void
reap(pid_t pid)
{
    int status;

    CHECK_EQ_INT(waitpid(pid, &status, 0), pid);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static di_ipc_client_t *
open_client(void)
{
    int              i;
    di_ipc_client_t *client = NULL;

    for (i = 0; i < PATIENCE_MS; i++) {
        if (di_ipc_client_open(path, print, &client, NULL) == DI_OK)
            break;
        (void) poll(NULL, 0, 1);
    }
    return client;
}

static int
shake(di_ipc_client_t *client)
{
    int           rc;
    struct pollfd fd = { di_ipc_client_socket(client), POLLIN, 0 };

    while ((rc = di_ipc_client_handshake(client, NULL)) == DI_EAGAIN) {
        if (poll(&fd, 1, PATIENCE_MS) != 1)
            break;
    }
    return rc;
}

/* --------------------------------------------------------- worker dies -- */

#define WORKER_STEPS 11
#define READY_STEP   3           /* from here on it has been a connection   */

static void
doomed_worker(int k)
{
    int                     fd;
    int32_t                 prompt[] = { 1, 2, 3 };
    di_event_t              ev;
    struct pollfd           p;
    di_ipc_client_t        *client;
    struct sockaddr_un      addr = { .sun_family = AF_UNIX };
    di_gen_request_t        req = request(prompt, 3);
    const di_top_logprob_t *top;

    STEP(0);
    fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    (void) strcpy(addr.sun_path, path);
    (void) connect(fd, (struct sockaddr *) &addr, sizeof(addr));
    STEP(1);                     /* connected, no hello                     */
    client = open_client();
    STEP(2);                     /* hello sent                              */
    (void) shake(client);
    STEP(3);                     /* ready, nothing said                     */
    (void) di_ipc_client_submit(client, 1, &req, NULL);
    STEP(4);                     /* staged                                  */
    (void) di_ipc_client_flush(client);
    STEP(5);                     /* submitted                               */
    (void) di_ipc_client_pause(client, 1, true);
    (void) di_ipc_client_pause(client, 1, false);
    (void) di_ipc_client_flush(client);
    STEP(6);                     /* paused and resumed                      */
    while (di_ipc_client_sleep(client) != DI_OK)
        (void) di_ipc_client_recv(client, &ev, &top);
    STEP(7);                     /* asleep                                  */
    p = (struct pollfd) { di_ipc_client_eventfd(client), POLLIN, 0 };
    (void) poll(&p, 1, PATIENCE_MS);
    STEP(8);                     /* rung                                    */
    (void) di_ipc_client_recv(client, &ev, &top);
    STEP(9);                     /* in the middle of reading                */
    (void) di_ipc_client_cancel(client, 1);
    (void) di_ipc_client_flush(client);
    STEP(10);                    /* cancelled                               */
    _exit(1);
}

/* A worker that died before it was ready: nothing is due, though one that
 * died between hello and welcome may have become a connection. */
static void
serve_stillborn(di_ipc_server_t *server)
{
    int          i;
    di_ipc_msg_t msg;

    for (i = 0; i < 4; i++) {
        CHECK_EQ_INT(di_ipc_server_wait(server, 0), DI_OK);
        while (di_ipc_server_recv(server, &msg) == DI_OK)
            CHECK_EQ_INT(msg.type, DI_MSG_CLOSED);
    }

    CHECK_EQ_INT(di_ipc_server_conns(server), 0);
}

/* Serve until that connection is gone; what was submitted gets an event at
 * every turn. */
static void
serve_doomed(di_ipc_server_t *server, int k)
{
    int          submits = 0, closed = 0;
    uint32_t     conn = DI_IPC_CONNS_MAX;
    uint64_t     end = now_ms() + PATIENCE_MS;
    di_event_t   ev = token_event(1, 1);
    di_ipc_msg_t msg;

    while (closed == 0 && now_ms() < end) {
        if (di_ipc_server_recv(server, &msg) != DI_OK) {
            if (conn < DI_IPC_CONNS_MAX)
                (void) di_ipc_server_send(server, conn, &ev, NULL);
            CHECK_EQ_INT(di_ipc_server_wait(server, 5000), DI_OK);
            continue;
        }

        closed += msg.type == DI_MSG_CLOSED;
        if (msg.type == DI_MSG_SUBMIT) {
            submits++;
            conn = msg.conn;
        }
    }

    CHECK(submits <= 1 && (submits == 0 || k >= 5));
    CHECK_EQ_INT(closed, 1);
    CHECK_EQ_INT(di_ipc_server_recv(server, &msg), DI_EAGAIN);
    CHECK_EQ_INT(di_ipc_server_conns(server), 0);
}

static void
test_worker_dies(void)
{
    int              k, before;
    pid_t            pid;
    di_ipc_server_t *server = serve(LONG);

    before = count_fds();

    for (k = 0; k < WORKER_STEPS; k++) {
        pid = fork();
        if (pid == 0)
            doomed_worker(k);

        if (k < READY_STEP) {
            reap(pid);
            serve_stillborn(server);
        } else {
            serve_doomed(server, k);
            reap(pid);
        }
        CHECK_EQ_INT(di_ipc_server_wait(server, 0), DI_OK);
        CHECK_EQ_INT(count_fds(), before);
    }

    di_ipc_client_close(join(server));
    di_ipc_server_close(server);
}

/* --------------------------------------------------------- engine dies -- */

#define ENGINE_STEPS 8

/* It doesn't begin before its worker has connected, or rather closed the other
 * end of `go`: at step 0 the hello must find it listening. */
static void
doomed_engine(int k, int go)
{
    char                 none;
    di_event_t           ev = token_event(1, 1);
    di_ipc_msg_t         msg;
    di_ipc_server_t     *server;
    di_ipc_server_conf_t conf = server_conf(LONG);

    if (di_ipc_server_open(path, &conf, &server, NULL) != DI_OK)
        _exit(1);
    if (read(go, &none, 1) != 0)
        _exit(1);
    STEP(0);                     /* listening: hellos wait in the backlog   */
    while (di_ipc_server_conns(server) == 0)
        (void) di_ipc_server_wait(server, -1);
    STEP(1);                     /* welcome sent                            */
    while (di_ipc_server_recv(server, &msg) != DI_OK)
        (void) di_ipc_server_wait(server, -1);
    STEP(2);                     /* submission taken                        */
    (void) di_ipc_server_send(server, msg.conn, &ev, NULL);
    STEP(3);                     /* written, not published                  */
    di_ipc_server_flush(server);
    STEP(4);                     /* one event published                     */
    (void) di_ipc_server_send(server, msg.conn, &ev, NULL);
    (void) di_ipc_server_send(server, msg.conn, &ev, NULL);
    di_ipc_server_flush(server);
    STEP(5);                     /* three                                   */
    di_ipc_server_stop_listening(server);
    STEP(6);                     /* draining                                */
    while (di_ipc_server_wait(server, 1000) == DI_OK)
        STEP(7);                 /* after a sleep                           */
    _exit(1);
}

/* Read events until the engine is dead; the number. */
static int
read_until_death(di_ipc_client_t *client)
{
    int                     n = 0;
    di_event_t              ev;
    struct pollfd           fds[2];
    const di_top_logprob_t *top;

    for ( ;; ) {
        while (di_ipc_client_recv(client, &ev, &top) == DI_OK)
            n++;

        if (di_ipc_client_handshake(client, NULL) == DI_ECLOSED)
            break;
        if (di_ipc_client_sleep(client) != DI_OK)
            continue;

        fds[0] = (struct pollfd) { di_ipc_client_socket(client), POLLIN, 0 };
        fds[1] = (struct pollfd) { di_ipc_client_eventfd(client), POLLIN, 0 };
        CHECK(poll(fds, 2, PATIENCE_MS) > 0);
    }

    while (di_ipc_client_recv(client, &ev, &top) == DI_OK)
        n++;
    return n;
}

static void
test_engine_dies(void)
{
    int              k, rc, before, go[2];
    pid_t            pid;
    int32_t          prompt[] = { 1, 2, 3 };
    di_ipc_client_t *client;
    di_gen_request_t req = request(prompt, 3);
    static const int published[ENGINE_STEPS] = { 0, 0, 0, 0, 1, 3, 3, 3 };

    before = count_fds();

    /* Each engine but the first finds the socket that a dead one left. */
    for (k = 0; k < ENGINE_STEPS; k++) {
        CHECK_EQ_INT(pipe(go), 0);
        pid = fork();
        if (pid == 0) {
            (void) close(go[1]);
            doomed_engine(k, go[0]);
        }

        client = open_client();
        (void) close(go[0]);
        (void) close(go[1]);
        CHECK(client != NULL);
        if (client == NULL)
            break;

        rc = shake(client);
        CHECK_EQ_INT(rc, k == 0 ? DI_ECLOSED : DI_OK);
        if (rc == DI_OK) {
            CHECK_EQ_INT(di_ipc_client_submit(client, 1, &req, NULL), DI_OK);
            CHECK_EQ_INT(di_ipc_client_flush(client), DI_OK);
            CHECK_EQ_INT(read_until_death(client), published[k]);
        }
        CHECK_EQ_INT(di_ipc_client_flush(client), DI_ECLOSED);
        reap(pid);
        di_ipc_client_close(client);
        CHECK_EQ_INT(count_fds(), before);
        CHECK_EQ_INT(di_ipc_client_open(path, print, &client, NULL),
                     DI_ECLOSED);
    }

    di_ipc_server_close(serve(LONG));
}

int
main(void)
{
    begin();
    (void) alarm(600);
    test_worker_dies();
    test_engine_dies();
    return end("ipc_death");
}
