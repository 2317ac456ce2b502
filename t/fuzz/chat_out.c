/*
 * chat_out.c - fuzz responses: any tokens, stop strings and chunking must
 * give the text of chat_model.h, streamed and whole.
 *
 * Input: a byte of options, up to three stop strings (a length, then bytes),
 * then tokens: bytes are the tokens of single bytes, but those that UTF-8
 * never has are words and control tokens.
 */

#include <stdio.h>

#include "t/unit/chat_model.h"
#include "t/unit/tiny_vocab.h"
#include "tokenizer/api/json.h"

#define TOKENS_MAX   128
#define MUST(cond)  do { if (!(cond)) abort(); } while (0)

static const di_str_t words[] = {
    { "ab", 2 }, { "\xe4\xbd", 2 }, { "\xa0x\xf0\x9f", 4 }, { "\n\n", 2 },
};

static const int32_t others[8] = {
    TINY_EOS, TINY_PAD, TINY_UNUSED, TINY_USER, TINY_WORDS, TINY_WORDS + 1,
    TINY_WORDS + 2, TINY_WORDS + 3,
};

typedef struct {
    int32_t tokens[TOKENS_MAX];
    size_t  n;
    text_t  bytes;
    size_t  from;                /* where stop strings may begin            */
} case_t;

static di_vocab_t *vocab;

static di_req_t *
request(bool stream, unsigned min_tokens, const di_str_t *stops,
        size_t n_stops)
{
    di_sbuf_t      b = { 0 };
    di_req_t *req = NULL;
    di_api_err_t   e;
    size_t         i;

    di_sbuf_lit(&b, "{\"model\":\"m\",\"messages\":[{\"role\":\"user\","
                "\"content\":\"\"}],\"logprobs\":true,\"min_tokens\":");
    di_json_add_u64(&b, min_tokens);
    if (stream)
        di_sbuf_lit(&b, ",\"stream\":true");
    di_sbuf_lit(&b, ",\"stop\":[");
    for (i = 0; i < n_stops; i++) {
        if (i > 0)
            di_sbuf_lit(&b, ",");
        di_json_add_string(&b, stops[i].data, stops[i].len);
    }
    di_sbuf_lit(&b, "]}");

    if (di_req_parse(DI_API_CHAT, NULL, b.data, b.len, &req, &e) != DI_OK)
        req = NULL;              /* a NUL in a stop string is refused       */
    di_sbuf_free(&b);
    return req;
}

/* The model looks for stop strings in the bytes of tokens; one with U+FFFD is
 * also met where ill-formed bytes became that. */
static bool
stops_at_replacement(const di_req_params_t *params)
{
    size_t i;

    for (i = 0; i < params->n_stop; i++) {
        if (memmem(params->stop[i].data, params->stop[i].len, "\xef\xbf\xbd",
                   3) != NULL)
            return true;
    }

    return false;
}

static void
respond(const case_t *c, const di_req_t *req, unsigned step, bool stream,
        seen_t *seen, bool *stopped)
{
    di_out_conf_t conf = { .vocab = vocab, .id = "id", .model = { "m", 1 } };
    di_out_t     *out;
    di_sbuf_t     b = { 0 };
    bool          done;
    size_t        i, k, n;

    conf.req = req;
    MUST(di_out_open(&conf, &out) == DI_OK);
    *stopped = false;

    for (i = 0; i < c->n && !*stopped; i += n) {
        n = 1 + (i * 7 + step) % 5;
        if (n > c->n - i)
            n = c->n - i;
        for (k = i; k < i + n; k++)
            MUST(di_out_logprob(out, 0, c->tokens[k], -1, NULL, 0)
                 == DI_OK);
        MUST(di_out_tokens(out, 0, c->tokens + i, n, &b, stopped, NULL)
             == DI_OK);
    }

    MUST(di_out_finish(out, 0, DI_END_LENGTH, &b, &done) == DI_OK);
    MUST(done);
    seen_reset(seen);

    if (stream) {
        seen_stream(b.data, b.len, seen);
        MUST(seen->choices[0].finishes == 1);
    } else {
        MUST(b.len == 0 && di_out_body(out, &b) == DI_OK);
        seen_body(b.data, b.len, seen);
    }

    MUST(seen->broken == NULL && !seen->choices[0].disorder);
    di_out_close(out);
    di_sbuf_free(&b);
}

static void
read_tokens(case_t *c, const uint8_t *data, size_t size, unsigned min_tokens)
{
    const char *p;
    size_t      i, len;

    c->n = c->from = c->bytes.len = 0;

    for (i = 0; i < size && i < TOKENS_MAX; i++) {
        c->tokens[c->n++] = data[i] < 0xf8 ? data[i] : others[data[i] - 0xf8];
        if (!di_vocab_is_special(vocab, c->tokens[i])) {
            p = di_vocab_bytes(vocab, c->tokens[i], &len);
            text_add(&c->bytes, p, len);
        }
        if (i + 1 <= min_tokens)
            c->from = c->bytes.len;
    }
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static case_t           c;
    static seen_t           seen;
    static text_t           want;
    const di_req_params_t *params;
    di_req_t          *req;
    di_str_t                stops[3];
    size_t                  n_stops, i, cut, end;
    unsigned                options;
    bool                    met, stopped, stream;

    if (vocab == NULL)
        vocab = tiny_vocab(words, 4);

    if (size < 1)
        return 0;
    options = *data++;
    size--;

    for (n_stops = 0; n_stops < (options & 3) && size > 1; n_stops++) {
        i = 1 + *data % 8;
        if (i > size - 1)
            i = size - 1;
        stops[n_stops] = (di_str_t) { (const char *) data + 1, i };
        data += 1 + i;
        size -= 1 + i;
    }

    read_tokens(&c, data, size, options >> 2 & 3);

    for (stream = false; ; stream = true) {
        req = request(stream, options >> 2 & 3, stops, n_stops);
        if (req == NULL)
            return 0;

        params = di_req_params(req);
        if (stops_at_replacement(params)) {
            di_req_close(req);
            return 0;
        }

        cut = c.bytes.len;
        met = model_stop(c.bytes.data, c.bytes.len, c.from, params->stop,
                         params->n_stop, &cut, &end);
        want.len = 0;
        model_decode(c.bytes.data, cut, &want);

        respond(&c, req, options >> 4, stream, &seen, &stopped);
        MUST(stopped == met);
        MUST(seen.choices[0].text.len == want.len);
        MUST(memcmp(seen.choices[0].text.data, want.data, want.len) == 0);
        di_req_close(req);

        if (stream)
            break;
    }

    return 0;
}
