/*
 * parse.h - what a spelling is made of: stages, and the rules of each.
 *
 * A stage watches for the patterns of its rules.  The first to be complete
 * decides: what stood before it gets the stage's own action, the match its
 * rule's, and the rule's next stage begins afresh.  Of two that are complete
 * at one byte the rule that stands first wins.
 *
 * In a pattern, '~' is an optional space and the bytes 1 to 8 are the
 * spelling's markers.
 */

#ifndef DI_PARSE_INT_H
#define DI_PARSE_INT_H

#include "di_parse.h"
#include "../api/json.h"

/* What becomes of bytes. */
typedef enum {
    DI_ACT_SKIP = 0,
    DI_ACT_KEEP,                 /* set aside: a call's complete name makes
                                  * it void, text and the end of a call
                                  * show it as text                         */
    DI_ACT_REASONING,
    DI_ACT_TEXT,
    DI_ACT_SPACE,                /* one space for all of a piece            */
    DI_ACT_NAME,                 /* part of a call's name                   */
    DI_ACT_CALL,                 /* the name is complete                    */
    DI_ACT_JSON,                 /* part of the arguments, as it is         */
    DI_ACT_STRING,               /* the same, escaped for a JSON string     */
    DI_ACT_VALUE,                /* the same: one JSON value if it is any   */
    DI_ACT_END,                  /* a call's arguments are complete         */
    DI_ACT_BODY,                 /* part of a call that is a JSON object    */
    DI_ACT_BODY_END,             /* it is complete                          */
    DI_ACT_STOP,
} di_act_t;

/* When a rule holds. */
enum {
    DI_IF_TOOLS    = 1 << 0,
    DI_IF_JSON     = 1 << 1,
    DI_IF_NOT_JSON = 1 << 2,
    DI_NEWLINES    = 1 << 3,     /* newlines before the pattern belong to it */
    DI_AT_START    = 1 << 4,     /* while the stage is fresh                */
};

/* Of a rule's next stage: its leading bytes are still to be skipped. */
#define DI_FRESH  0x80

typedef struct {
    const char *pattern;         /* NULL: each of the stop strings          */
    uint8_t     when;            /* DI_IF_... that must hold; DI_NEWLINES   */
    uint8_t     act;             /* di_act_t of the match                   */
    uint8_t     next;            /* stage, with DI_FRESH or not             */
    const char *emit;            /* arguments' JSON that it gives, or NULL  */
} di_rule_t;

typedef struct {
    const di_rule_t *rules;      /* [n]                                     */
    size_t           n;
    uint8_t          act;        /* of what no rule takes                   */
    uint8_t          act_json;   /* the same in JSON mode                   */
    const char      *leading;    /* bytes skipped while the stage is fresh  */
    uint8_t          lead_act;   /* how: DI_ACT_SKIP or DI_ACT_KEEP         */
} di_phase_t;

typedef struct {
    const char *const *markers;  /* spellings of 1, 2, ..; NULL ends        */
    const di_phase_t  *stages;   /* [n]                                     */
    size_t             n;
    uint8_t            start[5]; /* by di_start_t                           */
    uint8_t            answer;   /* where a call that is none leads to      */
    uint8_t            done;     /* after a stop string                     */
    bool               textual;  /* a marker that the vocabulary has no token
                                  * for is told by its spelling             */
} di_spelling_t;

extern const di_spelling_t di_spelling_plain;
extern const di_spelling_t di_spelling_think;
extern const di_spelling_t di_spelling_dsml;
extern const di_spelling_t di_spelling_hermes;
extern const di_spelling_t di_spelling_llama3;
extern const di_spelling_t di_spelling_dsml_official;

/* A call that is a JSON object, as it comes (parse_body.c). */
typedef struct {
    enum {
        DI_BODY_HEAD = 0,        /* the name is looked for                  */
        DI_BODY_ARGUMENTS,       /* inside of them                          */
        DI_BODY_TAIL,            /* behind them                             */
        DI_BODY_WHOLE,           /* to be read when it is complete          */
    } state;
    di_sbuf_t text;              /* what came, but for arguments given out  */
    size_t    depth;             /* ARGUMENTS: open braces and brackets     */
    bool      string;            /* ARGUMENTS: inside a string              */
    bool      escaped;           /* ... behind a backslash                  */
} di_body_t;

typedef void (*di_body_give_pt)(void *ctx, di_delta_kind_t kind,
                                const char *data, size_t len);

/* Look at body->text.failed afterwards. */
void di_body_add(di_body_t *body, const char *data, size_t len,
                 di_body_give_pt give, void *ctx);
/* No more comes.  False: it is no call; body->text is to be shown and
 * emptied. */
bool di_body_end(di_body_t *body, di_body_give_pt give, void *ctx);

#endif
