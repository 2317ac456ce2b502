/*
 * sweep.c - rows encoded by sweeps against plain merging.
 *
 * Rules are drawn as training would find them, over few letters, so that
 * joins that come too early are frequent; each way that this machine has must
 * do the first sweep alike, find by itself which pieces are wrong, and give
 * the others what applying one rule after the other does.
 *
 * Then texts of several alphabets in whole vocabularies, by one di_tok_t that
 * goes to sweeps and back as they change.
 */

#include <inttypes.h>
#include <stdlib.h>
#include <time.h>

#include "tokenizer/vocab/sweep.h"
#include "tokenizer/vocab/vocab.h"

#include "check.h"

#define RULES     400
#define TOKENS    (256 + RULES)
#define SPELLING  64
#define TEXT_MAX  20000

static uint64_t    seed;
static di_merges_t merges;
static int32_t     bytes[256];
static di_sweep_t  row, other;

static uint32_t
draw(uint32_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t) ((seed >> 32) * n >> 32);
}

/* Apply the first rule of ids[n], the leftmost of equals, until there is
 * none. */
static size_t
apply(const di_merges_t *m, int32_t *ids, size_t n)
{
    for (;;) {
        uint32_t best = DI_MERGES_NONE, order;
        size_t   at = 0;

        for (size_t i = 0; i + 1 < n; i++) {
            order = di_merges_order(m, ids[i], ids[i + 1]);
            if (order < best) {
                best = order;
                at = i;
            }
        }
        if (best == DI_MERGES_NONE)
            return n;
        ids[at] = di_merges_makes(m, best);
        n--;
        memmove(ids + at + 1, ids + at + 2, (n - at - 1) * sizeof(*ids));
    }
}

static size_t
merge(const di_merges_t *m, const int32_t first[256], const char *s, size_t n,
      int32_t *ids)
{
    size_t there = 0;

    for (size_t i = 0; i < n; i++) {
        ids[there] = first[(uint8_t) s[i]];
        there += ids[there] >= 0;
    }
    return apply(m, ids, there);
}

/* ---------------------------------------------------------------- rules -- */

static int32_t rules[RULES][3];
static char    spelled[TOKENS][SPELLING];   /* by number, not id             */
static int32_t number[TOKENS];              /* of an id                      */
static int     n_rules;

static void
build(int n)
{
    di_merges_deinit(&merges);
    memset(&merges, 0, sizeof(merges));
    CHECK(di_merges_init(&merges, TOKENS, (uint64_t) n));
    CHECK_EQ_INT(di_merges_build(&merges, (const int32_t (*)[3]) rules,
                                 (uint64_t) n, bytes), n);
}

/* Up to RULES rules over some letters, each for two tokens that stay apart by
 * those before it.  straight: ids go as the orders do. */
static void
draw_rules(uint32_t letters, bool straight, bool print)
{
    int32_t id, pair[2], text[2 * SPELLING];
    size_t  len;

    for (int i = 0; i < 256; i++) {
        bytes[i] = print ? i : i ^ 5;
        number[bytes[i]] = i;
        spelled[i][0] = (char) i;
        spelled[i][1] = '\0';
    }
    n_rules = 0;
    build(0);
    for (int i = 0; i < 4 * RULES && n_rules < RULES; i++) {
        char s[2 * SPELLING];

        for (int k = 0; k < 2; k++) {
            int32_t n = (int32_t) draw(letters + (uint32_t) n_rules);

            pair[k] = n < (int32_t) letters ? 'a' + n
                                            : 256 + n - (int32_t) letters;
        }
        len = (size_t) snprintf(s, sizeof(s), "%s%s", spelled[pair[0]],
                                spelled[pair[1]]);
        if (len >= SPELLING || merge(&merges, bytes, s, len, text) != 2
            || strcmp(spelled[number[text[0]]], spelled[pair[0]]) != 0)
            continue;
        id = 256 + (straight ? n_rules : n_rules ^ 1);
        rules[n_rules][0] = text[0];
        rules[n_rules][1] = text[1];
        rules[n_rules++][2] = id;
        number[id] = 255 + n_rules;
        strcpy(spelled[255 + n_rules], s);
        build(n_rules);
    }
    CHECK(di_sweep_can(&merges));
    CHECK(n_rules < 2 || merges.straight == straight);
    CHECK(merges.print == print);
}

/* ----------------------------------------------------------------- rows -- */

static char     text[DI_SWEEP_BYTES];
static uint32_t ends[DI_SWEEP_PIECES];
static size_t   n_pieces;

static void
draw_row(uint32_t letters)
{
    uint32_t longest = 1 + draw(draw(12) == 0 ? DI_SWEEP_BYTES : 12), at = 0;
    uint32_t max = 1 + draw(DI_SWEEP_BYTES), n;

    n_pieces = 0;
    while (at < max && n_pieces < DI_SWEEP_PIECES) {
        n = 1 + draw(longest);
        n = n < DI_SWEEP_BYTES - at ? n : DI_SWEEP_BYTES - at;
        for (uint32_t run = 0; n > 0; at++, n--) {
            text[at] = (char) ('a' + draw(letters));
            if (at > 0 && run > 0)
                text[at] = text[at - 1];
            run = run > 0 ? run - 1 : draw(12) == 0 ? draw(12) : 0;
            if (draw(20) == 0)
                text[at] = (char) draw(256);
        }
        ends[n_pieces++] = at + 7;
    }
}

/* All that the first sweep is to find is found alike. */
static void
check_first(const di_sweep_way_t *way)
{
    const di_sweep_way_t *plain = way;
    uint32_t              differ;

    for (unsigned i = 0; di_sweep_way(i) != NULL; i++)
        plain = di_sweep_way(i);
    (void) di_sweep_first(&other, plain, &merges, bytes, text, ends, n_pieces,
                          7);
    differ = row.n != other.n || row.n_pairs != other.n_pairs
             || row.n_doubts != other.n_doubts;
    for (uint32_t i = 0; differ == 0 && i <= row.n + 1; i++)
        differ += row.ids[i] != other.ids[i]
                  || row.orders[i] != other.orders[i];
    for (uint32_t i = 0; differ == 0 && i < row.n_pairs; i++)
        differ += row.pairs[i] != other.pairs[i];
    for (uint32_t i = 0; differ == 0 && i < row.n_doubts; i++)
        differ += row.doubts[i] != other.doubts[i];
    CHECK_EQ_INT(differ, 0);
}

/* The number of pieces that are wrong; all, if the row is none for sweeps. */
static size_t
check_row(const di_sweep_way_t *way)
{
    static int32_t want[DI_SWEEP_BYTES], all[DI_SWEEP_BYTES];
    static int32_t got[DI_SWEEP_BYTES + DI_SWEEP_BEYOND];
    size_t         n_all = 0, n_wrong = 0, k = 1, at = 0, n, i;
    uint32_t       borders;
    bool           wrong, same;

    (void) di_sweep_first(&row, way, &merges, bytes, text, ends, n_pieces, 7);
    check_first(way);
    borders = di_sweep_rest(&row, way, &merges, bytes);
    if (borders > DI_SWEEP_WRONG)
        return n_pieces;
    for (size_t p = 0; p < n_pieces; p++) {
        n = merge(&merges, bytes, text + at, ends[p] - 7 - at, want);
        at = ends[p] - 7;
        same = true;
        i = 0;
        do {
            if (row.ids[k] == DI_SWEEP_GONE)
                continue;
            same &= i < n && want[i] == (int32_t) (row.ids[k]
                                                   & ~DI_SWEEP_START);
            i++;
        } while ((row.ids[++k] & DI_SWEEP_START) == 0);
        wrong = row.wrong[p / 64] >> p % 64 & 1;
        CHECK(wrong || (same && i == n));
        n_wrong += wrong;
        memcpy(all + n_all, want, n * sizeof(*want));
        n_all += n;
    }
    CHECK_EQ_INT(k, row.n + 1);
    CHECK(n_wrong <= borders && (n_wrong > 0) == (borders > 0));
    if (borders == 0)
        CHECK(di_sweep_ids(&row, way, got) == n_all
              && memcmp(got, all, n_all * sizeof(*got)) == 0);
    return n_wrong;
}

static void
test_rows(void)
{
    size_t n_wrong = 0, n = 0;

    for (int i = 0; i < 16; i++) {
        uint32_t letters = 2 + draw(i % 2 == 0 ? 4 : 24);

        draw_rules(letters, i % 4 < 2, i % 8 < 4);
        for (int k = 0; k < 60; k++) {
            draw_row(letters);
            for (unsigned w = 0; di_sweep_way(w) != NULL; w++)
                n_wrong += check_row(di_sweep_way(w));
            n += n_pieces;
        }
    }
    printf("%zu of %zu pieces wrong\n", n_wrong, n);
    CHECK(n_wrong > 0 && n_wrong < n / 4);
    di_merges_deinit(&merges);
    memset(&merges, 0, sizeof(merges));
}

/* Rules that come one before the other along a piece are more than sweeps are
 * made for, at some length. */
static void
test_stairs(void)
{
    for (int32_t i = 0; i < 100; i++) {
        bytes[i] = i;
        rules[i][0] = i + 1;
        rules[i][1] = i;
        rules[i][2] = 256 + i;
    }
    build(100);
    n_pieces = 1;
    for (unsigned w = 0; di_sweep_way(w) != NULL; w++) {
        size_t n_wrong = 0;

        for (uint32_t len = 1; len <= 100; len++) {
            for (uint32_t i = 0; i < len; i++)
                text[i] = (char) (len - 1 - i);
            ends[0] = len + 7;
            n_wrong += check_row(di_sweep_way(w));
        }
        CHECK(n_wrong > 0 && n_wrong < 90);
    }
    di_merges_deinit(&merges);
    memset(&merges, 0, sizeof(merges));
}

/* As many borders as may be wrong, and one more: of `abcd` two sides are made
 * at once, but `ab` takes `c` before `d` does. */
static void
test_many(void)
{
    static const int32_t abcd[3][3] = {
        { 'a', 'b', 256 }, { 256, 'c', 257 }, { 'c', 'd', 258 },
    };

    for (int32_t i = 0; i < 256; i++)
        bytes[i] = i;
    memcpy(rules, abcd, sizeof(abcd));
    build(3);
    for (unsigned w = 0; di_sweep_way(w) != NULL; w++) {
        for (n_pieces = 1; n_pieces <= DI_SWEEP_WRONG + 1; n_pieces++) {
            memcpy(text + 4 * (n_pieces - 1), "abcd", 4);
            ends[n_pieces - 1] = (uint32_t) (4 * n_pieces) + 7;
            CHECK_EQ_INT(check_row(di_sweep_way(w)), n_pieces);
            CHECK_EQ_INT(row.n_wrong, n_pieces);
        }
    }
    di_merges_deinit(&merges);
    memset(&merges, 0, sizeof(merges));
}

/* --------------------------------------------------------- vocabularies -- */

/* Texts of pieces that are new, of those that aren't, and of both. */
static const char *const alphabets[] = {
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/",
    "0123456789abcdef",
    "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567",
    "abcdefghijklmnopqrstuvwxyz ",
    "etaoinshr \n",
    "aB ",
    "!\"#$%&'()*+,-./ :;<=>?@[\\]^_`{|}~abcdefghijklmnopqrstuvwxyzABCDEFG",
    "\xc3\xa9\xe4\xb8\xad\xe5\xa5\xbd\xf0\x9f\x98\x80\x80\xff xyzQ",
};

#define N_ALPHABETS  (sizeof(alphabets) / sizeof(*alphabets))

static size_t
draw_text(char *s)
{
    size_t len = 1 + draw(draw(4) == 0 ? TEXT_MAX : 3000), n = 0;

    while (n < len) {
        const char *set = alphabets[draw(N_ALPHABETS)];
        size_t      some = 1 + draw(draw(4) == 0 ? 3000 : 200);
        uint32_t    letters = (uint32_t) strlen(set);

        for (; some > 0 && n < len; some--)
            s[n++] = set[draw(letters)];
    }
    return len;
}

static void
check_texts(const di_vocab_t *v, const char *name)
{
    static char    s[TEXT_MAX];
    static int32_t want[TEXT_MAX], got[TEXT_MAX];
    di_tok_t      *tok;
    size_t         len, n, n_want, cap, end, differ = 0;
    int32_t        word;

    CHECK_EQ_INT(di_tok_open(v, &tok), DI_OK);
    for (int i = 0; i < 60; i++) {
        len = draw_text(s);
        n_want = 0;
        for (size_t at = 0; at < len; at = end) {
            end = di_pretok_next(&v->pretok, s, len, at);
            word = v->words.slots != NULL ? di_vocab_word(v, s + at, end - at)
                                          : -1;
            want[n_want] = word;
            n_want += word >= 0 ? 1 : merge(&v->merges, v->byte_ids, s + at,
                                            end - at, want + n_want);
        }
        cap = draw(2) == 0 ? TEXT_MAX : n_want - draw(3) * (n_want > 2);
        memset(got, 0xff, sizeof(got));
        differ += di_tok_encode(tok, s, len, got, cap, &n)
                  != (n_want > cap ? DI_ELIMIT : DI_OK);
        differ += n != n_want;
        differ += memcmp(got, want, (n_want < cap ? n_want : cap)
                                    * sizeof(*got)) != 0;
        differ += cap < TEXT_MAX && got[cap] != -1;
    }
    if (differ != 0)
        CHECK_EQ_STR(name, "as merging does");
    di_tok_close(tok);
}

static void
test_hf(const char *name)
{
    static char json[16 << 20];
    char        command[128];
    di_vocab_t *v = NULL;
    size_t      len;
    FILE       *f;

    snprintf(command, sizeof(command),
             "gzip -dc t/data/tokenizer/%s/tokenizer.json.gz", name);
    f = popen(command, "r");
    len = fread(json, 1, sizeof(json), f);
    CHECK_EQ_INT(pclose(f), 0);
    CHECK_EQ_INT(di_vocab_open_hf(json, len, &v, NULL), DI_OK);
    if (v != NULL)
        check_texts(v, name);
    di_vocab_close(v);
}

static void
test_gguf(const char *name, const char *path)
{
    di_vocab_t *v = NULL;
    di_gguf_t  *gguf;

    if (di_gguf_open(path, &gguf, NULL) != DI_OK) {
        printf("SKIP %s: no file %s\n", name, path);
        return;
    }
    CHECK_EQ_INT(di_vocab_open_gguf(gguf, &v, NULL), DI_OK);
    if (v != NULL)
        check_texts(v, name);
    di_vocab_close(v);
    di_gguf_close(gguf);
}

int
main(int argc, char **argv)
{
    const char *model = getenv("TEST_DEEPINFER_MODEL"), *home = getenv("HOME");
    char        path[4096];
    unsigned    n = 0;

    seed = argc > 1 ? strtoull(argv[1], NULL, 0) : (uint64_t) time(NULL);
    printf("seed %" PRIu64 "\n", seed);

    while (di_sweep_way(n) != NULL)
        n++;
    printf("%u ways to sweep\n", n);
    test_rows();
    test_stairs();
    test_many();
    test_hf("deepseek");
    test_hf("small");
    test_gguf("gpt2", "t/data/tokenizer/gpt2.gguf");
    test_gguf("llama3", "t/data/tokenizer/llama3.gguf");
    snprintf(path, sizeof(path),
             "%s/.cache/ngx_deepinfer/SmolLM2-135M-Instruct.Q4_1.gguf",
             home != NULL ? home : "");
    test_gguf("SmolLM2", model != NULL ? model : path);
    return check_done("sweep");
}
