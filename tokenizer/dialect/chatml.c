/*
 * chatml.c - the dialect of SmolLM2, Qwen 1.5 and 2 and many others:
 *
 *     <|im_start|>ROLE\nCONTENT<|im_end|>\n ... <|im_start|>assistant\n
 *
 * Known templates.  A template is known if its text, in a normal form, has
 * one of the SHA-256 sums below.  The normal form has the newline escapes of
 * string literals as newlines (both spellings occur in files and mean the
 * same), no final newline, and "@" in place of the default system prompt:
 * the first literal that follows `<|im_start|>system\n` and ends at
 * `<|im_end|>` without a quote in between.  So one sum stands for a family of
 * models, each with the prompt that its own template carries, and any other
 * change of the text makes the template unknown.  All known ones agree for
 * conversations without tools: the default prompt is written if and only if
 * the first message is not a system message.
 *
 * Roles.  "developer" is what OpenAI calls the system role for newer models;
 * no ChatML model was trained with it, so it is spelled "system", and counts
 * as one for the default prompt.  "tool" has no spelling here.  Names of
 * participants have none either: the templates leave them out.
 */

#include "dialect.h"

#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#define START   "<|im_start|>"
#define END     "<|im_end|>"
#define SYSTEM  "system"

typedef struct {
    di_dialect_t base;
    int32_t      start;          /* id of <|im_start|>                      */
    int32_t      end;            /* id of <|im_end|>                        */
    char        *system;         /* default system prompt, NULL: none       */
    size_t       system_len;
} chatml_t;

static const unsigned char known[][32] = {
    /* default prompt at the first message (SmolLM2, Qwen 1.5, Qwen2) */
    { 0x69, 0xe7, 0x3d, 0x1f, 0x8a, 0x0e, 0xe0, 0x39,
      0x47, 0xb9, 0x53, 0xc6, 0x8d, 0x2d, 0xdd, 0xca,
      0xa7, 0x9e, 0xd2, 0xfc, 0xa8, 0x02, 0xd8, 0xe3,
      0x4b, 0x12, 0x64, 0xc0, 0xa5, 0xee, 0x12, 0x20 },
    /* no default prompt */
    { 0x15, 0x32, 0x80, 0xe3, 0xff, 0x55, 0xd1, 0x9d,
      0xa1, 0x39, 0x8b, 0xdb, 0x39, 0x14, 0xee, 0x2a,
      0x51, 0xb8, 0x04, 0x29, 0xbf, 0xae, 0xdd, 0xe1,
      0x1d, 0x7d, 0x21, 0x6c, 0x39, 0xdb, 0x80, 0xf3 },
    /* no default prompt, flag defaulted */
    { 0x58, 0xc1, 0xa1, 0xf0, 0x4b, 0xaa, 0x7a, 0xda,
      0xea, 0xba, 0x1f, 0x90, 0x26, 0x7c, 0x3d, 0x57,
      0xd9, 0x39, 0x6f, 0x0c, 0x1f, 0x01, 0x29, 0xbd,
      0xde, 0x9e, 0x76, 0xd3, 0xc6, 0x78, 0x4a, 0xf7 },
};

/* -------------------------------------------------------------- templates */

/* Length of a newline, real or escaped, at p; or 0. */
static size_t
newline(const char *p, const char *end)
{
    if (p < end && *p == '\n')
        return 1;

    return end - p >= 2 && p[0] == '\\' && p[1] == 'n' ? 2 : 0;
}

/* The default system prompt as the template's text spells it, or data NULL. */
static di_str_t
find_system(di_str_t t)
{
    const char *p = t.data, *end = t.data + t.len, *from, *to;
    size_t      n;

    for ( ;; ) {
        p = memmem(p, (size_t) (end - p), START SYSTEM,
                   sizeof(START SYSTEM) - 1);
        if (p == NULL)
            return (di_str_t) { NULL, 0 };

        p += sizeof(START SYSTEM) - 1;
        n = newline(p, end);
        if (n == 0)
            continue;

        from = p + n;
        to = memmem(from, (size_t) (end - from), END, sizeof(END) - 1);
        if (to != NULL && to != from
            && memchr(from, '\'', (size_t) (to - from)) == NULL
            && memchr(from, '"', (size_t) (to - from)) == NULL)
            return (di_str_t) { from, (size_t) (to - from) };
    }
}

/* SHA-256 of the normal form.  False: out of memory. */
static bool
template_sum(di_str_t t, unsigned char sum[32])
{
    di_str_t    system = find_system(t);
    const char *p = t.data, *end = t.data + t.len;
    char       *text;
    size_t      n = 0, k;
    bool        ok;

    if (t.len > 0 && end[-1] == '\n')
        end--;

    text = malloc(t.len + 1);
    if (text == NULL)
        return false;

    while (p < end) {
        k = newline(p, end);

        if (k != 0) {
            text[n++] = '\n';
            p += k;

        } else if (system.data != NULL && (size_t) (end - p) >= system.len
                   && memcmp(p, system.data, system.len) == 0)
        {
            text[n++] = '@';
            p += system.len;

        } else {
            text[n++] = *p++;
        }
    }

    ok = EVP_Digest(text, n, sum, NULL, EVP_sha256(), NULL) == 1;
    free(text);
    return ok;
}

static int
knows(di_str_t template_text, bool *yes)
{
    unsigned char sum[32];
    size_t        i;

    *yes = false;
    if (!template_sum(template_text, sum))
        return DI_ENOMEM;

    for (i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        *yes |= memcmp(sum, known[i], sizeof(sum)) == 0;

    return DI_OK;
}

int
di_chatml_system(di_str_t template_text, char **system, size_t *len)
{
    di_str_t    spelled = find_system(template_text);
    const char *p, *end;
    size_t      k;

    *system = NULL;
    *len = 0;
    if (spelled.data == NULL)
        return DI_OK;

    *system = malloc(spelled.len);
    if (*system == NULL)
        return DI_ENOMEM;

    /* A literal may have the escapes \n and \\. */
    end = spelled.data + spelled.len;
    for (p = spelled.data; p < end; ) {
        k = newline(p, end);

        if (k != 0) {
            (*system)[(*len)++] = '\n';
            p += k;
            continue;
        }

        p += end - p >= 2 && p[0] == '\\' && p[1] == '\\';
        (*system)[(*len)++] = *p++;
    }

    return DI_OK;
}

/* The default prompt, if the template is known. */
static int
set_system(chatml_t *c, di_str_t template_text)
{
    bool yes;
    int  rc = knows(template_text, &yes);

    if (rc != DI_OK || !yes)
        return rc;

    return di_chatml_system(template_text, &c->system, &c->system_len);
}

/* ------------------------------------------------------------ open, close */

static void
chatml_close(di_dialect_t *dialect)
{
    chatml_t *c = (chatml_t *) dialect;

    free(c->system);
    free(c);
}

static int
chatml_open(const di_vocab_t *vocab, di_str_t template_text,
            di_dialect_t **dialect, di_err_t *err)
{
    chatml_t *c;
    int       rc;

    c = calloc(1, sizeof(*c));
    if (c == NULL)
        return di_err_set(err, DI_ENOMEM, 0, "out of memory");

    c->base.ops = &di_dialect_chatml;
    c->base.caps = DI_CAN_PREFIX;

    rc = di_dialect_special(vocab, "chatml", START, &c->start, err);
    if (rc == DI_OK)
        rc = di_dialect_special(vocab, "chatml", END, &c->end, err);

    if (rc == DI_OK && template_text.data != NULL
        && set_system(c, template_text) != DI_OK)
        rc = di_err_set(err, DI_ENOMEM, 0, "out of memory");

    if (rc != DI_OK) {
        chatml_close(&c->base);
        return rc;
    }

    *dialect = &c->base;
    return DI_OK;
}

/* -------------------------------------------------------------- rendering */

static void
render_turn(const chatml_t *c, const char *role, const char *text, size_t len,
            di_pieces_t *pieces)
{
    di_pieces_special(pieces, c->start, START);
    di_pieces_text(pieces, role, strlen(role));
    di_pieces_text(pieces, "\n", 1);
    di_pieces_text(pieces, text, len);
    di_pieces_special(pieces, c->end, END);
    di_pieces_text(pieces, "\n", 1);
}

/* A prefix is a turn that isn't over. */
static void
render_prefix(const chatml_t *c, const di_msg_t *m, di_pieces_t *pieces)
{
    di_pieces_special(pieces, c->start, START);
    di_pieces_put(pieces, "assistant\n");
    di_pieces_str(pieces, m->content);
}

static int
chatml_render(const di_dialect_t *dialect, const di_conv_t *conv,
              di_pieces_t *pieces, di_err_t *err)
{
    static const char *const roles[] = {
        [DI_ROLE_SYSTEM] = SYSTEM, [DI_ROLE_DEVELOPER] = SYSTEM,
        [DI_ROLE_USER] = "user", [DI_ROLE_ASSISTANT] = "assistant",
        [DI_ROLE_TOOL] = NULL, [DI_ROLE_REMINDER] = NULL,
    };
    const chatml_t *c = (const chatml_t *) dialect;
    const di_msg_t *m;
    size_t          i;

    if (conv->n_msgs == 0)
        return di_err_set(err, DI_EINVAL, 0, "messages: empty conversation");

    m = &conv->msgs[0];
    if (c->system != NULL && m->role != DI_ROLE_SYSTEM
        && m->role != DI_ROLE_DEVELOPER)
        render_turn(c, SYSTEM, c->system, c->system_len, pieces);

    for (i = 0; i < conv->n_msgs; i++) {
        m = &conv->msgs[i];
        if (roles[m->role] == NULL)
            return di_dialect_no_role(err, "chatml", m->role, i);

        if (m->prefix) {
            render_prefix(c, m, pieces);
            return DI_OK;
        }

        render_turn(c, roles[m->role], m->content.data, m->content.len,
                    pieces);
    }

    if (conv->open_assistant) {
        di_pieces_special(pieces, c->start, START);
        di_pieces_put(pieces, "assistant\n");
    }

    return DI_OK;
}

const di_dialect_ops_t di_dialect_chatml = {
    .name = "chatml",
    .knows = knows,
    .open = chatml_open,
    .close = chatml_close,
    .render = chatml_render,
};
