/*
 * di_serve.h - the server loop of an engine: one model, one scheduler, one
 * channel.
 *
 * di_serve() opens the model, listens on a unix socket, and then turns the
 * channel's messages into scheduler calls and the scheduler's events into
 * completions, until SIGTERM or SIGINT has drained it.  It is the body of
 * `deepinfer-engine serve`; options are parsed by engine/cmd.
 */

#ifndef DI_SERVE_H
#define DI_SERVE_H

#include <stdbool.h>
#include <stdint.h>

#include "../tokenizer/di_err.h"
#include "di_sched.h"
#include "ipc/di_ipc.h"
#include "model/di_model.h"

typedef enum {
    DI_LOG_ERROR = 0,
    DI_LOG_WARN  = 1,
    DI_LOG_INFO  = 2,            /* the default: start, stop, connections   */
    DI_LOG_DEBUG = 3,            /* and each request                        */
} di_log_level_t;

typedef struct {
    const char      *model_path;
    const char      *listen;     /* socket's path, without "unix:"          */
    uint32_t         mode;       /* its permission bits, 0 = 0660           */
    bool             set_group;  /* give the socket file to `group`         */
    uint32_t         group;      /* gid                                     */
    uint32_t         spin_us;    /* look at the rings for so long before a
                                  * sleep                                   */
    uint32_t         role;       /* DI_ROLE_...                             */
    uint32_t         max_seqs;   /* running sequences                       */
    uint32_t         max_rows;   /* token budget of one step                */
    uint32_t         chunk;      /* prefill rows while streams decode, most */
    uint32_t         step_ms;    /* such a step's time, 0 = no target       */
    uint32_t         queue_max;  /* waiting requests, then QUEUE_FULL       */
    bool             prefix_cache;
    di_drafts_mode_t drafts;
    uint64_t         grammar_bytes;  /* see di_sched_conf_t                 */
    bool             jumps;          /* see there                           */
    di_replay_t      replay;     /* see di_sched_conf_t, and                */
    uint32_t         replay_keep;    /* this                                */
    di_log_level_t   log_level;  /* lines go to stderr                      */
    di_model_conf_t  model;      /* max_rows and max_seqs as above          */
} di_serve_conf_t;

/* Serve until drained by a signal.  The configuration is borrowed.  DI_OK
 * after a clean drain, or the error that kept it from starting or ended it
 * (err: one sentence for the user).  A second signal ends at once, which is
 * DI_OK too. */
int di_serve(const di_serve_conf_t *conf, di_err_t *err);

#endif
