/*
 * lines.c - `generate` and `score` over JSON lines, and `generate` on a
 * terminal.
 *
 * Lines are read as there is room for their jobs, `--batch` at a time;
 * answers leave in the order of the lines, so a finished job waits for those
 * before it.  A line that can't be answered gets {"error": "..."} in its
 * place, and makes the exit status 1 at the end.
 */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "di_run.h"

#define LINE_MAX_BYTES (256u << 20)

/* Float32 values survive nine decimal digits. */
#define JSON_FLAGS (JSON_COMPACT | JSON_REAL_PRECISION(9))

typedef int (*read_job_t)(di_run_t *run, di_job_t *job, const char *line,
                          size_t len);

typedef struct {
    di_run_t   *run;
    read_job_t  read;            /* line to job                             */
    FILE       *in;
    char       *line;            /* getline's buffer                        */
    size_t      line_cap;
    bool        eof;
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

static bool
is_blank(const char *line, ssize_t len)
{
    for (ssize_t i = 0; i < len; i++) {
        if (strchr(" \t\r\n", line[i]) == NULL || line[i] == '\0')
            return false;
    }
    return true;
}

/* Read the next line that isn't blank into a job; NULL at the end, or with
 * no memory (*rc). */
static di_job_t *
next_job(lines_t *l, int *rc)
{
    di_job_t *job;
    ssize_t   len;

    do {
        len = getline(&l->line, &l->line_cap, l->in);
        if (len < 0) {
            l->eof = true;
            *rc = ferror(l->in) ? DI_EIO : DI_OK;
            return NULL;
        }
    } while (is_blank(l->line, len));

    job = di_job_open();
    if (job == NULL) {
        *rc = DI_ENOMEM;
        return NULL;
    }
    if ((size_t) len > LINE_MAX_BYTES)
        (void) di_err_set(&job->err, DI_ELIMIT, 0, "the line has %zd bytes",
                          len);
    else
        (void) l->read(l->run, job, l->line, (size_t) len);
    *rc = DI_OK;
    return job;
}

/* Take lines until `batch` jobs run. */
static int
fill(lines_t *l, uint32_t batch)
{
    uint32_t running = 0;
    int      rc = DI_OK;

    for (di_job_t *j = l->head; j != NULL; j = j->next)
        running += !j->done;
    while (!l->eof && running < batch) {
        di_job_t *job = next_job(l, &rc);

        if (job == NULL)
            break;
        *l->tail = job;
        l->tail = &job->next;
        if (job->err.code != DI_OK)
            job->done = true;
        else
            di_run_submit(l->run, job);
        running += !job->done;
    }
    return rc;
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
        if (rc != DI_OK || (l->eof && l->head == NULL))
            return rc;
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
    l.in = strcmp(opts->lines, "-") == 0 ? stdin : fopen(opts->lines, "re");
    if (l.in == NULL)
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
    free(l.line);

done:
    if (l.in != stdin)
        (void) fclose(l.in);
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
