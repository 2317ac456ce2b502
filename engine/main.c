/*
 * main.c - deepinfer-engine: dispatch to a command.
 */

#include "cmd/di_cmd.h"

int
main(int argc, char **argv)
{
    static int (*const run[DI_CMD_COUNT])(const di_cmd_opts_t *) = {
        [DI_CMD_SERVE] = di_cmd_serve,
        [DI_CMD_GENERATE] = di_cmd_generate,
        [DI_CMD_SCORE] = di_cmd_score,
        [DI_CMD_BENCH] = di_cmd_bench,
        [DI_CMD_INSPECT] = di_cmd_inspect,
    };
    di_cmd_opts_t opts;
    int           status = di_cmd_parse(argc, argv, &opts);

    return status >= 0 ? status : run[opts.command](&opts);
}
