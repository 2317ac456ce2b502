/*
 * golden.c - a real model against golden outputs, on every path of this CPU.
 *
 * t/data/smollm2-golden.json holds, for 24 prompts of SmolLM2-135M-Instruct,
 * the greedy continuation and the best log-probabilities at six of its
 * positions, from an independent float32 implementation.  Each arithmetic has
 * bounds (see `rows`); those of int8 are what llama.cpp reaches with the same
 * file against the same goldens.
 *
 * Continuations are forced, so that one near-tie doesn't hide what follows.
 * Every path then runs some cases again in other shapes: the prompt in chunks,
 * the continuation a token at a time, sixteen sequences in one step, with 1
 * and 3 threads.  All must give the same bits as the first run.
 *
 * The long cases are most of the work, so they are left to the best path of
 * an arithmetic, and the longest to those that a server would use.  The
 * reference path computes a few tokens a second: the start of a short case.
 *
 * `golden bf16 amx` runs one arithmetic on one path.
 */

#include <jansson.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include "engine/model/di_model.h"

#include "check.h"

#define CASES_MAX   32
#define GREEDY      48           /* tokens of a continuation                */
#define STEPS       6            /* positions with log-probabilities        */
#define COMPARED    10           /* of the 20 listed                        */
#define BATCH       16
#define MODEL_LEN   2048
#define MAX_ROWS    512
#define ROWS_REF    52           /* cases up to here on the reference path  */
#define ROWS_OTHER  400          /* and on paths that are not the best      */

typedef struct {
    const char *name;
    int32_t    *ids;             /* prompt and continuation                 */
    uint32_t    n_prompt;
    uint32_t    n;               /* n_prompt + GREEDY - 1: the rows         */
    int32_t     greedy[GREEDY];
    double      gap[GREEDY];
    uint32_t    step[STEPS];
    int32_t     top_ids[STEPS][COMPARED];
    double      top_logprobs[STEPS][COMPARED];
    uint64_t    hash[GREEDY];    /* of the logits, from the first run       */
} case_t;

typedef struct {
    double *diff;                /* [n] of log-probabilities                */
    size_t  n;
    size_t  greedy_wrong;        /* where the gap is over the bound         */
} result_t;

/* Bounds of an arithmetic: differences' mean, 99 %, worst; the gap from which
 * the greedy token must be equal; rows of its longest case. */
typedef struct {
    const char *name;
    di_arith_t  arith;
    double      mean, most, worst, gap;
    uint32_t    longest;
} row_t;

static const row_t rows[] = {
    { "f32", DI_ARITH_F32, 0.002, 0.002, 0.002, 0.004, 600 },
    { "bf16", DI_ARITH_BF16, 0.04, 0.3, 0.3, 0.4, MODEL_LEN },
    { "q8", DI_ARITH_Q8, 0.10, 0.47, 0.67, 0.8, MODEL_LEN },
};

/* The best first. */
static const char *const paths[] = { "amx", "avx512bf16", "avx512",
                                     "avxvnni", "avx2", "ref" };

static case_t cases[CASES_MAX];
static size_t n_cases;

/* ----------------------------------------------------------------- cases -- */

static void
read_top(case_t *c, json_t *top)
{
    for (size_t i = 0; i < STEPS; i++) {
        json_t *t = json_array_get(top, i);

        c->step[i] = (uint32_t) json_integer_value(json_object_get(t,
                                                                   "step"));
        for (size_t k = 0; k < COMPARED; k++) {
            c->top_ids[i][k] = (int32_t) json_integer_value(
                json_array_get(json_object_get(t, "ids"), k));
            c->top_logprobs[i][k] = json_real_value(
                json_array_get(json_object_get(t, "logprobs"), k));
        }
    }
}

static bool
read_case(case_t *c, json_t *o)
{
    json_t *prompt = json_object_get(o, "prompt_ids");
    json_t *greedy = json_object_get(o, "greedy_ids");
    json_t *gap = json_object_get(o, "gap");

    c->name = json_string_value(json_object_get(o, "name"));
    c->n_prompt = (uint32_t) json_array_size(prompt);
    c->n = c->n_prompt + GREEDY - 1;
    c->ids = calloc(c->n + 1, sizeof(*c->ids));
    if (c->ids == NULL || json_array_size(greedy) != GREEDY
        || json_array_size(gap) != GREEDY)
        return false;
    for (size_t i = 0; i < c->n_prompt; i++)
        c->ids[i] = (int32_t) json_integer_value(json_array_get(prompt, i));
    for (size_t i = 0; i < GREEDY; i++) {
        c->greedy[i] = (int32_t) json_integer_value(json_array_get(greedy,
                                                                   i));
        c->ids[c->n_prompt + i] = c->greedy[i];
        c->gap[i] = json_real_value(json_array_get(gap, i));
    }
    read_top(c, json_object_get(o, "top20"));
    return true;
}

/* The JSON's strings are kept for the names. */
static bool
read_cases(void)
{
    json_t *root = json_load_file("t/data/smollm2-golden.json", 0, NULL);
    json_t *list = json_object_get(root, "cases");

    for (size_t i = 0; i < json_array_size(list) && i < CASES_MAX; i++) {
        if (!read_case(&cases[n_cases++], json_array_get(list, i)))
            return false;
    }
    return n_cases > 0;
}

/* --------------------------------------------------------------- results -- */

static uint64_t
hash_floats(const float *v, size_t n)
{
    uint64_t h = 14695981039346656037u;      /* FNV-1a over 32-bit words    */

    for (size_t i = 0; i < n; i++) {
        uint32_t bits;

        memcpy(&bits, &v[i], sizeof(bits));
        h = (h ^ bits) * 1099511628211u;
    }
    return h;
}

static double
log_sum_exp(const float *v, size_t n, size_t *best)
{
    double sum = 0;

    *best = 0;
    for (size_t i = 1; i < n; i++) {
        if (v[i] > v[*best])
            *best = i;
    }
    for (size_t i = 0; i < n; i++)
        sum += exp((double) v[i] - (double) v[*best]);
    return (double) v[*best] + log(sum);
}

/* Compare one position's logits with the goldens, or in a later run with the
 * bits of the first.  s: index in the continuation. */
static void
compare(case_t *c, uint32_t s, const float *logits, uint32_t vocab,
        const row_t *row, result_t *r)
{
    uint64_t hash = hash_floats(logits, vocab);
    size_t   best;
    double   lse;

    if (r == NULL) {
        if (hash != c->hash[s])
            printf("case %s, position %u: other bits\n", c->name, s);
        CHECK(hash == c->hash[s]);
        return;
    }

    c->hash[s] = hash;
    lse = log_sum_exp(logits, vocab, &best);
    if ((int32_t) best != c->greedy[s] && c->gap[s] > row->gap) {
        printf("case %s, position %u: best is %zu, not %d, gap %.3f\n",
               c->name, s, best, c->greedy[s], c->gap[s]);
        r->greedy_wrong++;
    }
    for (size_t i = 0; i < STEPS; i++) {
        if (c->step[i] != s)
            continue;
        for (size_t k = 0; k < COMPARED; k++)
            r->diff[r->n++] = fabs((double) logits[c->top_ids[i][k]] - lse
                                   - c->top_logprobs[i][k]);
    }
}

static int
compare_doubles(const void *a, const void *b)
{
    double x = *(const double *) a, y = *(const double *) b;

    return (x > y) - (x < y);
}

/* The mean's bound is that of all cases: the shorter ones alone are some
 * hundredths above it. */
static void
check_bounds(const row_t *row, const char *path, bool all, result_t *r)
{
    double mean = 0, most, worst;

    qsort(r->diff, r->n, sizeof(*r->diff), compare_doubles);
    for (size_t i = 0; i < r->n; i++)
        mean += r->diff[i] / (double) r->n;
    most = r->diff[(size_t) (0.99 * (double) (r->n - 1))];
    worst = r->diff[r->n - 1];
    printf("%s %s: %zu log-probabilities: mean %.5f, 99 %% %.5f, worst "
           "%.5f\n", row->name, path, r->n, mean, most, worst);
    CHECK(mean <= row->mean * (all ? 1 : 1.05));
    CHECK(most <= row->most);
    CHECK(worst <= row->worst);
    CHECK_EQ_INT(r->greedy_wrong, 0);
}

/* ------------------------------------------------------------------ runs -- */

/* One sequence while it is computed. */
typedef struct {
    case_t   *c;
    uint32_t  done;              /* rows computed                           */
    uint32_t *blocks;
} seq_t;

/* What a run computes, and how it cuts its work. */
typedef struct {
    uint32_t    batch;           /* sequences of a step                     */
    uint32_t    chunk;           /* prompt rows of a step, per sequence     */
    uint32_t    tail;            /* continuation rows of a step             */
    uint32_t    positions;       /* of the continuation                     */
    uint32_t    shortest;        /* rows of a case                          */
    uint32_t    longest;
} shape_t;

/* The next rows of a sequence: of its prompt, the last of which already
 * predicts the continuation, or of the continuation. */
static di_model_seq_t
next_rows(const seq_t *s, const shape_t *shape, uint32_t room)
{
    uint32_t       last = s->c->n_prompt - 1;
    uint32_t       left = last + shape->positions - s->done;
    di_model_seq_t q = { .tokens = s->c->ids + s->done, .pos = s->done,
                         .blocks = s->blocks };

    if (s->done < last) {
        q.n_rows = last - s->done < shape->chunk ? last - s->done
                                                 : shape->chunk;
        q.n_rows = q.n_rows < room ? q.n_rows : room;
    } else {
        q.n_rows = left < shape->tail ? left : shape->tail;
        q.n_rows = q.n_rows < room ? q.n_rows : room;
        q.n_logits = q.n_rows;
    }
    return q;
}

/* Run one step over some sequences and compare its logits. */
static bool
run_step(di_model_t *m, seq_t *seqs, size_t n, const shape_t *shape,
         const row_t *row, result_t *r)
{
    di_model_seq_t step[BATCH];
    seq_t         *who[BATCH];
    uint32_t       vocab = di_model_info(m)->vocab, room = MAX_ROWS;
    const float   *logits;
    size_t         used = 0;

    for (size_t i = 0; i < n && room > 0; i++) {
        if (seqs[i].done == seqs[i].c->n_prompt - 1 + shape->positions)
            continue;
        who[used] = &seqs[i];
        step[used] = next_rows(&seqs[i], shape, room);
        room -= step[used++].n_rows;
    }
    if (used == 0)
        return false;

    CHECK_EQ_INT(di_model_step(m, step, used), DI_OK);
    CHECK_EQ_INT(di_model_wait(m, &logits), DI_OK);
    for (size_t i = 0; i < used; i++) {
        for (uint32_t k = 0; k < step[i].n_logits; k++) {
            compare(who[i]->c, who[i]->done + k + 1 - who[i]->c->n_prompt,
                    logits, vocab, row, r);
            logits += vocab;
        }
        who[i]->done += step[i].n_rows;
    }
    return true;
}

/* All cases that the shape names.  Sequences of one batch take blocks in
 * turns, so that their tables are nowhere contiguous. */
static void
run_cases(di_model_t *m, const shape_t *shape, const row_t *row, result_t *r)
{
    static uint32_t blocks[BATCH][MODEL_LEN / DI_KV_BLOCK_TOKENS];
    seq_t           seqs[BATCH];
    size_t          n = 0;

    for (uint32_t i = 0; i < BATCH; i++) {
        for (uint32_t b = 0; b < MODEL_LEN / DI_KV_BLOCK_TOKENS; b++)
            blocks[i][b] = 1 + b * BATCH + (i + b) % BATCH;
    }
    for (size_t i = 0; i <= n_cases; i++) {
        if (n == shape->batch || (i == n_cases && n > 0)) {
            while (run_step(m, seqs, n, shape, row, r))
                ;
            n = 0;
        }
        if (i < n_cases && cases[i].n >= shape->shortest
            && cases[i].n <= shape->longest) {
            seqs[n] = (seq_t) { .c = &cases[i], .blocks = blocks[n] };
            n++;
        }
    }
}

static di_model_t *
open_model(const char *file, const row_t *row, const char *path,
           uint32_t threads, di_err_t *err)
{
    di_model_conf_t conf = {
        .arith = row->arith,
        .ops = path,
        .n_threads = threads,
        .max_model_len = MODEL_LEN,
        .max_rows = MAX_ROWS,
        .max_seqs = BATCH,
    };
    di_model_t *m = NULL;

    /* Bytes of a token's KV differ by arithmetic: float32 is the most. */
    conf.kv_bytes = (uint64_t) BATCH * MODEL_LEN * 30 * 2 * 3 * 64
                    * sizeof(float);
    (void) di_model_open(file, &conf, &m, err);
    return m;
}

static void
test_again(const char *file, const row_t *row, const char *path,
           uint32_t threads, const shape_t *shapes, size_t n_shapes)
{
    di_err_t    err = { 0 };
    di_model_t *m = open_model(file, row, path, threads, &err);

    CHECK(m != NULL);
    if (m == NULL)
        return;
    for (size_t i = 0; i < n_shapes; i++)
        run_cases(m, &shapes[i], row, NULL);
    di_model_close(m);
}

/* Returns whether this CPU has the path. */
static bool
test_path(const char *file, const row_t *row, const char *path, bool best)
{
    static const shape_t again[] = {
        { 1, 100, 1, 12, 60, 90 },           /* token by token              */
        { 1, 7, 5, GREEDY, 190, 400 },       /* chunks of 7                 */
        { BATCH, 33, 1, 8, 0, 100 },         /* sixteen at a time           */
    };
    shape_t     first = { 1, MAX_ROWS, GREEDY, GREEDY, 0,
                          best ? row->longest : ROWS_OTHER };
    shape_t     start = { 1, MAX_ROWS, 6, 6, ROWS_REF - 3, ROWS_REF };
    bool        ref = strcmp(path, "ref") == 0;
    result_t    r = { 0 };
    di_err_t    err = { 0 };
    di_model_t *m = open_model(file, row, path, 2, &err);

    if (m == NULL) {
        printf("SKIP %s %s: %s\n", row->name, path, err.text);
        return false;
    }
    r.diff = calloc(n_cases * STEPS * COMPARED, sizeof(*r.diff));
    if (r.diff == NULL)
        abort();
    run_cases(m, ref ? &start : &first, row, &r);
    di_model_close(m);
    check_bounds(row, path, best, &r);
    free(r.diff);

    if (!ref) {
        test_again(file, row, path, 1, again, 2);
        test_again(file, row, path, 3, &again[2], 1);
    }
    return true;
}

int
main(int argc, char **argv)
{
    const char *file = getenv("TEST_DEEPINFER_MODEL");
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char        cached[512];

    if (file == NULL) {
        (void) snprintf(cached, sizeof(cached), "%s%s/ngx_deepinfer/"
                        "SmolLM2-135M-Instruct.Q4_1.gguf",
                        cache != NULL ? cache : home != NULL ? home : "",
                        cache != NULL ? "" : "/.cache");
        file = cached;
    }
    (void) setvbuf(stdout, NULL, _IOLBF, 0);
    if (access(file, R_OK) != 0) {
        printf("SKIP no model at %s\n", file);
        return 0;
    }
    if (!read_cases()) {
        printf("no goldens: run from the top folder\n");
        return 1;
    }

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        bool best = true;

        for (size_t k = 0; k < sizeof(paths) / sizeof(paths[0]); k++) {
            if ((argc < 2 || strcmp(argv[1], rows[i].name) == 0)
                && (argc < 3 || strcmp(argv[2], paths[k]) == 0)
                && test_path(file, &rows[i], paths[k], best))
                best = false;
        }
    }
    return check_done("golden");
}
