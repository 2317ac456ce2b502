/*
 * nomem.h - fail the Nth allocation of a test program.
 *
 * Including this file puts malloc, calloc, realloc and aligned_alloc of the
 * program in front of the C library's.  nomem_after(n) lets n calls pass and
 * fails the next one, once; nomem_off() ends it and tells whether it happened.
 * A test counts n up from 0 until its call succeeds without a failure:
 *
 *     for (int n = 0; ; n++) {
 *         nomem_after(n);
 *         rc = call();
 *         if (!nomem_off())
 *             break;
 *         CHECK_EQ_INT(rc, DI_ENOMEM);
 *     }
 *
 * clang links its sanitizers statically, where the next definition can't be
 * found, and ThreadSanitizer allocates before dlsym() works: there NOMEM is 0
 * and nothing ever fails.  nomem_after() is for programs that have one
 * thread at that time.
 */

#ifndef NOMEM_H
#define NOMEM_H

#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>

#if defined(__clang__) && defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define NOMEM 0
#endif
#endif
#ifdef __SANITIZE_THREAD__
#define NOMEM 0
#endif
#ifndef NOMEM
#define NOMEM 1
#endif

static int  nomem_left = -1;        /* calls that still pass; -1: all        */
static bool nomem_failed;

static inline void
nomem_after(int n)
{
    nomem_left = n;
    nomem_failed = false;
}

static inline bool
nomem_off(void)
{
    nomem_left = -1;
    return nomem_failed;
}

#if NOMEM

static bool
nomem_now(void)
{
    if (nomem_left < 0)
        return false;
    if (nomem_left-- > 0)
        return false;
    nomem_failed = true;
    return true;
}

void *
malloc(size_t n)
{
    static void *(*next)(size_t);

    if (next == NULL)
        next = (void *(*)(size_t)) dlsym(RTLD_NEXT, "malloc");
    return nomem_now() ? NULL : next(n);
}

void *
calloc(size_t n, size_t size)
{
    static void *(*next)(size_t, size_t);

    if (next == NULL)
        next = (void *(*)(size_t, size_t)) dlsym(RTLD_NEXT, "calloc");
    return nomem_now() ? NULL : next(n, size);
}

void *
realloc(void *p, size_t n)
{
    static void *(*next)(void *, size_t);

    if (next == NULL)
        next = (void *(*)(void *, size_t)) dlsym(RTLD_NEXT, "realloc");
    return nomem_now() ? NULL : next(p, n);
}

void *
aligned_alloc(size_t alignment, size_t n)
{
    static void *(*next)(size_t, size_t);

    if (next == NULL)
        next = (void *(*)(size_t, size_t)) dlsym(RTLD_NEXT, "aligned_alloc");
    return nomem_now() ? NULL : next(alignment, n);
}

#endif

#endif
