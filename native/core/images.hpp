// Conversion of images of bytes to normalised planes of floats: height x width x channels uint8 to channels x height x
// width.
//
// A pixel's value is `float(pixel) * scale + shift` of its channel, the product and the sum each rounded to float32.
// No operation is fused or reordered, so the result is the same for every instruction set and number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/instructions.hpp"

namespace penstock {

// The axes of every image of a batch.
struct ImageShape {
    std::size_t height = 0;
    std::size_t width = 0;
    std::size_t channels = 0;

    std::size_t pixels() const noexcept { return height * width; }
};

// The place of an image's bytes: the first one, and the stride of each axis, which is negative in a mirrored image.
// Fastest if the pixels of a line are contiguous, as in crops.
struct Image {
    const std::uint8_t* first = nullptr;
    std::ptrdiff_t line_stride = 0;
    std::ptrdiff_t pixel_stride = 0;
    std::ptrdiff_t channel_stride = 1;
};

// Writes the planes of all images, one image after another, to `out`, which has `pixels() * channels` floats for each
// image and overlaps none. `scale` and `shift` have one number for each channel. Bytes between two lines may be read;
// they don't change the result.
void normalize_images(std::span<const Image> images, const ImageShape& shape, std::span<const float> scale,
                      std::span<const float> shift, float* out, std::size_t num_threads = 1,
                      Instructions instructions = best_instructions());

}  // namespace penstock
