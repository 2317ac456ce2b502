/*
 * arena.h - memory of one request: many small allocations, one free.
 *
 * Blocks grow from 4 KB to 256 KB; a larger piece gets a block of its own.
 * Nothing is given back before di_arena_free().
 */

#ifndef DI_ARENA_H
#define DI_ARENA_H

#include <stddef.h>

typedef struct di_arena_block_s di_arena_block_t;

/* Zero-initialised is empty. */
typedef struct {
    di_arena_block_t *blocks;    /* newest first                            */
    char             *next;      /* first free byte of the newest block     */
    size_t            left;      /* bytes free there                        */
    size_t            grow;      /* size of the next ordinary block         */
} di_arena_t;

/* size bytes aligned for any object, not cleared; NULL: out of memory. */
void *di_arena_alloc(di_arena_t *a, size_t size);

/* n objects of `size` bytes, cleared; NULL also if the product overflows. */
void *di_arena_calloc(di_arena_t *a, size_t n, size_t size);

void di_arena_free(di_arena_t *a);

#endif
