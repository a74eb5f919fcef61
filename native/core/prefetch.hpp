// Prefetching of rows that are read in a random order.
#pragma once

#include <algorithm>
#include <cstddef>

namespace penstock {

// The first lines of each row miss the cache and the TLB. They are prefetched this many rows ahead; the hardware
// prefetches the rest of a row once its first lines are read.
constexpr std::size_t rows_ahead = 8;

inline void prefetch(const std::byte* begin, std::size_t bytes) noexcept {
#if defined(__GNUC__) || defined(__clang__)
    constexpr std::size_t line_bytes = 64;
    constexpr std::size_t most_lines = 4;
    const std::size_t lines = std::min((bytes + line_bytes - 1) / line_bytes, most_lines);
    for (std::size_t line = 0; line < lines; ++line) {
        __builtin_prefetch(begin + line * line_bytes);
    }
#else
    (void)begin;
    (void)bytes;
#endif
}

}  // namespace penstock
