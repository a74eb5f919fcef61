// From stored images to the input of a model: decoding, cropping, turning upright, resizing, mirroring, normalising,
// all images of a block into one array.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "core/instructions.hpp"
#include "core/jpeg.hpp"

namespace penstock {

// A JPEG file; or, with a width and a height, pixels of three bytes without gaps.
struct StoredImage {
    std::span<const std::uint8_t> bytes;
    std::size_t width = 0;
    std::size_t height = 0;

    bool is_jpeg() const noexcept { return width == 0; }
};

// The width and height of an image as it is shown.
struct ImageSize {
    std::size_t width = 0;
    std::size_t height = 0;
};

// The part of an image that a result shows; a box with no column stands for all of it.
struct ImageView {
    PixelBox box;
    bool is_mirrored = false;
};

// What the results are: bytes, or floats `byte * scale + shift`, each product and sum rounded to float32.
struct ImageForm {
    std::size_t height = 0;
    std::size_t width = 0;
    bool is_upright = false;  // turned as the file's EXIF orientation says
    bool has_planes = false;  // channels x height x width; otherwise height x width x channels
    bool has_floats = false;
    std::array<float, 3> scale{};
    std::array<float, 3> shift{};

    std::size_t values() const noexcept { return height * width * 3; }
};

// The first image that could not be decoded.
struct ImageFailure {
    std::size_t index = 0;
    JpegStatus status = JpegStatus::broken;
    std::string reason;
};

// Reads the sizes from the headers, from image `from` on; the box of a view is in an image of this size.
std::optional<ImageFailure> read_image_sizes(std::span<const StoredImage> images, bool is_upright,
                                             std::span<ImageSize> sizes, std::size_t from = 0);

// Writes the results of the images from image `from` on into `out`, which has `form.values()` bytes or floats for each
// image. A box must be inside its image; one that isn't is a failure.
std::optional<ImageFailure> decode_images(std::span<const StoredImage> images, std::span<const ImageView> views,
                                          const ImageForm& form, void* out, std::size_t from = 0,
                                          Instructions instructions = best_instructions());

}  // namespace penstock
