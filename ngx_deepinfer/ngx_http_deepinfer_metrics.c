
/*
 * ngx_http_deepinfer_metrics.c - counters in shared memory, and their text for
 * Prometheus.
 *
 * Counters belong to a pool's name and outlive reloads.  A request adds to
 * them once, when it ends, so that a token costs nothing.  What engines know
 * (queues, KV blocks) is read from their status pages when it is asked for.
 */


#include "ngx_http_deepinfer.h"


#define NGX_HTTP_DEEPINFER_MAGIC  0x64696e66U   /* "dinf" */

/* upper bounds of the text: of one line, and lines of a pool and an engine */

#define NGX_HTTP_DEEPINFER_LINE          384
#define NGX_HTTP_DEEPINFER_LINES         96
#define NGX_HTTP_DEEPINFER_POOL_LINES                                         \
    (ngx_http_deepinfer_codes + ngx_http_deepinfer_finishes + 4               \
     + 2 * (NGX_HTTP_DEEPINFER_BUCKETS + 3))
#define NGX_HTTP_DEEPINFER_ENGINE_LINES  16


/* What lies at the start of the zone. */

typedef struct {
    uint32_t                       magic;
    uint32_t                       size;        /* of the structs in it */
    ngx_queue_t                    pools;
    ngx_http_deepinfer_kept_t      responses;
    ngx_http_deepinfer_kept_t      grammars;
    ngx_http_deepinfer_compiling_t compiling;
} ngx_http_deepinfer_shared_t;


#define NGX_HTTP_DEEPINFER_SIZES                                              \
    (sizeof(ngx_http_deepinfer_shared_t)                                      \
     + 4096 * sizeof(ngx_http_deepinfer_stats_t))


/* One figure of an engine's status page. */

typedef struct {
    const char                    *name;        /* with its first label */
    const char                    *type;
    const char                    *help;        /* NULL: of the one before */
    size_t                         offset;      /* in di_ipc_status_t */
    size_t                         size;
    const char                    *label;       /* one more, or "" */
} ngx_http_deepinfer_gauge_t;


typedef struct {
    u_char                        *last;
    u_char                        *end;
    ngx_http_deepinfer_main_conf_t *main;
    ngx_http_deepinfer_stats_t    *stats;       /* of no pool */
    ngx_http_deepinfer_pool_t    **pools;
    ngx_uint_t                     n_pools;
} ngx_http_deepinfer_text_t;


static ngx_int_t ngx_http_deepinfer_zone_create(ngx_slab_pool_t *shpool);
static ngx_int_t ngx_http_deepinfer_zone_pools(ngx_shm_zone_t *zone,
    ngx_slab_pool_t *shpool);
static ngx_http_deepinfer_stats_t *ngx_http_deepinfer_zone_stats(
    ngx_slab_pool_t *shpool, ngx_str_t *name);
static ngx_http_deepinfer_code_e ngx_http_deepinfer_code(ngx_uint_t status);
static void ngx_http_deepinfer_observe(ngx_http_deepinfer_histogram_t *h,
    const uint32_t *bounds, uint64_t value);
static void ngx_http_deepinfer_printf(ngx_http_deepinfer_text_t *text,
    const char *fmt, ...);
static ngx_buf_t *ngx_http_deepinfer_metrics_text(ngx_http_request_t *r);
static void ngx_http_deepinfer_text_requests(ngx_http_deepinfer_text_t *text);
static void ngx_http_deepinfer_text_codes(ngx_http_deepinfer_text_t *text,
    ngx_http_deepinfer_stats_t *stats);
static void ngx_http_deepinfer_text_counter(ngx_http_deepinfer_text_t *text,
    const char *name, const char *help, size_t offset);
static void ngx_http_deepinfer_text_histogram(ngx_http_deepinfer_text_t *text,
    const char *name, const char *help, size_t offset,
    const uint32_t *bounds);
static void ngx_http_deepinfer_text_grammars(ngx_http_deepinfer_text_t *text);
static void ngx_http_deepinfer_text_value(ngx_http_deepinfer_text_t *text,
    const char *name, const char *type, const char *help, ngx_uint_t value);
static void ngx_http_deepinfer_text_up(ngx_http_deepinfer_text_t *text);
static void ngx_http_deepinfer_text_gauge(ngx_http_deepinfer_text_t *text,
    const ngx_http_deepinfer_gauge_t *gauge);


/* upper bounds of the buckets, in microseconds */

static const uint32_t  ngx_http_deepinfer_ttft_bounds[] = {
    1000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000, 2000000,
    5000000, 10000000, 30000000, 60000000
};

static const uint32_t  ngx_http_deepinfer_tpot_bounds[] = {
    500, 1000, 2000, 5000, 10000, 15000, 20000, 25000, 30000, 40000, 50000,
    100000, 200000, 500000
};

_Static_assert(sizeof(ngx_http_deepinfer_ttft_bounds) / sizeof(uint32_t)
               == NGX_HTTP_DEEPINFER_BUCKETS, "buckets");
_Static_assert(sizeof(ngx_http_deepinfer_tpot_bounds) / sizeof(uint32_t)
               == NGX_HTTP_DEEPINFER_BUCKETS, "buckets");


static const char *ngx_http_deepinfer_code_names[] = {
    "200", "400", "404", "405", "408", "415", "429", "499", "500", "503",
    "other"
};

static const char *ngx_http_deepinfer_finish_names[] = {
    "none", "stop", "length", "tool_calls", "error", "abort"
};

_Static_assert(sizeof(ngx_http_deepinfer_code_names) / sizeof(char *)
               == ngx_http_deepinfer_codes, "codes");
_Static_assert(sizeof(ngx_http_deepinfer_finish_names) / sizeof(char *)
               == ngx_http_deepinfer_finishes, "finishes");


#define NGX_HTTP_DEEPINFER_FIGURE(name, type, help, field, label)             \
    { name, type, help, offsetof(di_ipc_status_t, field),                     \
      sizeof(((di_ipc_status_t *) 0)->field), label }

static const ngx_http_deepinfer_gauge_t  ngx_http_deepinfer_gauges[] = {

    NGX_HTTP_DEEPINFER_FIGURE("deepinfer_engine_running", "gauge",
        "Sequences that hold KV blocks.", running, ""),
    NGX_HTTP_DEEPINFER_FIGURE("deepinfer_engine_waiting", "gauge",
        "Requests in the engine's queue.", waiting, ""),
    NGX_HTTP_DEEPINFER_FIGURE("deepinfer_engine_waiting_tokens", "gauge",
        "Prompt tokens not computed yet.", waiting_tokens, ""),
    NGX_HTTP_DEEPINFER_FIGURE("deepinfer_engine_queue_max", "gauge",
        "Bound of the engine's queue.", queue_max, ""),
    NGX_HTTP_DEEPINFER_FIGURE("deepinfer_kv_blocks", "gauge",
        "KV blocks by state.", kv_blocks_live, ",state=\"live\""),
    NGX_HTTP_DEEPINFER_FIGURE("deepinfer_kv_blocks", "gauge",
        NULL, kv_blocks_cached, ",state=\"cached\""),
    NGX_HTTP_DEEPINFER_FIGURE("deepinfer_kv_blocks", "gauge",
        NULL, kv_blocks_free, ",state=\"free\""),
    NGX_HTTP_DEEPINFER_FIGURE("deepinfer_engine_steps_total", "counter",
        "Forward passes.", steps, ""),
    NGX_HTTP_DEEPINFER_FIGURE("deepinfer_engine_requests_total", "counter",
        "Requests admitted.", requests, ""),
    NGX_HTTP_DEEPINFER_FIGURE("deepinfer_engine_prefill_tokens_total",
        "counter", "Prompt tokens computed.", prefill_tokens, ""),
    NGX_HTTP_DEEPINFER_FIGURE("deepinfer_engine_cached_tokens_total",
        "counter", "Prompt tokens taken from the prefix cache.",
        cached_tokens, ""),
    NGX_HTTP_DEEPINFER_FIGURE("deepinfer_engine_decode_tokens_total",
        "counter", "Tokens generated.", decode_tokens, ""),
    NGX_HTTP_DEEPINFER_FIGURE("deepinfer_engine_preemptions_total",
        "counter", "Sequences put back for lack of KV blocks.",
        preemptions, ""),
    NGX_HTTP_DEEPINFER_FIGURE("deepinfer_engine_draining", "gauge",
        "Whether the engine is shutting down.", draining, ""),
};


ngx_int_t
ngx_http_deepinfer_zone_init(ngx_shm_zone_t *zone, void *data)
{
    ngx_slab_pool_t                 *shpool;
    ngx_http_deepinfer_shared_t     *shared;
    ngx_http_deepinfer_main_conf_t  *mcf;

    mcf = zone->data;
    shpool = (ngx_slab_pool_t *) zone->shm.addr;

    if (shpool->data == NULL
        && ngx_http_deepinfer_zone_create(shpool) != NGX_OK)
    {
        return NGX_ERROR;
    }

    shared = shpool->data;

    if (shared->magic != NGX_HTTP_DEEPINFER_MAGIC
        || shared->size != NGX_HTTP_DEEPINFER_SIZES)
    {
        ngx_log_error(NGX_LOG_EMERG, zone->shm.log, 0,
                      "zone \"%V\" is that of another version of the module",
                      &zone->shm.name);
        return NGX_ERROR;
    }

    mcf->store.kept = &shared->responses;
    mcf->store.shpool = shpool;
    mcf->grammars.kept = &shared->grammars;
    mcf->grammars.shpool = shpool;
    mcf->compile_stats = &shared->compiling;

    return ngx_http_deepinfer_zone_pools(zone, shpool);
}


static ngx_int_t
ngx_http_deepinfer_zone_create(ngx_slab_pool_t *shpool)
{
    ngx_http_deepinfer_shared_t  *shared;

    shared = ngx_slab_alloc(shpool, sizeof(ngx_http_deepinfer_shared_t));
    if (shared == NULL) {
        return NGX_ERROR;
    }

    shared->magic = NGX_HTTP_DEEPINFER_MAGIC;
    shared->size = NGX_HTTP_DEEPINFER_SIZES;
    ngx_queue_init(&shared->pools);
    ngx_http_deepinfer_kept_init(&shared->responses);
    ngx_http_deepinfer_kept_init(&shared->grammars);
    ngx_memzero(&shared->compiling, sizeof(ngx_http_deepinfer_compiling_t));

    /* room is made by the oldest record */

    shpool->log_nomem = 0;

    shpool->data = shared;

    return NGX_OK;
}


/* The counters of each pool, and of requests which no pool answers: those
 * have an empty name. */

static ngx_int_t
ngx_http_deepinfer_zone_pools(ngx_shm_zone_t *zone, ngx_slab_pool_t *shpool)
{
    ngx_uint_t                        i;
    ngx_http_deepinfer_pool_t       **pools;
    ngx_http_deepinfer_main_conf_t   *mcf;

    static ngx_str_t  none = ngx_string("");

    mcf = zone->data;

    mcf->stats = ngx_http_deepinfer_zone_stats(shpool, &none);

    if (mcf->stats == NULL) {
        return NGX_ERROR;
    }

    pools = mcf->pools.elts;

    for (i = 0; i < mcf->pools.nelts; i++) {
        pools[i]->stats = ngx_http_deepinfer_zone_stats(shpool,
                                                        &pools[i]->name);

        if (pools[i]->stats == NULL) {
            ngx_log_error(NGX_LOG_EMERG, zone->shm.log, 0,
                          "zone \"%V\" is too small for pool \"%V\"",
                          &zone->shm.name, &pools[i]->name);
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


/* The counters that go by a pool's name, from before or new. */

static ngx_http_deepinfer_stats_t *
ngx_http_deepinfer_zone_stats(ngx_slab_pool_t *shpool, ngx_str_t *name)
{
    ngx_queue_t                  *q;
    ngx_http_deepinfer_stats_t   *stats;
    ngx_http_deepinfer_shared_t  *shared;

    shared = shpool->data;

    for (q = ngx_queue_head(&shared->pools);
         q != ngx_queue_sentinel(&shared->pools);
         q = ngx_queue_next(q))
    {
        stats = ngx_queue_data(q, ngx_http_deepinfer_stats_t, queue);

        if (stats->len == name->len
            && ngx_memcmp(stats->name, name->data, stats->len) == 0)
        {
            return stats;
        }
    }

    stats = ngx_slab_calloc(shpool, sizeof(ngx_http_deepinfer_stats_t));
    if (stats == NULL) {
        return NULL;
    }

    stats->len = name->len;
    ngx_memcpy(stats->name, name->data, stats->len);

    ngx_queue_insert_tail(&shared->pools, &stats->queue);

    return stats;
}


/* Count a request that has ended. */

void
ngx_http_deepinfer_metrics_request(ngx_http_deepinfer_ctx_t *ctx)
{
    uint64_t                         tokens, n;
    ngx_http_deepinfer_stats_t      *stats;
    ngx_http_deepinfer_main_conf_t  *mcf;

    mcf = ngx_http_get_module_main_conf(ctx->request,
                                        ngx_http_deepinfer_module);

    stats = ctx->pool ? ctx->pool->stats : mcf->stats;

    if (stats == NULL) {
        return;
    }

    (void) ngx_atomic_fetch_add(
                  &stats->codes[ngx_http_deepinfer_code(ctx->status)], 1);
    (void) ngx_atomic_fetch_add(&stats->finishes[ctx->finish], 1);

    if (ctx->out == NULL) {
        return;
    }

    tokens = ctx->prepare.api->completion_tokens(ctx->out);

    (void) ngx_atomic_fetch_add(&stats->prompt_tokens, ctx->prepare.n_ids);
    (void) ngx_atomic_fetch_add(&stats->cached_tokens, ctx->cached_tokens);
    (void) ngx_atomic_fetch_add(&stats->completion_tokens, tokens);

    if (ctx->first == 0) {
        return;
    }

    ngx_http_deepinfer_observe(&stats->ttft, ngx_http_deepinfer_ttft_bounds,
                               ctx->first - ctx->start);

    /* the choices of a request are written side by side */

    n = tokens / (ctx->gen.params.n * ctx->n_subs);

    if (n > 1) {
        ngx_http_deepinfer_observe(&stats->tpot,
                                   ngx_http_deepinfer_tpot_bounds,
                                   (ctx->last - ctx->first) / (n - 1));
    }
}


static ngx_http_deepinfer_code_e
ngx_http_deepinfer_code(ngx_uint_t status)
{
    switch (status) {
    case 200:
        return ngx_http_deepinfer_code_200;
    case 400:
        return ngx_http_deepinfer_code_400;
    case 404:
        return ngx_http_deepinfer_code_404;
    case 405:
        return ngx_http_deepinfer_code_405;
    case 408:
        return ngx_http_deepinfer_code_408;
    case 415:
        return ngx_http_deepinfer_code_415;
    case 429:
        return ngx_http_deepinfer_code_429;
    case 499:
        return ngx_http_deepinfer_code_499;
    case 500:
        return ngx_http_deepinfer_code_500;
    case 503:
        return ngx_http_deepinfer_code_503;
    default:
        return ngx_http_deepinfer_code_other;
    }
}


static void
ngx_http_deepinfer_observe(ngx_http_deepinfer_histogram_t *h,
    const uint32_t *bounds, uint64_t value)
{
    ngx_uint_t  i;

    for (i = 0; i < NGX_HTTP_DEEPINFER_BUCKETS; i++) {
        if (value <= bounds[i]) {
            (void) ngx_atomic_fetch_add(&h->buckets[i], 1);
            break;
        }
    }

    (void) ngx_atomic_fetch_add(&h->sum, value);
    (void) ngx_atomic_fetch_add(&h->count, 1);
}


ngx_int_t
ngx_http_deepinfer_metrics_handler(ngx_http_request_t *r)
{
    ngx_int_t    rc;
    ngx_buf_t   *b;
    ngx_chain_t  out;

    if (!(r->method & (NGX_HTTP_GET|NGX_HTTP_HEAD))) {
        return ngx_http_deepinfer_send_not_allowed(r, "GET, HEAD");
    }

    rc = ngx_http_discard_request_body(r);
    if (rc != NGX_OK) {
        return rc;
    }

    b = ngx_http_deepinfer_metrics_text(r);
    if (b == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    b->last_buf = (r == r->main);
    b->last_in_chain = 1;

    r->headers_out.status = NGX_HTTP_OK;
    r->headers_out.content_length_n = b->last - b->pos;

    ngx_str_set(&r->headers_out.content_type,
                "text/plain; version=0.0.4; charset=utf-8");
    r->headers_out.content_type_len = sizeof("text/plain") - 1;
    r->headers_out.content_type_lowcase = NULL;

    rc = ngx_http_send_header(r);

    if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
        return rc;
    }

    out.buf = b;
    out.next = NULL;

    return ngx_http_output_filter(r, &out);
}


static ngx_buf_t *
ngx_http_deepinfer_metrics_text(ngx_http_request_t *r)
{
    size_t                           size;
    ngx_buf_t                       *b;
    ngx_uint_t                       i;
    ngx_http_deepinfer_text_t        text;
    ngx_http_deepinfer_main_conf_t  *mcf;

    mcf = ngx_http_get_module_main_conf(r, ngx_http_deepinfer_module);

    text.main = mcf;
    text.stats = mcf->stats;
    text.pools = mcf->pools.elts;
    text.n_pools = mcf->pools.nelts;

    size = NGX_HTTP_DEEPINFER_LINES + ngx_http_deepinfer_codes;

    for (i = 0; i < text.n_pools; i++) {
        size += NGX_HTTP_DEEPINFER_POOL_LINES
                + NGX_HTTP_DEEPINFER_ENGINE_LINES
                  * text.pools[i]->engines.nelts;
    }

    b = ngx_create_temp_buf(r->pool, size * NGX_HTTP_DEEPINFER_LINE);
    if (b == NULL) {
        return NULL;
    }

    text.last = b->last;
    text.end = b->end;

    ngx_http_deepinfer_text_requests(&text);
    ngx_http_deepinfer_text_grammars(&text);
    ngx_http_deepinfer_text_up(&text);

    for (i = 0; i < sizeof(ngx_http_deepinfer_gauges)
                    / sizeof(ngx_http_deepinfer_gauge_t); i++)
    {
        ngx_http_deepinfer_text_gauge(&text, &ngx_http_deepinfer_gauges[i]);
    }

    b->last = text.last;

    return b;
}


static void
ngx_http_deepinfer_printf(ngx_http_deepinfer_text_t *text, const char *fmt,
    ...)
{
    va_list  args;

    va_start(args, fmt);
    text->last = ngx_vslprintf(text->last, text->end, fmt, args);
    va_end(args);
}


static void
ngx_http_deepinfer_text_requests(ngx_http_deepinfer_text_t *text)
{
    ngx_uint_t                   i, n;
    ngx_http_deepinfer_stats_t  *stats;

    ngx_http_deepinfer_printf(text,
                "# HELP deepinfer_requests_total Requests by status.\n"
                "# TYPE deepinfer_requests_total counter\n");

    if (text->stats) {
        ngx_http_deepinfer_text_codes(text, text->stats);
    }

    for (i = 0; i < text->n_pools; i++) {
        ngx_http_deepinfer_text_codes(text, text->pools[i]->stats);
    }

    ngx_http_deepinfer_printf(text,
                "# HELP deepinfer_finished_total Requests by their end.\n"
                "# TYPE deepinfer_finished_total counter\n");

    for (i = 0; i < text->n_pools; i++) {
        stats = text->pools[i]->stats;

        for (n = 1; n < ngx_http_deepinfer_finishes; n++) {
            ngx_http_deepinfer_printf(text,
                "deepinfer_finished_total{model=\"%V\",reason=\"%s\"} %uA\n",
                &text->pools[i]->name, ngx_http_deepinfer_finish_names[n],
                stats->finishes[n]);
        }
    }

    ngx_http_deepinfer_text_counter(text, "deepinfer_prompt_tokens_total",
                       "Prompt tokens of requests that were begun.",
                       offsetof(ngx_http_deepinfer_stats_t, prompt_tokens));
    ngx_http_deepinfer_text_counter(text, "deepinfer_cached_tokens_total",
                       "Of them, those found in a prefix cache.",
                       offsetof(ngx_http_deepinfer_stats_t, cached_tokens));
    ngx_http_deepinfer_text_counter(text, "deepinfer_completion_tokens_total",
                       "Tokens generated for clients.",
                       offsetof(ngx_http_deepinfer_stats_t,
                                completion_tokens));
    ngx_http_deepinfer_text_counter(text, "deepinfer_resubmits_total",
                       "Requests that were moved to another engine.",
                       offsetof(ngx_http_deepinfer_stats_t, resubmits));

    ngx_http_deepinfer_text_histogram(text, "deepinfer_ttft_seconds",
                       "Time to the first token.",
                       offsetof(ngx_http_deepinfer_stats_t, ttft),
                       ngx_http_deepinfer_ttft_bounds);
    ngx_http_deepinfer_text_histogram(text, "deepinfer_tpot_seconds",
                       "Time per token after the first, mean of a request.",
                       offsetof(ngx_http_deepinfer_stats_t, tpot),
                       ngx_http_deepinfer_tpot_bounds);
}


/* An empty label is the same as none. */

static void
ngx_http_deepinfer_text_codes(ngx_http_deepinfer_text_t *text,
    ngx_http_deepinfer_stats_t *stats)
{
    ngx_uint_t  n;

    for (n = 0; n < ngx_http_deepinfer_codes; n++) {
        ngx_http_deepinfer_printf(text,
                "deepinfer_requests_total{model=\"%*s\",code=\"%s\"} %uA\n",
                stats->len, stats->name, ngx_http_deepinfer_code_names[n],
                stats->codes[n]);
    }
}


static void
ngx_http_deepinfer_text_counter(ngx_http_deepinfer_text_t *text,
    const char *name, const char *help, size_t offset)
{
    u_char      *stats;
    ngx_uint_t   i;

    ngx_http_deepinfer_printf(text, "# HELP %s %s\n# TYPE %s counter\n",
                              name, help, name);

    for (i = 0; i < text->n_pools; i++) {
        stats = (u_char *) text->pools[i]->stats;

        ngx_http_deepinfer_printf(text, "%s{model=\"%V\"} %uA\n", name,
                                  &text->pools[i]->name,
                                  *(ngx_atomic_t *) (stats + offset));
    }
}


static void
ngx_http_deepinfer_text_histogram(ngx_http_deepinfer_text_t *text,
    const char *name, const char *help, size_t offset, const uint32_t *bounds)
{
    u_char                          *stats;
    ngx_str_t                       *model;
    ngx_uint_t                       i, n;
    ngx_atomic_uint_t                total;
    ngx_http_deepinfer_histogram_t  *h;

    ngx_http_deepinfer_printf(text, "# HELP %s %s\n# TYPE %s histogram\n",
                              name, help, name);

    for (i = 0; i < text->n_pools; i++) {
        stats = (u_char *) text->pools[i]->stats;
        model = &text->pools[i]->name;
        h = (ngx_http_deepinfer_histogram_t *) (stats + offset);
        total = 0;

        for (n = 0; n < NGX_HTTP_DEEPINFER_BUCKETS; n++) {
            total += h->buckets[n];

            ngx_http_deepinfer_printf(text,
                            "%s_bucket{model=\"%V\",le=\"%uD.%06uD\"} %uA\n",
                            name, model, bounds[n] / 1000000,
                            bounds[n] % 1000000, total);
        }

        /* counted last: never less than a bucket that it includes */

        total = ngx_max(total, h->count);

        ngx_http_deepinfer_printf(text,
                            "%s_bucket{model=\"%V\",le=\"+Inf\"} %uA\n"
                            "%s_sum{model=\"%V\"} %uA.%06uA\n"
                            "%s_count{model=\"%V\"} %uA\n",
                            name, model, total,
                            name, model, h->sum / 1000000, h->sum % 1000000,
                            name, model, total);
    }
}


/* Equal grammars are one for all pools, so they bear no model's name. */

static void
ngx_http_deepinfer_text_grammars(ngx_http_deepinfer_text_t *text)
{
    ngx_http_deepinfer_kept_t       *kept;
    ngx_http_deepinfer_compiling_t  *stats;

    kept = text->main->grammars.kept;
    stats = text->main->compile_stats;

    if (kept == NULL) {
        return;
    }

    ngx_http_deepinfer_text_value(text, "deepinfer_grammar_cache_hits_total",
                       "counter", "Grammars that were found there.",
                       kept->found);
    ngx_http_deepinfer_text_value(text, "deepinfer_grammar_cache_misses_total",
                       "counter", "Grammars that were not.", kept->missed);
    ngx_http_deepinfer_text_value(text,
                       "deepinfer_grammar_cache_evictions_total", "counter",
                       "Compiled grammars that had to make room.",
                       kept->evicted);
    ngx_http_deepinfer_text_value(text, "deepinfer_grammar_cache_entries",
                       "gauge", "Compiled grammars, and reasons why a text "
                       "is none.", kept->records);
    ngx_http_deepinfer_text_value(text, "deepinfer_grammar_cache_bytes",
                       "gauge", "Their size.", kept->size);
    ngx_http_deepinfer_text_value(text, "deepinfer_grammar_compiles_total",
                       "counter", "Texts that went through the compiler.",
                       stats->count);
    ngx_http_deepinfer_text_value(text, "deepinfer_grammar_refused_total",
                       "counter", "Of them, those that it refused.",
                       stats->refused);

    ngx_http_deepinfer_printf(text,
                "# HELP deepinfer_grammar_compile_seconds_total Time that "
                "compiling took.\n"
                "# TYPE deepinfer_grammar_compile_seconds_total counter\n"
                "deepinfer_grammar_compile_seconds_total %uA.%06uA\n",
                stats->time / 1000000, stats->time % 1000000);
}


static void
ngx_http_deepinfer_text_value(ngx_http_deepinfer_text_t *text,
    const char *name, const char *type, const char *help, ngx_uint_t value)
{
    ngx_http_deepinfer_printf(text, "# HELP %s %s\n# TYPE %s %s\n%s %ui\n",
                              name, help, name, type, name, value);
}


static void
ngx_http_deepinfer_text_up(ngx_http_deepinfer_text_t *text)
{
    ngx_uint_t                    i, n;
    ngx_http_deepinfer_engine_t  *engine;

    ngx_http_deepinfer_printf(text,
                "# HELP deepinfer_engine_up Whether the worker that answers "
                "is connected to the engine.\n"
                "# TYPE deepinfer_engine_up gauge\n");

    for (i = 0; i < text->n_pools; i++) {
        engine = text->pools[i]->engines.elts;

        for (n = 0; n < text->pools[i]->engines.nelts; n++) {
            ngx_http_deepinfer_printf(text,
                    "deepinfer_engine_up{model=\"%V\",engine=\"%V\"} %ui\n",
                    &text->pools[i]->name, &engine[n].name,
                    (ngx_uint_t) engine[n].ready);
        }
    }
}


static void
ngx_http_deepinfer_text_gauge(ngx_http_deepinfer_text_t *text,
    const ngx_http_deepinfer_gauge_t *gauge)
{
    u_char                       *p;
    uint64_t                      value;
    ngx_uint_t                    i, n;
    di_ipc_status_t               status;
    ngx_http_deepinfer_engine_t  *engine;

    if (gauge->help) {
        ngx_http_deepinfer_printf(text, "# HELP %s %s\n# TYPE %s %s\n",
                                  gauge->name, gauge->help,
                                  gauge->name, gauge->type);
    }

    for (i = 0; i < text->n_pools; i++) {
        engine = text->pools[i]->engines.elts;

        for (n = 0; n < text->pools[i]->engines.nelts; n++) {

            if (!ngx_http_deepinfer_engine_status(&engine[n], &status)) {
                continue;
            }

            p = (u_char *) &status + gauge->offset;

            value = (gauge->size == sizeof(uint64_t)) ? *(uint64_t *) p
                                                      : *(uint32_t *) p;

            ngx_http_deepinfer_printf(text,
                                "%s{model=\"%V\",engine=\"%V\"%s} %uL\n",
                                gauge->name, &text->pools[i]->name,
                                &engine[n].name, gauge->label, value);
        }
    }
}
