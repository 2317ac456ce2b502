/*
 * regex.c - regular expressions: what is regular in PCRE2 and ECMAScript.
 *
 * A recursive-descent parser that makes expressions.  What changes the set
 * of texts and isn't regular, or depends on how a matcher searches, is
 * refused by its name: back-references, look-around, atomic groups and
 * possessive quantifiers, word boundaries, recursion, verbs.  Groups only
 * group; lazy quantifiers match the same texts as greedy ones.
 *
 * The two dialects differ in what \s, "." and an empty class stand for and in
 * some escapes.  Both are read with Unicode's code points as characters;
 * \d and \w are ASCII in both.
 */

#include <stdio.h>
#include <string.h>

#include "build.h"

#define REPEAT_MAX  65535u      /* PCRE2's                                   */

typedef struct {
    di_gram_ctx_t *c;
    const char    *s, *at, *end;
    const char    *path;        /* of the schema keyword; "": none           */
    bool           ecma;
    bool           caseless;    /* (?i)                                      */
    bool           dotall;      /* (?s)                                      */
    unsigned       depth;       /* open groups                               */
} regex_t;

static di_gram_node_t *parse_alt(regex_t *x);

_Noreturn static void
refuse(regex_t *x, int code, const char *what, const char *text)
{
    char   path[64];
    size_t offset = (size_t) (x->at - x->s);

    (void) snprintf(path, sizeof(path), "offset %zu", offset);
    if (x->path[0] != '\0')
        di_gram_fail(x->c, code, "pattern", x->path,
                     "%s: %s at offset %zu", what, text, offset);
    di_gram_fail(x->c, code, what, path, "%s", text);
}

_Noreturn static void
unsupported(regex_t *x, const char *what)
{
    refuse(x, DI_EUNSUPPORTED, what, "is not supported");
}

_Noreturn static void
malformed(regex_t *x, const char *text)
{
    refuse(x, DI_EFORMAT, "regex", text);
}

static bool
look(const regex_t *x, const char *s)
{
    size_t len = strlen(s);

    return (size_t) (x->end - x->at) >= len && memcmp(x->at, s, len) == 0;
}

static bool
take(regex_t *x, const char *s)
{
    if (!look(x, s))
        return false;
    x->at += strlen(s);
    return true;
}

static uint32_t
character(regex_t *x)
{
    uint32_t cp;
    size_t   n = di_gram_utf8(x->at, (size_t) (x->end - x->at), &cp);

    if (n == 0)
        malformed(x, "malformed UTF-8");
    x->at += n;
    return cp;
}

/* ------------------------------------------------------------- classes -- */

static const di_gram_range_t digit[] = { { '0', '9' } };
static const di_gram_range_t word[] = {
    { '0', '9' }, { 'A', 'Z' }, { '_', '_' }, { 'a', 'z' },
};
static const di_gram_range_t space_pcre[] = { { 9, 13 }, { 32, 32 } };
static const di_gram_range_t space_ecma[] = {
    { 9, 13 }, { 32, 32 }, { 0xa0, 0xa0 }, { 0x1680, 0x1680 },
    { 0x2000, 0x200a }, { 0x2028, 0x2029 }, { 0x202f, 0x202f },
    { 0x205f, 0x205f }, { 0x3000, 0x3000 }, { 0xfeff, 0xfeff },
};
static const di_gram_range_t horizontal[] = {
    { 9, 9 }, { 32, 32 }, { 0xa0, 0xa0 }, { 0x1680, 0x1680 },
    { 0x180e, 0x180e }, { 0x2000, 0x200a }, { 0x202f, 0x202f },
    { 0x205f, 0x205f }, { 0x3000, 0x3000 },
};
static const di_gram_range_t vertical[] = {
    { 10, 13 }, { 0x85, 0x85 }, { 0x2028, 0x2029 },
};
static const di_gram_range_t lf[] = { { 10, 10 } };
static const di_gram_range_t line_ends[] = {
    { 10, 10 }, { 13, 13 }, { 0x2028, 0x2029 },
};

#define SET(a)  ((di_gram_set_t) { a, sizeof(a) / sizeof((a)[0]) })

/* The class of the escape \c; false: it isn't one. */
static bool
escape_class(regex_t *x, char e, di_gram_set_t *set)
{
    switch (e) {
    case 'd': case 'D':
        *set = SET(digit);
        break;
    case 'w': case 'W':
        *set = SET(word);
        break;
    case 's': case 'S':
        *set = x->ecma ? SET(space_ecma) : SET(space_pcre);
        break;
    case 'h': case 'H':
        *set = SET(horizontal);
        break;
    case 'v': case 'V':
        *set = SET(vertical);
        break;
    default:
        return false;
    }
    if (x->ecma && strchr("hHvV", e) != NULL)
        return false;
    if (e >= 'A' && e <= 'Z')
        *set = di_gram_set_not(x->c, *set);
    return true;
}

/* Behind \p or \P.  (?i) leaves properties as they are, as in PCRE2. */
static di_gram_set_t
property(regex_t *x, bool negate)
{
    const char   *name = x->at, *close;
    di_gram_set_t set;
    size_t        len = 1;

    if (x->at < x->end && *x->at == '{') {
        name++;
        close = memchr(name, '}', (size_t) (x->end - name));
        if (close == NULL)
            malformed(x, "a property's name doesn't end");
        len = (size_t) (close - name);
        if (len > 0 && *name == '^') {
            negate = !negate;
            name++;
            len--;
        }
    } else {
        close = name;
    }
    if (name >= x->end || !di_gram_set_property(x->c, name, len, &set))
        unsupported(x, "this Unicode property");
    x->at = close + 1;
    return negate ? di_gram_set_not(x->c, set) : set;
}

/* Up to n digits of a base; the value; *got: how many there were. */
static uint32_t
number(regex_t *x, unsigned base, unsigned n, unsigned *got)
{
    static const char digits[] = "0123456789abcdef";
    const char *d;
    uint32_t    v = 0;

    for (*got = 0; *got < n && x->at < x->end; ++*got, x->at++) {
        d = memchr(digits, *x->at | (*x->at >= 'A' ? 0x20 : 0), base);
        if (d == NULL)
            break;
        v = v * base + (uint32_t) (d - digits);
        if (v > DI_GRAM_CP_MAX)
            malformed(x, "a code point is out of range");
    }
    return v;
}

static uint32_t
braced(regex_t *x, unsigned base)
{
    unsigned got;
    uint32_t v;

    if (!take(x, "{"))
        malformed(x, "a brace is missing");
    v = number(x, base, 8, &got);
    if (got == 0 || !take(x, "}"))
        malformed(x, "a code point is malformed");
    return v;
}

static uint32_t
escape_u(regex_t *x)
{
    unsigned got;
    uint32_t v, low;

    if (!x->ecma)
        unsupported(x, "\\u");
    if (look(x, "{"))
        return braced(x, 16);
    v = number(x, 16, 4, &got);
    if (got != 4)
        malformed(x, "\\u needs four digits");
    if (v >= 0xd800 && v < 0xdc00 && look(x, "\\u")) {
        x->at += 2;
        low = number(x, 16, 4, &got);
        if (got != 4 || low < 0xdc00 || low > 0xdfff)
            malformed(x, "a lone surrogate");
        return 0x10000 + ((v - 0xd800) << 10) + (low - 0xdc00);
    }
    return v;
}

/* The character that an escape stands for; at is behind the backslash. */
static uint32_t
escape_char(regex_t *x, bool in_class)
{
    static const char from[] = "tnrfae", to[] = "\t\n\r\f\a\x1b";
    const char *k;
    unsigned    got;
    uint32_t    v;
    char        e;

    if (x->at == x->end)
        malformed(x, "ends in a backslash");
    e = *x->at;
    if ((uint8_t) e >= 0x80)
        return character(x);
    x->at++;
    if ((k = strchr(from, e)) != NULL && !(x->ecma && (e == 'a' || e == 'e')))
        return (uint8_t) to[k - from];

    switch (e) {
    case 'v':
        return 11;              /* ECMAScript's; PCRE2's is a class          */
    case 'b':
        if (in_class)
            return 8;
        unsupported(x, "word boundary");
    case 'B':
        unsupported(x, "word boundary");
    case 'c':
        if (x->at == x->end || (uint8_t) *x->at < 0x21
            || (uint8_t) *x->at > 0x7e)
            malformed(x, "\\c needs a letter");
        e = *x->at++;
        return (uint32_t) ((e >= 'a' && e <= 'z' ? e - 32 : e) ^ 64);
    case 'x':
        if (look(x, "{") && !x->ecma)
            return braced(x, 16);
        v = number(x, 16, 2, &got);
        if (x->ecma && got != 2)
            malformed(x, "\\x needs two digits");
        return v;
    case 'u':
        return escape_u(x);
    case 'o':
        if (!x->ecma)
            return braced(x, 8);
        break;
    case '0':
        return number(x, 8, 2, &got);
    case 'k': case 'g':
        unsupported(x, "back-reference");
    default:
        break;
    }
    if (e >= '1' && e <= '9') {
        if (!in_class)
            unsupported(x, "back-reference");
        if (e > '7' || x->ecma)
            malformed(x, "an octal escape is malformed");
        x->at--;
        return number(x, 8, 3, &got);
    }
    if ((e >= 'a' && e <= 'z') || (e >= 'A' && e <= 'Z'))
        unsupported(x, "this escape");
    return (uint8_t) e;
}

static const struct {
    const char     *name;
    di_gram_range_t r[4];
    uint32_t        n;
} posix[] = {
    { "alpha",  { { 'A', 'Z' }, { 'a', 'z' } }, 2 },
    { "lower",  { { 'a', 'z' } }, 1 },
    { "upper",  { { 'A', 'Z' } }, 1 },
    { "alnum",  { { '0', '9' }, { 'A', 'Z' }, { 'a', 'z' } }, 3 },
    { "ascii",  { { 0, 127 } }, 1 },
    { "blank",  { { 9, 9 }, { 32, 32 } }, 2 },
    { "cntrl",  { { 0, 31 }, { 127, 127 } }, 2 },
    { "digit",  { { '0', '9' } }, 1 },
    { "graph",  { { 33, 126 } }, 1 },
    { "print",  { { 32, 126 } }, 1 },
    { "punct",  { { 33, 47 }, { 58, 64 }, { 91, 96 }, { 123, 126 } }, 4 },
    { "space",  { { 9, 13 }, { 32, 32 } }, 2 },
    { "word",   { { '0', '9' }, { 'A', 'Z' }, { '_', '_' }, { 'a', 'z' } },
      4 },
    { "xdigit", { { '0', '9' }, { 'A', 'F' }, { 'a', 'f' } }, 3 },
};

#define POSIX_ALPHA  0           /* its place in posix[]                    */

/* [:name:] or [:^name:]; at is on its bracket. */
static bool
posix_class(regex_t *x, di_gram_set_t *set)
{
    const char *name = x->at + 2, *close;
    bool        negate;
    size_t      len;

    if (x->ecma || !(look(x, "[:") || look(x, "[.") || look(x, "[=")))
        return false;
    for (close = name; close + 1 < x->end && *close != ']'; close++) {
        if (close[0] == x->at[1] && close[1] == ']')
            break;
    }
    if (close + 1 >= x->end || close[1] != ']')
        return false;
    if (x->at[1] != ':')
        unsupported(x, "collating element");
    negate = *name == '^';
    name += negate;
    len = (size_t) (close - name);
    for (size_t i = 0; i < sizeof(posix) / sizeof(posix[0]); i++) {
        if (strlen(posix[i].name) == len
            && memcmp(posix[i].name, name, len) == 0) {
            /* ASCII without case: the Kelvin sign is no upper 'k' here. */
            if (x->caseless && (strcmp(posix[i].name, "upper") == 0
                                || strcmp(posix[i].name, "lower") == 0))
                i = POSIX_ALPHA;
            *set = (di_gram_set_t) { posix[i].r, posix[i].n };
            if (negate)
                *set = di_gram_set_not(x->c, *set);
            x->at = close + 2;
            return true;
        }
    }
    malformed(x, "unknown POSIX class");
}

/* One member of a class: a set of its own, or (false) a character. */
static bool
class_member(regex_t *x, di_gram_set_t *set, uint32_t *cp)
{
    char e;

    if (posix_class(x, set))
        return true;
    if (!take(x, "\\")) {
        *cp = character(x);
        return false;
    }
    e = x->at < x->end ? *x->at : '\0';
    if (e == 'p' || e == 'P') {
        x->at++;
        *set = property(x, e == 'P');
        return true;
    }
    if (e != '\0' && escape_class(x, e, set)) {
        x->at++;
        return true;
    }
    if (e == 'Q' || e == 'E' || e == 'N' || e == 'R' || e == 'X')
        unsupported(x, "this escape in a class");
    *cp = escape_char(x, true);
    return false;
}

static di_gram_node_t *
parse_class(regex_t *x)
{
    bool          negate = take(x, "^"), first = !x->ecma;
    di_gram_set_t all = { NULL, 0 }, set;
    uint32_t      lo, hi;

    for (;; first = false) {
        if (x->at == x->end)
            malformed(x, "a class doesn't end");
        if (!first && take(x, "]"))
            break;
        if (class_member(x, &set, &lo)) {
            all = di_gram_set_or(x->c, all, set);
            continue;
        }
        hi = lo;
        if (x->end - x->at > 1 && x->at[0] == '-' && x->at[1] != ']') {
            x->at++;
            if (class_member(x, &set, &hi)) {
                /* "a-\d": the hyphen is one, in both dialects. */
                all = di_gram_set_or(x->c, all, set);
                all = di_gram_set_or(x->c, all, di_gram_set(x->c, '-', '-'));
                hi = lo;
            } else if (hi < lo) {
                malformed(x, "a range in a class is out of order");
            }
        }
        set = di_gram_set(x->c, lo, hi);
        if (x->caseless)
            set = di_gram_set_caseless(x->c, set);
        all = di_gram_set_or(x->c, all, set);
    }
    return di_gram_node_set(x->c, negate ? di_gram_set_not(x->c, all) : all);
}

/* --------------------------------------------------------------- atoms -- */

static di_gram_node_t *
literal(regex_t *x, uint32_t cp)
{
    di_gram_set_t set;

    if (cp >= 0xd800 && cp <= 0xdfff)
        malformed(x, "a lone surrogate");
    set = di_gram_set(x->c, cp, cp);
    return di_gram_node_set(x->c, x->caseless ? di_gram_set_caseless(x->c, set)
                                              : set);
}

static di_gram_node_t *
any_but(regex_t *x, di_gram_set_t set)
{
    return di_gram_node_set(x->c, di_gram_set_not(x->c, set));
}

static di_gram_node_t *
parse_escape(regex_t *x)
{
    di_gram_set_t set;
    char          e = x->at < x->end ? *x->at : '\0';

    if (e == 'p' || e == 'P') {
        x->at++;
        return di_gram_node_set(x->c, property(x, e == 'P'));
    }
    if (e != '\0' && escape_class(x, e, &set)) {
        x->at++;
        return di_gram_node_set(x->c, set);
    }
    if (!x->ecma) {
        if (take(x, "A"))
            return di_gram_node(x->c, DI_GRAM_N_BOS);
        if (take(x, "z") || take(x, "Z"))
            return di_gram_node(x->c, DI_GRAM_N_EOS);
        if (take(x, "N"))
            return any_but(x, SET(lf));
    }
    return literal(x, escape_char(x, false));
}

/* Flags between "(?" and ":" or ")". */
static void
flags(regex_t *x)
{
    bool on = true;

    for (; x->at < x->end && *x->at != ':' && *x->at != ')'; x->at++) {
        switch (*x->at) {
        case '-':
            on = false;
            break;
        case '^':
            x->caseless = x->dotall = false;
            break;
        case 'i':
            x->caseless = on;
            break;
        case 's':
            x->dotall = on;
            break;
        case 'n': case 'J': case 'U':
            break;              /* change what groups capture, how eagerly   */
        default:
            unsupported(x, "this flag or group");
        }
    }
}

static void
group_name(regex_t *x, char close)
{
    while (x->at < x->end && *x->at != close)
        x->at++;
    if (x->at++ == x->end)
        malformed(x, "a group's name doesn't end");
}

/* Behind "(".  NULL: flags, which hold until the group around ends. */
static di_gram_node_t *
parse_group(regex_t *x)
{
    di_gram_node_t *node;
    bool            caseless = x->caseless, dotall = x->dotall;

    if (look(x, "*"))
        unsupported(x, "verb");
    if (take(x, "?")) {
        if (look(x, "=") || look(x, "!") || look(x, "<=") || look(x, "<!"))
            unsupported(x, "look-around");
        if (look(x, ">"))
            unsupported(x, "atomic group");
        if (look(x, "R") || look(x, "&") || look(x, "P>") || look(x, "P=")
            || look(x, "+") || (x->at < x->end && *x->at >= '0'
                                && *x->at <= '9'))
            unsupported(x, "recursion or back-reference");
        if (look(x, "(") || look(x, "|"))
            unsupported(x, "conditional group");
        if (take(x, "#")) {
            group_name(x, ')');
            return NULL;
        }
        if (take(x, "<") || take(x, "P<")) {
            group_name(x, '>');
        } else if (take(x, "'")) {
            group_name(x, '\'');
        } else if (!take(x, ":")) {
            flags(x);
            if (take(x, ")"))
                return NULL;
            if (!take(x, ":"))
                malformed(x, "a group doesn't end");
        }
    }
    if (++x->depth > DI_GRAM_NEST_MAX)
        refuse(x, DI_ELIMIT, "regex", "groups nest too deeply");
    node = parse_alt(x);
    x->depth--;
    if (!take(x, ")"))
        malformed(x, "a parenthesis doesn't close");
    x->caseless = caseless;
    x->dotall = dotall;
    return node;
}

/* ------------------------------------------------------------- repeats -- */

/* "{n}", "{n,}", "{n,m}"; false: the brace is a character. */
static bool
braces(regex_t *x, uint32_t *min, uint32_t *max)
{
    const char *p = x->at + 1;
    uint64_t    v[2] = { 0, DI_GRAM_NONE };
    int         k = 0;

    if (p == x->end || *p < '0' || *p > '9')
        return false;
    for (; p < x->end && *p != '}'; p++) {
        if (*p == ',' && k == 0) {
            k = 1;
            continue;
        }
        if (*p < '0' || *p > '9')
            return false;
        v[k] = v[k] == DI_GRAM_NONE ? 0 : v[k];
        v[k] = v[k] * 10 + (uint64_t) (*p - '0');
        if (v[k] > REPEAT_MAX)
            refuse(x, DI_ELIMIT, "repetition", "is over 65535");
    }
    if (p == x->end)
        return false;
    x->at = p + 1;
    *min = (uint32_t) v[0];
    *max = (uint32_t) (k == 0 ? v[0] : v[1]);
    if (*max < *min)
        malformed(x, "a repetition's bounds are out of order");
    return true;
}

static di_gram_node_t *
repeats(regex_t *x, di_gram_node_t *node)
{
    uint32_t min, max;
    unsigned n = 0;

    while (x->at < x->end) {
        min = 0;
        max = DI_GRAM_NONE;
        if (*x->at == '{') {
            if (!braces(x, &min, &max))
                break;
        } else if (take(x, "+")) {
            min = 1;
        } else if (take(x, "?")) {
            max = 1;
        } else if (!take(x, "*")) {
            break;
        }
        if (node->kind == DI_GRAM_N_BOS || node->kind == DI_GRAM_N_EOS)
            refuse(x, DI_EUNSUPPORTED, "quantifier", "repeats an anchor");
        if (n++ > 0)
            malformed(x, "a quantifier follows another");
        if (look(x, "+"))
            unsupported(x, "possessive quantifier");
        (void) take(x, "?");
        node = di_gram_node_rep(x->c, node, min, max);
    }
    return node;
}

static di_gram_node_t *
parse_atom(regex_t *x)
{
    if (take(x, "("))
        return parse_group(x);
    if (take(x, "["))
        return parse_class(x);
    if (take(x, "."))
        return x->dotall ? di_gram_node_set(x->c, di_gram_set_any())
               : any_but(x, x->ecma ? SET(line_ends) : SET(lf));
    if (take(x, "^"))
        return di_gram_node(x->c, DI_GRAM_N_BOS);
    if (take(x, "$"))
        return di_gram_node(x->c, DI_GRAM_N_EOS);
    if (take(x, "\\"))
        return parse_escape(x);
    if (look(x, "*") || look(x, "+") || look(x, "?"))
        malformed(x, "a quantifier follows nothing");
    return literal(x, character(x));
}

static di_gram_node_t *
parse_alt(regex_t *x)
{
    di_gram_node_t *alt = NULL, *cat = di_gram_node(x->c, DI_GRAM_N_CAT);
    di_gram_node_t *node;

    while (x->at < x->end && *x->at != ')') {
        di_gram_work(x->c, 4);
        if (take(x, "|")) {
            if (alt == NULL)
                alt = di_gram_node(x->c, DI_GRAM_N_ALT);
            di_gram_node_add(alt, cat);
            cat = di_gram_node(x->c, DI_GRAM_N_CAT);
            continue;
        }
        if (*x->at == '{') {
            uint32_t min, max;

            if (braces(x, &min, &max))
                malformed(x, "a quantifier follows nothing");
        }
        node = parse_atom(x);
        if (node != NULL)
            di_gram_node_add(cat, repeats(x, node));
    }
    if (alt == NULL)
        return cat;
    di_gram_node_add(alt, cat);
    return alt;
}

di_gram_node_t *
di_gram_regex(di_gram_ctx_t *c, const char *s, size_t len, bool ecma,
              const char *path)
{
    regex_t         x = {
        .c = c, .s = s, .at = s, .end = s + len, .path = path, .ecma = ecma,
    };
    di_gram_node_t *node = parse_alt(&x), *found;
    bool            cat = node->kind == DI_GRAM_N_CAT && node->first != NULL;

    if (x.at < x.end)
        malformed(&x, "a parenthesis is not open");
    if (!ecma)
        return node;

    /* Found anywhere: any text before and behind, but at an anchor. */
    found = di_gram_node(c, DI_GRAM_N_CAT);
    if (!cat || node->first->kind != DI_GRAM_N_BOS)
        di_gram_node_add(found, di_gram_node_rep(c,
            di_gram_node_set(c, di_gram_set_any()), 0, DI_GRAM_NONE));
    di_gram_node_add(found, node);
    if (!cat || node->last->kind != DI_GRAM_N_EOS)
        di_gram_node_add(found, di_gram_node_rep(c,
            di_gram_node_set(c, di_gram_set_any()), 0, DI_GRAM_NONE));
    return found;
}
