// Memory, private or shared between processes, and its leases: a lease is returned when its last user drops it.
//
// Guarantees:
//   - A region is mapped as long as anything refers to it: the owner that created it, a lease, or an array over either.
//   - `take()` returns each dropped lease exactly once. A lease may be dropped on any thread, at any time up to the end
//     of the process; the drop takes no lock, allocates nothing and does not call the interpreter.
//   - `leased` and `returned` count exactly: returned leases are those that `take()` has returned or will return.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/bell.hpp"

namespace penstock {

// One piece of zeroed memory, aligned to a page. Never moved, shared by pointer.
//
// Shared memory has no name: a process maps it by a descriptor, and it is freed with the last process that maps it. It
// is sealed, so that no process can shrink memory that others have mapped.
class Region {
  public:
    // With `prefault`, every page is populated now, so that the first writes cause no page faults.
    Region(std::size_t size, bool prefault);
    ~Region();
    Region(const Region&) = delete;
    Region& operator=(const Region&) = delete;

    // Linux only; elsewhere it throws std::system_error. No page is populated before it is touched.
    static std::shared_ptr<Region> create_shared(std::size_t size);
    // Maps the memory of another process; copies the descriptor. std::invalid_argument if it isn't sealed memory.
    static std::shared_ptr<Region> open_shared(int descriptor);

    std::byte* data() const { return data_; }
    std::size_t size() const { return size_; }
    // The descriptor of shared memory, for other processes; -1 for private memory.
    int descriptor() const { return descriptor_; }

    // Maps the pages of a part, so that later accesses cause no page fault. For `reading` the pages must exist already;
    // none is created. It never fails, since it only affects speed.
    void populate(std::size_t start, std::size_t size, bool reading) const noexcept;
    // Returns the pages of a part of shared memory to the system, for all processes; they are zero again.
    void discard(std::size_t start, std::size_t size) const;

  private:
    Region(std::byte* data, std::size_t size, int descriptor) : data_(data), size_(size), descriptor_(descriptor) {}

    std::byte* data_ = nullptr;
    std::size_t size_;
    int descriptor_ = -1;
};

// The owner of leases: called when a lease begins, and when it ends, on the thread that drops it.
class LeaseOwner {
  public:
    // Allocated when a lease begins, so that its end allocates nothing.
    struct Entry {
        std::uint64_t slot;
        Entry* next;
    };

    virtual ~LeaseOwner() = default;
    // Throws if the slot can't be leased.
    virtual std::unique_ptr<Entry> open(std::uint64_t slot) = 0;
    virtual void close(std::unique_ptr<Entry> entry) noexcept = 0;
};

// The dropped leases: a stack that any thread pushes to and one thread empties as a whole, so that it needs no lock and
// has no ABA problem.
class ReturnedLeases : public LeaseOwner {
  public:
    explicit ReturnedLeases(std::weak_ptr<Bell> bell) : bell_(std::move(bell)) {}
    ~ReturnedLeases() override;
    ReturnedLeases(const ReturnedLeases&) = delete;
    ReturnedLeases& operator=(const ReturnedLeases&) = delete;

    std::unique_ptr<Entry> open(std::uint64_t slot) override;
    void close(std::unique_ptr<Entry> entry) noexcept override;
    // The slots whose leases were dropped since the last call, in the order of the drops.
    std::vector<std::uint64_t> take();

    std::uint64_t leased() const { return leased_.load(); }
    std::uint64_t returned() const { return returned_.load(); }

  private:
    std::atomic<Entry*> top_{nullptr};
    std::atomic<std::uint64_t> leased_{0}, returned_{0};
    std::weak_ptr<Bell> bell_;  // rung at each return, as long as it exists
};

// The right to use a part of a region until it is dropped.
class Lease {
  public:
    Lease(std::shared_ptr<Region> region, std::size_t start, std::size_t size, std::shared_ptr<LeaseOwner> owner,
          std::uint64_t slot);
    ~Lease();
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;

    std::byte* data() const { return region_->data() + start_; }
    std::size_t size() const { return size_; }
    std::uint64_t slot() const { return entry_->slot; }

    // The number of leases of all owners in this process now.
    static std::uint64_t living();

  private:
    std::shared_ptr<Region> region_;
    std::size_t start_, size_;
    std::shared_ptr<LeaseOwner> owner_;
    std::unique_ptr<LeaseOwner::Entry> entry_;
};

}  // namespace penstock
