// Antialiased resizing of images of bytes, by the triangle filter that Pillow calls BILINEAR: its support grows with
// the factor of reduction, so every pixel of the source counts.
//
// A result differs by at most one level from Pillow's, which rounds the lines to bytes between the two passes. Here the
// columns of a line are summed first, since that pass is the larger one and needs no shuffling, and the sums keep seven
// more bits. All arithmetic is on integers, so the result is the same for every instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/instructions.hpp"

namespace penstock {

// Pixels of four bytes: red, green, blue, and one that has no meaning. `resize_slack` bytes after the last one are
// readable.
struct FourBytePixels {
    const std::uint8_t* first = nullptr;
    std::size_t line_bytes = 0;
    std::size_t width = 0;
    std::size_t height = 0;
};

inline constexpr std::size_t resize_slack = 64;

// Where pixels of three bytes are written. Strides in bytes; one is negative in a mirrored image.
struct ThreeBytePixels {
    std::uint8_t* first = nullptr;
    std::ptrdiff_t line_stride = 0;
    std::ptrdiff_t pixel_stride = 3;
    std::size_t width = 0;
    std::size_t height = 0;
};

// The weights of one axis: for each place of the result, the places of the source that it is a sum of.
class AxisWeights {
  public:
    // Computes the weights, unless they are those of the last call. `most_bits` limits the precision.
    void set(std::size_t from, std::size_t to, int most_bits);

    std::size_t first(std::size_t place) const { return spans_[place].first; }
    // How many places the sum has, rounded up to an even number: the weight of a place that was added is 0.
    std::size_t taps(std::size_t place) const { return spans_[place].taps; }
    // The largest number of weights, a multiple of four: behind the taps there are zeros.
    std::size_t most_taps() const { return taps_; }
    const std::int16_t* of(std::size_t place) const { return weights_.data() + place * taps_; }
    int bits() const { return bits_; }  // the weights of one place sum up to 2 to this power

  private:
    std::size_t from_ = 0;
    std::size_t to_ = 0;
    std::size_t taps_ = 0;
    int bits_ = 0;
    struct Span {
        std::size_t first;
        std::size_t taps;
    };
    std::vector<Span> spans_;
    std::vector<double> shares_;  // kept for its memory
    std::vector<std::int16_t> weights_;
};

// Resizes images, and keeps its memory for the next one. For one thread at a time.
class Resizer {
  public:
    // Writes the resized image; both have at least one pixel.
    void resize(const FourBytePixels& from, const ThreeBytePixels& to, Instructions instructions = best_instructions());

  private:
    AxisWeights columns_;
    AxisWeights rows_;
    std::vector<const std::uint8_t*> lines_;
    std::vector<std::int16_t> sums_;
};

}  // namespace penstock
