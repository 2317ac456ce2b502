/*
 * req.h - what the readers of the APIs' requests share.
 *
 * A body goes through three stages: JSON to a tree (json.h), the tree's shape
 * checked against the API's description (shape.h), and the conversion, which
 * may then take every value for what it should be.  Conversion is the same
 * code for both codecs; they differ in what the descriptions list, in the
 * words of errors, and in the handling of sampling fields.
 */

#ifndef DI_REQ_H
#define DI_REQ_H

#include "field.h"

struct di_req_s {
    di_arena_t       arena;      /* holds everything below                  */
    di_json_t       *root;       /* the body                                */
    di_api_t         api;
    di_codec_t       codec;
    di_family_t      family;
    di_str_t         model;
    di_msg_t        *msgs;       /* [msgs_cap], conv.n_msgs in use          */
    size_t           msgs_cap;
    di_tool_t      **tools;      /* [tools_cap], n_tools in use: declared,
                                  * before tool_choice                      */
    size_t           n_tools;
    size_t           tools_cap;
    di_conv_t        conv;
    di_req_params_t  params;
    di_parsing_t     parsing;
    di_constraint_t  constraint;
    di_sbuf_t        ignored;    /* names, joined by ", "                   */
    uint32_t         bound;      /* official: most output tokens            */
    bool             store;
    di_str_t         previous;
    di_prompt_t     *prompts;
    size_t           n_prompts;
    const di_json_t *history;    /* Responses: items before the input       */
};

/* A set of strings with a number each: open addressing in the arena. */
typedef struct {
    struct di_name_s { di_str_t key; size_t value; } *slots;
    size_t    n;
    size_t    cap;               /* a power of two, 0: empty                */
    uint64_t  seed;
} di_names_t;

/* One request being read. */
typedef struct {
    di_req_t         *req;
    di_req_options_t  opt;       /* defaults filled in                      */
    di_api_err_t     *e;
    bool              official;
    bool              v41;       /* conversion by the rules of V4.1         */
    bool              sees;      /* images are taken: official V4.1, strict
                                  * a model with vision                     */
    di_names_t        tool_names;        /* to indexes of req->tools        */
    uint32_t          max_completion_tokens;     /* strict Chat, 0: none    */
    uint32_t          best_of;           /* Completions, 0: not given       */
    bool              has_stream_options;
    char              path[96];  /* of the field being read                 */
} di_rq_t;

/* ----------------------------------------------------------------- errors */

/* Fill *e with a 500; DI_ENOMEM. */
int di_rq_no_memory(di_rq_t *rq);

/* A request that is well-formed but can't be served: DI_EINVAL.  The official
 * codec shows neither `path` nor a code of its own. */
int di_rq_fail(di_rq_t *rq, const char *path, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Print into rq->path, cut where it is full; returns it.  The format has %s
 * and %zu only. */
const char *di_rq_path(di_rq_t *rq, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* The same behind what rq->path has; returns its length before. */
size_t di_rq_enter(di_rq_t *rq, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Keep the name of an unknown field, once; prefix says where it stood. */
void di_rq_note_ignored(di_rq_t *rq, const char *prefix, const di_json_t *v);

/* ----------------------------------------------------------------- values */

/* A member that is there and not null, or NULL. */
const di_json_t *di_rq_get(const di_json_t *object, const char *name);
/* The text of such a member, or data NULL. */
di_str_t di_rq_text(const di_json_t *object, const char *name);
bool di_rq_true(const di_json_t *object, const char *name);
/* Is v the string `text`? */
bool di_rq_is(const di_json_t *v, const char *text);
/* Its double; v is a number. */
double di_rq_number(const di_json_t *v);

/* Find a name; with `add` put it in with `value` if it isn't there.  *found
 * is the value that it has or had (*known), DI_OK or DI_ENOMEM. */
int di_names_put(di_rq_t *rq, di_names_t *names, di_str_t key, size_t value,
                 size_t *found, bool *known);
bool di_names_get(const di_names_t *names, di_str_t key, size_t *value);

/* --------------------------------------------------------------- building */

/* A new message at the end, cleared; NULL: out of memory. */
di_msg_t *di_rq_add_msg(di_rq_t *rq, di_role_t role);

/* Texts joined to one, and the images among them.  Zero-initialised with a
 * separator is empty.  A single text is borrowed, not copied. */
typedef struct {
    const char *separator;
    di_str_t    text;
    size_t      cap;             /* of text, 0: borrowed                    */
    size_t      n;               /* texts so far                            */
    di_image_t *images;
    size_t      n_images;
    size_t      images_cap;
} di_content_t;

int di_content_add(di_rq_t *rq, di_content_t *c, di_str_t text);
/* An image's placeholder, with its separator. */
int di_content_image(di_rq_t *rq, di_content_t *c, const di_image_t *image);
/* Hand it to a message: content (never NULL) and images. */
void di_content_give(di_content_t *c, di_msg_t *m);

/* A buffer's text, copied to the arena; the buffer is freed. */
int di_rq_keep(di_rq_t *rq, di_sbuf_t *b, di_str_t *out);
/* Texts of clients, which may hold NULs, end to end; data NULL ends the
 * list. */
int di_rq_join(di_rq_t *rq, di_str_t *out, const di_str_t *parts);
#define DI_STR_END       { NULL, 0 }
/* printf() to the arena. */
int di_rq_print(di_rq_t *rq, di_str_t *out, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* data:TYPE;base64,... (data_url.c). */
typedef struct {
    di_str_t type;               /* without parameters                      */
    bool     base64;
    bool     good;               /* what follows is base64                  */
} di_data_url_t;

/* False: it is none. */
bool di_rq_data_url(di_str_t url, di_data_url_t *data);
/* Base64 that isn't in a URL; its padding is cut off. */
bool di_rq_base64(di_str_t *s);

/* An image by its URL, with errors that begin with `at`. */
int di_rq_image_url(di_rq_t *rq, const char *at, const char *long_at,
                    di_str_t url, const di_json_t *detail, di_image_t *image);

/* An image file as a data URL; fills all of *image but its path. */
int di_rq_file_data(di_rq_t *rq, const char *at, di_str_t url,
                    di_image_t *image);

#define DI_UNSUPPORTED_IMAGE  "[Unsupported Image]"

/* ------------------------------------------------------------------ parts */

/* Take up a tool that stands at `path`.  parameters NULL: none were given. */
int di_rq_add_tool(di_rq_t *rq, const di_tool_t *tool, const char *path,
                   const di_json_t *parameters);
/* Description and parameters of the custom tool apply_patch. */
int di_rq_apply_patch(di_rq_t *rq, di_tool_t *tool);
/* Parameters of any other custom tool, one text, `input`: what the model reads
 * and what its calls are held to; and the arguments of a call of one. */
extern const di_json_t di_rq_text_parameters;
extern const di_json_t di_rq_text_schema;
/* The schema of a strict tool without parameters. */
extern const di_json_t di_rq_no_parameters;
int di_rq_input_arguments(di_rq_t *rq, di_str_t input, di_str_t *arguments);
/* Once all tools and messages are known, before the choice is read: names
 * and schemas; then the conversation has the tools.  none: none is offered. */
int di_rq_check_tools(di_rq_t *rq, bool none);
int di_rq_check_tool_name(di_rq_t *rq, di_str_t name, const char *path);
bool di_rq_is_name_char(char c);

/* Is `schema` a JSON Schema?  On failure *why is the reason. */
int di_schema_check(di_rq_t *rq, const di_json_t *schema, di_str_t *why);
/* The strict rewriting of a schema; errors begin with `prefix` where the
 * schema can't be read.  *lossy (may be NULL): it says less than the schema
 * does. */
int di_schema_strict(di_rq_t *rq, const di_json_t *schema, bool response,
                     di_json_t **out, bool *lossy);

/* thinking{type}, and the effort's name (NULL: none): conv.thinking and
 * effort.  Strict: a model without thinking refuses either by its path. */
int di_rq_set_thinking(di_rq_t *rq, const di_json_t *type,
                       const di_json_t *effort, const char *effort_path);

/* Force a tool by its name. */
int di_rq_choose_tool(di_rq_t *rq, di_str_t name);
/* Strict: only the tools of a list may be called.  Each of its objects names
 * one, itself or in a member `function` or `custom`. */
int di_rq_allow_tools(di_rq_t *rq, const di_json_t *list, const char *path);
/* Strict: the grammar of a custom tool at rq->path, an object of `syntax` and
 * `definition`; the tool is held to it. */
int di_rq_custom_grammar(di_rq_t *rq, const di_json_t *grammar,
                         di_tool_t *tool);
/* After tools and choice: what conversation and parser get of them. */
int di_rq_finish_choice(di_rq_t *rq);

/* After all messages: reasoning is dropped outside thinking mode, and in it
 * never absent.  With that option, calls since the user's last message must
 * have theirs; `field` names it in the error. */
int di_rq_reasoning(di_rq_t *rq, const char *field);

/* Some content has "json" in some letter case. */
bool di_rq_has_word_json(const di_rq_t *rq);

/* json_schema and its like, at rq->path: the conversation and the constraint
 * get it.  NULL `strict` means no. */
int di_rq_set_schema(di_rq_t *rq, const di_json_t *schema,
                     const di_json_t *strict);
/* Strict: the `name` of a format, as OpenAI wants it. */
int di_rq_check_format_name(di_rq_t *rq, const di_json_t *format,
                            const char *path);
/* Chat's response_format, with the schema or, official, without it, which
 * comes later. */
int di_rq_response_format(di_rq_t *rq, const di_json_t *v);
int di_rq_response_schema(di_rq_t *rq, const di_json_t *v);
/* The answer is held to this; a second one is an error that names both. */
int di_rq_constrain(di_rq_t *rq, di_constraint_kind_t kind, di_str_t text,
                    const char *param);
/* Strict: is this a field of vLLM's or SGLang's, or our own, that constrains
 * the answer?  If so, it is read. */
int di_rq_constraint_field(di_rq_t *rq, const di_json_t *v, bool *known);

/* Official ranges, in the API's order. */
int di_rq_official_temperature(di_rq_t *rq);
int di_rq_official_top_p(di_rq_t *rq);
int di_rq_official_top_logprobs(di_rq_t *rq);
int di_rq_official_max_tokens(di_rq_t *rq, const char *name, bool lower);
int di_rq_official_stops(di_rq_t *rq, const char *name);

/* Strict: "Unsupported value: 'PATH' is 'VALUE', supported: ...". */
int di_rq_unsupported_value(di_rq_t *rq, const char *path,
                            const di_str_t *value, const char *supported);

/* Strict: read a field of sampling or another one that needs no conversion.
 * *known false: no such field. */
int di_rq_param(di_rq_t *rq, const di_json_t *v, bool *known);
int di_rq_check_params(di_rq_t *rq);

/* What the engine is held to; last of all. */
int di_rq_set_constraint(di_rq_t *rq);

/* ------------------------------------------------------------------- APIs */

struct di_shape_s;

typedef struct {
    const struct di_shape_s *shape;      /* of the body                     */
    int  (*convert)(di_rq_t *rq, const di_json_t *root);
    int  (*official)(di_rq_t *rq, const di_json_t *root);
                                 /* sampling fields, in their order         */
} di_api_ops_t;

extern const di_api_ops_t di_api_chat, di_api_responses, di_api_messages,
                          di_api_completions;

#endif
