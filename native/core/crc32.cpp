// Sixteen bytes at a time, with one table for each of them ("slicing", Kounavis and Berry, 2005). If the processor can
// multiply without carries, 64 bytes at a time are first folded into the next 64 ("Fast CRC Computation for Generic
// Polynomials Using PCLMULQDQ", Gopal and others, 2009). For CRC-32C, the processor may have an instruction.
#include "core/crc32.hpp"

#include <array>
#include <cstring>

#if defined(__x86_64__) && defined(__GNUC__)
#define PENSTOCK_HAS_CARRYLESS_BUILD 1
#include <immintrin.h>
#endif

namespace penstock {

namespace {

constexpr std::size_t slices = 16;
using Table = std::array<std::uint32_t, 256>;

using Tables = std::array<Table, slices>;

// tables[k][b]: the effect of byte b on the register if k bytes of zero follow it. The polynomial's bits are reflected.
constexpr Tables make_tables(std::uint32_t polynomial) {
    Tables tables{};
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
        std::uint32_t value = byte;
        for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? polynomial : 0U);
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

constexpr Tables tables = make_tables(0xEDB88320U);
constexpr Tables castagnoli_tables = make_tables(0x82F63B78U);

// The register after these bytes.
std::uint32_t pass(const Tables& by, const std::byte* next, std::size_t left, std::uint32_t value) noexcept {
    for (; left >= slices; left -= slices, next += slices) {
        std::uint32_t together = 0;
        for (std::size_t place = 0; place < slices; ++place) {
            auto byte = static_cast<std::uint32_t>(next[place]);
            if (place < 4) byte ^= (value >> (8 * place)) & 0xFF;
            together ^= by[slices - 1 - place][byte];
        }
        value = together;
    }
    for (; left > 0; --left, ++next) {
        value = (value >> 8) ^ by[0][(value ^ static_cast<std::uint32_t>(*next)) & 0xFF];
    }
    return value;
}

#ifdef PENSTOCK_HAS_CARRYLESS_BUILD

constexpr std::size_t folded_bytes = 64;

#define PENSTOCK_CARRYLESS __attribute__((target("pclmul,sse4.1")))

PENSTOCK_CARRYLESS inline __m128i load(const std::byte* from) noexcept {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}

// Moves the value of `bytes` on by the powers in `by`, and adds the bytes that are there.
PENSTOCK_CARRYLESS inline __m128i fold(__m128i bytes, __m128i by, __m128i there) noexcept {
    const __m128i low = _mm_clmulepi64_si128(bytes, by, 0x00);
    const __m128i high = _mm_clmulepi64_si128(bytes, by, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), there);
}

// The same as pass(); at least `folded_bytes` are left.
PENSTOCK_CARRYLESS std::uint32_t pass_folding(const std::byte* next, std::size_t left, std::uint32_t value) noexcept {
    // Powers of x modulo the polynomial, bits reflected: for 64 bytes, and for 16.
    const __m128i far = _mm_set_epi64x(0x1C6E41596, 0x154442BD4);
    const __m128i near = _mm_set_epi64x(0x0CCAA009E, 0x1751997D0);
    __m128i a = _mm_xor_si128(load(next), _mm_cvtsi32_si128(static_cast<int>(value)));
    __m128i b = load(next + 16), c = load(next + 32), d = load(next + 48);
    for (left -= folded_bytes, next += folded_bytes; left >= folded_bytes; left -= folded_bytes, next += folded_bytes) {
        a = fold(a, far, load(next));
        b = fold(b, far, load(next + 16));
        c = fold(c, far, load(next + 32));
        d = fold(d, far, load(next + 48));
    }
    std::array<std::byte, 16> rest;
    const __m128i all = fold(fold(fold(a, near, b), near, c), near, d);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(rest.data()), all);
    return pass(tables, next, left, pass(tables, rest.data(), rest.size(), 0));
}

bool can_fold() noexcept {
    static const bool can = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
    return can;
}

// The same as pass() with `castagnoli_tables`.
__attribute__((target("sse4.2"))) std::uint32_t pass_by_instruction(const std::byte* next, std::size_t left,
                                                                    std::uint32_t value) noexcept {
    std::uint64_t wide = value;
    for (; left >= sizeof wide; left -= sizeof wide, next += sizeof wide) {
        std::uint64_t word = 0;
        std::memcpy(&word, next, sizeof word);
        wide = _mm_crc32_u64(wide, word);
    }
    value = static_cast<std::uint32_t>(wide);
    for (; left > 0; --left, ++next) value = _mm_crc32_u8(value, static_cast<std::uint8_t>(*next));
    return value;
}

bool has_instruction() noexcept {
    static const bool has = __builtin_cpu_supports("sse4.2");
    return has;
}

#endif

}  // namespace

std::uint32_t crc32(std::span<const std::byte> bytes, std::uint32_t initial) noexcept {
#ifdef PENSTOCK_HAS_CARRYLESS_BUILD
    if (bytes.size() >= folded_bytes && can_fold()) return ~pass_folding(bytes.data(), bytes.size(), ~initial);
#endif
    return ~pass(tables, bytes.data(), bytes.size(), ~initial);
}

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t initial) noexcept {
#ifdef PENSTOCK_HAS_CARRYLESS_BUILD
    if (has_instruction()) return ~pass_by_instruction(bytes.data(), bytes.size(), ~initial);
#endif
    return ~pass(castagnoli_tables, bytes.data(), bytes.size(), ~initial);
}

}  // namespace penstock
