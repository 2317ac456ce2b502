/*
 * chat_out.c - what a streamed token costs before it is written to a socket:
 * find its bytes, assemble, look for stop strings, format the SSE event.
 *
 * Also what a request costs to parse: a short one, and one with a 330 KB
 * string, next to jansson's reading of the same bytes.  Each figure is the
 * best and the median of ROUNDS rounds on one thread; the buffers are small
 * enough to stay in the caches, as they do in a worker.
 *
 * usage: chat_out
 */

#include <jansson.h>
#include <stdio.h>
#include <time.h>

#include "t/unit/tiny_vocab.h"
#include "tokenizer/api/di_chat.h"

#define ROUNDS   21
#define EVENTS   20000
#define PARSES   200

#define S(text)  { text, sizeof(text) - 1 }

static const di_str_t words[] = {
    S(" the"), S(" harbour"), S(" was"), S(" quiet"), S(" before"), S(" dawn"),
    S("."), S("\n\n"), S(" \xe4\xbd\xa0\xe5\xa5\xbd"), S(" \"quoted\""),
    S("\xf0\x9f"), S("\x98\x80"),
};

#define N_WORDS  (sizeof(words) / sizeof(words[0]))

static di_vocab_t *vocab;

static double
now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
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

static di_chat_req_t *
parse(const char *body, size_t len)
{
    const di_chat_limits_t limits = { .vocab = 1000 };
    di_chat_req_t         *req;
    di_api_err_t           e;

    if (di_chat_parse(body, len, &limits, &req, &e) != DI_OK) {
        printf("%s\n", e.message);
        exit(1);
    }
    return req;
}

/* One stream of EVENTS calls with `per_call` tokens; the buffer is emptied
 * after each call, as after a write. */
static double
stream(const di_chat_req_t *req, size_t per_call, bool logprobs)
{
    const di_chat_top_t top[] = { { 'a', -1 }, { 'b', -2 } };
    di_chat_out_t      *out;
    di_sbuf_t           sse = { 0 };
    int32_t             tokens[8];
    bool                stopped;
    double              start;
    size_t              i, k, next = 0;

    if (di_chat_out_open(req, vocab, "chatcmpl-0123456789abcdef01234567",
                         (di_str_t) S("SmolLM2-135M-Instruct"), 1700000000,
                         &out) != DI_OK)
        exit(1);

    start = now_ns();

    for (i = 0; i < EVENTS; i++) {
        for (k = 0; k < per_call; k++) {
            tokens[k] = TINY_WORDS + (int32_t) (next++ % N_WORDS);
            if (logprobs)
                (void) di_chat_out_logprob(out, 0, tokens[k], -1.25f, top, 2);
        }
        sse.len = 0;
        if (di_chat_out_tokens(out, 0, tokens, per_call, &sse, &stopped)
            != DI_OK)
            exit(1);
    }

    start = now_ns() - start;
    di_chat_out_close(out);
    di_sbuf_free(&sse);
    return start / EVENTS;
}

static void
bench_stream(const char *what, const char *fields, size_t per_call,
             bool logprobs)
{
    di_chat_req_t *req;
    char           body[512];
    double         ns[ROUNDS];
    int            i;

    snprintf(body, sizeof(body), "{\"model\":\"m\",\"messages\":[{\"role\":"
             "\"user\",\"content\":\"\"}],\"stream\":true%s}", fields);
    req = parse(body, strlen(body));
    for (i = 0; i < ROUNDS; i++)
        ns[i] = stream(req, per_call, logprobs);
    di_chat_req_close(req);
    print(what, ns, "event");
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
            di_chat_req_close(parse(body, len));
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
    static const char small[] =
        "{\"model\":\"SmolLM2-135M-Instruct\",\"messages\":[{\"role\":"
        "\"system\",\"content\":\"You are a terse pirate.\"},{\"role\":"
        "\"user\",\"content\":\"Who are you?\"}],\"temperature\":0.7,"
        "\"max_tokens\":64,\"stream\":true,\"stream_options\":"
        "{\"include_usage\":true}}";

    vocab = tiny_vocab(words, N_WORDS);

    bench_stream("one token an event", "", 1, false);
    bench_stream("eight tokens an event", "", 8, false);
    bench_stream("one token, one stop string", ",\"stop\":\"###\"", 1, false);
    bench_stream("one token, four stop strings",
                 ",\"stop\":[\"###\",\"\\n\\nUser:\",\" thereof\",\"xyz\"]", 1,
                 false);
    bench_stream("one token, two top_logprobs",
                 ",\"logprobs\":true,\"top_logprobs\":2", 1, true);

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
