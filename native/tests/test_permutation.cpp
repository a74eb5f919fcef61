// The permutation's promises, without Python: bijective, invertible, and the same for every instruction set.
#include "core/lanes.hpp"
#include "core/permutation.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

namespace {

using penstock::Instructions;
using penstock::Lanes;
using penstock::Permutation;
using Values = std::vector<std::int64_t>;

int failures = 0;

void expect(bool holds, const char* promise, std::uint64_t length) {
    if (!holds) {
        ++failures;
        std::printf("FAILED for length %llu: %s\n", static_cast<unsigned long long>(length), promise);
    }
}

Values consecutive(std::int64_t start, std::size_t count) {
    Values values(count);
    std::iota(values.begin(), values.end(), start);
    return values;
}

Values keys_of(const Permutation& permutation, const Values& positions, Instructions instructions) {
    Values keys(positions.size(), -1);
    const std::size_t filled = permutation.keys_at(positions, keys, instructions);
    expect(filled == positions.size(), "every position in range is mapped", permutation.length());
    return keys;
}

void test_bijective_and_invertible(std::uint64_t length) {
    const Permutation permutation(length, 0x0123456789ABCDEFULL ^ length);
    const Values positions = consecutive(0, length);
    const Values keys = keys_of(permutation, positions, Instructions::portable);
    Values sorted = keys;
    std::sort(sorted.begin(), sorted.end());
    expect(sorted == positions, "the keys are the positions in another order", length);

    Values back = keys;
    expect(permutation.positions_of(keys, back, Instructions::portable) == length && back == positions,
           "the inverse block leads back", length);
    bool scalar_agrees = true;
    for (std::size_t i = 0; i < length; i += 1 + length / 1000) {
        scalar_agrees = scalar_agrees && permutation.key_at(positions[i]) == keys[i];
        scalar_agrees = scalar_agrees && permutation.position_of(keys[i]) == positions[i];
    }
    expect(scalar_agrees, "one at a time equals many at once", length);
}

// Blocks of all sizes around a vector, a group and a chunk, from all over the range.
void test_instructions_agree(std::uint64_t length) {
    if (penstock::best_instructions() == Instructions::portable) {
        return;
    }
    const Permutation permutation(length, length * 31);
    for (const std::size_t count : {1, 7, 8, 9, 31, 32, 33, 2047, 2048, 2049, 5000}) {
        if (count > length) {
            continue;
        }
        for (const std::uint64_t start : {std::uint64_t{0}, (length - count) / 2, length - count}) {
            const Values positions = consecutive(static_cast<std::int64_t>(start), count);
            const Values keys = keys_of(permutation, positions, Instructions::portable);
            expect(keys == keys_of(permutation, positions, Instructions::avx2), "AVX2 gives the same keys", length);
            Values back(count);
            permutation.positions_of(keys, back, Instructions::avx2);
            expect(back == positions, "AVX2 gives the same inverse", length);
        }
    }
}

void test_stops_at_the_first_position_out_of_range(std::uint64_t length) {
    const Permutation permutation(length, 1);
    for (const std::int64_t outside : {std::int64_t{-1}, static_cast<std::int64_t>(length), INT64_MAX, INT64_MIN}) {
        for (const std::size_t place : {0, 1, 33, 2048, 2999}) {
            Values positions(3000, static_cast<std::int64_t>(length - 1));
            positions[place] = outside;
            Values keys(positions.size(), -7);
            expect(permutation.keys_at(positions, keys) == place, "it stops where the range ends", length);
            const std::int64_t key = permutation.key_at(static_cast<std::int64_t>(length - 1));
            const auto stop = keys.begin() + static_cast<std::ptrdiff_t>(place);
            expect(std::count(keys.begin(), stop, key) == stop - keys.begin(), "earlier values are mapped", length);
            expect(std::count(stop, keys.end(), -7) == keys.end() - stop, "nothing beyond is written", length);
        }
    }
}

void test_too_long() {
    bool refused = false;
    try {
        const Permutation permutation(Permutation::largest_length + 1, 0);
    } catch (const std::invalid_argument&) {
        refused = true;
    }
    expect(refused, "a length over 2**62 is refused", Permutation::largest_length + 1);
}

// Under the thread sanitizer this fails if the inverse table is built without its once-flag.
void test_inverse_from_many_threads() {
    const Permutation permutation(50000, 3);
    const Values keys = consecutive(0, 50000);
    std::vector<Values> answers(4, Values(keys.size()));
    std::vector<std::thread> threads;
    for (Values& answer : answers) {
        threads.emplace_back([&permutation, &keys, &answer] { permutation.positions_of(keys, answer); });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    const bool agree =
        std::all_of(answers.begin(), answers.end(), [&](const Values& answer) { return answer == answers[0]; });
    expect(agree, "threads that invert at once get the same", 50000);
}

void test_lanes(std::uint64_t length, std::uint64_t rows, std::uint64_t columns, std::uint64_t lanes) {
    Values ends;
    Values begins;
    for (std::uint64_t end = 0; end < length;) {
        begins.push_back(static_cast<std::int64_t>(end));
        end = std::min(length, end + 1 + end % 7);
        ends.push_back(static_cast<std::int64_t>(end));
    }
    const Lanes order({length, rows, columns, lanes, 4}, ends, begins, 1, 2);
    const Values positions = consecutive(0, length + 1);
    Values keys(positions.size());
    expect(order.keys_at(positions, keys) == length, "it stops where the range ends", length);
    keys.pop_back();
    std::sort(keys.begin(), keys.end());
    expect(keys == consecutive(0, length), "lanes have every key once", length);
}

void test_lanes_of_other_pieces_are_refused() {
    bool refused = false;
    try {
        const Lanes order({10, 4, 3, 1, 1}, {10}, {0}, 1, 2);
    } catch (const std::invalid_argument&) {
        refused = true;
    }
    expect(refused, "rows that the columns don't divide are refused", 10);
}

}  // namespace

int main() {
    for (const std::uint64_t length : {0, 1, 5, 64, 1000, 4097}) {
        test_lanes(length, 1, 1, 1);
        test_lanes(length, 12, 4, 5);
        test_lanes(length, 64, 64, 1000);
    }
    test_lanes_of_other_pieces_are_refused();
    for (const std::uint64_t length : {0, 1, 2, 3, 65535, 65536, 65537, 65539, 131071, 131072, 131073, 262145}) {
        test_bijective_and_invertible(length);
    }
    constexpr std::array<std::uint64_t, 7> large = {65537,         131072,    131073, 1281167, (1ULL << 32) + 1,
                                                    1000000000000, 1ULL << 62};
    for (const std::uint64_t length : large) {
        test_instructions_agree(length);
    }
    for (const std::uint64_t length : {std::uint64_t{100}, std::uint64_t{70000}}) {
        test_stops_at_the_first_position_out_of_range(length);
    }
    test_too_long();
    test_inverse_from_many_threads();
    std::printf("permutation: %d failures\n", failures);
    return failures == 0 ? 0 : 1;
}
