/*
 * v41_attention.c - the attention sub-layer.
 *
 * Products read their activations as rows of the arithmetic; between them
 * there are float32 rows.  A row's own window vector enters attention as the
 * record that its ring will hold, so prefill sees what decode will; the ring
 * is written last, when no row reads what it overwrites.
 */

#include <math.h>

#include "deepseek_v41.h"

static di_cache_t
based(di_cache_t cache, di_buf_t *buf)
{
    cache.base = (di_view_t) { buf, 0 };
    return cache;
}

void
di_v41_compress(di_model_t *m, uint32_t layer, di_view_t in,
                const di_rows_t *rows)
{
    di_v41_t             *s = m->state;
    const di_v41_conf_t  *c = &s->conf;
    const di_v41_block_t *b = &s->blocks[layer];
    const di_ops_t       *o = m->ops;
    const size_t          n = rows->n_rows;
    const uint32_t        ratio = c->ratio[layer];
    di_v41_scratch_t     *x = &s->x;
    di_cache_t            pairs = { 0 }, kv, keys;

    o->matmul(m->stream, x->value, in, b->comp_wkv, di_v41_none, n);
    if (ratio == 2) {
        pairs = based(s->layout.pairs[layer], m->states);
        o->matmul(m->stream, x->gate, in, b->comp_gate, di_v41_none, n);
    }
    o->compress(m->stream, x->latent, x->value, x->gate, b->comp_norm,
                c->eps, c->head_dim, &pairs, rows);
    if (ratio == 2)
        o->pairs_store(m->stream, &pairs, x->value, x->gate, rows);

    kv = based(s->layout.kv[layer], m->kv);
    o->entry_store(m->stream, &kv, x->latent, di_v41_none, c->eps, ratio,
                   rows, &b->rotation);
    if (!di_v41_owns_keys(c, layer))
        return;
    keys = based(s->layout.keys[layer], m->kv);
    o->convert(m->stream, x->latent_act, x->latent, n, c->head_dim);
    o->matmul(m->stream, x->index_k, x->latent_act, b->index_k, di_v41_none,
              n);
    o->entry_store(m->stream, &keys, x->index_k, b->k_norm, c->eps, ratio,
                   rows, &b->rotation);
}

/* Choose entries for this layer and those that follow it. */
static void
choose(di_model_t *m, uint32_t layer, di_view_t in, const di_rows_t *rows)
{
    di_v41_t             *s = m->state;
    const di_v41_conf_t  *c = &s->conf;
    const di_v41_block_t *b = &s->blocks[layer];
    di_v41_scratch_t     *x = &s->x;
    di_index_t            index = {
        .q = x->index_q, .w = x->index_w, .n_heads = c->index_heads,
        .keys = based(s->layout.keys[c->key_source[layer]], m->kv),
        .top_k = c->index_topk, .ratio = c->ratio[layer],
        .selected = x->selected, .cand_blocks = c->candidate_blocks,
        .cand_size = c->candidate_size,
        .makes = layer == c->candidate_layer,
    };

    if (c->candidate_layer != DI_V41_NO_LAYER && layer >= c->candidate_layer)
        index.candidates = x->candidates;
    m->ops->matmul(m->stream, x->index_q, x->qa_act, b->index_q, di_v41_none,
                   rows->n_rows);
    m->ops->rotate(m->stream, x->index_q, c->index_heads, c->index_dim, rows,
                   &b->rotation);
    m->ops->matmul(m->stream, x->index_w, in, b->index_w, di_v41_none,
                   rows->n_rows);
    m->ops->index_select(m->stream, &index, rows);
}

static void
project_in(di_model_t *m, uint32_t block, di_view_t in,
           const di_rows_t *rows, const di_cache_t *ring)
{
    di_v41_t             *s = m->state;
    const di_v41_conf_t  *c = &s->conf;
    const di_v41_block_t *b = &s->blocks[block];
    const di_ops_t       *o = m->ops;
    const size_t          n = rows->n_rows;
    di_v41_scratch_t     *x = &s->x;

    o->matmul(m->stream, x->qa, in, b->wq_a, di_v41_none, n);
    o->norm(m->stream, x->qa_act, x->qa, di_v41_none, b->q_norm, c->eps,
            di_v41_none, n, c->q_rank);
    o->matmul(m->stream, x->q, x->qa_act, b->wq_b, di_v41_none, n);
    o->rotate(m->stream, x->q, c->n_heads, c->head_dim, rows, &b->rotation);
    o->matmul(m->stream, x->kv, in, b->wkv, di_v41_none, n);
    o->window_make(m->stream, x->fresh, x->kv, b->kv_norm, c->eps, ring,
                   rows, &b->rotation);
}

/* Groups of heads have a matrix each: rows of groups pick them by turns. */
static void
project_out(di_model_t *m, const di_v41_block_t *b, size_t n)
{
    di_v41_t            *s = m->state;
    const di_v41_conf_t *c = &s->conf;
    di_v41_scratch_t    *x = &s->x;

    m->ops->matmul_experts(m->stream, x->groups, x->heads, b->wo_a,
                           s->in.groups, n * c->o_groups, 1);
    m->ops->convert(m->stream, x->groups_act, x->groups, n,
                    (size_t) c->o_groups * c->o_rank);
    m->ops->matmul(m->stream, x->o, x->groups_act, b->wo_b, di_v41_none, n);
}

void
di_v41_attention(di_model_t *m, uint32_t block, di_view_t in,
                 const di_rows_t *rows, bool drafts)
{
    di_v41_t             *s = m->state;
    const di_v41_conf_t  *c = &s->conf;
    const di_v41_block_t *b = &s->blocks[block];
    const bool            sparse = block < c->n_layers && c->ratio[block] > 0;
    const di_cache_t      ring = based(s->layout.ring[block], m->states);
    di_sparse_t           a = {
        .q = s->x.q, .sinks = b->sinks, .fresh = s->x.fresh, .ring = ring,
        .selected = s->x.selected, .rotation = b->rotation,
        .n_heads = c->n_heads, .n_groups = c->o_groups, .window = c->window,
        .scale = 1 / sqrtf((float) c->head_dim), .drafts = drafts,
    };

    project_in(m, block, in, rows, &ring);
    if (sparse) {
        a.kv = based(s->layout.kv[c->kv_source[block]], m->kv);
        a.top_k = c->index_topk;
        if (di_v41_selects(c, block))
            choose(m, block, in, rows);
    }
    m->ops->sparse_attention(m->stream, s->x.heads, &a, rows);
    if (!drafts)
        m->ops->window_store(m->stream, &ring, s->x.fresh, rows);
    project_out(m, b, rows->n_rows);
}
