/*
 * out_messages.c - Messages: named events and bodies.
 *
 * A content block is an item.  In thinking mode the thinking block opens at
 * once, so it stands even if nothing was thought.  A tool's input that is no
 * JSON object (the model was cut off, or wrote none) is {} in the official
 * body; ours keeps it as {"arguments":TEXT}, which the next request's
 * rendering spells back as it was.  With thinking{display:"omitted"} thinking
 * blocks come without their text.
 */

#include "out.h"

#include <string.h>

static void
write_usage(const di_out_t *out, di_sbuf_t *b, bool final)
{
    di_sbuf_lit(b, "\"usage\":{\"input_tokens\":");
    di_json_add_u64(b, di_out_missed(out));
    di_sbuf_lit(b, ",\"cache_creation_input_tokens\":0,"
                "\"cache_read_input_tokens\":");
    di_json_add_u64(b, out->cached_tokens);
    di_sbuf_lit(b, ",\"output_tokens\":");
    di_json_add_u64(b, final ? di_out_completion_tokens(out) : 0);
    if (final && out->thinking && !out->official) {
        di_sbuf_lit(b, ",\"output_tokens_details\":{\"thinking_tokens\":");
        di_json_add_u64(b, di_out_reasoning_tokens(out));
        di_sbuf_lit(b, "}");
    }
    di_sbuf_lit(b, ",\"service_tier\":\"standard\"}");
}

static void
write_stop(const di_out_t *out, di_sbuf_t *b)
{
    const di_choice_out_t *c = &out->choices[0];
    const char            *reason = "end_turn";

    if (c->reason == DI_END_LENGTH)
        reason = "max_tokens";
    else if (c->reason == DI_END_FILTER)
        reason = "refusal";
    else if (c->stop >= 0)
        reason = "stop_sequence";
    else if (c->calls != 0)
        reason = "tool_use";

    di_sbuf_lit(b, "\"stop_reason\":\"");
    di_sbuf_str(b, reason);
    di_sbuf_lit(b, "\",\"stop_sequence\":");
    if (strcmp(reason, "stop_sequence") == 0)
        di_json_add_string(b, out->params->stop[c->stop].data,
                           out->params->stop[c->stop].len);
    else
        di_sbuf_lit(b, "null");
}

/* id, type, role and model, as message_start and a body begin with. */
static void
write_head(const di_out_t *out, di_sbuf_t *b)
{
    di_sbuf_lit(b, "{\"id\":\"");
    di_sbuf_add(b, out->id.data, out->id.len);
    di_sbuf_lit(b, "\",\"type\":\"message\",\"role\":\"assistant\","
                "\"model\":");
    di_json_add_string(b, out->model.data, strlen(out->model.data));
}

/* ----------------------------------------------------------------- stream */

#define EVENT(name)  "event: " name "\ndata: {\"type\":\"" name "\""

static size_t
block_index(const di_choice_out_t *c)
{
    return c->n_items - 1;
}

static void
item_begin(di_out_t *out, di_choice_out_t *c, di_item_t *item)
{
    di_sbuf_t *b = out->sse;

    di_sbuf_lit(b, EVENT("content_block_start") ",\"index\":");
    di_json_add_u64(b, block_index(c));

    switch (item->kind) {
    case DI_DELTA_REASONING:
        di_sbuf_lit(b, ",\"content_block\":{\"type\":\"thinking\","
                    "\"thinking\":\"\",\"signature\":\"\"}}\n\n");
        break;
    case DI_DELTA_CALL:
        di_sbuf_lit(b, ",\"content_block\":{\"type\":\"tool_use\",\"id\":\"");
        di_sbuf_str(b, item->call_id);
        di_sbuf_lit(b, "\",\"name\":\"");
        di_json_add_known(b, item->name.data, item->name.len);
        di_sbuf_lit(b, "\",\"input\":{}}}\n\n");
        break;
    default:
        di_sbuf_lit(b, ",\"content_block\":{\"type\":\"text\","
                    "\"text\":\"\"}}\n\n");
    }

    if (!out->pinged)
        di_sbuf_lit(b, EVENT("ping") "}\n\n");
    out->pinged = true;
}

static void
item_part(di_out_t *out, di_choice_out_t *c, di_item_t *item,
          const char *data, size_t len, const di_sbuf_t *entries)
{
    di_sbuf_t *b = out->sse;
    char      *p;

    (void) entries;
    if (item->kind == DI_DELTA_REASONING && out->params->hide_thinking)
        return;

    if (!di_sbuf_room(b, len * DI_JSON_GROWTH_MAX + 256))
        return;

    p = di_put_lit(b->data + b->len, EVENT("content_block_delta")
                   ",\"index\":");
    p = di_json_put_u64(p, block_index(c));

    switch (item->kind) {
    case DI_DELTA_REASONING:
        p = di_put_lit(p, ",\"delta\":{\"type\":\"thinking_delta\","
                       "\"thinking\":\"");
        break;
    case DI_DELTA_CALL:
        p = di_put_lit(p, ",\"delta\":{\"type\":\"input_json_delta\","
                       "\"partial_json\":\"");
        break;
    default:
        p = di_put_lit(p, ",\"delta\":{\"type\":\"text_delta\",\"text\":\"");
    }

    p = di_json_put_known(p, data, len);
    p = di_put_lit(p, "\"}}\n\n");
    b->len = (size_t) (p - b->data);
}

static void
item_end(di_out_t *out, di_choice_out_t *c, di_item_t *item)
{
    di_sbuf_t *b = out->sse;

    if (item->kind == DI_DELTA_REASONING) {
        di_sbuf_lit(b, EVENT("content_block_delta") ",\"index\":");
        di_json_add_u64(b, block_index(c));
        di_sbuf_lit(b, ",\"delta\":{\"type\":\"signature_delta\","
                    "\"signature\":");
        di_json_add_string(b, out->signature.data,
                           strlen(out->signature.data));
        di_sbuf_lit(b, "}}\n\n");
    }

    di_sbuf_lit(b, EVENT("content_block_stop") ",\"index\":");
    di_json_add_u64(b, block_index(c));
    di_sbuf_lit(b, "}\n\n");
}

static void
start(di_out_t *out)
{
    if (out->stream) {
        di_sbuf_lit(out->sse, EVENT("message_start") ",\"message\":");
        write_head(out, out->sse);
        di_sbuf_lit(out->sse, ",\"content\":[],\"stop_reason\":null,"
                    "\"stop_sequence\":null,");
        write_usage(out, out->sse, false);
        di_sbuf_lit(out->sse, "}}\n\n");
    }

    if (di_req_parsing(out->req)->stage == DI_STAGE_REASONING_START)
        (void) di_out_item(&out->choices[0], DI_DELTA_REASONING);
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
    (void) c;
    di_sbuf_lit(out->sse, EVENT("message_delta") ",\"delta\":{");
    write_stop(out, out->sse);
    di_sbuf_lit(out->sse, "},");
    write_usage(out, out->sse, true);
    di_sbuf_lit(out->sse, "}\n\n" EVENT("message_stop") "}\n\n");
}

static void
end(di_out_t *out)
{
    (void) out;
}

/* ------------------------------------------------------------------- body */

static void
write_block(const di_out_t *out, di_sbuf_t *b, const di_item_t *item)
{
    switch (item->kind) {
    case DI_DELTA_REASONING:
        di_sbuf_lit(b, "{\"type\":\"thinking\",\"thinking\":\"");
        if (!out->params->hide_thinking)
            di_json_add_known(b, item->text.data, item->text.len);
        di_sbuf_lit(b, "\",\"signature\":");
        di_json_add_string(b, out->signature.data,
                           strlen(out->signature.data));
        break;
    case DI_DELTA_CALL:
        di_sbuf_lit(b, "{\"type\":\"tool_use\",\"id\":\"");
        di_sbuf_str(b, item->call_id);
        di_sbuf_lit(b, "\",\"name\":\"");
        di_json_add_known(b, item->name.data, item->name.len);
        di_sbuf_lit(b, "\",\"input\":");
        di_out_write_input(out, b, &item->text);
        break;
    default:
        di_sbuf_lit(b, "{\"type\":\"text\",\"text\":\"");
        di_json_add_known(b, item->text.data, item->text.len);
        di_sbuf_lit(b, "\"");
    }

    di_sbuf_lit(b, "}");
}

static void
body(di_out_t *out, di_sbuf_t *b)
{
    const di_choice_out_t *c = &out->choices[0];
    size_t                 i;

    write_head(out, b);
    di_sbuf_lit(b, ",\"content\":[");

    for (i = 0; i < c->n_items; i++) {
        if (i > 0)
            di_sbuf_lit(b, ",");
        write_block(out, b, &c->items[i]);
    }

    di_sbuf_lit(b, "],");
    write_stop(out, b);
    di_sbuf_lit(b, ",");
    write_usage(out, b, true);
    di_sbuf_lit(b, "}");
}

const di_out_ops_t di_out_messages = {
    start, item_begin, item_part, item_end, choice_begin, choice_end, end,
    body,
};
