/*
 * arena.c - bump allocation in blocks that are freed together.
 *
 * A piece of half a block or more gets its own block, linked behind the one
 * in use, so that a large body does not strand what is left of that one.
 */

#include "arena.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK_MIN  4096
#define BLOCK_MAX  (256 * 1024)
#define ALIGN      16

struct di_arena_block_s {
    _Alignas(ALIGN) di_arena_block_t *next;
};

static char *
new_block(di_arena_t *a, size_t size, int current)
{
    di_arena_block_t *b;

    if (size > SIZE_MAX - sizeof(*b))
        return NULL;

    b = malloc(sizeof(*b) + size);
    if (b == NULL)
        return NULL;

    if (current || a->blocks == NULL) {
        b->next = a->blocks;
        a->blocks = b;

    } else {
        b->next = a->blocks->next;
        a->blocks->next = b;
    }

    return (char *) (b + 1);
}

void *
di_arena_alloc(di_arena_t *a, size_t size)
{
    char *p;

    if (size > SIZE_MAX - ALIGN)
        return NULL;

    size = (size + ALIGN - 1) & ~(size_t) (ALIGN - 1);

    if (size > a->left) {
        if (a->grow == 0)
            a->grow = BLOCK_MIN;

        if (size >= a->grow / 2)
            return new_block(a, size, 0);

        p = new_block(a, a->grow, 1);
        if (p == NULL)
            return NULL;

        a->next = p;
        a->left = a->grow;
        if (a->grow < BLOCK_MAX)
            a->grow *= 2;
    }

    p = a->next;
    a->next += size;
    a->left -= size;
    return p;
}

void *
di_arena_calloc(di_arena_t *a, size_t n, size_t size)
{
    void *p;

    if (size != 0 && n > SIZE_MAX / size)
        return NULL;

    p = di_arena_alloc(a, n * size);
    if (p != NULL)
        memset(p, 0, n * size);

    return p;
}

void
di_arena_free(di_arena_t *a)
{
    di_arena_block_t *b, *next;

    for (b = a->blocks; b != NULL; b = next) {
        next = b->next;
        free(b);
    }

    memset(a, 0, sizeof(*a));
}
