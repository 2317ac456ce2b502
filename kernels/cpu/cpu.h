/*
 * cpu.h - inside of the CPU backend.
 *
 * Layers, lowest first:
 *
 *   kernels   di_cpu_kern_t: the numeric work for one arithmetic on one
 *             instruction set.  Entry points take plain pointers and a range
 *             (rows, panels); they know nothing of threads and streams.  One
 *             table is picked when the device is opened and never changes.
 *   pool      pool.c: a fixed set of threads that run a list of ops in order;
 *             an op is n_parts independent parts.
 *   streams   stream.c: each launch becomes one op record, resolved to plain
 *             pointers; graphs are kept lists of records.
 *   device    dev.c: opening, buffers; weight.c: weights and their repacking.
 *
 * Batch invariance is the kernels' duty: whatever range they are given, a
 * row's result is made by the same operations in the same order.  How an op
 * is cut into parts is then free, and follows speed alone.
 */

#ifndef DI_CPU_H
#define DI_CPU_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "../di_kernels.h"
#include "../wtype.h"
#include "sparse.h"
#include "vec.h"

#define DI_CPU_PANEL        16   /* output columns of a weight panel        */
#define DI_CPU_ROW_TILE     16   /* rows that one call of a kernel shares   */
#define DI_CPU_KV_TOKENS    16   /* tokens of a KV block                    */
#define DI_CPU_KV_SEGMENT  256   /* keys of one softmax segment             */
#define DI_CPU_HEAD_MAX    256   /* head_dim at most                        */
#define DI_CPU_K_MAX     65536   /* values of an activation row at most     */
#define DI_CPU_SCRATCH (6u << 20) /* bytes of scratch per thread            */
#define DI_CPU_GATHER  (4u << 20) /* and for rows that it brings together   */
#define DI_CPU_EXPERT_ROWS  64    /* of these at most                       */

typedef struct di_cpu_kern_s di_cpu_kern_t;

/* -- weights -------------------------------------------------------------- */

/* A large mapping that weights are cut from (arena.c). */
typedef struct {
    uint8_t *data;
    size_t   bytes;
    size_t   used;
    size_t   refs;               /* matrices in it, and the device          */
} di_cpu_chunk_t;

/* Output rows of a weight that share a format.  Panels of a part begin at its
 * first row; the last panel of a part may be partly empty (zeros). */
typedef struct {
    di_wtype_t  type;
    const void *data;            /* rows as in the file; borrowed           */
    const void *scales;          /* of micro formats; borrowed              */
    size_t      row_bytes;       /* of a row of data                        */
    size_t      n;               /* output rows                             */
    size_t      first;           /* of them, in the whole weight            */
    size_t      n_panels;
    size_t      first_panel;     /* in the whole weight                     */
    size_t      panel_bytes;     /* of a repacked panel                     */
    uint8_t    *packed;          /* [n_panels][panel_bytes], 64-byte aligned,
                                  * NULL if the kernels read data           */
} di_cpu_wpart_t;

struct di_weight_s {
    size_t          n;           /* output rows in all                      */
    size_t          k;
    size_t          n_panels;    /* in all                                  */
    size_t          bytes;       /* read by one product                     */
    di_cpu_chunk_t *chunk;       /* holds the packed parts; one ref         */
    size_t          memory_bytes;    /* of all packed parts                 */
    size_t          n_parts;
    di_cpu_wpart_t  parts[];
};

struct di_experts_s {
    size_t       n;              /* experts                                 */
    size_t       bytes;          /* of all                                  */
    di_weight_t *w[];            /* [n], of one shape                       */
};

/* -- arguments of kernels -------------------------------------------------- */

typedef struct {
    uint8_t       *y;            /* activation rows                         */
    size_t         y_stride;     /* bytes                                   */
    float         *x;
    const float   *add;          /* NULL: no residual                       */
    const float   *w;
    const int32_t *rows;         /* NULL: rows in order                     */
    size_t         k;
    float          eps;
} di_cpu_norm_t;

typedef struct {
    uint8_t     *y;
    size_t       y_stride;
    const float *gu;
    const float *c;              /* a factor for each row, NULL: 1          */
    float        limit;          /* of both factors, INFINITY: none         */
    size_t       k;
} di_cpu_silu_t;

typedef struct {
    uint8_t     *y;
    size_t       y_stride;
    const float *x;
    size_t       k;
} di_cpu_convert_t;

typedef struct {
    int32_t     *ids;            /* [n_rows][top_k]                         */
    float       *weights;        /* [n_rows][top_k]                         */
    const float *logits;         /* [n_rows][n]                             */
    const float *bias;           /* [n]                                     */
    float        scale;
    size_t       n;
    size_t       top_k;
} di_cpu_route_t;

typedef struct {
    float       *y;
    const float *x;              /* [n_rows * n][k]                         */
    const float *add;            /* NULL: none                              */
    size_t       n;
    size_t       k;
} di_cpu_sum_t;

typedef struct {
    float             *out;
    const uint8_t     *act;
    size_t             act_stride;
    const di_weight_t *w;
    const float       *bias;     /* NULL: none                              */
} di_cpu_matmul_t;

typedef struct {
    float              *out;
    const uint8_t      *act;
    size_t              act_stride;
    const di_experts_t *w;
    const int32_t      *ids;     /* [n_outs]                                */
    size_t              n_outs;
    size_t              per_row; /* outputs of an activation row            */
} di_cpu_experts_t;

/* Rows of one expert, multiplied together. */
typedef struct {
    uint32_t expert;
    uint32_t first;              /* in the order of outputs by experts      */
    uint32_t n;                  /* 1 .. DI_CPU_EXPERT_ROWS                 */
} di_cpu_expert_item_t;

/* Scale or minimum i of a packed block, whose numbers begin at p. */
static inline void
di_cpu_put_number(uint8_t *p, size_t i, bool f16, float value)
{
    uint16_t h = di_f32_to_f16(value);

    if (f16)
        memcpy(p + 2 * i, &h, 2);
    else
        memcpy(p + 4 * i, &value, 4);
}

/* KV blocks of one layer.  A region is the K or V values of one KV head in
 * one block; where a value lies in it is the kernels' own. */
typedef struct {
    uint8_t *data;               /* block 0 of this layer                   */
    size_t   block_bytes;        /* from block to block                     */
    size_t   region_bytes;       /* K, then V: two regions per head         */
    uint32_t n_kv_heads;
    uint32_t head_dim;
} di_cpu_kv_t;

static inline uint8_t *
di_cpu_kv_region(const di_cpu_kv_t *kv, int32_t block, uint32_t head)
{
    return kv->data + (size_t) block * kv->block_bytes
           + 2 * (size_t) head * kv->region_bytes;
}

typedef struct {
    float            *qkv;       /* [n_rows][(n_heads + 2 n_kv) head_dim]   */
    uint32_t          n_heads;
    di_cpu_kv_t       kv;
    const int32_t    *positions;
    const float      *freqs;
    di_rope_style_t   style;
} di_cpu_rope_t;

typedef struct {
    uint8_t        *y;
    size_t          y_stride;
    const float    *qkv;
    uint32_t        n_heads;
    di_cpu_kv_t     kv;
    const int32_t  *positions;
    float           scale;
} di_cpu_attn_t;

/* Adjacent rows of one sequence, one KV head's group of query heads.  Where
 * there are too few of these for the threads, each segment of keys is an item
 * of its own: the last that is done merges them, in order. */
typedef struct {
    const int32_t    *table;     /* the sequence's KV blocks                */
    uint32_t          first_row;
    uint32_t          n_rows;    /* 1 .. DI_CPU_ROW_TILE                    */
    uint32_t          kv_head;
    uint32_t          segment;   /* to do, if partial is not NULL           */
    uint32_t          n_segments;
    float            *partial;   /* [n_segments][kern->partial_floats()] of
                                  * all segments; NULL: do all, no merge    */
    _Atomic uint32_t *left;      /* segments not done                       */
} di_cpu_attn_item_t;

/* -- kernels --------------------------------------------------------------- */

struct di_cpu_kern_s {
    const char *name;            /* "bf16-amx": the device's arith_name     */
    const char *ops;             /* "amx": what conf.ops says to pick it    */
    di_arith_t  arith;
    size_t      kv_value_bytes;  /* 4 or 2                                  */
    const di_cpu_vec_t *vec;     /* loops, which have the bits of all others */

    /* Does this CPU (and its kernel) run it?  May ask for permission. */
    bool (*usable)(void);
    /* Once per thread before its first op; may be NULL. */
    void (*thread_init)(void);

    size_t (*act_bytes)(size_t k);       /* a multiple of 64                */

    /* Bytes of a repacked panel, 0: the kernels read the file's rows (of
     * micro formats always); and repack panel p of a part. */
    size_t (*panel_bytes)(di_wtype_t type, size_t k);
    void (*pack)(const di_cpu_wpart_t *part, size_t k, size_t p);

    /* Rows [r0, r1) of the op. */
    void (*norm)(const di_cpu_norm_t *a, size_t r0, size_t r1);
    void (*silu_mul)(const di_cpu_silu_t *a, size_t r0, size_t r1);
    void (*convert)(const di_cpu_convert_t *a, size_t r0, size_t r1);
    void (*rope_store)(const di_cpu_rope_t *a, const int32_t *table,
                       size_t r0, size_t r1);    /* rows of one sequence    */

    /* Panels [p0, p1) of one part, rows [r0, r1); scratch is the thread's,
     * DI_CPU_SCRATCH bytes, 64-byte aligned. */
    void (*matmul)(const di_cpu_matmul_t *a, const di_cpu_wpart_t *part,
                   size_t p0, size_t p1, size_t r0, size_t r1,
                   void *scratch);
    /* The same of a part in a micro format; NULL: the arithmetic has none. */
    void (*matmul_micro)(const di_cpu_matmul_t *a, const di_cpu_wpart_t *part,
                         size_t p0, size_t p1, size_t r0, size_t r1,
                         void *scratch);
    void (*attention)(const di_cpu_attn_t *a, const di_cpu_attn_item_t *item,
                      void *scratch);
    /* Floats of a segment's result for n_queries (rows times heads of the
     * group), 0 for more than can be split; and the merge of them.  NULL:
     * items are never split. */
    size_t (*partial_floats)(size_t n_queries, size_t head_dim);
    void (*merge)(const di_cpu_attn_t *a, const di_cpu_attn_item_t *item,
                  void *scratch);
    /* Copy the first n_tokens of one head's K and V regions. */
    void (*kv_copy)(const di_cpu_kv_t *kv, uint8_t *dst, const uint8_t *src,
                    uint32_t n_tokens);
};

/* All kernels, best first within an arithmetic; NULL ends the list. */
extern const di_cpu_kern_t *const di_cpu_kerns[];

extern const di_cpu_kern_t di_cpu_f32_avx512;
extern const di_cpu_kern_t di_cpu_f32_avx2;
extern const di_cpu_kern_t di_cpu_f32_ref;
extern const di_cpu_kern_t di_cpu_bf16_ref;
extern const di_cpu_kern_t di_cpu_q8_ref;
extern const di_cpu_kern_t di_cpu_bf16_amx;
extern const di_cpu_kern_t di_cpu_q8_avx512bf16;
extern const di_cpu_kern_t di_cpu_q8_avx512;
extern const di_cpu_kern_t di_cpu_q8_avxvnni;
extern const di_cpu_kern_t di_cpu_q8_avx2;
extern const di_cpu_kern_t di_cpu_mx_ref;
extern const di_cpu_kern_t di_cpu_mx_amx;
extern const di_cpu_kern_t di_cpu_mx_avx512bf16;
extern const di_cpu_kern_t di_cpu_mx_avx512;
extern const di_cpu_kern_t di_cpu_mx_avx2;

/* Asks for permission to use AMX. */
bool di_amx_usable(void);

/* -- pool ------------------------------------------------------------------ */

typedef struct di_cpu_pool_s di_cpu_pool_t;
typedef struct di_cpu_op_s   di_cpu_op_t;

typedef struct {
    di_cpu_pool_t *pool;
    void          *scratch;      /* DI_CPU_SCRATCH bytes                    */
    uint8_t       *gather;       /* DI_CPU_GATHER bytes                     */
    uint32_t       index;        /* 0: the caller of di_cpu_pool_run()      */
} di_cpu_worker_t;

/* Ops to run in order: an array of n. */
typedef struct {
    const di_cpu_op_t *ops;
    size_t             n;
} di_cpu_run_t;

int di_cpu_pool_open(uint32_t n_threads, bool pin, uint32_t spin_us,
                     void (*thread_init)(void), di_cpu_pool_t **pool,
                     di_err_t *err);
void di_cpu_pool_close(di_cpu_pool_t *pool);
uint32_t di_cpu_pool_threads(const di_cpu_pool_t *pool);
/* Run them all; the caller works as thread 0.  One caller at a time. */
void di_cpu_pool_run(di_cpu_pool_t *pool, const di_cpu_run_t *runs,
                     size_t n_runs);

/* -- ops ------------------------------------------------------------------- */

#define DI_CPU_PARTS_MAX 32768   /* parts of one op                         */

typedef void (*di_cpu_part_fn)(const di_cpu_op_t *op, size_t part,
                               di_cpu_worker_t *worker);

struct di_cpu_op_s {
    di_cpu_part_fn run;
    /* If not NULL, called by one thread when the op's turn comes; returns
     * the number of parts (0: nothing to do). */
    size_t       (*plan)(const di_cpu_op_t *op);
    di_dev_t      *dev;
    size_t         n_parts;      /* used if plan is NULL                    */
    size_t         n_rows;       /* rows of the op                          */
    size_t         step;         /* rows or panels per part                 */
    size_t         ranges;       /* matmul: ranges of panels                */
    bool           may_split;    /* attention: there is room for segments   */
    di_rows_t      rows;         /* rope_store, attention                   */
    union {
        di_cpu_norm_t    norm;
        di_cpu_silu_t    silu;
        di_cpu_matmul_t  matmul;
        di_cpu_rope_t    rope;
        di_cpu_attn_t    attn;
        di_cpu_convert_t convert;
        di_cpu_route_t   route;
        di_cpu_sum_t     sum;
        di_cpu_experts_t experts;
        di_cpu_hc_t      hc;
        di_cpu_gather_t  gather;
        di_cpu_table_t   table;
        di_cpu_latent_t  latent;
        di_cpu_index_t   index;
        di_cpu_sparse_t  sparse;
        struct {
            float             *x;
            const di_weight_t *table;
            const int32_t     *ids;
        } embed;
        struct {
            void       *dst;
            const void *src;
            size_t      bytes;
        } copy;
        struct {
            void (*fn)(void *arg, size_t part);
            void  *arg;
        } host;
        struct {
            di_cpu_kv_t kv;
            uint32_t    dst;
            uint32_t    src;
            uint32_t    n_tokens;
        } kv_copy;
    } u;
};

/* -- device ---------------------------------------------------------------- */

struct di_buf_s {
    void  *data;
    size_t bytes;                /* of the mapping                          */
};

/* How a product with experts is cut: part i is panel range i % ranges of item
 * i / ranges. */
typedef struct {
    uint32_t             *order;     /* outputs by experts: [n_outs]        */
    size_t                order_max;
    uint32_t             *first;     /* of each expert in it: [n + 1]       */
    size_t                first_max;
    di_cpu_expert_item_t *items;     /* one per output at most: [order_max] */
    size_t                n_items;
    size_t                ranges;
    size_t                step;      /* panels of a range                   */
} di_cpu_expert_plan_t;

struct di_dev_s {
    const di_cpu_kern_t *kern;
    di_cpu_chunk_t      *chunk;  /* weights are cut from it, NULL: none yet */
    di_cpu_pool_t       *pool;
    di_dev_info_t        info;
    di_cpu_attn_item_t  *items;  /* plan of the running attention op        */
    size_t               items_max;
    size_t               n_items;
    _Atomic uint32_t    *lefts;  /* of its split items: [items_max]         */
    float               *partials;   /* and their results                   */
    size_t               partials_max;   /* floats                          */
    di_cpu_expert_plan_t expert_plan;    /* of the running matmul_experts   */
    float               *scores; /* of the running index_select             */
    size_t               scores_max;     /* floats                          */
};

/* Zeroed memory of its own mapping, in huge pages where the system likes to;
 * NULL if there is none. */
void *di_cpu_map(size_t bytes);
void di_cpu_unmap(void *p, size_t bytes);

/* Cut zeroed, 64-byte aligned memory for a weight; *chunk: one ref, give it
 * back with di_cpu_chunk_unref() (NULL is ignored).  NULL: no memory. */
void *di_cpu_chunk_alloc(di_dev_t *dev, size_t bytes, di_cpu_chunk_t **chunk);
void di_cpu_chunk_unref(di_cpu_chunk_t *chunk);

int di_cpu_weight_open(di_dev_t *dev, const di_wpart_t *parts,
                       size_t n_parts, size_t k, di_weight_t **weight,
                       di_err_t *err);
void di_cpu_weight_close(di_dev_t *dev, di_weight_t *weight);
size_t di_cpu_weight_bytes(const di_weight_t *weight);

/* Panels [p0, p1) of a whole weight, rows [r0, r1). */
void di_cpu_matmul_panels(const di_cpu_kern_t *kern, const di_cpu_matmul_t *a,
                          size_t p0, size_t p1, size_t r0, size_t r1,
                          void *scratch);

/* experts.c */
int di_cpu_experts_open(di_dev_t *dev, const di_wpart_t *parts,
                        size_t n_parts, size_t n_experts, size_t k,
                        di_experts_t **experts, di_err_t *err);
void di_cpu_experts_close(di_dev_t *dev, di_experts_t *experts);
size_t di_cpu_experts_bytes(const di_experts_t *experts);
void di_cpu_expert_plan_free(di_cpu_expert_plan_t *plan);

/* -- streams: the launching half of di_ops_t, see there -------------------- */

int di_cpu_stream_open(di_dev_t *dev, di_stream_t **stream);
void di_cpu_stream_close(di_stream_t *stream);
int di_cpu_stream_sync(di_stream_t *stream);
void di_cpu_copy_in(di_stream_t *stream, di_view_t dst, const void *src,
                    size_t bytes);
void di_cpu_copy_out(di_stream_t *stream, void *dst, di_view_t src,
                     size_t bytes);
void di_cpu_copy(di_stream_t *stream, di_view_t dst, di_view_t src,
                 size_t bytes);
void di_cpu_host_call(di_stream_t *stream, void (*fn)(void *, size_t),
                      void *arg, size_t n_parts);
int di_cpu_graph_begin(di_stream_t *stream);
int di_cpu_graph_end(di_stream_t *stream, di_graph_t **graph);
void di_cpu_graph_launch(di_stream_t *stream, di_graph_t *graph);
void di_cpu_graph_free(di_graph_t *graph);

/* Append an op to the stream, or to the graph that it records. */
void di_cpu_launch(di_stream_t *stream, di_cpu_op_t *op);
di_dev_t *di_cpu_stream_dev(di_stream_t *stream);
/* The stream remembers its first fault until the next sync. */
void di_cpu_stream_fault(di_stream_t *stream, int code);

/* ops.c: the operators' launches. */
void di_cpu_embed(di_stream_t *s, di_view_t x, const di_weight_t *table,
                  di_view_t ids, size_t n_rows);
void di_cpu_norm(di_stream_t *s, di_view_t y, di_view_t x, di_view_t add,
                 di_view_t w, float eps, di_view_t rows, size_t n_rows,
                 size_t k);
void di_cpu_matmul(di_stream_t *s, di_view_t out, di_view_t act,
                   const di_weight_t *w, di_view_t bias, size_t n_rows);
void di_cpu_silu_mul(di_stream_t *s, di_view_t y, di_view_t gu,
                     size_t n_rows, size_t k);
void di_cpu_swiglu(di_stream_t *s, di_view_t y, di_view_t gu, di_view_t c,
                   float limit, size_t n_rows, size_t k);
void di_cpu_convert(di_stream_t *s, di_view_t y, di_view_t x, size_t n_rows,
                    size_t k);
void di_cpu_rope_store(di_stream_t *s, di_view_t qkv, uint32_t n_heads,
                       di_view_t kv, const di_kv_geom_t *geom,
                       uint32_t layer, const di_rows_t *rows,
                       di_view_t freqs, di_rope_style_t style);
void di_cpu_attention(di_stream_t *s, di_view_t y, di_view_t qkv,
                      uint32_t n_heads, di_view_t kv,
                      const di_kv_geom_t *geom, uint32_t layer,
                      const di_rows_t *rows, float scale);
void di_cpu_kv_copy(di_stream_t *s, di_view_t kv, const di_kv_geom_t *geom,
                    uint32_t dst, uint32_t src, uint32_t n_tokens);

/* experts.c: those of mixtures of experts. */
void di_cpu_route(di_stream_t *s, di_view_t ids, di_view_t weights,
                  di_view_t logits, di_view_t bias, float scale,
                  size_t n_rows, size_t n, size_t top_k);
void di_cpu_matmul_experts(di_stream_t *s, di_view_t out, di_view_t act,
                           const di_experts_t *w, di_view_t ids,
                           size_t n_outs, size_t per_row);
void di_cpu_sum_rows(di_stream_t *s, di_view_t y, di_view_t x, di_view_t add,
                     size_t n_rows, size_t n, size_t k);

/* mhc.c, cache.c, index.c, sparse.c. */
void di_cpu_hc_start(di_stream_t *s, di_view_t t, di_view_t c, di_view_t x,
                     size_t n_rows, const di_hc_t *hc);
void di_cpu_hc_post(di_stream_t *s, di_view_t t, di_view_t c, di_view_t o,
                    size_t n_rows, const di_hc_t *hc);
void di_cpu_hc_mix(di_stream_t *s, di_view_t y, di_view_t t, di_view_t c,
                   size_t n_rows, const di_hc_t *hc);
void di_cpu_hc_end(di_stream_t *s, di_view_t y, di_view_t t, di_view_t c,
                   di_view_t rows, size_t n_rows, const di_hc_t *hc);
void di_cpu_hc_mean(di_stream_t *s, di_view_t y, size_t width, size_t at,
                    di_view_t t, size_t n_rows, const di_hc_t *hc);
void di_cpu_gather(di_stream_t *s, di_view_t y, di_view_t x, di_view_t rows,
                   size_t n_rows, size_t bytes);
void di_cpu_table_rows(di_stream_t *s, di_view_t y, const di_wpart_t *table,
                       di_view_t ids, size_t n_rows, size_t n, size_t k);
void di_cpu_engram_add(di_stream_t *s, di_view_t t, di_view_t kv, di_view_t qk,
                       size_t n_rows, const di_hc_t *hc);
void di_cpu_rotate(di_stream_t *s, di_view_t x, uint32_t n_heads, uint32_t dim,
                   const di_rows_t *rows, const di_rotation_t *rotation);
void di_cpu_window_make(di_stream_t *s, di_view_t fresh, di_view_t x,
                        di_view_t w, float eps, const di_cache_t *ring,
                        const di_rows_t *rows, const di_rotation_t *rotation);
void di_cpu_window_store(di_stream_t *s, const di_cache_t *ring,
                         di_view_t fresh, const di_rows_t *rows);
void di_cpu_compress(di_stream_t *s, di_view_t y, di_view_t v, di_view_t g,
                     di_view_t w, float eps, uint32_t dim,
                     const di_cache_t *pairs, const di_rows_t *rows);
void di_cpu_pairs_store(di_stream_t *s, const di_cache_t *pairs, di_view_t v,
                        di_view_t g, const di_rows_t *rows);
void di_cpu_entry_store(di_stream_t *s, const di_cache_t *cache, di_view_t x,
                        di_view_t w, float eps, uint32_t ratio,
                        const di_rows_t *rows, const di_rotation_t *rotation);
void di_cpu_index_select(di_stream_t *s, const di_index_t *index,
                         const di_rows_t *rows);
void di_cpu_sparse_attention(di_stream_t *s, di_view_t y, const di_sparse_t *a,
                             const di_rows_t *rows);

/* For an operator's launch: where a view lies (NULL: nowhere), and n rows of
 * k values cut into parts of op->step rows. */
void *di_cpu_at(di_view_t view);
void di_cpu_cut_rows(di_cpu_op_t *op, size_t n, size_t k);

#endif
