/*
 * sampler.c - bias, penalties, truncation.
 *
 * Greedy rows are one pass.  A sampled row is three: maximum, exponentials,
 * draw (sampler_draw.c).  Truncation (top-p, top-k, min-p) never sorts.  Each
 * of them keeps a prefix of the order (logit descending, id ascending), hence
 * so do all of them together, and only the end of that prefix has to be found:
 *
 *   1. Ids whose mass is so small that all like them together can't reach
 *      the part that top-p cuts off are out.  Mostly the ids of at least
 *      1/128 of the highest probability are enough already: a few dozen.
 *   2. Radix selection over the bits of their logits, 11 at a time, with
 *      counts and masses per bucket, finds the logit at the end and how many
 *      of the ids that have it belong.
 */

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "sampler_impl.h"

#define RADIX           DI_SAMPLER_RADIX
#define LIKELY          0x1p-7f /* of the most likely id's probability      */
#define LESS_LIKELY     0x1p-4f /* of LIKELY, and so on                     */

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
    s->kept = malloc((size_t) vocab * sizeof(di_sampler_kept_t));
    s->lanes = malloc(DI_SAMPLER_LANES_MAX * sizeof(uint32_t));
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
    const di_sampler_kept_t *k, *end = s->kept + s->n_kept;
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
        s->kept[i] = (di_sampler_kept_t) { id, order_key(x[id]), s->e[id] };
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


/* ---------------------------------------------------------------- the token */

/* Weigh a row whose maximum is m: which ids may be drawn, and how often. */
static di_sampler_dist_t
weigh(di_sampler_t *s, const float *x, const di_row_max_t *m,
      const di_gen_params_t *p)
{
    double mass = s->ops->exp(x, s->vocab, m->max, 1.0f / p->temperature,
                              s->e);
    bool   all = p->top_p >= 1.0f && p->top_k <= 0 && p->min_p <= 0.0f;

    if (!all)
        mass = truncate_row(s, x, p, mass);
    return (di_sampler_dist_t) { .all = all, .mass = mass, .whole = mass };
}


static bool
is_greedy(const di_gen_params_t *p)
{
    return p->temperature < DI_SAMPLER_TEMPERATURE_MIN;
}


/* The row to choose from, and its maximum.  The row itself must be sound,
 * whatever bias and masks hide of it: raw is its own maximum. */
static int
prepare(di_sampler_t *s, const float *logits, const di_sample_in_t *in,
        const float **x, di_row_max_t *raw, di_row_max_t *m)
{
    if (row_max(s, logits, raw) != DI_OK)
        return DI_EFORMAT;
    *m = *raw;
    *x = edit_row(s, logits, in);
    return *x == logits ? DI_OK : row_max(s, *x, m);
}


static int32_t
choose(di_sampler_t *s, const float *x, const di_row_max_t *m,
       const di_sample_in_t *in)
{
    di_sampler_dist_t d;

    if (is_greedy(in->params))
        return (int32_t) m->index;
    d = weigh(s, x, m, in->params);
    if (in->from != NULL)
        return di_sampler_verify(s, &d, in->seed, in->n_tokens, in->draft,
                                 in->from);
    return di_sampler_race(s, &d, in->seed, (uint64_t) in->n_tokens * 3);
}


int
di_sampler_row(di_sampler_t *s, const float *logits, const di_sample_in_t *in,
               di_sample_out_t *out)
{
    const di_gen_params_t *p = in->params;
    di_row_max_t           raw, m;
    const float           *x;

    if (prepare(s, logits, in, &x, &raw, &m) != DI_OK)
        return DI_EFORMAT;
    out->token = choose(s, x, &m, in);
    out->logprob = 0.0f;
    out->n_top = 0;
    if ((p->flags & DI_GEN_LOGPROBS) == 0)
        return DI_OK;
    return fill_logprobs(s, logits, &raw, out->token, p->top_logprobs, out);
}


/* Only likely ids are drafted: so the distribution is a short list. */
static int32_t
draw_draft(di_sampler_t *s, const float *x, const di_row_max_t *m,
           const di_sample_in_t *in, di_sampler_from_t *from)
{
    di_gen_params_t   p = *in->params;
    di_sampler_dist_t d;
    uint32_t          i;

    if (p.top_k <= 0 || p.top_k > DI_SAMPLER_FROM_MAX)
        p.top_k = DI_SAMPLER_FROM_MAX;
    if (p.min_p < DI_SAMPLER_LIGHT)
        p.min_p = DI_SAMPLER_LIGHT;
    d = weigh(s, x, m, &p);
    from->n = s->n_kept;
    for (i = 0; i < s->n_kept; i++) {
        from->ids[i] = (int32_t) s->kept[i].id;
        from->p[i] = (float) ((double) s->kept[i].e / d.mass);
    }
    return di_sampler_race(s, &d, in->seed + DI_SAMPLER_DRAFT_SEED,
                           (uint64_t) in->n_tokens * 3);
}


int
di_sampler_draft(di_sampler_t *s, const float *logits,
                 const di_sample_in_t *in, di_sampler_from_t *from,
                 int32_t *token)
{
    di_row_max_t raw, m;
    const float *x;

    if (prepare(s, logits, in, &x, &raw, &m) != DI_OK)
        return DI_EFORMAT;
    if (from == NULL || is_greedy(in->params))
        *token = choose(s, x, &m, in);
    else
        *token = draw_draft(s, x, &m, in, from);
    return DI_OK;
}
