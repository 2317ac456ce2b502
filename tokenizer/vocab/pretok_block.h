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

/* Enter the ends of the pre-tokens that the block of 64 bytes at s decides,
 * each plus pos, which is the block's place in the text; their number.  The
 * last is where the undecided rest begins.  ends[DI_PRETOK_BLOCK], all of
 * which may be written. */
typedef size_t (*di_pretok_block_t)(di_pretok_kind_t kind, const uint8_t *s,
                                    uint32_t pos, uint32_t *ends);

/* The i-th of those that this machine has instructions for, the best first;
 * NULL: there is none. */
di_pretok_block_t di_pretok_block(unsigned i);

#endif
