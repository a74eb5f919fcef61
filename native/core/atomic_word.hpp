// One 64-bit word that threads and processes share.
//
// Every operation is sequentially consistent: the model in native/tests/test_ring_model.cpp explores the interleavings
// of whole operations, so its result holds for this word and not for weaker memory orders. A claim costs about ten
// operations, against microseconds of work in a block.
#pragma once

#include <atomic>
#include <cstdint>

namespace penstock {

class AtomicWord {
  public:
    std::uint64_t load() const { return value_.load(); }
    bool equals(std::uint64_t value) const { return load() == value; }
    void store(std::uint64_t value) { value_.store(value); }
    std::uint64_t exchange(std::uint64_t value) { return value_.exchange(value); }
    // Returns the value before the addition; `delta` may be negative.
    std::uint64_t add(std::int64_t delta) { return value_.fetch_add(static_cast<std::uint64_t>(delta)); }
    bool compare_exchange(std::uint64_t expected, std::uint64_t desired) {
        return value_.compare_exchange_strong(expected, desired);
    }

  private:
    std::atomic<std::uint64_t> value_{0};
};

// Words are in plain memory that several processes may map, so they can hold neither a lock nor a pointer.
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(sizeof(AtomicWord) == sizeof(std::uint64_t));

}  // namespace penstock
