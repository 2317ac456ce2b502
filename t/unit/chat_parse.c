/*
 * chat_parse.c - Chat Completions requests: what is honoured, accepted,
 * ignored and refused, and how errors look.
 */

#include <jansson.h>
#include <stdlib.h>

#include "tokenizer/api/di_api.h"
#include "tokenizer/api/di_utf8.h"

#include "check.h"
#include "nomem.h"

#define MSG   "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
#define BASE  "\"model\":\"m\"," MSG

static const di_req_options_t limits = { .vocab = 1000 };

static int
parse(const char *body, size_t len, di_req_t **req, di_api_err_t *e)
{
    char *copy = malloc(len == 0 ? 1 : len);
    int   rc;

    /* The request must own all it points at: the body is gone afterwards. */
    memcpy(copy, body, len);
    memset(e, 0, sizeof(*e));
    *req = NULL;
    rc = di_req_parse(DI_API_CHAT, &limits, copy, len, req, e);
    memset(copy, '#', len);
    free(copy);
    return rc;
}

/* A request with more fields that must be taken; close it. */
static di_req_t *
good(const char *more)
{
    di_req_t *req;
    di_api_err_t   e;
    char           body[4096];

    snprintf(body, sizeof(body), "{" BASE "%s%s}", more[0] ? "," : "", more);
    if (parse(body, strlen(body), &req, &e) != DI_OK) {
        printf("%s: %s\n", more, e.message);
        CHECK(!"taken");
        exit(check_done("chat_parse"));
    }
    return req;
}

static void
taken(const char *more)
{
    di_req_close(good(more));
    CHECK(true);
}

static bool
str_is(di_str_t s, const char *text)
{
    return s.len == strlen(text) && memcmp(s.data, text, s.len) == 0;
}

/* ----------------------------------------------------------------- params */

static void
check_defaults(void)
{
    di_req_t          *req = good("");
    const di_req_params_t *p = di_req_params(req);
    const di_conv_t        *c = di_req_conv(req);

    CHECK(str_is(di_req_model(req), "m"));
    CHECK(str_is(di_req_ignored(req), ""));
    CHECK(p->temperature == 1 && p->top_p == 1 && p->min_p == 0);
    CHECK(p->presence_penalty == 0 && p->frequency_penalty == 0
          && p->repetition_penalty == 1);
    CHECK(p->top_k == 0 && !p->has_seed && p->n == 1 && p->max_tokens == 0);
    CHECK(p->min_tokens == 0 && p->top_logprobs == 0 && !p->logprobs);
    CHECK(!p->ignore_eos && !p->stream && !p->include_usage);
    CHECK(p->n_bias == 0 && p->n_stop == 0 && p->n_stop_ids == 0);
    CHECK(c->n_msgs == 1 && c->open_assistant);
    CHECK(c->msgs[0].role == DI_ROLE_USER && str_is(c->msgs[0].content, "hi"));
    di_req_close(req);
}

static void
check_params(void)
{
    di_req_t          *req;
    const di_req_params_t *p;

    req = good("\"temperature\":0.5,\"top_p\":0.25,\"top_k\":40,\"min_p\":0.1,"
               "\"presence_penalty\":-2,\"frequency_penalty\":2,"
               "\"repetition_penalty\":1.5,\"seed\":-1,\"max_tokens\":7,"
               "\"max_completion_tokens\":7,\"min_tokens\":3,\"n\":128,"
               "\"ignore_eos\":true,\"stop\":[\"a\",\"b c\"],"
               "\"stop_token_ids\":[0,999],\"logit_bias\":{\"0\":-100,"
               "\"999\":1.5},\"logprobs\":true,\"top_logprobs\":20,"
               "\"stream\":true,\"stream_options\":{\"include_usage\":true}");
    p = di_req_params(req);
    CHECK(p->temperature == 0.5 && p->top_p == 0.25 && p->top_k == 40);
    CHECK(p->min_p == 0.1 && p->presence_penalty == -2);
    CHECK(p->frequency_penalty == 2 && p->repetition_penalty == 1.5);
    CHECK(p->has_seed && p->seed == UINT64_MAX && p->max_tokens == 7);
    CHECK(p->min_tokens == 3 && p->n == 128 && p->ignore_eos);
    CHECK_EQ_INT(p->n_stop, 2);
    CHECK(str_is(p->stop[0], "a") && str_is(p->stop[1], "b c"));
    CHECK(p->n_stop_ids == 2 && p->stop_ids[0] == 0 && p->stop_ids[1] == 999);
    CHECK(p->n_bias == 2 && p->bias[0].id == 0 && p->bias[0].bias == -100);
    CHECK(p->bias[1].id == 999 && p->bias[1].bias == 1.5f);
    CHECK(p->logprobs && p->top_logprobs == 20);
    CHECK(p->stream && p->include_usage);
    di_req_close(req);

    req = good("\"stop\":\"x\",\"top_k\":-1,\"seed\":18446744073709551615,"
               "\"max_completion_tokens\":1e2,\"temperature\":0,\"n\":1.0");
    p = di_req_params(req);
    CHECK(p->n_stop == 1 && str_is(p->stop[0], "x") && p->top_k == 0);
    CHECK(p->seed == UINT64_MAX && p->max_tokens == 100 && p->n == 1);
    CHECK(p->temperature == 0);
    di_req_close(req);

    /* above 0 as floats, too, which is what the engine wants */
    req = good("\"top_p\":0,\"repetition_penalty\":1e-60");
    p = di_req_params(req);
    CHECK((float) p->top_p > 0 && (float) p->repetition_penalty > 0);
    di_req_close(req);

    req = good("\"seed\":-9223372036854775808");
    CHECK(di_req_params(req)->seed == (uint64_t) 1 << 63);
    di_req_close(req);
}

/* Fields that change nothing in the answer, and null everywhere. */
static void
check_accepted(void)
{
    taken("\"user\":\"u\",\"metadata\":{\"a\":\"b\"},\"store\":false,"
          "\"service_tier\":\"auto\",\"parallel_tool_calls\":true,"
          "\"prompt_cache_key\":\"k\",\"safety_identifier\":\"s\","
          "\"tools\":[],\"tool_choice\":\"auto\","
          "\"function_call\":\"none\",\"response_format\":{\"type\":\"text\"},"
          "\"modalities\":[\"text\"],\"verbosity\":\"medium\","
          "\"reasoning_effort\":\"none\",\"stop\":[],\"logit_bias\":{},"
          "\"stop_token_ids\":[],\"prompt_cache_retention\":\"24h\"");
    taken("\"service_tier\":\"default\",\"tool_choice\":\"none\"");
    taken("\"temperature\":null,\"top_p\":null,\"top_k\":null,\"min_p\":null,"
          "\"seed\":null,\"n\":null,\"max_tokens\":null,\"stop\":null,"
          "\"max_completion_tokens\":null,\"min_tokens\":null,"
          "\"ignore_eos\":null,\"stop_token_ids\":null,\"logit_bias\":null,"
          "\"logprobs\":null,\"top_logprobs\":null,\"stream\":null,"
          "\"stream_options\":null,\"tools\":null,\"tool_choice\":null,"
          "\"response_format\":null,\"audio\":null,\"prediction\":null,"
          "\"web_search_options\":null,\"store\":null,\"user\":null,"
          "\"reasoning_effort\":null,\"modalities\":null,\"metadata\":null");
    taken("\"logprobs\":true,\"top_logprobs\":0");
    taken("\"stream\":true,\"stream_options\":{\"include_usage\":null,"
          "\"include_obfuscation\":false}");
}

static void
check_ignored(void)
{
    di_req_t *req;
    di_api_err_t   e;
    static const char body[] =
        "{\"model\":\"m\",\"foo\":1,\"b\\nr\":[{}],\"messages\":["
        "{\"role\":\"user\",\"content\":\"a\",\"x\":1},"
        "{\"role\":\"assistant\",\"content\":\"a\",\"x\":1,"
        "\"annotations\":[],\"tool_calls\":null,\"audio\":null},"
        "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"t\","
        "\"cache_control\":{}}]}]}";
    char   big[40000] = "{" BASE, *p = big + strlen(big);
    int    i;

    CHECK_EQ_INT(parse(body, sizeof(body) - 1, &req, &e), DI_OK);
    CHECK(str_is(di_req_ignored(req), "foo, b?r, messages[].x, "
                 "messages[].content[].cache_control"));
    di_req_close(req);

    for (i = 0; i < 1000; i++)
        p += sprintf(p, ",\"unknown field %d\":1", i);
    *p++ = '}';
    CHECK_EQ_INT(parse(big, (size_t) (p - big), &req, &e), DI_OK);
    CHECK(di_req_ignored(req).len <= 512);
    di_req_close(req);
}

/* ----------------------------------------------------------- conversations */

static void
check_messages(void)
{
    static const char body[] =
        "{\"model\":\"m\",\"messages\":["
        "{\"role\":\"system\",\"content\":\"s\",\"name\":\"bob\"},"
        "{\"role\":\"developer\",\"content\":\"d\"},"
        "{\"content\":[{\"type\":\"text\",\"text\":\"one\"},{\"text\":"
        "\"\",\"type\":\"text\"},{\"type\":\"text\",\"text\":\"three\"}],"
        "\"role\":\"user\"},"
        "{\"role\":\"assistant\",\"content\":null,\"refusal\":\"no\"},"
        "{\"role\":\"assistant\",\"content\":[{\"type\":\"refusal\","
        "\"refusal\":\"never\"}]},"
        "{\"role\":\"assistant\",\"content\":\"\",\"refusal\":null},"
        "{\"role\":\"user\",\"content\":\"<|im_end|>\\u00e9\"}]}";
    di_req_t   *req;
    const di_conv_t *c;
    di_api_err_t     e;

    CHECK_EQ_INT(parse(body, sizeof(body) - 1, &req, &e), DI_OK);
    if (req == NULL) {
        printf("%s\n", e.message);
        return;
    }

    c = di_req_conv(req);
    CHECK_EQ_INT(c->n_msgs, 7);
    CHECK(c->msgs[0].role == DI_ROLE_SYSTEM && str_is(c->msgs[0].name, "bob"));
    CHECK(c->msgs[1].role == DI_ROLE_DEVELOPER
          && c->msgs[1].name.data == NULL);
    CHECK(str_is(c->msgs[2].content, "one\n\n\n\nthree"));
    CHECK(str_is(c->msgs[3].content, "no"));
    CHECK(str_is(c->msgs[4].content, "never"));
    CHECK(str_is(c->msgs[5].content, ""));
    CHECK(str_is(c->msgs[6].content, "<|im_end|>\xc3\xa9"));
    di_req_close(req);
}

/* ------------------------------------------------------------- refusals -- */

/* Bodies, and the param, code and part of the message they must give.  A
 * body that begins with ',' continues a valid request. */
static const struct {
    const char *body, *param, *code, *tells;
} bad[] = {
    /* JSON itself (B43, B45, B46) */
    { "", "", "invalid_json", "body is empty" },
    { "[]", "", "invalid_json", "line 1 column 1" },
    { "null", "", "invalid_json", "expected a JSON object" },
    { "{\"model\":\"m\", x}", "", "invalid_json", "line 1 column 15" },
    { "{" BASE "} trailing", "", "invalid_json", "end of the body" },
    { "{" BASE ",\"model\":\"n\"}", "", "invalid_json",
      "duplicate key \"model\"" },
    { "\xef\xbb\xbf{" BASE "}", "", "invalid_json", "byte order mark" },
    { ",\"temperature\":NaN", "", "invalid_json", "NaN" },
    { ",\"user\":\"emoji \\ud83d\"", "", "invalid_json", "surrogate" },
    { ",\"user\":\"x \\ude00 y\"", "", "invalid_json", "surrogate" },
    { ",\"user\":\"\\u0000\"", "", "invalid_json", "u0000" },
    { "{\"a\":\"\xff\xfe\"", "", "invalid_json", "invalid UTF-8" },

    /* required and of the right type */
    { "{}", "messages", "missing_required_parameter", "" },
    { "{\"model\":\"m\"}", "messages", "missing_required_parameter", "" },
    { "{\"model\":null," MSG "}", "model", "missing_required_parameter", "" },
    { "{\"model\":5," MSG "}", "model", "invalid_type",
      "expected a string, but got an integer" },
    { "{\"model\":\"\"," MSG "}", "model", "invalid_value", "empty" },
    { "{\"model\":\"m\",\"messages\":{}}", "messages", "invalid_type",
      "expected an array, but got an object" },
    { "{\"model\":\"m\",\"messages\":[]}", "messages", "empty_array", "" },
    { ",\"temperature\":\"hot\"", "temperature", "invalid_type",
      "expected a decimal number, but got a string" },
    { ",\"n\":1.5", "n", "invalid_type",
      "expected an integer, but got a decimal number" },
    { ",\"n\":true", "n", "invalid_type", "a boolean" },
    { ",\"stream\":1", "stream", "invalid_type", "expected a boolean" },
    { ",\"stop\":5", "stop", "invalid_type", "a string or an array" },
    { ",\"stop\":[\"a\",null]", "stop[1]", "invalid_type", "got null" },
    { ",\"user\":{}", "user", "invalid_type", "" },
    { ",\"metadata\":\"x\"", "metadata", "invalid_type", "" },
    { ",\"tools\":{}", "tools", "invalid_type", "" },
    { ",\"tool_choice\":1", "tool_choice", "invalid_value", "" },
    { ",\"logit_bias\":[]", "logit_bias", "invalid_type", "" },

    /* ranges */
    { ",\"temperature\":2.1", "temperature", "decimal_above_max_value", "" },
    { ",\"temperature\":-0.1", "temperature", "decimal_below_min_value", "" },
    { ",\"top_p\":-0.1", "top_p", "decimal_below_min_value", ">= 0" },
    { ",\"repetition_penalty\":0", "repetition_penalty",
      "decimal_below_min_value", "> 0" },
    { ",\"top_p\":1.1", "top_p", "decimal_above_max_value", "" },
    { ",\"top_k\":-2", "top_k", "integer_below_min_value", "" },
    { ",\"min_p\":1.1", "min_p", "decimal_above_max_value", "" },
    { ",\"presence_penalty\":2.1", "presence_penalty",
      "decimal_above_max_value", "" },
    { ",\"frequency_penalty\":-2.1", "frequency_penalty",
      "decimal_below_min_value", "" },
    { ",\"repetition_penalty\":0", "repetition_penalty",
      "decimal_below_min_value", "" },
    { ",\"n\":0", "n", "integer_below_min_value", ">= 1, but got 0" },
    { ",\"n\":129", "n", "integer_above_max_value", "<= 128, but got 129" },
    { ",\"max_tokens\":0", "max_tokens", "integer_below_min_value", "" },
    { ",\"max_tokens\":-1", "max_tokens", "integer_below_min_value", "-1" },
    { ",\"max_tokens\":9223372036854775808", "max_tokens",
      "integer_above_max_value", "<= 4294967295" },
    { ",\"max_tokens\":1e300", "max_tokens", "integer_above_max_value", "" },
    { ",\"max_tokens\":-1e300", "max_tokens", "integer_below_min_value", "" },
    { ",\"seed\":1e30", "seed", "integer_above_max_value", "" },
    { ",\"seed\":0.5", "seed", "invalid_type", "" },
    { ",\"min_tokens\":-1", "min_tokens", "integer_below_min_value", "" },
    { ",\"top_logprobs\":21,\"logprobs\":true", "top_logprobs",
      "integer_above_max_value", "" },
    { ",\"stop\":\"\"", "stop", "empty_string", "" },
    { ",\"stop\":[\"a\",\"\"]", "stop[1]", "empty_string", "" },
    { ",\"logit_bias\":{\"1000\":5}", "logit_bias", "invalid_value",
      "'1000' is not a token id below 1000" },
    { ",\"logit_bias\":{\"-1\":1}", "logit_bias", "invalid_value", "" },
    { ",\"logit_bias\":{\"abc\":1}", "logit_bias", "invalid_value", "" },
    { ",\"logit_bias\":{\"\":1}", "logit_bias", "invalid_value", "" },
    { ",\"logit_bias\":{\"007\":1}", "logit_bias", "invalid_value", "" },
    { ",\"logit_bias\":{\"99999999999999999999\":1}", "logit_bias",
      "invalid_value", "" },
    { ",\"logit_bias\":{\"7\":101}", "logit_bias.7",
      "decimal_above_max_value", "" },
    { ",\"logit_bias\":{\"7\":\"x\"}", "logit_bias.7", "invalid_type", "" },
    { ",\"stop_token_ids\":[1000]", "stop_token_ids[0]",
      "integer_above_max_value", "<= 999" },
    { ",\"stop_token_ids\":[1,-1]", "stop_token_ids[1]",
      "integer_below_min_value", "" },
    { ",\"stop_token_ids\":[0,1,2,3,4,5,6,7,8,9,-1]", "stop_token_ids[10]",
      "integer_below_min_value", "" },

    /* together */
    { ",\"max_tokens\":5,\"max_completion_tokens\":6",
      "max_completion_tokens", "invalid_value", "differ" },
    { ",\"max_tokens\":5,\"min_tokens\":6", "min_tokens", "invalid_value",
      "" },
    { ",\"top_logprobs\":0", "top_logprobs", "invalid_value", "logprobs" },
    { ",\"top_logprobs\":2,\"logprobs\":false", "top_logprobs",
      "invalid_value", "" },
    { ",\"stream_options\":{}", "stream_options", "invalid_value", "" },
    { ",\"stream\":true,\"stream_options\":{\"include_usage\":1}",
      "stream_options.include_usage", "invalid_type", "" },

    /* documented, but not here */
    { ",\"tools\":[{\"type\":\"function\"}]", "tools[0].function",
      "missing_required_parameter", "" },
    { ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]",
      "tools", "unsupported_parameter", "no spelling for tools" },
    { ",\"functions\":[{}]", "functions", "unsupported_parameter", "" },
    { ",\"functions\":[]", "functions", "unsupported_parameter", "" },
    { ",\"tool_choice\":\"required\"", "tool_choice", "invalid_value",
      "no tools" },
    { ",\"tool_choice\":\"maybe\"", "tool_choice", "invalid_value",
      "'required'" },
    { ",\"tool_choice\":{\"type\":\"function\"}", "tool_choice.function",
      "missing_required_parameter", "" },
    { ",\"function_call\":{\"name\":\"f\"}", "function_call",
      "unsupported_parameter", "" },
    { ",\"response_format\":{\"type\":\"json_object\"}",
      "response_format.type", "unsupported_value", "'json_object'" },
    { ",\"response_format\":{}", "response_format.type",
      "missing_required_parameter", "" },
    { ",\"modalities\":[\"text\",\"audio\"]", "modalities[1]",
      "unsupported_value", "'audio'" },
    { ",\"audio\":{\"voice\":\"x\"}", "audio", "unsupported_parameter", "" },
    { ",\"prediction\":{}", "prediction", "unsupported_parameter", "" },
    { ",\"web_search_options\":{}", "web_search_options",
      "unsupported_parameter", "" },
    { ",\"store\":true", "store", "unsupported_parameter", "" },
    { ",\"verbosity\":\"low\"", "verbosity", "unsupported_value", "" },
    { ",\"reasoning_effort\":\"high\"", "reasoning_effort",
      "unsupported_value", "" },
    { ",\"service_tier\":\"priority\"", "service_tier", "unsupported_value",
      "" },
};

/* The same for one message. */
static const struct {
    const char *message, *param, *code, *tells;
} bad_messages[] = {
    { "5", "messages[1]", "invalid_type", "expected an object" },
    { "{\"content\":\"x\"}", "messages[1].role",
      "missing_required_parameter", "" },
    { "{\"role\":\"robot\",\"content\":\"x\"}", "messages[1].role",
      "invalid_value", "'robot'" },
    { "{\"role\":\"function\",\"content\":\"x\"}", "messages[1]",
      "unsupported_content", "use the role 'tool'" },
    { "{\"role\":1,\"content\":\"x\"}", "messages[1].role", "invalid_type",
      "" },
    { "{\"role\":\"user\"}", "messages[1].content",
      "missing_required_parameter", "" },
    { "{\"role\":\"user\",\"content\":null}", "messages[1].content",
      "missing_required_parameter", "" },
    { "{\"role\":\"assistant\"}", "messages[1].content",
      "missing_required_parameter", "" },
    { "{\"role\":\"user\",\"content\":5}", "messages[1].content",
      "invalid_type", "a string or an array of content parts" },
    { "{\"role\":\"user\",\"content\":[]}", "messages[1].content",
      "empty_array", "" },
    { "{\"role\":\"user\",\"content\":[\"x\"]}", "messages[1].content[0]",
      "invalid_type", "" },
    { "{\"role\":\"user\",\"content\":[{\"text\":\"x\"}]}",
      "messages[1].content[0].type", "missing_required_parameter", "" },
    { "{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}",
      "messages[1].content[0].text", "missing_required_parameter", "" },
    { "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":1}]}",
      "messages[1].content[0].text", "invalid_type", "" },
    { "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"x\"},"
      "{\"type\":\"image_url\",\"image_url\":{\"url\":\"http://x\"}}]}",
      "messages[1].content[1]", "unsupported_content", "no vision" },
    { "{\"role\":\"user\",\"content\":[{\"type\":\"input_audio\"}]}",
      "messages[1].content[0]", "unsupported_content", "no audio" },
    { "{\"role\":\"user\",\"content\":[{\"type\":\"file\"}]}",
      "messages[1].content[0]", "unsupported_content", "no files" },
    { "{\"role\":\"user\",\"content\":[{\"type\":\"refusal\"}]}",
      "messages[1].content[0].type", "invalid_value", "'refusal'" },
    { "{\"role\":\"assistant\",\"content\":\"x\",\"tool_calls\":[]}",
      "messages[1].tool_calls", "unsupported_parameter", "" },
    { "{\"role\":\"assistant\",\"content\":\"x\",\"function_call\":{}}",
      "messages[1].function_call", "unsupported_parameter", "" },
    { "{\"role\":\"assistant\",\"content\":\"x\",\"audio\":{\"id\":\"1\"}}",
      "messages[1].audio", "unsupported_parameter", "" },
    { "{\"role\":\"tool\",\"content\":\"x\"}", "messages[1].tool_call_id",
      "missing_required_parameter", "" },
    { "{\"role\":\"user\",\"content\":\"x\",\"name\":1}", "messages[1].name",
      "invalid_type", "" },
};

/* The error as written must be what was asked, in JSON that jansson reads. */
static void
check_error(const char *body, const char *param, const char *code,
            const char *tells)
{
    di_req_t *req;
    di_api_err_t   e;
    di_sbuf_t      b = { 0 };
    json_t        *v, *error;
    const char    *s;

    CHECK(parse(body, strlen(body), &req, &e) != DI_OK);
    CHECK(req == NULL);
    CHECK_EQ_INT(e.status, 400);
    di_api_write_error(&b, DI_API_CHAT, DI_CODEC_STRICT, &e, NULL);
    v = json_loadb(b.data, b.len, 0, NULL);
    error = json_object_get(v, "error");
    CHECK(json_object_size(error) == 4);

    s = json_string_value(json_object_get(error, "type"));
    CHECK_EQ_STR(s == NULL ? "null" : s, "invalid_request_error");
    s = json_string_value(json_object_get(error, "param"));
    CHECK_EQ_STR(s == NULL ? "" : s, param);
    s = json_string_value(json_object_get(error, "code"));
    CHECK_EQ_STR(s == NULL ? "" : s, code);
    s = json_string_value(json_object_get(error, "message"));
    CHECK(s != NULL && strstr(s, tells) != NULL);
    if (s != NULL && strstr(s, tells) == NULL)
        printf("  %s: %s\n", body, s);

    json_decref(v);
    di_sbuf_free(&b);
}

static void
check_bad(void)
{
    char   body[4096];
    size_t i;

    for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        snprintf(body, sizeof(body), bad[i].body[0] == ',' ? "{" BASE "%s}"
                 : "%s", bad[i].body);
        check_error(body, bad[i].param, bad[i].code, bad[i].tells);
    }

    for (i = 0; i < sizeof(bad_messages) / sizeof(bad_messages[0]); i++) {
        snprintf(body, sizeof(body), "{\"model\":\"m\",\"messages\":[{\"role\""
                 ":\"user\",\"content\":\"x\"},%s]}", bad_messages[i].message);
        check_error(body, bad_messages[i].param, bad_messages[i].code,
                    bad_messages[i].tells);
    }
}

/* A list of n items in a body, for limits. */
static bool
takes(const char *head, const char *item, size_t n, const char *tail)
{
    size_t         cap = strlen(head) + n * (strlen(item) + 16) + 64;
    char          *body = malloc(cap), *p = body;
    di_req_t *req;
    di_api_err_t   e;
    size_t         i;
    int            rc;

    p += sprintf(p, "%s", head);
    for (i = 0; i < n; i++) {
        p += sprintf(p, "%s", i > 0 ? "," : "");
        p += strcmp(item, "KEY") == 0 ? sprintf(p, "\"%zu\":1", i)
             : sprintf(p, "%s", item);
    }
    p += sprintf(p, "%s", tail);

    memset(&e, 0, sizeof(e));
    rc = di_req_parse(DI_API_CHAT, &(di_req_options_t) { .vocab = 100000 },
                      body, (size_t) (p - body), &req, &e);
    if (rc == DI_OK)
        di_req_close(req);
    free(body);
    return rc == DI_OK;
}

/* n lists in one another. */
static const char *
nested(char *buf, size_t n)
{
    memset(buf, '[', n);
    memset(buf + n, ']', n);
    buf[2 * n] = '\0';
    return buf;
}

static void
check_limits(void)
{
    static const char msg[] = "{\"role\":\"user\",\"content\":\"\"}";
    char              stop[DI_REQ_STOP_BYTES_MAX + 8];

    CHECK(takes("{\"model\":\"m\",\"messages\":[", msg, 4096, "]}"));
    CHECK(!takes("{\"model\":\"m\",\"messages\":[", msg, 4097, "]}"));
    CHECK(takes("{" BASE ",\"stop\":[", "\"x\"", 16, "]}"));
    CHECK(!takes("{" BASE ",\"stop\":[", "\"x\"", 17, "]}"));
    CHECK(takes("{" BASE ",\"stop_token_ids\":[", "1", 64, "]}"));
    CHECK(!takes("{" BASE ",\"stop_token_ids\":[", "1", 65, "]}"));
    CHECK(takes("{" BASE ",\"logit_bias\":{", "KEY", 1024, "}}"));
    CHECK(!takes("{" BASE ",\"logit_bias\":{", "KEY", 1025, "}}"));

    memset(stop, 'x', sizeof(stop));
    stop[0] = stop[DI_REQ_STOP_BYTES_MAX + 1] = '"';
    stop[DI_REQ_STOP_BYTES_MAX + 2] = '\0';
    CHECK(takes("{" BASE ",\"stop\":[", stop, 1, "]}"));
    stop[DI_REQ_STOP_BYTES_MAX + 1] = 'x';
    stop[DI_REQ_STOP_BYTES_MAX + 2] = '"';
    stop[DI_REQ_STOP_BYTES_MAX + 3] = '\0';
    CHECK(!takes("{" BASE ",\"stop\":[", stop, 1, "]}"));

    /* Depth: the outermost object is the first of 64 levels. */
    CHECK(takes("{" BASE ",\"x\":", nested(stop, 63), 1, "}"));
    CHECK(!takes("{" BASE ",\"x\":", nested(stop, 64), 1, "}"));
}

/* Whatever an error quotes, it stays valid UTF-8 (B46). */
static void
check_error_text(void)
{
    di_api_err_t e;
    di_sbuf_t    b = { 0 };
    char         text[1000];
    int          i;

    for (i = 0; i < 8; i++) {
        memset(text, 'x', sizeof(text));
        memcpy(text + 392 + i, "\xf0\x9f\x98\x80\xff\xfe", 6);
        text[999] = '\0';
        di_api_err_set(&e, 400, "invalid_request_error", "c\xff", "p\xe4\xbd",
                       "%s", text);
        CHECK(di_utf8_valid(e.message, strlen(e.message)));
        CHECK_EQ_STR(e.code, "c?");
        CHECK_EQ_STR(e.param, "p");
    }

    di_api_err_set(&e, 503, "server_error", "", NULL, "a \"b\"\n");
    di_api_write_error_event(&b, DI_API_CHAT, DI_CODEC_STRICT, &e, NULL, 0);
    di_sbuf_add(&b, "", 1);
    CHECK_EQ_STR(b.data, "data: {\"error\":{\"message\":\"a \\\"b\\\"\\n\","
                 "\"type\":\"server_error\",\"param\":null,\"code\":null}}"
                 "\n\n");
    di_sbuf_free(&b);
}

/* Every prefix of a body is an error and nothing worse. */
static void
check_prefixes(void)
{
    static const char body[] =
        "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":[{"
        "\"type\":\"text\",\"text\":\"\\u00e9\\ud83d\\ude00\xe4\xbd\xa0\"}]}],"
        "\"stop\":[\"a\"],\"logit_bias\":{\"5\":-1.5e0},\"x\":null}";
    di_req_t *req;
    di_api_err_t   e;
    size_t         i;

    for (i = 0; i < sizeof(body) - 1; i++) {
        CHECK(parse(body, i, &req, &e) != DI_OK);
        CHECK_EQ_INT(e.status, 400);
    }

    CHECK_EQ_INT(parse(body, i, &req, &e), DI_OK);
    di_req_close(req);
}

static void
check_nomem(void)
{
    static const char body[] =
        "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":[{"
        "\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}]"
        "}],\"stop\":[\"a\"],\"logit_bias\":{\"5\":1},\"stop_token_ids\":[1],"
        "\"unknown\":1}";
    di_req_t *req;
    di_api_err_t   e;
    int            n, rc;

    for (n = 0; ; n++) {
        nomem_after(n);
        rc = di_req_parse(DI_API_CHAT, &limits, body, sizeof(body) - 1, &req,
                          &e);
        if (!nomem_off())
            break;
        CHECK_EQ_INT(rc, DI_ENOMEM);
        CHECK_EQ_INT(e.status, 500);
    }

    CHECK_EQ_INT(rc, DI_OK);
    CHECK(!NOMEM || n >= 3);
    di_req_close(req);
}

int
main(void)
{
    check_defaults();
    check_params();
    check_accepted();
    check_ignored();
    check_messages();
    check_bad();
    check_limits();
    check_error_text();
    check_prefixes();
    check_nomem();
    return check_done("chat_parse");
}
