// Decompresses what lies in memory as a whole: zlib and gzip streams, raw deflate, and zstd frames.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string_view>

#include "include/penstock/bytes.hpp"

namespace penstock {

enum class Codec { zlib, gzip, deflate, zstd };

// Throws std::invalid_argument where there is none of that name.
Codec codec_named(std::string_view name);

// Throws LibraryMissing where the codec's library is.
void require(Codec codec);

// The input isn't what its codec demands, or its output not what the caller does. what() says which, where in the
// input, and what to do.
class DataError : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

// Fills `out` exactly; after a failure it holds nothing definite. Several gzip members (with zeros behind the last, as
// tapes have them) and several zstd frames are one; nothing may follow a zlib or deflate stream. Throws DataError,
// LibraryMissing, std::bad_alloc.
void decompress_into(Codec codec, std::span<const std::byte> source, std::span<std::byte> out);

// The same, into memory of its own: of no more than `max_size` bytes, whatever the input says.
Bytes decompress(Codec codec, std::span<const std::byte> source, std::uint64_t max_size);

}  // namespace penstock
