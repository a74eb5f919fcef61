// Memory, private or shared between processes, and its leases: a lease comes back when its last user drops it.
//
// Guarantees:
//   - A region is mapped as long as anything refers to it: the memory that made it, a lease, or an array over either.
//   - A dropped lease is in `released()` exactly once. Dropping may happen on any thread, at any time up to the end of
//   the
//     process; it takes no lock, allocates nothing and calls nothing of the interpreter's.
//   - `leased` and `returned` count exactly: returned leases are those that `released()` has given or will give.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/bell.hpp"

namespace penstock {

// One block of zeroed memory, aligned to a page. Movable never, shared by pointer.
//
// Shared memory has no name: a process has it by a descriptor, and it is gone when the last process is that maps it. It
// is sealed, so that nobody can cut off what others have mapped.
class Region {
  public:
    // With `prefault`, every page is there before the first write: the cost of faults is paid now, once.
    Region(std::size_t size, bool prefault);
    ~Region();
    Region(const Region&) = delete;
    Region& operator=(const Region&) = delete;

    // Linux only; elsewhere std::system_error says that it isn't supported. No page is there before it is touched.
    static std::shared_ptr<Region> create_shared(std::size_t size);
    // Maps what another process made; takes a copy of the descriptor. std::invalid_argument if it isn't sealed memory.
    static std::shared_ptr<Region> open_shared(int descriptor);

    std::byte* data() const { return data_; }
    std::size_t size() const { return size_; }
    // The descriptor of shared memory, to be handed to others; -1 for private memory.
    int descriptor() const { return descriptor_; }

    // Makes the pages of a part be there, so that later touches meet no fault. For `reading` they must hold something
    // already, and none is made. Never fails: it is a matter of speed alone.
    void populate(std::size_t start, std::size_t size, bool reading) const noexcept;
    // Gives the pages of a part of shared memory back to the system; they are zero again. For every process at once.
    void discard(std::size_t start, std::size_t size) const;

  private:
    Region(std::byte* data, std::size_t size, int descriptor) : data_(data), size_(size), descriptor_(descriptor) {}

    std::byte* data_ = nullptr;
    std::size_t size_;
    int descriptor_ = -1;
};

// Who lends memory: told when a lease begins, and when it ends by whichever thread drops it.
class Lender {
  public:
    // What a lease brings back at its end, so that the end allocates nothing.
    struct Entry {
        std::uint64_t slot;
        Entry* next;
    };

    virtual ~Lender() = default;
    // Throws if the slot can't be lent.
    virtual std::unique_ptr<Entry> open(std::uint64_t slot) = 0;
    virtual void close(std::unique_ptr<Entry> entry) noexcept = 0;
};

// Where dropped leases go: a stack that anyone pushes to and one thread empties at once, so it needs no lock and knows
// no ABA problem.
class ReturnedLeases : public Lender {
  public:
    explicit ReturnedLeases(std::weak_ptr<Bell> bell) : bell_(std::move(bell)) {}
    ~ReturnedLeases() override;
    ReturnedLeases(const ReturnedLeases&) = delete;
    ReturnedLeases& operator=(const ReturnedLeases&) = delete;

    std::unique_ptr<Entry> open(std::uint64_t slot) override;
    void close(std::unique_ptr<Entry> entry) noexcept override;
    // The slots whose leases came back since the last call, in the order in which they did.
    std::vector<std::uint64_t> take();

    std::uint64_t leased() const { return leased_.load(); }
    std::uint64_t returned() const { return returned_.load(); }

  private:
    std::atomic<Entry*> top_{nullptr};
    std::atomic<std::uint64_t> leased_{0}, returned_{0};
    std::weak_ptr<Bell> bell_;  // rung at each return while its owner still holds it
};

// The right to use a part of a region until it is dropped.
class Lease {
  public:
    Lease(std::shared_ptr<Region> region, std::size_t start, std::size_t size, std::shared_ptr<Lender> lender,
          std::uint64_t slot);
    ~Lease();
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;

    std::byte* data() const { return region_->data() + start_; }
    std::size_t size() const { return size_; }
    std::uint64_t slot() const { return entry_->slot; }

    // How many leases there are in this process now, whoever gave them.
    static std::uint64_t living();

  private:
    std::shared_ptr<Region> region_;
    std::size_t start_, size_;
    std::shared_ptr<Lender> lender_;
    std::unique_ptr<Lender::Entry> entry_;
};

}  // namespace penstock
