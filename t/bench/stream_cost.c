/*
 * stream_cost.c - CPU time of an event in a server that does nothing but
 * stream: what an event loop pays at the very least.
 *
 * usage: stream_cost PORT STREAMS STEPS STEP_US
 *
 * Accepts that many connections on 127.0.0.1, answers each one's request with
 * the headers of a stream, then waits for a pipe that another process writes
 * to every STEP_US, and at each sends one event, a chunk of 225 bytes as Chat
 * Completions has them, to every stream.  Other than write_cost it learns of
 * the event as a server does, and has http_load for a reader, which takes
 * longer over an event, so that it has to be woken more or less often.
 * Prints microseconds of CPU per event.
 */

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cpu_time.h"

#define STREAMS_MAX 1000

static const char headers[] =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    "Transfer-Encoding: chunked\r\n\r\n";

static const char event[] =
    "db\r\n"
    "data: {\"id\":\"chatcmpl-00112233445566778899aabbccddeeff\","
    "\"object\":\"chat.completion.chunk\",\"created\":1700000000,"
    "\"model\":\"default\",\"choices\":[{\"index\":0,\"delta\":{\"content\":"
    "\"hello\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n"
    "\r\n";

static const char last[] = "0\r\n\r\n";

static void
die(const char *what)
{
    perror(what);
    exit(1);
}

static void
send_all(const int *fds, long n, const char *data, size_t len)
{
    for (long i = 0; i < n; i++) {
        if (write(fds[i], data, len) != (ssize_t) len)
            die("write");
    }
}

static void
accept_all(uint16_t port, int *fds, long n)
{
    struct sockaddr_in addr = { .sin_family = AF_INET,
                                .sin_port = htons(port) };
    int  l = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    char request[65536];

    addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(l, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (l < 0 || bind(l, (struct sockaddr *) &addr, sizeof(addr)) < 0
        || listen(l, STREAMS_MAX) < 0)
        die("listen");

    for (long i = 0; i < n; i++) {
        fds[i] = accept(l, NULL, NULL);
        if (fds[i] < 0 || read(fds[i], request, sizeof(request)) <= 0)
            die("accept");
        setsockopt(fds[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
        fcntl(fds[i], F_SETFL, O_NONBLOCK);
    }
    close(l);
}

/* A process that rings every so often, until it is killed. */
static pid_t
start_ringing(int fd, long step_us)
{
    struct timespec pause = { .tv_sec = step_us / 1000000,
                              .tv_nsec = step_us % 1000000 * 1000 };
    pid_t pid = fork();

    if (pid < 0)
        die("fork");
    while (pid == 0) {
        nanosleep(&pause, NULL);
        if (write(fd, "", 1) != 1)
            _exit(1);
    }
    return pid;
}

static void
stream(const int *fds, long n, long steps, int bell)
{
    struct epoll_event e = { .events = EPOLLIN | EPOLLET }, got;
    int  ep = epoll_create1(EPOLL_CLOEXEC);
    char bells[64];

    if (ep < 0 || epoll_ctl(ep, EPOLL_CTL_ADD, bell, &e) < 0)
        die("epoll");
    while (steps > 0) {
        if (epoll_wait(ep, &got, 1, -1) < 1
            || read(bell, bells, sizeof(bells)) < 1)
            continue;
        send_all(fds, n, event, sizeof(event) - 1);
        steps--;
    }
    close(ep);
}

int
main(int argc, char **argv)
{
    long   port = argc > 1 ? strtol(argv[1], NULL, 10) : 0;
    long   n = argc > 2 ? strtol(argv[2], NULL, 10) : 0;
    long   steps = argc > 3 ? strtol(argv[3], NULL, 10) : 0;
    long   step_us = argc > 4 ? strtol(argv[4], NULL, 10) : 0;
    int    fds[STREAMS_MAX], bell[2];
    double start;
    pid_t  pid;

    if (port < 1 || port > 65535 || n < 1 || n > STREAMS_MAX || steps < 1
        || step_us < 1) {
        fprintf(stderr, "usage: stream_cost PORT STREAMS STEPS STEP_US\n");
        return 2;
    }

    accept_all((uint16_t) port, fds, n);
    send_all(fds, n, headers, sizeof(headers) - 1);
    if (pipe2(bell, O_CLOEXEC | O_NONBLOCK) < 0)
        die("pipe");
    pid = start_ringing(bell[1], step_us);

    start = cpu_s();
    stream(fds, n, steps, bell[0]);
    printf("%.3f\n", 1e6 * (cpu_s() - start) / (double) (steps * n));

    send_all(fds, n, last, sizeof(last) - 1);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    return 0;
}
