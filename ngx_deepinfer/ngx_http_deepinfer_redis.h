
/*
 * ngx_http_deepinfer_redis.h - commands to a Redis server.
 *
 * One connection a worker, made by the first command.  A command is answered
 * once: by Redis, or with NGX_ERROR when it has no answer in time or the
 * connection is lost.  After a failure commands fail at once for a second, so
 * that a dead server costs its timeout once and not to every request.
 */


#ifndef _NGX_HTTP_DEEPINFER_REDIS_H_INCLUDED_
#define _NGX_HTTP_DEEPINFER_REDIS_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_http.h>


#define NGX_HTTP_DEEPINFER_REDIS_ARGS  8


typedef struct ngx_http_deepinfer_redis_op_s  ngx_http_deepinfer_redis_op_t;


typedef struct {
    ngx_str_t                      name;        /* as it was configured */
    ngx_str_t                      prefix;      /* of all keys */
    ngx_str_t                      password;    /* empty: none */
    ngx_int_t                      db;
    ngx_msec_t                     timeout;     /* of a command */
    const char                    *host;        /* numeric, or a path */
    in_port_t                      port;        /* 0: host is a path */

    /* the worker's own */
    void                          *context;     /* hiredis's; NULL: none */
    ngx_connection_t              *connection;  /* its socket */
    ngx_msec_t                     retry;       /* not before that time */
    ngx_uint_t                     pending;     /* commands without answer */
    unsigned                       failed:1;    /* and that was logged */
} ngx_http_deepinfer_redis_t;


/*
 * rc is NGX_OK; NGX_DECLINED: no such key; NGX_ERROR: Redis did not say.  The
 * value is borrowed and empty where the command has none.
 */

typedef void (*ngx_http_deepinfer_redis_pt)(void *data, ngx_int_t rc,
    ngx_str_t *value);


/* deepinfer_redis ADDRESS [prefix=] [password=] [db=] [timeout=] */

char *ngx_http_deepinfer_redis(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);

/*
 * Send a command.  The handler, which may be NULL, is called later, never
 * from here.  NULL: it cannot be sent now.
 */

ngx_http_deepinfer_redis_op_t *ngx_http_deepinfer_redis_send(
    ngx_http_deepinfer_redis_t *redis, ngx_uint_t n, ngx_str_t *args,
    ngx_http_deepinfer_redis_pt handler, void *data);

/* The answer no longer matters: the handler will not be called. */

void ngx_http_deepinfer_redis_forget(ngx_http_deepinfer_redis_op_t *op);

void ngx_http_deepinfer_redis_deinit(ngx_http_deepinfer_redis_t *redis);


#endif /* _NGX_HTTP_DEEPINFER_REDIS_H_INCLUDED_ */
