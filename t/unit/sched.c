/*
 * sched.c - the scheduler over a model that is slow and suspicious.
 *
 * The fake model keeps one number per KV slot, made from the token, its
 * position and all numbers before it as read through the block table, and
 * makes logits from all of them again: a wrong, stale or foreign block, a
 * copy of too few tokens or a row at a wrong position changes the answer.
 * In some runs sequences have a state too: the last number, in the slot that
 * the step names; a slot that is not the sequence's own or was left behind is
 * seen.  It aborts when a step writes to a slot that holds another sequence's
 * number while that sequence may still read it.
 *
 * Each request's whole answer is computed beforehand, alone, without blocks
 * or cache; the events of every workload must add up to it, or to a
 * beginning of it if the request was cancelled.
 */

#include <stdlib.h>
#include <time.h>

#include "engine/di_sampler.h"
#include "engine/di_sched.h"
#include "check.h"
#include "nomem.h"
#include "rnd.h"

#define BT         DI_KV_BLOCK_TOKENS
#define VOCAB      50
#define LEN        120                  /* max_model_len                    */
#define BLOCKS_MAX 400
#define OWNERS     4
#define REQS       64                   /* in flight                        */
#define END_ID     3
#define MANY       (1 << 30)
#define STATES_MAX 16
#define DRAFTS     5

typedef struct {                        /* a sequence's state               */
    uint64_t all[8];                    /* all numbers before a position,   */
    uint32_t pos;                       /* as one; of the last positions    */
} fake_state_t;

typedef struct {                        /* the fake model                   */
    uint64_t slots[BLOCKS_MAX + 1][BT];
    float    logits[256 * VOCAB];
    fake_state_t states[STATES_MAX + 1];
    uint32_t n_states;
    uint32_t kv_blocks;
    int      fault;                     /* 1: the next step, 2: its wait    */
    int      nan;                       /* the next step's logits are NaN   */
    uint32_t rows, rows_max, n_logits, seqs;
    uint32_t row_us;                    /* a row takes so long              */
} fake_t;

typedef struct {                        /* one choice: expected and seen    */
    int32_t  tokens[LEN];
    float    logprobs[LEN];
    uint32_t n, seen, seen_lp;
    uint32_t reason, finished;
    int32_t  stop_id;
} choice_t;

typedef struct {
    int              used, started, cancelled, paused, submitting;
    uint32_t         owner;
    uint64_t         id;
    di_gen_request_t r;
    int32_t          prompt[LEN];
    int32_t          stop[2];
    di_logit_bias_t  bias[2];
    float            prompt_lp[LEN];
    uint32_t         lp_seen;           /* next position                    */
    uint32_t         left;              /* choices not finished             */
    choice_t         choices[4];
} req_t;

typedef struct {
    fake_t       fake;
    di_sched_t  *sched;
    req_t        reqs[REQS];
    uint32_t     room[OWNERS];
    int          limited;               /* rooms are limited and checked    */
    int          in_step;
    uint64_t     next_id;
    uint64_t     n_finished, n_cached, n_shared;
    uint32_t     last_reject, reject_a, reject_b;
    char         reject_text[28];
    di_sampler_t *sampler;
} world_t;

static world_t  w;
static int32_t  end_ids[] = { END_ID };
static uint32_t spare_states;           /* 0: sequences have no state       */
static uint32_t n_drafts;               /* 0: nothing drafts                */


/* --------------------------------------------------------------- fake model */

static void
logits_of(uint64_t h, float *x)
{
    int i;

    for (i = 0; i < VOCAB; i++) {
        h = mix(h, (uint64_t) i + 1);
        x[i] = (float) (h >> 44) / (float) (1 << 20) * 12.0f - 6.0f;
    }
}


/* The state must be what the sequence left, perhaps with some tokens that are
 * taken back; `all` is the number of those before the first row. */
static void
use_state(fake_t *f, const di_model_seq_t *q, uint64_t all)
{
    fake_state_t *state = &f->states[q->slot];

    CHECK((q->slot == 0) == (f->n_states == 0) && q->slot <= f->n_states);
    if (f->n_states == 0)
        return;
    if (q->pos > 0) {
        CHECK(q->pos <= state->pos && state->pos - q->pos <= DRAFTS);
        CHECK(state->all[q->pos % 8] == all);
    }
    state->pos = q->pos + q->n_rows;
}


static void
spin(uint32_t us)
{
    struct timespec from, now;

    CHECK_EQ_INT(clock_gettime(CLOCK_MONOTONIC, &from), 0);
    do
        CHECK_EQ_INT(clock_gettime(CLOCK_MONOTONIC, &now), 0);
    while ((now.tv_sec - from.tv_sec) * 1000000
           + (now.tv_nsec - from.tv_nsec) / 1000 < us);
}


static int
fake_step(void *ctx, const di_model_seq_t *seqs, size_t n_seqs)
{
    fake_t   *f = ctx;
    size_t    i;
    uint32_t  r, q, pos, row = 0;
    uint64_t  h, all, *slot;

    f->rows = 0;
    f->seqs = (uint32_t) n_seqs;
    if (f->fault == 1) {
        f->fault = 0;
        return DI_EIO;
    }
    for (i = 0; i < n_seqs; i++) {
        CHECK(seqs[i].n_rows > 0 && seqs[i].n_logits <= seqs[i].n_rows);
        CHECK(seqs[i].pos + seqs[i].n_rows <= LEN);
        f->rows += seqs[i].n_rows;
        for (r = 0; r < seqs[i].n_rows; r++) {
            pos = seqs[i].pos + r;
            for (q = 0, h = 7; q < pos; q++)
                h = mix(h, f->slots[seqs[i].blocks[q / BT]][q % BT]);
            if (r == 0)
                use_state(f, &seqs[i], h);
            all = h;
            slot = &f->slots[seqs[i].blocks[pos / BT]][pos % BT];
            h = mix(mix(h, (uint64_t) seqs[i].tokens[r]), pos);
            *slot = h;
            f->states[seqs[i].slot].all[(pos + 1) % 8] = mix(all, h);
            if (r >= seqs[i].n_rows - seqs[i].n_logits) {
                CHECK(row < 256);
                logits_of(mix(h, 99), f->logits + VOCAB * row++);
            }
        }
    }
    if (f->nan) {
        f->nan = 0;
        for (r = 0; r < row * VOCAB; r++)
            f->logits[r] = (float) (0.0 / 0.0 * (r + 1));
    }
    CHECK(f->rows <= f->rows_max);
    spin(f->rows * f->row_us);
    f->n_logits = row;
    return DI_OK;
}


static void
fake_host_call(void *ctx, void (*fn)(void *, size_t), void *arg, size_t n)
{
    (void) ctx;
    while (n-- > 0)
        fn(arg, n);
}


static int
fake_wait(void *ctx, const float **logits)
{
    fake_t *f = ctx;

    *logits = f->logits;
    if (f->fault == 2) {
        f->fault = 0;
        return DI_EIO;
    }
    return DI_OK;
}


static const float *
fake_logits(void *ctx)
{
    return ((fake_t *) ctx)->logits;
}


static void
fake_kv_copy(void *ctx, uint32_t dst, uint32_t src, uint32_t n)
{
    fake_t *f = ctx;

    CHECK(dst != src && n > 0 && n < BT);
    memcpy(f->slots[dst], f->slots[src], n * sizeof(uint64_t));
}


static void
fake_state_copy(void *ctx, uint32_t dst, uint32_t src)
{
    fake_t *f = ctx;

    CHECK(dst >= 1 && dst <= f->n_states);
    CHECK(src >= 1 && src <= f->n_states && src != dst);
    f->states[dst] = f->states[src];
}


/* The likeliest tokens, now and then a wrong one; or those picked. */
static int
fake_draft(void *ctx, const di_model_draft_t *seqs, size_t n_seqs,
           di_model_pick_t pick, void *arg, int32_t *drafts, float *confidence)
{
    const fake_t *f = ctx;
    float         x[VOCAB];
    size_t        i;
    uint32_t      d, k;

    for (i = 0; i < n_seqs; i++) {
        uint64_t all = f->states[seqs[i].slot].all[seqs[i].n % 8];
        int32_t  token = seqs[i].token;
        bool     picks = rnd(2) == 0;

        CHECK(seqs[i].n > 0 && seqs[i].n <= f->states[seqs[i].slot].pos);
        for (d = 0; d < n_drafts; d++) {
            uint64_t h = mix(mix(all, (uint64_t) token), seqs[i].n + d);

            all = mix(all, h);
            logits_of(mix(h, 99), x);
            for (k = 0, token = 0; k < VOCAB; k++)
                token = x[k] > x[token] ? (int32_t) k : token;
            if (rnd(5) == 0)
                token = (int32_t) rnd(VOCAB);
            if (picks)
                token = pick(arg, i, d, x);
            drafts[i * n_drafts + d] = token;
            confidence[i * n_drafts + d] = 0.5f;
        }
    }
    return DI_OK;
}


/* ------------------------------------------------------ a request, alone -- */

static void
expect_choice(req_t *q, uint32_t c, uint32_t total)
{
    choice_t       *ch = &q->choices[c];
    int32_t         tokens[LEN + 1];
    float           x[VOCAB];
    uint64_t        all = 7, h = 0;
    uint32_t        n, i, known = q->r.n_prompt;
    di_sample_out_t out;
    di_sample_in_t  in = {
        .params = &q->r.params, .bias = q->r.bias, .tokens = tokens,
        .end_ids = end_ids, .stop_ids = q->r.stop_ids,
        .n_bias = q->r.n_bias, .n_prompt = q->r.n_prompt, .n_end_ids = 1,
        .n_stop_ids = q->r.n_stop_ids, .seed = q->r.params.seed + c,
    };

    memset(ch, 0, sizeof(*ch));
    ch->stop_id = -1;
    memcpy(tokens, q->prompt, known * sizeof(int32_t));
    for (n = 0; ; n++) {
        h = mix(mix(all, (uint64_t) tokens[n]), n);
        all = mix(all, h);
        logits_of(mix(h, 99), x);
        if (n + 1 < q->r.n_prompt) {
            (void) di_sampler_logprobs(w.sampler, x, tokens[n + 1], 0, &out);
            q->prompt_lp[n + 1] = out.logprob;
            continue;
        }
        in.n_tokens = n + 1;
        CHECK_EQ_INT(di_sampler_row(w.sampler, x, &in, &out), DI_OK);
        ch->tokens[ch->n] = tokens[n + 1] = out.token;
        ch->logprobs[ch->n++] = out.logprob;
        for (i = 0; i < q->r.n_stop_ids; i++) {
            if (out.token == q->stop[i])
                ch->reason = DI_FINISH_STOP_ID;
        }
        if (out.token == END_ID
            && (q->r.params.flags & DI_GEN_IGNORE_EOS) == 0)
            ch->reason = DI_FINISH_STOP;
        if (ch->reason != 0) {
            ch->stop_id = out.token;
            return;
        }
        if (n + 2 == total) {
            ch->reason = DI_FINISH_LENGTH;
            return;
        }
    }
}


static void
expect(req_t *q)
{
    uint32_t c, total = LEN, fit = w.fake.kv_blocks * BT + 1;

    if (total > fit)
        total = fit;
    if (q->r.params.max_tokens != 0
        && q->r.n_prompt + q->r.params.max_tokens < total)
        total = q->r.n_prompt + q->r.params.max_tokens;
    for (c = 0; c < q->r.params.n; c++)
        expect_choice(q, c, total);
}


/* ------------------------------------------------------------------- events */

static req_t *
find(uint32_t owner, uint64_t id)
{
    int i;

    for (i = 0; i < REQS; i++) {
        if (w.reqs[i].used && w.reqs[i].owner == owner && w.reqs[i].id == id)
            return &w.reqs[i];
    }
    return NULL;
}


static void
on_finish(req_t *q, choice_t *c, const di_event_t *e)
{
    CHECK(!c->finished);
    CHECK_EQ_INT(e->u.finish.completion_tokens, c->seen);
    if (e->u.finish.reason == DI_FINISH_CANCEL) {
        CHECK(q->cancelled);
    } else if (e->u.finish.reason != DI_FINISH_ERROR) {
        CHECK_EQ_INT(e->u.finish.reason, c->reason);
        CHECK_EQ_INT(e->u.finish.stop_id, c->stop_id);
        CHECK_EQ_INT(c->seen, c->n);
        if ((q->r.params.flags & DI_GEN_LOGPROBS) != 0)
            CHECK_EQ_INT(c->seen_lp, c->n);
        if ((q->r.params.flags & DI_GEN_PROMPT_LOGPROBS) != 0)
            CHECK_EQ_INT(q->lp_seen, q->r.n_prompt);
        w.n_finished++;
    }
    c->finished = 1;
    if (--q->left == 0)
        q->used = 0;
}


static void
on_tokens(choice_t *c, const di_event_t *e)
{
    uint32_t i;

    CHECK(e->n_tokens >= 1 && e->n_tokens <= DI_EV_TOKENS_MAX);
    for (i = 0; i < e->n_tokens; i++) {
        CHECK(c->seen < c->n);
        CHECK_EQ_INT(e->u.tokens[i], c->tokens[c->seen]);
        c->seen++;
    }
}


static void
sink(void *arg, uint32_t owner, const di_event_t *e,
     const di_top_logprob_t *top)
{
    req_t    *q = find(owner, e->id);
    choice_t *c;
    uint32_t  slots = 1 + (e->n_top + 7u) / 8;

    CHECK(arg == &w);
    CHECK(q != NULL || e->type == DI_EV_REJECT);
    if (w.limited && w.in_step) {
        CHECK(w.room[owner] >= slots);
        w.room[owner] -= slots;
    }
    if (e->type == DI_EV_REJECT) {
        w.last_reject = e->u.reject.reason;
        w.reject_a = e->u.reject.a;
        w.reject_b = e->u.reject.b;
        memcpy(w.reject_text, e->u.reject.text, sizeof(w.reject_text));
        if (q != NULL)
            q->used = 0;
        return;
    }
    if (q == NULL)
        return;

    c = &q->choices[e->choice];
    CHECK(e->choice < q->r.params.n);
    CHECK(!c->finished || e->type == DI_EV_STARTED);
    switch (e->type) {
    case DI_EV_STARTED:
        CHECK(!q->started);
        q->started = 1;
        CHECK_EQ_INT(e->u.started.prompt_tokens, q->r.n_prompt);
        CHECK(e->u.started.cached_tokens < q->r.n_prompt);
        w.n_cached += e->u.started.cached_tokens != 0;
        break;
    case DI_EV_LOGPROB:
        CHECK_EQ_INT(e->u.logprob.position, c->seen_lp);
        CHECK_EQ_INT(e->u.logprob.position, c->seen);
        CHECK_EQ_INT(e->u.logprob.token, c->tokens[c->seen]);
        CHECK(e->u.logprob.logprob == c->logprobs[c->seen]);
        CHECK_EQ_INT(e->n_top, q->r.params.top_logprobs);
        CHECK(e->n_top == 0 || top[0].logprob >= e->u.logprob.logprob);
        c->seen_lp++;
        break;
    case DI_EV_PROMPT_LOGPROB:
        CHECK_EQ_INT(e->u.logprob.position, q->lp_seen);
        CHECK_EQ_INT(e->u.logprob.token, q->prompt[q->lp_seen]);
        CHECK(e->u.logprob.logprob == q->prompt_lp[q->lp_seen]);
        CHECK_EQ_INT(e->n_top, q->r.params.top_logprobs);
        q->lp_seen++;
        break;
    case DI_EV_TOKENS:
        CHECK(q->started);
        on_tokens(c, e);
        break;
    case DI_EV_FINISH:
        on_finish(q, c, e);
        break;
    default:
        CHECK(0);
    }
}


static uint32_t
room(void *arg, uint32_t owner)
{
    (void) arg;
    w.room[owner] = rnd(3) == 0 ? rnd(12) : 40 + rnd(100);
    return w.room[owner];
}


/* -------------------------------------------------------------------- world */

static void
open_paced(uint32_t kv_blocks, uint32_t max_seqs, uint32_t max_rows,
           uint32_t chunk, uint32_t queue_max, bool cache, int limited,
           uint32_t step_us)
{
    di_sched_model_t m = {
        .ctx = &w.fake, .vocab = VOCAB, .max_model_len = LEN,
        .kv_blocks = kv_blocks, .block_tokens = BT,
        .n_states = spare_states > 0 ? max_seqs + spare_states - 1 : 0,
        .max_logits = max_seqs + 3,
        .step = fake_step, .host_call = fake_host_call, .wait = fake_wait,
        .logits = fake_logits, .kv_copy = fake_kv_copy,
        .state_copy = fake_state_copy,
        .n_drafts = n_drafts, .draft = fake_draft,
    };
    di_sched_conf_t conf = {
        .max_seqs = max_seqs, .max_rows = max_rows, .chunk = chunk,
        .queue_max = queue_max, .prefix_cache = cache, .end_ids = end_ids,
        .n_end_ids = 1, .sink = sink, .room = limited ? room : NULL,
        .drafts = true, .step_us = step_us, .arg = &w,
    };

    memset(&w, 0, sizeof(w));
    w.limited = limited;
    w.fake.kv_blocks = kv_blocks;
    w.fake.n_states = m.n_states;
    CHECK(m.n_states <= STATES_MAX);
    w.fake.rows_max = max_rows;
    CHECK_EQ_INT(di_sampler_open(VOCAB, &w.sampler, NULL), DI_OK);
    CHECK_EQ_INT(di_sched_open_on(&m, &conf, &w.sched, NULL), DI_OK);
}


static void
open_world(uint32_t kv_blocks, uint32_t max_seqs, uint32_t max_rows,
           uint32_t chunk, uint32_t queue_max, bool cache, int limited)
{
    open_paced(kv_blocks, max_seqs, max_rows, chunk, queue_max, cache,
               limited, 0);
}


static void
close_world(void)
{
    di_sched_close(w.sched);
    di_sampler_close(w.sampler);
}


static int
step(void)
{
    int rc, before = MANY;

    nomem_after(before);
    w.in_step = 1;
    rc = di_sched_step(w.sched);
    w.in_step = 0;
    CHECK_EQ_INT(nomem_left, NOMEM ? before : nomem_left);
    (void) nomem_off();
    di_sched_check(w.sched);
    return rc;
}


static req_t *
new_request(uint32_t n_prompt)
{
    req_t   *q = NULL;
    int      i;
    uint32_t k;

    for (i = 0; i < REQS; i++) {
        if (!w.reqs[i].used)
            q = &w.reqs[i];
    }
    if (q == NULL)
        return NULL;
    memset(q, 0, sizeof(*q));
    q->id = ++w.next_id;
    q->r.params = (di_gen_params_t) { .top_p = 1, .repetition_penalty = 1,
                                      .n = 1, .max_tokens = 5 };
    q->r.prompt = q->prompt;
    q->r.n_prompt = n_prompt;
    for (k = 0; k < n_prompt; k++)
        q->prompt[k] = (int32_t) k % 40 + 4;
    return q;
}


static void
submit(req_t *q)
{
    q->used = 1;
    q->left = q->r.params.n;
    q->lp_seen = q->r.params.prompt_logprobs_from;
    expect(q);
    CHECK_EQ_INT(di_sched_submit(w.sched, q->owner, q->id, &q->r), DI_OK);
    di_sched_check(w.sched);
}


static void
check_gauges(uint32_t live)
{
    di_ipc_status_t st = { 0 };

    di_sched_status(w.sched, &st);
    CHECK_EQ_INT(st.kv_blocks_live + st.kv_blocks_cached + st.kv_blocks_free,
                 st.kv_blocks_total);
    CHECK_EQ_INT(st.kv_blocks_total, w.fake.kv_blocks);
    if (live != UINT32_MAX)
        CHECK_EQ_INT(st.kv_blocks_live, live);
}


static void
run_out(void)
{
    int i;

    for (i = 0; i < 20000 && !di_sched_idle(w.sched); i++)
        (void) step();
    CHECK(di_sched_idle(w.sched));
    for (i = 0; i < REQS; i++)
        CHECK(!w.reqs[i].used);
    check_gauges(0);
}


/* ---------------------------------------------------------- random loads -- */

static void
random_request(void)
{
    uint32_t         n = 1 + rnd(rnd(3) == 0 ? LEN - 2 : 40), i;
    req_t           *q = new_request(n);
    di_gen_params_t *p;

    if (q == NULL)
        return;
    for (i = 0; i < n; i++)             /* prompts share beginnings         */
        q->prompt[i] = (int32_t) (rnd(30) == 0 ? 4 + rnd(40) : i % 3 + 4);
    q->owner = rnd(OWNERS);
    q->r.salt[0] = rnd(4) == 0;
    p = &q->r.params;
    p->n = rnd(4) == 0 ? 1 + rnd(4) : 1;
    p->max_tokens = rnd(8) == 0 ? 0 : 1 + rnd(30);
    p->seed = rnd(1000);
    p->temperature = rnd(2) ? 0 : 1;
    p->top_p = rnd(2) ? 1 : 0.9f;
    p->top_k = rnd(2) ? 0 : 5;
    p->repetition_penalty = rnd(3) ? 1 : 1.3f;
    p->presence_penalty = rnd(3) ? 0 : 0.5f;
    p->min_tokens = rnd(3) ? 0 : rnd(10);
    p->flags = (rnd(4) ? 0 : DI_GEN_IGNORE_EOS)
               | (rnd(3) ? 0 : DI_GEN_LOGPROBS)
               | (rnd(6) ? 0 : DI_GEN_NO_PREFIX)
               | (p->temperature == 0 && rnd(2) ? DI_GEN_UNSEEDED : 0);
    p->top_logprobs = rnd(21);
    if (rnd(5) == 0) {
        p->flags |= DI_GEN_PROMPT_LOGPROBS;
        p->prompt_logprobs_from = 1 + rnd(n);
        p->top_logprobs = rnd(9);
    }
    if (rnd(3) == 0) {
        q->bias[0] = (di_logit_bias_t) { (int32_t) rnd(VOCAB), 3 };
        q->r.bias = q->bias;
        q->r.n_bias = 1;
    }
    if (rnd(3) == 0) {
        q->stop[0] = 4 + (int32_t) rnd(40);
        q->stop[1] = 4 + (int32_t) rnd(40);
        q->r.stop_ids = q->stop;
        q->r.n_stop_ids = 2;
    }
    submit(q);
}


static void
random_op(void)
{
    req_t   *q = &w.reqs[rnd(REQS)];
    uint32_t owner, i;

    switch (rnd(40)) {
    case 0:
    case 1:
        if (!q->used)
            break;
        q->cancelled = 1;
        i = rnd(3) == 0 ? rnd(q->r.params.n) : UINT32_MAX;
        di_sched_cancel(w.sched, q->owner, q->id, i);
        CHECK(i != UINT32_MAX || !q->used);
        break;
    case 2:
    case 3:
    case 4:
        if (!q->used)
            break;
        q->paused = !q->paused;
        di_sched_pause(w.sched, q->owner, q->id, q->paused);
        break;
    case 5:
        if (rnd(10) != 0)
            break;
        owner = rnd(OWNERS);
        di_sched_drop_owner(w.sched, owner);
        for (i = 0; i < REQS; i++)
            w.reqs[i].used &= w.reqs[i].owner != owner;
        break;
    case 6:
        di_sched_cancel(w.sched, rnd(OWNERS), 1u << 30, UINT32_MAX);
        di_sched_pause(w.sched, rnd(OWNERS), 1u << 30, true);
        break;
    default:
        if (rnd(3) == 0)
            random_request();
        else
            (void) step();
        return;
    }
    di_sched_check(w.sched);
}


static void
test_random(uint32_t kv_blocks, uint32_t max_seqs, uint32_t max_rows,
            bool cache, int limited, int ops)
{
    di_ipc_status_t st = { 0 };
    uint64_t        verified, accepted;
    int             i;

    open_world(kv_blocks, max_seqs, max_rows, max_rows / 2, 20, cache,
               limited);
    for (i = 0; i < ops && check_failed == 0; i++) {
        random_op();
        check_gauges(UINT32_MAX);
    }
    for (i = 0; i < REQS; i++) {
        if (w.reqs[i].used)
            di_sched_pause(w.sched, w.reqs[i].owner, w.reqs[i].id, false);
    }
    run_out();
    di_sched_status(w.sched, &st);
    di_sched_drafts(w.sched, &verified, &accepted);
    CHECK(n_drafts == 0 ? verified == 0
                        : accepted > 100 && verified > accepted);
    printf("%u blocks, %u sequences, %u rows: %llu choices finished, %llu "
           "prefix hits, %llu preemptions\n", kv_blocks, max_seqs, max_rows,
           (unsigned long long) w.n_finished,
           (unsigned long long) w.n_cached,
           (unsigned long long) st.preemptions);
    CHECK(w.n_finished > 50);
    CHECK((cache && spare_states != 1) == (w.n_cached > 0));
    CHECK(kv_blocks > 30 || st.preemptions > 10);
    close_world();
}


/* ---------------------------------------------------------------- single -- */

/* A second turn finds prompt and answer of the first. */
static void
test_second_turn(void)
{
    di_ipc_status_t st = { 0 };
    req_t          *q;
    uint32_t        n;

    open_world(40, 4, 32, 8, 8, true, 0);
    q = new_request(37);
    q->r.params.flags = DI_GEN_IGNORE_EOS;
    q->r.params.max_tokens = 20;
    submit(q);
    run_out();
    n = q->r.n_prompt + q->choices[0].n - 1;    /* the last has no KV       */

    q = &w.reqs[REQS - 1];
    q->used = 1;                                /* its own slot, all kept   */
    memcpy(q->prompt + 37, q->choices[0].tokens, 20 * sizeof(int32_t));
    q->prompt[57] = 9;
    q->r.n_prompt = 58;
    q->id = ++w.next_id;
    q->started = 0;
    submit(q);
    run_out();
    di_sched_status(w.sched, &st);
    CHECK_EQ_INT(st.cached_tokens, n);
    close_world();
}


/* Other tenants' blocks are never found; nor is anything with the flag. */
static void
test_salt(void)
{
    di_ipc_status_t st = { 0 };
    req_t          *q;
    int             i;

    open_world(40, 4, 32, 8, 8, true, 0);
    for (i = 0; i < 4; i++) {
        q = new_request(50);
        q->r.salt[3] = (uint8_t) (i % 3);
        q->r.params.flags = i == 3 ? DI_GEN_NO_PREFIX : 0;
        submit(q);
        run_out();
    }
    di_sched_status(w.sched, &st);
    CHECK_EQ_INT(st.cached_tokens, 0);
    q = new_request(50);
    q->r.salt[3] = 2;
    submit(q);
    run_out();
    di_sched_status(w.sched, &st);
    CHECK_EQ_INT(st.cached_tokens, 49);
    close_world();
}


/* n choices compute the prompt once. */
static void
test_choices(void)
{
    di_ipc_status_t st = { 0 };
    req_t          *q;
    int             cache;

    for (cache = 0; cache < 2; cache++) {
        open_world(40, 4, 64, 64, 8, cache, 0);
        q = new_request(40);
        q->r.params.n = 4;
        q->r.params.temperature = 1;
        q->r.params.flags = DI_GEN_IGNORE_EOS;
        submit(q);
        CHECK_EQ_INT(step(), DI_OK);
        CHECK_EQ_INT(w.fake.rows, 40);
        check_gauges(2 + 4);            /* two shared, a tail for each      */
        CHECK_EQ_INT(step(), DI_OK);
        CHECK_EQ_INT(w.fake.rows, 4);
        run_out();
        di_sched_status(w.sched, &st);
        CHECK_EQ_INT(st.prefill_tokens, 40);
        close_world();
    }
}


static void
test_rejects(void)
{
    req_t  *q;
    int32_t ids[] = { 5, VOCAB };

    open_world(4, 2, 16, 8, 1, true, 0);
    q = new_request(LEN);
    CHECK_EQ_INT(di_sched_submit(w.sched, 0, 1, &q->r), DI_OK);
    CHECK_EQ_INT(w.last_reject, DI_REJECT_TOO_LONG);
    CHECK_EQ_INT(w.reject_a, LEN);
    CHECK_EQ_INT(w.reject_b, LEN);
    q->r.n_prompt = 65;
    CHECK_EQ_INT(di_sched_submit(w.sched, 0, 1, &q->r), DI_OK);
    CHECK_EQ_INT(w.last_reject, DI_REJECT_KV);
    CHECK_EQ_INT(w.reject_a, 5);
    CHECK_EQ_INT(w.reject_b, 4);

    q->r.n_prompt = 8;
    q->prompt[7] = VOCAB;
    CHECK_EQ_INT(di_sched_submit(w.sched, 0, 1, &q->r), DI_OK);
    CHECK_EQ_INT(w.last_reject, DI_REJECT_INVALID);
    CHECK_EQ_STR(w.reject_text, "prompt");
    q->prompt[7] = -1;
    CHECK_EQ_INT(di_sched_submit(w.sched, 0, 1, &q->r), DI_OK);
    CHECK_EQ_STR(w.reject_text, "prompt");
    q->prompt[7] = 1;
    q->bias[0].id = VOCAB;
    q->r.bias = q->bias;
    q->r.n_bias = 1;
    CHECK_EQ_INT(di_sched_submit(w.sched, 0, 1, &q->r), DI_OK);
    CHECK_EQ_STR(w.reject_text, "logit_bias");
    q->r.n_bias = 0;
    q->r.stop_ids = ids;
    q->r.n_stop_ids = 2;
    CHECK_EQ_INT(di_sched_submit(w.sched, 0, 1, &q->r), DI_OK);
    CHECK_EQ_STR(w.reject_text, "stop_ids");
    q->r.n_stop_ids = 0;
    q->r.params.top_p = 2;
    CHECK_EQ_INT(di_sched_submit(w.sched, 0, 1, &q->r), DI_OK);
    CHECK_EQ_STR(w.reject_text, "top_p");
    q->r.params.top_p = 1;
    nomem_after(0);
    CHECK_EQ_INT(di_sched_submit(w.sched, 0, 1, &q->r),
                 NOMEM ? DI_ENOMEM : DI_OK);
    CHECK(nomem_off() == (NOMEM != 0));
    CHECK(!NOMEM || w.last_reject == DI_REJECT_INTERNAL);
    di_sched_drop_owner(w.sched, 0);
    CHECK(di_sched_idle(w.sched));

    /* Exactly what fits: 64 tokens have KV, one more needs none. */
    q->r.n_prompt = 64;
    q->r.params.max_tokens = 0;
    q->r.params.flags = DI_GEN_IGNORE_EOS;
    q->prompt[63] = 5;
    submit(q);
    run_out();
    CHECK_EQ_INT(q->choices[0].seen, 1);
    close_world();
}


/* Two may run, one may wait; the fourth is refused until there is room. */
static void
test_queue(void)
{
    req_t *q[4];
    int    i;

    open_world(40, 2, 16, 8, 1, true, 0);
    for (i = 0; i < 4; i++) {
        q[i] = new_request(6);
        submit(q[i]);
        CHECK_EQ_INT(w.last_reject, i < 3 ? 0 : DI_REJECT_QUEUE_FULL);
    }
    CHECK_EQ_INT(w.reject_a, 3);
    CHECK_EQ_INT(w.reject_b, 1);

    /* A queued request that is cancelled never runs. */
    CHECK_EQ_INT(step(), DI_OK);
    q[2]->cancelled = 1;
    di_sched_cancel(w.sched, 0, q[2]->id, UINT32_MAX);
    CHECK(!q[2]->used && !q[2]->started);
    run_out();

    di_sched_drain(w.sched);
    w.last_reject = 0;
    submit(new_request(6));
    CHECK_EQ_INT(w.last_reject, DI_REJECT_DRAINING);
    close_world();
}


/* Cancelled in the middle of its prompt: no further chunk is computed. */
static void
test_cancel_prefill(void)
{
    req_t *q;

    open_world(40, 2, 8, 8, 4, true, 0);
    q = new_request(100);
    submit(q);
    CHECK_EQ_INT(step(), DI_OK);
    CHECK_EQ_INT(w.fake.rows, 8);
    q->cancelled = 1;
    di_sched_cancel(w.sched, 0, q->id, UINT32_MAX);
    CHECK(!q->used);
    check_gauges(0);
    CHECK_EQ_INT(step(), DI_EAGAIN);
    close_world();
}


/* A long prompt gives decoding streams a token every step. */
static void
test_chunks(void)
{
    req_t *a, *b;
    int    i;

    open_world(40, 2, 64, 10, 4, true, 0);
    a = new_request(4);
    a->r.params.flags = DI_GEN_IGNORE_EOS;
    a->r.params.max_tokens = 30;
    submit(a);
    CHECK_EQ_INT(step(), DI_OK);
    b = new_request(100);
    b->prompt[0] = 9;
    submit(b);
    for (i = 0; i < 10; i++) {
        CHECK_EQ_INT(a->choices[0].seen, i + 1);
        CHECK_EQ_INT(step(), DI_OK);
        CHECK_EQ_INT(w.fake.rows, 11);
    }
    CHECK_EQ_INT(b->choices[0].seen, 1);
    run_out();
    close_world();
}


/* A stream under way, whose rows take half a millisecond each. */
static req_t *
running_stream(void)
{
    req_t *q;

    w.fake.row_us = 500;
    q = new_request(4);
    q->r.params.flags = DI_GEN_IGNORE_EOS;
    q->r.params.max_tokens = 30;
    submit(q);
    CHECK_EQ_INT(step(), DI_OK);
    return q;
}

/* n prompts of 100 tokens, which begin with first, first + 1, ... */
static void
submit_prompts(int n, int first)
{
    req_t *q;
    int    i;

    for (i = 0; i < n; i++) {
        q = new_request(100);
        q->prompt[0] = first + i;
        submit(q);
    }
}

/* Of a prompt, a step takes what the time that it should take allows for:
 * 16 rows, by what the rows before have cost; those of a step without streams
 * are not counted. */
static void
test_step_time(void)
{
    req_t *a;
    int    i;

    open_paced(40, 2, 64, 40, 4, true, 0, 8000);
    a = running_stream();
    submit_prompts(1, 9);
    for (i = 0; i < 6; i++) {
        CHECK_EQ_INT(step(), DI_OK);
        CHECK_EQ_INT(w.fake.rows, 17);
    }
    a->cancelled = 1;
    di_sched_cancel(w.sched, 0, a->id, UINT32_MAX);
    submit_prompts(1, 10);
    CHECK_EQ_INT(step(), DI_OK);
    CHECK_EQ_INT(w.fake.rows, 64);
    run_out();
    close_world();
}


/* Too little time for them: those that wait for their prompts to be read get
 * three rows each, as the stream does that runs; no more than may run. */
static void
test_step_crowd(void)
{
    int i;

    open_paced(100, 8, 64, 40, 20, true, 0, 8000);
    running_stream();
    submit_prompts(12, 9);
    for (i = 0; i < 3; i++) {
        CHECK_EQ_INT(step(), DI_OK);
        CHECK_EQ_INT(w.fake.rows, 25);
    }
    run_out();
    close_world();
}


/* Those that wait for blocks get none. */
static void
test_step_full(void)
{
    int i;

    open_paced(100 / BT + 12, 8, 64, 40, 20, true, 0, 8000);
    running_stream();
    submit_prompts(12, 9);
    CHECK_EQ_INT(step(), DI_OK);         /* the first of them has its blocks */
    for (i = 0; i < 3; i++) {
        CHECK_EQ_INT(step(), DI_OK);
        CHECK_EQ_INT(w.fake.rows, 17);
    }
    run_out();
    close_world();
}


/* One owner's crowd does not hold up another owner. */
static void
test_fair(void)
{
    req_t *q = NULL;
    int    i;

    open_world(100, 1, 64, 64, 50, true, 0);
    for (i = 0; i < 20; i++) {
        q = new_request(4);
        q->r.params.max_tokens = 1;
        submit(q);
    }
    q = new_request(4);
    q->owner = 2;
    q->r.params.max_tokens = 1;
    submit(q);
    for (i = 0; i < 2; i++)
        CHECK_EQ_INT(step(), DI_OK);
    CHECK(!q->used);
    run_out();
    close_world();
}


/* A device fault, or a NaN, ends what was in the step and nothing else. */
static void
test_faults(void)
{
    req_t *q[3];
    int    kind;

    for (kind = 0; kind < 3; kind++) {
        open_world(40, 2, 64, 64, 4, true, 0);
        q[0] = new_request(20);
        q[0]->r.params.n = 3;
        submit(q[0]);
        q[1] = new_request(20);
        submit(q[1]);
        q[2] = new_request(20);
        submit(q[2]);
        w.fake.fault = kind;
        w.fake.nan = kind == 0;
        CHECK_EQ_INT(step(), kind == 0 ? DI_OK : DI_EIO);
        CHECK(!q[0]->used && !q[1]->used && q[2]->used);
        run_out();
        CHECK_EQ_INT(w.n_finished, 1);
        close_world();
    }
}


/* Many short requests leave no live block behind. */
static void
test_many_short(void)
{
    req_t   *q;
    uint32_t i;

    open_world(20, 4, 32, 8, 8, true, 0);
    for (i = 0; i < 2000; i++) {
        q = new_request(20);
        q->prompt[0] = (int32_t) (i % VOCAB);
        q->prompt[1] = (int32_t) (i / VOCAB % VOCAB);
        q->r.params.max_tokens = 2;
        submit(q);
        while (q->used)
            (void) step();
        check_gauges(0);
    }
    close_world();
}


/* A paused sequence gives way to one that can go on. */
static void
test_pause(void)
{
    di_ipc_status_t st = { 0 };
    req_t          *a, *b;
    int             i;

    open_world(40, 1, 32, 32, 4, true, 0);
    a = new_request(20);
    a->r.params.flags = DI_GEN_IGNORE_EOS;
    submit(a);
    CHECK_EQ_INT(step(), DI_OK);
    di_sched_pause(w.sched, 0, a->id, true);
    CHECK_EQ_INT(step(), DI_EAGAIN);
    b = new_request(30);
    submit(b);
    for (i = 0; i < 10; i++)
        (void) step();
    CHECK(!b->used && a->used);
    CHECK_EQ_INT(a->choices[0].seen, 1);
    di_sched_pause(w.sched, 0, a->id, false);
    run_out();
    di_sched_status(w.sched, &st);
    CHECK_EQ_INT(st.preemptions, 1);
    close_world();
}


static void
test_open(void)
{
    di_sched_model_t m = {
        .ctx = &w.fake, .vocab = VOCAB, .max_model_len = LEN,
        .kv_blocks = 8, .block_tokens = BT, .max_logits = 4,
    };
    di_sched_conf_t conf = {
        .max_seqs = 4, .max_rows = 4, .chunk = 1, .end_ids = end_ids,
        .n_end_ids = 1, .sink = sink,
    };
    di_sched_conf_t bad;
    di_sched_t     *s = NULL;
    int             n, rc;

    bad = conf;
    bad.max_seqs = 0;
    CHECK_EQ_INT(di_sched_open_on(&m, &bad, &s, NULL), DI_EINVAL);
    bad = conf;
    bad.max_rows = 3;
    CHECK_EQ_INT(di_sched_open_on(&m, &bad, &s, NULL), DI_EINVAL);
    bad = conf;
    bad.chunk = 0;
    CHECK_EQ_INT(di_sched_open_on(&m, &bad, &s, NULL), DI_EINVAL);
    m.max_logits = 3;
    CHECK_EQ_INT(di_sched_open_on(&m, &conf, &s, NULL), DI_EINVAL);
    m.max_logits = 4;
    m.vocab = END_ID;
    CHECK_EQ_INT(di_sched_open_on(&m, &conf, &s, NULL), DI_EINVAL);
    m.vocab = VOCAB;
    for (n = 0; ; n++) {
        nomem_after(n);
        rc = di_sched_open_on(&m, &conf, &s, NULL);
        if (!nomem_off())
            break;
        CHECK_EQ_INT(rc, DI_ENOMEM);
    }
    CHECK_EQ_INT(rc, DI_OK);
    di_sched_close(s);
}


int
main(int argc, char **argv)
{
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0)
                             : (uint64_t) time(NULL);
    int      ops = argc > 2 ? atoi(argv[2]) : 6000;

    printf("seed %llu\n", (unsigned long long) seed);
    rnd_seed(seed);
    test_open();
    test_second_turn();
    test_salt();
    test_choices();
    test_rejects();
    test_queue();
    test_cancel_prefill();
    test_chunks();
    test_step_time();
    test_step_crowd();
    test_step_full();
    test_fair();
    test_faults();
    test_many_short();
    test_pause();
    test_random(200, 8, 64, true, 0, ops);
    test_random(20, 6, 24, true, 0, ops);
    test_random(20, 6, 24, false, 0, ops);
    test_random(10, 8, 8, true, 0, ops);
    test_random(20, 6, 24, true, 1, ops);

    /* Sequences with states; none, one or some kept for the cache. */
    for (spare_states = 1; spare_states <= 9; spare_states += 1 + spare_states)
    {
        for (n_drafts = 0; n_drafts <= DRAFTS; n_drafts += DRAFTS) {
            test_random(200, 8, 64, true, 0, ops / 2);
            test_random(20, 6, 24, true, 1, ops);
        }
    }
    return check_done("sched");
}
