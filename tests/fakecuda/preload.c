/* The interposer: makes the double's descriptors look like what they stand for, to everything that asks through the
 * C library. A dma-buf then reads, measures, maps and answers ioctls as one; a CUDA shareable handle looks like an
 * open /dev/nvidiactl. All other descriptors go straight to the kernel. */
#define _GNU_SOURCE
#include "config.h"
#include "handle_fd.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/dma-buf.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
#define CONTROL_DEVICE "/dev/nvidiactl"

enum { PREFIX = sizeof HANDLE_LINK_PREFIX - 1 };
enum { ERRNO_NOT_SUPPORTED = 524 }; /* the kernel's ENOTSUPP, which no header of the C library has */

static int fail(int error) {
    errno = error;
    return -1;
}

/* ---- /proc/PID/fd/N and /proc/PID/fdinfo/N ---- */

/* Each export is a file of its own: the record's place tells it from other exports of the same memory. */
static ino_t inode_of(ino_t memory, int64_t position) { return memory + ((ino_t)position << 20); }

/* The record behind a link of /proc, found through the position that the kernel reports for the descriptor. */
static bool record_of_link(const char *path, struct handle_record *record, int64_t *position) {
    char info[128], text[64];
    const char *fd = strstr(path, "/fd/");
    if (!strncmp(path, "/dev/fd/", 8)) snprintf(info, sizeof info, "/proc/self/fdinfo/%s", path + 8);
    else if (!strncmp(path, "/proc/", 6) && fd)
        snprintf(info, sizeof info, "%.*s/fdinfo/%s", (int)(fd - path), path, fd + 4);
    else return false;
    int file = (int)syscall(SYS_openat, AT_FDCWD, info, O_RDONLY | O_CLOEXEC);
    if (file < 0) return false;
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    if (length <= 0) return false;
    text[length] = 0;
    *position = strtoll(text + strcspn(text, "0123456789"), NULL, 10);
    return handle_read_at(path, *position, record);
}

/* What a link should read instead, given what it reads; false where it is none of ours. */
static bool disguise(int directory, const char *path, const char *target, ssize_t length, char *shown, size_t room) {
    if (length < (ssize_t)PREFIX || memcmp(target, HANDLE_LINK_PREFIX, PREFIX)) return false;
    char full[256], parent[160];
    if (path[0] != '/' && directory != AT_FDCWD) { /* relative to an open /proc/PID/fd */
        snprintf(full, sizeof full, "/proc/self/fd/%d", directory);
        ssize_t n = raw_readlink(AT_FDCWD, full, parent, sizeof parent - 1);
        if (n < 0) return false;
        parent[n] = 0;
        snprintf(full, sizeof full, "%s/%s", parent, path);
        path = full;
    }
    struct handle_record record;
    int64_t position;
    if (record_of_link(path, &record, &position) && record.kind == HANDLE_DMABUF)
        snprintf(shown, room, "/dmabuf:%s", record.name);
    else snprintf(shown, room, CONTROL_DEVICE); /* the driver's own descriptors too */
    return true;
}

API ssize_t readlinkat(int directory, const char *restrict path, char *restrict target, size_t size) {
    char shown[64];
    ssize_t length = raw_readlink(directory, path, target, size);
    if (!disguise(directory, path, target, length, shown, sizeof shown)) return length;
    size_t wanted = strlen(shown);
    memcpy(target, shown, wanted < size ? wanted : size);
    return (ssize_t)(wanted < size ? wanted : size);
}

API ssize_t readlink(const char *restrict path, char *restrict target, size_t size) {
    return readlinkat(AT_FDCWD, path, target, size);
}

/* A file with the text that the kernel shows for a dma-buf; -1 where the path leads to none of ours. */
static int open_fdinfo(const char *path) {
    const char *part = strncmp(path, "/proc/", 6) ? NULL : strstr(path, "/fdinfo/");
    if (!part) return -1;
    char link[128], target[64];
    struct handle_record record;
    struct stat memory;
    int64_t position;
    snprintf(link, sizeof link, "%.*s/fd/%s", (int)(part - path), path, part + strlen("/fdinfo/"));
    ssize_t length = raw_readlink(AT_FDCWD, link, target, sizeof target);
    if (length < (ssize_t)PREFIX || memcmp(target, HANDLE_LINK_PREFIX, PREFIX)) return -1;
    if (!record_of_link(link, &record, &position) || stat(link, &memory)) return -1;
    int info = memfd_create("fdinfo", MFD_CLOEXEC);
    if (info < 0) return -1;
    dprintf(info, "pos:\t0\nflags:\t02000002\nmnt_id:\t14\nino:\t%llu\n",
            (unsigned long long)inode_of(memory.st_ino, position));
    if (record.kind == HANDLE_DMABUF) {
        dprintf(info, "size:\t%llu\ncount:\t1\nexp_name:\tfake_nv_dmabuf\n", (unsigned long long)record.size);
        if (record.name[0]) dprintf(info, "name:\t%s\n", record.name);
    }
    syscall(SYS_lseek, info, 0, SEEK_SET);
    return info;
}

static int open_any(int directory, const char *path, int flags, va_list rest) {
    mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, mode_t) : 0;
    int info = open_fdinfo(path);
    return info >= 0 ? info : (int)syscall(SYS_openat, directory, path, flags, mode);
}

#define OPEN_BODY(directory)                                \
    {                                                       \
        va_list rest;                                       \
        va_start(rest, flags);                              \
        int fd = open_any((directory), path, flags, rest);  \
        va_end(rest);                                       \
        return fd;                                          \
    }

API int open(const char *path, int flags, ...) OPEN_BODY(AT_FDCWD)
API int open64(const char *path, int flags, ...) OPEN_BODY(AT_FDCWD)
API int openat(int directory, const char *path, int flags, ...) OPEN_BODY(directory)
API int openat64(int directory, const char *path, int flags, ...) OPEN_BODY(directory)

/* What programs call that were compiled with the C library's checks: an open that creates nothing. */
API int __open_2(const char *path, int flags) { return open(path, flags); }
API int __open64_2(const char *path, int flags) { return open(path, flags); }

/* ---- what is done with the descriptor ---- */

/* A dma-buf tells its size, and can be rewound; a character device has neither size nor position. */
API off_t lseek(int fd, off_t offset, int whence) {
    struct handle_record record;
    if (!handle_read(fd, &record)) return syscall(SYS_lseek, fd, offset, whence);
    if (record.kind == HANDLE_POSIX_FD) return 0;
    if (offset || (whence != SEEK_SET && whence != SEEK_END)) return fail(EINVAL);
    return whence == SEEK_END ? (off_t)record.size : 0;
}

API off64_t lseek64(int fd, off64_t offset, int whence) { return lseek(fd, offset, whence); }

API int fstat(int fd, struct stat *status) {
    struct handle_record record;
    if (syscall(SYS_fstat, fd, status)) return -1;
    if (!handle_read(fd, &record)) return 0;
    if (record.kind == HANDLE_DMABUF) {
        status->st_ino = inode_of(status->st_ino, syscall(SYS_lseek, fd, 0, SEEK_CUR));
        status->st_mode = S_IRUSR | S_IWUSR;
        status->st_size = (off_t)record.size;
    } else {
        status->st_mode = S_IFCHR | 0666;
        status->st_rdev = makedev(195, 255);
        status->st_size = 0;
    }
    return 0;
}

API int fstat64(int fd, struct stat64 *status) { return fstat(fd, (struct stat *)(void *)status); }

API void *mmap(void *address, size_t length, int protection, int flags, int fd, off_t offset) {
    struct handle_record record;
    if (flags & MAP_ANONYMOUS || !handle_read(fd, &record))
        return raw_mmap(address, length, protection, flags, fd, offset);
    bool dmabuf = record.kind == HANDLE_DMABUF;
    const char *allowed = option(record.pinned ? "MMAP_PINNED" : "MMAP_DEVICE", -1);
    int error = allowed ? atoi(allowed) : record.pinned ? 0 : ERRNO_NOT_SUPPORTED;
    if (!dmabuf) error = EINVAL;
    if (!error && (flags & MAP_TYPE) == MAP_PRIVATE) error = EINVAL;
    if (!error && (offset < 0 || length > record.size || (uint64_t)offset > record.size - length)) error = EINVAL;
    if (!error) return raw_mmap(address, length, protection, flags, fd, (int64_t)record.start + offset);
    errno = error;
    return MAP_FAILED;
}

API void *mmap64(void *address, size_t length, int protection, int flags, int fd, off64_t offset) {
    return mmap(address, length, protection, flags, fd, offset);
}

static int set_name(int fd, struct handle_record *record, const char *name) {
    if (strnlen(name, sizeof record->name) == sizeof record->name) return fail(EINVAL);
    memset(record->name, 0, sizeof record->name);
    strcpy(record->name, name);
    handle_update(fd, record);
    return 0;
}

static int dmabuf_ioctl(int fd, struct handle_record *record, unsigned long request, void *argument) {
    switch ((unsigned)request) {
        case DMA_BUF_IOCTL_SYNC: {
            uint64_t flags = ((struct dma_buf_sync *)argument)->flags;
            return flags & ~(uint64_t)DMA_BUF_SYNC_VALID_FLAGS_MASK || !(flags & DMA_BUF_SYNC_RW) ? fail(EINVAL) : 0;
        }
        case (unsigned)DMA_BUF_SET_NAME_A:
        case (unsigned)DMA_BUF_SET_NAME_B: return set_name(fd, record, argument);
#ifdef DMA_BUF_IOCTL_EXPORT_SYNC_FILE
        case DMA_BUF_IOCTL_EXPORT_SYNC_FILE: { /* a fence that has already signalled polls as readable */
            struct dma_buf_export_sync_file *file = argument;
            if (file->flags & ~DMA_BUF_SYNC_RW || !(file->flags & DMA_BUF_SYNC_RW)) return fail(EINVAL);
            file->fd = eventfd(1, EFD_CLOEXEC);
            return file->fd < 0 ? -1 : 0;
        }
        case DMA_BUF_IOCTL_IMPORT_SYNC_FILE:
            return fcntl(((struct dma_buf_import_sync_file *)argument)->fd, F_GETFD) < 0 ? fail(EINVAL) : 0;
#endif
        default: return fail(ENOTTY);
    }
}

API int ioctl(int fd, unsigned long request, ...) {
    va_list rest;
    va_start(rest, request);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    struct handle_record record;
    if (!handle_read(fd, &record)) return (int)syscall(SYS_ioctl, fd, request, argument);
    return record.kind == HANDLE_DMABUF ? dmabuf_ioctl(fd, &record, request, argument) : fail(EINVAL);
}

/* Only a memfd has seals. */
API int fcntl64(int fd, int command, ...) {
    va_list rest;
    va_start(rest, command);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    struct handle_record record;
    bool seals = command == F_GET_SEALS || command == F_ADD_SEALS;
    if (seals && handle_read(fd, &record)) return fail(EINVAL);
    return (int)syscall(SYS_fcntl, fd, command, argument);
}

API int fcntl(int fd, int command, ...) {
    va_list rest;
    va_start(rest, command);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    return fcntl64(fd, command, argument);
}

#define REFUSE(type, name, parameters, ...)                              \
    API type name parameters {                                           \
        struct handle_record record;                                     \
        if (handle_read(fd, &record)) return fail(EINVAL);               \
        return (type)syscall(__VA_ARGS__);                               \
    }

/* A dma-buf is not read, written or cut. */
REFUSE(ssize_t, read, (int fd, void *data, size_t size), SYS_read, fd, data, size)
REFUSE(ssize_t, write, (int fd, const void *data, size_t size), SYS_write, fd, data, size)
REFUSE(int, ftruncate, (int fd, off_t size), SYS_ftruncate, fd, size)
REFUSE(int, ftruncate64, (int fd, off64_t size), SYS_ftruncate, fd, size)
