
/*
 * ngx_http_deepinfer_header.c - headers, request ids, random bytes, time.
 */


#include "ngx_http_deepinfer.h"

#include <sys/random.h>


#define NGX_HTTP_DEEPINFER_REQUEST_ID  "x-request-id"


static ngx_uint_t ngx_http_deepinfer_sane_id(ngx_str_t *id);


ngx_table_elt_t *
ngx_http_deepinfer_find_header(ngx_list_t *headers, const char *name)
{
    size_t            len;
    ngx_uint_t        i;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *h;

    len = ngx_strlen(name);

    for (part = &headers->part; part; part = part->next) {
        h = part->elts;

        for (i = 0; i < part->nelts; i++) {

            if (h[i].hash != 0
                && h[i].key.len == len
                && ngx_strncasecmp(h[i].key.data, (u_char *) name, len) == 0)
            {
                return &h[i];
            }
        }
    }

    return NULL;
}


/* The name and the value must outlive the request. */

ngx_int_t
ngx_http_deepinfer_add_header(ngx_http_request_t *r, const char *name,
    u_char *value, size_t len)
{
    ngx_table_elt_t  *h;

    h = ngx_list_push(&r->headers_out.headers);
    if (h == NULL) {
        return NGX_ERROR;
    }

    ngx_memzero(h, sizeof(ngx_table_elt_t));

    h->hash = 1;
    h->key.data = (u_char *) name;
    h->key.len = ngx_strlen(name);
    h->value.data = value;
    h->value.len = len;

    return NGX_OK;
}


/*
 * The client's own id if it is fit to be logged and sent back, else a new
 * one.  It goes to the headers of the answer, whatever the answer will be.
 */

ngx_int_t
ngx_http_deepinfer_request_id(ngx_http_request_t *r, ngx_str_t *id)
{
    u_char            random[16];
    ngx_table_elt_t  *h;

    h = ngx_http_deepinfer_find_header(&r->headers_in.headers,
                                       NGX_HTTP_DEEPINFER_REQUEST_ID);

    if (h && ngx_http_deepinfer_sane_id(&h->value)) {
        *id = h->value;

    } else {

        id->len = sizeof(random) * 2;
        id->data = ngx_pnalloc(r->pool, id->len);
        if (id->data == NULL) {
            return NGX_ERROR;
        }

        if (ngx_http_deepinfer_random(random, sizeof(random)) != NGX_OK) {
            return NGX_ERROR;
        }

        (void) ngx_hex_dump(id->data, random, sizeof(random));
    }

    /* Anthropic's clients look for another header */

    if (ngx_http_deepinfer_shape(r) == DI_API_MESSAGES
        && ngx_http_deepinfer_add_header(r, "request-id", id->data, id->len)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_deepinfer_add_header(r, NGX_HTTP_DEEPINFER_REQUEST_ID,
                                         id->data, id->len);
}


static ngx_uint_t
ngx_http_deepinfer_sane_id(ngx_str_t *id)
{
    u_char  c;
    size_t  i;

    if (id->len == 0 || id->len > NGX_HTTP_DEEPINFER_ID_MAX) {
        return 0;
    }

    for (i = 0; i < id->len; i++) {
        c = id->data[i];

        if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')
            || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.'
            || c == ':' || c == '/' || c == '+' || c == '=')
        {
            continue;
        }

        return 0;
    }

    return 1;
}


/* One system call serves many requests.  A worker never forks. */

ngx_int_t
ngx_http_deepinfer_random(void *buf, size_t len)
{
    ssize_t  n;

    static u_char  bytes[256];
    static size_t  left;

    if (left < len) {
        n = getrandom(bytes, sizeof(bytes), 0);

        if (n != (ssize_t) sizeof(bytes)) {
            return NGX_ERROR;
        }

        left = sizeof(bytes);
    }

    left -= len;
    ngx_memcpy(buf, &bytes[left], len);
    ngx_memzero(&bytes[left], len);

    return NGX_OK;
}


/* Microseconds; ngx_current_msec stands still within a turn of the loop. */

uint64_t
ngx_http_deepinfer_now(void)
{
    struct timespec  ts;

    (void) clock_gettime(CLOCK_MONOTONIC, &ts);

    return (uint64_t) ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}
