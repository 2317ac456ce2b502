/*
 * tokenizer_json.c - fuzz the reader of tokenizer.json.
 *
 * What opens must be JSON to jansson, too, but for a key with a NUL, which it
 * can't keep; and have the same entries: each of $.model.vocab that isn't
 * added has its id's bytes, in number at most those of its spelling.  Then
 * the text is encoded in its own vocabulary: no id is that of an added token,
 * and if it is ASCII, which NFC doesn't change, the bytes of the ids are those
 * of the text in order, less those without a token.
 */

#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "tokenizer/vocab/di_vocab.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
must(bool cond)
{
    if (!cond)
        abort();
}

static void
check_entries(const di_vocab_t *v, const char *text, size_t len)
{
    json_error_t fault;
    json_t      *json = json_loadb(text, len, JSON_ALLOW_NUL, &fault), *id;
    json_t      *words = json_object_get(json_object_get(json, "model"),
                                         "vocab");
    const char  *key;

    if (json == NULL && json_error_code(&fault) == json_error_null_byte_in_key)
        return;
    must(json_is_object(json) && json_is_object(words));
    json_object_foreach(words, key, id) {
        size_t n = 0;

        must(json_is_integer(id));
        must(di_vocab_bytes(v, (int32_t) json_integer_value(id), &n) != NULL);
        must(n <= strlen(key) || strlen(key) == 0);
    }
    json_decref(json);
}

static void
check_encoding(const di_vocab_t *v, const char *text, size_t len)
{
    int32_t  *ids = malloc(3 * len * sizeof(*ids) + 1);
    bool      plain = true;
    size_t    n, pos = 0;
    di_tok_t *tok = NULL;
    int       rc;

    for (size_t i = 0; i < len; i++)
        plain &= (text[i] & 0x80) == 0;
    must(ids != NULL && di_tok_open(v, &tok) == DI_OK);
    rc = di_tok_encode(tok, text, len, ids, 3 * len, &n);
    must(rc == DI_OK || (rc == DI_ELIMIT && n == 0));
    for (size_t i = 0; i < n; i++) {
        size_t      id_len;
        const char *s = di_vocab_bytes(v, ids[i], &id_len);

        must(s != NULL && id_len > 0 && !di_vocab_is_added(v, ids[i]));
        for (size_t k = 0; plain && k < id_len; k++) {
            while (pos < len && text[pos] != s[k])
                pos++;
            must(pos++ < len);
        }
    }
    di_tok_close(tok);
    free(ids);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char       *text = malloc(size);    /* its end is the block's            */
    di_vocab_t *v;
    di_err_t    err = { 0 };

    must(text != NULL || size == 0);
    if (size > 0)
        memcpy(text, data, size);
    if (di_vocab_open_hf(text, size, &v, &err) == DI_OK) {
        check_entries(v, text, size);
        check_encoding(v, text, size);
        di_vocab_close(v);
    } else {
        must(err.text[0] == '$' || err.code == DI_ENOMEM);
    }
    free(text);
    return 0;
}
