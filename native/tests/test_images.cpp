// Normalised images: every way to compute them gives the same bytes, and accesses no other memory.
#include "core/images.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

namespace {

using penstock::Image;
using penstock::ImageShape;
using penstock::Instructions;

int failures = 0;

void expect(bool holds, const char* promise, const ImageShape& shape, const char* layout) {
    if (!holds) {
        std::fprintf(stderr, "failed: %s (%zu x %zu x %zu, %s)\n", promise, shape.height, shape.width, shape.channels,
                     layout);
        ++failures;
    }
}

// The place of an image in memory: bytes before its lowest one, beyond each line, and whether axes run backwards.
struct Layout {
    const char* name;
    std::size_t offset;
    std::size_t gap;
    bool lines_reversed;
    bool pixels_reversed;
    bool planes;  // one channel behind the other, as a transposed view has it
};

constexpr Layout layouts[] = {
    {"close", 0, 0, false, false, false},      {"unaligned", 1, 0, false, false, false},
    {"crop", 7, 5, false, false, false},       {"wide crop", 3, 64, false, false, false},
    {"upside down", 2, 0, true, false, false}, {"crop upside down", 5, 9, true, false, false},
    {"mirrored", 1, 3, false, true, false},    {"planes", 0, 0, false, false, true},
};

// Exactly the memory from the lowest to the highest byte, so that the address sanitizer sees any read beyond.
class Picture {
  public:
    Picture(const ImageShape& shape, const Layout& layout, unsigned seed) {
        const std::size_t pixel = layout.planes ? 1 : shape.channels;
        const std::size_t line = shape.width * pixel + layout.gap;
        const std::size_t plane = layout.planes ? shape.height * line : 1;
        const std::size_t bytes = layout.offset + shape.pixels() * shape.channels + (shape.height - 1) * layout.gap;
        memory_ = std::make_unique<std::uint8_t[]>(bytes);
        for (std::size_t i = 0; i < bytes; ++i) {
            memory_[i] = static_cast<std::uint8_t>((i + seed) * 2654435761U >> 11);
        }
        image_ = {memory_.get() + layout.offset, static_cast<std::ptrdiff_t>(line), static_cast<std::ptrdiff_t>(pixel),
                  static_cast<std::ptrdiff_t>(plane)};
        if (layout.lines_reversed) {
            image_.first += (shape.height - 1) * line;
            image_.line_stride = -image_.line_stride;
        }
        if (layout.pixels_reversed) {
            image_.first += (shape.width - 1) * pixel;
            image_.pixel_stride = -image_.pixel_stride;
        }
    }

    const Image& image() const { return image_; }

    std::uint8_t at(std::size_t y, std::size_t x, std::size_t channel) const {
        return image_.first[static_cast<std::ptrdiff_t>(y) * image_.line_stride +
                            static_cast<std::ptrdiff_t>(x) * image_.pixel_stride +
                            static_cast<std::ptrdiff_t>(channel) * image_.channel_stride];
    }

  private:
    std::unique_ptr<std::uint8_t[]> memory_;
    Image image_;
};

// A product and a sum that no compiler can fuse: each goes through memory.
float expected(std::uint8_t pixel, float scale, float shift) {
    volatile float product = static_cast<float>(pixel) * scale;
    volatile float sum = product + shift;
    return sum;
}

void check(const ImageShape& shape, const Layout& layout, std::size_t count) {
    constexpr std::size_t margin = 3;  // odd, so that rows of the result are unaligned, too
    constexpr float untouched = -12345.0F;
    std::vector<Picture> pictures;
    std::vector<Image> images;
    for (std::size_t row = 0; row < count; ++row) {
        pictures.emplace_back(shape, layout, static_cast<unsigned>(row * 7919));
        images.push_back(pictures.back().image());
    }
    std::vector<float> scale;
    std::vector<float> shift;
    for (std::size_t channel = 0; channel < shape.channels; ++channel) {
        scale.push_back(0.0171F + 0.0013F * static_cast<float>(channel));
        shift.push_back(-2.117F + 0.311F * static_cast<float>(channel));
    }
    const std::size_t size = count * shape.pixels() * shape.channels;
    std::vector<float> wanted(size + 2 * margin, untouched);
    float* place = wanted.data() + margin;
    for (const Picture& picture : pictures) {
        for (std::size_t channel = 0; channel < shape.channels; ++channel) {
            for (std::size_t y = 0; y < shape.height; ++y) {
                for (std::size_t x = 0; x < shape.width; ++x) {
                    *place++ = expected(picture.at(y, x, channel), scale[channel], shift[channel]);
                }
            }
        }
    }
    for (const Instructions instructions : {Instructions::portable, penstock::best_instructions()}) {
        for (const std::size_t num_threads : {1, 2, 5}) {
            std::vector<float> out(wanted.size(), untouched);
            penstock::normalize_images(images, shape, scale, shift, out.data() + margin, num_threads, instructions);
            expect(std::memcmp(out.data(), wanted.data(), out.size() * sizeof(float)) == 0,
                   "each float is the rounded sum of the rounded product, and nothing beside them is written", shape,
                   layout.name);
        }
    }
}

// Every byte with many factors: where rounding once instead of twice would show.
void check_rounding() {
    const ImageShape shape{1, 256, 1};
    std::vector<std::uint8_t> bytes(256);
    for (std::size_t i = 0; i < 256; ++i) {
        bytes[i] = static_cast<std::uint8_t>(i);
    }
    const Image image{bytes.data(), 256, 1, 1};
    bool equal = true;
    std::uint32_t state = 1;
    for (int trial = 0; trial < 500; ++trial) {
        state = state * 1664525U + 1013904223U;
        const float scale = std::bit_cast<float>((state >> 9) | 0x3B800000U) * 4.0F;
        const float shift = -scale * static_cast<float>(state % 255U) * 1.0001F;
        for (const Instructions instructions : {Instructions::portable, penstock::best_instructions()}) {
            std::vector<float> out(256);
            penstock::normalize_images({&image, 1}, shape, {&scale, 1}, {&shift, 1}, out.data(), 1, instructions);
            for (std::size_t i = 0; i < 256; ++i) {
                equal = equal && std::bit_cast<std::uint32_t>(out[i]) ==
                                     std::bit_cast<std::uint32_t>(expected(bytes[i], scale, shift));
            }
        }
    }
    expect(equal, "product and sum are rounded one by one", shape, "any factors");
}

void check_nothing_to_do() {
    float out = 7.0F;
    const float number = 1.0F;
    penstock::normalize_images({}, {4, 4, 1}, {&number, 1}, {&number, 1}, &out, 3);
    const Image image{};
    penstock::normalize_images({&image, 1}, {0, 4, 1}, {&number, 1}, {&number, 1}, &out, 3);
    penstock::normalize_images({&image, 1}, {4, 0, 1}, {&number, 1}, {&number, 1}, &out, 3);
    expect(out == 7.0F, "no images and no pixels write nothing", {0, 0, 1}, "none");
}

}  // namespace

int main() {
    for (const Layout& layout : layouts) {
        for (const std::size_t channels : {1, 2, 3, 4, 5}) {
            for (const std::size_t width : {1, 2, 7, 8, 9, 11, 15, 16, 17, 31, 33, 224}) {
                for (const std::size_t height : {1, 2, 3, 13}) {
                    check({height, width, channels}, layout, 2);
                }
            }
        }
        check({3, 10, 3}, layout, 9);
    }
    check_rounding();
    check_nothing_to_do();
    std::printf("images: %d failures, AVX2 %s\n", failures,
                penstock::best_instructions() == Instructions::avx2 ? "compared" : "not there");
    return failures == 0 ? 0 : 1;
}
