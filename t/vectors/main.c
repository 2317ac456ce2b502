/*
 * main.c - build/recipe-vectors [--tokenizers DIR] FILE...
 *
 * Runs every vector of the FILEs (JSON lines, plain or compressed by gzip)
 * and prints for the first that differ where and how: the path in
 * "expected", the value there and the value that came.  The last line is
 * "N passed, N failed"; the exit status is 1 if any failed, 2 if a file can't
 * be read.  DIR has a folder with a tokenizer.json for each vocabulary.
 */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <zlib.h>

#include "vectors.h"

#define SHOWN_MAX  20           /* failures that are printed                 */
#define SHOWN_BEFORE 60         /* bytes before the first difference         */
#define VOCABS_MAX 8            /* vocabularies that vectors may name        */

static const vectors_kind_t *const kinds[] = {
    &vectors_tokenize, &vectors_render, &vectors_answer, &vectors_prompt,
};

static const char *tokenizers = "t/data/tokenizer";

static struct {
    char       *name;
    di_vocab_t *vocab;
} vocabs[VOCABS_MAX];
static size_t n_vocabs;

static void *
need(void *p)
{
    if (p == NULL) {
        fprintf(stderr, "recipe-vectors: no memory\n");
        exit(2);
    }
    return p;
}

char *
vectors_read(const char *path, size_t *len)
{
    char   packed[4096], *data = NULL;
    size_t room = 0;
    gzFile f = gzopen(path, "rb");      /* takes plain files, too            */
    int    n = 0;

    if (f == NULL) {
        snprintf(packed, sizeof(packed), "%s.gz", path);
        f = gzopen(packed, "rb");
    }
    if (f == NULL)
        return NULL;

    *len = 0;
    do {
        *len += (size_t) n;
        if (*len + 1 >= room)
            data = need(realloc(data, room = room * 2 + 65536));
        n = gzread(f, data + *len, (unsigned) (room - *len - 1));
    } while (n > 0);
    gzclose(f);
    if (n < 0) {
        free(data);
        errno = EIO;
        return NULL;
    }
    data[*len] = '\0';
    return data;
}

/* "deepseek+system" is DeepSeek's vocabulary with V4.1's <｜System｜> in the
 * place of a token that means nothing. */
static void
add_system(char *json, size_t *len)
{
    static const char from[] = "<｜place▁holder▁no▁0｜>";
    static const char to[] = "<｜System｜>";
    char             *at;

    while ((at = strstr(json, from)) != NULL) {
        memcpy(at, to, strlen(to));
        memmove(at + strlen(to), at + strlen(from),
                *len - (size_t) (at - json) - strlen(from) + 1);
        *len -= strlen(from) - strlen(to);
    }
}

const di_vocab_t *
vectors_vocab(const char *name)
{
    bool     system = strcmp(name, "deepseek+system") == 0;
    di_err_t err = { 0 };
    char     path[4096], *json;
    size_t   len;

    for (size_t i = 0; i < n_vocabs; i++) {
        if (strcmp(vocabs[i].name, name) == 0)
            return vocabs[i].vocab;
    }
    if (n_vocabs == VOCABS_MAX) {
        fprintf(stderr, "recipe-vectors: over %d vocabularies\n", VOCABS_MAX);
        exit(2);
    }

    snprintf(path, sizeof(path), "%s/%s/tokenizer.json", tokenizers,
             system ? "deepseek" : name);
    json = vectors_read(path, &len);
    if (json == NULL) {
        fprintf(stderr, "recipe-vectors: %s: %s\n", path, strerror(errno));
        exit(2);
    }
    if (system)
        add_system(json, &len);
    if (di_vocab_open_hf(json, len, &vocabs[n_vocabs].vocab, &err) != DI_OK) {
        fprintf(stderr, "recipe-vectors: %s: %s\n", path, err.text);
        exit(2);
    }
    free(json);
    vocabs[n_vocabs].name = need(strdup(name));
    return vocabs[n_vocabs++].vocab;
}

/* ------------------------------------------------------------ comparing -- */

/* The bytes that two texts begin with alike, up to a character's end. */
static size_t
alike(const char *a, const char *b)
{
    size_t n = 0;

    while (a[n] != '\0' && a[n] == b[n])
        n++;
    while (n > 0 && ((unsigned char) a[n] & 0xc0) == 0x80)
        n--;
    return n;
}

/* Both values from a little before they differ. */
static void
show(const json_t *want, const json_t *got)
{
    char  *w = want == NULL ? NULL
               : json_dumps(want, JSON_ENCODE_ANY | JSON_COMPACT);
    char  *g = got == NULL ? NULL
               : json_dumps(got, JSON_ENCODE_ANY | JSON_COMPACT);
    size_t from = w == NULL || g == NULL ? 0 : alike(w, g);

    from = from > SHOWN_BEFORE ? from - SHOWN_BEFORE : 0;
    while (from > 0 && ((unsigned char) w[from] & 0xc0) == 0x80)
        from--;
    printf("    expected: %.400s\n", w == NULL ? "(nothing)" : w + from);
    printf("    got     : %.400s\n", g == NULL ? "(nothing)" : g + from);
    free(w);
    free(g);
}

static bool
same_scalar(const json_t *a, const json_t *b)
{
    if (json_is_number(a) && json_is_number(b))
        return json_is_integer(a) && json_is_integer(b)
               ? json_integer_value(a) == json_integer_value(b)
               : json_number_value(a) == json_number_value(b);
    return json_equal(a, b);
}

/* Compare by value; the first difference is printed if `print` is set.
 * path[used..] has the way here, in room bytes. */
static bool
same(const json_t *want, const json_t *got, char *path, size_t used,
     size_t room, bool print)
{
    bool        equal = true;
    const char *key;
    json_t     *value;
    size_t      i;

    if (json_is_object(want) && json_is_object(got)) {
        json_object_foreach((json_t *) want, key, value) {
            int n = snprintf(path + used, room - used, ".%s", key);

            if (!same(value, json_object_get(got, key), path,
                      used + (size_t) n < room ? used + (size_t) n : used,
                      room, print))
                return false;
        }
        json_object_foreach((json_t *) got, key, value) {
            if (json_object_get(want, key) == NULL) {
                snprintf(path + used, room - used, ".%s", key);
                equal = false;
                want = NULL;
                got = value;
                break;
            }
        }
    } else if (json_is_array(want) && json_is_array(got)) {
        size_t n_want = json_array_size(want), n_got = json_array_size(got);

        for (i = 0; i < n_want || i < n_got; i++) {
            int n = snprintf(path + used, room - used, "[%zu]", i);

            if (!same(json_array_get(want, i), json_array_get(got, i), path,
                      used + (size_t) n < room ? used + (size_t) n : used,
                      room, print))
                return false;
        }
    } else {
        equal = want != NULL && got != NULL && same_scalar(want, got);
    }

    if (!equal && print) {
        printf("    at %s\n", path);
        show(want, got);
    }
    return equal;
}

/* -------------------------------------------------------------- running -- */

static const vectors_kind_t *
kind_of(const json_t *input, const json_t *expected)
{
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        if (kinds[i]->takes(input, expected))
            return kinds[i];
    }
    return NULL;
}

json_t *
vectors_load(const char *json, size_t len, json_error_t *fault)
{
    const size_t flags = JSON_DECODE_ANY | JSON_ALLOW_NUL;
    json_t      *value = json_loadb(json, len, flags, fault);

    return value != NULL ? value
           : json_loadb(json, len, flags | JSON_DECODE_INT_AS_REAL, fault);
}

/* Run the vector on one line; false if it fails. */
static bool
run_line(const char *file, size_t number, const char *line, size_t len,
         bool print)
{
    char                  path[1024] = "expected";
    json_error_t          fault;
    json_t               *vector = vectors_load(line, len, &fault);
    json_t               *input = json_object_get(vector, "input"), *got;
    json_t               *expected = json_object_get(vector, "expected");
    const char           *name = json_string_value(json_object_get(vector,
                                                                   "name"));
    const vectors_kind_t *kind = kind_of(input, expected);
    bool                  passed = false;

    if (kind == NULL) {
        if (print)
            printf("%s:%zu: no kind of vector that is known: %s\n", file,
                   number, vector == NULL ? fault.text : "other keys");
        json_decref(vector);
        return false;
    }

    got = need(kind->run(input, line, len));
    passed = same(expected, got, path, strlen(path), sizeof(path), false);
    if (!passed && print) {
        printf("%s:%zu: %s %s\n", file, number, kind->name,
               name == NULL ? "" : name);
        (void) same(expected, got, path, strlen("expected"), sizeof(path),
                    true);
    }
    json_decref(got);
    json_decref(vector);
    return passed;
}

static void
run_file(const char *file, size_t *n_passed, size_t *n_failed)
{
    size_t len, number = 0;
    char  *data = vectors_read(file, &len), *line, *next;

    if (data == NULL) {
        fprintf(stderr, "recipe-vectors: %s: %s\n", file, strerror(errno));
        exit(2);
    }
    for (line = data; line < data + len; line = next) {
        char *end = memchr(line, '\n', (size_t) (data + len - line));

        number++;
        if (end == NULL)
            end = data + len;
        next = end + 1;
        if (end == line)
            continue;
        if (run_line(file, number, line, (size_t) (end - line),
                     *n_failed < SHOWN_MAX))
            ++*n_passed;
        else
            ++*n_failed;
    }
    free(data);
}

int
main(int argc, char **argv)
{
    size_t n_passed = 0, n_failed = 0;
    int    i = 1;

    if (argc > 2 && strcmp(argv[1], "--tokenizers") == 0) {
        tokenizers = argv[2];
        i = 3;
    }
    if (i == argc) {
        fprintf(stderr, "usage: recipe-vectors [--tokenizers DIR] FILE...\n");
        return 2;
    }
    for (; i < argc; i++)
        run_file(argv[i], &n_passed, &n_failed);

    for (size_t k = 0; k < n_vocabs; k++) {
        di_vocab_close(vocabs[k].vocab);
        free(vocabs[k].name);
    }
    printf("%zu passed, %zu failed\n", n_passed, n_failed);
    return n_failed != 0;
}
