/*
 * di_family.h - what a model family fills in, and what it finds there.
 *
 * Internal to engine/model.  model.c opens the file, the device and the KV
 * arena, and lays a step's rows out in device buffers; a family knows the
 * hyper-parameters, the tensors and the order of operators.  Opening goes:
 *
 *     family->read     check every key and tensor, no device needed
 *     (model.c)        refuse leftovers, open device, size KV and buffers
 *     family->upload   weights and scratch on the device
 */

#ifndef DI_FAMILY_H
#define DI_FAMILY_H

#include "di_load.h"
#include "di_model.h"

/* Rows of one step, all in device buffers.  They are laid out so that those
 * whose logits are wanted come last, as far as sequences allow: after its last
 * keys and values are stored, a model computes the tail only. */
typedef struct {
    di_rows_t rows;
    uint32_t  n_head;            /* rows before the first wanted one        */
    di_rows_t tail;              /* the others: rows.n_rows - n_head; a
                                  * sequence may have none in it            */
    di_view_t ids;               /* i32 [rows.n_rows]                       */
    di_view_t out_rows;          /* i32 [n_out] rows whose logits are wanted*/
    uint32_t  n_out;
    di_view_t logits;            /* float32 [n_out][vocab]                  */
    const di_model_seq_t *const *seqs;   /* [rows.n_seqs] in order of rows  */
} di_step_t;

typedef struct {
    const char *arch;            /* general.architecture, or model_type     */
    di_arith_t  arith;           /* what DI_ARITH_AUTO means to it          */

    /* Fill m->info, m->geom and m->state from the file.  On an error state
     * is freed by close().  NULL: the family is no GGUF file's. */
    int (*read)(di_model_t *m, di_load_t *load);
    /* The same from a directory; NULL: the family is no directory's. */
    int (*read_dir)(di_model_t *m, const char *dir, di_err_t *err);

    /* A directory's tensors, see di_model_tensor(). */
    size_t (*n_tensors)(const di_model_t *m);
    void (*tensor)(const di_model_t *m, size_t i, di_model_tensor_t *t);

    /* Copy the first n_tokens of a KV block. */
    void (*kv_copy)(di_model_t *m, uint32_t dst, uint32_t src,
                    uint32_t n_tokens);

    /* Open weights and scratch on m->dev; adds to info.params,
     * .weights_bytes, .memory_bytes and .step_bytes. */
    int (*upload)(di_model_t *m, di_err_t *err);

    /* Launch a step on m->stream.  Allocates nothing. */
    void (*forward)(di_model_t *m, const di_step_t *step);

    /* Drafts for n_seqs sequences; NULL: info.n_drafts is 0. */
    int (*draft)(di_model_t *m, const di_model_draft_t *seqs, size_t n_seqs,
                 di_model_pick_t pick, void *arg, int32_t *drafts,
                 float *confidence);

    /* Free m->state, which may be NULL or partly filled. */
    void (*close)(di_model_t *m);
} di_family_t;

struct di_model_s {
    di_model_info_t      info;
    di_model_conf_t      conf;   /* as given, sizes resolved                */
    const di_family_t   *family;
    void                *state;  /* the family's own                        */

    di_gguf_t           *gguf;   /* weights may point into its mapping;
                                  * NULL: the model is a directory          */
    const di_ops_t      *ops;
    di_dev_t            *dev;
    const di_dev_info_t *dev_info;
    di_stream_t         *stream;

    di_kv_geom_t         geom;
    di_buf_t            *kv;     /* kv_blocks + 1 blocks; block 0 is unused */
    di_buf_t            *states; /* n_states + 1 slots, likewise; or NULL   */

    di_buf_t            *inputs; /* ids, positions, ... of a step           */
    uint8_t             *inputs_host;   /* its mapping, or staging memory   */
    size_t               ids_at;        /* byte offsets into inputs         */
    size_t               positions_at;
    size_t               seq_first_at;
    size_t               tail_positions_at;
    size_t               tail_first_at;
    size_t               out_rows_at;
    size_t               tables_at;

    di_buf_t            *logits;        /* float32 [max_logits][vocab]      */
    float               *logits_host;   /* its mapping, or staging memory   */

    const di_model_seq_t **placed;      /* [max_seqs] in order of rows      */
    bool                 launched;      /* a step was not waited for yet    */
};

extern const di_family_t di_family_llama;
extern const di_family_t di_family_qwen2;
extern const di_family_t di_family_deepseek_v41;

/* n values of a tensor, as float32. */
void di_family_floats(const di_gguf_tensor_t *t, size_t n, float *dst);

/* Copy host memory to a device buffer and wait for it (opening only). */
int di_family_put(di_model_t *m, di_view_t dst, const void *src,
                  size_t bytes, di_err_t *err);

/* The host's address of a buffer: its mapping, or staging memory (zeroed);
 * NULL: no memory.  Give it back with di_family_host_free(). */
void *di_family_host(di_model_t *m, di_buf_t *buf, size_t bytes);
void di_family_host_free(di_model_t *m, di_buf_t *buf, void *host);

/* Round up to the alignment of views. */
static inline size_t
di_family_align(size_t bytes)
{
    return (bytes + 63) & ~(size_t) 63;
}

#endif
