/*
 * sampler_drafts.c - drafts in the sampler: the rule by which they stay or are
 * replaced on distributions made by hand, then rows of a model and a drafter
 * under every parameter, counted; and how often drafts of a seed are what is
 * drawn.
 *
 * Each case is drawn many times; chi-square compares what came with the
 * model's distribution, multiplied out here.  Seeds are fixed: a case passes
 * always or never.
 */

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "check.h"
#include "engine/di_sampler.h"
#include "rnd.h"

#define N      12
#define WIDE   9001              /* two-level draws                         */
#define DRAWS  100000
#define FEWER  10000             /* of wide rows                            */

static uint32_t draws = DRAWS;   /* of the case                             */

/* Of n counts against probabilities; what should never come must not. */
static double
chi_square(const uint32_t *counts, const double *p, uint32_t n, uint32_t *df)
{
    double chi = 0, rare = 0, d;
    double n_rare = 0;

    *df = 0;
    for (uint32_t i = 0; i < n; i++) {
        CHECK(p[i] > 0 || counts[i] == 0);
        if (p[i] * draws < 10) { /* together, where they are few            */
            rare += p[i] * draws;
            n_rare += counts[i];
            continue;
        }
        d = counts[i] - p[i] * draws;
        chi += d * d / (p[i] * draws);
        (*df)++;
    }
    if (rare > 10) {
        chi += (n_rare - rare) * (n_rare - rare) / rare;
        (*df)++;
    }
    return chi;
}

/* One in about 10^6 is beyond. */
static void
check_counts(const char *name, const uint32_t *counts, const double *p,
             uint32_t n)
{
    uint32_t df;
    double   chi = chi_square(counts, p, n, &df), max = 25;

    if (df > 1)
        max = df - 1 + 5 * sqrt(2.0 * (df - 1)) + 12;
    if (chi > max)
        printf("%s: chi-square %.1f of %u\n", name, chi, df);
    CHECK(chi <= max);
}

/* So many of the draws, if each has this chance; within 5 deviations. */
static void
check_share(const char *name, uint32_t n, double chance)
{
    double off = fabs(n - chance * draws);

    if (off > 5 * sqrt(chance * (1 - chance) * draws) + 1)
        printf("%s: %u stayed, not %.0f\n", name, n, chance * draws);
    CHECK(off <= 5 * sqrt(chance * (1 - chance) * draws) + 1);
}

/* ------------------------------------------------------ the rule by hand -- */

typedef struct {
    const char *name;
    double      p[N], q[N];      /* shares, of any sum                      */
} case_t;

static const case_t cases[] = {
    { "alike", { 5, 4, 3, 2, 1, 1, 1 }, { 5, 4, 3, 2, 1, 1, 1 } },
    { "near", { 5, 4, 3, 2, 1, 1, 1 }, { 4, 5, 2, 3, 1, 1, 2 } },
    { "reversed", { 1, 2, 4, 8, 16, 32 }, { 32, 16, 8, 4, 2, 1 } },
    { "zeros in p", { 0, 3, 0, 2, 0, 1 }, { 1, 1, 1, 1, 1, 1 } },
    { "zeros in q", { 1, 1, 1, 1, 1, 1 }, { 0, 3, 0, 2, 0, 1 } },
    { "nothing common", { 1, 2, 3, 0, 0, 0 }, { 0, 0, 0, 1, 2, 3 } },
    { "one id of p", { 0, 0, 1 }, { 1, 2, 3, 4 } },
    { "one id of q", { 1, 2, 3, 4 }, { 0, 0, 1 } },
    { "the same one", { 0, 1 }, { 0, 1 } },
    { "light ones", { 1000, 1, 0.5, 0.2, 300, 0.01 },
      { 900, 3, 0.1, 0.4, 400, 0.02 } },
};

static void
normalise(double *p, uint32_t n)
{
    double sum = 0;

    for (uint32_t i = 0; i < n; i++)
        sum += p[i];
    for (uint32_t i = 0; i < n; i++)
        p[i] /= sum;
}

static int32_t
draw(const double *q, uint32_t n)
{
    double  u = rnd32() / 4294967296.0;
    int32_t last = 0;

    for (uint32_t i = 0; i < n; i++) {
        if (q[i] == 0)
            continue;
        last = (int32_t) i;
        if (u < q[i])
            break;
        u -= q[i];
    }
    return last;
}

static di_sampler_from_t
from_shares(const double *q, uint32_t n)
{
    di_sampler_from_t from = { .n = 0 };

    for (uint32_t i = 0; i < n; i++) {
        if (q[i] == 0)
            continue;
        from.ids[from.n] = (int32_t) i;
        from.p[from.n++] = (float) q[i];
    }
    return from;
}

static di_gen_params_t
plain_params(void)
{
    return (di_gen_params_t) { .temperature = 1, .top_p = 1,
                               .repetition_penalty = 1, .n = 1 };
}

/* With p as all ids, and as those that a filter kept. */
static void
test_rule(const case_t *c, int32_t top_k)
{
    double            p[N], q[N], chance = 0;
    float             x[N];
    uint32_t          counts[N] = { 0 }, n_same = 0;
    di_gen_params_t   params = plain_params();
    di_sampler_from_t from;
    di_sample_in_t    in = { .params = &params, .from = &from };
    di_sample_out_t   out;
    di_sampler_t     *s = NULL;

    memcpy(p, c->p, sizeof(p));
    memcpy(q, c->q, sizeof(q));
    normalise(p, N);
    normalise(q, N);
    from = from_shares(q, N);
    params.top_k = top_k;
    for (int i = 0; i < N; i++) {
        x[i] = p[i] > 0 ? (float) log(p[i]) : -INFINITY;
        chance += fmin(p[i], q[i]);
    }
    CHECK_EQ_INT(di_sampler_open(N, &s, NULL), DI_OK);
    for (uint32_t i = 0; i < draws; i++) {
        in.draft = draw(q, N);
        in.seed = i % 7;
        in.n_tokens = i;
        CHECK_EQ_INT(di_sampler_row(s, x, &in, &out), DI_OK);
        counts[out.token]++;
        n_same += out.token == in.draft;
    }
    check_counts(c->name, counts, p, N);
    check_share(c->name, n_same, chance);
    di_sampler_close(s);
}

/* Of a draft whose q is twice its p nothing is left to replace it by, for all
 * other ids are as likely in both: it is replaced by what p has. */
static void
test_nothing_left(int32_t top_k)
{
    double            p[N] = { 0.4, 0.3, 0, 0.2, 0.1 };
    di_sampler_from_t from = from_shares(p, N);
    float             x[N];
    uint32_t          n_same = 0;
    di_gen_params_t   params = plain_params();
    di_sample_in_t    in = { .params = &params, .from = &from, .draft = 1 };
    di_sample_out_t   out;
    di_sampler_t     *s = NULL;

    for (int i = 0; i < N; i++)
        x[i] = p[i] > 0 ? (float) log(p[i]) : -INFINITY;
    from.p[1] *= 2;
    params.top_k = top_k;
    CHECK_EQ_INT(di_sampler_open(N, &s, NULL), DI_OK);
    for (in.n_tokens = 0; in.n_tokens < draws; in.n_tokens++) {
        CHECK_EQ_INT(di_sampler_row(s, x, &in, &out), DI_OK);
        CHECK(p[out.token] > 0);
        n_same += out.token == 1;
    }
    check_share("nothing left", n_same, 0.5 + 0.5 * 0.3);
    di_sampler_close(s);
}

/* --------------------------------------------- a model's and a drafter's -- */

typedef struct {
    const char     *name;
    uint32_t        vocab;
    bool            masked;      /* every third id may not be drawn         */
    di_gen_params_t params;
} setting_t;

#define PLAIN .top_p = 1, .repetition_penalty = 1, .n = 1

static const setting_t settings[] = {
    { "all ids", 300, false, { .temperature = 1, PLAIN } },
    { "hot", 300, false, { .temperature = 1.7f, PLAIN } },
    { "cold", 300, false, { .temperature = 0.4f, PLAIN } },
    { "top-p", 300, false, { .temperature = 1, .top_p = 0.7f,
                             .repetition_penalty = 1, .n = 1 } },
    { "top-k", 300, false, { .temperature = 1, .top_k = 9, PLAIN } },
    { "min-p", 300, false, { .temperature = 1, .min_p = 0.01f, PLAIN } },
    { "all filters", 300, false, { .temperature = 0.8f, .top_p = 0.8f,
                                   .top_k = 12, .min_p = 0.02f,
                                   .repetition_penalty = 1, .n = 1 } },
    { "penalties", 300, false, { .temperature = 1, .top_p = 1, .n = 1,
                                 .repetition_penalty = 1.3f,
                                 .presence_penalty = 0.5f,
                                 .frequency_penalty = 0.3f } },
    { "grammar", 300, true, { .temperature = 1, PLAIN } },
    { "grammar, top-p", 300, true, { .temperature = 1, .top_p = 0.7f,
                                     .repetition_penalty = 1, .n = 1 } },
    { "two levels", WIDE, false, { .temperature = 1, PLAIN } },
    { "two levels, top-p", WIDE, false, { .temperature = 1, .top_p = 0.9f,
                                          .repetition_penalty = 1, .n = 1 } },
    { "flat", WIDE, false, { .temperature = 100, PLAIN } },
};

static const int32_t tokens[] = { 7, 7, 8, 250, 8, 9 };
static uint64_t      mask[(WIDE + 63) / 64];
static float         model_x[WIDE], drafter_x[WIDE];

/* Few likely ids and a long tail; the drafter's row is much like it. */
static void
make_rows(uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        double u = (rnd32() + 0.5) / 4294967296.0;
        double v = rnd32() / 4294967296.0;

        model_x[i] = (float) (-1.3 * log(u));
        drafter_x[i] = model_x[i] + (float) (1.5 * (v - 0.5));
    }
}

static const float *sort_x;

static int
by_logit(const void *a, const void *b)
{
    uint32_t i = *(const uint32_t *) a, j = *(const uint32_t *) b;

    if (sort_x[i] != sort_x[j])
        return sort_x[i] < sort_x[j] ? 1 : -1;
    return i < j ? -1 : 1;
}

/* What a row should give under the parameters. */
static void
multiply_out(const setting_t *t, const float *row, bool masked, double *p)
{
    static float           x[WIDE];
    static uint32_t        order[WIDE];
    static double          e[WIDE];
    const di_gen_params_t *g = &t->params;
    double                 sum = 0, before = 0;
    uint32_t               n_of[WIDE] = { 0 };

    memcpy(x, row, t->vocab * sizeof(float));
    for (uint32_t i = 0; i < 6; i++)
        n_of[tokens[i]]++;
    for (uint32_t i = 0; i < t->vocab; i++) {
        if (n_of[i] > 0 && g->repetition_penalty != 1)
            x[i] = x[i] > 0 ? x[i] / g->repetition_penalty
                            : x[i] * g->repetition_penalty;
    }
    memset(n_of, 0, sizeof(n_of));
    for (uint32_t i = 2; i < 6; i++)     /* generated                       */
        n_of[tokens[i]]++;
    for (uint32_t i = 0; i < t->vocab; i++) {
        if (n_of[i] > 0)
            x[i] -= g->presence_penalty
                    + g->frequency_penalty * (float) n_of[i];
        if (masked && (mask[i / 64] >> i % 64 & 1) == 0)
            x[i] = -INFINITY;
        order[i] = i;
    }
    sort_x = x;
    qsort(order, t->vocab, sizeof(order[0]), by_logit);
    for (uint32_t i = 0; i < t->vocab; i++) {
        e[i] = exp(((double) x[i] - (double) x[order[0]])
                   / (double) g->temperature);
        sum += e[i];
        p[i] = 0;
    }
    for (uint32_t r = 0; r < t->vocab; r++) {
        uint32_t i = order[r];

        if ((g->top_k > 0 && r >= (uint32_t) g->top_k)
            || (g->top_p < 1 && before > (double) g->top_p * sum)
            || e[i] < (double) g->min_p)
            break;
        before += e[i];
        p[i] = e[i];
    }
    normalise(p, t->vocab);
}

static di_sample_in_t
sample_in(const setting_t *t, uint32_t i)
{
    return (di_sample_in_t) {
        .params = &t->params, .tokens = tokens, .n_prompt = 2, .n_tokens = 6,
        .seed = i };
}

static void
let_in(di_sample_in_t *in, const setting_t *t)
{
    if (!t->masked)
        return;
    in->mask = mask;
    in->n_mask_words = (t->vocab + 63) / 64;
}

/* Drafts drawn with numbers of their own stay or are replaced; what comes has
 * the model's distribution, and more stay than are drawn alike by chance. */
static void
test_rejected(const setting_t *t, di_sampler_t *s, const double *p)
{
    static uint32_t   counts[WIDE], drafted[WIDE];
    di_sampler_from_t from;
    di_sample_out_t   out;
    uint32_t          n_same = 0;
    double            q[WIDE] = { 0 }, sum = 0, chance = 0;

    memset(counts, 0, sizeof(counts));
    memset(drafted, 0, sizeof(drafted));
    for (uint32_t i = 0; i < draws; i++) {
        di_sample_in_t in = sample_in(t, i);
        int32_t        draft;

        CHECK_EQ_INT(di_sampler_draft(s, drafter_x, &in, &from, &draft),
                     DI_OK);
        drafted[draft]++;
        let_in(&in, t);
        in.draft = draft;
        in.from = &from;
        CHECK_EQ_INT(di_sampler_row(s, model_x, &in, &out), DI_OK);
        counts[out.token]++;
        n_same += out.token == draft;
    }
    for (uint32_t i = 0; i < from.n; i++) {
        CHECK(i == 0 || from.ids[i] > from.ids[i - 1]);
        q[from.ids[i]] = (double) from.p[i];
        sum += (double) from.p[i];
    }
    for (uint32_t i = 0; i < t->vocab; i++)
        chance += fmin(p[i], q[i]);
    CHECK(from.n <= DI_SAMPLER_FROM_MAX && fabs(sum - 1) < 1e-5);
    check_counts(t->name, drafted, q, t->vocab);
    check_counts(t->name, counts, p, t->vocab);
    check_share(t->name, n_same, chance);
    printf("%-18s rejected %.3f", t->name, (double) n_same / draws);
}

/* Drawn with the same numbers: the model's token is what it is without a
 * draft, has the model's distribution, and is the draft often enough. */
static void
test_coupled(const setting_t *t, di_sampler_t *s, const double *p,
             const double *q)
{
    static uint32_t counts[WIDE], drafted[WIDE];
    di_sample_out_t out;
    uint32_t        n_same = 0;
    double          apart = 0;

    memset(counts, 0, sizeof(counts));
    memset(drafted, 0, sizeof(drafted));
    for (uint32_t i = 0; i < draws; i++) {
        di_sample_in_t in = sample_in(t, i);
        int32_t        draft;

        CHECK_EQ_INT(di_sampler_draft(s, drafter_x, &in, NULL, &draft),
                     DI_OK);
        drafted[draft]++;
        let_in(&in, t);
        CHECK_EQ_INT(di_sampler_row(s, model_x, &in, &out), DI_OK);
        counts[out.token]++;
        n_same += out.token == draft;
    }
    for (uint32_t i = 0; i < t->vocab; i++)
        apart += fabs(p[i] - q[i]) / 2;
    check_counts(t->name, drafted, q, t->vocab);
    check_counts(t->name, counts, p, t->vocab);
    printf(", coupled %.3f, at least %.3f\n", (double) n_same / draws,
           (1 - apart) / (1 + apart));
    /* But for light ids, and the luck of a few deviations. */
    if (strcmp(t->name, "flat") != 0)
        CHECK((double) n_same / draws > (1 - apart) / (1 + apart) - 0.03);
}

static void
test_setting(const setting_t *t)
{
    static double p[WIDE], q[WIDE];
    di_sampler_t *s = NULL;

    draws = t->vocab == WIDE ? FEWER : DRAWS;
    CHECK_EQ_INT(di_sampler_open(t->vocab, &s, NULL), DI_OK);
    make_rows(t->vocab);
    multiply_out(t, model_x, t->masked, p);
    multiply_out(t, drafter_x, false, q);
    test_rejected(t, s, p);
    test_coupled(t, s, p, q);
    di_sampler_close(s);
}

/* Greedy drafts are the likeliest ids whichever way they are asked for, and a
 * drafter's bad row gives none. */
static void
test_greedy(void)
{
    di_gen_params_t   params = plain_params();
    di_sample_in_t    in = { .params = &params };
    di_sampler_from_t from = { .n = 0 };
    di_sampler_t     *s = NULL;
    float             x[N] = { 1, 2, 9, 3, 9 };
    int32_t           token = -1;

    params.temperature = 0;
    CHECK_EQ_INT(di_sampler_open(N, &s, NULL), DI_OK);
    CHECK_EQ_INT(di_sampler_draft(s, x, &in, &from, &token), DI_OK);
    CHECK_EQ_INT(token, 2);
    CHECK_EQ_INT(from.n, 0);
    CHECK_EQ_INT(di_sampler_draft(s, x, &in, NULL, &token), DI_OK);
    CHECK_EQ_INT(token, 2);
    x[5] = NAN;
    CHECK_EQ_INT(di_sampler_draft(s, x, &in, &from, &token), DI_EFORMAT);
    di_sampler_close(s);
}

/* A draft leaves the log-probabilities alone: they are the model's. */
static void
test_logprobs(void)
{
    di_gen_params_t   params = plain_params();
    di_sampler_from_t from = { .n = 2, .ids = { 0, 1 }, .p = { 0.5f, 0.5f } };
    di_sample_in_t    in = { .params = &params, .from = &from };
    di_sample_out_t   out, raw;
    di_sampler_t     *s = NULL;
    float             x[N] = { 3, 1, 2, 2.5f };

    params.flags = DI_GEN_LOGPROBS;
    params.top_logprobs = 3;
    params.top_k = 3;
    CHECK_EQ_INT(di_sampler_open(N, &s, NULL), DI_OK);
    for (in.n_tokens = 0; in.n_tokens < 100; in.n_tokens++) {
        in.draft = in.n_tokens % 2;
        CHECK_EQ_INT(di_sampler_row(s, x, &in, &out), DI_OK);
        CHECK_EQ_INT(di_sampler_logprobs(s, x, out.token, 3, &raw), DI_OK);
        CHECK(out.logprob == raw.logprob);
        CHECK(memcmp(out.top, raw.top, 3 * sizeof(raw.top[0])) == 0);
        CHECK(out.token != 1);   /* top-k has put it out                    */
    }
    di_sampler_close(s);
}

/* ---------------------------------------------------------------- speed -- */

static double
now_us(void)
{
    struct timespec t;

    (void) clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double) t.tv_sec * 1e6 + (double) t.tv_nsec / 1e3;
}

/* Printed, not judged: means over 200 positions. */
static void
print_speed(const char *name, di_gen_params_t params, uint32_t vocab,
            const float *model, const float *drafter)
{
    enum { TIMES = 200 };
    di_sampler_from_t from;
    di_sample_out_t   out;
    di_sampler_t     *s = NULL;
    int32_t           draft;
    double            us[4] = { 0 }, t[5];

    CHECK_EQ_INT(di_sampler_open(vocab, &s, NULL), DI_OK);
    for (uint32_t i = 0; i < TIMES; i++) {
        di_sample_in_t in = { .params = &params, .n_tokens = i };

        t[0] = now_us();
        (void) di_sampler_row(s, model, &in, &out);
        t[1] = now_us();
        (void) di_sampler_draft(s, drafter, &in, NULL, &draft);
        t[2] = now_us();
        (void) di_sampler_draft(s, drafter, &in, &from, &draft);
        t[3] = now_us();
        in.draft = draft;
        in.from = &from;
        (void) di_sampler_row(s, model, &in, &out);
        t[4] = now_us();
        for (int k = 0; k < 4; k++)
            us[k] += (t[k + 1] - t[k]) / TIMES;
    }
    printf("%u ids, %s: a row %.0f us, a coupled draft %.0f; a draft to be "
           "rejected %.0f, its row %.0f\n", vocab, name, us[0], us[1], us[2],
           us[3]);
    di_sampler_close(s);
}

static void
print_speeds(void)
{
    enum { FULL = 129280 };
    float           *x = malloc(2 * FULL * sizeof(float));
    di_gen_params_t  params = plain_params();

    if (x == NULL)
        return;
    for (uint32_t at = 0; at < FULL; at += WIDE) {
        uint32_t n = FULL - at < WIDE ? FULL - at : WIDE;

        make_rows(n);
        memcpy(x + at, model_x, n * sizeof(float));
        memcpy(x + FULL + at, drafter_x, n * sizeof(float));
    }
    print_speed("all", params, FULL, x, x + FULL);
    params.top_p = 0.95f;
    print_speed("top-p 0.95", params, FULL, x, x + FULL);
    params.top_k = 50;
    print_speed("top-p 0.95, top-k 50", params, FULL, x, x + FULL);
    free(x);
}

int
main(void)
{
    rnd_seed(1);
    for (uint32_t i = 0; i < sizeof(mask) / sizeof(mask[0]); i++)
        mask[i] = i % 3 == 0 ? 0x6db6db6db6db6db6u : 0xb6db6db6db6db6dbu;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        test_rule(&cases[i], 0);
        test_rule(&cases[i], N);
    }
    test_nothing_left(0);
    test_nothing_left(N);
    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++)
        test_setting(&settings[i]);
    test_greedy();
    test_logprobs();
    print_speeds();
    return check_done("sampler_drafts");
}
