/*
 * table.h - memory of large tables.
 *
 * Inside tokenizer/vocab only.  Encoding jumps about in several megabytes,
 * where looking up a page costs as much as the memory behind it; large pages
 * halve the time of texts that are new.  And a small page costs a fault when
 * it is first touched, which was a tenth of the time to open a vocabulary.
 */

#ifndef DI_TABLE_H
#define DI_TABLE_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <sys/mman.h>

#define DI_TABLE_PAGE  ((size_t) 2 << 20)
#define DI_TABLE_LINE  ((size_t) 64)

/* Room for n elements of `size` bytes, which are what they are, from the start
 * of a cache line; NULL: no memory.  For free().  Less than half a large page
 * at the end is small ones, which cost less than clearing all of it. */
static inline void *
di_table_room(size_t n, size_t size)
{
    size_t bytes;
    void  *table;

    if (__builtin_mul_overflow(n, size, &bytes)
        || bytes > SIZE_MAX - DI_TABLE_PAGE)
        return NULL;
    if (bytes < DI_TABLE_PAGE / 4)
        return aligned_alloc(DI_TABLE_LINE, (bytes + DI_TABLE_LINE - 1)
                                            / DI_TABLE_LINE * DI_TABLE_LINE);
    bytes = (bytes + DI_TABLE_PAGE - 1) / DI_TABLE_PAGE * DI_TABLE_PAGE;
    table = aligned_alloc(DI_TABLE_PAGE, bytes);
    if (table != NULL)
        (void) madvise(table, (n * size + DI_TABLE_PAGE / 2) / DI_TABLE_PAGE
                       * DI_TABLE_PAGE, MADV_HUGEPAGE);
    return table;
}

/* The same, each byte being `fill`. */
static inline void *
di_table_alloc(size_t n, size_t size, int fill)
{
    void *table = di_table_room(n, size);

    if (table != NULL)
        memset(table, fill, n * size);
    return table;
}

#endif
