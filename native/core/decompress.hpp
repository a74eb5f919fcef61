// Decompression of input that is in memory as a whole: zlib and gzip streams, raw deflate, and zstd frames.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string_view>

#include "include/penstock/bytes.hpp"

namespace penstock {

enum class Codec { zlib, gzip, deflate, zstd };

// Throws std::invalid_argument if no codec has that name.
Codec codec_named(std::string_view name);

// Throws LibraryMissing if the codec's library is missing.
void require(Codec codec);

// The input is not valid for its codec, or its output has not the requested size. what() states the rule, the position
// in the input, and a remedy.
class DataError : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

// Fills `out` exactly; after a failure its contents are undefined. Several gzip members (with zeros after the last, as
// on tapes) and several zstd frames are joined; no bytes may follow a zlib or deflate stream. Throws DataError,
// LibraryMissing, std::bad_alloc.
void decompress_into(Codec codec, std::span<const std::byte> source, std::span<std::byte> out);

// The same, into new memory of at most `max_size` bytes, for any input.
Bytes decompress(Codec codec, std::span<const std::byte> source, std::uint64_t max_size);

}  // namespace penstock
