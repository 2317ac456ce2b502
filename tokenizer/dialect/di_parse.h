/*
 * di_parse.h - the model's output told apart: reasoning, answer, tool calls.
 *
 * di_rules_t are the patterns of one request, made from the dialect's stages
 * and the request's stop strings, each stage's when it is first entered; its
 * choices share them, on one thread.  di_parse_t is one choice's parser, a
 * stage machine.  It takes symbols: bytes of tokens, and markers, each one
 * opaque symbol with a spelling (the official parser: all added tokens).  A
 * marker (the end of reasoning, the sign of a tool call) is known by its
 * token, never by its spelling, if the vocabulary has the token; only in
 * chunks of text, from an engine that sends no tokens, the spelling is the
 * marker.  What the parser finds goes to a sink as deltas, in order; nothing
 * here knows an API.
 *
 * A byte is decided as soon as no pattern of the stage can still take it, so
 * what is held back is the shortest that is safe, and the deltas, joined, are
 * the same for every chunking.  The official parser differs in when it gives
 * out what is decided (and in what it loses); see parse.c.
 */

#ifndef DI_PARSE_H
#define DI_PARSE_H

#include "di_dialect.h"

/* How a family of models spells reasoning and tool calls. */
typedef enum {
    DI_SPELL_PLAIN = 0,          /* the answer is all there is              */
    DI_SPELL_DSML,               /* DeepSeek V4 and V4.1                    */
    DI_SPELL_THINK,              /* <think>, no tools: DeepSeek R1          */
    DI_SPELL_HERMES,             /* Qwen: <tool_call>{json}</tool_call>     */
    DI_SPELL_LLAMA3,             /* {"name":..,"parameters":..} alone       */
} di_spell_t;

/* That of a dialect, by its name. */
di_spell_t di_spell_of(const di_dialect_t *dialect);

/* Where the output begins. */
typedef enum {
    DI_START_ANSWER = 0,
    DI_START_REASONING,
    DI_START_IN_REASONING,       /* goes on a reasoning already begun       */
    DI_START_IN_ANSWER,
    DI_START_IN_CALLS,           /* the prompt opened a block of calls      */
} di_start_t;

typedef struct {
    di_spell_t        spell;
    di_start_t        start;
    const di_vocab_t *vocab;     /* NULL: no tokens will come               */
    const di_str_t   *stops;     /* [n_stops], none empty; kept             */
    size_t            n_stops;
    bool              official;  /* Recipe's parser, with its losses; it
                                  * knows DI_SPELL_DSML alone               */
    bool              tools;     /* calls are to be found                   */
    bool              json;      /* the answer is to be one JSON value      */
    bool              places;    /* deltas of kind DI_DELTA_PIECE, too      */
} di_parse_options_t;

typedef struct di_rules_s di_rules_t;

/* Keeps stops' bytes.  DI_OK or DI_ENOMEM. */
int di_rules_open(const di_parse_options_t *options, di_rules_t **rules);
void di_rules_close(di_rules_t *rules);

typedef enum {
    DI_DELTA_REASONING = 0,
    DI_DELTA_TEXT,
    DI_DELTA_CALL,               /* a call begins: data is its name         */
    DI_DELTA_ARGS,               /* data is a part of its arguments' JSON   */
    DI_DELTA_PIECE,              /* symbols of n_tokens tokens come next    */
} di_delta_kind_t;

/* Places count the bytes of the symbols, after ill-formed ones became U+FFFD;
 * they tie a delta to the tokens that it came from. */
typedef struct {
    di_delta_kind_t kind;
    const char     *data;        /* well-formed UTF-8, borrowed             */
    size_t          len;
    const char     *plain;       /* ARGS from within a JSON string: data as
                                  * it was before escaping; or NULL         */
    size_t          plain_len;
    uint64_t        from;        /* place of its first byte (official: of
                                  * the piece that it lies in)              */
    uint64_t        end;         /* place after its last; UINT64_MAX: no
                                  * more text comes                         */
    uint32_t        n_tokens;    /* PIECE                                   */
} di_delta_t;

typedef void (*di_sink_pt)(void *ctx, const di_delta_t *delta);

typedef struct di_parse_s di_parse_t;

/* Keeps rules and ctx.  DI_OK or DI_ENOMEM. */
int di_parse_open(di_rules_t *rules, di_sink_pt sink, void *ctx,
                  di_parse_t **parse);
void di_parse_close(di_parse_t *parse);

/* An ordinary or an added token, or a chunk of text.  stoppable: stop strings
 * may match in it.  What is decided may go to the sink at once or with
 * di_parse_flush(), which ends what came in one go.  After a stop string was
 * met nothing more is taken.
 *
 * alone: nothing else comes before the flush, and nobody asks for places.
 * True: it went to the sink and the flush may be left out, as for most tokens:
 * whole characters none of which can begin a pattern. */
bool di_parse_token(di_parse_t *parse, int32_t id, bool stoppable,
                    bool alone);
void di_parse_text(di_parse_t *parse, const char *text, size_t len);
/* False: di_parse_failed(). */
bool di_parse_flush(di_parse_t *parse);

/* No more comes: what is held back is decided. */
void di_parse_finish(di_parse_t *parse);

/* Is it in the reasoning, as far as that is decided? */
bool di_parse_reasoning(const di_parse_t *parse);
/* Index of the stop string that was met, or -1. */
int di_parse_stopped(const di_parse_t *parse);
/* Ill-formed sequences that became U+FFFD. */
uint64_t di_parse_replaced(const di_parse_t *parse);
/* Official: tokens whose bytes are no whole characters yet; they don't count
 * as completion tokens. */
uint32_t di_parse_held_tokens(const di_parse_t *parse);
/* An allocation failed at some time. */
bool di_parse_failed(const di_parse_t *parse);

#endif
