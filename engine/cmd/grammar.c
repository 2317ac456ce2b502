/*
 * grammar.c - the grammar that a line of JSON wants its answer held to.
 *
 * It is compiled here, by the same library as nginx's workers do it.
 */

#include <stdlib.h>
#include <string.h>

#include "di_run.h"

static const struct {
    const char    *field;
    di_gram_kind_t kind;
    json_type      type;         /* JSON_OBJECT: true and false too         */
    const char    *expected;
} kinds[] = {
    { "schema", DI_GRAM_SCHEMA, JSON_OBJECT, "a JSON Schema" },
    { "regex", DI_GRAM_REGEX, JSON_STRING, "a string" },
    { "ebnf", DI_GRAM_EBNF, JSON_STRING, "a string" },
    { "choice", DI_GRAM_CHOICE, JSON_ARRAY, "a list of strings" },
};

#define N_KINDS (sizeof(kinds) / sizeof(kinds[0]))

bool
di_job_is_grammar(const char *field)
{
    for (size_t i = 0; i < N_KINDS; i++) {
        if (strcmp(field, kinds[i].field) == 0)
            return true;
    }
    return strcmp(field, "any_order") == 0 || strcmp(field, "whitespace") == 0;
}

static int
read_options(di_job_t *job, const json_t *root, di_gram_opts_t *opts)
{
    const json_t *order = json_object_get(root, "any_order");
    const json_t *space = json_object_get(root, "whitespace");
    const char   *word = json_string_value(space);

    if (order != NULL && !json_is_boolean(order))
        return di_err_set(&job->err, DI_EINVAL, 0,
                          "field any_order: expected true or false");
    if (space != NULL && (word == NULL || (strcmp(word, "compact") != 0
                                           && strcmp(word, "flexible") != 0)))
        return di_err_set(&job->err, DI_EINVAL, 0,
                          "field whitespace: expected compact or flexible");
    *opts = (di_gram_opts_t) {
        .any_order = json_is_true(order),
        .flexible = word == NULL || word[0] == 'f',
        .limits.blob_bytes = DI_IPC_GRAMMAR_MAX,
    };
    return DI_OK;
}

int
di_cmd_compile(const char *field, const json_t *v, const di_gram_opts_t *opts,
               void **blob, size_t *bytes, di_err_t *err)
{
    di_gram_err_t why = { 0 };
    char         *text = NULL;
    size_t        len, k = 0;
    int           rc;

    while (strcmp(field, kinds[k].field) != 0)
        k++;
    if (json_typeof(v) != kinds[k].type
        && !(kinds[k].type == JSON_OBJECT && json_is_boolean(v)))
        return di_err_set(err, DI_EINVAL, 0, "field %s: expected %s", field,
                          kinds[k].expected);
    if (!json_is_string(v)) {
        text = json_dumps(v, JSON_ENCODE_ANY);
        if (text == NULL)
            return di_err_set(err, DI_ENOMEM, 0, "out of memory");
    }
    len = text != NULL ? strlen(text) : json_string_length(v);
    rc = di_gram_compile(kinds[k].kind,
                         text != NULL ? text : json_string_value(v), len,
                         opts, blob, bytes, &why);
    free(text);
    return rc == DI_OK ? rc
           : di_err_set(err, rc, 0, "field %s: %.47s at \"%.40s\": %.90s",
                        field, why.keyword, why.path, why.text);
}

int
di_job_set_grammar(di_job_t *job, const json_t *root)
{
    const json_t  *v = NULL, *found;
    const char    *field = NULL;
    di_gram_opts_t opts;
    size_t         bytes = 0;
    int            rc = read_options(job, root, &opts);

    for (size_t i = 0; i < N_KINDS && rc == DI_OK; i++) {
        found = json_object_get(root, kinds[i].field);
        if (found == NULL)
            continue;
        if (v != NULL)
            return di_err_set(&job->err, DI_EINVAL, 0, "give only one of "
                              "schema, regex, ebnf and choice");
        v = found;
        field = kinds[i].field;
    }
    if (rc != DI_OK || v == NULL)
        return rc;
    rc = di_cmd_compile(field, v, &opts, &job->grammar, &bytes, &job->err);
    job->req.grammar = job->grammar;
    job->req.n_grammar = (uint32_t) bytes;
    return rc;
}
