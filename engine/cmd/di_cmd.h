/*
 * di_cmd.h - the commands of deepinfer-engine and their options.
 *
 * di_cmd_parse() turns a command line into a di_cmd_opts_t, by one table of
 * options (options.c); each command is a function from that to an exit
 * status.  Commands print results to stdout and everything else to stderr.
 */

#ifndef DI_CMD_H
#define DI_CMD_H

#include <stdbool.h>
#include <stdint.h>

#include "../di_serve.h"

#define DI_ENGINE_VERSION "0.1.0"

/* Exit statuses. */
enum { DI_EXIT_OK = 0, DI_EXIT_FAILED = 1, DI_EXIT_USAGE = 2 };

typedef enum {
    DI_CMD_SERVE = 0, DI_CMD_GENERATE, DI_CMD_SCORE, DI_CMD_BENCH,
    DI_CMD_INSPECT, DI_CMD_COUNT
} di_cmd_t;

typedef struct {
    di_cmd_t         command;
    di_serve_conf_t  engine;     /* model, limits; listen for serve only    */
    const char      *dialect;    /* NULL: by the model's chat template      */
    const char      *lines;      /* JSON lines: a path, "-", or NULL        */
    bool             json;       /* bench, inspect: print JSON              */
    bool             tensors;    /* inspect: list the tensors               */
    bool             verify;     /* inspect: read them                      */
    const char      *prompt;     /* generate: raw text                      */
    const char      *message;    /* generate: one user message              */
    const char      *system;     /* with `message`: the system prompt       */
    uint32_t         batch;      /* sequences at a time                     */
    di_gen_params_t  params;     /* generate: sampling from options         */
    bool             ignore_eos; /* generate, from options                  */
    uint32_t         prompt_tokens;      /* bench                           */
    uint32_t         gen_tokens;         /* bench                           */
    uint32_t         depth;              /* bench: KV filled before decoding*/
    const char      *schema;             /* bench: a file, or NULL          */
    uint32_t         repeat;             /* bench: the median is reported   */
} di_cmd_opts_t;

/* Parse a command line.  -1: run the command; otherwise the exit status (help
 * was printed, or an error with a hint).  Strings are borrowed from argv. */
int di_cmd_parse(int argc, char **argv, di_cmd_opts_t *opts);

int di_cmd_serve(const di_cmd_opts_t *opts);
int di_cmd_generate(const di_cmd_opts_t *opts);
int di_cmd_score(const di_cmd_opts_t *opts);
int di_cmd_bench(const di_cmd_opts_t *opts);
int di_cmd_inspect(const di_cmd_opts_t *opts);

/* Say "deepinfer-engine COMMAND: text" on stderr and return the status. */
int di_cmd_fail(const di_cmd_opts_t *opts, int status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Progress of slow openings, for di_model_conf_t: silent for the first
 * second, then one line that is redrawn on a terminal. */
typedef struct {
    uint64_t start_us;           /* CLOCK_MONOTONIC; 0: not started         */
    uint64_t shown_us;           /* when the last line was written          */
    bool     shown;              /* a line has to be ended                  */
} di_cmd_progress_t;

void di_cmd_progress(void *progress, const char *what, double part);
uint64_t di_cmd_now_us(void);

#endif
