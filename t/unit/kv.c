/*
 * kv.c - the block pool and the prefix cache against a slow, obvious model.
 *
 * The model keeps for every block the salt and the whole list of tokens from
 * the prompt's beginning whose state it is supposed to hold, and finds the
 * longest match by comparing all of them.  A hit is right if it is truthful
 * (the block's list is a prefix of the prompt) and complete (no longer one
 * was there).  Tokens come from a tiny alphabet, so that prompts share
 * prefixes, diverge inside blocks and repeat.
 */

#include <stdlib.h>
#include <time.h>

#include "engine/di_kv.h"
#include "check.h"
#include "nomem.h"
#include "rnd.h"

#define BT        DI_KV_BLOCK_TOKENS
#define N_BLOCKS  40
#define LEN_MAX   (BT * 8)
#define SEQS      12

typedef struct {
    int      published;
    int      salt;
    uint32_t n;                         /* tokens up to this block's end    */
    int32_t  tokens[LEN_MAX];
    uint64_t released;                  /* when the last reference went     */
    uint32_t refs;
} slow_block_t;

typedef struct {
    int         used;
    int         salt;
    uint32_t    n;                      /* tokens with state                */
    uint32_t    n_published;            /* whole blocks                     */
    int32_t     tokens[LEN_MAX];
    uint32_t    blocks[LEN_MAX / BT];
    di_kv_key_t keys[LEN_MAX / BT];
} seq_t;

static slow_block_t slow[N_BLOCKS + 1];
static seq_t        seqs[SEQS];
static uint64_t     now;
static uint8_t      salts[2][DI_KV_SALT_BYTES] = { "a", "b" };


static void
slow_unref(uint32_t id)
{
    CHECK(slow[id].refs > 0);
    if (--slow[id].refs == 0)
        slow[id].released = ++now;
}


/* The pool must take a block without contents, else the one released
 * longest ago. */
static uint32_t
alloc_checked(di_kv_t *kv)
{
    uint32_t id, i, oldest = 0, n_free = 0;

    for (i = 1; i <= N_BLOCKS; i++) {
        if (slow[i].refs != 0)
            continue;
        n_free += !slow[i].published;
        if (slow[i].published
            && (oldest == 0 || slow[i].released < slow[oldest].released))
            oldest = i;
    }

    id = di_kv_alloc(kv);
    if (n_free != 0)
        CHECK(id != 0 && slow[id].refs == 0 && !slow[id].published);
    else
        CHECK_EQ_INT(id, oldest);
    if (id != 0) {
        slow[id].refs = 1;
        slow[id].published = 0;
        slow[id].n = 0;
    }
    return id;
}


/* Does the list of block `id` agree with the first tokens of s; how far? */
static uint32_t
agrees(uint32_t id, const seq_t *s, uint32_t n)
{
    uint32_t i, m = slow[id].n < n ? slow[id].n : n;

    if (!slow[id].published || slow[id].salt != s->salt)
        return 0;
    for (i = 0; i < m && slow[id].tokens[i] == s->tokens[i]; i++) { }
    return i;
}


static void
start(di_kv_t *kv, seq_t *s)
{
    di_kv_match_t m;
    di_kv_key_t   key;
    uint32_t      i, n, whole = 0, best, got, id;

    memset(s, 0, sizeof(*s));
    s->salt = (int) rnd(4) == 0;
    n = 1 + rnd(BT * 4);
    for (i = 0; i < n; i++)
        s->tokens[i] = rnd(12) == 0;
    di_kv_key_root(salts[s->salt], &key);
    for (i = 0; i < n / BT; i++) {
        di_kv_key_next(i == 0 ? &key : &s->keys[i - 1], s->tokens + i * BT, BT,
                       &s->keys[i]);
    }

    for (i = 1; i <= N_BLOCKS; i++) {
        got = agrees(i, s, n);
        if (got == slow[i].n && got % BT == 0 && got > whole)
            whole = got;
    }
    best = whole;
    for (i = 1; i <= N_BLOCKS; i++) {
        got = agrees(i, s, n);
        if (got > best && got - whole < BT && (slow[i].n - 1) / BT
                                              == whole / BT)
            best = got;
    }

    di_kv_match(kv, salts[s->salt], s->tokens, n, s->keys, s->blocks, &m);
    CHECK_EQ_INT(m.n_blocks * BT, whole);
    CHECK_EQ_INT(m.n_blocks * BT + m.tail_tokens, best);
    for (i = 0; i < m.n_blocks; i++) {
        id = s->blocks[i];
        CHECK_EQ_INT(slow[id].n, (i + 1) * BT);
        CHECK_EQ_INT(agrees(id, s, n), (i + 1) * BT);
        slow[id].refs++;
    }
    if (m.tail_block != 0) {
        CHECK_EQ_INT(agrees(m.tail_block, s, n), best);
        slow[m.tail_block].refs++;
    }

    s->used = 1;
    s->n = m.n_blocks * BT;
    s->n_published = m.n_blocks;
    if (m.tail_block != 0) {
        id = alloc_checked(kv);
        if (id != 0) {
            s->blocks[m.n_blocks] = id;
            s->n += m.tail_tokens;
        }
        di_kv_unref(kv, m.tail_block);
        slow_unref(m.tail_block);
    }
}


static void
publish_whole(di_kv_t *kv, seq_t *s)
{
    uint32_t    at = s->n_published, id = s->blocks[at], same, i, want = id;
    di_kv_key_t root;
    uint32_t    parent = at == 0 ? 0 : s->blocks[at - 1];

    di_kv_key_root(salts[s->salt], &root);
    di_kv_key_next(at == 0 ? &root : &s->keys[at - 1], s->tokens + at * BT, BT,
                   &s->keys[at]);
    for (i = 1; i <= N_BLOCKS; i++) {
        if (slow[i].n == s->n && agrees(i, s, s->n) == s->n)
            want = i;
    }
    same = di_kv_publish(kv, id, parent, salts[s->salt], &s->keys[at],
                         s->tokens + at * BT);
    CHECK_EQ_INT(same, want);
    if (same != id) {
        slow_unref(id);
        slow[same].refs++;
        s->blocks[at] = same;
    } else {
        slow[id].published = 1;
        slow[id].salt = s->salt;
        slow[id].n = s->n;
        memcpy(slow[id].tokens, s->tokens, s->n * sizeof(int32_t));
        for (i = 1; i <= N_BLOCKS; i++) {       /* covered tails are free   */
            if (i != id && slow[i].n % BT != 0 && slow[i].refs == 0
                && slow[i].n > at * BT && agrees(i, s, s->n) == slow[i].n)
                slow[i].published = 0;
        }
    }
    s->n_published++;
}


static void
grow(di_kv_t *kv, seq_t *s)
{
    uint32_t id;

    if (s->n == LEN_MAX)
        return;
    if (s->n % BT == 0) {
        id = alloc_checked(kv);
        if (id == 0)
            return;
        s->blocks[s->n / BT] = id;
    }
    s->tokens[s->n++] = rnd(12) == 0;
    if (s->n % BT == 0)
        publish_whole(kv, s);
}


static void
finish(di_kv_t *kv, seq_t *s)
{
    uint32_t at = s->n / BT, id, i, covered = 0;

    if (s->n % BT != 0) {
        id = s->blocks[at];
        for (i = 1; i <= N_BLOCKS; i++) {
            covered |= slow[i].n > at * BT && slow[i].n <= (at + 1) * BT
                       && agrees(i, s, s->n) == s->n;
        }
        di_kv_publish_tail(kv, id, at == 0 ? 0 : s->blocks[at - 1],
                           salts[s->salt], s->tokens + at * BT, s->n % BT);
        if (!covered) {
            slow[id].published = 1;
            slow[id].salt = s->salt;
            slow[id].n = s->n;
            memcpy(slow[id].tokens, s->tokens, s->n * sizeof(int32_t));
            for (i = 1; i <= N_BLOCKS; i++) {
                if (i != id && slow[i].n % BT != 0 && slow[i].refs == 0
                    && slow[i].n > at * BT && slow[i].n < s->n
                    && agrees(i, s, s->n) == slow[i].n)
                    slow[i].published = 0;
            }
        }
        di_kv_unref(kv, id);
        slow_unref(id);
    }
    while (at-- > 0) {
        di_kv_unref(kv, s->blocks[at]);
        slow_unref(s->blocks[at]);
    }
    s->used = 0;
}


static void
check_gauges(const di_kv_t *kv)
{
    di_kv_gauges_t g;
    uint32_t       i, live = 0, cached = 0;

    for (i = 1; i <= N_BLOCKS; i++) {
        live += slow[i].refs != 0;
        cached += slow[i].refs == 0 && slow[i].published;
        CHECK_EQ_INT(di_kv_refs(kv, i), slow[i].refs);
    }
    di_kv_gauges(kv, &g);
    CHECK_EQ_INT(g.live, live);
    CHECK_EQ_INT(g.cached, cached);
    CHECK_EQ_INT(g.free, N_BLOCKS - live - cached);
    CHECK_EQ_INT(g.total, N_BLOCKS);
}


/* key_bits < 128 makes nearly every look-up meet a colliding key. */
static void
test_random(uint32_t key_bits, uint64_t seed)
{
    di_kv_conf_t conf = { .n_blocks = N_BLOCKS,
                          .block_tokens = BT, .key_bits = key_bits };
    di_kv_t     *kv = NULL;
    seq_t       *s;
    int          i;

    rnd_seed(seed);
    memset(slow, 0, sizeof(slow));
    memset(seqs, 0, sizeof(seqs));
    CHECK_EQ_INT(di_kv_open(&conf, &kv, NULL), DI_OK);

    for (i = 0; i < 20000; i++) {
        s = &seqs[rnd(SEQS)];
        if (!s->used)
            start(kv, s);
        else if (rnd(40) == 0)
            finish(kv, s);
        else
            grow(kv, s);
        di_kv_check(kv);
        if (i % 16 == 0)
            check_gauges(kv);
        if (check_failed != 0)
            break;
    }

    for (i = 0; i < SEQS; i++) {
        if (seqs[i].used)
            finish(kv, &seqs[i]);
    }
    check_gauges(kv);
    for (i = 1; i <= N_BLOCKS; i++)
        CHECK_EQ_INT(slow[i].refs, 0);
    di_kv_close(kv);
}


/* Planted fault: with the chain cut (a parent of other content), equal
 * tokens under an equal key must not be taken for the same block. */
static void
test_parent_counts(void)
{
    di_kv_conf_t  conf = { .n_blocks = 8, .block_tokens = BT,
                           .key_bits = 1 };
    di_kv_t      *kv = NULL;
    di_kv_match_t m;
    di_kv_key_t   keys[2];
    int32_t       a[2 * BT], b[2 * BT];
    uint32_t      blocks[2], got[2];
    int           i;

    for (i = 0; i < 2 * BT; i++)
        a[i] = b[i] = 7;
    b[0] = 8;
    memset(keys, 0, sizeof(keys));      /* every key collides               */

    CHECK_EQ_INT(di_kv_open(&conf, &kv, NULL), DI_OK);
    for (i = 0; i < 2; i++) {
        blocks[i] = di_kv_alloc(kv);
        CHECK_EQ_INT(di_kv_publish(kv, blocks[i], i == 0 ? 0 : blocks[0],
                                   salts[0], &keys[i], a + i * BT),
                     blocks[i]);
    }
    di_kv_match(kv, salts[0], b, 2 * BT, keys, got, &m);
    CHECK_EQ_INT(m.n_blocks, 0);
    CHECK_EQ_INT(m.tail_tokens, 0);
    di_kv_match(kv, salts[1], a, 2 * BT, keys, got, &m);
    CHECK_EQ_INT(m.n_blocks, 0);
    CHECK_EQ_INT(m.tail_block, 0);
    di_kv_match(kv, salts[0], a, 2 * BT, keys, got, &m);
    CHECK_EQ_INT(m.n_blocks, 2);
    di_kv_check(kv);
    di_kv_close(kv);
}


/* Memory that was touched is used before memory that never was: blocks that
 * nobody knows come back in the order in which a sequence, which gives its
 * last block back first, had them. */
static void
test_touched_first(void)
{
    di_kv_conf_t conf = { .n_blocks = 8, .block_tokens = BT };
    di_kv_t     *kv = NULL;
    uint32_t     blocks[3];
    int          i;

    CHECK_EQ_INT(di_kv_open(&conf, &kv, NULL), DI_OK);
    for (i = 0; i < 3; i++)
        blocks[i] = di_kv_alloc(kv);
    for (i = 2; i >= 0; i--)
        di_kv_unref(kv, blocks[i]);
    di_kv_check(kv);
    for (i = 0; i < 3; i++)
        CHECK_EQ_INT(di_kv_alloc(kv), blocks[i]);
    di_kv_check(kv);
    di_kv_close(kv);
}


static void
test_open(void)
{
    di_kv_conf_t conf = { .n_blocks = 0, .block_tokens = BT };
    di_kv_t     *kv = NULL;
    di_err_t     err = { 0 };
    int          n, rc;

    CHECK_EQ_INT(di_kv_open(&conf, &kv, &err), DI_EINVAL);
    conf.n_blocks = 3;
    conf.key_bits = 129;
    CHECK_EQ_INT(di_kv_open(&conf, &kv, NULL), DI_EINVAL);
    conf.key_bits = 0;
    for (n = 0; ; n++) {
        nomem_after(n);
        rc = di_kv_open(&conf, &kv, NULL);
        if (!nomem_off())
            break;
        CHECK_EQ_INT(rc, DI_ENOMEM);
    }
    CHECK_EQ_INT(rc, DI_OK);
    di_kv_close(kv);
}


/* Keys of a prompt of 2,100 tokens; printed, not judged. */
static void
time_keys(void)
{
    static int32_t  tokens[2100];
    di_kv_key_t     key[2];
    struct timespec a, b;
    double          us, best = 1e9;
    int             i, round;

    for (round = 0; round < 20; round++) {
        (void) clock_gettime(CLOCK_MONOTONIC, &a);
        di_kv_key_root(salts[0], &key[0]);
        for (i = 0; i < 2100 / BT; i++)
            di_kv_key_next(&key[i & 1], tokens + i * BT, BT, &key[~i & 1]);
        (void) clock_gettime(CLOCK_MONOTONIC, &b);
        us = (double) (b.tv_sec - a.tv_sec) * 1e6
             + (double) (b.tv_nsec - a.tv_nsec) / 1e3;
        best = us < best ? us : best;
    }
    printf("keys of 2,100 tokens: %.1f us\n", best);
}


int
main(int argc, char **argv)
{
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0)
                             : (uint64_t) time(NULL);

    printf("seed %llu\n", (unsigned long long) seed);
    test_open();
    test_parent_counts();
    test_touched_first();
    test_random(0, seed);
    test_random(8, seed);
    test_random(1, seed);
    time_keys();
    return check_done("kv");
}
