/* Copies and fills. Those that the real driver may still be doing when the call returns are queued; a copy that
 * involves pageable host memory is done at once. */
#include "fakecuda.h"

enum { FROM_HOST = 1, TO_HOST = 2, BY_ADDRESS = 4, ASYNC = 8 };

static struct place place(uint64_t address) { return (struct place){address, !range_find(address)}; }

static bool cpu_readable(uint64_t address) {
    const struct range *range = range_find(address);
    return !range || range->kind == PINNED || range->kind == REGISTERED || range->host_access;
}

static bool on_device(uint64_t address) {
    const struct range *range = range_find(address);
    return range && range->kind != PINNED && range->kind != REGISTERED;
}

/* Checks one end of a copy. What no access was set for is an illegal address for good. */
static CUresult check(struct context *context, uint64_t address, uint64_t size, int flags, bool host) {
    if (host && !range_find(address)) return CUDA_SUCCESS;
    REQUIRE(!host || cpu_readable(address), CUDA_ERROR_INVALID_VALUE);
    CUresult result = range_check(context, address, size, flags);
    if (result == CUDA_ERROR_ILLEGAL_ADDRESS) context->sticky = result;
    return result;
}

static CUresult copy(struct context *context, uint64_t to, uint64_t from, uint64_t size, CUstream handle, int how) {
    struct stream *stream;
    CUresult result = stream_get(context, handle, &stream);
    if (result) return result;
    if (!size) return CUDA_SUCCESS;
    REQUIRE(to && from, CUDA_ERROR_INVALID_VALUE);
    bool to_host = how & TO_HOST || (how & BY_ADDRESS && !on_device(to));
    bool from_host = how & FROM_HOST || (how & BY_ADDRESS && !on_device(from));
    result = check(context, to, size, FOR_COPY | FOR_WRITE, to_host);
    if (!result) result = check(context, from, size, FOR_COPY, from_host);
    if (result) return result;
    struct work work = {.stream = stream, .kind = WORK_COPY, .copy = {place(to), place(from), size}};
    result = work_add(context, &work);
    if (result) return result;
    bool pageable = work.copy.to.pageable || work.copy.from.pageable;
    bool queued = how & ASYNC ? !pageable : on_device(to) && on_device(from);
    if (queued) return CUDA_SUCCESS;
    work_run(context, stream, work.sequence);
    return context->sticky;
}

API cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t size) {
    ENTER_CONTEXT(context);
    return copy(context, to, (uintptr_t)from, size, NULL, FROM_HOST);
}

API cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t size) {
    ENTER_CONTEXT(context);
    return copy(context, (uintptr_t)to, from, size, NULL, TO_HOST);
}

API cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t size) {
    ENTER_CONTEXT(context);
    return copy(context, to, from, size, NULL, 0);
}

API cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t size) {
    ENTER_CONTEXT(context);
    return copy(context, to, from, size, NULL, BY_ADDRESS);
}

API cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, CUstream stream) {
    ENTER_CONTEXT(context);
    return copy(context, to, (uintptr_t)from, size, stream, FROM_HOST | ASYNC);
}

API cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, CUstream stream) {
    ENTER_CONTEXT(context);
    return copy(context, (uintptr_t)to, from, size, stream, TO_HOST | ASYNC);
}

API cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream) {
    ENTER_CONTEXT(context);
    return copy(context, to, from, size, stream, ASYNC);
}

API cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream) {
    ENTER_CONTEXT(context);
    return copy(context, to, from, size, stream, BY_ADDRESS | ASYNC);
}

/* Of device memory a fill is asynchronous even in its plain form; of host memory the plain form waits. */
static CUresult set(struct context *context, uint64_t to, uint32_t value, uint32_t width, uint64_t count,
                    CUstream handle, bool asynchronous) {
    struct stream *stream;
    CUresult result = stream_get(context, handle, &stream);
    if (result) return result;
    if (!count) return CUDA_SUCCESS;
    REQUIRE(to % width == 0 && count <= UINT64_MAX / width, CUDA_ERROR_INVALID_VALUE);
    result = check(context, to, count * width, FOR_WRITE, false);
    if (result) return result;
    struct work work = {.stream = stream, .kind = WORK_SET, .set = {to, count, value, width}};
    result = work_add(context, &work);
    if (result || asynchronous || on_device(to)) return result;
    work_run(context, stream, work.sequence);
    return context->sticky;
}

API cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count) {
    ENTER_CONTEXT(context);
    return set(context, to, value, 1, count, NULL, false);
}

API cuMemsetD32_v2(CUdeviceptr to, unsigned value, size_t count) {
    ENTER_CONTEXT(context);
    return set(context, to, value, 4, count, NULL, false);
}

API cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
    ENTER_CONTEXT(context);
    return set(context, to, value, 1, count, stream, true);
}

API cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream) {
    ENTER_CONTEXT(context);
    return set(context, to, value, 4, count, stream, true);
}
