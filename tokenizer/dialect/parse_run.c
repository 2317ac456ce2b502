/*
 * parse_run.c - what is decided becomes deltas.
 *
 * A run is decided bytes with one action, the first of those that were not
 * given out; a match with something to emit is a run of its own.
 */

#include "parse_impl.h"

#include <string.h>

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
void
di_run_give_kept(di_parse_t *p)
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

void
di_run_end_value(di_parse_t *p, bool complete)
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
void
di_run_end_body(di_parse_t *p, const char *data, size_t len)
{
    if (!di_body_end(&p->body, give_of_body, p)) {
        di_sbuf_add(&p->kept, p->body.text.data, p->body.text.len);
        di_sbuf_add(&p->kept, data, len);
        p->body.text.len = 0;
    }

    di_run_give_kept(p);
}

void
di_run_give_bytes(di_parse_t *p, const char *data, size_t len)
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
        di_run_give_kept(p);
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
        di_run_give_kept(p);
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
        di_run_end_body(p, data, len);
        break;
    }
}

/* Give the run out. */
void
di_run_give(di_parse_t *p)
{
    const char *emit;

    if (!p->run)
        return;

    p->run = false;
    emit = p->match == NULL ? NULL : p->match->emit;
    if (emit != NULL) {
        give(p, DI_DELTA_ARGS, emit, strlen(emit));
        if (p->act == DI_ACT_KEEP)
            di_run_give_kept(p);
    }

    di_run_give_bytes(p, p->bytes.data + p->head, p->open - p->head);
    p->head = p->open;
}

static void
extend_run(di_parse_t *p, size_t n, uint8_t act, const di_rule_t *match)
{
    if (p->run && (act != p->act || match != NULL || p->match != NULL))
        di_run_give(p);

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
            di_run_give(p);
            p->piece_from = p->pieces[p->piece++];
        }

        if (last)
            break;
    }

    p->last = act;
    p->acted = true;
}

/* The next n bytes get an action; match: they are a rule's pattern. */
void
di_run_decide(di_parse_t *p, size_t n, uint8_t act, const di_rule_t *match)
{
    if (n == 0)
        return;

    if (p->rules->options.official)
        decide_pieces(p, n, act, match);
    else
        extend_run(p, n, act, match);
}

/* Nothing more comes: log-probabilities that still wait may go. */
void
di_run_tell_end(di_parse_t *p)
{
    di_delta_t d = { .kind = DI_DELTA_TEXT, .data = "", .end = UINT64_MAX };

    d.from = p->base + p->open;
    if (p->rules->options.places && !p->rules->options.official)
        p->sink(p->ctx, &d);
}
