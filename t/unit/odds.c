/*
 * odds.c - which drafts are verified, by what steps and drafts have cost and
 * given: on clocks made up here.
 */

#include <math.h>

#include "check.h"
#include "engine/sched_impl.h"
#include "rnd.h"

#define N 5

static const float fair[N] = { 0.8f, 0.7f, 0.6f, 0.5f, 0.5f };

/* Steps of 1 to 6 rows, a token each: 100 us and so much a row. */
static void
learn(di_odds_t *o, double row_us)
{
    for (uint32_t i = 0; i < 200; i++)
        di_odds_step(o, 1 + i % 6, 1, 100 + row_us * (1 + i % 6));
}

/* A row's cost is found, and kept while all steps have as many rows. */
static void
test_row(void)
{
    di_odds_t o = { 0 };

    learn(&o, 10);
    CHECK(fabs(o.row_us - 10) < 0.1);
    for (int i = 0; i < 1000; i++)
        di_odds_step(&o, 3, 1, 130);
    CHECK(fabs(o.row_us - 10) < 0.1);
    for (uint32_t i = 0; i < 300; i++)  /* it may cost nothing              */
        di_odds_step(&o, 1 + i % 6, 1, 100 - (i % 6));
    CHECK(o.row_us >= 0 && o.row_us < 0.1);
}

/* Free rows take all drafts; dear ones those that stay often enough. */
static void
test_verify(void)
{
    di_trial_t t = { 0 };
    di_odds_t  o = { 0 };

    CHECK_EQ_INT(di_odds_verify(&o, &t, fair, N), N);
    learn(&o, 0);
    CHECK_EQ_INT(di_odds_verify(&o, &t, fair, N), N);
    o = (di_odds_t) { 0 };
    learn(&o, 50);              /* a row: 50 us; a token: 275 us            */
    CHECK_EQ_INT(di_odds_verify(&o, &t, fair, N), 3);
    t.stayed = 2;               /* a quarter of what was hoped for          */
    t.hoped = 14;
    CHECK_EQ_INT(di_odds_verify(&o, &t, fair, N), 1);
    t.hoped = 30;
    CHECK_EQ_INT(di_odds_verify(&o, &t, fair, N), 0);
}

/* Whether a draft is verified does not depend on what is behind it. */
static void
test_prefix(void)
{
    di_trial_t t = { 0 };
    di_odds_t  o = { 0 };

    learn(&o, 100);
    for (int round = 0; round < 1000; round++) {
        float    c[N];
        uint32_t n, at = rnd32() % N;

        for (int i = 0; i < N; i++)
            c[i] = (float) (rnd32() % 1000) / 1000;
        n = di_odds_verify(&o, &t, c, N);
        for (uint32_t i = at + 1; i < N; i++)
            c[i] = (float) (rnd32() % 1000) / 1000;
        if (n > at)
            CHECK(di_odds_verify(&o, &t, c, N) > at);
        else
            CHECK_EQ_INT(di_odds_verify(&o, &t, c, N), n);
    }
}

/* Rounds of drafts of a sequence in n tokens, if drafting takes so long and
 * so many stay of those verified. */
static uint32_t
rounds(di_odds_t *o, di_trial_t *t, uint32_t n, double draft_us,
       uint32_t stayed)
{
    uint32_t n_rounds = 0;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t verified = 0;

        if (di_odds_wants(o, t)) {
            di_odds_draft(o, 1, draft_us);
            verified = di_odds_verify(o, t, fair, N);
            di_odds_round(o, t, fair, verified, di_least(verified, stayed));
            n_rounds++;
        }
        di_odds_step(o, 1 + verified, 1 + di_least(verified, stayed),
                     100 + 10 * (1 + verified));
    }
    return n_rounds;
}

/* Drafts that pay are made all the time; others now and then, until they
 * do. */
static void
test_rest(void)
{
    di_odds_t  o = { 0 };
    di_trial_t t = { 0 }, other = { 0 }, new = { 0 };
    uint32_t   n;

    learn(&o, 10);
    CHECK_EQ_INT(rounds(&o, &t, 1000, 50, 2), 1000);
    CHECK(t.net > 0 && o.net > 0);

    n = rounds(&o, &other, 1000, 50, 0);         /* none stays              */
    CHECK(n >= 15 && n < 60);
    n = rounds(&o, &other, 1000, 50, 3);         /* now they do             */
    CHECK(n > 500);

    n = rounds(&o, &t, 3000, 1000, 2);           /* too dear for anybody    */
    CHECK(n >= 40 && n < 150);
    CHECK(o.net < 0);
    CHECK_EQ_INT(rounds(&o, &new, 16, 1000, 2), 0);
    CHECK_EQ_INT(rounds(&o, &new, 1, 1000, 2), 1);
}

int
main(void)
{
    rnd_seed(1);
    test_row();
    test_verify();
    test_prefix();
    test_rest();
    return check_done("odds");
}
