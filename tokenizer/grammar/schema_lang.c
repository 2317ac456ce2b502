/*
 * schema_lang.c - the sets of texts that schema keywords speak of.
 *
 * Numbers are compared as decimal texts, exactly, whatever their length: a
 * bound is spelled out in digits and an expression says which texts are
 * smaller, equal or greater.  A number with a constraint is written without
 * an exponent, and an integer with at most ".0" behind it: fewer spellings,
 * the same values.
 */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "schema.h"

typedef struct {
    bool negative;
    char whole[400];        /* digits without leading zeros; "0"             */
    char part[400];         /* digits behind the point, no trailing zeros    */
} decimal_t;

static di_gram_node_t *
re(di_gram_ctx_t *c, const char *s)
{
    return di_gram_regex(c, s, strlen(s), false, "");
}

static const di_gram_dfa_t *
re_dfa(di_gram_ctx_t *c, const char *s)
{
    return di_gram_node_dfa(c, re(c, s));
}

/* ------------------------------------------------------------- numbers -- */

/* The shortest digits that read back as the number. */
static void
spell(double v, char *s, size_t size)
{
    for (int digits = 15; digits <= 17; digits++) {
        (void) snprintf(s, size, "%.*e", digits - 1, fabs(v));
        if (strtod(s, NULL) == fabs(v))
            return;
    }
}

/* Digits times 10^exponent as whole and part. */
static void
place_point(decimal_t *d, const char *digits, int exponent)
{
    int    n = (int) strlen(digits), point = n + exponent;
    size_t w = 0, p = 0;

    for (int i = 0; i < (point > n ? point : n); i++) {
        char ch = i < n ? digits[i] : '0';

        if (i < point && (w > 0 || ch != '0'))
            d->whole[w++] = ch;
        if (i >= point)
            d->part[p++] = ch;
    }
    if (point < 0) {            /* zeros before the first digit              */
        memmove(d->part - point, d->part, p);
        memset(d->part, '0', (size_t) -point);
        p += (size_t) -point;
    }
    while (p > 0 && d->part[p - 1] == '0')
        p--;
    if (w == 0)
        d->whole[w++] = '0';
    d->whole[w] = '\0';
    d->part[p] = '\0';
}

static void
decimal(di_gram_ctx_t *c, const json_t *v, decimal_t *d, const char *keyword,
        const char *path)
{
    char   s[40], digits[40];
    char  *e;
    size_t n = 0;

    if (json_is_integer(v)) {
        json_int_t i = json_integer_value(v);

        d->negative = i < 0;
        (void) snprintf(digits, sizeof(digits), "%llu", i < 0
                        ? 0 - (unsigned long long) i
                        : (unsigned long long) i);
        place_point(d, digits, 0);
        return;
    }
    if (!json_is_real(v))
        di_gram_fail(c, DI_EFORMAT, keyword, path, "must be a number");
    d->negative = json_real_value(v) < 0;
    spell(json_real_value(v), s, sizeof(s));
    e = strchr(s, 'e');
    for (const char *p = s; p < e; p++) {
        if (*p != '.')
            digits[n++] = *p;
    }
    digits[n] = '\0';
    if (abs(atoi(e + 1)) > 320)
        di_gram_fail(c, DI_EUNSUPPORTED, keyword, path, "is out of range");
    place_point(d, digits, atoi(e + 1) - (int) n + 1);
}

static void
add_digit(di_gram_ctx_t *c, di_gram_node_t *cat, int lo, int hi)
{
    di_gram_node_add(cat, di_gram_node_set(c, di_gram_set(c,
        (uint32_t) ('0' + lo), (uint32_t) ('0' + hi))));
}

/* The first n digits of s as an alternative of alt, for more to follow. */
static di_gram_node_t *
prefix(di_gram_ctx_t *c, di_gram_node_t *alt, const char *s, size_t n)
{
    di_gram_node_t *cat = di_gram_node_text(c, s, n);

    di_gram_node_add(alt, cat);
    return cat;
}

/* Wholes of as many digits, smaller or greater from one digit on. */
static void
same_length(di_gram_ctx_t *c, di_gram_node_t *alt, const char *whole,
            bool greater)
{
    size_t m = strlen(whole);

    for (size_t i = 0; i < m; i++) {
        int digit = whole[i] - '0';
        int lo = greater ? digit + 1 : i == 0 && m > 1, hi = greater
                                                             ? 9 : digit - 1;
        di_gram_node_t *cat;

        if (lo > hi)
            continue;
        cat = prefix(c, alt, whole, i);
        add_digit(c, cat, lo, hi);
        di_gram_node_add(cat, di_gram_node_rep(c, re(c, "[0-9]"),
                                               (uint32_t) (m - i - 1),
                                               (uint32_t) (m - i - 1)));
        di_gram_node_add(cat, re(c, "(\\.[0-9]+)?"));
    }
}

/* What may follow the whole where that is the same: the parts decide. */
static void
compare_parts(di_gram_ctx_t *c, di_gram_node_t *alt, const char *part,
              size_t k, di_gram_cmp_t cmp)
{
    bool            greater = cmp == DI_GRAM_GT;
    di_gram_node_t *cat;

    for (size_t i = 0; i < k; i++) {
        int digit = part[i] - '0';
        int lo = greater ? digit + 1 : 0, hi = greater ? 9 : digit - 1;

        if (lo <= hi) {
            cat = prefix(c, alt, ".", 1);
            di_gram_node_add(cat, di_gram_node_text(c, part, i));
            add_digit(c, cat, lo, hi);
            di_gram_node_add(cat, re(c, "[0-9]*"));
        }
        if (!greater && i > 0) {                /* cut short: smaller        */
            cat = prefix(c, alt, ".", 1);
            di_gram_node_add(cat, di_gram_node_text(c, part, i));
        }
    }
    if (greater) {
        cat = prefix(c, alt, ".", 1);
        di_gram_node_add(cat, di_gram_node_text(c, part, k));
        di_gram_node_add(cat, re(c, "[0-9]*[1-9][0-9]*"));
    } else if (k > 0) {
        di_gram_node_add(alt, di_gram_node(c, DI_GRAM_N_EMPTY));
    }
}

/* Texts of unsigned numbers less than, equal to or greater than d. */
static di_gram_node_t *
magnitude(di_gram_ctx_t *c, const decimal_t *d, di_gram_cmp_t cmp)
{
    di_gram_node_t *alt = di_gram_node(c, DI_GRAM_N_ALT), *cat, *parts;
    uint32_t        m = (uint32_t) strlen(d->whole);
    size_t          k = strlen(d->part);

    if (cmp == DI_GRAM_EQ) {
        cat = prefix(c, alt, d->whole, m);
        if (k > 0) {
            di_gram_node_add(cat, re(c, "\\."));
            di_gram_node_add(cat, di_gram_node_text(c, d->part, k));
            di_gram_node_add(cat, re(c, "0*"));
        } else {
            di_gram_node_add(cat, re(c, "(\\.0+)?"));
        }
        return alt;
    }

    same_length(c, alt, d->whole, cmp == DI_GRAM_GT);
    if (cmp == DI_GRAM_GT) {                    /* more digits               */
        cat = di_gram_node(c, DI_GRAM_N_CAT);
        di_gram_node_add(cat, re(c, "[1-9]"));
        di_gram_node_add(cat, di_gram_node_rep(c, re(c, "[0-9]"), m,
                                               DI_GRAM_NONE));
        di_gram_node_add(cat, re(c, "(\\.[0-9]+)?"));
        di_gram_node_add(alt, cat);
    } else if (m > 1) {                         /* fewer                     */
        cat = di_gram_node(c, DI_GRAM_N_CAT);
        di_gram_node_add(cat, re(c, "[1-9]"));
        di_gram_node_add(cat, di_gram_node_rep(c, re(c, "[0-9]"), 0, m - 2));
        di_gram_node_add(cat, re(c, "(\\.[0-9]+)?"));
        di_gram_node_add(alt, cat);
        di_gram_node_add(alt, re(c, "0(\\.[0-9]+)?"));
    }

    /* The same whole: the parts decide. */
    parts = di_gram_node(c, DI_GRAM_N_ALT);
    cat = prefix(c, alt, d->whole, m);
    di_gram_node_add(cat, parts);
    compare_parts(c, parts, d->part, k, cmp);
    return alt;
}

static di_gram_node_t *
minus(di_gram_ctx_t *c, di_gram_node_t *node)
{
    di_gram_node_t *cat = di_gram_node(c, DI_GRAM_N_CAT);

    di_gram_node_add(cat, re(c, "-"));
    di_gram_node_add(cat, node);
    return cat;
}

#define UNSIGNED  "(0|[1-9][0-9]*)(\\.[0-9]+)?"

/* Signed numbers in a relation to d, as alternatives of alt. */
static void
compare(di_gram_ctx_t *c, di_gram_node_t *alt, const decimal_t *d,
        di_gram_cmp_t cmp)
{
    bool zero = strcmp(d->whole, "0") == 0 && d->part[0] == '\0';
    bool negative = d->negative && !zero;

    switch (cmp) {
    case DI_GRAM_EQ:
        if (!negative)
            di_gram_node_add(alt, magnitude(c, d, DI_GRAM_EQ));
        if (negative || zero)
            di_gram_node_add(alt, minus(c, magnitude(c, d, DI_GRAM_EQ)));
        break;
    case DI_GRAM_GT:
        di_gram_node_add(alt, negative ? re(c, UNSIGNED)
                                       : magnitude(c, d, DI_GRAM_GT));
        if (negative)
            di_gram_node_add(alt, minus(c, magnitude(c, d, DI_GRAM_LT)));
        break;
    case DI_GRAM_LT:
        if (!negative && !zero) {
            di_gram_node_add(alt, minus(c, re(c, UNSIGNED)));
            di_gram_node_add(alt, magnitude(c, d, DI_GRAM_LT));
        } else {
            di_gram_node_add(alt, minus(c, magnitude(c, d, DI_GRAM_GT)));
        }
        break;
    }
}

const di_gram_dfa_t *
di_gram_lang_number(di_gram_ctx_t *c, const json_t *v, di_gram_cmp_t cmp,
                    bool or_equal, const char *keyword, const char *path)
{
    di_gram_node_t *alt = di_gram_node(c, DI_GRAM_N_ALT);
    decimal_t       d = { 0 };

    decimal(c, v, &d, keyword, path);
    compare(c, alt, &d, cmp);
    if (or_equal)
        compare(c, alt, &d, DI_GRAM_EQ);
    return di_gram_node_dfa(c, alt);
}

const di_gram_dfa_t *
di_gram_lang_integer(di_gram_ctx_t *c, bool negated)
{
    return re_dfa(c, negated
                  ? "-?(0|[1-9][0-9]*)\\.[0-9]*[1-9][0-9]*"
                  : "-?(0|[1-9][0-9]*)(\\.0)?");
}

const di_gram_dfa_t *
di_gram_lang_decimal(di_gram_ctx_t *c)
{
    return re_dfa(c, "-?" UNSIGNED);
}

const di_gram_dfa_t *
di_gram_lang_any_number(di_gram_ctx_t *c)
{
    return re_dfa(c, "-?" UNSIGNED "([eE][-+]?[0-9]+)?");
}

/* Multiples of p / 10^k: the remainder of all digits up to the k-th behind
 * the point is carried along, then only zeros may come. */
#define MODULUS_MAX  2000u

static uint32_t
mod_pow10(uint32_t r, size_t n, uint32_t p)
{
    while (n-- > 0)
        r = (uint32_t) ((uint64_t) r * 10 % p);
    return r;
}

typedef struct {
    di_gram_ctx_t *c;
    di_gram_dfa_t *d;
    uint32_t       p;
    size_t         k;
} multiple_t;

/* State of remainder r after `place` digits behind the point (0: before it;
 * k + 1: zeros only); the first three states are the start, the state after
 * a minus, and that of a leading zero. */
static uint32_t
remainder_state(const multiple_t *m, size_t place, uint32_t r)
{
    return 3 + (uint32_t) place * m->p + r;
}

static void
digit_arcs(multiple_t *m, uint32_t from, uint32_t r, size_t place, int first)
{
    di_gram_state_t *s = &m->d->s[from];
    uint32_t         cap = s->n_arcs;

    for (int i = first; i <= 9; i++) {
        s->arcs = di_gram_grow(m->c, s->arcs, s->n_arcs, &cap,
                               sizeof(*s->arcs));
        s->arcs[s->n_arcs++] = (di_gram_arc_t) {
            (uint32_t) ('0' + i), (uint32_t) ('0' + i),
            remainder_state(m, place, (r * 10 + (uint32_t) i) % m->p),
        };
    }
}

static void
one_arc(multiple_t *m, uint32_t from, uint32_t cp, uint32_t to)
{
    di_gram_state_t *s = &m->d->s[from];
    uint32_t         cap = s->n_arcs;

    s->arcs = di_gram_grow(m->c, s->arcs, s->n_arcs, &cap, sizeof(*s->arcs));
    s->arcs[s->n_arcs++] = (di_gram_arc_t) { cp, cp, to };
}

const di_gram_dfa_t *
di_gram_lang_multiple(di_gram_ctx_t *c, const json_t *v, const char *path)
{
    decimal_t      d = { 0 };
    multiple_t     m = { .c = c };
    char           digits[32];
    uint32_t       n, point;
    di_gram_dfa_t *all;

    decimal(c, v, &d, "multipleOf", path);
    m.k = strlen(d.part);
    if (d.negative || strlen(d.whole) + m.k > 9)
        di_gram_fail(c, DI_EUNSUPPORTED, "multipleOf", path,
                     "is not held for such a number");
    (void) snprintf(digits, sizeof(digits), "%.15s%.15s", d.whole, d.part);
    m.p = (uint32_t) atoi(digits);
    if (m.p == 0)
        di_gram_fail(c, DI_EFORMAT, "multipleOf", path, "must not be 0");
    if (m.p > MODULUS_MAX)
        di_gram_fail(c, DI_EUNSUPPORTED, "multipleOf", path,
                     "is held up to %u digits' worth only", MODULUS_MAX);

    m.d = all = di_gram_alloc(c, 1, sizeof(*all));
    n = 3 + (uint32_t) (m.k + 2) * m.p + 1;
    point = n - 1;              /* after the point, where no digit counts    */
    for (uint32_t i = 0; i < n; i++)
        (void) di_gram_dfa_state(c, all);
    for (uint32_t i = 0; i < 2; i++) {
        if (i == 0)
            one_arc(&m, 0, '-', 1);
        one_arc(&m, i, '0', 2);
        digit_arcs(&m, i, 0, 0, 1);
    }
    all->s[2].final = true;
    for (size_t place = 0; place <= m.k + 1; place++) {
        for (uint32_t r = 0; r < m.p; r++) {
            uint32_t s = remainder_state(&m, place, r);
            bool     whole = place > m.k
                             || mod_pow10(r, m.k - place, m.p) == 0;

            all->s[s].final = whole && (place <= m.k || r == 0);
            if (place > m.k || (place == m.k && place > 0)) {
                if (r == 0)
                    one_arc(&m, s, '0', remainder_state(&m, m.k + 1, 0));
                continue;
            }
            if (place > 0)
                digit_arcs(&m, s, r, place + 1, 0);
        }
    }
    /* The point: behind a leading zero and behind whole digits. */
    for (uint32_t r = 0; r < m.p; r++) {
        uint32_t s = remainder_state(&m, 0, r), dot;

        if (m.k == 0) {
            if (r == 0)
                one_arc(&m, s, '.', point);
        } else {
            dot = di_gram_dfa_state(c, all);
            digit_arcs(&m, dot, r, 1, 0);
            one_arc(&m, s, '.', dot);
            if (r == 0)
                one_arc(&m, 2, '.', dot);
        }
        digit_arcs(&m, s, r, 0, 0);
    }
    if (m.k == 0)
        one_arc(&m, 2, '.', point);
    one_arc(&m, point, '0', remainder_state(&m, m.k + 1, 0));
    return di_gram_dfa_trim(c, all);
}

/* ------------------------------------------------------------- strings -- */

const di_gram_dfa_t *
di_gram_lang_length(di_gram_ctx_t *c, uint32_t min, uint32_t max)
{
    return di_gram_node_dfa(c, di_gram_node_rep(c,
               di_gram_node_set(c, di_gram_set_any()), min, max));
}

#define YEAR    "([1-9]\\d{3}|0[1-9]\\d{2}|00[1-9]\\d|000[1-9])"
#define LEAP    "(\\d\\d(0[48]|[2468][048]|[13579][26])" \
                "|(0[48]|[2468][048]|[13579][26])00)"
#define DATE    "(" YEAR "-((0[13578]|1[02])-(0[1-9]|[12]\\d|3[01])" \
                "|(0[469]|11)-(0[1-9]|[12]\\d|30)" \
                "|02-(0[1-9]|1\\d|2[0-8]))|" LEAP "-02-29)"
#define TIME    "([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d{1,9})?" \
                "(Z|[+-]([01]\\d|2[0-3]):[0-5]\\d)"
#define CLOCK   "T(\\d{1,9}H(\\d{1,9}M(\\d{1,9}S)?)?" \
                "|\\d{1,9}M(\\d{1,9}S)?|\\d{1,9}S)"
#define LABEL   "[A-Za-z0-9]([A-Za-z0-9-]{0,60}[A-Za-z0-9])?"
#define HOST    LABEL "(\\." LABEL "){0,3}"
#define ATOM    "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,20}"
#define OCTET   "(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define IPV4    "(" OCTET "\\.){3}" OCTET
#define H16     "[0-9A-Fa-f]{1,4}"
#define LS32    "(" H16 ":" H16 "|" IPV4 ")"
#define PCHAR   "([A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-Fa-f]{2})"

static const struct { const char *name, *regex; } formats[] = {
    { "date", DATE },
    { "time", TIME },
    { "date-time", DATE "T" TIME },
    { "duration", "P(\\d{1,9}W|(\\d{1,9}D|\\d{1,9}M(\\d{1,9}D)?"
                  "|\\d{1,9}Y(\\d{1,9}M(\\d{1,9}D)?)?)(" CLOCK ")?|"
                  CLOCK ")" },
    { "uuid", "[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}" },
    { "email", ATOM "(\\." ATOM "){0,2}@" HOST },
    { "hostname", HOST },
    { "ipv4", IPV4 },
    { "ipv6", "(" H16 ":){6}" LS32 "|::(" H16 ":){5}" LS32
              "|(" H16 ")?::(" H16 ":){4}" LS32
              "|((" H16 ":){0,1}" H16 ")?::(" H16 ":){3}" LS32
              "|((" H16 ":){0,2}" H16 ")?::(" H16 ":){2}" LS32
              "|((" H16 ":){0,3}" H16 ")?::" H16 ":" LS32
              "|((" H16 ":){0,4}" H16 ")?::" LS32
              "|((" H16 ":){0,5}" H16 ")?::" H16
              "|((" H16 ":){0,6}" H16 ")?::" },
    { "uri", "[A-Za-z][A-Za-z0-9+.-]*:(//(" PCHAR ")*)?(" PCHAR ")*"
             "(\\?(" PCHAR "|\\?)*)?(#(" PCHAR "|\\?)*)?" },
};

const di_gram_dfa_t *
di_gram_lang_format(di_gram_ctx_t *c, const char *name)
{
    for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++) {
        if (strcmp(formats[i].name, name) == 0)
            return re_dfa(c, formats[i].regex);
    }
    return NULL;
}
