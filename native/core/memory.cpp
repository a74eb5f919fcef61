#include "core/memory.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <stdexcept>
#include <utility>

namespace penstock {

namespace {

std::atomic<std::uint64_t> living_leases{0};

constexpr std::size_t huge_page = std::size_t{2} << 20;

void fault_in(std::byte* data, std::size_t size) {
#ifdef MADV_POPULATE_WRITE
    if (::madvise(data, size, MADV_POPULATE_WRITE) == 0) return;  // from Linux 5.14
#endif
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    for (std::size_t at = 0; at < size; at += page) {
        const_cast<volatile std::byte*>(data)[at] = std::byte{0};
    }
}

}  // namespace

Region::Region(std::size_t size, bool prefault) : size_(size) {
    const std::size_t mapped = std::max<std::size_t>(size, 1);
    void* const data = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<std::byte*>(data);
#ifdef MADV_HUGEPAGE
    // A wish: first touches cost a third where it is granted.
    if (mapped >= huge_page) ::madvise(data_, mapped, MADV_HUGEPAGE);
#endif
    if (prefault) fault_in(data_, mapped);
}

Region::~Region() { ::munmap(data_, std::max<std::size_t>(size_, 1)); }

ReturnedLeases::~ReturnedLeases() {
    for (Entry* entry = top_.load(); entry != nullptr;) delete std::exchange(entry, entry->next);
}

std::unique_ptr<ReturnedLeases::Entry> ReturnedLeases::open(std::uint64_t slot) {
    auto entry = std::make_unique<Entry>(Entry{slot, nullptr});
    leased_.fetch_add(1);
    return entry;
}

void ReturnedLeases::close(std::unique_ptr<Entry> owned) noexcept {
    returned_.fetch_add(1);                // first, so that no more are ever taken than counted
    Entry* const entry = owned.release();  // from here on the stack owns it, and another thread may delete it
    entry->next = top_.load();
    while (!top_.compare_exchange_weak(entry->next, entry)) {
    }
    if (const auto bell = bell_.lock()) bell->ring();
}

std::vector<std::uint64_t> ReturnedLeases::take() {
    std::vector<std::uint64_t> slots;
    for (Entry* entry = top_.exchange(nullptr); entry != nullptr;) {
        slots.push_back(entry->slot);
        delete std::exchange(entry, entry->next);
    }
    std::reverse(slots.begin(), slots.end());
    return slots;
}

Lease::Lease(std::shared_ptr<Region> region, std::size_t start, std::size_t size,
             std::shared_ptr<ReturnedLeases> returns, std::uint64_t slot)
    : region_(std::move(region)), start_(start), size_(size), returns_(std::move(returns)) {
    if (start > region_->size() || size > region_->size() - start) {
        throw std::out_of_range("a lease must lie inside its region");
    }
    entry_ = returns_->open(slot);
    living_leases.fetch_add(1);
}

Lease::~Lease() {
    living_leases.fetch_sub(1);
    returns_->close(std::move(entry_));
}

std::uint64_t Lease::living() { return living_leases.load(); }

}  // namespace penstock
