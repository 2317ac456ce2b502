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
    CHECK(n >= 3 && n < 50);
    CHECK(o.net < 0);
    CHECK_EQ_INT(rounds(&o, &new, 16, 1000, 2), 0);
    o.debt = 0;
    CHECK_EQ_INT(rounds(&o, &new, 1, 1000, 2), 1);
    CHECK(rounds(&o, &new, 200, 1000, 2) <= 2);
}

/* Sequences that decode together. */
typedef struct {
    di_odds_t  odds;
    di_trial_t trials[6];
    uint32_t   n;
    double     us, tokens;
    double     stall_us;                 /* of the next drafting, once      */
} batch_t;

/* A step of all of them: 100 us, and 20 a row.  Drafting takes 60 us a
 * sequence, and every third round one stays; if it pays 6, and all do.
 * Returns the sequences that were drafted for. */
static uint32_t
batch_step(batch_t *b, uint32_t step, bool pays)
{
    bool     drafted[6] = { false };
    uint32_t n = 0, rows = b->n, tokens = b->n;
    double   draft_us;

    for (uint32_t i = 0; i < b->n; i++) {
        drafted[i] = di_odds_wants(&b->odds, &b->trials[i]);
        n += drafted[i];
    }
    draft_us = (pays ? 6 : 60) * n;
    if (n > 0) {
        draft_us += b->stall_us;
        b->stall_us = 0;
        di_odds_draft(&b->odds, n, draft_us);
    }
    for (uint32_t i = 0; i < b->n; i++) {
        uint32_t v, stay = pays ? N : (step + i) % 3 == 0;

        if (!drafted[i])
            continue;
        v = di_odds_verify(&b->odds, &b->trials[i], fair, N);
        stay = di_least(v, stay);
        di_odds_round(&b->odds, &b->trials[i], fair, v, stay);
        rows += v;
        tokens += stay;
    }
    di_odds_step(&b->odds, rows, tokens, 100 + 20 * rows);
    b->us += draft_us + 100 + 20 * rows;
    b->tokens += tokens;
    return n;
}

/* Where drafts never pay, a few hundredths of the time go into them, from the
 * first token on, and it is noticed when they begin to. */
static void
test_share(void)
{
    for (uint32_t n = 1; n <= 6; n += 5) {
        batch_t  b = { .n = n };
        double   plain = n / (100 + 20.0 * n);
        uint32_t rounds = 0, i;

        for (i = 0; i < 600; i++)
            rounds += batch_step(&b, i, false);
        CHECK(rounds > 1);
        CHECK(b.tokens / b.us > 0.97 * plain);
        for (i = 0; i < 300; i++)
            (void) batch_step(&b, i, true);
        for (i = rounds = 0; i < 100; i++)
            rounds += batch_step(&b, i, true);
        CHECK_EQ_INT(rounds, 100 * n);
    }
}

/* Nobody drafts before it is known what steps take without. */
static void
test_first(void)
{
    batch_t b = { .n = 6 };

    for (uint32_t i = 0; i < 4; i++)
        CHECK_EQ_INT(batch_step(&b, i, true), 0);
    for (uint32_t i = 4; i < 6; i++)
        CHECK(batch_step(&b, i, true) <= 1);
}

/* A drafting that took seconds, as the first one may while its weights come
 * from the disk, doesn't end them for good, nor does one among those that see
 * whether they pay by now. */
static void
test_stall(void)
{
    for (uint32_t before = 0; before <= 200; before += 200) {
        batch_t  b = { .n = 6 };
        uint32_t rounds, i;

        for (i = 0; i < before; i++)
            (void) batch_step(&b, i, false);
        b.stall_us = 2e6;
        for (i = 0; i < 1500; i++)
            (void) batch_step(&b, i, true);
        CHECK_EQ_INT(b.stall_us, 0);
        for (i = rounds = 0; i < 100; i++)
            rounds += batch_step(&b, i, true);
        CHECK_EQ_INT(rounds, 600);
    }
}

int
main(void)
{
    rnd_seed(1);
    test_row();
    test_verify();
    test_prefix();
    test_rest();
    test_share();
    test_first();
    test_stall();
    return check_done("odds");
}
