/*
 * v41_engram.c - Engram's primes, multipliers and hash.
 *
 * The multipliers are what numpy's default_rng(10007 * layer) draws as
 * integers below a bound: SeedSequence expands the seed to 256 bits, PCG64
 * (XSL-RR 128/64; O'Neill 2014, HMC-CS-2014-0905) makes 64-bit numbers of
 * them, and Lemire's multiplication (arXiv:1805.10941) maps these to the range
 * without bias.
 */

#include <stdbool.h>

#include "v41_engram.h"

/* ---------------------------------------------------------------- primes -- */

static bool
is_prime(uint64_t n)
{
    if (n < 4)
        return n > 1;
    if (n % 2 == 0)
        return false;
    for (uint64_t d = 3; d * d <= n; d += 2) {
        if (n % d == 0)
            return false;
    }
    return true;
}

static bool
is_taken(const di_v41_engram_t *engram, uint32_t n_layers, uint32_t n_tables,
         uint32_t n_last, uint64_t prime)
{
    for (uint32_t i = 0; i <= n_layers; i++) {
        for (uint32_t k = 0; k < (i < n_layers ? n_tables : n_last); k++) {
            if (engram[i].prime[k] == prime)
                return true;
        }
    }
    return false;
}

/* The search begins anew for each n-gram size of each layer, and skips what
 * is in use already. */
void
di_v41_engram_primes(const di_v41_conf_t *c, di_v41_engram_t *engram)
{
    uint32_t n_tables = (c->engram_ngram - 1) * c->engram_heads;

    for (uint32_t i = 0; i < c->n_engrams; i++) {
        uint64_t prime = 0;

        engram[i].n_rows = 0;
        for (uint32_t k = 0; k < n_tables; k++) {
            if (k % c->engram_heads == 0)
                prime = c->engram_vocab - 1;
            do {
                prime++;
            } while (!is_prime(prime)
                     || is_taken(engram, i, n_tables, k, prime));
            engram[i].prime[k] = prime;
            engram[i].offset[k] = engram[i].n_rows;
            engram[i].n_rows += prime;
        }
    }
}

/* ----------------------------------------------------------- multipliers -- */

typedef unsigned __int128 u128_t;

typedef struct {
    u128_t state;
    u128_t inc;                  /* odd                                     */
} pcg64_t;

/* numpy's SeedSequence: a seed below 2^32 becomes n words. */
static void
seed_words(uint32_t seed, uint32_t *words, size_t n)
{
    uint32_t pool[4] = { seed, 0, 0, 0 }, c = 0x43b0d7e5u, x;

    for (int i = 0; i < 4; i++) {
        pool[i] ^= c;
        c *= 0x931e8875u;
        pool[i] *= c;
        pool[i] ^= pool[i] >> 16;
    }
    for (int from = 0; from < 4; from++) {
        for (int to = 0; to < 4; to++) {
            if (from == to)
                continue;
            x = pool[from] ^ c;
            c *= 0x931e8875u;
            x *= c;
            x ^= x >> 16;
            pool[to] = pool[to] * 0xca01f9ddu - x * 0x4973f715u;
            pool[to] ^= pool[to] >> 16;
        }
    }

    c = 0x8b51f9ddu;
    for (size_t i = 0; i < n; i++) {
        x = pool[i % 4] ^ c;
        c *= 0x58f38dedu;
        x *= c;
        words[i] = x ^ x >> 16;
    }
}

static void
pcg_step(pcg64_t *g)
{
    const u128_t factor = (u128_t) 0x2360ed051fc65da4u << 64
                          | 0x4385df649fccf645u;

    g->state = g->state * factor + g->inc;
}

static uint64_t
pcg_next(pcg64_t *g)
{
    uint64_t x;
    unsigned turn;

    pcg_step(g);
    x = (uint64_t) (g->state >> 64) ^ (uint64_t) g->state;
    turn = (unsigned) (g->state >> 122);
    return x >> turn | x << (-turn & 63);
}

static void
pcg_seed(pcg64_t *g, uint32_t seed)
{
    uint32_t w[8];
    uint64_t s[4];

    seed_words(seed, w, 8);
    for (int i = 0; i < 4; i++)
        s[i] = (uint64_t) w[2 * i + 1] << 32 | w[2 * i];
    g->state = 0;
    g->inc = ((u128_t) s[2] << 64 | s[3]) << 1 | 1;
    pcg_step(g);
    g->state += (u128_t) s[0] << 64 | s[1];
    pcg_step(g);
}

/* A number below bound, which is above 2^32. */
static uint64_t
pcg_below(pcg64_t *g, uint64_t bound)
{
    u128_t   m = (u128_t) pcg_next(g) * bound;
    uint64_t threshold = -bound % bound;

    while ((uint64_t) m < threshold)
        m = (u128_t) pcg_next(g) * bound;
    return (uint64_t) (m >> 64);
}

void
di_v41_engram_multipliers(const di_v41_conf_t *c, uint32_t n_ids,
                          di_v41_engram_t *engram)
{
    uint64_t bound = INT64_MAX / n_ids / 2;

    for (uint32_t i = 0; i < c->n_engrams; i++) {
        pcg64_t g;

        pcg_seed(&g, 10007 * c->engram_layer[i]);
        for (uint32_t r = 0; r < c->engram_ngram; r++)
            engram[i].multiplier[r] = (int64_t) (2 * pcg_below(&g, bound)
                                                 + 1);
    }
}

/* ------------------------------------------------------------------ hash -- */

void
di_v41_engram_rows(const di_v41_conf_t *c, const di_v41_engram_t *engram,
                   const int32_t *ids, int32_t pad, int64_t *rows)
{
    bool    padding = false;
    int64_t hash = 0;

    for (uint32_t r = 0; r < c->engram_ngram; r++) {
        padding |= ids[r] < 0;
        hash ^= (padding ? pad : ids[r]) * engram->multiplier[r];
        if (r == 0)
            continue;
        for (uint32_t k = 0; k < c->engram_heads; k++) {
            uint32_t t = (r - 1) * c->engram_heads + k;

            rows[t] = (int64_t) ((uint64_t) hash % engram->prime[t]
                                 + engram->offset[t]);
        }
    }
}
