// The table of an arena: which process holds which slot of memory that several processes share.
//
// One process, the owner, lends slots out; it is participant 0, and it alone allocates. All others are participants
// that the owner invited. The table lies in shared memory and has nothing but atomic words: for each participant a
// count of holds on each slot, and three counters.
//
// Guarantees:
//   - A slot is idle when all its counts are 0. Only the owner adds holds, on its own behalf or on another's, so an
//   idle
//     slot stays idle until the owner lends it: nobody races for a slot.
//   - A participant changes nothing but its own words, the bell's, and by these never more than it was given: there is
//     no lock, and a death between any two operations leaves wrong nothing but the words of the dead. `release` puts
//     those right, once that process is certainly gone.
//   - `leased` and `returned` count exactly: they are equal when a participant holds nothing. A count falls first,
//     `returned` rises next, and the bell is rung last: who sees a return finds the slot given back, and who clears the
//     bell, looks and waits misses none.
//   - Leases are dropped on any thread, without a lock. A child made by fork has copies of its parent's leases, and
//     dropping those changes nothing.
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

// How many forks lie between this process and the first of its line that asked; another number after each fork.
std::uint64_t fork_generation();

class ArenaTable {
  public:
    static constexpr std::uint64_t participants = 64;  // the owner among them
    static constexpr std::uint64_t version = 1;

    // By the owner. Linux only; elsewhere std::system_error says that it isn't supported.
    static std::shared_ptr<ArenaTable> create(std::uint64_t slots);
    // By others; takes copies of both descriptors. std::invalid_argument if that memory is no table of this version, or
    // the other no bell's.
    static std::shared_ptr<ArenaTable> open(int table_descriptor, int bell_descriptor);

    std::uint64_t slots() const { return slots_; }
    int descriptor() const { return region_->descriptor(); }
    // The owner's: its word lies in the table, and its descriptor is an eventfd that all participants have.
    Bell& bell() { return bell_; }
    // How many bytes the owner waits for; 0 for none.
    AtomicWord& wanted() const { return words_[wanted_word]; }

    // By the owner: one more hold on a slot, on a participant's behalf.
    void hold(std::uint64_t slot, std::uint64_t participant);
    // One hold less, by who has it or by who gave it; false, and no change, if there is none.
    bool give_back(std::uint64_t slot, std::uint64_t participant);
    std::uint64_t holds(std::uint64_t slot, std::uint64_t participant) const;
    // By the owner: whether nobody holds the slot.
    bool idle(std::uint64_t slot) const;

    std::uint64_t leased(std::uint64_t participant) const { return row(participant)[leased_word].load(); }
    std::uint64_t returned(std::uint64_t participant) const { return row(participant)[returned_word].load(); }
    // By the owner: of all participants together.
    std::uint64_t leased() const;
    std::uint64_t returned() const;

    // What a participant says to the owner by counting; rings the bell.
    void acknowledge(std::uint64_t participant);
    std::uint64_t acknowledged(std::uint64_t participant) const { return row(participant)[acknowledged_word].load(); }

    // By the owner: takes back all that a participant holds, which is certainly gone, and returns how many holds it
    // were.
    std::uint64_t release(std::uint64_t participant);
    // By the owner: nothing is acknowledged by a participant that is new.
    void welcome(std::uint64_t participant);

  private:
    // What lies where, in words; what different processes write often lies on different cache lines.
    static constexpr std::uint64_t magic = 0x4b434f54534e4550;  // "PENSTOCK"
    static constexpr std::size_t magic_word = 0, version_word = 1, slots_word = 2, participants_word = 3;
    static constexpr std::size_t rung_word = 8, wanted_word = 16, header_words = 512;
    static constexpr std::size_t leased_word = 0, returned_word = 8, acknowledged_word = 9, holds_word = 16;

    // Makes the bell, or copies the descriptor of the owner's.
    ArenaTable(std::shared_ptr<Region> region, std::uint64_t slots, std::optional<int> bell_descriptor);

    std::shared_ptr<AtomicWord> rung() const { return {region_, words_ + rung_word}; }

    static std::size_t row_words(std::uint64_t slots);
    static std::size_t bytes(std::uint64_t slots);
    AtomicWord* row(std::uint64_t participant) const;
    AtomicWord& hold_word(std::uint64_t slot, std::uint64_t participant) const;

    std::shared_ptr<Region> region_;
    AtomicWord* words_;
    std::uint64_t slots_;  // a copy, since others may write to the table
    // By the owner: no participant, and no slot, from these on ever had a hold. Pages that lie behind are never
    // touched.
    std::atomic<std::uint64_t> rows_used_{1}, slots_used_{0};
    Bell bell_;
};

// One process's part in an arena, from which its leases come. Leases of the owner take an idle slot; those of others
// take over holds that the owner added on their behalf.
class ArenaParticipant : public Lender {
  public:
    ArenaParticipant(std::shared_ptr<ArenaTable> table, std::uint64_t number);

    std::uint64_t number() const { return number_; }
    // Whether this is the process that made this object, and no child that was forked since.
    bool here() const { return fork_generation() == generation_; }

    // std::logic_error in a forked child; std::invalid_argument if there is no hold to take over.
    std::unique_ptr<Entry> open(std::uint64_t slot) override;
    void close(std::unique_ptr<Entry> entry) noexcept override;
    // Gives back a hold that no lease has taken over; throws as `open` does.
    void drop(std::uint64_t slot) { close(open(slot)); }

    // By the owner, one thread at a time, and not while a lease is opened: those of the lent slots that have become
    // idle since the last call; they are no longer lent.
    std::vector<std::uint64_t> take_idle();

  private:
    AtomicWord& adopted(std::uint64_t slot) const { return reinterpret_cast<AtomicWord*>(adopted_->data())[slot]; }

    std::shared_ptr<ArenaTable> table_;
    std::uint64_t number_;
    std::uint64_t generation_;
    std::vector<std::uint64_t> lent_;
    std::uint64_t seen_returned_ = 0;
    std::unique_ptr<Region> adopted_;  // by others: a word for each slot, how many of its leases live here
};

}  // namespace penstock
