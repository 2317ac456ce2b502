/*
 * gguf.c - the GGUF reader against files built here.
 *
 * One small valid file has every value type and two tensors; each damage is
 * that file with one thing changed.  Prefixes and flipped bytes are copied
 * to blocks of their exact size, so that ASan sees a read past the end.
 */

#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include "tokenizer/vocab/di_gguf.h"

#include "check.h"
#include "nomem.h"

#define FILE_MAX 4096

typedef struct {
    uint8_t data[FILE_MAX];
    size_t  len;
} file_t;

static void
put(file_t *f, const void *p, size_t n)
{
    if (f->len + n > FILE_MAX)
        abort();
    memcpy(f->data + f->len, p, n);
    f->len += n;
}

static void
put_u32(file_t *f, uint32_t v)
{
    put(f, &v, 4);
}

static void
put_u64(file_t *f, uint64_t v)
{
    put(f, &v, 8);
}

static void
put_str(file_t *f, const char *s)
{
    put_u64(f, strlen(s));
    put(f, s, strlen(s));
}

static void
put_key(file_t *f, const char *key, uint32_t type)
{
    put_str(f, key);
    put_u32(f, type);
}

static void
put_head(file_t *f, uint64_t n_tensors, uint64_t n_kv)
{
    f->len = 0;
    put(f, "GGUF", 4);
    put_u32(f, 3);
    put_u64(f, n_tensors);
    put_u64(f, n_kv);
}

static void
put_tensor(file_t *f, const char *name, uint64_t cols, uint64_t rows,
           uint32_t type, uint64_t offset)
{
    put_str(f, name);
    put_u32(f, 2);
    put_u64(f, cols);
    put_u64(f, rows);
    put_u32(f, type);
    put_u64(f, offset);
}

/* Pad to the alignment and add n bytes of tensor data. */
static void
put_data(file_t *f, size_t alignment, size_t n)
{
    while (f->len % alignment != 0)
        put(f, "", 1);
    for (size_t i = 0; i < n; i++) {
        uint8_t b = (uint8_t) i;

        put(f, &b, 1);
    }
}

static void
put_values(file_t *f)
{
    static const int64_t ints[] = { -1, 0, INT64_MAX };
    float                f32 = 1.5f;
    double               f64 = -2.25;
    int64_t              i64 = -5;

    put_key(f, "u8", 0);     put(f, "\xff", 1);
    put_key(f, "i8", 1);     put(f, "\xff", 1);
    put_key(f, "u16", 2);    put(f, "\xff\xff", 2);
    put_key(f, "i16", 3);    put(f, "\x02\x01", 2);
    put_key(f, "u32", 4);    put_u32(f, UINT32_MAX);
    put_key(f, "i32", 5);    put_u32(f, 7);
    put_key(f, "f32", 6);    put(f, &f32, 4);
    put_key(f, "yes", 7);    put(f, "\1", 1);
    put_key(f, "str", 8);    put_str(f, "text");
    put_key(f, "u64", 10);   put_u64(f, UINT64_MAX);
    put_key(f, "i64", 11);   put(f, &i64, 8);
    put_key(f, "f64", 12);   put(f, &f64, 8);
    put_key(f, "ints", 9);   put_u32(f, 11); put_u64(f, 3); put(f, ints, 24);
    put_key(f, "strs", 9);   put_u32(f, 8);  put_u64(f, 3);
    put_str(f, "a");         put_str(f, ""); put_str(f, "ccc");
    put_key(f, "floats", 9); put_u32(f, 6);  put_u64(f, 1); put(f, &f32, 4);
    put_key(f, "empty", 9);  put_u32(f, 0);  put_u64(f, 0);
}

/* The valid file: 17 keys; a Q4_0 tensor of 2 rows and an F32 one. */
static void
put_valid(file_t *f)
{
    put_head(f, 2, 17);
    put_values(f);
    put_key(f, "general.alignment", 4);
    put_u32(f, 64);
    put_tensor(f, "b.weight", 32, 2, 2, 64);    /* 36 bytes */
    put_tensor(f, "a.weight", 5, 1, 0, 0);      /* 20 bytes */
    put_data(f, 64, 100);
}

static int
open_copy(const void *data, size_t len, di_err_t *err)
{
    di_gguf_t *g;
    void      *copy = malloc(len != 0 ? len : 1);
    int        rc;

    memcpy(copy, data, len);
    rc = di_gguf_open_memory(copy, len, &g, err);
    if (rc == DI_OK)
        di_gguf_close(g);
    free(copy);
    return rc;
}

/* The file must be refused with this code and a text that has `part`. */
static void
check_refused(const file_t *f, int code, const char *part)
{
    di_err_t err = { 0 };
    int      rc = open_copy(f->data, f->len, &err);

    CHECK_EQ_INT(rc, code);
    CHECK_EQ_INT(err.code, code);
    if (strstr(err.text, part) == NULL)
        CHECK_EQ_STR(err.text, part);
    CHECK(err.offset <= f->len);
}

static void
test_scalars(const di_gguf_t *g)
{
    uint64_t u = 0;
    double   d = 0;
    bool     b = false;
    di_str_t s = { NULL, 0 };

    CHECK_EQ_INT(di_gguf_u64(g, "u8", &u), DI_OK);
    CHECK_EQ_INT(u, 255);
    CHECK_EQ_INT(di_gguf_u64(g, "i8", &u), DI_EFORMAT);
    CHECK_EQ_INT(di_gguf_u64(g, "u16", &u), DI_OK);
    CHECK_EQ_INT(u, 65535);
    CHECK_EQ_INT(di_gguf_u64(g, "i16", &u), DI_OK);
    CHECK_EQ_INT(u, 258);
    CHECK_EQ_INT(di_gguf_u64(g, "u32", &u), DI_OK);
    CHECK_EQ_INT(u, UINT32_MAX);
    CHECK_EQ_INT(di_gguf_u64(g, "i32", &u), DI_OK);
    CHECK_EQ_INT(u, 7);
    CHECK_EQ_INT(di_gguf_u64(g, "u64", &u), DI_OK);
    CHECK(u == UINT64_MAX);
    CHECK_EQ_INT(di_gguf_u64(g, "i64", &u), DI_EFORMAT);
    CHECK_EQ_INT(di_gguf_u64(g, "f32", &u), DI_EFORMAT);
    CHECK_EQ_INT(di_gguf_u64(g, "ints", &u), DI_EFORMAT);
    CHECK_EQ_INT(di_gguf_u64(g, "u", &u), DI_EINVAL);
    CHECK_EQ_INT(di_gguf_u64(g, "", &u), DI_EINVAL);

    CHECK_EQ_INT(di_gguf_f64(g, "f32", &d), DI_OK);
    CHECK(d == 1.5);
    CHECK_EQ_INT(di_gguf_f64(g, "f64", &d), DI_OK);
    CHECK(d == -2.25);
    CHECK_EQ_INT(di_gguf_f64(g, "u32", &d), DI_EFORMAT);
    CHECK_EQ_INT(di_gguf_f64(g, "none", &d), DI_EINVAL);

    CHECK_EQ_INT(di_gguf_bool(g, "yes", &b), DI_OK);
    CHECK(b);
    CHECK_EQ_INT(di_gguf_bool(g, "u8", &b), DI_EFORMAT);
    CHECK_EQ_INT(di_gguf_bool(g, "none", &b), DI_EINVAL);

    CHECK_EQ_INT(di_gguf_str(g, "str", &s), DI_OK);
    CHECK_EQ_INT(s.len, 4);
    CHECK(s.len == 4 && memcmp(s.data, "text", 4) == 0);
    CHECK_EQ_INT(di_gguf_str(g, "strs", &s), DI_EFORMAT);
    CHECK_EQ_INT(di_gguf_str(g, "none", &s), DI_EINVAL);
}

static void
test_arrays(const di_gguf_t *g)
{
    uint64_t n = 0;
    int64_t  i[3] = { 0 };
    double   d[3] = { 0 };
    di_str_t s[3] = { 0 };

    CHECK_EQ_INT(di_gguf_array(g, "ints", &n), DI_OK);
    CHECK_EQ_INT(n, 3);
    CHECK_EQ_INT(di_gguf_array(g, "empty", &n), DI_OK);
    CHECK_EQ_INT(n, 0);
    CHECK_EQ_INT(di_gguf_array(g, "u8", &n), DI_EFORMAT);
    CHECK_EQ_INT(di_gguf_array(g, "none", &n), DI_EINVAL);

    CHECK_EQ_INT(di_gguf_array_i64(g, "ints", i, 3), DI_OK);
    CHECK(i[0] == -1 && i[1] == 0 && i[2] == INT64_MAX);
    CHECK_EQ_INT(di_gguf_array_i64(g, "ints", i, 2), DI_ELIMIT);
    CHECK_EQ_INT(di_gguf_array_i64(g, "empty", i, 0), DI_OK);
    CHECK_EQ_INT(di_gguf_array_i64(g, "strs", i, 3), DI_EFORMAT);

    CHECK_EQ_INT(di_gguf_array_f64(g, "floats", d, 3), DI_OK);
    CHECK(d[0] == 1.5);
    CHECK_EQ_INT(di_gguf_array_f64(g, "ints", d, 3), DI_EFORMAT);

    CHECK_EQ_INT(di_gguf_array_str(g, "strs", s, 3), DI_OK);
    CHECK(s[0].len == 1 && s[1].len == 0 && s[2].len == 3);
    CHECK(s[2].len == 3 && memcmp(s[2].data, "ccc", 3) == 0);
    CHECK_EQ_INT(di_gguf_array_str(g, "strs", s, 2), DI_ELIMIT);
    CHECK_EQ_INT(di_gguf_array_str(g, "ints", s, 3), DI_EFORMAT);
}

static void
test_tensors(const di_gguf_t *g)
{
    const di_gguf_tensor_t *a = di_gguf_find(g, "a.weight");
    const di_gguf_tensor_t *b = di_gguf_find(g, "b.weight");

    CHECK_EQ_INT(di_gguf_n_tensors(g), 2);
    CHECK(b == di_gguf_tensor(g, 0));
    CHECK(a == di_gguf_tensor(g, 1));
    CHECK(di_gguf_tensor(g, 2) == NULL);
    CHECK(di_gguf_find(g, "c.weight") == NULL);
    CHECK(di_gguf_find(g, "") == NULL);
    if (a == NULL || b == NULL)
        return;

    CHECK_EQ_INT(a->type, 0);
    CHECK_EQ_INT(a->bytes, 20);
    CHECK_EQ_INT(*(const uint8_t *) a->data, 0);
    CHECK_EQ_INT(b->type, 2);
    CHECK_EQ_INT(b->n_dims, 2);
    CHECK_EQ_INT(b->dims[0], 32);
    CHECK_EQ_INT(b->dims[1], 2);
    CHECK_EQ_INT(b->dims[3], 1);
    CHECK_EQ_INT(b->bytes, 36);
    CHECK_EQ_INT(*(const uint8_t *) b->data, 64);
}

/* The fingerprint follows metadata, size, and a sample of each tensor. */
static void
test_fingerprint(file_t *f, const di_gguf_t *g)
{
    uint8_t    a[16], b[16];
    di_gguf_t *h;

    CHECK_EQ_INT(di_gguf_fingerprint(g, a), DI_OK);
    CHECK_EQ_INT(di_gguf_fingerprint(g, b), DI_OK);
    CHECK(memcmp(a, b, 16) == 0);
    f->data[f->len - 1] ^= 1;
    CHECK_EQ_INT(di_gguf_fingerprint(g, b), DI_OK);
    CHECK(memcmp(a, b, 16) != 0);
    f->data[f->len - 1] ^= 1;
    f->data[30] ^= 1;
    CHECK_EQ_INT(di_gguf_fingerprint(g, b), DI_OK);
    CHECK(memcmp(a, b, 16) != 0);
    f->data[30] ^= 1;

    f->len++;
    CHECK_EQ_INT(di_gguf_open_memory(f->data, f->len, &h, NULL), DI_OK);
    CHECK_EQ_INT(di_gguf_fingerprint(h, b), DI_OK);
    CHECK(memcmp(a, b, 16) != 0);
    di_gguf_close(h);
}

static void
test_valid(void)
{
    static file_t f;
    di_err_t      err = { 0 };
    di_gguf_t    *g = NULL;

    put_valid(&f);
    CHECK_EQ_INT(di_gguf_open_memory(f.data, f.len, &g, &err), DI_OK);
    CHECK_EQ_STR(err.text, "");
    if (g == NULL)
        return;
    test_scalars(g);
    test_arrays(g);
    test_tensors(g);
    test_fingerprint(&f, g);
    di_gguf_close(g);

    f.data[4] = 2;
    CHECK_EQ_INT(open_copy(f.data, f.len, NULL), DI_OK);
    di_gguf_close(NULL);
}

/* A vocabulary alone: no tensors, and no padding behind the keys. */
static void
test_no_tensors(void)
{
    file_t f;

    put_head(&f, 0, 1);
    put_key(&f, "name", 8);
    put_str(&f, "x");
    CHECK_EQ_INT(open_copy(f.data, f.len, NULL), DI_OK);
    put_head(&f, 0, 0);
    CHECK_EQ_INT(open_copy(f.data, f.len, NULL), DI_OK);
}

static void
test_truncated(void)
{
    static file_t f;

    put_valid(&f);
    for (size_t n = 0; n < f.len; n++) {
        di_err_t err = { 0 };

        CHECK_EQ_INT(open_copy(f.data, n, &err), DI_EFORMAT);
        CHECK(err.text[0] != '\0' && err.offset <= n);
    }
}

/* Any answer is right for a flipped bit but a crash. */
static void
test_flipped(void)
{
    static file_t f;
    size_t        refused = 0;

    put_valid(&f);
    for (size_t i = 0; i < f.len; i++) {
        for (int bit = 0; bit < 8; bit++) {
            f.data[i] ^= (uint8_t) (1 << bit);
            refused += open_copy(f.data, f.len, NULL) != DI_OK;
            f.data[i] ^= (uint8_t) (1 << bit);
        }
    }
    CHECK(refused > 1000);
}

static void
test_header(void)
{
    file_t f;

    put_head(&f, 0, 0);
    f.data[0] = 'X';
    check_refused(&f, DI_EFORMAT, "no magic");
    put_head(&f, 0, 0);
    f.data[4] = 1;
    check_refused(&f, DI_EUNSUPPORTED, "version 1");
    put_head(&f, 0, 0);
    f.data[4] = 4;
    check_refused(&f, DI_EUNSUPPORTED, "version 4");
    put_head(&f, 0, 0);
    memcpy(f.data + 4, "\0\0\0\3", 4);
    check_refused(&f, DI_EUNSUPPORTED, "big-endian");

    put_head(&f, 0, UINT64_MAX);
    check_refused(&f, DI_EFORMAT, "keys at byte 16");
    put_head(&f, UINT64_MAX, 0);
    check_refused(&f, DI_EFORMAT, "tensors at byte 8");
}

static void
test_bad_keys(void)
{
    file_t f;

    put_head(&f, 0, 2);
    put_key(&f, "dup", 0); put(&f, "\0", 1);
    put_key(&f, "dup", 4); put_u32(&f, 0);
    check_refused(&f, DI_EFORMAT, "\"dup\" appears again at byte 40");

    put_head(&f, 0, 1);
    put_key(&f, "", 4); put_u32(&f, 0);
    check_refused(&f, DI_EFORMAT, "0 bytes");
    put_head(&f, 0, 1);
    put_u64(&f, UINT64_MAX); put_u64(&f, 0);
    check_refused(&f, DI_EFORMAT, "key at byte 24");
    put_head(&f, 0, 1);
    put_key(&f, "k", 13); put_u64(&f, 0);
    check_refused(&f, DI_EFORMAT, "\"k\" at byte 24: unknown type 13");
    put_head(&f, 0, 1);
    put_key(&f, "k\n", 7); put(&f, "\2", 1);
    check_refused(&f, DI_EFORMAT, "\"k?\": byte 38 is no boolean");
    put_head(&f, 0, 1);
    put_key(&f, "k", 8); put_u64(&f, UINT64_MAX); put_u64(&f, 0);
    check_refused(&f, DI_EFORMAT, "\"k\": string 0");
    put_head(&f, 0, 1);
    put_key(&f, "k", 9); put_u32(&f, 9); put_u64(&f, 0);
    check_refused(&f, DI_EUNSUPPORTED, "arrays of arrays");
    put_head(&f, 0, 1);
    put_key(&f, "k", 9); put_u32(&f, 10); put_u64(&f, UINT64_MAX / 8 + 2);
    check_refused(&f, DI_EFORMAT, "\"k\": value");
    put_head(&f, 0, 1);
    put_key(&f, "k", 9); put_u32(&f, 8); put_u64(&f, UINT64_MAX);
    check_refused(&f, DI_EFORMAT, "\"k\": string 0");
}

static void
test_bad_alignment(void)
{
    static const uint32_t bad[] = { 0, 1, 4, 24, 33, 1u << 21, UINT32_MAX };
    file_t                f;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        put_head(&f, 0, 1);
        put_key(&f, "general.alignment", 4); put_u32(&f, bad[i]);
        check_refused(&f, DI_EFORMAT, "general.alignment");
    }
    put_head(&f, 0, 1);
    put_key(&f, "general.alignment", 8); put_str(&f, "32");
    check_refused(&f, DI_EFORMAT, "general.alignment");

    put_head(&f, 0, 1);
    put_key(&f, "general.alignment", 4); put_u32(&f, 8);
    CHECK_EQ_INT(open_copy(f.data, f.len, NULL), DI_OK);
}

/* One tensor described so, with enough data behind it. */
static void
check_tensor_refused(const char *name, uint64_t cols, uint64_t rows,
                     uint32_t type, uint64_t offset, int code,
                     const char *part)
{
    file_t f;

    put_head(&f, 1, 0);
    put_tensor(&f, name, cols, rows, type, offset);
    put_data(&f, 32, 256);
    check_refused(&f, code, part);
}

static void
test_bad_tensors(void)
{
    file_t f;

    check_tensor_refused("", 32, 1, 0, 0, DI_EFORMAT, "has 0 bytes");
    check_tensor_refused("t", 0, 1, 0, 0, DI_EFORMAT, "dimension 0 is 0");
    check_tensor_refused("t", 1, 0, 0, 0, DI_EFORMAT, "dimension 1 is 0");
    check_tensor_refused("t", 31, 1, 2, 0, DI_EFORMAT, "block of 32");
    check_tensor_refused("t", 32, 1, 4, 0, DI_EUNSUPPORTED, "type 4");
    check_tensor_refused("t", 32, 1, 40, 0, DI_EUNSUPPORTED, "type 40");
    check_tensor_refused("t", 32, 1, UINT32_MAX, 0, DI_EUNSUPPORTED, "type");
    check_tensor_refused("t", 1ull << 62, 1, 0, 0, DI_EFORMAT, "overflows");
    check_tensor_refused("t", 1ull << 40, 1ull << 40, 0, 0, DI_EFORMAT,
                         "overflows");
    check_tensor_refused("t", 4, 1, 0, 8, DI_EFORMAT, "no multiple");
    check_tensor_refused("t", 65, 1, 0, 0, DI_EFORMAT, "pass the file's end");
    check_tensor_refused("t", 8, 1, 0, 256, DI_EFORMAT, "pass the file");
    check_tensor_refused("t", 8, 1, 0, UINT64_MAX - 31, DI_EFORMAT,
                         "pass the file's end");

    put_head(&f, 1, 0);
    put_str(&f, "t");
    put_u32(&f, 5);
    put_data(&f, 32, 256);
    check_refused(&f, DI_EFORMAT, "5 dimensions");

    put_head(&f, 2, 0);
    put_tensor(&f, "a", 9, 1, 0, 0);
    put_tensor(&f, "b", 1, 1, 0, 32);
    put_data(&f, 32, 256);
    check_refused(&f, DI_EFORMAT, "\"b\" overlaps \"a\"");
    put_head(&f, 2, 0);
    put_tensor(&f, "a", 8, 1, 0, 32);
    put_tensor(&f, "a", 8, 1, 0, 0);
    put_data(&f, 32, 256);
    check_refused(&f, DI_EFORMAT, "\"a\" appears again at byte 65");
}

static void
test_paths(void)
{
    char       path[] = "/tmp/di-gguf-test-XXXXXX";
    file_t     f;
    di_err_t   err = { 0 };
    di_gguf_t *g;
    int        fd = mkstemp(path);

    CHECK(fd != -1);
    CHECK_EQ_INT(di_gguf_open(path, &g, &err), DI_EFORMAT);
    CHECK(strstr(err.text, "empty") != NULL);
    put_valid(&f);
    CHECK_EQ_INT(write(fd, f.data, f.len), (ssize_t) f.len);
    CHECK_EQ_INT(di_gguf_open(path, &g, NULL), DI_OK);
    CHECK_EQ_INT(di_gguf_n_tensors(g), 2);
    di_gguf_close(g);
    CHECK_EQ_INT(close(fd), 0);
    CHECK_EQ_INT(unlink(path), 0);

    CHECK_EQ_INT(di_gguf_open(path, &g, NULL), DI_EIO);
    CHECK_EQ_INT(di_gguf_open("/tmp", &g, NULL), DI_EFORMAT);
}

static void
test_nomem(void)
{
    static file_t f;
    di_gguf_t    *g;
    int           n, rc;

    put_valid(&f);
    for (n = 0; n < 100; n++) {
        nomem_after(n);
        rc = di_gguf_open_memory(f.data, f.len, &g, NULL);
        if (!nomem_off())
            break;
        CHECK_EQ_INT(rc, DI_ENOMEM);
    }
    CHECK_EQ_INT(rc, DI_OK);
    CHECK(n >= 7 * NOMEM && n < 100);
    di_gguf_close(g);
}

int
main(void)
{
    test_valid();
    test_no_tensors();
    test_truncated();
    test_flipped();
    test_header();
    test_bad_keys();
    test_bad_alignment();
    test_bad_tensors();
    test_paths();
    test_nomem();
    return check_done("gguf");
}
