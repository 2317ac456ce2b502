
/*
 * ngx_http_deepinfer_direct.c - a stream's events past the body filters.
 *
 * An event of two hundred bytes passes a dozen filters that do nothing, and
 * is framed in three buffers by the last but one.  That is as much work as all
 * else that a worker does for it, and the longer it takes between two
 * writes, the more often a client has to be woken (docs/performance.md).  So
 * where it is certain that nobody else is interested, an event is framed here
 * and sent by one call.
 *
 * Certain means: all HTTP modules of this nginx are its own, so we know who
 * filters bodies; none of these has a context for the request, which is how
 * each of them marks those that it changes; the answer is a main request's, in
 * chunks, over HTTP/1.1 and not TLS, at no limited rate; and nginx holds
 * nothing of it.  The headers, the first event and the end always go by the
 * filters.  What the socket doesn't take is put where the last filter keeps
 * it, and goes the usual way from there.
 */


#include "ngx_http_deepinfer.h"


#define NGX_HTTP_DEEPINFER_FRAME  4096          /* of events, in bytes */

#define NGX_HTTP_DEEPINFER_BODY   1             /* it may change bodies */


typedef struct {
    const char                    *name;        /* without ngx_http_, _module */
    ngx_uint_t                     body;
} ngx_http_deepinfer_known_t;


static const ngx_http_deepinfer_known_t *ngx_http_deepinfer_known(
    const char *name);
static ngx_uint_t ngx_http_deepinfer_is_direct(ngx_http_deepinfer_ctx_t *ctx);
static ngx_int_t ngx_http_deepinfer_direct_rest(ngx_http_deepinfer_ctx_t *ctx,
    u_char *data, size_t len);


/*
 * nginx's own modules.  What frames, orders and writes (chunked_filter,
 * postpone_filter, copy_filter, write_filter, v2_filter) has no context that
 * would tell: the conditions above are theirs.
 */

static const ngx_http_deepinfer_known_t  ngx_http_deepinfer_modules[] = {
    { "access", 0 },
    { "addition_filter", NGX_HTTP_DEEPINFER_BODY },
    { "auth_basic", 0 },
    { "auth_request", 0 },
    { "autoindex", 0 },
    { "browser", 0 },
    { "charset_filter", NGX_HTTP_DEEPINFER_BODY },
    { "chunked_filter", 0 },
    { "copy_filter", 0 },
    { "core", 0 },
    { "dav", 0 },
    { "deepinfer", 0 },
    { "empty_gif", 0 },
    { "fastcgi", 0 },
    { "flv", 0 },
    { "geo", 0 },
    { "geoip", 0 },
    { "grpc", 0 },
    { "gunzip_filter", NGX_HTTP_DEEPINFER_BODY },
    { "gzip_filter", NGX_HTTP_DEEPINFER_BODY },
    { "gzip_static", 0 },
    { "header_count", 0 },                      /* of Debian */
    { "header_filter", 0 },
    { "headers_filter", 0 },
    { "image_filter", NGX_HTTP_DEEPINFER_BODY },
    { "index", 0 },
    { "limit_conn", 0 },
    { "limit_req", 0 },
    { "log", 0 },
    { "map", 0 },
    { "memcached", 0 },
    { "mirror", 0 },
    { "mp4", 0 },
    { "not_modified_filter", 0 },
    { "postpone_filter", 0 },
    { "proxy", 0 },
    { "random_index", 0 },
    { "range_body_filter", NGX_HTTP_DEEPINFER_BODY },
    { "range_header_filter", 0 },
    { "realip", 0 },
    { "referer", 0 },
    { "rewrite", 0 },
    { "scgi", 0 },
    { "secure_link", 0 },
    { "slice_filter", NGX_HTTP_DEEPINFER_BODY },
    { "split_clients", 0 },
    { "ssi_filter", NGX_HTTP_DEEPINFER_BODY },
    { "ssl", 0 },
    { "static", 0 },
    { "stub_status", 0 },
    { "sub_filter", NGX_HTTP_DEEPINFER_BODY },
    { "try_files", 0 },
    { "upstream", 0 },
    { "upstream_hash", 0 },
    { "upstream_ip_hash", 0 },
    { "upstream_keepalive", 0 },
    { "upstream_least_conn", 0 },
    { "upstream_random", 0 },
    { "upstream_zone", 0 },
    { "userid_filter", 0 },
    { "uwsgi", 0 },
    { "v2", 0 },
    { "v2_filter", 0 },
    { "v3", 0 },
    { "v3_filter", NGX_HTTP_DEEPINFER_BODY },
    { "write_filter", 0 },
    { "xslt_filter", NGX_HTTP_DEEPINFER_BODY },
    { NULL, 0 }
};


/* Who filters bodies here; after all modules were loaded. */

ngx_int_t
ngx_http_deepinfer_direct_init(ngx_conf_t *cf,
    ngx_http_deepinfer_main_conf_t *mcf)
{
    ngx_uint_t                         i, *index;
    ngx_module_t                      *module;
    const ngx_http_deepinfer_known_t  *known;

    if (ngx_array_init(&mcf->filters, cf->pool, 10, sizeof(ngx_uint_t))
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    for (i = 0; cf->cycle->modules[i]; i++) {
        module = cf->cycle->modules[i];

        if (module->type != NGX_HTTP_MODULE) {
            continue;
        }

        known = ngx_http_deepinfer_known(module->name);

        if (known == NULL) {
            ngx_log_error(NGX_LOG_INFO, cf->log, 0,
                          "deepinfer: events pass all body filters, one may "
                          "be that of %s", module->name);
            return NGX_OK;
        }

        if (known->body) {
            index = ngx_array_push(&mcf->filters);
            if (index == NULL) {
                return NGX_ERROR;
            }

            *index = module->ctx_index;
        }
    }

    mcf->direct = 1;

    return NGX_OK;
}


static const ngx_http_deepinfer_known_t *
ngx_http_deepinfer_known(const char *name)
{
    size_t                             len;
    const ngx_http_deepinfer_known_t  *known;

    static const char  prefix[] = "ngx_http_";

    if (ngx_strncmp(name, prefix, sizeof(prefix) - 1) != 0) {
        return NULL;
    }

    name += sizeof(prefix) - 1;

    for (known = ngx_http_deepinfer_modules; known->name; known++) {
        len = ngx_strlen(known->name);

        if (ngx_strncmp(name, known->name, len) == 0
            && ngx_strcmp(name + len, "_module") == 0)
        {
            return known;
        }
    }

    return NULL;
}


/* Whether a stream's events may go past the filters; once its headers went
 * by theirs. */

ngx_uint_t
ngx_http_deepinfer_direct_allowed(ngx_http_deepinfer_ctx_t *ctx)
{
    ngx_uint_t                       i, *index;
    ngx_http_request_t              *r;
    ngx_http_deepinfer_main_conf_t  *mcf;

    r = ctx->request;
    mcf = ctx->pool->main;

    if (!mcf->direct || r != r->main || !r->chunked
        || r->http_version != NGX_HTTP_VERSION_11)
    {
        return 0;
    }

#if (NGX_HTTP_V2)
    if (r->stream) {
        return 0;
    }
#endif

#if (NGX_SSL)
    if (r->connection->ssl) {
        return 0;
    }
#endif

    index = mcf->filters.elts;

    for (i = 0; i < mcf->filters.nelts; i++) {
        if (r->ctx[index[i]]) {
            return 0;
        }
    }

    return 1;
}


static ngx_uint_t
ngx_http_deepinfer_is_direct(ngx_http_deepinfer_ctx_t *ctx)
{
    ngx_connection_t    *c;
    ngx_http_request_t  *r;

    r = ctx->request;
    c = r->connection;

    return ctx->direct
           && !ctx->done
           && ctx->sent
           && ctx->pending.len
           && ctx->pending.len <= NGX_HTTP_DEEPINFER_FRAME
           && r->out == NULL
           && r->postponed == NULL
           && r->limit_rate == 0
           && !r->buffered
           && !c->buffered
           && !c->error
           && c->data == r
           && c->write->ready
           && !c->write->delayed;
}


/*
 * Send what is pending.  NGX_OK: all is sent; NGX_AGAIN: nginx has the rest;
 * NGX_ERROR; NGX_DECLINED: it has to go by the filters.
 */

ngx_int_t
ngx_http_deepinfer_direct(ngx_http_deepinfer_ctx_t *ctx)
{
    size_t             len, size;
    ssize_t            n;
    u_char            *p, *last;
    ngx_connection_t  *c;

    /* what stays the same for all streams stays in the CPU's cache */

    static const u_char  hex[] = "0123456789abcdef";
    static u_char        frame[NGX_HTTP_DEEPINFER_FRAME + 32];

    if (!ngx_http_deepinfer_is_direct(ctx)) {
        return NGX_DECLINED;
    }

    c = ctx->request->connection;

    /* the size stands right before the data */

    p = frame + 16;
    last = ngx_cpymem(p, ctx->pending.data, ctx->pending.len);
    *last++ = CR;
    *last++ = LF;

    *--p = LF;
    *--p = CR;

    for (size = ctx->pending.len; size; size >>= 4) {
        *--p = hex[size & 15];
    }

    len = last - p;

    ctx->sent = ngx_current_msec;
    ctx->pending.len = 0;

    n = c->send(c, p, len);

    if (n == (ssize_t) len) {
        return NGX_OK;
    }

    if (n == NGX_AGAIN) {
        n = 0;
    }

    if (n < 0) {
        c->error = 1;
        return NGX_ERROR;
    }

    return ngx_http_deepinfer_direct_rest(ctx, p + n, len - n);
}


/* The rest goes to the chain that the last filter writes from. */

static ngx_int_t
ngx_http_deepinfer_direct_rest(ngx_http_deepinfer_ctx_t *ctx, u_char *data,
    size_t len)
{
    ngx_buf_t           *b;
    ngx_chain_t         *cl;
    ngx_http_request_t  *r;

    r = ctx->request;

    ctx->sending.len = 0;
    di_sbuf_add(&ctx->sending, (char *) data, len);

    cl = ngx_alloc_chain_link(r->pool);

    if (cl == NULL || ctx->sending.failed) {
        return NGX_ERROR;
    }

    b = &ctx->buf;
    ngx_memzero(b, sizeof(ngx_buf_t));

    b->start = (u_char *) ctx->sending.data;
    b->pos = b->start;
    b->last = b->start + len;
    b->end = b->last;
    b->temporary = 1;
    b->flush = 1;
    b->tag = (ngx_buf_tag_t) &ngx_http_deepinfer_module;

    cl->buf = b;
    cl->next = NULL;

    r->out = cl;
    r->connection->buffered |= NGX_HTTP_WRITE_BUFFERED;

    return NGX_AGAIN;
}
