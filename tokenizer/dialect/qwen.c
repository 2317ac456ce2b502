/*
 * qwen.c - the dialect of Qwen 2.5, QwQ and Qwen 3: ChatML with tools.
 *
 *     <|im_start|>system\nCONTENT\n\n# Tools ... <|im_end|>\n
 *     <|im_start|>assistant\nTEXT\n<tool_call>\n{"name": "F", "arguments": {}}
 *     \n</tool_call><|im_end|>\n
 *     <|im_start|>user\n<tool_response>\nRESULT\n</tool_response><|im_end|>\n
 *
 * Definitions and calls are JSON as Python writes it.  Marks such as
 * <tool_call> are tokens where the vocabulary has them, and text where not:
 * so the model's own tokenizer has it.  Arguments that are no JSON are written
 * as the string that they are; none at all are an empty object.
 *
 * What the templates differ in is told by a few words of theirs:
 *
 *     enable_thinking     a switch for thinking.  Off, the answer begins with
 *                         an empty thought; on, with nothing, and the model
 *                         writes <think> itself
 *     <think> at the end  the prompt ends in it: the model always thinks
 *     last_query_index    reasoning is shown for the turns behind the last
 *                         question of the user's, and for the conversation's
 *                         last message even if there is none.  A message of
 *                         the user's that is a <tool_response> is no question
 *     \n\n# Tools         two newlines before the tools, also where nothing
 *                         comes before them
 *
 * The templates cut reasoning out of a content that has it between marks;
 * here a content is text, and reasoning a field of its own.
 *
 * Recognised by the marks that all of them share.  Qwen3-Coder has another
 * spelling of calls: it is unknown.
 */

#include "output.h"

#include <stdlib.h>
#include <string.h>

enum { START, END, CALL, END_CALL, RESPONSE, END_RESPONSE, THINK, END_THINK,
       N_SPECIAL };

#define N_NEEDED  2              /* the first ones; others may be text      */

static const char *const spellings[N_SPECIAL] = {
    [START] = "<|im_start|>", [END] = "<|im_end|>",
    [CALL] = "<tool_call>", [END_CALL] = "</tool_call>",
    [RESPONSE] = "<tool_response>", [END_RESPONSE] = "</tool_response>",
    [THINK] = "<think>", [END_THINK] = "</think>",
};

typedef struct {
    di_dialect_t base;
    int32_t      ids[N_SPECIAL]; /* -1: the mark is text                    */
    bool         rendering;      /* no vocabulary: all marks are special    */
    bool         opens;          /* the prompt ends in <think>              */
    bool         shows;          /* reasoning behind the last question      */
    bool         gap;            /* tools come after two newlines           */
    char        *system;         /* default system prompt, NULL: none       */
    size_t       system_len;
} qwen_t;

typedef struct {
    const qwen_t    *d;
    const di_conv_t *conv;
    di_pieces_t     *out;
    size_t           last_query; /* index of the user's last question       */
    bool             no_memory;
} render_t;

static const char tools_before[] =
    "# Tools\n\nYou may call one or more functions to assist with the user"
    " query.\n\nYou are provided with function signatures within"
    " <tools></tools> XML tags:\n<tools>";

static const char tools_after[] =
    "\n</tools>\n\nFor each function call, return a json object with function"
    " name and arguments within ";

/* ---------------------------------------------------------------- writing */

static void
mark(render_t *r, int which)
{
    if (r->d->ids[which] >= 0 || r->d->rendering)
        di_pieces_special(r->out, r->d->ids[which], spellings[which]);
    else
        di_pieces_put(r->out, spellings[which]);
}

static void
put(render_t *r, const char *text)
{
    di_pieces_put(r->out, text);
}

static void
begin(render_t *r, const char *role)
{
    mark(r, START);
    put(r, role);
}

static void
end(render_t *r)
{
    mark(r, END);
    put(r, "\n");
}

static void
put_json(render_t *r, di_sbuf_t *b)
{
    r->no_memory |= b->failed;
    if (!b->failed)
        di_pieces_text(r->out, b->data, b->len);
    di_sbuf_free(b);
}

/* ------------------------------------------------------------------ tools */

static void
put_tool(render_t *r, const di_tool_t *t)
{
    di_sbuf_t b = { 0 };

    di_sbuf_lit(&b, "\n{\"type\": \"function\", \"function\": {\"name\": ");
    di_json_add_plain(&b, t->name);
    if (t->description.data != NULL) {
        di_sbuf_lit(&b, ", \"description\": ");
        di_json_add_plain(&b, t->description);
    }
    di_sbuf_lit(&b, ", \"parameters\": ");
    di_json_add_tree(&b, t->parameters, DI_JSON_PYTHON);
    di_sbuf_lit(&b, "}}");
    put_json(r, &b);
}

static void
put_tools(render_t *r)
{
    size_t i;

    put(r, tools_before);
    for (i = 0; i < r->conv->n_tools; i++)
        put_tool(r, r->conv->tools[i]);
    put(r, tools_after);

    mark(r, CALL);
    mark(r, END_CALL);
    put(r, " XML tags:\n");
    mark(r, CALL);
    put(r, "\n{\"name\": <function-name>, \"arguments\":"
        " <args-json-object>}\n");
    mark(r, END_CALL);
}

static void
put_arguments(render_t *r, di_str_t arguments)
{
    di_arena_t arena = { 0 };
    di_sbuf_t  b = { 0 };
    di_json_t *root;
    int        rc;

    if (arguments.len == 0) {
        put(r, "{}");
        return;
    }

    rc = di_json_read_lax(&arena, arguments.data, arguments.len,
                          DI_JSON_DEPTH_OFFICIAL, &root, NULL);
    r->no_memory |= rc == DI_ENOMEM;
    if (rc == DI_OK)
        di_json_add_tree(&b, root, DI_JSON_PYTHON);
    else
        di_json_add_plain(&b, arguments);

    put_json(r, &b);
    di_arena_free(&arena);
}

static void
put_call(render_t *r, const di_call_t *c)
{
    di_sbuf_t b = { 0 };

    mark(r, CALL);
    di_sbuf_lit(&b, "\n{\"name\": ");
    di_json_add_plain(&b, c->name);
    di_sbuf_lit(&b, ", \"arguments\": ");
    put_json(r, &b);
    put_arguments(r, c->arguments);
    put(r, "}\n");
    mark(r, END_CALL);
}

/* --------------------------------------------------------------- messages */

static bool
is_system(const di_msg_t *m)
{
    return m->role == DI_ROLE_SYSTEM || m->role == DI_ROLE_DEVELOPER;
}

/* The system turn in front: what the client said or the default, and tools.
 * Returns the number of messages that it used up. */
static size_t
put_front(render_t *r)
{
    const di_conv_t *c = r->conv;
    bool             given = is_system(&c->msgs[0]);
    bool             tools = c->n_tools > 0 && c->choice != DI_CHOICE_NONE;

    if (!given && r->d->system == NULL && !tools)
        return 0;

    begin(r, "system\n");
    if (given)
        di_pieces_str(r->out, c->msgs[0].content);
    else if (r->d->system != NULL)
        di_pieces_text(r->out, r->d->system, r->d->system_len);

    if (tools) {
        if (given || r->d->system != NULL || r->d->gap)
            put(r, "\n\n");
        put_tools(r);
    }

    end(r);
    return given;
}

static di_str_t
skip_newlines(di_str_t s)
{
    while (s.len > 0 && s.data[0] == '\n') {
        s.data++;
        s.len--;
    }

    return s;
}

static di_str_t
strip_newlines(di_str_t s)
{
    s = skip_newlines(s);
    while (s.len > 0 && s.data[s.len - 1] == '\n')
        s.len--;

    return s;
}

static void
put_thought(render_t *r, di_str_t reasoning)
{
    mark(r, THINK);
    put(r, "\n");
    di_pieces_str(r->out, strip_newlines(reasoning));
    put(r, "\n");
    mark(r, END_THINK);
    put(r, "\n\n");
}

static void
put_assistant(render_t *r, const di_msg_t *m, size_t i)
{
    bool     last = i + 1 == r->conv->n_msgs;
    di_str_t content = m->content;
    size_t   k;

    begin(r, "assistant\n");

    if (m->prefix && r->conv->thinking && content.len == 0) {
        mark(r, THINK);
        put(r, "\n");
        di_pieces_str(r->out, m->reasoning);
        return;
    }

    if (r->d->shows && i > r->last_query && (last || m->reasoning.len > 0)) {
        put_thought(r, m->reasoning);
        content = skip_newlines(content);

    } else if (r->d->opens && !r->d->shows && !last) {
        content = skip_newlines(content);            /* QwQ                  */
    }

    di_pieces_str(r->out, content);
    if (m->prefix)
        return;

    for (k = 0; k < m->n_calls; k++) {
        if (k > 0 || m->content.len > 0)
            put(r, "\n");
        put_call(r, &m->calls[k]);
    }

    end(r);
}

/* Results that follow each other are one turn. */
static void
put_result(render_t *r, size_t i)
{
    const di_conv_t *c = r->conv;

    if (i == 0 || c->msgs[i - 1].role != DI_ROLE_TOOL)
        begin(r, "user");

    put(r, "\n");
    mark(r, RESPONSE);
    put(r, "\n");
    di_pieces_str(r->out, c->msgs[i].content);
    put(r, "\n");
    mark(r, END_RESPONSE);

    if (i + 1 == c->n_msgs || c->msgs[i + 1].role != DI_ROLE_TOOL)
        end(r);
}

static bool
is_query(const di_msg_t *m)
{
    const size_t open = sizeof("<tool_response>") - 1;
    const size_t close = sizeof("</tool_response>") - 1;
    di_str_t     s = m->content;

    return m->role == DI_ROLE_USER
           && (s.len < open || s.len < close
               || memcmp(s.data, "<tool_response>", open) != 0
               || memcmp(s.data + s.len - close, "</tool_response>", close)
                  != 0);
}

static int
put_message(render_t *r, size_t i, di_err_t *err)
{
    const di_msg_t *m = &r->conv->msgs[i];

    switch (m->role) {

    case DI_ROLE_ASSISTANT:
        put_assistant(r, m, i);
        return DI_OK;

    case DI_ROLE_TOOL:
        put_result(r, i);
        return DI_OK;

    case DI_ROLE_REMINDER:
        return di_dialect_no_role(err, "qwen", m->role, i);

    default:
        begin(r, is_system(m) ? "system\n" : "user\n");
        di_pieces_str(r->out, m->content);
        end(r);
        return DI_OK;
    }
}

/* What an answer begins with. */
static void
open_thought(render_t *r)
{
    if (r->d->opens) {
        mark(r, THINK);
        put(r, "\n");

    } else if ((r->d->base.caps & DI_CAN_THINK) && !r->conv->thinking) {
        put_thought(r, (di_str_t) { NULL, 0 });
    }
}

static int
qwen_render(const di_dialect_t *dialect, const di_conv_t *conv,
            di_pieces_t *pieces, di_err_t *err)
{
    render_t r = { .d = (const qwen_t *) dialect, .conv = conv,
                   .out = pieces };
    size_t   i;
    int      rc = DI_OK;

    if (conv->n_msgs == 0)
        return di_err_set(err, DI_EINVAL, 0, "messages: empty conversation");

    r.last_query = conv->n_msgs - 1;
    for (i = conv->n_msgs; i-- > 0; ) {
        if (is_query(&conv->msgs[i])) {
            r.last_query = i;
            break;
        }
    }

    for (i = put_front(&r); i < conv->n_msgs && rc == DI_OK; i++)
        rc = put_message(&r, i, err);

    if (rc == DI_OK && conv->open_assistant && !conv->msgs[i - 1].prefix) {
        begin(&r, "assistant\n");
        open_thought(&r);
    }

    return rc == DI_OK && r.no_memory
           ? di_err_set(err, DI_ENOMEM, 0, "out of memory") : rc;
}

/* ------------------------------------------------------------------ output */

static void
put_mark(di_ebnf_t *w, int which)
{
    const qwen_t *d = (const qwen_t *) w->dialect;

    di_ebnf_mark(w, d->ids[which], spellings[which]);
    di_ebnf_put(w, " ");
}

/* Any text up to a mark, and the mark. */
static void
put_up_to(di_ebnf_t *w, int which)
{
    const qwen_t *d = (const qwen_t *) w->dialect;

    di_ebnf_free(w, d->ids[which], spellings[which]);
    di_ebnf_put(w, " ");
    put_mark(w, which);
}

/* The model opens its reasoning itself, unless the prompt does or it goes on
 * one. */
static void
qwen_reasoning(di_ebnf_t *w)
{
    const qwen_t    *d = (const qwen_t *) w->dialect;
    const di_conv_t *c = w->conv;

    if (!d->rendering && d->ids[CALL] < 0 && c->n_tools > 0)
        di_ebnf_refuse(w, "tools", "'tools' can't be held while this model"
                       " thinks: its vocabulary has no token for the mark of a"
                       " call.");

    if (w->parsing->stage == DI_STAGE_REASONING_START && !d->opens
        && !c->msgs[c->n_msgs - 1].prefix)
    {
        put_mark(w, THINK);
        di_ebnf_put(w, "\"\\n\" ");
    }

    put_up_to(w, END_THINK);
    di_ebnf_put(w, "\"\\n\\n\" ");
}

static void
qwen_calls(di_ebnf_t *w)
{
    size_t i, n = 0;

    if (w->conv->choice != DI_CHOICE_REQUIRED
        && w->constraint->kind == DI_CONSTRAINT_NONE)
    {
        const qwen_t *d = (const qwen_t *) w->dialect;

        di_ebnf_put(w, "text ::= ");
        di_ebnf_free(w, d->ids[CALL], spellings[CALL]);
        di_ebnf_put(w, " calls?\n");
    }

    di_ebnf_put(w, "calls ::= call");
    di_ebnf_put(w, w->constraint->one_call ? "\n" : " (\"\\n\" call)*\n");

    di_ebnf_put(w, "call ::= ");
    put_mark(w, CALL);
    di_ebnf_put(w, "\"\\n\" (");
    for (i = 0; i < w->conv->n_tools; i++) {
        if (!di_ebnf_callable(w, i))
            continue;
        di_ebnf_put(w, n++ > 0 ? " | " : "");
        di_ebnf_json_call(w, w->conv->tools[i], "arguments");
    }
    di_ebnf_put(w, ") \"\\n\" ");
    put_mark(w, END_CALL);
    di_ebnf_put(w, "\n");
}

/* ------------------------------------------------------------ open, close */

static int
qwen_knows(di_str_t template_text, bool *yes)
{
    static const char *const marks[] = {
        "<|im_start|>", "<tools></tools>", "<tool_call>", "<tool_response>",
        NULL,
    };
    static const char *const coder[] = { "<function=", NULL };

    *yes = di_dialect_has(template_text, marks)
           && !di_dialect_has(template_text, coder);
    return DI_OK;
}

static void
qwen_close(di_dialect_t *dialect)
{
    qwen_t *d = (qwen_t *) dialect;

    free(d->system);
    free(d);
}

static bool
says(di_str_t template_text, const char *mark)
{
    const char *const marks[] = { mark, NULL };

    return di_dialect_has(template_text, marks);
}

/* What the template's words say of it.  A file may have the newlines of its
 * literals as they are or escaped. */
static void
set_kind(qwen_t *d, di_str_t t)
{
    d->opens = says(t, "assistant\\n<think>\\n")
               || says(t, "assistant\n<think>\n");
    d->shows = says(t, "last_query_index");
    d->gap = says(t, "\\n\\n# Tools") || says(t, "\n\n# Tools");

    d->base.caps = DI_CAN_TOOLS | DI_CAN_PREFIX;
    if (d->opens)
        d->base.caps |= DI_CAN_THINK | DI_MUST_THINK;
    else if (says(t, "enable_thinking"))
        d->base.caps |= DI_CAN_THINK;
}

static int
qwen_open(const di_vocab_t *vocab, di_str_t template_text,
          di_dialect_t **dialect, di_err_t *err)
{
    qwen_t *d = calloc(1, sizeof(*d));
    int     i, rc = DI_OK;

    if (d == NULL)
        return di_err_set(err, DI_ENOMEM, 0, "out of memory");

    d->base.ops = &di_dialect_qwen;
    d->rendering = vocab == NULL;
    set_kind(d, template_text);

    for (i = 0; i < N_SPECIAL && rc == DI_OK; i++)
        if (i < N_NEEDED)
            rc = di_dialect_special(vocab, "qwen", spellings[i], &d->ids[i],
                                    err);
        else
            (void) di_dialect_special(vocab, "qwen", spellings[i], &d->ids[i],
                                      NULL);

    if (rc == DI_OK && template_text.data != NULL
        && di_chatml_system(template_text, &d->system, &d->system_len)
           != DI_OK)
        rc = di_err_set(err, DI_ENOMEM, 0, "out of memory");

    if (rc != DI_OK) {
        qwen_close(&d->base);
        return rc;
    }

    *dialect = &d->base;
    return DI_OK;
}

const di_dialect_ops_t di_dialect_qwen = {
    .name = "qwen",
    .family = DI_FAMILY_PLAIN,
    .knows = qwen_knows,
    .open = qwen_open,
    .close = qwen_close,
    .render = qwen_render,
    .reasoning = qwen_reasoning,
    .calls = qwen_calls,
};
