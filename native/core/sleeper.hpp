// Sleep until a word changes: on a futex, which works between processes as well as between threads.
//
// Only the kernel records the sleepers, so a sleeper may be killed, and leaves nothing behind. A wake-up that a dying
// sleeper had received is lost with it; so the thread that handles its death must wake all others.
#pragma once

#include <chrono>
#include <cstdint>
#ifndef __linux__
#include <condition_variable>
#include <mutex>
#endif

#include "core/atomic_word.hpp"

namespace penstock {

class Sleeper {
  public:
    // `shared`: whether the words are in memory that other processes map, too. Linux only.
    explicit Sleeper(bool shared);

    // Returns when `word` differs from `ticket`: at once, or after a wake that follows the change.
    void sleep(const AtomicWord& word, std::uint64_t ticket);
    // The same, for at most `longest`; a signal handler, or a wake without a change, may end it earlier.
    void sleep_for(const AtomicWord& word, std::uint64_t ticket, std::chrono::nanoseconds longest);
    // Wakes up to `count` sleepers of the word; change the word first.
    void wake(const AtomicWord& word, std::uint64_t count);

  private:
#ifdef __linux__
    int process_private_;  // FUTEX_PRIVATE_FLAG, which makes the kernel's lookup cheaper, or 0
#else
    std::mutex mutex_;  // makes the check of the word and the start of the sleep one step; protects no data
    std::condition_variable changed_;
#endif
};

}  // namespace penstock
