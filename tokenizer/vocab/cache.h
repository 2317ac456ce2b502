/*
 * cache.h - ids of pieces of text that were encoded before.
 *
 * Inside tokenizer/vocab only; each di_tok_t has one.  Two tables, each of
 * sets of two entries, the later used first: one for up to 15 bytes and four
 * ids, where nearly all words fit, in half a cache line each; and one for up
 * to 31 bytes and eight ids, in a whole line.  An entry holds the text, so an
 * answer is never wrong; what is new replaces the second of its set.
 */

#ifndef DI_CACHE_H
#define DI_CACHE_H

#include "vocab.h"

#define DI_CACHE_BITS       15      /* sets: 2 MB of entries                 */
#define DI_CACHE_IDS        4
#define DI_CACHE_WIDE_BITS  12      /* sets: 512 KB                          */
#define DI_CACHE_WIDE_IDS   8
#define DI_CACHE_WIDE_MAX   31      /* bytes                                 */

typedef struct {
    di_vocab_key_t key;             /* the number of ids in high's upper four
                                       bits; high 0: free                    */
    int32_t        ids[DI_CACHE_IDS];
} di_cache_entry_t;

/* The bytes of a longer text, zeros behind them, and the length on top. */
typedef struct {
    uint64_t words[4];
} di_cache_key_t;

typedef struct {
    di_cache_key_t key;             /* words[3] 0: free                      */
    int32_t        ids[DI_CACHE_WIDE_IDS];  /* ended by -1 if there are fewer */
} di_cache_wide_t;

typedef struct {
    di_cache_entry_t *entries;      /* [2 << DI_CACHE_BITS]                  */
    di_cache_wide_t  *wides;        /* [2 << DI_CACHE_WIDE_BITS]             */
} di_cache_t;

bool di_cache_init(di_cache_t *c);          /* false: no memory              */
void di_cache_deinit(di_cache_t *c);

/* The set of a key, two entries. */
static inline di_cache_entry_t *
di_cache_set(const di_cache_t *c, di_vocab_key_t key)
{
    return c->entries + (di_vocab_key_hash(key) >> (64 - DI_CACHE_BITS)) * 2;
}

static inline bool
di_cache_is(const di_cache_entry_t *entry, di_vocab_key_t key)
{
    return ((entry->key.low ^ key.low) | (entry->key.high ^ key.high) << 4)
           == 0;
}

/* The entry of a set with this key; *hit: is it there?  Which of the two it
 * is can't be foreseen, so nothing branches on it. */
static inline const di_cache_entry_t *
di_cache_find(const di_cache_entry_t *set, di_vocab_key_t key, bool *hit)
{
    bool second = di_cache_is(set + 1, key);

    *hit = second | di_cache_is(set, key);
    return set + second;
}

/* Number of ids of an entry. */
static inline size_t
di_cache_count(const di_cache_entry_t *entry)
{
    return entry->key.high >> 60;
}

/* Enter what wasn't there; n <= DI_CACHE_IDS. */
static inline void
di_cache_enter(di_cache_entry_t *set, di_vocab_key_t key,
               const int32_t ids[DI_CACHE_IDS], size_t n)
{
    set[1] = set[0];
    set->key.low = key.low;
    set->key.high = key.high | (uint64_t) n << 60;
    memcpy(set->ids, ids, sizeof(set->ids));
}

/* The key of 1 to DI_CACHE_WIDE_MAX bytes. */
static inline di_cache_key_t
di_cache_key(const uint8_t *s, size_t len)
{
    di_cache_key_t key = { { 0 } };

    memcpy(&key, s, len);
    key.words[3] |= (uint64_t) len << 56;
    return key;
}

/* Its set, two entries. */
di_cache_wide_t *di_cache_wide_set(const di_cache_t *c,
                                   const di_cache_key_t *key);
const di_cache_wide_t *di_cache_wide_find(const di_cache_wide_t *set,
                                          const di_cache_key_t *key);
size_t di_cache_wide_count(const di_cache_wide_t *entry);
void di_cache_wide_enter(di_cache_wide_t *set, const di_cache_key_t *key,
                         const int32_t *ids, size_t n);

#endif
