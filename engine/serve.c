/*
 * serve.c - the server loop: channel in, scheduler, channel out.
 *
 * One turn takes the messages that came during the last step, makes a step,
 * publishes its events with one doorbell per worker, and looks at sockets and
 * signals; the loop sleeps only when the scheduler has nothing to do.  While
 * the device computes, this thread is one of its workers, so a message waits
 * for the end of the step in progress, and a cancelled or orphaned sequence
 * is gone before the next one.
 *
 * Events always find room: the scheduler leaves out sequences whose owner has
 * none, and the channel takes no message from a worker whose ring could not
 * hold the answer.
 *
 * SIGTERM and SIGINT are blocked before the model opens, since its threads
 * inherit the mask, and read from a signalfd.
 */

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#include "../tokenizer/vocab/di_vocab.h"
#include "di_sched.h"
#include "di_serve.h"

#define MESSAGES_MAX    1024     /* taken in one turn                       */
#define STATUS_US       100000   /* age of the status page at most          */

typedef struct {
    const di_serve_conf_t *conf;
    di_model_t            *model;
    di_vocab_t            *vocab;
    di_ipc_server_t       *server;
    di_sched_t            *sched;
    int                    signals;      /* signalfd, -1 = none             */
    uint32_t               n_signals;    /* received                        */
    uint32_t               n_conns;      /* as logged last                  */
    uint64_t               status_us;    /* when the page was written       */
} serve_t;


static uint64_t
now_us(void)
{
    struct timespec t;

    (void) clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t) t.tv_sec * 1000000 + (uint64_t) t.tv_nsec / 1000;
}


__attribute__((format(printf, 3, 4)))
static void
note(const serve_t *s, di_log_level_t level, const char *fmt, ...)
{
    static const char *const names[] = { "error", "warn", "info", "debug" };
    char                     line[512], stamp[32];
    struct tm                tm;
    time_t                   now;
    va_list                  ap;

    if (level > s->conf->log_level)
        return;
    now = time(NULL);
    (void) localtime_r(&now, &tm);
    (void) strftime(stamp, sizeof(stamp), "%Y/%m/%d %H:%M:%S", &tm);
    va_start(ap, fmt);
    (void) vsnprintf(line, sizeof(line), fmt, ap);
    va_end(ap);
    (void) fprintf(stderr, "%s [%s] %d: %s\n", stamp, names[level],
                   (int) getpid(), line);
}


/* ------------------------------------------------------------------- events */

static void
on_event(void *arg, uint32_t owner, const di_event_t *e,
         const di_top_logprob_t *top)
{
    serve_t *s = arg;

    if (di_ipc_server_send(s->server, owner, e, top) == DI_EAGAIN)
        note(s, DI_LOG_ERROR, "worker %u: no room for an event of request "
             "%" PRIu64, owner, e->id);

    if (e->type == DI_EV_STARTED)
        note(s, DI_LOG_DEBUG, "worker %u, request %" PRIu64 ": %u prompt "
             "tokens, %u from the cache, waited %u us", owner, e->id,
             e->u.started.prompt_tokens, e->u.started.cached_tokens,
             e->u.started.queue_us);
    else if (e->type == DI_EV_FINISH)
        note(s, DI_LOG_DEBUG, "worker %u, request %" PRIu64 ", choice %u: "
             "%u tokens, finish reason %u", owner, e->id, e->choice,
             e->u.finish.completion_tokens, e->u.finish.reason);
    else if (e->type == DI_EV_REJECT)
        note(s, DI_LOG_DEBUG, "worker %u, request %" PRIu64 ": rejected, "
             "reason %u, %.28s", owner, e->id, e->u.reject.reason,
             e->u.reject.text);
}


static uint32_t
room_of(void *arg, uint32_t owner)
{
    return di_ipc_server_room(((serve_t *) arg)->server, owner);
}


static void
take_message(serve_t *s, const di_ipc_msg_t *m)
{
    switch (m->type) {
    case DI_MSG_SUBMIT:
        if (di_sched_submit(s->sched, m->conn, m->id, &m->req) != DI_OK)
            note(s, DI_LOG_ERROR, "no memory for a request of %u tokens",
                 m->req.n_prompt);
        break;
    case DI_MSG_CANCEL:
        di_sched_cancel(s->sched, m->conn, m->id, m->choice);
        break;
    case DI_MSG_PAUSE:
    case DI_MSG_RESUME:
        di_sched_pause(s->sched, m->conn, m->id, m->type == DI_MSG_PAUSE);
        break;
    case DI_MSG_CLOSED:
        di_sched_drop_owner(s->sched, m->conn);
        break;
    }
}


static void
take_messages(serve_t *s)
{
    di_ipc_msg_t m;
    int          i;

    for (i = 0; i < MESSAGES_MAX; i++) {
        if (di_ipc_server_recv(s->server, &m) != DI_OK)
            return;
        take_message(s, &m);
    }
}


/* --------------------------------------------------------------------- loop */

static void
publish_status(serve_t *s, bool at_once)
{
    di_ipc_status_t st = { .role = s->conf->role };
    uint64_t        now = now_us();

    if (!at_once && now - s->status_us < STATUS_US)
        return;
    di_sched_status(s->sched, &st);
    st.updated_us = now;
    s->status_us = now;
    di_ipc_server_status(s->server, &st);
}


static void
take_signals(serve_t *s)
{
    struct signalfd_siginfo info;

    while (read(s->signals, &info, sizeof(info)) == (ssize_t) sizeof(info)) {
        if (s->n_signals++ != 0) {
            note(s, DI_LOG_WARN, "second signal: leaving at once");
            continue;
        }
        note(s, DI_LOG_INFO, "signal %u: draining", info.ssi_signo);
        di_sched_drain(s->sched);
        di_ipc_server_stop_listening(s->server);
        publish_status(s, true);
    }
}


static void
note_conns(serve_t *s)
{
    uint32_t n = di_ipc_server_conns(s->server);

    if (n != s->n_conns)
        note(s, DI_LOG_INFO, "%u workers are connected", n);
    s->n_conns = n;
}


/* Turns until a signal has drained the engine or a step failed. */
static int
loop(serve_t *s, di_err_t *err)
{
    int rc;

    for ( ;; ) {
        take_messages(s);
        rc = di_sched_step(s->sched);
        di_ipc_server_flush(s->server);
        publish_status(s, rc == DI_OK);
        if (rc != DI_OK && rc != DI_EAGAIN)
            return di_err_set(err, rc, 0, "the device failed in a step");

        if (di_ipc_server_wait(s->server, rc == DI_OK ? 0 : STATUS_US)
            != DI_OK)
            return di_err_set(err, DI_EIO, 0, "can't wait for workers: %s",
                              strerror(errno));
        take_signals(s);
        note_conns(s);
        if (s->n_signals > 1
            || (s->n_signals == 1 && di_sched_idle(s->sched)))
            return DI_OK;
    }
}


/* -------------------------------------------------------------------- start */

/* A connection takes four descriptors: have as many as we may. */
static void
raise_files(void)
{
    struct rlimit lim;

    if (getrlimit(RLIMIT_NOFILE, &lim) == 0 && lim.rlim_cur < lim.rlim_max) {
        lim.rlim_cur = lim.rlim_max;
        (void) setrlimit(RLIMIT_NOFILE, &lim);
    }
}


static int
open_signals(serve_t *s, di_err_t *err)
{
    sigset_t set;

    (void) signal(SIGPIPE, SIG_IGN);
    (void) sigemptyset(&set);
    (void) sigaddset(&set, SIGTERM);
    (void) sigaddset(&set, SIGINT);
    if (pthread_sigmask(SIG_BLOCK, &set, NULL) == 0)
        s->signals = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    if (s->signals < 0)
        return di_err_set(err, DI_EIO, 0, "can't receive signals: %s",
                          strerror(errno));
    return DI_OK;
}


static void
on_fault(void *arg, uint32_t owner, uint64_t id, const char *text)
{
    note(arg, DI_LOG_WARN, "worker %u, request %" PRIu64 ": %s", owner, id,
         text);
}


static int
open_sched(serve_t *s, di_err_t *err)
{
    const di_serve_conf_t *c = s->conf;
    di_sched_conf_t        conf = {
        .max_seqs = c->max_seqs, .max_rows = c->max_rows, .chunk = c->chunk,
        .step_us = c->step_ms * 1000,
        .queue_max = c->queue_max, .prefix_cache = c->prefix_cache,
        .replay = c->replay, .replay_keep = c->replay_keep,
        .drafts = c->drafts, .grammar_bytes = c->grammar_bytes,
        .sink = on_event, .room = room_of, .note = on_fault, .arg = s,
    };
    int rc;

    rc = di_vocab_open_path(c->model_path, &s->vocab, err);
    if (rc != DI_OK)
        return rc;
    conf.vocab = s->vocab;
    conf.jumps = c->jumps;
    conf.n_end_ids = di_vocab_end_ids(s->vocab, &conf.end_ids);
    return di_sched_open(s->model, &conf, &s->sched, err);
}


static int
open_server(serve_t *s, di_err_t *err)
{
    const di_model_info_t *info = di_model_info(s->model);
    di_ipc_server_conf_t   conf = {
        .mode = s->conf->mode, .set_group = s->conf->set_group,
        .group = s->conf->group, .spin_us = s->conf->spin_us,
        .welcome = { .vocab = info->vocab, .pid = (uint32_t) getpid(),
                     .max_model_len = info->max_model_len },
    };
    int rc;

    memcpy(conf.welcome.fingerprint, info->fingerprint,
           sizeof(conf.welcome.fingerprint));
    (void) snprintf(conf.welcome.model, sizeof(conf.welcome.model), "%s",
                    info->name);
    (void) snprintf(conf.welcome.arith, sizeof(conf.welcome.arith), "%s",
                    info->arith);

    rc = di_ipc_server_open(s->conf->listen, &conf, &s->server, err);
    if (rc == DI_OK && di_ipc_server_wake_fd(s->server, s->signals) != DI_OK)
        rc = di_err_set(err, DI_EIO, 0, "can't watch for signals: %s",
                        strerror(errno));
    return rc;
}


static int
start(serve_t *s, di_err_t *err)
{
    const di_model_info_t *info;
    int                    rc;

    if (s->conf->role != DI_ROLE_BOTH)
        return di_err_set(err, DI_EUNSUPPORTED, 0, "an engine of this "
                          "version prefills and decodes: the only role is "
                          "both");
    raise_files();
    rc = open_signals(s, err);
    if (rc == DI_OK)
        rc = di_model_open(s->conf->model_path, &s->conf->model, &s->model,
                           err);
    if (rc == DI_OK)
        rc = open_sched(s, err);
    if (rc == DI_OK)
        rc = open_server(s, err);
    if (rc != DI_OK)
        return rc;

    info = di_model_info(s->model);
    note(s, DI_LOG_INFO, "%s (%s), %u threads, %u KV blocks of %u tokens, "
         "at most %u tokens a sequence, listening on unix:%s", info->name,
         info->arith, info->n_threads, info->kv_blocks, info->block_tokens,
         info->max_model_len, s->conf->listen);
    publish_status(s, true);
    return DI_OK;
}


int
di_serve(const di_serve_conf_t *conf, di_err_t *err)
{
    serve_t s = { .conf = conf, .signals = -1 };
    int     rc;

    rc = start(&s, err);
    if (rc == DI_OK) {
        rc = loop(&s, err);
        note(&s, DI_LOG_INFO, "%s", rc == DI_OK ? "done" : "leaving");
    }

    if (s.server != NULL)
        di_ipc_server_close(s.server);
    di_sched_close(s.sched);
    di_vocab_close(s.vocab);
    if (s.model != NULL)
        di_model_close(s.model);
    if (s.signals >= 0)
        (void) close(s.signals);
    return rc;
}
