// Copying rows into a batch: each source is one row of the same size, the rows lie one behind the other.
#pragma once

#include <cstddef>
#include <span>

namespace penstock {

// Copies rows into `destination`, which has room for all of them. A source may be the very place it is copied to.
// A source is not read where `row_bytes` is 0, and may be null then.
void copy_rows(std::span<const void* const> sources, std::size_t row_bytes, std::byte* destination) noexcept;

// The same on `num_threads` threads, this one among them. They share the bytes, not the rows, so that few large rows
// are cut, too. But for being its own place, no source may overlap the destination.
void copy_rows_on_threads(std::span<const void* const> sources, std::size_t row_bytes, std::byte* destination,
                          std::size_t num_threads);

}  // namespace penstock
