/*
 * vocab_path.c - vocabularies from files and folders.
 *
 * A folder as Hugging Face has them says in up to four more files what
 * tokenizer.json doesn't: which token begins a text and which end a turn, how
 * a conversation is spelled, and what the model is called.  All of them may
 * be missing.
 */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "table.h"
#include "vocab.h"

#define PATH_FILE_MAX  ((size_t) 256 << 20)     /* bytes                     */

typedef struct {
    di_vocab_t *v;
    const char *folder;
    const char *name;       /* of the file that is read                      */
    di_err_t   *err;
} path_t;

/* Read a file whole, and a NUL; *data owned by the caller. */
static int
path_read(const char *path, char **data, size_t *len, di_err_t *err)
{
    struct stat st;
    int         rc = DI_OK;
    FILE       *f = fopen(path, "rbe");

    *data = NULL;
    if (f == NULL || fstat(fileno(f), &st) != 0) {
        rc = di_err_set(err, DI_EIO, 0, "%s: %s", path, strerror(errno));
        goto done;
    }
    if (!S_ISREG(st.st_mode) || (uint64_t) st.st_size > PATH_FILE_MAX) {
        rc = di_err_set(err, DI_EUNSUPPORTED, 0, "%s: no file of at most %zu "
                        "bytes", path, PATH_FILE_MAX);
        goto done;
    }
    *data = di_table_room((size_t) st.st_size + 1, 1);
    if (*data == NULL) {
        rc = di_err_set(err, DI_ENOMEM, 0, "no memory for %s", path);
        goto done;
    }
    *len = fread(*data, 1, (size_t) st.st_size, f);
    (*data)[*len] = '\0';
    if (ferror(f)) {
        rc = di_err_set(err, DI_EIO, 0, "%s: %s", path, strerror(errno));
        free(*data);
        *data = NULL;
    }

done:
    if (f != NULL)
        fclose(f);
    return rc;
}

static int
path_open_hf(const char *path, di_vocab_t **vocab, di_err_t *err)
{
    char  *json;
    size_t len;
    int    rc = path_read(path, &json, &len, err);

    if (rc == DI_OK)
        rc = di_vocab_open_hf(json, len, vocab, err);
    free(json);
    return rc;
}

static int
path_open_gguf(const char *path, di_vocab_t **vocab, di_err_t *err)
{
    di_gguf_t *gguf;
    int        rc = di_gguf_open(path, &gguf, err);

    if (rc == DI_OK) {
        rc = di_vocab_open_gguf(gguf, vocab, err);
        di_gguf_close(gguf);
    }
    return rc;
}

/* Read one of the other files; *data NULL if there is none. */
static int
path_read_other(path_t *p, char **data, size_t *len)
{
    char path[4096];
    int  n = snprintf(path, sizeof(path), "%s/%s", p->folder, p->name);

    *data = NULL;
    if (n < 0 || (size_t) n >= sizeof(path))
        return di_err_set(p->err, DI_EINVAL, 0, "%s: too long a path",
                          p->folder);
    if (access(path, F_OK) != 0)
        return DI_OK;
    return path_read(path, data, len, p->err);
}

static int
path_fault(path_t *p, const char *key)
{
    return di_err_set(p->err, DI_EFORMAT, 0, "%s: $.%s: no token of the "
                      "vocabulary", p->name, key);
}

/* The token that a key names by its spelling, or by an object that has it; id
 * as it was if there is none. */
static int
path_token(path_t *p, const json_t *json, const char *key, int32_t *id)
{
    const json_t *value = json_object_get(json, key);

    if (json_is_object(value))
        value = json_object_get(value, "content");
    if (value == NULL)
        return DI_OK;
    *id = -1;
    if (json_is_null(value))
        return DI_OK;
    if (json_is_string(value))
        *id = di_vocab_special(p->v, json_string_value(value),
                               json_string_length(value));
    return *id < 0 ? path_fault(p, key) : DI_OK;
}

/* The same for an id. */
static int
path_id(path_t *p, const json_t *value, const char *key, int32_t *id)
{
    if (value == NULL || json_is_null(value))
        return DI_OK;
    if (!json_is_integer(value) || json_integer_value(value) < 0
        || json_integer_value(value) >= (json_int_t) p->v->size)
        return path_fault(p, key);
    *id = (int32_t) json_integer_value(value);
    return DI_OK;
}

/* The ends of a turn: an id or several. */
static int
path_ends(path_t *p, const json_t *json)
{
    const json_t *value = json_object_get(json, "eos_token_id");
    size_t        n = json_is_array(value) ? json_array_size(value) : 1;
    int           rc = DI_OK;

    for (size_t i = 0; rc == DI_OK && i < n; i++) {
        int32_t id = -1;

        rc = path_id(p, json_is_array(value) ? json_array_get(value, i)
                                             : value, "eos_token_id", &id);
        di_vocab_add_end(p->v, id);
    }
    return rc;
}

/* Take over a chat template: a string, or named ones, of which "default" or
 * else the first counts. */
static int
path_template(path_t *p, const json_t *value)
{
    const json_t *chosen = value, *item;
    char         *text;

    if (json_is_array(value)) {
        chosen = json_object_get(json_array_get(value, 0), "template");
        for (size_t i = 0; i < json_array_size(value); i++) {
            const char *name;

            item = json_array_get(value, i);
            name = json_string_value(json_object_get(item, "name"));
            if (name != NULL && strcmp(name, "default") == 0)
                chosen = json_object_get(item, "template");
        }
    }
    if (!json_is_string(chosen))
        return DI_OK;
    text = malloc(json_string_length(chosen) + 1);
    if (text == NULL)
        return di_err_set(p->err, DI_ENOMEM, 0, "no memory for the template");
    memcpy(text, json_string_value(chosen), json_string_length(chosen) + 1);
    free(p->v->template_text);
    p->v->template_text = text;
    p->v->template_len = json_string_length(chosen);
    return DI_OK;
}

static int
path_tokenizer_config(path_t *p, const json_t *json)
{
    const json_t *add = json_object_get(json, "add_bos_token");
    int32_t       eos = -1;
    int           rc = path_token(p, json, "bos_token", &p->v->bos);

    if (rc == DI_OK)
        rc = path_token(p, json, "eos_token", &eos);
    if (rc != DI_OK)
        return rc;
    di_vocab_add_end(p->v, eos);
    if (json_is_boolean(add))
        p->v->add_bos = json_is_true(add);
    p->v->add_bos = p->v->add_bos && p->v->bos >= 0;
    return path_template(p, json_object_get(json, "chat_template"));
}

/* generation_config.json, and what config.json has of the same. */
static int
path_generation_config(path_t *p, const json_t *json)
{
    int rc = path_ends(p, json);

    if (rc == DI_OK && p->v->bos < 0)
        rc = path_id(p, json_object_get(json, "bos_token_id"), "bos_token_id",
                     &p->v->bos);
    return rc;
}

static int
path_config(path_t *p, const json_t *json)
{
    const json_t *type = json_object_get(json, "model_type");
    int           rc = path_generation_config(p, json);

    if (rc != DI_OK || !json_is_string(type))
        return rc;
    p->v->model_type = strdup(json_string_value(type));
    if (p->v->model_type == NULL)
        return di_err_set(p->err, DI_ENOMEM, 0, "no memory for the model's "
                          "type");
    return DI_OK;
}

/* A template in a file of its own. */
static int
path_jinja(path_t *p)
{
    char  *text;
    size_t len;
    int    rc = path_read_other(p, &text, &len);

    if (rc != DI_OK || text == NULL)
        return rc;
    free(p->v->template_text);
    p->v->template_text = text;
    p->v->template_len = len;
    return DI_OK;
}

static int
path_json(path_t *p, int (*take)(path_t *p, const json_t *json))
{
    json_error_t fault;
    json_t      *json;
    char        *text;
    size_t       len;
    int          rc = path_read_other(p, &text, &len);

    if (rc != DI_OK || text == NULL)
        return rc;
    json = json_loadb(text, len, JSON_ALLOW_NUL, &fault);
    free(text);
    if (!json_is_object(json))
        rc = di_err_set(p->err, DI_EFORMAT, 0, "%s: no JSON object", p->name);
    else
        rc = take(p, json);
    json_decref(json);
    return rc;
}

static int
path_open_folder(const char *folder, di_vocab_t **vocab, di_err_t *err)
{
    static const struct {
        const char *name;
        int       (*take)(path_t *p, const json_t *json);   /* NULL: jinja   */
    } files[] = {
        { "tokenizer_config.json", path_tokenizer_config },
        { "chat_template.jinja", NULL },
        { "generation_config.json", path_generation_config },
        { "config.json", path_config },
    };
    path_t p = { .folder = folder, .err = err };
    char   path[4096];
    int    rc = DI_OK;

    if (snprintf(path, sizeof(path), "%s/tokenizer.json", folder)
        >= (int) sizeof(path))
        return di_err_set(err, DI_EINVAL, 0, "%s: too long a path", folder);
    rc = path_open_hf(path, &p.v, err);
    for (size_t i = 0; rc == DI_OK && i < sizeof(files) / sizeof(*files); i++)
    {
        p.name = files[i].name;
        rc = files[i].take == NULL ? path_jinja(&p)
                                   : path_json(&p, files[i].take);
    }
    if (rc != DI_OK) {
        di_vocab_close(p.v);
        return rc;
    }
    *vocab = p.v;
    return DI_OK;
}

int
di_vocab_open_path(const char *path, di_vocab_t **vocab, di_err_t *err)
{
    char        magic[4] = { 0 };
    struct stat st;
    FILE       *f;

    if (stat(path, &st) != 0)
        return di_err_set(err, DI_EIO, 0, "%s: %s", path, strerror(errno));
    if (S_ISDIR(st.st_mode))
        return path_open_folder(path, vocab, err);

    f = fopen(path, "rbe");
    if (f == NULL)
        return di_err_set(err, DI_EIO, 0, "%s: %s", path, strerror(errno));
    (void) !fread(magic, 1, sizeof(magic), f);
    fclose(f);
    if (memcmp(magic, "GGUF", 4) == 0)
        return path_open_gguf(path, vocab, err);
    return path_open_hf(path, vocab, err);
}
