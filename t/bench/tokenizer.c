/*
 * tokenizer.c - speed of di_tok_encode() on one thread.
 *
 *   build/bench/tokenizer [FILE...]
 *
 * Texts are generated, so that they are the same on every machine: English
 * with words drawn from the vocabulary by Zipf's law (a tenth of them made
 * of two tokens, so that they must be merged), Chinese with characters drawn
 * the same way, code with names of such words; then single characters that
 * never end, which are a tokenizer's worst cases.  FILEs are measured too.
 *
 * Each text is encoded by a new di_tok_t (cold: its cache knows nothing, a
 * worker's first request) and again by the same one (warm).  The figure is
 * the median of the repetitions, with the slowest beside it, in the thread's
 * own CPU time: encoding never waits, and others may use the machine.
 */

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tokenizer/vocab/di_vocab.h"

#define BENCH_REPS  15

typedef struct {
    char  *data;
    size_t len;
    size_t room;
} text_t;

typedef struct {
    const di_vocab_t *vocab;
    uint64_t          state;        /* of the random numbers                 */
    int32_t          *words;        /* tokens that are a space and letters   */
    size_t            n_words;
    int32_t          *stems;        /* tokens of small letters alone         */
    size_t            n_stems;
} gen_t;

static double
now(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (double) ts.tv_sec + (double) ts.tv_nsec * 1e-9;
}

static void *
need(void *p)
{
    if (p == NULL) {
        fprintf(stderr, "tokenizer: no memory\n");
        exit(1);
    }
    return p;
}

static uint32_t
draw(gen_t *g, uint32_t n)
{
    g->state = g->state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t) ((g->state >> 32) * n >> 32);
}

/* An index below n with density 1/x, the law of words by frequency. */
static size_t
draw_zipf(gen_t *g, size_t n)
{
    double x = 1;
    double u = (double) draw(g, 1u << 30) / (double) (1u << 30);

    /* n ** u by squaring: 24 bits of u are plenty. */
    for (double f = (double) n; u > 1e-7; u *= 2) {
        double root = 1, hi = f;

        if (u >= 1) {
            x *= f;
            u -= 1;
        }
        for (int i = 0; i < 40; i++) {
            double mid = (root + hi) / 2;

            if (mid * mid < f)
                root = mid;
            else
                hi = mid;
        }
        f = root;
    }
    return (size_t) x < n ? (size_t) x : n - 1;
}

static void
put(text_t *t, const char *s, size_t len)
{
    while (t->len + len > t->room) {
        t->room = t->room * 2 + 1024;
        t->data = need(realloc(t->data, t->room));
    }
    memcpy(t->data + t->len, s, len);
    t->len += len;
}

static void
put_token(text_t *t, const gen_t *g, int32_t id, size_t skip)
{
    size_t      len;
    const char *s = di_vocab_bytes(g->vocab, id, &len);

    put(t, s + skip, len - skip);
}

static void
gen_open(gen_t *g, const di_vocab_t *vocab)
{
    uint32_t size = di_vocab_size(vocab);

    *g = (gen_t) { .vocab = vocab, .state = 1 };
    g->words = need(calloc(size, sizeof(*g->words)));
    g->stems = need(calloc(size, sizeof(*g->stems)));
    for (uint32_t i = 0; i < size; i++) {
        size_t      len, letters = 0;
        const char *s = di_vocab_bytes(vocab, (int32_t) i, &len);

        if (di_vocab_is_special(vocab, (int32_t) i) || len < 2)
            continue;
        for (size_t k = 1; k < len; k++)
            letters += s[k] >= 'a' && s[k] <= 'z';
        if (letters != len - 1)
            continue;
        if (*s == ' ')
            g->words[g->n_words++] = (int32_t) i;
        else if (*s >= 'a' && *s <= 'z')
            g->stems[g->n_stems++] = (int32_t) i;
    }
    if (g->n_words < 100 || g->n_stems < 100) {
        fprintf(stderr, "tokenizer: the vocabulary has too few words\n");
        exit(1);
    }
}

static void
gen_english(gen_t *g, text_t *t, size_t len)
{
    while (t->len < len) {
        uint32_t kind = draw(g, 100);

        put_token(t, g, g->words[draw_zipf(g, g->n_words)], 0);
        if (kind < 10)
            put_token(t, g, g->stems[draw_zipf(g, g->n_stems)], 0);
        else if (kind < 16)
            put(t, ",", 1);
        else if (kind < 21)
            put(t, ". The", 5);
        else if (kind < 22)
            put(t, ".\n\nIn 1984,", 11);
        else if (kind < 23)
            put(t, "'s", 2);
    }
}

static void
put_code(text_t *t, uint32_t code)
{
    char s[4];

    if (code < 0x10000) {
        s[0] = (char) (0xe0 | code >> 12);
        s[1] = (char) (0x80 | (code >> 6 & 0x3f));
        s[2] = (char) (0x80 | (code & 0x3f));
        put(t, s, 3);
    } else {
        s[0] = (char) (0xf0 | code >> 18);
        s[1] = (char) (0x80 | (code >> 12 & 0x3f));
        s[2] = (char) (0x80 | (code >> 6 & 0x3f));
        s[3] = (char) (0x80 | (code & 0x3f));
        put(t, s, 4);
    }
}

static void
gen_chinese(gen_t *g, text_t *t, size_t len)
{
    while (t->len < len) {
        /* Scattered over the block, since frequent characters are. */
        put_code(t, 0x4e00 + (uint32_t) draw_zipf(g, 4000) * 7919 % 20900);
        if (draw(g, 12) == 0)
            put_code(t, draw(g, 3) == 0 ? 0x3002 : 0xff0c);
    }
}

static void
gen_code(gen_t *g, text_t *t, size_t len)
{
    static const char *const between[] = {
        " = ", "(", ")\n    ", "->", "[i]", " + 1;\n    ", ", ", ") {\n\t",
        "\n}\n\nstatic int\n", "_", " == 0x1f", " // ", "\"", "';\n",
    };

    while (t->len < len) {
        const char *s = between[draw(g, sizeof(between) / sizeof(*between))];

        put_token(t, g, g->words[draw_zipf(g, g->n_words)], 1);
        put(t, s, strlen(s));
    }
}

static void
gen_han(gen_t *g, text_t *t, size_t len)
{
    while (t->len < len)
        put_code(t, 0x4e00 + draw(g, 20900));
}

static void
gen_emoji(gen_t *g, text_t *t, size_t len)
{
    while (t->len < len)
        put_code(t, 0x1f300 + draw(g, 0x350));
}

static void
gen_base64(gen_t *g, text_t *t, size_t len)
{
    static const char set[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrst"
                              "uvwxyz0123456789+/";

    while (t->len < len)
        put(t, &set[draw(g, 64)], 1);
}

static void
gen_lower(gen_t *g, text_t *t, size_t len)
{
    static const char set[] = "abcdefghijklmnopqrstuvwxyz";

    while (t->len < len)
        put(t, &set[draw(g, 26)], 1);
}

static void
gen_a(gen_t *g, text_t *t, size_t len)
{
    (void) g;
    while (t->len < len)
        put(t, "a", 1);
}

static void
gen_spaces(gen_t *g, text_t *t, size_t len)
{
    (void) g;
    while (t->len < len)
        put(t, " ", 1);
}

static int
compare(const void *a, const void *b)
{
    double x = *(const double *) a, y = *(const double *) b;

    return (x > y) - (x < y);
}

static void
measure(const di_vocab_t *vocab, const char *name, const char *text,
        size_t len)
{
    int32_t  *ids = need(malloc(len * sizeof(*ids)));
    double    cold[BENCH_REPS], warm[BENCH_REPS];
    size_t    n = 0;
    di_tok_t *tok;

    for (int i = 0; i < BENCH_REPS; i++) {
        double start;

        if (di_tok_open(vocab, &tok) != DI_OK)
            need(NULL);
        start = now();
        if (di_tok_encode(tok, text, len, ids, len, &n) != DI_OK)
            need(NULL);
        cold[i] = now() - start;
        start = now();
        if (di_tok_encode(tok, text, len, ids, len, &n) != DI_OK)
            need(NULL);
        warm[i] = now() - start;
        di_tok_close(tok);
    }
    free(ids);

    qsort(cold, BENCH_REPS, sizeof(*cold), compare);
    qsort(warm, BENCH_REPS, sizeof(*warm), compare);
    printf("%-24s %8zu %8zu %9.1f %9.1f %9.1f %9.3f\n", name, len, n,
           (double) len / cold[BENCH_REPS / 2] * 1e-6,
           (double) len / cold[BENCH_REPS - 1] * 1e-6,
           (double) len / warm[BENCH_REPS / 2] * 1e-6,
           cold[BENCH_REPS / 2] * 1e3);
}

static void
measure_file(const di_vocab_t *vocab, const char *path)
{
    text_t t = { NULL, 0, 0 };
    char   part[65536];
    size_t n;
    FILE  *f = fopen(path, "rb");

    if (f == NULL) {
        perror(path);
        exit(1);
    }
    while ((n = fread(part, 1, sizeof(part), f)) > 0)
        put(&t, part, n);
    fclose(f);
    if (t.len > 0)
        measure(vocab, path, t.data, t.len);
    free(t.data);
}

static di_vocab_t *
open_vocab(void)
{
    const char *path = getenv("TEST_DEEPINFER_MODEL"), *home = getenv("HOME");
    char        cached[4096];
    double      best = 1e9, gguf_s = 1e9;
    di_err_t    err = { 0 };
    di_gguf_t  *gguf;
    di_vocab_t *vocab = NULL;

    if (path == NULL) {
        snprintf(cached, sizeof(cached), "%s/.cache/ngx_deepinfer/"
                 "SmolLM2-135M-Instruct.Q4_1.gguf", home ? home : "");
        path = cached;
    }
    for (int i = 0; i < 5; i++) {
        double start = now(), mid;

        if (di_gguf_open(path, &gguf, &err) != DI_OK) {
            printf("SKIP %s\n", err.text);
            exit(0);
        }
        mid = now();
        di_vocab_close(vocab);
        if (di_vocab_open_gguf(gguf, &vocab, &err) != DI_OK) {
            printf("SKIP %s\n", err.text);
            exit(0);
        }
        best = now() - mid < best ? now() - mid : best;
        gguf_s = mid - start < gguf_s ? mid - start : gguf_s;
        di_gguf_close(gguf);
    }
    printf("open: file %.2f ms, vocabulary of %u tokens %.2f ms\n",
           gguf_s * 1e3, di_vocab_size(vocab), best * 1e3);
    return vocab;
}

int
main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void      (*gen)(gen_t *g, text_t *t, size_t len);
        size_t      len;
    } cases[] = {
        { "English 10 KB",  gen_english, 10000   },
        { "English 1 MB",   gen_english, 1000000 },
        { "Chinese 10 KB",  gen_chinese, 10000   },
        { "Chinese 1 MB",   gen_chinese, 1000000 },
        { "code 10 KB",     gen_code,    10000   },
        { "code 1 MB",      gen_code,    1000000 },
        { "a x 100 KB",     gen_a,       100000  },
        { "spaces 100 KB",  gen_spaces,  100000  },
        { "letters 100 KB", gen_lower,   100000  },
        { "Han 100 KB",     gen_han,     100000  },
        { "emoji 100 KB",   gen_emoji,   100000  },
        { "base64 100 KB",  gen_base64,  100000  },
        { "a x 1 MB",       gen_a,       1000000 },
        { "Han 1 MB",       gen_han,     1000000 },
    };
    di_vocab_t *vocab = open_vocab();
    gen_t       g;

    gen_open(&g, vocab);
    printf("%-24s %8s %8s %9s %9s %9s %9s\n", "text", "bytes", "ids",
           "cold MB/s", "slowest", "warm MB/s", "cold ms");
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        text_t t = { NULL, 0, 0 };

        cases[i].gen(&g, &t, cases[i].len);
        measure(vocab, cases[i].name, t.data, t.len);
        free(t.data);
    }
    for (int i = 1; i < argc; i++)
        measure_file(vocab, argv[i]);

    free(g.words);
    free(g.stems);
    di_vocab_close(vocab);
    return 0;
}
