// The slot ring over the words of a region, private or shared: where they lie, and how their users sleep and wake.
//
// Guarantees, beside the protocol's:
//   - A shared ring is the same ring in every process that has its two descriptors, however it got them and wherever
//   the
//     region is mapped there.
//   - `attach` takes only memory that a ring of this version was made in.
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
    // The ring of another process. std::invalid_argument if the memory holds none of this version, or the other
    // descriptor is no bell's.
    static std::unique_ptr<Ring> attach(int memory, int bell);

    void sleep(std::uint64_t ticket) { sleeper_.sleep(wake_word(), ticket); }
    void wake(std::uint64_t count) { sleeper_.wake(wake_word(), count); }
    void ring_bell() { bell_->ring(); }
    void ring_bell_always() { bell_->ring_always(); }

    // Worker: leaves what can be claimed to others, for `longest` at most; `stop` ends it. Who rests holds no block,
    // and takes no wake-up that is meant for who waits for one.
    void rest(std::chrono::nanoseconds longest) { resting_.sleep_for(word(RingLayout::stopped), 0, longest); }
    // As the base's, and ends every rest.
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
