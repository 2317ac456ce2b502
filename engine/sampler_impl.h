/*
 * sampler_impl.h - the sampler's own structures: rows become weights in
 * sampler.c, and tokens are drawn from those in sampler_draw.c.
 */

#ifndef DI_SAMPLER_IMPL_H
#define DI_SAMPLER_IMPL_H

#include <stdbool.h>

#include "di_sampler.h"
#include "sampler_row.h"

#define DI_SAMPLER_LANES_MAX  8192  /* fewer ids: a lane is one id           */
#define DI_SAMPLER_RADIX      2048u /* buckets of a level of the selection   */
#define DI_SAMPLER_LIGHT      0x1p-10f  /* of the heaviest id: those lighter
                                     * are drawn as one, and not drafted    */
#define DI_SAMPLER_DRAFT_SEED 1000000007u   /* added to the seed for drafts */

typedef struct {
    uint32_t id;
    uint32_t key;                /* its logit, in integers of like order    */
    float    e;                  /* its mass                                */
} di_sampler_kept_t;

struct di_sampler_s {
    const di_row_ops_t *ops;
    uint32_t            vocab;
    uint32_t            n_kept;
    float              *row;     /* [vocab] edited logits                   */
    float              *e;       /* [vocab] e^((logit - max) / temperature) */
    uint32_t           *counts;  /* [vocab] of tokens; 0 between calls      */
    uint32_t           *ids;     /* [vocab] found by a pass                 */
    di_sampler_kept_t  *kept;    /* [vocab] what survives, ids ascending    */
    uint32_t           *lanes;   /* [DI_SAMPLER_LANES_MAX] sums of weights  */
    uint32_t            bucket_n[DI_SAMPLER_RADIX];
    double              bucket_mass[DI_SAMPLER_RADIX];
};

/* Weights to draw by: those of all ids, in e, or of the kept ones. */
typedef struct {
    bool   all;
    double mass;                 /* sum of the weights                      */
    double whole;                /* what it was before a draft's were taken
                                  * away                                    */
} di_sampler_dist_t;

/* Draw from the numbers of a stream.  Spoils the weights. */
int32_t di_sampler_race(di_sampler_t *s, const di_sampler_dist_t *d,
                        uint64_t seed, uint64_t stream);

/* The draft, or the token that takes its place.  Spoils the weights. */
int32_t di_sampler_verify(di_sampler_t *s, const di_sampler_dist_t *d,
                          uint64_t seed, uint32_t position, int32_t draft,
                          const di_sampler_from_t *from);

#endif
