/*
 * vocab.c - vocabularies: vectors of the reference implementation, the seal,
 * the limits, and damaged metadata.
 *
 * The vectors (t/data/tokenizer, with the script that made them) cover three
 * small vocabularies that lie beside them, and SmolLM2's where the model
 * file is to be found.
 */

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include <jansson.h>

#include "tokenizer/vocab/di_vocab.h"

#include "check.h"
#include "gguf_make.h"
#include "nomem.h"

#define DATA      "t/data/tokenizer/"
#define N_THREADS 4

typedef struct {
    char    *text;
    size_t   len;
    bool     raw;
    int32_t *ids;               /* expected                                 */
    size_t   n;
} case_t;

typedef struct {
    case_t *cases;
    size_t  n;
} cases_t;

static void *
need(void *p)
{
    if (p == NULL)
        abort();
    return p;
}

static void
read_case(case_t *c, const char *line, size_t len)
{
    json_t *json = json_loadb(line, len, JSON_ALLOW_NUL, NULL);
    json_t *ids = json_object_get(json, "ids"), *text;

    text = need(json_object_get(json, "text"));
    c->len = json_string_length(text);
    c->text = need(malloc(c->len + 1));
    memcpy(c->text, json_string_value(text), c->len + 1);
    c->raw = json_is_true(json_object_get(json, "raw"));
    c->n = json_array_size(ids);
    c->ids = need(calloc(c->n + 1, sizeof(*c->ids)));
    for (size_t i = 0; i < c->n; i++)
        c->ids[i] = (int32_t) json_integer_value(json_array_get(ids, i));
    json_decref(json);
}

static cases_t
read_cases(const char *path)
{
    cases_t cases = { NULL, 0 };
    char   *line = NULL;
    size_t  room = 0;
    ssize_t len;
    FILE   *f = fopen(path, "r");

    if (f == NULL) {
        perror(path);
        exit(1);
    }
    while ((len = getline(&line, &room, f)) > 0) {
        cases.cases = need(realloc(cases.cases, (cases.n + 1)
                                                * sizeof(case_t)));
        read_case(&cases.cases[cases.n++], line, (size_t) len);
    }
    free(line);
    fclose(f);
    return cases;
}

static void
free_cases(cases_t *cases)
{
    for (size_t i = 0; i < cases->n; i++) {
        free(cases->cases[i].text);
        free(cases->cases[i].ids);
    }
    free(cases->cases);
}

static di_vocab_t *
open_vocab(const char *path)
{
    di_err_t    err = { 0 };
    di_gguf_t  *gguf;
    di_vocab_t *vocab = NULL;

    if (di_gguf_open(path, &gguf, &err) != DI_OK
        || di_vocab_open_gguf(gguf, &vocab, &err) != DI_OK)
    {
        printf("%s: %s\n", path, err.text);
        exit(1);
    }
    di_gguf_close(gguf);
    return vocab;
}

static bool
same_ids(di_tok_t *tok, const case_t *c)
{
    int32_t *ids = need(calloc(c->len + 1, sizeof(*ids)));
    size_t   n = 0;
    int      rc;
    bool     same;

    rc = (c->raw ? di_tok_encode_raw : di_tok_encode)(tok, c->text, c->len,
                                                      ids, c->len, &n);
    same = rc == DI_OK && n == c->n
           && memcmp(ids, c->ids, n * sizeof(*ids)) == 0;
    free(ids);
    return same;
}

/* The bytes of the ids are the text, less what has no token. */
static void
check_bytes(const di_vocab_t *v, const case_t *c)
{
    size_t pos = 0, len;
    bool   fits = true;

    for (size_t i = 0; i < c->n && fits; i++) {
        const char *s = di_vocab_bytes(v, c->ids[i], &len);

        for (size_t k = 0; s != NULL && k < len; k++) {
            while (pos < c->len && c->text[pos] != s[k])
                pos++;
            fits = fits && pos++ < c->len;
        }
    }
    CHECK(fits);
}

/* Room for fewer ids than the text has: the count, and the first ids. */
static void
check_limit(di_tok_t *tok, const case_t *c)
{
    int32_t *ids = need(malloc((c->n + 1) * sizeof(*ids)));
    size_t   n = 0, cap = c->n / 2;
    int      rc;

    ids[cap] = -7;
    rc = di_tok_encode(tok, c->text, c->len, ids, cap, &n);
    CHECK_EQ_INT(rc, c->n > cap ? DI_ELIMIT : DI_OK);
    CHECK_EQ_INT(n, c->n);
    CHECK_EQ_INT(ids[cap], -7);
    CHECK(memcmp(ids, c->ids, cap * sizeof(*ids)) == 0);
    CHECK_EQ_INT(di_tok_encode(tok, c->text, c->len, ids, c->n, &n), DI_OK);
    free(ids);
}

static void
test_vectors(const di_vocab_t *v, const cases_t *cases, const char *name)
{
    di_tok_t *tok, *fresh;

    CHECK_EQ_INT(di_tok_open(v, &tok), DI_OK);
    for (size_t i = 0; i < cases->n; i++) {
        const case_t *c = &cases->cases[i];

        /* With a cache that knows the other texts, itself, and nothing. */
        CHECK_EQ_INT(di_tok_open(v, &fresh), DI_OK);
        if (!same_ids(tok, c) || !same_ids(tok, c) || !same_ids(fresh, c)) {
            printf("%s, text %zu: \"%.60s\"\n", name, i + 1, c->text);
            CHECK(!"ids differ");
        }
        di_tok_close(fresh);
        check_bytes(v, c);
        if (!c->raw)
            check_limit(tok, c);
    }
    di_tok_close(tok);
}

static bool
is_sealed(const di_vocab_t *v, int32_t id)
{
    size_t      len;
    const char *s = di_vocab_bytes(v, id, &len);

    return di_vocab_is_special(v, id) || di_vocab_special(v, s, len) == id;
}

static void
check_sealed(const di_vocab_t *v, di_tok_t *tok, const char *text,
             size_t len)
{
    int32_t *ids = need(calloc(len + 1, sizeof(*ids)));
    size_t   n = 0, sealed = 0;

    CHECK_EQ_INT(di_tok_encode(tok, text, len, ids, len, &n), DI_OK);
    for (size_t i = 0; i < n; i++)
        sealed += is_sealed(v, ids[i]);
    CHECK_EQ_INT(sealed, 0);
    free(ids);
}

/* Spell every special token in ordinary text, alone and in company; raw, it
 * is its id. */
static void
test_seal(const di_vocab_t *v)
{
    di_tok_t *tok;
    size_t    n_special = 0;

    CHECK_EQ_INT(di_tok_open(v, &tok), DI_OK);
    for (int32_t id = 0; id < (int32_t) di_vocab_size(v); id++) {
        size_t      len, n = 0;
        const char *s = di_vocab_bytes(v, id, &len);
        char        text[512];
        int32_t     got[512];
        int         text_len;

        if (!is_sealed(v, id))
            continue;
        n_special++;
        check_sealed(v, tok, s, len);
        text_len = snprintf(text, sizeof(text), "x %.*s%.*s\n%.*s.%.*s",
                            (int) len, s, (int) len, s, (int) len, s,
                            (int) len - 1, s);
        check_sealed(v, tok, text, (size_t) text_len);

        CHECK_EQ_INT(di_vocab_special(v, s, len), id);
        CHECK_EQ_INT(di_vocab_special(v, s, len - 1) == id, 0);
        CHECK_EQ_INT(di_tok_encode_raw(tok, s, len, got, 512, &n), DI_OK);
        CHECK(n == 1 && got[0] == id);
    }
    CHECK(n_special > 2);
    CHECK_EQ_INT(di_vocab_special(v, "", 0), -1);
    CHECK_EQ_INT(di_vocab_special(v, "the", 3), -1);
    di_tok_close(tok);
}

static void
test_ids(const di_vocab_t *v)
{
    const int32_t *ends;
    size_t         len = 1, n = di_vocab_end_ids(v, &ends);

    CHECK(n > 0);
    for (size_t i = 0; i < n; i++) {
        CHECK(di_vocab_is_end(v, ends[i]));
        CHECK(di_vocab_is_special(v, ends[i]));
    }
    CHECK(di_vocab_bytes(v, -1, &len) == NULL);
    CHECK(di_vocab_bytes(v, (int32_t) di_vocab_size(v), &len) == NULL);
    CHECK(!di_vocab_is_special(v, -1));
    CHECK(!di_vocab_is_special(v, (int32_t) di_vocab_size(v)));
    CHECK(!di_vocab_is_end(v, -1));
}

typedef struct {
    const di_vocab_t *vocab;
    const cases_t    *cases;
    size_t            different;
} worker_t;

static void *
work(void *arg)
{
    worker_t *w = arg;
    di_tok_t *tok;

    if (di_tok_open(w->vocab, &tok) != DI_OK)
        return NULL;
    for (size_t i = 0; i < w->cases->n; i++)
        w->different += !same_ids(tok, &w->cases->cases[i]);
    di_tok_close(tok);
    return NULL;
}

static void
test_threads(const di_vocab_t *v, const cases_t *cases)
{
    pthread_t threads[N_THREADS];
    worker_t  workers[N_THREADS];

    for (int i = 0; i < N_THREADS; i++) {
        workers[i] = (worker_t) { v, cases, 0 };
        if (pthread_create(&threads[i], NULL, work, &workers[i]) != 0)
            abort();
    }
    for (int i = 0; i < N_THREADS; i++) {
        pthread_join(threads[i], NULL);
        CHECK_EQ_INT(workers[i].different, 0);
    }
}

static void
test_small(const char *name, bool add_bos)
{
    char        path[256];
    di_vocab_t *v;
    cases_t     cases;

    snprintf(path, sizeof(path), DATA "%s.gguf", name);
    v = open_vocab(path);
    snprintf(path, sizeof(path), DATA "%s.jsonl", name);
    cases = read_cases(path);
    CHECK(cases.n > 300);

    test_vectors(v, &cases, name);
    test_seal(v);
    test_ids(v);
    test_threads(v, &cases);
    CHECK_EQ_INT(di_vocab_add_bos(v), add_bos);
    CHECK(di_vocab_is_special(v, di_vocab_bos(v)));

    free_cases(&cases);
    di_vocab_close(v);
}

static void
test_smollm2(void)
{
    const char *path = getenv("TEST_DEEPINFER_MODEL"), *home = getenv("HOME");
    char        cached[4096];
    di_vocab_t *v;
    cases_t     cases;

    if (path == NULL) {
        snprintf(cached, sizeof(cached), "%s/.cache/ngx_deepinfer/"
                 "SmolLM2-135M-Instruct.Q4_1.gguf", home ? home : "");
        path = cached;
    }
    if (access(path, R_OK) != 0) {
        printf("SKIP SmolLM2's vectors: no model at %s\n", path);
        return;
    }
    v = open_vocab(path);
    if (di_vocab_size(v) != 49152
        || di_vocab_special(v, "<jupyter_script>", 16) < 0)
    {
        printf("SKIP SmolLM2's vectors: %s is another model\n", path);
        di_vocab_close(v);
        return;
    }

    cases = read_cases(DATA "smollm2.jsonl");
    test_vectors(v, &cases, "smollm2");
    test_seal(v);
    test_ids(v);
    test_threads(v, &cases);
    CHECK(!di_vocab_add_bos(v));
    CHECK_EQ_INT(di_vocab_bos(v), 1);
    CHECK(di_vocab_is_end(v, 0));
    CHECK(di_vocab_is_end(v, 2));
    CHECK(!di_vocab_is_end(v, 1));
    free_cases(&cases);
    di_vocab_close(v);
}

/* A vocabulary of "a", "b", "ab", " ab" and tokens of other kinds, with one
 * thing changed: the value of a key, or its absence (a value of ""). */
enum { TOKENS = 9 };

typedef struct {
    const char *model, *pre;
    const char *tokens[TOKENS];
    int32_t     types[TOKENS];
    uint32_t    n_types;
    const char *merges[3];
    uint32_t    n_merges;
    uint32_t    bos, eos;       /* UINT32_MAX: no key                       */
    int         add_bos;        /* -1: no key; 2: of another type           */
} spec_t;

static const spec_t valid = {
    "gpt2", "gpt-2",
    { "a", "b", "\u0120", "ab", "\u0120ab", "<bos>", "</s>", "<tool>",
      "[PAD]" },
    { 1, 1, 1, 1, 1, 3, 3, 4, 5 }, TOKENS,
    { "a b", "\u0120 ab", "a a" }, 2, 5, 6, -1,
};

static void
make_strs(make_t *m, const char *key, const char *const *s, uint32_t n)
{
    make_key(m, key, 9);
    make_put_u32(&m->kv, 8);
    make_put_u64(&m->kv, n);
    for (uint32_t i = 0; i < n; i++)
        make_put_str(&m->kv, s[i]);
}

static int
open_spec(const spec_t *s, di_vocab_t **v, di_err_t *err)
{
    static make_t m;
    make_bytes_t  file;
    di_gguf_t    *gguf;
    int           rc;

    memset(&m, 0, sizeof(m));
    if (*s->model != '\0')
        make_str(&m, "tokenizer.ggml.model", s->model);
    if (*s->pre != '\0')
        make_str(&m, "tokenizer.ggml.pre", s->pre);
    make_strs(&m, "tokenizer.ggml.tokens", s->tokens, TOKENS);
    if (s->n_types > 0) {
        make_key(&m, "tokenizer.ggml.token_type", 9);
        make_put_u32(&m.kv, 5);
        make_put_u64(&m.kv, s->n_types);
        make_put(&m.kv, s->types, s->n_types * sizeof(*s->types));
    }
    if (s->n_merges != UINT32_MAX)
        make_strs(&m, "tokenizer.ggml.merges", s->merges, s->n_merges);
    if (s->bos != UINT32_MAX)
        make_u32(&m, "tokenizer.ggml.bos_token_id", s->bos);
    if (s->eos != UINT32_MAX)
        make_u32(&m, "tokenizer.ggml.eos_token_id", s->eos);
    if (s->add_bos == 2) {
        make_str(&m, "tokenizer.ggml.add_bos_token", "yes");
    } else if (s->add_bos >= 0) {
        make_key(&m, "tokenizer.ggml.add_bos_token", 7);
        make_put(&m.kv, s->add_bos ? "\1" : "\0", 1);
    }

    make_file(&m, &file);
    if (di_gguf_open_memory(file.data, file.len, &gguf, err) != DI_OK)
        abort();
    rc = di_vocab_open_gguf(gguf, v, err);
    di_gguf_close(gguf);
    free(file.data);
    make_free(&m);
    return rc;
}

static void
check_refused(const spec_t *s, int code, const char *part)
{
    di_err_t    err = { 0 };
    di_vocab_t *v = NULL;
    int         rc = open_spec(s, &v, &err);

    CHECK_EQ_INT(rc, code);
    if (strstr(err.text, part) == NULL)
        CHECK_EQ_STR(err.text, part);
    if (rc == DI_OK)
        di_vocab_close(v);
}

static void
test_valid_spec(void)
{
    di_err_t    err = { 0 };
    di_vocab_t *v;
    di_tok_t   *tok;
    int32_t     ids[16];
    size_t      n = 0, len = 1;
    spec_t      s = valid;

    CHECK_EQ_INT(open_spec(&s, &v, &err), DI_OK);
    CHECK_EQ_STR(err.text, "");
    CHECK_EQ_INT(di_tok_open(v, &tok), DI_OK);
    CHECK_EQ_INT(di_tok_encode(tok, "ab ab<tool>b", 12, ids, 16, &n), DI_OK);
    CHECK_EQ_INT(n, 3);         /* what spells <tool> has no tokens here     */
    CHECK(ids[0] == 3 && ids[1] == 4 && ids[2] == 1);
    CHECK_EQ_INT(di_tok_encode_raw(tok, "ab ab<tool>b", 12, ids, 16, &n),
                 DI_OK);
    CHECK_EQ_INT(n, 4);
    CHECK_EQ_INT(ids[2], 7);
    CHECK(!di_vocab_is_special(v, 7));
    CHECK_EQ_INT(di_vocab_special(v, "<tool>", 6), 7);
    CHECK(di_vocab_bytes(v, 8, &len) != NULL);
    CHECK_EQ_INT(len, 0);
    CHECK_EQ_INT(di_vocab_special(v, "[PAD]", 5), -1);
    CHECK(di_vocab_is_end(v, 6));
    CHECK(!di_vocab_add_bos(v));
    di_tok_close(tok);
    di_vocab_close(v);

    /* The role makes a control token; without it the token is text. */
    s.types[5] = 1;
    s.types[6] = 1;
    s.add_bos = 1;
    CHECK_EQ_INT(open_spec(&s, &v, &err), DI_OK);
    CHECK(di_vocab_is_special(v, 5));
    CHECK(di_vocab_is_special(v, 6));
    CHECK(di_vocab_add_bos(v));
    di_vocab_close(v);
    s.bos = UINT32_MAX;
    s.add_bos = 0;
    CHECK_EQ_INT(open_spec(&s, &v, &err), DI_OK);
    CHECK(!di_vocab_is_special(v, 5));
    CHECK_EQ_INT(di_vocab_bos(v), -1);
    di_vocab_close(v);
}

static void
test_damaged(void)
{
    spec_t s;

#define DAMAGED(change, code, part)                                         \
    do {                                                                    \
        s = valid;                                                          \
        change;                                                             \
        check_refused(&s, code, part);                                      \
    } while (0)

    DAMAGED(s.model = "", DI_EFORMAT, "\"tokenizer.ggml.model\" is missing");
    DAMAGED(s.model = "llama", DI_EUNSUPPORTED, "\"llama\"");
    DAMAGED(s.pre = "", DI_EFORMAT, "\"tokenizer.ggml.pre\" is missing");
    DAMAGED(s.pre = "tek\nken", DI_EUNSUPPORTED, "\"tek?ken\"");
    DAMAGED(s.n_types = 0, DI_EFORMAT, "token_type");
    DAMAGED(s.n_types = TOKENS - 1, DI_EFORMAT, "token_type");
    DAMAGED(s.types[1] = 0, DI_EFORMAT, "token 1 has type 0");
    DAMAGED(s.types[1] = 6, DI_EUNSUPPORTED, "token 1 has type 6");
    DAMAGED(s.n_merges = UINT32_MAX, DI_EFORMAT, "merges\" is missing");
    DAMAGED(s.merges[0] = "ab", DI_EFORMAT, "rule 0");
    DAMAGED(s.merges[1] = "a c", DI_EFORMAT, "rule 1");
    DAMAGED(s.merges[1] = "a ", DI_EFORMAT, "rule 1");
    DAMAGED(s.n_merges = 3, DI_EFORMAT, "rule 2");
    DAMAGED(s.types[3] = 3, DI_EFORMAT, "rule 0");
    DAMAGED(s.eos = 3, DI_EFORMAT, "rule 0");
    DAMAGED(s.merges[0] = valid.merges[1]; s.merges[1] = valid.merges[0],
            DI_EUNSUPPORTED, "rule 0 comes before");
    DAMAGED(s.bos = TOKENS, DI_EFORMAT, "bos_token_id");
    DAMAGED(s.eos = UINT32_MAX - 1, DI_EFORMAT, "eos_token_id");
    DAMAGED(s.add_bos = 2, DI_EFORMAT, "add_bos_token");
    DAMAGED(s.add_bos = 1; s.bos = UINT32_MAX, DI_EFORMAT, "add_bos_token");
#undef DAMAGED
}

static void
test_nomem(void)
{
    di_gguf_t  *gguf;
    di_vocab_t *v;
    di_tok_t   *tok;
    size_t      n_ids = 0;
    char       *text = need(calloc(1, 1000));
    int32_t    *ids = need(calloc(1000, sizeof(*ids)));
    int         n, rc;

    CHECK_EQ_INT(di_gguf_open(DATA "llama3.gguf", &gguf, NULL), DI_OK);
    for (n = 0; n < 100; n++) {
        nomem_after(n);
        rc = di_vocab_open_gguf(gguf, &v, NULL);
        if (!nomem_off())
            break;
        CHECK_EQ_INT(rc, DI_ENOMEM);
    }
    CHECK_EQ_INT(rc, DI_OK);
    CHECK(n >= 15 * NOMEM && n < 100);
    di_gguf_close(gguf);

    for (n = 0; n < 10; n++) {
        nomem_after(n);
        rc = di_tok_open(v, &tok);
        if (!nomem_off())
            break;
        CHECK_EQ_INT(rc, DI_ENOMEM);
    }
    CHECK_EQ_INT(rc, DI_OK);
    CHECK_EQ_INT(n, 3 * NOMEM);     /* it and the tables of its cache */

    memset(text, 'e', 1000);
    nomem_after(0);
    rc = di_tok_encode(tok, text, 1000, ids, 1000, &n_ids);
    CHECK_EQ_INT(rc, nomem_off() ? DI_ENOMEM : DI_OK);
    CHECK_EQ_INT(di_tok_encode(tok, text, 1000, ids, 1000, &n_ids), DI_OK);
    CHECK_EQ_INT(di_tok_encode(tok, text, (size_t) INT32_MAX + 1, ids, 1000,
                               &n_ids), DI_ELIMIT);
    CHECK_EQ_INT(n_ids, 0);
    di_tok_close(tok);
    di_tok_close(NULL);
    di_vocab_close(v);
    di_vocab_close(NULL);
    free(text);
    free(ids);
}

int
main(void)
{
    test_small("gpt2", false);
    test_small("qwen2", false);
    test_small("llama3", true);
    test_smollm2();
    test_valid_spec();
    test_damaged();
    test_nomem();
    return check_done("vocab");
}
