/*
 * sched_draft.c - drafts for the sequences that decode next.
 *
 * They are made behind a step, from the state that it left and the token that
 * was drawn, and verified in the next one.  How many of them are worth their
 * rows is decided in di_draft_verify() alone.
 */

#include <stdlib.h>
#include <string.h>

#include "sched_impl.h"


int
di_draft_open(di_sched_t *s)
{
    size_t n = (size_t) s->conf.max_seqs * s->model.n_drafts;

    if (!s->conf.drafts)
        s->model.n_drafts = 0;
    if (s->model.n_drafts == 0)
        return DI_OK;
    s->draft_seqs = calloc(s->conf.max_seqs, sizeof(*s->draft_seqs));
    s->drafted = calloc(s->conf.max_seqs, sizeof(*s->drafted));
    s->drafts = calloc(n, sizeof(*s->drafts));
    s->confidence = calloc(n, sizeof(*s->confidence));
    if (s->draft_seqs == NULL || s->drafted == NULL || s->drafts == NULL
        || s->confidence == NULL)
        return DI_ENOMEM;
    return DI_OK;
}


void
di_draft_close(di_sched_t *s)
{
    free(s->draft_seqs);
    free(s->drafted);
    free(s->drafts);
    free(s->confidence);
}


/* Tokens that a sequence may have beyond the one that it draws next. */
static uint32_t
room_for(const seq_t *seq)
{
    uint32_t left = seq->req->total_max - seq->n_tokens;

    return left > 1 ? left - 1 : 0;
}


static bool
wants_drafts(const seq_t *seq)
{
    return seq->n_tokens - seq->n_computed == 1 && seq->n_computed > 0
           && seq->req->forked && seq->drafted_at != seq->n_tokens
           && room_for(seq) > 0;
}


int
di_draft_make(di_sched_t *s)
{
    const uint32_t n_drafts = s->model.n_drafts;
    uint32_t       n = 0, i;
    seq_t         *seq;
    int            rc;

    if (n_drafts == 0)
        return DI_OK;
    for (seq = s->running.head; seq != NULL; seq = seq->next) {
        if (!wants_drafts(seq))
            continue;
        s->drafted[n] = seq;
        s->draft_seqs[n++] = (di_model_draft_t) {
            .slot = seq->slot, .n = seq->n_computed,
            .token = seq->tokens[seq->n_computed] };
    }
    if (n == 0)
        return DI_OK;
    rc = s->model.draft(s->model.ctx, s->draft_seqs, n, s->drafts,
                        s->confidence);
    for (i = 0; i < n && rc == DI_OK; i++) {
        seq = s->drafted[i];
        seq->n_drafts = n_drafts < room_for(seq) ? n_drafts : room_for(seq);
        seq->drafted_at = seq->n_tokens;
        memcpy(seq->tokens + seq->n_tokens, s->drafts + i * n_drafts,
               seq->n_drafts * sizeof(int32_t));
    }
    return rc;
}


/* All of them, but no block more than the next token needs anyway. */
uint32_t
di_draft_verify(const di_sched_t *s, const seq_t *seq)
{
    uint32_t room = seq->n_blocks * s->model.block_tokens - seq->n_tokens;

    if (seq->drafted_at != seq->n_tokens)
        return 0;
    return seq->n_drafts < room ? seq->n_drafts : room;
}
