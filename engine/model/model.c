/*
 * model.c - the part of a model that all families share.
 *
 * Opening is strict and front-loaded: every key and tensor is checked before
 * the first weight is repacked, and all memory that a step needs is taken
 * then, so that a step allocates nothing.  A step's inputs (ids, positions,
 * first rows, block tables, wanted rows) lie in one device buffer; where the
 * device maps its memory they are written in place, otherwise they are
 * staged in host memory and copied on the stream.  The same holds, the other
 * way round, for logits.
 *
 * Rows go in an order of ours: sequences without wanted logits first, so
 * that the last layer, which for them ends at its keys and values, computes
 * the rest of it for a contiguous tail only.  A long prompt's prefill gains
 * one layer in n_layers.
 *
 * Block tables are packed with the stride of the longest sequence of the
 * step, not of the longest possible one: decoding short chats stays within
 * a few cache lines.  Unused entries are 0, and block 0 of the arena exists,
 * so that even a kernel that prefetches past a table reads our memory.
 */

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "di_family.h"

/* Logits rows of a step are bounded apart from its rows: a long prompt whose
 * log-probabilities are wanted is cut to so many rows a step. */
#define LOGITS_MIN 128

/* State slots beyond those of running sequences, when nobody says how many:
 * copies that the prefix cache needs. */
#define STATES_SPARE 8

/* A barrier is crossed in a few microseconds when every thread has a core;
 * past that another process has it, and spinning would keep it longer. */
#define SPIN_US 20

static const di_family_t *const families[] = {
    &di_family_llama, &di_family_qwen2, &di_family_deepseek_v41,
};

#define N_FAMILIES (sizeof(families) / sizeof(families[0]))

void
di_family_floats(const di_gguf_tensor_t *t, size_t n, float *dst)
{
    di_dequantise((di_wtype_t) t->type, t->data, n, dst);
}

int
di_family_put(di_model_t *m, di_view_t dst, const void *src, size_t bytes,
              di_err_t *err)
{
    uint8_t *host = m->ops->buf_map(dst.buf);

    if (host != NULL) {
        memcpy(host + dst.offset, src, bytes);
        return DI_OK;
    }
    m->ops->copy_in(m->stream, dst, src, bytes);
    if (m->ops->stream_sync(m->stream) != DI_OK)
        return di_err_set(err, DI_EIO, 0, "copy to the device failed");
    return DI_OK;
}

/* -------------------------------------------------------------- opening -- */

static int
find_family(di_model_t *m, const di_load_t *load, di_err_t *err)
{
    for (size_t i = 0; i < N_FAMILIES; i++) {
        if (families[i]->read != NULL
            && strcmp(load->arch, families[i]->arch) == 0) {
            m->family = families[i];
            return DI_OK;
        }
    }
    return di_err_set(err, DI_EUNSUPPORTED, 0,
                      "architecture %s is not supported", load->arch);
}

/* The last part of a path; a directory's may end in a slash. */
static di_str_t
base_name(const char *path)
{
    size_t len = strlen(path), at;

    while (len > 1 && path[len - 1] == '/')
        len--;
    for (at = len; at > 0 && path[at - 1] != '/'; )
        at--;
    return (di_str_t) { path + at, len - at };
}

/* general.name, or the path's base name; printable, cut to fit. */
static void
set_name(di_model_t *m, const char *path)
{
    di_str_t name;
    size_t   len;

    if (m->gguf == NULL
        || di_gguf_str(m->gguf, "general.name", &name) != DI_OK
        || name.len == 0)
        name = base_name(path);

    len = name.len < sizeof(m->info.name) ? name.len
                                          : sizeof(m->info.name) - 1;
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char) name.data[i];

        m->info.name[i] = c < 0x20 || c > 0x7e ? '_' : (char) c;
    }
    m->info.name[len] = '\0';
}

/* The vocabulary and the embedding must be of one size: an id that the
 * tokenizer doesn't know could be drawn otherwise. */
static int
check_vocab(const di_model_t *m, di_err_t *err)
{
    uint64_t n;

    if (di_gguf_array(m->gguf, "tokenizer.ggml.tokens", &n) == DI_OK
        && n != m->info.vocab)
        return di_err_set(err, DI_EFORMAT, 0,
                          "tokenizer.ggml.tokens has %llu entries, tensor "
                          "token_embd.weight %u rows", (unsigned long long) n,
                          m->info.vocab);
    return DI_OK;
}

static int
read_file(di_model_t *m, const char *path, di_err_t *err)
{
    di_load_t load;
    int       rc;

    rc = di_gguf_open(path, &m->gguf, err);
    if (rc != DI_OK)
        return rc;
    rc = di_load_init(&load, m->gguf, err);
    if (rc != DI_OK)
        return rc;

    rc = find_family(m, &load, err);
    if (rc == DI_OK)
        rc = m->family->read(m, &load);
    if (rc == DI_OK)
        rc = di_load_finish(&load);
    if (rc == DI_OK)
        rc = check_vocab(m, err);
    if (rc == DI_OK) {
        (void) snprintf(m->info.family, sizeof(m->info.family), "%s",
                        load.arch);
        set_name(m, path);
        rc = di_gguf_fingerprint(m->gguf, m->info.fingerprint);
        if (rc != DI_OK)
            (void) di_err_set(err, rc, 0, "out of memory");
    }
    di_load_deinit(&load);
    return rc;
}

/* The only family of directories says itself what it does not take. */
static int
read_dir(di_model_t *m, const char *path, di_err_t *err)
{
    int rc;

    m->family = &di_family_deepseek_v41;
    rc = m->family->read_dir(m, path, err);
    if (rc == DI_OK) {
        (void) snprintf(m->info.family, sizeof(m->info.family), "%s",
                        m->family->arch);
        set_name(m, path);
    }
    return rc;
}

static bool
is_dir(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static int
open_device(di_model_t *m, di_err_t *err)
{
    di_dev_conf_t conf = {
        .arith = m->conf.arith == DI_ARITH_AUTO ? m->family->arith
                                                : m->conf.arith,
        .ops = m->conf.ops,
        .n_threads = m->conf.n_threads,
        .pin = m->conf.pin,
        .spin_us = SPIN_US,
    };
    int rc;

    m->ops = di_ops_cpu();
    rc = m->ops->dev_open(&conf, &m->dev, err);
    if (rc != DI_OK)
        return rc;
    rc = m->ops->stream_open(m->dev, &m->stream);
    if (rc != DI_OK)
        return di_err_set(err, rc, 0, "can't open a stream");

    m->dev_info = m->ops->dev_info(m->dev);
    (void) snprintf(m->info.arith, sizeof(m->info.arith), "%s",
                    m->dev_info->arith_name);
    m->info.n_threads = m->conf.n_threads;
    return DI_OK;
}

/* Check and resolve the lengths and counts of the configuration. */
static int
set_limits(di_model_t *m, di_err_t *err)
{
    di_model_conf_t *c = &m->conf;

    if (c->n_threads == 0 || c->max_rows == 0 || c->max_seqs == 0
        || c->max_seqs > c->max_rows)
        return di_err_set(err, DI_EINVAL, 0,
                          "threads, rows and sequences of a step must be at "
                          "least 1, and rows (%u) no fewer than sequences "
                          "(%u)", c->max_rows, c->max_seqs);

    if (c->max_model_len == 0)
        c->max_model_len = m->info.context_length;
    if (c->max_model_len > m->info.context_length)
        return di_err_set(err, DI_EINVAL, 0,
                          "model length %u exceeds the model's own %u",
                          c->max_model_len, m->info.context_length);

    if (m->info.state_bytes > 0)
        m->info.n_states = c->n_states != 0 ? c->n_states
                           : c->max_seqs + c->max_seqs / 5 + STATES_SPARE;
    m->info.max_model_len = c->max_model_len;
    m->info.max_logits = c->max_seqs > LOGITS_MIN ? c->max_seqs : LOGITS_MIN;
    if (m->info.max_logits > c->max_rows)
        m->info.max_logits = c->max_rows;
    return DI_OK;
}

static int
open_states(di_model_t *m, di_err_t *err)
{
    uint64_t bytes = (m->info.n_states + 1ull) * m->info.state_bytes;

    if (m->info.n_states == 0
        || m->ops->buf_alloc(m->dev, bytes, &m->states) == DI_OK)
        return DI_OK;
    return di_err_set(err, DI_ENOMEM, 0, "no memory for %llu MiB of "
                      "sequences' states", (unsigned long long) bytes >> 20);
}

static int
open_kv(di_model_t *m, di_err_t *err)
{
    const uint32_t tokens = m->info.block_tokens;
    uint64_t       need = (m->conf.max_model_len + tokens - 1) / tokens;
    uint64_t       block, n;

    if (m->info.kv_block_bytes == 0) {
        m->info.kv_block_bytes = m->ops->kv_block_bytes(m->dev, &m->geom);
        m->info.kv_token_bytes = m->info.kv_block_bytes / tokens;
    }
    block = m->info.kv_block_bytes;
    n = m->conf.kv_bytes == 0 ? need : m->conf.kv_bytes / block;
    if (n < need)
        return di_err_set(err, DI_ELIMIT, 0,
                          "KV memory of %llu MiB holds %llu tokens, fewer "
                          "than the model length %u: give more or lower the "
                          "length",
                          (unsigned long long) (m->conf.kv_bytes >> 20),
                          (unsigned long long) n * tokens,
                          m->conf.max_model_len);
    if (n >= INT32_MAX)
        n = INT32_MAX - 1;       /* block ids are int32 in device tables    */

    m->info.kv_blocks = (uint32_t) n;
    if (m->ops->buf_alloc(m->dev, (n + 1) * block, &m->kv) != DI_OK)
        return di_err_set(err, DI_ENOMEM, 0,
                          "no memory for %llu MiB of KV cache",
                          (unsigned long long) ((n + 1) * block >> 20));
    return open_states(m, err);
}

void *
di_family_host(di_model_t *m, di_buf_t *buf, size_t bytes)
{
    void *host = m->ops->buf_map(buf);

    return host != NULL ? host : calloc(1, bytes);
}

void
di_family_host_free(di_model_t *m, di_buf_t *buf, void *host)
{
    if (host != m->ops->buf_map(buf))
        free(host);
}

static int
open_buffers(di_model_t *m, di_err_t *err)
{
    size_t rows = m->conf.max_rows, seqs = m->conf.max_seqs;
    size_t stride = (m->conf.max_model_len + m->info.block_tokens - 1)
                    / m->info.block_tokens;
    size_t logits = (size_t) m->info.max_logits * m->info.vocab
                    * sizeof(float);
    size_t at = 0;

    m->ids_at = at;
    at += di_family_align(rows * sizeof(int32_t));
    m->positions_at = at;
    at += di_family_align(rows * sizeof(int32_t));
    m->seq_first_at = at;
    at += di_family_align((seqs + 1) * sizeof(int32_t));
    m->tail_positions_at = at;
    at += di_family_align(rows * sizeof(int32_t));
    m->tail_first_at = at;
    at += di_family_align((seqs + 1) * sizeof(int32_t));
    m->out_rows_at = at;
    at += di_family_align(m->info.max_logits * sizeof(int32_t));
    m->tables_at = at;
    at += di_family_align(seqs * stride * sizeof(int32_t));

    if (m->ops->buf_alloc(m->dev, at, &m->inputs) != DI_OK
        || m->ops->buf_alloc(m->dev, logits, &m->logits) != DI_OK)
        goto nomem;
    m->inputs_host = di_family_host(m, m->inputs, at);
    m->logits_host = di_family_host(m, m->logits, logits);
    m->placed = calloc(seqs, sizeof(*m->placed));
    if (m->inputs_host == NULL || m->logits_host == NULL
        || m->placed == NULL)
        goto nomem;

    m->info.step_bytes += at + logits;
    return DI_OK;

nomem:
    return di_err_set(err, DI_ENOMEM, 0, "no memory for a step's buffers");
}

int
di_model_open(const char *path, const di_model_conf_t *conf,
              di_model_t **model, di_err_t *err)
{
    di_model_t *m = calloc(1, sizeof(*m));
    int         rc;

    *model = NULL;
    if (m == NULL)
        return di_err_set(err, DI_ENOMEM, 0, "out of memory");
    m->conf = *conf;

    rc = is_dir(path) ? read_dir(m, path, err) : read_file(m, path, err);
    if (rc == DI_OK)
        rc = set_limits(m, err);
    if (rc == DI_OK)
        rc = open_device(m, err);
    if (rc == DI_OK)
        rc = open_kv(m, err);
    if (rc == DI_OK)
        rc = open_buffers(m, err);
    if (rc == DI_OK)
        rc = m->family->upload(m, err);

    if (rc != DI_OK) {
        di_model_close(m);
        return rc;
    }
    *model = m;
    return DI_OK;
}

static void
close_buffer(di_model_t *m, di_buf_t *buf, void *host)
{
    if (buf == NULL)
        return;
    di_family_host_free(m, buf, host);
    m->ops->buf_free(m->dev, buf);
}

void
di_model_close(di_model_t *m)
{
    if (m == NULL)
        return;
    if (m->stream != NULL)
        (void) m->ops->stream_sync(m->stream);
    if (m->family != NULL)
        m->family->close(m);
    if (m->dev != NULL) {
        close_buffer(m, m->logits, m->logits_host);
        close_buffer(m, m->inputs, m->inputs_host);
        if (m->kv != NULL)
            m->ops->buf_free(m->dev, m->kv);
        if (m->states != NULL)
            m->ops->buf_free(m->dev, m->states);
        if (m->stream != NULL)
            m->ops->stream_close(m->stream);
        m->ops->dev_close(m->dev);
    }
    if (m->gguf != NULL)
        di_gguf_close(m->gguf);
    free(m->placed);
    free(m);
}

const di_model_info_t *
di_model_info(const di_model_t *m)
{
    return &m->info;
}

size_t
di_model_n_tensors(const di_model_t *m)
{
    return m->gguf != NULL ? di_gguf_n_tensors(m->gguf)
                           : m->family->n_tensors(m);
}

void
di_model_tensor(const di_model_t *m, size_t i, di_model_tensor_t *t)
{
    const di_gguf_tensor_t *g;

    if (m->gguf == NULL) {
        m->family->tensor(m, i, t);
        return;
    }
    g = di_gguf_tensor(m->gguf, i);
    *t = (di_model_tensor_t) {
        .name = g->name.data, .name_len = g->name.len, .bytes = g->bytes,
        .type = di_wtype_name((di_wtype_t) g->type), .n_dims = g->n_dims,
        .data = g->data, .offset = di_gguf_offset(m->gguf, g->data) };
    memcpy(t->dims, g->dims, g->n_dims * sizeof(g->dims[0]));
}

/* ----------------------------------------------------------------- step -- */

static uint32_t
blocks_of(const di_model_t *m, const di_model_seq_t *s)
{
    const uint32_t tokens = m->info.block_tokens;

    return (s->pos + s->n_rows + tokens - 1) / tokens;
}

static bool
seq_is_valid(const di_model_t *m, const di_model_seq_t *s)
{
    uint32_t len = m->conf.max_model_len, n_blocks;

    if (s->n_rows == 0 || s->n_rows > len || s->pos > len - s->n_rows
        || s->n_logits > s->n_rows || s->slot > m->info.n_states
        || (s->slot == 0) != (m->info.n_states == 0))
        return false;

    for (uint32_t i = 0; i < s->n_rows; i++) {
        if ((uint32_t) s->tokens[i] >= m->info.vocab)
            return false;
    }
    n_blocks = blocks_of(m, s);
    for (uint32_t i = 0; i < n_blocks; i++) {
        if (s->blocks[i] == 0 || s->blocks[i] > m->info.kv_blocks)
            return false;
    }
    return true;
}

/* Check the step and count its rows; the widest block table is its stride. */
static int
measure(const di_model_t *m, const di_model_seq_t *seqs, size_t n_seqs,
        di_step_t *step)
{
    if (n_seqs == 0 || n_seqs > m->conf.max_seqs)
        return DI_EINVAL;

    for (size_t i = 0; i < n_seqs; i++) {
        uint32_t n_blocks;

        if (!seq_is_valid(m, &seqs[i])
            || seqs[i].n_rows > m->conf.max_rows - step->rows.n_rows
            || seqs[i].n_logits > m->info.max_logits - step->n_out)
            return DI_EINVAL;

        step->rows.n_rows += seqs[i].n_rows;
        step->n_out += seqs[i].n_logits;
        n_blocks = blocks_of(m, &seqs[i]);
        if (n_blocks > step->rows.table_stride)
            step->rows.table_stride = n_blocks;
    }
    step->rows.n_seqs = (uint32_t) n_seqs;
    return DI_OK;
}

/* Where a sequence stands in a step: none, some or all of its rows' logits
 * are wanted. */
static int
order_of(const di_model_seq_t *s)
{
    return s->n_logits == 0 ? 0 : s->n_logits < s->n_rows ? 1 : 2;
}

/* Write one sequence's rows, from `row` on, as the step's n-th sequence; its
 * wanted rows are the out-th and following ones. */
static void
place(di_model_t *m, const di_model_seq_t *s, uint32_t stride, size_t n,
      int32_t row, size_t out)
{
    int32_t *ids = (int32_t *) (m->inputs_host + m->ids_at) + row;
    int32_t *positions = (int32_t *) (m->inputs_host + m->positions_at) + row;
    int32_t *out_rows = (int32_t *) (m->inputs_host + m->out_rows_at) + out;
    int32_t *table = (int32_t *) (m->inputs_host + m->tables_at) + n * stride;
    uint32_t n_blocks = blocks_of(m, s);

    memcpy(ids, s->tokens, s->n_rows * sizeof(int32_t));
    for (uint32_t r = 0; r < s->n_rows; r++)
        positions[r] = (int32_t) (s->pos + r);
    for (uint32_t r = 0; r < s->n_logits; r++)
        out_rows[r] = row + (int32_t) (s->n_rows - s->n_logits + r);
    memcpy(table, s->blocks, n_blocks * sizeof(int32_t));
    memset(table + n_blocks, 0, (stride - n_blocks) * sizeof(int32_t));
}

/* The step's tail begins at row n_head: its positions and first rows. */
static void
lay_out_tail(di_model_t *m, di_step_t *step)
{
    const int32_t *positions = (int32_t *) (m->inputs_host + m->positions_at);
    const int32_t *first = (int32_t *) (m->inputs_host + m->seq_first_at);
    int32_t *tail_positions = (int32_t *) (m->inputs_host
                                           + m->tail_positions_at);
    int32_t *tail_first = (int32_t *) (m->inputs_host + m->tail_first_at);
    int32_t  head = (int32_t) step->n_head;

    step->tail = step->rows;
    if (step->n_head == 0)
        return;
    step->tail.n_rows -= step->n_head;
    step->tail.positions.offset = m->tail_positions_at;
    step->tail.seq_first.offset = m->tail_first_at;
    memcpy(tail_positions, positions + head,
           step->tail.n_rows * sizeof(int32_t));
    for (uint32_t i = 0; i <= step->rows.n_seqs; i++)
        tail_first[i] = first[i] > head ? first[i] - head : 0;
}

/* Rows go in the order of order_of(), wanted rows in the caller's order. */
static void
lay_out(di_model_t *m, const di_model_seq_t *seqs, di_step_t *step)
{
    int32_t *first = (int32_t *) (m->inputs_host + m->seq_first_at);
    size_t   n = 0;
    uint32_t row = 0;

    step->n_head = step->rows.n_rows;
    for (int order = 0; order < 3; order++) {
        size_t out = 0;

        for (size_t i = 0; i < step->rows.n_seqs; i++) {
            const di_model_seq_t *s = &seqs[i];

            if (order_of(s) == order) {
                first[n] = (int32_t) row;
                m->placed[n] = s;
                place(m, s, step->rows.table_stride, n++, (int32_t) row, out);
                row += s->n_rows;
                if (s->n_logits > 0 && row - s->n_logits < step->n_head)
                    step->n_head = row - s->n_logits;
            }
            out += s->n_logits;
        }
    }
    first[n] = (int32_t) row;
    lay_out_tail(m, step);
}

/* Copy what lay_out() staged to a device without mapped memory. */
static void
copy_inputs(di_model_t *m, const di_step_t *step)
{
    const struct { di_view_t view; size_t n; } parts[] = {
        { step->ids, step->rows.n_rows },
        { step->rows.positions, step->rows.n_rows },
        { step->rows.seq_first, step->rows.n_seqs + 1 },
        { { m->inputs, m->tail_positions_at },
          step->n_head > 0 ? step->tail.n_rows : 0 },
        { { m->inputs, m->tail_first_at },
          step->n_head > 0 ? step->rows.n_seqs + 1 : 0 },
        { step->out_rows, step->n_out },
        { step->rows.tables,
          (size_t) step->rows.n_seqs * step->rows.table_stride },
    };

    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        if (parts[i].n > 0)
            m->ops->copy_in(m->stream, parts[i].view,
                            m->inputs_host + parts[i].view.offset,
                            parts[i].n * sizeof(int32_t));
    }
}

int
di_model_step(di_model_t *m, const di_model_seq_t *seqs, size_t n_seqs)
{
    di_step_t step = {
        .rows.positions = { m->inputs, m->positions_at },
        .rows.seq_first = { m->inputs, m->seq_first_at },
        .rows.tables = { m->inputs, m->tables_at },
        .ids = { m->inputs, m->ids_at },
        .out_rows = { m->inputs, m->out_rows_at },
        .logits = { m->logits, 0 },
        .seqs = m->placed,
    };
    bool mapped = m->ops->buf_map(m->inputs) != NULL;

    assert(!m->launched);
    if (measure(m, seqs, n_seqs, &step) != DI_OK)
        return DI_EINVAL;

    lay_out(m, seqs, &step);
    if (!mapped)
        copy_inputs(m, &step);
    m->family->forward(m, &step);
    if (!mapped && step.n_out > 0)
        m->ops->copy_out(m->stream, m->logits_host, step.logits,
                         (size_t) step.n_out * m->info.vocab * sizeof(float));
    m->launched = true;
    return DI_OK;
}

int
di_model_draft(di_model_t *m, const di_model_draft_t *seqs, size_t n_seqs,
               di_model_pick_t pick, void *arg, int32_t *drafts,
               float *confidence)
{
    assert(!m->launched && m->info.n_drafts > 0);
    assert(n_seqs <= m->conf.max_seqs);
    return m->family->draft(m, seqs, n_seqs, pick, arg, drafts, confidence);
}

void
di_model_host_call(di_model_t *m, void (*fn)(void *, size_t), void *arg,
                   size_t n_parts)
{
    m->ops->host_call(m->stream, fn, arg, n_parts);
}

int
di_model_wait(di_model_t *m, const float **logits)
{
    int rc = m->ops->stream_sync(m->stream);

    m->launched = false;
    *logits = m->logits_host;
    return rc;
}

const float *
di_model_logits(const di_model_t *m)
{
    return m->logits_host;
}

void
di_model_kv_copy(di_model_t *m, uint32_t dst, uint32_t src, uint32_t n_tokens)
{
    assert(dst >= 1 && dst <= m->info.kv_blocks);
    assert(src >= 1 && src <= m->info.kv_blocks && src != dst);
    assert(n_tokens <= m->info.block_tokens);
    m->family->kv_copy(m, dst, src, n_tokens);
}

void
di_model_state_copy(di_model_t *m, uint32_t dst, uint32_t src)
{
    const di_view_t to = { m->states, dst * m->info.state_bytes };
    const di_view_t from = { m->states, src * m->info.state_bytes };

    assert(dst >= 1 && dst <= m->info.n_states);
    assert(src >= 1 && src <= m->info.n_states && src != dst);
    m->ops->copy(m->stream, to, from, m->info.state_bytes);
}
