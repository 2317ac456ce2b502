
/*
 * ngx_http_deepinfer_api.c - the list of models, the health check, and JSON
 * for the errors that nginx itself makes.
 */


#include "ngx_http_deepinfer.h"

#include "tokenizer/api/di_models.h"


static ngx_uint_t ngx_http_deepinfer_get_refused(ngx_http_request_t *r,
    ngx_int_t *rc);
static ngx_int_t ngx_http_deepinfer_location_pools(ngx_http_request_t *r,
    ngx_http_deepinfer_pool_t **own, ngx_http_deepinfer_pool_t ***pools,
    ngx_uint_t *n);
static void ngx_http_deepinfer_models_list(di_sbuf_t *body, di_api_t api,
    ngx_http_deepinfer_pool_t **pools, ngx_uint_t n);
static ngx_uint_t ngx_http_deepinfer_health_pool(di_sbuf_t *body,
    ngx_http_deepinfer_pool_t *pool);
static void ngx_http_deepinfer_describe(ngx_uint_t status, di_api_err_t *err);


/*
 * GET and HEAD alone are answered.  Otherwise, or after a failure, it is true
 * and rc is what the handler returns.
 */

static ngx_uint_t
ngx_http_deepinfer_get_refused(ngx_http_request_t *r, ngx_int_t *rc)
{
    ngx_str_t  id;

    if (ngx_http_deepinfer_request_id(r, &id) != NGX_OK) {
        *rc = NGX_HTTP_INTERNAL_SERVER_ERROR;
        return 1;
    }

    if (!(r->method & (NGX_HTTP_GET|NGX_HTTP_HEAD))) {
        *rc = ngx_http_deepinfer_send_not_allowed(r, "GET, HEAD");
        return 1;
    }

    *rc = ngx_http_discard_request_body(r);

    return *rc != NGX_OK;
}


/* The pools that a location speaks of: its own, or all. */

static ngx_int_t
ngx_http_deepinfer_location_pools(ngx_http_request_t *r,
    ngx_http_deepinfer_pool_t **own, ngx_http_deepinfer_pool_t ***pools,
    ngx_uint_t *n)
{
    ngx_http_deepinfer_loc_conf_t   *dlcf;
    ngx_http_deepinfer_main_conf_t  *mcf;

    dlcf = ngx_http_get_module_loc_conf(r, ngx_http_deepinfer_module);

    if (ngx_http_deepinfer_select_pool(r, dlcf, own) != NGX_OK) {
        return NGX_ERROR;
    }

    if (*own) {
        *pools = own;
        *n = 1;
        return NGX_OK;
    }

    mcf = ngx_http_get_module_main_conf(r, ngx_http_deepinfer_module);

    *pools = mcf->pools.elts;
    *n = mcf->pools.nelts;

    return NGX_OK;
}


ngx_int_t
ngx_http_deepinfer_models_handler(ngx_http_request_t *r)
{
    ngx_int_t                    rc;
    ngx_str_t                    id;
    ngx_uint_t                   i, n;
    di_api_t                     api;
    di_str_t                     name;
    di_sbuf_t                    body;
    di_model_t                   model;
    di_api_err_t                 err;
    ngx_http_deepinfer_pool_t   *own, **pools;

    if (ngx_http_deepinfer_get_refused(r, &rc)) {
        return rc;
    }

    ngx_memzero(&body, sizeof(di_sbuf_t));

    api = ngx_http_deepinfer_is_anthropic(r) ? DI_API_MESSAGES : DI_API_CHAT;

    if (ngx_http_deepinfer_location_pools(r, &own, &pools, &n) != NGX_OK) {
        n = 0;
    }

    if (ngx_http_deepinfer_path_after(r, "/models", &id)) {

        name.data = (char *) id.data;
        name.len = id.len;

        for (i = 0; i < n; i++) {
            if (ngx_http_deepinfer_pool_answers(pools[i], name.data,
                                                name.len))
            {
                model.id = name;
                model.created = pools[i]->created;
                di_model_write(&body, api, &model);
                break;
            }
        }

        if (i == n) {
            ngx_memzero(&err, sizeof(di_api_err_t));
            di_api_err_set(&err, NGX_HTTP_NOT_FOUND, "invalid_request_error",
                           "model_not_found", "model",
                           "The model `%.*s` does not exist.",
                           (int) ngx_min(id.len, 128), (char *) id.data);
            return ngx_http_deepinfer_send_error(r, &err, 0);
        }

    } else {
        ngx_http_deepinfer_models_list(&body, api, pools, n);
    }

    rc = ngx_http_deepinfer_send_json(r, NGX_HTTP_OK, &body);

    di_sbuf_free(&body);

    return rc;
}


/*
 * What follows NAME and a slash in the URI, which may have slashes; false if
 * the URI ends with NAME.
 */

ngx_uint_t
ngx_http_deepinfer_path_after(ngx_http_request_t *r, const char *name,
    ngx_str_t *path)
{
    u_char  *p, *last;
    size_t   len;

    p = r->uri.data;
    last = r->uri.data + r->uri.len;
    len = ngx_strlen(name);

    do {
        p = ngx_strlcasestrn(p, last, (u_char *) name, len - 1);

        if (p == NULL) {
            return 0;
        }

        p += len;

        if (p == last) {
            return 0;
        }

    } while (*p != '/');

    path->data = p + 1;
    path->len = last - path->data;

    return path->len != 0;
}


/* Every name that requests may use: pools and their aliases. */

static void
ngx_http_deepinfer_models_list(di_sbuf_t *body, di_api_t api,
    ngx_http_deepinfer_pool_t **pools, ngx_uint_t n)
{
    ngx_str_t   *name, *alias;
    ngx_uint_t   i, j, k, total;
    di_model_t  *models;

    total = 0;

    for (i = 0; i < n; i++) {
        total += 1 + pools[i]->aliases.nelts;
    }

    models = calloc(total + 1, sizeof(di_model_t));
    if (models == NULL) {
        body->failed = true;
        return;
    }

    k = 0;

    for (i = 0; i < n; i++) {
        alias = pools[i]->aliases.elts;

        for (j = 0; j <= pools[i]->aliases.nelts; j++) {
            name = j ? &alias[j - 1] : &pools[i]->name;
            models[k].id.data = (char *) name->data;
            models[k].id.len = name->len;
            models[k++].created = pools[i]->created;
        }
    }

    di_models_write(body, api, models, total);
    free(models);
}


/*
 * 200 if each pool has an engine that this worker is connected to and that
 * takes requests, else 503.
 */

ngx_int_t
ngx_http_deepinfer_health_handler(ngx_http_request_t *r)
{
    ngx_int_t                    rc;
    ngx_uint_t                   i, n, status;
    di_sbuf_t                    pool_list, body;
    ngx_http_deepinfer_pool_t   *own, **pools;

    static u_char  one[] = "1";

    if (ngx_http_deepinfer_get_refused(r, &rc)) {
        return rc;
    }

    ngx_memzero(&pool_list, sizeof(di_sbuf_t));
    ngx_memzero(&body, sizeof(di_sbuf_t));

    if (ngx_http_deepinfer_location_pools(r, &own, &pools, &n) != NGX_OK) {
        n = 0;
    }

    status = n ? NGX_HTTP_OK : NGX_HTTP_SERVICE_UNAVAILABLE;

    for (i = 0; i < n; i++) {

        if (i) {
            di_sbuf_add(&pool_list, ",", 1);
        }

        if (ngx_http_deepinfer_health_pool(&pool_list, pools[i]) == 0) {
            status = NGX_HTTP_SERVICE_UNAVAILABLE;
        }
    }

    if (status == NGX_HTTP_OK) {
        di_sbuf_add(&body, "{\"status\":\"ok\",\"pools\":[",
                    sizeof("{\"status\":\"ok\",\"pools\":[") - 1);

    } else {
        di_sbuf_add(&body, "{\"status\":\"unavailable\",\"pools\":[",
                    sizeof("{\"status\":\"unavailable\",\"pools\":[") - 1);

        if (ngx_http_deepinfer_add_header(r, "Retry-After", one, 1)
            != NGX_OK)
        {
            body.failed = true;
        }
    }

    di_sbuf_add(&body, pool_list.data, pool_list.len);
    di_sbuf_add(&body, "]}", 2);

    body.failed |= pool_list.failed;

    rc = ngx_http_deepinfer_send_json(r, status, &body);

    di_sbuf_free(&pool_list);
    di_sbuf_free(&body);

    return rc;
}


/* The number of engines that are up; names need no escaping. */

static ngx_uint_t
ngx_http_deepinfer_health_pool(di_sbuf_t *body,
    ngx_http_deepinfer_pool_t *pool)
{
    u_char                        buf[NGX_HTTP_DEEPINFER_NAME_MAX + 128], *p;
    ngx_uint_t                    i, up;
    di_ipc_status_t               status;
    ngx_http_deepinfer_engine_t  *engine;

    up = 0;
    engine = pool->engines.elts;

    for (i = 0; i < pool->engines.nelts; i++) {

        if (!engine[i].ready) {
            continue;
        }

        if (ngx_http_deepinfer_engine_status(&engine[i], &status)
            && status.draining)
        {
            continue;
        }

        up++;
    }

    p = ngx_slprintf(buf, buf + sizeof(buf),
                     "{\"model\":\"%V\",\"engines\":%ui,\"up\":%ui}",
                     &pool->name, pool->engines.nelts, up);

    di_sbuf_add(body, (char *) buf, p - buf);

    return up;
}


/*
 * The target of error_page: the status is the error's own, the body is that
 * of the API.  A header that the error came with, WWW-Authenticate or
 * Retry-After, stays.
 */

ngx_int_t
ngx_http_deepinfer_error_handler(ngx_http_request_t *r)
{
    ngx_int_t                  rc;
    ngx_str_t                  id;
    ngx_uint_t                 retry_after;
    di_api_err_t               err;

    rc = ngx_http_discard_request_body(r);

    if (rc != NGX_OK) {
        r->keepalive = 0;
    }

    if (ngx_http_deepinfer_find_header(&r->headers_out.headers, "x-request-id")
        == NULL
        && ngx_http_deepinfer_request_id(r, &id) != NGX_OK)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    /* without an error, somebody has asked for this location by its name */

    if (r->err_status == 0) {
        r->err_status = NGX_HTTP_NOT_FOUND;

    } else if (r->err_status > 431 && r->err_status < 500) {

        /* nginx's own codes for what is a bad request to the client */

        r->err_status = NGX_HTTP_BAD_REQUEST;
    }

    ngx_memzero(&err, sizeof(di_api_err_t));
    ngx_http_deepinfer_describe(r->err_status, &err);

    retry_after = 0;

    if ((r->err_status == NGX_HTTP_TOO_MANY_REQUESTS
         || r->err_status == NGX_HTTP_SERVICE_UNAVAILABLE)
        && ngx_http_deepinfer_find_header(&r->headers_out.headers,
                                          "retry-after")
           == NULL)
    {
        retry_after = 1;
    }

    return ngx_http_deepinfer_send_error(r, &err, retry_after);
}


static void
ngx_http_deepinfer_describe(ngx_uint_t status, di_api_err_t *err)
{
    ngx_uint_t  i;

    static struct {
        ngx_uint_t   status;
        const char  *type;
        const char  *code;
        const char  *message;
    } errors[] = {
        { 400, "invalid_request_error", "",
          "The request is malformed." },
        { 401, "invalid_request_error", "invalid_api_key",
          "Valid credentials are needed." },
        { 403, "invalid_request_error", "forbidden",
          "This is not allowed." },
        { 404, "invalid_request_error", "not_found",
          "There is nothing at this address." },
        { 405, "invalid_request_error", "method_not_allowed",
          "The method is not allowed here." },
        { 408, "invalid_request_error", "request_timeout",
          "The request did not arrive in time." },
        { 413, "invalid_request_error", "request_too_large",
          "The request body is larger than this server allows." },
        { 414, "invalid_request_error", "uri_too_long",
          "The address is longer than this server allows." },
        { 429, "rate_limit_error", "rate_limit_exceeded",
          "Too many requests, try again later." },
        { 502, "server_error", "bad_gateway",
          "The server behind this one gave no valid answer." },
        { 503, "server_error", "unavailable",
          "The service is not available now, try again later." },
        { 504, "server_error", "gateway_timeout",
          "The server behind this one did not answer in time." },
    };

    for (i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
        if (errors[i].status == status) {
            di_api_err_set(err, (int) status, errors[i].type, errors[i].code,
                           "", "%s", errors[i].message);
            return;
        }
    }

    if (status < 500) {
        di_api_err_set(err, (int) status, "invalid_request_error", "", "",
                       "The request was refused with status %u.",
                       (unsigned) status);
        return;
    }

    di_api_err_set(err, (int) status, "server_error", "", "",
                   "The server failed on this request.");
}
