/*
 * dialect.h - what a dialect implements, and the pieces it renders to.
 *
 * A rendered prompt is a list of pieces: special tokens by id, and runs of
 * ordinary text.  Text between two special tokens is one piece, whatever it
 * was put together from, because that is what the vocabulary must see whole;
 * pieces are independent of each other, so they may be encoded in any order
 * or on several threads.
 */

#ifndef DI_DIALECT_INTERNAL_H
#define DI_DIALECT_INTERNAL_H

#include "di_dialect.h"

typedef struct di_ebnf_s di_ebnf_t;      /* output.h                        */

typedef struct {
    bool    special;
    int32_t id;                  /* special: its id, -1: there is none      */
    size_t  at;                  /* its text, or the special's spelling, in
                                  * di_pieces_t.text                        */
    size_t  len;
} di_piece_t;

/* Zero-initialised is empty. */
typedef struct {
    char       *text;            /* of all pieces, end to end               */
    size_t      len;
    size_t      cap;
    di_piece_t *pieces;
    size_t      n;
    size_t      n_cap;
    bool        failed;          /* an allocation failed                    */
} di_pieces_t;

void di_pieces_special(di_pieces_t *p, int32_t id, const char *spelling);
/* Ordinary text: joins the text before it.  Borrowed. */
void di_pieces_text(di_pieces_t *p, const char *text, size_t len);
void di_pieces_str(di_pieces_t *p, di_str_t s);
void di_pieces_put(di_pieces_t *p, const char *text);    /* NUL-terminated  */
void di_pieces_free(di_pieces_t *p);

/* Render to pieces.  As di_dialect_encode(), and DI_ENOMEM; the pieces are
 * to be freed in any case. */
int di_dialect_render(const di_dialect_t *dialect, const di_conv_t *conv,
                      di_pieces_t *pieces, di_err_t *err);

/* Look up a special token that the dialect `name` needs; vocab NULL: -1.
 * DI_OK or DI_EFORMAT. */
int di_dialect_special(const di_vocab_t *vocab, const char *name,
                       const char *spelling, int32_t *id, di_err_t *err);

typedef struct {
    const char *name;
    di_family_t family;

    /* Is this template one of the dialect's?  DI_OK or DI_ENOMEM. */
    int  (*knows)(di_str_t template_text, bool *known);

    /* Make the dialect for a vocabulary (NULL: to render only).  The template
     * may be unknown (the dialect was named) or absent (data NULL).  As
     * di_dialect_open(). */
    int  (*open)(const di_vocab_t *vocab, di_str_t template_text,
                 di_dialect_t **dialect, di_err_t *err);
    void (*close)(di_dialect_t *dialect);

    /* DI_OK (look at pieces->failed) or DI_EINVAL as di_dialect_encode(). */
    int  (*render)(const di_dialect_t *dialect, const di_conv_t *conv,
                   di_pieces_t *pieces, di_err_t *err);

    /* Grammar of an output (output.c).  reasoning, where there is any: an
     * expression for what comes before the answer.  calls, where the dialect
     * spells tools: the rules `calls`, one or more calls and the end of the
     * turn, and `text`, any answer and perhaps calls. */
    void (*reasoning)(di_ebnf_t *w);
    void (*calls)(di_ebnf_t *w);
} di_dialect_ops_t;

/* The head of every dialect's own struct. */
struct di_dialect_s {
    const di_dialect_ops_t *ops;
    uint32_t                caps;        /* DI_CAN_... of this model        */
};

/* The default system prompt that a ChatML template carries, its escapes
 * undone; NULL if there is none.  Owned by the caller.  DI_OK, DI_ENOMEM. */
int di_chatml_system(di_str_t template_text, char **system, size_t *len);

/* DI_EINVAL: message i has a role that the dialect can't spell. */
int di_dialect_no_role(di_err_t *err, const char *dialect, di_role_t role,
                       size_t i);

/* Does the text contain every one of the marks, a list that NULL ends? */
bool di_dialect_has(di_str_t text, const char *const *marks);

extern const di_dialect_ops_t di_dialect_chatml;
extern const di_dialect_ops_t di_dialect_deepseek_v4;
extern const di_dialect_ops_t di_dialect_deepseek_v41;
extern const di_dialect_ops_t di_dialect_deepseek_r1;
extern const di_dialect_ops_t di_dialect_llama3;
extern const di_dialect_ops_t di_dialect_qwen;

#endif
