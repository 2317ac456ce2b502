
/*
 * ngx_http_deepinfer_store.c - where stored responses lie.
 *
 * In Redis if there is a deepinfer_redis, else in the shared zone, which keeps
 * at most deepinfer_store's size in bytes for its ttl.
 *
 * Nothing waits for Redis when a response is stored.  A look-up has to: its
 * handler is called when there is an answer, or when there will be none.
 */


#include "ngx_http_deepinfer.h"


static char *ngx_http_deepinfer_store_option(ngx_conf_t *cf,
    ngx_http_deepinfer_main_conf_t *mcf, ngx_str_t *value);
static ngx_int_t ngx_http_deepinfer_redis_key(
    ngx_http_deepinfer_main_conf_t *mcf, ngx_str_t *id, ngx_str_t *key);
static ngx_int_t ngx_http_deepinfer_redis_ask(
    ngx_http_deepinfer_main_conf_t *mcf, const char *command, ngx_str_t *id,
    ngx_http_deepinfer_fetch_t *fetch);
static void ngx_http_deepinfer_redis_said(void *data, ngx_int_t rc,
    ngx_str_t *value);
static void ngx_http_deepinfer_redis_put(void *data, ngx_int_t rc,
    ngx_str_t *value);


/* deepinfer_store [size=SIZE] [ttl=TIME] */

char *
ngx_http_deepinfer_store(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_deepinfer_main_conf_t *mcf = conf;

    char        *rv;
    ngx_str_t   *value;
    ngx_uint_t   i;

    if (mcf->store.size != NGX_CONF_UNSET_SIZE
        || mcf->store.ttl != NGX_CONF_UNSET)
    {
        return "is duplicate";
    }

    value = cf->args->elts;

    for (i = 1; i < cf->args->nelts; i++) {
        rv = ngx_http_deepinfer_store_option(cf, mcf, &value[i]);
        if (rv != NGX_CONF_OK) {
            return rv;
        }
    }

    return NGX_CONF_OK;
}


static char *
ngx_http_deepinfer_store_option(ngx_conf_t *cf,
    ngx_http_deepinfer_main_conf_t *mcf, ngx_str_t *value)
{
    ssize_t    size;
    ngx_int_t  ttl;
    ngx_str_t  s;

    if (ngx_strncmp(value->data, "size=", 5) == 0) {
        s.data = value->data + 5;
        s.len = value->len - 5;
        size = ngx_parse_size(&s);

        if (size > 0) {
            mcf->store.size = size;
            return NGX_CONF_OK;
        }
    }

    if (ngx_strncmp(value->data, "ttl=", 4) == 0) {
        s.data = value->data + 4;
        s.len = value->len - 4;
        ttl = ngx_parse_time(&s, 1);

        if (ttl > 0) {
            mcf->store.ttl = ttl;
            return NGX_CONF_OK;
        }
    }

    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "invalid parameter \"%V\" of \"deepinfer_store\"",
                       value);
    return NGX_CONF_ERROR;
}


/* Keep a record, or log why it is not kept. */

void
ngx_http_deepinfer_store_put(ngx_http_deepinfer_main_conf_t *mcf,
    ngx_str_t *id, di_sbuf_t *record)
{
    u_char     ttl[NGX_TIME_T_LEN];
    ngx_str_t  args[5];

    if (mcf->redis == NULL) {

        if (ngx_http_deepinfer_kept_put(&mcf->store, id, record->data,
                                        record->len)
            != NGX_OK)
        {
            ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                          "deepinfer: no room to store response \"%V\" of "
                          "%uz bytes", id, record->len);
        }

        return;
    }

    ngx_str_set(&args[0], "SET");

    if (ngx_http_deepinfer_redis_key(mcf, id, &args[1]) != NGX_OK) {
        return;
    }

    args[2].data = (u_char *) record->data;
    args[2].len = record->len;
    ngx_str_set(&args[3], "EX");
    args[4].data = ttl;
    args[4].len = ngx_sprintf(ttl, "%T", mcf->store.ttl) - ttl;

    if (ngx_http_deepinfer_redis_send(mcf->redis, 5, args,
                                      ngx_http_deepinfer_redis_put, NULL)
        == NULL)
    {
        ngx_http_deepinfer_redis_put(NULL, NGX_ERROR, NULL);
    }

    ngx_free(args[1].data);
}


/*
 * NGX_OK: found, fetch->record owns it; NGX_DECLINED: there is none;
 * NGX_ERROR: the store does not say; NGX_AGAIN: fetch->handler will be called
 * with one of these in fetch->rc.
 */

ngx_int_t
ngx_http_deepinfer_store_get(ngx_http_deepinfer_main_conf_t *mcf,
    ngx_str_t *id, ngx_http_deepinfer_fetch_t *fetch)
{
    return mcf->redis
           ? ngx_http_deepinfer_redis_ask(mcf, "GET", id, fetch)
           : ngx_http_deepinfer_kept_get(&mcf->store, id, &fetch->record);
}


/* The same; NGX_OK: there was one. */

ngx_int_t
ngx_http_deepinfer_store_delete(ngx_http_deepinfer_main_conf_t *mcf,
    ngx_str_t *id, ngx_http_deepinfer_fetch_t *fetch)
{
    return mcf->redis
           ? ngx_http_deepinfer_redis_ask(mcf, "DEL", id, fetch)
           : ngx_http_deepinfer_kept_delete(&mcf->store, id);
}


/* The fetch's owner ends. */

void
ngx_http_deepinfer_store_forget(ngx_http_deepinfer_fetch_t *fetch)
{
    if (fetch->op) {
        ngx_http_deepinfer_redis_forget(fetch->op);
        fetch->op = NULL;
    }

    di_sbuf_free(&fetch->record);
}


/* PREFIX response: ID, owned by the caller. */

static ngx_int_t
ngx_http_deepinfer_redis_key(ngx_http_deepinfer_main_conf_t *mcf,
    ngx_str_t *id, ngx_str_t *key)
{
    key->len = mcf->redis->prefix.len + sizeof("response:") - 1 + id->len;
    key->data = ngx_alloc(key->len, ngx_cycle->log);

    if (key->data == NULL) {
        return NGX_ERROR;
    }

    (void) ngx_sprintf(key->data, "%Vresponse:%V", &mcf->redis->prefix, id);

    return NGX_OK;
}


static ngx_int_t
ngx_http_deepinfer_redis_ask(ngx_http_deepinfer_main_conf_t *mcf,
    const char *command, ngx_str_t *id, ngx_http_deepinfer_fetch_t *fetch)
{
    ngx_str_t  args[2];

    args[0].data = (u_char *) command;
    args[0].len = ngx_strlen(command);

    if (ngx_http_deepinfer_redis_key(mcf, id, &args[1]) != NGX_OK) {
        return NGX_ERROR;
    }

    fetch->op = ngx_http_deepinfer_redis_send(mcf->redis, 2, args,
                                              ngx_http_deepinfer_redis_said,
                                              fetch);
    ngx_free(args[1].data);

    return fetch->op ? NGX_AGAIN : NGX_ERROR;
}


static void
ngx_http_deepinfer_redis_said(void *data, ngx_int_t rc, ngx_str_t *value)
{
    ngx_http_deepinfer_fetch_t  *fetch = data;

    fetch->op = NULL;
    fetch->rc = rc;

    if (rc == NGX_OK) {
        di_sbuf_add(&fetch->record, (char *) value->data, value->len);

        if (fetch->record.failed) {
            fetch->rc = NGX_ERROR;
        }
    }

    fetch->handler(fetch);
}


static void
ngx_http_deepinfer_redis_put(void *data, ngx_int_t rc, ngx_str_t *value)
{
    if (rc != NGX_OK) {
        ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                      "deepinfer: a response could not be stored in redis");
    }
}
