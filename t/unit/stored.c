/*
 * stored.c - records of responses: what is made of a request and its answer,
 * what a later request gets of it, pages of items.
 */

#include <stdlib.h>

#include "check.h"
#include "nomem.h"

#include "tokenizer/api/di_api.h"
#include "tokenizer/api/di_stored.h"
#include "tokenizer/api/json.h"

static di_str_t
str(const char *s)
{
    return (di_str_t) { s, strlen(s) };
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
records(void)
{
    const char *response = "{\"id\":\"r\", \"output\" : [ {\"a\":\"]\\\"\"} ]}";
    di_sbuf_t   b = { 0 };
    di_stored_t s;
    size_t      n;

    CHECK_EQ_INT(di_stored_write(&b, str(response), str("{\"id\":\"i\"}")),
                 DI_OK);
    CHECK_EQ_INT(di_stored_read(b.data, b.len, &s), DI_OK);
    CHECK(s.response.len == strlen(response)
          && memcmp(s.response.data, response, s.response.len) == 0);
    CHECK(s.input.len == 10 && memcmp(s.input.data, "{\"id\":\"i\"}", 10) == 0);
    CHECK(s.output.len == 13
          && memcmp(s.output.data, " {\"a\":\"]\\\"\"} ", 13) == 0);

    /* a part of a record is none, nor is one with bytes behind it */
    for (n = 0; n < b.len; n++)
        CHECK_EQ_INT(di_stored_read(b.data, n, &s), DI_EFORMAT);
    di_sbuf_lit(&b, "x");
    CHECK_EQ_INT(di_stored_read(b.data, b.len, &s), DI_EFORMAT);

    b.len = 0;
    CHECK_EQ_INT(di_stored_write(&b, str("{}"), str("")), DI_EFORMAT);
    CHECK_EQ_INT(di_stored_write(&b, str("["), str("")), DI_EFORMAT);
    di_sbuf_free(&b);
}

static void
input(const char *body, const di_stored_t *earlier, const char *items)
{
    di_sbuf_t b = { 0 };

    CHECK_EQ_INT(di_stored_input(body, strlen(body), earlier, "7", &b),
                 DI_OK);
    expect(&b, items);
    di_sbuf_free(&b);
}

static void
inputs(void)
{
    di_stored_t earlier = { str("{}"), str("{\"id\":\"1\"}"),
                            str("{\"id\":\"2\"}") };

    input("{}", NULL, "");
    input("{\"input\":[]}", &earlier, "{\"id\":\"1\"},{\"id\":\"2\"}");
    input("{\"input\":\"a\\n\"}", &earlier, "{\"id\":\"1\"},{\"id\":\"2\"},"
          "{\"id\":\"msg_7_in0\",\"type\":\"message\",\"status\":\"completed\","
          "\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":"
          "\"a\\n\"}]}");

    /* numbers, escapes and blanks stay; what is missing is added */
    input("{\"x\":1,\"input\":[{\"role\":\"assistant\",\"content\":\"b\"},"
          " {\"type\":\"function_call_output\", \"call_id\":\"\\u0063\","
          "\"output\":[1.0, -0, 18446744073709551615]},"
          "{\"id\":\"m\",\"type\":\"message\",\"status\":\"in_progress\","
          "\"role\":\"user\",\"content\":[ ]}]}", NULL,
          "{\"id\":\"msg_7_in0\",\"type\":\"message\",\"status\":\"completed\","
          "\"role\":\"assistant\",\"content\":[{\"type\":\"output_text\","
          "\"annotations\":[],\"text\":\"b\"}]},"
          "{\"id\":\"fco_7_in1\",\"status\":\"completed\","
          "\"type\":\"function_call_output\","
          "\"call_id\":\"\\u0063\",\"output\":[1.0, -0, "
          "18446744073709551615]},"
          "{\"id\":\"m\",\"type\":\"message\",\"status\":\"in_progress\","
          "\"role\":\"user\",\"content\":[ ]}");
}

static void
histories(void)
{
    di_stored_t s = { str("{}"), str("{\"id\":\"1\"}"), str("{}") };
    di_sbuf_t   b = { 0 };

    CHECK_EQ_INT(di_stored_history(&s, &b), DI_OK);
    expect(&b, "[{\"id\":\"1\"},{}]");

    s.output.len = 0;
    CHECK_EQ_INT(di_stored_history(&s, &b), DI_OK);
    expect(&b, "[{\"id\":\"1\"}]");
    di_sbuf_free(&b);
}

static void
page(size_t limit, const char *after, bool asc, const char *want)
{
    di_str_t  a = { after, after == NULL ? 0 : strlen(after) };
    di_sbuf_t b = { 0 };

    CHECK_EQ_INT(di_stored_list(str("{\"id\":\"1\"},{\"id\":\"2\"},"
                                    "{\"id\":\"3\"}"), limit, a, asc, &b),
                 DI_OK);
    expect(&b, want);
    di_sbuf_free(&b);
}

static void
pages(void)
{
    di_sbuf_t b = { 0 };

    page(20, NULL, true, "{\"object\":\"list\",\"data\":[{\"id\":\"1\"},"
         "{\"id\":\"2\"},{\"id\":\"3\"}],\"first_id\":\"1\",\"last_id\":\"3\","
         "\"has_more\":false}");
    page(2, NULL, false, "{\"object\":\"list\",\"data\":[{\"id\":\"3\"},"
         "{\"id\":\"2\"}],\"first_id\":\"3\",\"last_id\":\"2\","
         "\"has_more\":true}");
    page(2, "2", false, "{\"object\":\"list\",\"data\":[{\"id\":\"1\"}],"
         "\"first_id\":\"1\",\"last_id\":\"1\",\"has_more\":false}");
    page(2, "3", true, "{\"object\":\"list\",\"data\":[],\"first_id\":null,"
         "\"last_id\":null,\"has_more\":false}");

    CHECK_EQ_INT(di_stored_list(str("{\"id\":\"1\"}"), 1, str("9"), true, &b),
                 DI_EINVAL);
    di_sbuf_free(&b);
}

static void
no_memory(void)
{
    const char *body = "{\"input\":\"a\"}";
    di_sbuf_t   b;
    int         n, rc;

    for (n = 0; ; n++) {
        b = (di_sbuf_t) { 0 };
        nomem_after(n);
        rc = di_stored_input(body, strlen(body), NULL, "7", &b);
        di_sbuf_free(&b);
        if (!nomem_off())
            break;
        CHECK_EQ_INT(rc, DI_ENOMEM);
    }

    CHECK_EQ_INT(rc, DI_OK);
}

/* A request that goes on from a response, without that one's items and with
 * many of them. */
static void
no_memory_goes_on(void)
{
    static const char body[] =
        "{\"model\":\"m\",\"input\":\"b\",\"previous_response_id\":\"r\"}";
    di_req_options_t options = { .codec = DI_CODEC_STRICT };
    di_sbuf_t        history = { 0 };
    di_api_err_t     e;
    di_req_t        *req;
    int              n, n_known = 0, rc;

    di_sbuf_lit(&history, "[{\"role\":\"user\",\"content\":\"a\"}");
    for (n = 0; n < 2000; n++)
        di_sbuf_lit(&history, ",{\"role\":\"user\",\"content\":\"a\"}");
    di_sbuf_lit(&history, "]");

    for (int i = 0; i < 2; i++) {
        for (n = 0; ; n++) {
            req = NULL;
            nomem_after(n);
            rc = di_req_parse(DI_API_RESPONSES, &options, body,
                              sizeof(body) - 1, &req, &e);
            if (!nomem_off())
                break;
            CHECK_EQ_INT(rc, DI_ENOMEM);
            CHECK_EQ_INT(e.status, 500);
            CHECK(req == NULL);
        }
        CHECK_EQ_INT(rc, i == 0 ? DI_EAGAIN : DI_OK);
        CHECK_EQ_INT(di_req_previous(req).len, 1);
        CHECK(n > n_known || !NOMEM);
        n_known = n;
        options.history = (di_str_t) { history.data, history.len };
        di_req_close(req);
    }
    di_sbuf_free(&history);
}

int
main(void)
{
    records();
    inputs();
    histories();
    pages();
    no_memory();
    no_memory_goes_on();

    return check_done("stored");
}
