/*
 * seams.h - where a long pre-token may be cut before it is encoded.
 *
 * Inside tokenizer/vocab only; immutable once built.
 *
 * Chinese and Japanese are written without spaces, so a pre-token may be a
 * whole sentence, which no cache has seen before.  But a border between two
 * characters that lies inside no token is never crossed by a merge, as the
 * merge would make such a token: the parts on both sides are encoded as if
 * the other weren't there.  Such a border is a *seam*.  Between two Chinese
 * characters most borders in text are seams, and the pieces between them are
 * words that the cache knows.
 *
 * Seams are looked for between two Chinese characters or kana alone, by a
 * table of bits for pairs: one bit set is a pair that may be inside a token.
 * Two pairs may share a bit, which hides a seam, but never makes one.
 */

#ifndef DI_SEAMS_H
#define DI_SEAMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DI_SEAMS_BITS  19

typedef struct {
    uint64_t *pairs;        /* [1 << (DI_SEAMS_BITS - 6)]; a bit is set for
                               each pair of characters that some token has   */
    size_t    n_guessed;    /* pairs entered for tokens that have only a part
                               of a character                                */
} di_seams_t;

bool di_seams_init(di_seams_t *s);              /* false: no memory          */
void di_seams_deinit(di_seams_t *s);

/* Enter a token.  O(its borders); where the token has only a part of the
 * character at one, all characters with such a part are entered, and if
 * these become too many, all pairs. */
void di_seams_add(di_seams_t *s, const uint8_t *token, size_t len);

/* Hide all seams. */
void di_seams_hide(di_seams_t *s);

/* The first seam in text[pos + 1 .. end), or end. */
size_t di_seams_next(const di_seams_t *s, const uint8_t *text, size_t pos,
                     size_t end);

#endif
