/*
 * schema_build.h - what the builders of rules share: the automaton of one
 * conjunction while it is made.
 *
 * An array or an object is an automaton over its members, with two states
 * for each position: "between" (an end or a comma may come) and "next" (a
 * member must come).  A position is where it is in the schema's order (or
 * the set of names seen, in any order), how many members there were, as far
 * as that matters, which of the members that must exist were met, and which
 * values there were if all must differ.
 */

#ifndef DI_GRAM_SCHEMA_BUILD_H
#define DI_GRAM_SCHEMA_BUILD_H

#include "schema.h"

#define DI_GRAM_SOME_MAX  3u    /* schemas that some member must satisfy     */

typedef struct {
    di_gram_schema_t *x;
    di_gram_ctx_t    *c;
    di_gram_nfa_t    *nfa;
    const di_gram_form_t *f;
    uint32_t          end;      /* state behind the value                    */
    uint32_t         *between;  /* [n_positions] NFA states; 0: not reached  */
    uint32_t         *next;     /* likewise                                  */
    uint32_t          cap;      /* members are counted up to here            */
} di_gram_build_t;

/* Add texts behind the state `from`; the state behind them. */
uint32_t di_gram_put_text(di_gram_build_t *b, uint32_t from, const char *s);
uint32_t di_gram_put_dfa(di_gram_build_t *b, uint32_t from,
                         const di_gram_dfa_t *d);
/* White space that may come here: nothing, a blank, or a new line. */
uint32_t di_gram_put_white(di_gram_build_t *b, uint32_t from);

/* The rule of any JSON string. */
uint32_t di_gram_any_string(di_gram_ctx_t *c);

/* No value satisfies it, at a glance: see di_gram_is_empty(). */
bool di_gram_never(di_gram_conj_t conj);

/* Make between and next, for n positions; too many are the keyword's fault. */
void di_gram_positions(di_gram_build_t *b, uint64_t n, const char *keyword);
/* The state of a position in one of them, made when it is first asked for. */
uint32_t di_gram_reach(di_gram_build_t *b, uint32_t *table,
                       uint32_t position);
/* How far members have to be counted. */
uint32_t di_gram_count_cap(const di_gram_form_t *f, uint32_t at_least);
/* Behind `count` members, between them: another one may come. */
void di_gram_member_follows(di_gram_build_t *b, uint32_t position,
                            uint32_t count);

/* All values of the form b->f, from state 0 to b->end. */
void di_gram_build_array(di_gram_build_t *b);
void di_gram_build_object(di_gram_build_t *b);

#endif
