#include "fakecuda.h"

#define DEPTH 32

static _Thread_local struct context *stack[DEPTH];
static _Thread_local int depth;

struct context *context_top(void) { return depth ? stack[depth - 1] : NULL; }

CUresult context_current(struct context **context) {
    *context = context_top();
    REQUIRE(*context, CUDA_ERROR_INVALID_CONTEXT);
    REQUIRE((*context)->alive, CUDA_ERROR_CONTEXT_IS_DESTROYED);
    return (*context)->sticky;
}

/* The context that a handle names, or NULL. */
static struct context *find(const void *handle) {
    struct device *device;
    for (int i = 0; (device = device_get(i)); i++)
        if (device->context == handle && device->context->alive) return device->context;
    return NULL;
}

API cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice ordinal) {
    ENTER();
    struct device *device = device_get(ordinal);
    REQUIRE(context, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(device, CUDA_ERROR_INVALID_DEVICE);
    struct context *c = device->context;
    if (!c->references) *c = (struct context){.device = device, .alive = true, .last = &c->first};
    c->references++;
    *context = c;
    return CUDA_SUCCESS;
}

static void destroy(struct context *context) {
    work_drop(context);
    ranges_delete(context);
    objects_delete(context);
    *context = (struct context){.device = context->device};
}

API cuDevicePrimaryCtxRelease_v2(CUdevice ordinal) {
    ENTER();
    struct device *device = device_get(ordinal);
    REQUIRE(device, CUDA_ERROR_INVALID_DEVICE);
    REQUIRE(device->context->references, CUDA_ERROR_INVALID_CONTEXT);
    if (!--device->context->references) destroy(device->context);
    return CUDA_SUCCESS;
}

API cuDevicePrimaryCtxGetState(CUdevice ordinal, unsigned *flags, int *active) {
    ENTER();
    struct device *device = device_get(ordinal);
    REQUIRE(flags && active, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(device, CUDA_ERROR_INVALID_DEVICE);
    *flags = 0;
    *active = device->context->alive;
    return CUDA_SUCCESS;
}

API cuCtxSetCurrent(CUcontext context) {
    ENTER();
    REQUIRE(!context || find(context), CUDA_ERROR_INVALID_CONTEXT);
    if (!context) {
        if (depth) depth--;
    } else {
        if (!depth) depth = 1;
        stack[depth - 1] = context;
    }
    return CUDA_SUCCESS;
}

API cuCtxGetCurrent(CUcontext *context) {
    ENTER();
    REQUIRE(context, CUDA_ERROR_INVALID_VALUE);
    *context = context_top();
    return CUDA_SUCCESS;
}

API cuCtxPushCurrent_v2(CUcontext context) {
    ENTER();
    REQUIRE(find(context), CUDA_ERROR_INVALID_CONTEXT);
    REQUIRE(depth < DEPTH, CUDA_ERROR_INVALID_VALUE);
    stack[depth++] = context;
    return CUDA_SUCCESS;
}

API cuCtxPopCurrent_v2(CUcontext *context) {
    ENTER();
    REQUIRE(depth, CUDA_ERROR_INVALID_CONTEXT);
    depth--;
    if (context) *context = stack[depth];
    return CUDA_SUCCESS;
}

API cuCtxGetDevice(CUdevice *ordinal) {
    ENTER();
    REQUIRE(ordinal, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(context_top(), CUDA_ERROR_INVALID_CONTEXT);
    *ordinal = context_top()->device->ordinal;
    return CUDA_SUCCESS;
}

API cuCtxGetDevice_v2(CUdevice *ordinal, CUcontext context) {
    if (!context) return cuCtxGetDevice(ordinal);
    ENTER();
    REQUIRE(ordinal, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(find(context), CUDA_ERROR_INVALID_CONTEXT);
    *ordinal = context->device->ordinal;
    return CUDA_SUCCESS;
}

API cuCtxSynchronize(void) {
    ENTER_CONTEXT(context);
    work_run_all(context);
    return context->sticky;
}

API cuCtxSynchronize_v2(CUcontext context) {
    if (!context) return cuCtxSynchronize();
    ENTER();
    REQUIRE(find(context), CUDA_ERROR_INVALID_CONTEXT);
    work_run_all(context);
    return context->sticky;
}

static bool peers(const struct device *a, const struct device *b) {
    return a != b && option_number("PEER", a->index, 1);
}

API cuDeviceCanAccessPeer(int *can, CUdevice from, CUdevice to) {
    ENTER();
    REQUIRE(can, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(device_get(from) && device_get(to), CUDA_ERROR_INVALID_DEVICE);
    *can = peers(device_get(from), device_get(to));
    return CUDA_SUCCESS;
}

API cuDeviceGetP2PAttribute(int *value, int attribute, CUdevice from, CUdevice to) {
    ENTER();
    REQUIRE(value && attribute >= 1 && attribute <= 4, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(device_get(from) && device_get(to) && from != to, CUDA_ERROR_INVALID_DEVICE);
    *value = attribute == 2 && peers(device_get(from), device_get(to)); /* 2: ACCESS_SUPPORTED */
    return CUDA_SUCCESS;
}

API cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
    ENTER_CONTEXT(context);
    REQUIRE(find(peer) && peer != context, CUDA_ERROR_INVALID_CONTEXT);
    REQUIRE(!flags, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(peers(context->device, peer->device), CUDA_ERROR_INVALID_DEVICE);
    REQUIRE(!context->peers[peer->device->index], CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    context->peers[peer->device->index] = true;
    return CUDA_SUCCESS;
}

API cuCtxDisablePeerAccess(CUcontext peer) {
    ENTER_CONTEXT(context);
    REQUIRE(find(peer), CUDA_ERROR_INVALID_CONTEXT);
    REQUIRE(context->peers[peer->device->index], CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
    context->peers[peer->device->index] = false;
    return CUDA_SUCCESS;
}
