/*
 * req.c - a request of any API: reading a body, and what its readers share.
 *
 * All memory is the request's arena; only the list of ignored names is a
 * buffer of its own.
 */

#include "shape.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH_DEFAULT     64
#define MESSAGES_DEFAULT  4096
#define BOUND_DEFAULT     393216         /* of output tokens, official      */
#define IGNORED_MAX       512    /* bytes of names kept for the log         */

/* ----------------------------------------------------------------- errors */

int
di_rq_no_memory(di_rq_t *rq)
{
    di_api_err_set(rq->e, 500, "server_error", "internal_error", NULL,
                   "The server ran out of memory.");
    return DI_ENOMEM;
}

int
di_rq_fail(di_rq_t *rq, const char *path, const char *fmt, ...)
{
    char    text[sizeof(rq->e->message)];
    va_list ap;

    va_start(ap, fmt);
    (void) vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);

    di_api_err_set(rq->e, 400, "invalid_request_error", rq->official
                   ? "invalid_request_error" : "invalid_value",
                   rq->official ? NULL : path, "%s", text);
    return DI_EINVAL;
}

/* A path is entered for every field of a body, of which a conversation has
 * thousands: printf takes longer than reading the field. */
static void
print_path(char *to, const char *end, const char *fmt, va_list ap)
{
    char        digits[DI_JSON_U64_MAX];
    const char *from;
    size_t      n;

    for ( ; *fmt != '\0'; fmt++) {
        from = fmt;
        n = 1;

        if (fmt[0] == '%' && fmt[1] == 's') {
            fmt += 1;
            from = va_arg(ap, const char *);
            n = strlen(from);
        } else if (fmt[0] == '%') {
            fmt += 2;                /* %zu */
            from = digits;
            n = (size_t) (di_json_put_u64(digits, va_arg(ap, size_t))
                          - digits);
        }

        if (n > (size_t) (end - to))
            n = (size_t) (end - to);
        to = di_put(to, from, n);
    }

    *to = '\0';
}

const char *
di_rq_path(di_rq_t *rq, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    print_path(rq->path, rq->path + sizeof(rq->path) - 1, fmt, ap);
    va_end(ap);
    return rq->path;
}

size_t
di_rq_enter(di_rq_t *rq, const char *fmt, ...)
{
    size_t  n = strlen(rq->path);
    va_list ap;

    va_start(ap, fmt);
    print_path(rq->path + n, rq->path + sizeof(rq->path) - 1, fmt, ap);
    va_end(ap);
    return n;
}

void
di_rq_note_ignored(di_rq_t *rq, const char *prefix, const di_json_t *v)
{
    di_sbuf_t *b = &rq->req->ignored;
    char       key[DI_JSON_QUOTE], name[DI_JSON_QUOTE + sizeof(rq->path)];
    size_t     n;

    di_json_quote(v->key, key);
    n = (size_t) snprintf(name, sizeof(name), "%s%s", prefix, key);

    if (b->len + n + 2 > IGNORED_MAX
        || (b->len > 0 && memmem(b->data, b->len, name, n) != NULL))
        return;

    if (b->len > 0)
        di_sbuf_lit(b, ", ");
    di_sbuf_add(b, name, n);
}

/* ----------------------------------------------------------------- values */

const di_json_t *
di_rq_get(const di_json_t *object, const char *name)
{
    const di_json_t *v;

    if (object == NULL || object->type != DI_JSON_OBJECT)
        return NULL;

    v = di_json_get(object, name);
    return v == NULL || v->type == DI_JSON_NULL ? NULL : v;
}

di_str_t
di_rq_text(const di_json_t *object, const char *name)
{
    const di_json_t *v = di_rq_get(object, name);

    if (v == NULL || v->type != DI_JSON_STRING)
        return (di_str_t) { NULL, 0 };

    return v->v.str;
}

bool
di_rq_true(const di_json_t *object, const char *name)
{
    const di_json_t *v = di_rq_get(object, name);

    return v != NULL && v->type == DI_JSON_TRUE;
}

bool
di_rq_is(const di_json_t *v, const char *text)
{
    return v != NULL && v->type == DI_JSON_STRING
           && di_json_is(&v->v.str, text);
}

double
di_rq_number(const di_json_t *v)
{
    switch (v->type) {
    case DI_JSON_INT:  return (double) v->v.i;
    case DI_JSON_UINT: return (double) v->v.u;
    }

    return v->v.d;
}

/* ------------------------------------------------------------------ names */

static uint64_t
hash(const di_names_t *names, di_str_t key)
{
    uint64_t h = names->seed;
    size_t   i;

    for (i = 0; i < key.len; i++) {
        h = (h ^ (unsigned char) key.data[i]) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
    }

    return h;
}

static struct di_name_s *
find_slot(const di_names_t *names, di_str_t key)
{
    size_t            i = hash(names, key) & (names->cap - 1);
    struct di_name_s *s = &names->slots[i];

    while (s->key.data != NULL
           && !(s->key.len == key.len
                && memcmp(s->key.data, key.data, key.len) == 0))
    {
        i = (i + 1) & (names->cap - 1);
        s = &names->slots[i];
    }

    return s;
}

/* The seed keeps bodies from being made of keys that collide: where memory
 * lies differs from process to process. */
static bool
grow_names(di_rq_t *rq, di_names_t *names)
{
    di_names_t wider = { .cap = names->cap == 0 ? 16 : names->cap * 2,
                         .n = names->n };
    size_t     i;

    wider.slots = di_arena_calloc(&rq->req->arena, wider.cap,
                                  sizeof(*wider.slots));
    if (wider.slots == NULL)
        return false;

    wider.seed = (uint64_t) (uintptr_t) wider.slots * 0xff51afd7ed558ccdu;
    for (i = 0; i < names->cap; i++) {
        if (names->slots[i].key.data != NULL)
            *find_slot(&wider, names->slots[i].key) = names->slots[i];
    }

    *names = wider;
    return true;
}

int
di_names_put(di_rq_t *rq, di_names_t *names, di_str_t key, size_t value,
             size_t *found, bool *known)
{
    struct di_name_s *s;

    if (names->n * 2 >= names->cap && !grow_names(rq, names))
        return di_rq_no_memory(rq);

    s = find_slot(names, key);
    *known = s->key.data != NULL;

    if (!*known) {
        s->key = key;
        s->value = value;
        names->n++;
    }

    *found = s->value;
    return DI_OK;
}

bool
di_names_get(const di_names_t *names, di_str_t key, size_t *value)
{
    const struct di_name_s *s;

    if (names->cap == 0)
        return false;

    s = find_slot(names, key);
    *value = s->value;
    return s->key.data != NULL;
}

/* --------------------------------------------------------------- building */

di_msg_t *
di_rq_add_msg(di_rq_t *rq, di_role_t role)
{
    di_req_t *req = rq->req;
    di_msg_t *wider, *m;
    size_t    cap;

    if (req->conv.n_msgs == req->msgs_cap) {
        cap = req->msgs_cap == 0 ? 16 : req->msgs_cap * 2;
        wider = di_arena_calloc(&req->arena, cap, sizeof(*wider));
        if (wider == NULL) {
            (void) di_rq_no_memory(rq);
            return NULL;
        }
        if (req->msgs_cap != 0)
            memcpy(wider, req->msgs, req->msgs_cap * sizeof(*wider));
        req->msgs = wider;
        req->msgs_cap = cap;
        req->conv.msgs = wider;
    }

    m = &req->msgs[req->conv.n_msgs++];
    memset(m, 0, sizeof(*m));
    m->role = role;
    m->content = (di_str_t) { "", 0 };
    return m;
}

static int
content_append(di_rq_t *rq, di_content_t *c, const char *p, size_t len)
{
    size_t cap = c->cap == 0 ? 256 : c->cap;
    char  *wider;

    while (cap - c->text.len < len || cap < c->text.len) {
        if (cap > SIZE_MAX / 4)
            return di_rq_no_memory(rq);
        cap *= 2;
    }

    if (cap != c->cap) {
        wider = di_arena_alloc(&rq->req->arena, cap);
        if (wider == NULL)
            return di_rq_no_memory(rq);
        if (c->text.len != 0)
            memcpy(wider, c->text.data, c->text.len);
        c->text.data = wider;
        c->cap = cap;
    }

    if (len != 0)
        memcpy((char *) c->text.data + c->text.len, p, len);
    c->text.len += len;
    return DI_OK;
}

int
di_content_add(di_rq_t *rq, di_content_t *c, di_str_t text)
{
    int rc;

    if (c->n++ == 0) {
        c->text = text;
        return DI_OK;
    }

    rc = content_append(rq, c, c->separator, strlen(c->separator));
    return rc == DI_OK ? content_append(rq, c, text.data, text.len) : rc;
}

int
di_content_image(di_rq_t *rq, di_content_t *c, const di_image_t *image)
{
    static const di_str_t mark = { DI_IMAGE_TEXT, sizeof(DI_IMAGE_TEXT) - 1 };
    di_image_t           *wider;
    size_t                cap;
    int                   rc;

    if (!rq->sees)
        return di_content_add(rq, c, (di_str_t) { DI_UNSUPPORTED_IMAGE,
                                     sizeof(DI_UNSUPPORTED_IMAGE) - 1 });

    if (c->n_images == c->images_cap) {
        cap = c->images_cap == 0 ? 4 : c->images_cap * 2;
        wider = di_arena_calloc(&rq->req->arena, cap, sizeof(*wider));
        if (wider == NULL)
            return di_rq_no_memory(rq);
        if (c->n_images != 0)
            memcpy(wider, c->images, c->n_images * sizeof(*wider));
        c->images = wider;
        c->images_cap = cap;
    }

    rc = di_content_add(rq, c, mark);
    if (rc != DI_OK)
        return rc;

    c->images[c->n_images] = *image;
    c->images[c->n_images++].at = c->text.len - mark.len;
    return DI_OK;
}

void
di_content_give(di_content_t *c, di_msg_t *m)
{
    if (c->text.data != NULL)
        m->content = c->text;

    m->images = c->images;
    m->n_images = c->n_images;
}

int
di_rq_keep(di_rq_t *rq, di_sbuf_t *b, di_str_t *out)
{
    char *p = b->failed ? NULL : di_arena_alloc(&rq->req->arena, b->len + 1);

    if (p != NULL && b->len != 0)
        memcpy(p, b->data, b->len);

    *out = (di_str_t) { p, b->len };
    di_sbuf_free(b);
    return p == NULL ? di_rq_no_memory(rq) : DI_OK;
}

int
di_rq_join(di_rq_t *rq, di_str_t *out, const di_str_t *parts)
{
    const di_str_t *s;
    size_t          len = 0;
    char           *p;

    for (s = parts; s->data != NULL; s++)
        len += s->len;

    p = di_arena_alloc(&rq->req->arena, len + 1);
    if (p == NULL)
        return di_rq_no_memory(rq);

    *out = (di_str_t) { p, len };
    for (s = parts; s->data != NULL; s++) {
        if (s->len != 0)
            memcpy(p, s->data, s->len);
        p += s->len;
    }

    return DI_OK;
}

int
di_rq_print(di_rq_t *rq, di_str_t *out, const char *fmt, ...)
{
    va_list ap;
    char   *p;
    int     n;

    va_start(ap, fmt);
    n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);

    p = n < 0 ? NULL : di_arena_alloc(&rq->req->arena, (size_t) n + 1);
    if (p == NULL)
        return di_rq_no_memory(rq);

    va_start(ap, fmt);
    (void) vsnprintf(p, (size_t) n + 1, fmt, ap);
    va_end(ap);

    *out = (di_str_t) { p, (size_t) n };
    return DI_OK;
}

/* ---------------------------------------------------------------- reading */

static const di_model_name_t default_models[] = {
    { { "DeepSeek-V4-Pro", 15 }, DI_FAMILY_V4 },
    { { "DeepSeek-V4.1-Flash", 19 }, DI_FAMILY_V41 },
};

static int
by_bytes(const void *a, const void *b)
{
    const di_str_t *x = *(const di_str_t *const *) a;
    const di_str_t *y = *(const di_str_t *const *) b;
    int             d = memcmp(x->data, y->data,
                               x->len < y->len ? x->len : y->len);

    return d != 0 ? d : x->len < y->len ? -1 : x->len > y->len;
}

static int
unknown_model(di_rq_t *rq)
{
    const di_req_options_t *opt = &rq->opt;
    const di_str_t        **names;
    di_sbuf_t               b = { 0 };
    size_t                  i;
    int                     rc;

    names = di_arena_calloc(&rq->req->arena, opt->n_models, sizeof(*names));
    if (names == NULL)
        return di_rq_no_memory(rq);

    for (i = 0; i < opt->n_models; i++)
        names[i] = &opt->models[i].name;
    qsort(names, opt->n_models, sizeof(*names), by_bytes);

    for (i = 0; i < opt->n_models; i++) {
        di_sbuf_add(&b, names[i]->data, names[i]->len);
        di_sbuf_lit(&b, ", ");
    }

    rc = b.failed ? di_rq_no_memory(rq)
         : di_rq_fail(rq, "model", "The supported API model names are %.*sbut"
                      " you passed %.*s.", (int) b.len, b.data,
                      (int) rq->req->model.len, rq->req->model.data);
    di_sbuf_free(&b);
    return rc;
}

static int
official_model(di_rq_t *rq)
{
    const di_req_options_t *opt = &rq->opt;
    const di_str_t         *model = &rq->req->model, *name;
    size_t                  i;

    for (i = 0; i < opt->n_models; i++) {
        name = &opt->models[i].name;
        if (name->len == model->len
            && memcmp(name->data, model->data, name->len) == 0)
        {
            rq->req->family = opt->models[i].family;
            rq->v41 = rq->req->family == DI_FAMILY_V41;
            rq->sees = rq->v41;
            return DI_OK;
        }
    }

    return unknown_model(rq);
}

/* The body by the official rules: everything's shape first. */
static int
read_official(di_rq_t *rq, const di_api_ops_t *api)
{
    di_req_t *req = rq->req;
    int       rc;

    rc = di_shape_check(rq, api->shape, req->root);
    if (rc != DI_OK)
        return rc;

    req->model = di_rq_text(req->root, "model");
    rc = official_model(rq);
    if (rc == DI_OK)
        rc = api->convert(rq, req->root);
    if (rc == DI_OK)
        rc = api->official(rq, req->root);

    return rc;
}

static const di_member_t *
member_of(const di_api_ops_t *api, const di_json_t *v)
{
    const di_member_t *m;

    for (m = api->shape->members; m->name != NULL; m++) {
        if (di_json_is(&v->key, m->name)
            && !(m->flags & DI_MEMBER_OFFICIAL))
            return m;
    }

    return NULL;
}

/* Strict: every field by the handler that knows it, in the body's order. */
static int
read_fields(di_rq_t *rq, const di_api_ops_t *api)
{
    const di_json_t   *v;
    const di_member_t *m;
    bool               known;
    int                rc;

    for (v = rq->req->root->v.list.first; v != NULL; v = v->next) {
        if (v->type == DI_JSON_NULL)
            continue;

        rc = di_rq_param(rq, v, &known);
        if (rc == DI_OK && !known)
            rc = di_rq_constraint_field(rq, v, &known);
        if (rc != DI_OK)
            return rc;
        if (known)
            continue;

        m = member_of(api, v);
        if (m == NULL) {
            di_rq_note_ignored(rq, "", v);
            continue;
        }

        di_rq_path(rq, "%s", m->name);
        if (m->refuse != NULL)
            return di_field_refuse(rq->path, m->refuse, rq->e);

        rc = m->shape == NULL ? DI_OK : di_shape_check(rq, m->shape, v);
        if (rc != DI_OK)
            return rc;
    }

    for (m = api->shape->members; m->name != NULL; m++) {
        if ((m->flags & DI_MEMBER_REQUIRED)
            && di_rq_get(rq->req->root, m->name) == NULL)
            return di_field_missing(m->name, rq->e);
    }

    return DI_OK;
}

static int
read_strict(di_rq_t *rq, const di_api_ops_t *api)
{
    int rc;

    rq->req->family = rq->opt.family;
    rq->v41 = rq->opt.family != DI_FAMILY_V4;
    rq->sees = (rq->opt.caps & DI_CAN_SEE) != 0;

    rc = read_fields(rq, api);
    if (rc == DI_OK)
        rc = di_rq_check_params(rq);

    if (rc == DI_OK && rq->req->previous.data != NULL
        && rq->opt.history.data == NULL)
        return DI_EAGAIN;

    if (rc == DI_OK)
        rc = api->convert(rq, rq->req->root);
    if (rc == DI_OK && rq->req->ignored.failed)
        rc = di_rq_no_memory(rq);

    return rc;
}

static int
read_json(di_rq_t *rq, const char *body, size_t len)
{
    di_req_t *req = rq->req;
    di_err_t  err = { 0 };
    int       rc;

    rc = rq->official
         ? di_json_read_lax(&req->arena, body, len, rq->opt.depth, &req->root,
                            &err)
         : di_json_read(&req->arena, body, len, rq->opt.depth, &req->root,
                        &err);

    if (rc == DI_ENOMEM)
        return di_rq_no_memory(rq);

    if (rc == DI_OK)
        return DI_OK;

    if (rq->official)
        (void) di_rq_fail(rq, NULL, "invalid JSON request: %s", err.text);
    else
        (void) di_field_invalid(rq->e, NULL, "invalid_json", len == 0
                                ? "The request body is empty."
                                : "The request body is not valid JSON: %s.",
                                err.text);
    return rc;
}

static void
set_defaults(di_rq_t *rq)
{
    di_req_options_t *opt = &rq->opt;
    di_req_params_t  *p = &rq->req->params;

    rq->official = opt->codec == DI_CODEC_OFFICIAL
                   && rq->req->api != DI_API_COMPLETIONS;

    if (opt->depth == 0)
        opt->depth = rq->official ? DI_JSON_DEPTH_OFFICIAL : DEPTH_DEFAULT;

    if (opt->messages == 0)
        opt->messages = MESSAGES_DEFAULT;

    if (opt->max_tokens == 0)
        opt->max_tokens = BOUND_DEFAULT;

    if (opt->max_tokens_thinking == 0)
        opt->max_tokens_thinking = BOUND_DEFAULT;

    if (opt->n_models == 0) {
        opt->models = default_models;
        opt->n_models = sizeof(default_models) / sizeof(default_models[0]);
    }

    rq->req->codec = opt->codec;
    rq->req->conv.open_assistant = true;
    rq->req->conv.now = rq->opt.now;
    rq->req->store = true;
    p->temperature = 1;
    p->top_p = 1;
    p->repetition_penalty = 1;
    p->n = 1;
    p->parallel_tool_calls = true;
}

int
di_req_parse(di_api_t api, const di_req_options_t *options, const char *body,
             size_t len, di_req_t **out, di_api_err_t *e)
{
    static const di_api_ops_t *const apis[] = {
        [DI_API_CHAT] = &di_api_chat, [DI_API_RESPONSES] = &di_api_responses,
        [DI_API_MESSAGES] = &di_api_messages,
        [DI_API_COMPLETIONS] = &di_api_completions,
    };
    di_rq_t rq = { .e = e };
    int     rc;

    rq.req = calloc(1, sizeof(*rq.req));
    if (rq.req == NULL)
        return di_rq_no_memory(&rq);

    if (options != NULL)
        rq.opt = *options;
    rq.req->api = api;
    set_defaults(&rq);

    rc = read_json(&rq, body, len);
    if (rc == DI_OK)
        rc = rq.official ? read_official(&rq, apis[api])
                         : read_strict(&rq, apis[api]);

    if (rc != DI_OK && rc != DI_EAGAIN) {
        di_req_close(rq.req);
        return rc;
    }

    *out = rq.req;
    return rc;
}

void
di_req_close(di_req_t *req)
{
    if (req == NULL)
        return;

    di_sbuf_free(&req->ignored);
    di_arena_free(&req->arena);
    free(req);
}

/* -------------------------------------------------------------- accessors */

di_api_t
di_req_api(const di_req_t *req)
{
    return req->api;
}

di_codec_t
di_req_codec(const di_req_t *req)
{
    return req->codec;
}

di_family_t
di_req_family(const di_req_t *req)
{
    return req->family;
}

di_str_t
di_req_model(const di_req_t *req)
{
    return req->model;
}

const di_conv_t *
di_req_conv(const di_req_t *req)
{
    return &req->conv;
}

const di_req_params_t *
di_req_params(const di_req_t *req)
{
    return &req->params;
}

const di_parsing_t *
di_req_parsing(const di_req_t *req)
{
    return &req->parsing;
}

const di_constraint_t *
di_req_constraint(const di_req_t *req)
{
    return &req->constraint;
}

di_str_t
di_req_ignored(const di_req_t *req)
{
    return (di_str_t) { req->ignored.len == 0 ? "" : req->ignored.data,
                        req->ignored.len };
}

const di_json_t *
di_req_body(const di_req_t *req)
{
    return req->root;
}

bool
di_req_store(const di_req_t *req)
{
    return req->store;
}

di_str_t
di_req_previous(const di_req_t *req)
{
    return req->previous;
}

const di_prompt_t *
di_req_prompts(const di_req_t *req, size_t *n)
{
    *n = req->n_prompts;
    return req->prompts;
}

const di_tool_t *
di_req_tool(const di_req_t *req, di_str_t name)
{
    const di_tool_t *t;
    size_t           i;

    for (i = 0; i < req->n_tools; i++) {
        t = req->tools[i];
        if (t->name.len == name.len
            && memcmp(t->name.data, name.data, name.len) == 0)
            return t;
    }

    return NULL;
}
