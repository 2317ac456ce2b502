/*
 * sched_draws.c - drafts change nothing of how tokens are distributed, counted.
 *
 * The model is a table: the last two tokens say how likely the next one is.
 * Its drafter knows the table a little wrong.  Answers of a hundred thousand
 * seeds with drafts and as many of others without are counted, by their last
 * two tokens; chi-square says whether both may come from one distribution,
 * and whether each comes from the table's, which is multiplied out.  So for
 * requests with a seed of their own and without, under filters, where there
 * is no room for all drafts, and under a grammar that forbids most of them.
 */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "engine/di_sched.h"
#include "tiny_vocab.h"
#include "tokenizer/grammar/di_grammar.h"

#define KINDS   12               /* of tokens                               */
#define FIRST   'a'              /* the first one's id, if they are bytes   */
#define VOCAB   (TINY_WORDS + 1)
#define DRAFTS  3
#define GEN     4                /* tokens of an answer                     */
#define PAIRS   (KINDS * KINDS)
#define ANSWERS 100000
#define BATCH   50

typedef struct {
    const char *name;
    bool        seeded;
    bool        grammar;
    uint32_t    rows;            /* of a step, beyond one a sequence        */
    float       top_p;
    int32_t     top_k;
    double      least, most;     /* share of drafts that stay               */
} setting_t;

static const setting_t settings[] = {
    { "seed", true, false, BATCH * DRAFTS, 1, 0, 0.3, 0.5 },
    { "no seed", false, false, BATCH * DRAFTS, 1, 0, 0.35, 0.6 },
    { "no seed, top-p", false, false, BATCH * DRAFTS, 0.6f, 0, 0.05, 0.5 },
    { "no seed, top-k", false, false, BATCH * DRAFTS, 1, 4, 0.05, 0.5 },
    { "no seed, few rows", false, false, BATCH / 2, 1, 0, 0.3, 0.7 },
    { "seed, grammar", true, true, BATCH * DRAFTS, 1, 0, 0.4, 0.7 },
    { "no seed, grammar", false, true, BATCH * DRAFTS, 1, 0, 0.45, 0.75 },
};

static const setting_t *now;
static uint32_t n_vocab, first;  /* of the model; id of the first kind      */
static float    table[KINDS][KINDS][KINDS];      /* logits                  */
static float    logits[BATCH * (1 + DRAFTS) * VOCAB];
static int32_t  seen[BATCH * 8 + 2][16];         /* tokens, by first block  */
static int32_t  answers[BATCH][GEN];
static uint32_t n_tokens[BATCH];

static di_vocab_t *vocab;
static void       *grammar;
static size_t      grammar_bytes;

/* Pairs of one of the first two kinds and one of the others, in any order. */
static const char pairs_of_kinds[] = "([ab][c-l]|[c-l][ab]){2,9}";

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

    for (int a = 0; a < KINDS; a++) {
        for (int b = 0; b < KINDS; b++) {
            for (int c = 0; c < KINDS; c++)
                table[a][b][c] = 3 * noise(&x);
        }
    }
}

/* ----------------------------------------------------------------- model -- */

static int
kind_of(int32_t token)
{
    return token - (int32_t) first;
}

/* The rest of the vocabulary is as good as never drawn. */
static void
fill_row(float *row, const float *x)
{
    for (uint32_t i = 0; i < n_vocab; i++)
        row[i] = -60;
    memcpy(row + first, x, KINDS * sizeof(float));
}

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
            fill_row(row, table[kind_of(tokens[pos - 1])]
                               [kind_of(tokens[pos])]);
            row += n_vocab;
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

/* What follows the token, whatever was before it.  Drafts beyond what there
 * is room for are picked anyhow. */
static int
draft(void *ctx, const di_model_draft_t *seqs, size_t n_seqs,
      di_model_pick_t pick, void *arg, int32_t *drafts, float *confidence)
{
    float row[VOCAB];

    (void) ctx;
    for (size_t i = 0; i < n_seqs; i++) {
        int32_t token = seqs[i].token;

        for (uint32_t d = 0; d < DRAFTS; d++) {
            fill_row(row, table[0][kind_of(token) < 0 ? 0 : kind_of(token)]);
            token = drafts[i * DRAFTS + d] = pick(arg, i, d, row);
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
        .vocab = n_vocab, .max_model_len = 8, .kv_blocks = BATCH * 8,
        .block_tokens = 16, .max_logits = BATCH * (1 + DRAFTS),
        .n_drafts = DRAFTS, .step = step, .host_call = host_call,
        .wait = wait_step, .logits = logits_of, .kv_copy = kv_copy,
        .draft = draft,
    };
    di_sched_conf_t conf = {
        .max_seqs = BATCH, .max_rows = BATCH + now->rows, .chunk = BATCH,
        .queue_max = BATCH, .drafts = drafts, .sink = sink,
        .vocab = now->grammar ? vocab : NULL, .grammar_bytes = 64 << 20,
    };
    di_sched_t *s = NULL;
    di_err_t    err = { 0 };

    CHECK_EQ_INT(di_sched_open_on(&m, &conf, &s, &err), DI_OK);
    CHECK_EQ_STR(err.text, "");
    if (s == NULL)
        exit(1);
    return s;
}

static void
submit(di_sched_t *s, uint32_t id, uint64_t seed)
{
    const int32_t    ids[] = { prompt[0] + (int32_t) first,
                               prompt[1] + (int32_t) first };
    di_gen_request_t r = {
        .prompt = ids, .n_prompt = 2,
        .params = { .max_tokens = GEN, .n = 1, .top_p = now->top_p,
                    .top_k = now->top_k, .temperature = 1,
                    .repetition_penalty = 1, .seed = seed,
                    .flags = now->seeded ? 0 : DI_GEN_UNSEEDED } };

    if (now->grammar) {
        r.grammar = grammar;
        r.n_grammar = (uint32_t) grammar_bytes;
    }
    CHECK_EQ_INT(di_sched_submit(s, 0, id, &r), DI_OK);
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
        for (uint32_t i = 0; i < BATCH; i++)
            submit(s, i, first_seed + at + i);
        while (!di_sched_idle(s))
            CHECK_EQ_INT(di_sched_step(s), DI_OK);
        for (uint32_t i = 0; i < BATCH; i++) {
            CHECK_EQ_INT(n_tokens[i], GEN);
            counts[kind_of(answers[i][GEN - 2]) * KINDS
                   + kind_of(answers[i][GEN - 1])]++;
        }
    }
    di_sched_drafts(s, &verified, &accepted);
    CHECK((verified > 0) == drafts);
    if (drafts) {
        double share = (double) accepted / (double) verified;

        printf("%-18s %.3f of drafts stay\n", now->name, share);
        CHECK(share > now->least && share < now->most);
    }
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

/* May it follow: by the grammar, in a text of t tokens that ends with prev. */
static bool
allowed(int t, int prev, int next)
{
    return !now->grammar || t % 2 == 0 || (prev < 2) != (next < 2);
}

/* Of a row, by what the request filters. */
static void
probabilities(const float *x, int t, int prev, double *p)
{
    double  sum = 0, left = 0, before = 0, e[KINDS];
    int     i, k, best;

    for (i = 0; i < KINDS; i++) {
        e[i] = allowed(t, prev, i) ? exp((double) x[i]) : 0;
        sum += e[i];
        p[i] = 0;
    }
    for (k = 0; k < KINDS; k++) {
        best = 0;
        for (i = 1; i < KINDS; i++)
            best = e[i] > e[best] ? i : best;
        if ((now->top_k > 0 && k >= now->top_k)
            || before > (double) now->top_p * sum || e[best] == 0)
            break;
        left += p[best] = e[best];
        before += e[best];
        e[best] = 0;
    }
    for (i = 0; i < KINDS; i++)
        p[i] /= left;
}

/* How likely each pair of last tokens is, from all answers of GEN. */
static void
expect(double p[PAIRS])
{
    double was[PAIRS] = { 0 };

    was[prompt[0] * KINDS + prompt[1]] = 1;
    for (int t = 0; t < GEN; t++) {
        memset(p, 0, PAIRS * sizeof(*p));
        for (int i = 0; i < PAIRS; i++) {
            double next[KINDS];

            probabilities(table[i / KINDS][i % KINDS], t, i % KINDS, next);
            for (int k = 0; k < KINDS; k++)
                p[i % KINDS * KINDS + k] += was[i] * next[k];
        }
        memcpy(was, p, sizeof(was));
    }
}

static double
chi_one(const uint32_t *a, const double *p)
{
    double chi = 0;

    for (int i = 0; i < PAIRS; i++) {
        double d = a[i] - ANSWERS * p[i];

        CHECK(p[i] > 0 || a[i] == 0);
        if (p[i] == 0)
            continue;
        chi += d * d / (ANSWERS * p[i]);
    }
    return chi;
}

/* One in about 10^6 is beyond. */
static double
chi_max(const double *p)
{
    int df = -1;

    for (int i = 0; i < PAIRS; i++)
        df += p[i] > 0;
    return df + 5.7 * sqrt(2.0 * df);
}

static void
test(const setting_t *setting, uint64_t first_seed)
{
    static uint32_t with[PAIRS], without[PAIRS];
    double          p[PAIRS];

    now = setting;
    n_vocab = now->grammar ? di_vocab_size(vocab) : KINDS;
    first = now->grammar ? FIRST : 0;
    expect(p);
    count(true, first_seed, with);
    count(false, first_seed + ANSWERS, without);
    printf("%-18s chi-square: with drafts and without %.1f, with %.1f, "
           "without %.1f\n", now->name, chi_two(with, without),
           chi_one(with, p), chi_one(without, p));
    CHECK(chi_two(with, without) < chi_max(p));
    CHECK(chi_one(with, p) < chi_max(p));
    CHECK(chi_one(without, p) < chi_max(p));
}

static void
open_grammar(void)
{
    const di_gram_opts_t opts = { 0 };
    di_gram_err_t        err;

    vocab = tiny_vocab(NULL, 0);
    CHECK(di_vocab_size(vocab) <= VOCAB);
    CHECK_EQ_INT(di_gram_compile(DI_GRAM_REGEX, pairs_of_kinds,
                                 sizeof(pairs_of_kinds) - 1, &opts, &grammar,
                                 &grammar_bytes, &err), DI_OK);
}

int
main(void)
{
    make_table();
    open_grammar();
    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++)
        test(&settings[i], i * 2 * ANSWERS);
    free(grammar);
    di_vocab_close(vocab);
    return check_done("sched_draws");
}
