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
    e->part = c->part;
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
    c->rules[c->n_rules] = (di_gram_rule_t) { .name = name, .part = c->part };
    return c->n_rules++;
}

json_t *
di_gram_keep(di_gram_ctx_t *c, json_t *v)
{
    if (c->json == NULL)
        c->json = json_array();
    if (v == NULL || json_array_append_new(c->json, v) != 0)
        di_gram_fail(c, DI_ENOMEM, "json", "", "no memory");
    return v;
}

json_t *
di_gram_json(di_gram_ctx_t *c, const char *s, size_t len, size_t *used)
{
    const size_t flags = JSON_DECODE_ANY | JSON_ALLOW_NUL
                         | (used != NULL ? JSON_DISABLE_EOF_CHECK : 0);
    json_error_t e;
    json_t      *v = json_loadb(s, len, flags, &e);

    if (v == NULL)
        di_gram_fail(c, DI_EFORMAT, "json", "", "%s (line %d)", e.text,
                     e.line);
    if (used != NULL)
        *used = (size_t) e.position;
    return di_gram_keep(c, v);
}

static uint32_t
node_rule(di_gram_ctx_t *c, const di_gram_node_t *node)
{
    uint32_t r = di_gram_rule_new(c, NULL);

    c->rules[r].dfa = di_gram_dfa_merge(c, di_gram_node_dfa(c, node));
    return r;
}

static uint32_t
choices(di_gram_ctx_t *c, const json_t *list)
{
    di_gram_node_t *alt = di_gram_node(c, DI_GRAM_N_ALT);
    const json_t   *v;
    size_t          i;

    if (!json_is_array(list) || json_array_size(list) == 0)
        di_gram_fail(c, DI_EFORMAT, "choice", "",
                     "must be a list of strings, not empty");
    json_array_foreach(list, i, v) {
        if (!json_is_string(v))
            di_gram_fail(c, DI_EFORMAT, "choice", "", "must hold strings");
        di_gram_node_add(alt, di_gram_node_text(c, json_string_value(v),
                                                json_string_length(v)));
    }
    return node_rule(c, alt);
}

uint32_t
di_gram_compile_json(di_gram_ctx_t *c, di_gram_kind_t kind, json_t *v)
{
    return kind == DI_GRAM_SCHEMA ? di_gram_schema(c, v) : choices(c, v);
}

uint32_t
di_gram_compile_text(di_gram_ctx_t *c, di_gram_kind_t kind, const char *s,
                     size_t len)
{
    if (kind == DI_GRAM_REGEX)
        return node_rule(c, di_gram_regex(c, s, len, false, ""));
    return di_gram_ebnf(c, s, len, kind == DI_GRAM_OUTPUT);
}

static void
compile(di_gram_ctx_t *c, di_gram_kind_t kind, const char *text, size_t len)
{
    if (len > INPUT_MAX)
        di_gram_fail(c, DI_ELIMIT, "grammar", "", "is over %zu bytes",
                     INPUT_MAX);
    if (kind == DI_GRAM_SCHEMA || kind == DI_GRAM_CHOICE)
        c->root = di_gram_compile_json(c, kind,
                                       di_gram_json(c, text, len, NULL));
    else
        c->root = di_gram_compile_text(c, kind, text, len);
    di_gram_link(c);
}

static void
free_blocks(di_gram_ctx_t *c)
{
    di_gram_block_t *b, *next;

    for (b = c->blocks; b != NULL; b = next) {
        next = b->next;
        free(b);
    }
    c->blocks = NULL;
}

/* Compile once, from nothing but what earlier attempts changed. */
static int
attempt(di_gram_ctx_t *c, di_gram_kind_t kind, const char *text, size_t len)
{
    free_blocks(c);
    json_decref(c->json);
    *c = (di_gram_ctx_t) {
        .opts = c->opts, .err = c->err, .work_left = c->work_left,
        .memory_left = c->opts.limits.memory_bytes, .changed = c->changed,
        .ws_rule = DI_GRAM_NONE, .part = -1,
    };
    if (setjmp(c->out) != 0)
        return c->err->code;
    compile(c, kind, text, len);
    return DI_OK;
}

/* Without the keyword at fault, the next attempt may do; false: it won't. */
static bool
may_try_again(di_gram_ctx_t *c, di_gram_dropped_t *dropped)
{
    size_t at = c->err->part < 0 ? 0 : (size_t) c->err->part;

    if (!(c->opts.best_effort || c->lenient) || !di_gram_drop(c, dropped))
        return false;
    if (c->changed == NULL)
        c->changed = json_array();
    while (json_array_size(c->changed) <= at) {
        if (json_array_append_new(c->changed, json_null()) != 0)
            return false;
    }
    return json_array_set(c->changed, at, c->doc) == 0;
}

int
di_gram_compile(di_gram_kind_t kind, const char *text, size_t len,
                const di_gram_opts_t *opts, void **blob, size_t *blob_bytes,
                di_gram_err_t *err)
{
    di_gram_dropped_t own_dropped, *dropped = opts->dropped;
    di_gram_err_t     own_err;
    di_gram_ctx_t     c = { .opts = *opts, .err = err };
    int               rc;

    if (err == NULL)
        c.err = &own_err;
    if (dropped == NULL)
        dropped = &own_dropped;
    dropped->n = 0;
    if (c.opts.limits.memory_bytes == 0)
        c.opts.limits.memory_bytes = MEMORY_DEFAULT;
    if (c.opts.limits.blob_bytes == 0)
        c.opts.limits.blob_bytes = BLOB_DEFAULT;
    c.work_left = opts->limits.work != 0 ? opts->limits.work : WORK_DEFAULT;

    rc = attempt(&c, kind, text, len);
    while (rc != DI_OK && may_try_again(&c, dropped))
        rc = attempt(&c, kind, text, len);

    free_blocks(&c);
    json_decref(c.json);
    json_decref(c.changed);
    if (rc != DI_OK) {
        free(c.blob);
        return rc;
    }
    *blob = c.blob;
    *blob_bytes = c.blob_bytes;
    return DI_OK;
}
