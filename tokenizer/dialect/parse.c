/*
 * parse.c - tokens and text become symbols; parse.h says what they run on.
 *
 * A marker whose token the vocabulary has is one symbol above the bytes.  The
 * same pattern exists once more spelled out in bytes, and this one follows
 * bytes of text chunks only: text from tokens never becomes a marker.  So each
 * stage exists twice, and the one with the spelled patterns is for parsers
 * that have seen a text chunk.
 *
 * `bytes` holds what was not given out yet: first the current run, decided
 * bytes with one action, then what is undecided.
 *
 * When runs are given out is where the two codecs differ.  Ours gives all out
 * that is decided when a call ends.  Recipe works piece by piece (a piece is
 * a text chunk, an added token, or the ordinary tokens of one call between
 * two such): a run ends with its piece and is given out when its piece is used
 * up or a byte of the piece is decided otherwise.  So a piece with an
 * undecided tail is kept whole, and spaces for text outside JSON come one for
 * each piece.  Recipe also takes ordinary tokens only when their bytes,
 * joined, end a character, and drops those that never do.
 */

#include "parse_impl.h"
#include "../api/di_utf8.h"

#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------- open, close */

int
di_parse_open(di_rules_t *rules, di_sink_pt sink, void *ctx,
              di_parse_t **parse)
{
    di_parse_t *p;

    p = calloc(1, sizeof(*p)
               + 2 * rules->n_patterns_max * sizeof(p->memory[0]));
    if (p == NULL)
        return DI_ENOMEM;

    p->active = p->memory;
    p->spare = p->memory + rules->n_patterns_max;
    p->rules = rules;
    p->stages = rules->stages;
    p->sink = sink;
    p->ctx = ctx;
    p->stopped = -1;
    di_match_enter(p, rules->spelling->start[rules->options.start]);
    if (p->nomem) {
        free(p);
        return DI_ENOMEM;
    }
    *parse = p;
    return DI_OK;
}

void
di_parse_close(di_parse_t *parse)
{
    if (parse == NULL)
        return;

    di_sbuf_free(&parse->bytes);
    di_sbuf_free(&parse->name);
    di_sbuf_free(&parse->kept);
    di_sbuf_free(&parse->value);
    di_sbuf_free(&parse->body.text);
    di_sbuf_free(&parse->scratch);
    di_sbuf_free(&parse->held);
    free(parse->pieces);
    free(parse);
}

bool
di_parse_reasoning(const di_parse_t *parse)
{
    return parse->stage->act == DI_ACT_REASONING;
}

int
di_parse_stopped(const di_parse_t *parse)
{
    return parse->stopped;
}

uint64_t
di_parse_replaced(const di_parse_t *parse)
{
    return parse->replaced;
}

uint32_t
di_parse_held_tokens(const di_parse_t *parse)
{
    return parse->held_tokens;
}

/* Asked at the end of each call, and never true: nothing branches on a part
 * of it. */
static inline bool
is_failed(const di_parse_t *p)
{
    return p->bytes.failed | p->name.failed | p->kept.failed
           | p->value.failed | p->body.text.failed | p->scratch.failed
           | p->held.failed | p->nomem;
}

bool
di_parse_failed(const di_parse_t *p)
{
    return is_failed(p);
}

/* ------------------------------------------------------------------ pieces */

static void
tell_piece(di_parse_t *p, uint64_t from, uint64_t end, uint32_t n_tokens)
{
    di_delta_t d;

    if (!p->rules->options.places)
        return;

    d = (di_delta_t) { .kind = DI_DELTA_PIECE, .from = from, .end = end,
                       .n_tokens = n_tokens };
    p->sink(p->ctx, &d);
}

/* Official: what is at the end of bytes is a piece. */
static void
add_piece(di_parse_t *p, uint64_t from, uint32_t n_tokens)
{
    uint64_t *pieces;
    size_t    cap;

    if (p->piece == p->n_pieces)
        p->piece = p->n_pieces = 0;

    if (p->n_pieces == p->pieces_cap) {
        cap = p->pieces_cap == 0 ? 8 : p->pieces_cap * 2;
        pieces = realloc(p->pieces, cap * sizeof(*pieces));
        if (pieces == NULL) {
            p->nomem = true;
            return;
        }
        p->pieces = pieces;
        p->pieces_cap = cap;
    }

    p->pieces[p->n_pieces++] = p->base + p->bytes.len;
    tell_piece(p, from, from + 1, n_tokens);
}

/* Official: an empty chunk of text repeats the last action on nothing. */
static void
give_empty_pieces(di_parse_t *p)
{
    while (p->acted && !p->run && p->piece < p->n_pieces
           && p->pieces[p->piece] == p->base + p->head)
    {
        p->act = p->last;
        p->match = NULL;
        di_run_give_bytes(p, "", 0);
        p->piece++;
    }
}

static void
compact(di_parse_t *p)
{
    if (p->head == 0 || (p->head < p->bytes.len && p->head < 4096))
        return;

    p->base += p->head;
    p->bytes.len -= p->head;
    p->open -= p->head;
    if (p->bytes.len != 0)
        memmove(p->bytes.data, p->bytes.data + p->head, p->bytes.len);
    p->head = 0;
}

/* -------------------------------------------------------------- characters */

/* Are these eight bytes ASCII? */
static inline bool
is_ascii(const char *s)
{
    uint64_t word;

    memcpy(&word, s, sizeof(word));
    return (word & 0x8080808080808080u) == 0;
}

/* The same of a few. */
static inline bool
are_ascii(const char *s, size_t n)
{
    unsigned char all = 0;
    size_t        i;

    for (i = 0; i < n; i++)
        all |= (unsigned char) s[i];

    return all < 0x80;
}

/* Add bytes to b, each ill-formed maximal subpart as U+FFFD; an unfinished
 * character at the end is left out.  How many bytes it has. */
static size_t
decode(di_parse_t *p, di_sbuf_t *b, const char *s, size_t n)
{
    const char *run = s, *end = s + n;
    size_t      len;
    di_utf8_t   kind;

    while (s < end) {
        if (end - s >= 8 && is_ascii(s)) {
            s += 8;
            continue;
        }

        if ((unsigned char) *s < 0x80) {
            s++;
            continue;
        }

        kind = di_utf8_step(s, (size_t) (end - s), &len);
        if (kind == DI_UTF8_CUT)
            break;

        if (kind == DI_UTF8_BAD) {
            di_sbuf_add(b, run, (size_t) (s - run));
            di_sbuf_lit(b, "\xef\xbf\xbd");
            p->replaced++;
            run = s + len;
        }

        s += len;
    }

    di_sbuf_add(b, run, (size_t) (s - run));
    return (size_t) (end - s);
}

static size_t
char_bytes(unsigned char lead)
{
    return lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
}

/* Ours: whole characters go on at once, an unfinished one waits in `held`.
 * It can't be the beginning of a stop string if its token couldn't. */
static void
take_bytes(di_parse_t *p, const char *s, size_t n, uint32_t n_tokens,
           bool stoppable, bool text)
{
    size_t at = p->bytes.len, cut, first = at;
    bool   waited = p->held.len != 0, late = waited && !p->held_stoppable;

    if (waited) {
        di_sbuf_add(&p->held, s, n);
        s = p->held.data;
        n = p->held.len;
    }

    if (n < 16 && are_ascii(s, n)) {
        di_sbuf_piece(&p->bytes, s, n);
        cut = 0;
    } else {
        cut = decode(p, &p->bytes, s, n);
    }

    p->held_stoppable = stoppable && !(late && cut == n);
    if (waited && cut != 0)
        memmove(p->held.data, s + n - cut, cut);
    else if (cut != 0)
        di_sbuf_add(&p->held, s + n - cut, cut);
    p->held.len = cut;
    if (is_broken(p))
        return;

    tell_piece(p, p->base + at, p->base + p->bytes.len + (cut != 0),
               n_tokens);

    if (late && at < p->bytes.len) {
        first += char_bytes((unsigned char) p->bytes.data[at]);
        p->stoppable = false;
        di_match_bytes(p, at, first, text);
    }

    p->stoppable = stoppable;
    di_match_bytes(p, first, p->bytes.len,
                   text || p->stages != p->rules->texts);
}

/* Recipe's: do the bytes end with a true U+FFFD? */
static bool
ends_replaced(const char *s, size_t n)
{
    return n >= 3 && memcmp(s + n - 3, "\xef\xbf\xbd", 3) == 0;
}

/* Recipe's: do the held bytes end with a whole character?  A true U+FFFD
 * doesn't count as one. */
static bool
held_is_whole(const di_parse_t *p)
{
    size_t n = p->held.len, back, len;

    for (back = 1; back <= 4 && back <= n; back++) {
        if (((unsigned char) p->held.data[n - back] & 0xc0) == 0x80)
            continue;

        return di_utf8_step(p->held.data + n - back, back, &len) == DI_UTF8_OK
               && len == back && !ends_replaced(p->held.data, n);
    }

    return false;
}

/* No more bytes come to those held.  Recipe's: they become a piece. */
static void
release_held(di_parse_t *p)
{
    size_t at = p->bytes.len;

    if (p->held.len == 0)
        return;

    if (decode(p, &p->bytes, p->held.data, p->held.len) != 0) {
        di_sbuf_lit(&p->bytes, "\xef\xbf\xbd");
        p->replaced++;
    }

    if (p->rules->options.official)
        add_piece(p, p->base + at, p->held_tokens);

    p->held.len = p->held_tokens = 0;
    p->stoppable = p->rules->options.official || p->held_stoppable;
    if (!is_broken(p))
        di_match_bytes(p, at, p->bytes.len, false);
}

/* ------------------------------------------------------------------- input */

static uint16_t
symbol_of(const di_rules_t *r, int32_t id)
{
    unsigned i;

    for (i = 0; i < MARKERS_MAX; i++) {
        if (r->marker_ids[i] == id)
            return (uint16_t) SYMBOL(i);
    }

    return SYMBOL_OTHER;
}

/* An added token.  Ours: a control token that is no marker says nothing, and
 * another is text, in which stop strings are looked for. */
static void
take_added(di_parse_t *p, int32_t id, const char *s, size_t n, bool stoppable)
{
    const di_rules_t *r = p->rules;
    uint16_t          symbol = symbol_of(r, id);
    uint64_t          at;

    if (!r->options.official && symbol == SYMBOL_OTHER) {
        if (!di_vocab_is_special(r->options.vocab, id))
            take_bytes(p, s, n, 1, stoppable, false);
        return;
    }

    release_held(p);
    at = p->base + p->bytes.len;
    di_sbuf_add(&p->bytes, s, n);
    if (r->options.official)
        add_piece(p, at, 1);
    else
        tell_piece(p, at, at + n, !di_vocab_is_special(r->options.vocab, id));
    if (!is_broken(p))
        di_match_symbol(p, symbol, p->bytes.len, false);
}

/* May these bytes go to the sink as they are, now that nothing is held? */
static inline bool
is_plain(const stage_t *st, const char *s, size_t n)
{
    unsigned char of = 0;
    size_t        i;

    for (i = 0; i < n; i++)
        of |= st->of[(unsigned char) s[i]];

    return n != 0 && (of & (BEGINS | CHANGES)) == 0
           && ((of & HIGH) == 0 || di_utf8_valid(s, n));
}

/* Is nothing held of which the next symbol could be a part? */
static inline bool
is_idle(const di_parse_t *p)
{
    return (p->bytes.len | p->held.len | p->n_active | p->kept.len
            | p->held_tokens) == 0 && !p->fresh;
}

/* A token that is plain, with nothing held before it. */
static void
give_plain(di_parse_t *p, const char *s, size_t n)
{
    const di_delta_t d = { .kind = p->stage->kind, .data = s, .len = n,
                           .plain = s, .plain_len = n };

    p->last = p->stage->act;
    p->acted = true;
    p->base += n;
    p->piece_from = p->base;
    p->sink(p->ctx, &d);
}

bool
di_parse_token(di_parse_t *p, int32_t id, bool stoppable, bool alone)
{
    const di_rules_t *r = p->rules;
    const char       *s;
    size_t            n = 0;

    if (p->stopped >= 0 || is_broken(p))
        return false;

    s = di_vocab_bytes(r->options.vocab, id, &n);

    if (s != NULL && di_vocab_is_added(r->options.vocab, id)) {
        take_added(p, id, s, n, stoppable);
        return false;
    }

    if (alone && p->stage->plain && is_idle(p) && is_plain(p->stage, s, n)
        && !(r->options.official && ends_replaced(s, n)))
    {
        give_plain(p, s, n);
        return true;
    }

    if (!r->options.official) {
        take_bytes(p, s == NULL ? "" : s, n, 1, stoppable, false);
        return false;
    }

    p->held_tokens++;
    if (s != NULL)
        di_sbuf_add(&p->held, s, n);
    return false;
}

/* From now on spelled markers count, too. */
static void
watch_text(di_parse_t *p)
{
    bool    fresh = p->fresh && !p->begun;
    uint8_t stage = (uint8_t) (p->stage - p->stages);

    p->stages = p->rules->texts;
    di_match_enter(p, stage);
    p->fresh = fresh;
}

void
di_parse_text(di_parse_t *p, const char *text, size_t len)
{
    size_t at;

    if (p->stopped >= 0 || is_broken(p))
        return;

    if (p->stages != p->rules->texts)
        watch_text(p);

    if (!p->rules->options.official) {
        take_bytes(p, text, len, 0, true, true);
        return;
    }

    release_held(p);
    at = p->bytes.len;
    if (decode(p, &p->bytes, text, len) != 0)
        di_sbuf_lit(&p->bytes, "\xef\xbf\xbd");
    add_piece(p, p->base + at, 0);
    p->stoppable = true;
    if (!is_broken(p))
        di_match_bytes(p, at, p->bytes.len, true);
}

bool
di_parse_flush(di_parse_t *p)
{
    const bool official = p->rules->options.official;

    if (official && p->stopped < 0 && held_is_whole(p))
        release_held(p);

    if (!is_broken(p)) {
        di_match_settle(p);
        if (official)
            give_empty_pieces(p);
        else
            di_run_give(p);
        compact(p);
    }

    return !is_failed(p);
}

void
di_parse_finish(di_parse_t *p)
{
    if (!p->rules->options.official)
        release_held(p);
    if (is_failed(p))
        return;

    di_run_decide(p, p->bytes.len - p->open, p->stage->act, NULL);
    di_run_give(p);

    if (!p->rules->options.official) {
        if (p->stage->act == DI_ACT_VALUE)
            di_run_end_value(p, false);
        if (p->stage->act == DI_ACT_BODY)
            di_run_end_body(p, "", 0);
        di_run_give_kept(p);
        if (p->stopped < 0)
            di_run_tell_end(p);
    }

    compact(p);
}
