/*
 * v41.c - DeepSeek-V4.1 against the goldens of tiny-v41, plain and quantised.
 *
 * With float32 arithmetic and unrounded caches (--exact) logits agree within
 * TOLERANCE with the reference's float64.  Where a golden's own margin says
 * that two tokens are nearly equal, either is right, and a greedy run ends
 * there.  In the default arithmetic, with caches as stored, logits agree
 * within ROUNDED, the tolerance that the goldens come with.
 */

#include <math.h>

#include "engine/model/deepseek_v41.h"
#include "v41_model.h"

#define TOLERANCE     1e-3       /* of logits, float32 against float64      */
#define ROUNDED       0.05       /* the same with rounded caches            */
#define JITTER        0x1p-23f   /* a float32's last place                  */
#define JITTERS       8          /* tries to find out what depends on it    */
#define TIES          4          /* positions of a golden that may do       */
#define LOSS          0.01       /* of the mean loss                        */
#define GREEDY        64         /* tokens of a greedy continuation         */

typedef struct {
    const char *golden;          /* directory below t/data                  */
    const char *dir;             /* of the checkpoint                       */
    json_t     *prompts;
} side_t;

static v41_seq_t
seq_of(const side_t *side, const char *prompt, uint32_t number)
{
    v41_seq_t q;
    int32_t   ids[V41_LEN];

    v41_seq_init(&q, number, ids, v41_prompt(side->prompts, prompt, ids));
    return q;
}

/* Compare the listed logits; returns the largest difference. */
static double
differs(const float *row, const json_t *top)
{
    const json_t *ids = json_object_get(top, "ids");
    const json_t *values = json_object_get(top, "values");
    double        worst = 0, d;

    for (size_t i = 0; i < json_array_size(ids); i++) {
        d = fabs(row[(size_t) v41_num(ids, i)] - v41_num(values, i));
        if (!(d <= worst))
            worst = d;
    }
    return worst;
}

static void
check_row(const side_t *side, const char *what, const float *row,
          const json_t *top, double tolerance)
{
    double d = differs(row, top);

    CHECK(d <= tolerance);
    if (!(d <= tolerance))
        printf("%s, %s, position %d: %g\n", side->golden, what,
               v41_int(top, "pos"), d);
}

static int32_t
likeliest(const float *row, uint32_t vocab)
{
    uint32_t best = 0;

    for (uint32_t i = 1; i < vocab; i++) {
        if (row[i] > row[best])
            best = i;
    }
    return (int32_t) best;
}

/* --------------------------------------------------------------- forward -- */

static void
test_forward(const side_t *side, di_model_t *m)
{
    json_t     *forward = v41_golden(side->golden, "forward"), *list, *top;
    uint32_t    vocab = di_model_info(m)->vocab;
    const char *name;
    size_t      i;

    json_object_foreach(json_object_get(forward, "prompts"), name, list) {
        v41_seq_t q = seq_of(side, name, 0);
        float    *all = v41_rows(m, &q, 128);

        json_array_foreach(list, i, top)
            check_row(side, name,
                      all + (size_t) v41_int(top, "pos") * vocab, top,
                      TOLERANCE);
        free(all);
    }
    json_decref(forward);
}

/* One token at a time from the end of the prompt. */
static void
greedy(const side_t *side, di_model_t *m, const char *name, const json_t *g)
{
    const json_t *tokens = json_object_get(g, "tokens");
    const json_t *logits = json_object_get(g, "logit");
    const json_t *margins = json_object_get(g, "margin");
    v41_seq_t     q = seq_of(side, name, 0);
    const uint32_t vocab = di_model_info(m)->vocab;

    for (size_t i = 0; i < GREEDY; i++) {
        int32_t        want = (int32_t) v41_num(tokens, i), got;
        di_model_seq_t part = v41_part(&q, q.n - q.done, 1);
        const float   *row = v41_run(m, &part, 1);

        got = likeliest(row, vocab);
        if (got != want && v41_num(margins, i) < TOLERANCE)
            return;
        CHECK_EQ_INT(got, want);
        CHECK(fabs(row[want] - v41_num(logits, i)) <= TOLERANCE);
        if (got != want)
            return;
        q.done = q.n;
        q.tokens[q.n++] = got;
    }
}

static void
test_greedy(const side_t *side, di_model_t *m)
{
    json_t     *all = v41_golden(side->golden, "greedy"), *g;
    const char *name;

    json_object_foreach(all, name, g)
        greedy(side, m, name, g);
    json_decref(all);
}

/* ---------------------------------------------- inside of a step: probe -- */

typedef struct {
    di_v41_t   *s;
    uint32_t    call;            /* sub-layers seen: attention, experts, ...*/
    const char *name;            /* of the prompt                           */
    uint32_t    n_rows;
    json_t     *routing;         /* golden, NULL: don't look                */
    json_t     *index;
    json_t     *trace;
    uint32_t    counts[64];      /* of a layer's experts                    */
} probe_t;

static const float *
floats_at(di_view_t v)
{
    return (const float *) (const void *)
           ((uint8_t *) di_ops_cpu()->buf_map(v.buf) + v.offset);
}

static const int32_t *
ints_at(di_view_t v)
{
    return (const int32_t *) (const void *) floats_at(v);
}

static void
probe_experts(probe_t *p, uint32_t layer)
{
    const int32_t *ids = ints_at(p->s->x.ids);
    const uint32_t used = p->s->conf.n_used;
    json_t        *rows, *row, *counts;
    char           key[16];
    size_t         i;

    (void) snprintf(key, sizeof(key), "%u", layer);
    rows = json_object_get(json_object_get(json_object_get(
               p->routing, "experts"), p->name), key);
    json_array_foreach(rows, i, row) {
        const json_t *experts = json_object_get(row, "experts");

        for (uint32_t k = 0; k < used; k++)
            CHECK_EQ_INT(ids[(uint32_t) v41_int(row, "row") * used + k],
                         (int32_t) v41_num(experts, k));
    }
    if (strcmp(p->name, "long") != 0)
        return;
    memset(p->counts, 0, sizeof(p->counts));
    for (uint32_t r = 0; r < p->n_rows * used; r++)
        p->counts[ids[r]]++;
    counts = json_object_get(json_object_get(p->routing, "long_counts"),
                             key);
    for (uint32_t e = 0; e < p->s->conf.n_experts; e++)
        CHECK_EQ_INT(p->counts[e], (uint32_t) v41_num(counts, e));
}

/* A list that an operator wrote: how many, then entries. */
static void
check_list(const int32_t *list, const json_t *want)
{
    CHECK_EQ_INT(list[0], json_array_size(want));
    for (size_t i = 0; i < json_array_size(want) && (int32_t) i < list[0];
         i++)
        CHECK_EQ_INT(list[1 + i], (int32_t) v41_num(want, i));
}

static void
probe_index(probe_t *p, uint32_t layer)
{
    const di_v41_conf_t *c = &p->s->conf;
    json_t              *rows, *row;
    char                 key[16];
    size_t               i;

    if (strcmp(p->name, "long") != 0 || c->ratio[layer] == 0
        || !di_v41_selects(c, layer))
        return;
    (void) snprintf(key, sizeof(key), "%u", layer);
    rows = json_object_get(p->index, key);
    CHECK(json_array_size(rows) == 4);
    json_array_foreach(rows, i, row)
        check_list(ints_at(p->s->x.selected) + (size_t) v41_int(row, "pos")
                       * (1 + c->index_topk),
                   json_object_get(row, "selected"));
    if (layer != c->candidate_layer)
        return;
    rows = json_object_get(p->index, "candidate_blocks");
    json_array_foreach(rows, i, row)
        check_list(ints_at(p->s->x.candidates) + (size_t) v41_int(row, "pos")
                       * (1 + c->candidate_blocks),
                   json_object_get(row, "blocks"));
}

static void
check_near(const float *x, const json_t *want)
{
    for (size_t i = 0; i < json_array_size(want); i++)
        CHECK(fabs(x[i] - v41_num(want, i)) <= TOLERANCE);
}

/* Two rows of `chat`: trunk, input, coefficients and output. */
static void
probe_trace(probe_t *p)
{
    const di_v41_conf_t    *c = &p->s->conf;
    const di_v41_scratch_t *x = &p->s->x;
    const uint32_t          m = c->hc;

    for (uint32_t i = 0; i < 2; i++) {
        const json_t *t = json_array_get(p->trace, 2 * p->call + i);
        const json_t *list;
        const size_t  row = (size_t) v41_int(t, "row");
        const float  *o = floats_at(x->o) + row * c->dim;
        const float  *coefs = floats_at(x->c) + row * DI_HC_COEFS(m);
        double        norm = 0;

        list = json_object_get(t, "trunk_stream_head");
        for (uint32_t j = 0; j < m; j++)
            check_near(floats_at(x->t) + (row * m + j) * c->dim,
                       json_array_get(list, j));
        check_near(floats_at(x->in) + row * c->dim,
                   json_object_get(t, "input_head"));
        check_near(o, json_object_get(t, "output_head"));
        check_near(coefs, json_object_get(t, "pre"));
        check_near(coefs + m, json_object_get(t, "post"));
        list = json_object_get(t, "comb");
        for (uint32_t j = 0; j < m; j++)
            check_near(coefs + (2 + j) * m, json_array_get(list, j));
        for (uint32_t d = 0; d < c->dim; d++)
            norm += (double) o[d] * o[d];
        CHECK(fabs(sqrt(norm) - json_number_value(
                       json_object_get(t, "output_norm"))) <= TOLERANCE);
    }
}

static void
probe(void *arg, size_t part)
{
    probe_t *p = arg;

    (void) part;
    if (p->call % 2 == 0)
        probe_index(p, p->call / 2);
    else
        probe_experts(p, p->call / 2);
    if (p->trace != NULL && strcmp(p->name, "chat") == 0)
        probe_trace(p);
    p->call++;
}

/* A prompt in one step, looked at behind every sub-layer. */
static void
test_inside(const side_t *side)
{
    di_model_t *m = v41_open(side->dir, DI_ARITH_F32, 704);
    di_v41_t   *s = m->state;
    probe_t     p = { .s = s };
    const char *name;
    json_t     *prompt;

    p.routing = v41_golden(side->golden, "routing");
    p.index = v41_golden(side->golden, "index");
    p.trace = v41_golden(side->golden, "trace");
    s->probe = probe;
    s->probe_arg = &p;
    json_object_foreach(side->prompts, name, prompt) {
        v41_seq_t      q = seq_of(side, name, 0);
        di_model_seq_t part = v41_part(&q, q.n, 1);

        (void) prompt;
        p.call = 0;
        p.name = name;
        p.n_rows = q.n;
        (void) v41_run(m, &part, 1);
        CHECK_EQ_INT(p.call, 2 * s->conf.n_layers);
    }
    di_model_close(m);
    json_decref(p.routing);
    json_decref(p.index);
    json_decref(p.trace);
}

/* ---------------------------------------------------------------- replay -- */

/* The last rows of a chunk that is part of a prompt of `total` tokens. */
static const float *
kept(di_model_t *m, v41_seq_t *q, uint32_t end, uint32_t total,
     uint32_t n_logits, uint32_t keep)
{
    di_model_seq_t part = v41_part(q, end - q->done, n_logits);

    part.keep_from = total - keep;
    q->done = end;
    return v41_run(m, &part, 1);
}

/* The kept rows of a prompt that q goes on with, and greedy decoding. */
static void
check_replay(const side_t *side, di_model_t *m, v41_seq_t *q, const json_t *g)
{
    const uint32_t vocab = di_model_info(m)->vocab;
    const uint32_t keep = (uint32_t) v41_int(g, "keep");
    const uint32_t total = q->n, mid = total - keep + 12;
    const float   *rows;
    const json_t  *top;
    size_t         i;

    /* As many logits as a step gives: the rest in a second chunk. */
    rows = kept(m, q, mid, total, 12, keep);
    json_array_foreach(json_object_get(g, "rows"), i, top) {
        uint32_t pos = (uint32_t) v41_int(top, "pos");

        if (pos >= mid && q->done == mid)
            rows = kept(m, q, total, total, total - mid, keep);
        check_row(side, "replay", rows + (size_t) (pos - (pos < mid
                                          ? mid - 12 : mid)) * vocab,
                  top, TOLERANCE);
    }
    json_array_foreach(json_object_get(g, "decode"), i, top) {
        di_model_seq_t part;

        q->tokens[q->n++] = v41_int(top, "input");
        part = v41_part(q, 1, 1);
        check_row(side, "decode after replay", v41_run(m, &part, 1), top,
                  TOLERANCE);
        q->done++;
    }
}

/* Both modes, and chunks that end before the kept rows or among them. */
static void
test_replay(const side_t *side)
{
    json_t        *g = v41_golden(side->golden, "replay"), *top;
    di_model_t    *m = v41_open(side->dir, DI_ARITH_F32, 704);
    const uint32_t keep = (uint32_t) v41_int(g, "keep");
    v41_seq_t      q = seq_of(side, "long", 0);
    const uint32_t total = q.n;

    check_replay(side, m, &q, g);
    q = seq_of(side, "long", 0);
    q.keep_all = true;
    check_replay(side, m, &q, g);

    q = seq_of(side, "long", 1);
    top = json_object_get(json_object_get(g, "chunk_600_of_700"), "last");
    check_row(side, "chunk of 600", kept(m, &q, 600, total, 1, keep), top,
              TOLERANCE);
    q = seq_of(side, "long", 2);
    top = json_object_get(json_object_get(
              g, "chunk_500_of_700_placeholder"), "last");
    check_row(side, "placeholder", kept(m, &q, 500, total, 1, keep), top,
              TOLERANCE);
    di_model_close(m);
    json_decref(g);
}

/* Lose the windows of a sequence that has come to its floor: block KV is all
 * that is left of it, and the state slot is another sequence's. */
static void
lose(const side_t *side, di_model_t *m, v41_seq_t *q)
{
    v41_seq_t other = seq_of(side, "long", 1);

    memmove(other.tokens, other.tokens + 99, 500 * sizeof(int32_t));
    (void) kept(m, &other, 500, 500, 0, 140);
    q->number = 1;
    q->floor = q->done;
}

/* Windows end at the first token that is computed again. */
static void
test_lost(const side_t *side)
{
    json_t        *g = v41_golden(side->golden, "restart");
    di_model_t    *m = v41_open(side->dir, DI_ARITH_F32, 704);
    v41_seq_t      q = seq_of(side, "long", 0);
    const uint32_t floor = (uint32_t) v41_int(g, "floor");

    (void) kept(m, &q, floor, q.n, 0, (uint32_t) v41_int(g, "keep"));
    lose(side, m, &q);
    check_replay(side, m, &q, g);
    di_model_close(m);
    json_decref(g);
}

/* The same behind the first row to be kept: then all are kept, and windows
 * reach down to the floor, not to that row, as if it were the floor's. */
static void
test_lost_late(const side_t *side)
{
    di_model_t    *m = v41_open(side->dir, DI_ARITH_F32, 704);
    const size_t   bytes = di_model_info(m)->vocab * sizeof(float);
    v41_seq_t      q = seq_of(side, "long", 0);
    const uint32_t total = q.n, floor = 640;
    float         *want = malloc(bytes);

    (void) kept(m, &q, floor, total, 0, 140);
    lose(side, m, &q);
    memcpy(want, kept(m, &q, total, total, 1, total - floor), bytes);
    q.done = floor;
    lose(side, m, &q);
    CHECK(memcmp(want, kept(m, &q, total, total, 1, 140), bytes) == 0);
    free(want);
    di_model_close(m);
}

/* Rows that end early leave nothing behind that later ones miss: a prompt in
 * chunks without wanted logits, and one that is gone on with from a copy of
 * its state, give the bits of a prompt in one piece. */
static void
test_restart(const side_t *side, di_arith_t arith)
{
    di_model_t    *m = v41_open(side->dir, arith, 704);
    const uint32_t vocab = di_model_info(m)->vocab, keep = 140;
    const size_t   bytes = vocab * sizeof(float);
    v41_seq_t      q = seq_of(side, "long", 0);
    const uint32_t total = q.n;
    float         *want = malloc(bytes);

    memcpy(want, kept(m, &q, total, total, 1, keep), bytes);
    q = seq_of(side, "long", 1);
    for (uint32_t at = 0; at < total - 1; at = q.done)
        (void) kept(m, &q, at + 99 < total - 1 ? at + 99 : total - 1, total,
                    0, keep);
    CHECK(memcmp(want, kept(m, &q, total, total, 1, keep), bytes) == 0);
    q = seq_of(side, "long", 1);
    q.keep_all = true;
    CHECK(memcmp(want, kept(m, &q, total, total, 1, keep), bytes) == 0);

    /* 512 tokens of another sequence, whose consumers stopped early too. */
    q = seq_of(side, "long", 2);
    (void) kept(m, &q, 512, total, 0, keep);
    di_model_state_copy(m, 4, 3);
    q.number = 3;
    CHECK(memcmp(want, kept(m, &q, total, total, 1, keep), bytes) == 0);
    free(want);
    di_model_close(m);
}

/* ----------------------------------------------------------- invariance -- */

/* One token at a time, in chunks, and beside others: the same bits. */
static void
test_cuts(const side_t *side, di_arith_t arith)
{
    static const uint32_t chunks[] = { 1, 7, 64 };
    di_model_t *m = v41_open(side->dir, arith, 256);
    uint32_t    vocab = di_model_info(m)->vocab;
    v41_seq_t   q = seq_of(side, "long", 0), other;
    float      *whole, *cut;

    q.n = 300;
    whole = v41_rows(m, &q, 128);
    for (size_t i = 0; i < sizeof(chunks) / sizeof(chunks[0]); i++) {
        q.done = 0;
        cut = v41_rows(m, &q, chunks[i]);
        CHECK(memcmp(cut, whole, (size_t) q.n * vocab * sizeof(float)) == 0);
        free(cut);
    }

    q.done = 0;
    other = seq_of(side, "long", 1);
    while (q.done < q.n) {
        uint32_t       n = q.n - q.done < 50 ? q.n - q.done : 50;
        di_model_seq_t parts[2] = { v41_part(&other, 61, 0),
                                    v41_part(&q, n, n) };
        const float   *rows = v41_run(m, parts, 2);

        CHECK(memcmp(rows, whole + (size_t) q.done * vocab,
                     (size_t) n * vocab * sizeof(float)) == 0);
        q.done += n;
        other.done += 61;
    }
    free(whole);
    di_model_close(m);
}

/* -------------------------------------------------------- rounded caches -- */

/* Table rows with other last bits, for test_rounded(). */
static struct {
    const di_ops_t *ops;         /* the device's own                        */
    uint32_t        seed;        /* 0: as they are                          */
    struct {
        float *x;
        size_t n;
    } rows[16];                  /* of launches under way                   */
    size_t          n_rows;
} jitter;

static void
jitter_rows(void *arg, size_t part)
{
    const size_t i = (size_t) (uintptr_t) arg;

    (void) part;
    for (size_t k = 0; k < jitter.rows[i].n; k++) {
        jitter.seed = jitter.seed * 1664525u + 1013904223u;
        jitter.rows[i].x[k] *= 1 + JITTER * ((float) (jitter.seed >> 8)
                                             * 0x1p-23f - 1);
    }
}

static void
jittered_rows(di_stream_t *s, di_view_t y, const di_wpart_t *table,
              di_view_t ids, size_t n_rows, size_t n, size_t k)
{
    const size_t i = jitter.n_rows++ % 16;

    jitter.ops->table_rows(s, y, table, ids, n_rows, n, k);
    jitter.rows[i].x = (float *) (uintptr_t) floats_at(y);
    jitter.rows[i].n = n_rows * n * k;
    if (jitter.seed != 0)
        jitter.ops->host_call(s, jitter_rows, (void *) (uintptr_t) i, 1);
}

/* Do the logits of a position depend on the last bits of the embeddings?
 * Then rounding moves a value to the next code, either way is right, and what
 * comes of it is no error. */
static bool
is_tie(di_model_t *m, const side_t *side, const char *name, uint32_t pos,
       const float *row)
{
    const uint32_t vocab = di_model_info(m)->vocab;
    double         moved = 0;

    for (uint32_t i = 1; i <= JITTERS && moved <= ROUNDED; i++) {
        v41_seq_t    q = seq_of(side, name, 1);
        const float *other;
        float       *all;

        jitter.seed = i;
        q.n = pos + 1;
        all = v41_rows(m, &q, 128);
        jitter.seed = 0;
        other = all + (size_t) pos * vocab;
        for (uint32_t k = 0; k < vocab; k++)
            moved = fmax(moved, fabs(other[k] - row[k]));
        free(all);
    }
    return moved > ROUNDED;
}

/* A prompt's positions within ROUNDED of the golden, and their likeliest
 * tokens wherever its margin is larger; returns how many are ties. */
static uint32_t
check_rounded(di_model_t *m, const side_t *side, const char *name,
              const json_t *list)
{
    const uint32_t vocab = di_model_info(m)->vocab;
    v41_seq_t      q = seq_of(side, name, 0);
    float         *all = v41_rows(m, &q, 128);
    uint32_t       ties = 0;
    const json_t  *top;
    size_t         i;

    json_array_foreach(list, i, top) {
        const uint32_t pos = (uint32_t) v41_int(top, "pos");
        const float   *row = all + (size_t) pos * vocab;
        const json_t  *values = json_object_get(top, "values");

        CHECK(v41_num(values, 0) - v41_num(values, 1) <= ROUNDED
              || likeliest(row, vocab)
                 == (int32_t) v41_num(json_object_get(top, "ids"), 0));
        if (differs(row, top) <= ROUNDED)
            continue;
        ties++;
        if (ties > TIES || !is_tie(m, side, name, pos, row))
            check_row(side, name, row, top, ROUNDED);
    }
    free(all);
    return ties;
}

/* Caches as stored.  The golden of the plain checkpoint rounds nothing else;
 * that of the quantised one rounds activations as DI_ARITH_MX does.
 *
 * Its ties, `long` at 233, 350, 698 and 699, come of one code: value 44 of row
 * 32 that enters layer 2's attention is -34 of its scale in the reference's
 * float32, half way from -32 to -36, and goes to the even one, but -34.0000015
 * in the reference's float64 and -34.0000106 here (its group reaches 425), so
 * -36; that code alone, set to -36 in the reference, moves its logits by 0.33,
 * 0.06, 0.11 and 0.27.  With the 29 codes that differ so, none by more than 5
 * half last places of its group's largest, its 700 rows are ours but for 1e-4;
 * experts and selected entries are the same. */
static void
test_rounded(const side_t *side, di_arith_t arith)
{
    json_t     *g = v41_golden(side->golden, "quantised_caches"), *list;
    di_model_t *m;
    di_ops_t    ops;
    uint32_t    ties = 0;
    const char *name;

    v41_rounds = true;
    m = v41_open(side->dir, arith, 128);
    v41_rounds = false;
    jitter.ops = m->ops;
    ops = *m->ops;
    ops.table_rows = jittered_rows;
    m->ops = &ops;
    json_object_foreach(json_object_get(g, "prompts"), name, list)
        ties += check_rounded(m, side, name, list);
    printf("%s, %s, rounded caches: within %g, but for %u ties\n",
           side->golden, di_model_info(m)->arith, ROUNDED, ties);
    CHECK(ties <= (strcmp(side->dir, V41_FP8) == 0 ? TIES : 0));
    m->ops = jitter.ops;
    di_model_close(m);
    json_decref(g);
}

/* Mean loss over `long`, in nats. */
static double
loss(const side_t *side, di_arith_t arith)
{
    di_model_t *m = v41_open(side->dir, arith, 128);
    uint32_t    vocab = di_model_info(m)->vocab;
    v41_seq_t   q = seq_of(side, "long", 0);
    float      *all = v41_rows(m, &q, 128);
    double      total = 0, sum;

    for (uint32_t i = 0; i + 1 < q.n; i++) {
        const float *row = all + (size_t) i * vocab;

        sum = 0;
        for (uint32_t k = 0; k < vocab; k++)
            sum += exp(row[k] - row[q.tokens[i + 1]]);
        total += log(sum);
    }
    printf("%s, %s: loss %.4f\n", side->golden, di_model_info(m)->arith,
           total / (q.n - 1));
    free(all);
    di_model_close(m);
    return total / (q.n - 1);
}

/* --------------------------------------------------------------- drafts -- */

static void
check_drafts(di_model_t *m, const v41_seq_t *q, const json_t *tokens,
             const json_t *chances)
{
    const di_model_draft_t d = { .slot = 1 + q->number, .n = q->done,
                                 .token = q->tokens[q->done] };
    int32_t drafts[8];
    float   confidence[8];

    CHECK_EQ_INT(di_model_draft(m, &d, 1, NULL, NULL, drafts,
                                confidence), DI_OK);
    for (uint32_t i = 0; i < di_model_info(m)->n_drafts; i++) {
        CHECK_EQ_INT(drafts[i], (int32_t) v41_num(tokens, i));
        CHECK(fabs(confidence[i] - v41_num(chances, i)) <= TOLERANCE);
    }
}

/* Rounds of verification: drafts go in, those that agree stay. */
static void
draft_rounds(const side_t *side, di_model_t *m, const char *name,
             const json_t *g)
{
    const uint32_t vocab = di_model_info(m)->vocab;
    v41_seq_t      q = seq_of(side, name, 0);
    di_model_seq_t part = v41_part(&q, q.n, 1);
    json_t        *round;
    size_t         i;

    CHECK_EQ_INT(likeliest(v41_run(m, &part, 1), vocab),
                 v41_int(g, "golden"));
    q.done = q.n;
    q.tokens[q.n++] = v41_int(g, "golden");
    check_drafts(m, &q, json_object_get(g, "drafts"),
                 json_object_get(g, "confidence"));

    json_array_foreach(json_object_get(g, "rounds"), i, round) {
        const json_t *input = json_object_get(round, "input");
        const json_t *emitted = json_object_get(round, "emitted");
        uint32_t      n = (uint32_t) json_array_size(input), accepted = 0;
        const float  *rows;

        for (uint32_t k = 0; k < n; k++)
            q.tokens[q.done + k] = (int32_t) v41_num(input, k);
        part = v41_part(&q, n, n);
        rows = v41_run(m, &part, 1);
        for (uint32_t k = 0; k < json_array_size(emitted); k++)
            CHECK_EQ_INT(likeliest(rows + (size_t) k * vocab, vocab),
                         (int32_t) v41_num(emitted, k));
        accepted = (uint32_t) json_array_size(emitted) - 1;
        CHECK_EQ_INT(accepted, v41_int(round, "accepted"));
        q.done += 1 + accepted;
        q.tokens[q.done] = (int32_t) v41_num(emitted, accepted);
        check_drafts(m, &q, json_object_get(round, "next_drafts"),
                     json_object_get(round, "next_confidence"));
    }
}

static void
test_drafts(const side_t *side)
{
    json_t     *all = v41_golden(side->golden, "draft"), *g;
    di_model_t *m = v41_open(side->dir, DI_ARITH_F32, 704);
    const char *name;

    CHECK_EQ_INT(di_model_info(m)->n_drafts, 5);
    json_object_foreach(all, name, g)
        draft_rounds(side, m, name, g);
    di_model_close(m);
    json_decref(all);
}

/* --------------------------------------------------------------- formats -- */

static void
check_hex(const uint8_t *bytes, const json_t *hex)
{
    const char *want = json_string_value(hex);
    char        got[3];

    for (size_t i = 0; want != NULL && i < strlen(want) / 2; i++) {
        (void) snprintf(got, sizeof(got), "%02x", bytes[i]);
        CHECK(memcmp(got, want + 2 * i, 2) == 0);
    }
}

/* Records of 64 values in the three formats of the caches: their bytes. */
static void
test_formats(const side_t *side)
{
    static const struct {
        const char *name;
        di_cast_t   cast;
    } casts[] = { { "e4m3_ue8m0_32", DI_CAST_E4M3_32 },
                  { "e2m1_e4m3_16", DI_CAST_E2M1_16 },
                  { "e2m1_ue8m0_32", DI_CAST_E2M1_32 } };
    json_t *all = v41_golden(side->golden, "formats"), *one;
    size_t  i;

    json_array_foreach(all, i, one) {
        const json_t *input = json_object_get(one, "input");
        float         x[64], back[64];

        for (size_t k = 0; k < 64; k++)
            x[k] = (float) v41_num(input, k);
        for (size_t c = 0; c < sizeof(casts) / sizeof(casts[0]); c++) {
            const json_t *g = json_object_get(one, casts[c].name);
            uint8_t       data[64], scales[4];

            di_cast_put(casts[c].cast, x, 64, data, scales);
            check_hex(data, json_object_get(g, "data"));
            check_hex(scales, json_object_get(g, "scale"));
            di_cast_get(casts[c].cast, data, scales, 64, back);
            for (size_t k = 0; k < 64; k++)
                CHECK(back[k] == (float) v41_num(json_object_get(g, "value"),
                                                 k));
        }
    }
    json_decref(all);
}

int
main(int argc, char **argv)
{
    const bool quick = argc > 1 && strcmp(argv[1], "quick") == 0;
    side_t     sides[] = { { "tiny-v41", v41_plain, NULL },
                           { "tiny-v41-fp8", V41_FP8, NULL } };

    if (!v41_unpack()) {
        printf("can't unpack tiny-v41\n");
        return 1;
    }
    for (size_t i = 0; i < 2; i++) {
        side_t     *side = &sides[i];
        di_model_t *m = v41_open(side->dir, DI_ARITH_F32, 704);

        side->prompts = v41_golden(side->golden, "prompts");
        test_formats(side);
        test_forward(side, m);
        if (!quick)
            test_greedy(side, m);
        di_model_close(m);
        test_inside(side);
        test_replay(side);
        test_lost(side);
        test_lost_late(side);
        test_drafts(side);
        CHECK(fabs(loss(side, DI_ARITH_F32) - loss(side, DI_ARITH_AUTO))
              <= LOSS);
        if (i == 0)
            test_rounded(side, DI_ARITH_F32);
        test_rounded(side, DI_ARITH_AUTO);
        if (i == 1 && !quick) {
            test_cuts(side, DI_ARITH_F32);
            test_cuts(side, DI_ARITH_AUTO);
            test_restart(side, DI_ARITH_AUTO);
        }
        json_decref(side->prompts);
    }
    return check_done("v41");
}
