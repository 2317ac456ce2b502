/*
 * options.c - the command line of deepinfer-engine.
 *
 * One table names every option of every command: how its value is read, where
 * it goes in di_cmd_opts_t, its range, its help.  getopt_long's array and the
 * help texts are made from it, so that an option can't exist without help,
 * and is refused by the commands that it means nothing to.
 */

#include <errno.h>
#include <getopt.h>
#include <grp.h>
#include <limits.h>
#include <sched.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "di_cmd.h"

#define PROGRAM "deepinfer-engine"

/* Share of the memory that is free at the start which the KV cache takes
 * unless --kv-memory says otherwise.  Pages are touched as blocks fill. */
#define KV_SHARE_PERCENT 40

/* Which commands an option belongs to. */
enum {
    SERVE = 1 << DI_CMD_SERVE, GENERATE = 1 << DI_CMD_GENERATE,
    SCORE = 1 << DI_CMD_SCORE, BENCH = 1 << DI_CMD_BENCH,
    INSPECT = 1 << DI_CMD_INSPECT,
    RUNS = SERVE | GENERATE | SCORE | BENCH,     /* load and compute        */
    ALL = RUNS | INSPECT,
    LINES = GENERATE | SCORE,                    /* take JSON lines         */
};

typedef enum {
    K_STR,                       /* char *                                  */
    K_LISTEN,                    /* char *, "unix:" taken off               */
    K_WORD,                      /* char *, one of `words`                  */
    K_NAME,                      /* int-sized enum, index in `words` + min  */
    K_CONST,                     /* flag: int-sized enum becomes min        */
    K_TRUE, K_FALSE,             /* flags: bool                             */
    K_U32, K_U64, K_F32,         /* in [min, max]                           */
    K_BYTES,                     /* uint64_t with suffix k, m, g, t         */
    K_MODE,                      /* uint32_t, permission bits in octal      */
    K_GROUP,                     /* uint32_t, a group by name or number     */
    K_HELP,
} kind_t;

typedef struct {
    const char        *name;
    const char        *arg;      /* in the help; NULL: takes none           */
    unsigned           commands;
    kind_t             kind;
    size_t             at;       /* offset in di_cmd_opts_t                 */
    double             min, max;
    const char *const *words;    /* NULL-terminated                         */
    const char        *help;
} option_t;

static const char *const arith_words[] = { "auto", "f32", "bf16", "q8",
                                           "mx", NULL };
static const char *const ops_words[] = { "ref", "avx2", "avxvnni",
                                         "avx512", "avx512bf16", "amx",
                                         NULL };
static const char *const role_words[] = { "both", "prefill", "decode",
                                          "encode", NULL };
static const char *const drafts_words[] = { "off", "all", "auto", NULL };
static const char *const replay_words[] = { "off", "mask", "compact", NULL };
static const char *const level_words[] = { "error", "warn", "info", "debug",
                                           NULL };

#define AT(field) offsetof(di_cmd_opts_t, field)

static const option_t options[] = {
    { "model", "FILE", ALL, K_STR, AT(engine.model_path), 0, 0, NULL,
      "GGUF file or Hugging Face directory to load (required)" },
    { "listen", "unix:PATH", SERVE, K_LISTEN, AT(engine.listen), 0, 0, NULL,
      "socket for nginx's workers (required)" },
    { "mode", "OCTAL", SERVE, K_MODE, AT(engine.mode), 0, 0, NULL,
      "permission bits of the socket; 0660" },
    { "group", "GROUP", SERVE, K_GROUP, AT(engine.group), 0, 0, NULL,
      "group of the socket: that of nginx's workers" },
    { "spin", "US", SERVE, K_U32, AT(engine.spin_us), 0, 1e6, NULL,
      "microseconds to look for requests before sleeping; 50" },
    { "role", "ROLE", SERVE, K_NAME, AT(engine.role), DI_ROLE_BOTH, 0,
      role_words, "both (default), prefill, decode or encode" },
    { "queue", "N", SERVE, K_U32, AT(engine.queue_max), 0, 1e6, NULL,
      "waiting requests before new ones are refused; 256" },
    { "max-seqs", "N", SERVE, K_U32, AT(engine.max_seqs), 1, 4096, NULL,
      "sequences that run at a time; 64" },
    { "max-rows", "N", RUNS, K_U32, AT(engine.max_rows), 1, 65536, NULL,
      "tokens computed in one step; 512" },
    { "chunk", "N", RUNS, K_U32, AT(engine.chunk), 1, 65536, NULL,
      "prompt tokens in a step while streams decode; 256" },
    { "step-ms", "MS", SERVE, K_U32, AT(engine.step_ms), 0, 10000, NULL,
      "time that such a step should take, 0 as it comes; 20" },
    { "no-prefix-cache", NULL, SERVE | LINES, K_FALSE,
      AT(engine.prefix_cache), 0, 0, NULL,
      "compute every prompt from its first token" },
    { "replay", "MODE", SERVE | LINES, K_NAME, AT(engine.replay),
      DI_REPLAY_OFF, 0, replay_words, "old tokens of a model of windows: off "
      "(default), mask or compact" },
    { "replay-keep", "N", SERVE | LINES, K_U32, AT(engine.replay_keep), 1,
      INT32_MAX, NULL, "last tokens of a prompt that --replay leaves whole; "
      "140" },
    { "drafts", "MODE", SERVE | LINES, K_NAME, AT(engine.drafts),
      DI_DRAFTS_OFF, 0, drafts_words, "tokens that the model's draft module "
      "offers: off, all or auto (default), those that are worth it" },
    { "grammar-memory", "SIZE", SERVE | LINES | BENCH, K_BYTES,
      AT(engine.grammar_bytes), 0, 0, NULL,
      "opened grammars and their masks, half each; 128m" },
    { "no-jump-forward", NULL, SERVE | LINES | BENCH, K_FALSE,
      AT(engine.jumps), 0, 0, NULL, "draw tokens that a grammar forces, too" },

    { "prompt", "TEXT", GENERATE, K_STR, AT(prompt), 0, 0, NULL,
      "continue this text, streaming to the terminal" },
    { "message", "TEXT", GENERATE, K_STR, AT(message), 0, 0, NULL,
      "answer this chat message, streaming to the terminal" },
    { "system", "TEXT", GENERATE, K_STR, AT(system), 0, 0, NULL,
      "system prompt for --message" },
    { "dialect", "NAME", GENERATE, K_STR, AT(dialect), 0, 0, NULL,
      "how chats are spelled, if the model's template is unknown" },
    { "json", "FILE", LINES, K_STR, AT(lines), 0, 0, NULL,
      "one JSON request a line (- is stdin), answers to stdout" },
    { "max-tokens", "N", GENERATE, K_U32, AT(params.max_tokens), 1,
      UINT32_MAX, NULL, "tokens to generate; as many as fit" },
    { "temperature", "X", GENERATE, K_F32, AT(params.temperature), 0, 100,
      NULL, "0 (default) takes the best token" },
    { "top-p", "X", GENERATE, K_F32, AT(params.top_p), 1e-6, 1, NULL,
      "sample from the smallest set of this probability; 1" },
    { "top-k", "N", GENERATE, K_U32, AT(params.top_k), 0, INT32_MAX, NULL,
      "sample from the best N; 0 is all" },
    { "min-p", "X", GENERATE, K_F32, AT(params.min_p), 0, 1, NULL,
      "drop tokens below this share of the best; 0" },
    { "seed", "N", GENERATE, K_U64, AT(params.seed), 0, 0, NULL,
      "seed of the sampling; 0" },
    { "ignore-eos", NULL, GENERATE, K_TRUE, AT(ignore_eos), 0, 0, NULL,
      "go on after an end token" },

    { "prompt-tokens", "N", BENCH, K_U32, AT(prompt_tokens), 1, 1e6, NULL,
      "length of the prompt to prefill; 512" },
    { "gen-tokens", "N", BENCH, K_U32, AT(gen_tokens), 2, 1e6, NULL,
      "tokens to decode per sequence; 64" },
    { "depth", "N", BENCH, K_U32, AT(depth), 1, 1e6, NULL,
      "tokens in each sequence's cache before decoding; 16" },
    { "schema", "FILE", BENCH, K_STR, AT(schema), 0, 0, NULL,
      "JSON Schema that each decoded text must hold" },
    { "repeat", "N", BENCH, K_U32, AT(repeat), 1, 1000, NULL,
      "runs, of which the median is reported; 5" },
    { "batch", "N", LINES | BENCH, K_U32, AT(batch), 1, 4096, NULL,
      "sequences computed at a time; 1" },
    { "json", NULL, BENCH | INSPECT, K_TRUE, AT(json), 0, 0, NULL,
      "print one JSON object" },
    { "tensors", NULL, INSPECT, K_TRUE, AT(tensors), 0, 0, NULL,
      "list every tensor" },
    { "verify", NULL, INSPECT, K_TRUE, AT(verify), 0, 0, NULL,
      "read every tensor first: are all values finite?" },

    { "max-model-len", "N", ALL, K_U32, AT(engine.model.max_model_len), 1,
      INT32_MAX, NULL, "longest sequence; the model's own limit" },
    { "states", "N", ALL, K_U32, AT(engine.model.n_states), 1, 65536, NULL,
      "slots of sequences' states, those kept for prefixes too" },
    { "kv-memory", "SIZE", ALL, K_BYTES, AT(engine.model.kv_bytes), 0, 0,
      NULL, "KV cache, e.g. 4g; 40 % of free memory" },
    { "threads", "N", ALL, K_U32, AT(engine.model.n_threads), 1, 1024, NULL,
      "compute threads; all allowed CPUs" },
    { "no-pin", NULL, ALL, K_FALSE, AT(engine.model.pin), 0, 0, NULL,
      "don't bind threads to CPUs" },
    { "exact", NULL, ALL, K_CONST, AT(engine.model.arith), DI_ARITH_F32, 0,
      NULL, "compute in float32, caches unrounded: for checking" },
    { "arith", "NAME", ALL, K_NAME, AT(engine.model.arith), DI_ARITH_AUTO, 0,
      arith_words, "auto (default), f32, bf16, q8 or mx" },
    { "ops", "NAME", ALL, K_WORD, AT(engine.model.ops), 0, 0, ops_words,
      "ref, avx2, avxvnni, avx512, avx512bf16 or amx; the best that there is" },
    { "log-level", "NAME", ALL, K_NAME, AT(engine.log_level), DI_LOG_ERROR,
      0, level_words, "error, warn, info (default) or debug" },
    { "help", NULL, ALL, K_HELP, 0, 0, 0, NULL, "this text" },
};

#define N_OPTIONS (sizeof(options) / sizeof(options[0]))

static const struct {
    const char *name;
    const char *usage;
    const char *help;
} commands[DI_CMD_COUNT] = {
    [DI_CMD_SERVE] = { "serve", "--model FILE --listen unix:PATH",
        "compute for nginx over shared memory" },
    [DI_CMD_GENERATE] = { "generate",
        "--model FILE {--prompt TEXT | --message TEXT | --json FILE}",
        "generate text without nginx" },
    [DI_CMD_SCORE] = { "score", "--model FILE --json FILE",
        "log-probabilities of given continuations" },
    [DI_CMD_BENCH] = { "bench", "--model FILE",
        "measure prefill and decode" },
    [DI_CMD_INSPECT] = { "inspect", "FILE",
        "show what a model file holds and needs" },
};

/* ----------------------------------------------------------------- texts -- */

int
di_cmd_fail(const di_cmd_opts_t *opts, int status, const char *fmt, ...)
{
    va_list ap;

    (void) fprintf(stderr, PROGRAM " %s: ", commands[opts->command].name);
    va_start(ap, fmt);
    (void) vfprintf(stderr, fmt, ap);
    va_end(ap);
    (void) fputc('\n', stderr);
    return status;
}

static int
usage_error(const di_cmd_opts_t *opts)
{
    (void) fprintf(stderr, "try: " PROGRAM " %s --help\n",
                   commands[opts->command].name);
    return DI_EXIT_USAGE;
}

static void
print_commands(FILE *f)
{
    (void) fprintf(f, "usage: " PROGRAM " COMMAND [OPTION]...\n\n");
    for (size_t i = 0; i < DI_CMD_COUNT; i++)
        (void) fprintf(f, "  %-10s %s\n", commands[i].name,
                       commands[i].help);
    (void) fprintf(f, "\n" PROGRAM " COMMAND --help shows its options; "
                   "--version the version.\n");
}

static void
print_help(di_cmd_t command)
{
    (void) printf("usage: " PROGRAM " %s %s [OPTION]...\n%s\n\n",
                  commands[command].name, commands[command].usage,
                  commands[command].help);
    for (size_t i = 0; i < N_OPTIONS; i++) {
        char left[40];

        if (!(options[i].commands & (1u << command)))
            continue;
        (void) snprintf(left, sizeof(left), "--%s%s%s", options[i].name,
                        options[i].arg != NULL ? " " : "",
                        options[i].arg != NULL ? options[i].arg : "");
        (void) printf("  %-24s %s\n", left, options[i].help);
    }
}

/* ---------------------------------------------------------------- values -- */

static bool
read_u64(const char *text, uint64_t *v)
{
    char *end;

    if (text[0] < '0' || text[0] > '9')
        return false;            /* strtoull would take signs and blanks    */
    errno = 0;
    *v = strtoull(text, &end, 10);
    return errno == 0 && *end == '\0';
}

static bool
read_f32(const char *text, const option_t *o, float *v)
{
    char  *end;
    double x;

    errno = 0;
    x = strtod(text, &end);
    if (errno != 0 || end == text || *end != '\0'
        || !(x >= o->min && x <= o->max))
        return false;
    *v = (float) x;
    return true;
}

/* Digits and an optional suffix; at least 1. */
static bool
read_bytes(const char *text, uint64_t *v)
{
    static const char suffixes[] = "kmgt";
    char              digits[24];
    size_t            len = strspn(text, "0123456789");
    unsigned          shift = 0;

    if (len == 0 || len >= sizeof(digits))
        return false;
    memcpy(digits, text, len);
    digits[len] = '\0';

    if (text[len] != '\0') {
        char        c = text[len] >= 'A' && text[len] <= 'Z'
                        ? (char) (text[len] + 32) : text[len];
        const char *s = strchr(suffixes, c);

        if (s == NULL || text[len + 1] != '\0')
            return false;
        shift = 10 * (unsigned) (s - suffixes + 1);
    }
    if (!read_u64(digits, v) || *v == 0 || *v > UINT64_MAX >> shift)
        return false;
    *v <<= shift;
    return true;
}

static int
word_index(const char *text, const char *const *words)
{
    for (int i = 0; words[i] != NULL; i++) {
        if (strcmp(text, words[i]) == 0)
            return i;
    }
    return -1;
}

static bool
read_mode(const char *text, uint32_t *mode)
{
    char         *end;
    unsigned long u = strtoul(text, &end, 8);

    if (*text < '0' || *text > '7' || *end != '\0' || u == 0 || u > 0777)
        return false;
    *mode = (uint32_t) u;
    return true;
}

static bool
read_group(const char *text, di_serve_conf_t *conf)
{
    struct group *group = getgrnam(text);
    uint64_t      u;

    if (group != NULL)
        u = group->gr_gid;
    else if (!read_u64(text, &u) || u >= UINT32_MAX)
        return false;
    conf->set_group = true;
    conf->group = (uint32_t) u;
    return true;
}

static bool
set_value(di_cmd_opts_t *opts, const option_t *o, const char *text)
{
    char    *field = (char *) opts + o->at;
    uint64_t u;
    int      i;

    switch (o->kind) {
    case K_LISTEN:
        if (strncmp(text, "unix:", 5) == 0)
            text += 5;
        if (*text == '\0')
            return false;
        *(const char **) field = text;
        return true;
    case K_STR:
        *(const char **) field = text;
        return true;
    case K_WORD:
        *(const char **) field = text;
        return word_index(text, o->words) >= 0;
    case K_NAME:
        i = word_index(text, o->words);
        *(int *) field = (int) o->min + i;
        return i >= 0;
    case K_CONST:
        *(int *) field = (int) o->min;
        return true;
    case K_TRUE:
    case K_FALSE:
        *(bool *) field = o->kind == K_TRUE;
        return true;
    case K_U32:
        if (!read_u64(text, &u) || (double) u < o->min || (double) u > o->max)
            return false;
        *(uint32_t *) field = (uint32_t) u;
        return true;
    case K_U64:
        return read_u64(text, (uint64_t *) field);
    case K_F32:
        return read_f32(text, o, (float *) field);
    case K_BYTES:
        return read_bytes(text, (uint64_t *) field);
    case K_MODE:
        return read_mode(text, (uint32_t *) field);
    case K_GROUP:
        return read_group(text, &opts->engine);
    case K_HELP:
        break;
    }
    return false;
}

static int
bad_value(const di_cmd_opts_t *opts, const option_t *o, const char *text)
{
    switch (o->kind) {
    case K_U32:
    case K_F32:
        (void) di_cmd_fail(opts, 0, "--%s %s: expected a number from %g to "
                           "%.10g", o->name, text, o->min, o->max);
        break;
    case K_BYTES:
        (void) di_cmd_fail(opts, 0, "--%s %s: expected a size such as 512m "
                           "or 4g", o->name, text);
        break;
    default:
        (void) di_cmd_fail(opts, 0, "--%s %s: expected %s (%s)", o->name,
                           text, o->arg, o->help);
    }
    return usage_error(opts);
}

/* -------------------------------------------------------------- defaults -- */

static uint32_t
allowed_cpus(void)
{
    cpu_set_t set;
    int       n;

    /* More than 1,024 CPUs don't fit the set: then ask for all online. */
    if (sched_getaffinity(0, sizeof(set), &set) == 0)
        n = CPU_COUNT(&set);
    else
        n = (int) sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (uint32_t) n : 1;
}

/* The first number in a file after `label`; false if there is none. */
static bool
number_in(const char *path, const char *label, uint64_t *v)
{
    FILE *f = fopen(path, "re");
    char  line[128];
    bool  found = false;

    if (f == NULL)
        return false;
    while (!found && fgets(line, sizeof(line), f) != NULL) {
        size_t             len = strlen(label);
        unsigned long long n;

        if (strncmp(line, label, len) == 0
            && sscanf(line + len, "%llu", &n) == 1) {
            *v = n;
            found = true;
        }
    }
    (void) fclose(f);
    return found;
}

/* What is free on the machine, or left in our control group if less. */
static uint64_t
free_memory(void)
{
    uint64_t kib = 0, max, used, bytes;

    if (!number_in("/proc/meminfo", "MemAvailable:", &kib))
        kib = 1 << 20;
    bytes = kib << 10;
    if (number_in("/sys/fs/cgroup/memory.max", "", &max)
        && number_in("/sys/fs/cgroup/memory.current", "", &used)
        && used < max && max - used < bytes)
        bytes = max - used;
    return bytes;
}

static void
set_defaults(di_cmd_opts_t *opts, di_cmd_t command)
{
    *opts = (di_cmd_opts_t) {
        .command = command,
        .engine = {
            .max_seqs = 64,
            .max_rows = 512,
            .chunk = 256,
            .step_ms = 20,
            .queue_max = 256,
            .replay_keep = 140,
            .spin_us = 50,
            .prefix_cache = true,
            .drafts = DI_DRAFTS_AUTO,
            .jumps = true,
            .grammar_bytes = 128u << 20,
            .log_level = DI_LOG_INFO,
            .model = { .pin = true },
        },
        .batch = 1,
        .params = { .top_p = 1.0f, .repetition_penalty = 1.0f, .n = 1 },
        .prompt_tokens = 512,
        .gen_tokens = 64,
        .depth = 16,
        .repeat = 5,
    };
}

/* What depends on other options or on the machine. */
static void
complete(di_cmd_opts_t *opts)
{
    di_serve_conf_t *e = &opts->engine;
    uint64_t         free_bytes;

    if (opts->command != DI_CMD_SERVE)
        e->max_seqs = opts->batch;
    if (e->max_rows < e->max_seqs)
        e->max_rows = e->max_seqs;
    if (e->chunk > e->max_rows)
        e->chunk = e->max_rows;
    if (opts->ignore_eos)
        opts->params.flags |= DI_GEN_IGNORE_EOS;
    if (e->model.n_threads == 0)
        e->model.n_threads = allowed_cpus();
    free_bytes = free_memory();
    if (e->model.kv_bytes == 0)
        e->model.kv_bytes = free_bytes / 100 * KV_SHARE_PERCENT;
    if (opts->command != DI_CMD_INSPECT && free_bytes > e->model.kv_bytes)
        e->model.warm_bytes = free_bytes - e->model.kv_bytes;
    e->model.max_rows = e->max_rows;
    e->model.max_seqs = e->max_seqs;
}

/* --------------------------------------------------------------- parsing -- */

/* getopt_long's array: `val` is the index in options[] plus 1. */
static void
fill_getopt(di_cmd_t command, struct option *out)
{
    for (size_t i = 0; i < N_OPTIONS; i++) {
        if (!(options[i].commands & (1u << command)))
            continue;
        *out++ = (struct option) {
            .name = options[i].name,
            .has_arg = options[i].arg != NULL ? required_argument
                                              : no_argument,
            .val = (int) i + 1,
        };
    }
    *out = (struct option) { 0 };
}

static int
require(const di_cmd_opts_t *opts)
{
    int sources = (opts->prompt != NULL) + (opts->message != NULL)
                  + (opts->lines != NULL);

    if (opts->engine.model_path == NULL)
        (void) di_cmd_fail(opts, 0, "no model: give --model FILE");
    else if (opts->command == DI_CMD_SERVE && opts->engine.listen == NULL)
        (void) di_cmd_fail(opts, 0, "no socket: give --listen unix:PATH");
    else if (opts->command == DI_CMD_SCORE && opts->lines == NULL)
        (void) di_cmd_fail(opts, 0, "no input: give --json FILE, or - for "
                           "stdin");
    else if (opts->command == DI_CMD_GENERATE && sources != 1)
        (void) di_cmd_fail(opts, 0, "give one of --prompt, --message and "
                           "--json");
    else if (opts->system != NULL && opts->message == NULL)
        (void) di_cmd_fail(opts, 0, "--system goes with --message");
    else
        return -1;
    return usage_error(opts);
}

static int
parse_options(int argc, char **argv, di_cmd_opts_t *opts)
{
    struct option table[N_OPTIONS + 1];
    int           c;

    fill_getopt(opts->command, table);
    opterr = 0;
    optind = 1;
    while ((c = getopt_long(argc, argv, ":", table, NULL)) != -1) {
        if (c == '?' || c == ':') {
            (void) di_cmd_fail(opts, 0, c == ':' ? "%s needs a value"
                               : "no such option, or one that takes no "
                                 "value: %s", argv[optind - 1]);
            return usage_error(opts);
        }
        if (options[c - 1].kind == K_HELP) {
            print_help(opts->command);
            return DI_EXIT_OK;
        }
        if (!set_value(opts, &options[c - 1], optarg))
            return bad_value(opts, &options[c - 1], optarg);
    }

    if (opts->command == DI_CMD_INSPECT && optind < argc
        && opts->engine.model_path == NULL)
        opts->engine.model_path = argv[optind++];
    if (optind < argc) {
        (void) di_cmd_fail(opts, 0, "unexpected argument: %s", argv[optind]);
        return usage_error(opts);
    }
    c = require(opts);
    if (c == -1)
        complete(opts);
    return c;
}

int
di_cmd_parse(int argc, char **argv, di_cmd_opts_t *opts)
{
    const char *name = argc > 1 ? argv[1] : "";

    if (strcmp(name, "--version") == 0) {
        (void) printf(PROGRAM " " DI_ENGINE_VERSION "\n");
        return DI_EXIT_OK;
    }
    if (strcmp(name, "--help") == 0 || strcmp(name, "help") == 0) {
        print_commands(stdout);
        return DI_EXIT_OK;
    }
    for (int i = 0; i < DI_CMD_COUNT; i++) {
        if (strcmp(name, commands[i].name) == 0) {
            set_defaults(opts, (di_cmd_t) i);
            return parse_options(argc - 1, argv + 1, opts);
        }
    }
    if (*name != '\0')
        (void) fprintf(stderr, PROGRAM ": no such command: %s\n", name);
    print_commands(stderr);
    return DI_EXIT_USAGE;
}

/* -------------------------------------------------------------- progress -- */

uint64_t
di_cmd_now_us(void)
{
    struct timespec t;

    (void) clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t) t.tv_sec * 1000000 + (uint64_t) t.tv_nsec / 1000;
}

void
di_cmd_progress(void *progress, const char *what, double part)
{
    di_cmd_progress_t *p = progress;
    uint64_t           now = di_cmd_now_us();
    bool               tty = isatty(STDERR_FILENO);
    uint64_t           every = tty ? 100000 : 5000000;

    if (p->start_us == 0)
        p->start_us = now;
    if (part >= 1.0 ? !p->shown
                    : now - p->start_us < 1000000
                      || now - p->shown_us < every)
        return;
    (void) fprintf(stderr, "%s%s: %3.0f %%%s", tty ? "\r" : "", what,
                   part * 100, tty && part < 1.0 ? "" : "\n");
    p->shown = true;
    p->shown_us = now;
}
