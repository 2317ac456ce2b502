/*
 * req.c - requests of every API by the strict codec: what is honoured,
 * refused, and how errors look; and of the official one what no golden vector
 * tells.  Chat's sampling fields are in chat_parse.c.
 */

#include <jansson.h>
#include <stdlib.h>

#include "tokenizer/api/di_api.h"
#include "tokenizer/api/json.h"

#include "check.h"
#include "nomem.h"

#define CHAT       DI_API_CHAT
#define RESPONSES  DI_API_RESPONSES
#define MESSAGES   DI_API_MESSAGES
#define CAPS       (DI_CAN_TOOLS | DI_CAN_THINK | DI_CAN_PREFIX)

#define USER    "{\"role\":\"user\",\"content\":\"q\"}"
#define PARAMS  "{\"type\":\"object\",\"properties\":{}}"
#define TOOL    "{\"type\":\"function\",\"function\":{\"name\":\"f\","         \
                "\"parameters\":" PARAMS "}}"
#define FLAT    "{\"type\":\"function\",\"name\":\"f\",\"parameters\":" PARAMS \
                "}"
#define USE     "{\"name\":\"f\",\"input_schema\":" PARAMS "}"

static di_req_options_t
options(uint32_t caps)
{
    return (di_req_options_t) { .family = DI_FAMILY_V41, .caps = caps,
                                .vocab = 1000 };
}

static int
parse(di_api_t api, const di_req_options_t *o, const char *fields,
      di_req_t **req, di_api_err_t *e)
{
    char *body = malloc(strlen(fields) + 32);
    int   rc;

    /* The request owns all it points at: the body is gone afterwards. */
    sprintf(body, "{\"model\":\"m\"%s%s}", fields[0] ? "," : "", fields);
    memset(e, 0, sizeof(*e));
    *req = NULL;
    rc = di_req_parse(api, o, body, strlen(body), req, e);
    memset(body, '#', strlen(body));
    free(body);
    return rc;
}

/* A request that must be taken. */
static di_req_t *
good(di_api_t api, uint32_t caps, const char *fields)
{
    di_req_options_t o = options(caps);
    di_req_t        *req;
    di_api_err_t     e;

    CHECK_EQ_INT(parse(api, &o, fields, &req, &e), DI_OK);
    if (req == NULL) {
        printf("%s: %s\n", fields, e.message);
        exit(check_done("req"));
    }
    return req;
}

static bool
is(di_str_t s, const char *text)
{
    return s.data != NULL && s.len == strlen(text)
           && memcmp(s.data, text, s.len) == 0;
}

/* ------------------------------------------------------------- honoured -- */

static void
check_chat(void)
{
    di_req_t        *req = good(CHAT, CAPS, "\"tools\":[" TOOL "],"
        "\"parallel_tool_calls\":false,\"reasoning_effort\":\"xhigh\","
        "\"messages\":[{\"role\":\"developer\",\"content\":\"d\"}," USER ",{"
        "\"role\":\"assistant\",\"content\":null,\"reasoning_content\":\"r\","
        "\"tool_calls\":[{\"id\":\"1\",\"type\":\"function\",\"index\":0,"
        "\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]},{\"role\":"
        "\"tool\",\"tool_call_id\":\"1\",\"content\":[{\"type\":\"text\","
        "\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}]}]");
    const di_conv_t *c = di_req_conv(req);

    CHECK(c->n_msgs == 4 && c->msgs[0].role == DI_ROLE_DEVELOPER);
    CHECK(is(c->msgs[2].reasoning, "r") && c->msgs[2].n_calls == 1
          && is(c->msgs[2].calls[0].arguments, "{}"));
    CHECK(is(c->msgs[3].call_id, "1") && is(c->msgs[3].content, "a\n\nb"));
    CHECK(c->thinking && c->effort == DI_EFFORT_XHIGH);
    CHECK(c->n_tools == 1 && di_req_parsing(req)->tools
          && !di_req_parsing(req)->forced);
    CHECK_EQ_INT(di_req_parsing(req)->stage, DI_STAGE_REASONING_START);
    CHECK_EQ_INT(di_req_constraint(req)->kind, DI_CONSTRAINT_NONE);
    CHECK(!di_req_params(req)->parallel_tool_calls);
    CHECK(di_req_tool(req, (di_str_t) { "f", 1 }) == c->tools[0]
          && di_req_tool(req, (di_str_t) { "g", 1 }) == NULL);
    di_req_close(req);

    req = good(CHAT, CAPS, "\"messages\":[" USER ",{\"role\":\"assistant\","
               "\"content\":\"a\",\"prefix\":true}]");
    CHECK_EQ_INT(di_req_parsing(req)->stage, DI_STAGE_CONTENT_CONTINUATION);
    CHECK(di_req_conv(req)->msgs[1].prefix);
    di_req_close(req);

    req = good(CHAT, CAPS, "\"tools\":[{\"type\":\"custom\",\"custom\":{"
               "\"name\":\"x\",\"description\":\"d\"}}],\"messages\":[" USER
               ",{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"1\","
               "\"type\":\"custom\",\"custom\":{\"name\":\"x\",\"input\":"
               "\"a\\\"b\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"1\","
               "\"content\":\"r\"}]");
    CHECK(di_req_tool(req, (di_str_t) { "x", 1 })->kind == DI_TOOL_CUSTOM);
    CHECK(is(di_req_conv(req)->msgs[1].calls[0].arguments,
             "{\"input\":\"a\\\"b\"}"));
    di_req_close(req);

    /* With constraints everything of tool_choice and formats is taken. */
    req = good(CHAT, CAPS | DI_CAN_CONSTRAIN, "\"tools\":[" TOOL "],"
               "\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":"
               "\"f\"}},\"reasoning_effort\":\"none\",\"messages\":[" USER "]");
    CHECK(di_req_parsing(req)->forced
          && di_req_conv(req)->choice == DI_CHOICE_REQUIRED);
    di_req_close(req);
    req = good(CHAT, CAPS | DI_CAN_CONSTRAIN, "\"messages\":[" USER "],"
               "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":"
               "{\"name\":\"n\",\"schema\":{\"type\":\"object\"}}}");
    CHECK(is(di_req_constraint(req)->text, "{\"type\":\"object\"}"));
    di_req_close(req);
}

static void
check_messages(void)
{
    di_req_t        *req = good(MESSAGES, CAPS, "\"max_tokens\":10,\"top_k\":5,"
        "\"system\":[{\"type\":\"text\",\"text\":\"s\",\"cache_control\":{"
        "\"type\":\"ephemeral\"}}],\"stop_sequences\":[\"END\"],\"metadata\":{"
        "\"user_id\":\"u\"},\"tools\":[{\"type\":\"custom\",\"name\":\"f\","
        "\"input_schema\":" PARAMS "}],\"tool_choice\":{\"type\":\"auto\","
        "\"disable_parallel_tool_use\":true},\"thinking\":{\"type\":"
        "\"disabled\"},\"messages\":[" USER ",{\"role\":\"assistant\","
        "\"content\":[{\"type\":\"tool_use\",\"id\":\"1\",\"name\":\"f\","
        "\"input\":{\"a\":1}}]},{\"role\":\"user\",\"content\":[{\"type\":"
        "\"tool_result\",\"tool_use_id\":\"1\",\"is_error\":true,\"content\":"
        "\"bad\"},{\"type\":\"text\",\"text\":\"t\"}]},{\"role\":"
        "\"assistant\",\"content\":\"pre\"}]");
    const di_conv_t *c = di_req_conv(req);

    CHECK(c->n_msgs == 6 && c->msgs[0].role == DI_ROLE_SYSTEM);
    CHECK(is(c->msgs[2].calls[0].arguments, "{\"a\": 1}"));
    CHECK(c->msgs[3].role == DI_ROLE_TOOL
          && is(c->msgs[3].content, "Error: bad"));
    CHECK(c->msgs[4].role == DI_ROLE_USER && c->msgs[5].prefix);
    CHECK(!c->thinking && di_req_parsing(req)->stage == DI_STAGE_NONE);
    CHECK(!di_req_params(req)->parallel_tool_calls
          && di_req_params(req)->top_k == 5
          && di_req_params(req)->max_tokens == 10
          && di_req_params(req)->n_stop == 1);
    CHECK(is(di_req_ignored(req), ""));
    di_req_close(req);

    req = good(MESSAGES, CAPS | DI_CAN_CONSTRAIN, "\"messages\":[" USER "],"
               "\"thinking\":{\"type\":\"disabled\"},\"tools\":[" USE "],"
               "\"tool_choice\":{\"type\":\"any\"}");
    CHECK(di_req_parsing(req)->forced);
    di_req_close(req);
}

static void
check_responses(void)
{
    di_req_t        *req = good(RESPONSES, CAPS, "\"instructions\":\"i\","
        "\"store\":false,\"include\":[\"reasoning.encrypted_content\"],"
        "\"max_output_tokens\":7,\"top_logprobs\":2,\"reasoning\":{\"effort\":"
        "\"none\",\"summary\":\"auto\"},\"tools\":[" FLAT ",{\"type\":"
        "\"custom\",\"name\":\"run\",\"description\":\"d\",\"format\":{"
        "\"type\":\"text\"}},{\"type\":\"namespace\",\"name\":\"n\","
        "\"tools\":[{\"type\":\"function\",\"name\":\"f\"}]}],\"input\":[{"
        "\"type\":\"message\",\"id\":\"m\",\"status\":\"completed\","
        "\"role\":\"assistant\",\"content\":[{\"type\":\"output_text\","
        "\"text\":\"a\",\"annotations\":[],\"logprobs\":[]},{\"type\":"
        "\"refusal\",\"refusal\":\"no\"}]},{\"type\":\"custom_tool_call\","
        "\"call_id\":\"1\",\"name\":\"run\",\"input\":\"x\"},{\"type\":"
        "\"custom_tool_call_output\",\"call_id\":\"1\",\"output\":\"y\"}]");
    const di_conv_t *c = di_req_conv(req);
    const di_tool_t *t;

    CHECK(c->n_msgs == 3 && is(c->msgs[1].content, "a\n\nno"));
    CHECK(is(c->msgs[1].calls[0].arguments, "{\"input\":\"x\"}"));
    CHECK(!di_req_store(req) && di_req_previous(req).data == NULL);
    CHECK(di_req_params(req)->logprobs && di_req_params(req)->max_tokens == 7);
    t = di_req_tool(req, (di_str_t) { "n::f", 4 });
    CHECK(t != NULL && is(t->local, "f") && is(t->space, "n"));
    t = di_req_tool(req, (di_str_t) { "run", 3 });
    CHECK(t != NULL && t->kind == DI_TOOL_CUSTOM && is(t->description, "d"));
    CHECK(is(di_req_ignored(req), ""));
    di_req_close(req);
}

/* A response that goes on from another: its items come before the input, and
 * an output may answer a call of theirs. */
static void
check_previous(void)
{
    static const char fields[] = "\"previous_response_id\":\"resp_1\","
        "\"input\":[{\"type\":\"function_call_output\",\"call_id\":\"1\","
        "\"output\":\"r\"}]";
    static const char history[] = "[{\"type\":\"message\",\"role\":\"user\","
        "\"content\":\"q\"},{\"type\":\"function_call\",\"call_id\":\"1\","
        "\"name\":\"f\",\"arguments\":\"{}\"}]";
    di_req_options_t o = options(CAPS);
    di_req_t        *req;
    di_api_err_t     e;
    di_sbuf_t        b = { 0 };

    CHECK_EQ_INT(parse(RESPONSES, &o, fields, &req, &e), DI_EAGAIN);
    CHECK(req != NULL && is(di_req_previous(req), "resp_1"));
    di_req_close(req);

    o.history = (di_str_t) { history, sizeof(history) - 1 };
    CHECK_EQ_INT(parse(RESPONSES, &o, fields, &req, &e), DI_OK);
    CHECK_EQ_STR(e.message, "");
    CHECK(req != NULL && di_req_conv(req)->n_msgs == 3
          && di_req_conv(req)->msgs[2].role == DI_ROLE_TOOL);
    CHECK(req != NULL && di_req_store(req));
    di_req_write_items(req, &b);
    di_sbuf_add(&b, "", 1);
    CHECK_EQ_STR(b.data, "{\"type\":\"message\",\"role\":\"user\",\"content\":"
                 "\"q\"},{\"type\":\"function_call\",\"call_id\":\"1\","
                 "\"name\":\"f\",\"arguments\":\"{}\"},{\"type\":"
                 "\"function_call_output\",\"call_id\":\"1\",\"output\":"
                 "\"r\"}");
    di_sbuf_free(&b);
    di_req_close(req);

    CHECK_EQ_INT(parse(RESPONSES, &o, "\"previous_response_id\":\"\","
                       "\"input\":\"q\"", &req, &e), DI_EINVAL);
    CHECK_EQ_STR(e.param, "previous_response_id");

    o.history = (di_str_t) { "{", 1 };
    CHECK_EQ_INT(parse(RESPONSES, &o, fields, &req, &e), DI_EINVAL);
    CHECK_EQ_STR(e.param, "previous_response_id");
}

static void
check_completions(void)
{
    di_req_t          *req = good(DI_API_COMPLETIONS, 0, "\"prompt\":[\"a\","
                                  "\"b\"],\"echo\":true,\"logprobs\":3");
    const di_prompt_t *p;
    size_t             n;

    p = di_req_prompts(req, &n);
    CHECK(n == 2 && is(p[1].text, "b") && di_req_params(req)->echo
          && di_req_params(req)->top_logprobs == 3);
    di_req_close(req);

    req = good(DI_API_COMPLETIONS, 0, "\"prompt\":[1,2,999]");
    p = di_req_prompts(req, &n);
    CHECK(n == 1 && p->n_ids == 3 && p->ids[2] == 999);
    di_req_close(req);

    req = good(DI_API_COMPLETIONS, 0, "\"prompt\":[[1],[2,3]]");
    p = di_req_prompts(req, &n);
    CHECK(n == 2 && p[1].n_ids == 2 && p[1].ids[0] == 2);
    di_req_close(req);
}

#define MSGS  "\"messages\":[" USER "]"

/* Documented fields that change nothing here: taken, and not noted as unknown
 * ones are. */
static void
check_accepted(void)
{
    static const struct { di_api_t api; const char *fields; } cases[] = {
        { CHAT, MSGS ",\"prompt_cache_options\":{\"mode\":\"implicit\","
          "\"ttl\":\"30m\"}" },
        { CHAT, "\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":"
          "\"text\",\"text\":\"q\",\"prompt_cache_breakpoint\":{\"mode\":"
          "\"explicit\"}}]}]" },
        { RESPONSES, "\"input\":\"q\",\"prompt_cache_options\":{},"
          "\"access_programs\":{},\"background_options\":{},\"image\":{},"
          "\"include\":[\"file_search_call.results\"],\"reasoning\":{"
          "\"context\":\"auto\",\"mode\":\"standard\"}" },
        { RESPONSES, "\"tools\":[{\"type\":\"function\",\"name\":\"f\","
          "\"async\":false,\"allowed_callers\":[\"programmatic\",\"direct\"],"
          "\"output_schema\":{}},{\"type\":\"custom\",\"name\":\"c\","
          "\"defer_loading\":false,\"allowed_callers\":[\"direct\"]}],"
          "\"input\":[{\"type\":\"function_call\",\"call_id\":\"1\","
          "\"name\":\"f\",\"arguments\":\"{}\",\"caller\":{\"type\":"
          "\"direct\"},\"async\":false},{\"type\":\"function_call_output\","
          "\"call_id\":\"1\",\"name\":\"f\",\"output\":[{\"type\":"
          "\"input_text\",\"text\":\"r\",\"prompt_cache_breakpoint\":{}}]}"
          "]" },
        { MESSAGES, MSGS ",\"cache_control\":{\"type\":\"ephemeral\"},"
          "\"speed\":\"standard\",\"inference_geo\":\"global\","
          "\"user_profile_id\":\"u\",\"workspace_id\":\"w\","
          "\"billing_policy\":{},\"fallback_credit_token\":\"t\"" },
        { MESSAGES, MSGS ",\"thinking\":{\"type\":\"enabled\","
          "\"budget_tokens\":1024,\"display\":\"summarized\","
          "\"block_binding\":{}},\"tools\":[{\"name\":\"f\","
          "\"input_schema\":" PARAMS ",\"allowed_callers\":[\"direct\"]}]" },
        { CHAT, MSGS ",\"use_beam_search\":false,\"bad_words\":[],"
          "\"skip_special_tokens\":true,\"cache_salt\":null" },
        { DI_API_COMPLETIONS, "\"prompt\":\"q\",\"n\":2,\"best_of\":2" },
    };
    di_req_t *req;
    size_t    i;

    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        req = good(cases[i].api, CAPS, cases[i].fields);
        CHECK(is(di_req_ignored(req), ""));
        if (!is(di_req_ignored(req), ""))
            printf("  ignored: %s\n", di_req_ignored(req).data);
        CHECK(!di_req_params(req)->hide_thinking);
        di_req_close(req);
    }

    /* what templates of Qwen and DeepSeek are asked for */
    req = good(CHAT, CAPS, MSGS ",\"chat_template_kwargs\":{"
               "\"enable_thinking\":false}");
    CHECK(!di_req_conv(req)->thinking && is(di_req_ignored(req), ""));
    di_req_close(req);
    req = good(CHAT, CAPS, MSGS ",\"chat_template_kwargs\":{\"thinking\":true,"
               "\"x\":1}");
    CHECK(di_req_conv(req)->thinking
          && is(di_req_ignored(req), "chat_template_kwargs.x"));
    di_req_close(req);
    req = good(CHAT, CAPS, MSGS ",\"reasoning_effort\":\"low\","
               "\"chat_template_kwargs\":{\"thinking\":false}");
    CHECK(di_req_conv(req)->thinking);
    di_req_close(req);

    req = good(MESSAGES, CAPS, MSGS ",\"thinking\":{\"type\":\"adaptive\","
               "\"display\":\"omitted\"}");
    CHECK(di_req_params(req)->hide_thinking);
    di_req_close(req);
}

/* --------------------------------------------------------------- refused - */

static const struct {
    di_api_t    api;
    uint32_t    caps;
    const char *fields, *param, *tells;
} bad[] = {
    /* what needs constrained decoding */
    { CHAT, CAPS, MSGS ",\"tools\":[" TOOL "],\"tool_choice\":\"required\"",
      "tool_choice", "can't force a call" },
    { CHAT, CAPS, MSGS ",\"tools\":[{\"type\":\"function\",\"function\":{"
      "\"name\":\"f\",\"strict\":true}}]", "tools[0].function.name",
      "strict schema" },
    { CHAT, CAPS, MSGS ",\"response_format\":{\"type\":\"json_schema\","
      "\"json_schema\":{\"name\":\"n\",\"schema\":{}}}",
      "response_format.type",
      "hold the model to a format" },
    { RESPONSES, CAPS, "\"input\":\"q\",\"text\":{\"format\":{\"type\":"
      "\"json_object\"}}", "text.format.type", "json_object" },
    { RESPONSES, CAPS, "\"input\":\"q\",\"tools\":[{\"type\":\"custom\","
      "\"name\":\"x\",\"format\":{\"type\":\"grammar\"}}]", "tools[0].format",
      "to a format" },
    { MESSAGES, CAPS, MSGS ",\"tools\":[" USE "],\"tool_choice\":{\"type\":"
      "\"any\"}", "tool_choice", "can't force a call" },
    { MESSAGES, CAPS, MSGS ",\"output_config\":{\"format\":{\"type\":"
      "\"json_schema\",\"schema\":{}}}", "output_config.format",
      "to a format" },
    { CHAT, CAPS, MSGS ",\"guided_json\":{}", "guided_json",
      "to a format" },

    /* what the model can't do */
    { CHAT, 0, MSGS ",\"tools\":[" TOOL "]", "tools", "no spelling" },
    { CHAT, 0, MSGS ",\"thinking\":{\"type\":\"enabled\"}", "thinking.type",
      "no reasoning mode" },
    { CHAT, CAPS | DI_MUST_THINK, MSGS ",\"reasoning_effort\":\"none\"",
      "reasoning_effort", "always thinks" },
    { CHAT, 0, "\"messages\":[" USER ",{\"role\":\"assistant\",\"content\":"
      "\"a\",\"prefix\":true}]", "messages", "prefix" },
    { MESSAGES, 0, "\"messages\":[" USER ",{\"role\":\"assistant\","
      "\"content\":\"a\"}]", "messages", "can't go on" },
    { MESSAGES, CAPS, "\"messages\":[{\"role\":\"user\",\"content\":[{"
      "\"type\":\"image\",\"source\":{\"type\":\"url\",\"url\":\"http://x\"}}"
      "]}]", "messages[0].content[0]", "no vision" },
    { MESSAGES, CAPS, "\"messages\":[" USER ",{\"role\":\"assistant\","
      "\"content\":[{\"type\":\"tool_use\",\"id\":\"1\",\"name\":\"f\","
      "\"input\":{}}]},{\"role\":\"user\",\"content\":[{\"type\":"
      "\"tool_result\",\"tool_use_id\":\"1\",\"content\":[{\"type\":\"image\","
      "\"source\":{\"type\":\"url\",\"url\":\"http://x\"}}]}]}]",
      "messages[2].content[0].content[0]", "no vision" },
    { MESSAGES, CAPS, "\"messages\":[{\"role\":\"user\",\"content\":[{"
      "\"type\":\"document\",\"source\":{}}]}]", "messages[0].content[0]",
      "no documents" },
    { RESPONSES, CAPS, "\"input\":[{\"role\":\"user\",\"content\":[{\"type\":"
      "\"input_image\",\"image_url\":\"http://x\"}]}]", "input[0].content[0]",
      "no vision" },
    { RESPONSES, CAPS, "\"input\":[{\"type\":\"item_reference\",\"id\":"
      "\"x\"}]", "input[0]", "give the item itself" },
    { RESPONSES, CAPS, "\"input\":[{\"type\":\"web_search_call\"}]",
      "input[0].type", "'function_call'" },
    { RESPONSES, CAPS, "\"input\":\"q\",\"background\":true", "background",
      "" },
    { RESPONSES, CAPS, "\"input\":\"q\",\"truncation\":\"auto\"",
      "truncation", "'disabled'" },
    { RESPONSES, CAPS, "\"input\":\"q\",\"tools\":[{\"type\":\"web_search\"}]",
      "tools[0].type", "'function'" },
    { MESSAGES, CAPS, MSGS ",\"tools\":[{\"type\":\"bash_20250124\","
      "\"name\":\"bash\"}]", "tools[0]", "server tools" },
    { MESSAGES, CAPS, MSGS ",\"mcp_servers\":[{}]", "mcp_servers", "none" },

    { MESSAGES, CAPS, MSGS ",\"thread\":{\"type\":\"create\"}", "thread", "" },
    { MESSAGES, CAPS, MSGS ",\"fallbacks\":\"default\"", "fallbacks", "" },
    { MESSAGES, CAPS, MSGS ",\"compaction\":{}", "compaction", "" },
    { MESSAGES, CAPS, MSGS ",\"diagnostics\":{}", "diagnostics", "" },
    { MESSAGES, CAPS, MSGS ",\"speed\":\"fast\"", "speed", "'standard'" },
    { MESSAGES, CAPS, MSGS ",\"inference_geo\":\"eu\"", "inference_geo",
      "'global'" },
    { MESSAGES, CAPS, MSGS ",\"output_config\":{\"task_budget\":{}}",
      "output_config.task_budget", "no such mode" },
    { MESSAGES, CAPS, MSGS ",\"thinking\":{\"type\":\"adaptive\","
      "\"display\":\"updates\"}", "thinking.display", "as it is" },
    { MESSAGES, CAPS, MSGS ",\"tools\":[{\"name\":\"f\",\"input_schema\":"
      PARAMS ",\"allowed_callers\":[\"code_execution_20250825\"]}]",
      "tools[0].allowed_callers", "'direct'" },
    { CHAT, CAPS, MSGS ",\"moderation\":{\"model\":\"x\"}", "moderation",
      "" },
    { CHAT, CAPS, MSGS ",\"cache_salt\":\"s\"", "cache_salt", "" },
    { CHAT, CAPS, MSGS ",\"chat_template\":\"{{ x }}\"", "chat_template", "" },
    { CHAT, CAPS, MSGS ",\"continue_final_message\":true",
      "continue_final_message", "only be false" },
    { DI_API_COMPLETIONS, 0, "\"prompt\":\"q\",\"bad_words\":[\"x\"]",
      "bad_words", "logit_bias" },
    { RESPONSES, CAPS, "\"input\":\"q\",\"skip_special_tokens\":false",
      "skip_special_tokens", "only be true" },
    { CHAT, 0, MSGS ",\"chat_template_kwargs\":{\"thinking\":true}",
      "chat_template_kwargs.thinking", "no reasoning mode" },
    { CHAT, CAPS | DI_MUST_THINK, MSGS ",\"chat_template_kwargs\":{"
      "\"enable_thinking\":false}", "chat_template_kwargs.enable_thinking",
      "always thinks" },
    { CHAT, CAPS, MSGS ",\"chat_template_kwargs\":{\"thinking\":\"on\"}",
      "chat_template_kwargs.thinking", "expected a boolean" },
    { RESPONSES, CAPS, "\"input\":\"q\",\"moderation\":{}", "moderation", ""
    },
    { RESPONSES, CAPS, "\"input\":\"q\",\"context_management\":[{}]",
      "context_management", "" },
    { RESPONSES, CAPS, "\"input\":\"q\",\"include\":[\"everything\"]",
      "include[0]", "documents" },
    { RESPONSES, CAPS, "\"input\":\"q\",\"reasoning\":{\"mode\":\"pro\"}",
      "reasoning.mode", "one mode" },
    { RESPONSES, CAPS, "\"input\":\"q\",\"reasoning\":{\"context\":"
      "\"all_turns\"}", "reasoning.context", "dialect" },
    { RESPONSES, CAPS, "\"input\":\"q\",\"tools\":[{\"type\":\"function\","
      "\"name\":\"f\",\"async\":true}]", "tools[0].async", "next turn" },
    { RESPONSES, CAPS, "\"input\":\"q\",\"tools\":[{\"type\":\"custom\","
      "\"name\":\"c\",\"allowed_callers\":[\"programmatic\"]}]",
      "tools[0].allowed_callers", "'direct'" },
    { DI_API_COMPLETIONS, 0, "\"prompt\":\"q\",\"n\":2,\"best_of\":3",
      "best_of", "use n" },

    /* shapes, with their paths */
    { CHAT, CAPS, MSGS ",\"tools\":[{\"type\":\"function\",\"function\":{"
      "\"name\":5}}]", "tools[0].function.name", "expected a string" },
    { CHAT, CAPS, MSGS ",\"tools\":[{\"type\":\"custom\"}]",
      "tools[0].custom", "Missing" },
    { CHAT, CAPS, MSGS ",\"tools\":[{\"type\":\"custom\",\"custom\":{"
      "\"name\":\"x\",\"format\":{\"type\":\"grammar\"}}}]",
      "tools[0].custom.format.grammar", "to a format" },
    { CHAT, CAPS, MSGS ",\"tools\":[{\"type\":\"function\",\"function\":{"
      "\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{"
      "\"a\":{\"type\":\"zzz\"}}}}}]", "tools[0].function.parameters",
      "anyOf" },
    { CHAT, CAPS, MSGS ",\"tools\":[" TOOL "," TOOL "]",
      "tools[1].function.name", "unique" },
    { CHAT, CAPS, "\"messages\":[" USER ",{\"role\":\"assistant\","
      "\"tool_calls\":[{\"id\":\"1\",\"type\":\"function\",\"function\":{"
      "\"name\":\"f\"}}]}]", "messages[1].tool_calls[0].function.arguments",
      "Missing" },
    { CHAT, CAPS, "\"messages\":[{\"role\":\"tool\",\"tool_call_id\":\"1\","
      "\"content\":\"x\"}]", "messages[0]", "preceding message" },
    { RESPONSES, CAPS, "", "input", "must be provided" },
    { RESPONSES, CAPS, "\"input\":5", "input", "expected a string" },
    { RESPONSES, CAPS, "\"input\":[{\"type\":\"function_call\",\"name\":"
      "\"f\",\"arguments\":\"{}\"}]", "input[0].call_id", "Missing" },
    { RESPONSES, CAPS, "\"input\":[{\"type\":\"function_call_output\","
      "\"call_id\":\"1\",\"output\":\"x\"}]", "input[0].call_id",
      "No tool call found" },
    { RESPONSES, CAPS, "\"input\":\"q\",\"top_logprobs\":21", "top_logprobs",
      "" },
    { MESSAGES, CAPS, "\"messages\":\"x\"", "messages", "an array" },
    { MESSAGES, CAPS, "\"messages\":[{\"role\":\"tool\",\"content\":\"x\"}]",
      "messages[0].role", "'user', 'assistant' and 'system'" },
    { MESSAGES, CAPS, MSGS ",\"stop_sequences\":\"x\"", "stop_sequences",
      "an array of strings" },
    { MESSAGES, CAPS, MSGS ",\"max_tokens\":0", "max_tokens", "" },
    { MESSAGES, CAPS, "\"messages\":[" USER ",{\"role\":\"assistant\","
      "\"content\":[{\"type\":\"tool_use\",\"id\":\"1\",\"name\":\"f\","
      "\"input\":{}}]}," USER "]", "messages", "`tool_result`" },
    { DI_API_COMPLETIONS, 0, "", "prompt", "Missing" },
    { DI_API_COMPLETIONS, 0, "\"prompt\":[1000]", "prompt", "<= 999" },
    { DI_API_COMPLETIONS, 0, "\"prompt\":[[1],\"x\",5]", "prompt[2]", "" },
    { DI_API_COMPLETIONS, 0, "\"prompt\":[]", "prompt", "empty array" },
    { DI_API_COMPLETIONS, 0, "\"prompt\":\"x\",\"suffix\":\"y\"", "suffix",
      "" },
};

/* The error in the API's own shape, read by jansson. */
static void
check_shape(di_api_t api, const di_api_err_t *e)
{
    di_sbuf_t   b = { 0 };
    json_t     *v, *error;
    const char *type;

    di_api_write_error(&b, api, DI_CODEC_STRICT, e, "req_1");
    v = json_loadb(b.data, b.len, 0, NULL);
    error = json_object_get(v, "error");
    type = json_string_value(json_object_get(error, "type"));
    CHECK(type != NULL && strcmp(type, "invalid_request_error") == 0);
    CHECK(json_is_string(json_object_get(error, "message")));

    if (api == MESSAGES) {
        CHECK(json_object_size(error) == 2 && json_object_size(v) == 3);
        CHECK_EQ_STR(json_string_value(json_object_get(v, "type")), "error");
        CHECK_EQ_STR(json_string_value(json_object_get(v, "request_id")),
                     "req_1");
    } else {
        CHECK(json_object_size(error) == 4 && json_object_size(v) == 1);
    }

    json_decref(v);
    di_sbuf_free(&b);
}

static void
check_bad(void)
{
    di_req_options_t o;
    di_req_t        *req;
    di_api_err_t     e;
    size_t           i;

    for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        o = options(bad[i].caps);
        CHECK(parse(bad[i].api, &o, bad[i].fields, &req, &e) != DI_OK);
        CHECK(req == NULL);
        CHECK_EQ_INT(e.status, 400);
        CHECK_EQ_STR(e.param, bad[i].param);
        CHECK(e.code[0] != '\0');
        CHECK(strstr(e.message, bad[i].tells) != NULL);
        if (strstr(e.message, bad[i].tells) == NULL
            || strcmp(e.param, bad[i].param) != 0)
            printf("  %s: %s\n", bad[i].fields, e.message);
        check_shape(bad[i].api, &e);
    }
}

static void
check_events(void)
{
    di_api_err_t e;
    di_sbuf_t    b = { 0 };

    di_api_err_set(&e, 503, "server_error", "gone", "", "The engine left.");
    di_api_write_error_event(&b, CHAT, DI_CODEC_STRICT, &e, NULL, 0);
    di_api_write_error_event(&b, RESPONSES, DI_CODEC_STRICT, &e, NULL, 7);
    di_api_write_error_event(&b, MESSAGES, DI_CODEC_STRICT, &e, "r", 0);
    di_sbuf_add(&b, "", 1);
    CHECK_EQ_STR(b.data,
        "data: {\"error\":{\"message\":\"The engine left.\",\"type\":"
        "\"server_error\",\"param\":null,\"code\":\"gone\"}}\n\n"
        "event: error\ndata: {\"type\":\"error\",\"code\":\"gone\","
        "\"message\":\"The engine left.\",\"param\":null,"
        "\"sequence_number\":7}\n\n"
        "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":"
        "\"overloaded_error\",\"message\":\"The engine left.\"},"
        "\"request_id\":\"r\"}\n\n");
    di_sbuf_free(&b);
}

/* ------------------------------------------------------------- official -- */

/* The lax reading: what serde_json says, and where. */
static void
check_json(void)
{
    static const struct { const char *body, *reason; } cases[] = {
        { "[1,]", "trailing comma at line 1 column 4" },
        { "{\"a\":1,}", "trailing comma at line 1 column 8" },
        { "{\"a\" 1}", "expected `:` at line 1 column 6" },
        { "{\"a\":1 \"b\"}", "expected `,` or `}` at line 1 column 8" },
        { "[1 2]", "expected `,` or `]` at line 1 column 4" },
        { "{1:2}", "key must be a string at line 1 column 2" },
        { "[1", "EOF while parsing a list at line 1 column 2" },
        { "\"a", "EOF while parsing a string at line 1 column 2" },
        { "{\"a\":", "EOF while parsing a value at line 1 column 5" },
        { "\"\\q\"", "invalid escape at line 1 column 3" },
        { "1e400", "number out of range at line 1 column" },
        { "\n tru", "EOF while parsing a value at line 2 column 4" },
    };
    di_arena_t arena;
    di_json_t *root;
    di_err_t   err;
    char       deep[300];
    size_t     i;

    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        arena = (di_arena_t) { 0 };
        err = (di_err_t) { 0 };
        CHECK(di_json_read_lax(&arena, cases[i].body, strlen(cases[i].body),
                               127, &root, &err) != DI_OK);
        CHECK(strncmp(err.text, cases[i].reason, strlen(cases[i].reason))
              == 0);
        if (strncmp(err.text, cases[i].reason, strlen(cases[i].reason)) != 0)
            printf("  %s: %s\n", cases[i].body, err.text);
        di_arena_free(&arena);
    }

    for (i = 127; i <= 128; i++) {
        memset(deep, '[', i);
        memset(deep + i, ']', i);
        arena = (di_arena_t) { 0 };
        err = (di_err_t) { 0 };
        CHECK_EQ_INT(di_json_read_lax(&arena, deep, 2 * i, 127, &root, &err),
                     i == 127 ? DI_OK : DI_ELIMIT);
        di_arena_free(&arena);
    }
}

/* Repeated keys: the last value in the first one's place, few and many. */
static void
check_repeated(void)
{
    di_arena_t       arena = { 0 };
    const di_json_t *m;
    di_json_t       *root = NULL;
    char             body[4096] = "{", *p = body + 1;
    size_t           i;

    for (i = 0; i < 60; i++)
        p += sprintf(p, "%s\"k%zu\":%zu", i > 0 ? "," : "", i % 20, i);
    strcpy(p, ",\"k3\":{\"a\":1,\"b\":2,\"a\":[3]}}");

    CHECK_EQ_INT(di_json_read_lax(&arena, body, strlen(body), 127, &root,
                                  NULL), DI_OK);
    CHECK_EQ_INT(root->v.list.n, 20);
    for (m = root->v.list.first, i = 0; m != NULL; m = m->next, i++) {
        CHECK_EQ_INT(atoi(m->key.data + 1), i);
        if (i != 3)
            CHECK_EQ_INT(m->v.i, 40 + i);
    }
    m = di_json_get(root, "k3");
    CHECK(m->type == DI_JSON_OBJECT && m->v.list.n == 2
          && m->v.list.first->type == DI_JSON_ARRAY);
    di_arena_free(&arena);
}

/* Shortest digits, in three styles. */
static void
check_numbers(void)
{
    static const struct { const char *in, *serde, *python; } cases[] = {
        { "1e-5", "0.00001", "1e-05" }, { "1e-4", "0.0001", "0.0001" },
        { "123456789012345680.0", "1.2345678901234568e+17",
          "1.2345678901234568e+17" },
        { "1e15", "1000000000000000.0", "1000000000000000.0" },
        { "-0", "-0.0", "-0.0" }, { "5e-324", "5e-324", "5e-324" },
        { "0.1", "0.1", "0.1" }, { "100", "100", "100" },
        { "18446744073709551615", "18446744073709551615",
          "18446744073709551615" },
        { "-9223372036854775809", "-9.223372036854776e+18",
          "-9.223372036854776e+18" },
    };
    di_arena_t arena = { 0 };
    di_json_t *root;
    di_sbuf_t  b;
    size_t     i;

    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        CHECK_EQ_INT(di_json_read_lax(&arena, cases[i].in,
                                      strlen(cases[i].in), 127, &root, NULL),
                     DI_OK);
        b = (di_sbuf_t) { 0 };
        di_json_add_tree(&b, root, DI_JSON_COMPACT);
        di_sbuf_add(&b, "", 1);
        CHECK_EQ_STR(b.data, cases[i].serde);
        b.len = 0;
        di_json_add_tree(&b, root, DI_JSON_PYTHON);
        di_sbuf_add(&b, "", 1);
        CHECK_EQ_STR(b.data, cases[i].python);
        di_sbuf_free(&b);
    }
    di_arena_free(&arena);
}

/* Default and bound of the output, by both codecs. */
static void
check_max_tokens(void)
{
    static const char body[] = "{\"model\":\"DeepSeek-V4.1-Flash\","
                               "\"messages\":[" USER "]%s}";
    static const struct {
        di_codec_t  codec;
        const char *more;
        uint32_t    prompt, context, max;    /* max 0: refused              */
    } cases[] = {
        { DI_CODEC_OFFICIAL, "", 10, 1000000, 65536 },
        { DI_CODEC_OFFICIAL, ",\"reasoning_effort\":\"max\"", 10, 1000000,
          131072 },
        { DI_CODEC_OFFICIAL, ",\"reasoning_effort\":\"none\"", 10, 1000000,
          8192 },
        { DI_CODEC_OFFICIAL, "", 900, 1000, 100 },
        { DI_CODEC_OFFICIAL, "", 1000, 1000, 1 },
        { DI_CODEC_OFFICIAL, "", 1001, 1000, 0 },
        { DI_CODEC_OFFICIAL, ",\"max_tokens\":101", 900, 1000, 0 },
        { DI_CODEC_OFFICIAL, ",\"max_tokens\":100", 900, 1000, 100 },
        { DI_CODEC_STRICT, "", 900, 1000, 100 },
        { DI_CODEC_STRICT, ",\"max_tokens\":101", 900, 1000, 100 },
        { DI_CODEC_STRICT, ",\"max_tokens\":7", 900, 1000, 7 },
        { DI_CODEC_STRICT, "", 999, 1000, 1 },
        { DI_CODEC_STRICT, "", 1000, 1000, 0 },
    };
    di_req_options_t o = options(CAPS);
    di_req_t        *req;
    di_api_err_t     e;
    char             text[256];
    uint32_t         max;
    size_t           i;

    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        o.codec = cases[i].codec;
        snprintf(text, sizeof(text), body, cases[i].more);
        CHECK_EQ_INT(di_req_parse(CHAT, &o, text, strlen(text), &req, &e),
                     DI_OK);
        max = 0;
        CHECK_EQ_INT(di_req_max_tokens(req, cases[i].prompt, cases[i].context,
                                       &max, &e),
                     cases[i].max == 0 ? DI_EINVAL : DI_OK);
        CHECK_EQ_INT(max, cases[i].max);
        di_req_close(req);
    }
}

/* --------------------------------------------------------------- memory -- */

static void
check_memory(void)
{
    static const struct { di_api_t api; const char *fields; } cases[] = {
        { CHAT, "\"tools\":[" TOOL "]," MSGS },
        { MESSAGES, "\"tools\":[" USE "],\"messages\":[" USER ",{\"role\":"
          "\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{"
          "\"type\":\"tool_use\",\"id\":\"1\",\"name\":\"f\",\"input\":{}}]},{"
          "\"role\":\"user\",\"content\":[{\"type\":\"tool_result\","
          "\"tool_use_id\":\"1\"}]}]" },
        { RESPONSES, "\"input\":[{\"type\":\"function_call\",\"call_id\":"
          "\"1\",\"name\":\"f\",\"arguments\":\"\"},{\"type\":"
          "\"function_call_output\",\"call_id\":\"1\",\"output\":\"\"}]" },
        { DI_API_COMPLETIONS, "\"prompt\":[[1],[2]]" },
    };
    di_req_options_t o = options(CAPS);
    di_req_t        *req;
    di_api_err_t     e;
    size_t           i;
    int              n, rc;

    for (i = 0; NOMEM && i < sizeof(cases) / sizeof(cases[0]); i++) {
        for (n = 0; ; n++) {
            nomem_after(n + 1);          /* the first is the test's own      */
            rc = parse(cases[i].api, &o, cases[i].fields, &req, &e);
            if (!nomem_off())
                break;
            CHECK_EQ_INT(rc, DI_ENOMEM);
            CHECK_EQ_INT(e.status, 500);
        }
        CHECK_EQ_INT(rc, DI_OK);
        di_req_close(req);
    }
}

int
main(void)
{
    check_chat();
    check_messages();
    check_responses();
    check_previous();
    check_completions();
    check_accepted();
    check_bad();
    check_events();
    check_json();
    check_repeated();
    check_numbers();
    check_max_tokens();
    check_memory();
    return check_done("req");
}
