/*
 * sched_draft.c - drafts for the sequences that decode next.
 *
 * They are made behind a step, from the state that it left and the token that
 * was drawn, and verified in the next one.  The drafter's logits are sampled
 * like the model's own, each request by its parameters, in one of two ways:
 *
 * - With the very numbers that the model's token will be drawn with.  That
 *   token does not depend on the draft, and mostly is the draft where the two
 *   rows are alike.  The text of a seed is the same with any drafts or none,
 *   in any company.
 * - With other numbers, for requests whose seed nobody knows
 *   (DI_GEN_UNSEEDED): the draft then stays with the chance that the two
 *   distributions allow for, or is replaced by rejection sampling.  More
 *   drafts stay, and tokens are distributed as without any, but which ones
 *   they are depends on what was drafted, hence on the load.
 *
 * What a draft of the second kind was drawn from is kept until it is verified.
 * Its rule is exact only if it does not depend on a draft, nor on those behind
 * it, whether it is verified: so di_draft_verify() may look at the drafts'
 * chances in order and stop at one, whereas choosing by all of them at once
 * would favour drafts that look good.  (A chance depends on the drafts before
 * it alone.)  And a draft that is left out because its grammar forbids it is
 * replaced like any other.
 *
 * How many drafts are worth their rows is decided in di_draft_verify() alone,
 * by what sched_odds.c says of the drafter's confidence.
 */

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "sched_impl.h"

_Static_assert(DI_MODEL_PICKS <= DI_SCHED_PARTS, "a sampler for each pick");


int
di_draft_open(di_sched_t *s)
{
    di_drafts_t *d = &s->drafts;
    size_t       seqs = s->conf.max_seqs, n = seqs * s->model.n_drafts;

    if (s->conf.drafts == DI_DRAFTS_OFF)
        s->model.n_drafts = 0;
    if (s->model.n_drafts == 0)
        return DI_OK;
    d->asked = calloc(seqs, sizeof(*d->asked));
    d->seqs = calloc(seqs, sizeof(*d->seqs));
    d->tokens = calloc(n, sizeof(*d->tokens));
    d->confidence = calloc(n, sizeof(*d->confidence));
    d->from = calloc(n, sizeof(*d->from));
    d->chances = calloc(n, sizeof(*d->chances));
    d->places = calloc(seqs, sizeof(*d->places));
    if (d->asked == NULL || d->seqs == NULL || d->tokens == NULL
        || d->confidence == NULL || d->from == NULL || d->chances == NULL
        || d->places == NULL)
        return DI_ENOMEM;
    while (d->n_places < seqs) {
        d->places[d->n_places] = (uint32_t) seqs - d->n_places;
        d->n_places++;
    }
    return DI_OK;
}


void
di_draft_close(di_sched_t *s)
{
    di_drafts_t *d = &s->drafts;

    free(d->asked);
    free(d->seqs);
    free(d->tokens);
    free(d->confidence);
    free(d->from);
    free(d->chances);
    free(d->places);
}


void
di_draft_forget(di_sched_t *s, seq_t *seq)
{
    if (seq->place != 0)
        s->drafts.places[s->drafts.n_places++] = seq->place;
    seq->place = 0;
    seq->drafted_at = 0;
}


/* ------------------------------------------------------------------- making */

/* Tokens that a sequence may have beyond the one that it draws next. */
static uint32_t
room_for(const seq_t *seq)
{
    uint32_t left = seq->req->total_max - seq->n_tokens;

    return left > 1 ? left - 1 : 0;
}


static bool
wants_drafts(di_sched_t *s, seq_t *seq)
{
    return seq->n_tokens - seq->n_computed == 1 && seq->n_computed > 0
           && seq->req->forked && seq->drafted_at != seq->n_tokens
           && room_for(seq) > 0
           && (s->conf.drafts == DI_DRAFTS_ALL
               || di_odds_wants(&s->odds, &seq->trial));
}


/* Of a sequence's first draft, in lists by place. */
static size_t
first_of(const di_sched_t *s, const seq_t *seq)
{
    return (size_t) (seq->place - 1) * s->model.n_drafts;
}


/* Ask for drafts of a sequence.  A drafter that chooses them all without
 * pick() leaves what they are drawn from unknown. */
static void
ask(di_sched_t *s, seq_t *seq, uint32_t at)
{
    di_drafts_t *d = &s->drafts;
    uint32_t     i;

    if (seq->place == 0) {
        assert(d->n_places > 0);
        seq->place = d->places[--d->n_places];
    }
    for (i = 0; i < s->model.n_drafts; i++)
        d->from[first_of(s, seq) + i].n = 0;
    seq->n_drafts = di_least(s->model.n_drafts, room_for(seq));
    d->seqs[at] = seq;
    d->asked[at] = (di_model_draft_t) {
        .slot = seq->slot, .n = seq->n_computed,
        .token = seq->tokens[seq->n_computed] };
}


/* Draw a draft: called by the model, on any thread. */
static int32_t
pick(void *arg, size_t at, uint32_t i, const float *logits)
{
    di_sched_t        *s = arg;
    seq_t             *seq = s->drafts.seqs[at];
    di_sample_in_t     in = di_sample_in(s, seq, i);
    di_sampler_from_t *from = NULL;
    int32_t            token = 0;
    uint32_t           number;
    int                rc;

    if (i >= seq->n_drafts)
        return 0;                /* there is no room for it                 */
    if ((in.params->flags & DI_GEN_UNSEEDED) != 0)
        from = &s->drafts.from[first_of(s, seq) + i];
    rc = di_sampler_draft(di_sampler_take(s, &number), logits, &in, from,
                          &token);
    di_sampler_give(s, number);
    if (rc != DI_OK)
        seq->n_drafts = i;
    else
        seq->tokens[in.n_tokens] = token;    /* penalties count it          */
    return token;
}


int
di_draft_make(di_sched_t *s)
{
    const uint32_t n_drafts = s->model.n_drafts;
    di_drafts_t   *d = &s->drafts;
    uint64_t       started_us;
    uint32_t       n = 0, i;
    seq_t         *seq;
    int            rc;

    if (n_drafts == 0)
        return DI_OK;
    for (seq = s->running.head; seq != NULL; seq = seq->next) {
        if (wants_drafts(s, seq))
            ask(s, seq, n++);
    }
    if (n == 0)
        return DI_OK;
    started_us = di_sched_now_us();
    rc = s->model.draft(s->model.ctx, d->asked, n, pick, s, d->tokens,
                        d->confidence);
    for (i = 0; i < n && rc == DI_OK; i++) {
        seq = d->seqs[i];
        seq->drafted_at = seq->n_tokens;
        memcpy(seq->tokens + seq->n_tokens, d->tokens + i * n_drafts,
               seq->n_drafts * sizeof(int32_t));
        memcpy(d->chances + first_of(s, seq), d->confidence + i * n_drafts,
               n_drafts * sizeof(float));
    }
    di_odds_draft(&s->odds, n, (double) (di_sched_now_us() - started_us));
    return rc;
}


/* ---------------------------------------------------------------- verifying */

/* As many as are worth it, but no block more than the next token needs
 * anyway. */
uint32_t
di_draft_verify(di_sched_t *s, seq_t *seq)
{
    uint32_t n, room = seq->n_blocks * s->model.block_tokens - seq->n_tokens;

    if (seq->drafted_at != seq->n_tokens)
        return 0;
    n = di_least(seq->n_drafts, room);
    if (s->conf.drafts == DI_DRAFTS_ALL || n == 0)
        return n;
    n = di_odds_verify(&s->odds, &seq->trial,
                       s->drafts.chances + first_of(s, seq), n);
    if (n == 0)
        di_draft_note(s, seq, 0, 0);     /* it was drafted for in vain      */
    return n;
}


void
di_draft_note(di_sched_t *s, seq_t *seq, uint32_t verified, uint32_t stayed)
{
    di_odds_round(&s->odds, &seq->trial, s->drafts.chances + first_of(s, seq),
                  verified, stayed);
}


const di_sampler_from_t *
di_draft_from(const di_sched_t *s, const seq_t *seq, uint32_t i)
{
    const di_sampler_from_t *from = &s->drafts.from[first_of(s, seq) + i];

    return from->n > 0 ? from : NULL;
}
