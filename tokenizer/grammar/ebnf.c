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
 *
 * In a grammar that the codec writes, terminals of output.c are known, too.
 * Where such a rule may be any text, what follows it could begin at every
 * byte, and each token would be looked at as both.  So it isn't called but
 * copied to where its name is, and the automaton decides.
 */

#include <stdio.h>
#include <string.h>

#include "build.h"

#define REPEAT_MAX  65535u

typedef struct {
    uint32_t        rule;
    di_gram_node_t *body;       /* NULL: not defined                         */
    uint32_t        next;       /* name of the same bucket                   */
    bool            free;       /* it may be any text somewhere              */
    uint8_t         depth;      /* of copies, this one too; 0: not looked at,
                                   COPYING: on the way                       */
} name_t;

typedef struct {
    di_gram_ctx_t *c;
    const char    *s, *at, *end;
    bool           codec;
    unsigned       depth;       /* open parentheses; then levels of copying  */
    name_t        *names;       /* [n_names]                                 */
    uint32_t       n_names, names_cap;
    uint32_t      *buckets;     /* [BUCKETS] names                           */
    bool           free;        /* the rule at hand has free text            */
} ebnf_t;

#define BUCKETS     1024u
#define COPIES_MAX  16u
#define COPYING     255u
#define LEVELS_MAX  4000u       /* of nodes in rules in rules                */

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

/* A name's number, new where it is not known. */
static uint32_t
find_name(ebnf_t *x, const char *name, size_t len)
{
    di_gram_ctx_t *c = x->c;
    uint32_t       h = 0, r;
    char          *own;

    for (size_t i = 0; i < len; i++)
        h = h * 31 + (uint8_t) name[i];
    h %= BUCKETS;
    for (r = x->buckets[h]; r != DI_GRAM_NONE; r = x->names[r].next) {
        const char *known = c->rules[x->names[r].rule].name;

        di_gram_work(c, 1);
        if (strlen(known) == len && memcmp(known, name, len) == 0)
            return r;
    }
    own = di_gram_alloc(c, len + 1, 1);
    memcpy(own, name, len);
    x->names = di_gram_grow(c, x->names, x->n_names, &x->names_cap,
                            sizeof(*x->names));
    x->names[x->n_names] = (name_t) {
        .rule = di_gram_rule_new(c, own), .next = x->buckets[h],
    };
    x->buckets[h] = x->n_names;
    return x->n_names++;
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

/* What only the codec may write. */
static di_gram_node_t *
terminal(ebnf_t *x)
{
    di_gram_node_t *node;
    char            path[64];
    size_t          used;
    bool            free;

    (void) snprintf(path, sizeof(path), "offset %zu",
                    (size_t) (x->at - x->s));
    node = di_gram_output(x->c, x->at, (size_t) (x->end - x->at), path,
                          &used, &free);
    x->at += used;
    x->free = x->free || free;
    return node;
}

static di_gram_node_t *parse_alt(ebnf_t *x);

static di_gram_node_t *
parse_atom(ebnf_t *x)
{
    di_gram_node_t *node;
    bool            defines;
    size_t          len;
    uint32_t        n;

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
    if (x->codec && (*x->at == '<' || *x->at == '%'))
        return terminal(x);
    len = name_here(x, &defines);
    if (len == 0)
        malformed(x, "an unexpected character");
    node = di_gram_node(x->c, DI_GRAM_N_CALL);
    n = find_name(x, x->at, len);
    node->rule = x->names[n].rule;
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
    di_gram_node_t *body;
    bool            defines;
    size_t          len = name_here(x, &defines);
    uint32_t        n;

    if (!defines)
        malformed(x, "a rule must begin with its name and ::=");
    n = find_name(x, x->at, len);
    if (x->names[n].body != NULL)
        malformed(x, "a rule is defined twice");
    x->at += len;
    while (*x->at != '=')
        x->at++;
    x->at++;
    x->free = false;
    body = parse_alt(x);
    if (x->at < x->end && *x->at == ')')
        malformed(x, "a parenthesis is not open");
    x->names[n].body = without_left_recursion(x, x->names[n].rule, body);
    x->names[n].free = x->free;
}

/* -------------------------------------------------------------- copies -- */

static name_t *
name_of(ebnf_t *x, uint32_t rule)
{
    for (uint32_t i = 0; i < x->n_names; i++) {
        if (x->names[i].rule == rule)
            return &x->names[i];
    }
    return NULL;                /* a part's                                  */
}

static void copy_into(ebnf_t *x, name_t *name);

/* Calls in a node of rules that may be any text become the rules' bodies. */
static unsigned
copy_calls(ebnf_t *x, di_gram_node_t *node)
{
    unsigned depth = 0, d;
    name_t  *callee;

    if (++x->depth > LEVELS_MAX)
        di_gram_fail(x->c, DI_ELIMIT, "ebnf", "", "rules nest too deeply");
    for (di_gram_node_t *k = node->first; k != NULL; k = k->next) {
        d = copy_calls(x, k);
        depth = d > depth ? d : depth;
    }
    callee = node->kind == DI_GRAM_N_CALL ? name_of(x, node->rule) : NULL;
    if (callee != NULL) {
        di_gram_work(x->c, x->n_names);
        copy_into(x, callee);
    }
    x->depth--;
    if (callee == NULL || !callee->free || callee->depth == COPYING)
        return depth;
    node->kind = DI_GRAM_N_CAT;
    node->first = node->last = callee->body;
    return callee->depth;
}

/* The same for a rule as a whole, once; it is free if a copy is. */
static void
copy_into(ebnf_t *x, name_t *name)
{
    unsigned depth;

    if (name->depth != 0)
        return;
    name->depth = COPYING;
    depth = copy_calls(x, name->body);
    if (depth > COPIES_MAX)
        di_gram_fail(x->c, DI_ELIMIT, "rule", x->c->rules[name->rule].name,
                     "rules of free text nest too deeply");
    name->depth = (uint8_t) (depth + 1);
    name->free = name->free || depth > 0;
}

uint32_t
di_gram_ebnf(di_gram_ctx_t *c, const char *s, size_t len, bool codec)
{
    ebnf_t   x = { .c = c, .s = s, .at = s, .end = s + len, .codec = codec };
    uint32_t n;

    x.buckets = di_gram_alloc(c, BUCKETS, sizeof(uint32_t));
    memset(x.buckets, 0xff, BUCKETS * sizeof(uint32_t));
    n = find_name(&x, "root", 4);
    for (skip(&x); x.at < x.end; skip(&x))
        parse_rule(&x);

    for (uint32_t i = 0; i < x.n_names; i++) {
        if (x.names[i].body == NULL)
            di_gram_fail(c, DI_EFORMAT, "rule",
                         c->rules[x.names[i].rule].name, "is not defined");
    }
    for (uint32_t i = 0; codec && i < x.n_names; i++)
        copy_into(&x, &x.names[i]);
    for (uint32_t i = 0; i < x.n_names; i++)
        c->rules[x.names[i].rule].dfa = di_gram_node_dfa(c, x.names[i].body);
    return x.names[n].rule;
}
