#include "core/step_times.hpp"

#include <time.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace penstock {

namespace {

constexpr double cpu_each_seconds = 0.05;  // one block in so much time, and of steps that are no part of one, of each

double seconds_of(clockid_t clock) {
    timespec time{};
    clock_gettime(clock, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// The clocks of Python's time.perf_counter and time.thread_time.
#ifdef __APPLE__
double now() { return static_cast<double>(clock_gettime_nsec_np(CLOCK_UPTIME_RAW)) * 1e-9; }
#else
double now() { return seconds_of(CLOCK_MONOTONIC); }
#endif
double cpu_now() { return seconds_of(CLOCK_THREAD_CPUTIME_ID); }

}  // namespace

int bucket_of(double seconds) noexcept {
    if (seconds >= longest_seconds) return bucket_count - 1;
    if (!(seconds >= shortest_seconds)) return 0;
    int exponent = 0;
    const double mantissa = std::frexp(seconds, &exponent);  // in [1/2, 1), so twice as many steps begin at 1
    const int lowest_exponent = -23;                         // of the shortest duration
    const int within = static_cast<int>(mantissa * (2 * buckets_each_doubling)) - buckets_each_doubling;
    return (exponent - lowest_exponent) * buckets_each_doubling + within;
}

StepTimes::StepTimes(std::span<double> words, const Numbers& numbers, std::size_t steps, std::size_t step_words)
    : words_(words),
      step_words_(step_words),
      other_(whole_words + step_words * steps),
      first_lap_(other_ + step_words),
      next_cpu_of_(steps + 1) {
    if (step_words < least_step_words || words.size() < first_lap_ + lap_words * kept_laps) {
        throw std::invalid_argument("the times need more words");
    }
    for (const auto& [step, number] : numbers) places_[step] = whole_words + step_words * std::min(number, steps);
    laps_ = static_cast<std::size_t>(words[laps_word]);
}

void StepTimes::start(std::int64_t rows) {
    words_[rows_word] += static_cast<double>(rows);
    begin_taking_cpu(next_cpu_);
    is_outermost_ = true;
}

void StepTimes::begin(std::uintptr_t step) {
    begin_taking_cpu(next_cpu_of_[(place_of(step) - whole_words) / step_words_]);
}

void StepTimes::begin_taking_cpu(double& next_cpu) {
    mark_ = now();
    takes_cpu_ = mark_ > next_cpu;
    if (!takes_cpu_) return;
    next_cpu = mark_ + cpu_each_seconds;
    cpu_ = cpu_now();
    mark_ = now();
}

void StepTimes::resume() {
    mark_ = now();
    if (takes_cpu_) cpu_ = cpu_now();
}

void StepTimes::lap(std::uintptr_t step, std::int64_t elements, std::int64_t weight) {
    const double end = now(), seconds = end - mark_;
    mark_ = end;
    const std::size_t at = add(step, seconds, elements, weight);
    if (seconds > noted_seconds) {
        double* const place = &words_[first_lap_ + lap_words * (laps_ % kept_laps)];
        place[0] = static_cast<double>(at);
        place[1] = end;
        place[2] = seconds;
        words_[laps_word] = static_cast<double>(++laps_);
    }
    if (takes_cpu_) {
        const double cpu = cpu_now();
        words_[at + cpu_seconds_word] += cpu - cpu_;
        words_[at + cpu_of_seconds_word] += seconds;
        cpu_ = cpu;
    }
}

std::size_t StepTimes::place_of(std::uintptr_t step) const {
    const auto found = places_.find(step);
    return found == places_.end() ? other_ : found->second;
}

void LockWaits::add(double each) noexcept {
    constexpr double is_long = 0.0025;  // half of Python's switch interval
    seconds += each;
    count += 1;
    if (each >= is_long) long_count += 1;
}

void StepTimes::add_lock_waits(const LockWaits& waits) {
    words_[lock_seconds_word] += waits.seconds;
    words_[lock_waits_word] += waits.count;
    words_[long_lock_waits_word] += waits.long_count;
}

void StepTimes::count(std::uintptr_t step, std::size_t word, double amount) {
    if (word >= step_words_) throw std::out_of_range("a step has no such word");
    words_[place_of(step) + word] += amount;
}

std::size_t StepTimes::add(std::uintptr_t step, double seconds, std::int64_t elements, std::int64_t weight) {
    total_ += seconds;
    const std::size_t at = place_of(step);
    const auto count = static_cast<double>(elements), times = static_cast<double>(weight);
    words_[at + seconds_word] += seconds * times;
    words_[at + elements_word] += count * times;
    if (elements != 0 && seconds > noted_seconds) {
        words_[at + histogram_word + static_cast<std::size_t>(bucket_of(seconds / count))] += count * times;
    }
    return at;
}

double StepTimes::begin_around() const { return now() - total_; }

double StepTimes::end_around(std::uintptr_t step, double mark, std::int64_t elements) {
    const double seconds = std::max(begin_around() - mark, 0.0);
    add(step, seconds, elements, 1);
    return seconds;
}

std::optional<StepTimes::Mark> StepTimes::enter() {
    if (is_outermost_) {
        is_outermost_ = false;
        return std::nullopt;
    }
    const double time = now();
    const double before = time - mark_;
    mark_ = time;
    if (!takes_cpu_) return Mark{before, 0.0};
    const double cpu = cpu_now();
    const double cpu_before = cpu - cpu_;
    cpu_ = cpu;
    return Mark{before, cpu_before};
}

void StepTimes::leave(const std::optional<Mark>& before) {
    if (!before) return;
    mark_ -= before->first;
    cpu_ -= before->second;
}

WaitTimes::WaitTimes(std::span<double> words) : words_(words) {
    if (words.size() < wait_words) throw std::invalid_argument("the waits need more words");
}

void WaitTimes::note(std::size_t cause, double requested, double received, double last) {
    if (cause >= most_causes) throw std::out_of_range("there is no such cause");
    const double waited = received - requested, between = requested - last;
    if (between > noted_seconds) words_[between_histogram_word + static_cast<std::size_t>(bucket_of(between))] += 1;
    if (!(waited > noted_seconds)) return;
    words_[cause] += waited;
    words_[waits_histogram_word + static_cast<std::size_t>(bucket_of(waited))] += 1;
    const auto number = static_cast<std::size_t>(words_[waits_word]++);
    double* const place = &words_[first_wait_word + lap_words * (number % kept_laps)];
    place[0] = static_cast<double>(cause);
    place[1] = received;
    place[2] = waited;
}

}  // namespace penstock
