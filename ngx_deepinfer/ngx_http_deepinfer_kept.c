
/*
 * ngx_http_deepinfer_kept.c - records by id in the shared zone, of a bounded
 * size in all.
 *
 * The record that was not used for the longest time goes first, one that is
 * too old is none.  A record is copied in and out under the zone's lock: its
 * size is bounded so that this takes a fraction of a millisecond, and as
 * nobody holds on to a record, a worker that dies leaves nothing behind but
 * the lock, which nginx's master then opens.
 */


#include "ngx_http_deepinfer.h"


/* a record may take that part of the whole */

#define NGX_HTTP_DEEPINFER_KEPT_SHARE  4


typedef struct {
    ngx_str_node_t                 node;        /* node.str is the id */
    ngx_queue_t                    queue;       /* by last use */
    time_t                         expires;     /* 0: never */
    size_t                         len;         /* of the record */
    u_char                         data[];      /* id, record */
} ngx_http_deepinfer_record_t;


static ngx_http_deepinfer_record_t *ngx_http_deepinfer_kept_alloc(
    ngx_http_deepinfer_keep_t *keep, size_t size);
static ngx_http_deepinfer_record_t *ngx_http_deepinfer_kept_find(
    ngx_http_deepinfer_keep_t *keep, ngx_str_t *id);
static void ngx_http_deepinfer_kept_remove(ngx_http_deepinfer_keep_t *keep,
    ngx_http_deepinfer_record_t *record);


void
ngx_http_deepinfer_kept_init(ngx_http_deepinfer_kept_t *kept)
{
    ngx_rbtree_init(&kept->rbtree, &kept->sentinel,
                    ngx_str_rbtree_insert_value);
    ngx_queue_init(&kept->queue);

    kept->size = 0;
    kept->records = 0;
    kept->found = 0;
    kept->missed = 0;
    kept->evicted = 0;
}


/*
 * Keep a record, in place of one with the same id.  NGX_DECLINED: it is too
 * large, or there is no room.
 */

ngx_int_t
ngx_http_deepinfer_kept_put(ngx_http_deepinfer_keep_t *keep, ngx_str_t *id,
    const void *data, size_t len)
{
    size_t                        size;
    ngx_http_deepinfer_record_t  *record;

    size = offsetof(ngx_http_deepinfer_record_t, data) + id->len + len;

    if (size > keep->size / NGX_HTTP_DEEPINFER_KEPT_SHARE) {
        return NGX_DECLINED;
    }

    ngx_shmtx_lock(&keep->shpool->mutex);

    record = ngx_http_deepinfer_kept_find(keep, id);

    if (record) {
        ngx_http_deepinfer_kept_remove(keep, record);
    }

    record = ngx_http_deepinfer_kept_alloc(keep, size);

    if (record) {
        record->expires = keep->ttl ? ngx_time() + keep->ttl : 0;
        record->len = len;
        record->node.node.key = ngx_crc32_short(id->data, id->len);
        record->node.str.data = record->data;
        record->node.str.len = id->len;

        ngx_memcpy(record->data, id->data, id->len);
        ngx_memcpy(record->data + id->len, data, len);

        ngx_rbtree_insert(&keep->kept->rbtree, &record->node.node);
        ngx_queue_insert_head(&keep->kept->queue, &record->queue);
        keep->kept->size += size;
        keep->kept->records++;
    }

    ngx_shmtx_unlock(&keep->shpool->mutex);

    return record ? NGX_OK : NGX_DECLINED;
}


/* Memory for a record, made free by the oldest ones; NULL: there is none. */

static ngx_http_deepinfer_record_t *
ngx_http_deepinfer_kept_alloc(ngx_http_deepinfer_keep_t *keep, size_t size)
{
    ngx_queue_t                  *q;
    ngx_http_deepinfer_kept_t    *kept;
    ngx_http_deepinfer_record_t  *record;

    kept = keep->kept;

    for ( ;; ) {

        if (kept->size + size <= keep->size) {
            record = ngx_slab_alloc_locked(keep->shpool, size);
            if (record) {
                return record;
            }
        }

        if (ngx_queue_empty(&kept->queue)) {
            return NULL;
        }

        q = ngx_queue_last(&kept->queue);

        ngx_http_deepinfer_kept_remove(keep,
                     ngx_queue_data(q, ngx_http_deepinfer_record_t, queue));
        kept->evicted++;
    }
}


/* Append a record to data.  NGX_DECLINED: there is none. */

ngx_int_t
ngx_http_deepinfer_kept_get(ngx_http_deepinfer_keep_t *keep, ngx_str_t *id,
    di_sbuf_t *data)
{
    ngx_http_deepinfer_record_t  *record;

    ngx_shmtx_lock(&keep->shpool->mutex);

    record = ngx_http_deepinfer_kept_find(keep, id);

    if (record) {
        di_sbuf_add(data, (char *) record->data + id->len, record->len);

        ngx_queue_remove(&record->queue);
        ngx_queue_insert_head(&keep->kept->queue, &record->queue);
        keep->kept->found++;

    } else {
        keep->kept->missed++;
    }

    ngx_shmtx_unlock(&keep->shpool->mutex);

    if (data->failed) {
        return NGX_ERROR;
    }

    return record ? NGX_OK : NGX_DECLINED;
}


/* NGX_OK: there was one. */

ngx_int_t
ngx_http_deepinfer_kept_delete(ngx_http_deepinfer_keep_t *keep, ngx_str_t *id)
{
    ngx_http_deepinfer_record_t  *record;

    ngx_shmtx_lock(&keep->shpool->mutex);

    record = ngx_http_deepinfer_kept_find(keep, id);

    if (record) {
        ngx_http_deepinfer_kept_remove(keep, record);
    }

    ngx_shmtx_unlock(&keep->shpool->mutex);

    return record ? NGX_OK : NGX_DECLINED;
}


/* One that has expired is removed, and not found. */

static ngx_http_deepinfer_record_t *
ngx_http_deepinfer_kept_find(ngx_http_deepinfer_keep_t *keep, ngx_str_t *id)
{
    ngx_http_deepinfer_record_t  *record;

    record = (ngx_http_deepinfer_record_t *)
             ngx_str_rbtree_lookup(&keep->kept->rbtree, id,
                                   ngx_crc32_short(id->data, id->len));

    if (record && record->expires && record->expires < ngx_time()) {
        ngx_http_deepinfer_kept_remove(keep, record);
        return NULL;
    }

    return record;
}


static void
ngx_http_deepinfer_kept_remove(ngx_http_deepinfer_keep_t *keep,
    ngx_http_deepinfer_record_t *record)
{
    keep->kept->size -= offsetof(ngx_http_deepinfer_record_t, data)
                        + record->node.str.len + record->len;
    keep->kept->records--;

    ngx_queue_remove(&record->queue);
    ngx_rbtree_delete(&keep->kept->rbtree, &record->node.node);
    ngx_slab_free_locked(keep->shpool, record);
}
