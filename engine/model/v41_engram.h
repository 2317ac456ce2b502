/*
 * v41_engram.h - Engram's hashing: which rows of its tables a token reads.
 *
 * Every n-gram of 2 .. engram_ngram tokens that ends at a token is hashed
 * into engram_heads tables, all of a layer behind one another in one tensor.
 * Tokens are first mapped to a compressed vocabulary, in which spellings that
 * differ in case, accents or blanks are one.  Tables have prime sizes and
 * hashes odd multipliers, both computed: the checkpoint has neither.
 */

#ifndef DI_V41_ENGRAM_H
#define DI_V41_ENGRAM_H

#include <stdint.h>

#include "v41_conf.h"

/* One Engram layer.  Tables are numbered n-gram size first. */
typedef struct {
    uint64_t prime[(DI_V41_NGRAM_MAX - 1) * DI_V41_TABLES_MAX];
    uint64_t offset[(DI_V41_NGRAM_MAX - 1) * DI_V41_TABLES_MAX];
    uint64_t n_rows;             /* of all tables                           */
    int64_t  multiplier[DI_V41_NGRAM_MAX];   /* of the token r back         */
} di_v41_engram_t;

/* Fill primes, offsets and n_rows of conf->n_engrams layers. */
void di_v41_engram_primes(const di_v41_conf_t *conf, di_v41_engram_t *engram);

/* Fill multipliers.
 *   n_ids  size of the compressed vocabulary */
void di_v41_engram_multipliers(const di_v41_conf_t *conf, uint32_t n_ids,
                               di_v41_engram_t *engram);

/* Rows that a token reads.
 *   ids   [engram_ngram] compressed ids: the token, the one before it, ...;
 *         -1 is an image token: it and all before it count as padding
 *   pad   compressed id of padding
 *   rows  [(engram_ngram - 1) * engram_heads] out */
void di_v41_engram_rows(const di_v41_conf_t *conf,
                        const di_v41_engram_t *engram, const int32_t *ids,
                        int32_t pad, int64_t *rows);

#endif
