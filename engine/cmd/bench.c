/*
 * bench.c - the command `bench`: prefill and decode speed of the engine.
 *
 * It goes through the scheduler, as requests do, so that sampling, KV
 * bookkeeping and events are in the figures; only the channel and nginx are
 * not.  Prefill is the time from submitting one prompt to its first token.
 * Decode counts the steps in which all `batch` sequences are decoding: each
 * is paused at its first token until the last one has its own, and the first
 * one's end ends it.  With a schema each of their texts holds it; a text that
 * is over before its tokens are ends the run as well.  Prompts are ids from a
 * fixed sequence, and the prefix cache is out of it.
 *
 * A decode step reads the weights once and each sequence's KV once; bytes
 * over time is the bandwidth to compare with the machine's own.
 */

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../di_sched.h"
#include "di_run.h"

/* One run over some sequences, filled by the scheduler's events. */
typedef struct {
    uint32_t  n;                 /* sequences                               */
    uint32_t *tokens;            /* [n] that each has generated             */
    uint64_t  tokens_all;
    uint32_t  started;           /* that have a token                       */
    uint32_t  finished;
    bool      failed;
} run_t;

typedef struct {
    const di_cmd_opts_t   *opts;
    di_model_t            *model;
    const di_model_info_t *info;
    di_vocab_t            *vocab;
    di_sched_t            *sched;
    void                  *grammar;      /* NULL: none                      */
    size_t                 grammar_bytes;
    run_t                  run;
    int32_t               *prompt;       /* ids for all sequences           */
    double                *prefill_s;    /* [repeat]                        */
    double                *step_s;       /* [repeat] a decode step          */
} bench_t;

static void
on_event(void *arg, uint32_t owner, const di_event_t *e,
         const di_top_logprob_t *top)
{
    run_t *run = arg;

    (void) owner;
    (void) top;
    if (e->type == DI_EV_TOKENS) {
        run->started += run->tokens[e->id] == 0;
        run->tokens[e->id] += e->n_tokens;
        run->tokens_all += e->n_tokens;
    } else if (e->type == DI_EV_FINISH) {
        run->finished++;
    }
    if (e->type == DI_EV_REJECT
        || (e->type == DI_EV_FINISH && e->u.finish.reason == DI_FINISH_ERROR))
        run->failed = true;
}

/* Ids that look like text to the kernels: spread over the vocabulary. */
static void
fill_prompt(bench_t *b, size_t n)
{
    uint32_t x = 12345;

    for (size_t i = 0; i < n; i++) {
        x = x * 1664525u + 1013904223u;      /* Numerical Recipes' LCG      */
        b->prompt[i] = (int32_t) ((x >> 8) % b->info->vocab);
    }
}

static int
submit(bench_t *b, uint32_t i, uint32_t n_prompt, uint32_t n_gen)
{
    di_gen_request_t req = {
        .params = {
            .top_p = 1.0f,
            .repetition_penalty = 1.0f,
            .n = 1,
            .max_tokens = n_gen,
            .flags = DI_GEN_IGNORE_EOS | DI_GEN_NO_PREFIX,
        },
        .prompt = b->prompt + (size_t) i * n_prompt,
        .n_prompt = n_prompt,
    };

    if (n_gen > 1) {             /* not of a prefill                        */
        req.grammar = b->grammar;
        req.n_grammar = (uint32_t) b->grammar_bytes;
    }
    return di_sched_submit(b->sched, 0, i, &req);
}

static int
submit_all(bench_t *b, uint32_t n, uint32_t n_prompt, uint32_t n_gen)
{
    uint32_t *tokens = b->run.tokens;

    memset(tokens, 0, n * sizeof(*tokens));
    b->run = (run_t) { .n = n, .tokens = tokens };
    for (uint32_t i = 0; i < n; i++) {
        int rc = submit(b, i, n_prompt, n_gen);

        if (rc != DI_OK)
            return rc;
    }
    return DI_OK;
}

static int
step(bench_t *b)
{
    int rc = di_sched_step(b->sched);

    return rc == DI_OK && b->run.failed ? DI_ELIMIT : rc;
}

/* Prefill until all sequences have a token, then let them go at once. */
static int
start_all(bench_t *b)
{
    while (b->run.started < b->run.n) {
        int rc = step(b);

        if (rc != DI_OK)
            return rc;
        for (uint32_t i = 0; i < b->run.n; i++) {
            if (b->run.tokens[i] > 0)
                di_sched_pause(b->sched, 0, i, true);
        }
    }
    for (uint32_t i = 0; i < b->run.n; i++)
        di_sched_pause(b->sched, 0, i, false);
    return DI_OK;
}

/* Seconds from the submission of one prompt to its first token. */
static int
run_prefill(bench_t *b, double *seconds)
{
    uint64_t start = di_cmd_now_us();
    int      rc;

    rc = submit_all(b, 1, b->opts->prompt_tokens, 1);
    if (rc == DI_OK)
        rc = start_all(b);
    *seconds = (double) (di_cmd_now_us() - start) / 1e6;
    while (rc == DI_OK && b->run.finished < b->run.n)
        rc = step(b);
    return rc;
}

/* Seconds of a step in which all sequences decode.  Two tokens more than
 * asked for: one comes with the prefill, one may before the pause holds. */
static int
run_decode(bench_t *b, double *seconds)
{
    uint64_t start, now, tokens, before;
    int      rc;

    rc = submit_all(b, b->opts->batch, b->opts->depth,
                    b->opts->gen_tokens + 2);
    if (rc == DI_OK)
        rc = start_all(b);
    start = now = di_cmd_now_us();
    tokens = before = b->run.tokens_all;
    while (rc == DI_OK && b->run.finished < b->run.n) {
        rc = step(b);
        if (b->run.finished == 0) {
            now = di_cmd_now_us();
            tokens = b->run.tokens_all;
        }
    }
    if (rc == DI_OK && tokens == before)
        return DI_EAGAIN;
    *seconds = (double) (now - start) / 1e6 * b->run.n
               / (double) (tokens - before);
    return rc;
}

static int
compare(const void *a, const void *b)
{
    double x = *(const double *) a, y = *(const double *) b;

    return (x > y) - (x < y);
}

static double
median(double *v, size_t n)
{
    qsort(v, n, sizeof(*v), compare);
    return n % 2 == 1 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

static int
measure(bench_t *b)
{
    const di_cmd_opts_t *o = b->opts;

    /* Run 0 warms up: page faults, clocks, caches. */
    for (uint32_t i = 0; i <= o->repeat; i++) {
        double prefill_s, step_s = 0;
        int    rc;

        rc = run_prefill(b, &prefill_s);
        if (rc == DI_OK)
            rc = run_decode(b, &step_s);
        if (rc != DI_OK)
            return rc;
        if (i > 0) {
            b->prefill_s[i - 1] = prefill_s;
            b->step_s[i - 1] = step_s;
        }
    }
    return DI_OK;
}

/* --------------------------------------------------------------- results -- */

static int
print_results(bench_t *b)
{
    const di_cmd_opts_t *o = b->opts;
    double   prefill = median(b->prefill_s, o->repeat);
    double   step = median(b->step_s, o->repeat);
    uint64_t kv_token = b->info->kv_token_bytes;
    uint64_t kv = kv_token * o->batch * (o->depth + o->gen_tokens / 2);
    double   bandwidth = (double) (b->info->weights_bytes + kv) / step / 1e9;
    json_t  *json;
    int      bad;

    if (!o->json) {
        (void) printf("%s, %s, %u threads: weights %.1f MB, KV %llu bytes "
                      "a token\n", b->info->name, b->info->arith,
                      b->info->n_threads,
                      (double) b->info->weights_bytes / 1e6,
                      (unsigned long long) kv_token);
        (void) printf("prefill %5u tokens           %9.1f tokens/s  "
                      "%8.2f ms\n", o->prompt_tokens,
                      o->prompt_tokens / prefill, prefill * 1e3);
        (void) printf("decode  batch %3u depth %5u  %9.1f tokens/s  "
                      "%8.3f ms a step, reads %.1f GB/s\n", o->batch,
                      o->depth, o->batch / step, step * 1e3, bandwidth);
        return fflush(stdout) == EOF ? DI_EIO : DI_OK;
    }

    json = json_pack("{s:s, s:s, s:i, s:I, s:I, s:i,"
                     " s:{s:i, s:f, s:f}, s:{s:i, s:i, s:i, s:f, s:f, s:f}}",
                     "model", b->info->name, "arith", b->info->arith,
                     "threads", (int) b->info->n_threads,
                     "weights_bytes", (json_int_t) b->info->weights_bytes,
                     "kv_bytes_per_token", (json_int_t) kv_token,
                     "repeat", (int) o->repeat,
                     "prefill", "tokens", (int) o->prompt_tokens,
                     "tokens_per_s", o->prompt_tokens / prefill,
                     "seconds", prefill,
                     "decode", "batch", (int) o->batch,
                     "depth", (int) o->depth,
                     "gen_tokens", (int) o->gen_tokens,
                     "tokens_per_s", o->batch / step, "step_seconds", step,
                     "read_gb_per_s", bandwidth);
    bad = json == NULL || json_dumpf(json, stdout, JSON_REAL_PRECISION(6))
          || putchar('\n') == EOF || fflush(stdout) == EOF;
    json_decref(json);
    return bad ? DI_EIO : DI_OK;
}

/* The end of a text is held back as long as the text can go on. */
static int
open_schema(bench_t *b, di_err_t *err)
{
    const di_gram_opts_t opts = { .limits.blob_bytes = DI_IPC_GRAMMAR_MAX };
    json_error_t         why;
    json_t              *schema;
    int                  rc;

    if (b->opts->schema == NULL)
        return DI_OK;
    schema = json_load_file(b->opts->schema, 0, &why);
    if (schema == NULL)
        return di_err_set(err, DI_EINVAL, 0, "%s: %.100s", b->opts->schema,
                          why.text);
    rc = di_cmd_compile("schema", schema, &opts, &b->grammar,
                        &b->grammar_bytes, err);
    json_decref(schema);
    if (rc == DI_OK)
        rc = di_vocab_open_path(b->opts->engine.model_path, &b->vocab, err);
    return rc;
}

static int
open_bench(bench_t *b, di_err_t *err)
{
    const di_cmd_opts_t *o = b->opts;
    di_sched_conf_t sc = {
        .max_seqs = o->engine.max_seqs,
        .max_rows = o->engine.max_rows,
        .chunk = o->engine.chunk,
        .queue_max = o->batch,
        .grammar_bytes = o->engine.grammar_bytes,
        .jumps = o->engine.jumps,
        .sink = on_event,
        .arg = &b->run,
    };
    size_t n;
    int    rc;

    rc = di_model_open(o->engine.model_path, &o->engine.model, &b->model,
                       err);
    if (rc != DI_OK)
        return rc;
    b->info = di_model_info(b->model);
    if ((uint64_t) o->prompt_tokens + 1 > b->info->max_model_len
        || (uint64_t) o->depth + o->gen_tokens + 2 > b->info->max_model_len)
        return di_err_set(err, DI_ELIMIT, 0, "prompts of %u tokens and "
                          "sequences of %u + %u + 2 don't fit the model length "
                          "%u", o->prompt_tokens, o->depth, o->gen_tokens,
                          b->info->max_model_len);

    n = (size_t) o->batch * o->depth;
    if (n < o->prompt_tokens)
        n = o->prompt_tokens;
    b->prompt = calloc(n, sizeof(*b->prompt));
    b->run.tokens = calloc(o->batch, sizeof(*b->run.tokens));
    b->prefill_s = calloc(o->repeat, sizeof(*b->prefill_s));
    b->step_s = calloc(o->repeat, sizeof(*b->step_s));
    if (b->prompt == NULL || b->run.tokens == NULL || b->prefill_s == NULL
        || b->step_s == NULL)
        return di_err_set(err, DI_ENOMEM, 0, "out of memory");
    fill_prompt(b, n);
    rc = open_schema(b, err);
    if (rc != DI_OK)
        return rc;
    sc.vocab = b->vocab;
    if (b->vocab != NULL)
        sc.n_end_ids = di_vocab_end_ids(b->vocab, &sc.end_ids);
    return di_sched_open(b->model, &sc, &b->sched, err);
}

int
di_cmd_bench(const di_cmd_opts_t *opts)
{
    bench_t  b = { .opts = opts };
    di_err_t err = { 0 };
    int      rc, status = DI_EXIT_OK;

    if (open_bench(&b, &err) != DI_OK) {
        status = di_cmd_fail(opts, DI_EXIT_FAILED, "%s", err.text);
        goto done;
    }
    rc = measure(&b);
    if (rc == DI_OK)
        rc = print_results(&b);
    if (rc == DI_EAGAIN)
        status = di_cmd_fail(opts, DI_EXIT_FAILED, "--gen-tokens %u is too "
                             "few to measure", opts->gen_tokens);
    else if (rc == DI_ELIMIT)
        status = di_cmd_fail(opts, DI_EXIT_FAILED, "a sequence was refused: "
                             "more --kv-memory is needed");
    else if (rc != DI_OK)
        status = di_cmd_fail(opts, DI_EXIT_FAILED, "the engine stopped");

done:
    if (b.sched != NULL)
        di_sched_close(b.sched);
    di_vocab_close(b.vocab);
    di_model_close(b.model);
    free(b.grammar);
    free(b.prompt);
    free(b.run.tokens);
    free(b.prefill_s);
    free(b.step_s);
    return status;
}
