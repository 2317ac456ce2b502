/*
 * parse_rules.c - the patterns of a request: each stage's rules as automata.
 *
 * A stage is made when it is first entered.  Its patterns' memory is measured
 * in a first pass over the rules and filled in a second.
 */

#include "parse_impl.h"

#include <stdlib.h>
#include <string.h>

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
int
di_stage_make(const di_rules_t *r, stage_t *stages, size_t i)
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
