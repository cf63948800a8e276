/* The data patterns, written a second time from their definition: a slip in the package's own cannot hide here. */
#ifndef FAKECUDA_PATTERNS_H
#define FAKECUDA_PATTERNS_H

#include <stdint.h>

enum pattern_kind { RAMP = 0, RANDOM = 1, ADDRESS = 2 }; /* as the package numbers them */

struct pattern {
    uint32_t kind, base, seed, kappa, t;
};

/* Word `index` from the start of the shared range; never zero. */
uint32_t pattern_word(struct pattern pattern, uint64_t index);

/* Byte `j` after `words` whole words; never zero. */
unsigned char pattern_tail(struct pattern pattern, uint64_t words, uint32_t j);

#endif
