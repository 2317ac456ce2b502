/*
 * parse_impl.h - the parser's parts, for each other.
 *
 *     parse_rules.c   stages and their patterns, made of rules
 *     parse_match.c   symbols, matched against them: what bytes are decided
 *     parse_run.c     what is decided becomes deltas
 *     parse_body.c    calls that are JSON objects
 *     parse.c         tokens and text become symbols
 */

#ifndef DI_PARSE_IMPL_H
#define DI_PARSE_IMPL_H

#include "parse.h"

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

/* Bytes are missing, or a stage's patterns: nothing more is taken. */
static inline bool
is_broken(const di_parse_t *p)
{
    return p->bytes.failed | p->nomem;
}

/* parse_rules.c: make stage number i of `stages`, which are the rules' own or
 * their texts.  DI_OK or DI_ENOMEM. */
int di_stage_make(const di_rules_t *r, stage_t *stages, size_t i);

/* parse_match.c: a stage begins, which is made if it was never entered. */
void di_match_enter(di_parse_t *p, uint8_t stage);
/* The symbol that ends at `end` in bytes. */
void di_match_symbol(di_parse_t *p, uint16_t symbol, size_t end, bool text);
/* The bytes [at, end).  text: they are of a text chunk, or no pattern of the
 * stages asks for that. */
void di_match_bytes(di_parse_t *p, size_t at, size_t end, bool text);
/* Decide all that no pattern can still take. */
void di_match_settle(di_parse_t *p);

/* parse_run.c */
/* The next n bytes get an action; match: they are a rule's pattern. */
void di_run_decide(di_parse_t *p, size_t n, uint8_t act,
                   const di_rule_t *match);
/* Give the run out; its bytes alone. */
void di_run_give(di_parse_t *p);
void di_run_give_bytes(di_parse_t *p, const char *data, size_t len);
/* Show what was set aside. */
void di_run_give_kept(di_parse_t *p);
void di_run_end_value(di_parse_t *p, bool complete);
/* The body is complete, with so many bytes of markup behind it. */
void di_run_end_body(di_parse_t *p, const char *data, size_t len);
/* Nothing more comes: log-probabilities that still wait may go. */
void di_run_tell_end(di_parse_t *p);

#endif
