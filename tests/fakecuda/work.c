/* Asynchronous work waits in its context until something synchronises with it: a read that was not ordered after the
 * work finds the old data, every time. Streams that may run in any order do: the one that is waited for runs first. */
#include "fakecuda.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static CUresult copy(struct context *context, const struct work *w) {
    uint64_t done = 0;
    while (done < w->copy.size) {
        uint64_t n = w->copy.size - done, available;
        const char *from = (const char *)(uintptr_t)(w->copy.from.address + done);
        char *to = (char *)(uintptr_t)(w->copy.to.address + done);
        if (!w->copy.from.pageable) {
            REQUIRE(!range_check(context, w->copy.from.address + done, n, FOR_COPY), CUDA_ERROR_ILLEGAL_ADDRESS);
            from = range_pointer(w->copy.from.address + done, &available);
            n = available < n ? available : n;
        }
        if (!w->copy.to.pageable) {
            REQUIRE(!range_check(context, w->copy.to.address + done, n, FOR_COPY | FOR_WRITE),
                    CUDA_ERROR_ILLEGAL_ADDRESS);
            to = range_pointer(w->copy.to.address + done, &available);
            n = available < n ? available : n;
        }
        memmove(to, from, n);
        done += n;
    }
    return CUDA_SUCCESS;
}

static CUresult set(struct context *context, const struct work *w) {
    uint64_t size = w->set.count * w->set.width, done = 0, n;
    REQUIRE(!range_check(context, w->set.address, size, FOR_WRITE), CUDA_ERROR_ILLEGAL_ADDRESS);
    for (; done < size; done += n) {
        char *to = range_pointer(w->set.address + done, &n);
        n = n < size - done ? n : size - done;
        if (w->set.width == 1) memset(to, (int)w->set.value, n);
        else
            for (uint64_t i = 0; i < n / 4; i++) ((uint32_t *)(void *)to)[i] = w->set.value;
    }
    return CUDA_SUCCESS;
}

static void record(struct event *event, uint64_t sequence) {
    if (event->pending != sequence) return; /* recorded again since */
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    event->time_ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    event->pending = 0;
}

static void execute(struct context *context, const struct work *w) {
    if (context->sticky) return;
    CUresult result = CUDA_SUCCESS;
    switch (w->kind) {
        case WORK_COPY: result = copy(context, w); break;
        case WORK_SET: result = set(context, w); break;
        case WORK_KERNEL: result = kernel_run(context, w->kernel.kernel, w->kernel.parameters); break;
        case WORK_RECORD: record(w->event, w->sequence); break;
        case WORK_WAIT:
            if (w->event->pending) work_run(w->event->object.context, w->event->stream, w->event->pending);
            break;
    }
    if (result && !context->sticky) context->sticky = result;
}

/* The default stream and the blocking ones run in the order of their calls, any other stream for itself. */
static bool ordered_with(const struct work *w, const struct stream *stream) {
    if (stream && !stream->blocking) return w->stream == stream;
    return !w->stream || w->stream->blocking;
}

bool work_run(struct context *context, struct stream *stream, uint64_t until) {
    bool any = false;
    for (;;) {
        struct work **at = &context->first;
        while (*at && !ordered_with(*at, stream)) at = &(*at)->next;
        struct work *w = *at;
        if (!w || w->sequence > until) return any;
        *at = w->next;
        if (!*at) context->last = at;
        execute(context, w);
        free(w);
        any = true;
    }
}

void work_run_all(struct context *context) {
    work_run(context, NULL, UINT64_MAX);
    while (context->first) work_run(context, context->first->stream, UINT64_MAX);
}

void work_drop(struct context *context) {
    while (context->first) {
        struct work *w = context->first;
        context->first = w->next;
        free(w);
    }
    context->last = &context->first;
}

CUresult work_add(struct context *context, struct work *work) {
    struct work *queued = malloc(sizeof *queued);
    REQUIRE(queued, CUDA_ERROR_OUT_OF_MEMORY);
    *queued = *work;
    queued->next = NULL;
    queued->sequence = work->sequence = ++context->sequence;
    *context->last = queued;
    context->last = &queued->next;
    return CUDA_SUCCESS;
}
