/*
 * sched_forced.c - text that a grammar leaves no choice about.
 *
 * Jump-forward.  Where a grammar forces the text that comes next, as between
 * the values of a schema, its tokens need not be drawn one step at a time:
 * they become tokens of the sequence at once, and one step computes them all,
 * with the row that is drawn behind them.  They are the tokens that the
 * encoder makes of that text together with what comes before it.  There is no
 * jump if it would set a border where the sequence has none; and of the end
 * of the text only that is taken which is cut the same whatever follows.  So
 * a jump depends on the sequence's tokens alone, like everything else.  The
 * log-probabilities of such tokens, if wanted, come with their rows, and the
 * tokens are then told with them.
 *
 * Finish.  With DI_GEN_GRAMMAR_FINISH, a shortest text that completes the
 * present one is looked for behind each token.  As long as its tokens and an
 * end token fit what is left of max_tokens, the token stands: clients take a
 * text without an end for cut.  Once they don't, the token is taken back, and
 * the text before it, for which they did fit, is completed by its shortest
 * one, token by token, and ended.  So a text that could be completed at the
 * start always is.
 */

#include <stdlib.h>
#include <string.h>

#include "sched_impl.h"

#define CONTEXT_BYTES   64       /* of the text before a forced one         */
#define FORCED_BYTES    192      /* of that one                             */
#define CLOSE_BYTES     65536    /* of a shortest completion                */
#define SPECIAL_BYTES   4        /* of a special token in a grammar's text  */


int
di_forced_open(di_sched_t *s)
{
    di_forced_t *f = &s->forced;

    if (s->conf.vocab == NULL)
        return DI_OK;
    f->text = malloc(CLOSE_BYTES);
    f->ids = malloc(CLOSE_BYTES * sizeof(*f->ids));
    if (f->text == NULL || f->ids == NULL)
        return DI_ENOMEM;
    return di_tok_open(s->conf.vocab, &f->tok);
}


void
di_forced_close(di_sched_t *s)
{
    di_tok_close(s->forced.tok);
    free(s->forced.text);
    free(s->forced.ids);
}


/* Bytes of text before its first special token. */
static size_t
plain_bytes(const uint8_t *text, size_t len)
{
    const uint8_t *special = memchr(text, DI_GRAM_SPECIAL_BYTE, len);

    return special == NULL ? len : (size_t) (special - text);
}


static int32_t
special_id(const uint8_t *text)
{
    return text[1] << 16 | text[2] << 8 | text[3];
}


/* ------------------------------------------------------------- jump-forward */

/* The text of a sequence's last tokens, up to CONTEXT_BYTES, from the last
 * special token or a place where the encoder would begin anew. */
static size_t
context(const di_sched_t *s, const seq_t *seq, uint8_t *text)
{
    const di_vocab_t *v = s->conf.vocab;
    size_t            n = 0, len, from;
    uint32_t          i = seq->n_tokens;
    const char       *bytes;

    while (i > 0 && !di_vocab_is_added(v, seq->tokens[i - 1])) {
        bytes = di_vocab_bytes(v, seq->tokens[i - 1], &len);
        if (bytes == NULL || n + len > CONTEXT_BYTES)
            break;
        memmove(text + len, text, n);
        memcpy(text, bytes, len);
        n += len;
        i--;
    }
    if (i == 0 || di_vocab_is_added(v, seq->tokens[i - 1]))
        return n;
    from = di_vocab_split(v, (const char *) text, n, 1);
    if (from < n)
        memmove(text, text + from, n -= from);
    return n;
}


/* How much of a text, beyond `from`, is encoded the same whatever follows. */
static size_t
settled(const di_sched_t *s, const uint8_t *text, size_t from, size_t len)
{
    size_t at = from, next;

    while ((next = di_vocab_split(s->conf.vocab, (const char *) text, len,
                                  at + 1)) < len)
        at = next;
    return at;
}


/* Tokens of text[0, upto) that lie behind the border at `from`, to the front
 * of forced.ids; their number, 0 if there is no such border. */
static uint32_t
encode_behind(di_sched_t *s, const uint8_t *text, size_t from, size_t upto)
{
    di_forced_t *f = &s->forced;
    size_t       n, i, at = 0, len;

    if (upto == from
        || di_tok_encode(f->tok, (const char *) text, upto, f->ids,
                         CONTEXT_BYTES + FORCED_BYTES, &n) != DI_OK)
        return 0;
    for (i = 0; i < n && at < from; i++) {
        (void) di_vocab_bytes(s->conf.vocab, f->ids[i], &len);
        at += len;
    }
    if (at != from)
        return 0;
    memmove(f->ids, f->ids + i, (n - i) * sizeof(*f->ids));
    return (uint32_t) (n - i);
}


/* The tokens that must come next, to the front of forced.ids; their number. */
static uint32_t
forced_ids(di_sched_t *s, const seq_t *seq)
{
    uint8_t  text[CONTEXT_BYTES + FORCED_BYTES];
    size_t   from, len, plain;
    uint32_t n;

    len = di_gram_forced(seq->match, text, FORCED_BYTES);
    if (len == 0)
        return 0;
    plain = plain_bytes(text, len);
    if (plain == 0) {
        s->forced.ids[0] = special_id(text);
        return 1;
    }
    from = context(s, seq, text);
    (void) di_gram_forced(seq->match, text + from, FORCED_BYTES);
    if (plain == len)            /* else a special token ends it            */
        plain = settled(s, text, from, from + len) - from;
    n = encode_behind(s, text, from, from + plain);
    return n;
}


uint32_t
di_forced_jump(di_sched_t *s, seq_t *seq)
{
    const req_t *req = seq->req;
    uint32_t     n, i, room;
    int32_t     *to = seq->tokens + seq->n_tokens;

    if (seq->match == NULL || !s->conf.jumps || seq->close != NULL)
        return 0;

    /* One token is to be drawn behind them. */
    room = req->total_max - seq->n_tokens - 1;
    n = forced_ids(s, seq);
    n = di_least(di_least(n, room), DI_SCHED_JUMP_MAX);
    for (i = 0; i < n; i++) {
        to[i] = s->forced.ids[i];
        if ((uint32_t) to[i] >= s->model.vocab
            || di_has_id(req->stop_ids, req->n_stop_ids, to[i])
            || di_grammar_accept(s, seq, to[i]) != DI_OK)
            break;
    }
    if (i > 0 && seq->steers && !di_forced_fits(s, seq, seq->n_tokens + i)) {
        (void) di_gram_rollback(seq->match, i);
        i = 0;
    }
    seq->n_tokens += i;
    s->jumped_tokens += i;
    return i;
}


/* ------------------------------------------------------------------- finish */

/* The tokens of a shortest text that completes the matcher's, at most `max`
 * with the end token, to forced.ids; their number without it, or UINT32_MAX if
 * there is none. */
static uint32_t
close_ids(di_sched_t *s, const seq_t *seq, uint32_t max)
{
    di_forced_t *f = &s->forced;
    size_t       len = di_gram_shortest(seq->match, f->text, CLOSE_BYTES);
    size_t       at, plain, n, bytes, done = 0, i;
    uint32_t     n_ids = 0;

    if (len == SIZE_MAX)
        return UINT32_MAX;
    for (at = 0; at < len; at += plain) {
        plain = plain_bytes(f->text + at, len - at);
        if (plain == 0) {
            f->ids[n_ids++] = special_id(f->text + at);
            done += plain = SPECIAL_BYTES;
            continue;
        }
        if (di_tok_encode(f->tok, (const char *) f->text + at, plain,
                          f->ids + n_ids, CLOSE_BYTES - n_ids, &n) != DI_OK)
            return UINT32_MAX;
        for (i = 0; i < n; i++, done += bytes)
            (void) di_vocab_bytes(s->conf.vocab, f->ids[n_ids + i], &bytes);
        n_ids += (uint32_t) n;
    }

    /* The encoder leaves out what the vocabulary can't spell. */
    return done == len && n_ids < max ? n_ids : UINT32_MAX;
}


bool
di_forced_fits(di_sched_t *s, const seq_t *seq, uint32_t n_tokens)
{
    return close_ids(s, seq, seq->req->total_max - n_tokens) != UINT32_MAX;
}


bool
di_forced_steer(di_sched_t *s, job_t *job)
{
    seq_t   *seq = job->seq;
    uint32_t n;

    if (!seq->steers || seq->close != NULL
        || di_forced_fits(s, seq, seq->n_tokens + 1))
        return false;
    (void) di_gram_rollback(seq->match, 1);
    n = close_ids(s, seq, seq->req->total_max - seq->n_tokens);
    seq->close = n == UINT32_MAX ? NULL : malloc((n + 1u) * sizeof(int32_t));
    if (seq->close == NULL) {
        job->rc = DI_ENOMEM;
        return false;
    }
    memcpy(seq->close, s->forced.ids, n * sizeof(int32_t));
    seq->n_close = n;
    job->rc = di_grammar_mask(s, job);
    return true;
}
