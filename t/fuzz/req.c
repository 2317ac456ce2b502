/*
 * req.c - fuzz the requests of every API.
 *
 * The first byte chooses the API, the codec and what the dialect can do; the
 * rest is the body.  A request is parsed and rendered, or refused with an
 * error that is valid JSON in the API's shape; nothing else may happen.  A
 * special piece of a prompt must be one of the dialect's own.  The grammar of
 * the output compiles, or what is wrong is one of the request's own parts.
 */

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer/api/di_api.h"
#include "tokenizer/dialect/dialect.h"
#include "tokenizer/dialect/di_output.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const names[] = { "deepseek-v4.1", "deepseek-v4", "qwen",
                                     "llama3" };
static di_dialect_t     *dialects[4];

static void
open_dialects(void)
{
    const di_str_t none = { NULL, 0 };
    size_t         i;

    for (i = 0; i < 4 && dialects[i] == NULL; i++) {
        if (di_dialect_open(NULL, none, names[i], &dialects[i], NULL)
            != DI_OK)
            abort();
    }
}

static void
look_at_grammar(const di_req_t *req, const di_dialect_t *d)
{
    const di_gram_opts_t opts = {
        .any_order = di_req_constraint(req)->any_order, .flexible = true,
        .limits = { .memory_bytes = 16 << 20, .work = 300000 },
    };
    di_output_t   out = { 0 };
    di_gram_err_t err = { 0 };
    di_api_err_t  e = { 0 };
    void         *blob;
    size_t        bytes;
    int           rc = di_dialect_grammar(d, di_req_conv(req),
                                          di_req_parsing(req),
                                          di_req_constraint(req), &out, &e);

    if (rc != DI_OK && (rc != DI_EUNSUPPORTED || e.status != 400))
        abort();

    if (rc == DI_OK && out.text.len > 0) {
        rc = di_gram_compile(DI_GRAM_OUTPUT, out.text.data, out.text.len,
                             &opts, &blob, &bytes, &err);
        if (rc == DI_OK)
            free(blob);
        else if (rc != DI_ELIMIT && err.part < 0)
            abort();
        else
            di_output_error(&out, &err, &e);
    }

    di_output_free(&out);
}

static void
look_at(const di_req_t *req, const di_dialect_t *d)
{
    di_pieces_t p = { 0 };
    di_sbuf_t   b = { 0 };
    size_t      i, at = 0;
    int         rc = di_dialect_render(d, di_req_conv(req), &p, NULL);

    if (rc != DI_OK && rc != DI_EINVAL)
        abort();

    for (i = 0; i < p.n; i++) {
        if (p.pieces[i].at != at
            || (i > 0 && !p.pieces[i].special && !p.pieces[i - 1].special))
            abort();
        at += p.pieces[i].len;
    }
    if (at != p.len)
        abort();

    if (di_req_api(req) == DI_API_RESPONSES)
        di_req_write_items(req, &b);
    di_sbuf_free(&b);
    di_pieces_free(&p);
}

static void
look_at_error(di_api_t api, di_codec_t codec, const di_api_err_t *e)
{
    di_sbuf_t b = { 0 };
    json_t   *v;

    if (e->status != 400)
        abort();

    di_api_write_error(&b, api, codec, e, NULL);
    v = json_loadb(b.data, b.len, JSON_ALLOW_NUL, NULL);
    if (v == NULL)
        abort();
    json_decref(v);
    di_sbuf_free(&b);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    di_req_options_t o = { .vocab = 1000 };
    const char      *body = (const char *) data + 1;
    di_req_t        *req;
    di_api_err_t     e;
    di_api_t         api;
    di_dialect_t    *d;
    int              rc;

    if (size == 0)
        return 0;

    open_dialects();
    api = data[0] & 3;
    o.codec = data[0] & 4 ? DI_CODEC_OFFICIAL : DI_CODEC_STRICT;
    d = dialects[data[0] >> 3 & 3];
    o.family = di_dialect_family(d);
    o.caps = di_dialect_caps(d);
    if (data[0] & 32)
        o.caps |= DI_CAN_CONSTRAIN;
    if (data[0] & 64)
        o.reject_missing_reasoning = o.drop_web_search = true;

    rc = di_req_parse(api, &o, body, size - 1, &req, &e);
    if (rc == DI_EAGAIN) {
        di_req_close(req);
        o.history = (di_str_t) { "[]", 2 };
        rc = di_req_parse(api, &o, body, size - 1, &req, &e);
    }

    if (rc != DI_OK) {
        look_at_error(api, o.codec, &e);
        return 0;
    }

    if (o.codec == DI_CODEC_OFFICIAL && api != DI_API_COMPLETIONS)
        d = dialects[di_req_family(req) == DI_FAMILY_V4];
    if (api != DI_API_COMPLETIONS)
        look_at(req, d);
    look_at_grammar(req, d);
    di_req_close(req);
    return 0;
}
