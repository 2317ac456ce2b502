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
 *                  blocks.  KV bfloat16; attention is float32, but where
 *                  AVX-512 has products of bfloat16 queries and weights of
 *                  values are rounded to that.
 *
 *   DI_ARITH_MX    for models whose weights are floats of few bits: what they
 *                  were made with.  To weights in E4M3 and E2M1 activations
 *                  are E4M3 with a UE8M0 scale per 32 (scale: the smallest
 *                  power of two that is not below amax / 448); all these
 *                  values are exact in bfloat16.  A block's sum is one FMA
 *                  chain, of each pair the second first, which is what
 *                  VDPBF16PS does (AMX: two chains, as above), then scaled and
 *                  added in order of blocks.  To float weights activations are
 *                  the sum of two bfloat16 (2^-17 is lost), summed in float32
 *                  by blocks.  KV bfloat16.
 *
 * Weights in E4M3 and E2M1 (with UE8M0 scales) are read where the file's
 * mapping has them; F32 and MX have products with them, MX has none with
 * integer codes.  None of their values is rounded.
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
#include "cast.h"

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
    DI_ARITH_MX   = 4,
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
                                  * avx512, avx512bf16, amx                 */
    uint32_t    n_threads;       /* the caller's thread counts as one       */
    bool        pin;             /* pin thread i to the i-th allowed cpu    */
    uint32_t    spin_us;         /* spin at a barrier before sleeping       */
} di_dev_conf_t;

typedef struct {
    char       arith_name[32];   /* what computes, and how: "bf16-amx"      */
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
    di_view_t slots;             /* i32 [n_seqs] slots of sequences' states;
                                  * models that have one                    */
    di_view_t floors;            /* i32 [n_seqs] first position that windows
                                  * reach; likewise                         */
} di_rows_t;

/* Where one layer's records of one kind lie, in units (KV blocks, or the
 * slots of sequences' states) of an arena. */
typedef struct {
    di_view_t  base;             /* unit 0                                  */
    size_t     stride;           /* bytes from unit to unit                 */
    size_t     at;               /* bytes in a unit to the first record     */
    uint32_t   n;                /* records in a unit                       */
    uint32_t   dim;              /* values of a record, a multiple of 32    */
    di_cast_t  cast;             /* how a record's values are stored        */
    bool       exact;            /* as float32 instead                      */
    bool       apart;            /* all records' data, then all scales      */
} di_cache_t;

/* Rotation of the last rope_dim of a head's values, in pairs (0,1), (2,3),
 * ...: angle = position * freqs[i]. */
typedef struct {
    di_view_t freqs;             /* float32 [rope_dim / 2]                  */
    uint32_t  rope_dim;
} di_rotation_t;

/* A sub-layer's hyper-connections: m streams of k values. */
typedef struct {
    di_view_t fn;                /* float32 [(2 + m) m][m k]                */
    di_view_t base;              /* float32 [(2 + m) m]                     */
    di_view_t scale;             /* float32 [3]                             */
    di_view_t norm;              /* float32 [k]                             */
    uint32_t  m;                 /* at most 8                               */
    uint32_t  k;
    uint32_t  n_iters;           /* of Sinkhorn's normalisation             */
    float     eps;               /* of the norms                            */
    float     hc_eps;            /* of the normalisation                    */
} di_hc_t;

/* Values of a row's coefficients: pre [m], post [m], comb [m][m]. */
#define DI_HC_COEFS(m) ((size_t) (2 + (m)) * (m))

/* Choice of compressed entries by an indexer. */
typedef struct {
    di_view_t  q;                /* float32 [n_rows][n_heads dim], rotated  */
    di_view_t  w;                /* float32 [n_rows][n_heads]               */
    di_cache_t keys;             /* in KV blocks; queries are rounded like
                                  * them first                              */
    uint32_t   n_heads;
    uint32_t   top_k;
    uint32_t   ratio;            /* tokens of an entry                      */
    di_view_t  selected;         /* i32 [n_rows][1 + top_k] out: how many,
                                  * then entries in ascending order         */
    di_view_t  candidates;       /* i32 [n_rows][1 + cand_blocks], likewise
                                  * blocks; no buffer: not used             */
    uint32_t   cand_blocks;
    uint32_t   cand_size;        /* entries of a block                      */
    bool       makes;            /* writes candidates, else keeps to them   */
} di_index_t;

/* Attention of few query heads' rows over one vector per token, which is key
 * and value. */
typedef struct {
    di_view_t     q;             /* float32 [n_rows][n_heads dim], rotated  */
    di_view_t     sinks;         /* float32 [n_heads]                       */
    di_view_t     fresh;         /* the rows' own records, as ring has them */
    di_cache_t    ring;          /* those of tokens before, in states       */
    di_cache_t    kv;            /* compressed entries, in KV blocks; no
                                  * buffer: none                            */
    di_view_t     selected;      /* i32 [n_rows][1 + top_k], see above      */
    uint32_t      top_k;
    di_rotation_t rotation;      /* taken back in the result                */
    uint32_t      n_heads;
    uint32_t      n_groups;      /* results are one activation row each     */
    uint32_t      window;        /* tokens that a row sees, its own one too */
    float         scale;         /* applied to q.k                          */
    bool          drafts;        /* rows see all rows of their sequence, and
                                  * the window that ends before the first   */
} di_sparse_t;

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
    /* Between buffers of the device, not overlapping. */
    void (*copy)(di_stream_t *stream, di_view_t dst, di_view_t src,
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

    /* -- hyper-connections ----------------------------------------------
     * Trunk t float32 [n_rows][m][k], coefficients c float32
     * [n_rows][DI_HC_COEFS(m)], o float32 [n_rows][k].  Source: mHC,
     * arXiv:2512.24880, in the shifted form. */

    /* t[r][j] = x[r] for every stream; pre is one-hot on stream 0. */
    void (*hc_start)(di_stream_t *s, di_view_t t, di_view_t c, di_view_t x,
                     size_t n_rows, const di_hc_t *hc);

    /* t[r][j] = post_j o[r] + sum_i comb[i][j] t[r][i]. */
    void (*hc_post)(di_stream_t *s, di_view_t t, di_view_t c, di_view_t o,
                    size_t n_rows, const di_hc_t *hc);

    /* y[r] = act(RMS(sum_j pre_j t[r][j]) * norm), then new coefficients
     * from the same t. */
    void (*hc_mix)(di_stream_t *s, di_view_t y, di_view_t t, di_view_t c,
                   size_t n_rows, const di_hc_t *hc);

    /* y[i] = sum_j pre_j t[r][j], r = rows ? rows[i] : i.  float32. */
    void (*hc_end)(di_stream_t *s, di_view_t y, di_view_t t, di_view_t c,
                   di_view_t rows, size_t n_rows, const di_hc_t *hc);

    /* y[r][at .. at + k) = mean_j t[r][j], y float32 [n_rows][width]. */
    void (*hc_mean)(di_stream_t *s, di_view_t y, size_t width, size_t at,
                    di_view_t t, size_t n_rows, const di_hc_t *hc);

    /* y[i] = x[rows[i]], rows of `bytes`. */
    void (*gather)(di_stream_t *s, di_view_t y, di_view_t x, di_view_t rows,
                   size_t n_rows, size_t bytes);

    /* -- look-up, Engram -------------------------------------------------- */

    /* y[r] = rows ids[r][0], ids[r][1], ... of table, one after another, as
     * float32 [n_rows][n k].  ids i32 [n_rows][n]; table rows of k values,
     * borrowed until the launch ends (read where the mapping has them). */
    void (*table_rows)(di_stream_t *s, di_view_t y, const di_wpart_t *table,
                       di_view_t ids, size_t n_rows, size_t n, size_t k);

    /* t[r][j] += sigmoid(gate) * kv[r][m], the gate being the signed root of
     * t[r][j] * qk[j] . kv[r][j], normed by both lengths and sqrt(k).
     * kv float32 [n_rows][m + 1][k], qk float32 [m][k]. */
    void (*engram_add)(di_stream_t *s, di_view_t t, di_view_t kv,
                       di_view_t qk, size_t n_rows, const di_hc_t *hc);

    /* -- latent attention ------------------------------------------------
     * rows->slots and rows->floors are read; sums in float32, in a fixed
     * order. */

    /* x float32 [n_rows][n_heads][dim], rotated in place. */
    void (*rotate)(di_stream_t *s, di_view_t x, uint32_t n_heads,
                   uint32_t dim, const di_rows_t *rows,
                   const di_rotation_t *rotation);

    /* Records of the rows' window vectors: norm by w, rotation, rounding as
     * the ring's.  x float32 [n_rows][dim]; fresh [n_rows][record]. */
    void (*window_make)(di_stream_t *s, di_view_t fresh, di_view_t x,
                        di_view_t w, float eps, const di_cache_t *ring,
                        const di_rows_t *rows, const di_rotation_t *rotation);
    /* Copy the records of each sequence's last ring->n rows, but those below
     * its floor, to its ring: position p to record p mod ring->n. */
    void (*window_store)(di_stream_t *s, const di_cache_t *ring,
                         di_view_t fresh, const di_rows_t *rows);

    /* y[r] = RMS of the entry that row r completes, times w; zeros if it
     * completes none.  With a ring of pairs in states (exact records of gate
     * [dim] and value [dim] of a position) rows at odd positions complete
     * one, softmax(g) . v of the last two; without it each row its own v.
     * v, g, y float32 [n_rows][dim]. */
    void (*compress)(di_stream_t *s, di_view_t y, di_view_t v, di_view_t g,
                     di_view_t w, float eps, uint32_t dim,
                     const di_cache_t *pairs, const di_rows_t *rows);
    void (*pairs_store)(di_stream_t *s, const di_cache_t *pairs, di_view_t v,
                        di_view_t g, const di_rows_t *rows);

    /* Store the entries that rows complete in their KV blocks: norm by w (no
     * buffer: none), rotation to the entry's first token, rounding. */
    void (*entry_store)(di_stream_t *s, const di_cache_t *cache, di_view_t x,
                        di_view_t w, float eps, uint32_t ratio,
                        const di_rows_t *rows, const di_rotation_t *rotation);

    /* Score every entry j that is complete before a row's next token:
     *   sum_h w[h] max(0, q[h] . key[j])
     * and choose the top_k best; the smaller entry where equal.  With
     * candidates only entries of those blocks count; a maker keeps the
     * cand_blocks with the best entry, always the last one. */
    void (*index_select)(di_stream_t *s, const di_index_t *index,
                         const di_rows_t *rows);

    /* Softmax over the window's tokens (not below the sequence's floor), the
     * selected entries and a sink without a value; then the rotation is taken
     * back.  y: activation rows [n_rows][n_groups] of n_heads / n_groups
     * times dim values. */
    void (*sparse_attention)(di_stream_t *s, di_view_t y,
                             const di_sparse_t *a, const di_rows_t *rows);
};

/* The CPU backend's table (never fails). */
const di_ops_t *di_ops_cpu(void);

#endif
