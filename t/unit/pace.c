/*
 * pace.c - how many prompt rows a step takes, for machines of several speeds
 * whose steps cost what a formula says.
 */

#include "engine/sched_impl.h"
#include "check.h"

#define MOST 256

typedef struct {
    double fixed, stream, row;          /* us                               */
} machine_t;

static const machine_t machines[] = {
    { 6000, 700, 1000 }, { 3000, 200, 350 }, { 500, 20, 15 },
};

static di_pace_t pace;


static double
cost(const machine_t *m, uint32_t streams, uint32_t rows)
{
    return m->fixed + m->stream * streams + m->row * rows;
}


/* One step that has prompts to read; returns its time. */
static double
mixed_step(const machine_t *m, uint32_t streams, double target,
           double waited, uint32_t *rows)
{
    double us;

    *rows = di_pace_rows(&pace, streams, target, waited, MOST);
    CHECK(*rows >= 16 && *rows <= MOST && *rows >= 3 * streams);
    us = cost(m, streams, *rows);
    di_pace_note(&pace, true, *rows, us);
    return us;
}


/* Streams that come while the machine is idle, and decode for a while. */
static void
start(const machine_t *m, uint32_t streams)
{
    int i;

    pace = (di_pace_t) { 0 };
    di_pace_note(&pace, false, 100, cost(m, 0, 100));
    for (i = 0; i < 30; i++)
        di_pace_note(&pace, true, 0, cost(m, streams, 0));
}


/* The target is met within a tenth, at once where decoding was seen alone. */
static void
test_meets(const machine_t *m)
{
    uint32_t rows;
    double   us, target = 1.2 * cost(m, 8, 24);
    int      i;

    start(m, 8);
    for (i = 0; i < 50; i++) {
        us = mixed_step(m, 8, target, 0, &rows);
        CHECK(us > 0.9 * target && us < 1.1 * target);
    }
}


/* Without a moment of decoding alone it is met after some steps; with fewer
 * streams than before as well. */
static void
test_converges(const machine_t *m)
{
    uint32_t rows, streams;
    double   us = 0, target = 1.2 * cost(m, 8, 24);
    int      i;

    pace = (di_pace_t) { 0 };
    for (streams = 8; streams > 0; streams -= 4) {
        for (i = 0; i < 60; i++)
            us = mixed_step(m, streams, target, 0, &rows);
        CHECK(us > 0.9 * target && us < 1.1 * target);
    }
}


/* Too many streams for the target: prompts get half of it, three rows for each
 * stream, or half of what decoding takes. */
static void
test_floors(const machine_t *m)
{
    double   decode = cost(m, 32, 0), us;
    uint32_t rows;

    start(m, 32);
    (void) mixed_step(m, 32, decode / 100, 0, &rows);
    CHECK(rows >= 96);

    start(m, 2);
    us = mixed_step(m, 2, cost(m, 2, 0) / 100, 0, &rows);
    CHECK(rows == 16 || us > 1.4 * cost(m, 2, 0));

    start(m, 2);
    us = mixed_step(m, 2, cost(m, 2, 0) + 40 * m->row, 0, &rows);
    CHECK(rows >= 20);
}


/* A second is waited for nothing, each further one is worth a twentieth. */
static void
test_impatience(const machine_t *m)
{
    uint32_t rows, at_once;
    double   target = 1.2 * cost(m, 8, 24);

    start(m, 8);
    at_once = di_pace_rows(&pace, 8, target, 0, MOST);
    rows = di_pace_rows(&pace, 8, target, 1e6, MOST);
    CHECK_EQ_INT(rows, at_once);
    rows = di_pace_rows(&pace, 8, target, 1e6 + 400 * m->row, 4096);
    CHECK(rows > at_once + 10 && rows < at_once + 21);
    rows = di_pace_rows(&pace, 8, target, 1e9, MOST);
    CHECK_EQ_INT(rows, MOST);
}


int
main(void)
{
    size_t i;

    for (i = 0; i < sizeof(machines) / sizeof(machines[0]); i++) {
        test_meets(&machines[i]);
        test_converges(&machines[i]);
        test_floors(&machines[i]);
        test_impatience(&machines[i]);
    }

    /* Nothing is known yet. */
    pace = (di_pace_t) { 0 };
    CHECK_EQ_INT(di_pace_rows(&pace, 1, 1000, 0, MOST), MOST);
    CHECK_EQ_INT(di_pace_rows(&pace, 90, 1000, 0, MOST), MOST);
    return check_done("pace");
}
