// Checksums of 32 bits, reflected: CRC-32 of the polynomial 0x04C11DB7 (zlib, gzip, PNG, Ethernet), and CRC-32C of
// 0x1EDC6F41 (TFRecord, iSCSI).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace penstock {

// Continues from `initial`, the checksum of the bytes before; that of no bytes is 0.
std::uint32_t crc32(std::span<const std::byte> bytes, std::uint32_t initial = 0) noexcept;
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t initial = 0) noexcept;

}  // namespace penstock
