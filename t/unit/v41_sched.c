/*
 * v41_sched.c - tiny-v41 under the scheduler: what the prefix cache, drafts,
 * other sequences and bounded replay may not change.
 */

#include "engine/di_sched.h"
#include "v41_model.h"

#define GEN 40                   /* tokens of an answer                     */

typedef struct {
    int32_t  tokens[GEN];
    uint32_t n;
    uint32_t cached;             /* prompt tokens found in the cache        */
    bool     over;
} answer_t;

static answer_t answers[V41_SEQS];

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
open_sched(di_model_t *m, bool cache, bool drafts, uint32_t keep)
{
    di_sched_conf_t conf = {
        .max_seqs = V41_SEQS, .max_rows = 256, .chunk = 100, .queue_max = 8,
        .prefix_cache = cache, .drafts = drafts, .replay_keep = keep,
        .sink = sink,
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
        .prompt = prompt, .n_prompt = n,
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
      bool drafts, uint32_t keep)
{
    di_sched_t *s = open_sched(m, false, drafts, keep);

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
        answer_t plain = alone(m, prompt, 200, temperatures[i], false, 0);
        answer_t drafted = alone(m, prompt, 200, temperatures[i], true, 0);

        check_same(&plain, &drafted);
    }
}

/* A prompt again, one that shares 512 tokens of it, and others beside them. */
static void
test_prefix(di_model_t *m, const int32_t *prompt, bool drafts, uint32_t keep)
{
    di_sched_t *s = open_sched(m, true, drafts, keep);
    answer_t    whole = alone(m, prompt, 700, 0, drafts, keep);
    answer_t    part = alone(m, prompt, 660, 0, drafts, keep);
    uint32_t    found = keep == 0 ? 640 : 512;

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

int
main(void)
{
    json_t     *prompts = v41_golden("tiny-v41-fp8", "prompts");
    di_model_t *m = v41_open(V41_FP8, DI_ARITH_AUTO, 256);
    int32_t     prompt[V41_LEN];

    CHECK_EQ_INT(v41_prompt(prompts, "long", prompt), 700);
    test_drafts(m, prompt);
    test_prefix(m, prompt, false, 0);
    test_prefix(m, prompt, true, 0);
    test_prefix(m, prompt, true, 140);
    di_model_close(m);
    json_decref(prompts);
    return check_done("v41_sched");
}
