/*
 * stream.c - streams and graphs: lists of op records.
 *
 * A launch appends one record; nothing runs before stream_sync(), where the
 * caller computes too.  So the queue needs no locks, and a step is one call
 * of the pool.  A graph is a kept list; launching it queues a pointer to it.
 * The queue's memory is fixed: when it is full, what it holds is run there
 * and then, which the caller can't tell from an asynchronous stream.
 */

#include "cpu.h"

#include <stdlib.h>
#include <string.h>

#define QUEUE_OPS   512          /* records of single launches              */
#define QUEUE_RUNS  64           /* runs: launches in a row, or a graph     */

struct di_graph_s {
    di_cpu_op_t *ops;
    size_t       n;
    size_t       max;
};

struct di_stream_s {
    di_dev_t     *dev;
    di_graph_t   *recording;     /* NULL: not recording                     */
    int           fault;         /* first fault since the last sync         */
    size_t        n_ops;
    size_t        n_runs;
    di_cpu_run_t  runs[QUEUE_RUNS];
    di_cpu_op_t   ops[QUEUE_OPS];
};

int
di_cpu_stream_open(di_dev_t *dev, di_stream_t **out)
{
    di_stream_t *stream;

    stream = calloc(1, sizeof(*stream));
    if (stream == NULL)
        return DI_ENOMEM;
    stream->dev = dev;
    *out = stream;
    return DI_OK;
}

void
di_cpu_stream_close(di_stream_t *stream)
{
    if (stream == NULL)
        return;
    di_cpu_graph_free(stream->recording);
    free(stream);
}

di_dev_t *
di_cpu_stream_dev(di_stream_t *stream)
{
    return stream->dev;
}

void
di_cpu_stream_fault(di_stream_t *stream, int code)
{
    if (stream->fault == DI_OK)
        stream->fault = code;
}

static void
drain(di_stream_t *stream)
{
    di_cpu_pool_run(stream->dev->pool, stream->runs, stream->n_runs);
    stream->n_ops = 0;
    stream->n_runs = 0;
}

int
di_cpu_stream_sync(di_stream_t *stream)
{
    int rc;

    drain(stream);
    rc = stream->fault;
    stream->fault = DI_OK;
    return rc;
}

static void
queue_op(di_stream_t *stream, const di_cpu_op_t *op)
{
    di_cpu_run_t *run;
    di_cpu_op_t *at;

    if (stream->n_ops == QUEUE_OPS || stream->n_runs == QUEUE_RUNS)
        drain(stream);

    at = &stream->ops[stream->n_ops++];
    *at = *op;
    run = stream->n_runs ? &stream->runs[stream->n_runs - 1] : NULL;
    if (run != NULL && run->ops + run->n == at) {
        run->n++;
    } else {
        run = &stream->runs[stream->n_runs++];
        run->ops = at;
        run->n = 1;
    }
}

static void
record_op(di_stream_t *stream, const di_cpu_op_t *op)
{
    di_graph_t *graph = stream->recording;
    size_t max;
    void *ops;

    if (graph->n == graph->max) {
        max = graph->max ? graph->max * 2 : 64;
        ops = realloc(graph->ops, max * sizeof(*graph->ops));
        if (ops == NULL) {
            di_cpu_stream_fault(stream, DI_ENOMEM);
            return;
        }
        graph->ops = ops;
        graph->max = max;
    }
    graph->ops[graph->n++] = *op;
}

void
di_cpu_launch(di_stream_t *stream, di_cpu_op_t *op)
{
    op->dev = stream->dev;
    if (stream->recording)
        record_op(stream, op);
    else
        queue_op(stream, op);
}

int
di_cpu_graph_begin(di_stream_t *stream)
{
    if (stream->recording)
        return DI_EINVAL;
    stream->recording = calloc(1, sizeof(*stream->recording));
    return stream->recording ? DI_OK : DI_ENOMEM;
}

int
di_cpu_graph_end(di_stream_t *stream, di_graph_t **graph)
{
    int rc = stream->fault;

    if (stream->recording == NULL)
        return DI_EINVAL;
    if (rc != DI_OK) {
        stream->fault = DI_OK;
        di_cpu_graph_free(stream->recording);
    } else {
        *graph = stream->recording;
    }
    stream->recording = NULL;
    return rc;
}

void
di_cpu_graph_launch(di_stream_t *stream, di_graph_t *graph)
{
    if (stream->n_runs == QUEUE_RUNS)
        drain(stream);
    stream->runs[stream->n_runs].ops = graph->ops;
    stream->runs[stream->n_runs++].n = graph->n;
}

void
di_cpu_graph_free(di_graph_t *graph)
{
    if (graph == NULL)
        return;
    free(graph->ops);
    free(graph);
}

static void
copy_run(const di_cpu_op_t *op, size_t part, di_cpu_worker_t *worker)
{
    (void) part;
    (void) worker;
    memcpy(op->u.copy.dst, op->u.copy.src, op->u.copy.bytes);
}

static void
launch_copy(di_stream_t *stream, void *dst, const void *src, size_t bytes)
{
    di_cpu_op_t op = { .run = copy_run, .n_parts = 1 };

    op.u.copy.dst = dst;
    op.u.copy.src = src;
    op.u.copy.bytes = bytes;
    di_cpu_launch(stream, &op);
}

void
di_cpu_copy_in(di_stream_t *stream, di_view_t dst, const void *src,
               size_t bytes)
{
    launch_copy(stream, (uint8_t *) dst.buf->data + dst.offset, src, bytes);
}

void
di_cpu_copy_out(di_stream_t *stream, void *dst, di_view_t src, size_t bytes)
{
    launch_copy(stream, dst, (uint8_t *) src.buf->data + src.offset, bytes);
}

void
di_cpu_copy(di_stream_t *stream, di_view_t dst, di_view_t src, size_t bytes)
{
    launch_copy(stream, (uint8_t *) dst.buf->data + dst.offset,
                (uint8_t *) src.buf->data + src.offset, bytes);
}

/* A call may have more parts than an op: each takes every n-th. */
static void
host_run(const di_cpu_op_t *op, size_t part, di_cpu_worker_t *worker)
{
    (void) worker;
    for (; part < op->n_rows; part += op->n_parts)
        op->u.host.fn(op->u.host.arg, part);
}

void
di_cpu_host_call(di_stream_t *stream, void (*fn)(void *, size_t), void *arg,
                 size_t n_parts)
{
    di_cpu_op_t op = { .run = host_run, .n_rows = n_parts };

    op.n_parts = n_parts < DI_CPU_PARTS_MAX ? n_parts : DI_CPU_PARTS_MAX;
    op.u.host.fn = fn;
    op.u.host.arg = arg;
    di_cpu_launch(stream, &op);
}
