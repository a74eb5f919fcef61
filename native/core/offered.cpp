#include "core/offered.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <system_error>

namespace penstock {

namespace {

// Replaces the pages that a block is in by private ones with the same contents.
void make_private(void* block, std::size_t size) {
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    const std::size_t before = reinterpret_cast<std::uintptr_t>(block) % page;
    std::byte* const pages = static_cast<std::byte*>(block) - before;
    const std::size_t bytes = (before + size + page - 1) / page * page;
    const std::vector<std::byte> contents(pages, pages + bytes);
    if (::mmap(pages, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
        throw std::system_error(errno, std::generic_category(), "can't keep an array of a function");
    std::memcpy(pages, contents.data(), bytes);
}

}  // namespace

void OfferedBlock::offer(void* block, std::size_t size) {
    offered_ = {block, size};
    is_taken_ = false;
    process_ = ::getpid();
}

void* OfferedBlock::take(std::size_t size) {
    if (offered_.start == nullptr || is_taken_ || size != offered_.size || ::getpid() != process_) return nullptr;
    is_taken_ = true;
    return offered_.start;
}

bool OfferedBlock::give_back(void* block) {
    if (block == offered_.start && is_taken_) {
        is_taken_ = false;
        return true;
    }
    const auto found = std::find_if(kept_.begin(), kept_.end(), [&](const Block& kept) { return kept.start == block; });
    if (found == kept_.end()) return false;
    kept_.erase(found);
    return true;
}

std::size_t OfferedBlock::size_of(const void* block) const {
    if (block == offered_.start && is_taken_) return offered_.size;
    const auto found = std::find_if(kept_.begin(), kept_.end(), [&](const Block& kept) { return kept.start == block; });
    return found == kept_.end() ? 0 : found->size;
}

bool OfferedBlock::end() {
    const Block block = offered_;
    offered_ = {nullptr, 0};
    if (!is_taken_) return false;
    is_taken_ = false;
    kept_.push_back(block);
    make_private(block.start, block.size);
    return true;
}

}  // namespace penstock
