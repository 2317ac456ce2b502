/*
 * di_chat.h - the Chat Completions API: request body in, bodies and SSE out.
 *
 * di_chat_req_t is one parsed request and owns all it points at.
 * di_chat_out_t turns the engine's events for that request into response
 * bytes: one per request, all choices; it assembles UTF-8, applies stop
 * strings and log-probabilities, and knows both forms, the stream and the
 * whole body.  No I/O, no nginx; bytes go to a di_sbuf_t.
 * Source of shapes: OpenAI's API reference (facts), design section 7.
 */

#ifndef DI_CHAT_H
#define DI_CHAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "di_api.h"

/* {"error":{"message":..,"type":..,"param":..,"code":..}}  (no newline) */
void di_chat_write_error(di_sbuf_t *b, const di_api_err_t *e);
/* The same as an SSE event: data: {...}\n\n */
void di_chat_write_error_event(di_sbuf_t *b, const di_api_err_t *e);

typedef di_req_params_t di_chat_params_t;
typedef di_req_t di_chat_req_t;

typedef struct {
    size_t   depth;              /* as of di_req_options_t                  */
    size_t   messages;
    uint32_t vocab;
} di_chat_limits_t;

/* di_req_parse() of this API by the strict codec, for a plain dialect. */
static inline int
di_chat_parse(const char *body, size_t len, const di_chat_limits_t *limits,
              di_chat_req_t **req, di_api_err_t *e)
{
    di_req_options_t options = { .codec = DI_CODEC_STRICT };

    if (limits != NULL) {
        options.depth = limits->depth;
        options.messages = limits->messages;
        options.vocab = limits->vocab;
    }

    return di_req_parse(DI_API_CHAT, &options, body, len, req, e);
}

#define di_chat_req_close    di_req_close
#define di_chat_req_model    di_req_model
#define di_chat_req_conv     di_req_conv
#define di_chat_req_params   di_req_params
#define di_chat_req_ignored  di_req_ignored

/* ------------------------------------------------------------ responses -- */

typedef struct {
    int32_t id;
    float   logprob;
} di_chat_top_t;

typedef enum { DI_CHAT_STOP = 1, DI_CHAT_LENGTH, DI_CHAT_ERROR }
    di_chat_finish_t;

typedef struct di_chat_out_s di_chat_out_t;

/* Keeps req and vocab (both must outlive it).  id and model are copied. */
int di_chat_out_open(const di_chat_req_t *req, const di_vocab_t *vocab,
                     const char *id, di_str_t model, int64_t created,
                     di_chat_out_t **out);
void di_chat_out_close(di_chat_out_t *out);

/* The prompt's counts, once, before any token. */
void di_chat_out_start(di_chat_out_t *out, uint32_t prompt_tokens,
                       uint32_t cached_tokens);

/* Log-probability entry of the choice's next token: before the call that
 * brings the token.  Ignored if the request didn't ask for them. */
int di_chat_out_logprob(di_chat_out_t *out, uint32_t choice, int32_t token,
                        float logprob, const di_chat_top_t *top, size_t n_top);

/* New tokens of a choice.  In stream mode their SSE events are appended to
 * sse: one for all their text, and the role's before the first; in the other
 * mode text is gathered and sse may be NULL.  *stopped: a stop string was
 * met, the text is complete and the sequence should be cancelled; later
 * tokens of it are ignored.  The finish chunk is di_chat_out_finish()'s, which
 * may be called at once.  DI_OK, DI_ENOMEM, or DI_EINVAL: no such choice. */
int di_chat_out_tokens(di_chat_out_t *out, uint32_t choice,
                       const int32_t *tokens, size_t n_tokens, di_sbuf_t *sse,
                       bool *stopped);

/* The engine ended a choice.  Flushes held text and writes the finish chunk
 * (reason "stop" if a stop string was met, whatever is given); after
 * DI_CHAT_ERROR there is no finish chunk: the caller writes the error event.
 * A second call for a choice writes nothing.  *done: all choices are
 * finished. */
int di_chat_out_finish(di_chat_out_t *out, uint32_t choice,
                       di_chat_finish_t reason, di_sbuf_t *sse, bool *done);

/* After all: usage chunk if asked for, and data: [DONE]. */
int di_chat_out_end(di_chat_out_t *out, di_sbuf_t *sse);

/* The whole body (not stream), after all choices finished. */
int di_chat_out_body(di_chat_out_t *out, di_sbuf_t *body);

uint32_t di_chat_out_completion_tokens(const di_chat_out_t *out);
/* Of choice 0, for logs: "stop", "length", "error", or "" while it runs. */
const char *di_chat_out_finish_reason(const di_chat_out_t *out);

#endif
