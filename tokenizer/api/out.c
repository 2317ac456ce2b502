/*
 * out.c - engine events to items: counting, log-probabilities, finishing.
 *
 * Not shown: tokens that end a turn, the request's own stop_token_ids, and, by
 * the strict codec, all other control tokens that mark nothing.  They count as
 * completion tokens and have no log-probability entry, so that the entries'
 * bytes joined are the text.
 *
 * Log-probability entries wait in a queue until their token's last byte was
 * shown, or was dropped because a stop string took it: then they go out with
 * that part (one with empty text if nothing else is left to show).  Entries
 * of markup and of calls are dropped.  Places in the parser's deltas tell
 * which is which.
 *
 * Stop strings are not looked for in the first min_tokens tokens.
 */

#include "out.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

static void take_delta(void *ctx, const di_delta_t *d);

/* ------------------------------------------------------------ open, close */

static const di_out_ops_t *
ops_of(di_api_t api)
{
    switch (api) {
    case DI_API_RESPONSES: return &di_out_responses;
    case DI_API_MESSAGES:  return &di_out_messages;
    default:               return &di_out_chat;
    }
}

static di_start_t
start_of(const di_parsing_t *parsing)
{
    if (parsing->forced)
        return DI_START_IN_CALLS;

    switch (parsing->stage) {
    case DI_STAGE_REASONING_START:        return DI_START_REASONING;
    case DI_STAGE_REASONING_CONTINUATION: return DI_START_IN_REASONING;
    case DI_STAGE_CONTENT_CONTINUATION:   return DI_START_IN_ANSWER;
    default:                              return parsing->exact
                                                 ? DI_START_IN_ANSWER
                                                 : DI_START_ANSWER;
    }
}

/* Note the tokens that are not shown, so that most others need no look. */
static void
note_hidden(di_out_t *o)
{
    const int32_t *ends;
    size_t         i, n;

    if (o->show_ends || o->vocab == NULL)
        return;

    n = di_vocab_end_ids(o->vocab, &ends);
    for (i = 0; i < n; i++)
        o->hidden |= UINT64_C(1) << (ends[i] & 63);
    for (i = 0; i < o->params->n_stop_ids; i++)
        o->hidden |= UINT64_C(1) << (o->params->stop_ids[i] & 63);
}

static int
prepare(di_out_t *o, const di_out_conf_t *conf)
{
    const di_parsing_t *parsing = di_req_parsing(conf->req);
    di_parse_options_t  options = {
        .spell = conf->spell, .start = start_of(parsing),
        .vocab = conf->vocab, .stops = o->params->stop,
        .n_stops = o->params->n_stop, .official = o->official,
        .tools = parsing->tools, .json = parsing->json,
        .places = o->logprobs,
    };
    di_choice_out_t    *c;

    note_hidden(o);
    di_json_add_text(&o->id, conf->id, strlen(conf->id));
    di_sbuf_add(&o->model, conf->model.data, conf->model.len);
    di_sbuf_add(&o->model, "", 1);
    di_sbuf_str(&o->signature, conf->signature != NULL ? conf->signature
                : conf->id);
    di_sbuf_add(&o->signature, "", 1);
    if (o->id.failed || o->model.failed || o->signature.failed
        || di_rules_open(&options, &o->rules) != DI_OK)
        return DI_ENOMEM;

    for (c = o->choices; c < o->choices + o->n; c++) {
        c->out = o;
        c->index = (uint32_t) (c - o->choices);
        c->stop = -1;
        if (di_parse_open(o->rules, take_delta, c, &c->parse) != DI_OK)
            return DI_ENOMEM;
    }

    return DI_OK;
}

int
di_out_open(const di_out_conf_t *conf, di_out_t **out)
{
    const di_req_params_t *params = di_req_params(conf->req);
    di_api_t               api = di_req_api(conf->req);
    uint32_t               n = api == DI_API_CHAT ? params->n : 1;
    di_out_t              *o;

    o = calloc(1, sizeof(*o) + n * sizeof(o->choices[0]));
    if (o == NULL)
        return DI_ENOMEM;

    o->ops = ops_of(api);
    o->req = conf->req;
    o->params = params;
    o->vocab = conf->vocab;
    o->tok = conf->tok;
    o->official = di_req_codec(conf->req) == DI_CODEC_OFFICIAL;
    o->stream = params->stream;
    o->thinking = di_req_parsing(conf->req)->stage != DI_STAGE_NONE;
    o->logprobs = (params->logprobs || o->official)
                  && api != DI_API_MESSAGES;
    o->gather = !o->stream || api == DI_API_RESPONSES;
    o->show_ends = o->official && conf->show_ends;
    o->created = conf->created;
    o->n = n;
    o->running = n;

    if (prepare(o, conf) != DI_OK) {
        di_out_close(o);
        return DI_ENOMEM;
    }

    *out = o;
    return DI_OK;
}

static void
close_choice(di_choice_out_t *c)
{
    size_t i;

    for (i = 0; i < c->n_items; i++) {
        di_sbuf_free(&c->items[i].text);
        di_sbuf_free(&c->items[i].logprobs);
        di_sbuf_free(&c->items[i].unknown);
        di_sbuf_free(&c->items[i].held);
    }

    free(c->items);
    di_sbuf_free(&c->args);
    di_sbuf_free(&c->entries.json);
    free(c->entries.entries);
    di_parse_close(c->parse);
}

void
di_out_close(di_out_t *out)
{
    uint32_t i;

    if (out == NULL)
        return;

    for (i = 0; i < out->n; i++)
        close_choice(&out->choices[i]);

    di_rules_close(out->rules);
    di_sbuf_free(&out->id);
    di_sbuf_free(&out->model);
    di_sbuf_free(&out->signature);
    di_sbuf_free(&out->fingerprint);
    di_sbuf_free(&out->head);
    di_sbuf_free(&out->tail);
    di_sbuf_free(&out->taken);
    free(out);
}

/* ------------------------------------------------------- log-probabilities */

/* Not shown, one of a few that may be. */
static bool
is_hidden_one(const di_out_t *out, int32_t token)
{
    size_t i;

    if (di_vocab_is_end(out->vocab, token))
        return true;

    for (i = 0; i < out->params->n_stop_ids; i++) {
        if (out->params->stop_ids[i] == token)
            return true;
    }

    return false;
}

static inline bool
is_hidden(const di_out_t *out, int32_t token)
{
    return (out->hidden >> (token & 63) & 1) != 0
           && is_hidden_one(out, token);
}

/* The token's text: if its bytes are no UTF-8 by themselves, all of them as
 * \xHH; "bytes" always has the real ones. */
static void
write_token(const di_out_t *out, di_sbuf_t *b, int32_t token, float logprob)
{
    const char *p;
    size_t      i, n = 0;

    p = di_vocab_bytes(out->vocab, token, &n);
    if (p == NULL)
        n = 0;

    di_sbuf_lit(b, "{\"token\":\"");

    di_json_add_token(b, p, n, "");
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
entries_room(di_entries_t *q)
{
    di_entry_t *entries;
    size_t      cap;

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
di_out_logprob(di_out_t *out, uint32_t choice, int32_t token, float logprob,
               const di_out_top_t *top, size_t n_top)
{
    di_choice_out_t *c;
    di_entries_t    *q;
    size_t           i, before, shown;

    if (choice >= out->n)
        return DI_EINVAL;

    c = &out->choices[choice];
    if (!out->logprobs || c->stop >= 0 || c->reason != 0)
        return DI_OK;

    if (is_hidden(out, token)
        || (!out->official && di_vocab_is_special(out->vocab, token)))
        return DI_OK;

    q = &c->entries;
    if (entries_room(q) != DI_OK)
        return DI_ENOMEM;

    before = q->json.len;
    shown = out->official || n_top < out->params->top_logprobs ? n_top
            : out->params->top_logprobs;
    write_token(out, &q->json, token, logprob);
    di_sbuf_lit(&q->json, ",\"top_logprobs\":[");

    for (i = 0; i < shown; i++) {
        if (i > 0)
            di_sbuf_lit(&q->json, ",");
        write_token(out, &q->json, top[i].id, top[i].logprob);
        di_sbuf_lit(&q->json, "}");
    }

    di_sbuf_lit(&q->json, "]}");
    if (q->json.failed)
        return DI_ENOMEM;

    q->entries[q->n].json_len = q->json.len - before;
    q->n++;
    return DI_OK;
}

/* The next tokens' bytes are at these places. */
static void
place_entries(di_entries_t *q, const di_delta_t *d)
{
    uint32_t i;

    for (i = 0; i < d->n_tokens && q->n_placed < q->n; i++) {
        q->entries[q->n_placed].from = d->from;
        q->entries[q->n_placed].end = d->end;
        q->n_placed++;
    }
}

/* Move the entries that a part of text brings to b, with commas between; drop
 * those whose tokens lie before it and were not shown. */
static void
take_entries(di_entries_t *q, const di_delta_t *d, di_sbuf_t *b)
{
    const di_entry_t *e;
    size_t            i, at = 0;

    for (i = 0; i < q->n_placed; i++) {
        e = &q->entries[i];
        if (e->end > d->end)
            break;

        if (e->end > d->from || e->from < q->shown || e->from == e->end) {
            if (b->len != 0)
                di_sbuf_lit(b, ",");
            di_sbuf_add(b, q->json.data + at, e->json_len);
        }

        at += e->json_len;
    }

    if (d->len != 0)
        q->shown = d->end;

    if (i == 0)
        return;

    q->n -= i;
    q->n_placed -= i;
    q->json.len -= at;
    memmove(q->entries, q->entries + i, q->n * sizeof(*q->entries));
    memmove(q->json.data, q->json.data + at, q->json.len);
}

/* ------------------------------------------------------------------ items */

/* n random bytes; the system is asked for many at a time. */
static const unsigned char *
random_bytes(di_out_t *out, size_t n)
{
    if (out->n_random < n) {
        /* So few bytes can't fail once the system has started. */
        (void) !getrandom(out->random, sizeof(out->random), 0);
        out->n_random = sizeof(out->random);
    }

    out->n_random -= n;
    return out->random + out->n_random;
}

/* call_00_, a mark if the model was to think and didn't, 20 letters or
 * digits, 4 digits. */
static void
make_call_id(const di_choice_out_t *c, di_item_t *item)
{
    static const char set[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                              "abcdefghijklmnopqrstuvwxyz";
    const unsigned char *random = random_bytes(c->out, 24);
    char                *p = di_put_lit(item->call_id, "call_");
    int                  i;

    if (item->call < 10)
        *p++ = '0';
    p = di_json_put_u64(p, item->call);
    p = di_put_lit(p, "_");
    if (c->out->thinking && !c->reasoned)
        p = di_put_lit(p, "ET_");
    for (i = 0; i < 24; i++)
        *p++ = set[random[i] % (i < 20 ? 62 : 10)];
    *p = '\0';
}

static void add_part(di_choice_out_t *c, di_item_t *item,
                     const di_delta_t *d);

/* The arguments that one token brings come in several parts, being pieces of
 * JSON between and around what the model wrote: one event for all of them. */
static void
give_args(di_choice_out_t *c)
{
    c->out->taken.len = 0;
    c->out->ops->item_part(c->out, c, di_out_last(c), c->args.data,
                           c->args.len, &c->out->taken);
    c->args.len = 0;
}

static void
end_item(di_choice_out_t *c)
{
    di_item_t *item = di_out_last(c);
    di_delta_t rest = { .kind = DI_DELTA_ARGS };

    if (item == NULL || item->closed)
        return;

    if (item->input == DI_INPUT_HELD && item->held.len != 0) {
        rest.data = item->held.data;
        rest.len = item->held.len;
        add_part(c, item, &rest);
    }

    if (c->args.len != 0)
        give_args(c);
    c->nomem |= item->text.failed;
    item->closed = true;
    if (c->out->stream)
        c->out->ops->item_end(c->out, c, item);
}

static void
set_name(const di_out_t *out, di_item_t *item, di_str_t name)
{
    item->tool = di_req_tool(out->req, name);
    if (item->tool != NULL) {
        item->name = item->tool->name;
        return;
    }

    di_sbuf_add(&item->unknown, name.data, name.len);
    item->name = (di_str_t) { item->unknown.data, item->unknown.len };
}

static di_item_t *
begin_item(di_choice_out_t *c, di_delta_kind_t kind, const char *name,
           size_t name_len)
{
    di_out_t  *out = c->out;
    di_item_t *items, *item;
    size_t     cap;

    if (c->n_items != 0)
        di_out_last(c)->before_call = kind == DI_DELTA_CALL;
    end_item(c);

    if (c->n_items == c->items_cap) {
        cap = c->items_cap == 0 ? 4 : c->items_cap * 2;
        items = realloc(c->items, cap * sizeof(*items));
        if (items == NULL) {
            c->nomem = true;
            return NULL;
        }
        c->items = items;
        c->items_cap = cap;
    }

    item = &c->items[c->n_items++];
    memset(item, 0, sizeof(*item));
    item->kind = kind;

    if (kind == DI_DELTA_CALL) {
        item->call = c->calls++;
        set_name(out, item, (di_str_t) { name, name_len });
        make_call_id(c, item);
    }

    if (out->stream)
        out->ops->item_begin(out, c, item);

    c->nomem |= item->unknown.failed | out->head.failed | out->tail.failed;
    return item;
}

di_item_t *
di_out_item(di_choice_out_t *c, di_delta_kind_t kind)
{
    di_item_t *item = di_out_last(c);

    if (item != NULL && !item->closed && item->kind == kind)
        return item;

    return begin_item(c, kind, NULL, 0);
}

/* A custom tool's input is the value of its only parameter, or, if the model
 * wrote another first, all the arguments' JSON. */
static void
custom_input(di_choice_out_t *c, di_item_t *item, const di_delta_t *d,
             di_delta_t *out)
{
    static const char expected[] = "{\"input\": \"";
    const size_t      n = sizeof(expected) - 1;

    *out = *d;

    switch (item->input) {
    case DI_INPUT_RAW:
        return;

    case DI_INPUT_VALUE:
        if (d->plain == NULL) {
            item->input = DI_INPUT_DONE;
            out->len = 0;
            return;
        }
        out->data = d->plain;
        out->len = d->plain_len;
        return;

    case DI_INPUT_DONE:
        out->len = 0;
        return;

    case DI_INPUT_HELD:
        break;
    }

    di_sbuf_add(&item->held, d->data, d->len);
    c->nomem |= item->held.failed;
    out->len = 0;

    if (item->held.len == n && memcmp(item->held.data, expected, n) == 0) {
        item->input = DI_INPUT_VALUE;

    } else if (item->held.len >= n
               || memcmp(item->held.data, expected, item->held.len) != 0) {
        item->input = DI_INPUT_RAW;
        out->data = item->held.data;
        out->len = item->held.len;
    }
}

static void
gather_entries(di_choice_out_t *c, di_item_t *item)
{
    const di_sbuf_t *taken = &c->out->taken;

    if (item->logprobs.len != 0)
        di_sbuf_lit(&item->logprobs, ",");
    di_sbuf_add(&item->logprobs, taken->data, taken->len);
    c->nomem |= item->logprobs.failed;
}

/* A part of an item goes out or is gathered. */
static void
add_part(di_choice_out_t *c, di_item_t *item, const di_delta_t *d)
{
    di_out_t *out = c->out;

    if (out->gather || (out->official && d->kind == DI_DELTA_REASONING)) {
        di_sbuf_piece(&item->text, d->data, d->len);
        if (out->taken.len != 0)
            gather_entries(c, item);
    }

    if (out->stream && d->kind == DI_DELTA_ARGS && !out->official)
        di_sbuf_piece(&c->args, d->data, d->len);
    else if (out->stream)
        out->ops->item_part(out, c, item, d->data, d->len, &out->taken);
}

static void
take_args(di_choice_out_t *c, const di_delta_t *d)
{
    di_item_t *item = di_out_last(c);
    di_delta_t part;

    if (item == NULL || item->kind != DI_DELTA_CALL)
        return;

    if (item->tool != NULL && item->tool->kind == DI_TOOL_CUSTOM) {
        custom_input(c, item, d, &part);
        d = &part;
    }

    if (d->len != 0)
        add_part(c, item, d);
}

/* The parser's sink. */
static void
take_delta(void *ctx, const di_delta_t *d)
{
    di_choice_out_t *c = ctx;
    di_out_t        *out = c->out;
    di_item_t       *item;

    out->taken.len = 0;
    if (c->cut)
        return;

    switch (d->kind) {
    case DI_DELTA_PIECE:
        place_entries(&c->entries, d);
        return;

    case DI_DELTA_CALL:
        c->cut = c->calls == 1 && !out->official
                 && !out->params->parallel_tool_calls;
        if (!c->cut)
            (void) begin_item(c, DI_DELTA_CALL, d->data, d->len);
        return;

    case DI_DELTA_ARGS:
        take_args(c, d);
        return;

    case DI_DELTA_REASONING:
    case DI_DELTA_TEXT:
        break;
    }

    if (out->logprobs) {
        take_entries(&c->entries, d, &out->taken);
        c->nomem |= out->taken.failed;
    }

    if (d->len == 0 && out->taken.len == 0 && !out->official)
        return;

    c->reasoned |= d->kind == DI_DELTA_REASONING && d->len != 0;
    item = di_out_item(c, d->kind);
    if (item != NULL)
        add_part(c, item, d);
}

void
di_out_write_input(const di_out_t *out, di_sbuf_t *b, const di_sbuf_t *text)
{
    if (text->len != 0 && text->data[0] == '{'
        && di_json_valid(text->data, text->len)) {
        di_sbuf_add(b, text->data, text->len);

    } else if (out->official || text->len == 0) {
        di_sbuf_lit(b, "{}");

    } else {
        di_sbuf_lit(b, "{\"arguments\":");
        di_json_add_string(b, text->data, text->len);
        di_sbuf_lit(b, "}");
    }
}

/* ----------------------------------------------------------------- events */

/* Asked for each token: nothing branches on a part of it. */
static inline bool
failed(const di_out_t *out, const di_choice_out_t *c)
{
    const di_item_t *item = di_out_last(c);

    return (out->stream && out->sse->failed) | c->nomem | c->args.failed
           | (item != NULL && item->text.failed);
}

int
di_out_start(di_out_t *out, uint32_t prompt_tokens, uint32_t cached_tokens,
             const char *fingerprint, di_sbuf_t *sse)
{
    if (out->started)
        return DI_OK;

    out->started = true;
    out->sse = sse;
    out->prompt_tokens = prompt_tokens;
    out->cached_tokens = cached_tokens;
    if (fingerprint != NULL)
        di_json_add_string(&out->fingerprint, fingerprint,
                           strlen(fingerprint));
    else
        di_sbuf_lit(&out->fingerprint, "null");

    out->ops->start(out);
    return out->head.failed || out->tail.failed || out->fingerprint.failed
           || (out->stream && sse->failed) ? DI_ENOMEM : DI_OK;
}

/* Before anything else of a choice. */
static int
begin(di_out_t *out, uint32_t choice, di_sbuf_t *sse, di_choice_out_t **c)
{
    int rc;

    if (choice >= out->n)
        return DI_EINVAL;

    rc = di_out_start(out, 0, 0, NULL, sse);
    if (rc != DI_OK)
        return rc;

    out->sse = sse;
    *c = &out->choices[choice];
    return DI_OK;
}

static void
open_choice(di_out_t *out, di_choice_out_t *c)
{
    if (out->stream && !c->opened) {
        c->opened = true;
        out->ops->choice_begin(out, c);
    }
}

static int
flush(di_out_t *out, di_choice_out_t *c, bool *stopped)
{
    bool fine = di_parse_flush(c->parse);

    if (c->args.len != 0)
        give_args(c);
    c->stop = di_parse_stopped(c->parse);
    *stopped = c->stop >= 0 || c->cut;
    return fine && !failed(out, c) ? DI_OK : DI_ENOMEM;
}

int
di_out_tokens(di_out_t *out, uint32_t choice, const int32_t *tokens,
              size_t n_tokens, di_sbuf_t *sse, bool *stopped, di_err_t *err)
{
    di_choice_out_t *c;
    const uint32_t   min_tokens = out->params->min_tokens;
    size_t           i, entries;
    bool             alone;
    int              rc;

    *stopped = false;
    rc = begin(out, choice, sse, &c);
    if (rc != DI_OK)
        return rc == DI_EINVAL ? di_err_set(err, rc, 0, "no such choice") : rc;

    if (c->stop >= 0 || c->cut || c->reason != 0) {
        *stopped = c->stop >= 0 || c->cut;
        return DI_OK;
    }

    if (out->vocab == NULL)
        return di_err_set(err, DI_EINVAL, 0,
                          "token chunk received without a tokenizer");

    entries = out->show_ends ? c->entries.n - c->entries.n_placed : 0;
    if (entries != 0
        && entries != n_tokens + di_parse_held_tokens(c->parse))
        return di_err_set(err, DI_EINVAL, 0, "invalid log probabilities: %zu "
                          "log probabilities for %zu token IDs", entries,
                          n_tokens);

    open_choice(out, c);
    alone = n_tokens == 1 && c->entries.n == 0;

    for (i = 0; i < n_tokens; i++) {
        c->tokens++;
        if (is_hidden(out, tokens[i]))
            continue;

        alone = di_parse_token(c->parse, tokens[i], c->tokens > min_tokens
                               || out->official, alone);
        c->reasoning_tokens += di_parse_reasoning(c->parse);
        if (alone) {
            if (c->args.len != 0)
                give_args(c);
            return failed(out, c) ? DI_ENOMEM : DI_OK;
        }
        if (i + 1 < n_tokens && !out->official
            && di_parse_stopped(c->parse) >= 0)
            break;
    }

    return flush(out, c, stopped);
}

int
di_out_text(di_out_t *out, uint32_t choice, const char *text, size_t len,
            uint32_t n_tokens, di_sbuf_t *sse, bool *stopped)
{
    di_choice_out_t *c;
    int              rc;

    *stopped = false;
    rc = begin(out, choice, sse, &c);
    if (rc != DI_OK)
        return rc;

    if (c->stop >= 0 || c->cut || c->reason != 0) {
        *stopped = c->stop >= 0 || c->cut;
        return DI_OK;
    }

    open_choice(out, c);
    c->tokens += n_tokens;
    di_parse_text(c->parse, text, len);
    c->reasoning_tokens += di_parse_reasoning(c->parse) ? n_tokens : 0;
    return flush(out, c, stopped);
}

/* Official: the reasoning's tokens are those of its text, encoded again. */
static int
recount_reasoning(di_out_t *out, di_choice_out_t *c)
{
    di_sbuf_t text = { 0 };
    di_tok_t *tok = out->tok;
    int32_t   none;
    size_t    i, n = 0;
    int       rc;

    for (i = 0; i < c->n_items; i++) {
        if (c->items[i].kind == DI_DELTA_REASONING)
            di_sbuf_add(&text, c->items[i].text.data, c->items[i].text.len);
    }

    if (text.failed
        || (tok == NULL && di_tok_open(out->vocab, &tok) != DI_OK)) {
        di_sbuf_free(&text);
        return DI_ENOMEM;
    }

    rc = di_tok_encode_raw(tok, text.len == 0 ? "" : text.data, text.len,
                           &none, 0, &n);
    if (tok != out->tok)
        di_tok_close(tok);
    di_sbuf_free(&text);
    c->reasoning_tokens = (uint32_t) n;
    return rc == DI_ELIMIT ? DI_OK : rc;
}

int
di_out_finish(di_out_t *out, uint32_t choice, di_end_t reason,
              di_sbuf_t *sse, bool *done)
{
    di_choice_out_t *c;
    int              rc;

    *done = out->running == 0;
    rc = begin(out, choice, sse, &c);
    if (rc != DI_OK)
        return rc;

    if (c->reason != 0)
        return DI_OK;

    if ((c->stop >= 0 || c->cut) && reason != DI_END_FILTER
        && (!out->official || reason != DI_END_LENGTH))
        reason = DI_END_STOP;

    if (reason != DI_END_ERROR)
        open_choice(out, c);

    c->tokens -= di_parse_held_tokens(c->parse);
    di_parse_finish(c->parse);
    if (out->official && out->thinking && out->vocab != NULL
        && recount_reasoning(out, c) != DI_OK)
        return DI_ENOMEM;

    c->reason = reason;
    *done = --out->running == 0;

    if (reason != DI_END_ERROR) {
        end_item(c);
        if (out->stream)
            out->ops->choice_end(out, c);
    }

    return failed(out, c) || di_parse_failed(c->parse) ? DI_ENOMEM : DI_OK;
}

int
di_out_end(di_out_t *out, di_sbuf_t *sse)
{
    out->sse = sse;
    out->ops->end(out);
    return sse->failed ? DI_ENOMEM : DI_OK;
}

int
di_out_body(di_out_t *out, di_sbuf_t *body)
{
    out->ops->body(out, body);
    return body->failed ? DI_ENOMEM : DI_OK;
}

/* ------------------------------------------------------------- accounting */

uint32_t
di_out_completion_tokens(const di_out_t *out)
{
    uint32_t i, sum = 0;

    for (i = 0; i < out->n; i++)
        sum += out->choices[i].tokens;

    return sum;
}

uint32_t
di_out_reasoning_tokens(const di_out_t *out)
{
    uint32_t i, sum = 0;

    for (i = 0; i < out->n; i++)
        sum += out->choices[i].reasoning_tokens;

    return sum;
}

uint64_t
di_out_replaced(const di_out_t *out)
{
    uint64_t sum = 0;
    uint32_t i;

    for (i = 0; i < out->n; i++)
        sum += di_parse_replaced(out->choices[i].parse);

    return sum;
}

const char *
di_out_choice_reason(const di_choice_out_t *c)
{
    switch (c->reason) {
    case DI_END_STOP:
        return c->stop < 0 && c->calls != 0 ? "tool_calls" : "stop";
    case DI_END_LENGTH:
        return "length";
    case DI_END_FILTER:
        return "content_filter";
    case DI_END_ERROR:
        return "error";
    }

    return "";
}

const char *
di_out_finish_reason(const di_out_t *out)
{
    return di_out_choice_reason(&out->choices[0]);
}

uint64_t
di_out_sequence(const di_out_t *out)
{
    return out->sequence;
}
