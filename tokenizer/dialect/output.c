/*
 * output.c - the grammar of a whole output, as far as dialects agree.
 *
 *     root   ::= REASONING (answer | calls | text)
 *     answer ::= %json{...}
 *
 * Free text stands in the root itself and ends at a marker, which is a token
 * that no text can be: so one automaton follows it, and nothing behind it is
 * tried before the marker comes.
 *
 * What a request lets go where it can't be held (best effort) is marked part
 * by part: strict tools stand beside others.
 */

#include "output.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- writing */

void
di_ebnf_no_memory(di_ebnf_t *w)
{
    if (w->rc != DI_OK)
        return;

    w->rc = DI_ENOMEM;
    di_api_err_set(w->e, 500, "server_error", "internal_error", NULL,
                   "The server ran out of memory.");
}

void
di_ebnf_refuse(di_ebnf_t *w, const char *param, const char *fmt, ...)
{
    char    text[sizeof(w->e->message)];
    va_list ap;

    if (w->rc != DI_OK)
        return;

    va_start(ap, fmt);
    (void) vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);

    w->rc = DI_EUNSUPPORTED;
    di_api_err_set(w->e, 400, "invalid_request_error", "unsupported_value",
                   param, "%s", text);
}

static void
add(di_ebnf_t *w, const char *text, size_t len)
{
    if (w->rc == DI_OK)
        di_sbuf_add(&w->out->text, text, len);
}

void
di_ebnf_put(di_ebnf_t *w, const char *text)
{
    add(w, text, strlen(text));
}

void
di_ebnf_print(di_ebnf_t *w, const char *fmt, ...)
{
    char    text[128];
    va_list ap;

    va_start(ap, fmt);
    (void) vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    di_ebnf_put(w, text);
}

void
di_ebnf_text(di_ebnf_t *w, const char *text, size_t len)
{
    size_t i, run = 0;

    add(w, "\"", 1);
    for (i = 0; i < len; i++) {
        if ((unsigned char) text[i] >= 0x20 && text[i] != '"'
            && text[i] != '\\')
            continue;

        add(w, text + run, i - run);
        run = i + 1;
        if (text[i] == '\n')
            add(w, "\\n", 2);
        else if (text[i] == '"' || text[i] == '\\')
            di_ebnf_print(w, "\\%c", text[i]);
        else
            di_ebnf_print(w, "\\x%02x", (unsigned) text[i]);
    }

    add(w, text + run, len - run);
    add(w, "\"", 1);
}

void
di_ebnf_mark(di_ebnf_t *w, int32_t id, const char *spelling)
{
    if (id >= 0)
        di_ebnf_print(w, "<[%d]>", (int) id);
    else
        di_ebnf_text(w, spelling, strlen(spelling));
}

void
di_ebnf_free(di_ebnf_t *w, int32_t id, const char *spelling)
{
    if (id >= 0) {
        di_ebnf_put(w, "%free");
        return;
    }

    di_ebnf_put(w, "%until");
    if (w->rc == DI_OK)
        di_json_add_plain(&w->out->text, (di_str_t) { spelling,
                                                      strlen(spelling) });
}

/* ------------------------------------------------------------------ parts */

static di_output_part_t *
add_part(di_output_t *out)
{
    di_output_part_t *wider;
    size_t            cap;

    if (out->n == out->cap) {
        cap = out->cap == 0 ? 16 : out->cap * 2;
        wider = realloc(out->parts, cap * sizeof(*wider));
        if (wider == NULL)
            return NULL;
        out->parts = wider;
        out->cap = cap;
    }

    memset(&out->parts[out->n], 0, sizeof(out->parts[0]));
    return &out->parts[out->n++];
}

di_sbuf_t *
di_ebnf_begin(di_ebnf_t *w, const char *terminal, const di_ebnf_from_t *from)
{
    di_output_part_t *p;

    di_ebnf_put(w, terminal);
    if (from->best_effort)
        di_ebnf_put(w, "~");
    if (w->rc != DI_OK)
        return NULL;

    p = add_part(w->out);
    if (p == NULL) {
        di_ebnf_no_memory(w);
        return NULL;
    }

    p->param = from->param;
    p->path = strdup(from->path);
    p->root = from->root;
    if (p->path == NULL)
        di_ebnf_no_memory(w);

    return w->rc == DI_OK ? &w->out->text : NULL;
}

void
di_ebnf_schema(di_ebnf_t *w, const char *terminal, const di_json_t *v,
               const di_ebnf_from_t *from)
{
    di_sbuf_t *b = di_ebnf_begin(w, terminal, from);

    if (b != NULL)
        di_json_add_tree(b, v, DI_JSON_COMPACT);
}

/* ------------------------------------------------------------------ tools */

bool
di_ebnf_callable(const di_ebnf_t *w, size_t i)
{
    return w->constraint->allowed == NULL || w->constraint->allowed[i];
}

const di_json_t *
di_ebnf_held(const di_ebnf_t *w, const di_tool_t *t, di_ebnf_from_t *from)
{
    bool strict = t->strict == 1 || t->kind == DI_TOOL_CUSTOM;

    *from = (di_ebnf_from_t) {
        t->schema_at.data != NULL ? t->schema_at.data : "tools", "", "#",
        w->constraint->best_effort || !strict,
    };
    return strict || w->conv->choice == DI_CHOICE_REQUIRED ? t->schema : NULL;
}

static const di_json_t *
any_object(void)
{
    static di_json_t type = {
        .key = { "type", 4 }, .type = DI_JSON_STRING, .v.str = { "object", 6 },
    };
    static const di_json_t object = { .type = DI_JSON_OBJECT,
                                      .v.list = { &type, 1 } };

    return &object;
}

/* An empty schema of arguments, as a tool without parameters has, would let
 * them be any value. */
void
di_ebnf_json_call(di_ebnf_t *w, const di_tool_t *t, const char *member)
{
    di_ebnf_from_t   from;
    const di_json_t *held = di_ebnf_held(w, t, &from);
    di_sbuf_t        b = { 0 };

    di_sbuf_lit(&b, "{\"name\": ");
    di_json_add_plain(&b, t->name);
    di_sbuf_lit(&b, ", \"");
    di_sbuf_add(&b, member, strlen(member));
    di_sbuf_lit(&b, "\": ");
    if (b.failed)
        di_ebnf_no_memory(w);
    else
        di_ebnf_text(w, b.data, b.len);
    di_sbuf_free(&b);

    di_ebnf_schema(w, " %json", held == NULL || held->v.list.n == 0
                   ? any_object() : held, &from);
    di_ebnf_put(w, " \"}\"");
}

/* ------------------------------------------------------------------- root */

static void
put_answer(di_ebnf_t *w)
{
    static const char *const terminals[] = {
        [DI_CONSTRAINT_JSON] = "%json", [DI_CONSTRAINT_REGEX] = "%regex",
        [DI_CONSTRAINT_EBNF] = "%ebnf", [DI_CONSTRAINT_CHOICE] = "%choice",
    };
    const di_constraint_t *c = w->constraint;
    const di_ebnf_from_t   from = { c->param, "", "#", c->best_effort };
    di_sbuf_t             *b;

    if (c->kind == DI_CONSTRAINT_NONE)
        return;

    di_ebnf_put(w, "answer ::= ");

    if (c->kind == DI_CONSTRAINT_JSON && c->text.len == 0) {
        di_ebnf_schema(w, "%json", any_object(), &from);
        di_ebnf_put(w, "\n");
        return;
    }

    b = di_ebnf_begin(w, terminals[c->kind], &from);
    if (b != NULL && (c->kind == DI_CONSTRAINT_REGEX
                      || c->kind == DI_CONSTRAINT_EBNF))
        di_json_add_plain(b, c->text);
    else if (b != NULL)
        di_sbuf_add(b, c->text.data, c->text.len);
    di_ebnf_put(w, "\n");
}

static bool
has_strict(const di_conv_t *conv)
{
    size_t i;

    for (i = 0; i < conv->n_tools; i++) {
        if (conv->tools[i]->strict == 1)
            return true;
    }

    return false;
}

/* Something about calls is held. */
static bool
holds_calls(const di_ebnf_t *w)
{
    const di_constraint_t *c = w->constraint;

    return w->conv->choice == DI_CHOICE_REQUIRED || c->allowed != NULL
           || c->one_call || has_strict(w->conv);
}

static void
put_root(di_ebnf_t *w, bool tools)
{
    const di_dialect_ops_t *ops = w->dialect->ops;
    di_stage_t              stage = w->parsing->stage;
    bool                    answer = w->constraint->kind != DI_CONSTRAINT_NONE;

    di_ebnf_put(w, "root ::= ");

    if (ops->reasoning != NULL && (stage == DI_STAGE_REASONING_START
                                   || stage == DI_STAGE_REASONING_CONTINUATION))
        ops->reasoning(w);

    if (tools && w->conv->choice == DI_CHOICE_REQUIRED)
        di_ebnf_put(w, "calls\n");
    else if (tools && answer)
        di_ebnf_put(w, "(answer | calls)\n");
    else if (tools)
        di_ebnf_put(w, "text\n");
    else
        di_ebnf_put(w, "answer\n");

    if (tools)
        ops->calls(w);
    if (!tools || w->conv->choice != DI_CHOICE_REQUIRED)
        put_answer(w);
}

int
di_dialect_grammar(const di_dialect_t *dialect, const di_conv_t *conv,
                   const di_parsing_t *parsing,
                   const di_constraint_t *constraint, di_output_t *out,
                   di_api_err_t *e)
{
    di_ebnf_t w = { .dialect = dialect, .conv = conv, .parsing = parsing,
                    .constraint = constraint, .out = out, .e = e };
    bool      tools = conv->n_tools > 0 && conv->choice != DI_CHOICE_NONE
                      && dialect->ops->calls != NULL;

    if (constraint->kind == DI_CONSTRAINT_NONE && !(tools && holds_calls(&w)))
        return DI_OK;

    put_root(&w, tools);
    if (out->text.failed)
        di_ebnf_no_memory(&w);

    return w.rc;
}

void
di_output_free(di_output_t *out)
{
    size_t i;

    for (i = 0; i < out->n; i++)
        free(out->parts[i].path);

    free(out->parts);
    di_sbuf_free(&out->text);
    memset(out, 0, sizeof(*out));
}
