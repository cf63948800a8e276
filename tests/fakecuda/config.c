#define _GNU_SOURCE
#include "config.h"

#include <ctype.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

struct setting {
    const char *name;
    const char *value;
};

/* Everything that the C++ sample needs is there. */
static const struct setting sample[] = {
    {"DRIVER_VERSION", "13040"}, {"ATTR_124", "1"}, {"ATTR_146", "1"}, {"ATTR_152", "0"}, {NULL, NULL},
};

/* What two H200s answered. An attribute that the driver does not know follows from its version. */
static const struct setting h200[] = {
    {"DRIVER_VERSION", "13000"},
    {"ATTR_124", "1"},
    {"ATTR_146", "0"},
    {"EXPORT_PINNED", "1"},
    {"EXPORT_HOST_NUMA", "1"},
    {"EXPORT_PCIE", "unsupported"},
    {"IMPORT_DMABUF", "unsupported"},
    {"IMPORT_OPAQUE_FD", "crash"},
    {"IMPORT_OPAQUE_FD_OTHER", "hang"},
    {"MMAP_PINNED", "524"},
    {NULL, NULL},
};

static const char *const known[] = {
    "PRESET", "DEVICES", "DRIVER_VERSION", "MEMORY_BYTES", "MIG", "PEER", "FASTEST_FIRST", "SKEW", "FLIP",
    "EXPORT_PINNED", "EXPORT_DEVICE", "EXPORT_HOST_NUMA", "EXPORT_PCIE", "EXPORT_POSIX_FD",
    "IMPORT_DMABUF", "IMPORT_DMABUF_OTHER", "IMPORT_OPAQUE_FD", "IMPORT_OPAQUE_FD_OTHER",
    "IMPORT_VMM", "IMPORT_VMM_OTHER", "CREATE_DEVICE", "CREATE_HOST_NUMA", "CREATE_HOST",
    "MMAP_PINNED", "MMAP_DEVICE", NULL,
};

static const char *from(const struct setting *preset, const char *name) {
    for (; preset->name; preset++)
        if (!strcmp(preset->name, name)) return preset->value;
    return NULL;
}

const char *option(const char *name, int device) {
    char key[128];
    const char *value = NULL;
    if (device >= 0) {
        snprintf(key, sizeof key, "FAKECUDA_%s_DEV%d", name, device);
        value = getenv(key);
    }
    if (!value) {
        snprintf(key, sizeof key, "FAKECUDA_%s", name);
        value = getenv(key);
    }
    if (!value) {
        const char *preset = getenv("FAKECUDA_PRESET");
        value = from(preset && !strcmp(preset, "h200") ? h200 : sample, name);
    }
    return value && *value ? value : NULL;
}

long long option_number(const char *name, int device, long long fallback) {
    const char *value = option(name, device);
    return value ? strtoll(value, NULL, 0) : fallback;
}

static void sleep_ms(long ms) {
    struct timespec left = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&left, &left) && errno == EINTR) {}
}

/* As a driver call stuck in the kernel: no signal but SIGKILL ends it. */
static void hang(void) {
    signal(SIGTERM, SIG_IGN);
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    for (;;) pause();
}

int behave(const char *behaviour, const char *call) {
    if (!behaviour || !strcmp(behaviour, "ok")) return BEHAVE_OK;
    if (!strcmp(behaviour, "unsupported")) return 801;
    if (!strcmp(behaviour, "zeros")) return BEHAVE_ZEROS;
    if (!strncmp(behaviour, "slow:", 5)) {
        sleep_ms(atol(behaviour + 5));
        return BEHAVE_OK;
    }
    if (!strcmp(behaviour, "crash")) {
        raise(SIGSEGV);
        abort();
    }
    if (!strcmp(behaviour, "hang")) hang();
    char *end;
    long code = strtol(behaviour, &end, 10);
    if (end == behaviour || *end) {
        fprintf(stderr, "fakecuda (test double): %s: '%s' is no behaviour\n", call, behaviour);
        return 999;
    }
    return (int)code;
}

static bool is_known(const char *name, size_t length) {
    if (!strncmp(name, "ATTR_", 5) || !strncmp(name, "FAULT_cu", 8)) return true;
    size_t digits = 0; /* of a final _DEV and number */
    while (digits < length && isdigit((unsigned char)name[length - 1 - digits])) digits++;
    if (digits && length > digits + 4 && !strncmp(name + length - digits - 4, "_DEV", 4)) length -= digits + 4;
    for (const char *const *k = known; *k; k++)
        if (strlen(*k) == length && !strncmp(*k, name, length)) return true;
    return false;
}

bool options_are_known(void) {
    bool good = true;
    for (char **entry = environ; *entry; entry++) {
        if (strncmp(*entry, "FAKECUDA_", 9)) continue;
        const char *name = *entry + 9, *equals = strchr(name, '=');
        if (!equals || is_known(name, (size_t)(equals - name))) continue;
        fprintf(stderr, "fakecuda (test double): no switch is called FAKECUDA_%.*s\n", (int)(equals - name), name);
        good = false;
    }
    const char *preset = getenv("FAKECUDA_PRESET");
    if (preset && strcmp(preset, "sample") && strcmp(preset, "h200")) {
        fprintf(stderr, "fakecuda (test double): no preset is called '%s'\n", preset);
        good = false;
    }
    return good;
}
