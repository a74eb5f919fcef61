// A job of an extension that keeps a core busy for 20 microseconds, and the minimum time of a number of such jobs: C++
// threads that share them, without an event loop.
#include <penstock/job.hpp>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace {

void keep(void*) {}
std::uint32_t run_busy(void*, penstock_job_failure_v2*);

}  // namespace

extern "C" {

void busy() {
    const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(20);
    while (std::chrono::steady_clock::now() < end) {
    }
}

// The job that capsules point to: it owns nothing, so any number of capsules may share it.
const penstock_job_v2* busy_job() {
    static const penstock_job_v2 job{2, 0, nullptr, &run_busy, nullptr, nullptr, &keep, &keep};
    return &job;
}

void busy_on_threads(int count, int num_threads) {
    std::atomic<int> left{count};
    std::vector<std::thread> threads;
    for (int i = 0; i < num_threads; ++i) {
        threads.emplace_back([&] {
            while (left.fetch_sub(1) > 0) busy();
        });
    }
    for (std::thread& thread : threads) thread.join();
}
}

namespace {

std::uint32_t run_busy(void*, penstock_job_failure_v2*) {
    busy();
    return 1;
}

}  // namespace
