/*
 * parse.c - the stage machine; parse.h says what it runs on.
 *
 * Each pattern has its own Knuth-Morris-Pratt automaton over symbols: a stage
 * has few of them, and while none is under way a byte costs one look into a
 * table.  Those that are under way are in a list, so that others cost nothing
 * until a symbol comes that they begin with.  What must be held back is exactly
 * the longest of the automata's states, and the newlines before it that its
 * rule would take too.
 *
 * A marker whose token the vocabulary has is one symbol above the bytes.  The
 * same pattern exists once more spelled out in bytes, and this one follows
 * bytes of text chunks only: text from tokens never becomes a marker.  So each
 * stage exists twice, and the one with the spelled patterns is for parsers
 * that have seen a text chunk.
 *
 * `bytes` holds what was not given out yet: first the current run, decided
 * bytes with one action, then what is undecided.  A match with something to
 * emit is a run of its own.
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

#include "parse.h"
#include "../api/di_utf8.h"
#include "../api/json.h"

#include <stdlib.h>
#include <string.h>

#define MARKERS_MAX   8
#define SYMBOL(i)     (256 + (i))
#define SYMBOL_OTHER  SYMBOL(MARKERS_MAX)        /* an added token that is no
                                                  * marker                  */
#define SYMBOLS       (SYMBOL_OTHER + 1)

/* What a stage knows of a symbol. */
enum {
    BEGINS = 1 << 0,             /* a pattern begins so                     */
    LEADS = 1 << 1,              /* skipped while the stage is fresh        */
    CHANGES = 1 << 2,            /* not given out as it is: a string escapes
                                  * it, or a rule takes it as a newline     */
    HIGH = 1 << 3,               /* no ASCII                                */
};

/* An automaton's state is the place in the pattern, and this bit if the space
 * that may be missing was.  0: it isn't under way. */
#define NO_SPACE      (1u << 31)

/* A rule's pattern in one of its spellings. */
typedef struct {
    const di_rule_t *rule;
    int              stop;       /* index of the stop string, or -1         */
    uint32_t         n;
    const uint16_t  *symbols;    /* [n]                                     */
    const uint32_t  *border;     /* [n] longest border of the first i + 1   */
    uint32_t         text_from;  /* symbols [text_from, text_to) match bytes */
    uint32_t         text_to;    /* of text chunks only                     */
    uint32_t         marker_at;  /* place of a marker's symbol; n: none     */
    uint32_t         marker_extra;       /* its bytes, less one             */
    uint32_t         space_at;   /* place of a space that may be missing;
                                  * UINT32_MAX: none                        */
    bool             guarded;    /* a stop string, or at a start alone      */
} pattern_t;

/* One that is under way. */
typedef struct {
    const pattern_t *pattern;
    uint32_t         state;
} active_t;

/* Made when it is first entered: most answers see one or two. */
typedef struct {
    const di_phase_t *phase;     /* NULL: not made yet                      */
    void             *memory;    /* patterns, borders, symbols              */
    const pattern_t  *patterns;  /* [n]                                     */
    const uint16_t   *begin;     /* [n] their first symbols                 */
    uint32_t          n;
    uint8_t           act;       /* of unmatched bytes                      */
    bool              newlines;  /* a rule takes newlines before itself     */
    bool              plain;     /* unmatched bytes are shown as they are,
                                  * but for what a string escapes           */
    di_delta_kind_t   kind;      /* plain: as what                          */
    uint8_t           of[SYMBOLS];       /* BEGINS, LEADS, ..               */
} stage_t;

struct di_rules_s {
    di_parse_options_t   options;
    const di_spelling_t *spelling;
    int32_t              marker_ids[MARKERS_MAX];        /* -1: no token    */
    uint32_t             n_patterns_max; /* of one stage                    */
    stage_t             *texts;          /* the same stages, for text chunks */
    stage_t              stages[];
};

struct di_parse_s {
    di_rules_t       *rules;
    stage_t          *stages;    /* the rules' stages or texts              */
    const stage_t    *stage;     /* of these                                */
    di_sink_pt        sink;
    void             *ctx;

    di_sbuf_t         bytes;
    uint64_t          base;      /* place of bytes.data[0]                  */
    size_t            head;      /* in bytes: where the run begins          */
    size_t            open;      /* in bytes: first that is undecided       */
    bool              fresh;
    bool              begun;     /* fresh, but for what a pattern that may
                                  * only stand here has taken so far        */
    bool              stoppable; /* stop strings may match in what is fed   */
    size_t            n_active;
    active_t         *active;    /* [n_active] in the patterns' order       */
    active_t         *spare;     /* as large                                */
    int               stopped;   /* stop string that was met, or -1         */

    bool              run;       /* there is a run: bytes [head, open) are
                                  * its and perhaps none                    */
    uint8_t           act;       /* its action                              */
    const di_rule_t  *match;     /* its rule if it is a match               */

    di_sbuf_t         name;      /* of the call that begins                 */
    di_sbuf_t         kept;      /* DI_ACT_KEEP                             */
    di_sbuf_t         value;     /* DI_ACT_VALUE: a scalar so far           */
    bool              nested;    /* the value is an array or an object      */
    di_body_t         body;      /* DI_ACT_BODY                             */
    di_sbuf_t         scratch;   /* escaped bytes                           */

    di_sbuf_t         held;      /* bytes of an unfinished character;
                                  * official: all bytes since the last that
                                  * was whole at the end of a call          */
    bool              held_stoppable;
    uint32_t          held_tokens;       /* official: what they came from   */
    uint64_t          replaced;
    uint64_t         *pieces;    /* official: [n_pieces] where pieces end   */
    size_t            n_pieces;
    size_t            pieces_cap;
    size_t            piece;     /* the first that is not used up           */
    uint64_t          piece_from;        /* where it begins                 */
    bool              acted;     /* official: `last` is set                 */
    uint8_t           last;      /* the action decided last                 */
    bool              nomem;     /* pieces could not grow, a stage be made  */

    active_t          memory[];  /* of active and spare                     */
};

/* ------------------------------------------------------------------ rules */

/* Memory for a stage's patterns is measured in a first pass and filled in a
 * second. */
typedef struct {
    const di_rules_t *rules;
    pattern_t  *patterns;
    uint32_t   *words;           /* borders                                 */
    uint16_t   *halves;          /* symbols                                 */
    uint16_t   *begins;          /* first symbols                           */
    size_t      n_patterns, n_symbols;
    bool        measure;
    bool        texts;           /* with the patterns that are spelled      */
} builder_t;

static void
fill_borders(pattern_t *p, uint32_t *border)
{
    uint32_t i, k = 0;

    border[0] = 0;

    for (i = 1; i < p->n; i++) {
        while (k > 0 && p->symbols[i] != p->symbols[k])
            k = border[k - 1];

        k += p->symbols[i] == p->symbols[k];
        border[i] = k;
    }

    p->border = border;
}

/* May tokens of text spell the marker? */
static bool
is_textual(const di_rules_t *r, int marker)
{
    return r->spelling->textual && r->marker_ids[marker] < 0;
}

/* One spelling of a pattern: markers as symbols or spelled. */
static void
add_pattern(builder_t *b, stage_t *st, const di_rule_t *rule, int stop,
            di_str_t text, bool spelled)
{
    const char *const *markers = b->rules->spelling->markers;
    pattern_t          p = { .rule = rule, .stop = stop };
    uint16_t          *out = b->measure ? NULL : b->halves + b->n_symbols;
    const char        *m;
    size_t             i, k, n = 0;
    unsigned char      c;

    p.marker_at = p.space_at = UINT32_MAX;

    for (i = 0; i < text.len; i++) {
        c = (unsigned char) text.data[i];

        if (c == '~' && stop < 0) {
            p.space_at = (uint32_t) n;
            c = ' ';
        }

        if (stop < 0 && c >= 1 && c <= MARKERS_MAX) {
            m = markers[c - 1];
            if (!spelled) {
                p.marker_at = (uint32_t) n;
                p.marker_extra = (uint32_t) strlen(m) - 1;
                if (out != NULL)
                    out[n] = (uint16_t) SYMBOL(c - 1);
                n++;
                continue;
            }

            p.text_from = (uint32_t) n;
            for (k = 0; m[k] != '\0'; k++, n++) {
                if (out != NULL)
                    out[n] = (unsigned char) m[k];
            }
            p.text_to = is_textual(b->rules, c - 1) ? p.text_from
                        : (uint32_t) n;
            continue;
        }

        if (out != NULL)
            out[n] = c;
        n++;
    }

    if (!b->measure) {
        p.n = (uint32_t) n;
        p.guarded = stop >= 0 || (rule->when & DI_AT_START) != 0;
        p.symbols = out;
        fill_borders(&p, b->words + b->n_symbols);
        b->patterns[b->n_patterns] = p;
        b->begins[b->n_patterns] = out[0];
        st->of[out[0]] |= BEGINS;
        st->newlines |= (rule->when & DI_NEWLINES) != 0;
    }

    st->n++;
    b->n_patterns++;
    b->n_symbols += n;
}

static void
add_rule(builder_t *b, stage_t *st, const di_rule_t *rule)
{
    const di_parse_options_t *o = &b->rules->options;
    const char               *m;
    di_str_t                  text;
    size_t                    i;
    int                       marker = -1;

    if (((rule->when & DI_IF_TOOLS) && !o->tools)
        || ((rule->when & DI_IF_JSON) && !o->json)
        || ((rule->when & DI_IF_NOT_JSON) && o->json))
        return;

    if (rule->pattern == NULL) {
        for (i = 0; i < o->n_stops; i++)
            add_pattern(b, st, rule, (int) i, o->stops[i], false);
        return;
    }

    text = (di_str_t) { rule->pattern, strlen(rule->pattern) };
    for (m = rule->pattern; *m != '\0'; m++) {
        if (*m >= 1 && *m <= MARKERS_MAX)
            marker = *m - 1;
    }

    if (marker < 0 || b->rules->marker_ids[marker] >= 0)
        add_pattern(b, st, rule, -1, text, false);
    if (marker >= 0 && (b->texts || is_textual(b->rules, marker)))
        add_pattern(b, st, rule, -1, text, true);
}

static void
add_rules(builder_t *b, stage_t *st, const di_phase_t *phase)
{
    size_t i;

    b->n_patterns = b->n_symbols = 0;
    st->n = 0;
    for (i = 0; i < phase->n; i++)
        add_rule(b, st, &phase->rules[i]);
}

/* What the stage knows of bytes, beside those that patterns begin with. */
static void
fill_bytes(stage_t *st)
{
    const char *lead;
    unsigned    c;

    for (c = 0x80; c < 0x100; c++)
        st->of[c] |= HIGH;

    if (st->act == DI_ACT_STRING) {
        for (c = 0; c < 0x20; c++)
            st->of[c] |= CHANGES;
        st->of['"'] |= CHANGES;
        st->of['\\'] |= CHANGES;
    }

    if (st->newlines)
        st->of['\n'] |= CHANGES;
    for (lead = st->phase->leading; *lead != '\0'; lead++)
        st->of[(unsigned char) *lead] |= LEADS;
}

/* Stage number i of `stages`, which are the rules' own or their texts. */
static int
make_stage(const di_rules_t *r, stage_t *stages, size_t i)
{
    const di_phase_t *phase = &r->spelling->stages[i];
    stage_t          *st = &stages[i];
    builder_t         b = { .rules = r, .measure = true,
                            .texts = stages == r->texts };

    st->act = r->options.json ? phase->act_json : phase->act;
    st->plain = st->act == DI_ACT_REASONING || st->act == DI_ACT_TEXT
                || st->act == DI_ACT_STRING;
    st->kind = st->act == DI_ACT_REASONING ? DI_DELTA_REASONING
               : st->act == DI_ACT_TEXT ? DI_DELTA_TEXT : DI_DELTA_ARGS;

    add_rules(&b, st, phase);
    if (b.n_patterns > 0) {
        st->memory = malloc(b.n_patterns * (sizeof(pattern_t)
                                            + sizeof(uint16_t))
                            + b.n_symbols * (sizeof(uint32_t)
                                             + sizeof(uint16_t)));
        if (st->memory == NULL) {
            st->n = 0;
            return DI_ENOMEM;
        }
        st->patterns = b.patterns = st->memory;
        b.words = (uint32_t *) (b.patterns + b.n_patterns);
        b.halves = (uint16_t *) (b.words + b.n_symbols);
        st->begin = b.begins = b.halves + b.n_symbols;
        b.measure = false;
        add_rules(&b, st, phase);
    }

    st->phase = phase;
    fill_bytes(st);
    return DI_OK;
}

/* Patterns that a stage has at most: each rule's with its marker as a symbol
 * and spelled. */
static uint32_t
patterns_max(const di_spelling_t *sp, size_t n_stops)
{
    const di_phase_t *phase;
    size_t            i, k, n, most = 0;

    for (i = 0; i < sp->n; i++) {
        phase = &sp->stages[i];
        for (k = 0, n = 0; k < phase->n; k++)
            n += phase->rules[k].pattern == NULL ? n_stops : 2;
        most = n > most ? n : most;
    }

    return (uint32_t) most;
}

static const di_spelling_t *
spelling(const di_parse_options_t *o)
{
    switch (o->spell) {
    case DI_SPELL_PLAIN:
        break;
    case DI_SPELL_DSML:
        return o->official ? &di_spelling_dsml_official : &di_spelling_dsml;
    case DI_SPELL_THINK:
        return &di_spelling_think;
    case DI_SPELL_HERMES:
        return &di_spelling_hermes;
    case DI_SPELL_LLAMA3:
        return &di_spelling_llama3;
    }

    return &di_spelling_plain;
}

di_spell_t
di_spell_of(const di_dialect_t *dialect)
{
    static const struct { const char *name; di_spell_t spell; } known[] = {
        { "deepseek-v4", DI_SPELL_DSML }, { "deepseek-v4.1", DI_SPELL_DSML },
        { "deepseek-r1", DI_SPELL_THINK }, { "qwen", DI_SPELL_HERMES },
        { "llama3", DI_SPELL_LLAMA3 },
    };
    const char *name = di_dialect_name(dialect);
    size_t      i;

    for (i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (strcmp(known[i].name, name) == 0)
            return known[i].spell;
    }

    return DI_SPELL_PLAIN;
}

int
di_rules_open(const di_parse_options_t *options, di_rules_t **rules)
{
    const di_spelling_t *sp = spelling(options);
    di_rules_t          *r;
    size_t               i;

    r = calloc(1, sizeof(*r) + 2 * sp->n * sizeof(r->stages[0]));
    if (r == NULL)
        return DI_ENOMEM;

    r->options = *options;
    r->options.official = sp == &di_spelling_dsml_official;
    r->spelling = sp;
    r->texts = r->stages + sp->n;
    r->n_patterns_max = patterns_max(sp, options->n_stops);
    for (i = 0; i < MARKERS_MAX; i++)
        r->marker_ids[i] = -1;
    for (i = 0; sp->markers[i] != NULL && options->vocab != NULL; i++)
        r->marker_ids[i] = di_vocab_special(options->vocab, sp->markers[i],
                                            strlen(sp->markers[i]));

    *rules = r;
    return DI_OK;
}

void
di_rules_close(di_rules_t *rules)
{
    size_t i;

    if (rules == NULL)
        return;

    for (i = 0; i < 2 * rules->spelling->n; i++)
        free(rules->stages[i].memory);
    free(rules);
}

/* ------------------------------------------------------------ open, close */

/* No pattern is under way. */
static void
forget(di_parse_t *p)
{
    p->n_active = 0;
}

static void
enter(di_parse_t *p, uint8_t stage)
{
    p->stage = &p->stages[stage & ~DI_FRESH];
    if (p->stage->phase == NULL
        && make_stage(p->rules, p->stages, stage & ~DI_FRESH) != DI_OK)
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
    enter(p, rules->spelling->start[rules->options.start]);
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

/* Bytes are missing, or a stage's patterns: nothing more is taken. */
static inline bool
is_broken(const di_parse_t *p)
{
    return p->bytes.failed | p->nomem;
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

/* ------------------------------------------------------------------- runs */

static void
give(di_parse_t *p, di_delta_kind_t kind, const char *data, size_t len)
{
    const uint64_t at = p->base + p->head;
    di_delta_t     d = { .kind = kind, .data = data, .len = len };

    d.from = p->rules->options.official ? p->piece_from : at;
    d.end = p->stopped >= 0 ? UINT64_MAX : p->base + p->open;
    p->sink(p->ctx, &d);
}

/* Show what was set aside. */
static void
give_kept(di_parse_t *p)
{
    if (p->kept.len != 0)
        give(p, DI_DELTA_TEXT, p->kept.data, p->kept.len);

    p->kept.len = p->name.len = 0;
}

static void
give_string(di_parse_t *p, const char *data, size_t len)
{
    di_delta_t d = { .kind = DI_DELTA_ARGS, .plain = data, .plain_len = len };

    p->scratch.len = 0;
    di_json_add_inner(&p->scratch, data, len);
    d.data = p->scratch.data;
    d.len = p->scratch.len;
    p->sink(p->ctx, &d);
}

/* A parameter's value that is said to be JSON: arrays and objects go out as
 * they come, a scalar when it is complete, so that one that is no JSON can
 * become a string. */
static void
add_value(di_parse_t *p, const char *data, size_t len)
{
    const char *v;
    size_t      i;

    if (p->nested) {
        give(p, DI_DELTA_ARGS, data, len);
        return;
    }

    di_sbuf_add(&p->value, data, len);
    v = p->value.data;
    for (i = 0; i < p->value.len && strchr(" \t\r\n", v[i]) != NULL; i++) {
        /* void */
    }

    if (i < p->value.len && (v[i] == '{' || v[i] == '[')) {
        p->nested = true;
        give(p, DI_DELTA_ARGS, v, p->value.len);
        p->value.len = 0;
    }
}

static void
end_value(di_parse_t *p, bool complete)
{
    if (p->nested || (p->value.len == 0 && !complete)) {
        p->nested = false;
        return;
    }

    if (!complete || di_json_valid(p->value.data, p->value.len)) {
        give(p, DI_DELTA_ARGS, p->value.data, p->value.len);

    } else {
        give(p, DI_DELTA_ARGS, "\"", 1);
        give_string(p, p->value.data, p->value.len);
        give(p, DI_DELTA_ARGS, "\"", 1);
    }

    p->value.len = 0;
}

/* What a call's body gives; a call makes the markup before it void. */
static void
give_of_body(void *ctx, di_delta_kind_t kind, const char *data, size_t len)
{
    di_parse_t *p = ctx;

    if (kind == DI_DELTA_CALL)
        p->kept.len = 0;
    give(p, kind, data, len);
}

/* The body is complete, with so many bytes of markup behind it. */
static void
end_body(di_parse_t *p, const char *data, size_t len)
{
    if (!di_body_end(&p->body, give_of_body, p)) {
        di_sbuf_add(&p->kept, p->body.text.data, p->body.text.len);
        di_sbuf_add(&p->kept, data, len);
        p->body.text.len = 0;
    }

    give_kept(p);
}

static void
give_run_bytes(di_parse_t *p, const char *data, size_t len)
{
    switch ((di_act_t) p->act) {
    case DI_ACT_SKIP:
    case DI_ACT_STOP:
        break;
    case DI_ACT_KEEP:
        di_sbuf_add(&p->kept, data, len);
        break;
    case DI_ACT_REASONING:
        give(p, DI_DELTA_REASONING, data, len);
        break;
    case DI_ACT_TEXT:
        give_kept(p);
        give(p, DI_DELTA_TEXT, data, len);
        break;
    case DI_ACT_SPACE:
        give(p, DI_DELTA_TEXT, " ", len == 0 ? 0 : 1);
        break;
    case DI_ACT_NAME:
        di_sbuf_add(&p->name, data, len);
        di_sbuf_add(&p->kept, data, len);
        break;
    case DI_ACT_CALL:
        p->kept.len = 0;
        give(p, DI_DELTA_CALL, p->name.data, p->name.len);
        p->name.len = 0;
        break;
    case DI_ACT_END:
        give_kept(p);
        break;
    case DI_ACT_JSON:
        give(p, DI_DELTA_ARGS, data, len);
        break;
    case DI_ACT_STRING:
        give_string(p, data, len);
        break;
    case DI_ACT_VALUE:
        add_value(p, data, len);
        break;
    case DI_ACT_BODY:
        di_body_add(&p->body, data, len, give_of_body, p);
        break;
    case DI_ACT_BODY_END:
        end_body(p, data, len);
        break;
    }
}

/* Give the run out. */
static void
give_run(di_parse_t *p)
{
    const char *emit;

    if (!p->run)
        return;

    p->run = false;
    emit = p->match == NULL ? NULL : p->match->emit;
    if (emit != NULL) {
        give(p, DI_DELTA_ARGS, emit, strlen(emit));
        if (p->act == DI_ACT_KEEP)
            give_kept(p);
    }

    give_run_bytes(p, p->bytes.data + p->head, p->open - p->head);
    p->head = p->open;
}

static void
extend_run(di_parse_t *p, size_t n, uint8_t act, const di_rule_t *match)
{
    if (p->run && (act != p->act || match != NULL || p->match != NULL))
        give_run(p);

    p->run = true;
    p->act = act;
    p->match = match;
    p->open += n;
}

/* Recipe's way: through the pieces, none of which a run outlives. */
static void
decide_pieces(di_parse_t *p, size_t n, uint8_t act, const di_rule_t *match)
{
    size_t here;
    bool   last;

    for (;;) {
        here = (size_t) (p->pieces[p->piece] - p->base - p->open);
        last = n <= here;
        here = last ? n : here;

        if (last)
            extend_run(p, here, act, match);
        else
            extend_run(p, here, match != NULL ? DI_ACT_SKIP : act, NULL);
        n -= here;

        if (p->base + p->open == p->pieces[p->piece]) {
            give_run(p);
            p->piece_from = p->pieces[p->piece++];
        }

        if (last)
            break;
    }

    p->last = act;
    p->acted = true;
}

/* The next n bytes get an action; match: they are a rule's pattern. */
static void
decide(di_parse_t *p, size_t n, uint8_t act, const di_rule_t *match)
{
    if (n == 0)
        return;

    if (p->rules->options.official)
        decide_pieces(p, n, act, match);
    else
        extend_run(p, n, act, match);
}

/* Nothing more comes: log-probabilities that still wait may go. */
static void
tell_end(di_parse_t *p)
{
    di_delta_t d = { .kind = DI_DELTA_TEXT, .data = "", .end = UINT64_MAX };

    d.from = p->base + p->open;
    if (p->rules->options.places && !p->rules->options.official)
        p->sink(p->ctx, &d);
}

/* --------------------------------------------------------------- matching */

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

    decide(p, at - p->open, st->act, NULL);

    if (act == DI_ACT_STOP) {
        p->stopped = pat->stop;
        give_run(p);
        tell_end(p);
    }

    if (st->act == DI_ACT_VALUE) {
        give_run(p);
        end_value(p, true);
    }

    /* A call without a name is none. */
    if (act == DI_ACT_CALL && !p->rules->options.official) {
        give_run(p);
        if (p->name.len == 0) {
            act = DI_ACT_TEXT;
            next = p->rules->spelling->answer;
        }
    }

    decide(p, end - p->open, act, rule);
    enter(p, next);
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
static void
take_symbol(di_parse_t *p, uint16_t symbol, size_t end, bool text)
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
            decide(p, end - p->open, p->stage->phase->lead_act, NULL);
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
static void
scan(di_parse_t *p, size_t at, size_t end, bool text)
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
        take_symbol(p, data[at], at + 1, text);
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

static void
settle(di_parse_t *p)
{
    decide(p, p->bytes.len - p->open - undecided(p), p->stage->act, NULL);
}

/* ----------------------------------------------------------------- pieces */

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
        give_run_bytes(p, "", 0);
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

/* ------------------------------------------------------------- characters */

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
        scan(p, at, first, text);
    }

    p->stoppable = stoppable;
    scan(p, first, p->bytes.len, text || p->stages != p->rules->texts);
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
        scan(p, at, p->bytes.len, false);
}

/* ------------------------------------------------------------------ input */

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
        take_symbol(p, symbol, p->bytes.len, false);
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
    enter(p, stage);
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
        scan(p, at, p->bytes.len, true);
}

bool
di_parse_flush(di_parse_t *p)
{
    const bool official = p->rules->options.official;

    if (official && p->stopped < 0 && held_is_whole(p))
        release_held(p);

    if (!is_broken(p)) {
        settle(p);
        if (official)
            give_empty_pieces(p);
        else
            give_run(p);
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

    decide(p, p->bytes.len - p->open, p->stage->act, NULL);
    give_run(p);

    if (!p->rules->options.official) {
        if (p->stage->act == DI_ACT_VALUE)
            end_value(p, false);
        if (p->stage->act == DI_ACT_BODY)
            end_body(p, "", 0);
        give_kept(p);
        if (p->stopped < 0)
            tell_end(p);
    }

    compact(p);
}
