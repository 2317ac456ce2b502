/*
 * parse.c - the parser of model output, by itself.
 *
 * Named scripts first, in every chunking into two and one symbol at a time,
 * as tokens and as text, text of ours also in every two parts of bytes; then
 * random ones in random chunkings.  What Recipe's
 * parser must do to the byte is in t/vectors; here it is only held against
 * ours where output is well-formed.
 */

#include <jansson.h>
#include <time.h>

#include "check.h"
#include "nomem.h"
#include "parse_model.h"

#define ROUNDS  3000

#define D   "\1"
#define TH  "\2"

static di_vocab_t *vocab;

static const di_str_t stops[] = { { "STOP", 4 }, { "abab", 4 } };

static di_parse_options_t
options(di_spell_t spell, di_start_t start)
{
    return (di_parse_options_t) { .spell = spell, .start = start,
                                  .vocab = vocab, .tools = true };
}

/* Feed a script with a flush wherever `cut` says, and record what came. */
static int
feed(const di_parse_options_t *o, const char *script, size_t n, bool text,
     bool (*cut)(size_t i, size_t arg), size_t arg, record_t *r)
{
    di_rules_t *rules;
    di_parse_t *p;
    char        spelled[1 << 16];
    size_t      i, from = 0, len;
    bool        alone, given = false;
    int         stopped;

    r->len = r->calls = 0;
    r->last = -1;
    r->broken = false;
    CHECK_EQ_INT(di_rules_open(o, &rules), DI_OK);
    CHECK_EQ_INT(di_parse_open(rules, record_delta, r, &p), DI_OK);

    for (i = 0; i < n; i++) {
        alone = !o->places && from == i && (i + 1 == n || cut(i, arg));
        if (!text)
            given = di_parse_token(p, parse_id((unsigned char) script[i]),
                                   true, alone);
        CHECK(alone || !given);
        if (i + 1 < n && !cut(i, arg))
            continue;
        if (text) {
            len = parse_spell(script + from, i + 1 - from, spelled);
            di_parse_text(p, spelled, len);
        }
        from = i + 1;
        if (!given)
            CHECK(di_parse_flush(p));
    }

    di_parse_finish(p);
    CHECK(!di_parse_failed(p));
    CHECK(!r->broken || o->official);
    stopped = di_parse_stopped(p);
    di_parse_close(p);
    di_rules_close(rules);
    record_add(r, "", 1);
    return stopped;
}

static bool
cut_never(size_t i, size_t arg)
{
    (void) i;
    (void) arg;
    return false;
}

static bool
cut_always(size_t i, size_t arg)
{
    (void) i;
    (void) arg;
    return true;
}

static bool
cut_at(size_t i, size_t arg)
{
    return i == arg;
}

static bool
cut_random(size_t i, size_t arg)
{
    (void) i;
    return (size_t) random() % arg == 0;
}

/* The same as text cut into parts of `at` bytes and the rest, or, for 0, of
 * one byte each: in the middle of characters, and of markers. */
static void
feed_bytes(const di_parse_options_t *o, const char *spelled, size_t len,
           size_t at, record_t *r)
{
    di_rules_t *rules;
    di_parse_t *p;
    size_t      from, part;

    r->len = r->calls = 0;
    r->last = -1;
    r->broken = false;
    CHECK_EQ_INT(di_rules_open(o, &rules), DI_OK);
    CHECK_EQ_INT(di_parse_open(rules, record_delta, r, &p), DI_OK);

    for (from = 0; from < len; from += part) {
        part = at == 0 ? 1 : from < at ? at : len - at;
        di_parse_text(p, spelled + from, part);
        di_parse_flush(p);
    }

    di_parse_finish(p);
    CHECK(!di_parse_failed(p));
    di_parse_close(p);
    di_rules_close(rules);
    record_add(r, "", 1);
}

static void
expect(const di_parse_options_t *o, const char *script, const char *want)
{
    static record_t r;
    char            spelled[1 << 14];
    size_t          n = strlen(script), i, len;
    int             text;

    len = parse_spell(script, n, spelled);
    for (i = 0; i < len && !o->official; i++) {
        feed_bytes(o, spelled, len, i, &r);
        CHECK_EQ_STR(r.text, want);
    }

    for (text = 0; text < 2; text++) {
        (void) feed(o, script, n, text, cut_never, 0, &r);
        CHECK_EQ_STR(r.text, want);
        (void) feed(o, script, n, text, cut_always, 0, &r);
        CHECK_EQ_STR(r.text, want);
        for (i = 0; i + 1 < n; i++) {
            (void) feed(o, script, n, text, cut_at, i, &r);
            CHECK_EQ_STR(r.text, want);
        }
    }
}

#define BLOCK(calls)  "<" D " calls>\n" calls "</" D " calls>"
#define CALL(name, params)                                                   \
    "<" D " invoke name=\"" name "\">\n" params "</" D " invoke>\n"
#define PARAM(key, string, value)                                            \
    "<" D " parameter name=\"" key "\" string=\"" string "\">" value         \
    "</" D " parameter>\n"

/* Recipe's parser and ours agree. */
static void
check_well_formed(void)
{
    static const struct { di_start_t start; const char *script, *want; } t[] = {
        { DI_START_ANSWER, "Hello", "T:Hello" },
        { DI_START_REASONING, "\n\nplan\n\n" TH "\n\nanswer\n",
          "R:plan|T:answer\n" },
        { DI_START_IN_REASONING, "\nplan" TH "x", "R:\nplan|T:x" },
        { DI_START_IN_ANSWER, "\nmore", "T:\nmore" },
        { DI_START_REASONING, TH, "" },
        { DI_START_ANSWER, "Sure.\n\n" BLOCK(CALL("get",
          PARAM("city", "true", "Pa\"ris\n\\") PARAM("n", "false", "[1, {}]"))
          CALL("put", "\n")),
          "T:Sure.|C:get|A:{\"city\": \"Pa\\\"ris\\n\\\\\", \"n\": [1, {}]}"
          "|C:put|A:{}" },
        { DI_START_REASONING, "plan\n\n" BLOCK(CALL("get", "")),
          "R:plan|C:get|A:{}" },
        { DI_START_IN_CALLS, CALL("get", PARAM("a", "false", "1.0e5"))
          "</" D " calls>", "C:get|A:{\"a\": 1.0e5}" },
        { DI_START_ANSWER, "<" D "tool_calls>\n<" D "invoke name=\"f\">\n<" D
          "parameter name=\"a\" string=\"true\"></" D "parameter>\n</" D
          "invoke>\n</" D "tool_calls>", "C:f|A:{\"a\": \"\"}" },
        { DI_START_ANSWER, "a < b </ c </" "think", "T:a < b </ c </think" },
    };
    /* Without tools: markup is text, and newlines before it are as before any
     * answer (the library's own results). */
    static const struct { const char *script, *want; } plain[] = {
        { "\n\n<" D " calls>\nx", "T:<" PARSE_DSML " calls>\nx" },
        { "a\n\n<" D " x\n\n", "T:a\n\n<" PARSE_DSML " x\n\n" },
        { "\n\n  x\n", "T:  x\n" },
        { "\n\n", "" },
    };
    di_parse_options_t o;
    size_t             i;
    int                official;

    for (official = 0; official < 2; official++) {
        for (i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
            o = options(DI_SPELL_DSML, t[i].start);
            o.official = official;
            expect(&o, t[i].script, t[i].want);
        }

        o = options(DI_SPELL_DSML, DI_START_ANSWER);
        o.official = official;
        o.tools = false;
        for (i = 0; i < sizeof(plain) / sizeof(plain[0]); i++)
            expect(&o, plain[i].script, plain[i].want);
    }
}

/* B14, B15, B17 and kin: nothing is lost, nothing is half a call, and the
 * arguments of whole calls are JSON. */
static void
check_malformed(void)
{
    static const struct { const char *script, *want; } t[] = {
        /* No call comes: the markup is text. */
        { "x <" D " y", "T:x <" PARSE_DSML " y" },
        { "x\n<" D " calls>\n", "T:x\n<" PARSE_DSML " calls>\n" },
        { "x<" D " calls>\n</" D " calls>z",
          "T:x<" PARSE_DSML " calls>\n</" PARSE_DSML " calls>z" },
        { "<" D " calls>\n<" D " invoke name=\"ge",
          "T:<" PARSE_DSML " calls>\n<" PARSE_DSML " invoke name=\"ge" },
        { "<" D " calls>\n<" D " invoke name=\"ge\nt\">x",
          "T:<" PARSE_DSML " calls>\n<" PARSE_DSML " invoke name=\"ge\nt\">x" },
        { "<" D " calls>\n<" D " invoke name=\"\">x",
          "T:<" PARSE_DSML " calls>\n<" PARSE_DSML " invoke name=\"\">x" },

        /* Text beside calls. */
        { BLOCK(CALL("f", "")) "\nafter", "C:f|A:{}|T:after" },
        { BLOCK("junk " CALL("f", "")) "",
          "T:<" PARSE_DSML " calls>\njunk |C:f|A:{}" },
        { BLOCK(CALL("f", "") "more" CALL("g", "")),
          "C:f|A:{}|T:more|C:g|A:{}" },
        { BLOCK(CALL("f", "a b" PARAM("k", "true", "v") "c")),
          "C:f|A:{\"k\": \"v\"}|T:a bc" },
        { BLOCK(CALL("f", "")) "<" D " x>", "C:f|A:{}|T:<" PARSE_DSML " x>" },
        { BLOCK(CALL("f", "")) "\n\n" BLOCK(CALL("g", "")),
          "C:f|A:{}|C:g|A:{}" },

        /* Keys, types and values. */
        { BLOCK(CALL("f", PARAM("city name", "true", "v"))),
          "C:f|A:{\"city name\": \"v\"}" },
        { BLOCK(CALL("f", PARAM("a\"b\\", "true", "v"))),
          "C:f|A:{\"a\\\"b\\\\\": \"v\"}" },
        { BLOCK(CALL("f", "<" D " parameter name=\"k\">v</" D
                     " parameter>\n")), "C:f|A:{\"k\": \"v\"}" },
        { BLOCK(CALL("f", PARAM("k", "yes", "v"))),
          "C:f|A:{\"k\": \"v\"}|T:yes" },
        { BLOCK(CALL("f", PARAM("k", "false", "Paris \"x\""))),
          "C:f|A:{\"k\": \"Paris \\\"x\\\"\"}" },
        { BLOCK(CALL("f", PARAM("k", "false", ""))), "C:f|A:{\"k\": \"\"}" },
        { BLOCK(CALL("f", PARAM("k", "false", " 5 "))),
          "C:f|A:{\"k\":  5 }" },
        { BLOCK(CALL("f", PARAM("k", "true", "a <" D " b </" D " c"))),
          "C:f|A:{\"k\": \"a <" PARSE_DSML " b </" PARSE_DSML " c\"}" },

        /* What isn't closed. */
        { "<" D " invoke name=\"f\">\n</" D " invoke>", "C:f|A:{}" },
        { "<" D " calls><" D " invoke name=\"f\"><" D " invoke name=\"g\"></"
          D " calls>", "C:f|A:{}|C:g|A:{}" },
        { "<" D " calls><" D " invoke name=\"f\"><" D " parameter name=\"k\" "
          "string=\"true\">v</" D " invoke></" D " calls>",
          "C:f|A:{\"k\": \"v\"}" },
        { "<" D " calls><" D " invoke name=\"f\"><" D " parameter name=\"k\" "
          "string=\"false\">tru", "C:f|A:{\"k\": tru" },
    };
    di_parse_options_t o = options(DI_SPELL_DSML, DI_START_ANSWER);
    size_t             i;

    for (i = 0; i < sizeof(t) / sizeof(t[0]); i++)
        expect(&o, t[i].script, t[i].want);
}

/* A marker that is spelled by ordinary tokens is text, and so it is where
 * tools are not offered. */
static void
check_seal(void)
{
    static record_t    r;
    di_parse_options_t o = options(DI_SPELL_DSML, DI_START_REASONING);
    const char        *s = "a" PARSE_THINK "b<" PARSE_DSML " calls>";

    (void) feed(&o, s, strlen(s), false, cut_always, 0, &r);
    CHECK_EQ_STR(r.text, "R:a" PARSE_THINK "b<" PARSE_DSML " calls>");

    o = options(DI_SPELL_DSML, DI_START_ANSWER);
    o.tools = false;
    expect(&o, "x\n" BLOCK(CALL("f", "")),
           "T:x\n<" PARSE_DSML " calls>\n<" PARSE_DSML " invoke name=\"f\">\n"
           "</" PARSE_DSML " invoke>\n</" PARSE_DSML " calls>");
}

static void
check_json_mode(void)
{
    di_parse_options_t o = options(DI_SPELL_DSML, DI_START_ANSWER);

    o.json = true;
    expect(&o, "{\"a\":1}", "T:{\"a\":1}");
    expect(&o, "```json\n{\"a\":1}\n```\n", "T:{\"a\":1}");
    expect(&o, "```\n[1]\n```", "T:[1]");
    expect(&o, "Here: {}", "T:Here: {}");
    expect(&o, "{}\n\n" BLOCK(CALL("f", "")), "T:{}|C:f|A:{}");
}

static void
check_other_spellings(void)
{
    di_parse_options_t o = options(DI_SPELL_PLAIN, DI_START_ANSWER);

    expect(&o, "\n\nx </" "think>", "T:\n\nx </think>");

    o = options(DI_SPELL_THINK, DI_START_REASONING);
    expect(&o, "\nplan\n" TH "\n\nanswer\n", "R:plan|T:answer\n");
    expect(&o, "plan", "R:plan");
    o.start = DI_START_ANSWER;
    expect(&o, "\3\nplan\n" TH "\n\nanswer\n", "R:plan|T:answer\n");
    expect(&o, "answer" TH "x", "T:answerx");
}

/* Calls as JSON.  The vocabulary has no <tool_call>, so it is text. */
static void
check_json_calls(void)
{
    static const struct { const char *script, *want; } qwen[] = {
        { "Sure.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, "
          "\"}\\\"\"]}}\n</tool_call>\n<tool_call>\n{\"name\": \"g\", "
          "\"arguments\": {}}\n</tool_call>",
          "T:Sure.|C:f|A:{\"a\": [1, \"}\\\"\"]}|C:g|A:{}" },
        { "<tool_call>{\"arguments\": {\"a\": 1}, \"name\": \"f\"}</tool_call>"
          "x", "C:f|A:{\"a\":1}|T:x" },
        { "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}"
          "</tool_call>", "C:f|A:{\"a\": 1}" },
        { "<tool_call>{\"name\": \"f\"}</tool_call>", "C:f|A:{}" },
        { "\3plan\n" TH "\n\nx", "R:plan|T:x" },
        { "a\n<tool_call>\nno call</tool_call> b",
          "T:a\n<tool_call>\nno call</tool_call>b" },
        { "<tool_call>{\"name\": \"f\", \"argu",
          "T:<tool_call>{\"name\": \"f\", \"argu" },
        { "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": ",
          "C:f|A:{\"a\": " },
        { "<tool_call>{\"name\": \"f\", \"arguments\": {}} more</tool_call>",
          "C:f|A:{}|T:more" },
    };
    static const struct { const char *script, *want; } llama[] = {
        { "{\"name\": \"f\", \"parameters\": {\"a\": \"b\"}}",
          "C:f|A:{\"a\": \"b\"}" },
        { "\n{\"type\": \"function\", \"name\": \"f\", \"parameters\": {}}",
          "C:f|A:{}" },
        { "{\"answer\": 5}", "T:{\"answer\": 5}" },
        { "See {\"name\": \"f\", \"parameters\": {}}",
          "T:See {\"name\": \"f\", \"parameters\": {}}" },
        { "Hello", "T:Hello" },
        { "\4{\"name\": \"f\", \"parameters\": {}}", "C:f|A:{}" },
        { "\4brave_search.call(query=\"a \"b\", \\c\", n=\"\")",
          "C:brave_search|A:{\"query\": \"a \\\"b\\\", \\\\c\","
          " \"n\": \"\"}" },
        { "\4f.call()\n", "C:f|A:{}" },
        { "\4f.call(x=1)", "T:<|python_tag|>f.call(x=1)" },
        { "\4print(\"hi\")", "T:<|python_tag|>print(\"hi\")" },
        { "f.call()", "T:f.call()" },
        { "x\4{\"name\": \"f\", \"parameters\": {}}",
          "T:x<|python_tag|>{\"name\": \"f\", \"parameters\": {}}" },
        { "<{\"name\": \"f\", \"parameters\": {}}",
          "T:<{\"name\": \"f\", \"parameters\": {}}" },
        { "<|python\n", "T:<|python\n" },
        { "<\4x", "T:<<|python_tag|>x" },
    };
    di_parse_options_t o = options(DI_SPELL_HERMES, DI_START_ANSWER);
    size_t             i;

    for (i = 0; i < sizeof(qwen) / sizeof(qwen[0]); i++)
        expect(&o, qwen[i].script, qwen[i].want);

    o.start = DI_START_REASONING;        /* the prompt opened it            */
    expect(&o, "plan\n" TH "\n\nx", "R:plan|T:x");

    o = options(DI_SPELL_LLAMA3, DI_START_ANSWER);
    for (i = 0; i < sizeof(llama) / sizeof(llama[0]); i++)
        expect(&o, llama[i].script, llama[i].want);

    o.tools = false;
    expect(&o, llama[0].script, "T:{\"name\": \"f\", \"parameters\": {\"a\": "
           "\"b\"}}");
}

/* A stop string ends the answer, wherever it is split, and only there. */
static void
check_stops(void)
{
    static record_t    r;
    di_parse_options_t o = options(DI_SPELL_DSML, DI_START_REASONING);

    o.stops = stops;
    o.n_stops = 2;
    expect(&o, "STOP" TH "xSTOPy", "R:STOP|T:x");
    expect(&o, "r" TH "aSTOSTOPz", "R:r|T:aSTO");
    expect(&o, "r" TH "ababab", "R:r");
    expect(&o, "r" TH "abaSTO", "R:r|T:abaSTO");
    expect(&o, BLOCK(CALL("f", PARAM("k", "true", "STOP"))),
           "C:f|A:{\"k\": \"STOP\"}");
    expect(&o, BLOCK(CALL("f", "")) " xSTOPy", "C:f|A:{}|T:x");
    CHECK_EQ_INT(feed(&o, TH "STOP", 5, false, cut_never, 0, &r), 0);
    CHECK_EQ_INT(feed(&o, TH "abab", 5, false, cut_never, 0, &r), 1);
    CHECK_EQ_INT(feed(&o, TH "aba", 4, false, cut_never, 0, &r), -1);
}

/* Bytes that are no UTF-8 become U+FFFD, counted, also at the end. */
static void
check_characters(void)
{
    di_parse_options_t o = options(DI_SPELL_DSML, DI_START_ANSWER);

    expect(&o, "\xe4\xbd\xa0\xf0\x9f", "T:\xe4\xbd\xa0\xef\xbf\xbd");
    expect(&o, "\xe4" TH "\xbd" "x", "T:\xef\xbf\xbd\xef\xbf\xbdx");
    expect(&o, "a\xff" BLOCK(CALL("f", PARAM("k", "true", "\xe4\xbd"))),
           "T:a\xef\xbf\xbd|C:f|A:{\"k\": \"\xef\xbf\xbd\"}");
}

/* ----------------------------------------------------------------- random */

static const char *const fragments[] = {
    "<" D " calls>", "<" D "tool_calls>", "</" D " calls>", "</" D
    "tool_calls>", "<" D " invoke name=\"", "<" D "invoke name=\"", "\">\n",
    "</" D " invoke>", "<" D " parameter name=\"", "\" string=\"true\">",
    "\" string=\"false\">", "</" D " parameter>", "<", "</", ("<" D),
    "\n", "\n\n", " ", TH, "\xe4\xbd\xa0", "\xf0\x9f", "\xff", "ST",
    "OP", "abab", "{", "[1]",
    "0x", "true", "invoke name", "calls>", "<tool_call>", "</tool_call>",
    "{\"name\": \"f\", ", "\"arguments\": {", "}", "}}", "\3",
};

static size_t
random_script(char *s, unsigned *words)
{
    static const char *const call = "<" D " invoke name=\"f\">\n<" D
                      " parameter name=\"k\" string=\"false\">";
    size_t n = 0, i, pieces = (size_t) random() % 30;

    *words = 0;
    for (i = 0; i < pieces; i++) {
        if (random() % 3 == 0)
            n += (size_t) sprintf(s + n, "q%cw", 'a' + (int) (*words)++);
        else if (random() % 8 == 0)
            n += (size_t) sprintf(s + n, "%s", call);
        else
            n += (size_t) sprintf(s + n, "%s", fragments[(size_t) random()
                                  % (sizeof(fragments) / sizeof(*fragments))]);
    }

    return n;
}

/* The arguments of all calls but the last are JSON; a parameter that is to be
 * an array or an object is as the model wrote it. */
static void
check_arguments(const char *record)
{
    const char *p = record, *end;
    json_t     *v;

    while ((p = strstr(p, "|A:")) != NULL && strstr(p, "|C:") != NULL) {
        p += 3;
        end = strchr(p, '|');
        v = json_loadb(p, (size_t) (end - p), JSON_ALLOW_NUL, NULL);
        CHECK(v != NULL || memchr(p + 1, '{', (size_t) (end - p) - 1) != NULL
              || memchr(p + 1, '[', (size_t) (end - p) - 1) != NULL);
        json_decref(v);
    }
}

static void
check_random(void)
{
    static record_t    whole, cut;
    di_parse_options_t o;
    char               script[4096], word[4] = "q?w";
    unsigned           words, i;
    size_t             n = random_script(script, &words);
    int                k, text;

    o = options((di_spell_t) (random() % (DI_SPELL_LLAMA3 + 1)),
                (di_start_t) (random() % 5));
    if (random() % 2 != 0)
        o.spell = DI_SPELL_DSML;
    o.json = random() % 4 == 0;
    o.tools = random() % 8 != 0;
    o.stops = stops;
    o.n_stops = random() % 2 != 0 ? 2 : 0;
    o.places = random() % 2 != 0;

    for (text = 1; text >= 0; text--) {
        (void) feed(&o, script, n, text, cut_never, 0, &whole);
        for (k = 0; k < 3; k++) {
            (void) feed(&o, script, n, text, k == 0 ? cut_always : cut_random,
                        1 + (size_t) random() % 6, &cut);
            CHECK_EQ_STR(cut.text, whole.text);
        }
    }

    check_arguments(whole.text);
    for (i = 0; i < words && o.n_stops == 0; i++) {
        word[1] = (char) ('a' + i);
        CHECK(strstr(whole.text, word) != NULL);
    }

    /* The official parser doesn't depend on chunking where it ends a
     * character. */
    o.official = true;
    o.json = false;
    (void) feed(&o, script, n, true, cut_never, 0, &whole);
    (void) feed(&o, script, n, true, cut_random, 3, &cut);
    for (i = 0; i < n && (unsigned char) script[i] < 0x80; i++) {
        /* void */
    }
    if (i == n)
        CHECK_EQ_STR(cut.text, whole.text);
}

static void
check_nomem(void)
{
    static const char  script[] = "r\n" TH "xS\xf0\x9f" BLOCK(CALL("f",
                                  PARAM("k", "false", "x") PARAM("l", "true",
                                  "\n"))) "y";
    static record_t    r;
    di_parse_options_t o = options(DI_SPELL_DSML, DI_START_REASONING);
    di_rules_t        *rules = NULL;
    di_parse_t        *p = NULL;
    bool               fine;
    size_t             i;
    int                n, official;

    o.stops = stops;
    o.n_stops = 2;

    for (official = 0; official < 2; official++) {
        o.official = official;
        for (n = 0; ; n++) {
            memset(&r, 0, sizeof(r));
            rules = NULL;
            p = NULL;
            nomem_after(n);
            fine = di_rules_open(&o, &rules) == DI_OK
                   && di_parse_open(rules, record_delta, &r, &p) == DI_OK;
            for (i = 0; fine && i < sizeof(script) - 1; i++) {
                di_parse_token(p, parse_id((unsigned char) script[i]), true,
                               false);
                if (i % 3 == 0)
                    di_parse_flush(p);
                fine = !di_parse_failed(p);
            }
            if (fine) {
                di_parse_finish(p);
                fine = !di_parse_failed(p);
            }
            di_parse_close(p);
            di_rules_close(rules);
            if (!nomem_off())
                break;
            CHECK(!fine);
        }
        CHECK(fine);
    }
}

int
main(void)
{
    const char *s = getenv("SEED");
    unsigned    seed = s != NULL ? (unsigned) strtoul(s, NULL, 10)
                       : (unsigned) time(NULL);
    int         i;

    srandom(seed);
    printf("parse: seed %u\n", seed);
    vocab = parse_vocab(NULL, 0);

    check_well_formed();
    check_malformed();
    check_seal();
    check_json_mode();
    check_other_spellings();
    check_json_calls();
    check_stops();
    check_characters();
    for (i = 0; i < ROUNDS; i++)
        check_random();
    check_nomem();

    di_vocab_close(vocab);
    return check_done("parse");
}
