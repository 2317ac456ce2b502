/*
 * v41_tensors.c - the tensors of a DeepSeek-V4.1 directory, as one list.
 *
 * The list is made by walking the model rather than kept as a table: most of
 * its 96,085 names differ in a layer and an expert.  The loader checks each
 * one's dtype and shape, and that there is nothing else; `inspect` sums them
 * up; the test compares that sum with the released checkpoint's.
 */

#include <stdarg.h>
#include <stdio.h>

#include "v41_conf.h"
#include "v41_engram.h"

typedef struct {
    const di_v41_conf_t *c;
    int                (*fn)(void *arg, const di_v41_tensor_t *t);
    void                *arg;
    int                  rc;     /* once it is not DI_OK nothing is called  */
    di_v41_role_t        role;   /* of what comes next                      */
    char                 prefix[32];     /* "layers.3."                     */
} walk_t;

__attribute__((format(printf, 5, 6)))
static void
add(walk_t *w, di_v41_format_t format, uint64_t rows, uint64_t cols,
    const char *fmt, ...)
{
    di_v41_tensor_t t = { .format = format, .role = w->role, .rows = rows,
                          .cols = cols };
    char            suffix[64];
    va_list         ap;

    if (w->rc != DI_OK)
        return;
    va_start(ap, fmt);
    (void) vsnprintf(suffix, sizeof(suffix), fmt, ap);
    va_end(ap);
    (void) snprintf(t.name, sizeof(t.name), "%s%s", w->prefix, suffix);
    w->rc = w->fn(w->arg, &t);
}

static void
add_hc(walk_t *w, const char *part)
{
    uint64_t m = w->c->hc, n = (2 + m) * m;

    add(w, DI_V41_BF16, 0, w->c->dim, "%s_norm.weight", part);
    add(w, DI_V41_F32, n, m * w->c->dim, "hc_%s_fn", part);
    add(w, DI_V41_F32, 0, n, "hc_%s_base", part);
    add(w, DI_V41_F32, 0, 3, "hc_%s_scale", part);
}

static void
add_attention(walk_t *w)
{
    const di_v41_conf_t *c = w->c;
    uint64_t             d = c->head_dim, out = c->o_groups * c->o_rank;

    add(w, DI_V41_FP8, c->q_rank, c->dim, "attn.wq_a.weight");
    add(w, DI_V41_BF16, 0, c->q_rank, "attn.q_norm.weight");
    add(w, DI_V41_FP8, c->n_heads * d, c->q_rank, "attn.wq_b.weight");
    add(w, DI_V41_FP8, d, c->dim, "attn.wkv.weight");
    add(w, DI_V41_BF16, 0, d, "attn.kv_norm.weight");
    add(w, DI_V41_F32, 0, c->n_heads, "attn.attn_sink");
    add(w, DI_V41_FP8, out, c->n_heads / c->o_groups * d,
        "attn.wo_a.weight");
    add(w, DI_V41_FP8, c->dim, out, "attn.wo_b.weight");
}

static void
add_compressor(walk_t *w, uint32_t layer)
{
    const di_v41_conf_t *c = w->c;

    if (di_v41_owns_kv(c, layer)) {
        add(w, DI_V41_BF16, c->head_dim, c->dim,
            "attn.compressor.wkv.weight");
        if (c->ratio[layer] == 2)
            add(w, DI_V41_BF16, c->head_dim, c->dim,
                "attn.compressor.wgate.weight");
        add(w, DI_V41_BF16, 0, c->head_dim, "attn.compressor.norm.weight");
    }
    if (di_v41_selects(c, layer)) {
        add(w, DI_V41_FP8, c->index_heads * c->index_dim, c->q_rank,
            "attn.indexer.wq_b.weight");
        add(w, DI_V41_BF16, c->index_heads, c->dim,
            "attn.indexer.weights_proj.weight");
    }
    if (di_v41_owns_keys(c, layer)) {
        add(w, DI_V41_BF16, c->index_dim, c->head_dim,
            "attn.indexer.wk.weight");
        add(w, DI_V41_BF16, 0, c->index_dim, "attn.indexer.k_norm.weight");
    }
}

static void
add_moe(walk_t *w, uint32_t n_experts)
{
    const di_v41_conf_t *c = w->c;
    const di_v41_role_t  role = w->role;
    uint64_t             wide = c->expert_dim * c->n_shared;

    add(w, DI_V41_BF16, n_experts, c->dim, "ffn.gate.weight");
    add(w, DI_V41_F32, 0, n_experts, "ffn.gate.bias");
    add(w, DI_V41_F32, 0, n_experts, "ffn.gate.bias_vl");
    add(w, DI_V41_FP8, wide, c->dim, "ffn.shared_experts.w1.weight");
    add(w, DI_V41_FP8, c->dim, wide, "ffn.shared_experts.w2.weight");
    add(w, DI_V41_FP8, wide, c->dim, "ffn.shared_experts.w3.weight");
    if (role == DI_V41_ROLE_DENSE)
        w->role = DI_V41_ROLE_EXPERTS;
    for (uint32_t e = 0; e < n_experts && w->rc == DI_OK; e++) {
        add(w, DI_V41_FP4, c->expert_dim, c->dim,
            "ffn.experts.%u.w1.weight", e);
        add(w, DI_V41_FP4, c->dim, c->expert_dim,
            "ffn.experts.%u.w2.weight", e);
        add(w, DI_V41_FP4, c->expert_dim, c->dim,
            "ffn.experts.%u.w3.weight", e);
    }
    w->role = role;
}

static void
add_engram(walk_t *w, const di_v41_engram_t *tables)
{
    const di_v41_conf_t *c = w->c;
    uint64_t             values = (uint64_t) (c->engram_ngram - 1)
                                  * c->engram_heads * c->engram_dim;

    w->role = DI_V41_ROLE_ENGRAM;
    add(w, DI_V41_ROWS, tables->n_rows, c->engram_dim,
        "engram.embed.weight");
    w->role = DI_V41_ROLE_DENSE;
    add(w, DI_V41_FP8, (c->hc + 1) * (uint64_t) c->dim, values,
        "engram.wkv.weight");
    add(w, DI_V41_BF16, c->hc, c->dim, "engram.q_weight");
    add(w, DI_V41_BF16, c->hc, c->dim, "engram.k_weight");
}

static void
add_layers(walk_t *w)
{
    const di_v41_conf_t *c = w->c;
    di_v41_engram_t      tables[DI_V41_ENGRAM_MAX];

    di_v41_engram_primes(c, tables);
    for (uint32_t l = 0; l < c->n_layers && w->rc == DI_OK; l++) {
        (void) snprintf(w->prefix, sizeof(w->prefix), "layers.%u.", l);
        add_hc(w, "attn");
        add_hc(w, "ffn");
        add_attention(w);
        add_compressor(w, l);
        add_moe(w, c->n_experts);
        if (c->engram_of[l] != DI_V41_NO_LAYER)
            add_engram(w, &tables[c->engram_of[l]]);
    }
}

static void
add_stages(walk_t *w)
{
    const di_v41_conf_t *c = w->c;

    w->role = DI_V41_ROLE_DRAFT;
    for (uint32_t i = 0; i < c->n_stages; i++) {
        (void) snprintf(w->prefix, sizeof(w->prefix), "mtp.%u.", i);
        add_hc(w, "attn");
        add_hc(w, "ffn");
        add_attention(w);
        add_moe(w, c->draft_experts);
        if (i == 0) {
            add(w, DI_V41_FP8, c->dim, (uint64_t) c->n_targets * c->dim,
                "main_proj.weight");
            add(w, DI_V41_BF16, 0, c->dim, "main_norm.weight");
        }
        if (i == c->n_stages - 1) {
            add(w, DI_V41_BF16, 0, c->dim, "norm.weight");
            add(w, DI_V41_BF16, c->vocab, c->markov_rank,
                "markov_head.embed.weight");
            add(w, DI_V41_BF16, c->vocab, c->markov_rank,
                "markov_head.head.weight");
            add(w, DI_V41_BF16, 1, c->dim + c->markov_rank,
                "confidence_head.proj.weight");
        }
    }
}

static void
add_vision(walk_t *w)
{
    const di_v41_conf_t *c = w->c;
    const uint64_t       d = c->vision_dim, f = c->vision_ffn;
    const uint64_t       side = c->vision_patch, down = c->vision_down;

    w->role = DI_V41_ROLE_VISION;
    w->prefix[0] = '\0';
    add(w, DI_V41_BF16, 0, c->dim, "image_start");
    add(w, DI_V41_BF16, 0, c->dim, "image_end");
    add(w, DI_V41_BF16, 0, c->dim, "image_newline");
    (void) snprintf(w->prefix, sizeof(w->prefix), "vision.");
    add(w, DI_V41_BF16, d, 3 * side * side, "patch_embed.proj.weight");
    add(w, DI_V41_BF16, 0, d, "patch_embed.proj.bias");
    add(w, DI_V41_BF16, 0, d, "norm.weight");
    for (uint32_t i = 0; i < c->vision_layers; i++) {
        (void) snprintf(w->prefix, sizeof(w->prefix), "vision.blocks.%u.", i);
        add(w, DI_V41_BF16, 0, d, "norm1.weight");
        add(w, DI_V41_BF16, 3 * d, d, "attn.wqkv.weight");
        add(w, DI_V41_BF16, 0, 3 * d, "attn.wqkv.bias");
        add(w, DI_V41_BF16, d, d, "attn.wo.weight");
        add(w, DI_V41_BF16, 0, d, "attn.wo.bias");
        add(w, DI_V41_BF16, 0, d, "norm2.weight");
        add(w, DI_V41_BF16, 2 * f, d, "mlp.w1.weight");
        add(w, DI_V41_BF16, d, f, "mlp.w2.weight");
    }
    (void) snprintf(w->prefix, sizeof(w->prefix), "aligner.");
    add(w, DI_V41_BF16, c->dim, d * down * down, "w1.weight");
    add(w, DI_V41_BF16, 0, c->dim, "w1.bias");
    add(w, DI_V41_BF16, c->dim, c->dim, "w2.weight");
    add(w, DI_V41_BF16, 0, c->dim, "w2.bias");
}

int
di_v41_tensors(const di_v41_conf_t *c,
               int (*fn)(void *arg, const di_v41_tensor_t *t), void *arg)
{
    walk_t w = { .c = c, .fn = fn, .arg = arg, .rc = DI_OK,
                 .role = DI_V41_ROLE_DENSE };

    add(&w, DI_V41_BF16, c->vocab, c->dim, "embed.weight");
    add(&w, DI_V41_BF16, 0, c->dim, "norm.weight");
    add(&w, DI_V41_BF16, c->vocab, c->dim, "head.weight");
    add_layers(&w);
    add_stages(&w);
    if (c->has_vision)
        add_vision(&w);
    return w.rc;
}

uint64_t
di_v41_tensor_bytes(const di_v41_conf_t *c, const di_v41_tensor_t *t)
{
    uint64_t n = (t->rows == 0 ? 1 : t->rows) * t->cols;

    if (t->format == DI_V41_F32)
        return 4 * n;
    if (t->format == DI_V41_BF16 || !c->quantised)
        return 2 * n;
    return t->format == DI_V41_FP4 ? n / 2 : n;
}

uint64_t
di_v41_scale_bytes(const di_v41_conf_t *c, const di_v41_tensor_t *t)
{
    uint64_t blocks = (t->cols + 31) / 32;

    if (!c->quantised || t->format == DI_V41_F32 || t->format == DI_V41_BF16)
        return 0;
    return t->format == DI_V41_FP8 ? (t->rows + 31) / 32 * blocks
                                   : t->rows * blocks;
}
