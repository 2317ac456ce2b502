/*
 * v41_conf.c - config.json of a DeepSeek-V4.1 directory.
 *
 * Every key that changes a result is read and checked; those that the model
 * supports in one value only (activation, scoring function, quantisation)
 * must have that value, because skipping over another one would give text
 * that is only slightly wrong.  Keys that we don't know are left alone:
 * training tools add theirs freely.
 */

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "v41_conf.h"

#define DIM_MAX     (1u << 17)
#define VOCAB_MAX   (1u << 22)
/* As the operators have them that select, attend and route. */
#define CONTEXT_MAX (1u << 20)   /* entries of a sequence                   */
#define QUERY_MAX   (64u << 10)  /* values of a row's index queries         */
#define ATTEND_MAX  (6u << 18)   /* values of a row's keys, weights, result */
#define EXPERTS_MAX 1024u
#define USED_MAX    32u

/* An object of the file, and the first error. */
typedef struct {
    const json_t *o;
    const char   *where;         /* "text_config." or ""                    */
    di_err_t     *err;
    int           rc;            /* once it is not DI_OK nothing is read    */
} reader_t;

/* ---------------------------------------------------------------- values -- */

__attribute__((format(printf, 3, 4)))
static void
fail(reader_t *r, const char *key, const char *fmt, ...)
{
    char    text[96];
    va_list ap;

    if (r->rc != DI_OK)
        return;
    va_start(ap, fmt);
    (void) vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    r->rc = di_err_set(r->err, DI_EFORMAT, 0, "config.json: %s%s %s",
                       r->where, key, text);
}

/* NULL if absent or null. */
static const json_t *
get(const reader_t *r, const char *key)
{
    const json_t *v = json_object_get(r->o, key);

    return json_is_null(v) ? NULL : v;
}

static bool
in_range(reader_t *r, const char *key, const json_t *v, uint64_t min,
         uint64_t max)
{
    if (json_is_integer(v) && json_integer_value(v) >= 0
        && (uint64_t) json_integer_value(v) >= min
        && (uint64_t) json_integer_value(v) <= max)
        return true;
    if (json_is_integer(v))
        fail(r, key, "is %lld, expected %llu to %llu",
             (long long) json_integer_value(v), (unsigned long long) min,
             (unsigned long long) max);
    else
        fail(r, key, "is not an integer");
    return false;
}

/* A required integer. */
static uint32_t
need(reader_t *r, const char *key, uint32_t min, uint32_t max)
{
    const json_t *v = get(r, key);

    if (v == NULL) {
        fail(r, key, "is missing");
        return min;
    }
    return in_range(r, key, v, min, max) ? (uint32_t) json_integer_value(v)
                                         : min;
}

/* One with a default. */
static uint32_t
want(reader_t *r, const char *key, uint32_t min, uint32_t max, uint32_t dflt)
{
    const json_t *v = get(r, key);

    if (v == NULL || !in_range(r, key, v, min, max))
        return dflt;
    return (uint32_t) json_integer_value(v);
}

static double
need_real(reader_t *r, const char *key, double min, double max)
{
    const json_t *v = get(r, key);
    double        x = json_number_value(v);

    if (!json_is_number(v))
        fail(r, key, v == NULL ? "is missing" : "is not a number");
    else if (!(x >= min && x <= max))
        fail(r, key, "is %g, expected %g to %g", x, min, max);
    return x;
}

/* A string that must be there and have this value. */
static void
must_be(reader_t *r, const char *key, const char *value)
{
    const char *s = json_string_value(get(r, key));

    if (s == NULL || strcmp(s, value) != 0)
        fail(r, key, "is %.24s, expected %.32s", s == NULL ? "missing" : s,
             value);
}

/* A boolean that may be absent, else must have this value. */
static void
must_be_bool(reader_t *r, const char *key, bool value)
{
    const json_t *v = get(r, key);

    if (v != NULL && (!json_is_boolean(v) || json_is_true(v) != value))
        fail(r, key, "is not %s, which is not supported",
             value ? "true" : "false");
}

/* A list of integers, each at most max; absent: none.  Returns how many. */
static uint32_t
list(reader_t *r, const char *key, uint32_t max, uint32_t *v, uint32_t n_max)
{
    const json_t *a = get(r, key);
    size_t        n = json_array_size(a);

    if (a == NULL)
        return 0;
    if (!json_is_array(a) || n > n_max) {
        fail(r, key, "is not a list of at most %u numbers", n_max);
        return 0;
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *x = json_array_get(a, i);

        v[i] = 0;
        if (in_range(r, key, x, 0, max))
            v[i] = (uint32_t) json_integer_value(x);
    }
    return (uint32_t) n;
}

/* -------------------------------------------------------------- topology -- */

/* For each layer the nearest listed one at or before it; marks[l]: listed. */
static void
nearest(const di_v41_conf_t *c, const bool *marks, uint32_t *source)
{
    uint32_t last = DI_V41_NO_LAYER;

    for (uint32_t l = 0; l < c->n_layers; l++) {
        if (marks[l])
            last = l;
        source[l] = last;
    }
}

/* A list of layers as marks; false: absent or empty. */
static bool
layers(reader_t *r, const char *key, const di_v41_conf_t *c, bool *marks)
{
    uint32_t ids[DI_V41_LAYERS_MAX];
    uint32_t n = list(r, key, c->n_layers - 1, ids, c->n_layers);

    memset(marks, 0, DI_V41_LAYERS_MAX * sizeof(*marks));
    for (uint32_t i = 0; i < n && r->rc == DI_OK; i++)
        marks[ids[i]] = true;
    return n > 0;
}

static void
read_ratios(reader_t *r, di_v41_conf_t *c)
{
    uint32_t ratios[DI_V41_LAYERS_MAX + DI_V41_STAGES_MAX];
    uint32_t n = list(r, "compress_ratios", 2, ratios,
                      DI_V41_LAYERS_MAX + DI_V41_STAGES_MAX);

    if (n != c->n_layers + c->n_stages)
        fail(r, "compress_ratios", "has %u entries, expected %u + %u", n,
             c->n_layers, c->n_stages);
    if (r->rc != DI_OK)
        return;
    memcpy(c->ratio, ratios, c->n_layers * sizeof(*ratios));
    for (c->first_consumer = 0; c->first_consumer < c->n_layers
                                && c->ratio[c->first_consumer] != 1;)
        c->first_consumer++;
}

/* What a layer of ratio > 0 reads must exist and have its ratio; layers of
 * ratio 0 read nothing. */
static void
check_sources(reader_t *r, di_v41_conf_t *c)
{
    for (uint32_t l = 0; l < c->n_layers && r->rc == DI_OK; l++) {
        uint32_t *const sources[] = { &c->kv_source[l], &c->index_source[l],
                                      &c->key_source[l] };
        static const char *const keys[] = {
            "kv_source_layer_ids", "index_source_layer_ids",
            "index_k_source_layer_ids" };

        for (int i = 0; i < 3; i++) {
            if (c->ratio[l] == 0) {
                if (*sources[i] == l)
                    fail(r, keys[i], "names layer %u of ratio 0", l);
                *sources[i] = DI_V41_NO_LAYER;
            } else if (*sources[i] == DI_V41_NO_LAYER
                       || c->ratio[*sources[i]] != c->ratio[l]) {
                fail(r, keys[i], "has no source of ratio %u for layer %u",
                     c->ratio[l], l);
            }
        }
    }
}

/* A selection is of one set of keys, and keys of one set of entries. */
static void
check_refinement(reader_t *r, const di_v41_conf_t *c)
{
    for (uint32_t l = 0; l < c->n_layers && r->rc == DI_OK; l++) {
        if (c->ratio[l] == 0)
            continue;
        if (c->key_source[c->index_source[l]] != c->key_source[l])
            fail(r, "index_source_layer_ids", "don't refine "
                 "index_k_source_layer_ids at layer %u", l);
        else if (c->kv_source[c->key_source[l]] != c->kv_source[l])
            fail(r, "index_k_source_layer_ids", "don't refine "
                 "kv_source_layer_ids at layer %u", l);
        else if (di_v41_owns_keys(c, l) && !di_v41_owns_kv(c, l))
            fail(r, "index_k_source_layer_ids", "names layer %u, which is no "
                 "source of KV: not supported", l);
        else if (di_v41_owns_keys(c, l) && !di_v41_selects(c, l))
            fail(r, "index_source_layer_ids", "lack layer %u, which owns "
                 "index keys", l);
        else if (l > c->first_consumer && di_v41_owns_kv(c, l))
            fail(r, "kv_source_layer_ids", "has %u behind the first "
                 "consumer %u: not supported", l, c->first_consumer);
    }
    for (uint32_t l = c->first_consumer; l < c->n_layers; l++) {
        if (c->ratio[l] != 1)
            fail(r, "compress_ratios", "is %u at layer %u, behind the first "
                 "of ratio 1", c->ratio[l], l);
    }
    if (c->first_consumer < c->n_layers
        && c->kv_source[c->first_consumer] != c->first_consumer)
        fail(r, "kv_source_layer_ids", "lack the first consumer %u",
             c->first_consumer);
}

static void
read_candidates(reader_t *r, di_v41_conf_t *c)
{
    uint32_t source;

    c->candidate_layer = DI_V41_NO_LAYER;
    if (get(r, "candidate_source_layer_id") == NULL)
        return;
    source = need(r, "candidate_source_layer_id", 0, c->n_layers - 1);
    c->candidate_blocks = need(r, "candidate_topk_blocks", 8, 4096);
    c->candidate_size = need(r, "candidate_block_size", 8, 16);
    if (r->rc != DI_OK)
        return;

    if (c->candidate_blocks % 8 != 0)
        fail(r, "candidate_topk_blocks", "is %u, no multiple of 8",
             c->candidate_blocks);
    if (c->candidate_size != 8 && c->candidate_size != 16)
        fail(r, "candidate_block_size", "is %u, expected 8 or 16",
             c->candidate_size);
    if (c->candidate_blocks * c->candidate_size < c->index_topk)
        fail(r, "candidate_topk_blocks", "times the block size is less than "
             "index_topk %u", c->index_topk);
    if (!di_v41_selects(c, source))
        fail(r, "candidate_source_layer_id", "is %u, which selects nothing",
             source);
    for (uint32_t l = source; l < c->n_layers && r->rc == DI_OK; l++) {
        if (di_v41_selects(c, l)
            && c->key_source[l] != c->key_source[source])
            fail(r, "candidate_source_layer_id", "is %u, but layer %u has "
                 "other index keys", source, l);
    }
    c->candidate_layer = source;
}

static void
read_topology(reader_t *r, di_v41_conf_t *c)
{
    bool kv[DI_V41_LAYERS_MAX], keys[DI_V41_LAYERS_MAX];
    bool index[DI_V41_LAYERS_MAX];

    read_ratios(r, c);
    if (r->rc != DI_OK)
        return;
    (void) layers(r, "kv_source_layer_ids", c, kv);
    (void) layers(r, "index_source_layer_ids", c, index);
    if (!layers(r, "index_k_source_layer_ids", c, keys))
        memcpy(keys, kv, sizeof(keys));
    nearest(c, kv, c->kv_source);
    nearest(c, index, c->index_source);
    nearest(c, keys, c->key_source);
    check_sources(r, c);
    if (r->rc == DI_OK)
        check_refinement(r, c);
    if (r->rc == DI_OK)
        read_candidates(r, c);
}

/* -------------------------------------------------------------- sections -- */

static void
read_sizes(reader_t *r, di_v41_conf_t *c)
{
    c->vocab = need(r, "vocab_size", 1, VOCAB_MAX);
    c->dim = need(r, "hidden_size", 32, DIM_MAX);
    c->n_layers = need(r, "num_hidden_layers", 1, DI_V41_LAYERS_MAX);
    c->n_stages = want(r, "num_nextn_predict_layers", 0, DI_V41_STAGES_MAX,
                       0);
    c->n_heads = need(r, "num_attention_heads", 1, 1024);
    (void) need(r, "num_key_value_heads", 1, 1);
    c->head_dim = need(r, "head_dim", 32, 1024);
    c->rope_dim = need(r, "qk_rope_head_dim", 2, 1024);
    c->q_rank = need(r, "q_lora_rank", 32, DIM_MAX);
    c->o_groups = need(r, "o_groups", 1, 1024);
    c->o_rank = need(r, "o_lora_rank", 32, DIM_MAX);
    c->context_length = need(r, "max_position_embeddings", 1, CONTEXT_MAX);
    c->window = need(r, "sliding_window", 1, 4096);
    c->eps = (float) need_real(r, "rms_norm_eps", 0, 1);
    c->swiglu_limit = (float) need_real(r, "swiglu_limit", 0, 1e6);
    if (r->rc != DI_OK)
        return;

    if (c->n_heads % c->o_groups != 0)
        fail(r, "o_groups", "is %u, no divisor of %u heads", c->o_groups,
             c->n_heads);
    if (c->rope_dim > c->head_dim || c->rope_dim % 2 != 0)
        fail(r, "qk_rope_head_dim", "is %u, expected an even number up to "
             "head_dim %u", c->rope_dim, c->head_dim);
    if (c->dim % 32 != 0 || c->head_dim % 32 != 0 || c->q_rank % 32 != 0
        || c->o_rank % 32 != 0)
        fail(r, "hidden_size", "%u, head_dim %u, q_lora_rank %u or "
             "o_lora_rank %u: no multiple of 32", c->dim, c->head_dim,
             c->q_rank, c->o_rank);
}

static void
read_fixed(reader_t *r)
{
    const json_t *dropout = get(r, "attention_dropout");

    must_be(r, "hidden_act", "silu");
    must_be(r, "scoring_func", "sqrtsoftplus");
    must_be(r, "topk_method", "noaux_tc");
    must_be_bool(r, "norm_topk_prob", true);
    must_be_bool(r, "attention_bias", false);
    must_be_bool(r, "tie_word_embeddings", false);
    must_be_bool(r, "hc_shifted", true);
    must_be_bool(r, "dspark_target_attn_input", true);
    if (dropout != NULL && json_number_value(dropout) != 0)
        fail(r, "attention_dropout", "is not 0");
}

static void
read_rope(reader_t *r, di_v41_conf_t *c)
{
    reader_t      y = { get(r, "rope_scaling"),
                        "text_config.rope_scaling.", r->err, r->rc };

    c->rope_theta = need_real(r, "rope_theta", 1, 1e12);
    c->compress_theta = need_real(r, "compress_rope_theta", 1, 1e12);
    c->yarn = y.o != NULL;
    if (!c->yarn || r->rc != DI_OK)
        return;
    must_be(&y, json_object_get(y.o, "rope_type") != NULL ? "rope_type"
                                                          : "type", "yarn");
    c->yarn_factor = need_real(&y, "factor", 1, 1e6);
    c->yarn_fast = need_real(&y, "beta_fast", 1e-3, 1e6);
    c->yarn_slow = need_real(&y, "beta_slow", 1e-3, 1e6);
    c->yarn_context = need(&y, "original_max_position_embeddings", 1,
                           CONTEXT_MAX);
    r->rc = y.rc;
}

static void
read_index(reader_t *r, di_v41_conf_t *c)
{
    bool any = false;

    c->fp4_kv = !json_is_false(get(r, "use_fp4_sparse_kv"));
    for (uint32_t l = 0; l < c->n_layers; l++)
        any |= c->ratio[l] != 0;
    if (!any)
        return;
    c->index_heads = need(r, "index_n_heads", 1, 256);
    c->index_dim = need(r, "index_head_dim", 32, 1024);
    c->index_topk = need(r, "index_topk", 1, 8192);
    if (r->rc == DI_OK
        && (c->index_dim % 32 != 0 || c->index_dim < c->rope_dim))
        fail(r, "index_head_dim", "is %u, expected a multiple of 32 of at "
             "least qk_rope_head_dim", c->index_dim);
    if (c->index_heads * c->index_dim > QUERY_MAX)
        fail(r, "index_n_heads", "is %u of %u, expected at most %u values",
             c->index_heads, c->index_dim, QUERY_MAX);
}

/* A group of heads attends with a row's keys all at hand. */
static void
check_attention(reader_t *r, const di_v41_conf_t *c)
{
    uint64_t keys = 2 * c->window + DI_V41_BACKTRACK + c->index_topk;
    uint64_t heads = c->n_heads / c->o_groups;

    if (keys * (c->head_dim + heads) + heads * c->head_dim > ATTEND_MAX)
        fail(r, "sliding_window", "of %u and index_topk of %u are more than "
             "fits with head_dim %u", c->window, c->index_topk, c->head_dim);
}

static void
read_hc(reader_t *r, di_v41_conf_t *c)
{
    c->hc = need(r, "hc_mult", 1, DI_V41_HC_MAX);
    c->hc_iters = need(r, "hc_sinkhorn_iters", 1, 1000);
    c->hc_eps = (float) need_real(r, "hc_eps", 0, 1);
}

static void
read_moe(reader_t *r, di_v41_conf_t *c)
{
    c->n_experts = need(r, "n_routed_experts", 1, EXPERTS_MAX);
    c->n_used = need(r, "num_experts_per_tok", 1, USED_MAX);
    c->n_shared = need(r, "n_shared_experts", 1, 64);
    c->expert_dim = need(r, "moe_intermediate_size", 32, DIM_MAX);
    c->route_scale = (float) need_real(r, "routed_scaling_factor", 0, 1e6);
    if (r->rc != DI_OK)
        return;
    if (c->n_used > c->n_experts)
        fail(r, "num_experts_per_tok", "is %u of %u", c->n_used,
             c->n_experts);
    if (c->expert_dim % 32 != 0)
        fail(r, "moe_intermediate_size", "is %u, no multiple of 32",
             c->expert_dim);
}

static void
read_engram(reader_t *r, di_v41_conf_t *c)
{
    for (uint32_t l = 0; l < c->n_layers; l++)
        c->engram_of[l] = DI_V41_NO_LAYER;
    c->n_engrams = list(r, "engram_layer_ids", c->n_layers - 1,
                        c->engram_layer, DI_V41_ENGRAM_MAX);
    if (c->n_engrams == 0 || r->rc != DI_OK)
        return;

    c->engram_ngram = need(r, "engram_max_ngram_size", 2, DI_V41_NGRAM_MAX);
    c->engram_vocab = need(r, "engram_vocab_size", 2, UINT32_MAX / 8);
    c->engram_heads = need(r, "engram_n_heads", 1, DI_V41_TABLES_MAX);
    c->engram_dim = need(r, "engram_head_dim", 32, 4096);
    c->engram_pad = want(r, "engram_pad_token_id", 0, VOCAB_MAX, 2);
    c->engram_ids = want(r, "engram_compressed_vocab_size", 1, VOCAB_MAX, 0);
    if (c->engram_dim % 32 != 0)
        fail(r, "engram_head_dim", "is %u, no multiple of 32",
             c->engram_dim);
    if (c->engram_pad >= c->vocab)
        fail(r, "engram_pad_token_id", "is %u of %u", c->engram_pad,
             c->vocab);
    for (uint32_t i = 0; i < c->n_engrams && r->rc == DI_OK; i++) {
        uint32_t l = c->engram_layer[i];

        if (c->engram_of[l] != DI_V41_NO_LAYER || l >= c->first_consumer)
            fail(r, "engram_layer_ids", "has %u twice or among consumers", l);
        c->engram_of[l] = i;
    }
}

static void
read_draft(reader_t *r, di_v41_conf_t *c)
{
    if (c->n_stages == 0)
        return;
    c->n_targets = list(r, "dspark_target_layer_ids", c->n_layers - 1,
                        c->target, DI_V41_TARGETS_MAX);
    c->block = want(r, "dspark_block_size", 1, DI_V41_DRAFTS_MAX, 5);
    c->noise = need(r, "dspark_noise_token_id", 0, c->vocab - 1);
    c->markov_rank = need(r, "dspark_markov_rank", 32, DIM_MAX);
    c->draft_experts = want(r, "dspark_n_routed_experts", 1, EXPERTS_MAX,
                            c->n_experts);
    c->draft_used = want(r, "dspark_num_experts_per_tok", 1, USED_MAX,
                         c->n_used);
    if (r->rc != DI_OK)
        return;
    if (c->n_targets == 0)
        fail(r, "dspark_target_layer_ids", "is missing");
    if (c->draft_used > c->draft_experts)
        fail(r, "dspark_num_experts_per_tok", "is %u of %u", c->draft_used,
             c->draft_experts);
    if (c->markov_rank % 32 != 0)
        fail(r, "dspark_markov_rank", "is %u, no multiple of 32",
             c->markov_rank);
    for (uint32_t i = 0; i < c->n_targets; i++) {
        if (c->target[i] < c->first_consumer)
            fail(r, "dspark_target_layer_ids", "has producer %u, which is "
                 "not supported", c->target[i]);
    }
}

static void
read_text(reader_t *top, di_v41_conf_t *c)
{
    reader_t r = { json_object_get(top->o, "text_config"), "text_config.",
                   top->err, top->rc };

    if (!json_is_object(r.o)) {
        fail(top, "text_config", "is missing");
        return;
    }
    read_sizes(&r, c);
    if (r.rc == DI_OK)
        read_fixed(&r);
    if (r.rc == DI_OK)
        read_rope(&r, c);
    if (r.rc == DI_OK)
        read_hc(&r, c);
    if (r.rc == DI_OK)
        read_moe(&r, c);
    /* Candidates are checked against index_topk: sizes first. */
    if (r.rc == DI_OK)
        read_ratios(&r, c);
    if (r.rc == DI_OK)
        read_index(&r, c);
    if (r.rc == DI_OK)
        check_attention(&r, c);
    if (r.rc == DI_OK)
        read_topology(&r, c);
    if (r.rc == DI_OK)
        read_engram(&r, c);
    if (r.rc == DI_OK)
        read_draft(&r, c);
    top->rc = r.rc;
}

static void
read_quantisation(reader_t *top, di_v41_conf_t *c)
{
    reader_t      r = { get(top, "quantization_config"),
                        "quantization_config.", top->err, top->rc };
    const json_t *block;

    c->quantised = r.o != NULL;
    if (!c->quantised || r.rc != DI_OK)
        return;
    must_be(&r, "quant_method", "fp8");
    must_be(&r, "expert_dtype", "fp4");
    must_be(&r, "activation_scheme", "dynamic");
    must_be(&r, "scale_fmt", "ue8m0");
    block = get(&r, "weight_block_size");
    if (json_array_size(block) != 2
        || json_integer_value(json_array_get(block, 0)) != 32
        || json_integer_value(json_array_get(block, 1)) != 32)
        fail(&r, "weight_block_size", "is not [32, 32]");
    top->rc = r.rc;
}

static void
read_vision(reader_t *top, di_v41_conf_t *c)
{
    reader_t r = { get(top, "vision_config"), "vision_config.", top->err,
                   top->rc };

    c->has_vision = r.o != NULL;
    if (!c->has_vision || r.rc != DI_OK)
        return;
    c->vision_dim = need(&r, "hidden_size", 1, DIM_MAX);
    c->vision_layers = need(&r, "num_hidden_layers", 1, DI_V41_LAYERS_MAX);
    c->vision_heads = need(&r, "num_attention_heads", 1, 1024);
    c->vision_ffn = need(&r, "intermediate_size", 1, DIM_MAX);
    c->vision_patch = need(&r, "patch_size", 1, 256);
    c->vision_down = need(&r, "downsample_ratio", 1, 16);
    if (r.rc == DI_OK && c->vision_dim % c->vision_heads != 0)
        fail(&r, "num_attention_heads", "is %u, no divisor of %u",
             c->vision_heads, c->vision_dim);
    top->rc = r.rc;
}

static void
read_top(reader_t *r, di_v41_conf_t *c)
{
    const json_t *arch = get(r, "architectures");
    const char   *name = json_string_value(json_array_get(arch, 0));
    const char   *tokens = json_string_value(
        get(r, "tokenizer_compatibility"));

    if (json_array_size(arch) != 1 || name == NULL
        || strcmp(name, "DeepseekV41ForCausalLM") != 0)
        fail(r, "architectures", "is not [\"DeepseekV41ForCausalLM\"]");
    must_be(r, "model_type", "deepseek_v41");
    must_be(r, "dtype", "bfloat16");
    if (tokens != NULL && strcmp(tokens, "native") != 0
        && strcmp(tokens, "release") != 0)
        fail(r, "tokenizer_compatibility", "is %.24s, expected native or "
             "release", tokens);
    c->native_tokens = tokens != NULL && strcmp(tokens, "native") == 0;
    c->bos = want(r, "bos_token_id", 0, VOCAB_MAX, 0);
    c->eos = want(r, "eos_token_id", 0, VOCAB_MAX, 1);
    c->pad = want(r, "pad_token_id", 0, VOCAB_MAX, 2);
    c->image = want(r, "image_token_id", 0, VOCAB_MAX, 0);
}

int
di_v41_conf_parse(const char *text, size_t len, di_v41_conf_t *c,
                  di_err_t *err)
{
    json_error_t je;
    json_t      *o = json_loadb(text, len, JSON_REJECT_DUPLICATES, &je);
    reader_t     r = { o, "", err, DI_OK };

    memset(c, 0, sizeof(*c));
    if (!json_is_object(o)) {
        json_decref(o);
        return di_err_set(err, DI_EFORMAT,
                          o == NULL && je.position > 0
                              ? (size_t) je.position : 0,
                          "config.json: %.100s",
                          o == NULL ? je.text : "not an object");
    }
    read_top(&r, c);
    if (r.rc == DI_OK)
        read_quantisation(&r, c);
    if (r.rc == DI_OK)
        read_text(&r, c);
    if (r.rc == DI_OK)
        read_vision(&r, c);
    json_decref(o);
    return r.rc;
}

/* ---------------------------------------------------------------- angles -- */

/* The pair whose wavelength turns r times in the original context. */
static double
yarn_pair(const di_v41_conf_t *c, double turns)
{
    return c->rope_dim * log(c->yarn_context / (turns * 2 * M_PI))
           / (2 * log(c->compress_theta));
}

/* Plain rotation, or between that and positions divided by the factor: YaRN
 * (arXiv:2309.00071), whose amplitude factor is 1 here.  The model was made
 * with float32 at each step, and an angle is a position's multiple of what
 * that leaves. */
void
di_v41_freqs(const di_v41_conf_t *c, uint32_t ratio, float *freqs)
{
    double base = ratio > 0 ? c->compress_theta : c->rope_theta;
    double lo, hi;
    float  ramp, plain;

    for (uint32_t i = 0; i < c->rope_dim / 2; i++)
        freqs[i] = 1 / (float) pow(base, 2.0f * (float) i
                                         / (float) c->rope_dim);
    if (ratio == 0 || !c->yarn)
        return;

    lo = fmax(floor(yarn_pair(c, c->yarn_fast)), 0);
    hi = fmin(ceil(yarn_pair(c, c->yarn_slow)), c->rope_dim - 1);
    if (lo == hi)
        hi += 0.001;
    for (uint32_t i = 0; i < c->rope_dim / 2; i++) {
        plain = freqs[i];
        ramp = ((float) i - (float) lo) / (float) (hi - lo);
        ramp = fminf(fmaxf(ramp, 0), 1);
        freqs[i] = plain / (float) c->yarn_factor * ramp + plain * (1 - ramp);
    }
}
