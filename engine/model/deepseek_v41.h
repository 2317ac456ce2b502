/*
 * deepseek_v41.h - inside of the DeepSeek-V4.1 family.
 *
 * The model is cut by its parts:
 *
 *   deepseek_v41.c   opening, a step's inputs, the order of layers
 *   v41_weights.c    tensors to weights and constants on the device
 *   v41_warm.c       reading those that stay in the mapping
 *   v41_attention.c  compressor, indexer, attention, output projection
 *   v41_moe.c        routing and experts
 *   v41_draft.c      the draft module
 *
 * over what v41_conf.h, v41_cache.h and v41_engram.h know about the file.
 * A block (attention and experts with their hyper-connections) is the same
 * in layers and draft stages.
 */

#ifndef DI_DEEPSEEK_V41_H
#define DI_DEEPSEEK_V41_H

#include "di_family.h"
#include "di_safetensors.h"
#include "v41_cache.h"
#include "v41_conf.h"
#include "v41_engram.h"

/* A layer or a draft stage on the device; NULL and no buffer: it has none. */
typedef struct {
    di_hc_t       hc_attn;
    di_hc_t       hc_ffn;
    di_weight_t  *wq_a;          /* [q_rank][dim]                           */
    di_weight_t  *wq_b;          /* [n_heads head_dim][q_rank]              */
    di_weight_t  *wkv;           /* [head_dim][dim]                         */
    di_experts_t *wo_a;          /* of each group: [o_rank][its heads]      */
    di_weight_t  *wo_b;          /* [dim][o_groups o_rank]                  */
    di_view_t     q_norm, kv_norm, sinks;
    di_rotation_t rotation;

    di_weight_t  *comp_wkv;      /* [head_dim][dim]                         */
    di_weight_t  *comp_gate;     /* [head_dim][dim], ratio 2                */
    di_view_t     comp_norm;
    di_weight_t  *index_q;       /* [index_heads index_dim][q_rank]         */
    di_weight_t  *index_w;       /* [index_heads][dim]                      */
    di_weight_t  *index_k;       /* [index_dim][head_dim]                   */
    di_view_t     k_norm;

    di_weight_t  *gate;          /* [experts][dim]                          */
    di_view_t     gate_bias;
    di_experts_t *up;            /* w1 and w3: [2 expert_dim][dim]          */
    di_experts_t *down;          /* [dim][expert_dim]                       */
    di_weight_t  *shared_up;
    di_weight_t  *shared_down;
    uint32_t      n_experts;
    uint32_t      n_used;

    di_wpart_t    engram_table;  /* rows in the mapping                     */
    di_weight_t  *engram_kv;     /* [(m + 1) dim][values of all rows]       */
    di_view_t     engram_qk;     /* float32 [m][dim]                        */
} di_v41_block_t;

/* Buffers of a step, max_rows rows each; float32 unless they are activation
 * rows (act) or say otherwise.  Attention's and the experts' share memory. */
typedef struct {
    di_view_t t, t_kept;         /* trunk [hc][dim]                         */
    di_view_t c, c_kept;         /* coefficients                            */
    di_view_t o;                 /* a sub-layer's result [dim]              */
    di_view_t in, in_kept;       /* a sub-layer's input, act [dim]          */
    di_view_t selected;          /* i32 [1 + index_topk]                    */
    di_view_t candidates;        /* i32 [1 + candidate_blocks]              */
    di_view_t features;          /* of targets [n_targets][dim]             */

    di_view_t qa, qa_act;        /* [q_rank]                                */
    di_view_t q;                 /* [n_heads][head_dim]                     */
    di_view_t kv;                /* [head_dim]                              */
    di_view_t fresh;             /* ring records                            */
    di_view_t value, gate;       /* compressor [head_dim]                   */
    di_view_t latent, latent_act;
    di_view_t index_k;           /* [index_dim]                             */
    di_view_t index_q;           /* [index_heads][index_dim]                */
    di_view_t index_w;           /* [index_heads]                           */
    di_view_t heads;             /* act [o_groups][its heads]               */
    di_view_t groups, groups_act;    /* [o_groups][o_rank]                  */
    di_view_t engram, engram_act;    /* table rows                          */
    di_view_t engram_kv;         /* [hc + 1][dim]                           */

    di_view_t logits;            /* [experts]                               */
    di_view_t ids;               /* i32 [used]                              */
    di_view_t weights;           /* [used]                                  */
    di_view_t up;                /* [used][2 expert_dim]                    */
    di_view_t up_act;            /* act [used][expert_dim]                  */
    di_view_t down;              /* [used][dim]                             */
    di_view_t shared, shared_act;    /* [2 n_shared expert_dim]             */

    di_view_t wide_act;          /* act [n_targets dim]                     */
    di_view_t h;                 /* [dim], max_logits rows                  */
    di_view_t h_act;
} di_v41_scratch_t;

/* A step's inputs beyond those of model.c: i32, one device buffer. */
typedef struct {
    di_buf_t *buf;
    uint8_t  *host;              /* its mapping, or staging memory          */
    size_t    bytes;
    di_view_t slots;             /* [max_seqs]                              */
    di_view_t floors;            /* [max_seqs]                              */
    di_view_t kept_floors;       /* [max_seqs]                              */
    di_view_t kept_first;        /* [max_seqs + 1]                          */
    di_view_t kept_positions;    /* [max_rows]                              */
    di_view_t kept_rows;         /* [max_rows] their places among all rows  */
    di_view_t out_rows;          /* [max_logits] among the kept rows        */
    di_view_t engram[DI_V41_ENGRAM_MAX];     /* [max_rows][tables]          */
    di_view_t groups;            /* [max_rows][o_groups] 0, 1, ...          */
} di_v41_inputs_t;

/* Drafting: rows are those of sequences, `block` each. */
typedef struct {
    uint32_t   batch;            /* sequences at a time                     */
    di_buf_t  *inputs;           /* what follows, i32                       */
    uint8_t   *inputs_host;      /* its mapping, or staging memory          */
    size_t     inputs_bytes;
    di_view_t  ids, positions;   /* [batch][block]                          */
    di_view_t  seq_first;        /* [batch + 1]                             */
    di_view_t  slots, floors;    /* [batch]                                 */
    di_view_t  last;             /* [batch] the token before the next draft */

    di_buf_t  *outputs;          /* what follows, float32                   */
    uint8_t   *outputs_host;
    size_t     outputs_bytes;
    di_view_t  h;                /* [batch][block][dim]                     */
    di_view_t  base;             /* [batch][block][vocab] logits            */
    di_view_t  bias;             /* [batch][vocab] added by the last token  */
    di_view_t  markov;           /* [batch][rank] its vector                */

    di_buf_t  *acts;             /* activation rows                         */
    di_view_t  h_act;            /* [batch][block] of dim                   */
    di_view_t  markov_act;       /* [batch] of rank                         */

    float     *confidence_w;     /* [dim + rank] of the confidence head     */
    uint32_t   step;             /* draft being made                        */
    uint32_t   n_drafts;         /* of each sequence                        */
    uint32_t   n_seqs;           /* of the batch                            */
    size_t     first;            /* the caller's number of its first one    */
    di_model_pick_t pick;        /* NULL: the likeliest                     */
    void      *pick_arg;
    int32_t   *drafts;           /* the caller's arrays, at the batch:      */
    float     *confidence;       /* [batch][n_drafts]                       */
} di_v41_draft_t;

typedef struct {
    di_v41_conf_t    conf;
    di_v41_layout_t  layout;
    di_st_t         *st;         /* weights point into its mappings         */
    di_v41_engram_t  engram[DI_V41_ENGRAM_MAX];
    int32_t         *compressed; /* [n_compressed] ids of Engram's hash     */
    uint32_t         n_compressed;

    di_v41_block_t  *blocks;     /* [n_layers + n_stages]                   */
    di_wpart_t       embed;      /* [vocab][dim], in the mapping            */
    di_weight_t     *head;       /* [vocab][dim]                            */
    di_view_t        out_norm;
    di_weight_t     *main_proj;  /* [dim][n_targets dim]                    */
    di_view_t        main_norm, draft_norm;
    di_wpart_t       markov_embed;   /* [vocab][rank], in the mapping       */
    di_weight_t     *markov_head;    /* [vocab][rank]                       */
    di_view_t        freqs[2];   /* of ratio 0, and of others               */

    di_buf_t        *consts;     /* what views above lie in                 */
    size_t           consts_at;  /* bytes in use, while opening             */
    di_buf_t        *scratch;
    di_v41_scratch_t x;
    di_v41_inputs_t  in;
    di_v41_draft_t   draft;

    /* Called behind each sub-layer of a step, while x has what went into it
     * and what came out: for tests.  NULL: nobody looks. */
    void           (*probe)(void *arg, size_t part);
    void            *probe_arg;
} di_v41_t;

static const di_view_t di_v41_none = { NULL, 0 };

/* v41_weights.c: read and check the directory; open what the device needs. */
int di_v41_read(di_model_t *m, const char *dir, di_err_t *err);
int di_v41_upload(di_model_t *m, di_err_t *err);
size_t di_v41_n_tensors(const di_model_t *m);
void di_v41_tensor(const di_model_t *m, size_t i, di_model_tensor_t *t);
void di_v41_free_weights(di_model_t *m);

/* v41_warm.c: read a block's weights, by prefix of their names; whether that
 * is wanted. */
bool di_v41_may_warm(const di_model_t *m);
int di_v41_warm(di_model_t *m, const char *prefix, di_err_t *err);

/* v41_attention.c: compressed entries and index keys of all rows of a source
 * layer, from its input; a sub-layer from x.in or x.in_kept to x.o. */
void di_v41_compress(di_model_t *m, uint32_t layer, di_view_t in,
                     const di_rows_t *rows);
void di_v41_attention(di_model_t *m, uint32_t block, di_view_t in,
                      const di_rows_t *rows, bool drafts);

/* v41_moe.c: from in to x.o. */
void di_v41_moe(di_model_t *m, const di_v41_block_t *b, di_view_t in,
                size_t n_rows);

/* v41_draft.c: keys of the draft stages, from x.features; and drafts. */
void di_v41_draft_keys(di_model_t *m, const di_rows_t *rows);
int di_v41_draft_open(di_model_t *m, di_err_t *err);
void di_v41_draft_close(di_model_t *m);
int di_v41_draft(di_model_t *m, const di_model_draft_t *seqs, size_t n_seqs,
                 di_model_pick_t pick, void *arg, int32_t *drafts,
                 float *confidence);

/* deepseek_v41.c: cutting a buffer into views; the first pass only counts. */
typedef struct {
    di_model_t *m;
    di_buf_t   *buf;
    size_t      at;
    size_t      end;             /* furthest place                          */
} di_v41_cut_t;

void di_v41_cut_floats(di_v41_cut_t *c, di_view_t *v, size_t rows,
                       size_t values);
void di_v41_cut_act(di_v41_cut_t *c, di_view_t *v, size_t rows,
                    size_t values);

#endif
