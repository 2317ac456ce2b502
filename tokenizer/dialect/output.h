/*
 * output.h - what dialects write the grammar of their outputs with.
 */

#ifndef DI_OUTPUT_INT_H
#define DI_OUTPUT_INT_H

#include "dialect.h"
#include "di_output.h"
#include "../api/json.h"

/* A grammar being written.  After the first error nothing more is. */
struct di_ebnf_s {
    const di_dialect_t    *dialect;
    const di_conv_t       *conv;
    const di_parsing_t    *parsing;
    const di_constraint_t *constraint;
    di_output_t           *out;
    di_api_err_t          *e;
    int                    rc;
};

void di_ebnf_put(di_ebnf_t *w, const char *text);
void di_ebnf_print(di_ebnf_t *w, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* A literal, with its quotes. */
void di_ebnf_text(di_ebnf_t *w, const char *text, size_t len);
/* A marker: its token; its spelling where the vocabulary has none (id -1). */
void di_ebnf_mark(di_ebnf_t *w, int32_t id, const char *spelling);
/* Any text, possibly empty, in which this marker is not. */
void di_ebnf_free(di_ebnf_t *w, int32_t id, const char *spelling);

/* Where an embedded part is from, as in di_output_part_t; best_effort: what
 * can't be held is left out. */
typedef struct {
    const char *param;
    const char *path;            /* copied                                  */
    const char *root;            /* literal                                 */
    bool        best_effort;
} di_ebnf_from_t;

/* A terminal with a part: what is added to the buffer next is its JSON.  NULL:
 * there was an error. */
di_sbuf_t *di_ebnf_begin(di_ebnf_t *w, const char *terminal,
                         const di_ebnf_from_t *from);
/* The same with a schema. */
void di_ebnf_schema(di_ebnf_t *w, const char *terminal, const di_json_t *v,
                    const di_ebnf_from_t *from);

/* The kinds of value that a schema allows: too many rather than too few, but
 * 0 and one alone are exact for what schemas say in a usual way.  A part that
 * nothing satisfies is an error of the compiler.  whole: what its references
 * lead into. */
enum {
    DI_EBNF_STRING = 1, DI_EBNF_OTHER = 2,
    DI_EBNF_ANY = DI_EBNF_STRING | DI_EBNF_OTHER,
};
unsigned di_ebnf_kinds(const di_json_t *whole, const di_json_t *v);

/* A schema's text, without what says nothing of a value; false: it refers to
 * others. */
bool di_ebnf_value_text(const di_json_t *v, di_sbuf_t *b);
/* "/NAME", as a step of a pointer that a reference may hold. */
void di_ebnf_step(di_sbuf_t *b, di_str_t name);

/* A schema inside of another one. */
typedef struct {
    di_ebnf_from_t   from;       /* of the whole                            */
    const di_json_t *whole;
    const di_json_t *schema;
    const char      *path;       /* of it in the whole                      */
    const di_sbuf_t *text;       /* NULL: it refers to others               */
} di_ebnf_value_t;

/* %json or %text, with it.  no_string: and the value is no string. */
void di_ebnf_value(di_ebnf_t *w, const char *terminal,
                   const di_ebnf_value_t *v, bool no_string);

/* May tool i be called? */
bool di_ebnf_callable(const di_ebnf_t *w, size_t i);
/* What the arguments of its calls are held to, NULL: to be an object.  Strict
 * tools always; the others where a call is forced, as far as it goes. */
const di_json_t *di_ebnf_held(const di_ebnf_t *w, const di_tool_t *t,
                              di_ebnf_from_t *from);
/* {"name": NAME, "MEMBER": ARGUMENTS}, a call of a tool as JSON. */
void di_ebnf_json_call(di_ebnf_t *w, const di_tool_t *t, const char *member);
/* DI_EUNSUPPORTED: the field asks for what this dialect can't hold. */
void di_ebnf_refuse(di_ebnf_t *w, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void di_ebnf_no_memory(di_ebnf_t *w);

/* Calls in DeepSeek's markup (output_dsml.c). */
typedef struct {
    int32_t     id;              /* of the marker                           */
    const char *mark;
    const char *block;           /* tags, right behind the marker           */
    const char *invoke;
    const char *parameter;
    const char *no_parameter;    /* between the tags of a call              */
} di_dsml_t;

void di_ebnf_dsml(di_ebnf_t *w, const di_dsml_t *d);

#endif
