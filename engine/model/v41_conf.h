/*
 * v41_conf.h - what a DeepSeek-V4.1 directory says it is: config.json, the
 * topology that follows from it, and the tensors that it must hold.
 *
 * Object model.  A di_v41_conf_t is a plain struct, filled once from
 * config.json and read-only ever after.  Everything that other files ask
 * about the shape of the model is here: which layer owns what, how large a
 * KV block and a state slot are, and one list of tensors (names, shapes,
 * formats) that the loader checks against and `inspect` sums up.
 */

#ifndef DI_V41_CONF_H
#define DI_V41_CONF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../../tokenizer/di_err.h"

/* Bounds of plausible files; they keep products of sizes in 64 bits, and
 * topology in fixed arrays. */
#define DI_V41_LAYERS_MAX  256u
#define DI_V41_STAGES_MAX  8u
#define DI_V41_TARGETS_MAX 8u
#define DI_V41_ENGRAM_MAX  8u    /* Engram layers                           */
#define DI_V41_NGRAM_MAX   8u
#define DI_V41_TABLES_MAX  32u   /* tables of an n-gram size                */
#define DI_V41_HC_MAX      8u
#define DI_V41_DRAFTS_MAX  16u

#define DI_V41_BLOCK       128u  /* tokens of a KV block                    */
#define DI_V41_BACKTRACK   6u    /* tokens that may be taken back, plus one */

#define DI_V41_NO_LAYER    UINT32_MAX

typedef struct {
    uint32_t vocab;
    uint32_t dim;                /* D, hidden size                          */
    uint32_t n_layers;           /* L                                       */
    uint32_t n_stages;           /* N, draft stages; 0: no draft module     */
    uint32_t n_heads;            /* H                                       */
    uint32_t head_dim;           /* d                                       */
    uint32_t rope_dim;           /* dr, the last of head_dim                */
    uint32_t q_rank;             /* rq                                      */
    uint32_t o_groups;           /* G                                       */
    uint32_t o_rank;             /* ro                                      */
    uint32_t context_length;
    uint32_t window;             /* W                                       */
    float    eps;                /* of all norms but Sinkhorn's             */
    float    swiglu_limit;

    double   rope_theta;         /* layers of ratio 0, draft stages         */
    double   compress_theta;     /* other layers                            */
    bool     yarn;               /* these use it                            */
    double   yarn_factor;
    double   yarn_fast;          /* beta_fast                               */
    double   yarn_slow;          /* beta_slow                               */
    double   yarn_context;       /* original_max_position_embeddings        */

    /* Per layer; DI_V41_NO_LAYER: none. */
    uint32_t ratio[DI_V41_LAYERS_MAX];       /* 0, 1 or 2                   */
    uint32_t kv_source[DI_V41_LAYERS_MAX];   /* whose compressed KV it reads*/
    uint32_t index_source[DI_V41_LAYERS_MAX];    /* whose selection         */
    uint32_t key_source[DI_V41_LAYERS_MAX];  /* whose index keys            */
    uint32_t engram_of[DI_V41_LAYERS_MAX];   /* its number among them       */
    uint32_t first_consumer;     /* P, n_layers if there is none            */

    uint32_t index_heads;
    uint32_t index_dim;
    uint32_t index_topk;
    uint32_t candidate_layer;    /* DI_V41_NO_LAYER: no candidate blocks    */
    uint32_t candidate_blocks;   /* how many it keeps                       */
    uint32_t candidate_size;     /* compressed positions in one             */
    bool     fp4_kv;             /* compressed KV as FP4, else as MXFP8     */

    uint32_t hc;                 /* m, streams                              */
    uint32_t hc_iters;
    float    hc_eps;

    uint32_t n_experts;          /* E                                       */
    uint32_t n_used;             /* K                                       */
    uint32_t n_shared;
    uint32_t expert_dim;         /* I                                       */
    float    route_scale;

    uint32_t n_engrams;
    uint32_t engram_layer[DI_V41_ENGRAM_MAX];
    uint32_t engram_ngram;       /* longest n-gram                          */
    uint64_t engram_vocab;       /* lower bound of a table's prime          */
    uint32_t engram_heads;       /* tables per n-gram size                  */
    uint32_t engram_dim;         /* values of a table's row                 */
    uint32_t engram_pad;         /* token                                   */
    uint32_t engram_ids;         /* of the compressed vocabulary, 0: not said
                                  * (config.json may leave it out)          */

    uint32_t n_targets;
    uint32_t target[DI_V41_TARGETS_MAX];
    uint32_t block;              /* drafts of one step                      */
    uint32_t noise;              /* token                                   */
    uint32_t markov_rank;
    uint32_t draft_experts;
    uint32_t draft_used;

    bool     quantised;          /* FP8 and FP4 weights with scales         */
    bool     native_tokens;      /* no extra ids behind the vocabulary      */
    uint32_t bos, eos, pad, image;           /* tokens                      */

    bool     has_vision;
    uint32_t vision_dim;
    uint32_t vision_layers;
    uint32_t vision_heads;
    uint32_t vision_ffn;
    uint32_t vision_patch;       /* pixels of a patch's side                */
    uint32_t vision_down;        /* patches of a row's side                 */
} di_v41_conf_t;

/* Parse config.json.  DI_EFORMAT or DI_EUNSUPPORTED with the key, what it
 * says and what was expected; DI_ENOMEM. */
int di_v41_conf_parse(const char *text, size_t len, di_v41_conf_t *conf,
                      di_err_t *err);

/* ------------------------------------------------------------ what follows */

/* The rotation's angle per position of pair i, for layers of a ratio;
 * freqs [rope_dim / 2]. */
void di_v41_freqs(const di_v41_conf_t *conf, uint32_t ratio, float *freqs);

static inline bool
di_v41_owns_kv(const di_v41_conf_t *c, uint32_t layer)
{
    return c->kv_source[layer] == layer;
}

static inline bool
di_v41_owns_keys(const di_v41_conf_t *c, uint32_t layer)
{
    return c->key_source[layer] == layer;
}

static inline bool
di_v41_selects(const di_v41_conf_t *c, uint32_t layer)
{
    return c->index_source[layer] == layer;
}

/* ----------------------------------------------------------------- tensors */

/* Formats of tensors as section 2 of the format's description names them;
 * without quantization_config all but DI_V41_F32 are stored as BF16. */
typedef enum {
    DI_V41_BF16,
    DI_V41_F32,
    DI_V41_FP8,                  /* E4M3, an E8M0 scale per 32 x 32         */
    DI_V41_FP4,                  /* E2M1, an E8M0 scale per 1 x 32          */
    DI_V41_ROWS                  /* E4M3, an E8M0 scale per 1 x 32          */
} di_v41_format_t;

/* Who needs a tensor.  An encode engine needs the vision tower alone, the
 * others all that is not vision; Engram tables stay on disk or host. */
typedef enum {
    DI_V41_ROLE_DENSE, DI_V41_ROLE_EXPERTS, DI_V41_ROLE_ENGRAM,
    DI_V41_ROLE_DRAFT, DI_V41_ROLE_VISION, DI_V41_N_ROLES
} di_v41_role_t;

typedef struct {
    char            name[96];
    di_v41_format_t format;
    di_v41_role_t   role;
    uint64_t        rows;        /* 0: one dimension                        */
    uint64_t        cols;
} di_v41_tensor_t;

/* Call fn for each tensor that a directory must hold (scales belong to their
 * tensor); stops at the first result that is not DI_OK, and returns it. */
int di_v41_tensors(const di_v41_conf_t *conf,
                   int (*fn)(void *arg, const di_v41_tensor_t *t), void *arg);

/* Bytes of a tensor's values, and of its scales (0: it has none). */
uint64_t di_v41_tensor_bytes(const di_v41_conf_t *conf,
                             const di_v41_tensor_t *t);
uint64_t di_v41_scale_bytes(const di_v41_conf_t *conf,
                            const di_v41_tensor_t *t);

#endif
