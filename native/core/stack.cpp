#include "core/stack.hpp"

#include <algorithm>
#include <cstring>

#include "core/parallel.hpp"
#include "core/prefetch.hpp"

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

// Copies `count` pieces of a size that is known when this is compiled, so that no piece is a call.
template <std::size_t size>
std::byte* copy_sized(const std::byte* source, std::ptrdiff_t count, std::ptrdiff_t stride, std::byte* to) noexcept {
    constexpr std::ptrdiff_t at_once = 8;  // fewer additions and jumps for each piece
    for (; count >= at_once; count -= at_once, source += at_once * stride, to += at_once * size) {
        for (std::ptrdiff_t i = 0; i < at_once; ++i) {
            std::memcpy(to + static_cast<std::size_t>(i) * size, source + i * stride, size);
        }
    }
    for (; count > 0; --count, source += stride, to += size) {
        std::memcpy(to, source, size);
    }
    return to;
}

std::byte* copy_pieces(const std::byte* source, std::ptrdiff_t count, std::ptrdiff_t stride, std::size_t size,
                       std::byte* to) noexcept {
    switch (size) {
        case 1:
            return copy_sized<1>(source, count, stride, to);
        case 2:
            return copy_sized<2>(source, count, stride, to);
        case 3:
            return copy_sized<3>(source, count, stride, to);
        case 4:
            return copy_sized<4>(source, count, stride, to);
        case 6:
            return copy_sized<6>(source, count, stride, to);
        case 8:
            return copy_sized<8>(source, count, stride, to);
        case 12:
            return copy_sized<12>(source, count, stride, to);
        case 16:
            return copy_sized<16>(source, count, stride, to);
        default:
            for (std::ptrdiff_t i = 0; i < count; ++i, source += stride, to += size) {
                std::memcpy(to, source, size);
            }
            return to;
    }
}

// Copies all pieces below some axes; returns the end of the copy.
std::byte* copy_axes(const std::byte* source, std::span<const std::ptrdiff_t> shape,
                     std::span<const std::ptrdiff_t> strides, std::size_t size, std::byte* to) noexcept {
    if (shape.empty()) {
        return copy_pieces(source, 1, 0, size, to);
    }
    if (shape.size() == 1) {
        return copy_pieces(source, shape[0], strides[0], size, to);
    }
    for (std::ptrdiff_t i = 0; i < shape[0]; ++i, source += strides[0]) {
        to = copy_axes(source, shape.subspan(1), strides.subspan(1), size, to);
    }
    return to;
}

}  // namespace

void copy_strided(const StridedItems& items, std::byte* destination) noexcept {
    std::size_t axes = items.shape.size();
    std::size_t size = items.item_bytes;
    // The last axes whose items lie one after the other are one piece, such as the channels of a pixel.
    while (axes > 0 && (items.shape[axes - 1] == 1 || items.strides[axes - 1] == static_cast<std::ptrdiff_t>(size))) {
        size *= static_cast<std::size_t>(items.shape[axes - 1]);
        --axes;
    }
    copy_axes(items.first, items.shape.first(axes), items.strides.first(axes), size, destination);
}

void copy_rows(std::span<const void* const> sources, std::size_t row_bytes, std::byte* destination) noexcept {
    if (row_bytes == 0) {
        return;
    }
    for (std::size_t row = 0; row < sources.size(); ++row, destination += row_bytes) {
        if (row + rows_ahead < sources.size()) {
            prefetch(static_cast<const std::byte*>(sources[row + rows_ahead]), row_bytes);
        }
        // memmove, since an element may already lie in its row; it is as fast as memcpy where both are apart.
        std::memmove(destination, sources[row], row_bytes);
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

void fill_items(std::span<std::byte> place, std::span<const std::byte> item) noexcept {
    if (place.empty()) {
        return;
    }
    if (std::ranges::all_of(item, [&](std::byte each) { return each == item[0]; })) {
        std::memset(place.data(), static_cast<int>(item[0]), place.size());
        return;
    }
    std::memcpy(place.data(), item.data(), item.size());
    for (std::size_t filled = item.size(); filled < place.size();) {
        const std::size_t length = std::min(filled, place.size() - filled);
        std::memcpy(place.data() + filled, place.data(), length);
        filled += length;
    }
}

}  // namespace penstock
