/*
 * ipc.c - fuzz the engine's end of the channel with a hostile worker.
 *
 * The input is a list of operations on the shared memory of a connection that
 * has passed its handshake (slots, indices, arena, sleep count: any value
 * anywhere) mixed with calls of the engine.  Whatever the worker does, what
 * the engine is handed must have passed the checks and lie in readable
 * memory, and an honest worker on the same server must be served afterwards.
 */

#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "engine/ipc/ipc_shm.h"

#define MUST(cond)                                                          \
    do {                                                                    \
        if (!(cond))                                                        \
            abort();                                                        \
    } while (0)

typedef struct {
    const uint8_t *p, *end;      /* input not used yet                      */
} input_t;

typedef struct {
    int      sock;
    int      fd[DI_FDS];
    di_shm_t shm;
    uint32_t next;               /* slot that is filled next, minus one     */
    uint32_t events;             /* that the engine has sent us, about      */
} raw_t;

static volatile int32_t sink;    /* keeps reads from being left out         */
static char             path[64];
static di_ipc_server_t *server;
static di_ipc_client_t *honest;

static void
clean_up(void)
{
    di_ipc_client_close(honest);
    di_ipc_server_close(server);
    *strrchr(path, '/') = '\0';
    (void) rmdir(path);
}

static void
set_up(void)
{
    di_ipc_server_conf_t conf = {
        .welcome = { .model = "fuzz", .vocab = 100, .max_model_len = 5000000 },
    };

    (void) strcpy(path, "/tmp/di-fuzz-XXXXXX");
    MUST(mkdtemp(path) != NULL);
    (void) strcat(path, "/e.sock");
    MUST(di_ipc_server_open(path, &conf, &server, NULL) == DI_OK);
    MUST(di_ipc_client_open(path, NULL, &honest, NULL) == DI_OK);
    MUST(di_ipc_server_wait(server, 0) == DI_OK);
    MUST(di_ipc_server_wait(server, 0) == DI_OK);
    MUST(di_ipc_client_handshake(honest, NULL) == DI_OK);
    (void) atexit(clean_up);
}

static void
raw_join(raw_t *raw)
{
    char                 room[CMSG_SPACE(DI_FDS * sizeof(int))];
    di_ipc_hello_msg_t   hello = {
        .magic = DI_SHM_MAGIC, .version = DI_IPC_VERSION,
    };
    di_ipc_welcome_msg_t welcome;
    struct sockaddr_un   addr = { .sun_family = AF_UNIX };
    struct iovec         iov = { &welcome, sizeof(welcome) };
    struct msghdr        msg = {
        .msg_iov = &iov, .msg_iovlen = 1,
        .msg_control = room, .msg_controllen = sizeof(room),
    };

    raw->sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    (void) strcpy(addr.sun_path, path);
    MUST(connect(raw->sock, (struct sockaddr *) &addr, sizeof(addr)) == 0);
    MUST(send(raw->sock, &hello, sizeof(hello), 0) == sizeof(hello));
    MUST(di_ipc_server_wait(server, 0) == DI_OK);
    MUST(di_ipc_server_wait(server, 0) == DI_OK);
    MUST(recvmsg(raw->sock, &msg, 0) == sizeof(welcome));
    memcpy(raw->fd, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof(raw->fd));
    MUST(di_shm_map(&raw->shm, raw->fd[DI_FD_MEMORY], NULL) == DI_OK);
}

static void
raw_leave(raw_t *raw)
{
    int          i;
    di_ipc_msg_t msg;

    di_shm_unmap(&raw->shm);
    for (i = 0; i < DI_FDS; i++)
        (void) close(raw->fd[i]);
    (void) close(raw->sock);

    do {
        MUST(di_ipc_server_wait(server, 0) == DI_OK);
        while (di_ipc_server_recv(server, &msg) == DI_OK) { }
    } while (di_ipc_server_conns(server) > 1);
}

/* --------------------------------------------------------------- input -- */

static uint8_t
byte(input_t *in)
{
    return in->p < in->end ? *in->p++ : 0;
}

static uint32_t
word(input_t *in)
{
    uint32_t v = byte(in);

    v |= (uint32_t) byte(in) << 8;
    v |= (uint32_t) byte(in) << 16;
    return v | (uint32_t) byte(in) << 24;
}

/* A slot that is mostly right, so that the checks behind the first one are
 * reached; each bit of `wrong` spoils a field. */
static void
put_slot(raw_t *raw, input_t *in)
{
    uint8_t      wrong = byte(in);
    uint8_t      at = byte(in);
    di_shm_sub_t slot = {
        .id = byte(in), .type = 1 + byte(in) % 4, .choice = byte(in),
        .payload_off = byte(in) * DI_SHM_ALIGN, .n_prompt = 1 + byte(in),
        .n_bias = byte(in) % 8, .n_stop_ids = byte(in) % 8,
        .n_grammar = byte(in),
    };
    di_gen_params_t params = { .top_p = 1, .repetition_penalty = 1, .n = 1 };

    if (wrong & 1)
        slot.type = word(in);
    if (wrong & 2)
        slot.payload_off = word(in);
    if (wrong & 4)
        slot.n_prompt = word(in);
    if (wrong & 8)
        slot.n_bias = word(in);
    if (wrong & 16)
        slot.n_stop_ids = word(in);
    if (at & 32)
        slot.n_grammar = word(in);
    if (wrong & 32) {
        uint32_t v = word(in);
        memcpy((char *) &params + byte(in) % 16 * 4, &v, 4);
    }
    if (wrong & 64)
        slot.payload_off = DI_IPC_ARENA_BYTES - byte(in) * DI_SHM_ALIGN;

    memcpy(raw->shm.arena + slot.payload_off % DI_IPC_ARENA_BYTES
           / DI_SHM_ALIGN * DI_SHM_ALIGN, &params, sizeof(params));

    /* Mostly where the engine looks next, mostly published. */
    raw->next += (wrong & 128) == 0;
    slot.type |= di_ring_lap(raw->next + (at & 3), DI_IPC_SUB_SLOTS);
    if (at & 16)
        slot.type ^= DI_SHM_MARK;
    raw->shm.sub[(raw->next + (at & 3)) % DI_IPC_SUB_SLOTS] = slot;
}

static void
scribble(raw_t *raw, input_t *in)
{
    uint32_t       i, off = word(in), n = byte(in);
    unsigned char *base = (unsigned char *) raw->shm.head;

    for (i = 0; i < n; i++)
        base[(off + i) % DI_SHM_BYTES] = byte(in);
}

/* -------------------------------------------------------------- engine -- */

/* What the engine was handed is sound, and all of it can be read. */
static void
check_message(const di_ipc_msg_t *msg)
{
    uint32_t i;

    MUST(msg->conn < DI_IPC_CONNS_MAX);
    if (msg->type != DI_MSG_SUBMIT)
        return;

    MUST(di_gen_request_check(&msg->req, NULL) == DI_OK);
    MUST(msg->req.n_prompt <= 5000000);
    for (i = 0; i < msg->req.n_prompt; i++)
        sink = sink ^ msg->req.prompt[i];
    for (i = 0; i < msg->req.n_bias; i++)
        sink = sink ^ msg->req.bias[i].id;
    for (i = 0; i < msg->req.n_stop_ids; i++)
        sink = sink ^ msg->req.stop_ids[i];
    for (i = 0; i < msg->req.n_grammar; i++)
        sink = sink ^ msg->req.grammar[i];
}

static void
engine_turn(raw_t *raw, input_t *in)
{
    int              i, n = byte(in), fill = byte(in);
    uint32_t         conn = byte(in) % 3;
    di_event_t       ev = { .id = 1, .type = DI_EV_LOGPROB };
    di_ipc_msg_t     msg;
    di_top_logprob_t top[DI_GEN_TOP_LOGPROBS_MAX] = { { 0, 0 } };

    for (i = 0; i < n; i++) {
        if (di_ipc_server_recv(server, &msg) != DI_OK)
            break;
        check_message(&msg);
    }

    ev.n_top = byte(in) % (DI_GEN_TOP_LOGPROBS_MAX + 1);
    /* Now and then so many that the ring is full. */
    n = fill == 0xf1 ? DI_IPC_COMP_SLOTS : n % 64;
    for (i = 0; i < n; i++) {
        if (di_ipc_server_send(server, conn, &ev, top) != DI_OK)
            break;
        raw->events += (conn == 1) * (1 + (ev.n_top + 7) / 8);
    }

    MUST(di_ipc_server_room(server, conn) <= DI_IPC_COMP_SLOTS);
    di_ipc_server_flush(server);
    if (n & 1)
        MUST(di_ipc_server_wait(server, 0) == DI_OK);
}

/* The honest worker asks, and reads all that came for it. */
static void
check_honest(void)
{
    bool                    seen = false;
    int32_t                 prompt[] = { 1, 2 };
    di_event_t              ev;
    di_ipc_msg_t            msg;
    di_gen_request_t        req = {
        .params = { .top_p = 1, .repetition_penalty = 1, .n = 1 },
        .prompt = prompt, .n_prompt = 2,
    };
    const di_top_logprob_t *top;

    di_ipc_server_flush(server);
    while (di_ipc_client_recv(honest, &ev, &top) == DI_OK) { }

    MUST(di_ipc_client_submit(honest, 42, &req, NULL) == DI_OK);
    MUST(di_ipc_client_flush(honest) == DI_OK);
    while (di_ipc_server_recv(server, &msg) == DI_OK) {
        check_message(&msg);
        seen |= msg.type == DI_MSG_SUBMIT && msg.id == 42
                && msg.req.n_prompt == 2 && msg.req.prompt[1] == 2;
    }
    MUST(seen);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    raw_t          raw;
    input_t        in = { data, data + size };
    di_shm_head_t *head;

    if (server == NULL)
        set_up();
    raw_join(&raw);
    raw.next = UINT32_MAX;
    raw.events = 0;
    head = raw.shm.head;

    while (in.p < in.end) {
        switch (byte(&in) % 8) {
        case 0:
        case 1:
            put_slot(&raw, &in);
            break;
        case 2:
            raw.next += byte(&in);
            break;
        case 3:
            head->layout.version = word(&in);
            break;
        case 4:
            atomic_store(&head->comp_head, byte(&in) & 1 ? raw.events
                                                         : word(&in));
            break;
        case 5:
            atomic_store(&head->worker_sleep, word(&in));
            break;
        case 6:
            scribble(&raw, &in);
            break;
        case 7:
            engine_turn(&raw, &in);
            break;
        }
    }

    raw_leave(&raw);
    check_honest();
    return 0;
}
