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

/* Tokens of a KV block where a model has no reason for another number; at
 * most so many. */
#define DI_KV_BLOCK_TOKENS     16
#define DI_KV_BLOCK_TOKENS_MAX 128

typedef struct {
    di_arith_t  arith;           /* DI_ARITH_F32: --exact                   */
    bool        round_caches;    /* caches as they are stored even in
                                  * DI_ARITH_F32 (a family may have others) */
    const char *ops;             /* NULL (best) or as in di_dev_conf_t      */
    uint32_t    n_threads;
    bool        pin;
    uint32_t    max_model_len;   /* 0 = the model's own                     */
    uint32_t    max_rows;        /* rows of one step (token budget)         */
    uint32_t    max_seqs;        /* sequences in one step                   */
    uint32_t    n_states;        /* slots of sequences' states to have,
                                  * where a model needs them; 0 = max_seqs,
                                  * a fifth more and some                   */
    uint64_t    kv_bytes;        /* KV arena; 0 = just max_model_len tokens */
    uint64_t    warm_bytes;      /* weights that stay in the files' mapping
                                  * are read while opening if they are so
                                  * many at most, else as they are used     */
    void      (*progress)(void *arg, const char *what, double part);
    void       *progress_arg;    /* progress may be NULL                    */
} di_model_conf_t;

typedef struct {
    char     name[96];           /* general.name, or the file's base name   */
    char     family[32];         /* "llama", "deepseek_v41"                 */
    char     arith[32];          /* of the device; in the KV's keys         */
    uint8_t  fingerprint[16];    /* of the file or directory                */
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
    uint64_t kv_token_bytes;     /* of it, per token, without padding       */
    uint32_t kv_blocks;          /* ids 1 .. kv_blocks; 0 means none        */
    uint32_t block_tokens;       /* tokens of a KV block                    */

    /* Models whose sequences have a state besides their KV blocks. */
    uint32_t n_states;           /* slots 1 .. n_states; 0: no state        */
    uint64_t state_bytes;        /* of a slot                               */
    uint32_t lookback;           /* tokens before a step's that are read    */
    uint32_t backtrack;          /* computed tokens that may be taken back  */
    uint32_t window;             /* tokens that a window has                */
    uint32_t n_drafts;           /* that its draft module offers at most; 0:
                                  * there is none                           */
} di_model_info_t;

typedef struct di_model_s di_model_t;

/* A tensor of the file; borrowed from the model. */
typedef struct {
    const char *name;
    size_t      name_len;
    const char *type;            /* "Q4_K", "F8_E4M3"                       */
    const char *part;            /* of the model: "experts"; NULL: whole    */
    const char *file;            /* of a directory; NULL: the model's       */
    size_t      offset;          /* of data in it                           */
    const uint8_t *data;         /* in the mapping                          */
    size_t      bytes;
    uint64_t    dims[8];         /* in the file's own order                 */
    uint32_t    n_dims;
} di_model_tensor_t;

/* Open a GGUF file, or a Hugging Face directory.  DI_EIO, DI_EFORMAT (file,
 * tensor and offset named), DI_EUNSUPPORTED (architecture, tensor type),
 * DI_ENOMEM, DI_ELIMIT (KV memory holds less than one sequence of
 * max_model_len). */
int di_model_open(const char *path, const di_model_conf_t *conf,
                  di_model_t **model, di_err_t *err);
void di_model_close(di_model_t *model);
const di_model_info_t *di_model_info(const di_model_t *model);

/* Tensor i of the model's files, i < di_model_n_tensors(). */
size_t di_model_n_tensors(const di_model_t *model);
void di_model_tensor(const di_model_t *model, size_t i,
                     di_model_tensor_t *tensor);

/* Read all tensors: DI_OK, or DI_EFORMAT with file, tensor and the index of
 * the first value of it that is infinite or not a number.  Takes as long as
 * the disk; calls conf.progress.  No step may be under way. */
int di_model_verify(di_model_t *model, di_err_t *err);

/* One sequence's part of a step: n_rows new tokens at positions
 * [pos, pos + n_rows), whose KV blocks (all of 0 .. pos+n_rows-1) are in
 * blocks.  Logits are wanted for the last n_logits of the rows.
 *
 * A model with states reads and writes the sequence's slot.  Rows may take
 * back up to info.backtrack of those computed before: pos is then smaller
 * than it was.  keep_from and floor are the bounded replay of a long prompt:
 * rows before keep_from end where the model's second half begins, unless
 * their logits or all rows are wanted, and no window reaches below floor,
 * nor in the second half below keep_from. */
typedef struct {
    const int32_t  *tokens;      /* [n_rows], behind min(pos, info.lookback)
                                  * that came before                        */
    const uint32_t *blocks;      /* [ceil((pos + n_rows) / block_tokens)]   */
    uint32_t        n_rows;
    uint32_t        pos;
    uint32_t        n_logits;    /* 0 .. n_rows                             */
    uint32_t        slot;        /* 1 .. info.n_states, or 0 without states */
    uint32_t        keep_from;   /* 0: all rows go through                  */
    uint32_t        floor;       /* 0: all windows are whole                */
    bool            keep_all;    /* rows before keep_from go through too    */
} di_model_seq_t;

/* Launch a forward pass; returns before it is computed.  Arrays are copied.
 * The step before it must have been waited for.  Rows in all <= max_rows,
 * n_seqs <= max_seqs, n_logits in all <= info.max_logits, positions below
 * max_model_len, block ids in 1 .. kv_blocks, tokens below vocab; otherwise
 * DI_EINVAL and nothing was launched.  No allocation. */
int di_model_step(di_model_t *model, const di_model_seq_t *seqs,
                  size_t n_seqs);

/* A sequence to be drafted for: its n computed tokens, all of whose steps
 * were waited for, and the one drawn after them. */
typedef struct {
    uint32_t slot;
    uint32_t n;                  /* at least 1                              */
    int32_t  token;
} di_model_draft_t;

/* Choose draft number i of sequence number seq from its logits [vocab].  All
 * of a sequence's drafts are asked for, in order; of those of different ones
 * up to DI_MODEL_PICKS at a time, on the pool's threads. */
typedef int32_t (*di_model_pick_t)(void *arg, size_t seq, uint32_t i,
                                   const float *logits);

#define DI_MODEL_PICKS 16

/* Offer info.n_drafts tokens that may follow, one after another, each with the
 * chance that it is accepted if those before it are.  That chance is known
 * before the draft is chosen, and says nothing of what it is.
 *   seqs        [n_seqs], at most max_seqs
 *   pick        NULL: the likeliest ones
 *   drafts      [n_seqs][n_drafts] out
 *   confidence  [n_seqs][n_drafts] out, 0 .. 1
 * Computes and waits.  DI_OK or a device fault.  No allocation. */
int di_model_draft(di_model_t *model, const di_model_draft_t *seqs,
                   size_t n_seqs, di_model_pick_t pick, void *arg,
                   int32_t *drafts, float *confidence);

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
 * in order with them; and a state slot. */
void di_model_kv_copy(di_model_t *model, uint32_t dst, uint32_t src,
                      uint32_t n_tokens);
void di_model_state_copy(di_model_t *model, uint32_t dst, uint32_t src);

#endif
