/*
 * kernels.c - speed of the CPU backend against this run's own limits.
 *
 *     build/bench/kernels [THREADS [ARITH [OPS [limits]]]]     2 auto best
 *
 * First the machine's limits, measured now: read bandwidth and the peaks of
 * float32 FMA, int8, bfloat16 and AMX.  Then the products of a decode step and
 * of a prefill of SmolLM2-135M's shapes, attention 2,000 tokens deep, and what
 * an op costs by itself; with ARITH mx products with E4M3 and E2M1 weights and
 * with experts.
 * Each line: best and median of the runs, and the share of the bound.
 * Weights of 30 layers take turns, as they do in a model, so that no cache
 * nearer than the third holds them.  `limits` stops after the first part.
 */

#include "../../kernels/di_kernels.h"
#include "../../kernels/wtype.h"

#include <immintrin.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LAYERS  30
#define RUNS    15

static const di_ops_t *ops;
static di_dev_t *dev;
static di_stream_t *stream;
static uint32_t n_threads = 2;

static double best, median;      /* seconds, of the last measure()          */
static double read_rate;         /* bytes per second, all threads           */
static double mac_rate;          /* products per second of the arithmetic   */

static double
now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double) t.tv_sec + (double) t.tv_nsec * 1e-9;
}

static int
compare(const void *a, const void *b)
{
    double x = *(const double *) a, y = *(const double *) b;

    return x < y ? -1 : x > y;
}

/* Time fn, which launches work, up to the sync behind it. */
static void
measure(void (*fn)(void *), void *arg, int runs)
{
    double t[64];

    for (int i = -1; i < runs; i++) {            /* the first warms up     */
        double start = now();

        fn(arg);
        if (ops->stream_sync(stream) != DI_OK)
            abort();
        if (i >= 0)
            t[i] = now() - start;
    }
    qsort(t, (size_t) runs, sizeof(t[0]), compare);
    best = t[0];
    median = t[runs / 2];
}

static void *
must(void *p)
{
    if (p == NULL) {
        fprintf(stderr, "kernels: no memory\n");
        exit(1);
    }
    return p;
}

static di_view_t
buffer(size_t bytes, void **host)
{
    di_view_t view = { NULL, 0 };

    if (ops->buf_alloc(dev, bytes, &view.buf) != DI_OK)
        must(NULL);
    *host = ops->buf_map(view.buf);
    return view;
}

/* -- limits ---------------------------------------------------------------- */

#define READ_BYTES (256u << 20)

static uint8_t *memory;          /* READ_BYTES per thread                   */
static volatile uint64_t sink;

static void
read_part(void *arg, size_t part)
{
    const uint64_t *p = (const void *) (memory + part * (READ_BYTES / 64));
    uint64_t a = 0, b = 0, c = 0, d = 0;

    (void) arg;
    for (size_t i = 0; i < READ_BYTES / 64 / 8; i += 32) {
        a ^= p[i];
        b ^= p[i + 8];
        c ^= p[i + 16];
        d ^= p[i + 24];
    }
    sink = a ^ b ^ c ^ d;
}

static void
read_all(void *arg)
{
    ops->host_call(stream, read_part, arg, 64u * n_threads);
}

#define SPIN_ROUNDS 20000

/* Twelve independent sums of one instruction: enough to hide how long it
 * takes. */
#define SPIN(name, isa, type, x_value, sum)                                 \
__attribute__((target(isa)))                                                \
static void                                                                 \
name(void *arg, size_t part)                                                \
{                                                                           \
    type a[12], x = x_value;                                                \
                                                                            \
    (void) arg;                                                             \
    (void) part;                                                            \
    for (int i = 0; i < 12; i++)                                            \
        a[i] = x;                                                           \
    for (int n = 0; n < SPIN_ROUNDS; n++) {                                 \
        _Pragma("GCC unroll 12")                                            \
        for (int i = 0; i < 12; i++) {                                      \
            a[i] = sum;                                                     \
            __asm__ volatile("" : "+x"(x));                                 \
        }                                                                   \
    }                                                                       \
    for (int i = 0; i < 12; i++)                                            \
        __asm__ volatile("" : : "x"(a[i]));                                 \
}

SPIN(spin_fma256, "avx2,fma", __m256, _mm256_set1_ps(0.5f),
     _mm256_fmadd_ps(a[i], x, x))
/* Products of bytes, added by twos in 16 bits: what AVX2 has. */
SPIN(spin_int8_256, "avx2", __m256i, _mm256_set1_epi8(1),
     _mm256_add_epi16(a[i], _mm256_maddubs_epi16(x, x)))
SPIN(spin_fma, "avx512f", __m512, _mm512_set1_ps(0.5f),
     _mm512_fmadd_ps(a[i], x, x))
SPIN(spin_vnni, "avx512f,avx512vnni", __m512i, _mm512_set1_epi8(1),
     _mm512_dpbusd_epi32(a[i], x, x))
SPIN(spin_bf16, "avx512f,avx512bf16", __m512, _mm512_set1_ps(0.5f),
     _mm512_dpbf16_ps(a[i], (__m512bh) x, (__m512bh) x))

__attribute__((target("amx-tile,amx-bf16,amx-int8")))
static void
spin_amx(void *arg, size_t part)
{
    struct { uint8_t palette, rest[15]; uint16_t bytes[16]; uint8_t rows[16];
    } t = { 0 };

    (void) part;
    t.palette = 1;
    for (int i = 0; i < 8; i++) {
        t.bytes[i] = 64;
        t.rows[i] = 16;
    }
    __asm__ volatile("ldtilecfg %0" : : "m"(t));
    for (int n = 0; n < SPIN_ROUNDS; n++) {
        if (arg) {
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 5, 6);
            _tile_dpbf16ps(2, 4, 7);
            _tile_dpbf16ps(3, 5, 7);
        } else {
            _tile_dpbssd(0, 4, 6);
            _tile_dpbssd(1, 5, 6);
            _tile_dpbssd(2, 4, 7);
            _tile_dpbssd(3, 5, 7);
        }
    }
    _tile_release();
}

typedef struct {
    void (*fn)(void *, size_t);
    void  *arg;
} spin_t;

static void
spin_all(void *arg)
{
    spin_t *s = arg;

    ops->host_call(stream, s->fn, s->arg, n_threads);
}

static double
peak(const char *what, void (*fn)(void *, size_t), void *arg, double macs)
{
    spin_t s = { fn, arg };
    double rate;

    measure(spin_all, &s, RUNS);
    rate = macs * SPIN_ROUNDS * n_threads / best;
    printf("%-28s %9.0f G products/s\n", what, rate * 1e-9);
    return rate;
}

static void
limits(void)
{
    bool amx = strstr(ops->dev_info(dev)->arith_name, "amx") != NULL;
    di_arith_t arith = ops->dev_info(dev)->arith;
    double fma = 0, int8 = 0, bf16 = 0;

    memory = must(aligned_alloc(4096, (size_t) READ_BYTES * n_threads));
    memset(memory, 1, (size_t) READ_BYTES * n_threads);
    measure(read_all, NULL, 7);
    read_rate = (double) READ_BYTES * n_threads / best;
    printf("%-28s %9.1f GB/s\n", "read", read_rate * 1e-9);
    free(memory);

    if (__builtin_cpu_supports("avx512f"))
        fma = peak("float32 FMA, AVX-512", spin_fma, NULL, 12 * 16);
    else if (__builtin_cpu_supports("fma"))
        fma = peak("float32 FMA, AVX2", spin_fma256, NULL, 12 * 8);
    if (__builtin_cpu_supports("avx512vnni"))
        int8 = peak("int8, VNNI", spin_vnni, NULL, 12 * 64);
    else if (__builtin_cpu_supports("avx2"))
        int8 = peak("int8, AVX2", spin_int8_256, NULL, 12 * 32);
    if (__builtin_cpu_supports("avx512bf16"))
        bf16 = peak("bfloat16, AVX-512", spin_bf16, NULL, 12 * 32);
    if (amx) {
        peak("int8, AMX", spin_amx, NULL, 4 * 16 * 16 * 64);
        bf16 = peak("bfloat16, AMX", spin_amx, &bf16, 4 * 16 * 16 * 32);
    }
    mac_rate = arith == DI_ARITH_BF16 ? bf16
               : arith == DI_ARITH_Q8 ? int8
               : arith == DI_ARITH_MX && bf16 > 0 ? bf16 : fma;
}

/* -- products -------------------------------------------------------------- */

typedef struct {
    const char *name;
    di_wtype_t  type;
    size_t      n;
    size_t      k;
    size_t      layers;
    di_weight_t *w[LAYERS];
} shape_t;

static shape_t shapes[] = {
    { "qkv",     DI_W_Q4_1, 960,   576,  LAYERS, { NULL } },
    { "out",     DI_W_Q4_1, 576,   576,  LAYERS, { NULL } },
    { "gate+up", DI_W_Q4_1, 3072,  576,  LAYERS, { NULL } },
    { "down",    DI_W_Q4_1, 576,   1536, LAYERS, { NULL } },
    { "head",    DI_W_Q8_0, 49152, 576,  1,      { NULL } },
};

#define N_SHAPES (sizeof(shapes) / sizeof(shapes[0]))

typedef struct {
    const shape_t *shape;
    di_view_t      act;
    di_view_t      out;
    size_t         rows;
    size_t         layers;       /* whose products are made                 */
} product_t;

static void
launch_products(void *arg)
{
    product_t *p = arg;
    di_view_t none = { NULL, 0 };

    for (size_t i = 0; i < p->layers; i++)
        ops->matmul(stream, p->out, p->act, p->shape->w[i], none, p->rows);
}

static void
launch_step(void *arg)
{
    product_t *p = arg;
    di_view_t none = { NULL, 0 };

    for (size_t i = 0; i < LAYERS; i++)
        for (size_t s = 0; s + 1 < N_SHAPES; s++)
            ops->matmul(stream, p->out, p->act, shapes[s].w[i], none,
                        p->rows);
    ops->matmul(stream, p->out, p->act, shapes[N_SHAPES - 1].w[0], none,
                p->rows < 16 ? p->rows : 1);
}

static void
open_weights(void)
{
    size_t bytes, total = 0;
    double start, spent = 0;
    di_wpart_t part;
    uint8_t *data;

    for (size_t s = 0; s < N_SHAPES; s++) {
        shape_t *h = &shapes[s];

        bytes = di_wtype_bytes(h->type, h->n * h->k);
        data = must(malloc(bytes));
        for (size_t i = 0; i < bytes; i++)
            data[i] = (uint8_t) (i * 2654435761u >> 24 & 0x3f);
        part = (di_wpart_t) { h->type, data, h->n, NULL };
        for (size_t i = 0; i < h->layers; i++) {
            start = now();
            if (ops->weight_open(dev, &part, 1, h->k, &h->w[i], NULL)
                != DI_OK)
                must(NULL);
            spent += now() - start;
            total += ops->weight_bytes(h->w[i]);
        }
    }
    printf("opened %.1f MB of weights in %.3f s\n", (double) total * 1e-6,
           spent);
}

static void
print_products(const char *name, size_t rows, double count, double macs,
               double bytes, double rate)
{
    double memory_s = bytes / read_rate, math_s = macs / rate;

    printf("%-10s %4zu rows %10.1f us %10.1f us  %5.1f GB/s %7.0f G/s  "
           "%3.0f %% of %s\n", name, rows, best / count * 1e6,
           median / count * 1e6, bytes / best * 1e-9, macs / best * 1e-9,
           (memory_s > math_s ? memory_s : math_s) / best * 100,
           memory_s > math_s ? "read" : "peak");
}

static void
products(void)
{
    static const size_t rows[] = { 1, 2, 4, 8, 16, 32, 64, 512 };
    double macs, bytes;
    product_t p;
    void *host;

    p.act = buffer(512 * ops->act_bytes(dev, 1536), &host);
    p.out = buffer(512 * 49152 * sizeof(float), &host);
    for (size_t r = 0; r < sizeof(rows) / sizeof(rows[0]); r++) {
        double all_macs = 0, all_bytes = 0;

        p.rows = rows[r];
        for (size_t s = 0; s < N_SHAPES; s++) {
            shape_t *h = &shapes[s];
            double n = (double) h->layers;

            p.shape = h;
            p.layers = h->layers;
            macs = (double) (h->n * h->k * p.rows) * n;
            bytes = (double) ops->weight_bytes(h->w[0]) * n;
            if (s + 1 == N_SHAPES && p.rows > 16) {
                macs /= (double) p.rows;
                all_macs += macs;
                all_bytes += bytes;
                continue;
            }
            all_macs += macs;
            all_bytes += bytes;
            measure(launch_products, &p, p.rows > 64 ? 5 : RUNS);
            print_products(h->name, p.rows, n, macs, bytes, mac_rate);
        }
        measure(launch_step, &p, p.rows > 64 ? 5 : RUNS);
        print_products("step", p.rows, 1, all_macs, all_bytes, mac_rate);
    }
    ops->buf_free(dev, p.act.buf);
    ops->buf_free(dev, p.out.buf);
}

/* -- micro formats and experts --------------------------------------------- */

enum { MICRO_N = 2048, MICRO_K = 2048, MICRO_LAYERS = 24, EXPERTS = 32,
       TOP_K = 6 };

static uint8_t *
random_bytes(size_t bytes, uint8_t mask, uint8_t base)
{
    uint8_t *p = must(malloc(bytes));
    uint32_t x = 12345;

    for (size_t i = 0; i < bytes; i++) {
        x = x * 1664525u + 1013904223u;
        p[i] = (uint8_t) ((x >> 24 & mask) + base);
    }
    return p;
}

/* Layers' weights of a micro format, each with bytes of its own. */
static void
micro_open(shape_t *h)
{
    size_t bytes = di_wtype_bytes(h->type, h->n * h->k);
    di_wpart_t part = { .type = h->type, .n = h->n };

    for (size_t i = 0; i < h->layers; i++) {
        part.data = random_bytes(bytes, 0x7b, 0);
        part.scales = random_bytes(
            di_wtype_scale_bytes(h->type, h->n, h->k), 3, 120);
        if (ops->weight_open(dev, &part, 1, h->k, &h->w[i], NULL) != DI_OK)
            must(NULL);
    }
}

typedef struct {
    di_experts_t *w[4];          /* layers                                  */
    di_view_t     act;
    di_view_t     out;
    di_view_t     ids;
    size_t        rows;
    size_t        layers;        /* whose products are made                 */
} experts_t;

static void
launch_experts(void *arg)
{
    experts_t *e = arg;

    for (size_t i = 0; i < e->layers; i++)
        ops->matmul_experts(stream, e->out, e->act, e->w[i], e->ids,
                            e->rows * TOP_K, TOP_K);
}

static void
experts(const size_t *rows, size_t n_rows)
{
    size_t bytes = di_wtype_bytes(DI_W_E2M1_R32, MICRO_N * MICRO_K);
    uint8_t picked[EXPERTS];
    di_wpart_t parts[EXPERTS];
    experts_t e;
    double active;
    int32_t *ids;
    void *host;

    for (size_t i = 0; i < 4; i++) {
        for (size_t x = 0; x < EXPERTS; x++)
            parts[x] = (di_wpart_t) {
                DI_W_E2M1_R32, random_bytes(bytes, 0xff, 0), MICRO_N,
                random_bytes(MICRO_N * MICRO_K / 32, 3, 120)
            };
        if (ops->experts_open(dev, parts, 1, EXPERTS, MICRO_K, &e.w[i], NULL)
            != DI_OK)
            must(NULL);
    }
    e.act = buffer(512 * ops->act_bytes(dev, MICRO_K), &host);
    e.out = buffer((size_t) 512 * TOP_K * MICRO_N * sizeof(float), &host);
    e.ids = buffer(512 * TOP_K * sizeof(*ids), &host);
    ids = host;
    for (size_t i = 0; i < n_rows; i++) {
        e.rows = rows[i];
        memset(picked, 0, sizeof(picked));
        for (size_t r = 0; r < e.rows * TOP_K; r++) {
            ids[r] = (int32_t) ((r * 2654435761u >> 11) % EXPERTS);
            picked[ids[r]] = 1;
        }
        active = 0;
        for (size_t x = 0; x < EXPERTS; x++)
            active += picked[x];
        e.layers = e.rows > 16 ? 1 : 4;
        measure(launch_experts, &e, RUNS);
        print_products("experts", e.rows, (double) e.layers,
                       (double) (e.layers * e.rows * TOP_K)
                       * MICRO_N * MICRO_K,
                       (double) (e.layers * ops->experts_bytes(e.w[0]))
                       * active / EXPERTS, mac_rate);
    }
}

static void
micro_products(void)
{
    static shape_t micro[] = {
        { "E4M3", DI_W_E4M3_B32, MICRO_N, MICRO_K, MICRO_LAYERS, { NULL } },
        { "E2M1", DI_W_E2M1_R32, MICRO_N, MICRO_K, MICRO_LAYERS, { NULL } },
    };
    static const size_t rows[] = { 1, 2, 4, 16, 64, 256 };
    size_t n_rows = sizeof(rows) / sizeof(rows[0]);
    product_t p;
    void *host;

    p.act = buffer(512 * ops->act_bytes(dev, MICRO_K), &host);
    p.out = buffer(512 * MICRO_N * sizeof(float), &host);
    for (size_t s = 0; s < 2; s++) {
        micro_open(&micro[s]);
        p.shape = &micro[s];
        for (size_t i = 0; i < n_rows; i++) {
            p.rows = rows[i];
            p.layers = p.rows > 16 ? 1 : MICRO_LAYERS;
            measure(launch_products, &p, RUNS);
            print_products(micro[s].name, p.rows, (double) p.layers,
                           (double) (MICRO_N * MICRO_K * p.rows * p.layers),
                           (double) (ops->weight_bytes(micro[s].w[0])
                                     * p.layers),
                           mac_rate);
        }
    }
    experts(rows, n_rows);
    ops->buf_free(dev, p.act.buf);
    ops->buf_free(dev, p.out.buf);
}

/* -- the other operators --------------------------------------------------- */

typedef struct {
    di_kv_geom_t geom;
    di_rows_t    rows;
    di_view_t    kv;
    di_view_t    qkv;
    di_view_t    y;
    di_view_t    freqs;
    di_view_t    x;
    di_view_t    w;
} attn_t;

static void
launch_attention(void *arg)
{
    attn_t *a = arg;

    for (uint32_t l = 0; l < LAYERS; l++)
        ops->attention(stream, a->y, a->qkv, 9, a->kv, &a->geom, l, &a->rows,
                       0.125f);
}

static void
launch_rope(void *arg)
{
    attn_t *a = arg;

    for (uint32_t l = 0; l < LAYERS; l++)
        ops->rope_store(stream, a->qkv, 9, a->kv, &a->geom, l, &a->rows,
                        a->freqs, DI_ROPE_PAIRS);
}

static void
launch_norm(void *arg)
{
    attn_t *a = arg;
    di_view_t none = { NULL, 0 };

    for (uint32_t l = 0; l < LAYERS; l++)
        ops->norm(stream, a->y, a->x, a->x, a->w, 1e-5f, none,
                  a->rows.n_rows, 576);
}

static void
launch_silu(void *arg)
{
    attn_t *a = arg;

    for (uint32_t l = 0; l < LAYERS; l++)
        ops->silu_mul(stream, a->y, a->x, a->rows.n_rows, 1536);
}

/* n rows of one sequence, the last at position depth - 1. */
static void
attention(uint32_t n, uint32_t depth)
{
    uint32_t blocks = (depth + 15) / 16;
    attn_t a = { .geom = { LAYERS, 3, 64, 16 } };
    size_t kv_bytes;
    int32_t *i32;
    float *f;
    void *host;

    kv_bytes = (blocks + 1) * ops->kv_block_bytes(dev, &a.geom);
    a.kv = buffer(kv_bytes, &host);
    a.rows.n_rows = n;
    a.rows.n_seqs = 1;
    a.rows.table_stride = blocks;
    a.rows.positions = buffer(n * 4, &host);
    i32 = host;
    for (uint32_t i = 0; i < n; i++)
        i32[i] = (int32_t) (depth - n + i);
    a.rows.seq_first = buffer(8, &host);
    i32 = host;
    i32[0] = 0;
    i32[1] = (int32_t) n;
    a.rows.tables = buffer(blocks * 4, &host);
    i32 = host;
    for (uint32_t i = 0; i < blocks; i++)
        i32[i] = (int32_t) (1 + i * 7 % blocks);
    a.qkv = buffer((size_t) n * 15 * 64 * 4, &host);
    a.y = buffer(n * ops->act_bytes(dev, 1536), &host);
    a.x = buffer((size_t) n * 3072 * 4, &host);
    a.w = buffer(3072 * 4, &host);
    a.freqs = buffer(32 * 4, &host);
    f = host;
    for (int i = 0; i < 32; i++)
        f[i] = 1.0f / (float) (1 + i * i);

    measure(launch_attention, &a, RUNS);
    printf("attention, %u rows at %u: %.1f us, median %.1f, per layer %.2f; "
           "reading its KV %.1f us\n", n, depth, best * 1e6, median * 1e6,
           best / LAYERS * 1e6, (double) kv_bytes / read_rate * 1e6);
    measure(launch_rope, &a, RUNS);
    printf("rope_store, %u rows: %.2f us per layer\n", n,
           best / LAYERS * 1e6);
    measure(launch_norm, &a, RUNS);
    printf("norm, %u rows: %.2f us per layer\n", n, best / LAYERS * 1e6);
    measure(launch_silu, &a, RUNS);
    printf("silu_mul, %u rows: %.2f us per layer\n", n,
           best / LAYERS * 1e6);

    ops->buf_free(dev, a.kv.buf);
    ops->buf_free(dev, a.rows.positions.buf);
    ops->buf_free(dev, a.rows.seq_first.buf);
    ops->buf_free(dev, a.rows.tables.buf);
    ops->buf_free(dev, a.qkv.buf);
    ops->buf_free(dev, a.y.buf);
    ops->buf_free(dev, a.x.buf);
    ops->buf_free(dev, a.w.buf);
    ops->buf_free(dev, a.freqs.buf);
}

static void
nothing(void *arg, size_t part)
{
    (void) arg;
    (void) part;
}

static void
launch_nothing(void *arg)
{
    for (int i = 0; i < 400; i++)
        ops->host_call(stream, nothing, NULL, *(size_t *) arg);
}

static void
overhead(void)
{
    size_t parts[] = { 1, 2, 8 };

    for (size_t i = 0; i < 3; i++) {
        measure(launch_nothing, &parts[i], RUNS);
        printf("an empty op of %zu parts: %.3f us\n", parts[i],
               best / 400 * 1e6);
    }
}

int
main(int argc, char **argv)
{
    di_dev_conf_t conf = { .pin = true, .spin_us = 100 };
    const char *arith = argc > 2 ? argv[2] : "auto";
    di_err_t err = { 0 };

    if (argc > 1)
        n_threads = (uint32_t) atoi(argv[1]);
    conf.n_threads = n_threads;
    conf.ops = argc > 3 && strcmp(argv[3], "best") != 0 ? argv[3] : NULL;
    conf.arith = strcmp(arith, "f32") == 0 ? DI_ARITH_F32
                 : strcmp(arith, "bf16") == 0 ? DI_ARITH_BF16
                 : strcmp(arith, "q8") == 0 ? DI_ARITH_Q8
                 : strcmp(arith, "mx") == 0 ? DI_ARITH_MX : DI_ARITH_AUTO;

    ops = di_ops_cpu();
    if (ops->dev_open(&conf, &dev, &err) != DI_OK
        || ops->stream_open(dev, &stream) != DI_OK)
    {
        fprintf(stderr, "kernels: %s\n", err.text);
        return 1;
    }
    printf("%s, %u threads, %s\n", ops->dev_info(dev)->cpu, n_threads,
           ops->dev_info(dev)->arith_name);

    limits();
    if (argc > 4)
        return 0;
    overhead();
    if (ops->dev_info(dev)->arith == DI_ARITH_MX) {
        micro_products();        /* and none with GGUF's formats            */
        ops->stream_close(stream);
        ops->dev_close(dev);
        return 0;
    }
    open_weights();
    products();
    attention(1, 100);
    attention(1, 2000);
    attention(512, 512);
    attention(512, 2048);

    for (size_t s = 0; s < N_SHAPES; s++)
        for (size_t i = 0; i < shapes[s].layers; i++)
            ops->weight_close(dev, shapes[s].w[i]);
    ops->stream_close(stream);
    ops->dev_close(dev);
    return 0;
}
