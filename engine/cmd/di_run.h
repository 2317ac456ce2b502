/*
 * di_run.h - offline generation: a model, its codec and a scheduler that run
 * jobs, without nginx and without the channel.
 *
 * A di_run_t is opened from the command line's options.  A di_job_t is one
 * request with its answer; the caller makes it, submits it, and steps the
 * run until it is done.  A job that can't be answered is done with an error.
 * Single-threaded: the caller's thread is the scheduler's.
 */

#ifndef DI_RUN_H
#define DI_RUN_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../../tokenizer/dialect/di_dialect.h"
#include "../../tokenizer/grammar/di_grammar.h"
#include "../di_sched.h"
#include "di_cmd.h"

typedef struct {
    const di_cmd_opts_t *opts;   /* kept                                    */
    di_model_t          *model;
    di_vocab_t          *vocab;
    di_tok_t            *tok;
    di_dialect_t        *dialect;    /* opened when a chat first needs it   */
    di_sched_t          *sched;
    di_cmd_progress_t    progress;
} di_run_t;

/* One choice's answer. */
typedef struct {
    int32_t *ids;                /* malloc'ed                               */
    size_t   n;
    size_t   cap;
    uint32_t reason;             /* di_finish_t; 0: still running           */
} di_choice_t;

typedef struct di_job_s di_job_t;

struct di_job_s {
    di_job_t          *next;     /* the caller's list                       */
    di_gen_request_t   req;      /* its lists are the four below            */
    int32_t           *prompt;
    di_logit_bias_t   *bias;
    int32_t           *stop_ids;
    void              *grammar;
    bool               scores;   /* gather `positions`                      */

    di_choice_t       *choices;  /* [req.params.n]                          */
    uint32_t           n_open;   /* choices that still run                  */
    json_t            *positions;    /* log-probabilities, in order         */
    bool               done;
    di_err_t           err;      /* code != DI_OK: no answer                */

    /* Called for new tokens as they come; may be NULL. */
    void             (*on_tokens)(void *arg, const int32_t *ids, size_t n);
    void              *on_tokens_arg;
};

/* Open model, vocabulary and scheduler.  DI_OK, or what failed in err. */
int di_run_open(const di_cmd_opts_t *opts, di_run_t *run, di_err_t *err);
void di_run_close(di_run_t *run);

/* A new job with default parameters, or NULL. */
di_job_t *di_job_open(void);
void di_job_close(di_job_t *job);

/* Parameters into a job from one line of JSON.  DI_OK, DI_ENOMEM, or
 * DI_EINVAL with the field named in job->err. */
int di_job_read_generate(di_run_t *run, di_job_t *job, const char *line,
                         size_t len);
int di_job_read_score(di_run_t *run, di_job_t *job, const char *line,
                      size_t len);

/* Compile the value of a field of that name: schema, regex, ebnf, choice.
 * *blob is owned, to be freed.  What is wrong with it is in err. */
int di_cmd_compile(const char *field, const json_t *value,
                   const di_gram_opts_t *opts, void **blob, size_t *bytes,
                   di_err_t *err);

/* A field of a line that di_job_set_grammar() reads; and the grammar that the
 * line asks for, if any, compiled. */
bool di_job_is_grammar(const char *field);
int di_job_set_grammar(di_job_t *job, const json_t *root);

/* The prompt: raw text (special tokens may be spelled in it, and the model's
 * own rule about a first token holds), or a conversation. */
int di_job_set_text(di_run_t *run, di_job_t *job, const char *text,
                    size_t len);
int di_job_set_conv(di_run_t *run, di_job_t *job, const di_conv_t *conv);

/* Hand a job to the scheduler; it may be done at once, refused. */
void di_run_submit(di_run_t *run, di_job_t *job);

/* One step.  DI_OK, or a fault that ends the run. */
int di_run_step(di_run_t *run);

/* The answer of a choice as text: valid UTF-8, without the token that ended
 * it.  *text is malloc'ed, returns owned. */
int di_run_text(const di_run_t *run, const di_choice_t *choice, char **text,
                size_t *len);

#endif
