// Binds the bell, with a wait that Ctrl-C always ends.
//
// The problem: Python's own signal handler only sets a flag, on the thread that the system chose for the signal; the
// main thread raises KeyboardInterrupt when it next checks the flag. A signal between that check and the wait must end
// the wait.
//
// Rejected: blocking signals around the check and unblocking them in ppoll. While the main thread blocks a signal, the
// system delivers it to another thread, and the main thread sleeps on.
//
// The solution: the main thread also waits on a second descriptor, to which Python's handler writes
// (signal.set_wakeup_fd), from before the check of the flag until after the wait. If the program can open no more
// descriptors, it checks the flag several times a second.
#include "core/bell.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "bindings/interpreter_lock.hpp"
#include "bindings/lock_waits.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace penstock::bindings {

namespace {

// While it exists, Python's signal handler writes to our pipe; at the end the bytes are forwarded to the descriptor
// that was set before.
class SignalWatch {
  public:
    explicit SignalWatch(const Pipe& pipe)
        : pipe_(pipe), set_wakeup_fd_(nb::module_::import_("signal").attr("set_wakeup_fd")) {
        previous_ = nb::cast<int>(set_wakeup_fd_(pipe.write_end(), "warn_on_full_buffer"_a = false));
    }
    ~SignalWatch() {
        restore();
        drain();
        if (previous_ >= 0 && !seen_.empty() && ::write(previous_, seen_.data(), seen_.size()) < 0) {
            // Its buffer is full, so its reader is awake in any case.
        }
    }
    SignalWatch(const SignalWatch&) = delete;
    SignalWatch& operator=(const SignalWatch&) = delete;

    void drain() {
        char numbers[64];
        for (;;) {
            const auto count = ::read(pipe_.read_end(), numbers, sizeof numbers);
            if (count <= 0) return;
            seen_.insert(seen_.end(), numbers, numbers + count);
        }
    }

  private:
    void restore() {
        try {
            set_wakeup_fd_(previous_);
        } catch (nb::python_error&) {  // the descriptor was closed meanwhile
            previous_ = -1;
            set_wakeup_fd_(previous_);
        }
    }

    const Pipe& pipe_;
    nb::object set_wakeup_fd_;
    int previous_ = -1;
    std::vector<char> seen_;
};

bool on_main_thread() {
    return call_or_wait_forever([] {
        const nb::object main = nb::module_::import_("threading").attr("main_thread")();
        return nb::cast<unsigned long>(main.attr("ident")) == PyThread_get_thread_ident();
    });
}

Bell::Outcome wait_without_lock(int descriptor, const Bell::Deadline& deadline, int interrupt) {
    return sleep_without_lock([&] { return Bell::wait_readable(descriptor, deadline, interrupt); });
}

// Waits on any descriptor. A wait on the main thread needs a pipe, which the first one opens.
class Waiter {
  public:
    bool wait(int descriptor, std::optional<double> timeout_seconds) {
        Bell::Deadline deadline;
        if (timeout_seconds) {
            const std::chrono::duration<double> timeout(*timeout_seconds);
            deadline = std::chrono::steady_clock::now() +
                       std::chrono::duration_cast<std::chrono::steady_clock::duration>(timeout);
        }
        if (!on_main_thread()) {
            Bell::Outcome outcome = Bell::Outcome::interrupted;
            while (outcome == Bell::Outcome::interrupted) outcome = wait_without_lock(descriptor, deadline, -1);
            return outcome == Bell::Outcome::rung;
        }
        if (!signals_ && !open_signals()) return wait_in_slices(descriptor, deadline);
        SignalWatch watch(*signals_);
        for (;;) {
            watch.drain();  // before the check: a signal sets the flag first, and writes then
            if (PyErr_CheckSignals() != 0) throw nb::python_error();
            const Bell::Outcome outcome = wait_without_lock(descriptor, deadline, signals_->read_end());
            if (outcome != Bell::Outcome::interrupted) return outcome == Bell::Outcome::rung;
        }
    }

  private:
    bool open_signals() {
        try {
            signals_ = std::make_unique<Pipe>();
        } catch (
            const std::system_error&) {  // no more files may be open; the awaited thread may be about to close some
            return false;
        }
        return true;
    }

    static bool wait_in_slices(int descriptor, const Bell::Deadline& deadline) {
        for (;;) {
            if (PyErr_CheckSignals() != 0) throw nb::python_error();
            const auto slice = std::chrono::steady_clock::now() + slice_length;
            const bool is_last = deadline && *deadline <= slice;
            const auto outcome = wait_without_lock(descriptor, is_last ? deadline : Bell::Deadline(slice), -1);
            if (outcome == Bell::Outcome::rung) return true;
            if (outcome == Bell::Outcome::timed_out && is_last) return false;
        }
    }

    static constexpr std::chrono::milliseconds slice_length{50};

    std::unique_ptr<Pipe> signals_;
};

struct PythonBell {
    std::shared_ptr<Bell> bell = std::make_shared<Bell>();
    Waiter waiter;

    bool wait(std::optional<double> timeout_seconds) { return waiter.wait(bell->fileno(), timeout_seconds); }
};

}  // namespace

std::shared_ptr<Bell> core_bell(nb::handle bell) { return nb::cast<PythonBell&>(bell).bell; }

nb::object python_bell(std::shared_ptr<Bell> bell) { return nb::cast(PythonBell{std::move(bell), {}}); }

void bind_bell(nb::module_& module) {
    nb::class_<PythonBell>(module, "Bell", "A file descriptor that becomes readable when it is rung.")
        .def(nb::init<>())
        .def(
            "ring", [](PythonBell& self) { self.bell->ring(); }, "Make the descriptor readable.")
        .def(
            "clear", [](PythonBell& self) { return self.bell->clear(); },
            "Make the descriptor unreadable; return whether it was readable.")
        .def(
            "fileno", [](const PythonBell& self) { return self.bell->fileno(); }, "Return the descriptor.")
        .def("wait", &PythonBell::wait, "timeout_seconds"_a.none(),
             "Wait until it is rung; return False after the timeout.");
    nb::class_<Waiter>(module, "Waiter", "Waits on any descriptor.")
        .def(nb::init<>())
        .def("wait", &Waiter::wait, "descriptor"_a, "timeout_seconds"_a.none(),
             "Wait until the descriptor is readable; return False after the timeout.");
}

}  // namespace penstock::bindings
