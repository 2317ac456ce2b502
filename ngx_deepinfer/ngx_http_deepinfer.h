
/*
 * ngx_http_deepinfer.h - the module's data structures.
 *
 * A pool is one model under one name, and the engines that run it.  Its
 * vocabulary and dialect are loaded while the configuration is read and shared
 * by all workers through fork.  Each worker has one connection to each engine,
 * kept by ngx_http_deepinfer_engine.c in the worker's event loop.
 *
 * What a location answers is a ngx_http_deepinfer_api_t.  APIs that have an
 * engine generate share the life of a request and differ in its gen_t, how
 * bodies are read and answers written.  Such a request lives in a
 * ngx_http_deepinfer_ctx_t:
 *
 *     body -> prepare (in place, or in a thread) -> pool->waiting
 *          -> engine->requests -> events -> output -> finalize
 *
 * While a request is in flight its own timer is armed, and that timer is not
 * cancelable: nginx lets a graceful worker go when no such timer is left.
 * Its prompts, mostly one, are submissions (sub_t), which run side by side and
 * maybe in several engines.  Engines know a submission by (slot, generation),
 * never by its address, so an event that comes late finds nothing and is
 * dropped.
 */


#ifndef _NGX_HTTP_DEEPINFER_H_INCLUDED_
#define _NGX_HTTP_DEEPINFER_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_http.h>

#include "engine/ipc/di_ipc.h"
#include "tokenizer/api/di_api.h"
#include "tokenizer/api/di_tokenize.h"
#include "tokenizer/dialect/di_dialect.h"
#include "tokenizer/dialect/di_output.h"
#include "tokenizer/grammar/di_grammar.h"
#include "tokenizer/vocab/di_vocab.h"

#include "ngx_http_deepinfer_redis.h"


/* the context of a deepinfer_pool block; the bit is not used by nginx */
#define NGX_HTTP_DEEPINFER_POOL_CONF    0x00200000

/* the longest name of a pool, an alias or a request id, in bytes */
#define NGX_HTTP_DEEPINFER_NAME_MAX     (DI_IPC_NAME_MAX - 1)
#define NGX_HTTP_DEEPINFER_ID_MAX       128

/*
 * Prompts are encoded whole even if no model could take them, to name their
 * real length, up to what the channel to an engine could carry at all.
 */

#define NGX_HTTP_DEEPINFER_PROMPT_MAX  (DI_IPC_ARENA_BYTES / sizeof(int32_t))

/* engines that one request may be given to before it fails */
#define NGX_HTTP_DEEPINFER_TRIES        2

#define NGX_HTTP_DEEPINFER_BUCKETS      14


typedef struct ngx_http_deepinfer_main_conf_s  ngx_http_deepinfer_main_conf_t;
typedef struct ngx_http_deepinfer_pool_s       ngx_http_deepinfer_pool_t;
typedef struct ngx_http_deepinfer_engine_s     ngx_http_deepinfer_engine_t;
typedef struct ngx_http_deepinfer_ctx_s        ngx_http_deepinfer_ctx_t;
typedef struct ngx_http_deepinfer_sub_s        ngx_http_deepinfer_sub_t;
typedef struct ngx_http_deepinfer_prepare_s    ngx_http_deepinfer_prepare_t;


/*
 * How an API reads requests for an engine and writes what the engine says.
 * Functions return DI_OK or a code; parse() and encode() may run in a thread,
 * and explain themselves in the prepare_t's err.  An API without open() asks
 * no engine: its encode() writes the answer.
 */

typedef struct {
    di_api_t                       api;         /* shape of its errors */
    const char                    *id;          /* prefix of answers' ids */
    const char                    *prompt;      /* field that holds it */

    /* fill req and what comes from it; then ids, or the answer */
    int                          (*parse)(ngx_http_deepinfer_prepare_t *p,
                                       const char *body);
    int                          (*encode)(ngx_http_deepinfer_prepare_t *p);

    /* the writer of the answer, ctx->out, adds to ctx->pending */
    int                          (*open)(ngx_http_deepinfer_ctx_t *ctx,
                                       const char *id);
    int                          (*logprob)(ngx_http_deepinfer_sub_t *sub,
                                       const di_event_t *ev,
                                       const di_top_logprob_t *top);
    int                          (*tokens)(ngx_http_deepinfer_sub_t *sub,
                                       const di_event_t *ev, bool *stopped);
    int                          (*finish)(ngx_http_deepinfer_sub_t *sub,
                                       uint32_t choice, ngx_uint_t length,
                                       bool *done);
    int                          (*end)(ngx_http_deepinfer_ctx_t *ctx);
    uint32_t                     (*completion_tokens)(const void *out);
    const char                  *(*finish_reason)(const void *out);
    void                         (*close)(void *out);

    /* NULL where an API has nothing of the kind */
    int                          (*start)(ngx_http_deepinfer_sub_t *sub);
    int                          (*prompt_logprob)(
                                       ngx_http_deepinfer_sub_t *sub,
                                       const di_event_t *ev,
                                       const di_top_logprob_t *top);
    uint64_t                     (*sequence)(const void *out);
} ngx_http_deepinfer_gen_t;


/* What a location answers: the argument of deepinfer_api. */

typedef struct {
    ngx_str_t                      name;
    ngx_int_t                    (*handler)(ngx_http_request_t *r);
    const ngx_http_deepinfer_gen_t *gen;        /* NULL: asks no engine */
} ngx_http_deepinfer_api_t;


/*
 * Counters of one pool in the shared zone.  All workers add to them with
 * atomic operations; nothing is ever removed, so that workers of an older
 * configuration may go on counting in them.
 */

typedef struct {
    ngx_atomic_t                   buckets[NGX_HTTP_DEEPINFER_BUCKETS];
    ngx_atomic_t                   count;
    ngx_atomic_t                   sum;         /* microseconds */
} ngx_http_deepinfer_histogram_t;


typedef enum {
    ngx_http_deepinfer_code_200 = 0,
    ngx_http_deepinfer_code_400,
    ngx_http_deepinfer_code_404,
    ngx_http_deepinfer_code_405,
    ngx_http_deepinfer_code_408,
    ngx_http_deepinfer_code_415,
    ngx_http_deepinfer_code_429,
    ngx_http_deepinfer_code_499,
    ngx_http_deepinfer_code_500,
    ngx_http_deepinfer_code_503,
    ngx_http_deepinfer_code_other,
    ngx_http_deepinfer_codes
} ngx_http_deepinfer_code_e;


typedef enum {
    ngx_http_deepinfer_finish_none = 0,
    ngx_http_deepinfer_finish_stop,
    ngx_http_deepinfer_finish_length,
    ngx_http_deepinfer_finish_tool_calls,
    ngx_http_deepinfer_finish_error,
    ngx_http_deepinfer_finish_abort,
    ngx_http_deepinfer_finishes
} ngx_http_deepinfer_finish_e;


typedef struct {
    ngx_queue_t                    queue;       /* list in the zone */
    ngx_atomic_t                   codes[ngx_http_deepinfer_codes];
    ngx_atomic_t                   finishes[ngx_http_deepinfer_finishes];
    ngx_atomic_t                   prompt_tokens;
    ngx_atomic_t                   cached_tokens;
    ngx_atomic_t                   completion_tokens;
    ngx_atomic_t                   resubmits;   /* moved to another engine */
    ngx_http_deepinfer_histogram_t ttft;
    ngx_http_deepinfer_histogram_t tpot;
    size_t                         len;         /* of the pool's name */
    u_char                         name[NGX_HTTP_DEEPINFER_NAME_MAX];
} ngx_http_deepinfer_stats_t;


/* Records by id in the shared zone, under its lock. */

typedef struct {
    ngx_rbtree_t                   rbtree;      /* by id */
    ngx_rbtree_node_t              sentinel;
    ngx_queue_t                    queue;       /* used last comes first */
    size_t                         size;        /* of all, in bytes */
    ngx_uint_t                     records;
    ngx_uint_t                     found;       /* look-ups so far */
    ngx_uint_t                     missed;
    ngx_uint_t                     evicted;     /* records, to make room */
} ngx_http_deepinfer_kept_t;


/* How a configuration keeps them. */

typedef struct {
    ngx_http_deepinfer_kept_t     *kept;        /* NULL: there is no zone */
    ngx_slab_pool_t               *shpool;
    size_t                         size;        /* bound, in bytes */
    time_t                         ttl;         /* seconds; 0: no end */
} ngx_http_deepinfer_keep_t;


/* What compilations of grammars cost, in the shared zone. */

typedef struct {
    ngx_atomic_t                   count;
    ngx_atomic_t                   refused;     /* of them */
    ngx_atomic_t                   time;        /* microseconds */
} ngx_http_deepinfer_compiling_t;


/* A grammar that an answer must hold, as a text. */

typedef struct {
    di_output_t                    output;      /* owned; empty: none */
    di_gram_opts_t                 opts;
    u_char                         key[DI_GRAM_KEY_BYTES];
} ngx_http_deepinfer_source_t;


/* What compiling it gave.  The event loop counts references. */

typedef struct {
    ngx_uint_t                     refs;
    di_sbuf_t                      record;      /* owned, as it is kept;
                                                   failed: out of memory */
} ngx_http_deepinfer_compiled_t;


/* A look-up in the store; its owner keeps it until it is answered. */

typedef struct ngx_http_deepinfer_fetch_s  ngx_http_deepinfer_fetch_t;

struct ngx_http_deepinfer_fetch_s {
    void                         (*handler)(ngx_http_deepinfer_fetch_t *fetch);
    void                          *data;        /* the owner */
    ngx_http_deepinfer_redis_op_t *op;          /* under way; NULL: none */
    ngx_int_t                      rc;
    di_sbuf_t                      record;      /* what was found */
};


/* One entry of the table that turns an engine's id into a submission. */

typedef struct {
    ngx_http_deepinfer_sub_t      *sub;         /* NULL: the slot is free */
    uint32_t                       generation;  /* raised at each use */
    uint32_t                       next;        /* next free slot */
} ngx_http_deepinfer_slot_t;


typedef enum {
    ngx_http_deepinfer_op_cancel = 0,
    ngx_http_deepinfer_op_cancel_choice,
    ngx_http_deepinfer_op_pause,
    ngx_http_deepinfer_op_resume
} ngx_http_deepinfer_op_e;


/* A control message that found the submission ring full. */

typedef struct {
    uint64_t                       id;
    ngx_http_deepinfer_op_e        op;
    uint32_t                       choice;
} ngx_http_deepinfer_control_t;


/* An engine of a pool.  All but the first four fields are the worker's own. */

struct ngx_http_deepinfer_engine_s {
    ngx_http_deepinfer_pool_t     *pool;
    ngx_str_t                      name;        /* unix:PATH */
    const char                    *path;        /* PATH */
    ngx_log_t                     *log;         /* of the cycle */

    di_ipc_client_t               *client;      /* NULL: not connected */
    ngx_connection_t              *socket;      /* its end is a death notice */
    ngx_connection_t              *bell;        /* eventfd: events have come */

    ngx_event_t                    timer;       /* reconnect, handshake, or
                                                   does it still live? */
    ngx_event_t                    flush;       /* posted: publish a batch */
    ngx_event_t                    retry;       /* the ring was full */
    ngx_msec_t                     backoff;     /* before the next connect */
    uint64_t                       now;         /* when events were taken */
    uint64_t                       seen;        /* its last sign of life */

    ngx_queue_t                    subs;        /* submitted, by sub->queue */
    ngx_queue_t                    dirty;       /* to be written */
    ngx_uint_t                     unstarted;   /* of them, not yet admitted */

    ngx_http_deepinfer_slot_t     *slots;       /* [n_slots] */
    uint32_t                       n_slots;
    uint32_t                       free_slot;   /* n_slots: none */

    ngx_http_deepinfer_control_t  *controls;    /* [n_controls] put off */
    ngx_uint_t                     n_controls;
    ngx_uint_t                     controls_max;

    unsigned                       ready:1;     /* handshake done */

    /* why it is absent, as it was logged last; empty: it is not */
    char                           reason[sizeof(((di_err_t *) 0)->text)];
};


/* How conversations are spelled for a pool's model. */

typedef struct {
    di_dialect_t                  *dialect;     /* owned by the pool */
    di_model_name_t               *models;      /* [n_models], for the codec */
    size_t                         n_models;
} ngx_http_deepinfer_spelling_t;


struct ngx_http_deepinfer_pool_s {
    ngx_str_t                      name;
    ngx_str_t                      model;       /* path of file or folder */
    ngx_str_t                      dialect_name; /* empty: by the template */
    ngx_array_t                    engines;     /* of engine_t */
    ngx_array_t                    aliases;     /* of ngx_str_t */
    ngx_int_t                      queue;       /* bound of waiting requests */
    ngx_msec_t                     engine_timeout; /* of one that hangs */
    ngx_http_deepinfer_main_conf_t *main;

    di_vocab_t                    *vocab;
    ngx_array_t                    spellings;   /* of spelling_t *, the first
                                                   is the pool's own */
    u_char                         fingerprint[DI_IPC_FINGERPRINT];
    time_t                         created;     /* of the model's file */
    unsigned                       fingerprinted:1;

    ngx_http_deepinfer_stats_t    *stats;       /* in the shared zone */

    /* the worker's own */
    di_tok_t                      *tok;         /* the event loop's */
    ngx_array_t                    toks;        /* of di_tok_t *, idle ones of
                                                   threads */
    ngx_queue_t                    waiting;     /* for a ring, sub->queue */
    ngx_uint_t                     turn;        /* breaks ties of engines */
};


struct ngx_http_deepinfer_main_conf_s {
    ngx_array_t                    pools;       /* of pool_t * */
    ngx_shm_zone_t                *zone;
    ngx_http_deepinfer_stats_t    *stats;       /* of no pool, in the zone;
                                                   NULL: there is none */
    ngx_http_deepinfer_redis_t    *redis;       /* NULL: store in the zone */
    ngx_http_deepinfer_keep_t      store;       /* of responses */
    ngx_http_deepinfer_keep_t      grammars;    /* compiled, by their key */
    ngx_http_deepinfer_compiling_t *compile_stats; /* in the zone */
    ngx_http_deepinfer_pool_t     *current;     /* while its block is read */
    ngx_array_t                    filters;     /* ctx_index of modules that
                                                   filter bodies */
    ngx_uint_t                     direct;      /* all of those are known */

    /* the worker's own */
    ngx_queue_t                    compiling;   /* grammars */
    ngx_event_t                    drain;       /* then streams are ended */
    unsigned                       exiting:1;   /* graceful exit was noticed */
    unsigned                       drained:1;   /* streams were ended */
};


typedef struct {
    ngx_http_deepinfer_pool_t     *pool;        /* deepinfer_pass POOL */
    ngx_http_complex_value_t      *pass;        /* deepinfer_pass $variable */
    ngx_str_t                      dialect;     /* empty: the pool's own */
    ngx_uint_t                     codec;       /* di_codec_t */
    const ngx_http_deepinfer_api_t *api;
    ngx_msec_t                     ping;        /* 0: off */
    size_t                         buffer_size; /* of a slow client */
    size_t                         thread_size; /* bodies that go to threads */
    ngx_flag_t                     ignore_client_abort;
    ngx_uint_t                     grammar_space; /* white space, flexible */
    ngx_flag_t                     grammar_finish; /* within max_tokens */
    di_gram_limits_t               grammar_limits;
#if (NGX_THREADS)
    ngx_thread_pool_t             *threads;     /* NULL: never */
#endif
    u_char                        *api_file;    /* where deepinfer_api is */
    ngx_uint_t                     api_line;
    u_char                        *dialect_file; /* and deepinfer_dialect */
    ngx_uint_t                     dialect_line;
} ngx_http_deepinfer_loc_conf_t;


/* One prompt of several. */

typedef struct {
    size_t                         first;       /* in the ids of all */
    size_t                         n;
    size_t                         hidden;      /* of them, not the client's */
} ngx_http_deepinfer_part_t;


/*
 * From a body to a prompt.  A thread may work on it: it uses nothing of the
 * request but the bytes of the body, which the request holds meanwhile.
 */

struct ngx_http_deepinfer_prepare_s {
    ngx_http_deepinfer_pool_t     *pool;
    ngx_http_deepinfer_spelling_t *spelling;    /* of pool */
    ngx_http_deepinfer_loc_conf_t *conf;
    di_tok_t                      *tok;         /* the running thread's own */
    ngx_chain_t                   *bufs;        /* the body, as it was read */
    size_t                         len;         /* of the body */
    u_char                        *gathered;    /* malloc'ed copy, or NULL */
    uint32_t                       max_model_len; /* 0: no engine tells */
    char                           id[33];      /* of the answer, random */

    di_req_t                      *req;         /* owned */
    di_tokenize_t                 *text;        /* owned, of tokenize */
    const di_req_params_t         *params;      /* of req */
    di_str_t                       model;       /* as named; empty: not */
    di_str_t                       ignored;     /* of req, unknown fields */

    int32_t                       *ids;         /* owned, [n_ids] prompt */
    size_t                         n_ids;
    size_t                         ids_max;     /* room in ids */
    di_work_t                     *work;        /* owned, to be encoded in
                                                   parts; NULL: ids are made */
    ngx_atomic_t                   next;        /* part of work to be taken */
    ngx_uint_t                     tasks;       /* threads that work on it */
    ngx_http_deepinfer_part_t     *parts;       /* owned, [n_parts] */
    size_t                         n_parts;     /* 0: ids are one prompt */

    di_sbuf_t                      previous;    /* owned, id of the response
                                                   that it goes on from */
    di_sbuf_t                      record;      /* owned, that response */
    di_sbuf_t                      history;     /* owned, its conversation */
    di_sbuf_t                      items;       /* owned, input to be stored */
    di_sbuf_t                      answer;      /* owned, of an API that asks
                                                   no engine */
    ngx_http_deepinfer_source_t    source;      /* of the answer's grammar */
    unsigned                       store:1;     /* the answer */
    unsigned                       parallel:1;  /* other threads may help */
    const ngx_http_deepinfer_gen_t *api;
    di_api_err_t                   err;         /* status 0: none */
};


/*
 * A prompt with all its choices: what an engine gets.  What every event looks
 * at stands together, up to gen.params: between two events the engine's
 * computing has emptied the caches.
 */

struct ngx_http_deepinfer_sub_s {
    ngx_http_deepinfer_ctx_t      *ctx;
    ngx_http_deepinfer_engine_t   *engine;      /* where it runs, or NULL */
    uint64_t                       id;          /* slot and generation */
    uint32_t                       part;        /* number of the prompt */

    unsigned                       queued:1;    /* `queue` is in a list */
    unsigned                       held:1;      /* until another one ends */
    unsigned                       started:1;   /* admitted by the engine */
    unsigned                       begun:1;     /* the writer knows of it */
    unsigned                       paused:1;    /* the engine was told so */
    unsigned                       over:1;      /* the engine has ended it */

    di_gen_request_t               gen;
    ngx_queue_t                    queue;       /* in waiting or subs */
    uint32_t                       cached_tokens;
    uint64_t                       finished[DI_GEN_N_MAX / 64];
};


/*
 * A request.  What every event touches comes first, and last the text of an
 * error, which nobody reads, nor clears, while there is none.
 */

struct ngx_http_deepinfer_ctx_s {
    ngx_http_request_t            *request;
    void                          *out;         /* owned, the API's own */
    ngx_queue_t                    dirty;       /* in an engine's dirty */

    unsigned                       stream:1;
    unsigned                       queued:1;    /* `queue` is in a list */
    unsigned                       is_dirty:1;  /* `dirty` is in a list */
    unsigned                       content:1;   /* events made output */
    unsigned                       done:1;      /* the last output is made */
    unsigned                       moved:1;     /* try another engine */
    unsigned                       next:1;      /* a submission has ended */
    unsigned                       blocked:1;   /* the client is slow */
    unsigned                       direct:1;    /* no filter changes it */
    unsigned                       finalized:1; /* we ended the request */
    unsigned                       closed:1;    /* cleanup has run */

    ngx_http_deepinfer_finish_e    finish;
    uint64_t                       first;       /* of the first token, or 0 */
    uint64_t                       last;        /* of the latest token */
    ngx_msec_t                     sent;        /* time of the last output */

    di_sbuf_t                      pending;     /* to be sent */
    di_sbuf_t                      sending;     /* nginx has it */
    ngx_buf_t                      buf;         /* over `sending` */
    ngx_chain_t                    link;

    ngx_http_deepinfer_loc_conf_t *conf;
    ngx_http_deepinfer_pool_t     *pool;        /* NULL: not known yet */
    ngx_http_deepinfer_engine_t   *last_engine; /* where it ran, for logs */
    ngx_http_deepinfer_engine_t   *avoid;       /* where it failed, or NULL */

    ngx_queue_t                    queue;       /* waits for a grammar */
    ngx_event_t                    timer;       /* ping; never cancelable */

    ngx_http_deepinfer_fetch_t     fetch;       /* of the earlier response */
    ngx_http_deepinfer_compiled_t *compiled;    /* reference, grammar in gen */
    di_gen_request_t               gen;         /* all but the prompt */
    ngx_http_deepinfer_sub_t      *subs;        /* [n_subs] */
    ngx_uint_t                     n_subs;
    ngx_uint_t                     n_open;      /* of them, not over */

    ngx_str_t                      request_id;
    uint64_t                       start;       /* microseconds, monotonic */
    uint64_t                       cached_tokens;
    ngx_uint_t                     tries;       /* to get it run, so far */
    ngx_uint_t                     status;      /* of the answer: metrics */
    ngx_uint_t                     retry_after; /* seconds; 0: no header */

    ngx_http_deepinfer_prepare_t   prepare;
};


/* ngx_http_deepinfer_module.c */

extern ngx_module_t  ngx_http_deepinfer_module;

ngx_int_t ngx_http_deepinfer_select_pool(ngx_http_request_t *r,
    ngx_http_deepinfer_loc_conf_t *dlcf, ngx_http_deepinfer_pool_t **pool);

/* ngx_http_deepinfer_pool.c */

char *ngx_http_deepinfer_pool(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
char *ngx_http_deepinfer_pool_engine(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_deepinfer_pool_alias(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_deepinfer_pool_model(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_deepinfer_pool_dialect(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_deepinfer_pool_queue(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_deepinfer_pool_engine_timeout(ngx_conf_t *cf,
    ngx_command_t *cmd, void *conf);
ngx_http_deepinfer_pool_t *ngx_http_deepinfer_find_pool(
    ngx_http_deepinfer_main_conf_t *mcf, ngx_str_t *name);
ngx_http_deepinfer_spelling_t *ngx_http_deepinfer_find_spelling(
    ngx_http_deepinfer_pool_t *pool, ngx_str_t *name);
ngx_int_t ngx_http_deepinfer_add_spelling(ngx_conf_t *cf,
    ngx_http_deepinfer_pool_t *pool, ngx_str_t *name, di_err_t *err);
ngx_uint_t ngx_http_deepinfer_pool_answers(ngx_http_deepinfer_pool_t *pool,
    const char *data, size_t len);

/* ngx_http_deepinfer_engine.c */

void ngx_http_deepinfer_engine_init(ngx_http_deepinfer_engine_t *engine,
    ngx_cycle_t *cycle);
void ngx_http_deepinfer_engine_deinit(ngx_http_deepinfer_engine_t *engine);
void ngx_http_deepinfer_engine_lost(ngx_http_deepinfer_engine_t *engine,
    const char *reason);
void ngx_http_deepinfer_engine_poll(ngx_http_deepinfer_engine_t *engine);

/* ngx_http_deepinfer_channel.c */

ngx_int_t ngx_http_deepinfer_engine_submit(ngx_http_deepinfer_engine_t *engine,
    ngx_http_deepinfer_sub_t *sub, di_err_t *err);
void ngx_http_deepinfer_engine_control(ngx_http_deepinfer_engine_t *engine,
    uint64_t id, ngx_http_deepinfer_op_e op, uint32_t choice);
void ngx_http_deepinfer_engine_release(ngx_http_deepinfer_sub_t *sub);
int ngx_http_deepinfer_engine_take(ngx_http_deepinfer_engine_t *engine);
void ngx_http_deepinfer_engine_write(ngx_http_deepinfer_engine_t *engine);
void ngx_http_deepinfer_engine_flush_handler(ngx_event_t *ev);
void ngx_http_deepinfer_engine_retry_handler(ngx_event_t *ev);
uint32_t ngx_http_deepinfer_max_model_len(ngx_http_deepinfer_pool_t *pool);
ngx_uint_t ngx_http_deepinfer_engine_status(
    ngx_http_deepinfer_engine_t *engine, di_ipc_status_t *status);
ngx_msec_t ngx_http_deepinfer_engine_silence(
    ngx_http_deepinfer_engine_t *engine);

/* ngx_http_deepinfer_dispatch.c */

void ngx_http_deepinfer_dispatch(ngx_http_deepinfer_sub_t *sub);
void ngx_http_deepinfer_dispatch_waiting(ngx_http_deepinfer_pool_t *pool);
void ngx_http_deepinfer_exiting(ngx_http_deepinfer_main_conf_t *mcf);

/* ngx_http_deepinfer_prepare.c */

void ngx_http_deepinfer_prepare(ngx_http_deepinfer_prepare_t *p);
void ngx_http_deepinfer_prepare_free(ngx_http_deepinfer_prepare_t *p);
void ngx_http_deepinfer_prepare_part_of(ngx_http_deepinfer_prepare_t *p,
    di_tok_t *tok);
int ngx_http_deepinfer_prepare_join(ngx_http_deepinfer_prepare_t *p);
di_tok_t *ngx_http_deepinfer_take_tok(ngx_http_deepinfer_pool_t *pool);
void ngx_http_deepinfer_give_tok(ngx_http_deepinfer_pool_t *pool,
    di_tok_t *tok);
int ngx_http_deepinfer_prepare_parse(ngx_http_deepinfer_prepare_t *p,
    const char *body);
int ngx_http_deepinfer_prepare_conv(ngx_http_deepinfer_prepare_t *p,
    const di_conv_t *conv);
int ngx_http_deepinfer_prepare_text(ngx_http_deepinfer_prepare_t *p,
    di_str_t text, ngx_uint_t bos);
int ngx_http_deepinfer_prepare_ids(ngx_http_deepinfer_prepare_t *p,
    const int32_t *ids, size_t n);
int ngx_http_deepinfer_prepare_no_memory(ngx_http_deepinfer_prepare_t *p);
ngx_int_t ngx_http_deepinfer_prepare_gen(ngx_http_deepinfer_ctx_t *ctx);
void ngx_http_deepinfer_prepare_sub(ngx_http_deepinfer_ctx_t *ctx,
    ngx_uint_t n);

/* ngx_http_deepinfer_grammar.c */

char *ngx_http_deepinfer_grammar_limits(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_deepinfer_grammar_cache(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
int ngx_http_deepinfer_grammar_source(ngx_http_deepinfer_prepare_t *p);
void ngx_http_deepinfer_constrain(ngx_http_deepinfer_ctx_t *ctx);
void ngx_http_deepinfer_compiled_unref(
    ngx_http_deepinfer_compiled_t *compiled);

/* ngx_http_deepinfer_conv.c */

extern const ngx_http_deepinfer_gen_t  ngx_http_deepinfer_chat;
extern const ngx_http_deepinfer_gen_t  ngx_http_deepinfer_responses;
extern const ngx_http_deepinfer_gen_t  ngx_http_deepinfer_messages;

/* ngx_http_deepinfer_completions.c */

extern const ngx_http_deepinfer_gen_t  ngx_http_deepinfer_completions;

/* ngx_http_deepinfer_tokenize.c */

extern const ngx_http_deepinfer_gen_t  ngx_http_deepinfer_tokenize;
extern const ngx_http_deepinfer_gen_t  ngx_http_deepinfer_detokenize;
extern const ngx_http_deepinfer_gen_t  ngx_http_deepinfer_count_tokens;

/* ngx_http_deepinfer_request.c */

ngx_http_deepinfer_ctx_t *ngx_http_deepinfer_get_ctx(ngx_http_request_t *r);
ngx_int_t ngx_http_deepinfer_gen_handler(ngx_http_request_t *r);
void ngx_http_deepinfer_start(ngx_http_deepinfer_ctx_t *ctx);
void ngx_http_deepinfer_release(ngx_http_deepinfer_ctx_t *ctx);
ngx_uint_t ngx_http_deepinfer_others(ngx_http_deepinfer_sub_t *sub);
void ngx_http_deepinfer_engine_gone(ngx_http_deepinfer_sub_t *sub);
void ngx_http_deepinfer_run(ngx_http_deepinfer_ctx_t *ctx);
void ngx_http_deepinfer_test_writing(ngx_http_request_t *r);

/* ngx_http_deepinfer_event.c */

void ngx_http_deepinfer_event(ngx_http_deepinfer_sub_t *sub,
    const di_event_t *ev, const di_top_logprob_t *top);
void ngx_http_deepinfer_move(ngx_http_deepinfer_ctx_t *ctx,
    ngx_http_deepinfer_engine_t *from);
void ngx_http_deepinfer_fail(ngx_http_deepinfer_ctx_t *ctx, ngx_int_t status,
    const char *code, const char *text);
void ngx_http_deepinfer_fail_memory(ngx_http_deepinfer_ctx_t *ctx);

/* ngx_http_deepinfer_direct.c */

ngx_int_t ngx_http_deepinfer_direct_init(ngx_conf_t *cf,
    ngx_http_deepinfer_main_conf_t *mcf);
ngx_uint_t ngx_http_deepinfer_direct_allowed(ngx_http_deepinfer_ctx_t *ctx);
ngx_int_t ngx_http_deepinfer_direct(ngx_http_deepinfer_ctx_t *ctx);

/* ngx_http_deepinfer_output.c */

void ngx_http_deepinfer_output_stream(ngx_http_deepinfer_ctx_t *ctx);
void ngx_http_deepinfer_output_body(ngx_http_deepinfer_ctx_t *ctx);
void ngx_http_deepinfer_output_error(ngx_http_deepinfer_ctx_t *ctx);
ngx_int_t ngx_http_deepinfer_send_json(ngx_http_request_t *r,
    ngx_uint_t status, di_sbuf_t *body);
ngx_int_t ngx_http_deepinfer_send_error(ngx_http_request_t *r,
    const di_api_err_t *err, ngx_uint_t retry_after);
di_api_t ngx_http_deepinfer_shape(ngx_http_request_t *r);
ngx_uint_t ngx_http_deepinfer_is_anthropic(ngx_http_request_t *r);
ngx_int_t ngx_http_deepinfer_send_not_allowed(ngx_http_request_t *r,
    const char *allow);

/* ngx_http_deepinfer_api.c */

ngx_int_t ngx_http_deepinfer_models_handler(ngx_http_request_t *r);
ngx_uint_t ngx_http_deepinfer_path_after(ngx_http_request_t *r,
    const char *name, ngx_str_t *path);
ngx_int_t ngx_http_deepinfer_health_handler(ngx_http_request_t *r);
ngx_int_t ngx_http_deepinfer_error_handler(ngx_http_request_t *r);

/* ngx_http_deepinfer_responses.c */

ngx_int_t ngx_http_deepinfer_responses_handler(ngx_http_request_t *r);

/* ngx_http_deepinfer_store.c */

char *ngx_http_deepinfer_store(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
void ngx_http_deepinfer_store_put(ngx_http_deepinfer_main_conf_t *mcf,
    ngx_str_t *id, di_sbuf_t *record);
ngx_int_t ngx_http_deepinfer_store_get(ngx_http_deepinfer_main_conf_t *mcf,
    ngx_str_t *id, ngx_http_deepinfer_fetch_t *fetch);
ngx_int_t ngx_http_deepinfer_store_delete(ngx_http_deepinfer_main_conf_t *mcf,
    ngx_str_t *id, ngx_http_deepinfer_fetch_t *fetch);
void ngx_http_deepinfer_store_forget(ngx_http_deepinfer_fetch_t *fetch);

/* ngx_http_deepinfer_kept.c */

void ngx_http_deepinfer_kept_init(ngx_http_deepinfer_kept_t *kept);
ngx_int_t ngx_http_deepinfer_kept_put(ngx_http_deepinfer_keep_t *keep,
    ngx_str_t *id, const void *data, size_t len);
ngx_int_t ngx_http_deepinfer_kept_get(ngx_http_deepinfer_keep_t *keep,
    ngx_str_t *id, di_sbuf_t *data);
ngx_int_t ngx_http_deepinfer_kept_delete(ngx_http_deepinfer_keep_t *keep,
    ngx_str_t *id);

/* ngx_http_deepinfer_metrics.c */

ngx_int_t ngx_http_deepinfer_zone_init(ngx_shm_zone_t *zone, void *data);
void ngx_http_deepinfer_metrics_request(ngx_http_deepinfer_ctx_t *ctx);
ngx_int_t ngx_http_deepinfer_metrics_handler(ngx_http_request_t *r);

/* ngx_http_deepinfer_variables.c */

ngx_int_t ngx_http_deepinfer_add_variables(ngx_conf_t *cf);

/* ngx_http_deepinfer_header.c */

ngx_table_elt_t *ngx_http_deepinfer_find_header(ngx_list_t *headers,
    const char *name);
ngx_int_t ngx_http_deepinfer_add_header(ngx_http_request_t *r,
    const char *name, u_char *value, size_t len);
ngx_int_t ngx_http_deepinfer_request_id(ngx_http_request_t *r, ngx_str_t *id);
ngx_int_t ngx_http_deepinfer_random(void *buf, size_t len);
uint64_t ngx_http_deepinfer_now(void);


#endif /* _NGX_HTTP_DEEPINFER_H_INCLUDED_ */
