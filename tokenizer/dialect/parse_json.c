/*
 * parse_json.c - output whose calls are JSON: Qwen 2.5 and 3, Llama 3.1.
 *
 *     <think>\nREASONING\n</think>\n\nANSWER
 *     <tool_call>\n{"name": "F", "arguments": {..}}\n</tool_call>
 *
 * Qwen writes calls between marks, any number.  A vocabulary without these
 * tokens has them as text, for the model was trained with it: there, and only
 * there, the spelling is the mark.
 *
 * Llama's call is the whole turn, {"name": "F", "parameters": {..}}, perhaps
 * behind <|python_tag|>, where F.call(..) is one, too.  So while tools are
 * offered an answer that begins with a brace is held until it shows what it
 * is.
 */

#include "parse.h"

#define N(rules)  rules, sizeof(rules) / sizeof((rules)[0])

#define SPACES  " \t\r\n"

/* ------------------------------------------------------------------- Qwen */

enum { Q_REASONING, Q_ANSWER, Q_BEHIND, Q_CALL, Q_DONE };

#define THINK      "\1"
#define END_THINK  "\2"
#define CALL       "\3"
#define END_CALL   "\4"

static const char *const q_markers[] = {
    "<think>", "</think>", "<tool_call>", "</tool_call>", NULL,
};

static const di_rule_t q_reasoning[] = {
    { THINK, 0, DI_ACT_SKIP, Q_REASONING | DI_FRESH, NULL },
    { CALL, DI_IF_TOOLS | DI_NEWLINES, DI_ACT_KEEP, Q_CALL, NULL },
    { END_THINK, DI_NEWLINES, DI_ACT_SKIP, Q_ANSWER | DI_FRESH, NULL },
};

static const di_rule_t q_answer[] = {
    { NULL, 0, DI_ACT_STOP, Q_DONE, NULL },
    { THINK, 0, DI_ACT_SKIP, Q_REASONING | DI_FRESH, NULL },
    { CALL, DI_IF_TOOLS | DI_NEWLINES, DI_ACT_KEEP, Q_CALL, NULL },
    { END_THINK, 0, DI_ACT_SKIP, Q_ANSWER, NULL },
};

static const di_rule_t q_call[] = {
    { END_CALL, 0, DI_ACT_BODY_END, Q_BEHIND | DI_FRESH, NULL },
};

static const di_phase_t qwen[] = {
    [Q_REASONING] = { N(q_reasoning), DI_ACT_REASONING, DI_ACT_REASONING,
                      "\n", DI_ACT_SKIP },
    [Q_ANSWER] = { N(q_answer), DI_ACT_TEXT, DI_ACT_TEXT, "\n",
                   DI_ACT_SKIP },
    [Q_BEHIND] = { N(q_answer), DI_ACT_TEXT, DI_ACT_TEXT, SPACES,
                   DI_ACT_SKIP },
    [Q_CALL] = { N(q_call), DI_ACT_BODY, DI_ACT_BODY, "", DI_ACT_SKIP },
    [Q_DONE] = { NULL, 0, DI_ACT_SKIP, DI_ACT_SKIP, "", DI_ACT_SKIP },
};

const di_spelling_t di_spelling_hermes = {
    q_markers, N(qwen),
    { [DI_START_ANSWER] = Q_ANSWER | DI_FRESH,
      [DI_START_REASONING] = Q_REASONING | DI_FRESH,
      [DI_START_IN_REASONING] = Q_REASONING,
      [DI_START_IN_ANSWER] = Q_ANSWER,
      [DI_START_IN_CALLS] = Q_ANSWER | DI_FRESH },
    Q_BEHIND, Q_DONE, true,
};

/* ------------------------------------------------------------------ Llama */

enum { L_ANSWER, L_CALL, L_DONE };

#define PYTHON  "\1"

static const char *const l_markers[] = { "<|python_tag|>", NULL };

static const di_rule_t l_answer[] = {
    { NULL, 0, DI_ACT_STOP, L_DONE, NULL },
    { PYTHON, DI_IF_TOOLS | DI_AT_START, DI_ACT_KEEP, L_CALL, NULL },
    { "{", DI_IF_TOOLS | DI_AT_START, DI_ACT_BODY, L_CALL, NULL },
};

static const di_phase_t llama[] = {
    [L_ANSWER] = { N(l_answer), DI_ACT_TEXT, DI_ACT_TEXT, "\n",
                   DI_ACT_SKIP },
    [L_CALL] = { NULL, 0, DI_ACT_BODY, DI_ACT_BODY, "", DI_ACT_SKIP },
    [L_DONE] = { NULL, 0, DI_ACT_SKIP, DI_ACT_SKIP, "", DI_ACT_SKIP },
};

const di_spelling_t di_spelling_llama3 = {
    l_markers, N(llama),
    { [DI_START_ANSWER] = L_ANSWER | DI_FRESH,
      [DI_START_REASONING] = L_ANSWER | DI_FRESH,
      [DI_START_IN_REASONING] = L_ANSWER,
      [DI_START_IN_ANSWER] = L_ANSWER,
      [DI_START_IN_CALLS] = L_ANSWER | DI_FRESH },
    L_ANSWER, L_DONE, false,
};
