/*
 * di_kv.h - the pool of KV blocks and the prefix cache over it.
 *
 * Object model.  A di_kv_t does the book-keeping for blocks 1 .. n_blocks of
 * block_tokens tokens each; their bytes lie in the model's arena.  0
 * means "no block".  Every block is in exactly one of three states:
 *
 *     live    at least one sequence holds a reference
 *     cached  no sequence holds it, the prefix cache knows its tokens
 *     free    nobody knows what is in it
 *
 * and live + cached + free = n_blocks at all times.  The cache is a tree: a
 * published block has the block before it as its parent, blocks of a prompt's
 * beginning have parent 0.  A sequence that fills a block publishes it; a
 * block that is equal to one published before is exchanged for that one, so
 * whoever holds a published block holds its parents too.  Eviction takes the
 * block that was released longest ago, and a sequence releases its blocks
 * from the last to the first, so a parent is never evicted before its
 * children.
 *
 * Keys.  A block's key is SHA-256 over its parent's key and its token ids,
 * truncated to 128 bits; the first parent key is SHA-256 over the tenant's
 * salt.  Keys name blocks across processes.  Within this one a hit is
 * believed only if parent, tokens and (at the root) salt are equal too, so
 * not even a colliding hash gives one conversation the state of another.
 *
 * Scheduler thread only.  Nothing but di_kv_open() allocates.
 */

#ifndef DI_KV_H
#define DI_KV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../tokenizer/di_err.h"
#include "model/di_model.h"

#define DI_KV_SALT_BYTES 16

typedef struct di_kv_s di_kv_t;

typedef struct {
    uint8_t bytes[16];           /* SHA-256, truncated                      */
} di_kv_key_t;

typedef struct {
    uint32_t n_blocks;           /* 1 .. 2^31 - 1                           */
    uint32_t block_tokens;       /* 1 .. DI_KV_BLOCK_TOKENS_MAX             */
    uint32_t key_bits;           /* bits of a key that count; 0 = all.  Only
                                  * a test of collisions wants fewer        */
} di_kv_conf_t;

typedef struct {
    uint32_t live;
    uint32_t cached;
    uint32_t free;
    uint32_t total;              /* live + cached + free                    */
} di_kv_gauges_t;

/* What a prompt finds in the cache. */
typedef struct {
    uint32_t n_blocks;           /* whole blocks, written to the caller's
                                  * table, one reference each               */
    uint32_t tail_block;         /* block that begins with the tokens that
                                  * follow, one reference, or 0             */
    uint32_t tail_tokens;        /* how many, 1 .. block_tokens - 1;
                                  * copy them to a block of one's own       */
} di_kv_match_t;

/* DI_OK, DI_EINVAL, DI_ENOMEM. */
int di_kv_open(const di_kv_conf_t *conf, di_kv_t **kv, di_err_t *err);
void di_kv_close(di_kv_t *kv);

/* Take a block out of the free ones (the one given back last) or, if there
 * are none, evict from the cache.  One reference; 0 = every block is live.
 * O(1). */
uint32_t di_kv_alloc(di_kv_t *kv);

void di_kv_ref(di_kv_t *kv, uint32_t block);

/* Give back a reference.  The last one makes the block cached if it is
 * published, else free.  Release a table from its end to its beginning. */
void di_kv_unref(di_kv_t *kv, uint32_t block);

/* Key of the empty prompt of a tenant, and of the block after `parent`.
 *   salt     [DI_KV_SALT_BYTES]
 *   tokens   [n_tokens] of the block
 * About 0.1 us; callers keep keys instead of computing them again. */
void di_kv_key_root(const uint8_t *salt, di_kv_key_t *key);
void di_kv_key_next(const di_kv_key_t *parent, const int32_t *tokens,
                    uint32_t n_tokens, di_kv_key_t *key);

/* Find the longest cached prefix of tokens[0, n_tokens).
 *   salt    [DI_KV_SALT_BYTES]
 *   keys    [n_tokens / block_tokens] keys of the whole blocks
 *   blocks  [n_tokens / block_tokens] out: first match->n_blocks are
 *           filled, one reference each
 * O(n_tokens / block_tokens). */
void di_kv_match(di_kv_t *kv, const uint8_t *salt, const int32_t *tokens,
                 uint32_t n_tokens, const di_kv_key_t *keys,
                 uint32_t *blocks, di_kv_match_t *match);

/* Publish a whole block.  Returns the block to use from now on: `block`, or
 * an equal one that was there before; then the caller's reference has moved
 * to it.
 *   parent  the published block before it, held by the caller; 0 = none
 *   tokens  [block_tokens] copied */
uint32_t di_kv_publish(di_kv_t *kv, uint32_t block, uint32_t parent,
                       const uint8_t *salt, const di_kv_key_t *key,
                       const int32_t *tokens);

/* Publish a block of which only the first n_tokens (fewer than a block's)
 * are computed.  The caller must never write to it again. */
void di_kv_publish_tail(di_kv_t *kv, uint32_t block, uint32_t parent,
                        const uint8_t *salt, const int32_t *tokens,
                        uint32_t n_tokens);

/* A number that the owner keeps with a published block: 0 at first, and again
 * when the cache forgets the block. */
uint32_t di_kv_mark(const di_kv_t *kv, uint32_t block);
void di_kv_set_mark(di_kv_t *kv, uint32_t block, uint32_t mark);

void di_kv_gauges(const di_kv_t *kv, di_kv_gauges_t *gauges);
uint32_t di_kv_refs(const di_kv_t *kv, uint32_t block);

/* Blocks that di_kv_alloc() could hand out now: free + cached. */
uint32_t di_kv_available(const di_kv_t *kv);

/* Walk every invariant; aborts on a broken one.  O(n_blocks): tests. */
void di_kv_check(const di_kv_t *kv);

#endif
