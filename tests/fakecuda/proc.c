/* How an application finds the driver's functions: by name and by the version of CUDA that it was made for. */
#include "fakecuda.h"

#include <string.h>

/* name, suffix of the variant, the version of CUDA that brought it */
#define FUNCTIONS \
    F(cuCtxDisablePeerAccess, , 4000) F(cuCtxEnablePeerAccess, , 4000) F(cuCtxGetCurrent, , 4000)                  \
    F(cuCtxGetDevice, , 2000) F(cuCtxGetDevice, _v2, 13000) F(cuCtxPopCurrent, _v2, 4000)                          \
    F(cuCtxPushCurrent, _v2, 4000) F(cuCtxSetCurrent, , 4000) F(cuCtxSynchronize, , 2000)                          \
    F(cuCtxSynchronize, _v2, 13000) F(cuDestroyExternalMemory, , 10000) F(cuDeviceCanAccessPeer, , 4000)           \
    F(cuDeviceGet, , 2000) F(cuDeviceGetAttribute, , 2000) F(cuDeviceGetByPCIBusId, , 4010)                        \
    F(cuDeviceGetCount, , 2000) F(cuDeviceGetName, , 2000) F(cuDeviceGetP2PAttribute, , 8000)                      \
    F(cuDeviceGetPCIBusId, , 4010) F(cuDeviceGetUuid, , 9020) F(cuDeviceGetUuid, _v2, 11040)                       \
    F(cuDevicePrimaryCtxGetState, , 7000) F(cuDevicePrimaryCtxRelease, _v2, 11000)                                 \
    F(cuDevicePrimaryCtxRetain, , 7000) F(cuDeviceTotalMem, _v2, 3020) F(cuDriverGetVersion, , 2020)               \
    F(cuEventCreate, , 2000) F(cuEventDestroy, _v2, 4000) F(cuEventElapsedTime, , 2000)                            \
    F(cuEventElapsedTime, , 12080) F(cuEventQuery, , 2000) F(cuEventRecord, , 2000) F(cuEventSynchronize, , 2000)  \
    F(cuExternalMemoryGetMappedBuffer, , 10000) F(cuGetErrorName, , 6000) F(cuGetErrorString, , 6000)              \
    F(cuImportExternalMemory, , 10000) F(cuInit, , 2000) F(cuLaunchKernel, , 4000) F(cuMemAddressFree, , 10020)    \
    F(cuMemAddressReserve, , 10020) F(cuMemAlloc, _v2, 3020) F(cuMemAllocHost, _v2, 3020) F(cuMemCreate, , 10020)  \
    F(cuMemExportToShareableHandle, , 10020) F(cuMemFree, _v2, 3020) F(cuMemFreeHost, , 2000)                      \
    F(cuMemGetAccess, , 10020) F(cuMemGetAddressRange, _v2, 3020) F(cuMemGetAllocationGranularity, , 10020)        \
    F(cuMemGetAllocationPropertiesFromHandle, , 10020) F(cuMemGetHandleForAddressRange, , 11070)                   \
    F(cuMemGetInfo, _v2, 3020) F(cuMemHostAlloc, , 2020) F(cuMemHostGetDevicePointer, _v2, 3020)                   \
    F(cuMemHostRegister, _v2, 6050) F(cuMemHostUnregister, , 4000) F(cuMemImportFromShareableHandle, , 10020)      \
    F(cuMemMap, , 10020) F(cuMemRelease, , 10020) F(cuMemSetAccess, , 10020) F(cuMemUnmap, , 10020)                \
    F(cuMemcpy, , 4000) F(cuMemcpyAsync, , 4000) F(cuMemcpyDtoD, _v2, 3020) F(cuMemcpyDtoDAsync, _v2, 3020)        \
    F(cuMemcpyDtoH, _v2, 3020) F(cuMemcpyDtoHAsync, _v2, 3020) F(cuMemcpyHtoD, _v2, 3020)                          \
    F(cuMemcpyHtoDAsync, _v2, 3020) F(cuMemsetD32, _v2, 3020) F(cuMemsetD32Async, , 3020) F(cuMemsetD8, _v2, 3020) \
    F(cuMemsetD8Async, , 3020) F(cuModuleGetFunction, , 2000) F(cuModuleLoadData, , 2000)                          \
    F(cuModuleLoadDataEx, , 2010) F(cuModuleUnload, , 2000) F(cuPointerGetAttribute, , 4000)                       \
    F(cuPointerGetAttributes, , 7000) F(cuStreamCreate, , 2000) F(cuStreamCreateWithPriority, , 5050)              \
    F(cuStreamDestroy, _v2, 4000) F(cuStreamQuery, , 2000) F(cuStreamSynchronize, , 2000)                          \
    F(cuStreamWaitEvent, , 3020)

#define F(name, suffix, version) void name##suffix(void);
FUNCTIONS
#undef F

struct variant {
    const char *name;
    int introduced;
    void (*function)(void);
};

API cuGetProcAddress(const char *name, void **function, int version, uint64_t flags);
API cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status);

static const struct variant variants[] = {
#define F(name, suffix, version) {#name, version, name##suffix},
    FUNCTIONS
#undef F
    {"cuGetProcAddress", 11030, (void (*)(void))cuGetProcAddress},
    {"cuGetProcAddress", 12000, (void (*)(void))cuGetProcAddress_v2},
};

/* The newest variant that neither the application nor the driver is too old for. */
API cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
    REQUIRE(name && function && flags <= 2, CUDA_ERROR_INVALID_VALUE);
    const struct variant *found = NULL;
    bool later = false;
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        const struct variant *v = &variants[i];
        if (strcmp(v->name, name) || v->introduced > driver_version()) continue;
        if (v->introduced > version) later = true;
        else if (!found || v->introduced > found->introduced) found = v;
    }
    *function = NULL;
    if (found) memcpy(function, &found->function, sizeof *function);
    if (status)
        *status = found   ? CU_GET_PROC_ADDRESS_SUCCESS
                  : later ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                          : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return found ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

API cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
    return cuGetProcAddress_v2(name, function, version, flags, NULL);
}
