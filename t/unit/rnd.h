/*
 * rnd.h - random numbers of the unit tests: xorshift64, the same everywhere.
 */

#ifndef RND_H
#define RND_H

#include <stdint.h>

static uint64_t rng = 1;


static inline void
rnd_seed(uint64_t seed)
{
    rng = seed * 0x9e3779b97f4a7c15u + 1;
}


static inline uint32_t
rnd32(void)
{
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return (uint32_t) (rng >> 32);
}


/* Below n. */
static inline uint32_t
rnd(uint32_t n)
{
    return (rnd32() >> 1) % n;
}


/* A hash that goes on. */
static inline uint64_t
mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * 0x9e3779b97f4a7c15u;
    return h ^ (h >> 29);
}

#endif
