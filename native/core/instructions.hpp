// Which instructions a kernel is computed with, chosen when the program runs. Every choice gives the same bytes.
#pragma once

// Defined where functions can be built for AVX2 beside the plain code.
#if defined(__x86_64__) && defined(__GNUC__)
#define PENSTOCK_HAS_AVX2_BUILD 1
#endif

namespace penstock {

enum class Instructions { portable, avx2 };

// The fastest instructions that this processor has.
Instructions best_instructions() noexcept;

}  // namespace penstock
