// Binds packing: BestFit, and rows that are filled from documents. The wrapper, penstock.batching._pack, checks the
// arguments.
#include "core/packing.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bindings/arrays.hpp"
#include "bindings/interpreter_lock.hpp"

namespace nb = nanobind;

namespace penstock::bindings {
namespace {

// For smaller copies, releasing the GIL costs more than it gains.
constexpr std::size_t release_gil_bytes = 64 * 1024;
constexpr std::size_t release_gil_documents = 1024;

using Integers = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Table = nb::ndarray<const std::int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using IntegersOut = nb::ndarray<std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using TableOut = nb::ndarray<std::int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Numbers = nb::ndarray<std::int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

std::span<const std::int64_t> span_of(const Integers& array) { return {array.data(), array.size()}; }

void require(bool held, const char* rule) {
    if (!held) {
        throw std::invalid_argument(rule);
    }
}

// Does the work, without the GIL if `release`.
template <typename Work>
auto without_gil(bool release, Work work) {
    if (release) {
        const WithoutLock released;
        return work();
    }
    return work();
}

void construct(BestFit* self, const Integers& capacity, std::int64_t bins, std::int64_t max_documents) {
    new (self) BestFit(span_of(capacity), bins, max_documents);
}

void open_all(BestFit& self, const Table& room, const Integers& documents) {
    require(room.shape(0) == documents.size() && room.shape(1) == self.features(),
            "there must be a number of documents for each bin, and room in each feature");
    for (std::size_t bin = 0; bin < documents.size(); ++bin) {
        self.open({room.data() + bin * self.features(), self.features()}, documents.data()[bin]);
    }
}

std::size_t assign(BestFit& self, const Table& lengths, const IntegersOut& bins, const IntegersOut& closed,
                   const IntegersOut& closed_before) {
    const std::size_t count = lengths.shape(0);
    require(lengths.shape(1) == self.features(), "a document must have a length in every feature");
    require(bins.size() == count && closed.size() == count && closed_before.size() == count,
            "the outputs must have room for a value per document");
    const Assigned out{bins.data(), closed.data(), closed_before.data()};
    return without_gil(count >= release_gil_documents,
                       [&] { return self.assign({lengths.data(), lengths.size()}, out); });
}

void read_open(const BestFit& self, const IntegersOut& numbers, const IntegersOut& documents, const TableOut& room) {
    const std::size_t count = self.open_bins();
    require(numbers.size() == count && documents.size() == count && room.shape(0) == count &&
                room.shape(1) == self.features(),
            "the outputs must have exactly the size of the open bins");
    self.open_bins(numbers.data(), documents.data(), room.data());
}

// The tokens of documents that become pieces, and the first piece of each row.
struct Pieces {
    Integers document;
    Integers offset;
    Integers length;
    Integers bounds;
};

// The memory of one document.
struct Document {
    const std::byte* tokens;
    std::int64_t length;
};

// `find(number)` returns a document, whose number is in [0, documents).
template <typename Find>
std::vector<RowPiece> resolve(const Pieces& pieces, std::size_t documents, std::size_t token_bytes, Find find) {
    const std::size_t count = pieces.document.size();
    require(pieces.offset.size() == count && pieces.length.size() == count,
            "document, offset and length must have a value per piece");
    std::vector<RowPiece> resolved;
    resolved.reserve(count);
    for (std::size_t piece = 0; piece < count; ++piece) {
        const std::int64_t number = pieces.document.data()[piece];
        const std::int64_t offset = pieces.offset.data()[piece];
        const std::int64_t length = pieces.length.data()[piece];
        if (number < 0 || static_cast<std::size_t>(number) >= documents) {
            throw std::out_of_range("piece " + std::to_string(piece) + " must belong to one of the " +
                                    std::to_string(documents) + " documents; it belongs to document " +
                                    std::to_string(number));
        }
        const Document document = find(static_cast<std::size_t>(number));
        if (offset < 0 || length < 0 || offset > document.length || length > document.length - offset) {
            throw std::out_of_range("piece " + std::to_string(piece) + " must be inside its document, number " +
                                    std::to_string(number) + " of length " + std::to_string(document.length) +
                                    "; its offset is " + std::to_string(offset) + " and its length " +
                                    std::to_string(length));
        }
        resolved.push_back({document.tokens + static_cast<std::size_t>(offset) * token_bytes, length});
    }
    return resolved;
}

// The outputs of the rows, with their buffers.
class Target {
  public:
    Target(const nb::object& out, const nb::object& padding, const std::optional<Numbers>& segment_ids,
           const std::optional<Numbers>& positions, std::size_t bounds) {
        const Py_buffer* tokens = buffers_.open(out.ptr(), PyBUF_STRIDES | PyBUF_WRITABLE);
        if (tokens == nullptr || tokens->ndim != 2) {
            throw nb::type_error("out must be a writable C-contiguous array of two axes");
        }
        const auto height = static_cast<std::size_t>(tokens->shape[0]);
        const auto width = static_cast<std::size_t>(tokens->shape[1]);
        rows_.tokens = static_cast<std::byte*>(tokens->buf);
        rows_.capacity = static_cast<std::int64_t>(width);
        rows_.token_bytes = static_cast<std::size_t>(tokens->itemsize);
        require(bounds == height + 1, "bounds must have one value more than out has rows");
        for (const std::optional<Numbers>& numbers : {segment_ids, positions}) {
            require(!numbers || (numbers->shape(0) == height && numbers->shape(1) == width),
                    "segment_ids and positions must have the shape of out");
        }
        rows_.segment_ids = segment_ids ? segment_ids->data() : nullptr;
        rows_.positions = positions ? positions->data() : nullptr;
        const Py_buffer* token = buffers_.open(padding.ptr());
        require(token != nullptr && static_cast<std::size_t>(token->len) == rows_.token_bytes,
                "padding must be one token");
        rows_.padding = static_cast<const std::byte*>(token->buf);
    }

    const PackedRows& rows() const { return rows_; }

    void fill(const std::vector<RowPiece>& pieces, const Integers& bounds) const {
        const std::size_t bytes = (bounds.size() - 1) * static_cast<std::size_t>(rows_.capacity) * rows_.token_bytes;
        without_gil(bytes >= release_gil_bytes, [&] { fill_rows(pieces, span_of(bounds), rows_); });
    }

  private:
    Buffers buffers_;
    PackedRows rows_{};
};

Py_ssize_t fill_rows_of(const nb::list& documents, const nb::type_object& also, const Integers& document,
                        const Integers& offset, const Integers& length, const Integers& bounds, const nb::object& out,
                        const nb::object& padding, const std::optional<Numbers>& segment_ids,
                        const std::optional<Numbers>& positions) {
    const Target target(out, padding, segment_ids, positions, bounds.size());
    const nb::object name = nb::steal(PyUnicode_InternFromString("dtype"));
    const nb::object dtype = out.attr(name);
    const PyTypeObject* array_type = Py_TYPE(out.ptr());
    const auto* also_type = reinterpret_cast<PyTypeObject*>(also.ptr());

    Buffers buffers;
    std::vector<Document> opened;
    buffers.reserve(documents.size());
    opened.reserve(documents.size());
    for (const nb::handle item : documents) {
        PyObject* array = item.ptr();
        if ((Py_TYPE(array) != array_type && Py_TYPE(array) != also_type) ||
            !has_dtype(array, name.ptr(), dtype.ptr())) {
            return static_cast<Py_ssize_t>(opened.size());
        }
        const Py_buffer* view = buffers.open(array);
        if (view == nullptr || view->ndim != 1) {
            return static_cast<Py_ssize_t>(opened.size());
        }
        opened.push_back({static_cast<const std::byte*>(view->buf), view->shape[0]});
    }
    const Pieces pieces{document, offset, length, bounds};
    target.fill(
        resolve(pieces, opened.size(), target.rows().token_bytes, [&](std::size_t number) { return opened[number]; }),
        bounds);
    return -1;
}

void fill_rows_from(const nb::object& tokens, const Integers& starts, const Integers& document, const Integers& offset,
                    const Integers& length, const Integers& bounds, const nb::object& out, const nb::object& padding,
                    const std::optional<Numbers>& segment_ids, const std::optional<Numbers>& positions) {
    const Target target(out, padding, segment_ids, positions, bounds.size());
    const std::size_t token_bytes = target.rows().token_bytes;
    Buffers buffers;
    const Py_buffer* view = buffers.open(tokens.ptr());
    require(view != nullptr && view->ndim == 1 && static_cast<std::size_t>(view->itemsize) == token_bytes,
            "tokens must be a C-contiguous array of one axis with the dtype of out");
    const auto* begin = static_cast<const std::byte*>(view->buf);
    const std::int64_t size = view->shape[0];
    const auto find = [&](std::size_t number) {
        const std::int64_t first = starts.data()[number];
        const std::int64_t last = starts.data()[number + 1];
        if (first < 0 || last < first || last > size) {
            throw std::out_of_range("document " + std::to_string(number) + " must be inside the " +
                                    std::to_string(size) + " tokens; it spans " + std::to_string(first) + " to " +
                                    std::to_string(last));
        }
        return Document{begin + static_cast<std::size_t>(first) * token_bytes, last - first};
    };
    require(starts.size() > 0, "starts must have one value more than there are documents");
    const Pieces pieces{document, offset, length, bounds};
    target.fill(resolve(pieces, starts.size() - 1, token_bytes, find), bounds);
}

}  // namespace

void bind_packing(nb::module_& module) {
    using nb::literals::operator""_a;
    nb::class_<BestFit>(module, "BestFit", "Streaming best fit over a bounded number of open bins, for one thread.")
        .def("__init__", &construct, "capacity"_a, "bins"_a, "max_documents"_a)
        .def("open", &open_all, "room"_a, "documents"_a,
             "Open bins, oldest first, with `room` left in each feature and `documents` in them.")
        .def("assign", &assign, "lengths"_a, "bins"_a.noconvert(), "closed"_a.noconvert(),
             "closed_before"_a.noconvert(),
             "Fill `bins` with each document's bin, the others with the bins that closed and the number of documents "
             "assigned by then, and return how many closed. Many documents are assigned without the GIL.")
        .def(
            "__len__", [](const BestFit& self) { return self.open_bins(); }, "Return the number of open bins.")
        .def("read", &read_open, "numbers"_a.noconvert(), "documents"_a.noconvert(), "room"_a.noconvert(),
             "Fill the outputs with the open bins, oldest first.");
    module.def(
        "fill_rows", &fill_rows_of, "documents"_a, "also"_a, "document"_a, "offset"_a, "length"_a, "bounds"_a, "out"_a,
        "padding"_a, "segment_ids"_a.noconvert().none(), "positions"_a.noconvert().none(),
        "Fill the rows of `out`; return -1, or, with nothing written, the index of the first document that isn't "
        "a C-contiguous array of one axis and the dtype of `out`, of its exact type or of type `also`. Large "
        "copies release the GIL.");
    module.def("fill_rows_from", &fill_rows_from, "tokens"_a, "starts"_a, "document"_a, "offset"_a, "length"_a,
               "bounds"_a, "out"_a, "padding"_a, "segment_ids"_a.noconvert().none(), "positions"_a.noconvert().none(),
               "Fill the rows of `out`, where document i is `tokens[starts[i]:starts[i + 1]]`, of the dtype of `out`.");
}

}  // namespace penstock::bindings
