// Binds the image stage. The wrapper, penstock.images._decode, checks arguments and raises the errors.
#include "core/image_stage.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <vector>

#include "bindings/arrays.hpp"
#include "bindings/interpreter_lock.hpp"

namespace nb = nanobind;

namespace penstock::bindings {
namespace {

using Sequence = nb::typed<nb::sequence, nb::object>;
using Boxes = nb::ndarray<const std::int64_t, nb::shape<-1, 4>, nb::c_contig, nb::device::cpu>;
using Flags = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Sizes = nb::ndarray<std::int64_t, nb::shape<-1, 2>, nb::c_contig, nb::device::cpu>;
using Channels = nb::ndarray<const float, nb::shape<3>, nb::c_contig, nb::device::cpu>;
template <class Value>
using Results = nb::ndarray<Value, nb::ndim<4>, nb::c_contig, nb::device::cpu>;
using Failure = nb::typed<nb::tuple, std::size_t, bool, nb::str>;

// The images of a list: files, which have one axis, or pixels, which have three.
class StoredImages {
  public:
    explicit StoredImages(const Sequence& sequence) {
        const Items items(sequence);
        buffers_.reserve(static_cast<std::size_t>(items.size()));
        for (Py_ssize_t index = 0; index < items.size(); ++index) {
            const Py_buffer* view = buffers_.open(items[index]);
            const bool is_file = view != nullptr && view->itemsize == 1 && view->ndim == 1;
            const bool is_pixels = view != nullptr && view->itemsize == 1 && view->ndim == 3 && view->shape[2] == 3;
            if (!is_file && !is_pixels) throw nb::type_error("an item is neither bytes nor height x width x 3 bytes");
            StoredImage image{{static_cast<const std::uint8_t*>(view->buf), static_cast<std::size_t>(view->len)}, 0, 0};
            if (is_pixels) {
                image.width = static_cast<std::size_t>(view->shape[1]);
                image.height = static_cast<std::size_t>(view->shape[0]);
                if (view->len == 0) throw std::invalid_argument("an image has no pixel");
            }
            images_.push_back(image);
        }
    }

    const std::vector<StoredImage>& images() const { return images_; }

  private:
    Buffers buffers_;
    std::vector<StoredImage> images_;
};

// The index of the image, whether only libjpeg can't read it, and the reason.
std::optional<Failure> as_tuple(const std::optional<ImageFailure>& failure) {
    if (!failure.has_value()) return std::nullopt;
    const bool may_be_read_elsewhere = failure->status != JpegStatus::broken;
    const nb::object reason = nb::steal(
        PyUnicode_DecodeUTF8(failure->reason.data(), static_cast<Py_ssize_t>(failure->reason.size()), "replace"));
    return Failure(nb::make_tuple(failure->index, may_be_read_elsewhere, reason));
}

std::optional<Failure> read_sizes(const Sequence& items, bool is_upright, const Sizes& out, std::size_t from) {
    const StoredImages stored(items);
    if (out.shape(0) != stored.images().size()) throw std::invalid_argument("out must have a row for each item");
    std::vector<ImageSize> sizes(stored.images().size());
    std::optional<ImageFailure> failure;
    {
        const WithoutLock released;
        failure = read_image_sizes(stored.images(), is_upright, sizes, from);
        for (std::size_t index = from; index < sizes.size(); ++index) {
            out(index, 0) = static_cast<std::int64_t>(sizes[index].width);
            out(index, 1) = static_cast<std::int64_t>(sizes[index].height);
        }
    }
    return as_tuple(failure);
}

std::vector<ImageView> views_of(const Boxes& boxes, const Flags& mirrored) {
    std::vector<ImageView> views(boxes.shape(0));
    for (std::size_t index = 0; index < views.size(); ++index) {
        const auto side = [&](std::size_t number) {
            return static_cast<std::size_t>(std::max<std::int64_t>(boxes(index, number), 0));
        };
        views[index] = {{side(0), side(1), side(2), side(3)}, mirrored(index) != 0};
    }
    return views;
}

template <class Value>
std::optional<Failure> decode(const Sequence& items, const Boxes& boxes, const Flags& mirrored, bool is_upright,
                              bool has_planes, const Channels& scale, const Channels& shift, const Results<Value>& out,
                              std::size_t from) {
    const StoredImages stored(items);
    const std::size_t count = stored.images().size();
    const std::size_t height = out.shape(has_planes ? 2 : 1);
    const std::size_t width = out.shape(has_planes ? 3 : 2);
    if (boxes.shape(0) != count || mirrored.shape(0) != count || out.shape(0) != count ||
        out.shape(has_planes ? 1 : 3) != 3 || height == 0 || width == 0) {
        throw std::invalid_argument("boxes, mirrored and out must have a row for each item, and out three channels");
    }
    ImageForm form{height, width, is_upright, has_planes, sizeof(Value) == sizeof(float), {}, {}};
    std::copy_n(scale.data(), 3, form.scale.begin());
    std::copy_n(shift.data(), 3, form.shift.begin());
    const std::vector<ImageView> views = views_of(boxes, mirrored);
    std::optional<ImageFailure> failure;
    {
        const WithoutLock released;
        failure = decode_images(stored.images(), views, form, out.data(), from);
    }
    return as_tuple(failure);
}

template <class Value>
void bind_decode(nb::module_& module, const char* name) {
    using nb::literals::operator""_a;
    module.def(name, &decode<Value>, "items"_a, "boxes"_a.noconvert(), "mirrored"_a.noconvert(), "is_upright"_a,
               "has_planes"_a, "scale"_a.noconvert(), "shift"_a.noconvert(), "out"_a.noconvert(), "start"_a,
               "Write the images from `start` on, each resized to the size of `out`; return None, or the index of an "
               "image that can't be read, whether its bytes may be right, and the reason. A box is (left, top, right, "
               "bottom); zeros stand for all of the image.");
}

}  // namespace

void bind_image_stage(nb::module_& module) {
    using nb::literals::operator""_a;
    module.def("has_jpeg", &has_jpeg, "Return whether this build decodes JPEGs.");
    module.def("read_image_sizes", &read_sizes, "items"_a, "is_upright"_a, "out"_a.noconvert(), "start"_a,
               "Write the width and height of the images from `start` on; return as `decode_images_to_bytes`.");
    bind_decode<std::uint8_t>(module, "decode_images_to_bytes");
    bind_decode<float>(module, "decode_images_to_floats");
}

}  // namespace penstock::bindings
