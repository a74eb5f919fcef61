#include "core/instructions.hpp"

namespace penstock {

Instructions best_instructions() noexcept {
#ifdef PENSTOCK_HAS_AVX2_BUILD
    static const Instructions best = __builtin_cpu_supports("avx2") ? Instructions::avx2 : Instructions::portable;
    return best;
#else
    return Instructions::portable;
#endif
}

}  // namespace penstock
