/*
 * script.h - what the echo engine is told to answer.
 *
 * The last user message of a prompt is a script when one of its lines begins
 * with "@@"; each such line is a directive, all other lines are ignored.
 * Without one the message's own tokens are the answer.  Output ends with the
 * model's end token and finish reason "stop" where no @@finish says
 * otherwise.
 *
 *   output
 *     @@say TEXT          tokens of the text; \n \t \r \\ \xHH are escapes
 *     @@raw TEXT          the same, but what spells an added token is it
 *     @@bytes HH HH ...   these bytes, one token each (UTF-8 split over tokens)
 *     @@ids N N ...       these token ids, special ones too
 *     @@repeat N TEXT     the text's tokens over and over, N tokens in all
 *   pace; each holds from its line on; an idle engine sleeps whole
 *   milliseconds, rounded up
 *     @@per N             tokens of one event, 1..8 (1)
 *     @@first MS          wait before the first event (0)
 *     @@every MS          wait between events (0: one event per engine step)
 *     @@step MS           the same, but all streams with this step have their
 *                         events at the same times, as a model's have
 *     @@wait MS           wait here, once
 *   choices (n > 1)
 *     @@choice N|*        what follows, up to the next @@choice, is for choice
 *                         N alone, or for all (*)
 *   log-probabilities, sent when the request asks for them
 *     @@lp P [ID:P ...]   of each following token, with its top entries;
 *                         @@lp alone goes back to the default: -0.125 *
 *                         (1 + position % 4), and the ids after it as top
 *   ends
 *     @@finish R [N]      R = stop (with the end token), stop_id, length,
 *                         cancel, error; N = completion tokens to tell
 *     @@noend             leave out the end token of the stop
 *     @@stall             send nothing more, until cancelled
 *     @@die               exit(9) at this point, like a killed engine
 *     @@reject R [A B [TEXT]]
 *                         refuse: R = invalid, too_long, queue_full,
 *                         draining, kv, internal
 *   told
 *     @@cached N          cached prompt tokens of DI_EV_STARTED
 *
 * A directive that is none, or has wrong arguments, refuses the request as
 * INTERNAL with the directive in the text: a test must not pass by a typo.
 */

#ifndef ECHO_SCRIPT_H
#define ECHO_SCRIPT_H

#include <stddef.h>
#include <stdint.h>

#include "../../engine/ipc/di_ipc.h"
#include "../../tokenizer/vocab/di_vocab.h"

#define SCRIPT_ALL_CHOICES UINT32_MAX

typedef enum {
    OP_TOKENS,                   /* a = first token, b = count              */
    OP_REPEAT,                   /* as OP_TOKENS; us = tokens in all        */
    OP_PER,                      /* a                                       */
    OP_EVERY,                    /* us; a = 1: at multiples of it           */
    OP_WAIT,                     /* us                                      */
    OP_LOGPROB,                  /* a = index in lps, UINT32_MAX = default  */
    OP_FINISH,                   /* a = di_finish_t, b = tokens to tell + 1 */
    OP_NOEND,
    OP_STALL,
    OP_DIE,
} script_op_type_t;

typedef struct {
    script_op_type_t type;
    uint32_t         choice;     /* or SCRIPT_ALL_CHOICES                   */
    uint32_t         a, b;
    uint64_t         us;
} script_op_t;

typedef struct {
    float            logprob;
    uint32_t         n_top;
    di_top_logprob_t top[DI_GEN_TOP_LOGPROBS_MAX];
} script_lp_t;

typedef struct {
    script_op_t *ops;
    int32_t     *tokens;
    script_lp_t *lps;
    uint32_t     n_ops, n_tokens, n_lps;
    uint32_t     ops_cap, tokens_cap, lps_cap;
    uint64_t     first_us;
    uint32_t     cached;
    uint32_t     reject;         /* di_reject_t, 0 = serve it               */
    uint32_t     reject_a, reject_b;
    char         reject_text[28];
} script_t;

/* Compile `text`.  A wrong directive makes the script a REJECT INTERNAL.
 * DI_OK or DI_ENOMEM. */
int script_parse(script_t *script, di_tok_t *tok, const di_vocab_t *vocab,
                 const char *text, size_t len);

/* The script that answers with these tokens. */
int script_echo(script_t *script, const int32_t *tokens, uint32_t n);

void script_free(script_t *script);

#endif
