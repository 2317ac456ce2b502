/*
 * tokenize.c - vectors of token ids.
 *
 * input: "tokenizer"; "mode" is "plain" (a text, no added token recognised),
 * "full" (a text with added tokens), or "prompt": a prompt of which the
 * "special_ranges", in code points, are added tokens by their spelling, and
 * what lies between is plain text.
 */

#include <stdlib.h>
#include <string.h>

#include "vectors.h"

/* Ids as they come, room for three a byte, which normalising may make, and
 * one a range. */
typedef struct {
    di_tok_t *tok;
    int32_t  *ids;
    size_t    n;
    size_t    room;
} out_t;

static bool
takes(const json_t *input, const json_t *expected)
{
    (void) expected;
    return json_object_get(input, "tokenizer") != NULL
           && json_object_get(input, "mode") != NULL;
}

static void
must(bool fine)
{
    if (!fine) {
        fprintf(stderr, "recipe-vectors: encoding failed\n");
        exit(2);
    }
}

static void
encode(out_t *out, const char *text, size_t len, bool full)
{
    size_t n;

    must((full ? di_tok_encode_raw : di_tok_encode)
         (out->tok, text, len, out->ids + out->n, out->room - out->n, &n)
         == DI_OK);
    out->n += n;
}

/* The byte at which code point number `to` starts, from `at`, that of number
 * `from`. */
static size_t
advance(const char *text, size_t len, size_t at, size_t from, size_t to)
{
    while (from < to && at < len) {
        at++;
        while (at < len && ((uint8_t) text[at] & 0xc0) == 0x80)
            at++;
        from++;
    }
    return at;
}

/* NULL, or the error. */
static json_t *
encode_prompt(out_t *out, const di_vocab_t *v, const char *text, size_t len,
              const json_t *ranges)
{
    size_t at = 0, chars = 0;

    for (size_t i = 0; i < json_array_size(ranges); i++) {
        const json_t *r = json_array_get(ranges, i);
        size_t        first = (size_t) json_integer_value(
                                  json_array_get(r, 0));
        size_t        last = (size_t) json_integer_value(
                                 json_array_get(r, 1));
        size_t        start = advance(text, len, at, chars, first);
        size_t        end = advance(text, len, start, first, last);
        int32_t       id = di_vocab_special(v, text + start, end - start);

        encode(out, text + at, start - at, false);
        if (id < 0)
            return json_sprintf("failed to encode conversation: special token "
                                "\"%.*s\" is not in the added vocabulary",
                                (int) (end - start), text + start);
        out->ids[out->n++] = id;
        at = end;
        chars = last;
    }
    encode(out, text + at, len - at, false);
    return NULL;
}

static json_t *
run(const json_t *input, const char *line, size_t line_len)
{
    const char       *mode = json_string_value(json_object_get(input, "mode"));
    const json_t     *ranges = json_object_get(input, "special_ranges");
    const json_t     *text = json_object_get(input, ranges == NULL ? "text"
                                                                   : "prompt");
    const di_vocab_t *v = vectors_vocab(json_string_value(
                              json_object_get(input, "tokenizer")));
    const char       *s = json_string_value(text);
    size_t            len = json_string_length(text);
    out_t             out = { .room = 3 * len + json_array_size(ranges)
                                          + 1 };
    json_t           *error = NULL, *ids = json_array();

    (void) line;
    (void) line_len;
    out.ids = calloc(out.room, sizeof(*out.ids));
    must(out.ids != NULL && di_tok_open(v, &out.tok) == DI_OK);
    if (ranges != NULL)
        error = encode_prompt(&out, v, s, len, ranges);
    else
        encode(&out, s, len, strcmp(mode, "full") == 0);
    for (size_t i = 0; i < out.n; i++)
        json_array_append_new(ids, json_integer(out.ids[i]));
    di_tok_close(out.tok);
    free(out.ids);

    if (error != NULL) {
        json_decref(ids);
        return json_pack("{s:o}", "error", error);
    }
    return json_pack("{s:o}", "ids", ids);
}

const vectors_kind_t vectors_tokenize = { "tokenize", takes, run };
