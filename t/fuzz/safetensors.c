/*
 * safetensors.c - arbitrary bytes as a part of a Hugging Face directory.
 *
 * The first byte says as what: config.json, a safetensors file, or an index
 * beside a sound file.  What is accepted must be sound: every tensor's first
 * and last byte are read, every tensor is found by its name, and a
 * configuration's tensors and caches can be laid out.
 */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/model/di_safetensors.h"
#include "engine/model/v41_cache.h"
#include "engine/model/v41_conf.h"

static char dir[64];

static void
put_file(const char *name, const void *data, size_t len)
{
    char  path[128];
    FILE *f;

    (void) snprintf(path, sizeof(path), "%s/%s", dir, name);
    f = fopen(path, "wb");
    if (f == NULL || fwrite(data, 1, len, f) != len || fclose(f) != 0)
        abort();
}

static void
drop_file(const char *name)
{
    char path[128];

    (void) snprintf(path, sizeof(path), "%s/%s", dir, name);
    (void) unlink(path);
}

static int
take_tensor(void *arg, const di_v41_tensor_t *t)
{
    size_t *n = arg;

    /* A long list is as good as a whole one. */
    return ++*n > 10000 || t->name[0] == '\0' ? DI_ELIMIT : DI_OK;
}

static void
try_config(const uint8_t *data, size_t len)
{
    static di_v41_layout_t layout;
    di_v41_conf_t          c;
    di_err_t               err = { 0 };
    size_t                 n = 0;

    if (di_v41_conf_parse((const char *) data, len, &c, &err) != DI_OK) {
        if (err.code == DI_OK || err.text[0] == '\0')
            abort();
        return;
    }
    di_v41_layout(&c, false, &layout);
    if (layout.block_bytes == 0 || layout.slot_bytes < layout.ring_bytes)
        abort();
    if (c.n_engrams == 0 || c.engram_vocab < 100000)
        (void) di_v41_tensors(&c, take_tensor, &n);
}

static void
try_dir(void)
{
    di_st_t         *st = NULL;
    di_err_t         err = { 0 };
    volatile uint8_t sum = 0;

    if (di_st_open(dir, &st, &err) != DI_OK) {
        if (err.code == DI_OK || err.text[0] == '\0')
            abort();
        return;
    }
    for (size_t i = 0; i < di_st_n_tensors(st); i++) {
        const di_st_tensor_t *t = di_st_tensor(st, i);

        if (di_st_find(st, t->name) != t)
            abort();
        if (t->bytes > 0)
            sum = (uint8_t) (sum + t->data[0] + t->data[t->bytes - 1]);
    }
    di_st_close(st);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    static const char sound[] = "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],"
                                "\"data_offsets\":[0,2]}}";
    uint8_t file[8 + sizeof(sound) + 1] = { sizeof(sound) - 1 };

    if (len == 0)
        return 0;
    if (dir[0] == '\0') {
        (void) snprintf(dir, sizeof(dir), "/tmp/di-fuzz-XXXXXX");
        if (mkdtemp(dir) == NULL)
            abort();
    }
    switch (data[0] % 3) {
    case 0:
        try_config(data + 1, len - 1);
        return 0;
    case 1:
        drop_file("model.safetensors.index.json");
        put_file("model.safetensors", data + 1, len - 1);
        break;
    default:
        memcpy(file + 8, sound, sizeof(sound) - 1);
        put_file("model.safetensors", file, 8 + sizeof(sound) - 1 + 2);
        put_file("model.safetensors.index.json", data + 1, len - 1);
    }
    try_dir();
    return 0;
}
