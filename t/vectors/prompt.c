/*
 * prompt.c - vectors of prompts as models' own chat templates write them: a
 * strict Chat request, and what the dialect makes of it.
 *
 * Texts are compared, not ids: a template spells special tokens as text.
 * "template" is the template or the part of it that the dialect looks at;
 * "dialect" names the dialect where that part alone doesn't.
 */

#include <stdlib.h>
#include <string.h>

#include "tokenizer/dialect/dialect.h"

#include "vectors.h"

static bool
takes(const json_t *input, const json_t *expected)
{
    return json_object_get(input, "template") != NULL
           && json_object_get(input, "body") != NULL
           && json_object_get(expected, "prompt") != NULL;
}

static json_t *
failed(const char *why)
{
    return json_pack("{s: s}", "error", why);
}

static json_t *
render(const di_dialect_t *d, const json_t *input, const char *line,
       size_t len)
{
    di_req_options_t options = {
        .family = di_dialect_family(d),
        .caps = di_dialect_caps(d),
        .now = json_integer_value(json_object_get(input, "now")),
    };
    di_pieces_t  pieces = { 0 };
    di_sbuf_t    body = { 0 };
    di_api_err_t e;
    di_err_t     err = { 0 };
    di_req_t    *req;
    json_t      *out;

    vectors_body(input, line, len, &body);

    if (di_req_parse(DI_API_CHAT, &options, body.data, body.len, &req, &e)
        != DI_OK) {
        di_sbuf_free(&body);
        return failed(e.message);
    }

    out = di_dialect_render(d, di_req_conv(req), &pieces, &err) != DI_OK
          ? failed(err.text)
          : json_pack("{s: o}", "prompt", json_stringn(pieces.text,
                                                       pieces.len));

    di_pieces_free(&pieces);
    di_req_close(req);
    di_sbuf_free(&body);
    return out;
}

static json_t *
run(const json_t *input, const char *line, size_t len)
{
    const json_t *text = json_object_get(input, "template");
    const json_t *name = json_object_get(input, "dialect");
    di_str_t      t = { json_string_value(text), json_string_length(text) };
    di_dialect_t *d;
    di_err_t      err = { 0 };
    json_t       *out;

    if (di_dialect_open(NULL, t, json_string_value(name), &d, &err) != DI_OK)
        return failed(err.text);

    out = render(d, input, line, len);
    di_dialect_close(d);
    return out;
}

const vectors_kind_t vectors_prompt = {
    .name = "prompt", .takes = takes, .run = run,
};
