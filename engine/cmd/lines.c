/*
 * lines.c - `generate` and `score` over JSON lines, and `generate` on a
 * terminal.
 *
 * Lines are read as there is room for their jobs, `--batch` at a time;
 * answers leave in the order of the lines, so a finished job waits for those
 * before it.  A line that can't be answered gets {"error": "..."} in its
 * place, and makes the exit status 1 at the end.
 *
 * Input is waited for only while nothing runs, so that a program which
 * writes one line and reads its answer before the next is never kept waiting,
 * whatever the batch.
 */

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "di_run.h"

#define LINE_BYTES_MAX (64u << 20)
#define READ_BYTES     (64u << 10)

/* Float32 values survive nine decimal digits. */
#define JSON_FLAGS (JSON_COMPACT | JSON_REAL_PRECISION(9))

typedef int (*read_job_t)(di_run_t *run, di_job_t *job, const char *line,
                          size_t len);

typedef struct {
    int     fd;
    char   *data;                /* what was read and not yet taken         */
    size_t  at;                  /* of it, where the next line begins       */
    size_t  searched;            /* no newline before this                  */
    size_t  len;
    size_t  cap;
    bool    too_long;            /* the line is over the limit: skip it     */
    bool    eof;
} input_t;

typedef struct {
    di_run_t   *run;
    read_job_t  read;            /* line to job                             */
    input_t     in;
    di_job_t   *head;            /* jobs in the order of lines              */
    di_job_t  **tail;
    bool        failed;          /* a line was answered by an error         */
} lines_t;

/* --------------------------------------------------------------- answers -- */

static json_t *
choice_json(const di_run_t *run, const di_choice_t *c)
{
    json_t *o = json_object(), *ids = json_array();
    size_t  len;
    char   *text;
    int     bad = 0;

    for (size_t i = 0; i < c->n; i++)
        bad |= json_array_append_new(ids, json_integer(c->ids[i]));
    bad |= json_object_set_new(o, "ids", ids);
    if (di_run_text(run, c, &text, &len) == DI_OK) {
        bad |= json_object_set_new(o, "text", json_stringn(text, len));
        free(text);
    } else {
        bad = -1;
    }
    bad |= json_object_set_new(o, "finish_reason",
                               json_string(c->reason == DI_FINISH_LENGTH
                                           ? "length" : "stop"));
    if (bad == 0)
        return o;
    json_decref(o);
    return NULL;
}

static json_t *
error_json(const di_job_t *job)
{
    /* The text may cite bytes of the line that aren't UTF-8. */
    char text[sizeof(job->err.text)];

    for (size_t i = 0; i < sizeof(text); i++) {
        char c = job->err.text[i];

        text[i] = (c >= 0x20 && c < 0x7f) || c == '\0' ? c : '?';
    }
    return json_pack("{s:s}", "error", text);
}

static json_t *
answer_json(const di_run_t *run, const di_job_t *job)
{
    json_t *list;

    if (job->scores)
        return json_pack("{s:O}", "positions", job->positions);
    if (job->req.params.n == 1)
        return choice_json(run, &job->choices[0]);

    list = json_array();
    for (uint32_t i = 0; i < job->req.params.n; i++) {
        if (json_array_append_new(list, choice_json(run, &job->choices[i]))) {
            json_decref(list);
            return NULL;
        }
    }
    return json_pack("{s:o}", "choices", list);
}

/* Print one answer as a line.  DI_OK, DI_ENOMEM, DI_EIO. */
static int
print_answer(lines_t *l, di_job_t *job)
{
    json_t *o;
    int     bad;

    if (job->err.code != DI_OK) {
        l->failed = true;
        o = error_json(job);
    } else {
        o = answer_json(l->run, job);
    }
    if (o == NULL)
        return DI_ENOMEM;
    bad = json_dumpf(o, stdout, JSON_FLAGS);
    json_decref(o);
    return bad != 0 || putchar('\n') == EOF || fflush(stdout) == EOF
           ? DI_EIO : DI_OK;
}

/* ----------------------------------------------------------------- lines -- */

/* Read more of the input.  DI_OK also at its end; DI_EAGAIN: there is nothing
 * now, and we weren't to wait. */
static int
input_read(input_t *in, bool wait)
{
    struct pollfd p = { .fd = in->fd, .events = POLLIN };
    ssize_t       n;

    if (in->at > 0) {
        memmove(in->data, in->data + in->at, in->len - in->at);
        in->len -= in->at;
        in->searched -= in->at;
        in->at = 0;
    }
    if (in->cap - in->len < READ_BYTES) {
        size_t cap = 2 * in->cap + READ_BYTES;
        char  *grown = realloc(in->data, cap);

        if (grown == NULL)
            return DI_ENOMEM;
        in->data = grown;
        in->cap = cap;
    }

    n = poll(&p, 1, wait ? -1 : 0);
    if (n == 0 || (n < 0 && errno == EINTR))
        return DI_EAGAIN;
    n = n < 0 ? n : read(in->fd, in->data + in->len, in->cap - in->len);
    if (n < 0)
        return errno == EINTR || errno == EAGAIN ? DI_EAGAIN : DI_EIO;
    in->len += (size_t) n;
    in->eof = n == 0;
    return DI_OK;
}

/* The next line, without its newline; the last one may have none.  It stays
 * until the next call.  A line over the limit is *line NULL.  DI_OK,
 * DI_EAGAIN (not now), DI_ECLOSED (no more), DI_ENOMEM, DI_EIO. */
static int
input_line(input_t *in, bool wait, const char **line, size_t *len)
{
    for ( ;; ) {
        char *end = NULL;
        int   rc;

        if (in->len > in->searched)
            end = memchr(in->data + in->searched, '\n',
                         in->len - in->searched);
        if (end != NULL || (in->eof && in->at < in->len)) {
            *len = (end != NULL ? (size_t) (end - in->data) : in->len)
                   - in->at;
            *line = in->too_long || *len > LINE_BYTES_MAX
                    ? NULL : in->data + in->at;
            in->too_long = false;
            in->at += *len + (end != NULL);
            in->searched = in->at;
            return DI_OK;
        }
        if (in->eof)
            return DI_ECLOSED;

        in->searched = in->len;
        if (in->len - in->at > LINE_BYTES_MAX) {
            in->too_long = true;
            in->at = in->len - 1;        /* a byte stays: the line does     */
        }
        rc = input_read(in, wait);
        if (rc != DI_OK && (rc != DI_EAGAIN || !wait))
            return rc;
    }
}

static bool
is_blank(const char *line, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (line[i] != ' ' && line[i] != '\t' && line[i] != '\r')
            return false;
    }
    return true;
}

/* Read the next line that isn't blank into a job.  Codes as input_line(). */
static int
next_job(lines_t *l, bool wait, di_job_t **job)
{
    const char *line;
    size_t      len;

    do {
        int rc = input_line(&l->in, wait, &line, &len);

        if (rc != DI_OK)
            return rc;
    } while (line != NULL && is_blank(line, len));

    *job = di_job_open();
    if (*job == NULL)
        return DI_ENOMEM;
    if (line == NULL)
        (void) di_err_set(&(*job)->err, DI_ELIMIT, 0, "the line has more "
                          "than %u bytes", LINE_BYTES_MAX);
    else
        (void) l->read(l->run, *job, line, len);
    return DI_OK;
}

/* Take lines until `batch` jobs run. */
static int
fill(lines_t *l, uint32_t batch)
{
    uint32_t running = 0;

    for (di_job_t *j = l->head; j != NULL; j = j->next)
        running += !j->done;
    while (running < batch) {
        di_job_t *job;
        int       rc = next_job(l, l->head == NULL, &job);

        if (rc != DI_OK)
            return rc == DI_EAGAIN || rc == DI_ECLOSED ? DI_OK : rc;
        *l->tail = job;
        l->tail = &job->next;
        if (job->err.code != DI_OK)
            job->done = true;
        else
            di_run_submit(l->run, job);
        running += !job->done;
        if (job->done && job == l->head)
            break;               /* it can be answered at once              */
    }
    return DI_OK;
}

/* Print what is finished at the head of the list. */
static int
drain(lines_t *l)
{
    while (l->head != NULL && l->head->done) {
        di_job_t *job = l->head;
        int       rc = print_answer(l, job);

        if (rc != DI_OK)
            return rc;
        l->head = job->next;
        if (l->head == NULL)
            l->tail = &l->head;
        di_job_close(job);
    }
    return DI_OK;
}

static int
run_lines(lines_t *l, uint32_t batch)
{
    int rc;

    for ( ;; ) {
        rc = fill(l, batch);
        if (rc == DI_OK)
            rc = drain(l);
        if (rc != DI_OK)
            return rc;
        if (l->head == NULL && l->in.eof && l->in.at == l->in.len)
            return DI_OK;
        if (l->head != NULL) {
            rc = di_run_step(l->run);
            if (rc != DI_OK)
                return rc;
        }
    }
}

static const char *
fault(int rc)
{
    switch (rc) {
    case DI_ENOMEM:
        return "out of memory";
    case DI_EIO:
        return "input or output failed";
    default:
        return "the engine stopped";
    }
}

static int
with_lines(const di_cmd_opts_t *opts, read_job_t read)
{
    di_run_t run;
    lines_t  l = { .run = &run, .read = read };
    di_err_t err = { 0 };
    int      rc, status;

    l.tail = &l.head;
    l.in.fd = strcmp(opts->lines, "-") == 0
              ? STDIN_FILENO : open(opts->lines, O_RDONLY | O_CLOEXEC);
    if (l.in.fd < 0)
        return di_cmd_fail(opts, DI_EXIT_FAILED, "%s: %s", opts->lines,
                           strerror(errno));
    if (di_run_open(opts, &run, &err) != DI_OK) {
        status = di_cmd_fail(opts, DI_EXIT_FAILED, "%s", err.text);
        goto done;
    }

    rc = run_lines(&l, opts->batch);
    status = l.failed ? DI_EXIT_FAILED : DI_EXIT_OK;
    if (rc != DI_OK)
        status = di_cmd_fail(opts, DI_EXIT_FAILED, "%s", fault(rc));
    di_run_close(&run);
    while (l.head != NULL) {
        di_job_t *next = l.head->next;

        di_job_close(l.head);
        l.head = next;
    }
    free(l.in.data);

done:
    if (l.in.fd != STDIN_FILENO)
        (void) close(l.in.fd);
    return status;
}

int
di_cmd_score(const di_cmd_opts_t *opts)
{
    return with_lines(opts, di_job_read_score);
}

/* -------------------------------------------------------------- terminal -- */

/* Tokens go out as raw bytes: a character that is split over two tokens is
 * whole again in the stream. */
static void
show_tokens(void *arg, const int32_t *ids, size_t n)
{
    const di_run_t *run = arg;

    for (size_t i = 0; i < n; i++) {
        size_t      len;
        const char *text = di_vocab_bytes(run->vocab, ids[i], &len);

        if (di_vocab_is_end(run->vocab, ids[i]) && !run->opts->ignore_eos)
            continue;
        (void) fwrite(text, 1, len, stdout);
    }
    (void) fflush(stdout);
}

static int
set_terminal_prompt(di_run_t *run, di_job_t *job)
{
    const di_cmd_opts_t *o = run->opts;
    di_msg_t             msgs[2] = { 0 };
    di_conv_t            conv = { .msgs = msgs, .open_assistant = true };

    if (o->prompt != NULL)
        return di_job_set_text(run, job, o->prompt, strlen(o->prompt));
    if (o->system != NULL) {
        msgs[conv.n_msgs].role = DI_ROLE_SYSTEM;
        msgs[conv.n_msgs++].content = (di_str_t) { o->system,
                                                   strlen(o->system) };
    }
    msgs[conv.n_msgs].role = DI_ROLE_USER;
    msgs[conv.n_msgs++].content = (di_str_t) { o->message,
                                               strlen(o->message) };
    return di_job_set_conv(run, job, &conv);
}

static int
on_terminal(const di_cmd_opts_t *opts)
{
    di_run_t  run;
    di_err_t  err = { 0 };
    di_job_t *job = di_job_open();
    int       rc = DI_OK, status = DI_EXIT_OK;

    if (job == NULL)
        return di_cmd_fail(opts, DI_EXIT_FAILED, "out of memory");
    if (di_run_open(opts, &run, &err) != DI_OK) {
        di_job_close(job);
        return di_cmd_fail(opts, DI_EXIT_FAILED, "%s", err.text);
    }

    job->req.params = opts->params;
    job->on_tokens = show_tokens;
    job->on_tokens_arg = &run;
    if (set_terminal_prompt(&run, job) == DI_OK
        && di_gen_request_check(&job->req, &job->err) == DI_OK) {
        di_run_submit(&run, job);
        while (rc == DI_OK && !job->done)
            rc = di_run_step(&run);
    }

    if (putchar('\n') == EOF || fflush(stdout) == EOF)
        rc = DI_EIO;
    if (rc != DI_OK)
        status = di_cmd_fail(opts, DI_EXIT_FAILED, "%s", fault(rc));
    else if (job->err.code != DI_OK)
        status = di_cmd_fail(opts, DI_EXIT_FAILED, "%s", job->err.text);
    di_run_close(&run);
    di_job_close(job);
    return status;
}

int
di_cmd_generate(const di_cmd_opts_t *opts)
{
    return opts->lines != NULL ? with_lines(opts, di_job_read_generate)
                               : on_terminal(opts);
}
