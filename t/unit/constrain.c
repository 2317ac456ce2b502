/*
 * constrain.c - what requests of every API may ask of the answer's form, and
 * what of their tools' calls: what is taken, and what is refused by name.
 */

#include <stdlib.h>

#include "tokenizer/api/di_api.h"

#include "check.h"
#include "nomem.h"

#define C  DI_API_CHAT
#define R  DI_API_RESPONSES
#define M  DI_API_MESSAGES
#define P  DI_API_COMPLETIONS

#define CAPS  (DI_CAN_TOOLS | DI_CAN_THINK | DI_CAN_PREFIX | DI_CAN_CONSTRAIN)

/* What every body begins with. */
static const char *const heads[] = {
    [C] = "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":"
          "\"json\"}]",
    [R] = "{\"model\":\"m\",\"input\":\"json\"",
    [M] = "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":"
          "\"q\"}]",
    [P] = "{\"model\":\"m\",\"prompt\":\"q\"",
};

static int
parse(di_api_t api, uint32_t caps, const char *fields, di_req_t **req,
      di_api_err_t *e)
{
    const di_req_options_t o = { .family = DI_FAMILY_V41, .caps = caps,
                                 .vocab = 1000 };
    char                   body[4096];

    snprintf(body, sizeof(body), "%s%s%s}", heads[api], fields[0] ? "," : "",
             fields);
    memset(e, 0, sizeof(*e));
    *req = NULL;
    return di_req_parse(api, &o, body, strlen(body), req, e);
}

/* ------------------------------------------------------------------ taken */

enum {
    NONE = DI_CONSTRAINT_NONE, JSON = DI_CONSTRAINT_JSON,
    REGEX = DI_CONSTRAINT_REGEX, EBNF = DI_CONSTRAINT_EBNF,
    CHOICE = DI_CONSTRAINT_CHOICE,
};

#define SCHEMA  "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":"      \
                "\"string\",\"minLength\":1}}}"

static const struct {
    di_api_t    api;
    const char *fields;
    int         kind;
    const char *text, *param;
} taken[] = {
    { C, "", NONE, "", "" },
    { C, "\"response_format\":{\"type\":\"text\"}", NONE, "", "" },
    { C, "\"response_format\":{\"type\":\"json_object\"}", JSON, "",
      "response_format" },
    { C, "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{"
      "\"name\":\"n\",\"description\":\"d\",\"strict\":true,\"schema\":"
      SCHEMA "}}", JSON, SCHEMA, "response_format.json_schema.schema" },
    { C, "\"response_format\":{\"type\":\"regex\",\"regex\":\"a+\"}", REGEX,
      "a+", "response_format.regex" },
    { P, "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{"
      "\"name\":\"n\",\"schema\":" SCHEMA "}}", JSON, SCHEMA,
      "response_format.json_schema.schema" },
    { P, "\"response_format\":{\"type\":\"json_object\"}", JSON, "",
      "response_format" },
    { R, "\"text\":{\"format\":{\"type\":\"json_object\"}}", JSON, "",
      "text.format" },
    { R, "\"text\":{\"format\":{\"type\":\"json_schema\",\"name\":\"n\","
      "\"strict\":true,\"schema\":" SCHEMA "}}", JSON, SCHEMA,
      "text.format.schema" },
    { M, "\"output_config\":{\"format\":{\"type\":\"json_schema\","
      "\"schema\":" SCHEMA "}}", JSON, SCHEMA, "output_config.format.schema" },
    { M, "\"output_format\":{\"type\":\"json_schema\",\"schema\":" SCHEMA
      "}", JSON, SCHEMA, "output_format.schema" },

    /* vLLM's and SGLang's */
    { C, "\"guided_json\":" SCHEMA, JSON, SCHEMA, "guided_json" },
    { R, "\"guided_json\":\"{\\\"type\\\":\\\"null\\\"}\"", JSON,
      "{\"type\":\"null\"}", "guided_json" },
    { M, "\"guided_regex\":\"a|b\"", REGEX, "a|b", "guided_regex" },
    { P, "\"guided_grammar\":\"root ::= x\"", EBNF, "root ::= x",
      "guided_grammar" },
    { C, "\"guided_choice\":[\"a\",\"b\\\"\"]", CHOICE, "[\"a\",\"b\\\"\"]",
      "guided_choice" },
    { C, "\"guided_json\":null,\"guided_decoding_backend\":\"xgrammar\"",
      NONE, "", "" },
    { C, "\"structured_outputs\":{\"json\":true}", JSON, "true",
      "structured_outputs.json" },
    { P, "\"structured_outputs\":{\"regex\":\"x\",\"disable_fallback\":true}",
      REGEX, "x", "structured_outputs.regex" },
    { R, "\"structured_outputs\":{\"choice\":[\"a\"]}", CHOICE, "[\"a\"]",
      "structured_outputs.choice" },
    { M, "\"structured_outputs\":{\"grammar\":\"g\"}", EBNF, "g",
      "structured_outputs.grammar" },
    { C, "\"structured_outputs\":{\"json_object\":true}", JSON, "",
      "structured_outputs.json_object" },
    { C, "\"structured_outputs\":{\"json_object\":false,\"json\":null}", NONE,
      "", "" },
    { C, "\"regex\":\"x\"", REGEX, "x", "regex" },
    { C, "\"ebnf\":\"x\"", EBNF, "x", "ebnf" },
    { P, "\"json_schema\":\"{}\"", JSON, "{}", "json_schema" },
};

static void
check_taken(void)
{
    const di_constraint_t *c;
    di_req_t              *req;
    di_api_err_t           e;
    size_t                 i;

    for (i = 0; i < sizeof(taken) / sizeof(taken[0]); i++) {
        CHECK_EQ_INT(parse(taken[i].api, CAPS, taken[i].fields, &req, &e),
                     DI_OK);
        if (req == NULL) {
            printf("  %s: %s\n", taken[i].fields, e.message);
            continue;
        }

        c = di_req_constraint(req);
        CHECK_EQ_INT((int) c->kind, taken[i].kind);
        CHECK(c->text.len == strlen(taken[i].text)
              && (c->text.len == 0
                  || memcmp(c->text.data, taken[i].text, c->text.len) == 0));
        CHECK_EQ_STR(c->param == NULL ? "" : c->param, taken[i].param);
        CHECK_EQ_INT(di_req_ignored(req).len, 0);
        di_req_close(req);
    }
}

static void
check_options(void)
{
    di_req_t     *req;
    di_api_err_t  e;

    CHECK_EQ_INT(parse(C, CAPS, "\"grammar_options\":{\"best_effort\":true,"
                       "\"any_order\":true,\"whitespace\":\"compact\",\"x\":1"
                       "},\"guided_regex\":\"a\"", &req, &e), DI_OK);
    CHECK(di_req_constraint(req)->best_effort
          && di_req_constraint(req)->any_order
          && di_req_constraint(req)->spaces == DI_SPACES_COMPACT);
    CHECK(strncmp(di_req_ignored(req).data, "grammar_options.x", 17) == 0);
    di_req_close(req);

    CHECK_EQ_INT(parse(P, CAPS, "\"structured_outputs\":{\"json\":{},"
                       "\"disable_any_whitespace\":true}", &req, &e), DI_OK);
    CHECK(di_req_constraint(req)->spaces == DI_SPACES_COMPACT
          && !di_req_constraint(req)->best_effort);
    di_req_close(req);

    CHECK_EQ_INT(parse(M, CAPS, "\"grammar_options\":{\"whitespace\":"
                       "\"flexible\"}", &req, &e), DI_OK);
    CHECK_EQ_INT(di_req_constraint(req)->spaces, DI_SPACES_FLEXIBLE);
    di_req_close(req);
}

/* ------------------------------------------------------------------ tools */

#define TOOL(name, rest)                                                    \
    "{\"type\":\"function\",\"function\":{\"name\":\"" name "\"" rest "}}"
#define FLAT(name, rest)                                                    \
    "{\"type\":\"function\",\"name\":\"" name "\"" rest "}"
#define STRICT    ",\"strict\":true,\"parameters\":" SCHEMA

static const di_tool_t *
tool(const di_req_t *req, const char *name)
{
    return di_req_tool(req, (di_str_t) { name, strlen(name) });
}

static void
check_tools(void)
{
    const di_constraint_t *c;
    di_req_t              *req;
    di_api_err_t           e;

    /* Strict and other tools together; a schema that the official rewriting
     * would make poorer is shown and held as it is. */
    CHECK_EQ_INT(parse(C, CAPS, "\"tools\":[" TOOL("f", STRICT) "," TOOL("g",
                       "") "],\"parallel_tool_calls\":false", &req, &e),
                 DI_OK);
    c = di_req_constraint(req);
    CHECK(c->one_call && c->allowed == NULL);
    CHECK_EQ_STR(tool(req, "f")->schema_at.data,
                 "tools[0].function.parameters");
    CHECK(tool(req, "f")->schema == tool(req, "f")->parameters);
    CHECK(tool(req, "f")->strict == 1 && tool(req, "g")->strict == -1);
    di_req_close(req);

    /* Where it says the same, the model reads what the official one shows. */
    CHECK_EQ_INT(parse(C, CAPS, "\"tools\":[" TOOL("f", ",\"strict\":true,"
                       "\"parameters\":{\"properties\":{\"a\":{\"type\":"
                       "\"string\",\"title\":\"A\"}},\"type\":\"object\"}")
                       "]", &req, &e), DI_OK);
    CHECK(tool(req, "f")->schema != tool(req, "f")->parameters);
    di_req_close(req);

    /* A forced call may follow reasoning: the block is not open yet. */
    CHECK_EQ_INT(parse(C, CAPS, "\"tools\":[" TOOL("f", "") "],"
                       "\"tool_choice\":\"required\"", &req, &e), DI_OK);
    CHECK(di_req_conv(req)->thinking && !di_req_parsing(req)->forced
          && di_req_conv(req)->choice == DI_CHOICE_REQUIRED);
    di_req_close(req);

    /* Some tools of many. */
    CHECK_EQ_INT(parse(C, CAPS, "\"tools\":[" TOOL("f", "") "," TOOL("g", "")
                       "],\"tool_choice\":{\"type\":\"allowed_tools\","
                       "\"allowed_tools\":{\"mode\":\"required\",\"tools\":[{"
                       "\"type\":\"function\",\"function\":{\"name\":\"g\"}}]"
                       "}}", &req, &e), DI_OK);
    c = di_req_constraint(req);
    CHECK(c->allowed != NULL && !c->allowed[0] && c->allowed[1]);
    CHECK(di_req_conv(req)->n_tools == 2
          && di_req_conv(req)->choice == DI_CHOICE_REQUIRED);
    di_req_close(req);

    CHECK_EQ_INT(parse(R, CAPS, "\"tools\":[" FLAT("f", STRICT) "," FLAT("g",
                       "") "],\"tool_choice\":{\"type\":\"allowed_tools\","
                       "\"mode\":\"auto\",\"tools\":[{\"type\":\"function\","
                       "\"name\":\"f\"}]}", &req, &e), DI_OK);
    c = di_req_constraint(req);
    CHECK(c->allowed != NULL && c->allowed[0] && !c->allowed[1]);
    CHECK_EQ_STR(tool(req, "f")->schema_at.data, "tools[0].parameters");
    di_req_close(req);

    CHECK_EQ_INT(parse(M, CAPS, "\"tools\":[{\"name\":\"f\",\"strict\":true,"
                       "\"input_schema\":" SCHEMA "}],\"tool_choice\":{"
                       "\"type\":\"tool\",\"name\":\"f\","
                       "\"disable_parallel_tool_use\":true}", &req, &e),
                 DI_OK);
    CHECK(di_req_constraint(req)->one_call);
    CHECK_EQ_STR(tool(req, "f")->schema_at.data, "tools[0].input_schema");
    di_req_close(req);

    /* A custom tool's expression is the schema of its one parameter. */
    CHECK_EQ_INT(parse(R, CAPS, "\"tools\":[{\"type\":\"custom\",\"name\":"
                       "\"x\",\"format\":{\"type\":\"grammar\",\"syntax\":"
                       "\"regex\",\"definition\":\"a|b\"}}]", &req, &e),
                 DI_OK);
    CHECK(tool(req, "x")->strict == 1
          && tool(req, "x")->schema != tool(req, "x")->parameters);
    CHECK_EQ_STR(tool(req, "x")->schema_at.data,
                 "tools[0].format.definition");
    di_req_close(req);
}

/* ---------------------------------------------------------------- refused */

static const struct {
    di_api_t    api;
    const char *fields, *param, *tells;
} refused[] = {
    /* two at once: both are named */
    { C, "\"guided_json\":{},\"guided_regex\":\"a\"", "guided_regex",
      "'guided_json' and 'guided_regex'" },
    { C, "\"regex\":\"a\",\"response_format\":{\"type\":\"json_object\"}",
      "response_format", "'regex' and 'response_format'" },
    { P, "\"structured_outputs\":{\"json\":{},\"choice\":[\"a\"]}",
      "structured_outputs.choice",
      "'structured_outputs.json' and 'structured_outputs.choice'" },
    { R, "\"text\":{\"format\":{\"type\":\"json_object\"}},\"ebnf\":\"x\"",
      "text.format", "'ebnf' and 'text.format'" },
    { M, "\"output_format\":{\"type\":\"json_schema\",\"schema\":{}},"
      "\"output_config\":{\"format\":{\"type\":\"json_schema\",\"schema\":{}"
      "}}", "output_format.schema",
      "'output_config.format.schema' and 'output_format.schema'" },

    /* by name */
    { C, "\"guided_whitespace_pattern\":\" ?\"", "guided_whitespace_pattern",
      "whitespace" },
    { C, "\"structural_tag\":\"{}\"", "structural_tag", "strict" },
    { C, "\"structured_outputs\":{\"structural_tag\":\"{}\"}",
      "structured_outputs.structural_tag", "strict" },
    { C, "\"structured_outputs\":{\"whitespace_pattern\":\" \"}",
      "structured_outputs.whitespace_pattern", "whitespace" },
    { C, "\"structured_outputs\":{\"disable_additional_properties\":true}",
      "structured_outputs.disable_additional_properties", "stands" },
    { C, "\"guided_decoding_backend\":\"xgrammar:disable-any-whitespace\"",
      "guided_decoding_backend", "without options" },
    { R, "\"tools\":[{\"type\":\"custom\",\"name\":\"x\",\"format\":{\"type\":"
      "\"grammar\",\"syntax\":\"lark\",\"definition\":\"start: A\"}}]",
      "tools[0].format.syntax", "lark" },
    { C, "\"tools\":[{\"type\":\"custom\",\"custom\":{\"name\":\"x\","
      "\"format\":{\"type\":\"grammar\",\"grammar\":{\"syntax\":\"lark\","
      "\"definition\":\"start: A\"}}}}]",
      "tools[0].custom.format.grammar.syntax", "lark" },

    /* shapes */
    { C, "\"guided_json\":5", "guided_json", "JSON Schema" },
    { C, "\"guided_json\":\"[]\"", "guided_json", "JSON Schema" },
    { C, "\"guided_json\":{\"type\":\"zzz\"}", "guided_json", "zzz" },
    { C, "\"guided_regex\":\"\"", "guided_regex", "empty" },
    { C, "\"guided_choice\":[]", "guided_choice", "empty" },
    { C, "\"guided_choice\":[\"a\",5]", "guided_choice[1]", "a string" },
    { C, "\"structured_outputs\":5", "structured_outputs", "an object" },
    { C, "\"grammar_options\":{\"whitespace\":\"x\"}",
      "grammar_options.whitespace", "'compact'" },
    { C, "\"grammar_options\":{\"best_effort\":1}",
      "grammar_options.best_effort", "boolean" },
    { C, "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{"
      "\"schema\":{}}}", "response_format.json_schema.name", "Missing" },
    { C, "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{"
      "\"name\":\"a b\",\"schema\":{}}}", "response_format.json_schema.name",
      "pattern" },
    { C, "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{"
      "\"name\":\"n\",\"schema\":{\"type\":5}}}",
      "response_format.json_schema.schema", "Invalid json schema" },
    { R, "\"text\":{\"format\":{\"type\":\"json_schema\",\"name\":\"\","
      "\"schema\":{}}}", "text.format.name", "pattern" },
    { M, "\"output_format\":{\"type\":\"json_object\"}", "output_format.type",
      "'json_schema'" },
    { C, "\"tools\":[" TOOL("f", "") "],\"tool_choice\":{\"type\":"
      "\"allowed_tools\",\"allowed_tools\":{\"mode\":\"auto\",\"tools\":[{"
      "\"type\":\"function\",\"function\":{\"name\":\"x\"}}]}}",
      "tool_choice.allowed_tools.tools[0]", "none of the tools" },
    { R, "\"tools\":[" FLAT("f", "") "],\"tool_choice\":{\"type\":"
      "\"allowed_tools\",\"mode\":\"auto\",\"tools\":[]}",
      "tool_choice.tools", "empty" },
    { R, "\"tools\":[" FLAT("f", "") "],\"tool_choice\":{\"type\":"
      "\"allowed_tools\",\"mode\":\"x\",\"tools\":[]}", "tool_choice.mode",
      "'required'" },
};

static void
check_refused(void)
{
    di_req_t     *req;
    di_api_err_t  e;
    size_t        i;

    for (i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        CHECK(parse(refused[i].api, CAPS, refused[i].fields, &req, &e)
              != DI_OK);
        CHECK(req == NULL);
        CHECK_EQ_INT(e.status, 400);
        CHECK_EQ_STR(e.param, refused[i].param);
        CHECK(strstr(e.message, refused[i].tells) != NULL);
        if (strstr(e.message, refused[i].tells) == NULL)
            printf("  %s: %s\n", refused[i].fields, e.message);
        di_req_close(req);
    }
}

/* A format can't be held on a text that the client began. */
static void
check_prefixes(void)
{
    static const char prefix[] = "{\"model\":\"m\",\"messages\":[{\"role\":"
        "\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":"
        "\"{\"}]%s}";
    static const struct { const char *fields, *param; } cases[] = {
        { ",\"output_format\":{\"type\":\"json_schema\",\"schema\":{}}",
          "output_format.schema" },
        { ",\"guided_regex\":\"a\"", "guided_regex" },
        { ",\"tools\":[{\"name\":\"f\",\"input_schema\":{\"type\":\"object\"}"
          "}],\"tool_choice\":{\"type\":\"any\"}", "tool_choice" },
    };
    const di_req_options_t o = { .family = DI_FAMILY_V41, .caps = CAPS };
    di_req_t              *req;
    di_api_err_t           e;
    char                   body[512];
    size_t                 i;

    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        snprintf(body, sizeof(body), prefix, cases[i].fields);
        memset(&e, 0, sizeof(e));
        CHECK_EQ_INT(di_req_parse(M, &o, body, strlen(body), &req, &e),
                     DI_EINVAL);
        CHECK_EQ_STR(e.param, cases[i].param);
    }
}

/* A server that can't constrain refuses every field of this file. */
static void
check_without(void)
{
    di_req_t     *req;
    di_api_err_t  e;
    size_t        i;

    for (i = 0; i < sizeof(taken) / sizeof(taken[0]); i++) {
        if (taken[i].kind == NONE)
            continue;
        CHECK(parse(taken[i].api, CAPS & ~DI_CAN_CONSTRAIN, taken[i].fields,
                    &req, &e) != DI_OK);
        CHECK(strstr(e.message, "can't hold") != NULL);
    }
}

static void
check_nomem(void)
{
    di_req_t     *req;
    di_api_err_t  e;
    int           n, rc;

    for (n = 0; ; n++) {
        nomem_after(n);
        rc = parse(C, CAPS, "\"tools\":[" TOOL("f", STRICT) "],"
                   "\"tool_choice\":{\"type\":\"allowed_tools\","
                   "\"allowed_tools\":{\"mode\":\"auto\",\"tools\":[{"
                   "\"function\":{\"name\":\"f\"}}]}},\"guided_json\":\"{}\"",
                   &req, &e);
        di_req_close(req);
        if (!nomem_off())
            break;
        CHECK_EQ_INT(rc, DI_ENOMEM);
        CHECK_EQ_INT(e.status, 500);
    }
    CHECK_EQ_INT(rc, DI_OK);
}

int
main(void)
{
    check_taken();
    check_options();
    check_tools();
    check_refused();
    check_prefixes();
    check_without();
    check_nomem();
    return check_done("constrain");
}
