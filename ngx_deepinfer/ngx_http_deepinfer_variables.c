
/*
 * ngx_http_deepinfer_variables.c - what log_format and add_header can show of
 * a request.  A variable is not found until its value is known.
 */


#include "ngx_http_deepinfer.h"


typedef enum {
    ngx_http_deepinfer_var_model = 0,
    ngx_http_deepinfer_var_engine,
    ngx_http_deepinfer_var_prompt_tokens,
    ngx_http_deepinfer_var_cached_tokens,
    ngx_http_deepinfer_var_completion_tokens,
    ngx_http_deepinfer_var_ttft,
    ngx_http_deepinfer_var_finish_reason,
    ngx_http_deepinfer_var_request_id
} ngx_http_deepinfer_var_e;


static ngx_int_t ngx_http_deepinfer_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_http_deepinfer_variable_value(
    ngx_http_deepinfer_ctx_t *ctx, ngx_http_deepinfer_var_e var,
    ngx_str_t *value);
static ngx_int_t ngx_http_deepinfer_number(ngx_http_deepinfer_ctx_t *ctx,
    ngx_str_t *value, uint64_t number);
static ngx_int_t ngx_http_deepinfer_seconds(ngx_http_deepinfer_ctx_t *ctx,
    ngx_str_t *value, uint64_t us);


static ngx_str_t  ngx_http_deepinfer_finish_names[] = {
    ngx_null_string,
    ngx_string("stop"),
    ngx_string("length"),
    ngx_string("tool_calls"),
    ngx_string("error"),
    ngx_string("abort")
};


static ngx_http_variable_t  ngx_http_deepinfer_vars[] = {

    { ngx_string("deepinfer_model"), NULL, ngx_http_deepinfer_variable,
      ngx_http_deepinfer_var_model, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("deepinfer_engine"), NULL, ngx_http_deepinfer_variable,
      ngx_http_deepinfer_var_engine, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("deepinfer_prompt_tokens"), NULL, ngx_http_deepinfer_variable,
      ngx_http_deepinfer_var_prompt_tokens, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("deepinfer_cached_tokens"), NULL, ngx_http_deepinfer_variable,
      ngx_http_deepinfer_var_cached_tokens, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("deepinfer_completion_tokens"), NULL,
      ngx_http_deepinfer_variable,
      ngx_http_deepinfer_var_completion_tokens, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("deepinfer_ttft"), NULL, ngx_http_deepinfer_variable,
      ngx_http_deepinfer_var_ttft, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("deepinfer_finish_reason"), NULL, ngx_http_deepinfer_variable,
      ngx_http_deepinfer_var_finish_reason, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("deepinfer_request_id"), NULL, ngx_http_deepinfer_variable,
      ngx_http_deepinfer_var_request_id, NGX_HTTP_VAR_NOCACHEABLE, 0 },

      ngx_http_null_variable
};


ngx_int_t
ngx_http_deepinfer_add_variables(ngx_conf_t *cf)
{
    ngx_http_variable_t  *var, *v;

    for (v = ngx_http_deepinfer_vars; v->name.len; v++) {
        var = ngx_http_add_variable(cf, &v->name, v->flags);
        if (var == NULL) {
            return NGX_ERROR;
        }

        var->get_handler = v->get_handler;
        var->data = v->data;
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_deepinfer_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    ngx_int_t                  rc;
    ngx_str_t                  value;
    ngx_http_deepinfer_ctx_t  *ctx;

    ctx = ngx_http_deepinfer_get_ctx(r);

    rc = ctx ? ngx_http_deepinfer_variable_value(ctx, data, &value)
             : NGX_DECLINED;

    if (rc == NGX_ERROR) {
        return NGX_ERROR;
    }

    if (rc == NGX_DECLINED) {
        v->not_found = 1;
        return NGX_OK;
    }

    v->valid = 1;
    v->no_cacheable = 0;
    v->not_found = 0;
    v->len = value.len;
    v->data = value.data;

    return NGX_OK;
}


/* NGX_DECLINED: there is no value yet. */

static ngx_int_t
ngx_http_deepinfer_variable_value(ngx_http_deepinfer_ctx_t *ctx,
    ngx_http_deepinfer_var_e var, ngx_str_t *value)
{
    switch (var) {

    case ngx_http_deepinfer_var_model:
        if (ctx->pool == NULL) {
            return NGX_DECLINED;
        }

        *value = ctx->pool->name;
        return NGX_OK;

    case ngx_http_deepinfer_var_engine:
        if (ctx->last_engine == NULL) {
            return NGX_DECLINED;
        }

        *value = ctx->last_engine->name;
        return NGX_OK;

    case ngx_http_deepinfer_var_prompt_tokens:
        if (ctx->prepare.n_ids == 0) {
            return NGX_DECLINED;
        }

        return ngx_http_deepinfer_number(ctx, value, ctx->prepare.n_ids);

    case ngx_http_deepinfer_var_cached_tokens:
        if (ctx->out == NULL) {
            return NGX_DECLINED;
        }

        return ngx_http_deepinfer_number(ctx, value, ctx->cached_tokens);

    case ngx_http_deepinfer_var_completion_tokens:
        if (ctx->out == NULL) {
            return NGX_DECLINED;
        }

        return ngx_http_deepinfer_number(ctx, value,
                              ctx->prepare.api->completion_tokens(ctx->out));

    case ngx_http_deepinfer_var_ttft:
        if (ctx->first == 0) {
            return NGX_DECLINED;
        }

        return ngx_http_deepinfer_seconds(ctx, value,
                                          ctx->first - ctx->start);

    case ngx_http_deepinfer_var_finish_reason:
        if (ctx->finish == ngx_http_deepinfer_finish_none) {
            return NGX_DECLINED;
        }

        *value = ngx_http_deepinfer_finish_names[ctx->finish];
        return NGX_OK;

    default: /* ngx_http_deepinfer_var_request_id */
        *value = ctx->request_id;
        return NGX_OK;
    }
}


static ngx_int_t
ngx_http_deepinfer_number(ngx_http_deepinfer_ctx_t *ctx, ngx_str_t *value,
    uint64_t number)
{
    value->data = ngx_pnalloc(ctx->request->pool, NGX_INT64_LEN);
    if (value->data == NULL) {
        return NGX_ERROR;
    }

    value->len = ngx_sprintf(value->data, "%uL", number) - value->data;

    return NGX_OK;
}


/* As nginx writes times: seconds, and milliseconds behind a point. */

static ngx_int_t
ngx_http_deepinfer_seconds(ngx_http_deepinfer_ctx_t *ctx, ngx_str_t *value,
    uint64_t us)
{
    uint64_t  ms;

    value->data = ngx_pnalloc(ctx->request->pool, NGX_INT64_LEN + 4);
    if (value->data == NULL) {
        return NGX_ERROR;
    }

    ms = (us + 500) / 1000;
    value->len = ngx_sprintf(value->data, "%uL.%03uL", ms / 1000, ms % 1000)
                 - value->data;

    return NGX_OK;
}
