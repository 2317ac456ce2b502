/*
 * v41_sched.c - tiny-v41 under the scheduler: what the prefix cache, drafts,
 * other sequences and bounded replay may not change.
 */

#include "engine/di_sched.h"
#include "tokenizer/grammar/di_grammar.h"
#include "v41_model.h"

#define GEN  40                  /* tokens of an answer                     */
#define KEEP 140                 /* tokens of a prompt, with replay         */

typedef struct {
    int32_t  tokens[GEN];
    uint32_t n;
    uint32_t cached;             /* prompt tokens found in the cache        */
    bool     over;
} answer_t;

static answer_t answers[V41_SEQS];

/* Of all requests; and whether forced tokens are taken at once. */
static di_vocab_t *vocab;
static void       *grammar;      /* NULL: none                              */
static size_t      grammar_bytes;
static bool        jumps;
static di_drafts_mode_t mode = DI_DRAFTS_ALL;    /* where there are drafts  */

static void
sink(void *arg, uint32_t owner, const di_event_t *e,
     const di_top_logprob_t *top)
{
    answer_t *a = &answers[e->id];

    (void) arg;
    (void) owner;
    (void) top;
    switch (e->type) {
    case DI_EV_STARTED:
        a->cached = e->u.started.cached_tokens;
        break;
    case DI_EV_TOKENS:
        for (uint32_t i = 0; i < e->n_tokens && a->n < GEN; i++)
            a->tokens[a->n++] = e->u.tokens[i];
        break;
    case DI_EV_FINISH:
        CHECK_EQ_INT(e->u.finish.reason, DI_FINISH_LENGTH);
        a->over = true;
        break;
    default:
        CHECK(false);
    }
}

static di_sched_t *
open_sched(di_model_t *m, bool cache, bool drafts, di_replay_t replay)
{
    di_sched_conf_t conf = {
        .max_seqs = V41_SEQS, .max_rows = 256, .chunk = 100, .queue_max = 8,
        .prefix_cache = cache, .drafts = drafts ? mode : DI_DRAFTS_OFF,
        .replay = replay,
        .replay_keep = KEEP, .sink = sink, .vocab = vocab,
        .grammar_bytes = 64 << 20, .jumps = jumps,
    };
    di_sched_t *s = NULL;
    di_err_t    err = { 0 };

    CHECK_EQ_INT(di_sched_open(m, &conf, &s, &err), DI_OK);
    CHECK_EQ_STR(err.text, "");
    return s;
}

static void
submit(di_sched_t *s, uint64_t id, const int32_t *prompt, uint32_t n,
       float temperature)
{
    di_gen_request_t r = {
        .prompt = prompt, .n_prompt = n, .grammar = grammar,
        .n_grammar = (uint32_t) grammar_bytes,
        .params = { .max_tokens = GEN, .n = 1, .top_p = 1, .seed = 7,
                    .temperature = temperature, .repetition_penalty = 1,
                    .flags = DI_GEN_IGNORE_EOS } };

    memset(&answers[id], 0, sizeof(answers[id]));
    CHECK_EQ_INT(di_sched_submit(s, 0, id, &r), DI_OK);
}

static void
run(di_sched_t *s)
{
    while (!di_sched_idle(s)) {
        CHECK_EQ_INT(di_sched_step(s), DI_OK);
        di_sched_check(s);
    }
}

static void
check_same(const answer_t *a, const answer_t *b)
{
    CHECK_EQ_INT(a->n, GEN);
    CHECK_EQ_INT(b->n, GEN);
    CHECK(memcmp(a->tokens, b->tokens, sizeof(a->tokens)) == 0);
}

/* The answer of one request on a fresh scheduler. */
static answer_t
alone(di_model_t *m, const int32_t *prompt, uint32_t n, float temperature,
      bool drafts, di_replay_t replay)
{
    di_sched_t *s = open_sched(m, false, drafts, replay);

    submit(s, 0, prompt, n, temperature);
    run(s);
    di_sched_close(s);
    return answers[0];
}

static void
test_drafts(di_model_t *m, const int32_t *prompt)
{
    static const float temperatures[] = { 0, 0.8f, 1.5f };

    for (size_t i = 0; i < 3; i++) {
        answer_t plain = alone(m, prompt, 200, temperatures[i], false,
                                DI_REPLAY_OFF);
        answer_t drafted = alone(m, prompt, 200, temperatures[i], true,
                                 DI_REPLAY_OFF);

        check_same(&plain, &drafted);
        mode = DI_DRAFTS_AUTO;
        drafted = alone(m, prompt, 200, temperatures[i], true, DI_REPLAY_OFF);
        mode = DI_DRAFTS_ALL;
        check_same(&plain, &drafted);
    }
}

/* The answer begins a text of the grammar. */
static void
check_grammar(const answer_t *a)
{
    di_gram_t       *g = NULL;
    di_gram_match_t *m = NULL;
    const char      *bytes;
    size_t           len;

    CHECK_EQ_INT(di_gram_open(grammar, grammar_bytes, &g, NULL), DI_OK);
    CHECK_EQ_INT(di_gram_match_open(g, 0, &m), DI_OK);
    for (uint32_t i = 0; i < a->n; i++) {
        bytes = di_vocab_bytes(vocab, a->tokens[i], &len);
        CHECK_EQ_INT(di_gram_accept(m, bytes, len), DI_OK);
    }
    di_gram_match_close(m);
    di_gram_unref(g);
}

/* Drafts change nothing under a grammar either, with and without jumps; nor
 * does the company of others. */
static void
test_grammar(di_model_t *m, const int32_t *prompt)
{
    static const char   records[] = "(\\{\"name of it\": \"[a-z]{1,6}\", "
                                    "\"value\": [0-9]+\\}, )+";
    const di_gram_opts_t opts = { 0 };
    di_gram_err_t        err;
    di_sched_t          *s;
    answer_t             plain, drafted;

    CHECK_EQ_INT(di_vocab_open_path(V41_FP8, &vocab, NULL), DI_OK);
    CHECK_EQ_INT(di_gram_compile(DI_GRAM_REGEX, records, strlen(records),
                                 &opts, &grammar, &grammar_bytes, &err),
                 DI_OK);
    for (int i = 0; i < 4; i++) {
        float temperature = i < 2 ? 0 : 1.5f;

        jumps = i % 2 == 1;
        plain = alone(m, prompt, 200, temperature, false, DI_REPLAY_OFF);
        drafted = alone(m, prompt, 200, temperature, true, DI_REPLAY_OFF);
        check_same(&plain, &drafted);
        check_grammar(&plain);

        s = open_sched(m, true, true, DI_REPLAY_OFF);
        for (uint32_t k = 0; k < V41_SEQS; k++)
            submit(s, k, prompt, 200 + 60 * (k % 2), temperature);
        run(s);
        di_sched_close(s);
        check_same(&plain, &answers[0]);
        check_same(&plain, &answers[2]);
        check_same(&answers[1], &answers[3]);
    }
    free(grammar);
    grammar = NULL;
    grammar_bytes = 0;
    di_vocab_close(vocab);
    vocab = NULL;
}

/* A prompt again, one that shares 512 tokens of it, and others beside them. */
static void
test_prefix(di_model_t *m, const int32_t *prompt, bool drafts,
            di_replay_t replay)
{
    di_sched_t *s = open_sched(m, true, drafts, replay);
    answer_t    whole = alone(m, prompt, 700, 0, drafts, replay);
    answer_t    part = alone(m, prompt, 660, 0, drafts, replay);
    uint32_t    found = replay == DI_REPLAY_OFF ? 640 : 512;

    submit(s, 0, prompt, 700, 0);
    run(s);
    check_same(&answers[0], &whole);
    CHECK_EQ_INT(answers[0].cached, 0);

    submit(s, 1, prompt, 700, 0);
    submit(s, 2, prompt + 9, 300, 0);
    submit(s, 3, prompt, 660, 0);
    run(s);
    check_same(&answers[1], &whole);
    check_same(&answers[3], &part);
    /* With replay the state at 640 is too late for the kept tokens. */
    CHECK_EQ_INT(answers[1].cached, found);
    CHECK_EQ_INT(answers[3].cached, found);
    di_sched_close(s);
}

/* What answers a prompt of n tokens whose first `floor` have their block KV
 * and no windows. */
static answer_t
by_hand(di_model_t *m, const int32_t *prompt, uint32_t n, uint32_t floor)
{
    const uint32_t vocab = di_model_info(m)->vocab;
    answer_t       a = { .n = 0 };
    v41_seq_t      q;

    v41_seq_init(&q, 0, prompt, n);
    while (a.n < GEN) {
        const uint32_t end = q.done < floor ? floor : q.n;
        const uint32_t rows = end - q.done < 200 ? end - q.done : 200;
        di_model_seq_t part = v41_part(&q, rows, q.done + rows == q.n);
        const float   *x;

        part.keep_from = n - KEEP;
        x = v41_run(m, &part, 1);
        q.done += rows;
        if (q.done == floor)     /* another slot, another sequence's state  */
            q.number = 1, q.floor = floor;
        if (part.n_logits == 0)
            continue;
        for (uint32_t i = 1; i < vocab; i++)
            a.tokens[a.n] = x[i] > x[a.tokens[a.n]] ? (int32_t) i
                                                    : a.tokens[a.n];
        q.tokens[q.n++] = a.tokens[a.n++];
    }
    return a;
}

static uint64_t
prefilled(const di_sched_t *s)
{
    di_ipc_status_t status;

    di_sched_status(s, &status);
    return status.prefill_tokens;
}

/* No state is ever kept: a prefix is gone on with by computing its last window
 * again, a fixed number of tokens, and nobody finds what came of that. */
static void
test_lost(di_model_t *other, const int32_t *prompt, di_replay_t replay)
{
    /* Prompts, and where the tokens that are computed again begin: so that
     * the last KEEP are among them, and a window before new ones.  The first
     * leaves five blocks. */
    static const struct { uint32_t n, floor; } again[] = {
        { 700, 512 }, { 660, 512 }, { 645, 384 }, { 800, 512 }, { 800, 512 },
        { 900, 512 },
    };
    int32_t     longer[V41_LEN];
    di_model_t *m;
    di_sched_t *s;

    memcpy(longer, prompt, 700 * sizeof(int32_t));
    memcpy(longer + 700, prompt + 55, 300 * sizeof(int32_t));
    v41_states = V41_SEQS;
    m = v41_open(V41_FP8, DI_ARITH_AUTO, 256);
    v41_states = 0;
    s = open_sched(m, true, true, replay);
    submit(s, 0, longer, 700, 0);
    run(s);
    for (size_t i = 0; i < sizeof(again) / sizeof(again[0]); i++) {
        const uint32_t n = again[i].n;
        const uint64_t before = prefilled(s);

        submit(s, 1, longer, n, 0);
        run(s);
        if (replay == DI_REPLAY_OFF) {
            CHECK_EQ_INT(answers[1].cached, 0);
            continue;
        }
        CHECK_EQ_INT(answers[1].cached, again[i].floor);
        CHECK_EQ_INT(prefilled(s) - before, n - again[i].floor);
        answers[2] = answers[1];
        answers[3] = by_hand(other, longer, n, again[i].floor);
        check_same(&answers[2], &answers[3]);
    }
    di_sched_close(s);
    di_model_close(m);
}

int
main(void)
{
    json_t     *prompts = v41_golden("tiny-v41-fp8", "prompts");
    di_model_t *m = v41_open(V41_FP8, DI_ARITH_AUTO, 256);
    int32_t     prompt[V41_LEN];

    CHECK_EQ_INT(v41_prompt(prompts, "long", prompt), 700);
    test_drafts(m, prompt);
    test_grammar(m, prompt);
    test_prefix(m, prompt, false, DI_REPLAY_OFF);
    test_prefix(m, prompt, true, DI_REPLAY_OFF);
    test_prefix(m, prompt, true, DI_REPLAY_COMPACT);
    test_prefix(m, prompt, true, DI_REPLAY_MASK);
    test_lost(m, prompt, DI_REPLAY_OFF);
    test_lost(m, prompt, DI_REPLAY_COMPACT);
    test_lost(m, prompt, DI_REPLAY_MASK);
    di_model_close(m);
    json_decref(prompts);
    return check_done("v41_sched");
}
