/* Memory that leaves the process as a dma-buf, and memory that comes in as one or as an opaque descriptor. */
#include "fakecuda.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct external {
    struct object object;
    struct segment *segment;
    uint64_t size;
};

static CUresult export_fault(const struct context *context, const struct segment *segment, unsigned long long flags) {
    int device = context->device->index;
    const char *name = segment->about.pinned ? "EXPORT_PINNED"
                       : segment->about.location_type == CU_MEM_LOCATION_TYPE_DEVICE ? "EXPORT_DEVICE"
                                                                                     : "EXPORT_HOST_NUMA";
    int attribute = segment->about.pinned ? CU_DEVICE_ATTRIBUTE_HOST_ALLOC_DMA_BUF_SUPPORTED
                                          : CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED;
    const char *asked = option(name, device);
    if (asked) {
        CUresult fault = behave(asked, "cuMemGetHandleForAddressRange");
        if (fault) return fault;
    } else if (!device_attribute(context->device, attribute)) {
        return segment->about.pinned ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_SUPPORTED;
    }
    if (flags) return behave(option("EXPORT_PCIE", device), "cuMemGetHandleForAddressRange");
    return CUDA_SUCCESS;
}

API cuMemGetHandleForAddressRange(void *out, CUdeviceptr address, size_t size, int type, unsigned long long flags) {
    ENTER_CONTEXT(context);
    REQUIRE(out && size && type == CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(!(flags & ~1ull), CUDA_ERROR_INVALID_VALUE);
    REQUIRE(address % page_size() == 0 && size % page_size() == 0, CUDA_ERROR_INVALID_VALUE);
    const struct range *range = range_find(address);
    REQUIRE(range && range->kind != REGISTERED && range->kind != IMPORTED, CUDA_ERROR_INVALID_VALUE);
    uint64_t within = address - range->base;
    REQUIRE(size <= range->size - within, CUDA_ERROR_INVALID_VALUE);
    CUresult fault = export_fault(context, range->segment, flags);
    if (fault) return fault;
    struct handle_record record = range->segment->about;
    record.kind = HANDLE_DMABUF;
    record.start += range->offset + within;
    record.size = size;
    int fd = handle_export(range->segment->fd, &record);
    REQUIRE(fd >= 0, CUDA_ERROR_OPERATING_SYSTEM);
    memcpy(out, &fd, sizeof fd);
    return CUDA_SUCCESS;
}

CUresult import_segment(int fd, const struct handle_record *record, const char *option_name,
                        struct segment **segment) {
    const struct context *context = context_top();
    const unsigned char none[16] = {0};
    bool known = memcmp(record->device, none, 16);
    bool on_device = record->location_type == CU_MEM_LOCATION_TYPE_DEVICE;
    /* The importer must see the GPU that the memory is on. */
    REQUIRE(!on_device || device_by_uuid(record->device), CUDA_ERROR_INVALID_DEVICE);
    bool other = known && context && memcmp(record->device, context->device->uuid.bytes, 16);
    int device = context ? context->device->index : -1, behaviour = BEHAVE_OK;
    if (option_name) {
        char name[48];
        snprintf(name, sizeof name, "%s_OTHER", option_name);
        const char *asked = other ? option(name, device) : NULL;
        behaviour = behave(asked ? asked : option(option_name, device), option_name);
    }
    if (behaviour > 0) return behaviour;
    struct handle_record blank = *record; /* memory that looks the same and holds nothing */
    blank.start = 0;
    *segment = behaviour == BEHAVE_ZEROS ? segment_new(&blank, NULL) : segment_import(fd, record);
    return *segment ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult import(const struct context *context, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *desc,
                       struct segment **segment) {
    struct handle_record record;
    const struct device *device = context->device;
    int fd = desc->handle.fd;
    bool ours = handle_read(fd, &record);
    if (desc->type == CU_EXTERNAL_MEMORY_HANDLE_TYPE_DMABUF_FD) {
        REQUIRE(!desc->flags, CUDA_ERROR_INVALID_VALUE);
        const char *asked = option("IMPORT_DMABUF", device->index);
        REQUIRE(asked || device_attribute(device, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED), CUDA_ERROR_NOT_SUPPORTED);
        if (!ours) ours = handle_read_kernel(fd, &record);
        if (!ours || record.kind != HANDLE_DMABUF) {
            int refused = behave(asked, "cuImportExternalMemory"); /* of a driver that imports none at all */
            return refused > 0 ? refused : CUDA_ERROR_INVALID_VALUE;
        }
        REQUIRE(desc->size <= record.size, CUDA_ERROR_INVALID_VALUE);
        return import_segment(fd, &record, "IMPORT_DMABUF", segment);
    }
    REQUIRE(desc->type == CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD && !(desc->flags & ~1u), CUDA_ERROR_INVALID_VALUE);
    REQUIRE(ours && record.kind == HANDLE_POSIX_FD, CUDA_ERROR_UNKNOWN);
    REQUIRE(desc->size <= record.size, CUDA_ERROR_INVALID_VALUE);
    bool delicate = record.location_type == CU_MEM_LOCATION_TYPE_DEVICE && record.exporter_pid != getpid();
    CUresult result = import_segment(fd, &record, delicate ? "IMPORT_OPAQUE_FD" : NULL, segment);
    if (!result) close(fd); /* the driver has taken it over */
    return result;
}

API cuImportExternalMemory(CUexternalMemory *out, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *desc) {
    ENTER_CONTEXT(context);
    struct segment *segment;
    REQUIRE(out && desc && desc->size && desc->handle.fd >= 0, CUDA_ERROR_INVALID_VALUE);
    struct external *external = object_new(EXTERNAL, sizeof *external, context);
    REQUIRE(external, CUDA_ERROR_OUT_OF_MEMORY);
    CUresult result = import(context, desc, &segment);
    if (result) {
        object_delete(external);
        return result;
    }
    external->segment = segment;
    external->size = desc->size;
    *out = external;
    return CUDA_SUCCESS;
}

API cuExternalMemoryGetMappedBuffer(CUdeviceptr *out, CUexternalMemory handle,
                                    const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *desc) {
    ENTER_CONTEXT(context);
    struct external *external = object_find(handle, EXTERNAL);
    REQUIRE(out && desc, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(external && external->object.context == context, CUDA_ERROR_INVALID_HANDLE);
    REQUIRE(!desc->flags && desc->size && desc->offset <= external->size, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(desc->size <= external->size - desc->offset, CUDA_ERROR_INVALID_VALUE);
    uint64_t base = reserve(round_up(desc->size, page_size()), page_size());
    struct range *range = base ? range_new(IMPORTED, base, desc->size) : NULL;
    REQUIRE(range, CUDA_ERROR_OUT_OF_MEMORY);
    range->segment = external->segment;
    range->segment->references++;
    range->offset = desc->offset;
    range->context = context;
    range->external = external;
    *out = base;
    return CUDA_SUCCESS;
}

/* Buffers that are still mapped stay allocated, and nothing may touch them. */
API cuDestroyExternalMemory(CUexternalMemory handle) {
    ENTER_CONTEXT(context);
    struct external *external = object_find(handle, EXTERNAL);
    REQUIRE(external && external->object.context == context, CUDA_ERROR_INVALID_HANDLE);
    work_run_all(context);
    external_forget(external);
    segment_release(external->segment);
    object_delete(external);
    return context->sticky;
}
