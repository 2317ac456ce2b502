/*
 * v41_cost.c - what a step of DeepSeek-V4.1 costs at some thousand and at
 * tens of thousands of tokens.
 *
 *     build/bench/v41_cost DIRECTORY [THREADS]
 *
 * Windows, compressed entries and chosen entries are of one number at any
 * length; only the indexer scores every entry that there is.  So its operator
 * is timed by itself, and all else must stay the same: decoding a token, and
 * going on with a prefix whose windows are lost (its last window and a new
 * turn of some tokens are computed).  Long prefixes are copies of one that was
 * computed: what is in a block changes no cost.  CPU time of one thread,
 * medians.
 */

#include <stdio.h>
#include <stdlib.h>

#include "engine/model/deepseek_v41.h"
#include "cpu_time.h"

#define SEEN    1024u            /* tokens that are really computed         */
#define TURN    12u              /* new tokens of a prefix gone on with     */
#define KEEP    140u             /* see --replay-keep                       */
#define ROUNDS  15               /* at most                                 */
#define BLOCK   DI_V41_BLOCK

static const uint32_t depths[] = { 1024, 8192, 65536 };

#define N_DEPTHS (sizeof(depths) / sizeof(depths[0]))
#define LEN      (65536u + BLOCK)

typedef struct {
    di_model_t     *model;
    const di_ops_t *ops;         /* the device's own                        */
    double          since;       /* when the indexer began                  */
    double          index_s;     /* of the step                             */
    int32_t         tokens[SEEN + BLOCK];
    uint32_t        blocks[LEN / BLOCK];
} cost_t;

static cost_t cost;

static void
index_begins(void *arg, size_t part)
{
    (void) arg;
    (void) part;
    cost.since = cpu_s();
}

static void
index_ends(void *arg, size_t part)
{
    (void) arg;
    (void) part;
    cost.index_s += cpu_s() - cost.since;
}

static void
timed_select(di_stream_t *s, const di_index_t *index, const di_rows_t *rows)
{
    cost.ops->host_call(s, index_begins, NULL, 1);
    cost.ops->index_select(s, index, rows);
    cost.ops->host_call(s, index_ends, NULL, 1);
}

static void
die(const char *what)
{
    (void) fprintf(stderr, "v41_cost: %s\n", what);
    exit(1);
}

/* CPU seconds of a step, those of the indexer aside. */
static double
run(const di_model_seq_t *part)
{
    const float *logits;
    double       start = cpu_s();

    cost.index_s = 0;
    if (di_model_step(cost.model, part, 1) != DI_OK
        || di_model_wait(cost.model, &logits) != DI_OK)
        die("a step failed");
    return cpu_s() - start - cost.index_s;
}

/* The part of a sequence that has n_rows tokens at pos. */
static di_model_seq_t
part_at(uint32_t pos, uint32_t n_rows)
{
    return (di_model_seq_t) {
        .tokens = cost.tokens + BLOCK, .blocks = cost.blocks,
        .n_rows = n_rows, .pos = pos, .n_logits = 1, .slot = 1 };
}

/* Compute SEEN tokens; the blocks behind them are copies of theirs. */
static void
fill(void)
{
    const uint32_t seen = SEEN / BLOCK;
    uint32_t       x = 12345, vocab = di_model_info(cost.model)->vocab;

    for (size_t i = 0; i < SEEN + BLOCK; i++) {
        x = x * 1664525u + 1013904223u;      /* Numerical Recipes' LCG      */
        cost.tokens[i] = (int32_t) ((x >> 8) % vocab);
    }
    for (uint32_t i = 0; i < LEN / BLOCK; i++)
        cost.blocks[i] = i + 1;
    for (uint32_t at = 0; at < SEEN; at += BLOCK) {
        di_model_seq_t part = part_at(at, BLOCK);

        part.tokens += at;
        (void) run(&part);
        for (uint32_t i = at / BLOCK + seen; i < LEN / BLOCK; i += seen)
            di_model_kv_copy(cost.model, cost.blocks[i],
                             cost.blocks[at / BLOCK], BLOCK);
    }
}

static di_model_seq_t
decode_at(uint32_t depth, uint32_t i)
{
    return part_at(depth + i, 1);
}

/* Where the scheduler goes on with a prefix of `depth` tokens and a new turn,
 * if only the blocks of the prefix are left (engine/sched_state.c). */
static di_model_seq_t
replay_at(uint32_t depth, uint32_t i)
{
    const uint32_t n = depth + TURN;
    uint32_t       floor = depth - BLOCK;
    di_model_seq_t part;

    (void) i;
    if (floor > (n - KEEP) / BLOCK * BLOCK)
        floor = (n - KEEP) / BLOCK * BLOCK;
    part = part_at(floor, n - floor);
    part.slot = 2;
    part.floor = floor;
    part.keep_from = n - KEEP;
    return part;
}

static int
compare(const void *a, const void *b)
{
    const double *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

/* One line a depth: what is flat, and the indexer. */
static void
measure(const char *what, di_model_seq_t (*at)(uint32_t, uint32_t),
        uint32_t rounds)
{
    double flat[N_DEPTHS], least, most;

    for (size_t d = 0; d < N_DEPTHS; d++) {
        double         rest[ROUNDS], index[ROUNDS];
        di_model_seq_t part = at(depths[d], 0);

        (void) run(&part);
        for (uint32_t i = 0; i < rounds; i++) {
            part = at(depths[d], i);
            rest[i] = run(&part);
            index[i] = cost.index_s;
        }
        qsort(rest, rounds, sizeof(rest[0]), compare);
        qsort(index, rounds, sizeof(index[0]), compare);
        flat[d] = rest[rounds / 2];
        (void) printf("  %-28s%7u tokens, %3u rows %9.2f ms  index %8.2f "
                      "ms\n", what, depths[d], part.n_rows, 1e3 * flat[d],
                      1e3 * index[rounds / 2]);
    }
    least = most = flat[0];
    for (size_t d = 1; d < N_DEPTHS; d++) {
        least = flat[d] < least ? flat[d] : least;
        most = flat[d] > most ? flat[d] : most;
    }
    (void) printf("  %-28sflat within %.1f %%\n", what,
                  100 * (most / least - 1));
}

int
main(int argc, char **argv)
{
    const di_model_conf_t conf = {
        .max_rows = 512, .max_seqs = 2, .max_model_len = LEN,
        .n_threads = argc > 2 ? (uint32_t) atoi(argv[2]) : 1,
    };
    const di_model_info_t *info;
    di_ops_t               ops;
    di_err_t               err = { 0 };

    if (argc < 2 || conf.n_threads == 0)
        die("usage: v41_cost DIRECTORY [THREADS]");
    if (di_model_open(argv[1], &conf, &cost.model, &err) != DI_OK)
        die(err.text);
    info = di_model_info(cost.model);
    if (info->window != DI_V41_BLOCK)
        die("a DeepSeek-V4.1 with a window of 128 is needed");
    cost.ops = cost.model->ops;
    ops = *cost.ops;
    ops.index_select = timed_select;
    cost.model->ops = &ops;

    (void) printf("  %s, %s: block KV %llu bytes a token, state %llu bytes "
                  "a sequence\n", info->name, info->arith,
                  (unsigned long long) info->kv_token_bytes,
                  (unsigned long long) info->state_bytes);
    fill();
    measure("decode", decode_at, ROUNDS);
    measure("go on without windows", replay_at, 3);
    cost.model->ops = cost.ops;
    di_model_close(cost.model);
    return 0;
}
