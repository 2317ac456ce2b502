/*
 * sampler_draw.c - draws by weights, with and without a draft.
 *
 * A draw is a race: every id has an exponential variable of its own, made of
 * seed, stream and id, divides it by its weight, and the smallest quotient
 * wins.  An id wins with exactly its weight's share.  Two rows that are drawn
 * from with the same numbers mostly have the same winner if they are alike:
 * with a chance of at least (1 - d) / (1 + d), d being the distance of the
 * two (half the sum of differences), and no way to choose without knowing the
 * other row does better in all cases.  This is how drafts of requests with a
 * seed are drawn.  Source: Daliri, Musco, Suresh, arXiv:2408.07978.
 *
 * Ids lighter than DI_SAMPLER_LIGHT run as one, with their weights' sum: the
 * smallest of their quotients would be distributed like its quotient.  So a
 * few dozen variables are made for a row instead of one for each id, and for
 * a flat row, where that would leave too many, HEAVY_MAX at most.  If they
 * win, one of them is drawn in integers: weights floor(p * 2^31), a number
 * below their total from unbiased rejection, and two levels (lane = id mod
 * 2048, then the ids of the lane), the same on a device whatever the order it
 * adds in.  Source of that, and of the streams: DeepInfer 0.1.0's sampler.
 *
 * A draft d that was drawn by probabilities q stays with probability
 * min(1, p(d) / q(d)), and is replaced by a draw by max(p - q, 0) otherwise:
 * what comes out is distributed by p.  Source: arXiv:2211.17192.
 */

#include <assert.h>
#include <math.h>
#include <string.h>

#include "sampler_impl.h"

#define HEAVY_MAX      512       /* ids that run by themselves              */
#define STREAM_REPLACE 1         /* beside 0, the draw's                    */
#define STREAM_ACCEPT  2
#define STREAM_LIGHT   (UINT64_C(1) << 62)   /* of the light ids            */
#define LEAST_MASS     0x1p-17   /* part of a whole: sums of floats may be
                                  * off by half of it                       */

/* The best one so far. */
typedef struct {
    uint64_t seed, stream;
    double   best;               /* quotient                                */
    double   mass;               /* of those that ran                       */
    int32_t  id;                 /* -1: none                                */
} race_t;


/* The words 4 i to 4 i + 3 of a stream. */
static void
philox(uint64_t seed, uint64_t subsequence, uint32_t i, uint32_t c[4])
{
    uint32_t k0 = (uint32_t) seed, k1 = (uint32_t) (seed >> 32);
    uint64_t a, b;
    int      round;

    c[0] = i;
    c[1] = 0;
    c[2] = (uint32_t) subsequence;
    c[3] = (uint32_t) (subsequence >> 32);
    for (round = 0; round < 10; round++) {
        a = (uint64_t) 0xD2511F53u * c[0];
        b = (uint64_t) 0xCD9E8D57u * c[2];
        c[0] = (uint32_t) (b >> 32) ^ c[1] ^ k0;
        c[1] = (uint32_t) b;
        c[2] = (uint32_t) (a >> 32) ^ c[3] ^ k1;
        c[3] = (uint32_t) a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}


uint32_t
di_sampler_random(uint64_t seed, uint64_t subsequence, uint32_t i)
{
    uint32_t c[4];

    philox(seed, subsequence, i / 4, c);
    return c[i % 4];
}


/* -------------------------------------------------------------- in integers */

static uint32_t
n_lanes(uint32_t n)
{
    return n < DI_SAMPLER_LANES_MAX ? n : DI_ROW_LANES;
}


/* A number below total (not 0), without bias. */
static uint32_t
draw_below(uint32_t total, uint64_t seed, uint64_t stream)
{
    uint32_t x, i = 0, limit = UINT32_MAX / total * total;

    do {
        x = di_sampler_random(seed, stream, i++);
    } while (x >= limit);
    return x % total;
}


/* Choose a lane; *r becomes the rest within it.  False: they are empty. */
static bool
draw_lane(const di_sampler_t *s, uint32_t lanes, uint64_t seed,
          uint64_t stream, uint32_t *lane, uint32_t *r)
{
    uint32_t i, total = 0;

    for (i = 0; i < lanes; i++)
        total += s->lanes[i];
    if (total == 0)
        return false;
    *r = draw_below(total, seed, stream);
    for (i = 0; *r >= s->lanes[i]; i++)
        *r -= s->lanes[i];
    *lane = i;
    return true;
}


/* Draw from all n ids; p * scale are the probabilities.  -1: they are 0. */
static int32_t
draw_all(di_sampler_t *s, const float *p, uint32_t n, float scale,
         uint64_t seed, uint64_t stream)
{
    uint32_t lanes = n_lanes(n), i, r, w;

    if (lanes == n) {
        for (i = 0; i < n; i++)
            s->lanes[i] = di_row_weight(p[i], scale);
    } else {
        memset(s->lanes, 0, lanes * sizeof(uint32_t));
        s->ops->lanes(p, n, scale, s->lanes);
    }

    if (!draw_lane(s, lanes, seed, stream, &i, &r))
        return -1;
    for ( ; ; i += lanes) {
        w = di_row_weight(p[i], scale);
        if (r < w)
            return (int32_t) i;
        r -= w;
    }
}


/* The same over the kept ids alone. */
static int32_t
draw_kept(di_sampler_t *s, float scale, uint64_t seed, uint64_t stream)
{
    uint32_t                 lanes = n_lanes(s->vocab), lane, i, r, w;
    const di_sampler_kept_t *k;

    memset(s->lanes, 0, lanes * sizeof(uint32_t));
    for (i = 0; i < s->n_kept; i++) {
        k = &s->kept[i];
        s->lanes[k->id % lanes] += di_row_weight(k->e, scale);
    }

    if (!draw_lane(s, lanes, seed, stream, &lane, &r))
        return -1;
    for (k = s->kept; ; k++) {
        if (k->id % lanes != lane)
            continue;
        w = di_row_weight(k->e, scale);
        if (r < w)
            return (int32_t) k->id;
        r -= w;
    }
}


int32_t
di_sampler_draw(di_sampler_t *s, const float *p, uint32_t n, uint64_t seed,
                uint32_t position)
{
    return draw_all(s, p, n, 1.0f, seed, (uint64_t) position * 3);
}


/* ----------------------------------------------------------------- the race */

/* Exponential variable number i of a stream, from 53 bits. */
static double
exponential(uint64_t seed, uint64_t stream, uint32_t i)
{
    uint32_t c[4];
    uint64_t w;

    philox(seed, stream, i / 2, c);
    w = (uint64_t) c[i % 2 * 2] << 32 | c[i % 2 * 2 + 1];
    return -log(((double) (w >> 11) + 0.5) * 0x1p-53);
}


static void
run(race_t *r, uint32_t id, float weight)
{
    double quotient = exponential(r->seed, r->stream, id) / (double) weight;

    r->mass += (double) weight;
    if (quotient < r->best) {
        r->best = quotient;
        r->id = (int32_t) id;
    }
}


static void
run_heavy_of_all(di_sampler_t *s, race_t *r)
{
    float    light = DI_SAMPLER_LIGHT;
    uint32_t n = s->ops->select(s->e, s->vocab, light, s->ids), i, left;

    for ( ; n > HEAVY_MAX; n = left) {
        light *= 4;
        for (i = left = 0; i < n; i++) {
            s->ids[left] = s->ids[i];
            left += s->e[s->ids[i]] >= light;
        }
    }
    for (i = 0; i < n; i++) {
        run(r, s->ids[i], s->e[s->ids[i]]);
        s->e[s->ids[i]] = 0;     /* for the light ones' draw                */
    }
}


static uint32_t
n_heavy(const di_sampler_t *s, float light)
{
    uint32_t i, n = 0;

    for (i = 0; i < s->n_kept; i++)
        n += s->kept[i].e >= light;
    return n;
}


/* Returns the light ones' mass. */
static double
run_heavy_of_kept(di_sampler_t *s, race_t *r)
{
    float              light = DI_SAMPLER_LIGHT;
    double             light_mass = 0;
    di_sampler_kept_t *k, *end = s->kept + s->n_kept;

    while (n_heavy(s, light) > HEAVY_MAX)
        light *= 4;
    for (k = s->kept; k < end; k++) {
        if (k->e >= light) {
            run(r, k->id, k->e);
            k->e = 0;
        } else {
            light_mass += (double) k->e;
        }
    }
    return light_mass;
}


/* The scale leaves room for what the mass may be off by. */
static int32_t
draw_light(di_sampler_t *s, const di_sampler_dist_t *d, double mass,
           uint64_t seed, uint64_t stream)
{
    float scale = (float) (0.25 / fmax(mass, LEAST_MASS * d->whole));

    return d->all ? draw_all(s, s->e, s->vocab, scale, seed, stream)
                  : draw_kept(s, scale, seed, stream);
}


int32_t
di_sampler_race(di_sampler_t *s, const di_sampler_dist_t *d, uint64_t seed,
                uint64_t stream)
{
    race_t  r = { .seed = seed, .stream = stream, .best = INFINITY, .id = -1 };
    double  light;
    int32_t id = -1;

    if (d->all) {
        run_heavy_of_all(s, &r);
        light = d->mass - r.mass;
    } else {
        light = run_heavy_of_kept(s, &r);
    }
    if (light > 0 && exponential(seed, stream, s->vocab) / light < r.best)
        id = draw_light(s, d, light, seed, stream | STREAM_LIGHT);
    if (id < 0)                  /* light was a remnant of rounding         */
        id = r.id;
    assert(id >= 0);
    return id;
}


/* ------------------------------------------------------------------- drafts */

/* Of two lists of ids, both ascending: where `id` is in the kept ones from
 * `at` on, or would be. */
static uint32_t
kept_at(const di_sampler_t *s, uint32_t at, uint32_t id)
{
    while (at < s->n_kept && s->kept[at].id < id)
        at++;
    return at;
}


/* The weight of an id, NULL if it has none; *at as above, for kept ids. */
static float *
weight_of(di_sampler_t *s, const di_sampler_dist_t *d, uint32_t *at,
          int32_t id)
{
    if (d->all)
        return &s->e[id];
    *at = kept_at(s, *at, (uint32_t) id);
    if (*at == s->n_kept || s->kept[*at].id != (uint32_t) id)
        return NULL;
    return &s->kept[*at].e;
}


/* Does the draft stay? */
static bool
stays(di_sampler_t *s, const di_sampler_dist_t *d, uint64_t seed,
      uint32_t position, int32_t draft, const di_sampler_from_t *from)
{
    uint32_t     at = 0, i = 0, x;
    const float *w = weight_of(s, d, &at, draft);
    double       u;

    while (i < from->n && from->ids[i] != draft)
        i++;
    assert(i < from->n);         /* it was drawn from there                 */
    if (w == NULL)
        return false;
    x = di_sampler_random(seed, (uint64_t) position * 3 + STREAM_ACCEPT, 0);
    u = ((double) x + 0.5) * 0x1p-32;
    return u * (double) from->p[i] * d->mass < (double) *w;
}


/* Take the draft's probabilities away from the weights, or only count what
 * would be left. */
static double
take_away(di_sampler_t *s, const di_sampler_dist_t *d,
          const di_sampler_from_t *from, bool count)
{
    double   mass = d->mass, q;
    uint32_t i, at = 0;
    float   *w;

    for (i = 0; i < from->n; i++) {
        w = weight_of(s, d, &at, from->ids[i]);
        if (w == NULL)
            continue;
        q = fmin((double) from->p[i] * d->mass, (double) *w);
        mass -= q;
        if (!count)
            *w = (float) ((double) *w - q);
    }
    return mass;
}


int32_t
di_sampler_verify(di_sampler_t *s, const di_sampler_dist_t *d, uint64_t seed,
                  uint32_t position, int32_t draft,
                  const di_sampler_from_t *from)
{
    const uint64_t    stream = (uint64_t) position * 3 + STREAM_REPLACE;
    di_sampler_dist_t rest = *d;

    if (stays(s, d, seed, position, draft, from))
        return draft;
    rest.mass = take_away(s, d, from, true);
    if (rest.mass > LEAST_MASS * d->mass)
        (void) take_away(s, d, from, false);
    else                         /* both are the same, but for rounding     */
        rest.mass = d->mass;
    return di_sampler_race(s, &rest, seed, stream);
}
