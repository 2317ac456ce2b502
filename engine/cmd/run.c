/*
 * run.c - offline generation: jobs through the scheduler.
 *
 * The scheduler names a request by a number of ours; a job's address serves,
 * so that an event finds its job without a table.  The queue is as long as
 * the batch, and the caller submits no more than that, so that the scheduler
 * never refuses for room.
 */

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "di_run.h"

/* ---------------------------------------------------------------- events -- */

static bool
choice_append(di_choice_t *c, const int32_t *ids, size_t n)
{
    if (c->n + n > c->cap) {
        size_t   cap = c->cap == 0 ? 64 : 2 * c->cap;
        int32_t *grown = realloc(c->ids, cap * sizeof(*grown));

        if (grown == NULL)
            return false;
        c->ids = grown;
        c->cap = cap;
    }
    memcpy(c->ids + c->n, ids, n * sizeof(*ids));
    c->n += n;
    return true;
}

/* One scored position: the best ids, and the next token's log-probability
 * where there is a next token. */
static bool
positions_append(json_t *positions, const di_event_t *e,
                 const di_top_logprob_t *top)
{
    json_t *p = json_object(), *ids = json_array(), *logprobs = json_array();
    int     bad = 0;

    for (size_t i = 0; i < e->n_top; i++) {
        bad |= json_array_append_new(ids, json_integer(top[i].id));
        bad |= json_array_append_new(logprobs,
                                     json_real((double) top[i].logprob));
    }
    bad |= json_object_set_new(p, "ids", ids);
    bad |= json_object_set_new(p, "logprobs", logprobs);
    if (e->type == DI_EV_PROMPT_LOGPROB)
        bad |= json_object_set_new(p, "token_logprob",
                                   json_real((double) e->u.logprob.logprob));
    bad |= json_array_append_new(positions, p);
    return bad == 0;
}

static void
reject(di_job_t *job, const di_event_t *e)
{
    unsigned a = e->u.reject.a, b = e->u.reject.b;

    switch (e->u.reject.reason) {
    case DI_REJECT_TOO_LONG:
        (void) di_err_set(&job->err, DI_ELIMIT, 0, "the prompt has %u tokens, "
                          "the model length is %u", a, b);
        break;
    case DI_REJECT_KV:
        (void) di_err_set(&job->err, DI_ELIMIT, 0, "the request needs %u KV "
                          "blocks, there are %u: give more --kv-memory", a,
                          b);
        break;
    default:
        (void) di_err_set(&job->err, DI_EINVAL, 0, "refused: %.28s",
                          e->u.reject.text);
    }
    job->done = true;
}

static void
finish(di_job_t *job, di_choice_t *c, const di_event_t *e)
{
    c->reason = e->u.finish.reason;
    if (c->reason == DI_FINISH_ERROR)
        (void) di_err_set(&job->err, DI_EIO, 0, "the engine failed");
    if (--job->n_open == 0)
        job->done = true;
}

static void
on_event(void *arg, uint32_t owner, const di_event_t *e,
         const di_top_logprob_t *top)
{
    di_job_t *job = (di_job_t *) (uintptr_t) e->id;
    bool      ok = true;

    (void) arg;
    (void) owner;
    switch (e->type) {
    case DI_EV_TOKENS:
        ok = choice_append(&job->choices[e->choice], e->u.tokens,
                           e->n_tokens);
        if (ok && job->on_tokens != NULL)
            job->on_tokens(job->on_tokens_arg, e->u.tokens, e->n_tokens);
        break;
    case DI_EV_LOGPROB:
    case DI_EV_PROMPT_LOGPROB:
        if (job->scores)
            ok = positions_append(job->positions, e, top);
        break;
    case DI_EV_FINISH:
        finish(job, &job->choices[e->choice], e);
        break;
    case DI_EV_REJECT:
        reject(job, e);
        break;
    default:
        break;                   /* DI_EV_STARTED: nothing to note          */
    }
    if (!ok)
        (void) di_err_set(&job->err, DI_ENOMEM, 0, "out of memory");
}

/* ------------------------------------------------------------------- run -- */

int
di_run_open(const di_cmd_opts_t *opts, di_run_t *run, di_err_t *err)
{
    di_model_conf_t  mc = opts->engine.model;
    di_sched_conf_t  sc;
    int              rc;

    memset(run, 0, sizeof(*run));
    run->opts = opts;
    if (opts->engine.log_level >= DI_LOG_INFO) {
        mc.progress = di_cmd_progress;
        mc.progress_arg = &run->progress;
    }

    rc = di_model_open(opts->engine.model_path, &mc, &run->model, err);
    if (rc == DI_OK)
        rc = di_vocab_open_path(opts->engine.model_path, &run->vocab, err);
    if (rc == DI_OK && di_tok_open(run->vocab, &run->tok) != DI_OK)
        rc = di_err_set(err, DI_ENOMEM, 0, "out of memory");
    if (rc == DI_OK) {
        sc = (di_sched_conf_t) {
            .max_seqs = opts->engine.max_seqs,
            .max_rows = opts->engine.max_rows,
            .chunk = opts->engine.chunk,
            .queue_max = opts->batch,
            .prefix_cache = opts->engine.prefix_cache,
            .replay = opts->engine.replay,
            .replay_keep = opts->engine.replay_keep,
            .drafts = opts->engine.drafts,
            .vocab = run->vocab,
            .grammar_bytes = opts->engine.grammar_bytes,
            .jumps = opts->engine.jumps,
            .sink = on_event,
        };
        sc.n_end_ids = di_vocab_end_ids(run->vocab, &sc.end_ids);
        rc = di_sched_open(run->model, &sc, &run->sched, err);
    }
    if (rc != DI_OK)
        di_run_close(run);
    return rc;
}

void
di_run_close(di_run_t *run)
{
    if (run->sched != NULL)
        di_sched_close(run->sched);
    if (run->dialect != NULL)
        di_dialect_close(run->dialect);
    if (run->tok != NULL)
        di_tok_close(run->tok);
    if (run->vocab != NULL)
        di_vocab_close(run->vocab);
    di_model_close(run->model);
    memset(run, 0, sizeof(*run));
}

void
di_run_submit(di_run_t *run, di_job_t *job)
{
    job->choices = calloc(job->req.params.n, sizeof(*job->choices));
    job->positions = job->scores ? json_array() : NULL;
    job->n_open = job->req.params.n;
    if (job->choices == NULL || (job->scores && job->positions == NULL)
        || di_sched_submit(run->sched, 0, (uint64_t) (uintptr_t) job,
                           &job->req) != DI_OK) {
        (void) di_err_set(&job->err, DI_ENOMEM, 0, "out of memory");
        job->done = true;
    }
}

int
di_run_step(di_run_t *run)
{
    return di_sched_step(run->sched);
}

/* ------------------------------------------------------------------ jobs -- */

di_job_t *
di_job_open(void)
{
    di_job_t *job = calloc(1, sizeof(*job));

    if (job == NULL)
        return NULL;
    job->req.params.top_p = 1.0f;
    job->req.params.repetition_penalty = 1.0f;
    job->req.params.n = 1;
    return job;
}

void
di_job_close(di_job_t *job)
{
    for (uint32_t i = 0; job->choices != NULL && i < job->req.params.n; i++)
        free(job->choices[i].ids);
    free(job->choices);
    free(job->prompt);
    free(job->bias);
    free(job->stop_ids);
    free(job->grammar);
    json_decref(job->positions);
    free(job);
}

int
di_job_set_text(di_run_t *run, di_job_t *job, const char *text, size_t len)
{
    bool     bos = di_vocab_add_bos(run->vocab);
    int32_t *ids = malloc((len + 1) * sizeof(*ids));
    size_t   n = 0;
    int      rc;

    if (ids == NULL)
        return di_err_set(&job->err, DI_ENOMEM, 0, "out of memory");
    if (bos)
        ids[0] = di_vocab_bos(run->vocab);
    rc = di_tok_encode_raw(run->tok, text, len, ids + bos, len, &n);
    if (rc != DI_OK) {
        free(ids);
        return di_err_set(&job->err, rc, 0, "can't encode the prompt");
    }

    job->prompt = ids;
    job->req.prompt = ids;
    job->req.n_prompt = (uint32_t) n + bos;
    if (job->req.n_prompt == 0)
        return di_err_set(&job->err, DI_EINVAL, 0, "the prompt is empty");
    return DI_OK;
}

static int
open_dialect(di_run_t *run, di_err_t *err)
{
    di_str_t text = { NULL, 0 };

    if (run->dialect != NULL)
        return DI_OK;
    text.data = di_vocab_template(run->vocab, &text.len);
    return di_dialect_open(run->vocab, text, run->opts->dialect,
                           &run->dialect, err);
}

static int64_t
local_time(void)
{
    time_t    now = time(NULL);
    struct tm tm;

    return localtime_r(&now, &tm) == NULL ? now : now + tm.tm_gmtoff;
}

int
di_job_set_conv(di_run_t *run, di_job_t *job, const di_conv_t *conv)
{
    size_t    limit = di_model_info(run->model)->max_model_len, n = 0;
    di_conv_t today = *conv;
    int       rc;

    rc = open_dialect(run, &job->err);
    if (rc != DI_OK)
        return rc;
    today.now = local_time();
    rc = di_dialect_encode(run->dialect, run->tok, &today, limit,
                           &job->prompt, &n, &job->err);
    if (rc == DI_ELIMIT)
        return di_err_set(&job->err, rc, 0, "the prompt has more than %zu "
                          "tokens, the model length", limit);
    if (rc != DI_OK)
        return di_err_set(&job->err, rc, 0, "can't encode the conversation");
    job->req.prompt = job->prompt;
    job->req.n_prompt = (uint32_t) n;
    return DI_OK;
}

/* ------------------------------------------------------------------ text -- */

/* Length of the valid UTF-8 sequence at s; 0 if there is none, and then
 * *bad is the number of bytes that one replacement character stands for (the
 * longest prefix of a valid sequence: Unicode, section 3.9, practice of
 * maximal subparts). */
static size_t
utf8_length(const unsigned char *s, size_t len, size_t *bad)
{
    unsigned char lo = 0x80, hi = 0xbf;
    size_t        n;

    *bad = 1;
    if (s[0] < 0x80)
        return 1;
    if (s[0] < 0xc2 || s[0] > 0xf4)
        return 0;
    n = s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
    if (s[0] == 0xe0)
        lo = 0xa0;
    else if (s[0] == 0xed)
        hi = 0x9f;
    else if (s[0] == 0xf0)
        lo = 0x90;
    else if (s[0] == 0xf4)
        hi = 0x8f;

    for (size_t i = 1; i < n; i++) {
        if (i == len || s[i] < lo || s[i] > hi) {
            *bad = i;
            return 0;
        }
        lo = 0x80;
        hi = 0xbf;
    }
    return n;
}

/* Copy with U+FFFD for what is not UTF-8; dst has room for 3 len bytes. */
static size_t
utf8_repair(char *dst, const char *src, size_t len)
{
    char *start = dst;

    while (len > 0) {
        size_t bad, n = utf8_length((const unsigned char *) src, len, &bad);

        if (n > 0) {
            memcpy(dst, src, n);
            dst += n;
        } else {
            memcpy(dst, "\xef\xbf\xbd", 3);
            dst += 3;
            n = bad;
        }
        src += n;
        len -= n;
    }
    return (size_t) (dst - start);
}

int
di_run_text(const di_run_t *run, const di_choice_t *c, char **text,
            size_t *len)
{
    bool   ended = c->reason == DI_FINISH_STOP
                   || c->reason == DI_FINISH_STOP_ID;
    size_t n = c->n - (ended && c->n > 0), bytes = 0, at = 0;
    char  *raw;

    for (size_t i = 0; i < n; i++) {
        size_t k;

        (void) di_vocab_bytes(run->vocab, c->ids[i], &k);
        bytes += k;
    }
    raw = malloc(bytes + 1);
    *text = malloc(3 * bytes + 1);
    if (raw == NULL || *text == NULL) {
        free(raw);
        free(*text);
        return DI_ENOMEM;
    }
    for (size_t i = 0; i < n; i++) {
        size_t      k;
        const char *s = di_vocab_bytes(run->vocab, c->ids[i], &k);

        memcpy(raw + at, s, k);
        at += k;
    }
    *len = utf8_repair(*text, raw, bytes);
    free(raw);
    return DI_OK;
}
