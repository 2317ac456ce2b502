/*
 * sparse.h - arguments of the operators of hyper-connections, Engram and
 * latent attention: views resolved to plain pointers.
 *
 * Each of these operators is one file with its launch and its kernel.  They
 * work row by row on float32, whatever the arithmetic: only what enters a
 * matrix product is converted.
 */

#ifndef DI_CPU_SPARSE_H
#define DI_CPU_SPARSE_H

#include "../di_kernels.h"

typedef struct {
    uint8_t    *data;            /* unit 0's first record                   */
    size_t      stride;          /* bytes from unit to unit                 */
    size_t      data_bytes;      /* of a record                             */
    size_t      scale_bytes;
    size_t      step;            /* from record to record                   */
    size_t      scales_at;       /* from unit's start to the first scales   */
    size_t      scales_step;
    uint32_t    n;
    uint32_t    dim;
    di_cast_t   cast;
    bool        exact;
} di_cpu_cache_t;

/* Rows of a step, as plain arrays. */
typedef struct {
    size_t         n_rows;
    size_t         n_seqs;
    size_t         table_stride;
    const int32_t *positions;
    const int32_t *seq_first;
    const int32_t *tables;
    const int32_t *slots;
    const int32_t *floors;
} di_cpu_rows_t;

typedef struct {
    const float *freqs;
    size_t       rope_dim;
} di_cpu_rotation_t;

typedef struct {
    float         *t;
    float         *c;
    const float   *x;            /* x, o or kv                              */
    void          *y;
    size_t         y_stride;     /* bytes                                   */
    size_t         at;           /* hc_mean: first value of a row           */
    const int32_t *rows;
    const float   *fn, *base, *scale, *norm;
    size_t         m, k;
    uint32_t       n_iters;
    float          eps, hc_eps;
} di_cpu_hc_t;

typedef struct {
    uint8_t       *y;
    const uint8_t *x;
    const int32_t *rows;
    size_t         bytes;
} di_cpu_gather_t;

typedef struct {
    float         *y;
    di_wpart_t     table;
    const int32_t *ids;
    size_t         n;
    size_t         k;
} di_cpu_table_t;

/* Everything that makes, moves or stores vectors of a cache. */
typedef struct {
    di_cpu_cache_t    cache;
    di_cpu_rows_t     rows;
    di_cpu_rotation_t rotation;
    float            *x;         /* in, or rotated in place                 */
    const float      *g;
    const float      *w;         /* of the norm, NULL: none                 */
    float            *y;
    uint8_t          *fresh;
    size_t            n_heads;
    size_t            dim;
    size_t            ratio;
    float             eps;
} di_cpu_latent_t;

typedef struct {
    di_cpu_cache_t keys;
    di_cpu_rows_t  rows;
    const float   *q;
    const float   *w;
    int32_t       *selected;
    int32_t       *candidates;   /* NULL: not used                          */
    size_t         n_heads, top_k, ratio, cand_blocks, cand_size;
    size_t         scores;       /* of a row in the device's, 0: in scratch */
    bool           makes;
} di_cpu_index_t;

typedef struct {
    di_cpu_cache_t    ring, kv;
    di_cpu_rows_t     rows;
    di_cpu_rotation_t rotation;
    uint8_t          *y;
    size_t            y_stride;
    const float      *q;
    const float      *sinks;
    const uint8_t    *fresh;
    const int32_t    *selected;
    size_t            top_k, n_heads, n_groups, window;
    size_t            items;     /* of a row: groups, or 1 for all of them  */
    float             scale;
    bool              drafts;
} di_cpu_sparse_t;

/* Resolve views (cache.c). */
di_cpu_cache_t di_cpu_cache(const di_cache_t *cache);
di_cpu_rows_t di_cpu_rows(const di_rows_t *rows);
di_cpu_rotation_t di_cpu_rotation(const di_rotation_t *rotation);

/* Read and write record i of a unit; values are float32. */
void di_cpu_cache_get(const di_cpu_cache_t *c, int32_t unit, size_t i,
                      float *x);
void di_cpu_cache_put(const di_cpu_cache_t *c, int32_t unit, size_t i,
                      const float *x);

/* Number of the sequence that a row belongs to. */
size_t di_cpu_seq_of(const di_cpu_rows_t *rows, size_t row);

/* Rotate the last values of n vectors to a position, or back. */
void di_cpu_turn(const di_cpu_rotation_t *r, float *x, size_t n, size_t dim,
                 int32_t position, bool back);

/* x[i] *= w[i] / sqrt(mean(x^2) + eps); w NULL: 1. */
void di_cpu_rms(float *x, const float *w, size_t n, float eps);

/* a . b in eight chains; n a multiple of 8. */
float di_cpu_dot(const float *a, const float *b, size_t n);

#endif
