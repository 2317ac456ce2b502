/*
 * tools.c - declared tools, the choice among them, and what follows of both
 * for the prompt, the parser of the output and the engine.
 */

#include "req.h"

#include <string.h>

#define NAME_MAX_LEN  128

/* ------------------------------------------------------------ definitions */

static bool
is_name(di_str_t s)
{
    size_t i;
    char   c;

    for (i = 0; i < s.len; i++) {
        c = s.data[i];
        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')
              || (c >= '0' && c <= '9') || c == '_' || c == '-'))
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

static int
set_parameters(di_rq_t *rq, di_tool_t *t, const char *path,
               const di_json_t *parameters)
{
    static const di_json_t empty = { .type = DI_JSON_OBJECT };
    di_json_t             *written;
    int                    rc;

    if (t->strict == 1) {
        rc = di_schema_strict(rq, parameters, false, &written);
        t->parameters = written;
        return rc;
    }

    t->parameters = parameters != NULL ? parameters : &empty;
    return parameters == NULL ? DI_OK
           : check_parameters(rq, t->name, path, parameters);
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

/* Strict tools are so together or not at all. */
static int
check_strict(di_rq_t *rq)
{
    const di_conv_t *conv = &rq->req->conv;
    size_t           i, strict = 0;

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

    if (conv->thinking)
        return di_rq_fail(rq, "tool_choice", "Thinking mode does not support"
                          " this tool_choice");

    return check_strict(rq);
}

/* ------------------------------------------------------------- constraint */

static void
add_tool_json(di_sbuf_t *b, const di_tool_t *t)
{
    di_sbuf_lit(b, "{\"type\":\"function\",\"function\":{\"name\":");
    di_json_add_plain(b, t->name);

    di_sbuf_lit(b, ",\"description\":");
    if (t->description.data == NULL)
        di_sbuf_lit(b, "null");
    else
        di_json_add_plain(b, t->description);

    di_sbuf_lit(b, ",\"parameters\":");
    di_json_add_tree(b, t->parameters, DI_JSON_COMPACT);
    di_sbuf_lit(b, ",\"strict\":");
    if (t->strict < 0)
        di_sbuf_lit(b, "null");
    else if (t->strict)
        di_sbuf_lit(b, "true");
    else
        di_sbuf_lit(b, "false");

    di_sbuf_lit(b, "}");

    if (t->deferred)
        di_sbuf_lit(b, ",\"defer_loading\":true");
    di_sbuf_lit(b, "}");
}

static int
constrain_tools(di_rq_t *rq)
{
    const di_conv_t *conv = &rq->req->conv;
    di_constraint_t *c = &rq->req->constraint;
    di_sbuf_t        b = { 0 };
    size_t           i;

    c->kind = conv->choice == DI_CHOICE_REQUIRED
              ? DI_CONSTRAINT_TOOL_CALL_REQUIRED : DI_CONSTRAINT_TOOL_CALL;

    di_sbuf_lit(&b, "[");
    for (i = 0; i < conv->n_tools; i++) {
        if (i > 0)
            di_sbuf_lit(&b, ",");
        add_tool_json(&b, conv->tools[i]);
    }
    di_sbuf_lit(&b, "]");

    return di_rq_keep(rq, &b, &c->text);
}

/* The schema's constraint was set with it; here it may be overruled. */
int
di_rq_set_constraint(di_rq_t *rq)
{
    di_req_t *req = rq->req;

    req->parsing.tools = req->conv.n_tools > 0;
    req->parsing.forced = req->conv.choice == DI_CHOICE_REQUIRED;
    req->parsing.json = req->conv.format == DI_FORMAT_JSON;

    if (req->conv.n_tools > 0)
        return constrain_tools(rq);

    if (req->conv.format == DI_FORMAT_JSON) {
        req->constraint.kind = DI_CONSTRAINT_JSON;
        req->constraint.text = (di_str_t) { "", 0 };

    } else if (req->conv.format == DI_FORMAT_REGEX) {
        req->constraint.kind = DI_CONSTRAINT_REGEX;
        req->constraint.text = req->conv.regex;
    }

    return DI_OK;
}

int
di_rq_set_schema(di_rq_t *rq, const di_json_t *schema, const di_json_t *strict)
{
    di_req_t        *req = rq->req;
    const di_json_t *held = schema;
    di_json_t       *written;
    di_sbuf_t        b = { 0 };
    di_str_t         why;
    int              rc;

    if (strict != NULL && strict->type == DI_JSON_TRUE) {
        rc = di_schema_strict(rq, schema, true, &written);
        held = written;

    } else {
        rc = di_schema_check(rq, schema, &why);
        if (rc == DI_EINVAL)
            rc = di_rq_fail(rq, rq->path, "Invalid json schema: %.*s",
                            (int) why.len, why.data);
    }

    if (rc != DI_OK)
        return rc;

    req->conv.format = DI_FORMAT_SCHEMA;
    req->conv.schema = schema;
    req->constraint.kind = DI_CONSTRAINT_JSON;
    di_json_add_tree(&b, held, DI_JSON_COMPACT);
    return di_rq_keep(rq, &b, &req->constraint.text);
}
