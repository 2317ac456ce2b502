/*
 * sweep.c - text that no cache knows and few rules fit, as base64.
 *
 * BPE applies the first rule of a piece, then the first of what it is now.
 * Which one that is can't be foreseen, and finding it out step by step costs
 * a core a wrong guess or two for each.  So here a pair is joined as soon as
 * its rule comes before those of the pairs on both sides of it; the first
 * sweep does that for all pairs of bytes at once, 16 at a time where there is
 * AVX-512, 8 where there is AVX2, without a branch.  In random text it finds
 * nine joins of ten.
 * Pairs with the new tokens are looked up: one gather asks for 16 of them
 * whether there may be a rule, and mostly there is none.  For the few pairs
 * left that have one, sweeps go over a list of them.
 *
 * What can be wrong with it: a neighbour may later join others by a rule that
 * comes before ours, and the token made so would have gone first, with the
 * token that we took.  That shows in the result: two neighbours don't stay
 * apart (merges.h).  So it is enough to see to it that, at any time, nothing
 * would have joined two neighbours across their border before both were
 * whole.  For bytes that is so.  Let X Y be joined to Z by a rule of order z,
 * with W behind it.  If W's last join came before z, going back in time undoes
 * Z first: Y W had no rule before z, as z was the first around, and their
 * border was in order already.  Otherwise W is undone first, and no one has
 * looked at Z and W's parts yet: the border is in doubt, and is looked at.
 * With W before it, the same the other way round.  A piece that
 * has a wrong one, in base64 one in 2,000, is encoded another way, as one is
 * that is not done after SWEEP_MAX sweeps: rules that come one before the
 * other along a piece would be found one a sweep.
 */

#include <string.h>

#include "sweep.h"

#define SWEEP_MAX     12                /* sweeps                            */
#define SWEEP_BEYOND  (DI_SWEEP_ROOM - DI_SWEEP_BYTES)

bool
di_sweep_can(const di_merges_t *m)
{
    return m->ordered && !m->twice;
}

static inline int32_t
sweep_id(const di_sweep_t *s, uint32_t i)
{
    return (int32_t) (s->ids[i] & ~DI_SWEEP_START);
}

/* a if yes is 1, b if it is 0. */
static inline uint32_t
sweep_choose(uint32_t yes, uint32_t a, uint32_t b)
{
    return b ^ ((a ^ b) & -yes);
}

/* ---------------------------------------------------------- first sweep -- */

/* The order of the pair of a byte and the next one. */
static inline uint32_t
sweep_order(const di_merges_t *m, const di_sweep_t *s, uint32_t i)
{
    uint32_t order = m->bytes[s->text[i] << 8 | s->text[i + 1]];

    return order | -(uint32_t) s->starts[i + 1];
}

/* Join pairs of bytes.  Whether one is joined can't be foreseen, so nothing
 * branches on it: all is written, and counted if it is so. */
static void
sweep_join_any(const di_merges_t *m, const int32_t bytes[256], di_sweep_t *s,
               uint32_t len)
{
    uint32_t before = DI_MERGES_NONE, order = sweep_order(m, s, 0), next;
    uint32_t n = 1, n_pairs = 0, n_doubts = 0, id, start;
    uint32_t joins, joins_1 = 0, joins_2 = 0;   /* here, 1 and 2 before      */

    for (uint32_t i = 0; i < len; i++) {
        next = sweep_order(m, s, i + 1);
        joins = (order < before) & (order <= next);
        start = s->starts[i];
        id = sweep_choose(joins,
                          (uint32_t) di_merges_makes(m, order & -joins),
                          (uint32_t) bytes[s->text[i]]);

        s->pairs[n_pairs] = (uint16_t) (n - 1);
        n_pairs += (joins | joins_2) & ~(start | joins_1);
        s->doubts[n_doubts] = (uint16_t) i;
        n_doubts += joins & joins_2 & ~start;
        s->ids[n] = id | start << 31;
        s->orders[n] = order | -joins;
        n += !joins_1;

        before = order;
        order = next;
        joins_2 = joins_1;
        joins_1 = joins;
    }
    s->n = n - 1;
    s->n_pairs = n_pairs;
    s->n_doubts = n_doubts;
}

/* Keep only the pairs that may have a rule. */
static void
sweep_sift_any(const di_merges_t *m, di_sweep_t *s)
{
    uint32_t n = 0;

    for (uint32_t k = 0; k < s->n_pairs; k++) {
        uint32_t i = s->pairs[k];

        s->orders[i] = DI_MERGES_NONE;
        s->pairs[n] = (uint16_t) i;
        n += di_merges_maybe(m, di_merges_sign(sweep_id(s, i),
                                               sweep_id(s, i + 1)));
    }
    s->n_pairs = n;
}

static void
sweep_first_any(const di_merges_t *m, const int32_t bytes[256], di_sweep_t *s,
                uint32_t len)
{
    sweep_join_any(m, bytes, s, len);
    sweep_sift_any(m, s);
}

uint32_t
di_sweep_first(di_sweep_t *s, const di_sweep_way_t *way, const di_merges_t *m,
               const int32_t bytes[256], const char *text,
               const uint32_t *ends, size_t n, uint32_t pos)
{
    uint32_t len = ends[n - 1] - pos;

    memcpy(s->text, text, len);
    memset(s->text + len, 0, SWEEP_BEYOND);
    memset(s->starts, 0, len);
    memset(s->starts + len, 1, SWEEP_BEYOND);
    s->starts[0] = 1;
    for (size_t i = 0; i + 1 < n; i++)
        s->starts[ends[i] - pos] = 1;

    way->first(m, bytes, s, len);
    s->ids[0] = s->ids[s->n + 1] = DI_SWEEP_START;
    s->orders[0] = s->orders[s->n + 1] = DI_MERGES_NONE;
    memset(s->wrong, 0, sizeof(s->wrong));
    s->n_wrong = 0;
    return s->n_pairs;
}

/* ------------------------------------------------------ what is in doubt -- */

/* Count a wrong border; is its piece to be found?  Counting those before it
 * takes longer than encoding it, so that isn't done for many. */
static inline bool
sweep_few(di_sweep_t *s)
{
    return s->n_wrong++ < DI_SWEEP_WRONG;
}

/* The piece of a token is wrong. */
static void
sweep_wrong(di_sweep_t *s, uint32_t i)
{
    uint32_t piece = 0;

    if (!sweep_few(s))
        return;
    for (; i > 1; i--)
        piece += s->ids[i] >> 31;
    s->wrong[piece / 64] |= 1ull << piece % 64;
}

/* So is that of a byte. */
static void
sweep_wrong_byte(di_sweep_t *s, uint32_t i)
{
    uint32_t piece = 0;

    if (!sweep_few(s))
        return;
    for (; i > 0; i--)
        piece += s->starts[i];
    s->wrong[piece / 64] |= 1ull << piece % 64;
}

/* Two tokens of two bytes each, side by side; just before the later one was
 * made, these were the neighbours. */
typedef struct {
    int32_t  left, right;
    uint32_t limit;             /* the order of the rule that made it        */
} sweep_doubt_t;

/* t: where the right one starts. */
static inline sweep_doubt_t
sweep_doubt(const di_merges_t *m, const int32_t bytes[256], const uint8_t *t)
{
    uint32_t l = m->bytes[t[-2] << 8 | t[-1]];
    uint32_t r = m->bytes[t[0] << 8 | t[1]], later = l <= r;

    return (sweep_doubt_t) {
        (int32_t) sweep_choose(later, (uint32_t) di_merges_makes(m, l),
                               (uint32_t) bytes[t[-1]]),
        (int32_t) sweep_choose(later, (uint32_t) bytes[t[0]],
                               (uint32_t) di_merges_makes(m, r)),
        sweep_choose(later, r, l),
    };
}

/* Look at the borders that the first sweep left in doubt. */
static void
sweep_doubts(const di_merges_t *m, const int32_t bytes[256], di_sweep_t *s)
{
    uint32_t n = 0;

    for (uint32_t k = 0; k < s->n_doubts; k++) {
        uint32_t      i = s->doubts[k];
        sweep_doubt_t d = sweep_doubt(m, bytes, s->text + i);

        s->doubts[n] = (uint16_t) i;
        n += di_merges_maybe(m, di_merges_sign(d.left, d.right));
    }
    for (uint32_t k = 0; k < n; k++) {
        uint32_t      i = s->doubts[k];
        sweep_doubt_t d = sweep_doubt(m, bytes, s->text + i);

        if (di_merges_order(m, d.left, d.right) < d.limit)
            sweep_wrong_byte(s, i);
    }
}

/* ----------------------------------------------------------- more sweeps -- */

/* Look up the pairs that the first sweep made, first all of them in near
 * memory. */
static void
sweep_pairs(const di_merges_t *m, di_sweep_t *s)
{
    uint32_t n = 0, i;
    bool     far;

    for (uint32_t k = 0; k < s->n_pairs; k++) {
        i = s->pairs[k];
        s->orders[i] = di_merges_order_near(m, sweep_id(s, i),
                                            sweep_id(s, i + 1), &far);
        s->pairs[n] = (uint16_t) i;
        n += far;
    }
    for (uint32_t k = 0; k < n; k++) {
        i = s->pairs[k];
        s->orders[i] = di_merges_order_far(m, sweep_id(s, i),
                                           sweep_id(s, i + 1));
    }
}

static uint32_t
sweep_live_any(const di_sweep_t *s, uint16_t *pairs)
{
    uint32_t n = 0;

    for (uint32_t i = 1; i <= s->n; i++) {
        pairs[n] = (uint16_t) i;
        n += s->orders[i] != DI_MERGES_NONE;
    }
    return n;
}

/* The token before and behind one. */
static inline uint32_t
sweep_before(const di_sweep_t *s, uint32_t i)
{
    do
        i--;
    while (s->ids[i] == DI_SWEEP_GONE);
    return i;
}

static inline uint32_t
sweep_behind(const di_sweep_t *s, uint32_t i)
{
    do
        i++;
    while (s->ids[i] == DI_SWEEP_GONE);
    return i;
}

/* Look at the border of two neighbours, one of them just made by a rule of
 * this order, `other` being the other one; list their pair if it has a rule.
 * The number of pairs in the list. */
static inline uint32_t
sweep_border(const di_merges_t *m, di_sweep_t *s, uint32_t left,
             uint32_t right, uint32_t order, uint32_t other, uint16_t *list,
             uint32_t n)
{
    int32_t l = sweep_id(s, left), r = sweep_id(s, right);

    s->orders[left] = DI_MERGES_NONE;
    if ((s->ids[right] & DI_SWEEP_START) != 0)
        return n;
    if (di_merges_born(m, sweep_id(s, other)) >= order
        && !di_merges_apart_before(m, l, r))
        sweep_wrong(s, left);
    if (!di_merges_maybe(m, di_merges_sign(l, r)))
        return n;
    s->orders[left] = di_merges_order(m, l, r);
    list[n] = (uint16_t) left;
    return n + (s->orders[left] != DI_MERGES_NONE);
}

/* Sweep over n_pairs pairs, and list those that have a rule now; some of them
 * more than once.  Each join adds one to the list at most: there are never
 * more than two for each token of the row. */
static uint32_t
sweep_again(const di_merges_t *m, di_sweep_t *s, const uint16_t *pairs,
            uint32_t n_pairs, uint16_t *list)
{
    uint32_t n = 0;

    for (uint32_t k = 0; k < n_pairs; k++) {
        uint32_t i = pairs[k], order = s->orders[i], left, right;

        if (order == DI_MERGES_NONE)
            continue;
        left = sweep_before(s, i);
        right = sweep_behind(s, i);
        if (order >= s->orders[left] || order > s->orders[right]) {
            list[n++] = (uint16_t) i;
            continue;
        }
        s->ids[i] = (uint32_t) di_merges_makes(m, order)
                    | (s->ids[i] & DI_SWEEP_START);
        s->ids[right] = DI_SWEEP_GONE;
        s->orders[right] = DI_MERGES_NONE;
        right = sweep_behind(s, right);
        n = sweep_border(m, s, left, i, order, left, list, n);
        n = sweep_border(m, s, i, right, order, right, list, n);
    }
    return n;
}

uint32_t
di_sweep_rest(di_sweep_t *s, const di_sweep_way_t *way, const di_merges_t *m,
              const int32_t bytes[256])
{
    uint32_t n;
    unsigned i;

    sweep_doubts(m, bytes, s);
    sweep_pairs(m, s);
    n = way->live(s, s->live[0]);
    for (i = 0; n > 0 && i < SWEEP_MAX; i++)
        n = sweep_again(m, s, s->live[i & 1], n, s->live[~i & 1]);
    for (uint32_t k = 0; k < n; k++)
        sweep_wrong(s, s->live[i & 1][k]);
    return s->n_wrong;
}

static uint32_t
sweep_ids_any(const di_sweep_t *s, int32_t *ids)
{
    uint32_t n = 0;

    for (uint32_t i = 1; i <= s->n; i++) {
        ids[n] = sweep_id(s, i);
        n += s->ids[i] != DI_SWEEP_GONE;
    }
    return n;
}

static const di_sweep_way_t sweep_any = {
    sweep_first_any, sweep_live_any, sweep_ids_any,
};

/* --------------------------------------------------------------- AVX-512 -- */

#if defined(__x86_64__)

#include <immintrin.h>

#define SWEEP_AVX512  "avx512f,avx512bw,avx512vl,bmi,bmi2,popcnt"

/* 16 bytes, each as 32 bits. */
__attribute__((target(SWEEP_AVX512)))
static inline __m512i
sweep_wide_avx512(const uint8_t *s)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *) s));
}

/* A bit for each of 16 bytes that isn't 0. */
__attribute__((target(SWEEP_AVX512)))
static inline uint32_t
sweep_bits_avx512(const uint8_t *s)
{
    __m128i v = _mm_loadu_si128((const __m128i *) s);

    return _mm_test_epi8_mask(v, v);
}

/* The first n of 16 bits, all of them if there are more. */
static inline uint32_t
sweep_first_bits(uint32_t n)
{
    return n >= 16 ? 0xffff : (1u << n) - 1;
}

/* The elements n places before those of b; a is what lies before b. */
#define SWEEP_BEFORE(a, b, n)  _mm512_alignr_epi32(b, a, 16 - (n))

/* sweep_order() for 16 bytes from i on. */
__attribute__((target(SWEEP_AVX512)))
static inline __m512i
sweep_orders_avx512(const di_merges_t *m, const di_sweep_t *s, uint32_t i)
{
    __m512i  pairs = _mm512_or_si512(
                 _mm512_slli_epi32(sweep_wide_avx512(s->text + i), 8),
                 sweep_wide_avx512(s->text + i + 1));
    uint32_t inside = ~sweep_bits_avx512(s->starts + i + 1);

    return _mm512_mask_i32gather_epi32(_mm512_set1_epi32(-1),
                                       (__mmask16) inside, pairs, m->bytes, 4);
}

/* A bit for each of 16 pairs that is joined. */
__attribute__((target(SWEEP_AVX512)))
static inline uint32_t
sweep_joins_avx512(__m512i before, __m512i order, __m512i next)
{
    return _mm512_cmplt_epu32_mask(order, SWEEP_BEFORE(before, order, 1))
           & _mm512_cmple_epu32_mask(order, SWEEP_BEFORE(order, next, 15));
}

/* The tokens that start with 16 bytes: those of rules with these orders, or
 * else of the bytes alone. */
__attribute__((target(SWEEP_AVX512)))
static inline __m512i
sweep_tokens_avx512(const di_merges_t *m, const int32_t bytes[256],
                    const uint8_t *s, uint32_t joins, __m512i orders)
{
    __m512i   wide = sweep_wide_avx512(s), ids;
    __m512i   place = _mm512_sub_epi32(wide, _mm512_set1_epi32('!'));
    __mmask16 print = _mm512_cmple_epu32_mask(place,
                                              _mm512_set1_epi32('~' - '!'));

    if (m->print && print == 0xffff)
        ids = _mm512_add_epi32(place, _mm512_set1_epi32(bytes['!']));
    else
        ids = _mm512_i32gather_epi32(wide, bytes, 4);
    if (m->straight)
        return _mm512_mask_add_epi32(ids, (__mmask16) joins, orders,
                                     _mm512_set1_epi32(m->straight_from));
    return _mm512_mask_i32gather_epi32(ids, (__mmask16) joins, orders,
                                       m->makes, 4);
}

/* di_merges_sign() of 16 pairs. */
__attribute__((target(SWEEP_AVX512)))
static inline __m512i
sweep_signs_avx512(__m512i left, __m512i right)
{
    left = _mm512_mullo_epi32(left, _mm512_set1_epi32(
                                        (int) DI_MERGES_SIGN_LEFT));
    return _mm512_mullo_epi32(_mm512_add_epi32(left, right),
                              _mm512_set1_epi32((int) DI_MERGES_SIGN_BOTH));
}

/* Store those of 16 elements that have a bit. */
__attribute__((target(SWEEP_AVX512)))
static inline void
sweep_store_avx512(void *at, uint32_t bits, __m512i v)
{
    _mm512_storeu_si512(at, _mm512_maskz_compress_epi32((__mmask16) bits, v));
}

/* List those of 16 places that have a bit; their number. */
__attribute__((target(SWEEP_AVX512)))
static inline uint32_t
sweep_keep_avx512(uint16_t *list, uint32_t bits, __m512i places)
{
    places = _mm512_maskz_compress_epi32((__mmask16) bits, places);
    _mm256_storeu_si256((__m256i *) list, _mm512_cvtepi32_epi16(places));
    return (uint32_t) __builtin_popcount(bits);
}

/* List the places of bits, the first being place `from`; their number. */
__attribute__((target(SWEEP_AVX512)))
static inline uint32_t
sweep_list_avx512(uint16_t *list, uint32_t bits, uint32_t from)
{
    const __m512i places = _mm512_add_epi32(
        _mm512_set1_epi32((int) from),
        _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14,
                          15));

    return sweep_keep_avx512(list, bits, places);
}

/* sweep_join_any(), and the signs of pairs.  joins has the bits of two bytes
 * before the 16 that it is about, and 16 behind them. */
__attribute__((target(SWEEP_AVX512)))
static void
sweep_join_avx512(const di_merges_t *m, const int32_t bytes[256],
                  di_sweep_t *s, uint32_t len)
{
    const __m512i none = _mm512_set1_epi32(-1);
    const __m512i start = _mm512_set1_epi32((int) DI_SWEEP_START);
    __m512i  order = sweep_orders_avx512(m, s, 0);
    __m512i  next = sweep_orders_avx512(m, s, 16), after, ids, left;
    __m512i  ids_before = none;
    uint64_t joins = (uint64_t) sweep_joins_avx512(none, order, next) << 2;
    uint32_t n = 1, n_pairs = 0, n_doubts = 0;

    for (uint32_t i = 0; i < len; i += 16) {
        uint32_t starts = sweep_bits_avx512(s->starts + i), here, two, kept;
        uint32_t pairs;

        after = sweep_orders_avx512(m, s, i + 32);
        joins |= (uint64_t) sweep_joins_avx512(order, next, after) << 18;
        here = (uint32_t) (joins >> 2);
        two = (uint32_t) joins;
        kept = ~(uint32_t) (joins >> 1) & sweep_first_bits(len - i);
        pairs = (here | two) & ~starts & kept;

        ids = sweep_tokens_avx512(m, bytes, s->text + i, here, order);
        left = _mm512_mask_blend_epi32((__mmask16) two,
                                       SWEEP_BEFORE(ids_before, ids, 1),
                                       SWEEP_BEFORE(ids_before, ids, 2));
        sweep_store_avx512(s->signs + n_pairs, pairs,
                           sweep_signs_avx512(left, ids));
        n_pairs += sweep_list_avx512(s->pairs + n_pairs,
                                     _pext_u32(pairs, kept), n - 1);
        n_doubts += sweep_list_avx512(s->doubts + n_doubts,
                                      here & two & ~starts & 0xffff, i);
        sweep_store_avx512(s->ids + n, kept,
                           _mm512_mask_or_epi32(ids, (__mmask16) starts, ids,
                                                start));
        sweep_store_avx512(s->orders + n, kept,
                           _mm512_mask_mov_epi32(
                               order, (__mmask16) (here | here >> 1), none));
        n += (uint32_t) __builtin_popcount(kept);

        joins >>= 16;
        ids_before = ids;
        order = next;
        next = after;
    }
    s->n = n - 1;
    s->n_pairs = n_pairs;
    s->n_doubts = n_doubts;
}

__attribute__((target(SWEEP_AVX512)))
static void
sweep_sift_avx512(const di_merges_t *m, di_sweep_t *s)
{
    const __m128i shift = _mm_cvtsi32_si128((int) m->maybe_shift);
    uint32_t      n = 0, maybe;

    for (uint32_t i = 0; i < s->n_pairs; i += 16) {
        __m512i bit = _mm512_srl_epi32(_mm512_loadu_si512(s->signs + i),
                                       shift);
        __m512i word = _mm512_i32gather_epi32(_mm512_srli_epi32(bit, 5),
                                              m->maybe, 4);
        __m256i pairs = _mm256_loadu_si256((const __m256i *) (s->pairs + i));

        bit = _mm512_and_si512(bit, _mm512_set1_epi32(31));
        bit = _mm512_sllv_epi32(_mm512_set1_epi32(1), bit);
        maybe = _mm512_test_epi32_mask(word, bit)
                & sweep_first_bits(s->n_pairs - i);
        n += sweep_keep_avx512(s->pairs + n, maybe,
                               _mm512_cvtepu16_epi32(pairs));
    }
    s->n_pairs = n;
}

__attribute__((target(SWEEP_AVX512)))
static void
sweep_first_avx512(const di_merges_t *m, const int32_t bytes[256],
                   di_sweep_t *s, uint32_t len)
{
    sweep_join_avx512(m, bytes, s, len);
    sweep_sift_avx512(m, s);
}

__attribute__((target(SWEEP_AVX512)))
static uint32_t
sweep_live_avx512(const di_sweep_t *s, uint16_t *pairs)
{
    uint32_t n = 0, live;

    for (uint32_t i = 1; i <= s->n; i += 16) {
        live = _mm512_cmpneq_epi32_mask(_mm512_loadu_si512(s->orders + i),
                                        _mm512_set1_epi32(-1));
        n += sweep_list_avx512(pairs + n,
                               live & sweep_first_bits(s->n + 1 - i), i);
    }
    return n;
}

__attribute__((target(SWEEP_AVX512)))
static uint32_t
sweep_ids_avx512(const di_sweep_t *s, int32_t *ids)
{
    const __m512i gone = _mm512_set1_epi32((int) DI_SWEEP_GONE);
    const __m512i start = _mm512_set1_epi32((int) DI_SWEEP_START);
    uint32_t      n = 0, there;

    for (uint32_t i = 1; i <= s->n; i += 16) {
        __m512i v = _mm512_loadu_si512(s->ids + i);

        there = _mm512_cmpneq_epi32_mask(v, gone)
                & sweep_first_bits(s->n + 1 - i);
        sweep_store_avx512(ids + n, there, _mm512_andnot_si512(start, v));
        n += (uint32_t) __builtin_popcount(there);
    }
    return n;
}

static const di_sweep_way_t sweep_avx512 = {
    sweep_first_avx512, sweep_live_avx512, sweep_ids_avx512,
};

/* ----------------------------------------------------------------- AVX2 -- */

/* The same for 8 elements; PEXT takes those that have a bit from the numbers
 * of all.  Zen 1 and 2 have it, but take it bit by bit. */
#define SWEEP_AVX2  "avx2,bmi,bmi2,popcnt"
#define SWEEP_ONES  0x0101010101010101u

__attribute__((target(SWEEP_AVX2)))
static inline __m256i
sweep_wide_avx2(const uint8_t *s)
{
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *) s));
}

/* A bit for each of 8 bytes that is 1, not 0. */
__attribute__((target(SWEEP_AVX2)))
static inline uint32_t
sweep_bits_avx2(const uint8_t *s)
{
    uint64_t v;

    memcpy(&v, s, sizeof(v));
    return (uint32_t) _pext_u64(v, SWEEP_ONES);
}

/* A bit for each of 8 elements that is all ones. */
__attribute__((target(SWEEP_AVX2)))
static inline uint32_t
sweep_mask_avx2(__m256i v)
{
    return (uint32_t) _mm256_movemask_ps(_mm256_castsi256_ps(v));
}

/* All ones in each of 8 elements that has a bit. */
__attribute__((target(SWEEP_AVX2)))
static inline __m256i
sweep_spread_avx2(uint32_t bits)
{
    const __m256i each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);

    return _mm256_cmpeq_epi32(
        _mm256_and_si256(_mm256_set1_epi32((int) bits), each), each);
}

/* The numbers of those of 8 elements that have a bit, a byte for each. */
__attribute__((target(SWEEP_AVX2)))
static inline __m128i
sweep_numbers_avx2(uint32_t bits)
{
    uint64_t bytes = _pdep_u64(bits, SWEEP_ONES) * 0xff;

    return _mm_cvtsi64_si128((long long) _pext_u64(0x0706050403020100u,
                                                   bytes));
}

/* Store the elements with these numbers. */
__attribute__((target(SWEEP_AVX2)))
static inline void
sweep_store_avx2(void *at, __m128i numbers, __m256i v)
{
    v = _mm256_permutevar8x32_epi32(v, _mm256_cvtepu8_epi32(numbers));
    _mm256_storeu_si256(at, v);
}

__attribute__((target(SWEEP_AVX2)))
static inline uint32_t
sweep_list_avx2(uint16_t *list, uint32_t bits, uint32_t from)
{
    __m128i places = _mm_cvtepu8_epi16(sweep_numbers_avx2(bits));

    places = _mm_add_epi16(places, _mm_set1_epi16((short) from));
    _mm_storeu_si128((__m128i *) list, places);
    return (uint32_t) __builtin_popcount(bits);
}

/* The elements n places before those of b; a is what lies before b. */
#define SWEEP_BEFORE_AVX2(a, b, n)                                          \
    _mm256_alignr_epi8(b, _mm256_permute2x128_si256(a, b, 0x21),            \
                       16 - 4 * (n))

/* Those one place behind a; b is what lies behind a. */
#define SWEEP_BEHIND_AVX2(a, b)                                             \
    _mm256_alignr_epi8(_mm256_permute2x128_si256(a, b, 0x21), a, 4)

__attribute__((target(SWEEP_AVX2)))
static inline __m256i
sweep_orders_avx2(const di_merges_t *m, const di_sweep_t *s, uint32_t i)
{
    __m256i pairs = _mm256_or_si256(
                _mm256_slli_epi32(sweep_wide_avx2(s->text + i), 8),
                sweep_wide_avx2(s->text + i + 1));
    __m256i inside = _mm256_cmpeq_epi32(sweep_wide_avx2(s->starts + i + 1),
                                        _mm256_setzero_si256());

    return _mm256_mask_i32gather_epi32(_mm256_set1_epi32(-1),
                                       (const int *) m->bytes, pairs, inside,
                                       4);
}

__attribute__((target(SWEEP_AVX2)))
static inline uint32_t
sweep_joins_avx2(__m256i before, __m256i order, __m256i next)
{
    __m256i least;

    before = SWEEP_BEFORE_AVX2(before, order, 1);
    next = SWEEP_BEHIND_AVX2(order, next);
    least = _mm256_min_epu32(order, next);
    return sweep_mask_avx2(_mm256_cmpeq_epi32(least, order))
           & ~sweep_mask_avx2(_mm256_cmpeq_epi32(
                                  _mm256_min_epu32(before, order), before));
}

__attribute__((target(SWEEP_AVX2)))
static inline __m256i
sweep_tokens_avx2(const di_merges_t *m, const int32_t bytes[256],
                  const uint8_t *s, uint32_t joins, __m256i orders)
{
    const __m256i last = _mm256_set1_epi32('~' - '!');
    __m256i  wide = sweep_wide_avx2(s), ids, join = sweep_spread_avx2(joins);
    __m256i  place = _mm256_sub_epi32(wide, _mm256_set1_epi32('!'));
    uint32_t print = sweep_mask_avx2(_mm256_cmpeq_epi32(
                         _mm256_max_epu32(place, last), last));

    if (m->print && print == 0xff)
        ids = _mm256_add_epi32(place, _mm256_set1_epi32(bytes['!']));
    else
        ids = _mm256_i32gather_epi32(bytes, wide, 4);
    if (m->straight)
        return _mm256_blendv_epi8(ids, _mm256_add_epi32(orders,
                                      _mm256_set1_epi32(m->straight_from)),
                                  join);
    return _mm256_mask_i32gather_epi32(ids, m->makes, orders, join, 4);
}

__attribute__((target(SWEEP_AVX2)))
static inline __m256i
sweep_signs_avx2(__m256i left, __m256i right)
{
    left = _mm256_mullo_epi32(left, _mm256_set1_epi32(
                                        (int) DI_MERGES_SIGN_LEFT));
    return _mm256_mullo_epi32(_mm256_add_epi32(left, right),
                              _mm256_set1_epi32((int) DI_MERGES_SIGN_BOTH));
}

__attribute__((target(SWEEP_AVX2)))
static void
sweep_join_avx2(const di_merges_t *m, const int32_t bytes[256],
                di_sweep_t *s, uint32_t len)
{
    __m256i  order = sweep_orders_avx2(m, s, 0), none = _mm256_set1_epi32(-1);
    __m256i  next = sweep_orders_avx2(m, s, 8), after, ids, left;
    __m256i  ids_before = none;
    uint32_t joins = sweep_joins_avx2(none, order, next) << 2;
    uint32_t n = 1, n_pairs = 0, n_doubts = 0;

    for (uint32_t i = 0; i < len; i += 8) {
        uint32_t starts = sweep_bits_avx2(s->starts + i), here, kept, pairs;
        __m128i  numbers;

        after = sweep_orders_avx2(m, s, i + 16);
        joins |= sweep_joins_avx2(order, next, after) << 10;
        here = joins >> 2;
        kept = ~(joins >> 1) & sweep_first_bits(len - i) & 0xff;
        pairs = (here | joins) & ~starts & kept;

        ids = sweep_tokens_avx2(m, bytes, s->text + i, here, order);
        left = _mm256_blendv_epi8(SWEEP_BEFORE_AVX2(ids_before, ids, 1),
                                  SWEEP_BEFORE_AVX2(ids_before, ids, 2),
                                  sweep_spread_avx2(joins));
        sweep_store_avx2(s->signs + n_pairs, sweep_numbers_avx2(pairs),
                         sweep_signs_avx2(left, ids));
        n_pairs += sweep_list_avx2(s->pairs + n_pairs, _pext_u32(pairs, kept),
                                   n - 1);
        n_doubts += sweep_list_avx2(s->doubts + n_doubts,
                                    here & joins & ~starts & 0xff, i);
        numbers = sweep_numbers_avx2(kept);
        sweep_store_avx2(s->ids + n, numbers, _mm256_or_si256(
                             ids, _mm256_slli_epi32(
                                      sweep_wide_avx2(s->starts + i), 31)));
        sweep_store_avx2(s->orders + n, numbers, _mm256_or_si256(
                             order, sweep_spread_avx2(here | here >> 1)));
        n += (uint32_t) __builtin_popcount(kept);

        joins >>= 8;
        ids_before = ids;
        order = next;
        next = after;
    }
    s->n = n - 1;
    s->n_pairs = n_pairs;
    s->n_doubts = n_doubts;
}

__attribute__((target(SWEEP_AVX2)))
static void
sweep_sift_avx2(const di_merges_t *m, di_sweep_t *s)
{
    const __m128i shift = _mm_cvtsi32_si128((int) m->maybe_shift);
    uint32_t      n = 0, maybe;

    for (uint32_t i = 0; i < s->n_pairs; i += 8) {
        __m256i bit = _mm256_srl_epi32(
            _mm256_loadu_si256((const __m256i *) (s->signs + i)), shift);
        __m256i word = _mm256_i32gather_epi32(
            (const int *) m->maybe, _mm256_srli_epi32(bit, 5), 4);
        __m128i pairs = _mm_loadu_si128((const __m128i *) (s->pairs + i));
        __m128i numbers;

        bit = _mm256_sub_epi32(_mm256_set1_epi32(31),
                               _mm256_and_si256(bit, _mm256_set1_epi32(31)));
        maybe = sweep_mask_avx2(_mm256_sllv_epi32(word, bit))
                & sweep_first_bits(s->n_pairs - i);
        numbers = sweep_numbers_avx2(maybe);    /* k: bytes 2 k, 2 k + 1 */
        numbers = _mm_slli_epi16(_mm_unpacklo_epi8(numbers, numbers), 1);
        numbers = _mm_add_epi8(numbers, _mm_set1_epi16(0x100));
        _mm_storeu_si128((__m128i *) (s->pairs + n),
                         _mm_shuffle_epi8(pairs, numbers));
        n += (uint32_t) __builtin_popcount(maybe);
    }
    s->n_pairs = n;
}

__attribute__((target(SWEEP_AVX2)))
static void
sweep_first_avx2(const di_merges_t *m, const int32_t bytes[256],
                 di_sweep_t *s, uint32_t len)
{
    sweep_join_avx2(m, bytes, s, len);
    sweep_sift_avx2(m, s);
}

__attribute__((target(SWEEP_AVX2)))
static uint32_t
sweep_live_avx2(const di_sweep_t *s, uint16_t *pairs)
{
    uint32_t n = 0, none;

    for (uint32_t i = 1; i <= s->n; i += 8) {
        none = sweep_mask_avx2(_mm256_loadu_si256((const __m256i *)
                                                  (s->orders + i)));
        n += sweep_list_avx2(pairs + n, ~none & 0xff
                             & sweep_first_bits(s->n + 1 - i), i);
    }
    return n;
}

__attribute__((target(SWEEP_AVX2)))
static uint32_t
sweep_ids_avx2(const di_sweep_t *s, int32_t *ids)
{
    const __m256i start = _mm256_set1_epi32((int) DI_SWEEP_START);
    uint32_t      n = 0, there;

    for (uint32_t i = 1; i <= s->n; i += 8) {
        __m256i v = _mm256_loadu_si256((const __m256i *) (s->ids + i));

        there = ~sweep_mask_avx2(_mm256_slli_epi32(v, 1)) & 0xff
                & sweep_first_bits(s->n + 1 - i);
        sweep_store_avx2(ids + n, sweep_numbers_avx2(there),
                         _mm256_andnot_si256(start, v));
        n += (uint32_t) __builtin_popcount(there);
    }
    return n;
}

static const di_sweep_way_t sweep_avx2 = {
    sweep_first_avx2, sweep_live_avx2, sweep_ids_avx2,
};

const di_sweep_way_t *
di_sweep_way(unsigned i)
{
    if (__builtin_cpu_supports("avx512bw")
        && __builtin_cpu_supports("avx512vl")
        && __builtin_cpu_supports("bmi2") && i-- == 0)
        return &sweep_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2")
        && !__builtin_cpu_is("znver1") && !__builtin_cpu_is("znver2")
        && i-- == 0)
        return &sweep_avx2;
    return i == 0 ? &sweep_any : NULL;
}

#else

const di_sweep_way_t *
di_sweep_way(unsigned i)
{
    return i == 0 ? &sweep_any : NULL;
}

#endif
