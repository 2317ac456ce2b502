/*
 * parse_body.c - a call that is one JSON object: {"name":..,"arguments":{..}};
 * or, as Llama 3.1 writes the tools that it was trained with,
 *
 *     NAME.call(KEY="VALUE", KEY="VALUE")
 *
 * where nothing is escaped: a value ends at the quote that the next key or the
 * closing parenthesis follows.
 *
 * Once the name is complete and the arguments' value has begun as an object,
 * the call begins and its arguments go on as they come.  In every other order
 * or form (a name behind the arguments, arguments as a string, none) the
 * object is read when it is complete.  What is no call is text.
 *
 * The head, all before the arguments, is looked at anew whenever it grows; it
 * is short.
 */

#include "parse.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* Behind the spaces at `at`. */
static size_t
skip_spaces(const di_sbuf_t *b, size_t at)
{
    while (at < b->len && strchr(" \t\r\n", b->data[at]) != NULL)
        at++;

    return at;
}

/* Behind the value at `at`; 0: it isn't complete. */
static size_t
skip_value(const di_sbuf_t *b, size_t at)
{
    size_t depth = 0;
    bool   string = false;

    for (; at < b->len; at++) {
        switch (b->data[at]) {
        case '\\':
            at += string;
            continue;
        case '"':
            string = !string;
            break;
        case '{':
        case '[':
            depth += !string;
            continue;
        case '}':
        case ']':
            if (!string && depth == 0)
                return at;
            depth -= !string;
            break;
        case ',':
            if (!string && depth == 0)
                return at;
            continue;
        default:
            continue;
        }

        if (!string && depth == 0)
            return at + 1;
    }

    return 0;
}

static bool
is(di_str_t s, const char *text)
{
    return s.len == strlen(text) && memcmp(s.data, text, s.len) == 0;
}

/* The string at `at`, without its quotes; len 0: incomplete, or not simple. */
static di_str_t
simple_string(const di_sbuf_t *b, size_t at, size_t *end)
{
    di_str_t s = { b->data + at + 1, 0 };

    *end = at < b->len && b->data[at] == '"' ? skip_value(b, at) : 0;
    if (*end < at + 3)
        return s;

    s.len = *end - at - 2;
    if (memchr(s.data, '\\', s.len) != NULL)
        s.len = 0;
    return s;
}

/* One member of the head: what it tells, and the place behind. */
typedef enum { MORE, NEXT, ARGUMENTS, OTHER } member_t;

static member_t
member(const di_sbuf_t *b, size_t *at, di_str_t *name)
{
    di_str_t key, value;
    size_t   end;

    *at = skip_spaces(b, *at);
    if (*at == b->len)
        return MORE;

    key = simple_string(b, *at, &end);
    if (key.len == 0)
        return b->data[*at] != '"' || end != 0 ? OTHER : MORE;

    end = skip_spaces(b, end);
    if (end == b->len)
        return MORE;
    if (b->data[end] != ':')
        return OTHER;

    *at = skip_spaces(b, end + 1);
    if (*at == b->len)
        return MORE;

    if (is(key, "arguments") || is(key, "parameters"))
        return b->data[*at] == '{' ? ARGUMENTS : OTHER;
    if (!is(key, "name") && !is(key, "type") && !is(key, "id"))
        return OTHER;

    value = simple_string(b, *at, &end);
    if (end == 0)
        return b->data[*at] == '"' ? MORE : OTHER;
    if (is(key, "name"))
        *name = value;

    *at = skip_spaces(b, end);
    if (*at == b->len)
        return MORE;
    return b->data[(*at)++] == ',' ? NEXT : OTHER;
}

/* Give the arguments' bytes; the number of those up to their end. */
static size_t
arguments(di_body_t *b, const char *data, size_t len, di_body_give_pt give,
          void *ctx)
{
    size_t i;

    for (i = 0; i < len; i++) {
        if (b->escaped) {
            b->escaped = false;
        } else if (b->string) {
            b->escaped = data[i] == '\\';
            b->string = data[i] != '"';
        } else if (data[i] == '"') {
            b->string = true;
        } else if (data[i] == '{' || data[i] == '[') {
            b->depth++;
        } else if ((data[i] == '}' || data[i] == ']') && --b->depth == 0) {
            b->state = DI_BODY_TAIL;
            i++;
            break;
        }
    }

    if (i > 0)
        give(ctx, DI_DELTA_ARGS, data, i);
    return i;
}

static void
head(di_body_t *b, di_body_give_pt give, void *ctx)
{
    di_str_t name = { NULL, 0 };
    size_t   at = skip_spaces(&b->text, 0), n;
    member_t what = OTHER;

    if (at == b->text.len)
        return;

    if (b->text.data[at] == '{') {
        at++;
        while ((what = member(&b->text, &at, &name)) == NEXT) {
            /* void */
        }
    }

    if (what == MORE)
        return;

    if (what != ARGUMENTS || name.len == 0) {
        b->state = DI_BODY_WHOLE;
        return;
    }

    give(ctx, DI_DELTA_CALL, name.data, name.len);
    b->state = DI_BODY_ARGUMENTS;
    n = arguments(b, b->text.data + at, b->text.len - at, give, ctx);
    memmove(b->text.data, b->text.data + at + n, b->text.len - at - n);
    b->text.len -= at + n;
}

void
di_body_add(di_body_t *b, const char *data, size_t len, di_body_give_pt give,
            void *ctx)
{
    size_t n;

    if (b->state == DI_BODY_ARGUMENTS) {
        n = arguments(b, data, len, give, ctx);
        data += n;
        len -= n;
    }

    di_sbuf_add(&b->text, data, len);
    if (b->state == DI_BODY_HEAD && !b->text.failed)
        head(b, give, ctx);
}

/* Length of the name at `at`. */
static size_t
word(di_str_t s, size_t at)
{
    size_t n;
    char   c;

    for (n = 0; at + n < s.len; n++) {
        c = s.data[at + n];
        if (c != '_' && !(c >= '0' && c <= '9') && !(c >= 'a' && c <= 'z')
            && !(c >= 'A' && c <= 'Z'))
            break;
    }

    return n;
}

static bool
follows(di_str_t s, size_t at, const char *text)
{
    size_t n = strlen(text);

    return at <= s.len && s.len - at >= n && memcmp(s.data + at, text, n) == 0;
}

/* Length of KEY=" at `at`, or 0. */
static size_t
key_at(di_str_t s, size_t at)
{
    size_t n = word(s, at);

    return n > 0 && follows(s, at + n, "=\"") ? n + 2 : 0;
}

/* Where the value at `at` ends; s.len: nowhere. */
static size_t
value_end(di_str_t s, size_t at)
{
    for (; at < s.len; at++) {
        if (s.data[at] == '"'
            && ((follows(s, at + 1, ")") && at + 2 == s.len)
                || (follows(s, at + 1, ", ") && key_at(s, at + 3) > 0)))
            break;
    }

    return at;
}

/* The arguments, behind the opening parenthesis, as JSON. */
static bool
keywords(di_str_t s, size_t at, di_sbuf_t *json)
{
    size_t n, end;

    di_sbuf_lit(json, "{");

    while (!(json->len == 1 && follows(s, at, ")") && at + 1 == s.len)) {
        n = key_at(s, at);
        end = value_end(s, at + n);
        if (n == 0 || end == s.len)
            return false;

        di_sbuf_lit(json, "\"");
        di_sbuf_add(json, s.data + at, n - 2);
        di_sbuf_lit(json, "\": \"");
        di_json_add_inner(json, s.data + at + n, end - at - n);
        di_sbuf_lit(json, "\"");

        at = end + 1;
        if (follows(s, at, ")"))
            break;
        di_sbuf_lit(json, ", ");
        at += 2;
    }

    di_sbuf_lit(json, "}");
    return !json->failed;
}

/* NAME.call(..) */
static bool
spoken(di_body_t *b, di_body_give_pt give, void *ctx)
{
    di_str_t  s = { b->text.data, b->text.len };
    size_t    from = skip_spaces(&b->text, 0), n;
    di_sbuf_t json = { 0 };
    bool      call;

    while (s.len > from && strchr(" \t\r\n", s.data[s.len - 1]) != NULL)
        s.len--;

    n = word(s, from);
    call = n > 0 && follows(s, from + n, ".call(")
           && keywords(s, from + n + sizeof(".call(") - 1, &json);

    if (call) {
        give(ctx, DI_DELTA_CALL, s.data + from, n);
        give(ctx, DI_DELTA_ARGS, json.data, json.len);
    }

    di_sbuf_free(&json);
    return call;
}

/* A complete object in a form that couldn't go out as it came. */
static bool
whole(di_body_t *b, di_body_give_pt give, void *ctx)
{
    json_t     *v = json_loadb(b->text.data, b->text.len, 0, NULL), *args;
    const char *name = json_string_value(json_object_get(v, "name"));
    char       *text = NULL;
    bool        call = name != NULL && name[0] != '\0';

    args = json_object_get(v, "arguments");
    if (args == NULL)
        args = json_object_get(v, "parameters");

    if (call) {
        give(ctx, DI_DELTA_CALL, name, strlen(name));
        if (json_is_string(args)) {
            give(ctx, DI_DELTA_ARGS, json_string_value(args),
                 json_string_length(args));
        } else {
            text = args == NULL || json_is_null(args) ? NULL
                   : json_dumps(args, JSON_ENCODE_ANY | JSON_COMPACT);
            give(ctx, DI_DELTA_ARGS, text != NULL ? text : "{}",
                 text != NULL ? strlen(text) : 2);
        }
        free(text);
    }

    json_decref(v);
    return call;
}

bool
di_body_end(di_body_t *b, di_body_give_pt give, void *ctx)
{
    size_t at = skip_spaces(&b->text, 0);
    bool   call = true;

    switch (b->state) {
    case DI_BODY_HEAD:
    case DI_BODY_WHOLE:
        call = b->text.len != 0 && (whole(b, give, ctx)
                                    || spoken(b, give, ctx));
        if (call)
            b->text.len = 0;
        break;

    case DI_BODY_ARGUMENTS:
        break;

    case DI_BODY_TAIL:
        /* The object's own end, and whatever a model puts behind it. */
        if (at < b->text.len && b->text.data[at] == '}')
            at = skip_spaces(&b->text, at + 1);
        if (at < b->text.len)
            give(ctx, DI_DELTA_TEXT, b->text.data + at, b->text.len - at);
        b->text.len = 0;
    }

    b->state = DI_BODY_HEAD;
    b->depth = 0;
    b->string = b->escaped = false;
    return call;
}
