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
#define SEAMS_CODES_MAX    (0x5200 + 0xc0)

bool
di_seams_init(di_seams_t *s)
{
    s->n_guessed = 0;
    s->pairs = calloc((size_t) 1 << (DI_SEAMS_BITS - 6), sizeof(*s->pairs));
    return s->pairs != NULL;
}

void
di_seams_deinit(di_seams_t *s)
{
    free(s->pairs);
}

void
di_seams_hide(di_seams_t *s)
{
    memset(s->pairs, 0xff, (size_t) 1 << (DI_SEAMS_BITS - 3));
}

static inline uint32_t
seams_bit(uint32_t left, uint32_t right)
{
    return (left << 16 | right) * 0x9e3779b1u >> (32 - DI_SEAMS_BITS);
}

/* Chinese characters and kana, all of three bytes. */
static inline bool
seams_takes(uint32_t code)
{
    return code - 0x4e00 < 0x5200 || code - 0x3040 < 0xc0;
}

static inline uint32_t
seams_code(const uint8_t *s)
{
    return (s[0] & 0x0fu) << 12 | (s[1] & 0x3fu) << 6 | (s[2] & 0x3fu);
}

static inline bool
seams_is_three(const uint8_t *s)
{
    return (s[0] & 0xf0) == 0xe0 && (s[1] & 0xc0) == 0x80
           && (s[2] & 0xc0) == 0x80;
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
        *part = (seams_part_t) { UINT32_MAX, seams_code(s + n - 3) };
        return seams_is_three(s + n - 3);
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

/* The characters with such a part. */
static size_t
seams_list(seams_part_t part, uint16_t codes[SEAMS_CODES_MAX])
{
    size_t n = 0;

    for (uint32_t code = 0x3040; code < 0xa000; code++) {
        if (seams_takes(code) && (code & part.mask) == part.bits)
            codes[n++] = (uint16_t) code;
    }
    return n;
}

static void
seams_enter(di_seams_t *s, uint32_t left, uint32_t right)
{
    uint32_t bit = seams_bit(left, right);

    s->pairs[bit / 64] |= 1ull << bit % 64;
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
        for (size_t k = 0; k < n_b; k++)
            seams_enter(s, a[i], b[k]);
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
        else if (seams_takes(left.bits) && seams_takes(right.bits))
            seams_enter(s, left.bits, right.bits);
    }
}

size_t
di_seams_next(const di_seams_t *s, const uint8_t *text, size_t pos,
              size_t end)
{
    uint32_t left = 0, code, bit;

    while (end - pos >= 3) {
        if (!seams_is_three(text + pos)) {
            pos++;
            left = 0;
            continue;
        }
        code = seams_code(text + pos);
        if (!seams_takes(code)) {
            code = 0;
        } else if (left != 0) {
            bit = seams_bit(left, code);
            if ((s->pairs[bit / 64] >> bit % 64 & 1) == 0)
                return pos;
        }
        left = code;
        pos += 3;
    }
    return end;
}
