// This unit is compiled with -ffp-contract=off, as images.cpp is.
#include "core/image_stage.hpp"

#include <cstring>
#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

#include "core/images.hpp"
#include "core/resize.hpp"

namespace penstock {
namespace {

constexpr std::size_t channels = 3;
constexpr std::size_t most_kept_bytes = 16 << 20;

// How the stored pixels lie in the image as it is shown. EXIF numbers the eight ways from 1 on.
struct Turn {
    bool is_transposed = false;
    bool reverses_columns = false;  // of the stored image
    bool reverses_lines = false;

    static Turn of(int orientation) {
        const auto is_one_of = [&](std::initializer_list<int> numbers) {
            for (const int number : numbers) {
                if (number == orientation) return true;
            }
            return false;
        };
        return {orientation >= 5, is_one_of({2, 3, 7, 8}), is_one_of({3, 4, 6, 7})};
    }

    ImageSize shown(ImageSize stored) const {
        if (is_transposed) std::swap(stored.width, stored.height);
        return stored;
    }

    PixelBox stored(PixelBox box, const ImageSize& size) const {
        if (is_transposed) {
            std::swap(box.left, box.top);
            std::swap(box.right, box.bottom);
        }
        if (reverses_columns) box = {size.width - box.right, box.top, size.width - box.left, box.bottom};
        if (reverses_lines) box = {box.left, size.height - box.bottom, box.right, size.height - box.top};
        return box;
    }

    // Where the stored pixels of a result go.
    ThreeBytePixels target(std::uint8_t* bytes, const ImageForm& form, bool is_mirrored) const {
        ThreeBytePixels to{bytes, static_cast<std::ptrdiff_t>(form.width * channels), channels, form.width,
                           form.height};
        bool turns_columns = reverses_columns;
        bool turns_lines = reverses_lines;
        (is_transposed ? turns_lines : turns_columns) ^= is_mirrored;
        if (is_transposed) {
            std::swap(to.line_stride, to.pixel_stride);
            std::swap(to.width, to.height);
        }
        if (turns_columns) {
            to.first += static_cast<std::ptrdiff_t>(to.width - 1) * to.pixel_stride;
            to.pixel_stride = -to.pixel_stride;
        }
        if (turns_lines) {
            to.first += static_cast<std::ptrdiff_t>(to.height - 1) * to.line_stride;
            to.line_stride = -to.line_stride;
        }
        return to;
    }
};

// Memory that the next image uses again, unless it is large. Its content is not defined.
class Scratch {
  public:
    std::uint8_t* of(std::size_t bytes) {
        if (bytes > size_) {
            memory_ = std::make_unique_for_overwrite<std::uint8_t[]>(bytes);
            size_ = bytes;
        }
        return memory_.get();
    }

    void trim() {
        if (size_ > most_kept_bytes) {
            memory_.reset();
            size_ = 0;
        }
    }

  private:
    std::unique_ptr<std::uint8_t[]> memory_;
    std::size_t size_ = 0;
};

void split_planes(const std::uint8_t* bytes, std::size_t pixels, std::uint8_t* out) {
    for (std::size_t pixel = 0; pixel < pixels; ++pixel) {
        for (std::size_t channel = 0; channel < channels; ++channel) {
            out[channel * pixels + pixel] = bytes[pixel * channels + channel];
        }
    }
}

void normalize_pixels(const std::uint8_t* bytes, const ImageForm& form, float* out) {
    const std::size_t pixels = form.height * form.width;
    for (std::size_t pixel = 0; pixel < pixels; ++pixel) {
        for (std::size_t channel = 0; channel < channels; ++channel) {
            const std::size_t at = pixel * channels + channel;
            const float product = static_cast<float>(bytes[at]) * form.scale[channel];
            out[at] = product + form.shift[channel];
        }
    }
}

// The memory of one thread. Fresh memory for each image would cost about a tenth of the work in page faults.
struct Workspace {
    Resizer resizer;
    Scratch pixels;
    Scratch result;
};

// One image after the other, in a thread's memory.
class Stage {
  public:
    Stage(const ImageForm& form, Instructions instructions, Workspace& workspace)
        : form_(form), instructions_(instructions), workspace_(workspace) {}
    Stage(const Stage&) = delete;
    Stage& operator=(const Stage&) = delete;
    ~Stage() {
        workspace_.pixels.trim();
        workspace_.result.trim();
    }

    std::optional<ImageFailure> run(const StoredImage& image, const ImageView& view, void* out) {
        const bool is_direct = !form_.has_floats && !form_.has_planes;
        auto* bytes = is_direct ? static_cast<std::uint8_t*>(out) : workspace_.result.of(form_.values());
        auto failure = image.is_jpeg() ? decode(image, view, bytes) : resize(image, view, bytes);
        if (failure.has_value() || is_direct) return failure;
        const std::size_t pixels = form_.height * form_.width;
        if (!form_.has_floats) {
            split_planes(bytes, pixels, static_cast<std::uint8_t*>(out));
        } else if (!form_.has_planes) {
            normalize_pixels(bytes, form_, static_cast<float*>(out));
        } else {
            const auto line_stride = static_cast<std::ptrdiff_t>(form_.width * channels);
            const Image one{bytes, line_stride, channels, 1};
            normalize_images({&one, 1}, {form_.height, form_.width, channels}, form_.scale, form_.shift,
                             static_cast<float*>(out), 1, instructions_);
        }
        return std::nullopt;
    }

  private:
    std::optional<ImageFailure> decode(const StoredImage& image, const ImageView& view, std::uint8_t* bytes) {
        JpegFile file(image.bytes, form_.is_upright);
        if (file.status() != JpegStatus::good) return ImageFailure{0, file.status(), file.reason()};
        const Turn turn = Turn::of(file.orientation());
        const ImageSize size{file.width(), file.height()};
        const auto box = box_of(view, turn.shown(size));
        if (!box.has_value()) return outside();
        const PixelBox stored = turn.stored(*box, size);
        const FourBytePixels pixels = file.decode(stored, workspace_.pixels.of(file.bytes_of(stored)));
        if (file.status() != JpegStatus::good) return ImageFailure{0, file.status(), file.reason()};
        workspace_.resizer.resize(pixels, turn.target(bytes, form_, view.is_mirrored), instructions_);
        return std::nullopt;
    }

    std::optional<ImageFailure> resize(const StoredImage& image, const ImageView& view, std::uint8_t* bytes) {
        const auto box = box_of(view, {image.width, image.height});
        if (!box.has_value()) return outside();
        std::uint8_t* pixels = workspace_.pixels.of(box->width() * box->height() * 4 + resize_slack);
        std::uint8_t* pixel = pixels;
        for (std::size_t y = box->top; y < box->bottom; ++y) {
            const std::uint8_t* line = image.bytes.data() + (y * image.width + box->left) * channels;
            for (std::size_t x = 0; x < box->width(); ++x, pixel += 4)
                std::memcpy(pixel, line + x * channels, channels);
        }
        const FourBytePixels from{pixels, box->width() * 4, box->width(), box->height()};
        workspace_.resizer.resize(from, Turn{}.target(bytes, form_, view.is_mirrored), instructions_);
        return std::nullopt;
    }

    static std::optional<PixelBox> box_of(const ImageView& view, const ImageSize& size) {
        if (view.box.right == 0) return PixelBox{0, 0, size.width, size.height};
        const PixelBox& box = view.box;
        const bool is_inside =
            box.left < box.right && box.right <= size.width && box.top < box.bottom && box.bottom <= size.height;
        return is_inside ? std::optional(box) : std::nullopt;
    }

    static ImageFailure outside() { return {0, JpegStatus::broken, "the box is not inside the image"}; }

    ImageForm form_;
    Instructions instructions_;
    Workspace& workspace_;
};

}  // namespace

std::optional<ImageFailure> read_image_sizes(std::span<const StoredImage> images, bool is_upright,
                                             std::span<ImageSize> sizes, std::size_t from) {
    for (std::size_t index = from; index < images.size(); ++index) {
        const StoredImage& image = images[index];
        if (!image.is_jpeg()) {
            sizes[index] = {image.width, image.height};
            continue;
        }
        const JpegFile file(image.bytes, is_upright);
        if (file.status() != JpegStatus::good) return ImageFailure{index, file.status(), file.reason()};
        sizes[index] = Turn::of(file.orientation()).shown({file.width(), file.height()});
    }
    return std::nullopt;
}

std::optional<ImageFailure> decode_images(std::span<const StoredImage> images, std::span<const ImageView> views,
                                          const ImageForm& form, void* out, std::size_t from,
                                          Instructions instructions) {
    const std::size_t image_bytes = form.values() * (form.has_floats ? sizeof(float) : 1);
    thread_local Workspace workspace;
    Stage stage(form, instructions, workspace);
    for (std::size_t index = from; index < images.size(); ++index) {
        auto failure = stage.run(images[index], views[index], static_cast<std::uint8_t*>(out) + index * image_bytes);
        if (failure.has_value()) {
            failure->index = index;
            return failure;
        }
    }
    return std::nullopt;
}

}  // namespace penstock
