#include "core/memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <stdexcept>
#include <system_error>
#include <utility>

namespace penstock {

namespace {

std::atomic<std::uint64_t> living_leases{0};

constexpr std::size_t huge_page = std::size_t{2} << 20;

[[noreturn]] void fail(int error, const char* what) { throw std::system_error(error, std::generic_category(), what); }

// Owns a descriptor until it is released.
class Descriptor {
  public:
    explicit Descriptor(int number) : number_(number) {}
    ~Descriptor() {
        if (number_ >= 0) ::close(number_);
    }
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;

    int get() const { return number_; }
    int release() { return std::exchange(number_, -1); }

  private:
    int number_;
};

std::byte* map_shared(int descriptor, std::size_t size) {
    void* const data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (data == MAP_FAILED) throw std::bad_alloc();
    return static_cast<std::byte*>(data);
}

std::size_t page_bytes() { return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)); }

void fault_in(std::byte* data, std::size_t size) {
#ifdef MADV_POPULATE_WRITE
    if (::madvise(data, size, MADV_POPULATE_WRITE) == 0) return;  // from Linux 5.14
#endif
    for (std::size_t at = 0; at < size; at += page_bytes()) {
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
    // A hint: with huge pages, first touches cost a third.
    if (mapped >= huge_page) ::madvise(data_, mapped, MADV_HUGEPAGE);
#endif
    if (prefault) fault_in(data_, mapped);
}

Region::~Region() {
    ::munmap(data_, std::max<std::size_t>(size_, 1));
    if (descriptor_ >= 0) ::close(descriptor_);
}

std::shared_ptr<Region> Region::create_shared(std::size_t size) {
#ifdef __linux__
    Descriptor memory(::memfd_create("penstock", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (memory.get() < 0) fail(errno, "cannot make shared memory");
    const std::size_t mapped = std::max<std::size_t>(size, 1);
    if (::ftruncate(memory.get(), static_cast<off_t>(mapped)) != 0) fail(errno, "cannot size shared memory");
    if (::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        fail(errno, "cannot seal shared memory");
    }
    std::byte* const data = map_shared(memory.get(), mapped);
    return std::shared_ptr<Region>(new Region(data, size, memory.release()));
#else
    (void)size;
    fail(ENOTSUP, "shared memory without a name requires Linux");
#endif
}

std::shared_ptr<Region> Region::open_shared(int descriptor) {
#ifdef __linux__
    Descriptor memory(::fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
    if (memory.get() < 0) fail(errno, "cannot open shared memory");
    const int seals = ::fcntl(memory.get(), F_GET_SEALS);
    constexpr int fixed = F_SEAL_SHRINK | F_SEAL_GROW;
    struct stat status{};
    if (seals < 0 || (seals & fixed) != fixed || (seals & F_SEAL_WRITE) != 0 || ::fstat(memory.get(), &status) != 0 ||
        status.st_size <= 0) {
        throw std::invalid_argument("shared memory must be sealed against shrinking and growing, and writable");
    }
    const auto size = static_cast<std::size_t>(status.st_size);
    std::byte* const data = map_shared(memory.get(), size);
    return std::shared_ptr<Region>(new Region(data, size, memory.release()));
#else
    (void)descriptor;
    fail(ENOTSUP, "shared memory without a name requires Linux");
#endif
}

void Region::populate(std::size_t start, std::size_t size, bool reading) const noexcept {
#if defined(MADV_POPULATE_READ) && defined(MADV_POPULATE_WRITE)
    if (start >= size_ || size == 0) return;
    const std::size_t page = page_bytes();
    const std::size_t begin = start / page * page;
    const std::size_t end = (std::min(size_ - start, size) + start + page - 1) / page * page;
    ::madvise(data_ + begin, end - begin, reading ? MADV_POPULATE_READ : MADV_POPULATE_WRITE);
#else
    (void)start, (void)size, (void)reading;
#endif
}

void Region::discard(std::size_t start, std::size_t size) const {
#ifdef __linux__
    if (descriptor_ < 0) throw std::logic_error("only shared memory can be discarded");
    // Only whole pages inside the part: its first and last page may hold bytes outside of it.
    const std::size_t page = page_bytes();
    const std::size_t begin = (start + page - 1) / page * page;
    const std::size_t end = start + size >= size_ ? (size_ + page - 1) / page * page : (start + size) / page * page;
    if (start > size_ || size > size_ - start) throw std::out_of_range("a part must be inside its region");
    if (end > begin && ::fallocate(descriptor_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(begin),
                                   static_cast<off_t>(end - begin)) != 0) {
        fail(errno, "cannot give shared memory back");
    }
#else
    (void)start, (void)size;
    fail(ENOTSUP, "shared memory without a name requires Linux");
#endif
}

ReturnedLeases::~ReturnedLeases() {
    for (Entry* entry = top_.load(); entry != nullptr;) delete std::exchange(entry, entry->next);
}

std::unique_ptr<LeaseOwner::Entry> ReturnedLeases::open(std::uint64_t slot) {
    auto entry = std::make_unique<Entry>(Entry{slot, nullptr});
    leased_.fetch_add(1);
    return entry;
}

void ReturnedLeases::close(std::unique_ptr<Entry> owned) noexcept {
    returned_.fetch_add(1);                // first, so that `take` never returns more than are counted
    Entry* const entry = owned.release();  // once pushed, the stack owns it, and another thread may delete it
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

Lease::Lease(std::shared_ptr<Region> region, std::size_t start, std::size_t size, std::shared_ptr<LeaseOwner> owner,
             std::uint64_t slot)
    : region_(std::move(region)), start_(start), size_(size), owner_(std::move(owner)) {
    if (start > region_->size() || size > region_->size() - start) {
        throw std::out_of_range("a lease must be inside its region");
    }
    entry_ = owner_->open(slot);
    living_leases.fetch_add(1);
}

Lease::~Lease() {
    living_leases.fetch_sub(1);
    owner_->close(std::move(entry_));
}

std::uint64_t Lease::living() { return living_leases.load(); }

}  // namespace penstock
