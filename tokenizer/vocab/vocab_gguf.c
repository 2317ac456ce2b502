/*
 * vocab_gguf.c - vocabularies from GGUF metadata.
 *
 * Files exist whose bos, eos or eot has no control type; the role makes it
 * one.
 */

#include <stdlib.h>
#include <string.h>

#include "build.h"

/* Type numbers of tokenizer.ggml.token_type. */
enum {
    GGUF_TYPE_NORMAL = 1,
    GGUF_TYPE_UNKNOWN = 2,
    GGUF_TYPE_CONTROL = 3,
    GGUF_TYPE_USER = 4,
    GGUF_TYPE_UNUSED = 5,
    GGUF_TYPE_BYTE = 6,
};

typedef struct {
    di_build_t       b;
    const di_gguf_t *gguf;
} gguf_build_t;

/* Check an array's presence and size; *v: its strings, owned by the caller
 * whatever is returned. */
static int
gguf_read_strings(gguf_build_t *b, const char *key, uint64_t max,
                   di_str_t **v, uint64_t *n)
{
    int rc = di_gguf_array(b->gguf, key, n);

    if (rc != DI_OK)
        return di_err_set(b->b.err, DI_EFORMAT, 0, "GGUF key \"%s\" is %s", key,
                          rc == DI_EINVAL ? "missing" : "no array");
    if (*n > max)
        return di_err_set(b->b.err, DI_EUNSUPPORTED, 0, "GGUF key \"%s\": more "
                          "than %llu elements are not supported", key,
                          (unsigned long long) max);

    *v = calloc(*n + 1, sizeof(**v));
    if (*v == NULL)
        return di_build_nomem(&b->b);
    if (di_gguf_array_str(b->gguf, key, *v, *n) != DI_OK)
        return di_err_set(b->b.err, DI_EFORMAT, 0, "GGUF key \"%s\" is no "
                          "array of strings", key);
    return DI_OK;
}

/* Read an optional id; -1 if the key is missing. */
static int
gguf_read_id(gguf_build_t *b, const di_vocab_t *v, const char *key,
              int32_t *id)
{
    uint64_t u;
    int      rc = di_gguf_u64(b->gguf, key, &u);

    *id = -1;
    if (rc == DI_EINVAL)
        return DI_OK;
    if (rc != DI_OK || u >= v->size)
        return di_err_set(b->b.err, DI_EFORMAT, 0, "GGUF key \"%s\" is no "
                          "token id", key);
    *id = (int32_t) u;
    return DI_OK;
}

static int
gguf_read_kinds(gguf_build_t *b, di_vocab_t *v)
{
    static const char key[] = "tokenizer.ggml.token_type";
    int64_t *types = calloc(v->size, sizeof(*types));
    uint64_t n = 0;
    int      rc = DI_OK;

    v->kinds = calloc(v->size, sizeof(*v->kinds));
    if (types == NULL || v->kinds == NULL) {
        rc = di_build_nomem(&b->b);
        goto done;
    }
    if (di_gguf_array(b->gguf, key, &n) != DI_OK || n != v->size
        || di_gguf_array_i64(b->gguf, key, types, n) != DI_OK)
    {
        rc = di_err_set(b->b.err, DI_EFORMAT, 0, "GGUF key \"%s\" is no array "
                        "of %u integers", key, v->size);
        goto done;
    }

    for (uint32_t i = 0; i < v->size; i++) {
        switch (types[i]) {
        case GGUF_TYPE_NORMAL:
            v->kinds[i] = DI_VOCAB_NORMAL;
            break;
        case GGUF_TYPE_UNKNOWN:
        case GGUF_TYPE_CONTROL:
            v->kinds[i] = DI_VOCAB_CONTROL;
            break;
        case GGUF_TYPE_USER:
            v->kinds[i] = DI_VOCAB_USER;
            break;
        case GGUF_TYPE_UNUSED:
            v->kinds[i] = DI_VOCAB_UNUSED;
            break;
        default:
            rc = di_err_set(b->b.err, types[i] == GGUF_TYPE_BYTE
                                    ? DI_EUNSUPPORTED : DI_EFORMAT, 0,
                            "GGUF key \"%s\": token %u has type %lld", key, i,
                            (long long) types[i]);
            goto done;
        }
    }

done:
    free(types);
    return rc;
}

/* The roles that keys and well-known spellings give to control tokens. */
static int
gguf_read_roles(gguf_build_t *b, di_vocab_t *v)
{
    static const char *const keys[] = {
        "tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
        "tokenizer.ggml.eom_token_id",
    };
    int32_t id;
    int     rc;

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        rc = gguf_read_id(b, v, keys[i], &id);
        if (rc != DI_OK)
            return rc;
        if (id >= 0)
            v->kinds[id] = DI_VOCAB_CONTROL;
        di_vocab_add_end(v, id);
    }
    di_build_known_ends(&b->b);

    rc = gguf_read_id(b, v, "tokenizer.ggml.bos_token_id", &v->bos);
    if (rc != DI_OK)
        return rc;
    if (v->bos >= 0)
        v->kinds[v->bos] = DI_VOCAB_CONTROL;

    /* Llama 3 files leave the rule out and mean yes. */
    v->add_bos = v->bos >= 0 && v->pretok.kind == DI_PRETOK_LLAMA3;
    rc = di_gguf_bool(b->gguf, "tokenizer.ggml.add_bos_token", &v->add_bos);
    if (rc == DI_EFORMAT || (v->add_bos && v->bos < 0))
        return di_err_set(b->b.err, DI_EFORMAT, 0, "GGUF key \"tokenizer.ggml."
                          "add_bos_token\" is no boolean, or there is no "
                          "bos_token_id to add");
    return DI_OK;
}

/* The rules, each two spellings with a space between. */
static int
gguf_read_rules(gguf_build_t *b)
{
    di_str_t *strings = NULL;
    uint64_t  n = 0;
    int       rc = gguf_read_strings(b, "tokenizer.ggml.merges",
                                     DI_MERGES_MAX, &strings, &n);

    b->b.rules_at = "GGUF key \"tokenizer.ggml.merges\": rule ";
    b->b.rules_end = "";
    if (rc == DI_OK) {
        b->b.rules = calloc(n + 1, sizeof(*b->b.rules));
        if (b->b.rules == NULL)
            rc = di_build_nomem(&b->b);
    }
    for (uint64_t i = 0; rc == DI_OK && i < n; i++)
        b->b.rules[i] = di_build_rule(strings[i]);
    b->b.n_rules = n;
    free(strings);
    return rc;
}

static int
gguf_read_model(gguf_build_t *b, di_pretok_kind_t *kind)
{
    di_str_t s;

    if (di_gguf_str(b->gguf, "tokenizer.ggml.model", &s) != DI_OK)
        return di_err_set(b->b.err, DI_EFORMAT, 0, "GGUF key \"tokenizer.ggml."
                          "model\" is missing or no string");
    if (s.len != 4 || memcmp(s.data, "gpt2", 4) != 0)
        return di_err_set(b->b.err, DI_EUNSUPPORTED, 0, "tokenizer model "
                          "\"%s\" is not supported, only \"gpt2\"",
                          di_build_show(s).text);

    if (di_gguf_str(b->gguf, "tokenizer.ggml.pre", &s) != DI_OK)
        return di_err_set(b->b.err, DI_EFORMAT, 0, "GGUF key \"tokenizer.ggml."
                          "pre\" is missing or no string");
    if (!di_pretok_kind(s, kind))
        return di_err_set(b->b.err, DI_EUNSUPPORTED, 0, "pre-tokenizer "
                          "\"%s\" is not supported", di_build_show(s).text);
    return DI_OK;
}

/* The texts that come with a vocabulary. */
static int
gguf_read_texts(gguf_build_t *b, di_vocab_t *v)
{
    di_str_t s;
    int      rc = DI_OK;

    if (di_gguf_str(b->gguf, "tokenizer.chat_template", &s) == DI_OK) {
        rc = di_build_copy(&b->b, s, &v->template_text);
        v->template_len = s.len;
    }
    if (rc == DI_OK
        && di_gguf_str(b->gguf, "general.architecture", &s) == DI_OK)
        rc = di_build_copy(&b->b, s, &v->model_type);
    return rc;
}

static int
gguf_build(gguf_build_t *b, di_vocab_t *v)
{
    di_pretok_kind_t kind = DI_PRETOK_GPT2;
    uint64_t         n = 0;
    int              rc = gguf_read_model(b, &kind);

    if (rc == DI_OK)
        rc = gguf_read_strings(b, "tokenizer.ggml.tokens",
                               DI_MERGES_IDS_MAX - 1, &b->b.tokens, &n);
    if (rc == DI_OK && n == 0)
        rc = di_err_set(b->b.err, DI_EFORMAT, 0, "GGUF key \"tokenizer.ggml."
                        "tokens\" is empty");
    if (rc == DI_OK)
        rc = gguf_read_rules(b);
    if (rc != DI_OK)
        return rc;

    v->size = (uint32_t) n;
    b->b.words = kind == DI_PRETOK_LLAMA3;
    di_pretok_init(&v->pretok, kind);
    rc = di_build_index(&b->b);
    if (rc == DI_OK)
        rc = gguf_read_kinds(b, v);
    if (rc == DI_OK)
        rc = gguf_read_roles(b, v);
    if (rc == DI_OK)
        rc = gguf_read_texts(b, v);
    if (rc == DI_OK)
        rc = di_build_finish(&b->b);
    return rc;
}

int
di_vocab_open_gguf(const di_gguf_t *gguf, di_vocab_t **vocab, di_err_t *err)
{
    gguf_build_t b = { .gguf = gguf };
    int          rc = di_build_init(&b.b, err);

    if (rc == DI_OK)
        rc = gguf_build(&b, b.b.v);
    if (rc == DI_OK) {
        *vocab = b.b.v;
        b.b.v = NULL;
    }
    di_build_deinit(&b.b);
    return rc;
}
