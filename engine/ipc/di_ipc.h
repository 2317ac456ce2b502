/*
 * di_ipc.h - the channel between an nginx worker and an engine process.
 *
 * Object model.  An engine opens one di_ipc_server_t on a unix socket
 * (SOCK_SEQPACKET).  A worker opens one di_ipc_client_t per engine: it
 * connects, says HELLO (protocol version, fingerprint of the model that it
 * expects) and receives WELCOME with three descriptors: a sealed memfd that
 * the engine made, and two doorbells (an eventfd to ring the engine, the
 * reading end of a pipe to be rung by it; ipc_shm.h says why).  In the memfd
 * lie
 *
 *     header page | submission ring | completion ring | status page | arena
 *
 * Submissions (worker to engine) carry their payload (prompt token ids,
 * lists, a grammar) in the arena, a byte ring that only the worker allocates
 * from; the engine copies a payload while it consumes the slot, so a slot's
 * bytes are free again when the ring's head has passed it.  Completions
 * (engine to worker) are 64-byte events; those with more data continue in the
 * slots right behind.  Doorbells are rung only when the peer says that it
 * sleeps.  The socket carries nothing after the handshake: its
 * closing is the death notice in both directions.
 *
 * The engine trusts nothing that a worker wrote: every index, offset, length
 * and value is copied once and then checked; a wrong one closes that worker's
 * connection and no other.  Shared memory holds offsets, never pointers.
 *
 * This header knows libc and di_err.h only.
 */

#ifndef DI_IPC_H
#define DI_IPC_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../../tokenizer/di_err.h"

#define DI_IPC_VERSION          3
#define DI_IPC_FINGERPRINT      16          /* bytes                        */
#define DI_IPC_NAME_MAX         96          /* model name, NUL included     */
#define DI_IPC_SUB_SLOTS        1024        /* powers of two                */
#define DI_IPC_COMP_SLOTS       16384
#define DI_IPC_ARENA_BYTES      (16u << 20)
#define DI_IPC_GRAMMAR_MAX      (8u << 20)  /* bytes of a compiled grammar  */
#define DI_IPC_CONNS_MAX        256         /* workers of one engine        */
#define DI_IPC_RESERVE          256         /* completion slots kept for what
                                             * answers a message at once    */

/* ------------------------------------------------------------- requests -- */

enum {
    DI_GEN_IGNORE_EOS       = 1u << 0,  /* end tokens do not end it         */
    DI_GEN_LOGPROBS         = 1u << 1,  /* log-probability of each token    */
    DI_GEN_PROMPT_LOGPROBS  = 1u << 2,  /* and of prompt tokens, see below  */
    DI_GEN_NO_PREFIX        = 1u << 3,  /* neither use nor fill prefix cache*/
    DI_GEN_GRAMMAR_FINISH   = 1u << 4,  /* when max_tokens runs out, steer the
                                         * text to its shortest end; says
                                         * nothing without a grammar        */
    DI_GEN_UNSEEDED         = 1u << 5,  /* nobody named the seed: it need not
                                         * give the same text again         */
    DI_GEN_FLAGS_ALL        = (1u << 6) - 1,
};

#define DI_GEN_N_MAX            128     /* choices of one request           */
#define DI_GEN_TOP_LOGPROBS_MAX 20
#define DI_GEN_BIAS_MAX         1024    /* entries of a logit-bias list     */
#define DI_GEN_STOP_IDS_MAX     64

/* Parameters of one request: the same struct on the wire and in the engine.
 * Ranges are what the engine checks; outside them the request is rejected.
 * Order of application: design, section 7. */
typedef struct {
    float    temperature;        /* [0, 100]; 0 = greedy (plain argmax)     */
    float    top_p;              /* (0, 1]; 1 = off                         */
    float    min_p;              /* [0, 1]; 0 = off                         */
    float    presence_penalty;   /* [-2, 2]                                 */
    float    frequency_penalty;  /* [-2, 2]                                 */
    float    repetition_penalty; /* (0, 10]; 1 = off; counts prompt tokens  */
    int32_t  top_k;              /* >= 0; 0 = off                           */
    uint32_t n;                  /* choices, 1 .. DI_GEN_N_MAX              */
    uint32_t max_tokens;         /* 0 = as many as fit the model length     */
    uint32_t min_tokens;         /* end and stop ids masked before these    */
    uint32_t top_logprobs;       /* 0 .. DI_GEN_TOP_LOGPROBS_MAX            */
    uint32_t prompt_logprobs_from; /* first prompt position reported: the
                                  * distribution AFTER prompt token i-1 for
                                  * i in [from, n_prompt); from >= 1        */
    uint32_t flags;              /* DI_GEN_...                              */
    uint32_t reserved;           /* 0                                       */
    uint64_t seed;               /* choice c draws from seed + c            */
} di_gen_params_t;

_Static_assert(sizeof(di_gen_params_t) == 64, "wire layout");

typedef struct {
    int32_t  id;
    float    bias;               /* [-100, 100], added to the logit         */
} di_logit_bias_t;

/* A request as both ends' code sees it.  Lists are borrowed for the call on
 * the sending side; on the receiving side they point into a buffer that is
 * the receiver's until its next di_ipc_server_recv(). */
typedef struct {
    di_gen_params_t        params;
    const int32_t         *prompt;      /* [n_prompt] token ids             */
    const di_logit_bias_t *bias;        /* [n_bias]                         */
    const int32_t         *stop_ids;    /* [n_stop_ids] end the sequence too*/
    const uint8_t         *grammar;     /* [n_grammar] as di_gram_compile()
                                         * made it; each choice holds it    */
    uint32_t               n_prompt;    /* 1 ..                             */
    uint32_t               n_bias;
    uint32_t               n_stop_ids;
    uint32_t               n_grammar;   /* 0: none                          */
    uint8_t                salt[16];    /* tenant's prefix-cache salt       */
} di_gen_request_t;

/* Check everything that does not need the model (ranges, finite floats,
 * reserved fields).  DI_OK or DI_EINVAL with the field named in err.
 * The engine adds the checks against vocabulary and length, and opens the
 * grammar. */
int di_gen_request_check(const di_gen_request_t *req, di_err_t *err);

/* --------------------------------------------------------------- events -- */

typedef enum {
    DI_EV_STARTED = 1,      /* admitted: prompt and cached tokens known     */
    DI_EV_TOKENS  = 2,      /* 1..8 new tokens of one choice                */
    DI_EV_LOGPROB = 3,      /* log-probabilities of one token; it precedes
                             * the DI_EV_TOKENS that carries the token      */
    DI_EV_PROMPT_LOGPROB = 4, /* the same for a prompt position             */
    DI_EV_FINISH  = 5,      /* one choice is over; nothing follows for it   */
    DI_EV_REJECT  = 6,      /* the whole request was refused; nothing follows*/
} di_event_type_t;

typedef enum {
    DI_FINISH_STOP = 1,     /* end-of-generation token                      */
    DI_FINISH_STOP_ID = 2,  /* one of the request's stop ids                */
    DI_FINISH_LENGTH = 3,   /* max_tokens or model length                   */
    DI_FINISH_CANCEL = 4,   /* cancelled by the worker                      */
    DI_FINISH_ERROR = 5,    /* engine fault                                 */
} di_finish_t;

typedef enum {
    DI_REJECT_INVALID = 1,  /* parameter out of range; text names it        */
    DI_REJECT_TOO_LONG = 2, /* a = prompt tokens, b = model length          */
    DI_REJECT_QUEUE_FULL = 3, /* a = queued, b = bound                      */
    DI_REJECT_DRAINING = 4, /* engine is shutting down                      */
    DI_REJECT_KV = 5,       /* can never fit: a = blocks needed, b = all    */
    DI_REJECT_INTERNAL = 6,
} di_reject_t;

typedef struct {
    int32_t id;
    float   logprob;
} di_top_logprob_t;

#define DI_EV_TOKENS_MAX 8

/* One event: 64 bytes in the ring.  `top` is not in the slot: a receiver
 * gets a pointer into the receiver's scratch, valid until its next receive;
 * a sender passes the list, which goes to the slots behind (8 a slot). */
typedef struct {
    uint64_t id;            /* the worker's request id, as submitted        */
    uint16_t type;          /* di_event_type_t                              */
    uint16_t choice;        /* 0 .. n-1                                     */
    uint16_t n_top;         /* entries in `top`                             */
    uint16_t n_tokens;      /* DI_EV_TOKENS                                 */
    union {
        int32_t tokens[DI_EV_TOKENS_MAX];
        struct {            /* DI_EV_STARTED                                */
            uint32_t prompt_tokens;
            uint32_t cached_tokens;  /* taken from the prefix cache         */
            uint32_t queue_us;       /* waited before the first step        */
        } started;
        struct {            /* DI_EV_LOGPROB, DI_EV_PROMPT_LOGPROB          */
            int32_t  token;          /* the prompt's own, or the one drawn  */
            float    logprob;        /* of that token, before sampling ops  */
            uint32_t position;       /* index in prompt or completion       */
        } logprob;
        struct {            /* DI_EV_FINISH                                 */
            uint32_t reason;         /* di_finish_t                         */
            uint32_t completion_tokens;
            int32_t  stop_id;        /* the id that ended it, or -1         */
        } finish;
        struct {            /* DI_EV_REJECT                                 */
            uint32_t reason;         /* di_reject_t                         */
            uint32_t a, b;
            char     text[28];       /* field's name or a short reason      */
        } reject;
        char room[48];
    } u;
} di_event_t;

_Static_assert(sizeof(di_event_t) == 64, "one cache line");

/* The end token itself is sent as a token (in DI_EV_TOKENS) before its
 * DI_EV_FINISH; the worker does not show it. */

/* --------------------------------------------------------------- status -- */

enum { DI_ROLE_BOTH = 0, DI_ROLE_PREFILL = 1, DI_ROLE_DECODE = 2,
       DI_ROLE_ENCODE = 3 };

/* What the engine publishes for desks and metrics, behind a seqlock; written
 * by the engine once a step or every 100 ms. */
typedef struct {
    uint64_t updated_us;         /* CLOCK_MONOTONIC                         */
    uint64_t steps;
    uint64_t prefill_tokens;     /* computed, totals since start            */
    uint64_t decode_tokens;
    uint64_t cached_tokens;      /* taken from the prefix cache             */
    uint64_t requests;           /* admitted                                */
    uint64_t preemptions;
    uint64_t jumped_tokens;      /* of decode_tokens: forced by grammars    */
    uint64_t grammar_bytes;      /* held for grammars and their masks       */
    uint32_t role;               /* DI_ROLE_...                             */
    uint32_t draining;           /* 1 after SIGTERM                         */
    uint32_t running;            /* sequences with KV                       */
    uint32_t waiting;            /* queued                                  */
    uint32_t waiting_tokens;     /* prompt tokens not computed yet          */
    uint32_t queue_max;
    uint32_t kv_blocks_total;
    uint32_t kv_blocks_live;     /* held by sequences                       */
    uint32_t kv_blocks_cached;   /* only the prefix cache holds them        */
    uint32_t kv_blocks_free;     /* live + cached + free = total            */
    uint32_t kv_block_tokens;
    uint32_t max_model_len;
    uint32_t prefill_rate;       /* tokens/s, moving average                */
    uint32_t decode_rate;
} di_ipc_status_t;

/* ------------------------------------------------------- worker's end ---- */

typedef struct di_ipc_client_s di_ipc_client_t;

/* What WELCOME told. */
typedef struct {
    uint8_t  fingerprint[DI_IPC_FINGERPRINT];
    char     model[DI_IPC_NAME_MAX];     /* as the engine names it          */
    char     arith[32];                  /* arithmetic path, e.g. amx-bf16  */
    uint32_t vocab;                      /* token ids are in [0, vocab)     */
    uint32_t max_model_len;
    uint32_t pid;
} di_ipc_welcome_t;

/* Start to connect to the engine at `path` (without "unix:").  Never blocks.
 * fingerprint may be NULL (any model will do).  On DI_OK *client is owned
 * (close it) and its socket must be watched for reading until
 * di_ipc_client_handshake() stops saying DI_EAGAIN.
 * DI_ECLOSED: nobody listens; DI_EAGAIN: backlog full; DI_EIO, DI_ENOMEM. */
int di_ipc_client_open(const char *path, const uint8_t *fingerprint,
                       di_ipc_client_t **client, di_err_t *err);

/* Go on with the handshake.  DI_OK: ready; DI_EAGAIN: nothing came yet;
 * DI_EPROTO: other protocol or other model (err says which);
 * DI_ECLOSED: the engine closed, or has no connection left.
 * Once ready, call it when the socket is readable: DI_OK as long as the
 * engine lives, then DI_ECLOSED. */
int di_ipc_client_handshake(di_ipc_client_t *client, di_err_t *err);

const di_ipc_welcome_t *di_ipc_client_welcome(const di_ipc_client_t *client);

int di_ipc_client_socket(const di_ipc_client_t *client);   /* EOF = death    */
/* Readable when completions came while the worker slept; emptied by
 * di_ipc_client_sleep().  Level- or edge-triggered; when the engine dies it
 * hangs up, as the socket does.  -1 before the handshake is done. */
int di_ipc_client_eventfd(const di_ipc_client_t *client);

/* Stage a request: it is copied to arena and slot, not yet published.
 * DI_EAGAIN: ring or arena full, publish what is staged and try again when
 * events have come; DI_ELIMIT: larger than the arena; DI_EINVAL: check
 * failed; DI_EPROTO: the engine wrote nonsense: close.  Ids are the worker's;
 * they come back in events and mean nothing to the engine but equality; an id
 * in use must not be submitted again. */
int di_ipc_client_submit(di_ipc_client_t *client, uint64_t id,
                         const di_gen_request_t *req, di_err_t *err);

/* Stage a cancel of every choice of a request, or hold it back / let it go on
 * (slow client).  Unknown ids are ignored by the engine.  A cancelled request
 * ends with DI_EV_FINISH CANCEL for each choice still running.  DI_OK,
 * DI_EAGAIN or DI_EPROTO, as above. */
int di_ipc_client_cancel(di_ipc_client_t *client, uint64_t id);
int di_ipc_client_cancel_choice(di_ipc_client_t *client, uint64_t id,
                                uint32_t choice);
int di_ipc_client_pause(di_ipc_client_t *client, uint64_t id, bool pause);

/* Publish all that is staged as one batch; ring the doorbell if the engine
 * sleeps.  DI_OK, or DI_ECLOSED. */
int di_ipc_client_flush(di_ipc_client_t *client);

/* Take one event.  DI_OK: *event filled, *top points at event->n_top entries
 * (valid until the next call); DI_EAGAIN: none; DI_EPROTO: the engine wrote
 * nonsense: close. */
int di_ipc_client_recv(di_ipc_client_t *client, di_event_t *event,
                       const di_top_logprob_t **top);

/* Before going back to epoll: empty the doorbell, say that the worker
 * sleeps, look again.  DI_OK: sleep; DI_EAGAIN: call recv first. */
int di_ipc_client_sleep(di_ipc_client_t *client);

/* A consistent copy of the status page.  DI_OK or DI_EAGAIN (writer busy for
 * too long). */
int di_ipc_client_status(di_ipc_client_t *client, di_ipc_status_t *status);

void di_ipc_client_close(di_ipc_client_t *client);

/* ------------------------------------------------------- engine's end ---- */

typedef struct di_ipc_server_s di_ipc_server_t;

/* Who may connect: who may write to the socket file.  nginx's workers mostly
 * run as another user than the engine: give the file their group (`group`,
 * mode 0660; the engine must be root or a member of it), or mode 0666 in a
 * directory that only they can enter.  Any process that connects can use the
 * model, and can take connections away from others up to DI_IPC_CONNS_MAX. */
typedef struct {
    di_ipc_welcome_t welcome;    /* told to every worker                    */
    uint32_t         mode;       /* permission bits of the socket, 0 = 0660 */
    bool             set_group;  /* give the socket file to `group`         */
    uint32_t         group;      /* gid                                     */
    uint32_t         spin_us;    /* spin this long before sleeping          */
} di_ipc_server_conf_t;

/* The process at the other end, as the kernel tells (SO_PEERCRED). */
typedef struct {
    uint32_t pid;                /* 0: in another pid namespace             */
    uint32_t uid;
    uint32_t gid;
} di_ipc_peer_t;

/* Listen.  PATH.lock is held as long as the server listens; a socket file
 * that a killed engine left is removed under it, a live one is DI_EINVAL ("in
 * use"), as is a path over 107 bytes.  Owned by the caller.  A connection
 * takes four descriptors: see to RLIMIT_NOFILE. */
int di_ipc_server_open(const char *path, const di_ipc_server_conf_t *conf,
                       di_ipc_server_t **server, di_err_t *err);

typedef enum {
    DI_MSG_SUBMIT = 1,
    DI_MSG_CANCEL = 2,       /* choice = UINT32_MAX: all of them            */
    DI_MSG_PAUSE  = 3,
    DI_MSG_RESUME = 4,
    DI_MSG_CLOSED = 5,       /* this connection is gone: free what it held  */
} di_ipc_msg_type_t;

typedef struct {
    di_ipc_msg_type_t    type;
    uint32_t         conn;       /* 0 .. DI_IPC_CONNS_MAX-1, reused only
                                  * after its DI_MSG_CLOSED was received    */
    uint64_t         id;
    uint32_t         choice;
    di_gen_request_t req;        /* DI_MSG_SUBMIT: checked copy             */
} di_ipc_msg_t;

/* Take the next message from any connection, round robin.  DI_OK, or
 * DI_EAGAIN: nothing there, or (after a bounded look) nothing for the caller.
 * A prompt longer than welcome.max_model_len is answered with TOO_LONG here.
 * No message is taken from a connection with less than DI_IPC_RESERVE free
 * completion slots, so what answers it at once can always be sent.  A
 * submission that fails di_gen_request_check() is answered with DI_EV_REJECT
 * here; broken framing closes the connection (which gives a DI_MSG_CLOSED). */
int di_ipc_server_recv(di_ipc_server_t *server, di_ipc_msg_t *msg);

/* Accept, read handshakes, notice deaths; then sleep until a doorbell or
 * timeout_us (0: only look; < 0: no limit).  Wakes at once if wake_fd given to
 * di_ipc_server_wake_fd() is readable. */
int di_ipc_server_wait(di_ipc_server_t *server, int64_t timeout_us);

/* Add a descriptor (a signalfd, say) that ends di_ipc_server_wait(). */
int di_ipc_server_wake_fd(di_ipc_server_t *server, int fd);

/* Free completion slots of a connection beyond DI_IPC_RESERVE: an event
 * needs 1 + ceil(n_top / 8).  A lower bound; exact when less than half of the
 * ring is free.  0 for a closed one.  A server that waits wakes up when the
 * worker has made room in a ring that was more than half full. */
uint32_t di_ipc_server_room(di_ipc_server_t *server, uint32_t conn);

/* Write one event (not yet published); ids in `top` are >= 0.  DI_OK,
 * DI_EAGAIN (no room), DI_ECLOSED, DI_EINVAL (choice or n_top too large). */
int di_ipc_server_send(di_ipc_server_t *server, uint32_t conn,
                       const di_event_t *event, const di_top_logprob_t *top);

/* Publish what was sent, one doorbell per sleeping worker. */
void di_ipc_server_flush(di_ipc_server_t *server);

/* Publish the status page to all connections. */
void di_ipc_server_status(di_ipc_server_t *server,
                          const di_ipc_status_t *status);

/* Stop listening and remove the socket file; connections go on. */
void di_ipc_server_stop_listening(di_ipc_server_t *server);

uint32_t di_ipc_server_conns(const di_ipc_server_t *server);

/* Who is at the other end.  DI_OK, or DI_EINVAL (no such connection). */
int di_ipc_server_peer(const di_ipc_server_t *server, uint32_t conn,
                       di_ipc_peer_t *peer);

/* Publish what was sent, then close every connection and stop listening. */
void di_ipc_server_close(di_ipc_server_t *server);

#endif
