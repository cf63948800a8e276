/* Virtual memory management: memory, addresses, and which device may touch what, each for itself. */
#include "fakecuda.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct reservation {
    struct reservation *next;
    uint64_t base, size;
};

struct memory_handle {
    struct memory_handle *next;
    CUmemGenericAllocationHandle value;
    struct segment *segment;
};

static struct reservation *reservations;
static struct memory_handle *handles;

static struct segment *memory_of(CUmemGenericAllocationHandle value) {
    for (struct memory_handle *h = handles; h; h = h->next)
        if (h->value == value) return h->segment;
    return NULL;
}

/* A new handle, which owns the segment. */
static CUresult handle_new(CUmemGenericAllocationHandle *out, struct segment *segment) {
    static uint64_t last = 0xfa4e0000;
    struct memory_handle *handle = malloc(sizeof *handle);
    REQUIRE(handle, CUDA_ERROR_OUT_OF_MEMORY);
    *handle = (struct memory_handle){handles, ++last, segment};
    handles = handle;
    *out = last;
    return CUDA_SUCCESS;
}

/* What properties ask for; the device is NULL for host memory. */
static CUresult location(const CUmemAllocationProp *prop, struct device **device) {
    *device = NULL;
    REQUIRE(prop && prop->type == CU_MEM_ALLOCATION_TYPE_PINNED, CUDA_ERROR_INVALID_VALUE);
    switch (prop->location.type) {
        case CU_MEM_LOCATION_TYPE_DEVICE:
            *device = device_get(prop->location.id);
            return *device ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
        case CU_MEM_LOCATION_TYPE_HOST_NUMA: return prop->location.id ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
        case CU_MEM_LOCATION_TYPE_HOST: return CUDA_SUCCESS;
        default: return CUDA_ERROR_INVALID_VALUE;
    }
}

/* No driver measured so far makes plain host memory, so that is off unless it is asked for. */
static CUresult creation_fault(const CUmemAllocationProp *prop, const struct device *device) {
    int index = device ? device->index : -1;
    if (device) return behave(option("CREATE_DEVICE", index), "cuMemCreate");
    if (prop->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA)
        return behave(option("CREATE_HOST_NUMA", index), "cuMemCreate");
    const char *host = option("CREATE_HOST", index);
    return host ? behave(host, "cuMemCreate") : CUDA_ERROR_INVALID_VALUE;
}

API cuMemCreate(CUmemGenericAllocationHandle *out, size_t size, const CUmemAllocationProp *prop,
                unsigned long long flags) {
    ENTER();
    struct device *device;
    REQUIRE(out && !flags && size && size % GRANULARITY == 0, CUDA_ERROR_INVALID_VALUE);
    CUresult result = location(prop, &device);
    if (result) return result;
    REQUIRE(!(prop->requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC), CUDA_ERROR_NOT_SUPPORTED);
    REQUIRE(!(prop->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR), CUDA_ERROR_INVALID_VALUE);
    result = creation_fault(prop, device);
    if (result) return result;
    struct handle_record about = describe(prop->location.type, prop->location.id, device, size);
    about.handle_types = prop->requestedHandleTypes;
    struct segment *segment = segment_new(&about, device);
    REQUIRE(segment, CUDA_ERROR_OUT_OF_MEMORY);
    return handle_new(out, segment);
}

API cuMemRelease(CUmemGenericAllocationHandle value) {
    ENTER();
    for (struct memory_handle **h = &handles; *h; h = &(*h)->next)
        if ((*h)->value == value) {
            struct memory_handle *gone = *h;
            *h = gone->next;
            segment_release(gone->segment); /* what is mapped stays until it is unmapped */
            free(gone);
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_VALUE;
}

API cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop, int which) {
    ENTER();
    struct device *device;
    REQUIRE(granularity, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(which == CU_MEM_ALLOC_GRANULARITY_MINIMUM || which == CU_MEM_ALLOC_GRANULARITY_RECOMMENDED,
            CUDA_ERROR_INVALID_VALUE);
    CUresult result = location(prop, &device);
    if (result) return result;
    *granularity = GRANULARITY;
    return CUDA_SUCCESS;
}

API cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop, CUmemGenericAllocationHandle value) {
    ENTER();
    const struct segment *segment = memory_of(value);
    REQUIRE(prop && segment, CUDA_ERROR_INVALID_VALUE);
    int id = segment->about.location_id;
    if (segment->about.location_type == CU_MEM_LOCATION_TYPE_DEVICE) {
        const struct device *device = device_by_uuid(segment->about.device);
        id = device ? device->ordinal : -1;
    }
    *prop = (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                  .requestedHandleTypes = segment->about.handle_types,
                                  .location = {segment->about.location_type, id}};
    return CUDA_SUCCESS;
}

API cuMemAddressReserve(CUdeviceptr *out, size_t size, size_t alignment, CUdeviceptr hint, unsigned long long flags) {
    (void)hint;
    ENTER();
    REQUIRE(out && !flags && size && size % GRANULARITY == 0, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(!(alignment & (alignment - 1)), CUDA_ERROR_INVALID_VALUE);
    struct reservation *r = malloc(sizeof *r);
    uint64_t base = r ? reserve(size, alignment > GRANULARITY ? alignment : GRANULARITY) : 0;
    if (!base) {
        free(r);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *r = (struct reservation){reservations, base, size};
    reservations = r;
    *out = base;
    return CUDA_SUCCESS;
}

API cuMemAddressFree(CUdeviceptr base, size_t size) {
    ENTER();
    for (struct reservation **r = &reservations; *r; r = &(*r)->next)
        if ((*r)->base == base && (*r)->size == size) {
            REQUIRE(!range_overlapping(base, size), CUDA_ERROR_INVALID_VALUE);
            struct reservation *gone = *r;
            *r = gone->next;
            munmap((void *)(uintptr_t)base, size);
            free(gone);
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_VALUE;
}

static bool reserved(uint64_t base, uint64_t size) {
    for (const struct reservation *r = reservations; r; r = r->next)
        if (r->base <= base && size <= r->size && base - r->base <= r->size - size) return true;
    return false;
}

API cuMemMap(CUdeviceptr base, size_t size, size_t offset, CUmemGenericAllocationHandle value,
             unsigned long long flags) {
    ENTER();
    struct segment *segment = memory_of(value);
    REQUIRE(segment && !flags && size && !offset, CUDA_ERROR_INVALID_VALUE); /* the driver takes no offset yet */
    REQUIRE(base % GRANULARITY == 0 && size % GRANULARITY == 0, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(size <= segment->about.size, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(reserved(base, size) && !range_overlapping(base, size), CUDA_ERROR_INVALID_VALUE);
    struct range *range = range_new(MAPPED, base, size);
    REQUIRE(range, CUDA_ERROR_OUT_OF_MEMORY);
    range->segment = segment;
    segment->references++;
    return CUDA_SUCCESS;
}

/* Makes the addresses readable by the CPU, or untouchable again. */
static bool host_map(struct range *range, int access) {
    int protection = access == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? PROT_READ | PROT_WRITE
                     : access                                     ? PROT_READ
                                                                  : PROT_NONE;
    int flags = MAP_FIXED | (access ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE);
    range->host_access = (unsigned char)access;
    return raw_mmap((void *)(uintptr_t)range->base, range->size, protection, flags, access ? range->segment->fd : -1,
                    access ? (int64_t)range->segment->about.start : 0) != MAP_FAILED;
}

/* Whether mappings cover the addresses from end to end, each as a whole. */
static bool covered(uint64_t base, uint64_t size) {
    REQUIRE(size, false);
    for (uint64_t at = base; at < base + size;) {
        const struct range *range = range_find(at);
        REQUIRE(range && range->kind == MAPPED && range->base == at && range->size <= base + size - at, false);
        at += range->size;
    }
    return true;
}

API cuMemUnmap(CUdeviceptr base, size_t size) {
    ENTER();
    REQUIRE(covered(base, size), CUDA_ERROR_INVALID_VALUE);
    struct range *range;
    while ((range = range_overlapping(base, size))) {
        if (range->host_access) host_map(range, CU_MEM_ACCESS_FLAGS_PROT_NONE);
        range_delete(range);
    }
    return CUDA_SUCCESS;
}

static CUresult set_access(struct range *range, const CUmemAccessDesc *desc) {
    const struct handle_record *about = &range->segment->about;
    bool host_memory = about->location_type != CU_MEM_LOCATION_TYPE_DEVICE;
    if (desc->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
        int type = desc->location.type;
        REQUIRE(type == CU_MEM_LOCATION_TYPE_HOST || type == CU_MEM_LOCATION_TYPE_HOST_NUMA, CUDA_ERROR_INVALID_VALUE);
        REQUIRE(host_memory, CUDA_ERROR_INVALID_VALUE);
        return host_map(range, desc->flags) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    const struct device *device = device_get(desc->location.id);
    REQUIRE(device, CUDA_ERROR_INVALID_DEVICE);
    bool local = host_memory || !memcmp(about->device, device->uuid.bytes, 16);
    REQUIRE(local || option_number("PEER", device->index, 1), CUDA_ERROR_INVALID_DEVICE);
    range->access[device->index] = (unsigned char)desc->flags;
    return CUDA_SUCCESS;
}

API cuMemSetAccess(CUdeviceptr base, size_t size, const CUmemAccessDesc *desc, size_t count) {
    ENTER();
    REQUIRE(desc && count && covered(base, size), CUDA_ERROR_INVALID_VALUE);
    for (uint64_t at = base; at < base + size; at += range_find(at)->size)
        for (size_t i = 0; i < count; i++) {
            int flags = desc[i].flags;
            REQUIRE(flags == CU_MEM_ACCESS_FLAGS_PROT_NONE || flags == CU_MEM_ACCESS_FLAGS_PROT_READ ||
                        flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
                    CUDA_ERROR_INVALID_VALUE);
            CUresult result = set_access(range_find(at), &desc[i]);
            if (result) return result;
        }
    return CUDA_SUCCESS;
}

API cuMemGetAccess(unsigned long long *flags, const CUmemLocation *where, CUdeviceptr address) {
    ENTER();
    const struct range *range = range_find(address);
    REQUIRE(flags && where && range && range->kind == MAPPED, CUDA_ERROR_INVALID_VALUE);
    if (where->type == CU_MEM_LOCATION_TYPE_DEVICE) {
        REQUIRE(device_get(where->id), CUDA_ERROR_INVALID_DEVICE);
        *flags = range->access[device_get(where->id)->index];
    } else {
        *flags = range->host_access;
    }
    return CUDA_SUCCESS;
}

API cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle value, int type, unsigned long long flags) {
    ENTER();
    const struct segment *segment = memory_of(value);
    REQUIRE(out && segment && !flags && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(segment->about.handle_types & type, CUDA_ERROR_INVALID_VALUE);
    CUresult fault = behave(option("EXPORT_POSIX_FD", -1), __func__);
    if (fault) return fault;
    struct handle_record record = segment->about;
    record.kind = HANDLE_POSIX_FD;
    int fd = handle_export(segment->fd, &record);
    REQUIRE(fd >= 0, CUDA_ERROR_OPERATING_SYSTEM);
    memcpy(out, &fd, sizeof fd);
    return CUDA_SUCCESS;
}

API cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *out, void *os_handle, int type) {
    ENTER();
    struct handle_record record;
    int fd = (int)(intptr_t)os_handle;
    REQUIRE(out && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(handle_read(fd, &record) && record.kind == HANDLE_POSIX_FD, CUDA_ERROR_INVALID_VALUE);
    struct segment *segment;
    CUresult result = import_segment(fd, &record, "IMPORT_VMM", &segment);
    return result ? result : handle_new(out, segment);
}
