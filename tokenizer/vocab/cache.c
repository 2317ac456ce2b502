/*
 * cache.c - ids of pieces of text that were encoded before.
 */

#include "cache.h"
#include "table.h"

bool
di_cache_init(di_cache_t *c)
{
    c->entries = di_table_alloc((size_t) 2 << DI_CACHE_BITS,
                                sizeof(*c->entries), 0);
    c->wides = di_table_alloc((size_t) 2 << DI_CACHE_WIDE_BITS,
                              sizeof(*c->wides), 0);
    if (c->entries == NULL || c->wides == NULL) {
        di_cache_deinit(c);
        return false;
    }
    return true;
}

void
di_cache_deinit(di_cache_t *c)
{
    free(c->entries);
    free(c->wides);
}

di_cache_wide_t *
di_cache_wide_set(const di_cache_t *c, const di_cache_key_t *key)
{
    uint64_t h = 0;

    for (int i = 0; i < 4; i++) {
        h = (h ^ key->words[i]) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
    }
    return c->wides + (h >> (64 - DI_CACHE_WIDE_BITS)) * 2;
}

const di_cache_wide_t *
di_cache_wide_find(const di_cache_wide_t *set, const di_cache_key_t *key)
{
    for (int i = 0; i < 2; i++) {
        if (memcmp(&set[i].key, key, sizeof(*key)) == 0)
            return &set[i];
    }
    return NULL;
}

size_t
di_cache_wide_count(const di_cache_wide_t *entry)
{
    size_t n = 0;

    while (n < DI_CACHE_WIDE_IDS && entry->ids[n] >= 0)
        n++;
    return n;
}

void
di_cache_wide_enter(di_cache_wide_t *set, const di_cache_key_t *key,
                    const int32_t *ids, size_t n)
{
    set[1] = set[0];
    set->key = *key;
    for (size_t i = 0; i < DI_CACHE_WIDE_IDS; i++)
        set->ids[i] = i < n ? ids[i] : -1;
}
