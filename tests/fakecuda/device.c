#define _GNU_SOURCE
#include "fakecuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static struct device devices[MAX_DEVICES];
static struct context contexts[MAX_DEVICES];
static struct device *visible[MAX_DEVICES];
static int device_count, visible_count;

struct device *device_get(CUdevice ordinal) {
    return ordinal >= 0 && ordinal < visible_count ? visible[ordinal] : NULL;
}

struct device *device_by_uuid(const unsigned char *uuid) {
    for (int i = 0; i < visible_count; i++)
        if (!memcmp(visible[i]->uuid.bytes, uuid, 16)) return visible[i];
    return NULL;
}

int driver_version(void) { return (int)option_number("DRIVER_VERSION", -1, 13040); }

static void uuid_text(const CUuuid *uuid, const char *prefix, char *text) {
    const unsigned char *b = uuid->bytes;
    text += sprintf(text, "%s-", prefix);
    for (int i = 0; i < 16; i++) text += sprintf(text, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", b[i]);
}

/* The device that one entry of CUDA_VISIBLE_DEVICES names: an index, or a UUID's unique beginning. */
static struct device *named(const char *entry, struct device *const *ordered) {
    char *end, text[64];
    long index = strtol(entry, &end, 10);
    if (end != entry && !*end) return index >= 0 && index < device_count ? ordered[index] : NULL;
    struct device *found = NULL;
    for (int i = 0; i < device_count; i++) {
        uuid_text(&devices[i].uuid, option_number("MIG", -1, 0) ? "MIG" : "GPU", text);
        if (strlen(entry) < 5 || strncasecmp(entry, text, strlen(entry))) continue;
        if (found) return NULL;
        found = &devices[i];
    }
    return found;
}

CUresult devices_start(void) {
    struct device *ordered[MAX_DEVICES];
    bool mig = option_number("MIG", -1, 0);
    long long asked = option_number("DEVICES", -1, 2);
    device_count = asked < 0 ? 0 : asked > MAX_DEVICES ? MAX_DEVICES : (int)asked;
    visible_count = 0;
    const char *order = getenv("CUDA_DEVICE_ORDER");
    bool reversed = option_number("FASTEST_FIRST", -1, 0) && !(order && !strcmp(order, "PCI_BUS_ID"));
    for (int i = 0; i < device_count; i++) {
        struct device *d = &devices[i];
        *d = (struct device){.index = i, .ordinal = -1, .context = &contexts[i]};
        memcpy(d->uuid.bytes, "\xfa\x6e\xc0\xda\0\0\x40\0\x80\0\0\0\0\0\0", 15);
        d->uuid.bytes[0] = (unsigned char)(0x10 + 7 * i);
        d->uuid.bytes[15] = (unsigned char)i;
        d->gpu = d->uuid;
        if (mig) { /* instances of one GPU */
            d->gpu = devices[0].gpu;
            d->uuid.bytes[1] = 0x16;
        }
        contexts[i].device = d;
        ordered[reversed ? device_count - 1 - i : i] = d;
    }
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    if (!list) { /* without being asked for by name, only one MIG instance is used */
        int count = mig && device_count > 1 ? 1 : device_count;
        for (int i = 0; i < count; i++) visible[visible_count++] = ordered[i];
    } else {
        char copy[1024], *rest = copy, *entry;
        snprintf(copy, sizeof copy, "%s", list);
        while ((entry = strsep(&rest, ","))) {
            struct device *d = named(entry, ordered);
            if (!d) break; /* an entry that names nothing hides what follows it */
            for (int i = 0; i < visible_count; i++)
                if (visible[i] == d) return CUDA_ERROR_NO_DEVICE;
            visible[visible_count++] = d;
        }
    }
    for (int i = 0; i < visible_count; i++) visible[i]->ordinal = i;
    return visible_count ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

API cuDriverGetVersion(int *version) {
    REQUIRE(version, CUDA_ERROR_INVALID_VALUE);
    *version = driver_version();
    return CUDA_SUCCESS;
}

API cuDeviceGetCount(int *count) {
    ENTER();
    REQUIRE(count, CUDA_ERROR_INVALID_VALUE);
    *count = visible_count;
    return CUDA_SUCCESS;
}

API cuDeviceGet(CUdevice *device, int ordinal) {
    ENTER();
    REQUIRE(device, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(device_get(ordinal), CUDA_ERROR_INVALID_DEVICE);
    *device = ordinal;
    return CUDA_SUCCESS;
}

API cuDeviceGetName(char *name, int size, CUdevice device) {
    ENTER();
    REQUIRE(name && size > 0, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(device_get(device), CUDA_ERROR_INVALID_DEVICE);
    snprintf(name, (size_t)size, "fakecuda test double%s", option_number("MIG", -1, 0) ? " MIG 1g.2gb" : "");
    return CUDA_SUCCESS;
}

API cuDeviceGetUuid(CUuuid *uuid, CUdevice device) {
    ENTER();
    REQUIRE(uuid, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(device_get(device), CUDA_ERROR_INVALID_DEVICE);
    *uuid = device_get(device)->gpu;
    return CUDA_SUCCESS;
}

API cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
    ENTER();
    REQUIRE(uuid, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(device_get(device), CUDA_ERROR_INVALID_DEVICE);
    *uuid = device_get(device)->uuid;
    return CUDA_SUCCESS;
}

static int pci_bus(const struct device *device) {
    return option_number("MIG", -1, 0) ? 0x11 : 0x11 + 9 * device->index;
}

API cuDeviceGetPCIBusId(char *id, int size, CUdevice device) {
    ENTER();
    REQUIRE(id && size > 0, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(device_get(device), CUDA_ERROR_INVALID_DEVICE);
    REQUIRE(size >= 13, CUDA_ERROR_INVALID_VALUE);
    snprintf(id, (size_t)size, "0000:%02X:00.0", (unsigned)pci_bus(device_get(device)));
    return CUDA_SUCCESS;
}

API cuDeviceGetByPCIBusId(CUdevice *device, const char *id) {
    ENTER();
    REQUIRE(device && id, CUDA_ERROR_INVALID_VALUE);
    unsigned domain = 0, bus, slot;
    bool full = sscanf(id, "%x:%x:%x", &domain, &bus, &slot) == 3;
    if (!full) domain = 0;
    REQUIRE(full || sscanf(id, "%x:%x", &bus, &slot) == 2, CUDA_ERROR_INVALID_VALUE);
    for (int i = 0; i < visible_count; i++)
        if (!domain && !slot && pci_bus(visible[i]) == (int)bus) {
            *device = i;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_DEVICE;
}

uint64_t device_total(const struct device *device) {
    return (uint64_t)option_number("MEMORY_BYTES", device->index, 16ll << 30);
}

API cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    ENTER();
    REQUIRE(bytes, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(device_get(device), CUDA_ERROR_INVALID_DEVICE);
    *bytes = device_total(device_get(device));
    return CUDA_SUCCESS;
}

/* The last attribute that a driver of this version knows. The steps are approximate but for 11.7, 13.0 and 13.4. */
static int last_attribute(int version) {
    static const struct { int version, last; } steps[] = {
        {13040, 158}, {13010, 151}, {13000, 147}, {12090, 143}, {12080, 138},
        {12000, 134}, {11080, 127}, {11070, 124}, {0, 115},
    };
    int i = 0;
    while (version < steps[i].version) i++;
    return steps[i].last;
}

static const struct { int attribute, value; } values[] = {
    {1, 1024},   {2, 1024}, {3, 1024}, {4, 64},  {5, 2147483647}, {6, 65535}, {7, 65535}, {8, 49152}, {9, 65536},
    {10, 32},    {11, 2147483647},     {12, 65536}, {13, 1000000}, {16, 8},   {19, 1},    {31, 1},    {32, 1},
    {36, 1000000}, {37, 4096}, {38, 4 << 20}, {39, 2048}, {40, 2}, {41, 1},   {75, 9},    {76, 0},    {78, 1},
    {81, 233472}, {82, 65536}, {90, 1},  {91, 1}, {95, 1},        {97, 232448}, {99, 1},  {102, 1},   {103, 1},
    {106, 32},   {110, 1},  {113, 1},   {116, 1}, {124, 1},       {131, -1},  {134, 0},   {141, 1},
};

/* False where the driver does not know the attribute. */
static bool attribute_value(const struct device *device, int attribute, int *value) {
    char name[24];
    snprintf(name, sizeof name, "ATTR_%d", attribute);
    const char *asked = option(name, device->index);
    if (asked && !strcmp(asked, "unknown")) return false;
    if (attribute < 1 || attribute > last_attribute(driver_version())) return false;
    *value = 0;
    if (attribute == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID) *value = pci_bus(device);
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        if (values[i].attribute == attribute) *value = values[i].value;
    if (asked) *value = atoi(asked);
    return true;
}

int device_attribute(const struct device *device, int attribute) {
    int value = 0;
    return attribute_value(device, attribute, &value) ? value : 0;
}

API cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
    ENTER();
    REQUIRE(value, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(device_get(device), CUDA_ERROR_INVALID_DEVICE);
    return attribute_value(device_get(device), attribute, value) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
