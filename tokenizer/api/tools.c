/*
 * tools.c - declared tools, the choice among them, and what follows of both
 * for the prompt, the parser of the output and the engine.
 */

#include "req.h"

#include <string.h>

#define NAME_MAX_LEN  128

/* ------------------------------------------------------------ definitions */

bool
di_rq_is_name_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')
           || (c >= '0' && c <= '9') || c == '_' || c == '-';
}

static bool
is_name(di_str_t s)
{
    size_t i;

    for (i = 0; i < s.len; i++) {
        if (!di_rq_is_name_char(s.data[i]))
            return false;
    }

    return true;
}

/* Characters, as the official codec counts a length. */
static size_t
count_chars(di_str_t s)
{
    size_t i, n = 0;

    for (i = 0; i < s.len; i++)
        n += ((unsigned char) s.data[i] & 0xc0) != 0x80;

    return n;
}

int
di_rq_check_tool_name(di_rq_t *rq, di_str_t name, const char *path)
{
    size_t len = count_chars(name);

    if (len == 0)
        return di_rq_fail(rq, path, "Invalid '%s': empty string. Expected a"
                          " string with minimum length 1, but got an empty"
                          " string instead.", path);

    if (len > NAME_MAX_LEN)
        return di_rq_fail(rq, path, "Invalid '%s': string too long. Expected"
                          " a string with maximum length %d, but got a string"
                          " with length %zu instead.", path, NAME_MAX_LEN,
                          len);

    if (!is_name(name))
        return di_rq_fail(rq, path, "Invalid '%s': string does not match"
                          " pattern. Expected a string that matches the"
                          " pattern '^[a-zA-Z0-9_-]+$'.", path);

    return DI_OK;
}

/* A schema of parameters that was given: a JSON Schema, and of an object. */
static int
check_parameters(di_rq_t *rq, di_str_t name, const char *path,
                 const di_json_t *schema)
{
    const di_json_t *type;
    di_sbuf_t        b = { 0 };
    di_str_t         why;
    int              rc;

    rc = di_schema_check(rq, schema, &why);
    if (rc == DI_EINVAL)
        return di_rq_fail(rq, path, "Invalid schema for function '%.*s': %.*s",
                          (int) name.len, name.data, (int) why.len, why.data);
    if (rc != DI_OK)
        return rc;

    type = schema->type == DI_JSON_OBJECT ? di_json_get(schema, "type") : NULL;
    if (di_rq_is(type, "object"))
        return DI_OK;

    if (type == NULL)
        di_sbuf_lit(&b, "null");
    else
        di_json_add_tree(&b, type, DI_JSON_COMPACT);

    rc = b.failed ? di_rq_no_memory(rq)
         : di_rq_fail(rq, path, "Invalid schema for function '%.*s': schema"
                      " must be a JSON Schema of 'type: \"object\"', got"
                      " 'type: %.*s'.", (int) name.len, name.data,
                      (int) b.len, b.data);
    di_sbuf_free(&b);
    return rc;
}

/* Strict: a tool is held to its schema as it stands.  What the model reads of
 * a strict one is what the official codec would show it, unless that leaves
 * out what the model must know. */
static int
set_shown(di_rq_t *rq, di_tool_t *t, const di_json_t *parameters)
{
    di_json_t   *written;
    di_api_err_t e = *rq->e;
    bool         lossy;
    int          rc = di_schema_strict(rq, parameters, false, &written, &lossy);

    if (rc == DI_EINVAL)
        *rq->e = e;
    if (rc == DI_OK && !lossy)
        t->parameters = written;

    return rc == DI_EINVAL ? DI_OK : rc;
}

static int
set_parameters(di_rq_t *rq, di_tool_t *t, const char *path,
               const di_json_t *parameters)
{
    static const di_json_t empty = { .type = DI_JSON_OBJECT };
    di_json_t             *written;
    int                    rc;

    if (t->strict == 1 && rq->official) {
        rc = di_schema_strict(rq, parameters, false, &written, NULL);
        t->parameters = t->schema = written;
        return rc;
    }

    t->parameters = parameters != NULL ? parameters : &empty;
    t->schema = t->strict == 1 && parameters == NULL ? &di_rq_no_parameters
                : t->parameters;
    rc = parameters == NULL ? DI_OK
         : check_parameters(rq, t->name, path, parameters);

    return rc == DI_OK && t->strict == 1 ? set_shown(rq, t, parameters) : rc;
}

/* A tool and what it is checked with later. */
typedef struct {
    di_tool_t        tool;
    const di_json_t *given;      /* parameters, NULL: none                  */
    di_str_t         path;
} declared_t;

static declared_t *
new_tool(di_rq_t *rq, const di_tool_t *from)
{
    di_req_t   *req = rq->req;
    di_tool_t **wider;
    declared_t *d;
    size_t      cap;

    if (req->n_tools == req->tools_cap) {
        cap = req->tools_cap == 0 ? 16 : req->tools_cap * 2;
        wider = di_arena_calloc(&req->arena, cap, sizeof(*wider));
        if (wider == NULL)
            return NULL;
        if (req->n_tools != 0)
            memcpy(wider, req->tools, req->n_tools * sizeof(*wider));
        req->tools = wider;
        req->tools_cap = cap;
    }

    d = di_arena_calloc(&req->arena, 1, sizeof(*d));
    if (d != NULL) {
        d->tool = *from;
        req->tools[req->n_tools++] = &d->tool;
    }

    return d;
}

int
di_rq_add_tool(di_rq_t *rq, const di_tool_t *from, const char *path,
               const di_json_t *parameters)
{
    declared_t *d;
    size_t      index;
    bool        known;
    int         rc;

    rc = di_names_put(rq, &rq->tool_names, from->name, rq->req->n_tools,
                      &index, &known);
    if (rc != DI_OK)
        return rc;

    if (from->strict == 1 && !rq->official
        && !(rq->opt.caps & DI_CAN_CONSTRAIN))
        return di_field_refuse(path, "this server can't hold the model to a"
                               " strict schema", rq->e);

    d = new_tool(rq, from);
    if (d == NULL)
        return di_rq_no_memory(rq);

    d->given = parameters;
    return di_rq_print(rq, &d->path, "%s", path);
}

/* Names in the order of the tools, and each one's schema. */
static int
check_each(di_rq_t *rq)
{
    di_req_t   *req = rq->req;
    di_names_t  names = { 0 };
    declared_t *d;
    size_t      i, index;
    bool        known;
    int         rc = DI_OK;

    for (i = 0; i < req->n_tools && rc == DI_OK; i++) {
        d = (declared_t *) req->tools[i];
        rc = di_names_put(rq, &names, d->tool.name, i, &index, &known);
        if (rc != DI_OK)
            return rc;

        di_rq_path(rq, "%s", d->path.data);
        if (known)
            return di_rq_fail(rq, rq->path, "Tool names must be unique.");

        if (d->tool.schema_at.data != NULL)
            di_rq_path(rq, "%s", d->tool.schema_at.data);

        if (d->tool.kind != DI_TOOL_CUSTOM)
            rc = set_parameters(rq, &d->tool, rq->path, d->given);
    }

    return rc;
}

int
di_rq_check_tools(di_rq_t *rq, bool none)
{
    di_req_t *req = rq->req;
    int       rc;

    if (!rq->official && req->n_tools > 0 && !(rq->opt.caps & DI_CAN_TOOLS))
        return di_field_refuse("tools", "the model's dialect has no spelling"
                               " for tools", rq->e);

    /* The official codec forgets what isn't offered, unseen. */
    if (none)
        req->conv.choice = DI_CHOICE_NONE;
    if (none && rq->official)
        return DI_OK;

    rc = check_each(rq);
    req->conv.tools = (const di_tool_t *const *) req->tools;
    req->conv.n_tools = req->n_tools;
    return rc;
}

/* Official: strict tools are so together or not at all. */
static int
check_strict(di_rq_t *rq)
{
    const di_conv_t *conv = &rq->req->conv;
    size_t           i, strict = 0;

    if (!rq->official)
        return DI_OK;

    for (i = 0; i < conv->n_tools; i++)
        strict += conv->tools[i]->strict == 1;

    if (strict == 0 || strict == conv->n_tools)
        return DI_OK;

    return di_rq_fail(rq, "tools", "Cannot use strict tool with non-strict"
                      " tool in the same request");
}

int
di_rq_input_arguments(di_rq_t *rq, di_str_t input, di_str_t *arguments)
{
    di_sbuf_t b = { 0 };

    di_sbuf_lit(&b, "{\"input\":");
    di_json_add_plain(&b, input);
    di_sbuf_lit(&b, "}");
    return di_rq_keep(rq, &b, arguments);
}

/* ----------------------------------------------------------------- choice */

int
di_rq_choose_tool(di_rq_t *rq, di_str_t name)
{
    di_conv_t *conv = &rq->req->conv;
    size_t     index;

    conv->choice = DI_CHOICE_REQUIRED;
    if (conv->n_tools == 0)
        return DI_OK;

    if (!di_names_get(&rq->tool_names, name, &index))
        return di_rq_fail(rq, "tool_choice", "Invalid value for 'tool_call':"
                          " no function named '%.*s' was specified in the"
                          " 'tools' parameter.", (int) name.len, name.data);

    conv->tools += index;
    conv->n_tools = 1;
    return DI_OK;
}

/* Each of the list's objects names one, itself or in a member `function` or
 * `custom`. */
int
di_rq_allow_tools(di_rq_t *rq, const di_json_t *list, const char *path)
{
    di_conv_t       *conv = &rq->req->conv;
    const di_json_t *m, *inner;
    di_str_t         name;
    bool            *allowed;
    size_t           i = 0, index;

    if (!(rq->opt.caps & DI_CAN_CONSTRAIN))
        return di_field_refuse(path, "this server can't hold the model to some"
                               " of its tools", rq->e);

    if (list->v.list.n == 0)
        return di_field_invalid(rq->e, path, "empty_array", "Invalid '%s':"
                                " empty array. Expected an array with minimum"
                                " length 1.", path);

    allowed = di_arena_calloc(&rq->req->arena, conv->n_tools + 1,
                              sizeof(*allowed));
    if (allowed == NULL)
        return di_rq_no_memory(rq);

    for (m = list->v.list.first; m != NULL; m = m->next, i++) {
        inner = di_rq_get(m, "function");
        if (inner == NULL)
            inner = di_rq_get(m, "custom");
        name = di_rq_text(inner != NULL ? inner : m, "name");

        if (name.data == NULL || !di_names_get(&rq->tool_names, name, &index)
            || index >= conv->n_tools)
            return di_field_invalid(rq->e, di_rq_path(rq, "%s[%zu]", path, i),
                                    "invalid_value", "Invalid '%s': it names"
                                    " none of the tools.", rq->path);
        allowed[index] = true;
    }

    rq->req->constraint.allowed = allowed;
    return DI_OK;
}

int
di_rq_finish_choice(di_rq_t *rq)
{
    di_conv_t *conv = &rq->req->conv;

    if (conv->choice == DI_CHOICE_NONE)
        conv->n_tools = 0;

    if (conv->n_tools == 0 && conv->choice == DI_CHOICE_REQUIRED) {
        if (!rq->official)
            return di_rq_fail(rq, "tool_choice", "'tool_choice' asks for a"
                              " call, but there are no tools.");
        conv->choice = DI_CHOICE_AUTO;
    }

    if (conv->choice != DI_CHOICE_REQUIRED)
        return check_strict(rq);

    if (!rq->official && !(rq->opt.caps & DI_CAN_CONSTRAIN))
        return di_field_refuse("tool_choice", "this server can't force a"
                               " call; 'auto' and 'none' are supported",
                               rq->e);

    if (conv->thinking && rq->official)
        return di_rq_fail(rq, "tool_choice", "Thinking mode does not support"
                          " this tool_choice");

    return check_strict(rq);
}
