/*
 * serve.c - the server loop with a real model, a process of its own, and
 * workers played over the channel.  SKIP without a model.
 *
 * Texts are not judged here; that the same prompt gives the same tokens alone
 * and in company is, and that nothing stays behind when workers leave.
 */

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "engine/di_serve.h"
#include "check.h"

#define N_PROMPT    20
#define N_TOKENS    12
#define TOKENS_MAX  600

typedef struct {
    uint64_t id;
    int32_t  tokens[TOKENS_MAX];
    uint32_t n;
    uint32_t started, finished;         /* events; reason of the finish     */
    uint32_t rejected;                  /* reason                           */
    uint32_t cached;
} answer_t;

static char  path[64];
static char  model[512];
static pid_t engine;


static uint64_t
now_ms(void)
{
    struct timespec t;

    (void) clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t) t.tv_sec * 1000 + (uint64_t) t.tv_nsec / 1000000;
}


static bool
find_model(void)
{
    const char *env = getenv("TEST_DEEPINFER_MODEL"), *home = getenv("HOME");
    struct stat st;

    if (env != NULL)
        (void) snprintf(model, sizeof(model), "%s", env);
    else
        (void) snprintf(model, sizeof(model), "%s/.cache/ngx_deepinfer/"
                        "SmolLM2-135M-Instruct.Q4_1.gguf",
                        home != NULL ? home : "");
    return stat(model, &st) == 0;
}


static void
start_engine(uint32_t queue_max)
{
    di_err_t        err = { 0 };
    di_serve_conf_t conf = {
        .model_path = model, .listen = path, .role = DI_ROLE_BOTH,
        .max_seqs = 4, .max_rows = 64, .chunk = 32, .queue_max = queue_max,
        .prefix_cache = true, .log_level = DI_LOG_ERROR, .spin_us = 50,
        .model = { .n_threads = 2, .max_model_len = 1024, .max_rows = 64,
                   .max_seqs = 4, .kv_bytes = 128 << 20 },
    };

    (void) snprintf(path, sizeof(path), "/tmp/di_serve_test.%d.sock",
                    (int) getpid());
    (void) fflush(stdout);
    engine = fork();
    if (engine == 0) {
        if (di_serve(&conf, &err) != DI_OK) {
            (void) fprintf(stderr, "serve: %s\n", err.text);
            _exit(1);
        }
        _exit(0);
    }
}


/* Exit status of the engine, or -1 if it does not end in time. */
static int
engine_status(void)
{
    uint64_t end = now_ms() + 200000;
    int      status = 0;

    while (waitpid(engine, &status, WNOHANG) == 0) {
        if (now_ms() > end) {
            (void) kill(engine, SIGKILL);
            (void) waitpid(engine, &status, 0);
            return -1;
        }
        (void) usleep(2000);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}


static di_ipc_client_t *
connect_worker(void)
{
    di_ipc_client_t *c = NULL;
    uint64_t         end = now_ms() + 300000;
    struct pollfd    p = { .events = POLLIN };
    int              rc;

    while ((rc = di_ipc_client_open(path, NULL, &c, NULL)) != DI_OK) {
        if (now_ms() > end)
            return NULL;
        (void) usleep(10000);
    }
    p.fd = di_ipc_client_socket(c);
    while ((rc = di_ipc_client_handshake(c, NULL)) == DI_EAGAIN) {
        if (now_ms() > end)
            break;
        (void) poll(&p, 1, 100);
    }
    CHECK_EQ_INT(rc, DI_OK);
    return c;
}


static void
submit(di_ipc_client_t *c, answer_t *a, uint64_t id, uint32_t max_tokens,
       uint32_t n)
{
    int32_t          prompt[N_PROMPT];
    di_gen_request_t r = {
        .params = { .top_p = 1, .repetition_penalty = 1, .n = n,
                    .max_tokens = max_tokens,
                    .flags = DI_GEN_IGNORE_EOS },
        .prompt = prompt, .n_prompt = N_PROMPT,
    };
    int              i;

    for (i = 0; i < N_PROMPT; i++)
        prompt[i] = 1000 + (int32_t) (id % 3) * 100 + i;
    memset(a, 0, sizeof(*a));
    a->id = id;
    CHECK_EQ_INT(di_ipc_client_submit(c, id, &r, NULL), DI_OK);
    CHECK_EQ_INT(di_ipc_client_flush(c), DI_OK);
}


static void
take(answer_t *a, size_t n_answers, const di_event_t *e)
{
    size_t i;

    for (i = 0; i < n_answers && a[i].id != e->id; i++) { }
    CHECK(i < n_answers);
    if (i == n_answers)
        return;
    a += i;
    if (e->type == DI_EV_STARTED) {
        a->started++;
        a->cached = e->u.started.cached_tokens;
    } else if (e->type == DI_EV_TOKENS && a->n + e->n_tokens <= TOKENS_MAX) {
        memcpy(a->tokens + a->n, e->u.tokens, e->n_tokens * sizeof(int32_t));
        a->n += e->n_tokens;
    } else if (e->type == DI_EV_FINISH) {
        a->finished = e->u.finish.reason;
    } else if (e->type == DI_EV_REJECT) {
        a->rejected = e->u.reject.reason;
    }
}


/* Read events of n answers until each of the first n_watched has at least
 * `tokens` or is over. */
static void
read_until(di_ipc_client_t *c, answer_t *a, size_t n, size_t n_watched,
           uint32_t tokens)
{
    uint64_t                end = now_ms() + 300000;
    const di_top_logprob_t *top;
    di_event_t              e;
    size_t                  i;

    for ( ;; ) {
        while (di_ipc_client_recv(c, &e, &top) == DI_OK)
            take(a, n, &e);
        for (i = 0; i < n_watched; i++) {
            if (a[i].n < tokens && !a[i].finished && !a[i].rejected)
                break;
        }
        if (i == n_watched)
            return;
        if (now_ms() > end)
            break;
        (void) usleep(500);
    }
    CHECK(!"events came in time");
}


/* Wait until no block is live and nothing runs or waits. */
static void
check_empty(di_ipc_client_t *c)
{
    di_ipc_status_t st = { 0 };
    uint64_t        end = now_ms() + 200000;

    do {
        (void) usleep(5000);
        (void) di_ipc_client_status(c, &st);
    } while (now_ms() < end
             && (st.kv_blocks_live != 0 || st.running != 0
                 || st.waiting != 0));
    CHECK_EQ_INT(st.kv_blocks_live, 0);
    CHECK_EQ_INT(st.running, 0);
    CHECK_EQ_INT(st.waiting, 0);
    CHECK_EQ_INT(st.kv_blocks_cached + st.kv_blocks_free,
                 st.kv_blocks_total);
}


static void
test_answers(di_ipc_client_t *c)
{
    static answer_t alone[3], crowd[6];
    int             i;

    for (i = 0; i < 3; i++) {
        submit(c, &alone[i], (uint64_t) i, N_TOKENS, 1);
        read_until(c, &alone[i], 1, 1, TOKENS_MAX);
        CHECK_EQ_INT(alone[i].started, 1);
        CHECK_EQ_INT(alone[i].finished, DI_FINISH_LENGTH);
        CHECK_EQ_INT(alone[i].n, N_TOKENS);
        CHECK_EQ_INT(alone[i].cached, 0);
    }
    for (i = 0; i < 6; i++)
        submit(c, &crowd[i], (uint64_t) i + 3, N_TOKENS, 1);
    read_until(c, crowd, 6, 6, TOKENS_MAX);
    for (i = 0; i < 6; i++) {
        CHECK_EQ_INT(crowd[i].n, N_TOKENS);
        CHECK_EQ_INT(crowd[i].cached, N_PROMPT - 1);
        CHECK(memcmp(crowd[i].tokens, alone[i % 3].tokens,
                     N_TOKENS * sizeof(int32_t)) == 0);
    }
    check_empty(c);
}


/* Cancels, and a worker that dies in the middle of its answers. */
static void
test_leavers(di_ipc_client_t *c)
{
    static answer_t  a[8];
    di_ipc_client_t *other = connect_worker();
    uint32_t         i;

    for (i = 0; i < 8; i++)
        submit(other, &a[i], 100 + i, TOKENS_MAX, 1 + i % 3);
    read_until(other, a, 8, 1, 4);
    di_ipc_client_close(other);
    check_empty(c);

    for (i = 0; i < 8; i++)
        submit(c, &a[i], 200 + i, TOKENS_MAX, 1);
    read_until(c, a, 8, 1, 4);
    for (i = 0; i < 8; i++)
        CHECK_EQ_INT(di_ipc_client_cancel(c, 200 + i), DI_OK);
    CHECK_EQ_INT(di_ipc_client_flush(c), DI_OK);
    read_until(c, a, 8, 8, TOKENS_MAX + 1);
    for (i = 0; i < 8; i++)
        CHECK_EQ_INT(a[i].finished, DI_FINISH_CANCEL);
    check_empty(c);

    submit(c, &a[0], 300, TOKENS_MAX, 1);
    read_until(c, a, 1, 1, 4);
    CHECK_EQ_INT(di_ipc_client_pause(c, 300, true), DI_OK);
    CHECK_EQ_INT(di_ipc_client_flush(c), DI_OK);
    do {                                /* a step or two may be under way   */
        i = a[0].n;
        (void) usleep(300000);
        read_until(c, a, 1, 1, 0);
    } while (a[0].n != i);
    CHECK(i < TOKENS_MAX);
    CHECK_EQ_INT(di_ipc_client_pause(c, 300, false), DI_OK);
    CHECK_EQ_INT(di_ipc_client_flush(c), DI_OK);
    read_until(c, a, 1, 1, i + 1);
    CHECK_EQ_INT(di_ipc_client_cancel(c, 300), DI_OK);
    CHECK_EQ_INT(di_ipc_client_flush(c), DI_OK);
    read_until(c, a, 1, 1, TOKENS_MAX + 1);
    check_empty(c);
}


/* SIGTERM: what runs ends, what comes is refused, and the engine goes. */
static void
test_drain(di_ipc_client_t *c)
{
    static answer_t  a[6];
    di_ipc_client_t *late = NULL;
    struct stat      st;
    uint64_t         end;
    int              i;

    for (i = 0; i < 5; i++)
        submit(c, &a[i], 400 + (uint64_t) i, 2 * N_TOKENS, 1);
    read_until(c, a, 5, 1, 2);
    CHECK_EQ_INT(kill(engine, SIGTERM), 0);
    end = now_ms() + 200000;            /* the step in progress ends first  */
    while (di_ipc_client_open(path, NULL, &late, NULL) == DI_OK) {
        di_ipc_client_close(late);
        CHECK(now_ms() < end);
        if (now_ms() >= end)
            break;
        (void) usleep(10000);
    }
    submit(c, &a[5], 500, N_TOKENS, 1);
    read_until(c, a, 6, 6, TOKENS_MAX);
    for (i = 0; i < 5; i++)
        CHECK_EQ_INT(a[i].n, 2 * N_TOKENS);
    CHECK_EQ_INT(a[5].rejected, DI_REJECT_DRAINING);
    CHECK_EQ_INT(engine_status(), 0);
    CHECK(stat(path, &st) != 0);
}


static void
test_second_signal(void)
{
    static answer_t  a;
    di_ipc_client_t *c;

    start_engine(4);
    c = connect_worker();
    submit(c, &a, 1, TOKENS_MAX, 1);
    read_until(c, &a, 1, 1, 2);
    CHECK_EQ_INT(di_ipc_client_pause(c, 1, true), DI_OK);
    CHECK_EQ_INT(di_ipc_client_flush(c), DI_OK);
    CHECK_EQ_INT(kill(engine, SIGTERM), 0);
    (void) usleep(200000);
    CHECK_EQ_INT(waitpid(engine, NULL, WNOHANG), 0);
    CHECK_EQ_INT(kill(engine, SIGINT), 0);
    CHECK_EQ_INT(engine_status(), 0);
    di_ipc_client_close(c);
}


static void
test_refused_starts(void)
{
    di_err_t        err = { 0 };
    di_serve_conf_t conf = { .model_path = "/nonexistent.gguf",
                             .listen = "/tmp/di_serve_none.sock",
                             .max_seqs = 1, .max_rows = 8, .chunk = 8,
                             .log_level = DI_LOG_ERROR };

    conf.role = DI_ROLE_PREFILL;
    CHECK_EQ_INT(di_serve(&conf, &err), DI_EUNSUPPORTED);
    CHECK(strstr(err.text, "role") != NULL);
    conf.role = DI_ROLE_BOTH;
    memset(&err, 0, sizeof(err));
    CHECK_EQ_INT(di_serve(&conf, &err), DI_EIO);
    CHECK(err.text[0] != '\0');
}


int
main(void)
{
    di_ipc_client_t *c;

    if (!find_model()) {
        printf("SKIP no model at %s\n", model);
        return 0;
    }
    start_engine(64);
    c = connect_worker();
    CHECK(c != NULL);
    if (c != NULL) {
        test_answers(c);
        test_leavers(c);
        test_drain(c);
        di_ipc_client_close(c);
    }
    test_second_signal();
    test_refused_starts();
    return check_done("serve");
}
