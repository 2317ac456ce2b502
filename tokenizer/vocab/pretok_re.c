/*
 * pretok_re.c - cutting text by a vocabulary's own patterns.
 *
 * tokenizer.json has its patterns in Oniguruma's dialect of Ruby's syntax.
 * What is common in such patterns means the same to PCRE2, but for \s, which
 * is Unicode's White_Space there; it is rewritten.  Whatever else may differ
 * (\w, \h, scripts, intersections and classes in classes, anchors, possessive
 * intervals) is refused by name rather than matched a little differently.
 */

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "pretok_re.h"

#define RE_PATTERN_MAX  4096        /* bytes, rewritten                      */

struct di_pretok_re_s {
    pcre2_code *steps[DI_PRETOK_RE_STEPS];
    size_t      n_steps;
};

/* ------------------------------------------------------------- rewriting -- */

typedef struct {
    const char *in;                 /* what is left of the pattern           */
    char        out[RE_PATTERN_MAX];
    size_t      n;                  /* bytes of out                          */
    const char *refused;            /* what isn't taken; NULL: nothing yet   */
} rewrite_t;

static void
rewrite_put(rewrite_t *r, const char *s, size_t len)
{
    if (r->n + len >= sizeof(r->out)) {
        r->refused = "its length";
        return;
    }
    memcpy(r->out + r->n, s, len);
    r->n += len;
}

/* Copy n bytes. */
static void
rewrite_copy(rewrite_t *r, size_t n)
{
    rewrite_put(r, r->in, n);
    r->in += n;
}

/* \p{L} or \p{Lu}: general categories, whose names both have. */
static void
rewrite_property(rewrite_t *r)
{
    size_t n = 3;

    if (r->in[2] != '{' || !isupper((unsigned char) r->in[n])) {
        r->refused = "a property without a category";
        return;
    }
    n++;
    n += islower((unsigned char) r->in[n]) != 0;
    if (r->in[n] != '}') {
        r->refused = "a property that is no category";
        return;
    }
    rewrite_copy(r, n + 1);
}

static void
rewrite_escape(rewrite_t *r)
{
    unsigned char c = (unsigned char) r->in[1];

    if (c == 's' || c == 'S') {
        rewrite_put(r, c == 's' ? "\\p{White_Space}" : "\\P{White_Space}", 15);
        r->in += 2;
    } else if (c == 'p' || c == 'P') {
        rewrite_property(r);
    } else if (c == 'd' || c == 'D' || c == 'r' || c == 'n' || c == 't'
               || ispunct(c)) {
        rewrite_copy(r, 2);
    } else {
        r->refused = "an escape other than \\s \\d \\p \\r \\n \\t";
    }
}

static void
rewrite_class(rewrite_t *r)
{
    rewrite_copy(r, r->in[1] == '^' ? 2 : 1);
    if (*r->in == ']')
        r->refused = "an empty class";
    while (r->refused == NULL && *r->in != ']') {
        if (*r->in == '\0')
            r->refused = "a class without an end";
        else if (*r->in == '[')
            r->refused = "a class in a class";
        else if (r->in[0] == '&' && r->in[1] == '&')
            r->refused = "an intersection of classes";
        else if (*r->in == '\\')
            rewrite_escape(r);
        else
            rewrite_copy(r, 1);
    }
    if (r->refused == NULL)
        rewrite_copy(r, 1);
}

static void
rewrite_group(rewrite_t *r)
{
    static const char *const openings[] = {
        "(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!", "(?i:",
    };

    if (r->in[1] != '?' && r->in[1] != '*') {
        rewrite_copy(r, 1);
        return;
    }
    for (size_t i = 0; i < sizeof(openings) / sizeof(openings[0]); i++) {
        size_t n = strlen(openings[i]);

        if (strncmp(r->in, openings[i], n) == 0) {
            rewrite_copy(r, n);
            return;
        }
    }
    r->refused = "a kind of group";
}

/* {n}, {n,} or {n,m}. */
static void
rewrite_interval(rewrite_t *r)
{
    size_t n = 1;

    while (isdigit((unsigned char) r->in[n]))
        n++;
    if (n > 1 && r->in[n] == ',')
        n++;
    while (n > 2 && isdigit((unsigned char) r->in[n]))
        n++;
    if (n == 1 || r->in[n] != '}' || r->in[n + 1] == '+') {
        r->refused = "an interval";
        return;
    }
    rewrite_copy(r, n + 1);
}

static void
rewrite(rewrite_t *r)
{
    while (r->refused == NULL && *r->in != '\0') {
        switch (*r->in) {
        case '\\':
            rewrite_escape(r);
            break;
        case '[':
            rewrite_class(r);
            break;
        case '(':
            rewrite_group(r);
            break;
        case '{':
            rewrite_interval(r);
            break;
        case '^':
        case '$':
        case '.':
            r->refused = "an anchor or a dot";
            break;
        default:
            rewrite_copy(r, 1);
        }
    }
    r->out[r->n] = '\0';
}

/* --------------------------------------------------------------- opening -- */

static int
re_compile(const char *pattern, const char *at, pcre2_code **code,
           di_err_t *err)
{
    rewrite_t  r = { .in = pattern };
    char       text[80];
    int        fault;
    size_t     offset;

    rewrite(&r);
    if (r.refused != NULL)
        return di_err_set(err, DI_EUNSUPPORTED, 0, "%s: pattern not "
                          "supported: %s", at, r.refused);
    *code = pcre2_compile((PCRE2_SPTR) r.out, r.n,
                          PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF,
                          &fault, &offset, NULL);
    if (*code == NULL) {
        (void) pcre2_get_error_message(fault, (PCRE2_UCHAR *) text,
                                       sizeof(text));
        return di_err_set(err, DI_EFORMAT, 0, "%s: pattern: %s", at, text);
    }
    (void) pcre2_jit_compile(*code, PCRE2_JIT_COMPLETE);
    return DI_OK;
}

int
di_pretok_re_open(const char *const *patterns, size_t n, const char *at,
                  di_pretok_re_t **re, di_err_t *err)
{
    di_pretok_re_t *r = calloc(1, sizeof(*r));
    int             rc = DI_OK;

    if (r == NULL)
        return di_err_set(err, DI_ENOMEM, 0, "no memory for the vocabulary");
    for (size_t i = 0; rc == DI_OK && i < n; i++)
        rc = re_compile(patterns[i], at, &r->steps[r->n_steps++], err);
    if (rc != DI_OK) {
        di_pretok_re_close(r);
        return rc;
    }
    *re = r;
    return DI_OK;
}

void
di_pretok_re_close(di_pretok_re_t *re)
{
    if (re == NULL)
        return;
    for (size_t i = 0; i < re->n_steps; i++)
        pcre2_code_free(re->steps[i]);
    free(re);
}

/* --------------------------------------------------------------- cutting -- */

typedef struct {
    const di_pretok_re_t *re;
    const char           *text;
    pcre2_match_data     *match;
    uint32_t             *ends;
    size_t                n;
    size_t                room;
} re_cut_t;

static int
re_put(re_cut_t *c, size_t end)
{
    uint32_t *grown;

    if (c->n == c->room) {
        c->room = c->room * 2 + 1024;
        grown = realloc(c->ends, c->room * sizeof(*grown));
        if (grown == NULL)
            return DI_ENOMEM;
        c->ends = grown;
    }
    c->ends[c->n++] = (uint32_t) end;
    return DI_OK;
}

/* Match in a piece from `from` on.  A match that the compiled code has no
 * stack for is interpreted. */
static int
re_match(re_cut_t *c, size_t step, const char *piece, size_t len, size_t from)
{
    int rc = pcre2_match(c->re->steps[step], (PCRE2_SPTR) piece, len, from, 0,
                         c->match, NULL);

    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(c->re->steps[step], (PCRE2_SPTR) piece, len, from,
                         PCRE2_NO_JIT, c->match, NULL);
    return rc;
}

/* Cut a piece that the steps before `step` left. */
static int
re_piece(re_cut_t *c, size_t step, size_t start, size_t end)
{
    const char *piece = c->text + start;
    size_t      len = end - start, pos = 0, from = 0;
    int         rc = DI_OK, found;

    if (start == end)
        return DI_OK;
    if (step == c->re->n_steps)
        return re_put(c, end);

    while (rc == DI_OK && from < len) {
        const PCRE2_SIZE *at;
        size_t            first, last;

        found = re_match(c, step, piece, len, from);
        if (found == PCRE2_ERROR_NOMATCH)
            break;
        if (found < 0)
            return found == PCRE2_ERROR_NOMEMORY ? DI_ENOMEM : DI_ELIMIT;
        at = pcre2_get_ovector_pointer(c->match);
        first = at[0];
        last = at[1];
        rc = re_piece(c, step + 1, start + pos, start + first);
        if (rc == DI_OK)
            rc = re_piece(c, step + 1, start + first, start + last);
        pos = last;
        /* Nothing was matched: a cut, and on from the next character. */
        from = last > first ? last : last + 1;
        while (last == first && from < len && (piece[from] & 0xc0) == 0x80)
            from++;
    }
    return rc == DI_OK ? re_piece(c, step + 1, start + pos, end) : rc;
}

int
di_pretok_re_cut(const di_pretok_re_t *re, const char *text, size_t len,
                 uint32_t **ends, size_t *n)
{
    re_cut_t c = { .re = re, .text = text };
    int      rc = DI_ENOMEM;

    c.match = pcre2_match_data_create(1, NULL);
    if (c.match != NULL)
        rc = re_piece(&c, 0, 0, len);
    pcre2_match_data_free(c.match);
    if (rc != DI_OK) {
        free(c.ends);
        return rc;
    }
    *ends = c.ends;
    *n = c.n;
    return DI_OK;
}
