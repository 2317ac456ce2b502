
/*
 * ngx_http_deepinfer_prepare.c - from a request's body to its prompt.
 *
 * The body is gathered where nginx left it in pieces or in a temporary file,
 * parsed, matched with the pool, and rendered to token ids.  All of it may run
 * in a thread: it uses no pool, no log and no time of nginx, only memory that
 * the request holds until the thread is done.
 */


#include "ngx_http_deepinfer.h"


/* text that a thread encodes at a time, about half a millisecond's */

#define NGX_HTTP_DEEPINFER_PART_BYTES  16384


static int ngx_http_deepinfer_prepare_room(ngx_http_deepinfer_prepare_t *p,
    size_t more);
static int ngx_http_deepinfer_prepare_failed(ngx_http_deepinfer_prepare_t *p,
    int rc, di_err_t *err);
static void ngx_http_deepinfer_prepare_too_long(
    ngx_http_deepinfer_prepare_t *p);
static u_char *ngx_http_deepinfer_body(ngx_http_deepinfer_prepare_t *p);
static ngx_int_t ngx_http_deepinfer_read_file(ngx_buf_t *b, u_char *dst);
static ngx_int_t ngx_http_deepinfer_prepare_params(
    ngx_http_deepinfer_ctx_t *ctx);
static ngx_int_t ngx_http_deepinfer_prepare_bias(
    ngx_http_deepinfer_ctx_t *ctx);


/* On return either p->ids is a prompt, or p->err says why there is none. */

void
ngx_http_deepinfer_prepare(ngx_http_deepinfer_prepare_t *p)
{
    u_char  *body;

    body = ngx_http_deepinfer_body(p);
    if (body == NULL) {
        return;
    }

    if (p->api->parse(p, (char *) body) != DI_OK) {
        return;
    }

    if (p->model.len
        && !ngx_http_deepinfer_pool_answers(p->pool, p->model.data,
                                            p->model.len))
    {
        di_api_err_set(&p->err, 404, "invalid_request_error",
                       "model_not_found", "model",
                       "The model `%.*s` does not exist.",
                       (int) ngx_min(p->model.len, 128), p->model.data);
        return;
    }

    /* all that is wanted of the body is in the parsed request now */

    free(p->gathered);
    p->gathered = NULL;

    if (p->api->encode(p) != DI_OK || p->api->open == NULL) {
        return;
    }

    (void) ngx_http_deepinfer_grammar_source(p);
}


/* A body of an API that the codec reads. */

int
ngx_http_deepinfer_prepare_parse(ngx_http_deepinfer_prepare_t *p,
    const char *body)
{
    int               rc;
    di_str_t          previous;
    di_req_options_t  options;

    ngx_memzero(&options, sizeof(di_req_options_t));

    options.codec = p->conf->codec;
    options.family = di_dialect_family(p->spelling->dialect);
    options.caps = di_dialect_caps(p->spelling->dialect) | DI_CAN_CONSTRAIN;
    options.vocab = di_vocab_size(p->pool->vocab);
    options.models = p->spelling->models;
    options.n_models = p->spelling->n_models;
    options.now = ngx_time() + ngx_cached_time->gmtoff * 60;
    options.history.data = p->history.data;
    options.history.len = p->history.len;

    rc = di_req_parse(p->api->api, &options, body, p->len, &p->req, &p->err);

    if (rc == DI_EAGAIN) {

        /* it goes on from another response, which has to be fetched */

        previous = di_req_previous(p->req);
        di_sbuf_add(&p->previous, previous.data, previous.len);

        di_req_close(p->req);
        p->req = NULL;

        return p->previous.failed ? ngx_http_deepinfer_prepare_no_memory(p)
                                  : rc;
    }

    if (rc != DI_OK) {
        p->req = NULL;
        return rc;
    }

    p->params = di_req_params(p->req);
    p->model = di_req_model(p->req);
    p->ignored = di_req_ignored(p->req);

    return DI_OK;
}


/*
 * A conversation, in the model's dialect.  A long one is left to be encoded in
 * parts, where other threads may help.
 */

int
ngx_http_deepinfer_prepare_conv(ngx_http_deepinfer_prepare_t *p,
    const di_conv_t *conv)
{
    int       rc;
    di_err_t  err;

    err.code = DI_OK;

    if (!p->parallel) {
        rc = di_dialect_encode(p->spelling->dialect, p->tok, conv,
                               NGX_HTTP_DEEPINFER_PROMPT_MAX, &p->ids,
                               &p->n_ids, &err);

        return (rc == DI_OK) ? DI_OK
                             : ngx_http_deepinfer_prepare_failed(p, rc, &err);
    }

    p->next = 0;

    rc = di_work_open(p->spelling->dialect, p->pool->vocab, conv,
                      NGX_HTTP_DEEPINFER_PART_BYTES, &p->work, &err);

    if (rc != DI_OK) {
        p->work = NULL;
        return ngx_http_deepinfer_prepare_failed(p, rc, &err);
    }

    if (di_work_parts(p->work) > 1) {
        return DI_OK;
    }

    ngx_http_deepinfer_prepare_part_of(p, p->tok);
    return ngx_http_deepinfer_prepare_join(p);
}


/* There are no ids, and the error says why. */

static int
ngx_http_deepinfer_prepare_failed(ngx_http_deepinfer_prepare_t *p, int rc,
    di_err_t *err)
{
    char  param[64];

    p->ids = NULL;
    p->n_ids = 0;

    switch (rc) {

    case DI_EINVAL:
        (void) snprintf(param, sizeof(param), "%s[%zu]", p->api->prompt,
                        err->offset);
        di_api_err_set(&p->err, 400, "invalid_request_error", "", param,
                       "%s", err->text);
        break;

    case DI_ELIMIT:
        ngx_http_deepinfer_prepare_too_long(p);
        break;

    default:
        di_api_err_set(&p->err, 500, "server_error", "", "",
                       "The prompt could not be encoded: %s.", err->text);
        break;
    }

    return rc;
}


/* Encode parts until none is left.  Several threads may be at it. */

void
ngx_http_deepinfer_prepare_part_of(ngx_http_deepinfer_prepare_t *p,
    di_tok_t *tok)
{
    size_t             n;
    ngx_atomic_uint_t  i;

    n = di_work_parts(p->work);

    while ((i = ngx_atomic_fetch_add(&p->next, 1)) < n) {
        di_work_encode(p->work, i, tok);
    }
}


/* All parts are encoded, unless no thread had memory for an encoder. */

int
ngx_http_deepinfer_prepare_join(ngx_http_deepinfer_prepare_t *p)
{
    int       rc;
    di_err_t  err;

    if (p->next < di_work_parts(p->work)) {
        di_work_close(p->work);
        p->work = NULL;

        return ngx_http_deepinfer_prepare_no_memory(p);
    }

    err.code = DI_OK;

    rc = di_work_finish(p->work, NGX_HTTP_DEEPINFER_PROMPT_MAX, &p->ids,
                        &p->n_ids, &err);

    di_work_close(p->work);
    p->work = NULL;

    return (rc == DI_OK) ? DI_OK
                         : ngx_http_deepinfer_prepare_failed(p, rc, &err);
}


/*
 * An encoder for one thread at a time, of which the cache stays warm; NULL:
 * none is idle, and the thread makes one.  The event loop's own is not among
 * them: clearing a new one's tables would hold it.
 */

di_tok_t *
ngx_http_deepinfer_take_tok(ngx_http_deepinfer_pool_t *pool)
{
    di_tok_t  **toks;

    if (pool->toks.nelts == 0) {
        return NULL;
    }

    toks = pool->toks.elts;
    return toks[--pool->toks.nelts];
}


void
ngx_http_deepinfer_give_tok(ngx_http_deepinfer_pool_t *pool, di_tok_t *tok)
{
    di_tok_t  **toks;

    if (pool->toks.nelts == pool->toks.nalloc) {
        di_tok_close(tok);
        return;
    }

    toks = pool->toks.elts;
    toks[pool->toks.nelts++] = tok;
}


/* Append a text, after a bos if that is wanted and the model's own rule. */

int
ngx_http_deepinfer_prepare_text(ngx_http_deepinfer_prepare_t *p,
    di_str_t text, ngx_uint_t bos)
{
    int     rc;
    size_t  n;

    rc = ngx_http_deepinfer_prepare_room(p, text.len + 1);
    if (rc != DI_OK) {
        return rc;
    }

    if (bos && di_vocab_add_bos(p->pool->vocab)) {
        p->ids[p->n_ids++] = di_vocab_bos(p->pool->vocab);
    }

    rc = di_tok_encode(p->tok, text.data, text.len, p->ids + p->n_ids,
                       text.len, &n);

    if (rc == DI_ENOMEM) {
        return ngx_http_deepinfer_prepare_no_memory(p);
    }

    p->n_ids += n;

    if (rc != DI_OK || p->n_ids > NGX_HTTP_DEEPINFER_PROMPT_MAX) {
        ngx_http_deepinfer_prepare_too_long(p);
        return DI_ELIMIT;
    }

    return DI_OK;
}


int
ngx_http_deepinfer_prepare_ids(ngx_http_deepinfer_prepare_t *p,
    const int32_t *ids, size_t n)
{
    int  rc;

    rc = ngx_http_deepinfer_prepare_room(p, n);
    if (rc != DI_OK) {
        return rc;
    }

    ngx_memcpy(p->ids + p->n_ids, ids, n * sizeof(int32_t));
    p->n_ids += n;

    if (p->n_ids > NGX_HTTP_DEEPINFER_PROMPT_MAX) {
        ngx_http_deepinfer_prepare_too_long(p);
        return DI_ELIMIT;
    }

    return DI_OK;
}


/* Room for so many more ids. */

static int
ngx_http_deepinfer_prepare_room(ngx_http_deepinfer_prepare_t *p, size_t more)
{
    size_t    max;
    int32_t  *ids;

    if (more <= p->ids_max - p->n_ids) {
        return DI_OK;
    }

    max = ngx_max(p->ids_max * 2, p->n_ids + more);

    ids = realloc(p->ids, max * sizeof(int32_t));
    if (ids == NULL) {
        return ngx_http_deepinfer_prepare_no_memory(p);
    }

    p->ids = ids;
    p->ids_max = max;

    return DI_OK;
}


static void
ngx_http_deepinfer_prepare_too_long(ngx_http_deepinfer_prepare_t *p)
{
    di_api_err_set(&p->err, 400, "invalid_request_error",
                   "context_length_exceeded", p->api->prompt,
                   "The prompt has more than %zu tokens.",
                   NGX_HTTP_DEEPINFER_PROMPT_MAX);
}


int
ngx_http_deepinfer_prepare_no_memory(ngx_http_deepinfer_prepare_t *p)
{
    di_api_err_set(&p->err, 500, "server_error", "", "",
                   "The server is out of memory.");
    return DI_ENOMEM;
}


/*
 * The body as one piece of memory.  A buffer of nginx's is in memory, or in a
 * file, or neither (the empty last one of a chunked body).
 */

static u_char *
ngx_http_deepinfer_body(ngx_http_deepinfer_prepare_t *p)
{
    u_char       *dst;
    ngx_chain_t  *cl;

    if (p->bufs && p->bufs->next == NULL && ngx_buf_in_memory(p->bufs->buf)) {
        return p->bufs->buf->pos;
    }

    p->gathered = malloc(p->len + 1);
    if (p->gathered == NULL) {
        goto failed;
    }

    dst = p->gathered;

    for (cl = p->bufs; cl; cl = cl->next) {

        if (ngx_buf_in_memory(cl->buf)) {
            dst = ngx_cpymem(dst, cl->buf->pos, cl->buf->last - cl->buf->pos);

        } else if (cl->buf->in_file) {

            if (ngx_http_deepinfer_read_file(cl->buf, dst) != NGX_OK) {
                goto failed;
            }

            dst += cl->buf->file_last - cl->buf->file_pos;
        }
    }

    return p->gathered;

failed:

    di_api_err_set(&p->err, 500, "server_error", "", "",
                   "The request body could not be read.");
    return NULL;
}


/* ngx_read_file() would log, and remember its position in the file. */

static ngx_int_t
ngx_http_deepinfer_read_file(ngx_buf_t *b, u_char *dst)
{
    off_t    pos;
    ssize_t  n;

    pos = b->file_pos;

    while (pos < b->file_last) {
        n = pread(b->file->fd, dst, (size_t) (b->file_last - pos), pos);

        if (n == -1 && ngx_errno == NGX_EINTR) {
            continue;
        }

        if (n <= 0) {
            return NGX_ERROR;
        }

        dst += n;
        pos += n;
    }

    return NGX_OK;
}


void
ngx_http_deepinfer_prepare_free(ngx_http_deepinfer_prepare_t *p)
{
    di_req_close(p->req);
    p->req = NULL;

    di_tokenize_close(p->text);
    p->text = NULL;

    free(p->ids);
    p->ids = NULL;

    di_work_close(p->work);
    p->work = NULL;

    free(p->parts);
    p->parts = NULL;

    free(p->gathered);
    p->gathered = NULL;

    di_sbuf_free(&p->previous);
    di_sbuf_free(&p->record);
    di_sbuf_free(&p->history);
    di_sbuf_free(&p->items);
    di_sbuf_free(&p->answer);
    di_output_free(&p->source.output);
}


/* Fill the engine's form of the request, all but the limits of its model. */

ngx_int_t
ngx_http_deepinfer_prepare_gen(ngx_http_deepinfer_ctx_t *ctx)
{
    const di_req_params_t  *params;

    if (ngx_http_deepinfer_prepare_params(ctx) != NGX_OK
        || ngx_http_deepinfer_prepare_bias(ctx) != NGX_OK)
    {
        return NGX_ERROR;
    }

    params = ctx->prepare.params;

    ctx->gen.stop_ids = params->stop_ids;
    ctx->gen.n_stop_ids = (uint32_t) params->n_stop_ids;

    ctx->n_subs = ngx_max(ctx->prepare.n_parts, 1);

    ctx->subs = ngx_pcalloc(ctx->request->pool,
                            ctx->n_subs * sizeof(ngx_http_deepinfer_sub_t));

    return ctx->subs ? NGX_OK : NGX_ERROR;
}


static ngx_int_t
ngx_http_deepinfer_prepare_params(ngx_http_deepinfer_ctx_t *ctx)
{
    di_gen_params_t        *to;
    const di_req_params_t  *from;

    to = &ctx->gen.params;
    from = ctx->prepare.params;

    to->temperature = (float) from->temperature;
    to->top_p = (float) from->top_p;
    to->min_p = (float) from->min_p;
    to->presence_penalty = (float) from->presence_penalty;
    to->frequency_penalty = (float) from->frequency_penalty;
    to->repetition_penalty = (float) from->repetition_penalty;
    to->top_k = (int32_t) ngx_min(from->top_k, INT32_MAX);
    to->n = from->n;
    to->min_tokens = from->min_tokens;
    to->top_logprobs = from->top_logprobs;
    to->seed = from->seed;

    if (from->ignore_eos) {
        to->flags |= DI_GEN_IGNORE_EOS;
    }

    if (from->logprobs) {
        to->flags |= DI_GEN_LOGPROBS;
    }

    if (ctx->conf->grammar_finish) {
        to->flags |= DI_GEN_GRAMMAR_FINISH;
    }

    /* drawn once, so that a request that moves goes on with the same seed */

    if (!from->has_seed) {
        to->flags |= DI_GEN_UNSEEDED;

        if (ngx_http_deepinfer_random(&to->seed, sizeof(to->seed)) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_deepinfer_prepare_bias(ngx_http_deepinfer_ctx_t *ctx)
{
    size_t                  i;
    di_logit_bias_t        *bias;
    const di_req_params_t  *from;

    from = ctx->prepare.params;

    if (from->n_bias == 0) {
        return NGX_OK;
    }

    bias = ngx_palloc(ctx->request->pool,
                      from->n_bias * sizeof(di_logit_bias_t));
    if (bias == NULL) {
        return NGX_ERROR;
    }

    for (i = 0; i < from->n_bias; i++) {
        bias[i].id = from->bias[i].id;
        bias[i].bias = from->bias[i].bias;
    }

    ctx->gen.bias = bias;
    ctx->gen.n_bias = (uint32_t) from->n_bias;

    return NGX_OK;
}


/* A request's n-th submission, as it is before any engine has it. */

void
ngx_http_deepinfer_prepare_sub(ngx_http_deepinfer_ctx_t *ctx, ngx_uint_t n)
{
    di_gen_request_t              *gen;
    ngx_http_deepinfer_sub_t      *sub;
    ngx_http_deepinfer_part_t     *part;
    ngx_http_deepinfer_prepare_t  *p;

    p = &ctx->prepare;
    sub = &ctx->subs[n];

    ngx_memzero(sub, sizeof(ngx_http_deepinfer_sub_t));

    sub->ctx = ctx;
    sub->part = (uint32_t) n;
    sub->held = 1;
    sub->gen = ctx->gen;

    gen = &sub->gen;

    gen->prompt = p->ids;
    gen->n_prompt = (uint32_t) p->n_ids;

    if (p->n_parts) {
        part = &p->parts[n];

        gen->prompt = p->ids + part->first;
        gen->n_prompt = (uint32_t) part->n;
    }

    if (p->params->echo && p->params->logprobs && gen->n_prompt > 1) {
        gen->params.flags |= DI_GEN_PROMPT_LOGPROBS;
        gen->params.prompt_logprobs_from = 1;
    }
}
