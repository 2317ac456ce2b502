/*
 * pretok_block.h - cutting 64 bytes of ASCII text at once.
 *
 * Inside tokenizer/vocab only.
 *
 * A block starts where a pre-token starts.  Each class of characters is a
 * word of 64 bits, and where pre-tokens start follows from these words by
 * shifts: the rules look one character back, and one ahead behind white
 * space.  A block ends at the first byte that is no printable ASCII or white
 * space; what is near its end is not decided, and the next block, or the
 * scanner of pretok.c, begins at the last start that is.
 */

#ifndef DI_PRETOK_BLOCK_H
#define DI_PRETOK_BLOCK_H

#include "pretok.h"

#define DI_PRETOK_BLOCK  64         /* bytes                                 */

/* Classes of the bytes of a block, a bit for each. */
typedef struct di_pretok_classes_s {
    uint64_t letters;
    uint64_t numbers;
    uint64_t spaces;        /* U+0020                                        */
    uint64_t white;         /* it, and tab to carriage return                */
    uint64_t newlines;      /* \r and \n                                     */
    uint64_t hard;          /* controls, and all that is not ASCII           */
    uint64_t quotes;        /* apostrophes                                   */
} di_pretok_classes_t;

/* What finds the classes of the 64 bytes at s; NULL: this machine has no
 * instructions for it. */
typedef di_pretok_classes_t (*di_pretok_classify_t)(const uint8_t *s);

di_pretok_classify_t di_pretok_classifier(void);

/* The decided starts of pre-tokens in a block, bit 0 being one.  The last of
 * them is where the undecided rest begins. */
uint64_t di_pretok_starts(di_pretok_kind_t kind,
                          const di_pretok_classes_t *classes);

#endif
