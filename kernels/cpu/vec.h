/*
 * vec.h - loops over float32 vectors, which latent attention, the indexer and
 * hyper-connections spend their time in.
 *
 * They are the same for all arithmetics, and all variants have the same bits:
 * sums are FMAs, in the chains that a loop's comment names.
 * So di_cpu_vec, which dev.c sets when a device is opened, may be any of them.
 */

#ifndef DI_CPU_VEC_H
#define DI_CPU_VEC_H

#include <stddef.h>
#include <stdint.h>

#include "../cast.h"

/* A row's queries to an index of E2M1 records, rounded like these. */
typedef struct {
    size_t       n_heads;
    size_t       dim;            /* a multiple of 32, DI_VEC_DIM at most    */
    int8_t      *q;              /* [n_heads][dim] twice the values; of each
                                  * eight the even ones first               */
    float       *scale;          /* [n_heads][dim / 32] a quarter of it     */
    int32_t     *start;          /* [n_heads][dim / 32] less 12 times the
                                  * sum of q: keys' codes are 12 too large  */
    const float *w;              /* [n_heads] of the scores                 */
} di_cpu_queries_t;

#define DI_VEC_DIM 1024

typedef struct {
    /* out[i * stride + j] = a[i] . b[j], rows of k values, a multiple of 16:
     * sixteen chains, over every sixteenth value each, added as a tree:
     * halves, quarters, ... */
    void (*dots)(const float *a, size_t n_a, const float *b, size_t n_b,
                 size_t k, float *out, size_t stride);

    /* y[i] = sum_j w[i * stride + j] b[j], rows of k values, a multiple of 16:
     * a chain over j for each value. */
    void (*weigh)(float *y, size_t n_y, const float *w, size_t stride,
                  const float *b, size_t n_b, size_t k);

    /* t[j] = post[j] o + sum_i comb[i * m + j] t[i], at most 8 vectors of k
     * values, a multiple of 16: a chain over i. */
    void (*remix)(float *t, const float *post, const float *comb,
                  const float *o, size_t m, size_t k);

    /* x[i] = e^(s x[i]) / (sum_j e^(s x[j]) + e^sink), where s scales: 2 ulp
     * of the largest; its powers below 2^-125 are 0.  The sum as in dots(). */
    void (*softmax)(float *x, size_t n, float s, float sink);

    /* y[j] = sum_i w[i] max(0, x[i * stride + j]) for j < 16: a chain over i
     * for each. */
    void (*gate)(float *y, const float *w, const float *x, size_t n,
                 size_t stride);

    /* Fill q, scale and start from x [n_heads][dim]. */
    void (*queries)(const di_cpu_queries_t *to, const float *x);

    /* y[j] = sum_h w[h] max(0, q[h] . key[j]) of 16 keys, each a record of
     * DI_CAST_E2M1_32: products of 32 values are exact, then a chain of FMAs
     * in order of runs, and one in order of heads. */
    void (*score)(float *y, const di_cpu_queries_t *q,
                  const uint8_t *const *data, const uint8_t *const *scales);

    /* di_cast_get() of n values, a multiple of 32. */
    void (*cast_get)(di_cast_t cast, const uint8_t *data,
                     const uint8_t *scales, size_t n, float *x);
} di_cpu_vec_t;

extern const di_cpu_vec_t di_cpu_vec_ref;
extern const di_cpu_vec_t di_cpu_vec_avx2;
extern const di_cpu_vec_t di_cpu_vec_avx512;

extern const di_cpu_vec_t *di_cpu_vec;   /* the one in use                  */

/* Of softmax(): e^x = 2^n e^r, n the integer nearest to x / ln 2, ln 2 in two
 * parts, e^r by a polynomial. */
#define DI_EXP_LOG2E   0x1.715476p+0f
#define DI_EXP_HIGH    0x1.62ep-1f       /* few bits: its product is exact  */
#define DI_EXP_LOW     0x1.0bfbe8p-15f
#define DI_EXP_LEAST   (-86.6f)          /* about ln 2^-125                 */
#define DI_EXP_C2      4.99999851e-1f
#define DI_EXP_C3      1.66664720e-1f
#define DI_EXP_C4      4.16695364e-2f
#define DI_EXP_C5      8.37312452e-3f
#define DI_EXP_C6      1.37805939e-3f

#endif
