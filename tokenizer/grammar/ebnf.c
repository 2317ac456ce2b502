/*
 * ebnf.c - grammars of rules, as llama.cpp and XGrammar write them.
 *
 *     root   ::= "[" (number ("," number)*)? "]"   # a comment
 *     number ::= [0-9]{1,4} | "-" number
 *
 * Rules in any order, the text is a "root".  A rule ends where the next one's
 * name and "::=" begin, so it may be broken over lines anywhere.  A rule that
 * begins with itself, as in `sum ::= sum "+" term | term`, is rewritten to a
 * repetition; where it does so by way of other rules it is refused.
 */

#include <stdio.h>
#include <string.h>

#include "build.h"

#define REPEAT_MAX  65535u

typedef struct {
    di_gram_ctx_t *c;
    const char    *s, *at, *end;
    unsigned       depth;       /* open parentheses                          */
    di_gram_node_t **bodies;    /* [c->n_rules] NULL: not defined            */
    uint32_t       bodies_cap;
    uint32_t      *buckets;     /* [BUCKETS] rules by name                   */
    uint32_t      *next;        /* [c->n_rules] of the same bucket           */
    uint32_t       next_cap;
} ebnf_t;

#define BUCKETS  1024u

_Noreturn static void
refuse(ebnf_t *x, int code, const char *what, const char *text)
{
    char path[64];

    (void) snprintf(path, sizeof(path), "offset %zu",
                    (size_t) (x->at - x->s));
    di_gram_fail(x->c, code, what, path, "%s", text);
}

_Noreturn static void
malformed(ebnf_t *x, const char *text)
{
    refuse(x, DI_EFORMAT, "ebnf", text);
}

static bool
name_char(char ch)
{
    return (ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z')
           || (ch >= '0' && ch <= '9') || ch == '_' || ch == '-'
           || ch == '.';
}

static void
skip(ebnf_t *x)
{
    while (x->at < x->end) {
        if (*x->at == '#') {
            while (x->at < x->end && *x->at != '\n')
                x->at++;
        } else if (strchr(" \t\r\n", *x->at) != NULL && *x->at != '\0') {
            x->at++;
        } else {
            break;
        }
    }
}

/* The rule of a name, new where it is not known. */
static uint32_t
rule_named(ebnf_t *x, const char *name, size_t len)
{
    di_gram_ctx_t *c = x->c;
    uint32_t       h = 0, r;
    char          *own;

    for (size_t i = 0; i < len; i++)
        h = h * 31 + (uint8_t) name[i];
    h %= BUCKETS;
    for (r = x->buckets[h]; r != DI_GRAM_NONE; r = x->next[r]) {
        di_gram_work(c, 1);
        if (strlen(c->rules[r].name) == len
            && memcmp(c->rules[r].name, name, len) == 0)
            return r;
    }
    own = di_gram_alloc(c, len + 1, 1);
    memcpy(own, name, len);
    x->bodies = di_gram_grow(c, x->bodies, c->n_rules, &x->bodies_cap,
                             sizeof(*x->bodies));
    x->next = di_gram_grow(c, x->next, c->n_rules, &x->next_cap,
                           sizeof(*x->next));
    r = di_gram_rule_new(c, own);
    x->bodies[r] = NULL;
    x->next[r] = x->buckets[h];
    x->buckets[h] = r;
    return r;
}

/* A name at the place; its length, 0: none.  *defines: "::=" follows. */
static size_t
name_here(const ebnf_t *x, bool *defines)
{
    const char *p = x->at;
    size_t      len;

    while (p < x->end && name_char(*p))
        p++;
    len = (size_t) (p - x->at);
    while (p < x->end && (*p == ' ' || *p == '\t'))
        p++;
    *defines = len > 0 && x->end - p >= 3 && memcmp(p, "::=", 3) == 0;
    return len;
}

/* --------------------------------------------------------------- atoms -- */

static uint32_t
hex(ebnf_t *x, unsigned n)
{
    static const char digits[] = "0123456789abcdef";
    uint32_t    v = 0;
    const char *d;

    while (n-- > 0) {
        if (x->at == x->end)
            malformed(x, "an escape doesn't end");
        d = memchr(digits, *x->at | (*x->at >= 'A' ? 0x20 : 0), 16);
        if (d == NULL)
            malformed(x, "an escape needs more hexadecimal digits");
        v = v << 4 | (uint32_t) (d - digits);
        x->at++;
    }
    if (v > DI_GRAM_CP_MAX || (v >= 0xd800 && v <= 0xdfff))
        malformed(x, "an escape is no character");
    return v;
}

/* A character of a literal or a class, which may be escaped. */
static uint32_t
character(ebnf_t *x)
{
    static const char from[] = "nrt\\\"'[]^-/", to[] = "\n\r\t\\\"'[]^-/";
    const char *k;
    uint32_t    cp;
    size_t      n;

    if (x->at < x->end && *x->at == '\\') {
        if (++x->at == x->end)
            malformed(x, "ends in a backslash");
        k = *x->at != '\0' ? strchr(from, *x->at) : NULL;
        switch (*x->at++) {
        case 'x':
            return hex(x, 2);
        case 'u':
            return hex(x, 4);
        case 'U':
            return hex(x, 8);
        default:
            if (k == NULL)
                malformed(x, "an unknown escape");
            return (uint8_t) to[k - from];
        }
    }
    n = di_gram_utf8(x->at, (size_t) (x->end - x->at), &cp);
    if (n == 0)
        malformed(x, "ends too early, or is not UTF-8");
    x->at += n;
    return cp;
}

static di_gram_node_t *
literal(ebnf_t *x)
{
    di_gram_node_t *cat = di_gram_node(x->c, DI_GRAM_N_CAT);
    char            quote = *x->at++;
    uint32_t        cp;

    while (x->at < x->end && *x->at != quote) {
        cp = character(x);
        di_gram_node_add(cat, di_gram_node_set(x->c,
                                               di_gram_set(x->c, cp, cp)));
    }
    if (x->at++ == x->end)
        malformed(x, "a literal doesn't end");
    return cat;
}

static di_gram_node_t *
class(ebnf_t *x)
{
    di_gram_set_t all = { NULL, 0 };
    bool          negate;
    uint32_t      lo, hi;

    x->at++;
    negate = x->at < x->end && *x->at == '^';
    x->at += negate;
    while (x->at < x->end && *x->at != ']') {
        lo = hi = character(x);
        if (x->end - x->at > 1 && x->at[0] == '-' && x->at[1] != ']') {
            x->at++;
            hi = character(x);
            if (hi < lo)
                malformed(x, "a range is out of order");
        }
        all = di_gram_set_or(x->c, all, di_gram_set(x->c, lo, hi));
    }
    if (x->at++ == x->end)
        malformed(x, "a class doesn't end");
    return di_gram_node_set(x->c, negate ? di_gram_set_not(x->c, all) : all);
}

static di_gram_node_t *parse_alt(ebnf_t *x);

static di_gram_node_t *
parse_atom(ebnf_t *x)
{
    di_gram_node_t *node;
    bool            defines;
    size_t          len;

    if (*x->at == '"' || *x->at == '\'')
        return literal(x);
    if (*x->at == '[')
        return class(x);
    if (*x->at == '.') {
        x->at++;
        return di_gram_node_set(x->c, di_gram_set_any());
    }
    if (*x->at == '(') {
        x->at++;
        skip(x);
        if (x->at < x->end && (*x->at == '=' || *x->at == '!'))
            refuse(x, DI_EUNSUPPORTED, "look-ahead", "is not supported");
        if (++x->depth > DI_GRAM_NEST_MAX)
            refuse(x, DI_ELIMIT, "ebnf", "parentheses nest too deeply");
        node = parse_alt(x);
        x->depth--;
        if (x->at == x->end || *x->at++ != ')')
            malformed(x, "a parenthesis doesn't close");
        return node;
    }
    len = name_here(x, &defines);
    if (len == 0)
        malformed(x, "an unexpected character");
    node = di_gram_node(x->c, DI_GRAM_N_CALL);
    node->rule = rule_named(x, x->at, len);
    x->at += len;
    return node;
}

/* ------------------------------------------------------------- repeats -- */

static uint32_t
count(ebnf_t *x)
{
    uint32_t v = 0;

    skip(x);
    if (x->at == x->end || *x->at < '0' || *x->at > '9')
        malformed(x, "a repetition needs a number");
    for (; x->at < x->end && *x->at >= '0' && *x->at <= '9'; x->at++) {
        v = v * 10 + (uint32_t) (*x->at - '0');
        if (v > REPEAT_MAX)
            refuse(x, DI_ELIMIT, "repetition", "is over 65535");
    }
    skip(x);
    return v;
}

static di_gram_node_t *
braces(ebnf_t *x, di_gram_node_t *node)
{
    uint32_t min, max;

    x->at++;
    min = max = count(x);
    if (x->at < x->end && *x->at == ',') {
        x->at++;
        skip(x);
        max = x->at < x->end && *x->at == '}' ? DI_GRAM_NONE : count(x);
    }
    if (x->at == x->end || *x->at++ != '}')
        malformed(x, "a repetition doesn't end");
    if (max < min)
        malformed(x, "a repetition's bounds are out of order");
    return di_gram_node_rep(x->c, node, min, max);
}

static di_gram_node_t *
repeats(ebnf_t *x, di_gram_node_t *node)
{
    for (; x->at < x->end; skip(x)) {
        if (*x->at == '{') {
            node = braces(x, node);
            continue;
        }
        if (*x->at == '*')
            node = di_gram_node_rep(x->c, node, 0, DI_GRAM_NONE);
        else if (*x->at == '+')
            node = di_gram_node_rep(x->c, node, 1, DI_GRAM_NONE);
        else if (*x->at == '?')
            node = di_gram_node_rep(x->c, node, 0, 1);
        else
            break;
        x->at++;
    }
    return node;
}

static di_gram_node_t *
parse_alt(ebnf_t *x)
{
    di_gram_node_t *alt = di_gram_node(x->c, DI_GRAM_N_ALT);
    di_gram_node_t *cat = di_gram_node(x->c, DI_GRAM_N_CAT), *node;
    bool            defines;

    for (skip(x); x->at < x->end && *x->at != ')'; skip(x)) {
        di_gram_work(x->c, 4);
        if (*x->at == '|') {
            x->at++;
            di_gram_node_add(alt, cat);
            cat = di_gram_node(x->c, DI_GRAM_N_CAT);
            continue;
        }
        (void) name_here(x, &defines);
        if (defines)
            break;
        node = parse_atom(x);
        skip(x);
        di_gram_node_add(cat, repeats(x, node));
    }
    di_gram_node_add(alt, cat);
    return alt;
}

/* --------------------------------------------------------------- rules -- */

/* A ::= A x | y  becomes  A ::= y (x)*. */
static di_gram_node_t *
without_left_recursion(ebnf_t *x, uint32_t rule, di_gram_node_t *body)
{
    di_gram_ctx_t  *c = x->c;
    di_gram_node_t *heads = di_gram_node(c, DI_GRAM_N_ALT);
    di_gram_node_t *tails = di_gram_node(c, DI_GRAM_N_ALT);
    di_gram_node_t *cat, *next, *both;

    for (cat = body->first; cat != NULL; cat = next) {
        next = cat->next;
        cat->next = NULL;
        if (cat->first != NULL && cat->first->kind == DI_GRAM_N_CALL
            && cat->first->rule == rule) {
            cat->first = cat->first->next;
            di_gram_node_add(tails, cat);
        } else {
            di_gram_node_add(heads, cat);
        }
    }
    if (tails->first == NULL)
        return heads;
    both = di_gram_node(c, DI_GRAM_N_CAT);
    di_gram_node_add(both, heads);
    di_gram_node_add(both, di_gram_node_rep(c, tails, 0, DI_GRAM_NONE));
    return both;
}

static void
parse_rule(ebnf_t *x)
{
    bool     defines;
    size_t   len = name_here(x, &defines);
    uint32_t rule;

    if (!defines)
        malformed(x, "a rule must begin with its name and ::=");
    rule = rule_named(x, x->at, len);
    if (x->bodies[rule] != NULL)
        malformed(x, "a rule is defined twice");
    x->at += len;
    while (*x->at != '=')
        x->at++;
    x->at++;
    x->bodies[rule] = parse_alt(x);
    if (x->at < x->end && *x->at == ')')
        malformed(x, "a parenthesis is not open");
}

void
di_gram_ebnf(di_gram_ctx_t *c, const char *s, size_t len)
{
    ebnf_t x = { .c = c, .s = s, .at = s, .end = s + len };

    x.buckets = di_gram_alloc(c, BUCKETS, sizeof(uint32_t));
    memset(x.buckets, 0xff, BUCKETS * sizeof(uint32_t));
    c->root = rule_named(&x, "root", 4);
    for (skip(&x); x.at < x.end; skip(&x))
        parse_rule(&x);

    for (uint32_t r = 0; r < c->n_rules; r++) {
        if (x.bodies[r] == NULL)
            di_gram_fail(c, DI_EFORMAT, "rule", c->rules[r].name,
                         "is not defined");
        c->rules[r].dfa = di_gram_node_dfa(c,
            without_left_recursion(&x, r, x.bodies[r]));
    }
}
