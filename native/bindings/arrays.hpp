// Lists of NumPy arrays of any dtype and their memory, for units that copy items as bytes.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <span>
#include <vector>

namespace penstock::bindings {

// The items of a list or a tuple.
class Items {
  public:
    explicit Items(nanobind::handle sequence) : sequence_(sequence.ptr()), is_list_(PyList_Check(sequence_)) {
        if (!is_list_ && !PyTuple_Check(sequence_)) {
            throw nanobind::type_error("items must be a list or a tuple");
        }
        size_ = is_list_ ? PyList_Size(sequence_) : PyTuple_Size(sequence_);
    }

    Py_ssize_t size() const { return size_; }

    // A borrowed reference: the caller must not change the sequence while this is in use.
    PyObject* operator[](Py_ssize_t index) const {
        return is_list_ ? PyList_GetItem(sequence_, index) : PyTuple_GetItem(sequence_, index);
    }

  private:
    PyObject* sequence_;
    bool is_list_;
    Py_ssize_t size_;
};

// The buffers of arrays, held while their bytes are read or written.
class Buffers {
  public:
    Buffers() = default;
    Buffers(const Buffers&) = delete;
    Buffers& operator=(const Buffers&) = delete;
    ~Buffers() {
        for (Py_buffer& view : views_) {
            PyBuffer_Release(&view);
        }
    }

    void reserve(std::size_t count) { views_.reserve(count); }

    // The buffer of a C-contiguous array, valid until the next call (the vector may move it), without its format, which
    // some dtypes don't have; null if there is none.
    const Py_buffer* open(PyObject* array, int flags = PyBUF_STRIDES) {
        const Py_buffer* view = open_strided(array, flags);
        // Checked here and not by a flag: for a flag NumPy would raise an exception, which takes longer than the copy.
        return view != nullptr && PyBuffer_IsContiguous(view, 'C') ? view : nullptr;
    }

    // The same, for an array with any strides.
    const Py_buffer* open_strided(PyObject* array, int flags = PyBUF_STRIDES) {
        Py_buffer& view = views_.emplace_back();
        if (PyObject_GetBuffer(array, &view, flags) != 0) {
            PyErr_Clear();
            views_.pop_back();
            return nullptr;
        }
        return &view;
    }

  private:
    std::vector<Py_buffer> views_;
};

// An array that is read as bytes, as a row of a batch is. It is valid as long as the array's memory, shape and strides.
struct Row {
    std::byte* first;
    std::span<const Py_ssize_t> shape;
    std::span<const Py_ssize_t> strides;  // in bytes
    bool is_plain;                        // C-contiguous
};

inline Row row_of(const Py_buffer& view) {
    const auto rank = static_cast<std::size_t>(view.ndim);
    const bool is_plain = PyBuffer_IsContiguous(&view, 'C') != 0;
    return {static_cast<std::byte*>(view.buf), {view.shape, rank}, {view.strides, rank}, is_plain};
}

// Whether an array has this dtype. `name` is "dtype", interned.
inline bool has_dtype(PyObject* array, PyObject* name, PyObject* dtype) {
    const nanobind::object found = nanobind::steal(PyObject_GetAttr(array, name));
    if (!found.is_valid()) {
        throw nanobind::python_error();
    }
    if (found.ptr() == dtype) {
        return true;  // nearly always: NumPy has one object for each plain dtype
    }
    const int equal = PyObject_RichCompareBool(found.ptr(), dtype, Py_EQ);
    if (equal < 0) {
        throw nanobind::python_error();
    }
    return equal == 1;
}

}  // namespace penstock::bindings
