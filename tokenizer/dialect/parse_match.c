/*
 * parse_match.c - symbols are matched against a stage's patterns.
 *
 * Each pattern has its own Knuth-Morris-Pratt automaton over symbols: a stage
 * has few of them, and while none is under way a byte costs one look into a
 * table.  Those that are under way are in a list, so that others cost nothing
 * until a symbol comes that they begin with.  What must be held back is exactly
 * the longest of the automata's states, and the newlines before it that its
 * rule would take too.
 */

#include "parse_impl.h"

/* No pattern is under way. */
static void
forget(di_parse_t *p)
{
    p->n_active = 0;
}

void
di_match_enter(di_parse_t *p, uint8_t stage)
{
    p->stage = &p->stages[stage & ~DI_FRESH];
    if (p->stage->phase == NULL
        && di_stage_make(p->rules, p->stages, stage & ~DI_FRESH) != DI_OK)
    {
        p->nomem = true;
        p->fresh = false;
        forget(p);
        return;
    }
    p->fresh = (stage & DI_FRESH) != 0 && p->stage->phase->leading[0] != '\0';
    p->begun = false;
    forget(p);
}

/* Bytes that a state has taken. */
static inline size_t
bytes_of(const pattern_t *pat, uint32_t state)
{
    uint32_t k = state & ~NO_SPACE;

    return k + (k > pat->marker_at ? pat->marker_extra : 0)
           - (state >> 31);
}

static inline size_t
newlines_before(const di_parse_t *p, size_t at)
{
    size_t n = 0;

    while (at - n > p->open && p->bytes.data[at - n - 1] == '\n')
        n++;

    return n;
}

/* A pattern has taken the bytes [at, end). */
static void
matched(di_parse_t *p, const pattern_t *pat, size_t at, size_t end)
{
    const di_rule_t *rule = pat->rule;
    const stage_t   *st = p->stage;
    uint8_t          act = rule->act, next = rule->next;

    if (rule->when & DI_NEWLINES)
        at -= newlines_before(p, at);

    di_run_decide(p, at - p->open, st->act, NULL);

    if (act == DI_ACT_STOP) {
        p->stopped = pat->stop;
        di_run_give(p);
        di_run_tell_end(p);
    }

    if (st->act == DI_ACT_VALUE) {
        di_run_give(p);
        di_run_end_value(p, true);
    }

    /* A call without a name is none. */
    if (act == DI_ACT_CALL && !p->rules->options.official) {
        di_run_give(p);
        if (p->name.len == 0) {
            act = DI_ACT_TEXT;
            next = p->rules->spelling->answer;
        }
    }

    di_run_decide(p, end - p->open, act, rule);
    di_match_enter(p, next);
}

/* May the pattern's k-th symbol be a byte of a token? */
static inline bool
is_of(const pattern_t *pat, uint32_t k, bool text)
{
    return text || k < pat->text_from || k >= pat->text_to;
}

/* The automaton's state after a symbol that doesn't just come next. */
static uint32_t
fall_back(const pattern_t *pat, uint32_t state, uint16_t symbol, bool text)
{
    uint32_t k = state & ~NO_SPACE, missing = state & NO_SPACE;

    if (k == pat->space_at && symbol != ' ') {
        missing = NO_SPACE;
        k++;
    }

    while (pat->symbols[k] != symbol || !is_of(pat, k, text)) {
        if (k == 0)
            return 0;
        k = pat->border[k - 1];
        missing = 0;
    }

    return (k + 1) | missing;
}

/* The automaton's state after a symbol; its place is pat->n: it is
 * complete. */
static inline uint32_t
advance(const pattern_t *pat, uint32_t state, uint16_t symbol, bool text)
{
    uint32_t k = state & ~NO_SPACE;

    if (pat->symbols[k] == symbol && is_of(pat, k, text))
        return state + 1;

    return k == 0 ? 0 : fall_back(pat, state, symbol, text);
}

/* Of a guarded pattern, k symbols of which were seen. */
static inline bool
may_match(const di_parse_t *p, const pattern_t *pat, uint32_t k)
{
    return pat->stop >= 0 ? p->stoppable : p->fresh && p->begun == (k > 0);
}

/* A symbol that patterns begin with: these are under way, too. */
static void
activate(di_parse_t *p, uint16_t symbol)
{
    const stage_t  *st = p->stage;
    const active_t *old = p->active, *end = old + p->n_active;
    active_t       *to = p->spare;
    uint32_t        i;

    for (i = 0; i < st->n; i++) {
        if (old < end && old->pattern == &st->patterns[i])
            *to++ = *old++;
        else if (st->begin[i] == symbol)
            *to++ = (active_t) { &st->patterns[i], 0 };
    }

    p->n_active = (size_t) (to - p->spare);
    to = p->active;
    p->active = p->spare;
    p->spare = to;
}

/* Advance the automata that are under way by a symbol; the one that is
 * complete, and the bytes that it has taken, or NULL.  Where several are the
 * first wins; ours: of stop strings the longest, which begins first. */
static const pattern_t *
step(di_parse_t *p, uint16_t symbol, bool text, size_t *bytes)
{
    const pattern_t *pat, *best = NULL;
    const active_t  *a = p->active, *end = a + p->n_active;
    active_t        *to = p->active;
    uint32_t         state;

    for (; a < end; a++) {
        pat = a->pattern;
        if (pat->guarded && !may_match(p, pat, a->state))
            continue;

        state = advance(pat, a->state, symbol, text);

        if ((state & ~NO_SPACE) == pat->n) {
            if (best == NULL || (pat->stop >= 0 && pat->n > best->n)) {
                best = pat;
                *bytes = bytes_of(pat, state);
            }
            if (pat->stop < 0 || p->rules->options.official)
                break;
            state = pat->border[pat->n - 1];
        }

        if (state != 0)
            *to++ = (active_t) { pat, state };
    }

    p->n_active = (size_t) (to - p->active);
    return best;
}

/* Are the bytes [open, end) the beginning of a pattern that may only stand at
 * the stage's start? */
static bool
has_begun(const di_parse_t *p, size_t end)
{
    const active_t *a;

    for (a = p->active; a < p->active + p->n_active; a++) {
        if (a->pattern->guarded && a->pattern->stop < 0
            && bytes_of(a->pattern, a->state) == end - p->open)
            return true;
    }

    return false;
}

/* The symbol that ends at `end` in bytes. */
void
di_match_symbol(di_parse_t *p, uint16_t symbol, size_t end, bool text)
{
    const pattern_t *pat = NULL;
    const uint8_t    of = p->stage->of[symbol];
    size_t           bytes;

    if (of & BEGINS)
        activate(p, symbol);
    if (p->n_active != 0)
        pat = step(p, symbol, text, &bytes);

    if (pat != NULL) {
        matched(p, pat, end - bytes, end);
        return;
    }

    if (p->fresh) {
        if (!p->begun && (of & LEADS)) {
            di_run_decide(p, end - p->open, p->stage->phase->lead_act, NULL);
            forget(p);
            return;
        }
        p->fresh = p->begun = has_begun(p, end);
    }
}

/* A pattern that alone is under way goes on as far as no other may begin, but
 * for its last byte.  Where it stopped. */
static size_t
follow(di_parse_t *p, size_t at, size_t end, bool text)
{
    const unsigned char *data = (const unsigned char *) p->bytes.data + at;
    const stage_t       *st = p->stage;
    const pattern_t     *pat = p->active[0].pattern;
    uint32_t             k = p->active[0].state & ~NO_SPACE;
    const uint16_t      *symbols = pat->symbols + k;
    size_t               i, n = pat->n - 1 - k;

    if ((pat->guarded && !may_match(p, pat, k))
        || (pat->text_from < pat->text_to && !text))
        return at;

    n = n < end - at ? n : end - at;
    for (i = 0; i < n && data[i] == symbols[i] && !(st->of[data[i]] & BEGINS);
         i++)
    {
        /* void */
    }

    p->active[0].state += (uint32_t) i;
    return at + i;
}

/* Match the bytes [at, end).  text: they are of a text chunk, or no pattern of
 * the stages asks for that. */
void
di_match_bytes(di_parse_t *p, size_t at, size_t end, bool text)
{
    const unsigned char *data = (const unsigned char *) p->bytes.data;
    const stage_t       *st;

    while (at < end) {
        st = p->stage;

        if (!p->fresh && p->n_active == 0) {
            while (at < end && !(st->of[data[at]] & BEGINS))
                at++;
        } else if (!p->fresh && p->n_active == 1) {
            at = follow(p, at, end, text);
        }

        if (at == end)
            break;
        di_match_symbol(p, data[at], at + 1, text);
        at++;
    }
}

/* Bytes at the end that would still be a pattern's if these bytes came. */
static size_t
bytes_before(const pattern_t *pat, uint32_t k, const char *next, size_t n,
             bool text)
{
    size_t i;

    for (i = 0; i < n && (k & ~NO_SPACE) < pat->n; i++)
        k = advance(pat, k, (unsigned char) next[i], text);

    return bytes_of(pat, k) < i ? 0 : bytes_of(pat, k) - i;
}

/* Bytes at the end that the pattern may still take.  An unfinished character
 * comes next if there is one, as it is or as U+FFFD; after a text chunk it may
 * be one of a spelled marker. */
static size_t
may_take(const di_parse_t *p, const pattern_t *pat, uint32_t k)
{
    const bool text = p->stages == p->rules->texts;
    size_t     n, other, len = p->bytes.len;

    if (p->held.len == 0 || p->rules->options.official) {
        n = bytes_of(pat, k);

    } else {
        n = bytes_before(pat, k, p->held.data, p->held.len, text);
        other = bytes_before(pat, k, "\xef\xbf\xbd", 3, text);
        n = other > n ? other : n;
    }

    if (n != 0 && (pat->rule->when & DI_NEWLINES))
        n += newlines_before(p, len - n);
    return n;
}

/* Bytes at the end that some pattern may still take. */
static size_t
undecided(const di_parse_t *p)
{
    const active_t *a;
    size_t          held = 0, n;

    if (p->stage->newlines && (p->held.len == 0 || p->rules->options.official))
        held = newlines_before(p, p->bytes.len);

    for (a = p->active; a < p->active + p->n_active; a++) {
        n = may_take(p, a->pattern, a->state);
        if (n > held)
            held = n;
    }

    return held;
}

void
di_match_settle(di_parse_t *p)
{
    di_run_decide(p, p->bytes.len - p->open - undecided(p), p->stage->act,
                  NULL);
}
