/*
 * grammar_walk.h - random walks through grammars, that hold every mask
 * against the matcher, token by token.
 */

#ifndef GRAMMAR_WALK_H
#define GRAMMAR_WALK_H

#include "check.h"
#include "grammar_make.h"
#include "tokenizer/vocab/di_vocab.h"

#define STEPS_MAX  60

static inline bool
allowed(const uint64_t *mask, int32_t id)
{
    return (mask[id / 64] >> id % 64 & 1) != 0;
}

/* A copy of the matcher takes these bytes. */
static inline bool
takes_bytes(const di_gram_match_t *m, const void *bytes, size_t len)
{
    di_gram_match_t *copy;
    bool             ok;

    CHECK_EQ_INT(di_gram_fork(m, &copy), DI_OK);
    ok = di_gram_accept(copy, bytes, len) == DI_OK;
    di_gram_match_close(copy);
    return ok;
}

static inline bool
takes(const di_vocab_t *v, const di_gram_match_t *m, int32_t id)
{
    const uint8_t itself[4] = {
        0xff, (uint8_t) (id >> 16), (uint8_t) (id >> 8), (uint8_t) id,
    };
    size_t        len;
    const char   *s = di_vocab_bytes(v, id, &len);

    if (di_vocab_is_end(v, id))
        return di_gram_is_complete(m);
    if (di_vocab_is_added(v, id))
        return takes_bytes(m, itself, 4);
    return s != NULL && len > 0 && memchr(s, 0xff, len) == NULL
           && takes_bytes(m, s, len);
}

/* Compare, and draw an allowed token; -1: a fault, or none. */
static inline int32_t
check_mask(const di_vocab_t *v, const di_gram_match_t *m,
           const uint64_t *mask)
{
    int32_t  chosen = -1;
    uint32_t n = 0, wrong = 0;

    for (int32_t id = 0; id < (int32_t) di_vocab_size(v); id++) {
        size_t      len;
        const char *s = di_vocab_bytes(v, id, &len);
        bool        ok = allowed(mask, id);

        if (ok != takes(v, m, id) && wrong++ == 0)
            printf("token %d (%.*s) is %s\n", (int) id, (int) len, s,
                   ok ? "allowed" : "not allowed");
        if (ok && (uint32_t) rand() % ++n == 0)
            chosen = id;
    }
    CHECK_EQ_INT(wrong, 0);
    CHECK(n > 0);
    return wrong == 0 ? chosen : -1;
}

static inline void
walk(const di_vocab_t *v, di_gram_index_t *x, di_gram_t *g, uint64_t *mask)
{
    di_gram_match_t *m, *again;
    int32_t          ids[STEPS_MAX], id;
    size_t           n = 0;

    CHECK_EQ_INT(di_gram_match_open(g, 2, &m), DI_OK);
    for (int step = 0; step < STEPS_MAX; step++) {
        CHECK_EQ_INT(di_gram_fill_mask(x, m, mask), DI_OK);
        id = check_mask(v, m, mask);
        if (id < 0)
            break;
        CHECK_EQ_INT(di_gram_accept_id(x, m, id), DI_OK);
        if (di_vocab_is_end(v, id)) {
            CHECK_EQ_INT(di_gram_match_open(g, 0, &again), DI_OK);
            for (size_t i = 0; i < n; i++)
                CHECK_EQ_INT(di_gram_accept_id(x, again, ids[i]), DI_OK);
            CHECK(di_gram_is_complete(again));
            di_gram_match_close(again);
            break;
        }
        if (rand() % 8 == 0)
            CHECK_EQ_INT(di_gram_rollback(m, 1), DI_OK);
        else
            ids[n++] = id;
    }
    di_gram_match_close(m);
}

static inline void
walk_text(const di_vocab_t *v, di_gram_index_t *x, uint64_t *mask,
          di_gram_kind_t kind, const char *s)
{
    const di_gram_opts_t opts = { .flexible = false };
    di_gram_err_t        err = { 0 };
    di_gram_t           *g = grammar_make(kind, s, strlen(s), &opts, &err);

    if (g == NULL)
        printf("%s\n  %s: %s: %s\n", s, err.keyword, err.path, err.text);
    CHECK(g != NULL);
    for (int i = 0; g != NULL && i < 10; i++)
        walk(v, x, g, mask);
    di_gram_unref(g);
}

#endif
