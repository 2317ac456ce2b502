/*
 * request.c - from the body of a long request to its submitted ids.
 *
 *   build/bench/request VOCABULARY TEXT
 *
 * TEXT is cut into messages of 330 KB, none of which an instance has seen
 * before.  Each is the body of a Chat request, and goes the way that a worker
 * sends it: the event loop gives the body to a thread pool of two, where one
 * thread parses, renders and cuts it; then both encode its parts; then the
 * loop puts the ids together and submits them to an engine over the channel.
 * As in nginx, tasks come by a condition and go back by an eventfd.
 *
 * Printed are the median and the worst of elapsed time, and of the longest
 * time that the loop was held by one of its three steps, elapsed and of its
 * own CPU time, which other work on the machine doesn't touch.  The first
 * request, which finds nothing warm, is among them and is told by itself, too.
 * The figure with one thread of two, with the same steps, shows what the
 * second brings.
 */

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "engine/ipc/di_ipc.h"
#include "tokenizer/api/di_api.h"

#define MESSAGE     330000              /* bytes                             */
#define PART_BYTES  16384               /* as in the module                  */
#define THREADS     2
#define RUNS_MAX    64

/* What one request took, in milliseconds. */
typedef struct {
    double took;
    double held;                        /* the loop's longest step           */
    double held_cpu;                    /* the same of its CPU time          */
} run_t;

static const char *path = "/tmp/di-bench-request.sock";

static di_vocab_t      *vocab;
static di_dialect_t    *dialect;
static di_ipc_server_t *server;
static di_ipc_client_t *client;

static const char    *body;             /* of the request under way          */
static size_t         body_len;
static di_req_t      *req;
static di_work_t     *work;
static _Atomic size_t next_part;

/* The pool: `todo` tasks are asked for, all of one kind. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t  more = PTHREAD_COND_INITIALIZER;
static void          (*task)(di_tok_t *tok);
static int             todo, done_fd;

static void
need(bool fine, const char *what)
{
    if (!fine) {
        fprintf(stderr, "request: %s\n", what);
        exit(1);
    }
}

static double
clock_ms(clockid_t clock)
{
    struct timespec t;

    (void) clock_gettime(clock, &t);
    return 1e3 * (double) t.tv_sec + 1e-6 * (double) t.tv_nsec;
}

static double
now_ms(void)
{
    return clock_ms(CLOCK_MONOTONIC);
}

/* --------------------------------------------------------------- threads -- */

static void
read_body(di_tok_t *tok)
{
    di_req_options_t options = { .vocab = di_vocab_size(vocab) };
    di_api_err_t     refused = { 0 };
    di_err_t         err = { 0 };

    (void) tok;
    options.family = di_dialect_family(dialect);
    options.caps = di_dialect_caps(dialect);
    need(di_req_parse(DI_API_CHAT, &options, body, body_len, &req, &refused)
         == DI_OK, refused.message);
    need(di_work_open(dialect, vocab, di_req_conv(req), PART_BYTES, &work,
                      &err) == DI_OK, err.text);
}

static void
encode_parts(di_tok_t *tok)
{
    size_t i, n = di_work_parts(work);

    while ((i = atomic_fetch_add(&next_part, 1)) < n)
        di_work_encode(work, i, tok);
}

static void *
run_thread(void *arg)
{
    static const uint64_t one = 1;
    void                (*mine)(di_tok_t *tok);

    for (;;) {
        (void) pthread_mutex_lock(&lock);
        while (todo == 0)
            (void) pthread_cond_wait(&more, &lock);
        todo--;
        mine = task;
        (void) pthread_mutex_unlock(&lock);
        mine(arg);
        need(write(done_fd, &one, sizeof(one)) == sizeof(one), "eventfd");
    }
    return NULL;
}

/* ------------------------------------------------------------ event loop -- */

static void
post(void (*what)(di_tok_t *tok), int n)
{
    (void) pthread_mutex_lock(&lock);
    task = what;
    todo = n;
    (void) pthread_cond_broadcast(&more);
    (void) pthread_mutex_unlock(&lock);
}

static void
await(uint64_t n)
{
    for (uint64_t got = 0, some; got < n; got += some)
        need(read(done_fd, &some, sizeof(some)) == sizeof(some), "eventfd");
}

static void
submit(const int32_t *ids, size_t n)
{
    static uint64_t  id;
    di_err_t         err = { 0 };
    di_gen_request_t gen = {
        .params = { .temperature = 1, .top_p = 1, .repetition_penalty = 1,
                    .n = 1, .max_tokens = 1 },
        .prompt = ids, .n_prompt = (uint32_t) n,
    };

    need(di_ipc_client_submit(client, ++id, &gen, &err) == DI_OK, err.text);
    need(di_ipc_client_flush(client) == DI_OK, "the channel is closed");
}

/* A step of the loop ends that began then. */
static void
end_step(run_t *run, double start, double start_cpu)
{
    double took = now_ms() - start;
    double cpu = clock_ms(CLOCK_THREAD_CPUTIME_ID) - start_cpu;

    run->held = took > run->held ? took : run->held;
    run->held_cpu = cpu > run->held_cpu ? cpu : run->held_cpu;
}

#define STEP(run, what)                                                     \
    do {                                                                    \
        double step_cpu = clock_ms(CLOCK_THREAD_CPUTIME_ID);                \
        double step = now_ms();                                             \
                                                                            \
        what;                                                               \
        end_step(run, step, step_cpu);                                      \
    } while (0)

/* One request; *n: its ids. */
static run_t
serve(int threads, size_t *n)
{
    run_t    run = { 0 };
    double   start = now_ms();
    int32_t *ids = NULL;
    di_err_t err = { 0 };

    STEP(&run, post(read_body, 1));
    await(1);

    STEP(&run,
         atomic_store(&next_part, 0);
         post(encode_parts, threads));
    await((uint64_t) threads);

    STEP(&run,
         need(di_work_finish(work, SIZE_MAX, &ids, n, &err) == DI_OK,
              err.text);
         di_work_close(work);
         submit(ids, *n));
    run.took = now_ms() - start;

    free(ids);
    di_req_close(req);
    return run;
}

/* ------------------------------------------------------------------ main -- */

/* What the engine does with it, outside of what is measured. */
static void
take(size_t n)
{
    di_ipc_msg_t msg;

    while (di_ipc_server_recv(server, &msg) == DI_EAGAIN)
        (void) di_ipc_server_wait(server, 0);
    need(msg.type == DI_MSG_SUBMIT && msg.req.n_prompt == n,
         "the engine got something else");
}

static void
connect_engine(void)
{
    di_ipc_server_conf_t conf = {
        .welcome = { .model = "bench", .arith = "none", .pid = 1,
                     .vocab = di_vocab_size(vocab),
                     .max_model_len = 1 << 20 },
    };
    di_err_t err = { 0 };
    int      rc;

    need(di_ipc_server_open(path, &conf, &server, &err) == DI_OK, err.text);
    need(di_ipc_client_open(path, NULL, &client, &err) == DI_OK, err.text);
    while ((rc = di_ipc_client_handshake(client, &err)) == DI_EAGAIN)
        (void) di_ipc_server_wait(server, 0);
    need(rc == DI_OK, err.text);
}

/* A body with a message of `len` bytes at `text`, or a little less: it begins
 * and ends with a character. */
static char *
make_body(const char *text, size_t len, size_t *n)
{
    static const char head[] = "{\"model\":\"m\",\"messages\":[{\"role\":"
                               "\"user\",\"content\":\"";
    char *b = malloc(6 * len + sizeof(head) + 16), *at = b;

    need(b != NULL, "no memory");
    for (; len > 0 && ((uint8_t) *text & 0xc0) == 0x80; len--)
        text++;
    while (len > 0 && ((uint8_t) text[len] & 0xc0) == 0x80)
        len--;
    at += sprintf(at, "%s", head);
    for (size_t i = 0; i < len; i++) {
        uint8_t c = (uint8_t) text[i];

        if (c == '"' || c == '\\')
            *at++ = '\\';
        if (c == '\n')
            at += sprintf(at, "\\n");
        else if (c < 0x20)
            at += sprintf(at, "\\u%04x", c);
        else
            *at++ = (char) c;
    }
    at += sprintf(at, "\"}]}");
    *n = (size_t) (at - b);
    return b;
}

static int
by_value(const void *a, const void *b)
{
    double x = *(const double *) a, y = *(const double *) b;

    return x < y ? -1 : x > y;
}

static void
measure(const char *text, size_t len, int threads)
{
    double took[RUNS_MAX], held[RUNS_MAX], cpu[RUNS_MAX];
    size_t runs = 0, n = 0, ids = 0;
    run_t  run, first = { 0 };

    for (; runs < RUNS_MAX && (runs + 1) * MESSAGE < len; runs++) {
        char *made = make_body(text + runs * MESSAGE, MESSAGE, &body_len);

        body = made;
        run = serve(threads, &n);
        first = runs == 0 ? run : first;
        took[runs] = run.took;
        held[runs] = run.held;
        cpu[runs] = run.held_cpu;
        take(n);
        ids += n;
        free(made);
    }
    need(runs > 0, "the text is too short");
    qsort(took, runs, sizeof(*took), by_value);
    qsort(held, runs, sizeof(*held), by_value);
    qsort(cpu, runs, sizeof(*cpu), by_value);
    printf("request of %d KB, %zu ids, encoded by %d: %.2f ms median, %.2f "
           "worst of %zu, %.2f the first; loop held %.2f ms median, %.2f "
           "worst; %.2f and %.2f of its CPU time, %.2f at first\n",
           MESSAGE / 1000, ids / runs, threads, took[runs / 2],
           took[runs - 1], runs, first.took, held[runs / 2], held[runs - 1],
           cpu[runs / 2], cpu[runs - 1], first.held_cpu);
}

static char *
read_file(const char *name, size_t *len)
{
    FILE *f = fopen(name, "rb");
    char *data;
    long  size;

    need(f != NULL && fseek(f, 0, SEEK_END) == 0, "no text");
    size = ftell(f);
    need(size > 0, "an empty text");
    data = malloc((size_t) size);
    need(data != NULL, "no memory");
    rewind(f);
    *len = fread(data, 1, (size_t) size, f);
    (void) fclose(f);
    return data;
}

int
main(int argc, char **argv)
{
    di_str_t  none = { NULL, 0 };
    pthread_t thread;
    di_tok_t *tok;
    di_err_t  err = { 0 };
    char     *text;
    size_t    len;

    if (argc != 3) {
        fprintf(stderr, "usage: request VOCABULARY TEXT\n");
        return 1;
    }
    need(di_vocab_open_path(argv[1], &vocab, &err) == DI_OK, err.text);
    need(di_dialect_open(vocab, none, "deepseek-v4", &dialect, &err) == DI_OK,
         err.text);
    text = read_file(argv[2], &len);
    connect_engine();

    done_fd = eventfd(0, 0);
    need(done_fd >= 0, "eventfd");
    for (int i = 0; i < THREADS; i++) {
        need(di_tok_open(vocab, &tok) == DI_OK, "no memory");
        need(pthread_create(&thread, NULL, run_thread, tok) == 0,
             "no thread");
    }
    /* The halves of the text: neither has seen the other's. */
    measure(text, len / 2, THREADS);
    measure(text + len / 2, len - len / 2, 1);

    di_ipc_client_close(client);
    di_ipc_server_close(server);
    return 0;
}
