
/*
 * ngx_http_deepinfer_pool.c - the deepinfer_pool block.
 *
 * A pool is complete when its block ends: the model's file is opened there,
 * its vocabulary and dialect are built, and the file is closed again.  What is
 * wrong with it is an error of the configuration, with file and line.
 */


#include "ngx_http_deepinfer.h"

#include "tokenizer/vocab/di_folder.h"

#include <sys/un.h>


static ngx_http_deepinfer_pool_t *ngx_http_deepinfer_pool_create(
    ngx_conf_t *cf, ngx_http_deepinfer_main_conf_t *mcf, ngx_str_t *name);
static char *ngx_http_deepinfer_pool_end(ngx_conf_t *cf,
    ngx_http_deepinfer_pool_t *pool);
static char *ngx_http_deepinfer_pool_load(ngx_conf_t *cf,
    ngx_http_deepinfer_pool_t *pool);
static const char *ngx_http_deepinfer_pool_speaks(
    ngx_http_deepinfer_pool_t *pool);
static ngx_int_t ngx_http_deepinfer_pool_speak(ngx_conf_t *cf,
    ngx_http_deepinfer_pool_t *pool, const char *name, di_err_t *err);
static int ngx_http_deepinfer_pool_fingerprint(ngx_http_deepinfer_pool_t *pool,
    ngx_file_info_t *fi, di_err_t *err);
static ngx_int_t ngx_http_deepinfer_pool_names(ngx_conf_t *cf,
    ngx_http_deepinfer_pool_t *pool,
    ngx_http_deepinfer_spelling_t *spelling);
static void ngx_http_deepinfer_pool_unload(void *data);
static char *ngx_http_deepinfer_engine_path(ngx_conf_t *cf, ngx_str_t *name,
    ngx_str_t *path);
static char *ngx_http_deepinfer_check_name(ngx_conf_t *cf,
    ngx_http_deepinfer_main_conf_t *mcf, ngx_str_t *name);


char *
ngx_http_deepinfer_pool(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_deepinfer_main_conf_t *mcf = conf;

    char                       *rv;
    ngx_str_t                  *value;
    ngx_conf_t                  save;
    ngx_http_deepinfer_pool_t  *pool;

    value = cf->args->elts;

    rv = ngx_http_deepinfer_check_name(cf, mcf, &value[1]);
    if (rv != NGX_CONF_OK) {
        return rv;
    }

    pool = ngx_http_deepinfer_pool_create(cf, mcf, &value[1]);
    if (pool == NULL) {
        return NGX_CONF_ERROR;
    }

    mcf->current = pool;

    save = *cf;
    cf->cmd_type = NGX_HTTP_DEEPINFER_POOL_CONF;

    rv = ngx_conf_parse(cf, NULL);

    *cf = save;

    mcf->current = NULL;

    if (rv != NGX_CONF_OK) {
        return rv;
    }

    return ngx_http_deepinfer_pool_end(cf, pool);
}


static ngx_http_deepinfer_pool_t *
ngx_http_deepinfer_pool_create(ngx_conf_t *cf,
    ngx_http_deepinfer_main_conf_t *mcf, ngx_str_t *name)
{
    ngx_pool_cleanup_t         *cln;
    ngx_http_deepinfer_pool_t  *pool, **pp;

    pool = ngx_pcalloc(cf->pool, sizeof(ngx_http_deepinfer_pool_t));
    if (pool == NULL) {
        return NULL;
    }

    pool->name = *name;
    pool->main = mcf;
    pool->queue = NGX_CONF_UNSET;
    pool->engine_timeout = NGX_CONF_UNSET_MSEC;

    if (ngx_array_init(&pool->engines, cf->pool, 4,
                       sizeof(ngx_http_deepinfer_engine_t))
        != NGX_OK
        || ngx_array_init(&pool->aliases, cf->pool, 4, sizeof(ngx_str_t))
           != NGX_OK
        || ngx_array_init(&pool->spellings, cf->pool, 1,
                          sizeof(ngx_http_deepinfer_spelling_t *))
           != NGX_OK)
    {
        return NULL;
    }

    cln = ngx_pool_cleanup_add(cf->pool, 0);
    if (cln == NULL) {
        return NULL;
    }

    cln->handler = ngx_http_deepinfer_pool_unload;
    cln->data = pool;

    pp = ngx_array_push(&mcf->pools);
    if (pp == NULL) {
        return NULL;
    }

    *pp = pool;

    return pool;
}


static char *
ngx_http_deepinfer_pool_end(ngx_conf_t *cf, ngx_http_deepinfer_pool_t *pool)
{
    ngx_uint_t                    i;
    ngx_http_deepinfer_engine_t  *engine;

    if (pool->model.data == NULL) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "pool \"%V\" has no \"model\"", &pool->name);
        return NGX_CONF_ERROR;
    }

    if (pool->engines.nelts == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "pool \"%V\" has no \"engine\"", &pool->name);
        return NGX_CONF_ERROR;
    }

    ngx_conf_init_value(pool->queue, 1024);
    ngx_conf_init_msec_value(pool->engine_timeout, 120000);

    engine = pool->engines.elts;

    for (i = 0; i < pool->engines.nelts; i++) {
        engine[i].pool = pool;
    }

    return ngx_http_deepinfer_pool_load(cf, pool);
}


static char *
ngx_http_deepinfer_pool_load(ngx_conf_t *cf, ngx_http_deepinfer_pool_t *pool)
{
    di_err_t         err;
    ngx_file_info_t  fi;

    ngx_memzero(&err, sizeof(di_err_t));

    if (ngx_file_info(pool->model.data, &fi) == NGX_FILE_ERROR) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, ngx_errno,
                           "model \"%V\" of pool \"%V\" cannot be read",
                           &pool->model, &pool->name);
        return NGX_CONF_ERROR;
    }

    pool->created = ngx_file_mtime(&fi);

    if (!ngx_is_file(&fi) && !ngx_is_dir(&fi)) {
        (void) di_err_set(&err, DI_EINVAL, 0,
                          "it is no regular file and no folder");

    } else if (di_vocab_open_path((char *) pool->model.data, &pool->vocab,
                                  &err)
               == DI_OK
               && ngx_http_deepinfer_pool_speak(cf, pool,
                                    ngx_http_deepinfer_pool_speaks(pool), &err)
                  == NGX_OK
               && ngx_http_deepinfer_pool_fingerprint(pool, &fi, &err)
                  == DI_OK)
    {
        return NGX_CONF_OK;
    }

    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "model \"%V\" of pool \"%V\" cannot be used: %s",
                       &pool->model, &pool->name,
                       err.code ? err.text : "out of memory");
    return NGX_CONF_ERROR;
}


/* The dialect's name, if it is not to be told by the chat template. */

static const char *
ngx_http_deepinfer_pool_speaks(ngx_http_deepinfer_pool_t *pool)
{
    size_t       i;
    const char  *type;

    static const struct {
        const char  *type;
        const char  *name;
    } types[] = {
        { "deepseek_v4", "deepseek-v4" },
        { "deepseek_v41", "deepseek-v4.1" },
    };

    if (pool->dialect_name.len) {
        return (char *) pool->dialect_name.data;
    }

    type = di_vocab_model_type(pool->vocab);

    for (i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        if (ngx_strcmp(type, types[i].type) == 0) {
            return types[i].name;
        }
    }

    return NULL;
}


/* One more spelling for the model. */

static ngx_int_t
ngx_http_deepinfer_pool_speak(ngx_conf_t *cf, ngx_http_deepinfer_pool_t *pool,
    const char *name, di_err_t *err)
{
    di_str_t                         text;
    ngx_http_deepinfer_spelling_t   *spelling, **sp;

    spelling = ngx_pcalloc(cf->pool, sizeof(ngx_http_deepinfer_spelling_t));
    if (spelling == NULL) {
        return NGX_ERROR;
    }

    sp = ngx_array_push(&pool->spellings);
    if (sp == NULL) {
        return NGX_ERROR;
    }

    *sp = spelling;

    text.data = di_vocab_template(pool->vocab, &text.len);

    if (di_dialect_open(pool->vocab, text, name, &spelling->dialect, err)
        != DI_OK)
    {
        spelling->dialect = NULL;
        return NGX_ERROR;
    }

    return ngx_http_deepinfer_pool_names(cf, pool, spelling);
}


/* That of deepinfer_dialect NAME, or the pool's own; NULL: it has none. */

ngx_http_deepinfer_spelling_t *
ngx_http_deepinfer_find_spelling(ngx_http_deepinfer_pool_t *pool,
    ngx_str_t *name)
{
    ngx_uint_t                       i;
    ngx_http_deepinfer_spelling_t  **spellings;

    spellings = pool->spellings.elts;

    if (name->len == 0) {
        return spellings[0];
    }

    for (i = 0; i < pool->spellings.nelts; i++) {
        if (ngx_strcmp(di_dialect_name(spellings[i]->dialect), name->data)
            == 0)
        {
            return spellings[i];
        }
    }

    return NULL;
}


/* Let the pool know that it will be asked for this one. */

ngx_int_t
ngx_http_deepinfer_add_spelling(ngx_conf_t *cf,
    ngx_http_deepinfer_pool_t *pool, ngx_str_t *name, di_err_t *err)
{
    if (ngx_http_deepinfer_find_spelling(pool, name)) {
        return NGX_OK;
    }

    return ngx_http_deepinfer_pool_speak(cf, pool, (char *) name->data, err);
}


/*
 * What holds a whole model tells its engines which one is meant.  A tokenizer
 * alone says nothing of the weights.
 */

static int
ngx_http_deepinfer_pool_fingerprint(ngx_http_deepinfer_pool_t *pool,
    ngx_file_info_t *fi, di_err_t *err)
{
    int         rc;
    di_gguf_t  *gguf;

    if (ngx_is_dir(fi)) {
        rc = di_folder_fingerprint((char *) pool->model.data,
                                   pool->fingerprint, err);

        if (rc == DI_EUNSUPPORTED) {
            ngx_memzero(err, sizeof(di_err_t));
            return DI_OK;
        }

        pool->fingerprinted = 1;

        return rc;
    }

    if (di_gguf_open((char *) pool->model.data, &gguf, NULL) != DI_OK) {
        return DI_OK;
    }

    rc = di_gguf_fingerprint(gguf, pool->fingerprint);
    di_gguf_close(gguf);

    pool->fingerprinted = 1;

    return rc;
}


/* What official requests may call the model. */

static ngx_int_t
ngx_http_deepinfer_pool_names(ngx_conf_t *cf, ngx_http_deepinfer_pool_t *pool,
    ngx_http_deepinfer_spelling_t *spelling)
{
    ngx_str_t        *alias;
    ngx_uint_t        i;
    di_model_name_t  *name;

    spelling->n_models = 1 + pool->aliases.nelts;

    spelling->models = ngx_pcalloc(cf->pool,
                               spelling->n_models * sizeof(di_model_name_t));
    if (spelling->models == NULL) {
        return NGX_ERROR;
    }

    alias = pool->aliases.elts;

    for (i = 0; i < spelling->n_models; i++) {
        name = &spelling->models[i];
        name->family = di_dialect_family(spelling->dialect);
        name->name.data = (char *) (i ? alias[i - 1].data : pool->name.data);
        name->name.len = i ? alias[i - 1].len : pool->name.len;
    }

    return NGX_OK;
}


static void
ngx_http_deepinfer_pool_unload(void *data)
{
    ngx_http_deepinfer_pool_t  *pool = data;

    ngx_uint_t                       i;
    ngx_http_deepinfer_spelling_t  **spellings;

    spellings = pool->spellings.elts;

    for (i = 0; i < pool->spellings.nelts; i++) {
        if (spellings[i]->dialect) {
            di_dialect_close(spellings[i]->dialect);
        }
    }

    if (pool->vocab) {
        di_vocab_close(pool->vocab);
    }
}


char *
ngx_http_deepinfer_pool_model(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_deepinfer_main_conf_t *mcf = conf;

    ngx_str_t                  *value;
    ngx_http_deepinfer_pool_t  *pool;

    pool = mcf->current;
    value = cf->args->elts;

    if (pool->model.data) {
        return "is duplicate";
    }

    if (value[1].len == 0) {
        return "has an empty path";
    }

    pool->model = value[1];

    if (ngx_conf_full_name(cf->cycle, &pool->model, 1) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


char *
ngx_http_deepinfer_pool_engine(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_deepinfer_main_conf_t *mcf = conf;

    char                         *rv;
    ngx_str_t                    *value, path;
    ngx_uint_t                    n;
    ngx_http_deepinfer_pool_t    *pool;
    ngx_http_deepinfer_engine_t  *engine;

    pool = mcf->current;
    value = cf->args->elts;

    rv = ngx_http_deepinfer_engine_path(cf, &value[1], &path);
    if (rv != NGX_CONF_OK) {
        return rv;
    }

    engine = pool->engines.elts;

    for (n = 0; n < pool->engines.nelts; n++) {
        if (ngx_strcmp(engine[n].path, path.data) == 0) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "duplicate engine \"%V\"", &value[1]);
            return NGX_CONF_ERROR;
        }
    }

    engine = ngx_array_push(&pool->engines);
    if (engine == NULL) {
        return NGX_CONF_ERROR;
    }

    ngx_memzero(engine, sizeof(ngx_http_deepinfer_engine_t));

    engine->name = value[1];
    engine->path = (char *) path.data;

    return NGX_CONF_OK;
}


/* The absolute path in "unix:PATH". */

static char *
ngx_http_deepinfer_engine_path(ngx_conf_t *cf, ngx_str_t *name,
    ngx_str_t *path)
{
    u_char  c;
    size_t  i;

    if (ngx_strncmp(name->data, "unix:", 5) != 0 || name->len == 5) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid engine \"%V\", it must be \"unix:PATH\"",
                           name);
        return NGX_CONF_ERROR;
    }

    path->data = name->data + 5;
    path->len = name->len - 5;

    if (ngx_conf_full_name(cf->cycle, path, 0) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    if (path->len >= sizeof(((struct sockaddr_un *) 0)->sun_path)) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "too long path in engine \"%V\", at most %uz "
                           "bytes are allowed", name,
                           sizeof(((struct sockaddr_un *) 0)->sun_path) - 1);
        return NGX_CONF_ERROR;
    }

    /* the path is a label of metrics */

    for (i = 0; i < path->len; i++) {
        c = path->data[i];

        if (c < 0x20 || c == 0x7f || c == '"' || c == '\\') {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid character in engine \"%V\"", name);
            return NGX_CONF_ERROR;
        }
    }

    return NGX_CONF_OK;
}


char *
ngx_http_deepinfer_pool_alias(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_deepinfer_main_conf_t *mcf = conf;

    char        *rv;
    ngx_str_t   *value, *alias;
    ngx_uint_t   i;

    value = cf->args->elts;

    for (i = 1; i < cf->args->nelts; i++) {

        rv = ngx_http_deepinfer_check_name(cf, mcf, &value[i]);
        if (rv != NGX_CONF_OK) {
            return rv;
        }

        alias = ngx_array_push(&mcf->current->aliases);
        if (alias == NULL) {
            return NGX_CONF_ERROR;
        }

        *alias = value[i];
    }

    return NGX_CONF_OK;
}


char *
ngx_http_deepinfer_pool_queue(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_deepinfer_main_conf_t *mcf = conf;

    ngx_str_t                  *value;
    ngx_http_deepinfer_pool_t  *pool;

    pool = mcf->current;
    value = cf->args->elts;

    if (pool->queue != NGX_CONF_UNSET) {
        return "is duplicate";
    }

    pool->queue = ngx_atoi(value[1].data, value[1].len);

    if (pool->queue == NGX_ERROR || pool->queue == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid value \"%V\" in \"queue\"", &value[1]);
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


char *
ngx_http_deepinfer_pool_engine_timeout(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf)
{
    ngx_http_deepinfer_main_conf_t *mcf = conf;

    ngx_int_t                   timeout;
    ngx_str_t                  *value;
    ngx_http_deepinfer_pool_t  *pool;

    pool = mcf->current;
    value = cf->args->elts;

    if (pool->engine_timeout != NGX_CONF_UNSET_MSEC) {
        return "is duplicate";
    }

    timeout = ngx_parse_time(&value[1], 0);

    if (timeout < 1000) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid value \"%V\" in \"engine_timeout\", it "
                           "must be a time of at least 1s", &value[1]);
        return NGX_CONF_ERROR;
    }

    pool->engine_timeout = timeout;

    return NGX_CONF_OK;
}


char *
ngx_http_deepinfer_pool_dialect(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf)
{
    ngx_http_deepinfer_main_conf_t *mcf = conf;

    ngx_str_t                  *value;
    ngx_http_deepinfer_pool_t  *pool;

    pool = mcf->current;
    value = cf->args->elts;

    if (pool->dialect_name.data) {
        return "is duplicate";
    }

    if (value[1].len == 0) {
        return "has an empty name";
    }

    pool->dialect_name = value[1];

    return NGX_CONF_OK;
}


/* Names go to JSON, to labels of metrics and to logs as they are. */

static char *
ngx_http_deepinfer_check_name(ngx_conf_t *cf,
    ngx_http_deepinfer_main_conf_t *mcf, ngx_str_t *name)
{
    u_char                      c;
    size_t                      i;
    ngx_uint_t                  n;
    ngx_http_deepinfer_pool_t **pools;

    if (name->len == 0 || name->len > NGX_HTTP_DEEPINFER_NAME_MAX) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "model name \"%V\" must have 1 to %d bytes",
                           name, NGX_HTTP_DEEPINFER_NAME_MAX);
        return NGX_CONF_ERROR;
    }

    for (i = 0; i < name->len; i++) {
        c = name->data[i];

        if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')
            || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.'
            || c == ':' || c == '/' || c == '@' || c == '+')
        {
            continue;
        }

        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid character in model name \"%V\", letters, "
                           "digits and \"-_.:/@+\" are allowed", name);
        return NGX_CONF_ERROR;
    }

    pools = mcf->pools.elts;

    for (n = 0; n < mcf->pools.nelts; n++) {
        if (ngx_http_deepinfer_pool_answers(pools[n], (char *) name->data,
                                            name->len))
        {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "duplicate model name \"%V\"", name);
            return NGX_CONF_ERROR;
        }
    }

    return NGX_CONF_OK;
}


ngx_http_deepinfer_pool_t *
ngx_http_deepinfer_find_pool(ngx_http_deepinfer_main_conf_t *mcf,
    ngx_str_t *name)
{
    ngx_uint_t                   n;
    ngx_http_deepinfer_pool_t  **pools;

    pools = mcf->pools.elts;

    for (n = 0; n < mcf->pools.nelts; n++) {
        if (ngx_http_deepinfer_pool_answers(pools[n], (char *) name->data,
                                            name->len))
        {
            return pools[n];
        }
    }

    return NULL;
}


/* Whether the name is the pool's, or one of its aliases. */

ngx_uint_t
ngx_http_deepinfer_pool_answers(ngx_http_deepinfer_pool_t *pool,
    const char *data, size_t len)
{
    ngx_str_t   *alias;
    ngx_uint_t   i;

    if (pool->name.len == len && ngx_memcmp(pool->name.data, data, len) == 0) {
        return 1;
    }

    alias = pool->aliases.elts;

    for (i = 0; i < pool->aliases.nelts; i++) {
        if (alias[i].len == len && ngx_memcmp(alias[i].data, data, len) == 0) {
            return 1;
        }
    }

    return 0;
}
