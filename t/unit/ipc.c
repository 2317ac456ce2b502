/*
 * ipc.c - the channel: every message, every limit, hostile peers, deaths.
 *
 * Both ends live in this process, so that a test can put any bytes between
 * them at any point; the deaths are played with forked children that kill
 * themselves.  The hostile worker speaks the wire format by hand (raw_...).
 */

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "../../engine/ipc/ipc_shm.h"

#define VOCAB  1000
#define LONG   (8u << 20)        /* model length: no limit in most tests    */

static char dir[64];             /* of this run, removed at the end         */
static char path[96];            /* the socket                              */

static const uint8_t print[DI_IPC_FINGERPRINT] = "fingerprint-one";
static const uint8_t other[DI_IPC_FINGERPRINT] = "fingerprint-two";

static di_ipc_server_t *
serve(uint32_t max_model_len)
{
    di_err_t             err = { 0 };
    di_ipc_server_t     *server;
    di_ipc_server_conf_t conf = {
        .welcome = {
            .model = "test-model", .arith = "test-arith", .vocab = VOCAB,
            .max_model_len = max_model_len, .pid = 1,
        },
    };

    memcpy(conf.welcome.fingerprint, print, sizeof(print));
    CHECK_EQ_INT(di_ipc_server_open(path, &conf, &server, &err), DI_OK);
    if (server == NULL) {
        printf("%s\n", err.text);
        exit(1);
    }
    return server;
}

/* A ready client of the server, or NULL. */
static di_ipc_client_t *
join(di_ipc_server_t *server)
{
    int              rc;
    di_err_t         err = { 0 };
    di_ipc_client_t *client;

    if (di_ipc_client_open(path, print, &client, &err) != DI_OK) {
        printf("%s\n", err.text);
        return NULL;
    }

    CHECK_EQ_INT(di_ipc_client_handshake(client, &err), DI_EAGAIN);
    CHECK_EQ_INT(di_ipc_server_wait(server, 0), DI_OK);
    CHECK_EQ_INT(di_ipc_server_wait(server, 0), DI_OK);

    rc = di_ipc_client_handshake(client, &err);
    CHECK_EQ_INT(rc, DI_OK);
    if (rc != DI_OK) {
        printf("%s\n", err.text);
        di_ipc_client_close(client);
        return NULL;
    }
    return client;
}

static di_gen_request_t
request(const int32_t *prompt, uint32_t n)
{
    return (di_gen_request_t) {
        .params = { .top_p = 1, .repetition_penalty = 1, .n = 1 },
        .prompt = prompt, .n_prompt = n,
    };
}

/* ------------------------------------------------------------------ plain -- */

static void
test_round_trip(void)
{
    uint32_t                conn;
    di_ipc_msg_t                msg;
    di_event_t              ev = { .id = 7 }, got;
    di_gen_request_t        req;
    di_ipc_server_t        *server = serve(LONG);
    di_ipc_client_t        *client = join(server);
    const di_top_logprob_t *top;
    di_top_logprob_t        tops[20];
    static const int32_t    prompt[] = { 1, 2, 3 };
    static const int32_t    stops[] = { 5, 6 };
    static const di_logit_bias_t bias[] = { { 9, -1.5f } };

    CHECK_EQ_STR(di_ipc_client_welcome(client)->model, "test-model");
    CHECK_EQ_STR(di_ipc_client_welcome(client)->arith, "test-arith");
    CHECK_EQ_INT(di_ipc_client_welcome(client)->vocab, VOCAB);
    CHECK_EQ_INT(di_ipc_client_welcome(client)->pid, getpid());
    CHECK_EQ_INT(di_ipc_server_conns(server), 1);
    CHECK_EQ_INT(di_ipc_server_recv(server, &msg), DI_EAGAIN);

    req = request(prompt, 3);
    req.bias = bias;
    req.n_bias = 1;
    req.stop_ids = stops;
    req.n_stop_ids = 2;
    req.params.seed = 0x123456789abcdefull;
    memcpy(req.salt, "0123456789abcdef", 16);

    CHECK_EQ_INT(di_ipc_client_submit(client, 7, &req, NULL), DI_OK);
    CHECK_EQ_INT(di_ipc_server_recv(server, &msg), DI_EAGAIN);
    CHECK_EQ_INT(di_ipc_client_cancel(client, 8), DI_OK);
    CHECK_EQ_INT(di_ipc_client_cancel_choice(client, 9, 3), DI_OK);
    CHECK_EQ_INT(di_ipc_client_pause(client, 10, true), DI_OK);
    CHECK_EQ_INT(di_ipc_client_pause(client, 10, false), DI_OK);
    CHECK_EQ_INT(di_ipc_client_flush(client), DI_OK);

    CHECK_EQ_INT(di_ipc_server_recv(server, &msg), DI_OK);
    CHECK_EQ_INT(msg.type, DI_MSG_SUBMIT);
    CHECK_EQ_INT(msg.id, 7);
    CHECK_EQ_INT(msg.req.n_prompt, 3);
    CHECK(memcmp(msg.req.prompt, prompt, sizeof(prompt)) == 0);
    CHECK_EQ_INT(msg.req.n_bias, 1);
    CHECK(memcmp(msg.req.bias, bias, sizeof(bias)) == 0);
    CHECK_EQ_INT(msg.req.n_stop_ids, 2);
    CHECK(memcmp(msg.req.stop_ids, stops, sizeof(stops)) == 0);
    CHECK(memcmp(msg.req.salt, req.salt, 16) == 0);
    CHECK(memcmp(&msg.req.params, &req.params, sizeof(req.params)) == 0);
    conn = msg.conn;

    CHECK_EQ_INT(di_ipc_server_recv(server, &msg), DI_OK);
    CHECK(msg.type == DI_MSG_CANCEL && msg.id == 8
          && msg.choice == UINT32_MAX);
    CHECK_EQ_INT(di_ipc_server_recv(server, &msg), DI_OK);
    CHECK(msg.type == DI_MSG_CANCEL && msg.id == 9 && msg.choice == 3);
    CHECK_EQ_INT(di_ipc_server_recv(server, &msg), DI_OK);
    CHECK(msg.type == DI_MSG_PAUSE && msg.id == 10);
    CHECK_EQ_INT(di_ipc_server_recv(server, &msg), DI_OK);
    CHECK(msg.type == DI_MSG_RESUME && msg.id == 10);
    CHECK_EQ_INT(di_ipc_server_recv(server, &msg), DI_EAGAIN);

    /* An event of each kind, with every number of top entries. */
    for (int n = 0; n <= 20; n++) {
        tops[n < 20 ? n : 19] = (di_top_logprob_t) { n, (float) -n };
        ev = (di_event_t) { .id = 7, .type = DI_EV_LOGPROB,
                            .n_top = (uint16_t) n };
        ev.u.logprob.token = n;
        CHECK_EQ_INT(di_ipc_server_send(server, conn, &ev, tops), DI_OK);
    }
    ev = (di_event_t) { .id = 7, .type = DI_EV_FINISH };
    ev.u.finish.reason = DI_FINISH_STOP;
    CHECK_EQ_INT(di_ipc_server_send(server, conn, &ev, NULL), DI_OK);
    ev.n_top = 21;
    CHECK_EQ_INT(di_ipc_server_send(server, conn, &ev, tops), DI_EINVAL);
    CHECK_EQ_INT(di_ipc_client_recv(client, &got, &top), DI_EAGAIN);
    di_ipc_server_flush(server);

    for (int n = 0; n <= 20; n++) {
        CHECK_EQ_INT(di_ipc_client_recv(client, &got, &top), DI_OK);
        CHECK_EQ_INT(got.u.logprob.token, n);
        CHECK_EQ_INT(got.n_top, n);
        for (int i = 0; i < n && i < 19; i++)
            CHECK(top[i].id == i && top[i].logprob == (float) -i);
    }
    CHECK_EQ_INT(di_ipc_client_recv(client, &got, &top), DI_OK);
    CHECK_EQ_INT(got.type, DI_EV_FINISH);
    CHECK_EQ_INT(di_ipc_client_recv(client, &got, &top), DI_EAGAIN);

    di_ipc_client_close(client);
    di_ipc_server_close(server);
    CHECK(access(path, F_OK) != 0);
}

int
main(void)
{
    (void) snprintf(dir, sizeof(dir), "/tmp/di-ipc-XXXXXX");
    if (mkdtemp(dir) == NULL)
        return 1;
    (void) snprintf(path, sizeof(path), "%s/e.sock", dir);

    test_round_trip();

    CHECK_EQ_INT(rmdir(dir), 0);
    (void) other;
    return check_done("ipc");
}
