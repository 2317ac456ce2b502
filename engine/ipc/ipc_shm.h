/*
 * ipc_shm.h - what worker and engine share: memory, messages, ring ends.
 *
 * One memfd per connection, made, sized, sealed and first mapped by the
 * engine.  Layout (all offsets are constants of the protocol version; the
 * copy in the head page is for the worker's check and for debuggers, and is
 * never read by the engine):
 *
 *     0        head page: positions and sleep counts, one owner per line
 *     4096     submission ring, 1024 slots of 64 bytes
 *     +64 K    completion ring, 16384 slots of 64 bytes
 *     +1 M     status page
 *     +4096    arena, 16 MiB
 *
 * Rings.  A slot is published by a mark in its own cache line, not by an
 * index in another: bit 31 of its third 32-bit word is 1 in the first lap, 0
 * in the second, and so on, and the slot is the consumer's to read once the
 * bit has this lap's value.  So a message costs one line's journey between
 * the CPUs (a tail index costs a second: 1.7 times the latency), and a
 * consumer reads no index that a hostile producer could have made up.  Of a
 * batch the producer keeps the first slot's mark back; storing it publishes
 * all.  In the other direction the consumer publishes how far it has read
 * (`head`), which the producer reads only when its cached value says "full";
 * it must then lie between the last value and what was published.  Each side
 * keeps its own positions in private memory and never reads back what the
 * peer could have scribbled over.
 *
 * Sleep and doorbell.  A consumer that is about to sleep makes its sleep
 * count odd, fences, then looks once more; a producer publishes, fences, then
 * reads the count: one of the two must see the other (the store-load pairing
 * of Dekker's lock).  The producer rings once for each odd count that it
 * sees, so a consumer slow to wake is not rung again, and the count has one
 * writer.  An engine that waits for room in a completion ring sets
 * room_wanted before it sleeps; a worker that has made room then rings it as
 * if it had submitted something.
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

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define DI_SHM_CLANG_TSAN 1
#endif
#endif

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
    _Alignas(DI_SHM_LINE) _Atomic uint32_t sub_head;  /* engine: consumed   */
    _Alignas(DI_SHM_LINE)
    _Atomic uint64_t engine_sleep;                    /* engine: odd = asleep*/
    _Atomic uint32_t room_wanted;                     /* engine: ring for
                                                       * room as well       */
    _Alignas(DI_SHM_LINE) _Atomic uint32_t comp_head; /* worker: consumed   */
    _Alignas(DI_SHM_LINE)
    _Atomic uint64_t worker_sleep;                    /* worker: odd = asleep*/
} di_shm_head_t;

_Static_assert(sizeof(di_shm_head_t) <= DI_SHM_PAGE, "head page");
_Static_assert(offsetof(di_shm_head_t, sub_head) == 1 * DI_SHM_LINE, "layout");
_Static_assert(offsetof(di_shm_head_t, engine_sleep) == 2 * DI_SHM_LINE,
               "layout");
_Static_assert(offsetof(di_shm_head_t, comp_head) == 3 * DI_SHM_LINE, "layout");
_Static_assert(offsetof(di_shm_head_t, worker_sleep) == 4 * DI_SHM_LINE,
               "layout");

/* Both rings' slots are one cache line; where each has its mark, and the
 * bit. */
#define DI_SHM_SLOT         64
#define DI_SHM_MARK_OFF     8
#define DI_SHM_MARK         0x80000000u

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "the mark is the upper bit of a field below 2^15");

enum {
    DI_SUB_SUBMIT = 1,
    DI_SUB_CANCEL = 2,
    DI_SUB_PAUSE  = 3,
    DI_SUB_RESUME = 4,
};

/* One submission: all fields are the worker's.  The payload of a SUBMIT lies
 * in the arena: parameters, prompt, bias list, stop ids, grammar, without
 * gaps. */
typedef struct {
    uint64_t id;
    uint32_t type;               /* DI_SUB_..., and the mark                */
    uint32_t choice;             /* DI_SUB_CANCEL: UINT32_MAX = all         */
    uint32_t payload_off;        /* in the arena, a multiple of DI_SHM_ALIGN*/
    uint32_t n_prompt;
    uint32_t n_bias;
    uint32_t n_stop_ids;
    uint8_t  salt[16];
    uint32_t n_grammar;          /* bytes                                   */
    uint8_t  reserved[12];
} di_shm_sub_t;

_Static_assert(sizeof(di_shm_sub_t) == 64, "wire layout");
_Static_assert(offsetof(di_shm_sub_t, type) == DI_SHM_MARK_OFF, "mark");

/* Bytes of a payload; at most DI_IPC_ARENA_BYTES are possible. */
static inline uint64_t
di_shm_payload_bytes(uint32_t n_prompt, uint32_t n_bias, uint32_t n_stop_ids,
                     uint32_t n_grammar)
{
    return sizeof(di_gen_params_t) + (uint64_t) n_prompt * sizeof(int32_t)
           + (uint64_t) n_bias * sizeof(di_logit_bias_t)
           + (uint64_t) n_stop_ids * sizeof(int32_t) + n_grammar;
}

/* Completion slots are the engine's: an event, then its top entries.  The
 * mark is the upper bit of the event's choice, or of top[1].id. */
typedef union {
    di_event_t       event;
    di_top_logprob_t top[DI_SHM_TOP_PER_SLOT];
} di_shm_comp_t;

_Static_assert(sizeof(di_shm_comp_t) == 64, "wire layout");
_Static_assert(offsetof(di_event_t, choice) == DI_SHM_MARK_OFF + 2, "mark");
_Static_assert(offsetof(di_shm_comp_t, top[1].id) == DI_SHM_MARK_OFF, "mark");

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
    unsigned char    *slots;     /* shared, ours                            */
    _Atomic uint32_t *head;      /* shared, the peer's: slots read          */
    uint32_t          n_slots;   /* a power of two                          */
    uint32_t          next;      /* slot to fill next; runs free            */
    uint32_t          published; /* slots before it are the peer's to read  */
    uint32_t          freed;     /* head as last read and checked           */
    uint32_t          mark;      /* word kept back of slot `published`      */
} di_ring_tx_t;

/* Private state of a ring's consumer. */
typedef struct {
    unsigned char    *slots;     /* shared, the peer's                      */
    _Atomic uint32_t *head;      /* shared, ours: slots read                */
    uint32_t          n_slots;   /* a power of two                          */
    uint32_t          next;      /* slot to read next; runs free            */
    uint32_t          released;  /* head as last published                  */
} di_ring_rx_t;

/* The full fence between a store of one's own and a load of the peer's.
 * ThreadSanitizer knows no fences (and needs none: what the marks guard is
 * ordered by release and acquire); a locked instruction does the same. */
static inline void
di_shm_fence(void)
{
#if defined(__SANITIZE_THREAD__) || defined(DI_SHM_CLANG_TSAN)
    _Atomic uint32_t any = 0;

    (void) atomic_exchange_explicit(&any, 1, memory_order_seq_cst);
#else
    atomic_thread_fence(memory_order_seq_cst);
#endif
}

/* The mark bit of slot number i in its lap. */
static inline uint32_t
di_ring_lap(uint32_t i, uint32_t n_slots)
{
    return (i & n_slots) == 0 ? DI_SHM_MARK : 0;
}

static inline unsigned char *
di_ring_slot(unsigned char *slots, uint32_t i, uint32_t n_slots)
{
    return slots + (size_t) (i & (n_slots - 1)) * DI_SHM_SLOT;
}

static inline _Atomic uint32_t *
di_ring_mark(unsigned char *slot)
{
    return (_Atomic uint32_t *) (void *) (slot + DI_SHM_MARK_OFF);
}

/* Free slots by the cached head. */
static inline uint32_t
di_ring_room(const di_ring_tx_t *tx)
{
    return tx->n_slots - (tx->next - tx->freed);
}

/* Read the peer's head.  DI_OK, or DI_EPROTO when it moved back or past what
 * was published. */
int di_ring_tx_refresh(di_ring_tx_t *tx);

/* Fill the next slot from a local one; there must be room.  Not visible to
 * the peer before di_ring_publish(). */
static inline void
di_ring_put(di_ring_tx_t *tx, const void *from)
{
    uint32_t       mark;
    unsigned char *slot = di_ring_slot(tx->slots, tx->next, tx->n_slots);

    memcpy(slot, from, DI_SHM_MARK_OFF);
    memcpy(slot + DI_SHM_MARK_OFF + 4,
           (const char *) from + DI_SHM_MARK_OFF + 4,
           DI_SHM_SLOT - DI_SHM_MARK_OFF - 4);
    memcpy(&mark, (const char *) from + DI_SHM_MARK_OFF, sizeof(mark));
    mark = (mark & ~DI_SHM_MARK) | di_ring_lap(tx->next, tx->n_slots);

    if (tx->next == tx->published)
        tx->mark = mark;
    else
        atomic_store_explicit(di_ring_mark(slot), mark, memory_order_relaxed);

    tx->next++;
}

/* Make all filled slots visible, at least one. */
static inline void
di_ring_publish(di_ring_tx_t *tx)
{
    unsigned char *slot = di_ring_slot(tx->slots, tx->published, tx->n_slots);

    /* Release: pairs with di_ring_ready(), for this slot and those behind. */
    atomic_store_explicit(di_ring_mark(slot), tx->mark, memory_order_release);
    tx->published = tx->next;
    di_shm_fence();              /* before di_bell_due()                    */
}

/* May the slot `ahead` places from the next one be read?  *mark gets its
 * word. */
static inline bool
di_ring_ready(const di_ring_rx_t *rx, uint32_t ahead, uint32_t *mark)
{
    uint32_t       i = rx->next + ahead;
    unsigned char *slot = di_ring_slot(rx->slots, i, rx->n_slots);

    /* Acquire: pairs with di_ring_publish(). */
    *mark = atomic_load_explicit(di_ring_mark(slot), memory_order_acquire);
    return ((*mark ^ di_ring_lap(i, rx->n_slots)) & DI_SHM_MARK) == 0;
}

/* Copy that slot, its word being `mark`. */
static inline void
di_ring_get(const di_ring_rx_t *rx, uint32_t ahead, uint32_t mark, void *to)
{
    const unsigned char *slot;

    slot = di_ring_slot(rx->slots, rx->next + ahead, rx->n_slots);
    mark &= ~DI_SHM_MARK;
    memcpy(to, slot, DI_SHM_MARK_OFF);
    memcpy((char *) to + DI_SHM_MARK_OFF, &mark, sizeof(mark));
    di_shm_copy((char *) to + DI_SHM_MARK_OFF + 4, slot + DI_SHM_MARK_OFF + 4,
                DI_SHM_SLOT - DI_SHM_MARK_OFF - 4);
}

/* Give all read slots back. */
static inline void
di_ring_release(di_ring_rx_t *rx)
{
    rx->released = rx->next;

    /* Release: pairs with di_ring_tx_refresh(). */
    atomic_store_explicit(rx->head, rx->next, memory_order_release);
}

/* Shall the sleeper be rung now, a fence after what it shall see?  *rung
 * remembers for which sleep it was. */
static inline bool
di_bell_due(_Atomic uint64_t *sleep, uint64_t *rung)
{
    uint64_t count = atomic_load_explicit(sleep, memory_order_relaxed);

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
