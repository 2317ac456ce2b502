/*
 * http_load.c - load for Chat Completions servers: what a client sees.
 *
 * One thread, epoll, HTTP/1.1 with keep-alive.  `clients` connections each
 * keep one request in flight until `requests` are done.  "@@N@@" in the body
 * is replaced by the request's number, so that prompts can be made different
 * (cold) or left the same (prefix hit).  Works on any server that speaks the
 * API, streaming or not, so that ours and its peers are measured by the same
 * program.
 *
 * A server may close a connection after an answer without saying so
 * (llama-server does after each stream): a request that met that is sent
 * again on a new one.
 *
 * Time to first token is the first event with content; gaps are between
 * arrivals of events with content.  The response is parsed as it comes and
 * never kept.  One JSON line of figures is printed.
 */

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define LINE_BYTES  (1u << 16)
#define MARK        "@@N@@"

typedef struct {
    double *v;
    size_t  n, cap;
} samples_t;

typedef enum { ST_HEADERS, ST_CHUNK_SIZE, ST_CHUNK, ST_CHUNK_END, ST_TRAILER,
               ST_LENGTH, ST_UNTIL_CLOSE } state_t;

typedef struct {
    int      fd;              /* -1: not connected                          */
    state_t  state;
    int      status;
    bool     chunked, close, sse;
    long     left;            /* bytes of the chunk or body to come, or -1  */
    char    *line;            /* [LINE_BYTES] the line being gathered       */
    size_t   n_line;
    char    *out;             /* request being sent                         */
    size_t   n_out, sent;
    double   start_ms, first_ms, last_ms;
    bool     busy;
    bool     used;            /* there was an answer on this connection     */
} conn_t;

typedef struct {
    const char *host, *path;
    int         port, ep;
    char       *body;
    long        n_requests, started, done, errors, seed;
    long        events, usage_tokens;
    samples_t   ttft, gap, latency;
} load_t;

static double
now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double) t.tv_sec * 1e3 + (double) t.tv_nsec * 1e-6;
}

static void *
must(void *p)
{
    if (p == NULL) {
        perror("http_load");
        exit(1);
    }
    return p;
}

static void
sample(samples_t *s, double v)
{
    if (s->n == s->cap) {
        s->cap = s->cap ? 2 * s->cap : 1024;
        s->v = must(realloc(s->v, s->cap * sizeof(double)));
    }
    s->v[s->n++] = v;
}

static int
by_value(const void *a, const void *b)
{
    double x = *(const double *) a, y = *(const double *) b;

    return (x > y) - (x < y);
}

static double
percentile(samples_t *s, double p)
{
    if (s->n == 0)
        return 0;
    qsort(s->v, s->n, sizeof(double), by_value);
    return s->v[(size_t) (p * (double) (s->n - 1) + 0.5)];
}

static int
dial(const load_t *l)
{
    struct sockaddr_in a = { .sin_family = AF_INET,
                             .sin_port = htons((uint16_t) l->port) };
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0 || inet_pton(AF_INET, l->host, &a.sin_addr) != 1
        || connect(fd, (struct sockaddr *) &a, sizeof(a)) < 0)
    {
        perror("http_load: connect");
        exit(1);
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

static void
watch(load_t *l, conn_t *c, int op)
{
    struct epoll_event e = { .data.ptr = c };

    e.events = EPOLLIN | (c->sent < c->n_out ? EPOLLOUT : 0);
    if (epoll_ctl(l->ep, op, c->fd, &e) < 0) {
        perror("http_load: epoll_ctl");
        exit(1);
    }
}

static void
open_conn(load_t *l, conn_t *c)
{
    c->fd = dial(l);
    c->used = false;
    watch(l, c, EPOLL_CTL_ADD);
}

static void
send_some(load_t *l, conn_t *c)
{
    while (c->sent < c->n_out) {
        ssize_t n = send(c->fd, c->out + c->sent, c->n_out - c->sent,
                         MSG_NOSIGNAL);
        if (n < 0)
            break;
        c->sent += (size_t) n;
    }
    watch(l, c, EPOLL_CTL_MOD);
}

/* The body with every mark replaced by the request's number; a mark is no
 * shorter than what replaces it may grow by, so twice the body is enough. */
static size_t
fill_body(const load_t *l, long number, char *dst)
{
    size_t n = 0;
    const char *p = l->body, *q;

    while ((q = strstr(p, MARK)) != NULL) {
        memcpy(dst + n, p, (size_t) (q - p));
        n += (size_t) (q - p);
        n += (size_t) sprintf(dst + n, "%07ld", number);
        p = q + strlen(MARK);
    }
    memcpy(dst + n, p, strlen(p));
    return n + strlen(p);
}

static void
begin(load_t *l, conn_t *c)
{
    char *body;
    size_t n_body;

    c->busy = false;
    if (l->started == l->n_requests) {
        if (c->fd >= 0)
            close(c->fd);
        c->fd = -1;
        return;
    }

    body = must(malloc(2 * strlen(l->body) + 64));
    n_body = fill_body(l, l->seed + l->started++, body);
    free(c->out);
    c->out = must(malloc(n_body + 1024));
    c->n_out = (size_t) snprintf(c->out, 1024, "POST %s HTTP/1.1\r\n"
                                 "Host: %s:%d\r\n"
                                 "Content-Type: application/json\r\n"
                                 "Content-Length: %zu\r\n\r\n",
                                 l->path, l->host, l->port, n_body);
    memcpy(c->out + c->n_out, body, n_body);
    c->n_out += n_body;
    free(body);

    c->sent = 0;
    c->state = ST_HEADERS;
    c->status = 0;
    c->chunked = c->close = c->sse = false;
    c->left = -1;
    c->n_line = 0;
    c->first_ms = c->last_ms = 0;
    c->busy = true;
    c->start_ms = now_ms();
    if (c->fd < 0)
        open_conn(l, c);
    send_some(l, c);
}

static void
finish(load_t *l, conn_t *c, bool failed)
{
    double t = now_ms();

    l->done++;
    if (failed || c->status != 200) {
        l->errors++;
        c->close = true;
    } else {
        if (c->first_ms > 0)
            sample(&l->ttft, c->first_ms - c->start_ms);
        sample(&l->latency, t - c->start_ms);
    }
    c->used = true;
    if (c->close) {
        close(c->fd);
        c->fd = -1;
    }
    begin(l, c);
}

static void
header_line(conn_t *c)
{
    char *s = c->line;

    if (c->status == 0)
        (void) sscanf(s, "HTTP/1.%*d %d", &c->status);
    else if (strncasecmp(s, "content-length:", 15) == 0)
        c->left = strtol(s + 15, NULL, 10);
    else if (strncasecmp(s, "transfer-encoding:", 18) == 0)
        c->chunked = strstr(s, "chunked") != NULL;
    else if (strncasecmp(s, "content-type:", 13) == 0)
        c->sse = strstr(s, "text/event-stream") != NULL;
    else if (strncasecmp(s, "connection:", 11) == 0)
        c->close = strcasestr(s + 11, "close") != NULL;
}

/* One line of the body.  Content is told by its key, so that role chunks and
 * usage do not count as tokens. */
static void
body_line(load_t *l, conn_t *c)
{
    char *usage = strstr(c->line, "\"completion_tokens\":"), *text;
    double t;

    if (usage != NULL)
        l->usage_tokens += strtol(usage + 20, NULL, 10);
    if (!c->sse || strncmp(c->line, "data: {", 7) != 0)
        return;
    text = strstr(c->line, "\"content\":\"");
    if (text == NULL || text[11] == '"')
        return;

    t = now_ms();
    if (c->first_ms == 0)
        c->first_ms = t;
    else
        sample(&l->gap, t - c->last_ms);
    c->last_ms = t;
    l->events++;
}

static void
body_bytes(load_t *l, conn_t *c, const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (p[i] == '\n') {
            c->line[c->n_line] = '\0';
            body_line(l, c);
            c->n_line = 0;
        } else if (c->n_line < LINE_BYTES - 1) {
            c->line[c->n_line++] = p[i];
        }
    }
}

/* Gather a CRLF line; true when it is complete. */
static bool
gather(conn_t *c, char ch)
{
    if (ch != '\n') {
        if (ch != '\r' && c->n_line < LINE_BYTES - 1)
            c->line[c->n_line++] = ch;
        return false;
    }
    c->line[c->n_line] = '\0';
    c->n_line = 0;
    return true;
}

static void
body_end(load_t *l, conn_t *c)
{
    c->line[c->n_line] = '\0';
    if (c->n_line > 0)
        body_line(l, c);
    finish(l, c, false);
}

static void
headers_end(load_t *l, conn_t *c)
{
    if (c->chunked)
        c->state = ST_CHUNK_SIZE;
    else if (c->left < 0)
        c->state = ST_UNTIL_CLOSE;
    else if (c->left > 0)
        c->state = ST_LENGTH;
    else
        finish(l, c, false);
}

/* Body bytes in one of the three framings; returns how many were taken. */
static size_t
receive_body(load_t *l, conn_t *c, const char *p, size_t n)
{
    if (c->state != ST_UNTIL_CLOSE && n > (size_t) c->left)
        n = (size_t) c->left;
    body_bytes(l, c, p, n);
    if (c->state == ST_UNTIL_CLOSE)
        return n;

    c->left -= (long) n;
    if (c->left == 0 && c->state == ST_LENGTH)
        body_end(l, c);
    else if (c->left == 0)
        c->state = ST_CHUNK_END;
    return n;
}

static void
chunk_size(conn_t *c, char ch)
{
    int digit = ch <= '9' ? ch - '0' : (ch | 32) - 'a' + 10;

    if (ch == '\n')
        c->state = c->left > 0 ? ST_CHUNK : ST_TRAILER;
    else if (ch != '\r')
        c->left = (c->left < 0 ? 0 : c->left) * 16 + digit;
}

static void
receive(load_t *l, conn_t *c, const char *p, size_t n)
{
    const char *end = p + n;

    while (p < end && c->busy) {
        switch (c->state) {
        case ST_HEADERS:
            if (!gather(c, *p++))
                break;
            if (c->line[0] != '\0')
                header_line(c);
            else if (c->status == 100)
                c->status = 0;
            else
                headers_end(l, c);
            break;
        case ST_CHUNK_SIZE:
            chunk_size(c, *p++);
            break;
        case ST_CHUNK:
        case ST_LENGTH:
        case ST_UNTIL_CLOSE:
            p += receive_body(l, c, p, (size_t) (end - p));
            break;
        case ST_CHUNK_END:
            if (*p++ == '\n') {
                c->state = ST_CHUNK_SIZE;
                c->left = -1;
            }
            break;
        case ST_TRAILER:
            if (*p++ == '\n')
                body_end(l, c);
            break;
        }
    }
}

/* The server had closed the connection before the request came: its time
 * goes on. */
static void
send_again(load_t *l, conn_t *c)
{
    close(c->fd);
    open_conn(l, c);
    c->sent = 0;
    send_some(l, c);
}

static void
readable(load_t *l, conn_t *c)
{
    char buf[65536];
    ssize_t n = recv(c->fd, buf, sizeof(buf), 0);
    bool fresh = c->state == ST_HEADERS && c->status == 0 && c->n_line == 0;

    if (n > 0) {
        receive(l, c, buf, (size_t) n);
    } else if (c->used && fresh
               && (n == 0 || errno == ECONNRESET || errno == EPIPE))
    {
        send_again(l, c);
    } else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
        bool good = n == 0 && c->state == ST_UNTIL_CLOSE;
        c->close = true;
        finish(l, c, !good);
    }
}

static char *
read_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    char *s;
    long n;

    if (f == NULL || fseek(f, 0, SEEK_END) < 0 || (n = ftell(f)) < 0) {
        perror(path);
        exit(1);
    }
    rewind(f);
    s = must(malloc((size_t) n + 1));
    if (fread(s, 1, (size_t) n, f) != (size_t) n) {
        perror(path);
        exit(1);
    }
    s[n] = '\0';
    fclose(f);
    return s;
}

static void
report(load_t *l, int clients, double wall_ms)
{
    long tokens = l->usage_tokens > 0 ? l->usage_tokens : l->events;

    printf("{\"clients\":%d,\"requests\":%ld,\"errors\":%ld,\"wall_s\":%.3f,"
           "\"tokens\":%ld,\"tokens_s\":%.1f,\"events\":%ld,"
           "\"ttft_p50_ms\":%.2f,\"ttft_p99_ms\":%.2f,\"gap_p50_ms\":%.2f,"
           "\"gap_p99_ms\":%.2f,\"latency_p50_ms\":%.3f,"
           "\"latency_p99_ms\":%.3f,\"requests_s\":%.1f}\n",
           clients, l->done, l->errors, wall_ms * 1e-3, tokens,
           (double) tokens / wall_ms * 1e3, l->events,
           percentile(&l->ttft, 0.5), percentile(&l->ttft, 0.99),
           percentile(&l->gap, 0.5), percentile(&l->gap, 0.99),
           percentile(&l->latency, 0.5), percentile(&l->latency, 0.99),
           (double) l->done / wall_ms * 1e3);
}

static int
run(load_t *l, int clients)
{
    conn_t *conns = must(calloc((size_t) clients, sizeof(conn_t)));
    double start = now_ms();
    struct epoll_event e[64];

    for (int i = 0; i < clients; i++) {
        conns[i].fd = -1;
        conns[i].line = must(malloc(LINE_BYTES));
        begin(l, &conns[i]);
    }
    while (l->done < l->n_requests) {
        int n = epoll_wait(l->ep, e, 64, 120000);

        if (n == 0) {
            fprintf(stderr, "http_load: nothing came for 2 minutes\n");
            return 1;
        }
        for (int i = 0; i < n; i++) {
            conn_t *c = e[i].data.ptr;
            if (c->busy && (e[i].events & EPOLLOUT))
                send_some(l, c);
            if (c->busy && (e[i].events & ~(uint32_t) EPOLLOUT))
                readable(l, c);
        }
    }
    report(l, clients, now_ms() - start);
    return l->errors > 0;
}

int
main(int argc, char **argv)
{
    load_t l = { .n_requests = 1 };
    int opt, clients = 1;

    while ((opt = getopt(argc, argv, "c:n:k:")) != -1) {
        if (opt == 'c')
            clients = atoi(optarg);
        else if (opt == 'n')
            l.n_requests = atol(optarg);
        else if (opt == 'k')
            l.seed = atol(optarg);
        else
            return 2;
    }
    if (argc - optind != 4 || clients < 1) {
        fprintf(stderr, "usage: http_load [-c CLIENTS] [-n REQUESTS] "
                "[-k FIRST_NUMBER] IPV4 PORT PATH BODY_FILE\n");
        return 2;
    }
    l.host = argv[optind];
    l.port = atoi(argv[optind + 1]);
    l.path = argv[optind + 2];
    l.body = read_file(argv[optind + 3]);
    l.ep = epoll_create1(EPOLL_CLOEXEC);
    if (l.ep < 0) {
        perror("http_load: epoll_create1");
        return 1;
    }
    return run(&l, clients);
}
