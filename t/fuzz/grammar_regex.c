/*
 * grammar_regex.c - fuzz regular expressions, and hold them against PCRE2.
 *
 * The input up to its first zero byte is the expression, what follows the
 * text.  Where both know the expression they must agree about the text.
 */

#include <string.h>

#include "t/fuzz/grammar_make.h"
#include "t/unit/grammar_pcre.h"

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *re = (const char *) data, *s;
    size_t      re_len = strnlen(re, size), len;
    di_gram_t  *g;
    bool        none;
    int         theirs;

    (void) fuzz_grammar(DI_GRAM_REGEX, data, re_len);
    if (re_len == size)
        return 0;
    s = re + re_len + 1;
    len = size - re_len - 1;
    g = gram_regex(re, re_len, &none);
    theirs = g != NULL || none ? pcre_whole(re, re_len, s, len) : -1;
    if (theirs >= 0 && theirs != (g != NULL && gram_whole(g, s, len)))
        abort();
    di_gram_unref(g);
    return 0;
}
