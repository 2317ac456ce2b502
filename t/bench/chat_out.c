/*
 * chat_out.c - what a streamed token costs before it is written to a socket:
 * find its bytes, assemble, look for stop strings and markers, format the SSE
 * event; for each API, and for answers with reasoning and tool calls.
 *
 * Also what a request costs to parse: a short one, and one with a 330 KB
 * string, next to jansson's reading of the same bytes.  Each figure is the
 * best and the median of ROUNDS rounds of this process's CPU time on one
 * thread; the buffers are small enough to stay in the caches, as they do in a
 * worker.
 *
 * usage: chat_out
 */

#include <jansson.h>
#include <stdio.h>
#include <time.h>

#include "t/unit/tiny_vocab.h"
#include "tokenizer/api/di_out.h"

#define ROUNDS   21
#define ANSWERS  20
#define EVENTS   1000     /* of an answer                               */
#define PARSES   200

#define S(text)  { text, sizeof(text) - 1 }

static const di_str_t words[] = {
    S(" the"), S(" harbour"), S(" was"), S(" quiet"), S(" before"), S(" dawn"),
    S("."), S("\n\n"), S(" \xe4\xbd\xa0\xe5\xa5\xbd"), S(" \"quoted\""),
    S("\xf0\x9f"), S("\x98\x80"),
    S(" invoke name=\"get\">"), S(" parameter name=\"k\" string=\"true\">"),
    S("</"), S(" parameter>"), S(" invoke>"),
};

/* The first N_WORDS are text, the others parts of calls. */
#define N_WORDS  12

enum {
    DSML = TINY_START, W_THE = TINY_WORDS, W_INVOKE = TINY_WORDS + N_WORDS,
    W_PARAMETER, W_CLOSE, W_CLOSE_PARAMETER, W_CLOSE_INVOKE,
};

static di_vocab_t *vocab;

static double
now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return 1e9 * (double) t.tv_sec + (double) t.tv_nsec;
}

static int
by_value(const void *a, const void *b)
{
    double x = *(const double *) a, y = *(const double *) b;

    return (x > y) - (x < y);
}

static void
print(const char *what, double ns[ROUNDS], const char *unit)
{
    qsort(ns, ROUNDS, sizeof(*ns), by_value);
    printf("%-40s best %9.1f  median %9.1f  ns per %s\n", what, ns[0],
           ns[ROUNDS / 2], unit);
}

static di_req_t *
parse(di_api_t api, di_codec_t codec, const char *body, size_t len)
{
    const di_req_options_t options = {
        .codec = codec, .family = DI_FAMILY_V41, .vocab = 1000,
        .caps = DI_CAN_TOOLS | DI_CAN_THINK,
    };
    di_req_t    *req;
    di_api_err_t e;

    if (di_req_parse(api, &options, body, len, &req, &e) != DI_OK) {
        printf("%s\n", e.message);
        exit(1);
    }
    return req;
}

/* One answer of EVENTS calls with `per_call` of the n tokens, over and over,
 * from opening to closing it; the buffer is emptied after each call, as after
 * a write. */
static void
answer(const di_req_t *req, const int32_t *tokens, size_t n, size_t per_call,
       bool logprobs)
{
    const di_out_top_t top[] = { { 'a', -1 }, { 'b', -2 } };
    di_out_conf_t      conf = {
        .req = req, .vocab = vocab, .spell = DI_SPELL_DSML,
        .id = "chatcmpl-0123456789abcdef01234567",
        .model = S("SmolLM2-135M-Instruct"), .created = 1700000000,
    };
    di_out_t          *out;
    di_sbuf_t          sse = { 0 };
    bool               stopped;
    size_t             i, k, next = 0;

    if (di_out_open(&conf, &out) != DI_OK
        || di_out_start(out, 10, 4, NULL, &sse) != DI_OK)
        exit(1);

    for (i = 0; i < EVENTS; i++) {
        if (next + per_call > n)
            next = 0;
        for (k = 0; k < per_call && logprobs; k++)
            (void) di_out_logprob(out, 0, tokens[next + k], -1.25f, top, 2);
        sse.len = 0;
        if (di_out_tokens(out, 0, tokens + next, per_call, &sse, &stopped,
                          NULL) != DI_OK)
            exit(1);
        next += per_call;
    }

    di_out_close(out);
    di_sbuf_free(&sse);
}

/* Nanoseconds of an event. */
static double
stream(const di_req_t *req, const int32_t *tokens, size_t n, size_t per_call,
       bool logprobs)
{
    double start = now_ns();
    int    i;

    for (i = 0; i < ANSWERS; i++)
        answer(req, tokens, n, per_call, logprobs);
    return (now_ns() - start) / (ANSWERS * EVENTS);
}

static void
bench_text(const char *what, di_api_t api, di_codec_t codec,
           const char *fields, size_t per_call, bool logprobs)
{
    int32_t   tokens[N_WORDS * 2];
    di_req_t *req;
    char      body[1024];
    double    ns[ROUNDS];
    size_t    i;

    for (i = 0; i < N_WORDS * 2; i++)
        tokens[i] = TINY_WORDS + (int32_t) (i % N_WORDS);

    snprintf(body, sizeof(body), "{\"model\":\"DeepSeek-V4.1-Flash\",\"%s\":"
             "[{\"role\":\"user\",\"content\":\"q\"}],\"stream\":true%s%s}",
             api == DI_API_RESPONSES ? "input" : "messages",
             api == DI_API_MESSAGES ? ",\"max_tokens\":9" : "", fields);
    req = parse(api, codec, body, strlen(body));
    for (i = 0; i < ROUNDS; i++)
        ns[i] = stream(req, tokens, N_WORDS * 2, per_call, logprobs);
    di_req_close(req);
    print(what, ns, "event");
}

/* Calls of a tool, whose tokens are those of the vocabulary's words. */
static void
bench_calls(const char *what, di_api_t api, const char *fields)
{
    static const int32_t tokens[] = {
        '<', DSML, W_INVOKE, '<', DSML, W_PARAMETER, W_THE, W_THE + 1,
        W_THE + 2, W_THE + 3, W_THE + 4, W_THE + 5, W_THE + 9, W_CLOSE, DSML,
        W_CLOSE_PARAMETER, W_CLOSE, DSML, W_CLOSE_INVOKE, '\n',
    };
    di_req_t *req;
    char      body[1024];
    double    ns[ROUNDS];
    size_t    i, n = sizeof(tokens) / sizeof(tokens[0]);

    snprintf(body, sizeof(body), "{\"model\":\"m\",\"%s\":[{\"role\":\"user\","
             "\"content\":\"q\"}],\"stream\":true%s,%s}",
             api == DI_API_RESPONSES ? "input" : "messages",
             api == DI_API_MESSAGES ? ",\"max_tokens\":9" : "", fields);
    req = parse(api, DI_CODEC_STRICT, body, strlen(body));
    for (i = 0; i < ROUNDS; i++)
        ns[i] = stream(req, tokens, n, 1, false);
    di_req_close(req);
    print(what, ns, "token");
}

static void
bench_parse(const char *what, const char *body, size_t len)
{
    char   label[64];
    double ours[ROUNDS], theirs[ROUNDS], start;
    int    i, k;

    for (i = 0; i < ROUNDS; i++) {
        start = now_ns();
        for (k = 0; k < PARSES; k++)
            di_req_close(parse(DI_API_CHAT, DI_CODEC_STRICT, body, len));
        ours[i] = (now_ns() - start) / PARSES;

        start = now_ns();
        for (k = 0; k < PARSES / 10; k++)
            json_decref(json_loadb(body, len, JSON_REJECT_DUPLICATES, NULL));
        theirs[i] = (now_ns() - start) / (PARSES / 10);
    }

    print(what, ours, "request");
    snprintf(label, sizeof(label), "  (jansson, reading alone)");
    print(label, theirs, "request");
}

/* A request whose message is `unit` repeated to about 330 KB. */
static void
bench_large(const char *what, const char *unit)
{
    static const char head[] = "{\"model\":\"m\",\"messages\":[{\"role\":"
                               "\"user\",\"content\":\"", tail[] = "\"}]}";
    size_t n = strlen(unit), len = sizeof(head) - 1;
    char  *body = malloc(340000);

    if (body == NULL)
        exit(1);

    memcpy(body, head, len);
    for (; len + n < 330000; len += n)
        memcpy(body + len, unit, n);
    memcpy(body + len, tail, sizeof(tail) - 1);
    bench_parse(what, body, len + sizeof(tail) - 1);
    free(body);
}

int
main(void)
{
    static const char *const special[] = {
        "<|endoftext|>", "\xef\xbd\x9c" "DSML" "\xef\xbd\x9c", "</think>",
        "<|pad|>", "<unused>", "<think>",
    };
    static const char small[] =
        "{\"model\":\"SmolLM2-135M-Instruct\",\"messages\":[{\"role\":"
        "\"system\",\"content\":\"You are a terse pirate.\"},{\"role\":"
        "\"user\",\"content\":\"Who are you?\"}],\"temperature\":0.7,"
        "\"max_tokens\":64,\"stream\":true,\"stream_options\":"
        "{\"include_usage\":true}}";

    vocab = tiny_vocab_make(special, words, sizeof(words) / sizeof(words[0]));

    bench_text("one token an event", DI_API_CHAT, DI_CODEC_STRICT, "", 1,
               false);
    bench_text("  Responses", DI_API_RESPONSES, DI_CODEC_STRICT, "", 1, false);
    bench_text("  Messages", DI_API_MESSAGES, DI_CODEC_STRICT, "", 1, false);
    bench_text("  Chat, official", DI_API_CHAT, DI_CODEC_OFFICIAL,
               ",\"thinking\":{\"type\":\"disabled\"}", 1, false);
    bench_text("  Responses, official", DI_API_RESPONSES, DI_CODEC_OFFICIAL,
               ",\"reasoning\":{\"effort\":\"none\"}", 1, false);
    bench_text("  Messages, official", DI_API_MESSAGES, DI_CODEC_OFFICIAL,
               ",\"thinking\":{\"type\":\"disabled\"}", 1, false);
    bench_text("eight tokens an event", DI_API_CHAT, DI_CODEC_STRICT, "", 8,
               false);
    bench_text("one token, one stop string", DI_API_CHAT, DI_CODEC_STRICT,
               ",\"stop\":\"###\"", 1, false);
    bench_text("one token, four stop strings", DI_API_CHAT, DI_CODEC_STRICT,
               ",\"stop\":[\"###\",\"\\n\\nUser:\",\" thereof\",\"xyz\"]", 1,
               false);
    bench_text("one token, two top_logprobs", DI_API_CHAT, DI_CODEC_STRICT,
               ",\"logprobs\":true,\"top_logprobs\":2", 1, true);

    bench_calls("tool calls, Chat", DI_API_CHAT, "\"thinking\":{\"type\":"
                "\"disabled\"},\"tools\":[{\"type\":\"function\",\"function\":"
                "{\"name\":\"get\"}}]");
    bench_calls("tool calls, Responses", DI_API_RESPONSES, "\"reasoning\":"
                "{\"effort\":\"none\"},\"tools\":[{\"type\":\"function\","
                "\"name\":\"get\"}]");
    bench_calls("tool calls, Messages", DI_API_MESSAGES, "\"thinking\":"
                "{\"type\":\"disabled\"},\"tools\":[{\"name\":\"get\","
                "\"input_schema\":{\"type\":\"object\"}}]");

    bench_parse("request of 240 bytes", small, sizeof(small) - 1);
    bench_large("request of 330 KB, English", "The harbour was quiet before "
                "dawn. Nets hung from the railings, and the boats lay low "
                "in the water, heavy with ice.\\n");
    bench_large("request of 330 KB, Chinese",
                "\xe4\xbd\xa0\xe5\xa5\xbd\xef\xbc\x8c\xe4\xb8\x96\xe7\x95\x8c"
                "\xe3\x80\x82");

    di_vocab_close(vocab);
    return 0;
}
