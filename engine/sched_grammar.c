/*
 * sched_grammar.c - sequences whose text must hold a grammar.
 *
 * A grammar comes with its request as bytes.  Requests mostly come with one of
 * a few, so those opened are kept by their SHA-256, in use or not, as long as
 * they fit the grammars' share of memory; a request for which there is no
 * room is refused.
 *
 * Each choice has a matcher of its own from submit on.  It stands behind the
 * sequence's last token, whatever becomes of the sequence's KV: a preempted
 * sequence goes on from it.  Masks are filled between the launch of a step
 * and the wait for it, on this thread: a device computes meanwhile.  The CPU
 * does not, it computes in the wait; there a row costs the microsecond or two
 * that its mask takes where the grammar's states were met before, one part in
 * a thousand of a small model's step.  The rows of drafts have masks as if the
 * drafts had been drawn, after which the matcher takes them back; a draft
 * that the grammar does not allow is never verified.
 *
 * An end token is allowed exactly where the text may end, and nothing can
 * follow it.  So min_tokens and ignore_eos hold it back only as long as the
 * text can go on otherwise.
 */

#include <stdlib.h>
#include <string.h>

#include <openssl/sha.h>

#include "sched_impl.h"

struct gram_s {
    gram_t    *next;
    di_gram_t *gram;
    uint32_t   n_reqs;           /* that hold it                            */
    uint64_t   used;             /* turn of its last request                */
    uint8_t    digest[SHA256_DIGEST_LENGTH];
};


int
di_grammar_open(di_sched_t *s, di_err_t *err)
{
    di_grammars_t *g = &s->grammars;
    size_t         half = s->conf.grammar_bytes / 2;
    int            rc;

    if (s->conf.vocab == NULL)
        return DI_OK;
    g->bytes_max = half;
    rc = di_gram_index_open(s->conf.vocab, half, &g->index);
    if (rc != DI_OK)
        return di_err_set(err, rc, 0, "no memory for grammars");
    g->words = di_gram_mask_words(g->index);
    g->masks = calloc((size_t) s->jobs_max * g->words, sizeof(*g->masks));
    return g->masks == NULL ? DI_ENOMEM : DI_OK;
}


void
di_grammar_close(di_sched_t *s)
{
    di_grammars_t *g = &s->grammars;
    gram_t        *e, *next;

    for (e = g->list; e != NULL; e = next) {
        next = e->next;
        di_gram_unref(e->gram);
        free(e);
    }
    di_gram_index_close(g->index);
    free(g->masks);
}


/* ----------------------------------------------------------------- requests */

static size_t
opened_bytes(const di_grammars_t *g)
{
    const gram_t *e;
    size_t        bytes = 0;

    for (e = g->list; e != NULL; e = e->next)
        bytes += sizeof(*e) + di_gram_memory(e->gram);
    return bytes;
}


size_t
di_grammar_bytes(const di_sched_t *s)
{
    const di_grammars_t  *g = &s->grammars;
    di_gram_index_stats_t st;

    if (g->index == NULL)
        return 0;
    di_gram_index_stats(g->index, &st);
    return st.index_bytes + st.cache_bytes + opened_bytes(g)
           + (size_t) s->jobs_max * g->words * sizeof(*g->masks);
}


/* Forget the grammar that was idle longest; false: none is. */
static bool
forget_one(di_grammars_t *g)
{
    gram_t **link, **oldest = NULL, *e;

    for (link = &g->list; *link != NULL; link = &(*link)->next) {
        if ((*link)->n_reqs == 0
            && (oldest == NULL || (*link)->used < (*oldest)->used))
            oldest = link;
    }
    if (oldest == NULL)
        return false;
    e = *oldest;
    *oldest = e->next;
    di_gram_unref(e->gram);
    free(e);
    return true;
}


static gram_t *
find(const di_grammars_t *g, const uint8_t *digest)
{
    gram_t *e = g->list;

    while (e != NULL && memcmp(e->digest, digest, sizeof(e->digest)) != 0)
        e = e->next;
    return e;
}


/* The opened grammar of a request, in *out.  DI_EFORMAT: it is none;
 * DI_ELIMIT: those in use leave no room; DI_ENOMEM. */
static int
open_gram(di_grammars_t *g, const di_gen_request_t *r, gram_t **out)
{
    uint8_t digest[SHA256_DIGEST_LENGTH];
    gram_t *e;
    int     rc;

    if (SHA256(r->grammar, r->n_grammar, digest) == NULL)
        return DI_ENOMEM;
    *out = find(g, digest);
    if (*out != NULL)
        return DI_OK;

    e = calloc(1, sizeof(*e));
    if (e == NULL)
        return DI_ENOMEM;
    memcpy(e->digest, digest, sizeof(digest));
    rc = di_gram_open(r->grammar, r->n_grammar, &e->gram, NULL);
    if (rc != DI_OK) {
        free(e);
        return rc;
    }
    e->next = g->list;
    g->list = e;
    e->n_reqs = 1;               /* not to be forgotten here                */
    while (opened_bytes(g) > g->bytes_max) {
        if (forget_one(g))
            continue;
        g->list = e->next;
        di_gram_unref(e->gram);
        free(e);
        return DI_ELIMIT;
    }
    e->n_reqs = 0;
    *out = e;
    return DI_OK;
}


static uint32_t
undo_max(const di_sched_t *s)
{
    return s->model.n_drafts > DI_SCHED_JUMP_MAX ? s->model.n_drafts
                                                 : DI_SCHED_JUMP_MAX;
}


int
di_grammar_attach(di_sched_t *s, req_t *req, const di_gen_request_t *r)
{
    uint32_t i;
    bool     steers = false;
    int      rc;

    if (r->n_grammar == 0)
        return DI_OK;
    if (s->grammars.index == NULL)
        return DI_EUNSUPPORTED;
    rc = open_gram(&s->grammars, r, &req->grammar);
    if (rc != DI_OK)
        return rc;
    req->grammar->n_reqs++;
    req->grammar->used = ++s->grammars.n_uses;
    for (i = 0; i < req->params.n && rc == DI_OK; i++) {
        rc = di_gram_match_open(req->grammar->gram, undo_max(s),
                                &req->seqs[i].match);
        if (i == 0 && rc == DI_OK)
            steers = (req->params.flags & DI_GEN_GRAMMAR_FINISH) != 0
                     && s->conf.n_end_ids > 0
                     && di_forced_fits(s, &req->seqs[0], req->n_prompt);
        req->seqs[i].steers = steers;
    }
    if (rc != DI_OK)
        di_grammar_detach(req);
    return rc;
}


void
di_grammar_detach(req_t *req)
{
    uint32_t i;

    if (req->grammar == NULL)
        return;
    for (i = 0; i < req->params.n; i++) {
        di_gram_match_close(req->seqs[i].match);
        req->seqs[i].match = NULL;
        free(req->seqs[i].close);
    }
    req->grammar->n_reqs--;
    req->grammar = NULL;
}


/* -------------------------------------------------------------------- masks */

/* Take ids out of a mask. */
static void
take_out(uint64_t *mask, size_t words, const int32_t *ids, size_t n_ids)
{
    size_t i;

    for (i = 0; i < n_ids; i++) {
        if ((size_t) ids[i] / 64 < words)
            mask[ids[i] / 64] &= ~(UINT64_C(1) << ids[i] % 64);
    }
}


static bool
any_allowed(const uint64_t *mask, size_t words)
{
    uint64_t any = 0;
    size_t   i;

    for (i = 0; i < words; i++)
        any |= mask[i];
    return any != 0;
}


/* Hold end and stop ids back where the request wants the text to go on, if
 * it can. */
static int
hold_ends(di_sched_t *s, const job_t *job, uint64_t *mask)
{
    const req_t   *req = job->seq->req;
    di_grammars_t *g = &s->grammars;
    uint32_t       drawn = job->seq->n_tokens + job->ahead - req->n_prompt;
    bool           early = drawn < req->params.min_tokens;

    if (!early && (req->params.flags & DI_GEN_IGNORE_EOS) == 0)
        return DI_OK;
    take_out(mask, g->words, s->end_ids, s->conf.n_end_ids);
    if (early)
        take_out(mask, g->words, req->stop_ids, req->n_stop_ids);
    if (any_allowed(mask, g->words))
        return DI_OK;
    return di_gram_fill_mask(g->index, job->seq->match, mask);
}


/* A text that is being completed goes one way. */
static void
allow_close(const di_sched_t *s, const seq_t *seq, uint64_t *mask)
{
    bool           ends = seq->n_closed == seq->n_close;
    const int32_t *ids = ends ? s->end_ids : seq->close + seq->n_closed;
    size_t         i, n = ends ? s->conf.n_end_ids : 1;

    memset(mask, 0, s->grammars.words * sizeof(*mask));
    for (i = 0; i < n; i++) {
        if ((size_t) ids[i] / 64 < s->grammars.words)
            mask[ids[i] / 64] |= UINT64_C(1) << ids[i] % 64;
    }
}


/* The matcher stands where the job's row does. */
int
di_grammar_mask(di_sched_t *s, job_t *job)
{
    di_grammars_t *g = &s->grammars;
    uint64_t      *mask = g->masks + (size_t) (job - s->jobs) * g->words;
    int            rc;

    job->mask = mask;
    if (job->seq->close != NULL) {
        allow_close(s, job->seq, mask);
        return DI_OK;
    }
    rc = di_gram_fill_mask(g->index, job->seq->match, mask);
    return rc == DI_OK ? hold_ends(s, job, mask) : rc;
}


void
di_grammar_masks(di_sched_t *s)
{
    di_grammars_t *g = &s->grammars;
    uint32_t       i;
    job_t         *job;
    seq_t         *seq;

    for (i = 0; i < s->n_jobs; i++) {
        job = &s->jobs[i];
        seq = job->seq;
        if (job->position != 0 || seq->match == NULL)
            continue;
        if (job->ahead > 0)
            job->rc = di_gram_accept_id(g->index, seq->match,
                                        seq->tokens[seq->n_tokens
                                                    + job->ahead - 1]);
        if (job->rc == DI_OK)
            job->rc = di_grammar_mask(s, job);
        if (job->ahead > 0 && (i + 1 == s->n_jobs || s->jobs[i + 1].ahead == 0))
            (void) di_gram_rollback(seq->match, job->ahead);
    }
}


/* ------------------------------------------------------------------- tokens */

uint32_t
di_grammar_drafts(di_sched_t *s, const seq_t *seq, uint32_t n)
{
    uint32_t i;

    if (seq->match == NULL)
        return n;
    if (seq->close != NULL)
        return 0;
    for (i = 0; i < n; i++) {
        if (di_gram_accept_id(s->grammars.index, seq->match,
                              seq->tokens[seq->n_tokens + i]) != DI_OK)
            break;
    }
    (void) di_gram_rollback(seq->match, i);
    return i;
}


int
di_grammar_accept(di_sched_t *s, seq_t *seq, int32_t token)
{
    if (seq->match == NULL)
        return DI_OK;
    if (seq->n_closed < seq->n_close)
        seq->n_closed++;
    return di_gram_accept_id(s->grammars.index, seq->match, token);
}
