/*
 * answer.c - vectors of answers: engine events to a stream's events, or to a
 * whole body.
 *
 * input: "api", "id", "model", the request's "body" and "options", perhaps
 * "signature" and "tokenizer", and "chunks", one after another.  A stream's
 * "expected" has in "pushes" the events that each chunk brought, and after
 * which the answer was complete ("finished_at") or which chunk failed
 * ("error"); a whole one's has "body" or "error".
 */

#include <stdlib.h>
#include <string.h>

#include "tokenizer/api/di_out.h"
#include "vectors.h"

typedef struct {
    const json_t *input;
    bool          stream;
    di_req_t     *req;
    di_out_t     *out;
    di_sbuf_t     bytes;        /* events of the chunk, or the body          */
    bool          done;         /* the answer is complete                    */
    di_err_t      err;          /* the chunk failed                          */
} run_t;

static const char *
string(const json_t *object, const char *key)
{
    return json_string_value(json_object_get(object, key));
}

static void
must(bool fine, const char *what)
{
    if (!fine) {
        fprintf(stderr, "recipe-vectors: %s\n", what);
        exit(2);
    }
}

static bool
takes(const json_t *input, const json_t *expected)
{
    (void) expected;
    return json_object_get(input, "chunks") != NULL;
}

static void
open_run(run_t *r, const json_t *input, const char *line, size_t len)
{
    const char      *tokenizer = string(input, "tokenizer");
    const char      *model = string(input, "model");
    di_model_name_t  models[VECTORS_MODELS_MAX];
    di_req_options_t options;
    di_sbuf_t        body = { 0 };
    di_out_conf_t    conf = { 0 };
    di_api_err_t     e;

    memset(r, 0, sizeof(*r));
    r->input = input;
    vectors_options(input, &options, models);
    vectors_body(input, line, len, &body);
    must(di_req_parse(vectors_api(input), &options, body.data, body.len,
                      &r->req, &e) == DI_OK, "a vector's request is refused");
    di_sbuf_free(&body);
    r->stream = di_req_params(r->req)->stream;

    conf.req = r->req;
    conf.vocab = tokenizer == NULL ? NULL : vectors_vocab(tokenizer);
    conf.spell = DI_SPELL_DSML;
    conf.id = string(input, "id");
    conf.model = (di_str_t) { model, strlen(model) };
    conf.signature = string(input, "signature");
    conf.show_ends = true;
    must(di_out_open(&conf, &r->out) == DI_OK, "no memory");
}

static void
close_run(run_t *r)
{
    di_out_close(r->out);
    di_req_close(r->req);
    di_sbuf_free(&r->bytes);
}

/* ---------------------------------------------------------------- chunks -- */

static void
finish(run_t *r, di_end_t reason)
{
    must(di_out_finish(r->out, 0, reason, &r->bytes, &r->done) == DI_OK,
         "no memory");
}

static void
ready(run_t *r, const json_t *chunk)
{
    must(di_out_start(r->out,
                      (uint32_t) json_integer_value(
                          json_object_get(chunk, "prompt_tokens")),
                      (uint32_t) json_integer_value(
                          json_object_get(chunk, "prompt_cache_hit_tokens")),
                      string(chunk, "system_fingerprint"), &r->bytes)
         == DI_OK, "no memory");
}

/* [logprob, [[id, logprob]...]] of a token. */
static void
logprob(run_t *r, int32_t token, const json_t *entry)
{
    const json_t *list = json_array_get(entry, 1);
    di_out_top_t  top[32];
    size_t        n = json_array_size(list), i;

    must(n <= sizeof(top) / sizeof(top[0]), "too many top_logprobs");
    for (i = 0; i < n; i++) {
        top[i].id = (int32_t) json_integer_value(
                        json_array_get(json_array_get(list, i), 0));
        top[i].logprob = (float) json_number_value(
                             json_array_get(json_array_get(list, i), 1));
    }
    must(di_out_logprob(r->out, 0, token,
                        (float) json_number_value(json_array_get(entry, 0)),
                        top, n) == DI_OK, "no memory");
}

static void
tokens(run_t *r, const json_t *list, const json_t *logprobs, bool *stopped)
{
    size_t   n = json_array_size(list), i;
    int32_t *ids = calloc(n + 1, sizeof(*ids));
    int      rc;

    must(ids != NULL, "no memory");
    for (i = 0; i < n; i++)
        ids[i] = (int32_t) json_integer_value(json_array_get(list, i));
    for (i = 0; i < json_array_size(logprobs); i++)
        logprob(r, i < n ? ids[i] : 0, json_array_get(logprobs, i));

    rc = di_out_tokens(r->out, 0, ids, n, &r->bytes, stopped, &r->err);
    must(rc == DI_OK || rc == DI_EINVAL, "no memory");
    free(ids);
}

static di_end_t
finish_of(const char *name)
{
    return strcmp(name, "length") == 0 ? DI_END_LENGTH
           : strcmp(name, "content_filter") == 0 ? DI_END_FILTER
           : DI_END_STOP;
}

/* A chunk, or NULL for the end of the input. */
static void
push(run_t *r, const json_t *chunk)
{
    const json_t *text = json_object_get(chunk, "text");
    const json_t *list = json_object_get(chunk, "tokens");
    const char   *reason = string(chunk, "finish");
    bool          stopped = false;

    if (json_object_get(chunk, "ready") != NULL)
        ready(r, json_object_get(chunk, "ready"));
    else if (text != NULL)
        must(di_out_text(r->out, 0, json_string_value(text),
                         json_string_length(text),
                         (uint32_t) json_integer_value(
                             json_object_get(chunk, "n")),
                         &r->bytes, &stopped) == DI_OK, "no memory");
    else if (list != NULL)
        tokens(r, list, json_object_get(chunk, "logprobs"), &stopped);

    if (stopped || chunk == NULL)
        finish(r, DI_END_STOP);
    else if (reason != NULL)
        finish(r, finish_of(reason));
}

/* ---------------------------------------------------------------- results - */

/* Members that differ in every run become as the vectors have them. */
static void
normalise(json_t *v)
{
    static const char *const times[] = { "created", "created_at",
                                         "completed_at" };
    const char *key, *s;
    char        id[16];
    json_t     *item;
    size_t      i;

    json_array_foreach(v, i, item)
        normalise(item);

    for (i = 0; i < 3 && json_is_object(v); i++) {
        if (json_is_integer(json_object_get(v, times[i])))
            json_object_set_new(v, times[i], json_integer(0));
    }

    json_object_foreach(v, key, item) {
        s = json_string_value(item);
        if (s != NULL && (strcmp(key, "id") == 0
                          || strcmp(key, "call_id") == 0)
            && strncmp(s, "call_", 5) == 0 && strlen(s) >= 32)
        {
            i = strlen(s) - 24;
            must(i < sizeof(id) - 1, "a call id is too long");
            memcpy(id, s, i);
            memcpy(id + i, "*", 2);
            json_object_set_new(v, key, json_string(id));
        } else {
            normalise(item);
        }
    }
}

static json_t *
parse(const char *data, size_t len)
{
    json_t *v = json_loadb(data, len, JSON_ALLOW_NUL, NULL);

    must(v != NULL, "an answer is no JSON");
    normalise(v);
    return v;
}

/* The events in bytes, which are emptied. */
static json_t *
events(run_t *r)
{
    const char *p = r->bytes.data, *end = p + r->bytes.len, *stop, *line;
    json_t     *list = json_array(), *name;

    for (; p < end; p = stop + 2) {
        stop = memmem(p, (size_t) (end - p), "\n\n", 2);
        must(stop != NULL, "an event has no end");

        name = json_null();
        if (strncmp(p, "event: ", 7) == 0) {
            line = memchr(p, '\n', (size_t) (stop - p));
            name = json_stringn(p + 7, (size_t) (line - p) - 7);
            p = line + 1;
        }
        must(strncmp(p, "data: ", 6) == 0, "an event has no data");
        json_array_append_new(list, json_pack("{s:o,s:o}", "event", name,
                              "data", parse(p + 6, (size_t) (stop - p) - 6)));
    }

    r->bytes.len = 0;
    return list;
}

/* Push all chunks; stream: their events go to pushes. */
static json_t *
push_all(run_t *r, json_t *pushes)
{
    const json_t *chunks = json_object_get(r->input, "chunks");
    size_t        n = json_array_size(chunks), i;

    for (i = 0; i <= n; i++) {
        push(r, json_array_get(chunks, i));
        if (r->err.code != DI_OK)
            return json_pack("{s:I,s:s}", "at", (json_int_t) i, "message",
                             r->err.text);
        if (pushes != NULL)
            json_array_append_new(pushes, events(r));
        if (r->done) {
            n = i;
            break;
        }
    }

    return json_integer((json_int_t) n);
}

static json_t *
run(const json_t *input, const char *line, size_t len)
{
    json_t *got = json_object(), *pushes = NULL, *end;
    run_t   r;

    open_run(&r, input, line, len);
    if (r.stream)
        pushes = json_array();
    end = push_all(&r, pushes);

    if (json_is_object(end)) {
        json_object_set(got, "error", r.stream ? end
                        : json_object_get(end, "message"));
    } else if (!r.stream) {
        must(di_out_body(r.out, &r.bytes) == DI_OK, "no memory");
        json_object_set_new(got, "body", parse(r.bytes.data, r.bytes.len));
    }

    if (r.stream) {
        json_object_set_new(got, "pushes", pushes);
        json_object_set_new(got, "finished_at", json_is_object(end)
                            ? json_null() : json_incref(end));
    }

    json_decref(end);
    close_run(&r);
    return got;
}

const vectors_kind_t vectors_answer = {
    .name = "answer", .takes = takes, .run = run,
};
