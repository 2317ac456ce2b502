/*
 * bpe.c - encoding against plain merging.
 *
 * Vocabularies with random merge rules over a few letters, and texts of
 * these letters: what the encoder finds from the left must be what merging
 * by rank gives, written here as it is defined.  Few letters and many rules
 * make tokens overlap in every way; runs of one letter are drawn often, for
 * there the leftmost of equal pairs matters.  Some vocabularies have all
 * splits of a token as rules, as those converted from lists of tokens do.
 *
 * A model is also opened with each letter standing for a byte of Chinese
 * characters, so that tokens begin and end inside these and across them: what
 * is done with whole characters, and at seams between them, must give the
 * same.
 */

#include <inttypes.h>
#include <stdlib.h>
#include <time.h>

#include "tokenizer/vocab/di_vocab.h"

#include "check.h"
#include "gguf_make.h"

#define LETTERS_MAX  6
#define TOKENS_MAX   96
#define RULES_MAX    512
#define SPELLING_MAX 48
#define TEXT_MAX     2000

typedef struct {
    char    spelled[TOKENS_MAX][SPELLING_MAX];
    int32_t n_tokens;
    int32_t rules[RULES_MAX][3];    /* left, right, joined; by rank          */
    int     n_rules;
} model_t;

static uint64_t seed;
static int      n_cut;           /* texts of Chinese alone that were cut      */

static uint32_t
draw(uint32_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t) ((seed >> 32) * n >> 32);
}

static int32_t
find_token(const model_t *m, const char *s)
{
    for (int32_t i = 0; i < m->n_tokens; i++) {
        if (strcmp(m->spelled[i], s) == 0)
            return i;
    }
    return -1;
}

static int
find_rule(const model_t *m, int32_t left, int32_t right)
{
    for (int i = 0; i < m->n_rules; i++) {
        if (m->rules[i][0] == left && m->rules[i][1] == right)
            return i;
    }
    return -1;
}

/* Merge by rank, the leftmost first; returns the number of ids. */
static size_t
merge(const model_t *m, const char *text, size_t len, int32_t *ids)
{
    size_t n = 0;

    for (size_t i = 0; i < len; i++) {
        char letter[2] = { text[i], '\0' };

        ids[n] = find_token(m, letter);
        n += ids[n] >= 0;
    }
    for (;;) {
        int    best = -1;
        size_t at = 0;

        for (size_t i = 0; i + 1 < n; i++) {
            int rank = find_rule(m, ids[i], ids[i + 1]);

            if (rank >= 0 && (best < 0 || rank < best)) {
                best = rank;
                at = i;
            }
        }
        if (best < 0)
            return n;
        ids[at] = m->rules[best][2];
        n--;
        memmove(ids + at + 1, ids + at + 2, (n - at - 1) * sizeof(*ids));
    }
}

static void
add_rule(model_t *m, int32_t left, int32_t right, int32_t joined)
{
    if (m->n_rules < RULES_MAX && find_rule(m, left, right) < 0) {
        m->rules[m->n_rules][0] = left;
        m->rules[m->n_rules][1] = right;
        m->rules[m->n_rules][2] = joined;
        m->n_rules++;
    }
}

/* Add rules for all splits of a token into two others. */
static void
add_splits(model_t *m, int32_t joined)
{
    char left[SPELLING_MAX];

    for (size_t i = 1; m->spelled[joined][i] != '\0'; i++) {
        int32_t l, r;

        memcpy(left, m->spelled[joined], i);
        left[i] = '\0';
        l = find_token(m, left);
        r = find_token(m, m->spelled[joined] + i);
        if (l >= 0 && r >= 0)
            add_rule(m, l, r, joined);
    }
}

static void
draw_model(model_t *m)
{
    uint32_t letters = 1 + draw(LETTERS_MAX);
    uint32_t n_rules = 1 + draw(80);
    bool     splits = draw(3) == 0;

    memset(m, 0, sizeof(*m));
    for (uint32_t i = 0; i < letters; i++)
        m->spelled[m->n_tokens++][0] = (char) ('a' + i);
    for (uint32_t i = 0; i < n_rules; i++) {
        int32_t l = (int32_t) draw((uint32_t) m->n_tokens);
        int32_t r = (int32_t) draw((uint32_t) m->n_tokens), joined;
        char    s[SPELLING_MAX * 2];

        strcpy(s, m->spelled[l]);
        strcat(s, m->spelled[r]);
        if (strlen(s) >= SPELLING_MAX || m->n_tokens == TOKENS_MAX
            || find_rule(m, l, r) >= 0)
            continue;
        joined = find_token(m, s);
        if (joined < 0) {
            joined = m->n_tokens++;
            strcpy(m->spelled[joined], s);
        } else if (splits) {
            continue;
        }
        if (splits)
            add_splits(m, joined);
        else
            add_rule(m, l, r, joined);
    }
}

/* The bytes that letters stand for in Chinese text, all printable in GPT-2's
 * alphabet; the first begins a character. */
static const uint8_t han[LETTERS_MAX + 1] = {
    0xe4, 0xb8, 0xb9, 0xba, 0xbb, 0xbc, 0xbd,
};

/* A spelling as the file has it. */
static const char *
spell(const char *s, bool chinese, char out[SPELLING_MAX * 4])
{
    size_t n = 0;

    if (!chinese)
        return s;
    for (; *s != '\0'; s++) {
        uint8_t b = *s == ' ' ? ' ' : han[*s - 'a'];

        if (b >= 0x80)
            out[n++] = (char) (0xc0 | b >> 6);
        out[n++] = (char) (b < 0x80 ? b : 0x80 | (b & 0x3f));
    }
    out[n] = '\0';
    return out;
}

/* The bytes from 0x80 on that no letter stands for: with one missing there
 * would be no seams. */
static int
other_bytes(make_t *make, const model_t *m)
{
    int n = 0;

    for (int b = 0x80; b < 0x100; b++) {
        int  c = b <= 0xa0 ? 0x122 + b - 0x80 : b == 0xad ? 0x143 : b;
        char s[3] = { (char) (0xc0 | c >> 6), (char) (0x80 | (c & 0x3f)) };
        bool has = false;

        for (int i = 0; i < m->n_tokens; i++)
            has |= m->spelled[i][1] == '\0' && han[m->spelled[i][0] - 'a'] == b;
        if (has)
            continue;
        if (make != NULL)
            make_put_str(&make->kv, s);
        n++;
    }
    return n;
}

static di_vocab_t *
open_model(const model_t *m, bool chinese, di_err_t *err)
{
    int           others = chinese ? other_bytes(NULL, m) : 0;
    char          out[SPELLING_MAX * 4];
    static make_t make;
    make_bytes_t  file;
    di_gguf_t    *gguf;
    di_vocab_t   *v = NULL;
    char          rule[SPELLING_MAX * 2 + 2];

    memset(&make, 0, sizeof(make));
    make_str(&make, "tokenizer.ggml.model", "gpt2");
    make_str(&make, "tokenizer.ggml.pre", chinese ? "deepseek-v3" : "gpt-2");
    make_key(&make, "tokenizer.ggml.tokens", 9);
    make_put_u32(&make.kv, 8);
    make_put_u64(&make.kv, (uint64_t) (m->n_tokens + others));
    for (int32_t i = 0; i < m->n_tokens; i++)
        make_put_str(&make.kv, spell(m->spelled[i], chinese, out));
    if (chinese)
        (void) other_bytes(&make, m);
    make_key(&make, "tokenizer.ggml.token_type", 9);
    make_put_u32(&make.kv, 4);
    make_put_u64(&make.kv, (uint64_t) (m->n_tokens + others));
    for (int32_t i = 0; i < m->n_tokens + others; i++)
        make_put_u32(&make.kv, 1);
    make_key(&make, "tokenizer.ggml.merges", 9);
    make_put_u32(&make.kv, 8);
    make_put_u64(&make.kv, (uint64_t) m->n_rules);
    for (int i = 0; i < m->n_rules; i++) {
        sprintf(rule, "%s %s", m->spelled[m->rules[i][0]],
                m->spelled[m->rules[i][1]]);
        make_put_str(&make.kv, spell(rule, chinese, out));
    }

    make_file(&make, &file);
    if (di_gguf_open_memory(file.data, file.len, &gguf, NULL) != DI_OK)
        abort();
    (void) di_vocab_open_gguf(gguf, &v, err);
    di_gguf_close(gguf);
    free(file.data);
    make_free(&make);
    return v;
}

static void
draw_text(const model_t *m, char *text, size_t len)
{
    uint32_t letters = 0;
    size_t   n = 0;

    while (m->spelled[letters][0] != '\0' && m->spelled[letters][1] == '\0')
        letters++;
    while (n < len) {
        size_t run = draw(6) == 0 ? draw(20) + 1 : 1;
        char   c = (char) ('a' + draw(letters + (draw(20) == 0)));

        while (run-- > 0 && n < len)
            text[n++] = c;
    }
}

static void
check_text(const model_t *m, di_tok_t *tok, const char *text, size_t len)
{
    static int32_t want[TEXT_MAX], got[TEXT_MAX];
    size_t         n_want = merge(m, text, len, want), n = 0;
    bool           same;

    CHECK_EQ_INT(di_tok_encode(tok, text, len, got, TEXT_MAX, &n), DI_OK);
    same = n == n_want && memcmp(got, want, n * sizeof(*want)) == 0;
    if (!same && check_failed < 10)
        printf("\"%.*s\"\n", (int) len, text);
    CHECK(same);
}

/* The same in Chinese, whole and cut in two; letters past the model's are
 * none here. */
static void
check_chinese(const model_t *m, const di_vocab_t *v, di_tok_t *tok)
{
    static int32_t want[TEXT_MAX], got[TEXT_MAX];
    static char    letters[TEXT_MAX], text[TEXT_MAX];
    uint32_t       n_letters = 0;
    size_t         len = 3 * (1 + draw(draw(8) == 0 ? 60 : 8)), n_want, n = 0;
    size_t         at, first = 0;

    while (m->spelled[n_letters][0] != '\0'
           && m->spelled[n_letters][1] == '\0')
        n_letters++;
    if (n_letters < 2)
        return;
    for (size_t i = 0; i < len; i++) {
        letters[i] = i % 3 == 0 ? 'a' : (char) ('b' + draw(n_letters - 1));
        text[i] = (char) han[letters[i] - 'a'];
    }
    n_want = merge(m, letters, len, want);
    CHECK_EQ_INT(di_tok_encode(tok, text, len, got, TEXT_MAX, &n), DI_OK);
    if (n != n_want || memcmp(got, want, n * sizeof(*want)) != 0)
        CHECK_EQ_STR(letters, "encoded as merging does");

    at = di_vocab_split(v, text, len, draw((uint32_t) len));
    CHECK_EQ_INT(di_tok_encode(tok, text, at, got, TEXT_MAX, &first), DI_OK);
    CHECK_EQ_INT(di_tok_encode(tok, text + at, len - at, got + first,
                               TEXT_MAX - first, &n), DI_OK);
    if (first + n != n_want || memcmp(got, want, n_want * sizeof(*want)) != 0)
        CHECK_EQ_STR(letters, "the same in parts");
    n_cut += at < len;
}

static void
test_chinese(const model_t *m)
{
    di_err_t    err = { 0 };
    di_vocab_t *v = open_model(m, true, &err);
    di_tok_t   *tok;

    CHECK_EQ_STR(err.text, "");
    if (v == NULL)
        return;
    CHECK_EQ_INT(di_tok_open(v, &tok), DI_OK);
    for (int k = 0; k < 40; k++)
        check_chinese(m, v, tok);
    di_tok_close(tok);
    di_vocab_close(v);
}

static void
test_models(int n_models)
{
    static model_t m;
    static char    text[TEXT_MAX];
    int            opened = 0;

    for (int i = 0; i < n_models; i++) {
        di_err_t    err = { 0 };
        di_vocab_t *v;
        di_tok_t   *tok;

        draw_model(&m);
        v = open_model(&m, false, &err);
        if (v == NULL) {
            /* Splits of random tokens can make a rule that is needed before
             * its sides: that is refused, and nothing else is. */
            CHECK_EQ_INT(err.code, DI_EUNSUPPORTED);
            CHECK(strstr(err.text, "comes before") != NULL);
            continue;
        }
        opened++;
        test_chinese(&m);
        CHECK_EQ_INT(di_tok_open(v, &tok), DI_OK);
        for (int k = 0; k < 40; k++) {
            size_t len = 1 + draw(draw(8) == 0 ? 300 : 40);

            draw_text(&m, text, len);
            check_text(&m, tok, text, len);
        }
        di_tok_close(tok);
        di_vocab_close(v);
    }
    CHECK(opened > n_models * 9 / 10);
    CHECK(n_cut > n_models);
}

/* Rules whose sides come later: harmless, if the token is made otherwise;
 * refused, if it isn't. */
static void
test_order(void)
{
    static const char *const spelled[] = { "a", "b", "c", "bc", "ab", "abc" };
    static const int32_t rules[][3] = {
        { 1, 2, 3 }, { 4, 2, 5 }, { 0, 3, 5 }, { 0, 1, 4 },
    };
    static model_t m;
    di_err_t       err = { 0 };
    di_vocab_t    *v;
    di_tok_t      *tok;

    memset(&m, 0, sizeof(m));
    for (; m.n_tokens < 6; m.n_tokens++)
        strcpy(m.spelled[m.n_tokens], spelled[m.n_tokens]);
    memcpy(m.rules, rules, sizeof(rules));
    m.n_rules = 4;
    v = open_model(&m, false, &err);
    CHECK(v != NULL);
    if (v == NULL)
        return;
    CHECK_EQ_INT(di_tok_open(v, &tok), DI_OK);
    check_text(&m, tok, "abcabababc", 10);
    di_tok_close(tok);
    di_vocab_close(v);

    memcpy(m.rules, rules[1], sizeof(rules[1]));
    memcpy(m.rules[1], rules[3], sizeof(rules[3]));
    m.n_rules = 2;
    CHECK(open_model(&m, false, &err) == NULL);
    CHECK_EQ_INT(err.code, DI_EUNSUPPORTED);
    CHECK(strstr(err.text, "rule 0 comes before") != NULL);
}

/* The time for a text of one letter must not grow faster than the text: a
 * quadratic encoder would take 10,000 times as long for 100 times as much. */
static void
test_linear(void)
{
    static model_t m;
    size_t         len = 4000000, n = 0;
    char          *text = malloc(len);
    int32_t       *ids = malloc(len * sizeof(*ids));
    di_vocab_t    *v;
    di_tok_t      *tok;
    clock_t        start;
    double         small, large;

    if (text == NULL || ids == NULL)
        abort();
    memset(&m, 0, sizeof(m));
    for (int i = 0; i < 6; i++) {
        memset(m.spelled[i], 'a', (size_t) 1 << i);
        if (i > 0)
            add_rule(&m, i - 1, i - 1, i);
    }
    m.n_tokens = 6;
    v = open_model(&m, false, NULL);
    if (v == NULL || di_tok_open(v, &tok) != DI_OK)
        abort();

    memset(text, 'a', len);
    start = clock();
    CHECK_EQ_INT(di_tok_encode(tok, text, len / 100 - 1, ids, len, &n),
                 DI_OK);
    small = (double) (clock() - start) + 1;
    start = clock();
    CHECK_EQ_INT(di_tok_encode(tok, text, len - 1, ids, len, &n), DI_OK);
    large = (double) (clock() - start);
    CHECK_EQ_INT(n, len / 32 - 1 + 5);
    CHECK(large < small * 1000 + CLOCKS_PER_SEC / 2);

    di_tok_close(tok);
    di_vocab_close(v);
    free(text);
    free(ids);
}

int
main(int argc, char **argv)
{
    seed = argc > 1 ? strtoull(argv[1], NULL, 0) : (uint64_t) time(NULL);
    printf("seed %" PRIu64 "\n", seed);

    test_order();
    test_models(600);
    test_linear();
    return check_done("bpe");
}
