/*
 * sched_draws.c - drafts change nothing of what is drawn, counted.
 *
 * The model is a table: the last two tokens say how likely the next one is.
 * Its drafter knows the table a little wrong.  Answers of a hundred thousand
 * seeds with drafts and as many of others without are counted, by their last
 * two tokens; chi-square says whether both may come from one distribution,
 * and whether each comes from the table's, which is multiplied out.
 */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "engine/di_sched.h"

#define VOCAB   12
#define DRAFTS  3
#define GEN     4                /* tokens of an answer                     */
#define PAIRS   (VOCAB * VOCAB)
#define ANSWERS 100000
#define BATCH   50
#define CHI_MAX 240              /* 143 degrees of freedom: one in 10^6     */

static float    table[VOCAB][VOCAB][VOCAB];      /* logits                  */
static float    logits[BATCH * (1 + DRAFTS) * VOCAB];
static int32_t  seen[BATCH * 8 + 2][16];         /* tokens, by first block  */
static int32_t  answers[BATCH][GEN];
static uint32_t n_tokens[BATCH];

static const int32_t prompt[] = { 5, 7 };

static float
noise(uint32_t *x)
{
    *x = *x * 1664525u + 1013904223u;            /* Numerical Recipes' LCG  */
    return (float) (*x >> 8) / (float) (1 << 24);
}

static void
make_table(void)
{
    uint32_t x = 1;

    for (int a = 0; a < VOCAB; a++) {
        for (int b = 0; b < VOCAB; b++) {
            for (int c = 0; c < VOCAB; c++)
                table[a][b][c] = 3 * noise(&x);
        }
    }
}

/* ----------------------------------------------------------------- model -- */

static int
step(void *ctx, const di_model_seq_t *seqs, size_t n_seqs)
{
    float *row = logits;

    (void) ctx;
    for (size_t i = 0; i < n_seqs; i++) {
        const di_model_seq_t *q = &seqs[i];
        int32_t              *tokens = seen[q->blocks[0]];

        for (uint32_t r = 0; r < q->n_rows; r++) {
            uint32_t pos = q->pos + r;

            tokens[pos] = q->tokens[r];
            if (r < q->n_rows - q->n_logits)
                continue;
            memcpy(row, table[tokens[pos - 1]][tokens[pos]],
                   VOCAB * sizeof(float));
            row += VOCAB;
        }
    }
    return DI_OK;
}

static void
host_call(void *ctx, void (*fn)(void *arg, size_t part), void *arg,
          size_t n_parts)
{
    (void) ctx;
    for (size_t i = 0; i < n_parts; i++)
        fn(arg, i);
}

static int
wait_step(void *ctx, const float **rows)
{
    (void) ctx;
    *rows = logits;
    return DI_OK;
}

static const float *
logits_of(void *ctx)
{
    (void) ctx;
    return logits;
}

static void
kv_copy(void *ctx, uint32_t dst, uint32_t src, uint32_t n)
{
    (void) ctx;
    (void) n;
    memcpy(seen[dst], seen[src], sizeof(seen[src]));
}

/* The likeliest after the token, whatever was before it. */
static int
draft(void *ctx, const di_model_draft_t *seqs, size_t n_seqs, int32_t *drafts,
      float *confidence)
{
    (void) ctx;
    for (size_t i = 0; i < n_seqs; i++) {
        int32_t token = seqs[i].token;

        for (uint32_t d = 0; d < DRAFTS; d++) {
            const float *x = table[0][token];
            int32_t      best = 0;

            for (int k = 1; k < VOCAB; k++)
                best = x[k] > x[best] ? k : best;
            token = drafts[i * DRAFTS + d] = best;
            confidence[i * DRAFTS + d] = 0.5f;
        }
    }
    return DI_OK;
}

/* --------------------------------------------------------------- answers -- */

static void
sink(void *arg, uint32_t owner, const di_event_t *e,
     const di_top_logprob_t *top)
{
    (void) arg;
    (void) owner;
    (void) top;
    if (e->type != DI_EV_TOKENS)
        return;
    for (uint32_t i = 0; i < e->n_tokens && n_tokens[e->id] < GEN; i++)
        answers[e->id][n_tokens[e->id]++] = e->u.tokens[i];
}

static di_sched_t *
open_sched(bool drafts)
{
    di_sched_model_t m = {
        .vocab = VOCAB, .max_model_len = 8, .kv_blocks = BATCH * 8,
        .block_tokens = 16, .max_logits = BATCH * (1 + DRAFTS),
        .n_drafts = DRAFTS, .step = step, .host_call = host_call,
        .wait = wait_step, .logits = logits_of, .kv_copy = kv_copy,
        .draft = draft,
    };
    di_sched_conf_t conf = {
        .max_seqs = BATCH, .max_rows = BATCH * (1 + DRAFTS), .chunk = BATCH,
        .queue_max = BATCH, .drafts = drafts, .sink = sink,
    };
    di_sched_t *s = NULL;
    di_err_t    err = { 0 };

    CHECK_EQ_INT(di_sched_open_on(&m, &conf, &s, &err), DI_OK);
    CHECK_EQ_STR(err.text, "");
    if (s == NULL)
        exit(1);
    return s;
}

/* Count the last two tokens of answers of ANSWERS seeds from first_seed on. */
static void
count(bool drafts, uint64_t first_seed, uint32_t counts[PAIRS])
{
    di_sched_t *s = open_sched(drafts);
    uint64_t    verified, accepted;

    memset(counts, 0, PAIRS * sizeof(*counts));
    for (uint32_t at = 0; at < ANSWERS; at += BATCH) {
        memset(n_tokens, 0, sizeof(n_tokens));
        for (uint32_t i = 0; i < BATCH; i++) {
            di_gen_request_t r = {
                .prompt = prompt, .n_prompt = 2,
                .params = { .max_tokens = GEN, .n = 1, .top_p = 1,
                            .temperature = 1, .repetition_penalty = 1,
                            .seed = first_seed + at + i } };

            CHECK_EQ_INT(di_sched_submit(s, 0, i, &r), DI_OK);
        }
        while (!di_sched_idle(s))
            CHECK_EQ_INT(di_sched_step(s), DI_OK);
        for (uint32_t i = 0; i < BATCH; i++) {
            CHECK_EQ_INT(n_tokens[i], GEN);
            counts[answers[i][GEN - 2] * VOCAB + answers[i][GEN - 1]]++;
        }
    }
    di_sched_drafts(s, &verified, &accepted);
    CHECK((verified > 0) == drafts);
    if (drafts)
        CHECK(accepted * 20 > verified && accepted * 2 < verified);
    di_sched_close(s);
}

/* ------------------------------------------------------------ chi-square -- */

static double
chi_two(const uint32_t *a, const uint32_t *b)
{
    double chi = 0;

    for (int i = 0; i < PAIRS; i++) {
        double d = (double) a[i] - (double) b[i];

        if (a[i] + b[i] > 0)
            chi += d * d / (a[i] + b[i]);
    }
    return chi;
}

static void
probabilities(const float *x, double *p)
{
    double sum = 0;

    for (int i = 0; i < VOCAB; i++)
        sum += p[i] = exp(x[i]);
    for (int i = 0; i < VOCAB; i++)
        p[i] /= sum;
}

/* How likely each pair of last tokens is, from all answers of GEN. */
static void
expect(double p[PAIRS])
{
    double now[PAIRS] = { 0 };

    now[prompt[0] * VOCAB + prompt[1]] = 1;
    for (int t = 0; t < GEN; t++) {
        memset(p, 0, PAIRS * sizeof(*p));
        for (int i = 0; i < PAIRS; i++) {
            double next[VOCAB];

            probabilities(table[i / VOCAB][i % VOCAB], next);
            for (int k = 0; k < VOCAB; k++)
                p[i % VOCAB * VOCAB + k] += now[i] * next[k];
        }
        memcpy(now, p, sizeof(now));
    }
}

static double
chi_one(const uint32_t *a, const double *p)
{
    double chi = 0;

    for (int i = 0; i < PAIRS; i++) {
        double d = a[i] - ANSWERS * p[i];

        chi += d * d / (ANSWERS * p[i]);
    }
    return chi;
}

int
main(void)
{
    static uint32_t with[PAIRS], without[PAIRS];
    double          p[PAIRS];

    make_table();
    expect(p);
    count(true, 0, with);
    count(false, ANSWERS, without);
    printf("chi-square: with drafts and without %.1f, with %.1f, without "
           "%.1f\n", chi_two(with, without), chi_one(with, p),
           chi_one(without, p));
    CHECK(chi_two(with, without) < CHI_MAX);
    CHECK(chi_one(with, p) < CHI_MAX);
    CHECK(chi_one(without, p) < CHI_MAX);
    return check_done("sched_draws");
}
