// Copying rows into a batch: each source is one row of the same size; the rows of the batch are consecutive.
#pragma once

#include <cstddef>
#include <span>

namespace penstock {

// Items of equal size with any distances, such as those of a mirrored or transposed view of an image.
struct StridedItems {
    const std::byte* first;
    std::span<const std::ptrdiff_t> shape;
    std::span<const std::ptrdiff_t> strides;  // in bytes, one for each axis
    std::size_t item_bytes;
};

// Copies rows into `destination`, which has room for all of them. A source may be the place that it is copied to. If
// `row_bytes` is 0, sources are not read, and may be null.
void copy_rows(std::span<const void* const> sources, std::size_t row_bytes, std::byte* destination) noexcept;

// The same on `num_threads` threads, this one included. They divide the bytes, not the rows, so that a few large rows
// are divided, too. A source may be its own place in the destination, and must not overlap it otherwise.
void copy_rows_on_threads(std::span<const void* const> sources, std::size_t row_bytes, std::byte* destination,
                          std::size_t num_threads);

// Copies items one after the other, the last axis first, into `destination`, which must not overlap them.
void copy_strided(const StridedItems& items, std::byte* destination) noexcept;

// Fills memory with one item, of which it has room for a whole number. Items may be of any size but zero.
void fill_items(std::span<std::byte> place, std::span<const std::byte> item) noexcept;

}  // namespace penstock
