#include "core/ring.hpp"

#include <utility>

namespace penstock {

void ThreadSleeper::sleep(const AtomicWord& word, std::uint64_t ticket) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return word.load() != ticket; });
}

void ThreadSleeper::wake(std::uint64_t count) {
    // A sleeper that saw the old word holds the mutex until it is on the condition variable: wait for that.
    {
        const std::lock_guard lock(mutex_);
    }
    if (count >= 8) return changed_.notify_all();
    for (; count > 0; --count) changed_.notify_one();
}

Ring::Ring(std::uint64_t capacity, std::uint64_t blocks, std::shared_ptr<Bell> bell)
    : Ring(std::vector<AtomicWord>(RingLayout{capacity, blocks}.size()), RingLayout{capacity, blocks},
           std::move(bell)) {}

Ring::Ring(std::vector<AtomicWord> words, RingLayout layout, std::shared_ptr<Bell> bell)
    : RingProtocol(words.data(), layout),
      words_(std::move(words)),
      sleeper_(std::make_unique<ThreadSleeper>()),
      bell_(std::move(bell)) {
    words_[RingLayout::capacity_word].store(layout.capacity);
    words_[RingLayout::blocks_word].store(layout.blocks);
}

}  // namespace penstock
