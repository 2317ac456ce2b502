/*
 * out_chat.c - Chat Completions: chunks and bodies.
 *
 * Speed: all of a chunk that doesn't change is formatted once, at the start.
 *
 * Both codecs write a chunk for each part.  They differ at the edges: the
 * official one has a fingerprint, tells the role at once, ends with an empty
 * delta that carries the usage, wanted or not, and writes a body's
 * fingerprint last.  Ours has `refusal`, ends with an empty delta object and
 * has a chunk of its own for the usage, if it was asked for.
 */

#include "out.h"

#include <string.h>

#define CHOICE     "{\"index\":"
#define NO_FINISH  "},\"logprobs\":null,\"finish_reason\":null}"

/* id, object, created and model, as chunks and body begin with. */
static void
write_head(const di_out_t *out, di_sbuf_t *b, const char *object)
{
    di_sbuf_lit(b, "{\"id\":\"");
    di_sbuf_add(b, out->id.data, out->id.len);
    di_sbuf_lit(b, "\",\"object\":\"");
    di_sbuf_str(b, object);
    di_sbuf_lit(b, "\",\"created\":");
    di_json_add_i64(b, out->created);
    di_sbuf_lit(b, ",\"model\":");
    di_json_add_string(b, out->model.data, strlen(out->model.data));
}

static void
write_usage(const di_out_t *out, di_sbuf_t *b)
{
    uint64_t completion = di_out_completion_tokens(out);

    di_sbuf_lit(b, "\"usage\":{\"prompt_tokens\":");
    di_json_add_u64(b, out->prompt_tokens);
    di_sbuf_lit(b, ",\"completion_tokens\":");
    di_json_add_u64(b, completion);
    di_sbuf_lit(b, ",\"total_tokens\":");
    di_json_add_u64(b, out->prompt_tokens + completion);
    di_sbuf_lit(b, ",\"prompt_tokens_details\":{\"cached_tokens\":");
    di_json_add_u64(b, out->cached_tokens);
    di_sbuf_lit(b, "}");

    if (out->thinking && out->vocab != NULL) {
        di_sbuf_lit(b, ",\"completion_tokens_details\":"
                    "{\"reasoning_tokens\":");
        di_json_add_u64(b, di_out_reasoning_tokens(out));
        di_sbuf_lit(b, "}");
    }

    if (out->official) {
        di_sbuf_lit(b, ",\"prompt_cache_hit_tokens\":");
        di_json_add_u64(b, out->cached_tokens);
        di_sbuf_lit(b, ",\"prompt_cache_miss_tokens\":");
        di_json_add_u64(b, di_out_missed(out));
    }

    di_sbuf_lit(b, "}");
}

static bool
custom(const di_item_t *item)
{
    return item->tool != NULL && item->tool->kind == DI_TOOL_CUSTOM;
}

/* ----------------------------------------------------------------- stream */

static void
chunk_head(const di_out_t *out, const di_choice_out_t *c)
{
    di_sbuf_add(out->sse, out->head.data, out->head.len);
    di_json_add_u64(out->sse, c->index);
}

static void
chunk_tail(const di_out_t *out)
{
    di_sbuf_add(out->sse, out->tail.data, out->tail.len);
}

static void
choice_begin(di_out_t *out, di_choice_out_t *c)
{
    chunk_head(out, c);
    di_sbuf_lit(out->sse, ",\"delta\":{\"role\":\"assistant\",");

    if (!out->thinking)
        di_sbuf_lit(out->sse, "\"content\":\"\"");
    else if (di_req_parsing(out->req)->stage == DI_STAGE_CONTENT_CONTINUATION)
        di_sbuf_lit(out->sse, "\"content\":\"\",\"reasoning_content\":null");
    else
        di_sbuf_lit(out->sse, "\"content\":null,\"reasoning_content\":\"\"");

    if (!out->official)
        di_sbuf_lit(out->sse, ",\"refusal\":null");
    di_sbuf_lit(out->sse, NO_FINISH);
    chunk_tail(out);
}

static void
start(di_out_t *out)
{
    di_sbuf_t *b = &out->head;
    uint32_t   i;

    if (!out->stream)
        return;

    di_sbuf_lit(b, "data: ");
    write_head(out, b, "chat.completion.chunk");
    if (out->official) {
        di_sbuf_lit(b, ",\"system_fingerprint\":");
        di_sbuf_add(b, out->fingerprint.data, out->fingerprint.len);
    }
    di_sbuf_lit(b, ",\"choices\":[");
    out->head_base = b->len;
    di_sbuf_lit(b, CHOICE);

    if (out->params->include_usage && !out->official)
        di_sbuf_lit(&out->tail, "],\"usage\":null}\n\n");
    else
        di_sbuf_lit(&out->tail, "]}\n\n");

    for (i = 0; out->official && i < out->n; i++) {
        out->choices[i].opened = true;
        choice_begin(out, &out->choices[i]);
    }
}

/* Up to the text of the arguments, or of a custom tool's input. */
static void
write_call_head(di_sbuf_t *b, const di_item_t *item)
{
    di_sbuf_lit(b, "\"id\":\"");
    di_sbuf_str(b, item->call_id);
    if (custom(item))
        di_sbuf_lit(b, "\",\"type\":\"custom\",\"custom\":{\"name\":\"");
    else
        di_sbuf_lit(b, "\",\"type\":\"function\",\"function\":{\"name\":\"");
    di_json_add_known(b, item->name.data, item->name.len);
    di_sbuf_str(b, custom(item) ? "\",\"input\":\"" : "\",\"arguments\":\"");
}

static void
item_begin(di_out_t *out, di_choice_out_t *c, di_item_t *item)
{
    di_sbuf_t *b = out->sse;

    if (item->kind != DI_DELTA_CALL)
        return;

    chunk_head(out, c);
    di_sbuf_lit(b, ",\"delta\":{\"tool_calls\":[{\"index\":");
    di_json_add_u64(b, item->call);
    di_sbuf_lit(b, ",");
    write_call_head(b, item);
    di_sbuf_lit(b, "\"}}]" NO_FINISH);
    chunk_tail(out);
}

/* The entries of a part of text; ours has the API's own two keys always. */
static char *
put_entries(const di_out_t *out, char *p, bool reasoning,
            const di_sbuf_t *entries)
{
    if (!reasoning)
        p = di_put_lit(p, "},\"logprobs\":{\"content\":[");
    else if (out->official)
        p = di_put_lit(p, "},\"logprobs\":{\"reasoning_content\":[");
    else
        p = di_put_lit(p, "},\"logprobs\":{\"content\":null,"
                       "\"reasoning_content\":[");

    p = di_put(p, entries->data, entries->len);

    if (out->official)
        return di_put_lit(p, "]},\"finish_reason\":null}");

    return di_put_lit(p, "],\"refusal\":null},\"finish_reason\":null}");
}

/* A part of a call's arguments. */
static void
args_part(const di_out_t *out, const di_choice_out_t *c,
          const di_item_t *item, const char *data, size_t len)
{
    di_sbuf_t *b = out->sse;
    char      *p;

    if (!di_sbuf_room(b, out->head.len + 2 * DI_JSON_U64_MAX
                      + len * DI_JSON_GROWTH_MAX + out->tail.len + 256))
        return;

    p = di_put(b->data + b->len, out->head.data, out->head.len);
    p = di_json_put_u64(p, c->index);
    p = di_put_lit(p, ",\"delta\":{\"tool_calls\":[{\"index\":");
    p = di_json_put_u64(p, item->call);
    if (custom(item))
        p = di_put_lit(p, ",\"custom\":{\"input\":\"");
    else
        p = di_put_lit(p, ",\"function\":{\"arguments\":\"");
    p = di_json_put_known(p, data, len);
    p = di_put_lit(p, "\"}}]" NO_FINISH);
    p = di_put(p, out->tail.data, out->tail.len);
    b->len = (size_t) (p - b->data);
}

static void
item_part(di_out_t *out, di_choice_out_t *c, di_item_t *item,
          const char *data, size_t len, const di_sbuf_t *entries)
{
    di_sbuf_t *b = out->sse;
    bool       reasoning = item->kind == DI_DELTA_REASONING;
    char      *p;

    if (item->kind == DI_DELTA_CALL) {
        args_part(out, c, item, data, len);
        return;
    }

    if (!di_sbuf_room(b, out->head.len + DI_JSON_U64_MAX
                      + len * DI_JSON_GROWTH_MAX + entries->len
                      + out->tail.len + 256))
        return;

    p = di_put(b->data + b->len, out->head.data, out->head.len);
    p = di_json_put_u64(p, c->index);

    if (reasoning)
        p = di_put_lit(p, ",\"delta\":{\"content\":null,"
                       "\"reasoning_content\":\"");
    else
        p = di_put_lit(p, ",\"delta\":{\"content\":\"");

    p = di_json_put_known(p, data, len);
    if (out->thinking && !reasoning)
        p = di_put_lit(p, "\",\"reasoning_content\":null");
    else
        p = di_put_lit(p, "\"");

    if (entries->len == 0)
        p = di_put_lit(p, NO_FINISH);
    else
        p = put_entries(out, p, reasoning, entries);

    p = di_put(p, out->tail.data, out->tail.len);
    b->len = (size_t) (p - b->data);
}

static void
item_end(di_out_t *out, di_choice_out_t *c, di_item_t *item)
{
    (void) out;
    (void) c;
    (void) item;
}

static void
choice_end(di_out_t *out, di_choice_out_t *c)
{
    di_sbuf_t *b = out->sse;

    chunk_head(out, c);
    if (!out->official)
        di_sbuf_lit(b, ",\"delta\":{");
    else if (out->thinking)
        di_sbuf_lit(b, ",\"delta\":{\"content\":\"\","
                    "\"reasoning_content\":null");
    else
        di_sbuf_lit(b, ",\"delta\":{\"content\":\"\"");

    di_sbuf_lit(b, "},\"logprobs\":null,\"finish_reason\":\"");
    di_sbuf_str(b, di_out_choice_reason(c));
    di_sbuf_lit(b, "\"}");

    if (!out->official) {
        chunk_tail(out);
        return;
    }

    di_sbuf_lit(b, "],");
    write_usage(out, b);
    di_sbuf_lit(b, "}\n\n");
}

static void
end(di_out_t *out)
{
    if (out->params->include_usage && !out->official) {
        di_sbuf_add(out->sse, out->head.data, out->head_base);
        di_sbuf_lit(out->sse, "],");
        write_usage(out, out->sse);
        di_sbuf_lit(out->sse, "}\n\n");
    }

    di_sbuf_lit(out->sse, "data: [DONE]\n\n");
}

/* ------------------------------------------------------------------- body */

/* The texts of all items of a kind, as one string. */
static void
write_texts(di_sbuf_t *b, const di_choice_out_t *c, di_delta_kind_t kind)
{
    size_t i;

    di_sbuf_lit(b, "\"");
    for (i = 0; i < c->n_items; i++) {
        if (c->items[i].kind == kind)
            di_json_add_known(b, c->items[i].text.data, c->items[i].text.len);
    }
    di_sbuf_lit(b, "\"");
}

static void
write_calls(const di_out_t *out, di_sbuf_t *b, const di_choice_out_t *c)
{
    const di_item_t *item;

    di_sbuf_lit(b, ",\"tool_calls\":[");

    for (item = c->items; item < c->items + c->n_items; item++) {
        if (item->kind != DI_DELTA_CALL)
            continue;

        di_sbuf_lit(b, "{");
        if (out->official) {
            di_sbuf_lit(b, "\"index\":");
            di_json_add_u64(b, item->call);
            di_sbuf_lit(b, ",");
        }
        write_call_head(b, item);
        di_json_add_known(b, item->text.data, item->text.len);
        di_sbuf_str(b, item->call + 1 < c->calls ? "\"}}," : "\"}}");
    }

    di_sbuf_lit(b, "]");
}

/* Entries of all items of a kind; false: there is none. */
static bool
write_list(di_sbuf_t *b, const di_choice_out_t *c, di_delta_kind_t kind,
           const char *key)
{
    const di_item_t *item;
    bool             any = false;
    size_t           i;

    for (i = 0; i < c->n_items; i++) {
        item = &c->items[i];
        if (item->kind != kind || item->logprobs.len == 0)
            continue;

        di_sbuf_str(b, any ? "," : key);
        di_sbuf_add(b, item->logprobs.data, item->logprobs.len);
        any = true;
    }

    if (any)
        di_sbuf_lit(b, "]");
    return any;
}

static void
write_logprobs(const di_out_t *out, di_sbuf_t *b, const di_choice_out_t *c)
{
    size_t start = b->len;
    bool   any;

    if (!out->logprobs) {
        di_sbuf_lit(b, "null");
        return;
    }

    di_sbuf_lit(b, "{");
    any = write_list(b, c, DI_DELTA_TEXT, "\"content\":[");

    if (!any && !out->official) {
        di_sbuf_lit(b, "\"content\":[]");
        any = true;
    }

    any |= write_list(b, c, DI_DELTA_REASONING, any
                      ? ",\"reasoning_content\":[" : "\"reasoning_content\":[");

    if (!any) {
        b->len = start;
        di_sbuf_lit(b, "null");
        return;
    }

    if (!out->official)
        di_sbuf_lit(b, ",\"refusal\":null");
    di_sbuf_lit(b, "}");
}

static void
write_choice(const di_out_t *out, di_sbuf_t *b, const di_choice_out_t *c)
{
    bool   text = out->official || c->calls == 0;
    size_t i;

    for (i = 0; i < c->n_items; i++)
        text |= c->items[i].kind == DI_DELTA_TEXT;

    di_sbuf_lit(b, CHOICE);
    di_json_add_u64(b, c->index);
    di_sbuf_lit(b, ",\"message\":{\"role\":\"assistant\",\"content\":");
    if (text)
        write_texts(b, c, DI_DELTA_TEXT);
    else
        di_sbuf_lit(b, "null");

    if (out->thinking && di_req_parsing(out->req)->stage
        != DI_STAGE_CONTENT_CONTINUATION)
    {
        di_sbuf_lit(b, ",\"reasoning_content\":");
        write_texts(b, c, DI_DELTA_REASONING);
    }
    if (c->calls != 0)
        write_calls(out, b, c);
    if (!out->official)
        di_sbuf_lit(b, ",\"refusal\":null");

    di_sbuf_lit(b, "},\"logprobs\":");
    write_logprobs(out, b, c);
    di_sbuf_lit(b, ",\"finish_reason\":\"");
    di_sbuf_str(b, di_out_choice_reason(c));
    di_sbuf_lit(b, "\"}");
}

static void
body(di_out_t *out, di_sbuf_t *b)
{
    uint32_t i;

    write_head(out, b, "chat.completion");
    di_sbuf_lit(b, ",\"choices\":[");

    for (i = 0; i < out->n; i++) {
        if (i > 0)
            di_sbuf_lit(b, ",");
        write_choice(out, b, &out->choices[i]);
    }

    di_sbuf_lit(b, "],");
    write_usage(out, b);
    if (out->official) {
        di_sbuf_lit(b, ",\"system_fingerprint\":");
        di_sbuf_add(b, out->fingerprint.data, out->fingerprint.len);
    }
    di_sbuf_lit(b, "}");
}

const di_out_ops_t di_out_chat = {
    start, item_begin, item_part, item_end, choice_begin, choice_end, end,
    body,
};
