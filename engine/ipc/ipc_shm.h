/*
 * ipc_shm.h - what worker and engine share: memory, messages, ring ends.
 *
 * One memfd per connection, made, sized, sealed and first mapped by the
 * engine.  Layout (all offsets are constants of the protocol version; the
 * copy in the head page is for the worker's check and for debuggers, and is
 * never read by the engine):
 *
 *     0        head page: indices and sleep counts, one owner per line
 *     4096     submission ring, 1024 slots of 128 bytes
 *     +128 K   completion ring, 16384 slots of 64 bytes
 *     +1 M     status page
 *     +4096    arena, 16 MiB
 *
 * Indices run free and are masked on use.  Each side keeps its own index in
 * private memory and only publishes it, so what the peer scribbles over it is
 * never read back; the peer's index is cached, read again only when the cache
 * says "full" or "empty", and must then lie between the last value seen and
 * what this side has published.  Anything else is a broken peer.
 *
 * Sleep and doorbell.  A consumer that is about to sleep makes its sleep
 * count odd, then looks once more; a producer publishes, then reads the count.
 * All four accesses are seq_cst, so one of the two must see the other (the
 * store-load pairing of Dekker's lock; seq_cst accesses rather than fences,
 * because ThreadSanitizer does not model fences).  The producer rings once
 * for each odd count that it sees, so a consumer slow to wake is not rung
 * again, and the count has one writer.  An engine that waits for room in a
 * completion ring sets room_wanted before it sleeps; a worker that has made
 * room then rings it as if it had submitted something.
 *
 * Doorbells.  Worker to engine: an eventfd.  A worker can clear O_NONBLOCK
 * on a descriptor that it shares, so the engine never reads it: it watches it
 * edge-triggered, where every write is an event.  Engine to worker: a pipe,
 * of which the worker gets the reading end alone.  An eventfd could be filled
 * and made blocking by a hostile worker between any check and our write, and
 * one blocked write would stop the engine for all; the pipe's writing end has
 * its own file description, so its O_NONBLOCK is the engine's alone.  The
 * engine keeps a reading end too: no write can then raise SIGPIPE.
 */

#ifndef DI_IPC_SHM_H
#define DI_IPC_SHM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "di_ipc.h"

#define DI_SHM_MAGIC        0x43504944u     /* "DIPC", little endian        */
#define DI_SHM_LINE         128             /* two cache lines: the adjacent-
                                             * line prefetcher moves pairs  */
#define DI_SHM_PAGE         4096u
#define DI_SHM_TOP_PER_SLOT 8
#define DI_SHM_ALIGN        64u             /* of a payload in the arena    */

/* ---------------------------------------------------------------- memory -- */

/* Written by the engine before WELCOME; read by the worker, once. */
typedef struct {
    uint32_t magic;
    uint32_t version;
    uint64_t bytes;              /* of the whole memfd                      */
    uint32_t sub_off, sub_slots;
    uint32_t comp_off, comp_slots;
    uint32_t status_off;
    uint32_t arena_off, arena_bytes;
    uint32_t reserved;
} di_shm_layout_t;

typedef struct {
    _Alignas(DI_SHM_LINE) di_shm_layout_t layout;     /* engine             */
    _Alignas(DI_SHM_LINE) _Atomic uint32_t sub_tail;  /* worker: published  */
    _Alignas(DI_SHM_LINE) _Atomic uint32_t sub_head;  /* engine: consumed   */
    _Alignas(DI_SHM_LINE)
    _Atomic uint64_t engine_sleep;                    /* engine: odd = asleep*/
    _Atomic uint32_t room_wanted;                     /* engine: ring for
                                                       * room as well       */
    _Alignas(DI_SHM_LINE) _Atomic uint32_t comp_tail; /* engine: published  */
    _Alignas(DI_SHM_LINE) _Atomic uint32_t comp_head; /* worker: consumed   */
    _Alignas(DI_SHM_LINE)
    _Atomic uint64_t worker_sleep;                    /* worker: odd = asleep*/
} di_shm_head_t;

_Static_assert(sizeof(di_shm_head_t) <= DI_SHM_PAGE, "head page");
_Static_assert(offsetof(di_shm_head_t, sub_tail) == 1 * DI_SHM_LINE, "layout");
_Static_assert(offsetof(di_shm_head_t, sub_head) == 2 * DI_SHM_LINE, "layout");
_Static_assert(offsetof(di_shm_head_t, engine_sleep) == 3 * DI_SHM_LINE,
               "layout");
_Static_assert(offsetof(di_shm_head_t, comp_tail) == 4 * DI_SHM_LINE, "layout");
_Static_assert(offsetof(di_shm_head_t, comp_head) == 5 * DI_SHM_LINE, "layout");
_Static_assert(offsetof(di_shm_head_t, worker_sleep) == 6 * DI_SHM_LINE,
               "layout");

enum {
    DI_SUB_SUBMIT = 1,
    DI_SUB_CANCEL = 2,
    DI_SUB_PAUSE  = 3,
    DI_SUB_RESUME = 4,
};

/* One submission: all fields are the worker's.  The first cache line is the
 * whole of a control message. */
typedef struct {
    uint32_t        type;        /* DI_SUB_...                              */
    uint32_t        choice;      /* DI_SUB_CANCEL: UINT32_MAX = all         */
    uint64_t        id;
    uint32_t        payload_off; /* in the arena, a multiple of DI_SHM_ALIGN:
                                  * prompt, then bias, then stop ids        */
    uint32_t        n_prompt;
    uint32_t        n_bias;
    uint32_t        n_stop_ids;
    uint8_t         salt[16];
    uint8_t         reserved[16];
    di_gen_params_t params;      /* second line                             */
} di_shm_sub_t;

_Static_assert(sizeof(di_shm_sub_t) == 128, "wire layout");
_Static_assert(offsetof(di_shm_sub_t, params) == 64, "wire layout");

/* Completion slots are the engine's: an event, then its top entries. */
typedef union {
    di_event_t       event;
    di_top_logprob_t top[DI_SHM_TOP_PER_SLOT];
} di_shm_comp_t;

_Static_assert(sizeof(di_shm_comp_t) == 64, "wire layout");

/* The status page is the engine's: a seqlock of 64-bit words. */
#define DI_SHM_STATUS_WORDS (sizeof(di_ipc_status_t) / 8)

typedef struct {
    _Alignas(DI_SHM_LINE) _Atomic uint32_t seq;       /* odd: being written */
    _Alignas(DI_SHM_LINE) _Atomic uint64_t word[DI_SHM_STATUS_WORDS];
} di_shm_status_t;

_Static_assert(sizeof(di_ipc_status_t) % 8 == 0, "whole words");
_Static_assert(sizeof(di_shm_status_t) <= DI_SHM_PAGE, "status page");

#define DI_SHM_SUB_OFF      DI_SHM_PAGE
#define DI_SHM_COMP_OFF     (DI_SHM_SUB_OFF                                   \
                             + DI_IPC_SUB_SLOTS * (uint32_t)                  \
                               sizeof(di_shm_sub_t))
#define DI_SHM_STATUS_OFF   (DI_SHM_COMP_OFF                                  \
                             + DI_IPC_COMP_SLOTS * (uint32_t)                 \
                               sizeof(di_shm_comp_t))
#define DI_SHM_ARENA_OFF    (DI_SHM_STATUS_OFF + DI_SHM_PAGE)
#define DI_SHM_BYTES        ((uint64_t) DI_SHM_ARENA_OFF + DI_IPC_ARENA_BYTES)

_Static_assert((DI_IPC_SUB_SLOTS & (DI_IPC_SUB_SLOTS - 1)) == 0, "mask");
_Static_assert((DI_IPC_COMP_SLOTS & (DI_IPC_COMP_SLOTS - 1)) == 0, "mask");
_Static_assert((DI_IPC_ARENA_BYTES & (DI_IPC_ARENA_BYTES - 1)) == 0, "mask");
_Static_assert(DI_SHM_ARENA_OFF % DI_SHM_PAGE == 0, "whole pages");
_Static_assert(ATOMIC_INT_LOCK_FREE == 2 && ATOMIC_LLONG_LOCK_FREE == 2,
               "atomics work between processes");

/* A mapping, seen by parts. */
typedef struct {
    di_shm_head_t   *head;       /* start of the mapping; NULL: none        */
    di_shm_sub_t    *sub;
    di_shm_comp_t   *comp;
    di_shm_status_t *status;
    unsigned char   *arena;
} di_shm_t;

/* Engine: make, size, seal and map a memfd.  *fd is owned by the caller. */
int di_shm_create(di_shm_t *shm, int *fd, di_err_t *err);

/* Worker: check size, seals and layout of a received memfd and map it; the
 * descriptor stays the caller's. */
int di_shm_map(di_shm_t *shm, int fd, di_err_t *err);

void di_shm_unmap(di_shm_t *shm);

/* Copy from shared memory.  The barrier keeps the compiler from reading the
 * source again later: what was checked is what is used. */
static inline void
di_shm_copy(void *dst, const void *shared, size_t bytes)
{
    memcpy(dst, shared, bytes);
    __asm__ volatile("" ::: "memory");
}

/* ------------------------------------------------------------- ring ends -- */

/* Private state of a ring's producer. */
typedef struct {
    _Atomic uint32_t *tail;      /* shared, ours                            */
    _Atomic uint32_t *head;      /* shared, the peer's                      */
    uint32_t          next;      /* slot to fill next                       */
    uint32_t          published; /* slots before it are the peer's to read  */
    uint32_t          freed;     /* head as last read and checked           */
    uint32_t          slots;
} di_ring_tx_t;

/* Private state of a ring's consumer. */
typedef struct {
    _Atomic uint32_t *tail;      /* shared, the peer's                      */
    _Atomic uint32_t *head;      /* shared, ours                            */
    uint32_t          next;      /* slot to read next                       */
    uint32_t          ready;     /* tail as last read and checked           */
    uint32_t          released;  /* slots before it are the peer's to fill  */
    uint32_t          slots;
} di_ring_rx_t;

/* Free slots by the cached head. */
static inline uint32_t
di_ring_room(const di_ring_tx_t *tx)
{
    return tx->slots - (tx->next - tx->freed);
}

/* Read the peer's head.  DI_OK, or DI_EPROTO when it moved back or past what
 * was published. */
int di_ring_tx_refresh(di_ring_tx_t *tx);

/* Make all filled slots visible; seq_cst: pairs with the consumer's look
 * after it has made its sleep count odd. */
static inline void
di_ring_publish(di_ring_tx_t *tx)
{
    tx->published = tx->next;
    atomic_store_explicit(tx->tail, tx->next, memory_order_seq_cst);
}

/* Read the peer's tail.  DI_OK, or DI_EPROTO when it moved back or claims
 * more slots than there are. */
int di_ring_rx_refresh(di_ring_rx_t *rx);

/* Give all read slots back; seq_cst: pairs with the look for room that a
 * producer takes after it has made its sleep count odd. */
static inline void
di_ring_release(di_ring_rx_t *rx)
{
    rx->released = rx->next;
    atomic_store_explicit(rx->head, rx->next, memory_order_seq_cst);
}

/* Shall the sleeper be rung now?  *rung remembers for which sleep it was.
 * seq_cst: pairs with the store that made the count odd. */
static inline bool
di_bell_due(_Atomic uint64_t *sleep, uint64_t *rung)
{
    uint64_t count = atomic_load_explicit(sleep, memory_order_seq_cst);

    if ((count & 1) == 0 || count == *rung)
        return false;

    *rung = count;
    return true;
}

/* ------------------------------------------------------------- handshake -- */

/* The first two fields keep their place in every version. */
typedef struct {
    uint32_t magic;              /* DI_SHM_MAGIC                            */
    uint32_t version;            /* DI_IPC_VERSION                          */
    uint32_t has_fingerprint;    /* 0 or 1                                  */
    uint32_t reserved;           /* 0                                       */
    uint8_t  fingerprint[DI_IPC_FINGERPRINT];
} di_ipc_hello_msg_t;

enum {
    DI_REFUSE_NOTHING = 0,       /* welcome: three descriptors come along   */
    DI_REFUSE_VERSION = 1,
    DI_REFUSE_MODEL = 2,
    DI_REFUSE_FULL = 3,          /* DI_IPC_CONNS_MAX workers are connected  */
    DI_REFUSE_FAULT = 4,         /* the engine lacks memory or descriptors  */
};

typedef struct {
    uint32_t         magic;
    uint32_t         version;
    uint32_t         refuse;     /* DI_REFUSE_...                           */
    uint32_t         reserved;
    uint64_t         shm_bytes;
    di_ipc_welcome_t welcome;
    uint32_t         reserved2;
} di_ipc_welcome_msg_t;

_Static_assert(sizeof(di_ipc_hello_msg_t) == 32, "wire layout");
_Static_assert(sizeof(di_ipc_welcome_t) == 156, "wire layout");
_Static_assert(sizeof(di_ipc_welcome_msg_t) == 184, "wire layout");

/* Descriptors of WELCOME, in this order. */
enum { DI_FD_MEMORY, DI_FD_ENGINE_BELL, DI_FD_WORKER_BELL, DI_FDS };

#endif
