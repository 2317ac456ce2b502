/*
 * ctx.c - a compilation: its memory, its limits, its end.
 *
 * The arena hands out zeroed memory from blocks of 64 KB or more and frees
 * it all at the end.  Running out of a limit, and every reason to refuse the
 * input, is a longjmp() to di_gram_compile(), the only place that knows what
 * is to be freed.
 */

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "build.h"

#define BLOCK_BYTES     (64u * 1024)
#define MEMORY_DEFAULT  ((size_t) 128 << 20)
#define BLOB_DEFAULT    ((size_t) 16 << 20)
#define WORK_DEFAULT    20000000u
#define INPUT_MAX       ((size_t) 8 << 20)

struct di_gram_block_s {
    di_gram_block_t *next;
    size_t           used;      /* bytes                                     */
    size_t           size;
    _Alignas(16) uint8_t data[];
};

void
di_gram_fail(di_gram_ctx_t *c, int code, const char *keyword,
             const char *path, const char *fmt, ...)
{
    di_gram_err_t *e = c->err;
    va_list        ap;

    e->code = code;
    (void) snprintf(e->keyword, sizeof(e->keyword), "%s", keyword);
    (void) snprintf(e->path, sizeof(e->path), "%s", path);
    va_start(ap, fmt);
    (void) vsnprintf(e->text, sizeof(e->text), fmt, ap);
    va_end(ap);
    longjmp(c->out, 1);
}

void
di_gram_work(di_gram_ctx_t *c, uint64_t steps)
{
    if (steps > c->work_left)
        di_gram_fail(c, DI_ELIMIT, "grammar", "",
                     "takes too long to compile");
    c->work_left -= steps;
}

void *
di_gram_alloc(di_gram_ctx_t *c, size_t n, size_t size)
{
    di_gram_block_t *b = c->blocks;
    size_t           bytes, room;
    void            *p;

    if (__builtin_mul_overflow(n, size, &bytes) || bytes > SIZE_MAX / 2)
        di_gram_fail(c, DI_ELIMIT, "grammar", "", "is too large");
    bytes = (bytes + 15) & ~(size_t) 15;

    if (b == NULL || b->size - b->used < bytes) {
        room = bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES;
        if (room > c->memory_left)
            di_gram_fail(c, DI_ELIMIT, "grammar", "",
                         "takes too much memory to compile");
        b = malloc(sizeof(*b) + room);
        if (b == NULL)
            di_gram_fail(c, DI_ENOMEM, "grammar", "", "no memory");
        c->memory_left -= room;
        b->used = 0;
        b->size = room;
        b->next = c->blocks;
        c->blocks = b;
    }
    p = b->data + b->used;
    b->used += bytes;
    return memset(p, 0, bytes);
}

/* Make room for one element more. */
void *
di_gram_grow(di_gram_ctx_t *c, void *p, uint32_t used, uint32_t *cap,
             size_t size)
{
    void *grown;

    if (used < *cap)
        return p;
    *cap = *cap == 0 ? 8 : *cap * 2;
    grown = di_gram_alloc(c, *cap, size);
    if (used > 0)
        memcpy(grown, p, used * size);
    return grown;
}

uint32_t
di_gram_rule_new(di_gram_ctx_t *c, const char *name)
{
    c->rules = di_gram_grow(c, c->rules, c->n_rules, &c->rules_cap,
                            sizeof(*c->rules));
    c->rules[c->n_rules] = (di_gram_rule_t) { .name = name };
    return c->n_rules++;
}

static void
set_root(di_gram_ctx_t *c, const di_gram_node_t *node)
{
    c->root = di_gram_rule_new(c, NULL);
    c->rules[c->root].dfa = di_gram_dfa_merge(c, di_gram_node_dfa(c, node));
}

static void
load_json(di_gram_ctx_t *c, const char *s, size_t len)
{
    json_error_t e;

    c->json = json_loadb(s, len, JSON_DECODE_ANY | JSON_ALLOW_NUL, &e);
    if (c->json == NULL)
        di_gram_fail(c, DI_EFORMAT, "json", "", "%s (line %d)", e.text,
                     e.line);
}

static void
choices(di_gram_ctx_t *c)
{
    di_gram_node_t *alt = di_gram_node(c, DI_GRAM_N_ALT);
    const json_t   *v;
    size_t          i;

    if (!json_is_array(c->json) || json_array_size(c->json) == 0)
        di_gram_fail(c, DI_EFORMAT, "choice", "",
                     "must be a list of strings, not empty");
    json_array_foreach(c->json, i, v) {
        if (!json_is_string(v))
            di_gram_fail(c, DI_EFORMAT, "choice", "", "must hold strings");
        di_gram_node_add(alt, di_gram_node_text(c, json_string_value(v),
                                                json_string_length(v)));
    }
    set_root(c, alt);
}

static void
compile(di_gram_ctx_t *c, di_gram_kind_t kind, const char *text, size_t len)
{
    if (len > INPUT_MAX)
        di_gram_fail(c, DI_ELIMIT, "grammar", "", "is over %zu bytes",
                     INPUT_MAX);
    switch (kind) {
    case DI_GRAM_SCHEMA:
        load_json(c, text, len);
        di_gram_schema(c, c->json);
        break;
    case DI_GRAM_CHOICE:
        load_json(c, text, len);
        choices(c);
        break;
    case DI_GRAM_REGEX:
        set_root(c, di_gram_regex(c, text, len, false, ""));
        break;
    case DI_GRAM_EBNF:
        di_gram_ebnf(c, text, len);
        break;
    }
    di_gram_link(c);
}

int
di_gram_compile(di_gram_kind_t kind, const char *text, size_t len,
                const di_gram_opts_t *opts, void **blob, size_t *blob_bytes,
                di_gram_err_t *err)
{
    di_gram_err_t    own;
    di_gram_ctx_t    c = { .opts = *opts, .err = err != NULL ? err : &own };
    di_gram_block_t *b, *next;
    volatile int     rc = DI_OK;

    if (c.opts.limits.memory_bytes == 0)
        c.opts.limits.memory_bytes = MEMORY_DEFAULT;
    if (c.opts.limits.blob_bytes == 0)
        c.opts.limits.blob_bytes = BLOB_DEFAULT;
    c.memory_left = c.opts.limits.memory_bytes;
    c.work_left = opts->limits.work != 0 ? opts->limits.work : WORK_DEFAULT;
    c.ws_rule = DI_GRAM_NONE;

    if (setjmp(c.out) == 0)
        compile(&c, kind, text, len);
    else
        rc = c.err->code;

    for (b = c.blocks; b != NULL; b = next) {
        next = b->next;
        free(b);
    }
    json_decref(c.json);
    if (rc != DI_OK) {
        free(c.blob);
        return rc;
    }
    *blob = c.blob;
    *blob_bytes = c.blob_bytes;
    return DI_OK;
}
