/*
 * stored.c - records of responses.
 *
 * JSON is read to know where values are, and then copied as it was written:
 * numbers, escapes and the order of members stay what the client has sent.
 * The reader tells where a value begins; where it ends is found by counting
 * brackets outside of strings, in text that is known to be valid.
 *
 * A record is a line with three lengths, then the three texts.
 */

#include "di_stored.h"

#include <stdlib.h>
#include <string.h>

#include "json.h"

#define MAGIC  "di1"
#define DEPTH  DI_JSON_DEPTH_MAX

/* ------------------------------------------------------------------ values */

static const char *
end_of_string(const char *p)
{
    for (p++; *p != '"'; p++)
        p += *p == '\\';

    return p + 1;
}

/* The text of a value that begins at p, in valid JSON. */
static di_str_t
raw_at(const char *p)
{
    di_str_t s = { p, 0 };
    size_t   depth = 0;

    do {
        switch (*p) {

        case '"':
            p = end_of_string(p);
            break;

        case '{':
        case '[':
            depth++;
            p++;
            break;

        case '}':
        case ']':
            depth--;
            p++;
            break;

        default:
            p++;
            break;
        }
    } while (depth > 0);

    if (*s.data != '"' && *s.data != '{' && *s.data != '[')
        p = s.data + strcspn(s.data, ",]} \t\r\n");

    s.len = (size_t) (p - s.data);
    return s;
}

static di_str_t
raw(const char *text, const di_json_t *v)
{
    return raw_at(text + v->offset);
}

static void
add_raw(di_sbuf_t *b, const char *text, const di_json_t *v)
{
    di_str_t s = raw(text, v);

    di_sbuf_add(b, s.data, s.len);
}

/* ----------------------------------------------------------------- records */

static void
add_size(di_sbuf_t *b, size_t n, char after)
{
    di_json_add_u64(b, n);
    di_sbuf_add(b, &after, 1);
}

/* What stands between the brackets of an array. */
static di_str_t
inside(di_str_t array)
{
    return (di_str_t) { array.data + 1, array.len - 2 };
}

int
di_stored_write(di_sbuf_t *record, di_str_t response, di_str_t input)
{
    const di_json_t *v;
    di_arena_t       arena = { 0 };
    di_json_t       *root;
    di_str_t         output;
    int              rc;

    rc = di_json_read(&arena, response.data, response.len, DEPTH, &root, NULL);
    if (rc != DI_OK)
        goto done;

    v = di_json_get(root, "output");
    if (v == NULL || v->type != DI_JSON_ARRAY) {
        rc = DI_EFORMAT;
        goto done;
    }

    output = inside(raw(response.data, v));

    di_sbuf_lit(record, MAGIC " ");
    add_size(record, response.len, ' ');
    add_size(record, input.len, ' ');
    add_size(record, output.len, '\n');
    di_sbuf_add(record, response.data, response.len);
    di_sbuf_add(record, input.data, input.len);
    di_sbuf_add(record, output.data, output.len);
    rc = record->failed ? DI_ENOMEM : DI_OK;

done:
    di_arena_free(&arena);
    return rc;
}

/* A number and the character after it; NULL: there is none. */
static const char *
read_size(const char *p, const char *end, char after, size_t *n)
{
    const char *start = p;

    for (*n = 0; p < end && *p >= '0' && *p <= '9' && p - start < 12; p++)
        *n = *n * 10 + (size_t) (*p - '0');

    return p < end && p > start && *p == after ? p + 1 : NULL;
}

int
di_stored_read(const char *record, size_t len, di_stored_t *s)
{
    const char *p = record, *end = record + len;

    if (len < sizeof(MAGIC) || memcmp(p, MAGIC " ", sizeof(MAGIC)) != 0)
        return DI_EFORMAT;

    p = read_size(p + sizeof(MAGIC), end, ' ', &s->response.len);
    if (p != NULL)
        p = read_size(p, end, ' ', &s->input.len);
    if (p != NULL)
        p = read_size(p, end, '\n', &s->output.len);

    if (p == NULL || s->response.len + s->input.len + s->output.len
                     != (size_t) (end - p))
        return DI_EFORMAT;

    s->response.data = p;
    s->input.data = p + s->response.len;
    s->output.data = s->input.data + s->input.len;
    return DI_OK;
}

/* ------------------------------------------------------------------- items */

static void
add_items(di_sbuf_t *b, di_str_t items)
{
    if (items.len > 0 && b->len > 0)
        di_sbuf_lit(b, ",");
    di_sbuf_add(b, items.data, items.len);
}

static void
add_id(di_sbuf_t *b, const char *prefix, const char *id, size_t k)
{
    di_sbuf_lit(b, "{\"id\":\"");
    di_sbuf_add(b, prefix, strlen(prefix));
    di_json_add_text(b, id, strlen(id));
    di_sbuf_lit(b, "_in");
    di_json_add_u64(b, k);
    di_sbuf_lit(b, "\"");
}

/* The prefix that the API gives to ids of this type. */
static const char *
id_prefix(const di_str_t *type)
{
    static const struct { const char *type, *prefix; } known[] = {
        { "message", "msg_" }, { "reasoning", "rs_" },
        { "function_call", "fc_" }, { "function_call_output", "fco_" },
        { "custom_tool_call", "ctc_" },
        { "custom_tool_call_output", "ctco_" },
    };
    size_t i;

    for (i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (di_json_is(type, known[i].type))
            return known[i].prefix;
    }

    return "item_";
}

static void
add_text_part(di_sbuf_t *b, bool assistant, const di_json_t *text)
{
    if (assistant)
        di_sbuf_lit(b, "[{\"type\":\"output_text\",\"annotations\":[],"
                    "\"text\":");
    else
        di_sbuf_lit(b, "[{\"type\":\"input_text\",\"text\":");

    di_json_add_string(b, text->v.str.data, text->v.str.len);
    di_sbuf_lit(b, "}]");
}

static bool
is_string(const di_json_t *v)
{
    return v != NULL && v->type == DI_JSON_STRING;
}

static void
add_member(di_sbuf_t *b, const char *text, const di_json_t *m)
{
    di_sbuf_lit(b, ",");
    di_json_add_string(b, m->key.data, m->key.len);
    di_sbuf_lit(b, ":");
    add_raw(b, text, m);
}

/* An item, with all that it must have. */
static void
add_item(di_sbuf_t *b, const char *text, const di_json_t *item,
         const char *id, size_t k)
{
    const di_str_t   message = { "message", 7 };
    const di_json_t *m, *own = di_json_get(item, "id");
    const di_json_t *type = di_json_get(item, "type");
    const di_json_t *role = di_json_get(item, "role");
    bool             is_message = role != NULL;

    if (is_string(own)) {
        di_sbuf_lit(b, "{\"id\":");
        add_raw(b, text, own);
    } else {
        add_id(b, id_prefix(is_string(type) ? &type->v.str : &message), id,
               k);
    }

    if (!is_string(type))
        di_sbuf_lit(b, ",\"type\":\"message\"");
    if (di_json_get(item, "status") == NULL)
        di_sbuf_lit(b, ",\"status\":\"completed\"");

    for (m = item->v.list.first; m != NULL; m = m->next) {
        if (di_json_is(&m->key, "id")
            || (di_json_is(&m->key, "type") && !is_string(type)))
            continue;

        if (is_message && di_json_is(&m->key, "content") && is_string(m)) {
            di_sbuf_lit(b, ",\"content\":");
            add_text_part(b, is_string(role)
                             && di_json_is(&role->v.str, "assistant"), m);
            continue;
        }

        add_member(b, text, m);
    }

    di_sbuf_lit(b, "}");
}

static int
add_input(di_sbuf_t *b, const char *text, const di_json_t *input,
          const char *id)
{
    const di_json_t *item;
    size_t           k = 0;

    if (input == NULL || input->type == DI_JSON_NULL)
        return DI_OK;

    if (b->len > 0
        && (input->type != DI_JSON_ARRAY || input->v.list.n > 0))
        di_sbuf_lit(b, ",");

    if (input->type == DI_JSON_STRING) {
        add_id(b, "msg_", id, 0);
        di_sbuf_lit(b, ",\"type\":\"message\",\"status\":\"completed\","
                    "\"role\":\"user\",\"content\":");
        add_text_part(b, false, input);
        di_sbuf_lit(b, "}");
        return DI_OK;
    }

    if (input->type != DI_JSON_ARRAY)
        return DI_EFORMAT;

    for (item = input->v.list.first; item != NULL; item = item->next) {
        if (item->type != DI_JSON_OBJECT)
            return DI_EFORMAT;
        if (k > 0)
            di_sbuf_lit(b, ",");
        add_item(b, text, item, id, k++);
    }

    return DI_OK;
}

int
di_stored_input(const char *body, size_t len, const di_stored_t *earlier,
                const char *id, di_sbuf_t *items)
{
    di_arena_t  arena = { 0 };
    di_json_t  *root;
    int         rc;

    rc = di_json_read(&arena, body, len, DEPTH, &root, NULL);

    if (rc == DI_OK) {
        if (earlier != NULL) {
            add_items(items, earlier->input);
            add_items(items, earlier->output);
        }
        rc = add_input(items, body, di_json_get(root, "input"), id);
    }

    di_arena_free(&arena);
    return rc == DI_OK && items->failed ? DI_ENOMEM : rc;
}

int
di_stored_history(const di_stored_t *s, di_sbuf_t *b)
{
    di_sbuf_lit(b, "[");
    di_sbuf_add(b, s->input.data, s->input.len);
    if (s->input.len > 0 && s->output.len > 0)
        di_sbuf_lit(b, ",");
    di_sbuf_add(b, s->output.data, s->output.len);
    di_sbuf_lit(b, "]");
    return b->failed ? DI_ENOMEM : DI_OK;
}

void
di_stored_deleted(di_sbuf_t *b, const char *id, size_t len)
{
    di_sbuf_lit(b, "{\"id\":");
    di_json_add_string(b, id, len);
    di_sbuf_lit(b, ",\"object\":\"response\",\"deleted\":true}");
}

/* ------------------------------------------------------------------- lists */

/* An item's id, quoted, as it stands in the text. */
static di_str_t
quoted_id(const char *text, const di_json_t *item)
{
    const di_json_t *id = di_json_get(item, "id");

    return is_string(id) ? raw(text, id) : (di_str_t) { "null", 4 };
}

/* The place after the item called so; n + 1: there is none. */
static size_t
place_after(const di_json_t *const *items, size_t n, di_str_t after)
{
    const di_json_t *id;
    size_t           i;

    if (after.data == NULL)
        return 0;

    for (i = 0; i < n; i++) {
        id = di_json_get(items[i], "id");
        if (is_string(id) && id->v.str.len == after.len
            && memcmp(id->v.str.data, after.data, after.len) == 0)
            return i + 1;
    }

    return n + 1;
}

static int
add_page(di_sbuf_t *b, const char *text, const di_json_t *const *items,
         size_t n, size_t limit, di_str_t after)
{
    size_t   i, first = place_after(items, n, after), end;
    di_str_t id;

    if (first > n)
        return DI_EINVAL;

    end = n - first > limit ? first + limit : n;
    di_sbuf_lit(b, "{\"object\":\"list\",\"data\":[");

    for (i = first; i < end; i++) {
        if (i > first)
            di_sbuf_lit(b, ",");
        add_raw(b, text, items[i]);
    }

    di_sbuf_lit(b, "],\"first_id\":");
    id = first < end ? quoted_id(text, items[first])
                     : (di_str_t) { "null", 4 };
    di_sbuf_add(b, id.data, id.len);
    di_sbuf_lit(b, ",\"last_id\":");
    id = first < end ? quoted_id(text, items[end - 1])
                     : (di_str_t) { "null", 4 };
    di_sbuf_add(b, id.data, id.len);

    if (end < n)
        di_sbuf_lit(b, ",\"has_more\":true}");
    else
        di_sbuf_lit(b, ",\"has_more\":false}");

    return b->failed ? DI_ENOMEM : DI_OK;
}

int
di_stored_list(di_str_t items, size_t limit, di_str_t after, bool asc,
               di_sbuf_t *b)
{
    const di_json_t **order, *item;
    di_arena_t        arena = { 0 };
    di_sbuf_t         text = { 0 };
    di_json_t        *root;
    size_t            i, n;
    int               rc = DI_ENOMEM;

    di_sbuf_lit(&text, "{\"items\":[");
    di_sbuf_add(&text, items.data, items.len);
    di_sbuf_lit(&text, "]}");
    if (text.failed)
        goto done;

    rc = di_json_read(&arena, text.data, text.len, DEPTH, &root, NULL);
    if (rc != DI_OK)
        goto done;

    n = root->v.list.first->v.list.n;
    order = di_arena_calloc(&arena, n + 1, sizeof(*order));
    if (order == NULL) {
        rc = DI_ENOMEM;
        goto done;
    }

    item = root->v.list.first->v.list.first;
    for (i = 0; i < n; i++, item = item->next)
        order[asc ? i : n - 1 - i] = item;

    rc = add_page(b, text.data, order, n, limit, after);

done:
    di_sbuf_free(&text);
    di_arena_free(&arena);
    return rc;
}
