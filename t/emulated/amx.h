/*
 * amx.h - AMX's tiles in software, for CPUs that have none.
 *
 * The AMX kernels are compiled a second time with this before their first
 * line (-include), and linked into tests in place of the real ones: tiles are
 * memory of the thread, and CPUID and the kernel say that there are some.
 * What would fault on a CPU aborts with a line that says why.  What remains
 * unseen is whether a compiler keeps plain stores before the tile loads that
 * need them: here these are calls.
 */

#ifndef EMULATED_AMX
#define EMULATED_AMX

#include <cpuid.h>
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

void emulated_loadconfig(const void *config);
void emulated_release(void);
void emulated_zero(int to);
void emulated_loadd(int to, const void *base, size_t stride);
void emulated_stored(int from, void *base, size_t stride);
void emulated_dpbf16ps(int to, int a, int b);

#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps

#define _tile_loadconfig(config)       emulated_loadconfig(config)
#define _tile_release()                emulated_release()
#define _tile_zero(to)                 emulated_zero(to)
#define _tile_loadd(to, base, stride)  emulated_loadd(to, base, stride)
#define _tile_stored(from, base, stride)                                    \
    emulated_stored(from, base, stride)
#define _tile_dpbf16ps(to, a, b)       emulated_dpbf16ps(to, a, b)

/* AMX-BF16 and AMX-TILE beside what the CPU has. */
static inline int
emulated_cpuid(unsigned leaf, unsigned sub, unsigned *a, unsigned *b,
               unsigned *c, unsigned *d)
{
    int known = __get_cpuid_count(leaf, sub, a, b, c, d);

    if (known && leaf == 7 && sub == 0)
        *d |= 1u << 22 | 1u << 24;
    return known;
}

#define __get_cpuid_count emulated_cpuid

/* All that the AMX kernels call is arch_prctl(), for leave to use tiles. */
#define syscall(...)      0L

#endif
