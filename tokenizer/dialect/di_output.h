/*
 * di_output.h - the grammar of a whole output.
 *
 * What a request asks for (the answer's format, calls of tools and which of
 * them, how many) and how the dialect spells an output (reasoning, markers of
 * calls) make one grammar, from the first generated token to the end of the
 * turn; the engine needs to know of neither.  It is a text of the kind
 * DI_GRAM_OUTPUT, whose embedded parts (schemas, regular expressions) came
 * from fields of the request: errors of the compiler name those.
 */

#ifndef DI_OUTPUT_H
#define DI_OUTPUT_H

#include "../api/di_api.h"
#include "../grammar/di_grammar.h"

/* An embedded part of the text. */
typedef struct {
    const char *param;           /* field that it is from; the request's    */
    char       *path;            /* where in that field it stands: "",
                                  * "/properties/x"; own                    */
    const char *root;            /* and where that is in the part: "#",
                                  * "#/allOf/0"                             */
} di_output_part_t;

/* Zero-initialised is empty. */
typedef struct {
    di_sbuf_t         text;
    di_output_part_t *parts;     /* [n], in the order of the text           */
    size_t            n;
    size_t            cap;
} di_output_t;

/* Make the text.  len 0: nothing has to be held.  Borrows all but `out`, whose
 * parts point into the request; free it in any case.  DI_OK; DI_EUNSUPPORTED
 * with *e filled (400): the dialect can't hold what was asked; DI_ENOMEM
 * (500).  O(text). */
int di_dialect_grammar(const di_dialect_t *dialect, const di_conv_t *conv,
                       const di_parsing_t *parsing,
                       const di_constraint_t *constraint, di_output_t *out,
                       di_api_err_t *e);
void di_output_free(di_output_t *out);

/* That the text didn't compile, as an API shows it: a 400 that names field,
 * keyword and path, or a 500. */
void di_output_error(const di_output_t *out, const di_gram_err_t *err,
                     di_api_err_t *e);

#endif
