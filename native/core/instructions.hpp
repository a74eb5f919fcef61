// The instruction set of a kernel, chosen at run time. Every choice computes the same bytes.
#pragma once

// Defined if functions can be compiled for AVX2 beside the portable code.
#if defined(__x86_64__) && defined(__GNUC__)
#define PENSTOCK_HAS_AVX2_BUILD 1
#endif

namespace penstock {

enum class Instructions { portable, avx2 };

// The fastest instructions that this processor has.
Instructions best_instructions() noexcept;

}  // namespace penstock
