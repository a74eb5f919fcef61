// The table of an arena: the holds of each process on the slots of memory that several processes share.
//
// One process, the owner, leases slots; it is participant 0, and it alone allocates. It invites all other participants.
// The table is in shared memory, and consists of atomic words: for each participant a count of holds on each slot, and
// three counters.
//
// Guarantees:
//   - A slot is idle when all its counts are 0. Only the owner adds holds, on its own behalf or on a participant's, so
//   an
//     idle slot stays idle until the owner leases it: no two processes race for a slot.
//   - A participant changes only its own words and the bell's, and lowers a count only for a hold that it has. There is
//     no lock, and after a death between any two operations only the words of the dead participant are wrong. `release`
//     corrects them, once that process has certainly ended.
//   - `leased` and `returned` count exactly: they are equal when a participant holds nothing. First a count falls, then
//     `returned` rises, then the bell rings: a process that sees a return finds the slot returned, and one that clears
//     the bell, checks and waits misses none.
//   - Leases are dropped on any thread, without a lock. A forked child has copies of its parent's leases; dropping them
//     changes nothing.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/bell.hpp"
#include "core/memory.hpp"

namespace penstock {

// The number of forks between the first ancestor that called this and this process; it changes at each fork.
std::uint64_t fork_generation();

class ArenaTable {
  public:
    static constexpr std::uint64_t participants = 64;  // the owner among them
    static constexpr std::uint64_t version = 1;

    // By the owner. Linux only; elsewhere it throws std::system_error.
    static std::shared_ptr<ArenaTable> create(std::uint64_t slots);
    // By participants; copies both descriptors. std::invalid_argument if the memory is no table of this version, or the
    // second descriptor belongs to no bell.
    static std::shared_ptr<ArenaTable> open(int table_descriptor, int bell_descriptor);

    std::uint64_t slots() const { return slots_; }
    int descriptor() const { return region_->descriptor(); }
    // The owner's bell: its word is in the table, and its descriptor is an eventfd that all participants have.
    Bell& bell() { return bell_; }
    // The number of bytes that the owner waits for; 0 for none.
    AtomicWord& wanted() const { return words_[wanted_word]; }

    // By the owner: one more hold on a slot, on a participant's behalf.
    void hold(std::uint64_t slot, std::uint64_t participant);
    // Removes a hold: by its participant, or by the owner that added it. False, without a change, if there is none.
    bool give_back(std::uint64_t slot, std::uint64_t participant);
    std::uint64_t holds(std::uint64_t slot, std::uint64_t participant) const;
    // By the owner: whether nobody holds the slot.
    bool idle(std::uint64_t slot) const;

    std::uint64_t leased(std::uint64_t participant) const { return row(participant)[leased_word].load(); }
    std::uint64_t returned(std::uint64_t participant) const { return row(participant)[returned_word].load(); }
    // By the owner: of all participants together.
    std::uint64_t leased() const;
    std::uint64_t returned() const;

    // By a participant: counts one more acknowledgement, and rings the bell.
    void acknowledge(std::uint64_t participant);
    std::uint64_t acknowledged(std::uint64_t participant) const { return row(participant)[acknowledged_word].load(); }

    // By the owner: removes all holds of a participant that has certainly ended, and returns their number.
    std::uint64_t release(std::uint64_t participant);
    // By the owner: sets the acknowledgements of a new participant to 0.
    void welcome(std::uint64_t participant);

  private:
    // Offsets in words. Words that different processes write often are on different cache lines.
    static constexpr std::uint64_t magic = 0x4b434f54534e4550;  // "PENSTOCK"
    static constexpr std::size_t magic_word = 0, version_word = 1, slots_word = 2, participants_word = 3;
    static constexpr std::size_t rung_word = 8, wanted_word = 16, header_words = 512;
    static constexpr std::size_t leased_word = 0, returned_word = 8, acknowledged_word = 9, holds_word = 16;

    // Creates the bell, or copies the descriptor of the owner's bell.
    ArenaTable(std::shared_ptr<Region> region, std::uint64_t slots, std::optional<int> bell_descriptor);

    std::shared_ptr<AtomicWord> rung() const { return {region_, words_ + rung_word}; }

    static std::size_t row_words(std::uint64_t slots);
    static std::size_t bytes(std::uint64_t slots);
    AtomicWord* row(std::uint64_t participant) const;
    AtomicWord& hold_word(std::uint64_t slot, std::uint64_t participant) const;

    std::shared_ptr<Region> region_;
    AtomicWord* words_;
    std::uint64_t slots_;  // a copy, since others may write to the table
    // By the owner: participants and slots from these numbers on never had a hold. The pages behind are never touched.
    std::atomic<std::uint64_t> rows_used_{1}, slots_used_{0};
    Bell bell_;
};

// One process's part in an arena; it creates the leases there. A lease of the owner takes an idle slot; a lease of
// another participant adopts a hold that the owner added on its behalf.
class ArenaParticipant : public LeaseOwner {
  public:
    ArenaParticipant(std::shared_ptr<ArenaTable> table, std::uint64_t number);

    std::uint64_t number() const { return number_; }
    // Whether this process created the object; false in a forked child.
    bool here() const { return fork_generation() == generation_; }

    // std::logic_error in a forked child; std::invalid_argument if there is no hold to adopt.
    std::unique_ptr<Entry> open(std::uint64_t slot) override;
    void close(std::unique_ptr<Entry> entry) noexcept override;
    // Returns a hold that no lease has adopted; throws as `open` does.
    void drop(std::uint64_t slot) { close(open(slot)); }

    // By the owner, one thread at a time, and not while a lease is opened: the leased slots that have become idle since
    // the last call.
    std::vector<std::uint64_t> take_idle();

  private:
    AtomicWord& adopted(std::uint64_t slot) const { return reinterpret_cast<AtomicWord*>(adopted_->data())[slot]; }

    std::shared_ptr<ArenaTable> table_;
    std::uint64_t number_;
    std::uint64_t generation_;
    std::vector<std::uint64_t> leased_slots_;
    std::uint64_t seen_returned_ = 0;
    std::unique_ptr<Region> adopted_;  // of participants but the owner: for each slot, the number of leases here
};

}  // namespace penstock
