// A Feistel network: a keyed bijection of the integers below any length, without memory. Each round changes one half of
// a value by a hash of the other; values that fall outside the length take the network again (cycle walking).
#pragma once

#include <array>
#include <bit>
#include <cassert>
#include <cstddef>
#include <cstdint>

namespace penstock {

// The outputs of SplitMix64 (Steele, Lea and Flood, 2014) whose state starts at a key.
class SplitMix {
  public:
    explicit SplitMix(std::uint64_t state) : state_(state) {}

    static std::uint64_t mix(std::uint64_t value) {
        value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ULL;
        value = (value ^ (value >> 27)) * 0x94D049BB133111EBULL;
        return value ^ (value >> 31);
    }

    std::uint64_t next() {
        state_ += 0x9E3779B97F4A7C15ULL;
        return mix(state_);
    }

  private:
    std::uint64_t state_;
};

struct FeistelNetwork {
    static constexpr std::size_t rounds = 8;

    std::array<std::uint32_t, rounds> round_keys{};
    unsigned left_bits = 0;
    unsigned right_bits = 0;
    std::uint32_t left_mask = 0;
    std::uint32_t right_mask = 0;
};

// `length` must be at least 1.
inline FeistelNetwork make_network(std::uint64_t length, std::uint64_t key) {
    FeistelNetwork network;
    const auto bits = static_cast<unsigned>(std::bit_width(length - 1));
    network.left_bits = bits / 2;
    network.right_bits = bits - network.left_bits;
    network.left_mask = (1U << network.left_bits) - 1;
    network.right_mask = (1U << network.right_bits) - 1;
    SplitMix random(key);
    for (std::uint32_t& round_key : network.round_keys) {
        round_key = static_cast<std::uint32_t>(random.next() >> 32);
    }
    return network;
}

// The multipliers and shifts are those of `lowbias32` (Wellons, 2018), less its first shift.
inline std::uint32_t round_hash(std::uint32_t half, std::uint32_t round_key) {
    std::uint32_t value = (half ^ round_key) * 0x7FEB352DU;
    value = (value ^ (value >> 15)) * 0x846CA68BU;
    return value ^ (value >> 16);
}

enum class Direction { forward, inverse };

template <Direction direction>
inline void run_rounds(const FeistelNetwork& network, std::uint32_t& left, std::uint32_t& right) {
    for (std::size_t i = 0; i < FeistelNetwork::rounds; ++i) {
        const std::size_t round = direction == Direction::forward ? i : FeistelNetwork::rounds - 1 - i;
        if (round % 2 == 0) {
            left ^= round_hash(right, network.round_keys[round]) & network.left_mask;
        } else {
            right ^= round_hash(left, network.round_keys[round]) & network.right_mask;
        }
    }
}

// Repeats the network until the value is below `length`: this makes a bijection of a smaller set from one of a larger
// set (Black and Rogaway, 2002). The set is less than twice as large, so it takes fewer than two steps on average.
template <Direction direction>
std::int64_t walk(const FeistelNetwork& network, std::uint64_t length, std::int64_t from) {
    auto value = static_cast<std::uint64_t>(from);
    assert(value < length);
    do {
        auto left = static_cast<std::uint32_t>(value >> network.right_bits);
        auto right = static_cast<std::uint32_t>(value) & network.right_mask;
        run_rounds<direction>(network, left, right);
        value = (static_cast<std::uint64_t>(left) << network.right_bits) | right;
    } while (value >= length);
    return static_cast<std::int64_t>(value);
}

}  // namespace penstock
