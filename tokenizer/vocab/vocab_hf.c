/*
 * vocab_hf.c - vocabularies from Hugging Face's tokenizer.json.
 *
 * Only byte-level BPE is read; whatever in the file would change the ids of
 * a text and isn't done here is refused by name.  The parts of the file may
 * come in any order, so they are gathered first and put together at its end.
 *
 * "$.post_processor" matters for one thing: a template that begins with a
 * special token makes that token bos.
 */

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "build.h"
#include "hf_json.h"
#include "table.h"

#define HF_SPLITS_MAX    8          /* of a pre-tokenizer                    */
#define HF_NESTING_MAX   4          /* sequences within sequences            */
#define HF_ELEMENT       16         /* bytes of text that an entry or a rule
                                       mostly has at least                   */
#define HF_ROOM_MAX      (1 << 20)  /* elements for which there is room
                                       before they are there                 */

/* One of $.added_tokens. */
typedef struct {
    uint32_t id;
    di_str_t content;           /* live as long as the cursor, or h->top     */
    bool     special;
    bool     late;              /* "normalized"                              */
} hf_added_t;

typedef struct {
    di_build_t   b;
    di_hf_json_t j;
    uint32_t     n_tokens;      /* in b.tokens: one more than the largest id */
    uint64_t     tokens_room;
    uint32_t     n_entries;     /* of $.model.vocab                          */
    bool         has_vocab;     /* $.model.vocab and .merges were there      */
    bool         has_merges;
    json_t      *model;         /* object: the other fields of $.model       */
    json_t      *top;           /* object: the other fields of $             */
    hf_added_t  *added;         /* [n_added] owned                           */
    size_t       n_added;
    size_t       added_room;
    char        *patterns[HF_SPLITS_MAX];   /* of the splits before the
                                   bytes, in order; owned                    */
    size_t       n_patterns;
    bool         bytes;         /* the pre-tokenizer goes to bytes           */
} hf_build_t;

/* Set the error at a JSON path. */
__attribute__((format(printf, 3, 4)))
static int
hf_error(hf_build_t *h, int code, const char *fmt, ...)
{
    char    text[sizeof(h->b.err->text)];
    va_list ap;

    va_start(ap, fmt);
    (void) vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    return di_err_set(h->b.err, code, (size_t) (h->j.at - h->j.base), "%s",
                      text);
}

/* ------------------------------------------------------------ the tables -- */

/* An array of n elements with room for number `at`; NULL: no memory, and the
 * old one stays.  At first there is as much room as the text may need: what
 * isn't touched costs nothing. */
static void *
hf_grow(const hf_build_t *h, void *array, uint64_t n, uint64_t at,
        uint64_t *room, size_t size)
{
    uint64_t more = (uint64_t) (h->j.end - h->j.at) / HF_ELEMENT;
    void    *grown;

    if (at < *room)
        return array;
    more = more < HF_ROOM_MAX ? more : HF_ROOM_MAX;
    more = *room == 0 ? more : *room * 2;
    more = more > at ? more : at + 1;
    grown = di_table_room(more, size);
    if (grown == NULL)
        return NULL;
    if (n > 0)
        memcpy(grown, array, n * size);
    free(array);
    *room = more;
    return grown;
}

/* Make room for a token; those before it that have none yet are empty. */
static int
hf_grow_tokens(hf_build_t *h, uint32_t id)
{
    di_str_t *grown = hf_grow(h, h->b.tokens, h->n_tokens, id,
                              &h->tokens_room, sizeof(*grown));

    if (grown == NULL)
        return di_build_nomem(&h->b);
    h->b.tokens = grown;
    for (; h->n_tokens <= id; h->n_tokens++)
        grown[h->n_tokens] = (di_str_t) { NULL, 0 };
    return DI_OK;
}

static int
hf_read_vocab(hf_build_t *h)
{
    int more;

    if (di_hf_json_take(&h->j, '{') < 0)
        return hf_error(h, DI_EFORMAT, "$.model.vocab: no object");
    for (;;) {
        di_str_t spelling;
        uint32_t id;

        more = di_hf_json_key(&h->j, h->n_entries == 0, &spelling);
        if (more == 0)
            return DI_OK;
        if (more < 0 || di_hf_json_u32(&h->j, &id) < 0)
            return hf_error(h, DI_EFORMAT, "$.model.vocab: entry %u is not a "
                            "string and its id", h->n_entries);
        if (id >= DI_MERGES_IDS_MAX - 1)
            return hf_error(h, DI_EUNSUPPORTED, "$.model.vocab: id %u is over "
                            "%u", id, DI_MERGES_IDS_MAX - 2);
        if (hf_grow_tokens(h, id) != DI_OK)
            return DI_ENOMEM;
        if (h->b.tokens[id].data != NULL)
            return hf_error(h, DI_EFORMAT, "$.model.vocab: two entries have "
                            "the id %u", id);
        h->b.tokens[id] = spelling;
        h->n_entries++;
    }
}

/* A rule, as "a b" or as ["a", "b"]. */
static int
hf_read_rule(hf_build_t *h, di_build_rule_t *rule)
{
    di_hf_json_t *j = &h->j;
    di_str_t      s;

    if (di_hf_json_peek(j) == '[') {
        j->at++;
        return di_hf_json_string(j, &rule->left) > 0
               && di_hf_json_take(j, ',') > 0
               && di_hf_json_string(j, &rule->right) > 0
               && di_hf_json_take(j, ']') > 0 ? 1 : -1;
    }
    if (di_hf_json_string(j, &s) < 0)
        return -1;
    *rule = di_build_rule(s);
    return 1;
}

static int
hf_read_merges(hf_build_t *h)
{
    di_build_t *b = &h->b;
    uint64_t    room = 0;
    int         more;

    b->rules_at = "$.model.merges[";
    b->rules_end = "]:";
    if (di_hf_json_take(&h->j, '[') < 0)
        return hf_error(h, DI_EFORMAT, "$.model.merges: no array");
    for (;;) {
        di_build_rule_t rule, *grown;

        more = di_hf_json_item(&h->j, b->n_rules == 0);
        if (more == 0)
            return DI_OK;
        if (more < 0 || hf_read_rule(h, &rule) < 0)
            return hf_error(h, DI_EFORMAT, "$.model.merges[%llu]: neither a "
                            "string nor a pair of strings",
                            (unsigned long long) b->n_rules);
        if (b->n_rules == DI_MERGES_MAX)
            return hf_error(h, DI_EUNSUPPORTED, "$.model.merges: over %u "
                            "rules", DI_MERGES_MAX);
        grown = hf_grow(h, b->rules, b->n_rules, b->n_rules, &room,
                        sizeof(rule));
        if (grown == NULL)
            return di_build_nomem(b);
        b->rules = grown;
        b->rules[b->n_rules++] = rule;
    }
}

static bool
hf_is(di_str_t s, const char *name)
{
    return s.len == strlen(name) && memcmp(s.data, name, s.len) == 0;
}

/* Keep the value of a key in an object. */
static int
hf_keep(hf_build_t *h, json_t *object, const char *at, di_str_t key)
{
    char    name[64];
    json_t *value = di_hf_json_value(&h->j);

    if (value == NULL)
        return hf_error(h, DI_EFORMAT, "%s.%s: no JSON, or a key twice", at,
                        di_build_show(key).text);
    snprintf(name, sizeof(name), "%.*s", (int) key.len, key.data);
    if (json_object_set_new(object, name, value) != 0)
        return hf_error(h, DI_ENOMEM, "%s: no memory", at);
    return DI_OK;
}

static int
hf_read_model(hf_build_t *h)
{
    di_str_t key;
    int      more, rc = DI_OK;

    if (di_hf_json_take(&h->j, '{') < 0)
        return hf_error(h, DI_EFORMAT, "$.model: no object");
    for (bool first = true; rc == DI_OK; first = false) {
        more = di_hf_json_key(&h->j, first, &key);
        if (more == 0)
            return DI_OK;
        if (more < 0)
            return hf_error(h, DI_EFORMAT, "$.model: no JSON object");

        if (hf_is(key, "vocab") && !h->has_vocab) {
            h->has_vocab = true;
            rc = hf_read_vocab(h);
        } else if (hf_is(key, "merges") && !h->has_merges) {
            h->has_merges = true;
            rc = hf_read_merges(h);
        } else {
            rc = hf_keep(h, h->model, "$.model", key);
        }
    }
    return rc;
}

static hf_added_t *
hf_new_added(hf_build_t *h)
{
    size_t      room = h->added_room == 0 ? 256 : h->added_room * 2;
    hf_added_t *grown;

    if (h->n_added == h->added_room) {
        grown = realloc(h->added, room * sizeof(*grown));
        if (grown == NULL)
            return NULL;
        h->added = grown;
        h->added_room = room;
    }
    h->added[h->n_added] = (hf_added_t) { 0 };
    return &h->added[h->n_added++];
}

/* An added token of the usual fields, none twice.  -1: it is no such. */
static int
hf_read_one_added(hf_build_t *h, hf_added_t *token)
{
    enum { ID = 1, CONTENT = 2 };
    static const char *const flags[] = {
        "special", "normalized", "lstrip", "rstrip", "single_word",
    };
    bool     on[5] = { false };
    di_str_t key;
    unsigned had = 0, bit;
    int      more;

    if (di_hf_json_take(&h->j, '{') < 0)
        return -1;
    while ((more = di_hf_json_key(&h->j, had == 0, &key)) > 0) {
        int rc = -1;

        bit = 0;
        if (hf_is(key, "id")) {
            bit = ID;
            rc = di_hf_json_u32(&h->j, &token->id);
        } else if (hf_is(key, "content")) {
            bit = CONTENT;
            rc = di_hf_json_string(&h->j, &token->content);
        }
        for (unsigned i = 0; bit == 0 && i < 5; i++) {
            if (!hf_is(key, flags[i]))
                continue;
            rc = di_hf_json_bool(&h->j, &on[i]);
            bit = 4u << i;
            break;
        }
        if (rc < 0 || bit == 0 || (had & bit) != 0)
            return -1;
        had |= bit;
    }
    token->special = on[0];
    token->late = on[1];
    return more == 0 && (had & ID) != 0 && token->id < DI_MERGES_IDS_MAX - 1
           && token->content.len > 0 && !on[2] && !on[3] && !on[4] ? 1 : -1;
}

/* $.added_tokens: as nearly all files have them they are read as they come,
 * a tenth of the time to open a large vocabulary otherwise; whatever else is
 * there is jansson's to judge. */
static int
hf_read_added(hf_build_t *h, di_str_t key)
{
    const di_hf_json_t start = h->j;
    hf_added_t        *token;
    int                more = di_hf_json_take(&h->j, '[');

    h->n_added = 0;
    while (more > 0) {
        more = di_hf_json_item(&h->j, h->n_added == 0);
        if (more == 0) {
            (void) json_object_del(h->top, "added_tokens");
            return DI_OK;
        }
        if (more > 0) {
            token = hf_new_added(h);
            if (token == NULL)
                return di_build_nomem(&h->b);
            more = hf_read_one_added(h, token);
        }
    }

    h->j = start;
    h->n_added = 0;
    return hf_keep(h, h->top, "$", key);
}

static int
hf_read_file(hf_build_t *h)
{
    di_str_t key;
    int      more, rc = DI_OK;

    if (di_hf_json_take(&h->j, '{') < 0)
        return hf_error(h, DI_EFORMAT, "$: no JSON object");
    for (bool first = true; rc == DI_OK; first = false) {
        more = di_hf_json_key(&h->j, first, &key);
        if (more == 0)
            break;
        if (more < 0)
            return hf_error(h, DI_EFORMAT, "$: no JSON object");
        if (hf_is(key, "model") && !h->has_vocab)
            rc = hf_read_model(h);
        else if (hf_is(key, "added_tokens"))
            rc = hf_read_added(h, key);
        else
            rc = hf_keep(h, h->top, "$", key);
    }
    if (rc != DI_OK)
        return rc;
    if (di_hf_json_peek(&h->j) != '\0' || h->j.at != h->j.end)
        return hf_error(h, DI_EFORMAT, "$: text behind the object");
    if (!h->has_vocab || !h->has_merges)
        return hf_error(h, DI_EFORMAT, "$.model.%s: missing",
                        h->has_vocab ? "merges" : "vocab");
    return DI_OK;
}

/* ----------------------------------------------------------- the options -- */

/* The text of a string; "" if it is none. */
static const char *
hf_text(const json_t *object, const char *key)
{
    const char *s = json_string_value(json_object_get(object, key));

    return s == NULL ? "" : s;
}

static di_build_shown_t
hf_show(const char *s)
{
    return di_build_show((di_str_t) { s, strlen(s) });
}

/* Is an option absent, null, false, 0 or empty? */
static bool
hf_off(const json_t *value)
{
    return value == NULL || json_is_null(value) || json_is_false(value)
           || (json_is_number(value) && json_number_value(value) == 0)
           || (json_is_string(value) && json_string_length(value) == 0);
}

static int
hf_check_model(hf_build_t *h)
{
    static const char *const refused[] = {
        "dropout", "continuing_subword_prefix", "end_of_word_suffix",
        "byte_fallback",
    };
    const char *type = hf_text(h->model, "type");

    if (*type != '\0' && strcmp(type, "BPE") != 0)
        return hf_error(h, DI_EUNSUPPORTED, "$.model.type: \"%s\" is not "
                        "supported", hf_show(type).text);
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        if (!hf_off(json_object_get(h->model, refused[i])))
            return hf_error(h, DI_EUNSUPPORTED, "$.model.%s: not supported",
                            refused[i]);
    }
    h->b.words = json_is_true(json_object_get(h->model, "ignore_merges"));
    return DI_OK;
}

/* Normalisers: none, NFC, or sequences of these. */
static int
hf_read_normalizer(hf_build_t *h, const json_t *n, const char *at, int depth)
{
    const json_t *list = json_object_get(n, "normalizers");
    const char   *type = hf_text(n, "type");
    char          inner[80];
    int           rc = DI_OK;

    if (n == NULL || json_is_null(n))
        return DI_OK;
    if (strcmp(type, "NFC") == 0) {
        if (!h->b.v->normal && !di_nfc_init(&h->b.v->nfc))
            return di_build_nomem(&h->b);
        h->b.v->normal = true;
        return DI_OK;
    }
    if (strcmp(type, "Sequence") != 0 || !json_is_array(list)
        || depth == HF_NESTING_MAX)
        return hf_error(h, DI_EUNSUPPORTED, "%s.type: \"%s\" is not "
                        "supported", at, hf_show(type).text);
    for (size_t i = 0; rc == DI_OK && i < json_array_size(list); i++) {
        snprintf(inner, sizeof(inner), "%s.normalizers[%zu]", at, i);
        rc = hf_read_normalizer(h, json_array_get(list, i), inner, depth + 1);
    }
    return rc;
}

static int
hf_add_pattern(hf_build_t *h, const char *at, const char *pattern)
{
    if (h->n_patterns == HF_SPLITS_MAX)
        return hf_error(h, DI_EUNSUPPORTED, "%s: over %d splits", at,
                        HF_SPLITS_MAX);
    h->patterns[h->n_patterns] = strdup(pattern);
    if (h->patterns[h->n_patterns] == NULL)
        return di_build_nomem(&h->b);
    h->n_patterns++;
    return DI_OK;
}

static int
hf_read_split(hf_build_t *h, const json_t *p, const char *at)
{
    const json_t *pattern = json_object_get(p, "pattern");
    const char   *behavior = hf_text(p, "behavior");
    const json_t *regex = json_object_get(pattern, "Regex");

    if (!json_is_string(regex)
        || strlen(json_string_value(regex)) != json_string_length(regex))
        return hf_error(h, DI_EUNSUPPORTED, "%s.pattern: only a \"Regex\" is "
                        "supported", at);
    if (strcmp(behavior, "Isolated") != 0)
        return hf_error(h, DI_EUNSUPPORTED, "%s.behavior: \"%s\" is not "
                        "supported", at, hf_show(behavior).text);
    if (!hf_off(json_object_get(p, "invert")))
        return hf_error(h, DI_EUNSUPPORTED, "%s.invert: not supported", at);
    return hf_add_pattern(h, at, json_string_value(regex));
}

static int
hf_read_bytes(hf_build_t *h, const json_t *p, const char *at)
{
    const json_t *regex = json_object_get(p, "use_regex");

    h->bytes = true;
    if (!hf_off(json_object_get(p, "add_prefix_space")))
        return hf_error(h, DI_EUNSUPPORTED, "%s.add_prefix_space: not "
                        "supported", at);
    if (regex != NULL && !json_is_true(regex))
        return DI_OK;
    return hf_add_pattern(h, at, DI_PRETOK_GPT2_PATTERN);
}

/* Pre-tokenizers: splits, then the bytes. */
static int
hf_read_pretok(hf_build_t *h, const json_t *p, const char *at, int depth)
{
    const json_t *list = json_object_get(p, "pretokenizers");
    const char   *type = hf_text(p, "type");
    char          inner[80];
    int           rc = DI_OK;

    if (h->bytes)
        return hf_error(h, DI_EUNSUPPORTED, "%s: a step behind \"ByteLevel\" "
                        "is not supported", at);
    if (strcmp(type, "Split") == 0)
        return hf_read_split(h, p, at);
    if (strcmp(type, "Digits") == 0)
        return hf_add_pattern(h, at, hf_off(json_object_get(
                                         p, "individual_digits"))
                                     ? "\\p{N}+" : "\\p{N}");
    if (strcmp(type, "ByteLevel") == 0)
        return hf_read_bytes(h, p, at);
    if (strcmp(type, "Sequence") != 0 || !json_is_array(list)
        || depth == HF_NESTING_MAX)
        return hf_error(h, DI_EUNSUPPORTED, "%s.type: \"%s\" is not "
                        "supported", at, hf_show(type).text);
    for (size_t i = 0; rc == DI_OK && i < json_array_size(list); i++) {
        snprintf(inner, sizeof(inner), "%s.pretokenizers[%zu]", at, i);
        rc = hf_read_pretok(h, json_array_get(list, i), inner, depth + 1);
    }
    return rc;
}

static int
hf_read_options(hf_build_t *h)
{
    int rc = hf_check_model(h);

    if (rc == DI_OK)
        rc = hf_read_normalizer(h, json_object_get(h->top, "normalizer"),
                                "$.normalizer", 0);
    if (rc == DI_OK)
        rc = hf_read_pretok(h, json_object_get(h->top, "pre_tokenizer"),
                            "$.pre_tokenizer", 0);
    if (rc == DI_OK && !h->bytes)
        rc = hf_error(h, DI_EUNSUPPORTED, "$.pre_tokenizer: only byte-level "
                      "vocabularies are supported");
    if (rc == DI_OK)
        rc = di_pretok_open(&h->b.v->pretok,
                            (const char *const *) h->patterns, h->n_patterns,
                            "$.pre_tokenizer", h->b.err);
    return rc;
}

/* ------------------------------------------------------------ the tokens -- */

/* Take an added token that jansson has read. */
static int
hf_take_added(hf_build_t *h, size_t i, const json_t *added)
{
    static const char *const refused[] = { "lstrip", "rstrip", "single_word" };
    const json_t *number = json_object_get(added, "id");
    const json_t *content = json_object_get(added, "content");
    hf_added_t   *token;

    if (!json_is_integer(number) || json_integer_value(number) < 0)
        return hf_error(h, DI_EFORMAT, "$.added_tokens[%zu].id: no token id",
                        i);
    if (json_integer_value(number) >= DI_MERGES_IDS_MAX - 1)
        return hf_error(h, DI_EUNSUPPORTED, "$.added_tokens[%zu].id: over %u",
                        i, DI_MERGES_IDS_MAX - 2);
    if (json_string_length(content) == 0)
        return hf_error(h, DI_EFORMAT, "$.added_tokens[%zu].content: no "
                        "string, or an empty one", i);
    for (size_t k = 0; k < sizeof(refused) / sizeof(refused[0]); k++) {
        if (!hf_off(json_object_get(added, refused[k])))
            return hf_error(h, DI_EUNSUPPORTED, "$.added_tokens[%zu].%s: not "
                            "supported", i, refused[k]);
    }
    token = hf_new_added(h);
    if (token == NULL)
        return di_build_nomem(&h->b);
    *token = (hf_added_t) {
        .id = (uint32_t) json_integer_value(number),
        .content = { json_string_value(content),
                     json_string_length(content) },
        .special = json_is_true(json_object_get(added, "special")),
        .late = json_is_true(json_object_get(added, "normalized")),
    };
    return DI_OK;
}

/* The number of ids: one more than the largest. */
static int
hf_count(hf_build_t *h)
{
    const json_t *added = json_object_get(h->top, "added_tokens");
    uint32_t      size = h->n_tokens;
    int           rc;

    if (added != NULL && !json_is_null(added) && !json_is_array(added))
        return hf_error(h, DI_EFORMAT, "$.added_tokens: no array");
    for (size_t i = 0; i < json_array_size(added); i++) {
        rc = hf_take_added(h, i, json_array_get(added, i));
        if (rc != DI_OK)
            return rc;
    }
    for (size_t i = 0; i < h->n_added; i++)
        size = h->added[i].id >= size ? h->added[i].id + 1 : size;
    if (size == 0)
        return hf_error(h, DI_EFORMAT, "$.model.vocab: empty");
    h->b.v->size = size;
    return hf_grow_tokens(h, size - 1);
}

static int
hf_enter_added(hf_build_t *h)
{
    di_vocab_t *v = h->b.v;

    for (size_t i = 0; i < h->n_added; i++) {
        const hf_added_t *token = &h->added[i];
        const uint32_t    id = token->id;
        const di_str_t    s = token->content;

        if (v->kinds[id] == DI_VOCAB_NORMAL
            && (h->b.tokens[id].len != s.len
                || memcmp(h->b.tokens[id].data, s.data, s.len) != 0))
            return hf_error(h, DI_EFORMAT, "$.added_tokens[%zu].id: %u is "
                            "another token of the vocabulary", i, id);
        if (v->kinds[id] >= DI_VOCAB_USER)
            return hf_error(h, DI_EFORMAT, "$.added_tokens[%zu].id: %u is "
                            "that of another added token", i, id);
        h->b.late[id] = token->late;
        if (h->b.late[id] && v->normal && !di_nfc_is(&v->nfc, s.data, s.len))
            return hf_error(h, DI_EUNSUPPORTED, "$.added_tokens[%zu].content: "
                            "not in NFC, which it is searched for in", i);
        h->b.tokens[id] = s;
        v->kinds[id] = token->special ? DI_VOCAB_CONTROL : DI_VOCAB_USER;
    }
    return DI_OK;
}

static int
hf_read_tokens(hf_build_t *h)
{
    di_build_t *b = &h->b;
    int         rc = hf_count(h);

    if (rc != DI_OK)
        return rc;
    b->v->kinds = calloc(b->v->size, sizeof(*b->v->kinds));
    b->late = calloc(b->v->size, sizeof(*b->late));
    if (b->v->kinds == NULL || b->late == NULL)
        return di_build_nomem(b);

    /* Ids that no entry has are not used. */
    for (uint32_t i = 0; i < b->v->size; i++)
        b->v->kinds[i] = b->tokens[i].data != NULL ? DI_VOCAB_NORMAL
                                                   : DI_VOCAB_UNUSED;
    rc = hf_enter_added(h);
    if (rc == DI_OK)
        rc = di_build_index(b);
    if (rc == DI_OK && b->twice)
        rc = hf_error(h, DI_EFORMAT, "$.model.vocab: two tokens are spelled "
                      "the same");
    return rc;
}

/* ------------------------------------------------------------- the roles -- */

/* The special token that a template puts first; NULL: none. */
static const char *
hf_template_first(const json_t *p)
{
    const json_t *list = json_object_get(p, "processors"), *item;
    const char   *first = NULL;

    if (strcmp(hf_text(p, "type"), "TemplateProcessing") == 0) {
        item = json_array_get(json_object_get(p, "single"), 0);
        return json_string_value(json_object_get(
                   json_object_get(item, "SpecialToken"), "id"));
    }
    for (size_t i = 0; first == NULL && i < json_array_size(list); i++) {
        item = json_array_get(list, i);
        if (json_object_get(item, "processors") == NULL)
            first = hf_template_first(item);
    }
    return first;
}

static void
hf_read_roles(hf_build_t *h)
{
    static const char *const bos[] = {
        "<|begin_of_text|>", "<｜begin▁of▁sentence｜>", "<|startoftext|>",
    };
    di_vocab_t *v = h->b.v;
    const char *first = hf_template_first(json_object_get(h->top,
                                                          "post_processor"));

    v->bos = -1;
    if (first != NULL)
        v->bos = di_build_find(&h->b, (di_str_t) { first, strlen(first) });
    v->add_bos = v->bos >= 0;
    for (size_t i = 0; v->bos < 0 && i < sizeof(bos) / sizeof(bos[0]); i++)
        v->bos = di_build_find(&h->b, (di_str_t) { bos[i], strlen(bos[i]) });
    di_build_known_ends(&h->b);
}

static int
hf_build(hf_build_t *h)
{
    int rc = hf_read_file(h);

    if (rc == DI_OK)
        rc = hf_read_options(h);
    if (rc == DI_OK)
        rc = hf_read_tokens(h);
    if (rc != DI_OK)
        return rc;

    hf_read_roles(h);
    rc = di_build_finish(&h->b);
    if (rc == DI_OK && h->b.v->bytes_missing
        && !hf_off(json_object_get(h->model, "unk_token")))
        rc = hf_error(h, DI_EUNSUPPORTED, "$.model.unk_token: not supported "
                      "where a byte has no token");
    return rc;
}

int
di_vocab_open_hf(const char *json, size_t len, di_vocab_t **vocab,
                 di_err_t *err)
{
    hf_build_t h = { .model = json_object(), .top = json_object() };
    int        rc = di_build_init(&h.b, err);

    if (rc == DI_OK && (!di_hf_json_init(&h.j, json, len) || h.model == NULL
                        || h.top == NULL))
        rc = di_build_nomem(&h.b);
    if (rc == DI_OK)
        rc = hf_build(&h);
    if (rc == DI_OK) {
        *vocab = h.b.v;
        h.b.v = NULL;
    }

    di_build_deinit(&h.b);
    for (size_t i = 0; i < h.n_patterns; i++)
        free(h.patterns[i]);
    json_decref(h.model);
    json_decref(h.top);
    free(h.added);
    di_hf_json_deinit(&h.j);
    return rc;
}
