// Fill and check for every pattern of dmabuf_mp/patterns.py, bit for bit as the words are there.
//
// Memory is touched 16 bytes a thread and load, UNROLL loads in flight: one load alone leaves most of a
// GPU's memory bandwidth unused. Indices are 64-bit throughout. `data` is aligned to 16 bytes.
// build_ptx.py makes kernels.ptx of this file.

typedef unsigned int u32;
typedef unsigned long long u64;

#define UNROLL 4
#define BLOCK 256
#define TILE (UNROLL * BLOCK)

// As KINDS in patterns.py counts them.
enum Kind { RAMP, RANDOM, ADDRESS };

// Addition modulo 2^32 - 1 of values from 1 to 2^32 - 1, which never gives 0: the carry goes round.
__device__ __forceinline__ u32 add(u32 a, u32 b)
{
    const u32 sum = a + b;
    return sum + (sum < a);
}

__device__ __forceinline__ u32 fold(u64 x)
{
    return add((u32)x, (u32)(x >> 32));
}

__device__ __forceinline__ u32 mix(u32 x)
{
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    return x ^ (x >> 16);
}

// What does not depend on the position: `ramp` and `address` need only `start`, the word at 0.
struct Pattern {
    u32 start, seed, time;
};

__device__ __forceinline__ Pattern prepare(u32 kind, u32 base, u32 seed, u32 kappa, u32 t)
{
    const u32 origin = kind == RAMP ? base : 1;
    return {add(add(fold(0x9E3779B1ull * t), kappa), origin), mix(seed), mix(t + kappa)};
}

template <u32 KIND>
__device__ __forceinline__ u32 word(const Pattern &p, u64 i)
{
    if (KIND != RANDOM)
        return fold(p.start + (KIND == ADDRESS ? 4 * i : i));
    const u32 x = mix(((u32)i & 0x7fff) ^ p.seed) + mix((u32)(i >> 15) ^ p.time);
    return x ? x : 1;
}

// Words 4v to 4v + 3. The four of a vector lie in one block of 2^15 words.
template <u32 KIND>
__device__ __forceinline__ uint4 vector(const Pattern &p, u64 v)
{
    if (KIND == RANDOM)
        return make_uint4(word<KIND>(p, 4 * v), word<KIND>(p, 4 * v + 1), word<KIND>(p, 4 * v + 2),
                          word<KIND>(p, 4 * v + 3));
    const u32 step = KIND == ADDRESS ? 4 : 1;
    const u32 x = word<KIND>(p, 4 * v);
    const u32 y = add(x, step), z = add(y, step);
    return make_uint4(x, y, z, add(z, step));
}

__device__ __forceinline__ u32 tail_byte(u32 value)
{
    return 1 + value % 255;
}

// What one thread found; `first` is a byte offset, all ones where nothing differed.
struct Found {
    u64 matched, mismatched, first;
};

__device__ __forceinline__ void compare(Found &found, u32 got, u32 expected, u64 offset)
{
    if (got == expected) {
        ++found.matched;
    } else {
        ++found.mismatched;
        found.first = min(found.first, offset);
    }
}

__device__ __forceinline__ void compare(Found &found, uint4 got, uint4 expected, u64 v)
{
    compare(found, got.x, expected.x, 16 * v);
    compare(found, got.y, expected.y, 16 * v + 4);
    compare(found, got.z, expected.z, 16 * v + 8);
    compare(found, got.w, expected.w, 16 * v + 12);
}

template <u32 KIND>
__device__ __forceinline__ Found check(const char *data, u64 words, u32 tail, const Pattern &p)
{
    const uint4 *const vectors = (const uint4 *)data;
    const u64 count = words / 4, tiles = count / TILE;
    Found found = {0, 0, ~0ull};

    for (u64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const u64 v = tile * TILE + threadIdx.x;
        uint4 got[UNROLL];
#pragma unroll
        for (u32 j = 0; j < UNROLL; ++j)
            got[j] = __ldcs(vectors + v + j * BLOCK);
#pragma unroll
        for (u32 j = 0; j < UNROLL; ++j) {
            const uint4 e = vector<KIND>(p, v + j * BLOCK);
            const u32 differs = (got[j].x ^ e.x) | (got[j].y ^ e.y) | (got[j].z ^ e.z) | (got[j].w ^ e.w);
            if (differs == 0)
                found.matched += 4;
            else
                compare(found, got[j], e, v + j * BLOCK);
        }
    }
    if (blockIdx.x == tiles % gridDim.x) {
#pragma unroll 1
        for (u64 v = tiles * TILE + threadIdx.x; v < count; v += BLOCK)
            compare(found, __ldcs(vectors + v), vector<KIND>(p, v), v);
        const u64 i = 4 * count + threadIdx.x;
        if (i < words)
            compare(found, ((const u32 *)data)[i], word<KIND>(p, i), 4 * i);
        if (threadIdx.x < tail) {
            const u64 offset = 4 * words + threadIdx.x;
            compare(found, (unsigned char)data[offset], tail_byte(word<KIND>(p, words + threadIdx.x)), offset);
        }
    }
    return found;
}

template <u32 KIND>
__device__ __forceinline__ void fill(char *data, u64 words, u32 tail, const Pattern &p)
{
    uint4 *const vectors = (uint4 *)data;
    const u64 count = words / 4;

    for (u64 v = blockIdx.x * (u64)BLOCK + threadIdx.x; v < count; v += gridDim.x * (u64)BLOCK)
        vectors[v] = vector<KIND>(p, v);
    if (blockIdx.x == 0) {
        const u64 i = 4 * count + threadIdx.x;
        if (i < words)
            ((u32 *)data)[i] = word<KIND>(p, i);
        if (threadIdx.x < tail)
            data[4 * words + threadIdx.x] = (char)tail_byte(word<KIND>(p, words + threadIdx.x));
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK)
dmabuf_mp_fill(u64 data, u64 words, u32 tail, u32 kind, u32 base, u32 seed, u32 kappa, u32 t)
{
    const Pattern p = prepare(kind, base, seed, kappa, t);
    char *const bytes = (char *)data;
    if (kind == RAMP)
        fill<RAMP>(bytes, words, tail, p);
    else if (kind == ADDRESS)
        fill<ADDRESS>(bytes, words, tail, p);
    else
        fill<RANDOM>(bytes, words, tail, p);
}

// results: matched, mismatched, least byte offset of a mismatch; the host sets them to 0, 0, all ones.
extern "C" __global__ void __launch_bounds__(BLOCK)
dmabuf_mp_check(u64 data, u64 words, u32 tail, u32 kind, u32 base, u32 seed, u32 kappa, u32 t, u64 results)
{
    const Pattern p = prepare(kind, base, seed, kappa, t);
    const char *const bytes = (const char *)data;
    Found found = kind == RAMP      ? check<RAMP>(bytes, words, tail, p)
                  : kind == ADDRESS ? check<ADDRESS>(bytes, words, tail, p)
                                    : check<RANDOM>(bytes, words, tail, p);

    // A warp adds up in registers, a block in shared memory, and one thread a block touches the counters.
    __shared__ Found warps[BLOCK / 32];
    for (u32 distance = 16; distance; distance /= 2) {
        found.matched += __shfl_down_sync(~0u, found.matched, distance);
        found.mismatched += __shfl_down_sync(~0u, found.mismatched, distance);
        found.first = min(found.first, __shfl_down_sync(~0u, found.first, distance));
    }
    if (threadIdx.x % 32 == 0)
        warps[threadIdx.x / 32] = found;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (u32 warp = 1; warp < BLOCK / 32; ++warp) {
            found.matched += warps[warp].matched;
            found.mismatched += warps[warp].mismatched;
            found.first = min(found.first, warps[warp].first);
        }
        u64 *const counters = (u64 *)results;
        atomicAdd(counters, found.matched);
        if (found.mismatched) {
            atomicAdd(counters + 1, found.mismatched);
            atomicMin(counters + 2, found.first);
        }
    }
}
