
/*
 * ngx_http_deepinfer_tokenize.c - APIs that the codec answers alone: tokenize,
 * detokenize, and Anthropic's count_tokens.
 *
 * All of the work is done where the prompt of another API would be encoded, in
 * place or in a thread, up to the bytes of the answer: a list of a million
 * tokens takes longer to be written than an event loop may be held.
 */


#include "ngx_http_deepinfer.h"


static int ngx_http_deepinfer_tokenize_parse(ngx_http_deepinfer_prepare_t *p,
    const char *body);
static int ngx_http_deepinfer_tokenize_encode(
    ngx_http_deepinfer_prepare_t *p);
static int ngx_http_deepinfer_tokenize_conv(ngx_http_deepinfer_prepare_t *p);
static int ngx_http_deepinfer_detokenize_parse(
    ngx_http_deepinfer_prepare_t *p, const char *body);
static int ngx_http_deepinfer_detokenize_encode(
    ngx_http_deepinfer_prepare_t *p);
static int ngx_http_deepinfer_count_tokens_encode(
    ngx_http_deepinfer_prepare_t *p);


const ngx_http_deepinfer_gen_t  ngx_http_deepinfer_tokenize = {
    .api = DI_API_CHAT,
    .prompt = "messages",
    .parse = ngx_http_deepinfer_tokenize_parse,
    .encode = ngx_http_deepinfer_tokenize_encode
};


const ngx_http_deepinfer_gen_t  ngx_http_deepinfer_detokenize = {
    .api = DI_API_CHAT,
    .prompt = "tokens",
    .parse = ngx_http_deepinfer_detokenize_parse,
    .encode = ngx_http_deepinfer_detokenize_encode
};


const ngx_http_deepinfer_gen_t  ngx_http_deepinfer_count_tokens = {
    .api = DI_API_MESSAGES,
    .prompt = "messages",
    .parse = ngx_http_deepinfer_prepare_parse,
    .encode = ngx_http_deepinfer_count_tokens_encode
};


static int
ngx_http_deepinfer_tokenize_parse(ngx_http_deepinfer_prepare_t *p,
    const char *body)
{
    int  rc;

    rc = di_tokenize_parse(body, p->len, &p->text, &p->err);

    if (rc != DI_OK) {
        p->text = NULL;
        return rc;
    }

    if (p->text->prompt.data == NULL) {
        return ngx_http_deepinfer_prepare_parse(p, body);
    }

    p->model = p->text->model;

    return DI_OK;
}


static int
ngx_http_deepinfer_tokenize_encode(ngx_http_deepinfer_prepare_t *p)
{
    int  rc;

    rc = p->req ? ngx_http_deepinfer_tokenize_conv(p)
                : ngx_http_deepinfer_prepare_text(p, p->text->prompt,
                                                  p->text->special);

    if (rc == DI_OK) {
        di_tokenize_write(&p->answer, p->pool->vocab, p->ids, p->n_ids,
                          p->max_model_len, p->text->strings);
    }

    return rc;
}


static int
ngx_http_deepinfer_tokenize_conv(ngx_http_deepinfer_prepare_t *p)
{
    di_conv_t  conv;

    conv = *di_req_conv(p->req);
    conv.open_assistant &= p->text->open;

    return ngx_http_deepinfer_prepare_conv(p, &conv);
}


static int
ngx_http_deepinfer_detokenize_parse(ngx_http_deepinfer_prepare_t *p,
    const char *body)
{
    int  rc;

    rc = di_detokenize_parse(body, p->len, di_vocab_size(p->pool->vocab),
                             &p->text, &p->err);

    if (rc != DI_OK) {
        p->text = NULL;
        return rc;
    }

    p->model = p->text->model;

    return DI_OK;
}


static int
ngx_http_deepinfer_detokenize_encode(ngx_http_deepinfer_prepare_t *p)
{
    di_detokenize_write(&p->answer, p->pool->vocab, p->text->tokens,
                        p->text->n_tokens);

    return DI_OK;
}


static int
ngx_http_deepinfer_count_tokens_encode(ngx_http_deepinfer_prepare_t *p)
{
    int  rc;

    rc = ngx_http_deepinfer_prepare_conv(p, di_req_conv(p->req));

    if (rc == DI_OK) {
        di_count_tokens_write(&p->answer, p->n_ids);
    }

    return rc;
}
