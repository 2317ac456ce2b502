/*
 * completions.c - answers of the older Completions API: the exact bytes of
 * chunks and bodies, several prompts, echo, the four lists of
 * log-probabilities; then random chunkings, which must not change the text.
 */

#include <stdlib.h>
#include <time.h>

#include "check.h"
#include "nomem.h"
#include "tiny_vocab.h"

#include "tokenizer/api/di_completions.h"
#include "tokenizer/api/json.h"

#define S(text)  { text, sizeof(text) - 1 }

static const di_str_t words[] = {
    S("Hi"), S(" you"), S("\xf0\x9f"), S("\x98\x80!"), S("STOP"),
};

enum { W_HI = TINY_WORDS, W_YOU, W_FACE, W_FACE2, W_STOP, W_END };

static di_vocab_t *vocab;

typedef struct {
    di_req_t         *req;
    di_completions_t *out;
    di_sbuf_t         b;
    bool              stopped, done;
    uint32_t          prompt;    /* that run_token(), run_finish() go to    */
} run_t;

static void
run_open(run_t *r, const char *prompt, const char *more)
{
    const di_req_options_t options = { .vocab = W_END };
    di_api_err_t           e = { 0 };
    char                   body[512];

    memset(r, 0, sizeof(*r));
    snprintf(body, sizeof(body), "{\"model\":\"m\",\"prompt\":%s%s%s}", prompt,
             more[0] ? "," : "", more);
    if (di_req_parse(DI_API_COMPLETIONS, &options, body, strlen(body), &r->req,
                     &e) != DI_OK) {
        printf("%s: %s\n", body, e.message);
        abort();
    }

    CHECK_EQ_INT(di_completions_open(r->req, vocab, "cmpl-1",
                                     (di_str_t) S("m"), 7, &r->out), DI_OK);
}

static void
run_close(run_t *r)
{
    di_completions_close(r->out);
    di_req_close(r->req);
    di_sbuf_free(&r->b);
}

static void
run_token(run_t *r, uint32_t choice, int32_t token)
{
    CHECK_EQ_INT(di_completions_tokens(r->out, r->prompt, choice, &token, 1,
                                       &r->b, &r->stopped), DI_OK);
}

static void
run_finish(run_t *r, uint32_t choice, di_completions_finish_t reason)
{
    CHECK_EQ_INT(di_completions_finish(r->out, r->prompt, choice, reason,
                                       &r->b, &r->done), DI_OK);
}

static void
run_expect(run_t *r, const char *text)
{
    di_sbuf_add(&r->b, "", 1);
    CHECK_EQ_STR(r->b.data, text);
    r->b.len = 0;
}

#define HEAD  "{\"id\":\"cmpl-1\",\"object\":\"text_completion\","          \
              "\"created\":7,\"model\":\"m\",\"choices\":["
#define CHUNK(text, reason)  "data: " HEAD "{\"index\":0,\"text\":\"" text  \
              "\",\"logprobs\":null,\"finish_reason\":" reason "}]}\n\n"

static void
streams(void)
{
    run_t r;

    run_open(&r, "\"a\"", "\"stream\":true,\"stop\":\"STOP\"");
    CHECK_EQ_INT(di_completions_start(r.out, 0, (int32_t[]) { 'a' }, 1, 0, 1),
                 DI_OK);
    CHECK_EQ_INT(di_completions_start(r.out, 1, NULL, 0, 0, 0), DI_EINVAL);
    run_token(&r, 0, W_HI);
    run_expect(&r, CHUNK("Hi", "null"));
    run_token(&r, 0, W_FACE);
    run_expect(&r, "");
    run_token(&r, 0, W_FACE2);
    run_expect(&r, CHUNK("\xf0\x9f\x98\x80!", "null"));
    run_token(&r, 0, W_STOP);
    CHECK(r.stopped);
    run_expect(&r, "");
    CHECK_EQ_STR(di_completions_finish_reason(r.out), "");
    run_finish(&r, 0, DI_COMPLETIONS_LENGTH);
    CHECK(r.done);
    run_expect(&r, CHUNK("", "\"stop\""));
    CHECK_EQ_STR(di_completions_finish_reason(r.out), "stop");
    CHECK_EQ_INT(di_completions_end(r.out, &r.b), DI_OK);
    run_expect(&r, "data: [DONE]\n\n");
    CHECK_EQ_INT(di_completions_tokens_out(r.out), 4);
    run_close(&r);
}

static void
prompts(void)
{
    run_t r;

    run_open(&r, "[\"a\",\"b\"]", "\"n\":2");
    for (uint32_t p = 2; p-- > 0; ) {
        CHECK_EQ_INT(di_completions_start(r.out, p, (int32_t[]) { 'a' }, 1, 0,
                                          p), DI_OK);
    }
    for (uint32_t i = 0; i < 2; i++) {
        for (r.prompt = 0; r.prompt < 2; r.prompt++) {
            run_token(&r, i, i == 0 ? W_HI : W_YOU);
            if (i == 0)
                run_token(&r, 0, TINY_EOS);
            run_finish(&r, i, i == 0 ? DI_COMPLETIONS_STOP
                                     : DI_COMPLETIONS_LENGTH);
            CHECK(r.done == (i == 1));
        }
    }
    CHECK_EQ_INT(di_completions_tokens(r.out, 2, 0, NULL, 0, &r.b,
                                       &r.stopped), DI_EINVAL);
    CHECK_EQ_INT(di_completions_finish(r.out, 2, 0, DI_COMPLETIONS_STOP, &r.b,
                                       &r.done), DI_EINVAL);

    CHECK_EQ_INT(di_completions_body(r.out, &r.b), DI_OK);
    run_expect(&r, HEAD
               "{\"index\":0,\"text\":\"Hi\",\"logprobs\":null,"
               "\"finish_reason\":\"stop\"},"
               "{\"index\":1,\"text\":\" you\",\"logprobs\":null,"
               "\"finish_reason\":\"length\"},"
               "{\"index\":2,\"text\":\"Hi\",\"logprobs\":null,"
               "\"finish_reason\":\"stop\"},"
               "{\"index\":3,\"text\":\" you\",\"logprobs\":null,"
               "\"finish_reason\":\"length\"}],"
               "\"usage\":{\"prompt_tokens\":2,\"completion_tokens\":6,"
               "\"total_tokens\":8,\"prompt_tokens_details\":"
               "{\"cached_tokens\":1}}}");
    run_close(&r);
}

/* A bos of ours is not shown; the first token of a prompt has no
 * log-probability, the others have those that the engine told. */
static void
echoes(void)
{
    const int32_t              ids[] = { TINY_START, 'a', W_FACE, W_FACE2 };
    const di_completions_top_t top[] = { { 'a', -0.5f }, { W_HI, -1 } };
    run_t                      r;

    run_open(&r, "\"a\"", "\"echo\":true,\"logprobs\":2");
    CHECK_EQ_INT(di_completions_start(r.out, 0, ids + 1, 3, 0, 0), DI_OK);
    CHECK_EQ_INT(di_completions_prompt_logprob(r.out, 0, 2, -4, NULL, 0),
                 DI_OK);
    CHECK_EQ_INT(di_completions_prompt_logprob(r.out, 0, 1, -2, top, 2),
                 DI_OK);
    CHECK_EQ_INT(di_completions_prompt_logprob(r.out, 0, 2, -3, top, 1),
                 DI_OK);
    CHECK_EQ_INT(di_completions_logprob(r.out, 0, 0, W_HI, -1, top, 2), DI_OK);
    run_token(&r, 0, W_HI);
    run_finish(&r, 0, DI_COMPLETIONS_LENGTH);
    CHECK_EQ_INT(di_completions_body(r.out, &r.b), DI_OK);
    run_expect(&r, HEAD "{\"index\":0,\"text\":\"a\xf0\x9f\x98\x80!Hi\","
               "\"logprobs\":{\"text_offset\":[0,1,2,3],"
               "\"token_logprobs\":[null,-2.0,-3.0,-1.0],"
               "\"tokens\":[\"a\",\"bytes:\\\\xf0\\\\x9f\","
               "\"bytes:\\\\x98\\\\x80\\\\x21\",\"Hi\"],"
               "\"top_logprobs\":[null,"
               "{\"a\":-0.5,\"Hi\":-1.0,\"bytes:\\\\xf0\\\\x9f\":-2.0},"
               "{\"a\":-0.5,\"bytes:\\\\x98\\\\x80\\\\x21\":-3.0},"
               "{\"a\":-0.5,\"Hi\":-1.0}]},\"finish_reason\":\"length\"}],"
               "\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":1,"
               "\"total_tokens\":4,\"prompt_tokens_details\":"
               "{\"cached_tokens\":0}}}");
    run_close(&r);

    run_open(&r, "\"a\"", "\"echo\":true,\"logprobs\":0,\"stream\":true");
    CHECK_EQ_INT(di_completions_start(r.out, 0, ids, 2, 1, 0), DI_OK);
    CHECK_EQ_INT(di_completions_prompt_logprob(r.out, 0, 1, -2, top, 2), DI_OK);
    run_token(&r, 0, TINY_EOS);
    run_expect(&r, "data: " HEAD "{\"index\":0,\"text\":\"a\",\"logprobs\":"
               "{\"text_offset\":[0],\"token_logprobs\":[-2.0],\"tokens\":"
               "[\"a\"],\"top_logprobs\":[{\"a\":-2.0}]},"
               "\"finish_reason\":null}]}\n\n");
    run_close(&r);
}

/* The text of a stream's chunks, joined. */
static void
joined(const di_sbuf_t *sse, di_sbuf_t *text)
{
    const char *p = sse->data, *end;

    while ((p = memmem(p, (size_t) (sse->data + sse->len - p), "\"text\":\"",
                       8)) != NULL) {
        p += 8;
        end = strstr(p, "\",\"logprobs\"");
        di_sbuf_add(text, p, (size_t) (end - p));
    }
}

static void
chunkings(unsigned seed)
{
    int32_t   tokens[40];
    di_sbuf_t texts[2] = { { 0 }, { 0 } };
    size_t    i, n, k, len;
    run_t     r;

    srand(seed);
    len = 1 + (size_t) rand() % 40;
    for (i = 0; i < len; i++)
        tokens[i] = rand() % 3 ? TINY_WORDS + rand() % (W_END - TINY_WORDS)
                               : 'O' + rand() % 4;

    for (k = 0; k < 2; k++) {
        run_open(&r, "\"a\"", "\"stream\":true,\"stop\":[\"TOPS\",\"HiO\"]");
        CHECK_EQ_INT(di_completions_start(r.out, 0, (int32_t[]) { 'a' }, 1, 0,
                                          0), DI_OK);
        for (i = 0; i < len; i += n) {
            n = k == 0 ? 1 : 1 + (size_t) rand() % 5;
            n = n < len - i ? n : len - i;
            CHECK_EQ_INT(di_completions_tokens(r.out, 0, 0, tokens + i, n, &r.b,
                                               &r.stopped), DI_OK);
        }
        run_finish(&r, 0, DI_COMPLETIONS_STOP);
        di_sbuf_add(&r.b, "", 1);
        joined(&r.b, &texts[k]);
        run_close(&r);
    }

    CHECK(texts[0].len == texts[1].len && (texts[0].len == 0
          || memcmp(texts[0].data, texts[1].data, texts[0].len) == 0));
    di_sbuf_free(&texts[0]);
    di_sbuf_free(&texts[1]);
}

static void
no_memory(void)
{
    int     n, rc;
    run_t   r;
    int32_t token = W_HI;

    for (n = 0; ; n++) {
        run_open(&r, "\"a\"", "\"echo\":true,\"logprobs\":1");
        nomem_after(n);
        rc = di_completions_start(r.out, 0, &token, 1, 0, 0);
        if (rc == DI_OK)
            rc = di_completions_logprob(r.out, 0, 0, token, -1, NULL, 0);
        if (rc == DI_OK)
            rc = di_completions_tokens(r.out, 0, 0, &token, 1, NULL,
                                       &r.stopped);
        if (!nomem_off())
            break;
        CHECK_EQ_INT(rc, DI_ENOMEM);
        run_close(&r);
    }

    CHECK_EQ_INT(rc, DI_OK);
    run_close(&r);
}

int
main(void)
{
    unsigned seed = (unsigned) time(NULL);

    vocab = tiny_vocab(words, sizeof(words) / sizeof(words[0]));

    streams();
    prompts();
    echoes();
    no_memory();

    printf("completions: seed %u\n", seed);
    for (unsigned i = 0; i < 1000; i++)
        chunkings(seed + i);

    di_vocab_close(vocab);
    return check_done("completions");
}
