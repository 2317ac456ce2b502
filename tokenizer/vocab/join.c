/*
 * join.c - short texts that are encoded by applying the merge rules.
 *
 * For each join all pairs are looked through for the first rule, which is the
 * fastest way for so few.  Then the two pairs beside the new token are looked
 * up, perhaps somewhere in megabytes.  Texts take turns, so that what one of
 * them asked for arrives while the others do their steps.
 */

#include "join.h"

#define JOIN_ABREAST  32
#define JOIN_NO_ID    ((int32_t) DI_MERGES_IDS_MAX - 1)

static void
join_open(di_join_t *t, size_t n)
{
    t->width = n <= 16 ? 16 : DI_JOIN_MAX;
    t->starts = (2ull << (n + 1)) - 1;
    t->ids[0] = JOIN_NO_ID;
    t->ids[n + 1] = JOIN_NO_ID;
    t->near = t->left_far = t->right_far = false;
    t->left = t->at = t->right = t->empty = 0;
    t->left_order = t->at_order = DI_MERGES_NONE;
    for (size_t i = n; i <= t->width; i++)
        t->orders[i] = DI_MERGES_NONE;
}

void
di_join_bytes(const di_merges_t *m, const int32_t first[256],
              const uint8_t *s, size_t len, di_join_t *t)
{
    join_open(t, len);
    for (size_t i = 0; i < len; i++)
        t->ids[i + 1] = first[s[i]];
    for (size_t i = 0; i + 1 < len; i++)
        t->orders[i + 1] = m->bytes[s[i] << 8 | s[i + 1]];
}

void
di_join_ids(const di_merges_t *m, const int32_t *ids, size_t n, di_join_t *t)
{
    bool far[DI_JOIN_MAX];

    join_open(t, n);
    for (size_t i = 0; i < n; i++)
        t->ids[i + 1] = ids[i];
    for (size_t i = 0; i + 1 < n; i++)
        t->orders[i + 1] = di_merges_order_near(m, ids[i], ids[i + 1],
                                                &far[i]);
    for (size_t i = 0; i + 1 < n; i++) {
        if (far[i])
            t->orders[i + 1] = di_merges_order_far(m, ids[i], ids[i + 1]);
    }
}

/* The first rule that a text has. */
typedef struct {
    uint32_t order;             /* DI_MERGES_NONE: none                      */
    uint32_t at;                /* its place                                 */
} join_rule_t;

/* What a step does by instructions that not all machines have. */
typedef struct {
    /* Enter what the last join changed in orders[], and find the first rule;
     * of equals, the leftmost. */
    join_rule_t (*first)(di_join_t *t);
    /* di_merges_order_near(). */
    uint32_t (*near)(const di_merges_t *m, int32_t left, int32_t right,
                     bool *far);
} join_way_t;

static inline join_rule_t
join_first(di_join_t *t)
{
    join_rule_t best;

    t->orders[t->empty] = DI_MERGES_NONE;
    t->orders[t->left] = t->left_order;
    t->orders[t->at] = t->at_order;
    best = (join_rule_t) { t->orders[1], 1 };
    for (uint32_t i = 2; i <= t->width; i++) {
        best.at = t->orders[i] < best.order ? i : best.at;
        best.order = t->orders[i] < best.order ? t->orders[i] : best.order;
    }
    return best;
}

/* Look up the two pairs that the last join made, as far as memory has come.
 * false: not yet. */
static inline __attribute__((always_inline)) bool
join_look(const di_merges_t *m, di_join_t *t, join_way_t way)
{
    int32_t left = t->ids[t->left], at = t->ids[t->at];
    int32_t right = t->ids[t->right];
    bool    left_far, right_far;

    if (t->near) {
        t->left_order = way.near(m, left, at, &left_far);
        t->at_order = way.near(m, at, right, &right_far);
        t->left_far = left_far;
        t->right_far = right_far;
        t->near = false;
        return !(left_far | right_far);
    }
    if (t->left_far)
        t->left_order = di_merges_order_far(m, left, at);
    if (t->right_far)
        t->at_order = di_merges_order_far(m, at, right);
    return true;
}

/* Do the next join, or go on waiting for what it depends on.  false: there is
 * none. */
static inline __attribute__((always_inline)) bool
join_step(const di_merges_t *m, di_join_t *t, join_way_t way)
{
    join_rule_t rule;
    uint32_t    at;

    if (!join_look(m, t, way))
        return true;

    rule = way.first(t);
    if (rule.order == DI_MERGES_NONE)
        return false;
    at = rule.at;
    t->empty = at + 1 + (uint32_t) __builtin_ctzll(t->starts >> at >> 1);
    t->starts &= ~(1ull << t->empty);
    t->ids[at] = di_merges_makes(m, rule.order);

    t->at = at;
    t->left = 63 - (uint32_t) __builtin_clzll(t->starts
                                              & ((1ull << at) - 1));
    t->right = at + 1 + (uint32_t) __builtin_ctzll(t->starts >> at >> 1);
    t->near = true;
    di_merges_prefetch(m, t->ids[t->left], t->ids[at]);
    di_merges_prefetch(m, t->ids[at], t->ids[t->right]);
    return true;
}

static inline __attribute__((always_inline)) void
join_run(const di_merges_t *m, di_join_t *texts, size_t n, join_way_t way)
{
    di_join_t *abreast[JOIN_ABREAST];
    size_t     width = n < JOIN_ABREAST ? n : JOIN_ABREAST, next = width;

    for (size_t i = 0; i < width; i++)
        abreast[i] = &texts[i];
    while (width > 0) {
        for (size_t i = 0; i < width; i++) {
            if (join_step(m, abreast[i], way))
                continue;
            abreast[i] = next < n ? &texts[next++] : abreast[--width];
        }
    }
}

static void
join_run_any(const di_merges_t *m, di_join_t *texts, size_t n)
{
    join_run(m, texts, n, (join_way_t) { join_first, di_merges_order_near });
}

#if defined(__x86_64__)

#include <immintrin.h>

#define JOIN_AVX2  "avx2,bmi,bmi2,lzcnt"

/* The smallest of eight, in all eight places. */
__attribute__((target(JOIN_AVX2)))
static inline __m256i
join_min_avx2(__m256i v)
{
    __m128i low = _mm_min_epu32(_mm256_castsi256_si128(v),
                                _mm256_extracti128_si256(v, 1));

    low = _mm_min_epu32(low, _mm_shuffle_epi32(low, 0x4e));
    low = _mm_min_epu32(low, _mm_shuffle_epi32(low, 0xb1));
    return _mm256_broadcastd_epi32(low);
}

__attribute__((target(JOIN_AVX2)))
static inline uint32_t
join_equal_avx2(__m256i a, __m256i b)
{
    return (uint32_t) _mm256_movemask_ps(_mm256_castsi256_ps(
                                             _mm256_cmpeq_epi32(a, b)));
}

/* Enter what the last join changed in the eight orders from a place on.  A
 * whole word is written, as a core that has to read one of which a part was
 * just written waits until that is done. */
__attribute__((target(JOIN_AVX2)))
static inline __m256i
join_enter_avx2(di_join_t *t, int place)
{
    const __m256i at = _mm256_add_epi32(_mm256_set1_epi32(place),
                                        _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6,
                                                          7));
    __m256i *orders = (__m256i *) &t->orders[place], v;

    v = _mm256_or_si256(_mm256_loadu_si256(orders), _mm256_cmpeq_epi32(
                            at, _mm256_set1_epi32((int) t->empty)));
    v = _mm256_blendv_epi8(v, _mm256_set1_epi32((int) t->left_order),
                           _mm256_cmpeq_epi32(
                               at, _mm256_set1_epi32((int) t->left)));
    v = _mm256_blendv_epi8(v, _mm256_set1_epi32((int) t->at_order),
                           _mm256_cmpeq_epi32(
                               at, _mm256_set1_epi32((int) t->at)));
    _mm256_storeu_si256(orders, v);
    return v;
}

/* Whether a text has more than eight tokens can't be foreseen, more than 16 it
 * seldom has. */
__attribute__((target(JOIN_AVX2)))
static inline join_rule_t
join_first_avx2(di_join_t *t)
{
    __m256i  a = join_enter_avx2(t, 1), b = join_enter_avx2(t, 9), c, d;
    __m256i  best = _mm256_min_epu32(a, b);
    uint32_t places = 0;

    if (t->width > 16) {
        c = join_enter_avx2(t, 17);
        d = join_enter_avx2(t, 25);
        best = join_min_avx2(_mm256_min_epu32(best, _mm256_min_epu32(c, d)));
        places = join_equal_avx2(c, best) << 16
                 | join_equal_avx2(d, best) << 24;
    } else {
        best = join_min_avx2(best);
    }
    places |= join_equal_avx2(a, best) | join_equal_avx2(b, best) << 8;
    return (join_rule_t) {
        (uint32_t) _mm_cvtsi128_si32(_mm256_castsi256_si128(best)),
        1 + (uint32_t) __builtin_ctz(places),
    };
}

_Static_assert(DI_JOIN_MAX == 32 && DI_MERGES_NONE == UINT32_MAX,
               "join_first_avx2()");

__attribute__((target(JOIN_AVX2)))
static inline uint32_t
join_near_avx2(const di_merges_t *m, int32_t left, int32_t right, bool *far)
{
    uint64_t pair = di_merges_pair(left, right), slot;
    uint64_t hash = di_merges_hash(pair);
    const di_merges_bucket_t *bucket = di_merges_bucket(m, hash);
    __m256i  is = _mm256_loadu_si256((const __m256i *) bucket);
    uint32_t bits;

    is = _mm256_cmpeq_epi64(_mm256_srli_epi64(is, DI_MERGES_RANK_BITS),
                            _mm256_set1_epi64x((long long) pair));
    bits = (uint32_t) _mm256_movemask_pd(_mm256_castsi256_pd(is)) & 7;
    slot = bucket->slots[__builtin_ctz(bits | 4)];
    return di_merges_near(m, hash, bucket, bits != 0 ? slot : 0, far);
}

_Static_assert(DI_MERGES_SLOTS == 3, "join_near_avx2() looks at three slots");

__attribute__((target(JOIN_AVX2)))
static void
join_run_avx2(const di_merges_t *m, di_join_t *texts, size_t n)
{
    join_run(m, texts, n, (join_way_t) { join_first_avx2, join_near_avx2 });
}

di_join_run_t
di_join_way(unsigned i)
{
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2")
        && i-- == 0)
        return join_run_avx2;
    return i == 0 ? join_run_any : NULL;
}

#else

di_join_run_t
di_join_way(unsigned i)
{
    return i == 0 ? join_run_any : NULL;
}

#endif

void
di_join_run(const di_merges_t *m, di_join_t *texts, size_t n)
{
    di_join_way(0)(m, texts, n);
}

size_t
di_join_result(const di_join_t *t, int32_t ids[DI_JOIN_MAX])
{
    uint64_t left = t->starts & (t->starts - 1);    /* without place 0       */
    size_t   n = 0;

    for (; (left & (left - 1)) != 0; left &= left - 1)
        ids[n++] = t->ids[__builtin_ctzll(left)];
    return n;
}
