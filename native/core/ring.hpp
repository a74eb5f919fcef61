// The slot ring over private memory: the claim protocol, where its words lie, and how threads sleep and wake.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "core/atomic_word.hpp"
#include "core/bell.hpp"
#include "core/ring_protocol.hpp"

namespace penstock {

// How workers sleep until a word changes. Between processes a futex on that word takes this one's place.
class Sleeper {
  public:
    virtual ~Sleeper() = default;
    // Returns when `word` differs from `ticket`: at once, or after a wake that follows the change.
    virtual void sleep(const AtomicWord& word, std::uint64_t ticket) = 0;
    // Wakes up to `count` sleepers; the word was changed before.
    virtual void wake(std::uint64_t count) = 0;
};

// For the threads of one process.
class ThreadSleeper final : public Sleeper {
  public:
    void sleep(const AtomicWord& word, std::uint64_t ticket) override;
    void wake(std::uint64_t count) override;

  private:
    std::mutex mutex_;  // makes looking at the word and falling asleep one step; protects no data
    std::condition_variable changed_;
};

class Ring : public RingProtocol<Ring, AtomicWord> {
  public:
    // `capacity` slots of at most `blocks` row blocks; the bell is rung when a slot becomes ready or drained.
    Ring(std::uint64_t capacity, std::uint64_t blocks, std::shared_ptr<Bell> bell);

    void sleep(std::uint64_t ticket) { sleeper_->sleep(wake_word(), ticket); }
    void wake(std::uint64_t count) { sleeper_->wake(count); }
    void ring_bell() { bell_->ring(); }
    void ring_bell_always() { bell_->ring_always(); }

    const std::shared_ptr<Bell>& bell() const { return bell_; }

  private:
    Ring(std::vector<AtomicWord> words, RingLayout layout, std::shared_ptr<Bell> bell);

    std::vector<AtomicWord> words_;
    std::unique_ptr<Sleeper> sleeper_;
    std::shared_ptr<Bell> bell_;
};

}  // namespace penstock
