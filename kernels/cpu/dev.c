/*
 * dev.c - the CPU device: choice of kernels, memory, buffers.
 *
 * Which kernels run is decided once, at open: the first of di_cpu_kerns[]
 * that has the wanted arithmetic, is what conf.ops (or DI_OPS in the
 * environment) names, and can run here.  Buffers are mappings of their own,
 * advised to huge pages: weights and KV are read in long runs, and a page
 * table walk every 4 KB costs a tenth of the bandwidth.
 */

#include "cpu.h"

#include <cpuid.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE_PAGE (2u << 20)

void *
di_cpu_map(size_t bytes)
{
    void *p;

    p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    if (bytes >= HUGE_PAGE)
        (void) madvise(p, bytes, MADV_HUGEPAGE);
    return p;
}

void
di_cpu_unmap(void *p, size_t bytes)
{
    if (p != NULL)
        (void) munmap(p, bytes);
}

/* The CPU's own name, as its brand string has it. */
static void
cpu_name(char *name, size_t size)
{
    unsigned r[12];
    char text[sizeof(r) + 1];
    const char *from = text;

    memset(text, 0, sizeof(text));
    if ((unsigned) __get_cpuid_max(0x80000000u, NULL) >= 0x80000004u) {
        for (unsigned i = 0; i < 3; i++)
            __get_cpuid(0x80000002u + i, &r[4 * i], &r[4 * i + 1],
                        &r[4 * i + 2], &r[4 * i + 3]);
        memcpy(text, r, sizeof(r));
    }
    while (*from == ' ')
        from++;
    snprintf(name, size, "%s", *from ? from : "x86-64");
}

static const di_cpu_kern_t *
choose(const di_dev_conf_t *conf, di_err_t *err)
{
    const char *ops = conf->ops ? conf->ops : getenv("DI_OPS");
    const di_cpu_kern_t *kern;
    bool known = false;

    for (size_t i = 0; (kern = di_cpu_kerns[i]) != NULL; i++) {
        if (conf->arith != DI_ARITH_AUTO && conf->arith != kern->arith)
            continue;
        /* float32 is for checking, MX for the models that are made for it:
         * never chosen unasked. */
        if (conf->arith == DI_ARITH_AUTO && (kern->arith == DI_ARITH_F32
                                             || kern->arith == DI_ARITH_MX))
            continue;
        if (ops != NULL && strcmp(ops, kern->ops) != 0)
            continue;
        known = true;
        if (kern->usable())
            return kern;
    }

    di_err_set(err, DI_EUNSUPPORTED, 0,
               known ? "this CPU cannot run the operators \"%s\""
                     : "no operators \"%s\" of this arithmetic",
               ops ? ops : "any");
    return NULL;
}

static void
dev_close(di_dev_t *dev)
{
    if (dev == NULL)
        return;
    di_cpu_pool_close(dev->pool);
    di_cpu_chunk_unref(dev->chunk);
    di_cpu_expert_plan_free(&dev->expert_plan);
    free(dev->partials);
    free(dev->scores);
    free(dev->lefts);
    free(dev->items);
    free(dev);
}

static int
dev_open(const di_dev_conf_t *conf, di_dev_t **out, di_err_t *err)
{
    di_dev_t *dev;
    int rc;

    dev = calloc(1, sizeof(*dev));
    if (dev == NULL)
        return di_err_set(err, DI_ENOMEM, 0, "no memory for a device");

    dev->kern = choose(conf, err);
    if (dev->kern == NULL) {
        free(dev);
        return DI_EUNSUPPORTED;
    }

    di_cpu_vec = dev->kern->vec;
    snprintf(dev->info.arith_name, sizeof(dev->info.arith_name), "%s",
             dev->kern->name);
    cpu_name(dev->info.cpu, sizeof(dev->info.cpu));
    dev->info.arith = dev->kern->arith;
    dev->info.host_memory = true;
    dev->info.act_align = 64;

    rc = di_cpu_pool_open(conf->n_threads, conf->pin, conf->spin_us,
                          dev->kern->thread_init, &dev->pool, err);
    if (rc != DI_OK) {
        free(dev);
        return rc;
    }
    *out = dev;
    return DI_OK;
}

static const di_dev_info_t *
dev_info(const di_dev_t *dev)
{
    return &dev->info;
}

static int
buf_alloc(di_dev_t *dev, size_t bytes, di_buf_t **out)
{
    di_buf_t *buf;

    (void) dev;
    buf = malloc(sizeof(*buf));
    if (buf == NULL)
        return DI_ENOMEM;
    buf->bytes = bytes ? bytes : 1;
    buf->data = di_cpu_map(buf->bytes);
    if (buf->data == NULL) {
        free(buf);
        return DI_ENOMEM;
    }
    *out = buf;
    return DI_OK;
}

static void
buf_free(di_dev_t *dev, di_buf_t *buf)
{
    (void) dev;
    if (buf == NULL)
        return;
    di_cpu_unmap(buf->data, buf->bytes);
    free(buf);
}

static void *
buf_map(di_buf_t *buf)
{
    return buf->data;
}

static size_t
act_bytes(const di_dev_t *dev, size_t k)
{
    return dev->kern->act_bytes(k);
}

static size_t
kv_block_bytes(const di_dev_t *dev, const di_kv_geom_t *geom)
{
    return (size_t) geom->n_layers * geom->n_kv_heads * 2
           * DI_CPU_KV_TOKENS * geom->head_dim * dev->kern->kv_value_bytes;
}

/* Best first within an arithmetic; AUTO takes the first usable one. */
const di_cpu_kern_t *const di_cpu_kerns[] = {
    &di_cpu_bf16_amx,
    &di_cpu_q8_avx512bf16,
    &di_cpu_q8_avx512,
    &di_cpu_q8_avxvnni,
    &di_cpu_q8_avx2,
    &di_cpu_q8_ref,
    &di_cpu_bf16_ref,
    &di_cpu_mx_amx,
    &di_cpu_mx_avx512bf16,
    &di_cpu_mx_avx512,
    &di_cpu_mx_avx2,
    &di_cpu_mx_ref,
    &di_cpu_f32_avx512,
    &di_cpu_f32_avx2,
    &di_cpu_f32_ref,
    NULL,
};

const di_ops_t *
di_ops_cpu(void)
{
    static const di_ops_t ops = {
        .name = "cpu",
        .dev_open = dev_open,
        .dev_close = dev_close,
        .dev_info = dev_info,
        .buf_alloc = buf_alloc,
        .buf_free = buf_free,
        .buf_map = buf_map,
        .weight_open = di_cpu_weight_open,
        .weight_close = di_cpu_weight_close,
        .weight_bytes = di_cpu_weight_bytes,
        .experts_open = di_cpu_experts_open,
        .experts_close = di_cpu_experts_close,
        .experts_bytes = di_cpu_experts_bytes,
        .act_bytes = act_bytes,
        .kv_block_bytes = kv_block_bytes,
        .stream_open = di_cpu_stream_open,
        .stream_close = di_cpu_stream_close,
        .stream_sync = di_cpu_stream_sync,
        .copy_in = di_cpu_copy_in,
        .copy_out = di_cpu_copy_out,
        .copy = di_cpu_copy,
        .host_call = di_cpu_host_call,
        .graph_begin = di_cpu_graph_begin,
        .graph_end = di_cpu_graph_end,
        .graph_launch = di_cpu_graph_launch,
        .graph_free = di_cpu_graph_free,
        .embed = di_cpu_embed,
        .norm = di_cpu_norm,
        .matmul = di_cpu_matmul,
        .silu_mul = di_cpu_silu_mul,
        .swiglu = di_cpu_swiglu,
        .convert = di_cpu_convert,
        .route = di_cpu_route,
        .matmul_experts = di_cpu_matmul_experts,
        .sum_rows = di_cpu_sum_rows,
        .rope_store = di_cpu_rope_store,
        .attention = di_cpu_attention,
        .kv_copy = di_cpu_kv_copy,
        .hc_start = di_cpu_hc_start,
        .hc_post = di_cpu_hc_post,
        .hc_mix = di_cpu_hc_mix,
        .hc_end = di_cpu_hc_end,
        .hc_mean = di_cpu_hc_mean,
        .gather = di_cpu_gather,
        .table_rows = di_cpu_table_rows,
        .engram_add = di_cpu_engram_add,
        .rotate = di_cpu_rotate,
        .window_make = di_cpu_window_make,
        .window_store = di_cpu_window_store,
        .compress = di_cpu_compress,
        .pairs_store = di_cpu_pairs_store,
        .entry_store = di_cpu_entry_store,
        .index_select = di_cpu_index_select,
        .sparse_attention = di_cpu_sparse_attention,
    };

    return &ops;
}
