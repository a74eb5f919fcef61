#include "core/stack.hpp"

#include <algorithm>
#include <cstring>

#include "core/parallel.hpp"

namespace penstock {
namespace {

// Parts of a copy begin at multiples of a page, so that few cache lines are written by two processors.
constexpr std::size_t part_unit = 4096;

// Copies the bytes [begin, end) of all rows.
void copy_span(std::span<const void* const> sources, std::size_t row_bytes, std::byte* destination, std::size_t begin,
               std::size_t end) noexcept {
    std::size_t row = begin / row_bytes;
    std::size_t offset = begin % row_bytes;
    while (begin < end) {
        const std::size_t length = std::min(row_bytes - offset, end - begin);
        std::memmove(destination + begin, static_cast<const std::byte*>(sources[row]) + offset, length);
        begin += length;
        offset = 0;
        ++row;
    }
}

}  // namespace

void copy_rows(std::span<const void* const> sources, std::size_t row_bytes, std::byte* destination) noexcept {
    if (row_bytes == 0) {
        return;
    }
    for (const void* source : sources) {
        // memmove, since an element may already lie in its row; it is as fast as memcpy where both are apart.
        std::memmove(destination, source, row_bytes);
        destination += row_bytes;
    }
}

void copy_rows_on_threads(std::span<const void* const> sources, std::size_t row_bytes, std::byte* destination,
                          std::size_t num_threads) {
    if (row_bytes == 0 || num_threads <= 1) {
        copy_rows(sources, row_bytes, destination);
        return;
    }
    run_in_parts(sources.size() * row_bytes, part_unit, num_threads,
                 [=](std::size_t begin, std::size_t end) { copy_span(sources, row_bytes, destination, begin, end); });
}

}  // namespace penstock
