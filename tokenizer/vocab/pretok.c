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
 * Every character is a letter (L), a number (N), white space (S: Unicode's
 * White_Space) or other (O).  A byte that starts no valid UTF-8 sequence is
 * one character of class O.
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

/* Classes as bits, so that a run is tested with one mask.  A newline has
 * the bit of white space too. */
enum {
    PRETOK_L  = 1,
    PRETOK_N  = 2,
    PRETOK_S  = 4,
    PRETOK_NL = 8,          /* \r and \n                                     */
    PRETOK_O  = 16,
};

/* The 2-bit classes of the table of code points. */
static const uint8_t pretok_unpack[4] = {
    PRETOK_O, PRETOK_L, PRETOK_N, PRETOK_S
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

/* Letters and numbers of Unicode 15.1 and 16.0.  Which version a Unicode
 * library knows must not change the ids of a text. */
static const struct {
    uint32_t first, last;
    uint8_t  class;             /* index in pretok_unpack[]                  */
} pretok_new[] = {
    { 0x1c89,  0x1c8a,  1 }, { 0xa7cb,  0xa7cd,  1 }, { 0xa7da,  0xa7dc,  1 },
    { 0x105c0, 0x105f3, 1 }, { 0x10d40, 0x10d49, 2 }, { 0x10d4a, 0x10d65, 1 },
    { 0x10d6f, 0x10d85, 1 }, { 0x10ec2, 0x10ec4, 1 }, { 0x11380, 0x11389, 1 },
    { 0x1138b, 0x1138b, 1 }, { 0x1138e, 0x1138e, 1 }, { 0x11390, 0x113b5, 1 },
    { 0x113b7, 0x113b7, 1 }, { 0x113d1, 0x113d1, 1 }, { 0x113d3, 0x113d3, 1 },
    { 0x116d0, 0x116e3, 2 }, { 0x11bc0, 0x11be0, 1 }, { 0x11bf0, 0x11bf9, 2 },
    { 0x13460, 0x143fa, 1 }, { 0x16100, 0x1611d, 1 }, { 0x16130, 0x16139, 2 },
    { 0x16d40, 0x16d6c, 1 }, { 0x16d70, 0x16d79, 2 }, { 0x18cff, 0x18cff, 1 },
    { 0x1ccf0, 0x1ccf9, 2 }, { 0x1e5d0, 0x1e5ed, 1 }, { 0x1e5f0, 0x1e5f0, 1 },
    { 0x1e5f1, 0x1e5fa, 2 }, { 0x2ebf0, 0x2ee5d, 1 },
};

/* Index in pretok_unpack[]. */
static unsigned
pretok_classify(uint32_t code)
{
    switch (utf8proc_category((utf8proc_int32_t) code)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
        return 1;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
        return 2;
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
        return 3;
    default:
        /* Controls that have the property White_Space. */
        return (code >= 0x09 && code <= 0x0d) || code == 0x85 ? 3 : 0;
    }
}

void
di_pretok_init(di_pretok_t *p, di_pretok_kind_t kind)
{
    memset(p, 0, sizeof(*p));
    p->kind = kind;

    for (uint32_t code = 0; code < DI_PRETOK_CODES; code++)
        p->codes[code >> 2] |= (uint8_t) (pretok_classify(code)
                                          << (code & 3) * 2);
    for (size_t i = 0; i < sizeof(pretok_new) / sizeof(pretok_new[0]); i++) {
        for (uint32_t c = pretok_new[i].first; c <= pretok_new[i].last; c++)
            p->codes[c >> 2] |= (uint8_t) (pretok_new[i].class
                                           << (c & 3) * 2);
    }
    for (unsigned b = 0; b < 0x80; b++)
        p->bytes[b] = pretok_unpack[p->codes[b >> 2] >> (b & 3) * 2 & 3];
    p->bytes['\r'] |= PRETOK_NL;
    p->bytes['\n'] |= PRETOK_NL;
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
        return PRETOK_O;
    return pretok_unpack[p->codes[code >> 2] >> (code & 3) * 2 & 3];
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
pretok_qwen2(const di_pretok_t *p, const uint8_t *s, const uint8_t *end,
             size_t digits_max)
{
    const uint8_t *at;
    size_t         n, next_n = 0;
    unsigned       class = pretok_class(p, s, end, &n), next = 0;

    if (class == PRETOK_L)
        return pretok_run(p, s + n, end, PRETOK_L);

    if (class == PRETOK_N) {
        at = s + n;
        for (size_t i = 1; i < digits_max && at < end; i++) {
            if (pretok_class(p, at, end, &n) != PRETOK_N)
                break;
            at += n;
        }
        return at;
    }

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
    default:
        at = pretok_qwen2(p, s, end, 3);
        break;
    }
    return (size_t) (at - base);
}
