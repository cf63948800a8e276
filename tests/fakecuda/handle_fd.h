/* The file descriptors that the double hands out, as both of its libraries see them.
 *
 * All memory is memfds whose name begins with `fakecuda`. Behind the data of each, one record per export says what
 * that export stands for, and the file position of the exported descriptor points at its record: the position
 * belongs to the open file, so it travels with dup, fork and SCM_RIGHTS, and one memory can be exported in several
 * ways at once. The interposer sees to it that nothing moves the position. */
#ifndef FAKECUDA_HANDLE_FD_H
#define FAKECUDA_HANDLE_FD_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define HANDLE_MEMFD_NAME "fakecuda"
#define HANDLE_LINK_PREFIX "/memfd:" HANDLE_MEMFD_NAME

enum handle_kind { HANDLE_DMABUF = 1, HANDLE_POSIX_FD = 2 };

struct handle_record {
    char magic[8];
    uint32_t kind;
    int32_t location_type;     /* where the memory is: a CUmemLocation, the id of a device being unknown elsewhere */
    int32_t location_id;
    int32_t pinned;            /* from cuMemAllocHost */
    int32_t exporter_pid;
    int32_t handle_types;      /* those that the memory was created for */
    uint64_t start, size;      /* the part of the memfd that is shared */
    unsigned char device[16];  /* UUID of the device that the memory is on, or was allocated for */
    char name[32];             /* DMA_BUF_SET_NAME */
};

/* False where the descriptor is none of ours, or is the driver's own and stands for no export. */
bool handle_read(int fd, struct handle_record *record);

/* The same for a dma-buf of the kernel's own, of udmabuf or a heap: host memory of the whole size. */
bool handle_read_kernel(int fd, struct handle_record *record);

/* A new descriptor, close-on-exec, of the memfd `memory` that stands for the record; -1 and errno. */
int handle_export(int memory, const struct handle_record *record);

/* Overwrites the record that the descriptor stands for. */
void handle_update(int fd, const struct handle_record *record);

/* A second descriptor of the memfd behind any of our descriptors, with a position of its own; of a kernel's dma-buf,
 * which has none, a duplicate. */
int handle_reopen(int fd);

/* Reads the record at a position of the memfd that `path` (of /proc) leads to. */
bool handle_read_at(const char *path, int64_t position, struct handle_record *record);

/* Where a link of /proc leads, past the interposer; the length or -1. */
ssize_t raw_readlink(int directory, const char *path, char *target, size_t size);

void *raw_mmap(void *address, size_t length, int protection, int flags, int fd, int64_t offset);

#endif
