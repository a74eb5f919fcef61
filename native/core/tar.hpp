// The members of a tar file, whose headers have the usual form.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string_view>

namespace penstock {

// A file in a tar file, of a record in WebDataset's naming. The key is the name up to the first dot after the last
// slash, and the field is the rest, in lower case.
struct TarFile {
    static constexpr std::size_t max_name = 100;

    std::string_view key;
    std::array<char, max_name> field;
    std::size_t field_size;
    std::string_view content;
    std::size_t next;  // the start of the next member

    std::string_view field_name() const { return {field.data(), field_size}; }
};

// Returns the file whose headers begin at `begin`. Returns nothing unless they have the usual form, and all of the
// file, with its fill, is in `span`. In the usual form, there is at most one extended header of pax, as for times in
// fractions of a second, which sets neither name nor size; the name is short and in ASCII, with key and field, and the
// size has eleven octal digits. A name that begins with two underscores may belong to no record, so it isn't of the
// usual form.
std::optional<TarFile> usual_tar_file(std::string_view span, std::size_t begin);

}  // namespace penstock
