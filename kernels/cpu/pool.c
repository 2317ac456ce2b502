/*
 * pool.c - a fixed set of threads that run ops in order.
 *
 * One 64-bit word holds the state that threads contend for: the number of the
 * running op (sequence), its number of parts, and the next part to hand out.
 * A thread takes a part with one fetch-and-add of that word, which returns all
 * three at once; so a thread that was descheduled for a while can neither take
 * a part of an op that is over nor misread the size of the one it meets.  The
 * thread that finishes an op's last part looks for the next op: those of one
 * part it runs itself, on the spot, and the first with several it publishes.
 * There is no barrier: a thread that is late just finds fewer parts left.
 *
 *     63          32 31     16 15      0
 *     | sequence    | n_parts | next   |      n_parts == 0: idle
 *
 * Waiting means spinning for spin_us, then sleeping on a futex on the upper
 * half of the word.  Spinning is bounded since on a busy machine the thread
 * that one waits for may need the very CPU that one spins on.
 *
 * Invariants: while any thread holds a part, left > 0 and op does not change;
 * a thread adds to the word at most once per sequence number after the parts
 * ran out, so that next never reaches n_parts' bits.
 */

#include "cpu.h"

#include <errno.h>
#include <immintrin.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define THREADS_MAX 1024

struct di_cpu_pool_s {
    _Alignas(64) _Atomic uint64_t state;
    _Alignas(64) _Atomic uint32_t left;      /* parts not finished          */
    _Alignas(64) _Atomic uint32_t sleepers;  /* threads in futex_wait       */

    /* Of the publisher: the thread that finished the last op. */
    _Alignas(64) const di_cpu_op_t *op;      /* running op                  */
    const di_cpu_run_t *runs;                /* ops still to come           */
    size_t              n_runs;
    size_t              next_op;             /* in runs[0]                  */
    uint32_t            sequence;

    /* Fixed after open. */
    _Alignas(64) uint32_t n_threads;
    uint32_t         spin_us;
    bool             pin;
    _Atomic bool     stop;
    void           (*thread_init)(void);
    cpu_set_t        cpus;                   /* allowed at open             */
    pthread_t       *threads;                /* [n_threads - 1]             */
    uint32_t         n_started;
    di_cpu_worker_t *workers;                /* [n_threads]                 */
};

static inline uint32_t
state_sequence(uint64_t s)
{
    return (uint32_t) (s >> 32);
}

static inline uint32_t
state_parts(uint64_t s)
{
    return (uint32_t) (s >> 16) & 0xffff;
}

static inline uint32_t
state_next(uint64_t s)
{
    return (uint32_t) s & 0xffff;
}

static uint32_t *
futex_word(di_cpu_pool_t *pool)
{
    return (uint32_t *) (void *) &pool->state + 1;   /* little endian       */
}

static void
publish(di_cpu_pool_t *pool, size_t n_parts, uint32_t next)
{
    uint64_t s = (uint64_t) ++pool->sequence << 32
                 | (uint64_t) n_parts << 16 | next;

    /* Ordered before the load of sleepers; pairs with the increment in
     * wait_change(): either we see the sleeper or it sees the change. */
    atomic_store_explicit(&pool->state, s, memory_order_seq_cst);
    if (atomic_load_explicit(&pool->sleepers, memory_order_seq_cst) > 0)
        syscall(SYS_futex, futex_word(pool), FUTEX_WAKE_PRIVATE, INT32_MAX,
                NULL, NULL, 0);
}

static const di_cpu_op_t *
next_op(di_cpu_pool_t *pool)
{
    while (pool->n_runs > 0) {
        if (pool->next_op < pool->runs->n)
            return &pool->runs->ops[pool->next_op++];
        pool->runs++;
        pool->n_runs--;
        pool->next_op = 0;
    }
    return NULL;
}

/* Run ops until one has parts to share: publish it with its first part taken
 * for us and return true.  false: there are no more, idle is published. */
static bool
advance(di_cpu_pool_t *pool, di_cpu_worker_t *worker)
{
    const di_cpu_op_t *op;
    size_t n;

    while ((op = next_op(pool)) != NULL) {
        n = op->plan ? op->plan(op) : op->n_parts;
        if (n <= 1 || pool->n_threads == 1) {
            for (size_t i = 0; i < n; i++)
                op->run(op, i, worker);
            continue;
        }

        pool->op = op;
        atomic_store_explicit(&pool->left, (uint32_t) n,
                              memory_order_relaxed);
        publish(pool, n, 1);
        return true;
    }

    if (state_parts(atomic_load_explicit(&pool->state,
                                         memory_order_relaxed)) > 0)
        publish(pool, 0, 0);
    return false;
}

static void
finish_part(di_cpu_pool_t *pool, di_cpu_worker_t *worker)
{
    while (atomic_fetch_sub_explicit(&pool->left, 1, memory_order_acq_rel)
           == 1)
    {
        if (!advance(pool, worker))
            return;
        pool->op->run(pool->op, 0, worker);
    }
}

static uint64_t
now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t) t.tv_sec * 1000000u + (uint64_t) t.tv_nsec / 1000u;
}

static bool
changed(di_cpu_pool_t *pool, uint32_t sequence)
{
    return state_sequence(atomic_load_explicit(&pool->state,
                                               memory_order_acquire))
           != sequence;
}

/* Return when the sequence number is no longer this one. */
static void
wait_change(di_cpu_pool_t *pool, uint32_t sequence)
{
    uint64_t until = 0, now;

    for (;;) {
        for (int i = 0; i < 32; i++) {
            if (changed(pool, sequence))
                return;
            _mm_pause();
        }
        now = now_us();
        if (until == 0)
            until = now + pool->spin_us;
        if (now >= until)
            break;
    }

    atomic_fetch_add_explicit(&pool->sleepers, 1, memory_order_seq_cst);
    while (!changed(pool, sequence))
        syscall(SYS_futex, futex_word(pool), FUTEX_WAIT_PRIVATE, sequence,
                NULL, NULL, 0);
    atomic_fetch_sub_explicit(&pool->sleepers, 1, memory_order_relaxed);
}

/* Take and run parts; returns when the pool is idle (is_caller) or to stop. */
static void
work(di_cpu_pool_t *pool, di_cpu_worker_t *worker, bool is_caller)
{
    uint64_t s;

    for (;;) {
        s = atomic_load_explicit(&pool->state, memory_order_acquire);
        if (state_next(s) < state_parts(s))
            s = atomic_fetch_add_explicit(&pool->state, 1,
                                          memory_order_acq_rel);
        if (state_next(s) < state_parts(s)) {
            pool->op->run(pool->op, state_next(s), worker);
            finish_part(pool, worker);
            continue;
        }

        if (is_caller && state_parts(s) == 0)
            return;
        /* stop is set before the state changes for the last time. */
        if (!is_caller
            && atomic_load_explicit(&pool->stop, memory_order_acquire))
            return;
        wait_change(pool, state_sequence(s));
    }
}

void
di_cpu_pool_run(di_cpu_pool_t *pool, const di_cpu_run_t *runs, size_t n_runs)
{
    pool->runs = runs;
    pool->n_runs = n_runs;
    pool->next_op = 0;

    if (advance(pool, &pool->workers[0])) {
        pool->op->run(pool->op, 0, &pool->workers[0]);
        finish_part(pool, &pool->workers[0]);
        work(pool, &pool->workers[0], true);
    }
}

/* Bind the calling thread to the index-th of the allowed CPUs, round robin.
 * A refusal costs speed only and is ignored. */
static void
pin_thread(const di_cpu_pool_t *pool, uint32_t index)
{
    uint32_t n = (uint32_t) CPU_COUNT(&pool->cpus), left;
    cpu_set_t one;

    if (!pool->pin || n == 0)
        return;

    left = index % n;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET(cpu, &pool->cpus) && left-- == 0) {
            CPU_ZERO(&one);
            CPU_SET(cpu, &one);
            (void) sched_setaffinity(0, sizeof(one), &one);
            return;
        }
    }
}

static void
thread_begin(di_cpu_worker_t *worker)
{
    pin_thread(worker->pool, worker->index);
    if (worker->pool->thread_init)
        worker->pool->thread_init();
}

static void *
thread_main(void *arg)
{
    di_cpu_worker_t *worker = arg;

    thread_begin(worker);
    work(worker->pool, worker, false);
    return NULL;
}

static int
start_threads(di_cpu_pool_t *pool, di_err_t *err)
{
    int rc;

    for (uint32_t i = 1; i < pool->n_threads; i++) {
        rc = pthread_create(&pool->threads[i - 1], NULL, thread_main,
                            &pool->workers[i]);
        if (rc != 0)
            return di_err_set(err, DI_EIO, 0, "cannot start thread %u: %s",
                              i, strerror(rc));
        pool->n_started++;
    }

    thread_begin(&pool->workers[0]);
    return DI_OK;
}

int
di_cpu_pool_open(uint32_t n_threads, bool pin, uint32_t spin_us,
                 void (*thread_init)(void), di_cpu_pool_t **out,
                 di_err_t *err)
{
    di_cpu_pool_t *pool;
    int rc;

    if (n_threads == 0 || n_threads > THREADS_MAX)
        return di_err_set(err, DI_EINVAL, 0, "%u threads: not 1 to %d",
                          n_threads, THREADS_MAX);

    pool = aligned_alloc(64, sizeof(*pool));
    if (pool == NULL)
        goto no_memory;
    memset(pool, 0, sizeof(*pool));

    pool->n_threads = n_threads;
    pool->pin = pin;
    pool->spin_us = spin_us;
    pool->thread_init = thread_init;
    if (sched_getaffinity(0, sizeof(pool->cpus), &pool->cpus) != 0)
        CPU_ZERO(&pool->cpus);

    pool->threads = calloc(n_threads, sizeof(*pool->threads));
    pool->workers = calloc(n_threads, sizeof(*pool->workers));
    if (pool->threads == NULL || pool->workers == NULL)
        goto no_memory;

    for (uint32_t i = 0; i < n_threads; i++) {
        pool->workers[i].pool = pool;
        pool->workers[i].index = i;
        pool->workers[i].scratch = di_cpu_map(DI_CPU_SCRATCH);
        pool->workers[i].gather = di_cpu_map(DI_CPU_GATHER);
        if (pool->workers[i].scratch == NULL
            || pool->workers[i].gather == NULL)
            goto no_memory;
    }

    rc = start_threads(pool, err);
    if (rc != DI_OK) {
        di_cpu_pool_close(pool);
        return rc;
    }
    *out = pool;
    return DI_OK;

no_memory:
    di_cpu_pool_close(pool);
    return di_err_set(err, DI_ENOMEM, 0, "no memory for %u threads",
                      n_threads);
}

void
di_cpu_pool_close(di_cpu_pool_t *pool)
{
    if (pool == NULL)
        return;

    atomic_store_explicit(&pool->stop, true, memory_order_release);
    publish(pool, 0, 0);
    for (uint32_t i = 0; i < pool->n_started; i++)
        pthread_join(pool->threads[i], NULL);
    if (pool->pin)
        (void) sched_setaffinity(0, sizeof(pool->cpus), &pool->cpus);

    for (uint32_t i = 0; pool->workers && i < pool->n_threads; i++) {
        di_cpu_unmap(pool->workers[i].scratch, DI_CPU_SCRATCH);
        di_cpu_unmap(pool->workers[i].gather, DI_CPU_GATHER);
    }
    free(pool->workers);
    free(pool->threads);
    free(pool);
}

uint32_t
di_cpu_pool_threads(const di_cpu_pool_t *pool)
{
    return pool->n_threads;
}
