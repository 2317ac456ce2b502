/*
 * grammar_cases.c - grammars, texts that hold them and texts that don't.
 *
 * t/data/grammar/cases.jsonl: a line is a grammar with the texts it accepts
 * ("yes") and refuses ("no"), or the keyword that its error names; what is
 * "dropped" where it may do its best.  Each text is matched at once and byte
 * by byte; every accepted text is cut at each byte, which must leave a text
 * that can still be finished.
 */

#include <jansson.h>
#include <stdlib.h>

#include "check.h"
#include "grammar_make.h"

/* From here the rest of an accepted text completes it, so the shortest way
 * is no longer, and is one. */
static void
check_shortest(const di_gram_match_t *m, size_t rest)
{
    di_gram_match_t *copy;
    uint8_t          bytes[4096];
    size_t           n = di_gram_shortest(m, bytes, sizeof(bytes));

    CHECK(n <= rest);
    CHECK_EQ_INT(n == 0, di_gram_is_complete(m));
    CHECK_EQ_INT(di_gram_fork(m, &copy), DI_OK);
    CHECK_EQ_INT(di_gram_accept(copy, bytes, n <= rest ? n : 0), DI_OK);
    CHECK(di_gram_is_complete(copy));
    di_gram_match_close(copy);
}

static void
check_text(di_gram_t *g, const char *s, size_t len, bool want,
           const char *where)
{
    di_gram_match_t *m;
    bool             whole, bytes = true;

    CHECK_EQ_INT(di_gram_match_open(g, 0, &m), DI_OK);
    whole = di_gram_accept(m, s, len) == DI_OK && di_gram_is_complete(m);
    di_gram_match_close(m);

    CHECK_EQ_INT(di_gram_match_open(g, 1, &m), DI_OK);
    for (size_t i = 0; i < len && bytes; i++) {
        if (want)
            check_shortest(m, len - i);
        bytes = di_gram_accept(m, s + i, 1) == DI_OK;
    }
    bytes = bytes && di_gram_is_complete(m);
    di_gram_match_close(m);

    if (whole != want || bytes != want)
        printf("%s\n  text: %s\n", where, s);
    CHECK_EQ_INT(whole, want);
    CHECK_EQ_INT(bytes, want);
}

static void
check_dropped(const char *line, const json_t *want,
              const di_gram_dropped_t *dropped)
{
    const json_t *v;
    size_t        i;

    if (json_array_size(want) != dropped->n)
        printf("%s", line);
    CHECK_EQ_INT(json_array_size(want), dropped->n);
    json_array_foreach(want, i, v) {
        const char *path = i < dropped->n ? dropped->v[i].path : "";

        CHECK_EQ_STR(path, json_string_value(v));
        CHECK(i >= dropped->n || dropped->v[i].part == -1);
        CHECK(i >= dropped->n || strstr(path, dropped->v[i].keyword) != NULL);
    }
}

static void
check_line(const char *line, const json_t *c)
{
    di_gram_err_t     err = { 0 };
    di_gram_dropped_t dropped;
    di_gram_t        *g = grammar_of(c, &dropped, &err);
    const json_t     *v, *error = json_object_get(c, "error");
    size_t            i;

    if (error != NULL) {
        if (g != NULL || strcmp(err.keyword, json_string_value(error)) != 0)
            printf("%s", line);
        CHECK(g == NULL);
        CHECK_EQ_STR(err.keyword, json_string_value(error));
        CHECK(err.text[0] != '\0');
        di_gram_unref(g);
        return;
    }
    if (g == NULL)
        printf("%s  error: %s %s: %s\n", line, err.keyword, err.path,
               err.text);
    CHECK(g != NULL);
    if (g == NULL)
        return;
    check_dropped(line, json_object_get(c, "dropped"), &dropped);
    json_array_foreach(json_object_get(c, "yes"), i, v)
        check_text(g, json_string_value(v), json_string_length(v), true,
                   line);
    json_array_foreach(json_object_get(c, "no"), i, v)
        check_text(g, json_string_value(v), json_string_length(v), false,
                   line);
    di_gram_unref(g);
}

int
main(void)
{
    FILE   *f = fopen("t/data/grammar/cases.jsonl", "r");
    char   *line = NULL;
    size_t  cap = 0;
    json_t *c;

    CHECK(f != NULL);
    while (f != NULL && getline(&line, &cap, f) > 0) {
        c = json_loads(line, 0, NULL);
        if (c == NULL)
            printf("%s", line);
        CHECK(c != NULL);
        if (c != NULL)
            check_line(line, c);
        json_decref(c);
    }
    free(line);
    if (f != NULL)
        fclose(f);
    return check_done("grammar_cases");
}
