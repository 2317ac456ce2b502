/*
 * chat_parse.h - what the readers of a Chat Completions body share.
 */

#ifndef DI_CHAT_PARSE_H
#define DI_CHAT_PARSE_H

#include "di_chat.h"
#include "field.h"

#define DI_CHAT_NO_TOOLS  "this server does not do tool calls"

struct di_chat_req_s {
    di_arena_t       arena;      /* holds everything below                  */
    di_str_t         model;
    di_msg_t        *msgs;
    di_conv_t        conv;       /* of msgs                                 */
    di_chat_params_t params;
    di_sbuf_t        ignored;    /* names, joined by ", "                   */
};

typedef struct {
    di_chat_req_t   *req;
    di_chat_limits_t limits;     /* defaults filled in                      */
    di_api_err_t    *e;
    uint32_t         max_completion_tokens;  /* 0: not given                */
    bool             has_stream_options;
    bool             has_top_logprobs;
    char             path[96];   /* of the field being read                 */
} di_chat_parser_t;

/* Fill *e with a 500; DI_ENOMEM. */
int di_chat_no_memory(di_chat_parser_t *ps);

/* Print into ps->path; returns it. */
const char *di_chat_path(di_chat_parser_t *ps, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Keep the name of an unknown field, once; prefix says where it stood. */
void di_chat_note_ignored(di_chat_parser_t *ps, const char *prefix,
                          const di_json_t *v);

/* Read the value of "messages" to req->msgs and req->conv. */
int di_chat_messages(di_chat_parser_t *ps, const di_json_t *v);

#endif
