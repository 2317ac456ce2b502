
/*
 * ngx_http_deepinfer_prepare.c - from a request's body to its prompt.
 *
 * The body is gathered where nginx left it in pieces or in a temporary file,
 * parsed, matched with the pool, and rendered to token ids.  All of it may run
 * in a thread: it uses no pool, no log and no time of nginx, only memory that
 * the request holds until the thread is done.
 */


#include "ngx_http_deepinfer.h"


static void ngx_http_deepinfer_prepare_too_long(
    ngx_http_deepinfer_prepare_t *p);
static u_char *ngx_http_deepinfer_body(ngx_http_deepinfer_prepare_t *p);
static ngx_int_t ngx_http_deepinfer_read_file(ngx_buf_t *b, u_char *dst);


/* On return either p->ids is a prompt, or p->err says why there is none. */

void
ngx_http_deepinfer_prepare(ngx_http_deepinfer_prepare_t *p)
{
    u_char    *body;
    di_tok_t  *tok;

    body = ngx_http_deepinfer_body(p);
    if (body == NULL) {
        return;
    }

    if (p->api->parse(p, (char *) body) != DI_OK) {
        p->req = NULL;
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

    if (p->tok) {
        (void) p->api->encode(p);
        return;
    }

    if (di_tok_open(p->pool->vocab, &tok) != DI_OK) {
        (void) ngx_http_deepinfer_prepare_no_memory(p);
        return;
    }

    p->tok = tok;
    (void) p->api->encode(p);
    p->tok = NULL;

    di_tok_close(tok);
}


/* A conversation, in the model's dialect. */

int
ngx_http_deepinfer_prepare_conv(ngx_http_deepinfer_prepare_t *p,
    const di_conv_t *conv)
{
    int       rc;
    char      param[64];
    di_err_t  err;

    ngx_memzero(&err, sizeof(di_err_t));

    rc = di_dialect_encode(p->pool->dialect, p->tok, conv,
                           NGX_HTTP_DEEPINFER_PROMPT_MAX, &p->ids, &p->n_ids,
                           &err);

    switch (rc) {

    case DI_OK:
        return DI_OK;

    case DI_ELIMIT:
        ngx_http_deepinfer_prepare_too_long(p);
        break;

    case DI_EINVAL:
        (void) snprintf(param, sizeof(param), "%s[%zu]", p->api->prompt,
                        err.offset);
        di_api_err_set(&p->err, 400, "invalid_request_error", "", param,
                       "%s", err.text);
        break;

    default:
        di_api_err_set(&p->err, 500, "server_error", "", "",
                       "The prompt could not be encoded: %s.", err.text);
    }

    p->ids = NULL;
    p->n_ids = 0;

    return rc;
}


/* A text as it is, after a bos if that is wanted and the model has one. */

int
ngx_http_deepinfer_prepare_text(ngx_http_deepinfer_prepare_t *p,
    di_str_t text, ngx_uint_t bos)
{
    int      rc;
    size_t   n;

    p->n_ids = 0;
    p->ids = malloc((text.len + 1) * sizeof(int32_t));

    if (p->ids == NULL) {
        return ngx_http_deepinfer_prepare_no_memory(p);
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
    if (p->req) {
        p->api->close_req(p->req);
        p->req = NULL;
    }

    free(p->ids);
    p->ids = NULL;

    free(p->gathered);
    p->gathered = NULL;

    di_sbuf_free(&p->answer);
}


/* Fill the engine's form of the request, all but the limits of its model. */

ngx_int_t
ngx_http_deepinfer_prepare_gen(ngx_http_deepinfer_ctx_t *ctx)
{
    size_t                   i;
    di_logit_bias_t         *bias;
    di_gen_params_t         *to;
    di_gen_request_t        *gen;
    const di_chat_params_t  *from;

    gen = &ctx->gen;
    to = &gen->params;
    from = ctx->prepare.params;

    to->temperature = (float) from->temperature;
    to->top_p = (float) from->top_p;
    to->min_p = (float) from->min_p;
    to->presence_penalty = (float) from->presence_penalty;
    to->frequency_penalty = (float) from->frequency_penalty;
    to->repetition_penalty = (float) from->repetition_penalty;
    to->top_k = (int32_t) ngx_min(from->top_k, INT32_MAX);
    to->n = from->n;
    to->max_tokens = from->max_tokens;
    to->min_tokens = from->min_tokens;
    to->top_logprobs = from->top_logprobs;
    to->seed = from->seed;

    if (from->ignore_eos) {
        to->flags |= DI_GEN_IGNORE_EOS;
    }

    if (from->logprobs) {
        to->flags |= DI_GEN_LOGPROBS;
    }

    /* drawn once, so that a request that moves goes on with the same seed */

    if (!from->has_seed
        && ngx_http_deepinfer_random(&to->seed, sizeof(to->seed)) != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (from->n_bias) {
        bias = ngx_palloc(ctx->request->pool,
                          from->n_bias * sizeof(di_logit_bias_t));
        if (bias == NULL) {
            return NGX_ERROR;
        }

        for (i = 0; i < from->n_bias; i++) {
            bias[i].id = from->bias[i].id;
            bias[i].bias = from->bias[i].bias;
        }

        gen->bias = bias;
        gen->n_bias = (uint32_t) from->n_bias;
    }

    gen->stop_ids = from->stop_ids;
    gen->n_stop_ids = (uint32_t) from->n_stop_ids;

    gen->prompt = ctx->prepare.ids;
    gen->n_prompt = (uint32_t) ctx->prepare.n_ids;

    return NGX_OK;
}
