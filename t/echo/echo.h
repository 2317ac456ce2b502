/*
 * echo.h - the echo engine's requests, and what its files do for each other.
 *
 *     echo_engine.c   options, the loop, messages
 *     request.c       from a submission to a request with its script
 *     play.c          from a script to events
 *     script.c        the script language
 */

#ifndef ECHO_H
#define ECHO_H

#include <stdio.h>

#include "../../tokenizer/grammar/di_grammar.h"
#include "script.h"

#define ECHO_BUCKETS      4096   /* of the request table                    */
#define ECHO_BLOCK_TOKENS 16     /* what the status page counts in          */

typedef struct {
    uint32_t op;                 /* operation being played                  */
    uint32_t off;                /* tokens of it that are out               */
    uint32_t sent;               /* completion tokens                       */
    uint32_t round_sent;         /* of them, since the script (re)started   */
    uint32_t per;                /* tokens of an event                      */
    uint32_t lp;                 /* index of log-probabilities, or ~0       */
    uint64_t every_us;
    bool     in_step;            /* due at multiples of every_us            */
    uint64_t due_us;             /* next event not before                   */
    bool     noend;
    bool     over;
    di_gram_match_t *match;      /* where the text stands; NULL: no grammar */
} choice_t;

typedef struct req_s {
    struct req_s   *next, *prev; /* all requests, oldest first              */
    struct req_s   *same;        /* in its bucket                           */
    uint64_t        id;
    uint32_t        conn;
    uint32_t        n_prompt;
    uint32_t        limit;       /* completion tokens of a choice           */
    uint32_t        n_over;
    uint32_t        prompt_next; /* DI_EV_PROMPT_LOGPROB position           */
    uint64_t        queued_us;
    bool            started;
    bool            paused;
    di_gen_params_t params;
    script_t        script;
    int32_t        *prompt;      /* kept for prompt log-probabilities       */
    uint32_t        n_stop_ids;
    int32_t         stop_ids[DI_GEN_STOP_IDS_MAX];
    choice_t        choice[];    /* [params.n]                              */
} req_t;

typedef struct {
    di_ipc_server_t *server;
    di_vocab_t      *vocab;
    di_tok_t        *tok;
    di_gram_index_t *index;      /* NULL: no grammar came yet               */
    req_t           *first, *last;
    req_t           *bucket[ECHO_BUCKETS];
    const char      *fallback;   /* --script: played when there is none     */
    FILE            *log;        /* NULL: --quiet                           */
    int32_t          user;       /* opens a user message; -1: none          */
    int32_t          close;      /* comes behind one                        */
    int32_t          im_end;     /* ends the output                         */
    bool             chatml;     /* the role follows as text                */
    uint32_t         vocab_size;
    uint32_t         max_model_len;
    char            *text;       /* scratch of the prompt's text            */
    size_t           text_cap;
    int32_t         *ids;        /* scratch of its tokens                   */
    size_t           ids_cap;
    di_ipc_status_t  status;
    bool             status_changed;
    uint32_t         draining;
} echo_t;

/* One line to the log, if there is one. */
__attribute__((format(printf, 2, 3)))
void echo_note(echo_t *e, const char *fmt, ...);

/* The engine can't go on. */
__attribute__((noreturn, format(printf, 1, 2)))
void echo_fail(const char *fmt, ...);

uint64_t echo_now_us(void);

/* A SUBMIT message: a new request, or its refusal. */
void echo_submit(echo_t *e, const di_ipc_msg_t *msg);

req_t *echo_find(echo_t *e, uint32_t conn, uint64_t id);
void echo_free_req(echo_t *e, req_t *r);

/* KV blocks that so many tokens would take. */
static inline uint32_t
echo_blocks(uint32_t tokens)
{
    return (tokens + ECHO_BLOCK_TOKENS - 1) / ECHO_BLOCK_TOKENS;
}

/* End one choice: its last event. */
void echo_finish(echo_t *e, req_t *r, uint32_t index, di_finish_t reason,
                 int32_t stop_id, uint32_t told);

/* One step over all requests.  true: events were sent.  *due: the earliest
 * time that one of them waits for, or UINT64_MAX. */
bool echo_step(echo_t *e, uint64_t *due);

#endif
