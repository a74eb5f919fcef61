// The slot ring over the words of a region, private or shared, with the sleep and wake of its users.
//
// Guarantees, beside the protocol's:
//   - Every process that has the two descriptors of a shared ring uses the same ring, at any address of the mapping.
//   - `attach` accepts only memory in which a ring of this version was created.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "core/atomic_word.hpp"
#include "core/bell.hpp"
#include "core/memory.hpp"
#include "core/ring_protocol.hpp"
#include "core/sleeper.hpp"

namespace penstock {

class Ring : public RingProtocol<Ring, AtomicWord> {
  public:
    // A new ring of `capacity` slots of at most `blocks` row blocks, for the threads of this process. The bell is rung
    // when a slot becomes ready or drained.
    Ring(std::uint64_t capacity, std::uint64_t blocks, std::shared_ptr<Bell> bell);

    // A new ring for several processes, with a bell of its own. Linux only.
    static std::unique_ptr<Ring> create_shared(std::uint64_t capacity, std::uint64_t blocks);
    // The ring of another process. std::invalid_argument if the memory holds no ring of this version, or the second
    // descriptor belongs to no bell.
    static std::unique_ptr<Ring> attach(int memory, int bell);

    void sleep(std::uint64_t ticket) { sleeper_.sleep(wake_word(), ticket); }
    void wake(std::uint64_t count) { sleeper_.wake(wake_word(), count); }
    void ring_bell() { bell_->ring(); }
    void ring_bell_always() { bell_->ring_always(); }

    // Worker: leaves free blocks to other workers for at most `longest`; `stop` ends it. A resting worker has claimed
    // no block, and takes no wake-up from a worker in `claim_wait`.
    void rest(std::chrono::nanoseconds longest) { resting_.sleep_for(word(RingLayout::stopped), 0, longest); }
    // As in the base, and it ends every rest.
    void stop();

    const std::shared_ptr<Bell>& bell() const { return bell_; }
    // The descriptor of a shared ring's memory; -1 for a private one.
    int descriptor() const { return region_memory_->descriptor(); }

  private:
    Ring(std::shared_ptr<Region> region, RingLayout layout, std::shared_ptr<Bell> bell);

    std::shared_ptr<Region> region_memory_;  // holds the words
    Sleeper sleeper_;
    Sleeper resting_;
    std::shared_ptr<Bell> bell_;
};

}  // namespace penstock
