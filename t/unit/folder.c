/*
 * folder.c - the fingerprint of folders made here: equal where the contents
 * are, other where any of them is, errors where a file is none.
 */

#include <stdint.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tokenizer/vocab/di_folder.h"

#include "check.h"
#include "nomem.h"

#define HEAD_OF(name) "{\"" name "\":{\"dtype\":\"U8\",\"shape\":[20000],"     \
                      "\"data_offsets\":[0,20000]}}"
#define HEAD   HEAD_OF("w")
#define DATA   20000             /* bytes of a file's tensor                */

static char    base[] = "/tmp/di_folder_XXXXXX";
static uint8_t first[16];        /* of the folder as make() leaves it       */

static void
spew(const char *folder, const char *name, const void *data, size_t len)
{
    char  path[256];
    FILE *f;

    (void) snprintf(path, sizeof(path), "%s/%s/%s", base, folder, name);
    f = fopen(path, "wb");
    if (f == NULL || fwrite(data, 1, len, f) != len || fclose(f) != 0)
        abort();
}

/* A file of weights: header, then DATA bytes with one changed. */
static void
weights(const char *folder, const char *name, const char *head, size_t at,
        uint8_t by)
{
    static uint8_t bytes[8 + 256 + DATA];
    size_t         n = strlen(head);

    memset(bytes, 0, sizeof(bytes));
    bytes[0] = (uint8_t) n;
    memcpy(bytes + 8, head, n);
    for (size_t i = 0; i < DATA; i++)
        bytes[8 + n + i] = (uint8_t) (i * 7);
    bytes[8 + n + at] ^= by;
    spew(folder, name, bytes, 8 + n + DATA);
}

static void
make(const char *folder)
{
    char path[256];

    (void) snprintf(path, sizeof(path), "%s/%s", base, folder);
    (void) mkdir(path, 0700);
    spew(folder, "config.json", "{}", 2);
    spew(folder, "tokenizer.json", "[1]", 3);
    weights(folder, "model-1.safetensors", HEAD, 0, 0);
    weights(folder, "model-2.safetensors", HEAD, 0, 0);
    spew(folder, "README.md", folder, strlen(folder));
}

static int
print_of(const char *folder, uint8_t out[16], di_err_t *err)
{
    char path[256];

    (void) snprintf(path, sizeof(path), "%s/%s", base, folder);
    return di_folder_fingerprint(path, out, err);
}

/* Is the folder's fingerprint the first one? */
static bool
same(const char *folder)
{
    uint8_t  out[16];
    di_err_t err = { 0 };

    CHECK_EQ_INT(print_of(folder, out, &err), DI_OK);
    CHECK_EQ_STR(err.text, "");
    return memcmp(out, first, sizeof(out)) == 0;
}

static void
fails(const char *folder, int code, const char *text)
{
    uint8_t  out[16];
    di_err_t err = { 0 };

    CHECK_EQ_INT(print_of(folder, out, &err), code);
    CHECK(strstr(err.text, text) != NULL);
}

static void
test_equal(void)
{
    make("a");
    make("b");
    CHECK_EQ_INT(print_of("a", first, NULL), DI_OK);
    CHECK(same("a"));
    CHECK(same("b"));
}

static void
test_differs(void)
{
    /* one of the 64 samples of 64 bytes lies in the middle of each 312 */
    weights("b", "model-2.safetensors", HEAD, 312 + 124, 1);
    CHECK(!same("b"));
    weights("b", "model-2.safetensors", HEAD, 312, 1);
    CHECK(same("b"));
    weights("b", "model-2.safetensors", HEAD_OF("v"), 0, 0);
    CHECK(!same("b"));

    make("b");
    spew("b", "config.json", "[]", 2);
    CHECK(!same("b"));
    spew("b", "config.json", "{}[", 3);
    spew("b", "tokenizer.json", "1]", 2);
    CHECK(!same("b"));

    make("b");
    weights("b", "model-3.safetensors", HEAD, 0, 0);
    CHECK(!same("b"));
}

static void
test_bad(void)
{
    static const uint8_t long_head[16] = { 9 };

    fails("none", DI_EIO, "none");
    make("c");
    spew("c", "model-1.safetensors", long_head, sizeof(long_head));
    fails("c", DI_EFORMAT, "model-1.safetensors: the header is longer");
    spew("c", "model-1.safetensors", long_head, 7);
    fails("c", DI_EFORMAT, "model-1.safetensors: no header");
    spew("c", "model-1.safetensors", long_head + 1, 8);
    CHECK(!same("c"));
}

/* Without weights, as where only the tokenizer is; and pipes for files. */
static void
test_other(void)
{
    char path[256];

    make("d");
    for (int i = 1; i <= 2; i++) {
        (void) snprintf(path, sizeof(path), "%s/d/model-%d.safetensors", base,
                        i);
        CHECK_EQ_INT(unlink(path), 0);
    }
    fails("d", DI_EUNSUPPORTED, "no *.safetensors");
    CHECK_EQ_INT(mkfifo(path, 0600), 0);
    fails("d", DI_EIO, "model-2.safetensors: not a regular file");
}

static void
test_memory(void)
{
    uint8_t out[16];
    int     rc;

    for (int n = 0; NOMEM; n++) {
        nomem_after(n);
        rc = print_of("a", out, NULL);
        if (!nomem_off())
            break;
        CHECK(rc == DI_ENOMEM || rc == DI_EIO);
    }
}

static void
remove_all(void)
{
    char command[64];

    (void) snprintf(command, sizeof(command), "rm -r %s", base);
    CHECK_EQ_INT(system(command), 0);
}

int
main(void)
{
    if (mkdtemp(base) == NULL)
        abort();
    test_equal();
    test_differs();
    test_bad();
    test_other();
    test_memory();
    remove_all();
    return check_done("folder");
}
