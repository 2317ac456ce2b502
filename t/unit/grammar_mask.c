/*
 * grammar_mask.c - masks against the matcher, token by token.
 *
 * A vocabulary of single bytes and of words cut from texts of the grammars
 * (t/data/grammar/cases.jsonl), so that many tokens cross the border of a
 * string, a number or an object.  Walks take a random allowed token each; at
 * every step a token must be allowed exactly if a copy of the matcher takes
 * it, and the end ids exactly if the text may end.  A text that is over must
 * hold its grammar when it is matched at once.  One index serves all
 * grammars, so that what it remembers of one is used by another; another
 * one may remember next to nothing.
 */

#include <stdlib.h>
#include <time.h>

#include "check.h"
#include "grammar_walk.h"
#include "tiny_vocab.h"
#include "tokenizer/grammar/part.h"

#define WORDS_MAX  1500

/* Many bytes in few tokens, and words behind a sign. */
static const char *const own_words[] = {
    "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz", "zyxwvutsrqponml",
    "nevertheless", "notwithstanding", "thunderstorms", "-a", "-ab", "-ab1",
    "-abc", "-a1", "-abcd", "-abcd!", "-xy", "-xyz", "-x1", "1ab", "12ab",
    "1ab-", "a-b", "ab-cd", "ab-cde", "ab-c1", "\xc3\xa9", "\xc3\xa9\xc3\xa9",
    "\xa9,", "\xa9\xc3", "a\xc3", "\xc3\xa9,", "\xe4\xb8\xad", "\xe4\xb8",
    "\xe4\xb8\xad\xe4", "\xb8\xad", "\xe0\x80\x80", "\xed\xa0\x80",
    "ab\xc3\xa9</", "<b\xc3\xa9", "\xf0\x9f\x98\x80",
    "\xf0\x9f\x98\x80</x", "\xf4\x90",
};

static di_str_t words[WORDS_MAX];
static size_t n_words;

static void
add_word(const char *s, size_t len)
{
    if (n_words == WORDS_MAX || len < 2)
        return;
    for (size_t i = 0; i < n_words; i++) {
        if (words[i].len == len && memcmp(words[i].data, s, len) == 0)
            return;
    }
    words[n_words].data = memcpy(malloc(len), s, len);
    words[n_words++].len = len;
}

static void
cut_words(const json_t *texts)
{
    const json_t *v;
    size_t        i;

    json_array_foreach(texts, i, v) {
        const char *s = json_string_value(v);
        size_t      len = json_string_length(v);

        for (int k = 0; k < 6 && len > 2; k++) {
            size_t from = (size_t) rand() % (len - 1);
            size_t n = 2 + (size_t) rand() % 8;

            add_word(s + from, n < len - from ? n : len - from);
        }
    }
}

/* A grammar that a text can only leave by one token at the end. */
static void
test_end(const di_vocab_t *v, di_gram_index_t *x, uint64_t *mask)
{
    const di_gram_opts_t opts = { .flexible = false };
    di_gram_err_t        err;
    di_gram_t           *g = grammar_make(DI_GRAM_REGEX, "ab?", 3, &opts,
                                          &err);
    di_gram_match_t     *m;

    CHECK_EQ_INT(di_gram_match_open(g, 0, &m), DI_OK);
    CHECK_EQ_INT(di_gram_fill_mask(x, m, mask), DI_OK);
    CHECK(allowed(mask, 'a') && !allowed(mask, 'b'));
    CHECK(!allowed(mask, TINY_EOS) && !allowed(mask, TINY_PAD));
    CHECK_EQ_INT(di_gram_accept(m, "a", 1), DI_OK);
    CHECK_EQ_INT(di_gram_fill_mask(x, m, mask), DI_OK);
    CHECK(allowed(mask, 'b') && allowed(mask, TINY_EOS));
    CHECK(allowed(mask, TINY_END) && !allowed(mask, TINY_PAD));
    CHECK(di_vocab_size(v) > TINY_WORDS);
    di_gram_match_close(m);
    di_gram_unref(g);
}

/* Every token can be split between two rules at every byte: it is found once
 * for each. */
static void
test_twice(const di_vocab_t *v, di_gram_index_t *x, uint64_t *mask)
{
    static const char s[] = "root ::= a b '!'\na ::= [a-z]*\nb ::= [a-z]*";

    walk_text(v, x, mask, DI_GRAM_EBNF, s);
}

/* A class repeated, behind a character that isn't in it. */
static void
test_hub(const di_vocab_t *v, di_gram_index_t *x, uint64_t *mask)
{
    walk_text(v, x, mask, DI_GRAM_REGEX, "-?[a-z]+");
    walk_text(v, x, mask, DI_GRAM_REGEX, "-?[a-z]+1?");
    walk_text(v, x, mask, DI_GRAM_REGEX, "[0-9]*[a-z]+(-[a-z]+)?");
}

/* Bounded classes, where tokens end before, at and behind the bound. */
static void
test_bounds(const di_vocab_t *v, di_gram_index_t *x, uint64_t *mask)
{
    walk_text(v, x, mask, DI_GRAM_REGEX, "[a-z]{1,5}");
    walk_text(v, x, mask, DI_GRAM_REGEX, "-[a-z]{2,14}(1|-)");
    walk_text(v, x, mask, DI_GRAM_REGEX, "[a-z-]{4,40}!?");
    walk_text(v, x, mask, DI_GRAM_REGEX, "[^\"]{3,35}");
    walk_text(v, x, mask, DI_GRAM_REGEX, "[^\"\\n]{3,60}x");
    walk_text(v, x, mask, DI_GRAM_REGEX, "([^a-b].*|a1)");
    walk_text(v, x, mask, DI_GRAM_REGEX, "[^,]+");
    walk_text(v, x, mask, DI_GRAM_REGEX, "[^,]{3,9},?");
    walk_text(v, x, mask, DI_GRAM_REGEX, "([^<]|<[^/])*</x");
    walk_text(v, x, mask, DI_GRAM_REGEX, "[^,\\x{e9}]+");
    walk_text(v, x, mask, DI_GRAM_OUTPUT, "root ::= %until\"</\" \"</\"");
}

/* Each variant finds the tokens that the plain loop finds. */
static void
test_letters(void)
{
    uint64_t kinds[256], want[4], got[4], some;
    uint8_t  lengths[256];

    for (int round = 0; round < 200; round++) {
        some = (uint64_t) rand() << 32 ^ (uint64_t) rand();
        for (unsigned i = 0; i < 256; i++) {
            kinds[i] = UINT64_C(1) << rand() % 64 | UINT64_C(1) << rand() % 64;
            kinds[i] = rand() % 8 == 0 ? 0
                       : rand() % 2 == 0 ? kinds[i] & some : kinds[i];
            lengths[i] = (uint8_t) rand();
        }
        for (unsigned longest = 0; longest < 256; longest += 51) {
            di_gram_letters_scalar(kinds, lengths, 256, some, longest, want);
            for (unsigned i = 0; di_gram_letters(i) != NULL; i++) {
                memset(got, 0x55, sizeof(got));
                di_gram_letters(i)(kinds, lengths, 256, some, longest, got);
                CHECK(memcmp(got, want, sizeof(got)) == 0);
            }
        }
    }
}

/* A thousand arrays open: the mask keeps the matcher's limit. */
static void
test_depth(const di_vocab_t *v, di_gram_index_t *x, uint64_t *mask)
{
    const di_gram_opts_t opts = { .flexible = false };
    static const char    s[] = "{\"type\":\"array\"}";
    di_gram_err_t        err;
    di_gram_t           *g = grammar_make(DI_GRAM_SCHEMA, s, strlen(s), &opts,
                                          &err);
    di_gram_match_t     *m;

    CHECK_EQ_INT(di_gram_match_open(g, 0, &m), DI_OK);
    for (int n = 0; di_gram_accept(m, "[", 1) == DI_OK; n++) {
        if (n % 100 == 0 || n > 500) {
            CHECK_EQ_INT(di_gram_fill_mask(x, m, mask), DI_OK);
            CHECK_EQ_INT(allowed(mask, '['), takes(v, m, '['));
        }
    }
    CHECK_EQ_INT(di_gram_fill_mask(x, m, mask), DI_OK);
    CHECK(!allowed(mask, '[') && allowed(mask, ']'));
    di_gram_match_close(m);
    di_gram_unref(g);
}

/* A blob whose rules follow one another without reading has more parts than
 * anybody waits for: its mask is refused, soon. */
static void
test_hostile(di_gram_index_t *x, uint64_t *mask)
{
    uint8_t          input[512];
    FILE            *f = fopen("t/data/fuzz/grammar_blob/parts", "rb");
    size_t           size = f == NULL ? 0 : fread(input, 1, sizeof(input), f);
    size_t           n = size == 0 ? 0 : input[0] % 64;
    di_gram_t       *g;
    di_gram_match_t *m;
    int              rc = DI_OK;

    if (f != NULL)
        fclose(f);
    CHECK(size > n);
    if (size <= n)
        return;
    CHECK_EQ_INT(di_gram_open(input + 1, size - 1 - n, &g, NULL), DI_OK);
    CHECK_EQ_INT(di_gram_match_open(g, 0, &m), DI_OK);
    for (size_t i = size - n; i < size && rc == DI_OK; i++) {
        rc = di_gram_fill_mask(x, m, mask);
        (void) di_gram_accept_id(x, m, input[i]);
    }
    CHECK_EQ_INT(rc, DI_ELIMIT);
    di_gram_match_close(m);
    di_gram_unref(g);
}

int
main(void)
{
    unsigned               seed = (unsigned) time(NULL);
    FILE                  *f = fopen("t/data/grammar/cases.jsonl", "r");
    char                  *line = NULL;
    size_t                 cap = 0, n_lines = 0;
    json_t                *lines[500];
    di_gram_index_t       *x, *small;
    di_gram_index_stats_t  stats;
    di_gram_err_t          err;
    uint64_t              *mask;
    di_vocab_t            *v;

    printf("seed %u\n", seed);
    srand(seed);
    for (size_t i = 0; i < sizeof(own_words) / sizeof(own_words[0]); i++)
        add_word(own_words[i], strlen(own_words[i]));
    CHECK(f != NULL);
    while (f != NULL && n_lines < 500 && getline(&line, &cap, f) > 0) {
        lines[n_lines] = json_loads(line, 0, NULL);
        cut_words(json_object_get(lines[n_lines], "yes"));
        cut_words(json_object_get(lines[n_lines++], "no"));
    }
    v = tiny_vocab(words, n_words);
    CHECK_EQ_INT(di_gram_index_open(v, 0, &x), DI_OK);
    CHECK_EQ_INT(di_gram_index_open(v, 100000, &small), DI_OK);
    mask = malloc(di_gram_mask_words(x) * sizeof(*mask));

    for (size_t i = 0; i < n_lines; i++) {
        di_gram_t *g = grammar_of(lines[i], NULL, &err);

        for (int k = 0; g != NULL && k < 3; k++)
            walk(v, k == 2 ? small : x, g, mask);
        di_gram_unref(g);
        json_decref(lines[i]);
    }
    test_end(v, x, mask);
    test_twice(v, x, mask);
    test_hub(v, x, mask);
    test_bounds(v, x, mask);
    test_letters();
    test_depth(v, x, mask);
    test_hostile(x, mask);
    di_gram_index_stats(x, &stats);
    CHECK(stats.found > stats.computed && stats.forgotten == 0);
    di_gram_index_stats(small, &stats);
    CHECK(stats.forgotten > 0);

    free(mask);
    di_gram_index_close(x);
    di_gram_index_close(small);
    di_vocab_close(v);
    for (size_t i = 0; i < n_words; i++)
        free((char *) words[i].data);
    free(line);
    if (f != NULL)
        fclose(f);
    return check_done("grammar_mask");
}
