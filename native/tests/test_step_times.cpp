// Times of steps: exact sums, laps in a ring, and buckets whose bounds are those of the durations.
#include "core/step_times.hpp"

#include <chrono>
#include <cmath>
#include <cstdio>
#include <stdexcept>
#include <vector>

namespace {

int failures = 0;

void check(bool held, const char* rule) {
    if (!held) {
        std::printf("failed: %s\n", rule);
        ++failures;
    }
}

double seconds_since(std::chrono::steady_clock::time_point began) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

// Spends a time that is noted; returns its seconds.
double spend() {
    const auto began = std::chrono::steady_clock::now();
    volatile double sum = 0;
    for (int i = 0; i < 200'000; ++i) sum = sum + std::sqrt(static_cast<double>(i));
    return seconds_since(began);
}

}  // namespace

int main() {
    using namespace penstock;
    check(bucket_of(0) == 0 && bucket_of(-1) == 0 && bucket_of(std::nan("")) == 0,
          "the shortest durations share a bucket");
    check(bucket_of(shortest_seconds) == 0, "the first bucket begins at the shortest duration");
    check(bucket_of(longest_seconds) == bucket_count - 1, "the longest durations share a bucket");
    check(bucket_of(std::nextafter(longest_seconds, 0)) == bucket_count - 1, "the last bucket ends there");
    check(bucket_of(2.0) - bucket_of(1.0) == buckets_each_doubling, "a factor of two is a number of buckets");
    check(bucket_of(1.0 + 1.0 / 16) == bucket_of(1.0) + 1, "buckets within a factor of two have equal widths");

    constexpr std::size_t step_words = least_step_words + 1;
    std::vector<double> words(whole_words + 3 * step_words + lap_words * kept_laps);
    StepTimes times(words, {{10, 0}, {20, 1}, {30, 7}}, 2, step_words);
    const auto of = [&](std::size_t step, std::size_t word) { return words[whole_words + step_words * step + word]; };
    const auto began = std::chrono::steady_clock::now();
    times.start(5);
    check(!times.enter().has_value(), "no step evaluates the outermost block");
    const double spent = spend();
    times.lap(10, 4, 1);
    times.lap(20, 3, 2);
    times.lap(30, 1, 1);  // a number beyond the steps
    times.lap(40, 1, 1);  // an unknown step
    // Another program may have the processor between two laps, so no time of a step is short for certain. The second
    // lap stands for two calls.
    const double others = 2 * (seconds_since(began) - spent);
    times.work(1.5);
    check(words[rows_word] == 5 && words[busy_word] == 1.5, "rows and work are added up");
    check(of(0, elements_word) == 4 && of(1, elements_word) == 6 && of(2, elements_word) == 2, "so are elements");
    check(of(0, seconds_word) >= spent && of(1, seconds_word) <= others, "a time is its step's");
    check(of(0, cpu_of_seconds_word) > 0, "the first block is measured in processor time, too");
    double counted = 0;
    for (int bucket = 0; bucket < bucket_count; ++bucket)
        counted += of(0, histogram_word + static_cast<std::size_t>(bucket));
    check(counted == 4, "the elements of a noted time are in its histogram");
    const std::size_t ring = whole_words + 3 * step_words;
    check(words[laps_word] >= 1 && words[ring] == whole_words && words[ring + 2] == of(0, seconds_word), "it is a lap");

    LockWaits waits;
    waits.add(0.001);
    waits.add(0.005);
    times.add_lock_waits(waits);
    check(words[lock_seconds_word] == 0.006 && words[lock_waits_word] == 2 && words[long_lock_waits_word] == 1,
          "waits for the interpreter's lock are added up, and those of half a switch interval counted apart");

    times.start(0);
    times.enter();
    spend();
    const auto before = times.enter();
    check(before.has_value() && before->first > noted_seconds, "a parent's block begins with the time of the step");
    times.lap(10, 0, 1);
    times.leave(before);
    const double seconds = of(1, seconds_word);
    times.lap(20, 0, 1);
    check(of(1, seconds_word) - seconds >= before->first, "the step's time continues after its parent's block");

    const double mark = times.begin_around();
    spend();
    const double inner = times.begin_around(), of_first = of(0, seconds_word),
                 cpu_of_first = of(0, cpu_of_seconds_word);
    times.begin(10);
    spend();
    times.lap(10, 1, 1);
    check(of(0, seconds_word) > of_first + noted_seconds, "a step that is no part of a block has a time");
    check(of(0, cpu_of_seconds_word) > cpu_of_first, "the first one is measured in processor time, too");
    times.leave_out(1000);
    check(times.end_around(20, inner, 1) == 0, "a time around other steps is what they leave of it");
    times.leave_out(-1000);
    check(times.end_around(20, mark, 1) > noted_seconds && of(1, elements_word) == 8, "so is one around another one");

    words[laps_word] = kept_laps + 1;
    StepTimes later(words, {{10, 0}}, 2, step_words);
    later.start(0);
    spend();
    later.lap(10, 1, 1);
    check(words[laps_word] == kept_laps + 2 && words[ring + lap_words] == whole_words, "laps continue in a ring");

    times.count(20, least_step_words, 2.5);
    check(of(1, least_step_words) == 2.5, "other numbers of a step are added up");
    int refused = 0;
    try {
        StepTimes(std::span(words).first(words.size() - 1), {}, 2, step_words);
    } catch (const std::invalid_argument&) {
        ++refused;
    }
    try {
        times.count(20, step_words, 1);
    } catch (const std::out_of_range&) {
        ++refused;
    }
    check(refused == 2, "too few words, and a word that a step doesn't have, are refused");

    std::vector<double> waited(wait_words);
    WaitTimes waits_of(waited);
    const auto noted = [&](std::size_t histogram) {
        double sum = 0;
        for (std::size_t bucket = 0; bucket < bucket_count; ++bucket) sum += waited[histogram + bucket];
        return sum;
    };
    waits_of.note(3, 10.0, 10.5, 10.0);
    waits_of.note(3, 11.0, 11.25, 10.5);
    waits_of.note(4, 12.0, 12.00001, 11.25);
    check(waited[3] == 0.75 && waited[4] == 0 && waited[waits_word] == 2, "noted waits are added up by their cause");
    check(noted(waits_histogram_word) == 2 && noted(between_histogram_word) == 2, "short times are in no histogram");
    check(waited[waits_histogram_word + static_cast<std::size_t>(bucket_of(0.25))] == 1, "a wait is in its bucket");
    check(waited[first_wait_word] == 3 && waited[first_wait_word + 1] == 10.5 && waited[first_wait_word + 2] == 0.5,
          "a noted wait is in the ring");
    waited[waits_word] = kept_laps + 1;
    waits_of.note(5, 20.0, 21.0, 20.0);
    check(waited[first_wait_word + lap_words] == 5, "waits continue in a ring");
    refused = 0;
    try {
        waits_of.note(most_causes, 0, 1, 0);
    } catch (const std::out_of_range&) {
        ++refused;
    }
    try {
        WaitTimes(std::span(waited).first(waited.size() - 1));
    } catch (const std::invalid_argument&) {
        ++refused;
    }
    check(refused == 2, "a cause that there isn't, and too few words, are refused");
    return failures == 0 ? 0 : 1;
}
