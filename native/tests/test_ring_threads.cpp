// The ring under real threads: workers that claim, write, die and are replaced, and an owner that consumes and cancels.
// Rows are plain memory on purpose, so that the thread sanitizer sees whether the words order what is written; but
// where a ring is mapped twice, the sanitizer takes one word at two addresses for two words, and plain rows for
// unordered.
#include <atomic>
#include <cstdio>
#include <memory>
#include <thread>
#include <vector>

#include "core/ring.hpp"

namespace {

using penstock::Bell;
using penstock::Claim;
using penstock::Ring;

std::atomic<int> failures{0};

void expect(bool condition, const char* what) {
    if (condition) return;
    std::printf("FAILED: %s\n", what);
    failures += 1;
}

enum class Words { one_process, shared, mapped_twice };

struct Run {
    std::uint64_t slots, blocks, batches;
    bool merge;
    int workers;
    std::uint64_t dies_every;     // a worker dies at each claim whose hash is a multiple; 0: never
    std::uint64_t cancels_every;  // each such batch is cancelled; 0: none
    Words words = Words::one_process;
};

std::uint64_t mix(std::uint64_t value) {
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB;
    return value ^ (value >> 31);
}

class Stage {
  public:
    explicit Stage(const Run& run)
        : run_(run),
          ring_(make_ring(run)),
          bell_(ring_->bell()),
          other_(run.words == Words::mapped_twice ? Ring::attach(ring_->descriptor(), bell_->fileno()) : nullptr),
          rows_(run.slots * run.blocks),
          sums_(run.slots) {}

    void play() {
        std::vector<std::thread> workers;
        for (int i = 0; i < run_.workers; ++i) {
            workers.emplace_back([this, i] { work(other_ && i % 2 == 0 ? *other_ : *ring_); });
        }
        const std::uint64_t ahead = std::min(run_.slots, run_.batches);
        for (std::uint64_t number = 0; number < ahead; ++number) arm(number);
        for (std::uint64_t number = 0; number < run_.batches; ++number) {
            const std::uint64_t slot = number % run_.slots;
            const bool cancelled = run_.cancels_every != 0 && number % run_.cancels_every == 0;
            if (cancelled) {
                if (!ring_->cancel(slot)) wait([&] { return ring_->drained(slot); });
            } else {
                wait([&] { return ring_->ready(slot); });
                check(slot, number);
            }
            ring_->retire(slot);
            if (number + run_.slots < run_.batches) arm(number + run_.slots);
        }
        ring_->stop();
        for (std::thread& worker : workers) worker.join();
    }

  private:
    // A worker's death is its return without finish; the same thread then continues under another number, as its
    // replacement after the keeper has seen to its blocks.
    void work(Ring& ring) {
        std::uint64_t worker = next_worker_++;
        while (const std::optional<Claim> claim = ring.claim_wait(worker)) {
            write(*claim);
            if (run_.dies_every != 0 && mix(deaths_seen_++) % run_.dies_every == 0) {
                ring.release_worker(worker);
                worker = next_worker_++;
                continue;
            }
            ring.finish(claim->slot, claim->block, worker);
        }
    }

    void write(const Claim& claim) {
        std::uint64_t* const rows = &rows_[claim.slot * run_.blocks];
        if (!claim.merge) {
            store(rows[claim.block], mix(claim.number * run_.blocks + claim.block));
            return;
        }
        std::uint64_t sum = 0;
        for (std::uint64_t block = 0; block < run_.blocks; ++block) sum += load(rows[block]);
        store(sums_[claim.slot], sum);
    }

    void arm(std::uint64_t number) { ring_->arm(number % run_.slots, number, run_.blocks, run_.merge); }

    template <class Condition>
    void wait(const Condition& condition) {
        while (!condition()) {
            bell_->clear();
            if (condition()) return;
            bell_->wait(std::nullopt);
        }
    }

    void check(std::uint64_t slot, std::uint64_t number) {
        std::uint64_t sum = 0;
        for (std::uint64_t block = 0; block < run_.blocks; ++block) {
            const std::uint64_t row = load(rows_[slot * run_.blocks + block]);
            expect(row == mix(number * run_.blocks + block), "every row of a ready batch is its own");
            sum += row;
        }
        if (run_.merge) expect(load(sums_[slot]) == sum, "the merge saw every row");
    }

    static std::unique_ptr<Ring> make_ring(const Run& run) {
        if (run.words != Words::one_process) return Ring::create_shared(run.slots, run.blocks);
        return std::make_unique<Ring>(run.slots, run.blocks, std::make_shared<Bell>());
    }

    std::uint64_t load(std::uint64_t& value) const {
        return other_ ? std::atomic_ref(value).load(std::memory_order_relaxed) : value;
    }
    void store(std::uint64_t& value, std::uint64_t written) const {
        if (other_) return std::atomic_ref(value).store(written, std::memory_order_relaxed);
        value = written;
    }

    Run run_;
    std::unique_ptr<Ring> ring_;
    std::shared_ptr<Bell> bell_;
    std::unique_ptr<Ring> other_;  // the same ring at another address
    std::vector<std::uint64_t> rows_, sums_;
    std::atomic<std::uint64_t> next_worker_{1}, deaths_seen_{0};
};

}  // namespace

int main() {
    const Run runs[] = {
        {.slots = 1, .blocks = 1, .batches = 3000, .merge = false, .workers = 2, .dies_every = 0, .cancels_every = 0},
        {.slots = 2, .blocks = 4, .batches = 3000, .merge = false, .workers = 3, .dies_every = 0, .cancels_every = 0},
        {.slots = 3, .blocks = 3, .batches = 3000, .merge = true, .workers = 4, .dies_every = 0, .cancels_every = 5},
        {.slots = 2, .blocks = 4, .batches = 3000, .merge = true, .workers = 3, .dies_every = 7, .cancels_every = 0},
        {.slots = 3, .blocks = 5, .batches = 3000, .merge = true, .workers = 4, .dies_every = 11, .cancels_every = 4},
        {.slots = 2, .blocks = 2, .batches = 3000, .merge = false, .workers = 1, .dies_every = 3, .cancels_every = 3},
    };
    for (const Run& run : runs) Stage(run).play();
#ifdef __linux__
    for (const Words words : {Words::shared, Words::mapped_twice}) {
        for (Run run : runs) {
            run.words = words;
            Stage(run).play();
        }
    }
#endif
    std::printf("ring under threads: %d failures\n", failures.load());
    return failures == 0 ? 0 : 1;
}
