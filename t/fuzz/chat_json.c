/*
 * chat_json.c - fuzz request bodies: the reader must agree with jansson, and
 * a Chat Completions request must be parsed or refused with a valid error.
 */

#include <stdlib.h>

#include "t/unit/json_model.h"

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const di_req_options_t limits = { .vocab = 50000 };
    const di_conv_t       *conv;
    di_req_t         *req;
    di_api_err_t           e;
    di_sbuf_t              b = { 0 };
    json_t                *v;
    size_t                 i;

    if (!json_agree((const char *) data, size))
        abort();

    if (di_req_parse(DI_API_CHAT, &limits, (const char *) data, size, &req, &e)
        == DI_OK)
    {
        conv = di_req_conv(req);
        for (i = 0; i < conv->n_msgs; i++)
            di_json_add_string(&b, conv->msgs[i].content.data,
                               conv->msgs[i].content.len);
        di_req_close(req);

    } else {
        if (e.status != 400)
            abort();
        di_api_write_error(&b, DI_API_CHAT, DI_CODEC_STRICT, &e, NULL);
        v = json_loadb(b.data, b.len, 0, NULL);
        if (v == NULL)
            abort();
        json_decref(v);
    }

    di_sbuf_free(&b);
    return 0;
}
