/*
 * parse.c - fuzz the parser of model output: any symbols in any chunking must
 * give what they give in one chunk, arguments only follow a call, and text
 * that came is UTF-8.
 *
 * Input: a byte of options, a byte that chooses the chunking, then symbols;
 * \1 and \2 are markers (t/unit/parse_model.h).
 */

#include "t/unit/parse_model.h"
#include "tokenizer/api/di_utf8.h"

#define SYMBOLS_MAX  4096
#define MUST(cond)   do { if (!(cond)) abort(); } while (0)

static const di_str_t stops[] = { { "ab", 2 }, { "\n\n", 2 }, { "abac", 4 } };

static di_vocab_t *vocab;

/* Does a call end behind symbol i? */
static bool
is_cut(size_t i, size_t n, unsigned step)
{
    return i + 1 == n
           || (step != 0 && (i * step + step / 8) % 7 <= step % 5);
}

static void
feed(const di_parse_options_t *o, const uint8_t *data, size_t n, unsigned step,
     bool text, record_t *r)
{
    static char spelled[SYMBOLS_MAX * 16];
    di_rules_t *rules;
    di_parse_t *p;
    size_t      i, from = 0, len;
    bool        alone, given = false;

    r->len = r->calls = 0;
    r->last = -1;
    r->broken = false;
    MUST(di_rules_open(o, &rules) == DI_OK);
    MUST(di_parse_open(rules, record_delta, r, &p) == DI_OK);

    for (i = 0; i < n; i++) {
        alone = !o->places && from == i && is_cut(i, n, step);
        if (!text)
            given = di_parse_token(p, parse_id(data[i]), true, alone);
        if (!is_cut(i, n, step))
            continue;
        if (text) {
            len = parse_spell((const char *) data + from, i + 1 - from,
                              spelled);
            di_parse_text(p, spelled, len);
        }
        from = i + 1;
        if (!given)
            di_parse_flush(p);
    }

    di_parse_finish(p);
    MUST(!di_parse_failed(p));
    MUST(o->official || !r->broken);
    MUST(di_utf8_valid(r->text, r->len));
    di_parse_close(p);
    di_rules_close(rules);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static record_t    whole, cut;
    di_parse_options_t o = { 0 };
    bool               text;

    if (vocab == NULL)
        vocab = parse_vocab(NULL, 0);
    if (size < 2 || size > SYMBOLS_MAX)
        return 0;

    o.vocab = vocab;
    o.stops = stops;
    o.n_stops = data[0] & 3;
    o.tools = (data[0] & 4) != 0;
    o.json = (data[0] & 8) != 0;
    o.places = (data[0] & 16) != 0;
    o.spell = (di_spell_t) (data[0] >> 5) % (DI_SPELL_LLAMA3 + 1);
    o.start = (di_start_t) (data[1] % 5);
    text = (data[1] & 8) != 0;

    feed(&o, data + 2, size - 2, 0, text, &whole);
    feed(&o, data + 2, size - 2, 1 + data[1] / 16, text, &cut);
    MUST(whole.len == cut.len && memcmp(whole.text, cut.text, cut.len) == 0);

    o.official = true;
    feed(&o, data + 2, size - 2, 1 + data[1] / 16, text, &cut);
    return 0;
}
