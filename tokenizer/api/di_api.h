/*
 * di_api.h - requests of every API as one thing, and errors in each API's
 * own shape.
 *
 * A body is parsed by di_req_parse() to a di_req_t, which owns everything
 * that its accessors point at: the conversation for the dialect, what the
 * sampler needs, how the model's output is to be parsed, and what the answer
 * must echo.  Nothing here does I/O.
 *
 * Two codecs.  DI_CODEC_OFFICIAL answers exactly as DeepSeek's Recipe does,
 * quirks included; DI_CODEC_STRICT, the default, honours a documented field
 * or refuses it by name, in the API's own error shape.  docs/codec.md lists
 * every difference.
 */

#ifndef DI_API_H
#define DI_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../di_err.h"
#include "../dialect/di_dialect.h"
#include "../vocab/di_vocab.h"

typedef enum {
    DI_API_CHAT = 0,             /* Chat Completions                        */
    DI_API_RESPONSES,
    DI_API_MESSAGES,
    DI_API_COMPLETIONS,          /* the older one: prompts, no conversation */
} di_api_t;

typedef enum { DI_CODEC_STRICT = 0, DI_CODEC_OFFICIAL } di_codec_t;

/* -------------------------------------------------------------- buffers -- */

/* Growing byte buffer; zero-initialised is empty. */
typedef struct {
    char  *data;
    size_t len;
    size_t cap;
    bool   failed;               /* an allocation failed; contents are void */
} di_sbuf_t;

void di_sbuf_add(di_sbuf_t *b, const char *data, size_t len);
void di_sbuf_free(di_sbuf_t *b);

/* --------------------------------------------------------------- errors -- */

/* An error as an API shows it. */
typedef struct {
    int  status;                 /* HTTP status                             */
    char type[32];               /* invalid_request_error, ...              */
    char code[48];               /* context_length_exceeded, ...; "" = null */
    char param[96];              /* messages[1].content; "" = null          */
    char message[1024];          /* valid UTF-8                             */
} di_api_err_t;

void di_api_err_set(di_api_err_t *e, int status, const char *type,
                    const char *code, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 6, 7)));

/* The body of an error answer, without a newline.  Strict Messages has
 * {"type":"error","error":{"type","message"},"request_id"}, whose type
 * follows from the status; all else {"error":{"message","type","param",
 * "code"}}.  request_id may be NULL. */
void di_api_write_error(di_sbuf_t *b, di_api_t api, di_codec_t codec,
                        const di_api_err_t *e, const char *request_id);

/* The same inside a stream, as the event that each API has for it.
 * `sequence` is the sequence_number of Responses. */
void di_api_write_error_event(di_sbuf_t *b, di_api_t api, di_codec_t codec,
                              const di_api_err_t *e, const char *request_id,
                              uint64_t sequence);

/* ------------------------------------------------------------- requests -- */

/* Bounds of single fields; at each the request is taken, above it is a 400. */
#define DI_REQ_N_MAX             128
#define DI_REQ_TOP_LOGPROBS_MAX  20
#define DI_REQ_BIAS_MAX          1024
#define DI_REQ_STOPS_MAX         16
#define DI_REQ_STOP_BYTES_MAX    1024    /* of one stop string, strict      */
#define DI_REQ_STOP_IDS_MAX      64

/* A name that official requests may use, and the dialect behind it. */
typedef struct {
    di_str_t    name;
    di_family_t family;          /* DI_FAMILY_V4 or DI_FAMILY_V41           */
} di_model_name_t;

/* How a body is read.  Zero-initialised: strict, a plain dialect that has
 * neither tools nor thinking, every limit at its default. */
typedef struct {
    di_codec_t  codec;
    di_family_t family;          /* strict: of the model served             */
    uint32_t    caps;            /* strict: DI_CAN_..., of dialect + server */

    size_t      depth;           /* JSON nesting, 0: 64; at most 256.
                                  * Official: 127, as Recipe                */
    size_t      messages;        /* strict, 0: 4096                         */
    uint32_t    vocab;           /* strict: token ids must be below         */
    uint32_t    max_tokens;      /* official bound, 0: 393216               */
    uint32_t    max_tokens_thinking;     /* the same in thinking mode       */

    const di_model_name_t *models;       /* official, n 0: DeepSeek-V4-Pro
                                          * and DeepSeek-V4.1-Flash         */
    size_t      n_models;
    di_str_t    history;         /* strict Responses: JSON array of items
                                  * that come before the input (those of
                                  * previous_response_id); data NULL: none  */
    int64_t     now;             /* of di_conv_t                            */
    bool        no_thinking;     /* default_thinking_mode = false           */
    bool        reject_missing_reasoning;
                                 /* reasoning_content_behavior = reject     */
    bool        reject_web_search;       /* Responses: refuse, don't drop   */
    bool        drop_web_search;         /* Messages: drop, don't refuse    */
} di_req_options_t;

/* Sampling and length fields; has_* where absence matters. */
typedef struct {
    double   temperature, top_p, min_p;
    double   presence_penalty, frequency_penalty, repetition_penalty;
    int64_t  top_k;              /* 0: off                                  */
    uint64_t seed;
    bool     has_seed;
    uint32_t n;
    uint32_t max_tokens;         /* 0 = not given                           */
    uint32_t min_tokens;
    uint32_t top_logprobs;
    bool     has_top_logprobs;
    bool     logprobs;
    bool     ignore_eos;
    bool     stream;
    bool     include_usage;
    bool     parallel_tool_calls;        /* true unless refused             */
    bool     echo;               /* Completions: the prompt comes first     */
    bool     hide_thinking;      /* Messages: thinking blocks are empty     */
    const struct di_req_bias_s { int32_t id; float bias; } *bias;
    size_t   n_bias;
    const di_str_t *stop;        /* stop strings                            */
    size_t   n_stop;
    const int32_t *stop_ids;     /* stop_token_ids (vLLM's name)            */
    size_t   n_stop_ids;
} di_req_params_t;

/* What the parser of the model's output begins with. */
typedef enum {
    DI_STAGE_NONE = 0,           /* no thinking: the answer                 */
    DI_STAGE_REASONING_START,
    DI_STAGE_REASONING_CONTINUATION,     /* a prefix ended in reasoning     */
    DI_STAGE_CONTENT_CONTINUATION,       /* a prefix ended in the answer    */
} di_stage_t;

typedef struct {
    bool       tools;            /* tool calls are to be found              */
    bool       forced;           /* a call comes first: where the dialect
                                  * has one, its block is open already      */
    bool       json;             /* the answer is one JSON value            */
    bool       exact;            /* it is held to a text: newlines that it
                                  * begins with are its own                 */
    di_stage_t stage;
} di_parsing_t;

/* What the answer must be, calls of tools apart. */
typedef enum {
    DI_CONSTRAINT_NONE = 0,
    DI_CONSTRAINT_JSON,          /* text: a schema, or empty: any object    */
    DI_CONSTRAINT_REGEX,
    DI_CONSTRAINT_EBNF,
    DI_CONSTRAINT_CHOICE,        /* text: a JSON array of strings           */
} di_constraint_kind_t;

/* White space between the tokens of generated JSON. */
typedef enum {
    DI_SPACES_DEFAULT = 0,       /* the server's                            */
    DI_SPACES_COMPACT,
    DI_SPACES_FLEXIBLE,
} di_spaces_t;

/* All that a request holds the output to beside what its conversation says of
 * tools and choice; ../dialect/di_output.h makes a grammar of both. */
typedef struct {
    di_constraint_kind_t kind;
    di_str_t             text;
    const char          *param;  /* the field that asked for it             */
    const bool          *allowed;        /* [n_tools] of the conversation:
                                  * may be called; NULL: all                */
    bool                 one_call;       /* at most one                     */
    bool                 best_effort;    /* keywords that can't be held are
                                  * left out                                */
    bool                 any_order;      /* of properties                   */
    di_spaces_t          spaces;
} di_constraint_t;

/* A prompt of Completions: text, or ids (ids not NULL). */
typedef struct {
    di_str_t       text;
    const int32_t *ids;
    size_t         n_ids;
} di_prompt_t;

typedef struct di_req_s di_req_t;

/* Parse a body.  DI_OK and *req owned by the caller, or a code with *e
 * filled (status 4xx; DI_ENOMEM: 500).  options may be NULL; borrowed.
 * DI_EAGAIN, strict Responses alone: the body goes on from another response
 * and options have no history.  *req is set, but all that may be asked of it
 * is di_req_model() and di_req_previous(); close it, fetch that response's
 * items and parse again. */
int di_req_parse(di_api_t api, const di_req_options_t *options,
                 const char *body, size_t len, di_req_t **req,
                 di_api_err_t *e);
void di_req_close(di_req_t *req);

di_api_t di_req_api(const di_req_t *req);
di_codec_t di_req_codec(const di_req_t *req);
di_family_t di_req_family(const di_req_t *req);
di_str_t di_req_model(const di_req_t *req);          /* as the client said  */
const di_conv_t *di_req_conv(const di_req_t *req);
const di_req_params_t *di_req_params(const di_req_t *req);
const di_parsing_t *di_req_parsing(const di_req_t *req);
const di_constraint_t *di_req_constraint(const di_req_t *req);

/* Names of fields that were not known, "foo, bar" or "", for the log. */
di_str_t di_req_ignored(const di_req_t *req);

/* The body's tree, for what an answer echoes (api/json.h). */
const di_json_t *di_req_body(const di_req_t *req);

/* The declared tool that the model calls by this name, or NULL: those of the
 * conversation and those that its messages brought. */
const di_tool_t *di_req_tool(const di_req_t *req, di_str_t name);

/* Responses, strict: is the answer to be stored; the response that it goes on
 * from (data NULL: none). */
bool di_req_store(const di_req_t *req);
di_str_t di_req_previous(const di_req_t *req);
/* Responses: the history's and the input's items, JSON values joined by
 * commas without brackets.  What is stored with the output's items behind
 * them is the history of the next request. */
void di_req_write_items(const di_req_t *req, di_sbuf_t *b);

/* Completions: its prompts, one or more; NULL for every other API. */
const di_prompt_t *di_req_prompts(const di_req_t *req, size_t *n);

/* Output tokens for a prompt of so many in a context of so many, by the rules
 * of the codec.  DI_OK or DI_EINVAL with *e filled. */
int di_req_max_tokens(const di_req_t *req, uint32_t prompt_tokens,
                      uint32_t context, uint32_t *max, di_api_err_t *e);

#endif
