// Sixteen bytes at a time, by one table for each of them ("slicing", Kounavis and Berry, 2005).
#include "core/crc32.hpp"

#include <array>

namespace penstock {

namespace {

constexpr std::size_t slices = 16;
using Table = std::array<std::uint32_t, 256>;

// tables[k][b]: what byte b does to the checksum if k bytes of zero follow it.
constexpr std::array<Table, slices> make_tables() {
    std::array<Table, slices> tables{};
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
        std::uint32_t value = byte;
        for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? 0xEDB88320U : 0U);
        tables[0][byte] = value;
    }
    for (std::size_t slice = 1; slice < slices; ++slice) {
        for (std::size_t byte = 0; byte < 256; ++byte) {
            const std::uint32_t before = tables[slice - 1][byte];
            tables[slice][byte] = (before >> 8) ^ tables[0][before & 0xFF];
        }
    }
    return tables;
}

constexpr std::array<Table, slices> tables = make_tables();

}  // namespace

std::uint32_t crc32(std::span<const std::byte> bytes, std::uint32_t initial) noexcept {
    std::uint32_t value = ~initial;
    const std::byte* next = bytes.data();
    std::size_t left = bytes.size();
    for (; left >= slices; left -= slices, next += slices) {
        std::uint32_t together = 0;
        for (std::size_t place = 0; place < slices; ++place) {
            auto byte = static_cast<std::uint32_t>(next[place]);
            if (place < 4) byte ^= (value >> (8 * place)) & 0xFF;
            together ^= tables[slices - 1 - place][byte];
        }
        value = together;
    }
    for (; left > 0; --left, ++next)
        value = (value >> 8) ^ tables[0][(value ^ static_cast<std::uint32_t>(*next)) & 0xFF];
    return ~value;
}

}  // namespace penstock
