/*
 * sched.c - what a step costs besides the model: planning, sampling,
 * delivery, on one thread, over a model that does nothing.
 *
 * usage: sched [SEQUENCES [VOCABULARY]]   prints microseconds per step
 *
 * "scheduler" is a step without sampling; sampling is given per row.  A real
 * engine spreads the rows over its threads.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/di_sched.h"

#define STEPS     400
#define N_PROMPT  128

typedef struct {
    float   *logits;             /* [max_logits][vocab]                     */
    bool     samples;            /* host calls are made, or tokens stay 0   */
    uint64_t n_events;
} bench_t;


static double
now_us(void)
{
    struct timespec t;

    (void) clock_gettime(CLOCK_MONOTONIC, &t);
    return (double) t.tv_sec * 1e6 + (double) t.tv_nsec / 1e3;
}


static int
step(void *ctx, const di_model_seq_t *seqs, size_t n)
{
    (void) ctx;
    (void) seqs;
    (void) n;
    return DI_OK;
}


static void
host_call(void *ctx, void (*fn)(void *arg, size_t part), void *arg, size_t n)
{
    bench_t *b = ctx;
    size_t   i;

    for (i = 0; i < n && b->samples; i++)
        fn(arg, i);
}


static int
wait_step(void *ctx, const float **logits)
{
    *logits = ((bench_t *) ctx)->logits;
    return DI_OK;
}


static const float *
logits_of(void *ctx)
{
    return ((bench_t *) ctx)->logits;
}


static void
kv_copy(void *ctx, uint32_t dst, uint32_t src, uint32_t n)
{
    (void) ctx;
    (void) dst;
    (void) src;
    (void) n;
}


static void
sink(void *arg, uint32_t owner, const di_event_t *e,
     const di_top_logprob_t *top)
{
    (void) owner;
    (void) e;
    (void) top;
    ((bench_t *) arg)->n_events++;
}


static int
by_value(const void *a, const void *b)
{
    double x = *(const double *) a, y = *(const double *) b;

    return x < y ? -1 : x > y;
}


/* Median of a decode step of n sequences. */
static double
time_steps(bench_t *b, uint32_t n, uint32_t vocab,
           const di_gen_params_t *params)
{
    static int32_t   prompt[N_PROMPT];
    double           us[STEPS], start;
    di_sched_t      *s = NULL;
    di_sched_model_t m = {
        .ctx = b, .vocab = vocab, .max_model_len = 4096,
        .kv_blocks = n * 64, .max_logits = n, .step = step,
        .host_call = host_call, .wait = wait_step, .logits = logits_of,
        .kv_copy = kv_copy,
    };
    di_sched_conf_t  conf = {
        .max_seqs = n, .max_rows = n * N_PROMPT, .chunk = n * N_PROMPT,
        .queue_max = n, .prefix_cache = true, .sink = sink, .arg = b,
    };
    di_gen_request_t r = { .params = *params, .prompt = prompt,
                           .n_prompt = N_PROMPT };
    uint32_t         i;

    if (di_sched_open_on(&m, &conf, &s, NULL) != DI_OK)
        exit(1);
    for (i = 0; i < n; i++) {
        prompt[0] = (int32_t) i;
        if (di_sched_submit(s, i % 4, i, &r) != DI_OK)
            exit(1);
    }
    for (i = 0; i < 4; i++)
        (void) di_sched_step(s);
    for (i = 0; i < STEPS; i++) {
        start = now_us();
        (void) di_sched_step(s);
        us[i] = now_us() - start;
    }
    di_sched_close(s);
    qsort(us, STEPS, sizeof(us[0]), by_value);
    return us[STEPS / 2];
}


int
main(int argc, char **argv)
{
    uint32_t        n = argc > 1 ? (uint32_t) atoi(argv[1]) : 32;
    uint32_t        vocab = argc > 2 ? (uint32_t) atoi(argv[2]) : 49152;
    bench_t         b = { 0 };
    di_gen_params_t p = { .top_p = 1, .repetition_penalty = 1, .n = 1,
                          .flags = DI_GEN_IGNORE_EOS };
    double          bare;
    size_t          i;

    if (n < 1 || n > 1024 || vocab < 2048)
        return 1;
    b.logits = malloc((size_t) n * vocab * sizeof(float));
    if (b.logits == NULL)
        return 1;
    for (i = 0; i < (size_t) n * vocab; i++)     /* a few stand out         */
        b.logits[i] = (float) (rand() % 4000 + rand() % 4000) / 1000.0f
                      + (rand() % 1000 == 0 ? (float) (rand() % 8) : 0);

    bare = time_steps(&b, n, vocab, &p);
    printf("step of %u sequences: scheduler %.1f us\n", n, bare);
    b.samples = true;
    printf("sampling a row of %u: greedy %.1f us", vocab,
           (time_steps(&b, n, vocab, &p) - bare) / n);
    p.temperature = 0.8f;
    printf(", temperature %.1f us", (time_steps(&b, n, vocab, &p) - bare)
                                    / n);
    p.top_p = 0.9f;
    p.top_k = 40;
    printf(", top-p and top-k %.1f us",
           (time_steps(&b, n, vocab, &p) - bare) / n);
    p.temperature = 0;
    p.repetition_penalty = 1.1f;
    printf(", repetition penalty %.1f us",
           (time_steps(&b, n, vocab, &p) - bare) / n);
    p.repetition_penalty = 1;
    p.flags |= DI_GEN_LOGPROBS;
    p.top_logprobs = 5;
    printf(", 5 logprobs %.1f us\n",
           (time_steps(&b, n, vocab, &p) - bare) / n);
    free(b.logits);
    return 0;
}
