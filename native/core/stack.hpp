// Copying rows into a batch: each source is one row of the same size, the rows lie one behind the other.
#pragma once

#include <cstddef>
#include <span>

namespace penstock {

// Copies rows into `destination`, which has room for all of them. A source may be the very place it is copied to.
// A source is not read where `row_bytes` is 0, and may be null then.
void copy_rows(std::span<const void* const> sources, std::size_t row_bytes, std::byte* destination) noexcept;

}  // namespace penstock
