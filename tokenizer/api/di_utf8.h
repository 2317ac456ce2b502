/*
 * di_utf8.h - one step of UTF-8, shared by the JSON reader, the JSON writer
 * and the assembly of model output, so that all three agree on what is
 * well-formed and on how much of an ill-formed run one U+FFFD stands for.
 *
 * Source: Unicode Standard, table 3-7 (well-formed byte sequences) and
 * section 3.9, "substitution of maximal subparts".
 */

#ifndef DI_UTF8_H
#define DI_UTF8_H

#include <stddef.h>
#include <stdint.h>

typedef enum {
    DI_UTF8_OK = 0,              /* a whole character                       */
    DI_UTF8_BAD,                 /* an ill-formed maximal subpart           */
    DI_UTF8_CUT,                 /* the input ends inside a character       */
} di_utf8_t;

/* Look at the character at p, n >= 1 bytes.  *len: its length, or that of the
 * maximal subpart, or n for DI_UTF8_CUT. */
static inline di_utf8_t
di_utf8_step(const char *s, size_t n, size_t *len)
{
    const unsigned char *p = (const unsigned char *) s;
    unsigned char        c = p[0], lo = 0x80, hi = 0xbf;
    size_t               i, need;

    if (c < 0x80) {
        *len = 1;
        return DI_UTF8_OK;
    }

    if (c < 0xc2 || c > 0xf4) {
        *len = 1;
        return DI_UTF8_BAD;
    }

    need = c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;

    /* The second byte's range excludes overlong forms, surrogates and what
     * lies beyond U+10FFFF. */
    if (c == 0xe0)
        lo = 0xa0;
    else if (c == 0xed)
        hi = 0x9f;
    else if (c == 0xf0)
        lo = 0x90;
    else if (c == 0xf4)
        hi = 0x8f;

    for (i = 1; i < need; i++) {
        if (i == n) {
            *len = n;
            return DI_UTF8_CUT;
        }

        if (p[i] < lo || p[i] > hi) {
            *len = i;
            return DI_UTF8_BAD;
        }

        lo = 0x80;
        hi = 0xbf;
    }

    *len = need;
    return DI_UTF8_OK;
}

/* True if the text is well-formed throughout. */
static inline int
di_utf8_valid(const char *s, size_t n)
{
    size_t len;

    for (; n > 0; s += len, n -= len) {
        if (di_utf8_step(s, n, &len) != DI_UTF8_OK)
            return 0;
    }

    return 1;
}

#endif
