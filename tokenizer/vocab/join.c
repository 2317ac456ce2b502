/*
 * join.c - short texts that are encoded by applying the merge rules.
 *
 * For each join all pairs are looked through for the first rule, which is the
 * fastest way for so few.  Then the two pairs beside the new token are looked
 * up, perhaps somewhere in megabytes.  Texts take turns, so that what one of
 * them asked for arrives while the others do their steps.
 */

#include "join.h"

#define JOIN_ABREAST  16
#define JOIN_NO_ID    ((int32_t) DI_MERGES_IDS_MAX - 1)

static void
join_open(di_join_t *t, size_t n)
{
    t->width = n <= 8 ? 8 : n <= 16 ? 16 : DI_JOIN_MAX;
    t->starts = (2ull << (n + 1)) - 1;
    t->ids[0] = JOIN_NO_ID;
    t->ids[n + 1] = JOIN_NO_ID;
    t->left_far = t->right_far = false;
    for (size_t i = n; i <= t->width; i++)
        t->orders[i] = DI_MERGES_NONE;
}

void
di_join_bytes(const di_merges_t *m, const int32_t first[256],
              const uint8_t *s, size_t len, di_join_t *t)
{
    join_open(t, len);
    for (size_t i = 0; i < len; i++)
        t->ids[i + 1] = first[s[i]];
    for (size_t i = 0; i + 1 < len; i++)
        t->orders[i + 1] = m->bytes[s[i] << 8 | s[i + 1]];
}

void
di_join_ids(const di_merges_t *m, const int32_t *ids, size_t n, di_join_t *t)
{
    bool far[DI_JOIN_MAX];

    join_open(t, n);
    for (size_t i = 0; i < n; i++)
        t->ids[i + 1] = ids[i];
    for (size_t i = 0; i + 1 < n; i++)
        t->orders[i + 1] = di_merges_order_near(m, ids[i], ids[i + 1],
                                                &far[i]);
    for (size_t i = 0; i + 1 < n; i++) {
        if (far[i])
            t->orders[i + 1] = di_merges_order_far(m, ids[i], ids[i + 1]);
    }
}

static inline uint32_t
join_first_of(const di_join_t *t, uint32_t width)
{
    uint32_t best = t->orders[1];
    uint32_t at = 1;

    for (uint32_t i = 2; i <= width; i++) {
        at = t->orders[i] < best ? i : at;
        best = t->orders[i] < best ? t->orders[i] : best;
    }
    return at;
}

/* The place of the first rule; of equals, the leftmost. */
static inline uint32_t
join_first(const di_join_t *t)
{
    switch (t->width) {
    case 8:
        return join_first_of(t, 8);
    case 16:
        return join_first_of(t, 16);
    default:
        return join_first_of(t, DI_JOIN_MAX);
    }
}

/* Finish looking up the pairs that the last join made, and do the next one.
 * false: there is none. */
static inline bool
join_step(const di_merges_t *m, di_join_t *t)
{
    uint32_t at, next;

    if (t->left_far)
        t->orders[t->left] = di_merges_order_far(m, t->ids[t->left],
                                                 t->ids[t->at]);
    if (t->right_far)
        t->orders[t->at] = di_merges_order_far(m, t->ids[t->at],
                                               t->ids[t->right]);

    at = join_first(t);
    if (t->orders[at] == DI_MERGES_NONE)
        return false;
    next = at + 1 + (uint32_t) __builtin_ctzll(t->starts >> at >> 1);
    t->starts &= ~(1ull << next);
    t->orders[next] = DI_MERGES_NONE;
    t->ids[at] = di_merges_makes(m, t->orders[at]);

    t->at = at;
    t->left = 63 - (uint32_t) __builtin_clzll(t->starts
                                              & ((1ull << at) - 1));
    t->right = at + 1 + (uint32_t) __builtin_ctzll(t->starts >> at >> 1);
    t->orders[t->left] = di_merges_order_near(m, t->ids[t->left], t->ids[at],
                                              &t->left_far);
    t->orders[at] = di_merges_order_near(m, t->ids[at], t->ids[t->right],
                                         &t->right_far);
    return true;
}

void
di_join_run(const di_merges_t *m, di_join_t *texts, size_t n)
{
    di_join_t *abreast[JOIN_ABREAST];
    size_t     width = n < JOIN_ABREAST ? n : JOIN_ABREAST, next = width;

    for (size_t i = 0; i < width; i++)
        abreast[i] = &texts[i];
    while (width > 0) {
        for (size_t i = 0; i < width; i++) {
            if (join_step(m, abreast[i]))
                continue;
            abreast[i] = next < n ? &texts[next++] : abreast[--width];
        }
    }
}

size_t
di_join_result(const di_join_t *t, int32_t ids[DI_JOIN_MAX])
{
    uint64_t left = t->starts & (t->starts - 1);    /* without place 0       */
    size_t   n = 0;

    for (; (left & (left - 1)) != 0; left &= left - 1)
        ids[n++] = t->ids[__builtin_ctzll(left)];
    return n;
}
