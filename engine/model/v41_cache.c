/*
 * v41_cache.c - the layout of KV blocks and state slots.
 *
 * Blocks and slots are padded so that records never begin at different
 * offsets from a record's own size: a device may address an arena as an array
 * of records.
 */

#include <string.h>

#include "v41_cache.h"

static uint64_t
record_bytes(const di_cache_t *c)
{
    return c->exact ? c->dim * sizeof(float)
                    : di_cast_data_bytes(c->cast, c->dim)
                      + di_cast_scale_bytes(c->cast, c->dim);
}

static uint64_t
gcd(uint64_t a, uint64_t b)
{
    while (b != 0) {
        uint64_t r = a % b;

        a = b;
        b = r;
    }
    return a;
}

/* The next multiple of a and b. */
static uint64_t
pad(uint64_t bytes, uint64_t a, uint64_t b)
{
    uint64_t both = a / gcd(a, b) * b;

    return (bytes + both - 1) / both * both;
}

/* Add n records; returns the bytes that they take. */
static uint64_t
place(di_cache_t *c, uint64_t at, uint32_t n, uint32_t dim, di_cast_t cast,
      bool exact)
{
    *c = (di_cache_t) { .at = at, .n = n, .dim = dim, .cast = cast,
                        .exact = exact };
    return n * record_bytes(c);
}

static void
lay_out_block(const di_v41_conf_t *c, bool exact, di_v41_layout_t *l)
{
    const di_cast_t cast = c->fp4_kv ? DI_CAST_E2M1_16 : DI_CAST_E4M3_32;
    uint64_t        at = 0, record = 1;

    for (uint32_t i = 0; i < c->n_layers; i++) {
        uint32_t n = c->ratio[i] > 0 ? DI_V41_BLOCK / c->ratio[i] : 0;

        if (c->ratio[i] > 0 && di_v41_owns_keys(c, i)) {
            at += place(&l->keys[i], at, n, c->index_dim, DI_CAST_E2M1_32,
                        exact);
            at = pad(at, 32, 1);
            l->keys[i].apart = !exact;
        }
        if (c->ratio[i] > 0 && di_v41_owns_kv(c, i)) {
            at += place(&l->kv[i], at, n, c->head_dim, cast, exact);
            record = record_bytes(&l->kv[i]);
        }
    }
    l->token_bytes = at / DI_V41_BLOCK;
    l->block_bytes = pad(at > 0 ? at : 1, DI_V41_BLOCK, record);
    for (uint32_t i = 0; i < c->n_layers; i++)
        l->keys[i].stride = l->kv[i].stride = l->block_bytes;
}

static void
lay_out_slot(const di_v41_conf_t *c, bool exact, di_v41_layout_t *l)
{
    const uint32_t n_rings = c->n_layers + c->n_stages;
    uint64_t       at = 0;

    for (uint32_t i = 0; i < n_rings; i++) {
        if (i == c->first_consumer)
            l->kept_bytes = at;
        at += place(&l->ring[i], at, c->window + DI_V41_BACKTRACK,
                    c->head_dim, DI_CAST_E4M3_32, exact);
    }
    if (c->first_consumer == n_rings)
        l->kept_bytes = at;
    l->ring_bytes = at;

    at = pad(at, 32, 1);
    for (uint32_t i = 0; i < c->n_layers; i++) {
        if (c->ratio[i] == 2 && di_v41_owns_kv(c, i)) {
            uint64_t bytes = place(&l->pairs[i], at,
                                   2 + DI_V41_BACKTRACK - 1, 2 * c->head_dim,
                                   DI_CAST_E4M3_32, true);

            l->pair_bytes += bytes;
            at += bytes;
        }
    }
    l->slot_bytes = pad(at, 32, record_bytes(&l->ring[0]));
    for (uint32_t i = 0; i < n_rings; i++)
        l->ring[i].stride = l->slot_bytes;
    for (uint32_t i = 0; i < c->n_layers; i++)
        l->pairs[i].stride = l->slot_bytes;
}

void
di_v41_layout(const di_v41_conf_t *c, bool exact, di_v41_layout_t *l)
{
    memset(l, 0, sizeof(*l));
    lay_out_block(c, exact, l);
    lay_out_slot(c, exact, l);
}
