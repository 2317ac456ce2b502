/*
 * completions_out.c - engine events to Completions bodies and SSE streams.
 *
 * A choice's bytes go through its di_text_t (stop strings, whole characters)
 * as in Chat Completions; what that lets go becomes the text of one chunk per
 * call, or is gathered for the body.
 *
 * Log-probabilities have the older shape, four lists side by side.  A token's
 * entry goes out with its last byte, so it waits in a queue until that byte
 * is shown, or was taken by a stop string.  The body's lists are written from
 * a queue that nothing left.
 *
 * Not shown: tokens that end a turn, other control tokens, stop_token_ids.
 * They have no entries, so that the tokens of a choice, joined, are its text.
 * An echoed prompt is shown whole, special tokens as they are spelled: it is
 * what the client has sent.
 */

#include "di_completions.h"

#include <stdlib.h>
#include <string.h>

#include "text_out.h"

/* The log-probability of one token. */
typedef struct {
    uint64_t             text_end;   /* where it ends in the choice's bytes */
    uint64_t             offset;     /* characters before it                */
    int32_t              token;
    float                logprob;
    uint32_t             n_top;
    bool                 known;      /* false: a prompt's first token       */
    di_completions_top_t top[DI_REQ_TOP_LOGPROBS_MAX];
} entry_t;

typedef struct {
    entry_t *entries;            /* [n], oldest first                       */
    size_t   n;
    size_t   cap;
} entries_t;

typedef struct {
    di_text_t               text;
    uint64_t                fed;         /* bytes of shown tokens so far    */
    uint64_t                announced;   /* the same, of tokens with entries */
    uint64_t                characters;  /* that begin in `announced` bytes */
    uint32_t                tokens;      /* completion tokens so far        */
    di_completions_finish_t reason;      /* 0: not finished                 */
    bool                    opened;      /* the echo is in `text`           */
    bool                    stopped;     /* a stop string was met           */
    entries_t               queue;       /* not written yet                 */
    di_sbuf_t               gathered;    /* body: escaped text              */
} choice_t;

typedef struct {
    uint32_t       running;      /* of its choices; 0 before start(), too   */
    di_sbuf_t      echo;         /* bytes of the prompt                     */
    entries_t      entries;      /* of its tokens                           */
    const int32_t *ids;          /* its tokens [n_ids]                      */
    size_t         n_ids;
    size_t         hidden;       /* of them, the first                      */
} prompt_t;

struct di_completions_s {
    const di_req_params_t *params;
    const di_vocab_t      *vocab;
    di_stops_t             stops;
    di_sbuf_t              head;         /* of chunk and body, to choices[  */
    prompt_t              *prompts;      /* [n_prompts]                     */
    uint32_t               n_prompts;
    uint64_t               prompt_tokens;    /* of all that have started    */
    uint64_t               cached_tokens;
    choice_t               choices[];    /* [n_prompts * params->n]         */
};

/* ------------------------------------------------------------ open, close */

static uint32_t
n_choices(const di_completions_t *out)
{
    return out->n_prompts * out->params->n;
}

static void
write_head(di_completions_t *out, const char *id, di_str_t model,
           int64_t created)
{
    di_sbuf_t *b = &out->head;

    if (out->params->stream)
        di_sbuf_lit(b, "data: ");

    di_sbuf_lit(b, "{\"id\":");
    di_json_add_string(b, id, strlen(id));
    di_sbuf_lit(b, ",\"object\":\"text_completion\",\"created\":");
    di_json_add_i64(b, created);
    di_sbuf_lit(b, ",\"model\":");
    di_json_add_string(b, model.data, model.len);
    di_sbuf_lit(b, ",\"choices\":[");
}

int
di_completions_open(const di_req_t *req, const di_vocab_t *vocab,
                    const char *id, di_str_t model, int64_t created,
                    di_completions_t **out)
{
    const di_req_params_t *params = di_req_params(req);
    di_completions_t      *o;
    size_t                 n_prompts;
    uint32_t               i;

    (void) di_req_prompts(req, &n_prompts);

    o = calloc(1, sizeof(*o) + n_prompts * params->n * sizeof(o->choices[0]));
    if (o == NULL)
        return DI_ENOMEM;

    o->params = params;
    o->vocab = vocab;
    o->prompts = calloc(n_prompts, sizeof(*o->prompts));
    if (o->prompts == NULL)
        goto failed;

    o->n_prompts = (uint32_t) n_prompts;
    write_head(o, id, model, created);

    if (o->head.failed
        || di_stops_init(&o->stops, params->stop, params->n_stop) != DI_OK)
        goto failed;

    for (i = 0; i < n_choices(o); i++) {
        if (di_text_init(&o->choices[i].text, &o->stops) != DI_OK)
            goto failed;
    }

    *out = o;
    return DI_OK;

failed:
    di_completions_close(o);
    return DI_ENOMEM;
}

void
di_completions_close(di_completions_t *out)
{
    choice_t *c;
    prompt_t *p;

    if (out == NULL)
        return;

    for (c = out->choices; c < out->choices + n_choices(out); c++) {
        di_text_deinit(&c->text);
        free(c->queue.entries);
        di_sbuf_free(&c->gathered);
    }

    for (p = out->prompts; p < out->prompts + out->n_prompts; p++) {
        di_sbuf_free(&p->echo);
        free(p->entries.entries);
    }

    di_stops_deinit(&out->stops);
    di_sbuf_free(&out->head);
    free(out->prompts);
    free(out);
}

/* ------------------------------------------------------ log-probabilities */

static bool
is_hidden(const di_completions_t *out, int32_t token)
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

static entry_t *
add_entry(entries_t *q)
{
    entry_t *entries;
    size_t   cap = q->cap == 0 ? 8 : q->cap * 2;

    if (q->n == q->cap) {
        entries = realloc(q->entries, cap * sizeof(*entries));
        if (entries == NULL)
            return NULL;
        q->entries = entries;
        q->cap = cap;
    }

    return &q->entries[q->n++];
}

/* DI_OK or DI_ENOMEM.  Its place in the text is given by place_entry(). */
static int
push_entry(const di_completions_t *out, entries_t *q, int32_t token,
           bool known, float logprob, const di_completions_top_t *top,
           size_t n_top)
{
    entry_t *e = add_entry(q);

    if (e == NULL)
        return DI_ENOMEM;

    e->token = token;
    e->known = known;
    e->logprob = logprob;
    e->n_top = n_top < out->params->top_logprobs ? (uint32_t) n_top
                                                 : out->params->top_logprobs;
    if (e->n_top > 0)
        memcpy(e->top, top, e->n_top * sizeof(*top));
    return DI_OK;
}

static void
place_entry(const di_completions_t *out, choice_t *c, entry_t *e)
{
    const char *bytes;
    size_t      i, len = 0;

    bytes = di_vocab_bytes(out->vocab, e->token, &len);
    e->offset = c->characters;

    for (i = 0; bytes != NULL && i < len; i++)
        c->characters += ((unsigned char) bytes[i] & 0xc0) != 0x80;

    c->announced += len;
    e->text_end = c->announced;
}

/* A token's text; of one whose bytes are no UTF-8, "bytes:" and all of them
 * as \xHH, which is how OpenAI shows them. */
static void
write_token(const di_completions_t *out, di_sbuf_t *b, int32_t token)
{
    const char *p;
    size_t      n = 0;

    p = di_vocab_bytes(out->vocab, token, &n);
    if (p == NULL)
        n = 0;

    di_sbuf_lit(b, "\"");

    di_json_add_token(b, p, n, "bytes:");
    di_sbuf_lit(b, "\"");
}

/* The most probable tokens, and the one that was drawn if it is none. */
static void
write_top(const di_completions_t *out, di_sbuf_t *b, const entry_t *e)
{
    bool     drawn = false;
    uint32_t i;

    di_sbuf_lit(b, "{");

    for (i = 0; i < e->n_top; i++) {
        if (i > 0)
            di_sbuf_lit(b, ",");
        write_token(out, b, e->top[i].id);
        di_sbuf_lit(b, ":");
        di_json_add_logprob(b, e->top[i].logprob);
        drawn |= e->top[i].id == e->token;
    }

    if (!drawn) {
        if (i > 0)
            di_sbuf_lit(b, ",");
        write_token(out, b, e->token);
        di_sbuf_lit(b, ":");
        di_json_add_logprob(b, e->logprob);
    }

    di_sbuf_lit(b, "}");
}

static void
write_field(const di_completions_t *out, di_sbuf_t *b, int field,
            const entry_t *e)
{
    switch (field) {

    case 0:
        di_json_add_u64(b, e->offset);
        return;

    case 1:
        if (e->known)
            di_json_add_logprob(b, e->logprob);
        else
            di_sbuf_lit(b, "null");
        return;

    case 2:
        write_token(out, b, e->token);
        return;

    default:
        if (e->known)
            write_top(out, b, e);
        else
            di_sbuf_lit(b, "null");
    }
}

/* The first n entries as one object; null if they weren't asked for. */
static void
write_logprobs(const di_completions_t *out, di_sbuf_t *b, const entries_t *q,
               size_t n)
{
    static const char *const names[] = {
        "\"text_offset\":[", ",\"token_logprobs\":[", ",\"tokens\":[",
        ",\"top_logprobs\":[",
    };
    size_t i;
    int    field;

    if (!out->params->logprobs) {
        di_sbuf_lit(b, "null");
        return;
    }

    di_sbuf_lit(b, "{");

    for (field = 0; field < 4; field++) {
        di_sbuf_add(b, names[field], strlen(names[field]));
        for (i = 0; i < n; i++) {
            if (i > 0)
                di_sbuf_lit(b, ",");
            write_field(out, b, field, &q->entries[i]);
        }
        di_sbuf_lit(b, "]");
    }

    di_sbuf_lit(b, "}");
}

static void
drop_entries(entries_t *q, size_t n)
{
    q->n -= n;
    if (q->n != 0)
        memmove(q->entries, q->entries + n, q->n * sizeof(*q->entries));
}

/* ------------------------------------------------------------------ prompt */

int
di_completions_start(di_completions_t *out, uint32_t prompt,
                     const int32_t *ids, size_t n, size_t hidden,
                     uint32_t cached_tokens)
{
    const char *bytes;
    prompt_t   *p;
    size_t      i, len;

    if (prompt >= out->n_prompts)
        return DI_EINVAL;

    p = &out->prompts[prompt];
    p->running = out->params->n;
    p->ids = ids;
    p->n_ids = n;
    p->hidden = hidden;
    out->prompt_tokens += n;
    out->cached_tokens += cached_tokens;

    if (!out->params->echo)
        return DI_OK;

    for (i = hidden; i < n; i++) {
        bytes = di_vocab_bytes(out->vocab, ids[i], &len);
        if (bytes != NULL)
            di_sbuf_add(&p->echo, bytes, len);
    }

    if (out->params->logprobs && hidden == 0 && n > 0
        && push_entry(out, &p->entries, ids[0], false, 0, NULL, 0) != DI_OK)
        return DI_ENOMEM;

    return p->echo.failed ? DI_ENOMEM : DI_OK;
}

int
di_completions_prompt_logprob(di_completions_t *out, uint32_t prompt,
                              uint32_t position, float logprob,
                              const di_completions_top_t *top, size_t n_top)
{
    prompt_t *p;

    if (prompt >= out->n_prompts)
        return DI_EINVAL;

    p = &out->prompts[prompt];

    /* The next one that has no entry, and no other. */
    if (!out->params->echo || !out->params->logprobs || position >= p->n_ids
        || position != p->hidden + p->entries.n)
        return DI_OK;

    return push_entry(out, &p->entries, p->ids[position], true, logprob, top,
                      n_top);
}

/* The echo comes before a choice's first token. */
static int
open_choice(di_completions_t *out, choice_t *c)
{
    const prompt_t *p = &out->prompts[(size_t) (c - out->choices)
                                      / out->params->n];
    entry_t        *e;
    size_t          i;
    bool            stopped = false;

    if (c->opened)
        return DI_OK;

    c->opened = true;

    for (i = 0; i < p->entries.n; i++) {
        e = add_entry(&c->queue);
        if (e == NULL)
            return DI_ENOMEM;
        *e = p->entries.entries[i];
        place_entry(out, c, e);
    }

    c->fed = p->echo.len;
    return di_text_feed(&c->text, &out->stops, p->echo.data, p->echo.len,
                        false, &stopped);
}

/* ------------------------------------------------------------------ tokens */

/* A choice of a prompt, or NULL. */
static choice_t *
choice_of(di_completions_t *out, uint32_t prompt, uint32_t choice)
{
    if (prompt >= out->n_prompts || choice >= out->params->n)
        return NULL;

    return &out->choices[prompt * out->params->n + choice];
}

int
di_completions_logprob(di_completions_t *out, uint32_t prompt, uint32_t choice,
                       int32_t token, float logprob,
                       const di_completions_top_t *top, size_t n_top)
{
    choice_t *c = choice_of(out, prompt, choice);

    if (c == NULL)
        return DI_EINVAL;

    if (!out->params->logprobs || c->stopped || c->reason != 0
        || is_hidden(out, token))
        return DI_OK;

    if (open_choice(out, c) != DI_OK
        || push_entry(out, &c->queue, token, true, logprob, top, n_top)
           != DI_OK)
        return DI_ENOMEM;

    place_entry(out, c, &c->queue.entries[c->queue.n - 1]);
    return DI_OK;
}

static void
chunk(const di_completions_t *out, choice_t *c, size_t n_text,
      size_t n_entries, const char *reason, di_sbuf_t *sse)
{
    di_sbuf_add(sse, out->head.data, out->head.len);
    di_sbuf_lit(sse, "{\"index\":");
    di_json_add_u64(sse, (uint64_t) (c - out->choices));
    di_sbuf_lit(sse, ",\"text\":\"");
    di_json_add_text(sse, c->text.pending.data, n_text);
    di_sbuf_lit(sse, "\",\"logprobs\":");

    if (n_entries == 0)
        di_sbuf_lit(sse, "null");
    else
        write_logprobs(out, sse, &c->queue, n_entries);

    di_sbuf_lit(sse, ",\"finish_reason\":");
    di_sbuf_add(sse, reason, strlen(reason));
    di_sbuf_lit(sse, "}]");
    if (out->params->include_usage)
        di_sbuf_lit(sse, ",\"usage\":null");
    di_sbuf_lit(sse, "}\n\n");
}

/* Show what is decided; everything if no more text can come. */
static int
show(di_completions_t *out, choice_t *c, bool final, di_sbuf_t *sse)
{
    size_t   n_text = di_text_ready(&c->text, final), n = 0;
    uint64_t end = c->fed - (final ? 0 : c->text.pending.len - n_text);

    if (!out->params->stream) {
        di_json_add_text(&c->gathered, c->text.pending.data, n_text);
        di_text_drop(&c->text, n_text);
        return c->gathered.failed ? DI_ENOMEM : DI_OK;
    }

    while (n < c->queue.n && c->queue.entries[n].text_end <= end)
        n++;

    /* An entry whose token has no bytes waits for the next text. */
    if (n_text == 0 && (n == 0 || !final))
        return DI_OK;

    chunk(out, c, n_text, n, "null", sse);
    drop_entries(&c->queue, n);
    di_text_drop(&c->text, n_text);
    return sse->failed ? DI_ENOMEM : DI_OK;
}

int
di_completions_tokens(di_completions_t *out, uint32_t prompt, uint32_t choice,
                      const int32_t *tokens, size_t n, di_sbuf_t *sse,
                      bool *stopped)
{
    const char *bytes;
    choice_t   *c = choice_of(out, prompt, choice);
    size_t      i, len;

    *stopped = false;
    if (c == NULL)
        return DI_EINVAL;

    *stopped = c->stopped;
    if (c->stopped || c->reason != 0)
        return DI_OK;

    if (open_choice(out, c) != DI_OK)
        return DI_ENOMEM;

    for (i = 0; i < n && !c->stopped; i++) {
        c->tokens++;

        bytes = is_hidden(out, tokens[i])
                ? NULL : di_vocab_bytes(out->vocab, tokens[i], &len);
        if (bytes == NULL)
            continue;

        c->fed += len;
        if (di_text_feed(&c->text, &out->stops, bytes, len,
                         c->tokens > out->params->min_tokens, &c->stopped)
            != DI_OK)
            return DI_ENOMEM;
    }

    *stopped = c->stopped;
    return show(out, c, c->stopped, sse);
}

/* -------------------------------------------------------------------- ends */

static const char *
reason_name(di_completions_finish_t reason)
{
    switch (reason) {
    case DI_COMPLETIONS_STOP:   return "\"stop\"";
    case DI_COMPLETIONS_LENGTH: return "\"length\"";
    }

    return "null";
}

int
di_completions_finish(di_completions_t *out, uint32_t prompt, uint32_t choice,
                      di_completions_finish_t reason, di_sbuf_t *sse,
                      bool *done)
{
    choice_t *c = choice_of(out, prompt, choice);
    prompt_t *p;

    *done = false;
    if (c == NULL)
        return DI_EINVAL;

    p = &out->prompts[prompt];
    *done = p->running == 0;
    if (c->reason != 0)
        return DI_OK;

    if (open_choice(out, c) != DI_OK || show(out, c, true, sse) != DI_OK)
        return DI_ENOMEM;

    c->reason = c->stopped ? DI_COMPLETIONS_STOP : reason;
    *done = --p->running == 0;

    if (!out->params->stream)
        return DI_OK;

    chunk(out, c, 0, 0, reason_name(c->reason), sse);
    return sse->failed ? DI_ENOMEM : DI_OK;
}

static void
write_usage(const di_completions_t *out, di_sbuf_t *b)
{
    uint64_t tokens = di_completions_tokens_out(out);

    di_sbuf_lit(b, "],\"usage\":{\"prompt_tokens\":");
    di_json_add_u64(b, out->prompt_tokens);
    di_sbuf_lit(b, ",\"completion_tokens\":");
    di_json_add_u64(b, tokens);
    di_sbuf_lit(b, ",\"total_tokens\":");
    di_json_add_u64(b, out->prompt_tokens + tokens);
    di_sbuf_lit(b, ",\"prompt_tokens_details\":{\"cached_tokens\":");
    di_json_add_u64(b, out->cached_tokens);
    di_sbuf_lit(b, "}}}");
}

int
di_completions_end(di_completions_t *out, di_sbuf_t *sse)
{
    if (out->params->include_usage) {
        di_sbuf_add(sse, out->head.data, out->head.len);
        write_usage(out, sse);
        di_sbuf_lit(sse, "\n\n");
    }

    di_sbuf_lit(sse, "data: [DONE]\n\n");
    return sse->failed ? DI_ENOMEM : DI_OK;
}

int
di_completions_body(di_completions_t *out, di_sbuf_t *body)
{
    const char *reason;
    choice_t   *c;
    uint32_t    i;

    di_sbuf_add(body, out->head.data, out->head.len);

    for (i = 0; i < n_choices(out); i++) {
        c = &out->choices[i];
        reason = reason_name(c->reason);

        if (i > 0)
            di_sbuf_lit(body, ",");
        di_sbuf_lit(body, "{\"index\":");
        di_json_add_u64(body, i);
        di_sbuf_lit(body, ",\"text\":\"");
        di_sbuf_add(body, c->gathered.data, c->gathered.len);
        di_sbuf_lit(body, "\",\"logprobs\":");
        write_logprobs(out, body, &c->queue, c->queue.n);
        di_sbuf_lit(body, ",\"finish_reason\":");
        di_sbuf_add(body, reason, strlen(reason));
        di_sbuf_lit(body, "}");
    }

    write_usage(out, body);
    return body->failed ? DI_ENOMEM : DI_OK;
}

const char *
di_completions_finish_reason(const di_completions_t *out)
{
    switch (out->choices[0].reason) {
    case DI_COMPLETIONS_STOP:   return "stop";
    case DI_COMPLETIONS_LENGTH: return "length";
    }

    return "";
}

uint32_t
di_completions_tokens_out(const di_completions_t *out)
{
    uint32_t i, sum = 0;

    for (i = 0; i < n_choices(out); i++)
        sum += out->choices[i].tokens;

    return sum;
}
