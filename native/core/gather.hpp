// Rows of equal size, at equal strides in one or more pieces of memory, copied by key.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace penstock {

// A piece of memory that holds `rows` rows, the first of which begins at `begin`.
struct Piece {
    const std::byte* begin;
    std::int64_t rows;
};

// The rows of all pieces, one piece after another; a key is a row's number. Rows may overlap (the stride may be smaller
// than a row), and nothing needs to be aligned. The pieces' memory is borrowed: its owner must outlive the table.
// All methods are const and may run in several threads at once.
class RowTable {
  public:
    // Throws std::invalid_argument if a piece has a negative number of rows, or their sum overflows.
    RowTable(std::span<const Piece> pieces, std::size_t row_bytes, std::size_t stride_bytes);

    std::int64_t size() const noexcept { return size_; }
    std::size_t row_bytes() const noexcept { return row_bytes_; }

    // Copies the rows of `keys` to `out`, which has room for keys.size() * row_bytes() bytes and overlaps no piece.
    // Throws std::out_of_range, before anything is written, if a key isn't in [0, size()).
    void gather(std::span<const std::int64_t> keys, std::byte* out) const;

  private:
    const std::byte* row(std::int64_t key) const noexcept;
    void check(std::span<const std::int64_t> keys) const;
    template <std::size_t Bytes>
    void copy_small(std::span<const std::int64_t> keys, std::byte* out) const noexcept;
    void copy_rows(std::span<const std::int64_t> keys, std::byte* out) const noexcept;

    std::vector<const std::byte*> begins_;  // of the pieces that have rows
    std::vector<std::int64_t> first_keys_;  // the key of each such piece's first row; ascending from 0
    std::int64_t size_ = 0;
    std::size_t row_bytes_;
    std::size_t stride_bytes_;
};

// Whether a key occurs more than once. It takes a few nanoseconds a key: sorting thousands of keys takes ten times as
// long, and so does a set of Python's.
bool has_repeats(std::span<const std::int64_t> keys);

}  // namespace penstock
