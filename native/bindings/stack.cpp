// Binds functions that write a block of elements into the columns of a batch.
//
// Every function writes the items from `begin` on, up to the first whose type is not exactly that of the column. It
// returns the index of that item, or -1 after the last; the caller handles the item itself. Nothing is converted. Item
// i is written to row `start + i`.
#include "core/stack.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "bindings/arrays.hpp"
#include "core/parallel.hpp"

namespace nb = nanobind;

namespace penstock::bindings {
namespace {

// For smaller copies, releasing the GIL costs more than it gains.
constexpr std::size_t release_gil_bytes = 64 * 1024;

template <typename Scalar>
using Column = nb::ndarray<Scalar, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

using Sequence = nb::typed<nb::sequence, nb::object>;

void require_room(Py_ssize_t begin, Py_ssize_t start, Py_ssize_t size, Py_ssize_t rows) {
    if (begin < 0 || start < 0 || size > rows - start) {
        throw nb::index_error("the items must fit into the rows of the column");
    }
}

// `convert(item, place)` writes one item, and returns whether it could.
template <typename Scalar, typename Convert>
Py_ssize_t write_scalars(nb::handle sequence, Py_ssize_t begin, const Column<Scalar>& out, Py_ssize_t start,
                         Convert convert) {
    const Items items(sequence);
    require_room(begin, start, items.size(), static_cast<Py_ssize_t>(out.shape(0)));
    Scalar* rows = out.data() + start;
    for (Py_ssize_t index = begin; index < items.size(); ++index) {
        if (!convert(items[index], rows[index])) {
            return index;
        }
    }
    return -1;
}

Py_ssize_t write_integers(Sequence items, Py_ssize_t begin, Column<std::int64_t> out, Py_ssize_t start) {
    return write_scalars<std::int64_t>(items, begin, out, start, [](PyObject* item, std::int64_t& place) {
        if (!PyLong_CheckExact(item)) {
            return false;
        }
        int overflow = 0;
        place = PyLong_AsLongLongAndOverflow(item, &overflow);
        return overflow == 0;
    });
}

Py_ssize_t write_floats(Sequence items, Py_ssize_t begin, Column<double> out, Py_ssize_t start) {
    return write_scalars<double>(items, begin, out, start, [](PyObject* item, double& place) {
        if (!PyFloat_CheckExact(item)) {
            return false;
        }
        place = PyFloat_AsDouble(item);
        return true;
    });
}

Py_ssize_t write_booleans(Sequence items, Py_ssize_t begin, Column<bool> out, Py_ssize_t start) {
    return write_scalars<bool>(items, begin, out, start, [](PyObject* item, bool& place) {
        place = item == Py_True;
        return place || item == Py_False;
    });
}

bool has_shape(const Py_buffer& view, const Py_ssize_t* shape, int rank) {
    return view.ndim == rank && (rank == 0 || std::equal(shape, shape + rank, view.shape));
}

// The memory of an array, from its first byte to the end of its last item, wherever its strides lead.
struct Extent {
    std::uintptr_t begin;
    std::uintptr_t end;

    explicit Extent(const Py_buffer& view) {
        begin = end = reinterpret_cast<std::uintptr_t>(view.buf);
        for (int axis = 0; axis < view.ndim; ++axis) {
            const Py_ssize_t reach = (view.shape[axis] - 1) * view.strides[axis];
            (reach < 0 ? begin : end) += static_cast<std::uintptr_t>(reach);
        }
        end += static_cast<std::uintptr_t>(view.itemsize);
    }

    bool overlaps(const Extent& other) const { return begin < other.end && other.begin < end; }
};

// A row that is copied; one without strides is C-contiguous.
struct Source {
    const void* first;
    const Py_ssize_t* strides;
};

// Copies rows to consecutive places. `column` is the array that they are written to.
void copy_sources(std::span<const Source> sources, const Py_buffer& column, std::size_t row_bytes, std::byte* place,
                  std::size_t num_threads) {
    const auto axes = static_cast<std::size_t>(column.ndim - 1);
    std::vector<const void*> run;
    for (std::size_t row = 0; row < sources.size();) {
        run.clear();
        for (; row < sources.size() && sources[row].strides == nullptr; ++row) {
            run.push_back(sources[row].first);
        }
        copy_rows_on_threads(run, row_bytes, place, threads_worth(run.size() * row_bytes, num_threads));
        place += run.size() * row_bytes;
        for (; row < sources.size() && sources[row].strides != nullptr; ++row, place += row_bytes) {
            copy_strided({static_cast<const std::byte*>(sources[row].first),
                          {column.shape + 1, axes},
                          {sources[row].strides, axes},
                          static_cast<std::size_t>(column.itemsize)},
                         place);
        }
    }
}

Py_ssize_t write_arrays(Sequence sequence, Py_ssize_t begin, nb::object out, Py_ssize_t start, nb::type_object also,
                        std::size_t num_threads) {
    const Items items(sequence);
    Buffers destination;
    const Py_buffer* column = destination.open(out.ptr(), PyBUF_STRIDES | PyBUF_WRITABLE);
    if (column == nullptr || column->ndim == 0) {
        throw nb::type_error("out must be a writable C-contiguous array with a row axis");
    }
    require_room(begin, start, items.size(), column->shape[0]);
    std::size_t row_bytes = static_cast<std::size_t>(column->itemsize);
    for (int axis = 1; axis < column->ndim; ++axis) {
        row_bytes *= static_cast<std::size_t>(column->shape[axis]);
    }
    const nb::object name = nb::steal(PyUnicode_InternFromString("dtype"));
    const nb::object dtype = out.attr(name);
    const PyTypeObject* array_type = Py_TYPE(out.ptr());
    const auto* also_type = reinterpret_cast<PyTypeObject*>(also.ptr());

    std::byte* const place = static_cast<std::byte*>(column->buf) + static_cast<std::size_t>(start + begin) * row_bytes;
    const Extent written(*column);
    Buffers buffers;
    std::vector<Source> sources;
    Py_ssize_t index = begin;
    for (; index < items.size(); ++index) {
        PyObject* item = items[index];
        if ((Py_TYPE(item) != array_type && Py_TYPE(item) != also_type) || !has_dtype(item, name.ptr(), dtype.ptr())) {
            break;
        }
        const Py_buffer* view = buffers.open_strided(item);
        if (view == nullptr || !has_shape(*view, column->shape + 1, column->ndim - 1)) {
            break;
        }
        const bool is_plain = PyBuffer_IsContiguous(view, 'C') != 0;
        // A row must not be read from memory that other rows are written to; its own place is allowed.
        const bool is_in_place = is_plain && view->buf == place + sources.size() * row_bytes;
        if (row_bytes != 0 && !is_in_place && Extent(*view).overlaps(written)) {
            break;
        }
        // The shape and the strides are the array's own, and stay valid while the buffer is held.
        sources.push_back({view->buf, is_plain ? nullptr : view->strides});
    }

    if (sources.size() * row_bytes >= release_gil_bytes) {
        const nb::gil_scoped_release released;
        copy_sources(sources, *column, row_bytes, place, num_threads);
    } else {
        copy_sources(sources, *column, row_bytes, place, 1);
    }
    return index < items.size() ? index : -1;
}

// Whether a key borrowed from a dict is the expected one; the comparison may run user code.
bool is_key(PyObject* key, PyObject* expected) {
    if (key == expected) {
        return true;  // nearly always: names in source code are interned
    }
    const nb::object kept_key = nb::borrow(key);
    const int equal = PyObject_RichCompareBool(key, expected, Py_EQ);
    if (equal < 0) {
        throw nb::python_error();
    }
    return equal == 1;
}

// One list of values for each child of the elements, filled element by element.
class Children {
  public:
    Children(Py_ssize_t width, Py_ssize_t size) {
        for (Py_ssize_t child = 0; child < width; ++child) {
            lists_.push_back(nb::steal(PyList_New(size)));
            if (!lists_.back().is_valid()) {
                throw nb::python_error();
            }
        }
    }

    void put(Py_ssize_t child, Py_ssize_t index, nb::object value) {
        PyList_SetItem(lists_[static_cast<std::size_t>(child)].ptr(), index, value.release().ptr());
    }

    nb::object lists() const {
        nb::list result;
        for (const nb::object& list : lists_) {
            result.append(list);
        }
        return result;
    }

  private:
    std::vector<nb::object> lists_;
};

nb::object split_dicts(Sequence elements, nb::tuple keys) {
    const Items items(elements);
    const auto width = static_cast<Py_ssize_t>(keys.size());
    Children children(width, items.size());
    for (Py_ssize_t index = 0; index < items.size(); ++index) {
        PyObject* element = items[index];
        if (!PyDict_CheckExact(element) || PyDict_Size(element) != width) {
            return nb::none();
        }
        PyObject* key = nullptr;
        PyObject* value = nullptr;
        Py_ssize_t position = 0;
        for (Py_ssize_t child = 0; child < width; ++child) {
            if (!PyDict_Next(element, &position, &key, &value)) {
                return nb::none();
            }
            nb::object kept = nb::borrow(value);
            if (!is_key(key, PyTuple_GetItem(keys.ptr(), child))) {
                return nb::none();
            }
            children.put(child, index, std::move(kept));
        }
    }
    return children.lists();
}

nb::object split_sequences(Sequence elements, nb::type_object kind, Py_ssize_t width) {
    const Items items(elements);
    Children children(width, items.size());
    const auto* type = reinterpret_cast<PyTypeObject*>(kind.ptr());
    for (Py_ssize_t index = 0; index < items.size(); ++index) {
        PyObject* element = items[index];
        if (Py_TYPE(element) != type) {
            return nb::none();
        }
        const Items parts(element);
        if (parts.size() != width) {
            return nb::none();
        }
        for (Py_ssize_t child = 0; child < width; ++child) {
            children.put(child, index, nb::borrow(parts[child]));
        }
    }
    return children.lists();
}

}  // namespace

void bind_stack(nb::module_& module) {
    using nb::literals::operator""_a;
    module.def("write_integers", &write_integers, "items"_a, "begin"_a, "out"_a.noconvert(), "start"_a,
               "Write exact ints of 64 bits; return the index of the first other item, or -1.");
    module.def("write_floats", &write_floats, "items"_a, "begin"_a, "out"_a.noconvert(), "start"_a,
               "Write exact floats; return the index of the first other item, or -1.");
    module.def("write_booleans", &write_booleans, "items"_a, "begin"_a, "out"_a.noconvert(), "start"_a,
               "Write bools; return the index of the first other item, or -1.");
    module.def(
        "write_arrays", &write_arrays, "items"_a, "begin"_a, "out"_a, "start"_a, "also"_a, "num_threads"_a,
        "Write arrays of exactly the dtype of `out` and the shape of its rows, of its exact type or of type `also`, "
        "outside of `out` or in their own places; return the index of the first other item, or -1. Large copies "
        "release the GIL; still larger ones of C-contiguous arrays are divided among at most `num_threads` threads.");
    module.def(
        "split_dicts", &split_dicts, "elements"_a, "keys"_a,
        nb::sig("def split_dicts(elements: collections.abc.Sequence[object], keys: tuple[object, ...]) "
                "-> list[list[object]] | None"),
        "Return a list of values for each key, or None if an element isn't exactly a dict of these keys in order.");
    module.def("split_sequences", &split_sequences, "elements"_a, "kind"_a, "width"_a,
               nb::sig("def split_sequences(elements: collections.abc.Sequence[object], kind: type, width: int) "
                       "-> list[list[object]] | None"),
               "Return a list of values for each place in lists or tuples of exactly this type and length, or None for "
               "other elements.");
}

}  // namespace penstock::bindings
