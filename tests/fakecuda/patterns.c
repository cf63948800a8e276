#include "patterns.h"

#define M 0xffffffffull /* 2^32 - 1 */
#define S 0x9e3779b1ull

static uint32_t mix(uint32_t x) {
    x ^= x >> 16;
    x *= 0x7feb352d;
    x ^= x >> 15;
    x *= 0x846ca68b;
    return x ^ x >> 16;
}

uint32_t pattern_word(struct pattern p, uint64_t index) {
    uint64_t moved = S * p.t % M + p.kappa;
    if (p.kind == RAMP) return (uint32_t)(1 + (p.base + M - 1 + index % M + moved) % M);
    if (p.kind == ADDRESS) return (uint32_t)(1 + (4 * (index % M) + moved) % M);
    uint32_t k = index & 0x7fff, q = (uint32_t)(index >> 15);
    uint32_t word = mix(k ^ mix(p.seed)) + mix(q ^ mix(p.t + p.kappa));
    return word ? word : 1;
}

unsigned char pattern_tail(struct pattern p, uint64_t words, uint32_t j) {
    return (unsigned char)(1 + pattern_word(p, words + j) % 255);
}

/* For the test that compares with known words. */
__attribute__((visibility("default")))
uint32_t fakecuda_pattern_word(uint32_t kind, uint32_t base, uint32_t seed, uint32_t kappa, uint32_t t, uint64_t index) {
    return pattern_word((struct pattern){kind, base, seed, kappa, t}, index);
}
