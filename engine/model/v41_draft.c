/*
 * v41_draft.c - the draft module: keys of its stages.
 *
 * Every step leaves, for each row that goes through, one window vector per
 * stage, made of what the target layers were about to attend with.
 */

#include "deepseek_v41.h"

void
di_v41_draft_keys(di_model_t *m, const di_rows_t *rows)
{
    di_v41_t            *s = m->state;
    const di_v41_conf_t *c = &s->conf;
    const di_ops_t      *o = m->ops;
    const size_t         n = rows->n_rows;
    di_v41_scratch_t    *x = &s->x;

    o->convert(m->stream, x->wide_act, x->features, n,
               (size_t) c->n_targets * c->dim);
    o->matmul(m->stream, x->o, x->wide_act, s->main_proj, di_v41_none, n);
    o->norm(m->stream, x->in, x->o, di_v41_none, s->main_norm, c->eps,
            di_v41_none, n, c->dim);
    for (uint32_t i = 0; i < c->n_stages; i++) {
        const di_v41_block_t *b = &s->blocks[c->n_layers + i];
        di_cache_t            ring = s->layout.ring[c->n_layers + i];

        ring.base.buf = m->states;
        o->matmul(m->stream, x->kv, x->in, b->wkv, di_v41_none, n);
        o->window_make(m->stream, x->fresh, x->kv, b->kv_norm, c->eps, &ring,
                       rows, &b->rotation);
        o->window_store(m->stream, &ring, x->fresh, rows);
    }
}
