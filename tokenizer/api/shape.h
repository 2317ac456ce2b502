/*
 * shape.h - descriptions of what a body's values may be.
 *
 * One description serves both codecs: the official one reads it as serde
 * would (the first fault in the order of the body wins, missing fields come
 * after, in the order of the description, and the words are serde's); the
 * strict one takes the same walk, names the path and keeps the names of
 * unknown fields.  Members and variants may belong to one codec alone.
 */

#ifndef DI_SHAPE_H
#define DI_SHAPE_H

#include "req.h"

typedef enum {
    DI_SHAPE_ANY = 0, DI_SHAPE_TEXT, DI_SHAPE_BOOL, DI_SHAPE_U8,
    DI_SHAPE_U32, DI_SHAPE_U64, DI_SHAPE_I64,
    DI_SHAPE_F32,                /* or another real that is called `name`   */
    DI_SHAPE_LIST,               /* of                                      */
    DI_SHAPE_MAP,                /* any object                              */
    DI_SHAPE_STRUCT,             /* members                                 */
    DI_SHAPE_ENUM,               /* a string: variants' names               */
    DI_SHAPE_TAGGED,             /* a struct: the member `tag` picks it     */
    DI_SHAPE_PAIR,               /* the same where the rest is one member:
                                  * the tag is an enum, looked at first     */
    DI_SHAPE_LOOSE,              /* a struct; official: what is no object
                                  * counts as an empty one                  */
    DI_SHAPE_TEXT_OR_LIST,       /* of; name: the official complaint        */
    DI_SHAPE_CUSTOM,             /* check                                   */
} di_shape_kind_t;

typedef struct di_shape_s di_shape_t;

enum {
    DI_MEMBER_REQUIRED = 1,      /* null: strict, absent; official, wrong   */
    DI_MEMBER_STRICT   = 2,      /* known to the strict codec alone         */
    DI_MEMBER_OFFICIAL = 4,      /* to the official one alone               */
    DI_MEMBER_NOT_NULL = 8,      /* may be absent; null: as if required     */
};

typedef struct {
    const char       *name;      /* NULL ends a list                        */
    const di_shape_t *shape;     /* NULL: any                               */
    unsigned          flags;
    const char       *refuse;    /* strict: why it can't be honoured        */
} di_member_t;

struct di_shape_s {
    di_shape_kind_t    kind;
    const char        *name;     /* serde's name for it, or a complaint     */
    const char        *tag;      /* TAGGED                                  */
    const di_shape_t  *of;       /* LIST, TEXT_OR_LIST                      */
    const di_member_t *members;  /* STRUCT: members; ENUM, TAGGED: variants */
    int              (*check)(di_rq_t *rq, const di_json_t *v);
    const char        *expects;  /* strict: what should have been there     */
};

extern const di_shape_t di_shape_text, di_shape_bool, di_shape_u8,
                        di_shape_u32, di_shape_u64, di_shape_f32,
                        di_shape_map, di_shape_texts,
                        di_shape_effort;
/* How closely an image is looked at. */
extern const di_shape_t di_shape_detail;

/* Chat's response_format; the list of an allowed_tools choice and its mode. */
extern const di_shape_t di_shape_response_format, di_shape_allowed;

/* The bodies of the APIs. */
extern const di_shape_t di_shape_chat, di_shape_responses, di_shape_messages;
/* Responses: a list of items. */
extern const di_shape_t di_shape_items;

/* Responses: is this the type of a tool that may be declared; of a search of
 * the web? */
bool di_shape_is_tool(const di_json_t *type);
bool di_shape_is_web_search(const di_json_t *type);

/* thinking{type,budget_tokens} */
extern const di_member_t di_thinking_members[];
/* Its type. */
extern const di_shape_t di_shape_thinking;

/* Strict: a tool's allowed_callers, among them "direct", the model. */
extern const di_shape_t di_shape_callers;

/* Check a value, at rq->path.  DI_OK or DI_EINVAL. */
int di_shape_check(di_rq_t *rq, const di_shape_t *shape, const di_json_t *v);

/* "invalid request body: ..." */
int di_shape_fail(di_rq_t *rq, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* serde's "invalid type: G, expected X", or the strict sentence. */
int di_shape_wrong(di_rq_t *rq, const di_json_t *v, const char *expected,
                   const char *strict);

#endif
