// The checksum of zlib, gzip, PNG and Ethernet: CRC-32, reflected, of the polynomial 0x04C11DB7.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace penstock {

// Continues from `initial`, the checksum of the bytes before; that of no bytes is 0.
std::uint32_t crc32(std::span<const std::byte> bytes, std::uint32_t initial = 0) noexcept;

}  // namespace penstock
