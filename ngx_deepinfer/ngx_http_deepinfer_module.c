
/*
 * ngx_http_deepinfer_module.c - directives, configuration, processes' start
 * and end.
 *
 * The master loads models' vocabularies and never starts a thread or connects
 * to an engine; each worker connects for itself when it starts.
 */


#include "ngx_http_deepinfer.h"


/* idle encoders that a worker keeps for a pool */

#define NGX_HTTP_DEEPINFER_TOKS       8

#define NGX_HTTP_DEEPINFER_ZONE_MIN   (8 * ngx_pagesize)
#define NGX_HTTP_DEEPINFER_ZONE_SIZE  (16 * 1024 * 1024)


static void *ngx_http_deepinfer_create_main_conf(ngx_conf_t *cf);
static char *ngx_http_deepinfer_init_main_conf(ngx_conf_t *cf, void *conf);
static void *ngx_http_deepinfer_create_loc_conf(ngx_conf_t *cf);
static char *ngx_http_deepinfer_merge_loc_conf(ngx_conf_t *cf, void *parent,
    void *child);
static char *ngx_http_deepinfer_merge_dialect(ngx_conf_t *cf,
    ngx_http_deepinfer_loc_conf_t *prev, ngx_http_deepinfer_loc_conf_t *conf);
static char *ngx_http_deepinfer_pass(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static char *ngx_http_deepinfer_api(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static char *ngx_http_deepinfer_dialect(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static char *ngx_http_deepinfer_error(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static char *ngx_http_deepinfer_zone(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static char *ngx_http_deepinfer_thread_pool(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static char *ngx_http_deepinfer_answer(ngx_conf_t *cf,
    ngx_http_deepinfer_loc_conf_t *dlcf, const ngx_http_deepinfer_api_t *api);
static ngx_int_t ngx_http_deepinfer_handler(ngx_http_request_t *r);
static ngx_int_t ngx_http_deepinfer_init_process(ngx_cycle_t *cycle);
static void ngx_http_deepinfer_exit_process(ngx_cycle_t *cycle);


/* the first is that of a deepinfer_pass alone */

static const ngx_http_deepinfer_api_t  ngx_http_deepinfer_apis[] = {

    { ngx_string("chat"),
      ngx_http_deepinfer_gen_handler, &ngx_http_deepinfer_chat },

    { ngx_string("completions"),
      ngx_http_deepinfer_gen_handler, &ngx_http_deepinfer_completions },

    { ngx_string("responses"),
      ngx_http_deepinfer_responses_handler, &ngx_http_deepinfer_responses },

    { ngx_string("messages"),
      ngx_http_deepinfer_gen_handler, &ngx_http_deepinfer_messages },

    { ngx_string("count_tokens"),
      ngx_http_deepinfer_gen_handler, &ngx_http_deepinfer_count_tokens },

    { ngx_string("tokenize"),
      ngx_http_deepinfer_gen_handler, &ngx_http_deepinfer_tokenize },

    { ngx_string("detokenize"),
      ngx_http_deepinfer_gen_handler, &ngx_http_deepinfer_detokenize },

    { ngx_string("models"), ngx_http_deepinfer_models_handler, NULL },

    { ngx_string("health"), ngx_http_deepinfer_health_handler, NULL },

    { ngx_string("metrics"), ngx_http_deepinfer_metrics_handler, NULL },

    { ngx_null_string, NULL, NULL }
};


/* what deepinfer_error makes of a location */

static const ngx_http_deepinfer_api_t  ngx_http_deepinfer_error_api = {
    ngx_string("error"), ngx_http_deepinfer_error_handler, NULL
};


static ngx_conf_enum_t  ngx_http_deepinfer_codecs[] = {
    { ngx_string("strict"), DI_CODEC_STRICT },
    { ngx_string("official"), DI_CODEC_OFFICIAL },
    { ngx_null_string, 0 }
};


static ngx_conf_enum_t  ngx_http_deepinfer_spaces[] = {
    { ngx_string("compact"), 0 },
    { ngx_string("flexible"), 1 },
    { ngx_null_string, 0 }
};


static ngx_command_t  ngx_http_deepinfer_commands[] = {

    { ngx_string("deepinfer_pool"),
      NGX_HTTP_MAIN_CONF|NGX_CONF_BLOCK|NGX_CONF_TAKE1,
      ngx_http_deepinfer_pool,
      NGX_HTTP_MAIN_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("model"),
      NGX_HTTP_DEEPINFER_POOL_CONF|NGX_CONF_TAKE1,
      ngx_http_deepinfer_pool_model,
      NGX_HTTP_MAIN_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("engine"),
      NGX_HTTP_DEEPINFER_POOL_CONF|NGX_CONF_TAKE1,
      ngx_http_deepinfer_pool_engine,
      NGX_HTTP_MAIN_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("alias"),
      NGX_HTTP_DEEPINFER_POOL_CONF|NGX_CONF_1MORE,
      ngx_http_deepinfer_pool_alias,
      NGX_HTTP_MAIN_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("queue"),
      NGX_HTTP_DEEPINFER_POOL_CONF|NGX_CONF_TAKE1,
      ngx_http_deepinfer_pool_queue,
      NGX_HTTP_MAIN_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("engine_timeout"),
      NGX_HTTP_DEEPINFER_POOL_CONF|NGX_CONF_TAKE1,
      ngx_http_deepinfer_pool_engine_timeout,
      NGX_HTTP_MAIN_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("dialect"),
      NGX_HTTP_DEEPINFER_POOL_CONF|NGX_CONF_TAKE1,
      ngx_http_deepinfer_pool_dialect,
      NGX_HTTP_MAIN_CONF_OFFSET,
      0,
      NULL },

    /* nginx's own "include" does not know this context */

    { ngx_string("include"),
      NGX_HTTP_DEEPINFER_POOL_CONF|NGX_CONF_TAKE1,
      ngx_conf_include,
      NGX_HTTP_MAIN_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("deepinfer_pass"),
      NGX_HTTP_LOC_CONF|NGX_HTTP_LIF_CONF|NGX_CONF_TAKE1,
      ngx_http_deepinfer_pass,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("deepinfer_api"),
      NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_http_deepinfer_api,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("deepinfer_dialect"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_http_deepinfer_dialect,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("deepinfer_codec"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_enum_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_deepinfer_loc_conf_t, codec),
      &ngx_http_deepinfer_codecs },

    { ngx_string("deepinfer_error"),
      NGX_HTTP_LOC_CONF|NGX_CONF_NOARGS,
      ngx_http_deepinfer_error,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("deepinfer_zone"),
      NGX_HTTP_MAIN_CONF|NGX_CONF_TAKE1,
      ngx_http_deepinfer_zone,
      NGX_HTTP_MAIN_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("deepinfer_redis"),
      NGX_HTTP_MAIN_CONF|NGX_CONF_1MORE,
      ngx_http_deepinfer_redis,
      NGX_HTTP_MAIN_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("deepinfer_store"),
      NGX_HTTP_MAIN_CONF|NGX_CONF_1MORE,
      ngx_http_deepinfer_store,
      NGX_HTTP_MAIN_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("deepinfer_ping"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_msec_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_deepinfer_loc_conf_t, ping),
      NULL },

    { ngx_string("deepinfer_buffer_size"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_size_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_deepinfer_loc_conf_t, buffer_size),
      NULL },

    { ngx_string("deepinfer_ignore_client_abort"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_FLAG,
      ngx_conf_set_flag_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_deepinfer_loc_conf_t, ignore_client_abort),
      NULL },

    { ngx_string("deepinfer_thread_pool"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE12,
      ngx_http_deepinfer_thread_pool,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("deepinfer_grammar_cache"),
      NGX_HTTP_MAIN_CONF|NGX_CONF_TAKE1,
      ngx_http_deepinfer_grammar_cache,
      NGX_HTTP_MAIN_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("deepinfer_grammar_limits"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE123,
      ngx_http_deepinfer_grammar_limits,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("deepinfer_grammar_whitespace"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_enum_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_deepinfer_loc_conf_t, grammar_space),
      &ngx_http_deepinfer_spaces },

    { ngx_string("deepinfer_grammar_finish"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_FLAG,
      ngx_conf_set_flag_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_deepinfer_loc_conf_t, grammar_finish),
      NULL },

      ngx_null_command
};


static ngx_http_module_t  ngx_http_deepinfer_module_ctx = {
    ngx_http_deepinfer_add_variables,      /* preconfiguration */
    NULL,                                  /* postconfiguration */

    ngx_http_deepinfer_create_main_conf,   /* create main configuration */
    ngx_http_deepinfer_init_main_conf,     /* init main configuration */

    NULL,                                  /* create server configuration */
    NULL,                                  /* merge server configuration */

    ngx_http_deepinfer_create_loc_conf,    /* create location configuration */
    ngx_http_deepinfer_merge_loc_conf      /* merge location configuration */
};


ngx_module_t  ngx_http_deepinfer_module = {
    NGX_MODULE_V1,
    &ngx_http_deepinfer_module_ctx,        /* module context */
    ngx_http_deepinfer_commands,           /* module directives */
    NGX_HTTP_MODULE,                       /* module type */
    NULL,                                  /* init master */
    NULL,                                  /* init module */
    ngx_http_deepinfer_init_process,       /* init process */
    NULL,                                  /* init thread */
    NULL,                                  /* exit thread */
    ngx_http_deepinfer_exit_process,       /* exit process */
    NULL,                                  /* exit master */
    NGX_MODULE_V1_PADDING
};


static ngx_int_t
ngx_http_deepinfer_handler(ngx_http_request_t *r)
{
    ngx_http_deepinfer_loc_conf_t  *dlcf;

    dlcf = ngx_http_get_module_loc_conf(r, ngx_http_deepinfer_module);

    return dlcf->api->handler(r);
}


/*
 * The pool of deepinfer_pass; NULL if the location has none.  NGX_DECLINED:
 * the variable names no pool.
 */

ngx_int_t
ngx_http_deepinfer_select_pool(ngx_http_request_t *r,
    ngx_http_deepinfer_loc_conf_t *dlcf, ngx_http_deepinfer_pool_t **pool)
{
    ngx_str_t                        name;
    ngx_http_deepinfer_main_conf_t  *mcf;

    *pool = dlcf->pool;

    if (dlcf->pass == NULL) {
        return NGX_OK;
    }

    if (ngx_http_complex_value(r, dlcf->pass, &name) != NGX_OK) {
        return NGX_ERROR;
    }

    mcf = ngx_http_get_module_main_conf(r, ngx_http_deepinfer_module);

    *pool = ngx_http_deepinfer_find_pool(mcf, &name);

    if (*pool == NULL) {
        ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                      "deepinfer: unknown pool \"%V\"", &name);
        return NGX_DECLINED;
    }

    return NGX_OK;
}


static void *
ngx_http_deepinfer_create_main_conf(ngx_conf_t *cf)
{
    ngx_http_deepinfer_main_conf_t  *mcf;

    mcf = ngx_pcalloc(cf->pool, sizeof(ngx_http_deepinfer_main_conf_t));
    if (mcf == NULL) {
        return NULL;
    }

    if (ngx_array_init(&mcf->pools, cf->pool, 4,
                       sizeof(ngx_http_deepinfer_pool_t *))
        != NGX_OK)
    {
        return NULL;
    }

    mcf->store.size = NGX_CONF_UNSET_SIZE;
    mcf->store.ttl = NGX_CONF_UNSET;
    mcf->grammars.size = NGX_CONF_UNSET_SIZE;

    return mcf;
}


static char *
ngx_http_deepinfer_init_main_conf(ngx_conf_t *cf, void *conf)
{
    ngx_http_deepinfer_main_conf_t *mcf = conf;

    ngx_str_t  name;

    ngx_conf_init_size_value(mcf->store.size, 8 * 1024 * 1024);
    ngx_conf_init_value(mcf->store.ttl, 24 * 60 * 60);
    ngx_conf_init_size_value(mcf->grammars.size, 4 * 1024 * 1024);

    if (mcf->zone == NULL) {

        if (mcf->pools.nelts == 0) {
            return NGX_CONF_OK;
        }

        ngx_str_set(&name, "deepinfer");

        mcf->zone = ngx_shared_memory_add(cf, &name,
                                          NGX_HTTP_DEEPINFER_ZONE_SIZE,
                                          &ngx_http_deepinfer_module);
        if (mcf->zone == NULL) {
            return NGX_CONF_ERROR;
        }
    }

    mcf->zone->init = ngx_http_deepinfer_zone_init;
    mcf->zone->data = mcf;

    if (ngx_http_deepinfer_direct_init(cf, mcf) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


static void *
ngx_http_deepinfer_create_loc_conf(ngx_conf_t *cf)
{
    ngx_http_deepinfer_loc_conf_t  *dlcf;

    dlcf = ngx_pcalloc(cf->pool, sizeof(ngx_http_deepinfer_loc_conf_t));
    if (dlcf == NULL) {
        return NULL;
    }

    dlcf->api = NGX_CONF_UNSET_PTR;
    dlcf->codec = NGX_CONF_UNSET_UINT;
    dlcf->ping = NGX_CONF_UNSET_MSEC;
    dlcf->buffer_size = NGX_CONF_UNSET_SIZE;
    dlcf->thread_size = NGX_CONF_UNSET_SIZE;
    dlcf->ignore_client_abort = NGX_CONF_UNSET;
    dlcf->grammar_space = NGX_CONF_UNSET_UINT;
    dlcf->grammar_finish = NGX_CONF_UNSET;
    dlcf->grammar_limits.memory_bytes = NGX_CONF_UNSET_SIZE;
    dlcf->grammar_limits.blob_bytes = NGX_CONF_UNSET_SIZE;
    dlcf->grammar_limits.work = NGX_CONF_UNSET_UINT;
#if (NGX_THREADS)
    dlcf->threads = NGX_CONF_UNSET_PTR;
#endif

    return dlcf;
}


static char *
ngx_http_deepinfer_merge_loc_conf(ngx_conf_t *cf, void *parent, void *child)
{
    ngx_http_deepinfer_loc_conf_t *prev = parent;
    ngx_http_deepinfer_loc_conf_t *conf = child;

    ngx_http_core_loc_conf_t  *clcf;

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);

    /* the blocks of "if" and limit_except answer as their location does */

    if (clcf->noname && conf->pool == NULL && conf->pass == NULL
        && conf->api_file == NULL)
    {
        conf->pool = prev->pool;
        conf->pass = prev->pass;
        conf->api = prev->api;
        conf->api_file = prev->api_file;
        conf->api_line = prev->api_line;
    }

    if (clcf->lmt_excpt && clcf->handler == NULL
        && (conf->pool || conf->pass || conf->api_file))
    {
        clcf->handler = ngx_http_deepinfer_handler;
    }

    ngx_conf_init_ptr_value(conf->api, ngx_http_deepinfer_apis);

    if (conf->api_file && conf->api->gen
        && conf->pool == NULL && conf->pass == NULL)
    {
        ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                      "\"deepinfer_api %V\" needs \"deepinfer_pass\" in the "
                      "same location in %s:%ui",
                      &conf->api->name, conf->api_file, conf->api_line);
        return NGX_CONF_ERROR;
    }

    ngx_conf_merge_uint_value(conf->codec, prev->codec, DI_CODEC_STRICT);
    ngx_conf_merge_msec_value(conf->ping, prev->ping, 15000);
    ngx_conf_merge_size_value(conf->buffer_size, prev->buffer_size, 64 * 1024);
    ngx_conf_merge_size_value(conf->thread_size, prev->thread_size, 16 * 1024);
    ngx_conf_merge_value(conf->ignore_client_abort,
                         prev->ignore_client_abort, 0);

    ngx_conf_merge_uint_value(conf->grammar_space, prev->grammar_space, 1);
    ngx_conf_merge_value(conf->grammar_finish, prev->grammar_finish, 1);
    ngx_conf_merge_size_value(conf->grammar_limits.memory_bytes,
                              prev->grammar_limits.memory_bytes,
                              128 * 1024 * 1024);
    ngx_conf_merge_size_value(conf->grammar_limits.blob_bytes,
                              prev->grammar_limits.blob_bytes,
                              DI_IPC_GRAMMAR_MAX);
    ngx_conf_merge_uint_value(conf->grammar_limits.work,
                              prev->grammar_limits.work, 20 * 1000 * 1000);

#if (NGX_THREADS)

    if (conf->threads == NGX_CONF_UNSET_PTR) {
        conf->threads = prev->threads;
    }

    if (conf->threads == NGX_CONF_UNSET_PTR && (conf->pool || conf->pass)) {
        conf->threads = ngx_thread_pool_add(cf, NULL);
        if (conf->threads == NULL) {
            return NGX_CONF_ERROR;
        }
    }

#endif

    return ngx_http_deepinfer_merge_dialect(cf, prev, conf);
}


/* The pool, or every one of which a variable may choose, has to speak it. */

static char *
ngx_http_deepinfer_merge_dialect(ngx_conf_t *cf,
    ngx_http_deepinfer_loc_conf_t *prev, ngx_http_deepinfer_loc_conf_t *conf)
{
    di_err_t                          err;
    ngx_uint_t                        i, n;
    ngx_http_deepinfer_pool_t       **pools;
    ngx_http_deepinfer_main_conf_t   *mcf;

    if (conf->dialect.data == NULL) {
        conf->dialect = prev->dialect;
        conf->dialect_file = prev->dialect_file;
        conf->dialect_line = prev->dialect_line;
    }

    if (conf->dialect.len == 0) {
        return NGX_CONF_OK;
    }

    mcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_deepinfer_module);

    pools = &conf->pool;
    n = (conf->pool != NULL);

    if (conf->pass) {
        pools = mcf->pools.elts;
        n = mcf->pools.nelts;
    }

    for (i = 0; i < n; i++) {
        ngx_memzero(&err, sizeof(di_err_t));

        if (ngx_http_deepinfer_add_spelling(cf, pools[i], &conf->dialect, &err)
            == NGX_OK)
        {
            continue;
        }

        ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                      "\"deepinfer_dialect %V\" cannot be used with pool "
                      "\"%V\": %s in %s:%ui",
                      &conf->dialect, &pools[i]->name,
                      err.code ? err.text : "out of memory",
                      conf->dialect_file, conf->dialect_line);
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


static char *
ngx_http_deepinfer_pass(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_deepinfer_loc_conf_t *dlcf = conf;

    ngx_str_t                         *value;
    ngx_http_core_loc_conf_t          *clcf;
    ngx_http_deepinfer_main_conf_t    *mcf;
    ngx_http_compile_complex_value_t   ccv;

    if (dlcf->pool || dlcf->pass) {
        return "is duplicate";
    }

    if (dlcf->api == &ngx_http_deepinfer_error_api) {
        return "conflicts with \"deepinfer_error\"";
    }

    value = cf->args->elts;

    if (ngx_http_script_variables_count(&value[1])) {

        dlcf->pass = ngx_palloc(cf->pool, sizeof(ngx_http_complex_value_t));
        if (dlcf->pass == NULL) {
            return NGX_CONF_ERROR;
        }

        ngx_memzero(&ccv, sizeof(ngx_http_compile_complex_value_t));

        ccv.cf = cf;
        ccv.value = &value[1];
        ccv.complex_value = dlcf->pass;

        if (ngx_http_compile_complex_value(&ccv) != NGX_OK) {
            return NGX_CONF_ERROR;
        }

    } else {

        mcf = ngx_http_conf_get_module_main_conf(cf,
                                                 ngx_http_deepinfer_module);

        dlcf->pool = ngx_http_deepinfer_find_pool(mcf, &value[1]);

        if (dlcf->pool == NULL) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "unknown pool \"%V\", \"deepinfer_pool\" has "
                               "to come before its use", &value[1]);
            return NGX_CONF_ERROR;
        }
    }

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);
    clcf->handler = ngx_http_deepinfer_handler;

    return NGX_CONF_OK;
}


static char *
ngx_http_deepinfer_api(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_deepinfer_loc_conf_t *dlcf = conf;

    ngx_str_t                       *value;
    const ngx_http_deepinfer_api_t  *api;

    if (dlcf->api != NGX_CONF_UNSET_PTR) {
        return (dlcf->api == &ngx_http_deepinfer_error_api)
               ? "conflicts with \"deepinfer_error\"" : "is duplicate";
    }

    value = cf->args->elts;

    for (api = ngx_http_deepinfer_apis; api->name.len; api++) {
        if (ngx_strcmp(value[1].data, api->name.data) == 0) {
            return ngx_http_deepinfer_answer(cf, dlcf, api);
        }
    }

    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "unknown api \"%V\"",
                       &value[1]);
    return NGX_CONF_ERROR;
}


static char *
ngx_http_deepinfer_dialect(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_deepinfer_loc_conf_t *dlcf = conf;

    ngx_str_t  *value;

    if (dlcf->dialect.data) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (value[1].len == 0) {
        return "has an empty name";
    }

    dlcf->dialect = value[1];
    dlcf->dialect_file = cf->conf_file->file.name.data;
    dlcf->dialect_line = cf->conf_file->line;

    return NGX_CONF_OK;
}


static char *
ngx_http_deepinfer_error(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_deepinfer_loc_conf_t *dlcf = conf;

    if (dlcf->api == &ngx_http_deepinfer_error_api) {
        return "is duplicate";
    }

    if (dlcf->api != NGX_CONF_UNSET_PTR) {
        return "conflicts with \"deepinfer_api\"";
    }

    if (dlcf->pool || dlcf->pass) {
        return "conflicts with \"deepinfer_pass\"";
    }

    return ngx_http_deepinfer_answer(cf, dlcf, &ngx_http_deepinfer_error_api);
}


static char *
ngx_http_deepinfer_answer(ngx_conf_t *cf, ngx_http_deepinfer_loc_conf_t *dlcf,
    const ngx_http_deepinfer_api_t *api)
{
    ngx_http_core_loc_conf_t  *clcf;

    dlcf->api = api;
    dlcf->api_file = cf->conf_file->file.name.data;
    dlcf->api_line = cf->conf_file->line;

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);
    clcf->handler = ngx_http_deepinfer_handler;

    return NGX_CONF_OK;
}


static char *
ngx_http_deepinfer_zone(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_deepinfer_main_conf_t *mcf = conf;

    u_char     *p;
    ssize_t     size;
    ngx_str_t  *value, name, s;

    if (mcf->zone) {
        return "is duplicate";
    }

    value = cf->args->elts;
    name = value[1];

    p = (u_char *) ngx_strchr(name.data, ':');

    if (p == NULL || p == name.data) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid zone \"%V\", it must be \"NAME:SIZE\"",
                           &value[1]);
        return NGX_CONF_ERROR;
    }

    name.len = p - name.data;

    s.data = p + 1;
    s.len = value[1].data + value[1].len - s.data;

    size = ngx_parse_size(&s);

    if (size == NGX_ERROR) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid zone size \"%V\"", &value[1]);
        return NGX_CONF_ERROR;
    }

    if (size < (ssize_t) NGX_HTTP_DEEPINFER_ZONE_MIN) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "zone \"%V\" is too small, at least %uz bytes are "
                           "needed", &value[1],
                           (size_t) NGX_HTTP_DEEPINFER_ZONE_MIN);
        return NGX_CONF_ERROR;
    }

    mcf->zone = ngx_shared_memory_add(cf, &name, size,
                                      &ngx_http_deepinfer_module);

    return mcf->zone ? NGX_CONF_OK : NGX_CONF_ERROR;
}


/* deepinfer_thread_pool NAME [SIZE] | off */

static char *
ngx_http_deepinfer_thread_pool(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_deepinfer_loc_conf_t *dlcf = conf;

    ssize_t     size;
    ngx_str_t  *value;

    value = cf->args->elts;

#if (NGX_THREADS)

    if (dlcf->threads != NGX_CONF_UNSET_PTR) {
        return "is duplicate";
    }

    if (ngx_strcmp(value[1].data, "off") == 0) {

        if (cf->args->nelts != 2) {
            return "has a size although it is \"off\"";
        }

        dlcf->threads = NULL;
        return NGX_CONF_OK;
    }

    dlcf->threads = ngx_thread_pool_add(cf, &value[1]);
    if (dlcf->threads == NULL) {
        return NGX_CONF_ERROR;
    }

#else

    if (ngx_strcmp(value[1].data, "off") != 0) {
        return "needs nginx built with threads";
    }

#endif

    if (cf->args->nelts == 3) {
        size = ngx_parse_size(&value[2]);

        if (size == NGX_ERROR || size == 0) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid size \"%V\"", &value[2]);
            return NGX_CONF_ERROR;
        }

        dlcf->thread_size = size;
    }

    return NGX_CONF_OK;
}


static ngx_int_t
ngx_http_deepinfer_init_process(ngx_cycle_t *cycle)
{
    ngx_uint_t                        i, j;
    ngx_http_deepinfer_pool_t       **pools;
    ngx_http_deepinfer_engine_t      *engines;
    ngx_http_deepinfer_main_conf_t   *mcf;

    if (ngx_process != NGX_PROCESS_WORKER
        && ngx_process != NGX_PROCESS_SINGLE)
    {
        return NGX_OK;
    }

    mcf = ngx_http_cycle_get_module_main_conf(cycle,
                                              ngx_http_deepinfer_module);

    if (mcf == NULL) {
        return NGX_OK;
    }

    pools = mcf->pools.elts;

    ngx_queue_init(&mcf->compiling);

    for (i = 0; i < mcf->pools.nelts; i++) {

        ngx_queue_init(&pools[i]->waiting);

        if (ngx_array_init(&pools[i]->toks, cycle->pool,
                           NGX_HTTP_DEEPINFER_TOKS, sizeof(di_tok_t *))
            != NGX_OK
            || di_tok_open(pools[i]->vocab, &pools[i]->tok) != DI_OK)
        {
            return NGX_ERROR;
        }

        engines = pools[i]->engines.elts;

        for (j = 0; j < pools[i]->engines.nelts; j++) {
            ngx_http_deepinfer_engine_init(&engines[j], cycle);
        }
    }

    return NGX_OK;
}


static void
ngx_http_deepinfer_exit_process(ngx_cycle_t *cycle)
{
    di_tok_t                        **toks;
    ngx_uint_t                        i, j;
    ngx_http_deepinfer_pool_t       **pools;
    ngx_http_deepinfer_engine_t      *engines;
    ngx_http_deepinfer_main_conf_t   *mcf;

    mcf = ngx_http_cycle_get_module_main_conf(cycle,
                                              ngx_http_deepinfer_module);

    if (mcf == NULL) {
        return;
    }

    pools = mcf->pools.elts;

    for (i = 0; i < mcf->pools.nelts; i++) {

        engines = pools[i]->engines.elts;

        for (j = 0; j < pools[i]->engines.nelts; j++) {
            ngx_http_deepinfer_engine_deinit(&engines[j]);
        }

        toks = pools[i]->toks.elts;

        for (j = 0; j < pools[i]->toks.nelts; j++) {
            di_tok_close(toks[j]);
        }

        pools[i]->toks.nelts = 0;

        di_tok_close(pools[i]->tok);
        pools[i]->tok = NULL;
    }

    if (mcf->redis) {
        ngx_http_deepinfer_redis_deinit(mcf->redis);
    }
}
