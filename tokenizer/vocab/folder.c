/*
 * folder.c - the fingerprint of a folder with weights.
 *
 * The worker that is told of a model and the engine that runs it each take it
 * from what they see themselves, so it must not depend on more than the
 * files' contents.  Positions are read, not mapped: a fault would bring in
 * the pages around each sample, too, and a file that shrinks meanwhile would
 * be a signal.
 */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <openssl/evp.h>

#include "di_folder.h"

#define FOLDER_SAMPLES  64       /* of a file's tensors                     */
#define FOLDER_SAMPLE   64       /* bytes of each                           */
#define FOLDER_PIECE    65536    /* bytes read at once                      */
#define FOLDER_SUFFIX   ".safetensors"

typedef struct {
    const char *name;            /* as it was given, for errors             */
    int         fd;
    EVP_MD_CTX *md;
    uint8_t    *piece;           /* [FOLDER_PIECE]                          */
    di_err_t   *err;
} folder_t;

static int
folder_no_memory(const folder_t *f)
{
    return di_err_set(f->err, DI_ENOMEM, 0, "out of memory");
}

static int
folder_io(const folder_t *f, const char *name)
{
    return di_err_set(f->err, DI_EIO, 0, "%.80s: %s", name, strerror(errno));
}

static int
hash(const folder_t *f, const void *data, size_t len)
{
    return EVP_DigestUpdate(f->md, data, len) ? DI_OK : folder_no_memory(f);
}

/* Hash `len` bytes of a file from `at` on; a file that ends before is none. */
static int
hash_range(const folder_t *f, int fd, const char *name, uint64_t at,
           uint64_t len)
{
    int rc = DI_OK;

    while (rc == DI_OK && len > 0) {
        size_t  want = len < FOLDER_PIECE ? (size_t) len : FOLDER_PIECE;
        ssize_t n = pread(fd, f->piece, want, (off_t) at);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return folder_io(f, name);
        if (n == 0)
            return di_err_set(f->err, DI_EFORMAT, (size_t) at, "%.80s: the "
                              "file became shorter", name);
        rc = hash(f, f->piece, (size_t) n);
        at += (uint64_t) n;
        len -= (uint64_t) n;
    }
    return rc;
}

/* A regular file of the folder, or -1 with an error set. */
static int
folder_open(const folder_t *f, const char *name, uint64_t *size)
{
    struct stat st;
    /* A pipe in the place of a file must not hang us. */
    int         fd = openat(f->fd, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    if (fd < 0 || fstat(fd, &st) != 0) {
        (void) folder_io(f, name);
    } else if (!S_ISREG(st.st_mode)) {
        (void) di_err_set(f->err, DI_EIO, 0, "%.80s: not a regular file",
                          name);
    } else {
        *size = (uint64_t) st.st_size;
        return fd;
    }
    if (fd >= 0)
        (void) close(fd);
    return -1;
}

/* A file's name and size, so that no byte of one can stand for another's. */
static int
hash_label(const folder_t *f, const char *name, uint64_t size)
{
    int rc = hash(f, name, strlen(name) + 1);

    return rc == DI_OK ? hash(f, &size, sizeof(size)) : rc;
}

static int
hash_whole(const folder_t *f, const char *name)
{
    uint64_t size;
    int      rc, fd;

    if (faccessat(f->fd, name, F_OK, 0) != 0 && errno == ENOENT)
        return DI_OK;
    fd = folder_open(f, name, &size);
    if (fd < 0)
        return DI_EIO;
    rc = hash_label(f, name, size);
    if (rc == DI_OK)
        rc = hash_range(f, fd, name, 0, size);
    (void) close(fd);
    return rc;
}

/* The middle of each of FOLDER_SAMPLES equal parts, or all of a few bytes. */
static int
hash_samples(const folder_t *f, int fd, const char *name, uint64_t at,
             uint64_t len)
{
    uint64_t part = len / FOLDER_SAMPLES;
    int      rc = DI_OK;

    if (part < FOLDER_SAMPLE)
        return hash_range(f, fd, name, at, len);
    for (uint64_t i = 0; rc == DI_OK && i < FOLDER_SAMPLES; i++)
        rc = hash_range(f, fd, name,
                        at + i * part + (part - FOLDER_SAMPLE) / 2,
                        FOLDER_SAMPLE);
    return rc;
}

/* The file begins with its header's length, 8 bytes, lowest first. */
static int
header_bytes(const folder_t *f, int fd, const char *name, uint64_t size,
             uint64_t *bytes)
{
    uint8_t  le[8];
    uint64_t n = 0;

    if (pread(fd, le, sizeof(le), 0) != (ssize_t) sizeof(le))
        return di_err_set(f->err, DI_EFORMAT, 0, "%.80s: no header", name);
    for (size_t i = 0; i < sizeof(le); i++)
        n |= (uint64_t) le[i] << (8 * i);
    if (n > size - sizeof(le))
        return di_err_set(f->err, DI_EFORMAT, 0, "%.80s: the header is longer "
                          "than the file", name);
    *bytes = n + sizeof(le);
    return DI_OK;
}

static int
hash_weights(const folder_t *f, const char *name)
{
    uint64_t size, head = 0;
    int      rc, fd = folder_open(f, name, &size);

    if (fd < 0)
        return DI_EIO;
    (void) posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
    rc = header_bytes(f, fd, name, size, &head);
    if (rc == DI_OK)
        rc = hash_label(f, name, size);
    if (rc == DI_OK)
        rc = hash_range(f, fd, name, 0, head);
    if (rc == DI_OK)
        rc = hash_samples(f, fd, name, head, size - head);
    (void) close(fd);
    return rc;
}

static int
is_weights(const struct dirent *e)
{
    size_t len = strlen(e->d_name), n = sizeof(FOLDER_SUFFIX) - 1;

    return len > n && memcmp(e->d_name + len - n, FOLDER_SUFFIX, n) == 0;
}

/* The order of bytes, whatever the locale's is. */
static int
by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int
hash_folder(const folder_t *f)
{
    struct dirent **files;
    int             n = scandirat(f->fd, ".", &files, is_weights, by_name);
    int             rc;

    if (n < 0)
        return folder_io(f, f->name);
    rc = n > 0 ? hash_whole(f, "config.json")
         : di_err_set(f->err, DI_EUNSUPPORTED, 0, "%.80s: no *%s", f->name,
                      FOLDER_SUFFIX);
    if (rc == DI_OK)
        rc = hash_whole(f, "tokenizer.json");
    for (int i = 0; i < n; i++) {
        if (rc == DI_OK)
            rc = hash_weights(f, files[i]->d_name);
        free(files[i]);
    }
    free(files);
    return rc;
}

int
di_folder_fingerprint(const char *folder, uint8_t out[16], di_err_t *err)
{
    uint8_t  digest[EVP_MAX_MD_SIZE];
    folder_t f = { .name = folder, .err = err, .md = EVP_MD_CTX_new(),
                   .piece = malloc(FOLDER_PIECE) };
    int      rc = DI_OK;

    f.fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (f.fd < 0)
        rc = folder_io(&f, folder);
    else if (f.md == NULL || f.piece == NULL
             || !EVP_DigestInit_ex(f.md, EVP_sha256(), NULL))
        rc = folder_no_memory(&f);

    if (rc == DI_OK)
        rc = hash_folder(&f);
    if (rc == DI_OK && !EVP_DigestFinal_ex(f.md, digest, NULL))
        rc = folder_no_memory(&f);
    if (rc == DI_OK)
        memcpy(out, digest, 16);

    EVP_MD_CTX_free(f.md);
    free(f.piece);
    if (f.fd >= 0)
        (void) close(f.fd);
    return rc;
}
