#include "core/arena_table.hpp"

#include <pthread.h>

#include <stdexcept>
#include <system_error>
#include <utility>

namespace penstock {

namespace {

std::atomic<std::uint64_t> forks{0};

void raise(std::atomic<std::uint64_t>& word, std::uint64_t least) {
    std::uint64_t now = word.load();
    while (now < least && !word.compare_exchange_weak(now, least)) {
    }
}

}  // namespace

std::uint64_t fork_generation() {
    static const int watched = ::pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1); });
    if (watched != 0) throw std::system_error(watched, std::generic_category(), "cannot watch for forks");
    return forks.load();
}

std::size_t ArenaTable::row_words(std::uint64_t slots) {
    constexpr std::size_t page_words = 512;
    return (holds_word + slots + page_words - 1) / page_words * page_words;
}

std::size_t ArenaTable::bytes(std::uint64_t slots) {
    return (header_words + participants * row_words(slots)) * sizeof(AtomicWord);
}

ArenaTable::ArenaTable(std::shared_ptr<Region> region, std::uint64_t slots, std::optional<int> bell_descriptor)
    : region_(std::move(region)),
      words_(reinterpret_cast<AtomicWord*>(region_->data())),
      slots_(slots),
      bell_(bell_descriptor ? Bell(rung(), *bell_descriptor) : Bell(rung())) {}

std::shared_ptr<ArenaTable> ArenaTable::create(std::uint64_t slots) {
    auto region = Region::create_shared(bytes(slots));
    auto* const words = reinterpret_cast<AtomicWord*>(region->data());
    words[version_word].store(version);
    words[slots_word].store(slots);
    words[participants_word].store(participants);
    words[magic_word].store(magic);
    return std::shared_ptr<ArenaTable>(new ArenaTable(std::move(region), slots, std::nullopt));
}

std::shared_ptr<ArenaTable> ArenaTable::open(int table_descriptor, int bell_descriptor) {
    auto region = Region::open_shared(table_descriptor);
    if (region->size() < header_words * sizeof(AtomicWord)) throw std::invalid_argument("it is too short");
    const auto* const words = reinterpret_cast<const AtomicWord*>(region->data());
    if (!words[magic_word].equals(magic)) throw std::invalid_argument("it doesn't start as a table does");
    if (!words[version_word].equals(version)) throw std::invalid_argument("it is of another version");
    const std::uint64_t slots = words[slots_word].load();
    // Compared before it is multiplied, so that the product can't overflow.
    if (!words[participants_word].equals(participants) || slots > region->size() || bytes(slots) > region->size()) {
        throw std::invalid_argument("it is too short for the number of slots in it");
    }
    return std::shared_ptr<ArenaTable>(new ArenaTable(std::move(region), slots, bell_descriptor));
}

AtomicWord* ArenaTable::row(std::uint64_t participant) const {
    if (participant >= participants) throw std::out_of_range("no such participant");
    return words_ + header_words + participant * row_words(slots_);
}

AtomicWord& ArenaTable::hold_word(std::uint64_t slot, std::uint64_t participant) const {
    if (slot >= slots_) throw std::out_of_range("no such slot");
    return row(participant)[holds_word + slot];
}

void ArenaTable::hold(std::uint64_t slot, std::uint64_t participant) {
    AtomicWord& count = hold_word(slot, participant);
    raise(rows_used_, participant + 1);
    raise(slots_used_, slot + 1);
    row(participant)[leased_word].add(1);  // first, so that `returned` never exceeds `leased`
    count.add(1);
}

bool ArenaTable::give_back(std::uint64_t slot, std::uint64_t participant) {
    AtomicWord& count = hold_word(slot, participant);
    std::uint64_t before = 0;
    do {
        before = count.load();
        if (before == 0) return false;
    } while (!count.compare_exchange(before, before - 1));
    row(participant)[returned_word].add(1);
    bell_.ring();
    return true;
}

std::uint64_t ArenaTable::holds(std::uint64_t slot, std::uint64_t participant) const {
    return hold_word(slot, participant).load();
}

bool ArenaTable::idle(std::uint64_t slot) const {
    const std::uint64_t used = rows_used_.load();
    for (std::uint64_t participant = 0; participant < used; ++participant) {
        if (!hold_word(slot, participant).equals(0)) return false;
    }
    return true;
}

std::uint64_t ArenaTable::leased() const {
    std::uint64_t total = 0;
    const std::uint64_t used = rows_used_.load();
    for (std::uint64_t participant = 0; participant < used; ++participant) total += leased(participant);
    return total;
}

std::uint64_t ArenaTable::returned() const {
    std::uint64_t total = 0;
    const std::uint64_t used = rows_used_.load();
    for (std::uint64_t participant = 0; participant < used; ++participant) total += returned(participant);
    return total;
}

void ArenaTable::acknowledge(std::uint64_t participant) {
    row(participant)[acknowledged_word].add(1);
    bell_.ring();
}

std::uint64_t ArenaTable::release(std::uint64_t participant) {
    AtomicWord* const words = row(participant);
    std::uint64_t holds = 0;
    const std::uint64_t used = slots_used_.load();
    for (std::uint64_t slot = 0; slot < used; ++slot) {
        if (!words[holds_word + slot].equals(0)) holds += words[holds_word + slot].exchange(0);
    }
    // It may have died after a count fell and before `returned` rose.
    words[returned_word].store(words[leased_word].load());
    bell_.ring_always();  // it may have died between the two steps of a ring
    return holds;
}

void ArenaTable::welcome(std::uint64_t participant) { row(participant)[acknowledged_word].store(0); }

ArenaParticipant::ArenaParticipant(std::shared_ptr<ArenaTable> table, std::uint64_t number)
    : table_(std::move(table)),
      number_(number),
      generation_(fork_generation()),
      adopted_(std::make_unique<Region>(number == 0 ? 0 : table_->slots() * sizeof(AtomicWord), false)) {
    if (number >= ArenaTable::participants) throw std::invalid_argument("there is no such participant");
}

std::unique_ptr<LeaseOwner::Entry> ArenaParticipant::open(std::uint64_t slot) {
    if (!here()) throw std::logic_error("a forked child can't use its parent's arena");
    if (slot >= table_->slots()) throw std::invalid_argument("the table has no such slot");
    auto entry = std::make_unique<Entry>(Entry{slot, nullptr});
    if (number_ == 0) {
        leased_slots_.push_back(slot);
        table_->hold(slot, number_);
        return entry;
    }
    // Each hold is adopted once. Counted before the check: of two threads that adopt the last hold, one is refused.
    if (adopted(slot).add(1) >= table_->holds(slot, number_)) {
        adopted(slot).add(-1);
        throw std::invalid_argument("no hold was added on this participant's behalf");
    }
    return entry;
}

void ArenaParticipant::close(std::unique_ptr<Entry> entry) noexcept {
    if (!here()) return;
    // In this order: once the shared count has fallen, the slot may be leased, and held for this participant, again;
    // that hold must not look adopted already.
    if (number_ != 0) adopted(entry->slot).add(-1);
    table_->give_back(entry->slot, number_);
}

std::vector<std::uint64_t> ArenaParticipant::take_idle() {
    std::vector<std::uint64_t> idle;
    const std::uint64_t returned = table_->returned();  // before the check: the next call sees later returns
    if (returned == seen_returned_) return idle;
    seen_returned_ = returned;
    std::erase_if(leased_slots_, [&](std::uint64_t slot) {
        if (!table_->idle(slot)) return false;
        idle.push_back(slot);
        return true;
    });
    return idle;
}

}  // namespace penstock
