// The claim protocol of the slot ring: who may write which block of which batch, decided by compare-and-swap alone.
//
// A ring has slots, a slot holds one batch at a time, a batch is cut into blocks of rows. All shared state is one array
// of 64-bit words, addressed by offsets, so the same code serves threads over private memory and processes over shared
// memory. Each block has one word, which carries the slot's generation g (how often it has been armed):
//
//     free(g) -> claimed(g, worker) -> done(g)          claimed(g, dead worker) -> free(g)
//
// Roles: the *owner* (one thread at a time) arms, cancels and retires; *workers* claim and finish; the *keeper* (any
// thread of the owner's process, beside the owner) releases what a dead worker held. Every role may call `ready`.
//
// Guarantees:
//   - A block has at most one writer at a time, and is done once per generation, by a worker that finished writing it.
//   - A slot is ready only when every block was written; the merge block is claimed only when all row blocks were.
//   - A worker may die between any two operations, asleep too. Once it is released, its blocks are claimed by others,
//     and every wake-up that may have died with it is given again. Only a worker that is certainly gone may be
//     released.
//   - After `cancel`, no block is claimed that was free; the slot drains when the claimed ones are finished or
//   released.
//   - Nobody waits for anybody inside the protocol (no locks); `claim_wait` sleeps without losing a wake-up.
//   - Whatever another process may have written into the words, no access lies outside of them.
//
// Why torn reads do no harm: a claimer reads (armed, g) first and swaps free(g) last. If the swap succeeds, the slot
// has not left generation g in between, since it is retired only when all its words are done(g); so number and shape,
// read in between, were those of g. If the slot did move on, no word equals free(g) any more, and the swap fails.
//
// Why a death among the sleepers does no harm: who dies between counting itself in and out stays counted, so `sleepers`
// is never lower than how many sleep, and too high by one a death at most. Too high costs `notify` one needless system
// call, for as long as the ring lives. To set it right would need to know where the dead one stood, and a guess could
// make it too low, which loses wake-ups. A wake-up that was spent on a dying sleeper is made good by release_worker,
// which wakes everyone.
//
// `Self` says how to sleep and wake: sleep(ticket) returns at once when `wake_word` differs from the ticket, else after
// a wake (checking and falling asleep are one step); wake(count) wakes that many sleepers; ring_bell() tells the
// consumer that a slot may be ready; ring_bell_always() does so whatever the bell believes has been said already.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <stdexcept>

namespace penstock {

// The right, held by one worker, to write one block of one batch.
struct Claim {
    std::uint32_t slot = 0;
    std::uint32_t block = 0;  // the merge is the block after the last row block
    std::uint64_t generation = 0;
    std::uint64_t number = 0;  // the batch's place in delivery order
    bool merge = false;
};

// What the words of a ring mean.
struct RingWords {
    static constexpr std::uint64_t max_slots = 1024;
    static constexpr std::uint64_t max_blocks = 1 << 20;
    static constexpr std::uint64_t max_worker = (1 << 22) - 1;
    static constexpr std::uint64_t all = std::numeric_limits<std::uint64_t>::max();

    // A slot's state: generation << 2 | phase.
    enum Phase : std::uint64_t { idle = 0, armed = 1, draining = 2 };
    static constexpr std::uint64_t state(std::uint64_t generation, Phase phase) { return generation << 2 | phase; }
    static constexpr std::uint64_t state_generation(std::uint64_t state) { return state >> 2; }
    static constexpr Phase state_phase(std::uint64_t state) { return static_cast<Phase>(state & 3); }

    // A block's word: generation << 24 | worker << 2 | kind.
    enum Kind : std::uint64_t { is_free = 0, is_claimed = 1, is_done = 2 };
    static constexpr std::uint64_t free(std::uint64_t generation) { return generation << 24 | is_free; }
    static constexpr std::uint64_t done(std::uint64_t generation) { return generation << 24 | is_done; }
    static constexpr std::uint64_t claimed(std::uint64_t generation, std::uint64_t worker) {
        return generation << 24 | worker << 2 | is_claimed;
    }

    // A slot's shape: row blocks << 1 | merge.
    static constexpr std::uint64_t shape(std::uint64_t blocks, bool merge) { return blocks << 1 | (merge ? 1 : 0); }
    static constexpr std::uint64_t shape_blocks(std::uint64_t shape) { return shape >> 1; }
    static constexpr bool shape_merge(std::uint64_t shape) { return (shape & 1) != 0; }
};

// Where the words lie: a header, three arrays with one word a slot, then blocks + 1 words a slot.
struct RingLayout {
    std::uint64_t capacity;  // slots
    std::uint64_t blocks;    // row blocks of a slot, at most

    // What workers wait on lies on its own cache line, apart from what they only read. `format` says what this memory
    // is, to those who attach to it; `rung` is the bell's word, where other processes ring it.
    static constexpr std::size_t capacity_word = 0, blocks_word = 1, used = 2, stopped = 3, format = 4;
    static constexpr std::size_t wake = 8, sleepers = 9, rung = 10;
    static constexpr std::size_t header = 16;

    std::size_t state(std::uint64_t slot) const { return header + slot; }
    std::size_t number(std::uint64_t slot) const { return header + capacity + slot; }
    std::size_t shape(std::uint64_t slot) const { return header + 2 * capacity + slot; }
    std::size_t block(std::uint64_t slot, std::uint64_t block) const {
        return header + 3 * capacity + slot * (blocks + 1) + block;
    }
    std::size_t size() const { return block(capacity, 0); }
};

template <class Self, class Word>
class RingProtocol {
  public:
    using Words = RingWords;

    // `region` holds layout.size() words, all zero in a new ring; it must outlive this object.
    RingProtocol(Word* region, RingLayout layout) : region_(region), layout_(layout) {}

    const RingLayout& layout() const { return layout_; }

    // Owner: hands a batch of `blocks` row blocks, and one merge if asked for, to the workers.
    void arm(std::uint64_t slot, std::uint64_t number, std::uint64_t blocks, bool merge) {
        const std::uint64_t state = word(layout_.state(slot)).load();
        require(Words::state_phase(state) == Words::idle, "only an idle slot can be armed");
        const std::uint64_t generation = Words::state_generation(state) + 1;
        self().describe(slot, number, blocks, merge, generation);
        if (word(RingLayout::used).load() <= slot) word(RingLayout::used).store(slot + 1);
        word(layout_.state(slot)).store(Words::state(generation, Words::armed));
        self().notify(blocks);
    }

    // Worker: claims a free block of the earliest batch that has one; never waits.
    std::optional<Claim> claim(std::uint64_t worker) {
        std::array<Candidate, Words::max_slots> candidates;  // only the first `count` are set
        std::size_t count = 0;
        const std::uint64_t used = this->used();
        for (std::uint64_t slot = 0; slot < used; ++slot) {
            const std::uint64_t state = word(layout_.state(slot)).load();
            if (Words::state_phase(state) != Words::armed) continue;
            candidates[count++] = {slot, Words::state_generation(state), word(layout_.number(slot)).load()};
        }
        while (count > 0) {
            std::size_t earliest = 0;
            for (std::size_t i = 1; i < count; ++i) {
                if (candidates[i].number < candidates[earliest].number) earliest = i;
            }
            if (auto claim = self().claim_in(candidates[earliest], worker)) return claim;
            candidates[earliest] = candidates[--count];
        }
        return std::nullopt;
    }

    // Worker: sleeps until a block could be claimed, or returns nothing once the ring is stopped.
    std::optional<Claim> claim_wait(std::uint64_t worker) {
        std::optional<Claim> claim;
        while (!self().claim_round(worker, claim)) {
        }
        return claim;
    }

    // One round of claim_wait; true when it is over. Nothing is carried from one round to the next.
    bool claim_round(std::uint64_t worker, std::optional<Claim>& claim) {
        const std::uint64_t ticket = word(RingLayout::wake).load();  // before looking: what comes later changes it
        if (stopped()) return true;
        claim = this->claim(worker);
        if (claim) return true;
        word(RingLayout::sleepers).add(1);
        self().sleep(ticket);
        word(RingLayout::sleepers).add(-1);
        return false;
    }

    // Worker: the block is written. Returns whether that was seen to complete the slot; the consumer's bell was rung
    // then.
    bool finish(std::uint64_t slot, std::uint64_t block, std::uint64_t worker) {
        // The slot keeps its generation while one of its blocks is claimed.
        const std::uint64_t generation = Words::state_generation(word(layout_.state(slot)).load());
        require(word(layout_.block(slot, block))
                    .compare_exchange(Words::claimed(generation, worker), Words::done(generation)),
                "only the worker that holds a block can finish it");
        return self().announce(slot, generation);
    }

    // Whether every block of the armed slot was written. Recomputed from the words at each call.
    bool ready(std::uint64_t slot) const { return all_done(slot, Words::armed); }

    // Whether the cancelled slot has no writer left.
    bool drained(std::uint64_t slot) const { return all_done(slot, Words::draining); }

    // Owner: takes back a slot that is ready or drained.
    void retire(std::uint64_t slot) {
        const std::uint64_t state = word(layout_.state(slot)).load();
        require(ready(slot) || drained(slot), "only a slot that is ready or drained can be retired");
        word(layout_.state(slot)).store(Words::state(Words::state_generation(state), Words::idle));
    }

    // Owner: gives up an armed slot; only blocks already claimed are finished. Returns whether it is drained already.
    bool cancel(std::uint64_t slot) {
        const std::uint64_t state = word(layout_.state(slot)).load();
        require(Words::state_phase(state) != Words::idle, "only an armed slot can be cancelled");
        // First the mark, then the sweep: release_worker frees words first, then looks for the mark, so that one of the
        // two sees the other.
        word(layout_.state(slot)).store(Words::state(Words::state_generation(state), Words::draining));
        self().sweep(slot, Words::state_generation(state));
        return drained(slot);
    }

    // Keeper: gives the blocks of a worker that is certainly gone to others. Returns how many it held.
    std::uint64_t release_worker(std::uint64_t worker) {
        std::uint64_t released = 0;
        const std::uint64_t used = this->used();
        for (std::uint64_t slot = 0; slot < used; ++slot) {
            const std::uint64_t generation = Words::state_generation(word(layout_.state(slot)).load());
            const std::uint64_t words = word_count(shape(slot));
            std::uint64_t freed = 0;
            for (std::uint64_t block = 0; block < words; ++block) {
                Word& held = word(layout_.block(slot, block));
                freed += held.compare_exchange(Words::claimed(generation, worker), Words::free(generation)) ? 1 : 0;
            }
            if (freed > 0) self().drain_released(slot, generation);
            released += freed;
        }
        self().wake_everyone();
        return released;
    }

    // Owner: every claim_wait returns without a claim from now on.
    void stop() {
        word(RingLayout::stopped).store(1);
        wake_everyone();
    }

    bool stopped() const { return !word(RingLayout::stopped).equals(0); }

    // The word that sleepers wait on: it changes whenever something may have become claimable.
    Word& wake_word() { return word(RingLayout::wake); }

  protected:
    struct Candidate {
        std::uint64_t slot, generation, number;
    };

    // The steps below are looked up in Self, so that the model test can replace one by a broken one and see it caught.

    void describe(std::uint64_t slot, std::uint64_t number, std::uint64_t blocks, bool merge,
                  std::uint64_t generation) {
        word(layout_.number(slot)).store(number);
        word(layout_.shape(slot)).store(Words::shape(blocks, merge));
        for (std::uint64_t block = 0; block < blocks + (merge ? 1 : 0); ++block) {
            word(layout_.block(slot, block)).store(Words::free(generation));
        }
    }

    std::optional<Claim> claim_in(const Candidate& candidate, std::uint64_t worker) {
        const auto [slot, generation, number] = candidate;
        const std::uint64_t shape = this->shape(slot);
        const std::uint64_t blocks = Words::shape_blocks(shape);
        for (std::uint64_t block = 0; block < blocks; ++block) {
            if (self().claim_block(slot, block, generation, worker)) {
                return make_claim(slot, block, generation, number, false);
            }
        }
        // Rows that are done stay done in this generation, so looking first and swapping later is safe.
        if (Words::shape_merge(shape) && rows_done(slot, blocks, generation) &&
            self().claim_block(slot, blocks, generation, worker)) {
            return make_claim(slot, blocks, generation, number, true);
        }
        return std::nullopt;
    }

    bool claim_block(std::uint64_t slot, std::uint64_t block, std::uint64_t generation, std::uint64_t worker) {
        Word& word = this->word(layout_.block(slot, block));
        return word.equals(Words::free(generation)) &&  // looking first leaves the line shared where nothing is free
               word.compare_exchange(Words::free(generation), Words::claimed(generation, worker));
    }

    // After a block is done: tells who may be waiting for it. The slot may be in a later generation by now; then nobody
    // waits for this one, and what is rung needlessly does no harm.
    bool announce(std::uint64_t slot, std::uint64_t generation) {
        const std::uint64_t shape = this->shape(slot);
        const std::uint64_t blocks = Words::shape_blocks(shape);
        if (!rows_done(slot, blocks, generation)) return false;
        if (Words::shape_merge(shape)) {
            const Word& merge = word(layout_.block(slot, blocks));
            if (merge.equals(Words::free(generation))) self().notify(1);
            if (!merge.equals(Words::done(generation))) return false;
        }
        self().ring_bell();
        return true;
    }

    // The merge goes first: rows that are swept look written, and nobody may merge those.
    void sweep(std::uint64_t slot, std::uint64_t generation) {
        for (std::uint64_t block = word_count(shape(slot)); block-- > 0;) {
            word(layout_.block(slot, block)).compare_exchange(Words::free(generation), Words::done(generation));
        }
    }

    // Blocks freed in a cancelled slot are swept like all others: the cancel may be over, or not yet at the merge.
    void drain_released(std::uint64_t slot, std::uint64_t generation) {
        if (word(layout_.state(slot)).equals(Words::state(generation, Words::draining))) self().sweep(slot, generation);
    }

    void wake_everyone() {
        word(RingLayout::wake).add(1);
        self().wake(Words::all);
        self().ring_bell_always();
    }

    // Something became claimable for `count` workers.
    void notify(std::uint64_t count) {
        word(RingLayout::wake).add(1);
        if (!word(RingLayout::sleepers).equals(0)) self().wake(count);
    }

    // From the last to the first: blocks are claimed in order, so the last is most likely to be open still.
    bool rows_done(std::uint64_t slot, std::uint64_t blocks, std::uint64_t generation) const {
        for (std::uint64_t block = blocks; block-- > 0;) {
            if (!word(layout_.block(slot, block)).equals(Words::done(generation))) return false;
        }
        return true;
    }

    bool all_done(std::uint64_t slot, RingWords::Phase phase) const {
        const std::uint64_t state = word(layout_.state(slot)).load();
        if (Words::state_phase(state) != phase) return false;
        const std::uint64_t words = word_count(shape(slot));
        return rows_done(slot, words, Words::state_generation(state));
    }

    // How many slots were ever armed.
    std::uint64_t used() const { return std::min(word(RingLayout::used).load(), layout_.capacity); }

    std::uint64_t shape(std::uint64_t slot) const {
        return std::min(word(layout_.shape(slot)).load(), Words::shape(layout_.blocks, true));
    }

    static std::uint64_t word_count(std::uint64_t shape) {
        return Words::shape_blocks(shape) + (Words::shape_merge(shape) ? 1 : 0);
    }

    static Claim make_claim(std::uint64_t slot, std::uint64_t block, std::uint64_t generation, std::uint64_t number,
                            bool merge) {
        return {static_cast<std::uint32_t>(slot), static_cast<std::uint32_t>(block), generation, number, merge};
    }

    static void require(bool condition, const char* rule) {
        if (!condition) throw std::logic_error(rule);
    }

    Word& word(std::size_t index) const { return region_[index]; }
    Self& self() { return static_cast<Self&>(*this); }

    Word* region_;
    RingLayout layout_;
};

}  // namespace penstock
