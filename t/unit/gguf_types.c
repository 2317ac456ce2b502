/*
 * gguf_types.c - generated model files of every weight type, and wrong ones.
 *
 * Each file is a model of two layers with random weights.  It is run by the
 * engine in every arithmetic and by a plain forward pass below, which knows
 * neither KV cache nor batches: double precision, all rows at once, straight
 * from the models' definition.  Files that are damaged or that we can't
 * compute exactly must be refused by an error that names what is wrong.
 *
 * Both passes read weights by di_dequantise(), so that is held against
 * t/data/dequant.json first: the values that the format's own library gives.
 */

#include <jansson.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "engine/model/di_model.h"

#include "check.h"
#include "tiny_model.h"

#define ROWS     37              /* more than two KV blocks                 */

/* ---------------------------------------------------- plain forward pass - */

/* Values of a tensor; free().  NULL if the model has none of that name. */
static float *
values(const make_t *m, const char *fmt, int layer)
{
    char name[64];

    (void) snprintf(name, sizeof(name), fmt, layer);
    for (size_t i = 0; i < m->n_tensors; i++) {
        const make_tensor_t *t = &m->tensors[i];
        size_t               n = t->dims[0] * (t->n_dims == 2 ? t->dims[1]
                                                              : 1);
        float               *v;

        if (strcmp(t->name, name) != 0)
            continue;
        v = malloc(n * sizeof(*v));
        if (v == NULL)
            abort();
        di_dequantise((di_wtype_t) t->type, t->data, n, v);
        return v;
    }
    return NULL;
}

/* y[r] = W x[r] (+ bias), or added to y. */
static void
plain_product(const make_t *m, const char *fmt, const char *bias_fmt,
              int layer, const double *x, size_t k, double *y, size_t n,
              bool add)
{
    float *w = values(m, fmt, layer);
    float *bias = bias_fmt != NULL ? values(m, bias_fmt, layer) : NULL;

    for (size_t r = 0; r < ROWS; r++) {
        for (size_t j = 0; j < n; j++) {
            double sum = bias != NULL ? (double) bias[j] : 0.0;

            for (size_t i = 0; i < k; i++)
                sum += (double) w[j * k + i] * x[r * k + i];
            y[r * n + j] = add ? y[r * n + j] + sum : sum;
        }
    }
    free(w);
    free(bias);
}

static void
plain_norm(const make_t *m, const char *fmt, int layer, const double *x,
           double *y)
{
    float *w = values(m, fmt, layer);

    for (size_t r = 0; r < ROWS; r++) {
        double sum = 0;

        for (size_t i = 0; i < DIM; i++)
            sum += x[r * DIM + i] * x[r * DIM + i];
        sum = 1.0 / sqrt(sum / DIM + (double) EPS);
        for (size_t i = 0; i < DIM; i++)
            y[r * DIM + i] = x[r * DIM + i] * sum * (double) w[i];
    }
    free(w);
}

static void
plain_rope(const make_t *m, double *x, size_t heads, bool halves)
{
    float *divisors = values(m, "rope_freqs.weight", 0);

    for (size_t r = 0; r < ROWS; r++) {
        for (size_t h = 0; h < heads; h++) {
            double *v = x + (r * heads + h) * HEAD_DIM;

            for (size_t i = 0; i < HEAD_DIM / 2; i++) {
                size_t a = halves ? i : 2 * i;
                size_t b = halves ? i + HEAD_DIM / 2 : 2 * i + 1;
                double angle = (double) r
                               * pow((double) BASE, -2.0 * (double) i
                                                    / HEAD_DIM);
                double va = v[a], vb = v[b];

                if (divisors != NULL)
                    angle /= (double) divisors[i];
                v[a] = va * cos(angle) - vb * sin(angle);
                v[b] = va * sin(angle) + vb * cos(angle);
            }
        }
    }
    free(divisors);
}

static void
plain_attention(const double *q, const double *k, const double *v, double *y)
{
    for (size_t r = 0; r < ROWS; r++) {
        for (size_t h = 0; h < HEADS; h++) {
            size_t        g = h / (HEADS / KV_HEADS);
            const double *qh = q + (r * HEADS + h) * HEAD_DIM;
            double       *yh = y + (r * HEADS + h) * HEAD_DIM;
            double        score[ROWS], best = -INFINITY, sum = 0;

            for (size_t t = 0; t <= r; t++) {
                const double *kh = k + (t * KV_HEADS + g) * HEAD_DIM;

                score[t] = 0;
                for (size_t i = 0; i < HEAD_DIM; i++)
                    score[t] += qh[i] * kh[i];
                score[t] /= sqrt(HEAD_DIM);
                best = score[t] > best ? score[t] : best;
            }
            memset(yh, 0, HEAD_DIM * sizeof(*yh));
            for (size_t t = 0; t <= r; t++) {
                const double *vh = v + (t * KV_HEADS + g) * HEAD_DIM;
                double        p = exp(score[t] - best);

                sum += p;
                for (size_t i = 0; i < HEAD_DIM; i++)
                    yh[i] += p * vh[i];
            }
            for (size_t i = 0; i < HEAD_DIM; i++)
                yh[i] /= sum;
        }
    }
}

static void
plain_layer(const make_t *m, int l, double *x, bool qwen2)
{
    static double y[ROWS * DIM], q[ROWS * HEADS * HEAD_DIM];
    static double k[ROWS * KV_HEADS * HEAD_DIM];
    static double v[ROWS * KV_HEADS * HEAD_DIM];
    static double a[ROWS * HEADS * HEAD_DIM], gate[ROWS * FFN], up[ROWS * FFN];

    plain_norm(m, "blk.%d.attn_norm.weight", l, x, y);
    plain_product(m, "blk.%d.attn_q.weight", "blk.%d.attn_q.bias", l, y, DIM,
                  q, HEADS * HEAD_DIM, false);
    plain_product(m, "blk.%d.attn_k.weight", "blk.%d.attn_k.bias", l, y, DIM,
                  k, KV_HEADS * HEAD_DIM, false);
    plain_product(m, "blk.%d.attn_v.weight", "blk.%d.attn_v.bias", l, y, DIM,
                  v, KV_HEADS * HEAD_DIM, false);
    plain_rope(m, q, HEADS, qwen2);
    plain_rope(m, k, KV_HEADS, qwen2);
    plain_attention(q, k, v, a);
    plain_product(m, "blk.%d.attn_output.weight", NULL, l, a,
                  HEADS * HEAD_DIM, x, DIM, true);

    plain_norm(m, "blk.%d.ffn_norm.weight", l, x, y);
    plain_product(m, "blk.%d.ffn_gate.weight", NULL, l, y, DIM, gate, FFN,
                  false);
    plain_product(m, "blk.%d.ffn_up.weight", NULL, l, y, DIM, up, FFN, false);
    for (size_t i = 0; i < ROWS * FFN; i++)
        gate[i] = gate[i] / (1.0 + exp(-gate[i])) * up[i];
    plain_product(m, "blk.%d.ffn_down.weight", NULL, l, gate, FFN, x, DIM,
                  true);
}

static void
plain_forward(const make_t *m, const int32_t *ids, bool qwen2,
              double *logits)
{
    static double x[ROWS * DIM], y[ROWS * DIM];
    float        *embed = values(m, "token_embd.weight", 0);

    for (size_t r = 0; r < ROWS; r++) {
        for (size_t i = 0; i < DIM; i++)
            x[r * DIM + i] = (double) embed[(size_t) ids[r] * DIM + i];
    }
    free(embed);
    for (int l = 0; l < LAYERS; l++)
        plain_layer(m, l, x, qwen2);
    plain_norm(m, "output_norm.weight", 0, x, y);
    plain_product(m, qwen2 ? "token_embd.weight" : "output.weight", NULL, 0,
                  y, DIM, logits, VOCAB, false);
}

/* ---------------------------------------------------------------- vectors - */

static size_t
unhex(const char *hex, uint8_t *out, size_t cap)
{
    size_t n = 0;

    for (unsigned v; n < cap && sscanf(hex + 2 * n, "%2x", &v) == 1; n++)
        out[n] = (uint8_t) v;
    return n;
}

static void
test_vectors(void)
{
    json_t *list = json_load_file("t/data/dequant.json", 0, NULL);

    CHECK_EQ_INT(json_array_size(list), 10);
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t    *o = json_array_get(list, i);
        json_t    *want = json_object_get(o, "values");
        di_wtype_t type = (di_wtype_t) json_integer_value(
                              json_object_get(o, "type"));
        size_t     n = json_array_size(want), wrong = 0;
        uint8_t    raw[2048];
        float      got[256];

        CHECK_EQ_INT(n, 256);
        CHECK_EQ_INT(unhex(json_string_value(json_object_get(o, "bytes")),
                           raw, sizeof(raw)), di_wtype_bytes(type, n));
        CHECK_EQ_STR(di_wtype_name(type),
                     json_string_value(json_object_get(o, "name")));
        di_dequantise(type, raw, n, got);
        for (size_t k = 0; k < n; k++)
            wrong += got[k] != (float) json_real_value(json_array_get(want,
                                                                      k));
        if (wrong > 0)
            printf("%s: %zu of %zu values differ\n", di_wtype_name(type),
                   wrong, n);
        CHECK_EQ_INT(wrong, 0);
    }
    json_decref(list);
}

/* ------------------------------------------------------------- comparison - */

static char path[64];

static di_model_t *
open_file(di_arith_t arith, di_err_t *err)
{
    di_model_conf_t conf = { .arith = arith, .n_threads = 2,
                             .max_rows = 64, .max_seqs = 2 };
    di_model_t     *model = NULL;

    memset(err, 0, sizeof(*err));
    (void) di_model_open(path, &conf, &model, err);
    return model;
}

/* Relative error of all logits, in two steps: the second reads what the first
 * put into the KV cache. */
static double
engine_error(di_model_t *model, const int32_t *ids, const double *want)
{
    static const uint32_t blocks[] = { 5, 2, 7 };
    di_model_seq_t        s = { .tokens = ids, .blocks = blocks,
                                .n_rows = 21, .n_logits = 21 };
    double                diff = 0, all = 0;
    const float          *got;

    for (int part = 0; part < 2; part++) {
        CHECK_EQ_INT(di_model_step(model, &s, 1), DI_OK);
        CHECK_EQ_INT(di_model_wait(model, &got), DI_OK);
        for (size_t i = 0; i < (size_t) s.n_rows * VOCAB; i++) {
            double w = want[(size_t) s.pos * VOCAB + i];

            diff += (got[i] - w) * (got[i] - w);
            all += w * w;
        }
        s.tokens += s.n_rows;
        s.pos = s.n_rows;
        s.n_rows = s.n_logits = ROWS - s.pos;
    }
    return sqrt(diff / all);
}

static void
test_type(const char *arch, di_wtype_t type)
{
    static const struct { di_arith_t arith; double bound; } ariths[] = {
        { DI_ARITH_F32, 1e-5 }, { DI_ARITH_BF16, 0.015 },
        { DI_ARITH_Q8, 0.03 },
    };
    static double want[ROWS * VOCAB];
    int32_t       ids[ROWS];
    make_t        m;
    di_err_t      err;

    make_model(&m, arch, type);
    make_write(&m, path);
    for (size_t i = 0; i < ROWS; i++)
        ids[i] = (int32_t) (draw() % VOCAB);
    plain_forward(&m, ids, strcmp(arch, "qwen2") == 0, want);

    for (size_t i = 0; i < sizeof(ariths) / sizeof(ariths[0]); i++) {
        di_model_t *model = open_file(ariths[i].arith, &err);
        double      e;

        if (model == NULL)
            printf("%s %s: %s\n", arch, di_wtype_name(type), err.text);
        CHECK(model != NULL);
        if (model == NULL)
            continue;
        e = engine_error(model, ids, want);
        if (!(e < ariths[i].bound))
            printf("%s %s %s: error %g\n", arch, di_wtype_name(type),
                   di_model_info(model)->arith, e);
        CHECK(e < ariths[i].bound);
        di_model_close(model);
    }
    make_free(&m);
}

/* ------------------------------------------------------------ wrong files - */

/* The file at `path` must be refused with a text that has all the parts. */
static void
refused(int code, const char *part1, const char *part2)
{
    di_err_t    err;
    di_model_t *model = open_file(DI_ARITH_F32, &err);
    bool        right = model == NULL && err.code == code
                        && strstr(err.text, part1) != NULL
                        && strstr(err.text, part2) != NULL;

    if (!right)
        printf("expected error %d with \"%s\" and \"%s\", got %d: %s\n",
               code, part1, part2, err.code, err.text);
    CHECK(right);
    di_model_close(model);
}

static void
test_truncated(void)
{
    make_t       m;
    make_bytes_t file;

    make_model(&m, "llama", DI_W_Q8_0);
    make_file(&m, &file);
    for (size_t len = 0; len < file.len;
         len += len < 4096 ? 13 : 1 + draw() % 9000) {
        di_err_t err;

        make_write_bytes(&file, len, path);
        CHECK(open_file(DI_ARITH_F32, &err) == NULL);
        CHECK(err.code != DI_OK && err.text[0] != '\0');
    }
    free(file.data);
    make_free(&m);
}

/* Header and directory with random bytes changed: an error or a model, but
 * no crash. */
static void
test_damaged(void)
{
    make_t       m;
    make_bytes_t file;
    size_t       meta;

    make_model(&m, "qwen2", DI_W_Q4_0);
    make_file(&m, &file);
    meta = m.kv.len + 24 + m.n_tensors * 60;
    for (int i = 0; i < 2000; i++) {
        size_t      at = draw() % meta;
        uint8_t     was = file.data[at];
        di_err_t    err;
        di_model_t *model;

        file.data[at] = (uint8_t) draw();
        make_write_bytes(&file, file.len, path);
        model = open_file(DI_ARITH_F32, &err);
        CHECK(model != NULL || (err.code != DI_OK && err.text[0] != '\0'));
        di_model_close(model);
        file.data[at] = was;
    }
    free(file.data);
    make_free(&m);
}

/* A value that is none, which only verifying reads. */
static void
test_verify(uint32_t type, size_t at, const char *bytes, const char *text)
{
    make_t      m;
    di_err_t    err = { 0 };
    di_model_t *model;

    make_model(&m, "llama", type);
    make_write(&m, path);
    model = open_file(DI_ARITH_F32, &err);
    CHECK_EQ_INT(di_model_verify(model, &err), DI_OK);
    di_model_close(model);

    memcpy(make_find(&m, "blk.1.attn_k.weight")->data + at, bytes, 2);
    make_write(&m, path);
    model = open_file(DI_ARITH_F32, &err);
    CHECK_EQ_INT(di_model_verify(model, &err), DI_EFORMAT);
    CHECK(strstr(err.text, "tensor blk.1.attn_k.weight") != NULL);
    CHECK(strstr(err.text, text) != NULL);
    di_model_close(model);
    make_free(&m);
}

static void
test_wrong_tensors(void)
{
    make_t         m;
    make_tensor_t *t;

    make_model(&m, "llama", DI_W_F16);
    t = make_find(&m, "blk.1.attn_k.weight");
    t->dims[0] = KV_HEADS * HEAD_DIM;
    t->dims[1] = DIM;
    make_write(&m, path);
    refused(DI_EFORMAT, "blk.1.attn_k.weight at byte",
            "shape 128x256 in 2 dimensions, expected 256x128");
    t->dims[0] = DIM;
    t->dims[1] = KV_HEADS * HEAD_DIM;

    t->type = 20;                /* IQ4_NL: the reader knows it, we don't   */
    make_write(&m, path);
    refused(DI_EUNSUPPORTED, "blk.1.attn_k.weight at byte", "type 20");
    t->type = DI_W_F16;

    (void) snprintf(t->name, sizeof(t->name), "blk.1.attn_x.weight");
    make_write(&m, path);
    refused(DI_EFORMAT, "no tensor", "blk.1.attn_k.weight");
    (void) snprintf(t->name, sizeof(t->name), "blk.1.attn_k.weight");

    random_tensor(&m, "blk.0.ffn_gate_exps.weight", 4, 64, DI_W_F32);
    make_write(&m, path);
    refused(DI_EUNSUPPORTED, "blk.0.ffn_gate_exps.weight at byte",
            "not known");
    make_free(&m);

    make_model(&m, "qwen2", DI_W_F16);
    t = make_find(&m, "blk.0.attn_q.bias");
    (void) snprintf(t->name, sizeof(t->name), "blk.0.attn_o.bias");
    make_write(&m, path);
    refused(DI_EFORMAT, "no tensor", "blk.0.attn_q.bias");
    make_free(&m);
}

/* A model with one more key. */
static void
refused_key(const char *key, const char *text, uint32_t number, int code,
            const char *part)
{
    make_t m;

    make_model(&m, "llama", DI_W_Q4_0);
    if (text != NULL)
        make_str(&m, key, text);
    else
        make_u32(&m, key, number);
    make_write(&m, path);
    refused(code, key, part);
    make_free(&m);
}

static void
test_wrong_keys(void)
{
    make_t m;

    refused_key("llama.rope.scaling.type", "yarn", 0, DI_EUNSUPPORTED,
                "yarn");
    refused_key("llama.expert_count", NULL, 8, DI_EUNSUPPORTED, "is set");
    refused_key("llama.attention.sliding_window", NULL, 4096,
                DI_EUNSUPPORTED, "is set");
    refused_key("llama.something_new", NULL, 1, DI_EUNSUPPORTED,
                "not known");
    refused_key("llama.attention.key_length", NULL, 48, DI_EUNSUPPORTED,
                "key_length 48 and value_length 48");
    refused_key("llama.rope.dimension_count", NULL, 65, DI_EFORMAT,
                "expected 2 to 64");
    refused_key("llama.rope.freq_base_swa", "x", 0, DI_EUNSUPPORTED,
                "not known");

    make_model(&m, "mamba", DI_W_Q4_0);
    make_write(&m, path);
    refused(DI_EUNSUPPORTED, "architecture", "mamba");
    make_free(&m);

    memset(&m, 0, sizeof(m));
    make_str(&m, "general.architecture", "llama");
    make_write(&m, path);
    refused(DI_EFORMAT, "no key", "llama.block_count");
    make_free(&m);

    memset(&m, 0, sizeof(m));
    make_write(&m, path);
    refused(DI_EFORMAT, "no key", "general.architecture");
    make_free(&m);
}

int
main(void)
{
    static const di_wtype_t types[] = {
        DI_W_F32, DI_W_F16, DI_W_BF16, DI_W_Q4_0, DI_W_Q4_1, DI_W_Q5_0,
        DI_W_Q5_1, DI_W_Q8_0, DI_W_Q4_K, DI_W_Q5_K, DI_W_Q6_K,
    };
    const char *seed = getenv("TEST_SEED");

    uint64_t    first = seed != NULL ? strtoull(seed, NULL, 10)
                                     : (uint64_t) time(NULL);

    printf("seed %llu\n", (unsigned long long) first);
    (void) snprintf(path, sizeof(path), "/tmp/di-gguf-types-%d.gguf",
                    (int) getpid());

    test_vectors();
    /* How much a random network amplifies rounding varies by network: the
     * bounds are for these. */
    rng = 20261130;
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        test_type("llama", types[i]);
        test_type("qwen2", types[i]);
    }
    rng = first;
    test_truncated();
    test_damaged();
    test_verify(DI_W_F16, 600, "\x00\xfc", "value 300 is no finite number");
    test_verify(DI_W_Q8_0, 7 * 34, "\x00\x7c", "value 224 is no finite");
    test_wrong_tensors();
    test_wrong_keys();
    (void) unlink(path);
    return check_done("gguf_types");
}
