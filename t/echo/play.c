/*
 * play.c - from a script to events, by the rules of a real engine.
 *
 * Each turn of the loop is a step: every running choice that is due sends one
 * event.  Stop ids, end tokens, max_tokens, min_tokens and ignore_eos hold as
 * they do in deepinfer-engine; an answer that has to go on starts over.  A
 * token that the request's grammar does not allow is not sent: the choice ends
 * there with DI_FINISH_ERROR.
 */

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "echo.h"

/* An event's worst case: 8 log-probabilities of 4 slots, the tokens, FINISH;
 * STARTED before it. */
#define SLOTS_PER_TURN 40

static const char *const finish_names[] = {
    "?", "stop", "stop_id", "length", "cancel", "error",
};

/* The connection has room, or is gone: SLOTS_PER_TURN and DI_IPC_RESERVE. */
static void
send_event(echo_t *e, const req_t *r, const di_event_t *ev,
           const di_top_logprob_t *top)
{
    int rc = di_ipc_server_send(e->server, r->conn, ev, top);

    if (rc != DI_OK && rc != DI_ECLOSED)
        echo_fail("an event did not fit (%d)", rc);
}

void
echo_finish(echo_t *e, req_t *r, uint32_t index, di_finish_t reason,
       int32_t stop_id, uint32_t told)
{
    choice_t  *c = &r->choice[index];
    di_event_t ev = {
        .id = r->id, .type = DI_EV_FINISH, .choice = (uint16_t) index,
    };

    ev.u.finish.reason = reason;
    ev.u.finish.completion_tokens = told;
    ev.u.finish.stop_id = stop_id;
    send_event(e, r, &ev, NULL);

    c->over = true;
    r->n_over++;
    echo_note(e, "finish conn=%u id=%llu choice=%u reason=%s tokens=%u\n",
              r->conn, (unsigned long long) r->id, index,
              finish_names[reason], told);
}

/* --------------------------------------------------------------- playing -- */

static void
start(echo_t *e, req_t *r, uint64_t now)
{
    di_event_t ev = { .id = r->id, .type = DI_EV_STARTED };

    ev.u.started.prompt_tokens = r->n_prompt;
    ev.u.started.cached_tokens = r->script.cached < r->n_prompt
                                 ? r->script.cached : r->n_prompt;
    ev.u.started.queue_us = (uint32_t) (now - r->queued_us);
    send_event(e, r, &ev, NULL);

    r->started = true;
    e->status.waiting--;
    e->status.running += r->params.n;
    e->status.kv_blocks_live += r->params.n * echo_blocks(r->n_prompt);
    e->status.prefill_tokens += r->n_prompt - ev.u.started.cached_tokens;
    e->status.cached_tokens += ev.u.started.cached_tokens;
}

/* Log-probabilities by the script, or made up. */
static void
send_logprob(echo_t *e, const req_t *r, uint32_t index, di_event_type_t type,
             int32_t token, uint32_t position)
{
    uint32_t           i, lp = UINT32_MAX;
    float              p = -0.125f * (float) (1 + position % 4);
    const script_lp_t *told;
    di_top_logprob_t   top[DI_GEN_TOP_LOGPROBS_MAX];
    di_event_t         ev = {
        .id = r->id, .type = (uint16_t) type, .choice = (uint16_t) index,
        .n_top = (uint16_t) r->params.top_logprobs,
    };

    if (type == DI_EV_LOGPROB)
        lp = r->choice[index].lp;

    for (i = 0; i < ev.n_top; i++)
        top[i] = (di_top_logprob_t) {
            (token + (int32_t) i) % (int32_t) e->vocab_size,
            p - (float) i,
        };

    if (lp != UINT32_MAX) {
        told = &r->script.lps[lp];
        p = told->logprob;
        if (told->n_top < ev.n_top)
            ev.n_top = (uint16_t) told->n_top;
        memcpy(top, told->top, ev.n_top * sizeof(top[0]));
    }

    ev.u.logprob.token = token;
    ev.u.logprob.logprob = p;
    ev.u.logprob.position = position;
    send_event(e, r, &ev, top);
}

static bool
is_stop_id(const req_t *r, int32_t id)
{
    uint32_t i;

    for (i = 0; i < r->n_stop_ids; i++) {
        if (r->stop_ids[i] == id)
            return true;
    }

    return false;
}

/* Does this token, the nth of the completion, end the choice?  0: no. */
static di_finish_t
ends(const echo_t *e, const req_t *r, int32_t id, uint32_t n)
{
    if (n >= r->params.min_tokens) {
        if (is_stop_id(r, id))
            return DI_FINISH_STOP_ID;
        if (!(r->params.flags & DI_GEN_IGNORE_EOS)
            && di_vocab_is_end(e->vocab, id))
            return DI_FINISH_STOP;
    }

    return n == r->limit ? DI_FINISH_LENGTH : (di_finish_t) 0;
}

/* Follow a token in the choice's grammar, if it has one. */
static bool
allowed(const echo_t *e, choice_t *c, int32_t id)
{
    return c->match == NULL
           || di_gram_accept_id(e->index, c->match, id) == DI_OK;
}

/* Send up to n tokens as one event, and FINISH if one of them ends it; told
 * is what FINISH then says, 0: what was sent.  The number sent. */
static uint32_t
send_tokens(echo_t *e, req_t *r, uint32_t index, const int32_t *ids,
            uint32_t n, uint32_t told)
{
    uint32_t    i;
    choice_t   *c = &r->choice[index];
    di_finish_t reason = (di_finish_t) 0;
    di_event_t  ev = {
        .id = r->id, .type = DI_EV_TOKENS, .choice = (uint16_t) index,
    };

    for (i = 0; i < n && reason == 0; i++) {
        if (!allowed(e, c, ids[i])) {
            reason = DI_FINISH_ERROR;
            break;
        }
        if (r->params.flags & DI_GEN_LOGPROBS)
            send_logprob(e, r, index, DI_EV_LOGPROB, ids[i], c->sent + i);
        ev.u.tokens[i] = ids[i];
        reason = ends(e, r, ids[i], c->sent + i + 1);
    }

    ev.n_tokens = (uint16_t) i;
    if (i > 0)
        send_event(e, r, &ev, NULL);

    e->status.decode_tokens += i;
    e->status.kv_blocks_live += echo_blocks(r->n_prompt + c->sent + i)
                                - echo_blocks(r->n_prompt + c->sent);
    e->status_changed = true;
    c->sent += i;
    c->round_sent += i;

    if (reason != 0)
        echo_finish(e, r, index, reason,
               reason == DI_FINISH_LENGTH || reason == DI_FINISH_ERROR
               ? -1 : ids[i - 1],
               told != 0 ? told - 1 : c->sent);
    return i;
}

/* The script is over, or says so: the end token and FINISH, or, when the
 * request wants more, the script from its start.  true: an event was sent. */
static bool
stop(echo_t *e, req_t *r, uint32_t index, uint32_t told)
{
    choice_t *c = &r->choice[index];
    bool      more;

    more = (r->params.flags & DI_GEN_IGNORE_EOS)
           || c->sent + 1 < r->params.min_tokens;

    if (more) {
        /* An answer without a token can't be repeated into one. */
        more = c->round_sent > 0;
        c->op = c->off = c->round_sent = 0;
        if (more)
            return false;
    }

    if (!c->noend) {
        (void) send_tokens(e, r, index, &e->im_end, 1, told);
        if (c->over)
            return true;
    }

    echo_finish(e, r, index, DI_FINISH_STOP, c->noend ? -1 : e->im_end,
           told != 0 ? told - 1 : c->sent);
    return true;
}

/* The next event's tokens of an OP_TOKENS or OP_REPEAT; false: none left. */
static bool
play_tokens(echo_t *e, req_t *r, uint32_t index, const script_op_t *op)
{
    uint32_t       i, n;
    choice_t      *c = &r->choice[index];
    uint64_t       total = op->type == OP_REPEAT ? op->us : op->b;
    int32_t        ids[DI_EV_TOKENS_MAX];
    const int32_t *from = r->script.tokens + op->a;

    if (c->off >= total)
        return false;

    n = total - c->off < c->per ? (uint32_t) (total - c->off) : c->per;
    for (i = 0; i < n; i++)
        ids[i] = from[(c->off + i) % op->b];

    c->off += send_tokens(e, r, index, ids, n, 0);
    return true;
}

__attribute__((noreturn))
static void
die(echo_t *e)
{
    di_ipc_server_flush(e->server);
    echo_note(e, "die\n");
    if (e->log != NULL)
        (void) fflush(e->log);
    _exit(9);
}

/* When the event after one at `now` may come; 0: at once. */
static uint64_t
next_due(const choice_t *c, uint64_t now)
{
    if (c->every_us == 0)
        return 0;
    return c->in_step ? (now / c->every_us + 1) * c->every_us
                      : now + c->every_us;
}

/* Play a choice up to its next event or wait. */
static void
play(echo_t *e, req_t *r, uint32_t index, uint64_t now)
{
    choice_t          *c = &r->choice[index];
    const script_op_t *op;

    while (!c->over) {
        if (c->op == r->script.n_ops) {
            if (stop(e, r, index, 0))
                return;
            continue;
        }

        op = &r->script.ops[c->op];
        if (op->choice != SCRIPT_ALL_CHOICES && op->choice != index) {
            c->op++;
            continue;
        }

        switch (op->type) {
        case OP_TOKENS:
        case OP_REPEAT:
            if (play_tokens(e, r, index, op)) {
                c->due_us = next_due(c, now);
                return;
            }
            c->off = 0;
            break;
        case OP_PER:
            c->per = op->a;
            break;
        case OP_EVERY:
            c->every_us = op->us;
            c->in_step = op->a == 1;
            break;
        case OP_LOGPROB:
            c->lp = op->a;
            break;
        case OP_NOEND:
            c->noend = true;
            break;
        case OP_WAIT:
            c->due_us = now + op->us;
            c->op++;
            return;
        case OP_FINISH:
            if (op->a != DI_FINISH_STOP)
                echo_finish(e, r, index, (di_finish_t) op->a, -1,
                       op->b != 0 ? op->b - 1 : c->sent);
            else if (!stop(e, r, index, op->b))
                continue;
            return;
        case OP_STALL:
            c->due_us = UINT64_MAX;
            return;
        case OP_DIE:
            die(e);
        }

        c->op++;
    }
}

/* One turn of a request: each choice that is due sends an event.  *due gets
 * the earliest time that one of them wants.  true: something was sent. */
static bool
turn(echo_t *e, req_t *r, uint64_t now, uint64_t *due)
{
    bool     sent = false;
    uint32_t i;

    for (i = 0; i < r->params.n; i++) {
        if (r->choice[i].over)
            continue;

        if (r->choice[i].due_us <= now
            && di_ipc_server_room(e->server, r->conn) >= SLOTS_PER_TURN)
        {
            if (!r->started)
                start(e, r, now);

            if (r->prompt_next < r->n_prompt) {
                send_logprob(e, r, 0, DI_EV_PROMPT_LOGPROB,
                             r->prompt[r->prompt_next], r->prompt_next);
                r->prompt_next++;
                return true;
            }

            play(e, r, i, now);
            sent = true;

        } else if (r->choice[i].due_us > now && r->choice[i].due_us < *due) {
            *due = r->choice[i].due_us;
        }
    }

    return sent;
}

/* One step over all requests.  true: events were sent; *due as above. */
bool
echo_step(echo_t *e, uint64_t *due)
{
    bool     sent = false;
    req_t   *r, *next;
    uint64_t now;

    *due = UINT64_MAX;
    if (e->first == NULL)
        return false;

    now = echo_now_us();

    for (r = e->first; r != NULL; r = next) {
        next = r->next;
        if (r->paused)
            continue;
        sent |= turn(e, r, now, due);
        if (r->n_over == r->params.n)
            echo_free_req(e, r);
    }

    e->status.steps += sent;
    return sent;
}
