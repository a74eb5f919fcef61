#include "core/recycled.hpp"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <utility>

#ifdef __APPLE__
#include <malloc/malloc.h>
#else
#include <malloc.h>
#endif

namespace penstock {

namespace {

std::size_t usable_bytes(void* block) {
#ifdef __APPLE__
    return ::malloc_size(block);
#else
    return ::malloc_usable_size(block);
#endif
}

}  // namespace

RecycledBlocks::Class RecycledBlocks::class_of(std::size_t size) {
    const auto doubling = static_cast<std::size_t>(std::bit_width(size) - std::bit_width(smallest));
    const std::size_t base = smallest << doubling, step = base / steps;
    const std::size_t above = (size - base + step - 1) / step;
    return {doubling * steps + above, base + above * step};
}

std::size_t RecycledBlocks::rounded(std::size_t size) { return keeps(size) ? class_of(size).bytes : size; }

void* RecycledBlocks::take(std::size_t size) {
    if (!keeps(size)) return nullptr;
    const auto [number, bytes] = class_of(size);
    const std::lock_guard lock(mutex_);
    Block* const block = tops_[number];
    if (block == nullptr) return nullptr;
    tops_[number] = block->next;
    bytes_of_[number] -= bytes;
    bytes_ -= bytes;
    return block;
}

bool RecycledBlocks::keep(void* block, std::size_t size) {
    if (!keeps(size)) return false;
    const auto [number, bytes] = class_of(size);
    if (usable_bytes(block) < bytes) return false;
    const std::lock_guard lock(mutex_);
    if (bytes > most_bytes_) return false;
    while (bytes_ + bytes > most_bytes_) drop_one();
    auto* const kept = static_cast<Block*>(block);
    kept->next = std::exchange(tops_[number], kept);
    block_bytes_[number] = bytes;
    bytes_of_[number] += bytes;
    bytes_ += bytes;
    return true;
}

void RecycledBlocks::drop_one() {
    const auto most = std::max_element(bytes_of_.begin(), bytes_of_.end());
    const auto number = static_cast<std::size_t>(most - bytes_of_.begin());
    Block* const block = tops_[number];
    tops_[number] = block->next;
    bytes_of_[number] -= block_bytes_[number];
    bytes_ -= block_bytes_[number];
    std::free(block);
}

void RecycledBlocks::allow(std::ptrdiff_t more) {
    const std::lock_guard lock(mutex_);
    most_bytes_ =
        static_cast<std::size_t>(std::max<std::ptrdiff_t>(static_cast<std::ptrdiff_t>(most_bytes_) + more, 0));
    while (bytes_ > most_bytes_) drop_one();
}

std::size_t RecycledBlocks::bytes() const {
    const std::lock_guard lock(mutex_);
    return bytes_;
}

}  // namespace penstock
