/*
 * v41_cache.h - where DeepSeek-V4.1's caches lie.
 *
 * A KV block covers DI_V41_BLOCK tokens: in order of layers each source's
 * index keys, then its compressed entries.  What is in a block depends on the
 * tokens up to its end alone, so blocks can be shared by prefix.
 *
 * A state slot is one running sequence's: window rings of producers, those of
 * consumers and of draft stages, and the pairs that compressors of ratio 2
 * still need.  Its first kept_bytes, the producers' rings, are what a prefix
 * needs to be gone on with when the rest is computed anew.
 */

#ifndef DI_V41_CACHE_H
#define DI_V41_CACHE_H

#include "../../kernels/di_kernels.h"
#include "v41_conf.h"

typedef struct {
    /* Of layers, then of draft stages; base is the caller's to set. */
    di_cache_t ring[DI_V41_LAYERS_MAX + DI_V41_STAGES_MAX];
    di_cache_t pairs[DI_V41_LAYERS_MAX];     /* sources of ratio 2          */
    di_cache_t kv[DI_V41_LAYERS_MAX];        /* sources of KV               */
    di_cache_t keys[DI_V41_LAYERS_MAX];      /* sources of index keys       */

    uint64_t   token_bytes;      /* of a block, per token, without padding  */
    uint64_t   block_bytes;
    uint64_t   ring_bytes;       /* of a slot: rings                        */
    uint64_t   pair_bytes;       /* and pairs                               */
    uint64_t   kept_bytes;       /* and the part that a prefix keeps        */
    uint64_t   slot_bytes;       /* of it all, padded                       */
} di_v41_layout_t;

/* exact: all records float32, for checking. */
void di_v41_layout(const di_v41_conf_t *conf, bool exact,
                   di_v41_layout_t *layout);

#endif
