/*
 * di_tokenize.h - /tokenize and /detokenize, in the shape that vLLM gave them.
 *
 * A text is tokenized as an ordinary one: what spells a special token stays
 * text.  A conversation is parsed as Chat Completions' (di_api.h) from the
 * same body; here is what such a body says beside it.  No I/O, no nginx.
 */

#ifndef DI_TOKENIZE_H
#define DI_TOKENIZE_H

#include "di_api.h"

/* One parsed body; owns what it points at. */
typedef struct {
    void          *memory;       /* of all below                            */
    di_str_t       model;        /* len 0: not named                        */
    di_str_t       prompt;       /* data NULL: the body has messages        */
    bool           special;      /* add_special_tokens: begin with bos      */
    bool           open;         /* add_generation_prompt                   */
    bool           strings;      /* return_token_strs                       */
    const int32_t *tokens;       /* detokenize: [n_tokens]                  */
    size_t         n_tokens;
} di_tokenize_t;

/* Read a body of /tokenize, or of /detokenize; ids must be below vocab.  DI_OK
 * and *t owned by the caller, or a code with *e filled (400; 500). */
int di_tokenize_parse(const char *body, size_t len, di_tokenize_t **t,
                      di_api_err_t *e);
int di_detokenize_parse(const char *body, size_t len, uint32_t vocab,
                        di_tokenize_t **t, di_api_err_t *e);
void di_tokenize_close(di_tokenize_t *t);

/* {"count":..,"max_model_len":..,"tokens":[..],"token_strs":[..]|null};
 * max_model_len 0: null.  Token strings are spelled as in a vocabulary file:
 * bytes in GPT-2's alphabet, special tokens as they are. */
void di_tokenize_write(di_sbuf_t *b, const di_vocab_t *vocab,
                       const int32_t *ids, size_t n, uint32_t max_model_len,
                       bool strings);

/* {"prompt":".."}: the tokens' text, special ones as they are spelled. */
void di_detokenize_write(di_sbuf_t *b, const di_vocab_t *vocab,
                         const int32_t *ids, size_t n);

/* {"input_tokens":N}, Anthropic's answer of count_tokens. */
void di_count_tokens_write(di_sbuf_t *b, uint64_t n);

#endif
