#include "core/sleeper.hpp"

#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <ctime>
#include <limits>
#else
#include <stdexcept>
#endif

namespace penstock {

#ifdef __linux__

namespace {

// A futex has 32 bits: the low half of the word. A sleeper misses a change only if exactly a multiple of 2**32 changes
// happen between its read of the word and the start of its sleep.
const std::uint32_t* low_half(const AtomicWord& word) {
    static_assert(std::endian::native == std::endian::little || std::endian::native == std::endian::big);
    return reinterpret_cast<const std::uint32_t*>(&word) + (std::endian::native == std::endian::little ? 0 : 1);
}

}  // namespace

Sleeper::Sleeper(bool shared) : process_private_(shared ? 0 : FUTEX_PRIVATE_FLAG) {}

void Sleeper::sleep(const AtomicWord& word, std::uint64_t ticket) {
    // The kernel checks the word and starts the sleep in one step. After a signal handler the call is repeated. It
    // fails otherwise only if the word has changed; an early return is harmless.
    while (word.equals(ticket) && ::syscall(SYS_futex, low_half(word), FUTEX_WAIT | process_private_,
                                            static_cast<std::uint32_t>(ticket), nullptr, nullptr, 0) != 0) {
        if (errno != EINTR) return;
    }
}

void Sleeper::sleep_for(const AtomicWord& word, std::uint64_t ticket, std::chrono::nanoseconds longest) {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(longest);
    const timespec most{seconds.count(), (longest - seconds).count()};
    ::syscall(SYS_futex, low_half(word), FUTEX_WAIT | process_private_, static_cast<std::uint32_t>(ticket), &most,
              nullptr, 0);
}

void Sleeper::wake(const AtomicWord& word, std::uint64_t count) {
    constexpr std::uint64_t most = std::numeric_limits<int>::max();
    ::syscall(SYS_futex, low_half(word), FUTEX_WAKE | process_private_, static_cast<int>(std::min(count, most)),
              nullptr, nullptr, 0);
}

#else

Sleeper::Sleeper(bool shared) {
    if (shared) throw std::logic_error("sleeping on a word that processes share requires Linux");
}

void Sleeper::sleep(const AtomicWord& word, std::uint64_t ticket) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return word.load() != ticket; });
}

void Sleeper::sleep_for(const AtomicWord& word, std::uint64_t ticket, std::chrono::nanoseconds longest) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, longest, [&] { return word.load() != ticket; });
}

void Sleeper::wake(const AtomicWord&, std::uint64_t count) {
    // A sleeper that saw the old word holds the mutex until it waits on the condition variable: wait for that.
    {
        const std::lock_guard lock(mutex_);
    }
    if (count >= 8) return changed_.notify_all();
    for (; count > 0; --count) changed_.notify_one();
}

#endif

}  // namespace penstock
