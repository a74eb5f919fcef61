// Binds the pool and its mailboxes. Only this file drops the Python objects of jobs, with the GIL.
#include "core/pool.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/jobs.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace penstock::bindings {

namespace {

enum Outcome : int { has_result = 0, has_failed = 1, was_withdrawn = 2 };

struct PythonMailbox {
    std::shared_ptr<Mailbox> mailbox = std::make_shared<Mailbox>();

    PythonMailbox() = default;
    PythonMailbox(const PythonMailbox&) = delete;
    PythonMailbox& operator=(const PythonMailbox&) = delete;
    ~PythonMailbox() {
        mailbox.reset();
        release_retired();
    }
};

struct PythonPool {
    std::shared_ptr<Pool> pool;

    explicit PythonPool(std::size_t num_threads) : pool(std::make_shared<Pool>(num_threads)) { release_retired(); }
    PythonPool(const PythonPool&) = delete;
    PythonPool& operator=(const PythonPool&) = delete;
    ~PythonPool() {
        pool.reset();
        release_retired();
    }
};

// Holds the pool weakly: a future that is kept must not keep the pool alive.
struct PythonSubmission {
    std::shared_ptr<Submission> submission;
    std::weak_ptr<Pool> pool;

    bool withdraw() {
        const std::shared_ptr<Pool> kept = pool.lock();
        return kept != nullptr && kept->here() && kept->withdraw(*submission);
    }
};

nb::object text(const std::string& utf8) {
    return nb::steal(PyUnicode_DecodeUTF8(utf8.data(), static_cast<Py_ssize_t>(utf8.size()), "replace"));
}

nb::object exception(const Failure& failure) {
    switch (failure.error) {
        case PythonError::os_error: {
            const nb::object type = nb::borrow(PyExc_OSError);
            if (failure.error_number == 0) return type(text(failure.text));
            if (failure.file.empty()) return type(failure.error_number, text(failure.text));
            const auto size = static_cast<Py_ssize_t>(failure.file.size());
            const nb::object file = nb::steal(PyUnicode_DecodeFSDefaultAndSize(failure.file.data(), size));
            return type(failure.error_number, text(failure.text), file);
        }
        case PythonError::index_error:
            return nb::borrow(PyExc_IndexError)(text(failure.text));
        case PythonError::value_error:
            return nb::borrow(PyExc_ValueError)(text(failure.text));
        case PythonError::overflow_error:
            return nb::borrow(PyExc_OverflowError)(text(failure.text));
        case PythonError::memory_error:
            return nb::borrow(PyExc_MemoryError)(text(failure.text));
        default:
            return nb::borrow(PyExc_RuntimeError)(text(failure.text));
    }
}

nb::object outcome(Submission& submission) {
    try {
        if (submission.failure.kind == Failure::Kind::withdrawn) {
            return nb::make_tuple(submission.ticket, static_cast<int>(was_withdrawn), nb::none());
        }
        if (submission.failure.kind != Failure::Kind::none) {
            return nb::make_tuple(submission.ticket, static_cast<int>(has_failed), exception(submission.failure));
        }
        auto* work = static_cast<HeldWork*>(submission.work.get());  // Python submits only these
        const nb::object result = work == nullptr ? nb::none() : work->result();
        return nb::make_tuple(submission.ticket, static_cast<int>(has_result), result);
    } catch (nb::python_error& error) {
        return nb::make_tuple(submission.ticket, static_cast<int>(has_failed), nb::borrow(error.value()));
    }
}

nb::list take(PythonMailbox& self) {
    nb::list outcomes;
    for (std::shared_ptr<Submission>& submission : self.mailbox->take()) {
        outcomes.append(outcome(*submission));
        submission->work.reset();  // a future that is kept must keep no buffers
    }
    release_retired();
    return outcomes;
}

PythonSubmission submit(PythonPool& self, PythonJob& job, std::uint64_t ticket, PythonMailbox& mailbox) {
    if (!self.pool->here()) throw std::runtime_error("a forked child has none of its parent's threads");
    return {self.pool->submit(job.take(), ticket, mailbox.mailbox), self.pool};
}

}  // namespace

void bind_pool(nb::module_& module) {
    nb::class_<PythonSubmission>(module, "Submission", "A submitted job.")
        .def("withdraw", &PythonSubmission::withdraw,
             "Drop the job if it has not started; return whether it had not. Then it arrives in no mailbox.");
    nb::class_<PythonMailbox>(module, "Mailbox", "The jobs that have ended.")
        .def(nb::init<>())
        .def(
            "fileno", [](const PythonMailbox& self) { return self.mailbox->fileno(); },
            "Return the descriptor, which is readable if there are any.")
        .def_prop_ro(
            "here", [](const PythonMailbox& self) { return self.mailbox->here(); },
            "Whether this process created it; False in a forked child.")
        .def("take", &take, nb::sig("def take(self) -> list[tuple[int, int, object]]"),
             "Take the jobs that have ended: tickets, and 0 and the result, 1 and the exception, or 2 if withdrawn.");
    nb::class_<PythonPool>(module, "Pool", "Threads that run jobs.")
        .def(nb::init<std::size_t>(), "num_threads"_a)
        .def_prop_ro(
            "here", [](const PythonPool& self) { return self.pool->here(); },
            "Whether this process created it; False in a forked child.")
        .def("submit", &submit, "job"_a, "ticket"_a, "mailbox"_a,
             "Run the job; it arrives in the mailbox when it has ended.")
        .def(
            "withdraw_all", [](PythonPool& self) { self.pool->withdraw_all(); },
            "Withdraw the jobs that have not started; they arrive in their mailboxes.")
        .def(
            "end",
            [](PythonPool& self, std::uint64_t ticket, PythonMailbox& mailbox) {
                self.pool->end(ticket, mailbox.mailbox);
            },
            "ticket"_a, "mailbox"_a,
            "Accept no more jobs; the ticket arrives in the mailbox after the last job has ended.")
        .def_prop_ro(
            "idle_seconds",
            [](const PythonPool& self) { return std::chrono::duration<double>(self.pool->since_last_end()).count(); },
            "The time since a job ended, or the pool was created.")
        .def(
            "join",
            [](PythonPool& self) {
                const std::shared_ptr<Pool> kept = self.pool;
                kept->join();
            },
            "Wait for the end of the threads, after end().");
}

}  // namespace penstock::bindings
