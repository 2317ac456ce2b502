/*
 * ipc.c - the channel between two honest peers: every message, every limit.
 *
 * Both ends live in this process, so that a test sees each state between two
 * calls.  Hostile peers are in ipc_hostile.c, deaths in ipc_death.c, threads
 * in ipc_threads.c.
 */

#include <math.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "nomem.h"
#include "ipc_test.h"

static uint64_t seed;

static uint32_t
rnd(uint32_t n)
{
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t) (seed >> 33) % n;
}

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
    static const uint8_t    blob[] = "any bytes at all";
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
    req.grammar = blob;
    req.n_grammar = sizeof(blob);
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
    CHECK_EQ_INT(msg.req.n_grammar, sizeof(blob));
    CHECK(memcmp(msg.req.grammar, blob, sizeof(blob)) == 0);
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

/* -------------------------------------------------------------- checks -- */

#define WRONG(field, expr)                                                  \
    do {                                                                    \
        di_err_t         wrong_err = { 0 };                                 \
        di_gen_request_t req = request(ids, 4);                             \
                                                                            \
        expr;                                                               \
        CHECK_EQ_INT(di_gen_request_check(&req, &wrong_err), DI_EINVAL);    \
        CHECK_EQ_STR(wrong_err.text, field);                                \
    } while (0)

#define RIGHT(expr)                                                         \
    do {                                                                    \
        di_gen_request_t req = request(ids, 4);                             \
                                                                            \
        expr;                                                               \
        CHECK_EQ_INT(di_gen_request_check(&req, NULL), DI_OK);              \
    } while (0)

static void
test_request_check(void)
{
    static int32_t         ids[DI_GEN_BIAS_MAX + 1];
    static di_logit_bias_t bias[DI_GEN_BIAS_MAX + 1];

    RIGHT((void) 0);
    RIGHT(req.params.temperature = 100);
    WRONG("temperature", req.params.temperature = 100.001f);
    WRONG("temperature", req.params.temperature = -0.001f);
    WRONG("temperature", req.params.temperature = NAN);
    WRONG("temperature", req.params.temperature = INFINITY);
    WRONG("top_p", req.params.top_p = 0);
    WRONG("top_p", req.params.top_p = 1.0001f);
    WRONG("top_p", req.params.top_p = NAN);
    RIGHT(req.params.min_p = 1);
    WRONG("min_p", req.params.min_p = 1.0001f);
    WRONG("min_p", req.params.min_p = NAN);
    RIGHT(req.params.presence_penalty = -2);
    WRONG("presence_penalty", req.params.presence_penalty = -2.01f);
    WRONG("presence_penalty", req.params.presence_penalty = NAN);
    RIGHT(req.params.frequency_penalty = 2);
    WRONG("frequency_penalty", req.params.frequency_penalty = 2.01f);
    WRONG("frequency_penalty", req.params.frequency_penalty = NAN);
    RIGHT(req.params.repetition_penalty = 10);
    WRONG("repetition_penalty", req.params.repetition_penalty = 0);
    WRONG("repetition_penalty", req.params.repetition_penalty = 10.01f);
    WRONG("repetition_penalty", req.params.repetition_penalty = NAN);
    WRONG("top_k", req.params.top_k = -1);
    RIGHT(req.params.n = DI_GEN_N_MAX);
    WRONG("n", req.params.n = 0);
    WRONG("n", req.params.n = DI_GEN_N_MAX + 1);
    RIGHT(req.params.top_logprobs = DI_GEN_TOP_LOGPROBS_MAX);
    WRONG("top_logprobs", req.params.top_logprobs = 21);
    RIGHT(req.params.flags = DI_GEN_FLAGS_ALL;
          req.params.prompt_logprobs_from = 4);
    WRONG("flags", req.params.flags = DI_GEN_FLAGS_ALL + 1);
    WRONG("reserved", req.params.reserved = 1);
    WRONG("prompt", req.n_prompt = 0);
    WRONG("prompt", req.prompt = NULL);
    WRONG("prompt_logprobs_from", req.params.flags = DI_GEN_PROMPT_LOGPROBS);
    WRONG("prompt_logprobs_from", req.params.flags = DI_GEN_PROMPT_LOGPROBS;
          req.params.prompt_logprobs_from = 5);
    RIGHT(req.bias = bias; req.n_bias = DI_GEN_BIAS_MAX);
    WRONG("logit_bias", req.bias = bias; req.n_bias = DI_GEN_BIAS_MAX + 1);
    WRONG("logit_bias", req.n_bias = 1);
    RIGHT(req.stop_ids = ids; req.n_stop_ids = DI_GEN_STOP_IDS_MAX);
    WRONG("stop_ids", req.stop_ids = ids;
          req.n_stop_ids = DI_GEN_STOP_IDS_MAX + 1);
    WRONG("stop_ids", req.n_stop_ids = 1);
    RIGHT(req.grammar = (uint8_t *) ids; req.n_grammar = DI_IPC_GRAMMAR_MAX);
    WRONG("grammar", req.grammar = (uint8_t *) ids;
          req.n_grammar = DI_IPC_GRAMMAR_MAX + 1);
    WRONG("grammar", req.n_grammar = 1);

    bias[1].bias = NAN;
    WRONG("logit_bias", req.bias = bias; req.n_bias = 2);
    bias[1].bias = -100.5f;
    WRONG("logit_bias", req.bias = bias; req.n_bias = 2);
    bias[1] = (di_logit_bias_t) { -1, 0 };
    WRONG("logit_bias", req.bias = bias; req.n_bias = 2);
    ids[1] = -1;
    WRONG("stop_ids", req.stop_ids = ids; req.n_stop_ids = 2);
}

/* -------------------------------------------------------------- limits -- */

/* Take one SUBMIT whose prompt is n tokens counted up from id. */
static void
expect_submit(di_ipc_server_t *server, uint64_t id, uint32_t n)
{
    uint32_t     i;
    bool         same = true;
    di_ipc_msg_t msg = { 0 };

    CHECK_EQ_INT(di_ipc_server_recv(server, &msg), DI_OK);
    CHECK_EQ_INT(msg.type, DI_MSG_SUBMIT);
    CHECK_EQ_INT(msg.id, id);
    CHECK_EQ_INT(msg.req.n_prompt, n);
    for (i = 0; i < n && i < msg.req.n_prompt; i++)
        same &= msg.req.prompt[i] == (int32_t) (id + i);
    CHECK(same);
}

static int
stage(di_ipc_client_t *client, int32_t *prompt, uint64_t id, uint32_t n)
{
    uint32_t         i;
    di_gen_request_t req = request(prompt, n);

    for (i = 0; i < n; i++)
        prompt[i] = (int32_t) (id + i);
    return di_ipc_client_submit(client, id, &req, NULL);
}

static void
test_ring_full(void)
{
    int32_t          prompt[4];
    uint64_t         id;
    di_ipc_msg_t     msg;
    di_ipc_server_t *server = serve(LONG);
    di_ipc_client_t *client = join(server);

    for (id = 0; id < DI_IPC_SUB_SLOTS; id++)
        CHECK_EQ_INT(stage(client, prompt, id, 4), DI_OK);
    CHECK_EQ_INT(stage(client, prompt, id, 4), DI_EAGAIN);
    CHECK_EQ_INT(di_ipc_client_cancel(client, 1), DI_EAGAIN);
    CHECK_EQ_INT(di_ipc_client_pause(client, 1, true), DI_EAGAIN);
    CHECK_EQ_INT(di_ipc_client_flush(client), DI_OK);

    for (id = 0; id < DI_IPC_SUB_SLOTS; id++)
        expect_submit(server, id, 4);
    CHECK_EQ_INT(di_ipc_server_recv(server, &msg), DI_EAGAIN);
    CHECK_EQ_INT(stage(client, prompt, id, 4), DI_OK);
    CHECK_EQ_INT(di_ipc_client_flush(client), DI_OK);
    expect_submit(server, id, 4);

    di_ipc_client_close(client);
    di_ipc_server_close(server);
}

/* A payload of the arena's size, one token more, and an arena that is full
 * in every way: exactly, by a gap at its end, behind a large payload. */
static void
test_arena(void)
{
    di_err_t         err = { 0 };
    uint32_t         all = (DI_IPC_ARENA_BYTES - sizeof(di_gen_params_t))
                           / sizeof(int32_t);
    int32_t         *prompt = calloc(all + 1, sizeof(int32_t));
    di_ipc_msg_t     msg;
    di_gen_request_t req;
    di_ipc_server_t *server = serve(LONG);
    di_ipc_client_t *client = join(server);

    req = request(prompt, all + 1);
    CHECK_EQ_INT(di_ipc_client_submit(client, 1, &req, &err), DI_ELIMIT);
    CHECK_EQ_INT(err.code, DI_ELIMIT);
    req = request(prompt, all);
    req.stop_ids = prompt;
    req.n_stop_ids = 1;
    CHECK_EQ_INT(di_ipc_client_submit(client, 1, &req, NULL), DI_ELIMIT);
    req = request(prompt, all);
    req.grammar = (uint8_t *) prompt;
    req.n_grammar = 1;
    CHECK_EQ_INT(di_ipc_client_submit(client, 1, &req, NULL), DI_ELIMIT);

    CHECK_EQ_INT(stage(client, prompt, 5, 10), DI_OK);
    CHECK_EQ_INT(stage(client, prompt, 6, all), DI_EAGAIN);
    CHECK_EQ_INT(di_ipc_client_flush(client), DI_OK);
    expect_submit(server, 5, 10);
    CHECK_EQ_INT(stage(client, prompt, 6, all), DI_EAGAIN);
    CHECK_EQ_INT(di_ipc_server_recv(server, &msg), DI_EAGAIN);

    CHECK_EQ_INT(stage(client, prompt, 6, all), DI_OK);
    CHECK_EQ_INT(di_ipc_client_cancel(client, 6), DI_OK);
    CHECK_EQ_INT(stage(client, prompt, 7, 1), DI_EAGAIN);
    CHECK_EQ_INT(di_ipc_client_flush(client), DI_OK);
    expect_submit(server, 6, all);
    CHECK_EQ_INT(di_ipc_server_recv(server, &msg), DI_OK);
    CHECK_EQ_INT(msg.type, DI_MSG_CANCEL);
    CHECK_EQ_INT(di_ipc_server_recv(server, &msg), DI_EAGAIN);

    /* Two thirds, then two thirds again: the second has to wait. */
    CHECK_EQ_INT(stage(client, prompt, 8, all / 3 * 2), DI_OK);
    CHECK_EQ_INT(stage(client, prompt, 9, all / 3 * 2), DI_EAGAIN);
    CHECK_EQ_INT(stage(client, prompt, 9, all / 4), DI_OK);
    CHECK_EQ_INT(stage(client, prompt, 10, all / 4), DI_EAGAIN);
    CHECK_EQ_INT(di_ipc_client_flush(client), DI_OK);
    expect_submit(server, 8, all / 3 * 2);
    expect_submit(server, 9, all / 4);
    CHECK_EQ_INT(di_ipc_server_recv(server, &msg), DI_EAGAIN);
    CHECK_EQ_INT(stage(client, prompt, 10, all / 4), DI_OK);
    CHECK_EQ_INT(di_ipc_client_flush(client), DI_OK);
    expect_submit(server, 10, all / 4);

    free(prompt);
    di_ipc_client_close(client);
    di_ipc_server_close(server);
}

/* Memory that a channel takes by now, in bytes: that of its memfd. */
static uint64_t
channel_memory(void)
{
    int         fd;
    char        name[32], to[64];
    ssize_t     n;
    struct stat st;

    for (fd = 0; fd < 256; fd++) {
        (void) snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
        n = readlink(name, to, sizeof(to) - 1);
        to[n > 0 ? n : 0] = '\0';
        if (strstr(to, "deepinfer-channel") != NULL && fstat(fd, &st) == 0)
            return (uint64_t) st.st_blocks * 512;
    }
    return 0;
}

/* What was read makes room for what comes, however much passes through. */
static void
test_memory(void)
{
    int              i, k;
    int32_t          prompt[900] = { 0 };
    uint64_t         before = 0, id = 0;
    di_ipc_msg_t     msg;
    di_ipc_server_t *server = serve(LONG);
    di_ipc_client_t *client = join(server);

    for (i = 0; i < 2000; i++) {
        for (k = 0; k < 1 + i % 9; k++)
            CHECK_EQ_INT(stage(client, prompt, id + (uint64_t) k,
                               100 + (uint32_t) (i % 8) * 100), DI_OK);
        CHECK_EQ_INT(di_ipc_client_flush(client), DI_OK);
        for (k = 0; k < 1 + i % 9; k++)
            expect_submit(server, id++, 100 + (uint32_t) (i % 8) * 100);
        CHECK_EQ_INT(di_ipc_server_recv(server, &msg), DI_EAGAIN);
        if (i == 250)            /* the ring's slots were all used           */
            before = channel_memory();
    }

    CHECK(before > 0);
    CHECK_EQ_INT(channel_memory(), before);
    di_ipc_client_close(client);
    di_ipc_server_close(server);
}

/* Random submissions against a queue of what must come out. */
static void
test_random_submissions(void)
{
    struct { uint64_t id; uint32_t n; } queue[DI_IPC_SUB_SLOTS];
    int              i;
    int32_t         *prompt = malloc(DI_IPC_ARENA_BYTES);
    uint32_t         n, in = 0, out = 0;
    uint64_t         id = 1;
    di_ipc_server_t *server = serve(LONG);
    di_ipc_client_t *client = join(server);

    for (i = 0; i < 20000; i++) {
        if (rnd(2) == 0) {
            n = 1 + (rnd(50) == 0 ? rnd(2000000) : rnd(3000));
            if (stage(client, prompt, id, n) == DI_OK) {
                queue[in % DI_IPC_SUB_SLOTS].id = id;
                queue[in++ % DI_IPC_SUB_SLOTS].n = n;
                id += 7;
            }
        } else if (in != out) {
            CHECK_EQ_INT(di_ipc_client_flush(client), DI_OK);
            expect_submit(server, queue[out % DI_IPC_SUB_SLOTS].id,
                          queue[out % DI_IPC_SUB_SLOTS].n);
            out++;
        }
    }

    free(prompt);
    di_ipc_client_close(client);
    di_ipc_server_close(server);
}

/* The only connection's index. */
static uint32_t
first_conn(di_ipc_server_t *server, di_ipc_client_t *client)
{
    di_ipc_msg_t msg = { 0 };

    CHECK_EQ_INT(di_ipc_client_cancel(client, 0), DI_OK);
    CHECK_EQ_INT(di_ipc_client_flush(client), DI_OK);
    CHECK_EQ_INT(di_ipc_server_recv(server, &msg), DI_OK);
    return msg.conn;
}

/* Random events, with and without top entries, against a queue. */
static void
test_random_events(void)
{
    int                     i, rc;
    uint16_t                n_top[DI_IPC_COMP_SLOTS];
    uint32_t                k, conn, n, in = 0, out = 0, slots = 0;
    bool                    same;
    di_event_t              ev;
    di_ipc_server_t        *server = serve(LONG);
    di_ipc_client_t        *client = join(server);
    const di_top_logprob_t *got;
    di_top_logprob_t        top[DI_GEN_TOP_LOGPROBS_MAX];

    conn = first_conn(server, client);

    for (i = 0; i < 200000; i++) {
        if (rnd(1000) < 540) {
            n = rnd(DI_GEN_TOP_LOGPROBS_MAX + 1);
            ev = (di_event_t) { .id = in, .type = DI_EV_LOGPROB,
                                .n_top = (uint16_t) n };
            for (k = 0; k < n; k++)
                top[k] = (di_top_logprob_t) { (int32_t) (in + k), 0 };

            rc = di_ipc_server_send(server, conn, &ev, top);
            if (rc == DI_OK) {
                n_top[in++ % DI_IPC_COMP_SLOTS] = (uint16_t) n;
                slots += 1 + (n + 7) / 8;
            } else {
                CHECK_EQ_INT(rc, DI_EAGAIN);
                CHECK(slots + 4 + 64 > DI_IPC_COMP_SLOTS);
            }

        } else if (in != out) {
            di_ipc_server_flush(server);
            CHECK_EQ_INT(di_ipc_client_recv(client, &ev, &got), DI_OK);
            n = n_top[out % DI_IPC_COMP_SLOTS];
            CHECK_EQ_INT(ev.id, out);
            CHECK_EQ_INT(ev.n_top, n);
            for (same = true, k = 0; k < n; k++)
                same &= got[k].id == (int32_t) (out + k);
            CHECK(same);
            slots -= 1 + (n + 7) / 8;
            out++;
        }
    }

    di_ipc_client_close(client);
    di_ipc_server_close(server);
}

/* A full completion ring: nothing is lost, the reserve answers messages, and
 * a message waits until its answers have room. */
static void
test_completions_full(void)
{
    uint32_t                i, conn, n = 0;
    di_event_t              ev;
    di_ipc_msg_t            msg;
    di_ipc_server_t        *server = serve(LONG);
    di_ipc_client_t        *client = join(server);
    const di_top_logprob_t *top;

    conn = first_conn(server, client);
    CHECK_EQ_INT(di_ipc_server_room(server, conn),
                 DI_IPC_COMP_SLOTS - DI_IPC_RESERVE);
    CHECK_EQ_INT(di_ipc_server_room(server, DI_IPC_CONNS_MAX), 0);

    while (di_ipc_server_room(server, conn) > 0) {
        ev = token_event(n, 1);
        CHECK_EQ_INT(di_ipc_server_send(server, conn, &ev, NULL), DI_OK);
        n++;
    }
    CHECK_EQ_INT(n, DI_IPC_COMP_SLOTS - DI_IPC_RESERVE);

    CHECK_EQ_INT(di_ipc_client_cancel(client, 77), DI_OK);
    CHECK_EQ_INT(di_ipc_client_cancel(client, 78), DI_OK);
    CHECK_EQ_INT(di_ipc_client_flush(client), DI_OK);
    CHECK_EQ_INT(di_ipc_server_recv(server, &msg), DI_OK);
    for (i = 0; i < DI_GEN_N_MAX; i++, n++) {
        ev = token_event(n, 1);
        CHECK_EQ_INT(di_ipc_server_send(server, conn, &ev, NULL), DI_OK);
    }
    CHECK_EQ_INT(di_ipc_server_recv(server, &msg), DI_EAGAIN);

    for ( ; n < DI_IPC_COMP_SLOTS; n++) {
        ev = token_event(n, 1);
        CHECK_EQ_INT(di_ipc_server_send(server, conn, &ev, NULL), DI_OK);
    }
    CHECK_EQ_INT(di_ipc_server_send(server, conn, &ev, NULL), DI_EAGAIN);
    di_ipc_server_flush(server);

    for (i = 0; i < n; i++) {
        CHECK_EQ_INT(di_ipc_client_recv(client, &ev, &top), DI_OK);
        CHECK_EQ_INT(ev.id, i);
    }
    CHECK_EQ_INT(di_ipc_client_recv(client, &ev, &top), DI_EAGAIN);
    CHECK_EQ_INT(di_ipc_server_recv(server, &msg), DI_OK);
    CHECK_EQ_INT(msg.id, 78);
    CHECK_EQ_INT(di_ipc_server_room(server, conn),
                 DI_IPC_COMP_SLOTS - DI_IPC_RESERVE);

    di_ipc_client_close(client);
    CHECK_EQ_INT(di_ipc_server_wait(server, 0), DI_OK);
    CHECK_EQ_INT(di_ipc_server_send(server, conn, &ev, NULL), DI_ECLOSED);
    CHECK_EQ_INT(di_ipc_server_room(server, conn), 0);
    di_ipc_server_close(server);
}

/* --------------------------------------------------------------- sleep -- */

static int
readable(int fd)
{
    struct pollfd p = { fd, POLLIN, 0 };

    return poll(&p, 1, 0);
}

/* The worker is rung once per sleep, and only then. */
static void
test_worker_sleeps(void)
{
    int                     bells;
    uint32_t                conn;
    di_event_t              ev = token_event(1, 1);
    di_ipc_server_t        *server = serve(LONG);
    di_ipc_client_t        *client = join(server);
    const di_top_logprob_t *top;
    int                     fd = di_ipc_client_eventfd(client);

    conn = first_conn(server, client);
    CHECK_EQ_INT(di_ipc_server_send(server, conn, &ev, NULL), DI_OK);
    di_ipc_server_flush(server);
    CHECK_EQ_INT(readable(fd), 0);           /* awake: no bell              */

    CHECK_EQ_INT(di_ipc_client_sleep(client), DI_EAGAIN);
    CHECK_EQ_INT(di_ipc_client_recv(client, &ev, &top), DI_OK);
    CHECK_EQ_INT(di_ipc_client_recv(client, &ev, &top), DI_EAGAIN);
    CHECK_EQ_INT(di_ipc_client_sleep(client), DI_OK);
    CHECK_EQ_INT(readable(fd), 0);

    for (int i = 0; i < 3; i++) {
        CHECK_EQ_INT(di_ipc_server_send(server, conn, &ev, NULL), DI_OK);
        di_ipc_server_flush(server);
    }
    CHECK_EQ_INT(ioctl(fd, FIONREAD, &bells), 0);
    CHECK_EQ_INT(bells, 1);                  /* three batches, one bell     */

    for (int i = 0; i < 3; i++)
        CHECK_EQ_INT(di_ipc_client_recv(client, &ev, &top), DI_OK);
    CHECK_EQ_INT(di_ipc_client_sleep(client), DI_OK);
    CHECK_EQ_INT(readable(fd), 0);

    /* Asleep twice without a look between: the second is rung as well. */
    CHECK_EQ_INT(di_ipc_client_sleep(client), DI_OK);
    CHECK_EQ_INT(di_ipc_server_send(server, conn, &ev, NULL), DI_OK);
    di_ipc_server_flush(server);
    CHECK_EQ_INT(readable(fd), 1);

    di_ipc_client_close(client);
    di_ipc_server_close(server);
}

/* wait() keeps its time, and doesn't sleep on what is there already. */
static void
test_wait(void)
{
    int              pipe_fds[2];
    uint64_t         t;
    di_ipc_msg_t     msg;
    di_ipc_server_t *server = serve(LONG);
    di_ipc_client_t *client = join(server);

    t = now_ms();
    CHECK_EQ_INT(di_ipc_server_wait(server, 30000), DI_OK);
    t = now_ms() - t;
    CHECK(t >= 29 && t < 2000);

    CHECK_EQ_INT(di_ipc_client_cancel(client, 1), DI_OK);
    CHECK_EQ_INT(di_ipc_client_flush(client), DI_OK);
    CHECK_EQ_INT(di_ipc_server_wait(server, -1), DI_OK);
    CHECK_EQ_INT(di_ipc_server_recv(server, &msg), DI_OK);

    CHECK_EQ_INT(pipe(pipe_fds), 0);
    CHECK_EQ_INT(di_ipc_server_wake_fd(server, pipe_fds[0]), DI_OK);
    CHECK_EQ_INT(di_ipc_server_wake_fd(server, -1), DI_EIO);
    CHECK_EQ_INT(write(pipe_fds[1], "x", 1), 1);
    CHECK_EQ_INT(di_ipc_server_wait(server, -1), DI_OK);
    (void) close(pipe_fds[0]);
    (void) close(pipe_fds[1]);

    di_ipc_client_close(client);
    CHECK_EQ_INT(di_ipc_server_wait(server, -1), DI_OK);
    CHECK_EQ_INT(di_ipc_server_wait(server, -1), DI_OK); /* CLOSED not taken*/
    CHECK_EQ_INT(di_ipc_server_recv(server, &msg), DI_OK);
    CHECK_EQ_INT(msg.type, DI_MSG_CLOSED);
    CHECK_EQ_INT(di_ipc_server_recv(server, &msg), DI_EAGAIN);
    di_ipc_server_close(server);
}

static void
test_status(void)
{
    di_ipc_status_t  st = { .steps = 5, .kv_blocks_total = 9, .running = 2,
                            .decode_rate = 77 };
    di_ipc_status_t  got;
    di_ipc_server_t *server = serve(LONG);
    di_ipc_client_t *client = join(server), *late;

    CHECK_EQ_INT(di_ipc_client_status(client, &got), DI_OK);
    CHECK_EQ_INT(got.steps, 0);
    di_ipc_server_status(server, &st);
    CHECK_EQ_INT(di_ipc_client_status(client, &got), DI_OK);
    CHECK(memcmp(&st, &got, sizeof(st)) == 0);

    late = join(server);         /* finds the page that is                  */
    CHECK_EQ_INT(di_ipc_client_status(late, &got), DI_OK);
    CHECK(memcmp(&st, &got, sizeof(st)) == 0);

    di_ipc_client_close(late);
    di_ipc_client_close(client);
    di_ipc_server_close(server);
}

/* --------------------------------------------------------- socket file -- */

static int
open_server(const char *at, di_ipc_server_t **server, di_err_t *err)
{
    di_ipc_server_conf_t conf = server_conf(LONG);

    *err = (di_err_t) { 0 };
    return di_ipc_server_open(at, &conf, server, err);
}

static void
test_socket_file(void)
{
    int                  fd;
    char                 name[200], lock[128];
    di_err_t             err;
    struct stat          st;
    di_ipc_server_t     *server, *second;
    di_ipc_client_t     *client;
    di_ipc_server_conf_t conf = server_conf(LONG);
    struct sockaddr_un   addr = { .sun_family = AF_UNIX };

    /* Length: 107 bytes are the most. */
    memset(name, 'x', sizeof(name));
    memcpy(name, dir, strlen(dir));
    name[strlen(dir)] = '/';
    name[107] = '\0';
    CHECK_EQ_INT(open_server(name, &server, &err), DI_OK);
    CHECK_EQ_INT(di_ipc_client_open(name, NULL, &client, NULL), DI_OK);
    di_ipc_client_close(client);
    di_ipc_server_close(server);
    name[107] = 'x';
    name[108] = '\0';
    CHECK_EQ_INT(open_server(name, &server, &err), DI_EINVAL);
    CHECK_EQ_INT(di_ipc_client_open(name, NULL, &client, NULL), DI_EINVAL);
    CHECK_EQ_INT(open_server("", &server, &err), DI_EINVAL);

    /* Nobody there; no such folder. */
    CHECK_EQ_INT(di_ipc_client_open(path, NULL, &client, NULL), DI_ECLOSED);
    CHECK_EQ_INT(open_server("/nonexistent/e.sock", &server, &err), DI_EIO);

    /* A second engine on a live socket; the first one is unharmed. */
    server = serve(LONG);
    CHECK_EQ_INT(open_server(path, &second, &err), DI_EINVAL);
    CHECK(strstr(err.text, "in use") != NULL);
    di_ipc_client_close(join(server));
    di_ipc_server_stop_listening(server);
    di_ipc_server_stop_listening(server);
    CHECK_EQ_INT(open_server(path, &second, &err), DI_OK);
    di_ipc_server_close(server);             /* not the other's file        */
    CHECK_EQ_INT(access(path, F_OK), 0);
    di_ipc_server_close(second);
    CHECK(access(path, F_OK) != 0);

    /* Mode and group. */
    conf.mode = 0606;
    conf.set_group = true;
    conf.group = getgid();
    CHECK_EQ_INT(di_ipc_server_open(path, &conf, &server, NULL), DI_OK);
    CHECK_EQ_INT(stat(path, &st), 0);
    CHECK_EQ_INT(st.st_mode & 0777, 0606);
    di_ipc_server_close(server);

    /* A plain file is not ours to remove, nor is a stranger's socket. */
    fd = open(path, O_CREAT | O_RDWR, 0600);
    (void) close(fd);
    CHECK_EQ_INT(open_server(path, &server, &err), DI_EINVAL);
    CHECK_EQ_INT(access(path, F_OK), 0);
    (void) unlink(path);

    fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    (void) strcpy(addr.sun_path, path);
    CHECK_EQ_INT(bind(fd, (struct sockaddr *) &addr, sizeof(addr)), 0);
    CHECK_EQ_INT(listen(fd, 1), 0);
    CHECK_EQ_INT(open_server(path, &server, &err), DI_EINVAL);
    CHECK(strstr(err.text, "in use") != NULL);

    /* The stranger dies: now the file is stale, and so is a lock file. */
    (void) close(fd);
    (void) snprintf(lock, sizeof(lock), "%s.lock", path);
    CHECK_EQ_INT(access(lock, F_OK), -1);
    (void) close(open(lock, O_CREAT | O_RDWR, 0600));
    CHECK_EQ_INT(open_server(path, &server, &err), DI_OK);
    di_ipc_client_close(join(server));
    di_ipc_server_close(server);
    CHECK(access(path, F_OK) != 0);
    CHECK(access(lock, F_OK) != 0);
}

/* All connections taken; one closes, one more fits. */
static void
test_all_connections(void)
{
    int              i;
    di_err_t         err = { 0 };
    di_ipc_msg_t     msg;
    di_ipc_peer_t    peer;
    di_ipc_server_t *server;
    di_ipc_client_t *client[DI_IPC_CONNS_MAX], *more;
    struct rlimit    rl, before;

    (void) getrlimit(RLIMIT_NOFILE, &before);
    rl = before;
    rl.rlim_cur = rl.rlim_max;
    if (rl.rlim_max < 8 * DI_IPC_CONNS_MAX
        || setrlimit(RLIMIT_NOFILE, &rl) < 0)
    {
        printf("SKIP test_all_connections: %ld descriptors\n",
               (long) rl.rlim_max);
        return;
    }

    server = serve(LONG);
    for (i = 0; i < DI_IPC_CONNS_MAX; i++)
        client[i] = join(server);
    CHECK_EQ_INT(di_ipc_server_conns(server), DI_IPC_CONNS_MAX);
    CHECK_EQ_INT(di_ipc_server_peer(server, 255, &peer), DI_OK);
    CHECK_EQ_INT(peer.pid, getpid());
    CHECK_EQ_INT(peer.uid, getuid());
    CHECK_EQ_INT(di_ipc_server_peer(server, 256, &peer), DI_EINVAL);

    CHECK_EQ_INT(di_ipc_client_open(path, print, &more, NULL), DI_OK);
    CHECK_EQ_INT(di_ipc_server_wait(server, 0), DI_OK);
    CHECK_EQ_INT(di_ipc_client_handshake(more, &err), DI_ECLOSED);
    CHECK(strstr(err.text, "no free connection") != NULL);
    di_ipc_client_close(more);

    di_ipc_client_close(client[100]);
    CHECK_EQ_INT(di_ipc_server_wait(server, 0), DI_OK);
    CHECK_EQ_INT(di_ipc_server_recv(server, &msg), DI_OK);
    CHECK(msg.type == DI_MSG_CLOSED && msg.conn == 100);
    client[100] = join(server);

    for (i = 0; i < DI_IPC_CONNS_MAX; i++)
        di_ipc_client_close(client[i]);
    CHECK_EQ_INT(di_ipc_server_wait(server, 0), DI_OK);
    CHECK_EQ_INT(di_ipc_server_wait(server, 0), DI_OK);
    CHECK_EQ_INT(di_ipc_server_wait(server, 0), DI_OK);
    CHECK_EQ_INT(di_ipc_server_wait(server, 0), DI_OK);
    CHECK_EQ_INT(di_ipc_server_conns(server), 0);
    di_ipc_server_close(server);
    (void) setrlimit(RLIMIT_NOFILE, &before);
}

/* Descriptors run out at each point of a connection's making; when there are
 * enough again, everything works. */
static void
test_descriptors_run_out(void)
{
    int              i, n, rc;
    di_err_t         err;
    di_ipc_msg_t     msg;
    di_ipc_client_t *client;
    di_ipc_server_t *server = serve(LONG);
    struct rlimit    rl, before;
    bool             joined = false;

    (void) getrlimit(RLIMIT_NOFILE, &before);
    n = count_fds() - 3;         /* ".", ".." and the folder itself         */

    for (i = 1; i < 16 && !joined; i++) {
        rl = before;
        rl.rlim_cur = (rlim_t) (n + i);
        CHECK_EQ_INT(setrlimit(RLIMIT_NOFILE, &rl), 0);

        err = (di_err_t) { 0 };
        rc = di_ipc_client_open(path, print, &client, &err);
        if (rc == DI_OK) {
            CHECK_EQ_INT(di_ipc_server_wait(server, 0), DI_OK);
            CHECK_EQ_INT(di_ipc_server_wait(server, 0), DI_OK);
            rc = di_ipc_client_handshake(client, &err);
            joined = rc == DI_OK;
            CHECK(rc == DI_OK || rc == DI_EAGAIN || rc == DI_ECLOSED
                  || rc == DI_EPROTO);
        } else {
            CHECK_EQ_INT(rc, DI_EIO);
        }
        di_ipc_client_close(client);
        CHECK_EQ_INT(setrlimit(RLIMIT_NOFILE, &before), 0);

        (void) poll(NULL, 0, 110);           /* accept was put off          */
        CHECK_EQ_INT(di_ipc_server_wait(server, 0), DI_OK);
        CHECK_EQ_INT(di_ipc_server_wait(server, 0), DI_OK);
        CHECK_EQ_INT(di_ipc_server_wait(server, 0), DI_OK);
        while (di_ipc_server_recv(server, &msg) == DI_OK)
            CHECK_EQ_INT(msg.type, DI_MSG_CLOSED);
    }

    CHECK(joined);
    di_ipc_client_close(join(server));
    di_ipc_server_close(server);
}

static void
test_memory_runs_out(void)
{
    int                  n, rc;
    di_ipc_server_t     *server = NULL;
    di_ipc_client_t     *client = NULL;
    di_ipc_server_conf_t conf = server_conf(LONG);

    for (n = 0; ; n++) {
        nomem_after(n);
        rc = di_ipc_server_open(path, &conf, &server, NULL);
        if (!nomem_off())
            break;
        CHECK_EQ_INT(rc, DI_ENOMEM);
        CHECK(server == NULL);
    }
    CHECK_EQ_INT(rc, DI_OK);

    for (n = 0; ; n++) {
        nomem_after(n);
        rc = di_ipc_client_open(path, print, &client, NULL);
        if (!nomem_off())
            break;
        CHECK_EQ_INT(rc, DI_ENOMEM);
        CHECK(client == NULL);
    }
    CHECK_EQ_INT(rc, DI_OK);

    di_ipc_client_close(client);
    di_ipc_client_close(NULL);
    di_ipc_server_close(server);
    di_ipc_server_close(NULL);
}

int
main(int argc, char **argv)
{
    seed = argc > 1 ? strtoull(argv[1], NULL, 0) : (uint64_t) time(NULL);
    printf("ipc: seed %llu\n", (unsigned long long) seed);
    begin();

    test_round_trip();
    test_request_check();
    test_ring_full();
    test_arena();
    test_memory();
    test_random_submissions();
    test_random_events();
    test_completions_full();
    test_worker_sleeps();
    test_wait();
    test_status();
    test_socket_file();
    test_all_connections();
    test_descriptors_run_out();
    test_memory_runs_out();

    return end("ipc");
}
