/*
 * sched_check.c - the scheduler's invariants, walked whole by tests.
 *
 * The references that sequences hold are counted from their block tables and
 * must be those that the pool counts.
 */

#include <stdlib.h>
#include <string.h>

#include "sched_impl.h"


static void
must(bool truth)
{
    if (!truth)
        abort();
}


static void
check_list(const seq_list_t *list, seq_state_t state)
{
    const seq_t *seq, *prev = NULL;
    uint32_t     n = 0;

    for (seq = list->head; seq != NULL; seq = seq->next) {
        must(seq->prev == prev);
        must(seq->list == list);
        must(seq->state == state);
        must(++n <= list->n);
        prev = seq;
    }
    must(list->tail == prev);
    must(list->n == n);
}


static void
check_seq(const di_sched_t *s, const req_t *req, const seq_t *seq,
          uint32_t *refs)
{
    const uint32_t bt = s->model.block_tokens;
    uint32_t       i;

    must(seq->req == req);
    must((seq->match == NULL) == (req->grammar == NULL));
    must((seq->list == NULL) == (seq->state == SEQ_PARKED
                                 || seq->state == SEQ_OVER));
    must(seq->place <= s->conf.max_seqs);
    if (seq->state != SEQ_RUNNING) {
        must(seq->n_blocks == 0 && seq->n_computed == 0
             && seq->n_published == 0 && seq->slot == 0 && seq->place == 0);
        must(seq->state != SEQ_WAITING || seq->n_tokens >= req->n_prompt);
        return;
    }

    must(seq->list == &s->running);
    must(seq->n_tokens >= req->n_prompt && seq->n_tokens < req->total_max);
    must(seq->n_computed < seq->n_tokens);
    must(seq->n_untold < seq->n_tokens - req->n_prompt + (seq->n_untold == 0));
    must(seq->n_blocks * bt >= seq->n_computed);
    must(seq->n_published == (!req->caches ? 0 : seq->floor != 0
                              ? seq->floor / bt : seq->n_computed / bt));
    for (i = 0; i < seq->n_blocks; i++) {
        must(seq->blocks[i] >= 1 && seq->blocks[i] <= s->model.kv_blocks);
        refs[seq->blocks[i]]++;
    }
}


static void
check_req(const di_sched_t *s, const req_t *req, uint32_t *refs)
{
    uint32_t i, n_open = 0, n_parked = 0;

    for (i = 0; i < req->params.n; i++) {
        check_seq(s, req, &req->seqs[i], refs);
        n_open += req->seqs[i].state != SEQ_OVER;
        n_parked += req->seqs[i].state == SEQ_PARKED;
    }
    must(n_open == req->n_open && n_open > 0);
    must(!req->forked || n_parked == 0);
    must(req->forked || n_parked == n_open - 1);
    must(req->lp_next <= req->n_prompt);
}


void
di_sched_check(const di_sched_t *s)
{
    uint32_t    *refs = calloc((size_t) s->model.kv_blocks + 1,
                               sizeof(*refs));
    const req_t *req;
    uint32_t     i, n_reqs = 0, n_queued = 0;

    must(refs != NULL);
    check_list(&s->running, SEQ_RUNNING);
    check_list(&s->resume, SEQ_WAITING);
    must(s->running.n <= s->conf.max_seqs);
    for (i = 0; i < DI_SCHED_OWNERS_MAX; i++) {
        check_list(&s->owners[i].queue, SEQ_WAITING);
        n_queued += s->owners[i].queue.n;
    }
    must(n_queued == s->n_queued);

    for (i = 0; i <= s->bucket_mask; i++) {
        for (req = s->buckets[i]; req != NULL; req = req->hash_next) {
            check_req(s, req, refs);
            n_reqs++;
        }
    }
    must(n_reqs == s->n_reqs);

    for (i = 1; i <= s->model.kv_blocks; i++)
        must(refs[i] == di_kv_refs(s->kv, i));
    must(s->samplers_busy == 0);
    di_kv_check(s->kv);
    di_state_check(s);
    free(refs);
}
