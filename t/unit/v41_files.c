/*
 * v41_files.c - damaged DeepSeek-V4.1 directories: each must be refused by
 * file, tensor, and what was expected of it; and what opening reads.
 *
 * Faults are planted in the header of tiny-v41-fp8's file.  Nothing reads
 * tensors before all headers are checked, so the files are headers and a
 * hole.  One tensor of each kind (a name but for its numbers) is left out,
 * has another dtype of the same size, and another shape of as many values.
 */

#include <ctype.h>
#include <jansson.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "engine/model/di_model.h"
#include "engine/model/di_safetensors.h"

#define SOURCE    "t/data/tiny-v41-fp8"
#define FILE_NAME "model.safetensors"
#define KINDS_MAX 256

static char    dir[64];
static json_t *header;           /* of the sound file                       */
static size_t  data_bytes;       /* behind it                               */

static void
path_of(const char *name, char path[256])
{
    (void) snprintf(path, 256, "%s/%s", dir, name);
}

/* A file of a header, and a hole for the tensors but the last `short_of`. */
static void
put(json_t *o, size_t short_of)
{
    char     path[256], *text = json_dumps(o, JSON_COMPACT);
    size_t   len = strlen(text);
    uint64_t n = len;
    FILE    *f;

    path_of(FILE_NAME, path);
    f = fopen(path, "wb");
    CHECK(f != NULL && fwrite(&n, 1, 8, f) == 8
          && fwrite(text, 1, len, f) == len);
    if (f != NULL)
        (void) fclose(f);
    CHECK_EQ_INT(truncate(path, (off_t) (8 + len + data_bytes - short_of)),
                 0);
    free(text);
}

/* Open it; the error must hold every text. */
static void
refused(const char *const *texts, size_t n)
{
    di_model_conf_t conf = { .n_threads = 1, .max_rows = 16, .max_seqs = 1,
                             .max_model_len = 128 };
    di_model_t     *m = NULL;
    di_err_t        err = { 0 };

    CHECK(di_model_open(dir, &conf, &m, &err) != DI_OK && m == NULL);
    for (size_t i = 0; i < n; i++) {
        if (strstr(err.text, texts[i]) == NULL)
            CHECK_EQ_STR(err.text, texts[i]);
    }
    di_model_close(m);
}

#define REFUSED(...)                                                        \
    do {                                                                    \
        const char *const refused_texts[] = { __VA_ARGS__ };                \
                                                                            \
        refused(refused_texts, sizeof(refused_texts) / sizeof(char *));     \
    } while (0)

static void
read_header(void)
{
    FILE    *f = fopen(SOURCE "/" FILE_NAME, "rb");
    uint64_t n = 0;
    char    *text;

    CHECK(f != NULL && fread(&n, 1, 8, f) == 8);
    text = calloc(n + 1, 1);
    CHECK(fread(text, 1, n, f) == n);
    (void) fseek(f, 0, SEEK_END);
    data_bytes = (size_t) ftell(f) - 8 - n;
    (void) fclose(f);
    header = json_loads(text, 0, NULL);
    free(text);
    CHECK(header != NULL);
}

static void
copy(const char *name)
{
    char   path[256], *text;
    size_t len;
    FILE  *f;

    CHECK_EQ_INT(di_st_read_file(SOURCE, name, 1u << 24, &text, &len, NULL),
                 DI_OK);
    path_of(name, path);
    f = fopen(path, "wb");
    CHECK(f != NULL && fwrite(text, 1, len, f) == len);
    if (f != NULL)
        (void) fclose(f);
    free(text);
}

/* ---------------------------------------------------------------- faults -- */

/* Names with equal text but for digits are of one kind. */
static bool
is_new_kind(const char *name)
{
    static char kinds[KINDS_MAX][96];
    static int  n;
    char        kind[96];
    size_t      len = 0;

    for (; *name != '\0' && len + 1 < sizeof(kind); name++) {
        if (!isdigit((unsigned char) *name))
            kind[len++] = *name;
    }
    kind[len] = '\0';
    for (int i = 0; i < n; i++) {
        if (strcmp(kinds[i], kind) == 0)
            return false;
    }
    CHECK(n < KINDS_MAX);
    (void) memcpy(kinds[n++], kind, len + 1);
    return true;
}

/* Another type of as many bytes. */
static const char *
other_dtype(const char *dtype)
{
    if (strcmp(dtype, "BF16") == 0)
        return "F16";
    return strcmp(dtype, "F32") == 0 ? "I32" : "U8";
}

/* The tensor with fewer rows or columns, and as many bytes as that takes. */
static void
cut(json_t *t, json_int_t rows, json_int_t cols, json_int_t value_bytes)
{
    const json_int_t at = json_integer_value(json_array_get(
                              json_object_get(t, "data_offsets"), 0));

    (void) json_object_set_new(t, "shape", json_pack("[I, I]", rows, cols));
    (void) json_object_set_new(t, "data_offsets", json_pack(
        "[I, I]", at, at + rows * cols * value_bytes));
}

static json_int_t
value_bytes(const char *dtype)
{
    if (strcmp(dtype, "BF16") == 0)
        return 2;
    return strcmp(dtype, "F32") == 0 ? 4 : 1;
}

static void
test_tensor(const char *name, const json_t *tensor)
{
    const char *dtype = json_string_value(json_object_get(tensor, "dtype"));
    json_t     *shape = json_object_get(tensor, "shape");
    json_t     *changed = json_deep_copy(header), *t;
    json_int_t  rows = json_integer_value(json_array_get(shape, 0));
    json_int_t  cols = json_integer_value(json_array_get(shape, 1));
    char        expected[96];

    if (json_array_size(shape) == 1) {
        cols = rows;
        rows = 1;
    }
    (void) snprintf(expected, sizeof(expected), "expected %s %lldx%lld",
                    dtype, (long long) rows, (long long) cols);

    t = json_object_get(changed, name);
    (void) json_object_set_new(t, "dtype", json_string(other_dtype(dtype)));
    put(changed, 0);
    REFUSED(FILE_NAME ": tensor ", name, other_dtype(dtype), expected);

    (void) json_object_set_new(t, "dtype", json_string(dtype));
    (void) json_object_set_new(t, "shape", json_pack("[I, I, I]", rows,
                                                     (json_int_t) 1, cols));
    put(changed, 0);
    REFUSED(FILE_NAME ": tensor ", name, expected);
    if (rows != cols) {
        (void) json_object_set_new(t, "shape", json_pack("[I, I]", cols,
                                                         rows));
        put(changed, 0);
        REFUSED(FILE_NAME ": tensor ", name, expected);
    }
    for (int i = 0; i < 2; i++) {
        if ((i == 0 ? rows : cols) == 1)
            continue;
        cut(t, rows - (i == 0), cols - (i == 1), value_bytes(dtype));
        put(changed, 0);
        REFUSED(FILE_NAME ": tensor ", name, expected);
    }

    (void) json_object_del(changed, name);
    put(changed, 0);
    REFUSED("no tensor ", name, expected);
    json_decref(changed);
}

/* Nothing that the model does not have: norms of hyper-connections that are
 * not folded, a stage too many, an expert with a gap before it. */
static void
test_unknown(void)
{
    static const char *const names[] = {
        "layers.0.hc_attn_norm.weight", "mtp.2.attn_norm.weight",
        "layers.0.ffn.experts.17.w1.weight", "layers.7.attn.wkv.weight",
        "layers.0.ffn.tid2eid", "hc_head_base", "x" };

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        json_t *changed = json_deep_copy(header);

        (void) json_object_set_new(changed, names[i], json_pack(
            "{s:s, s:[i], s:[I, I]}", "dtype", "BF16", "shape", 0,
            "data_offsets", (json_int_t) 0, (json_int_t) 0));
        put(changed, 0);
        REFUSED(FILE_NAME ": tensor ", names[i], "is not known");
        json_decref(changed);
    }
}

/* A file that ends early, by a byte or in its last tensors. */
static void
test_short(void)
{
    static const size_t by[] = { 1, 2, 4096, 1u << 20 };

    for (size_t i = 0; i < sizeof(by) / sizeof(by[0]); i++) {
        put(header, by[i]);
        REFUSED(FILE_NAME ": tensor ", "bytes ");
    }
}

/* The draft module's own copies of embedding and head are let alone, and a
 * prefix of all names too.  Both come to tensors of holes: zeros. */
static void
test_sound(void)
{
    di_model_conf_t conf = { .n_threads = 1, .max_rows = 16, .max_seqs = 1,
                             .max_model_len = 128 };
    json_t         *changed = json_object(), *t;
    const char     *name;
    di_model_t     *m = NULL;
    di_err_t        err = { 0 };

    json_object_foreach(header, name, t) {
        char prefixed[128];

        (void) snprintf(prefixed, sizeof(prefixed), "model.%s", name);
        (void) json_object_set(changed, prefixed, t);
    }
    (void) json_object_set_new(changed, "mtp.0.embed.weight", json_pack(
        "{s:s, s:[i], s:[I, I]}", "dtype", "BF16", "shape", 0,
        "data_offsets", (json_int_t) 0, (json_int_t) 0));
    put(changed, 0);
    CHECK_EQ_INT(di_model_open(dir, &conf, &m, &err), DI_OK);
    CHECK_EQ_STR(err.text, "");
    di_model_close(m);
    json_decref(changed);
}

/* Values that are none, in tensors that become float32: one of each dtype. */
static void
test_not_finite(void)
{
    static const struct {
        const char *name;
        const char *bytes;
        size_t      at, n;       /* value, its bytes                        */
        const char *text;
    } cases[] = {
        { "norm.weight", "\xc0\x7f", 5, 2, "value 5 is NaN" },
        { "mtp.1.norm.weight", "\x80\xff", 0, 2, "value 0 is infinite" },
        { "layers.3.attn.attn_sink", "\x01\x00\x80\x7f", 3, 4,
          "value 3 is NaN" },
        { "layers.6.hc_ffn_scale", "\x00\x00\x80\x7f", 2, 4,
          "value 2 is infinite" },
        { "layers.0.engram.k_weight", "\xff\x7f", 7, 2, "value 7 is NaN" },
    };
    di_st_t *st = NULL;
    char     path[256];

    CHECK_EQ_INT(di_st_open(SOURCE, &st, NULL), DI_OK);
    path_of(FILE_NAME, path);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const di_st_tensor_t *t = di_st_find(st, cases[i].name);
        FILE                 *f;

        copy(FILE_NAME);
        f = fopen(path, "r+b");
        CHECK(t != NULL && f != NULL
              && fseek(f, (long) (t->offset + cases[i].at * cases[i].n),
                       SEEK_SET) == 0
              && fwrite(cases[i].bytes, 1, cases[i].n, f) == cases[i].n);
        if (f != NULL)
            (void) fclose(f);
        REFUSED(FILE_NAME ": tensor ", cases[i].name, cases[i].text,
                "expected a finite one");
    }
    di_st_close(st);
}

/* What di_model_verify() says of the directory. */
static int
verify(di_err_t *err)
{
    const di_model_conf_t conf = { .n_threads = 2, .max_rows = 8,
                                   .max_seqs = 1, .max_model_len = 256 };
    di_model_t *m = NULL;
    int         rc;

    rc = di_model_open(dir, &conf, &m, err);
    CHECK_EQ_INT(rc, DI_OK);
    if (rc != DI_OK)
        return rc;
    rc = di_model_verify(m, err);
    di_model_close(m);
    return rc;
}

/* Values that are none, in tensors that opening doesn't read; the first of
 * two is named. */
static void
test_verify(void)
{
    static const struct {
        const char *name;
        const char *bytes;
        size_t      at, n;       /* value, its bytes                        */
    } cases[] = {
        { "layers.0.attn.wq_a.weight", "\x7f", 4321, 1 },
        { "layers.6.ffn.shared_experts.w2.weight", "\xff", 0, 1 },
        { "layers.3.attn.wkv.scale", "\xff", 5, 1 },
        { "layers.2.ffn.experts.7.w1.scale", "\xff", 190, 1 },
        { "layers.3.engram.embed.weight", "\x7f", 1001, 1 },
        { "head.weight", "\xc1\xff", 245759, 2 },
        { "embed.weight", "\x80\x7f", 3, 2 },
    };
    di_st_t *st = NULL;
    di_err_t err = { 0 };
    char     path[256], text[96];

    CHECK_EQ_INT(di_st_open(SOURCE, &st, NULL), DI_OK);
    path_of(FILE_NAME, path);
    copy(FILE_NAME);
    CHECK_EQ_INT(verify(&err), DI_OK);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const di_st_tensor_t *t = di_st_find(st, cases[i].name);
        const size_t          n = cases[i].n;
        FILE                 *f;

        copy(FILE_NAME);
        f = fopen(path, "r+b");
        CHECK(t != NULL && f != NULL);
        if (t == NULL || f == NULL)
            break;
        for (size_t twice = 0; twice < 2; twice++)
            CHECK(fseek(f, (long) (t->offset + (twice == 0 ? cases[i].at * n
                                                : t->bytes - n)), SEEK_SET)
                  == 0 && fwrite(cases[i].bytes, 1, n, f) == n);
        (void) fclose(f);
        err = (di_err_t) { 0 };
        CHECK_EQ_INT(verify(&err), DI_EFORMAT);
        CHECK(strstr(err.text, FILE_NAME ": tensor ") != NULL);
        CHECK(strstr(err.text, cases[i].name) != NULL);
        (void) snprintf(text, sizeof(text), "value %zu is no finite number",
                        cases[i].at);
        CHECK(strstr(err.text, text) != NULL);
    }
    di_st_close(st);
}

/* KiB of the sound file's mapping that page tables have. */
static long
mapped_kib(void)
{
    FILE *f = fopen("/proc/self/smaps", "re");
    char  line[512];
    long  kib = 0, n;
    bool  ours = false;

    while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
        if (strstr(line, FILE_NAME) != NULL)
            ours = true;
        else if (ours && sscanf(line, "Rss: %ld kB", &n) == 1)
            kib += n, ours = false;
    }
    if (f != NULL)
        (void) fclose(f);
    return kib;
}

typedef struct {
    int    calls;
    double last;
} shown_t;

static void
progress(void *arg, const char *what, double part)
{
    shown_t *shown = arg;

    CHECK_EQ_STR(what, "opening weights");
    CHECK(part > shown->last && part <= 1);
    shown->calls++;
    shown->last = part;
}

/* Weights that are used where they lie are read while opening, if there is
 * memory for them. */
static void
test_warm(void)
{
    static const uint64_t limits[] = { 1000, 1u << 30 };
    long                  kib[2];

    for (int i = 0; i < 2; i++) {
        shown_t         shown = { 0, 0 };
        di_model_conf_t conf = {
            .n_threads = 2, .max_rows = 16, .max_seqs = 1,
            .max_model_len = 128, .warm_bytes = limits[i],
            .progress = progress, .progress_arg = &shown };
        di_model_t     *m = NULL;

        CHECK_EQ_INT(di_model_open(SOURCE, &conf, &m, NULL), DI_OK);
        kib[i] = mapped_kib();
        CHECK_EQ_INT(shown.calls, 9);        /* layers and stages           */
        CHECK(shown.last == 1);
        di_model_close(m);
    }
    printf("mapped: %ld KiB, %ld after reading all\n", kib[0], kib[1]);
    CHECK(kib[1] > kib[0] + 100);
}

int
main(void)
{
    static const char *const names[] = { "config.json", "tokenizer.json",
                                         FILE_NAME };
    const char *name;
    json_t     *tensor;
    char        path[256];

    (void) snprintf(dir, sizeof(dir), "/tmp/di-v41-files-XXXXXX");
    if (mkdtemp(dir) == NULL)
        return 1;
    read_header();
    copy("config.json");
    copy("tokenizer.json");
    test_sound();
    test_warm();
    test_not_finite();
    test_verify();
    test_unknown();
    test_short();
    json_object_foreach(header, name, tensor) {
        if (is_new_kind(name))
            test_tensor(name, tensor);
    }
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        path_of(names[i], path);
        (void) unlink(path);
    }
    (void) rmdir(dir);
    json_decref(header);
    return check_done("v41_files");
}
