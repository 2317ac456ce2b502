/*
 * messages.c - Messages: a body as a conversation.
 *
 * A user's blocks become messages of their own, one for each; dialects write
 * consecutive ones together.  An assistant's blocks become one message:
 * texts, thinking and calls, each gathered wherever they stand.  Results must
 * open the message after the calls, one for each of them.
 *
 * Strict: an assistant message at the end is a prefill that the answer goes
 * on; `any` forces a call; documents, redacted thinking and search results
 * are refused, where the official codec puts a note in their place or knows
 * them not.
 */

#include "shape.h"

#include <string.h>

/* ------------------------------------------------------------------ tools */

static bool
is_web_search(const di_json_t *type)
{
    return type != NULL && type->type == DI_JSON_STRING
           && type->v.str.len > 11
           && memcmp(type->v.str.data, "web_search_", 11) == 0;
}

/* A type of any kind is a server's tool; strict, `custom` is the default. */
static bool
is_server_tool(const di_rq_t *rq, const di_json_t *type)
{
    return type != NULL && (rq->official || !di_rq_is(type, "custom"));
}

static int
read_tool(di_rq_t *rq, const di_json_t *v, size_t i)
{
    static const di_json_t null = { .type = DI_JSON_NULL };
    const di_json_t       *type = di_rq_get(v, "type");
    const di_json_t       *schema = di_rq_get(v, "input_schema");
    di_tool_t              t = {
        .name = di_rq_text(v, "name"),
        .description = di_rq_text(v, "description"),
        .local = di_rq_text(v, "name"),
        .strict = !rq->official && di_rq_true(v, "strict") ? 1 : -1,
        .deferred = rq->v41 && di_rq_true(v, "defer_loading"),
    };
    int rc;

    di_rq_path(rq, "tools[%zu]", i);
    if (is_server_tool(rq, type))
        return is_web_search(type) && rq->opt.drop_web_search ? DI_OK
               : di_rq_fail(rq, rq->path, "tools[%zu]: server tools are not"
                            " supported", i);

    rc = di_rq_print(rq, &t.schema_at, "tools[%zu].input_schema", i);
    if (rc != DI_OK)
        return rc;

    di_rq_path(rq, "tools[%zu].name", i);
    rc = di_rq_check_tool_name(rq, t.name, rq->path);
    return rc == DI_OK ? di_rq_add_tool(rq, &t, rq->path, schema == NULL
                                        ? &null : schema) : rc;
}

static int
read_tools(di_rq_t *rq, const di_json_t *v)
{
    const di_json_t *m;
    size_t           i = 0, deferred = 0;
    int              rc;

    for (m = v == NULL ? NULL : v->v.list.first; m != NULL; m = m->next, i++) {
        rc = read_tool(rq, m, i);
        if (rc != DI_OK)
            return rc;
    }

    for (i = 0; i < rq->req->n_tools; i++)
        deferred += rq->req->tools[i]->deferred;

    if (deferred > 0 && deferred == rq->req->n_tools)
        return di_rq_fail(rq, "tools", "tools: at least one tool must have"
                          " defer_loading=false. All tools cannot be"
                          " deferred.");

    return DI_OK;
}

/* One of the declared tools, by its name. */
static const di_tool_t *
find_tool(const di_rq_t *rq, di_str_t name)
{
    size_t index;

    return di_names_get(&rq->tool_names, name, &index)
           ? rq->req->tools[index] : NULL;
}

/* ---------------------------------------------------------------- content */

static int
bad_link(di_rq_t *rq, const char *at, di_str_t url)
{
    di_json_t v = { .type = DI_JSON_STRING, .v.str = url };
    di_sbuf_t b = { 0 };
    int       rc;

    di_json_add_tree(&b, &v, DI_JSON_COMPACT);
    rc = b.failed ? di_rq_no_memory(rq)
         : di_rq_fail(rq, at, "%s: invalid url: %.*s", at, (int) b.len,
                      b.data);
    di_sbuf_free(&b);
    return rc;
}

static bool
is_link(di_str_t url)
{
    return (url.len >= 7 && strncasecmp(url.data, "http://", 7) == 0)
           || (url.len >= 8 && strncasecmp(url.data, "https://", 8) == 0);
}

/* An image's source; a base64 one becomes a data URL. */
static int
read_source(di_rq_t *rq, const di_json_t *v, const char *at, di_image_t *image)
{
    di_str_t type = di_rq_text(v, "media_type"), data = di_rq_text(v, "data");
    di_str_t url = di_rq_text(v, "url");
    char     long_at[96];

    (void) snprintf(long_at, sizeof(long_at), "%s:", at);

    if (di_rq_is(di_json_get(v, "type"), "url"))
        return is_link(url) ? di_rq_image_url(rq, at, long_at, url, NULL,
                                              image)
               : bad_link(rq, at, url);

    if (di_rq_is(di_json_get(v, "type"), "file"))
        return di_rq_fail(rq, at, "%s: file_id is not supported. Pass the"
                          " image as a base64 data url instead.", at);

    if (!di_rq_base64(&data))
        return di_rq_fail(rq, at, "%s: base64 decode error", at);

    if (di_json_is(&type, "image/jpg"))
        type = (di_str_t) DI_STR("image/jpeg");

    *image = (di_image_t) { .data = true, .detail = DI_DETAIL_HIGH };
    return di_rq_join(rq, &image->url, (di_str_t[]) {
                          DI_STR("data:"), type, DI_STR(";base64,"), data,
                          { "==", (4 - data.len % 4) % 4 }, DI_STR_END });
}

/* `at` is the block's path in errors, `path` the entry's. */
static int
add_image(di_rq_t *rq, const di_json_t *v, const char *at, const char *path,
          di_content_t *out)
{
    di_image_t image;
    int        rc;

    if (!rq->official && !rq->sees)
        return di_rq_image_url(rq, at, at, (di_str_t) { "", 0 }, NULL, &image);

    if (!rq->sees)
        return di_content_image(rq, out, NULL);

    rc = read_source(rq, di_rq_get(v, "source"), at, &image);
    if (rc == DI_OK)
        rc = di_rq_print(rq, &image.path, "%s", path);

    return rc == DI_OK ? di_content_image(rq, out, &image) : rc;
}

static int
add_document(di_rq_t *rq, const di_json_t *v, di_content_t *out)
{
    di_str_t type = di_rq_text(di_rq_get(v, "source"), "media_type"), text;
    int      rc;

    if (type.data == NULL)
        type = (di_str_t) DI_STR("unknown");

    rc = di_rq_join(rq, &text, (di_str_t[]) {
                        DI_STR("[Unsupported document type: "), type,
                        DI_STR("]"), DI_STR_END });
    return rc == DI_OK ? di_content_add(rq, out, text) : rc;
}

/* --------------------------------------------------------------- messages */

/* Where reading stands. */
typedef struct {
    size_t            i;         /* the message                             */
    size_t            j;         /* the block in it                         */
    size_t            open_i;    /* the message whose calls are open        */
    const di_call_t  *calls;     /* [n_calls] of it                         */
    size_t            n_calls;
    size_t            left;      /* those without a result                  */
    di_names_t        ids;       /* to indexes of calls                     */
    bool             *answered;
} state_t;

/* The sentence about calls without results; prefix: where. */
static int
unanswered(di_rq_t *rq, const state_t *st, const char *prefix)
{
    di_sbuf_t b = { 0 };
    size_t    k;
    int       rc;

    for (k = 0; k < st->n_calls; k++) {
        if (st->answered[k])
            continue;
        if (b.len > 0)
            di_sbuf_lit(&b, ", ");
        di_sbuf_add(&b, st->calls[k].id.data, st->calls[k].id.len);
    }

    rc = b.failed ? di_rq_no_memory(rq)
         : di_rq_fail(rq, "messages", "%s`tool_use` ids were found without"
                      " `tool_result` blocks immediately after: %.*s. Each"
                      " `tool_use` block must have a corresponding"
                      " `tool_result` block in the next message.", prefix,
                      (int) b.len, b.len == 0 ? "" : b.data);
    di_sbuf_free(&b);
    return rc;
}

static int
misplaced(di_rq_t *rq, const state_t *st, const char *what, const char *where)
{
    return di_rq_fail(rq, di_rq_path(rq, "messages[%zu]", st->i),
                      "messages.%zu: `%s` blocks can only be in `%s` messages",
                      st->i, what, where);
}

/* A block that has no place in this message. */
static int
check_place(di_rq_t *rq, const state_t *st, const di_json_t *type,
            const char *in)
{
    bool assistant = strcmp(in, "assistant") == 0;

    if (di_rq_is(type, "thinking") && !assistant)
        return di_rq_fail(rq, di_rq_path(rq, "messages[%zu].content", st->i),
                          "messages.%zu.content: thinking blocks may only be"
                          " in `assistant` messages", st->i);

    if (di_rq_is(type, "tool_use") && !assistant)
        return misplaced(rq, st, "tool_use", "assistant");

    if (di_rq_is(type, "tool_result") && strcmp(in, "user") != 0)
        return misplaced(rq, st, "tool_result", "user");

    if (di_rq_is(type, "tool_addition") && strcmp(in, "system") != 0)
        return misplaced(rq, st, "tool_addition", "system");

    return DI_OK;
}

static bool
is_server_block(const di_json_t *type)
{
    return di_rq_is(type, "server_tool_use")
           || di_rq_is(type, "web_search_tool_result");
}

static int
server_block(di_rq_t *rq)
{
    return rq->opt.drop_web_search ? DI_OK
           : di_rq_fail(rq, NULL, "Unsupported content block: server tools are"
                        " not supported");
}

/* Text, image or document of a message. */
static int
add_block(di_rq_t *rq, const state_t *st, const di_json_t *v,
          di_content_t *out)
{
    const di_json_t *type = di_json_get(v, "type");
    char             at[64];

    if (di_rq_is(type, "text"))
        return di_content_add(rq, out, di_rq_text(v, "text"));

    if (di_rq_is(type, "document"))
        return add_document(rq, v, out);

    (void) snprintf(at, sizeof(at), rq->official ? "messages.%zu.content[%zu]"
                    : "messages[%zu].content[%zu]", st->i, st->j);
    return add_image(rq, v, at, at, out);
}

/* ------------------------------------------------------- tools of messages */

/* Tools that messages bring, gathered for one system message. */
typedef struct {
    const di_tool_t **list;
    size_t            n;
} brought_t;

static int
bring(di_rq_t *rq, brought_t *b, size_t most, const di_tool_t *t)
{
    if (b->list == NULL)
        b->list = di_arena_calloc(&rq->req->arena, most, sizeof(*b->list));

    if (b->list == NULL)
        return di_rq_no_memory(rq);

    b->list[b->n++] = t;
    return DI_OK;
}

static int
add_reference(di_rq_t *rq, const state_t *st, const di_json_t *v, size_t most,
              di_content_t *out, brought_t *b)
{
    di_str_t         name = di_rq_text(v, "tool_name");
    const di_tool_t *t = find_tool(rq, name);
    int              rc;

    if (t == NULL)
        return di_rq_fail(rq, di_rq_path(rq, "messages[%zu].content[%zu]",
                                         st->i, st->j),
                          "messages.%zu.content.%zu: tool reference '%.*s' not"
                          " found in available tools", st->i, st->j,
                          (int) name.len, name.data);

    rc = di_content_add(rq, out, name);
    return rc == DI_OK ? bring(rq, b, most, t) : rc;
}

/* ------------------------------------------------------------------- user */

static int
pair_result(di_rq_t *rq, state_t *st, di_str_t id)
{
    size_t k;

    if (!di_names_get(&st->ids, id, &k))
        return di_rq_fail(rq, di_rq_path(rq, "messages[%zu].content[%zu]"
                                         ".tool_use_id", st->i, st->j),
                          "unexpected `messages.%zu.content.%zu: tool_use_id`"
                          " found in `tool_result` blocks: %.*s. Each"
                          " `tool_result` block must have a corresponding"
                          " `tool_use` block in the previous message.", st->i,
                          st->j, (int) id.len, id.data);

    if (st->answered[k])
        return di_rq_fail(rq, di_rq_path(rq, "messages[%zu].content[%zu]",
                                         st->i, st->j),
                          "messages.%zu.content.%zu: each tool_use must have a"
                          " single result. Found multiple `tool_result` blocks"
                          " with id: %.*s", st->i, st->j, (int) id.len,
                          id.data);

    st->answered[k] = true;
    st->left--;
    return DI_OK;
}

static int
result_parts(di_rq_t *rq, const state_t *st, const di_json_t *v,
             di_content_t *out, brought_t *b)
{
    const di_json_t *p, *type;
    char             at[96], path[64];
    size_t           k = 0;
    int              rc = DI_OK;

    (void) snprintf(path, sizeof(path), rq->official
                    ? "messages.%zu.content.%zu.tool_result"
                    : "messages[%zu].content[%zu]", st->i, st->j);

    for (p = v->v.list.first; p != NULL && rc == DI_OK; p = p->next, k++) {
        type = di_json_get(p, "type");
        (void) snprintf(at, sizeof(at), "%s.content[%zu]", path, k);

        if (di_rq_is(type, "text"))
            rc = di_content_add(rq, out, di_rq_text(p, "text"));
        else if (di_rq_is(type, "document"))
            rc = add_document(rq, p, out);
        else if (di_rq_is(type, "image"))
            rc = add_image(rq, p, at, path, out);
        else
            rc = add_reference(rq, st, p, v->v.list.n, out, b);
    }

    return rc;
}

/* Strict: the model reads that a result tells of a failure.  No dialect has a
 * mark for that, so a word before the text says it where the text doesn't. */
static int
mark_failure(di_rq_t *rq, di_msg_t *m)
{
    static const char word[] = "Error: ";
    const size_t      n = sizeof("error") - 1;
    di_image_t       *images = (di_image_t *) m->images;
    size_t            i;

    if (m->content.len >= n && strncasecmp(m->content.data, word, n) == 0)
        return DI_OK;

    for (i = 0; i < m->n_images; i++)
        images[i].at += sizeof(word) - 1;

    return di_rq_join(rq, &m->content, (di_str_t[]) {
                          { word, sizeof(word) - 1 }, m->content,
                          DI_STR_END });
}

static int
read_result(di_rq_t *rq, state_t *st, const di_json_t *v)
{
    const di_json_t *c = di_rq_get(v, "content");
    di_content_t     out = { .separator = "\n\n" };
    brought_t        b = { NULL, 0 };
    di_str_t         id = di_rq_text(v, "tool_use_id");
    di_msg_t        *m;
    int              rc = pair_result(rq, st, id);

    if (rc != DI_OK)
        return rc;

    if (c != NULL)
        rc = c->type == DI_JSON_STRING ? di_content_add(rq, &out, c->v.str)
             : result_parts(rq, st, c, &out, &b);
    if (rc != DI_OK)
        return rc;

    m = di_rq_add_msg(rq, DI_ROLE_TOOL);
    if (m == NULL)
        return DI_ENOMEM;

    m->call_id = id;
    di_content_give(&out, m);

    if (!rq->official && di_rq_true(v, "is_error"))
        rc = mark_failure(rq, m);
    if (rc != DI_OK || b.n == 0 || !rq->v41)
        return rc;

    m = di_rq_add_msg(rq, DI_ROLE_SYSTEM);
    if (m == NULL)
        return DI_ENOMEM;

    m->tools = b.list;
    m->n_tools = b.n;
    return DI_OK;
}

static int
read_user_block(di_rq_t *rq, state_t *st, const di_json_t *v)
{
    const di_json_t *type = di_json_get(v, "type");
    di_content_t     out = { .separator = "\n\n" };
    di_msg_t        *m;
    char             prefix[48];
    int              rc;

    rc = check_place(rq, st, type, "user");
    if (rc != DI_OK)
        return rc;

    if (di_rq_is(type, "tool_result"))
        return read_result(rq, st, v);

    if (st->left > 0) {
        (void) snprintf(prefix, sizeof(prefix), "messages.%zu: ", st->i);
        return unanswered(rq, st, prefix);
    }

    if (is_server_block(type))
        return server_block(rq);

    rc = add_block(rq, st, v, &out);
    if (rc != DI_OK)
        return rc;

    m = di_rq_add_msg(rq, DI_ROLE_USER);
    if (m == NULL)
        return DI_ENOMEM;

    di_content_give(&out, m);
    return DI_OK;
}

static int
read_user(di_rq_t *rq, state_t *st, const di_json_t *v)
{
    const di_json_t *b;
    int              rc;

    for (b = v->v.list.first; b != NULL; b = b->next, st->j++) {
        rc = read_user_block(rq, st, b);
        if (rc != DI_OK)
            return rc;
    }

    return DI_OK;
}

/* -------------------------------------------------------------- assistant */

static int
read_use(di_rq_t *rq, state_t *st, const di_json_t *v, di_call_t *calls)
{
    di_call_t *c = &calls[st->n_calls];
    di_sbuf_t  b = { 0 };
    size_t     found;
    bool       known;
    int        rc;

    c->id = di_rq_text(v, "id");
    c->name = di_rq_text(v, "name");

    rc = di_names_put(rq, &st->ids, c->id, st->n_calls, &found, &known);
    if (rc != DI_OK)
        return rc;

    if (known)
        return di_rq_fail(rq, di_rq_path(rq, "messages[%zu].content[%zu].id",
                                         st->i, st->j),
                          "messages.%zu.content.%zu: `tool_use` ids must be"
                          " unique", st->i, st->j);

    st->n_calls++;
    st->left++;
    di_json_add_tree(&b, di_json_get(v, "input"),
                     rq->v41 ? DI_JSON_PYTHON : DI_JSON_SPACED);
    return di_rq_keep(rq, &b, &c->arguments);
}

static int
read_assistant_block(di_rq_t *rq, state_t *st, const di_json_t *v,
                     di_call_t *calls, di_content_t *text,
                     di_content_t *reasoning)
{
    const di_json_t *type = di_json_get(v, "type");
    di_image_t       image;
    char             prefix[64];
    int              rc = check_place(rq, st, type, "assistant");

    if (rc != DI_OK)
        return rc;

    if (di_rq_is(type, "tool_use"))
        return read_use(rq, st, v, calls);

    if (di_rq_is(type, "thinking"))
        return di_content_add(rq, reasoning, di_rq_text(v, "thinking"));

    if (st->n_calls > 0) {
        (void) snprintf(prefix, sizeof(prefix), "messages.%zu.%zu: ", st->i,
                        st->j);
        return unanswered(rq, st, prefix);
    }

    if (is_server_block(type))
        return server_block(rq);

    if (!di_rq_is(type, "image") || !rq->sees)
        return add_block(rq, st, v, text);

    (void) snprintf(prefix, sizeof(prefix), "messages.%zu.content[%zu]", st->i,
                    st->j);
    rc = read_source(rq, di_rq_get(v, "source"), prefix, &image);
    return rc != DI_OK ? rc
           : di_rq_fail(rq, di_rq_path(rq, "messages[%zu].content[%zu]", st->i,
                                       st->j),
                        "Image in assistant message is unsupported");
}

static int
read_assistant(di_rq_t *rq, state_t *st, const di_json_t *v)
{
    di_content_t     text = { .separator = "\n\n" };
    di_content_t     reasoning = { .separator = "\n\n" };
    const di_json_t *b;
    di_call_t       *calls;
    di_msg_t        *m;
    int              rc;

    calls = di_arena_calloc(&rq->req->arena, v->v.list.n, sizeof(*calls));
    st->answered = di_arena_calloc(&rq->req->arena, v->v.list.n + 1,
                                   sizeof(bool));
    if (calls == NULL || st->answered == NULL)
        return di_rq_no_memory(rq);

    st->ids = (di_names_t) { 0 };
    st->calls = calls;
    st->n_calls = 0;
    st->open_i = st->i;

    for (b = v->v.list.first; b != NULL; b = b->next, st->j++) {
        rc = read_assistant_block(rq, st, b, calls, &text, &reasoning);
        if (rc != DI_OK)
            return rc;
    }

    m = di_rq_add_msg(rq, DI_ROLE_ASSISTANT);
    if (m == NULL)
        return DI_ENOMEM;

    di_content_give(&text, m);
    m->reasoning = reasoning.text;
    m->calls = calls;
    m->n_calls = st->n_calls;

    if (m->n_calls > 0 && !rq->official && !(rq->opt.caps & DI_CAN_TOOLS))
        return di_field_refuse(di_rq_path(rq, "messages[%zu].content", st->i),
                               "the model's dialect has no spelling for tool"
                               " calls", rq->e);

    return DI_OK;
}

/* ----------------------------------------------------------------- system */

static int
read_addition(di_rq_t *rq, const state_t *st, const di_json_t *v, size_t most,
              brought_t *b)
{
    di_str_t         name = di_rq_text(di_rq_get(v, "tool"), "name");
    const di_tool_t *t = find_tool(rq, name);

    if (t == NULL)
        return di_rq_fail(rq, di_rq_path(rq, "messages[%zu].content[%zu]",
                                         st->i, st->j),
                          "messages.%zu.content.%zu: `tool_addition`"
                          " references unknown tool '%.*s'", st->i, st->j,
                          (int) name.len, name.data);

    return bring(rq, b, most, t);
}

/* V4 has no system messages within a conversation: a user's reminder. */
static int
give_system(di_rq_t *rq, di_content_t *out, const brought_t *b)
{
    const di_str_t parts[] = {
        DI_STR("<system-reminder>\n"),
        out->text.data != NULL ? out->text : (di_str_t) DI_STR(""),
        DI_STR("\n</system-reminder>"), DI_STR_END,
    };
    di_msg_t *m;
    di_str_t  text;
    int       rc;

    m = di_rq_add_msg(rq, rq->v41 ? DI_ROLE_SYSTEM : DI_ROLE_USER);
    if (m == NULL)
        return DI_ENOMEM;

    if (rq->v41) {
        di_content_give(out, m);
        m->tools = b->list;
        m->n_tools = b->n;
        return DI_OK;
    }

    rc = di_rq_join(rq, &text, parts);
    m->content = text;
    return rc;
}

static int
read_system(di_rq_t *rq, state_t *st, const di_json_t *v)
{
    di_content_t     out = { .separator = "\n\n" };
    brought_t        b = { NULL, 0 };
    const di_json_t *p, *type;
    int              rc = DI_OK;

    if (v->type == DI_JSON_STRING)
        out.text = v->v.str;

    for (p = v->type == DI_JSON_STRING ? NULL : v->v.list.first;
         p != NULL && rc == DI_OK; p = p->next, st->j++)
    {
        type = di_json_get(p, "type");
        rc = check_place(rq, st, type, "system");
        if (rc != DI_OK)
            return rc;

        rc = is_server_block(type) ? server_block(rq)
             : di_rq_is(type, "tool_addition")
             ? read_addition(rq, st, p, v->v.list.n, &b)
             : add_block(rq, st, p, &out);
    }

    return rc == DI_OK ? give_system(rq, &out, &b) : rc;
}

/* -------------------------------------------------------------------- all */

static int
read_text(di_rq_t *rq, const di_json_t *r, di_str_t text)
{
    di_msg_t *m = di_rq_add_msg(rq, di_rq_is(r, "assistant")
                                ? DI_ROLE_ASSISTANT : DI_ROLE_USER);

    if (m == NULL)
        return DI_ENOMEM;

    m->content = text;
    return DI_OK;
}

static int
read_message(di_rq_t *rq, state_t *st, const di_json_t *v)
{
    const di_json_t *r = di_json_get(v, "role"), *c = di_json_get(v,
                                                                  "content");
    bool             user = di_rq_is(r, "user");
    char             prefix[48];
    int              rc;

    st->j = 0;
    if (c->type == DI_JSON_ARRAY && c->v.list.n == 0)
        return di_rq_fail(rq, di_rq_path(rq, "messages[%zu].content", st->i),
                          "messages.%zu: all messages must have non-empty"
                          " content", st->i);

    if (st->left > 0 && (!user || c->type == DI_JSON_STRING)) {
        (void) snprintf(prefix, sizeof(prefix), "messages.%zu: ", st->i);
        return unanswered(rq, st, prefix);
    }

    if (di_rq_is(r, "system"))
        rc = read_system(rq, st, c);
    else if (c->type == DI_JSON_STRING)
        rc = read_text(rq, r, c->v.str);
    else
        rc = user ? read_user(rq, st, c) : read_assistant(rq, st, c);

    if (rc != DI_OK)
        return rc;

    if (user && st->left > 0) {
        (void) snprintf(prefix, sizeof(prefix), "messages.%zu:", st->open_i);
        return unanswered(rq, st, prefix);
    }

    /* Results belong to the message right before them. */
    if (user || c->type == DI_JSON_STRING)
        st->ids = (di_names_t) { 0 };

    return DI_OK;
}

/* Strict: the answer goes on an assistant message at the end. */
static int
set_prefill(di_rq_t *rq)
{
    di_req_t *req = rq->req;
    di_msg_t *m = &req->msgs[req->conv.n_msgs - 1];

    if (m->role != DI_ROLE_ASSISTANT || m->n_calls > 0)
        return DI_OK;

    if (!(rq->opt.caps & DI_CAN_PREFIX))
        return di_field_refuse("messages", "the model's dialect can't go on"
                               " with the last message", rq->e);

    m->prefix = true;
    if (req->conv.thinking)
        req->parsing.stage = m->content.len > 0
            ? DI_STAGE_CONTENT_CONTINUATION
            : m->reasoning.len > 0 ? DI_STAGE_REASONING_CONTINUATION
            : DI_STAGE_REASONING_START;

    return DI_OK;
}

static int
read_messages(di_rq_t *rq, const di_json_t *v)
{
    const di_json_t *m;
    state_t          st = { .i = 0 };
    char             prefix[48];
    int              rc;

    if (v->v.list.n == 0)
        return di_rq_fail(rq, "messages", "messages: at least one message is"
                          " required");

    if (!rq->official) {
        rc = di_field_array(v, "messages", rq->opt.messages, rq->e);
        if (rc != DI_OK)
            return rc;
    }

    for (m = v->v.list.first; m != NULL; m = m->next, st.i++) {
        rc = read_message(rq, &st, m);
        if (rc != DI_OK)
            return rc;
    }

    if (st.left > 0) {
        (void) snprintf(prefix, sizeof(prefix), "messages.%zu:", st.open_i);
        return unanswered(rq, &st, prefix);
    }

    rc = di_rq_reasoning(rq, "content[].thinking");
    return rc != DI_OK || rq->official || rq->req->conv.n_msgs == 0 ? rc
           : set_prefill(rq);
}

static int
read_top_system(di_rq_t *rq, const di_json_t *v)
{
    di_content_t     out = { .separator = "\n\n" };
    const di_json_t *p;
    di_msg_t        *m;
    int              rc = DI_OK;

    if (v == NULL)
        return DI_OK;

    if (v->type == DI_JSON_STRING)
        out.text = v->v.str;

    for (p = v->type == DI_JSON_STRING ? NULL : v->v.list.first;
         p != NULL && rc == DI_OK; p = p->next)
        rc = di_content_add(rq, &out, di_rq_text(p, "text"));

    m = rc == DI_OK ? di_rq_add_msg(rq, DI_ROLE_SYSTEM) : NULL;
    if (m == NULL)
        return DI_ENOMEM;

    di_content_give(&out, m);
    return DI_OK;
}

static int
read_choice(di_rq_t *rq, const di_json_t *v)
{
    const di_json_t *type = di_rq_get(v, "type");
    int              rc = di_rq_check_tools(rq, di_rq_is(type, "none"));

    if (di_rq_is(type, "any") && !rq->official)
        rq->req->conv.choice = DI_CHOICE_REQUIRED;
    else if (rc == DI_OK && di_rq_is(type, "tool"))
        rc = di_rq_choose_tool(rq, di_rq_text(v, "name"));

    if (di_rq_true(v, "disable_parallel_tool_use"))
        rq->req->params.parallel_tool_calls = false;

    return rc == DI_OK ? di_rq_finish_choice(rq) : rc;
}

/* Both spellings of one field: the later one, and that of the beta. */
static int
read_format(di_rq_t *rq, const di_json_t *v, const char *path)
{
    if (v == NULL || rq->official)
        return DI_OK;

    if (!(rq->opt.caps & DI_CAN_CONSTRAIN))
        return di_field_refuse(path, "this server can't hold the model to a"
                               " format", rq->e);

    di_rq_path(rq, "%s.schema", path);
    return di_rq_set_schema(rq, di_json_get(v, "schema"), NULL);
}

static int
convert(di_rq_t *rq, const di_json_t *root)
{
    const di_json_t *t = di_rq_get(root, "thinking");
    int              rc;

    rq->req->params.hide_thinking = !rq->official
                                    && di_rq_is(di_rq_get(t, "display"),
                                                "omitted");
    rc = di_rq_set_thinking(rq, di_rq_get(t, "type"),
                            di_rq_get(di_rq_get(root, "output_config"),
                                      "effort"), "output_config.effort");
    if (rc == DI_OK)
        rc = read_tools(rq, di_rq_get(root, "tools"));
    if (rc == DI_OK)
        rc = read_top_system(rq, di_rq_get(root, "system"));
    if (rc == DI_OK)
        rc = read_messages(rq, di_rq_get(root, "messages"));
    if (rc == DI_OK)
        rc = read_choice(rq, di_rq_get(root, "tool_choice"));
    if (rc == DI_OK)
        rc = read_format(rq, di_rq_get(di_rq_get(root, "output_config"),
                                       "format"), "output_config.format");
    if (rc == DI_OK)
        rc = read_format(rq, di_rq_get(root, "output_format"),
                         "output_format");

    return rc == DI_OK ? di_rq_set_constraint(rq) : rc;
}

static int
official(di_rq_t *rq, const di_json_t *root)
{
    int rc;

    rq->req->params.stream = di_rq_true(root, "stream");

    rc = di_rq_official_stops(rq, "stop_sequences");
    if (rc == DI_OK)
        rc = di_rq_official_temperature(rq);
    if (rc == DI_OK)
        rc = di_rq_official_top_p(rq);

    return rc == DI_OK ? di_rq_official_max_tokens(rq, "max_tokens", true)
                       : rc;
}

const di_api_ops_t di_api_messages = {
    .shape = &di_shape_messages,
    .convert = convert,
    .official = official,
};
