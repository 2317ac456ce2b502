/*
 * write_cost.c - CPU time of a bare write(2) of an event's bytes to a
 * loopback TCP socket whose reader drains it: what a streamed event costs at
 * the very least, to subtract from a server's cost per event.
 *
 * usage: write_cost [BYTES [WRITES [SOCKETS [PAUSE_US]]]]
 *
 * Writes to each of the sockets (1) in turn, then sleeps for PAUSE_US (0), as
 * a server does between two tokens; WRITES (200000) in all.  Prints
 * microseconds of CPU per write.
 */

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SOCKETS_MAX 1000

static void
die(const char *what)
{
    perror(what);
    exit(1);
}

/* A connected pair over 127.0.0.1. */
static void
tcp_pair(int *a, int *b)
{
    struct sockaddr_in addr = { .sin_family = AF_INET };
    socklen_t len = sizeof(addr);
    int l = socket(AF_INET, SOCK_STREAM, 0), one = 1;

    addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (l < 0 || bind(l, (struct sockaddr *) &addr, len) < 0
        || listen(l, 1) < 0
        || getsockname(l, (struct sockaddr *) &addr, &len) < 0)
        die("listen");
    *a = socket(AF_INET, SOCK_STREAM, 0);
    if (*a < 0 || connect(*a, (struct sockaddr *) &addr, len) < 0)
        die("connect");
    *b = accept(l, NULL, NULL);
    if (*b < 0)
        die("accept");
    setsockopt(*a, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    close(l);
}

static double
cpu_us(void)
{
    struct rusage u;

    if (getrusage(RUSAGE_SELF, &u) < 0)
        die("getrusage");
    return 1e6 * (double) (u.ru_utime.tv_sec + u.ru_stime.tv_sec)
           + (double) (u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

/* Read from all until they are closed. */
static void
drain(const int *fds, long n)
{
    struct epoll_event e = { .events = EPOLLIN }, got[64];
    int  ep = epoll_create1(EPOLL_CLOEXEC);
    char sink[65536];

    for (long i = 0; i < n; i++) {
        e.data.fd = fds[i];
        if (ep < 0 || epoll_ctl(ep, EPOLL_CTL_ADD, fds[i], &e) < 0)
            die("epoll");
    }
    while (n > 0) {
        int m = epoll_wait(ep, got, 64, -1);

        for (int i = 0; i < m; i++) {
            if (read(got[i].data.fd, sink, sizeof(sink)) > 0)
                continue;
            close(got[i].data.fd);
            n--;
        }
    }
    _exit(0);
}

int
main(int argc, char **argv)
{
    size_t bytes = argc > 1 ? strtoul(argv[1], NULL, 10) : 250;
    long writes = argc > 2 ? strtol(argv[2], NULL, 10) : 200000;
    long n = argc > 3 ? strtol(argv[3], NULL, 10) : 1, i, k;
    long pause_us = argc > 4 ? strtol(argv[4], NULL, 10) : 0;
    struct timespec pause = { .tv_sec = pause_us / 1000000,
                              .tv_nsec = pause_us % 1000000 * 1000 };
    char *buf = calloc(1, bytes + 1);
    int a[SOCKETS_MAX], b[SOCKETS_MAX];
    double start;
    pid_t reader;

    if (buf == NULL || bytes == 0 || n < 1 || n > SOCKETS_MAX || writes < n
        || pause_us < 0)
        return 2;
    for (i = 0; i < n; i++)
        tcp_pair(&a[i], &b[i]);
    reader = fork();
    if (reader < 0)
        die("fork");
    if (reader == 0) {
        for (i = 0; i < n; i++)
            close(a[i]);
        drain(b, n);
    }
    for (i = 0; i < n; i++)
        close(b[i]);

    start = cpu_us();
    for (i = 0; i < writes / n; i++) {
        for (k = 0; k < n; k++)
            if (write(a[k], buf, bytes) != (ssize_t) bytes)
                die("write");
        if (pause_us > 0)
            nanosleep(&pause, NULL);
    }
    printf("%.3f\n", (cpu_us() - start) / (double) (writes / n * n));

    for (i = 0; i < n; i++)
        close(a[i]);
    waitpid(reader, NULL, 0);
    free(buf);
    return 0;
}
