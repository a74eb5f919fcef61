// This unit is compiled with -ffp-contract=off: the weights are rounded in the same way on every processor.
#include "core/resize.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#ifdef PENSTOCK_HAS_AVX2_BUILD
#include <immintrin.h>
#endif

namespace penstock {
namespace {

constexpr int kept_bits = 7;          // of a line's sums, below the level: 255 * 2**7 is below 2**15
constexpr int most_row_bits = 20;     // so that 255 * 2**20 fits in 32 bits
constexpr int most_column_bits = 15;  // so that 255 * 2**(7 + 15) does
constexpr std::size_t tap_group = 4;
constexpr std::size_t bytes_at_once = 32;

// The places [first, last) that a place of the result is a sum of, and the middle of the filter.
struct Window {
    double middle;
    std::size_t first;
    std::size_t last;
};

Window window_of(std::size_t place, double scale, double support, std::size_t from) {
    const double middle = (static_cast<double>(place) + 0.5) * scale;
    const double first = std::max(middle - support + 0.5, 0.0);
    const double last = std::min(middle + support + 0.5, static_cast<double>(from));
    return {middle, static_cast<std::size_t>(first), static_cast<std::size_t>(last)};
}

// Adds the triangle's value at each place of a window, divided by their sum.
void add_shares(const Window& window, double support, std::vector<double>& shares) {
    const std::size_t begin = shares.size();
    double sum = 0;
    for (std::size_t place = window.first; place < window.last; ++place) {
        const double distance = std::abs((static_cast<double>(place) - window.middle + 0.5) / support);
        shares.push_back(std::max(1 - distance, 0.0));
        sum += shares.back();
    }
    for (std::size_t i = begin; i < shares.size(); ++i) shares[i] /= sum;
}

void sum_lines_portable(const std::uint8_t* const* lines, const std::int16_t* weights, std::size_t taps, int shift,
                        std::size_t count, std::int16_t* sums) {
    constexpr std::size_t chunk = 256;
    std::int32_t total[chunk];
    for (std::size_t start = 0; start < count; start += chunk) {
        const std::size_t size = std::min(chunk, count - start);
        std::fill_n(total, size, std::int32_t{1} << (shift - 1));
        for (std::size_t tap = 0; tap < taps; ++tap) {
            const std::int32_t weight = weights[tap];
            const std::uint8_t* line = lines[tap] + start;
            for (std::size_t i = 0; i < size; ++i) total[i] += weight * line[i];
        }
        for (std::size_t i = 0; i < size; ++i) sums[start + i] = static_cast<std::int16_t>(total[i] >> shift);
    }
}

void put(std::uint8_t* to, std::uint32_t red, std::uint32_t green, std::uint32_t blue) {
    to[0] = static_cast<std::uint8_t>(red);
    to[1] = static_cast<std::uint8_t>(green);
    to[2] = static_cast<std::uint8_t>(blue);
}

void sum_columns_portable(const std::int16_t* sums, const AxisWeights& weights, const ThreeBytePixels& to,
                          std::uint8_t* line) {
    const int shift = weights.bits() + kept_bits;
    for (std::size_t x = 0; x < to.width; ++x) {
        const std::int16_t* pixels = sums + weights.first(x) * 4;
        const std::int16_t* weight = weights.of(x);
        std::int32_t total[3];
        std::fill_n(total, 3, std::int32_t{1} << (shift - 1));
        for (std::size_t tap = 0; tap < weights.taps(x); ++tap) {
            for (std::size_t channel = 0; channel < 3; ++channel) {
                total[channel] += weight[tap] * pixels[tap * 4 + channel];
            }
        }
        const auto level = [&](std::size_t channel) { return static_cast<std::uint32_t>(total[channel] >> shift); };
        put(line + static_cast<std::ptrdiff_t>(x) * to.pixel_stride, level(0), level(1), level(2));
    }
}

#ifdef PENSTOCK_HAS_AVX2_BUILD

// Two weights as one word, for multiplications of pairs.
std::int32_t pair_of(const std::int16_t* weights) {
    std::int32_t pair;
    std::memcpy(&pair, weights, sizeof(pair));
    return pair;
}

__attribute__((target("avx2"))) void sum_lines_avx2(const std::uint8_t* const* lines, const std::int16_t* weights,
                                                    std::size_t taps, int shift, std::size_t count,
                                                    std::int16_t* sums) {
    const __m256i zero = _mm256_setzero_si256();
    const __m256i half = _mm256_set1_epi32(1 << (shift - 1));
    const __m128i places = _mm_cvtsi32_si128(shift);
    for (std::size_t x = 0; x < count; x += bytes_at_once) {
        __m256i total[4] = {half, half, half, half};
        for (std::size_t tap = 0; tap < taps; tap += 2) {
            const __m256i pair = _mm256_set1_epi32(pair_of(weights + tap));
            const __m256i one = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(lines[tap] + x));
            const __m256i two = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(lines[tap + 1] + x));
            const __m256i low = _mm256_unpacklo_epi8(one, two);
            const __m256i high = _mm256_unpackhi_epi8(one, two);
            const __m256i words[4] = {_mm256_unpacklo_epi8(low, zero), _mm256_unpackhi_epi8(low, zero),
                                      _mm256_unpacklo_epi8(high, zero), _mm256_unpackhi_epi8(high, zero)};
            for (int part = 0; part < 4; ++part) {
                total[part] = _mm256_add_epi32(total[part], _mm256_madd_epi16(words[part], pair));
            }
        }
        for (__m256i& each : total) each = _mm256_sra_epi32(each, places);
        // Each half of a vector has the sums of one half of the bytes.
        const __m256i low = _mm256_packs_epi32(total[0], total[1]);
        const __m256i high = _mm256_packs_epi32(total[2], total[3]);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums + x), _mm256_permute2x128_si256(low, high, 0x20));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums + x + 16), _mm256_permute2x128_si256(low, high, 0x31));
    }
}

// The sums of one place: of its even taps' pairs in the lower half, of the others in the upper one.
__attribute__((target("avx2"))) inline __m256i sum_of_place(const std::int16_t* sums, const AxisWeights& weights,
                                                            std::size_t x) {
    // Of each half's two pixels, the two words of a channel beside each other.
    const __m128i channel_pairs = _mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15);
    const __m256i pixel_order = _mm256_broadcastsi128_si256(channel_pairs);
    // The first two of four weights for the lower half, the last two for the upper one.
    const __m256i weight_order = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
    const std::int16_t* pixels = sums + weights.first(x) * 4;
    const std::int16_t* weight = weights.of(x);
    const std::size_t taps = weights.taps(x);
    __m256i total = _mm256_setzero_si256();
    for (std::size_t tap = 0; tap < taps; tap += tap_group) {
        const __m256i four = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(pixels + tap * 4));
        const __m128i quad = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(weight + tap));
        const __m256i factors = _mm256_permutevar8x32_epi32(_mm256_castsi128_si256(quad), weight_order);
        total = _mm256_add_epi32(total, _mm256_madd_epi16(_mm256_shuffle_epi8(four, pixel_order), factors));
    }
    return total;
}

__attribute__((target("avx2"))) void sum_columns_avx2(const std::int16_t* sums, const AxisWeights& weights,
                                                      const ThreeBytePixels& to, std::uint8_t* line) {
    const int shift = weights.bits() + kept_bits;
    const __m256i half = _mm256_set1_epi32(1 << (shift - 1));
    const __m128i places = _mm_cvtsi32_si128(shift);
    for (std::size_t x = 0; x < to.width; x += 2) {
        const std::size_t next = std::min(x + 1, to.width - 1);  // the last place of an odd number is computed twice
        const __m256i one = sum_of_place(sums, weights, x);
        const __m256i two = sum_of_place(sums, weights, next);
        const __m256i lower = _mm256_permute2x128_si256(one, two, 0x20);
        const __m256i upper = _mm256_permute2x128_si256(one, two, 0x31);
        const __m256i both = _mm256_add_epi32(_mm256_add_epi32(lower, upper), half);
        const __m256i words = _mm256_packs_epi32(_mm256_sra_epi32(both, places), both);
        const __m256i bytes = _mm256_packus_epi16(words, words);
        const auto first = static_cast<std::uint32_t>(_mm256_extract_epi32(bytes, 0));
        const auto second = static_cast<std::uint32_t>(_mm256_extract_epi32(bytes, 4));
        put(line + static_cast<std::ptrdiff_t>(x) * to.pixel_stride, first, first >> 8, first >> 16);
        put(line + static_cast<std::ptrdiff_t>(next) * to.pixel_stride, second, second >> 8, second >> 16);
    }
}

#endif

}  // namespace

void AxisWeights::set(std::size_t from, std::size_t to, int most_bits) {
    if (from == from_ && to == to_) return;
    const double scale = static_cast<double>(from) / static_cast<double>(to);
    const double support = std::max(scale, 1.0);
    from_ = to_ = 0;  // until all is set: an allocation below may fail
    spans_.resize(to);
    shares_.clear();
    std::size_t longest = 1;
    double largest = 0;
    for (std::size_t place = 0; place < to; ++place) {
        const Window window = window_of(place, scale, support, from);
        add_shares(window, support, shares_);
        const std::size_t taps = window.last - window.first;
        spans_[place] = {window.first, (taps + 1) / 2 * 2};
        longest = std::max(longest, taps);
        largest =
            std::max(largest, *std::max_element(shares_.end() - static_cast<std::ptrdiff_t>(taps), shares_.end()));
    }
    taps_ = (longest + tap_group - 1) / tap_group * tap_group;
    bits_ = most_bits;
    while (largest * std::ldexp(1.0, bits_) > 32766) --bits_;
    weights_.assign(to * taps_, 0);
    const double* share = shares_.data();
    const double whole = std::ldexp(1.0, bits_);
    for (std::size_t place = 0; place < to; ++place) {
        const Window window = window_of(place, scale, support, from);
        // The sum so far is rounded, not each weight: so all weights sum up to the power exactly.
        double sum = 0;
        long before = 0;
        for (std::size_t tap = 0; tap < window.last - window.first; ++tap) {
            sum += *share++;
            const bool is_last = window.first + tap + 1 == window.last;
            const long after = is_last ? 1L << bits_ : static_cast<long>(std::min(sum, 1.0) * whole + 0.5);
            weights_[place * taps_ + tap] = static_cast<std::int16_t>(after - before);
            before = after;
        }
    }
    from_ = from;
    to_ = to;
}

void Resizer::resize(const FourBytePixels& from, const ThreeBytePixels& to, Instructions instructions) {
    columns_.set(from.width, to.width, most_column_bits);
    rows_.set(from.height, to.height, most_row_bits);
    const std::size_t count = from.width * 4;
    const std::size_t rounded = (count + bytes_at_once - 1) / bytes_at_once * bytes_at_once;
    sums_.assign(rounded + columns_.most_taps() * 4, 0);  // behind the line there are zeros, whose weights are 0
    lines_.resize(rows_.most_taps());
    const int shift = rows_.bits() - kept_bits;
    for (std::size_t y = 0; y < to.height; ++y) {
        for (std::size_t tap = 0; tap < rows_.taps(y); ++tap) {
            lines_[tap] = from.first + std::min(rows_.first(y) + tap, from.height - 1) * from.line_bytes;
        }
        std::uint8_t* line = to.first + static_cast<std::ptrdiff_t>(y) * to.line_stride;
#ifdef PENSTOCK_HAS_AVX2_BUILD
        if (instructions == Instructions::avx2) {
            sum_lines_avx2(lines_.data(), rows_.of(y), rows_.taps(y), shift, count, sums_.data());
            sum_columns_avx2(sums_.data(), columns_, to, line);
            continue;
        }
#else
        (void)instructions;
#endif
        sum_lines_portable(lines_.data(), rows_.of(y), rows_.taps(y), shift, count, sums_.data());
        sum_columns_portable(sums_.data(), columns_, to, line);
    }
}

}  // namespace penstock
