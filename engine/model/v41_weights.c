/*
 * v41_weights.c - from a directory's tensors to weights on the device.
 *
 * Reading checks every tensor that the list of v41_tensors.c names, and that
 * there is no other: a tensor that nobody asked for means that the model is
 * not the one that we compute.  Uploading opens matrices from where the
 * mapping has them; quantised ones stay there.  Vectors become float32 in one
 * buffer, tables that are only looked up (embeddings, Engram) stay as they
 * are.
 */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../../tokenizer/vocab/di_compress.h"
#include "../../tokenizer/vocab/di_folder.h"
#include "deepseek_v41.h"

#define CONFIG_MAX (16u << 20)   /* bytes of config.json                    */
#define TOKENIZER_MAX (256u << 20)
#define NAME_LEN   128

/* --------------------------------------------------------------- reading -- */

/* Checking the list against the directory. */
typedef struct {
    const di_v41_t *s;
    bool           *used;        /* [tensors of the directory]              */
    di_err_t       *err;
} check_t;

static int
check_one(const check_t *k, const char *name, di_st_dtype_t dtype,
          uint64_t rows, uint64_t cols)
{
    const di_st_tensor_t *t = di_st_find(k->s->st, name);
    const uint32_t        n_dims = rows == 0 ? 1 : 2;

    if (t == NULL)
        return di_err_set(k->err, DI_EFORMAT, 0, "no tensor %.60s in any "
                          "file, expected %s %llux%llu", name,
                          di_st_dtype_name(dtype),
                          (unsigned long long) (rows == 0 ? 1 : rows),
                          (unsigned long long) cols);
    k->used[t - di_st_tensor(k->s->st, 0)] = true;
    if (t->dtype == dtype && t->n_dims == n_dims
        && t->dims[n_dims - 1] == cols && (rows == 0 || t->dims[0] == rows))
        return DI_OK;
    return di_err_set(k->err, DI_EFORMAT, t->offset,
                      "%.40s: tensor %.60s: %s %llux%llu, expected %s "
                      "%llux%llu", di_st_file(k->s->st, t->file), name,
                      di_st_dtype_name(t->dtype),
                      (unsigned long long) (t->n_dims > 1 ? t->dims[0] : 1),
                      (unsigned long long) (t->n_dims > 0
                                            ? t->dims[t->n_dims - 1] : 0),
                      di_st_dtype_name(dtype),
                      (unsigned long long) (rows == 0 ? 1 : rows),
                      (unsigned long long) cols);
}

/* "x.weight" to "x.scale". */
static void
scale_name(const char *name, char scale[NAME_LEN])
{
    (void) snprintf(scale, NAME_LEN, "%.*sscale",
                    (int) (strlen(name) - strlen("weight")), name);
}

static int
check_tensor(void *arg, const di_v41_tensor_t *t)
{
    const check_t *k = arg;
    uint64_t       blocks = (t->cols + 31) / 32;
    char           scale[NAME_LEN];
    int            rc;

    if (t->format == DI_V41_F32)
        return check_one(k, t->name, DI_ST_F32, t->rows, t->cols);
    if (t->format == DI_V41_BF16 || !k->s->conf.quantised)
        return check_one(k, t->name, DI_ST_BF16, t->rows, t->cols);

    if (t->format == DI_V41_FP4)
        rc = check_one(k, t->name, DI_ST_I8, t->rows, t->cols / 2);
    else
        rc = check_one(k, t->name, DI_ST_F8_E4M3, t->rows, t->cols);
    if (rc != DI_OK)
        return rc;
    scale_name(t->name, scale);
    return check_one(k, scale, DI_ST_F8_E8M0,
                     t->format == DI_V41_FP8 ? (t->rows + 31) / 32 : t->rows,
                     blocks);
}

/* Copies of the backbone's embedding and head in the draft module: the model
 * uses the backbone's. */
static bool
may_be_left(const char *name)
{
    size_t len = strlen(name);

    return strncmp(name, "mtp.", 4) == 0 && strstr(name, "markov") == NULL
           && ((len > 13 && strcmp(name + len - 13, ".embed.weight") == 0)
               || (len > 12 && strcmp(name + len - 12, ".head.weight") == 0));
}

static int
check_tensors(const di_v41_t *s, di_err_t *err)
{
    size_t  n = di_st_n_tensors(s->st);
    check_t k = { s, calloc(n + 1, sizeof(bool)), err };
    int     rc;

    if (k.used == NULL)
        return di_err_set(err, DI_ENOMEM, 0, "out of memory");
    rc = di_v41_tensors(&s->conf, check_tensor, &k);
    for (size_t i = 0; i < n && rc == DI_OK; i++) {
        const di_st_tensor_t *t = di_st_tensor(s->st, i);

        if (!k.used[i] && !may_be_left(t->name))
            rc = di_err_set(err, DI_EUNSUPPORTED, t->offset, "%.40s: tensor "
                            "%.80s is not known",
                            di_st_file(s->st, t->file), t->name);
    }
    free(k.used);
    return rc;
}

/* Engram hashes compressed ids, for which the tokenizer is needed.  A file
 * that says how many there are counts 21 placeholders of the released
 * tokenizer or not; they are at the end, so only the count matters. */
static int
read_vocab(di_v41_t *s, const char *dir, di_err_t *err)
{
    di_vocab_t *vocab = NULL;
    uint32_t    n_ids = 0;
    char       *json;
    size_t      len;
    int         rc = di_st_read_file(dir, "tokenizer.json", TOKENIZER_MAX,
                                     &json, &len, err);

    if (rc == DI_OK)
        rc = di_vocab_open_hf(json, len, &vocab, err);
    free(json);
    if (rc != DI_OK)
        return rc;
    s->n_compressed = di_vocab_size(vocab);
    if (s->n_compressed > s->conf.vocab + 64)
        rc = di_err_set(err, DI_EFORMAT, 0, "tokenizer.json has %u tokens, "
                        "config.json vocab_size is %u", s->n_compressed,
                        s->conf.vocab);
    if (rc == DI_OK && s->conf.n_engrams > 0) {
        s->compressed = calloc(s->n_compressed + 1, sizeof(int32_t));
        if (s->compressed == NULL
            || di_vocab_compress(vocab, s->compressed, &n_ids) != DI_OK)
            rc = di_err_set(err, DI_ENOMEM, 0, "out of memory");
        else if (s->conf.engram_pad >= s->n_compressed)
            rc = di_err_set(err, DI_EFORMAT, 0, "tokenizer.json has no token "
                            "%u, engram_pad_token_id", s->conf.engram_pad);
    }
    di_vocab_close(vocab);
    if (rc == DI_OK && s->conf.n_engrams > 0) {
        if (s->conf.engram_ids == n_ids + 21)
            n_ids = s->conf.engram_ids;
        di_v41_engram_primes(&s->conf, s->engram);
        di_v41_engram_multipliers(&s->conf, n_ids, s->engram);
    }
    return rc;
}

static void
fill_info(di_model_t *m, const di_v41_t *s)
{
    const di_v41_conf_t *c = &s->conf;
    di_model_info_t     *info = &m->info;

    info->vocab = c->vocab;
    info->n_layers = c->n_layers;
    info->dim = c->dim;
    info->n_heads = c->n_heads;
    info->n_kv_heads = 1;
    info->head_dim = c->head_dim;
    info->ffn_dim = c->expert_dim;
    info->context_length = c->context_length;
    info->block_tokens = DI_V41_BLOCK;
    info->kv_block_bytes = s->layout.block_bytes;
    info->kv_token_bytes = s->layout.token_bytes;
    info->state_bytes = s->layout.slot_bytes;
    info->lookback = c->n_engrams > 0 ? c->engram_ngram - 1 : 0;
    info->backtrack = DI_V41_BACKTRACK - 1;
    info->window = c->window;
    if (c->n_stages > 0)
        info->n_drafts = c->block < info->backtrack ? c->block
                                                    : info->backtrack;
}

int
di_v41_read(di_model_t *m, const char *dir, di_err_t *err)
{
    di_v41_t *s = calloc(1, sizeof(*s));
    char     *config = NULL;
    size_t    len = 0;
    int       rc;

    if (s == NULL)
        return di_err_set(err, DI_ENOMEM, 0, "out of memory");
    m->state = s;
    rc = di_st_read_file(dir, "config.json", CONFIG_MAX, &config, &len, err);
    if (rc == DI_OK)
        rc = di_v41_conf_parse(config, len, &s->conf, err);
    if (rc == DI_OK)
        rc = di_st_open(dir, &s->st, err);
    if (rc == DI_OK)
        rc = check_tensors(s, err);
    if (rc == DI_OK)
        rc = read_vocab(s, dir, err);
    if (rc == DI_OK) {
        di_v41_layout(&s->conf, m->conf.arith == DI_ARITH_F32
                                && !m->conf.round_caches, &s->layout);
        fill_info(m, s);
        rc = di_folder_fingerprint(dir, m->info.fingerprint, err);
    }
    free(config);
    return rc;
}

/* ------------------------------------------------------------ inspection -- */

size_t
di_v41_n_tensors(const di_model_t *m)
{
    return di_st_n_tensors(((const di_v41_t *) m->state)->st);
}

/* Which part of the model a tensor belongs to, by its name. */
static const char *
part_of(const char *name)
{
    if (strncmp(name, "vision.", 7) == 0 || strncmp(name, "aligner.", 8) == 0
        || strncmp(name, "image_", 6) == 0)
        return "vision";
    if (strncmp(name, "mtp.", 4) == 0)
        return "draft";
    if (strstr(name, ".engram.embed.") != NULL)
        return "engram";
    return strstr(name, ".ffn.experts.") != NULL ? "experts" : "dense";
}

void
di_v41_tensor(const di_model_t *m, size_t i, di_model_tensor_t *out)
{
    const di_st_t        *st = ((const di_v41_t *) m->state)->st;
    const di_st_tensor_t *t = di_st_tensor(st, i);

    *out = (di_model_tensor_t) {
        .name = t->name, .name_len = strlen(t->name), .bytes = t->bytes,
        .data = t->data, .file = di_st_file(st, t->file),
        .offset = t->offset,
        .type = di_st_dtype_name(t->dtype), .part = part_of(t->name),
        .n_dims = t->n_dims };
    memcpy(out->dims, t->dims, t->n_dims * sizeof(t->dims[0]));
}

/* ------------------------------------------------------------- constants -- */

/* One block's (or the model's) tensors; once rc is set nothing is done. */
typedef struct {
    di_model_t *m;
    di_v41_t   *s;
    di_err_t   *err;
    int         rc;
    char        prefix[32];
} up_t;

static const di_st_tensor_t *
tensor(const up_t *u, const char *suffix)
{
    char name[NAME_LEN];

    (void) snprintf(name, sizeof(name), "%s%s", u->prefix, suffix);
    return di_st_find(u->s->st, name);
}

static int
add_floats(void *arg, const di_v41_tensor_t *t)
{
    uint64_t n = (t->rows == 0 ? 1 : t->rows) * t->cols;

    if (t->role != DI_V41_ROLE_VISION
        && (t->format == DI_V41_F32 || t->rows <= DI_V41_HC_MAX))
        *(uint64_t *) arg += di_family_align(n * sizeof(float));
    return DI_OK;
}

static di_view_t
take(up_t *u, size_t n)
{
    di_view_t v = { u->s->consts, u->s->consts_at };

    u->s->consts_at += di_family_align(n * sizeof(float));
    return v;
}

/* A vector with a NaN would make every answer one; int8 arithmetic would hide
 * that behind zeros. */
static bool
are_finite(up_t *u, const di_st_tensor_t *t, const float *v, size_t n)
{
    size_t i = 0;

    while (i < n && isfinite(v[i]))
        i++;
    if (i < n)
        u->rc = di_err_set(u->err, DI_EFORMAT,
                           t->offset + i * di_st_dtype_bytes(t->dtype),
                           "%.60s: tensor %.60s: value %zu is %s, expected a "
                           "finite one", di_st_file(u->s->st, t->file),
                           t->name, i, isnan(v[i]) ? "NaN" : "infinite");
    return i == n;
}

/* A tensor's values as float32, malloc'ed. */
static float *
values(up_t *u, const char *suffix, size_t *n)
{
    const di_st_tensor_t *t = tensor(u, suffix);
    di_wtype_t            type = t->dtype == DI_ST_F32 ? DI_W_F32 : DI_W_BF16;
    void                 *aligned = malloc(t->bytes);
    float                *v;

    *n = t->bytes / di_st_dtype_bytes(t->dtype);
    v = malloc(*n * sizeof(float));
    if (v != NULL && aligned != NULL) {
        memcpy(aligned, t->data, t->bytes);
        di_dequantise(type, aligned, *n, v);
    }
    if (aligned == NULL) {
        free(v);
        v = NULL;
    }
    free(aligned);
    if (v == NULL) {
        u->rc = di_err_set(u->err, DI_ENOMEM, 0, "out of memory");
    } else if (!are_finite(u, t, v, *n)) {
        free(v);
        v = NULL;
    }
    return v;
}

static void
floats(up_t *u, const char *suffix, di_view_t *view)
{
    size_t n;
    float *v = u->rc == DI_OK ? values(u, suffix, &n) : NULL;

    if (v == NULL)
        return;
    *view = take(u, n);
    u->rc = di_family_put(u->m, *view, v, n * sizeof(float), u->err);
    u->m->info.params += n;
    free(v);
}

/* Query and key weights of Engram's gate act as one. */
static void
gate_floats(up_t *u, di_view_t *view)
{
    size_t n = 0;
    float *q = u->rc == DI_OK ? values(u, "engram.q_weight", &n) : NULL;
    float *k = u->rc == DI_OK ? values(u, "engram.k_weight", &n) : NULL;

    if (u->rc == DI_OK) {
        for (size_t i = 0; i < n; i++)
            q[i] *= k[i];
        *view = take(u, n);
        u->rc = di_family_put(u->m, *view, q, n * sizeof(float), u->err);
        u->m->info.params += 2 * n;
    }
    free(q);
    free(k);
}

static void
open_freqs(up_t *u)
{
    const di_v41_conf_t *c = &u->s->conf;
    float                freqs[512];
    size_t               n = c->rope_dim / 2;

    for (uint32_t i = 0; i < 2 && u->rc == DI_OK; i++) {
        di_v41_freqs(c, i, freqs);
        u->s->freqs[i] = take(u, n);
        u->rc = di_family_put(u->m, u->s->freqs[i], freqs,
                              n * sizeof(float), u->err);
    }
}

static int
open_consts(up_t *u)
{
    const di_v41_conf_t *c = &u->s->conf;
    uint64_t bytes = 2 * di_family_align(c->rope_dim / 2 * sizeof(float));

    (void) di_v41_tensors(c, add_floats, &bytes);
    if (u->m->ops->buf_alloc(u->m->dev, bytes, &u->s->consts) != DI_OK)
        return di_err_set(u->err, DI_ENOMEM, 0, "no memory for %llu bytes of "
                          "constants", (unsigned long long) bytes);
    u->m->info.memory_bytes += bytes;
    return DI_OK;
}

/* -------------------------------------------------------------- matrices -- */

/* A matrix as the mapping has it; *k: values of a row. */
static di_wpart_t
part(const up_t *u, const char *suffix, size_t *k)
{
    const di_st_tensor_t *t = tensor(u, suffix);
    di_wpart_t            p = { .data = t->data, .n = t->dims[0] };
    char                  full[NAME_LEN], scale[NAME_LEN];

    *k = t->dims[1];
    if (t->dtype == DI_ST_BF16) {
        p.type = DI_W_BF16;
        return p;
    }
    (void) snprintf(full, sizeof(full), "%s%s", u->prefix, suffix);
    scale_name(full, scale);
    p.scales = di_st_find(u->s->st, scale)->data;
    p.type = DI_W_E4M3_B32;
    if (t->dtype == DI_ST_I8) {
        p.type = DI_W_E2M1_R32;
        *k *= 2;
    } else if (strcmp(suffix, "engram.embed.weight") == 0) {
        p.type = DI_W_E4M3_R32;
    }
    return p;
}

static void
table(up_t *u, const char *suffix, di_wpart_t *p)
{
    size_t k;

    if (u->rc != DI_OK)
        return;
    *p = part(u, suffix, &k);
    u->m->info.params += p->n * k;
}

/* One matrix, or two stacked. */
static void
weight(up_t *u, const char *a, const char *b, di_weight_t **w)
{
    di_wpart_t parts[2];
    size_t     k;
    int        n = 1;

    if (u->rc != DI_OK)
        return;
    parts[0] = part(u, a, &k);
    if (b != NULL)
        parts[n++] = part(u, b, &k);
    u->rc = u->m->ops->weight_open(u->m->dev, parts, (size_t) n, k, w,
                                   u->err);
    if (u->rc != DI_OK)
        return;
    u->m->info.params += (parts[0].n + (b != NULL ? parts[1].n : 0)) * k;
    u->m->info.weights_bytes += u->m->ops->weight_bytes(*w);
    u->m->info.memory_bytes += u->m->ops->weight_bytes(*w);
}

static void
open_experts(up_t *u, const di_wpart_t *parts, size_t n_parts, size_t n,
             size_t k, size_t n_used, di_experts_t **e)
{
    uint64_t bytes;

    u->rc = u->m->ops->experts_open(u->m->dev, parts, n_parts, n, k, e,
                                    u->err);
    if (u->rc != DI_OK)
        return;
    bytes = u->m->ops->experts_bytes(*e);
    u->m->info.params += n * n_parts * parts[0].n * k;
    u->m->info.weights_bytes += bytes / n * n_used;
    u->m->info.memory_bytes += bytes;
}

/* A block's experts, w1 and w3 stacked. */
static void
experts(up_t *u, di_v41_block_t *b)
{
    const uint32_t n = b->n_experts;
    di_wpart_t    *up = calloc(2 * (size_t) n, sizeof(*up));
    di_wpart_t    *down = calloc(n, sizeof(*down));
    size_t         k_up = 0, k_down = 0;

    if (up == NULL || down == NULL)
        u->rc = di_err_set(u->err, DI_ENOMEM, 0, "out of memory");
    for (uint32_t e = 0; e < n && u->rc == DI_OK; e++) {
        char name[64];

        (void) snprintf(name, sizeof(name), "ffn.experts.%u.w1.weight", e);
        up[2 * e] = part(u, name, &k_up);
        (void) snprintf(name, sizeof(name), "ffn.experts.%u.w3.weight", e);
        up[2 * e + 1] = part(u, name, &k_up);
        (void) snprintf(name, sizeof(name), "ffn.experts.%u.w2.weight", e);
        down[e] = part(u, name, &k_down);
    }
    if (u->rc == DI_OK)
        open_experts(u, up, 2, n, k_up, b->n_used, &b->up);
    if (u->rc == DI_OK)
        open_experts(u, down, 1, n, k_down, b->n_used, &b->down);
    free(up);
    free(down);
}

/* wo_a is block-diagonal: each group's rows are a matrix of their own. */
static void
groups(up_t *u, di_v41_block_t *b)
{
    const uint32_t n = u->s->conf.o_groups, rows = u->s->conf.o_rank;
    di_wpart_t    *parts = calloc(n, sizeof(*parts)), all;
    size_t         k;

    if (u->rc == DI_OK && parts == NULL)
        u->rc = di_err_set(u->err, DI_ENOMEM, 0, "out of memory");
    if (u->rc == DI_OK) {
        all = part(u, "attn.wo_a.weight", &k);
        for (uint32_t g = 0; g < n; g++) {
            parts[g] = all;
            parts[g].n = rows;
            parts[g].data = (const uint8_t *) all.data
                            + g * rows * di_wtype_bytes(all.type, k);
            if (all.scales != NULL)
                parts[g].scales = (const uint8_t *) all.scales
                    + g * di_wtype_scale_bytes(all.type, rows, k);
        }
        open_experts(u, parts, 1, n, k, n, &b->wo_a);
    }
    free(parts);
}

/* ---------------------------------------------------------------- blocks -- */

static void
hyper(up_t *u, const char *which, di_hc_t *hc)
{
    const di_v41_conf_t *c = &u->s->conf;
    char                 name[32];

    *hc = (di_hc_t) { .m = c->hc, .k = c->dim, .n_iters = c->hc_iters,
                      .eps = c->eps, .hc_eps = c->hc_eps };
    (void) snprintf(name, sizeof(name), "hc_%s_fn", which);
    floats(u, name, &hc->fn);
    (void) snprintf(name, sizeof(name), "hc_%s_base", which);
    floats(u, name, &hc->base);
    (void) snprintf(name, sizeof(name), "hc_%s_scale", which);
    floats(u, name, &hc->scale);
    (void) snprintf(name, sizeof(name), "%s_norm.weight", which);
    floats(u, name, &hc->norm);
}

static void
upload_block(up_t *u, di_v41_block_t *b)
{
    hyper(u, "attn", &b->hc_attn);
    hyper(u, "ffn", &b->hc_ffn);
    weight(u, "attn.wq_a.weight", NULL, &b->wq_a);
    weight(u, "attn.wq_b.weight", NULL, &b->wq_b);
    weight(u, "attn.wkv.weight", NULL, &b->wkv);
    weight(u, "attn.wo_b.weight", NULL, &b->wo_b);
    groups(u, b);
    floats(u, "attn.q_norm.weight", &b->q_norm);
    floats(u, "attn.kv_norm.weight", &b->kv_norm);
    floats(u, "attn.attn_sink", &b->sinks);

    weight(u, "ffn.gate.weight", NULL, &b->gate);
    floats(u, "ffn.gate.bias", &b->gate_bias);
    weight(u, "ffn.shared_experts.w1.weight", "ffn.shared_experts.w3.weight",
           &b->shared_up);
    weight(u, "ffn.shared_experts.w2.weight", NULL, &b->shared_down);
    if (u->rc == DI_OK)
        experts(u, b);
}

/* What only some layers have. */
static void
upload_sources(up_t *u, uint32_t l, di_v41_block_t *b)
{
    const di_v41_conf_t *c = &u->s->conf;

    if (c->engram_of[l] != DI_V41_NO_LAYER) {
        table(u, "engram.embed.weight", &b->engram_table);
        weight(u, "engram.wkv.weight", NULL, &b->engram_kv);
        gate_floats(u, &b->engram_qk);
    }
    if (c->ratio[l] == 0)
        return;
    if (di_v41_owns_kv(c, l)) {
        weight(u, "attn.compressor.wkv.weight", NULL, &b->comp_wkv);
        floats(u, "attn.compressor.norm.weight", &b->comp_norm);
        if (c->ratio[l] == 2)
            weight(u, "attn.compressor.wgate.weight", NULL, &b->comp_gate);
    }
    if (di_v41_selects(c, l)) {
        weight(u, "attn.indexer.wq_b.weight", NULL, &b->index_q);
        weight(u, "attn.indexer.weights_proj.weight", NULL, &b->index_w);
    }
    if (di_v41_owns_keys(c, l)) {
        weight(u, "attn.indexer.wk.weight", NULL, &b->index_k);
        floats(u, "attn.indexer.k_norm.weight", &b->k_norm);
    }
}

static void
progress(const up_t *u, uint32_t done)
{
    const di_model_conf_t *conf = &u->m->conf;

    if (conf->progress != NULL)
        conf->progress(conf->progress_arg, "opening weights",
                       (double) done
                       / (u->s->conf.n_layers + u->s->conf.n_stages));
}

static void
upload_blocks(up_t *u)
{
    di_v41_t            *s = u->s;
    const di_v41_conf_t *c = &s->conf;
    const bool           warm = di_v41_may_warm(u->m);

    for (uint32_t i = 0; i < c->n_layers + c->n_stages && u->rc == DI_OK;
         i++) {
        di_v41_block_t *b = &s->blocks[i];
        const bool      layer = i < c->n_layers;

        (void) snprintf(u->prefix, sizeof(u->prefix), "%s.%u.",
                        layer ? "layers" : "mtp",
                        layer ? i : i - c->n_layers);
        b->n_experts = layer ? c->n_experts : c->draft_experts;
        b->n_used = layer ? c->n_used : c->draft_used;
        b->rotation = (di_rotation_t) {
            s->freqs[layer && c->ratio[i] > 0], c->rope_dim };
        upload_block(u, b);
        if (layer)
            upload_sources(u, i, b);
        if (warm && u->rc == DI_OK)
            u->rc = di_v41_warm(u->m, u->prefix, u->err);
        progress(u, i + 1);
    }
}

static void
upload_draft(up_t *u)
{
    di_v41_t *s = u->s;
    size_t    n;

    if (s->conf.n_stages == 0)
        return;
    (void) snprintf(u->prefix, sizeof(u->prefix), "mtp.0.");
    weight(u, "main_proj.weight", NULL, &s->main_proj);
    floats(u, "main_norm.weight", &s->main_norm);
    (void) snprintf(u->prefix, sizeof(u->prefix), "mtp.%u.",
                    s->conf.n_stages - 1);
    floats(u, "norm.weight", &s->draft_norm);
    table(u, "markov_head.embed.weight", &s->markov_embed);
    weight(u, "markov_head.head.weight", NULL, &s->markov_head);
    if (u->rc == DI_OK)
        s->draft.confidence_w = values(u, "confidence_head.proj.weight", &n);
}

int
di_v41_upload(di_model_t *m, di_err_t *err)
{
    di_v41_t *s = m->state;
    up_t      u = { .m = m, .s = s, .err = err, .rc = DI_OK };

    s->blocks = calloc(s->conf.n_layers + s->conf.n_stages,
                       sizeof(*s->blocks));
    if (s->blocks == NULL)
        return di_err_set(err, DI_ENOMEM, 0, "out of memory");
    u.rc = open_consts(&u);
    open_freqs(&u);
    table(&u, "embed.weight", &s->embed);
    weight(&u, "head.weight", NULL, &s->head);
    floats(&u, "norm.weight", &s->out_norm);
    upload_blocks(&u);
    upload_draft(&u);
    return u.rc;
}

static void
free_block(di_model_t *m, di_v41_block_t *b)
{
    di_weight_t *const w[] = {
        b->wq_a, b->wq_b, b->wkv, b->wo_b, b->comp_wkv, b->comp_gate,
        b->index_q, b->index_w, b->index_k, b->gate, b->shared_up,
        b->shared_down, b->engram_kv };
    di_experts_t *const e[] = { b->wo_a, b->up, b->down };

    for (size_t i = 0; i < sizeof(w) / sizeof(w[0]); i++) {
        if (w[i] != NULL)
            m->ops->weight_close(m->dev, w[i]);
    }
    for (size_t i = 0; i < sizeof(e) / sizeof(e[0]); i++) {
        if (e[i] != NULL)
            m->ops->experts_close(m->dev, e[i]);
    }
}

void
di_v41_free_weights(di_model_t *m)
{
    di_v41_t          *s = m->state;
    di_weight_t *const w[] = { s->head, s->main_proj, s->markov_head };

    for (uint32_t i = 0; s->blocks != NULL
                         && i < s->conf.n_layers + s->conf.n_stages; i++)
        free_block(m, &s->blocks[i]);
    for (size_t i = 0; i < sizeof(w) / sizeof(w[0]); i++) {
        if (w[i] != NULL)
            m->ops->weight_close(m->dev, w[i]);
    }
    free(s->blocks);
    if (s->consts != NULL)
        m->ops->buf_free(m->dev, s->consts);
    if (s->st != NULL)
        di_st_close(s->st);
    free(s->compressed);
}
