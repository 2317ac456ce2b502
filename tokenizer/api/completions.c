/*
 * completions.c - the older Completions: prompts instead of a conversation.
 *
 * A prompt is text, which is encoded without special tokens, or token ids as
 * they are.  Recipe has nothing of the kind: both codecs read it alike.
 */

#include "shape.h"

#define PROMPTS_MAX  128

static int check_prompt(di_rq_t *rq, const di_json_t *v);

static const di_shape_t prompt = { .kind = DI_SHAPE_CUSTOM,
                                   .check = check_prompt };

static const di_member_t members[] = {
    { "prompt", &prompt, DI_MEMBER_REQUIRED, NULL },
    { "response_format", &di_shape_response_format, 0, NULL },
    { .name = NULL },
};
static const di_shape_t body = { .kind = DI_SHAPE_STRUCT,
                                 .members = members };

static bool
is_integer(const di_json_t *v)
{
    return v->type == DI_JSON_INT || v->type == DI_JSON_UINT
           || v->type == DI_JSON_REAL;
}

/* The first element tells what a list is. */
static int
check_prompt(di_rq_t *rq, const di_json_t *v)
{
    if (v->type == DI_JSON_STRING)
        return DI_OK;

    if (v->type != DI_JSON_ARRAY)
        return di_field_type(v, "prompt", "a string, an array of strings, or"
                             " token ids", rq->e);

    if (v->v.list.n == 0)
        return di_field_invalid(rq->e, "prompt", "empty_array", "Invalid"
                                " 'prompt': empty array. Expected an array"
                                " with minimum length 1.");

    return DI_OK;
}

static int
read_ids(di_rq_t *rq, const di_json_t *v, const char *path, di_prompt_t *p)
{
    const di_json_t *m;
    int32_t         *ids;
    int64_t          id;
    int              rc;

    ids = di_arena_calloc(&rq->req->arena, v->v.list.n, sizeof(*ids));
    if (ids == NULL)
        return di_rq_no_memory(rq);

    p->ids = ids;
    for (m = v->v.list.first; m != NULL; m = m->next) {
        rc = di_field_int(m, path, 0, (int64_t) rq->opt.vocab - 1, &id, rq->e);
        if (rc != DI_OK)
            return rc;
        ids[p->n_ids++] = (int32_t) id;
    }

    return DI_OK;
}

static int
read_prompt(di_rq_t *rq, const di_json_t *v, size_t i, di_prompt_t *p)
{
    di_rq_path(rq, "prompt[%zu]", i);

    if (v->type == DI_JSON_ARRAY)
        return read_ids(rq, v, rq->path, p);

    return di_field_str(v, rq->path, &p->text, rq->e);
}

static int
read_prompts(di_rq_t *rq, const di_json_t *root)
{
    const di_json_t *v = di_rq_get(root, "prompt"), *m;
    di_req_t        *req = rq->req;
    bool             ids = v->type == DI_JSON_ARRAY
                           && is_integer(v->v.list.first);
    size_t           i = 0;
    int              rc;

    req->n_prompts = v->type == DI_JSON_STRING || ids ? 1 : v->v.list.n;
    if (req->n_prompts > PROMPTS_MAX)
        return di_field_array(v, "prompt", PROMPTS_MAX, rq->e);

    req->prompts = di_arena_calloc(&req->arena, req->n_prompts,
                                   sizeof(*req->prompts));
    if (req->prompts == NULL)
        return di_rq_no_memory(rq);

    if (ids)
        return read_ids(rq, v, "prompt", req->prompts);

    if (v->type == DI_JSON_STRING) {
        req->prompts->text = v->v.str;
        return DI_OK;
    }

    for (m = v->v.list.first; m != NULL; m = m->next, i++) {
        rc = read_prompt(rq, m, i, &req->prompts[i]);
        if (rc != DI_OK)
            return rc;
    }

    return DI_OK;
}

static int
convert(di_rq_t *rq, const di_json_t *root)
{
    const di_json_t *rf = di_rq_get(root, "response_format");
    int              rc = read_prompts(rq, root);

    if (rc == DI_OK)
        rc = di_rq_response_format(rq, rf);
    if (rc == DI_OK)
        rc = di_rq_response_schema(rq, rf);

    return rc == DI_OK ? di_rq_set_constraint(rq) : rc;
}

const di_api_ops_t di_api_completions = {
    .shape = &body,
    .convert = convert,
};
