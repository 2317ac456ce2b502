/*
 * out_responses.c - Responses: named events with sequence numbers, and the
 * response object, which is also the whole body.
 *
 * An output item is an item of ours; all keep their text, since the last
 * event repeats it.  What an item's part events begin and end with is
 * formatted once, when the item begins.
 *
 * The response object echoes the request's fields as they were sent.  The
 * official one fixes all that Recipe ignores (store, metadata, ...); ours
 * tells what was asked.
 */

#include "out.h"

#include <string.h>
#include <time.h>

#define EVENT(name)  "event: " name "\ndata: {\"type\":\"" name "\""

static void
write_sequence(di_out_t *out)
{
    di_sbuf_lit(out->sse, ",\"sequence_number\":");
    di_json_add_u64(out->sse, out->sequence++);
}

static void
end_event(di_out_t *out)
{
    write_sequence(out);
    di_sbuf_lit(out->sse, "}\n\n");
}

/* ------------------------------------------------------------------ items */

static di_tool_kind_t
tool_kind(const di_item_t *item)
{
    return item->tool == NULL ? DI_TOOL_FUNCTION : item->tool->kind;
}

static size_t
item_index(const di_choice_out_t *c, const di_item_t *item)
{
    return (size_t) (item - c->items);
}

/* What stands around an item's id in out->tail; the second where entries of
 * log-probabilities come behind it. */
#define ID_BEFORE  "\",\"item_id\":"
#define ID_BEHIND  ",\"logprobs\":["

/* The id of the item that is under way, as prepare_parts() left it. */
static void
write_known_id(const di_out_t *out, di_sbuf_t *b, const di_item_t *item)
{
    const size_t before = sizeof(ID_BEFORE) - 1;
    const size_t behind = item->kind == DI_DELTA_TEXT ? sizeof(ID_BEHIND) - 1
                          : 0;

    di_sbuf_piece(b, out->tail.data + before,
                  out->tail_entries - before - behind);
}

/* What is written of an item by its kind. */
typedef struct {
    di_str_t call[DI_TOOL_SEARCH + 1];
    di_str_t reasoning;
    di_str_t message;
} by_kind_t;

static void
write_by_kind(di_sbuf_t *b, const di_item_t *item, const by_kind_t *by)
{
    const di_str_t *s = item->kind == DI_DELTA_CALL ? &by->call[tool_kind(item)]
                        : item->kind == DI_DELTA_REASONING ? &by->reasoning
                        : &by->message;

    di_sbuf_piece(b, s->data, s->len);
}

static void
write_item_id(const di_out_t *out, di_sbuf_t *b, const di_item_t *item)
{
    static const by_kind_t prefix = {
        .call = {
            [DI_TOOL_FUNCTION] = DI_STR("\"fc_"),
            [DI_TOOL_CUSTOM] = DI_STR("\"ctc_"),
            [DI_TOOL_SEARCH] = DI_STR("\"tsc_"),
        },
        .reasoning = DI_STR("\"rs_"),
        .message = DI_STR("\"msg_"),
    };

    write_by_kind(b, item, &prefix);
    di_sbuf_piece(b, out->id.data, out->id.len);
    di_sbuf_lit(b, "_");
    di_json_add_u64(b, item_index(&out->choices[0], item));
    di_sbuf_lit(b, "\"");
}

/* Where an item's text or arguments stand in a buffer as JSON: escaped once,
 * then copied. */
typedef struct {
    bool   written;
    size_t from;
    size_t len;
} text_t;

static void
write_gathered(di_sbuf_t *b, const di_item_t *item, text_t *text)
{
    if (!text->written) {
        text->from = b->len;
        di_json_add_known(b, item->text.data, item->text.len);
        text->len = b->len - text->from;
        text->written = true;

    } else if (di_sbuf_room(b, text->len)) {
        memcpy(b->data + b->len, b->data + text->from, text->len);
        b->len += text->len;
    }
}

/* A content part: text NULL: empty, as it is added; else whole. */
static void
write_part(di_sbuf_t *b, const di_item_t *item, text_t *text)
{
    if (item->kind == DI_DELTA_REASONING) {
        di_sbuf_lit(b, "{\"type\":\"reasoning_text\",\"text\":\"");

    } else {
        di_sbuf_lit(b, "{\"type\":\"output_text\",\"annotations\":[],"
                    "\"logprobs\":[");
        if (text != NULL)
            di_sbuf_add(b, item->logprobs.data, item->logprobs.len);
        di_sbuf_lit(b, "],\"text\":\"");
    }

    if (text != NULL)
        write_gathered(b, item, text);
    di_sbuf_lit(b, "\"}");
}

static void
write_content(di_sbuf_t *b, const di_item_t *item, text_t *text)
{
    di_sbuf_lit(b, "\"content\":[");
    if (text != NULL)
        write_part(b, item, text);
    di_sbuf_lit(b, "]");
}

static void
write_call(const di_out_t *out, di_sbuf_t *b, const di_item_t *item,
           text_t *text)
{
    const di_tool_t *tool = item->tool;

    di_sbuf_lit(b, "\"call_id\":\"");
    di_sbuf_str(b, item->call_id);

    if (tool_kind(item) == DI_TOOL_SEARCH) {
        di_sbuf_lit(b, "\",\"execution\":\"client\",\"arguments\":");
        if (text != NULL)
            di_out_write_input(out, b, &item->text);
        else
            di_sbuf_lit(b, "{}");
        return;
    }

    di_sbuf_lit(b, "\",\"name\":\"");
    if (tool != NULL)
        di_json_add_text(b, tool->local.data, tool->local.len);
    else
        di_json_add_known(b, item->name.data, item->name.len);

    if (tool != NULL && tool->space.data != NULL) {
        di_sbuf_lit(b, "\",\"namespace\":\"");
        di_json_add_text(b, tool->space.data, tool->space.len);
    }

    if (tool_kind(item) == DI_TOOL_CUSTOM)
        di_sbuf_lit(b, "\",\"input\":\"");
    else
        di_sbuf_lit(b, "\",\"arguments\":\"");

    if (text != NULL)
        write_gathered(b, item, text);
    di_sbuf_lit(b, "\"");
}

/* {"type":"...","id": */
static void
write_item_type(di_sbuf_t *b, const di_item_t *item)
{
    static const by_kind_t type = {
        .call = {
            [DI_TOOL_FUNCTION] = DI_STR("{\"type\":\"function_call\",\"id\":"),
            [DI_TOOL_CUSTOM] = DI_STR("{\"type\":\"custom_tool_call\",\"id\":"),
            [DI_TOOL_SEARCH] = DI_STR("{\"type\":\"tool_search_call\",\"id\":"),
        },
        .reasoning = DI_STR("{\"type\":\"reasoning\",\"id\":"),
        .message = DI_STR("{\"type\":\"message\",\"id\":"),
    };

    write_by_kind(b, item, &type);
}

/* What comes behind an item's id.  text NULL: empty, as it is added; else
 * whole. */
static void
write_item_rest(const di_out_t *out, di_sbuf_t *b, const di_item_t *item,
                text_t *text)
{
    const di_choice_out_t *c = &out->choices[0];

    if (text == NULL)
        di_sbuf_lit(b, ",\"status\":\"in_progress\",");
    else if ((c->reason == DI_END_LENGTH || c->reason == DI_END_FILTER)
             && item == di_out_last(c))
        di_sbuf_lit(b, ",\"status\":\"incomplete\",");
    else
        di_sbuf_lit(b, ",\"status\":\"completed\",");

    switch (item->kind) {
    case DI_DELTA_CALL:
        write_call(out, b, item, text);
        break;
    case DI_DELTA_REASONING:
        write_content(b, item, text);
        di_sbuf_lit(b, ",\"summary\":[],\"encrypted_content\":\"");
        di_sbuf_add(b, out->id.data, out->id.len);
        di_sbuf_lit(b, "-");
        di_json_add_u64(b, item_index(c, item));
        di_sbuf_lit(b, "\"");
        break;
    default:
        di_sbuf_lit(b, "\"role\":\"assistant\",\"phase\":\"");
        di_sbuf_str(b, text != NULL && item->before_call ? "commentary"
                    : "final_answer");
        di_sbuf_lit(b, "\",");
        write_content(b, item, text);
    }

    di_sbuf_lit(b, "}");
}

/* -------------------------------------------------------- response object */

static const di_json_t *
member(const di_json_t *object, const char *name)
{
    const di_json_t *v = object == NULL || object->type != DI_JSON_OBJECT
                         ? NULL : di_json_get(object, name);

    return v == NULL || v->type == DI_JSON_NULL ? NULL : v;
}

/* ,"name":VALUE as it was sent, or what stands for it if it wasn't. */
static void
echo(di_sbuf_t *b, const di_json_t *object, const char *name,
     const char *absent)
{
    const di_json_t *v = member(object, name);

    di_sbuf_lit(b, ",\"");
    di_sbuf_str(b, name);
    di_sbuf_lit(b, "\":");
    if (v != NULL)
        di_json_add_tree(b, v, DI_JSON_COMPACT);
    else
        di_sbuf_str(b, absent);
}

static bool
type_is(const di_json_t *tool, const char *type)
{
    const di_json_t *v = member(tool, "type");

    return v != NULL && v->type == DI_JSON_STRING && di_json_is(&v->v.str,
                                                                type);
}

static void write_tools(di_sbuf_t *b, const di_json_t *list);

/* False: of no kind that is known. */
static bool
write_tool(di_sbuf_t *b, const di_json_t *tool)
{
    if (type_is(tool, "function")) {
        di_sbuf_lit(b, "{\"type\":\"function\"");
        echo(b, tool, "name", "null");
        echo(b, tool, "description", "null");
        echo(b, tool, "parameters", "null");
        echo(b, tool, "strict", "null");

    } else if (type_is(tool, "namespace")) {
        di_sbuf_lit(b, "{\"type\":\"namespace\"");
        echo(b, tool, "name", "null");
        echo(b, tool, "description", "null");
        di_sbuf_lit(b, ",\"tools\":");
        write_tools(b, member(tool, "tools"));

    } else if (type_is(tool, "custom") || type_is(tool, "tool_search")
               || type_is(tool, "web_search")
               || type_is(tool, "web_search_2025_08_26")) {
        di_json_add_tree(b, tool, DI_JSON_COMPACT);
        return true;

    } else {
        return false;
    }

    di_sbuf_lit(b, "}");
    return true;
}

static void
write_tools(di_sbuf_t *b, const di_json_t *list)
{
    const di_json_t *tool;
    bool             any = false;
    size_t           before;

    di_sbuf_lit(b, "[");
    tool = list != NULL && list->type == DI_JSON_ARRAY ? list->v.list.first
           : NULL;

    for (; tool != NULL; tool = tool->next) {
        before = b->len;
        if (any)
            di_sbuf_lit(b, ",");
        if (write_tool(b, tool))
            any = true;
        else if (!b->failed)
            b->len = before;
    }

    di_sbuf_lit(b, "]");
}

static void
write_text(di_sbuf_t *b, const di_json_t *text)
{
    const di_json_t *format = member(text, "format");

    di_sbuf_lit(b, ",\"text\":{\"format\":");

    if (type_is(format, "json_schema")) {
        di_sbuf_lit(b, "{\"type\":\"json_schema\"");
        echo(b, format, "name", "null");
        echo(b, format, "schema", "null");
        echo(b, format, "strict", "null");
        echo(b, format, "description", "null");
        di_sbuf_lit(b, "}");

    } else {
        di_sbuf_str(b, type_is(format, "json_object")
                    ? "{\"type\":\"json_object\"}" : "{\"type\":\"text\"}");
    }

    echo(b, text, "verbosity", "null");
    di_sbuf_lit(b, "}");
}

static void
write_usage(const di_out_t *out, di_sbuf_t *b)
{
    uint64_t output = di_out_completion_tokens(out);

    di_sbuf_lit(b, "{\"input_tokens\":");
    di_json_add_u64(b, out->prompt_tokens);
    di_sbuf_lit(b, ",\"input_tokens_details\":{\"cached_tokens\":");
    di_json_add_u64(b, out->cached_tokens);
    if (!out->official)
        di_sbuf_lit(b, ",\"cache_write_tokens\":0");
    di_sbuf_lit(b, "},\"output_tokens\":");
    di_json_add_u64(b, output);
    di_sbuf_lit(b, ",\"output_tokens_details\":{\"reasoning_tokens\":");
    di_json_add_u64(b, out->official && (!out->thinking || out->vocab == NULL)
                    ? 0 : di_out_reasoning_tokens(out));
    di_sbuf_lit(b, "},\"total_tokens\":");
    di_json_add_u64(b, out->prompt_tokens + output);
    di_sbuf_lit(b, "}");
}

/* What the request said that Recipe's object fixes. */
static void
echo_or(const di_out_t *out, di_sbuf_t *b, const di_json_t *req,
        const char *name, const char *fixed)
{
    echo(b, out->official ? NULL : req, name, fixed);
}

static void
write_status(const di_out_t *out, di_sbuf_t *b, bool final)
{
    di_end_t reason = out->choices[0].reason;
    bool        cut = reason == DI_END_LENGTH || reason == DI_END_FILTER;

    di_sbuf_lit(b, "{\"id\":\"");
    di_sbuf_add(b, out->id.data, out->id.len);
    di_sbuf_lit(b, "\",\"object\":\"response\",\"created_at\":");
    di_json_add_i64(b, out->created);
    di_sbuf_lit(b, ",\"status\":\"");
    di_sbuf_str(b, !final ? "in_progress" : cut ? "incomplete" : "completed");
    di_sbuf_lit(b, "\",\"background\":false,\"completed_at\":");
    if (final)
        di_json_add_i64(b, (int64_t) time(NULL));
    else
        di_sbuf_lit(b, "null");

    di_sbuf_lit(b, ",\"content_filters\":null,\"error\":null,"
                "\"frequency_penalty\":0.0,\"incomplete_details\":");
    if (!final || !cut)
        di_sbuf_lit(b, "null");
    else if (reason == DI_END_LENGTH)
        di_sbuf_lit(b, "{\"reason\":\"max_output_tokens\"}");
    else
        di_sbuf_lit(b, "{\"reason\":\"content_filter\"}");
}

static void
write_output(const di_out_t *out, di_sbuf_t *b, bool final)
{
    const di_choice_out_t *c = &out->choices[0];

    di_sbuf_lit(b, ",\"output\":[");
    for (size_t i = 0; final && i < c->n_items; i++) {
        const di_item_t *item = &c->items[i];
        text_t           text = { 0 };

        if (i > 0)
            di_sbuf_lit(b, ",");
        write_item_type(b, item);
        write_item_id(out, b, item);
        write_item_rest(out, b, item, &text);
    }
    di_sbuf_lit(b, "]");
}

static void
write_response(const di_out_t *out, di_sbuf_t *b, bool final)
{
    const di_json_t *req = di_req_body(out->req);
    const di_json_t *reasoning = member(req, "reasoning");

    write_status(out, b, final);
    echo(b, req, "instructions", "null");
    echo(b, req, "max_output_tokens", "null");
    di_sbuf_lit(b, ",\"max_tool_calls\":null,\"model\":");
    di_json_add_string(b, out->model.data, strlen(out->model.data));
    di_sbuf_lit(b, ",\"moderation\":null");
    write_output(out, b, final);
    echo_or(out, b, req, "parallel_tool_calls", "true");
    di_sbuf_lit(b, ",\"presence_penalty\":0.0");
    echo_or(out, b, req, "previous_response_id", "null");
    echo_or(out, b, req, "prompt_cache_key", "null");
    di_sbuf_lit(b, ",\"prompt_cache_retention\":null,\"reasoning\":{\"effort\""
                ":");
    if (member(reasoning, "effort") != NULL)
        di_json_add_tree(b, member(reasoning, "effort"), DI_JSON_COMPACT);
    else
        di_sbuf_lit(b, "null");
    echo(b, reasoning, "summary", "null");
    di_sbuf_lit(b, "}");
    echo_or(out, b, req, "safety_identifier", "null");
    di_sbuf_lit(b, ",\"service_tier\":\"default\",\"store\":");
    di_sbuf_str(b, !out->official && di_req_store(out->req) ? "true"
                : "false");
    echo(b, req, "temperature", "1.0");
    write_text(b, member(req, "text"));
    echo(b, req, "tool_choice", "\"auto\"");
    di_sbuf_lit(b, ",\"tools\":");
    write_tools(b, member(req, "tools"));
    echo(b, req, "top_logprobs", "0");
    echo(b, req, "top_p", "1.0");
    echo_or(out, b, req, "truncation", "\"disabled\"");
    di_sbuf_lit(b, ",\"usage\":");
    if (final)
        write_usage(out, b);
    else
        di_sbuf_lit(b, "null");
    echo(b, req, "user", "null");
    echo_or(out, b, req, "metadata", "{}");
    di_sbuf_lit(b, "}");
}

/* ----------------------------------------------------------------- stream */

static void
start(di_out_t *out)
{
    if (!out->stream)
        return;

    di_sbuf_lit(out->sse, EVENT("response.created") ",\"response\":");
    write_response(out, out->sse, false);
    end_event(out);
    di_sbuf_lit(out->sse, EVENT("response.in_progress") ",\"response\":");
    write_response(out, out->sse, false);
    end_event(out);
}

/* What the item's part events begin with, up to the text, and go on with
 * behind it. */
static void
prepare_parts(di_out_t *out, const di_item_t *item)
{
    di_sbuf_t *head = &out->head, *tail = &out->tail;

    head->len = tail->len = 0;

    if (item->kind == DI_DELTA_REASONING)
        di_sbuf_lit(head, EVENT("response.reasoning_text.delta")
                    ",\"content_index\":0,\"delta\":\"");
    else if (item->kind == DI_DELTA_TEXT)
        di_sbuf_lit(head, EVENT("response.output_text.delta")
                    ",\"content_index\":0,\"delta\":\"");
    else if (tool_kind(item) == DI_TOOL_CUSTOM)
        di_sbuf_lit(head, EVENT("response.custom_tool_call_input.delta")
                    ",\"delta\":\"");
    else
        di_sbuf_lit(head, EVENT("response.function_call_arguments.delta")
                    ",\"delta\":\"");

    di_sbuf_lit(tail, ID_BEFORE);
    write_item_id(out, tail, item);
    if (item->kind == DI_DELTA_TEXT)
        di_sbuf_lit(tail, ID_BEHIND);

    out->tail_entries = tail->len;
    if (item->kind == DI_DELTA_TEXT)
        di_sbuf_lit(tail, "]");
    di_sbuf_lit(tail, ",\"output_index\":");
    di_json_add_u64(tail, item_index(&out->choices[0], item));
    di_sbuf_lit(tail, ",\"sequence_number\":");
}

static void
write_place(const di_out_t *out, const di_item_t *item)
{
    di_sbuf_lit(out->sse, ",\"output_index\":");
    di_json_add_u64(out->sse, item_index(&out->choices[0], item));
}

/* Its place and the end of an event of the item that is under way. */
static void
end_item_event(di_out_t *out, const di_item_t *item)
{
    const size_t skipped = out->tail_entries
                           + (item->kind == DI_DELTA_TEXT ? 1 : 0);

    di_sbuf_piece(out->sse, out->tail.data + skipped,
                  out->tail.len - skipped);
    di_json_add_u64(out->sse, out->sequence++);
    di_sbuf_lit(out->sse, "}\n\n");
}

static void
write_item_event(di_out_t *out, const di_item_t *item, text_t *text)
{
    di_sbuf_t *b = out->sse;

    if (text != NULL)
        di_sbuf_lit(b, EVENT("response.output_item.done") ",\"item\":");
    else
        di_sbuf_lit(b, EVENT("response.output_item.added") ",\"item\":");

    write_item_type(b, item);
    write_known_id(out, b, item);
    write_item_rest(out, b, item, text);
    end_item_event(out, item);
}

static void
write_part_event(di_out_t *out, const di_item_t *item, text_t *text)
{
    di_sbuf_t *b = out->sse;

    if (text != NULL)
        di_sbuf_lit(b, EVENT("response.content_part.done"));
    else
        di_sbuf_lit(b, EVENT("response.content_part.added"));

    di_sbuf_lit(b, ",\"content_index\":0,\"item_id\":");
    write_known_id(out, b, item);
    write_place(out, item);
    di_sbuf_lit(b, ",\"part\":");
    write_part(b, item, text);
    end_event(out);
}

static void
item_begin(di_out_t *out, di_choice_out_t *c, di_item_t *item)
{
    (void) c;
    prepare_parts(out, item);
    if (out->tail.failed)
        return;

    write_item_event(out, item, NULL);
    if (item->kind != DI_DELTA_CALL)
        write_part_event(out, item, NULL);
}

static void
item_part(di_out_t *out, di_choice_out_t *c, di_item_t *item,
          const char *data, size_t len, const di_sbuf_t *entries)
{
    di_sbuf_t *b = out->sse;
    char      *p;

    (void) c;
    if (item->kind == DI_DELTA_CALL && tool_kind(item) == DI_TOOL_SEARCH)
        return;

    if (!di_sbuf_room(b, out->head.len + len * DI_JSON_GROWTH_MAX
                      + out->tail.len + entries->len + DI_JSON_U64_MAX + 8))
        return;

    p = di_put(b->data + b->len, out->head.data, out->head.len);
    p = di_json_put_known(p, data, len);
    if (entries->len != 0 && item->kind == DI_DELTA_TEXT) {
        p = di_put(p, out->tail.data, out->tail_entries);
        p = di_put(p, entries->data, entries->len);
        p = di_put(p, out->tail.data + out->tail_entries,
                   out->tail.len - out->tail_entries);
    } else {
        p = di_put(p, out->tail.data, out->tail.len);
    }

    p = di_json_put_u64(p, out->sequence++);
    p = di_put_lit(p, "}\n\n");
    b->len = (size_t) (p - b->data);
}

/* The text or the arguments are complete. */
static void
write_text_done(di_out_t *out, const di_item_t *item, text_t *text)
{
    di_sbuf_t *b = out->sse;

    if (item->kind == DI_DELTA_REASONING)
        di_sbuf_lit(b, EVENT("response.reasoning_text.done"));
    else
        di_sbuf_lit(b, EVENT("response.output_text.done"));

    di_sbuf_lit(b, ",\"content_index\":0,\"item_id\":");
    write_known_id(out, b, item);
    if (item->kind == DI_DELTA_TEXT) {
        di_sbuf_lit(b, ",\"logprobs\":[");
        di_sbuf_add(b, item->logprobs.data, item->logprobs.len);
        di_sbuf_lit(b, "]");
    }
    write_place(out, item);
    write_sequence(out);
    di_sbuf_lit(b, ",\"text\":\"");
    write_gathered(b, item, text);
    di_sbuf_lit(b, "\"}\n\n");
}

static void
write_call_done(di_out_t *out, const di_item_t *item, text_t *text)
{
    di_sbuf_t *b = out->sse;

    if (tool_kind(item) == DI_TOOL_SEARCH)
        return;

    if (tool_kind(item) == DI_TOOL_CUSTOM)
        di_sbuf_lit(b, EVENT("response.custom_tool_call_input.done")
                    ",\"input\":\"");
    else
        di_sbuf_lit(b, EVENT("response.function_call_arguments.done")
                    ",\"arguments\":\"");

    write_gathered(b, item, text);
    di_sbuf_lit(b, "\",\"item_id\":");
    write_known_id(out, b, item);
    if (!out->official && tool_kind(item) == DI_TOOL_FUNCTION) {
        di_sbuf_lit(b, ",\"name\":\"");
        di_json_add_known(b, item->name.data, item->name.len);
        di_sbuf_lit(b, "\"");
    }
    end_item_event(out, item);
}

static void
item_end(di_out_t *out, di_choice_out_t *c, di_item_t *item)
{
    text_t text = { 0 };

    if (c->nomem)
        return;

    if (item->kind == DI_DELTA_CALL) {
        write_call_done(out, item, &text);
    } else {
        write_text_done(out, item, &text);
        write_part_event(out, item, &text);
    }

    write_item_event(out, item, &text);
}

static void
choice_begin(di_out_t *out, di_choice_out_t *c)
{
    (void) out;
    (void) c;
}

static void
choice_end(di_out_t *out, di_choice_out_t *c)
{
    if (c->reason == DI_END_LENGTH || c->reason == DI_END_FILTER)
        di_sbuf_lit(out->sse, EVENT("response.incomplete")
                    ",\"response\":");
    else
        di_sbuf_lit(out->sse, EVENT("response.completed")
                    ",\"response\":");

    write_response(out, out->sse, true);
    end_event(out);
}

static void
end(di_out_t *out)
{
    (void) out;
}

static void
body(di_out_t *out, di_sbuf_t *b)
{
    write_response(out, b, true);
}

const di_out_ops_t di_out_responses = {
    start, item_begin, item_part, item_end, choice_begin, choice_end, end,
    body,
};
