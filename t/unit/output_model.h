/*
 * output_model.h - outputs of every dialect, made from grammars and parsed.
 *
 * The vocabulary has all bytes, some words that cross the seams of markup,
 * and every marker of every dialect.  A script is bytes in which 1 is
 * DeepSeek's marker of calls, 2 and 3 are <think> and </think>, 4 and 5
 * <tool_call> and </tool_call>.
 */

#ifndef OUTPUT_MODEL_H
#define OUTPUT_MODEL_H

#include <jansson.h>
#include <stdlib.h>

#include "tokenizer/dialect/di_output.h"
#include "tokenizer/dialect/di_parse.h"

#include "check.h"

#define OUTPUT_MARK(name)  "<\xef\xbd\x9c" name "\xef\xbd\x9c>"

enum { OUTPUT_EOS = 256, OUTPUT_FIRST_MARK };

static const char *const output_marks[] = {
    "\xef\xbd\x9c" "DSML" "\xef\xbd\x9c", "<think>", "</think>",
    "<tool_call>", "</tool_call>",
    OUTPUT_MARK("begin\xe2\x96\x81of\xe2\x96\x81sentence"),
    OUTPUT_MARK("System"), OUTPUT_MARK("User"), OUTPUT_MARK("Assistant"),
    OUTPUT_MARK("latest_reminder"), "<|im_start|>", "<|im_end|>",
    "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
    "<|eot_id|>",
};

#define OUTPUT_MARKS  (sizeof(output_marks) / sizeof(output_marks[0]))

static const char *const output_words[] = {
    "<t", "\n\n<", ">\n", "name", "=\"", "\">", " string", "true", "false",
    "</", "{\"", "\": ", "\", \"", "}\n", "parameter", " invoke", "calls",
    "ab", "12", "null", "[]",
};

#define OUTPUT_WORDS  (sizeof(output_words) / sizeof(output_words[0]))

/* Bytes as tokenizer.json spells them: GPT-2's alphabet, in JSON. */
static inline void
output_spell(di_sbuf_t *b, const char *s, size_t len)
{
    char     code[8];
    unsigned c, k;
    size_t   i;

    for (i = 0; i < len; i++) {
        c = (unsigned char) s[i];
        if (c < 0x21 || (c > 0x7e && c < 0xa1) || c == 0xad) {
            unsigned byte = c;

            for (k = 0, c = 0x100; k < byte; k++)
                c += k < 0x21 || (k > 0x7e && k < 0xa1) || k == 0xad;
        }
        sprintf(code, "\\u%04x", c);
        di_sbuf_add(b, code, 6);
    }
}

static inline di_vocab_t *
output_vocab(void)
{
    di_sbuf_t   b = { 0 };
    di_vocab_t *v = NULL;
    di_err_t    err = { 0 };
    char        text[160], c;
    size_t      i, id = OUTPUT_FIRST_MARK;

#define PUT(...)                                                            \
    di_sbuf_add(&b, text, (size_t) sprintf(text, __VA_ARGS__))

    PUT("{\"added_tokens\":[{\"id\":%d,\"content\":\"" OUTPUT_MARK("end\xe2"
        "\x96\x81of\xe2\x96\x81sentence") "\",\"special\":true,"
        "\"normalized\":false}", OUTPUT_EOS);
    for (i = 0; i < OUTPUT_MARKS; i++)
        PUT(",{\"id\":%zu,\"content\":\"%s\",\"special\":%s,\"normalized\":"
            "false}", id++, output_marks[i], i < 5 ? "false" : "true");

    PUT("],\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":"
        "false},\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":"
        "\"BPE\",\"merges\":[],\"vocab\":{");
    for (i = 0; i < 256; i++) {
        PUT("%s\"", i > 0 ? "," : "");
        c = (char) i;
        output_spell(&b, &c, 1);
        PUT("\":%zu", i);
    }
    for (i = 0; i < OUTPUT_WORDS; i++) {
        PUT(",\"");
        output_spell(&b, output_words[i], strlen(output_words[i]));
        PUT("\":%zu", id++);
    }
    PUT("}}}");
#undef PUT

    if (di_vocab_open_hf(b.data, b.len, &v, &err) != DI_OK) {
        printf("the vocabulary: %s\n", err.text);
        exit(1);
    }
    di_sbuf_free(&b);
    return v;
}

/* ------------------------------------------------------------- requests -- */

typedef struct {
    di_dialect_t *dialect;
    di_req_t     *req;
    di_output_t   grammar;
    di_api_err_t  e;
    int           rc;            /* of di_dialect_grammar()                 */
} output_case_t;

/* Fields of a body of Chat become the grammar of their output. */
static inline void
output_open(output_case_t *c, const di_vocab_t *v, const char *dialect,
            const char *template_text, const char *fields)
{
    static const char head[] = "{\"model\":\"m\",\"messages\":[{\"role\":"
                               "\"user\",\"content\":\"json\"}],";
    di_req_options_t o = { .vocab = 1000 };
    di_str_t         t = { template_text, template_text == NULL ? 0
                           : strlen(template_text) };
    di_err_t         err = { 0 };
    di_sbuf_t        b = { 0 };

    memset(c, 0, sizeof(*c));
    if (di_dialect_open(v, t, dialect, &c->dialect, &err) != DI_OK) {
        printf("%s: %s\n", dialect, err.text);
        exit(1);
    }

    o.family = di_dialect_family(c->dialect);
    o.caps = di_dialect_caps(c->dialect) | DI_CAN_CONSTRAIN;
    di_sbuf_add(&b, head, sizeof(head) - 1);
    di_sbuf_add(&b, fields, strlen(fields));
    di_sbuf_add(&b, "}", 1);

    c->rc = di_req_parse(DI_API_CHAT, &o, b.data, b.len, &c->req, &c->e);
    di_sbuf_free(&b);
    if (c->rc == DI_OK)
        c->rc = di_dialect_grammar(c->dialect, di_req_conv(c->req),
                                   di_req_parsing(c->req),
                                   di_req_constraint(c->req), &c->grammar,
                                   &c->e);
}

static inline void
output_close(output_case_t *c)
{
    di_output_free(&c->grammar);
    di_req_close(c->req);
    di_dialect_close(c->dialect);
}

/* The compiled grammar, or NULL and the error as the API has it. */
static inline di_gram_t *
output_compile(output_case_t *c)
{
    const di_constraint_t *k = di_req_constraint(c->req);
    di_gram_opts_t         opts = { .any_order = k->any_order,
                                    .flexible = k->spaces
                                                != DI_SPACES_COMPACT };
    di_gram_err_t          err = { 0 };
    di_gram_t             *g = NULL;
    void                  *blob;
    size_t                 bytes;

    if (di_gram_compile(DI_GRAM_OUTPUT, c->grammar.text.data,
                        c->grammar.text.len, &opts, &blob, &bytes, &err)
        != DI_OK)
    {
        di_output_error(&c->grammar, &err, &c->e);
        return NULL;
    }

    if (di_gram_open(blob, bytes, &g, NULL) != DI_OK)
        g = NULL;
    free(blob);
    return g;
}

/* --------------------------------------------------------------- parsing - */

/* What the parser found, as "R:plan|T:text|C:name|A:{}"; in it "?" stands for
 * NULs and bars. */
typedef struct {
    di_sbuf_t text;
    int       last;
} output_record_t;

static inline void
output_delta(void *ctx, const di_delta_t *d)
{
    static const char *const heads[] = { "|R:", "|T:", "|C:", "|A:" };
    output_record_t         *r = ctx;
    size_t                   i;

    if (d->kind == DI_DELTA_PIECE
        || (d->len == 0 && d->kind != DI_DELTA_CALL))
        return;

    if ((int) d->kind != r->last || d->kind == DI_DELTA_CALL)
        di_sbuf_add(&r->text, heads[d->kind] + (r->text.len == 0),
                    3 - (r->text.len == 0));
    r->last = (int) d->kind;
    for (i = 0; i < d->len; i++)
        di_sbuf_add(&r->text, d->data[i] == '\0' || d->data[i] == '|' ? "?"
                    : d->data + i, 1);
}

static inline void
output_parse(const output_case_t *c, const di_vocab_t *v, const int32_t *ids,
             size_t n, output_record_t *r)
{
    static const di_start_t  starts[] = {
        [DI_STAGE_NONE] = DI_START_ANSWER,
        [DI_STAGE_REASONING_START] = DI_START_REASONING,
        [DI_STAGE_REASONING_CONTINUATION] = DI_START_IN_REASONING,
        [DI_STAGE_CONTENT_CONTINUATION] = DI_START_IN_ANSWER,
    };
    const di_parsing_t      *p = di_req_parsing(c->req);
    const di_parse_options_t o = {
        .spell = di_spell_of(c->dialect), .vocab = v,
        .start = p->forced ? DI_START_IN_CALLS
                 : p->exact && p->stage == DI_STAGE_NONE ? DI_START_IN_ANSWER
                 : starts[p->stage],
        .tools = p->tools, .json = p->json,
    };
    di_rules_t *rules;
    di_parse_t *parse;
    size_t      i;

    memset(r, 0, sizeof(*r));
    r->last = -1;
    if (di_rules_open(&o, &rules) != DI_OK
        || di_parse_open(rules, output_delta, r, &parse) != DI_OK)
        exit(1);

    for (i = 0; i < n; i++)
        di_parse_token(parse, ids[i], true, false);
    di_parse_flush(parse);
    di_parse_finish(parse);
    di_parse_close(parse);
    di_rules_close(rules);
    di_sbuf_add(&r->text, "", 1);
}

/* A script as tokens, a byte or a mark each. */
static inline size_t
output_ids(const char *script, int32_t *ids)
{
    size_t n = 0;

    for (; *script != '\0'; script++)
        ids[n++] = *script >= 1 && *script <= 5
                   ? OUTPUT_FIRST_MARK + *script - 1
                   : (unsigned char) *script;

    return n;
}

#endif
