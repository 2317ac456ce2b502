/*
 * serve.c - the command `serve`: options to the server loop.
 */

#include "di_cmd.h"

int
di_cmd_serve(const di_cmd_opts_t *opts)
{
    di_err_t err = { 0 };

    if (di_serve(&opts->engine, &err) != DI_OK)
        return di_cmd_fail(opts, DI_EXIT_FAILED, "%s", err.text);
    return DI_EXIT_OK;
}
