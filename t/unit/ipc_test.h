/*
 * ipc_test.h - what the channel's tests share: a server in a folder of its
 * own, a client that has joined it, a request that passes the checks.
 */

#ifndef IPC_TEST_H
#define IPC_TEST_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "../../engine/ipc/ipc_shm.h"

#define VOCAB 1000
#define LONG  (8u << 20)         /* model length: no limit in most tests    */

static char dir[64];             /* of this run                             */
static char path[96];            /* the socket                              */
static int  fds_before;          /* descriptors open when the test began    */

static const uint8_t print[DI_IPC_FINGERPRINT] = "fingerprint-one";

static inline int
count_fds(void)
{
    int  n = 0;
    DIR *d = opendir("/proc/self/fd");

    while (d != NULL && readdir(d) != NULL)
        n++;
    (void) closedir(d);
    return n;
}

static inline uint64_t
now_ms(void)
{
    struct timespec t;

    (void) clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t) t.tv_sec * 1000u + (uint64_t) t.tv_nsec / 1000000u;
}

static inline void
begin(void)
{
    (void) setvbuf(stdout, NULL, _IOLBF, 0);
    (void) snprintf(dir, sizeof(dir), "/tmp/di-ipc-XXXXXX");
    if (mkdtemp(dir) == NULL)
        exit(1);
    (void) snprintf(path, sizeof(path), "%s/e.sock", dir);
    fds_before = count_fds();
}

/* No file is left in the folder and no descriptor open. */
static inline int
end(const char *name)
{
    CHECK_EQ_INT(count_fds(), fds_before);
    CHECK_EQ_INT(rmdir(dir), 0);
    return check_done(name);
}

static inline di_ipc_server_conf_t
server_conf(uint32_t max_model_len)
{
    di_ipc_server_conf_t conf = {
        .welcome = {
            .model = "test-model", .arith = "test-arith", .vocab = VOCAB,
            .max_model_len = max_model_len, .pid = 1,
        },
    };

    memcpy(conf.welcome.fingerprint, print, sizeof(print));
    return conf;
}

static inline di_ipc_server_t *
serve(uint32_t max_model_len)
{
    di_err_t             err = { 0 };
    di_ipc_server_t     *server;
    di_ipc_server_conf_t conf = server_conf(max_model_len);

    CHECK_EQ_INT(di_ipc_server_open(path, &conf, &server, &err), DI_OK);
    if (server == NULL) {
        printf("%s\n", err.text);
        exit(1);
    }
    return server;
}

/* A ready client of a server in this process; ends the test if it fails. */
static inline di_ipc_client_t *
join(di_ipc_server_t *server)
{
    di_err_t         err = { 0 };
    di_ipc_client_t *client;

    if (di_ipc_client_open(path, print, &client, &err) == DI_OK) {
        CHECK_EQ_INT(di_ipc_client_handshake(client, &err), DI_EAGAIN);
        CHECK_EQ_INT(di_ipc_server_wait(server, 0), DI_OK);
        CHECK_EQ_INT(di_ipc_server_wait(server, 0), DI_OK);
        if (di_ipc_client_handshake(client, &err) == DI_OK)
            return client;
    }

    printf("join: %s\n", err.text);
    exit(1);
}

static inline di_gen_request_t
request(const int32_t *prompt, uint32_t n)
{
    return (di_gen_request_t) {
        .params = { .top_p = 1, .repetition_penalty = 1, .n = 1 },
        .prompt = prompt, .n_prompt = n,
    };
}

static inline di_event_t
token_event(uint64_t id, int32_t token)
{
    di_event_t ev = { .id = id, .type = DI_EV_TOKENS, .n_tokens = 1 };

    ev.u.tokens[0] = token;
    return ev;
}

#endif
