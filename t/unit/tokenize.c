/*
 * tokenize.c - bodies of /tokenize and /detokenize: what is read, what is
 * refused by name, and the exact bytes of the answers.
 */

#include "check.h"
#include "nomem.h"
#include "tiny_vocab.h"

#include "tokenizer/api/di_tokenize.h"

#define S(text)  { text, sizeof(text) - 1 }

static const di_str_t words[] = { S("Hi"), S(" \xe4\xbd\xa0"), S("\xe4") };

enum { W_HI = TINY_WORDS, W_NI, W_HALF, W_END };

static void
reads(void)
{
    di_tokenize_t *t;
    di_api_err_t   e = { 0 };
    const char     text[] = "{\"prompt\":\"a b\",\"model\":\"m\"}";
    const char     chat[] = "{\"messages\":[],\"add_generation_prompt\":false,"
                            "\"return_token_strs\":true,\"prompt\":null}";

    CHECK_EQ_INT(di_tokenize_parse(text, sizeof(text) - 1, &t, &e), DI_OK);
    CHECK_EQ_INT(t->prompt.len, 3);
    CHECK_EQ_INT(t->model.len, 1);
    CHECK(t->special && t->open && !t->strings);
    di_tokenize_close(t);

    CHECK_EQ_INT(di_tokenize_parse(chat, sizeof(chat) - 1, &t, &e), DI_OK);
    CHECK(t->prompt.data == NULL && !t->special && !t->open && t->strings);
    di_tokenize_close(t);
}

static void
refuses(void)
{
    static const struct { const char *body, *param; } cases[] = {
        { "{}", "prompt" }, { "[1]", "" }, { "{\"prompt\":1}", "prompt" },
        { "{\"prompt\":\"\",\"messages\":[]}", "messages" },
        { "{\"prompt\":\"\",\"add_special_tokens\":1}", "add_special_tokens" },
        { "{\"messages\":[],\"add_special_tokens\":true}",
          "add_special_tokens" },
        { "{\"messages\":[],\"continue_final_message\":true}",
          "continue_final_message" },
        { "{\"messages\":[],\"chat_template\":\"\"}", "chat_template" },
    };
    di_tokenize_t *t;
    di_api_err_t   e;
    size_t         i;

    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        memset(&e, 0, sizeof(e));
        CHECK(di_tokenize_parse(cases[i].body, strlen(cases[i].body), &t, &e)
              != DI_OK);
        CHECK_EQ_INT(e.status, 400);
        CHECK_EQ_STR(e.param, cases[i].param);
    }
}

static void
tokens(void)
{
    static const struct { const char *body, *param; int rc; } cases[] = {
        { "{\"tokens\":[]}", "", DI_OK },
        { "{\"tokens\":[0,264]}", "", DI_OK },
        { "{\"tokens\":[0,265]}", "tokens[1]", DI_EINVAL },
        { "{\"tokens\":[-1]}", "tokens[0]", DI_EINVAL },
        { "{\"tokens\":{}}", "tokens", DI_EINVAL },
        { "{}", "tokens", DI_EINVAL },
    };
    di_tokenize_t *t;
    di_api_err_t   e;
    size_t         i;

    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        memset(&e, 0, sizeof(e));
        CHECK_EQ_INT(di_detokenize_parse(cases[i].body, strlen(cases[i].body),
                                         265, &t, &e), cases[i].rc);
        CHECK_EQ_STR(e.param, cases[i].param);
        if (cases[i].rc == DI_OK) {
            CHECK_EQ_INT(t->n_tokens, i * 2);
            di_tokenize_close(t);
        }
    }
}

static void
expect(di_sbuf_t *b, const char *text)
{
    di_sbuf_add(b, "", 1);
    CHECK(!b->failed);
    CHECK_EQ_STR(b->data, text);
    b->len = 0;
}

static void
writes(void)
{
    static const int32_t ids[] = { TINY_START, W_HI, W_NI, W_HALF, '\n', 0xad };
    di_vocab_t          *vocab = tiny_vocab(words, 3);
    di_sbuf_t            b = { 0 };

    di_tokenize_write(&b, vocab, ids, 0, 0, false);
    expect(&b, "{\"count\":0,\"max_model_len\":null,\"tokens\":[],"
           "\"token_strs\":null}");

    /* GPT-2's alphabet, as every vocabulary file has it */
    di_tokenize_write(&b, vocab, ids, 6, 4096, true);
    expect(&b, "{\"count\":6,\"max_model_len\":4096,\"tokens\":"
           "[257,262,263,264,10,173],\"token_strs\":[\"<|im_start|>\",\"Hi\","
           "\"\u0120\u00e4\u00bd\u0142\",\"\u00e4\",\"\u010a\",\"\u0143\"]}");

    di_detokenize_write(&b, vocab, ids, 5);
    expect(&b, "{\"prompt\":\"<|im_start|>Hi \xe4\xbd\xa0\xef\xbf\xbd\\n\"}");

    di_sbuf_free(&b);
    di_vocab_close(vocab);
}

static void
no_memory(void)
{
    static const char body[] = "{\"tokens\":[1,2,3]}";
    di_tokenize_t    *t;
    di_api_err_t      e;
    int               n, rc;

    for (n = 0; ; n++) {
        memset(&e, 0, sizeof(e));
        nomem_after(n);
        rc = di_detokenize_parse(body, sizeof(body) - 1, 10, &t, &e);
        if (!nomem_off())
            break;
        CHECK_EQ_INT(rc, DI_ENOMEM);
        CHECK_EQ_INT(e.status, 500);
    }

    CHECK_EQ_INT(rc, DI_OK);
    di_tokenize_close(t);
}

int
main(void)
{
    reads();
    refuses();
    tokens();
    writes();
    no_memory();

    return check_done("tokenize");
}
