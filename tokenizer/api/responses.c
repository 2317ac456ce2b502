/*
 * responses.c - Responses: a body as a conversation.
 *
 * Input is a list of items.  Reasoning, messages of the assistant and calls
 * that follow each other are one message of the conversation; after calls
 * come their outputs, in any order, and are put in the order of the calls.
 *
 * Strict: what was said before (previous_response_id) comes as items too, so
 * an output may answer a call that was made there.
 */

#include "shape.h"

#include <string.h>

/* ------------------------------------------------------------------ tools */

/* Where tools stand, and what they get from it. */
typedef struct {
    char        path[64];        /* of the list                             */
    bool        deferred;        /* they were found by a search             */
    di_str_t    space;           /* data NULL: none                         */
    di_str_t    space_text;      /* its description                         */
    di_names_t  locals;          /* names within the namespace              */
} place_t;

static int read_tools(di_rq_t *rq, const di_json_t *v, place_t *at);

/* The name in a namespace, as the model sees it. */
static int
spaced_name(di_rq_t *rq, di_str_t space, di_str_t name, di_str_t *out)
{
    const di_str_t between[] = { DI_STR("__"), DI_STR("::") };

    return di_rq_join(rq, out, (di_str_t[]) { space, between[rq->v41], name,
                                              DI_STR_END });
}

/* NS::NAME, or NS__NAME on V4, with _1, _2 ... where that is taken. */
static int
space_name(di_rq_t *rq, place_t *at, di_tool_t *t)
{
    di_str_t base;
    size_t   index, n;
    bool     known;
    int      rc;

    rc = di_names_put(rq, &at->locals, t->local, 0, &index, &known);
    if (rc != DI_OK)
        return rc;
    if (known)
        return di_rq_fail(rq, at->path, "Tool names within a namespace must be"
                          " unique.");

    rc = spaced_name(rq, at->space, t->local, &base);
    t->name = base;

    for (n = 1; rc == DI_OK && di_names_get(&rq->tool_names, t->name, &index);
         n++)
        rc = di_rq_print(rq, &t->name, "%.*s_%zu", (int) base.len, base.data,
                         n);

    return rc;
}

static int
space_description(di_rq_t *rq, const place_t *at, di_tool_t *t)
{
    if (at->space_text.len == 0 || !rq->v41)
        return DI_OK;

    if (t->description.data == NULL)
        t->description = (di_str_t) DI_STR("");

    return di_rq_join(rq, &t->description, (di_str_t[]) {
                          at->space_text, DI_STR("\n"), t->description,
                          DI_STR_END });
}

static int
read_function(di_rq_t *rq, const di_json_t *v, size_t i, place_t *at)
{
    const di_json_t *strict = di_rq_get(v, "strict");
    di_tool_t        t = {
        .name = di_rq_text(v, "name"),
        .local = di_rq_text(v, "name"),
        .description = di_rq_text(v, "description"),
        .space = at->space,
        .strict = strict == NULL ? -1 : strict->type == DI_JSON_TRUE,
        .deferred = at->deferred,
    };
    int rc;

    di_rq_path(rq, "%s[%zu].name", at->path, i);
    rc = di_rq_check_tool_name(rq, t.name, rq->path);
    if (rc == DI_OK && at->space.data != NULL)
        rc = space_name(rq, at, &t);
    if (rc == DI_OK && at->space.data != NULL)
        rc = space_description(rq, at, &t);

    if (rc == DI_OK)
        rc = di_rq_print(rq, &t.schema_at, "%s[%zu].parameters", at->path, i);

    di_rq_path(rq, "%s[%zu]", at->path, i);
    return rc == DI_OK
           ? di_rq_add_tool(rq, &t, rq->path, di_rq_get(v, "parameters")) : rc;
}

/* A custom tool takes text: a function with one parameter, `input`. */
static int
read_custom(di_rq_t *rq, const di_json_t *v, size_t i, place_t *at)
{
    const di_json_t *grammar = di_rq_get(v, "format");
    di_tool_t        t = {
        .name = di_rq_text(v, "name"), .local = di_rq_text(v, "name"),
        .kind = DI_TOOL_CUSTOM, .strict = -1, .deferred = at->deferred,
    };
    di_str_t         text = di_rq_text(v, "description");
    bool             known = di_json_is(&t.name, "apply_patch");
    int              rc = DI_OK;

    di_rq_path(rq, "%s[%zu]", at->path, i);
    if (at->space.data != NULL)
        return di_rq_fail(rq, rq->path, "Currently custom tools are not"
                          " allowed inside a namespace. Found custom tool"
                          " '%.*s' in %s[%zu].", (int) t.name.len, t.name.data,
                          at->path, i);

    if (rq->official && !known)
        return di_rq_fail(rq, rq->path, "Unsupported custom tool: '%.*s'. Only"
                          " 'apply_patch' is supported.", (int) t.name.len,
                          t.name.data);

    t.description = text;
    t.parameters = &di_rq_text_parameters;
    t.schema = &di_rq_text_schema;
    if (known && di_rq_apply_patch(rq, &t) != DI_OK)
        return DI_ENOMEM;

    di_rq_path(rq, "%s[%zu].format", at->path, i);
    if (!known && di_rq_is(di_rq_get(grammar, "type"), "grammar"))
        rc = di_rq_custom_grammar(rq, grammar, &t);

    di_rq_path(rq, "%s[%zu]", at->path, i);
    return rc == DI_OK ? di_rq_add_tool(rq, &t, rq->path, NULL) : rc;
}

static int
read_space(di_rq_t *rq, const di_json_t *v, size_t i, const place_t *at)
{
    place_t in = { .deferred = at->deferred };

    in.space = di_rq_text(v, "name");
    in.space_text = di_rq_text(v, "description");
    (void) snprintf(in.path, sizeof(in.path), "%.40s[%zu].tools", at->path, i);
    return read_tools(rq, di_rq_get(v, "tools"), &in);
}

static int
read_search(di_rq_t *rq, const di_json_t *v, size_t i, const place_t *at)
{
    di_tool_t t = {
        .name = { "tool_search", 11 }, .local = { "tool_search", 11 },
        .description = di_rq_text(v, "description"),
        .kind = DI_TOOL_SEARCH, .strict = -1,
    };

    di_rq_path(rq, "%s[%zu]", at->path, i);
    if (rq->v41 && di_rq_is(di_rq_get(v, "execution"), "client"))
        return di_rq_add_tool(rq, &t, rq->path, di_rq_get(v, "parameters"));

    return rq->official ? DI_OK
           : di_field_refuse(rq->path, rq->v41
                             ? "this server has no tools to search; set"
                               " execution to 'client'"
                             : "the model can't search for tools", rq->e);
}

static int
read_tool(di_rq_t *rq, const di_json_t *v, size_t i, place_t *at)
{
    const di_json_t *type = di_rq_get(v, "type");

    if (di_rq_is(type, "function"))
        return read_function(rq, v, i, at);

    if (di_rq_is(type, "custom"))
        return read_custom(rq, v, i, at);

    if (di_rq_is(type, "namespace") && at->space.data == NULL)
        return read_space(rq, v, i, at);

    if (di_rq_is(type, "tool_search"))
        return read_search(rq, v, i, at);

    return di_shape_is_web_search(type) && rq->opt.reject_web_search
           ? di_rq_fail(rq, "tools", "Server tools are not supported") : DI_OK;
}

static int
read_tools(di_rq_t *rq, const di_json_t *v, place_t *at)
{
    const di_json_t *m;
    size_t           i = 0;
    int              rc = DI_OK;

    for (m = v == NULL ? NULL : v->v.list.first; m != NULL && rc == DI_OK;
         m = m->next)
        rc = read_tool(rq, m, i++, at);

    return rc;
}

/* ---------------------------------------------------------------- content */

static int
add_image(di_rq_t *rq, const di_json_t *v, size_t i, size_t j,
          di_content_t *out)
{
    bool        has_url = di_rq_get(v, "image_url") != NULL;
    bool        has_id = di_rq_get(v, "file_id") != NULL;
    const char *why = NULL;
    di_image_t  image;
    char        at[32], long_at[64], entry[64];
    int         rc;

    (void) snprintf(at, sizeof(at), "input[%zu]", i);
    (void) snprintf(entry, sizeof(entry), "%s.content[%zu]", at, j);
    (void) snprintf(long_at, sizeof(long_at), "input[%zu].content[%zu]:"
                    " image_url", i, j);

    if (!has_url && !has_id)
        why = "input_image must have image_url or file_id";
    else if (has_url && has_id)
        why = "input_image cannot have both image_url and file_id";
    else if (has_id)
        why = "file_id is not supported. Pass the image as a base64 data url"
              " instead.";

    if (why != NULL && rq->sees)
        return di_rq_fail(rq, entry, "%s: %s", entry, why);

    rc = di_rq_image_url(rq, rq->official ? at : entry, long_at,
                         di_rq_text(v, "image_url"), di_rq_get(v, "detail"),
                         &image);
    if (rc == DI_OK)
        rc = di_rq_print(rq, &image.path, "%s", at);

    return rc == DI_OK ? di_content_image(rq, out, &image) : rc;
}

/* A content or output: a text, or a list of parts. */
static int
add_content(di_rq_t *rq, const di_json_t *v, size_t i, di_content_t *out)
{
    static const di_str_t document = { "[Unsupported Document]", 22 };
    const di_json_t      *p, *type;
    size_t                j = 0;
    int                   rc = DI_OK;

    if (v->type == DI_JSON_STRING)
        return di_content_add(rq, out, v->v.str);

    for (p = v->v.list.first; p != NULL && rc == DI_OK; p = p->next, j++) {
        type = di_json_get(p, "type");

        if (di_rq_is(type, "input_image"))
            rc = add_image(rq, p, i, j, out);
        else if (di_rq_is(type, "input_file"))
            rc = di_content_add(rq, out, document);
        else
            rc = di_content_add(rq, out, di_rq_text(p, di_rq_is(type,
                                "refusal") ? "refusal" : "text"));
    }

    return rc;
}

/* ------------------------------------------------------------------ items */

/* What answers a call. */
typedef struct {
    di_content_t      content;
    const di_tool_t **tools;     /* found by a search                       */
    size_t            n_tools;
    bool              given;
} answer_t;

/* The assistant's turn that is being put together, and its calls. */
typedef struct {
    bool          open;
    di_content_t  text;
    di_content_t  reasoning;
    di_call_t    *calls;         /* [cap]                                   */
    answer_t     *answers;       /* [cap], one for each                     */
    size_t        n_calls;
    size_t        cap;
    di_names_t    ids;           /* of the whole input; value: the call's
                                  * number in it                            */
    size_t        n_before;      /* calls of turns that are done            */
} turn_t;

static bool
grow_calls(di_rq_t *rq, turn_t *t)
{
    size_t     cap = t->cap == 0 ? 4 : t->cap * 2;
    di_call_t *calls = di_arena_calloc(&rq->req->arena, cap, sizeof(*calls));
    answer_t  *answers = di_arena_calloc(&rq->req->arena, cap,
                                         sizeof(*answers));

    if (calls == NULL || answers == NULL)
        return false;

    if (t->n_calls != 0) {
        memcpy(calls, t->calls, t->n_calls * sizeof(*calls));
        memcpy(answers, t->answers, t->n_calls * sizeof(*answers));
    }

    t->calls = calls;
    t->answers = answers;
    t->cap = cap;
    return true;
}

static int
give_answers(di_rq_t *rq, turn_t *t)
{
    di_msg_t *m;
    size_t    k;

    for (k = 0; k < t->n_calls; k++) {
        m = di_rq_add_msg(rq, DI_ROLE_TOOL);
        if (m == NULL)
            return DI_ENOMEM;
        m->call_id = t->calls[k].id;
        di_content_give(&t->answers[k].content, m);

        if (t->answers[k].n_tools == 0)
            continue;

        m = di_rq_add_msg(rq, DI_ROLE_SYSTEM);
        if (m == NULL)
            return DI_ENOMEM;
        m->tools = t->answers[k].tools;
        m->n_tools = t->answers[k].n_tools;
    }

    return DI_OK;
}

/* The turn is over: the assistant's message and what answered its calls. */
static int
end_turn(di_rq_t *rq, turn_t *t)
{
    di_msg_t *m;
    size_t    k;
    int       rc;

    if (!t->open)
        return DI_OK;

    for (k = 0; k < t->n_calls; k++) {
        if (!t->answers[k].given)
            return di_rq_fail(rq, "input", "No tool output found for tool call"
                              " %.*s.", (int) t->calls[k].id.len,
                              t->calls[k].id.data);
    }

    m = di_rq_add_msg(rq, DI_ROLE_ASSISTANT);
    if (m == NULL)
        return DI_ENOMEM;

    di_content_give(&t->text, m);
    m->reasoning = t->reasoning.text;
    m->calls = t->calls;
    m->n_calls = t->n_calls;

    rc = give_answers(rq, t);

    *t = (turn_t) { .ids = t->ids, .n_before = t->n_before + t->n_calls };
    return rc;
}

/* Something of the assistant's: go on with its turn, or begin one. */
static int
begin_turn(di_rq_t *rq, turn_t *t, bool is_call)
{
    size_t k, given = 0;
    int    rc;

    for (k = 0; k < t->n_calls; k++)
        given += t->answers[k].given;

    if (t->open && t->n_calls > 0 && (!is_call || given > 0)) {
        rc = end_turn(rq, t);
        if (rc != DI_OK)
            return rc;
    }

    if (!t->open) {
        t->open = true;
        t->text.separator = "\n\n";
        t->reasoning.separator = "\n";
    }

    return DI_OK;
}

static int
empty_call_id(di_rq_t *rq, size_t i)
{
    di_rq_path(rq, "input[%zu].call_id", i);
    return di_rq_fail(rq, rq->path, "Invalid '%s': empty string. Expected a"
                      " string with minimum length 1, but got an empty string"
                      " instead.", rq->path);
}

/* A new call with its id; the rest is the caller's. */
static int
add_call(di_rq_t *rq, const di_json_t *v, size_t i, turn_t *t, di_call_t **out)
{
    di_str_t id = di_rq_text(v, "call_id");
    size_t   found;
    bool     known;
    int      rc;

    if (id.len == 0)
        return empty_call_id(rq, i);

    rc = begin_turn(rq, t, true);
    if (rc != DI_OK)
        return rc;

    rc = di_names_put(rq, &t->ids, id, t->n_before + t->n_calls, &found,
                      &known);
    if (rc != DI_OK)
        return rc;
    if (known)
        return di_rq_fail(rq, di_rq_path(rq, "input[%zu].call_id", i),
                          "Duplicate 'call_id': %.*s.", (int) id.len, id.data);

    if (t->n_calls == t->cap && !grow_calls(rq, t))
        return di_rq_no_memory(rq);

    *out = &t->calls[t->n_calls++];
    (*out)->id = id;
    return DI_OK;
}

static int
add_function_call(di_rq_t *rq, const di_json_t *v, size_t i, turn_t *t)
{
    di_str_t   space = di_rq_text(v, "namespace"), name;
    di_call_t *c;
    int        rc = add_call(rq, v, i, t, &c);

    if (rc != DI_OK)
        return rc;

    name = di_rq_text(v, "name");
    c->arguments = di_rq_text(v, "arguments");
    c->name = name;

    return space.data == NULL ? DI_OK
           : spaced_name(rq, space, name, &c->name);
}

static int
add_custom_call(di_rq_t *rq, const di_json_t *v, size_t i, turn_t *t)
{
    di_call_t *c;
    int        rc = add_call(rq, v, i, t, &c);

    if (rc != DI_OK)
        return rc;

    c->name = di_rq_text(v, "name");
    return di_rq_input_arguments(rq, di_rq_text(v, "input"), &c->arguments);
}

static int
add_search_call(di_rq_t *rq, const di_json_t *v, size_t i, turn_t *t)
{
    di_sbuf_t  b = { 0 };
    di_call_t *c;
    int        rc = add_call(rq, v, i, t, &c);

    if (rc != DI_OK)
        return rc;

    c->name = (di_str_t) { "tool_search", 11 };
    di_json_add_tree(&b, di_rq_get(v, "arguments"), DI_JSON_COMPACT);
    return di_rq_keep(rq, &b, &c->arguments);
}

/* The answer that an output fills. */
static int
find_answer(di_rq_t *rq, const di_json_t *v, size_t i, turn_t *t,
            answer_t **out)
{
    di_str_t id = di_rq_text(v, "call_id");
    size_t   n;

    if (id.len == 0)
        return empty_call_id(rq, i);

    di_rq_path(rq, "input[%zu].call_id", i);
    if (!di_names_get(&t->ids, id, &n))
        return di_rq_fail(rq, rq->path, "No tool call found for tool output"
                          " with call_id %.*s.", (int) id.len, id.data);

    if (n < t->n_before || t->answers[n - t->n_before].given)
        return di_rq_fail(rq, rq->path, "Duplicate tool output for call_id:"
                          " %.*s.", (int) id.len, id.data);

    *out = &t->answers[n - t->n_before];
    (*out)->given = true;
    (*out)->content.separator = "\n\n";
    return DI_OK;
}

/* Official: an output that answers no call is a message of its own. */
static int
add_loose_output(di_rq_t *rq, const di_json_t *output, size_t i, turn_t *t)
{
    di_content_t out = { .separator = "\n\n" };
    di_msg_t    *m;
    int          rc = end_turn(rq, t);

    if (rc == DI_OK)
        rc = add_content(rq, output, i, &out);
    if (rc != DI_OK)
        return rc;

    m = di_rq_add_msg(rq, DI_ROLE_TOOL);
    if (m == NULL)
        return DI_ENOMEM;

    di_content_give(&out, m);
    return DI_OK;
}

static int
add_output(di_rq_t *rq, const di_json_t *v, size_t i, turn_t *t)
{
    const di_json_t *c = di_rq_get(v, "output");
    answer_t        *a;
    int              rc;

    if (rq->official && di_rq_is(di_rq_get(v, "type"), "function_call_output")
        && di_rq_get(v, "call_id") == NULL)
        return add_loose_output(rq, c, i, t);

    rc = find_answer(rq, v, i, t, &a);
    return rc == DI_OK && c != NULL ? add_content(rq, c, i, &a->content) : rc;
}

/* ,"NAME":VALUE, null if there is none. */
static void
write_member(di_sbuf_t *b, const di_json_t *object, const char *name)
{
    const di_json_t *v = di_rq_get(object, name);

    di_sbuf_lit(b, ",\"");
    di_sbuf_add(b, name, strlen(name));
    di_sbuf_lit(b, "\":");
    if (v == NULL)
        di_sbuf_lit(b, "null");
    else
        di_json_add_tree(b, v, DI_JSON_COMPACT);
}

/* A found tool, but for its end. */
static void
write_tool(di_sbuf_t *b, const di_json_t *tool)
{
    static const char *const function[] = { "name", "description",
                                            "parameters", "strict", NULL };
    static const char *const search[] = { "search_context_size",
                                          "user_location", NULL };
    static const char *const custom[] = { "name", NULL };
    const di_json_t         *type = di_rq_get(tool, "type");
    const char *const       *name = custom;

    if (di_rq_is(type, "function"))
        name = function;
    else if (di_shape_is_web_search(type))
        name = search;

    di_sbuf_lit(b, "{\"type\":");
    di_json_add_plain(b, type->v.str);
    for (; *name != NULL; name++)
        write_member(b, tool, *name);
}

/* The tools that were found, as the model reads them in the result: flat,
 * with local names. */
static void
write_found(di_sbuf_t *b, const di_json_t *tools, const di_json_t *space)
{
    const di_json_t *m;

    for (m = tools->v.list.first; m != NULL; m = m->next) {
        if (di_rq_is(di_rq_get(m, "type"), "namespace") && space == NULL) {
            write_found(b, di_rq_get(m, "tools"), m);
            continue;
        }

        if (b->len > 1)
            di_sbuf_lit(b, ",");
        write_tool(b, m);

        if (space != NULL) {
            di_sbuf_lit(b, ",\"namespace\":{\"name\":");
            di_json_add_plain(b, di_rq_text(space, "name"));
            di_sbuf_lit(b, ",\"description\":");
            di_json_add_plain(b, di_rq_text(space, "description"));
            di_sbuf_lit(b, "}");
        }
        di_sbuf_lit(b, "}");
    }
}

static bool
all_known(const di_json_t *tools)
{
    const di_json_t *m;

    for (m = tools->v.list.first; m != NULL; m = m->next) {
        if (!di_shape_is_tool(di_rq_get(m, "type"))
            && !di_shape_is_web_search(di_rq_get(m, "type")))
            return false;
    }

    return true;
}

static int
add_found(di_rq_t *rq, const di_json_t *v, size_t i, turn_t *t)
{
    const di_json_t *tools = di_rq_get(v, "tools");
    place_t          at = { .deferred = true };
    di_sbuf_t        b = { 0 };
    di_str_t         text;
    answer_t        *a;
    size_t           from = rq->req->n_tools;
    int              rc = find_answer(rq, v, i, t, &a);

    if (rc != DI_OK)
        return rc;

    (void) snprintf(at.path, sizeof(at.path), "input[%zu].tools", i);
    if (rq->official && !all_known(tools))
        return di_rq_fail(rq, NULL, "input[%zu]: the enum variant"
                          " ResponsesTool::Unsupported cannot be serialized",
                          i);

    rc = read_tools(rq, tools, &at);
    if (rc != DI_OK)
        return rc;

    a->n_tools = rq->req->n_tools - from;
    a->tools = di_arena_calloc(&rq->req->arena, a->n_tools + 1,
                               sizeof(*a->tools));
    if (a->tools == NULL)
        return di_rq_no_memory(rq);
    if (a->n_tools != 0)
        memcpy(a->tools, rq->req->tools + from,
               a->n_tools * sizeof(*a->tools));

    di_sbuf_lit(&b, "[");
    write_found(&b, tools, NULL);
    di_sbuf_lit(&b, "]");
    rc = di_rq_keep(rq, &b, &text);
    return rc == DI_OK ? di_content_add(rq, &a->content, text) : rc;
}

static int
add_reasoning(di_rq_t *rq, const di_json_t *v, turn_t *t)
{
    const di_json_t *c = di_rq_get(v, "content"), *p;
    int              rc = DI_OK;

    /* One that says nothing is no turn; official: it ends one, though. */
    if (rq->official && t->n_calls > 0)
        rc = end_turn(rq, t);

    for (p = c == NULL ? NULL : c->v.list.first; p != NULL && rc == DI_OK;
         p = p->next)
    {
        if (di_rq_text(p, "text").len == 0)
            continue;
        rc = begin_turn(rq, t, false);
        if (rc == DI_OK)
            rc = di_content_add(rq, &t->reasoning, di_rq_text(p, "text"));
    }

    return rc;
}

static int
add_message(di_rq_t *rq, const di_json_t *v, size_t i, turn_t *t)
{
    const di_json_t *r = di_json_get(v, "role");
    const di_json_t *c = di_json_get(v, "content");
    di_content_t     out = { .separator = "\n\n" };
    di_role_t        to;
    di_msg_t        *m;
    int              rc;

    if (di_rq_is(r, "assistant")) {
        rc = begin_turn(rq, t, false);
        if (rc == DI_OK)
            rc = add_content(rq, c, i, &t->text);
        if (rc == DI_OK && t->text.n_images > 0)
            rc = di_rq_fail(rq, di_rq_path(rq, "input[%zu]", i), "input[%zu]:"
                            " Image in assistant message is unsupported", i);
        return rc;
    }

    rc = end_turn(rq, t);
    if (rc == DI_OK)
        rc = add_content(rq, c, i, &out);
    if (rc != DI_OK)
        return rc;

    to = di_rq_is(r, "system") || (di_rq_is(r, "developer") && rq->v41)
         ? DI_ROLE_SYSTEM : DI_ROLE_USER;
    m = di_rq_add_msg(rq, to);
    if (m == NULL)
        return DI_ENOMEM;

    di_content_give(&out, m);
    return DI_OK;
}

static int
add_item(di_rq_t *rq, const di_json_t *v, size_t i, turn_t *t)
{
    const di_json_t *type = di_rq_get(v, "type");

    if (type == NULL || di_rq_is(type, "message"))
        return add_message(rq, v, i, t);

    if (di_rq_is(type, "reasoning"))
        return add_reasoning(rq, v, t);

    if (!rq->official && !(rq->opt.caps & DI_CAN_TOOLS))
        return di_field_refuse(di_rq_path(rq, "input[%zu]", i), "the model's"
                               " dialect has no spelling for tool calls",
                               rq->e);

    if (di_rq_is(type, "function_call"))
        return add_function_call(rq, v, i, t);

    if (di_rq_is(type, "custom_tool_call"))
        return add_custom_call(rq, v, i, t);

    if (di_rq_is(type, "function_call_output")
        || di_rq_is(type, "custom_tool_call_output"))
        return add_output(rq, v, i, t);

    if (di_rq_is(type, "tool_search_call"))
        return rq->v41 ? add_search_call(rq, v, i, t) : DI_OK;

    if (di_rq_is(type, "tool_search_output"))
        return rq->v41 ? add_found(rq, v, i, t) : DI_OK;

    return DI_OK;
}

static int
add_items(di_rq_t *rq, const di_json_t *v, turn_t *t)
{
    const di_json_t *m;
    size_t           i = 0;
    int              rc = DI_OK;

    for (m = v->v.list.first; m != NULL && rc == DI_OK; m = m->next)
        rc = add_item(rq, m, i++, t);

    return rc;
}

/* Items that were taken once, kept by the caller. */
static int
read_history(di_rq_t *rq, turn_t *t)
{
    di_json_t *v;
    int        rc;

    if (rq->opt.history.data == NULL)
        return DI_OK;

    rc = di_json_read_lax(&rq->req->arena, rq->opt.history.data,
                          rq->opt.history.len, DI_JSON_DEPTH_MAX, &v, NULL);
    if (rc == DI_ENOMEM)
        return di_rq_no_memory(rq);

    di_rq_path(rq, "previous_response_id");
    if (rc != DI_OK || v->type != DI_JSON_ARRAY)
        return di_rq_fail(rq, rq->path, "The previous response can't be read"
                          " any more.");

    rq->req->history = v;
    rc = di_shape_check(rq, &di_shape_items, v);
    return rc == DI_OK ? add_items(rq, v, t) : rc;
}

static int
read_input(di_rq_t *rq, const di_json_t *root)
{
    const di_json_t *input = di_rq_get(root, "input");
    di_str_t         instructions = di_rq_text(root, "instructions");
    turn_t           t = { .open = false };
    di_msg_t        *m;
    int              rc;

    if (input == NULL && (instructions.data == NULL
                          || (rq->official && instructions.len == 0))
        && rq->opt.history.data == NULL)
        return di_rq_fail(rq, "input", "Either input or instructions must be"
                          " provided");

    if (input != NULL && input->type == DI_JSON_ARRAY && input->v.list.n == 0)
        return di_rq_fail(rq, "input", "Input items array must not be empty");

    if (instructions.len > 0) {
        m = di_rq_add_msg(rq, DI_ROLE_SYSTEM);
        if (m == NULL)
            return DI_ENOMEM;
        m->content = instructions;
    }

    rc = read_history(rq, &t);

    if (rc == DI_OK && input != NULL && input->type == DI_JSON_ARRAY) {
        rc = !rq->official ? di_field_array(input, "input", rq->opt.messages,
                                            rq->e) : DI_OK;
        if (rc == DI_OK)
            rc = add_items(rq, input, &t);
    }

    if (rc == DI_OK)
        rc = end_turn(rq, &t);

    if (rc == DI_OK && input != NULL && input->type == DI_JSON_STRING) {
        m = di_rq_add_msg(rq, DI_ROLE_USER);
        if (m == NULL)
            return DI_ENOMEM;
        m->content = input->v.str;
    }

    return rc == DI_OK ? di_rq_reasoning(rq, "reasoning_text") : rc;
}

/* ------------------------------------------------------- choice and format */

static int
read_allowed(di_rq_t *rq, const di_json_t *v)
{
    if (di_rq_is(di_rq_get(v, "mode"), "required"))
        rq->req->conv.choice = DI_CHOICE_REQUIRED;

    return di_rq_allow_tools(rq, di_rq_get(v, "tools"), "tool_choice.tools");
}

static int
read_choice(di_rq_t *rq, const di_json_t *v)
{
    const di_json_t *type = di_rq_get(v, "type");
    int              rc = di_rq_check_tools(rq, di_rq_is(v, "none"));

    if (rc != DI_OK)
        return rc;

    if (di_rq_is(v, "required"))
        rq->req->conv.choice = DI_CHOICE_REQUIRED;
    else if (di_shape_is_web_search(type) && rq->opt.reject_web_search)
        rc = di_rq_fail(rq, "tool_choice", "Server tools are not supported");
    else if (di_rq_is(type, "allowed_tools") && !rq->official)
        rc = read_allowed(rq, v);
    else if (type != NULL && !di_shape_is_web_search(type))
        rc = di_rq_choose_tool(rq, di_rq_text(v, "name"));

    return rc == DI_OK ? di_rq_finish_choice(rq) : rc;
}

static int
read_format(di_rq_t *rq, const di_json_t *root)
{
    const di_json_t *text = di_rq_get(root, "text");
    const di_json_t *f = di_rq_get(text, "format");
    const di_json_t *type = di_rq_get(f, "type");
    const di_json_t *v = di_rq_get(text, "verbosity");
    int              rc;

    if (v != NULL && !rq->official && !di_rq_is(v, "medium"))
        return di_field_refuse("text.verbosity", "the model has no such mode;"
                               " 'medium' is supported", rq->e);

    if (type == NULL || di_rq_is(type, "text"))
        return DI_OK;

    if (!rq->official && !(rq->opt.caps & DI_CAN_CONSTRAIN))
        return di_rq_unsupported_value(rq, "text.format.type", &type->v.str,
                                       "'text', as this server can't hold the"
                                       " model to a format");

    if (di_rq_is(type, "json_object")) {
        rq->req->conv.format = DI_FORMAT_JSON;
        return di_rq_has_word_json(rq)
               ? di_rq_constrain(rq, DI_CONSTRAINT_JSON, (di_str_t) { "", 0 },
                                 "text.format")
               : di_rq_fail(rq, "input", "Response input messages must contain"
                            " the word 'json' in some form to use"
                            " 'text.format' of type 'json_object'.");
    }

    rc = di_rq_check_format_name(rq, f, "text.format");
    di_rq_path(rq, "text.format.schema");
    return rc == DI_OK ? di_rq_set_schema(rq, di_json_get(f, "schema"),
                                          di_rq_get(f, "strict")) : rc;
}

static int
convert(di_rq_t *rq, const di_json_t *root)
{
    place_t at = { .path = "tools" };
    int     rc;

    rc = di_rq_set_thinking(rq, NULL, di_rq_get(di_rq_get(root, "reasoning"),
                                                "effort"), "reasoning.effort");
    if (rc == DI_OK)
        rc = read_tools(rq, di_rq_get(root, "tools"), &at);
    if (rc == DI_OK)
        rc = read_input(rq, root);
    if (rc == DI_OK)
        rc = read_choice(rq, di_rq_get(root, "tool_choice"));
    if (rc == DI_OK)
        rc = read_format(rq, root);

    return rc == DI_OK ? di_rq_set_constraint(rq) : rc;
}

static int
official(di_rq_t *rq, const di_json_t *root)
{
    int rc;

    rq->req->params.stream = di_rq_true(root, "stream");

    rc = di_rq_official_temperature(rq);
    if (rc == DI_OK)
        rc = di_rq_official_top_p(rq);
    if (rc == DI_OK)
        rc = di_rq_official_top_logprobs(rq);
    if (rc == DI_OK)
        rc = di_rq_official_max_tokens(rq, "max_output_tokens", false);

    rq->req->params.logprobs = rq->req->params.has_top_logprobs;
    return rc;
}

const di_api_ops_t di_api_responses = {
    .shape = &di_shape_responses,
    .convert = convert,
    .official = official,
};

/* --------------------------------------------------------------- storage */

static void
write_list(di_sbuf_t *b, const di_json_t *v, bool *any_yet)
{
    const di_json_t *m;

    for (m = v->v.list.first; m != NULL; m = m->next) {
        if (*any_yet)
            di_sbuf_lit(b, ",");
        di_json_add_tree(b, m, DI_JSON_COMPACT);
        *any_yet = true;
    }
}

void
di_req_write_items(const di_req_t *req, di_sbuf_t *b)
{
    const di_json_t *input = di_rq_get(req->root, "input");
    bool             any_yet = false;

    if (req->history != NULL)
        write_list(b, req->history, &any_yet);

    if (input != NULL && input->type == DI_JSON_ARRAY) {
        write_list(b, input, &any_yet);

    } else if (input != NULL) {
        if (any_yet)
            di_sbuf_lit(b, ",");
        di_sbuf_lit(b, "{\"type\":\"message\",\"role\":\"user\",\"content\":");
        di_json_add_plain(b, input->v.str);
        di_sbuf_lit(b, "}");
    }
}
