/*
 * work.c - a prompt encoded in parts has the ids of one encoded whole, for
 * random conversations, sizes of parts and orders of encoding, and by several
 * threads.
 */

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "check.h"
#include "nomem.h"

#include "tokenizer/dialect/di_dialect.h"

#define ROUNDS  300
#define THREADS 3

static di_vocab_t   *vocab;
static di_dialect_t *dialect;
static di_tok_t     *tok;

static const char *const words[] = {
    " the", "word", " ", "\n\n", "  ", "12345", "\xe4\xbd\xa0\xe5\xa5\xbd",
    "\xf0\x9f\x98\x80", "<|im_end|>", "!!!", "'s", "\t", "aaaaaaaaaa", ". ",
};

static size_t
fill(char *text, size_t size)
{
    const char *w;
    size_t      n = 0, len = (size_t) rand() % size;

    while (n + 16 < len) {
        w = words[(size_t) rand() % (sizeof(words) / sizeof(words[0]))];
        memcpy(text + n, w, strlen(w));
        n += strlen(w);
    }
    return n;
}

static void
equal(const di_conv_t *conv, size_t part_bytes)
{
    int32_t   *want, *got;
    size_t     i, n_want, n_got, n;
    di_work_t *work;
    di_err_t   err = { 0 };

    CHECK_EQ_INT(di_dialect_encode(dialect, tok, conv, 1 << 20, &want,
                                   &n_want, &err), DI_OK);
    CHECK_EQ_INT(di_work_open(dialect, vocab, conv, part_bytes, &work, &err),
                 DI_OK);

    n = di_work_parts(work);
    for (i = 0; i < n; i++)
        di_work_encode(work, n - 1 - i, tok);

    CHECK_EQ_INT(di_work_finish(work, n_want, &got, &n_got, &err), DI_OK);
    CHECK_EQ_INT(n_got, n_want);
    CHECK(n_got == n_want && memcmp(got, want, n_got * sizeof(*got)) == 0);
    di_work_close(work);
    free(got);

    /* one id less than there are is the limit */
    CHECK_EQ_INT(di_work_open(dialect, vocab, conv, part_bytes, &work, &err),
                 DI_OK);
    for (i = 0; i < n; i++)
        di_work_encode(work, i, tok);
    CHECK_EQ_INT(di_work_finish(work, n_want - 1, &got, &n_got, &err),
                 DI_ELIMIT);
    CHECK_EQ_INT(n_got, n_want);
    di_work_close(work);
    free(want);
}

static struct {
    di_work_t     *work;
    _Atomic size_t next;
} shared;

static void *
encode_shared(void *own)
{
    size_t i, n = di_work_parts(shared.work);

    while ((i = atomic_fetch_add(&shared.next, 1)) < n)
        di_work_encode(shared.work, i, own);
    return NULL;
}

/* The same by THREADS threads. */
static void
equal_by_threads(const di_conv_t *conv, size_t part_bytes)
{
    pthread_t threads[THREADS];
    di_tok_t *toks[THREADS];
    int32_t  *want, *got;
    size_t    n_want, n_got;

    CHECK_EQ_INT(di_dialect_encode(dialect, tok, conv, 1 << 20, &want,
                                   &n_want, NULL), DI_OK);
    CHECK_EQ_INT(di_work_open(dialect, vocab, conv, part_bytes, &shared.work,
                              NULL), DI_OK);
    shared.next = 0;
    for (int i = 0; i < THREADS; i++) {
        CHECK_EQ_INT(di_tok_open(vocab, &toks[i]), DI_OK);
        CHECK_EQ_INT(pthread_create(&threads[i], NULL, encode_shared,
                                    toks[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        di_tok_close(toks[i]);
    }

    CHECK_EQ_INT(di_work_finish(shared.work, n_want, &got, &n_got, NULL),
                 DI_OK);
    CHECK(n_got == n_want && memcmp(got, want, n_got * sizeof(*got)) == 0);
    di_work_close(shared.work);
    free(want);
    free(got);
}

static void
random_conversations(void)
{
    static char texts[4][6000];
    di_msg_t    msgs[4] = { 0 };
    di_conv_t   conv = { .msgs = msgs, .open_assistant = true };
    size_t      i;

    for (int round = 0; round < ROUNDS; round++) {
        conv.n_msgs = 1 + (size_t) rand() % 4;
        for (i = 0; i < conv.n_msgs; i++) {
            msgs[i].role = i % 2 == 0 ? DI_ROLE_USER : DI_ROLE_ASSISTANT;
            msgs[i].content.data = texts[i];
            msgs[i].content.len = fill(texts[i], sizeof(texts[i]));
        }
        equal(&conv, 1 + (size_t) rand() % 3000);
        if (round % 10 == 0)
            equal_by_threads(&conv, 1 + (size_t) rand() % 300);
    }
}

static void
no_memory(void)
{
    di_msg_t   msg = { .role = DI_ROLE_USER, .content = { "a b c", 5 } };
    di_conv_t  conv = { .msgs = &msg, .n_msgs = 1 };
    di_work_t *work;
    int        n, rc;

    for (n = 0; ; n++) {
        nomem_after(n);
        rc = di_work_open(dialect, vocab, &conv, 2, &work, NULL);
        if (!nomem_off())
            break;
        CHECK_EQ_INT(rc, DI_ENOMEM);
    }

    CHECK_EQ_INT(rc, DI_OK);
    di_work_close(work);
}

int
main(void)
{
    unsigned seed = (unsigned) time(NULL);
    di_err_t err = { 0 };

    if (di_vocab_open_path("t/data/tokenizer/qwen2.gguf", &vocab, &err)
        != DI_OK
        || di_dialect_open(vocab, (di_str_t) { NULL, 0 }, "chatml", &dialect,
                           &err) != DI_OK
        || di_tok_open(vocab, &tok) != DI_OK) {
        printf("work: %s\n", err.text);
        return 1;
    }

    printf("work: seed %u\n", seed);
    srand(seed);
    random_conversations();
    no_memory();

    di_tok_close(tok);
    di_dialect_close(dialect);
    di_vocab_close(vocab);
    return check_done("work");
}
