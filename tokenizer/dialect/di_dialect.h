/*
 * di_dialect.h - how a conversation is spelled for a model.
 *
 * A conversation (di_conv_t) is what the three APIs have in common.  A
 * dialect renders it to pieces: special-token ids, and ordinary text that
 * can never become one.  Pieces are encoded to the prompt's token ids.
 */

#ifndef DI_DIALECT_H
#define DI_DIALECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../di_err.h"
#include "../vocab/di_vocab.h"

typedef enum {
    DI_ROLE_SYSTEM = 0, DI_ROLE_DEVELOPER, DI_ROLE_USER, DI_ROLE_ASSISTANT,
    DI_ROLE_TOOL,
} di_role_t;

typedef struct {
    di_role_t   role;
    di_str_t    content;         /* parts of a list are joined              */
    di_str_t    name;            /* data NULL: none                         */
} di_msg_t;

/* Borrows everything it points at. */
typedef struct {
    const di_msg_t *msgs;
    size_t          n_msgs;
    bool            open_assistant;  /* end with the assistant's header     */
} di_conv_t;

typedef struct di_dialect_s di_dialect_t;

/* Recognise the dialect by the chat template's own text, with the default
 * system prompt that the template carries; `name` (may be NULL) overrides
 * ("chatml").  template.data may be NULL.  Checks that the vocabulary has the
 * special tokens.  DI_EUNSUPPORTED: unknown template, and the text says how
 * to name a dialect; DI_EFORMAT: a special token is missing. */
int di_dialect_open(const di_vocab_t *vocab, di_str_t template_text,
                    const char *name, di_dialect_t **dialect, di_err_t *err);
void di_dialect_close(di_dialect_t *dialect);
const char *di_dialect_name(const di_dialect_t *dialect);

/* Render and encode.  *ids: malloc'ed, returns owned.  limit: at most so many
 * ids (DI_ELIMIT, *n then tells how many there would be).  DI_EINVAL: the
 * conversation can't be spelled (err: why, offset = index of the message,
 * whose role is at fault). */
int di_dialect_encode(const di_dialect_t *dialect, di_tok_t *tok,
                      const di_conv_t *conv, size_t limit, int32_t **ids,
                      size_t *n, di_err_t *err);

#endif
