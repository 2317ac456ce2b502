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
    uint64_t *partial;      /* [the same] of these, pairs of which the token
                               has one character in part                     */
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

/* Cut text[pos..end) at its seams: the ends of up to cap >= 1 pieces, the last
 * of which is at a seam or at end.  Returns their number. */
size_t di_seams_cut(const di_seams_t *s, const uint8_t *text, size_t pos,
                    size_t end, uint32_t *ends, size_t cap);

/* The same for the run of such characters at text[pos], of which there is one,
 * in a text of len bytes: the last piece ends at a seam or with the run. */
size_t di_seams_run(const di_seams_t *s, const uint8_t *text, size_t pos,
                    size_t len, uint32_t *ends, size_t cap);

/* Is there a seam between these two neighbours, which are such characters? */
bool di_seams_between(const di_seams_t *s, uint32_t left, uint32_t right);

/* May a token begin or end inside one of these two neighbours and have a part
 * of the other? */
bool di_seams_is_partial(const di_seams_t *s, uint32_t left, uint32_t right);

/* Chinese characters as far as Unicode 1.1 had them, and kana, but for the
 * seven codes among these that are no letters or marks.  All have three bytes
 * in UTF-8. */
#define DI_SEAMS_FIRST  0x3040u
#define DI_SEAMS_END    0x9fa6u

static inline bool
di_seams_takes(uint32_t code)
{
    static const uint64_t kana[3] = {
        0xfffffffffffffffe, 0xfffffffee67fffff, 0xf7ffffffffffffff,
    };

    if (code - 0x3040 < 0xc0)
        return kana[(code - 0x3040) / 64] >> code % 64 & 1;
    return code - 0x4e00 < 0x51a6;
}

/* The code point of three bytes; 0: they aren't one. */
static inline uint32_t
di_seams_code(const uint8_t *s)
{
    uint32_t code = (s[0] & 0x0fu) << 12 | (s[1] & 0x3fu) << 6 | (s[2] & 0x3fu);

    return (s[0] & 0xf0) == 0xe0 && (s[1] & 0xc0) == 0x80
           && (s[2] & 0xc0) == 0x80 ? code : 0;
}

#endif
