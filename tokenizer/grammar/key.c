/*
 * key.c - a name for what a text compiles to.
 */

#include <openssl/evp.h>

#include "blob.h"
#include "di_grammar.h"

int
di_gram_key(di_gram_kind_t kind, const char *text, size_t len,
            const di_gram_opts_t *opts, uint8_t key[DI_GRAM_KEY_BYTES])
{
    const uint64_t head[] = {
        DI_GRAM_VERSION, (uint64_t) kind, opts->any_order, opts->flexible,
        opts->best_effort,
        opts->limits.memory_bytes, opts->limits.blob_bytes, opts->limits.work,
    };
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    int         ok = md != NULL && EVP_DigestInit_ex(md, EVP_sha256(), NULL)
                     && EVP_DigestUpdate(md, head, sizeof(head))
                     && EVP_DigestUpdate(md, text, len)
                     && EVP_DigestFinal_ex(md, key, NULL);

    EVP_MD_CTX_free(md);
    return ok ? DI_OK : DI_ENOMEM;
}
