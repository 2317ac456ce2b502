/*
 * json_tree.c - trees written back as JSON text: schemas and arguments as the
 * model reads them, and as a constraint's text.
 *
 * The model was trained on what two programs wrote, so blanks and the form of
 * numbers are part of the prompt: DeepSeek V4's are those of serde_json,
 * V4.1's those of Python.  Both print the shortest digits that read back as
 * the same double; they differ in when an exponent begins and in its width.
 */

#include "json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DIGITS_MAX  17           /* that tell any two doubles apart         */

/* The shortest decimal digits of d > 0 and the exponent of the first one;
 * returns their number. */
static size_t
shortest(double d, char digits[DIGITS_MAX], int *exponent)
{
    char   s[40];
    size_t n;
    int    precision;

    for (precision = 0; ; precision++) {
        snprintf(s, sizeof(s), "%.*e", precision, d);
        if (precision == DIGITS_MAX - 1 || strtod(s, NULL) == d)
            break;
    }

    /* "D.DDDe+XX"; what stands for the point follows the locale. */
    digits[0] = s[0];
    n = 1;
    if (precision > 0) {
        memcpy(digits + 1, strchr(s, 'e') - precision, (size_t) precision);
        n += (size_t) precision;
    }

    *exponent = atoi(strchr(s, 'e') + 1);
    return n;
}

static void
add_zeros(di_sbuf_t *b, int n)
{
    while (n-- > 0)
        di_sbuf_lit(b, "0");
}

/* Digits with a point, at least one of them behind it. */
static void
add_positional(di_sbuf_t *b, const char *digits, size_t n, int exponent)
{
    size_t whole = exponent < 0 ? 0 : (size_t) exponent + 1;

    if (whole == 0) {
        di_sbuf_lit(b, "0.");
        add_zeros(b, -exponent - 1);
        di_sbuf_add(b, digits, n);
        return;
    }

    di_sbuf_add(b, digits, n < whole ? n : whole);
    if (n <= whole) {
        add_zeros(b, (int) (whole - n));
        di_sbuf_lit(b, ".0");
        return;
    }

    di_sbuf_lit(b, ".");
    di_sbuf_add(b, digits + whole, n - whole);
}

static void
add_double(di_sbuf_t *b, double d, di_json_style_t style)
{
    char   digits[DIGITS_MAX], e[8];
    int    exponent;
    size_t n;

    if (signbit(d))
        di_sbuf_lit(b, "-");

    if (d == 0) {
        di_sbuf_lit(b, "0.0");
        return;
    }

    n = shortest(fabs(d), digits, &exponent);

    if (exponent >= (style >= DI_JSON_PYTHON ? -4 : -5) && exponent < 16) {
        add_positional(b, digits, n, exponent);
        return;
    }

    di_sbuf_add(b, digits, 1);
    if (n > 1) {
        di_sbuf_lit(b, ".");
        di_sbuf_add(b, digits + 1, n - 1);
    }

    n = (size_t) snprintf(e, sizeof(e), style >= DI_JSON_PYTHON
                          ? "e%+03d" : "e%+d", exponent);
    di_sbuf_add(b, e, n);
}

static void
add_control(di_sbuf_t *b, unsigned char c)
{
    static const char from[] = "\"\\\n\r\t\b\f", to[] = "\"\\nrtbf";
    const char       *at = c == '\0' ? NULL : strchr(from, c);
    char              s[8];

    if (at != NULL) {
        s[0] = '\\';
        s[1] = to[at - from];
        di_sbuf_add(b, s, 2);
        return;
    }

    snprintf(s, sizeof(s), "\\u%04x", c);
    di_sbuf_add(b, s, 6);
}

void
di_json_add_plain(di_sbuf_t *b, di_str_t s)
{
    size_t        i, run = 0;
    unsigned char c;

    di_sbuf_lit(b, "\"");

    for (i = 0; i < s.len; i++) {
        c = (unsigned char) s.data[i];
        if (c >= 0x20 && c != '"' && c != '\\')
            continue;
        di_sbuf_add(b, s.data + run, i - run);
        add_control(b, c);
        run = i + 1;
    }

    if (run < s.len)
        di_sbuf_add(b, s.data + run, s.len - run);
    di_sbuf_lit(b, "\"");
}

static void add_value(di_sbuf_t *b, const di_json_t *v, di_json_style_t style,
                      size_t depth);

static void
add_line(di_sbuf_t *b, size_t depth)
{
    di_sbuf_lit(b, "\n");
    while (depth-- > 0)
        di_sbuf_lit(b, "    ");
}

static void
add_members(di_sbuf_t *b, const di_json_t *v, di_json_style_t style,
            size_t depth)
{
    const di_json_t *m;
    bool             object = v->type == DI_JSON_OBJECT;
    bool             lines = style == DI_JSON_INDENTED && v->v.list.n > 0;
    size_t           tight = style == DI_JSON_COMPACT || lines ? 1 : 2;

    di_sbuf_add(b, object ? "{" : "[", 1);

    for (m = v->v.list.first; m != NULL; m = m->next) {
        if (m != v->v.list.first)
            di_sbuf_add(b, ", ", tight);

        if (lines)
            add_line(b, depth + 1);

        if (object) {
            di_json_add_plain(b, m->key);
            di_sbuf_add(b, ": ", style == DI_JSON_COMPACT ? 1 : 2);
        }

        add_value(b, m, style, depth + 1);
    }

    if (lines)
        add_line(b, depth);
    di_sbuf_add(b, object ? "}" : "]", 1);
}

static void
add_value(di_sbuf_t *b, const di_json_t *v, di_json_style_t style,
          size_t depth)
{
    switch (v->type) {
    case DI_JSON_NULL:   di_sbuf_lit(b, "null");              return;
    case DI_JSON_FALSE:  di_sbuf_lit(b, "false");             return;
    case DI_JSON_TRUE:   di_sbuf_lit(b, "true");              return;
    case DI_JSON_INT:    di_json_add_i64(b, v->v.i);          return;
    case DI_JSON_UINT:   di_json_add_u64(b, v->v.u);          return;
    case DI_JSON_REAL:   add_double(b, v->v.d, style);        return;
    case DI_JSON_STRING: di_json_add_plain(b, v->v.str);      return;
    }

    add_members(b, v, style, depth);
}

void
di_json_add_tree(di_sbuf_t *b, const di_json_t *v, di_json_style_t style)
{
    add_value(b, v, style, 0);
}
