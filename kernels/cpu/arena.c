/*
 * arena.c - memory of packed weights: few large mappings for many matrices.
 *
 * A layer's matrices are smaller than a huge page, and a mapping of their own
 * each would leave the whole model on 4 KB pages: a decode step, which reads
 * all of it once, then pays for a walk of the page table (nested, under a
 * hypervisor) every 4 KB.  So matrices are cut from chunks of 64 MB, which
 * the kernel backs with huge pages.  A chunk is unmapped when the last matrix
 * in it is closed and the device no longer cuts from it.
 */

#include "cpu.h"

#include <stdlib.h>

#define CHUNK_BYTES ((size_t) 64 << 20)

void
di_cpu_chunk_unref(di_cpu_chunk_t *chunk)
{
    if (chunk == NULL || --chunk->refs > 0)
        return;
    di_cpu_unmap(chunk->data, chunk->bytes);
    free(chunk);
}

static di_cpu_chunk_t *
chunk_open(size_t bytes)
{
    di_cpu_chunk_t *chunk = calloc(1, sizeof(*chunk));

    if (chunk == NULL)
        return NULL;
    chunk->bytes = bytes > CHUNK_BYTES ? bytes : CHUNK_BYTES;
    chunk->refs = 1;
    chunk->data = di_cpu_map(chunk->bytes);
    if (chunk->data == NULL) {
        free(chunk);
        return NULL;
    }
    return chunk;
}

void *
di_cpu_chunk_alloc(di_dev_t *dev, size_t bytes, di_cpu_chunk_t **chunk)
{
    di_cpu_chunk_t *c = dev->chunk;
    void *p;

    bytes = (bytes + 63) & ~(size_t) 63;
    if (c == NULL || c->bytes - c->used < bytes) {
        c = chunk_open(bytes);
        if (c == NULL)
            return NULL;
        di_cpu_chunk_unref(dev->chunk);
        dev->chunk = c;
    }
    p = c->data + c->used;
    c->used += bytes;
    c->refs++;
    *chunk = c;
    return p;
}
