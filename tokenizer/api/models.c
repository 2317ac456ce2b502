/*
 * models.c - the answers of /v1/models.
 */

#include "di_models.h"

#include <stdio.h>
#include <time.h>

#include "json.h"

static void
write_openai(di_sbuf_t *b, const di_model_t *m)
{
    di_sbuf_lit(b, "{\"id\":");
    di_json_add_string(b, m->id.data, m->id.len);
    di_sbuf_lit(b, ",\"object\":\"model\",\"created\":");
    di_json_add_i64(b, m->created);
    di_sbuf_lit(b, ",\"owned_by\":\"ngx_deepinfer\"}");
}

static void
write_anthropic(di_sbuf_t *b, const di_model_t *m)
{
    char      date[32];
    time_t    t = (time_t) m->created;
    struct tm tm;
    size_t    n;

    (void) gmtime_r(&t, &tm);
    n = strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%SZ", &tm);

    di_sbuf_lit(b, "{\"type\":\"model\",\"id\":");
    di_json_add_string(b, m->id.data, m->id.len);
    di_sbuf_lit(b, ",\"display_name\":");
    di_json_add_string(b, m->id.data, m->id.len);
    di_sbuf_lit(b, ",\"created_at\":");
    di_json_add_string(b, date, n);
    di_sbuf_lit(b, ",\"lifecycle\":\"active\"}");
}

void
di_model_write(di_sbuf_t *b, di_api_t api, const di_model_t *model)
{
    if (api == DI_API_MESSAGES)
        write_anthropic(b, model);
    else
        write_openai(b, model);
}

static void
write_id(di_sbuf_t *b, const di_model_t *models, size_t n, size_t i)
{
    if (n == 0)
        di_sbuf_lit(b, "null");
    else
        di_json_add_string(b, models[i].id.data, models[i].id.len);
}

void
di_models_write(di_sbuf_t *b, di_api_t api, const di_model_t *models,
                size_t n)
{
    size_t i;

    if (api == DI_API_MESSAGES)
        di_sbuf_lit(b, "{\"data\":[");
    else
        di_sbuf_lit(b, "{\"object\":\"list\",\"data\":[");

    for (i = 0; i < n; i++) {
        if (i > 0)
            di_sbuf_lit(b, ",");
        di_model_write(b, api, &models[i]);
    }

    di_sbuf_lit(b, "]");

    if (api == DI_API_MESSAGES) {
        di_sbuf_lit(b, ",\"has_more\":false,\"first_id\":");
        write_id(b, models, n, 0);
        di_sbuf_lit(b, ",\"last_id\":");
        write_id(b, models, n, n - 1);
    }

    di_sbuf_lit(b, "}");
}
