/*
 * server_impl.h - what the files of the engine's end share.
 *
 *     server.c       listening, connections and their handshake
 *     server_ring.c  messages in, events out, the status page
 *     server_wait.c  sleeping and waking
 *
 * One thread owns a server and its connections.  A connection is FREE, then
 * HELLO (accepted, hello awaited for two seconds), then READY, then GONE
 * (closed, its DI_MSG_CLOSED not yet taken); all that it holds is given back
 * on the way to GONE, so what a worker holds ends with the worker.
 */

#ifndef DI_IPC_SERVER_IMPL_H
#define DI_IPC_SERVER_IMPL_H

#include <sys/types.h>
#include <time.h>

#include "ipc_shm.h"

typedef enum { CONN_FREE, CONN_HELLO, CONN_READY, CONN_GONE } di_conn_state_t;

typedef struct {
    di_conn_state_t state;
    bool            dirty;       /* in server->dirty: events to publish     */
    bool            held;        /* a message waits for completion room     */
    int             sock;        /* EOF: the worker is gone                 */
    int             engine_bell; /* eventfd that the worker writes          */
    int             worker_bell[2]; /* pipe: [0] kept open, [1] written     */
    uint64_t        since_us;    /* CONN_HELLO: accepted at                 */
    uint64_t        sleep;       /* our sleep count in this connection      */
    uint64_t        rung;        /* worker's sleep count we last rang for   */
    di_ring_rx_t    rx;          /* submissions                             */
    di_ring_tx_t    tx;          /* completions                             */
    di_shm_t        shm;
    di_ipc_peer_t   peer;
} di_conn_t;

/* What an epoll event is about: kind in the upper half, index below. */
enum { ABOUT_LISTEN, ABOUT_WAKE, ABOUT_BELL, ABOUT_SOCKET };

struct di_ipc_server_s {
    int                  listen; /* -1: no more                             */
    int                  lock;   /* PATH.lock, held while we listen         */
    int                  epoll;  /* of all descriptors                      */
    dev_t                dev;    /* of the socket file that we made         */
    ino_t                ino;
    char                 path[108]; /* of the socket file                   */
    uint32_t             n_ready; /* connections in that state              */
    uint32_t             n_hello;
    uint32_t             n_gone;
    uint32_t             n_used; /* connections below it may be in use      */
    uint32_t             turn;   /* connection that recv looks at first     */
    uint32_t             n_dirty; /* entries of `dirty`                     */
    uint64_t             accept_us; /* accept again then; 0 = armed         */
    di_ipc_server_conf_t conf;
    di_ipc_status_t      status; /* as last published                       */
    unsigned char       *payload; /* [DI_IPC_ARENA_BYTES] checked copies    */
    uint32_t             dirty[DI_IPC_CONNS_MAX]; /* flush publishes these  */
    di_conn_t            conn[DI_IPC_CONNS_MAX];
};

static inline uint64_t
di_server_now_us(void)
{
    struct timespec t;

    (void) clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t) t.tv_sec * 1000000u + (uint64_t) t.tv_nsec / 1000u;
}

/* Close a connection and give back all that it holds. */
void di_server_drop(di_ipc_server_t *server, di_conn_t *conn);

/* The listening socket is readable; a connection's socket is. */
void di_server_accept_all(di_ipc_server_t *server);
void di_server_socket_event(di_ipc_server_t *server, di_conn_t *conn);

/* Drop connections whose hello is overdue; accept again after a pause. */
void di_server_overdue(di_ipc_server_t *server);

/* Publish a status page to one connection. */
void di_server_write_status(di_conn_t *conn, const di_ipc_status_t *status);

#endif
