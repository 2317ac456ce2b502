/*
 * v41_conf.c - config.json, the list of tensors and Engram's numbers, held
 * against the released checkpoint's published figures and the goldens.
 */

#include <jansson.h>
#include <stdlib.h>
#include <unistd.h>

#include "check.h"
#include "engine/model/di_safetensors.h"
#include "engine/model/v41_cache.h"
#include "engine/model/v41_conf.h"
#include "engine/model/v41_engram.h"
#include "tokenizer/vocab/di_compress.h"

static char *
read_file(const char *dir, const char *name, size_t *len)
{
    di_err_t err = { 0 };
    char    *text = NULL;

    if (di_st_read_file(dir, name, 1u << 24, &text, len, &err) != DI_OK)
        printf("%s/%s: %s\n", dir, name, err.text);
    return text;
}

static void
parse_file(const char *dir, const char *name, di_v41_conf_t *c)
{
    di_err_t err = { 0 };
    size_t   len;
    char    *text = read_file(dir, name, &len);

    CHECK(text != NULL);
    if (text == NULL)
        exit(1);
    CHECK_EQ_INT(di_v41_conf_parse(text, len, c, &err), DI_OK);
    CHECK_EQ_STR(err.text, "");
    free(text);
}

/* --------------------------------------------------------------- tensors -- */

typedef struct {
    const di_v41_conf_t *c;
    uint64_t             n;
    uint64_t             bytes;
} sum_t;

static int
add_up(void *arg, const di_v41_tensor_t *t)
{
    sum_t *s = arg;

    s->n += 1 + (di_v41_scale_bytes(s->c, t) > 0);
    s->bytes += di_v41_tensor_bytes(s->c, t) + di_v41_scale_bytes(s->c, t);
    return DI_OK;
}

static void
test_flash(const di_v41_conf_t *c)
{
    di_v41_engram_t e[DI_V41_ENGRAM_MAX];
    di_v41_layout_t layout;
    sum_t           sum = { c, 0, 0 };

    CHECK_EQ_INT(di_v41_tensors(c, add_up, &sum), DI_OK);
    CHECK_EQ_INT(sum.n, 96085);
    CHECK_EQ_INT(sum.bytes, 510286023000);
    CHECK_EQ_INT(c->first_consumer, 20);
    CHECK_EQ_INT(c->kv_source[19], 14);
    CHECK_EQ_INT(c->index_source[27], 24);
    CHECK_EQ_INT(c->kv_source[1], DI_V41_NO_LAYER);

    di_v41_layout(c, false, &layout);
    CHECK_EQ_INT(layout.token_bytes, 890);
    CHECK_EQ_INT(layout.block_bytes, 114048);
    CHECK_EQ_INT(layout.ring_bytes, 3042336);
    CHECK_EQ_INT(layout.pair_bytes, 86016);
    CHECK_EQ_INT(layout.kept_bytes, 1415040);
    CHECK_EQ_INT(layout.slot_bytes % 1056, 0);

    di_v41_engram_primes(c, e);
    CHECK_EQ_INT(e[0].n_rows, 384006168);
    CHECK_EQ_INT(e[1].n_rows, 384016682);
    CHECK_EQ_INT(e[0].prime[0], 16000057);
    CHECK_EQ_INT(e[0].prime[1], 16000079);
    di_v41_engram_multipliers(c, 99092, e);
    CHECK_EQ_INT(e[0].multiplier[0], 76632096046245);
    CHECK_EQ_INT(e[0].multiplier[3], 73987337458391);
    CHECK_EQ_INT(e[1].multiplier[0], 67716810739261);
    CHECK_EQ_INT(e[1].multiplier[2], 30921347202721);
}

/* ---------------------------------------------------------------- Engram -- */

static void
check_tables(const di_v41_conf_t *c, const di_v41_engram_t *e, json_t *golden)
{
    for (uint32_t i = 0; i < c->n_engrams; i++) {
        char    key[16];
        json_t *m, *p;

        (void) snprintf(key, sizeof(key), "%u", c->engram_layer[i]);
        m = json_object_get(json_object_get(golden, "multipliers"), key);
        p = json_object_get(json_object_get(golden, "primes"), key);
        for (uint32_t r = 0; r < c->engram_ngram; r++)
            CHECK_EQ_INT(e[i].multiplier[r],
                         json_integer_value(json_array_get(m, r)));
        for (uint32_t r = 0; r + 1 < c->engram_ngram; r++) {
            for (uint32_t k = 0; k < c->engram_heads; k++)
                CHECK_EQ_INT(e[i].prime[r * c->engram_heads + k],
                             json_integer_value(json_array_get(
                                 json_array_get(p, r), k)));
        }
    }
}

static void
check_rows(const di_v41_conf_t *c, const di_v41_engram_t *e,
           const int32_t *map, json_t *prompts, json_t *golden)
{
    uint32_t    n = (c->engram_ngram - 1) * c->engram_heads;
    const char *name;
    json_t     *by_layer;

    json_object_foreach(json_object_get(golden, "rows"), name, by_layer) {
        json_t *ids = json_object_get(json_object_get(prompts, name), "ids");

        for (uint32_t i = 0; i < c->n_engrams; i++) {
            char    key[16];
            json_t *rows;

            (void) snprintf(key, sizeof(key), "%u", c->engram_layer[i]);
            rows = json_object_get(by_layer, key);
            for (size_t t = 0; t < json_array_size(rows); t++) {
                int32_t back[DI_V41_NGRAM_MAX];
                int64_t found[64];

                for (uint32_t r = 0; r < c->engram_ngram; r++)
                    back[r] = r > t ? map[c->engram_pad]
                        : map[json_integer_value(json_array_get(ids, t - r))];
                di_v41_engram_rows(c, &e[i], back, map[c->engram_pad], found);
                for (uint32_t k = 0; k < n; k++)
                    CHECK_EQ_INT(found[k], json_integer_value(json_array_get(
                                     json_array_get(rows, t), k)));
            }
        }
    }
}

static void
test_engram(const di_v41_conf_t *c, const char *dir)
{
    json_t         *golden, *prompts;
    di_v41_engram_t e[DI_V41_ENGRAM_MAX];
    di_vocab_t     *vocab = NULL;
    di_err_t        err = { 0 };
    char            path[256], *text;
    size_t          len;
    int32_t        *map;
    uint32_t        n, n_ids;
    int64_t         sum = 0;

    (void) snprintf(path, sizeof(path), "%s/golden/engram.json", dir);
    golden = json_load_file(path, 0, NULL);
    (void) snprintf(path, sizeof(path), "%s/golden/prompts.json", dir);
    prompts = json_load_file(path, 0, NULL);
    CHECK(golden != NULL && prompts != NULL);
    text = read_file(dir, "tokenizer.json", &len);
    CHECK_EQ_INT(di_vocab_open_hf(text, len, &vocab, &err), DI_OK);
    CHECK_EQ_STR(err.text, "");
    free(text);
    if (vocab == NULL)
        return;

    n = di_vocab_size(vocab);
    map = malloc(n * sizeof(*map));
    CHECK_EQ_INT(di_vocab_compress(vocab, map, &n_ids), DI_OK);
    CHECK_EQ_INT(n_ids, json_integer_value(
                     json_object_get(golden, "compressed_vocab_size")));
    for (uint32_t i = 0; i < n; i++) {
        sum += (i + 1) * (int64_t) map[i];
        if (i < 400)
            CHECK_EQ_INT(map[i], json_integer_value(json_array_get(
                             json_object_get(golden, "table_head"), i)));
    }
    CHECK_EQ_INT(sum % (1LL << 61), json_integer_value(
                     json_object_get(golden, "table_checksum")));

    di_v41_engram_primes(c, e);
    di_v41_engram_multipliers(c, n_ids, e);
    check_tables(c, e, golden);
    check_rows(c, e, map, prompts, golden);
    free(map);
    di_vocab_close(vocab);
    json_decref(golden);
    json_decref(prompts);
}

/* ------------------------------------------------------------- refusals -- */

/* Each line replaces a piece of tiny-v41's config.json; the error must name
 * what is wrong. */
static const struct {
    const char *old;
    const char *new;
    const char *text;            /* part of the error                       */
} wrong[] = {
    { "\"deepseek_v41\",", "\"deepseek_v4\",", "model_type" },
    { "DeepseekV41ForCausalLM", "DeepseekV4ForCausalLM", "architectures" },
    { "\"ue8m0\"", "\"float\"", "scale_fmt" },
    { "\"fp4\"", "\"fp8\"", "expert_dtype" },
    { "\"silu\"", "\"gelu\"", "hidden_act" },
    { "\"sqrtsoftplus\"", "\"sigmoid\"", "scoring_func" },
    { "\"num_key_value_heads\": 1", "\"num_key_value_heads\": 2",
      "num_key_value_heads is 2" },
    { "\"o_groups\": 2", "\"o_groups\": 3", "o_groups" },
    { "\"hidden_size\": 96", "\"hidden_size\": 97", "no multiple" },
    { "\"hidden_size\": 96", "\"hidden_size\": \"96\"", "not an integer" },
    { "\"rms_norm_eps\"", "\"rms_norm_epsilon\"", "rms_norm_eps is missing" },
    { "\"candidate_block_size\": 8", "\"candidate_block_size\": 9",
      "candidate_block_size" },
    { "\"candidate_topk_blocks\": 16", "\"candidate_topk_blocks\": 4",
      "candidate_topk_blocks" },
    { "\"num_experts_per_tok\": 3", "\"num_experts_per_tok\": 17",
      "num_experts_per_tok" },
    { "\"num_nextn_predict_layers\": 2", "\"num_nextn_predict_layers\": 1",
      "compress_ratios" },
    { "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true",
      "tie_word_embeddings" },
    { "{", "[", "config.json" },
    { "[\n      32,\n      32\n    ]", "[128, 128]", "weight_block_size" },
    { "\"dynamic\"", "\"static\"", "activation_scheme" },
    { "\"quant_method\": \"fp8\"", "\"quant_method\": \"int8\"",
      "quant_method is int8, expected fp8" },
    { "\"bfloat16\"", "\"float16\"", "dtype is float16, expected bfloat16" },
    { "\"DeepseekV41ForCausalLM\"", "\"DeepseekV41ForCausalLM\", \"X\"",
      "architectures" },
    { "\"native\"", "\"other\"", "expected native or release" },
    { "\"text_config\"", "\"text_conf\"", "text_config is missing" },
    { "\"noaux_tc\"", "\"greedy\"", "topk_method is greedy" },
    { "\"norm_topk_prob\": true", "\"norm_topk_prob\": false",
      "norm_topk_prob" },
    { "\"attention_bias\": false", "\"attention_bias\": true",
      "attention_bias" },
    { "\"attention_dropout\": 0.0", "\"attention_dropout\": 0.1",
      "attention_dropout" },
    { "\"hc_mult\"", "\"hc_shifted\": false, \"hc_mult\"", "hc_shifted" },
    { "\"dspark_block_size\"",
      "\"dspark_target_attn_input\": false, \"dspark_block_size\"",
      "dspark_target_attn_input" },
    { "\"rope_type\": \"yarn\"", "\"rope_type\": \"linear\"",
      "rope_scaling.rope_type is linear" },
    { "\"qk_rope_head_dim\": 16", "\"qk_rope_head_dim\": 66",
      "qk_rope_head_dim is 66" },
    { "\"moe_intermediate_size\": 64", "\"moe_intermediate_size\": 65",
      "moe_intermediate_size" },
    { "\"hc_mult\": 4", "\"hc_mult\": 9", "hc_mult is 9" },
    { "\"index_head_dim\": 32", "\"index_head_dim\": 48", "index_head_dim" },
    { "\"candidate_topk_blocks\": 16", "\"candidate_topk_blocks\": 20",
      "no multiple of 8" },
    { "\"candidate_source_layer_id\": 4", "\"candidate_source_layer_id\": 5",
      "selects nothing" },
    { "\"candidate_source_layer_id\": 4", "\"candidate_source_layer_id\": 1",
      "other index keys" },
    { "\"dspark_markov_rank\": 32", "\"dspark_markov_rank\": 0",
      "dspark_markov_rank" },
    { "\"dspark_num_experts_per_tok\": 2", "\"dspark_num_experts_per_tok\": 9",
      "dspark_num_experts_per_tok is 9 of 8" },
    { "\"engram_compressed_vocab_size\": 2138",
      "\"engram_compressed_vocab_size\": 0",
      "engram_compressed_vocab_size is 0" },
    { "\"engram_head_dim\": 32", "\"engram_head_dim\": 33",
      "engram_head_dim" },
    { "\"engram_pad_token_id\": 2", "\"engram_pad_token_id\": 2560",
      "engram_pad_token_id is 2560" },
    { "\"sliding_window\": 128", "\"sliding_window\": 4097",
      "sliding_window is 4097" },
    { "\"max_position_embeddings\": 8192",
      "\"max_position_embeddings\": 1048577", "max_position_embeddings" },
};

/* Keys of text_config, set to something else as JSON; likewise. */
static const struct {
    const char *key, *value;
    const char *key2, *value2;   /* NULL: one is enough                     */
    const char *text;
} set[] = {
    { "compress_ratios", "[0,2,2,2,1,1,1,0,3]", NULL, NULL,
      "compress_ratios is 3" },
    { "compress_ratios", "[0,2,2,2,1,2,1,0,0]", NULL, NULL,
      "has no source of ratio 2 for layer 5" },
    { "compress_ratios", "[0,2,2,2,1,0,1,0,0]", NULL, NULL,
      "is 0 at layer 5, behind the first of ratio 1" },
    { "kv_source_layer_ids", "[1,3]", NULL, NULL,
      "has no source of ratio 1 for layer 4" },
    { "kv_source_layer_ids", "[0,1,3,4]", NULL, NULL,
      "names layer 0 of ratio 0" },
    { "kv_source_layer_ids", "[1,3,4,6]", NULL, NULL, "behind the first" },
    { "kv_source_layer_ids", "[1,3,4,7]", NULL, NULL,
      "kv_source_layer_ids is 7" },
    { "kv_source_layer_ids", "4", NULL, NULL, "is not a list" },
    { "index_source_layer_ids", "[1,4,6]", NULL, NULL,
      "don't refine index_k_source_layer_ids at layer 3" },
    { "index_k_source_layer_ids", "[1,4]", NULL, NULL,
      "don't refine kv_source_layer_ids at layer 3" },
    { "index_k_source_layer_ids", "[1,2,3,4]", "index_source_layer_ids",
      "[1,2,3,4,6]", "no source of KV" },
    { "engram_layer_ids", "[0,4]", NULL, NULL, "among consumers" },
    { "engram_layer_ids", "[0,0]", NULL, NULL, "0 twice" },
    { "dspark_target_layer_ids", "[3,4,5]", NULL, NULL, "producer 3" },
    { "dspark_target_layer_ids", "[]", NULL, NULL, "is missing" },
    { "dspark_noise_token_id", "2560", NULL, NULL, "dspark_noise_token_id" },
    { "index_n_heads", "256", "index_head_dim", "1024",
      "index_n_heads is 256 of 1024" },
    { "sliding_window", "4096", "head_dim", "512", "more than fits" },
};

/* tiny-v41's configuration with one or two keys set. */
static void
test_set(void)
{
    size_t  len;
    char   *text = read_file("t/data/tiny-v41-fp8", "config.json", &len);

    for (size_t i = 0; i < sizeof(set) / sizeof(set[0]); i++) {
        json_t       *o = json_loads(text, 0, NULL);
        json_t       *c = json_object_get(o, "text_config");
        di_v41_conf_t conf;
        di_err_t      err = { 0 };
        char         *changed;

        (void) json_object_set_new(c, set[i].key, json_loads(
                                       set[i].value, JSON_DECODE_ANY, NULL));
        if (set[i].key2 != NULL)
            (void) json_object_set_new(c, set[i].key2, json_loads(
                                   set[i].value2, JSON_DECODE_ANY, NULL));
        changed = json_dumps(o, 0);
        CHECK(di_v41_conf_parse(changed, strlen(changed), &conf, &err)
              != DI_OK);
        if (strstr(err.text, set[i].text) == NULL)
            CHECK_EQ_STR(err.text, set[i].text);
        free(changed);
        json_decref(o);
    }
    free(text);
}

static void
test_wrong(void)
{
    size_t len;
    char  *text = read_file("t/data/tiny-v41-fp8", "config.json", &len);

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        char          changed[8192];
        const char   *at = strstr(text, wrong[i].old);
        di_v41_conf_t c;
        di_err_t      err = { 0 };
        int           n;

        CHECK(at != NULL);
        if (at == NULL) {
            printf("%s\n", wrong[i].old);
            continue;
        }
        n = snprintf(changed, sizeof(changed), "%.*s%s%s",
                     (int) (at - text), text, wrong[i].new,
                     at + strlen(wrong[i].old));
        CHECK(di_v41_conf_parse(changed, (size_t) n, &c, &err) != DI_OK);
        if (strstr(err.text, wrong[i].text) == NULL)
            CHECK_EQ_STR(err.text, wrong[i].text);
    }

    /* Any beginning of the file is refused. */
    for (size_t n = 0; n + 2 < len; n += 7) {
        di_v41_conf_t c;
        di_err_t      err = { 0 };

        CHECK(di_v41_conf_parse(text, n, &c, &err) != DI_OK);
        CHECK(err.text[0] != '\0');
    }
    free(text);
}

/* Of tiny-v41, from the reference's own float32 (Config.freqs of
 * v41_reference.py): plain, and by YaRN. */
static void
test_freqs(const di_v41_conf_t *c)
{
    static const float want[2][8] = {
        { 1.0f, 0x1.43d136p-2f, 0x1.99999ap-4f, 0x1.030dc6p-5f,
          0x1.47ae14p-7f, 0x1.9e7c70p-9f, 0x1.0624dep-10f, 0x1.4b96c0p-12f },
        { 1.0f, 0x1.3ad69ep-3f, 0x1.333332p-6f, 0x1.6e5b7ep-11f,
          0x1.47ae14p-13f, 0x1.2515fep-15f, 0x1.0624dep-17f,
          0x1.d4effep-20f } };
    float freqs[8];

    CHECK_EQ_INT(c->rope_dim, 16);
    for (uint32_t ratio = 0; ratio < 2; ratio++) {
        di_v41_freqs(c, ratio, freqs);
        for (size_t i = 0; i < 8; i++)
            CHECK(freqs[i] == want[ratio][i]);
    }
}

int
main(void)
{
    di_v41_conf_t c;

    parse_file("t/data", "v41-flash-config.json", &c);
    test_flash(&c);
    parse_file("t/data/tiny-v41", "config.json", &c);
    CHECK(!c.quantised);
    test_engram(&c, "t/data/tiny-v41");
    test_freqs(&c);
    parse_file("t/data/tiny-v41-fp8", "config.json", &c);
    CHECK(c.quantised);
    test_wrong();
    test_set();
    return check_done("v41_conf");
}
