/*
 * output.c - grammars of whole outputs, of every dialect.
 *
 * Cases say of outputs whether they are held, and what the parser makes of
 * those that are.  Then random walks through the grammars: whatever they
 * write, the parser must find well-formed calls of the tools that may be
 * called, with arguments that satisfy their schemas, and nothing else that
 * looks like one.
 */

#include <time.h>

#include "nomem.h"
#include "output_model.h"
#include "tokenizer/api/json.h"

static di_vocab_t      *vocab;
static di_gram_index_t *index_of;
static uint64_t         seed;

static uint32_t
draw(uint32_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t) ((seed >> 32) * n >> 32);
}

/* ------------------------------------------------------------------ cases */

#define FUNCTION(name, strict, parameters)                                  \
    "{\"type\":\"function\",\"function\":{\"name\":\"" name "\","          \
    "\"strict\":" strict ",\"parameters\":" parameters "}}"
#define CLOSED(properties, required)                                        \
    "{\"type\":\"object\",\"properties\":" properties ",\"required\":"      \
    required ",\"additionalProperties\":false}"

#define WEATHER  FUNCTION("get_weather", "true", CLOSED(                    \
    "{\"city\":{\"type\":\"string\",\"minLength\":2},\"unit\":{\"enum\":"   \
    "[\"C\",\"F\"]},\"days\":{\"type\":[\"integer\",\"null\"]}}",           \
    "[\"city\"]"))
#define SCRIPT   FUNCTION("run", "false", CLOSED(                           \
    "{\"code\":{\"type\":\"string\"}}", "[\"code\"]"))
#define DEEP     FUNCTION("deep", "true", CLOSED(                           \
    "{\"a b\":{\"$ref\":\"#/$defs/x\"},\"n\":{\"anyOf\":[{\"type\":"        \
    "\"string\",\"pattern\":\"^[ab]+$\"},{\"type\":\"number\",\"minimum\":" \
    "3}]}}", "[\"a b\",\"n\"],\"$defs\":{\"x\":{\"type\":\"object\","       \
    "\"properties\":{\"y\":{\"$ref\":\"#/$defs/x\"}},"                      \
    "\"additionalProperties\":false}}"))
#define NOTHING  FUNCTION("now", "true", CLOSED("{}", "[]"))

#define TOOLS(list)  "\"tools\":[" list "]"
#define PLAIN        ",\"thinking\":{\"type\":\"disabled\"}"
#define REQUIRED     ",\"tool_choice\":\"required\""
#define ONE          ",\"parallel_tool_calls\":false"

#define D "\1"
#define TH "\2"
#define ET "\3"
#define TC "\4"
#define EC "\5"

#define V41_OPEN   "<" D " calls>\n"
#define V41_CLOSE  "\n</" D " calls>"
#define V41_CALL(name, arguments)                                           \
    "<" D " invoke name=\"" name "\">" arguments "</" D " invoke>"
#define V41_ARG(key, string, value)                                         \
    "\n<" D " parameter name=\"" key "\" string=\"" string "\">" value      \
    "</" D " parameter>"
#define V4_ARG(key, string, value)                                          \
    "\n<" D "parameter name=\"" key "\" string=\"" string "\">" value       \
    "</" D "parameter>"

static const char qwen3[] =
    "<|im_start|><tools></tools><tool_call><tool_response>enable_thinking";
static const char qwq[] =
    "<|im_start|><tools></tools><tool_call><tool_response>"
    "<|im_start|>assistant\\n<think>\\n";

static const struct {
    const char *dialect, *template_text, *fields;
    const char *script;          /* NULL: nothing has to be held            */
    const char *found;           /* by the parser; NULL: it isn't held      */
} cases[] = {
    /* nothing to hold */
    { "deepseek-v4.1", NULL, TOOLS(SCRIPT), NULL, NULL },
    { "qwen", NULL, TOOLS(SCRIPT) ",\"tool_choice\":\"none\"", NULL, NULL },
    { "chatml", NULL, "\"response_format\":{\"type\":\"text\"}", NULL, NULL },

    /* answers */
    { "chatml", NULL, "\"guided_regex\":\"[ab]+\"", "abba", "T:abba" },
    { "chatml", NULL, "\"guided_regex\":\"[ab]+\"", "abc", NULL },
    { "chatml", NULL, "\"guided_choice\":[\"yes\",\"n\\\"o\"]", "n\"o",
      "T:n\"o" },
    { "chatml", NULL, "\"ebnf\":\"root ::= \\\"x\\\" y*\\ny ::= [0-9]\"",
      "x12", "T:x12" },
    { "chatml", NULL, "\"response_format\":{\"type\":\"json_object\"}",
      "{\"a\": [1]}", "T:{\"a\": [1]}" },
    { "chatml", NULL, "\"response_format\":{\"type\":\"json_object\"}", "[1]",
      NULL },
    { "llama3", NULL, "\"structured_outputs\":{\"json\":{\"type\":\"integer\""
      "}}", "12", "T:12" },
    { "qwen", NULL, "\"json_schema\":\"{\\\"const\\\":1}\"", "2", NULL },

    { "qwen", NULL, "\"guided_choice\":[\"\\na\",\"b\"]", "\na", "T:\na" },
    { "deepseek-v4.1", NULL, "\"regex\":\"\\\\n+x\"" PLAIN "," TOOLS(NOTHING),
      "\n\nx", "T:\n\nx" },
    { "deepseek-v4.1", NULL, "\"regex\":\"\\\\n+x\"" PLAIN "," TOOLS(NOTHING),
      "\n\n" V41_OPEN V41_CALL("now", "\n") V41_CLOSE, "C:now|A:{}" },

    /* reasoning comes first, and is free */
    { "deepseek-v4.1", NULL, "\"guided_regex\":\"a\"", "x{" ET "a",
      "R:x{|T:a" },
    { "deepseek-v4.1", NULL, "\"guided_regex\":\"a\"", "a", NULL },
    { "deepseek-v4.1", NULL, "\"guided_regex\":\"a\"" PLAIN, "a", "T:a" },
    { "deepseek-v4", NULL, "\"guided_regex\":\"a\"", ET "a", "T:a" },
    { "deepseek-v4", NULL, "\"guided_regex\":\"a\"", "x" D ET "a", NULL },
    { "deepseek-r1", NULL, "\"guided_regex\":\"a\"", "x\n" ET "\n\na",
      "R:x|T:a" },
    { "qwen", qwen3, "\"guided_regex\":\"a\"", TH "\nx\n" ET "\n\na",
      "R:x|T:a" },
    { "qwen", qwen3, "\"guided_regex\":\"a\"" PLAIN, "a", "T:a" },
    { "qwen", qwq, "\"guided_regex\":\"a\"", "x\n" ET "\n\na", "R:x|T:a" },
    { "qwen", qwq, "\"guided_regex\":\"a\"", "a", NULL },

    /* DeepSeek: a forced call goes on the block that the prompt opened */
    { "deepseek-v4.1", NULL, TOOLS(WEATHER) REQUIRED PLAIN,
      V41_CALL("get_weather", V41_ARG("city", "true", "Oslo \"x\"") "\n")
      V41_CLOSE, "C:get_weather|A:{\"city\": \"Oslo \\\"x\\\"\"}" },
    { "deepseek-v4.1", NULL, TOOLS(WEATHER) REQUIRED PLAIN,
      V41_CALL("get_weather", V41_ARG("city", "true", "O") "\n") V41_CLOSE,
      NULL },
    { "deepseek-v4.1", NULL, TOOLS(WEATHER) REQUIRED PLAIN,
      V41_CALL("get_weather", V41_ARG("unit", "true", "C") "\n") V41_CLOSE,
      NULL },
    { "deepseek-v4.1", NULL, TOOLS(WEATHER) REQUIRED PLAIN,
      V41_CALL("get_weather", V41_ARG("city", "true", "Rome")
               V41_ARG("unit", "true", "F") V41_ARG("days", "false", "2")
               "\n") "\n"
      V41_CALL("get_weather", V41_ARG("city", "true", "Bonn")
               V41_ARG("days", "false", "null") "\n") V41_CLOSE,
      "C:get_weather|A:{\"city\": \"Rome\", \"unit\": \"F\", \"days\": 2}"
      "|C:get_weather|A:{\"city\": \"Bonn\", \"days\": null}" },
    { "deepseek-v4.1", NULL, TOOLS(WEATHER) REQUIRED PLAIN ONE,
      V41_CALL("get_weather", V41_ARG("city", "true", "Rome") "\n") "\n"
      V41_CALL("get_weather", V41_ARG("city", "true", "Rome") "\n")
      V41_CLOSE, NULL },
    { "deepseek-v4.1", NULL, TOOLS(WEATHER) REQUIRED PLAIN,
      V41_CALL("get_weather", V41_ARG("city", "false", "\"Rome\"") "\n")
      V41_CLOSE, NULL },
    { "deepseek-v4.1", NULL, TOOLS(WEATHER) REQUIRED PLAIN,
      V41_CALL("get_weather", V41_ARG("city", "true", "Rome")
               V41_ARG("more", "true", "x") "\n") V41_CLOSE, NULL },
    { "deepseek-v4.1", NULL, TOOLS(NOTHING) REQUIRED PLAIN,
      V41_CALL("now", "\n\n") V41_CLOSE, "C:now|A:{}" },
    { "deepseek-v4", NULL, TOOLS(NOTHING) REQUIRED PLAIN,
      "<" D "invoke name=\"now\">\n</" D "invoke>\n</" D "tool_calls>",
      "C:now|A:{}" },
    { "deepseek-v4", NULL, TOOLS(WEATHER) REQUIRED PLAIN,
      "<" D "invoke name=\"get_weather\">" V4_ARG("city", "true", "Rome")
      "\n</" D "invoke>\n</" D "tool_calls>",
      "C:get_weather|A:{\"city\": \"Rome\"}" },

    /* a tool that isn't strict is held to its schema where a call is forced,
     * to an object elsewhere */
    { "deepseek-v4.1", NULL, TOOLS(SCRIPT) REQUIRED PLAIN,
      V41_CALL("run", V41_ARG("x", "true", "y") "\n") V41_CLOSE, NULL },
    { "deepseek-v4.1", NULL, TOOLS(SCRIPT "," NOTHING) PLAIN, "hi\n\n"
      V41_OPEN V41_CALL("run", V41_ARG("x", "false", "[1]")
                        V41_ARG("y", "true", "<z>") "\n") V41_CLOSE,
      "T:hi|C:run|A:{\"x\": [1], \"y\": \"<z>\"}" },

    /* reasoning before a forced call, text before a free one */
    { "deepseek-v4.1", NULL, TOOLS(NOTHING) REQUIRED, "why" ET "\n\n"
      V41_OPEN V41_CALL("now", "\n") V41_CLOSE, "R:why|C:now|A:{}" },
    { "deepseek-v4.1", NULL, TOOLS(NOTHING) REQUIRED, "why" ET "\n\nno",
      NULL },
    { "deepseek-v4.1", NULL, TOOLS(NOTHING), "why" ET "so <b>", "R:why|T:so"
      " <b>" },
    { "deepseek-v4.1", NULL, TOOLS(NOTHING), "why" ET "so\n\n" V41_OPEN
      V41_CALL("now", "\n") "\n" V41_CALL("now", "\n\n") V41_CLOSE,
      "R:why|T:so|C:now|A:{}|C:now|A:{}" },
    { "deepseek-v4.1", NULL, TOOLS(NOTHING) ONE, ET V41_OPEN
      V41_CALL("now", "\n") "\n" V41_CALL("now", "\n\n") V41_CLOSE, NULL },
    { "deepseek-v4.1", NULL, TOOLS(NOTHING), "<" D " calls", NULL },
    { "deepseek-v4.1", NULL, TOOLS(NOTHING), ET "\n\n" V41_OPEN
      V41_CALL("other", "\n") V41_CLOSE, NULL },

    /* references and kinds of values */
    { "deepseek-v4.1", NULL, TOOLS(DEEP) REQUIRED PLAIN, V41_CALL("deep",
      V41_ARG("a b", "false", "{\"y\": {}}") V41_ARG("n", "true", "abba")
      "\n") V41_CLOSE, "C:deep|A:{\"a b\": {\"y\": {}}, \"n\": \"abba\"}" },
    { "deepseek-v4.1", NULL, TOOLS(DEEP) REQUIRED PLAIN, V41_CALL("deep",
      V41_ARG("a b", "false", "{}") V41_ARG("n", "false", "4.5") "\n")
      V41_CLOSE, "C:deep|A:{\"a b\": {}, \"n\": 4.5}" },
    { "deepseek-v4.1", NULL, TOOLS(DEEP) REQUIRED PLAIN, V41_CALL("deep",
      V41_ARG("a b", "false", "{\"z\": 1}") V41_ARG("n", "false", "4") "\n")
      V41_CLOSE, NULL },
    { "deepseek-v4.1", NULL, TOOLS(DEEP) REQUIRED PLAIN, V41_CALL("deep",
      V41_ARG("a b", "false", "{}") V41_ARG("n", "false", "2") "\n")
      V41_CLOSE, NULL },

    /* any order, and which tools */
    { "deepseek-v4.1", NULL, TOOLS(WEATHER) REQUIRED PLAIN
      ",\"grammar_options\":{\"any_order\":true}", V41_CALL("get_weather",
      V41_ARG("unit", "true", "F") V41_ARG("city", "true", "Rome") "\n")
      V41_CLOSE, "C:get_weather|A:{\"unit\": \"F\", \"city\": \"Rome\"}" },
    { "deepseek-v4.1", NULL, TOOLS(WEATHER) REQUIRED PLAIN
      ",\"grammar_options\":{\"any_order\":true}", V41_CALL("get_weather",
      V41_ARG("unit", "true", "F") V41_ARG("unit", "true", "C")
      V41_ARG("city", "true", "Rome") "\n") V41_CLOSE, NULL },
    { "deepseek-v4.1", NULL, TOOLS(WEATHER "," NOTHING) PLAIN
      ",\"tool_choice\":{\"type\":\"allowed_tools\",\"allowed_tools\":{"
      "\"mode\":\"auto\",\"tools\":[{\"type\":\"function\",\"function\":{"
      "\"name\":\"now\"}}]}}", V41_OPEN V41_CALL("now", "\n") V41_CLOSE,
      "C:now|A:{}" },
    { "deepseek-v4.1", NULL, TOOLS(WEATHER "," NOTHING) PLAIN
      ",\"tool_choice\":{\"type\":\"allowed_tools\",\"allowed_tools\":{"
      "\"mode\":\"auto\",\"tools\":[{\"type\":\"function\",\"function\":{"
      "\"name\":\"now\"}}]}}", V41_OPEN V41_CALL("get_weather", V41_ARG(
      "city", "true", "Rome") "\n") V41_CLOSE, NULL },

    /* a format and tools: one or the other */
    { "deepseek-v4.1", NULL, TOOLS(NOTHING) PLAIN ",\"response_format\":{"
      "\"type\":\"json_object\"}", "{}", "T:{}" },
    { "deepseek-v4.1", NULL, TOOLS(NOTHING) PLAIN ",\"response_format\":{"
      "\"type\":\"json_object\"}", "\n\n" V41_OPEN V41_CALL("now", "\n")
      V41_CLOSE, "C:now|A:{}" },
    { "deepseek-v4.1", NULL, TOOLS(NOTHING) PLAIN ",\"response_format\":{"
      "\"type\":\"json_object\"}", "so", NULL },

    /* Qwen */
    { "qwen", NULL, TOOLS(WEATHER), "so\n" TC "\n{\"name\": \"get_weather\","
      " \"arguments\": {\"city\": \"Rome\"}}\n" EC "\n" TC "\n{\"name\":"
      " \"get_weather\", \"arguments\": {\"city\":\"Bonn\"}}\n" EC,
      "T:so|C:get_weather|A:{\"city\": \"Rome\"}|C:get_weather|A:{\"city\":"
      "\"Bonn\"}" },
    { "qwen", NULL, TOOLS(WEATHER), TC "\n{\"name\": \"get_weather\","
      " \"arguments\": {}}\n" EC, NULL },
    { "qwen", NULL, TOOLS(WEATHER) REQUIRED, "so", NULL },
    { "qwen", qwen3, TOOLS(NOTHING) REQUIRED, TH "\nx" ET "\n\n" TC
      "\n{\"name\": \"now\", \"arguments\": {}}\n" EC, "R:x|C:now|A:{}" },
    { "qwen", NULL, TOOLS(SCRIPT) ONE, TC "\n{\"name\": \"run\","
      " \"arguments\": {\"x\": 1}}\n" EC, "C:run|A:{\"x\": 1}" },

    /* Llama: the turn is the call */
    { "llama3", NULL, TOOLS(WEATHER) REQUIRED, "{\"name\": \"get_weather\","
      " \"parameters\": {\"city\": \"Rome\"}}",
      "C:get_weather|A:{\"city\": \"Rome\"}" },
    { "llama3", NULL, TOOLS(WEATHER), "no { call", "T:no { call" },
    { "llama3", NULL, TOOLS(WEATHER), "\n{ call", NULL },
    { "llama3", NULL, TOOLS(WEATHER), "{\"name\": \"get_weather\","
      " \"parameters\": {\"city\": \"R\"}}", NULL },

    /* custom tools */
    { "deepseek-v4.1", NULL, TOOLS("{\"type\":\"custom\",\"custom\":{"
      "\"name\":\"sql\",\"format\":{\"type\":\"grammar\",\"grammar\":{"
      "\"syntax\":\"regex\",\"definition\":\"SELECT [a-z]+\"}}}}") REQUIRED
      PLAIN, V41_CALL("sql", V41_ARG("input", "true", "SELECT a") "\n")
      V41_CLOSE, "C:sql|A:{\"input\": \"SELECT a\"}" },
    { "deepseek-v4.1", NULL, TOOLS("{\"type\":\"custom\",\"custom\":{"
      "\"name\":\"sql\",\"format\":{\"type\":\"grammar\",\"grammar\":{"
      "\"syntax\":\"regex\",\"definition\":\"SELECT [a-z]+|x\"}}}}") REQUIRED
      PLAIN, V41_CALL("sql", V41_ARG("input", "true", "SELECT a x") "\n")
      V41_CLOSE, NULL },
};

/* Does the grammar hold this output, as a whole? */
static bool
holds(di_gram_t *g, const int32_t *ids, size_t n)
{
    di_gram_match_t *m;
    size_t           i;
    bool             ok;

    CHECK_EQ_INT(di_gram_match_open(g, 0, &m), DI_OK);
    for (i = 0; i < n && di_gram_accept_id(index_of, m, ids[i]) == DI_OK;
         i++)
    {
        /* void */
    }
    ok = i == n && di_gram_is_complete(m);
    di_gram_match_close(m);
    return ok;
}

static void
check_case(size_t i)
{
    output_case_t   c;
    output_record_t r;
    di_gram_t      *g;
    int32_t         ids[4096];
    size_t          n;

    output_open(&c, vocab, cases[i].dialect, cases[i].template_text,
                cases[i].fields);
    CHECK_EQ_INT(c.rc, DI_OK);

    if (c.rc != DI_OK || cases[i].script == NULL) {
        CHECK_EQ_INT(c.grammar.text.len, 0);
        if (c.rc != DI_OK)
            printf("  %s: %s\n", cases[i].fields, c.e.message);
        output_close(&c);
        return;
    }

    g = output_compile(&c);
    CHECK(g != NULL);
    if (g == NULL) {
        printf("  %s: %s\n%.*s\n", cases[i].fields, c.e.message,
               (int) c.grammar.text.len, c.grammar.text.data);
        output_close(&c);
        return;
    }

    n = output_ids(cases[i].script, ids);
    CHECK_EQ_INT(holds(g, ids, n), cases[i].found != NULL);
    if (holds(g, ids, n) != (cases[i].found != NULL))
        printf("  case %zu, %s: %s\n%.*s\n", i, cases[i].fields,
               cases[i].script, (int) c.grammar.text.len,
               c.grammar.text.data);

    if (cases[i].found != NULL) {
        output_parse(&c, vocab, ids, n, &r);
        CHECK_EQ_STR(r.text.data, cases[i].found);
        di_sbuf_free(&r.text);
    }

    di_gram_unref(g);
    output_close(&c);
}

/* ----------------------------------------------------------------- errors */

#define STRICT_A(schema)                                                    \
    TOOLS(FUNCTION("f", "true", CLOSED("{\"a/b\":" schema "}", "[]")))

static const struct {
    const char *dialect, *fields, *param, *tells;
} errors[] = {
    { "chatml", "\"guided_json\":{\"items\":{\"uniqueItems\":true}}",
      "guided_json", "uniqueItems (#/items/uniqueItems)" },
    { "chatml", "\"guided_regex\":\"(?<=a)b\"", "guided_regex",
      "look-around (offset 2)" },
    { "chatml", "\"structured_outputs\":{\"grammar\":\"root ::= x\"}",
      "structured_outputs.grammar", "not defined" },
    { "chatml", "\"guided_json\":{\"type\":\"string\",\"maxLength\":1,"
      "\"minLength\":2}", "guided_json", "no text satisfies" },
    { "qwen", STRICT_A("{\"pattern\":\"\\\\bx\"}"),
      "tools[0].function.parameters", "(#/properties/a~1b/pattern)" },
    { "deepseek-v4.1", STRICT_A("{\"type\":\"array\",\"uniqueItems\":true}"),
      "tools[0].function.parameters",
      "uniqueItems (#/properties/a~1b/uniqueItems)" },
    { "deepseek-v4.1", STRICT_A("{\"type\":\"array\",\"uniqueItems\":true,"
      "\"items\":{\"$ref\":\"#\"}}"), "tools[0].function.parameters",
      "uniqueItems (#/properties/a~1b/uniqueItems)" },
    { "deepseek-v4.1", STRICT_A("{\"type\":\"string\",\"format\":\"x\"}"),
      "tools[0].function.parameters", "format (#/properties/a~1b/format)" },
    { "deepseek-v4.1", TOOLS(FUNCTION("f", "true", "{\"type\":\"object\","
      "\"minProperties\":1}")), "tools[0].function.parameters",
      "minProperties (#/minProperties)" },
    { "deepseek-v4.1", TOOLS(FUNCTION("f", "true", CLOSED("{}",
      "[\"a\"]"))), "tools[0].function.parameters", "required" },
    { "deepseek-v4.1", TOOLS(FUNCTION("f", "true", CLOSED("{\"a\\\"\":{}}",
      "[]"))), "tools[0].function.parameters", "quotation mark" },
    { "deepseek-v4.1", TOOLS(FUNCTION("f", "true", CLOSED("{\"a\":{},\"b\":"
      "{},\"c\":{},\"d\":{},\"e\":{},\"f\":{},\"g\":{}}", "[]")))
      ",\"grammar_options\":{\"any_order\":true}",
      "grammar_options.any_order", "more than 6" },
    { "llama3", TOOLS(WEATHER) ",\"guided_regex\":\"a\"", "guided_regex",
      "tool_choice" },
};

static void
check_error(size_t i)
{
    output_case_t c;
    di_gram_t    *g = NULL;

    output_open(&c, vocab, errors[i].dialect, NULL, errors[i].fields);
    if (c.rc == DI_OK)
        g = output_compile(&c);
    else
        CHECK_EQ_INT(c.rc, DI_EUNSUPPORTED);

    CHECK(g == NULL);
    CHECK_EQ_INT(c.e.status, 400);
    CHECK_EQ_STR(c.e.param, errors[i].param);
    CHECK(strstr(c.e.message, errors[i].tells) != NULL);
    if (strstr(c.e.message, errors[i].tells) == NULL)
        printf("  %s: %s\n", errors[i].fields, c.e.message);

    di_gram_unref(g);
    output_close(&c);
}

/* Best effort leaves out what can't be held, and that alone. */
static void
check_relax(void)
{
    static const struct {
        const char *dialect, *fields, *script;
        bool        held;
    } relaxed[] = {
        { "chatml", "\"guided_json\":{\"type\":\"array\",\"uniqueItems\":"
          "true,\"items\":{\"maximum\":2,\"format\":\"x\"}}", "[1,1]", true },
        { "chatml", "\"guided_json\":{\"type\":\"array\",\"uniqueItems\":"
          "true,\"items\":{\"maximum\":2}}", "[3]", false },
        { "deepseek-v4.1", STRICT_A("{\"type\":\"array\",\"uniqueItems\":true"
          "}") REQUIRED PLAIN, V41_CALL("f", V41_ARG("a/b", "false", "[1,1]")
                                        "\n") V41_CLOSE, true },
        { "deepseek-v4.1", TOOLS(FUNCTION("f", "true", "{\"type\":\"object\","
          "\"minProperties\":1,\"additionalProperties\":false}")) REQUIRED
          PLAIN, V41_CALL("f", "\n") V41_CLOSE, true },
    };
    output_case_t c;
    di_gram_t    *g;
    char          fields[1024];
    int32_t       ids[1024];
    size_t        i, n;

    for (i = 0; i < sizeof(relaxed) / sizeof(relaxed[0]); i++) {
        snprintf(fields, sizeof(fields), "%s,\"grammar_options\":{"
                 "\"best_effort\":true}", relaxed[i].fields);
        output_open(&c, vocab, relaxed[i].dialect, NULL, fields);
        CHECK_EQ_INT(c.rc, DI_OK);
        g = c.rc == DI_OK ? output_compile(&c) : NULL;
        CHECK(g != NULL);
        if (g == NULL) {
            printf("  %s: %s\n", fields, c.e.message);
        } else {
            n = output_ids(relaxed[i].script, ids);
            CHECK_EQ_INT(holds(g, ids, n), relaxed[i].held);
        }
        di_gram_unref(g);
        output_close(&c);
    }
}

/* ------------------------------------------------------------------ walks */

#define WALK_MAX  3000

/* Tokens that end things: without a liking for them walks never would. */
static bool
is_closing(int32_t id)
{
    return id >= OUTPUT_EOS || (id < 128 && strchr("<>/\"}]\n,:", id) != NULL);
}

static int32_t
pick(const uint64_t *mask, bool closing)
{
    uint32_t n = 0;
    int32_t  id, chosen = -1;

    for (id = 0; id < (int32_t) di_vocab_size(vocab); id++) {
        if ((mask[id / 64] >> id % 64 & 1) && (!closing || is_closing(id))
            && draw(++n) == 0)
            chosen = id;
    }

    return chosen;
}

/* Some output of the grammar; the number of its tokens, 0: none in time. */
static size_t
walk(di_gram_t *g, int32_t *ids)
{
    uint64_t         mask[64];
    di_gram_match_t *m;
    int32_t          id;
    size_t           n = 0;

    CHECK(di_gram_mask_words(index_of) <= 64);
    CHECK_EQ_INT(di_gram_match_open(g, 0, &m), DI_OK);

    while (n < WALK_MAX) {
        if (di_gram_fill_mask(index_of, m, mask) != DI_OK)
            exit(1);
        if (di_gram_is_complete(m)
            && (di_gram_is_forced_end(m) || draw(4) == 0))
            break;

        id = pick(mask, draw(8) != 0);
        if (id < 0 || id == OUTPUT_EOS)
            id = pick(mask, false);
        if (id < 0 || di_vocab_is_end(vocab, id)) {
            CHECK(id >= 0);
            break;
        }
        CHECK_EQ_INT(di_gram_accept_id(index_of, m, id), DI_OK);
        ids[n++] = id;
    }

    if (!di_gram_is_complete(m))
        n = 0;
    di_gram_match_close(m);
    return n;
}

/* Do the arguments satisfy the schema of the tool? */
static bool
satisfies(const di_tool_t *t, const char *text, size_t len)
{
    const di_gram_opts_t opts = { .any_order = true, .flexible = true };
    json_t              *v;
    di_sbuf_t            b = { 0 };
    di_gram_t           *g = NULL;
    di_gram_match_t     *m;
    void                *blob;
    size_t               bytes;
    bool                 ok;

    v = json_loadb(text, len, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, NULL);
    ok = json_is_object(v);
    json_decref(v);
    if (!ok || t->strict != 1)
        return ok;

    di_json_add_tree(&b, t->schema, DI_JSON_COMPACT);
    CHECK_EQ_INT(di_gram_compile(DI_GRAM_SCHEMA, b.data, b.len, &opts, &blob,
                                 &bytes, NULL), DI_OK);
    CHECK_EQ_INT(di_gram_open(blob, bytes, &g, NULL), DI_OK);
    free(blob);
    di_sbuf_free(&b);

    CHECK_EQ_INT(di_gram_match_open(g, 0, &m), DI_OK);
    ok = di_gram_accept(m, text, len) == DI_OK && di_gram_is_complete(m);
    di_gram_match_close(m);
    di_gram_unref(g);
    return ok;
}

/* Every call of the record, and their number. */
static size_t
check_calls(const output_case_t *c, const char *record)
{
    const char      *at, *args, *end;
    const di_tool_t *t;
    size_t           n = 0;

    for (at = record; at != NULL && *at != '\0'; at = strstr(at, "|C:")) {
        at += *at == '|';
        if (strncmp(at, "C:", 2) != 0)
            continue;

        args = strstr(at, "|A:");
        CHECK(args != NULL);
        if (args == NULL)
            break;

        t = di_req_tool(c->req, (di_str_t) { at + 2,
                                             (size_t) (args - at) - 2 });
        CHECK(t != NULL);
        for (end = args + 3; *end != '\0' && strncmp(end, "|C:", 3) != 0;
             end++)
        {
            /* void */
        }
        CHECK(t != NULL && satisfies(t, args + 3,
                                     (size_t) (end - args) - 3));
        if (t == NULL || !satisfies(t, args + 3, (size_t) (end - args) - 3))
            printf("  %.300s\n", at);
        at = end;
        n++;
    }

    return n;
}

static void
check_walks(const char *dialect, const char *template_text, const char *fields,
            size_t least, size_t most)
{
    output_case_t   c;
    output_record_t r;
    di_gram_t      *g;
    int32_t         ids[WALK_MAX];
    size_t          i, n, calls, done = 0;

    output_open(&c, vocab, dialect, template_text, fields);
    CHECK_EQ_INT(c.rc, DI_OK);
    g = c.rc == DI_OK ? output_compile(&c) : NULL;
    CHECK(g != NULL);

    for (i = 0; i < 60 && g != NULL; i++) {
        n = walk(g, ids);
        if (n == 0)
            continue;

        done++;
        output_parse(&c, vocab, ids, n, &r);
        calls = check_calls(&c, r.text.data);
        CHECK(calls >= least && calls <= most);
        if (calls < least || calls > most)
            printf("  %s, %s: %.300s\n", dialect, fields, r.text.data);
        di_sbuf_free(&r.text);
    }

    CHECK(done > 20);
    di_gram_unref(g);
    output_close(&c);
}

static void
check_all_walks(void)
{
    static const struct { const char *dialect, *template_text; } models[] = {
        { "deepseek-v4.1", NULL }, { "deepseek-v4", NULL }, { "qwen", NULL },
        { "qwen", qwen3 }, { "llama3", NULL },
    };
    size_t i, most;

    for (i = 0; i < sizeof(models) / sizeof(models[0]); i++) {
        const char *d = models[i].dialect, *t = models[i].template_text;
        bool        llama = strcmp(d, "llama3") == 0;

        most = llama ? 1 : WALK_MAX;
        check_walks(d, t, TOOLS(WEATHER "," DEEP "," SCRIPT "," NOTHING)
                    REQUIRED, 1, most);
        check_walks(d, t, TOOLS(WEATHER "," DEEP "," SCRIPT "," NOTHING), 0,
                    most);
        check_walks(d, t, TOOLS(WEATHER "," SCRIPT) REQUIRED ONE, 1, 1);
        if (!llama)
            check_walks(d, t, TOOLS(WEATHER "," SCRIPT) REQUIRED PLAIN
                        ",\"grammar_options\":{\"any_order\":true}", 1, most);
        check_walks(d, t, TOOLS(DEEP "," SCRIPT) ",\"tool_choice\":{\"type\":"
                    "\"function\",\"function\":{\"name\":\"deep\"}}", 1, most);
    }
}

/* ------------------------------------------------------------- no memory - */

static void
check_nomem(void)
{
    output_case_t c;
    di_output_t   out = { 0 };
    di_api_err_t  e;
    int           n, rc;

    output_open(&c, vocab, "deepseek-v4.1", NULL, TOOLS(WEATHER "," DEEP)
                REQUIRED ",\"guided_choice\":[\"a\"]");
    CHECK_EQ_INT(c.rc, DI_OK);

    for (n = 0; ; n++) {
        memset(&e, 0, sizeof(e));
        nomem_after(n);
        rc = di_dialect_grammar(c.dialect, di_req_conv(c.req),
                                di_req_parsing(c.req),
                                di_req_constraint(c.req), &out, &e);
        di_output_free(&out);
        if (!nomem_off())
            break;
        CHECK_EQ_INT(rc, DI_ENOMEM);
        CHECK_EQ_INT(e.status, 500);
    }

    CHECK_EQ_INT(rc, DI_OK);
    CHECK(n > 5 || !NOMEM);
    output_close(&c);
}

int
main(void)
{
    size_t i;

    seed = (uint64_t) time(NULL);
    printf("output: seed %llu\n", (unsigned long long) seed);
    vocab = output_vocab();
    if (di_gram_index_open(vocab, 0, &index_of) != DI_OK)
        return 1;

    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        check_case(i);
    for (i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
        check_error(i);
    check_relax();
    check_all_walks();
    check_nomem();

    di_gram_index_close(index_of);
    di_vocab_close(vocab);
    return check_done("output");
}
