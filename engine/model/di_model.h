/*
 * di_model.h - a loaded model: weights, KV arena, one forward step.
 *
 * A di_model_t owns a device, its stream, the repacked weights and the KV
 * arena.  The scheduler thread alone calls it.  A model family is one file
 * (engine/model/<family>.c) that fills di_model_impl_t; everything above
 * this header is the same for all families.
 */

#ifndef DI_MODEL_H
#define DI_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../../kernels/di_kernels.h"
#include "../../tokenizer/di_err.h"

#define DI_KV_BLOCK_TOKENS 16

typedef struct {
    di_arith_t  arith;           /* DI_ARITH_F32: --exact                   */
    const char *ops;             /* NULL (best) or as in di_dev_conf_t      */
    uint32_t    n_threads;
    bool        pin;
    uint32_t    max_model_len;   /* 0 = the model's own                     */
    uint32_t    max_rows;        /* rows of one step (token budget)         */
    uint32_t    max_seqs;        /* sequences in one step                   */
    uint64_t    kv_bytes;        /* KV arena; 0 = just max_model_len tokens */
    void      (*progress)(void *arg, const char *what, double part);
    void       *progress_arg;    /* progress may be NULL                    */
} di_model_conf_t;

typedef struct {
    char     name[96];           /* general.name, or the file's base name   */
    char     family[32];         /* "llama"                                 */
    char     arith[32];          /* of the device; in the KV's keys         */
    uint8_t  fingerprint[16];    /* di_gguf_fingerprint()                   */
    uint32_t vocab;
    uint32_t n_layers;
    uint32_t dim;
    uint32_t n_heads;
    uint32_t n_kv_heads;
    uint32_t head_dim;
    uint32_t ffn_dim;
    uint32_t context_length;     /* the model's own limit                   */
    uint32_t max_model_len;      /* ours, at most that                      */
    uint32_t max_logits;         /* sum of n_logits of one step, at least
                                  * max_seqs                                */
    uint32_t n_threads;
    uint64_t params;             /* weights' values                         */
    uint64_t weights_bytes;      /* as repacked, read per decoded token     */
    uint64_t memory_bytes;       /* as repacked, all of them                */
    uint64_t step_bytes;         /* activations and logits of one step      */
    uint64_t kv_block_bytes;
    uint32_t kv_blocks;          /* ids 1 .. kv_blocks; 0 means none        */
} di_model_info_t;

typedef struct di_model_s di_model_t;

/* Open a GGUF file.  DI_EIO, DI_EFORMAT (tensor and offset named),
 * DI_EUNSUPPORTED (architecture, tensor type), DI_ENOMEM, DI_ELIMIT (KV
 * memory holds less than one sequence of max_model_len). */
int di_model_open(const char *path, const di_model_conf_t *conf,
                  di_model_t **model, di_err_t *err);
void di_model_close(di_model_t *model);
const di_model_info_t *di_model_info(const di_model_t *model);

/* One sequence's part of a step: n_rows new tokens at positions
 * [pos, pos + n_rows), whose KV blocks (all of 0 .. pos+n_rows-1) are in
 * blocks.  Logits are wanted for the last n_logits of the rows. */
typedef struct {
    const int32_t  *tokens;      /* [n_rows]                                */
    const uint32_t *blocks;      /* [ceil((pos + n_rows) / 16)]             */
    uint32_t        n_rows;
    uint32_t        pos;
    uint32_t        n_logits;    /* 0 .. n_rows                             */
} di_model_seq_t;

/* Launch a forward pass; returns before it is computed.  Arrays are copied.
 * The step before it must have been waited for.  Rows in all <= max_rows,
 * n_seqs <= max_seqs, n_logits in all <= info.max_logits, positions below
 * max_model_len, block ids in 1 .. kv_blocks, tokens below vocab; otherwise
 * DI_EINVAL and nothing was launched.  No allocation. */
int di_model_step(di_model_t *model, const di_model_seq_t *seqs,
                  size_t n_seqs);

/* Launch a host call behind the step (sampling): fn(arg, part), with the
 * pool's threads.  Logits are readable in it. */
void di_model_host_call(di_model_t *model, void (*fn)(void *, size_t),
                        void *arg, size_t n_parts);

/* Wait for the step.  *logits: float32 [sum of n_logits][vocab], rows in the
 * order of seqs, valid until the next step (host memory; the same address in
 * host calls: di_model_logits). */
int di_model_wait(di_model_t *model, const float **logits);
const float *di_model_logits(const di_model_t *model);

/* Copy the first n_tokens of a KV block (all layers): a launch like a step,
 * in order with them. */
void di_model_kv_copy(di_model_t *model, uint32_t dst, uint32_t src,
                      uint32_t n_tokens);

#endif
