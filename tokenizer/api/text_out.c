/*
 * text_out.c - stop strings and whole characters; see text_out.h.
 *
 * Each stop string has its own Knuth-Morris-Pratt automaton: a request has
 * few of them (16 at most), so one table of 4 bytes per byte of string beats
 * an Aho-Corasick trie in memory and, for the usual one or two, in time.  What
 * must be held back is exactly the longest of the automata's states.  While
 * all are in their start state, a byte that begins no stop string costs one
 * look into a table.
 *
 * Stop strings are valid UTF-8 and match bytes, so a match begins where a
 * character begins, and what stands before it may be judged without it.
 */

#include "text_out.h"
#include "di_utf8.h"

#include <stdlib.h>
#include <string.h>

static void
fill_borders(uint32_t *border, const di_str_t *s)
{
    uint32_t k = 0;
    size_t   i;

    border[0] = 0;

    for (i = 1; i < s->len; i++) {
        while (k > 0 && s->data[i] != s->data[k])
            k = border[k - 1];

        k += s->data[i] == s->data[k];
        border[i] = k;
    }
}

int
di_stops_init(di_stops_t *s, const di_str_t *strings, size_t n)
{
    uint32_t *table;
    size_t    i, total = 0;

    memset(s, 0, sizeof(*s));
    if (n == 0)
        return DI_OK;

    for (i = 0; i < n; i++)
        total += strings[i].len;

    s->borders = malloc(n * sizeof(*s->borders) + total * sizeof(*table));
    if (s->borders == NULL)
        return DI_ENOMEM;

    table = (uint32_t *) (s->borders + n);
    s->strings = strings;
    s->n = n;

    for (i = 0; i < n; i++) {
        s->borders[i] = table;
        s->first[(unsigned char) strings[i].data[0]] = true;
        fill_borders(table, &strings[i]);
        table += strings[i].len;
    }

    return DI_OK;
}

void
di_stops_deinit(di_stops_t *s)
{
    free(s->borders);
}

int
di_text_init(di_text_t *t, const di_stops_t *s)
{
    memset(t, 0, sizeof(*t));
    if (s->n == 0)
        return DI_OK;

    t->matched = calloc(s->n, sizeof(*t->matched));
    return t->matched == NULL ? DI_ENOMEM : DI_OK;
}

void
di_text_deinit(di_text_t *t)
{
    free(t->matched);
    di_sbuf_free(&t->pending);
}

/* Advance every automaton by one byte.  The length of the longest string that
 * is complete now, or 0. */
static size_t
step(di_text_t *t, const di_stops_t *s, char c)
{
    const di_str_t *str;
    uint32_t        k;
    size_t          i, complete = 0;

    t->held = 0;

    for (i = 0; i < s->n; i++) {
        str = &s->strings[i];
        k = t->matched[i];

        while (k > 0 && str->data[k] != c)
            k = s->borders[i][k - 1];

        k += str->data[k] == c;

        if (k == str->len) {
            if (k > complete)
                complete = k;
            k = s->borders[i][k - 1];
        }

        t->matched[i] = k;
        if (k > t->held)
            t->held = k;
    }

    return complete;
}

int
di_text_feed(di_text_t *t, const di_stops_t *s, const char *bytes, size_t n,
             bool match, bool *stopped)
{
    size_t i, complete, base = t->pending.len;

    di_sbuf_add(&t->pending, bytes, n);
    if (t->pending.failed)
        return DI_ENOMEM;

    if (s->n == 0 || !match)
        return DI_OK;

    for (i = 0; i < n; i++) {
        if (t->held == 0 && !s->first[(unsigned char) bytes[i]])
            continue;

        complete = step(t, s, bytes[i]);

        if (complete != 0) {
            t->pending.len = base + i + 1 - complete;
            t->held = 0;
            *stopped = true;
            return DI_OK;
        }
    }

    return DI_OK;
}

size_t
di_text_ready(const di_text_t *t, bool final)
{
    size_t n = t->pending.len - (final ? 0 : t->held), back, len, rest;

    if (final)
        return n;

    /* Only the last three bytes can be part of an unfinished character.  What
     * follows them in `pending` is looked at too: a stop string's beginning
     * proves that the character stays unfinished. */
    for (back = 1; back <= 3 && back <= n; back++) {
        rest = t->pending.len - n + back;

        if (((unsigned char) t->pending.data[n - back] & 0xc0) == 0x80)
            continue;

        if (di_utf8_step(t->pending.data + n - back, rest, &len)
            == DI_UTF8_CUT)
            return n - back;

        break;
    }

    return n;
}

void
di_text_drop(di_text_t *t, size_t n)
{
    t->pending.len -= n;
    if (t->pending.len != 0)
        memmove(t->pending.data, t->pending.data + n, t->pending.len);
}
