/*
 * grammar.c - compile and mask times of grammars.
 *
 *   build/bench/grammar MODEL SCHEMAS.json
 *
 * MODEL is a GGUF file or a tokenizer.json; SCHEMAS.json maps
 * names to {"kind": "json"|"regex", "schema": ..., "instances": [...]}.  Each
 * instance is walked token by token, and a mask is made before each token.
 *
 *   compile  to a blob, best of 5; open: blob to grammar
 *   ttfm     compile, open and first mask, where the index knows nothing
 *   1st      masks of a first walk, likewise
 *   later    masks of 5 further walks, best for each token
 *   blob     bytes of the compiled grammar
 *
 * Times are the thread's own CPU time, in microseconds.
 */

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tokenizer/grammar/di_grammar.h"

#define TOKENS_MAX  65536
#define REPS        5

typedef struct {
    double  *v;
    size_t   n;
} samples_t;

static di_vocab_t      *vocab;
static di_tok_t        *tok;
static di_gram_index_t *idx;
static uint64_t        *mask;
static samples_t        all_first, all_later, all_compile, all_ttfm;

static double
now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double) t.tv_sec * 1e6 + (double) t.tv_nsec / 1e3;
}

static void
add(samples_t *s, double v)
{
    s->v = realloc(s->v, (s->n + 1) * sizeof(*s->v));
    s->v[s->n++] = v;
}

static int
by_value(const void *a, const void *b)
{
    double x = *(const double *) a, y = *(const double *) b;

    return (x > y) - (x < y);
}

static double
at(samples_t *s, double share)
{
    qsort(s->v, s->n, sizeof(*s->v), by_value);
    return s->n == 0 ? 0 : s->v[(size_t) ((double) (s->n - 1) * share)];
}

static double
mean(const samples_t *s)
{
    double sum = 0;

    for (size_t i = 0; i < s->n; i++)
        sum += s->v[i];
    return s->n == 0 ? 0 : sum / (double) s->n;
}

static void
die(const char *what, const char *text)
{
    fprintf(stderr, "grammar: %s: %s\n", what, text);
    exit(1);
}

/* Walk an instance; times[i] gets the mask before token i, if it is less. */
static void
walk(di_gram_t *g, const int32_t *ids, size_t n, double *times)
{
    di_gram_match_t *m;
    size_t           len;
    double           t;

    if (di_gram_match_open(g, 0, &m) != DI_OK)
        die("match", "no memory");
    for (size_t i = 0; i <= n; i++) {
        t = now_us();
        if (di_gram_fill_mask(idx, m, mask) != DI_OK)
            die("mask", "no memory");
        t = now_us() - t;
        if (t < times[i])
            times[i] = t;
        if (i == n)
            break;
        if ((mask[ids[i] / 64] >> ids[i] % 64 & 1) == 0)
            die("mask", "a token of an instance is not allowed");

        const char *s = di_vocab_bytes(vocab, ids[i], &len);

        if (di_gram_accept(m, s, len) != DI_OK)
            die("accept", "a token of an instance is refused");
    }
    if (!di_gram_is_complete(m))
        die("accept", "an instance is not complete");
    di_gram_match_close(m);
}

static void
compile(const json_t *entry, void **blob, size_t *bytes)
{
    bool           json = strcmp(json_string_value(json_object_get(entry,
                                 "kind")), "json") == 0;
    const json_t  *v = json_object_get(entry, "schema");
    di_gram_opts_t opts = { .flexible = false };
    di_gram_err_t  err = { 0 };
    char          *s = json ? json_dumps(v, JSON_ENCODE_ANY)
                            : strdup(json_string_value(v));
    double         t, best = 1e12;

    *blob = NULL;
    for (int i = 0; i < REPS; i++) {
        free(*blob);
        t = now_us();
        if (di_gram_compile(json ? DI_GRAM_SCHEMA : DI_GRAM_REGEX, s,
                            strlen(s), &opts, blob, bytes, &err) != DI_OK)
            die(err.keyword, err.text);
        t = now_us() - t;
        best = t < best ? t : best;
    }
    add(&all_compile, best);
    free(s);
}

static void
measure(const char *name, const json_t *entry)
{
    static int32_t   ids[TOKENS_MAX];
    static double    times[TOKENS_MAX + 1];
    samples_t        first = { 0 }, later = { 0 };
    di_gram_match_t *m = NULL;
    di_gram_t       *g;
    const json_t    *text;
    void            *blob;
    size_t           bytes, n, i, k;
    double           ttfm;

    compile(entry, &blob, &bytes);
    di_gram_index_forget(idx);
    ttfm = now_us();
    if (di_gram_open(blob, bytes, &g, NULL) != DI_OK
        || di_gram_match_open(g, 0, &m) != DI_OK
        || di_gram_fill_mask(idx, m, mask) != DI_OK)
        die(name, "cannot be opened");
    ttfm = now_us() - ttfm + all_compile.v[all_compile.n - 1];
    add(&all_ttfm, ttfm);
    di_gram_match_close(m);
    di_gram_index_forget(idx);

    json_array_foreach(json_object_get(entry, "instances"), k, text) {
        if (di_tok_encode(tok, json_string_value(text),
                          json_string_length(text), ids, TOKENS_MAX, &n)
            != DI_OK)
            die(name, "an instance is too long");
        for (int rep = 0; rep <= REPS; rep++) {
            for (i = 0; rep <= 1 && i <= n; i++)
                times[i] = 1e12;
            walk(g, ids, n, times);
            for (i = 0; (rep == 0 || rep == REPS) && i <= n; i++) {
                if (rep == REPS)
                    add(&later, times[i]);
                else if (k == 0)
                    add(&first, times[i]);
            }
        }
    }
    for (i = 0; i < first.n; i++)
        add(&all_first, first.v[i]);
    for (i = 0; i < later.n; i++)
        add(&all_later, later.v[i]);
    printf("%-20s %8.0f %8.0f %7zu | %6.2f %6.1f | %6.2f %6.2f %6.1f %6.1f"
           " %5zu\n", name, all_compile.v[all_compile.n - 1], ttfm, bytes,
           mean(&first), at(&first, 1), mean(&later), at(&later, 0.5),
           at(&later, 0.99), at(&later, 1), later.n);
    free(first.v);
    free(later.v);
    free(blob);
    di_gram_unref(g);
}

static int
open_vocab(const char *path, di_err_t *err)
{
    size_t       len = strlen(path);
    di_gguf_t   *gguf;
    json_t      *json;
    char        *s;
    int          rc;

    if (len > 5 && strcmp(path + len - 5, ".json") == 0) {
        json = json_load_file(path, 0, NULL);
        s = json_dumps(json, JSON_COMPACT);
        json_decref(json);
        if (s == NULL)
            return di_err_set(err, DI_EFORMAT, 0, "is not JSON");
        rc = di_vocab_open_hf(s, strlen(s), &vocab, err);
        free(s);
        return rc;
    }
    rc = di_gguf_open(path, &gguf, err);
    if (rc == DI_OK) {
        rc = di_vocab_open_gguf(gguf, &vocab, err);
        di_gguf_close(gguf);
    }
    return rc;
}

int
main(int argc, char **argv)
{
    di_err_t              err = { 0 };
    di_gram_index_stats_t stats;
    json_t               *all, *entry;
    const char           *name;
    double                t;

    if (argc != 3)
        die("usage", "grammar MODEL SCHEMAS.json");
    if (open_vocab(argv[1], &err) != DI_OK)
        die(argv[1], err.text);
    all = json_load_file(argv[2], 0, NULL);
    if (all == NULL)
        die(argv[2], "cannot be read");
    t = now_us();
    if (di_gram_index_open(vocab, 0, &idx) != DI_OK
        || di_tok_open(vocab, &tok) != DI_OK)
        die("vocabulary", "no memory");
    printf("# %u tokens, index in %.0f ms\n", di_vocab_size(vocab),
           (now_us() - t) / 1e3);
    mask = malloc(di_gram_mask_words(idx) * sizeof(*mask));

    printf("%-20s %8s %8s %7s | %6s %6s | %6s %6s %6s %6s %5s\n", "", "compile",
           "ttfm", "blob", "1st", "max", "later", "p50", "p99", "max", "n");
    json_object_foreach(all, name, entry)
        measure(name, entry);
    di_gram_index_stats(idx, &stats);
    printf("compile: mean %.0f, median %.0f, max %.0f; ttfm: median %.0f, max"
           " %.0f\n", mean(&all_compile), at(&all_compile, 0.5),
           at(&all_compile, 1), at(&all_ttfm, 0.5), at(&all_ttfm, 1));
    printf("first walk: mean %.2f, median %.2f, p99 %.1f, max %.1f\n",
           mean(&all_first), at(&all_first, 0.5), at(&all_first, 0.99),
           at(&all_first, 1));
    printf("later walks: mean %.2f, median %.2f, p99 %.1f, max %.1f\n",
           mean(&all_later), at(&all_later, 0.5), at(&all_later, 0.99),
           at(&all_later, 1));
    printf("index %.1f MB; computed for the last grammar %.1f MB\n",
           (double) stats.index_bytes / 1e6,
           (double) stats.cache_bytes / 1e6);
    json_decref(all);
    free(mask);
    di_gram_index_close(idx);
    di_tok_close(tok);
    di_vocab_close(vocab);
    return 0;
}
