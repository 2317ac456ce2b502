/*
 * hf_json.h - reading tokenizer.json.
 *
 * Inside tokenizer/vocab only.  Two of its values are large and of one shape
 * each (the vocabulary, an object of integers; the merges, an array of
 * strings or pairs), and jansson would make half a million nodes of them:
 * 100 ms for DeepSeek's 6 MB.  So this is a cursor over the text that reads
 * those as they come, and added tokens in their usual form, and hands every
 * other value to jansson, whose judgement
 * of what JSON is counts here, too: t/fuzz/tokenizer_json.c compares.
 *
 * Functions return 1 for what they found, 0 for the end of the array or
 * object, and -1 for an error, with `at` where it is.
 */

#ifndef DI_HF_JSON_H
#define DI_HF_JSON_H

#include <jansson.h>

#include "di_vocab.h"

typedef struct {
    const char *base;       /* the text; borrowed                            */
    const char *at;         /* next byte                                     */
    const char *end;
    char       *decoded;    /* strings that had escapes, one behind the
                               other; as large as the text                   */
    size_t      n_decoded;  /* bytes                                         */
} di_hf_json_t;

/* false: no memory. */
bool di_hf_json_init(di_hf_json_t *j, const char *json, size_t len);
void di_hf_json_deinit(di_hf_json_t *j);

/* The next character that is no white space, '\0' at the end; not taken. */
static inline char
di_hf_json_peek(di_hf_json_t *j)
{
    while (j->at < j->end && (*j->at == ' ' || *j->at == '\n'
                              || *j->at == '\t' || *j->at == '\r'))
        j->at++;
    return j->at < j->end ? *j->at : '\0';
}

/* Take the character c. */
static inline int
di_hf_json_take(di_hf_json_t *j, char c)
{
    if (di_hf_json_peek(j) != c || j->at == j->end)
        return -1;
    j->at++;
    return 1;
}

/* A string, valid UTF-8; live as long as the text and the cursor. */
int di_hf_json_string(di_hf_json_t *j, di_str_t *s);

/* An integer of 0 to UINT32_MAX. */
int di_hf_json_u32(di_hf_json_t *j, uint32_t *u);

/* true or false. */
int di_hf_json_bool(di_hf_json_t *j, bool *b);

/* Having taken '{': the next key and its colon.  `first`: none came before. */
int di_hf_json_key(di_hf_json_t *j, bool first, di_str_t *key);

/* Having taken '[': is there a next element?  The cursor is then at it. */
int di_hf_json_item(di_hf_json_t *j, bool first);

/* Any value, owned by the caller; NULL: an error. */
json_t *di_hf_json_value(di_hf_json_t *j);

#endif
