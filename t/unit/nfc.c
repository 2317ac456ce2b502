/*
 * nfc.c - the quick look for text that isn't in form C, against utf8proc.
 *
 * Whatever is taken for normal must be so: for each code point alone, behind
 * a letter, and before and behind each of what joins with others.  (utf8proc
 * 2.8 takes U+11A7 for a trailing consonant, which it is not.)  Known cases
 * are made into their form, and invalid bytes stay where they are.
 */

#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "tokenizer/vocab/nfc.h"

#include "check.h"

static size_t
put_code(char *s, uint32_t code)
{
    return (size_t) utf8proc_encode_char((utf8proc_int32_t) code,
                                         (utf8proc_uint8_t *) s);
}

/* Is the text in its form?  What utf8proc says. */
static bool
is_normal(const char *text)
{
    utf8proc_uint8_t *made = utf8proc_NFC((const utf8proc_uint8_t *) text);
    bool              same = strcmp((const char *) made, text) == 0;

    free(made);
    return same;
}

static void
test_quick(const di_nfc_t *n)
{
    static const uint32_t partners[] = {
        'a', 0x300, 0x301, 0x327, 0x338, 0x345, 0x3099, 0x1100, 0x1161,
        0x11a8, 0xac00, 0x9be, 0xdcf, 0x1d165, 0x110ba, 0x1f00,
    };
    size_t wrong = 0, slow = 0;

    for (uint32_t c = 0x80; c < 0x30000; c++) {
        char   text[16];
        size_t len;

        if ((c >= 0xd800 && c < 0xe000) || c == 0x11a7)
            continue;
        for (size_t i = 0; i < sizeof(partners) / sizeof(*partners); i++) {
            len = put_code(text, partners[i]);
            len += put_code(text + len, c);
            text[len] = '\0';
            wrong += di_nfc_is(n, text, len) && !is_normal(text);
            len = put_code(text, c);
            len += put_code(text + len, partners[i]);
            text[len] = '\0';
            wrong += di_nfc_is(n, text, len) && !is_normal(text);
        }
        len = put_code(text, c);
        slow += !di_nfc_is(n, text, len);
    }
    CHECK_EQ_INT(wrong, 0);
    CHECK(slow > 1000 && slow < 4000);
}

static void
check_made(const char *text, const char *want)
{
    size_t len = 0;
    char  *made = di_nfc_make(text, strlen(text), &len);

    CHECK_EQ_INT(len, strlen(want));
    CHECK(made != NULL && memcmp(made, want, len) == 0);
    free(made);
}

int
main(void)
{
    di_nfc_t n;

    if (!di_nfc_init(&n))
        abort();
    test_quick(&n);
    CHECK(di_nfc_is(&n, "\xff\xcc", 2));
    CHECK(di_nfc_is(&n, "的é가", strlen("的é가")));
    check_made("", "");
    check_made("e\xcc\x81", "é");
    check_made("\xe2\x84\xab", "Å");
    check_made("e\xff\xcc\x81", "e\xff\xcc\x81");
    check_made("\xff", "\xff");
    check_made("\xffo\xcc\x88\xf0\x9f", "\xffö\xf0\x9f");
    di_nfc_deinit(&n);
    return check_done("nfc");
}
