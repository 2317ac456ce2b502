/*
 * build.h - what the parts of the grammar compiler share.
 *
 * Inside tokenizer/grammar only.  A compilation lives in one di_gram_ctx_t.
 * All its memory comes from one arena, so that any step that fails leaves by
 * one longjmp() and nothing is to be undone: no function below returns an
 * error.  Every loop whose length the input decides pays for its steps with
 * di_gram_work().
 *
 * The way of a grammar:
 *
 *   regex, EBNF, schema --> expressions (di_gram_node_t) --> an automaton
 *   with choices (di_gram_nfa_t) --> a deterministic one over code points
 *   (di_gram_dfa_t), where sets are intersected and complemented --> rules
 *   of the context, linked and lowered to bytes --> the blob
 */

#ifndef DI_GRAM_BUILD_H
#define DI_GRAM_BUILD_H

#include <setjmp.h>
#include <jansson.h>

#include "di_grammar.h"

#define DI_GRAM_CP_MAX    0x10ffffu
#define DI_GRAM_NEST_MAX  200       /* parentheses, subschemas               */
#define DI_GRAM_NONE      UINT32_MAX

/* A special token is a letter like a code point, far above the last one. */
#define DI_GRAM_SPECIAL   0x2000000u    /* + its id                          */

typedef struct {
    uint32_t lo;            /* first code point                              */
    uint32_t hi;            /* last one                                      */
} di_gram_range_t;

/* A set of code points. */
typedef struct {
    const di_gram_range_t *r;       /* [n] sorted, with gaps between them    */
    uint32_t n;
} di_gram_set_t;

typedef enum {
    DI_GRAM_N_NONE,         /* no text at all                                */
    DI_GRAM_N_EMPTY,        /* the empty text                                */
    DI_GRAM_N_SET,          /* one code point of a set                       */
    DI_GRAM_N_CAT,          /* the children in order                         */
    DI_GRAM_N_ALT,          /* one of the children                           */
    DI_GRAM_N_REP,          /* the child, min to max times                   */
    DI_GRAM_N_CALL,         /* a rule                                        */
    DI_GRAM_N_BOS,          /* nothing, at the start of the text             */
    DI_GRAM_N_EOS,          /* nothing, at its end                           */
    DI_GRAM_N_DFA,          /* a text that an automaton accepts              */
} di_gram_node_kind_t;

typedef struct di_gram_node_s  di_gram_node_t;
typedef struct di_gram_dfa_s   di_gram_dfa_t;

struct di_gram_node_s {
    di_gram_node_kind_t kind;
    di_gram_set_t   set;
    uint32_t        rule;   /* N_CALL                                        */
    uint32_t        min;    /* N_REP                                         */
    uint32_t        max;    /* N_REP; DI_GRAM_NONE: no end                   */
    const di_gram_dfa_t *dfa;       /* N_DFA; without calls                  */
    di_gram_node_t *first;  /* children                                      */
    di_gram_node_t *last;
    di_gram_node_t *next;   /* sibling                                       */
};

typedef enum {
    DI_GRAM_E_EPS,
    DI_GRAM_E_SET,
    DI_GRAM_E_CALL,
    DI_GRAM_E_BOS,
    DI_GRAM_E_EOS,
} di_gram_edge_kind_t;

typedef struct {
    di_gram_edge_kind_t kind;
    uint32_t       to;
    uint32_t       next;    /* edge of the same state; DI_GRAM_NONE: last    */
    uint32_t       rule;    /* E_CALL                                        */
    di_gram_set_t  set;     /* E_SET                                         */
} di_gram_edge_t;

/* Built from state 0 on; state 1 is where a text ends. */
typedef struct {
    uint32_t       *edges_of;       /* [n_states] first edge                 */
    uint32_t        n_states, states_cap;
    di_gram_edge_t *edges;          /* [n_edges]                             */
    uint32_t        n_edges, edges_cap;
    bool            anchored;       /* an edge is an anchor                  */
} di_gram_nfa_t;

typedef struct {
    uint32_t lo, hi;        /* code points                                   */
    uint32_t to;
} di_gram_arc_t;

typedef struct {
    uint32_t rule;
    uint32_t to;            /* state after it                                */
} di_gram_call_t;

typedef struct {
    di_gram_arc_t  *arcs;   /* [n_arcs] sorted, disjoint                     */
    di_gram_call_t *calls;  /* [n_calls]                                     */
    uint32_t n_arcs, n_calls;
    bool     final;
} di_gram_state_t;

/* State 0 is the start; n == 0: no text. */
struct di_gram_dfa_s {
    di_gram_state_t *s;
    uint32_t n, cap;
};

typedef struct {
    const char          *name;      /* of an EBNF rule; NULL                 */
    const di_gram_dfa_t *dfa;       /* NULL: not built yet                   */
    int                  part;      /* that it was made for; -1: none        */
    bool                 productive;        /* by link                       */
} di_gram_rule_t;

typedef struct di_gram_block_s  di_gram_block_t;
typedef struct di_gram_esc_s    di_gram_esc_t;
typedef struct di_gram_memo_s   di_gram_memo_t;     /* schema.h              */

typedef struct {
    di_gram_opts_t   opts;
    di_gram_err_t   *err;
    jmp_buf          out;           /* to di_gram_compile()                  */

    di_gram_block_t *blocks;        /* of the arena, newest first            */
    size_t           memory_left;
    uint64_t         work_left;

    di_gram_rule_t  *rules;         /* [n_rules]                             */
    uint32_t         n_rules, rules_cap;
    uint32_t         root;          /* rule                                  */

    di_gram_esc_t   *escapes;       /* rules of spelled sets (string.c)      */
    uint32_t         ws_rule;       /* DI_GRAM_NONE until used               */

    /* What all schemas of a grammar share: equal keywords say the same, and
     * texts that are spelled as JSON are one rule. */
    di_gram_memo_t **texts;         /* [DI_GRAM_BUCKETS] texts by keyword    */
    di_gram_memo_t **scalars;       /* [DI_GRAM_BUCKETS] rules by texts      */
    uint32_t         any_string;    /* rule; DI_GRAM_NONE: not built         */
    uint32_t         any_number;

    int              part;          /* at hand; -1: none                     */
    bool             lenient;       /* it may go without what can't be held  */
    uint32_t        *part_roots;    /* [n_parts] rules                       */
    uint32_t         n_parts, parts_cap;

    json_t          *json;          /* array of what was parsed; owned       */
    json_t          *doc;           /* schema at hand                        */
    json_t          *changed;       /* array by part of schemas that lost
                                       keywords, else null; owned            */
    uint8_t         *blob;          /* the result; malloc'd                  */
    size_t           blob_bytes;
} di_gram_ctx_t;

/* ctx.c */
void *di_gram_alloc(di_gram_ctx_t *c, size_t n, size_t size);   /* zeroed    */
void *di_gram_grow(di_gram_ctx_t *c, void *p, uint32_t used, uint32_t *cap,
                   size_t size);
void di_gram_work(di_gram_ctx_t *c, uint64_t steps);
_Noreturn void di_gram_fail(di_gram_ctx_t *c, int code, const char *keyword,
                            const char *path, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
uint32_t di_gram_rule_new(di_gram_ctx_t *c, const char *name);
/* Keep until the compilation ends; takes v, NULL: no memory. */
json_t *di_gram_keep(di_gram_ctx_t *c, json_t *v);
/* JSON at the start of s; *used: its bytes, NULL: it must be all. */
json_t *di_gram_json(di_gram_ctx_t *c, const char *s, size_t len,
                     size_t *used);
/* A grammar of one kind; its root. */
uint32_t di_gram_compile_json(di_gram_ctx_t *c, di_gram_kind_t kind,
                              json_t *v);
uint32_t di_gram_compile_text(di_gram_ctx_t *c, di_gram_kind_t kind,
                              const char *s, size_t len);

/* set.c: sets and expressions. */
di_gram_set_t di_gram_set(di_gram_ctx_t *c, uint32_t lo, uint32_t hi);
di_gram_set_t di_gram_set_any(void);                /* all scalar values     */
di_gram_set_t di_gram_set_norm(di_gram_ctx_t *c, di_gram_range_t *r,
                               uint32_t n);         /* any ranges; takes r   */
di_gram_set_t di_gram_set_or(di_gram_ctx_t *c, di_gram_set_t a,
                             di_gram_set_t b);
di_gram_set_t di_gram_set_not(di_gram_ctx_t *c, di_gram_set_t a);
di_gram_set_t di_gram_set_and(di_gram_ctx_t *c, di_gram_set_t a,
                              di_gram_set_t b);
di_gram_set_t di_gram_set_caseless(di_gram_ctx_t *c, di_gram_set_t a);
/* A property's set as PCRE2 has it; false: it knows none of the name. */
bool di_gram_set_property(di_gram_ctx_t *c, const char *name, size_t len,
                          di_gram_set_t *set);

di_gram_node_t *di_gram_node(di_gram_ctx_t *c, di_gram_node_kind_t kind);
di_gram_node_t *di_gram_node_set(di_gram_ctx_t *c, di_gram_set_t set);
di_gram_node_t *di_gram_node_rep(di_gram_ctx_t *c, di_gram_node_t *child,
                                 uint32_t min, uint32_t max);
void di_gram_node_add(di_gram_node_t *parent, di_gram_node_t *child);
/* The code points of UTF-8 text in order; malformed UTF-8 fails. */
di_gram_node_t *di_gram_node_text(di_gram_ctx_t *c, const char *s,
                                  size_t len);
/* One code point of valid UTF-8 at s, len > 0; 0 length: malformed. */
size_t di_gram_utf8(const char *s, size_t len, uint32_t *cp);

/* nfa.c */
di_gram_nfa_t *di_gram_nfa_new(di_gram_ctx_t *c);
uint32_t di_gram_nfa_state(di_gram_ctx_t *c, di_gram_nfa_t *nfa);
void di_gram_nfa_eps(di_gram_ctx_t *c, di_gram_nfa_t *nfa, uint32_t from,
                     uint32_t to);
void di_gram_nfa_set(di_gram_ctx_t *c, di_gram_nfa_t *nfa, uint32_t from,
                     di_gram_set_t set, uint32_t to);
void di_gram_nfa_call(di_gram_ctx_t *c, di_gram_nfa_t *nfa, uint32_t from,
                      uint32_t rule, uint32_t to);
/* Add an expression behind `from`; returns the state behind it. */
uint32_t di_gram_nfa_node(di_gram_ctx_t *c, di_gram_nfa_t *nfa, uint32_t from,
                          const di_gram_node_t *node);
/* ASCII text likewise. */
uint32_t di_gram_nfa_text(di_gram_ctx_t *c, di_gram_nfa_t *nfa, uint32_t from,
                          const char *s);
di_gram_dfa_t *di_gram_nfa_dfa(di_gram_ctx_t *c, const di_gram_nfa_t *nfa);
di_gram_dfa_t *di_gram_node_dfa(di_gram_ctx_t *c, const di_gram_node_t *node);

/* dfa.c; the operations are for automata without calls. */
typedef enum { DI_GRAM_AND, DI_GRAM_ANDNOT, DI_GRAM_OR } di_gram_op_t;
uint32_t di_gram_dfa_state(di_gram_ctx_t *c, di_gram_dfa_t *d);
di_gram_dfa_t *di_gram_dfa_any(di_gram_ctx_t *c);           /* any text      */
di_gram_dfa_t *di_gram_dfa_op(di_gram_ctx_t *c, di_gram_op_t op,
                              const di_gram_dfa_t *a,
                              const di_gram_dfa_t *b);
/* [n] the states from where the text can end; a call counts as a step where
 * its rule is productive. */
bool *di_gram_dfa_useful(di_gram_ctx_t *c, const di_gram_dfa_t *d);
/* Only those states. */
di_gram_dfa_t *di_gram_dfa_trim(di_gram_ctx_t *c, const di_gram_dfa_t *d);
/* Without states that are like others, where that is found out cheaply; the
 * same automaton elsewhere. */
const di_gram_dfa_t *di_gram_dfa_merge(di_gram_ctx_t *c,
                                       const di_gram_dfa_t *d);
bool di_gram_dfa_accepts(di_gram_ctx_t *c, const di_gram_dfa_t *d,
                         const char *s, size_t len);

/* string.c: the JSON spellings of the texts that d accepts. */
di_gram_dfa_t *di_gram_dfa_string(di_gram_ctx_t *c, const di_gram_dfa_t *d);

/* regex.c.  ecma: as JSON Schema has patterns, found anywhere in a text;
 * else PCRE2's, and the whole text. */
di_gram_node_t *di_gram_regex(di_gram_ctx_t *c, const char *s, size_t len,
                              bool ecma, const char *path);

/* ebnf.c, schema.c: make rules, return the root.  codec: what only the codec
 * may write is known, too. */
uint32_t di_gram_ebnf(di_gram_ctx_t *c, const char *s, size_t len,
                      bool codec);
uint32_t di_gram_schema(di_gram_ctx_t *c, json_t *schema);
/* schema.c: the characters of the strings that satisfy it; fails if there are
 * none. */
const di_gram_dfa_t *di_gram_schema_texts(di_gram_ctx_t *c, json_t *schema);

/* output.c: a terminal of the codec's at s, which begins with < or %.
 * *used: its bytes; *free: it may be any text. */
di_gram_node_t *di_gram_output(di_gram_ctx_t *c, const char *s, size_t len,
                               const char *path, size_t *used, bool *free);

/* drop.c: take the keyword at fault out of c->doc, or another one before it;
 * false: there is none that can go. */
bool di_gram_drop(di_gram_ctx_t *c, di_gram_dropped_t *dropped);

/* link.c: trim what can't finish, lower to bytes, write the blob. */
void di_gram_link(di_gram_ctx_t *c);

#endif
