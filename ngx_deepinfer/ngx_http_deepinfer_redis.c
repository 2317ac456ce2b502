
/*
 * ngx_http_deepinfer_redis.c - hiredis on nginx's event loop.
 *
 * hiredis owns the socket and the queue of commands; nginx tells it when the
 * socket is ready.  Each command has a timer of ours.  When one expires the
 * whole connection is given up, since answers come in order: whatever waits
 * behind it is late, too.  hiredis then calls every callback that is left
 * with no reply, so a command's end is always its callback, where it is freed.
 */


#include "ngx_http_deepinfer.h"
#include "ngx_http_deepinfer_redis.h"

#include <hiredis/async.h>
#include <hiredis/hiredis.h>


#define NGX_HTTP_DEEPINFER_REDIS_RETRY    1000  /* ms, after a failure */
#define NGX_HTTP_DEEPINFER_REDIS_PENDING  4096  /* commands */


struct ngx_http_deepinfer_redis_op_s {
    ngx_http_deepinfer_redis_t    *redis;
    ngx_http_deepinfer_redis_pt    handler;     /* NULL: nobody waits */
    void                          *data;
    ngx_event_t                    timer;
};


static char *ngx_http_deepinfer_redis_address(ngx_conf_t *cf,
    ngx_http_deepinfer_redis_t *redis);
static char *ngx_http_deepinfer_redis_option(ngx_conf_t *cf,
    ngx_http_deepinfer_redis_t *redis, ngx_str_t *value);
static ngx_int_t ngx_http_deepinfer_redis_connect(
    ngx_http_deepinfer_redis_t *redis);
static ngx_int_t ngx_http_deepinfer_redis_login(
    ngx_http_deepinfer_redis_t *redis);
static ngx_int_t ngx_http_deepinfer_redis_attach(
    ngx_http_deepinfer_redis_t *redis, redisAsyncContext *ac);
static void ngx_http_deepinfer_redis_connected(const redisAsyncContext *ac,
    int status);
static void ngx_http_deepinfer_redis_disconnected(const redisAsyncContext *ac,
    int status);
static void ngx_http_deepinfer_redis_reply(redisAsyncContext *ac, void *r,
    void *data);
static ngx_int_t ngx_http_deepinfer_redis_result(
    ngx_http_deepinfer_redis_t *redis, redisReply *reply, ngx_str_t *value);
static void ngx_http_deepinfer_redis_timeout(ngx_event_t *ev);
static void ngx_http_deepinfer_redis_failed(ngx_http_deepinfer_redis_t *redis,
    const char *reason);
static void ngx_http_deepinfer_redis_read_handler(ngx_event_t *ev);
static void ngx_http_deepinfer_redis_write_handler(ngx_event_t *ev);
static void ngx_http_deepinfer_redis_add_read(void *data);
static void ngx_http_deepinfer_redis_del_read(void *data);
static void ngx_http_deepinfer_redis_add_write(void *data);
static void ngx_http_deepinfer_redis_del_write(void *data);
static void ngx_http_deepinfer_redis_cleanup(void *data);


char *
ngx_http_deepinfer_redis(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_deepinfer_main_conf_t *mcf = conf;

    char                        *rv;
    ngx_str_t                   *value;
    ngx_uint_t                   i;
    ngx_http_deepinfer_redis_t  *redis;

    if (mcf->redis) {
        return "is duplicate";
    }

    value = cf->args->elts;

    redis = ngx_pcalloc(cf->pool, sizeof(ngx_http_deepinfer_redis_t));
    if (redis == NULL) {
        return NGX_CONF_ERROR;
    }

    redis->name = value[1];
    redis->timeout = 500;
    ngx_str_set(&redis->prefix, "di:");

    rv = ngx_http_deepinfer_redis_address(cf, redis);

    for (i = 2; i < cf->args->nelts && rv == NGX_CONF_OK; i++) {
        rv = ngx_http_deepinfer_redis_option(cf, redis, &value[i]);
    }

    mcf->redis = redis;

    return rv;
}


/* A name is resolved here, once: a worker may not wait for that. */

static char *
ngx_http_deepinfer_redis_address(ngx_conf_t *cf,
    ngx_http_deepinfer_redis_t *redis)
{
    u_char     *p;
    size_t      len;
    ngx_url_t   u;

    ngx_memzero(&u, sizeof(ngx_url_t));

    u.url = redis->name;
    u.default_port = 6379;

    if (ngx_parse_url(cf->pool, &u) != NGX_OK) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "%s in deepinfer_redis \"%V\"",
                           u.err ? u.err : "invalid address", &u.url);
        return NGX_CONF_ERROR;
    }

    if (u.addrs[0].sockaddr->sa_family == AF_UNIX) {
        redis->host = ((struct sockaddr_un *) u.addrs[0].sockaddr)->sun_path;
        return NGX_CONF_OK;
    }

    p = ngx_pcalloc(cf->pool, NGX_SOCKADDR_STRLEN + 1);
    if (p == NULL) {
        return NGX_CONF_ERROR;
    }

    len = ngx_sock_ntop(u.addrs[0].sockaddr, u.addrs[0].socklen, p,
                        NGX_SOCKADDR_STRLEN, 0);

    /* hiredis wants an IPv6 address without brackets */

    if (p[0] == '[') {
        p[len - 1] = '\0';
        p++;
    }

    redis->host = (char *) p;
    redis->port = ngx_inet_get_port(u.addrs[0].sockaddr);

    return NGX_CONF_OK;
}


static char *
ngx_http_deepinfer_redis_option(ngx_conf_t *cf,
    ngx_http_deepinfer_redis_t *redis, ngx_str_t *value)
{
    ngx_str_t  s;
    ngx_int_t  n;

    if (ngx_strncmp(value->data, "prefix=", 7) == 0) {
        redis->prefix.data = value->data + 7;
        redis->prefix.len = value->len - 7;
        return NGX_CONF_OK;
    }

    if (ngx_strncmp(value->data, "password=", 9) == 0) {
        redis->password.data = value->data + 9;
        redis->password.len = value->len - 9;
        return NGX_CONF_OK;
    }

    if (ngx_strncmp(value->data, "db=", 3) == 0) {
        n = ngx_atoi(value->data + 3, value->len - 3);

        if (n != NGX_ERROR) {
            redis->db = n;
            return NGX_CONF_OK;
        }
    }

    if (ngx_strncmp(value->data, "timeout=", 8) == 0) {
        s.data = value->data + 8;
        s.len = value->len - 8;
        n = ngx_parse_time(&s, 0);

        if (n != NGX_ERROR && n != 0) {
            redis->timeout = n;
            return NGX_CONF_OK;
        }
    }

    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "invalid parameter \"%V\" of \"deepinfer_redis\"",
                       value);
    return NGX_CONF_ERROR;
}


ngx_http_deepinfer_redis_op_t *
ngx_http_deepinfer_redis_send(ngx_http_deepinfer_redis_t *redis, ngx_uint_t n,
    ngx_str_t *args, ngx_http_deepinfer_redis_pt handler, void *data)
{
    size_t                          lens[NGX_HTTP_DEEPINFER_REDIS_ARGS];
    ngx_uint_t                      i;
    const char                     *argv[NGX_HTTP_DEEPINFER_REDIS_ARGS];
    ngx_http_deepinfer_redis_op_t  *op;

    if (redis->pending >= NGX_HTTP_DEEPINFER_REDIS_PENDING
        || ngx_http_deepinfer_redis_connect(redis) != NGX_OK)
    {
        return NULL;
    }

    op = ngx_calloc(sizeof(ngx_http_deepinfer_redis_op_t), ngx_cycle->log);
    if (op == NULL) {
        return NULL;
    }

    op->redis = redis;
    op->handler = handler;
    op->data = data;

    op->timer.handler = ngx_http_deepinfer_redis_timeout;
    op->timer.data = op;
    op->timer.log = ngx_cycle->log;

    for (i = 0; i < n; i++) {
        argv[i] = (char *) args[i].data;
        lens[i] = args[i].len;
    }

    if (redisAsyncCommandArgv(redis->context, ngx_http_deepinfer_redis_reply,
                              op, (int) n, argv, lens)
        != REDIS_OK)
    {
        ngx_free(op);
        return NULL;
    }

    redis->pending++;
    ngx_add_timer(&op->timer, redis->timeout);

    return op;
}


void
ngx_http_deepinfer_redis_forget(ngx_http_deepinfer_redis_op_t *op)
{
    op->handler = NULL;
}


void
ngx_http_deepinfer_redis_deinit(ngx_http_deepinfer_redis_t *redis)
{
    if (redis->context) {
        redisAsyncFree(redis->context);
    }
}


/* Begin to connect; commands may be given at once, hiredis keeps them. */

static ngx_int_t
ngx_http_deepinfer_redis_connect(ngx_http_deepinfer_redis_t *redis)
{
    redisAsyncContext  *ac;

    if (redis->context) {
        return NGX_OK;
    }

    if (redis->failed
        && (ngx_msec_int_t) (redis->retry - ngx_current_msec) > 0)
    {
        return NGX_ERROR;
    }

    ac = redis->port ? redisAsyncConnect(redis->host, redis->port)
                     : redisAsyncConnectUnix(redis->host);

    if (ac == NULL || ac->err) {
        ngx_http_deepinfer_redis_failed(redis, ac ? ac->errstr
                                                  : "out of memory");
        if (ac) {
            redisAsyncFree(ac);
        }

        return NGX_ERROR;
    }

    if (ngx_http_deepinfer_redis_attach(redis, ac) != NGX_OK) {
        ngx_http_deepinfer_redis_failed(redis, "no free worker connection");
        redisAsyncFree(ac);
        return NGX_ERROR;
    }

    (void) redisAsyncSetConnectCallback(ac,
                                        ngx_http_deepinfer_redis_connected);
    (void) redisAsyncSetDisconnectCallback(ac,
                                     ngx_http_deepinfer_redis_disconnected);

    return ngx_http_deepinfer_redis_login(redis);
}


static ngx_int_t
ngx_http_deepinfer_redis_login(ngx_http_deepinfer_redis_t *redis)
{
    u_char     buf[NGX_INT_T_LEN];
    ngx_str_t  args[2];

    if (redis->password.len) {
        ngx_str_set(&args[0], "AUTH");
        args[1] = redis->password;

        if (ngx_http_deepinfer_redis_send(redis, 2, args, NULL, NULL)
            == NULL)
        {
            return NGX_ERROR;
        }
    }

    if (redis->db) {
        ngx_str_set(&args[0], "SELECT");
        args[1].data = buf;
        args[1].len = ngx_sprintf(buf, "%i", redis->db) - buf;

        if (ngx_http_deepinfer_redis_send(redis, 2, args, NULL, NULL)
            == NULL)
        {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_deepinfer_redis_attach(ngx_http_deepinfer_redis_t *redis,
    redisAsyncContext *ac)
{
    ngx_connection_t  *c;

    c = ngx_get_connection(ac->c.fd, ngx_cycle->log);
    if (c == NULL) {
        return NGX_ERROR;
    }

    c->data = redis;

    c->read->handler = ngx_http_deepinfer_redis_read_handler;
    c->read->log = ngx_cycle->log;
    c->write->handler = ngx_http_deepinfer_redis_write_handler;
    c->write->log = ngx_cycle->log;

    /* it is no client's: a worker that leaves does not ask it to close */

    c->read->channel = 1;
    c->write->channel = 1;

    redis->connection = c;
    redis->context = ac;

    ac->data = redis;
    ac->ev.data = redis;
    ac->ev.addRead = ngx_http_deepinfer_redis_add_read;
    ac->ev.delRead = ngx_http_deepinfer_redis_del_read;
    ac->ev.addWrite = ngx_http_deepinfer_redis_add_write;
    ac->ev.delWrite = ngx_http_deepinfer_redis_del_write;
    ac->ev.cleanup = ngx_http_deepinfer_redis_cleanup;

    return NGX_OK;
}


static void
ngx_http_deepinfer_redis_connected(const redisAsyncContext *ac, int status)
{
    if (status != REDIS_OK) {
        ngx_http_deepinfer_redis_failed(ac->data, ac->errstr);
    }
}


static void
ngx_http_deepinfer_redis_disconnected(const redisAsyncContext *ac, int status)
{
    ngx_http_deepinfer_redis_t  *redis;

    redis = ac->data;

    /* an idle connection may be closed: that alone is no failure */

    if (status != REDIS_OK && redis->pending) {
        ngx_http_deepinfer_redis_failed(redis, ac->errstr);
    }
}


static void
ngx_http_deepinfer_redis_reply(redisAsyncContext *ac, void *r, void *data)
{
    ngx_int_t                       rc;
    ngx_str_t                       value;
    ngx_http_deepinfer_redis_t     *redis;
    ngx_http_deepinfer_redis_op_t  *op;

    op = data;
    redis = op->redis;

    if (op->timer.timer_set) {
        ngx_del_timer(&op->timer);
    }

    ngx_str_null(&value);

    rc = r ? ngx_http_deepinfer_redis_result(redis, r, &value) : NGX_ERROR;

    if (op->handler) {
        op->handler(op->data, rc, &value);
    }

    redis->pending--;
    ngx_free(op);
}


static ngx_int_t
ngx_http_deepinfer_redis_result(ngx_http_deepinfer_redis_t *redis,
    redisReply *reply, ngx_str_t *value)
{
    switch (reply->type) {

    case REDIS_REPLY_NIL:
        return NGX_DECLINED;

    case REDIS_REPLY_INTEGER:
        return reply->integer ? NGX_OK : NGX_DECLINED;

    case REDIS_REPLY_STRING:
        value->data = (u_char *) reply->str;
        value->len = reply->len;
        break;

    case REDIS_REPLY_ERROR:
        ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                      "deepinfer: redis \"%V\" refused a command: %s",
                      &redis->name, reply->str);
        return NGX_ERROR;

    default:
        break;
    }

    if (redis->failed) {
        redis->failed = 0;
        ngx_log_error(NGX_LOG_NOTICE, ngx_cycle->log, 0,
                      "deepinfer: redis \"%V\" is available again",
                      &redis->name);
    }

    return NGX_OK;
}


static void
ngx_http_deepinfer_redis_timeout(ngx_event_t *ev)
{
    ngx_http_deepinfer_redis_t     *redis;
    ngx_http_deepinfer_redis_op_t  *op;

    op = ev->data;
    redis = op->redis;

    ngx_http_deepinfer_redis_failed(redis, "it does not answer in time");

    /* all commands end here, this one too */

    redisAsyncFree(redis->context);
}


/* One line a failure, not one a request. */

static void
ngx_http_deepinfer_redis_failed(ngx_http_deepinfer_redis_t *redis,
    const char *reason)
{
    redis->retry = ngx_current_msec + NGX_HTTP_DEEPINFER_REDIS_RETRY;

    if (!redis->failed) {
        redis->failed = 1;
        ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                      "deepinfer: redis \"%V\" is not available: %s",
                      &redis->name, reason);
    }
}


static void
ngx_http_deepinfer_redis_read_handler(ngx_event_t *ev)
{
    ngx_connection_t            *c;
    ngx_http_deepinfer_redis_t  *redis;

    c = ev->data;
    redis = c->data;

    redisAsyncHandleRead(redis->context);
}


static void
ngx_http_deepinfer_redis_write_handler(ngx_event_t *ev)
{
    ngx_connection_t            *c;
    ngx_http_deepinfer_redis_t  *redis;

    c = ev->data;
    redis = c->data;

    redisAsyncHandleWrite(redis->context);
}


/* hiredis reads once a call: events have to come again while there is more. */

static void
ngx_http_deepinfer_redis_add_read(void *data)
{
    ngx_connection_t  *c;

    c = ((ngx_http_deepinfer_redis_t *) data)->connection;

    if (!c->read->active) {
        (void) ngx_add_event(c->read, NGX_READ_EVENT, NGX_LEVEL_EVENT);
    }
}


static void
ngx_http_deepinfer_redis_del_read(void *data)
{
    ngx_connection_t  *c;

    c = ((ngx_http_deepinfer_redis_t *) data)->connection;

    if (c->read->active) {
        (void) ngx_del_event(c->read, NGX_READ_EVENT, 0);
    }
}


static void
ngx_http_deepinfer_redis_add_write(void *data)
{
    ngx_connection_t  *c;

    c = ((ngx_http_deepinfer_redis_t *) data)->connection;

    if (!c->write->active) {
        (void) ngx_add_event(c->write, NGX_WRITE_EVENT, NGX_LEVEL_EVENT);
    }
}


static void
ngx_http_deepinfer_redis_del_write(void *data)
{
    ngx_connection_t  *c;

    c = ((ngx_http_deepinfer_redis_t *) data)->connection;

    if (c->write->active) {
        (void) ngx_del_event(c->write, NGX_WRITE_EVENT, 0);
    }
}


/* hiredis frees the context and closes the socket next. */

static void
ngx_http_deepinfer_redis_cleanup(void *data)
{
    ngx_connection_t            *c;
    ngx_http_deepinfer_redis_t  *redis;

    redis = data;
    c = redis->connection;

    ngx_http_deepinfer_redis_del_read(redis);
    ngx_http_deepinfer_redis_del_write(redis);

    if (c->read->posted) {
        ngx_delete_posted_event(c->read);
    }

    if (c->write->posted) {
        ngx_delete_posted_event(c->write);
    }

    ngx_free_connection(c);
    c->fd = (ngx_socket_t) -1;

    redis->connection = NULL;
    redis->context = NULL;
}
