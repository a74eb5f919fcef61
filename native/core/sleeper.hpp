// How a thread sleeps until a word changes: on a futex, which works between processes as well as between threads.
//
// Nothing is kept of who sleeps but in the kernel, so a sleeper may be killed, and leaves nothing behind. A wake-up
// that was given to one that is dying is lost with it: who sees to its death wakes all others.
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
    // `shared`: whether the words that are slept on lie in memory that other processes map too. Linux only.
    explicit Sleeper(bool shared);

    // Returns when `word` differs from `ticket`: at once, or after a wake that follows the change.
    void sleep(const AtomicWord& word, std::uint64_t ticket);
    // The same, or after `longest`; a signal handler, or a wake without a change, may end it sooner.
    void sleep_for(const AtomicWord& word, std::uint64_t ticket, std::chrono::nanoseconds longest);
    // Wakes up to `count` sleepers of the word, which was changed before.
    void wake(const AtomicWord& word, std::uint64_t count);

  private:
#ifdef __linux__
    int process_private_;  // the flag that spares the kernel the look for other processes
#else
    std::mutex mutex_;  // makes looking at the word and falling asleep one step; protects no data
    std::condition_variable changed_;
#endif
};

}  // namespace penstock
