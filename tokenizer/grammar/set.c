/*
 * set.c - sets of code points, and expressions.
 *
 * A set is a sorted list of ranges.  Surrogates are in none: a text is valid
 * UTF-8.  What a Unicode property holds is asked of PCRE2 itself, by one
 * match over a text of all code points, so that both agree; the planes that
 * hold nothing but unassigned or private code points are asked for one.
 */

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "build.h"

static const di_gram_range_t any_ranges[2] = {
    { 0, 0xd7ff }, { 0xe000, DI_GRAM_CP_MAX },
};

di_gram_set_t
di_gram_set_any(void)
{
    return (di_gram_set_t) { any_ranges, 2 };
}

di_gram_set_t
di_gram_set(di_gram_ctx_t *c, uint32_t lo, uint32_t hi)
{
    di_gram_range_t *r = di_gram_alloc(c, 1, sizeof(*r));

    *r = (di_gram_range_t) { lo, hi };
    return (di_gram_set_t) { r, 1 };
}

static int
by_lo(const void *a, const void *b)
{
    const di_gram_range_t *x = a, *y = b;

    return (x->lo > y->lo) - (x->lo < y->lo);
}

di_gram_set_t
di_gram_set_norm(di_gram_ctx_t *c, di_gram_range_t *r, uint32_t n)
{
    uint32_t k = 0;

    di_gram_work(c, n);
    if (n == 0)
        return (di_gram_set_t) { NULL, 0 };
    qsort(r, n, sizeof(*r), by_lo);
    for (uint32_t i = 1; i < n; i++) {
        if (r[i].lo <= r[k].hi + 1)
            r[k].hi = r[i].hi > r[k].hi ? r[i].hi : r[k].hi;
        else
            r[++k] = r[i];
    }
    return di_gram_set_and(c, (di_gram_set_t) { r, k + 1 },
                           di_gram_set_any());
}

di_gram_set_t
di_gram_set_or(di_gram_ctx_t *c, di_gram_set_t a, di_gram_set_t b)
{
    di_gram_range_t *r = di_gram_alloc(c, a.n + b.n, sizeof(*r));

    if (a.n > 0)
        memcpy(r, a.r, a.n * sizeof(*r));
    if (b.n > 0)
        memcpy(r + a.n, b.r, b.n * sizeof(*r));
    return di_gram_set_norm(c, r, a.n + b.n);
}

di_gram_set_t
di_gram_set_and(di_gram_ctx_t *c, di_gram_set_t a, di_gram_set_t b)
{
    di_gram_range_t *r = di_gram_alloc(c, a.n + b.n, sizeof(*r));
    uint32_t         i = 0, j = 0, n = 0, lo, hi;

    di_gram_work(c, a.n + b.n);
    while (i < a.n && j < b.n) {
        lo = a.r[i].lo > b.r[j].lo ? a.r[i].lo : b.r[j].lo;
        hi = a.r[i].hi < b.r[j].hi ? a.r[i].hi : b.r[j].hi;
        if (lo <= hi)
            r[n++] = (di_gram_range_t) { lo, hi };
        if (a.r[i].hi < b.r[j].hi)
            i++;
        else
            j++;
    }
    return (di_gram_set_t) { r, n };
}

di_gram_set_t
di_gram_set_not(di_gram_ctx_t *c, di_gram_set_t a)
{
    di_gram_range_t *r = di_gram_alloc(c, a.n + 1, sizeof(*r));
    uint32_t         n = 0, lo = 0;

    for (uint32_t i = 0; i < a.n; i++) {
        if (a.r[i].lo > lo)
            r[n++] = (di_gram_range_t) { lo, a.r[i].lo - 1 };
        lo = a.r[i].hi + 1;
    }
    if (lo <= DI_GRAM_CP_MAX)
        r[n++] = (di_gram_range_t) { lo, DI_GRAM_CP_MAX };
    return di_gram_set_and(c, (di_gram_set_t) { r, n }, di_gram_set_any());
}

/* ---------------------------------------------------------- properties -- */

#define SPAN  0x40000u      /* code points asked one by one                  */

static size_t
put_utf8(char *s, uint32_t cp)
{
    return (size_t) utf8proc_encode_char((utf8proc_int32_t) cp,
                                         (utf8proc_uint8_t *) s);
}

/* Text of all code points below SPAN but surrogates, then one for each of
 * the stretches above that are alike throughout. */
static const di_gram_range_t stretches[] = {
    { SPAN, 0x4fffd }, { 0x4fffe, 0x4ffff }, { 0x50000, 0xdffff },
    { 0xe0000, 0xe0000 }, { 0xe0001, 0xe0001 }, { 0xe0002, 0xe001f },
    { 0xe0020, 0xe007f }, { 0xe0080, 0xe00ff }, { 0xe0100, 0xe01ef },
    { 0xe01f0, 0xeffff }, { 0xf0000, 0xffffd }, { 0xffffe, 0xfffff },
    { 0x100000, 0x10fffd }, { 0x10fffe, 0x10ffff },
};

#define N_STRETCHES  (sizeof(stretches) / sizeof(stretches[0]))

static char *
all_text(di_gram_ctx_t *c, size_t *len)
{
    char  *s = di_gram_alloc(c, SPAN + N_STRETCHES, 4);
    size_t n = 0;

    for (uint32_t cp = 0; cp < SPAN; cp++) {
        if (cp < 0xd800 || cp > 0xdfff)
            n += put_utf8(s + n, cp);
    }
    for (size_t i = 0; i < N_STRETCHES; i++)
        n += put_utf8(s + n, stretches[i].lo);
    *len = n;
    return s;
}

#define RUNS_MAX  8192u     /* properties have 700 at most                   */

/* What the class matches of that text, run by run, as ranges; the count. */
static uint32_t
runs(const pcre2_code *code, pcre2_match_data *data, const char *s,
     size_t len, di_gram_range_t *r)
{
    uint32_t n = 0, cp = 0, last;
    size_t   at = 0, *ov = pcre2_get_ovector_pointer(data);

    while (pcre2_match(code, (PCRE2_SPTR) s, len, at, PCRE2_NO_UTF_CHECK,
                       data, NULL) > 0) {
        for (at = ov[0]; at < ov[1]; ) {
            at += di_gram_utf8(s + at, len - at, &cp);
            last = cp;
            for (size_t i = 0; i < N_STRETCHES; i++) {
                if (cp == stretches[i].lo)
                    last = stretches[i].hi;
            }
            if (n > 0 && r[n - 1].hi + 1 == cp)
                r[n - 1].hi = last;
            else if (n < RUNS_MAX)
                r[n++] = (di_gram_range_t) { cp, last };
        }
    }
    return n;
}

/* The long names that ECMAScript has for general categories. */
static const char *const long_names[][2] = {
    { "Letter", "L" }, { "Lowercase_Letter", "Ll" }, { "Number", "N" },
    { "Uppercase_Letter", "Lu" }, { "Titlecase_Letter", "Lt" },
    { "Modifier_Letter", "Lm" }, { "Other_Letter", "Lo" }, { "Mark", "M" },
    { "Decimal_Number", "Nd" }, { "digit", "Nd" }, { "Letter_Number", "Nl" },
    { "Other_Number", "No" }, { "Punctuation", "P" }, { "punct", "P" },
    { "Symbol", "S" }, { "Math_Symbol", "Sm" }, { "Currency_Symbol", "Sc" },
    { "Separator", "Z" }, { "Space_Separator", "Zs" }, { "Other", "C" },
    { "Control", "Cc" }, { "cntrl", "Cc" },
};

bool
di_gram_set_property(di_gram_ctx_t *c, const char *name, size_t len,
                     di_gram_set_t *set)
{
    char              text[80];
    int               code_err;
    bool              known;
    size_t            at, all_len;
    uint32_t          n = 0;
    pcre2_code       *code;
    pcre2_match_data *data;
    di_gram_range_t  *r;
    const char       *all;
    const char       *eq = memchr(name, '=', len);

    if (eq != NULL) {       /* Script=Greek, General_Category=Lu             */
        len -= (size_t) (eq + 1 - name);
        name = eq + 1;
    }
    if (len == 0 || len > 40)
        return false;
    for (size_t i = 0; i < len; i++) {
        if (strchr("{}[]\\", name[i]) != NULL)
            return false;
    }
    for (size_t i = 0; i < sizeof(long_names) / sizeof(long_names[0]); i++) {
        if (strlen(long_names[i][0]) == len
            && memcmp(long_names[i][0], name, len) == 0) {
            name = long_names[i][1];
            len = strlen(name);
        }
    }
    di_gram_work(c, SPAN);
    all = all_text(c, &all_len);
    r = di_gram_alloc(c, RUNS_MAX, sizeof(*r));

    (void) snprintf(text, sizeof(text), "\\p{%.*s}+", (int) len, name);
    code = pcre2_compile((PCRE2_SPTR) text, PCRE2_ZERO_TERMINATED, PCRE2_UTF,
                         &code_err, &at, NULL);
    data = code != NULL ? pcre2_match_data_create(1, NULL) : NULL;
    if (data != NULL)
        n = runs(code, data, all, all_len, r);
    known = data != NULL;
    pcre2_match_data_free(data);
    pcre2_code_free(code);
    if (known)
        *set = di_gram_set_norm(c, r, n);
    return known;
}

/* ---------------------------------------------------------------- case -- */

static bool
set_has(di_gram_set_t a, uint32_t cp)
{
    for (uint32_t i = 0; i < a.n && a.r[i].lo <= cp; i++) {
        if (cp <= a.r[i].hi)
            return true;
    }
    return false;
}

/* The other spellings of k, s and å that simple case mapping doesn't know. */
static const uint32_t twins[][2] = {
    { 'k', 0x212a }, { 's', 0x17f }, { 0xe5, 0x212b },
    { 0x3b8, 0x3f4 }, { 0x3b8, 0x3d1 }, { 0x3b2, 0x3d0 }, { 0x3b5, 0x3f5 },
    { 0x3ba, 0x3f0 }, { 0x3c0, 0x3d6 }, { 0x3c1, 0x3f1 }, { 0x3c3, 0x3c2 },
    { 0x3c6, 0x3d5 }, { 0x3c9, 0x2126 }, { 0x3bc, 0xb5 }, { 0x3b9, 0x345 },
    { 0x3b9, 0x1fbe }, { 0x1e61, 0x1e9b }, { 0xdf, 0x1e9e },
};

/* With the other cases of each.  Cased code points end below 0x1ea00. */
di_gram_set_t
di_gram_set_caseless(di_gram_ctx_t *c, di_gram_set_t a)
{
    di_gram_range_t *r = NULL;
    uint32_t         n = 0, cap = 0, cp, end, other[3];
    utf8proc_int32_t low;

    for (uint32_t i = 0; i < a.n; i++) {
        end = a.r[i].hi < 0x1ea00 ? a.r[i].hi : 0x1ea00;
        di_gram_work(c, 1 + (end >= a.r[i].lo ? end - a.r[i].lo : 0));
        for (cp = a.r[i].lo; cp <= end; cp++) {
            low = utf8proc_tolower((utf8proc_int32_t) cp);
            for (size_t k = 0; k < sizeof(twins) / sizeof(twins[0]); k++) {
                if (cp == twins[k][1])
                    low = (utf8proc_int32_t) twins[k][0];
            }
            other[0] = (uint32_t) low;
            other[1] = (uint32_t) utf8proc_toupper(low);
            other[2] = (uint32_t) utf8proc_totitle(low);
            for (int k = 0; k < 3; k++) {
                if (set_has(a, other[k]))
                    continue;
                r = di_gram_grow(c, r, n, &cap, sizeof(*r));
                r[n++] = (di_gram_range_t) { other[k], other[k] };
            }
            for (size_t k = 0; k < sizeof(twins) / sizeof(twins[0]); k++) {
                if ((uint32_t) low != twins[k][0])
                    continue;
                r = di_gram_grow(c, r, n, &cap, sizeof(*r));
                r[n++] = (di_gram_range_t) { twins[k][1], twins[k][1] };
            }
        }
    }
    return di_gram_set_or(c, a, (di_gram_set_t) { r, n });
}

/* --------------------------------------------------------- expressions -- */

di_gram_node_t *
di_gram_node(di_gram_ctx_t *c, di_gram_node_kind_t kind)
{
    di_gram_node_t *node = di_gram_alloc(c, 1, sizeof(*node));

    node->kind = kind;
    return node;
}

di_gram_node_t *
di_gram_node_set(di_gram_ctx_t *c, di_gram_set_t set)
{
    di_gram_node_t *node = di_gram_node(c, DI_GRAM_N_SET);

    node->set = set;
    return node;
}

void
di_gram_node_add(di_gram_node_t *parent, di_gram_node_t *child)
{
    if (parent->first == NULL)
        parent->first = child;
    else
        parent->last->next = child;
    parent->last = child;
}

di_gram_node_t *
di_gram_node_rep(di_gram_ctx_t *c, di_gram_node_t *child, uint32_t min,
                 uint32_t max)
{
    di_gram_node_t *node = di_gram_node(c, DI_GRAM_N_REP);

    node->min = min;
    node->max = max;
    di_gram_node_add(node, child);
    return node;
}

size_t
di_gram_utf8(const char *s, size_t len, uint32_t *cp)
{
    utf8proc_int32_t v;
    utf8proc_ssize_t n;

    n = utf8proc_iterate((const utf8proc_uint8_t *) s,
                         (utf8proc_ssize_t) (len < 4 ? len : 4), &v);
    if (n <= 0)
        return 0;
    *cp = (uint32_t) v;
    return (size_t) n;
}

di_gram_node_t *
di_gram_node_text(di_gram_ctx_t *c, const char *s, size_t len)
{
    di_gram_node_t *cat = di_gram_node(c, DI_GRAM_N_CAT);
    uint32_t        cp;
    size_t          n;

    for (size_t i = 0; i < len; i += n) {
        n = di_gram_utf8(s + i, len - i, &cp);
        if (n == 0)
            di_gram_fail(c, DI_EFORMAT, "utf-8", "", "malformed UTF-8");
        di_gram_node_add(cat, di_gram_node_set(c, di_gram_set(c, cp, cp)));
    }
    return cat;
}
