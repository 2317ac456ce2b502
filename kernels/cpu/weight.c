/*
 * weight.c - weights: stacked parts, repacked by the pool at open.
 *
 * A weight keeps pointing at the file's bytes: the embedding looks rows up in
 * them, and kernels without a layout of their own (the reference) read them.
 * So do all kernels with micro formats (wtype.h), which may be larger than
 * memory.  Otherwise each part is repacked in panels of 16 output columns,
 * one piece of a chunk (arena.c); every panel is an independent part of one
 * op.
 */

#include "cpu.h"

#include <stdlib.h>

size_t
di_cpu_weight_bytes(const di_weight_t *weight)
{
    return weight->bytes;
}

void
di_cpu_weight_close(di_dev_t *dev, di_weight_t *weight)
{
    (void) dev;
    if (weight == NULL)
        return;
    di_cpu_chunk_unref(weight->chunk);
    free(weight);
}

typedef struct {
    const di_cpu_kern_t *kern;
    const di_weight_t   *weight;
} pack_t;

static void
pack_panel(void *arg, size_t i)
{
    const pack_t *a = arg;
    const di_cpu_wpart_t *part = a->weight->parts;

    while (i >= part->first_panel + part->n_panels)
        part++;
    if (part->panel_bytes == 0)
        return;
    a->kern->pack(part, a->weight->k, i - part->first_panel);
}

/* The op has at most DI_CPU_PARTS_MAX parts: each takes every n-th panel. */
static void
pack_run(const di_cpu_op_t *op, size_t i, di_cpu_worker_t *worker)
{
    const pack_t *a = op->u.host.arg;

    (void) worker;
    for (; i < a->weight->n_panels; i += op->n_parts)
        pack_panel(op->u.host.arg, i);
}

static int
pack(di_dev_t *dev, di_weight_t *weight)
{
    pack_t arg = { dev->kern, weight };
    di_cpu_op_t op = { .run = pack_run, .dev = dev };
    di_cpu_run_t run = { &op, 1 };
    uint8_t *at;

    at = di_cpu_chunk_alloc(dev, weight->memory_bytes, &weight->chunk);
    if (at == NULL)
        return DI_ENOMEM;

    for (size_t i = 0; i < weight->n_parts; i++) {
        weight->parts[i].packed = at;
        at += weight->parts[i].n_panels * weight->parts[i].panel_bytes;
    }

    op.n_parts = weight->n_panels < 4096 ? weight->n_panels : 4096;
    op.u.host.arg = &arg;
    di_cpu_pool_run(dev->pool, &run, 1);
    return DI_OK;
}

static void
add_part(const di_cpu_kern_t *kern, di_weight_t *weight, const di_wpart_t *in)
{
    di_cpu_wpart_t *part = &weight->parts[weight->n_parts++];

    part->type = in->type;
    part->data = in->data;
    part->scales = in->scales;
    part->row_bytes = di_wtype_bytes(in->type, weight->k);
    part->n = in->n;
    part->first = weight->n;
    part->n_panels = (in->n + DI_CPU_PANEL - 1) / DI_CPU_PANEL;
    part->first_panel = weight->n_panels;
    part->panel_bytes = di_wtype_is_micro(in->type)
                        ? 0 : kern->panel_bytes(in->type, weight->k);

    weight->n += part->n;
    weight->n_panels += part->n_panels;
    weight->memory_bytes += part->n_panels * part->panel_bytes;
    weight->bytes += part->panel_bytes
                     ? part->n_panels * part->panel_bytes
                     : part->n * part->row_bytes
                       + di_wtype_scale_bytes(in->type, in->n, weight->k);
}

/* Micro formats and integer codes are not for every arithmetic. */
static bool
has_product(const di_cpu_kern_t *kern, di_wtype_t type)
{
    if (di_wtype_is_micro(type))
        return kern->matmul_micro != NULL;
    return kern->arith != DI_ARITH_MX || di_wtype_codes(type) == NULL;
}

int
di_cpu_weight_open(di_dev_t *dev, const di_wpart_t *parts, size_t n_parts,
                   size_t k, di_weight_t **out, di_err_t *err)
{
    di_weight_t *weight;
    size_t block;
    int rc;

    for (size_t i = 0; i < n_parts; i++) {
        block = di_wtype_block(parts[i].type);
        if (block == 0)
            return di_err_set(err, DI_EUNSUPPORTED, 0,
                              "weights of type %d", (int) parts[i].type);
        if (!has_product(dev->kern, parts[i].type))
            return di_err_set(err, DI_EUNSUPPORTED, 0, "%s has no products "
                              "with %s", dev->kern->name,
                              di_wtype_name(parts[i].type));
        if (k == 0 || k % DI_WBLOCK != 0 || k % block != 0)
            return di_err_set(err, DI_EUNSUPPORTED, 0,
                              "rows of %zu values in %s: not a multiple of "
                              "%zu", k, di_wtype_name(parts[i].type),
                              block > DI_WBLOCK ? block : DI_WBLOCK);
        if (k > DI_CPU_K_MAX)
            return di_err_set(err, DI_ELIMIT, 0,
                              "rows of %zu values: more than %d", k,
                              DI_CPU_K_MAX);
        if (parts[i].n == 0)
            return di_err_set(err, DI_EINVAL, 0, "weights without rows");
        if (di_wtype_is_micro(parts[i].type) && parts[i].scales == NULL)
            return di_err_set(err, DI_EINVAL, 0, "%s weights without scales",
                              di_wtype_name(parts[i].type));
    }

    weight = calloc(1, sizeof(*weight) + n_parts * sizeof(weight->parts[0]));
    if (weight == NULL)
        return di_err_set(err, DI_ENOMEM, 0, "no memory for weights");

    weight->k = k;
    for (size_t i = 0; i < n_parts; i++)
        add_part(dev->kern, weight, &parts[i]);

    if (weight->memory_bytes > 0) {
        rc = pack(dev, weight);
        if (rc != DI_OK) {
            rc = di_err_set(err, rc, 0, "no memory for %zu bytes of weights",
                            weight->memory_bytes);
            di_cpu_weight_close(dev, weight);
            return rc;
        }
    }
    *out = weight;
    return DI_OK;
}
