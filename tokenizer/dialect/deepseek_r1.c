/*
 * deepseek_r1.c - the dialect of DeepSeek R1 and the models distilled from
 * it:
 *
 *     BOS system USER user ASST answer EOS ... ASST <think> \n
 *
 * The model always thinks; earlier reasoning is left out.  Its template has
 * no place for the definitions of tools, so there are none.
 *
 * Recognised by the marks that all its templates share: the turns' tokens,
 * and a prompt that ends in <think>.
 */

#include "output.h"

#include <stdlib.h>
#include <string.h>

#define MARK(name)  "<\xef\xbd\x9c" name "\xef\xbd\x9c>"

enum { BOS, EOS, USER, ASST, THINK, END_THINK, N_SPECIAL };

static const char *const spellings[N_SPECIAL] = {
    [BOS] = MARK("begin\xe2\x96\x81of\xe2\x96\x81sentence"),
    [EOS] = MARK("end\xe2\x96\x81of\xe2\x96\x81sentence"),
    [USER] = MARK("User"),
    [ASST] = MARK("Assistant"),
    [THINK] = "<think>",
    [END_THINK] = "</think>",
};

typedef struct {
    di_dialect_t base;
    int32_t      ids[N_SPECIAL];
} r1_t;

static void
special(const r1_t *d, di_pieces_t *p, int which)
{
    di_pieces_special(p, d->ids[which], spellings[which]);
}

/* All system messages stand in front. */
static void
put_system(const di_conv_t *conv, di_pieces_t *p)
{
    const di_msg_t *m = conv->msgs, *end = m + conv->n_msgs;
    size_t          n = 0;

    for (; m < end; m++) {
        if (m->role != DI_ROLE_SYSTEM && m->role != DI_ROLE_DEVELOPER)
            continue;
        if (n++ > 0)
            di_pieces_put(p, "\n\n");
        di_pieces_str(p, m->content);
    }
}

static void
put_prefix(const r1_t *d, const di_msg_t *m, di_pieces_t *p)
{
    special(d, p, ASST);
    special(d, p, THINK);
    di_pieces_put(p, "\n");
    di_pieces_str(p, m->reasoning);

    if (m->content.len == 0)
        return;

    di_pieces_put(p, "\n");
    special(d, p, END_THINK);
    di_pieces_put(p, "\n\n");
    di_pieces_str(p, m->content);
}

static int
r1_render(const di_dialect_t *dialect, const di_conv_t *conv,
          di_pieces_t *p, di_err_t *err)
{
    const r1_t     *d = (const r1_t *) dialect;
    const di_msg_t *m;
    size_t          i;

    special(d, p, BOS);
    put_system(conv, p);

    for (i = 0; i < conv->n_msgs; i++) {
        m = &conv->msgs[i];

        switch (m->role) {

        case DI_ROLE_SYSTEM:
        case DI_ROLE_DEVELOPER:
            continue;

        case DI_ROLE_USER:
            special(d, p, USER);
            di_pieces_str(p, m->content);
            continue;

        case DI_ROLE_ASSISTANT:
            if (m->prefix) {
                put_prefix(d, m, p);
                return DI_OK;
            }
            special(d, p, ASST);
            di_pieces_str(p, m->content);
            special(d, p, EOS);
            continue;

        default:
            return di_dialect_no_role(err, "deepseek-r1", m->role, i);
        }
    }

    if (conv->open_assistant) {
        special(d, p, ASST);
        special(d, p, THINK);
        di_pieces_put(p, "\n");
    }

    return DI_OK;
}

static void
r1_reasoning(di_ebnf_t *w)
{
    const r1_t *d = (const r1_t *) w->dialect;

    di_ebnf_free(w, d->ids[END_THINK], spellings[END_THINK]);
    di_ebnf_put(w, " ");
    di_ebnf_mark(w, d->ids[END_THINK], spellings[END_THINK]);
    di_ebnf_put(w, " \"\\n\\n\" ");
}

static int
r1_knows(di_str_t template_text, bool *yes)
{
    static const char *const marks[] = { MARK("User"),
                                         MARK("Assistant") "<think>",
                                         NULL };

    *yes = di_dialect_has(template_text, marks);
    return DI_OK;
}

static void
r1_close(di_dialect_t *dialect)
{
    free(dialect);
}

static int
r1_open(const di_vocab_t *vocab, di_str_t template_text,
        di_dialect_t **dialect, di_err_t *err)
{
    r1_t *d = calloc(1, sizeof(*d));
    int   i, rc = DI_OK;

    (void) template_text;
    if (d == NULL)
        return di_err_set(err, DI_ENOMEM, 0, "out of memory");

    d->base.ops = &di_dialect_deepseek_r1;
    d->base.caps = DI_CAN_THINK | DI_MUST_THINK | DI_CAN_PREFIX;

    for (i = 0; i < N_SPECIAL && rc == DI_OK; i++)
        rc = di_dialect_special(vocab, "deepseek-r1", spellings[i], &d->ids[i],
                                err);

    if (rc != DI_OK) {
        free(d);
        return rc;
    }

    *dialect = &d->base;
    return DI_OK;
}

const di_dialect_ops_t di_dialect_deepseek_r1 = {
    .name = "deepseek-r1",
    .family = DI_FAMILY_PLAIN,
    .knows = r1_knows,
    .open = r1_open,
    .close = r1_close,
    .render = r1_render,
    .reasoning = r1_reasoning,
};
