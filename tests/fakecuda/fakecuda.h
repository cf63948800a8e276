/* What the files of the software driver share. It is a test double: it computes nothing but two known kernels. */
#ifndef FAKECUDA_H
#define FAKECUDA_H

#include "config.h"
#include "cuda_abi.h"
#include "handle_fd.h"

#include <stdbool.h>
#include <sys/types.h>

#define API __attribute__((visibility("default"))) CUresult
#define MAX_DEVICES 16
#define GRANULARITY (2ull << 20)

/* ---- core.c: who may call what, and when ---- */

/* Opens every entry point: initialised, not a forked child, no fault asked for by FAKECUDA_FAULT_...; holds the lock
 * to the end of the function. */
#define ENTER()                                                     \
    int lock_held __attribute__((cleanup(core_leave), unused)) = 0; \
    do {                                                            \
        CUresult entered = core_enter(__func__, &lock_held);        \
        if (entered) return entered;                                \
    } while (0)

/* The same, with the current context, which must be alive and well. */
#define ENTER_CONTEXT(name)                          \
    ENTER();                                         \
    struct context *name;                            \
    do {                                             \
        CUresult current = context_current(&name);   \
        if (current) return current;                 \
    } while (0)

#define REQUIRE(condition, code) \
    do {                         \
        if (!(condition)) return (code); \
    } while (0)

CUresult core_enter(const char *call, int *lock_held);
void core_leave(int *lock_held);
CUresult core_fault(const char *call, int device);
void core_initialised(void);
uint64_t page_size(void);
uint64_t round_up(uint64_t value, uint64_t unit);

enum object_kind { STREAM = 1, EVENT, MODULE, FUNCTION, EXTERNAL };

/* The head of everything that a handle points at. Handles are looked up before they are followed. */
struct object {
    struct object *next;
    enum object_kind kind;
    struct context *context;
};

void *object_new(enum object_kind kind, size_t size, struct context *context);
void *object_find(const void *handle, enum object_kind kind);
void object_delete(void *object);
void objects_delete(struct context *context);

/* ---- device.c ---- */
struct device {
    int index;   /* in PCI order, whatever CUDA_VISIBLE_DEVICES says */
    int ordinal; /* as the application counts; -1 where it is not visible */
    CUuuid gpu, uuid;
    uint64_t used;
    struct context *context;
};

struct device *device_get(CUdevice ordinal);
struct device *device_by_uuid(const unsigned char *uuid); /* among the visible */
int driver_version(void);
int device_attribute(const struct device *device, int attribute); /* 0 where unknown */
uint64_t device_total(const struct device *device);
CUresult devices_start(void);

/* ---- context.c ---- */
struct context {
    struct device *device;
    int references;
    bool alive;
    CUresult sticky; /* once set, every call in this context answers so */
    bool peers[MAX_DEVICES];
    struct work *first, **last;
    uint64_t sequence;
};

CUresult context_current(struct context **context);
struct context *context_top(void); /* NULL where none is current */

/* ---- work.c: work is done when something waits for it, as late as a real GPU may do it ---- */
enum work_kind { WORK_COPY, WORK_SET, WORK_KERNEL, WORK_RECORD, WORK_WAIT };

/* One end of a copy: an address known to the driver, or pageable host memory. */
struct place {
    uint64_t address;
    bool pageable;
};

struct work {
    struct work *next;
    uint64_t sequence;
    struct stream *stream; /* NULL: the default stream */
    enum work_kind kind;
    union {
        struct { struct place to, from; uint64_t size; } copy;
        struct { uint64_t address, count; uint32_t value, width; } set;
        struct { int kernel; uint64_t parameters[9]; } kernel;
        struct event *event;
    };
};

struct stream {
    struct object object;
    bool blocking;
};

struct event {
    struct object object;
    unsigned flags;
    bool recorded;
    uint64_t pending; /* the sequence number of the work that records it; 0: done */
    struct stream *stream;
    int64_t time_ns;
};

CUresult work_add(struct context *context, struct work *work);
bool work_run(struct context *context, struct stream *stream, uint64_t until); /* whether there was any */
void work_run_all(struct context *context);
void work_drop(struct context *context);
CUresult stream_get(struct context *context, CUstream handle, struct stream **stream);

/* ---- memory.c: what is where ---- */
struct segment {
    int references;
    int fd;
    char *alias; /* the driver's own mapping; an application knows other addresses only */
    struct device *charged;
    struct handle_record about;
};

enum range_kind { DEVICE_MEMORY = 1, PINNED, REGISTERED, MAPPED, IMPORTED };

struct range {
    struct range *next;
    enum range_kind kind;
    uint64_t base, size, id;
    uint64_t offset; /* of base in the segment */
    struct segment *segment;
    struct context *context;
    struct external *external; /* IMPORTED: gone when it is destroyed */
    unsigned char access[MAX_DEVICES], host_access; /* MAPPED */
    bool read_only; /* REGISTERED */
};

enum { FOR_COPY = 1, FOR_WRITE = 2 };

struct segment *segment_new(const struct handle_record *about, struct device *charged);
struct segment *segment_import(int fd, const struct handle_record *record);
void segment_release(struct segment *segment);
uint64_t reserve(uint64_t size, uint64_t alignment); /* addresses that nothing can touch; 0 where there are none */
struct range *range_new(enum range_kind kind, uint64_t base, uint64_t size);
struct range *range_find(uint64_t address);
struct range *range_overlapping(uint64_t address, uint64_t size);
void range_delete(struct range *range);
void ranges_delete(struct context *context);
CUresult range_check(const struct context *context, uint64_t address, uint64_t size, int flags);
void *range_pointer(uint64_t address, uint64_t *available);
void external_forget(const struct external *external);
struct handle_record describe(int location_type, int location_id, const struct device *device, uint64_t size);

/* ---- module.c, kernels.c ---- */
enum kernel { NO_KERNEL = -1, FILL_KERNEL, CHECK_KERNEL };
CUresult kernel_run(struct context *context, int kernel, const uint64_t *parameters);

/* ---- external.c ---- */
/* The segment behind an fd as it is imported on a device, with the behaviour that the switch asks for. */
CUresult import_segment(int fd, const struct handle_record *record, const char *option_name,
                        struct segment **segment);

#endif
