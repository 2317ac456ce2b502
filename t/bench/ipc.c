/*
 * ipc.c - what the channel costs: round trips and one-way messages.
 *
 *     build/bench/ipc [--worker-cpu N] [--engine-cpu N] [--seconds S]
 *
 * Two processes, the engine's forked off before anything is opened, each
 * pinned to its CPU.  In one run, so that they can be compared:
 *
 *   ping-pong       one cache line bounced between the CPUs: the floor of a
 *                   spinning round trip
 *   spinning        a cancel message out, an event back, both sides spin
 *   eventfd+epoll   a bare eventfd and epoll ping-pong: the floor of a round
 *                   trip with sleep
 *   sleeping        the same messages, both sides asleep in epoll
 *   spin, sleep     the engine spins for 50 us before it sleeps, as it does
 *                   in service; the worker sleeps
 *   submit 64       a submission with 64 tokens out, an event back, spinning
 *   events, out     one-way 64-byte events, engine to worker, 64 to a batch
 *   cancels, in     one-way messages, worker to engine, 64 to a batch
 *
 * Round trips print median and p99 of single ones and the mean of the CPU time
 * that the asking side takes, in a sleeping one mostly to wake the other's
 * CPU; one-way figures are those of chunks of 4096 messages.  Time that the
 * processes wait for a CPU shows in the p99 and not in the median.
 */

#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "engine/ipc/ipc_shm.h"

#define BATCH   64
#define TOKENS  64
#define SAMPLES 200000
#define CHUNK   4096             /* one-way messages timed together         */

/* Memory of the bare tests, shared by fork. */
typedef struct {
    _Alignas(DI_SHM_LINE) _Atomic uint32_t ping;
    _Alignas(DI_SHM_LINE) _Atomic uint32_t pong;
} line_t;

static const char *path = "/tmp/di-bench-ipc.sock";
static int         worker_cpu, engine_cpu = 1;
static double      seconds = 1;
static uint64_t    samples[SAMPLES];

static uint64_t
clock_ns(clockid_t clock)
{
    struct timespec t;

    (void) clock_gettime(clock, &t);
    return (uint64_t) t.tv_sec * 1000000000u + (uint64_t) t.tv_nsec;
}

static uint64_t
now_ns(void)
{
    return clock_ns(CLOCK_MONOTONIC);
}

static void
die(const char *what)
{
    perror(what);
    exit(1);
}

static void
pin(int cpu)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof(set), &set) < 0)
        die("sched_setaffinity");
}

static inline void
relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static int
by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *) a, y = *(const uint64_t *) b;

    return x < y ? -1 : x > y;
}

/* Run one(arg) over and over for `seconds`; print median, p99 and CPU time;
 * the median. */
static double
round_trips(const char *name, void (*one)(void *), void *arg, double floor)
{
    size_t   i, n;
    double   median;
    uint64_t t, end, cpu;

    for (i = 0; i < 1000; i++)
        one(arg);

    cpu = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    end = now_ns() + (uint64_t) (seconds * 1e9);
    for (n = 0; n < SAMPLES; n++) {
        t = now_ns();
        if (t > end && n > 100)
            break;
        one(arg);
        samples[n] = now_ns() - t;
    }
    cpu = clock_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu;

    qsort(samples, n, sizeof(samples[0]), by_value);
    median = (double) samples[n / 2];
    printf("%-22s %9.0f ns median %9llu ns p99 %7llu ns CPU", name, median,
           (unsigned long long) samples[n * 99 / 100],
           (unsigned long long) (cpu / n));
    if (floor > 0)
        printf("   %.2f x the floor", median / floor);
    printf("\n");
    (void) fflush(stdout);
    return median;
}

static pid_t
fork_engine(void (*run)(void *), void *arg)
{
    pid_t pid = fork();

    if (pid < 0)
        die("fork");
    if (pid == 0) {
        pin(engine_cpu);
        run(arg);
        _exit(0);
    }
    return pid;
}

static void
end_engine(pid_t pid)
{
    (void) kill(pid, SIGKILL);
    (void) waitpid(pid, NULL, 0);
}

/* ---------------------------------------------------------- the floors -- */

static void
pong(void *arg)
{
    line_t  *line = arg;
    uint32_t n = 1;

    for ( ;; n++) {
        while (atomic_load_explicit(&line->ping, memory_order_acquire) != n)
            relax();
        atomic_store_explicit(&line->pong, n, memory_order_release);
    }
}

static void
ping(void *arg)
{
    line_t         *line = arg;
    static uint32_t n;

    atomic_store_explicit(&line->ping, ++n, memory_order_release);
    while (atomic_load_explicit(&line->pong, memory_order_acquire) != n)
        relax();
}

static double
bench_line(void)
{
    pid_t   pid;
    double  median;
    line_t *line = mmap(NULL, sizeof(*line), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (line == MAP_FAILED)
        die("mmap");
    pid = fork_engine(pong, line);
    median = round_trips("ping-pong, one line", ping, line, 0);
    end_engine(pid);
    return median;
}

typedef struct {
    int epoll;                   /* watches fd[0]                           */
    int fd[2];                   /* one's own, the peer's                   */
} bell_t;

static void
bell_open(bell_t *b)
{
    struct epoll_event ev = { .events = EPOLLIN };

    b->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (b->epoll < 0 || epoll_ctl(b->epoll, EPOLL_CTL_ADD, b->fd[0], &ev) < 0)
        die("epoll");
}

static void
bell_wait(bell_t *b)
{
    uint64_t           v;
    struct epoll_event ev;

    while (epoll_wait(b->epoll, &ev, 1, -1) < 1) { }
    if (read(b->fd[0], &v, sizeof(v)) != sizeof(v))
        die("read");
}

static void
bell_ring(bell_t *b)
{
    uint64_t one = 1;

    if (write(b->fd[1], &one, sizeof(one)) != sizeof(one))
        die("write");
}

static void
bell_answer(void *arg)
{
    bell_t b = *(bell_t *) arg;

    b.fd[0] = ((bell_t *) arg)->fd[1];
    b.fd[1] = ((bell_t *) arg)->fd[0];
    bell_open(&b);
    for ( ;; ) {
        bell_wait(&b);
        bell_ring(&b);
    }
}

static void
bell_ask(void *arg)
{
    bell_ring(arg);
    bell_wait(arg);
}

static double
bench_bells(void)
{
    pid_t  pid;
    double median;
    bell_t b = { .fd = { eventfd(0, EFD_NONBLOCK), eventfd(0, EFD_NONBLOCK) } };

    pid = fork_engine(bell_answer, &b);
    bell_open(&b);
    median = round_trips("eventfd+epoll, bare", bell_ask, &b, 0);
    end_engine(pid);
    (void) close(b.epoll);
    (void) close(b.fd[0]);
    (void) close(b.fd[1]);
    return median;
}

/* --------------------------------------------------------- the channel -- */

typedef struct {
    bool     sleeps;             /* the engine sleeps when there is nothing */
    bool     streams;            /* the engine sends all the time           */
    uint32_t spin_us;
} engine_t;

static void
stream(di_ipc_server_t *server, uint32_t conn)
{
    int        i;
    di_event_t ev = { .id = 1, .type = DI_EV_TOKENS, .n_tokens = 1 };

    for ( ;; ) {
        for (i = 0; i < BATCH; i++) {
            while (di_ipc_server_send(server, conn, &ev, NULL) != DI_OK)
                relax();
        }
        di_ipc_server_flush(server);
    }
}

/* Answer each message that wants it with an event: submissions and cancels
 * with id 0 don't. */
static void
serve(void *arg)
{
    engine_t            *e = arg;
    di_event_t           ev = { .id = 1, .type = DI_EV_TOKENS, .n_tokens = 1 };
    di_ipc_msg_t         msg;
    di_ipc_server_t     *server;
    di_ipc_server_conf_t conf = {
        .welcome = { .model = "bench", .vocab = 1, .max_model_len = 1 << 20 },
        .spin_us = e->spin_us,
    };

    if (di_ipc_server_open(path, &conf, &server, NULL) != DI_OK)
        die(path);
    while (di_ipc_server_conns(server) == 0)
        (void) di_ipc_server_wait(server, -1);

    for ( ;; ) {
        if (di_ipc_server_recv(server, &msg) == DI_OK) {
            if (msg.id == 0)
                continue;
            if (e->streams)
                stream(server, msg.conn);
            (void) di_ipc_server_send(server, msg.conn, &ev, NULL);
            di_ipc_server_flush(server);
        } else if (e->sleeps) {
            (void) di_ipc_server_wait(server, -1);
        } else {
            relax();
        }
    }
}

static di_ipc_client_t *
connect_to(engine_t *e, pid_t *pid)
{
    int              i;
    struct pollfd    fd;
    di_ipc_client_t *client = NULL;

    *pid = fork_engine(serve, e);
    for (i = 0; i < 5000; i++) {
        if (di_ipc_client_open(path, NULL, &client, NULL) == DI_OK)
            break;
        (void) poll(NULL, 0, 1);
    }
    if (client == NULL)
        die(path);

    fd = (struct pollfd) { di_ipc_client_socket(client), POLLIN, 0 };
    while (di_ipc_client_handshake(client, NULL) != DI_OK)
        (void) poll(&fd, 1, 1000);
    return client;
}

static void
leave(di_ipc_client_t *client, pid_t pid)
{
    di_ipc_client_close(client);
    end_engine(pid);
}

static void
ask_spinning(void *arg)
{
    di_event_t              ev;
    const di_top_logprob_t *top;

    (void) di_ipc_client_cancel(arg, 1);
    (void) di_ipc_client_flush(arg);
    while (di_ipc_client_recv(arg, &ev, &top) != DI_OK)
        relax();
}

static void
submit_spinning(void *arg)
{
    di_event_t              ev;
    static const int32_t    prompt[TOKENS];
    const di_top_logprob_t *top;
    di_gen_request_t        req = {
        .params = { .top_p = 1, .repetition_penalty = 1, .n = 1 },
        .prompt = prompt, .n_prompt = TOKENS,
    };

    if (di_ipc_client_submit(arg, 1, &req, NULL) != DI_OK)
        die("submit");
    (void) di_ipc_client_flush(arg);
    while (di_ipc_client_recv(arg, &ev, &top) != DI_OK)
        relax();
}

typedef struct {
    di_ipc_client_t *client;
    int              epoll;
} sleeper_t;

static void
ask_sleeping(void *arg)
{
    sleeper_t              *s = arg;
    di_event_t              ev;
    struct epoll_event      e;
    const di_top_logprob_t *top;

    (void) di_ipc_client_cancel(s->client, 1);
    (void) di_ipc_client_flush(s->client);
    while (di_ipc_client_recv(s->client, &ev, &top) != DI_OK) {
        if (di_ipc_client_sleep(s->client) == DI_OK)
            (void) epoll_wait(s->epoll, &e, 1, -1);
    }
}

static void
bench_spinning(const char *name, void (*one)(void *), double floor)
{
    pid_t            pid;
    engine_t         e = { 0 };
    di_ipc_client_t *client = connect_to(&e, &pid);

    (void) round_trips(name, one, client, floor);
    leave(client, pid);
}

static void
bench_sleeping(const char *name, uint32_t spin_us, double floor)
{
    pid_t              pid;
    engine_t           e = { .sleeps = true, .spin_us = spin_us };
    sleeper_t          s;
    struct epoll_event ev = { .events = EPOLLIN | EPOLLET };

    s.client = connect_to(&e, &pid);
    s.epoll = epoll_create1(EPOLL_CLOEXEC);
    if (epoll_ctl(s.epoll, EPOLL_CTL_ADD, di_ipc_client_eventfd(s.client),
                  &ev) < 0)
        die("epoll_ctl");
    (void) round_trips(name, ask_sleeping, &s, floor);
    (void) close(s.epoll);
    leave(s.client, pid);
}

/* One-way messages: how long each chunk took; the median's rate. */
typedef struct {
    size_t   n;                  /* chunks                                  */
    uint64_t messages;           /* of the chunk so far                     */
    uint64_t since, end;
} chunks_t;

static void
chunks_begin(chunks_t *c)
{
    *c = (chunks_t) { .since = now_ns() };
    c->end = c->since + (uint64_t) (seconds * 1e9);
}

/* n more messages have passed; false: that's enough. */
static bool
chunks_add(chunks_t *c, uint64_t n)
{
    uint64_t t;

    c->messages += n;
    if (c->messages < CHUNK)
        return true;

    t = now_ns();
    samples[c->n++] = (t - c->since) * 1000 / c->messages;  /* ps each      */
    c->since = t;
    c->messages = 0;
    return t < c->end && c->n < SAMPLES;
}

static void
chunks_print(const char *name, chunks_t *c)
{
    double median, p99;

    qsort(samples, c->n, sizeof(samples[0]), by_value);
    median = (double) samples[c->n / 2] / 1000;
    p99 = (double) samples[c->n * 99 / 100] / 1000;
    printf("%-22s %9.1f ns median %9.1f ns p99   %.1f M/s\n", name, median,
           p99, 1000 / median);
    (void) fflush(stdout);
}

static void
bench_events_out(void)
{
    pid_t                   pid;
    chunks_t                chunks;
    engine_t                e = { .streams = true };
    di_event_t              ev;
    di_ipc_client_t        *client = connect_to(&e, &pid);
    const di_top_logprob_t *top;

    ask_spinning(client);
    chunks_begin(&chunks);
    do {
        while (di_ipc_client_recv(client, &ev, &top) != DI_OK)
            relax();
    } while (chunks_add(&chunks, 1));

    chunks_print("events, out", &chunks);
    leave(client, pid);
}

static void
bench_cancels_in(void)
{
    int              i;
    pid_t            pid;
    chunks_t         chunks;
    engine_t         e = { 0 };
    di_ipc_client_t *client = connect_to(&e, &pid);

    ask_spinning(client);
    chunks_begin(&chunks);
    do {
        for (i = 0; i < BATCH; i++) {
            while (di_ipc_client_cancel(client, 0) != DI_OK)
                relax();
        }
        (void) di_ipc_client_flush(client);
    } while (chunks_add(&chunks, BATCH));

    chunks_print("cancels, in", &chunks);
    leave(client, pid);
}

static void
parse_options(int argc, char **argv)
{
    int c;
    static const struct option options[] = {
        { "worker-cpu", required_argument, NULL, 'w' },
        { "engine-cpu", required_argument, NULL, 'e' },
        { "seconds", required_argument, NULL, 's' },
        { NULL, 0, NULL, 0 },
    };

    while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
        switch (c) {
        case 'w': worker_cpu = atoi(optarg); break;
        case 'e': engine_cpu = atoi(optarg); break;
        case 's': seconds = atof(optarg); break;
        default:  exit(2);
        }
    }
}

int
main(int argc, char **argv)
{
    double line, bells;

    parse_options(argc, argv);
    pin(worker_cpu);

    line = bench_line();
    bench_spinning("spinning", ask_spinning, line);
    bench_spinning("submit 64 tokens", submit_spinning, line);
    bells = bench_bells();
    bench_sleeping("sleeping", 0, bells);
    bench_sleeping("engine spins 50 us", 50, bells);
    bench_events_out();
    bench_cancels_in();

    (void) unlink(path);
    (void) unlink("/tmp/di-bench-ipc.sock.lock");
    return 0;
}
