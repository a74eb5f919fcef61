// The image stage: every way to compute gives the same bytes, a box is a part of the whole image, and no file, however
// damaged, makes it access other memory.
#include "core/image_stage.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/jpeg.hpp"
#include "core/resize.hpp"

#ifdef PENSTOCK_HAS_JPEG
#include <cstdlib>

#include <jpeglib.h>
#endif

namespace {

using penstock::FourBytePixels;
using penstock::ImageForm;
using penstock::ImageView;
using penstock::Instructions;
using penstock::JpegStatus;
using penstock::PixelBox;
using penstock::StoredImage;
using Bytes = std::vector<std::uint8_t>;

int failures = 0;

void expect(bool held, const std::string& promise) {
    if (!held) {
        std::fprintf(stderr, "failed: %s\n", promise.c_str());
        ++failures;
    }
}

std::uint32_t draw(std::uint32_t& state) {
    state = state * 1664525U + 1013904223U;
    return state >> 8;
}

Bytes picture(std::size_t width, std::size_t height, std::uint32_t seed) {
    Bytes pixels(width * height * 3);
    for (std::size_t i = 0; i < pixels.size(); ++i) {
        pixels[i] = static_cast<std::uint8_t>(i / 3 % width * 5 + i % 3 * 60 + draw(seed) % 32);
    }
    return pixels;
}

void test_instructions() {
    const std::size_t sides[] = {1, 2, 3, 7, 16, 33, 100, 500};
    for (const std::size_t from : sides) {
        for (const std::size_t to : sides) {
            const std::size_t other = 1 + to * 7 % 40;
            const Bytes given = picture(from, other, 3);
            // Exactly the readable memory, so that the address sanitizer sees any read beyond.
            auto memory = std::make_unique<std::uint8_t[]>(from * other * 4 + penstock::resize_slack);
            for (std::size_t i = 0; i < from * other; ++i) std::memcpy(&memory[i * 4], &given[i * 3], 3);
            const FourBytePixels pixels{memory.get(), from * 4, from, other};
            Bytes results[2];
            for (const auto each : {Instructions::portable, penstock::best_instructions()}) {
                Bytes& result = results[each == Instructions::portable ? 0 : 1];
                result.resize(to * to * 3);
                penstock::Resizer().resize(pixels, {result.data(), static_cast<std::ptrdiff_t>(to * 3), 3, to, to},
                                           each);
            }
            if (penstock::best_instructions() == Instructions::portable) results[1] = results[0];
            expect(results[0] == results[1], "resizing " + std::to_string(from) + " to " + std::to_string(to));
            if (from == to && other == to) expect(results[0] == given, "an image of its own size is unchanged");
        }
    }
}

void test_flat_colours() {
    for (const std::size_t from : {1, 5, 64, 3000}) {
        Bytes given(from * 2 * 3, 255);
        const StoredImage image{given, from, 2};
        ImageForm form;
        form.height = 9;
        form.width = 31;
        Bytes result(form.values());
        const ImageView view;
        expect(!penstock::decode_images({&image, 1}, {&view, 1}, form, result.data()).has_value(),
               "pixels are resized");
        expect(result == Bytes(form.values(), 255), "white stays white");
    }
}

#ifdef PENSTOCK_HAS_JPEG

Bytes jpeg_of(const Bytes& pixels, std::size_t width, std::size_t height, int sampling, bool is_progressive) {
    jpeg_compress_struct file{};
    jpeg_error_mgr errors{};
    file.err = jpeg_std_error(&errors);
    jpeg_create_compress(&file);
    unsigned char* memory = nullptr;
    unsigned long size = 0;
    jpeg_mem_dest(&file, &memory, &size);
    file.image_width = static_cast<JDIMENSION>(width);
    file.image_height = static_cast<JDIMENSION>(height);
    file.input_components = 3;
    file.in_color_space = JCS_RGB;
    jpeg_set_defaults(&file);
    file.comp_info[0].h_samp_factor = sampling;
    file.comp_info[0].v_samp_factor = sampling;
    if (is_progressive) jpeg_simple_progression(&file);
    jpeg_start_compress(&file, TRUE);
    while (file.next_scanline < file.image_height) {
        auto* line = const_cast<JSAMPLE*>(pixels.data() + file.next_scanline * width * 3);
        jpeg_write_scanlines(&file, &line, 1);
    }
    jpeg_finish_compress(&file);
    jpeg_destroy_compress(&file);
    Bytes bytes(memory, memory + size);
    std::free(memory);
    return bytes;
}

// The result for a copy of the file that ends where its memory ends; empty after a failure.
Bytes decoded(const Bytes& file, const PixelBox& box, std::size_t width, std::size_t height) {
    auto memory = std::make_unique<std::uint8_t[]>(file.size());
    std::copy(file.begin(), file.end(), memory.get());
    const StoredImage image{{memory.get(), file.size()}, 0, 0};
    const ImageView view{box, false};
    ImageForm form;
    form.height = height;
    form.width = width;
    form.is_upright = true;
    Bytes result(form.values());
    const auto failure = penstock::decode_images({&image, 1}, {&view, 1}, form, result.data());
    if (failure.has_value()) {
        expect(failure->status != JpegStatus::good && !failure->reason.empty(), "a failure has a reason");
        result.clear();
    }
    return result;
}

void test_boxes() {
    std::uint32_t seed = 5;
    for (const int sampling : {1, 2}) {
        for (const bool is_progressive : {false, true}) {
            const std::size_t width = 83, height = 61;
            const Bytes file = jpeg_of(picture(width, height, 1), width, height, sampling, is_progressive);
            const Bytes whole = decoded(file, {}, width, height);
            for (int round = 0; round < 60; ++round) {
                PixelBox box;
                box.left = draw(seed) % width;
                box.right = box.left + 1 + draw(seed) % (width - box.left);
                box.top = draw(seed) % height;
                box.bottom = box.top + 1 + draw(seed) % (height - box.top);
                Bytes part;
                for (std::size_t y = box.top; y < box.bottom; ++y) {
                    const auto line = whole.begin() + static_cast<std::ptrdiff_t>(y * width * 3);
                    part.insert(part.end(), line + static_cast<std::ptrdiff_t>(box.left * 3),
                                line + static_cast<std::ptrdiff_t>(box.right * 3));
                }
                expect(decoded(file, box, box.width(), box.height()) == part,
                       "a box has the pixels of the whole image");
            }
            expect(decoded(file, {0, 0, width + 1, 1}, 1, 1).empty(), "a box outside of the image is refused");
        }
    }
}

void test_damage() {
    std::uint32_t seed = 9;
    for (const bool is_progressive : {false, true}) {
        const Bytes file = jpeg_of(picture(40, 30, 2), 40, 30, 2, is_progressive);
        for (const PixelBox& box : {PixelBox{}, PixelBox{9, 4, 20, 11}}) {
            for (std::size_t size = 0; size < file.size(); ++size) {
                const Bytes part(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(size));
                expect(decoded(part, box, 16, 12).empty(), "a truncated file is refused");
            }
            for (int round = 0; round < 4000; ++round) {
                Bytes damaged = file;
                for (std::uint32_t flips = 1 + draw(seed) % 6; flips > 0; --flips) {
                    damaged[draw(seed) % damaged.size()] = static_cast<std::uint8_t>(draw(seed));
                }
                decoded(damaged, box, 16, 12);
            }
        }
    }
}

// The file with a marker of metadata before the others.
Bytes with_metadata(Bytes file, const Bytes& content) {
    const auto size = static_cast<std::uint16_t>(content.size() + 2);
    Bytes marker{0xff, 0xe1, static_cast<std::uint8_t>(size >> 8), static_cast<std::uint8_t>(size)};
    marker.insert(marker.end(), content.begin(), content.end());
    file.insert(file.begin() + 2, marker.begin(), marker.end());
    return file;
}

void test_orientations() {
    using namespace std::string_view_literals;
    const Bytes file = jpeg_of(picture(4, 3, 3), 4, 3, 1, false);
    Bytes exif{'E', 'x', 'i', 'f', 0, 0, 'M', 'M', 0, 42, 0, 0, 0, 8, 0, 1, 0x01, 0x12};
    for (const int value : {0, 4, 0, 0, 0, 1, 0, 0, 0, 6}) exif.push_back(static_cast<std::uint8_t>(value));
    constexpr auto text = "http://ns.adobe.com/xap/1.0/\0 tiff:Orientation tiff:Orientation=\"8\" tiff:Orientation"sv;
    const Bytes xmp(text.begin(), text.end());
    const auto orientation = [](const Bytes& image) { return penstock::JpegFile(image, true).orientation(); };
    expect(orientation(with_metadata(file, exif)) == 6, "an orientation may be a number of four bytes");
    expect(orientation(with_metadata(file, xmp)) == 8, "an orientation may be in XMP alone");
    expect(orientation(with_metadata(with_metadata(file, exif), xmp)) == 6, "that of EXIF counts before that of XMP");
    for (const Bytes& metadata : {exif, xmp}) {
        for (std::size_t at = 0; at < metadata.size(); ++at) {
            orientation(with_metadata(file, {metadata.begin(), metadata.begin() + static_cast<std::ptrdiff_t>(at)}));
            for (const int byte : {0, 1, 0x7f, 0xff}) {
                Bytes damaged = metadata;
                damaged[at] = static_cast<std::uint8_t>(byte);
                const int found = orientation(with_metadata(file, damaged));
                expect(found >= 1 && found <= 8, "an orientation in damaged metadata is one of the eight, or upright");
            }
        }
    }
}

#endif

}  // namespace

int main() {
    test_instructions();
    test_flat_colours();
#ifdef PENSTOCK_HAS_JPEG
    test_boxes();
    test_damage();
    test_orientations();
#endif
    return failures == 0 ? 0 : 1;
}
