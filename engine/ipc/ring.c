/*
 * ring.c - the shared memory itself, and the slow paths of its rings.
 *
 * The fast paths are inline in ipc_shm.h.  Here are the read of the peer's
 * position with its check, and the making and mapping of the memfd.
 * F_SEAL_SHRINK is what lets both sides touch the mapping without fear of
 * SIGBUS; F_SEAL_SEAL keeps a peer from adding seals of its own.
 */

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc_shm.h"

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

int
di_ring_tx_refresh(di_ring_tx_t *tx)
{
    /* Acquire: pairs with di_ring_release(), after the peer's reads of the
     * slots that we are about to fill. */
    uint32_t head = atomic_load_explicit(tx->head, memory_order_acquire);

    if (head - tx->freed > tx->published - tx->freed)
        return DI_EPROTO;

    tx->freed = head;
    return DI_OK;
}

static const di_shm_layout_t layout = {
    .magic = DI_SHM_MAGIC,
    .version = DI_IPC_VERSION,
    .bytes = DI_SHM_BYTES,
    .sub_off = DI_SHM_SUB_OFF,
    .sub_slots = DI_IPC_SUB_SLOTS,
    .comp_off = DI_SHM_COMP_OFF,
    .comp_slots = DI_IPC_COMP_SLOTS,
    .status_off = DI_SHM_STATUS_OFF,
    .arena_off = DI_SHM_ARENA_OFF,
    .arena_bytes = DI_IPC_ARENA_BYTES,
};

static int
map(di_shm_t *shm, int fd, di_err_t *err)
{
    unsigned char *base;

    base = mmap(NULL, DI_SHM_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED)
        return di_err_set(err, DI_ENOMEM, 0, "mmap of the channel: %s",
                          strerror(errno));

    shm->head = (di_shm_head_t *) base;
    shm->sub = (di_shm_sub_t *) (base + DI_SHM_SUB_OFF);
    shm->comp = (di_shm_comp_t *) (base + DI_SHM_COMP_OFF);
    shm->status = (di_shm_status_t *) (base + DI_SHM_STATUS_OFF);
    shm->arena = base + DI_SHM_ARENA_OFF;
    return DI_OK;
}

int
di_shm_create(di_shm_t *shm, int *fd, di_err_t *err)
{
    int rc, memfd;

    memfd = memfd_create("deepinfer-channel", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (memfd < 0)
        return di_err_set(err, DI_EIO, 0, "memfd_create: %s", strerror(errno));

    if (ftruncate(memfd, (off_t) DI_SHM_BYTES) < 0
        || fcntl(memfd, F_ADD_SEALS, SEALS) < 0)
    {
        rc = di_err_set(err, DI_EIO, 0, "memfd size and seals: %s",
                        strerror(errno));
        goto failed;
    }

    rc = map(shm, memfd, err);
    if (rc != DI_OK)
        goto failed;

    shm->head->layout = layout;
    *fd = memfd;
    return DI_OK;

failed:
    (void) close(memfd);
    return rc;
}

int
di_shm_map(di_shm_t *shm, int fd, di_err_t *err)
{
    int             rc, seals;
    struct stat     st;
    di_shm_layout_t told;

    if (fstat(fd, &st) < 0)
        return di_err_set(err, DI_EIO, 0, "fstat of the channel: %s",
                          strerror(errno));

    seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & SEALS) != SEALS
        || st.st_size != (off_t) DI_SHM_BYTES)
    {
        return di_err_set(err, DI_EPROTO, 0,
                          "the engine's channel memory is not a sealed memfd "
                          "of %llu bytes", (unsigned long long) DI_SHM_BYTES);
    }

    rc = map(shm, fd, err);
    if (rc != DI_OK)
        return rc;

    di_shm_copy(&told, &shm->head->layout, sizeof(told));
    if (memcmp(&told, &layout, sizeof(layout)) != 0) {
        di_shm_unmap(shm);
        return di_err_set(err, DI_EPROTO, 0,
                          "the engine's channel has another layout");
    }

    return DI_OK;
}

void
di_shm_unmap(di_shm_t *shm)
{
    if (shm->head != NULL)
        (void) munmap(shm->head, DI_SHM_BYTES);
    *shm = (di_shm_t) { 0 };
}
