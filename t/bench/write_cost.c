/*
 * write_cost.c - CPU time of a bare write(2) of an event's bytes to a
 * loopback TCP socket whose reader drains it: what a streamed event costs at
 * the very least, to subtract from a server's cost per event.
 *
 * usage: write_cost [BYTES [WRITES]]   prints microseconds of CPU per write
 */

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

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

int
main(int argc, char **argv)
{
    size_t bytes = argc > 1 ? strtoul(argv[1], NULL, 10) : 250;
    long writes = argc > 2 ? strtol(argv[2], NULL, 10) : 200000;
    char *buf = calloc(1, bytes + 1), sink[65536];
    double start;
    int a, b;
    pid_t reader;

    if (buf == NULL || bytes == 0 || writes < 1)
        return 2;
    tcp_pair(&a, &b);
    reader = fork();
    if (reader < 0)
        die("fork");
    if (reader == 0) {
        close(a);
        while (read(b, sink, sizeof(sink)) > 0)
            ;
        _exit(0);
    }
    close(b);
    start = cpu_us();
    for (long i = 0; i < writes; i++)
        if (write(a, buf, bytes) != (ssize_t) bytes)
            die("write");
    printf("%.3f\n", (cpu_us() - start) / (double) writes);
    close(a);
    waitpid(reader, NULL, 0);
    free(buf);
    return 0;
}
