/*
 * match.c - does a text hold a grammar?  For test suites of others.
 *
 * Reads JSON lines, answers each with one line, in order:
 *
 *     {"schema"|"regex"|"ebnf"|"choice"|"output": ..., "text": "..." or
 *      "text_base64": "...", "any_order": true, "whitespace": "flexible",
 *      "best_effort": true}
 *     {"accept": true}   or   {"error": {"keyword": "...", ...}}
 *
 * With best effort, "dropped" lists the paths of keywords gone without.
 *
 * A schema and a list of choices are JSON values (a schema may also be a
 * string that holds one); white space is compact unless asked for.
 */

#include <jansson.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer/grammar/di_grammar.h"

static const struct { const char *name; di_gram_kind_t kind; } kinds[] = {
    { "schema", DI_GRAM_SCHEMA }, { "regex", DI_GRAM_REGEX },
    { "ebnf", DI_GRAM_EBNF }, { "choice", DI_GRAM_CHOICE },
    { "output", DI_GRAM_OUTPUT },
};

static json_t *
error(const char *keyword, const char *path, const char *text)
{
    return json_pack("{s:{s:s,s:s,s:s}}", "error", "keyword", keyword,
                     "path", path, "message", text);
}

/* The text of a line, malloc'd; NULL: none, or malformed. */
static char *
text_of(const json_t *line, size_t *len)
{
    const json_t *v = json_object_get(line, "text");
    const char   *s;
    char         *out;
    size_t        n;
    int           got;

    if (json_is_string(v)) {
        *len = json_string_length(v);
        out = malloc(*len + 1);
        return out == NULL ? NULL : memcpy(out, json_string_value(v),
                                           *len + 1);
    }
    v = json_object_get(line, "text_base64");
    s = json_string_value(v);
    if (s == NULL)
        return NULL;
    n = json_string_length(v);
    out = malloc(n / 4 * 3 + 4);
    got = out == NULL ? -1
          : EVP_DecodeBlock((unsigned char *) out, (const unsigned char *) s,
                            (int) n);
    if (got < 0) {
        free(out);
        return NULL;
    }
    for (*len = (size_t) got; n > 0 && s[n - 1] == '='; n--)
        --*len;
    return out;
}

static json_t *
match(const void *blob, size_t blob_bytes, const char *text, size_t len)
{
    di_gram_t       *gram;
    di_gram_match_t *m;
    di_err_t         err = { 0 };
    json_t          *answer;
    int              rc;

    if (di_gram_open(blob, blob_bytes, &gram, &err) != DI_OK)
        return error("blob", "", err.text);
    rc = di_gram_match_open(gram, 0, &m);
    di_gram_unref(gram);
    if (rc != DI_OK)
        return error("match", "", "no memory");
    rc = di_gram_accept(m, text, len);
    if (rc == DI_OK || rc == DI_EINVAL)
        answer = json_pack("{s:b}", "accept",
                           rc == DI_OK && di_gram_is_complete(m));
    else
        answer = error("match", "", rc == DI_ELIMIT
                       ? "too many ways to read the text" : "no memory");
    di_gram_match_close(m);
    return answer;
}

static void
tell_dropped(json_t *out, const di_gram_dropped_t *dropped)
{
    json_t *list = json_array();

    for (uint32_t i = 0; i < dropped->n; i++)
        json_array_append_new(list, json_string(dropped->v[i].path));
    if (dropped->n > 0)
        json_object_set(out, "dropped", list);
    json_decref(list);
}

static json_t *
answer(const json_t *line)
{
    const char    *white = json_string_value(json_object_get(line,
                                                             "whitespace"));
    di_gram_dropped_t dropped = { 0 };
    di_gram_opts_t opts = {
        .any_order = json_is_true(json_object_get(line, "any_order")),
        .flexible = white != NULL && strcmp(white, "flexible") == 0,
        .best_effort = json_is_true(json_object_get(line, "best_effort")),
        .dropped = &dropped,
    };
    di_gram_err_t  err = { 0 };
    const json_t  *v = NULL;
    json_t        *out;
    char          *source, *text;
    void          *blob;
    size_t         len, blob_bytes, k;
    int            rc;

    for (k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        v = json_object_get(line, kinds[k].name);
        if (v != NULL)
            break;
    }
    if (v == NULL)
        return error("line", "", "has no grammar");
    text = text_of(line, &len);
    if (text == NULL)
        return error("text", "", "is missing or malformed");

    if (json_is_string(v))
        rc = di_gram_compile(kinds[k].kind, json_string_value(v),
                             json_string_length(v), &opts, &blob, &blob_bytes,
                             &err);
    else if ((source = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT))
             != NULL) {
        rc = di_gram_compile(kinds[k].kind, source, strlen(source), &opts,
                             &blob, &blob_bytes, &err);
        free(source);
    } else {
        rc = DI_ENOMEM;
    }

    if (rc == DI_EINVAL) {          /* nothing satisfies it: nor does this   */
        out = json_pack("{s:b}", "accept", false);
    } else if (rc != DI_OK) {
        out = error(err.keyword, err.path, err.text);
    } else {
        out = match(blob, blob_bytes, text, len);
        free(blob);
        tell_dropped(out, &dropped);
    }
    free(text);
    return out;
}

int
main(void)
{
    char        *line = NULL, *s;
    size_t       cap = 0;
    ssize_t      len;
    json_t      *in, *out;
    json_error_t e;

    while ((len = getline(&line, &cap, stdin)) > 0) {
        in = json_loadb(line, (size_t) len, JSON_ALLOW_NUL, &e);
        out = in != NULL ? answer(in) : error("line", "", e.text);
        s = out != NULL ? json_dumps(out, JSON_COMPACT) : NULL;
        puts(s != NULL ? s : "{\"error\":{\"keyword\":\"line\",\"path\":\"\","
                             "\"message\":\"no memory\"}}");
        (void) fflush(stdout);
        free(s);
        json_decref(in);
        json_decref(out);
    }
    free(line);
    return 0;
}
