/*
 * models.c - the answers of /v1/models.
 */

#include "di_chat.h"
#include "json.h"

void
di_model_write(di_sbuf_t *b, di_str_t id, int64_t created)
{
    di_sbuf_lit(b, "{\"id\":");
    di_json_add_string(b, id.data, id.len);
    di_sbuf_lit(b, ",\"object\":\"model\",\"created\":");
    di_json_add_i64(b, created);
    di_sbuf_lit(b, ",\"owned_by\":\"ngx_deepinfer\"}");
}

void
di_models_write(di_sbuf_t *b, const di_str_t *ids, size_t n, int64_t created)
{
    size_t i;

    di_sbuf_lit(b, "{\"object\":\"list\",\"data\":[");

    for (i = 0; i < n; i++) {
        if (i > 0)
            di_sbuf_lit(b, ",");
        di_model_write(b, ids[i], created);
    }

    di_sbuf_lit(b, "]}");
}
