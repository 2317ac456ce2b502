/*
 * dialect.c - choosing a dialect; from conversation to token ids.
 *
 * Only special ids that a dialect wrote as such are in a prompt: text goes
 * through di_tok_encode(), which never makes one.  No BOS is added here: a
 * template that has one spells it, and what the template says is what the
 * model was trained on.
 */

#include "dialect.h"

#include <stdlib.h>
#include <string.h>

static const di_dialect_ops_t *const dialects[] = {
    &di_dialect_chatml, &di_dialect_qwen, &di_dialect_llama3,
    &di_dialect_deepseek_r1, &di_dialect_deepseek_v4, &di_dialect_deepseek_v41,
};

#define N_DIALECTS  (sizeof(dialects) / sizeof(dialects[0]))

/* ----------------------------------------------------------------- pieces */

static di_piece_t *
add_piece(di_pieces_t *p)
{
    di_piece_t *pieces;
    size_t      cap;

    if (p->failed)
        return NULL;

    if (p->n == p->n_cap) {
        cap = p->n_cap == 0 ? 32 : p->n_cap * 2;
        pieces = realloc(p->pieces, cap * sizeof(*pieces));
        if (pieces == NULL) {
            p->failed = true;
            return NULL;
        }
        p->pieces = pieces;
        p->n_cap = cap;
    }

    return &p->pieces[p->n++];
}

static void
text_room(di_pieces_t *p, size_t more)
{
    size_t cap = p->cap == 0 ? 1024 : p->cap;
    char  *text;

    if (more <= p->cap - p->len)
        return;

    while (cap - p->len < more) {
        if (cap > SIZE_MAX / 2) {
            p->failed = true;
            return;
        }
        cap *= 2;
    }

    text = realloc(p->text, cap);
    if (text == NULL) {
        p->failed = true;
        return;
    }

    p->text = text;
    p->cap = cap;
}

/* Append to the text; false: no memory. */
static bool
add_text(di_pieces_t *p, const char *text, size_t len)
{
    text_room(p, len);
    if (p->failed)
        return false;

    memcpy(p->text + p->len, text, len);
    p->len += len;
    return true;
}

void
di_pieces_special(di_pieces_t *p, int32_t id, const char *spelling)
{
    size_t      at = p->len, len = strlen(spelling);
    di_piece_t *piece;

    if (!add_text(p, spelling, len))
        return;

    piece = add_piece(p);
    if (piece != NULL)
        *piece = (di_piece_t) { true, id, at, len };
}

void
di_pieces_text(di_pieces_t *p, const char *text, size_t len)
{
    di_piece_t *piece;

    if (len == 0)
        return;

    if (p->n == 0 || p->pieces[p->n - 1].special) {
        piece = add_piece(p);
        if (piece == NULL)
            return;
        *piece = (di_piece_t) { false, -1, p->len, 0 };
    }

    if (add_text(p, text, len))
        p->pieces[p->n - 1].len += len;
}

void
di_pieces_put(di_pieces_t *p, const char *text)
{
    di_pieces_text(p, text, strlen(text));
}

void
di_pieces_str(di_pieces_t *p, di_str_t s)
{
    di_pieces_text(p, s.data, s.len);
}

void
di_pieces_free(di_pieces_t *p)
{
    free(p->text);
    free(p->pieces);
    memset(p, 0, sizeof(*p));
}

/* --------------------------------------------------------------- choosing */

/* "chatml, ..." for error texts. */
static const char *
list_names(char *buf, size_t size)
{
    size_t i, n = 0;

    buf[0] = '\0';
    for (i = 0; i < N_DIALECTS && n < size; i++)
        n += (size_t) snprintf(buf + n, size - n, "%s%s", i > 0 ? ", " : "",
                               dialects[i]->name);

    return buf;
}

int
di_dialect_open(const di_vocab_t *vocab, di_str_t template_text,
                const char *name, di_dialect_t **dialect, di_err_t *err)
{
    char   names[96];
    size_t i;
    bool   mine;

    for (i = 0; i < N_DIALECTS; i++) {
        mine = name != NULL && strcmp(name, dialects[i]->name) == 0;

        if (name == NULL && template_text.data != NULL
            && dialects[i]->knows(template_text, &mine) != DI_OK)
            return di_err_set(err, DI_ENOMEM, 0, "out of memory");

        if (mine)
            return dialects[i]->open(vocab, template_text, dialect, err);
    }

    list_names(names, sizeof(names));

    if (name != NULL)
        return di_err_set(err, DI_EUNSUPPORTED, 0, "unknown dialect \"%s\":"
                          " known are %s", name, names);

    return di_err_set(err, DI_EUNSUPPORTED, 0, "%s: name its dialect, one of"
                      " %s", template_text.data == NULL
                      ? "the model has no chat template"
                      : "the model's chat template is unknown", names);
}

int
di_dialect_special(const di_vocab_t *vocab, const char *name,
                   const char *spelling, int32_t *id, di_err_t *err)
{
    *id = -1;
    if (vocab == NULL)
        return DI_OK;

    *id = di_vocab_special(vocab, spelling, strlen(spelling));
    if (*id >= 0)
        return DI_OK;

    return di_err_set(err, DI_EFORMAT, 0, "the vocabulary has no special token"
                      " %s, which the dialect %s needs", spelling, name);
}

int
di_dialect_no_role(di_err_t *err, const char *dialect, di_role_t role,
                   size_t i)
{
    static const char *const names[] = {
        [DI_ROLE_SYSTEM] = "system", [DI_ROLE_DEVELOPER] = "developer",
        [DI_ROLE_USER] = "user", [DI_ROLE_ASSISTANT] = "assistant",
        [DI_ROLE_TOOL] = "tool", [DI_ROLE_REMINDER] = "latest_reminder",
    };

    return di_err_set(err, DI_EINVAL, i, "messages[%zu].role: this model's"
                      " dialect (%s) has no spelling for the role %s", i,
                      dialect, names[role]);
}

bool
di_dialect_has(di_str_t text, const char *const *marks)
{
    for (; *marks != NULL; marks++) {
        if (text.data == NULL
            || memmem(text.data, text.len, *marks, strlen(*marks)) == NULL)
            return false;
    }

    return true;
}

void
di_dialect_close(di_dialect_t *dialect)
{
    if (dialect != NULL)
        dialect->ops->close(dialect);
}

const char *
di_dialect_name(const di_dialect_t *dialect)
{
    return dialect->ops->name;
}

di_family_t
di_dialect_family(const di_dialect_t *dialect)
{
    return dialect->ops->family;
}

uint32_t
di_dialect_caps(const di_dialect_t *dialect)
{
    return dialect->caps;
}

/* --------------------------------------------------------------- encoding */

static int
no_special(const di_pieces_t *p, const di_piece_t *piece, di_err_t *err)
{
    return di_err_set(err, DI_EFORMAT, 0, "special token \"%.*s\" is not in the"
                      " added vocabulary", (int) piece->len,
                      p->text + piece->at);
}

/* Encode all pieces; past `limit` they are only counted. */
static int
encode_pieces(const di_pieces_t *p, di_tok_t *tok, int32_t *ids, size_t limit,
              size_t *n_ids, di_err_t *err)
{
    const di_piece_t *piece;
    size_t            i, got, used, n = 0;
    int               rc;

    for (i = 0; i < p->n; i++) {
        piece = &p->pieces[i];
        used = n < limit ? n : limit;

        if (piece->special && piece->id < 0)
            return no_special(p, piece, err);

        if (piece->special) {
            if (n < limit)
                ids[n] = piece->id;
            n++;
            continue;
        }

        rc = di_tok_encode(tok, p->text + piece->at, piece->len, ids + used,
                           limit - used, &got);
        if (rc != DI_OK && rc != DI_ELIMIT)
            return rc;

        n += got;
    }

    *n_ids = n;
    return n > limit ? DI_ELIMIT : DI_OK;
}

int
di_dialect_render(const di_dialect_t *dialect, const di_conv_t *conv,
                  di_pieces_t *pieces, di_err_t *err)
{
    int rc = dialect->ops->render(dialect, conv, pieces, err);

    if (rc == DI_OK && pieces->failed)
        rc = di_err_set(err, DI_ENOMEM, 0, "out of memory");

    return rc;
}

int
di_dialect_encode(const di_dialect_t *dialect, di_tok_t *tok,
                  const di_conv_t *conv, size_t limit, int32_t **ids,
                  size_t *n, di_err_t *err)
{
    di_pieces_t pieces = { 0 };
    int32_t    *out = NULL;
    size_t      cap;
    int         rc;

    rc = di_dialect_render(dialect, conv, &pieces, err);
    if (rc != DI_OK)
        goto done;

    /* A text never has more ids than bytes. */
    cap = pieces.len + pieces.n;
    if (cap > limit)
        cap = limit;

    if (cap < SIZE_MAX / sizeof(*out))
        out = malloc((cap + 1) * sizeof(*out));

    if (out == NULL) {
        rc = di_err_set(err, DI_ENOMEM, 0, "out of memory");
        goto done;
    }

    rc = encode_pieces(&pieces, tok, out, cap, n, err);
    if (rc != DI_OK) {
        free(out);
        (void) di_err_set(err, rc, 0, rc == DI_ELIMIT
                          ? "the prompt is over the limit"
                          : "out of memory");
        goto done;
    }

    *ids = out;

done:

    di_pieces_free(&pieces);
    return rc;
}
