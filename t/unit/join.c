/*
 * join.c - rules in their tables, and texts joined by them.
 *
 * Rules are drawn at random, more than the first table takes, some of them
 * for the same pair; every look-up is held to a plain list of them.  Random
 * texts, any number abreast, must become what applying one rule after the
 * other makes of them, by each way that this machine has.
 */

#include <inttypes.h>
#include <stdlib.h>
#include <time.h>

#include "tokenizer/vocab/join.h"

#include "check.h"

#define RULES   40000
#define TOKENS  (256 + RULES)
#define TEXTS   40

static uint64_t    seed;
static di_merges_t merges;
static int32_t     rules[RULES][3];
static int32_t     bytes[256];

/* The plain list: by left side, rules in the order in which they were drawn. */
static int32_t newest[TOKENS], before[RULES];

static uint32_t
draw(uint32_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t) ((seed >> 32) * n >> 32);
}

/* The last rule for a pair; -1: none. */
static int32_t
find(int32_t left, int32_t right)
{
    int32_t i = newest[left];

    while (i >= 0 && rules[i][1] != right)
        i = before[i];
    return i;
}

/* A token that the rules so far know, short ones the most often. */
static int32_t
draw_token(int32_t n_rules)
{
    uint32_t n = draw(3) == 0 ? (uint32_t) n_rules + 256 : 256 + draw(64);
    int32_t  id = (int32_t) draw(n);

    return id < 256 + n_rules ? id : id % 256;
}

static void
draw_rules(void)
{
    bool straight = draw(2) == 0;

    for (int i = 0; i < 256; i++)
        bytes[i] = i;
    memset(newest, 0xff, sizeof(newest));
    for (int32_t i = 0; i < RULES; i++) {
        int32_t twice = i > 0 && draw(200) == 0 ? (int32_t) draw((uint32_t) i)
                                                : -1;

        rules[i][0] = twice < 0 ? draw_token(i) : rules[twice][0];
        rules[i][1] = twice < 0 ? draw_token(i) : rules[twice][1];
        rules[i][2] = straight ? 256 + i : 256 + (i ^ 1);
        before[i] = newest[rules[i][0]];
        newest[rules[i][0]] = i;
    }
    CHECK(di_merges_init(&merges, TOKENS, RULES));
    (void) di_merges_build(&merges, (const int32_t (*)[3]) rules, RULES,
                           bytes);
    CHECK(merges.straight == straight && merges.twice);
}

static void
test_orders(void)
{
    uint32_t wrong = 0, n_far = 0;

    for (int i = 0; i < 200000; i++) {
        bool     drawn = draw(2) == 0;
        uint32_t k = draw(RULES);
        int32_t  left = drawn ? rules[k][0] : (int32_t) draw(TOKENS);
        int32_t  right = drawn ? rules[k][1] : (int32_t) draw(TOKENS);
        int32_t  rule = find(left, right);
        uint32_t want = rule < 0 ? DI_MERGES_NONE : (uint32_t) rule + 2;
        bool     far;

        wrong += di_merges_order(&merges, left, right) != want;
        (void) di_merges_order_near(&merges, left, right, &far);
        n_far += far;
        if (rule >= 0)
            wrong += di_merges_makes(&merges, want) != rules[rule][2];
        if (left < 256 && right < 256)
            wrong += merges.bytes[left << 8 | right] != want;
    }
    CHECK_EQ_INT(wrong, 0);
    CHECK(n_far > 10000 && n_far < 190000);
}

/* Apply the rules one after the other. */
static size_t
apply(int32_t *ids, size_t n)
{
    for (;;) {
        int32_t best = -1;
        size_t  at = 0;

        for (size_t i = 0; i + 1 < n; i++) {
            int32_t rule = find(ids[i], ids[i + 1]);

            if (rule >= 0 && (best < 0 || rule < best)) {
                best = rule;
                at = i;
            }
        }
        if (best < 0)
            return n;
        ids[at] = rules[best][2];
        n--;
        memmove(ids + at + 1, ids + at + 2, (n - at - 1) * sizeof(*ids));
    }
}

static void
test_texts(di_join_run_t run)
{
    static di_join_t texts[TEXTS];
    static int32_t   want[TEXTS][DI_JOIN_MAX];
    int32_t          got[DI_JOIN_MAX];
    size_t           n_want[TEXTS], n = 1 + draw(TEXTS), len;

    for (size_t i = 0; i < n; i++) {
        uint8_t s[DI_JOIN_MAX];
        bool    chars = draw(3) == 0;

        len = 1 + draw(draw(4) == 0 ? DI_JOIN_MAX : 8);
        for (size_t k = 0; k < len; k++) {
            s[k] = (uint8_t) draw(draw(2) == 0 ? 256 : 20);
            want[i][k] = chars ? draw_token(RULES) : s[k];
        }
        if (chars)
            di_join_ids(&merges, want[i], len, &texts[i]);
        else
            di_join_bytes(&merges, bytes, s, len, &texts[i]);
        n_want[i] = apply(want[i], len);
    }
    run(&merges, texts, n);
    for (size_t i = 0; i < n; i++) {
        len = di_join_result(&texts[i], got);
        CHECK(len == n_want[i]
              && memcmp(got, want[i], len * sizeof(*got)) == 0);
    }
}

/* A bucket's bits, read as a slot, may spell the pair that is looked for. */
static void
test_spelled(di_join_run_t run)
{
    di_join_t text;
    int32_t   ids[3], got[DI_JOIN_MAX];
    uint32_t  k, tried = 0;

    for (int i = 0; i < 100000 && tried < 100; i++) {
        di_merges_bucket_t *b;
        uint64_t            pair, maybe;

        k = draw(RULES);
        memcpy(ids, rules[k], 2 * sizeof(*ids));
        ids[2] = (int32_t) draw(TOKENS);
        pair = di_merges_pair(rules[k][2], ids[2]);
        b = di_merges_bucket(&merges, di_merges_hash(pair));
        if (find(ids[0], ids[1]) != (int32_t) k || find(ids[1], ids[2]) >= 0
            || find(rules[k][2], ids[2]) >= 0
            || b == di_merges_bucket(&merges, di_merges_hash(
                        di_merges_pair(ids[0], ids[1])))
            || b->slots[DI_MERGES_SLOTS - 1] == 0)
            continue;
        maybe = b->maybe;
        b->maybe = pair << DI_MERGES_RANK_BITS;
        di_join_ids(&merges, ids, 3, &text);
        run(&merges, &text, 1);
        CHECK(di_join_result(&text, got) == 2 && got[0] == rules[k][2]
              && got[1] == ids[2]);
        b->maybe = maybe;
        tried++;
    }
    CHECK_EQ_INT(tried, 100);
}

int
main(int argc, char **argv)
{
    unsigned n = 0;

    seed = argc > 1 ? strtoull(argv[1], NULL, 0) : (uint64_t) time(NULL);
    printf("seed %" PRIu64 "\n", seed);

    for (int i = 0; i < 4; i++) {
        draw_rules();
        test_orders();
        for (n = 0; di_join_way(n) != NULL; n++) {
            for (int k = 0; k < 1000; k++)
                test_texts(di_join_way(n));
            test_spelled(di_join_way(n));
        }
        di_merges_deinit(&merges);
        memset(&merges, 0, sizeof(merges));
    }
    printf("%u ways to join\n", n);
    return check_done("join");
}
