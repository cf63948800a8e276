/* System calls are made directly: the C library's functions are interposed, and would answer as for a real export. */
#define _GNU_SOURCE
#include "handle_fd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char magic[8] = "FAKECU1";

ssize_t raw_readlink(int directory, const char *path, char *target, size_t size) {
    return syscall(SYS_readlinkat, directory, path, target, size);
}

void *raw_mmap(void *address, size_t length, int protection, int flags, int fd, int64_t offset) {
    return (void *)syscall(SYS_mmap, address, length, protection, flags, fd, offset);
}

static bool read_at(int fd, int64_t position, struct handle_record *record) {
    if (position <= 0) return false;
    ssize_t got = syscall(SYS_pread64, fd, record, sizeof *record, position);
    return got == sizeof *record && !memcmp(record->magic, magic, sizeof magic);
}

static bool link_begins(int fd, const char *prefix) {
    char path[48], target[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ssize_t length = raw_readlink(AT_FDCWD, path, target, sizeof target);
    return length >= (ssize_t)strlen(prefix) && !memcmp(target, prefix, strlen(prefix));
}

bool handle_read(int fd, struct handle_record *record) {
    return link_begins(fd, HANDLE_LINK_PREFIX) && read_at(fd, syscall(SYS_lseek, fd, 0, SEEK_CUR), record);
}

bool handle_read_kernel(int fd, struct handle_record *record) {
    if (!link_begins(fd, "/dmabuf:")) return false;
    enum { HOST = 2 }; /* CU_MEM_LOCATION_TYPE_HOST */
    *record = (struct handle_record){.kind = HANDLE_DMABUF, .location_type = HOST};
    record->size = (uint64_t)syscall(SYS_lseek, fd, 0, SEEK_END);
    return true;
}

bool handle_read_at(const char *path, int64_t position, struct handle_record *record) {
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    bool found = read_at(fd, position, record);
    close(fd);
    return found;
}

int handle_reopen(int fd) {
    char path[48];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int opened = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC);
    return opened < 0 && errno == ENXIO ? (int)syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, 0) : opened;
}

int handle_export(int memory, const struct handle_record *record) {
    struct handle_record written = *record;
    memcpy(written.magic, magic, sizeof magic);
    int fd = handle_reopen(memory);
    if (fd < 0) return -1;
    flock(fd, LOCK_EX); /* two processes may export one memory at once */
    int64_t end = syscall(SYS_lseek, fd, 0, SEEK_END);
    bool ok = syscall(SYS_pwrite64, fd, &written, sizeof written, end) == sizeof written;
    flock(fd, LOCK_UN);
    if (!ok || syscall(SYS_lseek, fd, end, SEEK_SET) != end) {
        int error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

void handle_update(int fd, const struct handle_record *record) {
    syscall(SYS_pwrite64, fd, record, sizeof *record, syscall(SYS_lseek, fd, 0, SEEK_CUR));
}
