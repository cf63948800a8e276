/* The two kernels, as the driver would run them: both take (data, words, tail bytes, kind, base, seed, kappa, t), and
 * the check also (results): matched, mismatched, smallest offset of a mismatch in bytes. */
#include "fakecuda.h"
#include "patterns.h"

#include <stdio.h>
#include <stdlib.h>

/* One word, or one byte of the tail, which lie `offset` bytes from the start. */
static void fill_unit(unsigned char *at, struct pattern pattern, uint64_t offset, uint64_t words) {
    if (offset / 4 < words) *(uint32_t *)(void *)at = pattern_word(pattern, offset / 4);
    else *at = pattern_tail(pattern, words, (uint32_t)(offset - 4 * words));
}

static bool check_unit(const unsigned char *at, struct pattern pattern, uint64_t offset, uint64_t words) {
    if (offset / 4 < words) return *(const uint32_t *)(const void *)at == pattern_word(pattern, offset / 4);
    return *at == pattern_tail(pattern, words, (uint32_t)(offset - 4 * words));
}

/* FAKECUDA_FLIP=OFFSET:BIT spoils one bit of what was filled. */
static void flip(const struct context *context, uint64_t data, uint64_t size) {
    const char *asked = option("FLIP", context->device->index);
    if (!asked) return;
    char *end;
    uint64_t offset = strtoull(asked, &end, 0), available;
    unsigned bit = *end == ':' ? (unsigned)atoi(end + 1) % 8 : 0;
    if (offset < size) *(unsigned char *)range_pointer(data + offset, &available) ^= (unsigned char)(1u << bit);
}

CUresult kernel_run(struct context *context, int kernel, const uint64_t *parameters) {
    uint64_t data = parameters[0], words = parameters[1], tail = (uint32_t)parameters[2], results = parameters[8];
    struct pattern pattern = {(uint32_t)parameters[3], (uint32_t)parameters[4], (uint32_t)parameters[5],
                              (uint32_t)parameters[6], (uint32_t)parameters[7]};
    bool fill = kernel == FILL_KERNEL;
    uint64_t size = 4 * words + tail, counts[2] = {0, 0}, first = UINT64_MAX, piece;
    REQUIRE(data % 16 == 0 && (fill || results % 8 == 0), CUDA_ERROR_MISALIGNED_ADDRESS);
    REQUIRE(!range_check(context, data, size, fill ? FOR_WRITE : 0), CUDA_ERROR_ILLEGAL_ADDRESS);
    REQUIRE(fill || !range_check(context, results, 24, FOR_WRITE), CUDA_ERROR_ILLEGAL_ADDRESS);
    if (pattern.kind > ADDRESS)
        fprintf(stderr, "fakecuda (test double): a kernel was given pattern kind %u\n", pattern.kind);
    for (uint64_t done = 0; done < size; done += piece) {
        unsigned char *at = range_pointer(data + done, &piece);
        piece = piece < size - done ? piece : size - done;
        for (uint64_t i = 0; i < piece; i += (done + i) / 4 < words ? 4 : 1)
            if (fill) {
                fill_unit(at + i, pattern, done + i, words);
            } else {
                bool good = check_unit(at + i, pattern, done + i, words);
                counts[!good]++;
                if (!good && first > done + i) first = done + i;
            }
    }
    if (fill) {
        flip(context, data, size);
    } else {
        uint64_t available, *result = range_pointer(results, &available);
        result[0] += counts[0];
        result[1] += counts[1];
        if (first < result[2]) result[2] = first;
    }
    return CUDA_SUCCESS;
}
