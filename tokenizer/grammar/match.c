/*
 * match.c - where a text stands in a grammar.
 *
 * A set of ways, each a state and a stack.  A byte moves every way over its
 * one edge for that byte; then each does all it can without reading: a final
 * state returns to the state on its stack, a state with calls enters their
 * rules.  A call whose return state could only return again pushes nothing,
 * so a list written by right recursion doesn't grow the stack.
 *
 * Stacks are linked frames with counts, shared between ways and between the
 * past sets kept for di_gram_rollback(); a frame freed is used again.  Equal
 * stacks are the same frame, so that ways which came to stand alike are one:
 * a text that a grammar can cut anywhere doesn't have a way for each cut.
 */

#include <stdlib.h>
#include <string.h>

#include "match.h"

/* -------------------------------------------------------------- stacks -- */

static void
frame_ref(di_gram_match_t *m, uint32_t f)
{
    m->frames[f].refs++;        /* frame 0's count means nothing             */
}

static uint32_t *
frame_bucket(di_gram_match_t *m, uint32_t parent, uint32_t ret)
{
    return &m->buckets[(parent * 31 + ret) % DI_GRAM_FRAME_BUCKETS];
}

static void
frame_unref(di_gram_match_t *m, uint32_t f)
{
    uint32_t parent, *at;

    while (f != 0 && --m->frames[f].refs == 0) {
        parent = m->frames[f].parent;
        at = frame_bucket(m, parent, m->frames[f].ret);
        while (*at != f)
            at = &m->frames[*at].next;
        *at = m->frames[f].next;
        m->frames[f].refs = m->free_frame;
        m->free_frame = f;
        f = parent;
    }
}

static uint32_t
frame_find(di_gram_match_t *m, uint32_t parent, uint32_t ret)
{
    uint32_t f = *frame_bucket(m, parent, ret);

    while (f != 0
           && (m->frames[f].parent != parent || m->frames[f].ret != ret))
        f = m->frames[f].next;
    return f;
}

/* A new frame on top of `parent`, with no reference yet; 0: none. */
static uint32_t
frame_push(di_gram_match_t *m, uint32_t parent, uint32_t ret)
{
    uint32_t depth = parent == 0 ? 0 : m->frames[parent].depth + 1;
    uint32_t f = m->free_frame, *at = frame_bucket(m, parent, ret);

    if (depth >= DI_GRAM_DEPTH_MAX)
        return 0;
    if (f != 0) {
        m->free_frame = m->frames[f].refs;
    } else {
        if (m->n_frames == m->frames_cap) {
            uint32_t cap = m->frames_cap * 2;
            void    *p = realloc(m->frames, cap * sizeof(*m->frames));

            if (p == NULL) {
                m->no_memory = true;
                return 0;
            }
            m->frames = p;
            m->frames_cap = cap;
        }
        f = m->n_frames++;
    }
    m->frames[f] = (di_gram_frame_t) { parent, ret, depth, 0, *at };
    *at = f;
    frame_ref(m, parent);
    return f;
}

/* ---------------------------------------------------------------- ways -- */

void
di_gram_ways_clear(di_gram_match_t *m, di_gram_ways_t *w)
{
    for (uint32_t i = 0; i < w->n; i++)
        frame_unref(m, w->v[i].stack);
    w->n = 0;
    w->complete = false;
}

/* Append a way unless it is there; true if it is in the set. */
static bool
append(di_gram_match_t *m, di_gram_ways_t *w, uint32_t state, uint32_t stack)
{
    for (uint32_t i = 0; i < w->n; i++) {
        if (w->v[i].state == state && w->v[i].stack == stack)
            return true;
    }
    if (w->n == DI_GRAM_WAYS_MAX) {
        m->over_limit = true;
        return false;
    }
    if (w->n == w->cap) {
        uint32_t cap = w->cap == 0 ? 4 : w->cap * 2;
        void    *p = realloc(w->v, cap * sizeof(*w->v));

        if (p == NULL) {
            m->no_memory = true;
            return false;
        }
        w->v = p;
        w->cap = cap;
    }
    w->v[w->n++] = (di_gram_way_t) { state, stack };
    frame_ref(m, stack);
    return true;
}

static void
enter(di_gram_match_t *m, di_gram_ways_t *w, const di_gram_bcall_t *call,
      uint32_t stack)
{
    const di_gram_t        *g = m->gram;
    const di_gram_bstate_t *ret = &g->states[call->to];
    uint32_t                start = g->rules[call->rule].first, f;

    if (ret->final && ret[0].edges == ret[1].edges
        && ret[0].calls == ret[1].calls) {
        (void) append(m, w, start, stack);
        return;
    }

    f = frame_find(m, stack, call->to);
    if (f != 0) {
        (void) append(m, w, start, f);
        return;
    }
    f = frame_push(m, stack, call->to);
    if (f != 0 && !append(m, w, start, f)) {
        m->frames[f].refs = 1;
        frame_unref(m, f);
    }
}

void
di_gram_ways_add(di_gram_match_t *m, di_gram_ways_t *w, uint32_t state,
                 uint32_t stack)
{
    const di_gram_t *g = m->gram;
    uint32_t         i = w->n;

    (void) append(m, w, state, stack);
    for (; i < w->n; i++) {
        const di_gram_way_t     way = w->v[i];
        const di_gram_bstate_t *s = &g->states[way.state];

        if (s->final && way.stack == 0)
            w->complete = true;
        else if (s->final)
            (void) append(m, w, m->frames[way.stack].ret,
                          m->frames[way.stack].parent);
        for (uint32_t k = s[0].calls; k < s[1].calls; k++)
            enter(m, w, &g->calls[k], way.stack);
    }
}

void
di_gram_ways_settle(di_gram_match_t *m, di_gram_ways_t *w)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < w->n; i++) {
        const di_gram_bstate_t *s = &m->gram->states[w->v[i].state];

        if (s[0].edges != s[1].edges)
            w->v[n++] = w->v[i];
        else
            frame_unref(m, w->v[i].stack);
    }
    w->n = n;
}

bool
di_gram_ways_step(di_gram_match_t *m, const di_gram_ways_t *from,
                  uint8_t byte, di_gram_ways_t *to)
{
    uint32_t next;

    di_gram_ways_clear(m, to);
    for (uint32_t i = 0; i < from->n; i++) {
        next = di_gram_step(m->gram, from->v[i].state, byte);
        if (next != DI_GRAM_DEAD)
            di_gram_ways_add(m, to, next, from->v[i].stack);
    }
    di_gram_ways_settle(m, to);
    return to->n > 0 || to->complete;
}

static bool
copy_ways(di_gram_match_t *m, di_gram_ways_t *to, const di_gram_ways_t *from)
{
    di_gram_ways_clear(m, to);
    for (uint32_t i = 0; i < from->n; i++)
        (void) append(m, to, from->v[i].state, from->v[i].stack);
    to->complete = from->complete;
    return to->n == from->n;
}

/* ------------------------------------------------------------- matcher -- */

static di_gram_match_t *
new_match(di_gram_t *gram, unsigned undo_max, uint32_t frames)
{
    di_gram_match_t *m = calloc(1, sizeof(*m));

    if (m == NULL)
        return NULL;
    m->gram = gram;
    di_gram_ref(gram);
    m->undo_max = undo_max;
    m->past = calloc((size_t) undo_max + 1, sizeof(*m->past));
    m->frames = calloc(frames, sizeof(*m->frames));
    m->frames_cap = frames;
    m->n_frames = 1;
    if (m->past == NULL || m->frames == NULL) {
        di_gram_match_close(m);
        return NULL;
    }
    return m;
}

int
di_gram_match_open(di_gram_t *gram, unsigned undo_max, di_gram_match_t **out)
{
    di_gram_match_t *m = new_match(gram, undo_max, 16);

    if (m == NULL)
        return DI_ENOMEM;
    di_gram_ways_add(m, di_gram_present(m),
                     gram->rules[gram->head.root].first, 0);
    di_gram_ways_settle(m, di_gram_present(m));
    if (m->no_memory) {
        di_gram_match_close(m);
        return DI_ENOMEM;
    }
    m->over_limit = false;
    *out = m;
    return DI_OK;
}

void
di_gram_match_close(di_gram_match_t *m)
{
    if (m == NULL)
        return;
    for (unsigned i = 0; m->past != NULL && i <= m->undo_max; i++)
        free(m->past[i].v);
    for (unsigned i = 0; i < 2; i++)
        free(m->work[i].v);
    free(m->past);
    free(m->frames);
    di_gram_unref(m->gram);
    free(m);
}

/* Frames keep their numbers in the copy; those of the past are freed with
 * it, as they are in nobody's set there. */
int
di_gram_fork(const di_gram_match_t *m, di_gram_match_t **copy)
{
    di_gram_match_t      *f = new_match(m->gram, m->undo_max, m->frames_cap);
    const di_gram_ways_t *w = &m->past[m->now];
    uint32_t             *map, at, to, *link;

    if (f == NULL)
        return DI_ENOMEM;
    map = calloc(m->n_frames, sizeof(*map));
    if (map == NULL) {
        di_gram_match_close(f);
        return DI_ENOMEM;
    }
    for (uint32_t i = 0; i < w->n; i++) {
        /* Copy the frames from the top down until one is known. */
        for (at = w->v[i].stack, link = NULL; at != 0;
             at = m->frames[at].parent) {
            to = map[at];
            if (to == 0) {
                to = map[at] = f->n_frames++;
                f->frames[to] = m->frames[at];
                f->frames[to].refs = 0;
            }
            if (link != NULL)
                *link = to;
            if (f->frames[to].refs++ > 0)
                break;
            link = &f->frames[to].parent;
        }
        at = w->v[i].stack;
        if (!append(f, &f->past[0], w->v[i].state, map[at]))
            break;
        if (at != 0)
            f->frames[map[at]].refs--;      /* append() counted it too       */
    }
    free(map);
    for (to = 1; to < f->n_frames; to++) {
        link = frame_bucket(f, f->frames[to].parent, f->frames[to].ret);
        f->frames[to].next = *link;
        *link = to;
    }
    f->past[0].complete = w->complete;
    if (f->past[0].n != w->n) {
        di_gram_match_close(f);
        return DI_ENOMEM;
    }
    *copy = f;
    return DI_OK;
}

/* Bytes from the present on, which `pair` is the room for; *end is where
 * they lead.  A DI_E... code. */
static int
follow(di_gram_match_t *m, const uint8_t *s, size_t len,
       di_gram_ways_t pair[2], di_gram_ways_t **end)
{
    const di_gram_ways_t *from = di_gram_present(m);
    unsigned              k = 0;

    m->no_memory = m->over_limit = false;
    if (len == 0 && !copy_ways(m, pair, from))
        return DI_ENOMEM;
    *end = pair;
    for (size_t i = 0; i < len; i++, k = !k) {
        bool ok = di_gram_ways_step(m, from, s[i], &pair[k]);

        if (m->no_memory || m->over_limit)
            return m->no_memory ? DI_ENOMEM : DI_ELIMIT;
        if (!ok)
            return DI_EINVAL;
        from = *end = &pair[k];
    }
    return DI_OK;
}

/* The present becomes *to, which gets what room is to spare. */
static void
move_on(di_gram_match_t *m, di_gram_ways_t *to)
{
    di_gram_ways_t *next = &m->past[(m->now + 1) % (m->undo_max + 1)];
    di_gram_ways_t  old = *next;        /* with undo_max 0 the present       */

    *next = *to;
    *to = old;
    m->now = (m->now + 1) % (m->undo_max + 1);
    if (m->n_undo < m->undo_max)
        m->n_undo++;
}

static void
clear_work(di_gram_match_t *m)
{
    for (unsigned i = 0; i < 2; i++)
        di_gram_ways_clear(m, &m->work[i]);
}

int
di_gram_accept(di_gram_match_t *m, const void *bytes, size_t len)
{
    di_gram_ways_t *to;
    int             rc = follow(m, bytes, len, m->work, &to);

    if (rc == DI_OK)
        move_on(m, to);
    clear_work(m);
    return rc;
}

int
di_gram_rollback(di_gram_match_t *m, unsigned n)
{
    if (n > m->n_undo)
        return DI_EINVAL;
    for (unsigned i = 0; i < n; i++) {
        di_gram_ways_clear(m, di_gram_present(m));
        m->now = (m->now + m->undo_max) % (m->undo_max + 1);
    }
    m->n_undo -= n;
    return DI_OK;
}

bool
di_gram_is_complete(const di_gram_match_t *m)
{
    return m->past[m->now].complete;
}

bool
di_gram_is_forced_end(const di_gram_match_t *m)
{
    return m->past[m->now].complete && m->past[m->now].n == 0;
}

/* The one byte that may come; -1: none or several. */
static int
only_byte(const di_gram_t *g, const di_gram_ways_t *w)
{
    int byte = -1;

    if (w->complete)
        return -1;
    for (uint32_t i = 0; i < w->n; i++) {
        const di_gram_bstate_t *s = &g->states[w->v[i].state];

        for (uint32_t k = s[0].edges; k < s[1].edges; k++) {
            if (g->edges[k].lo != g->edges[k].hi
                || (byte >= 0 && byte != g->edges[k].lo))
                return -1;
            byte = g->edges[k].lo;
        }
    }
    return byte;
}

/* Bytes less a special token at the end that isn't whole. */
static size_t
whole_tokens(const uint8_t *bytes, size_t n)
{
    size_t at = 0;

    while (at < n)
        at += bytes[at] == DI_GRAM_SPECIAL_BYTE ? 4 : 1;
    return at == n ? n : at - 4;
}

size_t
di_gram_forced(di_gram_match_t *m, uint8_t *bytes, size_t cap)
{
    const di_gram_ways_t *w = di_gram_present(m);
    unsigned              k = 0;
    size_t                n = 0;
    int                   byte;

    m->no_memory = m->over_limit = false;
    while (n < cap && (byte = only_byte(m->gram, w)) >= 0) {
        if (!di_gram_ways_step(m, w, (uint8_t) byte, &m->work[k])
            || m->no_memory || m->over_limit)
            break;
        bytes[n++] = (uint8_t) byte;
        w = &m->work[k];
        k = !k;
    }
    clear_work(m);
    return whole_tokens(bytes, n);
}
