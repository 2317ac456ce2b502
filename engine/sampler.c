/*
 * sampler.c - bias, penalties, truncation, draw.
 *
 * Greedy rows are one pass.  A sampled row is three: maximum, exponentials,
 * draw.  Truncation (top-p, top-k, min-p) never sorts.  Each of them keeps a
 * prefix of the order (logit descending, id ascending), hence so do all of
 * them together, and only the end of that prefix has to be found:
 *
 *   1. Ids whose mass is so small that all like them together can't reach
 *      the part that top-p cuts off are out.  Mostly the ids of at least
 *      1/128 of the highest probability are enough already: a few dozen.
 *   2. Radix selection over the bits of their logits, 11 at a time, with
 *      counts and masses per bucket, finds the logit at the end and how many
 *      of the ids that have it belong.
 *
 * The draw is made in integers: weights floor(p * 2^31), a number below
 * their total from unbiased rejection, and two levels (lane = id mod 2048,
 * then the ids of the lane), so that a device draws the same token whatever
 * the order it adds in.  Source of the scheme: DeepInfer 0.1.0's sampler.
 */

#include <assert.h>
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "di_sampler.h"
#include "sampler_row.h"

#define ONE_LEVEL       8192    /* fewer ids than this: a lane is one id    */
#define RADIX           2048u   /* buckets of a level of the selection      */
#define LIKELY          0x1p-7f /* of the most likely id's probability      */
#define LESS_LIKELY     0x1p-4f /* of LIKELY, and so on                     */

typedef struct {
    uint32_t id;
    uint32_t key;                /* its logit, in integers of like order    */
    float    e;                  /* its mass                                */
} kept_t;

struct di_sampler_s {
    const di_row_ops_t *ops;
    uint32_t            vocab;
    uint32_t            n_kept;
    float              *row;     /* [vocab] edited logits                   */
    float              *e;       /* [vocab] e^((logit - max) / temperature) */
    uint32_t           *counts;  /* [vocab] of tokens; 0 between calls      */
    uint32_t           *ids;     /* [vocab] found by a pass                 */
    kept_t             *kept;    /* [vocab] what survives, ids ascending    */
    uint32_t           *lanes;   /* [ONE_LEVEL] sums of weights             */
    uint32_t            bucket_n[RADIX];
    double              bucket_mass[RADIX];
};

/* How much of a distribution is kept: ids from the most likely on, while
 * fewer than n_max came before and their mass is at most mass_max. */
typedef struct {
    double   mass_max;
    uint32_t n_max;
    uint32_t n;                  /* came before                             */
    double   mass;
} budget_t;


int
di_sampler_open(uint32_t vocab, di_sampler_t **out, di_err_t *err)
{
    di_sampler_t *s;

    if (vocab == 0 || vocab > INT32_MAX)
        return di_err_set(err, DI_EINVAL, 0, "a vocabulary of %u", vocab);

    s = calloc(1, sizeof(*s));
    if (s == NULL)
        goto nomem;
    s->ops = di_row_ops();
    s->vocab = vocab;
    s->row = malloc((size_t) vocab * sizeof(float));
    s->e = malloc((size_t) vocab * sizeof(float));
    s->counts = calloc(vocab, sizeof(uint32_t));
    s->ids = malloc((size_t) vocab * sizeof(uint32_t));
    s->kept = malloc((size_t) vocab * sizeof(kept_t));
    s->lanes = malloc(ONE_LEVEL * sizeof(uint32_t));
    if (s->row == NULL || s->e == NULL || s->counts == NULL
        || s->ids == NULL || s->kept == NULL || s->lanes == NULL)
        goto nomem;
    *out = s;
    return DI_OK;

nomem:
    di_sampler_close(s);
    return di_err_set(err, DI_ENOMEM, 0, "no memory for a sampler");
}


void
di_sampler_close(di_sampler_t *s)
{
    if (s == NULL)
        return;
    free(s->lanes);
    free(s->kept);
    free(s->ids);
    free(s->counts);
    free(s->e);
    free(s->row);
    free(s);
}


uint32_t
di_sampler_random(uint64_t seed, uint64_t subsequence, uint32_t i)
{
    uint32_t c[4] = { i / 4, 0, (uint32_t) subsequence,
                      (uint32_t) (subsequence >> 32) };
    uint32_t k0 = (uint32_t) seed, k1 = (uint32_t) (seed >> 32);
    uint64_t a, b;
    int      round;

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
    return c[i % 4];
}


/* -------------------------------------------------------- log-probabilities */

/* Put the n best of a row, ties by smaller id, into out->top.  Ids come in
 * ascending order, so one that equals the worst kept is never better. */
static void
top_n(di_sampler_t *s, const float *x, uint32_t n, di_sample_out_t *out)
{
    size_t   i;
    uint32_t at, n_top = 0;
    float    bound = -INFINITY;

    for (i = 0; i < s->vocab && n > 0; i++) {
        if (n_top == n) {
            bound = out->top[n - 1].logprob;
            i = s->ops->above(x, i, s->vocab, bound);
            if (i == s->vocab)
                break;
        } else {
            n_top++;
        }
        for (at = n_top - 1; at > 0 && out->top[at - 1].logprob < x[i]; at--)
            out->top[at] = out->top[at - 1];
        out->top[at] = (di_top_logprob_t) { (int32_t) i, x[i] };
    }
    out->n_top = n_top;
}


/* A log-probability in the range that JSON and float can carry. */
static float
logprob_of(float x, const di_row_max_t *m, double log_sum)
{
    double l = (double) x - (double) m->max - log_sum;

    return l < -FLT_MAX ? -FLT_MAX : (float) l;
}


static int
fill_logprobs(di_sampler_t *s, const float *x, const di_row_max_t *m,
              int32_t token, uint32_t n_top, di_sample_out_t *out)
{
    double   log_sum = log(s->ops->exp(x, s->vocab, m->max, 1.0f, NULL));
    uint32_t i;

    out->logprob = token < 0 ? 0.0f : logprob_of(x[token], m, log_sum);
    top_n(s, x, n_top, out);
    for (i = 0; i < out->n_top; i++)
        out->top[i].logprob = logprob_of(out->top[i].logprob, m, log_sum);
    return DI_OK;
}


static int
row_max(const di_sampler_t *s, const float *x, di_row_max_t *m)
{
    s->ops->max(x, s->vocab, m);
    return m->bad || !isfinite(m->max) ? DI_EFORMAT : DI_OK;
}


int
di_sampler_logprobs(di_sampler_t *s, const float *logits, int32_t token,
                    uint32_t n_top, di_sample_out_t *out)
{
    di_row_max_t m;

    out->token = token;
    if (row_max(s, logits, &m) != DI_OK)
        return DI_EFORMAT;
    return fill_logprobs(s, logits, &m, token, n_top, out);
}


/* ---------------------------------------------------- bias, penalties, mask */

static void
penalise_repetition(di_sampler_t *s, const di_sample_in_t *in)
{
    float    r = in->params->repetition_penalty, *x;
    uint32_t i;

    for (i = 0; i < in->n_tokens; i++) {
        if (s->counts[in->tokens[i]]++ != 0)
            continue;
        x = &s->row[in->tokens[i]];
        *x = *x > 0 ? fminf(*x / r, FLT_MAX) : *x * r;
    }
    for (i = 0; i < in->n_tokens; i++)
        s->counts[in->tokens[i]] = 0;
}


static void
penalise_generated(di_sampler_t *s, const di_sample_in_t *in)
{
    const di_gen_params_t *p = in->params;
    uint32_t               i, *n;

    for (i = in->n_prompt; i < in->n_tokens; i++)
        s->counts[in->tokens[i]]++;
    for (i = in->n_prompt; i < in->n_tokens; i++) {
        n = &s->counts[in->tokens[i]];
        if (*n == 0)
            continue;
        s->row[in->tokens[i]] -= p->frequency_penalty * (float) *n
                                 + p->presence_penalty;
        *n = 0;
    }
}


static void
hide(float *to, uint32_t n)
{
    static const float nothing[64] = { [0 ... 63] = -INFINITY };
    uint32_t           part;

    for ( ; n > 0; n -= part, to += part) {
        part = n < 64 ? n : 64;
        memcpy(to, nothing, part * sizeof(float));
    }
}


/* The edited row from x, which may be that row: as the mask has it.  A word's
 * ids are written by its value or by its rarer bit, so that both a mask of a
 * few ids and one of nearly all cost about a copy. */
static void
mask_row(di_sampler_t *s, const float *x, const di_sample_in_t *in)
{
    size_t   words = in->n_mask_words, w;
    uint32_t at, n, i;
    uint64_t bits;
    bool     few;

    for (w = 0, at = 0; w < words && at < s->vocab; w++, at += n) {
        n = s->vocab - at < 64 ? s->vocab - at : 64;
        bits = in->mask[w];
        few = __builtin_popcountll(bits) < 16;
        if (bits == 0) {
            hide(s->row + at, n);
        } else if (few && x != s->row) {
            hide(s->row + at, n);
            for ( ; bits != 0; bits &= bits - 1) {
                i = (uint32_t) __builtin_ctzll(bits);
                if (i < n)
                    s->row[at + i] = x[at + i];
            }
        } else {
            if (x != s->row)
                memcpy(s->row + at, x + at, n * sizeof(float));
            for (bits = ~bits; bits != 0; bits &= bits - 1) {
                i = (uint32_t) __builtin_ctzll(bits);
                if (i < n)
                    s->row[at + i] = -INFINITY;
            }
        }
    }
    hide(s->row + at, s->vocab - at);
}


/* The row to choose from: the logits themselves if nothing changes them. */
static const float *
edit_row(di_sampler_t *s, const float *logits, const di_sample_in_t *in)
{
    const di_gen_params_t *p = in->params;
    uint32_t               i;
    bool repetition = p->repetition_penalty != 1.0f;
    bool generated = in->n_tokens > in->n_prompt
                     && (p->frequency_penalty != 0.0f
                         || p->presence_penalty != 0.0f);
    bool mask = in->mask == NULL
                && in->n_tokens - in->n_prompt < p->min_tokens;

    if (in->n_bias == 0 && !repetition && !generated && !mask) {
        if (in->mask == NULL)
            return logits;
        mask_row(s, logits, in);
        return s->row;
    }

    memcpy(s->row, logits, (size_t) s->vocab * sizeof(float));
    for (i = 0; i < in->n_bias; i++)
        s->row[in->bias[i].id] += in->bias[i].bias;
    if (repetition)
        penalise_repetition(s, in);
    if (generated)
        penalise_generated(s, in);
    if (mask) {
        for (i = 0; i < in->n_end_ids; i++)
            s->row[in->end_ids[i]] = -INFINITY;
        for (i = 0; i < in->n_stop_ids; i++)
            s->row[in->stop_ids[i]] = -INFINITY;
    }
    if (in->mask != NULL)
        mask_row(s, s->row, in);
    return s->row;
}


/* --------------------------------------------------------------- truncation */

/* A float's bits in an order that is the floats' own; both zeros are one. */
static uint32_t
order_key(float x)
{
    uint32_t u;

    x += 0.0f;
    memcpy(&u, &x, sizeof(u));
    return (u & 0x80000000u) != 0 ? ~u : u | 0x80000000u;
}


static bool
budget_left(const budget_t *b)
{
    return b->n < b->n_max && b->mass <= b->mass_max;
}


/* Histogram of the kept ids whose key agrees with prefix from bit `upper` on,
 * by the bits from `shift` to there. */
static void
fill_buckets(di_sampler_t *s, uint32_t prefix, int upper, int shift)
{
    const kept_t *k, *end = s->kept + s->n_kept;
    uint32_t      digit;

    memset(s->bucket_n, 0, sizeof(s->bucket_n));
    memset(s->bucket_mass, 0, sizeof(s->bucket_mass));
    for (k = s->kept; k < end; k++) {
        if ((uint64_t) (k->key ^ prefix) >> upper != 0)
            continue;
        digit = (k->key ^ prefix) >> shift;
        s->bucket_n[digit]++;
        s->bucket_mass[digit] += (double) k->e;
    }
}


/* The largest bucket that does not fit the budget whole, or -1. */
static int
walk_buckets(const di_sampler_t *s, budget_t *b)
{
    int i;

    for (i = RADIX - 1; i >= 0; i--) {
        if (s->bucket_n[i] == 0)
            continue;
        if (s->bucket_n[i] > b->n_max - b->n
            || b->mass + s->bucket_mass[i] > b->mass_max)
            return i;
        b->n += s->bucket_n[i];
        b->mass += s->bucket_mass[i];
    }
    return -1;
}


/* Cut the kept ids down to the budget.  The end of the prefix lies in the
 * first bucket that does not fit whole, so each level looks into one; the
 * last level's buckets are single values of a logit. */
static void
cut_to_budget(di_sampler_t *s, budget_t *b)
{
    static const int bits[] = { 32, 21, 10, 0 };
    uint32_t         prefix = 0, ties = UINT32_MAX, i, n = 0;
    int              level, bucket;
    double           each;

    for (level = 0; level < 3; level++) {
        fill_buckets(s, prefix, bits[level], bits[level + 1]);
        bucket = walk_buckets(s, b);
        if (bucket < 0)
            break;
        prefix |= (uint32_t) bucket << bits[level + 1];
    }
    if (level == 3) {
        each = s->bucket_mass[bucket] / s->bucket_n[bucket];
        for (ties = 0; budget_left(b) && ties < s->bucket_n[bucket]; ties++) {
            b->n++;
            b->mass += each;
        }
    }

    for (i = 0; i < s->n_kept; i++) {
        if (s->kept[i].key > prefix
            || (s->kept[i].key == prefix && ties > 0 && ties-- > 0))
            s->kept[n++] = s->kept[i];
    }
    s->n_kept = n;
}


static double
kept_mass(const di_sampler_t *s)
{
    double   mass = 0;
    uint32_t i;

    for (i = 0; i < s->n_kept; i++)
        mass += (double) s->kept[i].e;
    return mass;
}


/* Keep the ids that weigh at least `least`; their mass. */
static double
select_ids(di_sampler_t *s, const float *x, float least)
{
    uint32_t i, id;

    s->n_kept = s->ops->select(s->e, s->vocab, least, s->ids);
    for (i = 0; i < s->n_kept; i++) {
        id = s->ids[i];
        s->kept[i] = (kept_t) { id, order_key(x[id]), s->e[id] };
    }
    return kept_mass(s);
}


/* Choose the ids that survive top-p, top-k and min-p; sum is the mass of all.
 * Returns the mass of the survivors. */
static double
truncate_row(di_sampler_t *s, const float *x, const di_gen_params_t *p,
             double sum)
{
    budget_t b = { .mass_max = p->top_p < 1.0f ? (double) p->top_p * sum
                                                : INFINITY,
                   .n_max = p->top_k > 0 ? (uint32_t) p->top_k
                                         : UINT32_MAX };
    float    least = FLT_MIN, bound = LIKELY;
    double   mass;

    /* All ids below this weigh too little together to reach the cut. */
    if (p->top_p < 1.0f)
        least = (float) ((1.0 - (double) p->top_p) * sum / s->vocab / 2);
    if (least < p->min_p)
        least = p->min_p;
    if (least < FLT_MIN)
        least = FLT_MIN;

    /* Mostly the few likely ids overrun the budget already. */
    for ( ;; bound *= LESS_LIKELY) {
        mass = select_ids(s, x, bound > least ? bound : least);
        if (bound <= least || mass > b.mass_max || s->n_kept >= b.n_max)
            break;
    }
    if (mass <= b.mass_max && s->n_kept <= b.n_max)
        return mass;

    cut_to_budget(s, &b);
    return kept_mass(s);
}


/* --------------------------------------------------------------------- draw */

static uint32_t
n_lanes(uint32_t n)
{
    return n < ONE_LEVEL ? n : DI_ROW_LANES;
}


/* A number below total (not 0), without bias, from the stream of position. */
static uint32_t
draw_below(uint32_t total, uint64_t seed, uint32_t position)
{
    uint32_t x, i = 0, limit = UINT32_MAX / total * total;

    do {
        x = di_sampler_random(seed, (uint64_t) position * 3, i++);
    } while (x >= limit);
    return x % total;
}


/* Choose a lane; *r becomes the rest within it. */
static uint32_t
draw_lane(const di_sampler_t *s, uint32_t lanes, uint64_t seed,
          uint32_t position, uint32_t *r)
{
    uint32_t i, total = 0;

    for (i = 0; i < lanes; i++)
        total += s->lanes[i];
    assert(total != 0);          /* the probabilities sum to about 1        */
    *r = draw_below(total, seed, position);
    for (i = 0; *r >= s->lanes[i]; i++)
        *r -= s->lanes[i];
    return i;
}


/* Draw from all n ids; p * scale are the probabilities. */
static int32_t
draw_all(di_sampler_t *s, const float *p, uint32_t n, float scale,
         uint64_t seed, uint32_t position)
{
    uint32_t lanes = n_lanes(n), i, r, w;

    if (lanes == n) {
        for (i = 0; i < n; i++)
            s->lanes[i] = di_row_weight(p[i], scale);
    } else {
        memset(s->lanes, 0, lanes * sizeof(uint32_t));
        s->ops->lanes(p, n, scale, s->lanes);
    }

    for (i = draw_lane(s, lanes, seed, position, &r); ; i += lanes) {
        w = di_row_weight(p[i], scale);
        if (r < w)
            return (int32_t) i;
        r -= w;
    }
}


/* The same over the kept ids alone. */
static int32_t
draw_kept(di_sampler_t *s, float scale, uint64_t seed, uint32_t position)
{
    uint32_t      lanes = n_lanes(s->vocab), lane, i, r, w;
    const kept_t *k;

    memset(s->lanes, 0, lanes * sizeof(uint32_t));
    for (i = 0; i < s->n_kept; i++) {
        k = &s->kept[i];
        s->lanes[k->id % lanes] += di_row_weight(k->e, scale);
    }

    lane = draw_lane(s, lanes, seed, position, &r);
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
    return draw_all(s, p, n, 1.0f, seed, position);
}


static int32_t
sample(di_sampler_t *s, const float *x, const di_row_max_t *m,
       const di_sample_in_t *in)
{
    const di_gen_params_t *p = in->params;
    double                 mass;

    mass = s->ops->exp(x, s->vocab, m->max, 1.0f / p->temperature, s->e);
    if (p->top_p >= 1.0f && p->top_k <= 0 && p->min_p <= 0.0f)
        return draw_all(s, s->e, s->vocab, (float) (1.0 / mass), in->seed,
                        in->n_tokens);
    mass = truncate_row(s, x, p, mass);
    return draw_kept(s, (float) (1.0 / mass), in->seed, in->n_tokens);
}


int
di_sampler_row(di_sampler_t *s, const float *logits, const di_sample_in_t *in,
               di_sample_out_t *out)
{
    const di_gen_params_t *p = in->params;
    di_row_max_t           raw, m;
    const float           *x;

    /* The row itself must be sound, whatever bias and masks hide of it. */
    if (row_max(s, logits, &raw) != DI_OK)
        return DI_EFORMAT;
    m = raw;
    x = edit_row(s, logits, in);
    if (x != logits && row_max(s, x, &m) != DI_OK)
        return DI_EFORMAT;

    out->token = p->temperature < DI_SAMPLER_TEMPERATURE_MIN
                 ? (int32_t) m.index : sample(s, x, &m, in);
    out->logprob = 0.0f;
    out->n_top = 0;
    if ((p->flags & DI_GEN_LOGPROBS) == 0)
        return DI_OK;
    return fill_logprobs(s, logits, &raw, out->token, p->top_logprobs, out);
}
