/*
 * safetensors.c - sound and hostile files and indexes.
 */

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "engine/model/di_safetensors.h"

#define DATA_BYTES 16            /* behind every header                     */
#define INDEX      "model.safetensors.index.json"

static char dir[64];

static void
put(const char *name, const void *data, size_t len)
{
    char  path[256];
    FILE *f;

    (void) snprintf(path, sizeof(path), "%s/%s", dir, name);
    f = fopen(path, "wb");
    CHECK(f != NULL && fwrite(data, 1, len, f) == len);
    if (f != NULL)
        (void) fclose(f);
}

static void
drop(const char *name)
{
    char path[256];

    (void) snprintf(path, sizeof(path), "%s/%s", dir, name);
    (void) unlink(path);
}

/* A file of a header and bytes 0, 1, 2, ...; its length. */
static size_t
make_file(const char *header, uint64_t header_len, uint8_t *file)
{
    size_t len = strlen(header);

    for (int i = 0; i < 8; i++)
        file[i] = (uint8_t) (header_len >> 8 * i);
    memcpy(file + 8, header, len);
    for (size_t i = 0; i < DATA_BYTES; i++)
        file[8 + len + i] = (uint8_t) i;
    return 8 + len + DATA_BYTES;
}

static void
put_file(const char *name, const char *header)
{
    uint8_t file[1024];

    put(name, file, make_file(header, strlen(header), file));
}

static int
open_dir(di_st_t **st, const char *want)
{
    di_err_t err = { 0 };
    int      rc = di_st_open(dir, st, &err);

    if (want != NULL && strstr(err.text, want) == NULL)
        CHECK_EQ_STR(err.text, want);
    CHECK((rc == DI_OK) == (*st != NULL) && (rc == DI_OK) == (want == NULL));
    return rc;
}

#define TWO "{\"__metadata__\":{\"x\":\"y\"}," \
            "\"model.b\":{\"dtype\":\"BF16\",\"shape\":[2,2]," \
            "\"data_offsets\":[0,8]}," \
            "\"a\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[8,9]}}"

static void
test_sound(void)
{
    const di_st_tensor_t *t;
    di_st_t              *st = NULL;

    put_file("model.safetensors", TWO);
    if (open_dir(&st, NULL) != DI_OK)
        return;
    CHECK_EQ_INT(di_st_n_tensors(st), 2);
    t = di_st_find(st, "b");
    CHECK(t != NULL && t->dtype == DI_ST_BF16 && t->n_dims == 2
          && t->bytes == 8 && t->data[7] == 7 && t->dims[1] == 2);
    t = di_st_find(st, "a");
    CHECK(t != NULL && t->n_dims == 0 && t->bytes == 1 && t->data[0] == 8);
    CHECK(di_st_find(st, "c") == NULL && di_st_find(st, "model.b") == NULL);
    CHECK_EQ_STR(di_st_file(st, 0), "model.safetensors");
    di_st_close(st);
}

#define ONE(dtype, shape, offsets)                                          \
    "{\"a\":{\"dtype\":\"" dtype "\",\"shape\":" shape                      \
    ",\"data_offsets\":" offsets "}}"

static const struct {
    const char *header;
    const char *error;
} wrong[] = {
    { "[]", "not an object" },
    { "{\"a\":1}", "tensor a: no dtype" },
    { ONE("Q4", "[1]", "[0,1]"), "tensor a: no dtype that is known" },
    { ONE("U8", "1", "[0,1]"), "no shape" },
    { ONE("U8", "[-1]", "[0,1]"), "no shape" },
    { ONE("U8", "[1.5]", "[0,1]"), "no shape" },
    { ONE("F32", "[4294967296,4294967296]", "[0,4]"), "one too large" },
    { ONE("U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]"), "no shape" },
    { ONE("U8", "[1]", "[0]"), "no data_offsets" },
    { ONE("U8", "[1]", "[1,0]"), "bytes 1 to 0" },
    { ONE("U8", "[1]", "[-1,0]"), "bytes -1 to 0" },
    { ONE("U8", "[17]", "[0,17]"), "bytes 0 to 17 of 16" },
    { ONE("U8", "[2]", "[0,3]"), "3 bytes, dtype and shape make 2" },
    { "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
      "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]}}",
      "overlap" },
    { "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
      "\"model.a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[2,4]}}",
      "is in model.safetensors too" },
    { "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
      "\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[2,4]}}",
      "header: " },
};

static void
test_wrong(void)
{
    uint8_t  file[1024];
    size_t   len;
    di_st_t *st = NULL;

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        put_file("model.safetensors", wrong[i].header);
        (void) open_dir(&st, wrong[i].error);
    }
    len = make_file(TWO, UINT64_MAX, file);
    put("model.safetensors", file, len);
    (void) open_dir(&st, "a header of 18446744073709551615 bytes");

    /* Any beginning of a file is refused. */
    len = make_file(TWO, strlen(TWO), file);
    for (size_t n = 0; n < len - DATA_BYTES + 9; n++) {
        put("model.safetensors", file, n);
        (void) open_dir(&st, "model.safetensors: ");
    }
    drop("model.safetensors");
    (void) open_dir(&st, "model.safetensors: No such file");
}

static void
test_index(void)
{
    static const struct {
        const char *index;
        const char *error;       /* NULL: sound                             */
    } cases[] = {
        { "{\"weight_map\":{\"x\":\"1.st\",\"model.y\":\"2.st\"}}", NULL },
        { "{\"weight_map\":{\"x\":\"1.st\"}}", NULL },
        { "{\"weight_map\":{\"x\":\"2.st\",\"y\":\"2.st\"}}", "no tensor x" },
        { "{\"weight_map\":{\"x\":\"1.st\",\"y\":\"2.st\",\"z\":\"2.st\"}}",
          "no tensor z" },
        { "{\"weight_map\":{\"x\":\"../1.st\"}}", "not the name of a file" },
        { "{\"weight_map\":{\"x\":1}}", "not the name of a file" },
        { "{\"weight_map\":{\"x\":\"3.st\"}}", "3.st: No such file" },
        { "{\"weight_map\":{}}", "no tensors" },
        { "{}", "no weight_map" },
        { "{", INDEX },
    };
    di_st_t *st = NULL;

    put_file("1.st", "{\"x\":{\"dtype\":\"U8\",\"shape\":[1],"
             "\"data_offsets\":[0,1]}}");
    put_file("2.st", "{\"y\":{\"dtype\":\"U8\",\"shape\":[1],"
             "\"data_offsets\":[0,1]}}");
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        put(INDEX, cases[i].index, strlen(cases[i].index));
        if (open_dir(&st, cases[i].error) == DI_OK) {
            CHECK(di_st_find(st, "x") != NULL);
            di_st_close(st);
            st = NULL;
        }
    }
    drop(INDEX);
    drop("1.st");
    drop("2.st");
}

int
main(void)
{
    (void) snprintf(dir, sizeof(dir), "/tmp/di-st-XXXXXX");
    if (mkdtemp(dir) == NULL)
        return 1;
    test_sound();
    test_wrong();
    test_index();
    (void) rmdir(dir);
    return check_done("safetensors");
}
