/*
 * di_models.h - models as the APIs list them: OpenAI's shape, and Anthropic's
 * (DI_API_MESSAGES).
 */

#ifndef DI_MODELS_H
#define DI_MODELS_H

#include "di_api.h"

typedef struct {
    di_str_t id;
    int64_t  created;            /* seconds since the epoch                 */
} di_model_t;

/* The whole list; Anthropic's is one page. */
void di_models_write(di_sbuf_t *b, di_api_t api, const di_model_t *models,
                     size_t n);
/* One model. */
void di_model_write(di_sbuf_t *b, di_api_t api, const di_model_t *model);

#endif
