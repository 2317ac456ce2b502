/*
 * join.h - short texts that are encoded by applying the merge rules.
 *
 * Inside tokenizer/vocab only.  A di_join_t is one text; any number of them
 * are encoded abreast, as each spends most of its time waiting for memory.
 */

#ifndef DI_JOIN_H
#define DI_JOIN_H

#include "merges.h"

#define DI_JOIN_MAX  32                 /* tokens that a text starts from    */

/* Tokens keep the place where they start, from 1 on; a token that joins the
 * one before it leaves its place empty.  The first place and the one behind
 * the last have an id that no rule knows. */
typedef struct {
    uint32_t orders[DI_JOIN_MAX + 2];   /* of the rule for the token of a
                                   place and the next one                    */
    int32_t  ids[DI_JOIN_MAX + 2];      /* tokens                            */
    uint64_t starts;            /* a bit for each place that has a token     */
    uint32_t width;             /* places that are looked at: 16 or 32       */
    uint32_t left, at, right;   /* places of the last join and beside it; 0
                                   before the first                          */
    uint32_t empty;             /* the place that it left empty              */
    uint32_t left_order;        /* of the pairs at left and at; not yet in   */
    uint32_t at_order;          /* orders[]                                  */
    bool     near;              /* their pairs have still to be looked up    */
    bool     left_far;          /* the orders of these pairs have still to be */
    bool     right_far;         /* looked up                                 */
} di_join_t;

/* Start from len bytes, 1 to DI_JOIN_MAX.  first[256]: the tokens of bytes,
 * all of which have one. */
void di_join_bytes(const di_merges_t *m, const int32_t first[256],
                   const uint8_t *s, size_t len, di_join_t *text);

/* Start from n tokens, 1 to DI_JOIN_MAX. */
void di_join_ids(const di_merges_t *m, const int32_t *ids, size_t n,
                 di_join_t *text);

/* Apply the rules to n texts until none fits. */
void di_join_run(const di_merges_t *m, di_join_t *texts, size_t n);

/* The same by the i-th way that this machine has, the fastest first; NULL:
 * there is none. */
typedef void (*di_join_run_t)(const di_merges_t *m, di_join_t *texts,
                              size_t n);

di_join_run_t di_join_way(unsigned i);

/* What became of a text: its ids; their number. */
size_t di_join_result(const di_join_t *text, int32_t ids[DI_JOIN_MAX]);

#endif
