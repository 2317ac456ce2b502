/*
 * request.c - one line of JSON to a job.
 *
 * Strict: a field that we don't know, a type that isn't exactly right or a
 * value out of range is an error that names the field.  Ranges that hold for
 * any request are checked where all requests pass, by di_gen_request_check();
 * here are types, and what needs the vocabulary.
 */

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "di_run.h"

/* A float, or an integer where JSON has one. */
typedef enum { F_F32, F_I32, F_U32, F_U64, F_FLAG } kind_t;

typedef struct {
    const char *name;
    kind_t      kind;
    size_t      at;              /* in di_gen_params_t                      */
    int64_t     min, max;        /* of integers                             */
    uint32_t    flag;            /* F_FLAG: bit in params.flags             */
} field_t;

#define AT(field) offsetof(di_gen_params_t, field)

static const field_t fields[] = {
    { "temperature", F_F32, AT(temperature), 0, 0, 0 },
    { "top_p", F_F32, AT(top_p), 0, 0, 0 },
    { "min_p", F_F32, AT(min_p), 0, 0, 0 },
    { "presence_penalty", F_F32, AT(presence_penalty), 0, 0, 0 },
    { "frequency_penalty", F_F32, AT(frequency_penalty), 0, 0, 0 },
    { "repetition_penalty", F_F32, AT(repetition_penalty), 0, 0, 0 },
    { "top_k", F_I32, AT(top_k), 0, INT32_MAX, 0 },
    { "n", F_U32, AT(n), 1, DI_GEN_N_MAX, 0 },
    { "max_tokens", F_U32, AT(max_tokens), 1, UINT32_MAX, 0 },
    { "min_tokens", F_U32, AT(min_tokens), 0, UINT32_MAX, 0 },
    { "seed", F_U64, AT(seed), 0, INT64_MAX, 0 },
    { "ignore_eos", F_FLAG, 0, 0, 0, DI_GEN_IGNORE_EOS },
    { "grammar_finish", F_FLAG, 0, 0, 0, DI_GEN_GRAMMAR_FINISH },
};

static int
wrong(di_job_t *job, const char *field, const char *expected)
{
    return di_err_set(&job->err, DI_EINVAL, 0, "field %.60s: expected %s",
                      field, expected);
}

static int
nomem(di_job_t *job)
{
    return di_err_set(&job->err, DI_ENOMEM, 0, "out of memory");
}

/* --------------------------------------------------------------- scalars -- */

static int
set_integer(di_job_t *job, const field_t *f, const json_t *v, char *at)
{
    json_int_t x = json_integer_value(v);

    if (!json_is_integer(v))
        return wrong(job, f->name, "an integer");
    if (x < f->min || x > f->max)
        return di_err_set(&job->err, DI_EINVAL, 0,
                          "field %s: %lld is not in %lld to %lld", f->name,
                          (long long) x, (long long) f->min,
                          (long long) f->max);
    if (f->kind == F_U64)
        *(uint64_t *) at = (uint64_t) x;
    else if (f->kind == F_U32)
        *(uint32_t *) at = (uint32_t) x;
    else
        *(int32_t *) at = (int32_t) x;
    return DI_OK;
}

static int
set_scalar(di_job_t *job, const field_t *f, const json_t *v)
{
    di_gen_params_t *p = &job->req.params;
    char            *at = (char *) p + f->at;

    if (f->kind == F_FLAG) {
        if (!json_is_boolean(v))
            return wrong(job, f->name, "true or false");
        p->flags = json_is_true(v) ? p->flags | f->flag
                                   : p->flags & ~f->flag;
        return DI_OK;
    }
    if (f->kind == F_F32) {
        if (!json_is_number(v))
            return wrong(job, f->name, "a number");
        *(float *) at = (float) json_number_value(v);
        return DI_OK;
    }
    return set_integer(job, f, v, at);
}

/* ----------------------------------------------------------------- lists -- */

/* Append token ids to a malloc'ed list. */
static int
add_ids(di_run_t *run, di_job_t *job, const char *field, const json_t *v,
        int32_t **ids, uint32_t *n)
{
    uint32_t vocab = di_vocab_size(run->vocab);
    size_t   count = json_array_size(v);
    int32_t *grown;

    if (!json_is_array(v) || count > INT32_MAX / 2)
        return wrong(job, field, "a list of token ids");
    grown = realloc(*ids, (*n + count + 1) * sizeof(*grown));
    if (grown == NULL)
        return nomem(job);
    *ids = grown;

    for (size_t i = 0; i < count; i++) {
        const json_t *id = json_array_get(v, i);

        if (!json_is_integer(id) || json_integer_value(id) < 0
            || json_integer_value(id) >= vocab)
            return di_err_set(&job->err, DI_EINVAL, 0, "field %s[%zu]: "
                              "expected a token id from 0 to %u", field, i,
                              vocab - 1);
        grown[(*n)++] = (int32_t) json_integer_value(id);
    }
    return DI_OK;
}

/* {"id": bias, ...}, ids spelled in decimal as the APIs have them. */
static int
set_bias(di_run_t *run, di_job_t *job, json_t *v)
{
    uint32_t    vocab = di_vocab_size(run->vocab);
    const char *key;
    json_t     *value;

    if (!json_is_object(v))
        return wrong(job, "logit_bias", "an object of ids and numbers");
    if (json_object_size(v) > DI_GEN_BIAS_MAX)
        return di_err_set(&job->err, DI_EINVAL, 0, "field logit_bias: %zu "
                          "entries, at most %d are allowed",
                          json_object_size(v), DI_GEN_BIAS_MAX);
    job->bias = calloc(json_object_size(v) + 1, sizeof(*job->bias));
    if (job->bias == NULL)
        return nomem(job);

    json_object_foreach(v, key, value) {
        char         *end;
        unsigned long id = strtoul(key, &end, 10);

        if (key[0] < '0' || key[0] > '9' || *end != '\0' || id >= vocab)
            return di_err_set(&job->err, DI_EINVAL, 0, "field logit_bias: "
                              "%.30s is no token id from 0 to %u", key,
                              vocab - 1);
        if (!json_is_number(value))
            return wrong(job, "logit_bias", "numbers as values");
        job->bias[job->req.n_bias++] = (di_logit_bias_t) {
            .id = (int32_t) id, .bias = (float) json_number_value(value),
        };
    }
    job->req.bias = job->bias;
    return DI_OK;
}

/* -------------------------------------------------------------- messages -- */

static int
read_role(di_job_t *job, size_t i, const json_t *v, di_role_t *role)
{
    static const char *const names[] = {
        [DI_ROLE_SYSTEM] = "system", [DI_ROLE_DEVELOPER] = "developer",
        [DI_ROLE_USER] = "user", [DI_ROLE_ASSISTANT] = "assistant",
        [DI_ROLE_TOOL] = "tool",
    };
    const char *text = json_string_value(v);

    for (size_t k = 0; text != NULL && k < sizeof(names) / sizeof(names[0]);
         k++) {
        if (strcmp(text, names[k]) == 0) {
            *role = (di_role_t) k;
            return DI_OK;
        }
    }
    return di_err_set(&job->err, DI_EINVAL, 0, "field messages[%zu].role: "
                      "expected system, developer, user, assistant or tool",
                      i);
}

static int
read_message(di_job_t *job, size_t i, json_t *v, di_msg_t *msg)
{
    const char *key;
    json_t     *value;
    int         rc;

    if (!json_is_object(v))
        return di_err_set(&job->err, DI_EINVAL, 0,
                          "field messages[%zu]: expected an object", i);
    rc = read_role(job, i, json_object_get(v, "role"), &msg->role);
    if (rc != DI_OK)
        return rc;
    if (json_object_get(v, "content") == NULL)
        return di_err_set(&job->err, DI_EINVAL, 0,
                          "field messages[%zu].content is missing", i);

    json_object_foreach(v, key, value) {
        di_str_t *text = strcmp(key, "content") == 0 ? &msg->content
                         : strcmp(key, "name") == 0 ? &msg->name : NULL;

        if (strcmp(key, "role") == 0)
            continue;
        if (text == NULL)
            return di_err_set(&job->err, DI_EINVAL, 0, "field messages[%zu]."
                              "%.40s is not known", i, key);
        if (!json_is_string(value))
            return di_err_set(&job->err, DI_EINVAL, 0, "field messages[%zu]."
                              "%s: expected a string", i, key);
        *text = (di_str_t) { json_string_value(value),
                             json_string_length(value) };
    }
    return DI_OK;
}

static int
set_messages(di_run_t *run, di_job_t *job, const json_t *v)
{
    size_t    n = json_array_size(v);
    di_msg_t *msgs;
    int       rc = DI_OK;

    if (!json_is_array(v) || n == 0)
        return wrong(job, "messages", "a list of messages");
    msgs = calloc(n, sizeof(*msgs));
    if (msgs == NULL)
        return nomem(job);
    for (size_t i = 0; i < n && rc == DI_OK; i++)
        rc = read_message(job, i, json_array_get(v, i), &msgs[i]);
    if (rc == DI_OK) {
        di_conv_t conv = { .msgs = msgs, .n_msgs = n,
                           .open_assistant = true };

        rc = di_job_set_conv(run, job, &conv);
    }
    free(msgs);
    return rc;
}

/* ----------------------------------------------------------------- lines -- */

static int
parse(di_job_t *job, const char *line, size_t len, json_t **root)
{
    json_error_t e;

    *root = json_loadb(line, len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL,
                       &e);
    if (*root == NULL)
        return di_err_set(&job->err, DI_EINVAL, (size_t) e.position,
                          "not JSON: %.100s (byte %d)", e.text, e.position);
    if (!json_is_object(*root))
        return di_err_set(&job->err, DI_EINVAL, 0,
                          "not a JSON object: expected {\"...\": ...}");
    return DI_OK;
}

static int
set_prompt(di_run_t *run, di_job_t *job, const char *key, json_t *v)
{
    int rc;

    if (job->req.prompt != NULL)
        return di_err_set(&job->err, DI_EINVAL, 0, "give only one of "
                          "prompt_ids, prompt and messages");
    if (strcmp(key, "messages") == 0)
        return set_messages(run, job, v);
    if (strcmp(key, "prompt") == 0)
        return json_is_string(v) ? di_job_set_text(run, job,
                                                   json_string_value(v),
                                                   json_string_length(v))
                                 : wrong(job, "prompt", "a string");

    rc = add_ids(run, job, key, v, &job->prompt, &job->req.n_prompt);
    if (rc == DI_OK && job->req.n_prompt == 0)
        return wrong(job, key, "at least one token id");
    job->req.prompt = job->prompt;
    return rc;
}

static int
set_field(di_run_t *run, di_job_t *job, const char *key, json_t *v)
{
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        if (strcmp(key, fields[i].name) == 0)
            return set_scalar(job, &fields[i], v);
    }
    if (strcmp(key, "prompt_ids") == 0 || strcmp(key, "prompt") == 0
        || strcmp(key, "messages") == 0)
        return set_prompt(run, job, key, v);
    if (strcmp(key, "logit_bias") == 0)
        return set_bias(run, job, v);
    if (strcmp(key, "stop_token_ids") == 0) {
        int rc = add_ids(run, job, key, v, &job->stop_ids,
                         &job->req.n_stop_ids);

        job->req.stop_ids = job->stop_ids;
        return rc;
    }
    return di_err_set(&job->err, DI_EINVAL, 0, "field %.60s is not known",
                      key);
}

static int
check(di_job_t *job)
{
    di_err_t why = { 0 };

    if (job->req.prompt == NULL)
        return di_err_set(&job->err, DI_EINVAL, 0, "no prompt: give "
                          "prompt_ids, prompt or messages");
    if (di_gen_request_check(&job->req, &why) != DI_OK)
        return di_err_set(&job->err, DI_EINVAL, 0, "field %s: out of range",
                          why.text);
    return DI_OK;
}

int
di_job_read_generate(di_run_t *run, di_job_t *job, const char *line,
                     size_t len)
{
    json_t     *root, *v;
    const char *key;
    int         rc = parse(job, line, len, &root);

    if (rc == DI_OK) {
        json_object_foreach(root, key, v) {
            rc = di_job_is_grammar(key) ? DI_OK
                                        : set_field(run, job, key, v);
            if (rc != DI_OK)
                break;
        }
    }
    if (rc == DI_OK)
        rc = di_job_set_grammar(job, root);
    if (rc == DI_OK)
        rc = check(job);
    json_decref(root);
    return rc;
}

/* Scoring is generating one token after prompt and continuation, with the
 * log-probabilities of the continuation's positions and of that token. */
static int
read_score(di_run_t *run, di_job_t *job, json_t *root)
{
    static const field_t top = { "top", F_U32, AT(top_logprobs), 0,
                                 DI_GEN_TOP_LOGPROBS_MAX, 0 };
    di_gen_params_t *p = &job->req.params;
    json_t          *continuation = json_object_get(root, "continuation_ids");
    json_t          *v = json_object_get(root, "prompt_ids");
    const char      *key;
    int              rc;

    p->top_logprobs = DI_GEN_TOP_LOGPROBS_MAX;
    if (v == NULL || continuation == NULL)
        return di_err_set(&job->err, DI_EINVAL, 0,
                          "prompt_ids and continuation_ids are needed");
    rc = set_prompt(run, job, "prompt_ids", v);
    if (rc != DI_OK)
        return rc;
    p->prompt_logprobs_from = job->req.n_prompt;
    rc = add_ids(run, job, "continuation_ids", continuation, &job->prompt,
                 &job->req.n_prompt);
    if (rc != DI_OK)
        return rc;
    job->req.prompt = job->prompt;

    json_object_foreach(root, key, v) {
        if (strcmp(key, "top") == 0)
            rc = set_scalar(job, &top, v);
        else if (strcmp(key, "prompt_ids") != 0
                 && strcmp(key, "continuation_ids") != 0)
            rc = di_err_set(&job->err, DI_EINVAL, 0,
                            "field %.60s is not known", key);
        if (rc != DI_OK)
            return rc;
    }

    job->scores = true;
    p->max_tokens = 1;
    p->flags = DI_GEN_IGNORE_EOS | DI_GEN_LOGPROBS;
    if (json_array_size(continuation) > 0)
        p->flags |= DI_GEN_PROMPT_LOGPROBS;
    else
        p->prompt_logprobs_from = 0;
    return check(job);
}

int
di_job_read_score(di_run_t *run, di_job_t *job, const char *line, size_t len)
{
    json_t *root;
    int     rc = parse(job, line, len, &root);

    if (rc == DI_OK)
        rc = read_score(run, job, root);
    json_decref(root);
    return rc;
}
