/*
 * mask.c - the tokens that may come next.
 *
 * The mask is the union over the ways to read the text so far.  Each way
 * begins with the part (part.c) of the trie's root and its state; where that
 * leaves the rule, the part of the nodes reached and the next state follows:
 * the one on the stack, or the start of a rule that is called.  The real
 * stack is only read; what a token pushes meanwhile lies on C's stack.
 */

#include <string.h>

#include "index.h"

/* A token's bytes each enter or leave a rule or two; only a hostile blob,
 * whose rules follow one another without reading, needs more.  Masks of
 * schemas have 200 parts and 10,000 steps of work at most, those of classes
 * of letters 150,000 steps. */
#define FOLLOW_MAX  600u
#define PARTS_MAX   10000u
#define WORK_MAX    UINT64_C(2000000)

/* States to return to: those that the token pushed, then the real ones. */
typedef struct stack_s {
    const struct stack_s *below;        /* NULL: the frame                   */
    uint32_t              ret;
    uint32_t              frame;        /* real stack under these            */
    uint32_t              depth;        /* states to return to               */
} stack_t;

typedef struct {
    di_gram_index_t *x;
    di_gram_match_t *m;
    uint64_t        *mask;
    unsigned         depth;     /* of follow()                               */
    unsigned         n_parts;
    bool             cut;       /* a limit was met                           */
} fill_t;

static void follow(fill_t *f, uint32_t nodes, uint32_t state,
                   const stack_t *stack);

static void
add_part(fill_t *f, const di_gram_part_t *part)
{
    for (uint32_t i = 0; i < part->n_tokens; i++)
        f->mask[part->tokens[i] / 64] |= UINT64_C(1) << part->tokens[i] % 64;
    if (part->dense != NULL) {
        for (uint32_t i = 0; i < f->x->words; i++)
            f->mask[i] |= part->dense[i];
    }
}

/* The rule ends: go on in the state on the stack, if there is one. */
static void
go_back(fill_t *f, uint32_t nodes, const stack_t *stack)
{
    stack_t below = *stack;

    if (stack->below != NULL) {
        follow(f, nodes, stack->ret, stack->below);
    } else if (stack->frame != 0) {
        const di_gram_frame_t *frame = &f->m->frames[stack->frame];

        below.frame = frame->parent;
        below.depth--;
        follow(f, nodes, frame->ret, &below);
    }
}

static void
go_into(fill_t *f, uint32_t nodes, const di_gram_bcall_t *call,
        const stack_t *stack)
{
    const di_gram_t        *g = f->m->gram;
    const di_gram_bstate_t *ret = &g->states[call->to];
    const stack_t           pushed = {
        .below = stack, .ret = call->to, .frame = stack->frame,
        .depth = stack->depth + 1,
    };

    /* As the matcher does: nothing to come back for, nothing pushed. */
    if (ret->final && ret[0].edges == ret[1].edges
        && ret[0].calls == ret[1].calls)
        follow(f, nodes, g->rules[call->rule].first, stack);
    else if (stack->depth < DI_GRAM_DEPTH_MAX)
        follow(f, nodes, g->rules[call->rule].first, &pushed);
}

static void
follow(fill_t *f, uint32_t nodes, uint32_t state, const stack_t *stack)
{
    const di_gram_t      *g = f->m->gram;
    const di_gram_part_t *part;
    const di_gram_exit_t *exits;
    uint32_t              n, first = g->rules[g->states[state].rule].first;

    if (f->depth == FOLLOW_MAX || f->n_parts == PARTS_MAX
        || f->x->work > WORK_MAX)
        f->cut = true;
    if (f->cut || f->x->no_memory)
        return;
    f->n_parts++;
    part = di_gram_part(f->x, f->m->gram, nodes, state);
    if (part == NULL) {
        f->x->no_memory = true;
        return;
    }
    add_part(f, part);
    exits = part->exits;        /* the part itself may move                  */
    n = part->n_exits;
    f->depth++;
    for (uint32_t i = 0; i < n; i++) {
        const di_gram_bstate_t *s = &g->states[first + exits[i].state];

        if (s->final)
            go_back(f, exits[i].nodes, stack);
        for (uint32_t k = s[0].calls; k < s[1].calls; k++)
            go_into(f, exits[i].nodes, &g->calls[k], stack);
    }
    f->depth--;
}

int
di_gram_accept_id(const di_gram_index_t *x, di_gram_match_t *m, int32_t id)
{
    unsigned       role = id >= 0 && (uint32_t) id < x->size ? x->roles[id]
                                                             : 0;
    const uint8_t *s;
    uint8_t        itself[4];
    size_t         len;

    if (role == DI_GRAM_AS_END)
        return di_gram_is_complete(m) ? di_gram_accept(m, NULL, 0)
                                      : DI_EINVAL;
    if (role == 0)
        return DI_EINVAL;
    s = x->bytes + x->starts[id];
    len = x->starts[id + 1] - x->starts[id];
    di_gram_special_bytes((uint32_t) id, itself);
    return role == DI_GRAM_AS_TEXT ? di_gram_accept(m, s, len)
                                   : di_gram_accept(m, itself, 4);
}

int
di_gram_fill_mask(di_gram_index_t *x, di_gram_match_t *m, uint64_t *mask)
{
    const di_gram_ways_t *w = di_gram_present(m);
    fill_t                f = { .x = x, .m = m, .mask = mask };

    if (x->cache_bytes > x->cache_max || x->no_memory) {
        di_gram_index_forget(x);
        x->stats.forgotten++;
    }
    memset(mask, 0, x->words * sizeof(*mask));
    x->work = 0;
    for (uint32_t i = 0; i < w->n; i++) {
        const stack_t stack = {
            .frame = w->v[i].stack,
            .depth = w->v[i].stack == 0 ? 0
                     : m->frames[w->v[i].stack].depth + 1,
        };

        follow(&f, 0, w->v[i].state, &stack);
    }
    for (size_t i = 0; w->complete && i < x->n_ends; i++)
        mask[x->ends[i] / 64] |= UINT64_C(1) << x->ends[i] % 64;
    return x->no_memory ? DI_ENOMEM : f.cut ? DI_ELIMIT : DI_OK;
}
