/*
 * echo_engine.c - an engine without a model, for tests and benchmarks.
 *
 *     echo-engine [serve] --listen unix:PATH --model FILE.gguf [options]
 *
 * It speaks the same channel as deepinfer-engine and behaves like it in all
 * that a worker can see: STARTED, tokens with log-probabilities, n choices,
 * stop ids, end tokens, max_tokens, min_tokens, ignore_eos (the answer starts
 * over), cancel, pause, back-pressure by completion room, refusals, a status
 * page, SIGTERM draining.  What it answers stands in the prompt's last user
 * message: a script (script.h has the language) or the text to echo.
 *
 * Each turn of the loop is a step: every running choice that is due sends one
 * event, then all events are published together, as a real engine's step
 * does.  A request costs one allocation, its script two or three.
 *
 * One line per submit, cancel, pause, resume, finish, reject and closed
 * connection goes to standard error or --log FILE; tests read them.
 */

#include <errno.h>
#include <getopt.h>
#include <grp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#include "script.h"

#define BUCKETS        4096      /* of the request table                    */
#define MESSAGES_MAX   1024      /* taken between two steps                 */
#define BLOCK_TOKENS   16        /* what the status page counts in          */
#define BLOCKS_TOTAL   (1u << 20)
/* An event's worst case: 8 log-probabilities of 4 slots, the tokens, FINISH;
 * STARTED before it. */
#define SLOTS_PER_TURN 40

typedef struct {
    uint32_t op;                 /* operation being played                  */
    uint32_t off;                /* tokens of it that are out               */
    uint32_t sent;               /* completion tokens                       */
    uint32_t round_sent;         /* of them, since the script (re)started   */
    uint32_t per;                /* tokens of an event                      */
    uint32_t lp;                 /* index of log-probabilities, or ~0       */
    uint64_t every_us;
    uint64_t due_us;             /* next event not before                   */
    bool     noend;
    bool     over;
} choice_t;

typedef struct req_s {
    struct req_s   *next, *prev; /* all requests, oldest first              */
    struct req_s   *same;        /* in its bucket                           */
    uint64_t        id;
    uint32_t        conn;
    uint32_t        n_prompt;
    uint32_t        limit;       /* completion tokens of a choice           */
    uint32_t        n_over;
    uint32_t        prompt_next; /* DI_EV_PROMPT_LOGPROB position           */
    uint64_t        queued_us;
    bool            started;
    bool            paused;
    di_gen_params_t params;
    script_t        script;
    int32_t        *prompt;      /* kept for prompt log-probabilities       */
    uint32_t        n_stop_ids;
    int32_t         stop_ids[DI_GEN_STOP_IDS_MAX];
    choice_t        choice[];    /* [params.n]                              */
} req_t;

typedef struct {
    di_ipc_server_t *server;
    di_vocab_t      *vocab;
    di_tok_t        *tok;
    req_t           *first, *last;
    req_t           *bucket[BUCKETS];
    const char      *fallback;   /* --script: played when there is none     */
    FILE            *log;        /* NULL: --quiet                           */
    int32_t          im_start;   /* -1: the vocabulary has none             */
    int32_t          im_end;
    uint32_t         vocab_size;
    uint32_t         max_model_len;
    char            *text;       /* scratch of the prompt's text            */
    size_t           text_cap;
    int32_t         *ids;        /* scratch of its tokens                   */
    size_t           ids_cap;
    di_ipc_status_t  status;
    bool             status_changed;
    uint32_t         draining;
} echo_t;

static const char *const finish_names[] = {
    "?", "stop", "stop_id", "length", "cancel", "error",
};

static const char *const reject_names[] = {
    "?", "invalid", "too_long", "queue_full", "draining", "kv", "internal",
};

static uint64_t
now_us(void)
{
    struct timespec t;

    (void) clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t) t.tv_sec * 1000000u + (uint64_t) t.tv_nsec / 1000u;
}

__attribute__((format(printf, 2, 3)))
static void
note(echo_t *e, const char *fmt, ...)
{
    va_list ap;

    if (e->log == NULL)
        return;

    va_start(ap, fmt);
    (void) vfprintf(e->log, fmt, ap);
    va_end(ap);
}

__attribute__((noreturn, format(printf, 1, 2)))
static void
fail(const char *fmt, ...)
{
    va_list ap;

    (void) fputs("echo-engine: ", stderr);
    va_start(ap, fmt);
    (void) vfprintf(stderr, fmt, ap);
    va_end(ap);
    (void) fputc('\n', stderr);
    exit(1);
}

/* The connection has room, or is gone: SLOTS_PER_TURN and DI_IPC_RESERVE. */
static void
send_event(echo_t *e, const req_t *r, const di_event_t *ev,
           const di_top_logprob_t *top)
{
    int rc = di_ipc_server_send(e->server, r->conn, ev, top);

    if (rc != DI_OK && rc != DI_ECLOSED)
        fail("an event did not fit (%d)", rc);
}

/* -------------------------------------------------------------- requests -- */

static req_t **
bucket_of(echo_t *e, uint32_t conn, uint64_t id)
{
    uint64_t h = (id ^ (uint64_t) conn << 32) * 0x9e3779b97f4a7c15ull;

    return &e->bucket[h >> 52];
}

_Static_assert(BUCKETS == 1 << (64 - 52), "the hash's upper bits");

static req_t *
find(echo_t *e, uint32_t conn, uint64_t id)
{
    req_t *r = *bucket_of(e, conn, id);

    while (r != NULL && (r->id != id || r->conn != conn))
        r = r->same;
    return r;
}

static void
link_req(echo_t *e, req_t *r)
{
    req_t **b = bucket_of(e, r->conn, r->id);

    r->same = *b;
    *b = r;
    r->prev = e->last;
    *(e->last != NULL ? &e->last->next : &e->first) = r;
    e->last = r;
    e->status.waiting++;
    e->status_changed = true;
}

static uint32_t
blocks(uint32_t tokens)
{
    return (tokens + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
}

static void
free_req(echo_t *e, req_t *r)
{
    uint32_t i;
    req_t  **b = bucket_of(e, r->conn, r->id);

    while (*b != r)
        b = &(*b)->same;
    *b = r->same;

    *(r->prev != NULL ? &r->prev->next : &e->first) = r->next;
    *(r->next != NULL ? &r->next->prev : &e->last) = r->prev;

    if (r->started) {
        e->status.running -= r->params.n;
        for (i = 0; i < r->params.n; i++)
            e->status.kv_blocks_live -= blocks(r->n_prompt
                                               + r->choice[i].sent);
    } else {
        e->status.waiting--;
    }
    e->status_changed = true;

    script_free(&r->script);
    free(r->prompt);
    free(r);
}

static void
finish(echo_t *e, req_t *r, uint32_t index, di_finish_t reason,
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
    note(e, "finish conn=%u id=%llu choice=%u reason=%s tokens=%u\n", r->conn,
         (unsigned long long) r->id, index, finish_names[reason], told);
}

static void
reject(echo_t *e, const di_ipc_msg_t *msg, uint32_t reason, uint32_t a,
       uint32_t b, const char *text)
{
    di_event_t ev = { .id = msg->id, .type = DI_EV_REJECT };

    ev.u.reject.reason = reason;
    ev.u.reject.a = a;
    ev.u.reject.b = b;
    (void) snprintf(ev.u.reject.text, sizeof(ev.u.reject.text), "%.27s", text);
    (void) di_ipc_server_send(e->server, msg->conn, &ev, NULL);
    note(e, "reject conn=%u id=%llu reason=%s\n", msg->conn,
         (unsigned long long) msg->id, reject_names[reason]);
}

/* ---------------------------------------------------------------- prompt -- */

static void *
scratch(void *buf, size_t *cap, size_t want, size_t size)
{
    void *p;

    if (want <= *cap)
        return buf;

    p = realloc(buf, want * 2 * size);
    if (p == NULL)
        fail("out of memory");
    *cap = want * 2;
    return p;
}

/* Bytes of ids[0..n) to e->text; the length. */
static size_t
decode(echo_t *e, const int32_t *ids, uint32_t n)
{
    size_t      len = 0, bytes;
    uint32_t    i;
    const char *p;

    for (i = 0; i < n; i++) {
        p = di_vocab_bytes(e->vocab, ids[i], &bytes);
        e->text = scratch(e->text, &e->text_cap, len + bytes + 1, 1);
        memcpy(e->text + len, p, bytes);
        len += bytes;
    }

    return len;
}

/* Find the last user message of a ChatML prompt: its text in e->text at
 * *start, *len; its tokens, [*n] at the returned address.  A prompt without
 * one is all user text. */
static const int32_t *
last_user(echo_t *e, const di_gen_request_t *req, size_t *start, size_t *len,
          uint32_t *n)
{
    size_t      bytes, seen, count;
    uint32_t    i, k, end = req->n_prompt;
    const char  role[] = "user\n";

    for (i = req->n_prompt; e->im_start >= 0 && i-- > 0; ) {
        if (req->prompt[i] == e->im_end)
            end = i;
        if (req->prompt[i] != e->im_start)
            continue;

        k = end - (i + 1) < sizeof(role) - 1 ? end - (i + 1)
                                             : sizeof(role) - 1;
        if (decode(e, req->prompt + i + 1, k) < sizeof(role) - 1
            || memcmp(e->text, role, sizeof(role) - 1) != 0)
        {
            continue;
        }

        *len = decode(e, req->prompt + i + 1, end - (i + 1))
               - (sizeof(role) - 1);
        *start = sizeof(role) - 1;

        for (seen = 0, k = i + 1; seen < sizeof(role) - 1; k++) {
            (void) di_vocab_bytes(e->vocab, req->prompt[k], &bytes);
            seen += bytes;
        }

        if (seen == sizeof(role) - 1) {
            *n = end - k;
            return req->prompt + k;
        }

        /* A token holds the role's newline and the text's first bytes. */
        e->ids = scratch(e->ids, &e->ids_cap, *len + 1, sizeof(*e->ids));
        if (di_tok_encode(e->tok, e->text + *start, *len, e->ids, *len, &count)
            != DI_OK)
            fail("out of memory");
        *n = (uint32_t) count;
        return e->ids;
    }

    *start = 0;
    *len = decode(e, req->prompt, req->n_prompt);
    *n = req->n_prompt;
    return req->prompt;
}

static bool
is_script(const char *text, size_t len)
{
    return (len >= 2 && memcmp(text, "@@", 2) == 0)
           || memmem(text, len, "\n@@", 3) != NULL;
}

static int
make_script(echo_t *e, const di_gen_request_t *req, script_t *script)
{
    size_t         start, len;
    uint32_t       n;
    const int32_t *ids = last_user(e, req, &start, &len, &n);

    if (len > 0 && is_script(e->text + start, len))
        return script_parse(script, e->tok, e->vocab, e->text + start, len);

    if (e->fallback != NULL)
        return script_parse(script, e->tok, e->vocab, e->fallback,
                            strlen(e->fallback));

    return script_echo(script, ids, n);
}

static bool
ids_known(const echo_t *e, const int32_t *ids, uint32_t n)
{
    uint32_t i;

    for (i = 0; i < n; i++) {
        if (ids[i] < 0 || (uint32_t) ids[i] >= e->vocab_size)
            return false;
    }

    return true;
}

/* What the engine adds to di_gen_request_check(); true: refused. */
static bool
refused(echo_t *e, const di_ipc_msg_t *msg)
{
    uint32_t                i;
    const di_gen_request_t *req = &msg->req;

    if (e->draining) {
        reject(e, msg, DI_REJECT_DRAINING, 0, 0, "");
        return true;
    }

    if (req->n_prompt >= e->max_model_len) {
        reject(e, msg, DI_REJECT_TOO_LONG, req->n_prompt, e->max_model_len,
               "prompt");
        return true;
    }

    if (!ids_known(e, req->prompt, req->n_prompt)) {
        reject(e, msg, DI_REJECT_INVALID, 0, 0, "prompt");
        return true;
    }

    if (!ids_known(e, req->stop_ids, req->n_stop_ids)) {
        reject(e, msg, DI_REJECT_INVALID, 0, 0, "stop_ids");
        return true;
    }

    for (i = 0; i < req->n_bias; i++) {
        if ((uint32_t) req->bias[i].id >= e->vocab_size) {
            reject(e, msg, DI_REJECT_INVALID, 0, 0, "logit_bias");
            return true;
        }
    }

    return false;
}

static req_t *
new_req(const di_ipc_msg_t *msg, uint32_t max_model_len)
{
    req_t                  *r;
    uint32_t                i;
    const di_gen_request_t *req = &msg->req;

    r = calloc(1, sizeof(*r) + req->params.n * sizeof(choice_t));
    if (r == NULL)
        fail("out of memory");

    r->id = msg->id;
    r->conn = msg->conn;
    r->params = req->params;
    r->n_prompt = req->n_prompt;
    r->queued_us = now_us();
    r->prompt_next = req->n_prompt;
    r->n_stop_ids = req->n_stop_ids;
    memcpy(r->stop_ids, req->stop_ids, req->n_stop_ids * sizeof(int32_t));

    r->limit = max_model_len - req->n_prompt;
    if (req->params.max_tokens != 0 && req->params.max_tokens < r->limit)
        r->limit = req->params.max_tokens;

    if (req->params.flags & DI_GEN_PROMPT_LOGPROBS) {
        r->prompt = malloc(req->n_prompt * sizeof(int32_t));
        if (r->prompt == NULL)
            fail("out of memory");
        memcpy(r->prompt, req->prompt, req->n_prompt * sizeof(int32_t));
        r->prompt_next = req->params.prompt_logprobs_from;
    }

    for (i = 0; i < req->params.n; i++) {
        r->choice[i].per = 1;
        r->choice[i].lp = UINT32_MAX;
    }

    return r;
}

static void
submit(echo_t *e, const di_ipc_msg_t *msg)
{
    uint32_t i;
    req_t   *r;
    script_t script;

    note(e, "submit conn=%u id=%llu prompt=%u n=%u max_tokens=%u flags=%u\n",
         msg->conn, (unsigned long long) msg->id, msg->req.n_prompt,
         msg->req.params.n, msg->req.params.max_tokens, msg->req.params.flags);

    if (refused(e, msg))
        return;

    if (make_script(e, &msg->req, &script) != DI_OK)
        fail("out of memory");

    if (script.reject != 0) {
        reject(e, msg, script.reject, script.reject_a, script.reject_b,
               script.reject_text);
        script_free(&script);
        return;
    }

    r = new_req(msg, e->max_model_len);
    r->script = script;
    for (i = 0; script.first_us != 0 && i < r->params.n; i++)
        r->choice[i].due_us = r->queued_us + script.first_us;
    link_req(e, r);
    e->status.requests++;
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
    e->status.kv_blocks_live += r->params.n * blocks(r->n_prompt);
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
        if (r->params.flags & DI_GEN_LOGPROBS)
            send_logprob(e, r, index, DI_EV_LOGPROB, ids[i], c->sent + i);
        ev.u.tokens[i] = ids[i];
        reason = ends(e, r, ids[i], c->sent + i + 1);
    }

    ev.n_tokens = (uint16_t) i;
    send_event(e, r, &ev, NULL);

    e->status.decode_tokens += i;
    e->status.kv_blocks_live += blocks(r->n_prompt + c->sent + i)
                                - blocks(r->n_prompt + c->sent);
    e->status_changed = true;
    c->sent += i;
    c->round_sent += i;

    if (reason != 0)
        finish(e, r, index, reason,
               reason == DI_FINISH_LENGTH ? -1 : ids[i - 1],
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

    finish(e, r, index, DI_FINISH_STOP, c->noend ? -1 : e->im_end,
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
    note(e, "die\n");
    if (e->log != NULL)
        (void) fflush(e->log);
    _exit(9);
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
                c->due_us = c->every_us != 0 ? now + c->every_us : 0;
                return;
            }
            c->off = 0;
            break;
        case OP_PER:
            c->per = op->a;
            break;
        case OP_EVERY:
            c->every_us = op->us;
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
                finish(e, r, index, (di_finish_t) op->a, -1,
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
static bool
step(echo_t *e, uint64_t *due)
{
    bool     sent = false;
    req_t   *r, *next;
    uint64_t now;

    *due = UINT64_MAX;
    if (e->first == NULL)
        return false;

    now = now_us();

    for (r = e->first; r != NULL; r = next) {
        next = r->next;
        if (r->paused)
            continue;
        sent |= turn(e, r, now, due);
        if (r->n_over == r->params.n)
            free_req(e, r);
    }

    e->status.steps += sent;
    return sent;
}

/* -------------------------------------------------------------- messages -- */

static void
cancel(echo_t *e, const di_ipc_msg_t *msg)
{
    uint32_t i;
    req_t   *r = find(e, msg->conn, msg->id);

    note(e, "cancel conn=%u id=%llu choice=%d%s\n", msg->conn,
         (unsigned long long) msg->id, (int) msg->choice,
         r == NULL ? " (unknown)" : "");

    if (r == NULL)
        return;

    for (i = 0; i < r->params.n; i++) {
        if (!r->choice[i].over
            && (msg->choice == UINT32_MAX || msg->choice == i))
        {
            finish(e, r, i, DI_FINISH_CANCEL, -1, r->choice[i].sent);
        }
    }

    if (r->n_over == r->params.n)
        free_req(e, r);
}

static void
set_paused(echo_t *e, const di_ipc_msg_t *msg, bool paused)
{
    req_t *r = find(e, msg->conn, msg->id);

    note(e, "%s conn=%u id=%llu%s\n", paused ? "pause" : "resume", msg->conn,
         (unsigned long long) msg->id, r == NULL ? " (unknown)" : "");
    if (r != NULL)
        r->paused = paused;
}

static void
closed(echo_t *e, uint32_t conn)
{
    req_t   *r, *next;
    uint32_t n = 0;

    for (r = e->first; r != NULL; r = next) {
        next = r->next;
        if (r->conn == conn) {
            n += r->params.n - r->n_over;
            free_req(e, r);
        }
    }

    note(e, "closed conn=%u dropped=%u\n", conn, n);
}

static void
handle(echo_t *e, const di_ipc_msg_t *msg)
{
    switch (msg->type) {
    case DI_MSG_SUBMIT:
        submit(e, msg);
        break;
    case DI_MSG_CANCEL:
        cancel(e, msg);
        break;
    case DI_MSG_PAUSE:
    case DI_MSG_RESUME:
        set_paused(e, msg, msg->type == DI_MSG_PAUSE);
        break;
    case DI_MSG_CLOSED:
        closed(e, msg->conn);
        break;
    }
}

static void
publish_status(echo_t *e)
{
    e->status.updated_us = now_us();
    e->status.draining = e->draining;
    e->status.kv_blocks_free = e->status.kv_blocks_total
                               - e->status.kv_blocks_live;
    di_ipc_server_status(e->server, &e->status);
    e->status_changed = false;
}

static void
take_signals(echo_t *e, int fd)
{
    struct signalfd_siginfo info;

    while (read(fd, &info, sizeof(info)) == (ssize_t) sizeof(info)) {
        e->draining++;
        e->status_changed = true;
        di_ipc_server_stop_listening(e->server);
        note(e, "draining\n");
    }
}

/* Serve until a signal, and then until the last request is over; a second
 * signal ends at once. */
static void
loop(echo_t *e, int signals)
{
    int          i;
    bool         sent;
    int64_t      timeout;
    uint64_t     due, now;
    di_ipc_msg_t msg;

    for ( ;; ) {
        for (i = 0; i < MESSAGES_MAX; i++) {
            if (di_ipc_server_recv(e->server, &msg) != DI_OK)
                break;
            handle(e, &msg);
        }

        sent = step(e, &due);

        if (e->status_changed)
            publish_status(e);
        if (e->log != NULL)
            (void) fflush(e->log);
        if (e->draining > 1 || (e->draining && e->first == NULL))
            return;

        timeout = 100000;
        if (sent) {
            timeout = 0;
        } else if (due != UINT64_MAX) {
            now = now_us();
            timeout = due > now ? (int64_t) (due - now) : 0;
        }

        if (di_ipc_server_wait(e->server, timeout) != DI_OK)
            fail("wait: %s", strerror(errno));

        take_signals(e, signals);
    }
}

/* ----------------------------------------------------------------- start -- */

static void
usage(void)
{
    (void) puts(
        "usage: echo-engine [serve] --listen unix:PATH --model FILE.gguf "
        "[options]\n"
        "  --name NAME          model name told to workers (echo)\n"
        "  --max-model-len N    (the file's)\n"
        "  --mode OCTAL         permission bits of the socket (0660)\n"
        "  --group NAME         group of the socket file\n"
        "  --spin US            spin before sleeping (0)\n"
        "  --script TEXT        played when a prompt has no script\n"
        "  --log FILE           instead of standard error\n"
        "  --quiet              log nothing (benchmarks)");
}

typedef struct {
    const char          *listen, *model, *script, *log;
    uint64_t             max_model_len;
    bool                 quiet;
    di_ipc_server_conf_t conf;
} options_t;

static uint64_t
parse_number(const char *name, const char *text, int base, uint64_t max)
{
    char    *end;
    uint64_t v;

    errno = 0;
    v = strtoull(text, &end, base);
    if (errno != 0 || end == text || *end != '\0' || v > max)
        fail("--%s: \"%s\" is not a number up to %llu", name, text,
             (unsigned long long) max);
    return v;
}

static void
parse_group(options_t *o, const char *name)
{
    struct group *gr = getgrnam(name);

    if (gr == NULL)
        fail("--group: there is no group \"%s\"", name);
    o->conf.set_group = true;
    o->conf.group = gr->gr_gid;
}

static void
parse_options(int argc, char **argv, options_t *o)
{
    int i, c;
    static const struct option options[] = {
        { "listen", required_argument, NULL, 'l' },
        { "model", required_argument, NULL, 'm' },
        { "name", required_argument, NULL, 'n' },
        { "max-model-len", required_argument, NULL, 'L' },
        { "mode", required_argument, NULL, 'M' },
        { "group", required_argument, NULL, 'g' },
        { "spin", required_argument, NULL, 's' },
        { "script", required_argument, NULL, 'S' },
        { "log", required_argument, NULL, 'o' },
        { "quiet", no_argument, NULL, 'q' },
        { "help", no_argument, NULL, 'h' },
        { NULL, 0, NULL, 0 },
    };

    (void) snprintf(o->conf.welcome.model, DI_IPC_NAME_MAX, "echo");

    while ((c = getopt_long(argc, argv, "", options, &i)) != -1) {
        switch (c) {
        case 'l': o->listen = optarg; break;
        case 'm': o->model = optarg; break;
        case 'S': o->script = optarg; break;
        case 'o': o->log = optarg; break;
        case 'q': o->quiet = true; break;
        case 'g': parse_group(o, optarg); break;
        case 'n':
            (void) snprintf(o->conf.welcome.model, DI_IPC_NAME_MAX, "%s",
                            optarg);
            break;
        case 'L':
            o->max_model_len = parse_number("max-model-len", optarg, 10,
                                            UINT32_MAX);
            break;
        case 'M':
            o->conf.mode = (uint32_t) parse_number("mode", optarg, 8, 0777);
            break;
        case 's':
            o->conf.spin_us = (uint32_t) parse_number("spin", optarg, 10,
                                                      1000000);
            break;
        case 'h':
            usage();
            exit(0);
        default:
            exit(2);
        }
    }

    /* "serve", as deepinfer-engine has it, may stand there. */
    if (optind < argc && strcmp(argv[optind], "serve") == 0)
        optind++;

    if (optind != argc || o->listen == NULL || o->model == NULL
        || strncmp(o->listen, "unix:", 5) != 0)
    {
        usage();
        exit(2);
    }
}

static void
open_model(echo_t *e, options_t *o)
{
    uint64_t         v;
    di_err_t         err = { 0 };
    di_gguf_t       *gguf;
    const int32_t   *end_ids;
    di_ipc_welcome_t *w = &o->conf.welcome;

    if (di_gguf_open(o->model, &gguf, &err) != DI_OK
        || di_vocab_open_gguf(gguf, &e->vocab, &err) != DI_OK)
        fail("%s: %s", o->model, err.text);
    if (di_tok_open(e->vocab, &e->tok) != DI_OK)
        fail("out of memory");

    if (di_gguf_u64(gguf, "llama.context_length", &v) != DI_OK)
        v = 8192;
    if (o->max_model_len != 0 && o->max_model_len < v)
        v = o->max_model_len;
    if (v < 2)
        fail("a model length of %llu leaves no room",
             (unsigned long long) v);
    e->max_model_len = (uint32_t) (v < INT32_MAX ? v : INT32_MAX);
    e->vocab_size = di_vocab_size(e->vocab);

    e->im_start = di_vocab_special(e->vocab, "<|im_start|>", 12);
    e->im_end = di_vocab_special(e->vocab, "<|im_end|>", 10);
    if (e->im_end < 0) {
        if (di_vocab_end_ids(e->vocab, &end_ids) == 0)
            fail("%s: the vocabulary has no end token", o->model);
        e->im_end = end_ids[0];
    }

    di_gguf_fingerprint(gguf, w->fingerprint);
    (void) snprintf(w->arith, sizeof(w->arith), "echo");
    w->vocab = e->vocab_size;
    w->max_model_len = e->max_model_len;
    w->pid = (uint32_t) getpid();
    di_gguf_close(gguf);
}

int
main(int argc, char **argv)
{
    int           signals;
    sigset_t      set;
    di_err_t      err = { 0 };
    options_t     o = { 0 };
    static echo_t e;

    parse_options(argc, argv, &o);
    open_model(&e, &o);

    e.fallback = o.script;
    e.log = o.quiet ? NULL : stderr;
    if (o.log != NULL && !o.quiet && (e.log = fopen(o.log, "a")) == NULL)
        fail("%s: %s", o.log, strerror(errno));
    if (e.log != NULL)
        (void) setvbuf(e.log, NULL, _IOFBF, 1 << 16);

    (void) signal(SIGPIPE, SIG_IGN);
    (void) sigemptyset(&set);
    (void) sigaddset(&set, SIGTERM);
    (void) sigaddset(&set, SIGINT);
    (void) sigprocmask(SIG_BLOCK, &set, NULL);
    signals = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);

    if (signals < 0
        || di_ipc_server_open(o.listen + 5, &o.conf, &e.server, &err) != DI_OK)
        fail("%s", signals < 0 ? strerror(errno) : err.text);
    if (di_ipc_server_wake_fd(e.server, signals) != DI_OK)
        fail("epoll: %s", strerror(errno));

    e.status.kv_blocks_total = BLOCKS_TOTAL;
    e.status.kv_block_tokens = BLOCK_TOKENS;
    e.status.max_model_len = e.max_model_len;
    e.status.queue_max = UINT32_MAX;
    publish_status(&e);
    note(&e, "listening on %s\n", o.listen);

    loop(&e, signals);

    di_ipc_server_close(e.server);
    di_tok_close(e.tok);
    di_vocab_close(e.vocab);
    free(e.text);
    free(e.ids);
    if (e.log != NULL && e.log != stderr)
        (void) fclose(e.log);
    return 0;
}
