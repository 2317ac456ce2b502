/*
 * work.c - encode one prompt on several threads.
 *
 * The pieces of a prompt are cut to at most about part_bytes each, at places
 * where the ids of both sides don't depend on each other, and put together to
 * parts of that size.  Each part has its own room for ids, as large as its
 * text has bytes, so parts need nothing of each other.  Who has encoded a part
 * moves its ids, and those of parts behind it that are there already, to where
 * they belong, if all before them are there: mostly they are still in the
 * core's own cache then.  Moving all at the end was a twelfth of the time of
 * two threads.  The ids are those of di_dialect_encode().
 */

#include "dialect.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    size_t first;                /* of its slices                           */
    size_t n;                    /* slices                                  */
    size_t ids_at;               /* its room in di_work_t.ids               */
    size_t room;                 /* ids that it has at most                 */
    size_t n_ids;                /* out                                     */
    int    rc;                   /* out                                     */
    _Atomic bool done;           /* n_ids ids are there                     */
} part_t;

struct di_work_s {
    di_pieces_t pieces;
    di_piece_t *slices;          /* pieces, long ones cut                   */
    size_t      n_slices;
    size_t      slices_cap;
    part_t     *parts;           /* [n_parts]                               */
    size_t      n_parts;
    int32_t    *ids;             /* [room of all parts]                     */
    _Atomic bool placing;        /* a thread has these two                  */
    size_t      n_placed;        /* parts whose ids are at their place      */
    size_t      n_ids;           /* of them                                 */
};

static bool
add_slice(di_work_t *w, di_piece_t slice)
{
    di_piece_t *slices;
    size_t      cap = w->slices_cap == 0 ? 16 : w->slices_cap * 2;

    if (w->n_slices == w->slices_cap) {
        slices = realloc(w->slices, cap * sizeof(*slices));
        if (slices == NULL)
            return false;
        w->slices = slices;
        w->slices_cap = cap;
    }

    w->slices[w->n_slices++] = slice;
    return true;
}

static bool
cut_piece(di_work_t *w, const di_vocab_t *vocab, di_piece_t piece,
          size_t part_bytes)
{
    di_piece_t slice = piece;
    size_t     len;

    while (!piece.special && piece.len > part_bytes) {
        len = di_vocab_split(vocab, w->pieces.text + piece.at, piece.len,
                             part_bytes);
        slice.at = piece.at;
        slice.len = len;
        if (!add_slice(w, slice))
            return false;
        piece.at += len;
        piece.len -= len;
    }

    return (piece.len == 0 && !piece.special) || add_slice(w, piece);
}

static size_t
room_of(const di_piece_t *slice)
{
    return slice->special ? 1 : slice->len;
}

/* Put slices together to parts; the room of all. */
static size_t
make_parts(di_work_t *w, size_t part_bytes)
{
    size_t  i, room = 0;
    part_t *part = NULL;

    for (i = 0; i < w->n_slices; i++) {
        if (part == NULL || part->room >= part_bytes) {
            part = &w->parts[w->n_parts++];
            *part = (part_t) { .first = i, .ids_at = room };
        }

        part->n++;
        part->room += room_of(&w->slices[i]);
        room += room_of(&w->slices[i]);
    }

    return room;
}

int
di_work_open(const di_dialect_t *dialect, const di_vocab_t *vocab,
             const di_conv_t *conv, size_t part_bytes, di_work_t **work,
             di_err_t *err)
{
    di_work_t *w = calloc(1, sizeof(*w));
    size_t     i, room;
    int        rc = DI_ENOMEM;

    if (w == NULL)
        goto failed;

    rc = di_dialect_render(dialect, conv, &w->pieces, err);
    if (rc != DI_OK)
        goto failed;

    rc = DI_ENOMEM;
    for (i = 0; i < w->pieces.n; i++) {
        if (!cut_piece(w, vocab, w->pieces.pieces[i], part_bytes))
            goto failed;
    }

    w->parts = malloc((w->n_slices + 1) * sizeof(*w->parts));
    if (w->parts == NULL)
        goto failed;

    room = make_parts(w, part_bytes);
    if (room < SIZE_MAX / sizeof(*w->ids))
        w->ids = malloc((room + 1) * sizeof(*w->ids));
    if (w->ids == NULL)
        goto failed;

    *work = w;
    return DI_OK;

failed:
    di_work_close(w);
    return di_err_set(err, rc, 0, "out of memory");
}

size_t
di_work_parts(const di_work_t *work)
{
    return work->n_parts;
}

/* Move the ids of parts that are done to those before them, unless another
 * thread is at it; what it doesn't see any more waits for the next one. */
static void
place(di_work_t *w)
{
    part_t *p;

    if (atomic_exchange_explicit(&w->placing, true, memory_order_acquire))
        return;

    for ( ; w->n_placed < w->n_parts; w->n_placed++) {
        p = &w->parts[w->n_placed];
        /* pairs with the store of who encoded it */
        if (!atomic_load_explicit(&p->done, memory_order_acquire))
            break;
        memmove(w->ids + w->n_ids, w->ids + p->ids_at,
                p->n_ids * sizeof(*w->ids));
        w->n_ids += p->n_ids;
    }

    /* pairs with the exchange of the next one */
    atomic_store_explicit(&w->placing, false, memory_order_release);
}

void
di_work_encode(di_work_t *work, size_t part, di_tok_t *tok)
{
    part_t           *p = &work->parts[part];
    const di_piece_t *s = &work->slices[p->first], *end = s + p->n;
    int32_t          *ids = work->ids + p->ids_at;
    size_t            got;

    for ( ; s < end; s++) {
        if (s->special) {
            ids[p->n_ids++] = s->id;
            if (s->id < 0)
                p->rc = DI_EFORMAT;
            continue;
        }

        p->rc = di_tok_encode(tok, work->pieces.text + s->at, s->len,
                              ids + p->n_ids, p->room - p->n_ids, &got);
        if (p->rc != DI_OK)
            return;
        p->n_ids += got;
    }

    atomic_store_explicit(&p->done, true, memory_order_release);
    place(work);
}

int
di_work_finish(di_work_t *work, size_t limit, int32_t **ids, size_t *n,
               di_err_t *err)
{
    const part_t *p;

    for (p = work->parts; p < work->parts + work->n_parts; p++) {
        if (p->rc != DI_OK)
            return di_err_set(err, p->rc, 0, p->rc == DI_EFORMAT
                              ? "a special token is not in the vocabulary"
                              : "out of memory");
    }

    place(work);
    *n = work->n_ids;
    if (*n > limit)
        return di_err_set(err, DI_ELIMIT, 0, "the prompt is over the limit");

    *ids = work->ids;
    work->ids = NULL;
    return DI_OK;
}

void
di_work_close(di_work_t *work)
{
    if (work == NULL)
        return;

    di_pieces_free(&work->pieces);
    free(work->slices);
    free(work->parts);
    free(work->ids);
    free(work);
}
