/*
 * parse_dsml.c - output of DeepSeek V4 and V4.1.
 *
 *     reasoning</think>answer
 *
 *     <DSML calls>
 *     <DSML invoke name="NAME">
 *     <DSML parameter name="KEY" string="true">VALUE</DSML parameter>
 *     </DSML invoke>
 *     </DSML calls>
 *
 * V4.1 has a space after DSML, V4 none, and calls the block tool_calls; both
 * spellings are taken from both.
 *
 * Two tables.  The official one is Recipe's: a tag's first bytes decide and
 * the rest is skipped, a key ends at its first space, nothing comes after the
 * block.  It gives the right result for well-formed output and broken or no
 * JSON for other.  Ours waits for whole tags, so what is no tag stays text
 * and the arguments are JSON whatever the key; block after block is taken,
 * text between and behind them too.  Up to a call's complete name the
 * block's markup is kept: if no call comes it is shown as it came.  What
 * stands in a call and is no parameter, or in a tag and has no place there,
 * is shown when the call is complete.
 */

#include "parse.h"

#define D   "\1"
#define TH  "\2"

#define N(rules)  rules, sizeof(rules) / sizeof((rules)[0])

static const char *const markers[] = {
    "\xef\xbd\x9c" "DSML" "\xef\xbd\x9c", "</think>", NULL,
};

/* --------------------------------------------------------------- official */

enum {
    O_REASONING, O_ANSWER, O_JSON, O_AFTER_JSON, O_CALLS, O_NAME, O_ARGS_FIRST,
    O_ARGS, O_KEY, O_TYPE, O_STRING, O_VALUE, O_DONE,
};

static const di_rule_t o_reasoning[] = {
    { "<" D, DI_IF_TOOLS | DI_NEWLINES, DI_ACT_SKIP, O_CALLS, NULL },
    { TH, DI_NEWLINES, DI_ACT_SKIP, O_ANSWER | DI_FRESH, NULL },
};

static const di_rule_t o_answer[] = {
    { NULL, DI_IF_NOT_JSON, DI_ACT_STOP, O_DONE, NULL },
    { "```json\n", DI_IF_JSON, DI_ACT_SKIP, O_JSON, NULL },
    { "```\n", DI_IF_JSON, DI_ACT_SKIP, O_JSON, NULL },
    { "{", DI_IF_JSON, DI_ACT_TEXT, O_JSON, NULL },
    { "[", DI_IF_JSON, DI_ACT_TEXT, O_JSON, NULL },
    { "<" D, DI_IF_TOOLS | DI_NEWLINES, DI_ACT_SKIP, O_CALLS, NULL },
    { TH, 0, DI_ACT_SKIP, O_ANSWER, NULL },
};

static const di_rule_t o_json[] = {
    { NULL, 0, DI_ACT_STOP, O_DONE, NULL },
    { "\n```", 0, DI_ACT_SKIP, O_AFTER_JSON, NULL },
};

static const di_rule_t o_after_json[] = {
    { "<" D, DI_IF_TOOLS | DI_NEWLINES, DI_ACT_SKIP, O_CALLS, NULL },
};

static const di_rule_t o_calls[] = {
    { "invoke name=\"", 0, DI_ACT_SKIP, O_NAME, NULL },
    { "</" D "tool_calls>", 0, DI_ACT_SKIP, O_DONE, NULL },
    { "</" D " calls>", 0, DI_ACT_SKIP, O_DONE, NULL },
};

static const di_rule_t o_name[] = {
    { "\"", 0, DI_ACT_CALL, O_ARGS_FIRST, NULL },
};

static const di_rule_t o_args_first[] = {
    { "parameter name=", 0, DI_ACT_SKIP, O_KEY, "{" },
    { "</" D, 0, DI_ACT_SKIP, O_CALLS, "{}" },
};

static const di_rule_t o_args[] = {
    { "parameter name=", 0, DI_ACT_SKIP, O_KEY, ", " },
    { "</" D, 0, DI_ACT_SKIP, O_CALLS, "}" },
};

static const di_rule_t o_key[] = {
    { " ", 0, DI_ACT_SKIP, O_TYPE, ": " },
};

static const di_rule_t o_type[] = {
    { "true\">", 0, DI_ACT_SKIP, O_STRING, "\"" },
    { "false\">", 0, DI_ACT_SKIP, O_VALUE, NULL },
};

static const di_rule_t o_string[] = {
    { "</" D, 0, DI_ACT_SKIP, O_ARGS, "\"" },
};

static const di_rule_t o_value[] = {
    { "</" D, 0, DI_ACT_SKIP, O_ARGS, NULL },
};

static const di_phase_t official[] = {
    [O_REASONING] = { N(o_reasoning), DI_ACT_REASONING, DI_ACT_REASONING,
                      "\n", DI_ACT_SKIP },
    [O_ANSWER] = { N(o_answer), DI_ACT_TEXT, DI_ACT_SPACE, "\n",
                   DI_ACT_SKIP },
    [O_JSON] = { N(o_json), DI_ACT_TEXT, DI_ACT_TEXT, "", DI_ACT_SKIP },
    [O_AFTER_JSON] = { N(o_after_json), DI_ACT_SPACE, DI_ACT_SPACE, "",
                       DI_ACT_SKIP },
    [O_CALLS] = { N(o_calls), DI_ACT_SKIP, DI_ACT_SKIP, "", DI_ACT_SKIP },
    [O_NAME] = { N(o_name), DI_ACT_NAME, DI_ACT_NAME, "", DI_ACT_SKIP },
    [O_ARGS_FIRST] = { N(o_args_first), DI_ACT_SKIP, DI_ACT_SKIP, "",
                       DI_ACT_SKIP },
    [O_ARGS] = { N(o_args), DI_ACT_SKIP, DI_ACT_SKIP, "", DI_ACT_SKIP },
    [O_KEY] = { N(o_key), DI_ACT_JSON, DI_ACT_JSON, "", DI_ACT_SKIP },
    [O_TYPE] = { N(o_type), DI_ACT_SKIP, DI_ACT_SKIP, "", DI_ACT_SKIP },
    [O_STRING] = { N(o_string), DI_ACT_STRING, DI_ACT_STRING, "",
                   DI_ACT_SKIP },
    [O_VALUE] = { N(o_value), DI_ACT_JSON, DI_ACT_JSON, "", DI_ACT_SKIP },
    [O_DONE] = { NULL, 0, DI_ACT_SKIP, DI_ACT_SKIP, "", DI_ACT_SKIP },
};

const di_spelling_t di_spelling_dsml_official = {
    markers, N(official),
    { [DI_START_ANSWER] = O_ANSWER | DI_FRESH,
      [DI_START_REASONING] = O_REASONING | DI_FRESH,
      [DI_START_IN_REASONING] = O_REASONING,
      [DI_START_IN_ANSWER] = O_ANSWER,
      [DI_START_IN_CALLS] = O_CALLS },
    O_ANSWER, O_DONE, false,
};

/* ----------------------------------------------------------------- strict */

enum {
    S_REASONING, S_ANSWER, S_JSON, S_BEHIND, S_OPEN, S_NAME, S_TAG,
    S_ARGS_FIRST, S_ARGS, S_KEY, S_TYPE, S_STRING, S_VALUE, S_CALLS, S_DONE,
};

#define SPACES  " \t\r\n"

/* What opens a block; a model may leave the block's own tag out. */
#define OPENERS                                                              \
    { "<" D "~calls>", DI_IF_TOOLS | DI_NEWLINES, DI_ACT_KEEP,               \
      S_OPEN | DI_FRESH, NULL },                                             \
    { "<" D "~tool_calls>", DI_IF_TOOLS | DI_NEWLINES, DI_ACT_KEEP,          \
      S_OPEN | DI_FRESH, NULL },                                             \
    { "<" D "~invoke name=\"", DI_IF_TOOLS | DI_NEWLINES, DI_ACT_KEEP,       \
      S_NAME, NULL }

/* What may close the arguments, when so much of their JSON is missing. */
#define CLOSERS(missing)                                                     \
    { "</" D "~invoke>", 0, DI_ACT_END, S_CALLS | DI_FRESH, missing },       \
    { "</" D "~calls>", 0, DI_ACT_END, S_BEHIND | DI_FRESH, missing },       \
    { "</" D "~tool_calls>", 0, DI_ACT_END, S_BEHIND | DI_FRESH, missing }

static const di_rule_t s_reasoning[] = {
    OPENERS,
    { TH, DI_NEWLINES, DI_ACT_SKIP, S_ANSWER | DI_FRESH, NULL },
};

static const di_rule_t s_answer[] = {
    { NULL, 0, DI_ACT_STOP, S_DONE, NULL },
    { "```json\n", DI_IF_JSON, DI_ACT_SKIP, S_JSON, NULL },
    { "```\n", DI_IF_JSON, DI_ACT_SKIP, S_JSON, NULL },
    { "{", DI_IF_JSON, DI_ACT_TEXT, S_JSON, NULL },
    { "[", DI_IF_JSON, DI_ACT_TEXT, S_JSON, NULL },
    OPENERS,
    { TH, 0, DI_ACT_SKIP, S_ANSWER, NULL },
};

static const di_rule_t s_json[] = {
    { NULL, 0, DI_ACT_STOP, S_DONE, NULL },
    { "\n```", 0, DI_ACT_SKIP, S_BEHIND | DI_FRESH, NULL },
    OPENERS,
};

static const di_rule_t s_behind[] = {
    { NULL, 0, DI_ACT_STOP, S_DONE, NULL },
    OPENERS,
    { TH, 0, DI_ACT_SKIP, S_BEHIND, NULL },
};

static const di_rule_t s_open[] = {
    { "<" D "~invoke name=\"", 0, DI_ACT_KEEP, S_NAME, NULL },
    { "</" D "~calls>", 0, DI_ACT_TEXT, S_BEHIND, NULL },
    { "</" D "~tool_calls>", 0, DI_ACT_TEXT, S_BEHIND, NULL },
};

static const di_rule_t s_name[] = {
    { "\"", 0, DI_ACT_CALL, S_TAG, NULL },
    { "\n", 0, DI_ACT_TEXT, S_BEHIND, NULL },
};

static const di_rule_t s_tag[] = {
    { ">", 0, DI_ACT_SKIP, S_ARGS_FIRST | DI_FRESH, NULL },
};

static const di_rule_t s_args_first[] = {
    { "<" D "~parameter name=\"", 0, DI_ACT_SKIP, S_KEY, "{\"" },
    CLOSERS("{}"),
    { "<" D "~invoke name=\"", 0, DI_ACT_KEEP, S_NAME, "{}" },
};

static const di_rule_t s_args[] = {
    { "<" D "~parameter name=\"", 0, DI_ACT_SKIP, S_KEY, ", \"" },
    CLOSERS("}"),
    { "<" D "~invoke name=\"", 0, DI_ACT_KEEP, S_NAME, "}" },
};

static const di_rule_t s_key[] = {
    { "\" string=\"", 0, DI_ACT_SKIP, S_TYPE, "\": " },
    { "\">", 0, DI_ACT_SKIP, S_STRING, "\": \"" },
};

static const di_rule_t s_type[] = {
    { "true\">", 0, DI_ACT_SKIP, S_STRING, "\"" },
    { "false\">", 0, DI_ACT_SKIP, S_VALUE, NULL },
    { "\">", 0, DI_ACT_SKIP, S_STRING, "\"" },
};

static const di_rule_t s_string[] = {
    { "</" D "~parameter>", 0, DI_ACT_SKIP, S_ARGS | DI_FRESH, "\"" },
    CLOSERS("\"}"),
};

static const di_rule_t s_value[] = {
    { "</" D "~parameter>", 0, DI_ACT_SKIP, S_ARGS | DI_FRESH, NULL },
    CLOSERS("}"),
};

static const di_rule_t s_calls[] = {
    { "<" D "~invoke name=\"", 0, DI_ACT_KEEP, S_NAME, NULL },
    { "</" D "~calls>", 0, DI_ACT_SKIP, S_BEHIND | DI_FRESH, NULL },
    { "</" D "~tool_calls>", 0, DI_ACT_SKIP, S_BEHIND | DI_FRESH, NULL },
};

static const di_phase_t strict[] = {
    [S_REASONING] = { N(s_reasoning), DI_ACT_REASONING, DI_ACT_REASONING,
                      "\n", DI_ACT_SKIP },
    [S_ANSWER] = { N(s_answer), DI_ACT_TEXT, DI_ACT_TEXT, "\n", DI_ACT_SKIP },
    [S_JSON] = { N(s_json), DI_ACT_TEXT, DI_ACT_TEXT, "", DI_ACT_SKIP },
    [S_BEHIND] = { N(s_behind), DI_ACT_TEXT, DI_ACT_TEXT, SPACES,
                   DI_ACT_SKIP },
    [S_OPEN] = { N(s_open), DI_ACT_TEXT, DI_ACT_TEXT, SPACES, DI_ACT_KEEP },
    [S_NAME] = { N(s_name), DI_ACT_NAME, DI_ACT_NAME, "", DI_ACT_SKIP },
    [S_TAG] = { N(s_tag), DI_ACT_KEEP, DI_ACT_KEEP, "", DI_ACT_SKIP },
    [S_ARGS_FIRST] = { N(s_args_first), DI_ACT_KEEP, DI_ACT_KEEP, SPACES,
                       DI_ACT_SKIP },
    [S_ARGS] = { N(s_args), DI_ACT_KEEP, DI_ACT_KEEP, SPACES, DI_ACT_SKIP },
    [S_KEY] = { N(s_key), DI_ACT_STRING, DI_ACT_STRING, "", DI_ACT_SKIP },
    [S_TYPE] = { N(s_type), DI_ACT_KEEP, DI_ACT_KEEP, "", DI_ACT_SKIP },
    [S_STRING] = { N(s_string), DI_ACT_STRING, DI_ACT_STRING, "",
                   DI_ACT_SKIP },
    [S_VALUE] = { N(s_value), DI_ACT_VALUE, DI_ACT_VALUE, "", DI_ACT_SKIP },
    [S_CALLS] = { N(s_calls), DI_ACT_TEXT, DI_ACT_TEXT, SPACES,
                  DI_ACT_SKIP },
    [S_DONE] = { NULL, 0, DI_ACT_SKIP, DI_ACT_SKIP, "", DI_ACT_SKIP },
};

const di_spelling_t di_spelling_dsml = {
    markers, N(strict),
    { [DI_START_ANSWER] = S_ANSWER | DI_FRESH,
      [DI_START_REASONING] = S_REASONING | DI_FRESH,
      [DI_START_IN_REASONING] = S_REASONING,
      [DI_START_IN_ANSWER] = S_ANSWER,
      [DI_START_IN_CALLS] = S_CALLS | DI_FRESH },
    S_BEHIND, S_DONE, false,
};
