/*
 * grammar_match.c - the matcher: taking back, forking, jumping forward, and
 * blobs that are not what the compiler wrote.
 *
 * Random walks go over texts of a recursive schema: accept tokens, refuse
 * others, roll back and fork, and compare with a matcher that has been fed
 * what is left from the start.
 */

#include <stdlib.h>
#include <time.h>

#include "check.h"
#include "grammar_make.h"

static di_gram_t *
schema(const char *s)
{
    const di_gram_opts_t opts = { .flexible = false };
    di_gram_err_t        err = { 0 };
    di_gram_t           *g = grammar_make(DI_GRAM_SCHEMA, s, strlen(s), &opts,
                                          &err);

    if (g == NULL)
        printf("%s: %s: %s\n", err.keyword, err.path, err.text);
    CHECK(g != NULL);
    return g;
}

#define TREE "{\"$ref\":\"#/$defs/n\",\"$defs\":{\"n\":{\"type\":" \
             "\"object\",\"properties\":{\"v\":{\"type\":\"number\"},\"c\":" \
             "{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/n\"}}}," \
             "\"required\":[\"v\",\"c\"],\"additionalProperties\":false}}}"

static const char tree_text[] =
    "{\"v\":1.5,\"c\":[{\"v\":-2,\"c\":[]},{\"v\":0,\"c\":[{\"v\":3e1,"
    "\"c\":[]}]}]}";

/* Both accept the same single bytes and tell the same. */
static void
check_same(di_gram_match_t *a, di_gram_match_t *b)
{
    bool same = di_gram_is_complete(a) == di_gram_is_complete(b)
                && di_gram_is_forced_end(a) == di_gram_is_forced_end(b);

    for (int byte = 0; byte < 256; byte++) {
        uint8_t          ch = (uint8_t) byte;
        di_gram_match_t *x, *y;

        CHECK_EQ_INT(di_gram_fork(a, &x), DI_OK);
        CHECK_EQ_INT(di_gram_fork(b, &y), DI_OK);
        same = same && di_gram_accept(x, &ch, 1) == di_gram_accept(y, &ch, 1);
        di_gram_match_close(x);
        di_gram_match_close(y);
    }
    CHECK(same);
}

static void
test_walks(void)
{
    di_gram_t       *g = schema(TREE);
    di_gram_match_t *m, *fresh, *fork;
    const unsigned   undo = 6;
    size_t           starts[256], n, at, len;

    for (int round = 0; round < 200 && g != NULL; round++) {
        CHECK_EQ_INT(di_gram_match_open(g, undo, &m), DI_OK);
        n = at = 0;
        while (at < sizeof(tree_text) - 1) {
            len = 1 + (size_t) rand() % 5;
            if (len > sizeof(tree_text) - 1 - at)
                len = sizeof(tree_text) - 1 - at;
            if (rand() % 3 == 0)
                CHECK_EQ_INT(di_gram_accept(m, "}?", 2), DI_EINVAL);
            CHECK_EQ_INT(di_gram_accept(m, tree_text + at, len), DI_OK);
            starts[n++] = at;
            at += len;
            if (rand() % 4 == 0) {
                size_t most = n < undo ? n : undo;
                size_t back = (size_t) rand() % (most + 1);

                /* What was taken back before can't be again. */
                if (di_gram_rollback(m, (unsigned) back) == DI_OK
                    && back > 0) {
                    n -= back;
                    at = starts[n];
                }
            }
            if (rand() % 8 == 0) {
                CHECK_EQ_INT(di_gram_fork(m, &fork), DI_OK);
                CHECK_EQ_INT(di_gram_rollback(fork, 1), DI_EINVAL);
                di_gram_match_close(m);
                m = fork;
            }
        }
        CHECK(di_gram_is_forced_end(m));
        CHECK_EQ_INT(di_gram_match_open(g, 0, &fresh), DI_OK);
        CHECK_EQ_INT(di_gram_accept(fresh, tree_text, at), DI_OK);
        if (round < 10)
            check_same(m, fresh);
        di_gram_match_close(fresh);
        di_gram_match_close(m);
    }
    di_gram_unref(g);
}

static void
test_rollback(void)
{
    di_gram_t       *g = schema(TREE);
    di_gram_match_t *m, *fresh;

    CHECK_EQ_INT(di_gram_match_open(g, 2, &m), DI_OK);
    CHECK_EQ_INT(di_gram_rollback(m, 1), DI_EINVAL);
    CHECK_EQ_INT(di_gram_accept(m, "{\"v\"", 4), DI_OK);
    CHECK_EQ_INT(di_gram_accept(m, "", 0), DI_OK);
    CHECK_EQ_INT(di_gram_accept(m, ":1", 2), DI_OK);
    CHECK_EQ_INT(di_gram_rollback(m, 3), DI_EINVAL);
    CHECK_EQ_INT(di_gram_rollback(m, 2), DI_OK);
    CHECK_EQ_INT(di_gram_rollback(m, 1), DI_EINVAL);
    CHECK_EQ_INT(di_gram_match_open(g, 0, &fresh), DI_OK);
    CHECK_EQ_INT(di_gram_accept(fresh, "{\"v\"", 4), DI_OK);
    check_same(m, fresh);
    di_gram_match_close(fresh);
    di_gram_match_close(m);
    di_gram_unref(g);
}

static void
test_forced(void)
{
    di_gram_t       *g = schema("{\"properties\":{\"name\":{\"enum\":"
                                "[\"alpha\",\"alps\"]}},\"required\":"
                                "[\"name\"],\"additionalProperties\":false,"
                                "\"type\":\"object\"}");
    di_gram_match_t *m;
    uint8_t          s[64];
    size_t           n;

    CHECK_EQ_INT(di_gram_match_open(g, 0, &m), DI_OK);
    n = di_gram_forced(m, s, sizeof(s) - 1);
    s[n] = '\0';
    CHECK_EQ_STR((char *) s, "{\"name\":\"alp");
    CHECK_EQ_INT(di_gram_forced(m, s, 3), 3);
    CHECK_EQ_INT(di_gram_accept(m, "{\"name\":\"alps", 13), DI_OK);
    n = di_gram_forced(m, s, sizeof(s) - 1);
    s[n] = '\0';
    CHECK_EQ_STR((char *) s, "\"}");
    CHECK_EQ_INT(di_gram_accept(m, "\"}", 2), DI_OK);
    CHECK_EQ_INT(di_gram_forced(m, s, sizeof(s)), 0);
    CHECK(di_gram_is_forced_end(m));
    di_gram_match_close(m);
    di_gram_unref(g);
}

static void
check_shortest(di_gram_t *g, const char *text, const char *want)
{
    di_gram_match_t *m;
    char             s[64];
    size_t           n;

    CHECK_EQ_INT(di_gram_match_open(g, 0, &m), DI_OK);
    CHECK_EQ_INT(di_gram_accept(m, text, strlen(text)), DI_OK);
    n = di_gram_shortest(m, (uint8_t *) s, sizeof(s) - 1);
    CHECK(n < sizeof(s));
    s[n < sizeof(s) ? n : 0] = '\0';
    CHECK_EQ_STR(s, want);
    if (n > 0)
        CHECK_EQ_INT(di_gram_shortest(m, (uint8_t *) s, n - 1), SIZE_MAX);
    di_gram_match_close(m);
}

static di_gram_t *
ebnf(const char *s)
{
    const di_gram_opts_t opts = { .flexible = false };
    di_gram_err_t        err;

    return grammar_make(DI_GRAM_EBNF, s, strlen(s), &opts, &err);
}

static void
test_shortest(void)
{
    di_gram_t *g = schema(TREE);

    check_shortest(g, "", "{\"v\":0,\"c\":[]}");
    check_shortest(g, "{\"v\":1.", "0,\"c\":[]}");
    check_shortest(g, "{\"v\":1,\"c\":[{\"v\":0,\"c\":[{\"v",
                   "\":0,\"c\":[]}]}]}");
    check_shortest(g, tree_text, "");
    di_gram_unref(g);

    /* Rules that read nothing, and one that is nearer than an edge. */
    g = ebnf("root ::= a a \"xyz\" | \"xy\" b\n"
             "a ::= n n\nn ::= \"\" | \"n\"\nb ::= a \"12\" | \"1\" b");
    check_shortest(g, "", "xyz");
    check_shortest(g, "n", "xyz");
    check_shortest(g, "xy", "z");
    check_shortest(g, "xy1", "2");
    check_shortest(g, "xy111", "2");
    check_shortest(g, "xyn", "12");
    di_gram_unref(g);

    g = schema("{\"type\":\"array\",\"minItems\":2,\"items\":{\"type\":"
               "\"string\",\"minLength\":3}}");
    check_shortest(g, "[\"b", "aa\",\"aaa\"]");
    di_gram_unref(g);
}

static void
test_depth(void)
{
    di_gram_t       *g = schema("{\"type\":\"array\"}");
    di_gram_match_t *m;
    int              n = 0;

    CHECK_EQ_INT(di_gram_match_open(g, 0, &m), DI_OK);
    while (n < 100000 && di_gram_accept(m, "[", 1) == DI_OK)
        n++;
    CHECK(n >= 500 && n <= 2 * DI_GRAM_DEPTH_MAX);
    while (n > 0 && di_gram_accept(m, "]", 1) == DI_OK)
        n--;
    CHECK_EQ_INT(n, 0);
    CHECK(di_gram_is_forced_end(m));
    di_gram_match_close(m);
    di_gram_unref(g);
}

/* Whatever is changed in a blob, it is refused or can be matched with. */
static void
test_blobs(void)
{
    const di_gram_opts_t opts = { .flexible = true };
    di_gram_err_t        err;
    di_gram_match_t     *m;
    di_gram_t           *g;
    uint8_t             *blob, *copy;
    void                *p;
    size_t               bytes, refused = 0;

    CHECK_EQ_INT(di_gram_compile(DI_GRAM_SCHEMA, TREE, strlen(TREE), &opts,
                                 &p, &bytes, &err), DI_OK);
    blob = p;
    for (size_t len = 0; len < bytes; len++)
        CHECK_EQ_INT(di_gram_open(blob, len, &g, NULL), DI_EFORMAT);
    copy = malloc(bytes);
    for (int i = 0; i < 20000; i++) {
        memcpy(copy, blob, bytes);
        for (int k = rand() % 3; k >= 0; k--)
            copy[(size_t) rand() % bytes] ^= (uint8_t) (1 << rand() % 8);
        if (di_gram_open(copy, bytes, &g, NULL) != DI_OK) {
            refused++;
            continue;
        }
        CHECK_EQ_INT(di_gram_match_open(g, 1, &m), DI_OK);
        for (size_t k = 0; k < sizeof(tree_text) - 1; k++)
            (void) di_gram_accept(m, tree_text + k, 1);
        di_gram_match_close(m);
        di_gram_unref(g);
    }
    CHECK(refused > 1000);
    free(copy);
    free(blob);
}

static void
test_limits(void)
{
    static const struct { size_t memory, blob; uint64_t work; } limits[] = {
        { 100000, 0, 0 }, { 0, 1000, 0 }, { 0, 0, 1000 },
    };
    di_gram_err_t err;
    void         *blob;
    size_t        bytes;

    for (int i = 0; i < 3; i++) {
        di_gram_opts_t opts = {
            .limits = { limits[i].memory, limits[i].blob, limits[i].work },
        };

        memset(&err, 0, sizeof(err));
        CHECK_EQ_INT(di_gram_compile(DI_GRAM_SCHEMA, TREE, strlen(TREE),
                                     &opts, &blob, &bytes, &err), DI_ELIMIT);
        CHECK_EQ_STR(err.keyword, "grammar");
    }
}

/* As many keywords may be dropped as the list holds, and no more. */
static void
test_dropped(void)
{
    for (int n = DI_GRAM_DROPPED_MAX; n <= DI_GRAM_DROPPED_MAX + 1; n++) {
        di_gram_dropped_t    dropped;
        const di_gram_opts_t opts = {
            .best_effort = true, .dropped = &dropped,
        };
        di_gram_err_t        err = { 0 };
        char                 s[4096];
        size_t               len = (size_t) sprintf(s, "{\"prefixItems\":[{}");
        di_gram_t           *g;

        for (int i = 0; i < n; i++)
            len += (size_t) sprintf(s + len, ",{\"format\":\"color\"}");
        len += (size_t) sprintf(s + len, "]}");
        g = grammar_make(DI_GRAM_SCHEMA, s, len, &opts, &err);
        CHECK_EQ_INT(g != NULL, n == DI_GRAM_DROPPED_MAX);
        if (g != NULL) {
            CHECK_EQ_INT(dropped.n, n);
            CHECK_EQ_STR(dropped.v[n - 1].keyword, "format");
        } else {
            CHECK_EQ_STR(err.keyword, "format");
        }
        di_gram_unref(g);
    }
}

/* Grammars that would crash or stall a careless compiler: an error at once,
 * or, where it is a large but honest one, a grammar. */
static void
test_bombs(void)
{
    static const struct {
        const char    *open, *middle, *close;
        di_gram_kind_t kind;
        int            n;
        bool           fine;
    } bombs[] = {
        { "(", "a", ")", DI_GRAM_REGEX, 60000, false },
        { "(", "a", "", DI_GRAM_REGEX, 60000, false },
        { "(", "a", "){1,100}", DI_GRAM_REGEX, 10, false },
        { "(a|b)*", "a", "(a|b){9}", DI_GRAM_REGEX, 9, false },
        { "root ::= (", "\"a\"", ")", DI_GRAM_EBNF, 60000, false },
        { "{\"items\":", "{}", "}", DI_GRAM_SCHEMA, 100000, false },
        { "{\"items\":", "{}", "}", DI_GRAM_SCHEMA, 1500, false },
        { "{\"items\":", "{}", "}", DI_GRAM_SCHEMA, 100, true },
        { "", "{\"maxLength\":5000}", "", DI_GRAM_SCHEMA, 1, true },
        { "", "{\"maxLength\":900000}", "", DI_GRAM_SCHEMA, 1, false },
    };
    const di_gram_opts_t opts = { .flexible = true };

    for (size_t i = 0; i < sizeof(bombs) / sizeof(bombs[0]); i++) {
        size_t        open = strlen(bombs[i].open);
        size_t        close = strlen(bombs[i].close), len = 0;
        di_gram_err_t err = { 0 };
        di_gram_t    *g;
        char         *s = malloc((open + close) * (size_t) bombs[i].n + 64);

        for (int k = 0; k < bombs[i].n; k++, len += open)
            memcpy(s + len, bombs[i].open, open);
        len += (size_t) sprintf(s + len, "%s", bombs[i].middle);
        for (int k = 0; k < bombs[i].n; k++, len += close)
            memcpy(s + len, bombs[i].close, close);
        g = grammar_make(bombs[i].kind, s, len, &opts, &err);
        if ((g != NULL) != bombs[i].fine)
            printf("bomb %zu: %s %s\n", i, err.keyword, err.text);
        CHECK_EQ_INT(g != NULL, bombs[i].fine);
        CHECK(g != NULL || err.text[0] != '\0');
        di_gram_unref(g);
        free(s);
    }
}

int
main(void)
{
    unsigned seed = (unsigned) time(NULL);

    printf("seed %u\n", seed);
    srand(seed);
    test_walks();
    test_rollback();
    test_forced();
    test_shortest();
    test_depth();
    test_blobs();
    test_limits();
    test_dropped();
    test_bombs();
    return check_done("grammar_match");
}
