// Regions and leases: alignment, zeroes, exact counts, lifetime, and drops from many threads at once.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "core/memory.hpp"

namespace {

using penstock::Bell;
using penstock::Lease;
using penstock::Region;
using penstock::ReturnedLeases;

int failures = 0;

void expect(bool condition, const char* what) {
    if (condition) return;
    std::printf("FAILED: %s\n", what);
    failures += 1;
}

void regions_are_aligned_and_zero() {
    for (const std::size_t size : {0, 1, 63, 4096, 5'000'000}) {
        for (const bool prefault : {false, true}) {
            const Region region(size, prefault);
            expect(reinterpret_cast<std::uintptr_t>(region.data()) % 64 == 0, "a region is aligned to 64 bytes");
            expect(std::all_of(region.data(), region.data() + size, [](std::byte b) { return b == std::byte{0}; }),
                   "a region starts as zeroes");
            std::memset(region.data(), 255, size);
        }
    }
}

#ifdef __linux__
void shared_regions_are_one_memory_and_sealed() {
    const auto made = Region::create_shared(10'000);
    const auto opened = Region::open_shared(made->descriptor());
    expect(opened->data() != made->data() && opened->descriptor() != made->descriptor(), "each has its own mapping");
    made->data()[9'999] = std::byte{7};
    expect(opened->data()[9'999] == std::byte{7} && opened->size() == made->size(), "both are the same memory");
    expect(::ftruncate(opened->descriptor(), 1) != 0, "no process can shrink memory that others have mapped");
    opened->populate(5'000, 100'000, true);
    made->populate(0, 10'000, false);
    made->discard(4'000, 5'000);  // the page from 4,096 to 8,191
    expect(opened->data()[9'999] == std::byte{7} && opened->data()[5'000] == std::byte{0},
           "only whole pages inside go");
    made->discard(8'192, 10'000 - 8'192);
    expect(opened->data()[9'999] == std::byte{0}, "the last page is discarded up to its end");
    int ends[2];
    expect(::pipe(ends) == 0, "a pipe opens");
    bool refused = false;
    try {
        Region::open_shared(ends[0]);
    } catch (const std::invalid_argument&) {
        refused = true;
    }
    ::close(ends[0]);
    ::close(ends[1]);
    expect(refused, "what isn't sealed memory is refused");
}
#endif

void leases_come_back_in_order() {
    const auto returns = std::make_shared<ReturnedLeases>(std::weak_ptr<Bell>());
    const auto region = std::make_shared<Region>(256, false);
    auto first = std::make_unique<Lease>(region, 0, 64, returns, 7);
    auto second = std::make_unique<Lease>(region, 64, 192, returns, 3);
    expect(first->slot() == 7 && second->data() == region->data() + 64 && second->size() == 192,
           "a lease says its place");
    expect(Lease::living() == 2, "two leases live");
    expect(returns->leased() == 2 && returns->returned() == 0 && returns->take().empty(), "nothing is returned yet");
    second.reset();
    first.reset();
    expect(returns->returned() == 2, "both are counted");
    expect(returns->take() == std::vector<std::uint64_t>{3, 7}, "slots come back in the order of their drops");
    expect(returns->take().empty(), "each comes back once");
    bool refused = false;
    try {
        const Lease outside(region, 64, 193, returns, 0);
    } catch (const std::out_of_range&) {
        refused = true;
    }
    expect(refused && returns->leased() == 2, "a lease outside its region is refused and not counted");
}

void a_lease_outlives_all_else() {
    auto returns = std::make_shared<ReturnedLeases>(std::weak_ptr<Bell>());
    auto region = std::make_shared<Region>(4096, false);
    const auto lease = std::make_unique<Lease>(std::move(region), 0, 4096, std::move(returns), 0);
    std::memset(lease->data(), 1, lease->size());
}

void a_return_rings_the_bell() {
    auto bell = std::make_shared<Bell>();
    const auto returns = std::make_shared<ReturnedLeases>(bell);
    const auto region = std::make_shared<Region>(64, false);
    const auto now = std::chrono::steady_clock::now();
    std::make_unique<Lease>(region, 0, 64, returns, 0).reset();
    expect(bell->wait(now) == Bell::Outcome::rung, "a return rings");
    bell->clear();
    expect(bell->wait(now) == Bell::Outcome::timed_out, "a cleared bell is quiet");
    bell.reset();
    std::make_unique<Lease>(region, 0, 64, returns, 0).reset();
    expect(returns->returned() == 2, "a return after the end of the bell is only counted");
}

void threads_drop_at_once() {
    constexpr int threads = 4, each = 2000;
    const auto returns = std::make_shared<ReturnedLeases>(std::weak_ptr<Bell>());
    const auto region = std::make_shared<Region>(64, false);
    std::vector<std::thread> droppers;
    for (int thread = 0; thread < threads; ++thread) {
        droppers.emplace_back([&, thread] {
            for (int i = 0; i < each; ++i) {
                const Lease lease(region, 0, 64, returns, static_cast<std::uint64_t>(thread * each + i));
            }
        });
    }
    std::vector<std::uint64_t> slots;
    while (slots.size() < threads * each) {
        const auto taken = returns->take();
        slots.insert(slots.end(), taken.begin(), taken.end());
        std::this_thread::yield();
    }
    for (std::thread& dropper : droppers) dropper.join();
    std::sort(slots.begin(), slots.end());
    bool each_once = true;
    for (std::size_t i = 0; i < slots.size(); ++i) each_once = each_once && slots[i] == i;
    expect(each_once, "each of the leases was returned once");
    expect(returns->leased() == threads * each && returns->returned() == threads * each, "the counts are exact");
}

}  // namespace

int main() {
#ifdef __linux__
    shared_regions_are_one_memory_and_sealed();
#endif
    regions_are_aligned_and_zero();
    leases_come_back_in_order();
    a_lease_outlives_all_else();
    a_return_rings_the_bell();
    threads_drop_at_once();
    expect(Lease::living() == 0, "no lease is left");
    std::printf("memory: %d failures\n", failures);
    return failures == 0 ? 0 : 1;
}
