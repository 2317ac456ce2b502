/*
 * models.c - lists of models in both shapes.
 */

#include <stdlib.h>

#include "check.h"

#include "tokenizer/api/di_models.h"
#include "tokenizer/api/json.h"

static void
expect(di_sbuf_t *b, const char *text)
{
    di_sbuf_add(b, "", 1);
    CHECK(!b->failed);
    CHECK_EQ_STR(b->data, text);
    b->len = 0;
}

int
main(void)
{
    const di_model_t models[] = { { { "a", 1 }, 5 },
                                  { { "b\"", 2 }, 1764460800 } };
    di_sbuf_t        b = { 0 };

    di_models_write(&b, DI_API_CHAT, models, 2);
    expect(&b, "{\"object\":\"list\",\"data\":[{\"id\":\"a\",\"object\":"
           "\"model\",\"created\":5,\"owned_by\":\"ngx_deepinfer\"},{\"id\":"
           "\"b\\\"\",\"object\":\"model\",\"created\":1764460800,"
           "\"owned_by\":\"ngx_deepinfer\"}]}");
    di_models_write(&b, DI_API_CHAT, models, 0);
    expect(&b, "{\"object\":\"list\",\"data\":[]}");

    di_models_write(&b, DI_API_MESSAGES, models + 1, 1);
    expect(&b, "{\"data\":[{\"type\":\"model\",\"id\":\"b\\\"\","
           "\"display_name\":\"b\\\"\",\"created_at\":"
           "\"2025-11-30T00:00:00Z\",\"lifecycle\":\"active\"}],"
           "\"has_more\":false,\"first_id\":\"b\\\"\",\"last_id\":"
           "\"b\\\"\"}");
    di_models_write(&b, DI_API_MESSAGES, models, 0);
    expect(&b, "{\"data\":[],\"has_more\":false,\"first_id\":null,"
           "\"last_id\":null}");

    di_sbuf_free(&b);
    return check_done("models");
}
