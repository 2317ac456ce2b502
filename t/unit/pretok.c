/*
 * pretok.c - the pre-tokenizers against PCRE2 running their patterns.
 *
 * Classes of characters are compared, for all code points, with what the
 * reference implementation matches (t/data/tokenizer/classes.txt).  Then the
 * cuts are compared with PCRE2's on random texts made of what the patterns
 * distinguish, and with each code point in turn.  In the patterns \s is
 * spelled \p{White_Space}, which it is in the reference; PCRE2's own \s has
 * U+180E too.  Code points that PCRE2's Unicode version doesn't know are
 * left out there.
 *
 * Some rules are several patterns: each isolates its matches in the pieces
 * that the one before left, and so does the model here.
 *
 * Invalid bytes: the cuts must be those of a text that has a private-use
 * character in the place of each.
 */

#include <inttypes.h>
#include <stdlib.h>
#include <time.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "tokenizer/vocab/pretok_block.h"

#include "check.h"

#define TEXT_MAX  1024

#define W   "\\p{White_Space}"
#define NW  "\\P{White_Space}"
#define GPT2                                                                \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" W "\\p{L}\\p{N}]+|"  \
    W "+(?!" NW ")|" W "+"
#define QWEN2(digits)                                                       \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits    \
    "| ?[^" W "\\p{L}\\p{N}]+[\\r\\n]*|" W "*[\\r\\n]+|" W "+(?!" NW ")|"   \
    W "+"

#define DEEPSEEK                                                            \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"                  \
    "|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*"   \
    "|" W "*[\r\n]+|" W "+(?!" NW ")|" W "+"

#define STEPS  3

static const char *const patterns[][STEPS] = {
    [DI_PRETOK_GPT2]     = { GPT2 },
    [DI_PRETOK_SMOLLM]   = { "\\p{N}", GPT2 },
    [DI_PRETOK_QWEN2]    = { QWEN2("\\p{N}") },
    [DI_PRETOK_LLAMA3]   = { QWEN2("\\p{N}{1,3}") },
    [DI_PRETOK_DEEPSEEK] = { "\\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK },
};

#define N_KINDS  (sizeof(patterns) / sizeof(patterns[0]))

typedef struct {
    di_pretok_t       scan;
    pcre2_code       *steps[STEPS];     /* NULL: none                        */
    pcre2_match_data *match;
} kind_t;

static kind_t      kinds[N_KINDS];
static pcre2_code *unknown;
static uint64_t    seed;

static uint32_t
draw(uint32_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t) ((seed >> 32) * n >> 32);
}

static pcre2_code *
compile(const char *pattern)
{
    int         code;
    size_t      offset;
    pcre2_code *re = pcre2_compile((PCRE2_SPTR) pattern,
                                   PCRE2_ZERO_TERMINATED,
                                   PCRE2_UTF | PCRE2_UCP, &code, &offset,
                                   NULL);

    if (re == NULL) {
        printf("pattern \"%s\": error %d at %zu\n", pattern, code, offset);
        exit(1);
    }
    (void) pcre2_jit_compile(re, PCRE2_JIT_COMPLETE);
    return re;
}

static size_t
put_code(char *s, uint32_t c)
{
    if (c < 0x80) {
        s[0] = (char) c;
        return 1;
    }
    if (c < 0x800) {
        s[0] = (char) (0xc0 | c >> 6);
        s[1] = (char) (0x80 | (c & 0x3f));
        return 2;
    }
    if (c < 0x10000) {
        s[0] = (char) (0xe0 | c >> 12);
        s[1] = (char) (0x80 | (c >> 6 & 0x3f));
        s[2] = (char) (0x80 | (c & 0x3f));
        return 3;
    }
    s[0] = (char) (0xf0 | c >> 18);
    s[1] = (char) (0x80 | (c >> 12 & 0x3f));
    s[2] = (char) (0x80 | (c >> 6 & 0x3f));
    s[3] = (char) (0x80 | (c & 0x3f));
    return 4;
}

/* End of the match at text[pos]; pos if there is none there. */
static size_t
match_end(pcre2_code *re, pcre2_match_data *match, const char *text,
          size_t len, size_t pos)
{
    int rc = pcre2_match(re, (PCRE2_SPTR) text, len, pos,
                         PCRE2_ANCHORED | PCRE2_NO_UTF_CHECK, match, NULL);

    return rc < 0 ? pos : pcre2_get_ovector_pointer(match)[1];
}

/* Mark the ends of the pre-tokens of a piece of text, which the steps before
 * `step` left. */
static void
cut_piece(const kind_t *k, int step, const char *text, size_t start,
          size_t end, bool *cuts)
{
    size_t pos = start;

    cuts[start] = cuts[end] = true;
    if (step == STEPS || k->steps[step] == NULL)
        return;
    while (pos < end
           && pcre2_match(k->steps[step], (PCRE2_SPTR) text + start,
                          end - start, pos - start, PCRE2_NO_UTF_CHECK,
                          k->match, NULL) > 0)
    {
        size_t from = start + pcre2_get_ovector_pointer(k->match)[0];
        size_t to = start + pcre2_get_ovector_pointer(k->match)[1];

        cut_piece(k, step + 1, text, pos, from, cuts);
        cut_piece(k, step + 1, text, from, to, cuts);
        pos = to;
    }
    if (pos < end)
        cut_piece(k, step + 1, text, pos, end, cuts);
}

static void
cut_by_pattern(di_pretok_kind_t kind, const char *text, size_t len,
               bool *cuts)
{
    memset(cuts, 0, (len + 1) * sizeof(*cuts));
    cut_piece(&kinds[kind], 0, text, 0, len, cuts);
    cuts[0] = false;
}

static void
cut_by_scan(di_pretok_kind_t kind, const char *text, size_t len, bool *cuts)
{
    size_t pos = 0;

    memset(cuts, 0, (len + 1) * sizeof(*cuts));
    while (pos < len) {
        size_t next = di_pretok_next(&kinds[kind].scan, text, len, pos);

        if (next <= pos || next > len) {
            CHECK(!"a pre-token ends behind its start, inside the text");
            return;
        }
        pos = next;
        cuts[pos] = true;
    }
}

/* The same cuts by di_pretok_cut(), which has another way for plain text. */
static bool
same_in_blocks(di_pretok_kind_t kind, const char *text, size_t len,
               const bool *cuts)
{
    uint32_t ends[DI_PRETOK_CUT_MIN + 7];
    bool     got[TEXT_MAX + 1] = { false };
    size_t   pos = 0, n;

    while (pos < len) {
        n = di_pretok_cut(&kinds[kind].scan, text, len, pos, ends,
                          sizeof(ends) / sizeof(ends[0]));
        if (n == 0 || n > sizeof(ends) / sizeof(ends[0]))
            return false;
        for (size_t i = 0; i < n; i++) {
            if (ends[i] <= pos || ends[i] > len)
                return false;
            pos = ends[i];
            got[pos] = true;
        }
    }
    return memcmp(cuts, got, (len + 1) * sizeof(*got)) == 0;
}

static bool
same_cuts(di_pretok_kind_t kind, const char *text, size_t len)
{
    bool want[TEXT_MAX + 1], got[TEXT_MAX + 1];

    cut_by_pattern(kind, text, len, want);
    cut_by_scan(kind, text, len, got);
    return memcmp(want, got, (len + 1) * sizeof(*want)) == 0
           && same_in_blocks(kind, text, len, want);
}

static void
check_cuts(const char *text, size_t len)
{
    for (size_t k = 0; k < N_KINDS; k++) {
        bool same = same_cuts((di_pretok_kind_t) k, text, len);

        if (!same && check_failed < 10)
            printf("kind %zu: \"%.*s\"\n", k, (int) len, text);
        CHECK(same);
    }
}

/* A character of the kinds that the patterns tell apart. */
static uint32_t
draw_code(void)
{
    static const uint32_t spaces[] = {
        ' ', ' ', ' ', '\n', '\n', '\r', '\t', 0x0b, 0x0c, 0x85, 0xa0, 0x1680,
        0x2003, 0x2028, 0x2029, 0x202f, 0x205f, 0x3000,
    };
    static const char  contractions[] = "'''sStTrReEvVmMlLdD";
    static const uint32_t odd[] = {
        0x17f, 0x212a, 0x180e, 0x200b, 0x200d, 0xfeff, 0x301, 0x660, 0x2167,
        0xbd, 0x1d7db, 0x3007, 0x4e00, 0x1f680, 0xe0061, 0xf0000, 0x10ffff,
        0x378, 0xfffd, 0xad, 0x2160, 0x0f33, 0x10fffd, 0xe0100, 0xe01ef,
        0xe01f0, 0x9fa5, 0x9fa6, 0x3040, 0x3097, 0x3099, 0x309b, 0x30a0,
        0x30fb, 0x30fb, 0x309c, 0x3098, 0x30ff, 0x3100, 0x303f, 0x3001,
        0x2014, 0x24, 0x2b, 0x1f44d,
        0x1f3fb, 0xfe0f, 0x0e31, 0x0903, 0x20dd, 0x1, 0x7f, 0x1c,
    };

    switch (draw(8)) {
    case 0:
        return spaces[draw(sizeof(spaces) / sizeof(spaces[0]))];
    case 1:
        return (uint8_t) contractions[draw(sizeof(contractions) - 1)];
    case 2:
        return 0x20 + draw(0x5f);
    case 3:
        return '0' + draw(10);
    case 4:
        return odd[draw(sizeof(odd) / sizeof(odd[0]))];
    case 5:
        return 0x3040 + draw(0xc0);
    case 6:
        return 0x4e00 + draw(0x5200);
    default:
        return draw(0x3000) + 1;
    }
}

static bool
known(const char *text, size_t len)
{
    return match_end(unknown, kinds[0].match, text, len, 0) == 0;
}

static size_t
draw_text(char text[TEXT_MAX])
{
    size_t len = 0;

    for (uint32_t n = draw(24) + 1; n > 0; n--) {
        size_t   add = put_code(text + len, draw_code());
        uint32_t repeat = draw(4) == 0 ? draw(5) : 1;

        if (!known(text + len, add))
            continue;
        for (uint32_t k = 1; k < repeat; k++)
            memcpy(text + len + k * add, text + len, add);
        len += repeat * add;
    }
    return len;
}

static void
test_random(void)
{
    for (int i = 0; i < 20000; i++) {
        char   text[TEXT_MAX];
        size_t len = draw_text(text);

        check_cuts(text, len);
    }
}

/* A pattern with \s as files spell it. */
static void
to_file(const char *pattern, char *out)
{
    static const char white[] = "\\p{White_Space}";
    static const char other[] = "\\P{White_Space}";

    while (*pattern != '\0') {
        bool is_white = strncmp(pattern, white, strlen(white)) == 0;

        if (is_white || strncmp(pattern, other, strlen(other)) == 0) {
            out += sprintf(out, is_white ? "\\s" : "\\S");
            pattern += strlen(white);
        } else {
            *out++ = *pattern++;
        }
    }
    *out = '\0';
}

/* Text of plain characters, long enough for blocks; now and then another. */
static void
test_plain(void)
{
    static const char often[] = "aZ19.-' \t\n\r\n  ";

    for (int i = 0; i < 20000; i++) {
        char     text[TEXT_MAX];
        uint32_t odd = draw(3) == 0 ? draw(100) + 2 : 1u << 30;
        size_t   len = 0, max = 64 + draw(300);

        while (len < max) {
            uint32_t c = draw(4) == 0 ? 0x20 + draw(0x5f)
                         : (uint8_t) often[draw(sizeof(often) - 1)];
            uint32_t repeat = draw(8) == 0 ? draw(90) : 1;

            if (draw(odd) == 0)
                c = draw_code();
            if (!known(text + len, put_code(text + len, c)))
                continue;
            for (; repeat > 0 && len < max; repeat--)
                len += put_code(text + len, c);
        }
        check_cuts(text, len);
    }
}

/* The same by all that cuts blocks on this machine. */
static void
test_blocks(void)
{
    unsigned n = 0;

    while (di_pretok_block(n) != NULL) {
        for (size_t k = 0; k < N_KINDS; k++)
            kinds[k].scan.block = di_pretok_block(n);
        test_plain();
        n++;
    }
    printf("%u ways to cut blocks\n", n);
    for (size_t k = 0; k < N_KINDS; k++)
        kinds[k].scan.block = NULL;
    test_plain();
    for (size_t k = 0; k < N_KINDS; k++)
        kinds[k].scan.block = di_pretok_block(0);
}

/* Each code point between others of every class. */
static void
test_all_codes(void)
{
    static const char *const around[][2] = {
        { "a", "b" }, { " ", "a" }, { " ", " " }, { "1", "1" }, { "\n", "!" },
        { "'", "s" }, { "  ", "" }, { "的", "的" }, { ".", "a" },
        { "\x01", "\x01" },
    };
    size_t different = 0, n = 0;

    for (uint32_t c = 0; c < 0x110000; c++) {
        char   text[64];
        size_t len = 0, add;

        /* One of each 16 in the planes that are empty or private. */
        if ((c >= 0xd800 && c < 0xe000) || (c >= 0x40000 && c % 16 != 0))
            continue;
        add = put_code(text, c);
        if (!known(text, add))
            continue;
        for (size_t i = 0; i < sizeof(around) / sizeof(around[0]); i++) {
            len = (size_t) sprintf(text, "%s", around[i][0]);
            len += put_code(text + len, c);
            len += (size_t) sprintf(text + len, "%s", around[i][1]);
            n++;
            different += !same_cuts((di_pretok_kind_t) (c + i) % N_KINDS,
                                    text, len);
        }
    }
    CHECK(n > 1000000);
    CHECK_EQ_INT(different, 0);
}

/* Is `class`, a letter of classes.txt, what a scanner has for c?  Only
 * DeepSeek's tells marks and punctuation from the rest. */
static bool
same_class(di_pretok_kind_t kind, uint32_t c, char class)
{
    const uint8_t *codes = kinds[kind].scan.codes;
    bool           fine = kind == DI_PRETOK_DEEPSEEK;

    if (fine && ((c >= 0x4e00 && c <= 0x9fa5) || (c >= 0x3040 && c <= 0x30ff)))
        class = class == 'L' || class == 'M' ? 'H' : 'X';
    else if (!fine && (class == 'M' || class == 'P'))
        class = 'O';
    if (c >= DI_PRETOK_CODES)
        return class == (fine && c >= 0xe0100 && c <= 0xe01ef ? 'M' : 'O');
    return codes[c] == codes[class == 'L' ? 'a' : class == 'N' ? '0'
                             : class == 'S' ? c == '\n' || c == '\r' ? c : ' '
                             : class == 'M' ? 0x301 : class == 'P' ? '!'
                             : class == 'H' ? 0x4e00
                             : class == 'X' ? 0x30fb : 1];
}

static void
test_classes(di_pretok_kind_t kind)
{
    FILE    *f = fopen("t/data/tokenizer/classes.txt", "r");
    uint32_t first, last, at = 0, different = 0;
    char     class;

    CHECK(f != NULL);
    if (f == NULL)
        return;
    while (fscanf(f, "%" SCNx32 " %" SCNx32 " %c", &first, &last, &class)
           == 3)
    {
        for (; at < first; at++)
            different += !same_class(kind, at, 'O');
        for (; at <= last; at++)
            different += !same_class(kind, at, class);
    }
    for (; at < 0x110000; at++)
        different += !same_class(kind, at, 'O');
    fclose(f);
    CHECK_EQ_INT(different, 0);
}

/* Length of the valid UTF-8 sequence at s; 0: none.  Table 3-7 of the
 * Unicode standard, row by row. */
static size_t
valid_utf8(const uint8_t *s, size_t left)
{
    static const uint8_t rows[][3] = {      /* first byte to, second from, to */
        { 0xdf, 0x80, 0xbf }, { 0xe0, 0xa0, 0xbf }, { 0xec, 0x80, 0xbf },
        { 0xed, 0x80, 0x9f }, { 0xef, 0x80, 0xbf }, { 0xf0, 0x90, 0xbf },
        { 0xf3, 0x80, 0xbf }, { 0xf4, 0x80, 0x8f },
    };
    size_t n = s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4, row = 0;

    if (s[0] < 0x80)
        return 1;
    if (s[0] < 0xc2 || s[0] > 0xf4 || left < n)
        return 0;
    while (s[0] > rows[row][0])
        row++;
    if (s[1] < rows[row][1] || s[1] > rows[row][2])
        return 0;
    for (size_t i = 2; i < n; i++) {
        if (s[i] < 0x80 || s[i] > 0xbf)
            return 0;
    }
    return n;
}

static void
check_invalid(const uint8_t *s, size_t len)
{
    char   text[TEXT_MAX];
    bool   want[TEXT_MAX + 1], got[TEXT_MAX + 1];
    size_t to[TEXT_MAX + 1], n = 0;

    /* to[i]: where the character at s[i] went. */
    for (size_t i = 0; i < len; ) {
        size_t add = valid_utf8(s + i, len - i);

        to[i] = n;
        if (add == 0) {
            n += put_code(text + n, 0xe000);
            i++;
            continue;
        }
        for (size_t k = 0; k < add; k++)
            to[i + k] = n + k;
        memcpy(text + n, s + i, add);
        n += add;
        i += add;
    }
    to[len] = n;

    for (size_t k = 0; k < N_KINDS; k++) {
        size_t different = 0;

        cut_by_scan((di_pretok_kind_t) k, text, n, want);
        cut_by_scan((di_pretok_kind_t) k, (const char *) s, len, got);
        for (size_t i = 1; i <= len; i++)
            different += got[i] != want[to[i]];
        CHECK_EQ_INT(different, 0);
    }
}

static void
test_invalid(void)
{
    static const uint8_t bytes[] = {
        0x20, 0x61, 0x0a, 0x31, 0x27, 0x80, 0xbf, 0xc0, 0xc1, 0xc2, 0xa0,
        0xc3, 0xdf, 0xe0, 0x9f, 0xe3, 0xe4, 0xed, 0x90, 0xef, 0xf0, 0x8f,
        0xf1, 0xf4, 0xf5, 0xff, 0xb8,
    };

    for (int i = 0; i < 20000; i++) {
        uint8_t s[32];
        size_t  len = draw(sizeof(s)) + 1;

        for (size_t k = 0; k < len; k++)
            s[k] = draw(4) == 0 ? (uint8_t) draw(256)
                                : bytes[draw(sizeof(bytes))];
        check_invalid(s, len);
    }
}

/* The same patterns as a file has them, rewritten for PCRE2. */
static void
test_own(void)
{
    di_pretok_re_t *own[N_KINDS];

    for (size_t k = 0; k < N_KINDS; k++) {
        char        file[STEPS][1024];
        const char *list[STEPS];
        size_t      n = 0;

        for (; n < STEPS && patterns[k][n] != NULL; n++) {
            to_file(patterns[k][n], file[n]);
            list[n] = file[n];
        }
        CHECK_EQ_INT(di_pretok_re_open(list, n, "$", &own[k], NULL), DI_OK);
    }
    for (int i = 0; i < 4000; i++) {
        char   text[TEXT_MAX];
        size_t len = draw_text(text);

        for (size_t k = 0; k < N_KINDS; k++) {
            bool      want[TEXT_MAX + 1], got[TEXT_MAX + 1] = { false };
            uint32_t *ends;
            size_t    n;

            cut_by_scan((di_pretok_kind_t) k, text, len, want);
            CHECK_EQ_INT(di_pretok_re_cut(own[k], text, len, &ends, &n),
                         DI_OK);
            for (size_t e = 0; e < n; e++)
                got[ends[e]] = true;
            CHECK(memcmp(want, got, (len + 1) * sizeof(*got)) == 0);
            free(ends);
        }
    }
    for (size_t k = 0; k < N_KINDS; k++)
        di_pretok_re_close(own[k]);
}

/* What Oniguruma and PCRE2 may read differently is refused. */
static void
test_refused(void)
{
    static const char *const refused[] = {
        "\\w+", "\\bx", "\\h", "\\p{Han}", "\\p{^L}", "\\pL", "^a", "a$", ".",
        "[a&&b]", "[a[b]]", "[]a]", "[a", "a{2}+", "a{,2}", "{", "(?<n>a)",
        "(?m:a)", "(*FAIL)", "(a", "a\\",
    };

    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        di_pretok_re_t *re = NULL;
        di_err_t        err = { 0 };

        CHECK(di_pretok_re_open(&refused[i], 1, "$.x", &re, &err) != DI_OK);
        CHECK(strncmp(err.text, "$.x: pattern", 12) == 0);
        di_pretok_re_close(re);
    }
}

/* A scanner that takes b for no letter must not pass. */
static void
test_planted(void)
{
    di_pretok_t good = kinds[0].scan;

    kinds[0].scan.bytes['b'] = kinds[0].scan.bytes['!'];
    CHECK(!same_cuts(DI_PRETOK_GPT2, "abc", 3));
    kinds[0].scan = good;
    CHECK(same_cuts(DI_PRETOK_GPT2, "abc", 3));
}

static void
test_names(void)
{
    di_pretok_kind_t kind = DI_PRETOK_SMOLLM;

    CHECK(di_pretok_kind((di_str_t) { "default", 7 }, &kind));
    CHECK_EQ_INT(kind, DI_PRETOK_GPT2);
    CHECK(di_pretok_kind((di_str_t) { "deepseek-r1-qwen", 16 }, &kind));
    CHECK_EQ_INT(kind, DI_PRETOK_QWEN2);
    CHECK(di_pretok_kind((di_str_t) { "llama-bpe", 9 }, &kind));
    CHECK_EQ_INT(kind, DI_PRETOK_LLAMA3);
    CHECK(!di_pretok_kind((di_str_t) { "qwen", 4 }, &kind));
    CHECK(!di_pretok_kind((di_str_t) { "", 0 }, &kind));
}

int
main(int argc, char **argv)
{
    seed = argc > 1 ? strtoull(argv[1], NULL, 0) : (uint64_t) time(NULL);
    printf("seed %" PRIu64 "\n", seed);

    unknown = compile("\\p{Cn}");
    for (size_t k = 0; k < N_KINDS; k++) {
        di_pretok_init(&kinds[k].scan, (di_pretok_kind_t) k);
        for (int i = 0; i < STEPS && patterns[k][i] != NULL; i++)
            kinds[k].steps[i] = compile(patterns[k][i]);
        kinds[k].match = pcre2_match_data_create(4, NULL);
        if (kinds[k].match == NULL)
            abort();
    }

    test_names();
    test_classes(DI_PRETOK_GPT2);
    test_classes(DI_PRETOK_DEEPSEEK);
    test_planted();
    test_random();
    test_blocks();
    test_own();
    test_refused();
    test_all_codes();
    test_invalid();

    for (size_t k = 0; k < N_KINDS; k++) {
        for (int i = 0; i < STEPS; i++)
            pcre2_code_free(kinds[k].steps[i]);
        pcre2_match_data_free(kinds[k].match);
    }
    pcre2_code_free(unknown);
    return check_done("pretok");
}
