// Texts and bytes in Arrow's layout, made into objects of Python by the numbers of their rows; and texts and bytes in
// one block of memory, on their way to another process, which makes the objects.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "bindings/interpreter_lock.hpp"

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

void fetch_content(const std::uint8_t* content, Span span) {
    const std::int64_t end = std::min(span.end, span.begin + kMaxFetched * kLine);
    for (std::int64_t place = span.begin; place < end; place += kLine) {
        __builtin_prefetch(content + place);
    }
}

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
        if (span.begin >= 0 && span.end <= piece.bytes) {
            fetch_content(piece.content, span);
        }
    }

    bool is_text() const { return is_text_; }

    // Returns the bytes of a row; without data if it is null.
    std::span<const char> at(std::int64_t row) const {
        if (row < 0 || row >= size_) {
            throw std::out_of_range("a row must be one of the strings");
        }
        const auto [piece, local] = locate(row);
        if (piece.is_null(local)) {
            return {};
        }
        const Span span = piece.span(local);
        if (span.begin < 0 || span.begin > span.end || span.end > piece.bytes) {
            throw std::out_of_range("an offset must be within the content");
        }
        const char* content = piece.bytes == 0 ? "" : reinterpret_cast<const char*>(piece.content);
        return {content + span.begin, static_cast<std::size_t>(span.end - span.begin)};
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

// Returns a text or bytes.
nb::object made(std::span<const char> content, bool is_text) {
    const auto size = static_cast<Py_ssize_t>(content.size());
    nb::object value = nb::steal(is_text ? PyUnicode_DecodeUTF8(content.data(), size, nullptr)
                                         : PyBytes_FromStringAndSize(content.data(), size));
    if (!value.is_valid()) {
        throw nb::python_error();
    }
    return value;
}

// Rows of several parts, each with its place among the rows of a read.
class ChosenStrings {
  public:
    ChosenStrings(const nb::list& parts, const Numbers& bounds, const Numbers& rows, const Numbers& places)
        : rows_(rows), places_(places) {
        if (rows.size() != places.size() || bounds.size() != parts.size() + 1) {
            throw std::invalid_argument("each row must have one place, and each part two bounds");
        }
        const std::size_t count = rows.size();
        strings_of_rows_.reserve(count);
        for (std::size_t part = 0; part < parts.size(); ++part) {
            const std::int64_t begin = bounds.data()[part];
            const std::int64_t end = bounds.data()[part + 1];
            if (begin != static_cast<std::int64_t>(strings_of_rows_.size()) || begin > end ||
                end > static_cast<std::int64_t>(count)) {
                throw std::out_of_range("bounds must ascend from 0 to the number of rows");
            }
            parts_.emplace_back(parts[part]);
            strings_of_rows_.resize(static_cast<std::size_t>(end), &nb::cast<const Strings&>(parts_.back(), false));
        }
        if (strings_of_rows_.size() != count) {
            throw std::out_of_range("bounds must ascend from 0 to the number of rows");
        }
    }

    std::size_t size() const { return strings_of_rows_.size(); }
    std::int64_t place(std::size_t index) const { return places_.data()[index]; }
    bool is_text(std::size_t index) const { return strings_of_rows_[index]->is_text(); }

    // Returns the bytes of a chosen row, and fetches those of later ones into the cache.
    std::span<const char> at(std::size_t index) const {
        if (index + 2 * kAhead < size()) {
            strings_of_rows_[index + 2 * kAhead]->fetch_offsets(rows_.data()[index + 2 * kAhead]);
        }
        if (index + kAhead < size()) {
            strings_of_rows_[index + kAhead]->fetch(rows_.data()[index + kAhead]);
        }
        return strings_of_rows_[index]->at(rows_.data()[index]);
    }

  private:
    Numbers rows_;
    Numbers places_;
    std::vector<nb::object> parts_;
    std::vector<const Strings*> strings_of_rows_;  // many parts have only a few rows each
};

std::int64_t take_strings(const nb::list& parts, const Numbers& bounds, const Numbers& rows, const Numbers& places,
                          const nb::list& out) {
    const ChosenStrings chosen(parts, bounds, rows, places);
    std::int64_t nulls = 0;
    for (std::size_t index = 0; index < chosen.size(); ++index) {
        const std::span<const char> content = chosen.at(index);
        const bool is_null = content.data() == nullptr;
        nb::object value = is_null ? nb::none() : made(content, chosen.is_text(index));
        nulls += is_null ? 1 : 0;
        if (PyList_SetItem(out.ptr(), chosen.place(index), value.release().ptr()) != 0) {
            throw nb::python_error();
        }
    }
    return nulls;
}

// The place of a text in the content. That of an object that is there twice has the number of the first one, as -1
// minus it, in place of `begin`.
struct Packed {
    std::int64_t begin;
    std::int64_t bytes;
};

// The first index of each object.
class Indices {
  public:
    explicit Indices(std::size_t objects) : slots_(std::bit_ceil(2 * objects + 1), {nullptr, 0}) {}  // half are free

    // Returns the index that an object was added with first, which is the given one if it is new.
    std::size_t add(const PyObject* object, std::size_t index) {
        std::size_t slot = std::hash<const PyObject*>()(object) / alignof(std::max_align_t);
        for (slot &= slots_.size() - 1; slots_[slot].first != nullptr; slot = (slot + 1) & (slots_.size() - 1)) {
            if (slots_[slot].first == object) {
                return slots_[slot].second;
            }
        }
        slots_[slot] = {object, index};
        return index;
    }

  private:
    std::vector<std::pair<const PyObject*, std::size_t>> slots_;
};

// Texts or bytes, one after the other in one block of memory, in the order in which they were added.
class PackedStrings {
  public:
    PackedStrings(std::size_t count, bool is_text) : is_text_(is_text), places_(count, Packed{0, 0}) {}

    std::size_t size() const { return places_.size(); }
    bool is_text() const { return is_text_; }

    std::int64_t take(const nb::list& parts, const Numbers& bounds, const Numbers& rows, const Numbers& places) {
        const ChosenStrings chosen(parts, bounds, rows, places);
        std::int64_t nulls = 0;
        const WithoutLock released;
        for (std::size_t index = 0; index < chosen.size(); ++index) {
            const std::span<const char> content = chosen.at(index);
            const std::int64_t place = chosen.place(index);
            if (place < 0 || place >= static_cast<std::int64_t>(size())) {
                throw std::out_of_range("a place must be one of the strings");
            }
            nulls += content.data() == nullptr ? 1 : 0;
            places_[static_cast<std::size_t>(place)] = add(content);
        }
        return nulls;
    }

    // Copies the items of a list; returns whether all of them are texts or bytes that can be copied.
    bool pack(const nb::list& values) {
        if (values.size() != size()) {
            throw std::invalid_argument("a list must have as many items as there are places");
        }
        const nb::object kept = nb::steal(PyList_AsTuple(values.ptr()));  // another thread may change the list
        std::vector<std::span<const char>> contents(size());
        Indices indices(size());
        std::size_t all = 0;
        for (std::size_t index = 0; index < size(); ++index) {
            PyObject* value = PyTuple_GetItem(kept.ptr(), static_cast<Py_ssize_t>(index));
            const std::size_t first = indices.add(value, index);
            if (first != index) {
                places_[index] = {-1 - static_cast<std::int64_t>(first), 0};
            } else if (!read(value, contents[index])) {
                return false;
            }
            all += contents[index].size();
        }
        const WithoutLock released;
        reserve(all);
        for (std::size_t index = 0; index < size(); ++index) {
            if (places_[index].begin >= 0) {
                places_[index] = add(contents[index]);
            }
        }
        return true;
    }

    std::span<const Packed> places() const { return places_; }
    std::span<const char> content() const { return {content_.get(), bytes_}; }

  private:
    bool read(PyObject* value, std::span<const char>& content) const {
        Py_ssize_t size = 0;
        const char* begin = nullptr;
        if (is_text_ && Py_IS_TYPE(value, &PyUnicode_Type)) {
            begin = PyUnicode_AsUTF8AndSize(value, &size);
            if (begin == nullptr) {
                PyErr_Clear();  // it has a surrogate, or there is too little memory
                return false;
            }
        } else if (!is_text_ && Py_IS_TYPE(value, &PyBytes_Type)) {
            begin = PyBytes_AsString(value);
            size = PyBytes_Size(value);
        } else {
            return false;
        }
        content = {begin, static_cast<std::size_t>(size)};
        return true;
    }

    Packed add(std::span<const char> content) {
        reserve(content.size());
        if (!content.empty()) {
            std::memcpy(content_.get() + bytes_, content.data(), content.size());
        }
        const Packed place{static_cast<std::int64_t>(bytes_), static_cast<std::int64_t>(content.size())};
        bytes_ += content.size();
        return place;
    }

    // Makes room for more bytes. A vector would write zeros there first.
    void reserve(std::size_t more) {
        if (bytes_ + more <= room_) {
            return;
        }
        const std::size_t room = std::max(bytes_ + more, 2 * room_);
        void* grown = std::realloc(content_.get(), room);
        if (grown == nullptr) {
            throw std::bad_alloc();
        }
        static_cast<void>(content_.release());
        content_.reset(static_cast<char*>(grown));
        room_ = room;
    }

    struct Free {
        void operator()(char* memory) const { std::free(memory); }
    };

    bool is_text_;
    std::vector<Packed> places_;
    std::unique_ptr<char, Free> content_;
    std::size_t bytes_ = 0;
    std::size_t room_ = 0;
};

nb::list unpacked_strings(const Bytes& places, const Bytes& content, bool is_text) {
    const std::size_t count = places.size() / sizeof(Packed);
    const auto bytes = static_cast<std::int64_t>(content.size());
    const auto place_at = [&](std::size_t index) {
        Packed place{};
        std::memcpy(&place, places.data() + index * sizeof(Packed), sizeof(Packed));  // at any address
        const bool is_within = place.begin < 0 ? -1 - place.begin < static_cast<std::int64_t>(index)
                                               : place.bytes >= 0 && place.begin <= bytes - place.bytes;
        if (!is_within) {
            throw std::out_of_range("a place must be within the content, or that of an item before it");
        }
        return place;
    };
    nb::list out = nb::steal<nb::list>(PyList_New(static_cast<Py_ssize_t>(count)));
    for (std::size_t index = 0; index < count; ++index) {
        if (index + kAhead < count) {
            const Packed ahead = place_at(index + kAhead);
            fetch_content(content.data(), {ahead.begin, ahead.begin + ahead.bytes});
        }
        const Packed place = place_at(index);
        nb::object value;
        if (place.begin < 0) {
            value = nb::borrow(PyList_GetItem(out.ptr(), -1 - place.begin));
        } else {
            const char* begin = bytes == 0 ? "" : reinterpret_cast<const char*>(content.data()) + place.begin;
            value = made({begin, static_cast<std::size_t>(place.bytes)}, is_text);
        }
        PyList_SetItem(out.ptr(), static_cast<Py_ssize_t>(index), value.release().ptr());
    }
    return out;
}

using ByteArray = nb::ndarray<nb::numpy, const std::uint8_t, nb::ndim<1>>;

// Returns an array over memory of an object, which it keeps.
template <typename T>
ByteArray bytes_of(std::span<const T> items, nb::handle owner) {
    return ByteArray(items.data(), {items.size_bytes()}, owner);
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
    nb::class_<PackedStrings>(module, "PackedStrings",
                              "Texts or bytes in one block of memory, on their way to another process.")
        .def(nb::init<std::size_t, bool>(), nb::arg("count"), nb::arg("is_text"),
             "Make places for so many empty texts, or bytes.")
        .def("__len__", &PackedStrings::size, "Return the number of places.")
        .def_prop_ro("is_text", &PackedStrings::is_text, "Whether they are texts, not bytes.")
        .def("take", &PackedStrings::take, nb::arg("parts"), nb::arg("bounds").noconvert(), nb::arg("rows").noconvert(),
             nb::arg("places").noconvert(),
             nb::sig("def take(self, parts: list[Strings], bounds: numpy.typing.NDArray[numpy.int64], "
                     "rows: numpy.typing.NDArray[numpy.int64], places: numpy.typing.NDArray[numpy.int64]) -> int"),
             "Copy rows to places, as `take_strings` does, without the interpreter's lock. A null becomes an empty "
             "one, and "
             "texts may not be UTF-8, which `unpacked_texts` finds.")
        .def("pack", &PackedStrings::pack, nb::arg("values"), nb::sig("def pack(self, values: list[object]) -> bool"),
             "Copy the items of a list, one to each place. Return False if one isn't exactly a str or bytes, or can't "
             "be UTF-8.")
        .def_prop_ro(
            "places", [](nb::handle self) { return bytes_of(nb::cast<PackedStrings&>(self).places(), self); },
            "The memory of the places, for `unpacked_texts` and `unpacked_bytes`; nothing may be added while it is "
            "used.")
        .def_prop_ro(
            "content", [](nb::handle self) { return bytes_of(nb::cast<PackedStrings&>(self).content(), self); },
            "The memory of the content, likewise.");
    module.def(
        "unpacked_texts",
        [](const Bytes& places, const Bytes& content) { return unpacked_strings(places, content, true); },
        nb::arg("places").noconvert(), nb::arg("content").noconvert(),
        nb::sig("def unpacked_texts(places: object, content: object) -> list[str]"),
        "Return the texts of a `PackedStrings`, from its memory. Raises IndexError for a place that is damaged, and "
        "UnicodeDecodeError for a text that isn't UTF-8.");
    module.def(
        "unpacked_bytes",
        [](const Bytes& places, const Bytes& content) { return unpacked_strings(places, content, false); },
        nb::arg("places").noconvert(), nb::arg("content").noconvert(),
        nb::sig("def unpacked_bytes(places: object, content: object) -> list[bytes]"),
        "Return the bytes of a `PackedStrings`, likewise.");
}

}  // namespace penstock::bindings
