/*
 * di_parse.h - the model's output told apart: reasoning, answer, tool calls.
 *
 * di_parse_t is one choice's parser, a stage machine.  It takes symbols: bytes
 * of ordinary tokens, and added tokens, each one opaque symbol with a
 * spelling.  A marker (the end of reasoning, the sign of a tool call) is
 * known by its token's id, never by its spelling, if the vocabulary has the
 * token.  What it finds goes to a sink as deltas, in order; nothing here
 * knows an API.
 *
 * A byte is decided as soon as no pattern of the stage can still take it, so
 * what is held back is the shortest that is safe, and the deltas, joined, are
 * the same for every chunking.
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

#endif
