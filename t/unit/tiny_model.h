/*
 * tiny_model.h - a model of two layers with random weights, as a GGUF file.
 *
 * Architectures and weight types are those that the engine knows.  Blocks of
 * quantised types are random bits but for their scales, so that every code
 * and every sub-scale occurs.
 */

#ifndef TINY_MODEL_H
#define TINY_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/di_kernels.h"

#include "gguf_make.h"

/* Widths suit every weight type; a user may want less. */
#ifndef DIM
#define DIM      256
#define HEADS    4
#define KV_HEADS 2
#define HEAD_DIM 64
#define FFN      512
#define LAYERS   2
#define VOCAB    96
#endif
#define CONTEXT  128
#define EPS      1e-5f
#define BASE     10000.0f

static uint64_t rng;             /* set it first; print it                  */

static inline uint32_t
draw(void)
{
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t) (rng >> 32);
}

/* In [-1, 1). */
static inline float
draw_float(void)
{
    return (float) (int32_t) draw() / 2147483648.0f;
}

/* float32 to float16 towards zero, for values in float16's range. */
static inline uint16_t
half(float v)
{
    uint32_t bits, sign, mantissa;
    int      exponent;

    memcpy(&bits, &v, sizeof(bits));
    sign = (bits >> 16) & 0x8000;
    exponent = (int) ((bits >> 23) & 255) - 112;
    mantissa = (bits & 0x7fffff) | 0x800000;
    if (exponent < -10)
        return (uint16_t) sign;
    if (exponent <= 0)
        return (uint16_t) (sign | mantissa >> (14 - exponent));
    return (uint16_t) (sign | (uint32_t) exponent << 10
                       | (mantissa >> 13 & 0x3ff));
}

/* Where the float16 scale of a block is, and that of its minimum; the rest
 * of a block may be any bits. */
typedef struct {
    di_wtype_t type;
    int        scale_at;
    int        min_at;           /* -1: none                                */
    float      scale;            /* gives weights of about a tenth          */
} quant_t;

static const quant_t quants[] = {
    { DI_W_Q4_0, 0, -1, 0.012f }, { DI_W_Q4_1, 0, 2, 0.012f },
    { DI_W_Q5_0, 0, -1, 0.006f }, { DI_W_Q5_1, 0, 2, 0.006f },
    { DI_W_Q8_0, 0, -1, 0.0008f }, { DI_W_Q4_K, 0, 2, 0.0002f },
    { DI_W_Q5_K, 0, 2, 0.0001f }, { DI_W_Q6_K, 208, -1, 0.00003f },
};

static inline uint8_t *
random_quants(const quant_t *q, size_t n, size_t *bytes)
{
    size_t   block = di_wtype_bytes(q->type, di_wtype_block(q->type));
    uint8_t *data;

    *bytes = di_wtype_bytes(q->type, n);
    data = malloc(*bytes);
    if (data == NULL)
        abort();
    for (size_t i = 0; i < *bytes; i++)
        data[i] = (uint8_t) draw();
    for (size_t at = 0; at < *bytes; at += block) {
        uint16_t d = half(q->scale * (1.5f + 0.5f * draw_float()));
        uint16_t m = half(-7.5f * q->scale * (1.0f + 0.1f * draw_float()));

        /* K-quants subtract their minimum, the others add it. */
        if (q->type == DI_W_Q4_K || q->type == DI_W_Q5_K)
            m ^= 0x8000;
        memcpy(data + at + q->scale_at, &d, 2);
        if (q->min_at >= 0)
            memcpy(data + at + q->min_at, &m, 2);
    }
    return data;
}

static inline uint8_t *
random_floats(di_wtype_t type, size_t n, float centre, size_t *bytes)
{
    uint8_t *data;

    *bytes = di_wtype_bytes(type, n);
    data = malloc(*bytes);
    if (data == NULL)
        abort();
    for (size_t i = 0; i < n; i++) {
        float    v = centre + 0.1f * draw_float();
        uint16_t h = half(v);
        uint32_t bits;

        memcpy(&bits, &v, 4);
        if (type == DI_W_F32)
            memcpy(data + 4 * i, &v, 4);
        else if (type == DI_W_F16)
            memcpy(data + 2 * i, &h, 2);
        else
            memcpy(data + 2 * i, (uint8_t *) &bits + 2, 2);
    }
    return data;
}

static inline void
random_tensor(make_t *m, const char *name, size_t rows, size_t cols,
              di_wtype_t type)
{
    size_t   n = (rows == 0 ? 1 : rows) * cols, bytes;
    uint8_t *data = NULL;

    for (size_t i = 0; i < sizeof(quants) / sizeof(quants[0]); i++) {
        if (quants[i].type == type)
            data = random_quants(&quants[i], n, &bytes);
    }
    if (data == NULL)
        data = random_floats(type, n, strstr(name, "norm") ? 1.0f
                             : strcmp(name, "rope_freqs.weight") == 0 ? 2.0f
                             : 0.0f, &bytes);
    (void) make_tensor(m, name, rows, cols, type, data, bytes);
}

static inline void
layer_tensor(make_t *m, int layer, const char *name, size_t rows, size_t cols,
             di_wtype_t type)
{
    char full[64];

    (void) snprintf(full, sizeof(full), "blk.%d.%s", layer, name);
    random_tensor(m, full, rows, cols, type);
}

static inline void
put_arch_u32(make_t *m, const char *arch, const char *key, uint32_t v)
{
    char full[96];

    (void) snprintf(full, sizeof(full), "%s.%s", arch, key);
    make_u32(m, full, v);
}

static inline void
put_arch_f32(make_t *m, const char *arch, const char *key, float v)
{
    char full[96];

    (void) snprintf(full, sizeof(full), "%s.%s", arch, key);
    make_f32(m, full, v);
}

/* llama: an output tensor of its own, divided rotary frequencies; qwen2:
 * tied, biases. */
static inline void
make_model(make_t *m, const char *arch, di_wtype_t type)
{
    bool qwen2 = strcmp(arch, "qwen2") == 0;

    memset(m, 0, sizeof(*m));
    make_str(m, "general.architecture", arch);
    make_str(m, "general.name", "generated");
    put_arch_u32(m, arch, "block_count", LAYERS);
    put_arch_u32(m, arch, "context_length", CONTEXT);
    put_arch_u32(m, arch, "embedding_length", DIM);
    put_arch_u32(m, arch, "feed_forward_length", FFN);
    put_arch_u32(m, arch, "attention.head_count", HEADS);
    put_arch_u32(m, arch, "attention.head_count_kv", KV_HEADS);
    put_arch_f32(m, arch, "attention.layer_norm_rms_epsilon", EPS);
    put_arch_f32(m, arch, "rope.freq_base", BASE);

    random_tensor(m, "token_embd.weight", VOCAB, DIM, type);
    random_tensor(m, "output_norm.weight", 0, DIM, DI_W_F32);
    if (!qwen2) {
        random_tensor(m, "output.weight", VOCAB, DIM, type);
        random_tensor(m, "rope_freqs.weight", 0, HEAD_DIM / 2, DI_W_F32);
    }
    for (int i = 0; i < LAYERS; i++) {
        layer_tensor(m, i, "attn_norm.weight", 0, DIM, DI_W_F32);
        layer_tensor(m, i, "attn_q.weight", HEADS * HEAD_DIM, DIM, type);
        layer_tensor(m, i, "attn_k.weight", KV_HEADS * HEAD_DIM, DIM, type);
        layer_tensor(m, i, "attn_v.weight", KV_HEADS * HEAD_DIM, DIM, type);
        layer_tensor(m, i, "attn_output.weight", DIM, HEADS * HEAD_DIM, type);
        layer_tensor(m, i, "ffn_norm.weight", 0, DIM, DI_W_F32);
        layer_tensor(m, i, "ffn_gate.weight", FFN, DIM, type);
        layer_tensor(m, i, "ffn_up.weight", FFN, DIM, type);
        layer_tensor(m, i, "ffn_down.weight", DIM, FFN, type);
        if (!qwen2)
            continue;
        layer_tensor(m, i, "attn_q.bias", 0, HEADS * HEAD_DIM, DI_W_F32);
        layer_tensor(m, i, "attn_k.bias", 0, KV_HEADS * HEAD_DIM, DI_W_F32);
        layer_tensor(m, i, "attn_v.bias", 0, KV_HEADS * HEAD_DIM, DI_W_F32);
    }
}

#endif
