// The time for which a thread awaits the interpreter's lock after it has slept without it.
//
// A thread that wakes up asks for the lock. Where other threads compute with it, each of them keeps it for Python's
// switch interval of 5 ms; the training's own code waits as long after each call that has given the lock up. So these
// waits tell what threads cost the training, which processor times don't.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>
#include <utility>

#include "bindings/interpreter_lock.hpp"
#include "core/step_times.hpp"

namespace penstock::bindings {

// The waits of the calling thread, since they were last added to the times of a loader.
LockWaits& lock_waits_of_thread() noexcept;

// Returns the result of a sleep without the lock, and records the wait for the lock after it.
template <class Sleep>
auto sleep_without_lock(Sleep sleep) {
    using Clock = std::chrono::steady_clock;
    Clock::time_point woken;
    auto slept = [&] {
        const WithoutLock unlocked;
        auto result = sleep();
        woken = Clock::now();
        return result;
    }();
    lock_waits_of_thread().add(std::chrono::duration<double>(Clock::now() - woken).count());
    return slept;
}

}  // namespace penstock::bindings
