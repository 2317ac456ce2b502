/*
 * gguf.c - reader of GGUF files.
 *
 * A file is a header, key-values, a tensor directory, and the tensors' data,
 * each tensor at a multiple of general.alignment.  Opening walks the first
 * three once, checks every length, count and offset against the file, and
 * keeps one small record per key and per tensor; values are read in place.
 * What was checked at open is trusted afterwards, so the accessors have no
 * error of their own but "no such key" and "another type".
 *
 * Keys and tensors are found by binary search in an array of indexes sorted
 * by name: as quick as a hash table for the some hundred names that a model
 * has, immune to chosen collisions, and duplicates lie side by side after
 * the sort.
 *
 * Counts in a damaged header can be anything, so none is believed before the
 * rest of the file is long enough to hold that many of the smallest entries:
 * memory taken is at most a small multiple of the file's size.
 *
 * Arrays of arrays, which the format allows and no known writer emits, are
 * refused as unsupported.
 */

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <openssl/evp.h>

#include "di_gguf.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "values are read in place, as the file has them");

#define GGUF_MAGIC          0x46554747u     /* "GGUF", little endian         */
#define GGUF_ALIGNMENT      32u             /* without general.alignment     */
#define GGUF_ALIGNMENT_MAX  (1u << 20)
#define GGUF_KEY_MAX        65535u          /* bytes; the format's limit     */
#define GGUF_NAME_MAX       64u             /* bytes of a tensor's name      */
#define GGUF_KV_BYTES_MIN   14u             /* 8 length, 1 key, 4 type, 1    */
#define GGUF_TENSOR_BYTES_MIN  33u          /* 8, 1 name, 4, 8, 4, 8         */
#define GGUF_SAMPLE         64u             /* bytes of a tensor in the print */

enum {
    GGUF_U8, GGUF_I8, GGUF_U16, GGUF_I16, GGUF_U32, GGUF_I32, GGUF_F32,
    GGUF_BOOL, GGUF_STR, GGUF_ARRAY, GGUF_U64, GGUF_I64, GGUF_F64,
    GGUF_TYPES
};

/* Bytes of a value; 0: not of a fixed size. */
static const uint8_t gguf_type_bytes[GGUF_TYPES] = {
    [GGUF_U8] = 1,  [GGUF_I8] = 1,  [GGUF_U16] = 2, [GGUF_I16] = 2,
    [GGUF_U32] = 4, [GGUF_I32] = 4, [GGUF_F32] = 4, [GGUF_BOOL] = 1,
    [GGUF_U64] = 8, [GGUF_I64] = 8, [GGUF_F64] = 8,
};

typedef struct {
    uint16_t elements;          /* per block; 0: no such type                */
    uint16_t bytes;             /* per block                                 */
} gguf_block_t;

/* By ggml_type; the gaps are types that ggml has dropped.  Source: the block
 * layouts of ggml's quantisation formats. */
static const gguf_block_t gguf_blocks[] = {
    [0]  = { 1, 4 },            /* F32     */
    [1]  = { 1, 2 },            /* F16     */
    [2]  = { 32, 18 },          /* Q4_0    */
    [3]  = { 32, 20 },          /* Q4_1    */
    [6]  = { 32, 22 },          /* Q5_0    */
    [7]  = { 32, 24 },          /* Q5_1    */
    [8]  = { 32, 34 },          /* Q8_0    */
    [9]  = { 32, 36 },          /* Q8_1    */
    [10] = { 256, 84 },         /* Q2_K    */
    [11] = { 256, 110 },        /* Q3_K    */
    [12] = { 256, 144 },        /* Q4_K    */
    [13] = { 256, 176 },        /* Q5_K    */
    [14] = { 256, 210 },        /* Q6_K    */
    [15] = { 256, 292 },        /* Q8_K    */
    [16] = { 256, 66 },         /* IQ2_XXS */
    [17] = { 256, 74 },         /* IQ2_XS  */
    [18] = { 256, 98 },         /* IQ3_XXS */
    [19] = { 256, 50 },         /* IQ1_S   */
    [20] = { 32, 18 },          /* IQ4_NL  */
    [21] = { 256, 110 },        /* IQ3_S   */
    [22] = { 256, 82 },         /* IQ2_S   */
    [23] = { 256, 136 },        /* IQ4_XS  */
    [24] = { 1, 1 },            /* I8      */
    [25] = { 1, 2 },            /* I16     */
    [26] = { 1, 4 },            /* I32     */
    [27] = { 1, 8 },            /* I64     */
    [28] = { 1, 8 },            /* F64     */
    [29] = { 256, 56 },         /* IQ1_M   */
    [30] = { 1, 2 },            /* BF16    */
    [34] = { 256, 54 },         /* TQ1_0   */
    [35] = { 256, 66 },         /* TQ2_0   */
    [39] = { 32, 17 },          /* MXFP4   */
};

#define GGUF_BLOCKS  (sizeof(gguf_blocks) / sizeof(gguf_blocks[0]))

typedef struct {
    di_str_t       key;
    uint32_t       type;        /* of the value, or of an array's elements   */
    bool           array;
    uint64_t       n;           /* elements; 1 if not an array               */
    const uint8_t *value;       /* first element; of a string, its length    */
    size_t         offset;      /* of the entry in the file                  */
} gguf_kv_t;

struct di_gguf_s {
    const uint8_t    *base;     /* the whole file                            */
    size_t            len;
    bool              mapped;   /* ours to unmap                             */
    size_t            meta_bytes;     /* all before the tensor data          */

    gguf_kv_t        *kv;
    uint64_t          n_kv;
    const gguf_kv_t **kv_sorted;      /* [n_kv] by key                       */

    di_gguf_tensor_t *tensors;  /* in the file's order                       */
    uint64_t         *tensor_offsets;  /* [n_tensors] of directory entries   */
    uint64_t          n_tensors;
    const di_gguf_tensor_t **tensors_sorted;    /* [n_tensors] by name       */
};

typedef struct {
    const uint8_t *base;
    size_t         len;
    size_t         pos;         /* next unread byte; <= len                  */
} gguf_cursor_t;

/* A name from the file, fit for an error text. */
typedef struct {
    char text[65];
} gguf_shown_t;

static gguf_shown_t
gguf_show(di_str_t name)
{
    gguf_shown_t s;
    size_t       n = name.len < 64 ? name.len : 64;

    for (size_t i = 0; i < n; i++) {
        char c = name.data[i];

        s.text[i] = (c >= 0x20 && c < 0x7f) ? c : '?';
    }
    s.text[n] = '\0';
    return s;
}

static bool
gguf_take(gguf_cursor_t *c, size_t n, void *out)
{
    if (c->len - c->pos < n)
        return false;
    memcpy(out, c->base + c->pos, n);
    c->pos += n;
    return true;
}

static bool
gguf_take_str(gguf_cursor_t *c, di_str_t *s)
{
    uint64_t n;

    if (!gguf_take(c, sizeof(n), &n) || c->len - c->pos < n)
        return false;
    s->data = (const char *) c->base + c->pos;
    s->len = n;
    c->pos += n;
    return true;
}

/* Read past n values of one type.  DI_OK, or DI_EFORMAT with the reason. */
static int
gguf_skip_values(gguf_cursor_t *c, const gguf_kv_t *kv, di_err_t *err)
{
    uint64_t width = gguf_type_bytes[kv->type];
    di_str_t s;

    if (kv->type == GGUF_STR) {
        for (uint64_t i = 0; i < kv->n; i++) {
            size_t at = c->pos;

            if (!gguf_take_str(c, &s))
                return di_err_set(err, DI_EFORMAT, at, "GGUF key \"%s\": "
                                  "string %llu at byte %zu passes the file's "
                                  "end", gguf_show(kv->key).text,
                                  (unsigned long long) i, at);
        }
        return DI_OK;
    }

    /* Dividing keeps n * width from overflowing. */
    if (kv->n > (c->len - c->pos) / width)
        return di_err_set(err, DI_EFORMAT, c->pos, "GGUF key \"%s\": value at "
                          "byte %zu passes the file's end",
                          gguf_show(kv->key).text, c->pos);

    if (kv->type == GGUF_BOOL) {
        for (uint64_t i = 0; i < kv->n; i++) {
            if (c->base[c->pos + i] > 1)
                return di_err_set(err, DI_EFORMAT, c->pos + i, "GGUF key "
                                  "\"%s\": byte %zu is no boolean",
                                  gguf_show(kv->key).text, c->pos + i);
        }
    }
    c->pos += kv->n * width;
    return DI_OK;
}

static int
gguf_read_kv(gguf_cursor_t *c, gguf_kv_t *kv, di_err_t *err)
{
    kv->offset = c->pos;
    kv->array = false;
    kv->n = 1;

    if (!gguf_take_str(c, &kv->key))
        return di_err_set(err, DI_EFORMAT, kv->offset, "GGUF: key at byte %zu "
                          "passes the file's end", kv->offset);
    if (kv->key.len == 0 || kv->key.len > GGUF_KEY_MAX)
        return di_err_set(err, DI_EFORMAT, kv->offset, "GGUF: key at byte %zu "
                          "has %zu bytes, allowed are 1 to %u", kv->offset,
                          kv->key.len, GGUF_KEY_MAX);

    if (!gguf_take(c, sizeof(kv->type), &kv->type))
        return di_err_set(err, DI_EFORMAT, c->pos, "GGUF key \"%s\": the file "
                          "ends at its type, byte %zu",
                          gguf_show(kv->key).text, c->pos);
    if (kv->type == GGUF_ARRAY) {
        kv->array = true;
        if (!gguf_take(c, sizeof(kv->type), &kv->type)
            || !gguf_take(c, sizeof(kv->n), &kv->n))
            return di_err_set(err, DI_EFORMAT, c->pos, "GGUF key \"%s\": the "
                              "file ends in the array's head, byte %zu",
                              gguf_show(kv->key).text, c->pos);
        if (kv->type == GGUF_ARRAY)
            return di_err_set(err, DI_EUNSUPPORTED, kv->offset, "GGUF key "
                              "\"%s\" at byte %zu: arrays of arrays are not "
                              "supported", gguf_show(kv->key).text,
                              kv->offset);
    }
    if (kv->type >= GGUF_TYPES)
        return di_err_set(err, DI_EFORMAT, kv->offset, "GGUF key \"%s\" at "
                          "byte %zu: unknown type %u",
                          gguf_show(kv->key).text, kv->offset, kv->type);

    kv->value = c->base + c->pos;
    return gguf_skip_values(c, kv, err);
}

/* Check a tensor's type and shape; set its size. */
static int
gguf_size_tensor(di_gguf_tensor_t *t, size_t at, di_err_t *err)
{
    gguf_block_t block;
    uint64_t     bytes;

    if (t->type >= GGUF_BLOCKS || gguf_blocks[t->type].elements == 0)
        return di_err_set(err, DI_EUNSUPPORTED, at, "GGUF tensor \"%s\" at "
                          "byte %zu: unknown type %u", gguf_show(t->name).text,
                          at, t->type);

    block = gguf_blocks[t->type];
    if (t->dims[0] % block.elements != 0)
        return di_err_set(err, DI_EFORMAT, at, "GGUF tensor \"%s\" at byte "
                          "%zu: %llu columns are no multiple of its type's "
                          "block of %u", gguf_show(t->name).text, at,
                          (unsigned long long) t->dims[0], block.elements);

    bytes = t->dims[0] / block.elements;
    if (__builtin_mul_overflow(bytes, block.bytes, &bytes))
        goto overflow;
    for (uint32_t i = 1; i < DI_GGUF_DIMS; i++) {
        if (__builtin_mul_overflow(bytes, t->dims[i], &bytes))
            goto overflow;
    }
    t->bytes = bytes;
    return DI_OK;

overflow:
    return di_err_set(err, DI_EFORMAT, at, "GGUF tensor \"%s\" at byte %zu: "
                      "its size overflows", gguf_show(t->name).text, at);
}

/* Read one directory entry; *offset is relative to the tensor data, whose
 * start isn't known yet. */
static int
gguf_read_tensor(gguf_cursor_t *c, di_gguf_tensor_t *t, uint64_t *offset,
                 di_err_t *err)
{
    size_t at = c->pos;

    if (!gguf_take_str(c, &t->name))
        return di_err_set(err, DI_EFORMAT, at, "GGUF: tensor name at byte %zu "
                          "passes the file's end", at);
    if (t->name.len == 0 || t->name.len > GGUF_NAME_MAX)
        return di_err_set(err, DI_EFORMAT, at, "GGUF: tensor name at byte %zu "
                          "has %zu bytes, allowed are 1 to %u", at,
                          t->name.len, GGUF_NAME_MAX);

    if (!gguf_take(c, sizeof(t->n_dims), &t->n_dims))
        goto ends;
    if (t->n_dims == 0 || t->n_dims > DI_GGUF_DIMS)
        return di_err_set(err, DI_EFORMAT, at, "GGUF tensor \"%s\" at byte "
                          "%zu: %u dimensions, allowed are 1 to %u",
                          gguf_show(t->name).text, at, t->n_dims,
                          DI_GGUF_DIMS);
    for (uint32_t i = 0; i < DI_GGUF_DIMS; i++) {
        t->dims[i] = 1;
        if (i < t->n_dims && !gguf_take(c, sizeof(t->dims[i]), &t->dims[i]))
            goto ends;
        if (t->dims[i] == 0)
            return di_err_set(err, DI_EFORMAT, at, "GGUF tensor \"%s\" at "
                              "byte %zu: dimension %u is 0",
                              gguf_show(t->name).text, at, i);
    }
    if (!gguf_take(c, sizeof(t->type), &t->type)
        || !gguf_take(c, sizeof(*offset), offset))
        goto ends;

    return gguf_size_tensor(t, at, err);

ends:
    return di_err_set(err, DI_EFORMAT, c->pos, "GGUF tensor \"%s\": the file "
                      "ends in its description, byte %zu",
                      gguf_show(t->name).text, c->pos);
}

static int
gguf_str_cmp(di_str_t a, di_str_t b)
{
    int c = memcmp(a.data, b.data, a.len < b.len ? a.len : b.len);

    return c != 0 ? c : (a.len > b.len) - (a.len < b.len);
}

static int
gguf_kv_cmp(const void *a, const void *b)
{
    return gguf_str_cmp((*(const gguf_kv_t *const *) a)->key,
                        (*(const gguf_kv_t *const *) b)->key);
}

static int
gguf_name_cmp(const void *a, const void *b)
{
    return gguf_str_cmp((*(const di_gguf_tensor_t *const *) a)->name,
                        (*(const di_gguf_tensor_t *const *) b)->name);
}

static int
gguf_data_cmp(const void *a, const void *b)
{
    const uint8_t *x = (*(const di_gguf_tensor_t *const *) a)->data;
    const uint8_t *y = (*(const di_gguf_tensor_t *const *) b)->data;

    return (x > y) - (x < y);
}

static int
gguf_read_header(di_gguf_t *g, gguf_cursor_t *c, di_err_t *err)
{
    uint32_t magic, version;

    if (!gguf_take(c, sizeof(magic), &magic) || magic != GGUF_MAGIC)
        return di_err_set(err, DI_EFORMAT, 0, "not a GGUF file: no magic at "
                          "byte 0");
    if (!gguf_take(c, sizeof(version), &version))
        return di_err_set(err, DI_EFORMAT, c->pos, "GGUF: the file ends in "
                          "its header, byte %zu", c->pos);
    if (__builtin_bswap32(version) == 2 || __builtin_bswap32(version) == 3)
        return di_err_set(err, DI_EUNSUPPORTED, 4, "GGUF: big-endian files "
                          "are not supported");
    if (version != 2 && version != 3)
        return di_err_set(err, DI_EUNSUPPORTED, 4, "GGUF: version %u is not "
                          "supported, only 2 and 3", version);
    if (!gguf_take(c, sizeof(g->n_tensors), &g->n_tensors)
        || !gguf_take(c, sizeof(g->n_kv), &g->n_kv))
        return di_err_set(err, DI_EFORMAT, c->pos, "GGUF: the file ends in "
                          "its header, byte %zu", c->pos);

    if (g->n_kv > (c->len - c->pos) / GGUF_KV_BYTES_MIN)
        return di_err_set(err, DI_EFORMAT, 16, "GGUF: %llu keys at byte 16 "
                          "can't fit in the file",
                          (unsigned long long) g->n_kv);
    if (g->n_tensors > (c->len - c->pos) / GGUF_TENSOR_BYTES_MIN)
        return di_err_set(err, DI_EFORMAT, 8, "GGUF: %llu tensors at byte 8 "
                          "can't fit in the file",
                          (unsigned long long) g->n_tensors);
    return DI_OK;
}

static int
gguf_read_kvs(di_gguf_t *g, gguf_cursor_t *c, di_err_t *err)
{
    int rc;

    /* One more, since an allocation of 0 bytes may be NULL. */
    g->kv = calloc(g->n_kv + 1, sizeof(*g->kv));
    g->kv_sorted = calloc(g->n_kv + 1, sizeof(*g->kv_sorted));
    if (g->kv == NULL || g->kv_sorted == NULL)
        return di_err_set(err, DI_ENOMEM, 0, "GGUF: no memory for %llu keys",
                          (unsigned long long) g->n_kv);

    for (uint64_t i = 0; i < g->n_kv; i++) {
        rc = gguf_read_kv(c, &g->kv[i], err);
        if (rc != DI_OK)
            return rc;
        g->kv_sorted[i] = &g->kv[i];
    }

    qsort(g->kv_sorted, g->n_kv, sizeof(*g->kv_sorted), gguf_kv_cmp);
    for (uint64_t i = 1; i < g->n_kv; i++) {
        const gguf_kv_t *a = g->kv_sorted[i - 1], *b = g->kv_sorted[i];
        size_t           at = a->offset > b->offset ? a->offset : b->offset;

        if (gguf_str_cmp(a->key, b->key) == 0)
            return di_err_set(err, DI_EFORMAT, at, "GGUF key \"%s\" appears "
                              "again at byte %zu", gguf_show(a->key).text, at);
    }
    return DI_OK;
}

/* Place each tensor in the file: aligned, inside, overlapping no other. */
static int
gguf_place_tensors(di_gguf_t *g, const uint64_t *offsets, size_t alignment,
                   di_err_t *err)
{
    const di_gguf_tensor_t **order = g->tensors_sorted;
    size_t data_bytes = g->len - g->meta_bytes;

    for (uint64_t i = 0; i < g->n_tensors; i++) {
        di_gguf_tensor_t *t = &g->tensors[i];

        if (offsets[i] % alignment != 0)
            return di_err_set(err, DI_EFORMAT, g->tensor_offsets[i],
                              "GGUF tensor \"%s\": data offset %llu is no "
                              "multiple of the alignment %zu",
                              gguf_show(t->name).text,
                              (unsigned long long) offsets[i], alignment);
        if (offsets[i] > data_bytes || t->bytes > data_bytes - offsets[i])
            return di_err_set(err, DI_EFORMAT, g->tensor_offsets[i],
                              "GGUF tensor \"%s\": %zu bytes at data offset "
                              "%llu pass the file's end",
                              gguf_show(t->name).text, t->bytes,
                              (unsigned long long) offsets[i]);
        t->data = g->base + g->meta_bytes + offsets[i];
        order[i] = t;
    }

    /* The index by name is sorted afterwards, so it can serve here first. */
    qsort(order, g->n_tensors, sizeof(*order), gguf_data_cmp);
    for (uint64_t i = 1; i < g->n_tensors; i++) {
        const di_gguf_tensor_t *a = order[i - 1], *b = order[i];
        const uint8_t          *end = (const uint8_t *) a->data + a->bytes;

        if (end > (const uint8_t *) b->data)
            return di_err_set(err, DI_EFORMAT,
                              g->tensor_offsets[b - g->tensors],
                              "GGUF tensor \"%s\" overlaps \"%s\" at byte %zu",
                              gguf_show(b->name).text,
                              gguf_show(a->name).text,
                              (size_t) ((const uint8_t *) b->data - g->base));
    }
    return DI_OK;
}

static int
gguf_alignment(const di_gguf_t *g, size_t *alignment, di_err_t *err)
{
    uint64_t v = GGUF_ALIGNMENT;
    int      rc = di_gguf_u64(g, "general.alignment", &v);

    if (rc == DI_EFORMAT || v < 8 || v > GGUF_ALIGNMENT_MAX
        || (v & (v - 1)) != 0)
        return di_err_set(err, DI_EFORMAT, 0, "GGUF key \"general.alignment\" "
                          "is no power of two from 8 to %u",
                          GGUF_ALIGNMENT_MAX);
    *alignment = v;
    return DI_OK;
}

static int
gguf_read_tensors(di_gguf_t *g, gguf_cursor_t *c, di_err_t *err)
{
    uint64_t *offsets;
    size_t    alignment = GGUF_ALIGNMENT, start;
    int       rc;

    offsets = calloc(g->n_tensors + 1, sizeof(*offsets));
    g->tensors = calloc(g->n_tensors + 1, sizeof(*g->tensors));
    g->tensor_offsets = calloc(g->n_tensors + 1, sizeof(*g->tensor_offsets));
    g->tensors_sorted = calloc(g->n_tensors + 1, sizeof(*g->tensors_sorted));
    if (offsets == NULL || g->tensors == NULL || g->tensor_offsets == NULL
        || g->tensors_sorted == NULL)
    {
        rc = di_err_set(err, DI_ENOMEM, 0, "GGUF: no memory for %llu tensors",
                        (unsigned long long) g->n_tensors);
        goto done;
    }

    for (uint64_t i = 0; i < g->n_tensors; i++) {
        g->tensor_offsets[i] = c->pos;
        rc = gguf_read_tensor(c, &g->tensors[i], &offsets[i], err);
        if (rc != DI_OK)
            goto done;
    }

    rc = gguf_alignment(g, &alignment, err);
    if (rc != DI_OK)
        goto done;

    /* A file without tensors may end before the padding. */
    start = c->pos + (alignment - c->pos % alignment) % alignment;
    g->meta_bytes = start < g->len ? start : g->len;
    rc = gguf_place_tensors(g, offsets, alignment, err);
    if (rc != DI_OK)
        goto done;

    qsort(g->tensors_sorted, g->n_tensors, sizeof(*g->tensors_sorted),
          gguf_name_cmp);
    for (uint64_t i = 1; i < g->n_tensors; i++) {
        const di_gguf_tensor_t *a = g->tensors_sorted[i - 1];
        const di_gguf_tensor_t *b = g->tensors_sorted[i];
        uint64_t                last = (a > b ? a : b) - g->tensors;

        if (gguf_str_cmp(a->name, b->name) == 0) {
            rc = di_err_set(err, DI_EFORMAT, g->tensor_offsets[last],
                            "GGUF tensor \"%s\" appears again at byte %llu",
                            gguf_show(a->name).text,
                            (unsigned long long) g->tensor_offsets[last]);
            goto done;
        }
    }

done:
    free(offsets);
    return rc;
}

int
di_gguf_open_memory(const void *data, size_t len, di_gguf_t **gguf,
                    di_err_t *err)
{
    gguf_cursor_t c = { .base = data, .len = len };
    di_gguf_t    *g;
    int           rc;

    g = calloc(1, sizeof(*g));
    if (g == NULL)
        return di_err_set(err, DI_ENOMEM, 0, "GGUF: no memory");
    g->base = data;
    g->len = len;

    rc = gguf_read_header(g, &c, err);
    if (rc == DI_OK)
        rc = gguf_read_kvs(g, &c, err);
    if (rc == DI_OK)
        rc = gguf_read_tensors(g, &c, err);
    if (rc != DI_OK) {
        di_gguf_close(g);
        return rc;
    }

    *gguf = g;
    return DI_OK;
}

int
di_gguf_open(const char *path, di_gguf_t **gguf, di_err_t *err)
{
    struct stat st;
    void       *map;
    int         fd, rc;

    /* A pipe that nobody writes to would be waited for. */
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd == -1)
        return di_err_set(err, DI_EIO, 0, "can't open \"%s\": %s", path,
                          strerror(errno));
    if (fstat(fd, &st) == -1) {
        rc = di_err_set(err, DI_EIO, 0, "can't stat \"%s\": %s", path,
                        strerror(errno));
        goto done;
    }
    if (!S_ISREG(st.st_mode) || st.st_size == 0) {
        rc = di_err_set(err, DI_EFORMAT, 0, "\"%s\" is %s", path,
                        S_ISREG(st.st_mode) ? "empty" : "no regular file");
        goto done;
    }

    map = mmap(NULL, (size_t) st.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) {
        rc = di_err_set(err, DI_EIO, 0, "can't map \"%s\": %s", path,
                        strerror(errno));
        goto done;
    }

    rc = di_gguf_open_memory(map, (size_t) st.st_size, gguf, err);
    if (rc == DI_OK)
        (*gguf)->mapped = true;
    else
        (void) munmap(map, (size_t) st.st_size);

done:
    (void) close(fd);
    return rc;
}

void
di_gguf_close(di_gguf_t *g)
{
    if (g == NULL)
        return;
    if (g->mapped)
        (void) munmap((void *) (uintptr_t) g->base, g->len);
    free(g->kv);
    free(g->kv_sorted);
    free(g->tensors);
    free(g->tensor_offsets);
    free(g->tensors_sorted);
    free(g);
}

static const gguf_kv_t *
gguf_find_kv(const di_gguf_t *g, const char *key)
{
    gguf_kv_t        probe = { .key = { key, strlen(key) } };
    const gguf_kv_t *p = &probe;
    const gguf_kv_t **found;

    found = bsearch(&p, g->kv_sorted, g->n_kv, sizeof(*g->kv_sorted),
                    gguf_kv_cmp);
    return found != NULL ? *found : NULL;
}

/* An integer as 64 bits and its sign. */
static bool
gguf_load_int(uint32_t type, const uint8_t *p, uint64_t *v, bool *negative)
{
    int64_t s = 0;

    *v = 0;
    switch (type) {
    case GGUF_U8:
    case GGUF_U16:
    case GGUF_U32:
    case GGUF_U64:
        memcpy(v, p, gguf_type_bytes[type]);
        *negative = false;
        return true;
    case GGUF_I8:
        s = (int8_t) *p;
        break;
    case GGUF_I16: {
        int16_t x;

        memcpy(&x, p, sizeof(x));
        s = x;
        break;
    }
    case GGUF_I32: {
        int32_t x;

        memcpy(&x, p, sizeof(x));
        s = x;
        break;
    }
    case GGUF_I64:
        memcpy(&s, p, sizeof(s));
        break;
    default:
        return false;
    }
    *v = (uint64_t) s;
    *negative = s < 0;
    return true;
}

static bool
gguf_load_float(uint32_t type, const uint8_t *p, double *v)
{
    float f;

    if (type == GGUF_F32) {
        memcpy(&f, p, sizeof(f));
        *v = (double) f;
        return true;
    }
    if (type == GGUF_F64) {
        memcpy(v, p, sizeof(*v));
        return true;
    }
    return false;
}

static di_str_t
gguf_load_str(const uint8_t *p)
{
    uint64_t n;

    memcpy(&n, p, sizeof(n));
    return (di_str_t) { (const char *) p + sizeof(n), n };
}

int
di_gguf_u64(const di_gguf_t *g, const char *key, uint64_t *v)
{
    const gguf_kv_t *kv = gguf_find_kv(g, key);
    uint64_t         x;
    bool             negative;

    if (kv == NULL)
        return DI_EINVAL;
    if (kv->array || !gguf_load_int(kv->type, kv->value, &x, &negative)
        || negative)
        return DI_EFORMAT;
    *v = x;
    return DI_OK;
}

int
di_gguf_f64(const di_gguf_t *g, const char *key, double *v)
{
    const gguf_kv_t *kv = gguf_find_kv(g, key);

    if (kv == NULL)
        return DI_EINVAL;
    if (kv->array || !gguf_load_float(kv->type, kv->value, v))
        return DI_EFORMAT;
    return DI_OK;
}

int
di_gguf_bool(const di_gguf_t *g, const char *key, bool *v)
{
    const gguf_kv_t *kv = gguf_find_kv(g, key);

    if (kv == NULL)
        return DI_EINVAL;
    if (kv->array || kv->type != GGUF_BOOL)
        return DI_EFORMAT;
    *v = *kv->value != 0;
    return DI_OK;
}

int
di_gguf_str(const di_gguf_t *g, const char *key, di_str_t *v)
{
    const gguf_kv_t *kv = gguf_find_kv(g, key);

    if (kv == NULL)
        return DI_EINVAL;
    if (kv->array || kv->type != GGUF_STR)
        return DI_EFORMAT;
    *v = gguf_load_str(kv->value);
    return DI_OK;
}

/* Find an array of at most n elements. */
static int
gguf_find_array(const di_gguf_t *g, const char *key, uint64_t n,
                const gguf_kv_t **kv)
{
    *kv = gguf_find_kv(g, key);
    if (*kv == NULL)
        return DI_EINVAL;
    if (!(*kv)->array)
        return DI_EFORMAT;
    return (*kv)->n > n ? DI_ELIMIT : DI_OK;
}

int
di_gguf_array(const di_gguf_t *g, const char *key, uint64_t *n)
{
    const gguf_kv_t *kv;
    int              rc = gguf_find_array(g, key, UINT64_MAX, &kv);

    if (rc == DI_OK)
        *n = kv->n;
    return rc;
}

int
di_gguf_array_str(const di_gguf_t *g, const char *key, di_str_t *v,
                  uint64_t n)
{
    const gguf_kv_t *kv;
    const uint8_t   *p;
    int              rc = gguf_find_array(g, key, n, &kv);

    if (rc != DI_OK)
        return rc;
    if (kv->type != GGUF_STR)
        return DI_EFORMAT;

    p = kv->value;
    for (uint64_t i = 0; i < kv->n; i++) {
        v[i] = gguf_load_str(p);
        p = (const uint8_t *) v[i].data + v[i].len;
    }
    return DI_OK;
}

int
di_gguf_array_i64(const di_gguf_t *g, const char *key, int64_t *v, uint64_t n)
{
    const gguf_kv_t *kv;
    int              rc = gguf_find_array(g, key, n, &kv);

    if (rc != DI_OK)
        return rc;

    for (uint64_t i = 0; i < kv->n; i++) {
        const uint8_t *p = kv->value + i * gguf_type_bytes[kv->type];
        uint64_t       x;
        bool           negative;

        if (!gguf_load_int(kv->type, p, &x, &negative)
            || (!negative && x > INT64_MAX))
            return DI_EFORMAT;
        v[i] = (int64_t) x;
    }
    return DI_OK;
}

int
di_gguf_array_f64(const di_gguf_t *g, const char *key, double *v, uint64_t n)
{
    const gguf_kv_t *kv;
    int              rc = gguf_find_array(g, key, n, &kv);

    if (rc != DI_OK)
        return rc;

    for (uint64_t i = 0; i < kv->n; i++) {
        const uint8_t *p = kv->value + i * gguf_type_bytes[kv->type];

        if (!gguf_load_float(kv->type, p, &v[i]))
            return DI_EFORMAT;
    }
    return DI_OK;
}

uint64_t
di_gguf_n_keys(const di_gguf_t *g)
{
    return g->n_kv;
}

di_str_t
di_gguf_key(const di_gguf_t *g, uint64_t i)
{
    return i < g->n_kv ? g->kv[i].key : (di_str_t) { NULL, 0 };
}

size_t
di_gguf_offset(const di_gguf_t *g, const void *p)
{
    return (size_t) ((const uint8_t *) p - g->base);
}

uint64_t
di_gguf_n_tensors(const di_gguf_t *g)
{
    return g->n_tensors;
}

const di_gguf_tensor_t *
di_gguf_tensor(const di_gguf_t *g, uint64_t i)
{
    return i < g->n_tensors ? &g->tensors[i] : NULL;
}

const di_gguf_tensor_t *
di_gguf_find(const di_gguf_t *g, const char *name)
{
    di_gguf_tensor_t         probe = { .name = { name, strlen(name) } };
    const di_gguf_tensor_t  *p = &probe;
    const di_gguf_tensor_t **found;

    found = bsearch(&p, g->tensors_sorted, g->n_tensors,
                    sizeof(*g->tensors_sorted), gguf_name_cmp);
    return found != NULL ? *found : NULL;
}

int
di_gguf_fingerprint(const di_gguf_t *g, uint8_t out[16])
{
    uint8_t     digest[EVP_MAX_MD_SIZE];
    uint64_t    bytes = g->len;
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    int         ok;

    if (ctx == NULL)
        return DI_ENOMEM;
    ok = EVP_DigestInit_ex(ctx, EVP_sha256(), NULL)
         && EVP_DigestUpdate(ctx, g->base, g->meta_bytes)
         && EVP_DigestUpdate(ctx, &bytes, sizeof(bytes));
    for (uint64_t i = 0; ok && i < g->n_tensors; i++) {
        const di_gguf_tensor_t *t = &g->tensors[i];
        size_t n = t->bytes < GGUF_SAMPLE ? t->bytes : GGUF_SAMPLE;

        ok = EVP_DigestUpdate(ctx, (const uint8_t *) t->data
                                   + (t->bytes - n) / 2, n);
    }
    ok = ok && EVP_DigestFinal_ex(ctx, digest, NULL);
    EVP_MD_CTX_free(ctx);
    if (!ok)
        return DI_ENOMEM;
    memcpy(out, digest, 16);
    return DI_OK;
}
