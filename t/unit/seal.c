/*
 * seal.c - typed special tokens stay text: every added token of DeepSeek's
 * vocabulary and of the small one, in every text field of the three APIs, by
 * every dialect.
 *
 * A body is rendered twice, with the token's spelling in all its fields and
 * with a plain word.  Both must have the same special pieces, and encoding
 * the text between them must give no added token's id.
 */

#include <stdlib.h>

#include "tokenizer/api/di_api.h"
#include "tokenizer/api/json.h"
#include "tokenizer/dialect/dialect.h"

#include "check.h"

/* "~" stands for the token's spelling, inside a JSON string. */
static const char *const bodies[] = {
    [DI_API_CHAT] =
    "{\"model\":\"m~\",\"messages\":[{\"role\":\"system\",\"content\":\"~\","
    "\"name\":\"~\"},{\"role\":\"developer\",\"content\":[{\"type\":\"text\","
    "\"text\":\"~\"},{\"type\":\"text\",\"text\":\"~\"}]},{\"role\":\"user\","
    "\"content\":\"~ ~\"},{\"role\":\"assistant\",\"content\":\"~\","
    "\"reasoning_content\":\"~\",\"tool_calls\":[{\"id\":\"i~\",\"type\":"
    "\"function\",\"function\":{\"name\":\"~\",\"arguments\":\"{\\\"~\\\":"
    "\\\"~\\\",\\\"b\\\":[\\\"~\\\",{\\\"~\\\":1}]}\"}}]},{\"role\":\"tool\","
    "\"tool_call_id\":\"i~\",\"content\":\"~\"},{\"role\":\"user\",\"content\":"
    "[{\"type\":\"text\",\"text\":\"a~b\"}]},{\"role\":\"assistant\","
    "\"refusal\":\"~\"},{\"role\":\"user\",\"content\":\"~\"}],\"stop\":"
    "[\"~\"],\"user\":\"~\",\"tools\":[{\"type\":\"function\",\"function\":{"
    "\"name\":\"f\",\"description\":\"~\",\"parameters\":{\"type\":\"object\","
    "\"description\":\"~\",\"properties\":{\"~\":{\"type\":\"string\","
    "\"enum\":[\"~\"],\"default\":\"~\"}}}}}]}",

    [DI_API_RESPONSES] =
    "{\"model\":\"m~\",\"instructions\":\"~\",\"input\":[{\"role\":\"user\","
    "\"content\":\"~\"},{\"role\":\"developer\",\"content\":[{\"type\":"
    "\"input_text\",\"text\":\"~\"}]},{\"type\":\"reasoning\",\"summary\":[],"
    "\"content\":[{\"type\":\"reasoning_text\",\"text\":\"~\"}]},{\"role\":"
    "\"assistant\",\"content\":[{\"type\":\"output_text\",\"text\":\"~\"}]},{"
    "\"type\":\"function_call\",\"call_id\":\"c~\",\"name\":\"~\","
    "\"namespace\":\"~\",\"arguments\":\"~\"},{\"type\":"
    "\"function_call_output\",\"call_id\":\"c~\",\"output\":\"~\"},{\"type\":"
    "\"custom_tool_call\",\"call_id\":\"d~\",\"name\":\"~\",\"input\":\"~\"},{"
    "\"type\":\"custom_tool_call_output\",\"call_id\":\"d~\",\"output\":[{"
    "\"type\":\"input_text\",\"text\":\"~\"}]},{\"role\":\"user\",\"content\":"
    "\"~\"}],\"tools\":[{\"type\":\"function\",\"name\":\"f\","
    "\"description\":\"~\",\"parameters\":{\"type\":\"object\",\"title\":"
    "\"~\"}},{\"type\":\"namespace\",\"name\":\"n\",\"description\":\"~\","
    "\"tools\":[{\"type\":\"function\",\"name\":\"g\",\"description\":\"~\"}]}"
    ",{\"type\":\"custom\",\"name\":\"p\",\"description\":\"~\"}]}",

    [DI_API_MESSAGES] =
    "{\"model\":\"m~\",\"system\":[{\"type\":\"text\",\"text\":\"~\"},{"
    "\"type\":\"text\",\"text\":\"~\"}],\"messages\":[{\"role\":\"user\","
    "\"content\":\"~\"},{\"role\":\"assistant\",\"content\":[{\"type\":"
    "\"thinking\",\"thinking\":\"~\",\"signature\":\"~\"},{\"type\":\"text\","
    "\"text\":\"~\"},{\"type\":\"tool_use\",\"id\":\"i~\",\"name\":\"~\","
    "\"input\":{\"~\":\"~\",\"b\":[\"~\"]}}]},{\"role\":\"user\",\"content\":"
    "[{\"type\":\"tool_result\",\"tool_use_id\":\"i~\",\"content\":[{\"type\":"
    "\"text\",\"text\":\"~\"}]},{\"type\":\"text\",\"text\":\"~\"}]},{"
    "\"role\":\"assistant\",\"content\":\"~\"},{\"role\":\"user\",\"content\":"
    "\"~\"}],\"stop_sequences\":[\"~\"],\"tools\":[{\"name\":\"f\","
    "\"description\":\"~\",\"input_schema\":{\"type\":\"object\","
    "\"properties\":{\"~\":{\"type\":\"string\",\"description\":\"~\"}}}}]}",
};

static const char *const dialects[] = {
    "deepseek-v4", "deepseek-v4.1", "qwen", "llama3",
};

#define N_DIALECTS  (sizeof(dialects) / sizeof(dialects[0]))

static const di_str_t no_template = { NULL, 0 };
static di_dialect_t  *opened[N_DIALECTS];
static di_vocab_t    *vocab;
static di_tok_t      *tok;

/* The body with a text in all its fields. */
static void
fill(const char *body, const char *text, size_t len, di_sbuf_t *out)
{
    for (; *body != '\0'; body++) {
        if (*body == '~')
            di_json_add_text(out, text, len);
        else
            di_sbuf_add(out, body, 1);
    }
}

static bool
render(const di_dialect_t *d, di_api_t api, const char *text, size_t len,
       di_pieces_t *p)
{
    di_req_options_t o = { .family = di_dialect_family(d),
                           .caps = di_dialect_caps(d), .vocab = 100 };
    di_api_err_t     e = { 0 };
    di_sbuf_t        b = { 0 };
    di_req_t        *req = NULL;
    bool             ok;

    fill(bodies[api], text, len, &b);
    ok = di_req_parse(api, &o, b.data, b.len, &req, &e) == DI_OK
         && di_dialect_render(d, di_req_conv(req), p, NULL) == DI_OK;
    if (!ok)
        printf("%s: %.*s: %s\n", di_dialect_name(d), (int) len, text,
               e.message);

    di_req_close(req);
    di_sbuf_free(&b);
    return ok;
}

/* The next special piece at or after i. */
static size_t
next_special(const di_pieces_t *p, size_t i)
{
    while (i < p->n && !p->pieces[i].special)
        i++;
    return i;
}

static bool
same_specials(const di_pieces_t *a, const di_pieces_t *b)
{
    size_t i = 0, j = 0;

    for ( ;; i++, j++) {
        i = next_special(a, i);
        j = next_special(b, j);
        if (i == a->n || j == b->n)
            return i == a->n && j == b->n;
        if (a->pieces[i].len != b->pieces[j].len
            || memcmp(a->text + a->pieces[i].at, b->text + b->pieces[j].at,
                      a->pieces[i].len) != 0)
            return false;
    }
}

static bool
is_added(int32_t id)
{
    size_t      len;
    const char *s = di_vocab_bytes(vocab, id, &len);

    return di_vocab_special(vocab, s, len) == id;
}

static bool
all_text(const di_pieces_t *p)
{
    static int32_t ids[65536];
    size_t         i, k, n;

    for (i = 0; i < p->n; i++) {
        if (p->pieces[i].special)
            continue;
        if (di_tok_encode(tok, p->text + p->pieces[i].at, p->pieces[i].len,
                          ids, sizeof(ids) / sizeof(ids[0]), &n) != DI_OK)
            return false;
        for (k = 0; k < n; k++) {
            if (is_added(ids[k]))
                return false;
        }
    }

    return true;
}

static void
check_token(const char *text, size_t len)
{
    di_pieces_t plain, typed;
    di_api_t    api;
    size_t      i;

    for (i = 0; i < N_DIALECTS; i++) {
        for (api = DI_API_CHAT; api <= DI_API_MESSAGES; api++) {
            plain = typed = (di_pieces_t) { 0 };
            CHECK(render(opened[i], api, "word", 4, &plain));
            CHECK(render(opened[i], api, text, len, &typed));
            CHECK(same_specials(&plain, &typed));
            CHECK(all_text(&typed));
            di_pieces_free(&plain);
            di_pieces_free(&typed);
        }
    }
}

static void
check_vocab(const char *name)
{
    char        command[128], *json = NULL;
    size_t      len = 0, cap = 0, n, added = 0;
    FILE       *f;
    di_err_t    err = { 0 };
    const char *s;
    int32_t     id;

    snprintf(command, sizeof(command), "gzip -dc t/data/tokenizer/%s/"
             "tokenizer.json.gz", name);
    f = popen(command, "r");
    do {
        json = realloc(json, cap += 1 << 20);
        n = fread(json + len, 1, cap - len, f);
        len += n;
    } while (n > 0);
    CHECK_EQ_INT(pclose(f), 0);

    CHECK_EQ_INT(di_vocab_open_hf(json, len, &vocab, &err), DI_OK);
    free(json);
    if (vocab == NULL || di_tok_open(vocab, &tok) != DI_OK)
        return;

    for (id = 0; id < (int32_t) di_vocab_size(vocab); id++) {
        s = di_vocab_bytes(vocab, id, &n);
        if (n == 0 || !is_added(id))
            continue;
        check_token(s, n);
        added++;
    }

    printf("%s: %zu added tokens\n", name, added);
    CHECK(added > 0);
    di_tok_close(tok);
    di_vocab_close(vocab);
    vocab = NULL;
}

int
main(void)
{
    size_t i;

    for (i = 0; i < N_DIALECTS; i++)
        CHECK_EQ_INT(di_dialect_open(NULL, no_template, dialects[i],
                                     &opened[i], NULL), DI_OK);

    check_vocab("small");
    check_vocab("deepseek");

    for (i = 0; i < N_DIALECTS; i++)
        di_dialect_close(opened[i]);
    return check_done("seal");
}
