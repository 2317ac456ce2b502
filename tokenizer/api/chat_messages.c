/*
 * chat_messages.c - the messages of a Chat Completions body to a conversation.
 *
 * Where this API leaves a choice:
 * - text parts of one message are joined with two newlines;
 * - an assistant message without content but with `refusal` has that as its
 *   content: it is what the assistant said;
 * - `name` of a message is taken; dialects without a spelling for it leave it
 *   out, as the models' own templates do.
 *
 * Messages of the role tool are read, so that a dialect without a spelling
 * for them can say so.
 */

#include "chat_parse.h"

#include <string.h>

/* --------------------------------------------------------- content parts */

/* Why a part that carries no text can't be read, or NULL. */
static const char *
part_refusal(const di_str_t *type)
{
    if (di_json_is(type, "image_url") || di_json_is(type, "image"))
        return "the model has no vision";

    if (di_json_is(type, "input_audio"))
        return "the model has no audio input";

    if (di_json_is(type, "file"))
        return "the model reads no files";

    return NULL;
}

/* Text of messages[i].content[j]; only an assistant has refusal parts. */
static int
part_text(di_chat_parser_t *ps, const di_json_t *v, size_t i, size_t j,
          di_role_t role, di_str_t *text)
{
    const di_json_t *type, *member, *m;
    const char      *why, *name = "text";
    di_str_t         kind;
    char             quoted[DI_JSON_QUOTE];
    int              rc;

    di_chat_path(ps, "messages[%zu].content[%zu]", i, j);
    rc = di_field_object(v, ps->path, ps->e);
    if (rc != DI_OK)
        return rc;

    di_chat_path(ps, "messages[%zu].content[%zu].type", i, j);
    type = di_json_get(v, "type");
    if (type == NULL)
        return di_field_missing(ps->path, ps->e);

    rc = di_field_str(type, ps->path, &kind, ps->e);
    if (rc != DI_OK)
        return rc;

    if (role == DI_ROLE_ASSISTANT && di_json_is(&kind, "refusal")) {
        name = "refusal";

    } else if (!di_json_is(&kind, "text")) {
        why = part_refusal(&kind);
        if (why != NULL) {
            di_chat_path(ps, "messages[%zu].content[%zu]", i, j);
            return di_field_invalid(ps->e, ps->path, "unsupported_content",
                                    "'%s' is a part of type '%.*s': %s.",
                                    ps->path, (int) kind.len, kind.data, why);
        }

        di_json_quote(kind, quoted);
        return di_field_invalid(ps->e, ps->path, "invalid_value",
                                "Invalid value: '%s' is '%s', supported:"
                                " 'text'.", ps->path, quoted);
    }

    di_chat_path(ps, "messages[%zu].content[%zu].%s", i, j, name);
    member = di_json_get(v, name);
    if (member == NULL)
        return di_field_missing(ps->path, ps->e);

    for (m = v->v.list.first; m != NULL; m = m->next) {
        if (m != member && m != type)
            di_chat_note_ignored(ps, "messages[].content[].", m);
    }

    return di_field_str(member, ps->path, text, ps->e);
}

/* A list of parts: their texts, joined with two newlines. */
static int
content_parts(di_chat_parser_t *ps, const di_json_t *v, size_t i,
              di_role_t role, di_str_t *content)
{
    const di_json_t *part;
    di_str_t        *texts;
    size_t           n = v->v.list.n, j = 0, len = 0;
    char            *p;
    int              rc;

    if (n == 0)
        return di_field_invalid(ps->e, ps->path, "empty_array",
                                "Invalid '%s': empty array. Expected an array"
                                " with minimum length 1.", ps->path);

    texts = di_arena_calloc(&ps->req->arena, n, sizeof(*texts));
    if (texts == NULL)
        return di_chat_no_memory(ps);

    for (part = v->v.list.first; part != NULL; part = part->next) {
        rc = part_text(ps, part, i, j, role, &texts[j]);
        if (rc != DI_OK)
            return rc;
        len += texts[j++].len + 2;
    }

    if (n == 1) {
        *content = texts[0];
        return DI_OK;
    }

    p = di_arena_alloc(&ps->req->arena, len);
    if (p == NULL)
        return di_chat_no_memory(ps);

    content->data = p;
    for (j = 0; j < n; j++) {
        if (j > 0) {
            *p++ = '\n';
            *p++ = '\n';
        }
        if (texts[j].len != 0)
            memcpy(p, texts[j].data, texts[j].len);
        p += texts[j].len;
    }

    content->len = (size_t) (p - content->data);
    return DI_OK;
}

/* --------------------------------------------------------------- messages */

static int
message_role(di_chat_parser_t *ps, const di_json_t *v, size_t i,
             di_role_t *role)
{
    static const char *const names[] = {
        [DI_ROLE_SYSTEM] = "system", [DI_ROLE_DEVELOPER] = "developer",
        [DI_ROLE_USER] = "user", [DI_ROLE_ASSISTANT] = "assistant",
        [DI_ROLE_TOOL] = "tool",
    };
    const di_json_t *member = di_json_get(v, "role");
    di_str_t         s;
    size_t           k;
    char             quoted[DI_JSON_QUOTE];
    int              rc;

    di_chat_path(ps, "messages[%zu].role", i);
    if (member == NULL || member->type == DI_JSON_NULL)
        return di_field_missing(ps->path, ps->e);

    rc = di_field_str(member, ps->path, &s, ps->e);
    if (rc != DI_OK)
        return rc;

    for (k = 0; k < sizeof(names) / sizeof(names[0]); k++) {
        if (di_json_is(&s, names[k])) {
            *role = (di_role_t) k;
            return DI_OK;
        }
    }

    if (di_json_is(&s, "function"))
        return di_field_refuse(ps->path, DI_CHAT_NO_TOOLS, ps->e);

    di_json_quote(s, quoted);
    return di_field_invalid(ps->e, ps->path, "invalid_value",
                            "Invalid value: '%s'. Supported values are:"
                            " 'system', 'developer', 'user', 'assistant' and"
                            " 'tool'.", quoted);
}

static int
message_content(di_chat_parser_t *ps, const di_json_t *v, size_t i, di_msg_t *m)
{
    di_chat_path(ps, "messages[%zu].content", i);

    if (v->type == DI_JSON_STRING) {
        m->content = v->v.str;
        return DI_OK;
    }

    if (v->type == DI_JSON_ARRAY)
        return content_parts(ps, v, i, m->role, &m->content);

    return di_field_type(v, ps->path, "a string or an array of content parts",
                         ps->e);
}

/* Fields of a message other than role and content. */
static int
message_field(di_chat_parser_t *ps, const di_json_t *v, size_t i, di_msg_t *m,
              di_str_t *refusal)
{
    const di_str_t *key = &v->key;
    bool            assistant = m->role == DI_ROLE_ASSISTANT;
    di_str_t        s;

    di_chat_path(ps, "messages[%zu].%.*s", i,
                 (int) (key->len < 32 ? key->len : 32), key->data);

    if (di_json_is(key, "name"))
        return di_field_str(v, ps->path, &m->name, ps->e);

    if (m->role == DI_ROLE_TOOL && di_json_is(key, "tool_call_id"))
        return di_field_str(v, ps->path, &s, ps->e);

    if (assistant && di_json_is(key, "refusal"))
        return di_field_str(v, ps->path, refusal, ps->e);

    if (assistant && (di_json_is(key, "tool_calls")
                      || di_json_is(key, "function_call")))
        return di_field_refuse(ps->path, DI_CHAT_NO_TOOLS, ps->e);

    if (assistant && di_json_is(key, "audio"))
        return di_field_refuse(ps->path, "the model has no audio", ps->e);

    /* Client libraries send an answer back as they got it. */
    if (!(assistant && di_json_is(key, "annotations")))
        di_chat_note_ignored(ps, "messages[].", v);

    return DI_OK;
}

static int
message(di_chat_parser_t *ps, const di_json_t *v, size_t i, di_msg_t *m)
{
    const di_json_t *f;
    di_str_t         refusal = { NULL, 0 };
    int              rc;

    rc = di_field_object(v, di_chat_path(ps, "messages[%zu]", i), ps->e);
    if (rc != DI_OK)
        return rc;

    rc = message_role(ps, v, i, &m->role);

    for (f = v->v.list.first; f != NULL && rc == DI_OK; f = f->next) {
        if (f->type == DI_JSON_NULL || di_json_is(&f->key, "role"))
            continue;

        rc = di_json_is(&f->key, "content")
             ? message_content(ps, f, i, m)
             : message_field(ps, f, i, m, &refusal);
    }

    if (rc != DI_OK)
        return rc;

    if (m->content.data == NULL)
        m->content = refusal;

    di_chat_path(ps, "messages[%zu].content", i);
    if (m->content.data == NULL)
        return di_field_missing(ps->path, ps->e);

    di_chat_path(ps, "messages[%zu].tool_call_id", i);
    if (m->role == DI_ROLE_TOOL && di_json_get(v, "tool_call_id") == NULL)
        return di_field_missing(ps->path, ps->e);

    return DI_OK;
}

int
di_chat_messages(di_chat_parser_t *ps, const di_json_t *v)
{
    di_chat_req_t   *req = ps->req;
    const di_json_t *m;
    size_t           i = 0;
    int              rc;

    rc = di_field_array(v, "messages", ps->limits.messages, ps->e);
    if (rc != DI_OK)
        return rc;

    if (v->v.list.n == 0)
        return di_field_invalid(ps->e, "messages", "empty_array",
                                "Invalid 'messages': empty array. Expected an"
                                " array with minimum length 1.");

    req->msgs = di_arena_calloc(&req->arena, v->v.list.n, sizeof(*req->msgs));
    if (req->msgs == NULL)
        return di_chat_no_memory(ps);

    for (m = v->v.list.first; m != NULL; m = m->next, i++) {
        rc = message(ps, m, i, &req->msgs[i]);
        if (rc != DI_OK)
            return rc;
    }

    req->conv.msgs = req->msgs;
    req->conv.n_msgs = i;
    req->conv.open_assistant = true;
    return DI_OK;
}
