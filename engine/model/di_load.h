/*
 * di_load.h - strict reading of a model's GGUF file, for model families.
 *
 * A di_load_t goes through one file: a family asks for each hyper-parameter
 * and each tensor with the shape that it must have, and di_load_finish()
 * then refuses the file if it holds any hyper-parameter or tensor that
 * nobody asked for: what we don't read could change results.
 *
 * All calls are by the thread that opens the model.  The first failure is
 * recorded in err and returned; offsets are bytes in the file.
 */

#ifndef DI_LOAD_H
#define DI_LOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../../kernels/di_kernels.h"
#include "../../tokenizer/di_err.h"
#include "../../tokenizer/vocab/di_gguf.h"

typedef struct {
    const di_gguf_t *gguf;       /* borrowed                                */
    char             arch[32];   /* general.architecture                    */
    bool            *used_keys;  /* [di_gguf_n_keys]                        */
    bool            *used_tensors;   /* [di_gguf_n_tensors]                 */
    di_err_t        *err;        /* may be NULL                             */
} di_load_t;

/* Reads general.architecture.  DI_OK (deinit it), DI_ENOMEM, DI_EFORMAT. */
int di_load_init(di_load_t *l, const di_gguf_t *gguf, di_err_t *err);
void di_load_deinit(di_load_t *l);

/* Hyper-parameter "<arch>.<key>".  Where it is absent *v keeps its value if
 * `required` is false, else DI_EFORMAT.  Values outside [min, max] are
 * DI_EFORMAT. */
int di_load_u32(di_load_t *l, const char *key, bool required, uint32_t min,
                uint32_t max, uint32_t *v);
int di_load_f32(di_load_t *l, const char *key, bool required, double min,
                double max, float *v);
/* A string key; v->data NULL if absent. */
int di_load_str(di_load_t *l, const char *key, di_str_t *v);
/* A key that only describes (training details): read by nobody, allowed. */
void di_load_skip(di_load_t *l, const char *key);
/* A key that we can honour only while it says "off": DI_EUNSUPPORTED names
 * it unless it is absent, zero or false. */
int di_load_off(di_load_t *l, const char *key);

/* A tensor of exactly rows x cols values (rows 0: one dimension), stored as
 * [rows][cols], in a type that kernels take.  *tensor is NULL if it is
 * absent and not required.  DI_EFORMAT names tensor, offset, found and
 * expected; DI_EUNSUPPORTED its type. */
int di_load_tensor(di_load_t *l, const char *name, bool required, size_t rows,
                   size_t cols, const di_gguf_tensor_t **tensor);
/* The same with the layer's prefix: "blk.<layer>.<name>". */
int di_load_layer_tensor(di_load_t *l, uint32_t layer, const char *name,
                         bool required, size_t rows, size_t cols,
                         const di_gguf_tensor_t **tensor);

/* Refuse what was not asked for.  DI_EUNSUPPORTED names it. */
int di_load_finish(di_load_t *l);

#endif
