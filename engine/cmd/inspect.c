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

#include "di_cmd.h"

#define KINDS_MAX 32             /* types or parts that are told apart      */

/* Tensors and bytes of one type or part of the model. */
typedef struct {
    const char *name;
    uint64_t    tensors;
    uint64_t    bytes;
} kind_t;

typedef struct {
    kind_t kinds[KINDS_MAX];
    size_t n;
} kinds_t;

typedef struct {
    const di_model_info_t *info;
    const di_model_t      *model;
    kinds_t                types;
    kinds_t                parts;            /* none: one whole             */
    uint64_t               kv_min_bytes;     /* one longest sequence        */
    uint64_t               state_bytes;      /* all slots                   */
    uint64_t               least_bytes;      /* weights, step, that one     */
    uint64_t               total_bytes;      /* with the whole KV cache     */
} report_t;

static void
count(kinds_t *k, const char *name, uint64_t bytes)
{
    size_t i = 0;

    while (i < k->n && strcmp(k->kinds[i].name, name) != 0)
        i++;
    if (i == KINDS_MAX)
        i--;                     /* the last one takes what is left         */
    if (i == k->n)
        k->kinds[k->n++].name = name;
    k->kinds[i].tensors++;
    k->kinds[i].bytes += bytes;
}

static uint64_t
bytes_of(const kinds_t *k, const char *name)
{
    for (size_t i = 0; i < k->n; i++) {
        if (strcmp(k->kinds[i].name, name) == 0)
            return k->kinds[i].bytes;
    }
    return 0;
}

static void
fill_report(report_t *r, const di_model_t *model)
{
    const di_model_info_t *info = di_model_info(model);
    const uint32_t         tokens = info->block_tokens;
    size_t                 n = di_model_n_tensors(model);

    memset(r, 0, sizeof(*r));
    r->info = info;
    r->model = model;
    for (size_t i = 0; i < n; i++) {
        di_model_tensor_t t;

        di_model_tensor(model, i, &t);
        count(&r->types, t.type, t.bytes);
        if (t.part != NULL)
            count(&r->parts, t.part, t.bytes);
    }
    r->kv_min_bytes = (info->max_model_len + tokens - 1) / tokens
                      * info->kv_block_bytes;
    r->state_bytes = info->n_states * info->state_bytes;
    r->least_bytes = info->memory_bytes + info->step_bytes
                     + r->state_bytes + r->kv_min_bytes;
    r->total_bytes = info->memory_bytes + info->step_bytes
                     + r->state_bytes
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
print_shape(const di_model_tensor_t *t)
{
    for (uint32_t d = 0; d < t->n_dims; d++)
        (void) printf("%s%" PRIu64, d > 0 ? " x " : "", t->dims[d]);
}

/* An encode engine needs the vision tower alone, the others all but that; of
 * Engram's tables only the rows that tokens name are read. */
static void
print_parts(const report_t *r)
{
    const uint64_t vision = bytes_of(&r->parts, "vision");
    const uint64_t engram = bytes_of(&r->parts, "engram");
    uint64_t       all = 0;

    if (r->parts.n == 0)
        return;
    for (size_t i = 0; i < r->parts.n; i++) {
        const kind_t *k = &r->parts.kinds[i];

        (void) printf("%-8s in file %" PRIu64 " tensors, %.1f MiB\n",
                      k->name, k->tensors, mib(k->bytes));
        all += k->bytes;
    }
    (void) printf("weights by role prefill, decode, both: %.1f MiB, and %.1f "
                  "MiB on disk or host; encode: %.1f MiB\n",
                  mib(all - vision - engram), mib(engram), mib(vision));
}

static void
print_states(const report_t *r)
{
    const di_model_info_t *i = r->info;

    if (i->n_states > 0)
        (void) printf("states          %" PRIu64 " bytes a sequence, %u "
                      "slots, %.1f MiB\n", i->state_bytes, i->n_states,
                      mib(r->state_bytes));
    if (i->n_drafts > 0)
        (void) printf("drafts          %u of a step at most\n", i->n_drafts);
}

static void
print_tensors(const report_t *r)
{
    size_t n = di_model_n_tensors(r->model);

    for (size_t k = 0; k < n; k++) {
        di_model_tensor_t t;

        di_model_tensor(r->model, k, &t);
        (void) printf("%-5s %12zu  %.*s  ", t.type, t.bytes,
                      (int) t.name_len, t.name);
        print_shape(&t);
        (void) putchar('\n');
    }
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
    for (size_t t = 0; t < r->types.n; t++) {
        const kind_t *k = &r->types.kinds[t];

        (void) printf("%-5s in file   %" PRIu64 " tensors, %.1f MiB\n",
                      k->name, k->tensors, mib(k->bytes));
    }
    print_parts(r);
    (void) printf("arithmetic      %s, %u threads\n", i->arith,
                  i->n_threads);
    (void) printf("weights         %.1f MiB in memory, %.1f MiB read per "
                  "step\n", mib(i->memory_bytes), mib(i->weights_bytes));
    (void) printf("KV cache        %" PRIu64 " bytes a token, %.1f MiB for "
                  "one longest sequence\n", r->info->kv_token_bytes,
                  mib(r->kv_min_bytes));
    (void) printf("KV memory       %.1f MiB, %" PRIu64 " tokens\n",
                  mib(i->kv_blocks * i->kv_block_bytes),
                  (uint64_t) i->kv_blocks * i->block_tokens);
    (void) printf("step            %.1f MiB of activations and logits\n",
                  mib(i->step_bytes));
    (void) printf("memory needed   %.1f MiB with one longest sequence, %.1f "
                  "MiB with all KV memory\n", mib(r->least_bytes),
                  mib(r->total_bytes));

    print_states(r);
    if (tensors)
        print_tensors(r);
}

/* ------------------------------------------------------------------ JSON -- */

static json_t *
integer(uint64_t v)
{
    return json_integer((json_int_t) v);
}

static json_t *
tensor_json(const di_model_tensor_t *t)
{
    json_t *shape = json_array();

    for (uint32_t d = 0; d < t->n_dims; d++)
        (void) json_array_append_new(shape, integer(t->dims[d]));
    return json_pack("{s:s%, s:s, s:o, s:o}", "name", t->name,
                     t->name_len, "type", t->type, "shape", shape, "bytes",
                     integer(t->bytes));
}

static json_t *
tensors_json(const di_model_t *model)
{
    json_t *list = json_array();
    size_t  n = di_model_n_tensors(model);

    for (size_t k = 0; k < n; k++) {
        di_model_tensor_t t;

        di_model_tensor(model, k, &t);
        (void) json_array_append_new(list, tensor_json(&t));
    }
    return list;
}

/* What only models of parts and states have. */
static void
add_parts_json(const report_t *r, json_t *o)
{
    json_t *parts;

    if (r->info->n_states > 0) {
        (void) json_object_set_new(o, "state_bytes",
                                   integer(r->info->state_bytes));
        (void) json_object_set_new(o, "states", integer(r->info->n_states));
        (void) json_object_set_new(o, "drafts", integer(r->info->n_drafts));
    }
    if (r->parts.n == 0)
        return;
    parts = json_object();
    for (size_t i = 0; i < r->parts.n; i++)
        (void) json_object_set_new(parts, r->parts.kinds[i].name,
                                   integer(r->parts.kinds[i].bytes));
    (void) json_object_set_new(o, "file_bytes_by_part", parts);
}

static json_t *
report_json(const report_t *r, bool tensors)
{
    const di_model_info_t *i = r->info;
    json_t                *types = json_object(), *o;
    char                   hex[33];

    fingerprint_hex(i, hex);
    for (size_t t = 0; t < r->types.n; t++)
        (void) json_object_set_new(types, r->types.kinds[t].name,
                                   integer(r->types.kinds[t].bytes));
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
                  "kv_bytes_per_token", integer(r->info->kv_token_bytes),
                  "kv_bytes", integer(i->kv_blocks * i->kv_block_bytes),
                  "step_bytes", integer(i->step_bytes),
                  "memory_bytes_min", integer(r->least_bytes),
                  "memory_bytes", integer(r->total_bytes));
    if (o == NULL)
        return o;
    add_parts_json(r, o);
    if (!tensors)
        return o;

    (void) json_object_set_new(o, "tensors", tensors_json(r->model));
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
    di_err_t           err = { 0 };
    report_t           report;
    int                status = DI_EXIT_OK;

    if (opts->engine.log_level >= DI_LOG_INFO) {
        mc.progress = di_cmd_progress;
        mc.progress_arg = &progress;
    }
    if (di_model_open(path, &mc, &model, &err) != DI_OK)
        return di_cmd_fail(opts, DI_EXIT_FAILED, "%s: %s", path, err.text);
    if (opts->verify && di_model_verify(model, &err) != DI_OK) {
        di_model_close(model);
        return di_cmd_fail(opts, DI_EXIT_FAILED, "%s: %s", path, err.text);
    }

    fill_report(&report, model);
    if (opts->json) {
        if (print_json(&report, opts->tensors) != DI_OK)
            status = di_cmd_fail(opts, DI_EXIT_FAILED, "output failed");
    } else {
        print_text(&report, opts->tensors);
    }
    if (fflush(stdout) == EOF)
        status = DI_EXIT_FAILED;
    di_model_close(model);
    return status;
}
