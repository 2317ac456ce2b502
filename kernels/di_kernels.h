/*
 * di_kernels.h - numeric operators: one table of functions per backend.
 *
 * Object model.  A backend opens a di_dev_t (a GPU, or the host CPU with its
 * fixed pool of threads).  Memory on it is a di_buf_t, a handle; a di_view_t
 * is a handle and a byte offset.  Weights are a di_weight_t: opened once from
 * the file's bytes, repacked as the backend likes.  Work goes to a
 * di_stream_t: every launch is asynchronous and in order; arguments are
 * copied at the launch, arrays that they name are read when the work runs.
 * A run of launches can be recorded as a graph and launched again.  Host
 * memory is touched only by copy_in / copy_out and by host calls put on the
 * stream.  The CPU backend maps its buffers (map() is not NULL), so an engine
 * that sees a mapping skips the copies: the CPU pays nothing for this shape.
 *
 * Numbers.  A device computes in one arithmetic (di_arith_t), chosen when it
 * is opened and never mixed: the format in which activations enter a matrix
 * product, and that of the KV cache.
 *
 *   DI_ARITH_F32   float32 activations, weights dequantised to float32, KV
 *                  float32.  For checking (--exact).
 *   DI_ARITH_BF16  activations rounded to bfloat16 (RNE).  A weight block's
 *                  integer codes (plus an offset that the minimum takes back)
 *                  are exact in bfloat16; the sum over a block of 32 is made
 *                  as AMX's TDPBF16PS makes it (two float32 FMA chains over
 *                  even and odd k, DAZ/FTZ, then added), scaled by the
 *                  block's scale and added to the row's sum in order of
 *                  blocks; then the minima times the blocks' sums, both in
 *                  two bfloat16 parts.  F32 and F16 weights are rounded to
 *                  bfloat16.  matmul has the same bits in every variant.  KV
 *                  bfloat16.
 *   DI_ARITH_Q8    activations as int8 with one float32 scale per 32 (round
 *                  half to even, scale = amax / 127); integer dot products
 *                  are exact, block sums are scaled and added in order of
 *                  blocks.  KV bfloat16.
 *
 * Weights in E4M3 and E2M1 (with UE8M0 scales) are read where the file's
 * mapping has them.  Both are exact in bfloat16: in BF16 a block's sum is made
 * as above without an offset, then scaled and added in order of blocks.  In
 * Q8 an E2M1 value is an integer of halves, so that its block sums are exact
 * too; an E4M3 value enters as float32: one FMA chain over the block with the
 * int8 values, then scaled.  None of these values is rounded.
 *
 * Batch invariance: the bits of a row's result depend on that row's inputs
 * alone: not on the other rows, their number, how a prompt is cut into
 * launches, the number of threads, or which thread ran it.  So sums have a
 * fixed order, split only at fixed places.  Variants of one arithmetic
 * (scalar reference, AVX2, AVX-512, AMX) may differ in the last bits of
 * float operations unless an operator's comment says "same bits".
 *
 * Errors: opening calls return DI_OK or DI_E... with err.  Launches can't
 * fail for input reasons (wrong shapes are the caller's bug: assert); a
 * device fault is remembered by the stream and returned by stream_sync.
 */

#ifndef DI_KERNELS_H
#define DI_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../tokenizer/di_err.h"

typedef struct di_dev_s     di_dev_t;
typedef struct di_buf_s     di_buf_t;
typedef struct di_weight_s  di_weight_t;
typedef struct di_experts_s di_experts_t;
typedef struct di_stream_s  di_stream_t;
typedef struct di_graph_s   di_graph_t;

typedef struct {
    di_buf_t *buf;
    size_t    offset;            /* bytes; a multiple of 64                 */
} di_view_t;

typedef enum {
    DI_ARITH_AUTO = 0,           /* what is fastest on this CPU             */
    DI_ARITH_F32  = 1,
    DI_ARITH_BF16 = 2,
    DI_ARITH_Q8   = 3,
} di_arith_t;

/* Formats of weights in files; the values are GGUF's ggml_type, or, for what
 * GGUF doesn't have, ours from 1000 on.  Those have scales apart from their
 * values, bytes b for 2^(b - 127) (255: NaN):
 *
 *   E4M3_B32  a byte per value, a scale per 32 x 32 values: [n / 32][k / 32],
 *             both rounded up
 *   E4M3_R32  a byte per value, a scale per 32 values of a row: [n][k / 32]
 *   E2M1_R32  two values per byte, the even one in the low nibble; [n][k / 32]
 */
typedef enum {
    DI_W_F32 = 0, DI_W_F16 = 1, DI_W_Q4_0 = 2, DI_W_Q4_1 = 3, DI_W_Q5_0 = 6,
    DI_W_Q5_1 = 7, DI_W_Q8_0 = 8, DI_W_Q4_K = 12, DI_W_Q5_K = 13,
    DI_W_Q6_K = 14, DI_W_BF16 = 30,
    DI_W_E4M3_B32 = 1000, DI_W_E4M3_R32 = 1001, DI_W_E2M1_R32 = 1002,
} di_wtype_t;

/* Bytes of n values (n: a multiple of the type's block), 0 if the type is
 * unknown; and values per block. */
size_t di_wtype_bytes(di_wtype_t type, size_t n);
size_t di_wtype_block(di_wtype_t type);
const char *di_wtype_name(di_wtype_t type);

/* Bytes of the scales of an [n][k] matrix; 0 if they lie in the blocks. */
size_t di_wtype_scale_bytes(di_wtype_t type, size_t n, size_t k);

/* Dequantise n values to float32 (scalar reference; loaders use it for small
 * tensors: norms, biases).  Types without scales apart. */
void di_dequantise(di_wtype_t type, const void *src, size_t n, float *dst);

typedef struct {
    di_arith_t  arith;
    const char *ops;             /* NULL = best, or ref, avx2, avxvnni,
                                  * avx512, amx                             */
    uint32_t    n_threads;       /* the caller's thread counts as one       */
    bool        pin;             /* pin thread i to the i-th allowed cpu    */
    uint32_t    spin_us;         /* spin at a barrier before sleeping       */
} di_dev_conf_t;

typedef struct {
    char       arith_name[32];   /* part of the fingerprint: "bf16-amx"     */
    char       cpu[64];          /* device's own name                       */
    di_arith_t arith;
    bool       host_memory;      /* map() works                             */
    uint32_t   act_align;        /* rows of an activation buffer start at a
                                  * multiple of this                        */
} di_dev_info_t;

/* A weight matrix is given as parts stacked along the output dimension: q, k,
 * v make one product.  Each part is [n][k] in the file's row-major block
 * layout.  bytes are borrowed until weight_close unless the backend copied
 * (info.host_memory backends may keep pointing at the mapping). */
typedef struct {
    di_wtype_t  type;
    const void *data;
    size_t      n;               /* output rows                             */
    const void *scales;          /* of the types that have them apart       */
} di_wpart_t;

/* Row `row` of a part with rows of k values, as float32; any type. */
void di_wpart_row(const di_wpart_t *part, size_t row, size_t k, float *dst);

/* KV geometry of one model.  One KV block holds block_tokens tokens of all
 * layers; the layout inside is the backend's own, but depends on nothing but
 * the tokens' K and V. */
typedef struct {
    uint32_t n_layers;
    uint32_t n_kv_heads;
    uint32_t head_dim;           /* a multiple of 32, at most 256           */
    uint32_t block_tokens;       /* 16                                      */
} di_kv_geom_t;

/* Rows of a step.  Rows of one sequence are adjacent and in order of
 * position; a sequence may have none.  Arrays live in device buffers. */
typedef struct {
    uint32_t  n_rows;
    uint32_t  n_seqs;
    uint32_t  table_stride;      /* entries per sequence in tables          */
    di_view_t positions;         /* i32 [n_rows]                            */
    di_view_t seq_first;         /* i32 [n_seqs + 1] first row of each      */
    di_view_t tables;            /* i32 [n_seqs][table_stride] KV block ids */
} di_rows_t;

typedef enum { DI_ROPE_PAIRS = 0,    /* (x0,x1), (x2,x3), ...  GGUF llama   */
               DI_ROPE_HALVES = 1 }  /* (x0,x[d/2]), ...  NeoX: qwen2       */
    di_rope_style_t;

typedef struct di_ops_s di_ops_t;

struct di_ops_s {
    const char *name;            /* "cpu"                                   */

    /* -- device, memory ------------------------------------------------- */

    int (*dev_open)(const di_dev_conf_t *conf, di_dev_t **dev, di_err_t *err);
    void (*dev_close)(di_dev_t *dev);
    const di_dev_info_t *(*dev_info)(const di_dev_t *dev);

    /* 64-byte aligned, zeroed.  DI_ENOMEM. */
    int (*buf_alloc)(di_dev_t *dev, size_t bytes, di_buf_t **buf);
    void (*buf_free)(di_dev_t *dev, di_buf_t *buf);
    void *(*buf_map)(di_buf_t *buf);       /* host address, or NULL         */

    /* [n][k] weights; k a multiple of 32.  Repacking uses the device's
     * threads.  DI_EUNSUPPORTED names the type. */
    int (*weight_open)(di_dev_t *dev, const di_wpart_t *parts,
                       size_t n_parts, size_t k, di_weight_t **weight,
                       di_err_t *err);
    void (*weight_close)(di_dev_t *dev, di_weight_t *weight);
    size_t (*weight_bytes)(const di_weight_t *weight);  /* read per product */

    /* Matrices of one shape, one of which each row of a product picks.  parts
     * is [n_experts][n_parts]: an expert's stacked as weight_open() does it,
     * k and the sums of n the same for all.  Experts of E4M3 and E2M1 are read
     * from the mapping, without a copy.  Errors as weight_open(). */
    int (*experts_open)(di_dev_t *dev, const di_wpart_t *parts,
                        size_t n_parts, size_t n_experts, size_t k,
                        di_experts_t **experts, di_err_t *err);
    void (*experts_close)(di_dev_t *dev, di_experts_t *experts);
    size_t (*experts_bytes)(const di_experts_t *experts);   /* of all       */

    /* Bytes of a row of k activations as matmul's input in this arithmetic,
     * and of one KV block. */
    size_t (*act_bytes)(const di_dev_t *dev, size_t k);
    size_t (*kv_block_bytes)(const di_dev_t *dev, const di_kv_geom_t *geom);

    /* -- streams and graphs --------------------------------------------- */

    int (*stream_open)(di_dev_t *dev, di_stream_t **stream);
    void (*stream_close)(di_stream_t *stream);
    /* Wait for all that was launched; on the CPU the caller computes too.
     * DI_OK, or the first fault. */
    int (*stream_sync)(di_stream_t *stream);
    void (*copy_in)(di_stream_t *stream, di_view_t dst, const void *src,
                    size_t bytes);           /* src borrowed until sync      */
    void (*copy_out)(di_stream_t *stream, void *dst, di_view_t src,
                     size_t bytes);
    /* Run fn(arg, part) for part in [0, n_parts) in stream order; on the CPU
     * by the pool's threads. */
    void (*host_call)(di_stream_t *stream, void (*fn)(void *arg, size_t part),
                      void *arg, size_t n_parts);
    /* Record launches between begin and end instead of running them. */
    int (*graph_begin)(di_stream_t *stream);
    int (*graph_end)(di_stream_t *stream, di_graph_t **graph);
    void (*graph_launch)(di_stream_t *stream, di_graph_t *graph);
    void (*graph_free)(di_graph_t *graph);

    /* -- operators ------------------------------------------------------- */

    /* x[r][0..k) = table[ids[r]][0..k) dequantised to float32.
     * ids i32 [n_rows], each in [0, n). */
    void (*embed)(di_stream_t *s, di_view_t x, const di_weight_t *table,
                  di_view_t ids, size_t n_rows);

    /* Optional residual, then RMS norm, then conversion to matmul input:
     *   if add.buf: x[r] += add[r]
     *   y[i] = act(x[r] * w / sqrt(mean(x[r]^2) + eps)),  r = rows ? rows[i]
     *                                                        : i
     * x, add float32 [.][k]; w float32 [k]; y n_rows activation rows;
     * rows.buf may be NULL, then n_rows rows in order.  With rows, the
     * residual is added for the named rows only. */
    void (*norm)(di_stream_t *s, di_view_t y, di_view_t x, di_view_t add,
                 di_view_t w, float eps, di_view_t rows, size_t n_rows,
                 size_t k);

    /* out[r][0..n) = act[r] . W^T (+ bias float32 [n] if bias.buf); out is
     * float32.  n_rows >= 1. */
    void (*matmul)(di_stream_t *s, di_view_t out, di_view_t act,
                   const di_weight_t *w, di_view_t bias, size_t n_rows);

    /* y[r] = act(silu(gu[r][0..k)) * gu[r][k..2k)), gu float32 [.][2k]. */
    void (*silu_mul)(di_stream_t *s, di_view_t y, di_view_t gu, size_t n_rows,
                     size_t k);

    /* The same with both factors bounded, and a weight for each row:
     *   y[r] = act(silu(min(g, limit)) * min(max(u, -limit), limit) * c[r])
     * c float32 [n_rows], or no buffer: 1. */
    void (*swiglu)(di_stream_t *s, di_view_t y, di_view_t gu, di_view_t c,
                   float limit, size_t n_rows, size_t k);

    /* y[r] = act(x[r]), x float32 [n_rows][k]. */
    void (*convert)(di_stream_t *s, di_view_t y, di_view_t x, size_t n_rows,
                    size_t k);

    /* Choose top_k of n experts for each row of logits float32 [n_rows][n]
     * (DeepSeek's noaux_tc with square roots of softplus):
     *   s = sqrt(softplus(logit)); ids = those with the largest s + bias, in
     *   that order, the smaller id first where equal;
     *   weights = s / (sum of the chosen s + 1e-20) * scale
     * bias float32 [n]; ids i32, weights float32, both [n_rows][top_k].  Same
     * bits in every variant.  n at most 1024. */
    void (*route)(di_stream_t *s, di_view_t ids, di_view_t weights,
                  di_view_t logits, di_view_t bias, float scale,
                  size_t n_rows, size_t n, size_t top_k);

    /* out[i] = act[i / per_row] . W[ids[i]]^T for i in [0, n_outs), float32
     * [n_outs][n].  ids i32 [n_outs], each a valid expert.  per_row is how
     * many outputs an activation row has: top_k for an expert's first
     * product, 1 for its second.  Rows of an expert are multiplied together.
     * Experts that no row picked are not read. */
    void (*matmul_experts)(di_stream_t *s, di_view_t out, di_view_t act,
                           const di_experts_t *w, di_view_t ids,
                           size_t n_outs, size_t per_row);

    /* y[r] = x[r * n] + ... + x[r * n + n - 1] (+ add[r]), in that order:
     * the results of a row's experts, and of the shared one.  float32
     * [n_rows * n][k], [n_rows][k], k a multiple of 16; add.buf may be NULL;
     * y may be add.  Same bits in every variant. */
    void (*sum_rows)(di_stream_t *s, di_view_t y, di_view_t x, di_view_t add,
                     size_t n_rows, size_t n, size_t k);

    /* qkv float32 [n_rows][(n_heads + 2 n_kv) * head_dim].  Rotates q in
     * place, writes rotated k and v to the layer's part of the KV blocks.
     *   freqs float32 [head_dim / 2]: angle = position * freqs[i].
     * A block written by a row is not read by others before the launch ends.*/
    void (*rope_store)(di_stream_t *s, di_view_t qkv, uint32_t n_heads,
                       di_view_t kv, const di_kv_geom_t *geom, uint32_t layer,
                       const di_rows_t *rows, di_view_t freqs,
                       di_rope_style_t style);

    /* Causal attention of each row over its sequence's positions 0..own,
     * grouped query heads, scale applied to q.k; y = activation rows of
     * n_heads * head_dim.  float32 softmax, keys in order of position in
     * fixed segments, merged in order. */
    void (*attention)(di_stream_t *s, di_view_t y, di_view_t qkv,
                      uint32_t n_heads, di_view_t kv,
                      const di_kv_geom_t *geom, uint32_t layer,
                      const di_rows_t *rows, float scale);

    /* Copy the first n_tokens of KV block src to block dst, all layers. */
    void (*kv_copy)(di_stream_t *s, di_view_t kv, const di_kv_geom_t *geom,
                    uint32_t dst, uint32_t src, uint32_t n_tokens);
};

/* The CPU backend's table (never fails). */
const di_ops_t *di_ops_cpu(void);

#endif
