/*
 * vocab_hf.c - tokenizer.json, folders, and cutting texts.
 *
 * The vocabulary is made here: all bytes, "ab", "abc" by rules, "zz" by none,
 * and five added tokens.  Each fault is one edit of its text and must give an
 * error that begins with the JSON path.  Whole vocabularies are tested by
 * build/recipe-vectors and by vocab.c's vectors, which GGUF files carry.
 */

#include <inttypes.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <sys/stat.h>

#include "nomem.h"

#include "tokenizer/vocab/di_vocab.h"

#include "check.h"

#define JSON_MAX  16384
#define TEXT_MAX  4000

static uint64_t seed;

static uint32_t
draw(uint32_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t) ((seed >> 32) * n >> 32);
}

/* A byte as tokenizer.json spells it: in GPT-2's alphabet, then in JSON. */
static size_t
put_byte(char *s, unsigned b)
{
    unsigned c = b, k;

    if (b < 0x21 || (b > 0x7e && b < 0xa1) || b == 0xad) {
        for (k = 0, c = 0x100; k < b; k++)
            c += k < 0x21 || (k > 0x7e && k < 0xa1) || k == 0xad;
    }
    if (c == '"' || c == '\\')
        return (size_t) sprintf(s, "\\%c", (char) c);
    if (c < 0x80 && b % 2 == 0)
        return (size_t) sprintf(s, "\\u%04x", c);
    if (c < 0x80)
        return (size_t) sprintf(s, "%c", (char) c);
    return (size_t) sprintf(s, "%c%c", (char) (0xc0 | c >> 6),
                            (char) (0x80 | (c & 0x3f)));
}

/* The text of the vocabulary, of which the first `from` is replaced by `to`
 * (NULL: as it is). */
static size_t
make(char json[JSON_MAX], const char *from, const char *to)
{
    char  *s = json, *at;
    size_t len;

    s += sprintf(s, "{\"version\": \"1.0\", \"truncation\": null,\n"
        "\"added_tokens\": ["
        "{\"id\": 0, \"content\": \"<bos>\", \"special\": true,"
        " \"normalized\": false, \"lstrip\": false},"
        "{\"id\": 261, \"content\": \"<think>\", \"special\": false,"
        " \"normalized\": true},"
        "{\"id\": 262, \"content\": \"<th\", \"special\": false,"
        " \"normalized\": false},"
        "{\"id\": 264, \"content\": \"<|im_end|>\", \"special\": true,"
        " \"normalized\": false},"
        "{\"id\": 265, \"content\": \"<think>>\", \"special\": false,"
        " \"normalized\": true}],\n"
        "\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": []},\n"
        "\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": ["
        "{\"type\": \"Digits\", \"individual_digits\": true},"
        "{\"type\": \"ByteLevel\", \"add_prefix_space\": false}]},\n"
        "\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": ["
        "{\"SpecialToken\": {\"id\": \"<bos>\", \"type_id\": 0}},"
        "{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}]},\n"
        "\"decoder\": {\"type\": \"ByteLevel\"},\n"
        "\"model\": {\"type\": \"BPE\", \"dropout\": null, "
        "\"ignore_merges\": false, \"vocab\": {\"<bos>\": 0");
    for (unsigned b = 0; b < 256; b++) {
        s += sprintf(s, ", \"");
        s += put_byte(s, b);
        s += sprintf(s, "\": %u", b + 1);
    }
    (void) sprintf(s, ", \"ab\": 257, \"abc\": 258, \"zz\": 260},"
        "\"merges\": [[\"a\", \"b\"], \"ab c\"]}}\n");

    if (from != NULL) {
        at = strstr(json, from);
        if (at == NULL) {
            printf("no \"%s\" in the vocabulary\n", from);
            exit(1);
        }
        len = strlen(from);
        memmove(at + strlen(to), at + len, strlen(at + len) + 1);
        memcpy(at, to, strlen(to));
    }
    return strlen(json);
}

static di_vocab_t *
open_vocab(const char *from, const char *to)
{
    char        json[JSON_MAX];
    size_t      len = make(json, from, to);
    di_vocab_t *v = NULL;
    di_err_t    err = { 0 };

    CHECK_EQ_INT(di_vocab_open_hf(json, len, &v, &err), DI_OK);
    CHECK_EQ_STR(err.text, "");
    if (v == NULL)
        exit(check_done("vocab_hf"));
    return v;
}

/* Are these the ids of a text? */
static bool
encodes(const di_vocab_t *v, bool raw, const char *text, const int32_t *want,
        size_t n_want)
{
    int32_t   ids[64];
    size_t    n = 0;
    di_tok_t *tok;
    int       rc;

    if (di_tok_open(v, &tok) != DI_OK)
        return false;
    rc = (raw ? di_tok_encode_raw : di_tok_encode)(tok, text, strlen(text),
                                                   ids, 64, &n);
    di_tok_close(tok);
    return rc == DI_OK && n == n_want
           && memcmp(ids, want, n * sizeof(*ids)) == 0;
}

#define ENCODES(v, raw, text, ...)                                          \
    CHECK(encodes(v, raw, text, (int32_t[]) { __VA_ARGS__ },                \
                  sizeof((int32_t[]) { __VA_ARGS__ }) / 4))

#define B(c)  ((int32_t) (uint8_t) (c) + 1)

static void
test_good(void)
{
    di_vocab_t    *v = open_vocab(NULL, NULL);
    const int32_t *ends;
    size_t         len;

    CHECK_EQ_INT(di_vocab_size(v), 266);
    CHECK_EQ_INT(di_vocab_special(v, "<bos>", 5), 0);
    CHECK_EQ_INT(di_vocab_special(v, "<think>", 7), 261);
    CHECK_EQ_INT(di_vocab_special(v, "<think>>", 8), 265);
    CHECK_EQ_INT(di_vocab_special(v, "<thin", 5), -1);
    CHECK_EQ_INT(di_vocab_special(v, "abc", 3), -1);
    CHECK(di_vocab_is_special(v, 0) && !di_vocab_is_special(v, 261));
    CHECK(di_vocab_is_added(v, 261) && !di_vocab_is_added(v, 258));
    CHECK(!di_vocab_is_added(v, -1) && !di_vocab_is_added(v, 266));
    CHECK(memcmp(di_vocab_bytes(v, 258, &len), "abc", 3) == 0 && len == 3);
    CHECK(*di_vocab_bytes(v, B('\n'), &len) == '\n' && len == 1);
    (void) di_vocab_bytes(v, 263, &len);
    CHECK_EQ_INT(len, 0);
    CHECK_EQ_INT(di_vocab_bos(v), 0);
    CHECK(di_vocab_add_bos(v));
    CHECK_EQ_INT(di_vocab_end_ids(v, &ends), 1);
    CHECK_EQ_INT(ends[0], 264);
    CHECK(di_vocab_template(v, &len) == NULL);
    CHECK_EQ_STR(di_vocab_model_type(v), "");

    ENCODES(v, false, "abc ab1", 258, B(' '), 257, B('1'));
    ENCODES(v, false, "zz", B('z'), B('z'));
    ENCODES(v, false, "<bos>", B('<'), B('b'), B('o'), B('s'), B('>'));
    ENCODES(v, true, "<bos>a<|im_end|>", 0, B('a'), 264);
    /* The late <think> is looked for only when "<th" has been. */
    ENCODES(v, true, "<think>", 262, B('i'), B('n'), B('k'), B('>'));
    di_vocab_close(v);

    /* Among the late ones the longest counts. */
    v = open_vocab("\"<th\"", "\"<tx\"");
    ENCODES(v, true, "a<think>>b<think>", B('a'), 265, B('b'), 261);
    di_vocab_close(v);

    v = open_vocab("\"ignore_merges\": false", "\"ignore_merges\": true");
    ENCODES(v, false, "zz", 260);
    ENCODES(v, false, "zzz", B('z'), B('z'), B('z'));
    di_vocab_close(v);
}

/* Tokens that merging doesn't make, where a pre-token becomes them even so:
 * long ones, and such as a part of another pre-token spells, too. */
static void
test_words(void)
{
#define HAN    0xe5 + 1, 0x9b + 1, 0xbd + 1
    static const char from[] = "\"ignore_merges\": false, \"vocab\": "
                               "{\"<bos>\": 0";
    di_vocab_t *v = open_vocab(from, "\"ignore_merges\": true, \"vocab\": "
                               "{\"<bos>\": 0, \"zzzzzzzzzzzzzzzzzz\": 263");

    ENCODES(v, false, "zzzzzzzzzzzzzzzzzz1abababababababab1zzzzzzzzzzzzzzzzzz",
            263, B('1'), 257, 257, 257, 257, 257, 257, 257, 257, B('1'), 263);
    di_vocab_close(v);

    v = open_vocab(from, "\"ignore_merges\": true, \"vocab\": "
                   "{\"<bos>\": 0, \"åĽ½\": 263");
    ENCODES(v, false, "国1国国国国国国1国", 263, B('1'), HAN, HAN, HAN, HAN, HAN,
            HAN, B('1'), 263);
    ENCODES(v, false, "国国国国国国1国", HAN, HAN, HAN, HAN, HAN, HAN, B('1'), 263);
    di_vocab_close(v);
#undef HAN
}

static void
test_faults(void)
{
    static const struct {
        const char *from, *to;
        int         code;
        const char *at;
    } faults[] = {
        { "{\"version\"", "[\"version\"", DI_EFORMAT, "$: " },
        { "\"1.0\",", "\"1.0\"", DI_EFORMAT, "$: " },
        { "null,\n", "nul,\n", DI_EFORMAT, "$.truncation: " },
        { "]}}\n", "]}}\n1", DI_EFORMAT, "$: text behind" },
        { "\"model\"", "\"modem\"", DI_EFORMAT, "$.model.vocab: " },
        { "\"vocab\": {", "\"vocab\": [{", DI_EFORMAT, "$.model.vocab: " },
        { "\"ab\": 257", "\"ab\": -1", DI_EFORMAT, "$.model.vocab: entry 257" },
        { "\"ab\": 257", "\"ab\": 257.0", DI_EFORMAT, "$.model.vocab: " },
        { "\"ab\": 257", "\"ab\": 0257", DI_EFORMAT, "$.model.vocab: " },
        { "\"ab\": 257", "\"ab\": 9999999", DI_EUNSUPPORTED,
          "$.model.vocab: " },
        { "\"ab\": 257", "\"ab\": 258", DI_EFORMAT, "$.model.vocab: two" },
        { "\"ab\": 257", "\"ab\\ud800\": 257", DI_EFORMAT,
          "$.model.vocab: entry 257" },
        { "\"ab\": 257", "\"ab\\q\": 257", DI_EFORMAT, "$.model.vocab: " },
        { "\"ab\": 257", "\"a\x80\": 257", DI_EFORMAT, "$.model.vocab: " },
        { "\"zz\": 260", "\"abc\": 260", DI_EFORMAT, "$.model.vocab: two" },
        { "\"merges\"", "\"Merges\"", DI_EFORMAT, "$.model.merges: " },
        { "\"ab c\"", "17", DI_EFORMAT, "$.model.merges[1]: " },
        { "\"ab c\"", "\"abc\"", DI_EFORMAT, "$.model.merges[1]: " },
        { "\"ab c\"", "\"ab d\"", DI_EFORMAT, "$.model.merges[1]: " },
        { "\"ab c\"", "\"ab c\", \"ab\"", DI_EFORMAT,
          "$.model.merges[2]: " },
        { "[\"a\", \"b\"]", "[\"a\"]", DI_EFORMAT, "$.model.merges[0]: " },
        { "[\"a\", \"b\"], \"ab c\"", "\"ab c\", \"a b\"", DI_EUNSUPPORTED,
          "$.model.merges[0]: " },
        { "\"BPE\"", "\"Unigram\"", DI_EUNSUPPORTED, "$.model.type: " },
        { "\"dropout\": null", "\"dropout\": 0.1", DI_EUNSUPPORTED,
          "$.model.dropout: " },
        { "\"normalizers\": []", "\"normalizers\": [{\"type\": \"NFKC\"}]",
          DI_EUNSUPPORTED, "$.normalizer.normalizers[0].type: " },
        { "\"Digits\"", "\"Metaspace\"", DI_EUNSUPPORTED,
          "$.pre_tokenizer.pretokenizers[0].type: \"Metaspace\"" },
        { "\"add_prefix_space\": false", "\"add_prefix_space\": true",
          DI_EUNSUPPORTED, "$.pre_tokenizer.pretokenizers[1]." },
        { "{\"type\": \"ByteLevel\", \"add_prefix_space\": false}",
          "{\"type\": \"Digits\"}", DI_EUNSUPPORTED, "$.pre_tokenizer: " },
        { "\"id\": 261", "\"id\": \"x\"", DI_EFORMAT,
          "$.added_tokens[1].id: " },
        { "\"id\": 261", "\"id\": 258", DI_EFORMAT,
          "$.added_tokens[1].id: " },
        { "\"id\": 261", "\"id\": 262", DI_EFORMAT,
          "$.added_tokens[2].id: " },
        { "\"content\": \"<think>\"", "\"content\": \"\"", DI_EFORMAT,
          "$.added_tokens[1].content: " },
        { "\"lstrip\": false", "\"lstrip\": true", DI_EUNSUPPORTED,
          "$.added_tokens[0].lstrip: " },
    };

    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        char        json[JSON_MAX];
        size_t      len = make(json, faults[i].from, faults[i].to);
        di_vocab_t *v = NULL;
        di_err_t    err = { 0 };
        int         rc = di_vocab_open_hf(json, len, &v, &err);

        CHECK_EQ_INT(rc, faults[i].code);
        if (strncmp(err.text, faults[i].at, strlen(faults[i].at)) != 0)
            CHECK_EQ_STR(err.text, faults[i].at);
        if (rc == DI_OK)
            di_vocab_close(v);
    }
}

/* Other forms of the same added tokens, and what is wrong beside them. */
static void
test_added(void)
{
    static const char *const same[][2] = {
        { "\"id\": 261, \"content\": \"<think>\"",
          "\"content\": \"<think>\" , \"id\" : 261" },
        { "\"content\": \"<think>\"", "\"content\": \"\\u003cthi\\u006ek>\"" },
        { "\"lstrip\": false", "\"lstrip\": null" },
        { "\"lstrip\": false", "\"single_word\": 0, \"x\": [{\"id\": 1}]" },
        { "\"special\": true, \"normalized\": false, \"lstrip\": false",
          "\"lstrip\":false,\"rstrip\":false,\"special\":true" },
        { "null,\n", "null, \"added_tokens\": [{\"id\": 7, \"content\": "
          "\"late\"}],\n" },
        { "null,\n", "null, \"added_tokens\": [{\"id\": 7.5}],\n" },
    };
    static const char *const wrong[][2] = {
        { "\"id\": 261", "\"id\": 261, \"id\": 261" },
        { "\"special\": true", "\"special\": true, \"special\": true" },
        { "\"lstrip\": false", "\"lstrip\": falsy" },
        { "\"lstrip\": false", "\"lstrip\": falser" },
        { "\"id\": 261", "\"id\": 0261" },
        { "\"id\": 261,", "\"id\": 261" },
        { "{\"id\": 261", "[\"id\": 261" },
        { "\"content\": \"<think>\"", "\"content\": \"<\xc3\"" },
    };
    char        json[JSON_MAX];
    di_vocab_t *v, *plain = open_vocab(NULL, NULL);
    size_t      len, want;
    di_err_t    err;

    for (size_t i = 0; i < sizeof(same) / sizeof(same[0]); i++) {
        v = open_vocab(same[i][0], same[i][1]);
        CHECK_EQ_INT(di_vocab_size(v), di_vocab_size(plain));
        for (int32_t id = 0; id < (int32_t) di_vocab_size(plain); id++) {
            const char *a = di_vocab_bytes(v, id, &len);
            const char *b = di_vocab_bytes(plain, id, &want);

            CHECK(len == want && (len == 0 || memcmp(a, b, len) == 0));
            CHECK_EQ_INT(di_vocab_is_added(v, id),
                         di_vocab_is_added(plain, id));
            CHECK_EQ_INT(di_vocab_is_special(v, id),
                         di_vocab_is_special(plain, id));
        }
        di_vocab_close(v);
    }
    di_vocab_close(plain);

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        len = make(json, wrong[i][0], wrong[i][1]);
        err = (di_err_t) { 0 };
        CHECK_EQ_INT(di_vocab_open_hf(json, len, &v, &err), DI_EFORMAT);
        CHECK(strstr(err.text, "$.added_tokens") != NULL);
    }
}

/* Characters and what is none at each place of a spelling. */
static void
test_spellings(void)
{
    static const char *const good[] = {
        "\xc2\x80", "\xc3\xa9", "\xdf\xbf", "\xe2\x82\xac", "\xf0\x9f\x98\x80",
        "\\n", "\\u00e9", "\x7f", "\xc4\xa0\xc4\xa0", "!", "#", "[", "]",
    };
    static const char *const bad[] = {
        "\xc3", "\x80", "\xc3\xc3\xa9", "\xc3\xa9\xa9", "\xc0\x80", "\xc1\xbf",
        "\xe2\x82", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xff",
        "\x1f", "\n", "\\x", "\"",
    };
    const size_t n_good = sizeof(good) / sizeof(good[0]);
    const size_t n_bad = sizeof(bad) / sizeof(bad[0]);
    char         json[JSON_MAX], key[64];
    size_t       len, i, before, behind;
    di_vocab_t  *v;
    int          rc;

    for (i = 0; i < n_good + n_bad; i++) {
        for (before = 1; before < 11; before++) {
            for (behind = 0; behind < 5; behind += 4) {
                snprintf(key, sizeof(key), "\"%.*s%s%.*s\": 260", (int) before,
                         "zzzzzzzzzz",
                         i < n_good ? good[i] : bad[i - n_good],
                         (int) behind, "zzzz");
                len = make(json, "\"zz\": 260", key);
                rc = di_vocab_open_hf(json, len, &v, NULL);
                CHECK_EQ_INT(rc == DI_OK, i < n_good);
                if (rc == DI_OK)
                    di_vocab_close(v);
            }
        }
    }
}

/* Every beginning of the text is an error, and none is read past its end. */
static void
test_truncated(void)
{
    char        json[JSON_MAX];
    size_t      len = make(json, NULL, NULL), n_ok = 0;
    di_vocab_t *v;

    for (size_t n = 0; n + 1 < len; n++) {
        char *part = malloc(n + 1);

        if (part == NULL)
            abort();
        memcpy(part + 1, json, n);
        n_ok += di_vocab_open_hf(part + 1, n, &v, NULL) == DI_OK;
        free(part);
    }
    CHECK_EQ_INT(n_ok, 0);
}

static void
test_nomem(void)
{
    char        json[JSON_MAX];
    size_t      len = make(json, NULL, NULL);
    di_vocab_t *v = NULL;
    int         n, rc;

    for (n = 0; n < 2000; n++) {
        nomem_after(n);
        rc = di_vocab_open_hf(json, len, &v, NULL);
        if (!nomem_off())
            break;
        /* jansson tells no want of memory from a fault of the text; the C
         * library's sort does without. */
        CHECK(rc == DI_ENOMEM || rc == DI_EFORMAT || rc == DI_OK);
        if (rc == DI_OK)
            di_vocab_close(v);
    }
    CHECK_EQ_INT(rc, DI_OK);
    CHECK(n >= 20 * NOMEM);
    di_vocab_close(v);
}

/* --------------------------------------------------------------- folders -- */

static char folder[] = "/tmp/vocab_hf-XXXXXX";

static void
put_file(const char *name, const char *text)
{
    char  path[256];
    FILE *f;

    (void) snprintf(path, sizeof(path), "%s/%s", folder, name);
    f = fopen(path, "w");
    if (f == NULL || fputs(text, f) < 0 || fclose(f) != 0) {
        perror(path);
        exit(1);
    }
}

static void
remove_file(const char *name)
{
    char path[256];

    (void) snprintf(path, sizeof(path), "%s/%s", folder, name);
    (void) unlink(path);
}

static void
folder_fault(const char *name, const char *text, const char *at)
{
    di_vocab_t *v;
    di_err_t    err = { 0 };

    put_file(name, text);
    CHECK_EQ_INT(di_vocab_open_path(folder, &v, &err), DI_EFORMAT);
    if (strncmp(err.text, at, strlen(at)) != 0)
        CHECK_EQ_STR(err.text, at);
    remove_file(name);
}

static void
test_folder(void)
{
    char           json[JSON_MAX];
    di_vocab_t    *v = NULL;
    di_err_t       err = { 0 };
    const int32_t *ends;
    size_t         len;

    if (mkdtemp(folder) == NULL)
        exit(1);
    CHECK_EQ_INT(di_vocab_open_path(folder, &v, &err), DI_EIO);
    (void) make(json, NULL, NULL);
    put_file("tokenizer.json", json);
    CHECK_EQ_INT(di_vocab_open_path(folder, &v, NULL), DI_OK);
    CHECK_EQ_INT(di_vocab_bos(v), 0);
    di_vocab_close(v);

    folder_fault("tokenizer_config.json", "{\"bos_token\": \"<nothing>\"}",
                 "tokenizer_config.json: $.bos_token: ");
    folder_fault("generation_config.json", "{\"eos_token_id\": [1, 266]}",
                 "generation_config.json: $.eos_token_id: ");
    folder_fault("config.json", "{\"model_type\": ", "config.json: ");

    put_file("tokenizer_config.json", "{\"bos_token\": {\"content\": "
             "\"<|im_end|>\"}, \"eos_token\": \"<think>\", \"add_bos_token\": "
             "false, \"chat_template\": [{\"name\": \"tools\", \"template\": "
             "\"T\"}, {\"name\": \"default\", \"template\": \"{{ x }}\"}]}");
    put_file("generation_config.json", "{\"eos_token_id\": [0, 261]}");
    put_file("config.json", "{\"model_type\": \"small\"}");
    CHECK_EQ_INT(di_vocab_open_path(folder, &v, NULL), DI_OK);
    CHECK_EQ_INT(di_vocab_bos(v), 264);
    CHECK(!di_vocab_add_bos(v));
    CHECK_EQ_INT(di_vocab_end_ids(v, &ends), 3);
    CHECK(di_vocab_is_end(v, 0) && di_vocab_is_end(v, 261));
    CHECK_EQ_STR(di_vocab_template(v, &len), "{{ x }}");
    CHECK_EQ_INT(len, 7);
    CHECK_EQ_STR(di_vocab_model_type(v), "small");
    di_vocab_close(v);

    put_file("chat_template.jinja", "other");
    CHECK_EQ_INT(di_vocab_open_path(folder, &v, NULL), DI_OK);
    CHECK_EQ_STR(di_vocab_template(v, &len), "other");
    di_vocab_close(v);
    CHECK_EQ_INT(di_vocab_open_path("t/data/tokenizer/llama3.gguf", &v, NULL),
                 DI_OK);
    CHECK_EQ_STR(di_vocab_model_type(v), "llama");
    di_vocab_close(v);

    remove_file("tokenizer.json");
    remove_file("tokenizer_config.json");
    remove_file("generation_config.json");
    remove_file("config.json");
    remove_file("chat_template.jinja");
    (void) rmdir(folder);
}

/* --------------------------------------------------------------- cutting -- */

static size_t
make_text(char text[TEXT_MAX])
{
    static const char *const parts[] = {
        " the", "word", "'s", "'", " ", "  ", "\n", "\r\n", "\t", "12", "3456",
        "!", "?!", " -", "é", "e\xcc\x81", "的", "中文", "かな", "，", "。\n",
        "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\x01", "\xff", "\xe4\xb8", "A",
    };
    size_t len = 0;

    for (uint32_t n = draw(200); n > 0; n--) {
        const char *s = parts[draw(sizeof(parts) / sizeof(parts[0]))];

        memcpy(text + len, s, strlen(s));
        len += strlen(s);
    }
    return len;
}

/* The parts of a cut text have the ids of the whole. */
static void
test_split(const di_vocab_t *v)
{
    static int32_t whole[TEXT_MAX], parts[TEXT_MAX];
    size_t         n_cut = 0, n_same = 0, n_all = 0;
    di_tok_t      *tok;

    if (di_tok_open(v, &tok) != DI_OK)
        abort();
    for (int i = 0; i < 2000; i++) {
        char   text[TEXT_MAX];
        size_t len = make_text(text), at, n, first, second;

        at = di_vocab_split(v, text, len, draw((uint32_t) len + 1));
        (void) di_tok_encode(tok, text, len, whole, TEXT_MAX, &n);
        (void) di_tok_encode(tok, text, at, parts, TEXT_MAX, &first);
        (void) di_tok_encode(tok, text + at, len - at, parts + first,
                             TEXT_MAX - first, &second);
        n_all++;
        n_cut += at < len;
        n_same += n == first + second
                  && memcmp(whole, parts, n * sizeof(*whole)) == 0;
    }
    CHECK_EQ_INT(n_same, n_all);
    CHECK(n_cut > n_all / 2);
    di_tok_close(tok);
}

static void
test_splits(void)
{
    static const char *const paths[] = {
        "t/data/tokenizer/gpt2.gguf", "t/data/tokenizer/qwen2.gguf",
        "t/data/tokenizer/llama3.gguf",
    };
    static const char deepseek[] = "{\"type\": \"Split\", \"pattern\": "
        "{\"Regex\": \"\\\\p{N}{1,3}\"}, \"behavior\": \"Isolated\"}, "
        "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"[一-龥぀-ゟ゠-ヿ]+\"}, "
        "\"behavior\": \"Isolated\"}, {\"type\": \"Split\", \"pattern\": "
        "{\"Regex\": \"[!\\\"#$%&'()*+,\\\\-./:;<=>?@\\\\[\\\\\\\\\\\\]^_`{|}~]"
        "[A-Za-z]+|[^\\r\\n\\\\p{L}\\\\p{P}\\\\p{S}]?[\\\\p{L}\\\\p{M}]+| ?"
        "[\\\\p{P}\\\\p{S}]+[\\r\\n]*|\\\\s*[\\r\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"}"
        ", \"behavior\": \"Isolated\"}, {\"type\": \"ByteLevel\", "
        "\"use_regex\": false}";
    di_vocab_t *v;

    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        CHECK_EQ_INT(di_vocab_open_path(paths[i], &v, NULL), DI_OK);
        test_split(v);
        di_vocab_close(v);
    }
    v = open_vocab("{\"type\": \"Digits\", \"individual_digits\": true},"
                   "{\"type\": \"ByteLevel\", \"add_prefix_space\": false}",
                   deepseek);
    test_split(v);
    di_vocab_close(v);
}

int
main(int argc, char **argv)
{
    seed = argc > 1 ? strtoull(argv[1], NULL, 0) : (uint64_t) time(NULL);
    printf("seed %" PRIu64 "\n", seed);
    test_good();
    test_words();
    test_faults();
    test_added();
    test_spellings();
    test_truncated();
    test_nomem();
    test_folder();
    test_splits();
    return check_done("vocab_hf");
}
