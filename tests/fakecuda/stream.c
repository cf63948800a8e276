#include "fakecuda.h"

CUresult stream_get(struct context *context, CUstream handle, struct stream **stream) {
    *stream = NULL;
    if ((uintptr_t)handle <= 2) return CUDA_SUCCESS; /* the default stream under its three names */
    struct stream *found = object_find(handle, STREAM);
    REQUIRE(found && found->object.context == context, CUDA_ERROR_INVALID_HANDLE);
    *stream = found;
    return CUDA_SUCCESS;
}

#define GET_STREAM(stream, context, handle)                          \
    struct stream *stream;                                           \
    do {                                                             \
        CUresult found = stream_get((context), (handle), &stream);   \
        if (found) return found;                                     \
    } while (0)

static CUresult create(struct context *context, CUstream *out, unsigned flags) {
    REQUIRE(out && !(flags & ~(unsigned)CU_STREAM_NON_BLOCKING), CUDA_ERROR_INVALID_VALUE);
    struct stream *stream = object_new(STREAM, sizeof *stream, context);
    REQUIRE(stream, CUDA_ERROR_OUT_OF_MEMORY);
    stream->blocking = !flags;
    *out = stream;
    return CUDA_SUCCESS;
}

API cuStreamCreate(CUstream *out, unsigned flags) {
    ENTER_CONTEXT(context);
    return create(context, out, flags);
}

API cuStreamCreateWithPriority(CUstream *out, unsigned flags, int priority) {
    (void)priority;
    ENTER_CONTEXT(context);
    return create(context, out, flags);
}

API cuStreamDestroy_v2(CUstream handle) {
    ENTER_CONTEXT(context);
    struct stream *stream = object_find(handle, STREAM);
    REQUIRE(stream && stream->object.context == context, CUDA_ERROR_INVALID_HANDLE);
    work_run(context, stream, UINT64_MAX); /* what is queued still completes */
    object_delete(stream);
    return CUDA_SUCCESS;
}

API cuStreamSynchronize(CUstream handle) {
    ENTER_CONTEXT(context);
    GET_STREAM(stream, context, handle);
    work_run(context, stream, UINT64_MAX);
    return context->sticky;
}

/* Work that was pending is done after one answer of NOT_READY, so that a loop ends. */
API cuStreamQuery(CUstream handle) {
    ENTER_CONTEXT(context);
    GET_STREAM(stream, context, handle);
    bool pending = work_run(context, stream, UINT64_MAX);
    return context->sticky ? context->sticky : pending ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

API cuStreamWaitEvent(CUstream handle, CUevent event_handle, unsigned flags) {
    ENTER_CONTEXT(context);
    GET_STREAM(stream, context, handle);
    struct event *event = object_find(event_handle, EVENT);
    REQUIRE(event, CUDA_ERROR_INVALID_HANDLE);
    REQUIRE(!flags, CUDA_ERROR_INVALID_VALUE);
    struct work work = {.stream = stream, .kind = WORK_WAIT, .event = event};
    return event->pending ? work_add(context, &work) : CUDA_SUCCESS;
}

API cuEventCreate(CUevent *out, unsigned flags) {
    ENTER_CONTEXT(context);
    unsigned allowed = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING;
    REQUIRE(out && !(flags & ~allowed), CUDA_ERROR_INVALID_VALUE);
    struct event *event = object_new(EVENT, sizeof *event, context);
    REQUIRE(event, CUDA_ERROR_OUT_OF_MEMORY);
    event->flags = flags;
    *out = event;
    return CUDA_SUCCESS;
}

API cuEventDestroy_v2(CUevent handle) {
    ENTER_CONTEXT(context);
    struct event *event = object_find(handle, EVENT);
    REQUIRE(event, CUDA_ERROR_INVALID_HANDLE);
    work_run_all(event->object.context); /* nothing that is queued may still name it */
    if (context != event->object.context) work_run_all(context);
    object_delete(event);
    return CUDA_SUCCESS;
}

API cuEventRecord(CUevent handle, CUstream stream_handle) {
    ENTER_CONTEXT(context);
    GET_STREAM(stream, context, stream_handle);
    struct event *event = object_find(handle, EVENT);
    REQUIRE(event && event->object.context == context, CUDA_ERROR_INVALID_HANDLE);
    struct work work = {.stream = stream, .kind = WORK_RECORD, .event = event};
    CUresult added = work_add(context, &work);
    if (added) return added;
    event->recorded = true;
    event->pending = work.sequence;
    event->stream = stream;
    return CUDA_SUCCESS;
}

API cuEventQuery(CUevent handle) {
    ENTER_CONTEXT(context);
    struct event *event = object_find(handle, EVENT);
    REQUIRE(event, CUDA_ERROR_INVALID_HANDLE);
    if (!event->pending) return CUDA_SUCCESS;
    work_run(event->object.context, event->stream, event->pending);
    return context->sticky ? context->sticky : CUDA_ERROR_NOT_READY;
}

API cuEventSynchronize(CUevent handle) {
    ENTER_CONTEXT(context);
    struct event *event = object_find(handle, EVENT);
    REQUIRE(event, CUDA_ERROR_INVALID_HANDLE);
    if (event->pending) work_run(event->object.context, event->stream, event->pending);
    return context->sticky;
}

API cuEventElapsedTime(float *ms, CUevent start_handle, CUevent end_handle) {
    ENTER_CONTEXT(context);
    struct event *start = object_find(start_handle, EVENT), *end = object_find(end_handle, EVENT);
    REQUIRE(ms, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(start && end && start->recorded && end->recorded, CUDA_ERROR_INVALID_HANDLE);
    REQUIRE(!((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING), CUDA_ERROR_INVALID_HANDLE);
    REQUIRE(!start->pending && !end->pending, CUDA_ERROR_NOT_READY);
    *ms = (float)((double)(end->time_ns - start->time_ns) / 1e6);
    return CUDA_SUCCESS;
}
