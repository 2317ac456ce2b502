/*
 * sched_step.c - one step: choose rows, run the model.
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
 * What becomes of the rows' logits is in sched_deliver.c.
 */

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
    job->from = NULL;
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


/* Of a sequence's drafts, those that there is room for while each of `others`
 * gets a row; *refused: the grammar forbids the next one, for which there
 * would be room. */
static uint32_t
fitting_drafts(di_sched_t *s, seq_t *seq, uint32_t others,
               bool *refused)
{
    uint32_t n = di_draft_verify(s, seq), taken = 1 + others, allowed;

    *refused = false;
    if (n == 0 || s->n_rows + taken >= s->conf.max_rows
        || s->n_logits + taken >= s->model.max_logits
        || s->n_jobs + taken >= s->jobs_max)
        return 0;
    n = di_least(n, s->conf.max_rows - s->n_rows - taken);
    n = di_least(n, s->model.max_logits - s->n_logits - taken);
    n = di_least(n, s->jobs_max - s->n_jobs - taken);
    n = di_least(n, room_of(s, seq->req->owner) / slots_needed(s, seq) - 1);
    allowed = di_grammar_drafts(s, seq, n);
    *refused = allowed < n;
    return allowed;
}


/* Rows for a sequence while each of `others` gets one, with its logits. */
static uint32_t
rows_beside(const di_sched_t *s, const seq_t *seq, uint32_t others)
{
    uint32_t n = s->conf.max_rows - s->n_rows;

    if (seq->n_untold > 0)
        n = di_least(n, s->model.max_logits - s->n_logits);
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
        if (i < n)
            s->jobs[s->n_jobs - 1].from = di_draft_from(s, seq, i);
    }
    use_room(s, seq->req->owner, slots_needed(s, seq) * (1 + n));
    s->n_logits += 1 + n;
    s->n_rows += 1 + n;
    s->n_parts++;
}


static void
plan_decode(di_sched_t *s)
{
    uint32_t others = s->running.n, n_drafts, n_jobs;
    seq_t   *seq, *next;
    bool     refused;

    for (seq = s->running.head; seq != NULL; seq = next) {
        others--;
        if (decodes(seq) && may_run(s, seq)) {
            if (!extend(s, seq))
                return;          /* it was the last                         */
            n_drafts = fitting_drafts(s, seq, others, &refused);
            n_jobs = s->n_jobs;
            if (n_drafts > 0)
                plan_verify(s, seq, n_drafts);
            else
                (void) plan_rows(s, seq, rows_beside(s, seq, others));
            /* A refused draft is replaced without a row of its own. */
            if (refused && s->n_jobs > n_jobs)
                s->jobs[s->n_jobs - 1].from = di_draft_from(s, seq, n_drafts);
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
    limit = bounded ? di_least(known, seq->keep_from) : known;
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


/* Streams that decode, or will once their prompts are read: of those that wait
 * as many as may run, and as there are blocks for if they are like those that
 * run. */
static uint32_t
streams(const di_sched_t *s)
{
    uint64_t left = di_kv_available(s->kv), held = s->model.kv_blocks - left;
    uint64_t n = s->n_queued;

    if (n * held > left * s->running.n)
        n = left * s->running.n / held;
    n += s->running.n;
    return n < s->conf.max_seqs ? (uint32_t) n : s->conf.max_seqs;
}


/* Prompt rows for the step that decodes what is planned already. */
static uint32_t
prefill_budget(const di_sched_t *s)
{
    uint32_t budget = s->conf.max_rows - s->n_rows;

    if (s->n_parts > 0 && budget > s->conf.chunk)
        budget = s->conf.chunk;
    if (s->n_parts > 0 && s->conf.step_us > 0)
        budget = di_pace_rows(&s->pace, streams(s), s->conf.step_us,
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
        s->model.host_call(s->model.ctx, di_sample_part, s,
                           di_sample_parts(s));
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
            di_deliver_fault(s, s->parts[i].seq);
        else
            di_deliver(s, &s->parts[i], &s->jobs[job]);
        job += s->parts[i].n_jobs;
    }
    if (s->prefill_rows == 0)
        di_odds_step(&s->odds, s->n_rows, s->decode_tokens - decoded,
                     (double) (di_sched_now_us() - started_us));
    if (rc == DI_OK)
        rc = di_draft_make(s);
    count(s, started_us, s->decode_tokens - decoded);
    return rc;
}
