#define _GNU_SOURCE
#include "fakecuda.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pid_t initialised_pid; /* 0 before cuInit */
static struct object *objects;

uint64_t page_size(void) { return (uint64_t)sysconf(_SC_PAGESIZE); }

uint64_t round_up(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

/* How often a call with a fault has been made, for faults that strike later (`46@3`). */
static long calls_before(const char *name) {
    static struct { char name[64]; long calls; } counts[32];
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        if (!counts[i].name[0]) snprintf(counts[i].name, sizeof counts[i].name, "%s", name);
        if (!strcmp(counts[i].name, name)) return __atomic_fetch_add(&counts[i].calls, 1, __ATOMIC_SEQ_CST);
    }
    return 0;
}

CUresult core_fault(const char *call, int device) {
    char name[64], behaviour[64];
    int length = (int)strlen(call);
    if (length > 3 && call[length - 3] == '_' && call[length - 2] == 'v') length -= 3;
    snprintf(name, sizeof name, "FAULT_%.*s", length, call);
    const char *asked = option(name, device);
    if (!asked) return CUDA_SUCCESS;
    snprintf(behaviour, sizeof behaviour, "%s", asked);
    char *after = strchr(behaviour, '@');
    if (after) {
        *after = 0;
        if (calls_before(name) < atol(after + 1)) return CUDA_SUCCESS;
    }
    if (!strncmp(behaviour, "lost:", 5)) {
        int code = atoi(behaviour + 5);
        if (context_top()) context_top()->sticky = code;
        return code;
    }
    return behave(behaviour, call);
}

CUresult core_enter(const char *call, int *lock_held) {
    if (initialised_pid != getpid()) return CUDA_ERROR_NOT_INITIALIZED;
    CUresult fault = core_fault(call, context_top() ? context_top()->device->index : -1);
    if (fault) return fault;
    pthread_mutex_lock(&lock);
    *lock_held = 1;
    return CUDA_SUCCESS;
}

void core_leave(int *lock_held) {
    if (*lock_held) pthread_mutex_unlock(&lock);
}

static void *idle(void *unused) {
    (void)unused;
    for (;;) pause();
    return NULL;
}

/* The real driver makes its process multi-threaded; so does this, for those who must not fork afterwards. */
static void start_thread(void) {
    sigset_t all, before;
    pthread_t thread;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (!pthread_create(&thread, NULL, idle, NULL)) pthread_detach(thread);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

API cuInit(unsigned flags) {
    if (initialised_pid && initialised_pid != getpid()) return CUDA_ERROR_NOT_INITIALIZED;
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    if (!options_are_known()) return CUDA_ERROR_INVALID_VALUE;
    CUresult fault = core_fault(__func__, -1);
    if (fault) return fault;
    pthread_mutex_lock(&lock);
    CUresult result = CUDA_SUCCESS;
    if (!initialised_pid) {
        result = devices_start();
        if (!result) {
            start_thread();
            initialised_pid = getpid();
        }
    }
    pthread_mutex_unlock(&lock);
    return result;
}

void *object_new(enum object_kind kind, size_t size, struct context *context) {
    struct object *object = calloc(1, size);
    if (!object) return NULL;
    *object = (struct object){objects, kind, context};
    objects = object;
    return object;
}

void *object_find(const void *handle, enum object_kind kind) {
    for (struct object *o = objects; o; o = o->next)
        if (o == handle && o->kind == kind) return o;
    return NULL;
}

void object_delete(void *object) {
    for (struct object **o = &objects; *o; o = &(*o)->next)
        if (*o == object) {
            *o = (*o)->next;
            free(object);
            return;
        }
}

void objects_delete(struct context *context) {
    for (struct object **o = &objects; *o;)
        if ((*o)->context == context) {
            struct object *gone = *o;
            *o = gone->next;
            free(gone);
        } else {
            o = &(*o)->next;
        }
}
