/*
 * inspect.c - the command `inspect`: what a model file holds and needs.
 *
 * The file is really opened, weights repacked and all, with the same limits
 * as `serve` would use: what inspect accepts loads, and the sizes it prints
 * are those of memory, not estimates from the file.
 */

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "../../tokenizer/vocab/di_gguf.h"
#include "di_cmd.h"

#define TYPES_MAX 64             /* ggml_type values are small              */

/* Tensors and bytes of each type in the file. */
typedef struct {
    uint64_t tensors[TYPES_MAX];
    uint64_t bytes[TYPES_MAX];
} types_t;

typedef struct {
    const di_model_info_t *info;
    const di_gguf_t       *gguf;
    types_t                types;
    uint64_t               kv_token_bytes;
    uint64_t               kv_min_bytes;     /* one longest sequence        */
    uint64_t               least_bytes;      /* weights, step, that one     */
    uint64_t               total_bytes;      /* with the whole KV cache     */
} report_t;

static void
fill_report(report_t *r, const di_model_info_t *info, const di_gguf_t *gguf)
{
    uint64_t n = di_gguf_n_tensors(gguf);

    memset(r, 0, sizeof(*r));
    r->info = info;
    r->gguf = gguf;
    for (uint64_t i = 0; i < n; i++) {
        const di_gguf_tensor_t *t = di_gguf_tensor(gguf, i);

        r->types.tensors[t->type % TYPES_MAX]++;
        r->types.bytes[t->type % TYPES_MAX] += t->bytes;
    }
    r->kv_token_bytes = info->kv_block_bytes / DI_KV_BLOCK_TOKENS;
    r->kv_min_bytes = (info->max_model_len + DI_KV_BLOCK_TOKENS - 1)
                      / DI_KV_BLOCK_TOKENS * info->kv_block_bytes;
    r->least_bytes = info->memory_bytes + info->step_bytes
                     + r->kv_min_bytes;
    r->total_bytes = info->memory_bytes + info->step_bytes
                     + info->kv_blocks * info->kv_block_bytes;
}

static void
fingerprint_hex(const di_model_info_t *info, char hex[33])
{
    for (size_t i = 0; i < sizeof(info->fingerprint); i++)
        (void) snprintf(hex + 2 * i, 3, "%02x", info->fingerprint[i]);
}

/* ------------------------------------------------------------------ text -- */

static double
mib(uint64_t bytes)
{
    return (double) bytes / (1 << 20);
}

static void
print_shape(const di_gguf_tensor_t *t)
{
    for (uint32_t d = 0; d < t->n_dims; d++)
        (void) printf("%s%" PRIu64, d > 0 ? " x " : "", t->dims[d]);
}

static void
print_text(const report_t *r, bool tensors)
{
    const di_model_info_t *i = r->info;
    char                   hex[33];

    fingerprint_hex(i, hex);
    (void) printf("name            %s\n", i->name);
    (void) printf("architecture    %s\n", i->family);
    (void) printf("fingerprint     %s\n", hex);
    (void) printf("parameters      %.1f M\n", (double) i->params / 1e6);
    (void) printf("layers          %u\n", i->n_layers);
    (void) printf("dimensions      %u, feed-forward %u\n", i->dim,
                  i->ffn_dim);
    (void) printf("heads           %u of %u, %u for keys and values\n",
                  i->n_heads, i->head_dim, i->n_kv_heads);
    (void) printf("vocabulary      %u\n", i->vocab);
    (void) printf("context length  %u, used %u\n", i->context_length,
                  i->max_model_len);
    for (uint32_t t = 0; t < TYPES_MAX; t++) {
        if (r->types.tensors[t] > 0)
            (void) printf("%-5s in file   %" PRIu64 " tensors, %.1f MiB\n",
                          di_wtype_name((di_wtype_t) t), r->types.tensors[t],
                          mib(r->types.bytes[t]));
    }
    (void) printf("arithmetic      %s, %u threads\n", i->arith,
                  i->n_threads);
    (void) printf("weights         %.1f MiB in memory, %.1f MiB read per "
                  "step\n", mib(i->memory_bytes), mib(i->weights_bytes));
    (void) printf("KV cache        %" PRIu64 " bytes a token, %.1f MiB for "
                  "one longest sequence\n", r->kv_token_bytes,
                  mib(r->kv_min_bytes));
    (void) printf("KV memory       %.1f MiB, %" PRIu64 " tokens\n",
                  mib(i->kv_blocks * i->kv_block_bytes),
                  (uint64_t) i->kv_blocks * DI_KV_BLOCK_TOKENS);
    (void) printf("step            %.1f MiB of activations and logits\n",
                  mib(i->step_bytes));
    (void) printf("memory needed   %.1f MiB with one longest sequence, %.1f "
                  "MiB with all KV memory\n", mib(r->least_bytes),
                  mib(r->total_bytes));

    for (uint64_t k = 0; tensors && k < di_gguf_n_tensors(r->gguf); k++) {
        const di_gguf_tensor_t *t = di_gguf_tensor(r->gguf, k);

        (void) printf("%-5s %12zu  %.*s  ",
                      di_wtype_name((di_wtype_t) t->type), t->bytes,
                      (int) t->name.len, t->name.data);
        print_shape(t);
        (void) putchar('\n');
    }
}

/* ------------------------------------------------------------------ JSON -- */

static json_t *
integer(uint64_t v)
{
    return json_integer((json_int_t) v);
}

static json_t *
tensor_json(const di_gguf_tensor_t *t)
{
    json_t *shape = json_array();

    for (uint32_t d = 0; d < t->n_dims; d++)
        (void) json_array_append_new(shape, integer(t->dims[d]));
    return json_pack("{s:s%, s:s, s:o, s:o}", "name", t->name.data,
                     t->name.len, "type", di_wtype_name((di_wtype_t) t->type),
                     "shape", shape, "bytes", integer(t->bytes));
}

static json_t *
report_json(const report_t *r, bool tensors)
{
    const di_model_info_t *i = r->info;
    json_t                *types = json_object(), *list, *o;
    char                   hex[33];

    fingerprint_hex(i, hex);
    for (uint32_t t = 0; t < TYPES_MAX; t++) {
        if (r->types.tensors[t] > 0)
            (void) json_object_set_new(types, di_wtype_name((di_wtype_t) t),
                                       integer(r->types.bytes[t]));
    }
    o = json_pack("{s:s, s:s, s:s, s:o, s:i, s:i, s:i, s:i, s:i, s:i, s:i,"
                  " s:i, s:i, s:o, s:s, s:i, s:o, s:o, s:o, s:o, s:o, s:o}",
                  "name", i->name, "architecture", i->family,
                  "fingerprint", hex, "parameters", integer(i->params),
                  "layers", (int) i->n_layers, "dim", (int) i->dim,
                  "ffn_dim", (int) i->ffn_dim, "heads", (int) i->n_heads,
                  "kv_heads", (int) i->n_kv_heads,
                  "head_dim", (int) i->head_dim, "vocab", (int) i->vocab,
                  "context_length", (int) i->context_length,
                  "max_model_len", (int) i->max_model_len,
                  "file_bytes_by_type", types, "arith", i->arith,
                  "threads", (int) i->n_threads,
                  "weights_bytes", integer(i->weights_bytes),
                  "kv_bytes_per_token", integer(r->kv_token_bytes),
                  "kv_bytes", integer(i->kv_blocks * i->kv_block_bytes),
                  "step_bytes", integer(i->step_bytes),
                  "memory_bytes_min", integer(r->least_bytes),
                  "memory_bytes", integer(r->total_bytes));
    if (o == NULL || !tensors)
        return o;

    list = json_array();
    for (uint64_t k = 0; k < di_gguf_n_tensors(r->gguf); k++)
        (void) json_array_append_new(list,
                                     tensor_json(di_gguf_tensor(r->gguf, k)));
    (void) json_object_set_new(o, "tensors", list);
    return o;
}

static int
print_json(const report_t *r, bool tensors)
{
    json_t *o = report_json(r, tensors);
    int     bad = o == NULL || json_dumpf(o, stdout, JSON_INDENT(2)) != 0
                  || putchar('\n') == EOF;

    json_decref(o);
    return bad ? DI_EIO : DI_OK;
}

int
di_cmd_inspect(const di_cmd_opts_t *opts)
{
    const char        *path = opts->engine.model_path;
    di_cmd_progress_t  progress = { 0 };
    di_model_conf_t    mc = opts->engine.model;
    di_model_t        *model = NULL;
    di_gguf_t         *gguf = NULL;
    di_err_t           err = { 0 };
    report_t           report;
    int                status = DI_EXIT_OK;

    if (opts->engine.log_level >= DI_LOG_INFO) {
        mc.progress = di_cmd_progress;
        mc.progress_arg = &progress;
    }
    if (di_model_open(path, &mc, &model, &err) != DI_OK
        || di_gguf_open(path, &gguf, &err) != DI_OK) {
        di_model_close(model);
        return di_cmd_fail(opts, DI_EXIT_FAILED, "%s: %s", path, err.text);
    }

    fill_report(&report, di_model_info(model), gguf);
    if (opts->json) {
        if (print_json(&report, opts->tensors) != DI_OK)
            status = di_cmd_fail(opts, DI_EXIT_FAILED, "output failed");
    } else {
        print_text(&report, opts->tensors);
    }
    if (fflush(stdout) == EOF)
        status = DI_EXIT_FAILED;
    di_gguf_close(gguf);
    di_model_close(model);
    return status;
}
