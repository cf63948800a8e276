/* Modules are PTX text, read for the names and parameters of its kernels. What a kernel does is known by its name. */
#define _GNU_SOURCE
#include "fakecuda.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_ENTRIES 16

struct function {
    struct object object;
    char name[64];
    char layout[24]; /* the size of each parameter in bytes, a digit each */
    int kernel;
};

struct module {
    struct object object;
    int count;
    struct function *functions[MAX_ENTRIES];
};

static const struct { const char *name, *layout; } kernels[] = {
    [FILL_KERNEL] = {"dmabuf_mp_fill", "88444444"},
    [CHECK_KERNEL] = {"dmabuf_mp_check", "884444448"},
};

/* The sizes of the parameters declared between here and the closing parenthesis. */
static void read_layout(const char *text, char *layout, size_t room) {
    const char *end = strchr(text, ')');
    for (const char *at = text; end && room > 1 && (at = strstr(at, ".param")) && at < end;) {
        at += strlen(".param");
        int bits = 0;
        while (at < end && *at != ',' && !bits) {
            if (*at == '.' && strchr("usbf", at[1]) && isdigit((unsigned char)at[2])) bits = atoi(at + 2);
            at++;
        }
        *layout++ = (char)('0' + bits / 8);
        room--;
    }
    *layout = 0;
}

static void read_entries(struct module *module, const char *text) {
    for (const char *at = text; module->count < MAX_ENTRIES && (at = strstr(at, ".entry"));) {
        struct function *function = object_new(FUNCTION, sizeof *function, module->object.context);
        if (!function) return;
        int used = 0;
        if (sscanf(at, ".entry %63[A-Za-z0-9_$] %n", function->name, &used) < 1) used = (int)strlen(".entry");
        at += used;
        if (*at == '(') read_layout(at, function->layout, sizeof function->layout);
        function->kernel = NO_KERNEL;
        for (int k = FILL_KERNEL; k <= CHECK_KERNEL; k++)
            if (!strcmp(kernels[k].name, function->name)) function->kernel = k;
        module->functions[module->count++] = function;
    }
}

/* PTX says which instruction set and chip it was made for; older drivers and other chips refuse it. */
static CUresult read_header(const char *text, const struct context *context) {
    const char *version = strstr(text, ".version"), *target = strstr(text, ".target");
    int major, minor, chip;
    REQUIRE(version && sscanf(version, ".version %d.%d", &major, &minor) == 2, CUDA_ERROR_INVALID_IMAGE);
    REQUIRE(target && sscanf(target, ".target sm_%d", &chip) == 1, CUDA_ERROR_INVALID_IMAGE);
    /* CUDA 11.x took PTX 7.x, 12.x takes 8.x, 13.x takes 9.x. */
    int newest = driver_version() / 100 - 40 + driver_version() % 1000 / 10;
    REQUIRE(10 * major + minor <= newest, CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
    int capability = 10 * device_attribute(context->device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) +
                     device_attribute(context->device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    REQUIRE(chip <= capability, CUDA_ERROR_NO_BINARY_FOR_GPU);
    return CUDA_SUCCESS;
}

static CUresult load(struct context *context, CUmodule *out, const void *image) {
    REQUIRE(out && image, CUDA_ERROR_INVALID_VALUE);
    CUresult result = read_header(image, context);
    if (result) return result;
    struct module *module = object_new(MODULE, sizeof *module, context);
    REQUIRE(module, CUDA_ERROR_OUT_OF_MEMORY);
    read_entries(module, image);
    *out = module;
    return CUDA_SUCCESS;
}

API cuModuleLoadData(CUmodule *out, const void *image) {
    ENTER_CONTEXT(context);
    return load(context, out, image);
}

API cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned count, int *options, void **values) {
    (void)count, (void)options, (void)values;
    ENTER_CONTEXT(context);
    return load(context, out, image);
}

API cuModuleUnload(CUmodule handle) {
    ENTER_CONTEXT(context);
    struct module *module = object_find(handle, MODULE);
    REQUIRE(module && module->object.context == context, CUDA_ERROR_INVALID_HANDLE);
    work_run_all(context);
    for (int i = 0; i < module->count; i++) object_delete(module->functions[i]);
    object_delete(module);
    return context->sticky;
}

API cuModuleGetFunction(CUfunction *out, CUmodule handle, const char *name) {
    ENTER_CONTEXT(context);
    struct module *module = object_find(handle, MODULE);
    REQUIRE(out && name, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(module && module->object.context == context, CUDA_ERROR_INVALID_HANDLE);
    for (int i = 0; i < module->count; i++)
        if (!strcmp(module->functions[i]->name, name)) {
            *out = module->functions[i];
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_NOT_FOUND;
}

API cuLaunchKernel(CUfunction handle, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream_handle,
                   void **parameters, void **extra) {
    ENTER_CONTEXT(context);
    struct function *function = object_find(handle, FUNCTION);
    struct stream *stream;
    REQUIRE(function && function->object.context == context, CUDA_ERROR_INVALID_HANDLE);
    CUresult result = stream_get(context, stream_handle, &stream);
    if (result) return result;
    REQUIRE(grid_x && grid_y && grid_z && block_x && block_y && block_z, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(grid_x <= 2147483647u && grid_y <= 65535 && grid_z <= 65535, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(block_x <= 1024 && block_y <= 1024 && block_z <= 64, CUDA_ERROR_INVALID_VALUE);
    REQUIRE((uint64_t)block_x * block_y * block_z <= 1024 && shared_bytes <= 49152, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(parameters && !extra, CUDA_ERROR_INVALID_VALUE);
    if (function->kernel == NO_KERNEL || strcmp(function->layout, kernels[function->kernel].layout)) {
        fprintf(stderr, "fakecuda (test double): no kernel '%s' with parameters of %s bytes is known here\n",
                function->name, function->layout);
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    struct work work = {.stream = stream, .kind = WORK_KERNEL, .kernel = {.kernel = function->kernel}};
    for (int i = 0; function->layout[i]; i++)
        work.kernel.parameters[i] =
            function->layout[i] == '8' ? *(uint64_t *)parameters[i] : *(uint32_t *)parameters[i];
    return work_add(context, &work);
}
