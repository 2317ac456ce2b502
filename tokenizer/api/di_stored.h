/*
 * di_stored.h - a response of the Responses API as it is kept, and what can be
 * made of it again.
 *
 * A record has three texts: the response object, the input items that it
 * answered (those of the responses it went on from included), and its output
 * items.  Items are kept as they were sent, but each is made complete: it has
 * a type, an id and a status, and a message's content is a list of parts.  The
 * conversation so far is input and output, one after the other: the history of
 * a request that goes on from the record.  No I/O.
 */

#ifndef DI_STORED_H
#define DI_STORED_H

#include "di_api.h"

/* Slices of a record; items are the inside of a JSON array. */
typedef struct {
    di_str_t response;
    di_str_t input;
    di_str_t output;
} di_stored_t;

/* Make a record of a response object and its input items.  DI_OK, DI_EFORMAT:
 * the object is none, or has no output; DI_ENOMEM. */
int di_stored_write(di_sbuf_t *record, di_str_t response, di_str_t input);

/* Borrows record.  DI_OK or DI_EFORMAT. */
int di_stored_read(const char *record, size_t len, di_stored_t *s);

/* Append the input items of a request's body, after those of `earlier` (may
 * be NULL).  Items without an id get one made of `id`.  body must be one that
 * di_req_parse() takes.  DI_OK, DI_EFORMAT or DI_ENOMEM. */
int di_stored_input(const char *body, size_t len, const di_stored_t *earlier,
                    const char *id, di_sbuf_t *items);

/* The conversation so far, a JSON array of items.  DI_OK or DI_ENOMEM. */
int di_stored_history(const di_stored_t *s, di_sbuf_t *b);

/* One page of items, {"object":"list","data":[..],"first_id":..,
 * "last_id":..,"has_more":..}: at most `limit`, those after the one called
 * `after` (data NULL: from the beginning), the newest first unless asc.
 * DI_OK, DI_EINVAL: no item is called so, DI_EFORMAT or DI_ENOMEM. */
int di_stored_list(di_str_t items, size_t limit, di_str_t after, bool asc,
                   di_sbuf_t *b);

/* {"id":ID,"object":"response","deleted":true} */
void di_stored_deleted(di_sbuf_t *b, const char *id, size_t len);

#endif
