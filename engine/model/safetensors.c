/*
 * safetensors.c - mapped safetensors files and their index.
 *
 * A file is a little-endian 64-bit length, a JSON header of that length and
 * the tensors' bytes; a tensor's offsets count from the end of the header.
 * Beyond what a reader needs (offsets inside the file, sizes that agree with
 * dtype and shape) the bytes of two tensors may not overlap: a file in which
 * they do was not written by any converter.
 *
 * The table is an array sorted by name, searched in halves: 96,085 names are
 * 17 comparisons, and every tensor is looked up a handful of times.
 */

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "di_safetensors.h"

#define HEADER_MAX  (100u << 20) /* the format's own limit                  */
#define INDEX_MAX   (100u << 20)
#define FILES_MAX   4096u
#define NAME_LEN_MAX 240u        /* of a tensor or a file                   */
#define INDEX_NAME  "model.safetensors.index.json"

typedef struct {
    char          *name;         /* in the directory                        */
    const uint8_t *map;          /* the whole file                          */
    size_t         len;
    size_t         data_at;      /* where tensors' bytes begin              */
} file_t;

struct di_st_s {
    file_t         *files;       /* [n_files]                               */
    uint32_t        n_files;
    di_st_tensor_t *tensors;     /* [n_tensors], sorted once all are read   */
    size_t          n_tensors;
    size_t          tensors_cap;
};

static const struct {
    const char *name;
    size_t      bytes;
} dtypes[DI_ST_N_DTYPES] = {
    [DI_ST_BOOL] = { "BOOL", 1 }, [DI_ST_U8] = { "U8", 1 },
    [DI_ST_I8] = { "I8", 1 }, [DI_ST_F8_E5M2] = { "F8_E5M2", 1 },
    [DI_ST_F8_E4M3] = { "F8_E4M3", 1 }, [DI_ST_F8_E8M0] = { "F8_E8M0", 1 },
    [DI_ST_I16] = { "I16", 2 }, [DI_ST_U16] = { "U16", 2 },
    [DI_ST_F16] = { "F16", 2 }, [DI_ST_BF16] = { "BF16", 2 },
    [DI_ST_I32] = { "I32", 4 }, [DI_ST_U32] = { "U32", 4 },
    [DI_ST_F32] = { "F32", 4 }, [DI_ST_I64] = { "I64", 8 },
    [DI_ST_U64] = { "U64", 8 }, [DI_ST_F64] = { "F64", 8 },
};

const char *
di_st_dtype_name(di_st_dtype_t dtype)
{
    return dtypes[dtype].name;
}

size_t
di_st_dtype_bytes(di_st_dtype_t dtype)
{
    return dtypes[dtype].bytes;
}

/* ----------------------------------------------------------------- files -- */

static int
open_at(const char *dir, const char *name, struct stat *st, di_err_t *err)
{
    char path[PATH_MAX];
    int  fd;

    if ((size_t) snprintf(path, sizeof(path), "%s/%s", dir, name)
        >= sizeof(path)) {
        (void) di_err_set(err, DI_EINVAL, 0, "%s: the path is too long",
                          name);
        return -1;
    }
    /* A pipe in the place of a file must not hang us. */
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, st) != 0) {
        (void) di_err_set(err, DI_EIO, 0, "%s: %s", name, strerror(errno));
    } else if (!S_ISREG(st->st_mode)) {
        (void) di_err_set(err, DI_EFORMAT, 0, "%s: not a regular file", name);
    } else {
        return fd;
    }
    if (fd >= 0)
        (void) close(fd);
    return -1;
}

static int
err_code(const di_err_t *err)
{
    return err != NULL && err->code != DI_OK ? err->code : DI_EIO;
}

int
di_st_read_file(const char *dir, const char *name, size_t max, char **text,
                size_t *len, di_err_t *err)
{
    struct stat st;
    size_t      at = 0, size;
    ssize_t     n = 1;
    int         fd = open_at(dir, name, &st, err);

    *text = NULL;
    if (fd < 0)
        return err_code(err);
    size = (size_t) st.st_size;
    if (size > max) {
        (void) close(fd);
        return di_err_set(err, DI_ELIMIT, 0, "%s: %zu bytes, at most %zu are "
                          "read", name, size, max);
    }
    *text = malloc(size + 1);
    while (*text != NULL && at < size && n > 0) {
        n = read(fd, *text + at, size - at);
        at += n > 0 ? (size_t) n : 0;
    }
    (void) close(fd);
    if (*text == NULL)
        return di_err_set(err, DI_ENOMEM, 0, "out of memory");
    if (at < size) {
        free(*text);
        *text = NULL;
        return di_err_set(err, DI_EIO, at, "%s: can't read %zu bytes", name,
                          size);
    }
    (*text)[size] = '\0';
    *len = size;
    return DI_OK;
}

static int
map_file(const char *dir, file_t *f, di_err_t *err)
{
    struct stat st;
    void       *map;
    int         fd = open_at(dir, f->name, &st, err);

    if (fd < 0)
        return err_code(err);
    if (st.st_size < 8) {
        (void) close(fd);
        return di_err_set(err, DI_EFORMAT, 0, "%s: %lld bytes, no "
                          "safetensors file", f->name,
                          (long long) st.st_size);
    }
    map = mmap(NULL, (size_t) st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    (void) close(fd);
    if (map == MAP_FAILED)
        return di_err_set(err, DI_EIO, 0, "%s: can't map: %s", f->name,
                          strerror(errno));
    f->map = map;
    f->len = (size_t) st.st_size;
    return DI_OK;
}

/* ---------------------------------------------------------------- header -- */

static int
bad_tensor(const file_t *f, const char *name, const char *what, di_err_t *err)
{
    return di_err_set(err, DI_EFORMAT, 0, "%s: tensor %.80s: %s", f->name,
                      name, what);
}

static bool
find_dtype(const char *name, di_st_dtype_t *dtype)
{
    for (int i = 0; i < DI_ST_N_DTYPES; i++) {
        if (strcmp(dtypes[i].name, name) == 0) {
            *dtype = (di_st_dtype_t) i;
            return true;
        }
    }
    return false;
}

/* Shape and the bytes that it makes.  False: not a shape, or too large. */
static bool
read_shape(const json_t *shape, di_st_tensor_t *t, size_t *bytes)
{
    *bytes = dtypes[t->dtype].bytes;
    if (!json_is_array(shape) || json_array_size(shape) > DI_ST_DIMS_MAX)
        return false;
    t->n_dims = (uint32_t) json_array_size(shape);
    for (uint32_t i = 0; i < t->n_dims; i++) {
        const json_t *d = json_array_get(shape, i);

        if (!json_is_integer(d) || json_integer_value(d) < 0)
            return false;
        t->dims[i] = (uint64_t) json_integer_value(d);
        if (__builtin_mul_overflow(*bytes, t->dims[i], bytes))
            return false;
    }
    return true;
}

static int
read_tensor(const di_st_t *st, uint32_t file, const char *name,
            const json_t *o, di_st_tensor_t *t, di_err_t *err)
{
    const file_t *f = &st->files[file];
    const size_t  data = f->len - f->data_at;
    const json_t *at = json_object_get(o, "data_offsets");
    const char   *dtype = json_string_value(json_object_get(o, "dtype"));
    json_int_t    a, b;
    size_t        bytes;

    if (strlen(name) > NAME_LEN_MAX)
        return bad_tensor(f, name, "the name is too long", err);
    if (dtype == NULL || !find_dtype(dtype, &t->dtype))
        return bad_tensor(f, name, "no dtype that is known", err);
    if (!read_shape(json_object_get(o, "shape"), t, &bytes))
        return bad_tensor(f, name, "no shape, or one too large", err);
    if (json_array_size(at) != 2
        || !json_is_integer(json_array_get(at, 0))
        || !json_is_integer(json_array_get(at, 1)))
        return bad_tensor(f, name, "no data_offsets", err);

    a = json_integer_value(json_array_get(at, 0));
    b = json_integer_value(json_array_get(at, 1));
    if (a < 0 || b < a || (uint64_t) b > data)
        return di_err_set(err, DI_EFORMAT, f->data_at, "%s: tensor %.60s: "
                          "bytes %lld to %lld of %zu", f->name, name,
                          (long long) a, (long long) b, data);
    if ((uint64_t) (b - a) != bytes)
        return di_err_set(err, DI_EFORMAT, f->data_at + (size_t) a,
                          "%s: tensor %.60s: %lld bytes, dtype and shape "
                          "make %zu", f->name, name, (long long) (b - a),
                          bytes);
    t->file = file;
    t->bytes = bytes;
    t->offset = f->data_at + (size_t) a;
    t->data = f->map + t->offset;
    return DI_OK;
}

static int
add_tensor(di_st_t *st, const di_st_tensor_t *t, const char *name,
           di_err_t *err)
{
    if (st->n_tensors == st->tensors_cap) {
        size_t cap = st->tensors_cap == 0 ? 256 : 2 * st->tensors_cap;
        void  *p = realloc(st->tensors, cap * sizeof(*st->tensors));

        if (p == NULL)
            return di_err_set(err, DI_ENOMEM, 0, "out of memory");
        st->tensors = p;
        st->tensors_cap = cap;
    }
    st->tensors[st->n_tensors] = *t;
    st->tensors[st->n_tensors].name = strdup(name);
    if (st->tensors[st->n_tensors].name == NULL)
        return di_err_set(err, DI_ENOMEM, 0, "out of memory");
    st->n_tensors++;
    return DI_OK;
}

static const char *
plain_name(const char *name)
{
    return strncmp(name, "model.", 6) == 0 ? name + 6 : name;
}

static int
read_header(di_st_t *st, uint32_t file, di_err_t *err)
{
    file_t      *f = &st->files[file];
    json_error_t je;
    json_t      *o, *value;
    const char  *name;
    uint64_t     n = 0;
    int          rc = DI_OK;

    for (int i = 8; i-- > 0;)
        n = n << 8 | f->map[i];
    if (n > HEADER_MAX || n > f->len - 8)
        return di_err_set(err, DI_EFORMAT, 0, "%s: a header of %llu bytes in "
                          "a file of %zu", f->name, (unsigned long long) n,
                          f->len);
    f->data_at = 8 + (size_t) n;

    o = json_loadb((const char *) f->map + 8, (size_t) n,
                   JSON_REJECT_DUPLICATES, &je);
    if (!json_is_object(o)) {
        json_decref(o);
        return di_err_set(err, DI_EFORMAT,
                          8 + (je.position > 0 ? (size_t) je.position : 0),
                          "%s: header: %.80s", f->name,
                          o == NULL ? je.text : "not an object");
    }
    json_object_foreach(o, name, value) {
        di_st_tensor_t t = { 0 };

        if (strcmp(name, "__metadata__") == 0)
            continue;
        rc = read_tensor(st, file, name, value, &t, err);
        if (rc == DI_OK)
            rc = add_tensor(st, &t, plain_name(name), err);
        if (rc != DI_OK)
            break;
    }
    json_decref(o);
    return rc;
}

/* ----------------------------------------------------------------- table -- */

static int
by_name(const void *a, const void *b)
{
    return strcmp(((const di_st_tensor_t *) a)->name,
                  ((const di_st_tensor_t *) b)->name);
}

static int
by_place(const void *a, const void *b)
{
    const di_st_tensor_t *x = a, *y = b;

    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

static int
check_overlaps(di_st_t *st, di_err_t *err)
{
    qsort(st->tensors, st->n_tensors, sizeof(*st->tensors), by_place);
    for (size_t i = 1; i < st->n_tensors; i++) {
        const di_st_tensor_t *a = &st->tensors[i - 1], *b = a + 1;

        if (a->file == b->file && a->offset + a->bytes > b->offset)
            return di_err_set(err, DI_EFORMAT, b->offset,
                              "%s: tensors %.50s and %.50s overlap",
                              st->files[a->file].name, a->name, b->name);
    }
    return DI_OK;
}

static int
sort_names(di_st_t *st, di_err_t *err)
{
    qsort(st->tensors, st->n_tensors, sizeof(*st->tensors), by_name);
    for (size_t i = 1; i < st->n_tensors; i++) {
        const di_st_tensor_t *a = &st->tensors[i - 1], *b = a + 1;

        if (strcmp(a->name, b->name) == 0)
            return di_err_set(err, DI_EFORMAT, b->offset, "%s: tensor %.60s "
                              "is in %s too", st->files[b->file].name,
                              b->name, st->files[a->file].name);
    }
    return DI_OK;
}

static int
read_files(di_st_t *st, const char *dir, di_err_t *err)
{
    int rc = DI_OK;

    for (uint32_t i = 0; i < st->n_files && rc == DI_OK; i++) {
        rc = map_file(dir, &st->files[i], err);
        if (rc == DI_OK)
            rc = read_header(st, i, err);
    }
    if (rc == DI_OK)
        rc = check_overlaps(st, err);
    if (rc == DI_OK)
        rc = sort_names(st, err);
    return rc;
}

/* ----------------------------------------------------------------- index -- */

/* A file of the directory itself: no path. */
static bool
is_file_name(const char *name)
{
    return name != NULL && name[0] != '\0' && name[0] != '.'
           && strchr(name, '/') == NULL && strlen(name) <= NAME_LEN_MAX;
}

static int
add_file(di_st_t *st, const char *name, di_err_t *err)
{
    void *p;

    for (uint32_t i = 0; i < st->n_files; i++) {
        if (strcmp(st->files[i].name, name) == 0)
            return DI_OK;
    }
    if (st->n_files == FILES_MAX)
        return di_err_set(err, DI_ELIMIT, 0, INDEX_NAME ": more than %u "
                          "files", FILES_MAX);
    p = realloc(st->files, (st->n_files + 1) * sizeof(*st->files));
    if (p == NULL)
        return di_err_set(err, DI_ENOMEM, 0, "out of memory");
    st->files = p;
    st->files[st->n_files] = (file_t) { .name = strdup(name) };
    if (st->files[st->n_files].name == NULL)
        return di_err_set(err, DI_ENOMEM, 0, "out of memory");
    st->n_files++;
    return DI_OK;
}

static int
add_files(di_st_t *st, json_t *map, di_err_t *err)
{
    const char *tensor;
    json_t     *file;
    int         rc = DI_OK;

    json_object_foreach(map, tensor, file) {
        if (!is_file_name(json_string_value(file)))
            return di_err_set(err, DI_EFORMAT, 0, INDEX_NAME ": tensor "
                              "%.60s: not the name of a file", tensor);
        rc = add_file(st, json_string_value(file), err);
        if (rc != DI_OK)
            return rc;
    }
    if (st->n_files == 0)
        return di_err_set(err, DI_EFORMAT, 0, INDEX_NAME ": no tensors");
    return rc;
}

/* The index and the files must name the same tensors in the same places. */
static int
check_index(const di_st_t *st, json_t *map, di_err_t *err)
{
    const char *name;
    json_t     *file;

    json_object_foreach(map, name, file) {
        const di_st_tensor_t *t = di_st_find(st, plain_name(name));

        if (t == NULL || strcmp(st->files[t->file].name,
                                json_string_value(file)) != 0)
            return di_err_set(err, DI_EFORMAT, 0, "%.60s: no tensor %.60s, "
                              "which " INDEX_NAME " says is there",
                              json_string_value(file), name);
    }
    if (json_object_size(map) != st->n_tensors)
        return di_err_set(err, DI_EFORMAT, 0, INDEX_NAME ": %zu tensors, the "
                          "files have %zu", json_object_size(map),
                          st->n_tensors);
    return DI_OK;
}

static int
load_index(const char *dir, json_t **index, di_err_t *err)
{
    json_error_t je;
    char        *text;
    size_t       len;
    int          rc = di_st_read_file(dir, INDEX_NAME, INDEX_MAX, &text, &len,
                                      err);

    if (rc != DI_OK)
        return rc;
    *index = json_loadb(text, len, JSON_REJECT_DUPLICATES, &je);
    free(text);
    if (json_is_object(json_object_get(*index, "weight_map")))
        return DI_OK;
    if (*index == NULL)
        return di_err_set(err, DI_EFORMAT,
                          je.position > 0 ? (size_t) je.position : 0,
                          INDEX_NAME ": %.80s", je.text);
    return di_err_set(err, DI_EFORMAT, 0, INDEX_NAME ": no weight_map");
}

static int
open_files(di_st_t *st, const char *dir, di_err_t *err)
{
    char    path[PATH_MAX];
    json_t *index = NULL, *map;
    int     rc;

    if ((size_t) snprintf(path, sizeof(path), "%s/%s", dir, INDEX_NAME)
        >= sizeof(path))
        return di_err_set(err, DI_EINVAL, 0, "the path is too long");
    if (access(path, F_OK) != 0) {
        rc = add_file(st, "model.safetensors", err);
        return rc == DI_OK ? read_files(st, dir, err) : rc;
    }

    rc = load_index(dir, &index, err);
    map = json_object_get(index, "weight_map");
    if (rc == DI_OK)
        rc = add_files(st, map, err);
    if (rc == DI_OK)
        rc = read_files(st, dir, err);
    if (rc == DI_OK)
        rc = check_index(st, map, err);
    json_decref(index);
    return rc;
}

int
di_st_open(const char *dir, di_st_t **out, di_err_t *err)
{
    di_st_t *st = calloc(1, sizeof(*st));
    int      rc;

    *out = NULL;
    if (st == NULL)
        return di_err_set(err, DI_ENOMEM, 0, "out of memory");
    rc = open_files(st, dir, err);
    if (rc != DI_OK) {
        di_st_close(st);
        return rc;
    }
    *out = st;
    return DI_OK;
}

void
di_st_close(di_st_t *st)
{
    if (st == NULL)
        return;
    for (size_t i = 0; i < st->n_tensors; i++)
        free((void *) (uintptr_t) st->tensors[i].name);
    for (uint32_t i = 0; i < st->n_files; i++) {
        if (st->files[i].map != NULL)
            (void) munmap((void *) (uintptr_t) st->files[i].map,
                          st->files[i].len);
        free(st->files[i].name);
    }
    free(st->tensors);
    free(st->files);
    free(st);
}

/* --------------------------------------------------------------- look-up -- */

size_t
di_st_n_tensors(const di_st_t *st)
{
    return st->n_tensors;
}

const di_st_tensor_t *
di_st_tensor(const di_st_t *st, size_t i)
{
    assert(i < st->n_tensors);
    return &st->tensors[i];
}

const di_st_tensor_t *
di_st_find(const di_st_t *st, const char *name)
{
    const di_st_tensor_t key = { .name = name };

    return st->n_tensors == 0
           ? NULL : bsearch(&key, st->tensors, st->n_tensors,
                            sizeof(*st->tensors), by_name);
}

uint32_t
di_st_n_files(const di_st_t *st)
{
    return st->n_files;
}

const char *
di_st_file(const di_st_t *st, uint32_t file)
{
    return st->files[file].name;
}
