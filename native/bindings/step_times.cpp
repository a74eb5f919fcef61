// Binds StepTimes and WaitTimes, with the layout of their words. The wrapper is penstock._readings.
#include "core/step_times.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "bindings/lock_waits.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace penstock::bindings {

namespace {

thread_local LockWaits waits_of_thread;

}  // namespace

LockWaits& lock_waits_of_thread() noexcept { return waits_of_thread; }

namespace {

void add_lock_waits(StepTimes& times) { times.add_lock_waits(std::exchange(waits_of_thread, {})); }

using Words = nb::ndarray<double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Owns the array of its words.
class BoundStepTimes : public StepTimes {
  public:
    BoundStepTimes(const Words& words, const Numbers& numbers, std::size_t steps, std::size_t step_words)
        : StepTimes({words.data(), words.size()}, numbers, steps, step_words), held_(words) {}

  private:
    Words held_;
};

void construct(BoundStepTimes* self, const Words& words, const nb::dict& numbers, std::size_t steps,
               std::size_t step_words) {
    StepTimes::Numbers known;
    for (const auto [identity, number] : numbers) {
        known[nb::cast<std::uintptr_t>(identity)] = nb::cast<std::size_t>(number);
    }
    new (self) BoundStepTimes(words, known, steps, step_words);
}

// Owns the array of its words.
class BoundWaitTimes : public WaitTimes {
  public:
    explicit BoundWaitTimes(const Words& words) : WaitTimes({words.data(), words.size()}), held_(words) {}

  private:
    Words held_;
};

std::uintptr_t identity_of(nb::handle step) { return reinterpret_cast<std::uintptr_t>(step.ptr()); }

}  // namespace

void bind_step_times(nb::module_& module) {
    module.def("bucket_of", &bucket_of, "seconds"_a, "Return the number of the bucket of a duration.");
    nb::class_<BoundStepTimes>(module, "StepTimes", "The times that one thread has spent in each step of a dataset.")
        .def("__init__", &construct, "words"_a, "numbers"_a, "steps"_a, "step_words"_a,
             "Continue the times in an array, given the number of each step by its identity.")
        .def(
            "start", [](BoundStepTimes& self, std::int64_t rows) { self.start(rows); }, "rows"_a,
            "Begin a block of rows of the dataset; the time of its first step counts from now on.")
        .def(
            "resume", [](BoundStepTimes& self) { self.resume(); },
            "Begin a step of the same block; the time since the last call is no step's.")
        .def(
            "begin", [](BoundStepTimes& self, nb::handle step) { self.begin(identity_of(step)); }, "step"_a.none(),
            "Begin a step that is no part of a block.")
        .def(
            "lap",
            [](BoundStepTimes& self, nb::handle step, std::int64_t elements, std::int64_t weight) {
                self.lap(identity_of(step), elements, weight);
            },
            "step"_a.none(), "elements"_a, "weight"_a = 1,
            "End a step: the time since the last call is the step's. It stands for `weight` such calls.")
        .def(
            "begin_around", [](const BoundStepTimes& self) { return self.begin_around(); },
            "Begin a time in which other steps may be computed; return a mark for `end_around`.")
        .def(
            "end_around",
            [](BoundStepTimes& self, nb::handle step, double mark, std::int64_t elements) {
                return self.end_around(identity_of(step), mark, elements);
            },
            "step"_a.none(), "mark"_a, "elements"_a,
            "End that time; what no other step has taken of it is the step's. Return these seconds.")
        .def(
            "leave_out", [](BoundStepTimes& self, double seconds) { self.leave_out(seconds); }, "seconds"_a,
            "Leave a wait for other threads out of a time that `begin_around` began.")
        .def(
            "count",
            [](BoundStepTimes& self, nb::handle step, std::size_t word, double amount) {
                self.count(identity_of(step), word, amount);
            },
            "step"_a.none(), "word"_a, "amount"_a, "Add to a word of a step, for a number that isn't a time.")
        .def(
            "work",
            [](BoundStepTimes& self, double seconds) {
                self.work(seconds);
                add_lock_waits(self);
            },
            "seconds"_a, "Add the time of all work at a block, steps included; and what `add_lock_waits` adds.")
        .def(
            "add_lock_waits", [](BoundStepTimes& self) { add_lock_waits(self); },
            "Add the calling thread's waits for the interpreter's lock since the last call.")
        .def(
            "enter", [](BoundStepTimes& self) { return self.enter(); },
            "Begin a block of a step's parent; return the time that the step has taken so far, for `leave`.\n\n"
            "For the outermost block, which no step evaluates, this is None.")
        .def(
            "leave", [](BoundStepTimes& self, const std::optional<StepTimes::Mark>& before) { self.leave(before); },
            "before"_a.none(),
            "End the block of the parent, whose steps have ended: from now on, time is that of the step above it.");
    nb::class_<BoundWaitTimes>(module, "WaitTimes", "The waits of one consumer.")
        .def(nb::init<const Words&>(), "words"_a, "Continue the waits in an array.")
        .def(
            "note",
            [](BoundWaitTimes& self, std::size_t cause, double requested, double received, double last) {
                self.note(cause, requested, received, last);
            },
            "cause"_a, "requested"_a, "received"_a, "last"_a,
            "Note the wait from a request to a delivery, and the time since the delivery before, unless they are "
            "short.");
}

}  // namespace penstock::bindings
