// Blocks of malloc that are kept when they are freed, for the next request of about the same size.
//
// Problem: malloc returns large blocks to the system soon after they are freed, and a page that is mapped again costs a
// page fault, about as much as filling it four times. Several results of a user's function that are alive together, and
// dropped together, cost that for each page. Solution: a bounded number of bytes stays with the process. Every block is
// one of malloc, and may be given to `free` at any time, so nothing depends on the caller's accounts of sizes.
//
// Sizes are rounded up to classes, eight for each doubling. Any thread may call any function.
#pragma once

#include <array>
#include <cstddef>
#include <mutex>

namespace penstock {

class RecycledBlocks {
  public:
    static constexpr std::size_t smallest = std::size_t{1} << 14;  // malloc keeps smaller blocks itself
    static constexpr std::size_t largest = std::size_t{1} << 24;

    RecycledBlocks() = default;
    RecycledBlocks(const RecycledBlocks&) = delete;
    RecycledBlocks& operator=(const RecycledBlocks&) = delete;

    // Whether blocks of this size are kept.
    static bool keeps(std::size_t size) { return size >= smallest && size <= largest; }
    // The bytes to request from malloc for a block of this size, so that it can be kept for its class; the size itself
    // where such blocks aren't kept.
    static std::size_t rounded(std::size_t size);

    // A kept block of at least `size` bytes with any contents, or nullptr.
    void* take(std::size_t size);
    // Keeps a block of malloc that was requested with `rounded(size)` bytes; returns whether it did.
    bool keep(void* block, std::size_t size);
    // Changes the number of bytes that are kept at most, which is 0 at first, by `more`.
    void allow(std::ptrdiff_t more);
    // The kept bytes.
    std::size_t bytes() const;

  private:
    struct Block {
        Block* next;
    };

    // The number of a class, and the bytes of its blocks.
    struct Class {
        std::size_t number, bytes;
    };

    static constexpr std::size_t steps = 8;  // classes of a doubling
    static constexpr std::size_t doublings = 10;

    static Class class_of(std::size_t size);
    // Frees a block of the class that has the most bytes.
    void drop_one();

    mutable std::mutex mutex_;
    std::size_t most_bytes_ = 0;
    std::size_t bytes_ = 0;
    std::array<Block*, doublings * steps + 1> tops_{};
    std::array<std::size_t, doublings * steps + 1> bytes_of_{};
    std::array<std::size_t, doublings * steps + 1> block_bytes_{};
};

}  // namespace penstock
