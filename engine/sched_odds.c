/*
 * sched_odds.c - which drafts are worth their rows, and which sequences worth
 * drafting for.
 *
 * Time is worth the tokens that the engine makes in it of late: a draft is
 * verified if it stays with more than the tokens that its row costs, and a
 * sequence is drafted for as long as what stays of its drafts outweighs the
 * drafting and the rows.  Costs are taken by the clock.  What a row adds to a
 * step is the slope of steps' times over their rows, of those that only
 * decode; while all have as many rows there is none to see, and the last one
 * known stays.
 *
 * The drafter's chances are taken for what they are worth to the sequence: as
 * many of its drafts stayed as should have, or half as many.  A sequence whose
 * drafts don't pay goes without for a while, twice as long each time, up to
 * REST_MAX tokens.  Where they don't pay for others either, a new sequence
 * rests first, and for longer.
 *
 * To see whether they pay by now costs a round, of which all sequences
 * together may lose no more than SHARE of the tokens that are made: what
 * rounds lose is a debt, which tokens pay off, and gains, too.  Who has not
 * been seen to gain drafts only while there is none.  Such a round takes the
 * drafter at its word, counts for as much as all before it, and is followed by
 * another if it gained.  The first drafts wait for some steps without any:
 * else there is nothing to compare with, rows look free, and it takes dozens
 * of rounds to see that they aren't.
 *
 * A scheduler that spreads a budget of rows over all sequences by their
 * chances would take the place of di_odds_verify().  It must then not let a
 * draft's row depend on what comes behind that draft (sched_draft.c).
 */

#include <math.h>

#include "sched_impl.h"

#define KEEP         (31.0 / 32) /* of the past, each step                  */
#define KEEP_ROUND   (7.0 / 8)   /* of a sequence's, each round             */
#define SLOPES       8.0         /* of the last steps                       */
#define SPREAD_LEAST 0.05        /* variance of rows that shows a slope     */
#define STALL        4.0         /* times less than the mean begins it anew */
#define PRIOR        2.0         /* drafts hoped for before any were seen   */
#define REST_FIRST   16          /* at least, when drafts don't pay         */
#define REST_MAX     64
#define ROUNDS       8.0         /* of a sequence's, of which the net is    */
#define PLAIN        4.0         /* steps to see before the first drafts    */
#define PROBE        1.0         /* tokens that a probe is put down for     */
#define SHARE        (1.0 / 64)  /* of the tokens, at most lost by drafting */


void
di_odds_step(di_odds_t *o, uint32_t rows, uint64_t tokens, double us)
{
    double spread, slope;

    o->n = o->n * KEEP + 1;
    o->rows = o->rows * KEEP + rows;
    o->us = o->us * KEEP + us;
    o->rows_rows = o->rows_rows * KEEP + (double) rows * rows;
    o->rows_us = o->rows_us * KEEP + rows * us;
    o->tokens = o->tokens * KEEP + (double) tokens;
    o->all_us = o->all_us * KEEP + us;
    o->debt = fmax(o->debt - (double) tokens * SHARE, 0);
    spread = o->n * o->rows_rows - o->rows * o->rows;
    if (spread < SPREAD_LEAST * o->n * o->n)
        return;
    slope = (o->n * o->rows_us - o->rows * o->us) / spread;
    slope = fmin(fmax(slope, 0), o->us / o->rows);
    o->slopes = fmin(o->slopes + 1, SLOPES);     /* the first counts at once */
    o->row_us += (slope - o->row_us) / o->slopes;
}


/* A drafting that took long for once, its weights being cold or the CPU
 * another's, says little of the next, and where drafts are seldom tried its
 * part in the mean would outlast tens of thousands of tokens.  So one that
 * takes a small part of the mean begins it anew. */
void
di_odds_draft(di_odds_t *o, uint32_t seqs, double us)
{
    if (us * o->drafted < o->draft_us * seqs / STALL)
        o->drafted = o->draft_us = 0;
    o->drafted = o->drafted * KEEP + seqs;
    o->draft_us = o->draft_us * KEEP + us;
    o->all_us += us;
}


/* Tokens that could be made in that time. */
static double
worth(const di_odds_t *o, double us)
{
    return o->all_us > 0 ? us * o->tokens / o->all_us : 0;
}


uint32_t
di_odds_verify(const di_odds_t *o, const di_trial_t *t,
               const float *confidence, uint32_t n)
{
    double   row = worth(o, o->row_us);
    double   chance = t->probes ? 1 : (t->stayed + PRIOR)
                                      / (t->hoped + PRIOR);
    uint32_t i;

    for (i = 0; i < n; i++) {
        chance *= (double) confidence[i];
        if (chance < row)
            break;
    }
    return i;
}


bool
di_odds_wants(di_odds_t *o, di_trial_t *t)
{
    if (!t->begun) {
        t->begun = true;
        t->net = o->net;
        t->rest = t->last_rest = o->net < 0 ? REST_FIRST : 0;
    }
    if (t->rest > 0) {
        t->rest--;
        return false;
    }
    if (o->n < PLAIN)
        return false;
    if (t->net > 0)
        return true;
    if (o->debt > 0)
        return false;
    o->debt += PROBE;
    t->probes = true;
    return true;
}


/* What a round gave goes into the averages and the account. */
static void
enter(di_odds_t *o, di_trial_t *t, double net)
{
    t->rounds = t->probes ? 2 : fmin(t->rounds + 1, ROUNDS);
    t->net += (net - t->net) / t->rounds;
    o->net = o->net * KEEP + net * (1 - KEEP);
    o->debt = fmax(o->debt - (t->probes ? PROBE : 0) - net, 0);
    t->probes = false;
}


void
di_odds_round(di_odds_t *o, di_trial_t *t, const float *confidence,
              uint32_t verified, uint32_t stayed)
{
    double   net = stayed - verified * worth(o, o->row_us);
    double   chance = 1, hoped = 0;
    uint32_t least = o->net < 0 ? REST_FIRST : 1, i;

    if (o->drafted > 0)
        net -= worth(o, o->draft_us / o->drafted);
    for (i = 0; i < verified; i++) {
        chance *= (double) confidence[i];
        hoped += chance;
    }
    t->hoped = t->hoped * KEEP_ROUND + hoped;
    t->stayed = t->stayed * KEEP_ROUND + stayed;
    enter(o, t, net);
    if (t->net >= 0 || net > 0) {
        t->last_rest = 0;
        return;
    }
    t->last_rest = di_least(2 * t->last_rest, REST_MAX);
    if (t->last_rest < least)
        t->last_rest = least;
    t->rest = t->last_rest;
}
