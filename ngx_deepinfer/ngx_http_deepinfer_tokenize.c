
/*
 * ngx_http_deepinfer_tokenize.c - APIs that the codec answers alone: tokenize,
 * detokenize.
 *
 * All of the work is done where the prompt of another API would be encoded, in
 * place or in a thread, up to the bytes of the answer: a list of a million
 * tokens takes longer to be written than an event loop may be held.
 */


#include "ngx_http_deepinfer.h"

#include "tokenizer/api/di_tokenize.h"


/* A body of tokenize. */

typedef struct {
    di_tokenize_t                 *t;           /* owned */
    di_chat_req_t                 *chat;        /* owned; NULL: no messages */
} ngx_http_deepinfer_tokenize_req_t;


static int ngx_http_deepinfer_tokenize_parse(ngx_http_deepinfer_prepare_t *p,
    const char *body);
static int ngx_http_deepinfer_tokenize_encode(
    ngx_http_deepinfer_prepare_t *p);
static int ngx_http_deepinfer_tokenize_conv(ngx_http_deepinfer_prepare_t *p);
static void ngx_http_deepinfer_tokenize_close(void *req);
static int ngx_http_deepinfer_detokenize_parse(
    ngx_http_deepinfer_prepare_t *p, const char *body);
static int ngx_http_deepinfer_detokenize_encode(
    ngx_http_deepinfer_prepare_t *p);
static void ngx_http_deepinfer_detokenize_close(void *req);


const ngx_http_deepinfer_gen_t  ngx_http_deepinfer_tokenize = {
    .prompt = "messages",
    .parse = ngx_http_deepinfer_tokenize_parse,
    .encode = ngx_http_deepinfer_tokenize_encode,
    .close_req = ngx_http_deepinfer_tokenize_close,
};


const ngx_http_deepinfer_gen_t  ngx_http_deepinfer_detokenize = {
    .prompt = "tokens",
    .parse = ngx_http_deepinfer_detokenize_parse,
    .encode = ngx_http_deepinfer_detokenize_encode,
    .close_req = ngx_http_deepinfer_detokenize_close,
};


static int
ngx_http_deepinfer_tokenize_parse(ngx_http_deepinfer_prepare_t *p,
    const char *body)
{
    int                                 rc;
    ngx_http_deepinfer_tokenize_req_t  *req;

    req = calloc(1, sizeof(ngx_http_deepinfer_tokenize_req_t));
    if (req == NULL) {
        return ngx_http_deepinfer_prepare_no_memory(p);
    }

    rc = di_tokenize_parse(body, p->len, &req->t, &p->err);

    if (rc == DI_OK && req->t->prompt.data == NULL) {
        rc = ngx_http_deepinfer_chat_read(p, body, &req->chat);
    }

    if (rc != DI_OK) {
        ngx_http_deepinfer_tokenize_close(req);
        return rc;
    }

    p->req = req;
    p->model = req->t->model;

    return DI_OK;
}


static int
ngx_http_deepinfer_tokenize_encode(ngx_http_deepinfer_prepare_t *p)
{
    int                                 rc;
    ngx_http_deepinfer_tokenize_req_t  *req;

    req = p->req;

    rc = req->chat ? ngx_http_deepinfer_tokenize_conv(p)
                   : ngx_http_deepinfer_prepare_text(p, req->t->prompt,
                                                     req->t->special);

    if (rc == DI_OK) {
        di_tokenize_write(&p->answer, p->pool->vocab, p->ids, p->n_ids,
                          p->max_model_len, req->t->strings);
    }

    return rc;
}


static int
ngx_http_deepinfer_tokenize_conv(ngx_http_deepinfer_prepare_t *p)
{
    di_conv_t                           conv;
    ngx_http_deepinfer_tokenize_req_t  *req;

    req = p->req;

    conv = *di_chat_req_conv(req->chat);
    conv.open_assistant &= req->t->open;

    return ngx_http_deepinfer_prepare_conv(p, &conv);
}


static void
ngx_http_deepinfer_tokenize_close(void *data)
{
    ngx_http_deepinfer_tokenize_req_t  *req = data;

    if (req->chat) {
        di_chat_req_close(req->chat);
    }

    di_tokenize_close(req->t);
    free(req);
}


static int
ngx_http_deepinfer_detokenize_parse(ngx_http_deepinfer_prepare_t *p,
    const char *body)
{
    int             rc;
    di_tokenize_t  *t;

    rc = di_detokenize_parse(body, p->len, di_vocab_size(p->pool->vocab), &t,
                             &p->err);

    if (rc == DI_OK) {
        p->req = t;
        p->model = t->model;
    }

    return rc;
}


static int
ngx_http_deepinfer_detokenize_encode(ngx_http_deepinfer_prepare_t *p)
{
    di_tokenize_t  *t;

    t = p->req;
    di_detokenize_write(&p->answer, p->pool->vocab, t->tokens, t->n_tokens);

    return DI_OK;
}


static void
ngx_http_deepinfer_detokenize_close(void *req)
{
    di_tokenize_close(req);
}
