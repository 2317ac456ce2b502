/*
 * di_safetensors.h - a Hugging Face directory's tensors, mapped.
 *
 * Object model.  A di_st_t holds the mappings of a directory's safetensors
 * files and one table of all tensors in them.  Nothing is copied: a tensor's
 * data points into the mapping and is read from disk when it is touched.
 * With `model.safetensors.index.json` the files are those that it names, and
 * it must say the same as they do; without it there is one file,
 * `model.safetensors`.  A leading "model." of a name is dropped.
 *
 * The bytes are foreign: headers are parsed with limits, and every length,
 * offset and product of sizes is checked before it is used.  Any thread may
 * read an open di_st_t.
 */

#ifndef DI_SAFETENSORS_H
#define DI_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "../../tokenizer/di_err.h"

#define DI_ST_DIMS_MAX 8

typedef enum {
    DI_ST_BOOL, DI_ST_U8, DI_ST_I8, DI_ST_F8_E5M2, DI_ST_F8_E4M3,
    DI_ST_F8_E8M0, DI_ST_I16, DI_ST_U16, DI_ST_F16, DI_ST_BF16, DI_ST_I32,
    DI_ST_U32, DI_ST_F32, DI_ST_I64, DI_ST_U64, DI_ST_F64, DI_ST_N_DTYPES
} di_st_dtype_t;

typedef struct {
    const char    *name;         /* without "model."; NUL-terminated        */
    const uint8_t *data;         /* in the mapping, of any alignment        */
    size_t         bytes;        /* the dimensions' product times a value's */
    size_t         offset;       /* of data in its file                     */
    uint64_t       dims[DI_ST_DIMS_MAX];
    uint32_t       n_dims;       /* 0: one value                            */
    uint32_t       file;         /* see di_st_file()                        */
    di_st_dtype_t  dtype;
} di_st_tensor_t;

typedef struct di_st_s di_st_t;

/* Open a directory's files.  DI_EIO, DI_ENOMEM, DI_EFORMAT with file, tensor
 * and what was expected (err->offset: byte in the file). */
int di_st_open(const char *dir, di_st_t **st, di_err_t *err);
void di_st_close(di_st_t *st);

size_t di_st_n_tensors(const di_st_t *st);
/* In order of name; i < n_tensors. */
const di_st_tensor_t *di_st_tensor(const di_st_t *st, size_t i);
/* NULL if there is none.  O(log n). */
const di_st_tensor_t *di_st_find(const di_st_t *st, const char *name);

uint32_t di_st_n_files(const di_st_t *st);
/* Name of a file in the directory. */
const char *di_st_file(const di_st_t *st, uint32_t file);

const char *di_st_dtype_name(di_st_dtype_t dtype);
size_t di_st_dtype_bytes(di_st_dtype_t dtype);

/* Read a whole file of a directory: malloc'ed, NUL-terminated, returns owned.
 * DI_EIO; DI_ELIMIT beyond max bytes. */
int di_st_read_file(const char *dir, const char *name, size_t max,
                    char **text, size_t *len, di_err_t *err);

#endif
