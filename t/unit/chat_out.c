/*
 * chat_out.c - responses: whole characters, stop strings, log-probabilities,
 * usage, and the exact bytes of chunks and bodies.
 *
 * Named cases first (B.. are faults that users of other servers met), then
 * random choices in random chunkings against chat_model.h.
 */

#include <math.h>
#include <time.h>

#include "check.h"
#include "chat_model.h"
#include "nomem.h"
#include "tiny_vocab.h"

#define ROUNDS 4000

#define S(text)  { text, sizeof(text) - 1 }

static const di_str_t words[] = {
    S("Hello"), S(" world"), S("Paris"), S("DEF"), S("GHI"), S("J"),
    S("\xe4\xbd\xa0"), S("\xe5\xa5\xbd \xf0\x9f"), S("\x98\x80!"),
    S("\xe2\x80\xa8"), S("ab"), S("abab"), S("xSTOP"), S("STOPx"), S("\n\n"),
};

enum {
    W_HELLO = TINY_WORDS, W_WORLD, W_PARIS, W_DEF, W_GHI, W_J, W_NI, W_HAO,
    W_FACE, W_SEP, W_AB, W_ABAB, W_XSTOP, W_STOPX, W_NL, W_END,
};

static di_vocab_t *vocab;

static di_out_conf_t conf = {
    .id = "chatcmpl-1", .model = S("m\"1"), .created = 1700000000,
};

/* One response under test. */
typedef struct {
    di_req_t *req;
    di_out_t *out;
    di_sbuf_t      sse;
    bool           stopped;
    bool           done;
} run_t;

static void
run_open(run_t *r, const char *more)
{
    const di_req_options_t options = { .vocab = 1000 };
    di_api_err_t           e;
    char                   body[2048];

    memset(r, 0, sizeof(*r));
    snprintf(body, sizeof(body), "{\"model\":\"m\",\"messages\":[{\"role\":"
             "\"user\",\"content\":\"\"}]%s%s}", more[0] ? "," : "", more);
    if (di_req_parse(DI_API_CHAT, &options, body, strlen(body), &r->req, &e)
        != DI_OK)
    {
        printf("%s: %s\n", more, e.message);
        abort();
    }

    conf.req = r->req;
    CHECK_EQ_INT(di_out_open(&conf, &r->out), DI_OK);
    CHECK_EQ_INT(di_out_start(r->out, 10, 4, NULL, &r->sse), DI_OK);
}

static void
run_close(run_t *r)
{
    di_out_close(r->out);
    di_req_close(r->req);
    di_sbuf_free(&r->sse);
}

static void
run_tokens(run_t *r, uint32_t choice, const int32_t *tokens, size_t n)
{
    CHECK_EQ_INT(di_out_tokens(r->out, choice, tokens, n, &r->sse,
                               &r->stopped, NULL), DI_OK);
}

static void
run_token(run_t *r, int32_t token)
{
    run_tokens(r, 0, &token, 1);
}

/* The single bytes of a text, one call each. */
static void
run_bytes(run_t *r, const char *s)
{
    while (*s != '\0')
        run_token(r, (unsigned char) *s++);
}

static void
run_finish(run_t *r, uint32_t choice, di_end_t reason)
{
    CHECK_EQ_INT(di_out_finish(r->out, choice, reason, &r->sse, &r->done),
                 DI_OK);
}

/* Take what the stream wrote so far. */
static void
run_expect(run_t *r, const char *events)
{
    di_sbuf_add(&r->sse, "", 1);
    CHECK_EQ_STR(r->sse.data, events);
    r->sse.len = 0;
}

#define HEAD   "data: {\"id\":\"chatcmpl-1\",\"object\":"                   \
               "\"chat.completion.chunk\",\"created\":1700000000,\"model\":" \
               "\"m\\\"1\",\"choices\":["
#define NULLS  "\"logprobs\":null,\"finish_reason\":null}]"
#define ROLE(i)  HEAD "{\"index\":" #i ",\"delta\":{\"role\":\"assistant\"," \
               "\"content\":\"\",\"refusal\":null}," NULLS
#define DELTA(i, text)  HEAD "{\"index\":" #i ",\"delta\":{\"content\":\""  \
               text "\"}," NULLS
#define FINISH(i, why)  HEAD "{\"index\":" #i ",\"delta\":{},\"logprobs\":"  \
               "null,\"finish_reason\":\"" why "\"}]"
#define E      "}\n\n"
#define UE     ",\"usage\":null}\n\n"

/* The text shown for the events so far, and a check of their form. */
static const char *
shown(run_t *r)
{
    static seen_t s;

    seen_reset(&s);
    seen_stream(r->sse.data, r->sse.len, &s);
    CHECK(s.broken == NULL);
    CHECK(!s.choices[0].disorder);
    text_add(&s.choices[0].text, "", 1);
    return s.choices[0].text.data;
}

static void
check_stream_bytes(void)
{
    run_t r;

    run_open(&r, "\"stream\":true");
    run_token(&r, W_HELLO);
    run_expect(&r, ROLE(0) E DELTA(0, "Hello") E);
    run_tokens(&r, 0, (int32_t[]) { W_WORLD, '"', '\n' }, 3);
    run_expect(&r, DELTA(0, " world\\\"\\n") E);
    run_token(&r, TINY_END);
    run_expect(&r, "");
    CHECK_EQ_STR(di_out_finish_reason(r.out), "");
    run_finish(&r, 0, DI_END_STOP);
    run_expect(&r, FINISH(0, "stop") E);
    CHECK(r.done);
    run_finish(&r, 0, DI_END_LENGTH);
    run_token(&r, W_HELLO);
    run_expect(&r, "");
    CHECK(r.done);
    CHECK_EQ_STR(di_out_finish_reason(r.out), "stop");
    CHECK_EQ_INT(di_out_completion_tokens(r.out), 5);
    CHECK_EQ_INT(di_out_end(r.out, &r.sse), DI_OK);
    run_expect(&r, "data: [DONE]\n\n");
    CHECK_EQ_INT(di_out_tokens(r.out, 1, NULL, 0, &r.sse, &r.stopped,
                               NULL), DI_EINVAL);
    CHECK_EQ_INT(di_out_finish(r.out, 1, DI_END_STOP, &r.sse, &r.done),
                 DI_EINVAL);
    CHECK_EQ_INT(di_out_logprob(r.out, 1, 0, 0, NULL, 0), DI_EINVAL);
    run_close(&r);

    /* An answer without any token. */
    run_open(&r, "\"stream\":true");
    run_finish(&r, 0, DI_END_LENGTH);
    run_expect(&r, ROLE(0) E FINISH(0, "length") E);
    run_close(&r);

    /* After a fault the caller writes the error event. */
    run_open(&r, "\"stream\":true");
    run_tokens(&r, 0, (int32_t[]) { W_HELLO, 0xe4 }, 2);
    run_finish(&r, 0, DI_END_ERROR);
    run_expect(&r, ROLE(0) E DELTA(0, "Hello") E DELTA(0, "\xef\xbf\xbd") E);
    CHECK(r.done);
    CHECK_EQ_STR(di_out_finish_reason(r.out), "error");
    run_close(&r);
}

/* B51, B53: one usage chunk without choices, null before it; prompt tokens
 * once, completion tokens summed, a finish chunk for every choice. */
static void
check_usage(void)
{
    run_t r;

    run_open(&r, "\"stream\":true,\"n\":3,\"stream_options\":"
             "{\"include_usage\":true}");
    run_tokens(&r, 2, (int32_t[]) { W_AB }, 1);
    run_tokens(&r, 0, (int32_t[]) { W_HELLO, W_J }, 2);
    run_expect(&r, ROLE(2) UE DELTA(2, "ab") UE ROLE(0) UE DELTA(0, "HelloJ")
               UE);
    run_finish(&r, 0, DI_END_LENGTH);
    CHECK(!r.done);
    run_tokens(&r, 1, (int32_t[]) { TINY_EOS }, 1);
    run_finish(&r, 1, DI_END_STOP);
    CHECK(!r.done);
    run_finish(&r, 2, DI_END_LENGTH);
    CHECK(r.done);
    run_expect(&r, FINISH(0, "length") UE ROLE(1) UE FINISH(1, "stop") UE
               FINISH(2, "length") UE);
    CHECK_EQ_INT(di_out_end(r.out, &r.sse), DI_OK);
    run_expect(&r, HEAD "],\"usage\":{\"prompt_tokens\":10,"
               "\"completion_tokens\":4,\"total_tokens\":14,"
               "\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\n"
               "data: [DONE]\n\n");
    run_close(&r);
}

static void
check_body_bytes(void)
{
    di_sbuf_t b = { 0 };
    run_t     r;

    run_open(&r, "\"n\":2");
    CHECK_EQ_INT(di_out_tokens(r.out, 0, (int32_t[]) { W_HELLO, '"' }, 2, NULL,
                               &r.stopped, NULL), DI_OK);
    CHECK_EQ_INT(di_out_finish(r.out, 0, DI_END_LENGTH, NULL, &r.done),
                 DI_OK);
    CHECK_EQ_INT(di_out_finish(r.out, 1, DI_END_STOP, NULL, &r.done),
                 DI_OK);
    CHECK(r.done);
    CHECK_EQ_INT(di_out_body(r.out, &b), DI_OK);
    di_sbuf_add(&b, "", 1);
    CHECK_EQ_STR(b.data, "{\"id\":\"chatcmpl-1\",\"object\":"
                 "\"chat.completion\",\"created\":1700000000,\"model\":"
                 "\"m\\\"1\",\"choices\":[{\"index\":0,\"message\":{\"role\":"
                 "\"assistant\",\"content\":\"Hello\\\"\",\"refusal\":null},"
                 "\"logprobs\":null,\"finish_reason\":\"length\"},"
                 "{\"index\":1,\"message\":{\"role\":\"assistant\","
                 "\"content\":\"\",\"refusal\":null},\"logprobs\":null,"
                 "\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":"
                 "10,\"completion_tokens\":2,\"total_tokens\":12,"
                 "\"prompt_tokens_details\":{\"cached_tokens\":4}}}");
    di_sbuf_free(&b);
    run_close(&r);
}

/* B01, B02: characters over several tokens reach the client whole, and the
 * stream goes on after bytes that are truly ill-formed. */
static void
check_characters(void)
{
    static const char text[] =
        "\xc4\x8f\xc3\xa1" "belsk\xc3\xa9 \xe4\xbd\xa0\xe5\xa5\xbd "
        "\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x91\xa7";
    run_t  r;

    run_open(&r, "\"stream\":true");
    run_bytes(&r, text);
    CHECK_EQ_STR(shown(&r), text);
    run_close(&r);

    run_open(&r, "\"stream\":true");
    run_bytes(&r, "\xe4\xbd");
    run_expect(&r, ROLE(0) E);
    run_token(&r, 'x');
    run_expect(&r, DELTA(0, "\xef\xbf\xbdx") E);
    run_bytes(&r, "\xff\xf0\x9f");
    run_expect(&r, DELTA(0, "\xef\xbf\xbd") E);
    run_bytes(&r, "\x98\x80\xe3\x81\x82");
    run_expect(&r, DELTA(0, "\xf0\x9f\x98\x80") E DELTA(0, "\xe3\x81\x82") E);

    /* The unfinished end is one U+FFFD. */
    run_bytes(&r, "\xf0\x9f\x98");
    run_expect(&r, "");
    run_finish(&r, 0, DI_END_LENGTH);
    run_expect(&r, DELTA(0, "\xef\xbf\xbd") E FINISH(0, "length") E);
    run_close(&r);
}

/* B03: one data: line per event whatever the text holds. */
static void
check_separators(void)
{
    run_t r;

    run_open(&r, "\"stream\":true");
    run_bytes(&r, "\xc2\x85\xe2\x80\xa8\xe2\x80\xa9\r\xe2\x9c\x85\x01");
    run_token(&r, 0);
    run_token(&r, W_SEP);
    run_expect(&r, ROLE(0) E DELTA(0, "\\u0085") E DELTA(0, "\\u2028") E
               DELTA(0, "\\u2029") E DELTA(0, "\\r") E
               DELTA(0, "\xe2\x9c\x85") E DELTA(0, "\\u0001") E
               DELTA(0, "\\u0000") E DELTA(0, "\\u2028") E);
    run_close(&r);
}

/* B05, B07 and kin: stop strings. */
static void
check_stops(void)
{
    run_t r;

    /* No beginning of a stop string is ever shown. */
    run_open(&r, "\"stream\":true,\"stop\":[\"DEFGHIJ\"]");
    run_bytes(&r, "ABC");
    CHECK_EQ_STR(shown(&r), "ABC");
    run_token(&r, W_DEF);
    run_token(&r, W_GHI);
    CHECK_EQ_STR(shown(&r), "ABC");
    CHECK(!r.stopped);
    run_token(&r, W_J);
    CHECK(r.stopped);
    run_token(&r, W_HELLO);
    CHECK(r.stopped);
    CHECK_EQ_STR(shown(&r), "ABC");
    r.sse.len = 0;
    run_finish(&r, 0, DI_END_LENGTH);
    run_expect(&r, FINISH(0, "stop") E);
    CHECK_EQ_INT(di_out_completion_tokens(r.out), 6);
    run_close(&r);

    /* What looked like one and isn't comes out, no more of it held. */
    run_open(&r, "\"stream\":true,\"stop\":\"ababc\"");
    run_token(&r, W_ABAB);
    CHECK_EQ_STR(shown(&r), "");
    run_token(&r, W_ABAB);
    CHECK_EQ_STR(shown(&r), "abab");
    run_token(&r, 'x');
    CHECK_EQ_STR(shown(&r), "ababababx");
    run_token(&r, W_ABAB);
    run_finish(&r, 0, DI_END_LENGTH);
    CHECK_EQ_STR(shown(&r), "ababababxabab");
    run_close(&r);

    /* Inside a token, at its beginning, at its end. */
    run_open(&r, "\"stream\":true,\"stop\":[\"Pari\"]");
    run_bytes(&r, "in ");
    run_token(&r, W_PARIS);
    CHECK(r.stopped);
    CHECK_EQ_STR(shown(&r), "in ");
    run_close(&r);

    /* An added token that is shown is text as any other: <tool>. */
    run_open(&r, "\"stream\":true,\"stop\":[\"b<to\"]");
    run_token(&r, W_AB);
    CHECK(!r.stopped);
    run_token(&r, TINY_USER);
    CHECK(r.stopped);
    CHECK_EQ_STR(shown(&r), "a");
    run_close(&r);

    run_open(&r, "\"stream\":true,\"stop\":[\"STOP\"]");
    run_tokens(&r, 0, (int32_t[]) { W_HELLO, W_XSTOP, W_WORLD }, 3);
    CHECK(r.stopped);
    CHECK_EQ_STR(shown(&r), "Hellox");
    CHECK_EQ_INT(di_out_completion_tokens(r.out), 2);
    run_close(&r);

    /* The first complete one wins; of two, the one that began first. */
    run_open(&r, "\"stream\":true,\"stop\":[\"c\",\"abcd\"]");
    run_bytes(&r, "xabc");
    CHECK(r.stopped);
    CHECK_EQ_STR(shown(&r), "xab");
    run_close(&r);

    run_open(&r, "\"stream\":true,\"stop\":[\"bc\",\"abc\"]");
    run_bytes(&r, "xabc");
    CHECK(r.stopped);
    CHECK_EQ_STR(shown(&r), "x");
    run_close(&r);

    /* Not looked for within min_tokens, nor across their end. */
    run_open(&r, "\"stream\":true,\"min_tokens\":3,\"stop\":[\"ab\"]");
    run_bytes(&r, "aba");
    run_bytes(&r, "b");
    CHECK_EQ_STR(shown(&r), "abab");
    run_bytes(&r, "ab");
    CHECK(r.stopped);
    CHECK_EQ_STR(shown(&r), "abab");
    run_close(&r);

    /* An unfinished character before a stop string. */
    run_open(&r, "\"stream\":true,\"stop\":[\"\xe4\xbd\xa0\"]");
    run_bytes(&r, "\xf0\x9f\xe4\xbd");
    CHECK_EQ_STR(shown(&r), "\xef\xbf\xbd");
    run_token(&r, 0xa0);
    CHECK(r.stopped);
    CHECK_EQ_STR(shown(&r), "\xef\xbf\xbd");
    run_close(&r);
}

/* B06, B65: control tokens are not shown, in the middle or at the end; the
 * same spelling as text is. */
static void
check_hidden(void)
{
    run_t r;

    run_open(&r, "\"stream\":true,\"ignore_eos\":true,\"stop_token_ids\":"
             "[122]");
    run_tokens(&r, 0, (int32_t[]) { 0xe4, TINY_EOS, 0xbd, TINY_PAD, 0xa0,
               TINY_UNUSED, TINY_USER, 5000, -1 }, 9);
    CHECK_EQ_STR(shown(&r), "\xe4\xbd\xa0<tool>");
    run_bytes(&r, "<|im_end|>z");
    CHECK_EQ_STR(shown(&r), "\xe4\xbd\xa0<tool><|im_end|>");
    CHECK_EQ_INT(di_out_completion_tokens(r.out), 20);
    run_close(&r);

    /* The end comes in the middle of a held tail. */
    run_open(&r, "\"stream\":true,\"stop\":[\"<|im_\"]");
    run_bytes(&r, "a<|i");
    run_token(&r, TINY_END);
    CHECK_EQ_STR(shown(&r), "a");
    run_finish(&r, 0, DI_END_STOP);
    CHECK_EQ_STR(shown(&r), "a<|i");
    run_close(&r);
}

/* B49, B50: bytes are the token's own, every logprob is a number. */
static void
check_logprobs(void)
{
    const di_out_top_t top[] = {
        { W_NI, -0.5f }, { TINY_END, -INFINITY }, { 0xe4, -3 },
    };
    di_sbuf_t b = { 0 };
    run_t     r;

    run_open(&r, "\"stream\":true,\"logprobs\":true,\"top_logprobs\":2");
    CHECK_EQ_INT(di_out_logprob(r.out, 0, 0xe4, -1.5f, top, 3), DI_OK);
    run_token(&r, 0xe4);
    run_expect(&r, ROLE(0) E);
    CHECK_EQ_INT(di_out_logprob(r.out, 0, 0xbd, 0, NULL, 0), DI_OK);
    CHECK_EQ_INT(di_out_logprob(r.out, 0, 0xa0, NAN, NULL, 0), DI_OK);
    CHECK_EQ_INT(di_out_logprob(r.out, 0, TINY_END, -1, NULL, 0), DI_OK);
    run_tokens(&r, 0, (int32_t[]) { 0xbd, 0xa0, TINY_END }, 3);
    run_expect(&r, HEAD "{\"index\":0,\"delta\":{\"content\":\"\xe4\xbd\xa0\"}"
               ",\"logprobs\":{\"content\":["
               "{\"token\":\"\\\\xe4\",\"logprob\":-1.5,\"bytes\":[228],"
               "\"top_logprobs\":[{\"token\":\"\xe4\xbd\xa0\",\"logprob\":"
               "-0.5,\"bytes\":[228,189,160]},{\"token\":\"<|im_end|>\","
               "\"logprob\":-9999.0,\"bytes\":[60,124,105,109,95,101,110,100,"
               "124,62]}]},"
               "{\"token\":\"\\\\xbd\",\"logprob\":0.0,\"bytes\":[189],"
               "\"top_logprobs\":[]},"
               "{\"token\":\"\\\\xa0\",\"logprob\":-9999.0,\"bytes\":[160],"
               "\"top_logprobs\":[]}],\"refusal\":null},"
               "\"finish_reason\":null}]" E);
    run_finish(&r, 0, DI_END_STOP);
    run_expect(&r, FINISH(0, "stop") E);
    run_close(&r);

    /* Entries of what a stop string took go out, later ones don't. */
    run_open(&r, "\"stream\":true,\"logprobs\":true,\"stop\":[\"DEFG\"]");
    CHECK_EQ_INT(di_out_logprob(r.out, 0, W_DEF, -1, NULL, 0), DI_OK);
    run_token(&r, W_DEF);
    run_expect(&r, ROLE(0) E);
    CHECK_EQ_INT(di_out_logprob(r.out, 0, W_GHI, -2, NULL, 0), DI_OK);
    CHECK_EQ_INT(di_out_logprob(r.out, 0, W_J, -3, NULL, 0), DI_OK);
    run_tokens(&r, 0, (int32_t[]) { W_GHI, W_J }, 2);
    run_expect(&r, HEAD "{\"index\":0,\"delta\":{\"content\":\"\"},"
               "\"logprobs\":{\"content\":[{\"token\":\"DEF\",\"logprob\":"
               "-1.0,\"bytes\":[68,69,70],\"top_logprobs\":[]},{\"token\":"
               "\"GHI\",\"logprob\":-2.0,\"bytes\":[71,72,73],"
               "\"top_logprobs\":[]}],\"refusal\":null},"
               "\"finish_reason\":null}]" E);
    run_finish(&r, 0, DI_END_STOP);
    run_expect(&r, FINISH(0, "stop") E);
    run_close(&r);

    /* In a body; and not asked for, not written. */
    run_open(&r, "\"logprobs\":true");
    CHECK_EQ_INT(di_out_logprob(r.out, 0, 'a', -1, top, 3), DI_OK);
    CHECK_EQ_INT(di_out_logprob(r.out, 0, 'b', -1, top, 3), DI_OK);
    run_tokens(&r, 0, (int32_t[]) { 'a', 'b' }, 2);
    run_finish(&r, 0, DI_END_STOP);
    CHECK_EQ_INT(di_out_body(r.out, &b), DI_OK);
    CHECK(memmem(b.data, b.len, "\"logprobs\":{\"content\":[{\"token\":\"a\","
                 "\"logprob\":-1.0,\"bytes\":[97],\"top_logprobs\":[]},{", 80)
          != NULL);
    b.len = 0;
    run_close(&r);

    run_open(&r, "");
    CHECK_EQ_INT(di_out_logprob(r.out, 0, 'a', -1, NULL, 0), DI_OK);
    run_token(&r, 'a');
    run_finish(&r, 0, DI_END_STOP);
    CHECK_EQ_INT(di_out_body(r.out, &b), DI_OK);
    CHECK(memmem(b.data, b.len, "\"logprobs\":null", 15) != NULL);
    di_sbuf_free(&b);
    run_close(&r);
}

/* ---------------------------------------------------------------- random */

static unsigned
pick(unsigned n)
{
    return (unsigned) (random() % n);
}

/* Tokens that make stop strings and broken characters likely. */
static int32_t
random_token(void)
{
    static const int32_t likely[] = {
        'a', 'b', 'c', 'a', 'b', W_AB, W_ABAB, W_NI, W_HAO, W_FACE, 0xf0, 0x9f,
        0x98, 0x80, 0xe4, 0xbd, 0xa0, W_SEP, TINY_PAD, TINY_UNUSED, '"', '\n',
        0xe0, 0xed, 0xf4, 0xc2, 0x85, W_NL,
    };

    return pick(8) == 0 ? (int32_t) pick(W_END)
           : likely[pick(sizeof(likely) / sizeof(likely[0]))];
}

static const di_str_t stop_texts[] = {
    S("ab"), S("abc"), S("abab"), S("ababc"), S("bca"), S("b\\n"), S("cab"),
    S("\xe4\xbd\xa0"), S("\xe4\xbd\xa0\xe4\xbd\xa0"), S("\xf0\x9f\x98\x80"),
    S("!\xe4\xbd\xa0"), S("aaaaaaaab"), S("\xe2\x80\xa8"),
};

typedef struct {
    int32_t tokens[256];
    size_t  n;
    text_t  bytes;               /* of the shown ones, joined               */
    size_t  starts[257];         /* of each token in `bytes`                */
} case_t;

static void
random_case(case_t *c)
{
    const char *p;
    size_t      i, len;

    c->n = pick(60);
    c->bytes.len = 0;

    for (i = 0; i < c->n; i++) {
        c->tokens[i] = random_token();
        c->starts[i] = c->bytes.len;
        if (di_vocab_is_special(vocab, c->tokens[i]))
            continue;
        p = di_vocab_bytes(vocab, c->tokens[i], &len);
        text_add(&c->bytes, p, len);
    }
    c->starts[c->n] = c->bytes.len;
}

/* Feed the case in random chunks; check each step of a stream. */
static void
feed(run_t *r, const case_t *c, size_t from, const di_str_t *stops,
     size_t n_stops, size_t cut, bool met, bool stream)
{
    size_t         i, k, n, ready;
    static seen_t  s;
    static text_t  want;

    for (i = 0; i < c->n && !r->stopped; i += n) {
        n = 1 + pick(4);
        if (n > c->n - i)
            n = c->n - i;

        for (k = i; k < i + n; k++)
            CHECK_EQ_INT(di_out_logprob(r->out, 0, c->tokens[k], -1, NULL,
                                             0), DI_OK);
        run_tokens(r, 0, c->tokens + i, n);
        if (!stream)
            continue;

        ready = c->starts[i + n] < from
                ? model_ready(c->bytes.data, c->starts[i + n],
                              c->starts[i + n], NULL, 0)
                : model_ready(c->bytes.data, c->starts[i + n], from, stops,
                              n_stops);
        if (met && r->stopped)
            ready = cut;

        seen_reset(&s);
        seen_stream(r->sse.data, r->sse.len, &s);
        want.len = 0;
        model_decode(c->bytes.data, ready, &want);
        CHECK(s.broken == NULL && !s.choices[0].disorder);
        CHECK(s.choices[0].text.len == want.len
              && memcmp(s.choices[0].text.data, want.data, want.len) == 0);
    }
}

static void
check_random_case(void)
{
    static case_t  c;
    static seen_t  s[2];
    static text_t  want;
    const char    *options[2] = { "\"stream\":true,", "" };
    di_str_t       stops[4];
    char           more[512], *p;
    size_t         n_stops = pick(5), i, min, from, cut, seen;
    bool           met;
    run_t          r;
    int            form;

    random_case(&c);
    min = pick(3) == 0 ? pick(6) : 0;
    from = c.starts[min < c.n ? min : c.n];

    for (i = 0; i < n_stops; i++)
        stops[i] = stop_texts[pick(sizeof(stop_texts)
                                   / sizeof(stop_texts[0]))];

    cut = seen = c.bytes.len;
    met = model_stop(c.bytes.data, c.bytes.len, from, stops, n_stops, &cut,
                     &seen);
    want.len = 0;
    model_decode(c.bytes.data, cut, &want);

    for (form = 0; form < 2; form++) {
        p = more + sprintf(more, "%s\"logprobs\":true,\"min_tokens\":%zu,"
                           "\"stop\":[", options[form], min);
        for (i = 0; i < n_stops; i++)
            p += sprintf(p, "%s\"%s\"", i > 0 ? "," : "",
                         memchr(stops[i].data, '\\', stops[i].len) != NULL
                         ? "b\\\\n" : stops[i].data);
        sprintf(p, "]");

        run_open(&r, more);
        feed(&r, &c, from, stops, n_stops, cut, met, form == 0);
        CHECK(r.stopped == met);
        run_finish(&r, 0, DI_END_LENGTH);

        seen_reset(&s[form]);
        if (form == 0) {
            seen_stream(r.sse.data, r.sse.len, &s[0]);
            CHECK_EQ_INT(s[0].choices[0].finishes, 1);
        } else {
            CHECK_EQ_INT(r.sse.len, 0);
            CHECK_EQ_INT(di_out_body(r.out, &r.sse), DI_OK);
            seen_body(r.sse.data, r.sse.len, &s[1]);
        }

        CHECK(s[form].broken == NULL && !s[form].choices[0].disorder);
        CHECK_EQ_STR(s[form].choices[0].reason, met ? "stop" : "length");
        CHECK(s[form].choices[0].text.len == want.len
              && memcmp(s[form].choices[0].text.data, want.data, want.len)
                 == 0);

        /* Entries: all shown tokens up to the one that completed the stop. */
        for (i = 0; i < c.n && c.starts[i + 1] < seen; i++) { /* void */ }
        CHECK(s[form].choices[0].bytes.len == c.starts[i < c.n ? i + 1 : i]
              && memcmp(s[form].choices[0].bytes.data, c.bytes.data,
                        s[form].choices[0].bytes.len) == 0);
        run_close(&r);
    }
}

static void
check_nomem(void)
{
    const int32_t  tokens[] = { W_HELLO, W_AB, W_FACE, 0xe4 };
    di_out_t *out;
    di_sbuf_t      sse, body;
    bool           stopped, done;
    run_t          r;
    int            n, rc, form;
    size_t         i;

    for (form = 0; form < 2; form++) {
        run_open(&r, form == 0 ? "\"stream\":true,\"logprobs\":true,\"stop\":"
                 "[\"abc\"],\"n\":2" : "\"logprobs\":true,\"stop\":[\"abc\"]");

        for (n = 0; ; n++) {
            memset(&sse, 0, sizeof(sse));
            memset(&body, 0, sizeof(body));
            nomem_after(n);
            conf.req = r.req;
            rc = di_out_open(&conf, &out);
            if (rc != DI_OK)
                out = NULL;

            for (i = 0; i < 400 && rc == DI_OK; i++)
                rc = di_out_logprob(out, 0, tokens[i % 4], -1, NULL, 0);
            for (i = 0; i < 400 && rc == DI_OK; i++)
                rc = di_out_tokens(out, 0, &tokens[i % 4], 1, &sse, &stopped,
                                   NULL);
            if (rc == DI_OK)
                rc = di_out_finish(out, 0, DI_END_STOP, &sse, &done);
            if (rc == DI_OK)
                rc = di_out_end(out, &sse);
            if (rc == DI_OK)
                rc = di_out_body(out, &body);

            di_out_close(out);
            di_sbuf_free(&sse);
            di_sbuf_free(&body);
            if (!nomem_off())
                break;
            CHECK_EQ_INT(rc, DI_ENOMEM);
        }

        CHECK_EQ_INT(rc, DI_OK);
        CHECK(!NOMEM || n > 10);
        run_close(&r);
    }
}

int
main(void)
{
    unsigned    seed = (unsigned) time(NULL);
    const char *s = getenv("SEED");
    int         i;

    if (s != NULL)
        seed = (unsigned) strtoul(s, NULL, 10);
    srandom(seed);
    printf("chat_out: seed %u\n", seed);

    vocab = tiny_vocab(words, sizeof(words) / sizeof(words[0]));
    conf.vocab = vocab;

    check_stream_bytes();
    check_usage();
    check_body_bytes();
    check_characters();
    check_separators();
    check_stops();
    check_hidden();
    check_logprobs();
    for (i = 0; i < ROUNDS; i++)
        check_random_case();
    check_nomem();

    di_vocab_close(vocab);
    return check_done("chat_out");
}
