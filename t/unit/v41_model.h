/*
 * v41_model.h - tiny-v41 for tests: where it is, and sequences run by hand.
 *
 * The plain checkpoint is kept compressed; a directory with it unpacked is
 * made once per program.  A seq_t holds a sequence's tokens and has the KV
 * blocks and the state slot of its number.
 */

#ifndef V41_MODEL_H
#define V41_MODEL_H

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "engine/model/di_model.h"

#define V41_FP8   "t/data/tiny-v41-fp8"
#define V41_LEN   1024           /* tokens of a sequence at most            */
#define V41_SEQS  4

static char v41_plain[64];       /* directory of the plain checkpoint       */

static void
v41_remove(void)
{
    char command[128];

    (void) snprintf(command, sizeof(command), "rm -rf '%s'", v41_plain);
    if (system(command) != 0)
        printf("can't remove %s\n", v41_plain);
}

/* Unpack it; false: it can't be. */
static inline bool
v41_unpack(void)
{
    char command[512];

    (void) snprintf(v41_plain, sizeof(v41_plain), "/tmp/di-v41-XXXXXX");
    if (mkdtemp(v41_plain) == NULL)
        return false;
    (void) atexit(v41_remove);
    (void) snprintf(command, sizeof(command),
                    "cp t/data/tiny-v41/*.json '%s' && xz -dc "
                    "t/data/tiny-v41/model.safetensors.xz > "
                    "'%s/model.safetensors'", v41_plain, v41_plain);
    return system(command) == 0;
}

static bool v41_rounds;          /* caches as stored in any arithmetic      */
static uint32_t v41_states;      /* slots; 0: the model's default           */

static inline di_model_t *
v41_open(const char *dir, di_arith_t arith, uint32_t max_rows)
{
    di_model_conf_t conf = {
        .arith = arith, .round_caches = v41_rounds, .n_threads = 2,
        .max_rows = max_rows, .max_seqs = V41_SEQS, .max_model_len = V41_LEN,
        .kv_bytes = 64u << 20, .n_states = v41_states,
        .ops = getenv("DI_OPS"),
    };
    di_model_t *m = NULL;
    di_err_t    err = { 0 };

    CHECK_EQ_INT(di_model_open(dir, &conf, &m, &err), DI_OK);
    CHECK_EQ_STR(err.text, "");
    if (m == NULL)
        exit(check_done("v41"));
    return m;
}

typedef struct {
    uint32_t number;             /* 0 .. V41_SEQS - 1                       */
    uint32_t n;                  /* tokens known                            */
    uint32_t done;               /* of them, computed                       */
    uint32_t floor;              /* of windows                              */
    bool     keep_all;           /* rows before those kept, too             */
    int32_t  tokens[V41_LEN];
    uint32_t blocks[V41_LEN / 128];
} v41_seq_t;

static inline void
v41_seq_init(v41_seq_t *q, uint32_t number, const int32_t *tokens, uint32_t n)
{
    q->number = number;
    q->n = n;
    q->done = 0;
    q->floor = 0;
    q->keep_all = false;
    if (n > 0)
        memcpy(q->tokens, tokens, n * sizeof(*tokens));
    for (uint32_t i = 0; i < V41_LEN / 128; i++)
        q->blocks[i] = 1 + number * (V41_LEN / 128) + i;
}

/* The next n rows of a sequence. */
static inline di_model_seq_t
v41_part(const v41_seq_t *q, uint32_t n, uint32_t n_logits)
{
    return (di_model_seq_t) {
        .tokens = q->tokens + q->done, .blocks = q->blocks, .n_rows = n,
        .pos = q->done, .n_logits = n_logits, .slot = 1 + q->number,
        .floor = q->floor, .keep_all = q->keep_all };
}

static inline const float *
v41_run(di_model_t *m, const di_model_seq_t *parts, size_t n)
{
    const float *logits = NULL;

    CHECK_EQ_INT(di_model_step(m, parts, n), DI_OK);
    CHECK_EQ_INT(di_model_wait(m, &logits), DI_OK);
    return logits;
}

/* Run all of a sequence, `chunk` rows at a time; logits of every row. */
static inline float *
v41_rows(di_model_t *m, v41_seq_t *q, uint32_t chunk)
{
    const uint32_t vocab = di_model_info(m)->vocab;
    float         *all = malloc((size_t) q->n * vocab * sizeof(float));

    while (q->done < q->n) {
        uint32_t       n = q->n - q->done < chunk ? q->n - q->done : chunk;
        di_model_seq_t part = v41_part(q, n, n);

        memcpy(all + (size_t) q->done * vocab, v41_run(m, &part, 1),
               (size_t) n * vocab * sizeof(float));
        q->done += n;
    }
    return all;
}

/* ---------------------------------------------------------------- goldens */

static inline json_t *
v41_golden(const char *dir, const char *name)
{
    char         path[256];
    json_error_t err;
    json_t      *o;

    (void) snprintf(path, sizeof(path), "t/data/%s/golden/%s.json", dir,
                    name);
    o = json_load_file(path, 0, &err);
    if (o == NULL) {
        printf("%s: %s\n", path, err.text);
        exit(1);
    }
    return o;
}

static inline double
v41_num(const json_t *list, size_t i)
{
    return json_number_value(json_array_get(list, i));
}

static inline int32_t
v41_int(const json_t *o, const char *key)
{
    return (int32_t) json_integer_value(json_object_get(o, key));
}

/* ids of a prompt; the count. */
static inline uint32_t
v41_prompt(const json_t *prompts, const char *name, int32_t *ids)
{
    const json_t *list = json_object_get(json_object_get(prompts, name),
                                         "ids");

    for (size_t i = 0; i < json_array_size(list); i++)
        ids[i] = (int32_t) v41_num(list, i);
    return (uint32_t) json_array_size(list);
}

#endif
