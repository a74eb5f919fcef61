// The times that one thread has spent in each step of a dataset, and the waits of a consumer; `penstock._readings`
// explains them, and reads them.
//
// A block of rows reads the clock once or twice for each step, also where the rows take a microsecond. In Python a
// reading cost two thirds of a microsecond; here it costs a tenth.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace penstock {

// A histogram of durations: each factor of two has `buckets_each_doubling` buckets of equal width.
constexpr double shortest_seconds = 1.0 / (1 << 24);  // shorter durations count as this long
constexpr double longest_seconds = 1 << 15;           // longer durations count as this long
constexpr int buckets_each_doubling = 16;
constexpr int bucket_count = (24 + 15) * buckets_each_doubling;

// Returns the number of the bucket of a duration.
int bucket_of(double seconds) noexcept;

// Shorter times of a block are only added up.
constexpr double noted_seconds = 50e-6;

// The memory of the times, in words: those of the whole, of each step, and the latest laps in a ring.
constexpr std::size_t rows_word = 0, busy_word = 1, laps_word = 2;
constexpr std::size_t lock_seconds_word = 3, lock_waits_word = 4, long_lock_waits_word = 5;
constexpr std::size_t whole_words = 8;
constexpr std::size_t seconds_word = 0, elements_word = 1, cpu_seconds_word = 2, cpu_of_seconds_word = 3;
constexpr std::size_t histogram_word = 4;
constexpr std::size_t least_step_words = histogram_word + bucket_count;  // further ones are `count`ed
constexpr std::size_t lap_words = 3;  // the place of the step's words, the end, the seconds
constexpr std::size_t kept_laps = 1 << 12;

// Waits for the interpreter's lock, of threads that have slept without it.
struct LockWaits {
    double seconds = 0, count = 0, long_count = 0;

    void add(double each) noexcept;
};

class StepTimes {
  public:
    using Mark = std::pair<double, double>;
    // The number of each step, by its address; numbers from `steps` on stand for the others.
    using Numbers = std::unordered_map<std::uintptr_t, std::size_t>;

    // Each step has `step_words` words. The words are used as long as the object, and laps continue after those that
    // they hold.
    StepTimes(std::span<double> words, const Numbers& numbers, std::size_t steps, std::size_t step_words);

    // Begins a block of rows of the dataset; the time of its first step counts from now on.
    void start(std::int64_t rows);

    // Begins a step of the same block; the time since the last call is no step's.
    void resume();

    // Begins a step that is no part of a block.
    void begin(std::uintptr_t step);

    // Ends a step: the time since the last call is the step's. It stands for `weight` such calls, of which the others
    // were not measured.
    void lap(std::uintptr_t step, std::int64_t elements, std::int64_t weight);

    // Begins a time in which other steps may be computed; returns a mark for `end_around`.
    double begin_around() const;

    // Ends that time. The step's is what no other step has taken of it; returns its seconds.
    double end_around(std::uintptr_t step, double mark, std::int64_t elements);

    // Leaves a wait for other threads out of a time that `begin_around` began.
    void leave_out(double seconds) { total_ += seconds; }

    // Adds the time of all work at a block, steps included.
    void work(double seconds) { words_[busy_word] += seconds; }

    // Adds waits for the interpreter's lock.
    void add_lock_waits(const LockWaits& waits);

    // Adds to a word of a step, for a number that isn't a time.
    void count(std::uintptr_t step, std::size_t word, double amount);

    // Begins a block of a step's parent; returns the time that the step has taken so far, for `leave`. For the
    // outermost block, which no step evaluates, this is nothing.
    std::optional<Mark> enter();

    // Ends the block of the parent, whose steps have ended: from now on, time is that of the step above it.
    void leave(const std::optional<Mark>& before);

  private:
    void begin_taking_cpu(double& next_cpu);
    std::size_t place_of(std::uintptr_t step) const;
    std::size_t add(std::uintptr_t step, double seconds, std::int64_t elements, std::int64_t weight);

    std::span<double> words_;
    Numbers places_;  // the first word of each step
    std::size_t step_words_;
    std::size_t other_;
    std::size_t first_lap_;
    std::size_t laps_;
    double mark_ = 0, cpu_ = 0, next_cpu_ = 0;
    std::vector<double> next_cpu_of_;  // of each step, where it is no part of a block
    double total_ = 0;                 // recorded seconds
    bool is_outermost_ = false;        // whether the next call of `enter` is for the block that `start` began
    bool takes_cpu_ = false;
};

// The memory of waits, in words: their seconds by cause, their number, the histograms of them and of the times between
// two requests, and the latest waits in a ring.
constexpr std::size_t most_causes = 15;
constexpr std::size_t waits_word = most_causes;
constexpr std::size_t waits_histogram_word = waits_word + 1;
constexpr std::size_t between_histogram_word = waits_histogram_word + bucket_count;
constexpr std::size_t first_wait_word = between_histogram_word + bucket_count;
constexpr std::size_t wait_words = first_wait_word + lap_words * kept_laps;

// The waits of one consumer. A training may note thousands in a second, between which it uses the caches for itself.
class WaitTimes {
  public:
    // The words are used as long as the object.
    explicit WaitTimes(std::span<double> words);

    // Notes the wait from a request to a delivery by its cause, and the time since the delivery before: each if it is
    // longer than `noted_seconds`.
    void note(std::size_t cause, double requested, double received, double last);

  private:
    std::span<double> words_;
};

}  // namespace penstock
