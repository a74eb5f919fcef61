// The table of an arena: holds and exact counts, refusal of other memory, deaths, forks, and threads that drop leases
// while the owner leases the slots again.
#include <cstdio>

#ifdef __linux__
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "core/arena_table.hpp"

namespace {

using penstock::ArenaParticipant;
using penstock::ArenaTable;
using penstock::AtomicWord;
using penstock::Bell;
using penstock::Lease;
using penstock::Region;

int failures = 0;

void expect(bool condition, const char* what) {
    if (condition) return;
    std::printf("FAILED: %s\n", what);
    failures += 1;
}

template <class Error, class Function>
bool throws(Function&& function) {
    try {
        function();
    } catch (const Error&) {
        return true;
    }
    return false;
}

// An owner and one participant, as in two processes: each with its own mapping.
struct Pair {
    std::shared_ptr<ArenaTable> table = ArenaTable::create(100);
    std::shared_ptr<ArenaTable> attached = ArenaTable::open(table->descriptor(), table->bell().fileno());
    std::shared_ptr<ArenaParticipant> owner = std::make_shared<ArenaParticipant>(table, 0);
    std::shared_ptr<ArenaParticipant> other = std::make_shared<ArenaParticipant>(attached, 3);
    std::shared_ptr<Region> region = Region::create_shared(100 * 64);

    std::unique_ptr<Lease> lend(std::uint64_t slot) {
        return std::make_unique<Lease>(region, slot * 64, 64, owner, slot);
    }
    std::unique_ptr<Lease> adopt(std::uint64_t slot) {
        return std::make_unique<Lease>(region, slot * 64, 64, other, slot);
    }
    bool rung() {
        return Bell::wait_readable(table->bell().fileno(), std::chrono::steady_clock::now()) == Bell::Outcome::rung;
    }
};

void a_slot_is_idle_when_all_have_dropped_it() {
    Pair pair;
    auto mine = pair.lend(7);
    expect(!pair.table->idle(7) && pair.table->idle(8), "a lease holds its slot, and no other");
    pair.table->hold(7, 3);
    mine.reset();
    expect(!pair.table->idle(7) && pair.owner->take_idle().empty(), "a hold on another's behalf counts at once");
    auto theirs = pair.adopt(7);
    expect(pair.attached->leased(3) == 1 && pair.attached->returned(3) == 0, "an adopted hold is no second one");
    pair.table->bell().clear();
    expect(!pair.rung(), "a cleared bell is quiet");
    theirs.reset();
    expect(pair.rung(), "a return rings");
    expect(pair.table->idle(7) && pair.owner->take_idle() == std::vector<std::uint64_t>{7},
           "the last return makes it idle");
    expect(pair.owner->take_idle().empty(), "an idle slot is taken once");
    expect(pair.table->leased() == 2 && pair.table->returned() == 2, "the counts are exact");
}

void each_hold_is_taken_over_once() {
    Pair pair;
    const auto mine = pair.lend(5);
    expect(throws<std::invalid_argument>([&] { pair.adopt(5); }), "without a hold there is nothing to adopt");
    pair.table->hold(5, 3);
    pair.table->hold(5, 3);
    auto first = pair.adopt(5), second = pair.adopt(5);
    expect(throws<std::invalid_argument>([&] { pair.adopt(5); }), "each hold is adopted once");
    expect(throws<std::invalid_argument>([&] { pair.other->drop(5); }), "an adopted hold can't be dropped beside it");
    first.reset();
    second.reset();
    expect(!pair.table->give_back(5, 3), "no hold is returned twice");
    expect(throws<std::invalid_argument>([&] { pair.other->open(100); }), "there is no slot beyond the last");
    pair.table->hold(5, 3);
    pair.other->drop(5);
    expect(pair.table->leased(3) == 3 && pair.table->returned(3) == 3, "the counts are exact");
    expect(Lease::living() == 1, "a refused lease doesn't count");
}

void what_is_no_table_is_refused() {
    const auto table = ArenaTable::create(10);
    const int bell = table->bell().fileno();
    expect(throws<std::invalid_argument>([&] { ArenaTable::open(bell, bell); }), "an eventfd is no table");
    int ends[2];  // a ring must not block on a blocking pipe
    expect(::pipe(ends) == 0, "a pipe can be made");
    for (const int end : ends) {
        expect(throws<std::invalid_argument>([&] { ArenaTable::open(table->descriptor(), end); }), "a pipe is no bell");
        ::close(end);
    }
    expect(throws<std::invalid_argument>([&] { ArenaTable::open(table->descriptor(), -1); }), "nothing is no bell");
    const auto open = [&](std::size_t size, std::vector<std::uint64_t> words) {
        const auto region = Region::create_shared(size);
        std::memcpy(region->data(), words.data(), words.size() * sizeof(std::uint64_t));
        return throws<std::invalid_argument>([&] { ArenaTable::open(region->descriptor(), bell); });
    };
    std::vector<std::uint64_t> words(4);
    std::memcpy(words.data(), "PENSTOCK", 8);
    words[1] = ArenaTable::version;
    words[2] = 10;
    words[3] = ArenaTable::participants;
    const std::size_t enough = 65 * 4096;
    expect(!open(enough, words), "any process can create a table of this format");
    expect(open(100, words), "a short one is refused");
    expect(open(enough - 4096, words), "one that is short for its slots is refused");
    for (std::size_t word = 0; word < words.size(); ++word) {
        for (const std::uint64_t value : {std::uint64_t{0xffff}, ~std::uint64_t{0}, std::uint64_t{1} << 61}) {
            auto wrong = words;
            wrong[word] = value;
            expect(open(enough, wrong), "a wrong header is refused");
        }
    }
    expect(throws<std::invalid_argument>([&] { ArenaParticipant(table, 64); }), "there are 64 participants");
}

void release_removes_all_holds_of_a_dead_participant() {
    Pair pair;
    auto mine = pair.lend(1);
    constexpr std::uint64_t many = 777;
    pair.table->hold(1, 3);
    for (std::uint64_t hold = 0; hold < many; ++hold) pair.table->hold(4, 3);
    // As a death leaves them: a count that fell and wasn't counted, and a bell whose word says that it was rung.
    const auto memory = Region::open_shared(pair.table->descriptor());
    auto* const words = reinterpret_cast<AtomicWord*>(memory->data());
    auto* const end = words + memory->size() / sizeof(AtomicWord);
    auto* const count = std::find_if(words, end, [](const AtomicWord& word) { return word.equals(many); });
    expect(count != end && pair.table->holds(4, 3) == many, "a count is found by its value");
    count->add(-1);
    pair.table->bell().clear();
    pair.table->bell().rung().store(1);
    expect(!pair.rung(), "a death inside a ring leaves the bell silent");
    expect(pair.table->release(3) == many, "release returns the number of holds");
    expect(pair.rung(), "and the owner is woken");
    expect(pair.table->leased(3) == many + 1 && pair.table->returned(3) == many + 1, "the counts are exact");
    expect(!pair.table->idle(1) && pair.table->idle(4), "others keep what they hold");
    pair.table->acknowledge(3);
    pair.table->welcome(3);
    expect(pair.table->acknowledged(3) == 0, "a new participant has acknowledged nothing");
}

void a_forked_child_returns_nothing() {
    Pair pair;
    auto mine = pair.lend(2);
    pair.table->hold(2, 3);
    auto theirs = pair.adopt(2);
    const pid_t child = ::fork();
    if (child == 0) {
        const bool was_here = pair.owner->here() || pair.other->here();
        mine.reset();
        theirs.reset();
        const bool refused = throws<std::logic_error>([&] { pair.lend(9); });
        ::_exit(was_here || !refused ? 1 : 0);
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    expect(status == 0, "a child detects the fork, and can't lease");
    expect(pair.owner->here(), "the parent is where it was");
    expect(pair.table->leased() == 2 && pair.table->returned() == 0, "copies of leases return nothing");
    mine.reset();
    theirs.reset();
    expect(pair.table->returned() == 2, "the leases themselves do");
}

void all_outlives_the_owner() {
    auto pair = std::make_unique<Pair>();
    const auto lease = pair->lend(0);
    pair.reset();
    std::memset(lease->data(), 1, lease->size());
}

// The owner leases slots as fast as they are returned; a participant's threads check their slots and drop them.
void threads_drop_while_slots_are_leased_again() {
    constexpr std::uint64_t slots = 6, rounds = 4000;
    constexpr int threads = 3;
    Pair pair;
    auto* const contents = reinterpret_cast<AtomicWord*>(pair.region->data());
    std::atomic<std::uint64_t> sent[slots]{};  // a message for each slot: the value it was given, and 0 for none
    std::atomic<bool> over{false};
    std::atomic<int> overwritten{0};
    std::vector<std::thread> receivers;
    for (int thread = 0; thread < threads; ++thread) {
        receivers.emplace_back([&] {
            for (bool last = false; !last;) {
                last = over.load();
                for (std::uint64_t slot = 0; slot < slots; ++slot) {
                    const std::uint64_t value = sent[slot].exchange(0);
                    if (value == 0) continue;
                    const auto lease = pair.adopt(slot);
                    for (int looks = 0; looks < 10; ++looks) {
                        if (!contents[slot * 8].equals(value)) overwritten.fetch_add(1);
                    }
                }
            }
        });
    }
    std::vector<std::uint64_t> idle(slots);
    for (std::uint64_t slot = 0; slot < slots; ++slot) idle[slot] = slot;
    for (std::uint64_t round = 1; round <= rounds; ++round) {
        while (idle.empty()) {
            pair.table->bell().clear();
            idle = pair.owner->take_idle();
            if (idle.empty()) Bell::wait_readable(pair.table->bell().fileno(), {});
        }
        const std::uint64_t slot = idle.back();
        idle.pop_back();
        const auto lease = pair.lend(slot);
        contents[slot * 8].store(round);
        pair.table->hold(slot, 3);
        sent[slot].store(round);
    }
    over.store(true);
    for (std::thread& receiver : receivers) receiver.join();
    expect(overwritten.load() == 0, "no slot is written to while it is held");
    expect(pair.table->leased() == 2 * rounds && pair.table->returned() == 2 * rounds, "the counts are exact");
}

}  // namespace

int main() {
    a_slot_is_idle_when_all_have_dropped_it();
    each_hold_is_taken_over_once();
    what_is_no_table_is_refused();
    release_removes_all_holds_of_a_dead_participant();
    a_forked_child_returns_nothing();
    all_outlives_the_owner();
    threads_drop_while_slots_are_leased_again();
    expect(Lease::living() == 0, "no lease is left");
    std::printf("arena table: %d failures\n", failures);
    return failures == 0 ? 0 : 1;
}
#else
int main() {
    std::printf("arena table: needs Linux\n");
    return 0;
}
#endif
