// Binds the parsing of records of the usual form. The wrappers, penstock.sources._tar and penstock.sources._mds, parse
// all other records, and raise the errors of damaged ones.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "core/sample_columns.hpp"
#include "core/tar.hpp"

namespace nb = nanobind;

namespace penstock::bindings {
namespace {

nb::object checked(PyObject* created) {
    if (created == nullptr) throw nb::python_error();
    return nb::steal(created);
}

nb::object text_of(std::string_view text) {
    return checked(PyUnicode_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size())));
}

nb::object bytes_of(std::string_view content) {
    return checked(PyBytes_FromStringAndSize(content.data(), static_cast<Py_ssize_t>(content.size())));
}

std::optional<nb::dict> tar_record(const nb::bytes& content) {
    const std::string_view span(content.c_str(), content.size());
    nb::dict record;
    std::string_view key;
    for (std::size_t begin = 0; begin < span.size();) {
        const std::optional<TarFile> file = usual_tar_file(span, begin);
        if (!file) return std::nullopt;
        if (begin == 0) {
            key = file->key;
            record["__key__"] = text_of(key);
        }
        const nb::object field = text_of(file->field_name());
        if (file->key != key || record.contains(field)) return std::nullopt;
        record[field] = bytes_of(file->content);
        begin = file->next;
    }
    if (key.empty()) return std::nullopt;
    return record;
}

enum class ColumnKind { bytes, text, integer, scalar };

ColumnKind kind_named(const std::string& name) {
    if (name == "bytes") return ColumnKind::bytes;
    if (name == "text") return ColumnKind::text;
    if (name == "integer") return ColumnKind::integer;
    if (name == "scalar") return ColumnKind::scalar;
    throw std::invalid_argument("a column's kind must be bytes, text, integer or scalar; got " + name);
}

using Item = nb::ndarray<nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Samples of MosaicML Streaming, as records.
class SampleRecords {
  public:
    // Of a column: its name, size, kind, and, if it is a scalar, an array of one item of its dtype.
    using Column = std::tuple<nb::str, std::uint64_t, std::string, nb::object>;

    explicit SampleRecords(const std::vector<Column>& columns) : columns_(sizes_of(columns)) {
        for (const auto& [name, size, kind, array] : columns) {
            Value value{name, kind_named(kind), array, nullptr};
            if (value.kind == ColumnKind::integer && size != sizeof(std::int64_t)) {
                throw std::invalid_argument("an integer must have 8 bytes");
            }
            if (value.kind == ColumnKind::scalar) {
                const Item item = nb::cast<Item>(array, false);
                if (item.size() != 1 || item.nbytes() != size) {
                    throw std::invalid_argument("a scalar's array must have one item of the column's size");
                }
                value.item = item.data();
            }
            values_.push_back(std::move(value));
        }
    }

    std::optional<nb::dict> record(const nb::bytes& content) const {
        const std::string_view sample(content.c_str(), content.size());
        if (!columns_.fit(sample)) return std::nullopt;
        nb::dict record;
        const bool is_whole = columns_.each(sample, [&](std::size_t column, std::string_view bytes) {
            const Value& value = values_[column];
            const nb::object made = value_of(value, bytes);
            if (!made.is_valid()) return false;
            record[value.name] = made;
            return true;
        });
        if (!is_whole) return std::nullopt;
        return record;
    }

  private:
    struct Value {
        nb::str name;
        ColumnKind kind;
        nb::object array;
        void* item;
    };

    static std::vector<std::uint64_t> sizes_of(const std::vector<Column>& columns) {
        std::vector<std::uint64_t> sizes;
        for (const Column& column : columns) sizes.push_back(std::get<1>(column));
        return sizes;
    }

    // Returns no object if the bytes aren't a text.
    static nb::object value_of(const Value& value, std::string_view bytes) {
        switch (value.kind) {
            case ColumnKind::bytes:
                return bytes_of(bytes);
            case ColumnKind::text: {
                const nb::object text =
                    nb::steal(PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), nullptr));
                if (!text.is_valid()) {
                    if (PyErr_ExceptionMatches(PyExc_UnicodeDecodeError) == 0) throw nb::python_error();
                    PyErr_Clear();
                }
                return text;
            }
            case ColumnKind::integer: {
                std::int64_t number;
                std::memcpy(&number, bytes.data(), sizeof(number));
                return checked(PyLong_FromLongLong(number));
            }
            case ColumnKind::scalar:
                // NumPy makes the scalar of an item in a fifth of the time of its constructor. No other thread has the
                // GIL before that is done.
                std::memcpy(value.item, bytes.data(), bytes.size());
                return checked(PySequence_GetItem(value.array.ptr(), 0));
        }
        throw std::logic_error("a kind of column has no case");
    }

    SampleColumns columns_;
    std::vector<Value> values_;
};

}  // namespace

void bind_records(nb::module_& module) {
    module.def("tar_record", &tar_record, nb::arg("content"),
               "Return the record whose members are all of `content`: `__key__`, and the content of each field; None\n"
               "if a header hasn't the usual form, or the members aren't those of one record.");
    nb::class_<SampleRecords>(module, "SampleRecords", "The samples of shards of MosaicML Streaming.")
        .def(nb::init<const std::vector<SampleRecords::Column>&>(), nb::arg("columns"),
             "Args:\n"
             "    columns: for each its name, its size in bytes, which is 0 if it varies, its kind (bytes, text,\n"
             "        integer or scalar), and, for a scalar, an array of one item that has its dtype.")
        .def("record", &SampleRecords::record, nb::arg("content"),
             "Return the columns of a sample; None if it doesn't have these columns.");
}

}  // namespace penstock::bindings
