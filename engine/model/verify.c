/*
 * verify.c - is every value in a model's files a finite number?
 *
 * Opening checks vectors alone, since reading the matrices of a large model
 * takes as long as the disk does.  Here they are read once, in the order in
 * which they lie in the files, by all of the device's threads.
 *
 * A float is infinite or not a number where its exponent is all ones (E4M3:
 * exponent and fraction; UE8M0, which has no sign: all of it), so that one
 * more carries into the bit above: eight bytes are looked at at a time.
 * Blocks of GGUF's quantised formats are dequantised.  E2M1 and integers have
 * nothing but numbers.
 */

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "di_family.h"

#define PART_VALUES (2u << 20)   /* of a part: a multiple of 256            */
#define NOTHING     SIZE_MAX

/* A format whose values are floats. */
typedef struct {
    const char *type;
    size_t      bytes;           /* of a value                              */
    uint64_t    ones;            /* what is all ones in a bad value, in each
                                  * of eight bytes' values                  */
    uint64_t    one;             /* its lowest bit                          */
    bool        no_sign;         /* the bit above it must be one, too       */
} format_t;

#define EACH(v, bits) ((uint64_t) (v) * (UINT64_MAX / ((1ull << (bits)) - 1)))

static const format_t formats[] = {
    { "F8_E4M3", 1, EACH(0x7f, 8), EACH(1, 8), false },
    { "F8_E5M2", 1, EACH(0x7c, 8), EACH(4, 8), false },
    { "F8_E8M0", 1, EACH(0x7f, 8), EACH(1, 8), true },
    { "BF16", 2, EACH(0x7f80, 16), EACH(0x80, 16), false },
    { "F16", 2, EACH(0x7c00, 16), EACH(0x400, 16), false },
    { "F32", 4, EACH(0x7f800000, 32), EACH(0x800000, 32), false },
};

typedef struct {
    const format_t *format;      /* NULL: blocks of `block`                 */
    di_wtype_t      block;
    const uint8_t  *data;
    size_t          n;           /* values                                  */
    _Atomic size_t  bad;         /* the first such value so far             */
} scan_t;

/* ----------------------------------------------------------------- parts -- */

/* The first bad value of eight bytes, NOTHING: none. */
static size_t
bad_in_word(const format_t *f, uint64_t x)
{
    const uint64_t tops = EACH(1, 8 * f->bytes) << (8 * f->bytes - 1);
    uint64_t       bad = ((x & f->ones) + f->one) & tops;

    if (f->no_sign)
        bad &= x;
    return bad == 0 ? NOTHING
                    : (size_t) __builtin_ctzll(bad) / (8 * f->bytes);
}

static size_t
bad_float(const format_t *f, const uint8_t *p, size_t n)
{
    const size_t bytes = n * f->bytes, per = 8 / f->bytes;
    uint64_t     x;
    size_t       bad, i = 0;

    for (; i + 8 <= bytes; i += 8) {
        memcpy(&x, p + i, 8);
        bad = bad_in_word(f, x);
        if (bad != NOTHING)
            return i / 8 * per + bad;
    }
    x = 0;
    memcpy(&x, p + i, bytes - i);
    bad = bad_in_word(f, x);
    return bad == NOTHING ? bad : i / 8 * per + bad;
}

static size_t
bad_block(di_wtype_t type, const uint8_t *p, size_t n)
{
    float value[256];

    for (size_t i = 0; i < n; i += 256) {
        size_t some = n - i < 256 ? n - i : 256;

        di_dequantise(type, p + di_wtype_bytes(type, i), some, value);
        for (size_t k = 0; k < some; k++) {
            if (!isfinite(value[k]))
                return i + k;
        }
    }
    return NOTHING;
}

/* What is read next comes in one piece. */
static void
want(const uint8_t *p, size_t bytes)
{
    const uintptr_t page = (uintptr_t) sysconf(_SC_PAGESIZE);
    const uintptr_t at = (uintptr_t) p & ~(page - 1);

    (void) madvise((void *) at, (uintptr_t) p + bytes - at, MADV_WILLNEED);
}

static void
scan_part(void *arg, size_t part)
{
    scan_t        *s = arg;
    const size_t   first = part * PART_VALUES;
    const size_t   n = s->n - first < PART_VALUES ? s->n - first
                                                  : PART_VALUES;
    const uint8_t *p = s->data + (s->format != NULL
                                  ? first * s->format->bytes
                                  : di_wtype_bytes(s->block, first));
    size_t         bad, least;

    want(p, s->format != NULL ? n * s->format->bytes
                              : di_wtype_bytes(s->block, n));
    bad = s->format != NULL ? bad_float(s->format, p, n)
                            : bad_block(s->block, p, n);
    if (bad == NOTHING)
        return;
    bad += first;
    least = atomic_load(&s->bad);
    while (bad < least && !atomic_compare_exchange_weak(&s->bad, &least, bad))
        ;
}

/* --------------------------------------------------------------- tensors -- */

static const format_t *
format_of(const char *type)
{
    for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++) {
        if (strcmp(formats[i].type, type) == 0)
            return &formats[i];
    }
    return NULL;
}

static int
verify_tensor(di_model_t *m, size_t i, di_err_t *err)
{
    di_model_tensor_t t;
    scan_t            s;

    di_model_tensor(m, i, &t);
    s = (scan_t) { .format = format_of(t.type), .data = t.data, .n = 1,
                   .bad = NOTHING };
    if (s.format == NULL && m->gguf == NULL)
        return DI_OK;            /* integers, E2M1                          */
    for (uint32_t d = 0; d < t.n_dims; d++)
        s.n *= t.dims[d];
    if (s.format == NULL)
        s.block = (di_wtype_t) di_gguf_tensor(m->gguf, i)->type;
    m->ops->host_call(m->stream, scan_part, &s,
                      (s.n + PART_VALUES - 1) / PART_VALUES);
    (void) m->ops->stream_sync(m->stream);
    if (s.bad == NOTHING)
        return DI_OK;
    return di_err_set(err, DI_EFORMAT, t.offset,
                      "%s%stensor %.*s (%s) at byte %zu: value %zu is no "
                      "finite number", t.file != NULL ? t.file : "",
                      t.file != NULL ? ": " : "", (int) t.name_len, t.name,
                      t.type, t.offset, s.bad);
}

typedef struct {
    const uint8_t *data;
    size_t         i;
    size_t         bytes;
} place_t;

static int
compare_places(const void *a, const void *b)
{
    const place_t *x = a, *y = b;

    return (x->data > y->data) - (x->data < y->data);
}

int
di_model_verify(di_model_t *m, di_err_t *err)
{
    const size_t      n = di_model_n_tensors(m);
    place_t          *places = calloc(n + 1, sizeof(*places));
    di_model_tensor_t t;
    double            all = 1, done = 0;
    int               rc = DI_OK;

    if (places == NULL)
        return di_err_set(err, DI_ENOMEM, 0, "out of memory");
    for (size_t i = 0; i < n; i++) {
        di_model_tensor(m, i, &t);
        places[i] = (place_t) { t.data, i, t.bytes };
        all += (double) t.bytes;
    }
    qsort(places, n, sizeof(*places), compare_places);
    for (size_t i = 0; i < n && rc == DI_OK; i++) {
        rc = verify_tensor(m, places[i].i, err);
        done += (double) places[i].bytes;
        if (m->conf.progress != NULL)
            m->conf.progress(m->conf.progress_arg, "verifying", done / all);
    }
    free(places);
    return rc;
}
