/*
 * di_completions.h - answers of the older Completions API.
 *
 * A request has one or more prompts and n choices for each; choice c of
 * prompt p is choice p * n + c of the answer.  Prompts run side by side: each
 * is started once, and all else names the prompt that it belongs to.  As with
 * di_out.h, events of the engine go in, SSE events or one body come out, and
 * both forms hold the same text.  No I/O, no nginx.
 * Source of shapes: OpenAI's API reference (facts).
 */

#ifndef DI_COMPLETIONS_H
#define DI_COMPLETIONS_H

#include "di_api.h"

typedef struct di_completions_s di_completions_t;

typedef struct {
    int32_t id;
    float   logprob;
} di_completions_top_t;

typedef enum { DI_COMPLETIONS_STOP = 1, DI_COMPLETIONS_LENGTH }
    di_completions_finish_t;

/* Keeps req and vocab; id and model are copied.  DI_OK or DI_ENOMEM. */
int di_completions_open(const di_req_t *req, const di_vocab_t *vocab,
                        const char *id, di_str_t model, int64_t created,
                        di_completions_t **out);
void di_completions_close(di_completions_t *out);

/* A prompt runs now: it keeps ids, its tokens, of which the first `hidden`
 * were not the client's (bos) and are not echoed.  Before all else of the
 * prompt, and once.  DI_OK, DI_EINVAL: no such prompt, or DI_ENOMEM. */
int di_completions_start(di_completions_t *out, uint32_t prompt,
                         const int32_t *ids, size_t n, size_t hidden,
                         uint32_t cached_tokens);

/* Log-probability of a prompt's token, in order, from position 1: only of use
 * with echo and logprobs, otherwise ignored.  Before any token. */
int di_completions_prompt_logprob(di_completions_t *out, uint32_t prompt,
                                  uint32_t position, float logprob,
                                  const di_completions_top_t *top,
                                  size_t n_top);

/* The rest is that of di_out.h; `choice` is one of the prompt's n.  *done:
 * the prompt's choices have ended; when all prompts' have, end() follows for a
 * stream, body() otherwise. */
int di_completions_logprob(di_completions_t *out, uint32_t prompt,
                           uint32_t choice, int32_t token, float logprob,
                           const di_completions_top_t *top, size_t n_top);
int di_completions_tokens(di_completions_t *out, uint32_t prompt,
                          uint32_t choice, const int32_t *tokens, size_t n,
                          di_sbuf_t *sse, bool *stopped);
int di_completions_finish(di_completions_t *out, uint32_t prompt,
                          uint32_t choice, di_completions_finish_t reason,
                          di_sbuf_t *sse, bool *done);
int di_completions_end(di_completions_t *out, di_sbuf_t *sse);
int di_completions_body(di_completions_t *out, di_sbuf_t *body);

/* Of the first choice: "stop", "length", or "" while it runs. */
const char *di_completions_finish_reason(const di_completions_t *out);
/* Of all choices. */
uint32_t di_completions_tokens_out(const di_completions_t *out);

#endif
