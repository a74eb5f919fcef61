// Binds normalised images. The wrapper, penstock.batching._images, checks shapes and raises the errors.
#include "core/images.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <vector>

#include "bindings/arrays.hpp"
#include "bindings/interpreter_lock.hpp"
#include "core/parallel.hpp"

namespace nb = nanobind;

namespace penstock::bindings {
namespace {

using Channels = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Sequence = nb::typed<nb::sequence, nb::object>;
using Planes = nb::ndarray<float, nb::ndim<4>, nb::c_contig, nb::device::cpu>;

// For smaller outputs, releasing the GIL costs more than it gains.
constexpr std::size_t release_gil_bytes = 64 * 1024;

// The place of an array's bytes, or nothing if it doesn't have this shape.
std::optional<Image> image_of(const Py_buffer* view, const ImageShape& shape) {
    if (view == nullptr || view->ndim != 3 || view->itemsize != 1 ||
        view->shape[0] != static_cast<Py_ssize_t>(shape.height) ||
        view->shape[1] != static_cast<Py_ssize_t>(shape.width) ||
        view->shape[2] != static_cast<Py_ssize_t>(shape.channels)) {
        return std::nullopt;
    }
    return Image{static_cast<const std::uint8_t*>(view->buf), view->strides[0], view->strides[1], view->strides[2]};
}

// Whether the memory from an image's lowest to its highest byte overlaps `out`.
bool overlaps(const Py_buffer& view, const Planes& out) {
    auto begin = reinterpret_cast<std::uintptr_t>(view.buf);
    auto end = begin + 1;
    for (int axis = 0; axis < view.ndim; ++axis) {
        const Py_ssize_t reach = (view.shape[axis] - 1) * view.strides[axis];
        (reach < 0 ? begin : end) += static_cast<std::uintptr_t>(reach);
    }
    const auto out_begin = reinterpret_cast<std::uintptr_t>(out.data());
    return out.nbytes() > 0 && begin < out_begin + out.nbytes() && out_begin < end;
}

Py_ssize_t normalize(Sequence sequence, nb::object dtype, const Channels& scale, const Channels& shift,
                     const Planes& out, std::size_t num_threads) {
    const ImageShape shape{out.shape(2), out.shape(3), out.shape(1)};
    const Items items(sequence);
    if (items.size() != static_cast<Py_ssize_t>(out.shape(0)) || scale.size() != shape.channels ||
        shift.size() != shape.channels) {
        throw std::invalid_argument("out must have a row for each item, and scale and shift one number a channel");
    }
    const nb::object name = nb::steal(PyUnicode_InternFromString("dtype"));
    Buffers buffers;
    std::vector<Image> images;
    for (Py_ssize_t index = 0; index < items.size(); ++index) {
        PyObject* item = items[index];
        if (!has_dtype(item, name.ptr(), dtype.ptr())) {
            return index;
        }
        const Py_buffer* view = buffers.open_strided(item);
        const std::optional<Image> image = image_of(view, shape);
        if (!image.has_value() || overlaps(*view, out)) {
            return index;
        }
        images.push_back(*image);
    }
    const std::span<const float> scales(scale.data(), scale.size());
    const std::span<const float> shifts(shift.data(), shift.size());
    if (out.nbytes() < release_gil_bytes) {
        normalize_images(images, shape, scales, shifts, out.data(), 1);
        return -1;
    }
    const WithoutLock released;
    normalize_images(images, shape, scales, shifts, out.data(), threads_worth(out.nbytes(), num_threads));
    return -1;
}

}  // namespace

void bind_images(nb::module_& module) {
    using nb::literals::operator""_a;
    module.def(
        "normalize_images", &normalize, "items"_a, "dtype"_a, "scale"_a.noconvert(), "shift"_a.noconvert(),
        "out"_a.noconvert(), "num_threads"_a,
        "Write `float(pixel) * scale + shift` of arrays of `dtype`, uint8, as planes, in at most `num_threads` "
        "threads; return -1, or write nothing and return the index of the first item that doesn't have the shape "
        "of `out`, or overlaps it.");
}

}  // namespace penstock::bindings
