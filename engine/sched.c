/*
 * sched.c - requests: submit, cancel, pause, status; sched_step.c makes steps.
 *
 * Queues.  Each owner (a worker's connection) has a queue of its own, first
 * come first served; owners are admitted in turn, so that a worker with a
 * thousand requests does not hold up one with two.  Sequences that had run
 * before go ahead of all queues, in order of their admission: they hold
 * results that a client has seen.
 *
 * Bounds.  At most queue_max requests wait beyond those that free sequences
 * will take at the next step.  A request that could not run even alone is
 * refused when it comes; so a sequence that runs alone always ends, and a
 * preempted one always gets its turn.
 */

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "sched_impl.h"


/* -------------------------------------------------------------------- lists */

void
di_seq_append(seq_list_t *list, seq_t *seq)
{
    seq->list = list;
    seq->prev = list->tail;
    seq->next = NULL;
    if (list->tail != NULL)
        list->tail->next = seq;
    else
        list->head = seq;
    list->tail = seq;
    list->n++;
}


void
di_seq_prepend(seq_list_t *list, seq_t *seq)
{
    seq->list = list;
    seq->prev = NULL;
    seq->next = list->head;
    if (list->head != NULL)
        list->head->prev = seq;
    else
        list->tail = seq;
    list->head = seq;
    list->n++;
}


void
di_seq_unlink(di_sched_t *sched, seq_t *seq)
{
    seq_list_t *list = seq->list;

    if (list == NULL)
        return;
    if (seq->prev != NULL)
        seq->prev->next = seq->next;
    else
        list->head = seq->next;
    if (seq->next != NULL)
        seq->next->prev = seq->prev;
    else
        list->tail = seq->prev;
    list->n--;
    if (list != &sched->running && list != &sched->resume)
        sched->n_queued--;
    seq->prev = seq->next = NULL;
    seq->list = NULL;
}


/* ----------------------------------------------------------- open and close */

uint64_t
di_sched_now_us(void)
{
    struct timespec t;

    (void) clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t) t.tv_sec * 1000000 + (uint64_t) t.tv_nsec / 1000;
}


static int
check_conf(const di_sched_model_t *model, const di_sched_conf_t *conf,
           di_err_t *err)
{
    size_t i;

    if (conf->max_seqs == 0)
        return di_err_set(err, DI_EINVAL, 0, "no sequence may run");
    if (conf->max_rows < conf->max_seqs)
        return di_err_set(err, DI_EINVAL, 0, "a step of %u rows can't hold "
                          "%u sequences", conf->max_rows, conf->max_seqs);
    if (conf->chunk == 0)
        return di_err_set(err, DI_EINVAL, 0, "a prefill chunk of 0 rows");
    if (model->n_states != 0 && model->n_states < conf->max_seqs)
        return di_err_set(err, DI_EINVAL, 0, "the model has %u state slots "
                          "for %u sequences", model->n_states,
                          conf->max_seqs);
    if (conf->replay != DI_REPLAY_OFF && model->n_states == 0)
        return di_err_set(err, DI_EINVAL, 0, "the model has no windows, so "
                          "there is nothing to replay");
    if (conf->replay != DI_REPLAY_OFF
        && conf->replay_keep <= model->window + model->backtrack)
        return di_err_set(err, DI_EINVAL, 0, "of a prompt %u tokens are kept, "
                          "fewer than a window of %u and %u to take back",
                          conf->replay_keep, model->window,
                          model->backtrack + 1);
    if (model->max_logits < conf->max_seqs)
        return di_err_set(err, DI_EINVAL, 0, "the model gives %u rows of "
                          "logits to %u sequences", model->max_logits,
                          conf->max_seqs);
    for (i = 0; i < conf->n_end_ids; i++) {
        if (conf->end_ids[i] < 0
            || (uint32_t) conf->end_ids[i] >= model->vocab)
            return di_err_set(err, DI_EINVAL, 0, "end id %d is not in the "
                              "model's vocabulary of %u", conf->end_ids[i],
                              model->vocab);
    }
    return DI_OK;
}


static int
alloc_tables(di_sched_t *s)
{
    size_t   n_buckets = 64, i;
    uint64_t reqs = (uint64_t) s->conf.queue_max + s->conf.max_seqs;

    while (n_buckets < reqs * 2 && n_buckets < 1u << 24)
        n_buckets *= 2;
    s->bucket_mask = (uint32_t) (n_buckets - 1);
    s->jobs_max = s->conf.max_seqs + s->model.max_logits + DI_GEN_N_MAX;

    s->buckets = calloc(n_buckets, sizeof(*s->buckets));
    s->model_seqs = calloc(s->conf.max_seqs, sizeof(*s->model_seqs));
    s->parts = calloc(s->conf.max_seqs, sizeof(*s->parts));
    s->jobs = calloc(s->jobs_max, sizeof(*s->jobs));
    s->end_ids = calloc(s->conf.n_end_ids + 1, sizeof(*s->end_ids));
    if (s->buckets == NULL || s->model_seqs == NULL || s->parts == NULL
        || s->jobs == NULL || s->end_ids == NULL)
        return DI_ENOMEM;

    for (i = 0; i < s->conf.n_end_ids; i++)
        s->end_ids[i] = s->conf.end_ids[i];
    s->conf.end_ids = s->end_ids;
    return DI_OK;
}


int
di_sched_open_on(const di_sched_model_t *model, const di_sched_conf_t *conf,
                 di_sched_t **out, di_err_t *err)
{
    di_kv_conf_t kv_conf = { .n_blocks = model->kv_blocks,
                             .block_tokens = model->block_tokens };
    di_sched_t  *s;
    int          rc, i;

    rc = check_conf(model, conf, err);
    if (rc != DI_OK)
        return rc;

    s = calloc(1, sizeof(*s));
    if (s == NULL)
        return di_err_set(err, DI_ENOMEM, 0, "no memory for the scheduler");
    s->model = *model;
    s->conf = *conf;
    rc = alloc_tables(s);
    if (rc == DI_OK)
        rc = di_kv_open(&kv_conf, &s->kv, err);
    if (rc == DI_OK)
        rc = di_state_open(s);
    if (rc == DI_OK)
        rc = di_draft_open(s);
    if (rc == DI_OK)
        rc = di_grammar_open(s, err);
    if (rc == DI_OK)
        rc = di_forced_open(s);
    for (i = 0; i < DI_SCHED_PARTS && rc == DI_OK; i++)
        rc = di_sampler_open(model->vocab, &s->samplers[i], err);
    if (rc != DI_OK) {
        di_sched_close(s);
        return di_err_set(err, rc, 0, "no memory for the scheduler");
    }
    *out = s;
    return DI_OK;
}


void
di_sched_close(di_sched_t *s)
{
    req_t   *req, *next;
    uint32_t i;

    if (s == NULL)
        return;
    for (i = 0; s->buckets != NULL && i <= s->bucket_mask; i++) {
        for (req = s->buckets[i]; req != NULL; req = next) {
            next = req->hash_next;
            di_grammar_detach(req);
            free(req);
        }
    }
    for (i = 0; i < DI_SCHED_PARTS; i++)
        di_sampler_close(s->samplers[i]);
    di_kv_close(s->kv);
    di_state_close(s);
    di_draft_close(s);
    di_grammar_close(s);
    di_forced_close(s);
    free(s->end_ids);
    free(s->jobs);
    free(s->parts);
    free(s->model_seqs);
    free(s->buckets);
    free(s);
}


/* ----------------------------------------------------------------- requests */

static req_t **
bucket_of(const di_sched_t *s, uint32_t owner, uint64_t id)
{
    uint64_t h = (id ^ ((uint64_t) owner << 56)) * 0x9e3779b97f4a7c15u;

    return &s->buckets[(h >> 32) & s->bucket_mask];
}


static req_t *
find_req(const di_sched_t *s, uint32_t owner, uint64_t id)
{
    req_t *req = *bucket_of(s, owner, id);

    while (req != NULL && (req->id != id || req->owner != owner))
        req = req->hash_next;
    return req;
}


static void
free_req(di_sched_t *s, req_t *req)
{
    req_t **link = bucket_of(s, req->owner, req->id);

    while (*link != req)
        link = &(*link)->hash_next;
    *link = req->hash_next;
    s->n_reqs--;
    di_grammar_detach(req);
    free(req);
}


static void
reject(di_sched_t *s, uint32_t owner, uint64_t id, di_reject_t reason,
       uint32_t a, uint32_t b, const char *text)
{
    di_event_t e = { .id = id, .type = DI_EV_REJECT };

    e.u.reject.reason = reason;
    e.u.reject.a = a;
    e.u.reject.b = b;
    (void) snprintf(e.u.reject.text, sizeof(e.u.reject.text), "%.27s", text);
    s->conf.sink(s->conf.arg, owner, &e, NULL);
}


/* The first field with an id outside the vocabulary, or NULL. */
static const char *
foreign_id(const di_sched_t *s, const di_gen_request_t *r)
{
    uint32_t i;

    for (i = 0; i < r->n_prompt; i++) {
        if (r->prompt[i] < 0 || (uint32_t) r->prompt[i] >= s->model.vocab)
            return "prompt";
    }
    for (i = 0; i < r->n_bias; i++) {
        if ((uint32_t) r->bias[i].id >= s->model.vocab)
            return "logit_bias";
    }
    for (i = 0; i < r->n_stop_ids; i++) {
        if ((uint32_t) r->stop_ids[i] >= s->model.vocab)
            return "stop_ids";
    }
    return NULL;
}


/* Answer what can't be accepted.  True if it was refused. */
static bool
refuse(di_sched_t *s, uint32_t owner, uint64_t id, const di_gen_request_t *r)
{
    di_err_t    err = { 0 };
    const char *field;
    uint32_t    blocks, free_seqs = s->conf.max_seqs - s->running.n;

    if (di_gen_request_check(r, &err) != DI_OK) {
        reject(s, owner, id, DI_REJECT_INVALID, 0, 0, err.text);
        return true;
    }
    field = foreign_id(s, r);
    if (field == NULL && find_req(s, owner, id) != NULL)
        field = "id";
    if (field != NULL) {
        reject(s, owner, id, DI_REJECT_INVALID, 0, 0, field);
        return true;
    }

    if (r->n_prompt >= s->model.max_model_len) {
        reject(s, owner, id, DI_REJECT_TOO_LONG, r->n_prompt,
               s->model.max_model_len, "prompt");
        return true;
    }
    blocks = (r->n_prompt + s->model.block_tokens - 1)
             / s->model.block_tokens;
    if (blocks > s->model.kv_blocks) {
        reject(s, owner, id, DI_REJECT_KV, blocks, s->model.kv_blocks,
               "prompt");
        return true;
    }
    if (s->draining) {
        reject(s, owner, id, DI_REJECT_DRAINING, 0, 0, "shutting down");
        return true;
    }
    if (s->n_queued >= (uint64_t) s->conf.queue_max + free_seqs) {
        reject(s, owner, id, DI_REJECT_QUEUE_FULL, s->n_queued,
               s->conf.queue_max, "queue full");
        return true;
    }
    return false;
}


/* Tokens that a sequence can have: the last one needs no KV. */
static uint32_t
total_max(const di_sched_t *s, const di_gen_request_t *r)
{
    uint64_t fit = (uint64_t) s->model.kv_blocks * s->model.block_tokens + 1;

    if (fit > s->model.max_model_len)
        fit = s->model.max_model_len;
    if (r->params.max_tokens != 0
        && fit > (uint64_t) r->n_prompt + r->params.max_tokens)
        fit = (uint64_t) r->n_prompt + r->params.max_tokens;
    return (uint32_t) fit;
}


/* One block of memory for a request and all that hangs on it.  Lists come in
 * order of their alignment. */
static req_t *
new_req(const di_sched_t *s, const di_gen_request_t *r)
{
    size_t   total = total_max(s, r), n = r->params.n, seq_bytes, bytes;
    size_t   blocks = (total + s->model.block_tokens - 1)
                      / s->model.block_tokens;
    uint32_t i;
    req_t   *req;
    char    *at;

    seq_bytes = total * sizeof(int32_t) + blocks * sizeof(uint32_t)
                + blocks * sizeof(di_kv_key_t);
    bytes = sizeof(*req) + n * sizeof(seq_t)
            + r->n_bias * sizeof(di_logit_bias_t)
            + r->n_stop_ids * sizeof(int32_t) + n * seq_bytes;
    req = malloc(bytes);
    if (req == NULL)
        return NULL;
    memset(req, 0, sizeof(*req) + n * sizeof(seq_t));

    at = (char *) &req->seqs[n];
    req->bias = (di_logit_bias_t *) at;
    at += r->n_bias * sizeof(di_logit_bias_t);
    req->stop_ids = (int32_t *) at;
    at += r->n_stop_ids * sizeof(int32_t);
    for (i = 0; i < n; i++) {
        req->seqs[i].req = req;
        req->seqs[i].choice = i;
        req->seqs[i].tokens = (int32_t *) at;
        at += total * sizeof(int32_t);
        req->seqs[i].blocks = (uint32_t *) at;
        at += blocks * sizeof(uint32_t);
        req->seqs[i].keys = (di_kv_key_t *) at;
        at += blocks * sizeof(di_kv_key_t);
    }
    req->total_max = (uint32_t) total;
    return req;
}


static void
fill_req(const di_sched_t *s, req_t *req, uint32_t owner, uint64_t id,
         const di_gen_request_t *r)
{
    seq_t *leader = &req->seqs[0];

    req->id = id;
    req->owner = owner;
    req->submitted_us = di_sched_now_us();
    req->params = r->params;
    memcpy(req->salt, r->salt, sizeof(req->salt));
    req->n_bias = r->n_bias;
    if (r->n_bias != 0)
        memcpy(req->bias, r->bias, r->n_bias * sizeof(*req->bias));
    req->n_stop_ids = r->n_stop_ids;
    if (r->n_stop_ids != 0)
        memcpy(req->stop_ids, r->stop_ids,
               r->n_stop_ids * sizeof(*req->stop_ids));
    req->n_prompt = r->n_prompt;
    req->n_open = r->params.n;
    req->lp_next = (r->params.flags & DI_GEN_PROMPT_LOGPROBS) != 0
                   ? r->params.prompt_logprobs_from : r->n_prompt;
    req->caches = s->conf.prefix_cache
                  && (r->params.flags & DI_GEN_NO_PREFIX) == 0;

    memcpy(leader->tokens, r->prompt, r->n_prompt * sizeof(int32_t));
    leader->n_tokens = r->n_prompt;
    if (req->caches) {
        di_kv_key_root(req->salt, &req->root);
        di_seq_keys(s, leader, r->n_prompt / s->model.block_tokens);
    }
}


static void
reject_grammar(di_sched_t *s, uint32_t owner, uint64_t id, int rc)
{
    if (rc == DI_ENOMEM)
        reject(s, owner, id, DI_REJECT_INTERNAL, 0, 0, "out of memory");
    else if (rc == DI_ELIMIT)
        reject(s, owner, id, DI_REJECT_QUEUE_FULL, s->n_queued,
               s->conf.queue_max, "memory of grammars");
    else
        reject(s, owner, id, DI_REJECT_INVALID, 0, 0, "grammar");
}


int
di_sched_submit(di_sched_t *s, uint32_t owner, uint64_t id,
                const di_gen_request_t *r)
{
    req_t  *req;
    req_t **bucket;
    int     rc;

    assert(owner < DI_SCHED_OWNERS_MAX);
    if (refuse(s, owner, id, r))
        return DI_OK;
    req = new_req(s, r);
    if (req == NULL) {
        reject(s, owner, id, DI_REJECT_INTERNAL, 0, 0, "out of memory");
        return DI_ENOMEM;
    }

    fill_req(s, req, owner, id, r);
    rc = di_grammar_attach(s, req, r);
    if (rc != DI_OK) {
        free(req);
        reject_grammar(s, owner, id, rc);
        return rc == DI_ENOMEM ? rc : DI_OK;
    }
    bucket = bucket_of(s, owner, id);
    req->hash_next = *bucket;
    *bucket = req;
    s->n_reqs++;
    req->seqs[0].state = SEQ_WAITING;
    di_seq_append(&s->owners[owner].queue, &req->seqs[0]);
    s->n_queued++;
    return DI_OK;
}


/* ---------------------------------------------------------------- sequences */

void
di_seq_keys(const di_sched_t *s, seq_t *seq, uint32_t n_blocks)
{
    const uint32_t     bt = s->model.block_tokens;
    const di_kv_key_t *parent;

    for ( ; seq->n_keys < n_blocks; seq->n_keys++) {
        parent = seq->n_keys == 0 ? &seq->req->root
                                  : &seq->keys[seq->n_keys - 1];
        di_kv_key_next(parent, seq->tokens + seq->n_keys * bt, bt,
                       &seq->keys[seq->n_keys]);
    }
}


void
di_seq_release(di_sched_t *s, seq_t *seq)
{
    const uint32_t bt = s->model.block_tokens;
    req_t         *req = seq->req;
    uint32_t       at = seq->n_computed / bt, tail = seq->n_computed % bt;

    /* The beginning of a block is of use without a state alone. */
    if (req->caches && tail != 0 && s->model.n_states == 0) {
        assert(seq->n_published == at);
        di_kv_publish_tail(s->kv, seq->blocks[at],
                           at == 0 ? 0 : seq->blocks[at - 1], req->salt,
                           seq->tokens + at * bt, tail);
    }
    while (seq->n_blocks > 0)
        di_kv_unref(s->kv, seq->blocks[--seq->n_blocks]);
    seq->n_computed = 0;
    seq->n_published = 0;
    di_draft_forget(s, seq);
    di_state_give(s, seq);
}


/* The sequence that computes a prompt is over before the others got their
 * first token: the next one takes its place. */
static void
pass_lead(di_sched_t *s, req_t *req)
{
    seq_t   *old = &req->seqs[req->leader], *seq;
    uint32_t i;

    for (i = 0; i < req->params.n; i++) {
        seq = &req->seqs[i];
        if (seq->state != SEQ_PARKED)
            continue;
        memcpy(seq->tokens, old->tokens, req->n_prompt * sizeof(int32_t));
        seq->n_tokens = req->n_prompt;
        seq->state = SEQ_WAITING;
        req->leader = i;
        di_seq_append(&s->resume, seq);
        return;
    }
}


void
di_seq_finish(di_sched_t *s, seq_t *seq, di_finish_t reason, int32_t stop_id)
{
    req_t     *req = seq->req;
    di_event_t e = { .id = req->id, .type = DI_EV_FINISH,
                     .choice = (uint16_t) seq->choice };

    e.u.finish.reason = reason;
    e.u.finish.completion_tokens = seq->n_tokens > req->n_prompt
                                   ? seq->n_tokens - seq->n_untold
                                     - req->n_prompt : 0;
    e.u.finish.stop_id = stop_id;

    di_seq_release(s, seq);
    di_seq_unlink(s, seq);
    seq->state = SEQ_OVER;
    if (!req->forked && seq->choice == req->leader)
        pass_lead(s, req);
    s->conf.sink(s->conf.arg, req->owner, &e, NULL);
    if (--req->n_open == 0)
        free_req(s, req);
}


void
di_sched_cancel(di_sched_t *s, uint32_t owner, uint64_t id, uint32_t choice)
{
    req_t   *req = find_req(s, owner, id);
    uint32_t i, left;

    if (req == NULL)
        return;

    /* From the last to the first, so that the lead is not passed on only to
     * end at once; the request goes with the last that is left. */
    for (i = req->params.n, left = req->n_open; i-- > 0 && left > 0; ) {
        if (req->seqs[i].state == SEQ_OVER
            || (choice != UINT32_MAX && choice != i))
            continue;
        left--;
        di_seq_finish(s, &req->seqs[i], DI_FINISH_CANCEL, -1);
        if (choice != UINT32_MAX)
            return;
    }
}


void
di_sched_pause(di_sched_t *s, uint32_t owner, uint64_t id, bool pause)
{
    req_t *req = find_req(s, owner, id);

    if (req != NULL)
        req->paused = pause;
}


void
di_sched_drop_owner(di_sched_t *s, uint32_t owner)
{
    req_t   *req, *next;
    uint32_t i, c;

    for (i = 0; i <= s->bucket_mask; i++) {
        for (req = s->buckets[i]; req != NULL; req = next) {
            next = req->hash_next;
            if (req->owner != owner)
                continue;
            for (c = 0; c < req->params.n; c++) {
                di_seq_release(s, &req->seqs[c]);
                di_seq_unlink(s, &req->seqs[c]);
            }
            free_req(s, req);
        }
    }
}


void
di_sched_drain(di_sched_t *s)
{
    s->draining = true;
}


/* ------------------------------------------------------------------- status */

void
di_sched_drafts(const di_sched_t *s, uint64_t *verified, uint64_t *accepted)
{
    *verified = s->verified;
    *accepted = s->accepted;
}


bool
di_sched_idle(const di_sched_t *s)
{
    return s->n_reqs == 0;
}


static uint64_t
rows_left(const seq_list_t *list)
{
    const seq_t *seq;
    uint64_t     n = 0;

    for (seq = list->head; seq != NULL; seq = seq->next) {
        if (seq->n_tokens - seq->n_computed > 1)
            n += seq->n_tokens - seq->n_computed;
    }
    return n;
}


void
di_sched_status(const di_sched_t *s, di_ipc_status_t *st)
{
    di_kv_gauges_t g;
    uint64_t       left;
    uint32_t       i;

    di_kv_gauges(s->kv, &g);
    left = rows_left(&s->running) + rows_left(&s->resume);
    for (i = 0; i < DI_SCHED_OWNERS_MAX && s->n_queued > 0; i++)
        left += rows_left(&s->owners[i].queue);

    st->steps = s->steps;
    st->prefill_tokens = s->prefill_tokens;
    st->decode_tokens = s->decode_tokens;
    st->cached_tokens = s->cached_tokens;
    st->requests = s->requests;
    st->preemptions = s->preemptions;
    st->jumped_tokens = s->jumped_tokens;
    st->grammar_bytes = di_grammar_bytes(s);
    st->draining = s->draining;
    st->running = s->running.n;
    st->waiting = s->n_queued + s->resume.n;
    st->waiting_tokens = left > UINT32_MAX ? UINT32_MAX : (uint32_t) left;
    st->queue_max = s->conf.queue_max;
    st->kv_blocks_total = g.total;
    st->kv_blocks_live = g.live;
    st->kv_blocks_cached = g.cached;
    st->kv_blocks_free = g.free;
    st->kv_block_tokens = s->model.block_tokens;
    st->max_model_len = s->model.max_model_len;
    if (s->recent_us > 0) {
        st->prefill_rate = (uint32_t) (s->recent_prefill * 1e6
                                       / s->recent_us);
        st->decode_rate = (uint32_t) (s->recent_decode * 1e6 / s->recent_us);
    } else {
        st->prefill_rate = st->decode_rate = 0;
    }
}
