// The order of one epoch of a block shuffle: a bijection of [0, length) that has few blocks open at any time.
//
// The docstring of penstock.sampling.BlockShuffle specifies it. Python lays out the epoch's *pieces*, the parts of
// blocks between two borders of columns, in the order in which the epoch has them; a lookup is arithmetic and one
// search among the pieces' ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/feistel.hpp"

namespace penstock {

// Immutable: any thread may call any method.
class Lanes {
  public:
    struct Shape {
        std::uint64_t length;   // of the epoch
        std::uint64_t rows;     // in a batch, a multiple of `columns`
        std::uint64_t columns;  // at least 1
        std::uint64_t lanes;    // in a column, at least 1
        std::uint64_t block;    // the mean length of a block, at least 1
    };

    // `ends`: for each piece, the positions of the line up to its end, strictly increasing, the last one `length`.
    // `begins`: the key at which each piece begins. Throws std::invalid_argument if they don't fit.
    Lanes(const Shape& shape, std::vector<std::int64_t> ends, std::vector<std::int64_t> begins,
          std::uint64_t piece_seed, std::uint64_t lane_seed);

    // Fills `keys[i]` from `positions[i]` until the first position outside [0, length), and returns the number filled.
    // `keys` must be as long as `positions`, and may be the same memory.
    std::size_t keys_at(std::span<const std::int64_t> positions, std::span<std::int64_t> keys) const;

  private:
    // A column, and the round of its lanes whose permutation was used last: the next position often has the same.
    struct Round {
        std::uint64_t column;
        std::uint64_t number;
        std::uint64_t lanes;
        FeistelNetwork network;
    };

    void fill_directory();
    std::size_t piece_at(std::uint64_t at) const;
    std::int64_t key_at(std::uint64_t position, Round& round) const;
    std::uint64_t lane_of(std::uint64_t column, std::uint64_t number, std::uint64_t lanes, std::uint64_t turn,
                          Round& round) const;

    Shape shape_;
    std::vector<std::int64_t> ends_;
    std::vector<std::int64_t> begins_;
    // For each run of 2**shift_ positions of the line, the piece of the first: a search begins and ends there.
    std::vector<std::uint32_t> directory_;
    unsigned shift_ = 0;
    std::uint64_t piece_state_;
    std::uint64_t lane_state_;
};

}  // namespace penstock
