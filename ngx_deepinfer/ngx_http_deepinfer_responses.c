
/*
 * ngx_http_deepinfer_responses.c - stored responses by their id: GET, DELETE,
 * and the list of their input items.
 *
 * The same location takes new requests; the address behind "/responses" tells
 * which it is.  A look-up that has to wait for Redis holds the request by one
 * count; it ends when Redis answers or its time is over.
 */


#include "ngx_http_deepinfer.h"

#include "tokenizer/api/di_stored.h"


#define NGX_HTTP_DEEPINFER_ITEMS_MAX  100


typedef struct {
    ngx_http_request_t            *request;
    ngx_http_deepinfer_fetch_t     fetch;
    ngx_str_t                      id;          /* of the response */
    ngx_str_t                      after;       /* an item's id; NULL: none */
    size_t                         limit;       /* items of a page */
    unsigned                       below:1;     /* the path goes on behind id */
    unsigned                       items:1;     /* the list of input items */
    unsigned                       asc:1;       /* the oldest first */
} ngx_http_deepinfer_lookup_t;


static ngx_int_t ngx_http_deepinfer_stored_handler(ngx_http_request_t *r,
    ngx_str_t *path);
static ngx_http_deepinfer_lookup_t *ngx_http_deepinfer_lookup_create(
    ngx_http_request_t *r, ngx_str_t *path);
static ngx_int_t ngx_http_deepinfer_lookup_args(
    ngx_http_deepinfer_lookup_t *lookup, di_api_err_t *err);
static ngx_int_t ngx_http_deepinfer_lookup_start(
    ngx_http_deepinfer_lookup_t *lookup);
static void ngx_http_deepinfer_lookup_done(ngx_http_deepinfer_fetch_t *fetch);
static ngx_int_t ngx_http_deepinfer_lookup_answer(
    ngx_http_deepinfer_lookup_t *lookup, ngx_int_t rc);
static void ngx_http_deepinfer_lookup_found(
    ngx_http_deepinfer_lookup_t *lookup, di_sbuf_t *body, di_api_err_t *err);
static void ngx_http_deepinfer_lookup_items(
    ngx_http_deepinfer_lookup_t *lookup, di_stored_t *stored,
    di_sbuf_t *body, di_api_err_t *err);
static void ngx_http_deepinfer_lookup_cleanup(void *data);


ngx_int_t
ngx_http_deepinfer_responses_handler(ngx_http_request_t *r)
{
    ngx_str_t  path;

    if (ngx_http_deepinfer_path_after(r, "/responses", &path)) {
        return ngx_http_deepinfer_stored_handler(r, &path);
    }

    return ngx_http_deepinfer_gen_handler(r);
}


/* path is ID or ID/input_items. */

static ngx_int_t
ngx_http_deepinfer_stored_handler(ngx_http_request_t *r, ngx_str_t *path)
{
    ngx_int_t                     rc;
    ngx_str_t                     id;
    di_api_err_t                  err;
    ngx_http_deepinfer_lookup_t  *lookup;

    if (ngx_http_deepinfer_request_id(r, &id) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    lookup = ngx_http_deepinfer_lookup_create(r, path);
    if (lookup == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (!(r->method & (NGX_HTTP_GET|NGX_HTTP_HEAD))
        && (lookup->below || r->method != NGX_HTTP_DELETE))
    {
        return ngx_http_deepinfer_send_not_allowed(r,
                                        lookup->below ? "GET, HEAD"
                                                      : "GET, HEAD, DELETE");
    }

    rc = ngx_http_discard_request_body(r);
    if (rc != NGX_OK) {
        return rc;
    }

    ngx_memzero(&err, sizeof(di_api_err_t));

    if (lookup->below && !lookup->items) {
        di_api_err_set(&err, NGX_HTTP_NOT_FOUND, "invalid_request_error",
                       "not_found", "", "There is nothing at this address.");
        return ngx_http_deepinfer_send_error(r, &err, 0);
    }

    if (ngx_http_deepinfer_lookup_args(lookup, &err) != NGX_OK) {
        return ngx_http_deepinfer_send_error(r, &err, 0);
    }

    return ngx_http_deepinfer_lookup_start(lookup);
}


static ngx_http_deepinfer_lookup_t *
ngx_http_deepinfer_lookup_create(ngx_http_request_t *r, ngx_str_t *path)
{
    u_char                       *slash;
    ngx_http_cleanup_t           *cln;
    ngx_http_deepinfer_lookup_t  *lookup;

    lookup = ngx_pcalloc(r->pool, sizeof(ngx_http_deepinfer_lookup_t));
    cln = ngx_http_cleanup_add(r, 0);

    if (lookup == NULL || cln == NULL) {
        return NULL;
    }

    cln->handler = ngx_http_deepinfer_lookup_cleanup;
    cln->data = lookup;

    lookup->request = r;
    lookup->fetch.handler = ngx_http_deepinfer_lookup_done;
    lookup->fetch.data = lookup;
    lookup->id = *path;

    slash = ngx_strlchr(path->data, path->data + path->len, '/');

    if (slash) {
        lookup->id.len = slash - path->data;
        lookup->below = 1;
        lookup->items = (path->data + path->len - slash
                         == sizeof("/input_items") - 1
                         && ngx_strncmp(slash, "/input_items",
                                        sizeof("/input_items") - 1) == 0);
    }

    return lookup;
}


static ngx_int_t
ngx_http_deepinfer_lookup_args(ngx_http_deepinfer_lookup_t *lookup,
    di_api_err_t *err)
{
    ngx_int_t            n;
    ngx_str_t            value;
    ngx_http_request_t  *r;

    r = lookup->request;
    lookup->limit = 20;

    if (ngx_http_arg(r, (u_char *) "stream", 6, &value) == NGX_OK
        && !(value.len == 5 && ngx_strncmp(value.data, "false", 5) == 0))
    {
        di_api_err_set(err, NGX_HTTP_BAD_REQUEST, "invalid_request_error",
                       "unsupported_value", "stream",
                       "A stored response cannot be streamed.");
        return NGX_ERROR;
    }

    if (!lookup->items) {
        return NGX_OK;
    }

    (void) ngx_http_arg(r, (u_char *) "after", 5, &lookup->after);

    if (ngx_http_arg(r, (u_char *) "limit", 5, &value) == NGX_OK) {
        n = ngx_atoi(value.data, value.len);

        if (n < 1 || n > NGX_HTTP_DEEPINFER_ITEMS_MAX) {
            di_api_err_set(err, NGX_HTTP_BAD_REQUEST, "invalid_request_error",
                           "invalid_value", "limit",
                           "Invalid 'limit': expected 1 to %d.",
                           NGX_HTTP_DEEPINFER_ITEMS_MAX);
            return NGX_ERROR;
        }

        lookup->limit = n;
    }

    if (ngx_http_arg(r, (u_char *) "order", 5, &value) == NGX_OK) {
        lookup->asc = (value.len == 3
                       && ngx_strncmp(value.data, "asc", 3) == 0);

        if (!lookup->asc
            && !(value.len == 4 && ngx_strncmp(value.data, "desc", 4) == 0))
        {
            di_api_err_set(err, NGX_HTTP_BAD_REQUEST, "invalid_request_error",
                           "invalid_value", "order",
                           "Invalid 'order': expected \"asc\" or \"desc\".");
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_deepinfer_lookup_start(ngx_http_deepinfer_lookup_t *lookup)
{
    ngx_int_t                        rc;
    ngx_http_request_t              *r;
    ngx_http_deepinfer_main_conf_t  *mcf;

    r = lookup->request;
    mcf = ngx_http_get_module_main_conf(r, ngx_http_deepinfer_module);

    if (mcf->store.kept == NULL) {
        return ngx_http_deepinfer_lookup_answer(lookup, NGX_DECLINED);
    }

    rc = (r->method == NGX_HTTP_DELETE)
         ? ngx_http_deepinfer_store_delete(mcf, &lookup->id, &lookup->fetch)
         : ngx_http_deepinfer_store_get(mcf, &lookup->id, &lookup->fetch);

    if (rc == NGX_AGAIN) {
        r->main->count++;
        r->read_event_handler = ngx_http_test_reading;
        r->write_event_handler = ngx_http_request_empty_handler;
        return NGX_DONE;
    }

    return ngx_http_deepinfer_lookup_answer(lookup, rc);
}


static void
ngx_http_deepinfer_lookup_done(ngx_http_deepinfer_fetch_t *fetch)
{
    ngx_connection_t             *c;
    ngx_http_request_t           *r;
    ngx_http_deepinfer_lookup_t  *lookup;

    lookup = fetch->data;
    r = lookup->request;
    c = r->connection;

    ngx_http_set_log_request(c->log, r);

    ngx_http_finalize_request(r, ngx_http_deepinfer_lookup_answer(lookup,
                                                               fetch->rc));
    ngx_http_run_posted_requests(c);
}


static ngx_int_t
ngx_http_deepinfer_lookup_answer(ngx_http_deepinfer_lookup_t *lookup,
    ngx_int_t rc)
{
    di_sbuf_t            body;
    di_api_err_t         err;
    ngx_http_request_t  *r;

    r = lookup->request;

    ngx_memzero(&body, sizeof(di_sbuf_t));
    ngx_memzero(&err, sizeof(di_api_err_t));

    switch (rc) {

    case NGX_OK:
        ngx_http_deepinfer_lookup_found(lookup, &body, &err);
        break;

    case NGX_DECLINED:
        di_api_err_set(&err, NGX_HTTP_NOT_FOUND, "invalid_request_error", "",
                       "response_id", "Response with id '%.*s' not found.",
                       (int) ngx_min(lookup->id.len, 128),
                       (char *) lookup->id.data);
        break;

    default:
        di_api_err_set(&err, NGX_HTTP_SERVICE_UNAVAILABLE, "server_error",
                       "store_unavailable", "",
                       "The store of responses does not answer.");
        break;
    }

    rc = err.status
         ? ngx_http_deepinfer_send_error(r, &err, err.status == 503)
         : ngx_http_deepinfer_send_json(r, NGX_HTTP_OK, &body);

    di_sbuf_free(&body);

    return rc;
}


static void
ngx_http_deepinfer_lookup_found(ngx_http_deepinfer_lookup_t *lookup,
    di_sbuf_t *body, di_api_err_t *err)
{
    di_stored_t   stored;

    if (lookup->request->method == NGX_HTTP_DELETE) {
        di_stored_deleted(body, (char *) lookup->id.data, lookup->id.len);
        return;
    }

    if (di_stored_read(lookup->fetch.record.data, lookup->fetch.record.len,
                       &stored)
        != DI_OK)
    {
        di_api_err_set(err, 500, "server_error", "", "",
                       "The stored response is damaged.");

    } else if (lookup->items) {
        ngx_http_deepinfer_lookup_items(lookup, &stored, body, err);

    } else {
        di_sbuf_add(body, stored.response.data, stored.response.len);
    }
}


static void
ngx_http_deepinfer_lookup_items(ngx_http_deepinfer_lookup_t *lookup,
    di_stored_t *stored, di_sbuf_t *body, di_api_err_t *err)
{
    int       rc;
    di_str_t  after;

    after.data = (char *) lookup->after.data;
    after.len = lookup->after.len;

    rc = di_stored_list(stored->input, lookup->limit, after, lookup->asc,
                        body);

    switch (rc) {

    case DI_OK:
        break;

    case DI_EINVAL:
        di_api_err_set(err, 400, "invalid_request_error", "invalid_value",
                       "after", "There is no item '%.*s'.",
                       (int) ngx_min(after.len, 128), after.data);
        break;

    default:
        di_api_err_set(err, 500, "server_error", "", "",
                       "The items could not be listed.");
        break;
    }
}


static void
ngx_http_deepinfer_lookup_cleanup(void *data)
{
    ngx_http_deepinfer_lookup_t  *lookup = data;

    ngx_http_deepinfer_store_forget(&lookup->fetch);
}
