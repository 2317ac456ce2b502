/*
 * model.c - arbitrary bytes as a model file: refused, or loaded and run.
 *
 * What the loader accepts must be sound enough to compute with: one step of
 * a few rows follows, in an arithmetic that the last byte chooses.  The kept
 * corpus holds one small model of each architecture and some weight types, as
 * t/unit/tiny_model.h makes them with a width of 32.
 */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/model/di_model.h"

static void
run(di_model_t *m)
{
    static const int32_t  tokens[] = { 0, 0, 0 };
    static const uint32_t blocks[] = { 1 };
    const di_model_seq_t  s = { .tokens = tokens,
        .blocks = blocks, .n_rows = 3, .n_logits = 2 };
    const float          *logits;

    if (di_model_info(m)->max_model_len < 3)
        return;
    if (di_model_step(m, &s, 1) != DI_OK)
        abort();
    (void) di_model_wait(m, &logits);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    di_model_conf_t conf = { .n_threads = 1, .max_rows = 4, .max_seqs = 2 };
    di_model_t     *m = NULL;
    di_err_t        err = { 0 };
    char            path[32];
    int             fd = memfd_create("model", MFD_CLOEXEC);

    if (fd < 0 || write(fd, data, len) != (ssize_t) len)
        abort();
    (void) snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    conf.arith = (di_arith_t) (1 + (len > 0 ? data[len - 1] : 0) % 3);

    if (di_model_open(path, &conf, &m, &err) == DI_OK)
        run(m);
    else if (err.code == DI_OK || err.text[0] == '\0')
        abort();
    di_model_close(m);
    (void) close(fd);
    return 0;
}
