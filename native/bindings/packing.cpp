// Binds packing: BestFit, and rows that are filled from documents. The wrapper, penstock.batching._pack, checks the
// arguments.
#include "core/packing.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <algorithm>
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

// Documents of one token size, with the buffers of their arrays.
class Documents {
  public:
    // The arrays up to the first that isn't C-contiguous, of one axis and `dtype`, and exactly of type `kind` or
    // `also`.
    Documents(const nb::list& arrays, const nb::object& dtype, const nb::type_object& kind,
              const nb::type_object& also) {
        const nb::object name = nb::steal(PyUnicode_InternFromString("dtype"));
        const auto* one = reinterpret_cast<PyTypeObject*>(kind.ptr());
        const auto* other = reinterpret_cast<PyTypeObject*>(also.ptr());
        buffers_.reserve(arrays.size());
        documents_.reserve(arrays.size());
        for (const nb::handle item : arrays) {
            PyObject* array = item.ptr();
            if ((Py_TYPE(array) != one && Py_TYPE(array) != other) || !has_dtype(array, name.ptr(), dtype.ptr())) {
                return;
            }
            const Py_buffer* view = buffers_.open(array);
            if (view == nullptr || view->ndim != 1 || !has_size(*view)) {
                return;
            }
            documents_.push_back({static_cast<const std::byte*>(view->buf), view->shape[0]});
        }
    }

    // Document i is `tokens[starts[i]:starts[i + 1]]`.
    Documents(const nb::object& tokens, const Integers& starts) {
        const Py_buffer* view = buffers_.open(tokens.ptr());
        require(view != nullptr && view->ndim == 1 && has_size(*view),
                "tokens must be a C-contiguous array of one axis");
        require(starts.size() > 0, "starts must have one value more than there are documents");
        const auto* begin = static_cast<const std::byte*>(view->buf);
        documents_.reserve(starts.size() - 1);
        for (std::size_t number = 0; number + 1 < starts.size(); ++number) {
            const std::int64_t first = starts.data()[number];
            const std::int64_t last = starts.data()[number + 1];
            if (first < 0 || last < first || last > view->shape[0]) {
                throw std::out_of_range("document " + std::to_string(number) + " must be inside the " +
                                        std::to_string(view->shape[0]) + " tokens; it spans " + std::to_string(first) +
                                        " to " + std::to_string(last));
            }
            documents_.push_back({begin + static_cast<std::size_t>(first) * token_bytes_, last - first});
        }
    }

    std::size_t size() const { return documents_.size(); }

    bool has_tokens_of(std::size_t bytes) const { return documents_.empty() || token_bytes_ == bytes; }

    void lengths(const IntegersOut& out) const {
        require(out.size() == size(), "out must have room for a length per document");
        std::transform(documents_.begin(), documents_.end(), out.data(),
                       [](const RowPiece& each) { return each.length; });
    }

    // Tokens [offset, offset + length) of document `number`, which are those of a plan's piece `piece`.
    RowPiece part(std::size_t piece, std::int64_t number, std::int64_t offset, std::int64_t length) const {
        if (number < 0 || static_cast<std::size_t>(number) >= size()) {
            throw std::out_of_range("piece " + std::to_string(piece) + " must belong to one of the " +
                                    std::to_string(size()) + " documents; it belongs to document " +
                                    std::to_string(number));
        }
        const RowPiece& document = documents_[static_cast<std::size_t>(number)];
        if (offset < 0 || length < 0 || offset > document.length || length > document.length - offset) {
            throw std::out_of_range("piece " + std::to_string(piece) + " must be inside its document, number " +
                                    std::to_string(number) + " of length " + std::to_string(document.length) +
                                    "; its offset is " + std::to_string(offset) + " and its length " +
                                    std::to_string(length));
        }
        return {document.tokens + static_cast<std::size_t>(offset) * token_bytes_, length};
    }

  private:
    // Whether the tokens have the size of those before.
    bool has_size(const Py_buffer& view) {
        if (documents_.empty()) {
            token_bytes_ = static_cast<std::size_t>(view.itemsize);
        }
        return static_cast<std::size_t>(view.itemsize) == token_bytes_;
    }

    Buffers buffers_;
    std::vector<RowPiece> documents_;
    std::size_t token_bytes_ = 0;
};

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

    void fill(const std::vector<RowPiece>& pieces, const std::vector<std::int64_t>& bounds) const {
        const std::size_t bytes = (bounds.size() - 1) * static_cast<std::size_t>(rows_.capacity) * rows_.token_bytes;
        without_gil(bytes >= release_gil_bytes, [&] { fill_rows(pieces, bounds, rows_); });
    }

  private:
    Buffers buffers_;
    PackedRows rows_{};
};

void fill_rows_from(const Documents& documents, const Integers& document, const Integers& offset,
                    const Integers& length, const Integers& bounds, const nb::object& out, const nb::object& padding,
                    const std::optional<Numbers>& segment_ids, const std::optional<Numbers>& positions) {
    const Target target(out, padding, segment_ids, positions, bounds.size());
    const auto count = static_cast<std::int64_t>(document.size());
    require(documents.has_tokens_of(target.rows().token_bytes),
            "documents must have tokens of the size of those of out");
    require(offset.size() == document.size() && length.size() == document.size(),
            "document, offset and length must have a value per piece");
    const std::int64_t first = bounds.data()[0];
    const std::int64_t stop = bounds.data()[bounds.size() - 1];
    require(first >= 0 && first <= stop && stop <= count, "bounds must be inside the pieces");
    std::vector<RowPiece> pieces;
    pieces.reserve(static_cast<std::size_t>(stop - first));
    for (auto piece = static_cast<std::size_t>(first); piece < static_cast<std::size_t>(stop); ++piece) {
        pieces.push_back(documents.part(piece, document.data()[piece], offset.data()[piece], length.data()[piece]));
    }
    std::vector<std::int64_t> own(bounds.size());
    std::transform(bounds.data(), bounds.data() + bounds.size(), own.begin(),
                   [&](std::int64_t at) { return at - first; });
    target.fill(pieces, own);
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
    nb::class_<Documents>(module, "Documents", "Documents of one token size, and their memory.")
        .def(nb::init<const nb::list&, const nb::object&, const nb::type_object&, const nb::type_object&>(), "arrays"_a,
             "dtype"_a, "kind"_a, "also"_a,
             "Open arrays up to the first that isn't C-contiguous, of one axis and `dtype`, and exactly of type `kind` "
             "or `also`. Each is a document.")
        .def(nb::init<const nb::object&, const Integers&>(), "tokens"_a, "starts"_a,
             "Open an array in which document i is `tokens[starts[i]:starts[i + 1]]`.")
        .def("__len__", &Documents::size, "Return the number of documents.")
        .def("lengths", &Documents::lengths, "out"_a.noconvert(), "Fill `out` with the number of tokens of each.");
    module.def(
        "fill_rows", &fill_rows_from, "documents"_a, "document"_a, "offset"_a, "length"_a, "bounds"_a, "out"_a,
        "padding"_a, "segment_ids"_a.noconvert().none(), "positions"_a.noconvert().none(),
        "Fill the rows of `out`: row i has the pieces `bounds[i]` to `bounds[i + 1]`. Large copies release the GIL.");
}

}  // namespace penstock::bindings
