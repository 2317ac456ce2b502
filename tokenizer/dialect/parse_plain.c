/*
 * parse_plain.c - output without calls: an answer and nothing else, or
 * reasoning before it.
 *
 * A model that thinks may open its reasoning itself, so <think> leads there
 * from the answer, too.
 */

#include "parse.h"

#define N(rules)  rules, sizeof(rules) / sizeof((rules)[0])

/* ------------------------------------------------------------ answer only */

enum { P_ANSWER, P_DONE };

static const char *const no_markers[] = { NULL };

static const di_rule_t p_answer[] = {
    { NULL, 0, DI_ACT_STOP, P_DONE, NULL },
};

static const di_phase_t plain[] = {
    [P_ANSWER] = { N(p_answer), DI_ACT_TEXT, DI_ACT_TEXT, "", DI_ACT_SKIP },
    [P_DONE] = { NULL, 0, DI_ACT_SKIP, DI_ACT_SKIP, "", DI_ACT_SKIP },
};

const di_spelling_t di_spelling_plain = {
    no_markers, N(plain),
    { [DI_START_ANSWER] = P_ANSWER, [DI_START_REASONING] = P_ANSWER,
      [DI_START_IN_REASONING] = P_ANSWER, [DI_START_IN_ANSWER] = P_ANSWER,
      [DI_START_IN_CALLS] = P_ANSWER },
    P_ANSWER, P_DONE, false,
};

/* --------------------------------------------------------------- thinking */

enum { T_REASONING, T_ANSWER, T_DONE };

#define OPEN   "\1"
#define CLOSE  "\2"

static const char *const markers[] = { "<think>", "</think>", NULL };

static const di_rule_t t_reasoning[] = {
    { OPEN, 0, DI_ACT_SKIP, T_REASONING | DI_FRESH, NULL },
    { CLOSE, DI_NEWLINES, DI_ACT_SKIP, T_ANSWER | DI_FRESH, NULL },
};

static const di_rule_t t_answer[] = {
    { NULL, 0, DI_ACT_STOP, T_DONE, NULL },
    { OPEN, 0, DI_ACT_SKIP, T_REASONING | DI_FRESH, NULL },
    { CLOSE, 0, DI_ACT_SKIP, T_ANSWER, NULL },
};

static const di_phase_t think[] = {
    [T_REASONING] = { N(t_reasoning), DI_ACT_REASONING, DI_ACT_REASONING,
                      "\n", DI_ACT_SKIP },
    [T_ANSWER] = { N(t_answer), DI_ACT_TEXT, DI_ACT_TEXT, "\n",
                   DI_ACT_SKIP },
    [T_DONE] = { NULL, 0, DI_ACT_SKIP, DI_ACT_SKIP, "", DI_ACT_SKIP },
};

const di_spelling_t di_spelling_think = {
    markers, N(think),
    { [DI_START_ANSWER] = T_ANSWER | DI_FRESH,
      [DI_START_REASONING] = T_REASONING | DI_FRESH,
      [DI_START_IN_REASONING] = T_REASONING,
      [DI_START_IN_ANSWER] = T_ANSWER,
      [DI_START_IN_CALLS] = T_ANSWER | DI_FRESH },
    T_ANSWER, T_DONE, false,
};
