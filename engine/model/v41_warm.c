/*
 * v41_warm.c - reading weights that stay in the mapping while opening.
 *
 * Left to page faults, a cold model reads its weights during the first
 * requests, a few hundred KB at a time, each expert when somebody picks it
 * first.  Reading them here takes what the disk takes: pieces of the files
 * are populated by all compute threads at once, which also makes their page
 * tables.  Matrices that were copied when they were opened are done already;
 * of Engram's tables steps read a few rows, so they are left alone.
 */

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "deepseek_v41.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22    /* Linux 5.14                              */
#endif

#define PIECE      (8u << 20)    /* bytes that a thread reads at a time     */
#define PIECES_MAX 1024u

typedef struct {
    const uint8_t *data[PIECES_MAX];
    size_t         bytes[PIECES_MAX];
    uint32_t       n;
    _Atomic bool   failed;
} warm_t;

static bool
is_mapped(const di_st_tensor_t *t)
{
    return (t->dtype == DI_ST_F8_E4M3 || t->dtype == DI_ST_F8_E8M0
            || t->dtype == DI_ST_I8)
           && strstr(t->name, ".engram.embed.") == NULL
           && (strncmp(t->name, "layers.", 7) == 0
               || strncmp(t->name, "mtp.", 4) == 0);
}

bool
di_v41_may_warm(const di_model_t *m)
{
    const di_v41_t *s = m->state;
    uint64_t        bytes = 0;

    for (size_t i = 0; i < di_st_n_tensors(s->st); i++) {
        const di_st_tensor_t *t = di_st_tensor(s->st, i);

        bytes += is_mapped(t) ? t->bytes : 0;
    }
    return bytes > 0 && bytes <= m->conf.warm_bytes;
}

/* An older kernel only gets a hint. */
static void
populate(void *arg, size_t part)
{
    warm_t         *w = arg;
    const uintptr_t page = (uintptr_t) sysconf(_SC_PAGESIZE);
    uintptr_t       at = (uintptr_t) w->data[part] / page * page;
    size_t          bytes = (uintptr_t) w->data[part] - at + w->bytes[part];
    int             rc;

    do {
        rc = madvise((void *) at, bytes, MADV_POPULATE_READ);
    } while (rc != 0 && errno == EINTR);
    if (rc != 0 && errno == EINVAL)
        (void) madvise((void *) at, bytes, MADV_WILLNEED);
    else if (rc != 0)            /* relaxed: read behind the join           */
        atomic_store_explicit(&w->failed, true, memory_order_relaxed);
}

static int
flush(di_model_t *m, warm_t *w)
{
    int rc = DI_OK;

    if (w->n > 0) {
        m->ops->host_call(m->stream, populate, w, w->n);
        rc = m->ops->stream_sync(m->stream);
    }
    w->n = 0;
    return rc;
}

/* Add a tensor, a piece at a time. */
static int
add(di_model_t *m, warm_t *w, const di_st_tensor_t *t)
{
    int rc = DI_OK;

    for (size_t at = 0; at < t->bytes && rc == DI_OK; at += PIECE) {
        if (w->n == PIECES_MAX)
            rc = flush(m, w);
        w->data[w->n] = t->data + at;
        w->bytes[w->n++] = t->bytes - at < PIECE ? t->bytes - at : PIECE;
    }
    return rc;
}

int
di_v41_warm(di_model_t *m, const char *prefix, di_err_t *err)
{
    const di_v41_t *s = m->state;
    warm_t          w = { .n = 0 };
    uint32_t        file = 0;
    int             rc = DI_OK;

    for (size_t i = 0; i < di_st_n_tensors(s->st) && rc == DI_OK; i++) {
        const di_st_tensor_t *t = di_st_tensor(s->st, i);

        if (strncmp(t->name, prefix, strlen(prefix)) != 0 || !is_mapped(t))
            continue;
        file = t->file;
        rc = add(m, &w, t);
    }
    if (rc == DI_OK)
        rc = flush(m, &w);
    if (rc == DI_OK && atomic_load_explicit(&w.failed, memory_order_relaxed))
        rc = di_err_set(err, DI_EIO, 0, "%.60s: can't read the weights of "
                        "%.20s*", di_st_file(s->st, file), prefix);
    return rc;
}
