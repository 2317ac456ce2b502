/*
 * tokenize.c - bodies of /tokenize and /detokenize, read and written.
 *
 * Fields that Chat Completions knows are left to its reader, which gets the
 * same body if there are messages.  What would change the tokens and isn't
 * done here (another template, a message to go on with) is refused by name.
 */

#include "di_tokenize.h"

#include <stdlib.h>
#include <string.h>

#include "field.h"

#define DEPTH       64
#define TOKENS_MAX  (1u << 20)   /* as many as a body may have values       */

typedef struct {
    di_arena_t    arena;         /* of the tree and the ids                 */
    di_tokenize_t t;
} tokenize_t;

static int
no_memory(di_api_err_t *e)
{
    di_api_err_set(e, 500, "server_error", "internal_error", NULL,
                   "The server ran out of memory.");
    return DI_ENOMEM;
}

static void
close_whole(tokenize_t *w)
{
    di_arena_free(&w->arena);
    free(w);
}

void
di_tokenize_close(di_tokenize_t *t)
{
    if (t != NULL)
        close_whole(t->memory);
}

/* Read the body's tree; *w is owned by the caller. */
static int
read_body(const char *body, size_t len, tokenize_t **whole, di_json_t **root,
          di_api_err_t *e)
{
    tokenize_t *w = calloc(1, sizeof(*w));
    di_err_t    err = { 0 };
    int         rc;

    if (w == NULL)
        return no_memory(e);

    w->t.memory = w;
    rc = di_json_read(&w->arena, body, len, DEPTH, root, &err);

    if (rc != DI_OK) {
        close_whole(w);
        if (rc == DI_ENOMEM)
            return no_memory(e);
        di_api_err_set(e, 400, "invalid_request_error", "invalid_json", NULL,
                       "The body is not valid JSON: %s.", err.text);
        return rc;
    }

    *whole = w;
    return DI_OK;
}

/* The member's value; NULL if it is absent or null. */
static const di_json_t *
field(const di_json_t *root, const char *name)
{
    const di_json_t *v = di_json_get(root, name);

    return v == NULL || v->type == DI_JSON_NULL ? NULL : v;
}

static int
flag(const di_json_t *root, const char *name, bool *out, di_api_err_t *e)
{
    const di_json_t *v = field(root, name);

    return v == NULL ? DI_OK : di_field_bool(v, name, out, e);
}

static int
read_model(const di_json_t *root, di_tokenize_t *t, di_api_err_t *e)
{
    const di_json_t *v = field(root, "model");

    return v == NULL ? DI_OK : di_field_str(v, "model", &t->model, e);
}

static int
refuse(const di_json_t *root, di_api_err_t *e)
{
    static const char *const names[] = {
        "chat_template", "mm_processor_kwargs",
    };
    size_t i;
    bool   on = false;
    int    rc;

    for (i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (field(root, names[i]) != NULL)
            return di_field_refuse(names[i], "the model's dialect is used",
                                   e);
    }

    rc = flag(root, "continue_final_message", &on, e);
    if (rc == DI_OK && on)
        return di_field_refuse("continue_final_message",
                               "an assistant's last message with \"prefix\" "
                               "does that", e);
    return rc;
}

static int
tokenize_fields(const di_json_t *root, di_tokenize_t *t, di_api_err_t *e)
{
    const di_json_t *prompt = field(root, "prompt");
    const di_json_t *messages = field(root, "messages");
    int              rc;

    if (prompt != NULL && messages != NULL)
        return di_field_invalid(e, "messages", "invalid_value",
                                "'prompt' and 'messages' cannot both be "
                                "given.");
    if (prompt == NULL && messages == NULL)
        return di_field_missing("prompt", e);

    t->open = true;
    t->special = prompt != NULL;

    if ((rc = read_model(root, t, e)) != DI_OK
        || (rc = refuse(root, e)) != DI_OK
        || (rc = flag(root, "add_special_tokens", &t->special, e)) != DI_OK
        || (rc = flag(root, "add_generation_prompt", &t->open, e)) != DI_OK
        || (rc = flag(root, "return_token_strs", &t->strings, e)) != DI_OK)
        return rc;

    if (messages != NULL && t->special)
        return di_field_refuse("add_special_tokens", "a conversation has "
                               "those of its dialect", e);

    return prompt == NULL ? DI_OK
                          : di_field_str(prompt, "prompt", &t->prompt, e);
}

int
di_tokenize_parse(const char *body, size_t len, di_tokenize_t **t,
                  di_api_err_t *e)
{
    tokenize_t *w;
    di_json_t  *root;
    int         rc = read_body(body, len, &w, &root, e);

    if (rc != DI_OK)
        return rc;

    rc = tokenize_fields(root, &w->t, e);
    if (rc != DI_OK) {
        close_whole(w);
        return rc;
    }

    *t = &w->t;
    return DI_OK;
}

static int
detokenize_fields(const di_json_t *root, uint32_t vocab, tokenize_t *w,
                  di_api_err_t *e)
{
    const di_json_t *v = field(root, "tokens");
    uint32_t         id;
    int32_t         *ids;
    char             path[32];
    int              rc;

    rc = read_model(root, &w->t, e);
    if (rc != DI_OK)
        return rc;

    if (v == NULL)
        return di_field_missing("tokens", e);

    rc = di_field_array(v, "tokens", TOKENS_MAX, e);
    if (rc != DI_OK)
        return rc;

    ids = di_arena_alloc(&w->arena, (v->v.list.n + 1) * sizeof(*ids));
    if (ids == NULL)
        return no_memory(e);
    w->t.tokens = ids;

    for (v = v->v.list.first; v != NULL; v = v->next) {
        snprintf(path, sizeof(path), "tokens[%zu]", w->t.n_tokens);
        rc = di_field_u32(v, path, 0, vocab - 1, &id, e);
        if (rc != DI_OK)
            return rc;
        ids[w->t.n_tokens++] = (int32_t) id;
    }

    return DI_OK;
}

int
di_detokenize_parse(const char *body, size_t len, uint32_t vocab,
                    di_tokenize_t **t, di_api_err_t *e)
{
    tokenize_t *w;
    di_json_t  *root;
    int         rc = read_body(body, len, &w, &root, e);

    if (rc != DI_OK)
        return rc;

    rc = detokenize_fields(root, vocab, w, e);
    if (rc != DI_OK) {
        close_whole(w);
        return rc;
    }

    *t = &w->t;
    return DI_OK;
}

/* ---------------------------------------------------------------- writing */

/* A byte in GPT-2's alphabet: printable Latin-1 is itself, the others follow
 * from U+0100 on. */
static void
add_byte(di_sbuf_t *b, unsigned char c)
{
    unsigned i, u = 0x100;
    char     s[2];

    if ((c >= 0x21 && c <= 0x7e) || (c >= 0xa1 && c <= 0xac) || c >= 0xae) {
        u = c;

    } else {
        for (i = 0; i < c; i++)
            u += i <= 0x20 || (i >= 0x7f && i <= 0xa0) || i == 0xad;
    }

    if (u < 0x80) {
        s[0] = (char) u;
        di_json_add_text(b, s, 1);
        return;
    }

    s[0] = (char) (0xc0 | u >> 6);
    s[1] = (char) (0x80 | (u & 0x3f));
    di_json_add_text(b, s, 2);
}

static void
write_string(di_sbuf_t *b, const di_vocab_t *vocab, int32_t id)
{
    const char *bytes;
    size_t      i, len = 0;

    bytes = di_vocab_bytes(vocab, id, &len);
    di_sbuf_lit(b, "\"");

    if (di_vocab_is_special(vocab, id)) {
        di_json_add_text(b, bytes, len);

    } else {
        for (i = 0; i < len; i++)
            add_byte(b, (unsigned char) bytes[i]);
    }

    di_sbuf_lit(b, "\"");
}

void
di_tokenize_write(di_sbuf_t *b, const di_vocab_t *vocab, const int32_t *ids,
                  size_t n, uint32_t max_model_len, bool strings)
{
    size_t i;

    di_sbuf_lit(b, "{\"count\":");
    di_json_add_u64(b, n);
    di_sbuf_lit(b, ",\"max_model_len\":");
    if (max_model_len == 0)
        di_sbuf_lit(b, "null");
    else
        di_json_add_u64(b, max_model_len);
    di_sbuf_lit(b, ",\"tokens\":[");

    for (i = 0; i < n; i++) {
        if (i > 0)
            di_sbuf_lit(b, ",");
        di_json_add_i64(b, ids[i]);
    }

    di_sbuf_lit(b, "],\"token_strs\":");

    if (!strings) {
        di_sbuf_lit(b, "null}");
        return;
    }

    di_sbuf_lit(b, "[");

    for (i = 0; i < n; i++) {
        if (i > 0)
            di_sbuf_lit(b, ",");
        write_string(b, vocab, ids[i]);
    }

    di_sbuf_lit(b, "]}");
}

void
di_detokenize_write(di_sbuf_t *b, const di_vocab_t *vocab, const int32_t *ids,
                    size_t n)
{
    di_sbuf_t   text = { 0 };
    const char *bytes;
    size_t      i, len;

    for (i = 0; i < n; i++) {
        bytes = di_vocab_bytes(vocab, ids[i], &len);
        if (bytes != NULL)
            di_sbuf_add(&text, bytes, len);
    }

    di_sbuf_lit(b, "{\"prompt\":");
    di_json_add_string(b, text.data, text.len);
    di_sbuf_lit(b, "}");

    b->failed |= text.failed;
    di_sbuf_free(&text);
}

void
di_count_tokens_write(di_sbuf_t *b, uint64_t n)
{
    di_sbuf_lit(b, "{\"input_tokens\":");
    di_json_add_u64(b, n);
    di_sbuf_lit(b, "}");
}
