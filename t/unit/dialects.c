/*
 * dialects.c - dialects rendered from requests: tools, calls, results,
 * reasoning and prefixes of Qwen, Llama 3, DeepSeek R1 and V4.1, and by what
 * a template is recognised.  Golden vectors hold the DeepSeek V4 ones to the
 * letter (t/vectors); here is what they have no case for.
 *
 * No vocabulary is needed: a special piece is shown as @{SPELLING}.
 */

#include <stdlib.h>

#include "tokenizer/api/di_api.h"
#include "tokenizer/dialect/dialect.h"

#include "check.h"

#define S(text)  { text, sizeof(text) - 1 }

static const di_str_t none = { NULL, 0 };

static const char *
spell(const di_pieces_t *p)
{
    static char out[65536];
    size_t      i, at = 0;

    for (i = 0; i < p->n; i++)
        at += (size_t) snprintf(out + at, sizeof(out) - at,
                                p->pieces[i].special ? "@{%.*s}" : "%.*s",
                                (int) p->pieces[i].len,
                                p->text + p->pieces[i].at);

    return out;
}

/* Read a Chat request for a dialect and render it, or `fails` so. */
static void
check_render(const char *name, di_str_t template_text, const char *body,
             const char *want, const char *fails)
{
    di_req_options_t o = { .codec = DI_CODEC_STRICT, .vocab = 100 };
    di_pieces_t      p = { 0 };
    di_dialect_t    *d = NULL;
    di_req_t        *req = NULL;
    di_api_err_t     e = { 0 };
    di_err_t         err = { 0 };
    char             whole[4096];

    CHECK_EQ_INT(di_dialect_open(NULL, template_text, name, &d, &err), DI_OK);
    if (d == NULL) {
        printf("  %s\n", err.text);
        return;
    }

    o.family = di_dialect_family(d);
    o.caps = di_dialect_caps(d);
    snprintf(whole, sizeof(whole), "{\"model\":\"m\",%s}", body);
    CHECK_EQ_INT(di_req_parse(DI_API_CHAT, &o, whole, strlen(whole), &req,
                              &e), DI_OK);

    if (req == NULL) {
        printf("  %s: %s\n", body, e.message);

    } else {
        CHECK_EQ_INT(di_dialect_render(d, di_req_conv(req), &p, &err),
                     fails == NULL ? DI_OK : DI_EINVAL);
        CHECK_EQ_STR(fails == NULL ? spell(&p) : err.text,
                     fails == NULL ? want : fails);
    }

    di_pieces_free(&p);
    di_req_close(req);
    di_dialect_close(d);
}

static void
check_prompt(const char *name, di_str_t template_text, const char *body,
             const char *want)
{
    check_render(name, template_text, body, want, NULL);
}

#define TOOLS                                                               \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\","       \
    "\"description\":\"d\",\"parameters\":{\"type\":\"object\","            \
    "\"properties\":{}}}}]"
#define CALLED                                                              \
    "{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\","        \
    "\"reasoning_content\":\"why\",\"tool_calls\":[{\"id\":\"1\","          \
    "\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":"     \
    "\"{\\\"a\\\":[1,2.50]}\"}}]},{\"role\":\"tool\",\"tool_call_id\":"     \
    "\"1\",\"content\":\"r\"}"

/* ------------------------------------------------------------------- qwen */

#define QWEN_TOOLS                                                          \
    "# Tools\n\nYou may call one or more functions to assist with the user" \
    " query.\n\nYou are provided with function signatures within"           \
    " <tools></tools> XML tags:\n<tools>\n{\"type\": \"function\","         \
    " \"function\": {\"name\": \"f\", \"description\": \"d\","              \
    " \"parameters\": {\"type\": \"object\", \"properties\": {}}}}\n"       \
    "</tools>\n\nFor each function call, return a json object with"         \
    " function name and arguments within @{<tool_call>}@{</tool_call>} XML" \
    " tags:\n@{<tool_call>}\n{\"name\": <function-name>, \"arguments\":"    \
    " <args-json-object>}\n@{</tool_call>}"

static void
check_qwen(void)
{
    static const di_str_t v25 = S("<tools></tools> <tool_call>"
        " <tool_response> '<|im_start|>system\\nYou are Qwen.<|im_end|>\\n'");
    static const di_str_t v3 = S("<tools></tools> <tool_call> <tool_response>"
        " <|im_start|> enable_thinking last_query_index");

    check_prompt(NULL, v25, "\"messages\":[{\"role\":\"user\",\"content\":"
                 "\"hi\"}]",
                 "@{<|im_start|>}system\nYou are Qwen.@{<|im_end|>}\n"
                 "@{<|im_start|>}user\nhi@{<|im_end|>}\n"
                 "@{<|im_start|>}assistant\n");

    check_prompt(NULL, v25, TOOLS ",\"messages\":[" CALLED "]",
                 "@{<|im_start|>}system\nYou are Qwen.\n\n" QWEN_TOOLS
                 "@{<|im_end|>}\n@{<|im_start|>}user\nq@{<|im_end|>}\n"
                 "@{<|im_start|>}assistant\n@{<tool_call>}\n{\"name\": \"f\","
                 " \"arguments\": {\"a\": [1, 2.5]}}\n@{</tool_call>}"
                 "@{<|im_end|>}\n@{<|im_start|>}user\n@{<tool_response>}\nr\n"
                 "@{</tool_response>}@{<|im_end|>}\n"
                 "@{<|im_start|>}assistant\n");

    /* Thinking: shown behind the last question, and off by an empty one. */
    check_prompt(NULL, v3, TOOLS ",\"messages\":[" CALLED "]",
                 "@{<|im_start|>}system\n" QWEN_TOOLS "@{<|im_end|>}\n"
                 "@{<|im_start|>}user\nq@{<|im_end|>}\n@{<|im_start|>}"
                 "assistant\n@{<think>}\nwhy\n@{</think>}\n\n@{<tool_call>}\n"
                 "{\"name\": \"f\", \"arguments\": {\"a\": [1, 2.5]}}\n"
                 "@{</tool_call>}@{<|im_end|>}\n@{<|im_start|>}user\n"
                 "@{<tool_response>}\nr\n@{</tool_response>}@{<|im_end|>}\n"
                 "@{<|im_start|>}assistant\n");
    check_prompt(NULL, v3, "\"reasoning_effort\":\"none\",\"messages\":[{"
                 "\"role\":\"user\",\"content\":\"<|im_end|>\"}]",
                 "@{<|im_start|>}user\n<|im_end|>@{<|im_end|>}\n"
                 "@{<|im_start|>}assistant\n@{<think>}\n\n@{</think>}\n\n");

    /* Arguments that are no JSON, and none (B10, B11). */
    check_prompt("qwen", none, "\"messages\":[{\"role\":\"user\",\"content\":"
                 "\"q\"},{\"role\":\"assistant\",\"content\":\"t\","
                 "\"tool_calls\":[{\"id\":\"1\",\"type\":\"function\","
                 "\"function\":{\"name\":\"f\",\"arguments\":\"{x\\\"\"}},{"
                 "\"id\":\"2\",\"type\":\"function\",\"function\":{\"name\":"
                 "\"g\",\"arguments\":\"\"}}]},{\"role\":\"tool\","
                 "\"tool_call_id\":\"2\",\"content\":\"b\"},{\"role\":"
                 "\"tool\",\"tool_call_id\":\"1\",\"content\":\"a\"}]",
                 "@{<|im_start|>}user\nq@{<|im_end|>}\n@{<|im_start|>}"
                 "assistant\nt\n@{<tool_call>}\n{\"name\": \"f\","
                 " \"arguments\": \"{x\\\"\"}\n@{</tool_call>}\n"
                 "@{<tool_call>}\n{\"name\": \"g\", \"arguments\": {}}\n"
                 "@{</tool_call>}@{<|im_end|>}\n@{<|im_start|>}user\n"
                 "@{<tool_response>}\nb\n@{</tool_response>}\n"
                 "@{<tool_response>}\na\n@{</tool_response>}@{<|im_end|>}\n"
                 "@{<|im_start|>}assistant\n");
}

/* ----------------------------------------------------------------- llama3 */

#define TURN(role)  "@{<|start_header_id|>}" role "@{<|end_header_id|>}\n\n"
#define EOT         "@{<|eot_id|>}"
#define DATES                                                               \
    "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n"

static void
check_llama3(void)
{
    static const di_str_t v30 = S("<|start_header_id|> <|end_header_id|>"
                                  " <|eot_id|>");
    static const di_str_t v31 = S("<|start_header_id|> <|end_header_id|>"
                                  " <|eot_id|> ipython Cutting Knowledge Date");

    check_prompt(NULL, v30, "\"messages\":[{\"role\":\"user\",\"content\":"
                 "\" hi\\n\"}]", "@{<|begin_of_text|>}" TURN("user") "hi" EOT
                 TURN("assistant"));
    check_prompt(NULL, v31, "\"messages\":[{\"role\":\"system\",\"content\":"
                 "\"s\"},{\"role\":\"user\",\"content\":\"hi\"}]",
                 "@{<|begin_of_text|>}" TURN("system") DATES "s" EOT
                 TURN("user") "hi" EOT TURN("assistant"));
    check_prompt(NULL, v31, TOOLS ",\"messages\":[" CALLED "]",
                 "@{<|begin_of_text|>}" TURN("system")
                 "Environment: ipython\n" DATES EOT TURN("user")
                 "Given the following functions, please respond with a JSON"
                 " for a function call with its proper arguments that best"
                 " answers the given prompt.\n\nRespond in the format"
                 " {\"name\": function name, \"parameters\": dictionary of"
                 " argument name and its value}.Do not use variables.\n\n"
                 "{\n    \"type\": \"function\",\n    \"function\": {\n"
                 "        \"name\": \"f\",\n        \"description\": \"d\",\n"
                 "        \"parameters\": {\n            \"type\":"
                 " \"object\",\n            \"properties\": {}\n        }\n"
                 "    }\n}\n\nq" EOT TURN("assistant")
                 "{\"name\": \"f\", \"parameters\": {\"a\": [1, 2.5]}}" EOT
                 TURN("ipython") "\"r\"" EOT TURN("assistant"));
    check_prompt("llama3", none, "\"messages\":[{\"role\":\"user\","
                 "\"content\":\"a\"},{\"role\":\"assistant\",\"content\":"
                 "\"b \",\"prefix\":true}]", "@{<|begin_of_text|>}"
                 TURN("system") DATES EOT TURN("user") "a" EOT
                 TURN("assistant") "b ");

    /* Tools stand with the user's first message, wherever that is. */
    check_render(NULL, v31, TOOLS ",\"messages\":[{\"role\":\"assistant\","
                 "\"content\":\"a\"}]", NULL, "tools: this model's dialect"
                 " (llama3) has them in the first message of the user's, and"
                 " there is none");
}

/* --------------------------------------------------------------- DeepSeek */

#define BAR(name)  "@{<\xef\xbd\x9c" name "\xef\xbd\x9c>}"
#define BOS        BAR("begin\xe2\x96\x81of\xe2\x96\x81sentence")
#define EOS        BAR("end\xe2\x96\x81of\xe2\x96\x81sentence")

static void
check_deepseek(void)
{
    static const di_str_t r1 = S("<\xef\xbd\x9cUser\xef\xbd\x9c> "
                                 "<\xef\xbd\x9c" "Assistant\xef\xbd\x9c>"
                                 "<think>\\n");

    check_prompt(NULL, r1, "\"messages\":[{\"role\":\"system\",\"content\":"
                 "\"s\"},{\"role\":\"user\",\"content\":\"a\"},{\"role\":"
                 "\"assistant\",\"content\":\"b\",\"reasoning_content\":"
                 "\"w\"},{\"role\":\"user\",\"content\":\"<think>\"}]",
                 BOS "s" BAR("User") "a" BAR("Assistant") "b" EOS BAR("User")
                 "<think>" BAR("Assistant") "@{<think>}\n");
    check_prompt("deepseek-r1", none, "\"messages\":[{\"role\":\"user\","
                 "\"content\":\"a\"},{\"role\":\"assistant\",\"content\":"
                 "\"b\",\"reasoning_content\":\"w\",\"prefix\":true}]",
                 BOS BAR("User") "a" BAR("Assistant")
                 "@{<think>}\nw\n@{</think>}\n\nb");

    /* A developer is a system message; an empty user's brings nothing on V4,
     * and its newlines on V4.1. */
    check_prompt("deepseek-v4", none, "\"reasoning_effort\":\"none\","
                 "\"messages\":[{\"role\":\"developer\",\"content\":\"s\"},{"
                 "\"role\":\"user\",\"content\":\"\"},{\"role\":\"user\","
                 "\"content\":\"a\"},{\"role\":\"user\",\"content\":\"\"},{"
                 "\"role\":\"user\",\"content\":\"b\"}]", BOS "s" BAR("User")
                 "a\n\nb" BAR("Assistant") "@{</think>}");
    check_prompt("deepseek-v4.1", none, "\"reasoning_effort\":\"none\","
                 "\"messages\":[{\"role\":\"developer\",\"content\":\"s\"},{"
                 "\"role\":\"user\",\"content\":\"\"},{\"role\":\"user\","
                 "\"content\":\"a\"},{\"role\":\"user\",\"content\":\"\"},{"
                 "\"role\":\"user\",\"content\":\"b\"}]", BOS BAR("System")
                 "s" BAR("User") "\n\na\n\n\n\nb" BAR("Assistant")
                 "@{</think>}");
}

/* ---------------------------------------------------------------- unknown */

static void
check_unknown(void)
{
    static const di_str_t coder = S("<tools></tools> <tool_call> <|im_start|>"
                                    " <tool_response> <function=f>");
    di_dialect_t         *d = NULL;
    di_err_t              err = { 0 };

    CHECK_EQ_INT(di_dialect_open(NULL, coder, NULL, &d, &err),
                 DI_EUNSUPPORTED);
    CHECK(strstr(err.text, "chatml, qwen, llama3, deepseek-r1, deepseek-v4,"
                 " deepseek-v4.1") != NULL);
}

int
main(void)
{
    check_qwen();
    check_llama3();
    check_deepseek();
    check_unknown();
    return check_done("dialects");
}
