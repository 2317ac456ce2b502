/*
 * sched_step.c - one step: choose rows, run the model, deliver tokens.
 *
 * A step is planned in three passes: running sequences with one row left
 * (decode), running ones with more (prefill, a chunk at a time, oldest
 * first), then admissions while rows are left.  A waiting sequence looks into
 * the prefix cache when it is admitted, not when it comes, so it finds what
 * was computed while it waited.
 *
 * Blocks.  Admission takes the blocks of all known tokens at once, and leaves
 * one for each running sequence, which will soon want it.  Decode takes a
 * block when its last one is full; if none is left, a paused sequence or else
 * the one admitted last goes back to the queue.  It comes after all that are
 * in the plan already, so no planned row loses its blocks.
 *
 * Sampling runs behind the model as a host call, one job per row of logits,
 * on the pool's threads; this thread delivers when all are done.
 */

#include <assert.h>
#include <stdatomic.h>
#include <string.h>

#include "sched_impl.h"


/* ----------------------------------------------------------------- planning */

/* Completion slots of an event with log-probabilities. */
static uint32_t
logprob_slots(const di_gen_params_t *p)
{
    return 1 + (p->top_logprobs + 7) / 8;
}


/* Sequences that will draw from this one's next logits. */
static uint32_t
n_draws(const seq_t *seq)
{
    return seq->req->forked ? 1 : seq->req->n_open;
}


/* Slots of a position to report: of the prompt, or of a token that a grammar
 * forced. */
static uint32_t
report_slots(const seq_t *seq)
{
    return logprob_slots(&seq->req->params) + (seq->n_untold > 0);
}


/* Slots that a step of this sequence may take, positions to report aside. */
static uint32_t
slots_needed(const di_sched_t *s, const seq_t *seq)
{
    const di_gen_params_t *p = &seq->req->params;
    uint32_t               each = 2;     /* DI_EV_TOKENS, DI_EV_FINISH      */

    if ((p->flags & DI_GEN_LOGPROBS) != 0)
        each += logprob_slots(p);
    else if (seq->match != NULL && s->conf.jumps)
        each += DI_SCHED_JUMP_MAX / DI_EV_TOKENS_MAX;
    return n_draws(seq) * each + !seq->req->started;
}


static uint32_t
room_of(di_sched_t *s, uint32_t owner)
{
    owner_t *o = &s->owners[owner];

    if (o->room_turn != s->turn) {
        o->room_turn = s->turn;
        o->room = s->conf.room == NULL ? UINT32_MAX
                                       : s->conf.room(s->conf.arg, owner);
    }
    return o->room;
}


static void
use_room(di_sched_t *s, uint32_t owner, uint32_t slots)
{
    if (s->conf.room != NULL)
        s->owners[owner].room -= slots;
}


static bool
may_run(di_sched_t *s, const seq_t *seq)
{
    return !seq->req->paused && room_of(s, seq->req->owner)
                                >= slots_needed(s, seq);
}


static void
start(di_sched_t *s, seq_t *seq)
{
    req_t     *req = seq->req;
    di_event_t e = { .id = req->id, .type = DI_EV_STARTED };

    e.u.started.prompt_tokens = req->n_prompt;
    e.u.started.cached_tokens = seq->n_computed;
    e.u.started.queue_us = (uint32_t) (di_sched_now_us()
                                       - req->submitted_us);
    req->started = true;
    s->requests++;
    s->cached_tokens += seq->n_computed;
    use_room(s, req->owner, 1);
    s->conf.sink(s->conf.arg, req->owner, &e, NULL);
}


static void
add_job(di_sched_t *s, seq_t *seq, uint32_t row, uint32_t position)
{
    job_t *job = &s->jobs[s->n_jobs++];

    job->seq = seq;
    job->row = row;
    job->position = position;
    job->ahead = 0;
    job->mask = NULL;
    job->rc = DI_OK;
    s->parts[s->n_parts].n_jobs++;
}


/* Jobs that draw from the last row's logits; the leader's own comes last, so
 * that its blocks are there for the others to share. */
static void
add_draws(di_sched_t *s, seq_t *seq, uint32_t row)
{
    req_t   *req = seq->req;
    seq_t   *other;
    uint32_t i;

    for (i = 0; i < req->params.n && !req->forked; i++) {
        other = &req->seqs[i];
        if (other->state != SEQ_PARKED)
            continue;
        memcpy(other->tokens, seq->tokens, req->n_prompt * sizeof(int32_t));
        other->n_tokens = req->n_prompt;
        add_job(s, other, row, 0);
    }
    add_job(s, seq, row, 0);
}


/* Positions to report out of n rows from the first not computed; *first is the
 * first row that has one.  The last row's is to be drawn. */
static uint32_t
reported(const seq_t *seq, uint32_t n, uint32_t *first)
{
    const req_t *req = seq->req;
    uint32_t     end = seq->n_computed + n, next, last;

    *first = seq->n_computed;
    if (seq->n_untold > 0) {
        next = seq->n_tokens - seq->n_untold;
        last = seq->n_tokens;
    } else if (req->lp_next < req->n_prompt) {
        next = req->lp_next;
        last = req->n_prompt;
    } else {
        return 0;
    }
    if (*first < next - 1)
        *first = next - 1;
    if (end > last - 1)
        end = last - 1;
    return end > *first ? end - *first : 0;
}


/* Rows out of n whose log-probabilities fit the step's logits and jobs and
 * the room left to the owner. */
static uint32_t
cut_reported(const di_sched_t *s, const seq_t *seq, uint32_t n, uint32_t room)
{
    uint32_t first, n_lp = reported(seq, n, &first);
    uint32_t ends = seq->n_computed + n == seq->n_tokens, jobs;
    uint32_t fit = s->model.max_logits - s->n_logits - ends;

    if (n_lp == 0)
        return n;
    jobs = s->jobs_max - s->n_jobs - n_draws(seq);
    if (fit > jobs)
        fit = jobs;
    if (fit > room / report_slots(seq))
        fit = room / report_slots(seq);
    return n_lp <= fit ? n : first - seq->n_computed + fit;
}


/* Rows out of n that end where a state is to be kept: at the last whole block,
 * and at the last one that a prompt of this length can be gone on from when
 * its end goes through a whole model of windows. */
static uint32_t
cut_at_block(const di_sched_t *s, const seq_t *seq, uint32_t n)
{
    const uint32_t bt = s->model.block_tokens;
    const uint32_t ends[] = { seq->keep_from / bt * bt,
                              seq->n_tokens / bt * bt };

    if (s->n_kept == 0 || !seq->req->caches || seq->floor != 0)
        return n;
    for (int i = 0; i < 2; i++) {
        if (ends[i] > seq->n_computed && ends[i] < seq->n_computed + n)
            return ends[i] - seq->n_computed;
    }
    return n;
}


/* One row is left, or those of a jump. */
static bool
decodes(const seq_t *seq)
{
    uint32_t n = seq->n_tokens - seq->n_computed;

    return n == 1 || (seq->match != NULL && n <= 1 + DI_SCHED_JUMP_MAX
                      && seq->n_computed >= seq->req->n_prompt);
}


/* Plan up to n_max rows of a running sequence; returns how many. */
static uint32_t
plan_rows(di_sched_t *s, seq_t *seq, uint32_t n_max)
{
    req_t   *req = seq->req;
    uint32_t at = seq->n_computed, n = seq->n_tokens - at, first, n_lp, i;
    uint32_t slots = slots_needed(s, seq), room = room_of(s, req->owner);
    bool     ends;

    if (s->n_logits == s->model.max_logits || room < slots
        || s->jobs_max - s->n_jobs < n_draws(seq))
        return 0;
    n = cut_at_block(s, seq, n < n_max ? n : n_max);
    n = cut_reported(s, seq, n, room - slots);
    if (n == 0)
        return 0;

    ends = at + n == seq->n_tokens;
    n_lp = reported(seq, n, &first);
    s->model_seqs[s->n_parts] = (di_model_seq_t) {
        .tokens = seq->tokens + at, .blocks = seq->blocks, .n_rows = n,
        .pos = at, .n_logits = n_lp + ends, .slot = seq->slot,
        .keep_from = seq->keep_from, .floor = seq->floor,
        .keep_all = s->conf.replay == DI_REPLAY_MASK,
    };
    s->parts[s->n_parts] = (part_t) { .seq = seq, .n_rows = n };
    for (i = 0; i < n_lp; i++)
        add_job(s, seq, s->n_logits + i, first + 1 + i);
    if (ends)
        add_draws(s, seq, s->n_logits + n_lp);

    use_room(s, req->owner, slots + n_lp * report_slots(seq));
    if (!decodes(seq) || seq->n_tokens == req->n_prompt)
        s->prefill_rows += n;
    else
        s->decode_tokens += ends;
    s->n_logits += n_lp + ends;
    s->n_rows += n;
    s->n_parts++;
    return n;
}


static void
preempt(di_sched_t *s, seq_t *seq)
{
    di_seq_release(s, seq);
    di_seq_unlink(s, seq);
    seq->state = SEQ_WAITING;
    di_seq_prepend(&s->resume, seq);
    s->preemptions++;
}


static seq_t *
last_paused(const di_sched_t *s)
{
    seq_t *seq = s->running.tail;

    while (seq != NULL && !seq->req->paused)
        seq = seq->prev;
    return seq;
}


/* Have a block for the row to decode.  False if the sequence had to go back
 * to the queue itself. */
static bool
extend(di_sched_t *s, seq_t *seq)
{
    seq_t   *victim;
    uint32_t block;

    while (seq->n_blocks * s->model.block_tokens < seq->n_tokens) {
        block = di_kv_alloc(s->kv);
        if (block != 0) {
            seq->blocks[seq->n_blocks++] = block;
            continue;
        }
        victim = last_paused(s);
        if (victim == NULL)
            victim = s->running.tail;
        preempt(s, victim);
        if (victim == seq)
            return false;
    }
    return true;
}


static uint32_t
least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}


/* Of a sequence's drafts, those that there is room for while each of `others`
 * gets a row. */
static uint32_t
fitting_drafts(di_sched_t *s, const seq_t *seq, uint32_t others)
{
    uint32_t n = di_draft_verify(s, seq), taken = 1 + others;

    if (n == 0 || s->n_rows + taken >= s->conf.max_rows
        || s->n_logits + taken >= s->model.max_logits
        || s->n_jobs + taken >= s->jobs_max)
        return 0;
    n = least(n, s->conf.max_rows - s->n_rows - taken);
    n = least(n, s->model.max_logits - s->n_logits - taken);
    n = least(n, s->jobs_max - s->n_jobs - taken);
    n = least(n, room_of(s, seq->req->owner) / slots_needed(s, seq) - 1);
    return di_grammar_drafts(s, seq, n);
}


/* Rows for a sequence while each of `others` gets one, with its logits. */
static uint32_t
rows_beside(const di_sched_t *s, const seq_t *seq, uint32_t others)
{
    uint32_t n = s->conf.max_rows - s->n_rows;

    if (seq->n_untold > 0)
        n = least(n, s->model.max_logits - s->n_logits);
    return n > others ? n - others : 1;
}


/* Plan the row to decode with n drafts behind it. */
static void
plan_verify(di_sched_t *s, seq_t *seq, uint32_t n)
{
    uint32_t i;

    s->model_seqs[s->n_parts] = (di_model_seq_t) {
        .tokens = seq->tokens + seq->n_computed, .blocks = seq->blocks,
        .n_rows = 1 + n, .pos = seq->n_computed, .n_logits = 1 + n,
        .slot = seq->slot,
    };
    s->parts[s->n_parts] = (part_t) { .seq = seq, .n_rows = 1 + n,
                                      .n_drafts = n };
    for (i = 0; i <= n; i++) {
        add_job(s, seq, s->n_logits + i, 0);
        s->jobs[s->n_jobs - 1].ahead = i;
    }
    use_room(s, seq->req->owner, slots_needed(s, seq) * (1 + n));
    s->n_logits += 1 + n;
    s->n_rows += 1 + n;
    s->n_parts++;
}


static void
plan_decode(di_sched_t *s)
{
    uint32_t others = s->running.n, n_drafts;
    seq_t   *seq, *next;

    for (seq = s->running.head; seq != NULL; seq = next) {
        others--;
        if (decodes(seq) && may_run(s, seq)) {
            if (!extend(s, seq))
                return;          /* it was the last                         */
            n_drafts = fitting_drafts(s, seq, others);
            if (n_drafts > 0)
                plan_verify(s, seq, n_drafts);
            else
                (void) plan_rows(s, seq, rows_beside(s, seq, others));
        }
        next = seq->next;        /* read here: extend() preempts behind it  */
    }
}


static uint32_t
plan_prefill(di_sched_t *s, uint32_t budget)
{
    seq_t *seq;

    for (seq = s->running.head; seq != NULL && budget > 0; seq = seq->next) {
        if (!decodes(seq) && may_run(s, seq))
            budget -= plan_rows(s, seq, budget);
    }
    return budget;
}


/* ---------------------------------------------------------------- admission */

/* Look the known tokens up, as far as they can be gone on with: the last one
 * is always computed, since its logits are wanted; so are those before the
 * positions to report, and what goes through a whole model of
 * windows. */
static void
look_up(di_sched_t *s, seq_t *seq, di_kv_match_t *m)
{
    const bool     bounded = s->conf.replay != DI_REPLAY_OFF;
    const uint32_t keep = s->conf.replay_keep;
    req_t         *req = seq->req;
    uint32_t       known = seq->n_tokens - 1, limit, n;

    seq->keep_from = bounded && seq->n_tokens > keep ? seq->n_tokens - keep
                                                     : 0;
    seq->floor = 0;
    if (req->lp_next < req->n_prompt && known > req->lp_next - 1)
        known = req->lp_next - 1;
    if (seq->n_untold > 0 && known > seq->n_tokens - seq->n_untold - 1)
        known = seq->n_tokens - seq->n_untold - 1;
    limit = bounded ? least(known, seq->keep_from) : known;
    if (!req->caches)
        return;

    di_seq_keys(s, seq, seq->n_tokens / s->model.block_tokens);
    di_kv_match(s->kv, req->salt, seq->tokens, known, seq->keys, seq->blocks,
                m);
    n = di_state_restore(s, seq, m->n_blocks, limit);
    if (m->tail_block != 0 && s->model.n_states > 0) {
        di_kv_unref(s->kv, m->tail_block);
        m->tail_block = 0;
    }
    while (m->n_blocks > n)
        di_kv_unref(s->kv, seq->blocks[--m->n_blocks]);
}


/* Take blocks for all known tokens, as many as can be from the cache, and a
 * slot. */
static bool
take_blocks(di_sched_t *s, seq_t *seq)
{
    const uint32_t bt = s->model.block_tokens;
    di_kv_match_t  m = { 0 };
    uint32_t       need, reserve = s->running.n;

    di_state_take(s, seq);
    look_up(s, seq, &m);
    seq->n_blocks = m.n_blocks;
    seq->n_published = m.n_blocks;
    seq->n_computed = m.n_blocks * bt;

    need = (seq->n_tokens + bt - 1) / bt - m.n_blocks;
    if (m.tail_block != 0 && need + reserve > di_kv_available(s->kv)) {
        di_kv_unref(s->kv, m.tail_block);
        m.tail_block = 0;
    }
    if (need + reserve > di_kv_available(s->kv)) {
        di_seq_release(s, seq);
        return false;
    }

    for ( ; need > 0; need--)
        seq->blocks[seq->n_blocks++] = di_kv_alloc(s->kv);
    if (m.tail_block != 0) {
        s->model.kv_copy(s->model.ctx, seq->blocks[m.n_blocks], m.tail_block,
                         m.tail_tokens);
        di_kv_unref(s->kv, m.tail_block);
        seq->n_computed += m.tail_tokens;
    }
    return true;
}


/* Move a waiting sequence to the running ones, at the cost of paused ones if
 * need be. */
static bool
admit(di_sched_t *s, seq_t *seq)
{
    seq_t *paused;

    while (s->running.n >= s->conf.max_seqs || !take_blocks(s, seq)) {
        paused = last_paused(s);
        if (paused == NULL)
            return false;
        preempt(s, paused);
    }
    di_seq_unlink(s, seq);
    seq->state = SEQ_RUNNING;
    di_seq_append(&s->running, seq);
    if (!seq->req->started)
        start(s, seq);
    return true;
}


static seq_t *
first_able(di_sched_t *s, const seq_list_t *list)
{
    seq_t *seq = list->head;

    while (seq != NULL && !may_run(s, seq))
        seq = seq->next;
    return seq;
}


/* Whose turn it is: those that ran before, then the owners' queues by
 * turns. */
static seq_t *
next_waiting(di_sched_t *s)
{
    seq_t   *seq = first_able(s, &s->resume);
    uint32_t i, owner;

    for (i = 0; seq == NULL && s->n_queued > 0 && i < DI_SCHED_OWNERS_MAX;
         i++)
    {
        owner = (s->next_owner + i) % DI_SCHED_OWNERS_MAX;
        seq = first_able(s, &s->owners[owner].queue);
    }
    return seq;
}


static void
plan_admissions(di_sched_t *s, uint32_t budget)
{
    seq_t *seq;
    bool   queued;

    while (budget > 0) {
        seq = next_waiting(s);
        if (seq == NULL)
            return;
        queued = seq->list != &s->resume;
        s->full = !admit(s, seq);
        if (s->full)
            return;
        if (queued)
            s->next_owner = (seq->req->owner + 1) % DI_SCHED_OWNERS_MAX;
        budget -= plan_rows(s, seq, budget);
    }
}


/* ----------------------------------------------------------------- sampling */

static void
run_job(const di_sched_t *s, di_sampler_t *sampler, job_t *job)
{
    const seq_t  *seq = job->seq;
    const req_t  *req = seq->req;
    const float  *row = s->model.logits(s->model.ctx)
                        + (size_t) job->row * s->model.vocab;
    di_sample_in_t in = {
        .params = &req->params, .bias = req->bias, .tokens = seq->tokens,
        .end_ids = s->end_ids, .stop_ids = req->stop_ids,
        .n_bias = req->n_bias, .n_prompt = req->n_prompt,
        .n_tokens = seq->n_tokens + job->ahead,
        .n_end_ids = (uint32_t) s->conf.n_end_ids,
        .n_stop_ids = req->n_stop_ids,
        .seed = req->params.seed + seq->choice,
        .mask = job->mask, .n_mask_words = s->grammars.words,
    };

    if (job->rc != DI_OK)
        return;

    if (job->position != 0)
        job->rc = di_sampler_logprobs(sampler, row,
                                      seq->tokens[job->position],
                                      req->params.top_logprobs, &job->out);
    else
        job->rc = di_sampler_row(sampler, row, &in, &job->out);
}


static size_t
n_sampling_parts(const di_sched_t *s)
{
    return s->n_jobs < DI_SCHED_PARTS ? s->n_jobs : DI_SCHED_PARTS;
}


/* A part takes any free sampler, so that few threads use few, and find their
 * scratch in their own caches.  There are as many as parts. */
static void
sample_part(void *arg, size_t part)
{
    di_sched_t *s = arg;
    uint32_t    busy, bit, i;

    busy = atomic_load_explicit(&s->samplers_busy, memory_order_relaxed);
    do {
        bit = ~busy & (busy + 1);
        /* Acquire: the scratch as the last user left it. */
    } while (!atomic_compare_exchange_weak_explicit(
                 &s->samplers_busy, &busy, busy | bit, memory_order_acquire,
                 memory_order_relaxed));

    for (i = (uint32_t) part; i < s->n_jobs;
         i += (uint32_t) n_sampling_parts(s))
        run_job(s, s->samplers[__builtin_ctz(bit)], &s->jobs[i]);

    (void) atomic_fetch_and_explicit(&s->samplers_busy, ~bit,
                                     memory_order_release);
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


static bool
has_id(const int32_t *ids, size_t n, int32_t id)
{
    size_t i;

    for (i = 0; i < n; i++) {
        if (ids[i] == id)
            return true;
    }
    return false;
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
        part = least(n, DI_EV_TOKENS_MAX);
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
        && has_id(s->end_ids, s->conf.n_end_ids, token))
        di_seq_finish(s, seq, DI_FINISH_STOP, token);
    else if (has_id(req->stop_ids, req->n_stop_ids, token))
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
static void
fail(di_sched_t *s, seq_t *seq)
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
 * one's as long as the draft between them is what was drawn, and forces no
 * others. */
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
        if (!accept_token(s, &jobs[i]) || seq->tokens[at] != draft
            || seq->n_tokens > at + 1)
            return;
        s->accepted++;
    }
}


static void
deliver(di_sched_t *s, const part_t *part, job_t *jobs)
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
            fail(s, seq);
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


/* --------------------------------------------------------------------- step */

/* How long the oldest queued request has waited for rows; 0 if it waits for
 * something else. */
static uint64_t
waited_us(const di_sched_t *s)
{
    uint64_t     now = di_sched_now_us(), oldest = now;
    const seq_t *seq;
    uint32_t     i;

    if (s->n_queued == 0 || s->full || s->running.n == s->conf.max_seqs)
        return 0;
    for (i = 0; i < DI_SCHED_OWNERS_MAX; i++) {
        seq = s->owners[i].queue.head;
        if (seq != NULL && seq->req->submitted_us < oldest)
            oldest = seq->req->submitted_us;
    }
    return now - oldest;
}


/* Prompt rows for the step that decodes what is planned already. */
static uint32_t
prefill_budget(const di_sched_t *s)
{
    uint32_t budget = s->conf.max_rows - s->n_rows;

    if (s->n_parts > 0 && budget > s->conf.chunk)
        budget = s->conf.chunk;
    if (s->n_parts > 0 && s->conf.step_us > 0)
        budget = di_pace_rows(&s->pace, s->n_parts, s->conf.step_us,
                              (double) waited_us(s), budget);
    return budget;
}


static int
run_model(di_sched_t *s)
{
    const float *logits;
    int          rc;

    rc = s->model.step(s->model.ctx, s->model_seqs, s->n_parts);
    if (rc != DI_OK)
        return rc;
    di_grammar_masks(s);
    if (s->n_jobs > 0)
        s->model.host_call(s->model.ctx, sample_part, s, n_sampling_parts(s));
    return s->model.wait(s->model.ctx, &logits);
}


static void
count(di_sched_t *s, uint64_t started_us, uint64_t decoded)
{
    const double keep = 31.0 / 32;
    const double us = (double) (di_sched_now_us() - started_us);

    di_pace_note(&s->pace, s->n_rows > s->prefill_rows, s->prefill_rows, us);
    s->prefill_tokens += s->prefill_rows;
    s->recent_us = s->recent_us * keep + us;
    s->recent_prefill = s->recent_prefill * keep + (double) s->prefill_rows;
    s->recent_decode = s->recent_decode * keep + (double) decoded;
}


int
di_sched_step(di_sched_t *s)
{
    uint64_t started_us, decoded = s->decode_tokens;
    uint32_t i, job = 0;
    int      rc;

    if (s->n_reqs == 0)
        return DI_EAGAIN;

    s->turn++;
    s->n_parts = s->n_jobs = s->n_rows = s->n_logits = s->prefill_rows = 0;
    plan_decode(s);
    plan_admissions(s, plan_prefill(s, prefill_budget(s)));
    if (s->n_parts == 0)
        return DI_EAGAIN;

    s->steps++;
    started_us = di_sched_now_us();
    rc = run_model(s);
    for (i = 0; i < s->n_parts; i++) {
        if (rc != DI_OK)
            fail(s, s->parts[i].seq);
        else
            deliver(s, &s->parts[i], &s->jobs[job]);
        job += s->parts[i].n_jobs;
    }
    if (rc == DI_OK)
        rc = di_draft_make(s);
    count(s, started_us, s->decode_tokens - decoded);
    return rc;
}
