/*
 * letters.c - the tokens that are made of some kinds of bytes.
 *
 * One look at each of the vocabulary's words of kinds; a megabyte for 128,000
 * tokens.
 */

#include "part.h"

void
di_gram_letters_scalar(const uint64_t *token_kinds, const uint8_t *lengths,
                       uint32_t n, uint64_t kinds, unsigned longest,
                       uint64_t *mask)
{
    uint64_t word;

    for (uint32_t i = 0; i < n; i += 64) {
        word = 0;
        for (uint32_t k = 0; k < 64; k++) {
            uint64_t all = token_kinds[i + k];

            word |= (uint64_t) (all != 0 && (all & ~kinds) == 0
                                && lengths[i + k] <= longest) << k;
        }
        mask[i / 64] = word;
    }
}

#if defined(__x86_64__)

#include <immintrin.h>

__attribute__((target("avx2")))
static void
letters_avx2(const uint64_t *token_kinds, const uint8_t *lengths, uint32_t n,
             uint64_t kinds, unsigned longest, uint64_t *mask)
{
    const __m256i zero = _mm256_setzero_si256();
    const __m256i not = _mm256_set1_epi64x((long long) ~kinds);
    const __m256i max = _mm256_set1_epi8((char) longest);
    uint64_t      word, empty, fits;
    __m256i       v;

    for (uint32_t i = 0; i < n; i += 64) {
        word = empty = fits = 0;
        for (unsigned k = 0; k < 64; k += 4) {
            v = _mm256_loadu_si256((const __m256i *) (token_kinds + i + k));
            empty |= (uint64_t) _mm256_movemask_pd(_mm256_castsi256_pd(
                         _mm256_cmpeq_epi64(v, zero))) << k;
            v = _mm256_cmpeq_epi64(_mm256_and_si256(v, not), zero);
            word |= (uint64_t) _mm256_movemask_pd(_mm256_castsi256_pd(v))
                    << k;
        }
        for (unsigned k = 0; k < 64; k += 32) {
            v = _mm256_loadu_si256((const __m256i *) (lengths + i + k));
            v = _mm256_cmpeq_epi8(_mm256_max_epu8(v, max), max);
            fits |= (uint64_t) (uint32_t) _mm256_movemask_epi8(v) << k;
        }
        mask[i / 64] = word & ~empty & fits;
    }
}

__attribute__((target("avx512f,avx512bw")))
static void
letters_avx512(const uint64_t *token_kinds, const uint8_t *lengths,
               uint32_t n, uint64_t kinds, unsigned longest, uint64_t *mask)
{
    const __m512i not = _mm512_set1_epi64((long long) ~kinds);
    const __m512i max = _mm512_set1_epi8((char) longest);
    uint64_t      word;
    __m512i       v;

    for (uint32_t i = 0; i < n; i += 64) {
        word = 0;
        for (unsigned k = 0; k < 64; k += 8) {
            v = _mm512_loadu_si512(token_kinds + i + k);
            word |= (uint64_t) (_mm512_testn_epi64_mask(v, not)
                                & _mm512_test_epi64_mask(v, v)) << k;
        }
        v = _mm512_loadu_si512(lengths + i);
        mask[i / 64] = word & _mm512_cmple_epu8_mask(v, max);
    }
}

di_gram_letters_t
di_gram_letters(unsigned i)
{
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")
        && i-- == 0)
        return letters_avx512;
    if (__builtin_cpu_supports("avx2") && i-- == 0)
        return letters_avx2;
    return i == 0 ? di_gram_letters_scalar : NULL;
}

#else

di_gram_letters_t
di_gram_letters(unsigned i)
{
    return i == 0 ? di_gram_letters_scalar : NULL;
}

#endif
