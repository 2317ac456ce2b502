/*
 * script.c - compile a script (script.h) to a list of operations.
 *
 * One pass over the lines.  A table maps a directive's name to its parser,
 * which appends operations or fails; what failed is told to the client as a
 * refusal, so that nobody has to search an engine's log for a typo.
 */

#include <ctype.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "script.h"

/* One directive's line, being read. */
typedef struct {
    script_t         *script;
    di_tok_t         *tok;
    const di_vocab_t *vocab;
    uint32_t          choice;    /* that output goes to                     */
    const char       *p, *end;   /* arguments not read yet                  */
    bool              nomem;
} parser_t;

/* Make room for one more entry of an array. */
static bool
grow(void **array, uint32_t n, uint32_t *cap, size_t size)
{
    void    *p;
    uint32_t want = *cap ? *cap * 2 : 8;

    if (n < *cap)
        return true;

    p = realloc(*array, want * size);
    if (p == NULL)
        return false;

    *array = p;
    *cap = want;
    return true;
}

static bool
add_op(parser_t *ps, script_op_t op)
{
    script_t *s = ps->script;

    if (!grow((void **) &s->ops, s->n_ops, &s->ops_cap, sizeof(op))) {
        ps->nomem = true;
        return false;
    }

    op.choice = ps->choice;
    s->ops[s->n_ops++] = op;
    return true;
}

static bool
add_token(parser_t *ps, int32_t id)
{
    script_t *s = ps->script;

    if (!grow((void **) &s->tokens, s->n_tokens, &s->tokens_cap, sizeof(id))) {
        ps->nomem = true;
        return false;
    }

    s->tokens[s->n_tokens++] = id;
    return true;
}

/* ------------------------------------------------------------- arguments -- */

static bool
at_end(parser_t *ps)
{
    while (ps->p < ps->end && isspace((unsigned char) *ps->p))
        ps->p++;
    return ps->p == ps->end;
}

static bool
word(parser_t *ps, char *buf, size_t size)
{
    size_t n = 0;

    if (at_end(ps))
        return false;

    while (ps->p < ps->end && !isspace((unsigned char) *ps->p)) {
        if (n + 1 >= size)
            return false;
        buf[n++] = *ps->p++;
    }

    buf[n] = '\0';
    return true;
}

static bool
number(parser_t *ps, uint64_t max, uint64_t *v)
{
    char buf[24], *end;

    if (!word(ps, buf, sizeof(buf)) || !isdigit((unsigned char) buf[0]))
        return false;

    *v = strtoull(buf, &end, 10);
    return *end == '\0' && *v <= max;
}

static bool
real(const char *buf, char stop, float *v, const char **end)
{
    char *e;

    *v = strtof(buf, &e);
    *end = e;
    return e != buf && *e == stop;
}

static bool
milliseconds(parser_t *ps, uint64_t *us)
{
    char        buf[24];
    float       ms;
    const char *end;

    if (!word(ps, buf, sizeof(buf)) || !real(buf, '\0', &ms, &end)
        || !(ms >= 0 && ms <= 3600000))
    {
        return false;
    }

    *us = (uint64_t) ((double) ms * 1000);
    return at_end(ps);
}

/* The text after the directive: what follows one space, escapes undone. */
static bool
text(parser_t *ps, char **buf, size_t *len)
{
    char        hex[3] = { 0 };
    size_t      n = 0;
    const char *p = ps->p, *end = ps->end;

    *buf = malloc((size_t) (end - p) + 1);
    if (*buf == NULL) {
        ps->nomem = true;
        return false;
    }

    if (p < end && *p == ' ')
        p++;

    for ( ; p < end; p++) {
        if (*p != '\\' || p + 1 == end) {
            (*buf)[n++] = *p;
            continue;
        }

        switch (*++p) {
        case 'n':  (*buf)[n++] = '\n'; break;
        case 't':  (*buf)[n++] = '\t'; break;
        case 'r':  (*buf)[n++] = '\r'; break;
        case '\\': (*buf)[n++] = '\\'; break;
        case 'x':
            if (end - p < 3 || !isxdigit((unsigned char) p[1])
                || !isxdigit((unsigned char) p[2]))
                goto wrong;
            memcpy(hex, p + 1, 2);
            (*buf)[n++] = (char) strtol(hex, NULL, 16);
            p += 2;
            break;
        default:
            goto wrong;
        }
    }

    *len = n;
    return true;

wrong:
    free(*buf);
    return false;
}

typedef int (*encode_pt)(di_tok_t *tok, const char *text, size_t len,
                         int32_t *ids, size_t cap, size_t *n);

/* Append the tokens of a text; *count gets their number. */
static bool
add_text(parser_t *ps, encode_pt encode, uint32_t *count)
{
    char    *buf;
    size_t   i, n, len;
    int32_t *ids;
    bool     ok = false;

    if (!text(ps, &buf, &len))
        return false;

    ids = malloc((len + 1) * sizeof(*ids));
    if (ids == NULL || encode(ps->tok, buf, len, ids, len, &n) != DI_OK) {
        ps->nomem = true;
        goto done;
    }

    for (i = 0; i < n; i++) {
        if (!add_token(ps, ids[i]))
            goto done;
    }

    *count = (uint32_t) n;
    ok = true;

done:
    free(ids);
    free(buf);
    return ok;
}

/* ------------------------------------------------------------ directives -- */

static bool
say(parser_t *ps, encode_pt encode)
{
    uint32_t n, first = ps->script->n_tokens;

    return add_text(ps, encode, &n)
           && add_op(ps, (script_op_t) { .type = OP_TOKENS, .a = first,
                                         .b = n });
}

static bool
do_say(parser_t *ps)
{
    return say(ps, di_tok_encode);
}

static bool
do_raw(parser_t *ps)
{
    return say(ps, di_tok_encode_raw);
}

static bool
do_repeat(parser_t *ps)
{
    uint32_t n, first = ps->script->n_tokens;
    uint64_t total;

    return number(ps, UINT32_MAX, &total)
           && add_text(ps, di_tok_encode, &n) && n > 0
           && add_op(ps, (script_op_t) { .type = OP_REPEAT, .a = first,
                                         .b = n, .us = total });
}

/* The token of a single byte; -1: the vocabulary has none. */
static int32_t
byte_token(parser_t *ps, unsigned byte)
{
    char    c = (char) byte;
    size_t  n;
    int32_t id;

    return di_tok_encode(ps->tok, &c, 1, &id, 1, &n) == DI_OK && n == 1
           ? id : -1;
}

static bool
do_bytes(parser_t *ps)
{
    char     buf[4], *end;
    int32_t  id;
    unsigned byte;
    uint32_t first = ps->script->n_tokens;

    while (!at_end(ps)) {
        if (!word(ps, buf, sizeof(buf)) || strlen(buf) != 2)
            return false;
        byte = (unsigned) strtoul(buf, &end, 16);
        if (end != buf + 2)
            return false;
        id = byte_token(ps, byte);
        if (id < 0 || !add_token(ps, id))
            return false;
    }

    return add_op(ps, (script_op_t) { .type = OP_TOKENS, .a = first,
                                      .b = ps->script->n_tokens - first });
}

static bool
do_ids(parser_t *ps)
{
    uint64_t id;
    uint32_t first = ps->script->n_tokens;

    while (!at_end(ps)) {
        if (!number(ps, di_vocab_size(ps->vocab) - 1, &id)
            || !add_token(ps, (int32_t) id))
            return false;
    }

    return add_op(ps, (script_op_t) { .type = OP_TOKENS, .a = first,
                                      .b = ps->script->n_tokens - first });
}

static bool
do_per(parser_t *ps)
{
    uint64_t n;

    return number(ps, DI_EV_TOKENS_MAX, &n) && n > 0 && at_end(ps)
           && add_op(ps, (script_op_t) { .type = OP_PER, .a = (uint32_t) n });
}

static bool
do_first(parser_t *ps)
{
    return milliseconds(ps, &ps->script->first_us);
}

static bool
do_every(parser_t *ps)
{
    uint64_t us;

    return milliseconds(ps, &us)
           && add_op(ps, (script_op_t) { .type = OP_EVERY, .us = us });
}

static bool
do_step(parser_t *ps)
{
    uint64_t us;

    return milliseconds(ps, &us)
           && add_op(ps, (script_op_t) { .type = OP_EVERY, .us = us,
                                         .a = 1 });
}

static bool
do_wait(parser_t *ps)
{
    uint64_t us;

    return milliseconds(ps, &us)
           && add_op(ps, (script_op_t) { .type = OP_WAIT, .us = us });
}

static bool
do_choice(parser_t *ps)
{
    char     buf[8];
    uint64_t n;
    parser_t look = *ps;

    if (word(&look, buf, sizeof(buf)) && strcmp(buf, "*") == 0) {
        ps->choice = SCRIPT_ALL_CHOICES;
        return at_end(&look);
    }

    if (!number(ps, DI_GEN_N_MAX - 1, &n) || !at_end(ps))
        return false;

    ps->choice = (uint32_t) n;
    return true;
}

static bool
do_lp(parser_t *ps)
{
    char         buf[48], *end;
    long         id;
    float        p;
    script_t    *s = ps->script;
    const char  *rest;
    script_lp_t  lp = { 0 };

    if (at_end(ps))
        return add_op(ps, (script_op_t) { .type = OP_LOGPROB,
                                          .a = UINT32_MAX });

    if (!word(ps, buf, sizeof(buf)) || !real(buf, '\0', &lp.logprob, &rest))
        return false;

    while (!at_end(ps)) {
        if (lp.n_top == DI_GEN_TOP_LOGPROBS_MAX
            || !word(ps, buf, sizeof(buf)))
            return false;
        id = strtol(buf, &end, 10);
        if (end == buf || *end != ':' || id < 0
            || id >= (long) di_vocab_size(ps->vocab)
            || !real(end + 1, '\0', &p, &rest))
            return false;
        lp.top[lp.n_top++] = (di_top_logprob_t) { (int32_t) id, p };
    }

    if (!grow((void **) &s->lps, s->n_lps, &s->lps_cap, sizeof(lp))) {
        ps->nomem = true;
        return false;
    }

    s->lps[s->n_lps++] = lp;
    return add_op(ps, (script_op_t) { .type = OP_LOGPROB,
                                      .a = s->n_lps - 1 });
}

static bool
do_finish(parser_t *ps)
{
    int         i;
    char        buf[16];
    uint64_t    n = 0;
    bool        told;
    static const char *const names[] = {
        "stop", "stop_id", "length", "cancel", "error",
    };

    if (!word(ps, buf, sizeof(buf)))
        return false;

    told = !at_end(ps);
    if (told && (!number(ps, UINT32_MAX - 1, &n) || !at_end(ps)))
        return false;

    for (i = 0; i < 5; i++) {
        if (strcmp(buf, names[i]) == 0)
            return add_op(ps, (script_op_t) {
                .type = OP_FINISH, .a = (uint32_t) i + DI_FINISH_STOP,
                .b = told ? (uint32_t) n + 1 : 0 });
    }

    return false;
}

static bool
do_noend(parser_t *ps)
{
    return at_end(ps) && add_op(ps, (script_op_t) { .type = OP_NOEND });
}

static bool
do_stall(parser_t *ps)
{
    return at_end(ps) && add_op(ps, (script_op_t) { .type = OP_STALL });
}

static bool
do_die(parser_t *ps)
{
    return at_end(ps) && add_op(ps, (script_op_t) { .type = OP_DIE });
}

static bool
do_reject(parser_t *ps)
{
    int         i;
    char        buf[16];
    size_t      n;
    uint64_t    a = 0, b = 0;
    script_t   *s = ps->script;
    static const char *const names[] = {
        "invalid", "too_long", "queue_full", "draining", "kv", "internal",
    };

    if (!word(ps, buf, sizeof(buf)))
        return false;

    if (!at_end(ps)
        && (!number(ps, UINT32_MAX, &a) || !number(ps, UINT32_MAX, &b)))
        return false;

    for (i = 0; i < 6; i++) {
        if (strcmp(buf, names[i]) != 0)
            continue;

        s->reject = (uint32_t) i + DI_REJECT_INVALID;
        s->reject_a = (uint32_t) a;
        s->reject_b = (uint32_t) b;
        (void) at_end(ps);
        n = (size_t) (ps->end - ps->p);
        if (n >= sizeof(s->reject_text))
            n = sizeof(s->reject_text) - 1;
        memcpy(s->reject_text, ps->p, n);
        return true;
    }

    return false;
}

static bool
do_cached(parser_t *ps)
{
    uint64_t n;

    if (!number(ps, UINT32_MAX, &n) || !at_end(ps))
        return false;

    ps->script->cached = (uint32_t) n;
    return true;
}

static const struct {
    const char *name;
    bool      (*parse)(parser_t *ps);
} directives[] = {
    { "say", do_say },       { "raw", do_raw },
    { "bytes", do_bytes },   { "ids", do_ids },
    { "repeat", do_repeat }, { "per", do_per },       { "first", do_first },
    { "every", do_every },   { "step", do_step },     { "wait", do_wait },
    { "choice", do_choice }, { "lp", do_lp },         { "finish", do_finish },
    { "noend", do_noend },   { "stall", do_stall },   { "die", do_die },
    { "reject", do_reject }, { "cached", do_cached },
};

static bool
directive(parser_t *ps)
{
    size_t i, n;

    for (i = 0; i < sizeof(directives) / sizeof(directives[0]); i++) {
        n = strlen(directives[i].name);
        if ((size_t) (ps->end - ps->p) >= n
            && memcmp(ps->p, directives[i].name, n) == 0
            && (ps->p + n == ps->end || isspace((unsigned char) ps->p[n])))
        {
            ps->p += n;
            return directives[i].parse(ps);
        }
    }

    return false;
}

int
script_parse(script_t *script, di_tok_t *tok, const di_vocab_t *vocab,
             const char *text, size_t len)
{
    const char *line, *end = text + len, *next;
    parser_t    ps = {
        .script = script, .tok = tok, .vocab = vocab,
        .choice = SCRIPT_ALL_CHOICES,
    };

    *script = (script_t) { 0 };

    for (line = text; line < end; line = next + 1) {
        next = memchr(line, '\n', (size_t) (end - line));
        if (next == NULL)
            next = end;

        if (next - line < 2 || line[0] != '@' || line[1] != '@')
            continue;

        ps.p = line + 2;
        ps.end = next > line && next[-1] == '\r' ? next - 1 : next;

        if (!directive(&ps)) {
            if (ps.nomem) {
                script_free(script);
                return DI_ENOMEM;
            }
            script->reject = DI_REJECT_INTERNAL;
            (void) snprintf(script->reject_text, sizeof(script->reject_text),
                            "script: %.*s", (int) (next - line < 19
                                                   ? next - line : 19), line);
            return DI_OK;
        }
    }

    return DI_OK;
}

int
script_echo(script_t *script, const int32_t *tokens, uint32_t n)
{
    *script = (script_t) { 0 };

    script->ops = malloc(sizeof(*script->ops));
    script->tokens = malloc((n ? n : 1) * sizeof(*tokens));
    if (script->ops == NULL || script->tokens == NULL) {
        script_free(script);
        return DI_ENOMEM;
    }

    memcpy(script->tokens, tokens, n * sizeof(*tokens));
    script->n_tokens = script->tokens_cap = n;
    script->ops[0] = (script_op_t) {
        .type = OP_TOKENS, .choice = SCRIPT_ALL_CHOICES, .b = n,
    };
    script->n_ops = script->ops_cap = 1;
    return DI_OK;
}

void
script_free(script_t *script)
{
    free(script->ops);
    free(script->tokens);
    free(script->lps);
    *script = (script_t) { 0 };
}
