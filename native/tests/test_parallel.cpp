// A range is cut into parts that cover it once, whatever its length and the number of threads.
#include "core/parallel.hpp"

#include <atomic>
#include <cstddef>
#include <cstdio>
#include <thread>
#include <vector>

namespace {

int failures = 0;

void expect(bool holds, const char* promise, std::size_t count, std::size_t unit, std::size_t num_threads) {
    if (!holds) {
        std::fprintf(stderr, "failed: %s (count=%zu, unit=%zu, num_threads=%zu)\n", promise, count, unit, num_threads);
        ++failures;
    }
}

void check(std::size_t count, std::size_t unit, std::size_t num_threads) {
    // Not atomic: the thread sanitizer sees it if two parts share a place, or one hasn't ended at the return.
    std::vector<int> visits(count);
    std::atomic<std::size_t> parts{0};
    std::atomic<bool> at_units{true};
    std::atomic<bool> caller_takes_part{false};
    const std::thread::id caller = std::this_thread::get_id();
    penstock::run_in_parts(count, unit, num_threads, [&](std::size_t begin, std::size_t end) {
        ++parts;
        at_units = at_units && begin % unit == 0;
        caller_takes_part = caller_takes_part || std::this_thread::get_id() == caller;
        for (std::size_t place = begin; place < end; ++place) {
            ++visits[place];
        }
    });
    bool once = true;
    for (const int visit : visits) {
        once = once && visit == 1;
    }
    expect(once, "each place is in one part", count, unit, num_threads);
    expect(at_units, "parts begin at multiples of the unit", count, unit, num_threads);
    expect(caller_takes_part, "the calling thread takes part", count, unit, num_threads);
    expect(parts <= (num_threads == 0 ? 1 : num_threads), "there are no more parts than threads", count, unit,
           num_threads);
}

void check_worth() {
    constexpr std::size_t least = penstock::min_bytes_per_thread;
    expect(penstock::threads_worth(0, 8) == 1, "nothing takes one thread", 0, 1, 8);
    expect(penstock::threads_worth(2 * least - 1, 8) == 1, "small work takes one thread", 0, 1, 8);
    expect(penstock::threads_worth(2 * least, 8) == 2, "each thread has enough to do", 0, 1, 8);
    expect(penstock::threads_worth(100 * least, 8) == 8, "no more threads than num_threads", 0, 1, 8);
    expect(penstock::threads_worth(100 * least, 0) == 1, "at least one thread", 0, 1, 0);
}

}  // namespace

int main() {
    for (const std::size_t count : {0, 1, 2, 9, 10, 11, 64, 1000}) {
        for (const std::size_t unit : {1, 3, 10, 4096}) {
            for (const std::size_t num_threads : {0, 1, 2, 3, 8, 20}) {
                check(count, unit, num_threads);
            }
        }
    }
    check_worth();
    return failures == 0 ? 0 : 1;
}
