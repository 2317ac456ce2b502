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
 * REST_MAX tokens: so it costs a round now and then to see whether they do by
 * now.  Where they don't pay for others either, a new sequence rests first,
 * and for longer.
 *
 * A scheduler that spreads a budget of rows over all sequences by their
 * chances would take the place of di_odds_verify().  It must then not let a
 * draft's row depend on what comes behind that draft (sched_draft.c).
 */

#include <math.h>

#include "sched_impl.h"

#define KEEP         (31.0 / 32) /* of the past, each step                  */
#define KEEP_ROUND   (7.0 / 8)   /* of a sequence's, each round             */
#define SLOPE_KEEP   (7.0 / 8)
#define SPREAD_LEAST 0.05        /* variance of rows that shows a slope     */
#define PRIOR        2.0         /* drafts hoped for before any were seen   */
#define REST_FIRST   16          /* at least, when drafts don't pay         */
#define REST_MAX     64


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
    spread = o->n * o->rows_rows - o->rows * o->rows;
    if (spread < SPREAD_LEAST * o->n * o->n)
        return;
    slope = (o->n * o->rows_us - o->rows * o->us) / spread;
    slope = fmin(fmax(slope, 0), o->us / o->rows);
    o->row_us = o->row_us * SLOPE_KEEP + slope * (1 - SLOPE_KEEP);
}


void
di_odds_draft(di_odds_t *o, uint32_t seqs, double us)
{
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
    double   chance = (t->stayed + PRIOR) / (t->hoped + PRIOR);
    uint32_t i;

    for (i = 0; i < n; i++) {
        chance *= (double) confidence[i];
        if (chance < row)
            break;
    }
    return i;
}


bool
di_odds_wants(const di_odds_t *o, di_trial_t *t)
{
    if (!t->begun) {
        t->begun = true;
        t->net = o->net;
        t->rest = t->last_rest = o->net < 0 ? REST_FIRST : 0;
    }
    if (t->rest == 0)
        return true;
    t->rest--;
    return false;
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
    t->net = t->net * KEEP_ROUND + net * (1 - KEEP_ROUND);
    o->net = o->net * KEEP + net * (1 - KEEP);
    if (t->net >= 0) {
        t->last_rest = 0;
        return;
    }
    t->last_rest = di_least(2 * t->last_rest, REST_MAX);
    if (t->last_rest < least)
        t->last_rest = least;
    t->rest = t->last_rest;
}
