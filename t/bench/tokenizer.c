/*
 * tokenizer.c - speed of di_tok_encode().
 *
 *   build/bench/tokenizer VOCABULARY [NAME=FILE...]
 *
 * Each FILE is cut into texts of 10 KB (at most 60) and of 1 MB (at most 5).
 * An instance encodes the first and then, timed, the others, which it has
 * never seen: fresh.  Then all again: warm.  A file that is too short for a
 * second text of 1 MB has its first one timed in both, as the program does
 * that measures other tokenizers.  The figure is the best of the repetitions,
 * each with a new instance, in the thread's own CPU time: encoding never
 * waits, and others may use the machine.
 *
 * Then texts that never end, which are a tokenizer's worst cases; the same
 * text of 1 MB, and one of 330 KB, cut in two and encoded by two threads, in
 * elapsed time; and opening the vocabulary.
 */

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tokenizer/vocab/di_vocab.h"

#define REPS       9
#define WORST_LEN  100000

static const di_vocab_t *vocab;

static double
now(clockid_t clock)
{
    struct timespec ts;

    clock_gettime(clock, &ts);
    return (double) ts.tv_sec + (double) ts.tv_nsec * 1e-9;
}

static void
need(bool fine, const char *what)
{
    if (!fine) {
        fprintf(stderr, "tokenizer: %s\n", what);
        exit(1);
    }
}

static size_t
encode(di_tok_t *tok, const char *text, size_t len, int32_t *ids)
{
    size_t n;

    need(di_tok_encode(tok, text, len, ids, len, &n) == DI_OK, "no memory");
    return n;
}

/* ----------------------------------------------------------------- cells -- */

/* Encode texts first to n - 1, each `size` bytes, and add up their ids. */
static double
pass(di_tok_t *tok, const char *text, size_t size, size_t first, size_t n,
     int32_t *ids, size_t *n_ids)
{
    double seconds = 0, start;

    *n_ids = 0;
    for (size_t i = first; i < n; i++) {
        start = now(CLOCK_THREAD_CPUTIME_ID);
        *n_ids += encode(tok, text + i * size, size, ids);
        seconds += now(CLOCK_THREAD_CPUTIME_ID) - start;
    }
    return seconds;
}

static void
cell(const char *name, const char *label, const char *text, size_t len,
     size_t size, size_t max)
{
    size_t   n = len / size < max ? len / size : max, n_ids = 0;
    size_t   first = n > 1;
    int32_t *ids = malloc(size * sizeof(*ids));
    double   fresh = 1e9, warm = 1e9, seconds;

    need(ids != NULL, "no memory");
    for (int i = 0; n > 0 && i < REPS; i++) {
        di_tok_t *tok;

        need(di_tok_open(vocab, &tok) == DI_OK, "no memory");
        (void) encode(tok, text, size, ids);
        seconds = pass(tok, text, size, first, n, ids, &n_ids);
        fresh = seconds < fresh ? seconds : fresh;
        seconds = pass(tok, text, size, first, n, ids, &n_ids);
        warm = seconds < warm ? seconds : warm;
        di_tok_close(tok);
    }
    if (n > 0)
        printf("%-10s %-7s %5zu %9zu %9.1f %9.1f %9.1f\n", name, label,
               n - first, n_ids, (double) (size * (n - first)) / fresh * 1e-6,
               (double) (size * (n - first)) / warm * 1e-6,
               fresh / (double) n_ids * 1e9);
    free(ids);
}

/* --------------------------------------------------------------- threads -- */

typedef struct {
    di_tok_t   *tok;
    const char *text;
    size_t      len;
    int32_t    *ids;
    size_t      n;
} half_t;

static void *
encode_half(void *arg)
{
    half_t *h = arg;

    h->n = encode(h->tok, h->text, h->len, h->ids);
    return NULL;
}

/* Seconds for the text in one piece, or cut in two, on as many threads. */
static double
elapsed(half_t halves[2], const char *text, size_t len, size_t cut)
{
    double    start = now(CLOCK_MONOTONIC);
    pthread_t thread;

    halves[0].text = text;
    halves[0].len = cut;
    halves[1].text = text + cut;
    halves[1].len = len - cut;
    if (cut < len)
        need(pthread_create(&thread, NULL, encode_half, &halves[1]) == 0,
             "no thread");
    (void) encode_half(&halves[0]);
    if (cut < len)
        pthread_join(thread, NULL);
    return now(CLOCK_MONOTONIC) - start;
}

static void
threads(const char *name, const char *text, size_t len)
{
    half_t halves[2] = { 0 };
    double one = 1e9, two = 1e9, seconds;
    size_t cut = di_vocab_split(vocab, text, len, len / 2);

    for (int i = 0; i < 2; i++) {
        halves[i].ids = malloc(len * sizeof(int32_t));
        need(halves[i].ids != NULL
             && di_tok_open(vocab, &halves[i].tok) == DI_OK, "no memory");
    }
    for (int i = 0; i < 5 * REPS; i++) {
        seconds = elapsed(halves, text, len, len);
        one = seconds < one ? seconds : one;
        seconds = elapsed(halves, text, len, cut);
        two = seconds < two ? seconds : two;
    }
    printf("%-10s %6zu KB %7zu ids: one thread %6.2f ms, two %6.2f ms, "
           "%.2fx\n", name, len / 1000, halves[0].n + halves[1].n, one * 1e3,
           two * 1e3, one / two);
    for (int i = 0; i < 2; i++) {
        di_tok_close(halves[i].tok);
        free(halves[i].ids);
    }
}

/* ----------------------------------------------------------- worst cases -- */

static void
worst(const char *name, const char *unit)
{
    static const char set[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrst"
                              "uvwxyz0123456789+/";
    char     text[WORST_LEN];
    uint64_t random = 1;

    for (size_t i = 0; i < WORST_LEN; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        text[i] = unit != NULL ? unit[i % strlen(unit)] : set[random >> 58];
    }
    cell(name, "100 KB", text, WORST_LEN, WORST_LEN, 1);
}

static char *
read_file(const char *path, size_t *len)
{
    char  *data = NULL;
    size_t room = 0, n = 1;
    FILE  *f = fopen(path, "rb");

    if (f == NULL) {
        perror(path);
        exit(1);
    }
    for (*len = 0; n > 0; *len += n) {
        data = realloc(data, room += 1 << 20);
        need(data != NULL, "no memory");
        n = fread(data + *len, 1, room - *len, f);
        room = *len + n;
    }
    fclose(f);
    return data;
}

static void
open_vocab(const char *path)
{
    double      best = 1e9, start, seconds;
    di_vocab_t *v = NULL;
    di_err_t    err = { 0 };

    for (int i = 0; i < 5; i++) {
        di_vocab_close(v);
        start = now(CLOCK_THREAD_CPUTIME_ID);
        if (di_vocab_open_path(path, &v, &err) != DI_OK) {
            fprintf(stderr, "tokenizer: %s\n", err.text);
            exit(1);
        }
        seconds = now(CLOCK_THREAD_CPUTIME_ID) - start;
        best = seconds < best ? seconds : best;
    }
    vocab = v;
    printf("vocabulary of %u tokens opened in %.1f ms\n", di_vocab_size(v),
           best * 1e3);
}

int
main(int argc, char **argv)
{
    char  *texts[8], *at;
    size_t lens[8];
    int    n = argc - 2 < 8 ? argc - 2 : 8;

    if (argc < 2) {
        fprintf(stderr, "usage: tokenizer VOCABULARY [NAME=FILE...]\n");
        return 1;
    }
    open_vocab(argv[1]);
    printf("%-10s %-7s %5s %9s %9s %9s %9s\n", "text", "size", "texts", "ids",
           "fresh", "warm MB/s", "ns/id");
    for (int i = 0; i < n; i++) {
        at = strchr(argv[i + 2], '=');
        need(at != NULL, "NAME=FILE is needed");
        *at = '\0';
        texts[i] = read_file(at + 1, &lens[i]);
        cell(argv[i + 2], "10 KB", texts[i], lens[i], 10000, 60);
        cell(argv[i + 2], "1 MB", texts[i], lens[i], 1000000, 5);
    }
    worst("a", "a");
    worst("spaces", " ");
    worst("emoji", "\xf0\x9f\x98\x80");
    worst("Han", "\xe5\xa5\xbd");
    worst("base64", NULL);
    for (int i = 0; i < n; i++) {
        if (lens[i] >= 1000000)
            threads(argv[i + 2], texts[i], 1000000);
        if (lens[i] >= 330000)
            threads(argv[i + 2], texts[i], 330000);
        free(texts[i]);
    }
    di_vocab_close((di_vocab_t *) vocab);
    return 0;
}
