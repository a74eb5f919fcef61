#include "core/permutation.hpp"

#include <algorithm>
#include <array>
#include <cassert>
#include <numeric>
#include <stdexcept>

#ifdef PENSTOCK_HAS_AVX2_BUILD
#include <immintrin.h>
#endif

namespace penstock {
namespace {

// floor(value * bound / 2**64) without a 128-bit product; `bound` must be at most 2**32.
std::uint64_t scale_below(std::uint64_t value, std::uint64_t bound) {
    const std::uint64_t low = (value & 0xFFFFFFFFULL) * bound;
    const std::uint64_t high = (value >> 32) * bound;
    return (high + (low >> 32)) >> 32;
}

// ---- the table of a short permutation -------------------------------------------------------------------------------

std::vector<std::uint16_t> shuffled_table(std::uint64_t length, std::uint64_t key) {
    std::vector<std::uint16_t> table(length);
    std::iota(table.begin(), table.end(), std::uint16_t{0});
    SplitMix random(key);
    for (std::uint64_t last = length; last-- > 1;) {
        std::swap(table[last], table[scale_below(random.next(), last + 1)]);
    }
    return table;
}

std::size_t look_up(const std::vector<std::uint16_t>& table, std::span<const std::int64_t> from,
                    std::span<std::int64_t> to) {
    for (std::size_t i = 0; i < from.size(); ++i) {
        const auto value = static_cast<std::uint64_t>(from[i]);
        if (value >= table.size()) {
            return i;
        }
        to[i] = table[value];
    }
    return from.size();
}

// ---- many at once ---------------------------------------------------------------------------------------------------

// A block is computed in chunks that fit into the first-level cache. All values of a chunk take a step together; those
// that are still at or above `length` are moved to the front and take the next step, until none is left. So the hash
// runs over plain arrays of halves, without a branch per value, and no value waits for another.
constexpr std::size_t chunk_size = 2048;
constexpr std::size_t group_size = 32;  // values per iteration of the widest loop

struct Walkers {
    alignas(64) std::array<std::uint32_t, chunk_size> left;
    alignas(64) std::array<std::uint32_t, chunk_size> right;
    alignas(64) std::array<std::uint16_t, chunk_size> place;
};

template <Direction direction>
void step_portable(const FeistelNetwork& network, Walkers& walkers, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
        run_rounds<direction>(network, walkers.left[i], walkers.right[i]);
    }
}

#ifdef PENSTOCK_HAS_AVX2_BUILD

__attribute__((target("avx2"))) inline __m256i round_hash_avx2(__m256i half, __m256i round_key) {
    const __m256i first = _mm256_set1_epi32(0x7FEB352D);
    const __m256i second = _mm256_set1_epi32(static_cast<int>(0x846CA68BU));
    __m256i value = _mm256_mullo_epi32(_mm256_xor_si256(half, round_key), first);
    value = _mm256_mullo_epi32(_mm256_xor_si256(value, _mm256_srli_epi32(value, 15)), second);
    return _mm256_xor_si256(value, _mm256_srli_epi32(value, 16));
}

// Four vectors of eight are computed together, so that the multiplier never waits for a result.
template <Direction direction>
__attribute__((target("avx2"))) void step_avx2(const FeistelNetwork& network, Walkers& walkers, std::size_t count) {
    const __m256i left_mask = _mm256_set1_epi32(static_cast<int>(network.left_mask));
    const __m256i right_mask = _mm256_set1_epi32(static_cast<int>(network.right_mask));
    for (std::size_t start = 0; start < count; start += group_size) {
        auto* lefts = reinterpret_cast<__m256i*>(walkers.left.data() + start);
        auto* rights = reinterpret_cast<__m256i*>(walkers.right.data() + start);
        __m256i left[4];
        __m256i right[4];
        for (int i = 0; i < 4; ++i) {
            left[i] = _mm256_load_si256(lefts + i);
            right[i] = _mm256_load_si256(rights + i);
        }
        for (std::size_t i = 0; i < FeistelNetwork::rounds; ++i) {
            const std::size_t round = direction == Direction::forward ? i : FeistelNetwork::rounds - 1 - i;
            const __m256i round_key = _mm256_set1_epi32(static_cast<int>(network.round_keys[round]));
            for (int j = 0; j < 4; ++j) {
                if (round % 2 == 0) {
                    const __m256i hash = round_hash_avx2(right[j], round_key);
                    left[j] = _mm256_xor_si256(left[j], _mm256_and_si256(hash, left_mask));
                } else {
                    const __m256i hash = round_hash_avx2(left[j], round_key);
                    right[j] = _mm256_xor_si256(right[j], _mm256_and_si256(hash, right_mask));
                }
            }
        }
        for (int i = 0; i < 4; ++i) {
            _mm256_store_si256(lefts + i, left[i]);
            _mm256_store_si256(rights + i, right[i]);
        }
    }
}

#endif

template <Direction direction>
void step(const FeistelNetwork& network, Walkers& walkers, std::size_t count, Instructions instructions) {
#ifdef PENSTOCK_HAS_AVX2_BUILD
    if (instructions == Instructions::avx2) {
        // The last group is computed as a whole; its values beyond `count` are not read.
        const std::size_t end = std::min((count + group_size - 1) / group_size * group_size, chunk_size);
        std::fill(walkers.left.begin() + count, walkers.left.begin() + end, 0);
        std::fill(walkers.right.begin() + count, walkers.right.begin() + end, 0);
        step_avx2<direction>(network, walkers, count);
        return;
    }
#endif
    (void)instructions;
    step_portable<direction>(network, walkers, count);
}

template <Direction direction>
std::size_t walk_block(const FeistelNetwork& network, std::uint64_t length, std::span<const std::int64_t> from,
                       std::span<std::int64_t> to, Instructions instructions) {
    Walkers walkers;
    for (std::size_t start = 0; start < from.size(); start += chunk_size) {
        const std::size_t chunk = std::min(chunk_size, from.size() - start);
        std::size_t valid = 0;
        for (; valid < chunk; ++valid) {
            const auto value = static_cast<std::uint64_t>(from[start + valid]);
            if (value >= length) {
                break;
            }
            walkers.left[valid] = static_cast<std::uint32_t>(value >> network.right_bits);
            walkers.right[valid] = static_cast<std::uint32_t>(value) & network.right_mask;
            walkers.place[valid] = static_cast<std::uint16_t>(valid);
        }
        std::int64_t* const out = to.data() + start;
        for (std::size_t walking = valid; walking > 0;) {
            step<direction>(network, walkers, walking, instructions);
            std::size_t kept = 0;
            for (std::size_t i = 0; i < walking; ++i) {
                const std::uint32_t left = walkers.left[i];
                const std::uint32_t right = walkers.right[i];
                const std::uint16_t place = walkers.place[i];
                const std::uint64_t value = (static_cast<std::uint64_t>(left) << network.right_bits) | right;
                out[place] = static_cast<std::int64_t>(value);
                walkers.left[kept] = left;
                walkers.right[kept] = right;
                walkers.place[kept] = place;
                kept += value >= length ? 1 : 0;
            }
            walking = kept;
        }
        if (valid < chunk) {
            return start + valid;
        }
    }
    return from.size();
}

}  // namespace

Permutation::Permutation(std::uint64_t length, std::uint64_t key) : length_(length) {
    if (length > largest_length) {
        throw std::invalid_argument("length must be at most 2**62");
    }
    if (length <= largest_table) {
        table_ = shuffled_table(length, key);
    } else {
        network_ = make_network(length, key);
    }
}

std::int64_t Permutation::key_at(std::int64_t position) const {
    assert(static_cast<std::uint64_t>(position) < length_);
    if (length_ <= largest_table) {
        return table_[static_cast<std::size_t>(position)];
    }
    return walk<Direction::forward>(network_, length_, position);
}

std::int64_t Permutation::position_of(std::int64_t key) const {
    assert(static_cast<std::uint64_t>(key) < length_);
    if (length_ <= largest_table) {
        return inverse_table()[static_cast<std::size_t>(key)];
    }
    return walk<Direction::inverse>(network_, length_, key);
}

std::size_t Permutation::keys_at(std::span<const std::int64_t> positions, std::span<std::int64_t> keys,
                                 Instructions instructions) const {
    assert(keys.size() == positions.size());
    if (length_ <= largest_table) {
        return look_up(table_, positions, keys);
    }
    return walk_block<Direction::forward>(network_, length_, positions, keys, instructions);
}

std::size_t Permutation::positions_of(std::span<const std::int64_t> keys, std::span<std::int64_t> positions,
                                      Instructions instructions) const {
    assert(keys.size() == positions.size());
    if (length_ <= largest_table) {
        return look_up(inverse_table(), keys, positions);
    }
    return walk_block<Direction::inverse>(network_, length_, keys, positions, instructions);
}

const std::vector<std::uint16_t>& Permutation::inverse_table() const {
    std::call_once(inverse_built_, [this] {
        inverse_.resize(table_.size());
        for (std::size_t position = 0; position < table_.size(); ++position) {
            inverse_[table_[position]] = static_cast<std::uint16_t>(position);
        }
    });
    return inverse_;
}

}  // namespace penstock
