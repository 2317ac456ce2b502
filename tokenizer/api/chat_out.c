/*
 * chat_out.c - engine events to Chat Completions bodies and SSE streams.
 *
 * A choice's tokens become bytes, the bytes go through its di_text_t (stop
 * strings, whole characters), and what that lets go is written as the content
 * of one chunk per call, or gathered, already escaped, for the body.  Both
 * forms run through the same code, so joined deltas and body are equal.
 *
 * Not shown: tokens that end a turn, all other control tokens, and the
 * request's own stop_token_ids; they count as completion tokens and have no
 * log-probability entry, so that the entries' bytes joined are the text.
 *
 * Log-probability entries wait in a queue until their token's last byte was
 * shown, or was dropped because a stop string took it: then they go out with
 * that chunk (one with empty content if nothing else is left to show).  So an
 * answer cut by a stop string has the entries of the tokens that were cut.
 *
 * Speed: all of a chunk that doesn't change is formatted once, at opening.
 *
 * Stop strings are not looked for in the first min_tokens tokens.
 */

#include "di_chat.h"
#include "text_out.h"
#include "di_utf8.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    uint64_t text_end;           /* its token's end in the choice's bytes   */
    size_t   json_len;           /* length of the entry's JSON              */
} entry_t;

/* Entries that were not written yet, oldest first. */
typedef struct {
    di_sbuf_t json;              /* their JSON, end to end                  */
    entry_t  *entries;           /* [n]                                     */
    size_t    n;
    size_t    cap;
    uint64_t  announced;         /* text_end of the newest                  */
} queue_t;

typedef struct {
    di_text_t        text;
    uint64_t         fed;        /* bytes of shown tokens so far            */
    uint32_t         tokens;     /* completion tokens so far                */
    di_chat_finish_t reason;     /* 0: not finished                         */
    bool             opened;     /* stream: the role chunk was written      */
    bool             stopped;    /* a stop string was met                   */
    queue_t          queue;
    di_sbuf_t        content;    /* body: escaped text                      */
    di_sbuf_t        logprobs;   /* body: entries with commas               */
} choice_t;

struct di_chat_out_s {
    const di_chat_params_t *params;
    const di_vocab_t       *vocab;
    di_stops_t              stops;
    di_sbuf_t               head;      /* of every chunk, up to an index    */
    size_t                  head_base; /* of it, up to "choices":[          */
    di_sbuf_t               tail;      /* of every chunk, from the end of a
                                        * plain content string              */
    size_t                  tail_base; /* where the tail after the choice's
                                        * closing brace begins              */
    uint32_t                prompt_tokens;
    uint32_t                cached_tokens;
    uint32_t                running;   /* choices not finished              */
    choice_t                choices[]; /* [params->n]                       */
};

#define CHOICE  "{\"index\":"
#define ROLE    ",\"delta\":{\"role\":\"assistant\",\"content\":\"\","       \
                "\"refusal\":null},\"logprobs\":null,\"finish_reason\":null}"
#define DELTA   ",\"delta\":{\"content\":\""
#define PLAIN   "\"},\"logprobs\":null,\"finish_reason\":null}"

/* ------------------------------------------------------------ open, close */

/* id, object, created and model, as chunks and body begin with. */
static void
write_head(di_sbuf_t *b, const char *object, const char *id, di_str_t model,
           int64_t created)
{
    di_sbuf_lit(b, "{\"id\":");
    di_json_add_string(b, id, strlen(id));
    di_sbuf_lit(b, ",\"object\":\"");
    di_sbuf_add(b, object, strlen(object));
    di_sbuf_lit(b, "\",\"created\":");
    di_json_add_i64(b, created);
    di_sbuf_lit(b, ",\"model\":");
    di_json_add_string(b, model.data, model.len);
    di_sbuf_lit(b, ",\"choices\":[");
}

static int
prepare(di_chat_out_t *out, const char *id, di_str_t model, int64_t created)
{
    uint32_t i;

    if (out->params->stream)
        di_sbuf_lit(&out->head, "data: ");

    write_head(&out->head, out->params->stream ? "chat.completion.chunk"
               : "chat.completion", id, model, created);
    out->head_base = out->head.len;
    di_sbuf_lit(&out->head, CHOICE);

    di_sbuf_lit(&out->tail, PLAIN);
    out->tail_base = out->tail.len;
    if (out->params->include_usage)
        di_sbuf_lit(&out->tail, "],\"usage\":null}\n\n");
    else
        di_sbuf_lit(&out->tail, "]}\n\n");

    if (out->head.failed || out->tail.failed)
        return DI_ENOMEM;

    if (di_stops_init(&out->stops, out->params->stop, out->params->n_stop)
        != DI_OK)
        return DI_ENOMEM;

    for (i = 0; i < out->params->n; i++) {
        if (di_text_init(&out->choices[i].text, &out->stops) != DI_OK)
            return DI_ENOMEM;
    }

    return DI_OK;
}

int
di_chat_out_open(const di_chat_req_t *req, const di_vocab_t *vocab,
                 const char *id, di_str_t model, int64_t created,
                 di_chat_out_t **out)
{
    const di_chat_params_t *params = di_chat_req_params(req);
    di_chat_out_t          *o;

    o = calloc(1, sizeof(*o) + params->n * sizeof(o->choices[0]));
    if (o == NULL)
        return DI_ENOMEM;

    o->params = params;
    o->vocab = vocab;
    o->running = params->n;

    if (prepare(o, id, model, created) != DI_OK) {
        di_chat_out_close(o);
        return DI_ENOMEM;
    }

    *out = o;
    return DI_OK;
}

void
di_chat_out_close(di_chat_out_t *out)
{
    choice_t *c;
    uint32_t  i;

    if (out == NULL)
        return;

    for (i = 0; i < out->params->n; i++) {
        c = &out->choices[i];
        di_text_deinit(&c->text);
        di_sbuf_free(&c->queue.json);
        free(c->queue.entries);
        di_sbuf_free(&c->content);
        di_sbuf_free(&c->logprobs);
    }

    di_stops_deinit(&out->stops);
    di_sbuf_free(&out->head);
    di_sbuf_free(&out->tail);
    free(out);
}

void
di_chat_out_start(di_chat_out_t *out, uint32_t prompt_tokens,
                  uint32_t cached_tokens)
{
    out->prompt_tokens = prompt_tokens;
    out->cached_tokens = cached_tokens;
}

/* ------------------------------------------------------ log-probabilities */

static bool
is_hidden(const di_chat_out_t *out, int32_t token)
{
    size_t i;

    if (di_vocab_is_special(out->vocab, token)
        || di_vocab_is_end(out->vocab, token))
        return true;

    for (i = 0; i < out->params->n_stop_ids; i++) {
        if (out->params->stop_ids[i] == token)
            return true;
    }

    return false;
}

/* The token's text: if its bytes are no UTF-8 by themselves, all of them as
 * \xHH; "bytes" always has the real ones. */
static void
write_token(const di_chat_out_t *out, di_sbuf_t *b, int32_t token,
            float logprob)
{
    static const char hex[] = "0123456789abcdef";
    const char       *p;
    size_t            i, n = 0;

    p = di_vocab_bytes(out->vocab, token, &n);
    if (p == NULL)
        n = 0;

    di_sbuf_lit(b, "{\"token\":\"");

    if (di_utf8_valid(p, n)) {
        di_json_add_text(b, p, n);

    } else {
        for (i = 0; i < n; i++) {
            di_sbuf_lit(b, "\\\\x");
            di_sbuf_add(b, &hex[(unsigned char) p[i] >> 4], 1);
            di_sbuf_add(b, &hex[(unsigned char) p[i] & 15], 1);
        }
    }

    di_sbuf_lit(b, "\",\"logprob\":");
    di_json_add_logprob(b, logprob);
    di_sbuf_lit(b, ",\"bytes\":[");

    for (i = 0; i < n; i++) {
        if (i > 0)
            di_sbuf_lit(b, ",");
        di_json_add_u64(b, (unsigned char) p[i]);
    }

    di_sbuf_lit(b, "]");
}

static int
queue_room(queue_t *q)
{
    entry_t *entries;
    size_t   cap;

    if (q->n < q->cap)
        return DI_OK;

    cap = q->cap == 0 ? 8 : q->cap * 2;
    entries = realloc(q->entries, cap * sizeof(*entries));
    if (entries == NULL)
        return DI_ENOMEM;

    q->entries = entries;
    q->cap = cap;
    return DI_OK;
}

int
di_chat_out_logprob(di_chat_out_t *out, uint32_t choice, int32_t token,
                    float logprob, const di_chat_top_t *top, size_t n_top)
{
    queue_t *q;
    size_t   i, before, len = 0;

    if (choice >= out->params->n)
        return DI_EINVAL;

    if (!out->params->logprobs || is_hidden(out, token)
        || out->choices[choice].stopped || out->choices[choice].reason != 0)
        return DI_OK;

    q = &out->choices[choice].queue;
    if (queue_room(q) != DI_OK)
        return DI_ENOMEM;

    before = q->json.len;
    write_token(out, &q->json, token, logprob);
    di_sbuf_lit(&q->json, ",\"top_logprobs\":[");

    for (i = 0; i < n_top && i < out->params->top_logprobs; i++) {
        if (i > 0)
            di_sbuf_lit(&q->json, ",");
        write_token(out, &q->json, top[i].id, top[i].logprob);
        di_sbuf_lit(&q->json, "}");
    }

    di_sbuf_lit(&q->json, "]}");
    if (q->json.failed)
        return DI_ENOMEM;

    (void) di_vocab_bytes(out->vocab, token, &len);
    q->announced += len;
    q->entries[q->n].text_end = q->announced;
    q->entries[q->n].json_len = q->json.len - before;
    q->n++;
    return DI_OK;
}

/* Entries whose tokens end at or before text_end. */
static size_t
queue_ready(const queue_t *q, uint64_t text_end)
{
    size_t n;

    for (n = 0; n < q->n && q->entries[n].text_end <= text_end; n++) {
        /* void */
    }

    return n;
}

/* Move the first n entries to b, with commas between and, if b has entries
 * already, before. */
static void
queue_take(queue_t *q, size_t n, di_sbuf_t *b, bool comma)
{
    size_t i, at = 0;

    for (i = 0; i < n; i++) {
        if (comma)
            di_sbuf_lit(b, ",");
        comma = true;
        di_sbuf_add(b, q->json.data + at, q->entries[i].json_len);
        at += q->entries[i].json_len;
    }

    q->n -= n;
    q->json.len -= at;

    if (q->n != 0) {
        memmove(q->entries, q->entries + n, q->n * sizeof(*q->entries));
        memmove(q->json.data, q->json.data + at, q->json.len);
    }
}

/* ----------------------------------------------------------------- chunks */

static void
chunk_head(const di_chat_out_t *out, const choice_t *c, di_sbuf_t *sse)
{
    di_sbuf_add(sse, out->head.data, out->head.len);
    di_json_add_u64(sse, (uint64_t) (c - out->choices));
}

static void
chunk_tail(const di_chat_out_t *out, di_sbuf_t *sse)
{
    di_sbuf_add(sse, out->tail.data + out->tail_base,
                out->tail.len - out->tail_base);
}

/* The first chunk of a choice tells the role. */
static void
open_choice(const di_chat_out_t *out, choice_t *c, di_sbuf_t *sse)
{
    if (c->opened || !out->params->stream)
        return;

    c->opened = true;
    chunk_head(out, c, sse);
    di_sbuf_lit(sse, ROLE);
    chunk_tail(out, sse);
}

static void
write_delta(const di_chat_out_t *out, choice_t *c, size_t n_text,
            size_t n_entries, di_sbuf_t *sse)
{
    chunk_head(out, c, sse);
    di_sbuf_lit(sse, DELTA);
    di_json_add_text(sse, c->text.pending.data, n_text);

    if (n_entries == 0) {
        di_sbuf_add(sse, out->tail.data, out->tail.len);
        return;
    }

    di_sbuf_lit(sse, "\"},\"logprobs\":{\"content\":[");
    queue_take(&c->queue, n_entries, sse, false);
    di_sbuf_lit(sse, "],\"refusal\":null},\"finish_reason\":null}");
    chunk_tail(out, sse);
}

/* Show what is decided; everything if no more text can come. */
static int
show(const di_chat_out_t *out, choice_t *c, bool final, di_sbuf_t *sse)
{
    size_t n_text = di_text_ready(&c->text, final), n_entries;

    n_entries = queue_ready(&c->queue, final ? c->fed : c->fed
                            - (c->text.pending.len - n_text));

    /* An entry whose token has no bytes waits for the next text. */
    if (n_text == 0 && (n_entries == 0 || !final))
        return DI_OK;

    if (out->params->stream) {
        write_delta(out, c, n_text, n_entries, sse);

    } else {
        di_json_add_text(&c->content, c->text.pending.data, n_text);
        queue_take(&c->queue, n_entries, &c->logprobs, c->logprobs.len > 0);
    }

    di_text_drop(&c->text, n_text);
    return c->content.failed || c->logprobs.failed ? DI_ENOMEM : DI_OK;
}

int
di_chat_out_tokens(di_chat_out_t *out, uint32_t choice, const int32_t *tokens,
                   size_t n_tokens, di_sbuf_t *sse, bool *stopped)
{
    const char *bytes;
    choice_t   *c;
    size_t      i, len;

    *stopped = false;
    if (choice >= out->params->n)
        return DI_EINVAL;

    c = &out->choices[choice];
    *stopped = c->stopped;
    if (c->stopped || c->reason != 0)
        return DI_OK;

    open_choice(out, c, sse);

    for (i = 0; i < n_tokens && !c->stopped; i++) {
        c->tokens++;

        if (is_hidden(out, tokens[i]))
            continue;

        bytes = di_vocab_bytes(out->vocab, tokens[i], &len);
        if (bytes == NULL)
            continue;

        c->fed += len;
        if (di_text_feed(&c->text, &out->stops, bytes, len,
                         c->tokens > out->params->min_tokens, &c->stopped)
            != DI_OK)
            return DI_ENOMEM;
    }

    *stopped = c->stopped;
    if (show(out, c, c->stopped, sse) != DI_OK)
        return DI_ENOMEM;

    return out->params->stream && sse->failed ? DI_ENOMEM : DI_OK;
}

/* ------------------------------------------------------------------- ends */

static const char *
reason_name(di_chat_finish_t reason)
{
    switch (reason) {
    case DI_CHAT_STOP:   return "stop";
    case DI_CHAT_LENGTH: return "length";
    case DI_CHAT_ERROR:  return "error";
    }

    return "";
}

int
di_chat_out_finish(di_chat_out_t *out, uint32_t choice,
                   di_chat_finish_t reason, di_sbuf_t *sse, bool *done)
{
    const char *name;
    choice_t   *c;

    *done = out->running == 0;
    if (choice >= out->params->n)
        return DI_EINVAL;

    c = &out->choices[choice];
    if (c->reason != 0)
        return DI_OK;

    if (c->stopped)
        reason = DI_CHAT_STOP;

    if (reason != DI_CHAT_ERROR)
        open_choice(out, c, sse);

    if (show(out, c, true, sse) != DI_OK)
        return DI_ENOMEM;

    c->reason = reason;
    *done = --out->running == 0;

    if (out->params->stream && reason != DI_CHAT_ERROR) {
        name = reason_name(reason);
        chunk_head(out, c, sse);
        di_sbuf_lit(sse, ",\"delta\":{},\"logprobs\":null,"
                    "\"finish_reason\":\"");
        di_sbuf_add(sse, name, strlen(name));
        di_sbuf_lit(sse, "\"}");
        chunk_tail(out, sse);
    }

    return out->params->stream && sse->failed ? DI_ENOMEM : DI_OK;
}

static void
write_usage(const di_chat_out_t *out, di_sbuf_t *b)
{
    uint64_t completion = di_chat_out_completion_tokens(out);

    di_sbuf_lit(b, "\"usage\":{\"prompt_tokens\":");
    di_json_add_u64(b, out->prompt_tokens);
    di_sbuf_lit(b, ",\"completion_tokens\":");
    di_json_add_u64(b, completion);
    di_sbuf_lit(b, ",\"total_tokens\":");
    di_json_add_u64(b, out->prompt_tokens + completion);
    di_sbuf_lit(b, ",\"prompt_tokens_details\":{\"cached_tokens\":");
    di_json_add_u64(b, out->cached_tokens);
    di_sbuf_lit(b, "}}");
}

int
di_chat_out_end(di_chat_out_t *out, di_sbuf_t *sse)
{
    if (out->params->include_usage) {
        di_sbuf_add(sse, out->head.data, out->head_base);
        di_sbuf_lit(sse, "],");
        write_usage(out, sse);
        di_sbuf_lit(sse, "}\n\n");
    }

    di_sbuf_lit(sse, "data: [DONE]\n\n");
    return sse->failed ? DI_ENOMEM : DI_OK;
}

int
di_chat_out_body(di_chat_out_t *out, di_sbuf_t *body)
{
    const choice_t *c;
    const char     *name;
    uint32_t        i;

    di_sbuf_add(body, out->head.data, out->head_base);

    for (i = 0; i < out->params->n; i++) {
        c = &out->choices[i];
        name = reason_name(c->reason);

        if (i > 0)
            di_sbuf_lit(body, ",");
        di_sbuf_lit(body, CHOICE);
        di_json_add_u64(body, i);
        di_sbuf_lit(body, ",\"message\":{\"role\":\"assistant\","
                    "\"content\":\"");
        di_sbuf_add(body, c->content.data, c->content.len);
        di_sbuf_lit(body, "\",\"refusal\":null},\"logprobs\":");

        if (out->params->logprobs) {
            di_sbuf_lit(body, "{\"content\":[");
            di_sbuf_add(body, c->logprobs.data, c->logprobs.len);
            di_sbuf_lit(body, "],\"refusal\":null}");
        } else {
            di_sbuf_lit(body, "null");
        }

        di_sbuf_lit(body, ",\"finish_reason\":\"");
        di_sbuf_add(body, name, strlen(name));
        di_sbuf_lit(body, "\"}");
    }

    di_sbuf_lit(body, "],");
    write_usage(out, body);
    di_sbuf_lit(body, "}");
    return body->failed ? DI_ENOMEM : DI_OK;
}

uint32_t
di_chat_out_completion_tokens(const di_chat_out_t *out)
{
    uint32_t i, sum = 0;

    for (i = 0; i < out->params->n; i++)
        sum += out->choices[i].tokens;

    return sum;
}

const char *
di_chat_out_finish_reason(const di_chat_out_t *out)
{
    return reason_name(out->choices[0].reason);
}
