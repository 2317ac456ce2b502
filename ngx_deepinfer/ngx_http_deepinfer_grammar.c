
/*
 * ngx_http_deepinfer_grammar.c - from the text of a grammar to its compiled
 * form, which goes to an engine with the request.
 *
 * What compiling gives, a block of bytes or a reason why there is none, is
 * kept in the shared zone for all workers, by the SHA-256 of all that it
 * depends on.  So a request first looks there.  If nothing is found, a thread
 * compiles; a worker's requests that want the same text meanwhile wait for
 * the same compilation.  It owns all that it works on, and goes on when
 * nobody waits any longer: the result is of use to the next request.
 *
 * The compiler is bounded in time and memory, whatever the text is, but needs
 * more stack than RLIMIT_STACK may give to the threads of nginx's pool.  So
 * it runs in a thread of its own with that much, for which the pool's thread
 * waits: the pool still bounds how many run at once.
 */


#include "ngx_http_deepinfer.h"

#include <pthread.h>


/* what the compiler asks for, and some for a thread to start and end */

#define NGX_HTTP_DEEPINFER_STACK  (4 * 1024 * 1024 + 256 * 1024)


/* Of what compiling gave: it precedes the block, or the reason. */

typedef struct {
    int32_t                        code;        /* DI_OK: a block */
    uint32_t                       unused;
} ngx_http_deepinfer_result_t;


/* A text that is being compiled. */

typedef struct {
    ngx_queue_t                    queue;       /* in main_conf's compiling */
    ngx_queue_t                    waiters;     /* by ctx->queue */
    ngx_pool_t                    *pool;        /* of this and the task */
    ngx_http_deepinfer_main_conf_t *main;
    di_sbuf_t                      text;        /* owned */
    di_gram_opts_t                 opts;
    u_char                         key[DI_GRAM_KEY_BYTES];
    ngx_http_deepinfer_compiled_t *compiled;    /* NULL: out of memory */
    uint64_t                       time;        /* that it took, microseconds */
} ngx_http_deepinfer_compile_t;


static ngx_int_t ngx_http_deepinfer_source_key(
    ngx_http_deepinfer_source_t *source);
static ngx_int_t ngx_http_deepinfer_grammar_limit(di_gram_limits_t *limits,
    ngx_str_t *value);
static ngx_http_deepinfer_compiled_t *ngx_http_deepinfer_compiled_find(
    ngx_http_deepinfer_main_conf_t *mcf, ngx_http_deepinfer_source_t *source);
static ngx_http_deepinfer_compile_t *ngx_http_deepinfer_compile_find(
    ngx_http_deepinfer_main_conf_t *mcf, ngx_http_deepinfer_source_t *source);
static ngx_http_deepinfer_compile_t *ngx_http_deepinfer_compile_create(
    ngx_http_deepinfer_main_conf_t *mcf, ngx_http_deepinfer_source_t *source);
static ngx_int_t ngx_http_deepinfer_compile_start(
    ngx_http_deepinfer_compile_t *compile, ngx_http_deepinfer_ctx_t *ctx);
static void ngx_http_deepinfer_compile_wait(
    ngx_http_deepinfer_compile_t *compile, ngx_http_deepinfer_ctx_t *ctx);
static void ngx_http_deepinfer_compile_handler(void *data, ngx_log_t *log);
static void *ngx_http_deepinfer_compile_thread(void *data);
#if (NGX_THREADS)
static void ngx_http_deepinfer_compile_done(ngx_event_t *ev);
#endif
static ngx_http_deepinfer_compiled_t *ngx_http_deepinfer_compile_keep(
    ngx_http_deepinfer_compile_t *compile);
static void ngx_http_deepinfer_compile_destroy(
    ngx_http_deepinfer_compile_t *compile);
static void ngx_http_deepinfer_compiled_apply(ngx_http_deepinfer_ctx_t *ctx);


/* deepinfer_grammar_cache SIZE | off */

char *
ngx_http_deepinfer_grammar_cache(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf)
{
    ngx_http_deepinfer_main_conf_t *mcf = conf;

    ssize_t     size;
    ngx_str_t  *value;

    if (mcf->grammars.size != NGX_CONF_UNSET_SIZE) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (ngx_strcmp(value[1].data, "off") == 0) {
        mcf->grammars.size = 0;
        return NGX_CONF_OK;
    }

    size = ngx_parse_size(&value[1]);

    if (size == NGX_ERROR || size == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "invalid size \"%V\"",
                           &value[1]);
        return NGX_CONF_ERROR;
    }

    mcf->grammars.size = size;

    return NGX_CONF_OK;
}


/* deepinfer_grammar_limits [memory=SIZE] [size=SIZE] [work=NUMBER] */

char *
ngx_http_deepinfer_grammar_limits(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf)
{
    ngx_http_deepinfer_loc_conf_t *dlcf = conf;

    ngx_str_t   *value;
    ngx_uint_t   i;

    value = cf->args->elts;

    for (i = 1; i < cf->args->nelts; i++) {

        if (ngx_http_deepinfer_grammar_limit(&dlcf->grammar_limits, &value[i])
            != NGX_OK)
        {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid parameter \"%V\" of "
                               "\"deepinfer_grammar_limits\"", &value[i]);
            return NGX_CONF_ERROR;
        }
    }

    return NGX_CONF_OK;
}


/* One of them.  NGX_ERROR: unknown, out of its range, or set before. */

static ngx_int_t
ngx_http_deepinfer_grammar_limit(di_gram_limits_t *limits, ngx_str_t *value)
{
    size_t     *to;
    ssize_t     size, max;
    ngx_int_t   work;
    ngx_str_t   s;

    s = *value;

    if (ngx_strncmp(s.data, "work=", 5) == 0) {
        work = ngx_atoi(s.data + 5, s.len - 5);

        if (work < 1 || limits->work != NGX_CONF_UNSET_UINT) {
            return NGX_ERROR;
        }

        limits->work = work;
        return NGX_OK;
    }

    if (ngx_strncmp(s.data, "memory=", 7) == 0) {
        to = &limits->memory_bytes;
        max = NGX_MAX_SIZE_T_VALUE;
        s.data += 7;
        s.len -= 7;

    } else if (ngx_strncmp(s.data, "size=", 5) == 0) {
        to = &limits->blob_bytes;
        max = DI_IPC_GRAMMAR_MAX;
        s.data += 5;
        s.len -= 5;

    } else {
        return NGX_ERROR;
    }

    size = ngx_parse_size(&s);

    if (size < 1 || size > max || *to != NGX_CONF_UNSET_SIZE) {
        return NGX_ERROR;
    }

    *to = size;

    return NGX_OK;
}


/* What the answer is held to, if to anything.  May run in a thread. */

int
ngx_http_deepinfer_grammar_source(ngx_http_deepinfer_prepare_t *p)
{
    int                             rc;
    const di_constraint_t          *constraint;
    ngx_http_deepinfer_source_t    *source;
    ngx_http_deepinfer_loc_conf_t  *dlcf;

    source = &p->source;
    dlcf = p->conf;
    constraint = di_req_constraint(p->req);

    rc = di_dialect_grammar(p->spelling->dialect, di_req_conv(p->req),
                            di_req_parsing(p->req), constraint,
                            &source->output, &p->err);

    if (rc != DI_OK || source->output.text.len == 0) {
        return rc;
    }

    source->opts.any_order = constraint->any_order;
    source->opts.flexible = (constraint->spaces == DI_SPACES_DEFAULT)
                            ? dlcf->grammar_space
                            : (constraint->spaces == DI_SPACES_FLEXIBLE);
    source->opts.limits = dlcf->grammar_limits;

    if (ngx_http_deepinfer_source_key(source) != NGX_OK) {
        return ngx_http_deepinfer_prepare_no_memory(p);
    }

    return DI_OK;
}


/* The name of a source: the text and how it is read. */

static ngx_int_t
ngx_http_deepinfer_source_key(ngx_http_deepinfer_source_t *source)
{
    return (di_gram_key(DI_GRAM_OUTPUT, source->output.text.data,
                        source->output.text.len, &source->opts, source->key)
            == DI_OK)
           ? NGX_OK : NGX_ERROR;
}


/*
 * Start a request that is prepared, with its grammar if it has one.  That
 * may happen later; it may be finalized on return, with the error that it
 * got.
 */

void
ngx_http_deepinfer_constrain(ngx_http_deepinfer_ctx_t *ctx)
{
    ngx_int_t                        rc;
    ngx_http_deepinfer_source_t     *source;
    ngx_http_deepinfer_compile_t    *compile;
    ngx_http_deepinfer_main_conf_t  *mcf;

    source = &ctx->prepare.source;
    mcf = ctx->pool->main;

    if (source->output.text.len == 0) {
        ngx_http_deepinfer_start(ctx);
        return;
    }

    ctx->compiled = ngx_http_deepinfer_compiled_find(mcf, source);

    if (ctx->compiled) {
        ngx_http_deepinfer_compiled_apply(ctx);
        return;
    }

    compile = ngx_http_deepinfer_compile_find(mcf, source);

    if (compile) {
        ngx_http_deepinfer_compile_wait(compile, ctx);
        return;
    }

    compile = ngx_http_deepinfer_compile_create(mcf, source);

    if (compile == NULL) {
        ngx_http_deepinfer_fail_memory(ctx);
        ngx_http_deepinfer_run(ctx);
        return;
    }

    rc = ngx_http_deepinfer_compile_start(compile, ctx);

    if (rc == NGX_AGAIN) {
        ngx_http_deepinfer_compile_wait(compile, ctx);
        return;
    }

    if (rc == NGX_OK) {
        ctx->compiled = ngx_http_deepinfer_compile_keep(compile);
    }

    ngx_http_deepinfer_compile_destroy(compile);

    if (rc == NGX_OK) {
        ngx_http_deepinfer_compiled_apply(ctx);
        return;
    }

    ctx->retry_after = 1;
    ngx_http_deepinfer_fail(ctx, 503, "overloaded",
                            "Too many grammars are being compiled.");
    ngx_http_deepinfer_run(ctx);
}


static void
ngx_http_deepinfer_compile_wait(ngx_http_deepinfer_compile_t *compile,
    ngx_http_deepinfer_ctx_t *ctx)
{
    ctx->queued = 1;
    ngx_queue_insert_tail(&compile->waiters, &ctx->queue);
}


/* What the zone has of it, as a copy with one reference; NULL: nothing. */

static ngx_http_deepinfer_compiled_t *
ngx_http_deepinfer_compiled_find(ngx_http_deepinfer_main_conf_t *mcf,
    ngx_http_deepinfer_source_t *source)
{
    ngx_str_t                       key;
    ngx_http_deepinfer_compiled_t  *compiled;

    compiled = ngx_calloc(sizeof(ngx_http_deepinfer_compiled_t),
                          ngx_cycle->log);
    if (compiled == NULL) {
        return NULL;
    }

    compiled->refs = 1;

    key.data = source->key;
    key.len = sizeof(source->key);

    if (ngx_http_deepinfer_kept_get(&mcf->grammars, &key, &compiled->record)
        == NGX_OK)
    {
        return compiled;
    }

    ngx_http_deepinfer_compiled_unref(compiled);

    return NULL;
}


void
ngx_http_deepinfer_compiled_unref(ngx_http_deepinfer_compiled_t *compiled)
{
    if (compiled && --compiled->refs == 0) {
        di_sbuf_free(&compiled->record);
        ngx_free(compiled);
    }
}


/* The worker's own compilation of the same text, if there is one. */

static ngx_http_deepinfer_compile_t *
ngx_http_deepinfer_compile_find(ngx_http_deepinfer_main_conf_t *mcf,
    ngx_http_deepinfer_source_t *source)
{
    ngx_queue_t                   *q;
    ngx_http_deepinfer_compile_t  *compile;

    for (q = ngx_queue_head(&mcf->compiling);
         q != ngx_queue_sentinel(&mcf->compiling);
         q = ngx_queue_next(q))
    {
        compile = ngx_queue_data(q, ngx_http_deepinfer_compile_t, queue);

        if (ngx_memcmp(compile->key, source->key, sizeof(source->key)) == 0)
        {
            return compile;
        }
    }

    return NULL;
}


/* It has a text of its own, and needs no request. */

static ngx_http_deepinfer_compile_t *
ngx_http_deepinfer_compile_create(ngx_http_deepinfer_main_conf_t *mcf,
    ngx_http_deepinfer_source_t *source)
{
    ngx_pool_t                    *pool;
    ngx_http_deepinfer_compile_t  *compile;

    pool = ngx_create_pool(1024, ngx_cycle->log);
    if (pool == NULL) {
        return NULL;
    }

    compile = ngx_pcalloc(pool, sizeof(ngx_http_deepinfer_compile_t));
    if (compile == NULL) {
        goto failed;
    }

    compile->compiled = ngx_calloc(sizeof(ngx_http_deepinfer_compiled_t),
                                   ngx_cycle->log);
    if (compile->compiled == NULL) {
        goto failed;
    }

    compile->compiled->refs = 1;
    compile->pool = pool;
    compile->main = mcf;
    compile->opts = source->opts;
    ngx_memcpy(compile->key, source->key, sizeof(source->key));
    di_sbuf_add(&compile->text, source->output.text.data,
                source->output.text.len);

    if (compile->text.failed) {
        ngx_free(compile->compiled);
        goto failed;
    }

    ngx_queue_init(&compile->waiters);
    ngx_queue_insert_tail(&mcf->compiling, &compile->queue);

    return compile;

failed:

    ngx_destroy_pool(pool);

    return NULL;
}


/* NGX_AGAIN: a thread has it; NGX_OK: it is done; NGX_ERROR: no thread. */

static ngx_int_t
ngx_http_deepinfer_compile_start(ngx_http_deepinfer_compile_t *compile,
    ngx_http_deepinfer_ctx_t *ctx)
{
#if (NGX_THREADS)
    ngx_thread_task_t  *task;

    if (ctx->conf->threads) {

        task = ngx_thread_task_alloc(compile->pool, 0);
        if (task == NULL) {
            return NGX_ERROR;
        }

        task->ctx = compile;
        task->handler = ngx_http_deepinfer_compile_handler;
        task->event.handler = ngx_http_deepinfer_compile_done;
        task->event.data = compile;

        return (ngx_thread_task_post(ctx->conf->threads, task) == NGX_OK)
               ? NGX_AGAIN : NGX_ERROR;
    }

#endif

    ngx_http_deepinfer_compile_handler(compile, NULL);

    return NGX_OK;
}


/* In a thread of nginx's pool, or in the event loop if there is no pool. */

static void
ngx_http_deepinfer_compile_handler(void *data, ngx_log_t *log)
{
    uint64_t                       start;
    sigset_t                       all, old;
    pthread_t                      thread;
    pthread_attr_t                 attr;
    ngx_http_deepinfer_compile_t  *compile = data;

    start = ngx_http_deepinfer_now();

    compile->compiled->record.failed = true;

    if (pthread_attr_init(&attr) != 0) {
        return;
    }

    /* signals are for the thread that runs the event loop */

    (void) sigfillset(&all);
    (void) pthread_sigmask(SIG_BLOCK, &all, &old);

    if (pthread_attr_setstacksize(&attr, NGX_HTTP_DEEPINFER_STACK) == 0
        && pthread_create(&thread, &attr, ngx_http_deepinfer_compile_thread,
                          compile)
           == 0)
    {
        (void) pthread_join(thread, NULL);
    }

    (void) pthread_sigmask(SIG_SETMASK, &old, NULL);
    (void) pthread_attr_destroy(&attr);

    compile->time = ngx_http_deepinfer_now() - start;
}


/* It uses nothing that is not the compilation's own. */

static void *
ngx_http_deepinfer_compile_thread(void *data)
{
    void                          *blob;
    size_t                         len;
    di_sbuf_t                      record;
    di_gram_err_t                  err;
    ngx_http_deepinfer_result_t    result;
    ngx_http_deepinfer_compile_t  *compile = data;

    blob = NULL;
    len = 0;

    ngx_memzero(&record, sizeof(di_sbuf_t));
    ngx_memzero(&result, sizeof(ngx_http_deepinfer_result_t));
    ngx_memzero(&err, sizeof(di_gram_err_t));

    result.code = di_gram_compile(DI_GRAM_OUTPUT, compile->text.data,
                                  compile->text.len, &compile->opts, &blob,
                                  &len, &err);

    if (result.code == DI_ENOMEM) {
        return NULL;
    }

    di_sbuf_add(&record, (char *) &result, sizeof(result));

    if (result.code == DI_OK) {
        di_sbuf_add(&record, blob, len);
        free(blob);

    } else {
        di_sbuf_add(&record, (char *) &err, sizeof(di_gram_err_t));
    }

    compile->compiled->record = record;

    return NULL;
}


#if (NGX_THREADS)

static void
ngx_http_deepinfer_compile_done(ngx_event_t *ev)
{
    ngx_connection_t               *c;
    ngx_http_deepinfer_ctx_t       *ctx;
    ngx_http_deepinfer_compile_t   *compile;
    ngx_http_deepinfer_compiled_t  *compiled;

    compile = ev->data;
    compiled = ngx_http_deepinfer_compile_keep(compile);

    while (!ngx_queue_empty(&compile->waiters)) {
        ctx = ngx_queue_data(ngx_queue_head(&compile->waiters),
                             ngx_http_deepinfer_ctx_t, queue);
        c = ctx->request->connection;

        ngx_queue_remove(&ctx->queue);
        ctx->queued = 0;

        ngx_http_set_log_request(c->log, ctx->request);

        compiled->refs++;
        ctx->compiled = compiled;

        ngx_http_deepinfer_compiled_apply(ctx);
        ngx_http_run_posted_requests(c);
    }

    ngx_http_deepinfer_compiled_unref(compiled);
    ngx_http_deepinfer_compile_destroy(compile);
}

#endif


/* Count what it gave, share it with all workers, and return it. */

static ngx_http_deepinfer_compiled_t *
ngx_http_deepinfer_compile_keep(ngx_http_deepinfer_compile_t *compile)
{
    ngx_str_t                        key;
    di_sbuf_t                       *record;
    ngx_http_deepinfer_compiled_t   *compiled;
    ngx_http_deepinfer_compiling_t  *stats;

    compiled = compile->compiled;
    compile->compiled = NULL;

    record = &compiled->record;
    stats = compile->main->compile_stats;

    (void) ngx_atomic_fetch_add(&stats->count, 1);
    (void) ngx_atomic_fetch_add(&stats->time, compile->time);

    if (record->failed) {
        return compiled;
    }

    if (((ngx_http_deepinfer_result_t *) record->data)->code != DI_OK) {
        (void) ngx_atomic_fetch_add(&stats->refused, 1);
    }

    key.data = compile->key;
    key.len = sizeof(compile->key);

    (void) ngx_http_deepinfer_kept_put(&compile->main->grammars, &key,
                                       record->data, record->len);
    return compiled;
}


static void
ngx_http_deepinfer_compile_destroy(ngx_http_deepinfer_compile_t *compile)
{
    ngx_queue_remove(&compile->queue);

    ngx_http_deepinfer_compiled_unref(compile->compiled);
    di_sbuf_free(&compile->text);

    ngx_destroy_pool(compile->pool);
}


/* It is compiled: give it to an engine, or say why it can't be. */

static void
ngx_http_deepinfer_compiled_apply(ngx_http_deepinfer_ctx_t *ctx)
{
    di_sbuf_t                    *record;
    di_gram_err_t                *e;
    ngx_http_deepinfer_result_t  *result;

    record = &ctx->compiled->record;
    result = (ngx_http_deepinfer_result_t *) record->data;

    if (record->failed) {
        ngx_http_deepinfer_fail_memory(ctx);
        ngx_http_deepinfer_run(ctx);
        return;
    }

    if (result->code != DI_OK) {
        e = (di_gram_err_t *) &result[1];

        di_output_error(&ctx->prepare.source.output, e, &ctx->prepare.err);

        /* a path would have names that the client chose */

        ngx_log_error(NGX_LOG_INFO, ctx->request->connection->log, 0,
                      "deepinfer: a grammar is refused: %s in %s",
                      e->keyword, ctx->prepare.err.param);

        ngx_http_deepinfer_run(ctx);
        return;
    }

    ctx->gen.grammar = (uint8_t *) &result[1];
    ctx->gen.n_grammar = (uint32_t) (record->len - sizeof(*result));

    ngx_http_deepinfer_start(ctx);
}
