/*
 * di_dialect.h - how a conversation is spelled for a model.
 *
 * A conversation (di_conv_t) is what the three APIs have in common.  A
 * dialect renders it to pieces: special-token ids, and ordinary text that
 * can never become one.  Pieces are encoded to the prompt's token ids.
 */

#ifndef DI_DIALECT_H
#define DI_DIALECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../di_err.h"
#include "../vocab/di_vocab.h"

typedef struct di_json_s di_json_t;      /* ../api/json.h                   */

typedef enum {
    DI_ROLE_SYSTEM = 0, DI_ROLE_DEVELOPER, DI_ROLE_USER, DI_ROLE_ASSISTANT,
    DI_ROLE_TOOL,
    DI_ROLE_REMINDER,            /* DeepSeek's latest_reminder              */
} di_role_t;

typedef enum {
    DI_DETAIL_LOW = 0, DI_DETAIL_HIGH, DI_DETAIL_ORIGINAL, DI_DETAIL_AUTO,
} di_detail_t;

/* An image in a message's content, where DI_IMAGE_TEXT stands for it. */
typedef struct {
    size_t      at;              /* first byte of its placeholder           */
    di_str_t    url;             /* as sent: data: or http(s):              */
    bool        data;            /* a data: URL                             */
    di_detail_t detail;
    di_str_t    path;            /* of its message, for errors              */
} di_image_t;

#define DI_IMAGE_TEXT  "<\xef\xbd\x9cimage\xef\xbd\x9c>"

/* A call that the assistant made. */
typedef struct {
    di_str_t    id;
    di_str_t    name;            /* as the model sees it                    */
    di_str_t    arguments;       /* text, hopefully a JSON object           */
} di_call_t;

typedef enum {
    DI_TOOL_FUNCTION = 0,
    DI_TOOL_CUSTOM,              /* Responses: apply_patch, input as text   */
    DI_TOOL_SEARCH,              /* Responses: the client's tool_search     */
} di_tool_kind_t;

typedef struct {
    di_str_t         name;       /* as the model sees it                    */
    di_str_t         description;        /* data NULL: none                 */
    const di_json_t *parameters; /* JSON Schema, an object                  */
    di_str_t         local;      /* the name that the client declared       */
    di_str_t         space;      /* its namespace; data NULL: none          */
    di_tool_kind_t   kind;
    int8_t           strict;     /* 1, 0; -1: not said                      */
    bool             deferred;   /* known, but not in the first list        */
    const di_json_t *schema;     /* of the arguments, as declared; what the
                                  * model reads may leave some of it out    */
    di_str_t         schema_at;  /* the field that it stands in             */
} di_tool_t;

typedef struct {
    di_role_t         role;
    di_str_t          content;   /* parts of a list are joined              */
    di_str_t          name;      /* data NULL: none                         */
    di_str_t          reasoning; /* assistant; data NULL: none given        */
    const di_call_t  *calls;     /* assistant                               */
    size_t            n_calls;
    di_str_t          call_id;   /* tool                                    */
    const di_image_t *images;    /* in the order of their places            */
    size_t            n_images;
    const di_tool_t *const *tools;       /* system: it brings these         */
    size_t            n_tools;
    bool              prefix;    /* assistant, last: the answer goes on it  */
} di_msg_t;

typedef enum {
    DI_EFFORT_NONE = 0, DI_EFFORT_LOW, DI_EFFORT_HIGH, DI_EFFORT_XHIGH,
    DI_EFFORT_MAX,
} di_effort_t;

typedef enum {
    DI_CHOICE_AUTO = 0, DI_CHOICE_NONE, DI_CHOICE_REQUIRED,
} di_tool_choice_t;

typedef enum {
    DI_FORMAT_TEXT = 0, DI_FORMAT_JSON, DI_FORMAT_SCHEMA, DI_FORMAT_REGEX,
} di_format_t;

/* Borrows everything it points at. */
typedef struct {
    const di_msg_t  *msgs;
    size_t           n_msgs;
    bool             open_assistant;     /* end with its header             */
    int64_t          now;        /* local time in seconds since 1970, for
                                  * dialects that tell the date; 0: unknown */
    bool             thinking;
    di_effort_t      effort;     /* NONE unless thinking                    */
    const di_tool_t *const *tools;
    size_t           n_tools;
    di_tool_choice_t choice;     /* a named tool: it alone is in tools, and
                                  * it is required                          */
    di_format_t      format;
    const di_json_t *schema;     /* of DI_FORMAT_SCHEMA                     */
    di_str_t         regex;      /* of DI_FORMAT_REGEX                      */
} di_conv_t;

/* What the conversion of requests must know of a dialect. */
typedef enum {
    DI_FAMILY_PLAIN = 0,
    DI_FAMILY_V4,                /* DeepSeek V4: no images, system messages
                                  * gathered in front                       */
    DI_FAMILY_V41,               /* DeepSeek V4.1                           */
} di_family_t;

enum {
    DI_CAN_TOOLS     = 1 << 0,   /* spells tools, calls and their results   */
    DI_CAN_THINK     = 1 << 1,   /* thinking can be turned on and off       */
    DI_CAN_PREFIX    = 1 << 2,   /* the last message may be a prefix        */
    DI_CAN_SEE       = 1 << 3,   /* the served model has vision             */
    DI_CAN_CONSTRAIN = 1 << 4,   /* the server constrains decoding          */
    DI_MUST_THINK    = 1 << 5,   /* with DI_CAN_THINK: it can't be off      */
};

typedef struct di_dialect_s di_dialect_t;

/* Recognise the dialect by the chat template's own text, with the default
 * system prompt that the template carries; `name` (may be NULL) overrides
 * ("chatml").  template.data may be NULL.  Checks that the vocabulary has the
 * special tokens.  DI_EUNSUPPORTED: unknown template, and the text says how
 * to name a dialect; DI_EFORMAT: a special token is missing. */
int di_dialect_open(const di_vocab_t *vocab, di_str_t template_text,
                    const char *name, di_dialect_t **dialect, di_err_t *err);
void di_dialect_close(di_dialect_t *dialect);
const char *di_dialect_name(const di_dialect_t *dialect);
di_family_t di_dialect_family(const di_dialect_t *dialect);
/* Those of DI_CAN_... that the dialect brings by itself. */
uint32_t di_dialect_caps(const di_dialect_t *dialect);

/* Render and encode.  *ids: malloc'ed, returns owned.  limit: at most so many
 * ids (DI_ELIMIT, *n then tells how many there would be).  DI_EINVAL: the
 * conversation can't be spelled (err: why, offset = index of the message,
 * whose role is at fault). */
int di_dialect_encode(const di_dialect_t *dialect, di_tok_t *tok,
                      const di_conv_t *conv, size_t limit, int32_t **ids,
                      size_t *n, di_err_t *err);

/* The same in parts, for several threads.  open() renders and cuts; each part
 * is then encoded once, by any thread, with a di_tok_t of its own; finish(),
 * after all of them, gives the ids as di_dialect_encode() would.  A part has
 * about part_bytes of text: a prompt of less is one part. */
typedef struct di_work_s di_work_t;

int di_work_open(const di_dialect_t *dialect, const di_vocab_t *vocab,
                 const di_conv_t *conv, size_t part_bytes, di_work_t **work,
                 di_err_t *err);
size_t di_work_parts(const di_work_t *work);
void di_work_encode(di_work_t *work, size_t part, di_tok_t *tok);
int di_work_finish(di_work_t *work, size_t limit, int32_t **ids, size_t *n,
                   di_err_t *err);
void di_work_close(di_work_t *work);

#endif
