/*
 * di_out.h - what the model wrote, as the answer of each API.
 *
 * A di_out_t is one request's answer, all its choices.  The engine's events
 * go in (tokens, log-probabilities, the end of a choice); bytes come out: in
 * stream mode SSE events appended to a buffer with each call, otherwise one
 * body at the end.  In between lies the dialect's parser (dialect/di_parse.h),
 * which tells reasoning, answer and tool calls apart.  Joined deltas and body
 * hold the same, whatever the chunking of the tokens.
 *
 * Life: open, start, then for each choice logprob / tokens (or text) ... and
 * finish; when *done was told, end (stream) or body.  No I/O, no nginx.
 *
 * DI_CODEC_OFFICIAL writes exactly what DeepSeek's Recipe does, also which
 * bytes go into which event.  DI_CODEC_STRICT writes the same for well-formed
 * output, but each decided byte at once, and loses nothing when output is
 * malformed; docs/codec.md lists the differences.
 */

#ifndef DI_OUT_H
#define DI_OUT_H

#include "../dialect/di_parse.h"
#include "di_api.h"

typedef struct di_out_s di_out_t;

typedef struct {
    const di_req_t   *req;       /* keeps                                   */
    const di_vocab_t *vocab;     /* keeps; NULL: text comes, not tokens     */
    di_tok_t         *tok;       /* keeps, official: counts reasoning's
                                  * tokens, within calls of di_out_finish(),
                                  * whose thread it has to be for; NULL: one
                                  * is opened when it is wanted, which takes
                                  * longer than counting                    */
    di_spell_t        spell;     /* of the served model: di_spell_of()      */
    const char       *id;        /* of the response, with its prefix; copied */
    di_str_t          model;     /* as the answer shows it; copied          */
    int64_t           created;   /* seconds since the epoch                 */
    const char       *signature; /* Messages: of thinking; NULL: the id     */
    bool              show_ends; /* official: a token that ends the turn is
                                  * text, as it is to Recipe; for engines
                                  * that don't send it                      */
} di_out_conf_t;

typedef struct {
    int32_t id;
    float   logprob;
} di_out_top_t;

/* Why the engine ended a choice. */
typedef enum {
    DI_END_STOP = 1, DI_END_LENGTH, DI_END_FILTER, DI_END_ERROR,
} di_end_t;

/* DI_OK or DI_ENOMEM. */
int di_out_open(const di_out_conf_t *conf, di_out_t **out);
void di_out_close(di_out_t *out);

/* The prompt's counts, once, before any token.  Writes the events that open a
 * stream; fingerprint may be NULL and is shown by official Chat only. */
int di_out_start(di_out_t *out, uint32_t prompt_tokens, uint32_t cached_tokens,
                 const char *fingerprint, di_sbuf_t *sse);

/* Log-probability of the choice's next token: before the call that brings the
 * token.  Strict: ignored if the request didn't ask.  DI_OK, DI_ENOMEM, or
 * DI_EINVAL: no such choice. */
int di_out_logprob(di_out_t *out, uint32_t choice, int32_t token,
                   float logprob, const di_out_top_t *top, size_t n_top);

/* New tokens of a choice.  In stream mode their events are appended to sse; in
 * the other mode all is gathered and sse may be NULL.  *stopped: a stop
 * string was met or a call too many began (parallel_tool_calls: false), the
 * choice is complete and its sequence should be cancelled; later tokens of it
 * are ignored.  di_out_finish() may be called at once.  DI_OK, DI_ENOMEM, or
 * DI_EINVAL with err (may be NULL): no such choice, no vocabulary, or
 * (show_ends) log-probabilities for another number of tokens. */
int di_out_tokens(di_out_t *out, uint32_t choice, const int32_t *tokens,
                  size_t n_tokens, di_sbuf_t *sse, bool *stopped,
                  di_err_t *err);

/* The same from an engine that sends text, made of so many tokens.  Here the
 * spelling of a marker is the marker. */
int di_out_text(di_out_t *out, uint32_t choice, const char *text, size_t len,
                uint32_t n_tokens, di_sbuf_t *sse, bool *stopped);

/* The engine ended a choice.  Flushes what is held back.  A stop string that
 * was met wins over DI_END_STOP, strict: over any reason.  After
 * DI_END_ERROR no closing event is written: the caller writes the error's.
 * A second call for a choice writes nothing.  *done: all choices ended. */
int di_out_finish(di_out_t *out, uint32_t choice, di_end_t reason,
                  di_sbuf_t *sse, bool *done);

/* After all choices: the events that close a stream (usage, [DONE]; the last
 * ones of Responses and Messages). */
int di_out_end(di_out_t *out, di_sbuf_t *sse);

/* The whole body, without a newline.  After all choices; of a stream only for
 * Responses, whose final object may have to be stored. */
int di_out_body(di_out_t *out, di_sbuf_t *body);

/* ------------------------------------------------------------ accounting -- */

uint32_t di_out_completion_tokens(const di_out_t *out);
/* Those of them that were reasoning. */
uint32_t di_out_reasoning_tokens(const di_out_t *out);
/* Ill-formed sequences that became U+FFFD. */
uint64_t di_out_replaced(const di_out_t *out);
/* Of choice 0, for logs, whatever the API: "stop", "length", "tool_calls",
 * "content_filter", "error", or "" while it runs. */
const char *di_out_finish_reason(const di_out_t *out);
/* Responses: the sequence_number that the next event has, for an error. */
uint64_t di_out_sequence(const di_out_t *out);

#endif
