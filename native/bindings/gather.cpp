// RowTable and map_file for Python: arguments are converted here, the work is in core/gather and core/mapped_file.
#include "core/gather.hpp"

#include <Python.h>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "bindings/interpreter_lock.hpp"
#include "core/mapped_file.hpp"

namespace nb = nanobind;

namespace penstock::bindings {

namespace {

using Bytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Keys = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Out = nb::ndarray<std::uint8_t, nb::c_contig, nb::device::cpu>;

// For smaller copies, releasing the GIL costs more than it gains.
constexpr std::size_t kReleaseFromBytes = 16 * 1024;

// A RowTable together with the arrays that own its memory.
class OwnedRowTable {
  public:
    OwnedRowTable(std::vector<Bytes> owners, std::span<const Piece> pieces, std::size_t row_bytes,
                  std::size_t stride_bytes)
        : owners_(std::move(owners)), table_(pieces, row_bytes, stride_bytes) {}

    const RowTable& table() const noexcept { return table_; }

  private:
    std::vector<Bytes> owners_;
    RowTable table_;
};

std::int64_t rows_within(std::size_t bytes, std::size_t row_bytes, std::size_t stride_bytes) {
    return bytes < row_bytes ? 0 : static_cast<std::int64_t>((bytes - row_bytes) / stride_bytes + 1);
}

void construct(OwnedRowTable* self, const nb::list& pieces, std::size_t row_bytes, std::size_t stride_bytes) {
    if (row_bytes == 0 || stride_bytes == 0) {
        throw std::invalid_argument("row_bytes and stride_bytes must be positive");
    }
    std::vector<Bytes> owners;
    std::vector<Piece> spans;
    owners.reserve(pieces.size());
    spans.reserve(pieces.size());
    for (nb::handle piece : pieces) {
        auto bytes = nb::cast<Bytes>(piece, false);
        const auto* begin = reinterpret_cast<const std::byte*>(bytes.data());
        spans.push_back({begin, rows_within(bytes.size(), row_bytes, stride_bytes)});
        owners.push_back(std::move(bytes));
    }
    new (self) OwnedRowTable(std::move(owners), spans, row_bytes, stride_bytes);
}

void gather(const OwnedRowTable& self, const Keys& keys, const Out& out) {
    const RowTable& table = self.table();
    const std::size_t bytes = keys.size() * table.row_bytes();
    if (out.nbytes() != bytes) {
        throw std::invalid_argument("out must have " + std::to_string(bytes) + " bytes; got " +
                                    std::to_string(out.nbytes()));
    }
    const std::span<const std::int64_t> span(keys.data(), keys.size());
    auto* begin = reinterpret_cast<std::byte*>(out.data());
    if (bytes < kReleaseFromBytes) {
        table.gather(span, begin);
        return;
    }
    const WithoutLock released;
    table.gather(span, begin);
}

void gather_rows(const nb::list& tables, const Keys& bounds, const Keys& keys, const Out& out) {
    if (tables.size() == 0 || bounds.size() != tables.size() + 1) {
        throw std::invalid_argument("each table must have two bounds, and there must be one");
    }
    std::vector<const RowTable*> found;
    found.reserve(tables.size());
    for (nb::handle table : tables) {
        found.push_back(&nb::cast<const OwnedRowTable&>(table, false).table());
    }
    const std::size_t row_bytes = found.front()->row_bytes();
    const std::span<const std::int64_t> ends(bounds.data(), bounds.size());
    const bool is_alike = std::all_of(found.begin(), found.end(),
                                      [row_bytes](const RowTable* table) { return table->row_bytes() == row_bytes; });
    if (!is_alike || out.nbytes() != keys.size() * row_bytes || ends.front() != 0 || !std::ranges::is_sorted(ends) ||
        ends.back() != static_cast<std::int64_t>(keys.size())) {
        throw std::invalid_argument("rows must have one size, and out and the bounds must have all of the keys");
    }
    auto* begin = reinterpret_cast<std::byte*>(out.data());
    const std::span<const std::int64_t> all(keys.data(), keys.size());
    const auto copy = [&] {
        for (std::size_t number = 0; number < found.size(); ++number) {
            const auto first = static_cast<std::size_t>(ends[number]);
            const auto count = static_cast<std::size_t>(ends[number + 1]) - first;
            found[number]->gather(all.subspan(first, count), begin + first * row_bytes);
        }
    };
    if (out.nbytes() < kReleaseFromBytes) {
        copy();
        return;
    }
    const WithoutLock released;
    copy();
}

nb::ndarray<nb::numpy, const std::uint8_t, nb::ndim<1>> map_file(const nb::bytes& path) {
    std::unique_ptr<MappedFile> file;
    try {
        const std::string name(path.c_str(), path.size());
        const WithoutLock released;
        file = std::make_unique<MappedFile>(name);
    } catch (const std::system_error& error) {
        errno = error.code().value();
        PyErr_SetFromErrno(PyExc_OSError);
        throw nb::python_error();
    }
    const auto* data = reinterpret_cast<const std::uint8_t*>(file->data());
    const std::size_t size = file->size();
    const nb::capsule owner(file.get(), [](void* pointer) noexcept { delete static_cast<MappedFile*>(pointer); });
    file.release();  // the capsule owns it now
    return {data, {size}, owner};
}

}  // namespace

void bind_gather(nb::module_& module) {
    nb::class_<OwnedRowTable>(module, "RowTable",
                              "Rows of equal size at equal strides in one or more pieces of memory, copied by key.")
        .def(
            "__init__", &construct, nb::arg("pieces"), nb::arg("row_bytes"), nb::arg("stride_bytes"),
            "Number the rows that fit into each uint8 array of `pieces`, one piece after another, and keep the arrays.")
        .def(
            "__len__", [](const OwnedRowTable& self) { return self.table().size(); }, "Return the number of rows.")
        .def("gather", &gather, nb::arg("keys"), nb::arg("out").noconvert(),
             "Copy the rows of `keys` into `out`, C-contiguous and of exactly their bytes. Larger copies run "
             "without the GIL. Raises IndexError, with `out` unchanged, if a key isn't in [0, len(self)).");
    module.def("gather_rows", &gather_rows, nb::arg("tables"), nb::arg("bounds"), nb::arg("keys"),
               nb::arg("out").noconvert(),
               nb::sig("def gather_rows(tables: list[RowTable], bounds: numpy.typing.NDArray[numpy.int64], "
                       "keys: numpy.typing.NDArray[numpy.int64], out: numpy.typing.NDArray[numpy.uint8]) -> None"),
               "Copy rows of several tables into `out`, as `RowTable.gather` does; keys `bounds[k]` to `bounds[k + 1]` "
               "are those of table k.");
    module.def(
        "has_repeats",
        [](const Keys& keys) { return has_repeats(std::span<const std::int64_t>(keys.data(), keys.size())); },
        nb::arg("keys"), "Return whether a key occurs more than once.");
    module.def("map_file", &map_file, nb::arg("path"),
               "Return a file's bytes, mapped into memory, as a read-only uint8 array that keeps no descriptor.");
}

}  // namespace penstock::bindings
