/*
 * gguf_make.h - writes small model files, for tests of the loader.
 *
 * A make_t gathers key-values and tensors in memory; make_write() puts them
 * into a file in GGUF's layout (version 3).  Tensors are named, so that a
 * test can change one before it writes: another shape, type or size.
 */

#ifndef GGUF_MAKE_H
#define GGUF_MAKE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAKE_TENSORS 64
#define MAKE_ALIGN   32

typedef struct {
    uint8_t *data;
    size_t   len;
    size_t   cap;
} make_bytes_t;

typedef struct {
    char     name[64];
    uint32_t n_dims;
    uint64_t dims[2];            /* dims[0] is contiguous                   */
    uint32_t type;
    uint8_t *data;               /* owned                                   */
    size_t   bytes;
} make_tensor_t;

typedef struct {
    make_bytes_t  kv;
    uint64_t      n_kv;
    make_tensor_t tensors[MAKE_TENSORS];
    size_t        n_tensors;
} make_t;

static inline void
make_put(make_bytes_t *b, const void *p, size_t n)
{
    if (b->len + n > b->cap) {
        b->cap = 2 * (b->len + n);
        b->data = realloc(b->data, b->cap);
        if (b->data == NULL)
            abort();
    }
    if (n > 0)
        memcpy(b->data + b->len, p, n);
    b->len += n;
}

static inline void
make_put_u32(make_bytes_t *b, uint32_t v)
{
    make_put(b, &v, sizeof(v));
}

static inline void
make_put_u64(make_bytes_t *b, uint64_t v)
{
    make_put(b, &v, sizeof(v));
}

static inline void
make_put_str(make_bytes_t *b, const char *s)
{
    make_put_u64(b, strlen(s));
    make_put(b, s, strlen(s));
}

/* Keys: the numbers are GGUF's value types. */
static inline void
make_key(make_t *m, const char *key, uint32_t type)
{
    m->n_kv++;
    make_put_str(&m->kv, key);
    make_put_u32(&m->kv, type);
}

static inline void
make_u32(make_t *m, const char *key, uint32_t v)
{
    make_key(m, key, 4);
    make_put_u32(&m->kv, v);
}

static inline void
make_f32(make_t *m, const char *key, float v)
{
    make_key(m, key, 6);
    make_put(&m->kv, &v, sizeof(v));
}

static inline void
make_str(make_t *m, const char *key, const char *v)
{
    make_key(m, key, 8);
    make_put_str(&m->kv, v);
}

/* A tensor of rows x cols (rows 0: one dimension); takes data. */
static inline make_tensor_t *
make_tensor(make_t *m, const char *name, uint64_t rows, uint64_t cols,
            uint32_t type, uint8_t *data, size_t bytes)
{
    make_tensor_t *t = &m->tensors[m->n_tensors++];

    if (m->n_tensors > MAKE_TENSORS || data == NULL)
        abort();
    memset(t, 0, sizeof(*t));
    (void) snprintf(t->name, sizeof(t->name), "%s", name);
    t->n_dims = rows == 0 ? 1 : 2;
    t->dims[0] = cols;
    t->dims[1] = rows;
    t->type = type;
    t->data = data;
    t->bytes = bytes;
    return t;
}

static inline make_tensor_t *
make_find(make_t *m, const char *name)
{
    for (size_t i = 0; i < m->n_tensors; i++) {
        if (strcmp(m->tensors[i].name, name) == 0)
            return &m->tensors[i];
    }
    abort();
}

static inline void
make_pad(make_bytes_t *b)
{
    while (b->len % MAKE_ALIGN != 0)
        make_put(b, "", 1);
}

/* The whole file's bytes; free(out->data). */
static inline void
make_file(const make_t *m, make_bytes_t *out)
{
    uint64_t offset = 0;

    memset(out, 0, sizeof(*out));
    make_put(out, "GGUF", 4);
    make_put_u32(out, 3);
    make_put_u64(out, m->n_tensors);
    make_put_u64(out, m->n_kv);
    make_put(out, m->kv.data, m->kv.len);
    for (size_t i = 0; i < m->n_tensors; i++) {
        const make_tensor_t *t = &m->tensors[i];

        make_put_str(out, t->name);
        make_put_u32(out, t->n_dims);
        for (uint32_t d = 0; d < t->n_dims; d++)
            make_put_u64(out, t->dims[d]);
        make_put_u32(out, t->type);
        make_put_u64(out, offset);
        offset += (t->bytes + MAKE_ALIGN - 1) / MAKE_ALIGN * MAKE_ALIGN;
    }
    for (size_t i = 0; i < m->n_tensors; i++) {
        make_pad(out);
        make_put(out, m->tensors[i].data, m->tensors[i].bytes);
    }
}

static inline void
make_write_bytes(const make_bytes_t *b, size_t len, const char *path)
{
    FILE *f = fopen(path, "wb");

    if (f == NULL || fwrite(b->data, 1, len, f) != len || fclose(f) != 0)
        abort();
}

static inline void
make_write(const make_t *m, const char *path)
{
    make_bytes_t file;

    make_file(m, &file);
    make_write_bytes(&file, file.len, path);
    free(file.data);
}

static inline void
make_free(make_t *m)
{
    for (size_t i = 0; i < m->n_tensors; i++)
        free(m->tensors[i].data);
    free(m->kv.data);
    memset(m, 0, sizeof(*m));
}

#endif
