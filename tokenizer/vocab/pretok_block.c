/*
 * pretok_block.c - cutting 64 bytes of ASCII text at once.
 *
 * A word of one class is tested for what lies before each character by
 * shifting it up, for what lies behind it by shifting it down.  Carries of
 * additions run along runs of ones: from the start of a run they come out at
 * its end.
 *
 * Contractions ('s, 're) would need more than one character; an apostrophe
 * ends the block for the patterns that have them.
 */

#include "pretok_block.h"

/* Classes of the bytes of a block, a bit for each. */
typedef struct {
    uint64_t letters;
    uint64_t numbers;
    uint64_t spaces;        /* U+0020                                        */
    uint64_t white;         /* it, and tab to carriage return                */
    uint64_t newlines;      /* \r and \n                                     */
    uint64_t hard;          /* controls, and all that is not ASCII           */
    uint64_t quotes;        /* apostrophes                                   */
} block_classes_t;

/* In what the patterns differ, within ASCII. */
typedef struct {
    bool any_prefix;        /* any white space but newlines, or one mark,
                               joins the letters behind it; or else a space
                               joins letters and numbers                     */
    bool newlines;          /* newlines end marks and white space            */
    bool keep;              /* white space before a number stays whole       */
    int  digits;            /* numbers together; 0: any number               */
    bool quotes;            /* there are contractions                        */
} block_rules_t;

/* Starts of marks that a space doesn't join. */
static inline uint64_t
block_marks(uint64_t marks, uint64_t spaces)
{
    return marks & ~(marks << 1) & ~(spaces << 1);
}

static inline uint64_t
block_numbers(block_rules_t r, uint64_t numbers, uint64_t spaces)
{
    uint64_t starts = numbers & ~(numbers << 1), next;

    if (r.digits == 1)
        return numbers;
    if (r.digits == 0)
        return starts & ~(spaces << 1);
    next = starts;
    do {
        next = next << 3 & numbers & numbers << 1 & numbers << 2;
        starts |= next;
    } while (next != 0);
    return starts;
}

/* Starts behind the last newline of a run of white space.  `after` has the
 * places behind any newline in it. */
static inline uint64_t
block_lines(uint64_t white, uint64_t newlines, uint64_t after)
{
    uint64_t plain = white & ~newlines, left = after;

    if (((plain + after) & newlines) == 0)
        return after;
    while (left != 0) {
        int      at = __builtin_ctzll(left);
        uint64_t rest = white >> at;
        int      n = rest == UINT64_MAX ? 64 : __builtin_ctzll(~rest);

        if ((newlines >> at & (n == 64 ? UINT64_MAX : (1ull << n) - 1)) != 0)
            after &= ~(1ull << at);
        left &= left - 1;
    }
    return after;
}

static inline uint64_t
block_white(block_rules_t r, uint64_t white, uint64_t newlines,
            uint64_t letters, uint64_t numbers, uint64_t marks)
{
    uint64_t starts, next = letters | marks | (r.keep ? 0 : numbers);

    if (!r.newlines)
        return (white & ~(white << 1)) | (white & next >> 1);

    /* Newlines behind marks are theirs. */
    white &= ~newlines | (newlines + (newlines & marks << 1));
    newlines &= white;
    starts = white & ~(white << 1);
    starts |= white & ~newlines & next >> 1;
    return starts | block_lines(white, newlines,
                                white & ~newlines & newlines << 1);
}

/* Length of the part of a block whose starts are decided, those at its end
 * included: all but white space at the end, of which only the start is. */
static inline uint64_t
block_decided(uint64_t white, unsigned n)
{
    uint64_t valid = n == 64 ? UINT64_MAX : (1ull << n) - 1;
    uint64_t solid = valid & ~white;
    unsigned last;

    if (solid == 0)
        return 1;
    last = 63 - (unsigned) __builtin_clzll(solid);
    /* Up to the character behind the last that is no white space. */
    return valid & (UINT64_MAX >> (last >= 62 ? 0 : 62 - last));
}

static inline uint64_t
block_starts(block_rules_t r, const block_classes_t *c)
{
    uint64_t hard = c->hard | (r.quotes ? c->quotes : 0);
    uint64_t marks = ~(c->letters | c->numbers | c->white | hard);
    uint64_t alone = block_marks(marks, c->spaces), joined, starts;
    unsigned n = hard == 0 ? 64 : (unsigned) __builtin_ctzll(hard);

    if (n == 0)
        return 1;
    joined = r.any_prefix ? (c->white & ~c->newlines) | alone : c->spaces;
    starts = c->letters & ~(c->letters << 1) & ~(joined << 1);
    starts |= alone;
    starts |= block_numbers(r, c->numbers, c->spaces);
    starts |= block_white(r, c->white, c->newlines, c->letters, c->numbers,
                          marks);
    return (starts & block_decided(c->white, n)) | 1;
}

/* The decided starts of pre-tokens in a block, bit 0 being one.  The last of
 * them is where the undecided rest begins. */
static inline uint64_t
block_starts_of(di_pretok_kind_t kind, const block_classes_t *c)
{
    switch (kind) {
    case DI_PRETOK_GPT2:
        return block_starts((block_rules_t) { .quotes = true }, c);
    case DI_PRETOK_SMOLLM:
        return block_starts((block_rules_t) { .quotes = true, .keep = true,
                                              .digits = 1 }, c);
    case DI_PRETOK_QWEN2:
        return block_starts((block_rules_t) { true, true, false, 1, true }, c);
    case DI_PRETOK_LLAMA3:
        return block_starts((block_rules_t) { true, true, false, 3, true }, c);
    default:
        return block_starts((block_rules_t) { true, true, true, 3, false }, c);
    }
}

#if defined(__x86_64__)

#include <immintrin.h>

/* Bytes from `first` on, `n` of them. */
__attribute__((target("avx2")))
static inline __m256i
block_range(__m256i v, char first, char n)
{
    __m256i at = _mm256_sub_epi8(v, _mm256_set1_epi8(first));

    return _mm256_cmpeq_epi8(_mm256_min_epu8(at, _mm256_set1_epi8(
                                                     (char) (n - 1))), at);
}

__attribute__((target("avx2")))
static inline uint64_t
block_bits(__m256i low, __m256i high)
{
    return (uint32_t) _mm256_movemask_epi8(low)
           | (uint64_t) (uint32_t) _mm256_movemask_epi8(high) << 32;
}

__attribute__((target("avx2")))
static inline block_classes_t
block_classify_avx2(const uint8_t *s)
{
    const __m256i fold = _mm256_set1_epi8(0x20);
    __m256i       v[2], letters[2], numbers[2], spaces[2], white[2];
    __m256i       newlines[2], hard[2], quotes[2];

    for (int i = 0; i < 2; i++) {
        v[i] = _mm256_loadu_si256((const __m256i *) (s + i * 32));
        letters[i] = block_range(_mm256_or_si256(v[i], fold), 'a', 26);
        numbers[i] = block_range(v[i], '0', 10);
        spaces[i] = _mm256_cmpeq_epi8(v[i], fold);
        white[i] = block_range(v[i], '\t', 5);
        newlines[i] = _mm256_or_si256(
            _mm256_cmpeq_epi8(v[i], _mm256_set1_epi8('\n')),
            _mm256_cmpeq_epi8(v[i], _mm256_set1_epi8('\r')));
        quotes[i] = _mm256_cmpeq_epi8(v[i], _mm256_set1_epi8('\''));
        /* All but 0x20 to 0x7e, less white space. */
        hard[i] = _mm256_andnot_si256(
            _mm256_or_si256(block_range(v[i], 0x20, 0x5f), white[i]),
            _mm256_set1_epi8((char) 0xff));
        white[i] = _mm256_or_si256(white[i], spaces[i]);
    }
    return (block_classes_t) {
        .letters = block_bits(letters[0], letters[1]),
        .numbers = block_bits(numbers[0], numbers[1]),
        .spaces = block_bits(spaces[0], spaces[1]),
        .white = block_bits(white[0], white[1]),
        .newlines = block_bits(newlines[0], newlines[1]),
        .hard = block_bits(hard[0], hard[1]),
        .quotes = block_bits(quotes[0], quotes[1]),
    };
}

__attribute__((target("avx2,bmi")))
static size_t
block_cut_avx2(di_pretok_kind_t kind, const uint8_t *s, uint32_t pos,
               uint32_t *ends)
{
    block_classes_t classes = block_classify_avx2(s);
    uint64_t        starts = block_starts_of(kind, &classes) & ~1ull;
    size_t          n = 0;

    for (; starts != 0; starts &= starts - 1)
        ends[n++] = pos + (uint32_t) __builtin_ctzll(starts);
    return n;
}

#define BLOCK_AVX512  "avx512f,avx512bw,avx512vl,avx512vbmi2,bmi,popcnt"

__attribute__((target(BLOCK_AVX512)))
static inline uint64_t
block_mask(__m512i v, char first, char n)
{
    return _mm512_cmplt_epu8_mask(_mm512_sub_epi8(v, _mm512_set1_epi8(first)),
                                  _mm512_set1_epi8(n));
}

__attribute__((target(BLOCK_AVX512)))
static inline block_classes_t
block_classify_avx512(const uint8_t *s)
{
    const __m512i   fold = _mm512_set1_epi8(0x20);
    __m512i         v = _mm512_loadu_si512(s);
    block_classes_t c = {
        .letters = block_mask(_mm512_or_si512(v, fold), 'a', 26),
        .numbers = block_mask(v, '0', 10),
        .spaces = _mm512_cmpeq_epi8_mask(v, fold),
        .white = block_mask(v, '\t', 5),
        .newlines = _mm512_cmpeq_epi8_mask(v, _mm512_set1_epi8('\n'))
                    | _mm512_cmpeq_epi8_mask(v, _mm512_set1_epi8('\r')),
        .quotes = _mm512_cmpeq_epi8_mask(v, _mm512_set1_epi8('\'')),
    };

    c.hard = ~(block_mask(v, 0x20, 0x5f) | c.white);
    c.white |= c.spaces;
    return c;
}

/* The numbers of the bits that are set, made by one instruction. */
__attribute__((target(BLOCK_AVX512)))
static size_t
block_cut_avx512(di_pretok_kind_t kind, const uint8_t *s, uint32_t pos,
                 uint32_t *ends)
{
    static const uint8_t numbers[64] = {
        0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
        16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31,
        32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47,
        48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63,
    };
    const __m512i   base = _mm512_set1_epi32((int) pos);
    block_classes_t classes = block_classify_avx512(s);
    uint64_t        starts = block_starts_of(kind, &classes) & ~1ull;
    size_t          n = (size_t) __builtin_popcountll(starts);
    __m512i         at = _mm512_maskz_compress_epi8(
                             starts, _mm512_loadu_si512(numbers));

    for (size_t i = 0; i < n; i += 16) {
        __m128i four = _mm512_castsi512_si128(at);

        _mm512_storeu_si512(ends + i, _mm512_add_epi32(
                                          base, _mm512_cvtepu8_epi32(four)));
        at = _mm512_alignr_epi64(at, at, 2);
    }
    return n;
}

di_pretok_block_t
di_pretok_block(unsigned i)
{
    if (__builtin_cpu_supports("avx512vbmi2")
        && __builtin_cpu_supports("avx512bw")
        && __builtin_cpu_supports("avx512vl") && i-- == 0)
        return block_cut_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi")
        && i == 0)
        return block_cut_avx2;
    return NULL;
}

#else

di_pretok_block_t
di_pretok_block(unsigned i)
{
    (void) i;
    return NULL;
}

#endif
