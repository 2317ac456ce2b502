/*
 * out.c - the answers of Chat, Responses and Messages: what a stream tells,
 * event by event, is what the whole body has, in both codecs; the order and
 * the fields of events; reasons and usage of the strict codec.
 *
 * Recipe's exact events are held in t/vectors, ours in t/data/out/strict.txt,
 * Chat's details in chat_out.c.
 *
 * usage: out [--write]     --write prints what strict.txt should hold: read
 *                          the difference before you keep it
 */

#include <jansson.h>

#include "check.h"
#include "parse_model.h"
#include "tokenizer/api/di_out.h"

#define D   "\1"
#define TH  "\2"

static di_vocab_t *vocab;
static di_tok_t   *tok;

/* What an answer says: items in order, "R:..|T:..|C:name(arguments)|". */
typedef struct {
    char        text[8192];
    size_t      len;
    const char *broken;          /* first violation, or NULL                */
    char        reason[32];
    json_int_t  input, output, cached;
    json_int_t  sequence;        /* Responses: the next                     */
    json_int_t  open;            /* Messages: open block, -1: none          */
    json_int_t  blocks;          /* Messages: blocks so far                 */
    int         last;            /* letter of the last item                 */
} said_t;

static void
say(said_t *s, int letter, bool begin, const char *text)
{
    if (begin || s->last != letter)
        s->len += (size_t) snprintf(s->text + s->len, sizeof(s->text) - s->len,
                                    "|%c:", letter);
    s->last = letter;
    s->len += (size_t) snprintf(s->text + s->len, sizeof(s->text) - s->len,
                                "%s", text == NULL ? "" : text);
}

static const char *
get(const json_t *v, const char *key)
{
    return json_string_value(json_object_get(v, key));
}

static json_int_t
number(const json_t *v, const char *key)
{
    return json_integer_value(json_object_get(v, key));
}

/* ------------------------------------------------------------------- Chat */

static void
chat_message(said_t *s, const json_t *m)
{
    const json_t *calls = json_object_get(m, "tool_calls"), *call, *f;
    const char   *text = get(m, "content"), *why = get(m, "reasoning_content");
    size_t        i;

    if (why != NULL && why[0] != '\0')
        say(s, 'R', false, why);
    if (text != NULL && text[0] != '\0')
        say(s, 'T', false, text);

    json_array_foreach(calls, i, call) {
        f = json_object_get(call, "function");
        if (get(f, "name") != NULL) {
            say(s, 'C', true, get(f, "name"));
            say(s, 'C', false, " ");
        }
        say(s, 'C', false, get(f, "arguments"));
    }
}

static void
chat_usage(said_t *s, const json_t *v)
{
    const json_t *u = json_object_get(v, "usage");

    if (!json_is_object(u))
        return;
    s->input = number(u, "prompt_tokens");
    s->output = number(u, "completion_tokens");
    s->cached = number(json_object_get(u, "prompt_tokens_details"),
                       "cached_tokens");
}

static void
chat(said_t *s, const json_t *v, bool event)
{
    const json_t *choice = json_array_get(json_object_get(v, "choices"), 0);

    chat_message(s, json_object_get(choice, event ? "delta" : "message"));
    if (get(choice, "finish_reason") != NULL)
        snprintf(s->reason, sizeof(s->reason), "%s",
                 get(choice, "finish_reason"));
    chat_usage(s, v);
}

/* --------------------------------------------------------------- Messages */

static void
messages_block(said_t *s, const json_t *b)
{
    const char *type = get(b, "type");
    char       *input;

    if (strcmp(type, "thinking") == 0) {
        say(s, 'R', true, get(b, "thinking"));
        if (get(b, "signature") == NULL)
            s->broken = "no signature";
    } else if (strcmp(type, "text") == 0) {
        say(s, 'T', true, get(b, "text"));
    } else {
        say(s, 'C', true, get(b, "name"));
        input = json_dumps(json_object_get(b, "input"), JSON_COMPACT);
        say(s, 'C', false, " ");
        say(s, 'C', false, input);
        free(input);
    }
}

static void
messages_usage(said_t *s, const json_t *u)
{
    s->input = number(u, "input_tokens");
    s->cached = number(u, "cache_read_input_tokens");
    s->output = number(u, "output_tokens");
}

static void
messages_event(said_t *s, const char *type, const json_t *v)
{
    const json_t *delta = json_object_get(v, "delta");
    const json_t *block = json_object_get(v, "content_block");
    json_int_t    index = number(v, "index");

    if (strcmp(type, "content_block_start") == 0) {
        if (s->open >= 0 || index != s->blocks++)
            s->broken = "a block begins out of order";
        s->open = index;
        if (strcmp(get(block, "type"), "tool_use") == 0) {
            say(s, 'C', true, get(block, "name"));
            say(s, 'C', false, " ");
        } else {
            say(s, strcmp(get(block, "type"), "text") == 0 ? 'T' : 'R', true,
                "");
        }

    } else if (strcmp(type, "content_block_delta") == 0) {
        if (index != s->open)
            s->broken = "a delta of no open block";
        if (get(delta, "signature") == NULL)
            say(s, s->last, false, get(delta, "text") != NULL
                ? get(delta, "text") : get(delta, "thinking") != NULL
                ? get(delta, "thinking") : get(delta, "partial_json"));

    } else if (strcmp(type, "content_block_stop") == 0) {
        if (index != s->open)
            s->broken = "a block ends that isn't open";
        s->open = -1;

    } else if (strcmp(type, "message_delta") == 0) {
        snprintf(s->reason, sizeof(s->reason), "%s",
                 get(delta, "stop_reason"));
        messages_usage(s, json_object_get(v, "usage"));
    }
}

static void
messages(said_t *s, const json_t *v)
{
    const json_t *b;
    size_t        i;

    json_array_foreach(json_object_get(v, "content"), i, b)
        messages_block(s, b);
    snprintf(s->reason, sizeof(s->reason), "%s", get(v, "stop_reason"));
    messages_usage(s, json_object_get(v, "usage"));
}

/* -------------------------------------------------------------- Responses */

static void
responses(said_t *s, const json_t *v)
{
    const json_t *usage = json_object_get(v, "usage"), *item;
    const char   *type;
    size_t        i;

    json_array_foreach(json_object_get(v, "output"), i, item) {
        type = get(item, "type");
        if (strcmp(type, "function_call") == 0) {
            say(s, 'C', true, get(item, "name"));
            say(s, 'C', false, " ");
            say(s, 'C', false, get(item, "arguments"));
        } else {
            say(s, strcmp(type, "message") == 0 ? 'T' : 'R', true,
                get(json_array_get(json_object_get(item, "content"), 0),
                    "text"));
        }
    }

    snprintf(s->reason, sizeof(s->reason), "%s", get(v, "status"));
    s->input = number(usage, "input_tokens");
    s->output = number(usage, "output_tokens");
    s->cached = number(json_object_get(usage, "input_tokens_details"),
                       "cached_tokens");
}

static void
responses_event(said_t *s, const char *type, const json_t *v)
{
    const json_t *item = json_object_get(v, "item");

    if (number(v, "sequence_number") != s->sequence++)
        s->broken = "a sequence number is wrong";

    if (strcmp(type, "response.output_item.added") == 0) {
        if (strcmp(get(item, "type"), "function_call") == 0) {
            say(s, 'C', true, get(item, "name"));
            say(s, 'C', false, " ");
        } else {
            say(s, strcmp(get(item, "type"), "message") == 0 ? 'T' : 'R',
                true, "");
        }

    } else if (get(v, "delta") != NULL) {
        say(s, s->last, false, get(v, "delta"));

    } else if (strcmp(type, "response.completed") == 0
               || strcmp(type, "response.incomplete") == 0) {
        said_t *whole = calloc(1, sizeof(*whole));

        responses(whole, json_object_get(v, "response"));
        if (strcmp(whole->text, s->text) != 0)
            s->broken = "the final object is another";
        snprintf(s->reason, sizeof(s->reason), "%s", whole->reason);
        s->input = whole->input;
        s->output = whole->output;
        s->cached = whole->cached;
        free(whole);
    }
}

/* ---------------------------------------------------------------- reading */

static void
read_event(said_t *s, di_api_t api, const char *p, size_t len)
{
    const char *name = NULL, *line;
    size_t      n = 0;
    json_t     *v;

    if (len > 7 && memcmp(p, "event: ", 7) == 0) {
        line = memchr(p, '\n', len);
        name = p + 7;
        n = (size_t) (line - name);
        len -= (size_t) (line + 1 - p);
        p = line + 1;
    }

    if (len == 12 && memcmp(p, "data: [DONE]", 12) == 0)
        return;
    v = len < 6 ? NULL : json_loadb(p + 6, len - 6, JSON_ALLOW_NUL, NULL);
    if (v == NULL || (name != NULL && (get(v, "type") == NULL
                      || strlen(get(v, "type")) != n
                      || memcmp(get(v, "type"), name, n) != 0)))
        s->broken = "not an event";
    else if (api == DI_API_CHAT)
        chat(s, v, true);
    else if (api == DI_API_MESSAGES)
        messages_event(s, get(v, "type"), v);
    else
        responses_event(s, get(v, "type"), v);
    json_decref(v);
}

static void
read_answer(said_t *s, di_api_t api, bool stream, const di_sbuf_t *b)
{
    const char *p = b->data, *end;
    json_t     *v;

    memset(s, 0, sizeof(*s));
    s->open = -1;

    if (!stream) {
        v = json_loadb(b->data, b->len, 0, NULL);
        CHECK(v != NULL);
        if (api == DI_API_CHAT)
            chat(s, v, false);
        else if (api == DI_API_MESSAGES)
            messages(s, v);
        else
            responses(s, v);
        json_decref(v);
        return;
    }

    for (; p < b->data + b->len; p = end + 2) {
        end = memmem(p, (size_t) (b->data + b->len - p), "\n\n", 2);
        if (end == NULL) {
            s->broken = "an event has no end";
            break;
        }
        read_event(s, api, p, (size_t) (end - p));
    }
}

/* ---------------------------------------------------------------- running */

typedef struct {
    di_api_t    api;
    di_codec_t  codec;
    bool        stream;
    size_t      step;            /* tokens in a call                        */
    di_end_t    end;
    const char *fields;          /* more of the request                     */
    const char *body;            /* NULL: a question and a function         */
    bool        logprobs;        /* come from the engine                    */
} how_t;

static di_req_t *
request(const how_t *h)
{
    static const char *const fixed[] = {
        [DI_API_CHAT] = "\"messages\":[{\"role\":\"user\",\"content\":\"q\"}],"
            "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]",
        [DI_API_RESPONSES] = "\"input\":\"q\",\"tools\":[{\"type\":"
            "\"function\",\"name\":\"f\"}]",
        [DI_API_MESSAGES] = "\"max_tokens\":99,\"messages\":[{\"role\":"
            "\"user\",\"content\":\"q\"}],\"tools\":[{\"name\":\"f\","
            "\"input_schema\":{\"type\":\"object\"}}]",
    };
    const di_req_options_t options = {
        .codec = h->codec, .family = DI_FAMILY_V41, .vocab = 1000,
        .caps = DI_CAN_TOOLS | DI_CAN_THINK | DI_CAN_CONSTRAIN,
    };
    di_api_err_t e;
    di_req_t    *req;
    char         body[2048];

    snprintf(body, sizeof(body), "{\"model\":\"DeepSeek-V4.1-Flash\",%s%s%s}",
             h->body != NULL ? h->body : fixed[h->api],
             h->stream ? ",\"stream\":true" : "", h->fields);
    if (di_req_parse(h->api, &options, body, strlen(body), &req, &e)
        != DI_OK)
    {
        printf("%s: %s\n", body, e.message);
        abort();
    }
    return req;
}

/* All that is written for these tokens, one for each byte of the script. */
static void
write_answer(const how_t *h, const char *script, di_sbuf_t *b)
{
    const di_out_top_t top = { 'a', -0.5f };
    di_out_conf_t conf = { .vocab = vocab,
                           .tok = h->step > 1 ? tok : NULL,
                           .spell = DI_SPELL_DSML, .id = "id-1",
                           .model = { "m", 1 },
                           .created = 1700000000 };
    di_req_t     *req = request(h);
    di_out_t     *out;
    int32_t       ids[4096];
    bool          stopped = false, done = false;
    size_t        n = strlen(script), i, k, p;

    for (i = 0; i < n; i++)
        ids[i] = parse_id((unsigned char) script[i]);

    conf.req = req;
    CHECK_EQ_INT(di_out_open(&conf, &out), DI_OK);
    CHECK_EQ_INT(di_out_start(out, 11, 4, "fp", b), DI_OK);
    for (i = 0; i < n && !stopped; i += k) {
        k = h->step < n - i ? h->step : n - i;
        for (p = i; p < i + k && h->logprobs; p++)
            CHECK_EQ_INT(di_out_logprob(out, 0, ids[p], -0.25f, &top, 1),
                         DI_OK);
        CHECK_EQ_INT(di_out_tokens(out, 0, ids + i, k, b, &stopped, NULL),
                     DI_OK);
    }
    CHECK_EQ_INT(di_out_finish(out, 0, h->end, b, &done), DI_OK);
    CHECK(done);
    if (h->stream)
        CHECK_EQ_INT(di_out_end(out, b), DI_OK);
    else
        CHECK_EQ_INT(di_out_body(out, b), DI_OK);

    di_out_close(out);
    di_req_close(req);
}

static void
answer(const how_t *h, const char *script, said_t *said)
{
    di_sbuf_t b = { 0 };

    write_answer(h, script, &b);
    read_answer(said, h->api, h->stream, &b);
    CHECK_EQ_STR(said->broken == NULL ? "" : said->broken, "");
    di_sbuf_free(&b);
}

#define CALL(name, params)                                                   \
    "<" D " invoke name=\"" name "\">\n" params "</" D " invoke>\n"
#define PARAM(key, string, value)                                            \
    "<" D " parameter name=\"" key "\" string=\"" string "\">" value         \
    "</" D " parameter>\n"
#define BLOCK(calls)  "<" D " calls>\n" calls "</" D " calls>"

/* Streamed, in any chunking, and whole: the same. */
static void
check_stream_is_body(void)
{
    static const char *const scripts[] = {
        "", "plan", "plan" TH, "plan" TH "answer", TH "answer\n",
        "p" TH "Sure \xe4\xbd\xa0.\n\n" BLOCK(CALL("f",
            PARAM("a", "true", "x\"\n") PARAM("b", "false", "[1, 2]"))
            CALL("g", "")),
        "p" BLOCK(CALL("f", "")), TH BLOCK(CALL("f", "")),
        "p" TH "cut \xf0\x9f",         /* official: lost with its chunk */
    };
    const size_t  n_scripts = sizeof(scripts) / sizeof(scripts[0]);
    static said_t stream, body;
    how_t         h = { .fields = "" };
    size_t        i, step;
    int           api, codec;

    for (api = DI_API_CHAT; api <= DI_API_MESSAGES; api++) {
        for (codec = 0; codec < 2; codec++) {
            for (i = 0; i + (codec == DI_CODEC_OFFICIAL) < n_scripts; i++) {
                h.api = (di_api_t) api;
                h.codec = (di_codec_t) codec;
                h.end = i % 2 == 0 ? DI_END_STOP : DI_END_LENGTH;
                h.stream = false;
                h.step = 3;
                answer(&h, scripts[i], &body);
                h.stream = true;
                for (step = 1; step < 9; step += step) {
                    h.step = step;
                    answer(&h, scripts[i], &stream);
                    /* Messages' body has the arguments read and written. */
                    if (api != DI_API_MESSAGES
                        || strchr(scripts[i], '[') == NULL)
                        CHECK_EQ_STR(stream.text, body.text);
                    CHECK_EQ_STR(stream.reason, body.reason);
                    if (api != DI_API_CHAT || codec == DI_CODEC_OFFICIAL) {
                        CHECK_EQ_INT(stream.output, body.output);
                        CHECK_EQ_INT(stream.input, body.input);
                        CHECK_EQ_INT(stream.cached, body.cached);
                    }
                }
            }
        }
    }
}

/* Malformed output reaches the client through every API. */
static void
check_nothing_lost(void)
{
    static const struct { const char *script, *want; } t[] = {
        { TH "x <" D " y", "|T:x <" PARSE_DSML " y" },
        { TH BLOCK(CALL("f", PARAM("a b", "true", "v"))) " after",
          "|C:f {\"a b\": \"v\"}|T:after" },
        { TH BLOCK(CALL("f", "junk")) BLOCK(CALL("g", "")),
          "|C:f {}|T:junk|C:g {}" },
    };
    static said_t said;
    how_t         h = { .stream = true, .step = 1, .end = DI_END_STOP,
                        .fields = "" };
    const char   *text;
    size_t        i;
    int           api;

    for (api = DI_API_CHAT; api <= DI_API_MESSAGES; api++) {
        for (i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
            h.api = (di_api_t) api;
            answer(&h, t[i].script, &said);
            text = said.text;
            if (strncmp(text, "|R:|", 4) == 0)   /* an empty thought */
                text += 3;
            CHECK_EQ_STR(text, t[i].want);
        }
    }
}

static void
check_reasons(void)
{
    static const struct {
        di_api_t    api;
        di_end_t    end;
        const char *script, *fields, *want;
    } t[] = {
        { DI_API_CHAT, DI_END_STOP, TH "x", "", "stop" },
        { DI_API_CHAT, DI_END_FILTER, TH "x", "", "content_filter" },
        { DI_API_CHAT, DI_END_STOP, TH BLOCK(CALL("f", "")), "",
          "tool_calls" },
        { DI_API_CHAT, DI_END_LENGTH, TH "xSTOPy", ",\"stop\":\"STOP\"",
          "stop" },
        { DI_API_RESPONSES, DI_END_LENGTH, TH "x", "", "incomplete" },
        { DI_API_RESPONSES, DI_END_STOP, TH BLOCK(CALL("f", "")), "",
          "completed" },
        { DI_API_MESSAGES, DI_END_STOP, TH "x", "", "end_turn" },
        { DI_API_MESSAGES, DI_END_LENGTH, TH "x", "", "max_tokens" },
        { DI_API_MESSAGES, DI_END_FILTER, TH "x", "", "refusal" },
        { DI_API_MESSAGES, DI_END_STOP, TH BLOCK(CALL("f", "")), "",
          "tool_use" },
        { DI_API_MESSAGES, DI_END_STOP, TH "xSTOPy",
          ",\"stop_sequences\":[\"STOP\"]", "stop_sequence" },
    };
    static said_t said;
    how_t         h = { .step = 1 };
    size_t        i;
    int           stream;

    for (i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
        for (stream = 0; stream < 2; stream++) {
            h.api = t[i].api;
            h.end = t[i].end;
            h.fields = t[i].fields;
            h.stream = stream;
            answer(&h, t[i].script, &said);
            CHECK_EQ_STR(said.reason, t[i].want);
        }
    }
}

/* Without parallel calls the answer ends before the second. */
static void
check_one_call(void)
{
    static said_t said;
    how_t         h = { .step = 1, .end = DI_END_LENGTH, .stream = true,
                        .fields = ",\"parallel_tool_calls\":false" };

    answer(&h, TH BLOCK(CALL("f", "") CALL("g", "")) "z", &said);
    CHECK_EQ_STR(said.text, "|C:f {}");
    CHECK_EQ_STR(said.reason, "tool_calls");
}

/* Official: an encoder that is given counts as one that is opened does. */
static void
check_recount(void)
{
    how_t h = { .codec = DI_CODEC_OFFICIAL, .end = DI_END_STOP, .fields = "" };

    for (h.step = 1; h.step <= 2; h.step++) {
        di_sbuf_t b = { 0 };

        write_answer(&h, "plan" TH "Sure", &b);
        CHECK(strstr(b.data, "\"reasoning_tokens\":4}") != NULL);
        di_sbuf_free(&b);
    }
}

/* ----------------------------------------------------------- exact bytes */

#define ASK       "\"messages\":[{\"role\":\"user\",\"content\":\"q\"}]"
#define CUSTOM    "\"tools\":[{\"type\":\"custom\","
#define TALK      "plan" TH "Sure \xe4\xbd\xa0.\n\n" BLOCK(CALL("f",       \
                      PARAM("a", "true", "x\"\n")                            \
                      PARAM("b", "false", "[1, 2]")) CALL("g", ""))
#define WRITE     TH BLOCK(CALL("w", PARAM("input", "true", "a\"b")))

static const struct {
    const char *name;
    how_t       how;
    const char *script;
} exact[] = {
    { "Chat", { .api = DI_API_CHAT, .end = DI_END_STOP, .fields = "" }, TALK },
    { "Chat, cut", { .api = DI_API_CHAT, .end = DI_END_LENGTH, .fields = "" },
      "pl\"an" },
    { "Chat, custom tool", { .api = DI_API_CHAT, .end = DI_END_STOP,
        .body = ASK "," CUSTOM "\"custom\":{\"name\":\"w\"}}]",
        .fields = "" }, WRITE },
    { "Chat, log-probabilities", { .api = DI_API_CHAT, .end = DI_END_STOP,
        .fields = ",\"logprobs\":true,\"top_logprobs\":1",
        .logprobs = true }, "p" TH "x" },
    { "Chat, log-probabilities of reasoning alone", { .api = DI_API_CHAT,
        .end = DI_END_LENGTH, .fields = ",\"logprobs\":true",
        .logprobs = true }, "p" },
    { "Chat, no thinking", { .api = DI_API_CHAT, .end = DI_END_STOP,
        .fields = ",\"thinking\":{\"type\":\"disabled\"}" }, "x" },
    { "Responses", { .api = DI_API_RESPONSES, .end = DI_END_STOP,
        .fields = "" }, TALK },
    { "Responses, cut", { .api = DI_API_RESPONSES, .end = DI_END_LENGTH,
        .fields = ",\"instructions\":\"i\",\"metadata\":{\"k\":\"v\"},"
            "\"max_output_tokens\":9,\"temperature\":0.5,\"user\":\"u\","
            "\"reasoning\":{\"effort\":\"high\"}" }, "p" TH "x" },
    { "Responses, a schema", { .api = DI_API_RESPONSES, .end = DI_END_STOP,
        .body = "\"input\":\"q\","
            "\"text\":{\"format\":{\"type\":\"json_schema\",\"name\":\"n\","
            "\"schema\":{\"type\":\"object\"}}}", .fields = "" }, TH "{}" },
    { "Responses, filter", { .api = DI_API_RESPONSES, .end = DI_END_FILTER,
        .fields = "" }, TH "x" },
    { "Responses, custom tool", { .api = DI_API_RESPONSES,
        .end = DI_END_STOP, .body = "\"input\":\"q\"," CUSTOM
        "\"name\":\"w\"}]", .fields = "" }, WRITE },
    { "Responses, log-probabilities", { .api = DI_API_RESPONSES,
        .end = DI_END_STOP, .fields = ",\"top_logprobs\":1,\"include\":"
        "[\"message.output_text.logprobs\"]", .logprobs = true },
      "p" TH "x" },
    { "Messages", { .api = DI_API_MESSAGES, .end = DI_END_STOP,
        .fields = "" }, TALK },
    { "Messages, cut", { .api = DI_API_MESSAGES, .end = DI_END_LENGTH,
        .fields = "" }, "p" TH "x" },
    { "Messages, cut in a call", { .api = DI_API_MESSAGES,
        .end = DI_END_LENGTH, .fields = "" },
      TH "<" D " calls>\n<" D " invoke name=\"f\">\n<" D
      " parameter name=\"a\" string=\"false\">[1" },
    { "Messages, stop", { .api = DI_API_MESSAGES, .end = DI_END_STOP,
        .fields = ",\"stop_sequences\":[\"STOP\"]" }, TH "xSTOPy" },
};

/* What differs each time: the letters and digits of calls' ids, the clock. */
static void
make_constant(char *text)
{
    char *p = text;

    for (; (p = strstr(p, "\"call_")) != NULL; p++) {
        memset(p + 9, 'x', strcspn(p + 9, "\""));
    }
    for (p = text; (p = strstr(p, "\"completed_at\":1")) != NULL; p++) {
        memset(p + 15, '0', strspn(p + 15, "0123456789"));
    }
}

/* The part of the file under this name, NUL-terminated, or "". */
static const char *
part_of(const char *file, const char *name, char *out, size_t size)
{
    char        title[96];
    const char *p, *end;

    snprintf(title, sizeof(title), "=== %s\n", name);
    out[0] = '\0';
    p = file == NULL ? NULL : strstr(file, title);
    if (p == NULL)
        return out;

    p += strlen(title);
    end = strstr(p, "=== ");
    snprintf(out, size, "%.*s", (int) (end == NULL ? strlen(p)
                                       : (size_t) (end - p)), p);
    return out;
}

static void
check_exact(const char *file, bool write)
{
    static char want[65536];
    char        name[80];
    di_sbuf_t   b = { 0 };
    how_t       h;
    size_t      i;
    int         stream;

    for (i = 0; i < sizeof(exact) / sizeof(exact[0]); i++) {
        for (stream = 1; stream >= 0; stream--) {
            h = exact[i].how;
            h.stream = stream;
            h.step = 4;
            b.len = 0;
            write_answer(&h, exact[i].script, &b);
            di_sbuf_add(&b, "\n", 2);
            make_constant(b.data);
            snprintf(name, sizeof(name), "%s, %s", exact[i].name,
                     stream ? "stream" : "body");
            if (write)
                printf("=== %s\n%s", name, b.data);
            else
                CHECK_EQ_STR(b.data, part_of(file, name, want, sizeof(want)));
        }
    }
    di_sbuf_free(&b);
}

static char *
read_file(const char *path)
{
    FILE  *f = fopen(path, "r");
    char  *text = calloc(1, 1 << 20);

    CHECK(f != NULL && text != NULL);
    if (f != NULL) {
        CHECK(fread(text, 1, (1 << 20) - 1, f) > 0);
        fclose(f);
    }
    return text;
}

int
main(int argc, char **argv)
{
    bool  write = argc > 1 && strcmp(argv[1], "--write") == 0;
    char *file;

    vocab = parse_vocab(NULL, 0);
    CHECK_EQ_INT(di_tok_open(vocab, &tok), DI_OK);
    if (write) {
        check_exact(NULL, true);
        di_tok_close(tok);
        di_vocab_close(vocab);
        return 0;
    }

    file = read_file("t/data/out/strict.txt");
    check_exact(file, false);
    free(file);
    check_stream_is_body();
    check_nothing_lost();
    check_reasons();
    check_one_call();
    check_recount();
    di_tok_close(tok);
    di_vocab_close(vocab);
    return check_done("out");
}
