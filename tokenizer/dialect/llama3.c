/*
 * llama3.c - the dialect of Llama 3, 3.1, 3.2 and 3.3:
 *
 *     <|begin_of_text|><|start_header_id|>ROLE<|end_header_id|>\n\nCONTENT
 *     <|eot_id|> ...
 *
 * 3.1 and later always have a system turn, which tells two dates, and know
 * tools: their definitions stand before the first message of the user's, a
 * call is one JSON object that is the whole turn, and a result comes from the
 * role ipython, as a JSON string.  Several calls in one turn have no spelling.
 *
 * The second date is 3.1's and 3.3's own, 26 Jul 2024, and today where the
 * template looks at a clock, as 3.2's does: there a prompt differs from that
 * of the day before, and nothing of it is found in a cache.
 *
 * The templates put the tools into the message behind the system's and take
 * it for the user's, whatever it is; here it is the first one of the user's,
 * and without any there is no place for tools.  They drop the text beside a
 * call: so does this.
 *
 * Contents are trimmed of what Python's strip() takes.  Recognised by the
 * tokens of the turns; by "ipython", 3.1 and later from 3.0; by
 * "strftime_now", those with a clock.
 */

#include "output.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BOS, HEADER, END_HEADER, EOT, N_SPECIAL };

static const char *const spellings[N_SPECIAL] = {
    [BOS] = "<|begin_of_text|>", [HEADER] = "<|start_header_id|>",
    [END_HEADER] = "<|end_header_id|>", [EOT] = "<|eot_id|>",
};

typedef struct {
    di_dialect_t base;
    int32_t      ids[N_SPECIAL];
    bool         v31;            /* 3.1 or later                            */
    bool         clock;          /* tells today's date                      */
} llama3_t;

typedef struct {
    const llama3_t  *d;
    const di_conv_t *conv;
    di_pieces_t     *out;
    bool             tools;      /* still to be written                     */
    bool             no_memory;
} render_t;

static const char tool_text[] =
    "Given the following functions, please respond with a JSON for a function"
    " call with its proper arguments that best answers the given prompt.\n\n"
    "Respond in the format {\"name\": function name, \"parameters\":"
    " dictionary of argument name and its value}.Do not use variables.\n\n";

/* ---------------------------------------------------------------- writing */

static void
special(render_t *r, int which)
{
    di_pieces_special(r->out, r->d->ids[which], spellings[which]);
}

static void
header(render_t *r, const char *role)
{
    special(r, HEADER);
    di_pieces_put(r->out, role);
    special(r, END_HEADER);
    di_pieces_put(r->out, "\n\n");
}

/* Length of the blank at s, or 0: White_Space and the four separators below
 * the space, in UTF-8. */
static size_t
blank(di_str_t s)
{
    static const char wide[][4] = {
        "\xe1\x9a\x80", "\xe2\x80\xa8", "\xe2\x80\xa9", "\xe2\x80\xaf",
        "\xe2\x81\x9f", "\xe3\x80\x80",
    };
    size_t i;
    char   c = s.len > 0 ? s.data[0] : 'x';

    if (c == ' ' || (c >= '\t' && c <= '\r') || (c >= 0x1c && c <= 0x1f))
        return 1;

    if (s.len >= 2 && (memcmp(s.data, "\xc2\x85", 2) == 0
                       || memcmp(s.data, "\xc2\xa0", 2) == 0))
        return 2;

    /* U+2000 to U+200A */
    if (s.len >= 3 && memcmp(s.data, "\xe2\x80", 2) == 0
        && (unsigned char) s.data[2] <= 0x8a)
        return 3;

    for (i = 0; s.len >= 3 && i < sizeof(wide) / sizeof(wide[0]); i++) {
        if (memcmp(s.data, wide[i], 3) == 0)
            return 3;
    }

    return 0;
}

static di_str_t
trim(di_str_t s)
{
    size_t n, k;

    while ((n = blank(s)) > 0) {
        s.data += n;
        s.len -= n;
    }

    do {
        for (n = 0, k = 1; k <= 3 && k <= s.len && n == 0; k++) {
            if (blank((di_str_t) { s.data + s.len - k, k }) == k)
                n = k;
        }
        s.len -= n;
    } while (n > 0);

    return s;
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

/* The definition that the template's tojson(indent=4) writes. */
static void
put_tool(render_t *r, const di_tool_t *t)
{
    di_json_t parameters = *t->parameters;
    di_json_t description = {
        .key = { "description", 11 }, .type = DI_JSON_STRING,
        .v.str = t->description, .next = &parameters,
    };
    di_json_t name = { .key = { "name", 4 }, .type = DI_JSON_STRING,
                       .v.str = t->name, .next = &description };
    di_json_t function = { .key = { "function", 8 }, .type = DI_JSON_OBJECT,
                           .v.list = { &name, 3 } };
    di_json_t type = { .key = { "type", 4 }, .type = DI_JSON_STRING,
                       .v.str = { "function", 8 }, .next = &function };
    di_json_t whole = { .type = DI_JSON_OBJECT, .v.list = { &type, 2 } };
    di_sbuf_t b = { 0 };

    parameters.key = (di_str_t) { "parameters", 10 };
    parameters.next = NULL;

    if (t->description.data == NULL) {
        name.next = &parameters;
        function.v.list.n = 2;
    }

    di_json_add_tree(&b, &whole, DI_JSON_INDENTED);
    di_sbuf_lit(&b, "\n\n");
    put_json(r, &b);
}

static void
put_call(render_t *r, const di_call_t *c)
{
    di_arena_t arena = { 0 };
    di_sbuf_t  b = { 0 };
    di_json_t *root;
    int        rc = DI_EFORMAT;

    di_sbuf_lit(&b, "{\"name\": ");
    di_json_add_plain(&b, c->name);
    di_sbuf_lit(&b, ", \"parameters\": ");

    if (c->arguments.len > 0)
        rc = di_json_read_lax(&arena, c->arguments.data, c->arguments.len,
                              DI_JSON_DEPTH_OFFICIAL, &root, NULL);
    r->no_memory |= rc == DI_ENOMEM;

    if (rc == DI_OK)
        di_json_add_tree(&b, root, DI_JSON_PYTHON);
    else if (c->arguments.len > 0)
        di_json_add_plain(&b, c->arguments);
    else
        di_sbuf_lit(&b, "{}");

    di_sbuf_lit(&b, "}");
    put_json(r, &b);
    di_arena_free(&arena);
}

/* --------------------------------------------------------------- messages */

static bool
is_system(const di_msg_t *m)
{
    return m->role == DI_ROLE_SYSTEM || m->role == DI_ROLE_DEVELOPER;
}

static void
put_dates(render_t *r)
{
    static const char months[][4] = { "Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                      "Jul", "Aug", "Sep", "Oct", "Nov",
                                      "Dec" };
    time_t            now = (time_t) r->conv->now;
    struct tm         tm;
    char              today[64] = "26 Jul 2024";

    if (r->d->clock && now != 0 && gmtime_r(&now, &tm) != NULL)
        snprintf(today, sizeof(today), "%02d %s %d", tm.tm_mday,
                 months[tm.tm_mon], tm.tm_year + 1900);

    di_pieces_put(r->out, "Cutting Knowledge Date: December 2023\n"
                  "Today Date: ");
    di_pieces_put(r->out, today);
    di_pieces_put(r->out, "\n\n");
}

/* The system turn in front; returns the number of messages it used up. */
static size_t
put_front(render_t *r)
{
    const di_msg_t *first = &r->conv->msgs[0];
    bool            given = r->conv->n_msgs > 0 && is_system(first);

    if (!given && !r->d->v31)
        return 0;

    header(r, "system");
    if (r->tools)
        di_pieces_put(r->out, "Environment: ipython\n");
    if (r->d->v31)
        put_dates(r);
    if (given)
        di_pieces_str(r->out, trim(first->content));
    special(r, EOT);
    return given;
}

static void
put_user(render_t *r, const di_msg_t *m)
{
    size_t i;

    header(r, "user");

    if (r->tools) {
        di_pieces_put(r->out, tool_text);
        for (i = 0; i < r->conv->n_tools; i++)
            put_tool(r, r->conv->tools[i]);
        r->tools = false;
    }

    di_pieces_str(r->out, trim(m->content));
    special(r, EOT);
}

static int
put_assistant(render_t *r, const di_msg_t *m, size_t i, di_err_t *err)
{
    if (m->n_calls > 1)
        return di_err_set(err, DI_EINVAL, i, "messages[%zu].tool_calls: this"
                          " model's dialect (llama3) has one call in a turn",
                          i);

    header(r, "assistant");
    if (m->n_calls == 1)
        put_call(r, &m->calls[0]);
    else
        di_pieces_str(r->out, m->prefix ? m->content : trim(m->content));

    if (!m->prefix)
        special(r, EOT);
    return DI_OK;
}

static void
put_result(render_t *r, const di_msg_t *m)
{
    di_sbuf_t b = { 0 };

    header(r, "ipython");
    di_json_add_plain(&b, m->content);
    put_json(r, &b);
    special(r, EOT);
}

static int
put_message(render_t *r, size_t i, di_err_t *err)
{
    const di_msg_t *m = &r->conv->msgs[i];

    switch (m->role) {

    case DI_ROLE_USER:
        put_user(r, m);
        return DI_OK;

    case DI_ROLE_ASSISTANT:
        return put_assistant(r, m, i, err);

    case DI_ROLE_TOOL:
        if (!r->d->v31)
            break;
        put_result(r, m);
        return DI_OK;

    case DI_ROLE_SYSTEM:
    case DI_ROLE_DEVELOPER:
        header(r, "system");
        di_pieces_str(r->out, trim(m->content));
        special(r, EOT);
        return DI_OK;

    default:
        break;
    }

    return di_dialect_no_role(err, "llama3", m->role, i);
}

static int
llama3_render(const di_dialect_t *dialect, const di_conv_t *conv,
              di_pieces_t *pieces, di_err_t *err)
{
    render_t r = {
        .d = (const llama3_t *) dialect, .conv = conv, .out = pieces,
        .tools = conv->n_tools > 0 && conv->choice != DI_CHOICE_NONE,
    };
    size_t   i;
    int      rc = DI_OK;

    special(&r, BOS);

    for (i = put_front(&r); i < conv->n_msgs && rc == DI_OK; i++)
        rc = put_message(&r, i, err);

    if (rc == DI_OK && r.tools)
        rc = di_err_set(err, DI_EINVAL, 0, "tools: this model's dialect"
                        " (llama3) has them in the first message of the"
                        " user's, and there is none");

    if (rc == DI_OK && conv->open_assistant
        && !(i > 0 && conv->msgs[i - 1].prefix))
        header(&r, "assistant");

    return rc == DI_OK && r.no_memory
           ? di_err_set(err, DI_ENOMEM, 0, "out of memory") : rc;
}

/* ------------------------------------------------------------------ output */

/* A turn is one call or no call: what begins with a brace is one. */
static void
llama3_calls(di_ebnf_t *w)
{
    size_t i, n = 0;

    if (w->conv->choice != DI_CHOICE_REQUIRED
        && w->constraint->kind == DI_CONSTRAINT_NONE)
        di_ebnf_put(w, "text ::= \"\\n\"* ([^{\\n] %free)? | calls\n");

    else if (w->conv->choice != DI_CHOICE_REQUIRED)
        di_ebnf_refuse(w, w->constraint->param, "'%s' can't be held where this"
                       " model may also call tools: its calls look like any"
                       " JSON. A 'tool_choice' of none or of a call is"
                       " supported.", w->constraint->param);

    di_ebnf_put(w, "calls ::= ");
    for (i = 0; i < w->conv->n_tools; i++) {
        if (!di_ebnf_callable(w, i))
            continue;
        di_ebnf_put(w, n++ > 0 ? " | " : "");
        di_ebnf_json_call(w, w->conv->tools[i], "parameters");
    }
    di_ebnf_put(w, "\n");
}

/* ------------------------------------------------------------ open, close */

static int
llama3_knows(di_str_t template_text, bool *yes)
{
    static const char *const marks[] = { "<|start_header_id|>",
                                         "<|end_header_id|>",
                                         "<|eot_id|>", NULL };

    *yes = di_dialect_has(template_text, marks);
    return DI_OK;
}

static void
llama3_close(di_dialect_t *dialect)
{
    free(dialect);
}

static int
llama3_open(const di_vocab_t *vocab, di_str_t template_text,
            di_dialect_t **dialect, di_err_t *err)
{
    static const char *const later[] = { "ipython",
                                         "Cutting Knowledge Date", NULL };
    static const char *const clock[] = { "strftime_now", NULL };
    llama3_t                *d = calloc(1, sizeof(*d));
    int                      i, rc = DI_OK;

    if (d == NULL)
        return di_err_set(err, DI_ENOMEM, 0, "out of memory");

    d->base.ops = &di_dialect_llama3;
    d->v31 = template_text.data == NULL || di_dialect_has(template_text,
                                                          later);
    d->clock = di_dialect_has(template_text, clock);
    d->base.caps = DI_CAN_PREFIX | (d->v31 ? DI_CAN_TOOLS : 0);

    for (i = 0; i < N_SPECIAL && rc == DI_OK; i++)
        rc = di_dialect_special(vocab, "llama3", spellings[i], &d->ids[i],
                                err);

    if (rc != DI_OK) {
        free(d);
        return rc;
    }

    *dialect = &d->base;
    return DI_OK;
}

const di_dialect_ops_t di_dialect_llama3 = {
    .name = "llama3",
    .family = DI_FAMILY_PLAIN,
    .knows = llama3_knows,
    .open = llama3_open,
    .close = llama3_close,
    .render = llama3_render,
    .calls = llama3_calls,
};
