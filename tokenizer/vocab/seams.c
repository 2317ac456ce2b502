/*
 * seams.c - where a long pre-token may be cut before it is encoded.
 *
 * DeepSeek's 128,000 tokens have 26,158 different pairs of such characters,
 * so that one in twenty bits is set, and 23 tokens that have a border and
 * begin or end inside a character.
 */

#include <stdlib.h>
#include <string.h>

#include "seams.h"

#define SEAMS_GUESSED_MAX  ((size_t) 1 << 22)
#define SEAMS_CODES_MAX    (0x51a6 + 0xc0)

bool
di_seams_init(di_seams_t *s)
{
    s->n_guessed = 0;
    s->pairs = calloc((size_t) 1 << (DI_SEAMS_BITS - 6), sizeof(*s->pairs));
    s->partial = calloc((size_t) 1 << (DI_SEAMS_BITS - 6),
                        sizeof(*s->partial));
    return s->pairs != NULL && s->partial != NULL;
}

void
di_seams_deinit(di_seams_t *s)
{
    free(s->pairs);
    free(s->partial);
}

void
di_seams_hide(di_seams_t *s)
{
    memset(s->pairs, 0xff, (size_t) 1 << (DI_SEAMS_BITS - 3));
    memset(s->partial, 0xff, (size_t) 1 << (DI_SEAMS_BITS - 3));
}

static inline uint32_t
seams_bit(uint32_t left, uint32_t right)
{
    return (left << 16 | right) * 0x9e3779b1u >> (32 - DI_SEAMS_BITS);
}

/* What a token shows of a character: some of its bits. */
typedef struct {
    uint32_t mask;          /* the bits that it shows                        */
    uint32_t bits;          /* their values                                  */
} seams_part_t;

/* The last n bytes, at most 3, of a character; false: of none. */
static bool
seams_tail(const uint8_t *s, size_t n, seams_part_t *part)
{
    if (n >= 3) {
        *part = (seams_part_t) { UINT32_MAX, di_seams_code(s + n - 3) };
        return part->bits != 0;
    }
    *part = (seams_part_t) { 0, 0 };
    for (size_t i = 0; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80)
            return false;
        part->bits = part->bits << 6 | (s[i] & 0x3fu);
        part->mask = part->mask << 6 | 0x3f;
    }
    return true;
}

/* The first n bytes of a character; false: of none. */
static bool
seams_head(const uint8_t *s, size_t n, seams_part_t *part)
{
    if ((s[0] & 0xf0) != 0xe0)
        return false;
    *part = (seams_part_t) { 0xf000, (s[0] & 0x0fu) << 12 };
    for (size_t i = 1; i < n && i < 3; i++) {
        if ((s[i] & 0xc0) != 0x80)
            return false;
        part->mask |= 0x3fu << (12 - 6 * i);
        part->bits |= (s[i] & 0x3fu) << (12 - 6 * i);
    }
    return true;
}

/* The characters with such a part: the last bits of one, or the first. */
static size_t
seams_list(seams_part_t part, uint16_t codes[SEAMS_CODES_MAX])
{
    bool     last = (part.mask & 1) != 0;
    uint32_t step = last ? (part.mask & 0xffff) + 1 : 1, code = part.bits;
    uint32_t end = last ? DI_SEAMS_END
                        : (part.bits | (~part.mask & 0xffff)) + 1;
    size_t   n = 0;

    for (; code < end && code < DI_SEAMS_END; code += step) {
        if (code >= DI_SEAMS_FIRST && di_seams_takes(code))
            codes[n++] = (uint16_t) code;
    }
    return n;
}

static void
seams_enter(uint64_t *bits, uint32_t left, uint32_t right)
{
    uint32_t bit = seams_bit(left, right);

    bits[bit / 64] |= 1ull << bit % 64;
}

/* Enter all pairs of characters that have these parts. */
static void
seams_guess(di_seams_t *s, seams_part_t left, seams_part_t right)
{
    uint16_t a[SEAMS_CODES_MAX], b[SEAMS_CODES_MAX];
    size_t   n_a = seams_list(left, a), n_b = seams_list(right, b);

    s->n_guessed += n_a * n_b;
    if (s->n_guessed > SEAMS_GUESSED_MAX) {
        di_seams_hide(s);
        return;
    }
    for (size_t i = 0; i < n_a; i++) {
        for (size_t k = 0; k < n_b; k++) {
            seams_enter(s->pairs, a[i], b[k]);
            seams_enter(s->partial, a[i], b[k]);
        }
    }
}

void
di_seams_add(di_seams_t *s, const uint8_t *token, size_t len)
{
    for (size_t i = 1; i < len && s->n_guessed <= SEAMS_GUESSED_MAX; i++) {
        seams_part_t left, right;

        if (!seams_head(token + i, len - i, &right)
            || !seams_tail(token, i, &left))
            continue;
        if (i < 3 || len - i < 3)
            seams_guess(s, left, right);
        else if (di_seams_takes(left.bits) && di_seams_takes(right.bits))
            seams_enter(s->pairs, left.bits, right.bits);
    }
}

bool
di_seams_between(const di_seams_t *s, uint32_t left, uint32_t right)
{
    uint32_t bit = seams_bit(left, right);

    return (s->pairs[bit / 64] >> bit % 64 & 1) == 0;
}

bool
di_seams_is_partial(const di_seams_t *s, uint32_t left, uint32_t right)
{
    uint32_t bit = seams_bit(left, right);

    return s->partial[bit / 64] >> bit % 64 & 1;
}

/* Whether there is a seam can't be foreseen, so nothing branches on it: an
 * end is always written, and counted if it is one. */
size_t
di_seams_cut(const di_seams_t *s, const uint8_t *text, size_t pos, size_t end,
             uint32_t *ends, size_t cap)
{
    uint32_t left = 0, code, bit;
    size_t   n = 0;

    while (end - pos >= 3 && n < cap - 1) {
        code = di_seams_code(text + pos);
        if (!di_seams_takes(code)) {
            left = 0;
            pos += code != 0 ? 3 : 1;
            continue;
        }
        bit = seams_bit(left, code);
        ends[n] = (uint32_t) pos;
        n += (left != 0) & ~(unsigned) (s->pairs[bit / 64] >> bit % 64) & 1;
        left = code;
        pos += 3;
    }
    if (n < cap - 1 || end - pos < 3)
        ends[n++] = (uint32_t) end;
    return n;
}

size_t
di_seams_run(const di_seams_t *s, const uint8_t *text, size_t pos, size_t len,
             uint32_t *ends, size_t cap)
{
    uint32_t left = di_seams_code(text + pos), code, bit;
    size_t   n = 0;

    for (pos += 3; len - pos >= 3 && n < cap - 1; pos += 3) {
        code = di_seams_code(text + pos);
        if (!di_seams_takes(code))
            break;
        bit = seams_bit(left, code);
        ends[n] = (uint32_t) pos;
        n += ~(unsigned) (s->pairs[bit / 64] >> bit % 64) & 1;
        left = code;
    }
    if (n < cap - 1)
        ends[n++] = (uint32_t) pos;
    return n;
}
