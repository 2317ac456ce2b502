/*
 * table.h - memory of large tables.
 *
 * Inside tokenizer/vocab only.  Encoding jumps about in several megabytes,
 * where looking up a page costs as much as the memory behind it; large pages
 * halve the time of texts that are new.
 */

#ifndef DI_TABLE_H
#define DI_TABLE_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <sys/mman.h>

#define DI_TABLE_PAGE  ((size_t) 2 << 20)

/* n elements of `size` bytes, each byte being `fill`; NULL: no memory.  For
 * free(). */
static inline void *
di_table_alloc(size_t n, size_t size, int fill)
{
    size_t bytes;
    void  *table;

    if (__builtin_mul_overflow(n, size, &bytes)
        || bytes > SIZE_MAX - DI_TABLE_PAGE)
        return NULL;
    if (bytes < DI_TABLE_PAGE / 4) {
        table = malloc(bytes);
    } else {
        bytes = (bytes + DI_TABLE_PAGE - 1) / DI_TABLE_PAGE * DI_TABLE_PAGE;
        table = aligned_alloc(DI_TABLE_PAGE, bytes);
        if (table != NULL)
            (void) madvise(table, bytes, MADV_HUGEPAGE);
    }
    if (table != NULL)
        memset(table, fill, bytes);
    return table;
}

#endif
