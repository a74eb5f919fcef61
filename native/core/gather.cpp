#include "core/gather.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/prefetch.hpp"

namespace penstock {

RowTable::RowTable(std::span<const Piece> pieces, std::size_t row_bytes, std::size_t stride_bytes)
    : row_bytes_(row_bytes), stride_bytes_(stride_bytes) {
    for (const Piece& piece : pieces) {
        if (piece.rows < 0 || piece.rows > std::numeric_limits<std::int64_t>::max() - size_) {
            throw std::invalid_argument("the number of rows must be in [0, 2**63)");
        }
        if (piece.rows == 0) {
            continue;
        }
        begins_.push_back(piece.begin);
        first_keys_.push_back(size_);
        size_ += piece.rows;
    }
}

const std::byte* RowTable::row(std::int64_t key) const noexcept {
    std::size_t piece = 0;
    if (begins_.size() > 1) {
        const auto after = std::upper_bound(first_keys_.begin(), first_keys_.end(), key);
        piece = static_cast<std::size_t>(after - first_keys_.begin()) - 1;
    }
    return begins_[piece] + static_cast<std::size_t>(key - first_keys_[piece]) * stride_bytes_;
}

void RowTable::check(std::span<const std::int64_t> keys) const {
    const auto size = static_cast<std::uint64_t>(size_);
    for (const std::int64_t key : keys) {
        if (static_cast<std::uint64_t>(key) >= size) {  // a negative key is huge without its sign
            throw std::out_of_range("a key must be in [0, " + std::to_string(size_) + "); got " + std::to_string(key));
        }
    }
}

template <std::size_t Bytes>
void RowTable::copy_small(std::span<const std::int64_t> keys, std::byte* out) const noexcept {
    for (const std::int64_t key : keys) {
        std::memcpy(out, row(key), Bytes);
        out += Bytes;
    }
}

void RowTable::copy_rows(std::span<const std::int64_t> keys, std::byte* out) const noexcept {
    std::array<const std::byte*, rows_ahead> ring{};  // the addresses of the next rows, each computed once
    const std::size_t count = keys.size();
    const std::size_t begun = std::min(count, rows_ahead);
    for (std::size_t i = 0; i < begun; ++i) {
        ring[i] = row(keys[i]);
        prefetch(ring[i], row_bytes_);
    }
    for (std::size_t i = 0; i < count; ++i) {
        const std::byte* begin = ring[i % rows_ahead];
        if (i + rows_ahead < count) {
            ring[i % rows_ahead] = row(keys[i + rows_ahead]);
            prefetch(ring[i % rows_ahead], row_bytes_);
        }
        std::memcpy(out + i * row_bytes_, begin, row_bytes_);
    }
}

void RowTable::gather(std::span<const std::int64_t> keys, std::byte* out) const {
    check(keys);
    switch (row_bytes_) {
        case 0:
            return;
        case 1:
            return copy_small<1>(keys, out);
        case 2:
            return copy_small<2>(keys, out);
        case 4:
            return copy_small<4>(keys, out);
        case 8:
            return copy_small<8>(keys, out);
        default:
            return copy_rows(keys, out);
    }
}

bool has_repeats(std::span<const std::int64_t> keys) {
    if (keys.size() < 2) {
        return false;
    }
    // An open-addressing table, at most half full: the places of the keys, counted from 1, and 0 where there is none.
    const std::size_t slots = std::bit_ceil(2 * keys.size());
    const int shift = 64 - std::countr_zero(slots);
    std::vector<std::size_t> places(slots);
    for (std::size_t place = 0; place < keys.size(); ++place) {
        std::size_t slot = (static_cast<std::uint64_t>(keys[place]) * 0x9E3779B97F4A7C15U) >> shift;
        for (; places[slot] != 0; slot = (slot + 1) % slots) {
            if (keys[places[slot] - 1] == keys[place]) {
                return true;
            }
        }
        places[slot] = place + 1;
    }
    return false;
}

}  // namespace penstock
