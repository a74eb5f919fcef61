// Texts and bytes in Arrow's layout, made into objects of Python by the numbers of their rows.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

namespace nb = nanobind;

namespace penstock::bindings {
namespace {

using Bytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Numbers = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Offsets32 = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Rows that are fetched into the cache ahead of their turn: a row of another page takes as long as making a text.
constexpr std::size_t kAhead = 4;
constexpr std::int64_t kLine = 64;       // bytes
constexpr std::int64_t kMaxFetched = 8;  // lines of a row; from there on the processor fetches by itself

struct Span {
    std::int64_t begin;
    std::int64_t end;
};

// The rows of one array. The owners of the memory are kept by `Strings`.
struct StringPiece {
    const std::byte* offsets;
    bool is_wide;  // whether offsets have 64 bits, not 32
    const std::uint8_t* content;
    std::int64_t bytes;
    const std::uint8_t* validity;  // a bit for each row, from `first_bit` on; null if no row is null
    std::int64_t first_bit;

    bool is_null(std::int64_t row) const {
        const std::int64_t bit = first_bit + row;
        return validity != nullptr && (validity[bit >> 3] >> (bit & 7) & 1) == 0;
    }

    Span span(std::int64_t row) const { return is_wide ? span_of<std::int64_t>(row) : span_of<std::int32_t>(row); }

    // A file may have the offsets at any address.
    template <typename Offset>
    Span span_of(std::int64_t row) const {
        Offset pair[2];
        std::memcpy(pair, offsets + row * static_cast<std::int64_t>(sizeof(Offset)), sizeof(pair));
        return {pair[0], pair[1]};
    }
};

class Strings {
  public:
    Strings(const nb::list& pieces, bool is_text) : is_text_(is_text) {
        for (nb::handle given : pieces) {
            const auto piece = nb::cast<nb::tuple>(given, false);
            if (piece.size() != 4) {
                throw std::invalid_argument("a piece must be its offsets, content, validity and first bit");
            }
            add(piece);
        }
    }

    std::int64_t size() const { return size_; }

    // Fetches the offsets of a row into the cache.
    void fetch_offsets(std::int64_t row) const {
        if (row < 0 || row >= size_) {
            return;
        }
        const auto [piece, local] = locate(row);
        __builtin_prefetch(piece.offsets + local * (piece.is_wide ? 8 : 4));
    }

    // Fetches the content of a row into the cache.
    void fetch(std::int64_t row) const {
        if (row < 0 || row >= size_) {
            return;
        }
        const auto [piece, local] = locate(row);
        const Span span = piece.span(local);
        if (span.begin < 0 || span.end > piece.bytes) {
            return;
        }
        const std::int64_t end = std::min(span.end, span.begin + kMaxFetched * kLine);
        for (std::int64_t place = span.begin; place < end; place += kLine) {
            __builtin_prefetch(piece.content + place);
        }
    }

    // Returns the value of a row; None if it is null.
    nb::object at(std::int64_t row) const {
        if (row < 0 || row >= size_) {
            throw std::out_of_range("a row must be one of the strings");
        }
        const auto [piece, local] = locate(row);
        if (piece.is_null(local)) {
            return nb::none();
        }
        const Span span = piece.span(local);
        if (span.begin < 0 || span.begin > span.end || span.end > piece.bytes) {
            throw std::out_of_range("an offset must be within the content");
        }
        const auto* begin = reinterpret_cast<const char*>(piece.content) + span.begin;
        const nb::object value = nb::steal(is_text_ ? PyUnicode_DecodeUTF8(begin, span.end - span.begin, nullptr)
                                                    : PyBytes_FromStringAndSize(begin, span.end - span.begin));
        if (!value.is_valid()) {
            throw nb::python_error();
        }
        return value;
    }

  private:
    void add(const nb::tuple& given) {
        StringPiece piece{};
        std::int64_t offsets = 0;
        if (Offsets32 narrow; nb::try_cast(given[0], narrow, false)) {
            piece.offsets = reinterpret_cast<const std::byte*>(narrow.data());
            offsets = static_cast<std::int64_t>(narrow.size());
        } else {
            const auto wide = nb::cast<Numbers>(given[0], false);
            piece.offsets = reinterpret_cast<const std::byte*>(wide.data());
            piece.is_wide = true;
            offsets = static_cast<std::int64_t>(wide.size());
        }
        const auto content = nb::cast<Bytes>(given[1], false);
        piece.content = content.data();
        piece.bytes = static_cast<std::int64_t>(content.size());
        piece.first_bit = nb::cast<std::int64_t>(given[3]);
        const std::int64_t rows = std::max<std::int64_t>(offsets - 1, 0);
        if (!given[2].is_none()) {
            const auto validity = nb::cast<Bytes>(given[2], false);
            piece.validity = validity.data();
            if (piece.first_bit < 0 || piece.first_bit + rows > 8 * static_cast<std::int64_t>(validity.size())) {
                throw std::invalid_argument("the validity must have a bit for each row");
            }
        }
        if (rows == 0) {
            return;
        }
        owners_.push_back(nb::borrow(given));
        pieces_.push_back(piece);
        first_rows_.push_back(size_);
        size_ += rows;
    }

    // The piece of a row in [0, size), and the row's number in it.
    std::pair<const StringPiece&, std::int64_t> locate(std::int64_t row) const {
        if (pieces_.size() == 1) {
            return {pieces_.front(), row};
        }
        const auto after = std::upper_bound(first_rows_.begin(), first_rows_.end(), row);
        const auto number = static_cast<std::size_t>(after - first_rows_.begin()) - 1;
        return {pieces_[number], row - first_rows_[number]};
    }

    bool is_text_;
    std::int64_t size_ = 0;
    std::vector<nb::object> owners_;
    std::vector<StringPiece> pieces_;       // those that have rows
    std::vector<std::int64_t> first_rows_;  // of each of them; ascending from 0
};

std::int64_t take_strings(const nb::list& parts, const Numbers& bounds, const Numbers& rows, const Numbers& places,
                          const nb::list& out) {
    if (rows.size() != places.size() || bounds.size() != parts.size() + 1) {
        throw std::invalid_argument("each row must have one place, and each part two bounds");
    }
    const std::size_t count = rows.size();
    std::vector<const Strings*> strings_of_rows;  // many parts have only a few rows each
    strings_of_rows.reserve(count);
    for (std::size_t part = 0; part < parts.size(); ++part) {
        const std::int64_t begin = bounds.data()[part];
        const std::int64_t end = bounds.data()[part + 1];
        if (begin != static_cast<std::int64_t>(strings_of_rows.size()) || begin > end ||
            end > static_cast<std::int64_t>(count)) {
            throw std::out_of_range("bounds must ascend from 0 to the number of rows");
        }
        const nb::object object = parts[part];
        strings_of_rows.resize(static_cast<std::size_t>(end), &nb::cast<const Strings&>(object, false));
    }
    if (strings_of_rows.size() != count) {
        throw std::out_of_range("bounds must ascend from 0 to the number of rows");
    }
    std::int64_t nulls = 0;
    for (std::size_t index = 0; index < count; ++index) {
        if (index + 2 * kAhead < count) {
            strings_of_rows[index + 2 * kAhead]->fetch_offsets(rows.data()[index + 2 * kAhead]);
        }
        if (index + kAhead < count) {
            strings_of_rows[index + kAhead]->fetch(rows.data()[index + kAhead]);
        }
        nb::object value = strings_of_rows[index]->at(rows.data()[index]);
        nulls += value.is_none() ? 1 : 0;
        if (PyList_SetItem(out.ptr(), places.data()[index], value.release().ptr()) != 0) {
            throw nb::python_error();
        }
    }
    return nulls;
}

}  // namespace

void bind_strings(nb::module_& module) {
    nb::class_<Strings>(module, "Strings", "Texts or bytes in Arrow's layout, in one or more pieces, read by row.")
        .def(nb::init<const nb::list&, bool>(), nb::arg("pieces"), nb::arg("is_text"),
             nb::sig("def __init__(self, pieces: list[tuple[object, ...]], is_text: bool) -> None"),
             "Number the rows of pieces, one piece after another, and keep the arrays. A piece is a tuple of the "
             "offsets "
             "of the rows and the end of the last one, int32 or int64; the content, uint8; the validity, uint8 with a "
             "bit for each row, or None; and the number of the first row's bit.")
        .def("__len__", &Strings::size, "Return the number of rows.");
    module.def(
        "take_strings", &take_strings, nb::arg("parts"), nb::arg("bounds").noconvert(), nb::arg("rows").noconvert(),
        nb::arg("places").noconvert(), nb::arg("out"),
        nb::sig("def take_strings(parts: list[Strings], bounds: numpy.typing.NDArray[numpy.int64], "
                "rows: numpy.typing.NDArray[numpy.int64], places: numpy.typing.NDArray[numpy.int64], "
                "out: list[object]) -> int"),
        "Set item `places[i]` of a list to the value of row `rows[i]`, for each i, and return how many are None. "
        "Rows `bounds[k]` to `bounds[k + 1]` are those of part k. Raises IndexError for a row or place that "
        "doesn't exist and for an offset outside of the content, and UnicodeDecodeError for a text that isn't "
        "UTF-8; items before it have been set.");
}

}  // namespace penstock::bindings
