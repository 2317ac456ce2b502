/*
 * model.c - what every model does, on a small generated one: limits, checks
 * of a step, KV copies, host calls, memory, and the same bits however rows
 * are cut into steps.
 */

#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "engine/model/di_model.h"

#include "check.h"
#include "nomem.h"

/* Half as wide as it could be: bfloat16 may have to be computed by its
 * reference. */
#define DIM      128
#define HEADS    4
#define KV_HEADS 2
#define HEAD_DIM 32
#define FFN      256
#define LAYERS   2
#define VOCAB    96
#include "tiny_model.h"

#define ROWS_MAX 48
#define SEQS_MAX 4
#define SEQ_LEN  68              /* of CONTEXT                              */
#define SEQ_BLOCKS ((SEQ_LEN + DI_KV_BLOCK_TOKENS - 1) / DI_KV_BLOCK_TOKENS)
#define SEQ(t, b, n, p, l)                                                  \
    ((di_model_seq_t) { .tokens = (t), .blocks = (b), .n_rows = (n),        \
                        .pos = (p), .n_logits = (l) })

static char path[64];

static di_model_conf_t
conf_of(di_arith_t arith, uint32_t threads)
{
    return (di_model_conf_t) {
        .arith = arith, .n_threads = threads, .max_rows = ROWS_MAX,
        .max_seqs = SEQS_MAX, .kv_bytes = 8u << 20,
    };
}

static di_model_t *
open_model(di_arith_t arith, uint32_t threads)
{
    di_model_conf_t conf = conf_of(arith, threads);
    di_model_t     *m = NULL;
    di_err_t        err = { 0 };

    if (di_model_open(path, &conf, &m, &err) != DI_OK) {
        printf("can't open: %s\n", err.text);
        abort();
    }
    return m;
}

/* ----------------------------------------------------------------- limits - */

static void
refused(di_model_conf_t conf, int code, const char *part)
{
    di_model_t *m = NULL;
    di_err_t    err = { 0 };

    CHECK_EQ_INT(di_model_open(path, &conf, &m, &err), code);
    CHECK(m == NULL);
    if (strstr(err.text, part) == NULL)
        printf("\"%s\" is not in: %s\n", part, err.text);
    CHECK(strstr(err.text, part) != NULL);
}

static void
test_limits(void)
{
    di_model_conf_t        conf = conf_of(DI_ARITH_F32, 1);
    di_model_t            *m = open_model(DI_ARITH_F32, 1);
    const di_model_info_t *info = di_model_info(m);
    uint64_t               block = info->kv_block_bytes;

    CHECK_EQ_INT(block, LAYERS * 2 * KV_HEADS * HEAD_DIM * DI_KV_BLOCK_TOKENS
                        * sizeof(float));
    CHECK_EQ_INT(info->kv_blocks, conf.kv_bytes / block);
    CHECK_EQ_INT(info->max_model_len, CONTEXT);
    CHECK_EQ_INT(info->vocab, VOCAB);
    CHECK_EQ_STR(info->name, "generated");
    CHECK_EQ_STR(info->family, "llama");
    di_model_close(m);

    conf.kv_bytes = CONTEXT / DI_KV_BLOCK_TOKENS * block;
    CHECK_EQ_INT(di_model_open(path, &conf, &m, NULL), DI_OK);
    di_model_close(m);
    conf.kv_bytes--;
    refused(conf, DI_ELIMIT, "fewer than the model length 128");
    conf.kv_bytes = 0;
    CHECK_EQ_INT(di_model_open(path, &conf, &m, NULL), DI_OK);
    CHECK_EQ_INT(di_model_info(m)->kv_blocks, CONTEXT / DI_KV_BLOCK_TOKENS);
    di_model_close(m);

    conf.max_model_len = CONTEXT + 1;
    refused(conf, DI_EINVAL, "exceeds the model's own 128");
    conf = conf_of(DI_ARITH_F32, 1);
    conf.max_seqs = ROWS_MAX + 1;
    refused(conf, DI_EINVAL, "sequences");
    conf = conf_of(DI_ARITH_F32, 1);
    conf.ops = "sse9";
    refused(conf, DI_EUNSUPPORTED, "sse9");
}

/* ---------------------------------------------------------------- a step - */

static void
test_step_checks(void)
{
    static const int32_t  tokens[CONTEXT] = { 1, 2, 3 };
    static const int32_t  high[] = { 1, VOCAB }, negative[] = { -1, 1 };
    static const uint32_t blocks[] = { 1, 2, 3, 4, 5, 6, 7, 8 };
    static const uint32_t none[] = { 1, 0 };
    di_model_t           *m = open_model(DI_ARITH_F32, 1);
    const uint32_t        past[] = { di_model_info(m)->kv_blocks + 1 };
    const di_model_seq_t  good = SEQ(tokens, blocks, 2, 0, 1);
    const di_model_seq_t  bad[] = {
        SEQ(tokens, blocks, 0, 0, 0),
        SEQ(tokens, blocks, 2, 0, 3),
        SEQ(tokens, blocks, ROWS_MAX + 1, 0, 0),
        SEQ(tokens, blocks, 2, CONTEXT - 1, 0),
        SEQ(tokens, blocks, 2, UINT32_MAX, 0),
        SEQ(tokens, blocks, UINT32_MAX, 2, 0),
        SEQ(high, blocks, 2, 0, 0),
        SEQ(negative, blocks, 2, 0, 0),
        SEQ(tokens, none, 17, 0, 0),
        SEQ(tokens, past, 2, 0, 0),
    };
    const float   *logits;
    di_model_seq_t two[2] = { good, good }, many[SEQS_MAX + 1];

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        two[1] = bad[i];
        CHECK_EQ_INT(di_model_step(m, &bad[i], 1), DI_EINVAL);
        CHECK_EQ_INT(di_model_step(m, two, 2), DI_EINVAL);
    }
    for (size_t i = 0; i <= SEQS_MAX; i++)
        many[i] = good;
    CHECK_EQ_INT(di_model_step(m, many, 0), DI_EINVAL);
    CHECK_EQ_INT(di_model_step(m, many, SEQS_MAX + 1), DI_EINVAL);

    CHECK_EQ_INT(di_model_step(m, &SEQ(tokens, blocks, 2,
                                   CONTEXT - 2, 1), 1), DI_OK);
    CHECK_EQ_INT(di_model_wait(m, &logits), DI_OK);
    CHECK_EQ_INT(di_model_step(m, &SEQ(tokens, blocks,
                                   ROWS_MAX, 0, ROWS_MAX), 1), DI_OK);
    CHECK_EQ_INT(di_model_wait(m, &logits), DI_OK);
    CHECK(logits == di_model_logits(m));
    di_model_close(m);
}

typedef struct {
    const float *logits;
    float        sum[3];         /* per part                                */
} host_t;

static void
host_part(void *arg, size_t part)
{
    host_t *h = arg;

    h->sum[part] = 0;
    for (size_t i = part; i < VOCAB; i += 3)
        h->sum[part] += h->logits[i];
}

/* A host call sees the step's logits; a copied KV block serves as its source
 * does; a step allocates nothing, once the device has had the largest one. */
static void
test_host_and_copy(di_arith_t arith)
{
    static const int32_t  tokens[] = { 5, 9, 2, 7, 1, 8, 2, 8, 1, 8, 2, 8, 4,
                                       5, 9, 0, 4, 5, 2, 3, 5 };
    static const uint32_t blocks[] = { 3, 9 }, copied[] = { 3, 4 };
    static const uint32_t many[] = { 1, 2, 3 };
    static const int32_t  zeros[ROWS_MAX];
    di_model_seq_t  largest = SEQ(zeros, many, ROWS_MAX, 0, ROWS_MAX);
    di_model_t     *m = open_model(arith, 2);
    di_model_seq_t  s = SEQ(tokens, blocks, 20, 0, 1);
    float           want[VOCAB];
    const float    *logits;
    host_t          host = { .logits = di_model_logits(m) };
    host_t          again;

    CHECK_EQ_INT(di_model_step(m, &largest, 1), DI_OK);
    CHECK_EQ_INT(di_model_wait(m, &logits), DI_OK);
    nomem_after(0);
    CHECK_EQ_INT(di_model_step(m, &s, 1), DI_OK);
    di_model_host_call(m, host_part, &host, 3);
    CHECK_EQ_INT(di_model_wait(m, &logits), DI_OK);
    CHECK(!nomem_off());
    again.logits = logits;
    for (size_t i = 0; i < 3; i++) {
        host_part(&again, i);
        CHECK(again.sum[i] == host.sum[i]);
    }

    di_model_kv_copy(m, 4, 9, 4);
    s = SEQ(tokens + 20, blocks, 1, 20, 1);
    CHECK_EQ_INT(di_model_step(m, &s, 1), DI_OK);
    CHECK_EQ_INT(di_model_wait(m, &logits), DI_OK);
    memcpy(want, logits, sizeof(want));
    s.blocks = copied;
    CHECK_EQ_INT(di_model_step(m, &s, 1), DI_OK);
    CHECK_EQ_INT(di_model_wait(m, &logits), DI_OK);
    CHECK(memcmp(want, logits, sizeof(want)) == 0);
    di_model_close(m);
}

/* ------------------------------------------------------------ the same bits */

static int32_t  ids[SEQS_MAX][SEQ_LEN];
static uint32_t tables[SEQS_MAX][SEQ_BLOCKS];
static float    whole[SEQS_MAX][SEQ_LEN][VOCAB];

static void
draw_sequences(uint32_t n_blocks)
{
    uint32_t *all = (uint32_t *) tables;     /* shuffled as one array       */
    uint32_t  next = 1;

    for (size_t s = 0; s < SEQS_MAX; s++) {
        for (size_t i = 0; i < SEQ_LEN; i++)
            ids[s][i] = (int32_t) (draw() % VOCAB);
        for (size_t i = 0; i < SEQ_BLOCKS; i++)
            tables[s][i] = next++;
    }
    if (next > n_blocks)
        abort();
    for (size_t i = SEQS_MAX * SEQ_BLOCKS - 1; i > 0; i--) {
        size_t   k = draw() % (i + 1);
        uint32_t t = all[i];

        all[i] = all[k];
        all[k] = t;
    }
}

/* Logits of a step's sequence: keep them, or compare the wanted ones. */
static const float *
take_logits(const di_model_seq_t *q, size_t who, const float *logits,
            bool keep)
{
    float *w = whole[who][q->pos + q->n_rows - q->n_logits];
    size_t n = (size_t) q->n_logits * VOCAB;

    if (keep)
        memcpy(w, logits, n * sizeof(float));
    CHECK(memcmp(w, logits, n * sizeof(float)) == 0);
    return logits + n;
}

/* Logits of all rows, of none, or of some. */
static uint32_t
draw_wanted(uint32_t rows)
{
    uint32_t kind = draw() % 3;

    return kind == 0 ? rows : kind == 1 ? 0 : draw() % (rows + 1);
}

/* Run all sequences, one after the other whole, or in random cuts. */
static void
run_cut(di_model_t *m, bool alone, bool keep)
{
    uint32_t done[SEQS_MAX] = { 0 };

    for (bool more = true; more; ) {
        di_model_seq_t step[SEQS_MAX];
        size_t         who[SEQS_MAX], n = 0;
        uint32_t       room = ROWS_MAX;
        const float   *logits;

        more = false;
        for (size_t s = 0; s < SEQS_MAX; s++) {
            uint32_t left = SEQ_LEN - done[s], rows;

            more |= left > 0;
            if (left == 0 || room == 0 || (alone && n > 0)
                || (!alone && draw() % 4 == 0))
                continue;
            rows = alone ? left : 1 + draw() % 20;
            rows = rows < left ? rows : left;
            rows = rows < room ? rows : room;
            room -= rows;
            who[n] = s;
            step[n++] = SEQ(ids[s] + done[s], tables[s], rows, done[s],
                            keep ? rows : draw_wanted(rows));
        }
        if (n == 0)
            continue;
        CHECK_EQ_INT(di_model_step(m, step, n), DI_OK);
        CHECK_EQ_INT(di_model_wait(m, &logits), DI_OK);
        for (size_t i = 0; i < n; i++) {
            logits = take_logits(&step[i], who[i], logits, keep);
            done[who[i]] += step[i].n_rows;
        }
    }
}

static void
test_cuts(di_arith_t arith)
{
    for (uint32_t threads = 1; threads <= 3; threads++) {
        di_model_t *m = open_model(arith, threads);

        if (threads == 1) {
            draw_sequences(di_model_info(m)->kv_blocks);
            run_cut(m, true, true);
        }
        for (int i = 0; i < 2; i++)
            run_cut(m, false, false);
        di_model_close(m);
    }
}

/* ----------------------------------------------------------------- memory - */

static void
test_nomem(void)
{
    di_model_conf_t conf = conf_of(DI_ARITH_F32, 1);

    for (int n = 0; ; n++) {
        di_model_t *m = NULL;
        di_err_t    err = { 0 };
        int         rc;

        nomem_after(n);
        rc = di_model_open(path, &conf, &m, &err);
        if (!nomem_off()) {
            CHECK_EQ_INT(rc, DI_OK);
            di_model_close(m);
            break;
        }
        /* What only the C library allocates, to open a file or start a
         * thread, may fail without consequence. */
        CHECK(rc != DI_OK ? m == NULL && err.text[0] != '\0' : m != NULL);
        di_model_close(m);
    }
}

int
main(void)
{
    static const di_arith_t ariths[] = { DI_ARITH_F32, DI_ARITH_BF16,
                                         DI_ARITH_Q8 };
    const char *seed = getenv("TEST_SEED");
    make_t      file;

    rng = seed != NULL ? strtoull(seed, NULL, 10) : (uint64_t) time(NULL);
    printf("seed %llu\n", (unsigned long long) rng);
    (void) snprintf(path, sizeof(path), "/tmp/di-model-%d.gguf",
                    (int) getpid());
    make_model(&file, "llama", DI_W_Q4_0);
    make_write(&file, path);
    make_free(&file);

    test_limits();
    test_step_checks();
    for (size_t i = 0; i < sizeof(ariths) / sizeof(ariths[0]); i++) {
        test_host_and_copy(ariths[i]);
        test_cuts(ariths[i]);
    }
    test_nomem();
    (void) unlink(path);
    return check_done("model");
}
