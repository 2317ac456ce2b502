/*
 * request.c - from a submission to a request with its script.
 *
 * What a request shall answer stands in the last user message of its prompt,
 * which is found by ChatML's or DeepSeek's control tokens; a prompt without
 * them is all user text.  A request is one allocation, its script two or three
 * more.
 */

#include <stdlib.h>
#include <string.h>

#include "echo.h"

static const char *const reject_names[] = {
    "?", "invalid", "too_long", "queue_full", "draining", "kv", "internal",
};

/* -------------------------------------------------------------- requests -- */

static req_t **
bucket_of(echo_t *e, uint32_t conn, uint64_t id)
{
    uint64_t h = (id ^ (uint64_t) conn << 32) * 0x9e3779b97f4a7c15ull;

    return &e->bucket[h >> 52];
}

_Static_assert(ECHO_BUCKETS == 1 << (64 - 52), "the hash's upper bits");

req_t *
echo_find(echo_t *e, uint32_t conn, uint64_t id)
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

void
echo_free_req(echo_t *e, req_t *r)
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
            e->status.kv_blocks_live -= echo_blocks(r->n_prompt
                                               + r->choice[i].sent);
    } else {
        e->status.waiting--;
    }
    e->status_changed = true;

    for (i = 0; i < r->params.n; i++)
        di_gram_match_close(r->choice[i].match);
    script_free(&r->script);
    free(r->prompt);
    free(r);
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
    echo_note(e, "reject conn=%u id=%llu reason=%s\n", msg->conn,
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
        echo_fail("out of memory");
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

/* Find the last user message of a prompt in ChatML or DeepSeek's spelling: its
 * text in e->text at *start, *len; its tokens, [*n] at the returned address.
 * A prompt without one is all user text. */
static const int32_t *
last_user(echo_t *e, const di_gen_request_t *req, size_t *start, size_t *len,
          uint32_t *n)
{
    size_t      bytes, seen, count;
    uint32_t    i, k, end = req->n_prompt;
    const char  role[] = "user\n";

    for (i = req->n_prompt; e->user >= 0 && i-- > 0; ) {
        if (req->prompt[i] != e->user) {
            if (req->prompt[i] == e->close)
                end = i;
            continue;
        }

        if (!e->chatml) {
            *start = 0;
            *len = decode(e, req->prompt + i + 1, end - (i + 1));
            *n = end - (i + 1);
            return req->prompt + i + 1;
        }

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
            echo_fail("out of memory");
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

/* Open a request's grammar; *gram is owned, or NULL where it has none. */
static int
open_grammar(echo_t *e, const di_gen_request_t *req, di_gram_t **gram)
{
    *gram = NULL;
    if (req->n_grammar != 0 && e->index == NULL
        && di_gram_index_open(e->vocab, 0, &e->index) != DI_OK)
        echo_fail("out of memory");
    return req->n_grammar == 0
           ? DI_OK : di_gram_open(req->grammar, req->n_grammar, gram, NULL);
}

static req_t *
new_req(const di_ipc_msg_t *msg, uint32_t max_model_len, di_gram_t *gram)
{
    req_t                  *r;
    uint32_t                i;
    const di_gen_request_t *req = &msg->req;

    r = calloc(1, sizeof(*r) + req->params.n * sizeof(choice_t));
    if (r == NULL)
        echo_fail("out of memory");

    r->id = msg->id;
    r->conn = msg->conn;
    r->params = req->params;
    r->n_prompt = req->n_prompt;
    r->queued_us = echo_now_us();
    r->prompt_next = req->n_prompt;
    r->n_stop_ids = req->n_stop_ids;
    memcpy(r->stop_ids, req->stop_ids, req->n_stop_ids * sizeof(int32_t));

    r->limit = max_model_len - req->n_prompt;
    if (req->params.max_tokens != 0 && req->params.max_tokens < r->limit)
        r->limit = req->params.max_tokens;

    if (req->params.flags & DI_GEN_PROMPT_LOGPROBS) {
        r->prompt = malloc(req->n_prompt * sizeof(int32_t));
        if (r->prompt == NULL)
            echo_fail("out of memory");
        memcpy(r->prompt, req->prompt, req->n_prompt * sizeof(int32_t));
        r->prompt_next = req->params.prompt_logprobs_from;
    }

    for (i = 0; i < req->params.n; i++) {
        r->choice[i].per = 1;
        r->choice[i].lp = UINT32_MAX;
        if (gram != NULL
            && di_gram_match_open(gram, 0, &r->choice[i].match) != DI_OK)
            echo_fail("out of memory");
    }

    return r;
}

void
echo_submit(echo_t *e, const di_ipc_msg_t *msg)
{
    uint32_t   i;
    req_t     *r;
    script_t   script;
    di_gram_t *gram;

    echo_note(e, "submit conn=%u id=%llu prompt=%u n=%u max_tokens=%u "
              "flags=%u grammar=%u\n", msg->conn, (unsigned long long) msg->id,
              msg->req.n_prompt, msg->req.params.n, msg->req.params.max_tokens,
              msg->req.params.flags, msg->req.n_grammar);

    if (refused(e, msg))
        return;

    if (open_grammar(e, &msg->req, &gram) != DI_OK) {
        reject(e, msg, DI_REJECT_INVALID, 0, 0, "grammar");
        return;
    }

    if (make_script(e, &msg->req, &script) != DI_OK)
        echo_fail("out of memory");

    if (script.reject != 0) {
        reject(e, msg, script.reject, script.reject_a, script.reject_b,
               script.reject_text);
        script_free(&script);
        di_gram_unref(gram);
        return;
    }

    r = new_req(msg, e->max_model_len, gram);
    di_gram_unref(gram);
    r->script = script;
    for (i = 0; script.first_us != 0 && i < r->params.n; i++)
        r->choice[i].due_us = r->queued_us + script.first_us;
    link_req(e, r);
    e->status.requests++;
}
