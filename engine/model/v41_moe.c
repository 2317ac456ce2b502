/*
 * v41_moe.c - the mixture of experts.
 *
 * A row's experts are summed in the order of their rank, then the shared one,
 * so that the sum depends on the row alone, however rows are grouped.
 */

#include "deepseek_v41.h"

void
di_v41_moe(di_model_t *m, const di_v41_block_t *b, di_view_t in,
           size_t n_rows)
{
    di_v41_t            *s = m->state;
    const di_v41_conf_t *c = &s->conf;
    const di_ops_t      *o = m->ops;
    const size_t         n = n_rows * b->n_used;
    di_v41_scratch_t    *x = &s->x;

    o->matmul(m->stream, x->logits, in, b->gate, di_v41_none, n_rows);
    o->route(m->stream, x->ids, x->weights, x->logits, b->gate_bias,
             c->route_scale, n_rows, b->n_experts, b->n_used);
    o->matmul_experts(m->stream, x->up, in, b->up, x->ids, n, b->n_used);
    o->swiglu(m->stream, x->up_act, x->up, x->weights, c->swiglu_limit, n,
              c->expert_dim);
    o->matmul_experts(m->stream, x->down, x->up_act, b->down, x->ids, n, 1);

    o->matmul(m->stream, x->shared, in, b->shared_up, di_v41_none, n_rows);
    o->swiglu(m->stream, x->shared_act, x->shared, di_v41_none,
              c->swiglu_limit, n_rows, (size_t) c->expert_dim * c->n_shared);
    o->matmul(m->stream, x->o, x->shared_act, b->shared_down, di_v41_none,
              n_rows);
    o->sum_rows(m->stream, x->o, x->down, x->o, n_rows, b->n_used, c->dim);
}
