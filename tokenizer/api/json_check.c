/*
 * json_check.c - is a text JSON?  What a model wrote as arguments is shown as
 * it is, so nothing is built here: one pass, no allocation, the open arrays
 * and objects as bits on a stack.
 */

#include "json.h"

#include <string.h>

typedef struct {
    const char *p;
    const char *end;
} cursor_t;

static void
spaces(cursor_t *c)
{
    while (c->p < c->end && (*c->p == ' ' || *c->p == '\t' || *c->p == '\n'
                             || *c->p == '\r'))
        c->p++;
}

/* The value of the four digits at p, or -1. */
static int
hex4(const cursor_t *c, const char *p)
{
    int i, v = 0;

    if (c->end - p < 4)
        return -1;

    for (i = 0; i < 4; i++) {
        if (p[i] >= '0' && p[i] <= '9')
            v = v << 4 | (p[i] - '0');
        else if ((p[i] | 0x20) >= 'a' && (p[i] | 0x20) <= 'f')
            v = v << 4 | ((p[i] | 0x20) - 'a' + 10);
        else
            return -1;
    }

    return v;
}

/* What follows \u; a surrogate needs its other half. */
static bool
unicode(cursor_t *c)
{
    int v = hex4(c, c->p + 1), low;

    if (v < 0 || (v >= 0xdc00 && v <= 0xdfff))
        return false;

    c->p += 4;
    if (v < 0xd800 || v > 0xdbff)
        return true;

    if (c->end - c->p < 3 || c->p[1] != '\\' || c->p[2] != 'u')
        return false;

    low = hex4(c, c->p + 3);
    c->p += 6;
    return low >= 0xdc00 && low <= 0xdfff;
}

static bool
string(cursor_t *c)
{
    for (c->p++; c->p < c->end; c->p++) {
        if (*c->p == '"') {
            c->p++;
            return true;
        }

        if ((unsigned char) *c->p < 0x20)
            return false;

        if (*c->p != '\\')
            continue;

        if (++c->p == c->end)
            return false;

        if (*c->p == 'u' ? !unicode(c)
            : memchr("\"\\/bfnrt", *c->p, 8) == NULL)
            return false;
    }

    return false;
}

static bool
digits(cursor_t *c)
{
    const char *start = c->p;

    while (c->p < c->end && *c->p >= '0' && *c->p <= '9')
        c->p++;

    return c->p > start;
}

static bool
number(cursor_t *c)
{
    if (*c->p == '-' && ++c->p == c->end)
        return false;

    if (*c->p == '0')
        c->p++;
    else if (!digits(c))
        return false;

    if (c->p < c->end && *c->p == '.') {
        c->p++;
        if (!digits(c))
            return false;
    }

    if (c->p < c->end && (*c->p == 'e' || *c->p == 'E')) {
        c->p++;
        if (c->p < c->end && (*c->p == '+' || *c->p == '-'))
            c->p++;
        if (!digits(c))
            return false;
    }

    return true;
}

static bool
word(cursor_t *c, const char *text, size_t len)
{
    if ((size_t) (c->end - c->p) < len || memcmp(c->p, text, len) != 0)
        return false;

    c->p += len;
    return true;
}

static bool
scalar(cursor_t *c)
{
    switch (*c->p) {
    case '"': return string(c);
    case 't': return word(c, "true", 4);
    case 'f': return word(c, "false", 5);
    case 'n': return word(c, "null", 4);
    }

    return number(c);
}

/* A member's name and its colon. */
static bool
name(cursor_t *c)
{
    spaces(c);
    if (c->p == c->end || *c->p != '"' || !string(c))
        return false;

    spaces(c);
    if (c->p == c->end || *c->p != ':')
        return false;

    c->p++;
    return true;
}

/* After a value: close what ends here, or go on with the next element. */
static bool
after(cursor_t *c, const uint64_t *objects, size_t *depth)
{
    bool object;

    for (spaces(c); *depth > 0; spaces(c)) {
        object = objects[*depth / 64] >> *depth % 64 & 1;

        if (c->p == c->end)
            return false;

        if (*c->p == ',') {
            c->p++;
            return !object || name(c);
        }

        if (*c->p != (object ? '}' : ']'))
            return false;

        c->p++;
        (*depth)--;
    }

    return true;
}

bool
di_json_valid(const char *data, size_t len)
{
    uint64_t objects[DI_JSON_DEPTH_MAX / 64 + 1] = { 0 };
    cursor_t c = { data, data };
    size_t   depth = 0;
    bool     object;

    if (len == 0)
        return false;
    c.end += len;

    do {
        spaces(&c);
        if (c.p == c.end)
            return false;

        if (*c.p != '{' && *c.p != '[') {
            if (!scalar(&c) || !after(&c, objects, &depth))
                return false;
            continue;
        }

        if (++depth > DI_JSON_DEPTH_MAX)
            return false;

        object = *c.p++ == '{';
        objects[depth / 64] &= ~(1ull << depth % 64);
        objects[depth / 64] |= (uint64_t) object << depth % 64;

        spaces(&c);
        if (c.p < c.end && *c.p == (object ? '}' : ']')) {
            if (!after(&c, objects, &depth))
                return false;

        } else if (object && !name(&c)) {
            return false;
        }
    } while (depth > 0);

    spaces(&c);
    return c.p == c.end;
}
