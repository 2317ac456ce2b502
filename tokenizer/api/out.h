/*
 * out.h - what the writers of the APIs share.
 *
 * out.c takes the parser's deltas and makes items of them: a run of
 * reasoning, a run of answer, a call.  An API's writer (di_out_ops_t) is told
 * of each item's beginning, parts and end while a stream goes on, and finds
 * them gathered when it writes a body.
 */

#ifndef DI_OUT_INT_H
#define DI_OUT_INT_H

#include "di_out.h"
#include "json.h"

typedef struct {
    di_delta_kind_t  kind;       /* DI_DELTA_REASONING, _TEXT or _CALL      */
    di_sbuf_t        text;       /* gathered; of a call: its arguments      */
    di_sbuf_t        logprobs;   /* gathered: entries with commas between   */
    const di_tool_t *tool;       /* CALL: the declared one, or NULL         */
    di_str_t         name;       /* CALL: as the model wrote it; the tool's,
                                  * or that of                              */
    di_sbuf_t        unknown;    /* CALL: the name of no declared tool      */
    uint32_t         call;       /* CALL: which of the choice's             */
    char             call_id[48];
    bool             closed;     /* another item follows, or the end        */
    bool             before_call;        /* that other item is a call       */

    /* Responses, custom tools: is `text` the tool's input already? */
    enum {
        DI_INPUT_HELD = 0,       /* the first key isn't known yet           */
        DI_INPUT_RAW,            /* arguments, as they come                 */
        DI_INPUT_VALUE,          /* inside the value of "input"             */
        DI_INPUT_DONE,           /* behind it                               */
    } input;
    di_sbuf_t        held;       /* the arguments while HELD                */
} di_item_t;

/* A log-probability entry that was not written yet. */
typedef struct {
    uint64_t from, end;          /* places of its token's bytes             */
    size_t   json_len;           /* length of its JSON                      */
} di_entry_t;

/* Oldest first. */
typedef struct {
    di_sbuf_t   json;            /* the entries' JSON, end to end           */
    di_entry_t *entries;         /* [n]                                     */
    size_t      n;
    size_t      cap;
    size_t      n_placed;        /* the first so many have their places     */
    uint64_t    shown;           /* text was shown up to here               */
} di_entries_t;

typedef struct {
    di_out_t    *out;
    uint32_t     index;
    di_parse_t  *parse;
    uint32_t     tokens;         /* completion tokens so far                */
    uint32_t     reasoning_tokens;
    uint32_t     calls;
    di_end_t  reason;         /* 0: not finished                         */
    int          stop;           /* stop string that was met, or -1         */
    bool         cut;            /* it ended before a call too many         */
    bool         reasoned;       /* some reasoning was given out            */
    bool         opened;         /* Chat: the role was told                 */
    di_entries_t entries;
    di_item_t   *items;          /* [n_items]                               */
    size_t       n_items;
    size_t       items_cap;
    di_sbuf_t    args;           /* of the call under way: what came with
                                  * the tokens at hand                      */
    bool         nomem;          /* anything but text and args has failed   */
} di_choice_out_t;

/* How an API writes.  Each appends to out->sse; all but body are for streams
 * only. */
typedef struct {
    void (*start)(di_out_t *out);
    void (*item_begin)(di_out_t *out, di_choice_out_t *c, di_item_t *item);
    /* A part of the item's text or arguments; logprobs: entries with commas,
     * or "". */
    void (*item_part)(di_out_t *out, di_choice_out_t *c, di_item_t *item,
                      const char *data, size_t len, const di_sbuf_t *logprobs);
    void (*item_end)(di_out_t *out, di_choice_out_t *c, di_item_t *item);
    void (*choice_begin)(di_out_t *out, di_choice_out_t *c);
    void (*choice_end)(di_out_t *out, di_choice_out_t *c);
    void (*end)(di_out_t *out);
    void (*body)(di_out_t *out, di_sbuf_t *body);
} di_out_ops_t;

extern const di_out_ops_t di_out_chat;
extern const di_out_ops_t di_out_responses;
extern const di_out_ops_t di_out_messages;

struct di_out_s {
    const di_out_ops_t    *ops;
    const di_req_t        *req;
    const di_req_params_t *params;
    const di_vocab_t      *vocab;
    di_tok_t              *tok;          /* NULL: open one if need be        */
    di_rules_t            *rules;
    bool                   official;
    bool                   stream;
    bool                   thinking;     /* a stage of thinking was set     */
    bool                   logprobs;     /* entries are written             */
    bool                   show_ends;    /* as of di_out_conf_t             */
    bool                   gather;       /* items keep their text           */
    uint64_t               hidden;       /* bit id % 64 of each token that is
                                          * not shown                       */

    di_sbuf_t              id;           /* the inside of its JSON string   */
    di_sbuf_t              model;        /* these two NUL-terminated        */
    di_sbuf_t              signature;
    di_sbuf_t              fingerprint;  /* JSON: a string or null          */
    int64_t                created;
    bool                   started;
    uint32_t               prompt_tokens;
    uint32_t               cached_tokens;

    /* What many events begin and go on and end with, formatted once. */
    di_sbuf_t              head;
    size_t                 head_base;    /* Chat: of it, up to "choices":[  */
    di_sbuf_t              tail;
    size_t                 tail_entries; /* Responses: place of entries of
                                          * log-probabilities in it         */
    uint64_t               sequence;     /* Responses                       */
    bool                   pinged;       /* Messages                        */
    size_t                 n_random;     /* of them not used yet: the first */
    unsigned char          random[240];  /* for calls' ids                  */
    di_sbuf_t              taken;        /* entries of the part at hand     */

    di_sbuf_t             *sse;          /* of the call at hand             */
    uint32_t               running;      /* choices not finished            */
    uint32_t               n;
    di_choice_out_t        choices[];    /* [n]                             */
};

#define di_sbuf_str(b, s)  di_sbuf_piece(b, s, strlen(s))

/* The item that is under way, begun if there is none of the kind. */
di_item_t *di_out_item(di_choice_out_t *c, di_delta_kind_t kind);

/* The last item, or NULL. */
static inline di_item_t *
di_out_last(const di_choice_out_t *c)
{
    return c->n_items == 0 ? NULL : &c->items[c->n_items - 1];
}

/* A call's arguments as a JSON object.  Those that are none (the model was
 * cut off, or wrote none): official, {}; else {"arguments":TEXT}. */
void di_out_write_input(const di_out_t *out, di_sbuf_t *b,
                        const di_sbuf_t *text);

/* The choice's finish reason in Chat's words, "" while it runs. */
const char *di_out_choice_reason(const di_choice_out_t *c);

/* Prompt tokens that were not cached. */
static inline uint32_t
di_out_missed(const di_out_t *out)
{
    return out->cached_tokens >= out->prompt_tokens ? 0
           : out->prompt_tokens - out->cached_tokens;
}

#endif
