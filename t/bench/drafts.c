/*
 * drafts.c - what a model's drafts give: how many stay, and tokens a second
 * with and without them, by temperature and by the way they are drawn.
 *
 * usage: drafts MODEL PROMPTS.json [BATCH [TOP_P]]
 *
 * PROMPTS.json has {"long": {"ids": [...]}}, as the goldens of tiny-v41 do;
 * prompts are pieces of that text.  One thread; tokens a second are of its CPU
 * time, so that others on the machine change little.  Runs take turns.
 */

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/di_sched.h"
#include "cpu_time.h"

#define PROMPT   96              /* tokens                                  */
#define STRIDE   50              /* from one prompt to the next             */
#define PROMPTS  12
#define GEN      48              /* tokens of an answer                     */
#define ROUNDS   3
#define WAYS     5

static const struct {
    const char      *name;
    di_drafts_mode_t drafts;
    bool             seeded;
} ways[WAYS] = {
    { "none", DI_DRAFTS_OFF, true },
    { "seed, all", DI_DRAFTS_ALL, true },
    { "seed, auto", DI_DRAFTS_AUTO, true },
    { "no seed, all", DI_DRAFTS_ALL, false },
    { "no seed, auto", DI_DRAFTS_AUTO, false },
};

typedef struct {
    double   tokens_per_s[ROUNDS];
    uint64_t verified, accepted, steps, tokens;
} result_t;

static int32_t  prompts[PROMPTS][PROMPT];
static uint64_t n_tokens;


static void
sink(void *arg, uint32_t owner, const di_event_t *e,
     const di_top_logprob_t *top)
{
    (void) arg;
    (void) owner;
    (void) top;
    if (e->type == DI_EV_TOKENS)
        n_tokens += e->n_tokens;
}


static void
submit(di_sched_t *s, uint32_t i, float temperature, float top_p, bool seeded,
       uint32_t round)
{
    di_gen_request_t r = {
        .prompt = prompts[i], .n_prompt = PROMPT,
        .params = { .max_tokens = GEN, .n = 1, .top_p = top_p,
                    .temperature = temperature, .repetition_penalty = 1,
                    .seed = 1000 * round + i,
                    .flags = DI_GEN_IGNORE_EOS | DI_GEN_NO_PREFIX
                             | (seeded ? 0 : DI_GEN_UNSEEDED) } };

    if (di_sched_submit(s, 0, i, &r) != DI_OK)
        exit(1);
}


/* All prompts, `batch` at a time. */
static void
run(di_model_t *m, uint32_t batch, float temperature, float top_p, int way,
    uint32_t round, result_t *out)
{
    di_sched_conf_t conf = {
        .max_seqs = batch, .max_rows = 256, .chunk = 256,
        .queue_max = PROMPTS, .drafts = ways[way].drafts, .sink = sink,
    };
    di_ipc_status_t st;
    di_sched_t     *s = NULL;
    uint64_t        verified, accepted;
    double          start;

    if (di_sched_open(m, &conf, &s, NULL) != DI_OK)
        exit(1);
    n_tokens = 0;
    start = cpu_s();
    for (uint32_t i = 0; i < PROMPTS; i++)
        submit(s, i, temperature, top_p, ways[way].seeded, round);
    while (!di_sched_idle(s)) {
        if (di_sched_step(s) != DI_OK)
            exit(1);
    }
    out->tokens_per_s[round] = (double) n_tokens / (cpu_s() - start);
    di_sched_drafts(s, &verified, &accepted);
    di_sched_status(s, &st);
    out->verified += verified;
    out->accepted += accepted;
    out->steps += st.steps;
    out->tokens += n_tokens;
    di_sched_close(s);
}


static int
by_value(const void *a, const void *b)
{
    double x = *(const double *) a, y = *(const double *) b;

    return (x > y) - (x < y);
}


static void
print(float temperature, int way, result_t *r)
{
    qsort(r->tokens_per_s, ROUNDS, sizeof(double), by_value);
    printf("T %.1f  %-13s %7.1f tokens/s", (double) temperature,
           ways[way].name, r->tokens_per_s[ROUNDS / 2]);
    if (r->verified > 0)
        printf("  %.3f of %llu drafts stay", (double) r->accepted
               / (double) r->verified, (unsigned long long) r->verified);
    printf("  %.2f tokens a step\n", (double) r->tokens / (double) r->steps);
}


static void
read_prompts(const char *path)
{
    json_t *ids = json_object_get(json_object_get(json_load_file(path, 0,
                                                                 NULL),
                                                  "long"), "ids");

    for (int i = 0; i < PROMPTS; i++) {
        for (int k = 0; k < PROMPT; k++)
            prompts[i][k] = (int32_t) json_integer_value(
                json_array_get(ids, (size_t) (i * STRIDE + k)));
    }
}


int
main(int argc, char **argv)
{
    static const float temperatures[] = { 0, 0.6f, 1 };
    uint32_t           batch = argc > 3 ? (uint32_t) atoi(argv[3]) : 1;
    float              top_p = argc > 4 ? (float) atof(argv[4]) : 1;
    di_model_conf_t    conf = {
        .n_threads = 1, .max_rows = 256, .max_seqs = batch,
        .max_model_len = PROMPT + GEN, .kv_bytes = 64u << 20,
    };
    di_model_t        *m = NULL;
    di_err_t           err = { 0 };

    if (argc < 3 || di_model_open(argv[1], &conf, &m, &err) != DI_OK) {
        (void) fprintf(stderr, "drafts: %s\n", argc < 3 ? "MODEL PROMPTS.json"
                                                        : err.text);
        return 1;
    }
    read_prompts(argv[2]);
    for (int t = 0; t < 3; t++) {
        result_t results[WAYS] = { 0 };

        for (uint32_t round = 0; round < ROUNDS; round++) {
            for (int way = 0; way < WAYS; way++)
                run(m, batch, temperatures[t], top_p, way, round,
                    &results[way]);
        }
        for (int way = 0; way < WAYS; way++)
            print(temperatures[t], way, &results[way]);
        (void) fflush(stdout);
    }
    di_model_close(m);
    return 0;
}
