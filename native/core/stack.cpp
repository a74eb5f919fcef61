#include "core/stack.hpp"

#include <cstring>

namespace penstock {

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

}  // namespace penstock
