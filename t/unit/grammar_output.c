/*
 * grammar_output.c - grammars of a whole answer: special tokens, a user's
 * grammars inside, free text.
 *
 * In the texts here <[259]> stands for the special token's four bytes.
 */

#include <time.h>

#include "grammar_walk.h"
#include "tiny_vocab.h"

static const di_str_t words[] = {
    { "hello", 5 }, { "{\"a\":", 5 }, { "}", 1 }, { "<t", 2 }, { "ool>x", 5 },
    { "<tool", 5 }, { "ab", 2 }, { "\xc3", 1 }, { "\xa9!", 2 }, { "a\xff", 2 },
    { "1}", 2 }, { "true", 4 }, { "yes", 3 }, { "no", 2 }, { "</", 2 },
};

#define N_WORDS  (sizeof(words) / sizeof(words[0]))

static size_t
bytes_of(const char *s, uint8_t *out)
{
    unsigned id;
    size_t   n = 0;
    int      used;

    while (*s != '\0') {
        if (sscanf(s, "<[%u]>%n", &id, &used) == 1) {
            out[n++] = 0xff;
            out[n++] = (uint8_t) (id >> 16);
            out[n++] = (uint8_t) (id >> 8);
            out[n++] = (uint8_t) id;
            s += used;
        } else {
            out[n++] = (uint8_t) *s++;
        }
    }
    return n;
}

static di_gram_t *
output(const char *s, di_gram_err_t *err)
{
    const di_gram_opts_t opts = { .flexible = false };

    return grammar_make(DI_GRAM_OUTPUT, s, strlen(s), &opts, err);
}

static bool
accepts(di_gram_t *g, const char *text)
{
    uint8_t          bytes[400];
    size_t           n = bytes_of(text, bytes);
    di_gram_match_t *m;
    bool             ok;

    CHECK_EQ_INT(di_gram_match_open(g, 0, &m), DI_OK);
    ok = di_gram_accept(m, bytes, n) == DI_OK && di_gram_is_complete(m);
    di_gram_match_close(m);
    return ok;
}

#define THINK  "root ::= <[257]> %until\"<[/\" \"<[/\" <[259]> answer\n"     \
               "answer ::= %free | <[70000]> %json{\"type\":\"object\","      \
               "\"properties\":{\"a\":{\"type\":\"integer\"}},"               \
               "\"additionalProperties\":false} <[70001]>\n"

static const struct {
    const char *grammar;
    const char *yes[5], *no[8];
} cases[] = {
    { "root ::= <[259]>", { "<[259]>" }, { "", "<[258]>", "<[65795]>",
                                           "<[259]><[259]>", "a" } },
    { "root ::= (<[0]> | <[1]> | <[255]> | <[256]> | <[16777215]>)+",
      { "<[0]>", "<[1]><[255]>", "<[256]><[16777215]>", "<[255]>" },
      { "<[2]>", "<[254]>", "<[257]>", "<[65536]>", "<[16777214]>" } },
    { "root ::= . <[0]> | [^a] <[1]>", { "a<[0]>", "\xc3\xa9<[1]>",
                                         "\xf4\x8f\xbf\xbf<[1]>" },
      { "a<[1]>", "<[0]><[0]>", "<[1]><[1]>", "<[0]>" } },
    { "root ::= %free", { "", "any \"text\"\n", "\xc3\xa9" },
      { "<[0]>", "\xc3", "\xff" } },
    { "root ::= %until\"<tool>\" (\"<tool>\" \"x\")?",
      { "", "a <to <tool", "<<tool>x", "a<tool>x" },
      { "<tool>", "<tool>y", "<tool>xx", "<tool><tool>x" } },
    { "root ::= %until\"aab\" \"aab\" %free",
      { "aab", "aaab", "aaaab b", "xaabaab" }, { "", "aa", "aba" } },
    { THINK,
      { "<[257]><[/<[259]>hello", "<[257]>hm <[ <[/<[259]>",
        "<[257]>hm<[/<[259]><[70000]>{\"a\":1}<[70001]>" },
      { "", "<[257]>hm", "<[257]><[259]>hello", "<[257]><[/<[/<[259]>",
        "<[257]><[/<[259]><[70000]>{\"a\":x}<[70001]>",
        "<[257]><[/<[259]><[70000]>{\"a\":1}",
        "<[257]><[/<[259]>a<[70000]>{\"a\":1}<[70001]>" } },
    { "root ::= %regex\"[a-c]+\\\\d\" | %choice[\"yes\", \"no\"] | %json true",
      { "abc1", "yes", "no", "[1,{\"a\":null}]" }, { "abc", "maybe", "" } },
    { "root ::= %text{\"type\":\"string\",\"minLength\":2,\"maxLength\":3,"
      "\"not\":{\"enum\":[\"no!\"]}} \"<\" <[259]>",
      { "ab<<[259]>", "\"\n\\<<[259]>", "no<<[259]>", "\xc3\xa9<<<[259]>" },
      { "a<<[259]>", "abcd<<[259]>", "no!<<[259]>", "\"ab\"<<[259]>" } },
    { "root ::= %json~{\"type\":\"array\",\"uniqueItems\":true,\"items\":{"
      "\"maximum\":1}} <[259]> %text~{\"format\":\"x\",\"maxLength\":1}",
      { "[1,1]<[259]>a", "[]<[259]>" }, { "[2]<[259]>a", "[]<[259]>ab" } },
    { "root ::= %text{\"enum\":[\"a\",1,\"\\u0041\\n\"]} | %text true <[259]>",
      { "a", "A\n", "1<[259]>", "<[259]>" }, { "1", "b", "\"a\"" } },
    { "root ::= %ebnf\"root ::= x x\\nx ::= 'a' | 'a' root\" <[259]> x\n"
      "x ::= \"b\"", { "aa<[259]>b", "aaaa<[259]>b" }, { "aa<[259]>a" } },
    { "root ::= text <[259]> text\ntext ::= inner \".\"?\ninner ::= %free\n",
      { "<[259]>", "a.b<[259]>.", ".<[259]>.." },
      { "", "a", "<[259]><[259]>" } },
    { "root ::= a\na ::= %free | \"(\" a \")\" <[259]>\n",
      { "x", "((x)<[259]>)<[259]>" }, { "x<[259]>", "(x)<[258]>" } },
};

static void
test_cases(void)
{
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        di_gram_err_t err = { 0 };
        di_gram_t    *g = output(cases[i].grammar, &err);

        if (g == NULL)
            printf("%s: %s %s %s\n", cases[i].grammar, err.keyword, err.path,
                   err.text);
        CHECK(g != NULL);
        for (int k = 0; g != NULL && k < 5 && cases[i].yes[k] != NULL; k++) {
            if (!accepts(g, cases[i].yes[k]))
                printf("%s\n  %s\n", cases[i].grammar, cases[i].yes[k]);
            CHECK(accepts(g, cases[i].yes[k]));
        }
        for (int k = 0; g != NULL && k < 8 && cases[i].no[k] != NULL; k++) {
            if (accepts(g, cases[i].no[k]))
                printf("%s\n  %s\n", cases[i].grammar, cases[i].no[k]);
            CHECK(!accepts(g, cases[i].no[k]));
        }
        di_gram_unref(g);
    }
}

static void
test_errors(void)
{
    static const struct {
        const char    *grammar;
        int            code, part;
        const char    *keyword, *path;
    } bad[] = {
        { "root ::= <[16777216]>", DI_EFORMAT, -1, "output", "offset 9" },
        { "root ::= <[]>", DI_EFORMAT, -1, "output", "offset 9" },
        { "root ::= <[12>", DI_EFORMAT, -1, "output", "offset 9" },
        { "root ::= <12>", DI_EFORMAT, -1, "output", "offset 9" },
        { "root ::= %any", DI_EFORMAT, -1, "output", "offset 9" },
        { "root ::= %until\"\"", DI_EFORMAT, -1, "output", "offset 9" },
        { "root ::= %until 7", DI_EFORMAT, -1, "output", "offset 9" },
        { "root ::= %until\"a", DI_EFORMAT, -1, "json", "" },
        { "root ::= %regex\"a\" %regex {}", DI_EFORMAT, 1, "output",
          "offset 19" },
        { "root ::= %regex\"a\" %json {\"type\":\"string\",\"pattern\":"
          "\"(?=a)\"}", DI_EUNSUPPORTED, 1, "pattern", "#/pattern" },
        { "root ::= %regex\"a\" %json {\"$ref\":\"http://x\"}",
          DI_EUNSUPPORTED, 1, "$ref", "#/$ref" },
        { "root ::= %regex\"a\" %text{\"type\":\"integer\"}", DI_EINVAL, 1,
          "schema", "#" },
        { "root ::= %json~{\"format\":\"x\"} %json{\"format\":\"x\"}",
          DI_EUNSUPPORTED, 1, "format", "#/format" },
        { "root ::= %text{\"format\":\"x\"}", DI_EUNSUPPORTED, 0, "format",
          "#/format" },
        { "root ::= %json{", DI_EFORMAT, 0, "json", "" },
        { "root ::= %choice[]", DI_EFORMAT, 0, "choice", "" },
        { "root ::= %ebnf\"root ::= <[1]>\"", DI_EFORMAT, 0, "ebnf",
          "offset 9" },
        { "root ::= %ebnf\"root ::= a\"", DI_EFORMAT, 0, "rule", "a" },
        { "root ::= a %ebnf\"root ::= 'x'\"", DI_EFORMAT, -1, "rule", "a" },
        { "root ::= %json true %ebnf\"root ::= a 'x'\\na ::= root 'y'| 'z'\"",
          DI_EUNSUPPORTED, 1, "left recursion", "root" },
        { "root ::= \"x\" | %json true | %json{\"type\":\"string\","
          "\"enum\":[1]}", DI_EINVAL, 1, "grammar", "" },
        { "root ::= %free root | \"x\"", DI_EUNSUPPORTED, -1,
          "left recursion", "root" },
    };
    const di_gram_opts_t opts = { .flexible = false };
    void                *blob;
    size_t               bytes;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        di_gram_err_t err = { .part = 77 };
        int           rc = di_gram_compile(DI_GRAM_OUTPUT, bad[i].grammar,
                                           strlen(bad[i].grammar), &opts,
                                           &blob, &bytes, &err);

        if (rc != bad[i].code || err.part != bad[i].part)
            printf("%s: %s %s: %s\n", bad[i].grammar, err.keyword, err.path,
                   err.text);
        CHECK_EQ_INT(rc, bad[i].code);
        CHECK_EQ_INT(err.code, bad[i].code);
        CHECK_EQ_INT(err.part, bad[i].part);
        CHECK_EQ_STR(err.keyword, bad[i].keyword);
        CHECK_EQ_STR(err.path, bad[i].path);
        if (rc == DI_OK)
            free(blob);
    }
}

/* The only keyword that goes is that of one part. */
static void
test_dropped(void)
{
    static const char    s[] =
        "root ::= %json{\"type\":\"integer\"} %json{\"type\":\"string\","
        "\"format\":\"color\"} %json{\"type\":\"null\"}";
    di_gram_dropped_t    dropped;
    const di_gram_opts_t opts = { .best_effort = true, .dropped = &dropped };
    di_gram_err_t        err;
    di_gram_t           *g = grammar_make(DI_GRAM_OUTPUT, s, strlen(s), &opts,
                                          &err);

    CHECK(g != NULL && accepts(g, "1\"a\"null") && !accepts(g, "11null"));
    CHECK_EQ_INT(dropped.n, 1);
    CHECK_EQ_INT(dropped.v[0].part, 1);
    CHECK_EQ_STR(dropped.v[0].keyword, "format");
    CHECK_EQ_STR(dropped.v[0].path, "#/format");
    di_gram_unref(g);
}

/* A deep nest of rules, and rules of free text in each other. */
static void
test_nest(int n, bool text, bool fine)
{
    char         *s = malloc((size_t) n * 32 + 64);
    size_t        len = (size_t) sprintf(s, "root ::= a0\n");
    di_gram_err_t err = { 0 };
    di_gram_t    *g;

    for (int i = 0; i < n; i++)
        len += (size_t) sprintf(s + len, "a%d ::= a%d\n", i, i + 1);
    (void) sprintf(s + len, "a%d ::= %s\n", n, text ? "%free" : "'x'");
    g = output(s, &err);
    if ((g != NULL) != fine)
        printf("%d rules: %s %s %s\n", n, err.keyword, err.path, err.text);
    CHECK_EQ_INT(g != NULL, fine);
    CHECK(fine || err.code == DI_ELIMIT);
    di_gram_unref(g);
    free(s);
}

static void
check_id(const di_gram_index_t *x, di_gram_match_t *m, int32_t id, int want)
{
    int rc = di_gram_accept_id(x, m, id);

    if (rc != want)
        printf("id %d\n", (int) id);
    CHECK_EQ_INT(rc, want);
}

/* Tokens by id: control, user-defined, ends, and what is none. */
static void
test_ids(const di_gram_index_t *x)
{
    di_gram_err_t    err;
    di_gram_t       *g = output("root ::= <[259]> (<[261]> \"1\" | \"<tool>\""
                                " \"2\") <[256]>?", &err);
    di_gram_match_t *m;

    CHECK_EQ_INT(di_gram_match_open(g, 4, &m), DI_OK);
    check_id(x, m, -1, DI_EINVAL);
    check_id(x, m, 100000, DI_EINVAL);
    check_id(x, m, TINY_UNUSED, DI_EINVAL);
    check_id(x, m, TINY_START, DI_EINVAL);
    check_id(x, m, 0xff, DI_EINVAL);
    check_id(x, m, TINY_EOS, DI_EINVAL);
    check_id(x, m, TINY_PAD, DI_OK);
    check_id(x, m, TINY_USER, DI_OK);           /* itself, not its spelling  */
    check_id(x, m, '2', DI_EINVAL);
    check_id(x, m, '1', DI_OK);
    check_id(x, m, TINY_EOS, DI_OK);            /* the end, not itself       */
    check_id(x, m, '1', DI_EINVAL);
    CHECK_EQ_INT(di_gram_rollback(m, 3), DI_OK);
    check_id(x, m, '<', DI_OK);                 /* its spelling              */
    CHECK_EQ_INT(di_gram_accept(m, "tool>", 5), DI_OK);
    check_id(x, m, '1', DI_EINVAL);
    check_id(x, m, '2', DI_OK);
    CHECK(di_gram_is_complete(m));
    di_gram_match_close(m);
    di_gram_unref(g);
}

static void
check_forced(const char *grammar, size_t cap, const char *want)
{
    di_gram_err_t    err;
    di_gram_t       *g = output(grammar, &err);
    di_gram_match_t *m;
    uint8_t          got[64], bytes[64];
    size_t           n = bytes_of(want, bytes);

    CHECK_EQ_INT(di_gram_match_open(g, 0, &m), DI_OK);
    CHECK_EQ_INT(di_gram_forced(m, got, cap), n);
    CHECK(memcmp(got, bytes, n) == 0);
    di_gram_match_close(m);
    di_gram_unref(g);
}

/* A special token is forced whole or not at all. */
static void
test_forced(void)
{
    static const char s[] = "root ::= \"ab\" <[16711935]> \"c\" <[259]>";

    check_forced(s, 64, "ab<[16711935]>c<[259]>");
    for (size_t cap = 7; cap < 11; cap++)
        check_forced(s, cap, "ab<[16711935]>c");
    check_forced(s, 6, "ab<[16711935]>");
    for (size_t cap = 2; cap < 6; cap++)
        check_forced(s, cap, "ab");
    check_forced("root ::= \"a\" (<[258]> | <[259]>)", 64, "a");
    check_forced("root ::= \"a\" (<[258]> | \"b\")", 64, "a");
}

int
main(void)
{
    unsigned         seed = (unsigned) time(NULL);
    di_vocab_t      *v = tiny_vocab(words, N_WORDS);
    di_gram_index_t *x;
    uint64_t        *mask;

    printf("seed %u\n", seed);
    srand(seed);
    CHECK_EQ_INT(di_gram_index_open(v, 0, &x), DI_OK);
    mask = malloc(di_gram_mask_words(x) * sizeof(*mask));
    test_cases();
    test_errors();
    test_dropped();
    test_nest(10, true, true);
    test_nest(100, true, false);
    test_nest(100, false, true);
    test_nest(20000, false, false);
    test_ids(x);
    test_forced();

    walk_text(v, x, mask, DI_GRAM_OUTPUT,
              "root ::= %free (<[261]> %json{\"type\":\"object\"} <[259]>)*");
    walk_text(v, x, mask, DI_GRAM_OUTPUT,
              "root ::= %until\"<tool>\" (\"<tool>\" %json true)?");
    walk_text(v, x, mask, DI_GRAM_OUTPUT,
              "root ::= (<[257]> | <[261]> | \"<tool>\" \"x\") t <[259]> t\n"
              "t ::= %until\"ab\" | %choice[\"ab\", \"hello\"]");
    walk_text(v, x, mask, DI_GRAM_OUTPUT,
              "root ::= call* \"hello\"\ncall ::= <[257]> (<[261]> | arg*)\n"
              "arg ::= <[261]>? %regex\"[a-z]+\" <[259]>");

    free(mask);
    di_gram_index_close(x);
    di_vocab_close(v);
    return check_done("grammar_output");
}
