/*
 * di_compress.h - the compressed vocabulary of an n-gram memory.
 *
 * Tokens whose texts differ in case, accents, compatibility forms or blanks
 * alone get one compressed id.
 */

#ifndef DI_COMPRESS_H
#define DI_COMPRESS_H

#include <stdint.h>

#include "di_vocab.h"

/* Map ids of a vocabulary to compressed ids.
 *   map    [di_vocab_size()] out
 *   n_ids  out: compressed ids are 0 .. n_ids - 1
 * 100 ms for 129,000 tokens.  DI_OK, DI_ENOMEM. */
int di_vocab_compress(const di_vocab_t *vocab, int32_t *map, uint32_t *n_ids);

#endif
