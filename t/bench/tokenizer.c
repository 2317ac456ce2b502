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
 * text of 1 MB, and one of 330 KB, as one message by one thread and by two, in
 * elapsed time until the ids are together; and opening the vocabulary.
 */

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tokenizer/dialect/di_dialect.h"

#define REPS       9
#define WORST_LEN  100000
#define SHARED_LEN 1000000      /* bytes of a message for two threads        */
#define PART_BYTES 16384        /* as in the module                          */

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

/* A prompt whose parts two threads encode, each the next as it is done with
 * one. */
static struct {
    di_work_t        *work;
    _Atomic size_t    next;
    pthread_barrier_t start, end;
} shared;

static void
encode_parts(di_tok_t *tok)
{
    size_t i, n = di_work_parts(shared.work);

    while ((i = atomic_fetch_add(&shared.next, 1)) < n)
        di_work_encode(shared.work, i, tok);
}

static void *
help(void *tok)
{
    for (;;) {
        (void) pthread_barrier_wait(&shared.start);
        encode_parts(tok);
        (void) pthread_barrier_wait(&shared.end);
    }
    return NULL;
}

static void
start_helper(void)
{
    pthread_t thread;
    di_tok_t *tok;

    need(di_tok_open(vocab, &tok) == DI_OK
         && pthread_barrier_init(&shared.start, NULL, 2) == 0
         && pthread_barrier_init(&shared.end, NULL, 2) == 0
         && pthread_create(&thread, NULL, help, tok) == 0, "no thread");
}

/* Encode a conversation that is rendered and cut, alone or with the helper;
 * the seconds until its ids are together. */
static double
encode_conv(const di_dialect_t *dialect, const di_conv_t *conv,
            size_t part_bytes, di_tok_t *tok, int32_t **ids, size_t *n)
{
    double start;
    bool   alone;

    need(di_work_open(dialect, vocab, conv, part_bytes, &shared.work, NULL)
         == DI_OK, "no memory");
    alone = di_work_parts(shared.work) == 1;
    shared.next = 0;
    start = now(CLOCK_MONOTONIC);
    if (!alone)
        (void) pthread_barrier_wait(&shared.start);
    encode_parts(tok);
    if (!alone)
        (void) pthread_barrier_wait(&shared.end);
    need(di_work_finish(shared.work, SIZE_MAX, ids, n, NULL) == DI_OK,
         "not encoded");
    start = now(CLOCK_MONOTONIC) - start;
    di_work_close(shared.work);
    return start;
}

static void
threads(const di_dialect_t *dialect, const char *name, const char *text,
        size_t len)
{
    di_msg_t  msg = { .role = DI_ROLE_USER, .content = { text, len } };
    di_conv_t conv = { .msgs = &msg, .n_msgs = 1, .open_assistant = true };
    double    one = 1e9, two = 1e9, seconds;
    di_tok_t *tok;

    need(di_tok_open(vocab, &tok) == DI_OK, "no memory");
    for (int i = 0; i < 5 * REPS; i++) {
        int32_t *ids[2];
        size_t   n[2];

        seconds = encode_conv(dialect, &conv, SIZE_MAX, tok, &ids[0], &n[0]);
        one = seconds < one ? seconds : one;
        seconds = encode_conv(dialect, &conv, PART_BYTES, tok, &ids[1], &n[1]);
        two = seconds < two ? seconds : two;
        need(n[0] == n[1] && memcmp(ids[0], ids[1], n[0] * sizeof(**ids)) == 0,
             "two threads make other ids");
        free(ids[0]);
        free(ids[1]);
    }
    printf("%-10s %6zu KB: one thread %6.2f ms, two %6.2f ms, %.2fx\n", name,
           len / 1000, one * 1e3, two * 1e3, one / two);
    di_tok_close(tok);
}

/* ----------------------------------------------------------- worst cases -- */

static void
worst(const char *name, const char *unit)
{
    static const char set[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrst"
                              "uvwxyz0123456789+/";
    char     text[2 * WORST_LEN];
    uint64_t random = 1;

    for (size_t i = 0; i < 2 * WORST_LEN; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        text[i] = unit != NULL ? unit[i % strlen(unit)] : set[random >> 58];
    }
    cell(name, "100 KB", text, 2 * WORST_LEN, WORST_LEN, 2);
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
    di_dialect_t *dialect;
    char         *texts[8], *at;
    size_t        lens[8];
    int           n = argc - 2 < 8 ? argc - 2 : 8;

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
    start_helper();
    need(di_dialect_open(vocab, (di_str_t) { NULL, 0 }, "deepseek-v4",
                         &dialect, NULL) == DI_OK, "not DeepSeek's tokens");
    for (int i = 0; i < n; i++) {
        if (lens[i] >= SHARED_LEN)
            threads(dialect, argv[i + 2], texts[i], SHARED_LEN);
        if (lens[i] >= 330000)
            threads(dialect, argv[i + 2], texts[i], 330000);
        free(texts[i]);
    }
    return 0;
}
