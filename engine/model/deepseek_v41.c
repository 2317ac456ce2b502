/*
 * deepseek_v41.c - the DeepSeek-V4.1 family: opening, and the order of layers.
 *
 * A layer is two sub-layers around a trunk of several streams.  Hyper-
 * connections are shifted: what goes into a sub-layer is mixed with the
 * coefficients of the one before it, so that both the mix and the next
 * coefficients are made of one reading of the trunk.  Source: docs/design.md,
 * section 11; held against golden outputs in t/unit/v41.c.
 *
 * The first half of the layers (producers) computes every row.  At the first
 * consumer all rows still leave compressed entries and index keys, which are
 * all that later tokens need of them beyond a window; rows that no window
 * will reach any more end there.  So two sets of rows go through a step: all,
 * and the kept ones, whose trunk is gathered.
 */

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "deepseek_v41.h"

/* --------------------------------------------------------------- buffers -- */

static void
cut_bytes(di_v41_cut_t *c, di_view_t *v, size_t bytes)
{
    *v = (di_view_t) { c->buf, c->at };
    c->at += di_family_align(bytes);
    if (c->at > c->end)
        c->end = c->at;
}

void
di_v41_cut_floats(di_v41_cut_t *c, di_view_t *v, size_t rows,
                  size_t values)
{
    cut_bytes(c, v, rows * values * sizeof(float));
}

void
di_v41_cut_act(di_v41_cut_t *c, di_view_t *v, size_t rows, size_t values)
{
    cut_bytes(c, v, rows * c->m->ops->act_bytes(c->m->dev, values));
}

static void
cut_lasting(di_v41_cut_t *k, di_v41_t *s, size_t n)
{
    const di_v41_conf_t *c = &s->conf;
    di_v41_scratch_t    *x = &s->x;
    size_t               coefs = DI_HC_COEFS(c->hc);

    di_v41_cut_floats(k, &x->t, n, (size_t) c->hc * c->dim);
    di_v41_cut_floats(k, &x->t_kept, n, (size_t) c->hc * c->dim);
    di_v41_cut_floats(k, &x->c, n, coefs);
    di_v41_cut_floats(k, &x->c_kept, n, coefs);
    di_v41_cut_floats(k, &x->o, n, c->dim);
    di_v41_cut_act(k, &x->in, n, c->dim);
    di_v41_cut_act(k, &x->in_kept, n, c->dim);
    di_v41_cut_floats(k, &x->selected, n, 1 + c->index_topk);
    di_v41_cut_floats(k, &x->candidates, n, 1 + c->candidate_blocks);
    di_v41_cut_floats(k, &x->features, n, (size_t) c->n_targets * c->dim);
    di_v41_cut_floats(k, &x->h, k->m->info.max_logits, c->dim);
    di_v41_cut_act(k, &x->h_act, k->m->info.max_logits, c->dim);
}

static void
cut_attention(di_v41_cut_t *k, di_v41_t *s, size_t n)
{
    const di_v41_conf_t *c = &s->conf;
    di_v41_scratch_t    *x = &s->x;
    const size_t         rows = (size_t) (c->engram_ngram - 1)
                                * c->engram_heads * c->engram_dim;

    di_v41_cut_floats(k, &x->qa, n, c->q_rank);
    di_v41_cut_act(k, &x->qa_act, n, c->q_rank);
    di_v41_cut_floats(k, &x->q, n, (size_t) c->n_heads * c->head_dim);
    di_v41_cut_floats(k, &x->kv, n, c->head_dim);
    di_v41_cut_floats(k, &x->fresh, n, c->head_dim);
    di_v41_cut_floats(k, &x->value, n, c->head_dim);
    di_v41_cut_floats(k, &x->gate, n, c->head_dim);
    di_v41_cut_floats(k, &x->latent, n, c->head_dim);
    di_v41_cut_act(k, &x->latent_act, n, c->head_dim);
    di_v41_cut_floats(k, &x->index_k, n, c->index_dim);
    di_v41_cut_floats(k, &x->index_q, n,
                      (size_t) c->index_heads * c->index_dim);
    di_v41_cut_floats(k, &x->index_w, n, c->index_heads);
    di_v41_cut_act(k, &x->heads, n * c->o_groups,
            (size_t) c->n_heads / c->o_groups * c->head_dim);
    di_v41_cut_floats(k, &x->groups, n, (size_t) c->o_groups * c->o_rank);
    di_v41_cut_act(k, &x->groups_act, n, (size_t) c->o_groups * c->o_rank);
    if (c->n_engrams > 0) {
        di_v41_cut_floats(k, &x->engram, n, rows);
        di_v41_cut_act(k, &x->engram_act, n, rows);
        di_v41_cut_floats(k, &x->engram_kv, n, (size_t) (c->hc + 1) * c->dim);
    }
    if (c->n_stages > 0)
        di_v41_cut_act(k, &x->wide_act, n, (size_t) c->n_targets * c->dim);
}

static size_t
larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static void
cut_moe(di_v41_cut_t *k, di_v41_t *s, size_t n)
{
    const di_v41_conf_t *c = &s->conf;
    di_v41_scratch_t    *x = &s->x;
    const size_t         used = larger(c->n_used, c->draft_used);
    const size_t         wide = (size_t) c->expert_dim * c->n_shared;

    di_v41_cut_floats(k, &x->logits, n, larger(c->n_experts, c->draft_experts));
    di_v41_cut_floats(k, &x->ids, n, used);
    di_v41_cut_floats(k, &x->weights, n, used);
    di_v41_cut_floats(k, &x->up, n * used, 2 * (size_t) c->expert_dim);
    di_v41_cut_act(k, &x->up_act, n * used, c->expert_dim);
    di_v41_cut_floats(k, &x->down, n * used, c->dim);
    di_v41_cut_floats(k, &x->shared, n, 2 * wide);
    di_v41_cut_act(k, &x->shared_act, n, wide);
}

/* The two sub-layers take turns in what lies behind the rest. */
static void
cut_scratch(di_v41_cut_t *k, di_v41_t *s, size_t n)
{
    size_t at;

    cut_lasting(k, s, n);
    at = k->at;
    cut_attention(k, s, n);
    k->at = at;
    cut_moe(k, s, n);
}

static int
open_scratch(di_model_t *m, di_v41_t *s, di_err_t *err)
{
    di_v41_cut_t count = { .m = m }, cut = { .m = m };

    cut_scratch(&count, s, m->conf.max_rows);
    if (m->ops->buf_alloc(m->dev, count.end, &s->scratch) != DI_OK)
        return di_err_set(err, DI_ENOMEM, 0, "no memory for steps of %u rows",
                          m->conf.max_rows);
    cut.buf = s->scratch;
    cut_scratch(&cut, s, m->conf.max_rows);
    m->info.step_bytes += count.end;
    return DI_OK;
}

/* ---------------------------------------------------------------- inputs -- */

static uint32_t
n_tables(const di_v41_conf_t *c)
{
    return (c->engram_ngram - 1) * c->engram_heads;
}

static void
cut_inputs(di_v41_cut_t *k, di_v41_t *s)
{
    const di_v41_conf_t *c = &s->conf;
    const size_t         rows = k->m->conf.max_rows;
    const size_t         seqs = k->m->conf.max_seqs;
    di_v41_inputs_t     *in = &s->in;

    di_v41_cut_floats(k, &in->slots, seqs, 1);
    di_v41_cut_floats(k, &in->floors, seqs, 1);
    di_v41_cut_floats(k, &in->kept_floors, seqs, 1);
    di_v41_cut_floats(k, &in->kept_first, seqs + 1, 1);
    di_v41_cut_floats(k, &in->kept_positions, rows, 1);
    di_v41_cut_floats(k, &in->kept_rows, rows, 1);
    di_v41_cut_floats(k, &in->out_rows, k->m->info.max_logits, 1);
    for (uint32_t i = 0; i < c->n_engrams; i++)
        di_v41_cut_floats(k, &in->engram[i], rows, n_tables(c));
    di_v41_cut_floats(k, &in->groups, rows, c->o_groups);
}

static int32_t *
host(const di_v41_inputs_t *in, di_view_t v)
{
    return (int32_t *) (void *) (in->host + v.offset);
}

static int
open_inputs(di_model_t *m, di_v41_t *s, di_err_t *err)
{
    di_v41_inputs_t *in = &s->in;
    const size_t     n_groups = (size_t) m->conf.max_rows * s->conf.o_groups;
    di_v41_cut_t     count = { .m = m }, cut = { .m = m };
    int32_t         *groups;

    cut_inputs(&count, s);
    in->bytes = count.end;
    if (m->ops->buf_alloc(m->dev, in->bytes, &in->buf) != DI_OK
        || (in->host = di_family_host(m, in->buf, in->bytes)) == NULL)
        return di_err_set(err, DI_ENOMEM, 0, "no memory for a step's inputs");
    cut.buf = in->buf;
    cut_inputs(&cut, s);
    groups = host(in, in->groups);
    for (size_t i = 0; i < n_groups; i++)
        groups[i] = (int32_t) (i % s->conf.o_groups);
    m->info.step_bytes += in->bytes;
    return DI_OK;
}

/* First of a sequence's rows that goes through all layers. */
static uint32_t
kept_from(const di_model_seq_t *q)
{
    uint32_t n = q->keep_from > q->pos ? q->keep_from - q->pos : 0;

    if (q->keep_all)
        return 0;
    return n < q->n_rows - q->n_logits ? n : q->n_rows - q->n_logits;
}

/* Rows of Engram's tables for one sequence's rows, which begin at `row`. */
static void
hash_rows(di_v41_t *s, const di_model_seq_t *q, size_t row)
{
    const di_v41_conf_t *c = &s->conf;
    const uint32_t       n = n_tables(c);
    const int32_t        pad = s->compressed[c->engram_pad];

    for (uint32_t r = 0; r < q->n_rows; r++) {
        int32_t ids[DI_V41_NGRAM_MAX];
        int64_t found[DI_V41_NGRAM_MAX * DI_V41_TABLES_MAX];

        for (uint32_t b = 0; b < c->engram_ngram; b++) {
            int32_t id = b <= q->pos + r ? q->tokens[(int64_t) r - b] : -1;

            ids[b] = id >= 0 && (uint32_t) id < s->n_compressed
                     ? s->compressed[id] : pad;
        }
        for (uint32_t i = 0; i < c->n_engrams; i++) {
            di_v41_engram_rows(c, &s->engram[i], ids, pad, found);
            for (uint32_t k = 0; k < n; k++)
                host(&s->in, s->in.engram[i])[(row + r) * n + k]
                    = (int32_t) found[k];
        }
    }
}

/* Lay out what model.c does not know; the kept rows and their wanted ones. */
static void
lay_out(di_v41_t *s, const di_step_t *step, di_rows_t *kept)
{
    di_v41_inputs_t *in = &s->in;
    int32_t         *first = host(in, in->kept_first);
    int32_t         *rows = host(in, in->kept_rows);
    int32_t         *positions = host(in, in->kept_positions);
    size_t           row = 0, n = 0;

    for (uint32_t i = 0; i < step->rows.n_seqs; i++) {
        const di_model_seq_t *q = step->seqs[i];
        uint32_t low = q->floor > q->keep_from ? q->floor : q->keep_from;

        host(in, in->slots)[i] = (int32_t) q->slot;
        host(in, in->floors)[i] = (int32_t) q->floor;
        host(in, in->kept_floors)[i] = (int32_t) low;
        first[i] = (int32_t) n;
        if (s->conf.n_engrams > 0)
            hash_rows(s, q, row);
        for (uint32_t r = kept_from(q); r < q->n_rows; r++) {
            rows[n] = (int32_t) (row + r);
            positions[n++] = (int32_t) (q->pos + r);
        }
        row += q->n_rows;
    }
    first[step->rows.n_seqs] = (int32_t) n;
    kept->n_rows = (uint32_t) n;
}

/* Wanted rows, named by model.c among all rows, among the kept ones: both
 * lists ascend within a sequence, so a search by halves finds them. */
static void
lay_out_wanted(di_model_t *m, di_v41_t *s, const di_step_t *step,
               size_t n_kept)
{
    const int32_t *all = (int32_t *) (void *) (m->inputs_host
                                               + m->out_rows_at);
    const int32_t *rows = host(&s->in, s->in.kept_rows);
    int32_t       *out = host(&s->in, s->in.out_rows);

    for (uint32_t i = 0; i < step->n_out; i++) {
        size_t lo = 0, hi = n_kept;

        while (hi - lo > 1) {
            size_t mid = (lo + hi) / 2;

            if (rows[mid] <= all[i])
                lo = mid;
            else
                hi = mid;
        }
        out[i] = (int32_t) lo;
    }
}

static void
make_inputs(di_model_t *m, const di_step_t *step, di_rows_t *all,
            di_rows_t *kept)
{
    di_v41_t        *s = m->state;
    di_v41_inputs_t *in = &s->in;

    *all = *kept = step->rows;
    all->slots = kept->slots = in->slots;
    all->floors = in->floors;
    kept->floors = in->kept_floors;
    kept->positions = in->kept_positions;
    kept->seq_first = in->kept_first;
    lay_out(s, step, kept);
    lay_out_wanted(m, s, step, kept->n_rows);
    if (m->ops->buf_map(in->buf) == NULL)
        m->ops->copy_in(m->stream, (di_view_t) { in->buf, 0 }, in->host,
                        in->bytes);
}

/* --------------------------------------------------------------- forward -- */

/* Where the rows of a step are. */
typedef struct {
    const di_rows_t *rows;
    di_view_t        t, c, in;
    bool             kept;       /* these are the gathered rows             */
} flow_t;

static void
add_engram(di_model_t *m, uint32_t layer, const flow_t *f)
{
    di_v41_t             *s = m->state;
    const di_v41_conf_t  *c = &s->conf;
    const di_v41_block_t *b = &s->blocks[layer];
    const di_ops_t       *o = m->ops;
    const size_t          n = f->rows->n_rows, wide = n_tables(c);
    di_v41_scratch_t     *x = &s->x;

    o->table_rows(m->stream, x->engram, &b->engram_table,
                  s->in.engram[c->engram_of[layer]], n, wide, c->engram_dim);
    o->convert(m->stream, x->engram_act, x->engram, n, wide * c->engram_dim);
    o->matmul(m->stream, x->engram_kv, x->engram_act, b->engram_kv,
              di_v41_none, n);
    o->engram_add(m->stream, f->t, x->engram_kv, b->engram_qk, n,
                  &b->hc_attn);
}

/* Go on with the kept rows alone. */
static void
keep_rows(di_model_t *m, const di_rows_t *kept, flow_t *f)
{
    di_v41_t            *s = m->state;
    const di_v41_conf_t *c = &s->conf;
    const di_ops_t      *o = m->ops;
    const size_t         n = kept->n_rows;
    di_v41_scratch_t    *x = &s->x;

    if (n > 0 && n < f->rows->n_rows) {
        o->gather(m->stream, x->t_kept, f->t, s->in.kept_rows, n,
                  (size_t) c->hc * c->dim * sizeof(float));
        o->gather(m->stream, x->c_kept, f->c, s->in.kept_rows, n,
                  DI_HC_COEFS(c->hc) * sizeof(float));
        o->gather(m->stream, x->in_kept, f->in, s->in.kept_rows, n,
                  o->act_bytes(m->dev, c->dim));
        f->t = x->t_kept;
        f->c = x->c_kept;
        f->in = x->in_kept;
    }
    f->rows = kept;
    f->kept = true;
}

static void
take_features(di_model_t *m, uint32_t layer, const flow_t *f)
{
    di_v41_t            *s = m->state;
    const di_v41_conf_t *c = &s->conf;

    for (uint32_t i = 0; i < c->n_targets; i++) {
        if (c->target[i] == layer)
            m->ops->hc_mean(m->stream, s->x.features,
                            (size_t) c->n_targets * c->dim,
                            (size_t) i * c->dim, f->t, f->rows->n_rows,
                            &s->blocks[layer].hc_attn);
    }
}

static void
probe(di_model_t *m)
{
    const di_v41_t *s = m->state;

    if (s->probe != NULL)
        m->ops->host_call(m->stream, s->probe, s->probe_arg, 1);
}

/* One layer; false: no row is left. */
static bool
forward_layer(di_model_t *m, uint32_t l, const di_rows_t *kept, flow_t *f)
{
    di_v41_t             *s = m->state;
    const di_v41_conf_t  *c = &s->conf;
    const di_v41_block_t *b = &s->blocks[l];
    const di_ops_t       *o = m->ops;

    if (l > 0)
        o->hc_post(m->stream, f->t, f->c, s->x.o, f->rows->n_rows,
                   &b->hc_attn);
    if (c->engram_of[l] != DI_V41_NO_LAYER)
        add_engram(m, l, f);
    o->hc_mix(m->stream, f->in, f->t, f->c, f->rows->n_rows, &b->hc_attn);
    if (c->ratio[l] > 0 && di_v41_owns_kv(c, l))
        di_v41_compress(m, l, f->in, f->rows);
    if (l == c->first_consumer) {
        keep_rows(m, kept, f);
        if (kept->n_rows == 0)
            return false;
    }
    take_features(m, l, f);
    di_v41_attention(m, l, f->in, f->rows, false);
    probe(m);
    o->hc_post(m->stream, f->t, f->c, s->x.o, f->rows->n_rows, &b->hc_ffn);
    o->hc_mix(m->stream, f->in, f->t, f->c, f->rows->n_rows, &b->hc_ffn);
    di_v41_moe(m, b, f->in, f->rows->n_rows);
    probe(m);
    return true;
}

/* Logits of the wanted rows.  Without consumers no row was dropped, and both
 * sets are the same. */
static void
forward_head(di_model_t *m, const di_step_t *step, const flow_t *f)
{
    di_v41_t            *s = m->state;
    const di_v41_conf_t *c = &s->conf;
    const di_hc_t       *hc = &s->blocks[c->n_layers - 1].hc_ffn;
    const di_ops_t      *o = m->ops;

    o->hc_post(m->stream, f->t, f->c, s->x.o, f->rows->n_rows, hc);
    o->hc_end(m->stream, s->x.h, f->t, f->c,
              f->kept ? s->in.out_rows : step->out_rows, step->n_out, hc);
    o->norm(m->stream, s->x.h_act, s->x.h, di_v41_none, s->out_norm, c->eps,
            di_v41_none, step->n_out, c->dim);
    o->matmul(m->stream, step->logits, s->x.h_act, s->head, di_v41_none,
              step->n_out);
}

static void
v41_forward(di_model_t *m, const di_step_t *step)
{
    di_v41_t            *s = m->state;
    const di_v41_conf_t *c = &s->conf;
    di_rows_t            all, kept;
    flow_t               f = { &all, s->x.t, s->x.c, s->x.in, false };

    make_inputs(m, step, &all, &kept);
    m->ops->table_rows(m->stream, s->x.o, &s->embed, step->ids, all.n_rows, 1,
                       c->dim);
    m->ops->hc_start(m->stream, f.t, f.c, s->x.o, all.n_rows,
                     &s->blocks[0].hc_attn);
    for (uint32_t l = 0; l < c->n_layers; l++) {
        if (!forward_layer(m, l, &kept, &f))
            return;
    }
    if (step->n_out > 0)
        forward_head(m, step, &f);
    if (c->n_stages > 0)
        di_v41_draft_keys(m, f.rows);
}

/* --------------------------------------------------------------- opening -- */

static int
v41_upload(di_model_t *m, di_err_t *err)
{
    di_v41_t *s = m->state;
    int       rc = open_scratch(m, s, err);

    if (rc == DI_OK)
        rc = open_inputs(m, s, err);
    if (rc == DI_OK)
        rc = di_v41_upload(m, err);
    if (rc == DI_OK && s->conf.n_stages > 0)
        rc = di_v41_draft_open(m, err);
    return rc;
}

static void
v41_close(di_model_t *m)
{
    di_v41_t *s = m->state;

    if (s == NULL)
        return;
    di_v41_draft_close(m);
    di_v41_free_weights(m);
    if (s->scratch != NULL)
        m->ops->buf_free(m->dev, s->scratch);
    if (s->in.buf != NULL) {
        di_family_host_free(m, s->in.buf, s->in.host);
        m->ops->buf_free(m->dev, s->in.buf);
    }
    free(s);
    m->state = NULL;
}

/* Entries behind the first n_tokens are written again before they are read,
 * so the whole block is copied. */
static void
v41_kv_copy(di_model_t *m, uint32_t dst, uint32_t src, uint32_t n_tokens)
{
    const di_view_t to = { m->kv, dst * m->info.kv_block_bytes };
    const di_view_t from = { m->kv, src * m->info.kv_block_bytes };

    (void) n_tokens;
    m->ops->copy(m->stream, to, from, m->info.kv_block_bytes);
}

const di_family_t di_family_deepseek_v41 = {
    .arch = "deepseek_v41",
    .arith = DI_ARITH_MX,
    .read_dir = di_v41_read,
    .n_tensors = di_v41_n_tensors,
    .tensor = di_v41_tensor,
    .kv_copy = v41_kv_copy,
    .upload = v41_upload,
    .forward = v41_forward,
    .draft = di_v41_draft,
    .close = v41_close,
};
