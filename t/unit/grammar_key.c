/*
 * grammar_key.c - names of compilations: equal where all is, other where the
 * text or anything that it is read by is.
 */

#include "check.h"

#include "tokenizer/grammar/di_grammar.h"

static uint8_t first[DI_GRAM_KEY_BYTES];

static bool
same(di_gram_kind_t kind, const char *text, di_gram_opts_t opts)
{
    uint8_t key[DI_GRAM_KEY_BYTES];

    CHECK_EQ_INT(di_gram_key(kind, text, strlen(text), &opts, key), DI_OK);
    return memcmp(key, first, sizeof(key)) == 0;
}

int
main(void)
{
    const di_gram_opts_t opts = { 0 };

    CHECK_EQ_INT(di_gram_key(DI_GRAM_REGEX, "ab", 2, &opts, first), DI_OK);
    CHECK(same(DI_GRAM_REGEX, "ab", opts));
    CHECK(!same(DI_GRAM_EBNF, "ab", opts));
    CHECK(!same(DI_GRAM_REGEX, "ac", opts));
    CHECK(!same(DI_GRAM_REGEX, "a", opts));
    CHECK(!same(DI_GRAM_REGEX, "ab", (di_gram_opts_t) { .any_order = true }));
    CHECK(!same(DI_GRAM_REGEX, "ab", (di_gram_opts_t) { .flexible = true }));
    CHECK(!same(DI_GRAM_REGEX, "ab",
                (di_gram_opts_t) { .best_effort = true }));
    CHECK(!same(DI_GRAM_REGEX, "ab", (di_gram_opts_t) { .best_effort = true }));
    CHECK(!same(DI_GRAM_REGEX, "ab",
                (di_gram_opts_t) { .limits.memory_bytes = 1 }));
    CHECK(!same(DI_GRAM_REGEX, "ab",
                (di_gram_opts_t) { .limits.blob_bytes = 1 }));
    CHECK(!same(DI_GRAM_REGEX, "ab", (di_gram_opts_t) { .limits.work = 1 }));
    return check_done("grammar_key");
}
