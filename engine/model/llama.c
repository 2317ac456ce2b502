/*
 * llama.c - the llama family: architectures `llama` and `qwen2`.
 *
 * A decoder of pre-norm blocks: RMS norm, grouped-query attention with rotary
 * positions, RMS norm, SiLU-gated feed-forward.  qwen2 differs in its biases
 * on q, k and v, and in which halves of a head rotate together.  Source of
 * names and keys: the GGUF specification; of the arithmetic: the published
 * models' own definitions, held against golden outputs in t/unit/golden.c.
 *
 * One layer is eight launches.  The residual of a product is added by the
 * norm that follows it, q, k, v are one product and so are gate and up, so
 * that each launch reads its activations once.  One buffer of activation rows
 * (`act`) is enough: whoever writes it reads float32 rows, and the product
 * that reads it writes float32 rows.
 *
 * Rows whose logits nobody wants end in the last layer once their keys and
 * values are stored; the rest of that layer computes the step's tail.
 */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "di_family.h"

/* Bounds of plausible files; they keep products of sizes in 64 bits. */
#define LAYERS_MAX  1024u
#define DIM_MAX     (1u << 17)
#define FFN_MAX     (1u << 20)
#define HEADS_MAX   1024u
#define VOCAB_MAX   (1u << 22)
#define CONTEXT_MAX (1u << 24)

/* A layer's tensors in the file. */
typedef struct {
    const di_gguf_tensor_t *attn_norm, *q, *k, *v, *o;
    const di_gguf_tensor_t *q_bias, *k_bias, *v_bias;    /* NULL: none      */
    const di_gguf_tensor_t *ffn_norm, *gate, *up, *down;
} tensors_t;

/* A layer on the device. */
typedef struct {
    di_weight_t *qkv;            /* [(n_heads + 2 n_kv_heads) head_dim][dim]*/
    di_weight_t *o;              /* [dim][n_heads head_dim]                 */
    di_weight_t *gate_up;        /* [2 ffn_dim][dim]                        */
    di_weight_t *down;           /* [dim][ffn_dim]                          */
    di_view_t    attn_norm;      /* float32 [dim]                           */
    di_view_t    ffn_norm;       /* float32 [dim]                           */
    di_view_t    qkv_bias;       /* float32 [as qkv's rows]; buf NULL: none */
} layer_t;

typedef struct {
    float            eps;        /* of the norms                            */
    float            freq_base;
    float            freq_scale; /* linear scaling: positions / this        */
    uint32_t         rope_dim;   /* values of a head that rotate            */
    di_rope_style_t  rope_style;
    uint32_t         q_dim;      /* n_heads head_dim                        */
    uint32_t         kv_dim;     /* n_kv_heads head_dim                     */

    tensors_t       *tensors;    /* [n_layers]                              */
    const di_gguf_tensor_t *embed_t, *out_norm_t;
    const di_gguf_tensor_t *head_t;      /* NULL: tied to embed             */
    const di_gguf_tensor_t *rope_freqs_t;    /* NULL: none                  */

    layer_t         *layers;     /* [n_layers]                              */
    di_weight_t     *embed;      /* [vocab][dim]                            */
    di_weight_t     *head;       /* the same object if tied                 */
    di_buf_t        *consts;     /* norms, biases, rotary frequencies       */
    di_view_t        out_norm;   /* float32 [dim]                           */
    di_view_t        freqs;      /* float32 [head_dim / 2]                  */

    di_buf_t        *scratch;    /* what follows, max_rows rows each        */
    di_view_t        x;          /* float32 [dim]: the residual stream      */
    di_view_t        add;        /* float32 [dim]: product to be added to it*/
    di_view_t        wide;       /* float32: q, k, v, or gate and up        */
    di_view_t        act;        /* activation rows, any product's input    */
} llama_t;

/* ------------------------------------------------------ hyper-parameters -- */

/* Rotary settings.  Scaling that isn't linear is refused by name; llama 3's
 * own scaling comes as a tensor of divisors. */
static int
read_rope(di_model_t *m, di_load_t *l, llama_t *s)
{
    uint32_t  head_dim = m->info.head_dim;
    float     attn_factor = 1.0f;
    float     factor = 1.0f;
    di_str_t  type;
    int       rc;

    s->rope_dim = head_dim;
    s->freq_base = 10000.0f;
    if ((rc = di_load_u32(l, "rope.dimension_count", false, 2, head_dim,
                          &s->rope_dim)) != DI_OK
        || (rc = di_load_f32(l, "rope.freq_base", false, 1.0, 1e12,
                             &s->freq_base)) != DI_OK
        || (rc = di_load_f32(l, "rope.scaling.factor", false, 1e-3, 1e6,
                             &factor)) != DI_OK
        || (rc = di_load_f32(l, "rope.scale_linear", false, 1e-3, 1e6,
                             &factor)) != DI_OK
        || (rc = di_load_f32(l, "rope.scaling.attn_factor", false, 1.0, 1.0,
                             &attn_factor)) != DI_OK
        || (rc = di_load_str(l, "rope.scaling.type", &type)) != DI_OK)
        return rc;

    if (s->rope_dim % 2 != 0
        || (s->rope_dim != head_dim && s->rope_style == DI_ROPE_HALVES))
        return di_err_set(l->err, DI_EUNSUPPORTED, 0,
                          "key %s.rope.dimension_count is %u with heads of "
                          "%u, which is not supported", l->arch, s->rope_dim,
                          head_dim);

    if (type.data == NULL
        || (type.len == 6 && memcmp(type.data, "linear", 6) == 0))
        s->freq_scale = factor;
    else if (type.len == 4 && memcmp(type.data, "none", 4) == 0)
        s->freq_scale = 1.0f;
    else
        return di_err_set(l->err, DI_EUNSUPPORTED,
                          di_gguf_offset(l->gguf, type.data),
                          "key %s.rope.scaling.type is %.*s, which is not "
                          "supported", l->arch, (int) type.len, type.data);
    return DI_OK;
}

/* Keys that describe, and keys that would change results if they were set. */
static int
read_rest(di_load_t *l)
{
    static const char *const described[] = {
        "vocab_size", "rope.scaling.original_context_length",
        "rope.scaling.finetuned", "tensor_data_layout",
    };
    static const char *const off[] = {
        "expert_count", "expert_used_count", "attention.sliding_window",
        "attn_logit_softcapping", "final_logit_softcapping", "logit_scale",
        "residual_scale", "embedding_scale", "attention.scale",
        "attention.clamp_kqv", "attention.max_alibi_bias",
        "use_parallel_residual",
    };

    for (size_t i = 0; i < sizeof(described) / sizeof(described[0]); i++)
        di_load_skip(l, described[i]);
    for (size_t i = 0; i < sizeof(off) / sizeof(off[0]); i++) {
        int rc = di_load_off(l, off[i]);

        if (rc != DI_OK)
            return rc;
    }
    return DI_OK;
}

static int
read_heads(di_model_t *m, di_load_t *l)
{
    di_model_info_t *info = &m->info;
    uint32_t         value_len;
    int              rc;

    rc = di_load_u32(l, "attention.head_count", true, 1, HEADS_MAX,
                     &info->n_heads);
    if (rc != DI_OK)
        return rc;
    info->n_kv_heads = info->n_heads;
    info->head_dim = info->dim / info->n_heads;
    if ((rc = di_load_u32(l, "attention.head_count_kv", false, 1,
                          info->n_heads, &info->n_kv_heads)) != DI_OK
        || (rc = di_load_u32(l, "attention.key_length", false, 1, DIM_MAX,
                             &info->head_dim)) != DI_OK)
        return rc;
    value_len = info->head_dim;
    rc = di_load_u32(l, "attention.value_length", false, 1, DIM_MAX,
                     &value_len);
    if (rc != DI_OK)
        return rc;

    if (info->n_heads % info->n_kv_heads != 0)
        return di_err_set(l->err, DI_EFORMAT, 0,
                          "%s.attention.head_count %u is no multiple of "
                          "head_count_kv %u", l->arch, info->n_heads,
                          info->n_kv_heads);
    if (value_len != info->head_dim || info->head_dim % 32 != 0
        || info->head_dim > 256)
        return di_err_set(l->err, DI_EUNSUPPORTED, 0,
                          "%s.attention.key_length %u and value_length %u "
                          "are not supported (equal multiples of 32 up to "
                          "256 are)", l->arch, info->head_dim, value_len);
    return DI_OK;
}

static int
read_hparams(di_model_t *m, di_load_t *l, llama_t *s)
{
    di_model_info_t *info = &m->info;
    int              rc;

    if ((rc = di_load_u32(l, "block_count", true, 1, LAYERS_MAX,
                          &info->n_layers)) != DI_OK
        || (rc = di_load_u32(l, "context_length", true, 1, CONTEXT_MAX,
                             &info->context_length)) != DI_OK
        || (rc = di_load_u32(l, "embedding_length", true, 32, DIM_MAX,
                             &info->dim)) != DI_OK
        || (rc = di_load_u32(l, "feed_forward_length", true, 32, FFN_MAX,
                             &info->ffn_dim)) != DI_OK
        || (rc = di_load_f32(l, "attention.layer_norm_rms_epsilon", true, 0,
                             1, &s->eps)) != DI_OK
        || (rc = read_heads(m, l)) != DI_OK
        || (rc = read_rope(m, l, s)) != DI_OK
        || (rc = read_rest(l)) != DI_OK)
        return rc;

    if (info->dim % 32 != 0 || info->ffn_dim % 32 != 0)
        return di_err_set(l->err, DI_EUNSUPPORTED, 0,
                          "%s.embedding_length %u and feed_forward_length %u "
                          "must be multiples of 32", l->arch, info->dim,
                          info->ffn_dim);

    s->q_dim = info->n_heads * info->head_dim;
    s->kv_dim = info->n_kv_heads * info->head_dim;
    info->block_tokens = DI_KV_BLOCK_TOKENS;
    m->geom = (di_kv_geom_t) {
        .n_layers = info->n_layers,
        .n_kv_heads = info->n_kv_heads,
        .head_dim = info->head_dim,
        .block_tokens = DI_KV_BLOCK_TOKENS,
    };
    return DI_OK;
}

/* --------------------------------------------------------------- tensors -- */

/* q, k and v have biases, all or none. */
static int
read_biases(di_load_t *l, uint32_t layer, const llama_t *s, bool required,
            tensors_t *t)
{
    int rc;

    if ((rc = di_load_layer_tensor(l, layer, "attn_q.bias", required, 0,
                                   s->q_dim, &t->q_bias)) != DI_OK)
        return rc;
    if (t->q_bias == NULL)
        return DI_OK;            /* stray k or v biases: refused at the end */
    if ((rc = di_load_layer_tensor(l, layer, "attn_k.bias", true, 0,
                                   s->kv_dim, &t->k_bias)) != DI_OK
        || (rc = di_load_layer_tensor(l, layer, "attn_v.bias", true, 0,
                                      s->kv_dim, &t->v_bias)) != DI_OK)
        return rc;
    return DI_OK;
}

static int
read_layer(di_model_t *m, di_load_t *l, uint32_t layer, const llama_t *s,
           tensors_t *t)
{
    const size_t dim = m->info.dim, ffn = m->info.ffn_dim;
    const struct {
        const char              *name;
        size_t                   rows, cols;
        const di_gguf_tensor_t **tensor;
    } wanted[] = {
        { "attn_norm.weight", 0, dim, &t->attn_norm },
        { "attn_q.weight", s->q_dim, dim, &t->q },
        { "attn_k.weight", s->kv_dim, dim, &t->k },
        { "attn_v.weight", s->kv_dim, dim, &t->v },
        { "attn_output.weight", dim, s->q_dim, &t->o },
        { "ffn_norm.weight", 0, dim, &t->ffn_norm },
        { "ffn_gate.weight", ffn, dim, &t->gate },
        { "ffn_up.weight", ffn, dim, &t->up },
        { "ffn_down.weight", dim, ffn, &t->down },
    };

    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
        int rc = di_load_layer_tensor(l, layer, wanted[i].name, true,
                                      wanted[i].rows, wanted[i].cols,
                                      wanted[i].tensor);
        if (rc != DI_OK)
            return rc;
    }
    return read_biases(l, layer, s, m->family == &di_family_qwen2, t);
}

static int
read_tensors(di_model_t *m, di_load_t *l, llama_t *s)
{
    const di_gguf_tensor_t *embed;
    size_t                  dim = m->info.dim, vocab;
    int                     rc;

    /* The number of rows of the embedding is the vocabulary's size. */
    embed = di_gguf_find(l->gguf, "token_embd.weight");
    vocab = embed != NULL && embed->n_dims == 2 ? embed->dims[1] : 1;
    if (vocab > VOCAB_MAX)
        return di_err_set(l->err, DI_EFORMAT,
                          di_gguf_offset(l->gguf, embed->data),
                          "tensor token_embd.weight has %zu rows", vocab);
    m->info.vocab = (uint32_t) vocab;

    if ((rc = di_load_tensor(l, "token_embd.weight", true, vocab, dim,
                             &s->embed_t)) != DI_OK
        || (rc = di_load_tensor(l, "output_norm.weight", true, 0, dim,
                                &s->out_norm_t)) != DI_OK
        || (rc = di_load_tensor(l, "output.weight", false, vocab, dim,
                                &s->head_t)) != DI_OK
        || (rc = di_load_tensor(l, "rope_freqs.weight", false, 0,
                                s->rope_dim / 2, &s->rope_freqs_t)) != DI_OK)
        return rc;

    for (uint32_t i = 0; i < m->info.n_layers; i++) {
        rc = read_layer(m, l, i, s, &s->tensors[i]);
        if (rc != DI_OK)
            return rc;
    }
    return DI_OK;
}

static int
llama_read(di_model_t *m, di_load_t *l)
{
    llama_t *s = calloc(1, sizeof(*s));
    int      rc;

    if (s == NULL)
        return di_err_set(l->err, DI_ENOMEM, 0, "out of memory");
    m->state = s;
    s->rope_style = m->family == &di_family_qwen2 ? DI_ROPE_HALVES
                                                  : DI_ROPE_PAIRS;
    rc = read_hparams(m, l, s);
    if (rc != DI_OK)
        return rc;

    s->tensors = calloc(m->info.n_layers, sizeof(*s->tensors));
    s->layers = calloc(m->info.n_layers, sizeof(*s->layers));
    if (s->tensors == NULL || s->layers == NULL)
        return di_err_set(l->err, DI_ENOMEM, 0, "out of memory");
    return read_tensors(m, l, s);
}

/* ---------------------------------------------------------------- upload -- */

/* The constants are gathered in host memory, then copied in one go. */
typedef struct {
    di_view_t next;              /* where the next array goes               */
    float    *host;              /* image of the whole buffer               */
} consts_t;

static float *
take_consts(consts_t *c, size_t n, di_view_t *view)
{
    float *dst = c->host + c->next.offset / sizeof(float);

    *view = c->next;
    c->next.offset += di_family_align(n * sizeof(float));
    return dst;
}

/* Angles per position: pair i of a head turns by freqs[i] a token.  Values
 * that don't rotate have frequency 0, which leaves them as they are. */
static int
fill_freqs(const llama_t *s, uint32_t head_dim, float *freqs, di_err_t *err)
{
    uint32_t n = s->rope_dim / 2;

    for (uint32_t i = n; i < head_dim / 2; i++)
        freqs[i] = 0.0f;
    for (uint32_t i = 0; i < n; i++)
        freqs[i] = 1.0f;
    if (s->rope_freqs_t != NULL)
        di_family_floats(s->rope_freqs_t, n, freqs);

    for (uint32_t i = 0; i < n; i++) {
        double base = pow(s->freq_base, -2.0 * i / s->rope_dim);

        if (!(freqs[i] > 0.0f) || !isfinite(freqs[i]))
            return di_err_set(err, DI_EFORMAT, 0,
                              "tensor rope_freqs.weight: value %u is %g", i,
                              (double) freqs[i]);
        freqs[i] = (float) (base / s->freq_scale / freqs[i]);
    }
    return DI_OK;
}

static int
upload_consts(di_model_t *m, llama_t *s, di_err_t *err)
{
    const size_t dim = m->info.dim, qkv = s->q_dim + 2 * (size_t) s->kv_dim;
    const size_t half = m->info.head_dim / 2;
    consts_t     c = { 0 };
    size_t       bytes;
    int          rc;

    bytes = m->info.n_layers * (2 * di_family_align(dim * sizeof(float))
                                + di_family_align(qkv * sizeof(float)))
            + di_family_align(dim * sizeof(float))
            + di_family_align(half * sizeof(float));
    if (m->ops->buf_alloc(m->dev, bytes, &s->consts) != DI_OK)
        return di_err_set(err, DI_ENOMEM, 0, "out of device memory");
    c.next.buf = s->consts;
    c.host = calloc(1, bytes);
    if (c.host == NULL)
        return di_err_set(err, DI_ENOMEM, 0, "out of memory");

    for (uint32_t i = 0; i < m->info.n_layers; i++) {
        const tensors_t *t = &s->tensors[i];
        layer_t         *l = &s->layers[i];
        float           *dst;

        di_family_floats(t->attn_norm, dim,
                         take_consts(&c, dim, &l->attn_norm));
        di_family_floats(t->ffn_norm, dim,
                         take_consts(&c, dim, &l->ffn_norm));
        if (t->q_bias == NULL)
            continue;
        dst = take_consts(&c, qkv, &l->qkv_bias);
        di_family_floats(t->q_bias, s->q_dim, dst);
        di_family_floats(t->k_bias, s->kv_dim, dst + s->q_dim);
        di_family_floats(t->v_bias, s->kv_dim, dst + s->q_dim + s->kv_dim);
    }
    di_family_floats(s->out_norm_t, dim, take_consts(&c, dim, &s->out_norm));
    rc = fill_freqs(s, m->info.head_dim,
                    take_consts(&c, half, &s->freqs), err);
    if (rc == DI_OK)
        rc = di_family_put(m, (di_view_t) { s->consts, 0 }, c.host, bytes,
                           err);
    free(c.host);
    return rc;
}

/* Open a product of up to three stacked tensors. */
static int
upload_weight(di_model_t *m, const di_gguf_tensor_t *const *parts,
              size_t n_parts, di_weight_t **w, di_err_t *err)
{
    di_wpart_t wparts[3];
    di_err_t   why = { 0 };
    int        rc;

    for (size_t i = 0; i < n_parts; i++) {
        wparts[i] = (di_wpart_t) {
            .type = (di_wtype_t) parts[i]->type,
            .data = parts[i]->data,
            .n = parts[i]->dims[1],
        };
        m->info.params += parts[i]->dims[0] * parts[i]->dims[1];
    }
    rc = m->ops->weight_open(m->dev, wparts, n_parts, parts[0]->dims[0], w,
                             &why);
    if (rc != DI_OK)
        return di_err_set(err, rc, di_gguf_offset(m->gguf, parts[0]->data),
                          "tensor %.*s at byte %zu: %s",
                          (int) parts[0]->name.len, parts[0]->name.data,
                          di_gguf_offset(m->gguf, parts[0]->data), why.text);
    m->info.weights_bytes += m->ops->weight_bytes(*w);
    m->info.memory_bytes += m->ops->weight_bytes(*w);
    return DI_OK;
}

static int
upload_layer(di_model_t *m, const tensors_t *t, layer_t *l, di_err_t *err)
{
    int rc;

    if ((rc = upload_weight(m, (const di_gguf_tensor_t *const []) {
                                t->q, t->k, t->v }, 3, &l->qkv, err))
            != DI_OK
        || (rc = upload_weight(m, &t->o, 1, &l->o, err)) != DI_OK
        || (rc = upload_weight(m, (const di_gguf_tensor_t *const []) {
                                   t->gate, t->up }, 2, &l->gate_up, err))
            != DI_OK
        || (rc = upload_weight(m, &t->down, 1, &l->down, err)) != DI_OK)
        return rc;
    return DI_OK;
}

static int
upload_weights(di_model_t *m, llama_t *s, di_err_t *err)
{
    uint64_t embed_bytes;
    int      rc;

    rc = upload_weight(m, &s->embed_t, 1, &s->embed, err);
    if (rc != DI_OK)
        return rc;
    embed_bytes = m->info.weights_bytes;
    s->head = s->embed;
    if (s->head_t != NULL) {
        s->head = NULL;
        rc = upload_weight(m, &s->head_t, 1, &s->head, err);
        if (rc != DI_OK)
            return rc;
        m->info.weights_bytes -= embed_bytes;    /* only a row of it is read */
    }

    for (uint32_t i = 0; i < m->info.n_layers; i++) {
        if (m->conf.progress != NULL)
            m->conf.progress(m->conf.progress_arg, "loading weights",
                             (double) i / m->info.n_layers);
        rc = upload_layer(m, &s->tensors[i], &s->layers[i], err);
        if (rc != DI_OK)
            return rc;
    }
    if (m->conf.progress != NULL)
        m->conf.progress(m->conf.progress_arg, "loading weights", 1.0);
    return DI_OK;
}

static size_t
max3(size_t a, size_t b, size_t c)
{
    size_t ab = a > b ? a : b;

    return ab > c ? ab : c;
}

static int
upload_scratch(di_model_t *m, llama_t *s, di_err_t *err)
{
    const size_t rows = m->conf.max_rows, dim = m->info.dim;
    const size_t ffn = m->info.ffn_dim;
    const size_t wide = max3(s->q_dim + 2 * (size_t) s->kv_dim, 2 * ffn, 0);
    const size_t act = max3(m->ops->act_bytes(m->dev, dim),
                            m->ops->act_bytes(m->dev, s->q_dim),
                            m->ops->act_bytes(m->dev, ffn));
    const size_t sizes[] = {
        rows * dim * sizeof(float), rows * dim * sizeof(float),
        rows * wide * sizeof(float), rows * act,
    };
    di_view_t *const views[] = { &s->x, &s->add, &s->wide, &s->act };
    size_t           at = 0;

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        views[i]->offset = at;
        at += di_family_align(sizes[i]);
    }
    if (m->ops->buf_alloc(m->dev, at, &s->scratch) != DI_OK)
        return di_err_set(err, DI_ENOMEM, 0,
                          "no memory for steps of %zu rows", rows);
    for (size_t i = 0; i < sizeof(views) / sizeof(views[0]); i++)
        views[i]->buf = s->scratch;
    m->info.step_bytes += at;
    return DI_OK;
}

static int
llama_upload(di_model_t *m, di_err_t *err)
{
    llama_t *s = m->state;
    int      rc;

    rc = upload_scratch(m, s, err);
    if (rc == DI_OK)
        rc = upload_consts(m, s, err);
    if (rc == DI_OK)
        rc = upload_weights(m, s, err);
    if (rc != DI_OK)
        return rc;
    free(s->tensors);
    s->tensors = NULL;
    return DI_OK;
}

static void
llama_close(di_model_t *m)
{
    llama_t *s = m->state;

    if (s == NULL)
        return;
    for (uint32_t i = 0; s->layers != NULL && i < m->info.n_layers; i++) {
        di_weight_t *w[] = { s->layers[i].qkv, s->layers[i].o,
                             s->layers[i].gate_up, s->layers[i].down };

        for (size_t j = 0; j < sizeof(w) / sizeof(w[0]); j++) {
            if (w[j] != NULL)
                m->ops->weight_close(m->dev, w[j]);
        }
    }
    if (s->head != NULL && s->head != s->embed)
        m->ops->weight_close(m->dev, s->head);
    if (s->embed != NULL)
        m->ops->weight_close(m->dev, s->embed);
    if (s->consts != NULL)
        m->ops->buf_free(m->dev, s->consts);
    if (s->scratch != NULL)
        m->ops->buf_free(m->dev, s->scratch);
    free(s->tensors);
    free(s->layers);
    free(s);
    m->state = NULL;
}

/* --------------------------------------------------------------- forward -- */

static const di_view_t none = { NULL, 0 };

static di_view_t
skip_rows(di_view_t view, size_t n, size_t values)
{
    view.offset += n * values * sizeof(float);
    return view;
}

/* One block.  `add` is the residual that the layer before left unadded.  In
 * the last layer rows are the step's tail once keys and values are stored. */
static void
forward_layer(di_model_t *m, const llama_t *s, const di_step_t *step,
              uint32_t i, di_view_t add)
{
    const di_ops_t  *o = m->ops;
    const layer_t   *l = &s->layers[i];
    const uint32_t   dim = m->info.dim, heads = m->info.n_heads;
    const bool       last = i + 1 == m->info.n_layers;
    const di_rows_t *rows = last ? &step->tail : &step->rows;
    const size_t     head = last ? step->n_head : 0, n = rows->n_rows;
    const di_view_t  x = skip_rows(s->x, head, dim);
    const di_view_t  sum = skip_rows(s->add, head, dim);
    const di_view_t  qkv = skip_rows(s->wide, head,
                                     s->q_dim + 2 * (size_t) s->kv_dim);
    const di_view_t  kv = { m->kv, 0 };
    const float      scale = 1.0f / sqrtf((float) m->info.head_dim);

    o->norm(m->stream, s->act, s->x, add, l->attn_norm, s->eps, none,
            step->rows.n_rows, dim);
    o->matmul(m->stream, s->wide, s->act, l->qkv, l->qkv_bias,
              step->rows.n_rows);
    o->rope_store(m->stream, s->wide, heads, kv, &m->geom, i, &step->rows,
                  s->freqs, s->rope_style);
    if (n == 0)
        return;
    o->attention(m->stream, s->act, qkv, heads, kv, &m->geom, i, rows, scale);
    o->matmul(m->stream, sum, s->act, l->o, none, n);
    o->norm(m->stream, s->act, x, sum, l->ffn_norm, s->eps, none, n, dim);
    o->matmul(m->stream, s->wide, s->act, l->gate_up, none, n);
    o->silu_mul(m->stream, s->act, s->wide, n, m->info.ffn_dim);
    o->matmul(m->stream, sum, s->act, l->down, none, n);
}

static void
llama_forward(di_model_t *m, const di_step_t *step)
{
    const llama_t *s = m->state;

    m->ops->embed(m->stream, s->x, s->embed, step->ids, step->rows.n_rows);
    for (uint32_t i = 0; i < m->info.n_layers; i++)
        forward_layer(m, s, step, i, i == 0 ? none : s->add);
    if (step->n_out == 0)
        return;
    m->ops->norm(m->stream, s->act, s->x, s->add, s->out_norm, s->eps,
                 step->out_rows, step->n_out, m->info.dim);
    m->ops->matmul(m->stream, step->logits, s->act, s->head, none,
                   step->n_out);
}

static void
llama_kv_copy(di_model_t *m, uint32_t dst, uint32_t src, uint32_t n_tokens)
{
    const di_view_t kv = { m->kv, 0 };

    m->ops->kv_copy(m->stream, kv, &m->geom, dst, src, n_tokens);
}

const di_family_t di_family_llama = {
    .arch = "llama",
    .read = llama_read,
    .kv_copy = llama_kv_copy,
    .upload = llama_upload,
    .forward = llama_forward,
    .close = llama_close,
};

const di_family_t di_family_qwen2 = {
    .arch = "qwen2",
    .read = llama_read,
    .kv_copy = llama_kv_copy,
    .upload = llama_upload,
    .forward = llama_forward,
    .close = llama_close,
};
