/*
 * sched_state.c - states of sequences: slots, and copies for the prefix cache.
 *
 * A state is a few windows of vectors, of one size at any length.  Block KV
 * alone does not bring a sequence back: the windows at the end of the prefix
 * are needed too.  They are copied where a sequence stands at the end of a
 * block that the cache knows, into spare slots; the copy used longest ago
 * makes room.  The cache forgets a block's mark with the block, so a copy is
 * as good as its block: it is believed only if each names the other.
 *
 * With bounded replay the second half of the model has computed only the last
 * tokens of a prompt, and a copy has its windows in part.  That is enough:
 * whoever goes on from it computes the last replay_keep tokens anew.
 *
 * Then too a prefix can be gone on with whose state is gone.  The tokens of
 * one window are computed again, seeing nothing older through windows, so that
 * what follows has whole ones, and so are the kept ones: a fixed number at any
 * length.  What comes of it is near to what the whole prefix makes and not the
 * same, so those tokens get blocks of their own, which the cache never learns
 * of: a cached block depends on its tokens alone.
 */

#include <assert.h>
#include <stdlib.h>

#include "sched_impl.h"


int
di_state_open(di_sched_t *s)
{
    uint32_t i;

    if (s->model.n_states == 0)
        return DI_OK;
    s->n_slots = s->conf.max_seqs;
    s->n_kept = s->conf.prefix_cache ? s->model.n_states - s->n_slots : 0;
    s->slots = calloc(s->n_slots, sizeof(*s->slots));
    s->states = calloc(s->n_kept + 1u, sizeof(*s->states));
    if (s->slots == NULL || s->states == NULL)
        return DI_ENOMEM;
    for (i = 0; i < s->n_slots; i++)
        s->slots[i] = s->n_slots - i;
    return DI_OK;
}


void
di_state_close(di_sched_t *s)
{
    free(s->slots);
    free(s->states);
}


void
di_state_take(di_sched_t *s, seq_t *seq)
{
    if (s->model.n_states == 0 || seq->slot != 0)
        return;
    assert(s->n_slots > 0);
    seq->slot = s->slots[--s->n_slots];
}


void
di_state_give(di_sched_t *s, seq_t *seq)
{
    if (seq->slot != 0)
        s->slots[s->n_slots++] = seq->slot;
    seq->slot = 0;
}


static uint32_t
slot_of(const di_sched_t *s, const state_t *state)
{
    return s->conf.max_seqs + 1 + (uint32_t) (state - s->states);
}


/* The copy at the end of a block, or NULL. */
static state_t *
state_at(const di_sched_t *s, uint32_t block)
{
    uint32_t mark = di_kv_mark(s->kv, block);
    state_t *state;

    if (mark == 0)
        return NULL;
    state = &s->states[mark - s->conf.max_seqs - 1];
    return state->block == block ? state : NULL;
}


static bool
is_live(const di_sched_t *s, uint32_t i)
{
    return s->states[i].block != 0
           && state_at(s, s->states[i].block) == &s->states[i];
}


/* Of n_blocks, how many are left before the tokens to be replayed. */
static uint32_t
before_replay(const di_sched_t *s, uint32_t n_blocks, uint32_t limit)
{
    const uint32_t bt = s->model.block_tokens;
    const uint32_t n_window = (s->model.window + bt - 2) / bt;

    if (s->conf.replay == DI_REPLAY_OFF || n_blocks < n_window)
        return 0;
    n_blocks -= n_window;
    return n_blocks < limit / bt ? n_blocks : limit / bt;
}


uint32_t
di_state_restore(di_sched_t *s, seq_t *seq, uint32_t n_blocks,
                 uint32_t limit)
{
    uint32_t least = before_replay(s, n_blocks, limit);
    state_t *state = NULL;

    if (s->model.n_states == 0)
        return n_blocks;
    while (n_blocks > least
           && (n_blocks * s->model.block_tokens > limit
               || (state = state_at(s, seq->blocks[n_blocks - 1])) == NULL))
        n_blocks--;
    if (state == NULL && n_blocks > 0)
        state = state_at(s, seq->blocks[n_blocks - 1]);
    if (state != NULL) {
        state->used = ++s->kept_turn;
        s->model.state_copy(s->model.ctx, seq->slot, slot_of(s, state));
    } else {
        seq->floor = n_blocks * s->model.block_tokens;
    }
    return n_blocks;
}


static state_t *
oldest_state(const di_sched_t *s)
{
    state_t *oldest = &s->states[0];
    uint32_t i;

    for (i = 1; i < s->n_kept; i++) {
        if (s->states[i].used < oldest->used)
            oldest = &s->states[i];
    }
    return oldest;
}


void
di_state_keep(di_sched_t *s, seq_t *seq)
{
    uint32_t block;
    state_t *state;

    if (s->n_kept == 0)
        return;
    block = seq->blocks[seq->n_published - 1];
    state = state_at(s, block);
    if (state == NULL) {
        state = oldest_state(s);
        if (is_live(s, (uint32_t) (state - s->states)))
            di_kv_set_mark(s->kv, state->block, 0);
        state->block = block;
        di_kv_set_mark(s->kv, block, slot_of(s, state));
        s->model.state_copy(s->model.ctx, slot_of(s, state), seq->slot);
    }
    state->used = ++s->kept_turn;
}


void
di_state_check(const di_sched_t *s)
{
    uint32_t i, j;
    seq_t   *seq;

    if (s->model.n_states == 0)
        return;
    if (s->n_slots + s->running.n != s->conf.max_seqs)
        abort();
    for (seq = s->running.head; seq != NULL; seq = seq->next) {
        if (seq->slot == 0 || seq->slot > s->conf.max_seqs)
            abort();
        for (i = 0; i < s->n_slots; i++) {
            if (s->slots[i] == seq->slot)
                abort();
        }
    }
    for (i = 0; i < s->n_kept; i++) {
        for (j = 0; j < i; j++) {
            if (is_live(s, i) && is_live(s, j)
                && s->states[i].block == s->states[j].block)
                abort();
        }
    }
}
