/*
 * json.c - the body reader and the JSON writer.
 *
 * Cases by hand, then random documents and damaged ones, on which the reader
 * must agree with jansson; then the writer, read back by jansson.
 */

#include <stdlib.h>
#include <time.h>

#include "tokenizer/api/di_utf8.h"

#include "check.h"
#include "json_model.h"
#include "nomem.h"

#define ROUNDS 30000

/* Read a body from a block of its exact size, so that ASan sees overruns. */
static int
read_exact(di_arena_t *arena, const char *body, size_t len, size_t depth,
           di_json_t **root, di_err_t *err)
{
    char *copy = malloc(len == 0 ? 1 : len);
    int   rc;

    memcpy(copy, body, len);
    rc = di_json_read(arena, copy, len, depth, root, err);
    free(copy);
    return rc;
}

static void
check_values(void)
{
    static const char body[] =
        " {\"a\" : [1, -2 ,3.5e1,0,-0, 9223372036854775807,\n"
        "-9223372036854775808, 9223372036854775808, 18446744073709551615,"
        "18446744073709551616, 1e-400],\"\":\"\",\t\"b\":{\"c\":true,\"d\":"
        "false,\"e\":null}, \"s\":\"x\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9"
        "\\ud83d\\ude00\\u20ACy\xf0\x9f\x98\x80\"}\r\n";
    di_arena_t       arena = { 0 };
    di_json_t       *root;
    const di_json_t *v;
    di_err_t         err = { 0 };

    CHECK_EQ_INT(read_exact(&arena, body, sizeof(body) - 1, 64, &root, &err),
                 DI_OK);
    if (err.code != DI_OK) {
        printf("%s\n", err.text);
        return;
    }

    CHECK_EQ_INT(root->v.list.n, 4);
    v = di_json_get(root, "a")->v.list.first;
    CHECK(v->type == DI_JSON_INT && v->v.i == 1);
    v = v->next;
    CHECK(v->type == DI_JSON_INT && v->v.i == -2);
    v = v->next;
    CHECK(v->type == DI_JSON_REAL && v->v.d == 35);
    v = v->next;
    CHECK(v->type == DI_JSON_INT && v->v.i == 0);
    v = v->next;
    CHECK(v->type == DI_JSON_REAL && v->v.d == 0 && signbit(v->v.d));
    v = v->next;
    CHECK(v->type == DI_JSON_INT && v->v.i == INT64_MAX);
    v = v->next;
    CHECK(v->type == DI_JSON_INT && v->v.i == INT64_MIN);
    v = v->next;
    CHECK(v->type == DI_JSON_UINT && v->v.u == (uint64_t) INT64_MAX + 1);
    v = v->next;
    CHECK(v->type == DI_JSON_UINT && v->v.u == UINT64_MAX);
    v = v->next;
    CHECK(v->type == DI_JSON_REAL && v->v.d == 0x1p64);
    v = v->next;
    CHECK(v->type == DI_JSON_REAL && v->v.d == 0);

    v = di_json_get(root, "s");
    CHECK(di_json_is(&v->v.str, "x\"\\/\b\f\n\r\t\xc3\xa9\xf0\x9f\x98\x80"
                     "\xe2\x82\xacy\xf0\x9f\x98\x80"));
    CHECK(di_json_get(root, "") != NULL && di_json_get(root, "x") == NULL);
    CHECK(di_json_get(di_json_get(root, "b"), "e")->type == DI_JSON_NULL);
    di_arena_free(&arena);
}

/* Bodies that must be refused, and what the text must tell. */
static const struct {
    const char *body, *tells;
} bad[] = {
    { "", "the body ends, expected a JSON object at line 1 column 1" },
    { "   \n ", "line 2 column 2" },
    { "[]", "unexpected '[', expected a JSON object" },
    { "null", "expected a JSON object" },
    { "\"x\"", "expected a JSON object" },
    { "\xef\xbb\xbf{}", "byte order mark at line 1 column 1" },
    { "{", "the body ends, expected a key" },
    { "{\"a\"", "expected ':'" },
    { "{\"a\":", "the body ends, expected a value" },
    { "{\"a\":1", "expected ',' or '}'" },
    { "{\"a\":1,}", "unexpected '}', expected a key" },
    { "{\"a\":[1,]}", "unexpected ']', expected a value" },
    { "{\"a\":[1 2]}", "unexpected '2', expected ',' or ']'" },
    { "{\"model\":\"m\", x}", "unexpected 'x', expected a key at line 1"
      " column 15" },
    { "{}x", "unexpected 'x', expected the end of the body" },
    { "{} {}", "expected the end of the body" },
    { "{\"a\":NaN}", "NaN and Infinity are not JSON" },
    { "{\"a\":-Infinity}", "NaN and Infinity are not JSON" },
    { "{\"a\":nul}", "expected a value" },
    { "{\"a\":01}", "unexpected '1', expected ',' or '}'" },
    { "{\"a\":1.}", "expected a digit" },
    { "{\"a\":.5}", "expected a value" },
    { "{\"a\":1e}", "expected a digit" },
    { "{\"a\":1e+}", "expected a digit" },
    { "{\"a\":-}", "expected a digit" },
    { "{\"a\":+1}", "expected a value" },
    { "{\"a\":1e999}", "number out of range" },
    { "{'a':1}", "expected a key" },
    { "{\"a\":\"x", "unterminated string at line 1 column 6" },
    { "{\"a\":\"x\\", "unknown escape" },
    { "{\"a\":\"\\x\"}", "unknown escape" },
    { "{\"a\":\"\\u12", "four hex digits" },
    { "{\"a\":\"\\u12g4\"}", "four hex digits" },
    { "{\"a\":\"\\ud83d\"}", "lone surrogate escape at line 1 column 7" },
    { "{\"a\":\"\\ud83dx\"}", "lone surrogate" },
    { "{\"a\":\"\\ud83d\\n\"}", "lone surrogate" },
    { "{\"a\":\"\\ud83d\\ud83d\"}", "lone surrogate" },
    { "{\"a\":\"x \\ude00 y\"}", "lone surrogate" },
    { "{\"a\":\"\\ud83d\\u12", "lone surrogate" },
    { "{\"a\":\"\\u0000\"}", "\\u0000 is not allowed" },
    { "{\"a\":\"x\ny\"}", "raw control character in a string at line 1"
      " column 8" },
    { "{\"a\":\"\xff\xfe\"}", "invalid UTF-8 at line 1 column 7" },
    { "{\"a\":\"\xc0\x80\"}", "invalid UTF-8" },
    { "{\"a\":\"\xed\xa0\x80\"}", "invalid UTF-8" },
    { "{\"a\":\"\xf4\x90\x80\x80\"}", "invalid UTF-8" },
    { "{\"a\":\"\xe4\xbd\"}", "invalid UTF-8" },
    { "{\"a\":\"\xe4\xbd", "invalid UTF-8" },
    { "{\"\xff\":1}", "invalid UTF-8" },
    { "{\xff", "unexpected byte 0xff" },
    { "{\"a\":1,\"b\":2,\n\"a\":3}", "duplicate key \"a\" at line 2 column 2" },
    { "{\"x\":{\"\\u0061\":1,\"a\":3}}", "duplicate key \"a\"" },
    { "{\"\":1,\"\":3}", "duplicate key \"\"" },
    { "{\"a\\nb\":1,\"a\\nb\":3}", "duplicate key \"a?b\"" },
};

static void
check_bad(void)
{
    size_t i;

    for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        di_arena_t arena = { 0 };
        di_json_t *root;
        di_err_t   err = { 0 };
        int        rc;

        rc = read_exact(&arena, bad[i].body, strlen(bad[i].body), 64, &root,
                        &err);
        CHECK_EQ_INT(rc, DI_EFORMAT);
        CHECK(strstr(err.text, bad[i].tells) != NULL);
        if (strstr(err.text, bad[i].tells) == NULL)
            printf("  %s: %s\n", bad[i].body, err.text);
        CHECK(di_utf8_valid(err.text, strlen(err.text)));
        di_arena_free(&arena);
    }
}

/* A NUL byte is an error wherever it stands. */
static void
check_nul(void)
{
    static const char body[] = "{\"a\":\"b\",\"c\":[1,true]}";
    char              copy[sizeof(body)];
    size_t            i;

    for (i = 0; i < sizeof(body) - 1; i++) {
        di_arena_t arena = { 0 };
        di_json_t *root;

        memcpy(copy, body, sizeof(body));
        copy[i] = '\0';
        CHECK_EQ_INT(read_exact(&arena, copy, sizeof(body) - 1, 64, &root,
                                NULL), DI_EFORMAT);
        di_arena_free(&arena);
    }
}

static int
read_nested(size_t depth, size_t limit, char open, char close)
{
    di_arena_t arena = { 0 };
    di_json_t *root;
    char      *body = malloc(depth * 6 + 8), *p = body;
    size_t     i;
    int        rc;

    /* The outermost object is the first level. */
    p += sprintf(p, "{\"a\":");
    for (i = 1; i < depth; i++)
        p += open == '[' ? sprintf(p, "[") : sprintf(p, "{\"a\":");
    p += sprintf(p, "1");
    for (i = 1; i < depth; i++)
        *p++ = close;
    *p++ = '}';

    rc = di_json_read(&arena, body, (size_t) (p - body), limit, &root, NULL);
    di_arena_free(&arena);
    free(body);
    return rc;
}

static void
check_limits(void)
{
    di_arena_t arena = { 0 };
    di_json_t *root;
    char      *body, *p;
    size_t     i, n;

    CHECK_EQ_INT(read_nested(64, 64, '[', ']'), DI_OK);
    CHECK_EQ_INT(read_nested(65, 64, '[', ']'), DI_ELIMIT);
    CHECK_EQ_INT(read_nested(64, 64, '{', '}'), DI_OK);
    CHECK_EQ_INT(read_nested(65, 64, '{', '}'), DI_ELIMIT);
    CHECK_EQ_INT(read_nested(DI_JSON_DEPTH_MAX, 1000, '[', ']'), DI_OK);
    CHECK_EQ_INT(read_nested(DI_JSON_DEPTH_MAX + 1, 1000, '[', ']'),
                 DI_ELIMIT);
    CHECK_EQ_INT(read_nested(100000, 64, '[', ']'), DI_ELIMIT);

    /* Values: the limit, and one more. */
    for (n = DI_JSON_NODES_MAX; n <= DI_JSON_NODES_MAX + 1; n++) {
        body = malloc(2 * n + 16);
        p = body + sprintf(body, "{\"a\":[");
        for (i = 1; i < n; i++) {
            *p++ = '1';
            *p++ = i + 1 < n ? ',' : ']';
        }
        *p++ = '}';
        CHECK_EQ_INT(di_json_read(&arena, body, (size_t) (p - body), 64, &root,
                                  NULL),
                     n == DI_JSON_NODES_MAX ? DI_OK : DI_ELIMIT);
        di_arena_free(&arena);
        free(body);
    }
}

/* Many members: found sorted, in a time that does not explode. */
static void
check_many_keys(void)
{
    const size_t n = 200000;
    di_arena_t   arena = { 0 };
    di_json_t   *root;
    di_err_t     err = { 0 };
    char        *body = malloc(n * 16 + 64), *p = body;
    size_t       i;

    *p++ = '{';
    for (i = 0; i < n; i++)
        p += sprintf(p, "%s\"k%zu\":1", i > 0 ? "," : "", i);
    CHECK_EQ_INT(di_json_read(&arena, body,
                              (size_t) (p + sprintf(p, "}") - body), 64,
                              &root, NULL), DI_OK);
    di_arena_free(&arena);

    p += sprintf(p, ",\"k777\":2}");
    CHECK_EQ_INT(di_json_read(&arena, body, (size_t) (p - body), 64, &root,
                              &err), DI_EFORMAT);
    CHECK(strstr(err.text, "duplicate key \"k777\"") != NULL);
    CHECK_EQ_INT(err.offset, p - body - 8);
    di_arena_free(&arena);
    free(body);
}

/* ------------------------------------------------------ random documents */

typedef struct {
    char   text[4096];
    size_t len;
} doc_t;

static unsigned
pick(unsigned n)
{
    return (unsigned) (random() % n);
}

static void
add(doc_t *d, const char *s)
{
    size_t n = strlen(s);

    if (d->len + n < sizeof(d->text)) {
        memcpy(d->text + d->len, s, n);
        d->len += n;
    }
}

static void
add_string(doc_t *d)
{
    static const char *const parts[] = {
        "a", "key", "\\n", "\\\"", "\\\\", "\\/", "\\u00e9", "\\uD83D\\uDE00",
        "\\u2028", "\xc3\xa9", "\xe4\xbd\xa0", "\xf0\x9f\x98\x80", "\x7f", " ",
        "sixteen bytes...", "/", "\\u0001", "0123456",
    };
    unsigned n = pick(6);

    add(d, "\"");
    while (n-- > 0)
        add(d, parts[pick(sizeof(parts) / sizeof(parts[0]))]);
    add(d, "\"");
}

static void
add_value(doc_t *d, unsigned depth)
{
    static const char *const scalars[] = {
        "null", "true", "false", "0", "-0", "1", "-1", "12345678901",
        "9223372036854775807", "9223372036854775808", "-9223372036854775809",
        "1.5", "-2.25e-3", "1E5", "0.1", "123456789.123456789e-30", "1e400",
        "1e-400", "0.0",
    };
    unsigned i, n;

    switch (pick(depth > 4 ? 2 : 4)) {
    case 0:
        add(d, scalars[pick(sizeof(scalars) / sizeof(scalars[0]))]);
        return;
    case 1:
        add_string(d);
        return;
    case 2:
        n = pick(4);
        add(d, "[");
        for (i = 0; i < n; i++) {
            add(d, i > 0 ? ", " : "");
            add_value(d, depth + 1);
        }
        add(d, "]");
        return;
    default:
        n = pick(pick(10) == 0 ? 25 : 4);
        add(d, "{");
        for (i = 0; i < n; i++) {
            add(d, i > 0 ? "," : " ");
            add_string(d);
            add(d, ":");
            add_value(d, depth + 1);
        }
        add(d, "}\n");
    }
}

static void
damage(doc_t *d)
{
    size_t   at = pick((unsigned) d->len);
    unsigned k;

    switch (pick(4)) {
    case 0:
        d->text[at] = (char) pick(256);
        return;
    case 1:
        memmove(d->text + at, d->text + at + 1, d->len - at - 1);
        d->len--;
        return;
    case 2:
        d->len = at;
        return;
    default:
        k = pick((unsigned) d->len);
        d->text[at] = d->text[k];
    }
}

static void
check_random(void)
{
    doc_t d;
    char *copy;
    int   i, tries;
    bool  same;

    for (i = 0; i < ROUNDS; i++) {
        d.len = 0;
        add(&d, "{\"v\":");
        add_value(&d, 0);
        add(&d, "}");

        for (tries = 0; tries < 4 && d.len > 0; tries++) {
            copy = malloc(d.len);
            memcpy(copy, d.text, d.len);
            same = json_agree(copy, d.len);
            free(copy);
            CHECK(same);
            if (!same)
                printf("  %.*s\n", (int) d.len, d.text);
            damage(&d);
        }
    }
}

/* ----------------------------------------------------------------- writer */

static void
check_text(const char *in, const char *out)
{
    di_sbuf_t b = { 0 };

    di_json_add_string(&b, in, strlen(in));
    di_sbuf_add(&b, "", 1);
    CHECK_EQ_STR(b.data, out);
    di_sbuf_free(&b);
}

static void
check_writer(void)
{
    static const struct {
        float       v;
        const char *text;
    } logprobs[] = {
        { 0, "0.0" }, { -0.0f, "0.0" }, { -0.5f, "-0.5" }, { -12, "-12.0" },
        { -1.3e-7f, "-0.00000013" }, { -1e-20f, "0.0" },
        { -INFINITY, "-9999.0" }, { NAN, "-9999.0" }, { -3e38f, "-9999.0" },
        { -1.4427f, "-1.44270003" },
    };
    di_sbuf_t b = { 0 };
    size_t    i;

    check_text("", "\"\"");
    check_text("a\"b\\c/\n\r\t\b\f\x01\x1f\x7f",
               "\"a\\\"b\\\\c/\\n\\r\\t\\b\\f\\u0001\\u001f\x7f\"");
    check_text("\xc2\x85\xe2\x80\xa8\xe2\x80\xa9\xe2\x80\xa7\xe2\x9c\x85",
               "\"\\u0085\\u2028\\u2029\xe2\x80\xa7\xe2\x9c\x85\"");
    check_text("a\xff" "b", "\"a\xef\xbf\xbd" "b\"");
    check_text("\xe4\xbd", "\"\xef\xbf\xbd\"");
    check_text("\xf0\x9f\x98x\xe4\xbd\xe4\xbd\xa0",
               "\"\xef\xbf\xbdx\xef\xbf\xbd\xe4\xbd\xa0\"");
    check_text("\xed\xa0\x80",
               "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"");

    for (i = 0; i < sizeof(logprobs) / sizeof(logprobs[0]); i++) {
        b.len = 0;
        di_json_add_logprob(&b, logprobs[i].v);
        di_sbuf_add(&b, "", 1);
        CHECK_EQ_STR(b.data, logprobs[i].text);
    }

    b.len = 0;
    di_json_add_i64(&b, INT64_MIN);
    di_sbuf_add(&b, " ", 1);
    di_json_add_u64(&b, UINT64_MAX);
    di_sbuf_add(&b, " ", 1);
    di_json_add_u64(&b, 0);
    di_sbuf_add(&b, "", 1);
    CHECK_EQ_STR(b.data, "-9223372036854775808 18446744073709551615 0");
    di_sbuf_free(&b);
}

/* Any bytes give a JSON string that jansson reads, on one line. */
static void
check_writer_random(void)
{
    static const char likely[] =
        "\xe2\x80\xa8\xc2\x85\xf0\x9f\x98\x80\xed";
    char      in[64];
    di_sbuf_t b = { 0 };
    json_t   *v;
    size_t    i, n;
    int       round;

    for (round = 0; round < ROUNDS; round++) {
        n = pick(sizeof(in));
        for (i = 0; i < n; i++)
            in[i] = pick(3) == 0 ? (char) pick(256) : likely[pick(11)];
        b.len = 0;
        di_json_add_string(&b, in, n);

        v = json_loadb(b.data, b.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        CHECK(v != NULL);
        CHECK(memmem(b.data, b.len, "\xe2\x80\xa8", 3) == NULL);
        CHECK(memmem(b.data, b.len, "\xc2\x85", 2) == NULL);
        if (v != NULL && di_utf8_valid(in, n))
            CHECK(json_string_length(v) == n
                  && memcmp(json_string_value(v), in, n) == 0);
        json_decref(v);
    }

    di_sbuf_free(&b);
}

/* Well-formed text as it must become, a byte at a time.  inner: of a string in
 * a string, where line separators stay. */
static size_t
escape_slowly(const char *s, size_t n, bool inner, char *out)
{
    static const char named[] = "\"\\\n\r\t\b\f", names[] = "\"\\nrtbf";
    const char *at;
    char       *o = out;
    size_t      i;

    for (i = 0; i < n; i++) {
        at = s[i] == '\0' ? NULL : strchr(named, s[i]);
        if (at != NULL)
            o += sprintf(o, "\\%c", names[at - named]);
        else if ((unsigned char) s[i] < 0x20)
            o += sprintf(o, "\\u%04x", (unsigned) s[i]);
        else if (!inner && n - i >= 2 && memcmp(s + i, "\xc2\x85", 2) == 0)
            o += sprintf(o, "\\u0085"), i++;
        else if (!inner && n - i >= 3 && memcmp(s + i, "\xe2\x80\xa8", 3) == 0)
            o += sprintf(o, "\\u2028"), i += 2;
        else if (!inner && n - i >= 3 && memcmp(s + i, "\xe2\x80\xa9", 3) == 0)
            o += sprintf(o, "\\u2029"), i += 2;
        else
            *o++ = s[i];
    }

    return (size_t) (o - out);
}

/* Both ways of writing known text, into room for the most that there can be
 * and no more. */
static void
check_known(const char *s, size_t n)
{
    char      slow[256], *room = malloc(n * DI_JSON_GROWTH_MAX + 1);
    di_sbuf_t b = { 0 };
    size_t    want = escape_slowly(s, n, false, slow);

    CHECK_EQ_INT(di_json_put_known(room, s, n) - room, want);
    CHECK(memcmp(room, slow, want) == 0);
    free(room);

    want = escape_slowly(s, n, true, slow);
    di_json_add_inner(&b, s, n);
    CHECK_EQ_INT(b.len, want);
    CHECK(want == 0 || memcmp(b.data, slow, want) == 0);
    di_sbuf_free(&b);
}

/* What is special, and what looks like it, at each place of short texts, once
 * and twice. */
static void
check_places(void)
{
    static const char *const parts[] = {
        "\"", "\\", "\n", "\x01", "\x1f", " ", "\x7f", "\xc2\x85", "\xc2\xa0",
        "\xe2\x80\xa8", "\xe2\x80\xa9", "\xe2\x82\xac", "\xe3\x80\x80",
        "\xf0\x9f\x98\x80", "!", "#", "[", "]", "\x1e\x1f", "\"\\",
    };
    char   text[40];
    size_t n, at, second, i, len;

    for (n = 0; n < 20; n++) {
        for (i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
            len = strlen(parts[i]);
            for (at = 0; at <= n; at++) {
                for (second = at; second <= n; second += 3) {
                    memset(text, 'a', sizeof(text));
                    memcpy(text + at, parts[i], len);
                    memcpy(text + second + len, parts[i], len);
                    check_known(text, n + 2 * len);
                }
            }
        }
    }
}

static void
check_u64(uint64_t v)
{
    char want[32], text[32];

    (void) snprintf(want, sizeof(want), "%llu", (unsigned long long) v);
    *di_json_put_u64(text, v) = '\0';
    CHECK_EQ_STR(text, want);
}

static void
check_numbers(void)
{
    uint64_t v, ten;

    for (v = 0; v < 20000; v++)
        check_u64(v);
    for (ten = 1; ten <= UINT64_MAX / 10; ten *= 10) {
        check_u64(ten * 10 - 1);
        check_u64(ten * 10);
        check_u64(ten * 10 + 1);
    }
    check_u64(UINT64_MAX);
}

static void
check_nomem(void)
{
    doc_t      d = { .len = 0 };
    di_arena_t arena = { 0 };
    di_json_t *root;
    int        n, rc;

    add(&d, "{\"v\":[");
    for (n = 0; n < 300; n++)
        add(&d, "null,");
    add(&d, "{\"0\":1");
    for (n = 1; n < 40; n++) {
        char s[32];

        snprintf(s, sizeof(s), ",\"%d\":1", n);
        add(&d, s);
    }
    add(&d, "}]}");

    for (n = 0; ; n++) {
        nomem_after(n);
        rc = di_json_read(&arena, d.text, d.len, 64, &root, NULL);
        di_arena_free(&arena);
        if (!nomem_off())
            break;
        CHECK_EQ_INT(rc, DI_ENOMEM);
    }

    CHECK_EQ_INT(rc, DI_OK);
    CHECK(!NOMEM || n > 3);
}

/* No value is no JSON; arguments that never came have no pointer either. */
static void
check_valid(void)
{
    CHECK(!di_json_valid(NULL, 0));
    CHECK(!di_json_valid("", 0));
    CHECK(!di_json_valid(" ", 1));
    CHECK(!di_json_valid("{}", 1));
    CHECK(!di_json_valid("{}]", 3));
    CHECK(di_json_valid("{}", 2));
    CHECK(di_json_valid(" [1, {\"a\": null}] ", 18));
}

int
main(void)
{
    unsigned    seed = (unsigned) time(NULL);
    const char *s = getenv("SEED");

    if (s != NULL)
        seed = (unsigned) strtoul(s, NULL, 10);
    srandom(seed);
    printf("json: seed %u\n", seed);

    check_values();
    check_bad();
    check_nul();
    check_limits();
    check_many_keys();
    check_random();
    check_writer();
    check_writer_random();
    check_places();
    check_numbers();
    check_valid();
    check_nomem();
    return check_done("json");
}
