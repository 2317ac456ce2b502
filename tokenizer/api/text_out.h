/*
 * text_out.h - from tokens' bytes to text that may be shown.
 *
 * A di_text_t takes the bytes of one choice in any chunking and says how many
 * of them are decided: neither the beginning of a stop string nor an
 * unfinished character.  Nothing here depends on where tokens or calls end,
 * so the same bytes always give the same text.
 *
 * Which stop string wins: the one that is complete first; of those complete
 * at the same byte the longest, that is, the one that begins first.
 */

#ifndef DI_TEXT_OUT_H
#define DI_TEXT_OUT_H

#include "json.h"

/* The stop strings of one request, shared by its choices. */
typedef struct {
    const di_str_t *strings;     /* [n], the request's                      */
    size_t          n;
    uint32_t      **borders;     /* [n] KMP table of each: border of its
                                  * first i + 1 bytes; one allocation       */
    bool            first[256];  /* some string begins with this byte       */
} di_stops_t;

/* Keeps the strings, each non-empty.  DI_OK or DI_ENOMEM. */
int di_stops_init(di_stops_t *s, const di_str_t *strings, size_t n);
void di_stops_deinit(di_stops_t *s);

typedef struct {
    di_sbuf_t pending;           /* bytes not shown yet                     */
    uint32_t *matched;           /* [n] bytes of each stop string that the
                                  * text so far ends with                   */
    size_t    held;              /* the largest of them                     */
} di_text_t;

/* DI_OK or DI_ENOMEM. */
int di_text_init(di_text_t *t, const di_stops_t *s);
void di_text_deinit(di_text_t *t);

/* Add bytes; with `match` look for stop strings.  *stopped: one was met;
 * the text is cut before it and final.  DI_OK or DI_ENOMEM. */
int di_text_feed(di_text_t *t, const di_stops_t *s, const char *bytes,
                 size_t n, bool match, bool *stopped);

/* How many pending bytes may be shown now; all of them when no more come
 * (`final`): an unfinished character is then ill-formed. */
size_t di_text_ready(const di_text_t *t, bool final);

/* The first n pending bytes were shown. */
void di_text_drop(di_text_t *t, size_t n);

#endif
