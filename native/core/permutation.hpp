// A keyed bijection of [0, length), computed per position: the order of a shuffle.
//
// Up to `largest_table` positions it is an explicit table, shuffled once; beyond that a Feistel network, which needs no
// memory. The docstring of penstock.sampling.Permutation specifies both bit by bit. The order is a compatibility
// promise, and is the same for every instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "core/feistel.hpp"
#include "core/instructions.hpp"

namespace penstock {

// Immutable but for the inverse table, which is built under a once-flag: any thread may call any method.
class Permutation {
  public:
    static constexpr std::uint64_t largest_table = 1ULL << 16;
    static constexpr std::uint64_t largest_length = 1ULL << 62;

    // Throws std::invalid_argument if `length` exceeds `largest_length`.
    Permutation(std::uint64_t length, std::uint64_t key);

    std::uint64_t length() const noexcept { return length_; }

    // The key at `position`, which must be in [0, length), and the inverse.
    std::int64_t key_at(std::int64_t position) const;
    std::int64_t position_of(std::int64_t key) const;

    // Fills `keys[i]` from `positions[i]` until the first position outside [0, length), and returns the number filled.
    // `keys` must be as long as `positions`, and may be the same memory.
    std::size_t keys_at(std::span<const std::int64_t> positions, std::span<std::int64_t> keys,
                        Instructions instructions = best_instructions()) const;
    // The same for the inverse.
    std::size_t positions_of(std::span<const std::int64_t> keys, std::span<std::int64_t> positions,
                             Instructions instructions = best_instructions()) const;

  private:
    const std::vector<std::uint16_t>& inverse_table() const;

    std::uint64_t length_;
    FeistelNetwork network_;
    std::vector<std::uint16_t> table_;
    // Most permutations are never inverted, so the first use builds the inverse.
    mutable std::once_flag inverse_built_;
    mutable std::vector<std::uint16_t> inverse_;
};

}  // namespace penstock
