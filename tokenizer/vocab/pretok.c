/*
 * pretok.c - cutting text into pre-tokens.
 *
 * The vocabularies that we read were trained on text cut by one of two
 * regular expressions (GPT-2's, and Qwen2's, which Llama 3 shares but for
 * the digits).  Each is a few rules over four classes of characters, so a
 * scanner written by hand does the same without a regex engine's cost and
 * without its backtracking: t/unit/pretok.c holds it to PCRE2 running the
 * expressions themselves.
 *
 *   GPT-2   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+
 *           |\s+(?!\S)|\s+
 *   Qwen2   (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}
 *           | ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
 *
 * DeepSeek's has three steps, each cutting the pieces that the one before
 * left: numbers, up to three together; Chinese characters and kana (H); and
 *
 *   [!-/:-@[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+
 *   | ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
 *
 * What none of these matches (controls, unassigned codes) is a piece, too.
 * The last step also cuts what the second isolated: some of the kana are
 * punctuation, some are not assigned.
 *
 * Every character is a letter (L), a number (N), white space (S: Unicode's
 * White_Space) or other (O); to DeepSeek's, some of the others are marks (M)
 * or punctuation and symbols (P), and H is a class of its own.  A byte that
 * starts no valid UTF-8 sequence is one character of class O.
 *
 * `\s+(?!\S)` means: a run of white space that other text follows gives up
 * its last character, to be joined with that text where a rule allows.
 *
 * SmolLM's rule isolates each number first and runs GPT-2's pattern on what
 * lies between, where a piece's end counts as the end of the text; hence a
 * run of white space before a number keeps its last character.
 */

#include <string.h>

#include <utf8proc.h>

#include "pretok.h"
#include "pretok_block.h"

/* Classes as bits, so that a run is tested with one mask.  A newline has
 * the bit of white space too. */
enum {
    PRETOK_L  = 1,
    PRETOK_N  = 2,
    PRETOK_S  = 4,
    PRETOK_NL = 8,          /* \r and \n                                     */
    PRETOK_O  = 16,
    PRETOK_M  = 32,
    PRETOK_P  = 64,
    PRETOK_H  = 128,
    PRETOK_HX = PRETOK_H | PRETOK_N,    /* of H, but no letter or mark       */
};

bool
di_pretok_kind(di_str_t name, di_pretok_kind_t *kind)
{
    static const struct {
        const char       *name;
        di_pretok_kind_t  kind;
    } names[] = {
        { "default",          DI_PRETOK_GPT2   },
        { "gpt-2",            DI_PRETOK_GPT2   },
        { "smollm",           DI_PRETOK_SMOLLM },
        { "qwen2",            DI_PRETOK_QWEN2  },
        { "deepseek-r1-qwen", DI_PRETOK_QWEN2  },
        { "llama-bpe",        DI_PRETOK_LLAMA3 },
        { "deepseek-v3",      DI_PRETOK_DEEPSEEK },
    };

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (name.len == strlen(names[i].name)
            && memcmp(name.data, names[i].name, name.len) == 0)
        {
            *kind = names[i].kind;
            return true;
        }
    }
    return false;
}

/* What Unicode 15.1 and 16.0 added.  Which version a Unicode library knows
 * must not change the ids of a text. */
static const struct {
    uint32_t first, last;
    uint8_t  class;
} pretok_new[] = {
    { 0x897, 0x897, PRETOK_M }, { 0x1b4e, 0x1b4f, PRETOK_P },
    { 0x1b7f, 0x1b7f, PRETOK_P }, { 0x1c89, 0x1c8a, PRETOK_L },
    { 0x2427, 0x2429, PRETOK_P }, { 0x2ffc, 0x2fff, PRETOK_P },
    { 0x31e4, 0x31e5, PRETOK_P }, { 0x31ef, 0x31ef, PRETOK_P },
    { 0xa7cb, 0xa7cd, PRETOK_L }, { 0xa7da, 0xa7dc, PRETOK_L },
    { 0x105c0, 0x105f3, PRETOK_L }, { 0x10d40, 0x10d49, PRETOK_N },
    { 0x10d4a, 0x10d65, PRETOK_L }, { 0x10d69, 0x10d6d, PRETOK_M },
    { 0x10d6e, 0x10d6e, PRETOK_P }, { 0x10d6f, 0x10d85, PRETOK_L },
    { 0x10d8e, 0x10d8f, PRETOK_P }, { 0x10ec2, 0x10ec4, PRETOK_L },
    { 0x10efc, 0x10efc, PRETOK_M }, { 0x11380, 0x11389, PRETOK_L },
    { 0x1138b, 0x1138b, PRETOK_L }, { 0x1138e, 0x1138e, PRETOK_L },
    { 0x11390, 0x113b5, PRETOK_L }, { 0x113b7, 0x113b7, PRETOK_L },
    { 0x113b8, 0x113c0, PRETOK_M }, { 0x113c2, 0x113c2, PRETOK_M },
    { 0x113c5, 0x113c5, PRETOK_M }, { 0x113c7, 0x113ca, PRETOK_M },
    { 0x113cc, 0x113d0, PRETOK_M }, { 0x113d1, 0x113d1, PRETOK_L },
    { 0x113d2, 0x113d2, PRETOK_M }, { 0x113d3, 0x113d3, PRETOK_L },
    { 0x113d4, 0x113d5, PRETOK_P }, { 0x113d7, 0x113d8, PRETOK_P },
    { 0x113e1, 0x113e2, PRETOK_M }, { 0x116d0, 0x116e3, PRETOK_N },
    { 0x11bc0, 0x11be0, PRETOK_L }, { 0x11be1, 0x11be1, PRETOK_P },
    { 0x11bf0, 0x11bf9, PRETOK_N }, { 0x11f5a, 0x11f5a, PRETOK_M },
    { 0x13460, 0x143fa, PRETOK_L }, { 0x16100, 0x1611d, PRETOK_L },
    { 0x1611e, 0x1612f, PRETOK_M }, { 0x16130, 0x16139, PRETOK_N },
    { 0x16d40, 0x16d6c, PRETOK_L }, { 0x16d6d, 0x16d6f, PRETOK_P },
    { 0x16d70, 0x16d79, PRETOK_N }, { 0x18cff, 0x18cff, PRETOK_L },
    { 0x1cc00, 0x1ccef, PRETOK_P }, { 0x1ccf0, 0x1ccf9, PRETOK_N },
    { 0x1cd00, 0x1ceb3, PRETOK_P }, { 0x1e5d0, 0x1e5ed, PRETOK_L },
    { 0x1e5ee, 0x1e5ef, PRETOK_M }, { 0x1e5f0, 0x1e5f0, PRETOK_L },
    { 0x1e5f1, 0x1e5fa, PRETOK_N }, { 0x1e5ff, 0x1e5ff, PRETOK_P },
    { 0x1f8b2, 0x1f8bb, PRETOK_P }, { 0x1f8c0, 0x1f8c1, PRETOK_P },
    { 0x1fa89, 0x1fa89, PRETOK_P }, { 0x1fa8f, 0x1fa8f, PRETOK_P },
    { 0x1fabe, 0x1fabe, PRETOK_P }, { 0x1fac6, 0x1fac6, PRETOK_P },
    { 0x1fadc, 0x1fadc, PRETOK_P }, { 0x1fadf, 0x1fadf, PRETOK_P },
    { 0x1fae9, 0x1fae9, PRETOK_P }, { 0x1fbcb, 0x1fbef, PRETOK_P },
    { 0x2ebf0, 0x2ee5d, PRETOK_L },
};

static uint8_t
pretok_classify(uint32_t code)
{
    switch (utf8proc_category((utf8proc_int32_t) code)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
        return PRETOK_L;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
        return PRETOK_M;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
        return PRETOK_N;
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
        return PRETOK_S;
    case UTF8PROC_CATEGORY_CC:
        /* Those that have the property White_Space. */
        return (code >= 0x09 && code <= 0x0d) || code == 0x85 ? PRETOK_S
                                                              : PRETOK_O;
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CS:
        return PRETOK_O;
    default:
        return PRETOK_P;
    }
}

static bool
pretok_is_h(uint32_t code)
{
    return (code >= 0x4e00 && code <= 0x9fa5)
           || (code >= 0x3040 && code <= 0x30ff);
}

void
di_pretok_init(di_pretok_t *p, di_pretok_kind_t kind)
{
    bool fine = kind == DI_PRETOK_DEEPSEEK;

    memset(p, 0, sizeof(*p));
    p->kind = kind;
    p->block = di_pretok_block(0);
    p->selectors = fine ? PRETOK_M : PRETOK_O;

    for (uint32_t c = 0; c < DI_PRETOK_CODES; c++)
        p->codes[c] = pretok_classify(c);
    for (size_t i = 0; i < sizeof(pretok_new) / sizeof(pretok_new[0]); i++) {
        for (uint32_t c = pretok_new[i].first; c <= pretok_new[i].last; c++)
            p->codes[c] = pretok_new[i].class;
    }
    for (uint32_t c = 0; c < DI_PRETOK_CODES; c++) {
        if (fine && pretok_is_h(c))
            p->codes[c] = di_seams_takes(c) ? PRETOK_H : PRETOK_HX;
        else if (!fine && (p->codes[c] & (PRETOK_M | PRETOK_P)) != 0)
            p->codes[c] = PRETOK_O;
    }
    p->codes['\r'] |= PRETOK_NL;
    p->codes['\n'] |= PRETOK_NL;
    memcpy(p->bytes, p->codes, 0x80);
}

/* Patterns as tokenizer.json files spell them. */
#define PRETOK_QWEN2_AS(digits)                                             \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits    \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define PRETOK_DEEPSEEK_AS(quote, cr, lf)                                   \
    "[!" quote "#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^" cr lf \
    "\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[" cr lf "]*|"    \
    "\\s*[" cr lf "]+|\\s+(?!\\S)|\\s+"

static const struct {
    di_pretok_kind_t kind;
    const char      *patterns[3];       /* the unused ones NULL              */
} pretok_known[] = {
    { DI_PRETOK_GPT2, { DI_PRETOK_GPT2_PATTERN } },
    { DI_PRETOK_SMOLLM, { "\\p{N}", DI_PRETOK_GPT2_PATTERN } },
    { DI_PRETOK_QWEN2, { PRETOK_QWEN2_AS("\\p{N}") } },
    { DI_PRETOK_LLAMA3, { PRETOK_QWEN2_AS("\\p{N}{1,3}") } },
    { DI_PRETOK_DEEPSEEK, { "\\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
                            PRETOK_DEEPSEEK_AS("\"", "\r", "\n") } },
    { DI_PRETOK_DEEPSEEK, { "\\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
                            PRETOK_DEEPSEEK_AS("\\\"", "\\r", "\\n") } },
};

int
di_pretok_open(di_pretok_t *p, const char *const *patterns, size_t n,
               const char *at, di_err_t *err)
{
    for (size_t k = 0; k < sizeof(pretok_known) / sizeof(*pretok_known); k++) {
        const char *const *known = pretok_known[k].patterns;
        size_t             i = 0;

        while (i < n && i < 3 && known[i] != NULL
               && strcmp(known[i], patterns[i]) == 0)
            i++;
        if (i == n && (n == 3 || known[n] == NULL)) {
            di_pretok_init(p, pretok_known[k].kind);
            return DI_OK;
        }
    }
    p->kind = DI_PRETOK_RE;
    return di_pretok_re_open(patterns, n, at, &p->re, err);
}

void
di_pretok_deinit(di_pretok_t *p)
{
    di_pretok_re_close(p->re);
}

/* Class of the character that starts at s[0], s < end and not ASCII; its
 * length in bytes.  What UTF-8 forbids (overlong forms, surrogates, codes
 * past U+10FFFF, stray or missing continuation bytes) is one byte of O. */
static unsigned
pretok_wide(const di_pretok_t *p, const uint8_t *s, const uint8_t *end,
            size_t *n)
{
    size_t   left = (size_t) (end - s);
    uint32_t code;

    *n = 1;
    if (s[0] < 0xc2 || s[0] > 0xf4 || left < 2 || (s[1] & 0xc0) != 0x80)
        return PRETOK_O;
    if (s[0] < 0xe0) {
        code = (s[0] & 0x1fu) << 6 | (s[1] & 0x3fu);
        *n = 2;
    } else {
        if (left < 3 || (s[2] & 0xc0) != 0x80)
            return PRETOK_O;
        code = (s[1] & 0x3fu) << 6 | (s[2] & 0x3fu);
        if (s[0] < 0xf0) {
            code |= (s[0] & 0x0fu) << 12;
            if (code < 0x800 || (code >= 0xd800 && code < 0xe000))
                return PRETOK_O;
            *n = 3;
        } else {
            if (left < 4 || (s[3] & 0xc0) != 0x80)
                return PRETOK_O;
            code = (s[0] & 0x07u) << 18 | code << 6 | (s[3] & 0x3fu);
            if (code < 0x10000 || code > 0x10ffff)
                return PRETOK_O;
            *n = 4;
        }
    }
    if (code >= DI_PRETOK_CODES)
        return code >= 0xe0100 && code <= 0xe01ef ? p->selectors : PRETOK_O;
    return p->codes[code];
}

static inline unsigned
pretok_class(const di_pretok_t *p, const uint8_t *s, const uint8_t *end,
             size_t *n)
{
    unsigned class = p->bytes[*s];

    if (class != 0) {
        *n = 1;
        return class;
    }
    return pretok_wide(p, s, end, n);
}

/* End of the run of characters in one of the classes of the mask. */
static inline const uint8_t *
pretok_run(const di_pretok_t *p, const uint8_t *s, const uint8_t *end,
           unsigned mask)
{
    size_t n;

    while (s < end && (pretok_class(p, s, end, &n) & mask) != 0)
        s += n;
    return s;
}

/* Length of the contraction at s, an apostrophe; 0 if there is none.  fold:
 * in either case, where the long s (U+017F) folds to s. */
static size_t
pretok_contraction(const uint8_t *s, const uint8_t *end, bool fold)
{
    size_t  left = (size_t) (end - s);
    uint8_t up = fold ? 0x20 : 0, a, b;

    if (left < 2)
        return 0;
    a = s[1];
    b = left > 2 ? s[2] : 0;
    if (fold && a == 0xc5 && b == 0xbf)
        return 3;
    if (a >= 'A' && a <= 'Z')
        a |= up;
    if (b >= 'A' && b <= 'Z')
        b |= up;

    switch (a) {
    case 's':
    case 't':
    case 'm':
    case 'd':
        return 2;
    case 'r':
    case 'v':
        return b == 'e' ? 3 : 0;
    case 'l':
        return b == 'l' ? 3 : 0;
    default:
        return 0;
    }
}

/* The rules \s*[\r\n]+ (if newlines), \s+(?!\S) and \s+ at s, which is white
 * space.  keep: classes before which the run keeps its last character. */
static const uint8_t *
pretok_spaces(const di_pretok_t *p, const uint8_t *s, const uint8_t *end,
              bool newlines, unsigned keep)
{
    const uint8_t *at = s, *last = s, *newline = NULL;
    unsigned       class = 0;
    size_t         n;

    while (at < end) {
        class = pretok_class(p, at, end, &n);
        if ((class & PRETOK_S) == 0)
            break;
        last = at;
        at += n;
        if ((class & PRETOK_NL) != 0)
            newline = at;
    }

    if (newlines && newline != NULL)
        return newline;
    if (at == end || last == s || (class & keep) != 0)
        return at;
    return last;
}

static const uint8_t *
pretok_gpt2(const di_pretok_t *p, const uint8_t *s, const uint8_t *end,
            bool digits_apart)
{
    size_t   n, next_n;
    unsigned class = pretok_class(p, s, end, &n), next;
    unsigned apart = digits_apart ? PRETOK_N : 0;

    if ((class & PRETOK_S) != 0) {
        if (*s == ' ' && s + 1 < end) {
            next = pretok_class(p, s + 1, end, &next_n);
            if ((next & (PRETOK_S | apart)) == 0)
                return pretok_run(p, s + 1 + next_n, end, next);
        }
        return pretok_spaces(p, s, end, false, apart);
    }

    if ((class & apart) != 0)
        return s + n;
    if (*s == '\'') {
        next_n = pretok_contraction(s, end, false);
        if (next_n != 0)
            return s + next_n;
    }
    return pretok_run(p, s + n, end, class);
}

static const uint8_t *
pretok_numbers(const di_pretok_t *p, const uint8_t *s, const uint8_t *end,
               size_t max)
{
    size_t n;

    for (size_t i = 0; i < max && s < end; i++) {
        if (pretok_class(p, s, end, &n) != PRETOK_N)
            break;
        s += n;
    }
    return s;
}

static const uint8_t *
pretok_qwen2(const di_pretok_t *p, const uint8_t *s, const uint8_t *end,
             size_t digits_max)
{
    const uint8_t *at;
    size_t         n, next_n = 0;
    unsigned       class = pretok_class(p, s, end, &n), next = 0;

    if (class == PRETOK_L)
        return pretok_run(p, s + n, end, PRETOK_L);

    if (class == PRETOK_N)
        return pretok_numbers(p, s, end, digits_max);

    if (*s == '\'') {
        next_n = pretok_contraction(s, end, true);
        if (next_n != 0)
            return s + next_n;
    }

    /* One character that is no newline joins the letters behind it. */
    if (s + n < end)
        next = pretok_class(p, s + n, end, &next_n);
    if (next == PRETOK_L && (class & PRETOK_NL) == 0)
        return pretok_run(p, s + n + next_n, end, PRETOK_L);

    if (class == PRETOK_O || (*s == ' ' && next == PRETOK_O)) {
        at = pretok_run(p, s + n, end, PRETOK_O);
        return pretok_run(p, at, end, PRETOK_NL);
    }
    return pretok_spaces(p, s, end, true, 0);
}

/* The rule [!-/:-@[-`{-~][A-Za-z]+ at s, or ?[\p{P}\p{S}]+[\r\n]* with its
 * first n bytes, which end in P. */
static const uint8_t *
pretok_marks(const di_pretok_t *p, const uint8_t *s, size_t n,
             const uint8_t *end)
{
    const uint8_t *at = s + n;

    if (*s != ' ' && n == 1 && at < end && (p->bytes[*at] & PRETOK_L) != 0) {
        while (at < end && (p->bytes[*at] & PRETOK_L) != 0)
            at++;
        return at;
    }
    at = pretok_run(p, at, end, PRETOK_P);
    return pretok_run(p, at, end, PRETOK_NL);
}

/* End of the characters at s, the first n bytes of class O, that no rule of
 * DeepSeek's takes: one before a letter or mark is taken. */
static const uint8_t *
pretok_rest(const di_pretok_t *p, const uint8_t *s, size_t n,
            const uint8_t *end)
{
    const uint8_t *at = s + n;
    size_t         next_n;

    while (at < end && pretok_class(p, at, end, &n) == PRETOK_O) {
        if (at + n < end && (pretok_class(p, at + n, end, &next_n)
                             & (PRETOK_L | PRETOK_M)) != 0)
            break;
        at += n;
    }
    return at;
}

/* End of the run of Chinese characters and kana. */
static const uint8_t *
pretok_h(const uint8_t *s, const uint8_t *end)
{
    while (end - s >= 3 && di_seams_takes(di_seams_code(s)))
        s += 3;
    return s;
}

/* Is a code of class HX punctuation or a symbol?  Or else it isn't assigned. */
static bool
pretok_is_mark(uint32_t code)
{
    return code == 0x309b || code == 0x309c || code == 0x30a0
           || code == 0x30fb;
}

/* The same rules as for the rest, for codes of class HX at s.  They end with
 * the run of H, in which there is no white space. */
static const uint8_t *
pretok_kana(const di_pretok_t *p, const uint8_t *s, const uint8_t *end)
{
    bool     mark = pretok_is_mark(di_seams_code(s));
    unsigned class;
    size_t   n;

    for (const uint8_t *at = s + 3; at < end; at += n) {
        class = pretok_class(p, at, end, &n);
        if (class == PRETOK_H && !mark)
            return at - s == 3 ? pretok_h(at, end) : at - 3;
        if (class != PRETOK_HX || pretok_is_mark(di_seams_code(at)) != mark)
            return at;
    }
    return end;
}

static const uint8_t *
pretok_deepseek(const di_pretok_t *p, const uint8_t *s, const uint8_t *end)
{
    size_t   n, next_n = 0;
    unsigned class = pretok_class(p, s, end, &n), next = 0;

    switch (class) {
    case PRETOK_L:
    case PRETOK_M:
        return pretok_run(p, s + n, end, PRETOK_L | PRETOK_M);
    case PRETOK_N:
        return pretok_numbers(p, s, end, 3);
    case PRETOK_H:
        return pretok_h(s + n, end);
    case PRETOK_HX:
        return pretok_kana(p, s, end);
    case PRETOK_P:
        return pretok_marks(p, s, n, end);
    }

    if (s + n < end)
        next = pretok_class(p, s + n, end, &next_n);
    if ((next & (PRETOK_L | PRETOK_M)) != 0 && (class & PRETOK_NL) == 0)
        return pretok_run(p, s + n + next_n, end, PRETOK_L | PRETOK_M);
    if (class == PRETOK_O)
        return pretok_rest(p, s, n, end);
    if (*s == ' ' && next == PRETOK_P)
        return pretok_marks(p, s, 1 + next_n, end);
    return pretok_spaces(p, s, end, true, PRETOK_N | PRETOK_H);
}

size_t
di_pretok_next(const di_pretok_t *p, const char *text, size_t len, size_t pos)
{
    const uint8_t *base = (const uint8_t *) text;
    const uint8_t *s = base + pos, *end = base + len, *at;

    switch (p->kind) {
    case DI_PRETOK_GPT2:
        at = pretok_gpt2(p, s, end, false);
        break;
    case DI_PRETOK_SMOLLM:
        at = pretok_gpt2(p, s, end, true);
        break;
    case DI_PRETOK_QWEN2:
        at = pretok_qwen2(p, s, end, 1);
        break;
    case DI_PRETOK_DEEPSEEK:
        at = pretok_deepseek(p, s, end);
        break;
    default:
        at = pretok_qwen2(p, s, end, 3);
        break;
    }
    return (size_t) (at - base);
}

/* Is there a seam between two neighbours of one class, of which the second is
 * at s?  last: the first's code, 0 for none that has seams. */
static bool
pretok_is_seam(const di_pretok_t *p, uint32_t last, uint32_t code)
{
    return p->seams != NULL && last != 0 && code != 0
           && di_seams_between(p->seams, last, code);
}

/* A letter, or in DeepSeek's a Chinese character, ends a pre-token wherever
 * something else follows that can't be in its run: no rule goes on behind it
 * then, and none looks ahead over it.  So the text before such a place is cut
 * the same without what follows, and what follows without what is before.
 * The same holds at a seam, which the tokens of a pre-token never cross, with
 * letters or Chinese characters on both sides. */
size_t
di_pretok_split(const di_pretok_t *p, const char *text, size_t len, size_t at)
{
    const uint8_t *base = (const uint8_t *) text, *end = base + len;
    const uint8_t *s = base + at;
    uint32_t       code, last_code = 0;
    unsigned       class, last = 0;
    size_t         n;

    /* From the start of a character, but at most the longest one back. */
    for (int i = 0; i < 3 && s > base && s < end && (*s & 0xc0) == 0x80; i++)
        s--;
    for (; s < end; s += n) {
        class = pretok_class(p, s, end, &n);
        code = n == 3 && (class == PRETOK_L || class == PRETOK_H)
               ? di_seams_code(s) : 0;
        if (!di_seams_takes(code))
            code = 0;
        if (s >= base + at
            && ((last == PRETOK_L && (class & (PRETOK_L | PRETOK_M)) == 0)
                || (last == PRETOK_H && class != PRETOK_H)
                || pretok_is_seam(p, last_code, code)))
            return (size_t) (s - base);
        last = class;
        last_code = code;
    }
    return len;
}

/* Is a block worth the while?  Not where plain text ends at once. */
static inline bool
pretok_is_plain(const di_pretok_t *p, const char *text, size_t len,
                size_t pos)
{
    return p->block != NULL && len - pos >= DI_PRETOK_BLOCK
           && ((text[pos] | text[pos + 1] | text[pos + 2]) & 0x80) == 0;
}

size_t
di_pretok_cut(const di_pretok_t *p, const char *text, size_t len, size_t pos,
              uint32_t *ends, size_t cap)
{
    const uint8_t *s = (const uint8_t *) text;
    bool           seams = p->seams != NULL && p->kind == DI_PRETOK_DEEPSEEK;
    size_t         n = 0;

    while (pos < len && cap - n >= DI_PRETOK_BLOCK) {
        size_t found = 0;

        if (pretok_is_plain(p, text, len, pos))
            found = p->block(p->kind, s + pos, (uint32_t) pos, ends + n);
        else if (seams && len - pos >= 3
                 && di_seams_takes(di_seams_code(s + pos)))
            found = di_seams_run(p->seams, s, pos, len, ends + n, cap - n);
        if (found == 0) {
            ends[n] = (uint32_t) di_pretok_next(p, text, len, pos);
            found = 1;
        }
        n += found;
        pos = ends[n - 1];
    }
    return n;
}
