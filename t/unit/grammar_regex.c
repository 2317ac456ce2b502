/*
 * grammar_regex.c - regular expressions against PCRE2.
 *
 * Random expressions over a few characters and all constructs, and random
 * texts, most of them cut and changed from one that matched: both must say
 * the same of each.  Classes, properties and case are compared for every
 * code point.
 */

#include <string.h>
#include <time.h>

#include "check.h"
#include "grammar_pcre.h"

static char   re[2000];
static size_t re_len;

static void
put(const char *s)
{
    size_t n = strlen(s);

    if (re_len + n < sizeof(re)) {
        memcpy(re + re_len, s, n);
        re_len += n;
    }
}

static const char *
one_of(const char *const *list, size_t n)
{
    return list[(size_t) rand() % n];
}

#define ONE_OF(...)                                                         \
    one_of((const char *const[]) { __VA_ARGS__ },                           \
           sizeof((const char *const[]) { __VA_ARGS__ }) / sizeof(char *))

static void random_alt(int depth);

static void
random_atom(int depth)
{
    if (depth > 0 && rand() % 3 == 0) {
        put(ONE_OF("(", "(?:", "(?i:", "(?<n>", "(?s:", "(?-i:"));
        if (re_len >= 4 && memcmp(re + re_len - 4, "?<n>", 4) == 0)
            re[re_len - 2] = (char) ('a' + rand() % 26);
        random_alt(depth - 1);
        put(")");
        return;
    }
    put(ONE_OF("a", "b", "c", "A", "1", "é", "€", "ß", "K", "\\.", " ", "-",
               ".", "[ab]", "[^a]", "[a-c1]", "[é-ö]", "\\d", "\\w", "\\s",
               "\\S", "\\W", "\\D", rand() % 4 == 0 ? "\\p{Lu}" : "\\p{Ll}",
               "[\\w-]", "[^\\d]", "[[:upper:]]", "\\x41", "\\x{20ac}", "\\n",
               "\\h", "\\v", "\\N", "(?i)", "[]a]", "[^]a]", "[a-]", "{",
               "\\t", "\\e", "\\0", "\\cA"));
}

static void
random_cat(int depth)
{
    for (int n = rand() % 4; n >= 0; n--) {
        if (rand() % 14 == 0)
            put(ONE_OF("^", "$", "\\A", "\\z"));
        random_atom(depth);
        if (rand() % 3 == 0 && re[re_len - 1] != '{'
            && (re_len < 4 || memcmp(re + re_len - 4, "(?i)", 4) != 0))
            put(ONE_OF("*", "+", "?", "{2}", "{1,3}", "{0,1}", "{2,}", "*?",
                       "+?", "??", "{0}"));
    }
}

static void
random_alt(int depth)
{
    random_cat(depth);
    while (rand() % 4 == 0) {
        put("|");
        if (rand() % 8 != 0)
            random_cat(depth);
    }
}

static size_t
random_text(char *s)
{
    s[0] = '\0';
    for (int k = rand() % 8; k > 0; k--) {
        strcat(s, ONE_OF("a", "b", "c", "A", "B", "1", "7", "é", "É", "€",
                         "ß", "\u212a", "k", "K", ".", " ", "-", "\n", "\t",
                         "α", "{", "]", "x", "_"));
    }
    return strlen(s);
}

static void
test_random(void)
{
    char       s[256];
    int        agreed = 0, matched = 0, theirs;
    bool       none, ours;
    size_t     len;
    di_gram_t *g;

    for (int i = 0; i < 2000; i++) {
        re_len = 0;
        random_alt(2);
        g = gram_regex(re, re_len, &none);
        for (int k = 0; k < 20 && (g != NULL || none); k++) {
            len = random_text(s);
            ours = g != NULL && gram_whole(g, s, len);
            theirs = pcre_whole(re, re_len, s, len);
            if (theirs < 0)
                continue;
            if (ours != theirs)
                printf("/%.*s/ and \"%s\": %d, PCRE2 says %d\n",
                       (int) re_len, re, s, ours, theirs);
            CHECK_EQ_INT(ours, theirs);
            agreed++;
            matched += ours;
        }
        di_gram_unref(g);
    }
    CHECK(agreed > 10000 && matched > 500);
}

static size_t
utf8(char *s, unsigned cp)
{
    if (cp < 0x80) {
        s[0] = (char) cp;
        return 1;
    }
    if (cp < 0x800) {
        s[0] = (char) (0xc0 | cp >> 6);
        s[1] = (char) (0x80 | (cp & 0x3f));
        return 2;
    }
    if (cp < 0x10000) {
        s[0] = (char) (0xe0 | cp >> 12);
        s[1] = (char) (0x80 | (cp >> 6 & 0x3f));
        s[2] = (char) (0x80 | (cp & 0x3f));
        return 3;
    }
    s[0] = (char) (0xf0 | cp >> 18);
    s[1] = (char) (0x80 | (cp >> 12 & 0x3f));
    s[2] = (char) (0x80 | (cp >> 6 & 0x3f));
    s[3] = (char) (0x80 | (cp & 0x3f));
    return 4;
}

/* Code points against one class of both: all of the first, then each 7th. */
static void
test_class(const char *class)
{
    const di_gram_opts_t opts = { .any_order = false };
    di_gram_err_t        e = { 0 };
    pcre2_match_data    *data = pcre2_match_data_create(1, NULL);
    pcre2_code          *code;
    di_gram_match_t     *m;
    di_gram_t           *g;
    void                *blob;
    size_t               bytes, at, n;
    char                 s[4];
    int                  err, wrong = 0;
    bool                 ours, theirs;

    code = pcre2_compile((PCRE2_SPTR) class, PCRE2_ZERO_TERMINATED, PCRE2_UTF,
                         &err, &at, NULL);
    CHECK(code != NULL);
    CHECK_EQ_INT(di_gram_compile(DI_GRAM_REGEX, class, strlen(class), &opts,
                                 &blob, &bytes, &e), DI_OK);
    CHECK_EQ_INT(di_gram_open(blob, bytes, &g, NULL), DI_OK);
    CHECK_EQ_INT(di_gram_match_open(g, 1, &m), DI_OK);
    for (unsigned cp = 0; cp <= 0x10ffff; cp += cp < 0x3000 ? 1 : 7) {
        if (cp >= 0xd800 && cp <= 0xdfff)
            continue;
        n = utf8(s, cp);
        theirs = pcre2_match(code, (PCRE2_SPTR) s, n, 0,
                             PCRE2_NO_UTF_CHECK, data, NULL) > 0;
        ours = di_gram_accept(m, s, n) == DI_OK;
        if (ours)
            (void) di_gram_rollback(m, 1);
        if (ours != theirs && wrong++ == 0)
            printf("%s: U+%04X is %d, PCRE2 says %d\n", class, cp, ours,
                   theirs);
    }
    CHECK_EQ_INT(wrong, 0);
    di_gram_match_close(m);
    di_gram_unref(g);
    free(blob);
    pcre2_code_free(code);
    pcre2_match_data_free(data);
}

int
main(void)
{
    static const char *const classes[] = {
        ".", "\\W", "\\s", "\\h", "\\p{L}", "\\P{Ll}", "\\p{Cn}", "\\p{Han}",
        "(?i)[k-s]", "(?i)ß", "(?i)[α-ω]", "(?i)[^é]", "(?i)ſ", "(?i)[ǅ]",
    };
    unsigned seed = (unsigned) time(NULL);

    printf("seed %u\n", seed);
    srand(seed);
    for (size_t i = 0; i < sizeof(classes) / sizeof(classes[0]); i++)
        test_class(classes[i]);
    test_random();
    return check_done("grammar_regex");
}
