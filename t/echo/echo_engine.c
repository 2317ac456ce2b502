/*
 * echo_engine.c - an engine without a model, for tests and benchmarks.
 *
 *     echo-engine [serve] --listen unix:PATH --model PATH [options]
 *
 * PATH is a GGUF file, or a tokenizer.json or its folder: the vocabulary.
 *
 * It speaks the same channel as deepinfer-engine and behaves like it in all
 * that a worker can see: STARTED, tokens with log-probabilities, n choices,
 * stop ids, end tokens, max_tokens, min_tokens, ignore_eos (the answer starts
 * over), grammars (which only check here: an answer that breaks its own ends
 * with an error), cancel, pause, back-pressure by completion room, refusals, a
 * status page, SIGTERM draining.  What it answers stands in the prompt's last
 * user message: a script (script.h has the language) or the text to echo.
 *
 * Each turn of the loop is a step: every running choice that is due sends one
 * event, then all events are published together, as a real engine's step
 * does.  A request costs one allocation, its script two or three.
 *
 * One line per submit, cancel, pause, resume, finish, reject and closed
 * connection goes to standard error or --log FILE; tests read them.
 */

#include <errno.h>
#include <getopt.h>
#include <grp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#include "../../tokenizer/vocab/di_folder.h"
#include "echo.h"

/* With fullwidth bars. */
#define DEEPSEEK_USER      "<\xef\xbd\x9c" "User\xef\xbd\x9c>"
#define DEEPSEEK_ASSISTANT "<\xef\xbd\x9c" "Assistant\xef\xbd\x9c>"

#define MESSAGES_MAX 1024        /* taken between two steps                 */
#define STATUS_US    100000u     /* between status pages when idle          */
#define BLOCKS_TOTAL (1u << 20)  /* KV blocks told by the status page       */

uint64_t
echo_now_us(void)
{
    struct timespec t;

    (void) clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t) t.tv_sec * 1000000u + (uint64_t) t.tv_nsec / 1000u;
}

__attribute__((format(printf, 2, 3)))
void
echo_note(echo_t *e, const char *fmt, ...)
{
    va_list ap;

    if (e->log == NULL)
        return;

    va_start(ap, fmt);
    (void) vfprintf(e->log, fmt, ap);
    va_end(ap);
}

__attribute__((noreturn, format(printf, 1, 2)))
void
echo_fail(const char *fmt, ...)
{
    va_list ap;

    (void) fputs("echo-engine: ", stderr);
    va_start(ap, fmt);
    (void) vfprintf(stderr, fmt, ap);
    va_end(ap);
    (void) fputc('\n', stderr);
    exit(1);
}

/* -------------------------------------------------------------- messages -- */

static void
cancel(echo_t *e, const di_ipc_msg_t *msg)
{
    uint32_t i;
    req_t   *r = echo_find(e, msg->conn, msg->id);

    echo_note(e, "cancel conn=%u id=%llu choice=%d%s\n", msg->conn,
              (unsigned long long) msg->id, (int) msg->choice,
              r == NULL ? " (unknown)" : "");

    if (r == NULL)
        return;

    for (i = 0; i < r->params.n; i++) {
        if (!r->choice[i].over
            && (msg->choice == UINT32_MAX || msg->choice == i))
        {
            echo_finish(e, r, i, DI_FINISH_CANCEL, -1, r->choice[i].sent);
        }
    }

    if (r->n_over == r->params.n)
        echo_free_req(e, r);
}

static void
set_paused(echo_t *e, const di_ipc_msg_t *msg, bool paused)
{
    req_t *r = echo_find(e, msg->conn, msg->id);

    echo_note(e, "%s conn=%u id=%llu%s\n", paused ? "pause" : "resume",
              msg->conn, (unsigned long long) msg->id,
              r == NULL ? " (unknown)" : "");
    if (r != NULL)
        r->paused = paused;
}

static void
closed(echo_t *e, uint32_t conn)
{
    req_t   *r, *next;
    uint32_t n = 0;

    for (r = e->first; r != NULL; r = next) {
        next = r->next;
        if (r->conn == conn) {
            n += r->params.n - r->n_over;
            echo_free_req(e, r);
        }
    }

    echo_note(e, "closed conn=%u dropped=%u\n", conn, n);
}

static void
handle(echo_t *e, const di_ipc_msg_t *msg)
{
    switch (msg->type) {
    case DI_MSG_SUBMIT:
        echo_submit(e, msg);
        break;
    case DI_MSG_CANCEL:
        cancel(e, msg);
        break;
    case DI_MSG_PAUSE:
    case DI_MSG_RESUME:
        set_paused(e, msg, msg->type == DI_MSG_PAUSE);
        break;
    case DI_MSG_CLOSED:
        closed(e, msg->conn);
        break;
    }
}

static void
publish_status(echo_t *e)
{
    e->status.updated_us = echo_now_us();
    e->status.draining = e->draining;
    e->status.kv_blocks_free = e->status.kv_blocks_total
                               - e->status.kv_blocks_live;
    di_ipc_server_status(e->server, &e->status);
    e->status_changed = false;
}

static void
take_signals(echo_t *e, int fd)
{
    struct signalfd_siginfo info;

    while (read(fd, &info, sizeof(info)) == (ssize_t) sizeof(info)) {
        e->draining++;
        e->status_changed = true;
        di_ipc_server_stop_listening(e->server);
        echo_note(e, "draining\n");
    }
}

/* Serve until a signal, and then until the last request is over; a second
 * signal ends at once. */
static void
loop(echo_t *e, int signals)
{
    int          i;
    bool         sent;
    int64_t      timeout;
    uint64_t     due, now;
    di_ipc_msg_t msg;

    for ( ;; ) {
        for (i = 0; i < MESSAGES_MAX; i++) {
            if (di_ipc_server_recv(e->server, &msg) != DI_OK)
                break;
            handle(e, &msg);
        }

        sent = echo_step(e, &due);

        now = echo_now_us();
        if (e->status_changed || now - e->status.updated_us >= STATUS_US)
            publish_status(e);
        if (e->log != NULL)
            (void) fflush(e->log);
        if (e->draining > 1 || (e->draining && e->first == NULL))
            return;

        timeout = STATUS_US;
        if (sent) {
            timeout = 0;
        } else if (due < now + STATUS_US) {
            now = echo_now_us();
            timeout = due > now ? (int64_t) (due - now) : 0;
        }

        if (di_ipc_server_wait(e->server, timeout) != DI_OK)
            echo_fail("wait: %s", strerror(errno));

        take_signals(e, signals);
    }
}

/* ----------------------------------------------------------------- start -- */

static void
usage(void)
{
    (void) puts(
        "usage: echo-engine [serve] --listen unix:PATH --model PATH "
        "[options]\n"
        "  --name NAME          model name told to workers (echo)\n"
        "  --max-model-len N    (the file's)\n"
        "  --mode OCTAL         permission bits of the socket (0660)\n"
        "  --group NAME         group of the socket file\n"
        "  --spin US            spin before sleeping (0)\n"
        "  --script TEXT        played when a prompt has no script\n"
        "  --log FILE           instead of standard error\n"
        "  --quiet              log nothing (benchmarks)");
}

typedef struct {
    const char          *listen, *model, *script, *log;
    uint64_t             max_model_len;
    bool                 quiet;
    di_ipc_server_conf_t conf;
} options_t;

static uint64_t
parse_number(const char *name, const char *text, int base, uint64_t max)
{
    char    *end;
    uint64_t v;

    errno = 0;
    v = strtoull(text, &end, base);
    if (errno != 0 || end == text || *end != '\0' || v > max)
        echo_fail("--%s: \"%s\" is not a number up to %llu", name, text,
             (unsigned long long) max);
    return v;
}

static void
parse_group(options_t *o, const char *name)
{
    struct group *gr = getgrnam(name);

    if (gr == NULL)
        echo_fail("--group: there is no group \"%s\"", name);
    o->conf.set_group = true;
    o->conf.group = gr->gr_gid;
}

static void
parse_options(int argc, char **argv, options_t *o)
{
    int i, c;
    static const struct option options[] = {
        { "listen", required_argument, NULL, 'l' },
        { "model", required_argument, NULL, 'm' },
        { "name", required_argument, NULL, 'n' },
        { "max-model-len", required_argument, NULL, 'L' },
        { "mode", required_argument, NULL, 'M' },
        { "group", required_argument, NULL, 'g' },
        { "spin", required_argument, NULL, 's' },
        { "script", required_argument, NULL, 'S' },
        { "log", required_argument, NULL, 'o' },
        { "quiet", no_argument, NULL, 'q' },
        { "help", no_argument, NULL, 'h' },
        { NULL, 0, NULL, 0 },
    };

    (void) snprintf(o->conf.welcome.model, DI_IPC_NAME_MAX, "echo");

    while ((c = getopt_long(argc, argv, "", options, &i)) != -1) {
        switch (c) {
        case 'l': o->listen = optarg; break;
        case 'm': o->model = optarg; break;
        case 'S': o->script = optarg; break;
        case 'o': o->log = optarg; break;
        case 'q': o->quiet = true; break;
        case 'g': parse_group(o, optarg); break;
        case 'n':
            (void) snprintf(o->conf.welcome.model, DI_IPC_NAME_MAX, "%s",
                            optarg);
            break;
        case 'L':
            o->max_model_len = parse_number("max-model-len", optarg, 10,
                                            UINT32_MAX);
            break;
        case 'M':
            o->conf.mode = (uint32_t) parse_number("mode", optarg, 8, 0777);
            break;
        case 's':
            o->conf.spin_us = (uint32_t) parse_number("spin", optarg, 10,
                                                      1000000);
            break;
        case 'h':
            usage();
            exit(0);
        default:
            exit(2);
        }
    }

    /* "serve", as deepinfer-engine has it, may stand there. */
    if (optind < argc && strcmp(argv[optind], "serve") == 0)
        optind++;

    if (optind != argc || o->listen == NULL || o->model == NULL
        || strncmp(o->listen, "unix:", 5) != 0)
    {
        usage();
        exit(2);
    }
}

static int32_t
special(const echo_t *e, const char *spelling)
{
    return di_vocab_special(e->vocab, spelling, strlen(spelling));
}

static void
open_model(echo_t *e, options_t *o)
{
    uint64_t          v = 8192;
    di_err_t          err = { 0 };
    di_gguf_t        *gguf;
    const int32_t    *end_ids;
    di_ipc_welcome_t *w = &o->conf.welcome;

    if (di_vocab_open_path(o->model, &e->vocab, &err) != DI_OK)
        echo_fail("%s: %s", o->model, err.text);
    if (di_tok_open(e->vocab, &e->tok) != DI_OK)
        echo_fail("out of memory");

    /* Where there is more than a vocabulary, it is a model of its own. */
    if (di_gguf_open(o->model, &gguf, NULL) == DI_OK) {
        (void) di_gguf_u64(gguf, "llama.context_length", &v);
        di_gguf_fingerprint(gguf, w->fingerprint);
        di_gguf_close(gguf);
    } else {
        (void) di_folder_fingerprint(o->model, w->fingerprint, NULL);
    }

    if (o->max_model_len != 0 && o->max_model_len < v)
        v = o->max_model_len;
    if (v < 2)
        echo_fail("a model length of %llu leaves no room",
             (unsigned long long) v);
    e->max_model_len = (uint32_t) (v < INT32_MAX ? v : INT32_MAX);
    e->vocab_size = di_vocab_size(e->vocab);

    e->user = special(e, "<|im_start|>");
    e->close = e->im_end = special(e, "<|im_end|>");
    e->chatml = e->user >= 0;

    if (!e->chatml) {
        e->user = special(e, DEEPSEEK_USER);
        e->close = special(e, DEEPSEEK_ASSISTANT);
    }

    if (e->im_end < 0) {
        if (di_vocab_end_ids(e->vocab, &end_ids) == 0)
            echo_fail("%s: the vocabulary has no end token", o->model);
        e->im_end = end_ids[0];
    }

    (void) snprintf(w->arith, sizeof(w->arith), "echo");
    w->vocab = e->vocab_size;
    w->max_model_len = e->max_model_len;
    w->pid = (uint32_t) getpid();
}

int
main(int argc, char **argv)
{
    int           signals;
    sigset_t      set;
    di_err_t      err = { 0 };
    options_t     o = { 0 };
    static echo_t e;

    parse_options(argc, argv, &o);
    open_model(&e, &o);

    e.fallback = o.script;
    e.log = o.quiet ? NULL : stderr;
    if (o.log != NULL && !o.quiet && (e.log = fopen(o.log, "a")) == NULL)
        echo_fail("%s: %s", o.log, strerror(errno));
    if (e.log != NULL)
        (void) setvbuf(e.log, NULL, _IOFBF, 1 << 16);

    (void) signal(SIGPIPE, SIG_IGN);
    (void) sigemptyset(&set);
    (void) sigaddset(&set, SIGTERM);
    (void) sigaddset(&set, SIGINT);
    (void) sigprocmask(SIG_BLOCK, &set, NULL);
    signals = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);

    if (signals < 0
        || di_ipc_server_open(o.listen + 5, &o.conf, &e.server, &err) != DI_OK)
        echo_fail("%s", signals < 0 ? strerror(errno) : err.text);
    if (di_ipc_server_wake_fd(e.server, signals) != DI_OK)
        echo_fail("epoll: %s", strerror(errno));

    e.status.kv_blocks_total = BLOCKS_TOTAL;
    e.status.kv_block_tokens = ECHO_BLOCK_TOKENS;
    e.status.max_model_len = e.max_model_len;
    e.status.queue_max = UINT32_MAX;
    publish_status(&e);
    echo_note(&e, "listening on %s\n", o.listen);

    loop(&e, signals);

    di_ipc_server_close(e.server);
    di_gram_index_close(e.index);
    di_tok_close(e.tok);
    di_vocab_close(e.vocab);
    free(e.text);
    free(e.ids);
    if (e.log != NULL && e.log != stderr)
        (void) fclose(e.log);
    return 0;
}
