/*
 * deepseek.c - the dialects of DeepSeek V4 and V4.1.
 *
 *     BOS system USER user ASST TH reasoning /TH answer EOS ... ASST TH
 *
 * The two differ in a few rules, gathered in version_t and in the tests of
 * d->v41.  V4 has no mark of a system message, so all of them are gathered in
 * front; V4.1 marks each and leaves it in place.
 *
 * Consecutive user messages need no merging: a user or tool message that
 * follows one of these is written behind two newlines instead of the mark,
 * which is the same text (on V4 an empty user message brings none).
 * Results of tools are put in the order of the calls that they answer, since
 * clients send them as they come.
 *
 * Reasoning of earlier turns is shown only where tools are offered (it is
 * part of the work that goes on), and in the prefix that the answer goes on.
 * A V4.1 assistant message at the very front never shows it, and of reminders
 * that follow each other V4.1 shows the first; the official renderer does the
 * same.
 *
 * Only the tokens that this file writes are special.  What a client typed
 * goes in as text, with the one exception of the places that the conversion
 * of images noted.  Nothing is escaped in the markup of calls: the model was
 * trained on names and values as they are, and the marks that delimit them
 * are tokens that no text can be.
 *
 * Sources: the rules of DeepSeek's own renderer, held by its golden vectors.
 */

#include "output.h"

#include <stdlib.h>
#include <string.h>

#define MARK(name)  "<\xef\xbd\x9c" name "\xef\xbd\x9c>"

enum { BOS, EOS, SYS, USER, ASST, REMINDER, THINK, END_THINK, DSML, IMAGE,
       N_SPECIAL };

static const char *const spellings[N_SPECIAL] = {
    [BOS] = MARK("begin\xe2\x96\x81of\xe2\x96\x81sentence"),
    [EOS] = MARK("end\xe2\x96\x81of\xe2\x96\x81sentence"),
    [SYS] = MARK("System"),
    [USER] = MARK("User"),
    [ASST] = MARK("Assistant"),
    [REMINDER] = MARK("latest_reminder"),
    [THINK] = "<think>",
    [END_THINK] = "</think>",
    [DSML] = ("\xef\xbd\x9c" "DSML\xef\xbd\x9c"),
    [IMAGE] = DI_IMAGE_TEXT,
};

typedef struct {
    const char      *name;
    const char      *block;              /* tags, written right after DSML  */
    const char      *invoke;
    const char      *parameter;
    const char      *no_parameter;       /* between the tags of a call      */
    di_json_style_t  style;              /* of schemas and arguments        */
} version_t;

static const version_t v4 = {
    "deepseek-v4", "tool_calls", "invoke", "parameter", "\n", DI_JSON_SPACED,
};

static const version_t v41 = {
    "deepseek-v4.1", " calls", " invoke", " parameter", "\n\n",
    DI_JSON_PYTHON,
};

typedef struct {
    di_dialect_t     base;
    const version_t *version;
    bool             v41;
    int32_t          ids[N_SPECIAL];     /* -1: not in the vocabulary       */
} deepseek_t;

/* One rendering. */
typedef struct {
    const deepseek_t      *d;
    const di_conv_t       *conv;
    di_pieces_t           *out;
    di_arena_t             arena;        /* the list, arguments' trees      */
    const di_msg_t       **list;         /* messages as they are written,
                                          * without V4's system messages    */
    size_t                 n;
    bool                   tools;        /* they are offered                */
    bool                   no_memory;
} render_t;

/* ------------------------------------------------------------ fixed texts */

/* In these, a byte below ' ' that is no newline names a special token or a
 * tag of the version. */
#define D  "\001"
#define B  "\002"
#define I  "\003"
#define P  "\004"
#define T  "\005"
#define ET "\006"

static const char tool_text[] =
    "## Tools\n\n"
    "You have access to a set of tools to help answer the user's question."
    " You can invoke tools by writing a \"<" D B ">\" block like the"
    " following:\n\n"
    "<" D B ">\n"
    "<" D I " name=\"$TOOL_NAME\">\n"
    "<" D P " name=\"$PARAMETER_NAME\" string=\"true|false\">$PARAMETER_VALUE"
    "</" D P ">\n"
    "...\n"
    "</" D I ">\n"
    "<" D I " name=\"$TOOL_NAME2\">\n"
    "...\n"
    "</" D I ">\n"
    "</" D B ">\n\n"
    "String parameters should be specified as is and set `string=\"true\"`."
    " For all other types (numbers, booleans, arrays, objects), pass the value"
    " in JSON format and set `string=\"false\"`.\n\n"
    "If thinking_mode is enabled (triggered by " T "), you MUST output your"
    " complete reasoning inside " T "..." ET " BEFORE any tool calls or final"
    " response.\n\n"
    "Otherwise, output directly after " ET " with tool calls or final"
    " response.\n\n"
    "### Available Tool Schemas\n\n";

static const char tool_text_end[] =
    "\n\nYou MUST strictly follow the above defined tool name and parameter"
    " schemas to invoke tool calls.\n";

static const char updated_text[] = "\n\n### Updated Tool Schemas\n\n";

static const char schema_text[] =
    "\n\n## Response Format:\n\n"
    "You MUST strictly adhere to the following schema to reply:\n";

static const char json_text_v4[] =
    "\n\nYou are a helpful assistant designed to output JSON.\n"
    "## Response Format:\n\nReply with JSON object ONLY.";

static const char effort_high_v4[] =
    "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"
    "You MUST be very thorough in your thinking and comprehensively decompose"
    " the problem to resolve the root cause, rigorously stress-testing your"
    " logic against all potential paths, edge cases, and adversarial"
    " scenarios.\n"
    "Explicitly write out your entire deliberation process, documenting every"
    " intermediate step, considered alternative, and rejected hypothesis to"
    " ensure absolutely no assumption is left unchecked.\n\n";

static const char effort_max_v4[] =
    "Reasoning Effort: Beyond maximum \xe2\x80\x94 exhaustive, relentless, and"
    " uncompromising.\n"
    "You MUST reason with the utmost depth and rigor, leaving absolutely"
    " nothing to chance: exhaustively decompose the problem into its most"
    " fundamental components, trace every causal chain to its root, and"
    " resolve the underlying cause rather than any surface symptom.\n"
    "Do not stop reasoning until you have independently verified the solution"
    " from multiple angles and are certain that no assumption remains"
    " unchecked and no error remains undiscovered.\n\n";

/* ---------------------------------------------------------------- writing */

static void
special(render_t *r, int which)
{
    di_pieces_special(r->out, r->d->ids[which], spellings[which]);
}

static void
put(render_t *r, const char *text)
{
    di_pieces_put(r->out, text);
}

static void
put_fixed(render_t *r, const char *text)
{
    const version_t *v = r->d->version;
    size_t           n;

    while (*text != '\0') {
        n = strcspn(text, D B I P T ET);
        di_pieces_text(r->out, text, n);
        text += n;

        switch (*text) {
        case '\0':   return;
        case '\001': special(r, DSML);       break;
        case '\002': put(r, v->block);       break;
        case '\003': put(r, v->invoke);      break;
        case '\004': put(r, v->parameter);   break;
        case '\005': special(r, THINK);      break;
        default:     special(r, END_THINK);  break;
        }
        text++;
    }
}

static void
put_json(render_t *r, di_sbuf_t *b)
{
    r->no_memory |= b->failed;
    if (!b->failed)
        di_pieces_text(r->out, b->data, b->len);
    di_sbuf_free(b);
}

static void
put_tree(render_t *r, const di_json_t *v)
{
    di_sbuf_t b = { 0 };

    di_json_add_tree(&b, v, r->d->version->style);
    put_json(r, &b);
}

/* A content, with its images as tokens. */
static void
put_content(render_t *r, const di_msg_t *m)
{
    const size_t mark = sizeof(DI_IMAGE_TEXT) - 1;
    size_t       i, at = 0;

    for (i = 0; i < m->n_images; i++) {
        di_pieces_text(r->out, m->content.data + at, m->images[i].at - at);
        special(r, IMAGE);
        at = m->images[i].at + mark;
    }

    if (at < m->content.len)
        di_pieces_text(r->out, m->content.data + at, m->content.len - at);
}

/* ------------------------------------------------------------ tools' text */

static void
put_tool(render_t *r, const di_tool_t *t)
{
    static const di_json_t empty = { .type = DI_JSON_OBJECT };
    di_sbuf_t              b = { 0 };

    di_sbuf_lit(&b, "{\"name\": ");
    di_json_add_plain(&b, t->name);
    di_sbuf_lit(&b, ", \"description\": ");
    di_json_add_plain(&b, t->description);
    di_sbuf_lit(&b, ", \"parameters\": ");
    di_json_add_tree(&b, t->parameters != NULL ? t->parameters : &empty,
                     r->d->version->style);
    di_sbuf_lit(&b, "}");
    put_json(r, &b);
}

static void
put_tools(render_t *r)
{
    const di_tool_t *const *t = r->conv->tools;
    size_t                  i, n = 0;

    put(r, "\n\n");
    put_fixed(r, tool_text);

    for (i = 0; i < r->conv->n_tools; i++) {
        if (t[i]->deferred)
            continue;
        if (n++ > 0)
            put(r, "\n");
        put_tool(r, t[i]);
    }

    put(r, tool_text_end);
}

static void
put_updated(render_t *r, const di_msg_t *m)
{
    size_t i;

    put(r, updated_text);
    for (i = 0; i < m->n_tools; i++) {
        if (i > 0)
            put(r, "\n");
        put_tool(r, m->tools[i]);
    }
}

static void
put_format(render_t *r)
{
    const di_conv_t *c = r->conv;

    if (c->format == DI_FORMAT_JSON && !r->d->v41) {
        put(r, json_text_v4);

    } else if (c->format == DI_FORMAT_JSON) {
        put(r, schema_text);
        put(r, "{\"type\": \"json_object\"}");

    } else if (c->format == DI_FORMAT_SCHEMA) {
        put(r, schema_text);
        put_tree(r, c->schema);
    }
}

/* Does V4.1 write the tools that this message brings? */
static bool
shows_tools(const render_t *r, const di_msg_t *m)
{
    return r->d->v41 && m->n_tools > 0 && r->conv->choice != DI_CHOICE_NONE;
}

/* What follows the content of the first system message. */
static void
put_system_end(render_t *r, const di_msg_t *m)
{
    if (r->tools)
        put_tools(r);

    if (m != NULL && shows_tools(r, m))
        put_updated(r, m);

    put_format(r);
}

/* --------------------------------------------------------------- messages */

static void
put_effort(render_t *r)
{
    static const char *const v41_efforts[] = {
        [DI_EFFORT_NONE] = "75", [DI_EFFORT_LOW] = "50",
        [DI_EFFORT_HIGH] = "75", [DI_EFFORT_XHIGH] = "75",
        [DI_EFFORT_MAX] = "100",
    };
    di_effort_t effort = r->conv->effort;

    if (r->d->v41) {
        put(r, "Reasoning Effort: ");
        put(r, v41_efforts[effort]);
        put(r, " (range 1-100, the higher the value, the more thorough the"
            " reasoning)\n\n");

    } else if (effort == DI_EFFORT_MAX) {
        put(r, effort_max_v4);

    } else if (effort != DI_EFFORT_LOW) {
        put(r, effort_high_v4);
    }
}

static void
put_parameter(render_t *r, di_str_t key, const di_json_t *v, di_str_t raw)
{
    bool text = v == NULL || v->type == DI_JSON_STRING;

    put_fixed(r, "<" D P " name=\"");
    di_pieces_str(r->out, key);
    put(r, text ? "\" string=\"true\">" : "\" string=\"false\">");

    if (v == NULL)
        di_pieces_str(r->out, raw);
    else if (text)
        di_pieces_str(r->out, v->v.str);
    else
        put_tree(r, v);

    put_fixed(r, "</" D P ">");
}

/* Arguments that are no JSON object are one parameter, as they are. */
static void
put_arguments(render_t *r, di_str_t arguments)
{
    static const di_str_t whole = { "arguments", 9 };
    const di_json_t      *v;
    di_json_t            *root;
    int                   rc;

    rc = di_json_read_lax(&r->arena, arguments.data, arguments.len,
                          DI_JSON_DEPTH_OFFICIAL, &root, NULL);
    r->no_memory |= rc == DI_ENOMEM;

    if (rc != DI_OK || root->type != DI_JSON_OBJECT) {
        put(r, "\n");
        put_parameter(r, whole, NULL, arguments);
        put(r, "\n");
        return;
    }

    if (root->v.list.n == 0) {
        put(r, r->d->version->no_parameter);
        return;
    }

    for (v = root->v.list.first; v != NULL; v = v->next) {
        put(r, "\n");
        put_parameter(r, v->key, v, v->key);
    }
    put(r, "\n");
}

static void
put_calls(render_t *r, const di_msg_t *m)
{
    size_t i;

    put_fixed(r, "\n\n<" D B ">\n");

    for (i = 0; i < m->n_calls; i++) {
        put_fixed(r, "<" D I " name=\"");
        di_pieces_str(r->out, m->calls[i].name);
        put(r, "\">");
        put_arguments(r, m->calls[i].arguments);
        put_fixed(r, "</" D I ">\n");
    }

    put_fixed(r, "</" D B ">");
}

static void
put_assistant(render_t *r, const di_msg_t *m, size_t i)
{
    bool shown = r->conv->thinking && (r->tools || m->prefix)
                 && !(r->d->v41 && i == 0);

    special(r, ASST);

    if (shown) {
        special(r, THINK);
        di_pieces_str(r->out, m->reasoning);
    }

    if (!(shown && m->prefix && m->content.len == 0))
        special(r, END_THINK);

    di_pieces_str(r->out, m->content);

    if (m->n_calls > 0)
        put_calls(r, m);

    if (!m->prefix)
        special(r, EOS);
}

static bool
is_user(const di_msg_t *m)
{
    return m->role == DI_ROLE_USER || m->role == DI_ROLE_TOOL;
}

/* A V4.1 system message other than the first. */
static void
put_system(render_t *r, const di_msg_t *m)
{
    if (m->content.len == 0 && m->n_tools > 0 && !shows_tools(r, m))
        return;

    special(r, SYS);
    put_content(r, m);
    if (shows_tools(r, m))
        put_updated(r, m);
}

/* V4: nothing stands between this user message and the one before, as one of
 * the two, or all that was merged before this one, is empty. */
static bool
merges(const render_t *r, size_t i)
{
    if (r->d->v41 || r->list[i]->role != DI_ROLE_USER
        || r->list[i - 1]->role != DI_ROLE_USER)
        return false;

    if (r->list[i]->content.len == 0)
        return true;

    while (i-- > 0 && r->list[i]->role == DI_ROLE_USER) {
        if (r->list[i]->content.len != 0)
            return false;
    }

    return true;
}

static void
put_message(render_t *r, size_t i, size_t index)
{
    const di_msg_t *m = r->list[i];

    switch (m->role) {

    case DI_ROLE_ASSISTANT:
        put_assistant(r, m, index);
        return;

    case DI_ROLE_REMINDER:
        if (r->d->v41 && i > 0 && r->list[i - 1]->role == DI_ROLE_REMINDER)
            return;
        special(r, REMINDER);
        put_content(r, m);
        return;

    case DI_ROLE_SYSTEM:
    case DI_ROLE_DEVELOPER:
        put_system(r, m);
        return;

    default:
        break;
    }

    if (i == 0 || !is_user(r->list[i - 1])
        || (!r->d->v41 && m->role == DI_ROLE_TOOL
            && r->list[i - 1]->role == DI_ROLE_USER))
        special(r, USER);
    else if (!merges(r, i))
        put(r, "\n\n");

    if (m->role == DI_ROLE_TOOL)
        put(r, "<tool_result>");
    put_content(r, m);
    if (m->role == DI_ROLE_TOOL)
        put(r, "</tool_result>");
}

/* ------------------------------------------------------------------ order */

static bool
is_system(const di_msg_t *m)
{
    return m->role == DI_ROLE_SYSTEM || m->role == DI_ROLE_DEVELOPER;
}

/* The call that a result answers; an unknown id counts as the first one. */
static size_t
call_index(const di_msg_t *assistant, const di_msg_t *result)
{
    const di_call_t *c = assistant->calls;
    size_t           i;

    for (i = 0; i < assistant->n_calls; i++) {
        if (c[i].id.len == result->call_id.len
            && memcmp(c[i].id.data, result->call_id.data, c[i].id.len) == 0)
            return i;
    }

    return 0;
}

/* Sort the results of list[from..to) into the places that they hold: an
 * insertion sort over the tool messages alone. */
static void
sort_results(render_t *r, const di_msg_t *assistant, size_t from, size_t to)
{
    const di_msg_t **list = r->list, *m;
    size_t           i, j, hole, key;

    for (i = from; i < to; i++) {
        m = list[i];
        if (m->role != DI_ROLE_TOOL)
            continue;

        key = call_index(assistant, m);
        hole = i;

        for (j = i; j-- > from; ) {
            if (list[j]->role != DI_ROLE_TOOL)
                continue;
            if (call_index(assistant, list[j]) <= key)
                break;
            list[hole] = list[j];
            hole = j;
        }
        list[hole] = m;
    }
}

/* Fill the list. */
static bool
arrange(render_t *r)
{
    const di_conv_t *c = r->conv;
    size_t           i, j;

    r->list = di_arena_calloc(&r->arena, c->n_msgs + 1, sizeof(*r->list));
    if (r->list == NULL)
        return false;

    for (i = 0; i < c->n_msgs; i++) {
        if (r->d->v41 || !is_system(&c->msgs[i]))
            r->list[r->n++] = &c->msgs[i];
    }

    for (i = 0; i < r->n; i = j) {
        for (j = i + 1; j < r->n && is_user(r->list[j]); j++) { /* void */ }
        if (r->list[i]->n_calls > 1)
            sort_results(r, r->list[i], i + 1, j);
    }

    return true;
}

/* V4: the contents of all system messages, the empty ones left out. */
static void
put_gathered(render_t *r)
{
    const di_conv_t *c = r->conv;
    size_t           i, n = 0;

    for (i = 0; i < c->n_msgs; i++) {
        if (!is_system(&c->msgs[i]) || c->msgs[i].content.len == 0)
            continue;
        if (n++ > 0)
            put(r, "\n\n");
        put_content(r, &c->msgs[i]);
    }
}

/* All that stands before the first other message.  Returns the number of
 * system messages there are before list[*next]. */
static size_t
put_front(render_t *r, size_t *next)
{
    const di_conv_t *c = r->conv;
    const di_msg_t  *first = r->n > 0 && is_system(r->list[0])
                             ? r->list[0] : NULL;
    bool             appends = r->tools || c->format == DI_FORMAT_JSON
                               || c->format == DI_FORMAT_SCHEMA;
    bool             effort;

    *next = 0;
    if (first != NULL && first->content.len == 0 && first->n_tools > 0
        && !shows_tools(r, first) && !appends)
    {
        first = NULL;
        *next = 1;
    }

    effort = c->thinking && (!r->d->v41 || first != NULL || appends
                             || r->n > *next);

    if (r->d->v41 && (effort || first != NULL || appends))
        special(r, SYS);

    if (effort)
        put_effort(r);

    if (!r->d->v41)
        put_gathered(r);

    if (first != NULL) {
        put_content(r, first);
        *next = 1;
    }

    put_system_end(r, first);
    return first != NULL || appends;
}

static void
put_all(render_t *r)
{
    const di_conv_t *c = r->conv;
    size_t           i, next, index;

    special(r, BOS);
    index = put_front(r, &next);

    for (i = next; i < r->n; i++)
        put_message(r, i, index++);

    if (!c->open_assistant || (r->n > 0 && r->list[r->n - 1]->prefix))
        return;

    special(r, ASST);
    special(r, c->thinking ? THINK : END_THINK);

    if (r->tools && c->choice == DI_CHOICE_REQUIRED && !c->thinking)
        put_fixed(r, "\n\n<" D B ">\n");
}

static int
deepseek_render(const di_dialect_t *dialect, const di_conv_t *conv,
                di_pieces_t *pieces, di_err_t *err)
{
    render_t r = {
        .d = (const deepseek_t *) dialect, .conv = conv, .out = pieces,
        .tools = conv->n_tools > 0 && conv->choice != DI_CHOICE_NONE,
    };

    if (arrange(&r))
        put_all(&r);
    else
        r.no_memory = true;

    di_arena_free(&r.arena);
    return r.no_memory ? di_err_set(err, DI_ENOMEM, 0, "out of memory")
                       : DI_OK;
}

/* ------------------------------------------------------------------ output */

static void
deepseek_reasoning(di_ebnf_t *w)
{
    const deepseek_t *d = (const deepseek_t *) w->dialect;

    di_ebnf_free(w, d->ids[END_THINK], spellings[END_THINK]);
    di_ebnf_put(w, " ");
    di_ebnf_mark(w, d->ids[END_THINK], spellings[END_THINK]);
    di_ebnf_put(w, " ");
}

static void
deepseek_calls(di_ebnf_t *w)
{
    const deepseek_t *d = (const deepseek_t *) w->dialect;
    const di_dsml_t   dsml = {
        d->ids[DSML], spellings[DSML], d->version->block, d->version->invoke,
        d->version->parameter, d->version->no_parameter,
    };

    di_ebnf_dsml(w, &dsml);
}

/* ------------------------------------------------------------ open, close */

/* The templates of these models are code, not text: they are named. */
static int
deepseek_knows(di_str_t template_text, bool *yes)
{
    (void) template_text;
    *yes = false;
    return DI_OK;
}

static void
deepseek_close(di_dialect_t *dialect)
{
    free(dialect);
}

/* V4 has no system token, and only models with vision have that of images. */
static bool
is_needed(const deepseek_t *d, int which)
{
    return which != IMAGE && (which != SYS || d->v41);
}

static int
deepseek_open(const di_vocab_t *vocab, const di_dialect_ops_t *ops,
              const version_t *version, di_dialect_t **dialect, di_err_t *err)
{
    deepseek_t *d = calloc(1, sizeof(*d));
    int         i, rc = DI_OK;

    if (d == NULL)
        return di_err_set(err, DI_ENOMEM, 0, "out of memory");

    d->base.ops = ops;
    d->base.caps = DI_CAN_TOOLS | DI_CAN_THINK | DI_CAN_PREFIX;
    d->version = version;
    d->v41 = version == &v41;

    for (i = 0; i < N_SPECIAL && rc == DI_OK; i++)
        rc = di_dialect_special(vocab, version->name, spellings[i], &d->ids[i],
                                is_needed(d, i) ? err : NULL)
             != DI_OK && is_needed(d, i) ? DI_EFORMAT : DI_OK;

    if (rc != DI_OK) {
        free(d);
        return rc;
    }

    *dialect = &d->base;
    return DI_OK;
}

static int
v4_open(const di_vocab_t *vocab, di_str_t template_text,
        di_dialect_t **dialect, di_err_t *err)
{
    (void) template_text;
    return deepseek_open(vocab, &di_dialect_deepseek_v4, &v4, dialect, err);
}

static int
v41_open(const di_vocab_t *vocab, di_str_t template_text,
         di_dialect_t **dialect, di_err_t *err)
{
    (void) template_text;
    return deepseek_open(vocab, &di_dialect_deepseek_v41, &v41, dialect, err);
}

const di_dialect_ops_t di_dialect_deepseek_v4 = {
    .name = "deepseek-v4",
    .family = DI_FAMILY_V4,
    .knows = deepseek_knows,
    .open = v4_open,
    .close = deepseek_close,
    .render = deepseek_render,
    .reasoning = deepseek_reasoning,
    .calls = deepseek_calls,
};

const di_dialect_ops_t di_dialect_deepseek_v41 = {
    .name = "deepseek-v4.1",
    .family = DI_FAMILY_V41,
    .knows = deepseek_knows,
    .open = v41_open,
    .close = deepseek_close,
    .render = deepseek_render,
    .reasoning = deepseek_reasoning,
    .calls = deepseek_calls,
};
