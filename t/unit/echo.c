/*
 * echo.c - the echo engine keeps to its script language and to what a real
 * engine does at the channel.
 *
 * The engine is the program beside this one's folder (../echo-engine), on
 * t/data/echo.gguf; where either is missing the test is skipped.  Prompts are
 * spelled with the single-byte tokens of that vocabulary: id = 3 + byte.
 */

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "../../engine/ipc/di_ipc.h"
#include "../../tokenizer/grammar/di_grammar.h"

#define BYTE(b)  (3 + (int32_t) (unsigned char) (b))
#define IM_START 1
#define IM_END   2
#define MODEL    "t/data/echo.gguf"
#define WAIT_MS  60000

static char  dir[64], path[96], program[256];
static pid_t engine;
static uint64_t next_id = 1;

/* Everything that came back for one request. */
typedef struct {
    uint32_t   started, cached, prompt_tokens;
    uint32_t   n_ids, n_events, n_logprobs;
    uint32_t   finished;         /* choices                                 */
    uint32_t   reason, tokens;   /* of the last finish                      */
    int32_t    stop_id;
    uint32_t   rejected, a, b;
    char       reject[28];
    float      logprob;          /* of the last token                       */
    uint32_t   n_top;
    di_top_logprob_t top[DI_GEN_TOP_LOGPROBS_MAX];
    uint32_t   by_choice[8];     /* tokens of each                          */
    int32_t    ids[8192];
    char       text[8192];       /* of single-byte tokens                   */
} answer_t;

static uint64_t
now_ms(void)
{
    struct timespec t;

    (void) clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t) t.tv_sec * 1000u + (uint64_t) t.tv_nsec / 1000000u;
}

static void
start_engine(void)
{
    engine = fork();
    if (engine == 0) {
        (void) execl(program, program, "--listen", path, "--model", MODEL,
                     "--quiet", "--max-model-len", "4096", (char *) NULL);
        _exit(127);
    }
}

static di_ipc_client_t *
join(void)
{
    int              rc, i;
    struct pollfd    fd;
    di_ipc_client_t *client = NULL;

    for (i = 0; i < WAIT_MS; i++) {
        if (di_ipc_client_open(path + 5, NULL, &client, NULL) == DI_OK)
            break;
        (void) poll(NULL, 0, 1);
    }
    if (client == NULL)
        return NULL;

    while ((rc = di_ipc_client_handshake(client, NULL)) == DI_EAGAIN) {
        fd = (struct pollfd) { di_ipc_client_socket(client), POLLIN, 0 };
        if (poll(&fd, 1, WAIT_MS) != 1)
            break;
    }
    CHECK_EQ_INT(rc, DI_OK);
    return client;
}

static void
take(answer_t *a, const di_event_t *ev, const di_top_logprob_t *top)
{
    uint32_t i;

    switch (ev->type) {
    case DI_EV_STARTED:
        a->started++;
        a->prompt_tokens = ev->u.started.prompt_tokens;
        a->cached = ev->u.started.cached_tokens;
        break;
    case DI_EV_TOKENS:
        a->n_events++;
        for (i = 0; i < ev->n_tokens && a->n_ids < 8191; i++) {
            a->text[a->n_ids] = (char) (ev->u.tokens[i] - 3);
            a->ids[a->n_ids++] = ev->u.tokens[i];
            a->by_choice[ev->choice & 7]++;
        }
        break;
    case DI_EV_LOGPROB:
    case DI_EV_PROMPT_LOGPROB:
        a->n_logprobs++;
        a->logprob = ev->u.logprob.logprob;
        a->n_top = ev->n_top;
        memcpy(a->top, top, ev->n_top * sizeof(*top));
        break;
    case DI_EV_FINISH:
        a->finished++;
        a->reason = ev->u.finish.reason;
        a->tokens = ev->u.finish.completion_tokens;
        a->stop_id = ev->u.finish.stop_id;
        break;
    case DI_EV_REJECT:
        a->rejected = ev->u.reject.reason;
        a->a = ev->u.reject.a;
        a->b = ev->u.reject.b;
        memcpy(a->reject, ev->u.reject.text, sizeof(a->reject));
        break;
    }
}

/* Wait for an event.  DI_OK, DI_EAGAIN after ms, DI_ECLOSED. */
static int
next_event(di_ipc_client_t *client, di_event_t *ev,
           const di_top_logprob_t **top, int ms)
{
    int           rc;
    struct pollfd fds[2];

    for ( ;; ) {
        rc = di_ipc_client_recv(client, ev, top);
        if (rc != DI_EAGAIN)
            return rc;
        if (di_ipc_client_sleep(client) != DI_OK)
            continue;

        fds[0] = (struct pollfd) { di_ipc_client_eventfd(client), POLLIN, 0 };
        fds[1] = (struct pollfd) { di_ipc_client_socket(client), POLLIN, 0 };
        if (poll(fds, 2, ms) == 0)
            return DI_EAGAIN;
        if (fds[1].revents != 0
            && di_ipc_client_handshake(client, NULL) != DI_OK)
            return di_ipc_client_recv(client, ev, top) == DI_OK ? DI_OK
                                                                : DI_ECLOSED;
    }
}

static uint32_t
spell(int32_t *ids, uint32_t n, const char *text)
{
    for ( ; *text != '\0'; text++)
        ids[n++] = BYTE(*text);
    return n;
}

/* A ChatML prompt with one user message. */
static uint32_t
chat(int32_t *ids, const char *text)
{
    uint32_t n = 0;

    ids[n++] = IM_START;
    n = spell(ids, n, "system\nYou echo.");
    ids[n++] = IM_END;
    n = spell(ids, n, "\n");
    ids[n++] = IM_START;
    n = spell(ids, n, "user\n");
    n = spell(ids, n, text);
    ids[n++] = IM_END;
    n = spell(ids, n, "\n");
    ids[n++] = IM_START;
    return spell(ids, n, "assistant\n");
}

/* Submit; the id. */
static uint64_t
submit(di_ipc_client_t *client, const char *text, const di_gen_params_t *p)
{
    static int32_t   ids[16384];
    di_gen_request_t req = { .prompt = ids };

    req.params = *p;
    req.n_prompt = chat(ids, text);
    CHECK_EQ_INT(di_ipc_client_submit(client, next_id, &req, NULL), DI_OK);
    CHECK_EQ_INT(di_ipc_client_flush(client), DI_OK);
    return next_id++;
}

static di_gen_params_t
params(void)
{
    return (di_gen_params_t) { .top_p = 1, .repetition_penalty = 1, .n = 1 };
}

/* Collect until all n choices are over, or nothing comes for ms. */
static int
collect(di_ipc_client_t *client, answer_t *a, uint32_t n, int ms)
{
    int                     rc;
    di_event_t              ev;
    const di_top_logprob_t *top;

    memset(a, 0, sizeof(*a));
    while (a->finished < n && a->rejected == 0) {
        rc = next_event(client, &ev, &top, ms);
        if (rc != DI_OK)
            return rc;
        take(a, &ev, top);
    }
    return DI_OK;
}

/* Collect until n tokens have come; no choice is over before. */
static int
collect_ids(di_ipc_client_t *client, answer_t *a, uint32_t n)
{
    int                     rc;
    di_event_t              ev;
    const di_top_logprob_t *top;

    memset(a, 0, sizeof(*a));
    while (a->n_ids < n && a->finished == 0) {
        rc = next_event(client, &ev, &top, WAIT_MS);
        if (rc != DI_OK)
            return rc;
        take(a, &ev, top);
    }
    return DI_OK;
}

static int
ask(di_ipc_client_t *client, const char *text, const di_gen_params_t *p,
    answer_t *a)
{
    (void) submit(client, text, p);
    return collect(client, a, p->n, WAIT_MS);
}

/* The answer's text is this, then the end token. */
static void
check_text(const answer_t *a, const char *text)
{
    size_t n = strlen(text);

    CHECK_EQ_INT(a->n_ids, n + 1);
    CHECK(memcmp(a->text, text, n) == 0);
    CHECK_EQ_INT(a->ids[n], IM_END);
    CHECK_EQ_INT(a->reason, DI_FINISH_STOP);
    CHECK_EQ_INT(a->stop_id, IM_END);
    CHECK_EQ_INT(a->tokens, n + 1);
}

static void
test_echo(di_ipc_client_t *client)
{
    static answer_t a;
    di_gen_params_t p = params();

    CHECK_EQ_INT(ask(client, "abc xyz", &p, &a), DI_OK);
    check_text(&a, "abc xyz");
    CHECK_EQ_INT(a.started, 1);
    CHECK_EQ_INT(a.n_events, 8);

    CHECK_EQ_INT(ask(client, "", &p, &a), DI_OK);
    check_text(&a, "");

    p.max_tokens = 3;
    CHECK_EQ_INT(ask(client, "abcdef", &p, &a), DI_OK);
    CHECK_EQ_INT(a.n_ids, 3);
    CHECK_EQ_INT(a.reason, DI_FINISH_LENGTH);
    CHECK_EQ_INT(a.stop_id, -1);

    p.max_tokens = 10;
    p.flags = DI_GEN_IGNORE_EOS;
    CHECK_EQ_INT(ask(client, "abcd", &p, &a), DI_OK);
    CHECK_EQ_INT(a.n_ids, 10);
    CHECK(memcmp(a.text, "abcdabcdab", 10) == 0);
    CHECK_EQ_INT(a.reason, DI_FINISH_LENGTH);

    p = params();
    p.min_tokens = 7;
    CHECK_EQ_INT(ask(client, "abcd", &p, &a), DI_OK);
    check_text(&a, "abcdabcd");
}

static void
test_output(di_ipc_client_t *client)
{
    static answer_t a;
    di_gen_params_t p = params();

    CHECK_EQ_INT(ask(client, "hi\n@@say \\x41\\n\\\\q", &p, &a), DI_OK);
    check_text(&a, "A\n\\q");

    CHECK_EQ_INT(ask(client, "@@bytes f0 9f 98 80", &p, &a), DI_OK);
    check_text(&a, "\xf0\x9f\x98\x80");
    CHECK_EQ_INT(a.n_events, 5);

    CHECK_EQ_INT(ask(client, "@@ids 0 68", &p, &a), DI_OK);
    CHECK_EQ_INT(a.n_ids, 1);
    CHECK_EQ_INT(a.reason, DI_FINISH_STOP);
    CHECK_EQ_INT(a.stop_id, 0);

    p.flags = DI_GEN_IGNORE_EOS;
    p.max_tokens = 3;
    CHECK_EQ_INT(ask(client, "@@ids 0 68", &p, &a), DI_OK);
    CHECK(a.n_ids == 3 && a.ids[0] == 0 && a.ids[1] == 68 && a.ids[2] == 0);
    CHECK_EQ_INT(a.reason, DI_FINISH_LENGTH);

    p = params();
    CHECK_EQ_INT(ask(client, "@@per 8\n@@repeat 1001 xyz", &p, &a), DI_OK);
    CHECK_EQ_INT(a.n_ids, 1002);
    CHECK_EQ_INT(a.n_events, 127);
    CHECK(a.text[1000] == 'y' && a.text[999] == 'x');

    CHECK_EQ_INT(ask(client, "@@cached 5\n@@say a\n@@finish error 77", &p,
                     &a), DI_OK);
    CHECK_EQ_INT(a.cached, 5);
    CHECK_EQ_INT(a.n_ids, 1);
    CHECK_EQ_INT(a.reason, DI_FINISH_ERROR);
    CHECK_EQ_INT(a.tokens, 77);

    CHECK_EQ_INT(ask(client, "@@noend\n@@say ab\n@@finish stop", &p, &a),
                 DI_OK);
    CHECK_EQ_INT(a.n_ids, 2);
    CHECK_EQ_INT(a.reason, DI_FINISH_STOP);
    CHECK_EQ_INT(a.tokens, 2);
}

static void
test_choices(di_ipc_client_t *client)
{
    static answer_t a;
    di_gen_params_t p = params();

    p.n = 3;
    CHECK_EQ_INT(ask(client, "@@say ab\n@@choice 1\n@@say cd\n@@choice *\n"
                     "@@say e", &p, &a), DI_OK);
    CHECK_EQ_INT(a.finished, 3);
    CHECK(a.by_choice[0] == 4 && a.by_choice[1] == 6 && a.by_choice[2] == 4);
}

static void
test_logprobs(di_ipc_client_t *client)
{
    static answer_t a;
    di_gen_params_t p = params();

    p.flags = DI_GEN_LOGPROBS;
    p.top_logprobs = 2;
    p.max_tokens = 3;
    CHECK_EQ_INT(ask(client, "@@lp -0.5 65:-0.5 66:-1.5 67:-2\n@@say abc", &p,
                     &a), DI_OK);
    CHECK_EQ_INT(a.n_logprobs, 3);
    CHECK(a.logprob == -0.5f && a.n_top == 2);
    CHECK(a.top[1].id == 66 && a.top[1].logprob == -1.5f);

    p.top_logprobs = 20;
    CHECK_EQ_INT(ask(client, "abc", &p, &a), DI_OK);
    CHECK(a.n_logprobs == 3 && a.logprob == -0.375f && a.n_top == 20);

    p.flags = DI_GEN_PROMPT_LOGPROBS;
    p.prompt_logprobs_from = 1;
    CHECK_EQ_INT(ask(client, "abc", &p, &a), DI_OK);
    CHECK_EQ_INT(a.n_logprobs, a.prompt_tokens - 1);
}

static void
test_refusals(di_ipc_client_t *client)
{
    int             i;
    char            script[64];
    static char     text[8000];
    static answer_t a;
    di_gen_params_t p = params();
    static const char *const names[] = {
        "invalid", "too_long", "queue_full", "draining", "kv", "internal",
    };

    for (i = 0; i < 6; i++) {
        (void) snprintf(script, sizeof(script), "@@reject %s 3 4 why so",
                        names[i]);
        CHECK_EQ_INT(ask(client, script, &p, &a), DI_OK);
        CHECK_EQ_INT(a.rejected, i + 1);
        CHECK(a.a == 3 && a.b == 4);
        CHECK_EQ_STR(a.reject, "why so");
        CHECK_EQ_INT(a.started, 0);
    }

    CHECK_EQ_INT(ask(client, "@@sya hello", &p, &a), DI_OK);
    CHECK_EQ_INT(a.rejected, DI_REJECT_INTERNAL);
    CHECK_EQ_STR(a.reject, "script: @@sya hello");

    memset(text, 'x', sizeof(text) - 1);
    CHECK_EQ_INT(ask(client, text, &p, &a), DI_OK);
    CHECK_EQ_INT(a.rejected, DI_REJECT_TOO_LONG);
    CHECK_EQ_INT(a.b, 4096);
}

/* A grammar holds the answer, from its first token to its end. */
static void
test_grammar(di_ipc_client_t *client)
{
    void            *blob;
    size_t           bytes;
    int32_t          prompt[64];
    static answer_t  a;
    di_gram_err_t    err;
    di_gram_opts_t   opts = { 0 };
    di_gen_request_t req = { .params = params(), .prompt = prompt };
    static const struct { const char *text; uint32_t sent, reason; } cases[] = {
        { "ab12", 5, DI_FINISH_STOP }, { "ab", 2, DI_FINISH_ERROR },
        { "abx", 2, DI_FINISH_ERROR }, { "x", 0, DI_FINISH_ERROR },
        { "@@per 8\n@@say ab1-", 3, DI_FINISH_ERROR },
    };

    CHECK_EQ_INT(di_gram_compile(DI_GRAM_REGEX, "ab[0-9]+", 8, &opts, &blob,
                                 &bytes, &err), DI_OK);
    req.grammar = blob;
    req.n_grammar = (uint32_t) bytes;
    req.params.n = 2;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        req.n_prompt = chat(prompt, cases[i].text);
        CHECK_EQ_INT(di_ipc_client_submit(client, next_id++, &req, NULL),
                     DI_OK);
        CHECK_EQ_INT(di_ipc_client_flush(client), DI_OK);
        CHECK_EQ_INT(collect(client, &a, 2, WAIT_MS), DI_OK);
        CHECK_EQ_INT(a.by_choice[0], cases[i].sent);
        CHECK_EQ_INT(a.by_choice[1], cases[i].sent);
        CHECK_EQ_INT(a.reason, cases[i].reason);
        CHECK_EQ_INT(a.tokens, cases[i].sent);
    }

    req.n_grammar--;
    CHECK_EQ_INT(di_ipc_client_submit(client, next_id++, &req, NULL), DI_OK);
    CHECK_EQ_INT(di_ipc_client_flush(client), DI_OK);
    CHECK_EQ_INT(collect(client, &a, 2, WAIT_MS), DI_OK);
    CHECK_EQ_INT(a.rejected, DI_REJECT_INVALID);
    CHECK_EQ_STR(a.reject, "grammar");
    free(blob);
}

static void
test_pace(di_ipc_client_t *client)
{
    uint64_t        t = now_ms();
    static answer_t a;
    di_gen_params_t p = params();

    CHECK_EQ_INT(ask(client, "@@first 30\n@@every 5\n@@say abcd\n@@wait 20",
                     &p, &a), DI_OK);
    check_text(&a, "abcd");
    t = now_ms() - t;
    CHECK(t >= 69 && t < WAIT_MS);   /* 30 + 4 * 5 + 20, less a rounding   */

    t = now_ms();
    CHECK_EQ_INT(ask(client, "@@step 20\n@@say abcd", &p, &a), DI_OK);
    check_text(&a, "abcd");
    t = now_ms() - t;
    CHECK(t >= 59 && t < WAIT_MS);   /* up to the next step, then 3 * 20   */
}

/* Cancel, pause and resume; all of a choice's FINISH events come. */
static void
test_control(di_ipc_client_t *client)
{
    uint64_t        id;
    static answer_t a;
    di_gen_params_t p = params();

    p.n = 2;
    id = submit(client, "@@say ab\n@@stall", &p);
    CHECK_EQ_INT(collect_ids(client, &a, 4), DI_OK);
    CHECK_EQ_INT(a.finished, 0);
    CHECK_EQ_INT(collect(client, &a, 2, 50), DI_EAGAIN);
    CHECK_EQ_INT(a.n_ids, 0);
    CHECK_EQ_INT(di_ipc_client_cancel_choice(client, id, 1), DI_OK);
    CHECK_EQ_INT(di_ipc_client_flush(client), DI_OK);
    CHECK_EQ_INT(collect(client, &a, 1, WAIT_MS), DI_OK);
    CHECK(a.reason == DI_FINISH_CANCEL && a.tokens == 2);
    CHECK_EQ_INT(di_ipc_client_cancel(client, id), DI_OK);
    CHECK_EQ_INT(di_ipc_client_cancel(client, id + 1000), DI_OK);
    CHECK_EQ_INT(di_ipc_client_flush(client), DI_OK);
    CHECK_EQ_INT(collect(client, &a, 1, WAIT_MS), DI_OK);
    CHECK_EQ_INT(a.reason, DI_FINISH_CANCEL);

    p.n = 1;
    id = submit(client, "@@every 1\n@@repeat 3000 x", &p);
    CHECK_EQ_INT(di_ipc_client_pause(client, id, true), DI_OK);
    CHECK_EQ_INT(di_ipc_client_flush(client), DI_OK);
    CHECK_EQ_INT(collect(client, &a, 1, 100), DI_EAGAIN);
    CHECK(a.n_ids < 3000);
    CHECK_EQ_INT(di_ipc_client_pause(client, id, false), DI_OK);
    CHECK_EQ_INT(di_ipc_client_flush(client), DI_OK);
    CHECK_EQ_INT(collect_ids(client, &a, 1), DI_OK);
    CHECK_EQ_INT(di_ipc_client_cancel(client, id), DI_OK);
    CHECK_EQ_INT(di_ipc_client_flush(client), DI_OK);
    CHECK_EQ_INT(collect(client, &a, 1, WAIT_MS), DI_OK);
    CHECK_EQ_INT(a.reason, DI_FINISH_CANCEL);
}

/* More events than the ring has room for: none is lost. */
static void
test_back_pressure(di_ipc_client_t *client)
{
    uint32_t        i, n = 12;
    static answer_t a;
    di_gen_params_t p = params();
    di_ipc_status_t st = { 0 };

    for (i = 0; i < n; i++)
        (void) submit(client, "@@repeat 3000 x", &p);
    for (i = 0; i < WAIT_MS && st.running == 0; i++) {
        (void) poll(NULL, 0, 1);
        CHECK_EQ_INT(di_ipc_client_status(client, &st), DI_OK);
    }
    (void) poll(NULL, 0, 200);   /* the ring fills up                       */
    CHECK_EQ_INT(di_ipc_client_status(client, &st), DI_OK);
    CHECK(st.running > 0 && st.kv_blocks_live > 0);
    CHECK_EQ_INT(st.kv_blocks_live + st.kv_blocks_free, st.kv_blocks_total);

    for (i = 0; i < n; i++)
        CHECK_EQ_INT(collect(client, &a, 1, WAIT_MS), DI_OK);
    CHECK_EQ_INT(collect(client, &a, 1, 50), DI_EAGAIN);
    CHECK_EQ_INT(a.n_events, 0);

    CHECK_EQ_INT(di_ipc_client_status(client, &st), DI_OK);
    CHECK_EQ_INT(st.running + st.waiting, 0);
    CHECK_EQ_INT(st.kv_blocks_live, 0);
}

/* A worker that goes away frees what it held. */
static void
test_worker_gone(di_ipc_client_t *client)
{
    int              i;
    di_gen_params_t  p = params();
    di_ipc_status_t  st = { 0 };
    di_ipc_client_t *second = join();

    (void) submit(second, "@@stall", &p);
    for (i = 0; i < WAIT_MS && st.waiting + st.running == 0; i++) {
        (void) poll(NULL, 0, 1);
        CHECK_EQ_INT(di_ipc_client_status(client, &st), DI_OK);
    }
    CHECK_EQ_INT(st.running, 1);
    di_ipc_client_close(second);

    for (i = 0; i < WAIT_MS && st.running > 0; i++) {
        (void) poll(NULL, 0, 1);
        CHECK_EQ_INT(di_ipc_client_status(client, &st), DI_OK);
    }
    CHECK_EQ_INT(st.running, 0);
    CHECK_EQ_INT(st.kv_blocks_live, 0);
}

static void
test_die(di_ipc_client_t *client)
{
    int             status;
    static answer_t a;
    di_gen_params_t p = params();

    CHECK_EQ_INT(ask(client, "@@say ab\n@@die", &p, &a), DI_ECLOSED);
    CHECK_EQ_INT(a.n_ids, 2);
    CHECK_EQ_INT(waitpid(engine, &status, 0), engine);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 9);
    CHECK(access(path + 5, F_OK) == 0);
}

/* SIGTERM: running requests end, new ones are refused, the files go. */
static void
test_drain(void)
{
    int              status;
    uint64_t         id;
    static answer_t  a;
    di_gen_params_t  p = params();
    di_ipc_client_t *client;

    start_engine();              /* over the stale socket of the dead one   */
    client = join();
    if (client == NULL)
        return;

    id = submit(client, "@@stall", &p);
    CHECK_EQ_INT(collect(client, &a, 1, 50), DI_EAGAIN);
    CHECK_EQ_INT(kill(engine, SIGTERM), 0);
    (void) poll(NULL, 0, 50);
    CHECK_EQ_INT(ask(client, "late", &p, &a), DI_OK);
    CHECK_EQ_INT(a.rejected, DI_REJECT_DRAINING);
    CHECK_EQ_INT(di_ipc_client_cancel(client, id), DI_OK);
    CHECK_EQ_INT(di_ipc_client_flush(client), DI_OK);
    CHECK_EQ_INT(collect(client, &a, 1, WAIT_MS), DI_OK);
    CHECK_EQ_INT(waitpid(engine, &status, 0), engine);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    di_ipc_client_close(client);
}

static bool
find_program(void)
{
    ssize_t n = readlink("/proc/self/exe", program, sizeof(program) - 32);
    char   *slash;

    if (n < 0)
        return false;
    program[n] = '\0';
    slash = strrchr(program, '/');
    (void) strcpy(slash, "/../echo-engine");
    return access(program, X_OK) == 0 && access(MODEL, R_OK) == 0;
}

int
main(void)
{
    di_ipc_client_t *client;

    if (!find_program()) {
        printf("SKIP echo: no ../echo-engine beside the test, or no %s\n",
               MODEL);
        return 0;
    }

    (void) snprintf(dir, sizeof(dir), "/tmp/di-echo-XXXXXX");
    if (mkdtemp(dir) == NULL)
        return 1;
    (void) snprintf(path, sizeof(path), "unix:%s/e.sock", dir);

    start_engine();
    client = join();
    CHECK(client != NULL);
    if (client != NULL) {
        test_echo(client);
        test_output(client);
        test_choices(client);
        test_logprobs(client);
        test_refusals(client);
        test_grammar(client);
        test_pace(client);
        test_control(client);
        test_back_pressure(client);
        test_worker_gone(client);
        test_die(client);
        di_ipc_client_close(client);
        test_drain();
    }

    CHECK_EQ_INT(rmdir(dir), 0);
    return check_done("echo");
}
