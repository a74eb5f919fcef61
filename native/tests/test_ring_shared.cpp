// A shared ring: attaching, a bell whose ringer died inside a ring, words that another process has overwritten, and
// sleepers at other addresses.
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "core/ring.hpp"

#ifdef __linux__

namespace {

using penstock::Bell;
using penstock::Region;
using penstock::Ring;
using penstock::RingLayout;
using penstock::RingWords;

int failures = 0;

void expect(bool condition, const char* what) {
    if (condition) return;
    std::printf("FAILED: %s\n", what);
    failures += 1;
}

bool refuses(int memory, int bell) {
    try {
        Ring::attach(memory, bell);
    } catch (const std::invalid_argument&) {
        return true;
    }
    return false;
}

// Memory of another process: the first words of a ring, changed at one place.
std::shared_ptr<Region> forged(const Ring& ring, std::size_t size, std::size_t index, std::uint64_t value) {
    const auto original = Region::open_shared(ring.descriptor());
    auto copy = Region::create_shared(size);
    std::memcpy(copy->data(), original->data(), RingLayout::header * sizeof(std::uint64_t));
    std::memcpy(copy->data() + index * sizeof value, &value, sizeof value);
    return copy;
}

bool is_readable(const Bell& bell) { return bell.wait(std::chrono::steady_clock::now()) == Bell::Outcome::rung; }

void only_rings_are_attached_to() {
    const auto ring = Ring::create_shared(3, 5);
    const int memory = ring->descriptor(), bell = ring->bell()->fileno();
    const std::size_t size = RingLayout{3, 5}.size() * sizeof(std::uint64_t);
    const auto attached = Ring::attach(memory, bell);
    expect(attached->layout().capacity == 3 && attached->layout().blocks == 5, "a ring says how large it is");
    expect(attached->descriptor() != memory && attached->bell()->fileno() != bell, "descriptors are copied");

    expect(!refuses(forged(*ring, size, RingLayout::used, 0)->descriptor(), bell), "a true copy is taken");
    expect(refuses(bell, bell), "a bell is no memory");
    expect(refuses(Region::create_shared(8)->descriptor(), bell), "too small for a header");
    expect(refuses(Region::create_shared(1 << 16)->descriptor(), bell), "memory that holds nothing");
    expect(refuses(forged(*ring, size - 1, RingLayout::used, 0)->descriptor(), bell), "too small for its slots");
    expect(refuses(forged(*ring, size, RingLayout::format, 1)->descriptor(), bell), "another version");
    for (const std::uint64_t capacity : {std::uint64_t{0}, RingWords::max_slots + 1, RingWords::all}) {
        expect(refuses(forged(*ring, size, RingLayout::capacity_word, capacity)->descriptor(), bell), "capacity");
    }
    for (const std::uint64_t blocks : {std::uint64_t{0}, RingWords::max_blocks + 1, RingWords::all}) {
        expect(refuses(forged(*ring, size, RingLayout::blocks_word, blocks)->descriptor(), bell), "blocks");
    }

    int ends[2];
    expect(::pipe(ends) == 0, "a pipe");
    const int file = ::open("/dev/null", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    for (const int other : {memory, ends[0], ends[1], file, -1}) expect(refuses(memory, other), "no bell");
    for (const int descriptor : {ends[0], ends[1], file}) ::close(descriptor);
}

void a_dead_ringer_silences_nobody() {
    const auto ring = Ring::create_shared(1, 2);
    const auto worker = Ring::attach(ring->descriptor(), ring->bell()->fileno());
    ring->arm(0, 0, 2, false);
    ring->claim(1);
    worker->claim(2);
    worker->bell()->rung().exchange(1);  // the state after a ringer's death between its two steps
    expect(!is_readable(*ring->bell()), "it didn't ring");
    ring->finish(0, 0, 1);
    worker->finish(0, 1, 2);
    expect(ring->ready(0) && !is_readable(*ring->bell()), "and nobody after it");
    worker->release_worker(3);
    expect(is_readable(*ring->bell()), "until it is released");
    ring->bell()->clear();
    worker->bell()->ring();
    expect(is_readable(*ring->bell()), "and all is as before");
}

// The owner's own words spoilt too: what the calls return is anything, but nothing is touched outside.
void spoilt_words_do_no_harm() {
    const auto ring = Ring::create_shared(2, 3);
    const auto memory = Region::open_shared(ring->descriptor());
    auto* const words = reinterpret_cast<std::uint64_t*>(memory->data());
    std::uint64_t random = 1;
    for (int round = 0; round < 20'000; ++round) {
        for (std::size_t i = RingLayout::used; i < ring->layout().size(); ++i) {
            random = random * 6364136223846793005 + 1442695040888963407;
            words[i] = random >> (random >> 58);
        }
        words[RingLayout::stopped] = 1;
        try {
            ring->ready(round % 2);
            if (const auto claim = ring->claim(1)) {
                expect(claim->slot < 2 && claim->block <= 3, "a claim is inside the ring");
                ring->finish(claim->slot, claim->block, 1);
            }
            ring->release_worker(1);
            ring->cancel(round % 2);
            ring->retire(round % 2);
        } catch (const std::logic_error&) {  // a call out of turn
        }
    }
}

void sleepers_wake_at_any_address() {
    const auto ring = Ring::create_shared(1, 1);
    std::vector<std::thread> workers;
    for (int i = 1; i <= 3; ++i) {
        workers.emplace_back([&ring, i] {
            const auto own = Ring::attach(ring->descriptor(), ring->bell()->fileno());
            while (const auto claim = own->claim_wait(i)) own->finish(claim->slot, claim->block, i);
        });
    }
    workers.emplace_back([&ring] {
        const auto own = Ring::attach(ring->descriptor(), ring->bell()->fileno());
        while (!own->stopped()) own->rest(std::chrono::hours(1));
    });
    for (int number = 0; number < 2'000; ++number) {
        ring->arm(0, number, 1, false);
        while (!ring->ready(0)) {
            ring->bell()->clear();
            if (!ring->ready(0)) ring->bell()->wait(std::nullopt);
        }
        ring->retire(0);
    }
    Ring::attach(ring->descriptor(), ring->bell()->fileno())->stop();
    for (std::thread& worker : workers) worker.join();
    expect(ring->stopped(), "a stop is everybody's");
}

}  // namespace

int main() {
    only_rings_are_attached_to();
    a_dead_ringer_silences_nobody();
    spoilt_words_do_no_harm();
    sleepers_wake_at_any_address();
    std::printf("shared ring: %d failures\n", failures);
    return failures == 0 ? 0 : 1;
}

#else

int main() { std::printf("shared ring: needs Linux\n"); }

#endif
