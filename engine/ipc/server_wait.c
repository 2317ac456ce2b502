/*
 * server_wait.c - how the engine sleeps and what wakes it.
 *
 * Before it sleeps the engine makes its sleep count odd in every connection,
 * fences and looks at all rings once more (ipc_shm.h has the argument).  One
 * count in memory that all workers map would save the loop, but a hostile
 * worker would share it with the others.  Doorbells are watched edge-triggered
 * and never read: each write is an event, and a read is a system call that a
 * worker could make block.
 *
 * Waking a halted virtual CPU takes longer than most gaps between two
 * messages of a busy engine, hence the spin before the sleep.
 */

#include <errno.h>
#include <sys/epoll.h>

#include "server_impl.h"

#define EPOLL_BATCH 64               /* descriptors handled at one look     */
#define OVERDUE_MS  50               /* look for what is overdue this often */
#define SPIN_CHECK  32               /* looks between two clock readings    */

/* Has this connection something for us?  A message that waits for room does
 * not count until there is some. */
static bool
has_work(di_ipc_server_t *server, di_conn_t *conn, bool sleeping)
{
    uint32_t freed, mark;

    if (conn->state == CONN_GONE)
        return true;
    if (conn->state != CONN_READY)
        return false;

    if (!conn->held && di_ring_ready(&conn->rx, 0, &mark))
        return true;

    /* Somebody may be waiting for room here: has the worker made some? */
    if (sleeping || conn->held) {
        freed = conn->tx.freed;
        if (di_ring_room(&conn->tx) < DI_IPC_COMP_SLOTS / 2
            && di_ring_tx_refresh(&conn->tx) != DI_OK)
        {
            di_server_drop(server, conn);
            return true;
        }
        return conn->tx.freed != freed;
    }

    return false;
}

static bool
any_work(di_ipc_server_t *server, bool sleeping)
{
    uint32_t i;

    for (i = 0; i < server->n_used; i++) {
        if (has_work(server, &server->conn[i], sleeping))
            return true;
    }

    return false;
}

/* Look at the rings for a while.  true: there is work. */
static bool
spin(di_ipc_server_t *server, uint64_t us)
{
    int      i;
    uint64_t end = di_server_now_us() + us;

    do {
        for (i = 0; i < SPIN_CHECK; i++) {
            if (any_work(server, true))
                return true;
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
        }
    } while (di_server_now_us() < end);

    return false;
}

/* Make every connection's sleep count odd or even. */
static void
set_asleep(di_ipc_server_t *server, bool asleep)
{
    uint32_t i, wanted;
    di_conn_t  *conn;

    for (i = 0; i < server->n_used; i++) {
        conn = &server->conn[i];
        if (conn->state != CONN_READY)
            continue;

        if (asleep) {
            wanted = di_ring_room(&conn->tx) < DI_IPC_COMP_SLOTS / 2;
            atomic_store_explicit(&conn->shm.head->room_wanted, wanted,
                                  memory_order_relaxed);
        }

        /* A connection that became ready while we slept is even already. */
        if (((conn->sleep & 1) != 0) == asleep)
            continue;

        atomic_store_explicit(&conn->shm.head->engine_sleep, ++conn->sleep,
                              memory_order_relaxed);
    }

    /* Pairs with those in the worker's flush and release: either it sees the
     * odd count, or our look after this sees its slot or its room. */
    di_shm_fence();
}

/* Wait up to timeout_ms for descriptors and handle them. */
static int
poll_fds(di_ipc_server_t *server, int timeout_ms)
{
    int                i, n;
    uint32_t           about, index;
    struct epoll_event ev[EPOLL_BATCH];

    if ((server->n_hello > 0 || server->accept_us != 0)
        && (timeout_ms < 0 || timeout_ms > OVERDUE_MS))
    {
        timeout_ms = OVERDUE_MS;
    }

    n = epoll_wait(server->epoll, ev, EPOLL_BATCH, timeout_ms);
    if (n < 0)
        return errno == EINTR ? DI_OK : DI_EIO;

    for (i = 0; i < n; i++) {
        about = (uint32_t) (ev[i].data.u64 >> 32);
        index = (uint32_t) ev[i].data.u64;

        if (about == ABOUT_LISTEN && server->listen >= 0)
            di_server_accept_all(server);
        else if (about == ABOUT_SOCKET)
            di_server_socket_event(server, &server->conn[index]);
    }

    di_server_overdue(server);
    return DI_OK;
}

int
di_ipc_server_wait(di_ipc_server_t *server, int64_t timeout_us)
{
    int      rc;
    int64_t  ms;
    uint64_t us;

    di_ipc_server_flush(server);

    if (timeout_us == 0 || server->n_gone > 0 || any_work(server, false))
        return poll_fds(server, 0);

    us = server->conf.spin_us;
    if (timeout_us > 0 && (uint64_t) timeout_us < us)
        us = (uint64_t) timeout_us;
    if (us > 0 && spin(server, us))
        return poll_fds(server, 0);

    ms = -1;
    if (timeout_us > 0) {
        us = (uint64_t) timeout_us > us ? (uint64_t) timeout_us - us : 0;
        ms = (int64_t) ((us + 999) / 1000);
        if (ms > INT32_MAX)
            ms = INT32_MAX;
    }

    set_asleep(server, true);
    rc = poll_fds(server, any_work(server, true) ? 0 : (int) ms);
    set_asleep(server, false);
    return rc;
}
