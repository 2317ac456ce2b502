/*
 * nfc.c - text in Unicode's normalisation form C.
 */

#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "nfc.h"

#define NFC_CODES  0x40000
#define NFC_PARTS  32           /* more than any code decomposes into        */

static void
nfc_mark(di_nfc_t *n, utf8proc_int32_t code)
{
    n->odd[code / 64] |= 1ull << code % 64;
}

/* Mark a code if it isn't its own form, and all but the first of what it
 * consists of: these join with others. */
static void
nfc_look(di_nfc_t *n, utf8proc_int32_t code)
{
    utf8proc_int32_t parts[NFC_PARTS];
    utf8proc_ssize_t count;
    int              last = 0;

    if (utf8proc_get_property(code)->combining_class != 0)
        nfc_mark(n, code);
    count = utf8proc_decompose_char(code, parts, NFC_PARTS,
                                    UTF8PROC_DECOMPOSE | UTF8PROC_STABLE,
                                    &last);
    if (count < 1 || (count == 1 && parts[0] == code))
        return;
    for (utf8proc_ssize_t i = 1; i < count; i++)
        nfc_mark(n, parts[i]);
    count = utf8proc_normalize_utf32(parts, count,
                                     UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    if (count != 1 || parts[0] != code)
        nfc_mark(n, code);
}

bool
di_nfc_init(di_nfc_t *n)
{
    n->odd = calloc(NFC_CODES / 64, sizeof(*n->odd));
    if (n->odd == NULL)
        return false;
    for (utf8proc_int32_t code = 0x80; code < NFC_CODES; code++) {
        if (code < 0xd800 || code >= 0xe000)
            nfc_look(n, code);
    }
    return true;
}

void
di_nfc_deinit(di_nfc_t *n)
{
    free(n->odd);
}

bool
di_nfc_is(const di_nfc_t *n, const char *text, size_t len)
{
    const uint8_t   *s = (const uint8_t *) text;
    utf8proc_int32_t code;

    for (size_t i = 0; i < len; ) {
        utf8proc_ssize_t step;

        /* Up to U+02FF nothing changes or joins. */
        if (s[i] < 0xcc) {
            i++;
            continue;
        }
        step = utf8proc_iterate(s + i, (utf8proc_ssize_t) (len - i), &code);
        if (step > 0 && code < NFC_CODES
            && (n->odd[code / 64] >> code % 64 & 1) != 0)
            return false;
        i += step > 0 ? (size_t) step : 1;
    }
    return true;
}

/* Append the form of valid text. */
static bool
nfc_append(char **out, size_t *n, const uint8_t *s, size_t len)
{
    utf8proc_uint8_t *made = NULL;
    utf8proc_ssize_t  count = 0;
    char             *grown;

    if (len > 0)
        count = utf8proc_map(s, (utf8proc_ssize_t) len, &made,
                             UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    grown = count < 0 ? NULL : realloc(*out, *n + (size_t) count + 1);
    if (grown == NULL) {
        free(made);
        return false;
    }
    *out = grown;
    if (count > 0)
        memcpy(grown + *n, made, (size_t) count);
    *n += (size_t) count;
    free(made);
    return true;
}

char *
di_nfc_make(const char *text, size_t len, size_t *made)
{
    const uint8_t   *s = (const uint8_t *) text;
    char            *out = NULL;
    size_t           start = 0, at = 0;
    utf8proc_int32_t code;

    *made = 0;
    while (at < len) {
        utf8proc_ssize_t step = utf8proc_iterate(s + at, (utf8proc_ssize_t)
                                                         (len - at), &code);

        if (step > 0) {
            at += (size_t) step;
            continue;
        }
        /* A byte of no character; nfc_append() left room for it. */
        if (!nfc_append(&out, made, s + start, at - start)) {
            free(out);
            return NULL;
        }
        out[(*made)++] = text[at++];
        start = at;
    }
    if (!nfc_append(&out, made, s + start, at - start)) {
        free(out);
        return NULL;
    }
    return out;
}
