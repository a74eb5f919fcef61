// The memory of torch tensors, read without making an array of each.
//
// `Tensor.numpy()` takes a microsecond, which is longer than most rows take to copy. DLPack has a table of C functions
// on the type, of which one tells where a tensor's memory is, in some nanoseconds. It doesn't say whether the values
// are those in the memory, so a tensor of floats is asked for that: the imaginary part of a conjugate has its memory's
// negative values, and a tensor that requires a gradient must not be copied in silence. Integers and booleans have
// neither.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "bindings/arrays.hpp"

namespace penstock::bindings {

// Tensors of one type, dtype and rank, each read once. The rows are valid as long as this and the tensors.
class TensorReader {
  public:
    TensorReader(nanobind::handle kind, int type_code, std::size_t item_bytes, std::size_t rank, Py_ssize_t count)
        : kind_(reinterpret_cast<PyTypeObject*>(kind.ptr())),
          view_(find_view(kind)),
          type_code_(type_code),
          item_bytes_(item_bytes),
          rank_(rank) {
        axes_.reserve(2 * rank * static_cast<std::size_t>(count));  // never moved, since rows refer to it
    }

    // The memory of a tensor; none if the tensor has another type, dtype or rank, isn't in host memory, requires a
    // gradient, or has other values than its memory.
    std::optional<Row> read(PyObject* tensor) {
        if (view_ == nullptr || Py_TYPE(tensor) != kind_) {
            return std::nullopt;
        }
        nanobind::dlpack::dltensor found;
        if (view_(tensor, &found) != 0) {
            PyErr_Clear();  // it has no memory on any device, or a dtype of its own
            return std::nullopt;
        }
        const bool is_of_dtype =
            found.dtype.code == type_code_ && found.dtype.bits == 8 * item_bytes_ && found.dtype.lanes == 1;
        if (!is_of_dtype || found.device.device_type != nanobind::device::cpu::value ||
            static_cast<std::size_t>(found.ndim) != rank_ || !is_as_stored(tensor)) {
            return std::nullopt;
        }
        return row_of(found);
    }

  private:
    using View = int (*)(void* tensor, nanobind::dlpack::dltensor* out);

    // DLPack's table, whose first version is 1.3.
    struct Exchange {
        std::uint32_t major;
        std::uint32_t minor;
        Exchange* previous;
        void* allocate;
        void* export_owned;
        void* import_owned;
        View view;
        void* current_stream;
    };

    static View find_view(nanobind::handle kind) {
        const nanobind::object capsule = nanobind::getattr(kind, "__dlpack_c_exchange_api__", nanobind::none());
        if (!PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api")) {
            return nullptr;
        }
        const auto* table = static_cast<Exchange*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
        while (table != nullptr && table->major != 1) {
            table = table->previous;
        }
        return table == nullptr ? nullptr : table->view;
    }

    bool is_as_stored(PyObject* tensor) const {
        if (type_code_ != static_cast<int>(nanobind::dlpack::dtype_code::Float)) {
            return true;
        }
        return is_false(PyObject_GetAttr(tensor, requires_grad_.ptr())) &&
               is_false(PyObject_CallMethodObjArgs(tensor, is_neg_.ptr(), nullptr));
    }

    static bool is_false(PyObject* answer) {
        if (answer == nullptr) {
            throw nanobind::python_error();
        }
        return nanobind::steal(answer).ptr() == Py_False;
    }

    Row row_of(const nanobind::dlpack::dltensor& found) {
        const std::size_t begin = axes_.size();
        for (std::size_t axis = 0; axis < rank_; ++axis) {
            axes_.push_back(static_cast<Py_ssize_t>(found.shape[axis]));
        }
        for (std::size_t axis = 0; axis < rank_; ++axis) {
            axes_.push_back(static_cast<Py_ssize_t>(found.strides[axis]) * static_cast<Py_ssize_t>(item_bytes_));
        }
        const std::span<const Py_ssize_t> shape(axes_.data() + begin, rank_);
        const std::span<const Py_ssize_t> strides(axes_.data() + begin + rank_, rank_);
        auto* const first = static_cast<std::byte*>(found.data) + found.byte_offset;
        return {first, shape, strides, is_contiguous(shape, strides)};
    }

    bool is_contiguous(std::span<const Py_ssize_t> shape, std::span<const Py_ssize_t> strides) const {
        auto expected = static_cast<Py_ssize_t>(item_bytes_);
        bool is_plain = true;
        for (std::size_t axis = rank_; axis-- > 0;) {
            if (shape[axis] == 0) {
                return true;  // nothing is read
            }
            is_plain = is_plain && (shape[axis] == 1 || strides[axis] == expected);
            expected *= shape[axis];
        }
        return is_plain;
    }

    const PyTypeObject* kind_;
    View view_;
    int type_code_;
    std::size_t item_bytes_;
    std::size_t rank_;
    std::vector<Py_ssize_t> axes_;  // the shape and the strides of each row
    nanobind::object requires_grad_ = nanobind::steal(PyUnicode_InternFromString("requires_grad"));
    nanobind::object is_neg_ = nanobind::steal(PyUnicode_InternFromString("is_neg"));
};

}  // namespace penstock::bindings
