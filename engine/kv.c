/*
 * kv.c - pool of KV blocks and the prefix cache.
 *
 * One array holds a record per block; lists and hash chains are indexes into
 * it, so nothing is allocated after open.  A record is in one of two lists:
 * the free list (nobody knows its contents) or, published and without
 * references, the LRU list.  Live blocks are in neither.  Of the free list the
 * block given back last is handed out first: its memory was touched before,
 * where that of a block never used costs a page fault and the clearing of a
 * page (a fifth of a prefill's time on two threads was seen).
 *
 * Two indexes lead to a published block.  The hash table finds a whole block
 * by its key.  The children of a block, most recently found first, are
 * searched for one that begins with the tokens in hand: the state of its
 * leading tokens is as good as computed.  Only the first CHILDREN_SCAN
 * children are looked at: behind a system prompt there may hang thousands.
 *
 * A tail (a block with fewer than block_tokens computed tokens) is in
 * the tree, but has no key and no children.  It is dropped when a block that
 * begins with the same tokens is published, and is not taken in when there
 * is one already.
 *
 * SHA-256 uses libcrypto's plain functions: EVP allocates at each
 * initialisation and costs more than hashing the 80 bytes does.
 */

#define OPENSSL_SUPPRESS_DEPRECATED

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/sha.h>

#include "di_kv.h"

#define CHILDREN_SCAN   64
#define N_BLOCKS_MAX    0x7fffffffu

typedef struct {
    di_kv_key_t key;             /* whole published blocks                  */
    uint8_t     salt[DI_KV_SALT_BYTES]; /* published, parent 0              */
    uint32_t    refs;            /* sequences that hold it                  */
    uint32_t    n_tokens;        /* 0 = not published                       */
    uint32_t    mark;            /* the owner's; 0 when not published       */
    uint32_t    parent;          /* published: block before it, 0 = none    */
    uint32_t    child;           /* first of its children                   */
    uint32_t    sib_prev;        /* among the parent's children; 0 = first  */
    uint32_t    sib_next;
    uint32_t    hash_next;       /* whole published: chain of its bucket    */
    uint32_t    prev;            /* free or LRU list; 0 ends both ways      */
    uint32_t    next;
} block_t;

typedef struct {
    uint32_t head;               /* handed out next                         */
    uint32_t tail;
    uint32_t n;
} list_t;

struct di_kv_s {
    block_t  *blocks;            /* [n_blocks + 1]; 0 is the tree's root    */
    int32_t  *tokens;            /* [n_blocks + 1][block_tokens] published:
                                  * the first blocks[id].n_tokens           */
    uint32_t *buckets;           /* [mask + 1] first block, 0 = none        */
    uint32_t  mask;
    uint32_t  n_blocks;
    uint32_t  block_tokens;
    uint32_t  key_bits;
    list_t    free;              /* refs 0, not published                   */
    list_t    lru;               /* refs 0, published; oldest first         */
};


static int32_t *
tokens_of(const di_kv_t *kv, uint32_t id)
{
    return kv->tokens + (size_t) id * kv->block_tokens;
}


static void
list_append(di_kv_t *kv, list_t *list, uint32_t id)
{
    block_t *b = &kv->blocks[id];

    b->prev = list->tail;
    b->next = 0;
    if (list->tail != 0)
        kv->blocks[list->tail].next = id;
    else
        list->head = id;
    list->tail = id;
    list->n++;
}


static void
list_prepend(di_kv_t *kv, list_t *list, uint32_t id)
{
    block_t *b = &kv->blocks[id];

    b->prev = 0;
    b->next = list->head;
    if (list->head != 0)
        kv->blocks[list->head].prev = id;
    else
        list->tail = id;
    list->head = id;
    list->n++;
}

static void
list_remove(di_kv_t *kv, list_t *list, uint32_t id)
{
    block_t *b = &kv->blocks[id];

    if (b->prev != 0)
        kv->blocks[b->prev].next = b->next;
    else
        list->head = b->next;
    if (b->next != 0)
        kv->blocks[b->next].prev = b->prev;
    else
        list->tail = b->prev;
    b->prev = b->next = 0;
    list->n--;
}


/* Cut a key to the bits that count and choose its bucket.  The key is a
 * cryptographic hash: any of its bits will do. */
static uint32_t *
bucket_of(const di_kv_t *kv, const di_kv_key_t *key)
{
    uint32_t h;

    memcpy(&h, key->bytes, sizeof(h));
    if (kv->key_bits < 32)
        h &= (1u << kv->key_bits) - 1;
    return &kv->buckets[h & kv->mask];
}


static bool
key_equal(const di_kv_t *kv, const di_kv_key_t *a, const di_kv_key_t *b)
{
    uint32_t whole = kv->key_bits / 8, rest = kv->key_bits % 8;

    if (memcmp(a->bytes, b->bytes, whole) != 0)
        return false;
    return rest == 0
           || ((a->bytes[whole] ^ b->bytes[whole]) & ((1u << rest) - 1)) == 0;
}


/* Is block `id` a child of `parent` in this tenant's tree? */
static bool
has_parent(const di_kv_t *kv, uint32_t id, uint32_t parent,
           const uint8_t *salt)
{
    const block_t *b = &kv->blocks[id];

    return b->parent == parent
           && (parent != 0 || memcmp(b->salt, salt, sizeof(b->salt)) == 0);
}


static uint32_t
find_whole(const di_kv_t *kv, uint32_t parent, const uint8_t *salt,
           const di_kv_key_t *key, const int32_t *tokens)
{
    uint32_t       id;
    const block_t *b;

    for (id = *bucket_of(kv, key); id != 0; id = b->hash_next) {
        b = &kv->blocks[id];
        if (key_equal(kv, &b->key, key) && has_parent(kv, id, parent, salt)
            && memcmp(tokens_of(kv, id), tokens,
                      kv->block_tokens * sizeof(int32_t)) == 0)
            return id;
    }
    return 0;
}


static uint32_t
common_tokens(const int32_t *a, const int32_t *b, uint32_t n)
{
    uint32_t i;

    for (i = 0; i < n && a[i] == b[i]; i++) { /* count */ }
    return i;
}


/* The child of parent that shares most leading tokens. */
static uint32_t
find_tail(const di_kv_t *kv, uint32_t parent, const uint8_t *salt,
          const int32_t *tokens, uint32_t n_tokens, uint32_t *n_common)
{
    uint32_t       id, n, left = CHILDREN_SCAN, best = 0;
    const block_t *b;

    *n_common = 0;
    for (id = kv->blocks[parent].child; id != 0 && left > 0; left--) {
        b = &kv->blocks[id];
        n = b->n_tokens < n_tokens ? b->n_tokens : n_tokens;
        n = common_tokens(tokens_of(kv, id), tokens, n);
        if (n > *n_common && has_parent(kv, id, parent, salt)) {
            *n_common = n;
            best = id;
        }
        id = b->sib_next;
    }
    return best;
}


static void
sib_unlink(di_kv_t *kv, uint32_t id)
{
    block_t *b = &kv->blocks[id];

    if (b->sib_prev != 0)
        kv->blocks[b->sib_prev].sib_next = b->sib_next;
    else
        kv->blocks[b->parent].child = b->sib_next;
    if (b->sib_next != 0)
        kv->blocks[b->sib_next].sib_prev = b->sib_prev;
}


static void
sib_push(di_kv_t *kv, uint32_t id)
{
    block_t *b = &kv->blocks[id];

    b->sib_prev = 0;
    b->sib_next = kv->blocks[b->parent].child;
    if (b->sib_next != 0)
        kv->blocks[b->sib_next].sib_prev = id;
    kv->blocks[b->parent].child = id;
}


static void
hash_unlink(di_kv_t *kv, uint32_t id)
{
    uint32_t *link = bucket_of(kv, &kv->blocks[id].key);

    while (*link != id)
        link = &kv->blocks[*link].hash_next;
    *link = kv->blocks[id].hash_next;
}


/* Make the cache forget a block; its references and lists stay. */
static void
unpublish(di_kv_t *kv, uint32_t id)
{
    block_t *b = &kv->blocks[id];

    assert(b->n_tokens != 0 && b->child == 0);
    if (b->n_tokens == kv->block_tokens)
        hash_unlink(kv, id);
    sib_unlink(kv, id);
    b->n_tokens = 0;
    b->mark = 0;
    b->parent = 0;
}


int
di_kv_open(const di_kv_conf_t *conf, di_kv_t **out, di_err_t *err)
{
    di_kv_t  *kv;
    uint32_t  id;
    size_t    n_buckets = 1;

    if (conf->n_blocks == 0 || conf->n_blocks > N_BLOCKS_MAX)
        return di_err_set(err, DI_EINVAL, 0, "%u KV blocks: 1 to %u can be "
                          "managed", conf->n_blocks, N_BLOCKS_MAX);
    if (conf->block_tokens == 0
        || conf->block_tokens > DI_KV_BLOCK_TOKENS_MAX)
        return di_err_set(err, DI_EINVAL, 0, "KV blocks of %u tokens: 1 to "
                          "%u can be managed", conf->block_tokens,
                          DI_KV_BLOCK_TOKENS_MAX);
    if (conf->key_bits > 128)
        return di_err_set(err, DI_EINVAL, 0, "a key has 128 bits");

    while (n_buckets < (size_t) conf->n_blocks * 2 && n_buckets < 1u << 31)
        n_buckets *= 2;

    kv = calloc(1, sizeof(*kv));
    if (kv == NULL)
        goto nomem;
    kv->blocks = calloc((size_t) conf->n_blocks + 1, sizeof(block_t));
    kv->tokens = calloc(((size_t) conf->n_blocks + 1) * conf->block_tokens,
                        sizeof(int32_t));
    kv->buckets = calloc(n_buckets, sizeof(uint32_t));
    if (kv->blocks == NULL || kv->tokens == NULL || kv->buckets == NULL)
        goto nomem;

    kv->mask = (uint32_t) (n_buckets - 1);
    kv->n_blocks = conf->n_blocks;
    kv->block_tokens = conf->block_tokens;
    kv->key_bits = conf->key_bits != 0 ? conf->key_bits : 128;
    for (id = 1; id <= kv->n_blocks; id++)
        list_append(kv, &kv->free, id);
    *out = kv;
    return DI_OK;

nomem:
    di_kv_close(kv);
    return di_err_set(err, DI_ENOMEM, 0, "no memory for the records of %u KV "
                      "blocks", conf->n_blocks);
}


void
di_kv_close(di_kv_t *kv)
{
    if (kv == NULL)
        return;
    free(kv->buckets);
    free(kv->tokens);
    free(kv->blocks);
    free(kv);
}


uint32_t
di_kv_alloc(di_kv_t *kv)
{
    uint32_t id = kv->free.head;

    if (id != 0) {
        list_remove(kv, &kv->free, id);
    } else {
        id = kv->lru.head;
        if (id == 0)
            return 0;
        list_remove(kv, &kv->lru, id);
        unpublish(kv, id);
    }
    kv->blocks[id].refs = 1;
    return id;
}


void
di_kv_ref(di_kv_t *kv, uint32_t id)
{
    block_t *b = &kv->blocks[id];

    assert(id != 0 && id <= kv->n_blocks);
    if (b->refs == 0) {
        assert(b->n_tokens != 0);
        list_remove(kv, &kv->lru, id);
    }
    b->refs++;
}


void
di_kv_unref(di_kv_t *kv, uint32_t id)
{
    block_t *b = &kv->blocks[id];

    assert(id != 0 && id <= kv->n_blocks && b->refs != 0);
    if (--b->refs != 0)
        return;
    if (b->n_tokens != 0)
        list_append(kv, &kv->lru, id);
    else
        list_prepend(kv, &kv->free, id);
}


void
di_kv_key_root(const uint8_t *salt, di_kv_key_t *key)
{
    uint8_t    digest[SHA256_DIGEST_LENGTH];
    SHA256_CTX sha;

    SHA256_Init(&sha);
    SHA256_Update(&sha, salt, DI_KV_SALT_BYTES);
    SHA256_Final(digest, &sha);
    memcpy(key->bytes, digest, sizeof(key->bytes));
}


void
di_kv_key_next(const di_kv_key_t *parent, const int32_t *tokens,
               uint32_t n_tokens, di_kv_key_t *key)
{
    uint8_t    digest[SHA256_DIGEST_LENGTH];
    SHA256_CTX sha;

    SHA256_Init(&sha);
    SHA256_Update(&sha, parent->bytes, sizeof(parent->bytes));
    SHA256_Update(&sha, tokens, n_tokens * sizeof(int32_t));
    SHA256_Final(digest, &sha);
    memcpy(key->bytes, digest, sizeof(key->bytes));
}


void
di_kv_match(di_kv_t *kv, const uint8_t *salt, const int32_t *tokens,
            uint32_t n_tokens, const di_kv_key_t *keys, uint32_t *blocks,
            di_kv_match_t *match)
{
    const uint32_t bt = kv->block_tokens;
    uint32_t       id, parent = 0, n = 0, left;

    for (left = n_tokens; left >= bt; left -= bt) {
        id = find_whole(kv, parent, salt, &keys[n], tokens + n * bt);
        if (id == 0)
            break;
        di_kv_ref(kv, id);
        sib_unlink(kv, id);
        sib_push(kv, id);
        blocks[n++] = id;
        parent = id;
    }

    match->n_blocks = n;
    match->tail_block = find_tail(kv, parent, salt, tokens + n * bt,
                                  left < bt ? left : bt - 1,
                                  &match->tail_tokens);
    if (match->tail_block != 0)
        di_kv_ref(kv, match->tail_block);
}


static void
link_block(di_kv_t *kv, uint32_t id, uint32_t parent, const uint8_t *salt,
           const int32_t *tokens, uint32_t n_tokens)
{
    block_t *b = &kv->blocks[id];

    assert(b->refs != 0 && b->n_tokens == 0);
    assert(parent == 0 || (kv->blocks[parent].n_tokens == kv->block_tokens
                           && kv->blocks[parent].refs != 0));
    memcpy(tokens_of(kv, id), tokens, n_tokens * sizeof(int32_t));
    memcpy(b->salt, salt, sizeof(b->salt));
    b->n_tokens = n_tokens;
    b->parent = parent;
    b->child = 0;
    sib_push(kv, id);
}


/* Drop tails of which `id` has all the tokens. */
static void
drop_covered_tails(di_kv_t *kv, uint32_t id)
{
    block_t  *b = &kv->blocks[id], *s;
    uint32_t  sib, next, left = CHILDREN_SCAN;

    for (sib = b->sib_next; sib != 0 && left > 0; sib = next, left--) {
        s = &kv->blocks[sib];
        next = s->sib_next;
        if (s->refs == 0 && s->n_tokens < kv->block_tokens
            && s->n_tokens <= b->n_tokens
            && has_parent(kv, sib, b->parent, b->salt)
            && common_tokens(tokens_of(kv, sib), tokens_of(kv, id),
                             s->n_tokens) == s->n_tokens)
        {
            list_remove(kv, &kv->lru, sib);
            unpublish(kv, sib);
            list_prepend(kv, &kv->free, sib);
        }
    }
}


uint32_t
di_kv_publish(di_kv_t *kv, uint32_t id, uint32_t parent, const uint8_t *salt,
              const di_kv_key_t *key, const int32_t *tokens)
{
    uint32_t *bucket, same;

    same = find_whole(kv, parent, salt, key, tokens);
    if (same == id)
        return id;
    if (same != 0) {
        di_kv_ref(kv, same);
        di_kv_unref(kv, id);
        return same;
    }

    link_block(kv, id, parent, salt, tokens, kv->block_tokens);
    kv->blocks[id].key = *key;
    bucket = bucket_of(kv, key);
    kv->blocks[id].hash_next = *bucket;
    *bucket = id;
    drop_covered_tails(kv, id);
    return id;
}


void
di_kv_publish_tail(di_kv_t *kv, uint32_t id, uint32_t parent,
                   const uint8_t *salt, const int32_t *tokens,
                   uint32_t n_tokens)
{
    uint32_t n_common;

    assert(n_tokens > 0 && n_tokens < kv->block_tokens);
    (void) find_tail(kv, parent, salt, tokens, n_tokens, &n_common);
    if (n_common == n_tokens)
        return;
    link_block(kv, id, parent, salt, tokens, n_tokens);
    drop_covered_tails(kv, id);
}


void
di_kv_gauges(const di_kv_t *kv, di_kv_gauges_t *gauges)
{
    gauges->total = kv->n_blocks;
    gauges->cached = kv->lru.n;
    gauges->free = kv->free.n;
    gauges->live = kv->n_blocks - kv->lru.n - kv->free.n;
}


uint32_t
di_kv_mark(const di_kv_t *kv, uint32_t id)
{
    return kv->blocks[id].mark;
}


void
di_kv_set_mark(di_kv_t *kv, uint32_t id, uint32_t mark)
{
    assert(kv->blocks[id].n_tokens != 0);
    kv->blocks[id].mark = mark;
}


uint32_t
di_kv_refs(const di_kv_t *kv, uint32_t id)
{
    return kv->blocks[id].refs;
}


uint32_t
di_kv_available(const di_kv_t *kv)
{
    return kv->free.n + kv->lru.n;
}


/* A condition of di_kv_check(): on in release, unlike assert(). */
static void
must(bool truth)
{
    if (!truth)
        abort();
}


static void
check_list(const di_kv_t *kv, const list_t *list, bool published)
{
    uint32_t id, prev = 0, n = 0;

    for (id = list->head; id != 0; id = kv->blocks[id].next) {
        must(kv->blocks[id].prev == prev);
        must(kv->blocks[id].refs == 0);
        must((kv->blocks[id].n_tokens != 0) == published);
        must(++n <= list->n);
        prev = id;
    }
    must(list->tail == prev);
    must(list->n == n);
}


static void
check_block(const di_kv_t *kv, uint32_t id)
{
    const block_t *b = &kv->blocks[id], *p = &kv->blocks[b->parent];
    uint32_t       at, prev = 0;

    if (b->n_tokens == 0) {
        must(b->child == 0 && b->parent == 0 && b->mark == 0);
        return;
    }
    must(b->n_tokens <= kv->block_tokens);
    if (b->parent != 0) {
        must(p->n_tokens == kv->block_tokens);
        must(b->refs == 0 || p->refs != 0);
    }

    for (at = p->child; at != 0 && at != id; at = kv->blocks[at].sib_next)
        prev = at;
    must(at == id && b->sib_prev == prev);

    if (b->n_tokens < kv->block_tokens) {
        must(b->child == 0);
        return;
    }
    must(find_whole(kv, b->parent, b->salt, &b->key, tokens_of(kv, id))
         == id);
}


void
di_kv_check(const di_kv_t *kv)
{
    uint32_t id, at, n_hashed = 0, n_whole = 0, n_refs = 0;
    size_t   i;

    check_list(kv, &kv->free, false);
    check_list(kv, &kv->lru, true);
    for (id = 1; id <= kv->n_blocks; id++) {
        check_block(kv, id);
        n_whole += kv->blocks[id].n_tokens == kv->block_tokens;
        n_refs += kv->blocks[id].refs != 0;
    }
    must(n_refs + kv->free.n + kv->lru.n == kv->n_blocks);

    for (i = 0; i <= kv->mask; i++) {
        for (at = kv->buckets[i]; at != 0; at = kv->blocks[at].hash_next)
            must(++n_hashed <= n_whole);
    }
    must(n_hashed == n_whole);

    /* Children are released before their parents, so the block to be evicted
     * next has none. */
    must(kv->lru.head == 0 || kv->blocks[kv->lru.head].child == 0);
}
