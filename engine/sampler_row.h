/*
 * sampler_row.h - the sampler's passes over a whole row of logits.
 *
 * A set of functions per instruction set, all with the same bits.
 */

#ifndef DI_SAMPLER_ROW_H
#define DI_SAMPLER_ROW_H

#include <stddef.h>
#include <stdint.h>

#define DI_ROW_LANES 2048

typedef struct {
    float    max;                /* -inf if nothing is larger               */
    uint32_t index;              /* the first of those that have it         */
    uint32_t bad;                /* not 0: the row has a NaN                */
} di_row_max_t;

typedef struct {
    /* Largest of x [n]. */
    void (*max)(const float *x, size_t n, di_row_max_t *out);

    /* Sum of e^((x - max) * scale) over x [n], none above max; the terms go
     * to e [n] unless that is NULL.  Relative error of a term below 3e-7;
     * those below e^-87 are 0. */
    double (*exp)(const float *x, size_t n, float max, float scale, float *e);

    /* First index from `from` on with x > bound, else n. */
    size_t (*above)(const float *x, size_t from, size_t n, float bound);

    /* Indexes with x >= bound, ascending, to ids [n]; how many. */
    uint32_t (*select)(const float *x, size_t n, float bound, uint32_t *ids);

    /* lanes[i mod DI_ROW_LANES] += floor(p[i] * scale * 2^31). */
    void (*lanes)(const float *p, size_t n, float scale, uint32_t *lanes);
} di_row_ops_t;

/* The fastest set that this CPU has; and the set numbered i (0 = plain C),
 * NULL when this CPU lacks it or there is none: tests. */
const di_row_ops_t *di_row_ops(void);
const di_row_ops_t *di_row_ops_at(unsigned i);

/* The weight of a probability in a draw: the same as in lanes(). */
static inline uint32_t
di_row_weight(float p, float scale)
{
    return (uint32_t) (p * scale * 0x1p31f);
}

#endif
