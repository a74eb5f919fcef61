// Work on a range that is divided into parts, which run at the same time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <system_error>
#include <thread>
#include <vector>

namespace penstock {

// For fewer bytes of output, the start of a thread takes longer than it saves.
inline constexpr std::size_t min_bytes_per_thread = 4 << 20;

// The number of threads, at most `num_threads` and at least 1, that pay for an output of this size.
inline std::size_t threads_worth(std::size_t bytes, std::size_t num_threads) noexcept {
    return std::clamp<std::size_t>(bytes / min_bytes_per_thread, 1, std::max<std::size_t>(num_threads, 1));
}

// Calls `work(begin, end)`, which must not throw, for parts that cover [0, count) once: the first part on the calling
// thread, each other one on a thread that is started here and has ended when this returns. Each part begins at a
// multiple of `unit`. If the system refuses a thread, the calling thread does the remaining parts, too.
template <typename Work>
void run_in_parts(std::size_t count, std::size_t unit, std::size_t num_threads, const Work& work) {
    const std::size_t units = (count + unit - 1) / unit;
    const std::size_t parts = std::min(std::max<std::size_t>(num_threads, 1), units);
    const auto begin_of = [=](std::size_t part) {
        // `part * (units / parts)` and the share of the rest, since `part * units` might not fit.
        const std::size_t first = part * (units / parts) + std::min(part, units % parts);
        return std::min(first * unit, count);
    };
    if (parts <= 1) {
        work(std::size_t{0}, count);
        return;
    }
    std::vector<std::thread> threads;
    threads.reserve(parts - 1);
    std::size_t started = 1;
    try {
        for (; started < parts; ++started) {
            threads.emplace_back([&work, begin = begin_of(started), end = begin_of(started + 1)] { work(begin, end); });
        }
    } catch (const std::system_error&) {
        // This thread does the parts from `started` on.
    }
    work(std::size_t{0}, begin_of(1));
    if (started < parts) {
        work(begin_of(started), count);
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
}

}  // namespace penstock
