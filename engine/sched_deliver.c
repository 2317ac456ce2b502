/*
 * sched_deliver.c - behind the model: draw tokens, take them, tell them.
 *
 * Sampling runs behind the model as a host call, one job per row of logits,
 * on the pool's threads.  When all are done, the scheduler's thread takes the
 * tokens: a sequence's own, or as many behind it as agree with its drafts, and
 * those that a grammar forces; and sends what its owner is to know.
 */

#include <stdatomic.h>
#include <string.h>

#include "sched_impl.h"


/* ----------------------------------------------------------------- sampling */

di_sample_in_t
di_sample_in(const di_sched_t *s, const seq_t *seq, uint32_t ahead)
{
    const req_t *req = seq->req;

    return (di_sample_in_t) {
        .params = &req->params, .bias = req->bias, .tokens = seq->tokens,
        .end_ids = s->end_ids, .stop_ids = req->stop_ids,
        .n_bias = req->n_bias, .n_prompt = req->n_prompt,
        .n_tokens = seq->n_tokens + ahead,
        .n_end_ids = (uint32_t) s->conf.n_end_ids,
        .n_stop_ids = req->n_stop_ids,
        .seed = req->params.seed + seq->choice,
    };
}


static void
run_job(const di_sched_t *s, di_sampler_t *sampler, job_t *job)
{
    const seq_t   *seq = job->seq;
    const float   *row = s->model.logits(s->model.ctx)
                         + (size_t) job->row * s->model.vocab;
    di_sample_in_t in = di_sample_in(s, seq, job->ahead);

    if (job->rc != DI_OK)
        return;

    if (job->position != 0) {
        job->rc = di_sampler_logprobs(sampler, row,
                                      seq->tokens[job->position],
                                      in.params->top_logprobs, &job->out);
        return;
    }
    in.mask = job->mask;
    in.n_mask_words = s->grammars.words;
    in.from = job->from;
    if (in.from != NULL)
        in.draft = seq->tokens[in.n_tokens];
    job->rc = di_sampler_row(sampler, row, &in, &job->out);
}


size_t
di_sample_parts(const di_sched_t *s)
{
    return s->n_jobs < DI_SCHED_PARTS ? s->n_jobs : DI_SCHED_PARTS;
}


/* Any free one, so that few threads use few, and find their scratch in their
 * own caches.  There are as many as parts, and as picks at a time. */
di_sampler_t *
di_sampler_take(di_sched_t *s, uint32_t *number)
{
    uint32_t busy, bit;

    busy = atomic_load_explicit(&s->samplers_busy, memory_order_relaxed);
    do {
        bit = ~busy & (busy + 1);
        /* Acquire: the scratch as the last user left it. */
    } while (!atomic_compare_exchange_weak_explicit(
                 &s->samplers_busy, &busy, busy | bit, memory_order_acquire,
                 memory_order_relaxed));
    *number = (uint32_t) __builtin_ctz(bit);
    return s->samplers[*number];
}


void
di_sampler_give(di_sched_t *s, uint32_t number)
{
    (void) atomic_fetch_and_explicit(&s->samplers_busy, ~(1u << number),
                                     memory_order_release);
}


void
di_sample_part(void *arg, size_t part)
{
    di_sched_t   *s = arg;
    uint32_t      number, i;
    di_sampler_t *sampler = di_sampler_take(s, &number);

    for (i = (uint32_t) part; i < s->n_jobs;
         i += (uint32_t) di_sample_parts(s))
        run_job(s, sampler, &s->jobs[i]);
    di_sampler_give(s, number);
}


/* ----------------------------------------------------------------- delivery */

static void
send_logprob(di_sched_t *s, const job_t *job, di_event_type_t type,
             uint32_t position)
{
    const req_t *req = job->seq->req;
    di_event_t   e = { .id = req->id, .type = (uint16_t) type,
                       .choice = (uint16_t) job->seq->choice,
                       .n_top = (uint16_t) job->out.n_top };

    e.u.logprob.token = job->out.token;
    e.u.logprob.logprob = job->out.logprob;
    e.u.logprob.position = position;
    s->conf.sink(s->conf.arg, req->owner, &e, job->out.top);
}


static void
note_fault(const di_sched_t *s, const job_t *job)
{
    const req_t *req = job->seq->req;
    const char  *why = "no memory for a grammar's masks";

    if (s->conf.note == NULL)
        return;
    if (job->rc == DI_OK)
        why = "the text can't be followed in its grammar any more";
    else if (job->rc == DI_ELIMIT)
        why = "its grammar's masks take too long to find";
    else if (job->rc == DI_EFORMAT && job->mask != NULL)
        why = "nothing that its grammar allows can be drawn";
    else if (job->rc == DI_EFORMAT)
        why = "nothing can be drawn from the logits";
    s->conf.note(s->conf.arg, req->owner, req->id, why);
}


static void
send_tokens(di_sched_t *s, const seq_t *seq, const int32_t *tokens, uint32_t n)
{
    di_event_t e = { .id = seq->req->id, .type = DI_EV_TOKENS,
                     .choice = (uint16_t) seq->choice };
    uint32_t   part;

    for ( ; n > 0; n -= part, tokens += part) {
        part = di_least(n, DI_EV_TOKENS_MAX);
        e.n_tokens = (uint16_t) part;
        memcpy(e.u.tokens, tokens, part * sizeof(*tokens));
        s->conf.sink(s->conf.arg, seq->req->owner, &e, NULL);
    }
}


/* Take the tokens that the grammar leaves no choice about. */
static void
jump(di_sched_t *s, seq_t *seq)
{
    uint32_t n = di_forced_jump(s, seq);

    s->decode_tokens += n;
    if ((seq->req->params.flags & DI_GEN_LOGPROBS) != 0)
        seq->n_untold = n;
    else
        send_tokens(s, seq, seq->tokens + seq->n_tokens - n, n);
}


/* Follow the token that was drawn in the sequence's grammar, or the one that
 * takes its place. */
static bool
follow_token(di_sched_t *s, job_t *job)
{
    bool ok = job->rc == DI_OK
              && di_grammar_accept(s, job->seq, job->out.token) == DI_OK;

    if (!ok || !di_forced_steer(s, job))
        return ok && job->rc == DI_OK;
    job->from = NULL;            /* its draft is no matter any more         */
    run_job(s, s->samplers[0], job);
    return job->rc == DI_OK
           && di_grammar_accept(s, job->seq, job->out.token) == DI_OK;
}


/* Add the token that was drawn, and those that it forces.  False if that ended
 * the sequence. */
static bool
accept_token(di_sched_t *s, job_t *job)
{
    seq_t  *seq = job->seq;
    req_t  *req = seq->req;
    int32_t token;

    if (!follow_token(s, job)) {
        note_fault(s, job);
        di_seq_finish(s, seq, DI_FINISH_ERROR, -1);
        return false;
    }

    token = job->out.token;
    seq->tokens[seq->n_tokens++] = token;
    if ((req->params.flags & DI_GEN_LOGPROBS) != 0)
        send_logprob(s, job, DI_EV_LOGPROB,
                     seq->n_tokens - 1 - req->n_prompt);
    send_tokens(s, seq, &token, 1);

    if (((req->params.flags & DI_GEN_IGNORE_EOS) == 0 || seq->match != NULL)
        && di_has_id(s->end_ids, s->conf.n_end_ids, token))
        di_seq_finish(s, seq, DI_FINISH_STOP, token);
    else if (di_has_id(req->stop_ids, req->n_stop_ids, token))
        di_seq_finish(s, seq, DI_FINISH_STOP_ID, token);
    else if (seq->n_tokens == req->total_max)
        di_seq_finish(s, seq, DI_FINISH_LENGTH, -1);
    else {
        jump(s, seq);
        return true;
    }
    return false;
}


/* Let the cache know the blocks that are full now. */
static void
publish(di_sched_t *s, seq_t *seq)
{
    const uint32_t bt = s->model.block_tokens;
    req_t         *req = seq->req;
    uint32_t       at, full = seq->n_computed / bt;

    if (!req->caches || seq->n_published == full || seq->floor != 0)
        return;
    di_seq_keys(s, seq, full);
    for (at = seq->n_published; at < full; at++) {
        seq->blocks[at] = di_kv_publish(s->kv, seq->blocks[at],
                                        at == 0 ? 0 : seq->blocks[at - 1],
                                        req->salt, &seq->keys[at],
                                        seq->tokens + at * bt);
    }
    seq->n_published = full;
    if (seq->n_computed == full * bt)
        di_state_keep(s, seq);
}


/* Share the leader's computed prompt with a choice that has its first token.
 * Whole blocks are shared; the last one, if it is not full, is copied.
 * Without a free sequence or block the choice waits and replays. */
static void
fork_from(di_sched_t *s, const seq_t *leader, seq_t *seq)
{
    const uint32_t bt = s->model.block_tokens;
    uint32_t       n_prompt = seq->req->n_prompt, full = n_prompt / bt, i;
    uint32_t       own = 0;

    if (s->running.n < s->conf.max_seqs && n_prompt % bt != 0)
        own = di_kv_alloc(s->kv);
    if (s->running.n >= s->conf.max_seqs || (n_prompt % bt != 0 && own == 0)) {
        seq->state = SEQ_WAITING;
        di_seq_append(&s->resume, seq);
        return;
    }

    for (i = 0; i < full; i++) {
        seq->blocks[i] = leader->blocks[i];
        di_kv_ref(s->kv, seq->blocks[i]);
    }
    if (own != 0) {
        seq->blocks[full] = own;
        s->model.kv_copy(s->model.ctx, own, leader->blocks[full],
                         n_prompt % bt);
    }
    di_state_take(s, seq);
    if (seq->slot != 0)
        s->model.state_copy(s->model.ctx, seq->slot, leader->slot);
    seq->keep_from = leader->keep_from;
    seq->floor = leader->floor;
    memcpy(seq->keys, leader->keys, leader->n_keys * sizeof(di_kv_key_t));
    seq->n_keys = leader->n_keys;
    seq->n_blocks = full + (own != 0);
    seq->n_published = leader->n_published;
    seq->n_computed = n_prompt;
    seq->state = SEQ_RUNNING;
    di_seq_append(&s->running, seq);
}


/* A fault: end the sequence, and those that were to get their first token
 * from it. */
void
di_deliver_fault(di_sched_t *s, seq_t *seq)
{
    req_t   *req = seq->req;
    uint32_t i;

    for (i = req->params.n; i-- > 0 && !req->forked; ) {
        if (req->seqs[i].state == SEQ_PARKED)
            di_seq_finish(s, &req->seqs[i], DI_FINISH_ERROR, -1);
    }
    di_seq_finish(s, seq, DI_FINISH_ERROR, -1);
}


/* Take the tokens that rows with drafts gave: the first row's, and the next
 * one's as long as the draft between them is what was drawn or stayed, and
 * forces no others. */
static void
deliver_verified(di_sched_t *s, const part_t *part, job_t *jobs)
{
    seq_t   *seq = part->seq;
    uint32_t i, at;
    int32_t  draft;

    s->verified += part->n_drafts;
    for (i = 0; i <= part->n_drafts; i++) {
        at = seq->n_tokens;
        draft = i < part->n_drafts ? seq->tokens[at] : -1;
        seq->n_computed++;
        s->decode_tokens++;
        publish(s, seq);
        if (!accept_token(s, &jobs[i]))
            return;
        if (seq->tokens[at] != draft || seq->n_tokens > at + 1)
            break;
        s->accepted++;
    }
    di_draft_note(s, seq, part->n_drafts, i);
}


void
di_deliver(di_sched_t *s, const part_t *part, job_t *jobs)
{
    seq_t *seq = part->seq;
    req_t *req = seq->req;
    job_t *job, *end = jobs + part->n_jobs;

    if (part->n_drafts > 0) {
        deliver_verified(s, part, jobs);
        return;
    }
    seq->n_computed += part->n_rows;
    publish(s, seq);

    for (job = jobs; job < end && job->position != 0; job++) {
        if (job->rc != DI_OK) {
            di_deliver_fault(s, seq);
            return;
        }
        if (job->position < req->n_prompt) {
            send_logprob(s, job, DI_EV_PROMPT_LOGPROB, job->position);
            req->lp_next = job->position + 1;
        } else {
            send_logprob(s, job, DI_EV_LOGPROB,
                         job->position - req->n_prompt);
            send_tokens(s, seq, &seq->tokens[job->position], 1);
            seq->n_untold--;
        }
    }
    if (job == end)
        return;

    req->forked = true;
    for ( ; job < end; job++) {
        if (accept_token(s, job) && job->seq != seq)
            fork_from(s, seq, job->seq);
    }
}
