/*
 * compress.c - a vocabulary in which spellings that mean the same are one.
 *
 * A token's key in the compressed vocabulary is its text after NFKC, NFD,
 * removal of marks (Mn), lower case and with runs of blanks as one; text that
 * is no UTF-8 by itself is known by its spelling in the vocabulary, which
 * writes each byte as a letter, as byte-level BPE does.
 *
 * Source: the n-gram memory of DeepSeek-V4.1 (Engram), whose hash depends on
 * the very numbers, so keys are numbered in order of first appearance.
 */

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "di_compress.h"

/* Bytes as byte-level BPE spells them: those that print stand for themselves,
 * the others are counted on from U+0100.  dst has room for 2 len. */
static size_t
spell_bytes(const char *bytes, size_t len, char *dst)
{
    size_t n = 0;

    for (size_t i = 0; i < len; i++) {
        unsigned b = (unsigned char) bytes[i], c = b;

        if (b <= 0x20)
            c = 0x100 + b;
        else if (b >= 0x7f && b <= 0xa0)
            c = 0x100 + 0x21 + b - 0x7f;
        else if (b == 0xad)
            c = 0x143;
        n += (size_t) utf8proc_encode_char((utf8proc_int32_t) c,
                                           (utf8proc_uint8_t *) dst + n);
    }
    return n;
}

static bool
is_space(utf8proc_int32_t c)
{
    return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xa0
           || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028
           || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

/* Is it UTF-8 without a replacement character? */
static bool
is_text(const char *s, size_t len)
{
    const utf8proc_uint8_t *p = (const utf8proc_uint8_t *) s;
    utf8proc_ssize_t        at = 0, n;
    utf8proc_int32_t        c;

    for ( ; at < (utf8proc_ssize_t) len; at += n) {
        n = utf8proc_iterate(p + at, (utf8proc_ssize_t) len - at, &c);
        if (n <= 0 || c == 0xfffd)
            return false;
    }
    return true;
}

/* Marks removed, lower case, one blank for a run of them; then blanks at both
 * ends go, unless there is nothing but one.  In place. */
static size_t
fold(utf8proc_int32_t *c, size_t n)
{
    size_t k = 0, first = 0;

    for (size_t i = 0; i < n; i++) {
        if (utf8proc_category(c[i]) == UTF8PROC_CATEGORY_MN)
            continue;
        if (c[i] == ' ' || c[i] == '\t' || c[i] == '\r' || c[i] == '\n') {
            if (k > 0 && c[k - 1] == ' ')
                continue;
            c[k++] = ' ';
        } else {
            c[k++] = utf8proc_tolower(c[i]);
        }
    }
    if (k == 1 && c[0] == ' ')
        return 1;
    while (k > 0 && is_space(c[k - 1]))
        k--;
    while (first < k && is_space(c[first]))
        first++;
    memmove(c, c + first, (k - first) * sizeof(*c));
    return k - first;
}

/* The key of a text, malloc'ed; its length may be 0. */
static char *
fold_text(const char *text, size_t len, size_t *key_len)
{
    utf8proc_uint8_t *composed = NULL;
    utf8proc_int32_t *c = NULL;
    utf8proc_ssize_t  n, n2;
    char             *key = NULL;
    size_t            k;

    n = utf8proc_map((const utf8proc_uint8_t *) text,
                     (utf8proc_ssize_t) len, &composed,
                     UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT);
    if (n < 0)
        return NULL;
    n2 = utf8proc_decompose(composed, n, NULL, 0,
                            UTF8PROC_STABLE | UTF8PROC_DECOMPOSE);
    if (n2 >= 0)
        c = malloc(((size_t) n2 + 1) * sizeof(*c));
    if (c != NULL)
        key = malloc(4 * (size_t) n2 + 1);
    if (key != NULL) {
        (void) utf8proc_decompose(composed, n, c, n2,
                                  UTF8PROC_STABLE | UTF8PROC_DECOMPOSE);
        k = fold(c, (size_t) n2);
        *key_len = 0;
        for (size_t i = 0; i < k; i++)
            *key_len += (size_t) utf8proc_encode_char(
                c[i], (utf8proc_uint8_t *) key + *key_len);
    }
    free(c);
    free(composed);
    return key;
}

/* The key of a token, malloc'ed. */
static char *
key_of(const char *bytes, size_t len, size_t *key_len)
{
    char *key;

    if (is_text(bytes, len)) {
        key = fold_text(bytes, len, key_len);
        if (key == NULL || *key_len > 0)
            return key;
        free(key);
        key = malloc(len + 1);
        if (key != NULL)
            memcpy(key, bytes, len);
        *key_len = len;
        return key;
    }
    key = malloc(2 * len + 1);
    if (key != NULL)
        *key_len = spell_bytes(bytes, len, key);
    return key;
}

/* Keys in order of first appearance, found by hash. */
typedef struct {
    char   **keys;               /* [n]                                     */
    size_t  *lens;               /* [n]                                     */
    size_t   n;
    int32_t *slots;              /* [mask + 1] number of a key, -1: none    */
    size_t   mask;
} keys_t;

static int32_t
number_of(keys_t *t, char *key, size_t len)
{
    uint64_t h = 0xcbf29ce484222325u;
    int32_t *slot;

    for (size_t i = 0; i < len; i++)
        h = (h ^ (unsigned char) key[i]) * 0x100000001b3u;
    for (size_t i = (h ^ h >> 32) & t->mask; ; i = (i + 1) & t->mask) {
        slot = &t->slots[i];
        if (*slot < 0)
            break;
        if (t->lens[*slot] == len && memcmp(t->keys[*slot], key, len) == 0) {
            free(key);
            return *slot;
        }
    }
    *slot = (int32_t) t->n;
    t->keys[t->n] = key;
    t->lens[t->n] = len;
    return (int32_t) t->n++;
}

int
di_vocab_compress(const di_vocab_t *vocab, int32_t *map, uint32_t *n_ids)
{
    uint32_t n = di_vocab_size(vocab);
    keys_t   t = { .mask = 1 };
    int      rc = DI_OK;

    while (t.mask < 2 * (size_t) n)
        t.mask = 2 * t.mask + 1;
    t.keys = malloc((n + 1) * sizeof(*t.keys));
    t.lens = malloc((n + 1) * sizeof(*t.lens));
    t.slots = malloc((t.mask + 1) * sizeof(*t.slots));
    if (t.keys == NULL || t.lens == NULL || t.slots == NULL)
        rc = DI_ENOMEM;
    else
        memset(t.slots, 0xff, (t.mask + 1) * sizeof(*t.slots));

    for (uint32_t id = 0; id < n && rc == DI_OK; id++) {
        size_t      len, key_len;
        const char *bytes = di_vocab_bytes(vocab, (int32_t) id, &len);
        char       *key = key_of(bytes, len, &key_len);

        if (key == NULL)
            rc = DI_ENOMEM;
        else
            map[id] = number_of(&t, key, key_len);
    }
    *n_ids = (uint32_t) t.n;
    for (size_t i = 0; i < t.n; i++)
        free(t.keys[i]);
    free(t.keys);
    free(t.lens);
    free(t.slots);
    return rc;
}
