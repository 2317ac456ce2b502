/*
 * constrain.c - what the answer must be: formats, schemas, regular
 * expressions, grammars and choices, in the words of every API.
 *
 * OpenAI's and Anthropic's fields also tell the model of the schema, where
 * its dialect has a place for that.  Those that vLLM (guided_...,
 * structured_outputs) and SGLang (regex, ebnf, json_schema) added constrain
 * the answer and leave the prompt alone, as they do there; they are taken in
 * every API.  One constraint at a time: two of them are an error that names
 * both, since no order among them could be guessed.
 *
 * grammar_options is our own: what a request may ask of the grammar itself.
 */

#include "shape.h"

#include <string.h>

#define FORMAT_NAME_MAX  64      /* characters, as OpenAI has it            */

/* ------------------------------------------------------------ setting it */

static int
cannot_constrain(di_rq_t *rq, const char *path)
{
    return di_field_refuse(path, "this server can't hold the model to a"
                           " format", rq->e);
}

int
di_rq_constrain(di_rq_t *rq, di_constraint_kind_t kind, di_str_t text,
                const char *param)
{
    di_constraint_t *c = &rq->req->constraint;
    di_str_t         kept;

    if (c->kind != DI_CONSTRAINT_NONE)
        return di_field_invalid(rq->e, param, "invalid_value", "'%s' and '%s'"
                                " both constrain the answer; give one of"
                                " them.", c->param, param);

    c->kind = kind;
    c->text = text;
    if (di_rq_print(rq, &kept, "%s", param) != DI_OK)
        return DI_ENOMEM;

    c->param = kept.data;
    return DI_OK;
}

static int
constrain_schema(di_rq_t *rq, const di_json_t *schema, const char *param)
{
    di_sbuf_t b = { 0 };
    di_str_t  text;
    int       rc;

    di_json_add_tree(&b, schema, DI_JSON_COMPACT);
    rc = di_rq_keep(rq, &b, &text);
    return rc == DI_OK ? di_rq_constrain(rq, DI_CONSTRAINT_JSON, text, param)
                       : rc;
}

static int
check_schema(di_rq_t *rq, const di_json_t *schema)
{
    di_str_t why;
    int      rc = di_schema_check(rq, schema, &why);

    return rc != DI_EINVAL ? rc
           : di_rq_fail(rq, rq->path, "Invalid json schema: %.*s",
                        (int) why.len, why.data);
}

/* A strict schema is one of OpenAI's subset to the official codec, and is
 * written anew by its rules; here it is held as it stands, like any other. */
int
di_rq_set_schema(di_rq_t *rq, const di_json_t *schema, const di_json_t *strict)
{
    di_req_t  *req = rq->req;
    di_json_t *written;
    int        rc;

    req->conv.format = DI_FORMAT_SCHEMA;
    req->conv.schema = schema;

    if (!rq->official || strict == NULL || strict->type != DI_JSON_TRUE) {
        rc = check_schema(rq, schema);
        return rc == DI_OK ? constrain_schema(rq, schema, rq->path) : rc;
    }

    rc = di_schema_strict(rq, schema, true, &written, NULL);
    return rc == DI_OK ? constrain_schema(rq, written, rq->path) : rc;
}

int
di_rq_check_format_name(di_rq_t *rq, const di_json_t *format, const char *path)
{
    di_str_t name = di_rq_text(format, "name");
    size_t   i = 0;

    if (rq->official)
        return DI_OK;

    while (i < name.len && name.len <= FORMAT_NAME_MAX
           && di_rq_is_name_char(name.data[i]))
        i++;

    if (name.len > 0 && i == name.len)
        return DI_OK;

    di_rq_path(rq, "%s.name", path);
    return di_field_invalid(rq->e, rq->path, "invalid_value", "Invalid '%s':"
                            " expected a string that matches the pattern"
                            " '^[a-zA-Z0-9_-]{1,%d}$'.", rq->path,
                            FORMAT_NAME_MAX);
}

/* -------------------------------------------------------- response_format */

int
di_rq_response_format(di_rq_t *rq, const di_json_t *v)
{
    const di_json_t *type = di_rq_get(v, "type");
    di_conv_t       *conv = &rq->req->conv;

    if (type == NULL || di_rq_is(type, "text"))
        return DI_OK;

    if (!rq->official && !(rq->opt.caps & DI_CAN_CONSTRAIN))
        return di_rq_unsupported_value(rq, "response_format.type",
                                       &type->v.str, "'text', as this server"
                                       " can't hold the model to a format");

    if (di_rq_is(type, "regex")) {
        conv->format = DI_FORMAT_REGEX;
        conv->regex = di_rq_text(v, "regex");
        return di_rq_constrain(rq, DI_CONSTRAINT_REGEX, conv->regex,
                               "response_format.regex");
    }

    if (!di_rq_is(type, "json_object"))
        return DI_OK;

    conv->format = DI_FORMAT_JSON;
    if (rq->req->api == DI_API_CHAT && !di_rq_has_word_json(rq))
        return di_rq_fail(rq, "messages", "Prompt must contain the word 'json'"
                          " in some form to use 'response_format' of type"
                          " 'json_object'.");

    return di_rq_constrain(rq, DI_CONSTRAINT_JSON, (di_str_t) { "", 0 },
                           "response_format");
}

int
di_rq_response_schema(di_rq_t *rq, const di_json_t *v)
{
    const di_json_t *s = di_rq_get(v, "json_schema");
    int              rc;

    if (!di_rq_is(di_rq_get(v, "type"), "json_schema"))
        return DI_OK;

    rc = di_rq_check_format_name(rq, s, "response_format.json_schema");
    di_rq_path(rq, "response_format.json_schema.schema");
    return rc == DI_OK ? di_rq_set_schema(rq, di_json_get(s, "schema"),
                                          di_rq_get(s, "strict")) : rc;
}

/* ------------------------------------------- of vLLM, of SGLang, our own -- */

typedef int (*field_pt)(di_rq_t *rq, const di_json_t *v);

/* A schema as a value, or as a text that holds an object. */
static int
schema(di_rq_t *rq, const di_json_t *v)
{
    di_json_t *root;
    di_err_t   err = { 0 };
    int        rc;

    if (v->type == DI_JSON_STRING) {
        rc = di_json_read(&rq->req->arena, v->v.str.data, v->v.str.len,
                          rq->opt.depth, &root, &err);
        if (rc == DI_ENOMEM)
            return di_rq_no_memory(rq);
        if (rc != DI_OK)
            return di_field_invalid(rq->e, rq->path, "invalid_value", "Invalid"
                                    " '%s': not a JSON Schema: %s.", rq->path,
                                    err.text);
        v = root;
    }

    if (v->type != DI_JSON_OBJECT && v->type != DI_JSON_TRUE
        && v->type != DI_JSON_FALSE)
        return di_field_type(v, rq->path, "a JSON Schema, or one as a string",
                             rq->e);

    rc = check_schema(rq, v);
    return rc == DI_OK ? constrain_schema(rq, v, rq->path) : rc;
}

static int
pattern_text(di_rq_t *rq, const di_json_t *v, di_constraint_kind_t kind)
{
    di_str_t s;
    int      rc = di_field_str(v, rq->path, &s, rq->e);

    if (rc == DI_OK && s.len == 0)
        return di_field_invalid(rq->e, rq->path, "empty_string", "Invalid"
                                " '%s': empty string. Expected a string with"
                                " minimum length 1.", rq->path);

    return rc == DI_OK ? di_rq_constrain(rq, kind, s, rq->path) : rc;
}

static int
regex(di_rq_t *rq, const di_json_t *v)
{
    return pattern_text(rq, v, DI_CONSTRAINT_REGEX);
}

static int
grammar(di_rq_t *rq, const di_json_t *v)
{
    return pattern_text(rq, v, DI_CONSTRAINT_EBNF);
}

static int
choice(di_rq_t *rq, const di_json_t *v)
{
    const di_json_t *m;
    di_sbuf_t        b = { 0 };
    di_str_t         s;
    size_t           n = strlen(rq->path), i = 0;
    int              rc;

    rc = di_field_array(v, rq->path, DI_JSON_NODES_MAX, rq->e);
    if (rc != DI_OK)
        return rc;

    if (v->v.list.n == 0)
        return di_field_invalid(rq->e, rq->path, "empty_array", "Invalid"
                                " '%s': empty array. Expected an array with"
                                " minimum length 1.", rq->path);

    for (m = v->v.list.first; m != NULL; m = m->next, i++) {
        (void) snprintf(rq->path + n, sizeof(rq->path) - n, "[%zu]", i);
        rc = di_field_str(m, rq->path, &s, rq->e);
        if (rc != DI_OK)
            return rc;
    }

    rq->path[n] = '\0';
    di_json_add_tree(&b, v, DI_JSON_COMPACT);
    rc = di_rq_keep(rq, &b, &s);
    return rc == DI_OK ? di_rq_constrain(rq, DI_CONSTRAINT_CHOICE, s, rq->path)
                       : rc;
}

static int
json_object(di_rq_t *rq, const di_json_t *v)
{
    bool on;
    int  rc = di_field_bool(v, rq->path, &on, rq->e);

    return rc == DI_OK && on
           ? di_rq_constrain(rq, DI_CONSTRAINT_JSON, (di_str_t) { "", 0 },
                             rq->path) : rc;
}

static int
whitespace_pattern(di_rq_t *rq, const di_json_t *v)
{
    (void) v;
    return di_field_refuse(rq->path, "white space is bounded here;"
                           " grammar_options.whitespace chooses it", rq->e);
}

static int
structural_tag(di_rq_t *rq, const di_json_t *v)
{
    (void) v;
    return di_field_refuse(rq->path, "tools with 'strict' hold calls to their"
                           " schemas", rq->e);
}

/* There is one backend; what may follow its name changes the answer. */
static int
backend(di_rq_t *rq, const di_json_t *v)
{
    di_str_t s;
    int      rc = di_field_str(v, rq->path, &s, rq->e);

    if (rc == DI_OK && memchr(s.data, ':', s.len) != NULL)
        return di_rq_unsupported_value(rq, rq->path, &s, "names without"
                                       " options");
    return rc;
}

/* Nothing is ever left to chance here. */
static int
no_fallback(di_rq_t *rq, const di_json_t *v)
{
    bool ignored;

    return di_field_bool(v, rq->path, &ignored, rq->e);
}

static int
no_whitespace(di_rq_t *rq, const di_json_t *v)
{
    bool on;
    int  rc = di_field_bool(v, rq->path, &on, rq->e);

    if (rc == DI_OK && on)
        rq->req->constraint.spaces = DI_SPACES_COMPACT;
    return rc;
}

static int
no_additional(di_rq_t *rq, const di_json_t *v)
{
    bool on;
    int  rc = di_field_bool(v, rq->path, &on, rq->e);

    if (rc == DI_OK && on)
        return di_field_refuse(rq->path, "a schema is held as it stands; it"
                               " says so itself by additionalProperties",
                               rq->e);
    return rc;
}

static int
best_effort(di_rq_t *rq, const di_json_t *v)
{
    return di_field_bool(v, rq->path, &rq->req->constraint.best_effort, rq->e);
}

static int
any_order(di_rq_t *rq, const di_json_t *v)
{
    return di_field_bool(v, rq->path, &rq->req->constraint.any_order, rq->e);
}

static int
whitespace(di_rq_t *rq, const di_json_t *v)
{
    di_str_t s;
    int      rc = di_field_str(v, rq->path, &s, rq->e);

    if (rc != DI_OK)
        return rc;

    if (di_json_is(&s, "compact"))
        rq->req->constraint.spaces = DI_SPACES_COMPACT;
    else if (di_json_is(&s, "flexible"))
        rq->req->constraint.spaces = DI_SPACES_FLEXIBLE;
    else
        return di_rq_unsupported_value(rq, rq->path, &s, "'compact' and"
                                       " 'flexible'");
    return DI_OK;
}

typedef struct {
    const char *name;            /* NULL ends a list                        */
    field_pt    read;
} field_t;

static int
read_members(di_rq_t *rq, const di_json_t *v, const field_t *fields)
{
    const di_json_t *m;
    const field_t   *f;
    size_t           n = strlen(rq->path);
    char             prefix[sizeof(rq->path) + 1];
    int              rc = di_field_object(v, rq->path, rq->e);

    (void) snprintf(prefix, sizeof(prefix), "%s.", rq->path);

    for (m = v->v.list.first; rc == DI_OK && m != NULL; m = m->next) {
        for (f = fields; f->name != NULL && !di_json_is(&m->key, f->name);
             f++)
        {
            /* void */
        }

        if (f->name == NULL) {
            di_rq_note_ignored(rq, prefix, m);
        } else if (m->type != DI_JSON_NULL) {
            (void) snprintf(rq->path + n, sizeof(rq->path) - n, ".%s",
                            f->name);
            rc = f->read(rq, m);
        }
        rq->path[n] = '\0';
    }

    return rc;
}

static int
structured_outputs(di_rq_t *rq, const di_json_t *v)
{
    static const field_t fields[] = {
        { "json", schema }, { "regex", regex }, { "choice", choice },
        { "grammar", grammar }, { "json_object", json_object },
        { "structural_tag", structural_tag },
        { "whitespace_pattern", whitespace_pattern },
        { "disable_fallback", no_fallback },
        { "disable_any_whitespace", no_whitespace },
        { "disable_additional_properties", no_additional },
        { NULL, NULL },
    };

    return read_members(rq, v, fields);
}

static int
grammar_options(di_rq_t *rq, const di_json_t *v)
{
    static const field_t fields[] = {
        { "best_effort", best_effort }, { "any_order", any_order },
        { "whitespace", whitespace }, { NULL, NULL },
    };

    return read_members(rq, v, fields);
}

int
di_rq_constraint_field(di_rq_t *rq, const di_json_t *v, bool *known)
{
    static const field_t fields[] = {
        { "guided_json", schema },
        { "guided_regex", regex },
        { "guided_grammar", grammar },
        { "guided_choice", choice },
        { "guided_whitespace_pattern", whitespace_pattern },
        { "guided_decoding_backend", backend },
        { "structured_outputs", structured_outputs },
        { "structural_tag", structural_tag },
        { "regex", regex },
        { "ebnf", grammar },
        { "json_schema", schema },
        { "grammar_options", grammar_options },
        { NULL, NULL },
    };
    const field_t *f;

    for (f = fields; f->name != NULL && !di_json_is(&v->key, f->name); f++) {
        /* void */
    }

    *known = f->name != NULL;
    if (!*known)
        return DI_OK;

    di_rq_path(rq, "%s", f->name);
    if (!(rq->opt.caps & DI_CAN_CONSTRAIN))
        return cannot_constrain(rq, rq->path);

    return f->read(rq, v);
}

/* ----------------------------------------------------------- custom tools */

/* {"type":"object","properties":{"input":{"type":"string","pattern":P}},
 * "required":["input"],"additionalProperties":false} */
static int
input_schema(di_rq_t *rq, di_str_t pattern, const di_json_t **out)
{
    di_sbuf_t  b = { 0 };
    di_str_t   text;
    di_json_t *root;
    int        rc;

    di_sbuf_lit(&b, "{\"type\":\"object\",\"properties\":{\"input\":{\"type\":"
                "\"string\",\"pattern\":");
    di_json_add_plain(&b, pattern);
    di_sbuf_lit(&b, "}},\"required\":[\"input\"],\"additionalProperties\":"
                "false}");
    rc = di_rq_keep(rq, &b, &text);
    if (rc == DI_OK && di_json_read(&rq->req->arena, text.data, text.len,
                                    DI_JSON_DEPTH_MAX, &root, NULL) != DI_OK)
        rc = di_rq_no_memory(rq);

    *out = rc == DI_OK ? root : NULL;
    return rc;
}

int
di_rq_custom_grammar(di_rq_t *rq, const di_json_t *g, di_tool_t *tool)
{
    di_str_t syntax = di_rq_text(g, "syntax");
    di_str_t definition = di_rq_text(g, "definition"), pattern;
    size_t   n = strlen(rq->path);
    int      rc;

    if (!(rq->opt.caps & DI_CAN_CONSTRAIN))
        return cannot_constrain(rq, rq->path);

    (void) snprintf(rq->path + n, sizeof(rq->path) - n, ".syntax");
    if (syntax.data == NULL)
        return di_field_missing(rq->path, rq->e);

    if (!di_json_is(&syntax, "regex"))
        return di_rq_unsupported_value(rq, rq->path, &syntax, "'regex'");

    (void) snprintf(rq->path + n, sizeof(rq->path) - n, ".definition");
    if (definition.len == 0)
        return di_field_missing(rq->path, rq->e);

    rc = di_rq_join(rq, &pattern, (di_str_t[]) { DI_STR("^(?:"), definition,
                                                 DI_STR(")$"), DI_STR_END });
    if (rc == DI_OK)
        rc = input_schema(rq, pattern, &tool->schema);

    tool->strict = 1;
    return rc == DI_OK ? di_rq_print(rq, &tool->schema_at, "%s", rq->path)
                       : rc;
}

/* -------------------------------------------------------------------- all */

/* The answer goes on a text that the client wrote: nothing can say how much
 * of a format that text has already. */
static int
check_prefix(di_rq_t *rq)
{
    const di_conv_t *conv = &rq->req->conv;
    const di_msg_t  *last = conv->n_msgs == 0 ? NULL
                            : &conv->msgs[conv->n_msgs - 1];
    const char      *what = conv->choice == DI_CHOICE_REQUIRED ? "tool_choice"
                            : rq->req->constraint.param;

    if (rq->official || last == NULL || !last->prefix || what == NULL
        || (last->content.len == 0 && conv->choice != DI_CHOICE_REQUIRED))
        return DI_OK;

    return di_field_invalid(rq->e, what, "invalid_value", "'%s' can't be held"
                            " where 'messages' ends with the beginning of the"
                            " answer.", what);
}

int
di_rq_set_constraint(di_rq_t *rq)
{
    di_req_t *req = rq->req;

    req->parsing.tools = req->conv.n_tools > 0;
    req->parsing.forced = req->conv.choice == DI_CHOICE_REQUIRED
                          && !req->conv.thinking;
    req->parsing.json = req->conv.format == DI_FORMAT_JSON;
    req->parsing.exact = !rq->official
                         && req->conv.choice != DI_CHOICE_REQUIRED
                         && (req->constraint.kind == DI_CONSTRAINT_REGEX
                             || req->constraint.kind == DI_CONSTRAINT_EBNF
                             || req->constraint.kind == DI_CONSTRAINT_CHOICE);
    req->constraint.one_call = !rq->official
                               && !req->params.parallel_tool_calls;
    return check_prefix(rq);
}
