// Runs dmabuf_mp/backends/cuda/kernels.cu, the very text, on the CPU: block after block, each CUDA thread of a
// block in turn, from one barrier to the next. So its arithmetic is tested where there is no GPU.
#include <ucontext.h>

#include <algorithm>
#include <functional>

using std::min;

struct uint4 {
    unsigned x, y, z, w;
};
struct Index {
    unsigned x;
};

static Index threadIdx, blockIdx, gridDim;
static ucontext_t scheduler;
static struct Thread {
    ucontext_t context;
    char stack[1 << 14];
    bool done;
} threads[256];  // BLOCK
static std::function<void()> kernel;
static unsigned long long shuffled[1024];

#define __device__
#define __forceinline__ inline
#define __global__
#define __launch_bounds__(threads)
#define __shared__ static

static uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static uint4 __ldcs(const uint4 *address) { return *address; }
static void __syncthreads() { swapcontext(&threads[threadIdx.x].context, &scheduler); }

static unsigned long long __shfl_down_sync(unsigned, unsigned long long value, unsigned distance)
{
    shuffled[threadIdx.x] = value;
    __syncthreads();
    const unsigned source = threadIdx.x + distance;
    const unsigned long long got = source / 32 == threadIdx.x / 32 ? shuffled[source] : value;
    __syncthreads();
    return got;
}

static void atomicAdd(unsigned long long *to, unsigned long long value) { *to += value; }
static void atomicMin(unsigned long long *to, unsigned long long value) { *to = min(*to, value); }

#include "kernels.cu"

static void run_thread()
{
    kernel();
    threads[threadIdx.x].done = true;
}

static void launch(unsigned blocks, std::function<void()> function)
{
    kernel = std::move(function);
    gridDim.x = blocks;
    for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
        for (Thread &thread : threads) {
            getcontext(&thread.context);
            thread.context.uc_stack.ss_sp = thread.stack;
            thread.context.uc_stack.ss_size = sizeof thread.stack;
            thread.context.uc_link = &scheduler;
            thread.done = false;
            makecontext(&thread.context, run_thread, 0);
        }
        while (!threads[0].done)
            for (threadIdx.x = 0; threadIdx.x < BLOCK; ++threadIdx.x)
                swapcontext(&scheduler, &threads[threadIdx.x].context);
    }
}

extern "C" void run_fill(unsigned blocks, u64 data, u64 words, u32 tail, u32 kind, u32 base, u32 seed, u32 kappa, u32 t)
{
    launch(blocks, [=] { dmabuf_mp_fill(data, words, tail, kind, base, seed, kappa, t); });
}

extern "C" void run_check(unsigned blocks, u64 data, u64 words, u32 tail, u32 kind, u32 base, u32 seed, u32 kappa,
                          u32 t, u64 results)
{
    launch(blocks, [=] { dmabuf_mp_check(data, words, tail, kind, base, seed, kappa, t, results); });
}

// Words far beyond any buffer that a test can hold.
extern "C" u32 word_at(u64 i, u32 kind, u32 base, u32 seed, u32 kappa, u32 t)
{
    const Pattern p = prepare(kind, base, seed, kappa, t);
    return kind == RAMP ? word<RAMP>(p, i) : kind == RANDOM ? word<RANDOM>(p, i) : word<ADDRESS>(p, i);
}
