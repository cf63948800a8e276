#define _GNU_SOURCE
#include "fakecuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static struct range *ranges;

struct handle_record describe(int location_type, int location_id, const struct device *device, uint64_t size) {
    struct handle_record about = {
        .location_type = location_type, .location_id = location_id, .exporter_pid = getpid(), .size = size};
    if (device) memcpy(about.device, device->uuid.bytes, 16);
    return about;
}

static struct segment *segment_open(int fd, const struct handle_record *about, struct device *charged) {
    struct segment *segment = calloc(1, sizeof *segment);
    uint64_t size = round_up(about->size, page_size());
    char *alias = raw_mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (int64_t)about->start);
    if (!segment || alias == MAP_FAILED) {
        free(segment);
        close(fd);
        return NULL;
    }
    *segment = (struct segment){1, fd, alias, charged, *about};
    if (charged) charged->used += about->size;
    return segment;
}

struct segment *segment_new(const struct handle_record *about, struct device *charged) {
    if (charged && about->size > device_total(charged) - charged->used) return NULL;
    char name[64];
    snprintf(name, sizeof name, HANDLE_MEMFD_NAME ":%d", getpid());
    int fd = memfd_create(name, MFD_CLOEXEC);
    if (fd < 0) return NULL;
    if (ftruncate(fd, (off_t)round_up(about->size, page_size()))) {
        close(fd);
        return NULL;
    }
    return segment_open(fd, about, charged);
}

struct segment *segment_import(int fd, const struct handle_record *record) {
    int memory = handle_reopen(fd);
    return memory < 0 ? NULL : segment_open(memory, record, NULL);
}

void segment_release(struct segment *segment) {
    if (--segment->references) return;
    munmap(segment->alias, round_up(segment->about.size, page_size()));
    close(segment->fd);
    if (segment->charged) segment->charged->used -= segment->about.size;
    free(segment);
}

uint64_t reserve(uint64_t size, uint64_t alignment) {
    uint64_t span = size + alignment;
    char *start = mmap(NULL, span, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) return 0;
    uint64_t base = round_up((uintptr_t)start, alignment), head = base - (uintptr_t)start, tail = span - head - size;
    if (head) munmap(start, head);
    if (tail) munmap(start + head + size, tail);
    return base;
}

struct range *range_new(enum range_kind kind, uint64_t base, uint64_t size) {
    static uint64_t last_id;
    struct range *range = calloc(1, sizeof *range);
    if (!range) return NULL;
    *range = (struct range){.next = ranges, .kind = kind, .base = base, .size = size, .id = ++last_id};
    ranges = range;
    return range;
}

struct range *range_overlapping(uint64_t address, uint64_t size) {
    for (struct range *r = ranges; r; r = r->next)
        if (address < r->base + r->size && r->base < address + size) return r;
    return NULL;
}

struct range *range_find(uint64_t address) { return range_overlapping(address, 1); }

void range_delete(struct range *range) {
    for (struct range **r = &ranges; *r; r = &(*r)->next)
        if (*r == range) {
            *r = range->next;
            break;
        }
    if (range->kind == DEVICE_MEMORY || range->kind == IMPORTED) {
        uint64_t within = range->base % page_size();
        munmap((void *)(uintptr_t)(range->base - within), round_up(range->size + within, page_size()));
    }
    if (range->segment) segment_release(range->segment);
    free(range);
}

/* Virtual memory mappings belong to no context and stay. */
void ranges_delete(struct context *context) {
    for (struct range *r = ranges, *next; r; r = next) {
        next = r->next;
        if (r->context == context && r->kind != MAPPED) range_delete(r);
    }
}

void external_forget(const struct external *external) {
    for (struct range *r = ranges; r; r = r->next)
        if (r->kind == IMPORTED && r->external == external) r->external = NULL;
}

static bool accessible(const struct range *range, const struct context *context, int flags) {
    int device = context->device->index;
    switch (range->kind) {
        case PINNED: return true;
        case REGISTERED: return !(range->read_only && flags & FOR_WRITE);
        case DEVICE_MEMORY:
            return range->context == context || flags & FOR_COPY || context->peers[range->context->device->index];
        case IMPORTED: return range->external && (range->context == context || flags & FOR_COPY);
        case MAPPED:
            return range->access[device] == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ||
                   (range->access[device] == CU_MEM_ACCESS_FLAGS_PROT_READ && !(flags & FOR_WRITE));
    }
    return false;
}

/* INVALID_VALUE where a byte belongs to no range, ILLEGAL_ADDRESS where the context must not touch it. */
CUresult range_check(const struct context *context, uint64_t address, uint64_t size, int flags) {
    while (size) {
        struct range *range = range_find(address);
        REQUIRE(range, CUDA_ERROR_INVALID_VALUE);
        REQUIRE(accessible(range, context, flags), CUDA_ERROR_ILLEGAL_ADDRESS);
        uint64_t here = range->base + range->size - address;
        if (here >= size) break;
        address += here;
        size -= here;
    }
    return CUDA_SUCCESS;
}

/* Where the driver finds the bytes at an address, and how many lie there in one piece. */
void *range_pointer(uint64_t address, uint64_t *available) {
    struct range *range = range_find(address);
    uint64_t within = address - range->base;
    *available = range->size - within;
    if (range->kind == REGISTERED) return (void *)(uintptr_t)address;
    return range->segment->alias + range->offset + within;
}
