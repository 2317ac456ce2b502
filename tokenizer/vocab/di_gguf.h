/*
 * di_gguf.h - reader of GGUF files (versions 2 and 3, little endian).
 *
 * A di_gguf_t maps the file read-only and indexes its key-values and tensors;
 * all returned pointers point into the mapping and live until close.  Every
 * length, count and offset is checked against the file; a damaged file is an
 * error that names the key or tensor and the byte offset.  Tensor data lies
 * at a multiple of general.alignment, which is at least 8.
 * Source: GGUF specification (ggml project's docs, facts only).
 */

#ifndef DI_GGUF_H
#define DI_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../di_err.h"

#define DI_GGUF_DIMS 4

typedef struct di_gguf_s di_gguf_t;

typedef struct {
    const char *data;            /* not NUL-terminated                      */
    size_t      len;
} di_str_t;

typedef struct {
    di_str_t    name;
    uint32_t    type;            /* ggml_type                               */
    uint32_t    n_dims;
    uint64_t    dims[DI_GGUF_DIMS];  /* dims[0] is the contiguous one       */
    const void *data;
    size_t      bytes;
} di_gguf_tensor_t;

/* Open from a path, or from memory (kept by the reader until close; for
 * tests and fuzzing).  A file with no tensors, a vocabulary alone, is valid.
 * A mapped file must not be cut while it is open: reading past its new end
 * is a SIGBUS, as with any mapping.  O(n log n) in its keys and tensors.
 * DI_EIO, DI_EFORMAT, DI_ENOMEM, DI_EUNSUPPORTED (version, tensor type). */
int di_gguf_open(const char *path, di_gguf_t **gguf, di_err_t *err);
int di_gguf_open_memory(const void *data, size_t len, di_gguf_t **gguf,
                        di_err_t *err);
void di_gguf_close(di_gguf_t *gguf);

/* Typed access by key.  DI_OK; DI_EINVAL: no such key; DI_EFORMAT: it has
 * another type (any integer type that holds the value is taken for u64 and
 * i64, either float type for f64).  O(log n_keys). */
int di_gguf_u64(const di_gguf_t *g, const char *key, uint64_t *v);
int di_gguf_f64(const di_gguf_t *g, const char *key, double *v);
int di_gguf_bool(const di_gguf_t *g, const char *key, bool *v);
int di_gguf_str(const di_gguf_t *g, const char *key, di_str_t *v);
/* The number of an array's elements. */
int di_gguf_array(const di_gguf_t *g, const char *key, uint64_t *n);
/* A whole array into v[n]; DI_ELIMIT if it has more than n elements.  O(n). */
int di_gguf_array_str(const di_gguf_t *g, const char *key, di_str_t *v,
                      uint64_t n);
int di_gguf_array_i64(const di_gguf_t *g, const char *key, int64_t *v,
                      uint64_t n);
int di_gguf_array_f64(const di_gguf_t *g, const char *key, double *v,
                      uint64_t n);

/* Tensors in the file's order, and by name; NULL: there is none. */
/* All keys, in the file's order: a loader refuses those it doesn't know. */
uint64_t di_gguf_n_keys(const di_gguf_t *g);
di_str_t di_gguf_key(const di_gguf_t *g, uint64_t i);

/* Byte in the file of something that points into the mapping: for errors. */
size_t di_gguf_offset(const di_gguf_t *g, const void *p);

uint64_t di_gguf_n_tensors(const di_gguf_t *g);
const di_gguf_tensor_t *di_gguf_tensor(const di_gguf_t *g, uint64_t i);
const di_gguf_tensor_t *di_gguf_find(const di_gguf_t *g, const char *name);

/* SHA-256 over everything before the tensor data (metadata, vocabulary,
 * tensor directory), the file's size and the middle of each tensor, truncated
 * to 16 bytes: the model's fingerprint that worker and engine compare.  Two
 * trainings of one model often differ in the weights alone, and reading all
 * of those at each start would take too long.  DI_OK, or DI_ENOMEM. */
int di_gguf_fingerprint(const di_gguf_t *g, uint8_t out[16]);

#endif
