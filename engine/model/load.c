/*
 * load.c - strict reading of a model's GGUF file.
 *
 * The reader in tokenizer/vocab has checked that the file is sound (lengths,
 * counts, offsets); here it is checked that it is a model that we compute
 * exactly: every hyper-parameter in range, every tensor of the right shape in
 * a known type, and nothing left over.  A hyper-parameter that we don't know
 * is an error, not a warning: rotary scaling, soft-capping or a sliding
 * window that is silently skipped gives text that is only slightly wrong.
 */

#include <stdlib.h>
#include <string.h>

#include "di_load.h"

#define KEY_MAX  128             /* "<arch>.<key>", NUL included            */
#define NAME_MAX_TENSOR  128

int
di_load_init(di_load_t *l, const di_gguf_t *gguf, di_err_t *err)
{
    uint64_t n_keys = di_gguf_n_keys(gguf);
    uint64_t n_tensors = di_gguf_n_tensors(gguf);
    di_str_t arch;

    memset(l, 0, sizeof(*l));
    l->gguf = gguf;
    l->err = err;

    if (di_gguf_str(gguf, "general.architecture", &arch) != DI_OK)
        return di_err_set(err, DI_EFORMAT, 0,
                          "no key general.architecture: not a model file");
    if (arch.len == 0 || arch.len >= sizeof(l->arch))
        return di_err_set(err, DI_EUNSUPPORTED,
                          di_gguf_offset(gguf, arch.data),
                          "general.architecture has %zu bytes", arch.len);
    memcpy(l->arch, arch.data, arch.len);

    l->used_keys = calloc(n_keys + 1, sizeof(bool));
    l->used_tensors = calloc(n_tensors + 1, sizeof(bool));
    if (l->used_keys == NULL || l->used_tensors == NULL) {
        di_load_deinit(l);
        return di_err_set(err, DI_ENOMEM, 0, "out of memory");
    }
    return DI_OK;
}

void
di_load_deinit(di_load_t *l)
{
    free(l->used_keys);
    free(l->used_tensors);
    l->used_keys = NULL;
    l->used_tensors = NULL;
}

/* Full name of a hyper-parameter; marks it as known.  False if absent. */
static bool
known_key(di_load_t *l, const char *key, char full[KEY_MAX])
{
    uint64_t n = di_gguf_n_keys(l->gguf);
    size_t   len;

    len = (size_t) snprintf(full, KEY_MAX, "%s.%s", l->arch, key);
    for (uint64_t i = 0; i < n; i++) {
        di_str_t k = di_gguf_key(l->gguf, i);

        if (k.len == len && memcmp(k.data, full, len) == 0) {
            l->used_keys[i] = true;
            return true;
        }
    }
    return false;
}

static int
missing_key(di_load_t *l, const char *full)
{
    return di_err_set(l->err, DI_EFORMAT, 0, "no key %s", full);
}

int
di_load_u32(di_load_t *l, const char *key, bool required, uint32_t min,
            uint32_t max, uint32_t *v)
{
    char     full[KEY_MAX];
    uint64_t x;

    if (!known_key(l, key, full))
        return required ? missing_key(l, full) : DI_OK;
    if (di_gguf_u64(l->gguf, full, &x) != DI_OK)
        return di_err_set(l->err, DI_EFORMAT, 0,
                          "key %s is not an unsigned integer", full);
    if (x < min || x > max)
        return di_err_set(l->err, DI_EFORMAT, 0,
                          "key %s is %llu, expected %u to %u", full,
                          (unsigned long long) x, min, max);
    *v = (uint32_t) x;
    return DI_OK;
}

int
di_load_f32(di_load_t *l, const char *key, bool required, double min,
            double max, float *v)
{
    char   full[KEY_MAX];
    double x;

    if (!known_key(l, key, full))
        return required ? missing_key(l, full) : DI_OK;
    if (di_gguf_f64(l->gguf, full, &x) != DI_OK)
        return di_err_set(l->err, DI_EFORMAT, 0, "key %s is not a number",
                          full);
    if (!(x >= min && x <= max))
        return di_err_set(l->err, DI_EFORMAT, 0,
                          "key %s is %g, expected %g to %g", full, x, min,
                          max);
    *v = (float) x;
    return DI_OK;
}

int
di_load_str(di_load_t *l, const char *key, di_str_t *v)
{
    char full[KEY_MAX];

    *v = (di_str_t) { NULL, 0 };
    if (!known_key(l, key, full))
        return DI_OK;
    if (di_gguf_str(l->gguf, full, v) != DI_OK)
        return di_err_set(l->err, DI_EFORMAT, 0, "key %s is not a string",
                          full);
    return DI_OK;
}

void
di_load_skip(di_load_t *l, const char *key)
{
    char full[KEY_MAX];

    (void) known_key(l, key, full);
}

int
di_load_off(di_load_t *l, const char *key)
{
    char     full[KEY_MAX];
    uint64_t u;
    double   f;
    bool     b;

    if (!known_key(l, key, full))
        return DI_OK;
    if (di_gguf_u64(l->gguf, full, &u) == DI_OK && u == 0)
        return DI_OK;
    if (di_gguf_f64(l->gguf, full, &f) == DI_OK && f == 0)
        return DI_OK;
    if (di_gguf_bool(l->gguf, full, &b) == DI_OK && !b)
        return DI_OK;
    return di_err_set(l->err, DI_EUNSUPPORTED, 0,
                      "key %s is set, which is not supported", full);
}

/* Index of a tensor by name, or -1. */
static int64_t
tensor_index(const di_load_t *l, const di_gguf_tensor_t *t)
{
    return t == NULL ? -1 : (int64_t) (t - di_gguf_tensor(l->gguf, 0));
}

int
di_load_tensor(di_load_t *l, const char *name, bool required, size_t rows,
               size_t cols, const di_gguf_tensor_t **tensor)
{
    const di_gguf_tensor_t *t = di_gguf_find(l->gguf, name);
    uint32_t                n_dims = rows == 0 ? 1 : 2;
    size_t                  n_rows = rows == 0 ? 1 : rows;
    size_t                  offset;

    *tensor = NULL;
    if (t == NULL)
        return required ? di_err_set(l->err, DI_EFORMAT, 0, "no tensor %s",
                                     name)
                        : DI_OK;

    l->used_tensors[tensor_index(l, t)] = true;
    offset = di_gguf_offset(l->gguf, t->data);

    if (di_wtype_block((di_wtype_t) t->type) == 0)
        return di_err_set(l->err, DI_EUNSUPPORTED, offset,
                          "tensor %s at byte %zu: type %u is not supported",
                          name, offset, t->type);

    for (uint32_t i = 0; i < t->n_dims; i++) {
        size_t want = i == 0 ? cols : i == 1 ? n_rows : 1;

        if (t->dims[i] != want || (i == t->n_dims - 1 && t->n_dims < n_dims))
            return di_err_set(l->err, DI_EFORMAT, offset,
                              "tensor %s at byte %zu: shape %llux%llu in %u "
                              "dimensions, expected %zux%zu", name, offset,
                              (unsigned long long) t->dims[0],
                              t->n_dims > 1
                                  ? (unsigned long long) t->dims[1] : 1,
                              t->n_dims, cols, n_rows);
    }

    if (cols % di_wtype_block((di_wtype_t) t->type) != 0)
        return di_err_set(l->err, DI_EFORMAT, offset,
                          "tensor %s at byte %zu: rows of %zu values are no "
                          "multiple of %s's block", name, offset, cols,
                          di_wtype_name((di_wtype_t) t->type));

    if (t->bytes != n_rows * di_wtype_bytes((di_wtype_t) t->type, cols))
        return di_err_set(l->err, DI_EFORMAT, offset,
                          "tensor %s at byte %zu: %zu bytes, expected %zu",
                          name, offset, t->bytes,
                          n_rows * di_wtype_bytes((di_wtype_t) t->type,
                                                  cols));
    *tensor = t;
    return DI_OK;
}

int
di_load_layer_tensor(di_load_t *l, uint32_t layer, const char *name,
                     bool required, size_t rows, size_t cols,
                     const di_gguf_tensor_t **tensor)
{
    char full[NAME_MAX_TENSOR];

    (void) snprintf(full, sizeof(full), "blk.%u.%s", layer, name);
    return di_load_tensor(l, full, required, rows, cols, tensor);
}

/* Keys under "<arch>." that nobody asked for. */
static int
unknown_keys(di_load_t *l)
{
    uint64_t n = di_gguf_n_keys(l->gguf);
    size_t   len = strlen(l->arch);

    for (uint64_t i = 0; i < n; i++) {
        di_str_t k = di_gguf_key(l->gguf, i);

        if (l->used_keys[i] || k.len <= len || k.data[len] != '.'
            || memcmp(k.data, l->arch, len) != 0)
            continue;
        return di_err_set(l->err, DI_EUNSUPPORTED,
                          di_gguf_offset(l->gguf, k.data),
                          "key %.*s is not known for architecture %s",
                          (int) k.len, k.data, l->arch);
    }
    return DI_OK;
}

int
di_load_finish(di_load_t *l)
{
    uint64_t n = di_gguf_n_tensors(l->gguf);
    int      rc = unknown_keys(l);

    if (rc != DI_OK)
        return rc;

    for (uint64_t i = 0; i < n; i++) {
        const di_gguf_tensor_t *t = di_gguf_tensor(l->gguf, i);
        size_t                  offset;

        if (l->used_tensors[i])
            continue;
        offset = di_gguf_offset(l->gguf, t->data);
        return di_err_set(l->err, DI_EUNSUPPORTED, offset,
                          "tensor %.*s at byte %zu is not known for "
                          "architecture %s", (int) t->name.len, t->name.data,
                          offset, l->arch);
    }
    return DI_OK;
}
