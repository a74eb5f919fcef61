// Binds functions that write a block of elements into the columns of a batch.
//
// Every function writes the items from `begin` on, up to the first whose type is not exactly that of the column. It
// returns the index of that item, or -1 after the last; the caller handles the item itself. Nothing is converted. Item
// i is written to row `start + i`.
#include "core/stack.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "bindings/arrays.hpp"
#include "bindings/interpreter_lock.hpp"
#include "bindings/tensors.hpp"
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

// The memory of a row or a column, from its first byte to the end of its last item, wherever its strides lead.
struct Extent {
    std::uintptr_t begin;
    std::uintptr_t end;

    Extent(const Row& row, std::size_t item_bytes) {
        begin = end = reinterpret_cast<std::uintptr_t>(row.first);
        for (std::size_t axis = 0; axis < row.shape.size(); ++axis) {
            const Py_ssize_t reach = (row.shape[axis] - 1) * row.strides[axis];
            (reach < 0 ? begin : end) += static_cast<std::uintptr_t>(reach);
        }
        end += item_bytes;
    }

    bool overlaps(const Extent& other) const { return begin < other.end && other.begin < end; }
};

// A column, and the rows that are copied to it, one after the other.
class RowsOut {
  public:
    RowsOut(nb::handle out, Py_ssize_t begin, Py_ssize_t start, Py_ssize_t count) {
        const Py_buffer* column = buffers_.open(out.ptr(), PyBUF_STRIDES | PyBUF_WRITABLE);
        if (column == nullptr || column->ndim == 0) {
            throw nb::type_error("out must be a writable C-contiguous array with a row axis");
        }
        require_room(begin, start, count, column->shape[0]);
        item_bytes_ = static_cast<std::size_t>(column->itemsize);
        shape_ = {column->shape + 1, static_cast<std::size_t>(column->ndim - 1)};
        row_bytes_ = item_bytes_;
        for (const Py_ssize_t length : shape_) {
            row_bytes_ *= static_cast<std::size_t>(length);
        }
        place_ = static_cast<std::byte*>(column->buf) + static_cast<std::size_t>(start + begin) * row_bytes_;
        written_.emplace(row_of(*column), item_bytes_);
        rows_.reserve(static_cast<std::size_t>(count - begin));
    }

    std::span<const Py_ssize_t> shape() const { return shape_; }
    std::size_t item_bytes() const { return item_bytes_; }

    // Adds the next row, unless it has another shape, or would be read from memory that other rows are written to.
    bool add(const Row& row) {
        if (!std::ranges::equal(row.shape, shape_)) {
            return false;
        }
        const bool is_in_place = row.is_plain && row.first == place_ + rows_.size() * row_bytes_;
        if (row_bytes_ != 0 && !is_in_place && Extent(row, item_bytes_).overlaps(*written_)) {
            return false;
        }
        rows_.push_back(row);
        return true;
    }

    // Copies the rows that were added; large ones without the GIL.
    void copy(std::size_t num_threads) const {
        if (rows_.size() * row_bytes_ >= release_gil_bytes) {
            const WithoutLock released;
            copy_all(num_threads);
        } else {
            copy_all(1);
        }
    }

  private:
    void copy_all(std::size_t num_threads) const {
        std::byte* place = place_;
        std::vector<const void*> run;
        for (std::size_t row = 0; row < rows_.size();) {
            run.clear();
            for (; row < rows_.size() && rows_[row].is_plain; ++row) {
                run.push_back(rows_[row].first);
            }
            copy_rows_on_threads(run, row_bytes_, place, threads_worth(run.size() * row_bytes_, num_threads));
            place += run.size() * row_bytes_;
            for (; row < rows_.size() && !rows_[row].is_plain; ++row, place += row_bytes_) {
                copy_strided({rows_[row].first, shape_, rows_[row].strides, item_bytes_}, place);
            }
        }
    }

    Buffers buffers_;
    std::span<const Py_ssize_t> shape_;  // of a row
    std::size_t item_bytes_ = 0;
    std::size_t row_bytes_ = 0;
    std::byte* place_ = nullptr;  // of the first row
    std::optional<Extent> written_;
    std::vector<Row> rows_;
};

// Reads arrays of one dtype, of the exact type of an array or of another one. The rows are valid as long as this.
class ArrayReader {
  public:
    ArrayReader(nb::handle like, nb::type_object also)
        : dtype_(like.attr(name_)), type_(Py_TYPE(like.ptr())), also_(reinterpret_cast<PyTypeObject*>(also.ptr())) {}

    std::optional<Row> read(PyObject* item) {
        if ((Py_TYPE(item) != type_ && Py_TYPE(item) != also_) || !has_dtype(item, name_.ptr(), dtype_.ptr())) {
            return std::nullopt;
        }
        const Py_buffer* view = buffers_.open_strided(item);
        return view == nullptr ? std::nullopt : std::optional(row_of(*view));
    }

  private:
    nb::object name_ = nb::steal(PyUnicode_InternFromString("dtype"));
    nb::object dtype_;
    const PyTypeObject* type_;
    const PyTypeObject* also_;
    Buffers buffers_;  // the shapes and strides are the arrays' own, and stay valid while these are held
};

template <typename Reader>
Py_ssize_t write_items(const Items& items, Py_ssize_t begin, Reader& reader, RowsOut& rows, std::size_t num_threads) {
    Py_ssize_t index = begin;
    for (; index < items.size(); ++index) {
        const std::optional<Row> row = reader.read(items[index]);
        if (!row || !rows.add(*row)) {
            break;
        }
    }
    rows.copy(num_threads);
    return index < items.size() ? index : -1;
}

Py_ssize_t write_arrays(Sequence sequence, Py_ssize_t begin, nb::object out, Py_ssize_t start, nb::type_object also,
                        std::size_t num_threads) {
    const Items items(sequence);
    RowsOut rows(out, begin, start, items.size());
    ArrayReader reader(out, also);
    return write_items(items, begin, reader, rows, num_threads);
}

Py_ssize_t write_tensors(Sequence sequence, Py_ssize_t begin, nb::object out, Py_ssize_t start, nb::type_object kind,
                         int type_code, std::size_t num_threads) {
    const Items items(sequence);
    RowsOut rows(out, begin, start, items.size());
    TensorReader reader(kind, type_code, rows.item_bytes(), rows.shape().size(), items.size() - begin);
    return write_items(items, begin, reader, rows, num_threads);
}

// The bytes of one item, of an array without axes.
std::span<const std::byte> item_of(nb::handle array, Buffers& buffers) {
    const Py_buffer* view = buffers.open(array.ptr());
    if (view == nullptr || view->ndim != 0) {
        throw nb::type_error("fill must be an array without axes");
    }
    return {static_cast<const std::byte*>(view->buf), static_cast<std::size_t>(view->itemsize)};
}

// Writes rows to the beginnings of the rows of `column`, and `fill` behind them.
void copy_padded(std::span<const Row> rows, const Py_buffer& column, std::span<const std::byte> fill) {
    const std::size_t room = static_cast<std::size_t>(column.len) / rows.size();
    auto* place = static_cast<std::byte*>(column.buf);
    for (const Row& row : rows) {
        std::size_t used = fill.size();
        for (const Py_ssize_t length : row.shape) {
            used *= static_cast<std::size_t>(length);
        }
        if (row.is_plain) {
            const std::array<const void*, 1> source{row.first};
            copy_rows(source, used, place);
        } else {
            copy_strided({row.first, row.shape, row.strides, fill.size()}, place);
        }
        fill_items({place + used, room - used}, fill);
        place += room;
    }
}

template <typename Reader>
nb::object pad_items(const Items& items, Reader& reader, nb::callable make, nb::handle fill) {
    Buffers buffers;
    const std::span<const std::byte> item = item_of(fill, buffers);
    std::vector<Row> rows;
    nb::list lengths;
    for (Py_ssize_t index = 0; index < items.size(); ++index) {
        const std::optional<Row> row = reader.read(items[index]);
        if (!row || row->shape.empty()) {
            return nb::none();
        }
        rows.push_back(*row);
        lengths.append(row->shape[0]);
    }
    nb::object out = call_or_wait_forever([&] { return make(lengths); });
    if (out.is_none()) {
        return out;
    }
    Buffers destination;
    const Py_buffer* column = destination.open(out.ptr(), PyBUF_STRIDES | PyBUF_WRITABLE);
    if (column == nullptr || column->ndim < 2 || column->shape[0] != items.size() ||
        static_cast<std::size_t>(column->itemsize) != item.size()) {
        throw nb::type_error("make must return a writable C-contiguous array with a row for each item");
    }
    const std::span<const Py_ssize_t> shape(column->shape + 1, static_cast<std::size_t>(column->ndim - 1));
    for (const Row& row : rows) {
        const bool fits = row.shape.size() == shape.size() && row.shape[0] <= shape[0];
        if (!fits || !std::ranges::equal(row.shape.subspan(1), shape.subspan(1))) {
            return nb::none();
        }
    }
    if (rows.empty()) {
        return out;
    }
    if (static_cast<std::size_t>(column->len) >= release_gil_bytes) {
        const WithoutLock released;
        copy_padded(rows, *column, item);
    } else {
        copy_padded(rows, *column, item);
    }
    return out;
}

nb::object pad_arrays(Sequence sequence, nb::callable make, nb::object fill, nb::type_object also) {
    ArrayReader reader(fill, also);
    return pad_items(Items(sequence), reader, make, fill);
}

nb::object pad_tensors(Sequence sequence, nb::callable make, nb::object fill, nb::type_object kind, int type_code,
                       std::size_t rank) {
    const Items items(sequence);
    const auto item_bytes = nb::cast<std::size_t>(fill.attr("itemsize"));
    TensorReader reader(kind, type_code, item_bytes, rank, items.size());
    return pad_items(items, reader, make, fill);
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
        "write_tensors", &write_tensors, "items"_a, "begin"_a, "out"_a, "start"_a, "kind"_a, "type_code"_a,
        "num_threads"_a,
        "Write torch tensors as `write_arrays` writes arrays: of exactly the type `kind`, of a dtype with DLPack's "
        "`type_code` and the item size of `out`, in host memory, as they are stored, and without gradients. "
        "Nothing is written where the type has no table of DLPack's C functions.");
    module.def("pad_arrays", &pad_arrays, "items"_a, "make"_a, "fill"_a, "also"_a,
               nb::sig("def pad_arrays(items: collections.abc.Sequence[object], "
                       "make: collections.abc.Callable[[list[int]], object | None], fill: object, also: type) "
                       "-> object | None"),
               "Write arrays of exactly the dtype and the type of `fill`, or of type `also`, to the beginnings of the "
               "rows of `make(lengths)`, and `fill` behind them. Return that, or None where an item is another or has "
               "another shape behind its first axis, or where `make` returns None.");
    module.def("pad_tensors", &pad_tensors, "items"_a, "make"_a, "fill"_a, "kind"_a, "type_code"_a, "rank"_a,
               nb::sig("def pad_tensors(items: collections.abc.Sequence[object], "
                       "make: collections.abc.Callable[[list[int]], object | None], fill: object, kind: type, "
                       "type_code: int, rank: int) -> object | None"),
               "Write torch tensors as `pad_arrays` writes arrays; of those that `write_tensors` accepts, with `rank` "
               "axes.");
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
