/*
 * chat_model.h - what a choice's text must be, computed slowly and plainly,
 * and readers of what di_out_t wrote.  Shared by test and fuzz target.
 */

#ifndef CHAT_MODEL_H
#define CHAT_MODEL_H

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer/api/di_out.h"

typedef struct {
    char   data[16384];
    size_t len;
} text_t;

static inline void
text_add(text_t *t, const void *p, size_t n)
{
    if (t->len + n > sizeof(t->data))
        abort();
    memcpy(t->data + t->len, p, n);
    t->len += n;
}

/* ------------------------------------------------------------------ UTF-8 */

/* Length of the character at p if n bytes hold it whole, else 0; by decoding
 * and looking at the value. */
static inline size_t
model_char(const unsigned char *p, size_t n)
{
    static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
    size_t   len, i;
    uint32_t c;

    if (p[0] < 0x80)
        return 1;

    len = p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2;
    if (p[0] < 0xc0 || p[0] > 0xf7 || n < len)
        return 0;

    c = p[0] & (0x7fu >> len);
    for (i = 1; i < len; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return 0;
        c = c << 6 | (p[i] & 0x3f);
    }

    return c >= least[len] && c <= 0x10ffff && (c < 0xd800 || c > 0xdfff)
           ? len : 0;
}

/* Can the n < 4 bytes at p be continued to a character? */
static inline bool
model_prefix(const unsigned char *p, size_t n)
{
    static const unsigned char more[] = { 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf };
    unsigned char              c[4];
    size_t                     i, j;

    memset(c, 0x80, sizeof(c));
    memcpy(c, p, n);

    for (j = n; j <= 4; j++) {
        if (j > n && model_char(c, j) == j)
            return true;
        for (i = 0; n < 4 && i < sizeof(more); i++) {
            c[n] = more[i];
            if (j > n && model_char(c, j) == j)
                return true;
        }
    }

    return false;
}

/* Decode with one U+FFFD for each maximal subpart. */
static inline void
model_decode(const char *s, size_t n, text_t *out)
{
    const unsigned char *p = (const unsigned char *) s;
    size_t               i = 0, k;

    while (i < n) {
        k = model_char(p + i, n - i);
        if (k != 0) {
            text_add(out, p + i, k);
            i += k;
            continue;
        }

        text_add(out, "\xef\xbf\xbd", 3);
        for (k = 1; k < 3 && i + k < n && model_prefix(p + i, k + 1); k++) {
            /* void */
        }
        i += k;
    }
}

/* ----------------------------------------------------------- stop strings */

/* First place where a stop string that begins at or after `from` is complete:
 * the text before the longest of those.  False: none. */
static inline bool
model_stop(const char *s, size_t n, size_t from, const di_str_t *stops,
           size_t n_stops, size_t *cut, size_t *seen)
{
    size_t end, i, best;

    for (end = from; end <= n; end++) {
        best = 0;
        for (i = 0; i < n_stops; i++) {
            if (stops[i].len <= end - from && stops[i].len > best
                && memcmp(s + end - stops[i].len, stops[i].data, stops[i].len)
                   == 0)
                best = stops[i].len;
        }
        if (best != 0) {
            *cut = end - best;
            *seen = end;
            return true;
        }
    }

    return false;
}

/* How many of n bytes may be shown while more can come: not the longest tail
 * from `from` on that begins a stop string, nor an unfinished character. */
static inline size_t
model_ready(const char *s, size_t n, size_t from, const di_str_t *stops,
            size_t n_stops)
{
    size_t i, k, back, held = 0;

    for (i = 0; i < n_stops; i++) {
        for (k = 1; k < stops[i].len && k <= n - from; k++) {
            if (k > held && memcmp(s + n - k, stops[i].data, k) == 0)
                held = k;
        }
    }

    if (held != 0)
        return n - held;

    for (back = 3; back >= 1; back--) {
        if (back <= n && (unsigned char) s[n - back] >= 0xc2
            && model_char((const unsigned char *) s + n - back, back) == 0
            && model_prefix((const unsigned char *) s + n - back, back))
            return n - back;
    }

    return n;
}

/* ---------------------------------------------------------------- readers */

/* What a stream told about one choice. */
typedef struct {
    text_t   text;               /* deltas, joined                          */
    text_t   bytes;              /* "bytes" of the log-probability entries  */
    size_t   entries;
    int      roles;              /* role chunks                             */
    int      finishes;
    char     reason[16];
    bool     disorder;           /* something before the role or after the
                                  * finish chunk                            */
} seen_choice_t;

typedef struct {
    seen_choice_t choices[8];
    int           chunks;
    int           usages;        /* chunks with a usage object              */
    int           usage_nulls;
    long          prompt, completion, total, cached;
    bool          done;          /* [DONE] was the last                     */
    const char   *broken;        /* first violation, or NULL                */
} seen_t;

/* Forget all, without touching the texts' bytes. */
static inline void
seen_reset(seen_t *s)
{
    seen_choice_t *c;
    size_t         n = sizeof(s->choices) / sizeof(s->choices[0]);

    for (c = s->choices; c < s->choices + n; c++) {
        c->text.len = c->bytes.len = c->entries = 0;
        c->roles = c->finishes = 0;
        c->reason[0] = '\0';
        c->disorder = false;
    }

    s->chunks = s->usages = s->usage_nulls = 0;
    s->prompt = s->completion = s->total = s->cached = 0;
    s->done = false;
    s->broken = NULL;
}

static inline void
seen_entries(const json_t *logprobs, seen_choice_t *c)
{
    const json_t *content = json_object_get(logprobs, "content"), *bytes;
    size_t        i, j;
    char          b;

    for (i = 0; i < json_array_size(content); i++) {
        bytes = json_object_get(json_array_get(content, i), "bytes");
        for (j = 0; j < json_array_size(bytes); j++) {
            b = (char) json_integer_value(json_array_get(bytes, j));
            text_add(&c->bytes, &b, 1);
        }
        c->entries++;
        if (!json_is_number(json_object_get(json_array_get(content, i),
                                            "logprob")))
            c->disorder = true;
    }
}

static inline void
seen_usage(const json_t *usage, seen_t *s)
{
    s->prompt = (long) json_integer_value(json_object_get(usage,
                                                          "prompt_tokens"));
    s->completion = (long) json_integer_value(json_object_get(usage,
                                                      "completion_tokens"));
    s->total = (long) json_integer_value(json_object_get(usage,
                                                         "total_tokens"));
    s->cached = (long) json_integer_value(json_object_get(json_object_get(
                          usage, "prompt_tokens_details"), "cached_tokens"));
}

static inline void
seen_chunk(const json_t *v, seen_t *s)
{
    const json_t  *choices = json_object_get(v, "choices"), *choice, *delta;
    const json_t  *usage = json_object_get(v, "usage"), *x;
    seen_choice_t *c;

    s->chunks++;
    if (json_is_object(usage)) {
        s->usages++;
        seen_usage(usage, s);
        if (json_array_size(choices) != 0)
            s->broken = "usage chunk with choices";
        return;
    }
    s->usage_nulls += json_is_null(usage);

    choice = json_array_get(choices, 0);
    if (json_array_size(choices) != 1) {
        s->broken = "not one choice";
        return;
    }

    c = &s->choices[json_integer_value(json_object_get(choice, "index"))];
    delta = json_object_get(choice, "delta");

    c->disorder |= c->finishes > 0;
    if (json_object_get(delta, "role") != NULL) {
        c->disorder |= c->roles++ > 0;
        return;
    }
    c->disorder |= c->roles == 0;

    x = json_object_get(delta, "content");
    if (x != NULL)
        text_add(&c->text, json_string_value(x), json_string_length(x));
    seen_entries(json_object_get(choice, "logprobs"), c);

    x = json_object_get(choice, "finish_reason");
    if (json_is_string(x)) {
        c->finishes++;
        c->disorder |= json_object_size(delta) != 0;
        snprintf(c->reason, sizeof(c->reason), "%s", json_string_value(x));
    }
}

/* Read events; each must be one line and an empty one. */
static inline void
seen_stream(const char *data, size_t len, seen_t *s)
{
    const char *end;
    json_t     *v;

    for (; len > 0; len -= (size_t) (end + 2 - data), data = end + 2) {
        end = memmem(data, len, "\n\n", 2);
        if (end == NULL || end - data < 7 || memcmp(data, "data: ", 6) != 0
            || memchr(data, '\n', (size_t) (end - data)) != NULL
            || memchr(data, '\r', (size_t) (end - data)) != NULL
            || memmem(data, (size_t) (end - data), "\xe2\x80\xa8", 3) != NULL
            || memmem(data, (size_t) (end - data), "\xc2\x85", 2) != NULL
            || s->done)
        {
            s->broken = "not an event";
            return;
        }

        if (end - data == 12 && memcmp(data + 6, "[DONE]", 6) == 0) {
            s->done = true;
            continue;
        }

        v = json_loadb(data + 6, (size_t) (end - data - 6), JSON_ALLOW_NUL,
                       NULL);
        if (v == NULL) {
            s->broken = "not JSON";
            return;
        }
        seen_chunk(v, s);
        json_decref(v);
    }
}

/* Read a whole body into the same form. */
static inline void
seen_body(const char *data, size_t len, seen_t *s)
{
    json_t        *v = json_loadb(data, len, JSON_ALLOW_NUL, NULL);
    const json_t  *choices = json_object_get(v, "choices"), *choice, *x;
    seen_choice_t *c;
    size_t         i;

    if (v == NULL)
        s->broken = "not JSON";

    for (i = 0; i < json_array_size(choices); i++) {
        choice = json_array_get(choices, i);
        c = &s->choices[i];
        x = json_object_get(json_object_get(choice, "message"), "content");
        text_add(&c->text, json_string_value(x), json_string_length(x));
        seen_entries(json_object_get(choice, "logprobs"), c);
        x = json_object_get(choice, "finish_reason");
        snprintf(c->reason, sizeof(c->reason), "%s", json_string_value(x));
    }

    seen_usage(json_object_get(v, "usage"), s);
    json_decref(v);
}

#endif
