// The claim protocol of the slot ring: compare-and-swap alone decides which worker writes which block of which batch.
//
// The problem: several workers compute the blocks of several batches, earliest batch first. A worker may be killed
// between any two instructions, and its blocks must be written again by others. A claim must cost well below a
// microsecond, since a block may take ten.
//
// The solution: all shared state is one array of 64-bit words, addressed by offsets, so the same code serves threads
// over private memory and processes over shared memory. A ring has slots, a slot holds one batch at a time, and a batch
// is divided into blocks of rows. Each block has one word, which holds the slot's generation g (the number of times it
// has been armed):
//
//     free(g) -> claimed(g, worker) -> done(g)          claimed(g, dead worker) -> free(g)
//
// Rejected:
//   - A lock in shared memory: a killed worker keeps it. A robust mutex reports that, but the data behind it is then
//     half changed, and every claim pays for the lock.
//   - One counter of the next block for each slot: a claim would be one addition, but the counter doesn't show which
//     blocks a dead worker had claimed.
//   - A counter of open blocks for each slot, so that readiness is one read: a worker that dies between its word and
//   the
//     counter makes the counter wrong for ever. Readiness is computed from the words at each call instead.
//   - Messages to each worker: two system calls for each block, and an idle worker can't help a slow one.
//
// Roles: the *owner* (one thread at a time) arms, cancels and retires; *workers* claim and finish; the *keeper* (any
// thread of the owner's process, beside the owner) releases the blocks of a dead worker. Every role may call `ready`.
//
// Guarantees, which hold at every interleaving of operations and with a death between any two:
//   - A block has at most one writer at a time, and is done once per generation, by a worker that finished writing it.
//   - A slot is ready only when every block was written; the merge block is claimed only when all row blocks were.
//   - A worker may die between any two operations, also asleep. Once it is released, other workers claim its blocks,
//   and
//     every wake-up that it may have received is repeated. Only a worker that has certainly ended may be released.
//   - After `cancel`, no free block is claimed; the slot is drained when the claimed blocks are finished or released.
//   - No role waits for another inside the protocol (no locks); `claim_wait` sleeps without losing a wake-up.
//   - For any contents of the words, which another process may have written, no access is outside of them.
//
// Torn reads are harmless: a claimer reads (armed, g) first and swaps free(g) last. If the swap succeeds, the slot has
// not left generation g in between, since it is retired only when all its words are done(g); so the number and shape
// that were read in between are those of g. If the slot did leave g, no word equals free(g) any more, and the swap
// fails.
//
// A death among the sleepers is harmless: a worker that dies between the two changes of `sleepers` remains counted, so
// `sleepers` is never lower than the number of sleepers, and at most one too high for each death. That costs `notify`
// one needless system call, for the life of the ring. A correction would need to know at which operation the worker
// died; a guess could make the count too low, which loses wake-ups. `release_worker` wakes all sleepers, which repeats
// the wake-up that a dying sleeper may have received.
//
// native/tests/test_ring_model.cpp explores all interleavings of this code, and checks that each of a list of planted
// faults is found.
//
// `Self` implements sleep and wake: sleep(ticket) returns at once when `wake_word` differs from the ticket, else after
// a wake (the check and the start of the sleep are one step); wake(count) wakes that many sleepers; ring_bell()
// notifies the consumer that a slot may be ready; ring_bell_always() does so even if the bell counts as rung already.
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
    std::uint64_t number = 0;  // the batch's number in delivery order
    bool merge = false;
};

// The encoding of a ring's words.
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

// The offsets of the words: a header, three arrays with one word a slot, then blocks + 1 words a slot.
struct RingLayout {
    std::uint64_t capacity;  // slots
    std::uint64_t blocks;    // row blocks of a slot, at most

    // The words that workers wait on are on their own cache line, apart from the words that they only read. `format`
    // identifies the memory to processes that attach to it; `rung` is the bell's word, by which other processes ring.
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

    // Owner: offers a batch of `blocks` row blocks, and one merge if `merge`, to the workers; at least one of both.
    void arm(std::uint64_t slot, std::uint64_t number, std::uint64_t blocks, bool merge) {
        const std::uint64_t state = word(layout_.state(slot)).load();
        require(Words::state_phase(state) == Words::idle, "only an idle slot can be armed");
        const std::uint64_t generation = Words::state_generation(state) + 1;
        self().describe(slot, number, blocks, merge, generation);
        if (word(RingLayout::used).load() <= slot) word(RingLayout::used).store(slot + 1);
        word(layout_.state(slot)).store(Words::state(generation, Words::armed));
        self().notify(blocks > 0 ? blocks : 1);
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

    // One round of claim_wait; true when it has ended. A round remembers nothing for the next.
    bool claim_round(std::uint64_t worker, std::optional<Claim>& claim) {
        const std::uint64_t ticket =
            word(RingLayout::wake).load();  // before the claim: a later change makes the sleep return at once
        if (stopped()) return true;
        claim = this->claim(worker);
        if (claim) return true;
        word(RingLayout::sleepers).add(1);
        self().sleep(ticket);
        word(RingLayout::sleepers).add(-1);
        return false;
    }

    // Worker: marks a block as written. Returns whether it saw the slot complete; then it has rung the consumer's bell.
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

    // Owner: makes a slot idle that is ready or drained.
    void retire(std::uint64_t slot) {
        const std::uint64_t state = word(layout_.state(slot)).load();
        require(ready(slot) || drained(slot), "only a slot that is ready or drained can be retired");
        word(layout_.state(slot)).store(Words::state(Words::state_generation(state), Words::idle));
    }

    // Owner: cancels an armed slot; only blocks already claimed are finished. Returns whether it is drained already.
    bool cancel(std::uint64_t slot) {
        const std::uint64_t state = word(layout_.state(slot)).load();
        require(Words::state_phase(state) != Words::idle, "only an armed slot can be cancelled");
        // First the phase, then the sweep: release_worker frees words first and reads the phase then, so at least one
        // of the two sees the other.
        word(layout_.state(slot)).store(Words::state(Words::state_generation(state), Words::draining));
        self().sweep(slot, Words::state_generation(state));
        return drained(slot);
    }

    // Keeper: frees the blocks of a worker that has certainly ended. Returns the number of them.
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

    // Owner: from now on every claim_wait returns without a claim.
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

    // The steps below are called through Self, so that the model test can replace one by a faulty one, and check that
    // it is found.

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
        // Rows that are done stay done in this generation, so a check before the swap is safe.
        if (Words::shape_merge(shape) && rows_done(slot, blocks, generation) &&
            self().claim_block(slot, blocks, generation, worker)) {
            return make_claim(slot, blocks, generation, number, true);
        }
        return std::nullopt;
    }

    bool claim_block(std::uint64_t slot, std::uint64_t block, std::uint64_t generation, std::uint64_t worker) {
        Word& word = this->word(layout_.block(slot, block));
        return word.equals(
                   Words::free(generation)) &&  // a read first leaves the cache line shared if the block is not free
               word.compare_exchange(Words::free(generation), Words::claimed(generation, worker));
    }

    // After a block is done: wakes the workers or the consumer that may wait for it. The slot may be in a later
    // generation by now; then nobody waits for this one, and a needless ring is harmless.
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

    // From the merge on: a swept row looks written, so the merge must not be free any more when the first row is swept.
    void sweep(std::uint64_t slot, std::uint64_t generation) {
        for (std::uint64_t block = word_count(shape(slot)); block-- > 0;) {
            word(layout_.block(slot, block)).compare_exchange(Words::free(generation), Words::done(generation));
        }
    }

    // Blocks freed in a cancelled slot are swept, too: the cancel may have ended, or not yet reached the merge.
    void drain_released(std::uint64_t slot, std::uint64_t generation) {
        if (word(layout_.state(slot)).equals(Words::state(generation, Words::draining))) self().sweep(slot, generation);
    }

    void wake_everyone() {
        word(RingLayout::wake).add(1);
        self().wake(Words::all);
        self().ring_bell_always();
    }

    // `count` workers can claim something new.
    void notify(std::uint64_t count) {
        word(RingLayout::wake).add(1);
        if (!word(RingLayout::sleepers).equals(0)) self().wake(count);
    }

    // From the last to the first: blocks are claimed in order, so the last is most likely to be unfinished.
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

    // One more than the highest slot that was ever armed.
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
