#include "core/tar.hpp"

#include <algorithm>
#include <cstdint>

namespace penstock {
namespace {

constexpr std::size_t block = 512;
constexpr std::size_t size_begin = 124;
constexpr std::size_t size_digits = 11;
constexpr std::size_t kind_place = 156;
constexpr std::size_t prefix_begin = 345;  // of a name that is longer than 100 bytes
constexpr std::size_t max_digits = 9;      // of the length of an entry
constexpr std::size_t max_extension = 1 << 20;

std::uint64_t filled(std::uint64_t size) { return (size + block - 1) / block * block; }

// Returns the size of a header's content, or nothing if a character is no octal digit.
std::optional<std::uint64_t> size_in(std::string_view header) {
    std::uint64_t size = 0;
    for (const char digit : header.substr(size_begin, size_digits)) {
        if (digit < '0' || digit > '7') return std::nullopt;
        size = size * 8 + static_cast<std::uint64_t>(digit - '0');
    }
    if (header[size_begin + size_digits] != 0) return std::nullopt;
    return size;
}

// Returns whether the entries of an extended header are valid, and set neither name nor size of a file, nor make it a
// sparse file. An entry is `length key=value\n`, and the length counts all of it.
bool is_without_effect(std::string_view entries) {
    while (!entries.empty()) {
        std::size_t length = 0;
        std::size_t digits = 0;
        while (digits < entries.size() && digits < max_digits && entries[digits] >= '0' && entries[digits] <= '9') {
            length = length * 10 + static_cast<std::size_t>(entries[digits++] - '0');
        }
        if (digits == 0 || length > entries.size() || length < digits + 3 || entries[digits] != ' ') return false;
        const std::string_view entry = entries.substr(digits + 1, length - digits - 1);
        const std::string_view key = entry.substr(0, entry.find('='));
        if (key.size() + 2 > entry.size() || entry.back() != '\n') return false;
        if (key == "path" || key == "size" || key.starts_with("GNU.sparse.")) return false;
        entries.remove_prefix(length);
    }
    return true;
}

// Returns the header at `begin`, or an empty one if the span ends before.
std::string_view header_at(std::string_view span, std::size_t begin) {
    return begin <= span.size() && span.size() - begin >= block ? span.substr(begin, block) : std::string_view();
}

bool is_ascii(std::string_view text) {
    return std::all_of(text.begin(), text.end(), [](char letter) { return static_cast<unsigned char>(letter) < 0x80; });
}

}  // namespace

std::optional<TarFile> usual_tar_file(std::string_view span, std::size_t begin) {
    std::string_view header = header_at(span, begin);
    if (!header.empty() && header[kind_place] == 'x') {
        const std::optional<std::uint64_t> size = size_in(header);
        begin += block;
        if (!size || *size > max_extension || *size > span.size() - begin) return std::nullopt;
        if (!is_without_effect(span.substr(begin, *size))) return std::nullopt;
        begin += filled(*size);
        header = header_at(span, begin);
    }
    if (header.empty() || header[kind_place] != '0' || header[prefix_begin] != 0) return std::nullopt;
    const std::size_t name_end = header.substr(0, TarFile::max_name).find('\0');
    if (name_end == std::string_view::npos) return std::nullopt;
    const std::string_view name = header.substr(0, name_end);
    const std::size_t base = name.rfind('/') + 1;  // 0 without a slash
    const std::size_t dot = name.find('.', base);
    if (dot == std::string_view::npos || dot == base || name.starts_with("__") || !is_ascii(name)) return std::nullopt;
    const std::optional<std::uint64_t> size = size_in(header);
    const std::size_t data = begin + block;
    if (!size || filled(*size) > span.size() - data) return std::nullopt;
    TarFile file{};
    file.key = name.substr(0, dot);
    for (const char letter : name.substr(dot + 1)) {
        file.field[file.field_size++] =
            static_cast<char>(letter >= 'A' && letter <= 'Z' ? letter + ('a' - 'A') : letter);
    }
    file.content = span.substr(data, *size);
    file.next = data + filled(*size);
    return file;
}

}  // namespace penstock
