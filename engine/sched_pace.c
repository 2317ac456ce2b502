/*
 * sched_pace.c - how many prompt rows a step takes while streams decode.
 *
 * Every row of a prompt makes the step longer, and each running stream waits
 * for the step.  So prompts get what the target for a step's time leaves: the
 * rows for which, by what a row has cost of late, it is just met.  Costs are
 * taken by the clock, not from a model of the hardware: they change with
 * batch, depth and neighbours, and a wrong guess is put right by the step
 * that it led to.  That converges, because the part of a step that rows don't
 * change counts as theirs only as long as it was not seen alone.
 *
 * Three floors keep prompts going where the target can't be held anyway:
 *
 * - half the target, or half of what decoding takes if that is longer;
 * - three rows for each stream that decodes, or waits for its prompt to be
 *   read.  n streams want n prompt tokens a step for each that their prompts
 *   are longer than their answers, and falling behind that empties the batch:
 *   32 streams then waited seconds for their first token, at a tenth less
 *   throughput.  Counting only those that decode, 32 that come at once waited
 *   a tenth longer: the first few held up the rest;
 * - while a request has waited for more than a second, and for rows alone,
 *   the target grows with every further second: then there is more to
 *   compute than the target allows for.
 *
 * Tried and dropped: growing with the wait from its first millisecond.  Any
 * burst of arrivals then made steps as long as they are without a target.
 */

#include "sched_impl.h"

#define KEEP         (7.0 / 8)   /* of the past, each step                  */
#define ROWS_LEAST   16          /* fewer cost more each                    */
#define ROWS_A_STREAM 3
#define PATIENCE_US  1000000     /* waited without effect                   */
#define IMPATIENCE   20          /* of waiting beyond, a part of this
                                  * prolongs the target                     */


void
di_pace_note(di_pace_t *p, bool decodes, uint32_t prefill_rows, double us)
{
    double rest = us - p->decode_us;

    if (prefill_rows == 0) {
        p->decode_us = p->decode_us == 0 ? us
                       : p->decode_us * KEEP + us * (1 - KEEP);
        return;
    }
    if (!decodes)
        rest = us;
    else if (rest < us / 8)      /* more streams when that was measured     */
        rest = us / 8;
    p->prefill_us = p->prefill_us * KEEP + rest;
    p->prefill_rows = p->prefill_rows * KEEP + prefill_rows;
}


static double
larger(double a, double b)
{
    return a > b ? a : b;
}


uint32_t
di_pace_rows(const di_pace_t *p, uint32_t streams, double target_us,
             double waited_us, uint32_t rows_max)
{
    double left, rows = rows_max;

    target_us += larger(0, waited_us - PATIENCE_US) / IMPATIENCE;
    left = larger(target_us - p->decode_us,
                  larger(target_us, p->decode_us) / 2);
    if (p->prefill_us > 0)
        rows = left * p->prefill_rows / p->prefill_us;
    rows = larger(rows, larger(ROWS_LEAST, ROWS_A_STREAM * streams));
    return rows < rows_max ? (uint32_t) rows : rows_max;
}
