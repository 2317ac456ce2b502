/*
 * v41_draft.c - the draft module: keys of its stages, and drafts.
 *
 * Every step leaves, for each row that goes through, one window vector per
 * stage, made of what the target layers were about to attend with.  Drafting
 * then runs one block per sequence: the token just drawn and placeholders for
 * those to be guessed, which see the windows and each other.  That makes base
 * logits of all drafts at once; a small head adds to each what the draft
 * before it says, so they are chosen one after another: by the caller, who
 * knows how his sequences draw, or the likeliest one.
 */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "deepseek_v41.h"

/* Logits of the confidence head beyond these are cut. */
#define CONFIDENCE_MAX 60.0f

/* ------------------------------------------------------------------ keys -- */

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

/* --------------------------------------------------------------- opening -- */

static void
cut_inputs(di_v41_cut_t *k, const di_v41_conf_t *c, di_v41_draft_t *d)
{
    di_v41_cut_floats(k, &d->ids, d->batch, c->block);
    di_v41_cut_floats(k, &d->positions, d->batch, c->block);
    di_v41_cut_floats(k, &d->seq_first, d->batch + 1, 1);
    di_v41_cut_floats(k, &d->slots, d->batch, 1);
    di_v41_cut_floats(k, &d->floors, d->batch, 1);
    di_v41_cut_floats(k, &d->last, d->batch, 1);
}

static void
cut_outputs(di_v41_cut_t *k, const di_v41_conf_t *c, di_v41_draft_t *d)
{
    const size_t rows = (size_t) d->batch * c->block;

    di_v41_cut_floats(k, &d->h, rows, c->dim);
    di_v41_cut_floats(k, &d->base, rows, c->vocab);
    di_v41_cut_floats(k, &d->bias, d->batch, c->vocab);
    di_v41_cut_floats(k, &d->markov, d->batch, c->markov_rank);
}

static void
cut_acts(di_v41_cut_t *k, const di_v41_conf_t *c, di_v41_draft_t *d)
{
    di_v41_cut_act(k, &d->h_act, (size_t) d->batch * c->block, c->dim);
    di_v41_cut_act(k, &d->markov_act, d->batch, c->markov_rank);
}

static int
open_buffer(di_model_t *m, di_v41_draft_t *d,
            void (*cut)(di_v41_cut_t *, const di_v41_conf_t *,
                        di_v41_draft_t *), di_buf_t **buf, size_t *bytes)
{
    di_v41_t     *s = m->state;
    di_v41_cut_t  count = { .m = m }, real = { .m = m };

    cut(&count, &s->conf, d);
    if (m->ops->buf_alloc(m->dev, count.end, buf) != DI_OK)
        return DI_ENOMEM;
    real.buf = *buf;
    cut(&real, &s->conf, d);
    *bytes = count.end;
    m->info.step_bytes += count.end;
    return DI_OK;
}

int
di_v41_draft_open(di_model_t *m, di_err_t *err)
{
    di_v41_t       *s = m->state;
    di_v41_draft_t *d = &s->draft;
    size_t          n;

    d->batch = m->conf.max_rows / s->conf.block;
    if (d->batch > m->conf.max_seqs)
        d->batch = m->conf.max_seqs;
    if (d->batch == 0) {
        m->info.n_drafts = 0;    /* steps are shorter than a block          */
        return DI_OK;
    }
    if (open_buffer(m, d, cut_inputs, &d->inputs, &d->inputs_bytes) != DI_OK
        || open_buffer(m, d, cut_outputs, &d->outputs, &d->outputs_bytes)
           != DI_OK
        || open_buffer(m, d, cut_acts, &d->acts, &n) != DI_OK)
        goto nomem;
    d->inputs_host = di_family_host(m, d->inputs, d->inputs_bytes);
    d->outputs_host = di_family_host(m, d->outputs, d->outputs_bytes);
    if (d->inputs_host == NULL || d->outputs_host == NULL)
        goto nomem;
    return DI_OK;

nomem:
    return di_err_set(err, DI_ENOMEM, 0, "no memory for drafts of %u "
                      "sequences", d->batch);
}

void
di_v41_draft_close(di_model_t *m)
{
    di_v41_draft_t *d = &((di_v41_t *) m->state)->draft;

    if (d->inputs != NULL) {
        di_family_host_free(m, d->inputs, d->inputs_host);
        m->ops->buf_free(m->dev, d->inputs);
    }
    if (d->outputs != NULL) {
        di_family_host_free(m, d->outputs, d->outputs_host);
        m->ops->buf_free(m->dev, d->outputs);
    }
    if (d->acts != NULL)
        m->ops->buf_free(m->dev, d->acts);
    free(d->confidence_w);
}

/* -------------------------------------------------------------- drafting -- */

static int32_t *
host(const di_v41_draft_t *d, di_view_t v)
{
    return (int32_t *) (void *) (d->inputs_host + v.offset);
}

static float *
output(const di_v41_draft_t *d, di_view_t v)
{
    return (float *) (void *) (d->outputs_host + v.offset);
}

static di_rows_t
lay_out(di_model_t *m, const di_model_draft_t *seqs, size_t n)
{
    di_v41_t       *s = m->state;
    di_v41_draft_t *d = &s->draft;
    const uint32_t  block = s->conf.block;

    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t r = 0; r < block; r++) {
            host(d, d->ids)[i * block + r] = r == 0 ? seqs[i].token
                                             : (int32_t) s->conf.noise;
            host(d, d->positions)[i * block + r]
                = (int32_t) (seqs[i].n + r);
        }
        host(d, d->seq_first)[i] = (int32_t) (i * block);
        host(d, d->slots)[i] = (int32_t) seqs[i].slot;
        host(d, d->floors)[i] = 0;
        host(d, d->last)[i] = seqs[i].token;
    }
    host(d, d->seq_first)[n] = (int32_t) (n * block);
    return (di_rows_t) {
        .n_rows = (uint32_t) n * block, .n_seqs = (uint32_t) n,
        .positions = d->positions, .seq_first = d->seq_first,
        .slots = d->slots, .floors = d->floors };
}

static void
copy_inputs(di_model_t *m)
{
    di_v41_draft_t *d = &((di_v41_t *) m->state)->draft;

    if (m->ops->buf_map(d->inputs) == NULL)
        m->ops->copy_in(m->stream, (di_view_t) { d->inputs, 0 },
                        d->inputs_host, d->inputs_bytes);
}

/* The stages, and from their last trunk the base logits. */
static void
run_stages(di_model_t *m, const di_rows_t *rows)
{
    di_v41_t            *s = m->state;
    const di_v41_conf_t *c = &s->conf;
    const di_ops_t      *o = m->ops;
    const size_t         n = rows->n_rows;
    di_v41_scratch_t    *x = &s->x;
    const di_hc_t       *hc = &s->blocks[c->n_layers].hc_attn;

    o->table_rows(m->stream, x->o, &s->embed, s->draft.ids, n, 1, c->dim);
    o->hc_start(m->stream, x->t, x->c, x->o, n, hc);
    for (uint32_t i = 0; i < c->n_stages; i++) {
        const di_v41_block_t *b = &s->blocks[c->n_layers + i];

        if (i > 0)
            o->hc_post(m->stream, x->t, x->c, x->o, n, &b->hc_attn);
        o->hc_mix(m->stream, x->in, x->t, x->c, n, &b->hc_attn);
        di_v41_attention(m, c->n_layers + i, x->in, rows, true);
        o->hc_post(m->stream, x->t, x->c, x->o, n, &b->hc_ffn);
        o->hc_mix(m->stream, x->in, x->t, x->c, n, &b->hc_ffn);
        di_v41_moe(m, b, x->in, n);
    }
    o->hc_post(m->stream, x->t, x->c, x->o, n, hc);
    o->hc_end(m->stream, s->draft.h, x->t, x->c, di_v41_none, n, hc);
    o->norm(m->stream, s->draft.h_act, s->draft.h, di_v41_none, s->draft_norm,
            c->eps, di_v41_none, n, c->dim);
    o->matmul(m->stream, s->draft.base, s->draft.h_act, s->head, di_v41_none,
              n);
}

/* The likeliest token; the smaller id where equal. */
static int32_t
likeliest(const float *logits, uint32_t vocab)
{
    uint32_t best = 0;

    for (uint32_t i = 1; i < vocab; i++)
        best = logits[i] > logits[best] ? i : best;
    return (int32_t) best;
}

/* One sequence's next draft, and how likely it is to be accepted. */
static void
take_draft(di_v41_t *s, size_t seq)
{
    di_v41_draft_t      *d = &s->draft;
    const di_v41_conf_t *c = &s->conf;
    const size_t         row = seq * c->block + d->step;
    const float         *h = output(d, d->h) + row * c->dim;
    const float         *r = output(d, d->markov) + seq * c->markov_rank;
    const float         *bias = output(d, d->bias) + seq * c->vocab;
    float               *logits = output(d, d->base) + row * c->vocab;
    double               z = 0;
    int32_t              token;

    for (uint32_t i = 0; i < c->vocab; i++)
        logits[i] += bias[i];
    token = d->pick == NULL ? likeliest(logits, c->vocab)
                            : d->pick(d->pick_arg, d->first + seq, d->step,
                                      logits);
    for (uint32_t i = 0; i < c->dim; i++)
        z += (double) h[i] * d->confidence_w[i];
    for (uint32_t i = 0; i < c->markov_rank; i++)
        z += (double) r[i] * d->confidence_w[c->dim + i];
    z = fmin(fmax(z, -CONFIDENCE_MAX), CONFIDENCE_MAX);
    d->confidence[seq * d->n_drafts + d->step] = (float) (1 / (1 + exp(-z)));
    d->drafts[seq * d->n_drafts + d->step] = token;
    host(d, d->last)[seq] = token;
}

static size_t
n_parts(const di_v41_draft_t *d)
{
    return d->n_seqs < DI_MODEL_PICKS ? d->n_seqs : DI_MODEL_PICKS;
}

static void
take_drafts(void *arg, size_t part)
{
    di_v41_t *s = arg;

    for (size_t i = part; i < s->draft.n_seqs; i += n_parts(&s->draft))
        take_draft(s, i);
}

static int
next_draft(di_model_t *m, size_t n)
{
    di_v41_t            *s = m->state;
    const di_v41_conf_t *c = &s->conf;
    di_v41_draft_t      *d = &s->draft;
    const di_ops_t      *o = m->ops;

    o->table_rows(m->stream, d->markov, &s->markov_embed, d->last, n, 1,
                  c->markov_rank);
    o->convert(m->stream, d->markov_act, d->markov, n, c->markov_rank);
    o->matmul(m->stream, d->bias, d->markov_act, s->markov_head, di_v41_none,
              n);
    if (o->buf_map(d->outputs) == NULL)
        o->copy_out(m->stream, d->outputs_host, (di_view_t) { d->outputs, 0 },
                    d->outputs_bytes);
    o->host_call(m->stream, take_drafts, s, n_parts(d));
    return o->stream_sync(m->stream);
}

static int
draft_batch(di_model_t *m, const di_model_draft_t *seqs, size_t n)
{
    di_v41_draft_t *d = &((di_v41_t *) m->state)->draft;
    di_rows_t       rows = lay_out(m, seqs, n);
    int             rc = DI_OK;

    d->n_seqs = (uint32_t) n;
    copy_inputs(m);
    run_stages(m, &rows);
    for (d->step = 0; d->step < d->n_drafts && rc == DI_OK; d->step++) {
        rc = next_draft(m, n);
        copy_inputs(m);
    }
    return rc;
}

int
di_v41_draft(di_model_t *m, const di_model_draft_t *seqs, size_t n_seqs,
             di_model_pick_t pick, void *arg, int32_t *drafts,
             float *confidence)
{
    di_v41_draft_t *d = &((di_v41_t *) m->state)->draft;
    int             rc = DI_OK;

    d->n_drafts = m->info.n_drafts;
    d->pick = pick;
    d->pick_arg = arg;
    for (size_t at = 0; at < n_seqs && rc == DI_OK; at += d->batch) {
        d->first = at;
        d->drafts = drafts + at * d->n_drafts;
        d->confidence = confidence + at * d->n_drafts;
        rc = draft_batch(m, seqs + at,
                         n_seqs - at < d->batch ? n_seqs - at : d->batch);
    }
    return rc;
}
