/*
 * vocab.c - what is asked of a vocabulary.
 *
 * build.c makes it.
 */

#include <stdlib.h>
#include <string.h>

#include "vocab.h"

int32_t
di_vocab_word_slot(const di_vocab_t *v, const char *s, size_t len,
                   uint64_t **slot)
{
    uint32_t hash = di_vocab_hash(s, len);
    uint32_t i = hash & v->words.mask;

    for (;; i = (i + 1) & v->words.mask) {
        const char *t;
        size_t      n;
        int32_t     id;

        *slot = &v->words.slots[i];
        if (**slot == 0)
            return -1;
        id = (int32_t) (uint32_t) **slot - 1;
        t = di_vocab_at(v, id, &n);
        if (**slot >> 32 == hash && n == len && memcmp(t, s, len) == 0)
            return id;
    }
}

int32_t
di_vocab_word(const di_vocab_t *v, const char *s, size_t len)
{
    uint64_t *slot;

    return di_vocab_word_slot(v, s, len, &slot);
}

void
di_vocab_close(di_vocab_t *v)
{
    if (v == NULL)
        return;
    free(v->text);
    free(v->starts);
    free(v->kinds);
    free(v->names[0].ids);
    free(v->names[1].ids);
    di_merges_deinit(&v->merges);
    di_trie_deinit(&v->trie);
    di_nfc_deinit(&v->nfc);
    di_pretok_deinit(&v->pretok);
    di_seams_deinit(&v->seams);
    free(v->chars);
    free(v->wholes);
    free(v->words.slots);
    free(v->template_text);
    free(v->model_type);
    free(v);
}

uint32_t
di_vocab_size(const di_vocab_t *v)
{
    return v->size;
}

const char *
di_vocab_bytes(const di_vocab_t *v, int32_t id, size_t *len)
{
    if (id < 0 || (uint32_t) id >= v->size)
        return NULL;
    return di_vocab_at(v, id, len);
}

bool
di_vocab_is_special(const di_vocab_t *v, int32_t id)
{
    return id >= 0 && (uint32_t) id < v->size
           && v->kinds[id] == DI_VOCAB_CONTROL;
}

bool
di_vocab_is_added(const di_vocab_t *v, int32_t id)
{
    return id >= 0 && (uint32_t) id < v->size && v->kinds[id] >= DI_VOCAB_USER;
}

bool
di_vocab_is_end(const di_vocab_t *v, int32_t id)
{
    for (size_t i = 0; i < v->n_ends; i++) {
        if (v->ends[i] == id)
            return true;
    }
    return false;
}

void
di_vocab_add_end(di_vocab_t *v, int32_t id)
{
    if (id >= 0 && !di_vocab_is_end(v, id)
        && v->n_ends < sizeof(v->ends) / sizeof(v->ends[0]))
        v->ends[v->n_ends++] = id;
}

size_t
di_vocab_end_ids(const di_vocab_t *v, const int32_t **ids)
{
    *ids = v->ends;
    return v->n_ends;
}

/* First of the names, from index lo to hi, whose byte at `at` is not below
 * `byte`.  All of them share the bytes before. */
static size_t
vocab_bound(const di_vocab_t *v, const di_vocab_names_t *names, size_t lo,
            size_t hi, size_t at, int byte)
{
    while (lo < hi) {
        size_t      mid = lo + (hi - lo) / 2, n;
        const char *s = di_vocab_at(v, names->ids[mid], &n);

        if (n <= at || (uint8_t) s[at] < byte)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

int32_t
di_vocab_match(const di_vocab_t *v, const di_vocab_names_t *names,
               const char *s, size_t len)
{
    size_t  lo = 0, hi = names->n, n;
    int32_t best = -1;

    /* Each byte narrows the sorted range; a token that ends here is first
     * in it, being shorter than all that continue. */
    for (size_t at = 0; at < len; at++) {
        uint8_t byte = (uint8_t) s[at];

        lo = vocab_bound(v, names, lo, hi, at, byte);
        hi = vocab_bound(v, names, lo, hi, at, byte + 1);
        if (lo == hi)
            break;
        (void) di_vocab_at(v, names->ids[lo], &n);
        if (n == at + 1)
            best = names->ids[lo];
    }
    return best;
}

int32_t
di_vocab_special(const di_vocab_t *v, const char *text, size_t len)
{
    for (int late = 0; late < 2; late++) {
        int32_t id = di_vocab_match(v, &v->names[late], text, len);
        size_t  n = 0;

        if (id >= 0)
            (void) di_vocab_at(v, id, &n);
        if (id >= 0 && n == len)
            return id;
    }
    return -1;
}

int32_t
di_vocab_bos(const di_vocab_t *v)
{
    return v->bos;
}

bool
di_vocab_add_bos(const di_vocab_t *v)
{
    return v->add_bos;
}

const char *
di_vocab_template(const di_vocab_t *v, size_t *len)
{
    *len = v->template_len;
    return v->template_text;
}

const char *
di_vocab_model_type(const di_vocab_t *v)
{
    return v->model_type == NULL ? "" : v->model_type;
}

size_t
di_vocab_split(const di_vocab_t *v, const char *text, size_t len, size_t at)
{
    at = v->pretok.kind == DI_PRETOK_RE
         ? len : di_pretok_split(&v->pretok, text, len, at);
    /* What is not plain may join with what is before it. */
    while (v->normal && at < len && (text[at] & 0x80) != 0)
        at = di_pretok_split(&v->pretok, text, len, at + 1);
    return at;
}
