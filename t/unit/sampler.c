/*
 * sampler.c - the sampler against vectors made by the reference scheme
 * (t/data/sampling.json) and against a slow sampler that sorts.
 */

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <time.h>

#include <jansson.h>

#include "engine/di_sampler.h"
#include "engine/sampler_row.h"
#include "check.h"
#include "nomem.h"
#include "rnd.h"

#define V  9001                 /* two-level draws, and no multiple of 16   */



static float
rnd_float(float lo, float hi)
{
    return lo + (hi - lo) * (float) (rnd32() >> 8) / (float) (1 << 24);
}


/* Roughly normal, of a spread like that of real logits. */
static void
rnd_row(float *x, uint32_t n)
{
    uint32_t i;

    for (i = 0; i < n; i++)
        x[i] = rnd_float(-3, 3) + rnd_float(-3, 3) + rnd_float(-3, 3);
}


static uint64_t
get_u64(const json_t *o, const char *name)
{
    const json_t *v = json_object_get(o, name);

    return json_is_string(v) ? strtoull(json_string_value(v), NULL, 10)
                             : (uint64_t) json_integer_value(v);
}


static double
get_double(const json_t *o, const char *name)
{
    return json_number_value(json_object_get(o, name));
}


static uint32_t
get_floats(const json_t *o, const char *name, float *x)
{
    json_t *a = json_object_get(o, name), *v;
    size_t  i;

    json_array_foreach(a, i, v)
        x[i] = (float) json_number_value(v);
    return (uint32_t) json_array_size(a);
}


static void
test_philox(const json_t *all)
{
    json_t *c, *w;
    size_t  i, k;

    json_array_foreach(json_object_get(all, "philox"), i, c) {
        json_array_foreach(json_object_get(c, "u32"), k, w) {
            CHECK_EQ_INT(di_sampler_random(get_u64(c, "seed"),
                                           get_u64(c, "subsequence"),
                                           (uint32_t) k),
                         json_integer_value(w));
        }
    }
}


static void
test_draw_vectors(const json_t *all)
{
    di_sampler_t *s = NULL;
    static float  p[V];
    json_t       *c, *e;
    size_t        i, k;
    uint32_t      n;

    CHECK_EQ_INT(di_sampler_open(V, &s, NULL), DI_OK);
    json_array_foreach(json_object_get(all, "sample"), i, c) {
        if (get_u64(c, "case") != 0)    /* streams of speculation           */
            continue;
        n = get_floats(c, "probs", p);
        CHECK_EQ_INT(di_sampler_draw(s, p, n, get_u64(c, "seed"),
                                     (uint32_t) get_u64(c, "position")),
                     get_u64(c, "token"));
    }
    json_array_foreach(json_object_get(all, "sample_two_level"), i, c) {
        memset(p, 0, sizeof(p));
        json_array_foreach(json_object_get(c, "nonzero"), k, e) {
            p[json_integer_value(json_array_get(e, 0))] =
                (float) json_number_value(json_array_get(e, 1));
        }
        CHECK_EQ_INT(di_sampler_draw(s, p, (uint32_t) get_u64(c, "vocab"),
                                     get_u64(c, "seed"),
                                     (uint32_t) get_u64(c, "position")),
                     get_u64(c, "token"));
    }
    di_sampler_close(s);
}


static di_gen_params_t
plain_params(void)
{
    return (di_gen_params_t) { .temperature = 1, .top_p = 1,
                               .repetition_penalty = 1, .n = 1 };
}


/* Draw often and compare frequencies with the vector's distribution. */
static void
test_transform_vectors(const json_t *all)
{
    di_gen_params_t  p = plain_params();
    di_sample_in_t   in = { .params = &p };
    di_sample_out_t  out;
    di_sampler_t    *s = NULL;
    json_t          *c, *l;
    float            x[8], want;
    uint32_t         n, k, drawn[8];
    size_t           i;

    json_array_foreach(json_object_get(all, "transform"), i, c) {
        n = get_floats(c, "logits", x);
        p.temperature = (float) get_double(c, "temperature");
        p.top_p = (float) get_double(c, "top_p");
        p.top_k = (int32_t) get_double(c, "top_k");
        p.top_k = p.top_k < 0 ? 0 : p.top_k;
        CHECK_EQ_INT(di_sampler_open(n, &s, NULL), DI_OK);
        memset(drawn, 0, sizeof(drawn));
        for (in.n_tokens = 1; in.n_tokens <= 20000; in.n_tokens++) {
            in.n_prompt = in.n_tokens;
            CHECK_EQ_INT(di_sampler_row(s, x, &in, &out), DI_OK);
            drawn[out.token]++;
        }
        l = json_object_get(c, "logprobs");
        for (k = 0; k < n; k++) {       /* null: cut off                    */
            want = json_is_null(json_array_get(l, k)) ? 0
                   : expf((float) json_number_value(json_array_get(l, k)));
            CHECK(fabsf((float) drawn[k] / 20000 - want) < 0.015f);
            CHECK((drawn[k] == 0) == (want < 1e-6f));
        }
        di_sampler_close(s);
    }
}


/* --------------------------------------------------------- slow sampler -- */

static const float *slow_x;

static int
by_logit(const void *a, const void *b)
{
    uint32_t i = *(const uint32_t *) a, j = *(const uint32_t *) b;

    if (slow_x[i] != slow_x[j])
        return slow_x[i] < slow_x[j] ? 1 : -1;
    return i < j ? -1 : 1;
}


/* Variable number i of a stream. */
static double
slow_exponential(uint64_t seed, uint64_t stream, uint32_t i)
{
    uint64_t w = (uint64_t) di_sampler_random(seed, stream, 2 * i) << 32
                 | di_sampler_random(seed, stream, 2 * i + 1);

    return -log(((double) (w >> 11) + 0.5) / 9007199254740992.0);
}


/* Draw in integers by w [n], none of them 0 unless it is out. */
static int32_t
slow_draw(const uint32_t *w, uint32_t n, uint64_t seed, uint64_t stream)
{
    uint32_t i = 0, lane, lanes = n < 8192 ? n : 2048, x;
    uint64_t total = 0, lane_sum, r;

    for (i = 0; i < n; i++)
        total += w[i];
    i = 0;
    do {
        x = di_sampler_random(seed, stream, i++);
    } while (x >= UINT32_MAX / total * total);
    r = x % total;
    for (lane = 0; lane < lanes; lane++) {
        for (i = lane, lane_sum = 0; i < n; i += lanes)
            lane_sum += w[i];
        if (r >= lane_sum) {
            r -= lane_sum;
            continue;
        }
        for (i = lane; ; i += lanes) {
            if (r < w[i])
                return (int32_t) i;
            r -= w[i];
        }
    }
    return -1;
}


/* A race by e [n], those of 0 are out; sum is that of all. */
static int32_t
slow_race(const float *e, uint32_t n, double sum, bool all, uint64_t seed,
          uint64_t stream)
{
    static uint32_t w[V];
    float           light = 1.0f / 1024, scale;
    uint32_t        i, heavy = 1000;
    double          best = INFINITY, mass = 0, rest = 0, quotient;
    int32_t         id = -1;

    for ( ; heavy > 512; light *= 4) {
        for (i = 0, heavy = 0; i < n; i++)
            heavy += e[i] >= light;
        if (heavy <= 512)
            break;
    }
    for (i = 0; i < n; i++) {
        if (e[i] < light) {
            rest += (double) e[i];
            continue;
        }
        mass += (double) e[i];
        quotient = slow_exponential(seed, stream, i) / (double) e[i];
        if (quotient < best) {
            best = quotient;
            id = (int32_t) i;
        }
    }
    if (all)                    /* as it is summed there                    */
        rest = sum - mass;
    if (rest <= 0 || slow_exponential(seed, stream, n) / rest >= best)
        return id;
    scale = (float) (0.25 / fmax(rest, sum / 131072));
    for (i = 0; i < n; i++)
        w[i] = e[i] < light ? di_row_weight(e[i], scale) : 0;
    return slow_draw(w, n, seed, stream | UINT64_C(1) << 62);
}


static int32_t
slow_sample(const float *x, uint32_t n, const di_gen_params_t *p,
            uint64_t seed, uint32_t position)
{
    static float    e[V];
    static uint32_t order[V];
    static uint8_t  keep[V];
    bool            all = p->top_p >= 1 && p->top_k == 0 && p->min_p <= 0;
    di_row_max_t    m;
    double          sum, mass = 0;
    uint32_t        i;

    di_row_ops_at(0)->max(x, n, &m);
    sum = di_row_ops_at(0)->exp(x, n, m.max, 1 / p->temperature, e);
    for (i = 0; i < n; i++)
        order[i] = i;
    slow_x = x;
    qsort(order, n, sizeof(order[0]), by_logit);

    memset(keep, 0, sizeof(keep));
    for (i = 0; i < n; i++) {
        if ((p->top_k > 0 && i >= (uint32_t) p->top_k)
            || (p->top_p < 1 && mass > (double) p->top_p * sum)
            || e[order[i]] < p->min_p)
            break;
        keep[order[i]] = 1;
        mass += (double) e[order[i]];
    }
    for (i = 0, mass = 0; i < n; i++) {
        e[i] = keep[i] ? e[i] : 0;
        mass += (double) e[i];
    }
    return slow_race(e, n, all ? sum : mass, all, seed,
                     (uint64_t) position * 3);
}


static void
test_against_slow(uint32_t n, int rounds)
{
    static float     x[V];
    di_gen_params_t  p = plain_params();
    di_sample_in_t   in = { .params = &p };
    di_sample_out_t  out;
    di_sampler_t    *s = NULL;
    uint32_t         i;
    int              round;

    CHECK_EQ_INT(di_sampler_open(n, &s, NULL), DI_OK);
    for (round = 0; round < rounds; round++) {
        rnd_row(x, n);
        if (rnd32() % 4 == 0) {           /* many ties                        */
            for (i = 0; i < n; i++)
                x[i] = roundf(x[i]);
        }
        if (rnd32() % 8 == 0)
            x[rnd32() % n] = -INFINITY;
        p.temperature = rnd_float(0.05f, 3);
        p.top_p = rnd32() % 2 ? 1 : rnd_float(0.001f, 1);
        p.top_k = rnd32() % 2 ? 0 : (int32_t) (1 + rnd32() % (2 * n));
        p.min_p = rnd32() % 2 ? 0 : rnd_float(0, 0.3f);
        in.seed = ((uint64_t) rnd32() << 32) | rnd32();
        in.n_tokens = in.n_prompt = rnd32() % 100000;
        CHECK_EQ_INT(di_sampler_row(s, x, &in, &out), DI_OK);
        CHECK_EQ_INT(out.token, slow_sample(x, n, &p, in.seed,
                                            in.n_tokens));
    }
    di_sampler_close(s);
}


/* ----------------------------------------------- edits, logprobs, faults -- */

static void
test_edits(void)
{
    static const int32_t tokens[] = { 1, 1, 2, 3, 3, 4 };
    static const int32_t end[] = { 5 }, stop[] = { 6 };
    di_logit_bias_t      bias[] = { { 0, 1.5f }, { 7, -100 } };
    di_gen_params_t      p = plain_params();
    di_sample_in_t       in = { .params = &p, .tokens = tokens,
                                .end_ids = end, .stop_ids = stop,
                                .n_prompt = 3, .n_tokens = 6, .n_end_ids = 1,
                                .n_stop_ids = 1 };
    di_sample_out_t      out;
    di_sampler_t        *s = NULL;
    float                x[8] = { 1, 2, 2.25f, 3, 2.5f, 5, 6, 7 };

    p.temperature = 0;
    CHECK_EQ_INT(di_sampler_open(8, &s, NULL), DI_OK);
    CHECK_EQ_INT(di_sampler_row(s, x, &in, &out), DI_OK);
    CHECK_EQ_INT(out.token, 7);
    in.bias = bias;
    in.n_bias = 2;
    CHECK_EQ_INT(di_sampler_row(s, x, &in, &out), DI_OK);
    CHECK_EQ_INT(out.token, 6);
    p.min_tokens = 3;                   /* three were generated: no mask    */
    CHECK_EQ_INT(di_sampler_row(s, x, &in, &out), DI_OK);
    CHECK_EQ_INT(out.token, 6);
    p.min_tokens = 4;
    CHECK_EQ_INT(di_sampler_row(s, x, &in, &out), DI_OK);
    CHECK_EQ_INT(out.token, 3);
    p.frequency_penalty = 0.2f;         /* 3 was generated twice, 4 once    */
    CHECK_EQ_INT(di_sampler_row(s, x, &in, &out), DI_OK);
    CHECK_EQ_INT(out.token, 3);
    p.frequency_penalty = 0.2501f;      /* 3 - 0.5002, 2.5 - 0.2501, 2.5    */
    CHECK_EQ_INT(di_sampler_row(s, x, &in, &out), DI_OK);
    CHECK_EQ_INT(out.token, 0);
    p.frequency_penalty = 0;
    p.presence_penalty = 0.6f;
    CHECK_EQ_INT(di_sampler_row(s, x, &in, &out), DI_OK);
    CHECK_EQ_INT(out.token, 0);
    p.presence_penalty = 0;
    in.n_bias = 0;
    p.repetition_penalty = 3.1f;        /* the prompt counts too            */
    CHECK_EQ_INT(di_sampler_row(s, x, &in, &out), DI_OK);
    CHECK_EQ_INT(out.token, 7);
    x[7] = -4;
    CHECK_EQ_INT(di_sampler_row(s, x, &in, &out), DI_OK);
    CHECK_EQ_INT(out.token, 0);         /* 1; the others fell below         */
    x[0] = -9;
    x[7] = -9;
    x[1] = -2;                          /* a negative logit is multiplied   */
    CHECK_EQ_INT(di_sampler_row(s, x, &in, &out), DI_OK);
    CHECK_EQ_INT(out.token, 3);
    p = plain_params();
    p.temperature = 0;
    CHECK_EQ_INT(di_sampler_row(s, x, &in, &out), DI_OK);
    CHECK_EQ_INT(out.token, 6);         /* counts were put back to zero     */
    di_sampler_close(s);
}


/* A masked row is the row with what is masked put out by hand, but for the
 * log-probabilities. */
static void
test_mask(void)
{
    enum { N = 1000, WORDS = 14 };      /* the last 104 ids have no bit     */
    static float    x[N], hidden[N];
    uint64_t        mask[WORDS];
    di_gen_params_t p = plain_params();
    di_logit_bias_t bias[] = { { 3, 4 } };
    di_sample_in_t  masked = { .params = &p, .mask = mask, .bias = bias,
                               .n_mask_words = WORDS };
    di_sample_in_t  in = { .params = &p, .bias = bias };
    di_sample_out_t a, b, raw;
    di_sampler_t   *s = NULL;
    uint32_t        i, id;
    int             round;

    CHECK_EQ_INT(di_sampler_open(N, &s, NULL), DI_OK);
    p.flags = DI_GEN_LOGPROBS;
    for (round = 0; round < 500; round++) {
        rnd_row(x, N);
        for (i = 0; i < WORDS; i++) {
            mask[i] = (uint64_t) rnd32() << 32 | rnd32();
            for (id = rnd32() % 4; id > 0; id--)
                mask[i] &= (uint64_t) rnd32() << 32 | rnd32();
            if (rnd32() % 3 == 0)
                mask[i] = rnd32() % 2 ? 0 : UINT64_MAX;
        }
        mask[rnd32() % WORDS] |= 1;
        for (i = 0; i < N; i++)
            hidden[i] = i / 64 < WORDS && (mask[i / 64] >> i % 64 & 1) != 0
                        ? x[i] : -INFINITY;
        p.temperature = rnd32() % 3 == 0 ? 0 : rnd_float(0.5f, 2);
        p.top_p = rnd32() % 2 ? 1 : 0.7f;
        masked.n_bias = in.n_bias = rnd32() % 2;
        masked.seed = in.seed = rnd32();
        CHECK_EQ_INT(di_sampler_row(s, x, &masked, &a), DI_OK);
        CHECK_EQ_INT(di_sampler_row(s, hidden, &in, &b), DI_OK);
        CHECK_EQ_INT(a.token, b.token);
        CHECK_EQ_INT(di_sampler_logprobs(s, x, a.token, 0, &raw), DI_OK);
        CHECK(a.logprob == raw.logprob);
    }

    memset(mask, 0, sizeof(mask));
    CHECK_EQ_INT(di_sampler_row(s, x, &masked, &a), DI_EFORMAT);
    mask[0] = 1 << 5;                   /* the mask knows about min_tokens  */
    masked.end_ids = (const int32_t[]) { 5 };
    masked.n_end_ids = 1;
    p.min_tokens = 9;
    CHECK_EQ_INT(di_sampler_row(s, x, &masked, &a), DI_OK);
    CHECK_EQ_INT(a.token, 5);
    di_sampler_close(s);
}


static void
test_logprobs(void)
{
    static float    x[V];
    static uint32_t order[V];
    di_gen_params_t p = plain_params();
    di_sample_in_t  in = { .params = &p };
    di_sample_out_t out;
    di_sampler_t   *s = NULL;
    double          sum = 0;
    uint32_t        i;
    int             ties;

    CHECK_EQ_INT(di_sampler_open(V, &s, NULL), DI_OK);
    for (ties = 0; ties < 2; ties++) {
        rnd_row(x, V);
        for (i = 0; i < V; i++)
            x[i] = ties ? roundf(x[i] / 4) : x[i];
        for (i = 0, sum = 0; i < V; i++) {
            sum += exp((double) x[i]);
            order[i] = i;
        }
        slow_x = x;
        qsort(order, V, sizeof(order[0]), by_logit);
        p.flags = DI_GEN_LOGPROBS;
        p.top_logprobs = DI_GEN_TOP_LOGPROBS_MAX;
        p.temperature = 0.5f;
        p.top_k = 3;
        CHECK_EQ_INT(di_sampler_row(s, x, &in, &out), DI_OK);
        CHECK(fabs((double) out.logprob
                   - ((double) x[out.token] - log(sum))) < 1e-5);
        CHECK_EQ_INT(out.n_top, DI_GEN_TOP_LOGPROBS_MAX);
        for (i = 0; i < out.n_top; i++) {
            CHECK_EQ_INT(out.top[i].id, order[i]);
            CHECK(fabs((double) out.top[i].logprob
                       - ((double) x[order[i]] - log(sum))) < 1e-5);
        }
        CHECK_EQ_INT(di_sampler_logprobs(s, x, 5, 2, &out), DI_OK);
        CHECK_EQ_INT(out.n_top, 2);
        CHECK_EQ_INT(out.token, 5);
    }
    di_sampler_close(s);

    CHECK_EQ_INT(di_sampler_open(3, &s, NULL), DI_OK);
    x[0] = 1;
    x[1] = -INFINITY;
    x[2] = 1;
    CHECK_EQ_INT(di_sampler_logprobs(s, x, 1, 20, &out), DI_OK);
    CHECK_EQ_INT(out.n_top, 3);
    CHECK(out.logprob == -FLT_MAX);
    CHECK_EQ_INT(out.top[1].id, 2);
    di_sampler_close(s);
}


static void
test_faults(void)
{
    static const int32_t end[] = { 0, 1 };
    di_gen_params_t      p = plain_params();
    di_sample_in_t       in = { .params = &p };
    di_sample_out_t      out;
    di_sampler_t        *s = NULL;
    float                x[20] = { 0 };
    int                  i, n, rc;

    CHECK_EQ_INT(di_sampler_open(0, &s, NULL), DI_EINVAL);
    for (n = 0; ; n++) {
        nomem_after(n);
        rc = di_sampler_open(20, &s, NULL);
        if (!nomem_off())
            break;
        CHECK_EQ_INT(rc, DI_ENOMEM);
    }
    CHECK_EQ_INT(rc, DI_OK);

    for (i = 0; i < 20; i++) {
        x[i] = NAN;
        CHECK_EQ_INT(di_sampler_row(s, x, &in, &out), DI_EFORMAT);
        CHECK_EQ_INT(di_sampler_logprobs(s, x, 0, 0, &out), DI_EFORMAT);
        x[i] = INFINITY;
        CHECK_EQ_INT(di_sampler_row(s, x, &in, &out), DI_EFORMAT);
        x[i] = 0;
        CHECK_EQ_INT(di_sampler_row(s, x, &in, &out), DI_OK);
    }
    for (i = 0; i < 20; i++)
        x[i] = -INFINITY;
    CHECK_EQ_INT(di_sampler_row(s, x, &in, &out), DI_EFORMAT);
    x[0] = x[1] = 0;                    /* all that is left is masked       */
    in.end_ids = end;
    in.n_end_ids = 2;
    p.min_tokens = 1;
    CHECK_EQ_INT(di_sampler_row(s, x, &in, &out), DI_EFORMAT);
    di_sampler_close(s);
}


/* ------------------------------------------------------------ row passes -- */

static void
test_row_variants(void)
{
    static float        x[V + 1], e[V], e0[V];
    static uint32_t     lanes[2048], lanes0[2048], ids[V], ids0[V];
    const di_row_ops_t *ops, *plain = di_row_ops_at(0);
    di_row_max_t        m, m0;
    uint32_t            n, at, n_ids = 0;
    double              sum, sum0, worst = 0, want;
    unsigned            i, round, k;

    for (i = 0; i < 3; i++) {
        ops = di_row_ops_at(i);
        if (ops == NULL) {
            printf("SKIP row variant %u: not on this CPU\n", i);
            continue;
        }
        for (round = 0; round < 200; round++) {
            n = round < 60 ? round + 1 : 1 + rnd32() % V;
            rnd_row(x + 1, n);          /* + 1: not aligned                 */
            plain->max(x + 1, n, &m0);
            ops->max(x + 1, n, &m);
            CHECK_EQ_INT(m.index, m0.index);
            CHECK(m.max == m0.max && m.max == x[1 + m.index] && !m.bad);
            sum0 = plain->exp(x + 1, n, m.max, 1.7f, e0);
            sum = ops->exp(x + 1, n, m.max, 1.7f, e);
            CHECK(sum == sum0);
            CHECK(memcmp(e, e0, n * sizeof(float)) == 0);
            for (k = 0; k < n; k++) {
                want = exp((double) ((x[1 + k] - m.max) * 1.7f));
                if (fabs((double) e[k] - want) > worst * want)
                    worst = fabs((double) e[k] - want) / want;
            }
            memset(lanes, 0, sizeof(lanes));
            memset(lanes0, 0, sizeof(lanes));
            plain->lanes(e, n, (float) (1 / sum), lanes0);
            ops->lanes(e, n, (float) (1 / sum), lanes);
            CHECK(memcmp(lanes, lanes0, sizeof(lanes)) == 0);
            at = rnd32() % n;
            CHECK_EQ_INT(ops->above(x + 1, at, n, m.max - 1),
                         plain->above(x + 1, at, n, m.max - 1));
            CHECK_EQ_INT(ops->above(x + 1, 0, n, m.max), n);
            at = ops->select(x + 1, n, m.max - 2, ids);
            CHECK_EQ_INT(at, plain->select(x + 1, n, m.max - 2, ids0));
            CHECK(memcmp(ids, ids0, at * sizeof(ids[0])) == 0);
            for (k = 0; k < n && at > 0; k++) {
                if (x[1 + k] >= m.max - 2)
                    CHECK_EQ_INT(ids[n_ids++], k);
            }
            CHECK_EQ_INT(n_ids, at);
            n_ids = 0;
        }
    }
    CHECK(worst < 3e-7);

    x[0] = 1;                           /* a certainty: weight 2^31         */
    CHECK_EQ_INT(di_row_weight(1, 1), 1u << 31);
    for (i = 0; i < 3; i++) {
        ops = di_row_ops_at(i);
        if (ops == NULL)
            continue;
        memset(x, 0, sizeof(x));
        x[3] = 1;
        memset(lanes, 0, sizeof(lanes));
        ops->lanes(x, 16, 1, lanes);
        CHECK_EQ_INT(lanes[3], 1u << 31);
        CHECK_EQ_INT(lanes[2], 0);
    }
}


/* ----------------------------------------------------------------- speed -- */

static double
time_row(di_sampler_t *s, const float *x, const di_sample_in_t *in)
{
    struct timespec a, b;
    di_sample_out_t out;
    double          us, best = 1e9;
    int             round;

    for (round = 0; round < 100; round++) {
        (void) clock_gettime(CLOCK_MONOTONIC, &a);
        (void) di_sampler_row(s, x, in, &out);
        (void) clock_gettime(CLOCK_MONOTONIC, &b);
        us = (double) (b.tv_sec - a.tv_sec) * 1e6
             + (double) (b.tv_nsec - a.tv_nsec) / 1e3;
        best = us < best ? us : best;
    }
    return best;
}


/* Printed, not judged. */
static void
print_speed(void)
{
    enum { N = 49152 };
    static float    x[N];
    di_gen_params_t p = plain_params();
    di_sample_in_t  in = { .params = &p };
    di_sampler_t   *s = NULL;
    double          greedy, logprobs, all, top_p, top_k, few, most;
    static uint64_t mask[N / 64];

    if (di_sampler_open(N, &s, NULL) != DI_OK)
        return;
    rnd_row(x, N);
    all = time_row(s, x, &in);
    p.top_p = 0.9f;
    top_p = time_row(s, x, &in);
    p.top_k = 40;
    top_k = time_row(s, x, &in);
    p.temperature = 0;
    greedy = time_row(s, x, &in);
    in.mask = mask;
    in.n_mask_words = N / 64;
    mask[9] = 0x10010;
    few = time_row(s, x, &in);
    for (uint32_t i = 0; i < N / 64; i++)
        mask[i] = ~(UINT64_C(0x8001) << i % 48);
    most = time_row(s, x, &in);
    in.mask = NULL;
    p.flags = DI_GEN_LOGPROBS;
    p.top_logprobs = 5;
    logprobs = time_row(s, x, &in);
    printf("rows of %d: greedy %.1f us, with 5 logprobs %.1f, sampled %.1f, "
           "top-p %.1f, top-p and top-k %.1f; greedy with a mask of few "
           "%.1f, of most %.1f\n", N, greedy, logprobs, all, top_p, top_k,
           few, most);
    di_sampler_close(s);
}


int
main(int argc, char **argv)
{
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0)
                             : (uint64_t) time(NULL);
    json_t  *all = json_load_file("t/data/sampling.json", 0, NULL);

    printf("seed %llu\n", (unsigned long long) seed);
    rnd_seed(seed);
    CHECK(all != NULL);
    test_philox(all);
    test_draw_vectors(all);
    test_transform_vectors(all);
    json_decref(all);
    test_against_slow(V, 300);
    test_against_slow(50, 2000);
    test_edits();
    test_mask();
    test_logprobs();
    test_faults();
    test_row_variants();
    print_speed();
    return check_done("sampler");
}
