#define _GNU_SOURCE
#include "fakecuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { HOST_PORTABLE = 1, HOST_DEVICEMAP = 2, HOST_WRITECOMBINED = 4, REGISTER_IOMEMORY = 4, REGISTER_READ_ONLY = 8 };

/* Allocations need not begin on a page, as with the real driver, where several share one. */
static uint64_t skew(void) { return (uint64_t)option_number("SKEW", -1, 512) % page_size(); }

/* A range of memory that belongs to the context; NULL: out of memory. */
static struct range *allocate(struct context *context, enum range_kind kind, uint64_t size) {
    bool host = kind == PINNED;
    int where = host ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE;
    struct handle_record about = describe(where, 0, context->device, size + skew());
    about.pinned = host;
    struct segment *segment = segment_new(&about, host ? NULL : context->device);
    if (!segment) return NULL;
    uint64_t span = round_up(size + skew(), page_size());
    uint64_t base = host ? (uintptr_t)segment->alias : reserve(span, page_size());
    struct range *range = base ? range_new(kind, base + skew(), size) : NULL;
    if (!range) {
        segment_release(segment);
        return NULL;
    }
    range->segment = segment;
    range->offset = skew();
    range->context = context;
    return range;
}

API cuMemAlloc_v2(CUdeviceptr *out, size_t size) {
    ENTER_CONTEXT(context);
    REQUIRE(out && size, CUDA_ERROR_INVALID_VALUE);
    struct range *range = allocate(context, DEVICE_MEMORY, size);
    REQUIRE(range, CUDA_ERROR_OUT_OF_MEMORY);
    *out = range->base;
    return CUDA_SUCCESS;
}

API cuMemFree_v2(CUdeviceptr address) {
    ENTER_CONTEXT(context);
    struct range *range = range_find(address);
    REQUIRE(range && range->base == address, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(range->kind == DEVICE_MEMORY || range->kind == IMPORTED, CUDA_ERROR_INVALID_VALUE);
    work_run_all(context);
    range_delete(range);
    return context->sticky;
}

static CUresult allocate_host(struct context *context, void **out, size_t size) {
    REQUIRE(out && size, CUDA_ERROR_INVALID_VALUE);
    struct range *range = allocate(context, PINNED, size);
    REQUIRE(range, CUDA_ERROR_OUT_OF_MEMORY);
    *out = (void *)(uintptr_t)range->base;
    return CUDA_SUCCESS;
}

API cuMemAllocHost_v2(void **out, size_t size) {
    ENTER_CONTEXT(context);
    return allocate_host(context, out, size);
}

API cuMemHostAlloc(void **out, size_t size, unsigned flags) {
    ENTER_CONTEXT(context);
    REQUIRE(!(flags & ~(unsigned)(HOST_PORTABLE | HOST_DEVICEMAP | HOST_WRITECOMBINED)), CUDA_ERROR_INVALID_VALUE);
    return allocate_host(context, out, size);
}

API cuMemFreeHost(void *pointer) {
    ENTER_CONTEXT(context);
    struct range *range = range_find((uintptr_t)pointer);
    REQUIRE(range && range->kind == PINNED && range->base == (uintptr_t)pointer, CUDA_ERROR_INVALID_VALUE);
    work_run_all(context);
    range_delete(range);
    return context->sticky;
}

API cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *pointer, unsigned flags) {
    ENTER_CONTEXT(context);
    struct range *range = range_find((uintptr_t)pointer);
    REQUIRE(out && !flags, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(range && (range->kind == PINNED || range->kind == REGISTERED), CUDA_ERROR_INVALID_VALUE);
    *out = (uintptr_t)pointer;
    return CUDA_SUCCESS;
}

/* Whether every page of the range is mapped with the protections that begin with `need` ("r" or "rw"). */
static bool mapped(uint64_t address, uint64_t size, const char *need) {
    FILE *maps = fopen("/proc/self/maps", "re");
    char *line = NULL, protection[8];
    size_t capacity = 0;
    unsigned long long from, to;
    uint64_t reached = address;
    while (maps && reached < address + size && getline(&line, &capacity, maps) > 0)
        if (sscanf(line, "%llx-%llx %7s", &from, &to, protection) == 3 && from <= reached && reached < to &&
            !strncmp(protection, need, strlen(need)))
            reached = to;
    free(line);
    if (maps) fclose(maps);
    return reached >= address + size;
}

API cuMemHostRegister_v2(void *pointer, size_t size, unsigned flags) {
    ENTER_CONTEXT(context);
    uint64_t base = (uintptr_t)pointer;
    bool read_only = flags & REGISTER_READ_ONLY;
    REQUIRE(pointer && size && base + size > base, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(!(flags & ~15u), CUDA_ERROR_INVALID_VALUE);
    REQUIRE(!(flags & REGISTER_IOMEMORY), CUDA_ERROR_NOT_SUPPORTED);
    REQUIRE(!read_only || device_attribute(context->device, CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED),
            CUDA_ERROR_NOT_SUPPORTED);
    struct range *other = range_overlapping(base, size);
    REQUIRE(!other || other->kind == DEVICE_MEMORY || other->kind == IMPORTED || other->kind == MAPPED,
            CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    REQUIRE(!other && mapped(base, size, read_only ? "r" : "rw"), CUDA_ERROR_INVALID_VALUE);
    struct range *range = range_new(REGISTERED, base, size);
    REQUIRE(range, CUDA_ERROR_OUT_OF_MEMORY);
    range->context = context;
    range->read_only = read_only;
    return CUDA_SUCCESS;
}

API cuMemHostUnregister(void *pointer) {
    ENTER_CONTEXT(context);
    struct range *range = range_find((uintptr_t)pointer);
    REQUIRE(range && range->kind == REGISTERED, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    REQUIRE(range->base == (uintptr_t)pointer, CUDA_ERROR_INVALID_VALUE);
    work_run_all(context);
    range_delete(range);
    return context->sticky;
}

API cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
    ENTER_CONTEXT(context);
    REQUIRE(free_bytes && total_bytes, CUDA_ERROR_INVALID_VALUE);
    *total_bytes = device_total(context->device);
    *free_bytes = *total_bytes - context->device->used;
    return CUDA_SUCCESS;
}

API cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr address) {
    ENTER_CONTEXT(context);
    struct range *range = range_find(address);
    REQUIRE(range && range->kind != REGISTERED, CUDA_ERROR_NOT_FOUND);
    if (base) *base = range->base;
    if (size) *size = range->size;
    return CUDA_SUCCESS;
}

/* Writes one attribute of a pointer; INVALID_VALUE where the pointer has none such. */
static CUresult pointer_attribute(void *data, int attribute, CUdeviceptr address) {
    const struct range *range = range_find(address);
    REQUIRE(range, CUDA_ERROR_INVALID_VALUE);
    bool host = range->kind == PINNED || range->kind == REGISTERED ||
                (range->segment && range->segment->about.location_type != CU_MEM_LOCATION_TYPE_DEVICE);
    struct device *home = range->context ? range->context->device
                          : range->segment ? device_by_uuid(range->segment->about.device) : NULL;
    switch (attribute) {
        case CU_POINTER_ATTRIBUTE_CONTEXT: *(void **)data = range->context; break;
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
            *(unsigned *)data = host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
            break;
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *(CUdeviceptr *)data = address; break;
        case CU_POINTER_ATTRIBUTE_HOST_POINTER:
            REQUIRE(range->kind == PINNED || range->kind == REGISTERED || range->host_access,
                    CUDA_ERROR_INVALID_VALUE);
            *(uint64_t *)data = address;
            break;
        case CU_POINTER_ATTRIBUTE_BUFFER_ID: *(uint64_t *)data = range->id; break;
        case CU_POINTER_ATTRIBUTE_IS_MANAGED: *(unsigned char *)data = 0; break;
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)data = home ? home->ordinal : -2; break;
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *(CUdeviceptr *)data = range->base; break;
        case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t *)data = range->size; break;
        case CU_POINTER_ATTRIBUTE_MAPPED: *(unsigned char *)data = 1; break;
        case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
            *(uint64_t *)data = range->segment ? (uint64_t)range->segment->about.handle_types : 0;
            break;
        default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

API cuPointerGetAttribute(void *data, int attribute, CUdeviceptr address) {
    ENTER_CONTEXT(context);
    REQUIRE(data, CUDA_ERROR_INVALID_VALUE);
    return pointer_attribute(data, attribute, address);
}

/* Leaves what it cannot tell as it was: the application sees its own initial values. */
API cuPointerGetAttributes(unsigned count, int *attributes, void **data, CUdeviceptr address) {
    ENTER_CONTEXT(context);
    REQUIRE(count && attributes && data, CUDA_ERROR_INVALID_VALUE);
    for (unsigned i = 0; i < count; i++) pointer_attribute(data[i], attributes[i], address);
    return CUDA_SUCCESS;
}
